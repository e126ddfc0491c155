//! Import of SimGrid's time-independent traces.
//!
//! Such a trace has no times. In the imported trace, a flop of work takes one nanosecond and counts as one instruction, and MPI calls
//! take no time. The imported trace therefore shows the program on a network without latency, which is what a prediction needs.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Completion, Function, Peer, Tag};
use nodescope_trace::NodeEntry;

use super::Builder;
use crate::error::ImportError;

/// Limit that every rank number must be below, so that a damaged file cannot cause a huge allocation. Real traces have fewer ranks.
const MOST_RANKS: u32 = 1 << 24;

/// Returns true if a path leads to something other than a regular file: a device or a pipe may have no end.
fn may_be_endless(path: &Path) -> bool {
    path.exists() && !path.is_file()
}

/// Reads a file of actions, or a list of such files.
pub(super) fn read(path: &Path, builder: &mut Builder) -> Result<Vec<String>, ImportError> {
    let mut reader = Reader {
        builder,
        ranks: HashMap::new(),
        skipped: 0,
    };
    builder_node(reader.builder);
    if may_be_endless(path) {
        return Err(ImportError::Unknown(path.into()));
    }
    let lines = BufReader::new(File::open(path).map_err(ImportError::io("open", path))?).lines();
    let mut files: Vec<(usize, PathBuf)> = Vec::new();
    let mut actions = false;
    for (line, number) in lines.zip(1..) {
        let line = line.map_err(|cause| unreadable(path, number, cause))?;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if words.next().is_some() && first.bytes().all(|byte| byte.is_ascii_digit()) {
            actions = true;
            reader.line(path, number, line)?;
        } else if actions || line.contains(char::is_whitespace) {
            return Err(wrong(
                path,
                number,
                format!("{line:?} is no action `rank name …`"),
            ));
        } else {
            files.push((number, resolve(path, line)));
        }
        if actions && !files.is_empty() {
            let what = "an action in a list of files".into();
            return Err(wrong(path, number, what));
        }
    }
    if !actions && files.is_empty() {
        return Err(ImportError::Unknown(path.into()));
    }
    let mut read = BTreeSet::new();
    for (number, file) in &files {
        // The list must name regular files, each only once.
        let what = match (may_be_endless(file), read.insert(file)) {
            (true, _) => Some("is no regular file"),
            (_, false) => Some("is named before"),
            _ => None,
        };
        if let Some(what) = what {
            let what = format!("names {}, which {what}", file.display());
            return Err(wrong(path, *number, what));
        }
        let input = File::open(file).map_err(|cause| {
            let what = format!("names {}, which cannot be opened: {cause}", file.display());
            wrong(path, *number, what)
        })?;
        for (line, number) in BufReader::new(input).lines().zip(1..) {
            let line = line.map_err(|cause| unreadable(file, number, cause))?;
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                reader.line(file, number, line)?;
            }
        }
    }
    reader.finish(path)
}

/// Adds one node for all ranks, since the trace does not contain the platform.
fn builder_node(builder: &mut Builder) {
    builder.nodes.push(NodeEntry::UNKNOWN.into());
}

fn resolve(list: &Path, name: &str) -> PathBuf {
    match list.parent() {
        // A relative name is relative to the list's folder, where smpirun is run.
        Some(folder) if Path::new(name).is_relative() => folder.join(name),
        _ => name.into(),
    }
}

fn wrong(file: &Path, line: usize, what: String) -> ImportError {
    ImportError::Line {
        file: file.into(),
        line,
        what,
    }
}

fn unreadable(file: &Path, line: usize, cause: std::io::Error) -> ImportError {
    match cause.kind() {
        std::io::ErrorKind::InvalidData => wrong(file, line, "is no text".into()),
        _ => ImportError::io("read", file)(cause),
    }
}

struct Reader<'a> {
    builder: &'a mut Builder,
    ranks: HashMap<u32, Rank>,
    skipped: u64,
}

