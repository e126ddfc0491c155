//! Control flow graph of blocks, with estimated executions of the edges, as far as the blocks' code and executions determine them.

use std::collections::{BTreeMap, BTreeSet};

use crate::block::{Code, End};

/// A block whose instructions can all be timed.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub address: u64,
    pub code: Code,
    pub executions: u64,
}

/// Kind of edge between two blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A jump, a step to the next byte, or a step over a call.
    Plain,
    /// A call, with the index of the block to which the callee returns.
    Call(usize),
    /// A return to one of the callers.
    Return,
}

/// An edge between two blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Edge {
    pub from: usize,
    pub to: usize,
    pub kind: Kind,
    /// Estimated number of executions of the edge.
    pub flow: f64,
}

/// Control flow graph: blocks that can be timed, and the edges between them.
#[derive(Debug)]
pub(crate) struct Graph {
    pub nodes: Vec<Node>,
    pub edges: Vec<Edge>,
    /// Indices of the edges that leave each block.
    pub out: Vec<Vec<usize>>,
    /// Indices of the edges that enter each block.
    pub into: Vec<Vec<usize>>,
}

/// Rounds of the proportional fitting. Profiles of structured code converge within a few rounds.
const ROUNDS: usize = 40;

impl Graph {
    /// Connects blocks. If several blocks (of different programs) begin at one address, edges lead only to the most executed block.
    pub fn new(nodes: Vec<Node>) -> Self {
        let mut at: BTreeMap<u64, usize> = BTreeMap::new();
        for (index, node) in nodes.iter().enumerate() {
            let best = at.entry(node.address).or_insert(index);
            if nodes[*best].executions < node.executions {
                *best = index;
            }
        }
        let find = |address: u64| at.get(&address).copied();
        let mut edges = Vec::new();
        let mut returns: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        // True for blocks whose every execution takes one of these edges.
        let mut whole = vec![false; nodes.len()];
        for (from, node) in nodes.iter().enumerate() {
            let next = find(node.code.next);
            let mut add = |to: Option<usize>, kind| {
                if let Some(to) = to {
                    edges.push(Edge {
                        from,
                        to,
                        kind,
                        flow: 0.0,
                    });
                }
                to.is_some()
            };
            match node.code.end {
                End::Fall => whole[from] = add(next, Kind::Plain),
                End::Jump(target) => whole[from] = add(find(target), Kind::Plain),
                End::Branch(target) => {
                    let taken = add(find(target), Kind::Plain);
                    // A branch to the next byte has one successor.
                    whole[from] = (target == node.code.next || add(next, Kind::Plain)) && taken;
                }
                End::Call(target) => {
                    let callee = target.and_then(find);
                    let ends = callee.map(|callee| returning(&nodes, &find, callee));
                    match (callee, next, ends) {
                        (Some(callee), Some(next), Some(ends)) if !ends.is_empty() => {
                            add(Some(callee), Kind::Call(next));
                            for end in ends {
                                returns.entry(end).or_default().insert(next);
                            }
                        }
                        // It is not known where the function returns: the graph steps over the call, and the function is a path of its own.
                        _ => {
                            add(next, Kind::Plain);
                        }
                    }
                }
                End::Return | End::Unknown => {}
            }
        }
        for (from, sites) in returns {
            edges.extend(sites.into_iter().map(|to| Edge {
                from,
                to,
                kind: Kind::Return,
                flow: 0.0,
            }));
        }
        let mut out = vec![Vec::new(); nodes.len()];
        let mut into = vec![Vec::new(); nodes.len()];
        for (index, edge) in edges.iter().enumerate() {
            out[edge.from].push(index);
            into[edge.to].push(index);
        }
        let mut graph = Self {
            nodes,
            edges,
            out,
            into,
        };
        graph.estimate(&whole);
        graph
    }

    /// Estimates executions of edges from executions of blocks, by proportional fitting. The edges that leave a block add up to the block's
    /// executions, or to no more if the block has unknown successors. The edges that enter a block add up to no more than its executions.
    fn estimate(&mut self, whole: &[bool]) {
        for edge in &mut self.edges {
            let [from, to] = [edge.from, edge.to].map(|n| self.nodes[n].executions);
            edge.flow = from.min(to) as f64;
        }
        for _ in 0..ROUNDS {
            for (node, edges) in self.out.iter().enumerate() {
                scale(
                    &mut self.edges,
                    edges,
                    self.nodes[node].executions,
                    whole[node],
                );
            }
            for (node, edges) in self.into.iter().enumerate() {
                scale(&mut self.edges, edges, self.nodes[node].executions, false);
            }
        }
    }
}

/// Scales the flows of the chosen edges so that their sum is `wanted`. Without `up`, a sum that is smaller than `wanted` stays as it is.
fn scale(edges: &mut [Edge], chosen: &[usize], wanted: u64, up: bool) {
    let sum: f64 = chosen.iter().map(|e| edges[*e].flow).sum();
    let wanted = wanted as f64;
    if sum > 0.0 && (up || sum > wanted) {
        for e in chosen {
            edges[*e].flow *= wanted / sum;
        }
    }
}

/// Returns the blocks that return from the function that begins with the block `entry`. Calls within the function are stepped over.
fn returning(
    nodes: &[Node],
    find: &impl Fn(u64) -> Option<usize>,
    entry: usize,
) -> BTreeSet<usize> {
    // The search visits at most this number of blocks; returns behind them are not found.
    const MOST: usize = 2000;
    let mut seen = BTreeSet::from([entry]);
    let mut open = vec![entry];
    let mut ends = BTreeSet::new();
    while let Some(at) = open.pop() {
        let code = &nodes[at].code;
        let next = match code.end {
            End::Return => {
                ends.insert(at);
                [None, None]
            }
            End::Jump(target) => [Some(target), None],
            End::Branch(target) => [Some(target), Some(code.next)],
            End::Fall | End::Call(_) => [Some(code.next), None],
            End::Unknown => [None, None],
        };
        for next in next.into_iter().flatten().filter_map(find) {
            if seen.len() < MOST && seen.insert(next) {
                open.push(next);
            }
        }
    }
    ends
}
