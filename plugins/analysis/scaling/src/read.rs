//! Runs from results folders, or from the JSON of an earlier analysis.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::analysis::Analysis;
use crate::point::{Point, PointError};

/// Reason for which results cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system reports an error.
    #[error("cannot read {}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The folder is not that of a complete run.
    #[error("{} holds no report.json; give folders that `nodescope run` has completed, or the JSON of `nodescope scaling --json`", .0.display())]
    NoReport(PathBuf),
    /// A file of the folder cannot be used.
    #[error("{}", folder.display())]
    Point {
        /// Path of the folder.
        folder: PathBuf,
        /// Name of the file, and what is wrong with it.
        source: PointError,
    },
    /// The file is not the JSON of an analysis.
    #[error("{} is not the JSON of `nodescope scaling --json`, version {}: {why}", path.display(), Analysis::VERSION)]
    NoAnalysis {
        /// Path of the file.
        path: PathBuf,
        /// The parser's message.
        why: String,
    },
}

/// Reads the runs of each path: a results folder is one run, a file contains the runs of an earlier analysis. For folders, reads the
/// window of the given name, or the first complete window, and the MPI program of the given number, or the only one.
///
/// # Errors
///
/// Fails at the first path that cannot be read.
pub fn read(
    paths: &[PathBuf],
    window: Option<&str>,
    program: Option<usize>,
) -> Result<Vec<Point>, ReadError> {
    let mut points = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => points.push(of_folder(path, window, program)?),
            false => points.extend(of_file(path)?),
        }
    }
    Ok(points)
}

fn text(path: &Path) -> Result<String, ReadError> {
    fs::read_to_string(path).map_err(|source| ReadError::Io {
        path: path.to_owned(),
        source,
    })
}

fn of_folder(
    folder: &Path,
    window: Option<&str>,
    program: Option<usize>,
) -> Result<Point, ReadError> {
    let report = folder.join("report.json");
    if !report.is_file() {
        return Err(ReadError::NoReport(folder.to_owned()));
    }
    let report = text(&report)?;
    let host = folder.join("host.json");
    let host = host.is_file().then(|| text(&host)).transpose()?;
    let point = Point::read(&report, host.as_deref(), window, program);
    point.map_err(|source| ReadError::Point {
        folder: folder.to_owned(),
        source,
    })
}

fn of_file(path: &Path) -> Result<Vec<Point>, ReadError> {
    let analysis = Analysis::parse(&text(path)?).map_err(|why| ReadError::NoAnalysis {
        path: path.to_owned(),
        why,
    })?;
    Ok(analysis
        .series
        .into_iter()
        .flat_map(|series| series.points)
        .collect())
}
