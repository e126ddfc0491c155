//! Collective operations as rounds of messages.
//!
//! An algorithm gives, for each rank and round, at most one message to send and one to receive. Both are computed from the round's number,
//! so nothing is stored per rank. A round may wait for all that was begun before the next round; every algorithm waits at its end.
//! The algorithms are those of the literature: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
//! Operations in MPICH" (2005); Bruck et al. (1997) for all-to-all and all-gather; Hensgen, Finkel and Manber (1988) for the
//! dissemination barrier.

mod exchange;
mod select;
mod tree;

use std::fmt;

use nodescope_loop_tree::CollectiveKind;
use serde::Serialize;

pub(crate) use select::datatypes;
pub use select::{Choice, Library};

/// A named algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Every rank exchanges with the root, or every rank with every rank, at once.
    Linear,
    /// A binomial tree, the largest subtree first; a broadcast's root sends to all of its children at once.
    Binomial,
    /// A binomial tree, the largest subtree first; a broadcast's root sends to one child after the other.
    BinomialInTurn,
    /// A binomial tree, one child after the other, the smallest subtree first.
    BinomialAscending,
    /// A chain along which segments follow one another.
    Pipeline,
    /// Partners at distance 1, 2, 4, ...; ranks beyond the greatest power of two join a partner before, and receive the result from it
    /// afterwards.
    RecursiveDoubling,
    /// Halving vectors with partners at distance p/2, p/4, ...
    RecursiveHalving,
    /// Around a ring: a block to the right, one from the left.
    Ring,
    /// Reduce-scatter by recursive halving, then all-gather by recursive doubling (or gather to the root).
    Rabenseifner,
    /// With the rank k after and the rank k before, for k from 1.
    Pairwise,
    /// Bruck's: blocks gathered over distances 1, 2, 4, ...
    Bruck,
    /// Signals over distances 1, 2, 4, ...
    Dissemination,
    /// Scatter by a binomial tree, then all-gather around a ring (van de Geijn).
    ScatterAllgather,
    /// A reduction to rank 0, then a broadcast.
    ReduceBroadcast,
    /// A tree in which every rank has two children, level by level.
    Binary,
    /// A tree in which a rank has up to three children for each power of four: at once, twice and three times this distance.
    Knomial,
    /// Each rank exchanges its block with one neighbour, then two blocks with the other neighbour and with the first in turn.
    NeighbourExchange,
    /// Every rank's block to rank 0, then a broadcast along a binary tree.
    GatherBroadcast,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 18] = [
        Algorithm::Linear,
        Algorithm::Binomial,
        Algorithm::BinomialInTurn,
        Algorithm::BinomialAscending,
        Algorithm::Pipeline,
        Algorithm::RecursiveDoubling,
        Algorithm::RecursiveHalving,
        Algorithm::Ring,
        Algorithm::Rabenseifner,
        Algorithm::Pairwise,
        Algorithm::Bruck,
        Algorithm::Dissemination,
        Algorithm::ScatterAllgather,
        Algorithm::ReduceBroadcast,
        Algorithm::Binary,
        Algorithm::Knomial,
        Algorithm::NeighbourExchange,
        Algorithm::GatherBroadcast,
    ];

    /// Returns the name in cluster files.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Linear => "linear",
            Algorithm::Binomial => "binomial",
            Algorithm::BinomialInTurn => "binomial-in-turn",
            Algorithm::BinomialAscending => "binomial-ascending",
            Algorithm::Pipeline => "pipeline",
            Algorithm::RecursiveDoubling => "recursive-doubling",
            Algorithm::RecursiveHalving => "recursive-halving",
            Algorithm::Ring => "ring",
            Algorithm::Rabenseifner => "rabenseifner",
            Algorithm::Pairwise => "pairwise",
            Algorithm::Bruck => "bruck",
            Algorithm::Dissemination => "dissemination",
            Algorithm::ScatterAllgather => "scatter-allgather",
            Algorithm::ReduceBroadcast => "reduce-broadcast",
            Algorithm::Binary => "binary",
            Algorithm::Knomial => "knomial",
            Algorithm::NeighbourExchange => "neighbour-exchange",
            Algorithm::GatherBroadcast => "gather-broadcast",
        }
    }

    /// Returns whether the algorithm can perform a kind of collective.
    pub fn can(self, kind: CollectiveKind) -> bool {
        use Algorithm::*;
        use CollectiveKind as K;
        match kind {
            K::Barrier => matches!(self, Linear | RecursiveDoubling | Dissemination),
            K::Bcast => matches!(
                self,
                Linear | Binomial | BinomialInTurn | Binary | Knomial | Pipeline | ScatterAllgather
            ),
            K::Reduce => matches!(self, Linear | Binomial | Binary | Pipeline | Rabenseifner),
            K::Allreduce | K::Create => matches!(
                self,
                RecursiveDoubling | Ring | Rabenseifner | ReduceBroadcast
            ),
            K::Gather => matches!(self, Linear | Binomial),
            K::Scatter => matches!(self, Linear | Binomial | BinomialAscending),
            K::Gatherv | K::Scatterv => self == Linear,
            K::Allgather => matches!(
                self,
                RecursiveDoubling | Ring | Bruck | NeighbourExchange | Pairwise | Linear
            ),
            K::Allgatherv => matches!(
                self,
                Ring | Bruck | NeighbourExchange | GatherBroadcast | Pairwise | Linear
            ),
            K::Alltoall => matches!(self, Linear | Pairwise | Bruck),
            K::Alltoallv => matches!(self, Linear | Pairwise),
            K::ReduceScatter | K::ReduceScatterBlock => {
                matches!(self, RecursiveHalving | Pairwise | Ring)
            }
            K::Scan | K::Exscan => matches!(self, Linear | RecursiveDoubling),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An algorithm with the size of its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Selected {
    /// Algorithm of the collective.
    pub algorithm: Algorithm,
    /// Bytes of a segment, in algorithms that divide messages; 0 for whole messages.
    pub segment: u64,
}

impl From<Algorithm> for Selected {
    fn from(algorithm: Algorithm) -> Selected {
        Selected {
            algorithm,
            segment: 0,
        }
    }
}

/// One rank's call of a collective: the arguments, and the caller's rank.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// Kind of the collective.
    pub kind: CollectiveKind,
    /// Number of ranks of the communicator, at least 1.
    pub size: u32,
    /// Rank of the caller in the communicator.
    pub me: u32,
    /// Rank of the root in the communicator.
    pub root: u32,
    /// Bytes of the collective, as in [`nodescope_loop_tree::Collective::bytes`].
    pub bytes: u64,
    /// Bytes that the caller sends to each rank of the communicator; empty if the call does not list them.
    pub send_to: &'a [u64],
    /// Bytes that the caller receives from each rank of the communicator; empty if the call does not list them.
    pub receive_from: &'a [u64],
}

impl Shape<'_> {
    /// Returns the bytes that the caller sends to a rank in a v form; the common share where the call had no list.
    fn to(&self, rank: u32) -> u64 {
        self.share(self.send_to, rank)
    }

    /// Returns the bytes that the caller gets from a rank in a v form.
    fn from(&self, rank: u32) -> u64 {
        self.share(self.receive_from, rank)
    }

    fn share(&self, list: &[u64], rank: u32) -> u64 {
        match list.get(rank as usize) {
            Some(&bytes) => bytes,
            None if self.kind == CollectiveKind::Alltoallv => {
                self.bytes / u64::from(self.size.max(1))
            }
            None => self.bytes,
        }
    }

    /// Returns the bytes of a rank's block in an all-gather.
    fn block(&self, rank: u32) -> u64 {
        if rank == self.me && self.receive_from.is_empty() {
            self.bytes
        } else {
            self.from(rank)
        }
    }

    /// Returns the bytes of `count` successive blocks, beginning with that of rank `from`.
    fn blocks(&self, from: u32, count: u32) -> u64 {
        if self.receive_from.is_empty() {
            return self.bytes * u64::from(count);
        }
        (0..count)
            .map(|k| self.block(((u64::from(from) + u64::from(k)) % u64::from(self.size)) as u32))
            .sum()
    }

    /// Returns the rank `distance` after the caller.
    fn after(&self, distance: u32) -> u32 {
        ((u64::from(self.me) + u64::from(distance)) % u64::from(self.size)) as u32
    }

    /// Returns the rank `distance` before the caller.
    fn before(&self, distance: u32) -> u32 {
        self.after(self.size - distance % self.size)
    }
}

