//! Collectives: rounds of messages among the members of a communicator.

use std::collections::{HashMap, VecDeque};

use nodescope_model::{CollectiveKind, Mode};

use super::{Cause, Context, Engine, Phase, Target};
use crate::code::{Code, NONE};
use crate::collective::{Selected, Shape, datatypes, round};
use crate::network::{MOST_COST, Receipt, picoseconds};
use crate::result::{Problem, WaitKind};

/// A communicator's members and the collectives that they are in.
#[derive(Debug)]
pub(super) struct Team {
    pub size: u32,
    /// By world rank: place. Empty for the world, where they are the same.
    places: HashMap<u32, u32>,
    /// How many collectives each member has entered.
    pub entered: Vec<u32>,
    /// Number of the first open instance.
    base: u32,
    open: VecDeque<Instance>,
}

/// One collective of all members.
#[derive(Clone, Debug)]
struct Instance {
    kind: CollectiveKind,
    root: u32,
    bytes: u64,
    selected: Selected,
    /// The first that entered: rank and call.
    first: (u32, u32),
    left: u32,
    /// Last entry: time, rank, call.
    last: (u64, u32, u32),
    root_entry: (u64, u32, u32),
    /// First entry of another than the root.
    other_entry: (u64, u32, u32),
}

impl Team {
    /// Of every communicator of a program.
    pub fn all(code: &Code<'_>) -> Vec<Team> {
        let sizes = code.communicator_sizes();
        (sizes.into_iter().zip(0..))
            .map(|(size, number)| Team {
                size,
                places: code.places_in(number).into_iter().collect(),
                entered: vec![0; size as usize],
                base: 0,
                open: VecDeque::new(),
            })
            .collect()
    }

    fn place(&self, rank: u32) -> Option<u32> {
        if self.places.is_empty() {
            Some(rank)
        } else {
            self.places.get(&rank).copied()
        }
    }

    fn instance(&mut self, number: u32) -> &mut Instance {
        &mut self.open[(number - self.base) as usize]
    }
}

