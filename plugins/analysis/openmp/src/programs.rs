//! The programs of a job: which processes share an `MPI_COMM_WORLD`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nodescope_hypercall::{Flavour, Hello, Peer, ProcessKind};
use nodescope_trace::ProgramFinder;
use serde::Serialize;

use crate::hybrid::{Hybrid, RankMpi};
use crate::record::Record;

/// Time in MPI calls of a process of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessMpi {
    /// Number of the process's MPI program in the trace.
    pub program: usize,
    /// World rank of the process.
    pub rank: u32,
    /// Name of the host on which the process ran.
    pub host: String,
    /// Process id in the system.
    pub pid: u32,
    /// The process's time in MPI calls.
    pub time: RankMpi,
}

/// Time in MPI calls of all processes of a trace.
pub type MpiTime = Vec<ProcessMpi>;

/// A program: the ranks of one `MPI_COMM_WORLD`, or a process without MPI.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramReport {
    /// Short name of the program's executable; empty if no record names it.
    pub name: String,
    /// Number of the MPI program in the trace, as reports and `--program` number it; `None` if the trace lacks it.
    pub mpi_program: Option<usize>,
    /// Number of ranks in `MPI_COMM_WORLD`; `None` without MPI, or if it is unknown.
    pub ranks: Option<u32>,
    /// Positions of the program's processes in [`Analysis::processes`](crate::Analysis::processes), by rank.
    pub processes: Vec<usize>,
    /// Efficiencies of the program's processes together.
    pub hybrid: Hybrid,
    /// Notes for the reader of the figures.
    pub notes: Vec<String>,
}

/// The records of a program, and their times in MPI.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    pub(crate) mpi_program: Option<usize>,
    /// Numbers of records, with the time in MPI where a trace has it.
    pub(crate) records: Vec<(usize, Option<RankMpi>)>,
}

/// Groups records into programs: those of the trace by number, then others by the order in which they began.
pub(crate) fn group(records: &[Record], mpi: Option<&MpiTime>) -> Vec<Group> {
    let mpi = mpi.map_or(&[][..], Vec::as_slice);
    let known: HashMap<(&str, u32), &ProcessMpi> = (mpi.iter())
        .map(|process| ((process.host.as_str(), process.pid), process))
        .collect();
    let mut traced: BTreeMap<usize, Group> = BTreeMap::new();
    let mut left: Vec<usize> = Vec::new();
    for (number, record) in records.iter().enumerate() {
        match known.get(&(record.host.as_str(), record.pid)) {
            Some(process) if record.rank.is_none_or(|rank| rank == process.rank) => {
                let group = traced.entry(process.program).or_default();
                group.mpi_program = Some(process.program);
                group.records.push((number, Some(process.time)));
            }
            _ => left.push(number),
        }
    }
    // A rank that the trace lacks belongs to the program whose other ranks the launcher gave the same id.
    for group in traced.values_mut() {
        let known = group.records.iter();
        let known: BTreeSet<_> = known.map(|(number, _)| key(&records[*number])).collect();
        left.retain(|number| {
            let record = &records[*number];
            let belongs = record.mpi_program != 0 && known.contains(&key(record));
            if belongs {
                group.records.push((*number, Some(RankMpi::default())));
            }
            !belongs
        });
        group.records.sort_unstable_by_key(|(number, _)| *number);
    }
    let mut others = untraced(records, &left);
    let programs = mpi.iter().map(|process| process.program + 1).max();
    if let ([other], true, Some(1)) = (others.as_mut_slice(), traced.is_empty(), programs) {
        // The trace is of another run of the one program: ranks have the times of the trace's ranks.
        let ranks: HashMap<u32, RankMpi> = (mpi.iter())
            .map(|process| (process.rank, process.time))
            .collect();
        for (number, time) in &mut other.records {
            let rank = records[*number].rank;
            *time = rank.map(|rank| ranks.get(&rank).copied().unwrap_or_default());
            other.mpi_program = rank.is_some().then_some(0).or(other.mpi_program);
        }
    }
    traced.into_values().chain(others).collect()
}

/// Returns the launcher's id and the size of a record's program.
fn key(record: &Record) -> (u64, Option<u32>) {
    (record.mpi_program, record.ranks)
}

/// Groups records of processes that no trace has, by the launcher's id, size, rank and name, as programs of traces are found.
fn untraced(records: &[Record], left: &[usize]) -> Vec<Group> {
    let mut order = left.to_vec();
    order.sort_by_key(|&number| {
        let record = &records[number];
        (record.clock.begin.1, &record.host, record.pid, number)
    });
    let mut finder = ProgramFinder::default();
    let mut groups: Vec<Group> = Vec::new();
    let mut of_program: HashMap<usize, usize> = HashMap::new();
    for (place, number) in (0..).zip(order) {
        let record = &records[number];
        let joined = record.rank.and_then(|rank| {
            let hello = Hello {
                kind: ProcessKind::MpiRank,
                rank: Peer::Rank(rank),
                world_size: record.ranks.unwrap_or(0),
                pid: record.pid,
                flavour: Flavour::None,
                host: record.host.clone(),
                program: record.name().to_owned(),
            };
            // Process ids are those of different hosts, so that each process counts as one of a node of its own.
            finder.join((place, record.pid), hello, record.mpi_program)
        });
        let next = groups.len();
        let group = match joined {
            Some(caller) => *of_program.entry(caller.program).or_insert(next),
            None => next,
        };
        if group == next {
            groups.push(Group::default());
        }
        groups[group].records.push((number, None));
    }
    groups
}

/// Returns the largest number of processors that processes used at the same time, summed over hosts, whose clocks may differ.
pub(crate) fn at_once<'a>(processes: impl IntoIterator<Item = (&'a Record, u32)>) -> u64 {
    let mut changes: BTreeMap<&str, Vec<(u64, bool, u32)>> = BTreeMap::new();
    for (record, processors) in processes {
        let clock = &record.clock;
        let of_host = changes.entry(&record.host).or_default();
        of_host.push((clock.begin.1, true, processors));
        of_host.push((
            clock.end.1.max(clock.begin.1.saturating_add(1)),
            false,
            processors,
        ));
    }
    (changes.into_values())
        .map(|mut changes| {
            // A process that ends when another begins does not overlap with it.
            changes.sort_unstable();
            let (mut now, mut most) = (0u64, 0);
            for (_, begins, processors) in changes {
                now = match begins {
                    true => now + u64::from(processors),
                    false => now.saturating_sub(processors.into()),
                };
                most = most.max(now);
            }
            most
        })
        .sum()
}
