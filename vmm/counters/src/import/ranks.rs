//! Assignment of imported files to MPI ranks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::Part;
use crate::error::CountersError;
use crate::measurement::{Counts, Measurement, Reading};
use crate::quantity::Quantity;

/// Lists the path itself if it is a file, or else the files of the folder, sorted by path. Hidden files are left out.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>, CountersError> {
    let io = |source| CountersError::Io {
        path: path.to_path_buf(),
        source,
    };
    if !fs::metadata(path).map_err(io)?.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && fs::metadata(entry.path()).map_err(io)?.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(CountersError::Files {
            path: path.to_path_buf(),
            message: "has no files; give the folder that the measurement's files are in".into(),
        });
    }
    Ok(files)
}

/// Joins the contents of the files into one measurement.
pub(super) fn join(measurement: &mut Measurement, parts: Vec<Part>) -> Result<(), CountersError> {
    let several = parts.len() > 1;
    for (file, part) in parts.into_iter().enumerate() {
        let path = measurement.files[file].clone();
        let wrong = |message: String| CountersError::Files {
            path: path.clone(),
            message,
        };
        if file == 0 {
            measurement.tool = part.tool;
            measurement.processor = part.processor;
        } else if measurement.tool != part.tool {
            return Err(wrong(format!(
                "is of {}, but {} is of {}; give files of one tool",
                part.tool,
                measurement.files[0].display(),
                measurement.tool
            )));
        }
        for note in part.notes {
            if !measurement.notes.contains(&note) {
                measurement.notes.push(note);
            }
        }
        let ranks = match (part.ranks, several) {
            (ranks, _) if !ranks.is_empty() => ranks,
            (_, false) => {
                measurement.whole = part.whole;
                return Ok(());
            }
            (_, true) => {
                let rank = rank_of(&path).ok_or_else(|| {
                    wrong("is one of several files, but its name has no rank; name them e.g. perf.0.csv, perf.1.csv".into())
                })?;
                BTreeMap::from([(rank, part.whole)])
            }
        };
        for (rank, counts) in ranks {
            if measurement.ranks.insert(rank, counts).is_some() {
                return Err(wrong(format!(
                    "is of rank {rank}, of which another file is, too; give one file for each rank"
                )));
            }
        }
    }
    // Shares of the ranks cannot be added, so they become counts before the ranks are summed.
    if measurement.ranks.values().any(Counts::has_shares) {
        for counts in measurement.ranks.values_mut() {
            to_counts(counts);
        }
        measurement
            .notes
            .push("shares of the ranks are weighed by their cycles".into());
    }
    measurement.sum_ranks();
    Ok(())
}

/// Turns the shares of a rank into counts of cycles and slots, so that ranks can be added. The rank's cycles are the weight, with one slot
/// a cycle. A rank without a count of cycles keeps its shares.
fn to_counts(counts: &mut Counts) {
    let Some(cycles) = counts.value(Quantity::Cycles) else {
        return;
    };
    let mut slots = false;
    for reading in &mut counts.readings {
        let quantity = match reading.quantity {
            Some(Quantity::ShareMemory) => Quantity::StallsMemory,
            Some(Quantity::ShareRetiring) => Quantity::SlotsRetiring,
            Some(Quantity::ShareBadSpeculation) => Quantity::SlotsBadSpeculation,
            Some(Quantity::ShareFrontend) => Quantity::SlotsFrontend,
            Some(Quantity::ShareBackend) => Quantity::SlotsBackend,
            _ => continue,
        };
        slots |= quantity != Quantity::StallsMemory;
        reading.quantity = Some(quantity);
        reading.value = reading.value.map(|share| share * cycles);
    }
    if slots {
        let position = counts.readings.first().and_then(|reading| reading.position);
        counts.readings.push(Reading {
            quantity: Some(Quantity::Slots),
            ..Reading::new("slots (one a cycle)", cycles, position)
        });
    }
}

/// Returns the rank in a file's name: the number at the end of the last dot-separated part that ends with digits.
fn rank_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let parts: Vec<&str> = name.split('.').collect();
    let number = |part: &&str| {
        let digits = part.len() - part.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        part[part.len() - digits..].parse().ok()
    };
    parts.iter().rev().find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_ranks() {
        for (name, rank) in [
            ("perf.0.csv", Some(0)),
            ("rank_000012.json", Some(12)),
            ("perf.csv.3", Some(3)),
            ("rank7", Some(7)),
            ("perf.csv", None),
            ("perf.99999999999.csv", None),
        ] {
            assert_eq!(rank_of(Path::new(name)), rank, "{name}");
        }
    }
}
