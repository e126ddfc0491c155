//! The calls of a rank, line by line.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Class, Completion, Function, MpiRecord, Peer, Reduction, Tag};

use super::Counts;
use super::call::{self, Arguments, Call};
use super::communicators::{Known, Resolved};
use crate::error::ImportError;
use crate::import::build::{Patch, sums};
use crate::import::lines::wrong;
use crate::import::matching::{From, Matcher, Posted};
use crate::import::requests::{self, Budget, Receive, Request};
use crate::import::{Builder, CallId};

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
pub(super) struct Rank<'a> {
    process: usize,
    file: &'a Path,
    builder: &'a mut Builder,
    matcher: &'a mut Option<Matcher>,
    pub(super) counts: &'a mut Counts,
    /// Number of completions of each test.
    tests: HashMap<CallId, u32>,
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
    budget: Budget,
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

impl<'a> Rank<'a> {
    /// Returns a rank before the first line of its file. `process` is its number in the builder.
    pub(super) fn new(
        (process, file): (usize, &'a Path),
        resolved: Resolved,
        builder: &'a mut Builder,
        matcher: &'a mut Option<Matcher>,
        counts: &'a mut Counts,
    ) -> Rank<'a> {
        Rank {
            process,
            file,
            builder,
            matcher,
            counts,
            tests: HashMap::new(),
            uses: resolved.uses.into_iter(),
            made: resolved.made.into_iter(),
            interface: Interface::OpenMpi,
            bound: HashMap::new(),
            origin: None,
            last: 0,
            serial: 0,
            slots: BTreeMap::new(),
            prepared: BTreeMap::new(),
            budget: Budget::default(),
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

    /// Adds the call of a line.
    pub(super) fn call(&mut self, line: usize, call: &Call) -> Result<(), ImportError> {
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
                self.complete(function, found, time, line)?;
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
        line: usize,
    ) -> Result<(), ImportError> {
        use Function::{Test, Testall, Testany, Testsome, Wait, Waitall, Waitsome};
        let range = match function {
            Wait | Test => found.request..found.request.saturating_add(1),
            _ => self.range(found),
        };
        let own = self.slots.range(range.clone());
        let (addresses, given): (Vec<u64>, Vec<Request>) =
            own.map(|(&address, open)| (address, open.request)).unzip();
        if !matches!(function, Wait | Waitall) {
            let spent = self.budget.spend(addresses.len());
            spent.map_err(|what| self.wrong(line, what))?;
        }
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
            for ((_, open), at) in self.slots.range_mut(range).zip(0..) {
                open.tested = Some((call, at));
            }
        }
        Ok(())
    }

    /// Ends the requests that are under way after the last call.
    pub(super) fn end(mut self) {
        for open in std::mem::take(&mut self.slots).into_values() {
            self.ended(open);
        }
    }
}
