//! Import of counters from files of other tools and of `nodescope counters`. The content of a file decides which format it has.

mod likwid;
mod located;
mod nodescope;
mod papi;
mod perf_csv;
mod perf_json;
mod ranks;
mod table;
mod vtune;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::CountersError;
use crate::measurement::{Counts, FilePosition, Measurement};
use located::{Refusal, Text, line_and_column};

/// Largest size of a file that is read, in bytes.
const LARGEST: u64 = 16 << 20;

/// The content of one file.
#[derive(Debug, Default)]
struct Part {
    tool: String,
    processor: Option<String>,
    /// Counts by rank, if the file names ranks; otherwise the counts are in `whole`.
    ranks: BTreeMap<u32, Counts>,
    whole: Counts,
    notes: Vec<String>,
}

/// Reads files, or all files of folders, into one measurement. If several files are given, a file whose content names no ranks is assigned
/// to the rank in its file name, as in `perf.0.csv`.
///
/// # Errors
///
/// Files that cannot be read, have no known format, are damaged, or contradict themselves or each other. The error names the file and, if
/// the problem has a position, line and column.
pub fn import(paths: &[PathBuf]) -> Result<Measurement, CountersError> {
    let mut files = Vec::new();
    for path in paths {
        files.extend(ranks::files(path)?);
    }
    if files.is_empty() {
        return Err(CountersError::Nothing(
            "no file of counters is given; name at least one".into(),
        ));
    }
    let mut measurement = Measurement {
        files,
        ..Measurement::default()
    };
    let texts = (measurement.files.iter()).map(|path| read(path));
    let texts = texts.collect::<Result<Vec<String>, _>>()?;
    let refused = |files: &[PathBuf], position: FilePosition, message| {
        let (line, column) = line_and_column(&texts[position.file], position.offset);
        CountersError::Refused {
            file: files[position.file].clone(),
            line,
            column,
            message,
        }
    };
    let mut parts = Vec::new();
    for (file, text) in texts.iter().enumerate() {
        let part = parse(Text { file, text });
        parts.push(
            part.map_err(|refusal| refused(&measurement.files, refusal.position, refusal.message))?,
        );
    }
    ranks::join(&mut measurement, parts)?;
    // Contradictory counts are refused here, when the file is read, not when the counts are used.
    match measurement.check() {
        Ok(()) => Ok(measurement),
        Err(problem) => Err(match problem.position {
            Some(position) => refused(&measurement.files, position, problem.message),
            None => CountersError::Files {
                path: measurement.files[0].clone(),
                message: problem.message,
            },
        }),
    }
}

fn read(path: &Path) -> Result<String, CountersError> {
    let io = |source| CountersError::Io {
        path: path.to_path_buf(),
        source,
    };
    let wrong = |message: &str| CountersError::Files {
        path: path.to_path_buf(),
        message: message.to_owned(),
    };
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(wrong(
            "is no file; give the file that perf, LIKWID, PAPI, VTune or nodescope counters wrote",
        ));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
        .map_err(io)?;
    if bytes.len() as u64 > LARGEST {
        return Err(wrong("has more than 16 MiB; give a summary, not samples"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let bytes = error.into_bytes();
        let text = String::from_utf8_lossy(&bytes[..valid]);
        let (line, column) = line_and_column(&text, valid);
        CountersError::Refused {
            file: path.to_path_buf(),
            line,
            column,
            message: "is not UTF-8 text from here on; give the tool's text output".into(),
        }
    })
}

/// Reads one file in the format that its content shows.
fn parse(text: Text<'_>) -> Result<Part, Refusal> {
    // `perf stat -o` begins with a comment that has the time.
    let lines = text
        .text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let Some(first) = lines.clone().next() else {
        return Err(text.refuse(
            0,
            "is empty; give the file that perf, LIKWID, PAPI, VTune or nodescope counters wrote",
        ));
    };
    let start = first.trim_start();
    if start.starts_with('{') {
        if start.contains("\"counter-value\"") {
            return perf_json::parse(text);
        }
        return match papi::is_papi(text)? {
            true => papi::parse(text),
            false => nodescope::parse(text),
        };
    }
    if lines
        .clone()
        .any(|line| line.starts_with("TABLE,") || line.starts_with("STRUCT,Info"))
    {
        return likwid::parse(text);
    }
    if vtune::is_header(first) {
        return vtune::parse(text);
    }
    if perf_csv::separator(first).is_some() {
        return perf_csv::parse(text);
    }
    Err(text.refuse(
        text.offset(first),
        "is no format of counters that is known here; give the output of perf stat -x, or -j, likwid-perfctr -O, PAPI's papi_hl_output, vtune -report summary -format csv, or nodescope counters --json",
    ))
}
