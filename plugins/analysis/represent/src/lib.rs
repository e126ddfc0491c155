//! Representative ranks: which ranks of a traced MPI program represent all others, and how long the whole program takes on another
//! cluster if every rank computes for as long as its representative did there.
//!
//! - [`group`](mod@group): ranks that call the same MPI functions in the same order.
//! - [`cluster`]: agglomerative clustering of the computation vectors of a group, its dendrogram, and the cut through it.
//! - [`analysis`]: all groups of a trace, their clusters and representatives.
//! - [`assignment`]: a program whose ranks compute for as long as their representatives did in a replay.
//! - [`replay_prediction`]: the prediction for that program, with each rank's times.
//!
//! A *computation vector* is the list of a rank's times before each MPI call since the previous call, picoseconds. `README.md` is the
//! guide, `SCHEMA.md` has the formats.

pub mod analysis;
pub mod assignment;
pub mod cluster;
pub mod group;
pub mod replay_prediction;

mod html;
mod text;

pub use analysis::{Analysis, Representation};
pub use assignment::{Replay, assign_replays};
pub use cluster::{Cluster, Clustering, Merge};
pub use group::{Group, groups};
pub use html::TITLE;
pub use replay_prediction::{ReplayPrediction, Scaling, WithoutReplay};

use nodescope_hypercall::Function;

/// Reason for which representatives, or a prediction from them, cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RepresentError {
    /// A group with more ranks than memory has space for their pairwise distances.
    #[error(
        "{ranks} ranks make the same calls, more than the {most} whose distances are computed; trace a run of fewer ranks"
    )]
    TooManyRanks {
        /// Number of ranks in the group.
        ranks: usize,
        /// Largest number of ranks in a group.
        most: usize,
    },
    /// Two replays of the same rank.
    #[error("two replays are of rank {rank}; give one replay of each rank")]
    ReplayedTwice {
        /// World rank of the two replays.
        rank: u32,
    },
    /// A replay of a rank that the trace lacks.
    #[error(
        "a replay is of rank {rank}, but the trace has {world} ranks; the replay is of another program or run"
    )]
    NoSuchRank {
        /// The replayed rank.
        rank: u32,
        /// Number of ranks in the trace.
        world: usize,
    },
    /// A cluster in which no rank was replayed.
    #[error(
        "no replay of rank {representative}, which represents the ranks {ranks}; record and replay this rank, or raise the threshold"
    )]
    NotReplayed {
        /// World rank of the representative.
        representative: u32,
        /// Ranks of the representative's cluster, as text.
        ranks: String,
    },
    /// Replays where the program was traced, without one of a rank whose replay on the target is used.
    #[error(
        "there are replays where the program was traced, but none of rank {rank}, whose replay on the target is used; replay its recording there, too"
    )]
    NotReplayedWhereTraced {
        /// World rank whose replay is used.
        rank: u32,
    },
    /// A replay whose calls differ from the rank's calls in the trace.
    #[error(
        "the replay of rank {rank} is of another run than the trace: call {call} is {replayed} in the replay and {traced} in the trace; record the run that is traced"
    )]
    OtherCalls {
        /// World rank of the replay.
        rank: u32,
        /// Number of the first different call behind MPI_Init, from 1; polls that found nothing do not count.
        call: usize,
        /// The replay's function, or "missing".
        replayed: String,
        /// The trace's function, or "missing".
        traced: String,
    },
}

/// Returns the name of a call, or "missing".
fn call_name(function: Option<Function>) -> String {
    function.map_or_else(
        || "missing".to_owned(),
        |function| function.name().to_owned(),
    )
}

/// Returns ranks as text, with runs of consecutive ranks as ranges, such as `0-3, 7`.
pub(crate) fn ranks_text(ranks: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let parts = parts.into_iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    parts.collect::<Vec<_>>().join(", ")
}
