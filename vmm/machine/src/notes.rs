//! Notes for the user about a node: refused hypercalls, and instructions that its processor lacks. One note for each kind, with a count.

use nodescope_engine::{GuestVirtual, UndefinedInstruction};
use nodescope_hypercall::HypercallError;
use serde::{Deserialize, Serialize};

use crate::files::FileRefusal;
use crate::undefined;

/// Maximum number of kinds that have a note.
const MOST: usize = 16;

/// Kind of a note. Errors are identified by numbers, since notes are part of a node's saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    /// A call that could not be decoded: its operation, and the number of the error.
    Call(u32, u8),
    /// A piece of a file that was refused, with the number of the refusal.
    File(u8),
    /// An instruction of a program that raised `#UD`, with the number of the feature that the processor lacks; `None` for none.
    Instruction(Option<u16>),
}

fn call_kind(error: &HypercallError) -> u8 {
    match error {
        HypercallError::BadOperation { .. } => 0,
        HypercallError::Reserved { .. } => 1,
        HypercallError::Memory(_) => 2,
        HypercallError::BadLength { .. } => 3,
        HypercallError::BadText { .. } => 4,
        HypercallError::BadFileName { .. } => 5,
        HypercallError::UnknownValue { .. } => 6,
        HypercallError::OtherVersion { .. } => 7,
        HypercallError::Record(_) => 8,
    }
}

fn file_kind(refusal: &FileRefusal) -> u8 {
    match refusal {
        FileRefusal::File { .. } => 0,
        FileRefusal::Node { .. } => 1,
        FileRefusal::Study { .. } => 2,
        FileRefusal::Count { .. } => 3,
        FileRefusal::Folder { .. } => 4,
    }
}

/// Notes of a node, of bounded size however many calls a guest makes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// For each kind, the text of its first error, and the number of errors.
    by_kind: Vec<(Kind, String, u64)>,
    /// Number of errors of kinds without a note.
    left_out: u64,
}

impl Notes {
    /// Records a call that could not be decoded.
    pub(crate) fn bad_call(&mut self, operation: u32, error: &HypercallError) {
        // All operations that do not exist are one kind.
        let operation = match error {
            HypercallError::BadOperation { .. } => u32::MAX,
            _ => operation,
        };
        self.note(Kind::Call(operation, call_kind(error)), error);
    }

    /// Records a refused piece of a file.
    pub(crate) fn refused(&mut self, refusal: &FileRefusal) {
        self.note(Kind::File(file_kind(refusal)), refusal);
    }

    /// Records an instruction of a program that raised `#UD`.
    pub(crate) fn undefined(
        &mut self,
        instruction: &UndefinedInstruction,
        memory: &mut dyn GuestVirtual,
    ) {
        let kind = Kind::Instruction(instruction.feature.as_ref().map(|(number, _)| *number));
        // The search for the program's name takes time.
        let is_new = !self.by_kind.iter().any(|(other, ..)| *other == kind);
        let text = match is_new {
            true => undefined::text(instruction, memory),
            false => String::new(),
        };
        self.note(kind, &text);
    }

    fn note(&mut self, kind: Kind, text: &dyn ToString) {
        if let Some((.., count)) = self.by_kind.iter_mut().find(|(other, ..)| *other == kind) {
            *count += 1;
        } else if self.by_kind.len() < MOST {
            self.by_kind.push((kind, text.to_string(), 1));
        } else {
            self.left_out += 1;
        }
    }

    /// Returns whether guests can have caused these notes: not too many kinds, and counts far below the range of a counter.
    pub(crate) fn are_possible(&self) -> bool {
        let counted = |n: u64| n < 1 << 62;
        self.by_kind.len() <= MOST
            && self.by_kind.iter().all(|(.., count)| counted(*count))
            && counted(self.left_out)
    }

    /// Returns a sentence for each kind, and one for the kinds without a note.
    pub(crate) fn texts(&self) -> Vec<String> {
        let text = |(_, text, count): &(Kind, String, u64)| match count {
            1 => text.clone(),
            _ => format!("{text} (the first of {count} of this kind)"),
        };
        let mut texts: Vec<String> = self.by_kind.iter().map(text).collect();
        if self.left_out > 0 {
            texts.push(format!(
                "{} more hypercalls or instructions, of other kinds, were refused",
                self.left_out
            ));
        }
        texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_once_with_its_number() {
        let mut notes = Notes::default();
        for operation in 0..100_000 {
            notes.bad_call(operation, &HypercallError::BadOperation { operation });
        }
        notes.refused(&FileRefusal::Count { name: "a".into() });
        let texts = notes.texts();
        assert_eq!(texts.len(), 2);
        assert!(
            texts[0].ends_with("(the first of 100000 of this kind)"),
            "{texts:?}"
        );
        for operation in 0..100 {
            notes.bad_call(operation, &HypercallError::OtherVersion { version: 7 });
        }
        let texts = notes.texts();
        assert_eq!(texts.len(), MOST + 1);
        assert_eq!(
            texts[MOST],
            "86 more hypercalls or instructions, of other kinds, were refused"
        );
    }
}
