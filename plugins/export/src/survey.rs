//! The first pass over a trace: it finds processes, threads and communicators. Events are streamed in a second pass.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Function, MpiRecord, Peer, ThreadId};
use nodescope_trace::{Body, Caller, Event, Header, ProgramFinder, TraceError, TraceReader};

use crate::error::ExportError;

/// Number of programs that a message lists.
const MOST_LISTED: usize = 20;

/// The processes, locations and communicators of a trace.
#[derive(Debug)]
pub struct Survey {
    /// The trace's header.
    pub header: Header,
    /// The MPI programs of the trace, in the order in which they began.
    pub worlds: Vec<World>,
    /// The MPI processes of all programs, sorted by program and rank.
    pub processes: Vec<Process>,
    /// The threads that called MPI, sorted by process; a process's main thread is first.
    pub locations: Vec<Location>,
    /// The MPI functions called, also by calls that had not ended.
    pub functions: BTreeSet<Function>,
    /// The known call sites of the MPI calls that ended.
    pub call_sites: BTreeSet<CallSite>,
    /// File names of modules, by the module's number in records.
    pub modules: BTreeMap<u64, String>,
    /// Number of events in the trace, up to the missing part if the trace is incomplete.
    pub events: u64,
    /// Number of ended MPI calls of threads whose rank is known.
    pub calls: u64,
    /// Number of ended MPI calls of threads whose rank is unknown.
    pub strays: u64,
    /// Number of calls whose lists did not fit into their record.
    pub lists_left_out: u64,
    /// The latest time in the trace, picoseconds.
    pub end: u64,
    /// Description of the missing part if the trace is incomplete.
    pub incomplete: Option<String>,
    /// Index in `locations` of each thread, in the order in which the threads were found.
    order: Vec<usize>,
}

/// MPI program: the processes of one `MPI_COMM_WORLD`.
#[derive(Debug)]
pub struct World {
    /// Number of ranks in the job, which may be more than the trace has processes of.
    pub size: u32,
    /// The program's short name, the first of several; empty if unknown.
    pub program: String,
    /// Name, ranks, calls and extent of the program, for people.
    pub description: String,
    /// Range of the job's processes in [`Survey::processes`].
    pub processes: std::ops::Range<usize>,
    /// Communicators of the job except `MPI_COMM_SELF`; the world first, the others in the order in which the trace first names them.
    pub communicators: Vec<Communicator>,
    /// Number of ended MPI calls of the job's ranks.
    pub calls: u64,
    index: HashMap<u64, usize>,
}

impl World {
    /// Returns the index in [`World::communicators`] of the communicator with this id; `None` for `MPI_COMM_SELF` and unknown ids.
    pub fn communicator(&self, id: u64) -> Option<usize> {
        self.index.get(&id).copied()
    }
}

/// Communicator of an MPI job.
#[derive(Debug)]
pub struct Communicator {
    /// Id of the communicator in records.
    pub id: u64,
    /// Function that created the communicator, such as `MPI_Comm_split`; `None` for the world, or if the trace lacks the creation.
    pub made_by: Option<Function>,
    /// Id of the communicator from which this one was made; 0 if unknown.
    pub parent: u64,
    /// World ranks of the members, in the order of their ranks in the communicator. If the trace lacks the members: the ranks that used
    /// the communicator, ascending.
    pub members: Vec<u32>,
    /// False if the trace lacks the members, so that `members` has only the ranks that used the communicator.
    pub known: bool,
    /// True if the communicator is an intercommunicator; then `members` has one of its groups.
    pub inter: bool,
    /// World ranks of the other group of an intercommunicator; empty if unknown, and for all other communicators.
    pub remote: Vec<u32>,
    positions: HashMap<u32, u32>,
}

impl Communicator {
    /// Returns the rank in this communicator of the process with a world rank; in an intercommunicator, the rank in that process's group.
    /// `None` if the process is no member.
    pub fn position(&self, rank: u32) -> Option<u32> {
        if self.id == communicator::WORLD {
            return Some(rank);
        }
        self.positions.get(&rank).copied()
    }
}

/// MPI process.
#[derive(Clone, Debug)]
pub struct Process {
    /// Index of the process's job in [`Survey::worlds`].
    pub world: usize,
    /// World rank of the process in its job.
    pub rank: u32,
    /// Index of the process's node in the trace's header.
    pub node: u32,
    /// Id of the process in the guest.
    pub pid: u32,
}

/// Thread that called MPI.
#[derive(Clone, Debug)]
pub struct Location {
    /// Index of the thread's process in [`Survey::processes`].
    pub process: usize,
    /// Process id and thread id in the guest.
    pub thread: ThreadId,
    /// Beginning of the thread's first call in picoseconds.
    pub first: u64,
    /// End of the thread's last call in picoseconds.
    pub last: u64,
    /// Number of the thread's MPI calls that ended.
    pub calls: u64,
}

