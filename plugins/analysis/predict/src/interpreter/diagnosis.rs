//! Diagnosis of faults: deadlocks, messages that no rank receives, receives that get no message.

use std::collections::BTreeMap;

use super::{Context, Interpreter, Phase, Target};
use crate::code::{ANY, NONE, Operation};
use crate::result::{Blocked, Problem, WaitState};

/// Most ranks outside a deadlock's cycle, kinds of messages without receive, and calls of receives without message that are reported.
const MAX_REPORTED: usize = 10;

impl Interpreter<'_> {
    /// Reports a deadlock if ranks have not ended when no event is left: such ranks can never continue.
    pub(super) fn deadlock(&mut self) {
        let blocked: Vec<u32> = (0..self.world)
            .filter(|&rank| self.contexts[rank as usize].phase != Phase::Done)
            .collect();
        let Some(&first) = blocked.first() else {
            return;
        };
        self.stopped = true;
        let waits: BTreeMap<u32, Option<u32>> = blocked
            .iter()
            .map(|&rank| (rank, self.waits_for(rank)))
            .collect();
        let cycle = blocked
            .iter()
            .find_map(|&start| cycle(&waits, start))
            .unwrap_or_default();
        let tell = |rank: u32| {
            let waits_for = waits.get(&rank).copied().flatten();
            // A program written by hand may name a rank that does not exist, which is as good as one that has ended.
            let ended = |other: u32| {
                other >= self.world || self.contexts[other as usize].phase == Phase::Done
            };
            Blocked {
                rank,
                at: self.code.describe(self.contexts[rank as usize].op),
                waits_for,
                ended: waits_for.is_some_and(ended),
            }
        };
        let time = blocked
            .iter()
            .map(|&rank| self.contexts[rank as usize].clock)
            .max();
        let others = blocked.iter().filter(|rank| !cycle.contains(rank));
        self.now = time.unwrap_or(0);
        self.problems.push(Problem::Deadlock {
            time: self.now,
            blocked: blocked.len() as u32,
            others: others.take(MAX_REPORTED).map(|&rank| tell(rank)).collect(),
            cycle: cycle.into_iter().map(tell).collect(),
        });
        debug_assert!(self.contexts[first as usize].phase != Phase::Done);
    }

    /// Returns the rank that a blocked rank waits for; `None` for any rank, or if unknown.
    fn waits_for(&self, rank: u32) -> Option<u32> {
        let context = &self.contexts[rank as usize];
        if let Some(late) = self.late_in_collective(context) {
            return Some(late);
        }
        let peer = |peer: Option<nodescope_loop_tree::PeerRef>| {
            peer.map(|peer| peer.resolve(rank, self.world))
        };
        match self.code.operations.get(context.op as usize)? {
            Operation::Send { to, .. } => peer(Some(*to)),
            Operation::Receive { from, .. } | Operation::Probe { from, .. } => peer(*from),
            Operation::SendReceive(index) => {
                let both = &self.code.send_receives[*index as usize];
                // The send may be over; then its receiver's queue has no message of it.
                let sends = both.send.map(|(to, ..)| to.resolve(rank, self.world));
                let receives = both.receive.and_then(|(from, ..)| peer(from));
                match sends.filter(|&to| self.has_message(rank, to)) {
                    Some(to) => Some(to),
                    None => receives.or(sends),
                }
            }
            Operation::Wait { start, length } | Operation::WaitSome { start, length, .. } => {
                (*start..start + length)
                    .map(|at| self.request(rank, self.code.lists[at as usize]))
                    .filter(|&index| !self.requests[index as usize].done)
                    .find_map(|index| match self.requests[index as usize].peer {
                        peer if peer < self.world => Some(peer),
                        _ => self.late_in_nonblocking(index),
                    })
            }
            _ => None,
        }
    }

    /// Returns the world rank of the first member that has not entered a context's collective; `None` if all have, or without a collective.
    fn late_in_collective(&self, context: &Context) -> Option<u32> {
        let communicator_state = self.communicators.get(context.communicator as usize)?;
        if context.collective == NONE {
            return None;
        }
        let late =
            (communicator_state.entered.iter()).position(|&entered| entered <= context.instance)?;
        let members = &self.code.program.communicators[context.communicator as usize];
        Some(members.get(late).copied().unwrap_or(late as u32))
    }

    /// Returns the world rank of the first member that has not entered the non-blocking collective of a request; `None` if all have, or if
    /// the request has none.
    fn late_in_nonblocking(&self, request: u32) -> Option<u32> {
        let beside = &self.contexts[self.world as usize..];
        let of = |context: &&Context| {
            matches!(context.completes, Target::Request { index, .. } if index == request)
                && context.phase != Phase::Done
        };
        self.late_in_collective(beside.iter().find(of)?)
    }

    /// Returns whether rank `to` has an unreceived message from rank `from`.
    fn has_message(&self, from: u32, to: u32) -> bool {
        let Some(messages) = self.queues.messages.get(to as usize) else {
            return false;
        };
        let mut at = messages.first;
        while at != NONE {
            let message = self.messages.get(at);
            if message.from == from {
                return true;
            }
            at = message.next;
        }
        false
    }

    /// Reports messages and receives that are left over at the end.
    pub(super) fn leftovers(&mut self) {
        if self.stopped {
            return;
        }
        let mut messages: BTreeMap<(u32, u32, u32, u64, u32), u64> = BTreeMap::new();
        let mut receives: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for rank in 0..self.world {
            let mut at = self.queues.messages[rank as usize].first;
            while at != NONE {
                let message = self.messages.get(at);
                let kind = (message.from, rank, message.tag, message.bytes, message.op);
                *messages.entry(kind).or_default() += 1;
                at = message.next;
            }
            let mut at = self.queues.posted[rank as usize].first;
            while at != NONE {
                let posted = self.posted.get(at);
                debug_assert!(posted.from <= ANY);
                *receives.entry((rank, posted.op)).or_default() += 1;
                at = posted.next;
            }
        }
        for ((from, to, tag, bytes, op), count) in messages.into_iter().take(MAX_REPORTED) {
            let at = self.code.describe(op);
            self.problems.push(Problem::Unreceived {
                from,
                to,
                tag,
                bytes,
                at,
                count,
            });
        }
        for ((rank, op), count) in receives.into_iter().take(MAX_REPORTED) {
            let at = self.code.describe(op);
            self.problems.push(Problem::Unmatched { rank, at, count });
        }
    }

    /// Returns the sums of waits by kind and call sites, greatest first.
    pub(super) fn wait_states(&self) -> Vec<WaitState> {
        let mut sums: Vec<_> = self.waits.iter().collect();
        sums.sort_by_key(|(key, sum)| (u64::MAX - sum.time, **key));
        sums.into_iter()
            .map(|((kind, at, because_of), sum)| WaitState {
                kind: *kind,
                at: self.call_at(*at),
                because_of: self.call_at(*because_of),
                count: sum.count,
                time: sum.time,
                longest: sum.longest,
                late_rank: sum.late_rank,
            })
            .collect()
    }
}

/// Returns a cycle that is reached from a rank, where each rank waits for at most one other; `None` if the chain of waits ends.
fn cycle(waits: &BTreeMap<u32, Option<u32>>, start: u32) -> Option<Vec<u32>> {
    let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
    let mut way = Vec::new();
    let mut at = start;
    loop {
        if let Some(&first) = seen.get(&at) {
            return Some(way.split_off(first));
        }
        seen.insert(at, way.len());
        way.push(at);
        at = (*waits.get(&at)?)?;
    }
}