/// Sender, receiver and tag.
type Key = (u32, u32, u32);
/// Request: serial number, true for a receive, and the bytes of the receive's buffer (0 for a send).
type Request = (u64, bool, u64);

#[derive(Default)]
struct Rank {
    process: usize,
    /// Time so far in picoseconds. The next field has the instructions so far.
    time: u64,
    instructions: f64,
    request: u64,
    /// Pending requests by sender, receiver and tag.
    pending: HashMap<Key, VecDeque<Request>>,
    finished: bool,
}

/// Returns the size in bytes of a SimGrid datatype by its number; `None` for numbers that such traces do not use.
fn type_bytes(number: u32) -> Option<u64> {
    Some(match number {
        0 => 8,
        1 => 4,
        2 => 1,
        3 => 2,
        4 => 8,
        5 => 4,
        6 => 1,
        _ => return None,
    })
}

/// The words of an action, and its position in the file.
struct Action<'a> {
    file: &'a Path,
    line: usize,
    name: &'a str,
    words: Vec<&'a str>,
}

impl Action<'_> {
    fn wrong(&self, what: impl std::fmt::Display) -> ImportError {
        wrong(self.file, self.line, format!("{}: {what}", self.name))
    }

    fn number(&self, at: usize, what: &str) -> Result<f64, ImportError> {
        let word = self.words.get(at);
        let word = word.ok_or_else(|| self.wrong(format!("lacks its {what}")))?;
        let number: f64 = word
            .parse()
            .map_err(|_| self.wrong(format!("{word:?} is no {what}")))?;
        // Larger numbers are not exact, and no real trace has them.
        match number.is_finite() && (0.0..=9e15).contains(&number) {
            true => Ok(number),
            false => Err(self.wrong(format!("{word} is an impossible {what}"))),
        }
    }

    fn rank(&self, at: usize, what: &str) -> Result<u32, ImportError> {
        let number = self.number(at, what)?;
        match number.fract() == 0.0 && number < f64::from(MOST_RANKS) {
            true => Ok(number as u32),
            false => Err(self.wrong(format!("{number} is no {what}"))),
        }
    }

    fn tag(&self, at: usize) -> Result<u32, ImportError> {
        let number = self.number(at, "tag")?;
        match number.fract() == 0.0 && number < 2_147_483_648.0 {
            true => Ok(number as u32),
            false => Err(self.wrong(format!("{number} is no tag"))),
        }
    }

    /// Returns the size in bytes of an element of the type in the word at index `at`; 1 if there is no such word.
    fn element(&self, at: usize) -> Result<u64, ImportError> {
        let Some(word) = self.words.get(at) else {
            return Ok(1);
        };
        let bytes = word.parse().ok().and_then(type_bytes);
        bytes.ok_or_else(|| self.wrong(format!("{word:?} is a type that is not known")))
    }

    /// Returns the total bytes of the elements whose number is in the word `count` and whose type is in the word `kind`.
    fn bytes(&self, count: usize, kind: usize) -> Result<u64, ImportError> {
        Ok(self.number(count, "count")? as u64 * self.element(kind)?)
    }
}

