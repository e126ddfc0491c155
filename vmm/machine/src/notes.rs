//! Notes for the user about a node's refused hypercalls: one for each kind, with a count.

use std::mem::{Discriminant, discriminant};

use nodescope_hypercall::HypercallError;

use crate::files::FileRefusal;

/// Most kinds that are told.
const MOST: usize = 16;

/// The kinds of notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A call of this operation that made no sense.
    Call(u32, Discriminant<HypercallError>),
    /// A piece of a file that was refused.
    File(Discriminant<FileRefusal>),
}

/// The notes of a node. A guest can make any number of calls; they take no more memory.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// The first text of each kind, and how many there were.
    told: Vec<(Kind, String, u64)>,
    /// Of kinds beyond these.
    left_out: u64,
}

impl Notes {
    /// A call that could not be decoded.
    pub(crate) fn bad_call(&mut self, operation: u32, error: &HypercallError) {
        // Operations that do not exist are of one kind.
        let operation = match error {
            HypercallError::BadOperation { .. } => u32::MAX,
            _ => operation,
        };
        self.note(Kind::Call(operation, discriminant(error)), error);
    }

    /// A piece of a file that was refused.
    pub(crate) fn refused(&mut self, refusal: &FileRefusal) {
        self.note(Kind::File(discriminant(refusal)), refusal);
    }

    fn note(&mut self, kind: Kind, text: &dyn ToString) {
        if let Some((.., count)) = self.told.iter_mut().find(|(other, ..)| *other == kind) {
            *count += 1;
        } else if self.told.len() < MOST {
            self.told.push((kind, text.to_string(), 1));
        } else {
            self.left_out += 1;
        }
    }

    /// A sentence for each kind.
    pub(crate) fn texts(&self) -> Vec<String> {
        let text = |(_, text, count): &(Kind, String, u64)| match count {
            1 => text.clone(),
            _ => format!("{text} (the first of {count} of this kind)"),
        };
        let mut texts: Vec<String> = self.told.iter().map(text).collect();
        if self.left_out > 0 {
            texts.push(format!(
                "{} hypercalls of other kinds made no sense either",
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
            "86 hypercalls of other kinds made no sense either"
        );
    }
}
