//! `nodescope report`.

use nodescope_report::CoreCpi;

use crate::args;
use crate::exit::{Exit, Failure};
use crate::results::report as read;
use crate::sections::sections;
use crate::source_files;
use crate::terminal::{print, print_json};
use crate::verdict::add_verdict;

/// Prints the report of a run's results.
pub fn report(args: &args::Report) -> Result<Exit, Failure> {
    let core = match (args.core_cpi, &args.cpi_source) {
        (Some(cpi), Some(source)) => Some(CoreCpi::Replaced {
            cpi,
            source: source.clone(),
        }),
        _ => None,
    };
    let mut report = read(&args.results, core, &args.core)?;
    add_verdict(&mut report, &args.results);
    if args.html {
        report.sections.extend(sections(&args.results));
        if let Some(folder) = &args.source {
            source_files::add(&mut report, folder)?;
        }
    }
    if args.json {
        print_json(&report.json())?;
    } else if args.html {
        print(&report.html())?;
    } else {
        print(&report.text())?;
    }
    Ok(Exit::Ok)
}
