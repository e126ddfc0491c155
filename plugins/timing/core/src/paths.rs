//! Hot paths: blocks that follow each other, most of them once around a loop.
//!
//! Greedy: the block with the most instructions that no path has yet is the seed. From there the path goes along the likeliest edge
//! until it comes to a block where it has been, in the same function calls: these blocks are a loop. A loop of few iterations becomes a
//! part of the loop around it (`nest.rs`). The path takes as many executions from all of its blocks as the least executed one still has. A
//! path that ends before it closes grows backwards, too.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::graph::{Graph, Kind};

/// Blocks of a path at most, and its instructions.
const BLOCKS: usize = 128;
const INSTRUCTIONS: usize = 1024;
/// A block is settled when paths have all but one of so many of its executions.
const SETTLED: u128 = 10;
/// A path ends where less than one of so many of its executions continues.
const RARE: f64 = 16.0;

/// Blocks that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// Blocks in the order of execution. A function that is called twice appears twice.
    pub nodes: Vec<usize>,
    /// True if the last block leads to the first.
    pub closed: bool,
    /// Executions of the whole path.
    pub executions: u64,
    /// Executions that each place takes from its block.
    pub taken: Vec<u64>,
}

/// Finds paths with blocks that have at least `wanted` of the instructions that all blocks executed, or all of them.
pub(crate) fn find(graph: &Graph, wanted: u128) -> Vec<Trace> {
    let mut finder = Finder {
        graph,
        left: graph.nodes.iter().map(|n| n.executions).collect(),
        flow: graph.edges.iter().map(|e| e.flow).collect(),
    };
    // Of equal blocks the first comes first.
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
        // A path may leave its seed behind, or some of the seed's executions.
        heap.push((finder.open(seed), Reverse(seed)));
    }
    traces
}

pub(crate) struct Finder<'a> {
    pub graph: &'a Graph,
    /// Executions of blocks that no path has.
    pub left: Vec<u64>,
    /// Executions of edges that no path has.
    pub flow: Vec<f64>,
}

/// A place of a walk: a block within calls of known return.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub node: usize,
    /// Where the calls return to.
    pub returns: Vec<usize>,
}

impl Finder<'_> {
    /// Finds a path from a seed, and the weight that it takes from what is open.
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

    /// Counts instructions of one execution.
    pub fn size(&self, node: usize) -> usize {
        self.graph.nodes[node].code.instructions.len()
    }

    /// Counts instructions of a block that wait for a path. A block most of whose executions are on paths waits no more: the others count as
    /// much as these.
    fn open(&self, node: usize) -> u128 {
        let left = u128::from(self.left[node]);
        if left * SETTLED < u128::from(self.graph.nodes[node].executions) {
            return 0;
        }
        left * self.size(node) as u128
    }

    /// Lists edges that may be taken at a place.
    pub fn usable(&self, place: &Place) -> impl Iterator<Item = usize> {
        let known = place.returns.last().copied();
        self.graph.out[place.node].iter().copied().filter(move |e| {
            let edge = &self.graph.edges[*e];
            let right = edge.kind != Kind::Return || known.is_none_or(|site| site == edge.to);
            right && self.left[edge.to] > 0
        })
    }

    /// Returns the place behind an edge.
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

    /// Picks the likeliest edge from a place, and where it leads.
    fn onward(&self, place: &Place, least: u64) -> Option<(usize, Place)> {
        let usable = self.usable(place);
        let edge = usable.max_by(|a, b| self.flow[*a].total_cmp(&self.flow[*b]).then(b.cmp(a)))?;
        if self.flow[edge] * RARE < least as f64 {
            return None;
        }
        Some((edge, self.follow(place, edge)))
    }

    /// Adds blocks before an open path, as long as most executions come from there.
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
        // Less than one execution for each place is one for the first places.
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

    /// Makes programs: blocks that follow each other, with ends of all kinds that lead to each other.
    fn program() -> impl Strategy<Value = Vec<Block>> {
        // The bytes before a distance of 32 bits, or all bytes.
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
        /// Checks that, whatever leads where, paths end, follow edges, take no more than there is, and have nearly all.
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
                // A block of fewer than ten executions is settled with the last.
                prop_assert!(u128::from(most - taken) * SETTLED < u128::from(most.max(1)) || most == taken);
            }
        }
    }
}
