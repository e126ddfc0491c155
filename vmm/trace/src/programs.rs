//! The MPI programs of a trace: which processes share an `MPI_COMM_WORLD`.
//!
//! A job may start several MPI programs, one after the other or at the same time, and each has a rank 0. A process reports its rank and
//! the size of its world ([`Hello`]). The record of its `MPI_Init`, which follows, has the launcher's id of the program.
//!
//! A process joins a program of the same id and size that still lacks its rank. Where the id is unknown, size, rank and program name
//! decide, and of several such programs the latest one counts. Two programs of one name and size that run at the same time can then not be
//! told apart reliably.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use nodescope_hypercall::{Function, Hello, MpiRecord, Peer, ProcessKind};

use crate::event::{Body, Event, MpiCall};

/// Number of incomplete programs, from the latest on, that are compared with a process. A real job has a handful at a time.
const MOST_COMPARED: usize = 64;

/// Number of different names of executables that are kept of a program.
const MOST_NAMES: usize = 16;

/// An MPI program: the processes of one `MPI_COMM_WORLD`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpiProgram {
    /// Number of ranks that the program's processes state, which may be any number in a damaged trace; 0 if none has stated it.
    pub size: u32,
    /// World ranks of the processes that the trace has.
    pub ranks: BTreeSet<u32>,
    /// Short names of the executables, ascending: several for `mpirun a : b`; empty if unknown.
    pub names: BTreeSet<String>,
    /// Number of MPI calls that have ended; every poll counts.
    pub calls: u64,
    /// First entry into MPI and last exit from MPI, picoseconds; `None` without calls.
    pub span: Option<(u64, u64)>,
    /// The launcher's id of the program; 0 if unknown.
    id: u64,
}

impl MpiProgram {
    /// Returns the names of the executables in one text; `unknown` if there is none.
    pub fn name(&self) -> String {
        if self.names.is_empty() {
            return "unknown".into();
        }
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        names.join(" : ")
    }

    /// Returns the number of ranks: as the processes state it, or else one more than the greatest rank of the trace.
    pub fn world_size(&self) -> u32 {
        let found = self.ranks.last().map_or(0, |last| last.saturating_add(1));
        self.size.max(found)
    }

    fn lacks(&self, rank: u32, size: u32) -> bool {
        !self.ranks.contains(&rank) && (size == 0 || self.size == 0 || self.size == size)
    }

    fn is_complete(&self) -> bool {
        self.size != 0 && self.ranks.len() >= self.size as usize
    }

    fn count(&mut self, call: &MpiCall) {
        self.calls = self.calls.saturating_add(call.record.calls);
        let (from, to) = self.span.unwrap_or((u64::MAX, 0));
        self.span = Some((from.min(call.entry.time), to.max(call.exit.time)));
    }
}

impl fmt::Display for MpiProgram {
    /// Writes name, ranks, calls and extent, such as `heat, 4 ranks, 120 MPI calls from 0.510000 s to 1.200000 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let ranks = self.world_size();
        write!(
            f,
            "{}, {ranks} rank{}, {} MPI call{}",
            self.name(),
            plural(ranks.into()),
            self.calls,
            plural(self.calls)
        )?;
        match self.span {
            Some((from, to)) => write!(
                f,
                " from {:.6} s to {:.6} s",
                from as f64 * 1e-12,
                to as f64 * 1e-12
            ),
            None => Ok(()),
        }
    }
}

/// Programs that a user can choose from: a line of text for each, with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramList(Vec<MpiProgram>);

impl ProgramList {
    /// Returns a list of these programs, numbered from 0.
    pub fn new(programs: impl Into<Vec<MpiProgram>>) -> ProgramList {
        ProgramList(programs.into())
    }
}

/// Number of programs that a message lists.
const MOST_LISTED: usize = 20;

impl fmt::Display for ProgramList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, program) in self.0.iter().enumerate().take(MOST_LISTED) {
            let between = if number == 0 { "" } else { "; " };
            write!(f, "{between}{number}: {program}")?;
        }
        match self.0.len().saturating_sub(MOST_LISTED) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// The process of an event, as a rank of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Number of the program, an index of [`ProgramFinder::programs`].
    pub program: usize,
    /// Number of the process among those of its program, from 0 in the order in which they were found.
    pub process: usize,
    /// World rank of the process.
    pub rank: u32,
    /// How the process introduced itself, the first time that it is found; `None` later, and if it never introduced itself.
    pub introduced: Option<Hello>,
}

/// Finder of the program and rank of each event's process. Events must come in the order of the file.
///
/// The program of a process is decided at the process's first call, which has the launcher's id. [`ProgramFinder::settle`] decides for
/// processes without calls.
#[derive(Clone, Debug, Default)]
pub struct ProgramFinder {
    programs: Vec<MpiProgram>,
    /// Program of each process and its number there, by node, process id and rank.
    processes: HashMap<(u32, u32, u32), (usize, usize)>,
    /// Introductions of processes that have not called yet, by node and process id.
    waiting: BTreeMap<(u32, u32), Hello>,
    /// Numbers of programs that may lack ranks, by id; each ascending.
    incomplete: HashMap<u64, Vec<usize>>,
    /// Numbers of all programs that may lack ranks, ascending.
    all_incomplete: Vec<usize>,
}

