//! Tests of the analysis of pending calls on programs without faults, one of which calls every function that the MPI tracer wraps. At no
//! moment of a program may the analysis report a deadlock or a fault.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use nodescope_host_trace::merge;
use nodescope_host_trace::tracer::{Mpi, library};
use nodescope_hypercall::{Function, Peer};
use nodescope_test_needs::{Need, have};
use nodescope_trace::{Body, Event, MpiCall, PendingCalls, TraceReader, Unfinished};

const RANKS: u32 = 4;
/// Maximum number of moments at which a test cuts the trace and analyses it.
const MOMENTS: usize = 300;

/// Lock that lets one MPI job run at a time: on a small machine, several jobs that start at once take longer than one after the other.
static ONE_JOB: Mutex<()> = Mutex::new(());

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// Runs a program and returns the events of its trace. Returns `None`, so that the test is skipped, where the MPI implementation is not
/// installed.
fn traced(mpi: Mpi, source: &str) -> Option<Vec<Event>> {
    let (compiler, launcher) = (
        format!("mpicc.{}", mpi.name()),
        format!("mpirun.{}", mpi.name()),
    );
    if !have(Need::Mpi, &[&compiler, &launcher]) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    // The trace covers one `MPI_COMM_WORLD`; spawned processes would have a world of their own.
    let compiled = Command::new(&compiler)
        .args(["-O1", "-w", "-DNO_PROCESSES", "-o"])
        .arg(&program)
        .arg(at(source))
        .status();
    assert!(compiled.expect("compiler").success());
    let tracer = at("guest-images/tracer");
    let library = library(mpi, &tracer, &folder.path().join("cache")).expect("tracer");
    let mut command = Command::new("timeout");
    command.arg("300").arg(&launcher);
    if mpi == Mpi::OpenMpi {
        command.args(["--allow-run-as-root", "--oversubscribe"]);
        command.args(["--mca", "btl", "self,vader,tcp"]);
        command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    }
    command.args(["-n", &RANKS.to_string()]).arg(&program);
    command.args([folder.path().join("file"), folder.path().join("books")]);
    command.env("LD_PRELOAD", &library);
    command.env("NODESCOPE_TRACE_LOG", folder.path());
    let output = command.output().expect("launcher");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let trace = folder.path().join("trace.nst");
    merge(folder.path(), &trace, Some(0)).expect("a trace");
    let reader = TraceReader::open(&trace).expect("a trace");
    let events = reader.events().map(|event| event.expect("an event"));
    Some(events.collect())
}

/// Returns a call with only the data that the tracer has at the call's entry.
fn begun(call: &MpiCall) -> Unfinished {
    let mut record = call.record.clone();
    record.completions.clear();
    record.members.clear();
    record.remote_members.clear();
    (record.request, record.new_communicator) = (0, 0);
    use Function::*;
    let makes = [
        WinCreate,
        WinAllocate,
        WinAllocateShared,
        WinCreateDynamic,
        FileOpen,
    ];
    if makes.contains(&record.function) {
        record.object = 0;
    }
    Unfinished {
        function: record.function,
        rank: record.rank,
        thread: record.thread,
        sequence: record.sequence,
        entry: call.entry,
        record: Some(record),
    }
}

/// Returns the trace as if it had ended at `moment`, in picoseconds: calls that are in progress then become unfinished calls.
fn cut(events: &[Event], moment: u64) -> Vec<Event> {
    let mut ended = Vec::new();
    let mut stand = Vec::new();
    for event in events {
        match &event.body {
            Body::Mpi(call) if call.exit.time > moment => {
                if call.entry.time < moment {
                    let mut event = event.clone();
                    event.body = Body::Unfinished(Box::new(begun(call)));
                    stand.push(event);
                }
            }
            Body::JobExit(_) => {}
            _ => ended.push(event.clone()),
        }
    }
    ended.extend(stand);
    ended
}

fn is_without_faults(mpi: Mpi, source: &str) {
    let _alone = ONE_JOB.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(events) = traced(mpi, source) else {
        return;
    };
    let whole = PendingCalls::of(&events);
    assert!(whole.is_empty(), "{:#?}", whole.lines());
    let mut moments: Vec<u64> = Vec::new();
    for event in &events {
        if let Body::Mpi(call) = &event.body {
            moments.push(call.entry.time / 2 + call.exit.time / 2);
        }
    }
    moments.sort_unstable();
    let step = moments.len() / MOMENTS + 1;
    for &moment in moments.iter().step_by(step) {
        let pending = PendingCalls::of(&cut(&events, moment));
        let wrong = !pending.deadlocks.is_empty() || !pending.faults.is_empty();
        assert!(!wrong, "at {moment} ps: {:#?}", pending.lines());
    }
    let ranks = events.iter().filter_map(|event| match &event.body {
        Body::Process(hello) => Some(hello.rank),
        _ => None,
    });
    assert_eq!(
        ranks.filter(|&rank| rank != Peer::None).count(),
        RANKS as usize
    );
}

const EVERY: &str = "vmm/hypercall/tests/mpi/every.c";
const EPOCHS: &str = "vmm/host-trace/tests/epochs.c";

#[test]
fn every_function_is_without_faults_under_open_mpi() {
    is_without_faults(Mpi::OpenMpi, EVERY);
}

#[test]
fn every_function_is_without_faults_under_mpich() {
    is_without_faults(Mpi::Mpich, EVERY);
}

#[test]
fn epochs_are_without_faults_under_open_mpi() {
    is_without_faults(Mpi::OpenMpi, EPOCHS);
}

#[test]
fn epochs_are_without_faults_under_mpich() {
    is_without_faults(Mpi::Mpich, EPOCHS);
}
