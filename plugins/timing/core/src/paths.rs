//! Hot paths: blocks that follow each other. Most paths are one iteration of a loop.
//!
//! The search is greedy. The seed is the block with the most instructions that are on no path yet. From the seed the path follows the
//! likeliest edge until it comes back to one of its own blocks within the same function calls: the blocks in between are a loop. A short
//! loop becomes a part of the loop around it (`nest.rs`). The path takes as many executions from each of its blocks as its least executed
//! block has left. A path that ends before it closes also grows backwards.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::graph::{Graph, Kind};

/// Maximum number of blocks of a path; `INSTRUCTIONS` is the maximum number of its instructions.
const BLOCKS: usize = 128;
const INSTRUCTIONS: usize = 1024;
/// A block is settled when less than one `SETTLED`th of its executions is on no path.
const SETTLED: u128 = 10;
/// A path ends where less than one `RARE`th of its executions continues.
const RARE: f64 = 16.0;

/// Blocks that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// Blocks in the order of execution. The blocks of a function that is called twice appear twice.
    pub nodes: Vec<usize>,
    /// True if the last block leads to the first.
    pub closed: bool,
    /// Executions of the whole path.
    pub executions: u64,
    /// Executions that each element of `nodes` takes from its block.
    pub taken: Vec<u64>,
}

/// Finds paths until their blocks cover at least `wanted` executed instructions, or until no block has open instructions.
pub(crate) fn find(graph: &Graph, wanted: u128) -> Vec<Trace> {
    let mut finder = Finder {
        graph,
        left: graph.nodes.iter().map(|n| n.executions).collect(),
        flow: graph.edges.iter().map(|e| e.flow).collect(),
    };
    // Of blocks with equal weights, the first in the graph comes first.
    let mut heap: BinaryHeap<(u128, Reverse<usize>)> = (0..graph.nodes.len())
        .map(|node| (finder.open(node), Reverse(node)))
        .collect();
    let mut traces = Vec::new();
    let mut covered = 0;
    while covered < wanted {
        let Some((old, Reverse(seed))) = heap.pop() else {
            break;
        };
        let now = finder.open(seed);
        if now < old {
            heap.push((now, Reverse(seed)));
            continue;
        }
        if now == 0 {
            break;
        }
        let (trace, weight) = finder.trace(seed);
        covered += weight;
        traces.push(trace);
        // The path may not contain its seed, or may not take all of the seed's executions.
        heap.push((finder.open(seed), Reverse(seed)));
    }
    traces
}

pub(crate) struct Finder<'a> {
    pub graph: &'a Graph,
    /// Executions of each block that are on no path yet.
    pub left: Vec<u64>,
    /// Executions of each edge that are on no path yet.
    pub flow: Vec<f64>,
}

/// A point of a walk: a block, and the calls on the walk that have not returned yet.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub node: usize,
    /// Blocks to which the calls on the walk return that have not returned yet, the innermost last.
    pub returns: Vec<usize>,
}

