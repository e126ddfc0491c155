//! Syntax of an action: a rank, a name, and words.

use std::path::Path;

use nodescope_hypercall::{Peer, Tag};

use crate::error::ImportError;
use crate::import::lines::wrong;
use crate::import::matching::From;

/// Limit that every rank number must be below, so that a damaged file cannot cause a huge allocation. Real traces have fewer ranks.
pub(super) const MOST_RANKS: u32 = 1 << 24;

/// Sender, receiver and tag as the trace states them.
pub(super) type Key = (i64, i64, i64);

/// SimGrid's numbers of ranks and tags that are none (smpi.h).
pub(super) mod smpi {
    pub(in super::super) const UNDEFINED: f64 = -333.0;
    pub(in super::super) const ANY_TAG: f64 = -444.0;
    pub(in super::super) const ANY_SOURCE: f64 = -555.0;
    pub(in super::super) const PROC_NULL: f64 = -666.0;
    /// Words in lines for which messages must be matched: any source, any tag, unknown size.
    pub(in super::super) const WILD: [&str; 4] = ["-333", "-444", "-555", "-1"];
}

/// Returns the size in bytes of a SimGrid datatype by its number; `None` for numbers that such traces do not use.
fn type_bytes(number: u32) -> Option<u64> {
    Some(match number {
        0 => 8,
        1 => 4,
        2 => 1,
        3 => 2,
        4 => 8,
        5 => 4,
        6 | 8 | 9 | 16 | 17 | 21 => 1,
        7 | 12 | 13 | 20 | 24 => 8,
        10 | 18 | 22 => 2,
        11 | 15 | 19 | 23 => 4,
        14 => 16,
        _ => return None,
    })
}

/// The words of an action, and its position in the file.
pub(super) struct Action<'a> {
    pub(super) file: &'a Path,
    pub(super) line: usize,
    pub(super) name: &'a str,
    pub(super) words: Vec<&'a str>,
    /// True if a size without a type counts doubles.
    pub(super) doubles: bool,
}

impl Action<'_> {
    pub(super) fn wrong(&self, what: impl std::fmt::Display) -> ImportError {
        wrong(self.file, self.line, format!("{}: {what}", self.name))
    }

    pub(super) fn signed(&self, at: usize, what: &str) -> Result<f64, ImportError> {
        let word = self.words.get(at);
        let word = word.ok_or_else(|| self.wrong(format!("lacks its {what}")))?;
        word.parse()
            .map_err(|_| self.wrong(format!("{word:?} is no {what}")))
    }

    pub(super) fn number(&self, at: usize, what: &str) -> Result<f64, ImportError> {
        let number = self.signed(at, what)?;
        let word = self.words[at];
        // Larger numbers are not exact, and no real trace has them.
        match number.is_finite() && (0.0..=9e15).contains(&number) {
            true => Ok(number),
            false => Err(self.wrong(format!("{word} is an impossible {what}"))),
        }
    }

    pub(super) fn rank(&self, at: usize, what: &str) -> Result<u32, ImportError> {
        let number = self.number(at, what)?;
        match number.fract() == 0.0 && number < f64::from(MOST_RANKS) {
            true => Ok(number as u32),
            false => Err(self.wrong(format!("{number} is no {what}"))),
        }
    }

    /// Returns a receiver, which may be `MPI_PROC_NULL`.
    pub(super) fn receiver(&self, at: usize) -> Result<Peer, ImportError> {
        match self.signed(at, "receiver")? {
            smpi::UNDEFINED | smpi::PROC_NULL => Ok(Peer::Null),
            _ => Ok(Peer::Rank(self.rank(at, "receiver")?)),
        }
    }

    /// Returns a sender; `None` for `MPI_PROC_NULL`.
    pub(super) fn sender(&self, at: usize) -> Result<Option<From>, ImportError> {
        Ok(match self.signed(at, "sender")? {
            smpi::UNDEFINED => Some(From::AnyOrNull),
            smpi::ANY_SOURCE => Some(From::Any),
            smpi::PROC_NULL => None,
            _ => Some(From::Rank(self.rank(at, "sender")?)),
        })
    }

    /// Returns a tag, which may be any.
    pub(super) fn tag(&self, at: usize) -> Result<Tag, ImportError> {
        let number = self.signed(at, "tag")?;
        // Older traces have MPI's usual -1.
        if matches!(number, smpi::ANY_TAG | -1.0) {
            return Ok(Tag::Any);
        }
        match number.fract() == 0.0 && (0.0..2_147_483_648.0).contains(&number) {
            true => Ok(Tag::Value(number as u32)),
            false => Err(self.wrong(format!("{number} is no tag"))),
        }
    }

    /// Returns the key by which a wait finds its request, from three words.
    pub(super) fn key(&self) -> Result<Key, ImportError> {
        let part = |at, what| -> Result<i64, ImportError> { Ok(self.signed(at, what)? as i64) };
        Ok((part(0, "sender")?, part(1, "receiver")?, part(2, "tag")?))
    }

    /// Returns the size in bytes of an element of the type in the word at index `at`; that of the default type if there is no such word.
    pub(super) fn element(&self, at: usize) -> Result<u64, ImportError> {
        let Some(word) = self.words.get(at) else {
            return Ok(if self.doubles { 8 } else { 1 });
        };
        let bytes = word.parse().ok().and_then(type_bytes);
        bytes.ok_or_else(|| self.wrong(format!("{word:?} is a type that is not known")))
    }

    /// Returns the total bytes of the elements whose number is in the word `count` and whose type is in the word `kind`.
    pub(super) fn bytes(&self, count: usize, kind: usize) -> Result<u64, ImportError> {
        Ok(self.number(count, "count")? as u64 * self.element(kind)?)
    }
}
