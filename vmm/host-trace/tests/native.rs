//! Programs under MPI on this machine, traced by way of their logs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use nodescope_host_trace::log::{FRAME, HEADER};
use nodescope_host_trace::tracer::{Mpi, library};
use nodescope_host_trace::{HostTraceError, merge};
use nodescope_hypercall::{ABI_VERSION, Function, Operation, Peer};
use nodescope_test_needs::{Need, have};
use nodescope_trace::{Body, Event, MpiCall, TraceReader};

/// Lock that lets one MPI job run at a time: on a small machine, several jobs that start at once take longer than one after the other.
static ONE_JOB: Mutex<()> = Mutex::new(());

/// Messages to and fro with work between them, polls, and a fork; with an argument a rank kills itself in the midst of an all-reduce.
const PROGRAM: &str = r#"
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void die(void *in, void *inout, int *length, MPI_Datatype *type) {
    raise(SIGKILL);
}
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, found = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    char *data = calloc(1, 100000);
    for (int round = 0; round < 20; round++) {
        double until = MPI_Wtime() + 0.0002;
        while (MPI_Wtime() < until)
            ;
        if (rank == 0) {
            MPI_Send(data, 1000 * round, MPI_BYTE, 1, round, MPI_COMM_WORLD);
            MPI_Recv(data, 100000, MPI_BYTE, size - 1, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(data, 100000, MPI_BYTE, rank - 1, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(data, 1000 * round, MPI_BYTE, (rank + 1) % size, round, MPI_COMM_WORLD);
        }
    }
    if (fork() == 0)
        _exit(0);
    wait(NULL);
    if (argc > 1) {
        MPI_Op op;
        int value = 1, all;
        MPI_Op_create(die, 1, &op);
        MPI_Allreduce(&value, &all, 1, MPI_INT, op, MPI_COMM_WORLD);
    }
    while (!found && rank == 1 && argc == 1)
        MPI_Iprobe(0, 77, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    if (rank == 1 && argc == 1)
        MPI_Recv(data, 1, MPI_BYTE, 0, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 0 && argc == 1)
        MPI_Send(data, 1, MPI_BYTE, 1, 77, MPI_COMM_WORLD);
    MPI_Finalize();
}
"#;

fn tracer_sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images/tracer")
}

/// Compiles `PROGRAM`, runs it under the tracer on two ranks, and leaves the logs in `folder`. Returns None if this machine lacks the MPI.
fn run(mpi: Mpi, folder: &Path, argument: Option<&str>) -> Option<()> {
    let (compiler, launcher) = (
        format!("mpicc.{}", mpi.name()),
        format!("mpirun.{}", mpi.name()),
    );
    if !have(Need::Mpi, &[&compiler, &launcher]) {
        return None;
    }
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&source, PROGRAM).expect("source");
    let compiled = Command::new(&compiler)
        .args(["-O1", "-o"])
        .args([&program, &source])
        .status();
    assert!(compiled.expect("compiler").success());
    let library = library(mpi, &tracer_sources(), &folder.join("cache")).expect("tracer");
    let mut command = Command::new("timeout");
    command.arg("600").arg(&launcher);
    if mpi == Mpi::OpenMpi {
        command.args(["--allow-run-as-root", "--mca", "mpi_yield_when_idle", "1"]);
        command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    }
    command.arg("-np").arg("2").arg(&program);
    command.args(argument);
    command.env("LD_PRELOAD", &library);
    command.env("NODESCOPE_TRACE_LOG", folder);
    let output = command.output().expect("launcher");
    let expected = argument.is_none();
    assert_eq!(
        output.status.success(),
        expected,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(())
}

fn events(trace: &Path) -> Vec<Event> {
    let reader = TraceReader::open(trace).expect("a trace");
    reader
        .events()
        .map(|event| event.expect("an event"))
        .collect()
}

fn calls(events: &[Event], rank: u32, function: Function) -> Vec<&MpiCall> {
    (events.iter())
        .filter_map(|event| match &event.body {
            Body::Mpi(call) => Some(&**call),
            _ => None,
        })
        .filter(|call| call.record.rank == Peer::Rank(rank) && call.record.function == function)
        .collect()
}

fn a_program_becomes_a_trace(mpi: Mpi) {
    let _alone = ONE_JOB.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let Some(()) = run(mpi, folder.path(), None) else {
        return;
    };
    let trace = folder.path().join("trace.nst");
    let summary = merge(folder.path(), &trace, Some(0)).expect("a trace");
    assert_eq!((summary.ranks, summary.nodes.len()), (2, 1));
    let events = events(&trace);
    assert!(
        events
            .windows(2)
            .all(|pair| pair[0].stamp.time <= pair[1].stamp.time)
    );
    let names = |body: fn(&Body) -> bool| events.iter().filter(|event| body(&event.body)).count();
    assert_eq!(names(|body| matches!(body, Body::Process(_))), 2);
    assert_eq!(names(|body| matches!(body, Body::Unfinished(_))), 0);
    assert_eq!(names(|body| *body == Body::JobExit(0)), 1);
    let mut own = 0;
    for rank in 0..2 {
        assert_eq!(calls(&events, rank, Function::Finalize).len(), 1);
        let sends = calls(&events, rank, Function::Send);
        let receives = calls(&events, rank, Function::Recv);
        assert_eq!(sends.len(), 20 + usize::from(rank == 0), "rank {rank}");
        assert_eq!(receives.len(), 20 + usize::from(rank == 1), "rank {rank}");
        for (round, send) in sends.iter().take(20).enumerate() {
            assert_eq!(send.record.send_bytes, 1000 * round as u64);
            assert_eq!(send.record.destination, Peer::Rank(1 - rank));
        }
        for call in sends.iter().chain(&receives) {
            assert!(call.entry_seen && call.entry.time < call.exit.time);
            let whole = call.exit.time - call.entry.time;
            assert!(call.time_inside > 0 && call.time_inside < whole, "{call:?}");
            own += whole - call.time_inside;
        }
        // Each round begins with 200 us of work: 20 rounds cannot take less, nor may the log's clock run differently.
        if rank == 0 {
            let span = receives[19].exit.time - sends[0].entry.time;
            assert!(span > 19 * 200_000_000, "{span} ps for 19 rounds of 200 us");
        }
    }
    assert!(summary.own >= own && summary.calls >= 2 * 42);
    // A message arrives after it was sent, on a clock that all ranks share.
    let (sent, received) = (
        calls(&events, 0, Function::Send),
        calls(&events, 1, Function::Recv),
    );
    for (send, receive) in sent.iter().zip(&received) {
        assert!(receive.exit.time > send.entry.time, "{send:?} {receive:?}");
    }
    let polls: u64 = (calls(&events, 1, Function::Iprobe).iter())
        .map(|call| call.record.calls)
        .sum();
    assert!(polls > 0);
}

#[test]
fn an_open_mpi_program_becomes_a_trace() {
    a_program_becomes_a_trace(Mpi::OpenMpi);
}

#[test]
fn an_mpich_program_becomes_a_trace() {
    a_program_becomes_a_trace(Mpi::Mpich);
}

#[test]
fn what_a_killed_program_did_is_in_its_logs() {
    let _alone = ONE_JOB.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let Some(()) = run(Mpi::OpenMpi, folder.path(), Some("die")) else {
        return;
    };
    let trace = folder.path().join("trace.nst");
    merge(folder.path(), &trace, None).expect("a trace");
    let events = events(&trace);
    let hangs: Vec<_> = (events.iter())
        .filter_map(|event| match &event.body {
            Body::Unfinished(unfinished) => Some((unfinished.rank, unfinished.function)),
            _ => None,
        })
        .collect();
    let within = |&(_, function): &(Peer, Function)| function == Function::Allreduce;
    assert!(!hangs.is_empty() && hangs.iter().all(within), "{hangs:?}");
    for rank in 0..2 {
        assert_eq!(calls(&events, rank, Function::Send).len(), 20);
    }
}

#[test]
fn files_that_are_no_logs_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace.nst");
    let none = merge(folder.path(), &trace, None);
    assert!(
        matches!(none, Err(HostTraceError::NothingTraced)),
        "{none:?}"
    );
    let log = folder.path().join("node-1.calls");
    let refused = |bytes: &[u8]| {
        std::fs::write(&log, bytes).expect("a file");
        merge(folder.path(), &trace, None)
            .map(|summary| format!("{summary:?}"))
            .unwrap_or_else(|error| {
                let mut text = error.to_string();
                let mut next = std::error::Error::source(&error);
                while let Some(cause) = next {
                    text = format!("{text}: {cause}");
                    next = cause.source();
                }
                text
            })
    };
    assert!(refused(b"short").contains("fewer than 72 bytes"));
    assert!(refused(&[b'x'; HEADER]).contains("does not begin like one"));
    let mut header = b"NSCALLS\n".to_vec();
    header.extend(7_u32.to_le_bytes());
    header.resize(HEADER, 0);
    assert!(refused(&header).contains("version 7, this program reads version 1"));
    header[8] = 1;
    let mut frame = header.clone();
    frame.extend(50_u32.to_le_bytes());
    frame.resize(HEADER + FRAME + 64, 0);
    assert!(refused(&frame).contains("damaged at byte 72: a frame of 50 bytes"));
    frame[HEADER] = FRAME as u8;
    frame[HEADER + 4] = 99;
    let text = refused(&frame);
    assert!(
        text.contains("byte 72") && text.contains("operation 99 does not exist"),
        "{text}"
    );
    // A log with nothing but a header is of a process that never called MPI.
    assert!(refused(&header).contains("no process was traced"));
}

