//! Import of SimGrid's time-independent traces.
//!
//! Such a trace has no times. In the imported trace, a flop of work takes one nanosecond and counts as one instruction, and MPI calls
//! take no time. The imported trace therefore shows the program on a network without latency, which is what a prediction needs.
//!
//! Traces that SimGrid itself writes (`smpirun -trace-ti`) name ranks and tags by SimGrid's constants where there are none: any source, any
//! tag, `MPI_PROC_NULL`. Where the traced rank is no rank of the world, releases such as 3.32 write one number for both any source and
//! `MPI_PROC_NULL`. A receive is then from any source if a message is left for it, and from `MPI_PROC_NULL` otherwise.

mod action;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Class, Function, MpiRecord, Peer, Tag};
use nodescope_trace::NodeEntry;

use super::lines::{Lines, has_word, wrong};
use super::matching::{From, Matcher, Posted};
use super::requests::{self, Budget, Receive, Request};
use super::{Builder, CallId};
use crate::error::ImportError;
use action::{Action, Key, MOST_RANKS, smpi};

/// Reads a file of actions, or a list of such files.
pub(super) fn read(path: &Path, builder: &mut Builder) -> Result<Vec<String>, ImportError> {
    // The trace does not contain the platform: all ranks are on one node.
    builder.nodes.push(NodeEntry::UNKNOWN.into());
    let files = files(path)?;
    let mut reader = Reader {
        matcher: has_word(&files, &smpi::WILD)?.then(Matcher::default),
        builder,
        ranks: HashMap::new(),
        left_out: 0,
        guessed: 0,
    };
    for file in &files {
        let mut lines = Lines::open(file)?;
        while let Some((number, line)) = lines.next()? {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                reader.line(file, number, line)?;
            }
        }
    }
    reader.finish(path)
}

/// Returns the files with actions: those that a list names, or the file itself.
fn files(path: &Path) -> Result<Vec<PathBuf>, ImportError> {
    let mut lines = Lines::open(path)?;
    let mut files: Vec<PathBuf> = Vec::new();
    let mut read = BTreeSet::new();
    while let Some((number, line)) = lines.next()? {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if words.next().is_some() {
            let action = first.bytes().all(|byte| byte.is_ascii_digit());
            if action && files.is_empty() {
                return Ok(vec![path.into()]);
            }
            let what = match action {
                true => "an action in a list of files".into(),
                false => format!("{line:?} is no action `rank name …`"),
            };
            return Err(wrong(path, number, what));
        }
        // The list must name regular files, each only once.
        let file = resolve(path, line);
        let what = match (file.exists() && !file.is_file(), read.insert(file.clone())) {
            (true, _) => Some("is no regular file".to_owned()),
            (_, false) => Some("is named before".to_owned()),
            _ => std::fs::File::open(&file)
                .err()
                .map(|cause| format!("cannot be opened: {cause}")),
        };
        if let Some(what) = what {
            let what = format!("names {}, which {what}", file.display());
            return Err(wrong(path, number, what));
        }
        files.push(file);
    }
    Ok(files)
}

fn resolve(list: &Path, name: &str) -> PathBuf {
    match list.parent() {
        // A relative name is relative to the list's folder, where smpirun is run.
        Some(folder) if Path::new(name).is_relative() => folder.join(name),
        _ => name.into(),
    }
}

struct Reader<'a> {
    builder: &'a mut Builder,
    /// Messages and receives, if the trace has receives whose message it does not name.
    matcher: Option<Matcher>,
    ranks: HashMap<u32, Rank>,
    left_out: u64,
    guessed: u64,
}

