//! Tests with faulty MPI programs in guests. A deadlock ends the run, and the report has the cycle of ranks, their calls and call sites.
//! The report also has lost messages, collectives that differ between ranks, and receives that are too short.

use std::fs;
use std::path::Path;
use std::process::Command;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_cluster::{Ending, Outcome};
use nodescope_guest_tests::{Finished, SECOND_PS, cluster, compile, image, program, run};
use nodescope_loop_tree::Program;
use nodescope_loop_tree::sequence::SequenceBuilder;
use nodescope_machine::topology::NodeTopology;
use nodescope_predict::{Channel, Cluster, Model, Problem, Request, predict};
use nodescope_trace::pending::{Fault, Waits};
use nodescope_trace::{Call, PendingCalls, PendingCallsBuilder, TraceReader};

const PROGRAM: &str = "../../../guest-images/jobs/faults/faults.c";
const OPEN_MPI: (&str, &str) = ("mpicc.openmpi", "mpirun.openmpi");
const MPICH: (&str, &str) = ("mpicc.mpich", "mpiexec.hydra");

/// Results of a run.
struct Ran {
    finished: Finished,
    pending: PendingCalls,
    /// ELF file of the program.
    binary: Vec<u8>,
    dir: tempfile::TempDir,
}

/// Runs the program's cases one after the other on `nodes` nodes of `cpus` CPUs. A case that fails does not fail the job. None: there is no
/// compiler or no guest image.
fn ran(
    (compiler, launcher): (&str, &str),
    cases: &[&str],
    (nodes, cpus): (u32, u32),
    deadlock_ps: Option<u64>,
) -> Option<Ran> {
    let binary = compile(compiler, PROGRAM, &["-O1", "-g"])?;
    let image = image()?;
    let mut script = String::from("#!/bin/sh\n");
    for case in cases {
        let ranks = nodes * cpus;
        script += &format!("{launcher} -n {ranks} ./faults {case}; echo \"{case} gave $?\"\n");
    }
    let files = [program("run", script), program("faults", binary.clone())];
    let node = NodeTopology::uniform(1, cpus, 1, 256 << 20);
    let mut config = cluster(image, nodes, node, &files);
    config.trace = true;
    config.deadlock_ps = deadlock_ps;
    config.time_limit_ps = 4 * SECOND_PS;
    config.host_threads = 2;
    let dir = tempfile::tempdir().unwrap();
    let finished = run(&config, dir.path()).unwrap();
    let mut pending = PendingCallsBuilder::default();
    let trace = TraceReader::open(dir.path().join(TRACE_FILE)).unwrap();
    trace
        .events()
        .for_each(|event| pending.add(&event.unwrap()));
    let pending = pending.finish();
    for line in pending.lines() {
        println!("{line}");
    }
    Some(Ran {
        finished,
        pending,
        binary,
        dir,
    })
}

impl Ran {
    /// Returns the text of the source line of a call site such as `program+0x1234`. A call site is a return address, so the line is that of
    /// the byte before.
    fn source(&self, site: &str) -> String {
        let path = self.dir.path().join("faults");
        fs::write(&path, &self.binary).unwrap();
        let address = site.strip_prefix("program+0x").expect(site);
        let call = u64::from_str_radix(address, 16).unwrap() - 1;
        let mut tool = Command::new("addr2line");
        tool.arg("-e").arg(&path).arg(format!("{call:#x}"));
        let output = tool
            .output()
            .expect("addr2line, of the compiler's own package");
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.trim().rsplit(':').next().unwrap();
        let line: usize = line.split(' ').next().unwrap().parse().expect(&text);
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("programs")
            .join(PROGRAM);
        let source = fs::read_to_string(source).unwrap();
        source.lines().nth(line - 1).unwrap().trim().to_owned()
    }

    /// Checks that the run ended because of one deadlock of all ranks with this cycle. `calls` has each rank's call, and the source line of
    /// the call site.
    fn is_deadlock(&self, cycle: &[u32], calls: &[(&str, &str)]) {
        let outcome: &Outcome = &self.finished.outcome;
        let ranks: Vec<u32> = (0..calls.len() as u32).collect();
        let console = &self.finished.consoles[0];
        let expected = Ending::Deadlock {
            ranks: ranks.clone(),
        };
        assert_eq!(outcome.ending, expected, "{console}\n{:#?}", self.pending);
        let [deadlock] = self.pending.deadlocks.as_slice() else {
            panic!("{:#?}", self.pending);
        };
        assert_eq!(
            (&deadlock.ranks[..], &deadlock.cycle[..]),
            (&ranks[..], cycle)
        );
        let told: Vec<_> = self.pending.calls.iter().collect();
        assert_eq!(told.len(), calls.len());
        for (call, (text, source)) in told.iter().zip(calls) {
            assert_eq!(call.call.call, *text);
            if !source.is_empty() {
                let site = call.call.address.as_deref().expect("a call site");
                assert_eq!(self.source(site), *source);
            }
        }
    }

