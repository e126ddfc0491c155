//! A predictor of branches, as cores have them.
//!
//! Makers do not publish their predictors. This one has the parts that the literature describes: tables of geometric histories for
//! conditional branches ([`tage`]), trip counts of loops ([`loops`]), tables of histories of targets for indirect jumps ([`indirect`]), and a
//! stack of return addresses ([`returns`]). Only the sizes for indirect jumps were chosen by timings of a core; no counts of mispredictions
//! were compared with a core's counters. Branches are predicted and learnt in program order, so a prediction sees all branches before, as in
//! a core that repairs its history after a misprediction.
//!
//! The same branches always have the same predictions: what hardware leaves to chance comes from a shift register with a fixed start.

mod config;
mod history;
mod indirect;
mod loops;
mod returns;
mod steady;
mod tage;
#[cfg(test)]
mod tests;

pub use config::{PredictorConfig, PredictorConfigError};

use crate::micro::Flow;
use history::spread;
use indirect::Indirect;
use loops::Loops;
use returns::Returns;
use steady::Steady;
use tage::Tage;

/// A branch predictor with all that it has learnt.
#[derive(Clone, Debug)]
pub struct Predictor {
    tage: Tage,
    loops: Loops,
    steady: Steady,
    /// Whether trip counts have been better than histories where the two differed: not negative if so.
    trust_loops: i8,
    indirect: Indirect,
    returns: Returns,
}

impl Predictor {
    /// Makes a predictor that has learnt nothing.
    ///
    /// # Panics
    ///
    /// If [`PredictorConfig::check`] refuses the sizes.
    pub fn new(config: &PredictorConfig) -> Self {
        if let Err(error) = config.check() {
            panic!("{error}");
        }
        Self {
            tage: Tage::new(config),
            loops: Loops::new(config.loop_entries, config.loop_max_trips),
            steady: Steady::new(config),
            trust_loops: 0,
            indirect: Indirect::new(config),
            returns: Returns::new(config.return_entries),
        }
    }

    /// Learns what the branch at `address` did, and returns whether it was predicted.
    ///
    /// `target` is the address of the next executed instruction if the branch was taken; without meaning if not. `next` is the address behind
    /// the branch. Direct jumps and calls are always predicted, and other instructions than branches are no branches to predict.
    pub fn branch(
        &mut self,
        address: u64,
        flow: Flow,
        taken: bool,
        target: u64,
        next: u64,
    ) -> bool {
        match flow {
            Flow::Conditional => self.conditional(address, taken),
            Flow::IndirectJump => self.indirect(address, target),
            Flow::IndirectCall => {
                self.returns.call(next);
                self.indirect(address, target)
            }
            Flow::Call => {
                self.returns.call(next);
                true
            }
            Flow::Return => self.returns.is_right(target),
            Flow::Jump | Flow::Next | Flow::System => true,
        }
    }

    fn conditional(&mut self, address: u64, taken: bool) -> bool {
        let site = spread(address);
        let by_trips = self.loops.predict(site);
        let trips = by_trips.and_then(|answer| answer.taken);
        let mut right = true;
        // A branch that goes on as ever is right in nearly all cases, and most of the time goes into the tables.
        let by_history = if self.steady.step(site, taken) && trips != Some(!taken) {
            taken
        } else {
            let answer = self.tage.predict(site);
            self.tage.train(&answer, taken);
            right = self.choose(answer.taken, trips, taken) == taken;
            answer.taken
        };
        if let Some(answer) = by_trips {
            self.loops.train(answer, taken, by_history == taken);
        }
        // Directions, and the addresses of branches: of two equal sequences of directions at different places, one may tell more.
        self.tage.push((site >> 47 & !1) | u64::from(taken));
        right
    }

    /// Chooses between the predictions by history and by trip counts, and learns which was right.
    fn choose(&mut self, by_history: bool, by_trips: Option<bool>, taken: bool) -> bool {
        let Some(other) = by_trips.filter(|other| *other != by_history) else {
            return by_history;
        };
        let trusted = self.trust_loops >= 0;
        let change = if other == taken { 1 } else { -1 };
        self.trust_loops = (self.trust_loops + change).clamp(-64, 63);
        if trusted { other } else { by_history }
    }

    fn indirect(&mut self, address: u64, target: u64) -> bool {
        // Branches behind the jump can tell from its target what was asked for.
        self.tage.push(spread(target) >> 47 | 1);
        self.indirect.is_right(address, target)
    }
}
