//! Tests that no call is lost or counted twice, over {C, mpif.h, module mpi, mpi_f08} x {Open MPI, MPICH}. The C program calls almost every
//! function that the tracer wraps, the Fortran programs more than ninety. The programs count their own calls, and the trace must have the
//! same counts.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Class, Function, MpiRecord, Peer, Tag, ThreadId};
use nodescope_test_needs::{Need, have};

use support::{Job, counts, of, only, rank_of, source, succeed, tracer};

/// Runs a program that counts its calls, compares these counts with the trace, and returns the records of each rank.
fn books(job: &Job, ranks: usize) -> Vec<Vec<MpiRecord>> {
    let folder = job.folder.path();
    let records = job.run_with(ranks, &[&folder.join("file"), &folder.join("books")]);
    for (rank, records) in records.iter().enumerate() {
        let text = std::fs::read_to_string(folder.join(format!("books.{rank}")))
            .expect("the program's books");
        let expected: BTreeMap<String, u64> = text
            .lines()
            .map(|line| {
                let (name, calls) = line.split_once(' ').expect("name and calls");
                (name.into(), calls.parse().expect("a number"))
            })
            .collect();
        assert_eq!(counts(records), expected, "rank {rank}");
    }
    records
}

/// Returns the function names with a prefix in a text: words with small letters, `MPIX_` replaced by `MPI_`.
fn names(text: &str, prefix: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with(prefix) && word.chars().any(|c| c.is_ascii_lowercase()))
        .map(|word| word.replacen("MPIX_", "MPI_", 1))
        .collect()
}

/// Returns the functions that the tracer wraps, and checks that the library defines each under its `MPI_` and its `PMPI_` name.
fn wrapped(flavour: &str) -> BTreeSet<String> {
    let library = tracer().join(format!("libnodescope-mpi-{flavour}.so"));
    let output = succeed(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library),
    );
    let text = String::from_utf8(output.stdout).expect("text");
    let plain = names(&text, "MPI");
    let profiling = names(&text.replace("PMPI", "pmpi/MPI"), "MPI");
    assert_eq!(plain, profiling);
    plain
}

/// Returns the functions that the MPI implementation's `mpi.h` declares, from the preprocessor's output.
fn declared(flavour: &str) -> BTreeSet<String> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("all.c");
    std::fs::write(&file, "#include <mpi.h>\n").expect("write");
    let output = succeed(
        Command::new(format!("mpicc.{flavour}"))
            .args(["-E", "-P"])
            .arg(&file),
    );
    let text = String::from_utf8(output.stdout).expect("text");
    // A declaration is a name and a parenthesis.
    text.split('(')
        .filter_map(|piece| {
            piece
                .trim_end()
                .rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .next()
        })
        .filter(|word| word.starts_with("MPI_") && word.chars().any(|c| c.is_ascii_lowercase()))
        .filter(|word| !matches!(*word, "MPI_Aint" | "MPI_Comm" | "MPI_Win" | "MPI_File"))
        .map(str::to_string)
        .collect()
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name
            .strip_prefix(head)
            .is_some_and(|rest| rest.ends_with(tail)),
    }
}

#[test]
fn every_function_is_traced_or_named_as_an_exception() {
    let exceptions = std::fs::read_to_string(source("not-traced.txt")).expect("the exceptions");
    let patterns: Vec<&str> = exceptions
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let mut unused: BTreeSet<&str> = patterns.iter().copied().collect();
    if !have(Need::Mpi, &["mpicc.openmpi", "mpicc.mpich"]) {
        return;
    }
    for (flavour, least) in [("openmpi", 220), ("mpich", 360)] {
        let (wrapped, declared) = (wrapped(flavour), declared(flavour));
        assert!(wrapped.len() >= least, "{flavour}: {}", wrapped.len());
        for name in &declared {
            let excepted: Vec<&&str> = patterns
                .iter()
                .filter(|pattern| matches(pattern, name))
                .collect();
            for pattern in &excepted {
                unused.remove(**pattern);
            }
            assert!(
                wrapped.contains(name) != excepted.iter().any(|_| true),
                "{flavour}: {name}: wrapped or excepted, and not both ({excepted:?})"
            );
        }
        // Each wrapped function must have a number in the ABI.
        let known: BTreeSet<&str> = Function::ALL.iter().map(|f| f.name()).collect();
        for name in &wrapped {
            let plain = name.strip_suffix("_c").unwrap_or(name);
            assert!(
                known.contains(plain) || name == "MPI_Session_init",
                "{flavour}: {name} has no number"
            );
        }
    }
    assert!(unused.is_empty(), "patterns that match nothing: {unused:?}");
}