    /// Interprets the trace on another cluster, and returns the problems.
    fn predicted(&self) -> Vec<Problem> {
        let mut builder = SequenceBuilder::default();
        let trace = TraceReader::open(self.dir.path().join(TRACE_FILE)).unwrap();
        trace
            .events()
            .for_each(|event| builder.add(&event.unwrap()));
        assert!(builder.has_unfinished());
        builder.set_deadlocks(&self.pending);
        let sequences = builder.finish().unwrap();
        let program = Program::new(&sequences);
        let channel = Channel::new(Model::LogGp, 1_000_000, 1_000_000_000);
        let cluster = Cluster::simple("c", channel);
        let prediction = predict(&program, &cluster, &Request::default()).unwrap();
        prediction.outcome.problems
    }
}

fn receives_first(mpi: (&str, &str)) {
    let Some(ran) = ran(mpi, &["receive"], (2, 1), Some(SECOND_PS / 10)) else {
        return;
    };
    let line = "MPI_Recv(data, 8, MPI_BYTE, peer, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);";
    ran.is_deadlock(
        &[0, 1],
        &[
            ("MPI_Recv(from 1, tag 7, MPI_COMM_WORLD)", line),
            ("MPI_Recv(from 0, tag 7, MPI_COMM_WORLD)", line),
        ],
    );
    assert!(ran.pending.lines().iter().any(|line| {
        line.starts_with("    rank 1 in MPI_Recv(from 0, tag 7, MPI_COMM_WORLD) at program+0x")
            && line.ends_with(" waits for rank 0")
    }));
    // The interpreter of predictions finds the deadlock, too.
    let problems = ran.predicted();
    let [Problem::Deadlock { cycle, .. }] = problems.as_slice() else {
        panic!("{problems:?}");
    };
    println!("{}", problems[0]);
    assert_eq!(cycle.iter().map(|b| b.rank).collect::<Vec<_>>(), [0, 1]);
    let at = cycle[0].at.to_string();
    assert!(at.starts_with("MPI_Recv at program+0x"), "{at}");
}

#[test]
fn two_receives_first_under_open_mpi() {
    receives_first(OPEN_MPI);
}

#[test]
fn two_receives_first_under_mpich() {
    receives_first(MPICH);
}

#[test]
fn three_long_sends_in_a_circle() {
    let Some(ran) = ran(OPEN_MPI, &["send"], (1, 3), Some(SECOND_PS / 10)) else {
        return;
    };
    let line = "MPI_Send(data, LONG, MPI_BYTE, after, 3, MPI_COMM_WORLD);";
    ran.is_deadlock(
        &[0, 1, 2],
        &[
            ("MPI_Send(to 1, tag 3, 1048576 B, MPI_COMM_WORLD)", line),
            ("MPI_Send(to 2, tag 3, 1048576 B, MPI_COMM_WORLD)", line),
            ("MPI_Send(to 0, tag 3, 1048576 B, MPI_COMM_WORLD)", line),
        ],
    );
}

#[test]
fn a_barrier_and_a_receive() {
    let Some(ran) = ran(MPICH, &["barrier"], (1, 3), Some(SECOND_PS / 10)) else {
        return;
    };
    let barrier = "MPI_Barrier(MPI_COMM_WORLD);";
    ran.is_deadlock(
        &[0, 2],
        &[
            ("MPI_Barrier(MPI_COMM_WORLD)", barrier),
            ("MPI_Barrier(MPI_COMM_WORLD)", barrier),
            (
                "MPI_Recv(from 0, tag 1, MPI_COMM_WORLD)",
                "MPI_Recv(data, 8, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);",
            ),
        ],
    );
}

