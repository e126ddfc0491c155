//! `nodescope export` and `nodescope import`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use nodescope_cluster::run::TRACE_FILE;
use nodescope_config::quantity::{self, BitRate, Time, counted};
use nodescope_export::{Bursts, ExportError, Format, ImportError, Network, Options, Summary};

use crate::args;
use crate::exit::{Exit, Failure};
use crate::foreign;
use crate::results::refuse_existing;
use crate::terminal::print;

/// Writes a trace in the formats of other tools.
pub fn export(args: &args::Export) -> Result<Exit, Failure> {
    let takes_one = |format: &args::ExportFormat| Format::from(*format).takes_one_program();
    if args.program.is_some() && !args.format.iter().any(takes_one) {
        return Err(Failure::new(
            Exit::Study,
            "--program is for the formats that hold one MPI program, simgrid, dimemas and goal; the other formats hold all programs".to_owned(),
        ));
    }
    let (trace, network) = source(&args.results)?;
    // Each of several formats gets a folder of its own: names of files may be the same.
    let folder = |format: Format| match args.format.len() {
        1 => args.output.clone(),
        _ => args.output.join(format.name()),
    };
    for format in args.format.iter().copied().map(Format::from) {
        for name in format.files() {
            refuse_existing(&folder(format).join(name), args.force)?;
        }
    }
    let options = Options {
        world: args.program,
        bursts: match args.bursts {
            args::Bursts::Time => Bursts::Time,
            args::Bursts::Instructions => Bursts::Instructions,
        },
        network: network.unwrap_or_default(),
    };
    // A format that fails, such as one whose library is not installed, does not keep the others from being written.
    let mut failures = Vec::new();
    for &format in &args.format {
        let format = Format::from(format);
        match nodescope_export::export(&trace, format, &folder(format), &options) {
            Ok(summary) => print(&text(format, &summary))?,
            Err(error) => failures.push((format, failure(&args.results, &error))),
        }
    }
    let of_several = args.format.len() > 1;
    let named = |format: Format, mut failure: Failure| {
        if of_several {
            failure.chain[0] = format!("{}: {}", format.name(), failure.chain[0]);
        }
        failure
    };
    let mut failures = failures
        .into_iter()
        .map(|(format, failure)| named(format, failure));
    let Some(mut first) = failures.next() else {
        return Ok(Exit::Ok);
    };
    let others: Vec<String> = failures.map(|failure| failure.chain.join(": ")).collect();
    first.also = (!others.is_empty()).then(|| others.join("; "));
    Err(first)
}

fn failure(results: &Path, error: &ExportError) -> Failure {
    if let ExportError::Trace(error) = error {
        return foreign::unreadable(results, error);
    }
    let exit = match error {
        ExportError::Io { .. } => Exit::Host,
        ExportError::Otf2(error) if error.missing() => Exit::Host,
        _ => Exit::Study,
    };
    Failure::of(exit, error)
}

fn text(format: Format, summary: &Summary) -> String {
    let mut text = format!(
        "{}: {} events, {} of them MPI calls\n",
        format.name(),
        summary.events,
        summary.calls
    );
    for file in &summary.files {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}", file.display());
    }
    for note in &summary.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}

/// Converts a trace of another tool into a nodescope trace.
pub fn import(args: &args::Import) -> Result<Exit, Failure> {
    refuse_existing(&args.output, args.force)?;
    let imported = nodescope_export::import(&args.input, &args.output).map_err(|error| {
        let exit = match &error {
            ImportError::Io { file, cause, .. } if *file != args.output => Exit::of_read(cause),
            ImportError::Io { .. } | ImportError::Write(_) => Exit::Host,
            ImportError::Otf2(error) if error.missing() => Exit::Host,
            _ => Exit::Study,
        };
        Failure::of(exit, &error)
    })?;
    let jobs = match imported.jobs {
        0 | 1 => String::new(),
        jobs => format!(" of {}", counted(jobs, "job")),
    };
    let mut text = format!(
        "{}: {}{jobs}, {}\n",
        args.output.display(),
        counted(imported.ranks, "rank"),
        counted(imported.calls, "MPI call")
    );
    for note in &imported.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    print(&text)?;
    Ok(Exit::Ok)
}

/// Returns the path of the trace: `results` itself, or the trace in this folder with the network of the study beside it, if there is a
/// study.
fn source(results: &Path) -> Result<(PathBuf, Option<Network>), Failure> {
    if !results.is_dir() {
        return Ok((results.into(), None));
    }
    let trace = results.join(TRACE_FILE);
    if !trace.is_file() {
        return Err(Failure::new(
            Exit::Study,
            format!(
                "{} holds no trace (no {TRACE_FILE}); give the folder that `nodescope run` named, or a trace",
                results.display()
            ),
        ));
    }
    let study = results.join("study.toml");
    let network =
        match fs::read_to_string(&study) {
            Ok(text) => Some(network(&text).map_err(|what| {
                Failure::new(Exit::Study, format!("{}: {what}", study.display()))
            })?),
            Err(_) => None,
        };
    Ok((trace, network))
}

/// Returns the network of a study; what the study does not name has its default. The study was checked when it ran.
fn network(text: &str) -> Result<Network, String> {
    let study: toml::Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let field = |name: &str| {
        let value = study.get("network")?.as_table()?.get(name)?;
        Some(value.as_str().unwrap_or_default().to_string())
    };
    let mut network = Network::default();
    if let Some(text) = field("latency") {
        let latency: Time =
            quantity::parse(&text).map_err(|error| format!("network.latency: {error}"))?;
        network.latency_ps = latency.0;
    }
    if let Some(text) = field("bandwidth") {
        let bandwidth: BitRate =
            quantity::parse(&text).map_err(|error| format!("network.bandwidth: {error}"))?;
        network.bandwidth = bandwidth.0;
    }
    Ok(network)
}

impl From<args::ExportFormat> for Format {
    fn from(format: args::ExportFormat) -> Format {
        match format {
            args::ExportFormat::Otf2 => Format::Otf2,
            args::ExportFormat::Perfetto => Format::Perfetto,
            args::ExportFormat::Chrome => Format::Chrome,
            args::ExportFormat::Simgrid => Format::Simgrid,
            args::ExportFormat::Paraver => Format::Paraver,
            args::ExportFormat::Dimemas => Format::Dimemas,
            args::ExportFormat::Goal => Format::Goal,
            args::ExportFormat::Csv => Format::Csv,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_the_studys() {
        let text = "[network]\nlatency = \"50 us\"\nbandwidth = \"1 Gbit/s\"\n";
        let network = network(text).unwrap();
        assert_eq!(network.latency_ps, 50_000_000);
        assert_eq!(network.bandwidth, 1_000_000_000);
    }

    #[test]
    fn a_study_that_says_nothing_has_the_default_network() {
        assert_eq!(network("[study]\nname = \"x\"\n"), Ok(Network::default()));
        assert!(network("[network]\nlatency = \"1.3\"\n").is_err());
    }
}
