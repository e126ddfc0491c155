//! The timeline of calls: every MPI call of a program with its times, for the page's interactive timeline.
//!
//! A page cannot draw any number of calls. Beyond [`MOST_CALLS`], short calls that follow each other are merged, with their sums.

mod encode;
mod html;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nodescope_hypercall::{Function, Peer};
use nodescope_trace::{FunctionProfile, Message, MpiCall, Site, SiteNames, Wait};

use crate::mpi::ProgramReport;

pub(crate) use html::{STYLE, script, write};

/// Number of calls and messages that a page shows at most: of more calls, short ones are merged.
const MOST_CALLS: usize = 2_000_000;
/// Number of lanes that a timeline has at most. With more ranks, every k-th rank has a lane.
const MOST_LANES: usize = 512;
/// Number of functions with call sites that are told apart. A damaged trace may have any number.
const MOST_KINDS: usize = 2_000;
/// Number of parts of the run within which short calls are merged at first. Calls that are longer than a part are not merged. Where so
/// many parts are too many, parts become longer.
const PARTS: u64 = 20_000;

/// The calls of an MPI program, by lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallTimeline {
    pub(crate) from_ps: u64,
    pub(crate) to_ps: u64,
    /// Every k-th rank has lanes.
    rank_step: usize,
    ranks: BTreeSet<u32>,
    lanes: Vec<Lane>,
    /// Index of each lane by rank and thread id.
    index: HashMap<(u32, u32), usize>,
    /// Number of calls without a lane, because there were more threads than lanes.
    undrawn: u64,
    /// Duration below which calls are merged, picoseconds; 0: no calls are merged.
    merged_below_ps: u64,
    /// Number of calls in the lanes, at most.
    count: usize,
    /// Number of calls at which short ones are merged.
    limit: usize,
    /// Functions with their call sites, in the order in which they appeared.
    kinds: Vec<(Function, Site)>,
    kind_index: HashMap<(Function, Site), u32>,
    messages: Vec<Message>,
    pub(crate) names: SiteNames,
}

/// The calls of one thread of a rank, in the order of their times. They do not overlap.
#[derive(Clone, Debug, Default)]
struct Lane {
    rank: u32,
    /// Number of the thread among the rank's threads that called MPI, from 0.
    thread: usize,
    calls: Vec<TimedCall>,
    /// Short calls of the current part of the run, by kind; they are not in `calls` yet.
    merging: BTreeMap<u32, TimedCall>,
}

/// A call, a run of polls, or several merged calls. Times are picoseconds of virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TimedCall {
    entry: u64,
    exit: u64,
    /// Time inside MPI: less than the extent for a run of polls.
    inside: u64,
    /// Time that the call waited for other ranks.
    waited: u64,
    /// Index in [`CallTimeline::kinds`].
    kind: u32,
    /// Number of calls; polls count each.
    calls: u64,
    sent_bytes: u64,
    received_bytes: u64,
    /// Rank to which the call sent, or its root.
    to: Option<u32>,
    /// Rank from which the call received.
    from: Option<u32>,
}