#[test]
fn a_wait_for_what_nobody_sends() {
    let Some(ran) = ran(OPEN_MPI, &["wait"], (1, 2), Some(SECOND_PS / 10)) else {
        return;
    };
    ran.is_deadlock(
        &[0, 1],
        &[
            (
                "MPI_Wait(1 request)",
                "MPI_Wait(&request, MPI_STATUS_IGNORE);",
            ),
            ("MPI_Finalize()", "MPI_Finalize();"),
        ],
    );
    // The report has the operation for which the call waits, with the operation's own call site.
    let Waits::Waiting { ranks, of, .. } = &ran.pending.calls[0].waits else {
        panic!("{:?}", ran.pending);
    };
    assert_eq!(ranks, &[1]);
    assert_eq!(of[0].call, "MPI_Irecv(from 1, tag 9, MPI_COMM_WORLD)");
    let site = of[0].address.as_deref().expect("a call site");
    assert!(ran.source(site).starts_with("MPI_Irecv("));
}

/// Checks that two ranks wait for each other. Each rank must be in one of some functions, with some arguments; window ids differ between
/// MPI libraries. Returns the problems that the interpreter of predictions finds; None if the host lacks an MPI compiler or the guest
/// image.
fn two_in_a_cycle(
    mpi: (&str, &str),
    case: &str,
    shape: (u32, u32),
    calls: [(&[&str], &str); 2],
) -> Option<Vec<Problem>> {
    let ran = ran(mpi, &[case], shape, Some(SECOND_PS / 10))?;
    let console = &ran.finished.consoles[0];
    let expected = Ending::Deadlock { ranks: vec![0, 1] };
    let pending = &ran.pending;
    let ending = &ran.finished.outcome.ending;
    assert_eq!(*ending, expected, "{console}\n{pending:#?}");
    assert_eq!(pending.deadlocks[0].cycle, [0, 1]);
    assert!(pending.faults.is_empty(), "{pending:#?}");
    for (call, (functions, arguments)) in pending.calls.iter().zip(calls) {
        assert!(functions.contains(&call.function), "{call:?}");
        assert!(call.call.call.contains(arguments), "{call:?}");
    }
    Some(ran.predicted())
}

/// Checks that the interpreter of predictions also finds that both ranks wait for each other.
fn is_cycle(problems: Option<Vec<Problem>>) {
    let Some(problems) = problems else { return };
    let [Problem::Deadlock { cycle, .. }] = problems.as_slice() else {
        panic!("{problems:?}");
    };
    println!("{}", problems[0]);
    assert_eq!(cycle.iter().map(|b| b.rank).collect::<Vec<_>>(), [0, 1]);
}

/// Functions of an access epoch; the MPI library decides which of them waits.
const ACCESS: &[&str] = &["MPI_Win_start", "MPI_Get", "MPI_Win_complete"];
/// Functions of a lock epoch; the MPI library decides which of them waits.
const LOCKED: &[&str] = &["MPI_Win_lock", "MPI_Put", "MPI_Win_unlock"];

#[test]
fn access_before_exposure_under_open_mpi() {
    is_cycle(two_in_a_cycle(
        OPEN_MPI,
        "start",
        (2, 1),
        [(ACCESS, "window "); 2],
    ));
}

#[test]
fn access_before_exposure_under_mpich() {
    is_cycle(two_in_a_cycle(
        MPICH,
        "start",
        (2, 1),
        [(ACCESS, "window "); 2],
    ));
}

#[test]
fn locks_in_two_orders_under_open_mpi() {
    two_in_a_cycle(
        OPEN_MPI,
        "lock",
        (2, 1),
        [(LOCKED, "target 1"), (LOCKED, "target 0")],
    );
}

#[test]
fn locks_in_two_orders_under_mpich() {
    two_in_a_cycle(
        MPICH,
        "lock",
        (2, 1),
        [(LOCKED, "target 1"), (LOCKED, "target 0")],
    );
}

#[test]
fn a_persistent_sum_and_a_receive() {
    let calls: [(&[&str], &str); 2] = [
        (&["MPI_Wait"], "1 request"),
        (&["MPI_Recv"], "from 0, tag 1"),
    ];
    is_cycle(two_in_a_cycle(OPEN_MPI, "persist", (1, 2), calls));
}

#[test]
fn neighbours_and_a_receive() {
    let calls: [(&[&str], &str); 2] = [
        (&["MPI_Neighbor_allgather"], "communicator "),
        (&["MPI_Recv"], "from 0, tag 1"),
    ];
    is_cycle(two_in_a_cycle(MPICH, "near", (1, 2), calls));
}

