//! The report of the trace: MPI profile, communication matrix, timeline.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use nodescope_hypercall::{Class, Function, Peer, ProcessKind};
use nodescope_trace::profile::Traffic;
use nodescope_trace::{
    Body, Caller, FunctionProfile, MatrixBuilder, MpiCall, MpiProgram, PendingCalls,
    PendingCallsBuilder, Profile, ProgramFinder, Site, SiteNames, TraceError, TraceReader, Wait,
    WaitBuilder,
};
use nodescope_window::WindowRecord;
use serde::Serialize;

use crate::call_sites::CallSiteRow;
use crate::call_timeline::CallTimeline;
use crate::calls::{CallSum, Calls, Programs};

/// The MPI part of a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MpiReport {
    /// MPI programs of the trace, each with an `MPI_COMM_WORLD` of its own, in the order in which they appear.
    pub programs: Vec<ProgramReport>,
    /// Calls that had not ended when the trace did, deadlocks, and other errors of communication.
    #[serde(rename = "standing")]
    pub pending: PendingCalls,
}

impl MpiReport {
    /// Returns how reports name a program: `program 1, heat`; `None` if the report has only one program.
    pub fn label(&self, number: usize) -> Option<String> {
        let program = self.programs.get(number)?;
        (self.programs.len() > 1).then(|| format!("program {number}, {}", program.name))
    }
}

/// The profile of an MPI program: the processes of one `MPI_COMM_WORLD`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProgramReport {
    /// Number of the program in the trace, from 0.
    pub number: usize,
    /// Short names of the program's executables; `unknown` if no process reported one.
    pub name: String,
    /// Number of ranks in the program's `MPI_COMM_WORLD`.
    pub world_size: u32,
    /// Ranks that the trace has: those that reported their process to the tracer, and those that called MPI.
    pub ranks: Vec<RankRow>,
    /// First entry into MPI, picoseconds of virtual time.
    pub from_ps: u64,
    /// Last exit from MPI, picoseconds of virtual time.
    pub to_ps: u64,
    /// Sums over all ranks, by function.
    pub functions: Vec<FunctionRow>,
    /// Sums for each pair of a rank and a function.
    pub rank_functions: Vec<FunctionRow>,
    /// Sums over all ranks for each pair of a place in the program and a function that was called from there, longest total first.
    pub call_sites: Vec<CallSiteRow>,
    /// Point-to-point messages, by sender and receiver.
    pub matrix: Vec<MatrixCell>,
    /// Point-to-point messages, by size.
    pub message_sizes: Vec<MessageSize>,
    #[serde(skip)]
    pub(crate) names: SiteNames,
}

impl ProgramReport {
    /// Lets `add` add names of the program's call sites.
    pub(crate) fn locate(&mut self, add: &mut dyn FnMut(&mut SiteNames, BTreeSet<Site>)) {
        let sites = self.call_sites.iter().map(|row| row.site).collect();
        add(&mut self.names, sites);
        for row in &mut self.call_sites {
            row.name(&self.names);
        }
    }
}

/// Sums of a rank over all functions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RankRow {
    /// World rank of the process.
    pub rank: u32,
    /// Host name of the rank's node; `None` if the rank did not report its process to the tracer.
    pub node: Option<String>,
    /// Short name of the rank's program; `None` if the rank did not report its process to the tracer.
    pub program: Option<String>,
    /// Number of the rank's MPI calls; every poll counts as a call.
    pub calls: u64,
    /// Calls per second of virtual time between the program's first entry into MPI and its last exit.
    pub calls_per_second: Option<f64>,
    /// Number of bytes that calls passed to MPI.
    pub send_bytes: u64,
    /// Number of bytes that the rank's calls received.
    pub receive_bytes: u64,
    /// Virtual time inside MPI, picoseconds.
    pub time_ps: u64,
}

