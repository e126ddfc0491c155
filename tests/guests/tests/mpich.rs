//! Tests with programs of MPICH, started by MPICH's own launcher on two nodes: the trace has every call, peer and byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_guest_tests::{Finished, cluster, compile, image, run_well};
use nodescope_hypercall::{Class, Function, MpiRecord, Peer};
use nodescope_study::Study;
use nodescope_trace::{Body, Event, MatrixBuilder, Profile, TraceReader};

/// Runs a study's job on two nodes with `sockets` sockets each, and links of 10 Gbit/s and 20 us. None: there is no guest image.
fn run(dir: &Path, job: &str, files: &[(&str, &[u8])], sockets: u32) -> Option<Finished> {
    let image = image()?;
    for (name, data) in files {
        let path = dir.join(name);
        fs::write(&path, data).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, executable).unwrap();
    }
    let text = format!(
        "[study]\nname = \"mpich\"\n[cluster]\nnodes = 2\n[node]\nsockets = {sockets}\nmemory = \"256 MiB\"\n\
         [job]\nmpi = \"mpich\"\n{job}"
    );
    let file = dir.join("study.toml");
    fs::write(&file, text).unwrap();
    let study = Study::load(&file).unwrap_or_else(|problems| panic!("{problems}"));
    let mut config = cluster(image, study.nodes, study.topology.clone(), &[]);
    config.job_disk = study.job_disk().unwrap();
    config.trace = study.job.trace;
    config.host_threads = 2;
    Some(run_well(&config, &dir.join("results")))
}

fn events(finished: &Finished) -> Vec<Event> {
    let trace = TraceReader::open(finished.dir.join(TRACE_FILE)).unwrap();
    trace.events().map(Result::unwrap).collect()
}

fn records(events: &[Event]) -> impl Iterator<Item = &MpiRecord> {
    events.iter().filter_map(|event| match &event.body {
        Body::Mpi(call) => Some(&call.record),
        _ => None,
    })
}

/// Returns the node of each rank, from the ranks' hello messages.
fn places(events: &[Event]) -> BTreeMap<u32, u32> {
    let ranks = events.iter().filter_map(|event| match &event.body {
        Body::Process(hello) => Some((hello.rank.rank()?, event.node)),
        _ => None,
    });
    ranks.collect()
}

/// Counts of MPI calls. By rank and function: calls, bytes sent and bytes received. By sender and receiver: messages and bytes, as the
/// sender counts them and as the receiver counts them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Books {
    calls: BTreeMap<(u32, String), [u64; 3]>,
    sent: BTreeMap<(u32, u32), [u64; 2]>,
    received: BTreeMap<(u32, u32), [u64; 2]>,
}

impl Books {
    /// Reads the counts that `programs/counted.c` wrote.
    fn of_program(text: &str) -> Books {
        let mut books = Books::default();
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().expect(line);
            let rank = number(1) as u32;
            match words[0] {
                "calls" => {
                    let counts = [number(3), number(4), number(5)];
                    books.calls.insert((rank, words[2].into()), counts);
                }
                "sent" => {
                    let to = (rank, number(2) as u32);
                    books.sent.insert(to, [number(3), number(4)]);
                }
                "received" => {
                    let from = (number(2) as u32, rank);
                    books.received.insert(from, [number(3), number(4)]);
                }
                _ => panic!("{line}"),
            }
        }
        books
    }

    fn of_trace(events: &[Event]) -> Books {
        let (mut books, mut profile) = (Books::default(), Profile::default());
        let mut matrix = MatrixBuilder::default();
        for event in events {
            profile.add(event);
            matrix.add(event);
        }
        for (rank, function, sum) in profile.entries() {
            let counts = [sum.calls, sum.send_bytes, sum.receive_bytes];
            books.calls.insert((rank, function.name().into()), counts);
        }
        for (from, to, traffic) in matrix.matrix().cells() {
            books
                .sent
                .insert((from, to), [traffic.messages, traffic.bytes]);
        }
        // A probe does not receive its message. The later call that receives the message counts it.
        for record in records(events).filter(|record| record.function != Function::Probe) {
            for done in &record.completions {
                if let (Peer::Rank(from), Peer::Rank(to)) = (done.source, record.rank) {
                    let sum = books.received.entry((from, to)).or_default();
                    *sum = [sum[0] + 1, sum[1] + done.bytes];
                }
            }
        }
        books
    }
}

