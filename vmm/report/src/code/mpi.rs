//! Code that was executed inside MPI calls, by MPI function. Waiting in HLT is not code; the breakdown's equation (5) contains it.

use std::collections::BTreeMap;

use nodescope_profile::{CoreCycles, Costs, Labels, WindowProfile};
use serde::Serialize;

use super::costs::{CodeCosts, Sum};
use super::{Core, FunctionCost, grouped};

/// Code that was executed inside calls of one MPI function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MpiCode {
    /// Name of the MPI function.
    pub function: String,
    /// Costs of all code inside the function.
    pub costs: CodeCosts,
    /// The most expensive functions of code inside the MPI function, at most [`MpiCode::MOST`].
    pub functions: Vec<FunctionCost>,
    /// The most expensive call paths to the MPI function, at most [`MpiCode::MOST`].
    pub paths: Vec<MpiPath>,
}

impl MpiCode {
    /// Maximum number of functions, and of call paths, that are listed for an MPI function.
    pub const MOST: usize = 10;
}

/// A call path to an MPI function. The cycles of each rank inside the function are divided among its sampled paths, in proportion to the
/// samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MpiPath {
    /// Functions of the program, outermost first: the last one calls MPI. Empty for cycles of ranks without a sample inside the function.
    pub frames: Vec<String>,
    /// Number of samples.
    pub samples: u64,
    /// Cycles inside the MPI function, 1/65536.
    pub cycles_65536: i128,
}

/// Costs inside an MPI function: of all code, and of each function of the code by its index.
type Inside = (Sum, Vec<(u32, Sum)>);

/// Divides code by the MPI function that it was executed in, most expensive first. Also returns the sum of the code outside MPI.
pub(super) fn split(
    profile: &WindowProfile,
    cores: &[Core<'_>],
    labels: &Labels,
    shown: &dyn Fn(&Sum) -> CodeCosts,
) -> (Vec<MpiCode>, Sum) {
    let by_both = grouped(cores, |core| {
        let mut sums: BTreeMap<(Option<&str>, u32), Costs> = BTreeMap::new();
        for count in &profile.counts {
            let label = labels.get(&(count.node, count.context));
            let mpi = label.and_then(|label| label.mpi.as_deref());
            let block = &profile.blocks[count.block as usize];
            let costs = Costs::of(block, count, core.block(count.block));
            sums.entry((mpi, block.function)).or_default().add(&costs);
        }
        sums
    });
    let mut outside = Sum {
        further: vec![0; cores.len().saturating_sub(1)],
        ..Sum::default()
    };
    let mut inside: BTreeMap<&str, Inside> = BTreeMap::new();
    for ((mpi, function), sum) in by_both {
        let Some(mpi) = mpi else {
            outside.add(&sum);
            continue;
        };
        let (whole, functions) = inside.entry(mpi).or_default();
        whole.add(&sum);
        functions.push((function, sum));
    }
    let mut inside: Vec<_> = inside.into_iter().collect();
    inside.sort_by_key(|(_, (sum, _))| std::cmp::Reverse(sum.costs.cycles_65536()));
    let mut paths = paths(profile, &*cores[0].cycles, labels);
    let inside = inside.into_iter().map(|(name, (sum, mut functions))| {
        functions.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.costs.cycles_65536()));
        functions.truncate(MpiCode::MOST);
        let function = |(index, sum): &(u32, Sum)| {
            let function = &profile.functions[*index as usize];
            FunctionCost {
                function: function.name.clone(),
                module: profile.modules[function.module as usize].name.clone(),
                costs: shown(sum),
            }
        };
        MpiCode {
            function: name.to_owned(),
            costs: shown(&sum),
            functions: functions.iter().map(function).collect(),
            paths: paths.remove(name).unwrap_or_default(),
        }
    });
    (inside.collect(), outside)
}

