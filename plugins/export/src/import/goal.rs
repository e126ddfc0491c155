//! Import of GOAL schedules, the text that LogGOPSim's `txt2bin` reads (Hoefler, Siebert, Lumsdaine: "Group Operation Assembly Language -
//! A Flexible Way to Express Collective Communication", ICPP 2009).
//!
//! A schedule has a graph of operations for each rank: computations of a number of nanoseconds, sends and receives. `a requires b` lets `a`
//! begin when `b` has ended, `a irequires b` when `b` has begun. A trace has a sequence of calls for each rank. The import orders the
//! operations so that every dependency holds ([`order`]): a send or a receive begins by `MPI_Isend` or `MPI_Irecv`, and the rank waits for
//! it before the first operation that requires it. What begins and is waited for at once is `MPI_Send` or `MPI_Recv`.
//!
//! Such a sequence is one of those that the graph allows. What is lost: branches of the graph that do not depend on each other take turns
//! in one order, so that a wait of one branch holds back the others; and computations on several CPUs of a rank follow each other.

mod order;
mod parse;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Function, MpiRecord, Peer, Tag};
use nodescope_trace::NodeEntry;

use super::lines::{Lines, has_word, wrong};
use super::matching::{From, Matcher, Posted};
use super::requests::{self, Receive, Request};
use super::{Builder, CallId};
use crate::error::ImportError;
use order::Step;
use parse::{Graph, Operation, Parser, What};

/// Reads a schedule.
pub(super) fn read(path: &Path, builder: &mut Builder) -> Result<Vec<String>, ImportError> {
    let content = |what: String| ImportError::Content {
        file: path.into(),
        what,
    };
    builder.nodes.push(NodeEntry::UNKNOWN.into());
    let wild = has_word(&[path.to_path_buf()], &["-1"])?;
    let mut reader = Reader {
        path,
        builder,
        matcher: wild.then(Matcher::default),
        counts: Counts::default(),
        seen: BTreeSet::new(),
    };
    let mut parser = Parser::default();
    let mut lines = Lines::open(path)?;
    while let Some((number, line)) = lines.next()? {
        parser
            .line(number, line)
            .map_err(|what| wrong(path, number, what))?;
        while let Some(graph) = parser.ready.pop_front() {
            reader.rank(&graph)?;
        }
    }
    let ranks = parser.finish().map_err(content)?;
    let missing = (0..ranks).find(|rank| !reader.seen.contains(rank));
    if let Some(rank) = missing {
        return Err(content(format!(
            "has num_ranks {ranks} and nothing of rank {rank}: it is cut"
        )));
    }
    let matched = reader.matcher.take().unwrap_or_default();
    let matched = matched.finish(reader.builder);
    let matched = matched.map_err(|lacking| content(lacking.to_string()))?;
    Ok(reader.counts.notes(matched.wild))
}

/// Numbers of what the new trace shows differently.
#[derive(Debug, Default)]
struct Counts {
    /// Ranks whose graph has operations that do not depend on each other.
    branched: u64,
    /// Ranks with operations on several CPUs.
    several_cpus: u64,
    /// Operations that began and that no operation waits for.
    unwaited: u64,
}

impl Counts {
    fn notes(&self, wild: u64) -> Vec<String> {
        let mut notes = vec![
            "a schedule has no times of calls: work takes its nanoseconds, MPI calls take none"
                .to_owned(),
        ];
        let mut tell = |count: u64, what: &str| {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        };
        tell(
            self.branched,
            "ranks have branches that do not depend on each other, and take turns in one order here: a wait of one holds back the others",
        );
        tell(
            self.several_cpus,
            "ranks compute on several CPUs, whose work is done one after the other here",
        );
        tell(
            self.unwaited,
            "sends or receives that no operation requires end before the rank's end",
        );
        tell(
            wild,
            "receives from any source or with any tag take the message that is sent first here",
        );
        notes
    }
}

struct Reader<'a> {
    path: &'a Path,
    builder: &'a mut Builder,
    matcher: Option<Matcher>,
    counts: Counts,
    seen: BTreeSet<u32>,
}

/// A rank while its calls are made.
struct Rank {
    rank: u32,
    process: usize,
    /// Picoseconds of work so far.
    time: u64,
    serial: u64,
    /// Requests under way by the number of their operation.
    open: HashMap<u32, Request>,
}

