//! Constructs that cost: points of synchronisation, and loops.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::characteristics::Ratio;
use crate::code_location::{CodeLocation, CodeLocator};
use crate::record::{Event, Kind, Record, Schedule, Site};

/// Smallest, mean and largest of the values of the threads that executed a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Smallest value.
    pub least: u128,
    /// Mean value, rounded down.
    pub mean: u128,
    /// Largest value.
    pub most: u128,
}

impl Spread {
    fn of(values: impl Iterator<Item = u128> + Clone) -> Spread {
        let count = values.clone().count().max(1) as u128;
        Spread {
            least: values.clone().min().unwrap_or(0),
            mean: values.clone().sum::<u128>() / count,
            most: values.max().unwrap_or(0),
        }
    }

    /// Returns the part of the largest value by which the largest exceeds the mean: 0 for equal values, near 1 where one thread has all.
    pub fn imbalance(&self) -> Ratio {
        Ratio(1.0 - Ratio::of(self.mean, self.most).0)
    }
}

/// A point of synchronisation: a construct at which threads may wait. Times are nanoseconds, of all threads together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Kind of the construct.
    pub kind: Kind,
    /// Schedule of a loop; [`Schedule::None`] for other constructs.
    pub schedule: Schedule,
    /// Call site of the construct in the program.
    #[serde(rename = "place")]
    pub location: CodeLocation,
    /// Threads that executed the construct, as indices into the process's list of threads.
    pub threads: Vec<usize>,
    /// Number of executions by all threads.
    pub count: u64,
    /// Time at which a thread first came to the construct, from the beginning of the program.
    pub first: u128,
    /// Duration of all executions.
    pub total: u128,
    /// Mean duration, rounded down.
    pub mean: u128,
    /// The longest execution.
    pub longest: u128,
    /// Waiting within the construct: for a lock, a critical or ordered construct, at a barrier, for tasks.
    pub waited: u128,
    /// Waiting for other threads at the end of a work-sharing construct or a parallel region.
    pub synchronised: u128,
    /// Cost: the waiting that counts as lost.
    pub cost: u128,
    /// Cost divided by the time that the program loses; 0 if the program loses none.
    pub of_lost: Ratio,
}

/// A work-sharing loop, with the sums or the spread over all threads. Times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoopReport {
    /// Call site of the loop in the program.
    #[serde(rename = "place")]
    pub location: CodeLocation,
    /// Schedule of the loop.
    pub schedule: Schedule,
    /// Requested size of a chunk; 0 if none.
    pub chunk: i64,
    /// Largest number of executions by one thread.
    pub executions: u64,
    /// Time in the loop by thread, without waiting in it.
    pub work: Spread,
    /// Share of the largest work of a thread by which that work exceeds the mean.
    pub imbalance: Ratio,
    /// Iterations by thread; `None` where the runtime does not report them.
    pub iterations: Option<Spread>,
    /// Number of chunks of all threads; `None` where the runtime does not report them.
    pub chunks: Option<u64>,
    /// Waiting at the loop's end, of all threads.
    pub synchronised: u128,
}

/// Sums of a construct; times in ticks.
#[derive(Default)]
struct Sum {
    threads: BTreeSet<usize>,
    count: u64,
    first: Option<u64>,
    total: u128,
    longest: u64,
    waited: u128,
    ended: u128,
    schedule: Option<Schedule>,
}

/// Returns the waiting that counts as lost: in constructs that wait, and at the ends of those that share work. Waiting in a work-sharing
/// construct belongs to the constructs nested in it.
fn cost(event: &Event) -> u64 {
    match event.kind {
        Kind::Barrier
        | Kind::Critical
        | Kind::Atomic
        | Kind::Ordered
        | Kind::Lock
        | Kind::Flush
        | Kind::Taskwait
        | Kind::Taskgroup => event.waited,
        Kind::Parallel | Kind::Loop | Kind::Sections | Kind::Single | Kind::Workshare => {
            event.ended
        }
        Kind::Master | Kind::Task | Kind::Taskloop | Kind::CreatedTask => 0,
    }
}