impl Finder<'_> {
    /// Finds a path from a seed. Also returns the number of open instructions (`open`) that the path covers.
    fn trace(&mut self, seed: usize) -> (Trace, u128) {
        let mut places = vec![Place {
            node: seed,
            returns: Vec::new(),
        }];
        let mut edges = Vec::new();
        let mut closed = false;
        let mut size = self.size(seed);
        let mut least = self.left[seed];
        while places.len() < BLOCKS {
            let place = &places[places.len() - 1];
            let Some((edge, next)) = self.onward(place, least) else {
                break;
            };
            edges.push(edge);
            if let Some(first) = places.iter().position(|place| *place == next) {
                places.drain(..first);
                edges.drain(..first);
                closed = true;
                break;
            }
            size += self.size(next.node);
            if size > INSTRUCTIONS {
                edges.pop();
                break;
            }
            least = least.min(self.left[next.node]);
            places.push(next);
        }
        let mut nodes: Vec<usize> = places.into_iter().map(|place| place.node).collect();
        if closed {
            (nodes, edges) = self.widen(nodes, edges);
        } else {
            self.grow(&mut nodes, &mut edges, size);
        }
        let members: BTreeSet<usize> = nodes.iter().copied().collect();
        let open = |finder: &Self| members.iter().map(|node| finder.open(*node)).sum::<u128>();
        let before = open(self);
        let trace = self.take(nodes, &edges, closed);
        let taken = before - open(self);
        (trace, taken)
    }

    /// Returns the number of instructions of a block.
    pub fn size(&self, node: usize) -> usize {
        self.graph.nodes[node].code.instructions.len()
    }

    /// Returns the executed instructions of a block that are on no path yet. The number is 0 if more than nine tenths of the executions are
    /// on paths: the rest then costs as much as these.
    fn open(&self, node: usize) -> u128 {
        let left = u128::from(self.left[node]);
        if left * SETTLED < u128::from(self.graph.nodes[node].executions) {
            return 0;
        }
        left * self.size(node) as u128
    }

    /// Lists the edges that a walk may take from a place.
    pub fn usable(&self, place: &Place) -> impl Iterator<Item = usize> {
        let known = place.returns.last().copied();
        self.graph.out[place.node].iter().copied().filter(move |e| {
            let edge = &self.graph.edges[*e];
            let right = edge.kind != Kind::Return || known.is_none_or(|site| site == edge.to);
            right && self.left[edge.to] > 0
        })
    }

    /// Returns the place to which an edge leads.
    pub fn follow(&self, place: &Place, edge: usize) -> Place {
        let mut returns = place.returns.clone();
        let edge = &self.graph.edges[edge];
        match edge.kind {
            Kind::Plain => {}
            Kind::Call(site) => returns.push(site),
            Kind::Return => drop(returns.pop()),
        }
        Place {
            node: edge.to,
            returns,
        }
    }

    /// Picks the likeliest edge from a place, and returns it with the place to which it leads. None: too few executions continue.
    fn onward(&self, place: &Place, least: u64) -> Option<(usize, Place)> {
        let usable = self.usable(place);
        let edge = usable.max_by(|a, b| self.flow[*a].total_cmp(&self.flow[*b]).then(b.cmp(a)))?;
        if self.flow[edge] * RARE < least as f64 {
            return None;
        }
        Some((edge, self.follow(place, edge)))
    }

    /// Adds blocks in front of an open path, as long as at least half of the first block's executions come from one block.
    fn grow(&self, nodes: &mut Vec<usize>, edges: &mut Vec<usize>, mut size: usize) {
        while nodes.len() < BLOCKS {
            let first = nodes[0];
            let usable = self.graph.into[first].iter().copied().filter(|e| {
                let from = self.graph.edges[*e].from;
                self.left[from] > 0 && !nodes.contains(&from)
            });
            let best = usable.max_by(|a, b| self.flow[*a].total_cmp(&self.flow[*b]).then(b.cmp(a)));
            let Some(edge) = best else { return };
            let from = self.graph.edges[edge].from;
            size += self.size(from);
            if self.flow[edge] * 2.0 < self.left[first] as f64 || size > INSTRUCTIONS {
                return;
            }
            nodes.insert(0, from);
            edges.insert(0, edge);
        }
    }

    /// Takes a path's executions from its blocks and edges.
    fn take(&mut self, nodes: Vec<usize>, edges: &[usize], closed: bool) -> Trace {
        let times = |node: usize| nodes.iter().filter(|n| **n == node).count() as u64;
        let executions = nodes.iter().map(|n| self.left[*n] / times(*n)).min();
        // At least one execution. A block that is on the path more often than it has executions left gives none to its last occurrences.
        let executions = executions.unwrap_or(0).max(1);
        let mut taken = Vec::with_capacity(nodes.len());
        for node in &nodes {
            let some = executions.min(self.left[*node]);
            self.left[*node] -= some;
            taken.push(some);
        }
        for edge in edges {
            self.flow[*edge] = (self.flow[*edge] - executions as f64).max(0.0);
        }
        Trace {
            nodes,
            closed,
            executions,
            taken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Block, Code};
    use crate::graph::Node;
    use proptest::prelude::*;

    /// Generates programs: consecutive blocks whose ends, of all kinds, lead to each other.
    fn program() -> impl Strategy<Value = Vec<Block>> {
        // The bytes in front of a 32-bit displacement (true), or all bytes (false).
        const ENDS: [(&[u8], bool); 8] = [
            (&[], false),
            (&[0xe9], true),
            (&[0x0f, 0x85], true),
            (&[0x0f, 0x84], true),
            (&[0xe8], true),
            (&[0xc3], false),
            (&[0xff, 0xd0], false),
            (&[0xff, 0xe0], false),
        ];
        let executions = prop_oneof![1_u64..20, 900_u64..1100, 0_u64..100_000, Just(u64::MAX)];
        let block = (
            1_usize..6,
            prop::sample::select(ENDS.to_vec()),
            any::<prop::sample::Index>(),
            executions,
        );
        prop::collection::vec(block, 1..40).prop_map(|parts| {
            let lengths = parts
                .iter()
                .map(|(nops, (end, near), ..)| nops + end.len() + if *near { 4 } else { 0 });
            let starts: Vec<u64> = lengths
                .scan(0x1000, |at, length| {
                    let start = *at;
                    *at += length as u64;
                    Some(start)
                })
                .collect();
            let blocks = parts.iter().zip(&starts).map(
                |((nops, (end, near), target, executions), start)| {
                    let mut bytes = vec![0x90; *nops];
                    bytes.extend(*end);
                    if *near {
                        let next = start + bytes.len() as u64 + 4;
                        let distance = starts[target.index(starts.len())].wrapping_sub(next);
                        bytes.extend((distance as u32).to_le_bytes());
                    }
                    Block {
                        address: *start,
                        instructions: (nops + usize::from(!end.is_empty())) as u32,
                        bytes,
                        executions: *executions,
                    }
                },
            );
            blocks.collect()
        })
    }

    proptest! {
        /// Checks, for any control flow, that paths end, follow edges, take no more executions than there are, and take nearly all.
        #[test]
        fn paths_take_what_there_is(blocks in program()) {
            let nodes: Vec<Node> = blocks
                .iter()
                .filter_map(|block| {
                    let code = Code::of(block).ok()?;
                    Some(Node { address: block.address, code, executions: block.executions })
                })
                .collect();
            let graph = Graph::new(nodes);
            for edge in &graph.edges {
                let most = graph.nodes[edge.from].executions as f64;
                prop_assert!(edge.flow >= 0.0 && edge.flow <= most * 1.001 + 1.0, "{edge:?}");
            }
            let weight = |node: usize, times: u64| u128::from(times) * graph.nodes[node].code.instructions.len() as u128;
            let all: u128 = (0..graph.nodes.len()).map(|n| weight(n, graph.nodes[n].executions)).sum();
            let traces = find(&graph, all);
            prop_assert_eq!(&traces, &find(&graph, all));
            let mut taken = vec![0_u64; graph.nodes.len()];
            for trace in &traces {
                prop_assert_eq!(trace.nodes.len(), trace.taken.len());
                for pair in trace.nodes.windows(2) {
                    prop_assert!(graph.out[pair[0]].iter().any(|e| graph.edges[*e].to == pair[1]));
                }
                for (node, some) in trace.nodes.iter().zip(&trace.taken) {
                    taken[*node] += some;
                }
            }
            for (node, taken) in taken.into_iter().enumerate() {
                let most = graph.nodes[node].executions;
                prop_assert!(taken <= most);
                // A block of at most ten executions is settled only when none is left.
                prop_assert!(u128::from(most - taken) * SETTLED < u128::from(most.max(1)) || most == taken);
            }
        }
    }
}