/// A location in a program from which MPI is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallSite {
    /// Return address of the MPI call, relative to the load address of its module.
    pub address: u64,
    /// Number of the module that contains the address; 0 for the main program.
    pub module: u64,
}

impl CallSite {
    /// Returns the call site of a record's call.
    pub fn of(record: &MpiRecord) -> CallSite {
        CallSite {
            address: record.call_site,
            module: record.call_module,
        }
    }
}

/// Finder of the process and thread of an event. Both passes find the same numbers, since both read events in the same order.
#[derive(Debug, Default)]
struct Finder {
    programs: ProgramFinder,
    processes: Vec<Process>,
    /// Number of each process, by program, rank, node and process id.
    by_program: HashMap<(usize, u32, u32, u32), usize>,
    by_thread: HashMap<(usize, ThreadId), usize>,
    locations: Vec<(usize, ThreadId)>,
}

impl Finder {
    /// Returns the number of a process in the order in which processes were found.
    fn process(&mut self, node: u32, pid: u32, caller: &Caller) -> usize {
        let next = self.processes.len();
        let (world, rank) = (caller.program, caller.rank);
        let key = (world, rank, node, pid);
        let process = *self.by_program.entry(key).or_insert(next);
        if process == next {
            self.processes.push(Process {
                world,
                rank,
                node,
                pid,
            });
        }
        process
    }

    /// Returns the number of an event's thread in the order in which threads were found; `None` if its rank is unknown, and for events
    /// without a thread.
    fn of(&mut self, event: &Event) -> Option<usize> {
        let caller = self.programs.caller(event)?;
        let thread = match &event.body {
            Body::Mpi(call) => call.record.thread,
            Body::Unfinished(call) => call.thread,
            _ => return None,
        };
        let process = self.process(event.node, thread.pid, &caller);
        let next = self.locations.len();
        let location = *self.by_thread.entry((process, thread)).or_insert(next);
        if location == next {
            self.locations.push((process, thread));
        }
        Some(location)
    }

    /// Adds the processes that have introduced themselves and made no call.
    fn settle(&mut self) {
        for (node, caller) in self.programs.settle() {
            let pid = caller.introduced.as_ref().map_or(0, |hello| hello.pid);
            self.process(node, pid, &caller);
        }
    }
}

#[derive(Default)]
struct Extent {
    first: Option<u64>,
    last: u64,
    calls: u64,
}

#[derive(Default)]
struct Made {
    by: Option<Function>,
    parent: u64,
    members: Vec<u32>,
    remote: Vec<u32>,
    users: BTreeSet<u32>,
    inter: bool,
    order: usize,
}

/// Returns a list of peers as world ranks; `None` if the list is empty or a peer is not a rank of this job.
fn ranks(peers: &[Peer]) -> Option<Vec<u32>> {
    let ranks: Option<Vec<u32>> = peers.iter().map(|peer| peer.rank()).collect();
    ranks.filter(|ranks| !ranks.is_empty())
}

/// Returns the entry of a communicator, made if it is new, and adds the process to the communicator's users. `None` if `id` names no
/// communicator or a predefined one.
fn used<'a>(
    made: &'a mut BTreeMap<(usize, u64), Made>,
    process: &Process,
    id: u64,
) -> Option<&'a mut Made> {
    if matches!(
        id,
        communicator::NONE | communicator::WORLD | communicator::SELF
    ) {
        return None;
    }
    let order = made.len();
    let made = made.entry((process.world, id)).or_insert_with(|| Made {
        order,
        ..Made::default()
    });
    made.users.insert(process.rank);
    Some(made)
}

