//! Where the ranks are, beside where they were traced, and what differs between the two.

use std::collections::BTreeMap;

use nodescope_config::quantity::counted;
use nodescope_loop_tree::Origin;
use serde::Serialize;

use crate::cluster::Cluster;

/// Placement of the ranks of a prediction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placed {
    /// Rule of the placement: `traced`, `block`, `cyclic`, or `listed`.
    pub rule: &'static str,
    /// Nodes with ranks.
    #[serde(flatten)]
    pub here: Nodes,
    /// Number of cores of each node.
    pub cores: u32,
    /// Number of threads of each rank; `None` if unknown.
    pub threads_per_rank: Option<u32>,
    /// The placement where the program was traced; `None` if the trace does not tell.
    pub traced: Option<Traced>,
}

/// Nodes with ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Nodes {
    /// Number of nodes that have ranks.
    pub nodes: u32,
    /// Least number of ranks on such a node.
    pub least_ranks: u32,
    /// Greatest number of ranks on a node.
    pub most_ranks: u32,
}

/// Placement of the ranks where the program was traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Traced {
    /// Nodes with ranks.
    #[serde(flatten)]
    pub nodes: Nodes,
    /// Least number of cores of such a node; `None` if unknown.
    pub cores: Option<u32>,
    /// True if the same ranks share a node as in the prediction.
    pub same: bool,
}

impl Nodes {
    fn new(nodes: &[u32]) -> Nodes {
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        for &node in nodes {
            *counts.entry(node).or_default() += 1;
        }
        Nodes {
            nodes: counts.len() as u32,
            least_ranks: counts.values().copied().min().unwrap_or(0),
            most_ranks: counts.values().copied().max().unwrap_or(0),
        }
    }

    /// Returns the number of ranks on each node, such as `2` or `1 to 2`.
    pub(crate) fn per_node(&self) -> String {
        match (self.least_ranks, self.most_ranks) {
            (least, most) if least == most => most.to_string(),
            (least, most) => format!("{least} to {most}"),
        }
    }

    fn told(&self) -> String {
        let nodes = counted(self.nodes, "node");
        format!("{nodes} ({} a node)", self.per_node())
    }
}

/// Returns whether two placements have the same ranks together on nodes, whatever the nodes' numbers.
fn same(one: &[u32], other: &[u32]) -> bool {
    let (mut there, mut back) = (BTreeMap::new(), BTreeMap::new());
    one.len() == other.len()
        && (one.iter().zip(other))
            .all(|(a, b)| there.entry(a).or_insert(b) == &b && back.entry(b).or_insert(a) == &a)
}

impl Placed {
    /// Returns the placement `nodes` of a program's ranks on a cluster.
    pub(crate) fn new(cluster: &Cluster, nodes: &[u32], origin: &Origin) -> Placed {
        let traced = (!origin.nodes.is_empty()).then(|| Traced {
            nodes: Nodes::new(&origin.nodes),
            cores: origin.cores.iter().copied().min(),
            same: same(nodes, &origin.nodes),
        });
        Placed {
            rule: cluster.rule(nodes.len() as u32, origin),
            here: Nodes::new(nodes),
            cores: cluster.cores,
            threads_per_rank: cluster.threads_per_rank.or(origin.threads),
            traced,
        }
    }

    /// Returns the placement in a few words, such as `2 a node as traced`.
    pub(crate) fn told(&self) -> String {
        let as_traced = match &self.traced {
            Some(traced) if traced.same => " as traced",
            _ => "",
        };
        let nodes = counted(self.here.nodes, "node");
        format!("{} a node{as_traced}, on {nodes}", self.here.per_node())
    }

    /// Returns what differs between the traced run and the prediction, or could be overlooked, one sentence each. `crossing` is the number
    /// of pairs of ranks of different nodes that exchange messages.
    pub(crate) fn differences(&self, ranks: u32, crossing: Option<u64>) -> Vec<String> {
        let mut told = Vec::new();
        match &self.traced {
            None => told.push(format!(
                "the trace does not tell on which nodes the ranks ran; here they are on {} (nodes.placement, nodes.ranks_per_node)",
                self.here.told()
            )),
            Some(Traced { nodes, same: false, .. }) if *nodes == self.here => told.push(format!(
                "other ranks share a node than where traced; both have {}",
                nodes.told()
            )),
            Some(Traced { nodes, same: false, .. }) => told.push(format!(
                "the ranks are on {}; they were traced on {}",
                self.here.told(),
                nodes.told()
            )),
            Some(_) => {}
        }
        if ranks > 1 && crossing == Some(0) {
            let also = match &self.traced {
                Some(traced) if traced.same => ", as where traced",
                _ if self.here.nodes == 1 => ", since all ranks are on one",
                _ => "",
            };
            told.push(format!(
                "no message crosses a node{also}: [network] changes nothing"
            ));
        }
        let traced_cores = self.traced.and_then(|traced| traced.cores);
        if let Some(cores) = traced_cores.filter(|&cores| cores != self.cores) {
            told.push(format!(
                "nodes have {}; those of the traced run had {cores}",
                counted(self.cores, "core")
            ));
        }
        told.extend(self.threads(traced_cores));
        told
    }

    /// Returns a sentence if threads may lack cores that they had where they were traced.
    fn threads(&self, traced_cores: Option<u32>) -> Option<String> {
        let most = self.here.most_ranks.max(1);
        match self.threads_per_rank {
            Some(threads) => {
                let all = u64::from(threads) * u64::from(most);
                (all > u64::from(self.cores)).then(|| {
                    format!(
                        "a node has {} of {}, {all} threads in all, but {}: bursts keep the times that they had where traced, and are too short if threads had a core each there",
                        counted(most, "rank"),
                        counted(threads, "thread"),
                        counted(self.cores, "core")
                    )
                })
            }
            None => {
                let before = traced_cores? / self.traced?.nodes.most_ranks.max(1);
                let now = self.cores / most;
                (now < before).then(|| {
                    format!(
                        "a rank has {} of its node; where traced it had {before}. The number of its threads is unknown (nodes.threads_per_rank): if it used more than {now}, its bursts are too short here",
                        counted(now, "core")
                    )
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_compared_by_who_shares_a_node() {
        assert!(same(&[0, 0, 1, 1], &[3, 3, 0, 0]));
        assert!(!same(&[0, 0, 1, 1], &[0, 1, 0, 1]));
        assert!(!same(&[0, 0, 0, 0], &[0, 0, 1, 1]));
        assert!(!same(&[0, 0, 1, 1], &[0, 0, 0, 0]));
        assert!(!same(&[0], &[]));
    }
}
