//! What results tell about a traced run beside its trace: measurement windows, the number of threads of a rank, and the places of call
//! sites in the source.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_config::quantity::Time;
use nodescope_loop_tree::{Sequences, Site, WindowSpan};
use nodescope_predict::ConvertedTime;
use nodescope_window::WindowsFile;

use crate::openmp::most_threads;
use crate::site_names;

/// Completes the origin of sequences from the results in which their trace lies. A trace that lies elsewhere has no other results. Windows
/// that cannot be read give a note.
pub fn complete(sequences: &mut Sequences, trace: &Path) {
    if trace.file_name().is_none_or(|name| name != TRACE_FILE) {
        return;
    }
    let folder = trace.parent().unwrap_or(Path::new(""));
    let windows = folder.join(WindowsFile::NAME);
    if windows.is_file() {
        match WindowsFile::read(&windows) {
            Ok(file) => sequences.origin.windows = spans(&file, &sequences.extents),
            Err(error) => sequences.notes.push(format!(
                "whether the traced time contains windows is unknown: {error}"
            )),
        }
    }
    let ranks = sequences.ranks.len() as u32;
    let entries = sequences.ranks.iter().flat_map(|rank| &rank.entries);
    let sites: BTreeSet<Site> = entries.map(|entry| entry.op.site).collect();
    site_names::read(folder, &mut sequences.origin.names, sites);
    sequences.origin.threads = most_threads(folder, ranks).or_else(|| stated_threads(folder));
}

/// Returns the parts of windows that lie within the ranks' extents, from the first rank's start to the last rank's end.
fn spans(file: &WindowsFile, extents: &[(u64, u64)]) -> Vec<WindowSpan> {
    let from = extents.iter().map(|&(from, _)| from).min().unwrap_or(0);
    let to = extents.iter().map(|&(_, to)| to).max().unwrap_or(0);
    let spans = file.windows.iter().map(|window| WindowSpan {
        name: window.name.clone(),
        opened: window.opened_ps.max(from),
        closed: window.closed_ps.min(to),
    });
    spans.filter(|span| span.opened < span.closed).collect()
}

/// Returns `OMP_NUM_THREADS` of the study's `[job.environment]`, if it is one number.
fn stated_threads(folder: &Path) -> Option<u32> {
    let text = fs::read_to_string(folder.join("study.toml")).ok()?;
    let study: toml::Table = toml::from_str(&text).ok()?;
    let environment = study.get("job")?.as_table()?.get("environment")?;
    let threads = environment.as_table()?.get("OMP_NUM_THREADS")?.as_str()?;
    threads.trim().parse().ok().filter(|&threads| threads > 0)
}

/// Returns sequences with a note about each window, for outputs that show only notes.
pub fn noted(mut sequences: Sequences) -> Sequences {
    let notes = window_notes(&sequences);
    sequences.notes.extend(notes);
    if let Some(of) = sequences.origin.converted {
        sequences.notes.push(ConvertedTime::from(of).to_string());
    }
    sequences
}

/// Returns a note about each window in the traced time.
pub fn window_notes(sequences: &Sequences) -> Vec<String> {
    let told = sequences.origin.windows.iter().map(|window| {
        format!(
            "the traced time contains {} in window {:?}: clocks there also count modelled stalls, so that bursts last longer than outside",
            Time(window.closed.saturating_sub(window.opened)).rounded(3),
            window.name
        )
    });
    told.collect()
}
