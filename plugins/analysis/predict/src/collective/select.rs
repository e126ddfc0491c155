//! Which algorithm an MPI library takes for a collective.

use std::collections::BTreeMap;

use nodescope_model::CollectiveKind;
use serde::Serialize;

use super::{Algorithm, Selected};

/// Whose rules choose algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Library {
    /// Open MPI 4.1, component "tuned": its fixed rules for all-reduce; for the other collectives the thresholds of the 1.x series,
    /// which it had until 4.0.
    OpenMpi,
    /// MPICH 4.0.
    Mpich,
}

/// How algorithms are chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// By whose rules.
    pub library: Library,
    /// Kinds whose algorithm the user chose.
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
    /// The algorithm for a collective of `bytes` (as in [`nodescope_model::Collective::bytes`]) over `size` ranks.
    pub fn of(&self, kind: CollectiveKind, size: u32, bytes: u64) -> Selected {
        if let Some(&selected) = self.fixed.get(&kind) {
            return selected;
        }
        match self.library {
            Library::OpenMpi => open_mpi(kind, size, bytes),
            Library::Mpich => mpich(kind, size, bytes).into(),
        }
    }
}

fn segmented(algorithm: Algorithm, segment: u64) -> Selected {
    Selected { algorithm, segment }
}

/// Open MPI's rules, by ranks and message size, simplified where an algorithm of its own (binary trees, neighbour exchange, sparbit) has no
/// counterpart here: the nearest one in shape takes its place.
fn open_mpi(kind: CollectiveKind, size: u32, bytes: u64) -> Selected {
    use Algorithm::*;
    use CollectiveKind as K;
    let total = bytes.saturating_mul(u64::from(size));
    match kind {
        K::Barrier if size.is_power_of_two() => RecursiveDoubling.into(),
        K::Barrier => Dissemination.into(),
        K::Bcast => match bytes {
            0..2048 => Binomial.into(),
            2048..370_728 if size < 8 => Binomial.into(),
            2048..370_728 => ScatterAllgather.into(),
            _ => segmented(Pipeline, 128 << 10),
        },
        K::Reduce => match bytes {
            0..512 if size < 8 => Linear.into(),
            0..20_480 => Binomial.into(),
            _ => segmented(Pipeline, 32 << 10),
        },
        K::Allreduce | K::Create => open_mpi_allreduce(size, bytes).into(),
        K::Gather => match bytes {
            0..1024 if size >= 10 => Binomial.into(),
            _ => Linear.into(),
        },
        K::Scatter => match bytes {
            0..300 if size > 10 => Binomial.into(),
            _ => Linear.into(),
        },
        K::Gatherv | K::Scatterv => Linear.into(),
        K::Allgather => match total {
            0..50_000 if size.is_power_of_two() => RecursiveDoubling.into(),
            0..81_920 => Bruck.into(),
            _ => Ring.into(),
        },
        K::Allgatherv => Ring.into(),
        K::Alltoall => match bytes {
            0..200 if size > 12 => Bruck.into(),
            0..3000 => Linear.into(),
            _ => Pairwise.into(),
        },
        K::Alltoallv => Pairwise.into(),
        K::ReduceScatter | K::ReduceScatterBlock => match bytes {
            0..12_288 => RecursiveHalving.into(),
            _ if size.is_power_of_two() && bytes <= 256 << 10 => RecursiveHalving.into(),
            _ => Ring.into(),
        },
        K::Scan | K::Exscan => Linear.into(),
    }
}

/// All-reduce of commutative operations in 4.1, whose segmented ring is the ring here.
fn open_mpi_allreduce(size: u32, bytes: u64) -> Algorithm {
    use Algorithm::{Rabenseifner, RecursiveDoubling, ReduceBroadcast, Ring};
    match (size, bytes) {
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
    }
}

/// MPICH's rules (Thakur, Rabenseifner and Gropp, 2005, with the thresholds that MPICH has as defaults).
fn mpich(kind: CollectiveKind, size: u32, bytes: u64) -> Algorithm {
    use Algorithm::*;
    use CollectiveKind as K;
    let power = size.is_power_of_two();
    let total = bytes.saturating_mul(u64::from(size));
    match kind {
        K::Barrier => Dissemination,
        K::Bcast if bytes < 12_288 || size < 8 => Binomial,
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
            (2, 8, RecursiveDoubling),
            (2, 4096, Ring),
            (3, 8192, RecursiveDoubling),
            (2, 300_000, Rabenseifner),
            (4, 8, Ring),
            (8, 8191, RecursiveDoubling),
            (16, 8, Ring),
            (48, 127, Ring),
            (48, 128, Rabenseifner),
            (64, 8, RecursiveDoubling),
            (200, 8, ReduceBroadcast),
            (5000, 8, ReduceBroadcast),
            (5000, 4096, Ring),
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
                        let selected = choice.of(kind, size, bytes);
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
