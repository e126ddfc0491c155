//! Choice of the algorithm that an MPI library takes for a collective.

use std::collections::BTreeMap;

use nodescope_loop_tree::CollectiveKind;
use serde::Serialize;

use super::{Algorithm, Selected};

/// The library whose rules choose algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Library {
    /// Open MPI 4.1, component "tuned" with its fixed rules.
    OpenMpi,
    /// MPICH 4.0.
    Mpich,
}

/// Choice of algorithms for collectives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// MPI library whose rules apply.
    pub library: Library,
    /// Algorithms that the user chose, by kind.
    #[serde(serialize_with = "by_name")]
    pub fixed: BTreeMap<CollectiveKind, Selected>,
}

fn by_name<S: serde::Serializer>(
    fixed: &BTreeMap<CollectiveKind, Selected>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fixed.iter().map(|(kind, selected)| (kind.name(), selected)))
}

impl Choice {
    /// Returns the algorithm for a collective of `bytes` (as in [`nodescope_loop_tree::Collective::bytes`]) over `size` ranks, which blocks or
    /// does not.
    pub fn of(&self, kind: CollectiveKind, size: u32, bytes: u64, blocking: bool) -> Selected {
        if let Some(&selected) = self.fixed.get(&kind) {
            return selected;
        }
        match self.library {
            Library::OpenMpi if !blocking => open_mpi_nonblocking(kind, size, bytes),
            Library::OpenMpi => open_mpi(kind, size, bytes),
            Library::Mpich => Selected {
                segment: match kind {
                    CollectiveKind::Allgatherv => MPICH_ALLGATHERV_PIECE,
                    _ => 0,
                },
                ..mpich(kind, size, bytes).into()
            },
        }
    }
}

/// Returns the number of datatypes that the library makes to name blocks in round `k` of a collective. Open MPI 4.1 makes them where
/// blocks have different sizes: two in each round of Bruck's algorithm and in each but the first of the neighbour exchange, and one for
/// the whole vector before it is broadcast.
pub(crate) fn datatypes(
    library: Library,
    kind: CollectiveKind,
    algorithm: Algorithm,
    k: u32,
) -> u64 {
    match (library, kind, algorithm, k) {
        (Library::OpenMpi, CollectiveKind::Allgatherv, Bruck, _) => 2,
        (Library::OpenMpi, CollectiveKind::Allgatherv, NeighbourExchange, 1..) => 2,
        (Library::OpenMpi, CollectiveKind::Allgatherv, GatherBroadcast, 0) => 1,
        _ => 0,
    }
}

/// Rules: the first row whose limit of ranks is above `size` counts, and its first entry whose limit of bytes is above `bytes`.
type Rules = &'static [(u32, &'static [(u64, Algorithm)])];

fn look_up(rules: Rules, size: u32, bytes: u64) -> Algorithm {
    let row = rules.iter().find(|row| size < row.0).or(rules.last());
    let entries = row.map_or(&[][..], |row| row.1);
    let entry = entries.iter().find(|entry| bytes < entry.0);
    entry
        .or(entries.last())
        .map_or(Algorithm::Linear, |entry| entry.1)
}

/// No limit of ranks.
const ANY: u32 = u32::MAX;
/// No limit of bytes.
const ALL: u64 = u64::MAX;

