//! Delay costs: which computations and calls cause the ranks' waiting, at once and through other waits.
//!
//! The definitions are those of Böhme, Geimer, Wolf and Arnold, "Identifying the root causes of wait states in large-scale parallel
//! applications" (ICPP 2010), as Scalasca has them. A wait ends an interval that began where the waiting rank and the late rank last
//! met: at their last message or common collective. What the late rank did longer than the waiting rank in this interval are *delays*.
//! The wait is charged to the delays and to the late rank's own waits in the interval, in proportion to their lengths. The part of the
//! delays is their *short-term* cost. What is charged to waits propagates: it is charged to the delays that caused those waits, as their
//! *long-term* cost. Computations are told apart by the two calls around them, calls by their site.

use std::collections::{BTreeMap, HashMap};

use nodescope_loop_tree::Program;
use nodescope_trace::Call;
use serde::Serialize;

use crate::cluster::{Cluster, FitError};
use crate::code::{Code, NONE};
use crate::interpreter::{Meetings, Options, Waited, interpret};
use crate::result::WaitKind;
use crate::timeline::Timeline;

/// Costs of delays, picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Costs {
    /// Waiting that begins at the end of the interval of the delay.
    pub short_term: f64,
    /// Waiting that follows from that waiting.
    pub long_term: f64,
}

impl Costs {
    /// Returns both costs together.
    pub fn sum(&self) -> f64 {
        self.short_term + self.long_term
    }

    fn add(&mut self, other: Costs) {
        self.short_term += other.short_term;
        self.long_term += other.long_term;
    }
}

/// What a rank does in a delay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// The computation between two calls; `None` is the start or the end of the program.
    Computation {
        /// Call before the computation.
        from: Option<Call>,
        /// Call behind the computation.
        to: Option<Call>,
    },
    /// A call without its waiting.
    Call(Call),
}

/// Delays of one activity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DelayRow {
    /// The activity.
    pub activity: Activity,
    /// Costs of the delays.
    #[serde(flatten)]
    pub costs: Costs,
    /// Rank with the greatest costs.
    pub rank: u32,
    /// Costs of the delays of this rank.
    pub of_rank: Costs,
}

/// Delays by their costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Delays {
    /// Waiting of all ranks, picoseconds.
    pub waiting: u64,
    /// Part of the waiting that delays cause at once, picoseconds: the sum of all short-term costs.
    pub direct: f64,
    /// Part of the waiting that is caused by other waits, picoseconds.
    pub indirect: f64,
    /// Waiting of which neither delay nor wait is the cause: the late rank did nothing longer, such as at the program's start, or a
    /// message alone was late.
    pub unexplained: f64,
    /// Delays by activity, greatest costs first.
    pub activities: Vec<DelayRow>,
    /// Delays by the rank that was late, greatest costs first.
    pub ranks: Vec<(u32, Costs)>,
    /// Delays by the kind of the waits that they cause at once.
    pub kinds: Vec<(WaitKind, Costs)>,
}

/// Key of an activity: call sites by their numbers in the code. A call has its own site twice, and `true`.
type Key = (u32, u32, bool);

/// Waits by their index, each with its time in picoseconds.
type Waits = Vec<(usize, u64)>;

/// Returns the delays of a program on a cluster; `None` if the program does not come to its end there.
///
/// # Errors
///
/// As [`interpret`].
pub fn delays(program: &Program, cluster: &Cluster) -> Result<Option<Delays>, FitError> {
    let code = Code::new(program);
    let options = Options {
        critical_path: false,
        links: 0,
        timeline: true,
        meetings: true,
        ..Options::default()
    };
    let outcome = interpret(&code, cluster, &options)?;
    let complete = outcome.complete();
    let (Some(timeline), Some(mut meetings), true) = (outcome.timeline, outcome.meetings, complete)
    else {
        return Ok(None);
    };
    meetings.sort();
    let run = Run {
        code: &code,
        timeline: &timeline,
        by_rank: waits_by_rank(&meetings, timeline.calls.len()),
        meetings: &meetings,
    };
    Ok(Some(run.delays()))
}

/// Returns the indices of each rank's waits, in the order of time.
fn waits_by_rank(meetings: &Meetings, ranks: usize) -> Vec<Vec<usize>> {
    let mut by_rank = vec![Vec::new(); ranks];
    for (index, wait) in meetings.waits.iter().enumerate() {
        by_rank[wait.rank as usize].push(index);
    }
    for of_rank in &mut by_rank {
        of_rank.sort_by_key(|&index: &usize| meetings.waits[index].from);
    }
    by_rank
}

struct Run<'a> {
    code: &'a Code<'a>,
    timeline: &'a Timeline,
    meetings: &'a Meetings,
    by_rank: Vec<Vec<usize>>,
}

