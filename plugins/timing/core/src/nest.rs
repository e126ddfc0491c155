//! Short loops, made parts of the loops around them.
//!
//! A core executes the end of a short loop, the code behind it and the next run of the loop at the same time. For example, a sum of 32
//! products waits for its additions, yet several sums are in flight. A path of only the inner loop would wait for every addition.
//!
//! The region around a loop is one pass of the outer loop. The walk begins where the inner loop is entered. Each edge may be used as often
//! as it is executed for each entry of the inner loop. The walk takes the edge with the most uses left, until the inner loop is entered
//! again.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::Kind;
use crate::paths::{Finder, Place};

/// Maximum number of instructions of one pass. No core has a larger reorder window.
const INSTRUCTIONS: usize = 768;
/// Maximum number of nested loops around a loop that are tried.
const DEPTH: usize = 4;
/// Least expected number of uses for each pass that an edge must have left to be on the pass.
const RARE: f64 = 1.0 / 16.0;

impl Finder<'_> {
    /// Returns blocks and edges of the largest pass around a closed loop that is short enough. Without such a pass, returns the loop
    /// itself.
    pub(crate) fn widen(&self, nodes: Vec<usize>, edges: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
        let mut best = (nodes, edges);
        for _ in 0..DEPTH {
            match self.around(&best.0) {
                Some(pass) => best = pass,
                None => break,
            }
        }
        best
    }

    /// Walks one pass of the loop around the loop `inner`. None: there is no outer loop, the pass is too long, or no edge of it is executed
    /// often enough.
    fn around(&self, inner: &[usize]) -> Option<(Vec<usize>, Vec<usize>)> {
        let members: BTreeSet<usize> = inner.iter().copied().collect();
        let entries: Vec<usize> = members
            .iter()
            .flat_map(|node| self.graph.into[*node].iter().copied())
            .filter(|e| !members.contains(&self.graph.edges[*e].from))
            .collect();
        let passes: f64 = entries.iter().map(|e| self.flow[*e]).sum();
        let entry = entries
            .into_iter()
            .max_by(|a, b| self.flow[*a].total_cmp(&self.flow[*b]).then(b.cmp(a)))?;
        let inside: f64 = members
            .iter()
            .map(|node| self.left[*node] as f64 * self.size(*node) as f64)
            .sum();
        if passes < 1.0 || inside > passes * INSTRUCTIONS as f64 {
            return None;
        }
        let first = self.graph.edges[entry].to;
        let mut place = Place {
            node: first,
            returns: Vec::new(),
        };
        let (mut nodes, mut edges) = (vec![first], Vec::new());
        let mut used: BTreeMap<usize, f64> = BTreeMap::new();
        let mut size = self.size(first);
        loop {
            let edge = self.next(&place, passes, &used)?;
            *used.entry(edge).or_default() += 1.0;
            edges.push(edge);
            let taken = &self.graph.edges[edge];
            if taken.to == first && !members.contains(&taken.from) {
                return Some((nodes, edges));
            }
            place = self.follow(&place, edge);
            size += self.size(place.node);
            if size > INSTRUCTIONS {
                return None;
            }
            nodes.push(place.node);
        }
    }

    /// Picks the edge from a place with the most uses left in this pass; of equal edges, the most executed one.
    fn next(&self, place: &Place, passes: f64, used: &BTreeMap<usize, f64>) -> Option<usize> {
        let left = |e: usize| self.flow[e] / passes - used.get(&e).copied().unwrap_or_default();
        let edge = self.usable(place).max_by(|a, b| {
            // Estimates of flows are not exact, so a small difference counts as none.
            let near = (left(*a) - left(*b)).abs() < 0.01;
            let by_left = left(*a).total_cmp(&left(*b));
            let by_flow = self.flow[*a].total_cmp(&self.flow[*b]).then(b.cmp(a));
            if near { by_flow } else { by_left.then(by_flow) }
        })?;
        // A return that matches a call on the walk is as certain as the call.
        let returns = self.graph.edges[edge].kind == Kind::Return && !place.returns.is_empty();
        (returns || left(edge) >= RARE).then_some(edge)
    }
}
