//! Filter of branches that have long gone the same way.
//!
//! Most executed branches are of this kind, and the tables would only learn again what they know. One in [`PERIOD`] still asks them. If none
//! did, then the history "always taken" would be followed by what ends it alone, and the tables would foresee the end of any long loop.

use super::config::PredictorConfig;

/// Of so many repetitions of a steady branch, the tables see one.
pub(super) const PERIOD: u8 = 8;

/// For each conditional branch, how often in succession it went the same way.
#[derive(Clone, Debug)]
pub struct Steady {
    /// Twice the repetitions, plus 1 if the branch was last taken; by a hash of its address, as the base of predictions.
    runs: Box<[u8]>,
    /// Repetitions after which a branch is steady; 0 for never.
    after: u8,
}

impl Steady {
    /// Makes a filter that has seen no branch.
    pub fn new(config: &PredictorConfig) -> Self {
        Self {
            runs: vec![0; config.base_entries as usize].into(),
            after: config.steady_after,
        }
    }

    /// Notes what the branch with the hash `site` of its address did. Returns whether this is a repetition that the tables need not see.
    #[inline]
    pub fn step(&mut self, site: u64, taken: bool) -> bool {
        let slot = (site >> 40) as usize & (self.runs.len() - 1);
        let run = &mut self.runs[slot];
        if *run & 1 != u8::from(taken) || self.after == 0 {
            *run = u8::from(taken);
            return false;
        }
        *run += 2;
        if *run >> 1 == self.after + PERIOD {
            *run -= 2 * PERIOD;
            return false;
        }
        *run >> 1 > self.after
    }
}