/// The messages of a rank in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Receiver, by its rank in the communicator, and bytes.
    pub send: Option<(u32, u64)>,
    /// Sender, by its rank in the communicator, and bytes.
    pub receive: Option<(u32, u64)>,
    /// True if everything begun so far must be complete before the next round.
    pub wait: bool,
    /// Bytes that the caller reduces after the round's messages; 0 for none.
    pub reduce: u64,
}

impl Round {
    fn send(to: u32, bytes: u64) -> Round {
        Round {
            send: Some((to, bytes)),
            ..Round::default()
        }
    }

    /// Returns this round with a wait for everything begun so far.
    fn in_turn(self) -> Round {
        Round { wait: true, ..self }
    }

    fn receive(from: u32, bytes: u64) -> Round {
        Round {
            receive: Some((from, bytes)),
            wait: true,
            ..Round::default()
        }
    }

    fn exchange(to: u32, sent: u64, from: u32, received: u64) -> Round {
        Round {
            send: Some((to, sent)),
            receive: Some((from, received)),
            wait: true,
            reduce: 0,
        }
    }

    fn reducing(self, bytes: u64) -> Round {
        Round {
            reduce: bytes,
            ..self
        }
    }
}

/// Returns the caller's messages in round `k`, counted from 0; `None` after the last round, and for a communicator of one rank.
pub fn round(selected: Selected, shape: &Shape<'_>, k: u32) -> Option<Round> {
    if shape.size < 2 {
        return None;
    }
    use Algorithm::*;
    use CollectiveKind as K;
    match (shape.kind, selected.algorithm) {
        (K::Barrier, Dissemination) => exchange::dissemination(shape, k),
        (K::Barrier, Linear) => tree::linear_barrier(shape, k),
        (K::Barrier | K::Allreduce | K::Create, RecursiveDoubling) | (K::Barrier, _) => {
            exchange::recursive_doubling(shape, k)
        }
        (K::Bcast, Linear) => tree::linear_out(shape, k, |_| shape.bytes),
        (K::Bcast, Pipeline) => tree::pipeline(shape, k, selected.segment),
        (K::Bcast, Binary) => tree::binary_out(shape, k, shape.root, shape.bytes),
        (K::Bcast, Knomial) => tree::knomial_out(shape, k),
        (K::Bcast, ScatterAllgather) => exchange::scatter_allgather(shape, k),
        (K::Bcast, BinomialInTurn) => {
            tree::binomial_out(shape, k, shape.root, |_| shape.bytes).map(Round::in_turn)
        }
        (K::Bcast, _) => tree::binomial_out(shape, k, shape.root, |_| shape.bytes),
        (K::Reduce, Linear) => {
            tree::linear_in(shape, k, |_| shape.bytes).map(|r| reduced(r, shape.bytes))
        }
        (K::Reduce, Pipeline) => tree::reduce_pipeline(shape, k, selected.segment),
        (K::Reduce, Binary) => tree::binary_in(shape, k).map(|r| reduced(r, shape.bytes)),
        (K::Reduce, Rabenseifner) => exchange::rabenseifner_reduce(shape, k),
        (K::Reduce, _) => tree::binomial_in(shape, k, shape.root, |_| shape.bytes)
            .map(|r| reduced(r, shape.bytes)),
        (K::Allreduce | K::Create, Ring) => exchange::ring_allreduce(shape, k),
        (K::Allreduce | K::Create, Rabenseifner) => exchange::rabenseifner(shape, k),
        (K::Create, _) => tree::agreements(shape, k),
        (K::Allreduce, _) => tree::reduce_broadcast(shape, k),
        (K::Gather, Binomial) => {
            tree::binomial_in(shape, k, shape.root, |ranks| shape.bytes * u64::from(ranks))
        }
        (K::Gather | K::Gatherv, _) => tree::linear_in(shape, k, |rank| shape.from(rank)),
        (K::Scatter, Binomial) => {
            tree::binomial_out(shape, k, shape.root, |ranks| shape.bytes * u64::from(ranks))
                .map(Round::in_turn)
        }
        (K::Scatter, BinomialAscending) => {
            tree::binomial_ascending(shape, k, |ranks| shape.bytes * u64::from(ranks))
        }
        (K::Scatter | K::Scatterv, _) => tree::linear_out(shape, k, |rank| shape.to(rank)),
        (K::Allgather, RecursiveDoubling) => exchange::doubling_allgather(shape, k),
        (K::Allgather | K::Allgatherv, Bruck) => exchange::bruck_allgather(shape, k),
        (K::Allgather | K::Allgatherv, Pairwise) => {
            exchange::linear(shape, k, |_| shape.bytes, |rank| shape.from(rank)).map(Round::in_turn)
        }
        (K::Allgather | K::Allgatherv, NeighbourExchange) if shape.size.is_multiple_of(2) => {
            exchange::neighbour_allgather(shape, k)
        }
        (K::Allgatherv, GatherBroadcast) => tree::gather_broadcast(shape, k),
        (K::Allgather | K::Allgatherv, Linear) => {
            let own = shape.bytes;
            exchange::linear(shape, k, |_| own, |rank| shape.from(rank))
        }
        (K::Allgatherv, Ring) if selected.segment > 0 => {
            exchange::ring_allgatherv(shape, k, selected.segment)
        }
        (K::Allgather | K::Allgatherv, _) => exchange::ring_allgather(shape, k),
        (K::Alltoall, Bruck) => exchange::bruck_alltoall(shape, k),
        (K::Alltoall | K::Alltoallv, Linear) => {
            exchange::linear(shape, k, |rank| shape.to(rank), |rank| shape.from(rank))
        }
        (K::Alltoall | K::Alltoallv, _) => exchange::pairwise(shape, k),
        (K::ReduceScatter | K::ReduceScatterBlock, RecursiveHalving) => {
            exchange::halving_reduce_scatter(shape, k)
        }
        (K::ReduceScatter | K::ReduceScatterBlock, Ring) => exchange::ring_reduce_scatter(shape, k),
        (K::ReduceScatter | K::ReduceScatterBlock, _) => {
            exchange::pairwise_reduce_scatter(shape, k)
        }
        (K::Scan | K::Exscan, RecursiveDoubling) => exchange::doubling_scan(shape, k),
        (K::Scan | K::Exscan, _) => tree::chain_scan(shape, k),
    }
}

/// Returns the round with a reduction of the vector after its receive, if it has a receive.
fn reduced(round: Round, bytes: u64) -> Round {
    if round.receive.is_some() {
        round.reducing(bytes)
    } else {
        round
    }
}

#[cfg(test)]
mod tests;
