//! Analysis of the records of a program's processes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::characteristics::{Characteristics, Ratio, add};
use crate::code_location::{CodeLocation, CodeLocator};
use crate::hybrid::{Hybrid, Part, RankMpi, TalpTimes};
use crate::points::{LoopReport, Point, loops, points};
use crate::programs::{MpiTime, ProgramReport, at_once, group};
use crate::record::{Kind, Record, STATES, Site, State, Thread};
use crate::selection::Selection;

/// Options of an analysis, which the user chooses.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Processors of each process; if `None`, the most threads that were active at once.
    pub processors: Option<u32>,
    /// Time of the processes in MPI calls, if a trace contains them.
    pub mpi: Option<MpiTime>,
    /// Intervals made of parallel regions, besides those that the program's author has named.
    pub selections: Vec<Selection>,
}

/// Analysis of the programs of a job.
#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    /// Version of the JSON output: 3, which has `programs`, each with its `hybrid`. Version 2 had one `hybrid` of all processes.
    pub format: u32,
    /// The programs: those of the trace by number, then others in the order in which they began.
    pub programs: Vec<ProgramReport>,
    /// Reports of the processes, by program, then by rank, host and process id.
    pub processes: Vec<ProcessReport>,
    /// Indices of the processes, from the process with most lost and idle time to the one with least.
    pub ranking: Vec<usize>,
    /// The largest number of processors that the programs used at the same time, by host, summed over the hosts.
    pub processors: u64,
    /// Notes for the reader of the figures.
    pub notes: Vec<String>,
}

/// Analysis of a process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessReport {
    /// The record's file.
    pub source: String,
    /// Process id in the system.
    pub pid: u32,
    /// Rank in `MPI_COMM_WORLD`; `None` without MPI.
    pub rank: Option<u32>,
    /// Name of the host on which the process ran.
    pub host: String,
    /// Path of the program's file where it ran; empty if the record does not name it.
    pub program: String,
    /// Name of the OpenMP runtime.
    pub runtime: String,
    /// The most threads that were active at once.
    pub threads: u32,
    /// Intervals, each after the interval around it. The first is the whole program. Intervals that the user makes of regions come last.
    pub intervals: Vec<IntervalReport>,
    /// Times of each thread, in the order of the threads' first events.
    pub times: Vec<ThreadReport>,
    /// Parallel regions, the one that loses most first.
    pub regions: Vec<RegionReport>,
    /// Points of synchronisation, the costliest first.
    pub points: Vec<Point>,
    /// Work-sharing loops, the one with most waiting at its end first.
    pub loops: Vec<LoopReport>,
    /// Notes for the reader of the figures.
    pub notes: Vec<String>,
}

/// Analysis of an interval.
#[derive(Clone, Debug, Serialize)]
pub struct IntervalReport {
    /// Name of the interval, behind the names of the intervals around it.
    pub name: String,
    /// Number of intervals around this one.
    pub depth: u32,
    /// Number of executions of the interval.
    pub count: u64,
    /// Time of the interval's first beginning, nanoseconds from the beginning of the program; 0 for intervals made of regions.
    pub first: u128,
    /// Characteristics of the interval.
    pub characteristics: Characteristics,
}

/// A thread's time in the whole program, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadReport {
    /// Number of the thread in its first team.
    pub number: u32,
    /// Thread id in the system.
    pub tid: u32,
    /// True if the thread starts regions outside of all other regions.
    pub root: bool,
    /// Time of the thread's first event, from the beginning of the program.
    pub first: u128,
    /// Time of work that serves the result: serial code, a primary thread's code in regions, work-sharing constructs and tasks.
    pub productive: u128,
    /// Time in regions outside of work-sharing constructs, and before the thread runs a region's code; not of primary threads.
    pub insufficient_parallelism: u128,
    /// Waiting in parallel regions.
    pub waiting: u128,
}

/// An outermost parallel region with the regions nested in it.
#[derive(Clone, Debug, Serialize)]
pub struct RegionReport {
    /// Call site of the region in the program.
    #[serde(rename = "place")]
    pub location: CodeLocation,
    /// Call sites of the regions nested in the region.
    pub nested: Vec<CodeLocation>,
    /// Number of executions of the region.
    pub count: u64,
    /// Characteristics of the region. The execution time is from the beginning to the end of the region.
    pub characteristics: Characteristics,
}

