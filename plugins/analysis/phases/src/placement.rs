//! Placement of ranks on nodes, and within nodes on sockets, so that few bytes leave them.
//!
//! METIS (Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs", SIAM J. Sci. Comput. 20, 1998)
//! divides the graph of ranks, whose edges weigh the bytes in both directions. METIS keeps the sizes of parts only within a tolerance, but
//! the ranks of a node must not exceed its cores. Moves and swaps of single ranks therefore restore the exact sizes.

use std::collections::BTreeMap;

use metis::option::{Seed, UFactor};

use crate::step::Matrix;

/// Sum to which larger sums of the edges' weights are scaled down for METIS, whose numbers have 32 bits.
const WEIGHT: u64 = 1 << 29;
/// The seed of METIS.
const SEED: i32 = 1;
/// Tolerance of the parts' sizes in METIS, thousandths.
const TOLERANCE: i32 = 1;
/// Most rounds of swaps.
const ROUNDS: usize = 16;
/// Most parts for which METIS bisects; it divides into more parts at once.
const BISECTED: usize = 8;

/// Reason for which ranks cannot be placed.
#[derive(Debug, thiserror::Error)]
#[error("METIS cannot divide {vertices} ranks into {parts} parts: {cause}")]
pub struct PlacementError {
    /// Number of ranks.
    vertices: usize,
    /// Number of parts.
    parts: usize,
    /// Error of METIS.
    cause: metis::Error,
}

/// Returns the bytes that go between different groups.
pub fn crossing(matrix: &Matrix, groups: &[u32]) -> u64 {
    let crossing = matrix
        .cells()
        .filter(|&(from, to, _)| groups[from as usize] != groups[to as usize]);
    crossing
        .map(|(_, _, of)| of.bytes)
        .fold(0, u64::saturating_add)
}

/// Places ranks in the groups of a given placement, with as many ranks in each group as before, so that few bytes leave a group. Returns
/// the given placement if nothing better is found.
///
/// # Errors
///
/// Where METIS fails.
pub fn improve(matrix: &Matrix, given: &[u32]) -> Result<Vec<u32>, PlacementError> {
    let graph = Graph::new(matrix, given.len());
    // Parts are the groups that have ranks, in order.
    let groups: Vec<u32> = {
        let counts: BTreeMap<u32, ()> = given.iter().map(|&group| (group, ())).collect();
        counts.into_keys().collect()
    };
    let part = |group: u32| groups.partition_point(|&other| other < group);
    let given: Vec<usize> = given.iter().map(|&group| part(group)).collect();
    let mut sizes = vec![0; groups.len()];
    given.iter().for_each(|&part| sizes[part] += 1);
    let least = graph.cut(&given);
    let mut best = given.clone();
    // If each part has a single rank, or if there is one part, there is nothing to choose.
    if least > 0 && sizes.len() > 1 && sizes.iter().any(|&size| size > 1) {
        let mut refined = Division::new(&graph, given.clone(), &sizes);
        refined.swap();
        let mut divided = Division::new(&graph, graph.divide(&sizes)?, &sizes);
        divided.restore();
        divided.swap();
        let divided = relabel(divided.parts, &given, &sizes);
        let mut least = least;
        for other in [divided, refined.parts] {
            let cut = graph.cut(&other);
            if cut < least {
                (least, best) = (cut, other);
            }
        }
    }
    Ok(best.into_iter().map(|part| groups[part]).collect())
}

