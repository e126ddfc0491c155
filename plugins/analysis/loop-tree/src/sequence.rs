//! Conversion of a trace's events into a sequence of bursts and operations for each rank.

mod calls;
pub(crate) mod limits;
mod neighbours;
mod one_sided;
mod ops;
mod overlap;
mod rank;
mod requests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Flavour, Function, MpiRecord};
use nodescope_trace::{
    Body, Caller, Event, Header, MpiCall, MpiProgram, PendingCalls, ProgramFinder, ProgramList,
    SiteNames, Unfinished,
};

use crate::op::Op;
use crate::origin::Origin;
use limits::Named;
use ops::Ops;
use rank::RankState;

/// Computation of a rank between two MPI calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Burst {
    /// Time of the burst in picoseconds.
    pub time: u64,
    /// Instructions of the burst; 0 if unknown, for example because the thread changed its vCPU.
    pub instructions: u64,
}

/// A burst and the operation after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The computation before the operation.
    pub burst: Burst,
    /// The operation, which equal entries share; its peers are world ranks.
    pub op: Arc<Op>,
    /// Duration of an uninterpreted operation in picoseconds; `None` for other operations.
    pub opaque: Option<u64>,
}

/// The bursts and operations of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Bursts and operations in the order of the trace.
    pub entries: Vec<Entry>,
    /// Index in [`Sequences::communicators`] for each communicator number of the rank; `None` is a communicator of only this rank.
    pub communicators: Vec<Option<u32>>,
}

/// The bursts and operations of all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequences {
    /// Sequences by world rank.
    pub ranks: Vec<Sequence>,
    /// Members of communicators, as world ranks; entry 0 is the world. An empty list means all ranks of the world.
    pub communicators: Vec<Vec<u32>>,
    /// Numbers of the communicators that the traced program did not make. Windows and collectives with neighbours get them, so that their
    /// messages match no others.
    pub copies: BTreeSet<u32>,
    /// Notes on results that are less exact than possible.
    pub notes: Vec<String>,
    /// Node on which each rank ran, by the trace's node numbers.
    pub nodes: Vec<u32>,
    /// Place and circumstances of the traced run.
    pub origin: Origin,
    /// Time of each rank from the end of its initialisation to the start of its finalisation, or as far as the trace reaches, picoseconds.
    /// If only a section is taken, the time between its two marks.
    pub spans: Vec<u64>,
    /// Beginning and end of each span, picoseconds of the trace.
    pub extents: Vec<(u64, u64)>,
    /// Times at which the call of each entry began, by rank, picoseconds of the trace. Empty if the sequences are not from a trace.
    pub begins: Vec<Vec<u64>>,
    /// Times at which the first and the last rank passed each requested mark, picoseconds of the trace. `None` if a rank never passed the
    /// mark.
    pub marks: Vec<Option<(u64, u64)>>,
}

/// Options that select the part of a trace from which sequences are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceOptions {
    /// Number of the MPI program, from 0, in a trace of several; `None` in a trace of one.
    pub program: Option<usize>,
    /// Marks on every rank: the return of the n-th call of a function, with n from 1.
    pub marks: Vec<(Function, u64)>,
    /// True to take only what each rank does between the first mark and the second.
    pub section: bool,
}