impl Engine<'_> {
    /// Enters a collective; false if it blocks.
    pub(super) fn enter(&mut self, context: u32, index: u32) -> bool {
        let code = self.code;
        let together = &code.together[index as usize];
        let Context {
            rank, op, clock, ..
        } = self.contexts[context as usize];
        let communicator = self.communicator(context, op);
        let place = self.teams.get(communicator as usize).map(|t| t.place(rank));
        let (Some(Some(me)), false) = (place, together.root >= self.world) else {
            // Alone, or not a member: nothing to do with others.
            if together.request != NONE {
                let request = self.request(context, together.request);
                self.requests[request as usize] = super::IDLE;
            }
            return true;
        };
        let team = &mut self.teams[communicator as usize];
        let number = team.entered[me as usize];
        team.entered[me as usize] += 1;
        let entry = (clock, rank, op);
        if (number - team.base) as usize == team.open.len() {
            team.open.push_back(Instance {
                kind: together.kind,
                root: together.root,
                bytes: together.bytes,
                selected: self
                    .cluster
                    .collectives
                    .of(together.kind, team.size, together.bytes),
                first: (rank, op),
                left: 0,
                last: entry,
                root_entry: (0, NONE, NONE),
                other_entry: (u64::MAX, NONE, NONE),
            });
        }
        let instance = team.instance(number);
        if (clock, rank) >= (instance.last.0, instance.last.1) {
            instance.last = entry;
        }
        if together.kind.rooted() && me == together.root {
            instance.root_entry = entry;
        } else if (clock, rank) < (instance.other_entry.0, instance.other_entry.1) {
            instance.other_entry = entry;
        }
        let selected = instance.selected;
        let first = instance.first;
        let what = if instance.kind != together.kind {
            Some(format!(
                "{} and {}",
                instance.kind.name(),
                together.kind.name()
            ))
        } else if instance.root != together.root {
            Some(format!("roots {} and {}", instance.root, together.root))
        } else if instance.bytes != together.bytes && same_bytes(together.kind) {
            Some(format!("{} and {} bytes", instance.bytes, together.bytes))
        } else {
            None
        };
        if let Some(what) = what {
            // Different sizes are an error of the program, but one that can be interpreted.
            self.stopped |= !what.ends_with("bytes");
            let problem = Problem::Mismatch {
                rank,
                at: code.describe(op),
                other: first.0,
                other_at: code.describe(first.1),
                what,
            };
            if self.stopped || self.problems.len() < 100 {
                self.problems.push(problem);
            }
            if self.stopped {
                return false;
            }
        }
        let mut runner = context;
        if together.request != NONE {
            let request = self.request(context, together.request);
            let completes = self.begin(context, request, NONE);
            runner = self.beside(context, completes);
        }
        let c = &mut self.contexts[runner as usize];
        (c.together, c.communicator, c.instance) = (index, communicator, number);
        (c.me, c.round, c.selected, c.last) = (me, 0, selected, false);
        let done = self.advance(runner);
        if runner != context {
            if done {
                self.leave_beside(runner);
            } else {
                self.contexts[runner as usize].phase = Phase::Blocked;
            }
            return true;
        }
        done
    }

    /// Rounds until one blocks; true at the end.
    pub(super) fn advance(&mut self, context: u32) -> bool {
        let code = self.code;
        loop {
            if self.stopped || self.too_long(self.contexts[context as usize].clock) {
                return false;
            }
            let c = &self.contexts[context as usize];
            if c.last {
                self.leave(context);
                return true;
            }
            let together = &code.together[c.together as usize];
            let (communicator, number, me) = (c.communicator, c.instance, c.me);
            let shape = Shape {
                kind: together.kind,
                size: self.teams[communicator as usize].size,
                me,
                root: together.root,
                bytes: together.bytes,
                send_to: &together.send_to,
                receive_from: &together.receive_from,
            };
            let next = round(c.selected, &shape, c.round);
            let (key, tag) = (2 * communicator + 1, number);
            let mut wait = true;
            match next {
                None => self.contexts[context as usize].last = true,
                Some(round) => {
                    let library = self.cluster.collectives.library;
                    let c = &mut self.contexts[context as usize];
                    let made = datatypes(library, shape.kind, c.selected.algorithm, c.round);
                    c.clock += made
                        .saturating_mul(self.cluster.datatype_overhead)
                        .min(MOST_COST);
                    c.round += 1;
                    wait = round.wait;
                    if let Some((from, bytes)) = round.receive {
                        let from = self.member(communicator, from);
                        let target = Target::Context(context);
                        self.receive(context, from, (key, tag), bytes, target);
                    }
                    if let Some((to, bytes)) = round.send {
                        let to = self.member(communicator, to);
                        let target = Target::Context(context);
                        self.send(context, to, (key, tag), bytes, Mode::Standard, target);
                    }
                    if round.reduce > 0 && self.cluster.reduce_per_byte > 0.0 {
                        let time = round.reduce as f64 * self.cluster.reduce_per_byte;
                        let owed = &mut self.contexts[context as usize].owed;
                        *owed = owed.saturating_add(picoseconds(time));
                    }
                }
            }
            if wait {
                if self.contexts[context as usize].pending > 0 {
                    return false;
                }
                if self.takes_in(context) {
                    return false;
                }
                self.unblock(context);
                // What it waited for may come later than what others do first.
                let clock = self.contexts[context as usize].clock;
                if self.overtaken(clock) {
                    self.wake(context, clock);
                    return false;
                }
            }
        }
    }

    fn member(&self, communicator: u32, place: u32) -> u32 {
        let members = &self.code.program.communicators[communicator as usize];
        members.get(place as usize).copied().unwrap_or(place)
    }

    /// The end of a collective for one member.
    fn leave(&mut self, context: u32) {
        let c = &mut self.contexts[context as usize];
        let (rank, op, entered, clock) = (c.rank, c.op, c.entered, c.clock);
        let (communicator, number, me) = (c.communicator, c.instance, c.me);
        c.together = NONE;
        let team = &mut self.teams[communicator as usize];
        let instance = team.instance(number);
        instance.left += 1;
        let (kind, late) = waits_for(instance, me);
        while team
            .open
            .front()
            .is_some_and(|first| first.left == team.size)
        {
            team.open.pop_front();
            team.base += 1;
        }
        if context < self.world
            && let Some((time, late_rank, late_op)) = late
        {
            let waited = time.saturating_sub(entered).min(clock - entered);
            self.waited(rank, op, kind, waited, late_rank, late_op);
        }
    }

    /// A context for a collective that goes on beside its rank.
    fn beside(&mut self, context: u32, completes: Target) -> u32 {
        let main = &self.contexts[context as usize];
        let new = Context {
            clock: main.clock,
            entered: main.clock,
            op: main.op,
            path: main.path,
            completes,
            ..Context::new(main.rank)
        };
        match self.spare.pop() {
            Some(number) => {
                self.contexts[number as usize] = new;
                number
            }
            None => {
                self.contexts.push(new);
                (self.contexts.len() - 1) as u32
            }
        }
    }

    /// A collective beside its rank goes on.
    pub(super) fn resume_beside(&mut self, context: u32) {
        if self.contexts[context as usize].phase != Phase::Blocked {
            return;
        }
        self.unblock(context);
        if self.advance(context) {
            self.leave_beside(context);
        }
    }

    fn leave_beside(&mut self, context: u32) {
        let c = &self.contexts[context as usize];
        let cause = Cause {
            at: c.clock,
            rank: c.rank,
            op: c.op,
            kind: WaitKind::Collective,
            origin: self.origin(context),
        };
        let (target, time) = (c.completes, c.clock);
        self.contexts[context as usize].phase = Phase::Done;
        self.spare.push(context);
        self.complete(target, time, Receipt::default(), cause);
    }
}

/// Whether all members must state the same number of bytes.
fn same_bytes(kind: CollectiveKind) -> bool {
    use CollectiveKind::*;
    matches!(kind, Bcast | Reduce | Allreduce | Scan | Exscan | Alltoall)
}

/// Whom a member may have waited for.
fn waits_for(instance: &Instance, me: u32) -> (WaitKind, Option<(u64, u32, u32)>) {
    use CollectiveKind::*;
    match instance.kind {
        Bcast | Scatter | Scatterv => (
            WaitKind::LateBroadcast,
            (me != instance.root).then_some(instance.root_entry),
        ),
        Reduce | Gather | Gatherv => (
            WaitKind::EarlyReduce,
            (me == instance.root && instance.other_entry.1 != NONE).then_some(instance.other_entry),
        ),
        // A rank of a scan needs only those before it.
        Scan | Exscan => (WaitKind::Collective, None),
        _ => (WaitKind::Collective, Some(instance.last)),
    }
}
