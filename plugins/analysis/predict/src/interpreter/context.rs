//! Execution contexts: ranks, and non-blocking collectives beside them. A context keeps its waits and their causes.

use super::critical_path::{Origin, Way};
use crate::code::NONE;
use crate::collective::Selected;
use crate::network::ReceiveCost;
use crate::result::WaitKind;

/// The context or request that a completion is reported to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Nobody,
    Context(u32),
    Request { index: u32, generation: u32 },
}

/// Cause of the time at which an operation or a request completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cause {
    /// Time at which the partner entered its call.
    pub(super) at: u64,
    pub(super) rank: u32,
    pub(super) op: u32,
    pub(super) kind: WaitKind,
    pub(super) origin: Origin,
    /// Bytes of the message that ended the wait, and how it came.
    pub(super) bytes: u64,
    pub(super) way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Continues with the instruction at its counter.
    Next,
    /// Computes until its wake-up.
    Computing,
    /// Is about to begin its operation.
    Operate,
    /// Waits for completions.
    Blocked,
    Done,
}

/// An execution context: a rank, or a non-blocking collective beside a rank.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub(super) clock: u64,
    /// Latest completion that the context waits for.
    pub(super) ready: u64,
    /// Processor time after the completions that the context waits for, such as the time of reductions.
    pub(super) cost: u64,
    /// Processor time for frames of messages that are not complete.
    pub(super) disturbed: u64,
    /// Time and processor cost of each completion that the context waits for.
    pub(super) inbox: Vec<(u64, ReceiveCost)>,
    /// Time at which the context entered its current operation.
    pub(super) entered: u64,
    /// Time of the event that wakes the context.
    pub(super) wake: u64,
    pub(super) cause: Option<Cause>,
    pub(super) rank: u32,
    pub(super) counter: u32,
    pub(super) depth: u32,
    pub(super) pending: u32,
    /// Requests of which the context waits for the first ones to complete.
    pub(super) race: Vec<u32>,
    pub(super) op: u32,
    pub(super) phase: Phase,
    /// Last part of the context's critical path.
    pub(super) path: u32,
    // Current collective of the context.
    pub(super) collective: u32,
    pub(super) communicator: u32,
    pub(super) instance: u32,
    pub(super) round: u32,
    pub(super) me: u32,
    pub(super) selected: Selected,
    /// True if no rounds are left, and the collective ends with what is pending.
    pub(super) last: bool,
    /// Target to which a collective beside the rank reports its end.
    pub(super) completes: Target,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) done: bool,
    pub(super) awaited: bool,
    pub(super) generation: u32,
    pub(super) at: u64,
    pub(super) cost: ReceiveCost,
    pub(super) cause: Option<Cause>,
    /// Rank to which the request belongs.
    pub(super) rank: u32,
    /// Rank that the request waits for, for the diagnosis of deadlocks.
    pub(super) peer: u32,
}

pub(super) const IDLE: Request = Request {
    done: true,
    awaited: false,
    generation: 0,
    at: 0,
    cost: ReceiveCost {
        awaited: 0,
        buffered: 0,
        queued: 0,
    },
    cause: None,
    rank: NONE,
    peer: NONE,
};

impl Cause {
    /// Returns a key that orders causes of the same time, whatever the order of interpretation.
    pub(super) fn key(&self) -> (u64, u64, u64, u32, u32) {
        let origin = &self.origin;
        (self.at, origin.time, origin.computed, origin.rank, self.op)
    }
}

impl Context {
    /// Notes that something which the context waits for is complete at `time`.
    pub(super) fn note_completion(&mut self, time: u64, cause: Cause) {
        let later = match &self.cause {
            None => time >= self.ready,
            Some(known) => (time, cause.key()) > (self.ready, known.key()),
        };
        if later {
            self.ready = time;
            self.cause = Some(cause);
        }
    }

    /// Adds the processor time of a completion at `time`, if it costs any.
    pub(super) fn add_cost(&mut self, time: u64, cost: ReceiveCost) {
        if cost != ReceiveCost::default() {
            self.inbox.push((time, cost));
        }
    }

    /// Returns the time when everything that the context waits for has come and been processed, in the order of arrival. A message that
    /// comes during the wait is processed no sooner than if it had come before.
    pub(super) fn processed_at(&mut self) -> u64 {
        let clock = self.processed_by(u64::MAX);
        let end = clock.max(self.ready).saturating_add(self.cost);
        end.saturating_add(self.disturbed)
    }

    /// Returns the time when those completions have been processed that have come by `last`.
    pub(super) fn processed_by(&mut self, last: u64) -> u64 {
        if self.inbox.len() > 1 {
            self.inbox.sort_unstable();
        }
        let come = self.inbox.iter().take_while(|&&(time, _)| time <= last);
        let mut clock = self.clock;
        for (number, &(time, cost)) in come.enumerate() {
            clock = match (time <= self.clock, number) {
                (true, 0) => clock.saturating_add(cost.buffered),
                (true, _) => clock.saturating_add(cost.buffered.min(cost.queued)),
                (false, 0) => (time + cost.awaited).max(clock.saturating_add(cost.buffered)),
                // The result is the same whether the message comes just before or just after the end of another one's processing.
                (false, _) => (clock.saturating_add(cost.queued)).max(time + cost.awaited),
            };
        }
        clock
    }

    pub(super) fn new(rank: u32) -> Context {
        Context {
            clock: 0,
            ready: 0,
            cost: 0,
            disturbed: 0,
            inbox: Vec::new(),
            entered: 0,
            wake: 0,
            cause: None,
            rank,
            counter: 0,
            depth: 0,
            pending: 0,
            race: Vec::new(),
            op: NONE,
            phase: Phase::Next,
            path: NONE,
            collective: NONE,
            communicator: NONE,
            instance: 0,
            round: 0,
            me: 0,
            selected: crate::collective::Algorithm::Linear.into(),
            last: false,
            completes: Target::Nobody,
        }
    }
}