/// A trace that cannot become sequences, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// The trace has no MPI call.
    #[error(
        "the trace has no MPI call of any rank; was the job an MPI program, and did the tracer see it?"
    )]
    NoCalls,
    /// A call of a rank beyond the world that the program stated.
    #[error("the trace has a call of rank {rank}, but the world has {world} ranks")]
    RankOutside {
        /// Rank that called.
        rank: u32,
        /// Number of ranks of the world.
        world: u32,
    },
    /// A call that names a rank beyond the world.
    #[error(
        "{function} of rank {rank} names rank {peer}, but the world has {world} ranks; the trace is not of one MPI job, or damaged"
    )]
    PeerOutside {
        /// Rank that called.
        rank: u32,
        /// Function that was called.
        function: Function,
        /// Rank that the call names.
        peer: u32,
        /// Number of ranks of the world.
        world: u32,
    },
    /// A call at a time that no run reaches.
    #[error(
        "{function} of rank {rank} has a time of {time} ps, more than the 26 days that are computed with; the trace is damaged"
    )]
    TooLate {
        /// Rank that called.
        rank: u32,
        /// Function that was called.
        function: Function,
        /// The time, picoseconds.
        time: u64,
    },
    /// A call that states more than 8 TiB of data.
    #[error(
        "{function} of rank {rank} states {bytes} bytes, more than the 8 TiB that are computed with; the trace is damaged"
    )]
    TooLarge {
        /// Rank that called.
        rank: u32,
        /// Function that was called.
        function: Function,
        /// Number of bytes that the call states.
        bytes: u64,
    },
    /// A tag that MPI does not have.
    #[error(
        "{function} of rank {rank} has the tag {tag}, beyond those of MPI; the trace is damaged"
    )]
    BadTag {
        /// Rank that called.
        rank: u32,
        /// Function that was called.
        function: Function,
        /// Tag that the call states.
        tag: u32,
    },
    /// Windows and topologies that have more than 2^25 members together.
    #[error(
        "the trace's windows and topologies have {members} members in all, more than can be kept; trace a run of fewer ranks, or one that creates fewer windows and topologies"
    )]
    TooManyMembers {
        /// Number of members of all windows and topologies.
        members: usize,
    },
    /// A rank without any call.
    #[error("the trace has no call of rank {rank} of {world}; predict from a trace of all ranks")]
    RankMissing {
        /// Rank that has no call.
        rank: u32,
        /// Number of ranks of the world.
        world: u32,
    },
    /// A trace of several ranks where the trace of a replay, which has one rank, is needed.
    #[error("the trace has {ranks} ranks, but that of a replay has one")]
    NotAlone {
        /// Number of ranks in the trace.
        ranks: usize,
    },
    /// A program that the trace does not have.
    #[error("there is no program {asked}; the trace has these MPI programs: {programs}")]
    NoSuchProgram {
        /// Number of the requested program.
        asked: usize,
        /// Programs of the trace.
        programs: ProgramList,
    },
    /// Several programs, of which none was requested.
    #[error("the trace has {jobs} MPI programs; choose one by --program N: {programs}")]
    SeveralPrograms {
        /// Number of programs in the trace.
        jobs: usize,
        /// Programs of the trace.
        programs: ProgramList,
    },
}

/// Most ranks that a trace may state. Announcements of larger worlds and calls of ranks beyond are ignored.
const MOST_RANKS: u32 = 1 << 20;

/// Builder of sequences from events, which must come in the order of the file.
#[derive(Debug, Default)]
pub struct SequenceBuilder {
    options: SequenceOptions,
    finder: ProgramFinder,
    /// A job for each of the finder's programs.
    jobs: Vec<Job>,
    header: Option<Header>,
}

/// MPI program: the processes of one `MPI_COMM_WORLD`.
#[derive(Debug, Default)]
struct Job {
    /// States of the ranks that have called, by the number of their process.
    states: Vec<Option<Box<RankState>>>,
    ops: Ops,
    /// MPI implementations of the ranks whose processes the trace has announced.
    known: BTreeMap<u32, Flavour>,
    /// Calls that did not end, by rank.
    unfinished: Vec<(u32, Unfinished)>,
    /// Ranks in a deadlock, which never leave their unfinished call.
    stuck: BTreeSet<u32>,
    calls: u64,
    world: u32,
    /// Members by the communicator's id in the trace, as rank 0 of the communicator reported them.
    members: HashMap<u64, Vec<u32>>,
    /// Ranks that used a communicator, by its id in the trace, for communicators whose members were not reported.
    users: BTreeMap<u64, BTreeSet<u32>>,
    names: SiteNames,
    notes: Vec<String>,
    /// The greatest rank that a call names, with that call.
    named: Option<Named>,
    /// Error of the first call with numbers that no program has.
    wrong: Option<SequenceError>,
}

