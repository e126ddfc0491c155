//! The logs of all processes as one trace.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::{Path, PathBuf};

use nodescope_hypercall::Request;
use nodescope_trace::assemble::Assembler;
use nodescope_trace::{Body, Event, Header, NodeEntry, ProgramFinder, Stamp, TraceWriter};

use crate::HostTraceError;
use crate::log::{LogEntry, LogReader};

/// Extension of a log's file name, without the dot.
pub const SUFFIX: &str = "calls";

/// Summary of a trace made of logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of ranks, over all programs.
    pub ranks: u32,
    /// Number of MPI programs, each with an `MPI_COMM_WORLD` of its own.
    pub programs: usize,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// Number of MPI calls.
    pub calls: u64,
    /// Time from the first stamp to the last, picoseconds.
    pub span: u64,
    /// Time of the tracer itself around calls, over all ranks, picoseconds.
    pub own: u64,
}

/// A process that is being read.
struct Process {
    log: LogReader,
    /// Entry of the log that is merged next.
    next: LogEntry,
    node: usize,
    /// Picoseconds to add to a time of the node's monotonic clock, to get the time in the trace.
    shift: i128,
}

impl Process {
    fn time(&self, ticks: u64) -> u64 {
        let time = (self.log.header().time(ticks)).saturating_add(self.shift);
        u64::try_from(time.max(0)).unwrap_or(u64::MAX)
    }

    fn key(&self) -> u64 {
        self.time(self.next.written)
    }
}

/// The introduction of a log's process.
struct Introduced {
    path: PathBuf,
    rank: u32,
    host: String,
    program: String,
}

/// Makes the trace `output` of all logs in `folder`; `status` is the job's exit status, if there is one.
///
/// # Errors
///
/// Logs that cannot be read or are damaged, none at all, or a trace that cannot be written.
pub fn merge(folder: &Path, output: &Path, status: Option<i32>) -> Result<Summary, HostTraceError> {
    let introduced = introductions(folder)?;
    let Some(program) = introduced.first().map(|first| first.program.clone()) else {
        return Err(HostTraceError::NothingTraced);
    };
    let mut nodes: Vec<String> = Vec::new();
    for process in &introduced {
        if !nodes.contains(&process.host) {
            nodes.push(process.host.clone());
        }
    }
    let mut entries: Vec<NodeEntry> = Vec::new();
    let mut processes = Vec::new();
    let mut epochs: BTreeMap<usize, i128> = BTreeMap::new();
    for process in &introduced {
        let mut log = LogReader::open(&process.path)?;
        let header = *log.header();
        let node = nodes.iter().position(|host| *host == process.host);
        let node = node.unwrap_or_default();
        if node == entries.len() {
            entries.push(NodeEntry {
                name: process.host.clone(),
                vcpus: header.processors,
                frequency_hz: header.frequency,
            });
        }
        let epoch = *epochs.entry(node).or_insert(header.epoch());
        if let Some(next) = log.next_entry()? {
            processes.push(Process {
                log,
                next,
                node,
                shift: epoch * 1000,
            });
        }
    }
    // The trace's clock begins with its first stamp. Days since 1970 would not fit 64 bits of picoseconds.
    let start = |process: &Process| {
        (process.log.header().time(process.next.outer)).saturating_add(process.shift)
    };
    let zero = processes.iter().map(start).min().unwrap_or_default();
    for process in &mut processes {
        process.shift = process.shift.saturating_sub(zero);
    }
    let header = Header::new(program, "", entries);
    let mut writer = TraceWriter::create(output, &header)?;
    let mut summary = Summary {
        ranks: introduced.len() as u32,
        nodes,
        ..Summary::default()
    };
    write(processes, &mut writer, status, &mut summary)?;
    writer.finish()?;
    Ok(summary)
}

fn write(
    mut processes: Vec<Process>,
    writer: &mut TraceWriter,
    status: Option<i32>,
    summary: &mut Summary,
) -> Result<(), HostTraceError> {
    let mut assemblers: Vec<Assembler> = (0..summary.nodes.len() as u32)
        .map(Assembler::new)
        .collect();
    let mut queue: BinaryHeap<Reverse<(u64, usize)>> = (processes.iter().enumerate())
        .map(|(number, process)| Reverse((process.key(), number)))
        .collect();
    let mut events: Vec<Event> = Vec::new();
    let mut finder = ProgramFinder::default();
    let mut end = Stamp::default();
    while let Some(Reverse((key, number))) = queue.pop() {
        let process = &mut processes[number];
        end.time = end.time.max(key);
        let next = process.log.next_entry()?;
        let finished = next.is_none();
        let LogEntry {
            request,
            inner,
            outer,
            ..
        } = match next {
            Some(next) => std::mem::replace(&mut process.next, next),
            None => process.next.clone(),
        };
        let (inner, outer) = (process.time(inner), process.time(outer));
        // A log may state anything: a sum that does not fit into 64 bits becomes the greatest number that fits.
        summary.own = summary.own.saturating_add(inner.abs_diff(outer));
        if let Request::MpiEvents(records) = &request {
            for record in records {
                summary.calls = summary.calls.saturating_add(record.calls);
            }
        }
        let stamp = Stamp {
            time: outer,
            ..Stamp::default()
        };
        assemblers[process.node].measured(request, stamp, inner, &mut events);
        for event in events.drain(..) {
            finder.caller(&event);
            writer.write(&event)?;
        }
        if !finished {
            queue.push(Reverse((processes[number].key(), number)));
        }
    }
    finder.settle();
    summary.programs = finder.programs().len();
    summary.span = end.time;
    for assembler in &mut assemblers {
        assembler.finish(end, &mut events);
    }
    if let (Some(first), Some(status)) = (assemblers.first_mut(), status) {
        first.host(Body::JobExit(status), end, &mut events);
    }
    events.sort_by_key(Event::key);
    for event in &events {
        writer.write(event)?;
    }
    Ok(())
}

/// Returns the logs of processes that became ranks, by rank.
fn introductions(folder: &Path) -> Result<Vec<Introduced>, HostTraceError> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(HostTraceError::io("list", folder))?;
    for entry in entries {
        let path = entry.map_err(HostTraceError::io("list", folder))?.path();
        if path.extension().is_none_or(|suffix| suffix != SUFFIX) {
            continue;
        }
        let mut log = LogReader::open(&path)?;
        while let Some(logged) = log.next_entry()? {
            if let Request::Hello(hello) = logged.request
                && let Some(rank) = hello.rank.rank()
            {
                found.push(Introduced {
                    path,
                    rank,
                    host: hello.host,
                    program: hello.program,
                });
                break;
            }
        }
    }
    found.sort_by(|a, b| (a.rank, &a.path).cmp(&(b.rank, &b.path)));
    Ok(found)
}
