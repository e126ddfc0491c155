//! Prefetchers of a cache.
//!
//! A new prefetcher has a file of its own, and a variant of [`Pattern`] with one arm in each `match` of this file.

mod accurate;
mod adjacent_line;
mod next_line;
mod page;
mod parameters;
mod stream;
mod stride;
#[cfg(test)]
mod testing;
mod up_down;

use std::fmt;
use std::str::FromStr;

pub(crate) use nodescope_plugin_api::{CacheAnswer as Answer, Observed, Prefetcher};
use nodescope_plugin_api::{CacheShape, Declaration, Kind, ModelName};
use serde::{Deserialize, Serialize};

use crate::registered::{RegisteredModels, declaration};
use crate::tags::is_prefetched;
use accurate::{ACCURACY, Accurate};
use page::Pages;

pub use parameters::UnknownPrefetcher;
pub use stream::Stream;
pub use stride::Stride;

/// A prefetcher of a cache. The text form is the name in study files, with parameters as in `stride:entries=64,degree=2`. Parameters that
/// the text leaves out have their default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefetch {
    pattern: Pattern,
    /// Percentage of the wanted lines that must be used; below, the prefetcher stops. 0 for a prefetcher that never stops.
    accuracy: u32,
}

/// What a prefetcher follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pattern {
    /// `next-line`: a miss, or the first use of a prefetched line, brings the next line.
    NextLine,
    /// `adjacent-line`: a miss brings the other line of the aligned pair of lines.
    AdjacentLine,
    /// `up-down`: a miss, or the first use of a prefetched line, brings the next or the previous line, as the access before tells.
    UpDown,
    /// `stride`: an instruction whose accesses are equally far apart brings the lines that it will access.
    Stride(Stride),
    /// `stream`: accesses that go through a page in one direction bring the lines ahead of them.
    Stream(Stream),
    /// A registered model.
    Registered(ModelName),
}

/// Names of all prefetchers.
const NAMES: [&str; 5] = [
    next_line::NAME,
    adjacent_line::NAME,
    up_down::NAME,
    stride::NAME,
    stream::NAME,
];

/// Returns the answer of a cache that has the line as this entry.
#[inline(always)]
pub(crate) fn answer_of_hit(entry: u64) -> Answer {
    if is_prefetched(entry) {
        Answer::PrefetchedHit
    } else {
        Answer::Hit
    }
}

impl Prefetch {
    /// Returns true if the prefetcher follows the data accesses of single instructions.
    pub fn strides(&self) -> bool {
        matches!(self.pattern, Pattern::Stride(_))
    }

    /// Makes the prefetcher of one cache. An error is a sentence with the name of a registered model.
    pub(crate) fn prefetcher(
        self,
        cache: &CacheShape,
        models: &dyn RegisteredModels,
    ) -> Result<Box<dyn Prefetcher>, String> {
        let pages = Pages::new(cache.line_bytes.trailing_zeros());
        let prefetcher: Box<dyn Prefetcher> = match self.pattern {
            Pattern::NextLine => Box::new(next_line::NextLine::new(pages)),
            Pattern::AdjacentLine => Box::new(adjacent_line::AdjacentLine::new(pages)),
            Pattern::UpDown => Box::new(up_down::UpDown::new(pages)),
            Pattern::Stride(stride) => Box::new(stride.prefetcher(pages)),
            Pattern::Stream(stream) => Box::new(stream.prefetcher(pages)),
            Pattern::Registered(name) => models.prefetcher(name, cache)?,
        };
        Ok(match self.accuracy {
            0 => prefetcher,
            least => Box::new(Accurate::new(prefetcher, least)),
        })
    }

    /// Returns the name of the registered model; `None` for a prefetcher of this crate.
    pub fn registered(&self) -> Option<ModelName> {
        match self.pattern {
            Pattern::Registered(name) => Some(name),
            _ => None,
        }
    }
}

/// The prefetchers of this crate. Each also has the parameter `accuracy`.
pub(crate) const DECLARATIONS: [Declaration; 5] = [
    declaration(
        Kind::Prefetcher,
        next_line::NAME,
        "A miss, or the first use of a prefetched line, brings the next line.",
        &[],
    ),
    declaration(
        Kind::Prefetcher,
        adjacent_line::NAME,
        "A miss brings the other line of the aligned pair of lines.",
        &[],
    ),
    declaration(
        Kind::Prefetcher,
        up_down::NAME,
        "A miss, or the first use of a prefetched line, brings the next or the previous line, as the access before tells.",
        &[],
    ),
    declaration(
        Kind::Prefetcher,
        stride::NAME,
        "An instruction whose accesses are equally far apart brings the lines that it will access.",
        &stride::PARAMETERS,
    ),
    declaration(
        Kind::Prefetcher,
        stream::NAME,
        "Accesses that go through a page in one direction bring the lines ahead of them.",
        &stream::PARAMETERS,
    ),
];

impl FromStr for Prefetch {
    type Err = UnknownPrefetcher;

    fn from_str(text: &str) -> Result<Prefetch, UnknownPrefetcher> {
        let registered = text.strip_prefix(ModelName::PREFIX);
        let text = registered.unwrap_or(text);
        let (name, values) = match text.split_once(':') {
            Some((name, values)) => (name, Some(values)),
            None => (text, None),
        };
        let (accuracy, others) = match values {
            Some(values) => parameters::apart(values, ACCURACY.name),
            None => (None, None),
        };
        let (accuracy, values) = (accuracy.as_deref(), others.as_deref());
        let pattern = match name {
            _ if registered.is_some() => parameters::read(name, &[], values)
                .map(|[]| Pattern::Registered(ModelName::new(name))),
            next_line::NAME => parameters::read(name, &[], values).map(|[]| Pattern::NextLine),
            adjacent_line::NAME => {
                parameters::read(name, &[], values).map(|[]| Pattern::AdjacentLine)
            }
            up_down::NAME => parameters::read(name, &[], values).map(|[]| Pattern::UpDown),
            stride::NAME => Stride::read(values).map(Pattern::Stride),
            stream::NAME => Stream::read(values).map(Pattern::Stream),
            _ => Err(UnknownPrefetcher::Name(name.to_owned())),
        }?;
        let [accuracy] = parameters::read(name, &[ACCURACY], accuracy)?;
        Ok(Prefetch { pattern, accuracy })
    }
}

impl fmt::Display for Prefetch {
    /// Writes the name and all parameters, those with their default too but for optional ones.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = match &self.pattern {
            Pattern::NextLine => f.write_str(next_line::NAME).map(|()| ':'),
            Pattern::AdjacentLine => f.write_str(adjacent_line::NAME).map(|()| ':'),
            Pattern::UpDown => f.write_str(up_down::NAME).map(|()| ':'),
            Pattern::Stride(stride) => stride.fmt(f).map(|()| ','),
            Pattern::Stream(stream) => stream.fmt(f).map(|()| ','),
            Pattern::Registered(name) => name.fmt(f).map(|()| ':'),
        }?;
        match self.accuracy {
            0 => Ok(()),
            least => write!(f, "{separator}{}={least}", ACCURACY.name),
        }
    }
}

impl TryFrom<String> for Prefetch {
    type Error = UnknownPrefetcher;

    fn try_from(text: String) -> Result<Prefetch, UnknownPrefetcher> {
        text.parse()
    }
}

impl From<Prefetch> for String {
    fn from(prefetch: Prefetch) -> String {
        prefetch.to_string()
    }
}