/// Selects by Open MPI's rules for commutative operations, by ranks and message size. Some of Open MPI's algorithms (chains with several
/// branches, split binary trees, butterflies) do not exist here. The algorithm nearest in shape replaces them.
fn open_mpi(kind: CollectiveKind, size: u32, bytes: u64) -> Selected {
    use Algorithm::*;
    use CollectiveKind as K;
    match kind {
        K::Barrier => match size {
            4..8 => Linear.into(),
            64..256 | 512..1024 | 4096.. => Dissemination.into(),
            _ => RecursiveDoubling.into(),
        },
        K::Bcast => look_up(OPEN_MPI_BCAST, size, bytes).into(),
        K::Reduce => look_up(OPEN_MPI_REDUCE, size, bytes).into(),
        K::Create => ReduceBroadcast.into(),
        K::Allreduce => open_mpi_allreduce(size, bytes).into(),
        K::Gather => look_up(OPEN_MPI_GATHER, size, bytes).into(),
        K::Scatter => match look_up(OPEN_MPI_SCATTER, size, bytes) {
            Binomial => BinomialAscending.into(),
            other => other.into(),
        },
        K::Gatherv | K::Scatterv => Linear.into(),
        K::Allgather => match look_up(OPEN_MPI_ALLGATHER, size, bytes) {
            // For other numbers of ranks, Open MPI's own recursive doubling calls Bruck's algorithm.
            RecursiveDoubling if !size.is_power_of_two() => Bruck.into(),
            other => other.into(),
        },
        K::Allgatherv => look_up(OPEN_MPI_ALLGATHERV, size, bytes).into(),
        K::Alltoall => look_up(OPEN_MPI_ALLTOALL, size, bytes).into(),
        K::Alltoallv => match size {
            4..64 | 128..256 | 1024.. => Linear.into(),
            _ => Pairwise.into(),
        },
        K::ReduceScatter => match (size, bytes) {
            (0..4, _) | (4..32, 262_144..) | (32..64, 524_288..) => Ring.into(),
            _ => RecursiveHalving.into(),
        },
        K::ReduceScatterBlock => RecursiveHalving.into(),
        K::Scan | K::Exscan => Linear.into(),
    }
}

/// Selects by the rules of Open MPI's component "libnbc". Its reduce-scatter reduces to rank 0 and scatters, which does not exist here; the
/// algorithm of the blocking one replaces it.
fn open_mpi_nonblocking(kind: CollectiveKind, size: u32, bytes: u64) -> Selected {
    use CollectiveKind as K;
    const MEDIUM: u64 = 64 << 10;
    match kind {
        K::Barrier => Algorithm::Dissemination.into(),
        K::Bcast if size <= 4 => Linear.into(),
        K::Bcast => Binomial.into(),
        K::Reduce => match (size, bytes) {
            (3.., _) if bytes >= ELEMENT * u64::from(greatest_power(size)) => Rabenseifner.into(),
            (5.., _) | (_, ..MEDIUM) => Binomial.into(),
            _ => Selected {
                algorithm: Pipeline,
                segment: 8 << 10,
            },
        },
        K::Allreduce if size < 4 || bytes < MEDIUM => ReduceBroadcast.into(),
        K::Allreduce => Rabenseifner.into(),
        K::Gather | K::Scatter | K::Gatherv | K::Scatterv => Linear.into(),
        K::Allgather | K::Allgatherv | K::Alltoall | K::Alltoallv => Linear.into(),
        K::Scan | K::Exscan => Linear.into(),
        K::Create | K::ReduceScatter | K::ReduceScatterBlock => open_mpi(kind, size, bytes),
    }
}

/// Returns the greatest power of two that is not above a number of ranks.
fn greatest_power(size: u32) -> u32 {
    1 << size.max(1).ilog2()
}

use Algorithm::{
    Binary, Binomial, Bruck, GatherBroadcast, Knomial, Linear, NeighbourExchange, Pairwise,
    Pipeline, Rabenseifner, RecursiveDoubling, ReduceBroadcast, Ring, ScatterAllgather,
};

const OPEN_MPI_BCAST: Rules = &[
    (
        4,
        &[
            (32, Pipeline),
            (256, Binary),
            (512, Pipeline),
            (1024, Knomial),
            (32_768, Linear),
            (131_072, Binary),
            (262_144, Pipeline),
            (524_288, Linear),
            (1_048_576, Binomial),
            (ALL, Binary),
        ],
    ),
    (
        8,
        &[
            (64, Binary),
            (128, Binomial),
            (2048, Binary),
            (8192, Binomial),
            (1_048_576, Linear),
            (ALL, Pipeline),
        ],
    ),
    (
        16,
        &[
            (8, Knomial),
            (64, Binary),
            (4096, Knomial),
            (16_384, Binary),
            (32_768, Binomial),
            (ALL, Linear),
        ],
    ),
    (
        32,
        &[
            (4096, Knomial),
            (1_048_576, Binomial),
            (ALL, ScatterAllgather),
        ],
    ),
    (64, &[(2048, Binomial), (ALL, Knomial)]),
    (128, &[(ALL, Knomial)]),
    (
        256,
        &[
            (2, Binomial),
            (16_384, Binary),
            (32_768, Linear),
            (65_536, Binary),
            (ALL, Knomial),
        ],
    ),
    (1024, &[(16_384, Knomial), (32_768, Binary), (ALL, Knomial)]),
    (2048, &[(524_288, Knomial), (ALL, ScatterAllgather)]),
    (4096, &[(262_144, Knomial), (ALL, ScatterAllgather)]),
    (ANY, &[(8192, Knomial), (16_384, Binary), (ALL, Knomial)]),
];