impl ProgramFinder {
    /// Returns the process of an MPI call or an unfinished call. Returns `None` for other events, and for processes without a rank.
    pub fn caller(&mut self, event: &Event) -> Option<Caller> {
        match &event.body {
            Body::Process(hello) => {
                self.introduce(event.node, hello);
                None
            }
            Body::Mpi(call) => {
                let record = &call.record;
                let caller =
                    self.find((event.node, record.thread.pid), record.rank, Some(record))?;
                self.programs[caller.program].count(call);
                Some(caller)
            }
            Body::Unfinished(call) => self.find((event.node, call.thread.pid), call.rank, None),
            _ => None,
        }
    }

    /// Returns the processes that have introduced themselves and made no call, which join programs now, with the numbers of their nodes.
    pub fn settle(&mut self) -> Vec<(u32, Caller)> {
        let waiting = std::mem::take(&mut self.waiting);
        (waiting.into_iter())
            .filter_map(|(process, hello)| Some((process.0, self.join(process, hello, 0)?)))
            .collect()
    }

    /// Returns the programs that have been found, by number.
    pub fn programs(&self) -> &[MpiProgram] {
        &self.programs
    }

    fn introduce(&mut self, node: u32, hello: &Hello) {
        let Peer::Rank(rank) = hello.rank else { return };
        if hello.kind != ProcessKind::MpiRank {
            return;
        }
        // An earlier process of the same id had no calls, or has ended.
        let process = (node, hello.pid);
        self.processes.remove(&(node, hello.pid, rank));
        if let Some(earlier) = self.waiting.insert(process, hello.clone()) {
            let earlier = self.join(process, earlier, 0);
            earlier.map(|caller| self.processes.remove(&(node, hello.pid, caller.rank)));
        }
    }

    fn find(
        &mut self,
        process: (u32, u32),
        rank: Peer,
        record: Option<&MpiRecord>,
    ) -> Option<Caller> {
        let rank = rank.rank()?;
        let own = self.waiting.get(&process).map(|hello| hello.rank);
        if own == Some(Peer::Rank(rank))
            && let Some(hello) = self.waiting.remove(&process)
        {
            let id = match record.map(|record| (record.function, record.object)) {
                Some((Function::Init | Function::InitThread, id)) => id,
                _ => 0,
            };
            return self.join(process, hello, id);
        }
        let known = self.processes.get(&(process.0, process.1, rank)).copied();
        let (program, process) = known.unwrap_or_else(|| {
            // The process has not introduced itself.
            let latest = self.programs.len().checked_sub(1);
            let fits = latest.filter(|&latest| self.programs[latest].lacks(rank, 0));
            let program = fits.unwrap_or_else(|| self.begin(0, 0));
            (program, self.enter(program, process, rank))
        });
        Some(Caller {
            program,
            process,
            rank,
            introduced: None,
        })
    }

    /// Adds a process, given by node and process id, to the program to which its introduction and the launcher's id fit, or to a new one.
    /// Returns `None` for a process without a rank.
    pub fn join(&mut self, process: (u32, u32), hello: Hello, id: u64) -> Option<Caller> {
        let rank = hello.rank.rank()?;
        let size = hello.world_size;
        let program = self
            .fitting(&hello, rank, id)
            .unwrap_or_else(|| self.begin(id, size));
        let found = &mut self.programs[program];
        found.size = found.size.max(size);
        if !hello.program.is_empty() && found.names.len() < MOST_NAMES {
            found.names.insert(hello.program.clone());
        }
        let process = self.enter(program, process, rank);
        Some(Caller {
            program,
            process,
            rank,
            introduced: Some(hello),
        })
    }

    /// Returns the number of the program that a process with this rank and id joins.
    fn fitting(&self, hello: &Hello, rank: u32, id: u64) -> Option<usize> {
        let candidates = match id {
            0 => &self.all_incomplete,
            id => self.incomplete.get(&id)?,
        };
        let latest = candidates.iter().rev().take(MOST_COMPARED).copied();
        let fits = |number: &usize| self.programs[*number].lacks(rank, hello.world_size);
        latest.filter(fits).max_by_key(|&number| {
            let program = &self.programs[number];
            (program.names.contains(&hello.program), number)
        })
    }

    fn begin(&mut self, id: u64, size: u32) -> usize {
        let number = self.programs.len();
        self.programs.push(MpiProgram {
            id,
            size,
            ..MpiProgram::default()
        });
        self.all_incomplete.push(number);
        if id != 0 {
            self.incomplete.entry(id).or_default().push(number);
        }
        number
    }

    /// Adds a process to a program that lacks its rank. Returns the number of the process there.
    fn enter(&mut self, number: usize, process: (u32, u32), rank: u32) -> usize {
        let program = &mut self.programs[number];
        let own = program.ranks.len();
        program.ranks.insert(rank);
        (self.processes).insert((process.0, process.1, rank), (number, own));
        if !program.is_complete() {
            return own;
        }
        let id = program.id;
        let of_id = self.incomplete.get_mut(&id);
        for list in of_id.into_iter().chain([&mut self.all_incomplete]) {
            if let Ok(at) = list.binary_search(&number) {
                list.remove(at);
            }
        }
        own
    }
}