impl Analysis {
    /// Analyses the records of a job's programs.
    pub fn new(mut records: Vec<Record>, options: &Options, locator: &mut CodeLocator) -> Analysis {
        records.sort_by(|a, b| (a.rank, &a.host, a.pid).cmp(&(b.rank, &b.host, b.pid)));
        let mut processes = Vec::new();
        let mut programs = Vec::new();
        for group in group(&records, options.mpi.as_ref()) {
            let own = |at: usize| &records[group.records[at].0];
            let has_mpi = group.records.iter().any(|(_, mpi)| mpi.is_some());
            let first = processes.len();
            let mut parts = Vec::new();
            for (number, mpi) in &group.records {
                let mpi = mpi.unwrap_or_default();
                let (process, part) = process(&records[*number], mpi, options, locator);
                processes.push(process);
                parts.push(part);
            }
            let all = || (0..group.records.len()).map(own);
            let size = all().filter_map(|record| record.ranks).max();
            let ranks = all().filter(|record| record.rank.is_some()).count();
            let mut notes = Vec::new();
            if let Some(size) = size.filter(|size| ranks != *size as usize) {
                notes.push(format!(
                    "records of {ranks} of {size} ranks are there; ranks without OpenMP leave none"
                ));
            }
            programs.push(ProgramReport {
                name: own(0).name().to_owned(),
                mpi_program: group.mpi_program,
                ranks: size.filter(|_| ranks > 0),
                processes: (first..processes.len()).collect(),
                hybrid: Hybrid::new(&parts, has_mpi),
                notes,
            });
        }
        let mut ranking: Vec<usize> = (0..processes.len()).collect();
        let lost = |at: &usize| {
            let of: &Characteristics = &processes[*at].intervals[0].characteristics;
            of.lost_sum + of.idle
        };
        ranking.sort_by_key(|at| (std::cmp::Reverse(lost(at)), *at));
        let used = records
            .iter()
            .map(|record| (record, processors(record, options)));
        Analysis {
            format: 3,
            processors: at_once(used),
            programs,
            ranking,
            processes,
            notes: locator.notes().to_vec(),
        }
    }

    /// Returns the name of a program for reports, such as `program 1, heat, 4 ranks`.
    pub fn program_name(&self, number: usize) -> String {
        let program = &self.programs[number];
        let name = match program.name.as_str() {
            "" => "unknown",
            name => name,
        };
        match program.ranks {
            None => format!("program {number}, {name}"),
            Some(1) => format!("program {number}, {name}, 1 rank"),
            Some(ranks) => format!("program {number}, {name}, {ranks} ranks"),
        }
    }

    /// Returns the positions of a program's processes, the one that loses most first.
    pub(crate) fn ranked(&self, program: &ProgramReport) -> impl Iterator<Item = usize> {
        let own: BTreeSet<usize> = program.processes.iter().copied().collect();
        (self.ranking.iter().copied()).filter(move |at| own.contains(at))
    }

