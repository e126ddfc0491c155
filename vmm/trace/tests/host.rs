//! Tests of the guest tool and the MPI tracer with a substitute for the emulator: the CPUID instruction is made to fault, and a signal
//! handler answers the hypercalls (tests/host/cpuid_host.c). The handler's log goes through the decoder and the assembler, as requests do
//! in nodescope.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Call, Fault, Function, GuestVirtual, Peer, Request, decode};
use nodescope_test_needs::{Need, have, skip};
use nodescope_trace::{Assembler, Body, Event, MatrixBuilder, MpiCall, Profile, Stamp};

static ONE_JOB: Mutex<()> = Mutex::new(());

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns whether the processor can make CPUID fault and the tools are installed. If not, reports that the test is skipped.
fn possible(need: Need, tools: &[&str]) -> bool {
    if !std::fs::read_to_string("/proc/cpuinfo")
        .unwrap_or_default()
        .contains("cpuid_fault")
    {
        skip(Need::Cpu, "this processor cannot make CPUID fault");
        return false;
    }
    have(need, tools)
}

fn succeed(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Guest memory that one call passed: addresses and bytes.
struct Passed(Vec<(u64, Vec<u8>)>);

impl GuestVirtual for Passed {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        let found = self
            .0
            .iter()
            .find(|(start, bytes)| *start == address && bytes.len() == buffer.len());
        buffer.copy_from_slice(
            &found
                .ok_or(Fault {
                    address,
                    write: false,
                })?
                .1,
        );
        Ok(())
    }
    fn write(&mut self, address: u64, _: &[u8]) -> Result<(), Fault> {
        Err(Fault {
            address,
            write: true,
        })
    }
}

fn requests(log: &[u8]) -> Vec<Request> {
    let mut rest = log;
    let mut take = |length: usize| {
        let (head, tail) = rest.split_at(length);
        rest = tail;
        head.to_vec()
    };
    let mut requests = Vec::new();
    let mut left = log.len();
    while left > 0 {
        let head = take(48);
        let word =
            |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let args = [8, 16, 24, 32, 40].map(word);
        let mut passed = Vec::new();
        for address in [args[0], args[3]] {
            let length = u64::from_le_bytes(take(8).try_into().expect("eight bytes")) as usize;
            passed.push((address, take(length)));
            left -= 8 + length;
        }
        left -= 48;
        let call = Call::new(word(0) as u32, args).expect("an operation");
        requests.push(decode(&call, &mut Passed(passed)).expect("a valid call"));
    }
    requests
}

/// Returns the requests of each process that made any, sorted by the name of the process's log.
fn logs(folder: &Path) -> Vec<Vec<Request>> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("folder")
        .map(|entry| entry.expect("entry").path())
        .collect();
    paths.retain(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("log."))
    });
    paths.sort();
    paths
        .iter()
        .map(|path| requests(&std::fs::read(path).expect("a log")))
        .filter(|requests| !requests.is_empty())
        .collect()
}