/// Sums of a function, for one rank or for all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionRow {
    /// World rank; `None` for the sum over all ranks.
    pub rank: Option<u32>,
    /// Name of the MPI function.
    pub function: &'static str,
    /// Number of calls of the function; every poll counts as a call.
    pub calls: u64,
    /// Calls per second of virtual time between the program's first entry into MPI and its last exit.
    pub calls_per_second: Option<f64>,
    /// Number of bytes that calls passed to MPI.
    pub send_bytes: u64,
    /// Number of bytes that the calls received.
    pub receive_bytes: u64,
    /// Virtual time inside the function, picoseconds.
    pub time_ps: u64,
    /// Mean virtual time of a call, picoseconds.
    pub mean_ps: f64,
    /// Virtual time of the longest call, picoseconds.
    pub max_ps: u64,
}

/// Sums of the point-to-point messages from one rank to another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MatrixCell {
    /// World rank of the sender.
    pub from: u32,
    /// World rank of the receiver.
    pub to: u32,
    /// Number of messages.
    pub messages: u64,
    /// Sum of the messages' bytes.
    pub bytes: u64,
}

/// Sums of the point-to-point messages of one size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MessageSize {
    /// The largest size of the class, bytes; the class begins above the largest size of the class before: 0, 1, 4, 16, 64 and so on.
    pub up_to_bytes: u64,
    /// Number of messages.
    pub messages: u64,
    /// Sum of the messages' bytes.
    pub bytes: u64,
}

/// Extent of the trace, and how the trace and the job ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TraceSummary {
    /// Number of events that were read.
    pub events: u64,
    /// Virtual time of the last event, picoseconds.
    pub end_ps: u64,
    /// Reason why reading stopped before the trace's end; `None` if the trace was read to its end.
    pub problem: Option<String>,
    /// Exit status of the job, if the trace has it.
    pub job_exit: Option<i32>,
}

/// Number of programs whose profiles a text or page shows. JSON has all.
pub(crate) const MOST_PROGRAMS: usize = 16;
/// Number of columns of a timeline.
pub(crate) const COLUMNS: usize = 900;
/// Kinds of MPI functions that the timeline distinguishes.
pub(crate) const GROUPS: [&str; 5] = [
    "point to point, one-sided",
    "completion (wait, test)",
    "collective",
    "set-up",
    "files",
];

/// Timeline of the ranks: the share of each column's time, 0 to 1, that a rank spent in each group of MPI functions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Timeline {
    pub(crate) from_ps: u64,
    pub(crate) to_ps: u64,
    pub(crate) lanes: BTreeMap<u32, Vec<[f32; GROUPS.len()]>>,
}

pub(crate) fn group(function: Function) -> usize {
    match function.class() {
        Class::Send
        | Class::Receive
        | Class::SendReceive
        | Class::StartSend
        | Class::StartReceive
        | Class::StartSendReceive
        | Class::Persistent
        | Class::Partition
        | Class::Rma
        | Class::StartRma => 0,
        Class::Completion | Class::Epoch => 1,
        Class::Collective
        | Class::StartCollective
        | Class::PrepareCollective
        | Class::Neighbor
        | Class::StartNeighbor
        | Class::PrepareNeighbor => 2,
        Class::Environment
        | Class::Communicator
        | Class::Process
        | Class::Window
        | Class::Local => 3,
        Class::File | Class::FileTransfer | Class::StartFileTransfer | Class::EndFileTransfer => 4,
    }
}

/// Everything that a report takes from the trace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traced {
    pub(crate) summary: TraceSummary,
    pub(crate) report: MpiReport,
    /// Calls that ended in each window and the time that calls waited in it, by the window's index.
    pub(crate) calls: Vec<Calls>,
    /// Timelines of the programs that a page shows.
    pub(crate) timelines: Vec<Timeline>,
    /// The calls of these programs.
    pub(crate) call_timelines: Vec<CallTimeline>,
}

/// Sums of a program while the trace is read.
#[derive(Default)]
struct ProgramSums {
    profile: Profile,
    matrix: MatrixBuilder,
    ranks: BTreeMap<u32, RankRow>,
    names: SiteNames,
    /// Time that calls waited, picoseconds, by place and function.
    waited: BTreeMap<(Site, Function), u64>,
}

