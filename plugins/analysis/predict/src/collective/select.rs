//! Which algorithm an MPI library takes for a collective.

use std::collections::BTreeMap;

use nodescope_model::CollectiveKind;
use serde::Serialize;

use super::{Algorithm, Selected};

/// Whose rules choose algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Library {
    /// Open MPI 4.1, component "tuned", fixed rules.
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

/// Open MPI's rules, by message size, simplified where an algorithm of its own (binary trees, neighbour exchange, sparbit) has no
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
        K::Allreduce | K::Create => match bytes {
            0..10_000 => RecursiveDoubling.into(),
            _ if size <= 2 => RecursiveDoubling.into(),
            _ => Ring.into(),
        },
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
