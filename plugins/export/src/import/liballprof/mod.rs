//! Import of traces of liballprof, the tracer of the LogGOPSim tools: a text file for each rank, whose name ends in the rank.
//!
//! A line has a call's arguments at its begin and its end, but not what the call found out. The import completes this:
//!
//! - The message of a receive follows from the sends of all ranks (`matching`), since statuses are not in the trace.
//! - A request is the address of its variable. Waits name the address of the first of several requests, whose distance depends on the MPI.
//! - `MPI_Waitany` and `MPI_Waitsome` end the oldest request. A request that only tests can have ended ends in the last such test.
//! - The first call of a rank that shows a communicator of all ranks shows `MPI_COMM_WORLD`; see `communicators` for the others.
//!
//! Clocks of ranks begin at the end of each rank's `MPI_Init`, inside of which liballprof synchronises the ranks.

mod call;
mod communicators;
mod rank;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nodescope_hypercall::Function;

use super::Builder;
use super::lines::{Lines, wrong};
use super::matching::{Matched, Matcher};
use crate::error::ImportError;
use call::{Call, Other};
use communicators::Recorder;
use rank::Rank;

/// Largest number of ranks that is searched for. Real traces have fewer.
const MOST_RANKS: u32 = 1 << 20;

/// Reads the trace to which a rank's file belongs.
pub(super) fn read(path: &Path, builder: &mut Builder) -> Result<Vec<String>, ImportError> {
    let files = files(path)?;
    let mut recorders = Vec::new();
    let mut nodes: BTreeMap<String, u32> = BTreeMap::new();
    for (rank, file) in files.iter().enumerate() {
        let (recorder, host) = survey(file, files.len(), rank)?;
        recorders.push(recorder);
        let next = nodes.len() as u32;
        let node = *nodes.entry(host.clone()).or_insert(next);
        if node == next {
            builder.nodes.push(host.clone());
        }
        builder.process(0, rank as u32, node, &host);
    }
    let mut matcher = Some(Matcher::default());
    let mut counts = Counts::default();
    let resolved = communicators::resolve(recorders);
    for ((process, file), resolved) in files.iter().enumerate().zip(resolved) {
        let mut rank = Rank::new(
            (process, file),
            resolved,
            builder,
            &mut matcher,
            &mut counts,
        );
        let mut lines = Lines::open(file)?;
        let mut finished = false;
        while let Some((number, line)) = lines.next()? {
            let Some(call) = parsed(file, number, line, &mut rank.counts.other)? else {
                continue;
            };
            finished |= call.function == Some(Function::Finalize);
            rank.call(number, &call)?;
        }
        if !finished {
            return Err(ImportError::Content {
                file: file.clone(),
                what: "ends without MPI_Finalize: the trace is cut".into(),
            });
        }
        rank.end();
    }
    let matched = matcher.unwrap_or_default().finish(builder);
    let matched = matched.map_err(|lacking| ImportError::Content {
        file: path.into(),
        what: format!("{lacking}: a rank's file is cut or missing"),
    })?;
    Ok(counts.notes(matched))
}

