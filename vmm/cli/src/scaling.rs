//! `nodescope scaling`.

pub mod args;

use std::fs;
use std::path::Path;

use nodescope_hypercall::printable_lines;
use nodescope_scaling::{Analysis, read};

use crate::exit::{Exit, Failure};
use crate::results::{refuse_existing, write};
use crate::terminal::{print, print_json};

/// Compares the runs of a scaling study and prints them side by side.
pub fn scaling(args: &args::Scaling) -> Result<Exit, Failure> {
    let wrong = |error: &dyn std::error::Error| Failure::of(Exit::Study, error);
    let points = read(&args.results, args.window.as_deref(), args.program);
    let points = points.map_err(|error| wrong(&error))?;
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