#[test]
fn a_write_in_order_and_a_barrier() {
    let calls: [(&[&str], &str); 2] = [
        (&["MPI_File_write_ordered"], "file /tmp/faults"),
        (&["MPI_Barrier"], "MPI_COMM_WORLD"),
    ];
    two_in_a_cycle(OPEN_MPI, "file", (1, 2), calls);
}

#[test]
fn a_rank_that_polls_meets_the_time_limit_and_is_told() {
    let Some(ran) = ran(OPEN_MPI, &["poll"], (1, 2), Some(SECOND_PS / 10)) else {
        return;
    };
    // A polling rank may still continue, so there is no deadlock, but the report has the calls of the ranks.
    assert_eq!(ran.finished.outcome.ending, Ending::TimeLimit);
    assert!(ran.pending.deadlocks.is_empty(), "{:?}", ran.pending);
    let [polls, finalize] = ran.pending.calls.as_slice() else {
        panic!("{:?}", ran.pending);
    };
    // The polls of a poll run may ask for different messages, so the report names no source and no tag.
    assert_eq!(polls.call.call, "MPI_Iprobe(MPI_COMM_WORLD)");
    assert!(
        matches!(polls.waits, Waits::Polling { polls: 1000.. }),
        "{polls:?}"
    );
    assert_eq!(finalize.call.call, "MPI_Finalize()");
}

fn other_faults(mpi: (&str, &str), code: fn(i32) -> bool) {
    let cases = ["lost", "mismatch", "truncate", "abort"];
    let Some(ran) = ran(mpi, &cases, (1, 2), Some(SECOND_PS / 10)) else {
        return;
    };
    let console = &ran.finished.consoles[0];
    assert_eq!(ran.finished.outcome.ending, Ending::PoweredOff, "{console}");
    for well in [
        "lost gave 0",
        "mismatch gave 0",
        "truncate gave 0",
        "the receive was too short",
    ] {
        assert!(console.contains(well), "{well}: {console}");
    }
    assert!(!console.contains("abort gave 0"), "{console}");
    assert!(ran.pending.deadlocks.is_empty(), "{:?}", ran.pending);
    let faults = &ran.pending.faults;
    let site = |call: &Call, function: &str| {
        assert_eq!(call.call, function);
        ran.source(call.address.as_deref().expect("a call site"))
    };
    let of_job = |wanted: usize| -> Vec<&Fault> {
        let job = |fault: &&Fault| match fault {
            Fault::Unreceived { job, .. }
            | Fault::Truncated { job, .. }
            | Fault::Mismatch { job, .. }
            | Fault::Failed { job, .. } => *job == wanted,
        };
        faults.iter().filter(job).collect()
    };
    let [
        Fault::Unreceived {
            from: 0,
            to: 1,
            tag: 5,
            bytes: 100,
            count: 1,
            sent_by,
            ..
        },
    ] = of_job(0)[..]
    else {
        panic!("{faults:#?}");
    };
    assert!(site(sent_by, "MPI_Send").starts_with("MPI_Send(data, 100,"));
    let [
        Fault::Mismatch {
            communicator,
            rank,
            at,
            other_at,
            ..
        },
    ] = of_job(1)[..]
    else {
        panic!("{faults:#?}");
    };
    assert_eq!(communicator, "MPI_COMM_WORLD");
    let (bcast, reduce) = if *rank == 0 {
        (at, other_at)
    } else {
        (other_at, at)
    };
    assert!(site(bcast, "MPI_Bcast").starts_with("MPI_Bcast("));
    assert!(site(reduce, "MPI_Reduce").starts_with("MPI_Reduce("));
    let [
        Fault::Truncated {
            from: 0,
            to: 1,
            tag: 5,
            bytes: 100,
            room: 64,
            at,
            ..
        },
        Fault::Failed {
            rank: 1,
            result,
            count: 1,
            ..
        },
    ] = of_job(2)[..]
    else {
        panic!("{faults:#?}");
    };
    assert!(site(at, "MPI_Recv").contains("MPI_Recv(data, 64,"));
    assert!(code(*result), "{result:#x}");
    // The call in which the program was aborted never returned; its arguments show the reason.
    assert!(
        matches!(
            of_job(3)[..],
            [Fault::Truncated {
                from: 0,
                to: 1,
                bytes: 100,
                room: 64,
                ..
            }]
        ),
        "{faults:#?}"
    );
}

#[test]
fn other_faults_under_open_mpi() {
    other_faults(OPEN_MPI, |code| code == 15);
}

#[test]
fn other_faults_under_mpich() {
    other_faults(MPICH, |code| code & 0x7f == 14);
}