impl Run<'_> {
    fn delays(&self) -> Delays {
        let waits = &self.meetings.waits;
        // Waiting that each wait causes at other ranks.
        let mut caused = vec![0.0; waits.len()];
        let mut costs: BTreeMap<(Key, u32), Costs> = BTreeMap::new();
        let mut kinds: BTreeMap<WaitKind, Costs> = BTreeMap::new();
        let mut sums = (0.0, 0.0, 0.0);
        // Effects come after their causes, so what a wait causes is complete when its turn comes.
        for (index, wait) in waits.iter().enumerate().rev() {
            let waited = wait.time as f64;
            let (delays, before) = self.causes(wait);
            let of_delays: u64 = delays.iter().map(|(_, time)| time).sum();
            let of_waits: u64 = before.iter().map(|(_, time)| time).sum();
            let all = (of_delays + of_waits) as f64;
            if all <= 0.0 {
                sums.2 += waited;
                continue;
            }
            sums.0 += waited * of_delays as f64 / all;
            sums.1 += waited * of_waits as f64 / all;
            for (key, time) in delays {
                let part = time as f64 / all;
                let cost = Costs {
                    short_term: waited * part,
                    long_term: caused[index] * part,
                };
                costs.entry((key, wait.late)).or_default().add(cost);
                kinds.entry(wait.kind).or_default().add(cost);
            }
            for (earlier, time) in before {
                caused[earlier] += (waited + caused[index]) * time as f64 / all;
            }
        }
        Delays {
            waiting: waits.iter().map(|wait| wait.time).sum(),
            direct: sums.0,
            indirect: sums.1,
            unexplained: sums.2,
            activities: self.activities(&costs),
            ranks: by_rank(&costs),
            kinds: kinds.into_iter().collect(),
        }
    }

    /// Returns the late rank's delays and waits in the interval that ends with a wait: each with its time, picoseconds.
    fn causes(&self, wait: &Waited) -> (Vec<(Key, u64)>, Waits) {
        let (own, late) = self.meetings.last(wait);
        let (doings, before) = self.doings(wait.late, late, wait.late_at);
        if doings.is_empty() {
            return (Vec::new(), before);
        }
        let (of_waiting, _) = self.doings(wait.rank, own, wait.from);
        let mut delays: Vec<(Key, u64)> = (doings.into_iter())
            .map(|(key, time)| {
                (
                    key,
                    time - time.min(of_waiting.get(&key).copied().unwrap_or(0)),
                )
            })
            .filter(|&(_, time)| time > 0)
            .collect();
        delays.sort_unstable();
        (delays, before)
    }

    /// Returns the time of each activity of a rank from `from` to `to`, and the waits of the rank in this time.
    fn doings(&self, rank: u32, from: u64, to: u64) -> (HashMap<Key, u64>, Waits) {
        let within = |start: u64, end: u64| end.min(to).saturating_sub(start.max(from));
        let of_rank = &self.by_rank[rank as usize];
        let waits = &self.meetings.waits;
        let first = of_rank.partition_point(|&at| waits[at].from + waits[at].time <= from);
        let waits: Waits = (of_rank[first..].iter())
            .take_while(|&&at| waits[at].from < to)
            .map(|&at| (at, within(waits[at].from, waits[at].from + waits[at].time)))
            .filter(|&(_, time)| time > 0)
            .collect();
        let calls = &self.timeline.calls[rank as usize];
        let site = |op: u32| self.code.site_of.get(op as usize).copied().unwrap_or(NONE);
        let mut doings: HashMap<Key, u64> = HashMap::new();
        let first = calls.partition_point(|call| call.leave <= from);
        let mut next_wait = 0;
        for at in first..=calls.len() {
            let before = at.checked_sub(1).map(|before| calls[before]);
            let left = before.map_or(0, |call| call.leave);
            let before = before.map_or(NONE, |call| site(call.op));
            let (enter, leave, own) = match calls.get(at) {
                Some(call) => (call.enter, call.leave, site(call.op)),
                None => (u64::MAX, u64::MAX, NONE),
            };
            if left >= to {
                break;
            }
            let computed = within(left, enter);
            if computed > 0 {
                *doings.entry((before, own, false)).or_default() += computed;
            }
            let mut waited = 0;
            while let Some(&(index, time)) = waits.get(next_wait)
                && self.meetings.waits[index].from < leave
            {
                waited += time;
                next_wait += 1;
            }
            let busy = within(enter, leave).saturating_sub(waited);
            if busy > 0 && own != NONE {
                *doings.entry((own, own, true)).or_default() += busy;
            }
        }
        (doings, waits)
    }

    fn activities(&self, costs: &BTreeMap<(Key, u32), Costs>) -> Vec<DelayRow> {
        let mut rows: BTreeMap<Key, (Costs, u32, Costs)> = BTreeMap::new();
        for (&(key, rank), cost) in costs {
            let row = rows.entry(key).or_default();
            row.0.add(*cost);
            if cost.sum() > row.2.sum() {
                (row.1, row.2) = (rank, *cost);
            }
        }
        let names = &self.code.program.origin.names;
        let call = |site: u32| {
            let op = self.code.op_at(site)?;
            Some(crate::code::describe(names, op))
        };
        let mut rows: Vec<DelayRow> = (rows.into_iter())
            .map(|((from, to, is_call), (costs, rank, of_rank))| DelayRow {
                activity: match call(to) {
                    Some(call) if is_call => Activity::Call(call),
                    to => Activity::Computation {
                        from: call(from),
                        to,
                    },
                },
                costs,
                rank,
                of_rank,
            })
            .collect();
        rows.sort_by(|a, b| b.costs.sum().total_cmp(&a.costs.sum()));
        rows
    }
}

fn by_rank(costs: &BTreeMap<(Key, u32), Costs>) -> Vec<(u32, Costs)> {
    let mut ranks: BTreeMap<u32, Costs> = BTreeMap::new();
    for (&(_, rank), cost) in costs {
        ranks.entry(rank).or_default().add(*cost);
    }
    let mut ranks: Vec<(u32, Costs)> = ranks.into_iter().collect();
    ranks.sort_by(|a, b| b.1.sum().total_cmp(&a.1.sum()));
    ranks
}
