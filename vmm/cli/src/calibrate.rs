//! `nodescope calibrate`.

use std::path::Path;

use nodescope_calibrate::fit::fit;
use nodescope_calibrate::trace::Collector;
use nodescope_calibrate::{
    CalibrateError, ClusterFile, FitOptions, FittedPath, Measurements, netpipe,
};
use nodescope_cluster::run::TRACE_FILE;
use nodescope_study::quantity::Bytes;
use nodescope_trace::{MAGIC, TraceError, TraceReader};

use crate::args;
use crate::exit::{Exit, Failure};
use crate::results;
use crate::terminal::print;

/// Fits a cluster's network to measurements, writes the cluster file and prints a summary.
pub fn calibrate(args: &args::Calibrate) -> Result<Exit, Failure> {
    results::refuse_existing(&args.output, args.force)?;
    let stem = args.output.file_stem().unwrap_or_default();
    let file = ClusterFile {
        name: (args.name.clone()).unwrap_or_else(|| stem.to_string_lossy().into_owned()),
        cores: args.cores,
        network: path(args.network.as_deref(), args.eager_limit)?,
        memory: path(args.memory.as_deref(), args.memory_eager_limit)?,
    };
    results::write(&args.output, &file.text())?;
    print(&format!("{}{}\n", file.summary(), args.output.display()))?;
    Ok(Exit::Ok)
}

fn path(source: Option<&Path>, eager_limit: Option<Bytes>) -> Result<Option<FittedPath>, Failure> {
    let Some(source) = source else {
        return Ok(None);
    };
    let options = FitOptions {
        eager_limit: eager_limit.map(|Bytes(bytes)| bytes),
    };
    let fit = measurements(source).and_then(|measured| fit(&measured, options));
    let fit = fit.map_err(|error| {
        let exit = match error {
            CalibrateError::Io { ref cause, .. } => Exit::of_read(cause),
            CalibrateError::Trace(ref error) => Exit::of_trace(error),
            _ => Exit::Study,
        };
        Failure::of(exit, &error)
    })?;
    Ok(Some(FittedPath {
        source: source.display().to_string(),
        fit,
    }))
}

/// Reads the measurements in `source`: a folder of results or a file; a file is a trace, or else NetPIPE's output.
fn measurements(source: &Path) -> Result<Measurements, CalibrateError> {
    let trace = source.join(TRACE_FILE);
    if source.is_dir() {
        return traced(&trace);
    }
    let mut head = [0; MAGIC.len()];
    let read = std::fs::File::open(source)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head));
    if read.is_ok() && head == MAGIC {
        return traced(source);
    }
    netpipe::read(source)
}

fn traced(path: &Path) -> Result<Measurements, CalibrateError> {
    let mut collector = Collector::default();
    let mut cut = None;
    for event in TraceReader::open(path)?.events() {
        match event {
            Ok(event) => collector.add(&event),
            // The events before the cut are a trace of a shorter run.
            Err(error @ TraceError::Cut { .. }) => {
                cut = Some(error.to_string());
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let mut measured = collector.finish(&path.display().to_string())?;
    measured.notes.extend(cut);
    Ok(measured)
}
