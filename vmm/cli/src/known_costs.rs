//! What code costs, as the windows of an earlier run have measured it: `nodescope run --costs-of`.

use std::path::Path;
use std::sync::Arc;

use nodescope_cluster::{ClusterConfig, KnownCost};
use nodescope_plugin_api::ProfiledBlock;
use nodescope_profile::{Block, Clock, CodeChange, WindowProfile};
use nodescope_window::WindowRecord;
use sha2::{Digest, Sha256};

use crate::exit::{Exit, Failure};
use crate::results::{RunFile, input};
use crate::what_if::args::CodeChanges;

/// Costs of code from the results of an earlier run.
pub struct KnownCosts {
    costs: Arc<[KnownCost]>,
    /// Identity of the earlier run's study.
    study_id: String,
    /// A sentence for the report.
    pub note: String,
}

impl KnownCosts {
    /// Reads the window with most executed blocks among results, and changes its costs.
    ///
    /// # Errors
    ///
    /// Results without a window that measured code, or changes of code that did not run.
    pub fn read(results: &Path, changes: &CodeChanges) -> Result<KnownCosts, Failure> {
        let changes = changes.all();
        let study_id = RunFile::read(results)?.study.id;
        let windows = measured_windows(results)?;
        let executed = |(_, profile): &(WindowRecord, WindowProfile)| {
            profile
                .counts
                .iter()
                .map(|count| count.counts.executions)
                .sum::<u64>()
        };
        let Some((record, profile)) = windows.into_iter().max_by_key(executed) else {
            return Err(Failure::new(
                Exit::Study,
                format!(
                    "no window in {} has measured code; add [[window]] to the study and run it first",
                    results.display()
                ),
            ));
        };
        let clock = clock(&record, &profile);
        let edits: Vec<CodeChange> = changes.iter().map(|(_, change)| change.clone()).collect();
        let kept = profile.kept(&clock, &edits);
        let kept = kept.map_err(|error| Failure::of(Exit::Study, &error))?;
        let costs = profile.costs(&clock, &kept).into_iter();
        let costs = costs.map(|(block, sixteenths)| KnownCost {
            block: known_block(&profile.blocks[block as usize]),
            sixteenths,
        });
        let texts: Vec<&str> = changes.iter().map(|(text, _)| text.as_str()).collect();
        let changed = match texts.is_empty() {
            true => String::new(),
            false => format!(", changed: {}", texts.join(", ")),
        };
        Ok(KnownCosts {
            costs: costs.collect(),
            study_id,
            note: format!(
                "clocks go by the costs of code that window \"{}\" of an earlier run measured{changed}",
                record.name
            ),
        })
    }

    /// Lets a cluster's clocks go by these costs, in place of windows.
    ///
    /// # Errors
    ///
    /// A cluster of another study, or one whose engine has no costs of code.
    pub fn apply(&self, config: &mut ClusterConfig) -> Result<(), Failure> {
        let refused = |why: &str| Err(Failure::new(Exit::Study, format!("--costs-of: {why}")));
        if config.study_id != self.study_id {
            return refused(
                "the results are of another study, or its image or files have changed; run the study again",
            );
        }
        if config.engine.uses_kvm() {
            return refused("only the portable engine goes by costs of code; give --engine soft");
        }
        let mut hash = Sha256::new();
        hash.update(&config.study_id);
        for known in self.costs.iter() {
            hash.update(&known.block.bytes);
            hash.update(known.block.physical.to_le_bytes());
            hash.update(known.sixteenths.to_le_bytes());
        }
        let digest = hash.finalize();
        config.study_id = digest[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        config.code_costs = self.costs.clone();
        config.windows.clear();
        Ok(())
    }
}

/// Returns the windows of results that have a profile.
pub fn measured_windows(results: &Path) -> Result<Vec<(WindowRecord, WindowProfile)>, Failure> {
    let input = input(results, None, &[])?;
    let profiles = input.profiles.map_or_else(Vec::new, |of| of.windows);
    let records = input.windows.windows;
    let record = |name: &str| records.iter().find(|record| record.name == name).cloned();
    let pairs = profiles.into_iter();
    let pairs = pairs.filter_map(|profile| Some((record(&profile.name)?, profile)));
    Ok(pairs.collect())
}

/// Returns the clock by which a window's vCPUs went.
pub fn clock<'a>(record: &WindowRecord, profile: &'a WindowProfile) -> Clock<'a> {
    let nominal = record
        .nodes
        .first()
        .map_or(0, |node| node.nominal_cpi_65536);
    Clock::new(profile, nominal)
}

fn known_block(block: &Block) -> ProfiledBlock {
    ProfiledBlock {
        // The offset in a file has the offset within the page.
        physical: block.offset,
        kernel: block.kernel,
        bits: block.bits,
        bytes: block.bytes.clone(),
        instructions: block.instructions,
        ..ProfiledBlock::default()
    }
}