const OPEN_MPI_REDUCE: Rules = &[
    (
        4,
        &[
            (8, Rabenseifner),
            (16, Binary),
            (32, Pipeline),
            (262_144, Linear),
            (ALL, Pipeline),
        ],
    ),
    (
        8,
        &[
            (4096, Binary),
            (65_536, Pipeline),
            (262_144, Binomial),
            (524_288, Linear),
            (1_048_576, Binomial),
            (ALL, Linear),
        ],
    ),
    (16, &[(8192, Binary), (ALL, Binomial)]),
    (32, &[(4096, Binary), (ALL, Binomial)]),
    (256, &[(ALL, Binomial)]),
    (512, &[(8192, Binomial), (16_384, Binary), (ALL, Binomial)]),
    (2048, &[(ALL, Binomial)]),
    (
        4096,
        &[
            (512, Binomial),
            (1024, Binary),
            (8192, Binomial),
            (16_384, Binary),
            (ALL, Binomial),
        ],
    ),
    (
        ANY,
        &[
            (16, Binomial),
            (32, Binary),
            (1024, Binomial),
            (2048, Binary),
            (8192, Binomial),
            (16_384, Binary),
            (ALL, Binomial),
        ],
    ),
];

const OPEN_MPI_GATHER: Rules = &[
    (
        4,
        &[
            (4, Linear),
            (32_768, Binomial),
            (65_536, Linear),
            (131_072, Binomial),
            (ALL, Linear),
        ],
    ),
    (
        8,
        &[
            (1024, Binomial),
            (8192, Linear),
            (32_768, Binomial),
            (ALL, Linear),
        ],
    ),
    (256, &[(ALL, Binomial)]),
    (512, &[(2048, Binomial), (8192, Linear), (ALL, Binomial)]),
    (ANY, &[(ALL, Binomial)]),
];

const OPEN_MPI_SCATTER: Rules = &[
    (4, &[(ALL, Linear)]),
    (
        8,
        &[
            (2048, Binomial),
            (4096, Linear),
            (8192, Binomial),
            (ALL, Linear),
        ],
    ),
    (32, &[(16_384, Binomial), (ALL, Linear)]),
    (
        64,
        &[
            (512, Binomial),
            (8192, Linear),
            (16_384, Binomial),
            (ALL, Linear),
        ],
    ),
    (ANY, &[(512, Binomial), (ALL, Linear)]),
];

