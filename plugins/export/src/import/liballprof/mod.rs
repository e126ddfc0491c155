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

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Class, Completion, Function, MpiRecord, Peer, Reduction, Tag};

use super::build::{Patch, sums};
use super::lines::{Lines, wrong};
use super::matching::{From, Matched, Matcher, Posted};
use super::requests::{self, Receive, Request};
use super::{Builder, CallId};
use crate::error::ImportError;
use call::{Arguments, Call, Other};
use communicators::{Known, Recorder};

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
    let mut tests = HashMap::new();
    let resolved = communicators::resolve(recorders);
    for ((process, file), resolved) in files.iter().enumerate().zip(resolved) {
        let mut rank = Rank {
            process,
            file,
            builder,
            matcher: &mut matcher,
            counts: &mut counts,
            tests: &mut tests,
            uses: resolved.uses.into_iter(),
            made: resolved.made.into_iter(),
            interface: Interface::OpenMpi,
            bound: HashMap::new(),
            origin: None,
            last: 0,
            serial: 0,
            slots: BTreeMap::new(),
            prepared: BTreeMap::new(),
        };
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

/// A request under way, with the last test that it was given to.
#[derive(Clone, Copy, Debug)]
struct Open {
    request: Request,
    tested: Option<(CallId, u32)>,
}

/// A persistent request.
#[derive(Clone, Debug)]
struct Prepared {
    starts: Function,
    arguments: Arguments,
    known: Known,
}

/// A rank whose file is read.
struct Rank<'a> {
    process: usize,
    file: &'a Path,
    builder: &'a mut Builder,
    matcher: &'a mut Option<Matcher>,
    counts: &'a mut Counts,
    /// Number of completions that were added to each test.
    tests: &'a mut HashMap<CallId, u32>,
    uses: std::vec::IntoIter<Option<Known>>,
    made: std::vec::IntoIter<Option<Known>>,
    interface: Interface,
    bound: HashMap<u64, (call::Communicator, Option<Known>)>,
    /// Time of the rank's clock at the end of `MPI_Init`, microseconds.
    origin: Option<f64>,
    /// End of the rank's latest call, picoseconds.
    last: u64,
    serial: u64,
    /// Requests under way by the addresses of their variables.
    slots: BTreeMap<u64, Open>,
    prepared: BTreeMap<u64, Prepared>,
}

/// MPI and its interface that a rank called, which the first communicator shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interface {
    /// Open MPI's C interface: handles are addresses.
    OpenMpi,
    /// Open MPI's Fortran interface: handles are small ints.
    OpenMpiFortran,
    /// MPICH: handles are ints with fixed bits.
    Mpich,
}

impl Interface {
    /// Returns the interface of which this is the handle of `MPI_COMM_WORLD` or `MPI_COMM_SELF`.
    fn of(handle: u64) -> Interface {
        match handle {
            0..=0xffff => Interface::OpenMpiFortran,
            0x4400_0000 | 0x4400_0001 => Interface::Mpich,
            _ => Interface::OpenMpi,
        }
    }

    /// Returns the bytes of a variable for a request.
    fn request_size(self) -> u64 {
        match self {
            Interface::OpenMpi => 8,
            Interface::OpenMpiFortran | Interface::Mpich => 4,
        }
    }

    /// Returns the number for any source. The other of -1 and -2 is `MPI_PROC_NULL`.
    fn any_source(self) -> i64 {
        match self {
            Interface::OpenMpi | Interface::OpenMpiFortran => -1,
            Interface::Mpich => -2,
        }
    }
}

