//! Waits for some of several requests, which end with those that complete first.
//!
//! Other requests may complete first here than where the program was traced. What the traced program then does with a request is done with
//! the request that completed here, and the reverse. So a rank's numbers of requests are a permutation of those traced.

use super::{Interpreter, Phase};
use crate::code::Operation;

impl Interpreter<'_> {
    /// Lets a context wait for as many of several requests as completed where the program was traced: a range of the code's lists, with the
    /// `among` requests behind it.
    pub(super) fn wait_for_some(&mut self, context: u32, (start, length): (u32, u32), among: u32) {
        if self.options.matched {
            return self.wait(context, start, length);
        }
        let first = start + length;
        let race: Vec<u32> = (first..first + among)
            .map(|at| self.request(context, self.code.lists[at as usize]))
            .collect();
        let c = &mut self.contexts[context as usize];
        c.race = race;
        c.pending += 1;
        c.phase = Phase::Blocked;
        self.look_at_race(context);
    }

    /// Wakes a context when as many requests have completed as it waits for, as far as that is known.
    pub(super) fn look_at_race(&mut self, context: u32) {
        let c = &self.contexts[context as usize];
        let needs = self.raced(context).len();
        let mut times: Vec<u64> = (c.race.iter())
            .map(|&index| &self.requests[index as usize])
            .filter(|request| request.done)
            .map(|request| request.at)
            .collect();
        times.sort_unstable();
        if let Some(&last) = needs.checked_sub(1).and_then(|at| times.get(at)) {
            self.wake(context, last.max(c.clock));
        }
    }

    /// Ends a wait for some requests with those that have completed. Returns false if too few have completed by now.
    pub(super) fn decide(&mut self, context: u32) -> bool {
        let c = &self.contexts[context as usize];
        let needs = self.raced(context).len();
        let mut done: Vec<(u64, u32)> = (c.race.iter())
            .filter(|&&index| self.requests[index as usize].done)
            .map(|&index| (self.requests[index as usize].at, index))
            .filter(|&(at, _)| at <= c.wake)
            .collect();
        if done.len() < needs {
            return false;
        }
        done.sort_unstable();
        let chosen: Vec<u32> = done[..needs].iter().map(|&(_, index)| index).collect();
        let base = self.code.ranks[context as usize].requests;
        let raced = self.raced(context).to_vec();
        let others: Vec<u32> = (chosen.iter().copied())
            .filter(|&index| {
                raced
                    .iter()
                    .all(|&number| self.request(context, number) != index)
            })
            .collect();
        let lost: Vec<u32> = (raced.iter().copied())
            .filter(|&number| !chosen.contains(&self.request(context, number)))
            .collect();
        for (number, other) in lost.into_iter().zip(others) {
            self.renamed_requests.swap(context, number, other - base);
        }
        let c = &mut self.contexts[context as usize];
        c.race.clear();
        c.pending -= 1;
        for index in chosen {
            self.wait_for(context, index);
        }
        true
    }

    /// Returns the numbers of the requests that completed in a context's current call where the program was traced.
    fn raced(&self, context: u32) -> &[u32] {
        let op = self.contexts[context as usize].op as usize;
        match self.code.operations.get(op) {
            Some(&Operation::WaitSome { start, length, .. }) => {
                &self.code.lists[start as usize..(start + length) as usize]
            }
            _ => &[],
        }
    }
}