/// Returns the files of all ranks, in the order of the ranks, from the file of one of them.
fn files(path: &Path) -> Result<Vec<PathBuf>, ImportError> {
    let content = |what: &str| ImportError::Content {
        file: path.into(),
        what: what.into(),
    };
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| content("has a name that is no text"))?;
    // The rank is the last number of the name before its extension.
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let prefix = stem.trim_end_matches(|letter: char| letter.is_ascii_digit());
    if prefix == stem {
        return Err(content(
            "is a liballprof trace whose name does not end in its rank, such as pmpi-trace-rank-0.txt",
        ));
    }
    let suffix = &name[stem.len()..];
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    let mut found: BTreeMap<u32, PathBuf> = BTreeMap::new();
    let entries = std::fs::read_dir(folder).map_err(ImportError::io("read", folder))?;
    for entry in entries.filter_map(Result::ok) {
        let other = entry.file_name();
        let digits = other
            .to_str()
            .and_then(|other| other.strip_prefix(prefix)?.strip_suffix(suffix));
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let rank = digits.and_then(|digits| digits.parse().ok());
        let Some(rank) = rank.filter(|&rank| rank < MOST_RANKS) else {
            continue;
        };
        if !entry.path().is_file() {
            continue;
        }
        if let Some(earlier) = found.insert(rank, entry.path()) {
            return Err(ImportError::Content {
                file: entry.path(),
                what: format!("and {} are both of rank {rank}", earlier.display()),
            });
        }
    }
    for (expected, rank) in (0u32..).zip(found.keys()) {
        if expected != *rank {
            let what = format!("has files of rank {rank} and none of rank {expected}");
            return Err(content(&what));
        }
    }
    Ok(found.into_values().collect())
}

/// Returns the call of a line; `None` for comments, empty lines and calls that are not used, of which those of functions that nodescope
/// traces are counted in `other`.
fn parsed(
    file: &Path,
    number: usize,
    line: &str,
    other: &mut BTreeMap<String, u64>,
) -> Result<Option<Call>, ImportError> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    match call::parse(line) {
        Ok(call) => Ok(Some(call)),
        Err(Other::Function(name)) => {
            if super::function_named(&name).is_some() {
                *other.entry(name).or_default() += 1;
            }
            Ok(None)
        }
        Err(Other::Wrong(what)) => Err(wrong(file, number, what)),
    }
}

/// Reads a rank's file once, for its communicators and the name of its host. `ranks` is the number of files.
fn survey(file: &Path, ranks: usize, rank: usize) -> Result<(Recorder, String), ImportError> {
    let mut recorder = Recorder::default();
    let mut host = String::new();
    let mut lines = Lines::open(file)?;
    let mut ignored = BTreeMap::new();
    while let Some((number, line)) = lines.next()? {
        for mark in ["# hostname:", "# host:"] {
            if let Some(name) = line.strip_prefix(mark) {
                // liballprof writes `(none)` where the domain is not set.
                host = name.trim().trim_end_matches(".(none)").to_owned();
            }
        }
        let Some(call) = parsed(file, number, line, &mut ignored)? else {
            continue;
        };
        if let Some(shown) = call.arguments.communicator
            && shown.size as usize > ranks
        {
            let what = format!(
                "shows a communicator of {} ranks, and the trace has {ranks} files: files of ranks are missing",
                shown.size
            );
            return Err(wrong(file, number, what));
        }
        recorder.call(&call);
    }
    if host.is_empty() {
        host = format!("node{rank}");
    }
    Ok((recorder, host))
}

/// Numbers of calls that the new trace lacks, or of which it had to guess something.
#[derive(Debug, Default)]
struct Counts {
    other: BTreeMap<String, u64>,
    unknown_communicator: u64,
    lacks_counts: u64,
    guessed: u64,
    lost: u64,
}

impl Counts {
    fn notes(&self, matched: Matched) -> Vec<String> {
        let mut notes = Vec::new();
        let mut tell = |count: u64, what: &str| {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        };
        tell(
            matched.wild,
            "receives from any source or with any tag take the message that is sent first here; the traced run may have differed",
        );
        tell(matched.left, "messages are received by no rank");
        tell(
            self.guessed,
            "waits for any or some requests end the oldest one here, since the trace does not say which ones ended",
        );
        tell(self.lost, "requests have no call that can have ended them");
        tell(
            self.unknown_communicator,
            "calls on communicators whose members the trace does not tell are left out, and their time counts as work",
        );
        tell(
            self.lacks_counts,
            "collective calls without their counts by rank are left out, and their time counts as work",
        );
        for (function, count) in &self.other {
            tell(
                *count,
                &format!("calls of {function} are left out, and their time counts as work"),
            );
        }
        notes
    }
}
