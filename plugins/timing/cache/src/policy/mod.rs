//! Replacement policies of a cache's sets. A new policy has a file of its own, and its name in this file.

mod ages;
mod fifo;
mod qlru;
mod random;
mod rrip;
#[cfg(test)]
mod tests;
mod tree_plru;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use fifo::Fifo;
pub use qlru::Qlru;
use random::Random;
use rrip::{Drrip, Srrip};
use tree_plru::TreePlru;

/// Replacement policy: which line of a full set is replaced. The text form is the name in study files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Policy {
    /// The least recently used line is replaced.
    #[default]
    Lru,
    /// The line that came first is replaced.
    Fifo,
    /// Tree-PLRU. The ways are a power of two. All bits on the path to a line that is used or inserted point away from it.
    TreePlru,
    /// A quad-age LRU policy, as in many Intel processors.
    Qlru(Qlru),
    /// Static re-reference interval prediction with two bits a line and hit priority.
    Srrip,
    /// Dynamic re-reference interval prediction: a duel of SRRIP and its bimodal form.
    Drrip,
    /// A line is chosen at random, by a generator with this seed. Equal runs choose equal lines.
    Random(u64),
}

/// Seed of [`Policy::Random`] where the text gives none.
const DEFAULT_SEED: u64 = 1;

/// A set of a cache as its policy sees the set.
#[derive(Debug)]
pub(crate) struct SetState<'a> {
    /// Number of the set.
    pub(crate) number: u32,
    /// Number of ways.
    pub(crate) ways: u32,
    /// The policy's own bits of this set, zero at first.
    pub(crate) bits: &'a mut u64,
}

/// Replacement policy of one cache, for all policies but LRU, which is the order of the words of a set. Lines stay in their ways.
pub(crate) trait Replacement: Send + fmt::Debug {
    /// Takes note of a hit.
    fn hit(&mut self, set: SetState<'_>, way: u32);
    /// Takes note of a new line in a way.
    fn insert(&mut self, set: SetState<'_>, way: u32);
    /// Chooses the way whose line is replaced. The set is full. [`Replacement::insert`] for that way follows.
    fn victim(&mut self, set: SetState<'_>) -> u32;
    /// Takes note of a line that left its way other than by replacement.
    fn remove(&mut self, set: SetState<'_>, way: u32) {
        let _ = (set, way);
    }
    /// Chooses among empty ways, which are the ones in the mask `empty`, for a new line.
    fn empty_way(&self, empty: u64) -> u32 {
        empty.trailing_zeros()
    }
    /// Returns true if a hit of this way, right after the last event of the set, which was a hit or an insertion of the same way, would
    /// change nothing. Only then may an L0 filter cache answer such hits.
    fn settled(&self, set: SetState<'_>, way: u32) -> bool {
        let _ = (set, way);
        true
    }
}

impl Policy {
    /// Says why the policy is not modelled for sets of `ways` ways; `None` if it is. The text follows the path of the field of the ways.
    pub(crate) fn fault(self, ways: u32) -> Option<String> {
        let most = match self {
            Policy::Lru => 1024,
            Policy::Fifo => fifo::MOST_WAYS,
            Policy::TreePlru => tree_plru::MOST_WAYS,
            Policy::Qlru(_) | Policy::Srrip | Policy::Drrip => ages::MOST_WAYS,
            Policy::Random(_) => random::MOST_WAYS,
        };
        if ways > most {
            Some(format!(
                "is {ways}, but policy {self} is modelled for at most {most} ways"
            ))
        } else if self == Policy::TreePlru && ways != 0 && !ways.is_power_of_two() {
            Some(format!(
                "is {ways}, but policy {self} needs a power of two from 1 to {most}"
            ))
        } else {
            None
        }
    }

    /// Makes the policy of one cache of `sets` sets; `None` for LRU. [`Policy::fault`] finds no fault with `ways`.
    pub(crate) fn replacement(self, sets: u32, ways: u32) -> Option<Box<dyn Replacement>> {
        debug_assert_eq!(self.fault(ways), None);
        match self {
            Policy::Lru => None,
            Policy::Fifo => Some(Box::new(Fifo)),
            Policy::TreePlru => Some(Box::new(TreePlru)),
            Policy::Qlru(qlru) => Some(Box::new(qlru)),
            Policy::Srrip => Some(Box::new(Srrip)),
            Policy::Drrip => Some(Box::new(Drrip::new(sets))),
            Policy::Random(seed) => Some(Box::new(Random::new(seed))),
        }
    }
}

/// Error of a text that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no replacement policy; {advice}")]
pub struct UnknownPolicy {
    text: String,
    /// What is wrong, or what to write.
    advice: String,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Policy, UnknownPolicy> {
        let unknown = |advice: String| UnknownPolicy {
            text: text.to_owned(),
            advice,
        };
        match text {
            "lru" => Ok(Policy::Lru),
            "fifo" => Ok(Policy::Fifo),
            "tree-plru" => Ok(Policy::TreePlru),
            "srrip" => Ok(Policy::Srrip),
            "drrip" => Ok(Policy::Drrip),
            "random" => Ok(Policy::Random(DEFAULT_SEED)),
            _ if text.starts_with(Qlru::PREFIX) => text.parse().map(Policy::Qlru).map_err(unknown),
            _ => match text.strip_prefix("random-") {
                Some(seed) => match seed.parse() {
                    Ok(number) if !seed.starts_with('+') => Ok(Policy::Random(number)),
                    _ => Err(unknown(format!(
                        "the seed \"{seed}\" is no whole number from 0 to {}",
                        u64::MAX
                    ))),
                },
                None => Err(unknown(
                    "write \"lru\", \"fifo\", \"tree-plru\", \"qlru-hXY-mZ-rN-uN\", \"qlru-hXY-mZ-rN-uN-umo\", \"srrip\", \"drrip\", \"random\", or \
                     \"random-SEED\""
                        .to_owned(),
                )),
            },
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Lru => f.write_str("lru"),
            Policy::Fifo => f.write_str("fifo"),
            Policy::TreePlru => f.write_str("tree-plru"),
            Policy::Qlru(qlru) => qlru.fmt(f),
            Policy::Srrip => f.write_str("srrip"),
            Policy::Drrip => f.write_str("drrip"),
            Policy::Random(DEFAULT_SEED) => f.write_str("random"),
            Policy::Random(seed) => write!(f, "random-{seed}"),
        }
    }
}

impl TryFrom<String> for Policy {
    type Error = UnknownPolicy;

    fn try_from(text: String) -> Result<Policy, UnknownPolicy> {
        text.parse()
    }
}

impl From<Policy> for String {
    fn from(policy: Policy) -> String {
        policy.to_string()
    }
}