impl Reader<'_> {
    fn rank(&mut self, graph: &Graph) -> Result<(), ImportError> {
        let path = self.path;
        if !self.seen.insert(graph.rank) {
            let what = format!("rank {} has a schedule before", graph.rank);
            return Err(wrong(path, graph.line, what));
        }
        let ordered = order::order(graph).map_err(|at| {
            let operation = &graph.operations[at as usize];
            let what = format!(
                "an operation of rank {} requires itself, by way of others: the dependencies have a cycle",
                graph.rank
            );
            wrong(path, operation.line as usize, what)
        })?;
        self.counts.branched += u64::from(ordered.branched);
        let first = graph.operations.first().map_or(0, |first| first.cpu);
        let several = graph
            .operations
            .iter()
            .any(|operation| operation.cpu != first);
        self.counts.several_cpus += u64::from(several);
        let mut rank = Rank {
            rank: graph.rank,
            process: self.builder.process(0, graph.rank, 0, "goal"),
            time: 0,
            serial: 0,
            open: HashMap::new(),
        };
        let record = self.builder.record(rank.process, Function::Init);
        self.put(&rank, record)?;
        let mut steps = ordered.steps.iter().peekable();
        while let Some(step) = steps.next() {
            match *step {
                Step::Begin(at) => {
                    let waits = steps.peek() == Some(&&Step::Wait(at));
                    if waits {
                        steps.next();
                    }
                    self.begin(&mut rank, &graph.operations[at as usize], at, waits)?;
                }
                Step::Wait(at) => {
                    let mut all = vec![at];
                    while let Some(&&Step::Wait(next)) = steps.peek() {
                        all.push(next);
                        steps.next();
                    }
                    let function = match all.len() {
                        1 => Function::Wait,
                        _ => Function::Waitall,
                    };
                    self.wait(&mut rank, &all, function)?;
                }
            }
        }
        let mut rest: Vec<u32> = rank.open.keys().copied().collect();
        rest.sort_unstable();
        self.counts.unwaited += rest.len() as u64;
        if !rest.is_empty() {
            self.wait(&mut rank, &rest, Function::Waitall)?;
        }
        let record = self.builder.record(rank.process, Function::Finalize);
        self.put(&rank, record)?;
        Ok(())
    }

    fn put(&mut self, rank: &Rank, record: MpiRecord) -> Result<CallId, ImportError> {
        let time = (rank.time, rank.time);
        let nanoseconds = rank.time / 1000;
        self.builder
            .call(rank.process, record, time, (nanoseconds, nanoseconds))
    }

    /// Begins an operation, and ends it if the rank `waits` for it at once.
    fn begin(
        &mut self,
        rank: &mut Rank,
        operation: &Operation,
        at: u32,
        waits: bool,
    ) -> Result<(), ImportError> {
        let own = rank.rank;
        match operation.what {
            What::Work { nanoseconds } => {
                let more = nanoseconds.checked_mul(1000);
                let time = more.and_then(|more| rank.time.checked_add(more));
                rank.time = time.ok_or_else(|| {
                    let what = "the rank's work is longer than the 213 days of a trace";
                    wrong(self.path, operation.line as usize, what)
                })?;
            }
            What::Send { bytes, to, tag } => {
                let function = if waits {
                    Function::Send
                } else {
                    Function::Isend
                };
                let mut record = self.builder.record(rank.process, function);
                record.communicator = communicator::WORLD;
                record.destination = Peer::Rank(to);
                (record.send_tag, record.send_bytes) = (Tag::Value(tag), bytes);
                if let Some(matcher) = &mut self.matcher {
                    matcher.send(communicator::WORLD, (own, to), tag, (rank.time, bytes));
                }
                self.started(rank, record, at, (!waits).then_some(None))?;
            }
            What::Receive { bytes, from, tag } => {
                let function = if waits {
                    Function::Recv
                } else {
                    Function::Irecv
                };
                let mut record = self.builder.record(rank.process, function);
                record.communicator = communicator::WORLD;
                record.source = from.map_or(Peer::Any, Peer::Rank);
                record.receive_tag = tag.map_or(Tag::Any, Tag::Value);
                record.receive_bytes = bytes;
                let receive = Receive {
                    source: record.source,
                    tag: record.receive_tag,
                    bytes,
                    handle: None,
                };
                if waits {
                    receive.complete(&mut record, 0, 0);
                }
                let call = self.started(rank, record, at, (!waits).then_some(Some(receive)))?;
                let Some(matcher) = &mut self.matcher else {
                    return Ok(());
                };
                let posted = Posted {
                    call,
                    from: from.map_or(From::Any, From::Rank),
                    tag,
                    room: Some(bytes),
                    completed: waits.then_some((call, 0)),
                };
                let handle = matcher.receive(communicator::WORLD, own, posted);
                let open = rank.open.get_mut(&at);
                if let Some(receive) = open.and_then(|request| request.receive.as_mut()) {
                    receive.handle = Some(handle);
                }
            }
        }
        Ok(())
    }

    /// Adds a call; one that `starts` an operation gets a request.
    fn started(
        &mut self,
        rank: &mut Rank,
        mut record: MpiRecord,
        at: u32,
        starts: Option<Option<Receive>>,
    ) -> Result<CallId, ImportError> {
        if let Some(receive) = starts {
            rank.serial += 1;
            record.request = rank.serial;
            let request = Request {
                serial: rank.serial,
                receive,
            };
            rank.open.insert(at, request);
        }
        self.put(rank, record)
    }

    fn wait(
        &mut self,
        rank: &mut Rank,
        operations: &[u32],
        function: Function,
    ) -> Result<(), ImportError> {
        let given: Vec<Request> = operations
            .iter()
            .filter_map(|at| rank.open.remove(at))
            .collect();
        let done: Vec<usize> = (0..given.len()).collect();
        let mut record = self.builder.record(rank.process, function);
        record.communicator = communicator::NONE;
        requests::complete(&mut record, &given, &done);
        let call = self.put(rank, record)?;
        requests::completed(&mut self.matcher, call, &given, &done);
        Ok(())
    }
}
