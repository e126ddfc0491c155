//! Waits, and the moments at which two ranks met before, for the analysis of delays.

use std::collections::HashMap;

use super::critical_path::Way;
use super::{Cause, Interpreter, Target};
use crate::code::NONE;
use crate::result::WaitKind;

/// A wait of a rank for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waited {
    pub rank: u32,
    /// Beginning of the wait, picoseconds.
    pub from: u64,
    /// Length of the wait, picoseconds.
    pub time: u64,
    pub kind: WaitKind,
    /// The rank that was late, and the time at which it entered its call.
    pub late: u32,
    pub late_at: u64,
}

/// A collective of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Together {
    pub communicator: u32,
    pub instance: u32,
    pub enter: u64,
    pub leave: u64,
}

/// Waits and meetings of all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meetings {
    /// Waits in an order in which causes come before effects.
    pub waits: Vec<Waited>,
    /// Messages between two ranks, by the lower and the higher rank: the time of each.
    pub messages: HashMap<(u32, u32), Vec<(u64, u64)>>,
    /// Collectives of each rank.
    pub collectives: Vec<Vec<Together>>,
}

impl Interpreter<'_> {
    /// Notes a wait of a rank that began at `from`, for a rank that entered its call at `late_at`.
    pub(super) fn note_wait(
        &mut self,
        rank: u32,
        (from, time): (u64, u64),
        kind: WaitKind,
        (late, late_at): (u32, u64),
    ) {
        if let Some(meetings) = &mut self.meetings
            && time > 0
        {
            meetings.waits.push(Waited {
                rank,
                from,
                time,
                kind,
                late,
                late_at,
            });
        }
    }

    /// Notes that a message between two ranks is complete for a target. Messages of collectives do not count: the collective
    /// does.
    pub(super) fn meet(&mut self, target: Target, cause: &Cause) {
        let rank = match target {
            Target::Nobody => return,
            Target::Context(context) => {
                let context = &self.contexts[context as usize];
                if context.collective != NONE {
                    return;
                }
                context.rank
            }
            Target::Request { index, .. } => match &self.requests[index as usize] {
                request if request.awaited => request.rank,
                // The rank learns of the message when it waits for it.
                _ => return,
            },
        };
        self.meet_in_call(rank, cause);
    }

    /// Notes that a rank completes a message in its current call.
    pub(super) fn meet_in_call(&mut self, rank: u32, cause: &Cause) {
        // Ranks meet when both are in their calls. The message's own time comes behind that.
        let time = self.contexts[rank as usize].entered.max(cause.at);
        let Some(meetings) = &mut self.meetings else {
            return;
        };
        let by_message = matches!(cause.kind, WaitKind::LateSender | WaitKind::LateReceiver);
        // A message that is sent at once tells its sender nothing of the receiver.
        let alone = cause.kind == WaitKind::LateReceiver && cause.way == Way::Eager;
        if !by_message || alone || cause.rank == rank {
            return;
        }
        let (pair, times) = match rank < cause.rank {
            true => ((rank, cause.rank), (time, cause.at)),
            false => ((cause.rank, rank), (cause.at, time)),
        };
        meetings.messages.entry(pair).or_default().push(times);
    }

    /// Notes that a rank leaves a collective.
    pub(super) fn note_collective(&mut self, rank: u32, collective: Together) {
        if let Some(meetings) = &mut self.meetings
            && let Some(of_rank) = meetings.collectives.get_mut(rank as usize)
        {
            of_rank.push(collective);
        }
    }
}

impl Meetings {
    pub(super) fn new(keep: bool, world: u32) -> Option<Meetings> {
        keep.then(|| Meetings {
            collectives: vec![Vec::new(); world as usize],
            ..Meetings::default()
        })
    }

    /// Puts messages in the order in which [`Meetings::last`] needs them.
    pub fn sort(&mut self) {
        self.messages.values_mut().for_each(|of| of.sort_unstable());
    }

    /// Returns when a waiting rank and the rank for which it waits met last before the wait: the time of the waiting rank and that of the
    /// late one; the beginning of the program if they never met.
    pub fn last(&self, wait: &Waited) -> (u64, u64) {
        let (rank, late) = (wait.rank, wait.late);
        let by_message = self.messages.get(&(rank.min(late), rank.max(late)));
        let own_first = |&(low, high): &(u64, u64)| match rank < late {
            true => (low, high),
            false => (high, low),
        };
        let before = |&(own, other): &(u64, u64)| own <= wait.from && other < wait.late_at;
        let message = by_message.and_then(|list| {
            let end = list.partition_point(|&(low, _)| match rank < late {
                true => low <= wait.from,
                false => low < wait.late_at,
            });
            list[..end].iter().rev().map(own_first).find(before)
        });
        let message = message.unwrap_or((0, 0));
        let own = &self.collectives[rank as usize];
        let end = own.partition_point(|of| of.leave <= wait.from);
        let others = &self.collectives[late as usize];
        let earlier = own[..end].iter().rev();
        // The collective that both were in last; none that ended before their last message counts.
        let collective = (earlier.take_while(|of| of.leave > message.0)).find_map(|of| {
            let end = others.partition_point(|other| other.leave < wait.late_at);
            let other = others[..end].iter().rev();
            let mut other = other.take_while(|other| other.leave > message.1);
            let is_same = |other: &&Together| {
                (other.communicator, other.instance) == (of.communicator, of.instance)
            };
            other.find(is_same).map(|other| (of.leave, other.leave))
        });
        collective.unwrap_or(message)
    }
}