    /// Formats the analysis as JSON.
    pub fn json(&self) -> String {
        // All keys are text and all numbers have a JSON form, so serialisation cannot fail.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// Returns the number of processors of a process.
fn processors(record: &Record, options: &Options) -> u32 {
    options.processors.unwrap_or(record.peak).max(1)
}

fn process(
    record: &Record,
    mpi: RankMpi,
    options: &Options,
    locator: &mut CodeLocator,
) -> (ProcessReport, Part) {
    let processors = processors(record, options);
    let mut notes = record.notes.clone();
    if processors < record.peak {
        notes.push(format!(
            "{processors} processors are fewer than the {} threads that were active at once: productive time lacks what exceeds the total",
            record.peak
        ));
    }
    if record.peak > record.processors {
        notes.push(format!(
            "{} threads were active at once on a node of {} processors: waiting includes time in which threads had no processor",
            record.peak, record.processors
        ));
    }
    if record.runtime == "libgomp" {
        notes.push(
            "libgomp tells nothing of master constructs and flushes, and little of loops of static schedule: see the limits in the page OpenMP of the guide"
                .into(),
        );
    }
    let time = |ticks: u128| record.clock.nanoseconds(ticks);
    let since = |ticks: u64| time(ticks.saturating_sub(record.clock.begin.0).into());
    let mut intervals: Vec<IntervalReport> = (order(record).into_iter())
        .map(|(at, depth)| IntervalReport {
            name: record.interval_path(at),
            depth,
            count: record.intervals[at].count,
            first: since(record.intervals[at].first),
            characteristics: Characteristics::of_interval(record, at, processors),
        })
        .collect();
    let (regions, mut selected, missing) =
        regions(record, processors, &options.selections, locator);
    intervals.append(&mut selected);
    notes.extend(missing);
    let whole = &intervals[0].characteristics;
    let cells = || record.threads.iter().flat_map(|thread| &thread.cells);
    let sum =
        |f: fn(&crate::record::Cell) -> u64| time(cells().map(|cell| u128::from(f(cell))).sum());
    let times = TalpTimes::new(
        whole.total,
        whole.idle,
        sum(|cell| cell.imbalance),
        sum(|cell| cell.scheduling),
        mpi,
        processors,
    );
    let part = Part {
        rank: record.rank,
        host: record.host.clone(),
        processors,
        execution: whole.execution.saturating_sub(mpi.outer),
        mpi_waiting: mpi.waited,
        times,
    };
    // Points compare their costs, in nanoseconds, with the lost time of the whole program.
    let lost = whole.lost_sum;
    let report = ProcessReport {
        source: record.source.clone(),
        pid: record.pid,
        rank: record.rank,
        host: record.host.clone(),
        program: record
            .modules
            .get(&1)
            .map(|module| module.path.clone())
            .unwrap_or_default(),
        runtime: record.runtime.clone(),
        threads: record.peak,
        times: record
            .threads
            .iter()
            .map(|thread| thread_times(record, thread))
            .collect(),
        regions,
        points: points(record, locator, lost),
        loops: loops(record, locator),
        intervals,
        notes,
    };
    (report, part)
}

/// Returns the numbers and depths of all intervals, each after the interval around it.
fn order(record: &Record) -> Vec<(usize, u32)> {
    let mut children: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, interval) in record.intervals.iter().enumerate().skip(1) {
        children.entry(interval.parent).or_default().push(number);
    }
    let mut order = Vec::new();
    let mut open = vec![(0, 0)];
    while let Some((at, depth)) = open.pop() {
        order.push((at, depth));
        let within = children.get(&at).into_iter().flatten().rev();
        open.extend(within.map(|child| (*child, depth + 1)));
    }
    order
}

fn thread_times(record: &Record, thread: &Thread) -> ThreadReport {
    let mut sum = [0; STATES];
    thread
        .cells
        .iter()
        .for_each(|cell| add(&mut sum, &cell.ticks));
    let time = |ticks: u128| record.clock.nanoseconds(ticks);
    let of = |states: &[State]| time(states.iter().map(|state| sum[*state as usize]).sum());
    ThreadReport {
        number: thread.number,
        tid: thread.tid,
        root: thread.root,
        first: time(thread.first.saturating_sub(record.clock.begin.0).into()),
        productive: of(&[State::Serial, State::Primary, State::Shared, State::Task]),
        insufficient_parallelism: of(&[State::Start, State::Replicated]),
        waiting: of(&[
            State::WaitBarrier,
            State::WaitLock,
            State::WaitCritical,
            State::WaitOrdered,
            State::WaitDesync,
            State::WaitFlush,
            State::WaitTask,
        ]),
    }
}

/// Sums of an outermost region, in ticks.
#[derive(Default)]
struct RegionSum {
    ticks: [u128; STATES],
    count: u64,
    execution: u128,
    nested: BTreeSet<Site>,
}

/// Returns the sums of outermost regions by site. Each thread of a team reports the region, so count and execution time are the largest of
/// a thread: normally those of the primary thread. Nested regions are parts of the outermost one.
fn sum_regions(record: &Record) -> BTreeMap<Site, RegionSum> {
    let outside = Site::default();
    let mut around: BTreeMap<Site, Site> = BTreeMap::new();
    let mut sums: BTreeMap<Site, RegionSum> = BTreeMap::new();
    for thread in &record.threads {
        // A thread has an event for each interval in which it executes the region.
        let mut own: BTreeMap<Site, (u64, u128)> = BTreeMap::new();
        for event in (thread.events.iter()).filter(|event| event.kind == Kind::Parallel) {
            // A region that is executed outside of all others, too, counts as outermost.
            let known = around.entry(event.site).or_insert(event.region);
            if event.region == outside {
                *known = outside;
                let own = own.entry(event.site).or_default();
                own.0 += event.count;
                own.1 += u128::from(event.total);
            }
        }
        for (site, (count, execution)) in own {
            let sum = sums.entry(site).or_default();
            sum.count = sum.count.max(count);
            sum.execution = sum.execution.max(execution);
        }
    }
    let outermost = |mut site: Site| {
        // Recursion can nest regions in a cycle, so the number of steps has a limit.
        for _ in 0..around.len() {
            match around.get(&site) {
                Some(next) if *next != outside => site = *next,
                _ => break,
            }
        }
        site
    };
    for thread in &record.threads {
        for cell in thread.cells.iter().filter(|cell| cell.region != outside) {
            let site = outermost(cell.region);
            if let Some(sum) = sums.get_mut(&site) {
                add(&mut sum.ticks, &cell.ticks);
                if cell.region != site {
                    sum.nested.insert(cell.region);
                }
            }
        }
    }
    sums
}

/// Returns the regions, the one that loses most first, the intervals that the user makes of regions, and notes.
fn regions(
    record: &Record,
    processors: u32,
    selections: &[Selection],
    locator: &mut CodeLocator,
) -> (Vec<RegionReport>, Vec<IntervalReport>, Vec<String>) {
    let sums: Vec<(CodeLocation, RegionSum)> = (sum_regions(record).into_iter())
        .map(|(site, sum)| (locator.locate(&record.modules, site), sum))
        .collect();
    let characteristics = |execution: u128, ticks: &[u128; STATES]| {
        Characteristics::new(execution, processors, ticks, |ticks| {
            record.clock.nanoseconds(ticks)
        })
    };
    let mut intervals = Vec::new();
    let mut notes = Vec::new();
    for selection in selections {
        let mut whole = RegionSum::default();
        for (_, sum) in sums
            .iter()
            .filter(|(location, _)| selection.holds(location))
        {
            whole.count += sum.count;
            whole.execution += sum.execution;
            for (whole, ticks) in whole.ticks.iter_mut().zip(&sum.ticks) {
                *whole += ticks;
            }
        }
        if whole.count == 0 {
            let known: Vec<String> = sums.iter().map(|(location, _)| location.text()).collect();
            notes.push(format!(
                "there are no {selection}; regions are called at {}",
                known.join(", ")
            ));
        }
        intervals.push(IntervalReport {
            name: selection.to_string(),
            depth: 1,
            count: whole.count,
            first: 0,
            characteristics: characteristics(whole.execution, &whole.ticks),
        });
    }
    let mut reports: Vec<RegionReport> = (sums.into_iter())
        .map(|(location, sum)| RegionReport {
            location,
            nested: (sum.nested.into_iter())
                .map(|site| locator.locate(&record.modules, site))
                .collect(),
            count: sum.count,
            characteristics: characteristics(sum.execution, &sum.ticks),
        })
        .collect();
    reports.sort_by(|a, b| {
        let lost = |report: &RegionReport| report.characteristics.lost_sum;
        (lost(b), &a.location).cmp(&(lost(a), &b.location))
    });
    (reports, intervals, notes)
}

impl ProcessReport {
    /// Returns a name for reports: rank, or process id without MPI, and host.
    pub fn name(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank} on {}", self.host),
            None => format!("process {} on {}", self.pid, self.host),
        }
    }

    /// Returns the efficiency of the whole program.
    pub fn efficiency(&self) -> Ratio {
        self.intervals[0].characteristics.efficiency
    }
}
