//! `nodescope report`.

use std::path::Path;

use nodescope_report::{CoreCpi, Report};

use crate::exit::{Exit, Failure};
use crate::results::{REPORT_HTML, report as read};
use crate::sections::sections;
use crate::source_files;
use crate::terminal::{argument, print, print_json};
use crate::verdict::add_verdict;
use crate::{args, openmp};

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
        report.openmp = openmp::text(&args.results);
        print(&text(&report, args))?;
    }
    Ok(Exit::Ok)
}

fn text(report: &Report, args: &args::Report) -> String {
    if args.full {
        return report.text();
    }
    match args.section {
        Some(section) => {
            (report.section(section)).unwrap_or_else(|| format!("{}\n", section.missing()))
        }
        None => short(report, &args.results),
    }
}

/// Returns the short report, with the place of the page if the results have one.
pub fn short(report: &Report, results: &Path) -> String {
    let text = report.short(&argument(results));
    let page = results.join(REPORT_HTML);
    match page.is_file() {
        true => format!("{text}page        {}\n", argument(&page)),
        false => text,
    }
}