const OPEN_MPI_ALLGATHER: Rules = &[
    (3, &[(ALL, Ring)]),
    (32, &[(ALL, RecursiveDoubling)]),
    (
        64,
        &[
            (1024, RecursiveDoubling),
            (65_536, NeighbourExchange),
            (ALL, Ring),
        ],
    ),
    (
        128,
        &[
            (512, RecursiveDoubling),
            (65_536, NeighbourExchange),
            (ALL, Ring),
        ],
    ),
    (
        256,
        &[
            (512, RecursiveDoubling),
            (131_072, NeighbourExchange),
            (524_288, Ring),
            (1_048_576, NeighbourExchange),
            (ALL, Ring),
        ],
    ),
    (
        512,
        &[
            (32, RecursiveDoubling),
            (128, Bruck),
            (1024, RecursiveDoubling),
            (131_072, NeighbourExchange),
            (524_288, Ring),
            (1_048_576, NeighbourExchange),
            (ALL, Ring),
        ],
    ),
    (
        1024,
        &[
            (64, RecursiveDoubling),
            (256, Bruck),
            (2048, RecursiveDoubling),
            (ALL, NeighbourExchange),
        ],
    ),
    (
        2048,
        &[
            (4, RecursiveDoubling),
            (8, Bruck),
            (16, RecursiveDoubling),
            (32, Bruck),
            (256, RecursiveDoubling),
            (512, Bruck),
            (4096, RecursiveDoubling),
            (ALL, NeighbourExchange),
        ],
    ),
    (
        4096,
        &[
            (32, Bruck),
            (128, RecursiveDoubling),
            (512, Bruck),
            (4096, RecursiveDoubling),
            (ALL, NeighbourExchange),
        ],
    ),
    (
        ANY,
        &[
            (2, RecursiveDoubling),
            (8, Bruck),
            (16, RecursiveDoubling),
            (512, Bruck),
            (4096, RecursiveDoubling),
            (ALL, NeighbourExchange),
        ],
    ),
];

/// Rules by the mean size of a rank's block.
const OPEN_MPI_ALLGATHERV: Rules = &[
    (3, &[(ALL, Ring)]),
    (
        8,
        &[
            (256, GatherBroadcast),
            (4096, NeighbourExchange),
            (8192, Ring),
            (16_384, NeighbourExchange),
            (262_144, Bruck),
            (ALL, NeighbourExchange),
        ],
    ),
    (16, &[(1024, GatherBroadcast), (ALL, Bruck)]),
    (32, &[(128, GatherBroadcast), (262_144, Bruck), (ALL, Ring)]),
    (64, &[(256, GatherBroadcast), (8192, Bruck), (ALL, Ring)]),
    (128, &[(256, GatherBroadcast), (4096, Bruck), (ALL, Ring)]),
    (
        256,
        &[(1024, Bruck), (65_536, NeighbourExchange), (ALL, Ring)],
    ),
    (512, &[(1024, Bruck), (ALL, Ring)]),
    (
        1024,
        &[
            (512, Bruck),
            (1024, GatherBroadcast),
            (4096, Bruck),
            (1_048_576, NeighbourExchange),
            (ALL, Ring),
        ],
    ),
    (ANY, &[(4096, Bruck), (ALL, NeighbourExchange)]),
];

/// Open MPI's "two_proc" is here the pairwise exchange, and its "linear_sync" the linear one.
const OPEN_MPI_ALLTOALL: Rules = &[
    (3, &[(32_768, Pairwise), (262_144, Linear), (ALL, Pairwise)]),
    (
        8,
        &[(524_288, Linear), (1_048_576, Pairwise), (ALL, Linear)],
    ),
    (16, &[(ALL, Linear)]),
    (32, &[(4, Linear), (512, Bruck), (ALL, Linear)]),
    (64, &[(512, Bruck), (ALL, Linear)]),
    (256, &[(1024, Bruck), (262_144, Linear), (ALL, Pairwise)]),
    (512, &[(1024, Bruck), (32_768, Linear), (ALL, Pairwise)]),
    (1024, &[(512, Bruck), (262_144, Linear), (ALL, Pairwise)]),
    (2048, &[(512, Bruck), (ALL, Linear)]),
    (4096, &[(1024, Bruck), (ALL, Linear)]),
    (ANY, &[(2048, Bruck), (ALL, Linear)]),
];

/// Bytes of an element. Open MPI uses a ring only with at least one element a rank, and recursive doubling otherwise. A trace has no
/// elements but bytes, so the smallest common element is assumed.
const ELEMENT: u64 = 4;