/// Names the parts so that many ranks keep their given part. A part takes the name of a part of its size, greatest overlap first.
fn relabel(parts: Vec<usize>, given: &[usize], sizes: &[usize]) -> Vec<usize> {
    let mut overlaps: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (&part, &name) in parts.iter().zip(given) {
        *overlaps.entry((part, name)).or_default() += 1;
    }
    let mut order: Vec<_> = overlaps.into_iter().collect();
    order.sort_by_key(|&(pair, count)| (std::cmp::Reverse(count), pair));
    let mut names: Vec<Option<usize>> = vec![None; sizes.len()];
    let mut taken = vec![false; sizes.len()];
    for ((part, name), _) in order {
        if names[part].is_none() && !taken[name] && sizes[part] == sizes[name] {
            (names[part], taken[name]) = (Some(name), true);
        }
    }
    for part in 0..sizes.len() {
        if names[part].is_none() {
            let free = (0..sizes.len()).find(|&name| !taken[name] && sizes[name] == sizes[part]);
            if let Some(free) = free {
                (names[part], taken[free]) = (Some(free), true);
            }
        }
    }
    let name = |part: usize| names[part].unwrap_or(part);
    parts.into_iter().map(name).collect()
}

/// Graph of the ranks, with the bytes between them in both directions together.
struct Graph(Vec<Vec<(usize, u64)>>);

impl Graph {
    fn new(matrix: &Matrix, ranks: usize) -> Graph {
        let mut edges: Vec<BTreeMap<usize, u64>> = vec![BTreeMap::new(); ranks];
        for (from, to, traffic) in matrix.cells() {
            let (from, to) = (from as usize, to as usize);
            if from != to && traffic.bytes > 0 {
                for (one, other) in [(from, to), (to, from)] {
                    let bytes = edges[one].entry(other).or_default();
                    *bytes = bytes.saturating_add(traffic.bytes);
                }
            }
        }
        Graph(
            edges
                .into_iter()
                .map(|of| of.into_iter().collect())
                .collect(),
        )
    }

    /// Returns the bytes between parts.
    fn cut(&self, parts: &[usize]) -> u64 {
        let mut cut = 0u64;
        for (rank, edges) in self.0.iter().enumerate() {
            for &(other, bytes) in edges {
                if rank < other && parts[rank] != parts[other] {
                    cut = cut.saturating_add(bytes);
                }
            }
        }
        cut
    }

    /// Divides the ranks into parts of about these sizes.
    fn divide(&self, sizes: &[usize]) -> Result<Vec<usize>, PlacementError> {
        let ranks = self.0.len();
        let sum: u64 = self
            .0
            .iter()
            .flatten()
            .fold(0, |sum, edge| sum.saturating_add(edge.1));
        let scale = (sum as f64 / WEIGHT as f64).max(1.0);
        let (mut starts, mut others, mut weights) = (vec![0], Vec::new(), Vec::new());
        for edges in &self.0 {
            for &(other, bytes) in edges {
                others.push(other as i32);
                weights.push((bytes as f64 / scale).round().max(1.0) as i32);
            }
            starts.push(others.len() as i32);
        }
        let shares: Vec<f32> = sizes
            .iter()
            .map(|&size| size as f32 / ranks as f32)
            .collect();
        let failed = |cause| PlacementError {
            vertices: ranks,
            parts: sizes.len(),
            cause,
        };
        let graph = metis::Graph::new(1, sizes.len() as i32, &starts, &others)
            .map_err(|error| failed(error.into()))?
            .set_adjwgt(&weights)
            .set_tpwgts(&shares)
            .set_option(Seed(SEED))
            .set_option(UFactor(TOLERANCE));
        let mut parts = vec![0; ranks];
        let done = match sizes.len() <= BISECTED {
            true => graph.part_recursive(&mut parts),
            false => graph.part_kway(&mut parts),
        };
        done.map_err(failed)?;
        Ok(parts.into_iter().map(|part| part as usize).collect())
    }
}

/// A division of the ranks into parts, while it is being changed.
struct Division<'a> {
    graph: &'a Graph,
    sizes: &'a [usize],
    parts: Vec<usize>,
    /// Bytes between a rank and each part, as far as there are any.
    towards: Vec<BTreeMap<usize, u64>>,
}

