//! Reader of NetPIPE's output file, with the columns bytes, Mbit/s, seconds one way (Turner and others, NetPIPE 3.7 and 5).

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::{CalibrateError, Measurements, Sample};

/// Relative difference that is allowed between the rate and the seconds of a line, beyond the rounding of the seconds.
const AGREEMENT: f64 = 0.05;
/// Most bytes that are read from a file; NetPIPE writes a few thousand.
const LARGEST: u64 = 16 << 20;
/// Half of the last of the eight decimals in which NetPIPE prints seconds, in nanoseconds.
const ROUNDING: f64 = 5.0;

/// Reads the output in file `path`.
///
/// # Errors
///
/// A file that cannot be read or has more than 16 MiB, or what [`parse`] refuses.
pub fn read(path: &Path) -> Result<Measurements, CalibrateError> {
    let mut bytes = Vec::new();
    // A device or a pipe may have no end, so the read has a limit.
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
    let too_large =
        || std::io::Error::other("has more than 16 MiB; give the file that NetPIPE wrote");
    read.and_then(|count| {
        (count as u64 <= LARGEST)
            .then_some(())
            .ok_or_else(too_large)
    })
    .map_err(|cause| CalibrateError::Io {
        file: path.into(),
        cause,
    })?;
    parse(path, &String::from_utf8_lossy(&bytes))
}

/// Reads the text of NetPIPE's output.
///
/// # Errors
///
/// Lines with fewer than three numbers, numbers that are not positive, sizes that are not whole or do not ascend, columns that do not
/// agree, fewer than two sizes. Empty lines and lines that begin with `#` are skipped.
pub fn parse(file: &Path, text: &str) -> Result<Measurements, CalibrateError> {
    let mut rows: Vec<(usize, [f64; 3])> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |what: String| CalibrateError::Line {
            file: file.into(),
            line: number + 1,
            what,
        };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let columns: Vec<&str> = line.split_whitespace().collect();
        let mut row = [0.0_f64; 3];
        if columns.len() < row.len() {
            return Err(wrong(format!(
                "{} column{}, but NetPIPE writes three: bytes, Mbit/s, seconds",
                columns.len(),
                if columns.len() == 1 { "" } else { "s" },
            )));
        }
        for ((column, value), name) in
            (columns.iter().zip(&mut row)).zip(["bytes", "Mbit/s", "seconds"])
        {
            *value = column.parse().map_err(|_| {
                wrong(format!(
                    "{column:?} in the column of {name} is not a number"
                ))
            })?;
            if !value.is_finite() || *value <= 0.0 {
                return Err(wrong(format!(
                    "{column} in the column of {name} is not a positive number"
                )));
            }
        }
        if row[0].fract() != 0.0 || row[0] > (1_u64 << 50) as f64 {
            return Err(wrong(format!("{} is no number of bytes", columns[0])));
        }
        if let Some(&(_, [before, ..])) = rows.last()
            && before >= row[0]
        {
            return Err(wrong(format!(
                "{} bytes come after {before}; NetPIPE's sizes ascend, so is this the output of several runs?",
                row[0]
            )));
        }
        rows.push((number + 1, row));
    }
    if rows.len() < 2 {
        return Err(CalibrateError::Unusable {
            from: file.display().to_string(),
            what: match rows.len() {
                0 => "is empty; give NetPIPE's output file (np.out, or what -o named)".into(),
                _ => {
                    "has one size only, from which latency and bandwidth do not both follow".into()
                }
            },
        });
    }
    let megabit = megabit(file, &rows)?;
    let one_way = (rows.iter())
        .map(|&(_, [bytes, rate, _])| Sample {
            bytes: bytes as u64,
            // The time follows from the rate, because the seconds have few digits.
            time: bytes * 8e9 / (rate * megabit),
            count: 0,
            spread: 0.0,
        })
        .collect();
    Ok(Measurements {
        source: file.display().to_string(),
        one_way,
        ..Measurements::default()
    })
}

/// Returns the number of bits in the file's megabit: 2^20 in NetPIPE 3, 10^6 in NetPIPE 5. Rates and seconds agree with one of them only.
fn megabit(file: &Path, rows: &[(usize, [f64; 3])]) -> Result<f64, CalibrateError> {
    let worst = |megabit: f64| {
        let off = rows.iter().map(|&(line, [bytes, rate, seconds])| {
            let time = bytes * 8e9 / (rate * megabit);
            let room = ROUNDING + AGREEMENT * time;
            ((time - seconds * 1e9).abs() / room, line)
        });
        off.fold(
            (0.0, 0),
            |worst, off| if off.0 > worst.0 { off } else { worst },
        )
    };
    let total = |megabit: f64| {
        let off = rows.iter().map(|&(_, [bytes, rate, seconds])| {
            (bytes * 8e9 / (rate * megabit) - seconds * 1e9).abs() / (seconds * 1e9)
        });
        off.sum::<f64>()
    };
    let candidates = [1_048_576.0, 1e6];
    let best = if total(candidates[0]) <= total(candidates[1]) {
        candidates[0]
    } else {
        candidates[1]
    };
    let (off, line) = worst(best);
    if off > 1.0 {
        return Err(CalibrateError::Line {
            file: file.into(),
            line,
            what: "the rate and the seconds do not agree; NetPIPE's columns are bytes, Mbit/s, seconds".into(),
        });
    }
    Ok(best)
}