impl SequenceBuilder {
    /// Returns a builder that takes from a trace what the options select.
    pub fn new(options: SequenceOptions) -> SequenceBuilder {
        SequenceBuilder {
            options,
            ..SequenceBuilder::default()
        }
    }

    /// Sets the header of the trace, which tells how many cores the nodes had.
    pub fn set_header(&mut self, header: &Header) {
        self.header = Some(header.clone());
    }

    /// Adds an event.
    pub fn add(&mut self, event: &Event) {
        let Some(caller) = self.finder.caller(event) else {
            return;
        };
        self.join(&caller);
        let job = &mut self.jobs[caller.program];
        match &event.body {
            Body::Mpi(call) => job.call(&caller, event.node, call, &self.options),
            Body::Unfinished(unfinished) => {
                job.check_unfinished(caller.rank, unfinished);
                job.unfinished.push((caller.rank, (**unfinished).clone()));
            }
            _ => {}
        }
    }

    /// Adds a process to its job.
    fn join(&mut self, caller: &Caller) {
        while self.jobs.len() <= caller.program {
            self.jobs.push(Job::default());
        }
        let job = &mut self.jobs[caller.program];
        let introduced = caller.introduced.as_ref();
        if let Some(hello) = introduced.filter(|hello| hello.world_size <= MOST_RANKS) {
            job.known.insert(caller.rank, hello.flavour);
            job.world = job.world.max(hello.world_size);
            job.names.executables.insert(hello.program.clone());
        }
    }

    /// Returns whether calls did not end, so that the deadlocks should be set: see [`SequenceBuilder::set_deadlocks`].
    pub fn has_unfinished(&self) -> bool {
        self.jobs.iter().any(|job| !job.unfinished.is_empty())
    }

    /// Sets the ranks that are in a deadlock. Their unfinished call becomes an operation that never ends, if the call is interpreted.
    /// Other ranks end before their unfinished call, as in a trace that was cut.
    pub fn set_deadlocks(&mut self, pending: &PendingCalls) {
        for deadlock in &pending.deadlocks {
            if let Some(job) = self.jobs.get_mut(deadlock.job) {
                job.stuck.extend(&deadlock.ranks);
            }
        }
    }

    /// Returns the sequences of the selected program, or of the only one.
    ///
    /// # Errors
    ///
    /// A trace without calls, with missing ranks, or with numbers that no program has; several programs of which none is selected; a
    /// program that the trace does not have.
    pub fn finish(self) -> Result<Sequences, SequenceError> {
        let marks = self.options.marks.len();
        let header = self.header.clone();
        let mut job = self.chosen()?;
        let names = std::mem::take(&mut job.names);
        let mut sequences = job.finish(marks)?;
        sequences.origin = Origin {
            names,
            ..Origin::new(&sequences.nodes, header.as_ref())
        };
        Ok(sequences)
    }

    /// Returns every program of the trace with its sequences, or with the reason why it has none.
    pub fn finish_each(mut self) -> Vec<(MpiProgram, Result<Sequences, SequenceError>)> {
        self.settle();
        let marks = self.options.marks.len();
        let programs = self.finder.programs().iter().cloned();
        programs
            .zip(self.jobs)
            .map(|(program, job)| (program, job.finish(marks)))
            .collect()
    }

    /// Adds the processes without calls to their programs.
    fn settle(&mut self) {
        for (_, caller) in self.finder.settle() {
            self.join(&caller);
        }
    }

    /// Returns the rank and its sequence, from a trace of one rank alone, as a replay makes it.
    ///
    /// # Errors
    ///
    /// As [`SequenceBuilder::finish`]; a trace of more than one rank.
    pub fn finish_alone(self) -> Result<(u32, Sequence), SequenceError> {
        let job = self.chosen()?;
        let ranks: Vec<u32> = job.states.iter().flatten().map(|s| s.rank).collect();
        let mut sequences = job.sequences(0, false)?;
        match (ranks.as_slice(), sequences.ranks.pop()) {
            (&[rank], Some(sequence)) => Ok((rank, sequence)),
            _ => Err(SequenceError::NotAlone { ranks: ranks.len() }),
        }
    }

