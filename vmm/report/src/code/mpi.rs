//! Code that was executed inside MPI calls, by MPI function. Waiting in HLT is not code; the breakdown's equation (5) contains it.

use std::collections::BTreeMap;

use nodescope_profile::{Costs, Labels, WindowProfile};
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
}

impl MpiCode {
    /// Maximum number of functions that are listed for an MPI function.
    pub const MOST: usize = 10;
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
        }
    });
    (inside.collect(), outside)
}