impl ProgramSums {
    /// Adds a process that the trace has shown for the first time.
    fn join(&mut self, caller: &Caller, host: Option<&str>) {
        if let Some(hello) = &caller.introduced {
            let row = self.ranks.entry(caller.rank).or_default();
            row.node = host.map(str::to_owned);
            row.program = Some(hello.program.clone());
        }
    }

    fn finish(self, number: usize, program: &MpiProgram) -> ProgramReport {
        let ProgramSums {
            profile,
            matrix,
            mut ranks,
            mut names,
            waited,
        } = self;
        names.executables.clone_from(&program.names);
        let (from, to) = program.span.unwrap_or((0, 0));
        let seconds = to.saturating_sub(from) as f64 / 1e12;
        let rate = |calls: u64| (seconds > 0.0).then(|| calls as f64 / seconds);
        let function_row = |rank, function: Function, sums: &FunctionProfile| FunctionRow {
            rank,
            function: function.name(),
            calls: sums.calls,
            calls_per_second: rate(sums.calls),
            send_bytes: sums.send_bytes,
            receive_bytes: sums.receive_bytes,
            time_ps: sums.time,
            mean_ps: sums.mean_time(),
            max_ps: sums.max_time,
        };
        for (rank, sums) in profile.by_rank() {
            let row = ranks.entry(rank).or_default();
            row.calls = sums.calls;
            row.send_bytes = sums.send_bytes;
            row.receive_bytes = sums.receive_bytes;
            row.time_ps = sums.time;
        }
        for (rank, row) in &mut ranks {
            row.rank = *rank;
            row.calls_per_second = rate(row.calls);
        }
        let sizes = matrix.matrix().sizes();
        let message_sizes = sizes
            .map(|(up_to_bytes, Traffic { messages, bytes })| MessageSize {
                up_to_bytes,
                messages,
                bytes,
            })
            .collect();
        let mut call_sites: Vec<CallSiteRow> = (profile.sites())
            .map(|(site, function, sums)| {
                let waited = waited.get(&(site, function)).copied().unwrap_or(0);
                CallSiteRow::new(site, function, sums, waited, &names)
            })
            .collect();
        call_sites.sort_by_key(|row| std::cmp::Reverse(row.time_ps));
        let cells = matrix.matrix().cells();
        let matrix = cells
            .map(|(from, to, Traffic { messages, bytes })| MatrixCell {
                from,
                to,
                messages,
                bytes,
            })
            .collect();
        ProgramReport {
            number,
            name: program.name(),
            world_size: program.world_size(),
            from_ps: from,
            to_ps: to,
            functions: (profile.by_function().iter())
                .map(|(function, sums)| function_row(None, *function, sums))
                .collect(),
            rank_functions: profile
                .entries()
                .map(|(rank, function, sums)| function_row(Some(rank), function, sums))
                .collect(),
            call_sites,
            matrix,
            message_sizes,
            ranks: ranks.into_values().collect(),
            names,
        }
    }
}

