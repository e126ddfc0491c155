//! Sections of a report's page beyond the report itself: communication phases, representative ranks, OpenMP.

use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_loop_tree::{SequenceError, SequenceOptions, Sequences};
use nodescope_report::PageSection;

use crate::predict::sequences;
use crate::terminal::argument;
use crate::{openmp, phases, represent};

/// Size in bytes of the largest trace for which a report's page has these sections: finding phases takes memory for each call.
const LARGEST: u64 = 64 << 20;

/// Source of a section: its title, and a function that returns its contents or the reason why there are none.
type SectionSource<'a> = (&'a str, &'a dyn Fn(&Sequences) -> Result<String, String>);

/// Returns the further sections for the report's page of a results folder.
pub fn sections(results: &Path) -> Vec<PageSection> {
    let mut sections = of_trace(results);
    sections.extend(openmp::section(results));
    sections
}

/// Returns the sections that are made from the trace; empty without a trace or MPI calls. Where there are calls but nothing to show, a
/// section contains the reason.
fn of_trace(results: &Path) -> Vec<PageSection> {
    let sources: [SectionSource<'_>; 2] = [
        (nodescope_phases::TITLE, &phases::section),
        (nodescope_represent::TITLE, &represent::section),
    ];
    let trace = results.join(TRACE_FILE);
    let Ok(size) = trace.metadata().map(|found| found.len()) else {
        return Vec::new();
    };
    let sequences = if size > LARGEST {
        let results = argument(results);
        Err(format!(
            "the trace has {size} bytes, more than the {LARGEST} of which a report shows it; see `nodescope phases {results} --html` and `nodescope represent groups {results} --html`"
        ))
    } else {
        match sequences(&trace, SequenceOptions::default()) {
            Ok(Err(SequenceError::NoCalls)) => return Vec::new(),
            Ok(sequences) => sequences.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    };
    let section = |(title, content): SectionSource<'_>| {
        PageSection::new(
            title,
            sequences.as_ref().map_err(String::clone).and_then(content),
        )
    };
    sources.map(section).into()
}
