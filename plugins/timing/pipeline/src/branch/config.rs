//! Description of a branch predictor.

use serde::{Deserialize, Serialize};

use super::history::LONGEST;

/// Most tables with tags that a predictor can have.
pub(super) const MOST_TABLES: usize = 8;

/// Sizes of a branch predictor. Makers publish few of them: the defaults are usual ones of the literature, but for `indirect_entries`. All
/// counts of entries are powers of two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PredictorConfig {
    /// Counters of 2 bits, one for each conditional branch, that predict where no history helps.
    pub base_entries: u32,
    /// Entries of each table for conditional branches.
    pub entries: u32,
    /// Branches of history that each table for conditional branches sees, in rising order: one table for each, at most 8, at most 255
    /// branches. Conditional branches and indirect jumps and calls count. An empty list leaves the base alone.
    pub histories: Vec<u16>,
    /// Repetitions of the same direction, at most 119, after which the tables see one of 8 further ones, and the others count as predicted.
    /// The first other direction is predicted as ever. This saves time. 0 for never.
    pub steady_after: u8,
    /// Loops whose trip counts are remembered, at least 4; 0 for none.
    pub loop_entries: u32,
    /// Trips of the longest loop whose exit is predicted by its trip count: executions of the loop's branch from one entry to the exit. 0
    /// for none.
    pub loop_max_trips: u16,
    /// Last targets that are remembered, one for each indirect jump or call.
    pub indirect_base_entries: u32,
    /// Entries of each table for indirect jumps and calls. The default is chosen by behaviour: of repeated sequences of targets, a Zen 5 core
    /// learns one of 1,000, 40 % of one of 3,000, and none of one of 9,000.
    pub indirect_entries: u32,
    /// Targets of history that each table for indirect jumps and calls sees, in rising order: as in `histories`. Only the targets of indirect
    /// jumps and calls count.
    pub indirect_histories: Vec<u16>,
    /// Return addresses that are remembered: the depth of calls whose returns are predicted. 0 for none: then no return is predicted.
    pub return_entries: u32,
}

impl Default for PredictorConfig {
    fn default() -> Self {
        Self {
            base_entries: 16_384,
            entries: 4_096,
            histories: vec![4, 8, 15, 29, 56, 108, 210],
            steady_after: 32,
            loop_entries: 64,
            loop_max_trips: 64,
            indirect_base_entries: 2_048,
            indirect_entries: 512,
            indirect_histories: vec![3, 6, 12, 30],
            return_entries: 32,
        }
    }
}

/// Reason for which a [`PredictorConfig`] is refused. The text begins with the name of the wrong field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PredictorConfigError {
    /// A count of entries is out of range or no power of two.
    #[error("{field}: {entries} is not possible; write a power of two from {least} to {most}")]
    Entries {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        entries: u32,
        /// Least possible value.
        least: u32,
        /// Greatest possible value.
        most: u32,
    },
    /// A list of histories does not rise, is too long, or has a history that is too long or 0.
    #[error("{field}: write at most {MOST_TABLES} rising numbers from 1 to {LONGEST}")]
    Histories {
        /// Name of the field.
        field: &'static str,
    },
    /// The filter of steady branches counts no further.
    #[error("steady_after: {0} is too many; write at most 119")]
    Steady(u8),
    /// The stack of return addresses is too large.
    #[error("return_entries: {0} is too many; write at most 1024")]
    Returns(u32),
}

impl PredictorConfig {
    /// Checks that a predictor can have these sizes.
    pub fn check(&self) -> Result<(), PredictorConfigError> {
        power("base_entries", self.base_entries, 1, 1 << 20)?;
        power("entries", self.entries, 2, 1 << 16)?;
        if self.loop_entries != 0 {
            power("loop_entries", self.loop_entries, 4, 1 << 12)?;
        }
        power(
            "indirect_base_entries",
            self.indirect_base_entries,
            1,
            1 << 20,
        )?;
        power("indirect_entries", self.indirect_entries, 2, 1 << 16)?;
        rising("histories", &self.histories)?;
        rising("indirect_histories", &self.indirect_histories)?;
        if self.steady_after > 119 {
            return Err(PredictorConfigError::Steady(self.steady_after));
        }
        if self.return_entries > 1024 {
            return Err(PredictorConfigError::Returns(self.return_entries));
        }
        Ok(())
    }
}

fn power(
    field: &'static str,
    entries: u32,
    least: u32,
    most: u32,
) -> Result<(), PredictorConfigError> {
    if entries.is_power_of_two() && (least..=most).contains(&entries) {
        return Ok(());
    }
    Err(PredictorConfigError::Entries {
        field,
        entries,
        least,
        most,
    })
}

fn rising(field: &'static str, histories: &[u16]) -> Result<(), PredictorConfigError> {
    let possible = histories
        .iter()
        .all(|length| (1..=LONGEST).contains(length));
    if possible && histories.is_sorted_by(|a, b| a < b) && histories.len() <= MOST_TABLES {
        return Ok(());
    }
    Err(PredictorConfigError::Histories { field })
}