/// Returns the constructs of a record, the costliest first. `lost` is the program's lost time in nanoseconds.
pub(crate) fn points(record: &Record, locator: &mut CodeLocator, lost: u128) -> Vec<Point> {
    let mut sums: BTreeMap<(Kind, Site), (Sum, u128)> = BTreeMap::new();
    for (number, thread) in record.threads.iter().enumerate() {
        for event in &thread.events {
            let (sum, costs) = sums.entry((event.kind, event.site)).or_default();
            sum.threads.insert(number);
            sum.count = sum.count.saturating_add(event.count);
            sum.first = Some(
                sum.first
                    .map_or(event.first, |first| first.min(event.first)),
            );
            sum.total += u128::from(event.total);
            sum.longest = sum.longest.max(event.longest);
            sum.waited += u128::from(event.waited);
            sum.ended += u128::from(event.ended);
            sum.schedule = Some(event.schedule);
            *costs += u128::from(cost(event));
        }
    }
    let time = |ticks: u128| record.clock.nanoseconds(ticks);
    let mut points: Vec<Point> = (sums.into_iter())
        .map(|((kind, site), (sum, costs))| {
            let first = sum.first.unwrap_or(0).saturating_sub(record.clock.begin.0);
            let total = time(sum.total);
            Point {
                kind,
                schedule: sum.schedule.unwrap_or(Schedule::None),
                location: locator.locate(&record.modules, site),
                threads: sum.threads.into_iter().collect(),
                count: sum.count,
                first: time(first.into()),
                total,
                mean: total / u128::from(sum.count.max(1)),
                longest: time(sum.longest.into()),
                waited: time(sum.waited),
                synchronised: time(sum.ended),
                cost: time(costs),
                of_lost: match lost {
                    0 => Ratio(0.0),
                    _ => Ratio::of(time(costs), lost),
                },
            }
        })
        .collect();
    points.sort_by(|a, b| (b.cost, &a.location, a.kind).cmp(&(a.cost, &b.location, b.kind)));
    points
}

/// Returns the loops of a record, the one with most waiting at its end first.
pub(crate) fn loops(record: &Record, locator: &mut CodeLocator) -> Vec<LoopReport> {
    #[derive(Clone, Copy, Default)]
    struct Part {
        work: u128,
        iterations: u128,
        executions: u64,
    }
    #[derive(Default)]
    struct Loop {
        parts: BTreeMap<usize, Part>,
        schedule: Option<Schedule>,
        chunk: i64,
        chunks: u64,
        ended: u128,
    }
    let mut loops: BTreeMap<Site, Loop> = BTreeMap::new();
    for (number, thread) in record.threads.iter().enumerate() {
        for event in thread
            .events
            .iter()
            .filter(|event| event.kind == Kind::Loop)
        {
            let sum = loops.entry(event.site).or_default();
            let part = sum.parts.entry(number).or_default();
            part.work += u128::from(event.total.saturating_sub(event.waited));
            part.iterations += u128::from(event.iterations);
            part.executions = part.executions.saturating_add(event.count);
            sum.schedule = Some(event.schedule);
            sum.chunk = event.chunk;
            sum.chunks = sum.chunks.saturating_add(event.chunks);
            sum.ended += u128::from(event.ended);
        }
    }
    let time = |ticks: u128| record.clock.nanoseconds(ticks);
    let mut reports: Vec<LoopReport> = (loops.into_iter())
        .map(|(site, sum)| {
            let work = Spread::of(sum.parts.values().map(|part| time(part.work)));
            let told = sum.chunks > 0;
            LoopReport {
                location: locator.locate(&record.modules, site),
                schedule: sum.schedule.unwrap_or(Schedule::None),
                chunk: sum.chunk,
                executions: sum
                    .parts
                    .values()
                    .map(|part| part.executions)
                    .max()
                    .unwrap_or(0),
                work,
                imbalance: work.imbalance(),
                iterations: told
                    .then(|| Spread::of(sum.parts.values().map(|part| part.iterations))),
                chunks: told.then_some(sum.chunks),
                synchronised: time(sum.ended),
            }
        })
        .collect();
    reports.sort_by(|a, b| (b.synchronised, &a.location).cmp(&(a.synchronised, &b.location)));
    reports
}