impl<'a> Division<'a> {
    fn new(graph: &'a Graph, parts: Vec<usize>, sizes: &'a [usize]) -> Division<'a> {
        let towards = (graph.0.iter())
            .map(|edges| {
                let mut towards: BTreeMap<usize, u64> = BTreeMap::new();
                for &(other, bytes) in edges {
                    *towards.entry(parts[other]).or_default() += bytes;
                }
                towards
            })
            .collect();
        Division {
            graph,
            sizes,
            parts,
            towards,
        }
    }

    fn towards(&self, rank: usize, part: usize) -> i128 {
        i128::from(self.towards[rank].get(&part).copied().unwrap_or(0))
    }

    /// Returns the bytes that no longer cross if a rank moves to a part.
    fn gain(&self, rank: usize, part: usize) -> i128 {
        self.towards(rank, part) - self.towards(rank, self.parts[rank])
    }

    fn put(&mut self, rank: usize, part: usize) {
        let old = std::mem::replace(&mut self.parts[rank], part);
        for &(other, bytes) in &self.graph.0[rank] {
            let towards = &mut self.towards[other];
            if let Some(sum) = towards.get_mut(&old) {
                *sum -= bytes;
            }
            *towards.entry(part).or_default() += bytes;
        }
    }

    /// Moves ranks from parts with too many to parts with too few, each time the rank that gains most or loses least.
    fn restore(&mut self) {
        let mut counts = vec![0; self.sizes.len()];
        self.parts.iter().for_each(|&part| counts[part] += 1);
        loop {
            let few: Vec<usize> = (0..counts.len())
                .filter(|&at| counts[at] < self.sizes[at])
                .collect();
            let moves = (0..self.parts.len())
                .filter(|&rank| counts[self.parts[rank]] > self.sizes[self.parts[rank]])
                .flat_map(|rank| few.iter().map(move |&part| (rank, part)));
            let best = moves.max_by_key(|&(rank, part)| {
                (self.gain(rank, part), std::cmp::Reverse((rank, part)))
            });
            let Some((rank, part)) = best else { return };
            counts[self.parts[rank]] -= 1;
            counts[part] += 1;
            self.put(rank, part);
        }
    }

    /// Swaps ranks of different parts as long as that lowers the bytes between parts.
    fn swap(&mut self) {
        for _ in 0..ROUNDS {
            let mut members = vec![Vec::new(); self.sizes.len()];
            for (rank, &part) in self.parts.iter().enumerate() {
                members[part].push(rank);
            }
            let mut swapped = false;
            for rank in 0..self.parts.len() {
                // A swap can gain only if one of the two ranks exchanges bytes with the part of the other.
                let drawn: Vec<usize> = self.towards[rank].keys().copied().collect();
                let others = drawn
                    .into_iter()
                    .flat_map(|part| members[part].iter().copied());
                let gains = others.filter(|&other| self.parts[other] != self.parts[rank]);
                let best = gains
                    .map(|other| (self.swap_gain(rank, other), std::cmp::Reverse(other)))
                    .max();
                if let Some((gain, std::cmp::Reverse(other))) = best
                    && gain > 0
                {
                    let (one, two) = (self.parts[rank], self.parts[other]);
                    self.put(rank, two);
                    self.put(other, one);
                    members[one].retain(|&member| member != rank);
                    members[two].retain(|&member| member != other);
                    members[one].push(other);
                    members[two].push(rank);
                    swapped = true;
                }
            }
            if !swapped {
                return;
            }
        }
    }

    fn swap_gain(&self, one: usize, other: usize) -> i128 {
        let edges = &self.graph.0[one];
        let between = edges.binary_search_by_key(&other, |edge| edge.0);
        let between = between.map_or(0, |at| i128::from(edges[at].1));
        self.gain(one, self.parts[other]) + self.gain(other, self.parts[one]) - 2 * between
    }
}

