//! Sections of a report's page beyond the report itself: communication phases, representative ranks, OpenMP.

use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_loop_tree::{SequenceError, Sequences};
use nodescope_report::PageSection;

use crate::predict::programs;
use crate::terminal::argument;
use crate::{openmp, phases, represent};

/// Size in bytes of the largest trace for which a report's page has these sections: finding phases takes memory for each call.
const LARGEST: u64 = 64 << 20;

/// Number of MPI programs whose sections a page has.
const MOST_PROGRAMS: usize = 16;

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
    let reason = |why: String| {
        let section = |(title, _): &SectionSource<'_>| PageSection::new(title, Err(why.clone()));
        sources.iter().map(section).collect()
    };
    if size > LARGEST {
        let results = argument(results);
        return reason(format!(
            "the trace has {size} bytes, more than the {LARGEST} of which a report shows it; see `nodescope phases {results} --html` and `nodescope represent groups {results} --html`"
        ));
    }
    let programs = match programs(&trace) {
        Ok(programs) => programs,
        Err(error) => return reason(error.to_string()),
    };
    let several = programs.len() > 1;
    let with_calls = (programs.iter().enumerate())
        .filter(|(_, (_, sequences))| !matches!(sequences, Err(SequenceError::NoCalls)))
        .take(MOST_PROGRAMS);
    let mut sections = Vec::new();
    for (number, (program, sequences)) in with_calls {
        for (title, content) in sources {
            let title = match several {
                true => format!("{title} of program {number}, {}", program.name()),
                false => title.to_owned(),
            };
            let sequences = sequences.as_ref().map_err(SequenceError::to_string);
            sections.push(PageSection::new(&title, sequences.and_then(content)));
        }
    }
    sections
}