impl Rank<'_> {
    fn wrong(&self, line: usize, what: impl Into<String>) -> ImportError {
        wrong(self.file, line, what)
    }

    /// Returns picoseconds since the rank's `MPI_Init`.
    fn time(&self, line: usize, microseconds: f64) -> Result<u64, ImportError> {
        let since = (microseconds - self.origin.unwrap_or(microseconds)) * 1e6;
        // The whole run must fit into the picoseconds of a trace: 213 days.
        match since < 1.8e19 {
            true => Ok(since.max(0.0) as u64),
            false => Err(self.wrong(line, "is too long after MPI_Init")),
        }
    }

    fn call(&mut self, line: usize, call: &Call) -> Result<(), ImportError> {
        let known = self.communicator(call);
        let made = match call.function {
            Some(Function::CommSplit | Function::CommDup | Function::CartCreate) => {
                self.made.next()
            }
            _ => None,
        };
        let Some(function) = call.function else {
            return Ok(());
        };
        if let (true, Some(end)) = (self.origin.is_none(), call.begin.or(call.end)) {
            // MPI_Init has only an end.
            self.origin = Some(end);
        }
        let begin = call.begin.or(call.end);
        let begin = begin.ok_or_else(|| self.wrong(line, "has no time"))?;
        let begin = self.time(line, begin)?.max(self.last);
        let end = call.end.map(|end| self.time(line, end)).transpose()?;
        let time = (begin, end.unwrap_or(begin).max(begin));
        let found = &call.arguments;
        if found.communicator.is_some() && known.is_none() {
            self.counts.unknown_communicator += 1;
            return Ok(());
        }
        if found.lacks_counts {
            self.counts.lacks_counts += 1;
            return Ok(());
        }
        let called = match known {
            Some(known) if function.class() == Class::Communicator => {
                self.make(function, &known, made.flatten(), time)?
            }
            Some(known) => self.on(function, &known, found, time, line)?,
            None => self.without(function, found, time, line)?,
        };
        if called {
            self.last = time.1;
        }
        Ok(())
    }

    /// Returns the communicator of a call; `None` if the call has none, or if its members are unknown.
    fn communicator(&mut self, call: &Call) -> Option<Known> {
        let shown = call.arguments.communicator?;
        if self.bound.is_empty() {
            self.interface = Interface::of(shown.handle);
        }
        let bound = self.bound.get(&shown.handle);
        if let Some((_, known)) = bound.filter(|(bound, _)| *bound == shown) {
            return known.clone();
        }
        let known = self.uses.next().flatten();
        self.bound.insert(shown.handle, (shown, known.clone()));
        known
    }

    fn record(&mut self, function: Function, known: &Known) -> MpiRecord {
        let mut record = self.builder.record(self.process, function);
        record.communicator = known.id;
        record.communicator_size = known.members.len() as u32;
        record
    }

    fn put(&mut self, record: MpiRecord, time: (u64, u64)) -> Result<CallId, ImportError> {
        self.builder.call(self.process, record, time, (0, 0))
    }

    /// Adds a call on a communicator. Returns false if the call is left out.
    fn on(
        &mut self,
        function: Function,
        known: &Known,
        found: &Arguments,
        time: (u64, u64),
        line: usize,
    ) -> Result<bool, ImportError> {
        match function.class() {
            Class::Send
            | Class::Receive
            | Class::SendReceive
            | Class::StartSend
            | Class::StartReceive => self.message(function, known, found, time, line)?,
            Class::Persistent => {
                let starts = match function.blocking() {
                    Function::Recv => Function::Irecv,
                    Function::Bsend => Function::Ibsend,
                    Function::Ssend => Function::Issend,
                    Function::Rsend => Function::Irsend,
                    _ => Function::Isend,
                };
                let prepared = Prepared {
                    starts,
                    arguments: found.clone(),
                    known: known.clone(),
                };
                self.prepared.insert(found.request, prepared);
                return Ok(false);
            }
            Class::Collective | Class::StartCollective => {
                self.collective(function, known, found, time, line)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Adds a call that makes a communicator, which is `None` if the rank does not use it.
    fn make(
        &mut self,
        function: Function,
        parent: &Known,
        new: Option<Known>,
        time: (u64, u64),
    ) -> Result<bool, ImportError> {
        let mut record = self.record(function, parent);
        if let Some(new) = new {
            record.new_communicator = new.id;
            if new.members.first() == Some(&(self.process as u32)) {
                record.members = new.members.iter().map(|&rank| Peer::Rank(rank)).collect();
            }
        }
        self.put(record, time)?;
        Ok(true)
    }

    /// Returns the world rank of a rank of a communicator.
    fn peer(&self, known: &Known, rank: i64, what: &str, line: usize) -> Result<u32, ImportError> {
        let at = usize::try_from(rank).ok();
        let peer = at.and_then(|at| known.members.get(at)).copied();
        peer.ok_or_else(|| {
            let size = known.members.len();
            self.wrong(
                line,
                format!("{what} {rank} is no rank of a communicator of {size}"),
            )
        })
    }

    /// Adds a call that sends a message, receives one, or both, or starts this.
    fn message(
        &mut self,
        function: Function,
        known: &Known,
        found: &Arguments,
        time: (u64, u64),
        line: usize,
    ) -> Result<(), ImportError> {
        let class = function.class();
        let mut record = self.record(function, known);
        let own = self.process as u32;
        if matches!(class, Class::Send | Class::StartSend | Class::SendReceive) {
            record.destination = Peer::Null;
            let tag = u32::try_from(found.send_tag);
            let tag = tag.map_err(|_| self.wrong(line, format!("{} is no tag", found.send_tag)))?;
            record.send_tag = Tag::Value(tag);
            if found.destination >= 0 {
                let to = self.peer(known, found.destination, "destination", line)?;
                record.destination = Peer::Rank(to);
                record.send_bytes = found.send_bytes;
                if let Some(matcher) = self.matcher {
                    matcher.send(known.id, (own, to), tag, (time.0, found.send_bytes));
                }
            }
        }
        let receives = matches!(
            class,
            Class::Receive | Class::StartReceive | Class::SendReceive
        );
        let mut receive = None;
        let mut from = None;
        if receives {
            let any = found.source == self.interface.any_source();
            from = match found.source {
                0.. => Some(From::Rank(self.peer(
                    known,
                    found.source,
                    "source",
                    line,
                )?)),
                _ if any => Some(From::Any),
                -2 | -1 => None,
                source => return Err(self.wrong(line, format!("{source} is no source"))),
            };
            record.source = match from {
                Some(From::Rank(rank)) => Peer::Rank(rank),
                Some(From::Any | From::AnyOrNull) => Peer::Any,
                None => Peer::Null,
            };
            record.receive_tag = match u32::try_from(found.receive_tag) {
                Ok(tag) => Tag::Value(tag),
                Err(_) if found.receive_tag == -1 => Tag::Any,
                Err(_) => {
                    return Err(self.wrong(line, format!("{} is no tag", found.receive_tag)));
                }
            };
            record.receive_bytes = if from.is_some() {
                found.receive_bytes
            } else {
                0
            };
            receive = Some(Receive {
                source: record.source,
                tag: record.receive_tag,
                bytes: record.receive_bytes,
                handle: None,
            });
        }
        let starts = matches!(class, Class::StartSend | Class::StartReceive);
        if starts {
            self.serial += 1;
            record.request = self.serial;
        } else if let Some(receive) = &receive {
            receive.complete(&mut record, 0, 0);
        }
        let tag = match record.receive_tag {
            Tag::Value(tag) => Some(tag),
            Tag::Any | Tag::None => None,
        };
        let room = Some(record.receive_bytes);
        let call = self.put(record, time)?;
        if let (Some(matcher), Some(from), Some(receive)) = (&mut self.matcher, from, &mut receive)
        {
            let posted = Posted {
                call,
                from,
                tag,
                room,
                completed: (!starts).then_some((call, 0)),
            };
            receive.handle = Some(matcher.receive(known.id, own, posted));
        }
        if starts {
            self.open(found.request, receive);
        }
        Ok(())
    }

    /// Adds a request under way at an address.
    fn open(&mut self, address: u64, receive: Option<Receive>) {
        let open = Open {
            request: Request {
                serial: self.serial,
                receive,
            },
            tested: None,
        };
        // A request that was in this variable before must have ended.
        if let Some(earlier) = self.slots.insert(address, open) {
            self.ended(earlier);
        }
    }

    /// Ends a request in the last test that it was given to.
    fn ended(&mut self, open: Open) {
        let Some((call, index)) = open.tested else {
            self.counts.lost += 1;
            return;
        };
        let receive = open.request.receive;
        let completion = Completion {
            request: open.request.serial,
            index,
            bytes: receive.map_or(0, |receive| receive.bytes),
            source: receive.map_or(Peer::None, |receive| receive.source),
            tag: receive.map_or(Tag::None, |receive| receive.tag),
            cancelled: false,
        };
        self.builder.patch(call, Patch::Completes(completion));
        let count = self.tests.entry(call).or_default();
        let at = *count;
        *count += 1;
        if let (Some(matcher), Some(handle)) = (
            &mut self.matcher,
            receive.and_then(|receive| receive.handle),
        ) {
            matcher.completed(handle, call, at);
        }
    }

    fn collective(
        &mut self,
        function: Function,
        known: &Known,
        found: &Arguments,
        time: (u64, u64),
        line: usize,
    ) -> Result<(), ImportError> {
        use Function::{
            Allgather, Allgatherv, Allreduce, Alltoall, Alltoallv, Bcast, Exscan, Gather, Gatherv,
            Reduce, ReduceScatter, ReduceScatterBlock, Scan, Scatter, Scatterv,
        };
        let mut record = self.record(function, known);
        let size = known.members.len();
        let kind = function.blocking();
        if matches!(kind, Bcast | Reduce | Gather | Gatherv | Scatter | Scatterv) {
            record.root = Peer::Rank(self.peer(known, found.root, "root", line)?);
        }
        let own = record.root == record.rank;
        for list in [&found.send_bytes_to, &found.receive_bytes_from] {
            if !list.is_empty() && list.len() != size {
                let what = format!("has {} counts for {size} ranks", list.len());
                return Err(self.wrong(line, what));
            }
        }
        let sum = |list: &[u64]| {
            list.iter()
                .fold(0, |sum: u64, &bytes| sum.saturating_add(bytes))
        };
        if found.in_place {
            record.flags = Flags(record.flags.0 | Flags::IN_PLACE.0);
        }
        let sent = if found.in_place { 0 } else { found.send_bytes };
        match kind {
            Bcast if own => record.send_bytes = found.send_bytes,
            Bcast => record.receive_bytes = found.send_bytes,
            Reduce => {
                record.send_bytes = found.send_bytes;
                record.receive_bytes = if own { found.send_bytes } else { 0 };
            }
            Allreduce | Scan | Exscan => {
                (record.send_bytes, record.receive_bytes) = (found.send_bytes, found.send_bytes);
            }
            ReduceScatterBlock => {
                record.receive_bytes = found.send_bytes;
                record.send_bytes = found.send_bytes.saturating_mul(size as u64);
            }
            ReduceScatter => {
                record.send_bytes_to.clone_from(&found.send_bytes_to);
                record.send_bytes = sum(&found.send_bytes_to);
                let position = known
                    .members
                    .iter()
                    .position(|&rank| rank as usize == self.process);
                let mine = position.and_then(|at| found.send_bytes_to.get(at)).copied();
                record.receive_bytes = mine.unwrap_or(0);
            }
            Gather | Scatter | Allgather | Alltoall => {
                (record.send_bytes, record.receive_bytes) = (sent, found.receive_bytes);
                sums(&mut record, size as u32);
            }
            Gatherv => {
                record.send_bytes = sent;
                if own {
                    record
                        .receive_bytes_from
                        .clone_from(&found.receive_bytes_from);
                    record.receive_bytes = sum(&found.receive_bytes_from);
                }
            }
            Scatterv => {
                record.receive_bytes = found.receive_bytes;
                if own {
                    record.send_bytes_to.clone_from(&found.send_bytes_to);
                    record.send_bytes = sum(&found.send_bytes_to);
                }
            }
            Allgatherv => {
                record.send_bytes = sent;
                record
                    .receive_bytes_from
                    .clone_from(&found.receive_bytes_from);
                record.receive_bytes = sum(&found.receive_bytes_from);
            }
            Alltoallv => {
                if !found.in_place {
                    record.send_bytes_to.clone_from(&found.send_bytes_to);
                    record.send_bytes = sum(&found.send_bytes_to);
                }
                record
                    .receive_bytes_from
                    .clone_from(&found.receive_bytes_from);
                record.receive_bytes = sum(&found.receive_bytes_from);
            }
            _ => {}
        }
        if matches!(
            kind,
            Reduce | Allreduce | Scan | Exscan | ReduceScatter | ReduceScatterBlock
        ) {
            record.reduction = Reduction::Sum;
        }
        let starts = function.class() == Class::StartCollective;
        if starts {
            self.serial += 1;
            record.request = self.serial;
        }
        self.put(record, time)?;
        if starts {
            self.open(found.request, None);
        }
        Ok(())
    }

    /// Adds a call without a communicator. Returns false if the call is left out.
    fn without(
        &mut self,
        function: Function,
        found: &Arguments,
        time: (u64, u64),
        line: usize,
    ) -> Result<bool, ImportError> {
        match function {
            Function::Init | Function::InitThread | Function::Finalize => {
                let record = self.builder.record(self.process, function);
                self.put(record, time)?;
            }
            Function::Start | Function::Startall => {
                let list: Vec<Prepared> = match function {
                    Function::Start => self
                        .prepared
                        .get(&found.request)
                        .cloned()
                        .into_iter()
                        .collect(),
                    _ => self
                        .prepared
                        .range(self.range(found))
                        .map(|(_, one)| one.clone())
                        .collect(),
                };
                for (number, one) in list.into_iter().enumerate() {
                    // The first of several has all the time.
                    let time = if number == 0 { time } else { (time.1, time.1) };
                    self.message(one.starts, &one.known, &one.arguments, time, line)?;
                }
            }
            Function::RequestFree => {
                self.slots.remove(&found.request);
                self.prepared.remove(&found.request);
                return Ok(false);
            }
            function if function.class() == Class::Completion => {
                self.complete(function, found, time)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the addresses of an array of requests.
    fn range(&self, found: &Arguments) -> std::ops::Range<u64> {
        let bytes = found.requests.saturating_mul(self.interface.request_size());
        found.request..found.request.saturating_add(bytes)
    }

    fn complete(
        &mut self,
        function: Function,
        found: &Arguments,
        time: (u64, u64),
    ) -> Result<(), ImportError> {
        use Function::{Test, Testall, Testany, Testsome, Wait, Waitall, Waitsome};
        let range = match function {
            Wait | Test => found.request..found.request.saturating_add(1),
            _ => self.range(found),
        };
        let addresses: Vec<u64> = self.slots.range(range).map(|(&at, _)| at).collect();
        let opens = addresses
            .iter()
            .filter_map(|at| self.slots.get(at).copied());
        let given: Vec<Request> = opens.map(|open| open.request).collect();
        let tests = matches!(function, Test | Testall | Testany | Testsome);
        let done: Vec<usize> = match function {
            Wait | Waitall => (0..given.len()).collect(),
            _ if tests => Vec::new(),
            // The trace does not say which request ended.
            _ => {
                self.counts.guessed += u64::from(given.len() > 1);
                let oldest = (0..given.len()).min_by_key(|&at| given[at].serial);
                oldest.into_iter().collect()
            }
        };
        let mut record = self.builder.record(self.process, function);
        record.communicator = communicator::NONE;
        requests::complete(&mut record, &given, &done);
        let call = self.put(record, time)?;
        requests::completed(self.matcher, call, &given, &done);
        for &at in &done {
            self.slots.remove(&addresses[at]);
        }
        if tests || function == Waitsome {
            self.tests.insert(call, done.len() as u32);
            for (at, address) in addresses.iter().enumerate() {
                if let Some(open) = self.slots.get_mut(address) {
                    open.tested = Some((call, at as u32));
                }
            }
        }
        Ok(())
    }

    /// Ends the requests that are under way after the last call.
    fn end(mut self) {
        for open in std::mem::take(&mut self.slots).into_values() {
            self.ended(open);
        }
    }
}
