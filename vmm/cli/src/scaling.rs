//! `nodescope scaling`.

pub mod args;

use std::fs;
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_hypercall::printable_lines;
use nodescope_loop_tree::SequenceOptions;
use nodescope_scaling::{Analysis, Section, read};

use crate::exit::{Exit, Failure};
use crate::predict;
use crate::results::{refuse_existing, write};
use crate::terminal::{print, print_json};

/// Compares the runs of a scaling study and prints them side by side.
pub fn scaling(args: &args::Scaling) -> Result<Exit, Failure> {
    let wrong = |error: &dyn std::error::Error| Failure::of(Exit::Study, error);
    let mut points = Vec::new();
    for path in &args.results {
        let found = read(
            std::slice::from_ref(path),
            args.window.as_deref(),
            args.program,
        );
        let mut found = found.map_err(|error| wrong(&error))?;
        if path.is_dir() {
            for point in &mut found {
                point.section = section(path, args)?;
            }
        }
        points.append(&mut found);
    }
    let mut analysis = Analysis::new(points).map_err(|error| wrong(&error))?;
    if let Some(request) = &args.plan {
        for series in &mut analysis.series {
            series.plan = Some(series.plan(request).map_err(|error| wrong(&error))?);
        }
    }
    if let Some(folder) = &args.svg {
        draw(&analysis, folder, args.force)?;
    }
    if args.json {
        print_json(&analysis.json())?;
    } else if args.html {
        let page = analysis.html();
        print(&page.map_err(|error| wrong(&error))?)?;
    } else {
        print(&analysis.text())?;
    }
    Ok(Exit::Ok)
}

/// Returns the time between the calls that all runs have in common, from the trace of a run; `None` if the run has no trace, and no calls
/// are named. A trace that cannot be used is an error only where calls are named.
fn section(folder: &Path, args: &args::Scaling) -> Result<Option<Section>, Failure> {
    if args.from.is_none() && !folder.join(TRACE_FILE).is_file() {
        return Ok(None);
    }
    let options = SequenceOptions {
        program: args.program,
        marks: args.from.into_iter().chain(args.to).collect(),
        ..SequenceOptions::default()
    };
    let sequences = match predict::read(folder, options) {
        Ok((_, sequences)) => sequences,
        Err(failure) if args.from.is_some() => return Err(failure),
        Err(failure) => {
            let message = failure.chain.join(": ");
            tracing::warn!("the time from MPI_Init to MPI_Finalize is left out: {message}");
            return Ok(None);
        }
    };
    predict::passed(&sequences, args.from, args.to)?;
    let (from, to, calls) = match (args.from, args.to, sequences.marks.as_slice()) {
        (Some((first, n)), Some((last, m)), &[Some((from, _)), Some((_, to))]) => {
            (from, to, format!("{first}:{n} to {last}:{m}"))
        }
        _ => {
            let begin = sequences.extents.iter().map(|&(from, _)| from).min();
            let end = sequences.extents.iter().map(|&(_, to)| to).max();
            let calls = "MPI_Init to MPI_Finalize".to_owned();
            (begin.unwrap_or(0), end.unwrap_or(0), calls)
        }
    };
    let windows = sequences.origin.windows.iter();
    Ok(Some(Section {
        calls,
        time_ps: to.saturating_sub(from),
        window_ps: windows
            .map(|window| window.within(from, to))
            .fold(0, u64::saturating_add),
    }))
}

/// Writes the charts of each series to a folder.
fn draw(analysis: &Analysis, folder: &Path, force: bool) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(Failure::io("create", folder))?;
    let mut charts = Vec::new();
    for series in &analysis.series {
        // Separators are replaced, so that a name from a damaged file leads to no other folder.
        let name = series.name.replace(std::path::is_separator, "_");
        let figures = series.figures();
        for figure in figures.map_err(|error| Failure::of(Exit::Study, &error))? {
            let path = folder.join(format!("{name}-{}.svg", figure.name));
            refuse_existing(&path, force)?;
            charts.push((path, figure.svg));
        }
    }
    for (path, svg) in charts {
        write(&path, &printable_lines(&svg))?;
    }
    Ok(())
}