/// Runs the C program and checks the contents of its records.
fn c(flavour: &'static str, not_run: &[&str]) {
    let Some(job) = Job::new(flavour, "mpicc", "every.c") else {
        return;
    };
    let all = books(&job, 4);
    let called: BTreeSet<String> = all
        .iter()
        .flat_map(|records| counts(records).into_keys())
        .collect();
    let missing: BTreeSet<String> = wrapped(flavour).difference(&called).cloned().collect();
    let expected: BTreeSet<String> = not_run.iter().map(|name| name.to_string()).collect();
    assert_eq!(
        missing, expected,
        "functions that the program does not call"
    );
    for (rank, records) in all.iter().enumerate() {
        check_sites(records);
        check_messages(rank, records);
        check_neighbours(rank, records);
        check_requests(records);
        let init = only(records, Function::InitThread);
        assert!(init.detail >= 2, "at least MPI_THREAD_SERIALIZED: {init:?}");
    }
    check_intercommunicators(&all);
    check_objects(&all);
}

/// Functions that the C program does not call: it starts by `MPI_Init_thread`, ends by `MPI_Finalize` and has no name service.
const NOT_RUN: [&str; 5] = [
    "MPI_Abort",
    "MPI_Init",
    "MPI_Publish_name",
    "MPI_Unpublish_name",
    "MPI_Lookup_name",
];

#[test]
fn c_under_open_mpi() {
    c("openmpi", &NOT_RUN);
}

#[test]
fn c_under_mpich() {
    // Debian's MPICH has a transport without dynamic processes.
    let processes = [
        "MPI_Comm_accept",
        "MPI_Comm_connect",
        "MPI_Comm_join",
        "MPI_Comm_spawn",
        "MPI_Comm_spawn_multiple",
        "MPI_Open_port",
        "MPI_Close_port",
        "MPI_Session_init",
    ];
    c("mpich", &[&NOT_RUN[..], &processes].concat());
}

/// Checks that all call sites are in the main program's code.
fn check_sites(records: &[MpiRecord]) {
    for record in records {
        assert!(
            record.flags.contains(Flags::CALL_SITE_IN_PROGRAM) && record.call_module == 0,
            "{record:?}"
        );
        assert!(
            record.call_site > 0 && record.call_site < 1 << 24,
            "{record:?}"
        );
    }
}

fn check_messages(rank: usize, records: &[MpiRecord]) {
    let peer = rank_of(rank ^ 1);
    if rank % 2 == 1 {
        // Matched messages: the record of the receive has the source and tag of the matched probe.
        let probe = of(records, Function::Mprobe)[0];
        assert_eq!(
            (probe.source, probe.receive_tag),
            (Peer::Any, Tag::Value(4))
        );
        let receive = of(records, Function::Mrecv)[0];
        assert_eq!(
            (receive.source, receive.receive_tag, receive.communicator),
            (peer, Tag::Value(4), communicator::WORLD)
        );
        let done = receive.completions[0];
        assert_eq!(
            (done.source, done.tag, done.bytes),
            (peer, Tag::Value(4), 20)
        );
        let imrecv = of(records, Function::Imrecv)[0];
        assert_eq!((imrecv.source, imrecv.receive_bytes), (peer, 32));
        let done = records
            .iter()
            .flat_map(|record| &record.completions)
            .find(|done| done.request == imrecv.request)
            .expect("the completion of MPI_Imrecv");
        assert_eq!((done.source, done.bytes), (peer, 20));
    }
    // Bytes of a derived datatype are its size, not its extent: the type has two of every three ints.
    let (left, right) = (rank_of((rank + 3) % 4), rank_of((rank + 1) % 4));
    let pack = of(records, Function::Pack)[0];
    assert_eq!((pack.send_bytes, pack.element_size), (16, 8));
    let column = of(records, Function::Sendrecv)
        .into_iter()
        .find(|record| record.send_tag == Tag::Value(6))
        .expect("the exchange of a column");
    assert_eq!(
        (
            column.destination,
            column.source,
            column.send_bytes,
            column.completions[0].bytes
        ),
        (right, left, 8, 8)
    );
    let cancelled: Vec<_> = records
        .iter()
        .flat_map(|record| &record.completions)
        .filter(|done| done.cancelled)
        .collect();
    assert_eq!(cancelled.len(), 1);
    assert_eq!(cancelled[0].bytes, 0);
    // Consecutive failed polls are one record.
    for record in records.iter().filter(|record| record.calls > 1) {
        assert!(record.flags.contains(Flags::POLL_RUN), "{record:?}");
    }
}