/// Returns the call paths to each MPI function, most expensive first.
fn paths<'a>(
    profile: &WindowProfile,
    core: &dyn CoreCycles,
    labels: &'a Labels,
) -> BTreeMap<&'a str, Vec<MpiPath>> {
    let mpi = |node: u32, context: u32| labels.get(&(node, context))?.mpi.as_deref();
    let mut cycles: BTreeMap<(u32, u32), i128> = BTreeMap::new();
    for count in &profile.counts {
        let block = &profile.blocks[count.block as usize];
        let costs = Costs::of(block, count, core.block(count.block));
        *cycles.entry((count.node, count.context)).or_default() += costs.cycles_65536();
    }
    let mut samples: BTreeMap<(u32, u32), BTreeMap<&[u32], u64>> = BTreeMap::new();
    for path in &profile.paths {
        let inside = mpi(path.node, path.context).and_then(|mpi| {
            let called =
                |&function: &u32| is_function(&profile.functions[function as usize].name, mpi);
            path.functions.iter().position(called)
        });
        if let Some(inside) = inside {
            let paths = samples.entry((path.node, path.context)).or_default();
            let samples = paths.entry(&path.functions[..inside]).or_default();
            *samples = samples.saturating_add(path.samples);
        }
    }
    let mut sums: BTreeMap<&str, BTreeMap<&[u32], (u64, i128)>> = BTreeMap::new();
    for ((node, context), cycles) in cycles {
        let Some(mpi) = mpi(node, context) else {
            continue;
        };
        let paths = samples.remove(&(node, context)).unwrap_or_default();
        let whole: i128 = paths.values().map(|&samples| i128::from(samples)).sum();
        let sums = sums.entry(mpi).or_default();
        let mut before = 0;
        for (path, samples) in paths {
            let after = before + i128::from(samples);
            let sum = sums.entry(path).or_default();
            sum.0 = sum.0.saturating_add(samples);
            sum.1 += share(cycles, after, whole) - share(cycles, before, whole);
            before = after;
        }
        if whole == 0 {
            sums.entry(&[]).or_default().1 += cycles;
        }
    }
    let named = sums.into_iter().map(|(mpi, paths)| {
        let name = |&function: &u32| profile.functions[function as usize].name.clone();
        let mut paths: Vec<_> = (paths.into_iter())
            .map(|(path, (samples, cycles_65536))| MpiPath {
                frames: path.iter().map(name).collect(),
                samples,
                cycles_65536,
            })
            .collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.cycles_65536));
        paths.truncate(MpiCode::MOST);
        (mpi, paths)
    });
    named.collect()
}

/// Returns `cycles` times `part` by `whole`, rounded down. A damaged profile may have any number of samples.
fn share(cycles: i128, part: i128, whole: i128) -> i128 {
    let (times, rest) = (cycles / whole.max(1), cycles % whole.max(1));
    times.saturating_mul(part) + rest.saturating_mul(part) / whole.max(1)
}

/// Returns whether a function of a program or library is this function of MPI, in C (`MPI_Send`, `PMPI_Send`) or Fortran (`mpi_send_`).
fn is_function(name: &str, mpi: &str) -> bool {
    let name = name.strip_suffix("@plt").unwrap_or(name);
    let name = name.trim_end_matches('_').trim_end_matches("_f08");
    let name = match name.get(..1) {
        Some("P" | "p") => &name[1..],
        _ => name,
    };
    name.eq_ignore_ascii_case(mpi)
}

#[cfg(test)]
mod tests {
    #[test]
    fn functions_of_mpi_have_several_names() {
        for name in [
            "MPI_Send",
            "PMPI_Send",
            "mpi_send_",
            "pmpi_send__",
            "mpi_send_f08_",
            "MPI_Send@plt",
        ] {
            assert!(super::is_function(name, "MPI_Send"), "{name}");
        }
        for name in ["MPI_Ssend", "PMPI_Send_init", "P", "", "\u{e9}"] {
            assert!(!super::is_function(name, "MPI_Send"), "{name}");
        }
    }
}
