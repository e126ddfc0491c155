//! `[study.core]`: CPI_core from hardware counters.

use std::collections::BTreeMap;
use std::path::Path;

use nodescope_config::quantity::Cpi;
use nodescope_config::reader::{Item, Section};
use nodescope_counters::{Derived, import};

use super::resolve;
use crate::plan::{Job, Program};

/// CPI_core as derived from hardware counters.
pub(super) struct Measured {
    /// CPI_core of the whole program.
    pub whole: Cpi,
    /// CPI_core by rank; empty if the counters cover only the whole program.
    pub ranks: BTreeMap<u32, Cpi>,
    /// Origin of the counters: tool, files, events and limits, in words.
    pub source: String,
}

/// Accepted range of CPI_core from counters, in millionths: the same as of `study.core_cpi`.
const RANGE: std::ops::RangeInclusive<u64> = 10_000..=1_000_000_000;

/// Reads `study.core.counters` and the files that the field names. Returns `None` if the field is missing or has a problem.
pub(super) fn read(folder: &Path, section: &Section<'_>) -> Option<Measured> {
    const EXAMPLE: &str = "perf.json";
    let item = match section.present() && !section.sets("count") {
        true => section.require("counters", "\"perf.json\""),
        false => section.item("counters"),
    }?;
    let names: Vec<String> = match item.is_list() {
        true => item
            .lines(EXAMPLE)
            .into_iter()
            .map(|(_, name)| name)
            .collect(),
        false => vec![item.line(EXAMPLE)?],
    };
    if names.is_empty() {
        if item.list("[\"perf.0.json\"]").is_empty() {
            item.add_problem("is empty; write e.g. [\"perf.0.json\", \"perf.1.json\"]");
        }
        return None;
    }
    let paths: Vec<_> = names.iter().map(|name| resolve(folder, name)).collect();
    let mut measurement = import(&paths)
        .map_err(|error| item.add_problem(error.to_string()))
        .ok()?;
    measurement.relative_to(folder);
    let derived = measurement
        .derive()
        .and_then(|whole| Ok((whole, measurement.derive_ranks()?)));
    let (whole, ranks) = derived
        .map_err(|error| item.add_problem(error.to_string()))
        .ok()?;
    let mut of_ranks = BTreeMap::new();
    for (rank, derived) in &ranks {
        of_ranks.insert(*rank, cpi(&item, derived, &format!("rank {rank}"))?);
    }
    Some(Measured {
        whole: cpi(&item, &whole, "the program")?,
        ranks: of_ranks,
        source: measurement.source(&whole),
    })
}

/// Returns CPI_core in millionths. Reports a problem and returns `None` if the counters give no CPI_core in [`RANGE`].
fn cpi(item: &Item<'_>, derived: &Derived, of: &str) -> Option<Cpi> {
    let core = match &derived.core {
        Ok(core) => core,
        Err(why) => {
            item.add_problem(format!("{of}: {why}"));
            return None;
        }
    };
    // No CPI from counters comes near 2^64 millionths.
    let millionths = (core.cpi * 1e6).round() as u64;
    if !RANGE.contains(&millionths) {
        item.add_problem(format!(
            "gives a CPI_core of {} for {of}; a CPI_core from 0.01 to 1000 can be simulated",
            core.cpi
        ));
        return None;
    }
    Some(Cpi(millionths))
}

/// Checks that counters by rank cover exactly the ranks of the job. Does not check jobs with a script, which decides its number of ranks.
pub(super) fn check_ranks(study: &Section<'_>, measured: &Measured, job: &Job) {
    let expected = 0..job.ranks;
    if measured.ranks.is_empty() || matches!(job.program, Program::Script(_)) {
        return;
    }
    if !measured.ranks.keys().copied().eq(expected) {
        let last = measured.ranks.keys().last().copied().unwrap_or_default();
        study.add_problem(
            "core.counters",
            format!(
                "has {} ranks, the last is {last}, but the job has ranks 0 to {}; give counters of as many ranks, or of the whole program",
                measured.ranks.len(),
                job.ranks.saturating_sub(1)
            ),
        );
    }
}
