//! The way that a core goes behind a branch that was predicted wrongly, until the branch is executed.
//!
//! The wrong way is followed in the code that the recording contains. Mostly it soon meets the right way: behind the body of an `if`, or at
//! the head of the next iteration. From there on the core executes ahead of time what it executes again later, as far as the values are the
//! same: those in registers that neither way has written.

use std::collections::HashMap;

use crate::micro::{Flow, Instruction, NONE, Resource};
use crate::timing::Event;

/// Instructions of the wrong way, and of the right way, among which the two may meet.
const MOST_WRONG: usize = 32;
const MOST_RIGHT: usize = 100;

/// Set of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources(u128);

impl Resources {
    pub(crate) fn has(self, resource: Resource) -> bool {
        self.0 >> resource & 1 != 0
    }

    pub(crate) fn set(&mut self, resource: Resource, member: bool) {
        self.0 = self.0 & !(1 << resource) | u128::from(member) << resource;
    }

    pub(crate) fn add(&mut self, other: Resources) {
        self.0 |= other.0;
    }

    fn add_results(&mut self, instruction: &Instruction) {
        for operation in &instruction.operations {
            for result in operation.results.into_iter().take_while(|r| *r != NONE) {
                self.set(result, true);
            }
        }
    }
}

/// Where the wrong way meets the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongPath {
    /// Instructions of the wrong way before the ways meet.
    pub(crate) wrong: u16,
    /// Instructions of the right way before the ways meet.
    pub(crate) right: u16,
    /// What these instructions write.
    pub(crate) changed: Resources,
}

/// The code of a recording, and where its conditional branches went.
#[derive(Debug, Default)]
pub(crate) struct Code<'a> {
    instructions: HashMap<u64, &'a Instruction>,
    taken: HashMap<u64, bool>,
}

impl<'a> Code<'a> {
    /// Adds an instruction.
    pub(crate) fn add(&mut self, address: u64, instruction: &'a Instruction) {
        self.instructions.insert(address, instruction);
    }

    /// Notes where a branch went.
    pub(crate) fn note(&mut self, event: &Event<'_>) {
        if event.instruction.flow == Flow::Conditional {
            self.taken.insert(event.address, event.taken);
        }
    }

    /// Follows the wrong way behind a conditional branch; `ahead` are the instructions of the right way. `None` if the ways do not meet as
    /// far as they are known.
    pub(crate) fn wrong_path(&self, branch: &Event<'_>, ahead: &[Event<'_>]) -> Option<WrongPath> {
        let instruction = branch.instruction;
        if instruction.flow != Flow::Conditional {
            return None;
        }
        let behind = branch.address.wrapping_add(instruction.length.into());
        let mut at = match branch.taken {
            true => behind,
            false => instruction.target,
        };
        let mut right = &ahead[..ahead.len().min(MOST_RIGHT)];
        let mut changed = Resources::default();
        let mut first = None;
        for wrong in 0..MOST_WRONG {
            // A meeting that comes later on the wrong way counts if it comes earlier by more on the right way.
            if let Some(meeting) = right.iter().position(|event| event.address == at) {
                first = Some((wrong, meeting, changed));
                right = &right[..meeting];
            }
            right = &right[..right.len().saturating_sub(1)];
            let Some(instruction) = self.instructions.get(&at) else {
                break;
            };
            changed.add_results(instruction);
            let taken = match instruction.flow {
                Flow::Next => Some(false),
                Flow::Jump => Some(true),
                Flow::Conditional => self.taken.get(&at).copied(),
                _ => None,
            };
            at = match taken {
                Some(true) => instruction.target,
                Some(false) => at.wrapping_add(instruction.length.into()),
                None => break,
            };
        }
        let (wrong, right, mut changed) = first?;
        for event in &ahead[..right] {
            changed.add_results(event.instruction);
        }
        Some(WrongPath {
            wrong: wrong as u16,
            right: right as u16,
            changed,
        })
    }
}

#[cfg(test)]
mod tests;