fn check_neighbours(rank: usize, records: &[MpiRecord]) {
    // Ranks 0 1 / 2 3 are a grid that is periodic in its first dimension.
    let across = rank_of((rank + 2) % 4);
    let (before, after) = if rank.is_multiple_of(2) {
        (Peer::Null, rank_of(rank + 1))
    } else {
        (rank_of(rank - 1), Peer::Null)
    };
    let near = [across, across, before, after];
    for function in [
        Function::NeighborAllgather,
        Function::IneighborAllgatherv,
        Function::NeighborAlltoall,
        Function::NeighborAlltoallvInit,
        Function::IneighborAlltoallw,
    ] {
        let record = of(records, function)[0];
        assert_eq!(
            (&record.destinations[..], &record.sources[..]),
            (&near[..], &near[..])
        );
    }
    let gather = of(records, Function::NeighborAllgather)[0];
    assert_eq!((gather.send_bytes, gather.receive_bytes), (24, 3 * 24));
    let exchange = of(records, Function::NeighborAlltoall)[0];
    assert_eq!(
        (exchange.send_bytes, exchange.receive_bytes),
        (3 * 24, 3 * 24)
    );
    let [to_before, to_after] = if rank.is_multiple_of(2) {
        [0, 32]
    } else {
        [24, 0]
    };
    let [from_before, from_after] = if rank.is_multiple_of(2) {
        [0, 24]
    } else {
        [32, 0]
    };
    for function in [Function::NeighborAlltoallv, Function::NeighborAlltoallw] {
        let record = of(records, function)[0];
        assert_eq!(record.send_bytes_to, [8, 8, to_before, to_after]);
        assert_eq!(record.receive_bytes_from, [8, 8, from_before, from_after]);
    }
    // The program makes a ring as a graph, and twice as a distributed graph, whose directions differ.
    let (left, right) = (rank_of((rank + 3) % 4), rank_of((rank + 1) % 4));
    let gathers = of(records, Function::NeighborAllgather);
    let graph = gathers.last().expect("on the graph");
    assert_eq!(graph.destinations, [left, right]);
    let exchanges = of(records, Function::NeighborAlltoall);
    for directed in &exchanges[exchanges.len() - 2..] {
        assert_eq!(
            (&directed.destinations[..], &directed.sources[..]),
            (&[right][..], &[left][..])
        );
    }
}

/// Checks that every operation of any kind that is started completes once, and that each serial is used once.
fn check_requests(records: &[MpiRecord]) {
    let prepares = |class| {
        matches!(
            class,
            Class::Persistent | Class::PrepareCollective | Class::PrepareNeighbor
        )
    };
    let mut started: Vec<u64> = Vec::new();
    let mut prepared: Vec<u64> = Vec::new();
    for record in records {
        if record.request != 0 {
            if prepares(record.function.class()) {
                prepared.push(record.request);
            } else {
                started.push(record.request);
            }
        }
        if matches!(record.function, Function::Start | Function::Startall) {
            started.extend(&record.requests);
            assert_eq!(record.requests.len(), record.prepared.len());
            for serial in &record.prepared {
                assert!(prepared.contains(serial), "{record:?}");
            }
        }
    }
    let mut completed: Vec<u64> = records
        .iter()
        .flat_map(|record| &record.completions)
        .map(|done| done.request)
        .filter(|&serial| serial != 0)
        .collect();
    started.sort_unstable();
    completed.sort_unstable();
    assert_eq!(started, completed);
    let mut all = [started, prepared].concat();
    all.sort_unstable();
    assert_eq!(all, (1..=all.len() as u64).collect::<Vec<_>>());
}