/// Reads the trace twice: first for the sums, then for the timelines, which need the first entry and the last exit of the first reading.
pub(crate) fn read(file: &Path, windows: &[WindowRecord]) -> Result<Traced, TraceError> {
    let mut traced = Traced {
        calls: vec![Calls::default(); windows.len()],
        ..Traced::default()
    };
    let parts: Vec<Vec<(u64, u64)>> = windows.iter().map(WindowRecord::measured_parts).collect();
    let mut pending = PendingCallsBuilder::default();
    let mut waits = WaitBuilder::default();
    let mut programs = Programs::default();
    let mut finder = ProgramFinder::default();
    let mut sums: Vec<ProgramSums> = Vec::new();
    let mut program_of = ProgramOf::new();

    let reader = TraceReader::open(file)?;
    let nodes = reader.header().nodes.clone();
    let name_of = |node: u32| nodes.get(node as usize).map(|node| node.name.as_str());
    for event in reader.events() {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                traced.summary.problem = Some(error.to_string());
                break;
            }
        };
        pending.add(&event);
        traced.summary.events += 1;
        traced.summary.end_ps = traced.summary.end_ps.max(event.stamp.time);
        if let Some(caller) = finder.caller(&event) {
            sums.resize_with(finder.programs().len(), ProgramSums::default);
            let sums = &mut sums[caller.program];
            sums.join(&caller, name_of(event.node));
            if let Body::Mpi(call) = &event.body {
                sums.profile.add_call(call);
                sums.matrix.add_record(&call.record);
                sums.names.learn(&call.record);
                let process = (event.node, call.record.thread.pid, caller.rank);
                program_of.insert(process, caller.program);
            }
        }
        waits.add(&event);
        let done = waits.take();
        add_waits_of_sites(&mut sums, &program_of, &done);
        add_waits(&parts, &programs, &mut traced.calls, done);
        match &event.body {
            Body::Mpi(call) => {
                if let Peer::Rank(rank) = call.record.rank {
                    for (window, calls) in parts.iter().zip(&mut traced.calls) {
                        let end = call.exit.time;
                        let next = window.partition_point(|&(_, to)| to < end);
                        if window.get(next).is_some_and(|&(from, _)| from < end) {
                            let program = programs.of(event.node, call.record.thread.pid);
                            let more = CallSum {
                                ended: call.record.calls,
                                waited_ps: 0,
                            };
                            calls.add(event.node, rank, program, call.record.function, more);
                        }
                    }
                }
            }
            Body::Process(hello) if hello.kind == ProcessKind::MpiRank => {
                programs.hello(event.node, hello);
            }
            Body::JobExit(status) => traced.summary.job_exit = Some(*status),
            _ => {}
        }
    }

    let done = waits.finish();
    add_waits_of_sites(&mut sums, &program_of, &done);
    add_waits(&parts, &programs, &mut traced.calls, done);
    for (node, caller) in finder.settle() {
        sums.resize_with(finder.programs().len(), ProgramSums::default);
        sums[caller.program].join(&caller, name_of(node));
    }
    let report = &mut traced.report;
    report.pending = pending.finish();
    report.programs = (sums.into_iter().zip(finder.programs()).enumerate())
        .map(|(number, (sums, program))| sums.finish(number, program))
        .collect();
    add_timelines(&mut traced, file)?;
    Ok(traced)
}

/// Number of the program of a process, which is one of its ranks, by the process's node, its id and its rank.
type ProgramOf = HashMap<(u32, u32, u32), usize>;

/// Adds the time that calls waited to the sums of their call sites.
fn add_waits_of_sites(sums: &mut [ProgramSums], program_of: &ProgramOf, waits: &[Wait]) {
    for wait in waits {
        let program = program_of.get(&(wait.node, wait.pid, wait.rank));
        if let Some(sums) = program.and_then(|&program| sums.get_mut(program)) {
            let site = sums.profile.counted_site(wait.site, wait.function);
            let waited = sums.waited.entry((site, wait.function)).or_default();
            *waited = waited.saturating_add(wait.time);
        }
    }
}

/// Adds the time that calls waited inside the measured parts of each window to the window's `calls`.
fn add_waits(
    windows: &[Vec<(u64, u64)>],
    programs: &Programs,
    calls: &mut [Calls],
    waits: Vec<Wait>,
) {
    for wait in waits {
        for (window, calls) in windows.iter().zip(&mut *calls) {
            let next = window.partition_point(|&(_, to)| to <= wait.from);
            let parts = window[next..]
                .iter()
                .take_while(|(from, _)| *from < wait.until);
            let waited = parts.map(|&(from, to)| wait.within(from, to)).sum();
            if waited > 0 {
                let program = programs.of(wait.node, wait.pid);
                let more = CallSum {
                    ended: 0,
                    waited_ps: waited,
                };
                calls.add(wait.node, wait.rank, program, wait.function, more);
            }
        }
    }
}