#[test]
fn the_tool_says_what_it_is_asked_to() {
    if !possible(Need::Compiler, &["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let tool = folder.path().join("nodescope-guest");
    let sources = root().join("guest-images/tracer");
    succeed(
        Command::new("gcc")
            .args(["-O2", "-I"])
            .arg(&sources)
            .arg("-o")
            .arg(&tool)
            .arg(sources.join("guest-tool.c"))
            .arg(root().join("vmm/trace/tests/host/cpuid_host.c")),
    );
    let data: Vec<u8> = (0..150_000u32).map(|value| (value % 251) as u8).collect();
    let input = folder.path().join("hpccoutf.txt");
    std::fs::write(&input, &data).expect("write the input");
    let run = |arguments: &[&str]| {
        let output = succeed(
            Command::new(&tool)
                .args(arguments)
                .env("NODESCOPE_TEST_LOG", folder.path().join("log")),
        );
        let mut all = logs(folder.path());
        assert_eq!(all.len(), 1, "one process");
        for entry in std::fs::read_dir(folder.path()).expect("folder") {
            let path = entry.expect("entry").path();
            if path.to_string_lossy().contains("log.") {
                std::fs::remove_file(path).expect("remove the log");
            }
        }
        let mut requests = all.remove(0);
        assert_eq!(requests.remove(0), Request::Probe);
        (String::from_utf8(output.stdout).expect("text"), requests)
    };
    assert_eq!(
        run(&["probe"]),
        (
            "nodescope, ABI version 2, direct transport\n".into(),
            vec![]
        )
    );
    assert_eq!(run(&["mark", "before"]).1, [Request::Mark("before".into())]);
    assert_eq!(run(&["open", "hpl"]).1, [Request::OpenWindow("hpl".into())]);
    assert_eq!(
        run(&["close", "hpl"]).1,
        [Request::CloseWindow("hpl".into())]
    );
    assert_eq!(
        run(&["message", "grüß"]).1,
        [Request::Message("grüß".into())]
    );
    assert_eq!(run(&["exit", "3"]).1, [Request::JobExit(3)]);
    let (identity, _) = run(&["identity"]);
    let expected = "NODE=1\nNODES=2\nVCPUS=4\nNAME=n1\nADDRESS=10.0.0.2\nPREFIX=24\nMAC=02:00:00:00:00:01\nSEED=9\nJOB=x\n";
    assert_eq!(identity, expected);

    let (_, chunks) = run(&["put", &input.to_string_lossy()]);
    let mut copied = Vec::new();
    for (index, request) in chunks.iter().enumerate() {
        let Request::PutFile(chunk) = request else {
            panic!("{request:?}")
        };
        assert_eq!(
            (chunk.name.as_str(), chunk.offset),
            ("hpccoutf.txt", copied.len() as u64)
        );
        assert_eq!(chunk.last, index + 1 == chunks.len());
        copied.extend(&chunk.data);
    }
    assert_eq!((copied, chunks.len()), (data, 3));
}

#[test]
fn open_mpi_calls_arrive_with_their_beginnings() {
    mpi("openmpi");
}

#[test]
fn mpich_calls_arrive_with_their_beginnings() {
    mpi("mpich");
}

fn mpi(flavour: &str) {
    let (compiler, launcher) = (format!("mpicc.{flavour}"), format!("mpirun.{flavour}"));
    let tools = ["gcc", "mpicc.openmpi", "mpicc.mpich", &launcher];
    if !possible(Need::Mpi, &tools) {
        return;
    }
    let _alone = ONE_JOB.lock();
    let folder = tempfile::tempdir().expect("temporary folder");
    let at = |name: &str| folder.path().join(name);
    succeed(Command::new(root().join("guest-images/tracer/build")).arg(folder.path()));
    succeed(
        Command::new("gcc")
            .args(["-O2", "-shared", "-fPIC", "-I"])
            .arg(root().join("guest-images/tracer"))
            .arg("-o")
            .arg(at("host.so"))
            .arg(root().join("vmm/trace/tests/host/cpuid_host.c")),
    );
    succeed(
        Command::new(&compiler)
            .args(["-O1", "-w", "-o"])
            .arg(at("program"))
            .arg(root().join("vmm/hypercall/tests/mpi/calls.c")),
    );
    let mut command = Command::new("timeout");
    command.arg("300").arg(&launcher).args(["-n", "4"]);
    if flavour == "openmpi" {
        command.args([
            "--allow-run-as-root",
            "--oversubscribe",
            "--mca",
            "btl",
            "self,vader,tcp",
        ]);
        // Open MPI's own handler of segmentation faults would replace the substitute's handler.
        command
            .env("OMPI_MCA_opal_signal", "6")
            .env("OMPI_MCA_mpi_yield_when_idle", "1");
    }
    // The last preloaded library is initialised first, and the substitute must be ready before the tracer makes its first hypercall.
    let preload = format!(
        "{}:{}",
        at(&format!("libnodescope-mpi-{flavour}.so")).display(),
        at("host.so").display()
    );
    command.arg("env").arg(format!("LD_PRELOAD={preload}"));
    command
        .arg(format!("NODESCOPE_TEST_LOG={}", at("log").display()))
        .arg(at("program"));
    succeed(&mut command);

    let (mut profile, mut matrix) = (Profile::default(), MatrixBuilder::default());
    let ranks = logs(folder.path());
    assert_eq!(ranks.len(), 4);
    for requests in ranks {
        assert_eq!(requests[0], Request::Probe);
        let (mut assembler, mut events, mut time) = (Assembler::new(0), Vec::new(), 0);
        for request in requests {
            time += 10;
            assembler.request(
                request,
                Stamp {
                    time,
                    instructions: time,
                    vcpu: 0,
                },
                &mut events,
            );
        }
        let before = events.len();
        assembler.finish(Stamp::default(), &mut events);
        assert_eq!(events.len(), before, "every call that began has ended");
        check_rank(&events);
        events.iter().for_each(|event| {
            profile.add(event);
            matrix.add(event);
        });
    }
    let test = profile.get(0, Function::Test);
    assert_eq!(
        (test.calls, test.time, test.max_time),
        (1000, 10_000, 10),
        "two stamps per poll, ten apart"
    );
    let sums = profile.by_function();
    assert_eq!(
        (sums[&Function::Init].calls, sums[&Function::Finalize].calls),
        (4, 4)
    );
    assert_eq!(
        (
            sums[&Function::Sendrecv].send_bytes,
            sums[&Function::Sendrecv].receive_bytes
        ),
        (48, 48)
    );
    // Each rank to the next: Sendrecv 12, replace 4, three Isend, two Send, two Issend, three persistent of 4 bytes each.
    let [even, odd] = [0, 1].map(|rank| matrix.matrix().get(rank, rank + 1));
    assert_eq!((odd.messages, odd.bytes), (12, 12 + 11 * 4));
    // Even ranks also make a Send, Bsend, Ssend and Rsend, of 1 to 4 ints.
    assert_eq!((even.messages, even.bytes), (16, 12 + 11 * 4 + 10 * 4));
}

fn check_rank(events: &[Event]) {
    let calls: Vec<&MpiCall> = events
        .iter()
        .filter_map(|event| {
            if let Body::Mpi(call) = &event.body {
                Some(&**call)
            } else {
                None
            }
        })
        .collect();
    let Some(Event {
        body: Body::Process(hello),
        ..
    }) = events.first()
    else {
        panic!("a hello comes first: {:?}", events.first())
    };
    assert_eq!((hello.world_size, hello.program.as_str()), (4, "program"));
    assert!(calls.len() > 60);
    for call in &calls {
        assert!(call.entry_seen, "{call:?}");
        assert_eq!(
            (call.record.rank, call.record.thread.pid),
            (hello.rank, hello.pid)
        );
        if !call.record.flags.contains(Flags::POLL_RUN) {
            assert!(call.exit.time > call.entry.time);
        }
    }
    // In a thread without poll runs, calls do not overlap.
    if hello.rank != Peer::Rank(0) {
        assert!(
            calls
                .windows(2)
                .all(|pair| pair[0].exit.time < pair[1].entry.time)
        );
    }
}