fn check_intercommunicators(all: &[Vec<MpiRecord>]) {
    let made: Vec<&MpiRecord> = all
        .iter()
        .map(|records| only(records, Function::IntercommCreate))
        .collect();
    let id = made[0].new_communicator;
    assert!(
        made.iter()
            .all(|record| record.new_communicator == id && id >> 63 == 1)
    );
    let (evens, odds) = ([rank_of(2), rank_of(0)], [rank_of(3), rank_of(1)]);
    // Rank 0 of each side is world rank 2 or 3.
    assert_eq!(
        (&made[2].members[..], &made[2].remote_members[..]),
        (&evens[..], &odds[..])
    );
    assert_eq!(
        (&made[3].members[..], &made[3].remote_members[..]),
        (&odds[..], &evens[..])
    );
    assert!(made[0].members.is_empty() && made[1].remote_members.is_empty());
    for rank in [0, 1] {
        let across = all[rank]
            .iter()
            .find(|record| record.function == Function::Sendrecv && record.communicator == id)
            .expect("an exchange between the sides");
        assert!(across.flags.contains(Flags::INTERCOMM));
        assert_eq!(
            (
                across.destination,
                across.source,
                across.completions[0].source
            ),
            (rank_of(1 - rank), Peer::Any, rank_of(1 - rank))
        );
    }
    // The members of every communicator made are reported, and those of no other communicator.
    let ids: BTreeSet<u64> = all
        .iter()
        .flatten()
        .map(|r| r.new_communicator)
        .filter(|&id| id != 0)
        .collect();
    let told: BTreeSet<u64> = all
        .iter()
        .flatten()
        .filter(|record| !record.members.is_empty())
        .map(|record| record.new_communicator)
        .collect();
    assert_eq!(ids, told);
}

/// Checks the records of windows and files: ids that all ranks share, bytes, targets, offsets.
fn check_objects(all: &[Vec<MpiRecord>]) {
    for function in [
        Function::WinAllocate,
        Function::WinCreate,
        Function::WinCreateDynamic,
        Function::FileOpen,
    ] {
        let ids = |records: &[MpiRecord]| -> Vec<u64> {
            of(records, function)
                .iter()
                .filter(|record| record.communicator == communicator::WORLD)
                .map(|record| record.object)
                .collect()
        };
        let first = ids(&all[0]);
        assert_eq!(first.len(), first.iter().collect::<BTreeSet<_>>().len());
        assert!(first.iter().all(|&id| id != 0));
        for records in all {
            assert_eq!(ids(records), first, "{function}");
        }
    }
    // Files of MPI_COMM_SELF have different ids on different ranks.
    let own: BTreeSet<u64> = all
        .iter()
        .flat_map(|records| of(records, Function::FileOpen))
        .filter(|record| record.communicator == communicator::SELF)
        .map(|record| record.object)
        .collect();
    assert_eq!(own.len(), all.len());
    for (rank, records) in all.iter().enumerate() {
        let (left, right) = (rank_of((rank + 3) % 4), rank_of((rank + 1) % 4));
        let put = of(records, Function::Put)[0];
        assert_eq!(
            (put.destination, put.send_bytes, put.offset, put.object),
            (right, 12, 5, of(records, Function::WinAllocate)[0].object)
        );
        let get = of(records, Function::Get)[0];
        assert_eq!(
            (get.source, get.receive_bytes, get.destination),
            (right, 8, Peer::None)
        );
        let fetched = of(records, Function::GetAccumulate)[0];
        assert_eq!(
            (fetched.send_bytes, fetched.receive_bytes),
            (0, 16),
            "MPI_NO_OP sends nothing"
        );
        let swap = only(records, Function::CompareAndSwap);
        assert_eq!(
            (swap.destination, swap.send_bytes, swap.receive_bytes),
            (right, 8, 4)
        );
        assert_eq!(of(records, Function::WinPost)[0].sources, [left]);
        assert_eq!(of(records, Function::WinStart)[0].destinations, [right]);
        let locks = of(records, Function::WinLock);
        assert_eq!((locks[0].detail, locks[0].destination), (2, right));
        assert_eq!(locks.last().expect("a lock").detail, 1);

        let open = of(records, Function::FileOpen)[0];
        assert!(open.name.ends_with("/file"), "{open:?}");
        assert_eq!(open.detail, 3);
        let write = of(records, Function::FileWriteAt)[0];
        assert_eq!(
            (write.send_bytes, write.receive_bytes, write.offset),
            (64, 0, 64 * rank as u64)
        );
        assert_eq!(write.object, open.object);
        let read = of(records, Function::FileReadAtAll)[0];
        assert_eq!(
            (
                read.send_bytes,
                read.receive_bytes,
                read.completions[0].bytes
            ),
            (0, 64, 64)
        );
        let begin = of(records, Function::FileReadAllBegin)[0];
        let end = of(records, Function::FileReadAllEnd)[0];
        assert_eq!(
            (end.completions[0].request, end.completions[0].bytes),
            (begin.request, 4)
        );
        let closes = of(records, Function::FileClose);
        assert_eq!(closes[0].object, open.object);
    }
}