impl Reader<'_> {
    fn line(&mut self, file: &Path, line: usize, text: &str) -> Result<(), ImportError> {
        let mut words = text.split_whitespace();
        let rank = words.next().unwrap_or_default();
        let name = words.next().unwrap_or_default();
        if name.is_empty() {
            return Err(wrong(
                file,
                line,
                format!("{text:?} is no action `rank name …`"),
            ));
        }
        let action = Action {
            file,
            line,
            name,
            words: words.collect(),
        };
        let rank: u32 = rank
            .parse()
            .ok()
            .filter(|&rank| rank < MOST_RANKS)
            .ok_or_else(|| wrong(file, line, format!("{rank:?} is no rank")))?;
        if !self.ranks.contains_key(&rank) {
            let entry = Rank {
                process: self.builder.process(rank, 0, "simgrid"),
                ..Rank::default()
            };
            self.ranks.insert(rank, entry);
        }
        self.action(rank, &action)
    }

    fn action(&mut self, rank: u32, action: &Action<'_>) -> Result<(), ImportError> {
        let Some(entry) = self.ranks.get_mut(&rank) else {
            return Ok(());
        };
        if entry.finished {
            return Err(action.wrong("comes after the rank's finalize"));
        }
        let process = entry.process;
        let function = match action.name.to_ascii_lowercase().as_str() {
            "compute" => {
                let flops = action.number(0, "amount of work")?;
                entry.time = entry.time.saturating_add((flops * 1000.0).round() as u64);
                entry.instructions += flops;
                return Ok(());
            }
            "sleep" => {
                let seconds = action.number(0, "time")?;
                entry.time = entry.time.saturating_add((seconds * 1e12).round() as u64);
                return Ok(());
            }
            "comm_size" | "comm_split" | "comm_dup" | "location" | "test" => {
                self.skipped += 1;
                return Ok(());
            }
            "init" => Function::Init,
            "finalize" => Function::Finalize,
            "send" => Function::Send,
            "isend" => Function::Isend,
            "recv" => Function::Recv,
            "irecv" => Function::Irecv,
            "wait" => Function::Wait,
            "waitall" => Function::Waitall,
            "barrier" => Function::Barrier,
            "bcast" => Function::Bcast,
            "reduce" => Function::Reduce,
            "allreduce" => Function::Allreduce,
            "alltoall" => Function::Alltoall,
            "alltoallv" => Function::Alltoallv,
            "gather" => Function::Gather,
            "gatherv" => Function::Gatherv,
            "allgather" => Function::Allgather,
            "allgatherv" => Function::Allgatherv,
            "scatter" => Function::Scatter,
            "scatterv" => Function::Scatterv,
            "reducescatter" => Function::ReduceScatter,
            "scan" => Function::Scan,
            "exscan" => Function::Exscan,
            _ => return Err(action.wrong("is an action that is not known")),
        };
        let mut record = self.builder.record(process, function);
        record.communicator = communicator::WORLD;
        match function {
            Function::Send | Function::Isend => {
                record.destination = Peer::Rank(action.rank(0, "receiver")?);
                let tag = action.tag(1)?;
                record.send_tag = Tag::Value(tag);
                record.send_bytes = action.bytes(2, 3)?;
                if function == Function::Isend {
                    entry.request += 1;
                    record.request = entry.request;
                    let key = (rank, action.rank(0, "receiver")?, tag);
                    let request = (entry.request, false, 0);
                    entry.pending.entry(key).or_default().push_back(request);
                }
            }
            Function::Recv | Function::Irecv => {
                let (from, tag) = (action.rank(0, "sender")?, action.tag(1)?);
                record.source = Peer::Rank(from);
                record.receive_tag = Tag::Value(tag);
                record.receive_bytes = action.bytes(2, 3)?;
                if function == Function::Irecv {
                    entry.request += 1;
                    record.request = entry.request;
                    let request = (entry.request, true, record.receive_bytes);
                    let key = (from, rank, tag);
                    entry.pending.entry(key).or_default().push_back(request);
                } else {
                    record.completions.push(Completion {
                        bytes: record.receive_bytes,
                        source: record.source,
                        tag: record.receive_tag,
                        ..Completion::default()
                    });
                }
            }
            Function::Wait => {
                record.communicator = communicator::NONE;
                let key = (
                    action.rank(0, "sender")?,
                    action.rank(1, "receiver")?,
                    action.tag(2)?,
                );
                let request = entry.pending.get_mut(&key).and_then(VecDeque::pop_front);
                let Some(request) = request else {
                    let (from, to, tag) = key;
                    return Err(action.wrong(format!(
                        "no message from {from} to {to} with tag {tag} is under way"
                    )));
                };
                complete(&mut record, key, request);
            }
            Function::Waitall => {
                record.communicator = communicator::NONE;
                let mut pending: Vec<_> = entry
                    .pending
                    .drain()
                    .flat_map(|(key, queue)| queue.into_iter().map(move |request| (key, request)))
                    .collect();
                pending.sort_by_key(|(_, (serial, ..))| *serial);
                for (key, request) in pending {
                    complete(&mut record, key, request);
                }
            }
            _ => return self.collective(rank, record, action),
        }
        self.put(rank, record);
        Ok(())
    }

    fn put(&mut self, rank: u32, record: nodescope_hypercall::MpiRecord) {
        if let Some(entry) = self.ranks.get_mut(&rank) {
            entry.finished |= record.function == Function::Finalize;
            let instructions = entry.instructions as u64;
            let time = (entry.time, entry.time);
            self.builder
                .call(entry.process, record, time, (instructions, instructions));
        }
    }

    fn collective(
        &mut self,
        rank: u32,
        mut record: nodescope_hypercall::MpiRecord,
        action: &Action<'_>,
    ) -> Result<(), ImportError> {
        let words = action.words.len();
        let counts = |from: usize, to: usize| -> Result<Vec<u64>, ImportError> {
            (from..to)
                .map(|at| Ok(action.number(at, "count")? as u64))
                .collect()
        };
        let rooted = |at: usize| -> Result<Peer, ImportError> {
            match at < words {
                true => Ok(Peer::Rank(action.rank(at, "root")?)),
                false => Ok(Peer::Rank(0)),
            }
        };
        // The number of ranks is known only at the end: sums that need it are made then, sums of lists are made here.
        match record.function {
            Function::Bcast => {
                let bytes = action.bytes(0, 2)?;
                record.root = rooted(1)?;
                match record.root == Peer::Rank(rank) {
                    true => record.send_bytes = bytes,
                    false => record.receive_bytes = bytes,
                }
            }
            Function::Reduce => {
                record.send_bytes = action.bytes(0, 3)?;
                record.root = rooted(2)?;
                if record.root == Peer::Rank(rank) {
                    record.receive_bytes = record.send_bytes;
                }
                record.reduction = nodescope_hypercall::Reduction::Sum;
            }
            Function::Allreduce | Function::Scan | Function::Exscan => {
                record.send_bytes = action.bytes(0, 2)?;
                record.receive_bytes = record.send_bytes;
                record.reduction = nodescope_hypercall::Reduction::Sum;
            }
            Function::Alltoall | Function::Allgather => {
                record.send_bytes = action.bytes(0, 2)?;
                record.receive_bytes = action.bytes(1, 3)?;
            }
            Function::Gather | Function::Scatter => {
                record.send_bytes = action.bytes(0, 3)?;
                record.receive_bytes = action.bytes(1, 4)?;
                record.root = rooted(2)?;
            }
            Function::Allgatherv | Function::Gatherv => {
                // The words are: send size, a count for each rank, the root (of gatherv only), two types.
                let rest = if record.function == Function::Gatherv {
                    3
                } else {
                    2
                };
                let last = words.checked_sub(rest).filter(|&last| last > 1);
                let last = last.ok_or_else(|| action.wrong("lacks counts"))?;
                record.send_bytes = action.bytes(0, words - 2)?;
                let element = action.element(words - 1)?;
                let list = counts(1, last)?;
                record.receive_bytes_from = list.iter().map(|count| count * element).collect();
                if record.function == Function::Gatherv {
                    record.root = rooted(last)?;
                }
                let own = record.root == Peer::None || record.root == Peer::Rank(rank);
                if !own {
                    record.receive_bytes_from.clear();
                }
                record.receive_bytes = sum(&record.receive_bytes_from);
            }
            Function::Scatterv => {
                // The words are: a count for each rank, receive size, root and two types.
                let last = words.checked_sub(4).filter(|&last| last > 0);
                let last = last.ok_or_else(|| action.wrong("lacks counts"))?;
                let element = action.element(words - 2)?;
                record.root = rooted(last + 1)?;
                record.receive_bytes = action.bytes(last, words - 1)?;
                if record.root == Peer::Rank(rank) {
                    let list = counts(0, last)?;
                    record.send_bytes_to = list.iter().map(|count| count * element).collect();
                    record.send_bytes = sum(&record.send_bytes_to);
                }
            }
            Function::ReduceScatter => {
                let last = words.checked_sub(2).filter(|&last| last > 0);
                let last = last.ok_or_else(|| action.wrong("lacks counts"))?;
                let element = action.element(words - 1)?;
                let list = counts(0, last)?;
                record.send_bytes_to = list.iter().map(|count| count * element).collect();
                record.send_bytes = sum(&record.send_bytes_to);
                let own = record.send_bytes_to.get(rank as usize).copied();
                record.receive_bytes =
                    own.ok_or_else(|| action.wrong("lacks the rank's own count"))?;
                record.reduction = nodescope_hypercall::Reduction::Sum;
            }
            Function::Alltoallv => {
                // The words are: send size, counts, receive size, counts, two types.
                let ranks = words.saturating_sub(4) / 2;
                if ranks == 0 || words != 2 * ranks + 4 {
                    return Err(action.wrong("lacks counts"));
                }
                let (out, into) = (action.element(words - 2)?, action.element(words - 1)?);
                let sent = counts(1, 1 + ranks)?;
                let received = counts(2 + ranks, 2 + 2 * ranks)?;
                record.send_bytes_to = sent.iter().map(|count| count * out).collect();
                record.receive_bytes_from = received.iter().map(|count| count * into).collect();
                record.send_bytes = sum(&record.send_bytes_to);
                record.receive_bytes = sum(&record.receive_bytes_from);
            }
            _ => {}
        }
        self.put(rank, record);
        Ok(())
    }

    fn finish(self, path: &Path) -> Result<Vec<String>, ImportError> {
        let size = self.ranks.len() as u32;
        let content = |what: String| ImportError::Content {
            file: path.into(),
            what,
        };
        if let Some(missing) = (0..size).find(|rank| !self.ranks.contains_key(rank)) {
            let largest = self.ranks.keys().max().copied().unwrap_or(0);
            return Err(content(format!(
                "has rank {largest} and nothing of rank {missing}"
            )));
        }
        for (rank, entry) in &self.ranks {
            let open: usize = entry.pending.values().map(VecDeque::len).sum();
            if !entry.finished && open > 0 {
                return Err(content(format!(
                    "rank {rank} ends without finalize and with {open} messages under way: the trace is cut"
                )));
            }
        }
        self.builder.shares(size, path)?;
        let mut notes = vec![
            "such a trace has no times: work takes a nanosecond a flop, MPI calls take none".into(),
        ];
        if self.skipped > 0 {
            notes.push(format!(
                "{} actions that SimGrid's replay ignores, or that only test, are left out",
                self.skipped
            ));
        }
        Ok(notes)
    }
}

/// Returns the sum of numbers from a file, saturating, since the file may have any numbers.
fn sum(list: &[u64]) -> u64 {
    list.iter()
        .fold(0, |sum: u64, &bytes| sum.saturating_add(bytes))
}

fn complete(
    record: &mut nodescope_hypercall::MpiRecord,
    (from, _, tag): Key,
    (serial, receives, bytes): Request,
) {
    let index = record.requests.len() as u32;
    record.requests.push(serial);
    record.completions.push(Completion {
        request: serial,
        index,
        bytes: if receives { bytes } else { 0 },
        source: if receives {
            Peer::Rank(from)
        } else {
            Peer::None
        },
        tag: if receives { Tag::Value(tag) } else { Tag::None },
        cancelled: false,
    });
}