    /// Returns the chosen job, or the only one.
    fn chosen(mut self) -> Result<Job, SequenceError> {
        self.settle();
        let jobs = self.jobs.len();
        let programs = || ProgramList::new(self.finder.programs());
        let chosen = match self.options.program {
            Some(asked) if asked >= jobs.max(1) => {
                let programs = programs();
                return Err(SequenceError::NoSuchProgram { asked, programs });
            }
            Some(asked) => asked,
            None if jobs > 1 => {
                let programs = programs();
                return Err(SequenceError::SeveralPrograms { jobs, programs });
            }
            None => 0,
        };
        if chosen >= jobs {
            return Err(SequenceError::NoCalls);
        }
        let mut job = self.jobs.swap_remove(chosen);
        if jobs > 1 {
            let note = format!("the trace has {jobs} MPI programs; this is number {chosen}");
            job.notes.push(note);
        }
        Ok(job)
    }
}

impl Job {
    fn call(&mut self, caller: &Caller, node: u32, call: &MpiCall, options: &SequenceOptions) {
        let rank = caller.rank;
        if rank >= MOST_RANKS {
            return;
        }
        self.calls = self.calls.saturating_add(call.record.calls);
        let record = &call.record;
        self.names.learn(record);
        self.check(rank, record, limits::check(rank, call));
        let listed: Option<Vec<u32>> = record.members.iter().map(|m| m.rank()).collect();
        if let (true, Some(members)) = (!record.members.is_empty(), listed) {
            self.members.insert(record.new_communicator, members);
        }
        for id in [record.communicator, record.new_communicator] {
            if id > communicator::SELF {
                self.users.entry(id).or_default().insert(rank);
            }
        }
        if self.states.len() <= caller.process {
            self.states.resize_with(caller.process + 1, || None);
        }
        let state = self.states[caller.process].get_or_insert_with(|| {
            let flavour = self.known.get(&rank).copied();
            let flavour = flavour.unwrap_or(Flavour::None);
            Box::new(RankState::new(rank, node, flavour, options))
        });
        state.call(call, &mut self.ops);
    }

    fn check(&mut self, rank: u32, record: &MpiRecord, checked: Result<(), SequenceError>) {
        if self.wrong.is_none() {
            self.wrong = checked.err();
        }
        // A call that failed does nothing, so its ranks do not count. A receive that was too short is an exception, because it has taken
        // its message.
        let does = record.result == 0 || record.function == Function::Recv;
        if let Some(named) = limits::named(rank, record).filter(|_| does)
            && self.named.is_none_or(|other| other.peer < named.peer)
        {
            self.named = Some(named);
        }
    }

    fn check_unfinished(&mut self, rank: u32, unfinished: &Unfinished) {
        let entry = limits::time(rank, unfinished.function, unfinished.entry);
        let Some(record) = &unfinished.record else {
            self.wrong = self.wrong.take().or(entry.err());
            return;
        };
        self.names.learn(record);
        self.check(rank, record, entry.and(limits::record(rank, record)));
    }

    fn finish(self, marks: usize) -> Result<Sequences, SequenceError> {
        self.sequences(marks, true)
    }

