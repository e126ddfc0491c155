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

use nodescope_plugin_api::{CacheShape, Declaration, Kind, ModelName, Parameter, Unit};
pub(crate) use nodescope_plugin_api::{Replacement, SetState};
use serde::{Deserialize, Serialize};

use crate::registered::{RegisteredModels, declaration};
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
    /// A registered model chooses.
    Registered(ModelName),
}

/// Seed of [`Policy::Random`] where the text gives none.
const DEFAULT_SEED: u64 = 1;

impl Policy {
    /// Says why the policy is not modelled for sets of `ways` ways; `None` if it is. The text follows the path of the field of the ways.
    pub(crate) fn fault(self, ways: u32) -> Option<String> {
        let most = match self {
            Policy::Lru => 1024,
            Policy::Fifo => fifo::MOST_WAYS,
            Policy::TreePlru => tree_plru::MOST_WAYS,
            Policy::Qlru(_) | Policy::Srrip | Policy::Drrip => ages::MOST_WAYS,
            Policy::Random(_) | Policy::Registered(_) => random::MOST_WAYS,
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

    /// Makes the policy of one cache; `None` for LRU. [`Policy::fault`] finds no fault with the ways. An error is a sentence with the name of
    /// a registered model.
    pub(crate) fn replacement(
        self,
        cache: &CacheShape,
        models: &dyn RegisteredModels,
    ) -> Result<Option<Box<dyn Replacement>>, String> {
        debug_assert_eq!(self.fault(cache.ways), None);
        Ok(Some(match self {
            Policy::Lru => return Ok(None),
            Policy::Fifo => Box::new(Fifo),
            Policy::TreePlru => Box::new(TreePlru),
            Policy::Qlru(qlru) => Box::new(qlru),
            Policy::Srrip => Box::new(Srrip),
            Policy::Drrip => Box::new(Drrip::new(cache.sets)),
            Policy::Random(seed) => Box::new(Random::new(seed)),
            Policy::Registered(name) => models.replacement(name, cache)?,
        }))
    }
}

/// The policies of this crate.
pub(crate) const DECLARATIONS: [Declaration; 7] = [
    declaration(
        Kind::Replacement,
        "lru",
        "The least recently used line is replaced. The default.",
        &[],
    ),
    declaration(
        Kind::Replacement,
        "fifo",
        "The line that came first is replaced.",
        &[],
    ),
    declaration(
        Kind::Replacement,
        "tree-plru",
        "Tree-PLRU, for a power of two of ways.",
        &[],
    ),
    declaration(
        Kind::Replacement,
        "qlru",
        "Quad-age LRU, as in many Intel processors: qlru-hXY-mZ-rN-uN or qlru-hXY-mZ-rN-uN-umo.",
        &[],
    ),
    declaration(
        Kind::Replacement,
        "srrip",
        "Static re-reference interval prediction.",
        &[],
    ),
    declaration(
        Kind::Replacement,
        "drrip",
        "Dynamic re-reference interval prediction.",
        &[],
    ),
    declaration(
        Kind::Replacement,
        "random",
        "A line is chosen at random: random or random-SEED.",
        &[Parameter {
            name: "seed",
            line: "seed of the generator",
            unit: Unit::Number,
            default: DEFAULT_SEED,
            least: 0,
            most: u64::MAX,
        }],
    ),
];

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
        if let Some(name) = ModelName::parse(text) {
            return Ok(Policy::Registered(name));
        }
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
            Policy::Registered(name) => name.fmt(f),
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
