//! Times of each rank in each call.

use super::Interpreter;
use crate::timeline::{Call, Timeline};

/// Calls so far, if they are kept.
#[derive(Debug)]
pub(super) struct Calls {
    pub keep: bool,
    ranks: Vec<Vec<Call>>,
    /// Waiting of each rank until the end of its last call.
    waited: Vec<u64>,
}

impl Calls {
    pub fn new(keep: bool, world: u32) -> Calls {
        let ranks = if keep { world as usize } else { 0 };
        Calls {
            keep,
            ranks: vec![Vec::new(); ranks],
            waited: vec![0; ranks],
        }
    }
}

impl Interpreter<'_> {
    /// Adds a call that a rank leaves, and that it entered at `enter`.
    pub(super) fn keep_call(&mut self, at: usize, enter: u64) {
        let (op, leave) = (self.contexts[at].op, self.contexts[at].clock);
        let waited = self.accounts[at].wait;
        let wait = waited - self.calls.waited[at];
        self.calls.waited[at] = waited;
        self.calls.ranks[at].push(Call {
            op,
            enter,
            leave,
            wait,
        });
    }

    pub(super) fn timeline(&mut self) -> Option<Timeline> {
        let end = |context: &super::Context| context.clock;
        let main = &self.contexts[..self.world as usize];
        self.calls.keep.then(|| Timeline {
            ends: main.iter().map(end).collect(),
            calls: std::mem::take(&mut self.calls.ranks),
        })
    }
}