/// Reads the trace for the timelines of the programs that a page shows.
fn add_timelines(traced: &mut Traced, file: &Path) -> Result<(), TraceError> {
    let shown = traced.report.programs.iter().take(MOST_PROGRAMS);
    let mut calls: Vec<CallTimeline> = (shown.clone()).map(CallTimeline::of).collect();
    let mut timelines: Vec<Timeline> = shown.map(Timeline::of).collect();
    if timelines.iter().all(|timeline| timeline.lanes.is_empty()) {
        traced.timelines = timelines;
        return Ok(());
    }
    let mut finder = ProgramFinder::default();
    let mut waits = WaitBuilder::with_messages();
    let mut programs = ProgramOf::new();
    let add_waits = |waits: Vec<Wait>, programs: &ProgramOf, calls: &mut [CallTimeline]| {
        for wait in waits {
            let program = programs.get(&(wait.node, wait.pid, wait.rank));
            if let Some(calls) = program.and_then(|&program| calls.get_mut(program)) {
                calls.add_wait(&wait);
            }
        }
    };
    for event in TraceReader::open(file)?.events() {
        // The first reading has already reported where the trace becomes unreadable.
        let Ok(event) = event else { break };
        let caller = finder.caller(&event);
        if let (Some(caller), Body::Mpi(call)) = (caller, &event.body)
            && let Some(timeline) = timelines.get_mut(caller.program)
        {
            timeline.add(call);
            calls[caller.program].add(call);
            let process = (event.node, call.record.thread.pid, caller.rank);
            programs.insert(process, caller.program);
        }
        waits.add(&event);
        add_waits(waits.take(), &programs, &mut calls);
        for message in waits.take_messages() {
            if let Some(calls) = calls.get_mut(message.program) {
                calls.add_message(message);
            }
        }
    }
    add_waits(waits.finish(), &programs, &mut calls);
    for (calls, program) in calls.iter_mut().zip(&traced.report.programs) {
        calls.finish(&program.names);
    }
    traced.timelines = timelines;
    traced.call_timelines = calls;
    Ok(())
}

impl Timeline {
    /// Returns the timeline of a program, still without calls.
    fn of(program: &ProgramReport) -> Timeline {
        let mut timeline = Timeline {
            from_ps: program.from_ps,
            to_ps: program.to_ps,
            lanes: BTreeMap::new(),
        };
        if program.to_ps > program.from_ps {
            // The timeline has as many lanes as a reader can distinguish. With more ranks, every k-th rank has a lane.
            let step = (program.ranks.len().div_ceil(crate::charts::MOST_LANES)).max(1);
            timeline.lanes = (program.ranks.iter().step_by(step))
                .map(|row| (row.rank, vec![[0.0; GROUPS.len()]; COLUMNS]))
                .collect();
        }
        timeline
    }

    fn add(&mut self, call: &MpiCall) {
        let Some(lane) = call
            .record
            .rank
            .rank()
            .and_then(|rank| self.lanes.get_mut(&rank))
        else {
            return;
        };
        let group = group(call.record.function);
        let width = (self.to_ps - self.from_ps) as f64 / COLUMNS as f64;
        let start = call.entry.time.saturating_sub(self.from_ps) as f64 / width;
        let end = call.exit.time.saturating_sub(self.from_ps) as f64 / width;
        if end <= start {
            return;
        }
        // A poll run counts with the time inside its polls, spread evenly over the run's extent.
        let share = (call.time_inside as f64 / width / (end - start)).min(1.0);
        let last = (end.ceil() as usize).min(COLUMNS);
        for (column, cell) in lane.iter_mut().enumerate().take(last).skip(start as usize) {
            let overlap = end.min((column + 1) as f64) - start.max(column as f64);
            cell[group] += (overlap.max(0.0) * share) as f32;
        }
    }
}