#[test]
fn the_trace_agrees_with_the_programs_own_books() {
    let Some(program) = compile("mpicc.mpich", "counted.c", &["-O2"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let job = "ranks = 4\nfiles = [\"counted\"]\ncommand = \"./counted\"\ncollect = [\"books\"]\n";
    let Some(finished) = run(dir.path(), job, &[("counted", &program)], 2) else {
        return;
    };
    let books = Books::of_program(&finished.file("books"));
    let events = events(&finished);
    assert_eq!(
        places(&events),
        BTreeMap::from([(0, 0), (1, 0), (2, 1), (3, 1)])
    );
    let seen = Books::of_trace(&events);
    // Rows are compared one after the other, so that a difference shows in few lines.
    for (of, counts) in &books.calls {
        assert_eq!(seen.calls.get(of), Some(counts), "{of:?}");
    }
    assert_eq!(seen, books);
    assert_eq!(books.sent, books.received, "the program lost a message");
    assert!(
        books.calls.len() > 70 && books.sent.len() == 12,
        "{books:?}"
    );
    // The trace has the begin of every call, and all calls returned MPI_SUCCESS.
    for event in &events {
        match &event.body {
            Body::Mpi(call) => assert!(call.entry_seen && call.record.result == 0, "{call:?}"),
            Body::Unfinished(call) => panic!("{call:?}"),
            _ => {}
        }
    }
    // The calls are on communicators of two ranks; the trace has the peers' ranks in MPI_COMM_WORLD.
    let inner: Vec<_> = records(&events)
        .filter(|r| r.function == Function::Sendrecv && r.communicator_size == 2)
        .map(|r| (r.rank, r.destination, r.source))
        .collect();
    for pair in [[0, 1], [1, 0], [2, 3], [3, 2]] {
        let [me, other] = pair.map(Peer::Rank);
        assert!(inner.contains(&(me, other, other)), "{inner:?}");
    }
}

#[test]
fn a_rank_that_finalizes_after_the_others_ends() {
    let Some(program) = compile("mpicc.mpich", "late.c", &["-O2"]) else {
        return;
    };
    // With and without the preloaded tracer; `run` requires the job to succeed.
    for trace in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let job = format!("ranks = 4\nfiles = [\"late\"]\ncommand = \"./late\"\ntrace = {trace}\n");
        let Some(finished) = run(dir.path(), &job, &[("late", &program)], 2) else {
            return;
        };
        if trace {
            let mut profile = Profile::default();
            let events = events(&finished);
            events.iter().for_each(|event| profile.add(event));
            for rank in 0..4 {
                assert_eq!(profile.get(rank, Function::Finalize).calls, 1);
            }
        }
    }
}

/// Number of NetPIPE's trials of each size; NetPIPE prints the best trial.
const TRIALS: u64 = 3;
/// Number of NetPIPE's round trips of one byte before it measures the first size.
const FIRST: u64 = 100;

#[test]
fn netpipe_sends_what_its_parameters_say() {
    let repeats = 3;
    let dir = tempfile::tempdir().unwrap();
    let job = format!(
        "ranks = 2\nslots = 1\ncommand = \"NPmpich2 -n {repeats} -p 0 -u 100000 -o np.out\"\ncollect = [\"np.out\"]\n"
    );
    let Some(finished) = run(dir.path(), &job, &[], 1) else {
        return;
    };
    let sizes: Vec<u64> = finished
        .file("np.out")
        .lines()
        .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
        .collect();
    let rows = sizes.len() as u64;
    assert!(rows > 30 && sizes.contains(&98304), "{sizes:?}");
    let events = events(&finished);
    assert_eq!(places(&events), BTreeMap::from([(0, 0), (1, 1)]));

    let mut sent: BTreeMap<(Peer, Peer, u64), u64> = BTreeMap::new();
    let mut received = sent.clone();
    for record in records(&events) {
        match record.function.class() {
            Class::Send => {
                let key = (record.rank, record.destination, record.send_bytes);
                *sent.entry(key).or_default() += record.calls;
            }
            Class::Receive => {
                for done in &record.completions {
                    let key = (done.source, record.rank, done.bytes);
                    *received.entry(key).or_default() += 1;
                }
            }
            _ => {}
        }
    }
    assert_eq!(sent, received);
    // Messages in both directions, by size. Before each size rank 0 sends rank 1 the number of round trips in one small message.
    let (there, back) = (
        (Peer::Rank(0), Peer::Rank(1)),
        (Peer::Rank(1), Peer::Rank(0)),
    );
    let mut expected = BTreeMap::new();
    for (from, to) in [there, back] {
        expected.insert((from, to, 1), FIRST);
        for &size in &sizes {
            *expected.entry((from, to, size)).or_default() += TRIALS * repeats;
        }
    }
    let told = std::mem::size_of::<std::ffi::c_int>() as u64;
    *expected.entry((there.0, there.1, told)).or_default() += rows;
    assert_eq!(sent, expected);

    let mut profile = Profile::default();
    events.iter().for_each(|event| profile.add(event));
    for rank in [0, 1] {
        let calls = |function| profile.get(rank, function).calls;
        assert_eq!(calls(Function::Barrier), (TRIALS + 1) * rows + 2);
        assert_eq!((calls(Function::Init), calls(Function::Finalize)), (1, 1));
    }
}
