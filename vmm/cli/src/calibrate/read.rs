//! Reader of measurements: NetPIPE's output, and traces of the program that measures.

use std::path::{Path, PathBuf};

use nodescope_calibrate::trace::Collector;
use nodescope_calibrate::{CalibrateError, Exchanges, Measurements, exchanges, netpipe};
use nodescope_cluster::run::TRACE_FILE;
use nodescope_trace::{Event, MAGIC, ProgramFinder, TraceError, TraceReader};

use crate::exit::{Exit, Failure};

/// Returns the failure of a command that cannot use measurements.
pub fn failure(error: CalibrateError) -> Failure {
    let exit = match error {
        CalibrateError::Io { ref cause, .. } => Exit::of_read(cause),
        CalibrateError::Trace(ref error) => Exit::of_trace(error),
        _ => Exit::Study,
    };
    Failure::of(exit, &error)
}

/// Reads the measurements between two ranks in `source`: a folder of results or a file; a file is a trace, or else NetPIPE's output.
pub fn measurements(source: &Path) -> Result<Measurements, CalibrateError> {
    if source.is_dir() {
        return pairs(source, None);
    }
    let mut head = [0; MAGIC.len()];
    let read = std::fs::File::open(source)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head));
    if read.is_ok() && head == MAGIC {
        return pairs(source, None);
    }
    netpipe::read(source)
}

/// Reads the measurements between two ranks in a trace, or in one of its MPI programs.
pub fn pairs(source: &Path, program: Option<usize>) -> Result<Measurements, CalibrateError> {
    let path = trace(source);
    let mut collector = Collector::default();
    let cut = events(&path, program, |event| collector.add(event))?;
    let mut measured = collector.finish(&path.display().to_string())?;
    measured.notes.extend(cut);
    Ok(measured)
}

/// Reads the measurements of messages that meet others in a trace, or in one of its MPI programs. A cut trace is refused, since the larger
/// sizes would be missing.
pub fn exchanges(source: &Path, program: Option<usize>) -> Result<Exchanges, CalibrateError> {
    let path = trace(source);
    let mut collector = exchanges::Collector::default();
    let cut = events(&path, program, |event| collector.add(event))?;
    match cut {
        None => collector.finish(&path.display().to_string()),
        Some(what) => Err(CalibrateError::Unusable {
            from: path.display().to_string(),
            what: format!(
                "{what}; the sizes after the cut are missing, so trace the program again"
            ),
        }),
    }
}

fn trace(source: &Path) -> PathBuf {
    match source.is_dir() {
        true => source.join(TRACE_FILE),
        false => source.to_path_buf(),
    }
}

/// Passes the events of a trace on, or those of one of its MPI programs. Returns a message if the trace is cut.
fn events(
    path: &Path,
    program: Option<usize>,
    mut each: impl FnMut(&Event),
) -> Result<Option<String>, TraceError> {
    let mut programs = ProgramFinder::default();
    for event in TraceReader::open(path)?.events() {
        match event {
            Ok(event) => {
                let caller = programs.caller(&event);
                if program.is_none() || caller.map(|caller| caller.program) == program {
                    each(&event);
                }
            }
            // The events before the cut are a trace of a shorter run.
            Err(error @ TraceError::Cut { .. }) => return Ok(Some(error.to_string())),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
