//! Calls of several threads of a rank that overlap in time.
//!
//! A rank's operations are one sequence. A call that blocks while another thread calls would end before or after that call on each rank by
//! chance, and ranks would wait for each other in a circle. So such a call starts where it began, as a request, and is waited for where it
//! ended. Every operation then has in the sequence the place that its moment has in the trace. What happened in the trace can happen in the
//! sequence, so that no new circle arises.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::Entry;
use super::rank::RankState;
use crate::op::{Action, Mode, Op};

/// Number of calls that are remembered: of so many calls one may overlap.
const REMEMBERED: usize = 64;

/// The latest calls of a rank, in the order of their ends.
#[derive(Debug, Default)]
pub(super) struct Latest {
    /// Number of entries up to a call's last one, and the time at which the call ended, picoseconds.
    calls: VecDeque<(usize, u64)>,
}

impl Latest {
    /// Notes a call that ended, with the number of entries up to its last one.
    pub(super) fn add(&mut self, entries: usize, end: u64) {
        if self.calls.len() == REMEMBERED {
            self.calls.pop_front();
        }
        self.calls.push_back((entries, end));
    }

    /// Forgets the calls whose entries are dropped.
    pub(super) fn clear(&mut self) {
        self.calls.clear();
    }

    /// Returns the number of entries of those calls that had ended at a time.
    fn ended_by(&self, time: u64, entries: usize) -> usize {
        let mut ended = entries;
        let mut before = self.calls.iter().rev().peekable();
        while let Some(&(_, end)) = before.next() {
            if end <= time {
                break;
            }
            ended = before.peek().map_or(0, |&&(entries, _)| entries);
        }
        ended
    }

    /// Takes into account that an entry is added at a place.
    fn insert(&mut self, at: usize) {
        for (entries, _) in &mut self.calls {
            *entries += usize::from(*entries > at);
        }
    }
}

/// Splits a call that began while calls of other threads were under way, whose only entry is the last one. A call without a start and a
/// wait stays where it is.
pub(super) fn split(state: &mut RankState, began: u64) {
    let last = state.entries.len() - 1;
    let at = state.latest.ended_by(began, last);
    if at >= last {
        return;
    }
    let op = Op::clone(&state.entries[last].op);
    // The other threads' calls may have used and freed a number in between.
    let used: BTreeSet<u32> = (state.entries[at..last].iter())
        .filter_map(|entry| request(&entry.op.action))
        .collect();
    let mut slots = Vec::new();
    while slots.iter().filter(|slot| !used.contains(*slot)).count() < 2 {
        slots.push(state.requests.slot());
    }
    state.requests.end_slots(&slots);
    slots.retain(|slot| !used.contains(slot));
    let starts = started(&op.action, [slots[0], slots[1]]);
    if starts.is_empty() {
        return;
    }
    slots.truncate(starts.len());
    state.entries[last].op = Arc::new(Op {
        action: Action::wait(slots),
        ..op.clone()
    });
    // The other threads' call began at about the same time.
    let mut burst = std::mem::take(&mut state.entries[at].burst);
    for (number, action) in starts.into_iter().enumerate() {
        let entry = Entry {
            burst: std::mem::take(&mut burst),
            op: Arc::new(Op {
                action,
                more: true,
                ..op.clone()
            }),
            opaque: None,
        };
        state.insert(at + number, entry, began);
        state.latest.insert(at + number);
    }
}

fn request(action: &Action) -> Option<u32> {
    match action {
        Action::Send { request, .. }
        | Action::Receive { request, .. }
        | Action::OneSided { request, .. } => *request,
        Action::Collective(collective) => collective.request,
        _ => None,
    }
}

/// Returns the starts of a blocking operation, with one or both of the given request numbers; nothing if there is no such start.
fn started(action: &Action, [slot, other]: [u32; 2]) -> Vec<Action> {
    let mut action = action.clone();
    match &mut action {
        Action::Send { request, .. } | Action::Receive { request, .. } if request.is_none() => {
            *request = Some(slot);
        }
        Action::Collective(collective) if collective.request.is_none() => {
            collective.request = Some(slot);
        }
        Action::SendReceive {
            send: Some((to, send_tag, bytes)),
            receive: Some((from, tag, room)),
        } => {
            let receive = Action::Receive {
                from: *from,
                tag: *tag,
                room: *room,
                request: Some(slot),
            };
            let send = Action::Send {
                to: *to,
                tag: *send_tag,
                bytes: *bytes,
                mode: Mode::Standard,
                request: Some(other),
            };
            return vec![receive, send];
        }
        _ => return Vec::new(),
    }
    vec![action]
}