impl CallTimeline {
    /// Returns the timeline of a program, still without calls.
    pub(crate) fn of(program: &ProgramReport) -> CallTimeline {
        let rank_step = program.ranks.len().div_ceil(MOST_LANES).max(1);
        let ranks: BTreeSet<u32> = (program.ranks.iter().step_by(rank_step))
            .map(|row| row.rank)
            .collect();
        CallTimeline {
            from_ps: program.from_ps,
            to_ps: program.to_ps,
            rank_step,
            ranks,
            limit: MOST_CALLS,
            ..CallTimeline::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty() || self.to_ps <= self.from_ps
    }

    /// Adds a call. Calls must come in the order of the trace.
    pub(crate) fn add(&mut self, call: &MpiCall) {
        let record = &call.record;
        let Some(rank) = record.rank.rank().filter(|rank| self.ranks.contains(rank)) else {
            return;
        };
        let Some(lane) = self.lane(rank, record.thread.tid) else {
            self.undrawn = self.undrawn.saturating_add(record.calls);
            return;
        };
        let site = match self.kinds.len() < MOST_KINDS {
            true => Site::of(record),
            false => Site::default(),
        };
        let kind = (record.function, site);
        let next = self.kinds.len() as u32;
        let kind = *self.kind_index.entry(kind).or_insert_with(|| {
            self.kinds.push(kind);
            next
        });
        let mut sums = FunctionProfile::default();
        sums.add_call(call);
        let source = match record.source {
            Peer::Any => record.completions.first().map_or(Peer::Any, |of| of.source),
            source => source,
        };
        let timed = TimedCall {
            entry: call.entry.time,
            exit: call.exit.time.max(call.entry.time),
            inside: call.time_inside,
            waited: 0,
            kind,
            calls: record.calls,
            sent_bytes: sums.send_bytes,
            received_bytes: sums.receive_bytes,
            to: record.destination.rank().or(record.root.rank()),
            from: source.rank(),
        };
        self.lanes[lane].add(timed, self.merged_below_ps, self.from_ps);
        self.count += 1;
        if self.count > self.limit {
            self.merge_more();
        }
    }

    /// Merges short calls until half of the room is free, or until no more can be merged.
    fn merge_more(&mut self) {
        let span = self.to_ps.saturating_sub(self.from_ps);
        while self.count > self.limit / 2 && self.merged_below_ps <= span {
            let longer = self.merged_below_ps.saturating_mul(2);
            self.merged_below_ps = longer.max(span / PARTS).max(1);
            for lane in &mut self.lanes {
                lane.merge_below(self.merged_below_ps, self.from_ps);
            }
            self.count = self.lanes.iter().map(|lane| lane.calls.len()).sum();
        }
        self.limit = self.limit.max(2 * self.count);
    }

    /// Returns the index of a thread's lane; `None` if there are too many lanes for another one.
    fn lane(&mut self, rank: u32, tid: u32) -> Option<usize> {
        if let Some(&lane) = self.index.get(&(rank, tid)) {
            return Some(lane);
        }
        if self.lanes.len() >= MOST_LANES {
            return None;
        }
        let thread = self.lanes.iter().filter(|lane| lane.rank == rank).count();
        self.lanes.push(Lane {
            rank,
            thread,
            ..Lane::default()
        });
        let lane = self.lanes.len() - 1;
        self.index.insert((rank, tid), lane);
        Some(lane)
    }

    /// Adds the time that a call waited. The call must have been added.
    pub(crate) fn add_wait(&mut self, wait: &Wait) {
        let kinds = &self.kinds;
        let is_of = |call: &TimedCall| {
            (kinds.get(call.kind as usize)).is_some_and(|(function, _)| *function == wait.function)
        };
        for lane in self.lanes.iter_mut().filter(|lane| lane.rank == wait.rank) {
            if let Some(call) = lane.at(wait.from, self.merged_below_ps, is_of) {
                call.waited = call.waited.saturating_add(wait.time).min(call.inside);
                return;
            }
        }
    }

    /// Adds a message between ranks of this program.
    pub(crate) fn add_message(&mut self, message: Message) {
        let has_lanes = [message.from, message.to]
            .iter()
            .all(|rank| self.ranks.contains(rank));
        if has_lanes && self.messages.len() < MOST_CALLS {
            self.messages.push(message);
        }
    }

    /// Ends the timeline after its last call. Call sites have these names.
    pub(crate) fn finish(&mut self, names: &SiteNames) {
        self.names.clone_from(names);
        self.lanes.iter_mut().for_each(Lane::flush);
        self.lanes.sort_by_key(|lane| (lane.rank, lane.thread));
        self.index.clear();
    }
}

impl Lane {
    /// Adds a call that is later than all others of the lane. Calls shorter than `merged_below` are merged.
    fn add(&mut self, mut call: TimedCall, merged_below: u64, run_from: u64) {
        // A damaged trace may say that calls of a thread overlap.
        call.entry = call.entry.max(self.end());
        call.exit = call.exit.max(call.entry);
        call.inside = call.inside.min(call.exit - call.entry);
        if call.exit - call.entry >= merged_below {
            self.flush();
            return self.calls.push(call);
        }
        let part = |time: u64| time.saturating_sub(run_from) / merged_below;
        let first = self.merging.values().map(|call| call.entry).min();
        if first.is_some_and(|first| part(first) != part(call.entry)) {
            self.flush();
        }
        match self.merging.get_mut(&call.kind) {
            Some(sum) => sum.merge(&call),
            None => _ = self.merging.insert(call.kind, call),
        }
    }

    /// Returns the latest end of the lane's calls.
    fn end(&self) -> u64 {
        let merging = self.merging.values().map(|call| call.exit).max();
        let last = self.calls.last().map(|call| call.exit);
        merging.or(last).unwrap_or(0)
    }

    /// Moves the merged calls to the others, one after the other from the beginning of the first.
    fn flush(&mut self) {
        let first = self.merging.values().map(|call| call.entry).min();
        let mut at = first.unwrap_or(0);
        for (_, mut call) in std::mem::take(&mut self.merging) {
            call.entry = at;
            call.exit = at + call.inside;
            at = call.exit;
            self.calls.push(call);
        }
    }

    /// Merges calls that are shorter than `merged_below`, which were not merged before, or within shorter parts.
    fn merge_below(&mut self, merged_below: u64, run_from: u64) {
        self.flush();
        for call in std::mem::take(&mut self.calls) {
            self.add(call, merged_below, run_from);
        }
        self.flush();
    }

    /// Returns the wanted call that began at a time. Where calls shorter than `merged_below` are merged, the wanted call nearest to the
    /// time is returned: merged calls are at most so far from the places of their parts.
    fn at(
        &mut self,
        time: u64,
        merged_below: u64,
        is_wanted: impl Fn(&TimedCall) -> bool,
    ) -> Option<&mut TimedCall> {
        if self.merging.values().any(|call| call.entry <= time) {
            return self.merging.values_mut().find(|call| is_wanted(call));
        }
        let earliest = time.saturating_sub(merged_below);
        let latest = time.saturating_add(merged_below);
        let begin = self.calls.partition_point(|call| call.entry < earliest);
        let near = self.calls[begin..].iter_mut();
        let near = near.take_while(|call| call.entry <= latest);
        let wanted = near.filter(|call| is_wanted(call));
        wanted.min_by_key(|call| call.entry.abs_diff(time))
    }
}

impl TimedCall {
    /// Adds a later call of the same kind.
    fn merge(&mut self, call: &TimedCall) {
        self.exit = call.exit;
        self.inside = self.inside.saturating_add(call.inside);
        self.calls = self.calls.saturating_add(call.calls);
        self.sent_bytes = self.sent_bytes.saturating_add(call.sent_bytes);
        self.received_bytes = self.received_bytes.saturating_add(call.received_bytes);
        // Calls with several partners have none in common.
        self.to = self.to.filter(|to| call.to == Some(*to));
        self.from = self.from.filter(|from| call.from == Some(*from));
    }
}