/// Checks times beyond 213 days, whose picoseconds 64 bits cannot hold.
#[test]
fn a_node_that_has_been_up_for_a_year_has_times() {
    let folder = tempfile::tempdir().expect("a folder");
    let year: u64 = 365 * 86_400 * 1_000_000_000;
    let mut log = b"NSCALLS\n".to_vec();
    log.extend(1_u32.to_le_bytes());
    log.extend(1_u32.to_le_bytes());
    log.extend(1_000_000_000_u64.to_le_bytes());
    for ticks in [0, 10_000] {
        for word in [ticks, year + ticks, 50 * year + ticks] {
            log.extend(word.to_le_bytes());
        }
    }
    let mut frame = |operation: Operation, ticks: u64, payload: &[u8]| {
        let padded = payload.len().next_multiple_of(8);
        log.extend(((FRAME + padded) as u32).to_le_bytes());
        log.extend((operation as u32).to_le_bytes());
        for word in [ticks, ticks, 0, payload.len() as u64, 0] {
            log.extend(word.to_le_bytes());
        }
        log.extend(payload);
        log.resize(log.len() + padded - payload.len(), 0);
    };
    // The hello of the only rank of an MPI program.
    let mut hello = Vec::new();
    for word in [1, 0, 1, 77, 1, ABI_VERSION] {
        hello.extend(word.to_le_bytes());
    }
    hello.resize(152, 0);
    hello[24] = b'n';
    hello[88] = b'p';
    frame(Operation::Hello, 100, &hello);
    frame(Operation::Mark, 350, b"half");
    frame(Operation::Mark, 1100, b"end");
    std::fs::write(folder.path().join("node-77.calls"), log).expect("a file");
    let trace = folder.path().join("trace.nst");
    let summary = merge(folder.path(), &trace, None).expect("a trace");
    assert_eq!((summary.ranks, summary.span), (1, 1_000_000));
    let times: Vec<u64> = (events(&trace).iter())
        .map(|event| event.stamp.time)
        .collect();
    assert_eq!(times, [0, 250_000, 1_000_000]);
}