/// Checks that nothing is lost or mixed up when threads that communicate at the same time share the tracer's tables.
fn threads(flavour: &'static str) {
    let Some(job) = Job::with_options(flavour, "mpicc", "threads.c", &["-pthread"]) else {
        return;
    };
    let rounds = 40;
    for (rank, records) in job.run_with(2, &[Path::new("40")]).iter().enumerate() {
        let peer = rank_of(1 - rank);
        assert_eq!(only(records, Function::InitThread).detail, 3);
        let mut by_thread: BTreeMap<ThreadId, Vec<&MpiRecord>> = BTreeMap::new();
        for record in records {
            by_thread.entry(record.thread).or_default().push(record);
        }
        assert_eq!(by_thread.len(), 4);
        let mut tags = BTreeSet::new();
        for records in by_thread.values() {
            let count = |function| {
                let calls = records.iter().filter(|r| r.function == function);
                calls.filter(|r| !r.flags.contains(Flags::POLL_RUN)).count()
            };
            for (function, calls) in [
                (Function::Sendrecv, 1),
                (Function::Irecv, 1),
                (Function::Isend, 2),
                (Function::Waitall, 1),
                (Function::Mprobe, 1),
                (Function::Mrecv, 1),
                (Function::Test, 1),
            ] {
                assert_eq!(count(function), calls * rounds, "{function}");
            }
            // All messages that a thread receives have the thread's own tag: requests and messages are not mistaken for another thread's.
            let own: BTreeSet<Tag> = records
                .iter()
                .flat_map(|record| &record.completions)
                .filter(|done| done.source != Peer::None)
                .map(|done| {
                    assert_eq!((done.source, done.bytes), (peer, 4));
                    done.tag
                })
                .collect();
            assert_eq!(own.len(), 1, "{own:?}");
            tags.extend(own);
            assert!(
                records
                    .iter()
                    .filter(|record| record.function == Function::Mrecv)
                    .all(|record| record.source == peer && tags.contains(&record.receive_tag))
            );
        }
        assert_eq!(tags.len(), 4);
        check_requests(records);
    }
}

#[test]
fn threads_under_open_mpi() {
    threads("openmpi");
}

#[test]
fn threads_under_mpich() {
    threads("mpich");
}

/// Runs the Fortran program, compiled for one of the three interfaces, and checks its records.
fn fortran(flavour: &'static str, interface: &str) {
    let options = [
        "-cpp",
        interface,
        "-fallow-argument-mismatch",
        "-ffree-line-length-none",
    ];
    let folder = tempfile::tempdir().expect("temporary folder");
    let modules = format!("-J{}", folder.path().display());
    let options = [&options[..], &[modules.as_str()]].concat();
    let Some(job) = Job::with_options(flavour, "mpif90", "every.F90", &options) else {
        return;
    };
    let all = books(&job, 3);
    for (rank, records) in all.iter().enumerate() {
        assert!(counts(records).len() > 90, "rank {rank}");
        // The MPI libraries' Fortran layers call the C functions; the recorded call site is nevertheless the program's call.
        check_sites(records);
        let distinct: BTreeSet<u64> = records
            .iter()
            .filter(|record| record.function == Function::Barrier)
            .map(|record| record.call_site)
            .collect();
        assert_eq!(
            distinct.len(),
            5,
            "calls of MPI_Barrier in the program's text"
        );
        let put = only(records, Function::Put);
        assert_eq!((put.send_bytes, put.offset), (16, 3));
        let write = only(records, Function::FileWriteAt);
        assert_eq!((write.send_bytes, write.offset), (80, 80 * rank as u64));
        let near = [rank_of((rank + 2) % 3), rank_of((rank + 1) % 3)];
        assert_eq!(
            only(records, Function::NeighborAlltoallv).destinations,
            near
        );
    }
}

#[test]
fn fortran_with_mpif_h_under_open_mpi() {
    fortran("openmpi", "-DMPIF_H");
}

#[test]
fn fortran_with_mpif_h_under_mpich() {
    fortran("mpich", "-DMPIF_H");
}

#[test]
fn fortran_with_module_mpi_under_open_mpi() {
    fortran("openmpi", "-DMODULE_MPI");
}

#[test]
fn fortran_with_module_mpi_under_mpich() {
    fortran("mpich", "-DMODULE_MPI");
}

#[test]
fn fortran_2008_under_open_mpi() {
    fortran("openmpi", "-DF08");
}

#[test]
fn fortran_2008_under_mpich() {
    fortran("mpich", "-DF08");
}