/// Places the ranks of each node on its sockets, as evenly as possible, so that few bytes leave a socket. Returns two lists with the
/// socket of each rank, numbered through all nodes: first with the ranks in order, then as placed.
///
/// # Errors
///
/// Where METIS fails.
pub fn sockets(
    matrix: &Matrix,
    nodes: &[u32],
    sockets: u32,
) -> Result<[Vec<u32>; 2], PlacementError> {
    let sockets = sockets.max(1);
    let mut given = vec![0; nodes.len()];
    let mut placed = given.clone();
    let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (rank, &node) in (0..).zip(nodes) {
        members.entry(node).or_default().push(rank);
    }
    for (node, ranks) in members {
        let local: Vec<u32> = (0..ranks.len() as u32)
            .map(|at| (u64::from(at) * u64::from(sockets) / ranks.len() as u64) as u32)
            .collect();
        let better = improve(&matrix.among(&ranks), &local)?;
        for (at, &rank) in ranks.iter().enumerate() {
            given[rank as usize] = node * sockets + local[at];
            placed[rank as usize] = node * sockets + better[at];
        }
    }
    Ok([given, placed])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;

    fn matrix(edges: &[(u32, u32, u64)]) -> Matrix {
        let messages: Vec<Message> = (edges.iter())
            .map(|&(from, to, bytes)| Message {
                time: 0,
                from,
                to,
                bytes,
            })
            .collect();
        Matrix::new(&messages)
    }

    #[test]
    fn pairs_come_together() {
        // Rank r talks with rank r + 8: block placement puts every pair on two nodes.
        let edges: Vec<_> = (0..8).map(|rank| (rank, rank + 8, 1000)).collect();
        let matrix = matrix(&edges);
        let given: Vec<u32> = (0..16).map(|rank| rank / 4).collect();
        assert_eq!(crossing(&matrix, &given), 8000);
        let placed = improve(&matrix, &given).unwrap();
        assert_eq!(crossing(&matrix, &placed), 0);
        for node in 0..4 {
            assert_eq!(placed.iter().filter(|&&of| of == node).count(), 4);
        }
        assert_eq!(placed, improve(&matrix, &given).unwrap());
    }

    #[test]
    fn nodes_keep_their_numbers_of_ranks() {
        // Of 7 ranks in a ring, 4 on node 5, 2 on node 1 and 1 on node 2.
        let edges: Vec<_> = (0..7).map(|rank| (rank, (rank + 1) % 7, 10)).collect();
        let given = [5, 1, 5, 2, 5, 1, 5];
        let placed = improve(&matrix(&edges), &given).unwrap();
        let count = |of: &[u32], node| of.iter().filter(|&&other| other == node).count();
        for node in [5, 1, 2] {
            assert_eq!(count(&placed, node), count(&given, node));
        }
        // Three parts of a ring cut three edges.
        assert_eq!(crossing(&matrix(&edges), &placed), 30);
    }

    #[test]
    fn a_good_placement_stays() {
        let edges = [(0, 1, 5), (2, 3, 5), (1, 2, 1)];
        assert_eq!(
            improve(&matrix(&edges), &[7, 7, 3, 3]).unwrap(),
            [7, 7, 3, 3]
        );
        assert_eq!(improve(&matrix(&[]), &[0, 1, 0]).unwrap(), [0, 1, 0]);
        assert_eq!(improve(&matrix(&edges), &[0; 4]).unwrap(), [0; 4]);
        assert_eq!(
            improve(&matrix(&edges), &[0, 1, 2, 3]).unwrap(),
            [0, 1, 2, 3]
        );
    }

    #[test]
    fn sockets_take_the_ranks_of_their_node() {
        let matrix = matrix(&[(0, 2, 9), (1, 3, 9), (4, 7, 9), (5, 6, 9)]);
        let [given, placed] = sockets(&matrix, &[0, 0, 0, 0, 1, 1, 1, 1], 2).unwrap();
        assert_eq!(given, [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(
            (crossing(&matrix, &given), crossing(&matrix, &placed)),
            (36, 0)
        );
        assert!(placed[..4].iter().all(|&socket| socket < 2));
        assert!(placed[4..].iter().all(|&socket| socket >= 2));
    }
}