#[derive(Default)]
struct Rank {
    process: usize,
    /// Time so far in picoseconds. The next field has the instructions so far.
    time: u64,
    instructions: f64,
    request: u64,
    /// Pending requests by sender, receiver and tag.
    pending: HashMap<Key, VecDeque<Request>>,
    /// True if sizes without a datatype count doubles, as `init` with an argument states.
    doubles: bool,
    finished: bool,
    budget: Budget,
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
        let rank: u32 = rank
            .parse()
            .ok()
            .filter(|&rank| rank < MOST_RANKS)
            .ok_or_else(|| wrong(file, line, format!("{rank:?} is no rank")))?;
        if !self.ranks.contains_key(&rank) {
            let entry = Rank {
                process: self.builder.process(0, rank, 0, "simgrid"),
                ..Rank::default()
            };
            self.ranks.insert(rank, entry);
        }
        let action = Action {
            file,
            line,
            name,
            words: words.collect(),
            doubles: self.ranks.get(&rank).is_some_and(|entry| entry.doubles),
        };
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
            "comm_size" | "comm_split" | "comm_dup" | "location" | "test" | "testany"
            | "testall" | "testsome" | "probe" | "iprobe" => {
                self.left_out += 1;
                return Ok(());
            }
            "init" => {
                entry.doubles = !action.words.is_empty();
                Function::Init
            }
            "finalize" => Function::Finalize,
            "send" => Function::Send,
            "bsend" => Function::Bsend,
            "ssend" => Function::Ssend,
            "rsend" => Function::Rsend,
            "isend" => Function::Isend,
            "ibsend" => Function::Ibsend,
            "issend" => Function::Issend,
            "irsend" => Function::Irsend,
            "sendrecv" => Function::Sendrecv,
            "waitany" => Function::Waitany,
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
            Function::Init | Function::Finalize => {}
            _ if function.class() == Class::Send || function.class() == Class::StartSend => {
                record.destination = action.receiver(0)?;
                record.send_tag = action.tag(1)?;
                record.send_bytes = action.bytes(2, 3)?;
                return self.send(rank, record, action);
            }
            Function::Recv | Function::Irecv => {
                let from = action.sender(0)?;
                record.receive_tag = action.tag(1)?;
                let unknown = action.signed(2, "count")? == -1.0;
                let room = (!unknown).then(|| action.bytes(2, 3)).transpose()?;
                return self.receive(rank, record, (from, room), action);
            }
            Function::Sendrecv => {
                // The words are: count sent, receiver, count received, sender, two types. The trace has no tags.
                (record.send_tag, record.receive_tag) = (Tag::Value(0), Tag::Value(0));
                record.destination = action.receiver(1)?;
                record.send_bytes = action.bytes(0, 4)?;
                let from = action.sender(3)?;
                self.sent(rank, &record);
                let room = Some(action.bytes(2, 5)?);
                return self.receive(rank, record, (from, room), action);
            }
            Function::Wait | Function::Waitall | Function::Waitany => {
                return self.wait(rank, record, action);
            }
            _ => return self.collective(rank, record, action),
        }
        self.put(rank, record)?;
        Ok(())
    }

    /// Tells the matcher of a message.
    fn sent(&mut self, rank: u32, record: &MpiRecord) {
        let time = self.ranks.get(&rank).map_or(0, |entry| entry.time);
        if let (Some(matcher), Peer::Rank(to), Tag::Value(tag)) =
            (&mut self.matcher, record.destination, record.send_tag)
        {
            let message = (time, record.send_bytes);
            matcher.send(communicator::WORLD, (rank, to), tag, message);
        }
    }

    fn send(
        &mut self,
        rank: u32,
        mut record: MpiRecord,
        action: &Action<'_>,
    ) -> Result<(), ImportError> {
        let Tag::Value(_) = record.send_tag else {
            return Err(action.wrong("a message has a tag of its own"));
        };
        if record.destination == Peer::Null {
            record.send_bytes = 0;
        }
        self.sent(rank, &record);
        if record.function.class() == Class::StartSend
            && let Some(entry) = self.ranks.get_mut(&rank)
        {
            entry.request += 1;
            record.request = entry.request;
            let request = Request {
                serial: entry.request,
                receive: None,
            };
            let part =
                |at, what| -> Result<i64, ImportError> { Ok(action.signed(at, what)? as i64) };
            let key = (rank.into(), part(0, "receiver")?, part(1, "tag")?);
            entry.pending.entry(key).or_default().push_back(request);
        }
        self.put(rank, record)?;
        Ok(())
    }

    /// Adds a receive from a sender (`None` for `MPI_PROC_NULL`) into a buffer (`None` if its size is unknown).
    fn receive(
        &mut self,
        rank: u32,
        mut record: MpiRecord,
        (from, room): (Option<From>, Option<u64>),
        action: &Action<'_>,
    ) -> Result<(), ImportError> {
        record.source = match from {
            Some(From::Rank(rank)) => Peer::Rank(rank),
            Some(From::Any | From::AnyOrNull) => Peer::Any,
            None => Peer::Null,
        };
        record.receive_bytes = match record.source {
            Peer::Null => 0,
            _ => room.unwrap_or(0),
        };
        let mut receive = Receive {
            source: record.source,
            tag: record.receive_tag,
            bytes: record.receive_bytes,
            handle: None,
        };
        let tag = match record.receive_tag {
            Tag::Value(tag) => Some(tag),
            Tag::Any | Tag::None => None,
        };
        let starts = record.function == Function::Irecv;
        let mut serial = 0;
        if starts && let Some(entry) = self.ranks.get_mut(&rank) {
            entry.request += 1;
            serial = entry.request;
            record.request = serial;
        } else {
            receive.complete(&mut record, 0, 0);
        }
        let call = self.put(rank, record)?;
        if let (Some(matcher), Some(from), Some(call)) = (&mut self.matcher, from, call) {
            let posted = Posted {
                call,
                from,
                tag,
                room,
                completed: (!starts).then_some((call, 0)),
            };
            receive.handle = Some(matcher.receive(communicator::WORLD, rank, posted));
        }
        if starts && let Some(entry) = self.ranks.get_mut(&rank) {
            let part =
                |at, what| -> Result<i64, ImportError> { Ok(action.signed(at, what)? as i64) };
            let key = (part(0, "sender")?, rank.into(), part(1, "tag")?);
            let request = Request {
                serial,
                receive: Some(receive),
            };
            entry.pending.entry(key).or_default().push_back(request);
        }
        Ok(())
    }

    fn wait(
        &mut self,
        rank: u32,
        mut record: MpiRecord,
        action: &Action<'_>,
    ) -> Result<(), ImportError> {
        let Some(entry) = self.ranks.get_mut(&rank) else {
            return Ok(());
        };
        record.communicator = communicator::NONE;
        let mut given: Vec<Request>;
        let mut done = vec![0];
        if record.function == Function::Wait {
            let key = action.key()?;
            let request = entry.pending.get_mut(&key).and_then(VecDeque::pop_front);
            let Some(request) = request else {
                let (from, to, tag) = key;
                return Err(action.wrong(format!(
                    "no message from {from} to {to} with tag {tag} is under way"
                )));
            };
            given = vec![request];
        } else {
            given = entry.pending.values().flatten().copied().collect();
            given.sort_by_key(|request| request.serial);
            if record.function == Function::Waitall {
                entry.pending.clear();
                done = (0..given.len()).collect();
            } else {
                // The trace does not say which request ended.
                self.guessed += 1;
                let spent = entry.budget.spend(given.len());
                spent.map_err(|what| action.wrong(what))?;
                let first = given.first().map(|request| request.serial);
                for queue in entry.pending.values_mut() {
                    queue.retain(|request| Some(request.serial) != first);
                }
                done.truncate(given.len());
            }
        }
        requests::complete(&mut record, &given, &done);
        if let Some(call) = self.put(rank, record)? {
            requests::completed(&mut self.matcher, call, &given, &done);
        }
        Ok(())
    }

    /// Adds a call of a rank at its present time.
    fn put(&mut self, rank: u32, record: MpiRecord) -> Result<Option<CallId>, ImportError> {
        let Some(entry) = self.ranks.get_mut(&rank) else {
            return Ok(None);
        };
        entry.finished |= record.function == Function::Finalize;
        let instructions = entry.instructions as u64;
        let time = (entry.time, entry.time);
        let call = self
            .builder
            .call(entry.process, record, time, (instructions, instructions))?;
        Ok(Some(call))
    }

    fn collective(
        &mut self,
        rank: u32,
        mut record: MpiRecord,
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
        self.put(rank, record)?;
        Ok(())
    }

    fn finish(mut self, path: &Path) -> Result<Vec<String>, ImportError> {
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
        self.builder.shares(path);
        let matcher = self.matcher.take().unwrap_or_default();
        let matched = matcher.finish(self.builder);
        let matched = matched.map_err(|lacking| content(lacking.to_string()))?;
        let mut notes = vec![
            "such a trace has no times: work takes a nanosecond a flop, MPI calls take none".into(),
        ];
        if self.left_out > 0 {
            notes.push(format!(
                "{} actions that SimGrid's replay ignores, or that only test, are left out",
                self.left_out
            ));
        }
        if matched.wild > 0 {
            notes.push(format!(
                "{} receives from any source or with any tag take the message that is sent first here; the traced run may have differed",
                matched.wild
            ));
        }
        if self.guessed > 0 {
            notes.push(format!(
                "{} waits for any request end the oldest one here, since the trace does not say which one ended",
                self.guessed
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
