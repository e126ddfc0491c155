//! Collectives: rounds of messages among the members of a communicator.

use std::collections::{HashMap, VecDeque};

use nodescope_loop_tree::{CollectiveKind, Mode};

use super::critical_path::Way;
use super::meetings::Together;
use super::renamed::Accepted;
use super::{Cause, Context, Interpreter, Phase, Target};
use crate::code::{Code, NONE};
use crate::collective::{Selected, Shape, datatypes, round};
use crate::network::{MOST_COST, ReceiveCost, picoseconds};
use crate::result::{Problem, WaitKind};

/// A communicator's members and the collectives that they are in.
#[derive(Debug)]
pub(super) struct Communicator {
    pub size: u32,
    /// Rank in the communicator by world rank; empty for the world and its copies, where both ranks are the same.
    local_ranks: HashMap<u32, u32>,
    /// Number of collectives that each member has entered.
    pub entered: Vec<u32>,
    /// Number of the first open instance.
    base: u32,
    open: VecDeque<Instance>,
}

/// State of a collective that its members enter.
#[derive(Clone, Debug)]
struct Instance {
    kind: CollectiveKind,
    root: u32,
    bytes: u64,
    selected: Selected,
    /// First member that was interpreted: rank and operation.
    first: (u32, u32),
    left: u32,
    /// Latest entry: time, rank, operation.
    last: (u64, u32, u32),
    root_entry: (u64, u32, u32),
    /// Earliest entry of a member other than the root.
    other_entry: (u64, u32, u32),
}

impl Communicator {
    /// Returns the state of every communicator of a program.
    pub fn all(code: &Code<'_>) -> Vec<Communicator> {
        let sizes = code.communicator_sizes();
        (sizes.into_iter().zip(0..))
            .map(|(size, number)| Communicator {
                size,
                local_ranks: code.ranks_in(number).into_iter().collect(),
                entered: vec![0; size as usize],
                base: 0,
                open: VecDeque::new(),
            })
            .collect()
    }

    fn local_rank(&self, rank: u32) -> Option<u32> {
        if self.local_ranks.is_empty() {
            Some(rank)
        } else {
            self.local_ranks.get(&rank).copied()
        }
    }

    fn instance(&mut self, number: u32) -> &mut Instance {
        &mut self.open[(number - self.base) as usize]
    }
}