impl Survey {
    /// Reads a trace once, and lists its contents.
    pub fn of(trace: &Path) -> Result<Survey, ExportError> {
        let reader = TraceReader::open(trace)?;
        let header = reader.header().clone();
        let mut finder = Finder::default();
        let mut extents: Vec<Extent> = Vec::new();
        let mut made: BTreeMap<(usize, u64), Made> = BTreeMap::new();
        let mut survey = Survey {
            header,
            worlds: Vec::new(),
            processes: Vec::new(),
            locations: Vec::new(),
            functions: BTreeSet::new(),
            call_sites: BTreeSet::new(),
            modules: BTreeMap::new(),
            events: 0,
            calls: 0,
            strays: 0,
            lists_left_out: 0,
            end: 0,
            incomplete: None,
            order: Vec::new(),
        };
        for event in reader.events() {
            let event = match event {
                Ok(event) => event,
                Err(cut @ TraceError::Cut { .. }) => {
                    survey.incomplete = Some(cut.to_string());
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            if event.node as usize >= survey.header.nodes.len() {
                return Err(ExportError::NoSuchNode {
                    event: survey.events,
                    node: event.node,
                    nodes: survey.header.nodes.len(),
                });
            }
            survey.events += 1;
            survey.end = survey.end.max(event.stamp.time);
            let Some(location) = finder.of(&event) else {
                survey.strays += u64::from(matches!(event.body, Body::Mpi(_)));
                continue;
            };
            extents.resize_with(finder.locations.len(), Extent::default);
            let extent = &mut extents[location];
            let Body::Mpi(call) = &event.body else {
                if let Body::Unfinished(call) = &event.body {
                    survey.functions.insert(call.function);
                    let first = extent.first.unwrap_or(call.entry.time);
                    extent.first = Some(first.min(call.entry.time));
                    extent.last = extent.last.max(event.stamp.time);
                }
                continue;
            };
            let first = extent.first.unwrap_or(call.entry.time);
            extent.first = Some(first.min(call.entry.time));
            extent.last = extent.last.max(call.exit.time);
            extent.calls += 1;
            survey.calls += 1;
            survey.end = survey.end.max(call.exit.time);
            let record = &call.record;
            survey.functions.insert(record.function);
            if record.call_site != 0 {
                survey.call_sites.insert(CallSite::of(record));
            }
            if !record.module_name.is_empty() {
                let known = survey.modules.entry(record.call_module);
                known.or_insert_with(|| record.module_name.clone());
            }
            survey.lists_left_out += u64::from(record.flags.contains(Flags::TAIL_DROPPED));
            let process = &finder.processes[finder.locations[location].0];
            if let Some(used) = used(&mut made, process, record.communicator) {
                used.inter |= record.flags.contains(Flags::INTERCOMM);
            }
            if let Some(new) = used(&mut made, process, record.new_communicator) {
                new.by = Some(record.function);
                new.parent = record.communicator;
                new.inter |= record.function == Function::IntercommCreate;
                new.inter |= !record.remote_members.is_empty();
                if new.members.is_empty()
                    && let Some(members) = ranks(&record.members)
                {
                    new.members = members;
                    new.remote = ranks(&record.remote_members).unwrap_or_default();
                }
            }
        }
        survey.settle(finder, extents, made);
        Ok(survey)
    }

    /// Sorts processes and threads, and assigns communicators to jobs.
    fn settle(
        &mut self,
        mut finder: Finder,
        extents: Vec<Extent>,
        made: BTreeMap<(usize, u64), Made>,
    ) {
        finder.settle();
        let mut processes: Vec<usize> = (0..finder.processes.len()).collect();
        processes.sort_by_key(|&at| (finder.processes[at].world, finder.processes[at].rank));
        let mut new_index = vec![0; processes.len()];
        for (to, &from) in processes.iter().enumerate() {
            new_index[from] = to;
            self.processes.push(finder.processes[from].clone());
        }
        let mut locations: Vec<usize> = (0..finder.locations.len()).collect();
        locations.sort_by_key(|&at| {
            let (process, thread) = finder.locations[at];
            (new_index[process], thread.tid != thread.pid, at)
        });
        self.order = vec![0; locations.len()];
        for (to, &from) in locations.iter().enumerate() {
            self.order[from] = to;
            let (process, thread) = finder.locations[from];
            let extent = extents.get(from);
            self.locations.push(Location {
                process: new_index[process],
                thread,
                first: extent.and_then(|extent| extent.first).unwrap_or(0),
                last: extent.map_or(0, |extent| extent.last),
                calls: extent.map_or(0, |extent| extent.calls),
            });
        }
        for (number, program) in finder.programs.programs().iter().enumerate() {
            let first = self
                .processes
                .partition_point(|process| process.world < number);
            let last = self
                .processes
                .partition_point(|process| process.world <= number);
            let calls = self.locations.iter();
            let calls = calls.filter(|at| (first..last).contains(&at.process));
            self.worlds.push(World {
                size: program.world_size(),
                program: program.names.iter().next().cloned().unwrap_or_default(),
                description: program.to_string(),
                processes: first..last,
                communicators: vec![Communicator {
                    id: communicator::WORLD,
                    made_by: None,
                    parent: communicator::NONE,
                    // A size comes from a guest and may be any number, so it must not decide how much memory is allocated.
                    members: program.ranks.iter().copied().collect(),
                    known: true,
                    inter: false,
                    remote: Vec::new(),
                    positions: HashMap::new(),
                }],
                calls: calls.map(|at| at.calls).sum(),
                index: HashMap::from([(communicator::WORLD, 0)]),
            });
        }
        let mut made: Vec<((usize, u64), Made)> = made.into_iter().collect();
        made.sort_by_key(|(_, made)| made.order);
        for ((world, id), made) in made {
            let known = !made.members.is_empty();
            let members = match known {
                true => made.members,
                false => made.users.into_iter().collect(),
            };
            let sides = members.iter().zip(0..).chain(made.remote.iter().zip(0..));
            let positions = sides.map(|(&rank, at)| (rank, at)).collect();
            let world = &mut self.worlds[world];
            world.index.insert(id, world.communicators.len());
            world.communicators.push(Communicator {
                id,
                made_by: made.by,
                parent: made.parent,
                positions,
                members,
                known,
                inter: made.inter,
                remote: made.remote,
            });
        }
    }

    /// Makes the second pass: calls `each` with every event, and with the number of its thread if it has one.
    pub fn replay<E: From<TraceError>>(
        &self,
        trace: &Path,
        mut each: impl FnMut(Event, Option<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut finder = Finder::default();
        for (event, _) in TraceReader::open(trace)?.events().zip(0..self.events) {
            let event = event?;
            let location = finder.of(&event);
            let location = location.and_then(|found| self.order.get(found).copied());
            each(event, location)?;
        }
        Ok(())
    }

    /// Returns the process of a thread.
    pub fn process_of(&self, location: usize) -> &Process {
        &self.processes[self.locations[location].process]
    }

    /// Returns a call site as text, such as `0x11f3` in the main program, or `libm.so.6+0x11f3`.
    pub fn site_name(&self, site: &CallSite) -> String {
        match (site.module, self.modules.get(&site.module)) {
            (0, _) => format!("{:#x}", site.address),
            (_, Some(name)) => format!("{name}+{:#x}", site.address),
            (module, None) => format!("{module:#x}+{:#x}", site.address),
        }
    }

    /// Returns the name of a node from the header; for a node that the header lacks, a name with its number, such as `node3`.
    pub fn node_name(&self, node: u32) -> String {
        self.header
            .nodes
            .get(node as usize)
            .map_or_else(|| format!("node{node}"), |entry| entry.name.clone())
    }

    /// Returns the name of a thread, such as `rank 3`, `rank 3 thread 2`, or with several programs `program 1 rank 3`.
    pub fn location_name(&self, number: usize) -> String {
        let location = &self.locations[number];
        let first = self
            .locations
            .partition_point(|other| other.process < location.process);
        let name = self.process_name(location.process);
        match number - first {
            0 => name,
            thread => format!("{name} thread {thread}"),
        }
    }

    /// Returns the name of a process, such as `rank 3`, or with several programs `program 1 rank 3`.
    pub fn process_name(&self, process: usize) -> String {
        let process = &self.processes[process];
        match self.worlds.len() {
            1 => format!("rank {}", process.rank),
            _ => format!("program {} rank {}", process.world, process.rank),
        }
    }

    /// Returns the program to export in a format that contains only one: the requested one, or the only one of the trace.
    pub fn one_world(
        &self,
        asked: Option<usize>,
        format: &'static str,
    ) -> Result<usize, ExportError> {
        let programs = || {
            let programs = self.worlds.iter().zip(0..).take(MOST_LISTED);
            let mut list: Vec<String> = programs
                .map(|(world, number)| format!("{number}: {}", world.description))
                .collect();
            if let Some(more @ 1..) = self.worlds.len().checked_sub(MOST_LISTED) {
                list.push(format!("and {more} more"));
            }
            list.join("; ")
        };
        match asked {
            Some(asked) if asked < self.worlds.len() => Ok(asked),
            Some(asked) => Err(ExportError::NoSuchProgram {
                asked,
                programs: programs(),
            }),
            None if self.worlds.len() > 1 => Err(ExportError::SeveralPrograms {
                format,
                count: self.worlds.len(),
                programs: programs(),
            }),
            None => Ok(0),
        }
    }

    /// Checks that the trace has every rank of a job, and returns the number of ranks.
    pub fn complete(&self, world: usize, format: &'static str) -> Result<u32, ExportError> {
        let world = &self.worlds[world];
        let ranks = self.processes[world.processes.clone()].iter();
        for (process, rank) in ranks.zip(0..) {
            if process.rank != rank {
                return Err(ExportError::MissingRank {
                    format,
                    rank,
                    size: world.size,
                });
            }
        }
        let found = world.processes.len() as u32;
        if found < world.size {
            return Err(ExportError::MissingRank {
                format,
                rank: found,
                size: world.size,
            });
        }
        Ok(world.size)
    }
}
