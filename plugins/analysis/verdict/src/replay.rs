//! The program on the cluster on which it was traced.
//!
//! Latency and bandwidth of the links are known. What messages cost in software is not: the time of a send or a receive is a shape, 1 us and
//! 0.1 ns a byte, times one factor. The factor is chosen so that the second half of the replay takes
//! the traced time. It is the network's; between ranks of a node the factor is 1, unless all ranks share one.

use nodescope_loop_tree::{Program, Sequences};
use nodescope_predict::{
    Channel, Cluster, Code, FitError, Model, Options, Outcome, Placement, Progress, Table,
    interpret,
};

/// The network of the traced run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Latency between two nodes, picoseconds.
    pub latency: u64,
    /// Bandwidth of a node's link, bytes per second.
    pub bandwidth: u64,
}

/// Latency (picoseconds) and bandwidth (bytes per second) between ranks of a node: shared memory.
const MEMORY: Link = Link {
    latency: 300_000,
    bandwidth: 10_000_000_000,
};
/// Time of a send or a receive for no bytes and for [`LARGE`] bytes at a factor of 1, picoseconds.
const OVERHEAD: (u64, u64) = (1_000_000, 101_000_000);
const LARGE: u64 = 1_000_000;
/// Largest factor, and steps in which it is found; and the factor where none gives the traced time.
const MOST_FACTOR: f64 = 64.0;
const STEPS: u32 = 14;
const USUAL_FACTOR: f64 = 4.0;
/// Least number of calls of a rank for a fit.
const FEWEST_CALLS: usize = 8;

/// The cluster of the traced run, on which sequences are replayed.
#[derive(Debug)]
pub struct Replay {
    /// The cluster, with fitted overheads.
    pub cluster: Cluster,
}

fn channel(link: Link, factor: f64) -> Channel {
    let at = |time: u64| (time as f64 * factor) as u64;
    let table = Table {
        points: vec![(0, at(OVERHEAD.0)), (LARGE, at(OVERHEAD.1))],
    };
    Channel {
        send_overhead: table.clone(),
        receive_overhead: table,
        ..Channel::new(Model::LogGp, link.latency, link.bandwidth)
    }
}

fn cluster(link: Link, factor: f64, in_memory: f64) -> Cluster {
    Cluster {
        cores: u32::MAX,
        ranks_per_node: None,
        placement: Placement::Traced,
        memory: channel(MEMORY, in_memory),
        contention: true,
        progress: Progress::Calls,
        ..Cluster::simple("as traced", channel(link, factor))
    }
}

impl Replay {
    /// Finds the factor of the overheads with which the replay takes the traced time from the middle of the run on. In the first half MPI makes
    /// connections, which the replay does not have.
    ///
    /// # Errors
    ///
    /// As [`interpret`].
    pub fn fitted(sequences: &Sequences, link: Link) -> Result<Replay, FitError> {
        let program = Program::new(sequences);
        let code = Code::new(&program);
        let nodes = &sequences.origin.nodes;
        let several_nodes = nodes.windows(2).any(|pair| pair[0] != pair[1]);
        let cluster = |factor| match several_nodes {
            true => cluster(link, factor, 1.0),
            false => cluster(link, factor, factor),
        };
        let usual = Replay {
            cluster: cluster(USUAL_FACTOR),
        };
        let Some(middle) = Middle::of(sequences) else {
            return Ok(usual);
        };
        let options = Options {
            timeline: true,
            ..plain()
        };
        let left = |factor| -> Result<u64, FitError> {
            let outcome = interpret(&code, &cluster(factor), &options)?;
            Ok(middle.left(&outcome).unwrap_or(0))
        };
        if left(MOST_FACTOR)? < middle.left {
            return Ok(usual);
        }
        let (mut low, mut high) = (0.0, MOST_FACTOR);
        for _ in 0..STEPS {
            let middle_factor = (low + high) / 2.0;
            match left(middle_factor)? > middle.left {
                true => high = middle_factor,
                false => low = middle_factor,
            }
        }
        Ok(Replay {
            cluster: cluster(low),
        })
    }

    /// Replays sequences on the fitted cluster, with the waits and the critical path.
    ///
    /// # Errors
    ///
    /// As [`interpret`].
    pub fn outcome(&self, sequences: &Sequences) -> Result<Outcome, FitError> {
        let program = Program::new(sequences);
        interpret(&Code::new(&program), &self.cluster, &Options::default())
    }
}

/// A moment in the middle of the rank with most calls.
struct Middle {
    rank: usize,
    /// The call at whose entry the moment is, by its number on the rank.
    call: usize,
    /// Traced time from this moment to the end, picoseconds.
    left: u64,
}

impl Middle {
    /// Finds the moment; `None` without times, or if there are few calls.
    fn of(sequences: &Sequences) -> Option<Middle> {
        let ranks = sequences.ranks.iter().enumerate();
        let (rank, most) = ranks.max_by_key(|(_, rank)| rank.entries.len())?;
        let entries = 0..most.entries.len();
        // The parts of a call are entries of their own.
        let firsts: Vec<usize> = entries
            .filter(|&at| at == 0 || !most.entries[at - 1].op.more)
            .collect();
        let call = firsts.len() / 2;
        let begin = sequences.begins.get(rank)?.get(*firsts.get(call)?)?;
        let end = sequences.extents.iter().map(|extent| extent.1).max()?;
        (firsts.len() >= FEWEST_CALLS).then(|| Middle {
            rank,
            call,
            left: end.saturating_sub(*begin),
        })
    }

    /// Returns the time from this moment to the end of a replay.
    fn left(&self, outcome: &Outcome) -> Option<u64> {
        let calls = &outcome.timeline.as_ref()?.calls;
        let call = calls.get(self.rank)?.get(self.call)?;
        Some(outcome.time.saturating_sub(call.enter))
    }
}

/// Replays sequences on a cluster. A program that comes to no end takes for ever.
pub(crate) fn time_on(cluster: &Cluster, sequences: &Sequences) -> Result<u64, FitError> {
    let program = Program::new(sequences);
    let outcome = interpret(&Code::new(&program), cluster, &plain())?;
    Ok(match outcome.complete() {
        true => outcome.time,
        false => u64::MAX,
    })
}

pub(crate) fn plain() -> Options {
    Options {
        critical_path: false,
        links: 0,
        ..Options::default()
    }
}