impl Interpreter<'_> {
    /// Enters a collective. Returns false if the collective blocks.
    pub(super) fn enter(&mut self, context: u32, index: u32) -> bool {
        let code = self.code;
        let collective = &code.collectives[index as usize];
        let Context {
            rank, op, clock, ..
        } = self.contexts[context as usize];
        let communicator = self.communicator(context, op);
        let members = self.communicators.get(communicator as usize);
        let size = members.map_or(0, |members| members.size);
        let local = members.and_then(|members| members.local_rank(rank));
        let (Some(me), false) = (local, collective.root >= size) else {
            // The rank is the only member, or the rank or the root is not a member, so other ranks are not concerned.
            if collective.request != NONE {
                let request = self.request(context, collective.request);
                self.requests[request as usize] = super::IDLE;
            }
            return true;
        };
        let communicator_state = &mut self.communicators[communicator as usize];
        let number = communicator_state.entered[me as usize];
        communicator_state.entered[me as usize] += 1;
        let entry = (clock, rank, op);
        if (number - communicator_state.base) as usize == communicator_state.open.len() {
            communicator_state.open.push_back(Instance {
                kind: collective.kind,
                root: collective.root,
                bytes: collective.bytes,
                selected: self.cluster.collectives.of(
                    collective.kind,
                    communicator_state.size,
                    collective.bytes,
                    collective.request == NONE,
                ),
                first: (rank, op),
                left: 0,
                last: entry,
                root_entry: (0, NONE, NONE),
                other_entry: (u64::MAX, NONE, NONE),
            });
        }
        let instance = communicator_state.instance(number);
        if (clock, rank) >= (instance.last.0, instance.last.1) {
            instance.last = entry;
        }
        if collective.kind.rooted() && me == collective.root {
            instance.root_entry = entry;
        } else if (clock, rank) < (instance.other_entry.0, instance.other_entry.1) {
            instance.other_entry = entry;
        }
        let selected = instance.selected;
        let first = instance.first;
        let what = if instance.kind != collective.kind {
            Some(format!(
                "{} and {}",
                instance.kind.name(),
                collective.kind.name()
            ))
        } else if instance.root != collective.root {
            Some(format!("roots {} and {}", instance.root, collective.root))
        } else if instance.bytes != collective.bytes && same_bytes(collective.kind) {
            Some(format!("{} and {} bytes", instance.bytes, collective.bytes))
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
        if collective.request != NONE {
            let request = self.request(context, collective.request);
            let completes = self.begin(context, request, NONE);
            runner = self.start_nonblocking(context, completes);
        }
        let c = &mut self.contexts[runner as usize];
        (c.collective, c.communicator, c.instance) = (index, communicator, number);
        (c.me, c.round, c.selected, c.last) = (me, 0, selected, false);
        let done = self.advance(runner);
        if runner != context {
            // The call sends the first messages.
            self.contexts[context as usize].clock = self.contexts[runner as usize].clock;
            if done {
                self.complete_nonblocking(runner);
            } else {
                self.contexts[runner as usize].phase = Phase::Blocked;
            }
            return true;
        }
        done
    }

    /// Executes rounds until one blocks. Returns true at the end of the collective.
    pub(super) fn advance(&mut self, context: u32) -> bool {
        let code = self.code;
        loop {
            if self.stopped || self.exceeds_limit(self.contexts[context as usize].clock) {
                return false;
            }
            let c = &self.contexts[context as usize];
            if c.last {
                self.leave(context);
                return true;
            }
            let collective = &code.collectives[c.collective as usize];
            let (communicator, number, me) = (c.communicator, c.instance, c.me);
            let shape = Shape {
                kind: collective.kind,
                size: self.communicators[communicator as usize].size,
                me,
                root: collective.root,
                bytes: collective.bytes,
                send_to: &collective.send_to,
                receive_from: &collective.receive_from,
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
                        let from = self.world_rank(communicator, from);
                        let target = Target::Context(context);
                        let from = Accepted {
                            peer: from,
                            traced: NONE,
                        };
                        self.receive(context, from, (key, tag), bytes, target);
                    }
                    if let Some((to, bytes)) = round.send {
                        let to = self.world_rank(communicator, to);
                        let target = Target::Context(context);
                        self.send(context, to, (key, tag), bytes, Mode::Standard, target);
                    }
                    if round.reduce > 0 && self.cluster.reduce_per_byte > 0.0 {
                        let time = round.reduce as f64 * self.cluster.reduce_per_byte;
                        let cost = &mut self.contexts[context as usize].cost;
                        *cost = cost.saturating_add(picoseconds(time));
                    }
                }
            }
            if wait {
                if self.contexts[context as usize].pending > 0 {
                    return false;
                }
                if self.process_unexpected(context) {
                    return false;
                }
                self.unblock(context);
                // The end of this wait may be later than events of other ranks. A call that moves a collective on is not left meanwhile.
                let Context { clock, rank, .. } = self.contexts[context as usize];
                let free = context < self.world || self.in_mpi(rank);
                if free && self.has_earlier_event(clock) {
                    self.wake(context, clock);
                    return false;
                }
            }
        }
    }

    fn world_rank(&self, communicator: u32, local: u32) -> u32 {
        let members = &self.code.program.communicators[communicator as usize];
        members.get(local as usize).copied().unwrap_or(local)
    }

    /// Ends a collective for one member.
    fn leave(&mut self, context: u32) {
        let c = &mut self.contexts[context as usize];
        let (rank, op, entered, clock) = (c.rank, c.op, c.entered, c.clock);
        let (communicator, number, me) = (c.communicator, c.instance, c.me);
        c.collective = NONE;
        let communicator_state = &mut self.communicators[communicator as usize];
        let instance = communicator_state.instance(number);
        instance.left += 1;
        let (kind, late) = waits_for(instance, me);
        while communicator_state
            .open
            .front()
            .is_some_and(|first| first.left == communicator_state.size)
        {
            communicator_state.open.pop_front();
            communicator_state.base += 1;
        }
        if context < self.world && self.meetings.is_some() {
            let together = Together {
                communicator,
                instance: number,
                enter: entered,
                leave: clock,
            };
            self.note_collective(rank, together);
        }
        if context < self.world
            && let Some((time, late_rank, late_op)) = late
        {
            let waited = time.saturating_sub(entered).min(clock - entered);
            self.note_wait(rank, (entered, waited), kind, (late_rank, time));
            self.account_wait(rank, op, kind, waited, late_rank, late_op);
        }
    }

    /// Returns a new context for a collective that continues beside its rank.
    fn start_nonblocking(&mut self, context: u32, completes: Target) -> u32 {
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

    /// Continues a non-blocking collective, or lets it wait until its rank is in MPI.
    pub(super) fn resume_nonblocking(&mut self, context: u32) {
        let Context {
            rank,
            phase,
            pending,
            ..
        } = self.contexts[context as usize];
        if phase != Phase::Blocked || pending > 0 {
            return;
        }
        if self.in_mpi(rank) {
            self.move_on(context);
        } else {
            self.deferred.entry(rank).or_default().push(context);
        }
    }

    /// Continues a non-blocking collective in a call of its rank, whose processor does the work.
    pub(super) fn move_on_in_call(&mut self, context: u32, rank: u32) {
        let c = &self.contexts[context as usize];
        if c.phase != Phase::Blocked || c.pending > 0 {
            return;
        }
        let now = self.contexts[rank as usize].clock;
        let c = &mut self.contexts[context as usize];
        c.clock = c.clock.max(now);
        self.move_on(context);
        self.contexts[rank as usize].clock = self.contexts[context as usize].clock;
    }

    fn move_on(&mut self, context: u32) {
        self.unblock(context);
        if self.advance(context) {
            self.complete_nonblocking(context);
        }
    }

    fn complete_nonblocking(&mut self, context: u32) {
        let c = &self.contexts[context as usize];
        let cause = Cause {
            at: c.clock,
            rank: c.rank,
            op: c.op,
            kind: WaitKind::Collective,
            origin: self.origin(context),
            bytes: 0,
            way: Way::Nothing,
        };
        let (target, time) = (c.completes, c.clock);
        self.contexts[context as usize].phase = Phase::Done;
        self.spare.push(context);
        self.complete(target, time, ReceiveCost::default(), cause);
    }
}

/// Returns whether all members must state the same number of bytes.
fn same_bytes(kind: CollectiveKind) -> bool {
    use CollectiveKind::*;
    matches!(kind, Bcast | Reduce | Allreduce | Scan | Exscan | Alltoall)
}

/// Returns the kind of wait, and the entry (time, rank, operation) for which a member may have waited.
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
