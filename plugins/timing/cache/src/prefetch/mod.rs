//! Prefetchers of a cache.
//!
//! A new prefetcher has a file of its own, and a variant of [`Prefetch`] with one arm in each `match` of this file.

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

use nodescope_plugin_api::{Access, Site};
use serde::{Deserialize, Serialize};

use crate::tags::is_prefetched;
use page::Pages;

pub use parameters::UnknownPrefetcher;
pub use stream::Stream;
pub use stride::Stride;

/// A prefetcher of a cache. The text form is the name in study files, with parameters as in `stride:entries=64,degree=2`. Parameters that
/// the text leaves out have their default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Prefetch {
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
}

/// Names of all prefetchers.
const NAMES: [&str; 5] = [
    next_line::NAME,
    adjacent_line::NAME,
    up_down::NAME,
    stride::NAME,
    stream::NAME,
];

/// Answer of a cache to an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The cache had the line.
    Hit,
    /// The cache had the line because of a prefetch, and this is the first access to the line.
    PrefetchedHit,
    /// The cache did not have the line.
    Miss,
}

impl Answer {
    /// Returns the answer of a cache that has the line as this entry.
    #[inline(always)]
    pub(crate) fn of_hit(entry: u64) -> Answer {
        if is_prefetched(entry) {
            Answer::PrefetchedHit
        } else {
            Answer::Hit
        }
    }
}

/// An access to a cache as its prefetchers see the access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    /// Number of the line.
    pub(crate) line: u64,
    /// The instruction that makes the access.
    pub(crate) site: Site,
    pub(crate) access: Access,
    pub(crate) answer: Answer,
}

/// Prefetcher of one cache.
pub(crate) trait Prefetcher: Send + fmt::Debug {
    /// Takes note of an access of the cache, and pushes the lines to bring in to `wanted`, the most urgent first. Lines that the cache has
    /// are left out by the caller. A prefetcher may not depend on hits, except of prefetched lines, unless [`Prefetcher::sees_hits`] says
    /// so.
    fn observe(&mut self, access: &Observed, wanted: &mut Vec<u64>);
    /// Returns true if the prefetcher must see every hit, so that no L0 filter cache may answer for the first level.
    fn sees_hits(&self) -> bool {
        false
    }
}

impl Prefetch {
    /// Returns [`Prefetcher::sees_hits`] of the prefetcher.
    pub(crate) fn sees_hits(&self) -> bool {
        self.prefetcher(6).sees_hits()
    }

    /// Makes the prefetcher of one cache with lines of `1 << line_shift` bytes.
    pub(crate) fn prefetcher(self, line_shift: u32) -> Box<dyn Prefetcher> {
        let pages = Pages::new(line_shift);
        match self {
            Prefetch::NextLine => Box::new(next_line::NextLine::new(pages)),
            Prefetch::AdjacentLine => Box::new(adjacent_line::AdjacentLine::new(pages)),
            Prefetch::UpDown => Box::new(up_down::UpDown::new(pages)),
            Prefetch::Stride(stride) => Box::new(stride.prefetcher(pages)),
            Prefetch::Stream(stream) => Box::new(stream.prefetcher(pages)),
        }
    }
}

impl FromStr for Prefetch {
    type Err = UnknownPrefetcher;

    fn from_str(text: &str) -> Result<Prefetch, UnknownPrefetcher> {
        let (name, values) = match text.split_once(':') {
            Some((name, values)) => (name, Some(values)),
            None => (text, None),
        };
        match name {
            next_line::NAME => parameters::read(name, &[], values).map(|[]| Prefetch::NextLine),
            adjacent_line::NAME => {
                parameters::read(name, &[], values).map(|[]| Prefetch::AdjacentLine)
            }
            up_down::NAME => parameters::read(name, &[], values).map(|[]| Prefetch::UpDown),
            stride::NAME => Stride::read(values).map(Prefetch::Stride),
            stream::NAME => Stream::read(values).map(Prefetch::Stream),
            _ => Err(UnknownPrefetcher::Name(name.to_owned())),
        }
    }
}

impl fmt::Display for Prefetch {
    /// Writes the name and all parameters, those with their default too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Prefetch::NextLine => f.write_str(next_line::NAME),
            Prefetch::AdjacentLine => f.write_str(adjacent_line::NAME),
            Prefetch::UpDown => f.write_str(up_down::NAME),
            Prefetch::Stride(stride) => stride.fmt(f),
            Prefetch::Stream(stream) => stream.fmt(f),
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