    /// Returns the sequences of the ranks in the trace. If `all` is true, every rank of the world must be among them.
    fn sequences(mut self, marks: usize, all: bool) -> Result<Sequences, SequenceError> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        let states = std::mem::take(&mut self.states).into_iter().flatten();
        let mut ranks: BTreeMap<u32, Box<RankState>> =
            states.map(|state| (state.rank, state)).collect();
        for (rank, unfinished) in std::mem::take(&mut self.unfinished) {
            if let Some(state) = ranks.get_mut(&rank) {
                state.unfinished(&unfinished, self.stuck.contains(&rank), &mut self.ops);
            }
        }
        let Some((&last, _)) = ranks.last_key_value() else {
            return Err(SequenceError::NoCalls);
        };
        let world = if self.world == 0 {
            last + 1
        } else {
            self.world
        };
        if last >= world {
            return Err(SequenceError::RankOutside { rank: last, world });
        }
        if let Some(Named {
            peer,
            rank,
            function,
        }) = self.named.filter(|named| named.peer >= world)
        {
            return Err(SequenceError::PeerOutside {
                rank,
                function,
                peer,
                world,
            });
        }
        if all && let Some(rank) = (0..world).find(|rank| !ranks.contains_key(rank)) {
            return Err(SequenceError::RankMissing { rank, world });
        }
        let mut sequences = Sequences {
            communicators: vec![Vec::new()],
            marks: vec![Some((u64::MAX, 0)); marks],
            ..Sequences::default()
        };
        // Communicators without reported members consist of the ranks that used them, in the order of the world.
        for (id, users) in std::mem::take(&mut self.users) {
            if !self.members.contains_key(&id) {
                self.notes.push(format!(
                    "communicator {id:#x}: its members were not told; the {} ranks that used it are taken, in the order of the world",
                    users.len()
                ));
                self.members.insert(id, users.into_iter().collect());
            }
        }
        let copies = ranks.values().flat_map(|rank| rank.copies.clone());
        let copies: BTreeMap<u64, u64> = copies.collect();
        // One event can make a copy of as many members as there are ranks, so their sum has a limit.
        let size = |&of: &u64| match of {
            communicator::WORLD => world as usize,
            of => self.members.get(&of).map_or(0, Vec::len),
        };
        let members: usize = copies.values().map(size).sum();
        if members > limits::MOST_COPIED {
            return Err(SequenceError::TooManyMembers { members });
        }
        for (&copy, &of) in &copies {
            let members = match of {
                communicator::WORLD => Some((0..world).collect()),
                of => self.members.get(&of).cloned(),
            };
            self.members
                .extend(members.map(|members: Vec<u32>| (copy, members)));
        }
        let mut numbers: HashMap<u64, Option<u32>> = HashMap::new();
        numbers.insert(communicator::WORLD, Some(0));
        numbers.insert(communicator::SELF, None);
        let whole: Vec<u32> = (0..world).collect();
        let mut ids: Vec<_> = self.members.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let members = &self.members[&id];
            let number = sequences.communicators.len() as u32;
            if copies.contains_key(&id) {
                sequences.copies.insert(number);
            }
            // A copy of the world has an empty list like the world, but is another communicator.
            sequences.communicators.push(if *members == whole {
                Vec::new()
            } else {
                members.clone()
            });
            numbers.insert(id, Some(number));
        }
        for (rank, state) in ranks {
            sequences.nodes.push(state.node);
            let (first, last) = state.extent();
            sequences.spans.push(last - first);
            sequences.extents.push((first, last));
            for (all, own) in sequences.marks.iter_mut().zip(state.marks()) {
                *all = match (*all, own) {
                    (Some((first, last)), Some(own)) => Some((first.min(own), last.max(own))),
                    _ => None,
                };
            }
            let mut finished = state.finish(&self.members, &mut self.ops, &mut self.notes);
            let communicators = std::mem::take(&mut finished.communicators);
            sequences.begins.push(std::mem::take(&mut finished.begins));
            sequences.ranks.push(Sequence {
                entries: finished.entries,
                communicators: communicators
                    .into_iter()
                    .map(|id| numbers.get(&id).copied().flatten())
                    .collect(),
            });
            debug_assert!(!all || sequences.ranks.len() == rank as usize + 1);
        }
        self.notes.sort();
        self.notes.dedup();
        sequences.notes = self.notes;
        Ok(sequences)
    }
}

impl Sequences {
    /// Returns the sequences of a trace's events, in the order of the file.
    ///
    /// # Errors
    ///
    /// As [`SequenceBuilder::finish`].
    pub fn from_events<'a>(
        events: impl IntoIterator<Item = &'a Event>,
    ) -> Result<Sequences, SequenceError> {
        let mut builder = SequenceBuilder::default();
        events.into_iter().for_each(|event| builder.add(event));
        builder.finish()
    }
}