/// Selects by Open MPI 4.1's rules for all-reduce of commutative operations, whose segmented ring is the ring here.
fn open_mpi_allreduce(size: u32, bytes: u64) -> Algorithm {
    let chosen = match (size, bytes) {
        (0..4, 0..8 | 4096..8192 | 16_384..262_144) => Ring,
        (0..4, 0..16_384) => RecursiveDoubling,
        (4..8, 0..16) => Ring,
        (4..16, 0..8192) => RecursiveDoubling,
        (16..32, 0..64) => Ring,
        (16..32, 0..4096) => RecursiveDoubling,
        (32..64, 0..128) => Ring,
        (64..128, 0..262_144) => RecursiveDoubling,
        (128..256, 0..131_072) => ReduceBroadcast,
        (128..256, 0..262_144) => RecursiveDoubling,
        (256..512, 0..4096) => ReduceBroadcast,
        (512.., 0..2048) => ReduceBroadcast,
        (512..2048, 0..16_384) => RecursiveDoubling,
        (2048..4096, 0..4096) => Ring,
        (2048..4096, 0..16_384) => RecursiveDoubling,
        (4096.., 0..16_384) => Ring,
        (4096.., 0..32_768) => RecursiveDoubling,
        _ => Rabenseifner,
    };
    if chosen == Ring && bytes < ELEMENT * u64::from(size) {
        RecursiveDoubling
    } else {
        chosen
    }
}

/// Bytes of a piece in MPICH's ring of blocks of different sizes.
const MPICH_ALLGATHERV_PIECE: u64 = 32_768;

/// Selects by MPICH's rules (Thakur, Rabenseifner and Gropp, 2005, with the thresholds that MPICH has as defaults).
fn mpich(kind: CollectiveKind, size: u32, bytes: u64) -> Algorithm {
    use Algorithm::*;
    use CollectiveKind as K;
    let power = size.is_power_of_two();
    let total = bytes.saturating_mul(u64::from(size));
    match kind {
        K::Barrier => Dissemination,
        K::Bcast if bytes < 12_288 || size < 8 => BinomialInTurn,
        K::Bcast => ScatterAllgather,
        K::Reduce if bytes <= 2048 => Binomial,
        K::Reduce => Rabenseifner,
        K::Allreduce | K::Create if bytes <= 2048 => RecursiveDoubling,
        K::Allreduce | K::Create => Rabenseifner,
        K::Gather | K::Scatter => Binomial,
        K::Gatherv | K::Scatterv => Linear,
        K::Allgather if power && total < 524_288 => RecursiveDoubling,
        K::Allgather if total < 81_920 => Bruck,
        K::Allgather | K::Allgatherv => Ring,
        K::Alltoall if bytes <= 256 && size >= 8 => Bruck,
        K::Alltoall if bytes <= 32_768 => Linear,
        K::Alltoall => Pairwise,
        K::Alltoallv => Linear,
        K::ReduceScatter | K::ReduceScatterBlock if bytes < 524_288 => RecursiveHalving,
        K::ReduceScatter | K::ReduceScatterBlock => Pairwise,
        K::Scan | K::Exscan => RecursiveDoubling,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_reduce_is_chosen_as_open_mpi_does() {
        use Algorithm::*;
        for (size, bytes, algorithm) in [
            (2, 4, RecursiveDoubling),
            (2, 8, RecursiveDoubling),
            (2, 4096, Ring),
            (3, 8192, RecursiveDoubling),
            (2, 300_000, Rabenseifner),
            (4, 8, RecursiveDoubling),
            (8, 8191, RecursiveDoubling),
            (16, 8, RecursiveDoubling),
            (48, 127, RecursiveDoubling),
            (48, 128, Rabenseifner),
            (64, 8, RecursiveDoubling),
            (200, 8, ReduceBroadcast),
            (5000, 8, ReduceBroadcast),
            (5000, 4096, RecursiveDoubling),
        ] {
            assert_eq!(
                open_mpi_allreduce(size, bytes),
                algorithm,
                "{size} ranks, {bytes} B"
            );
        }
    }

    #[test]
    fn every_choice_can_do_its_kind() {
        for library in [Library::OpenMpi, Library::Mpich] {
            let choice = Choice {
                library,
                fixed: BTreeMap::new(),
            };
            for kind in CollectiveKind::ALL {
                for size in 1..70 {
                    for bytes in (0..24).map(|shift| 1 << shift) {
                        for blocking in [true, false] {
                            let selected = choice.of(kind, size, bytes, blocking);
                            assert!(
                                selected.algorithm.can(kind),
                                "{library:?} {kind:?} {selected:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}
