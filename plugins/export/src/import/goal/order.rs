//! An order of a rank's operations in which every dependency holds.
//!
//! Operations begin as soon as what they require has ended or begun, in the order of the file, but receives and sends before computations:
//! messages are then under way while the rank computes, as in the graph. Only when nothing else can begin does the rank wait for the send
//! or receive that began first among those that an operation requires.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::parse::{Graph, What};

/// A step of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The operation of this number begins; a computation also ends.
    Begin(u32),
    /// The rank waits for the end of a send or receive.
    Wait(u32),
}

/// The steps of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ordered {
    pub(super) steps: Vec<Step>,
    /// True if a wait may hold back what does not depend on it.
    pub(super) branched: bool,
}

/// Returns the steps of a rank, or the number of an operation on a cycle of dependencies.
pub(super) fn order(graph: &Graph) -> Result<Ordered, u32> {
    let count = graph.operations.len();
    // Operations that depend on the end and on the begin of each operation, as lists one after the other.
    let after_end = Lists::of(graph, count, false);
    let after_begin = Lists::of(graph, count, true);
    let mut open = vec![0u32; count];
    for dependency in &graph.dependencies {
        open[dependency.after as usize] += 1;
    }
    let mut ordered = Ordered::default();
    let mut ready = BinaryHeap::new();
    let class = |at: u32| match graph.operations[at as usize].what {
        What::Receive { .. } => 0,
        What::Send { .. } => 1,
        What::Work { .. } => 2,
    };
    for at in 0..count as u32 {
        if open[at as usize] == 0 {
            ready.push(Reverse((class(at), at)));
        }
    }
    // Sends and receives under way that an operation requires, by their position in the order.
    let mut waits: BTreeSet<(usize, u32)> = BTreeSet::new();
    let mut begun = 0;
    loop {
        let (at, lists) = if let Some(Reverse((class, at))) = ready.pop() {
            begun += 1;
            ordered.steps.push(Step::Begin(at));
            let requires = !after_end.of_operation(at).is_empty();
            let ends = class == 2;
            if !ends && requires {
                waits.insert((ordered.steps.len(), at));
            }
            (at, [Some(&after_begin), ends.then_some(&after_end)])
        } else if let Some((_, at)) = waits.pop_first() {
            ordered.steps.push(Step::Wait(at));
            (at, [Some(&after_end), None])
        } else {
            break;
        };
        let waited = lists[1].is_none() && matches!(ordered.steps.last(), Some(Step::Wait(_)));
        for list in lists.into_iter().flatten() {
            for &next in list.of_operation(at) {
                open[next as usize] -= 1;
                if open[next as usize] == 0 {
                    ready.push(Reverse((class(next), next)));
                }
            }
        }
        // What the wait held back could have gone on while another message was awaited.
        ordered.branched |= waited && !ready.is_empty() && !waits.is_empty();
    }
    match begun == count {
        true => Ok(ordered),
        false => Err(on_cycle(graph, &open)),
    }
}

/// Returns an operation on a cycle, of which some exist among the operations that cannot begin.
fn on_cycle(graph: &Graph, open: &[u32]) -> u32 {
    // From an operation that cannot begin, what it depends on leads to a cycle within as many steps as there are operations.
    let mut before = vec![None; open.len()];
    for dependency in &graph.dependencies {
        if open[dependency.before as usize] > 0 {
            before[dependency.after as usize] = Some(dependency.before);
        }
    }
    let stuck = open.iter().position(|&open| open > 0).unwrap_or(0);
    let mut at = stuck as u32;
    for _ in 0..open.len() {
        at = before[at as usize].unwrap_or(at);
    }
    at
}

/// A list of operations for each operation.
struct Lists {
    begins: Vec<u32>,
    list: Vec<u32>,
}

impl Lists {
    /// Returns the operations that depend on the begin (`started`) or the end of each operation.
    fn of(graph: &Graph, count: usize, started: bool) -> Lists {
        let own = || {
            let all = graph.dependencies.iter();
            all.filter(move |dependency| dependency.started == started)
        };
        let mut begins = vec![0u32; count + 1];
        for dependency in own() {
            begins[dependency.before as usize + 1] += 1;
        }
        for at in 0..count {
            begins[at + 1] += begins[at];
        }
        let mut next = begins.clone();
        let mut list = vec![0; begins[count] as usize];
        for dependency in own() {
            let at = &mut next[dependency.before as usize];
            list[*at as usize] = dependency.after;
            *at += 1;
        }
        Lists { begins, list }
    }

    fn of_operation(&self, at: u32) -> &[u32] {
        let at = at as usize;
        &self.list[self.begins[at] as usize..self.begins[at + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse::{Dependency, Operation};
    use super::*;

    /// Returns a graph of operations by letter (c, s, r) and dependencies (after, before, started).
    fn graph(kinds: &str, dependencies: &[(u32, u32, bool)]) -> Graph {
        let bytes = 1;
        let operation = |kind| Operation {
            what: match kind {
                'c' => What::Work { nanoseconds: 1 },
                's' => What::Send {
                    bytes,
                    to: 0,
                    tag: 0,
                },
                _ => What::Receive {
                    bytes,
                    from: None,
                    tag: None,
                },
            },
            cpu: 0,
            line: 1,
        };
        Graph {
            operations: kinds.chars().map(operation).collect(),
            dependencies: dependencies
                .iter()
                .map(|&(after, before, started)| Dependency {
                    after,
                    before,
                    started,
                })
                .collect(),
            ..Graph::default()
        }
    }

    #[test]
    fn a_chain_waits_where_an_operation_requires_the_end() {
        use Step::{Begin, Wait};
        let chain = graph(
            "crcs",
            &[(1, 0, false), (2, 1, true), (3, 2, false), (3, 1, false)],
        );
        let ordered = order(&chain).unwrap();
        // The receive has begun when the computation begins, and has ended when the send begins.
        assert_eq!(
            ordered.steps,
            [Begin(0), Begin(1), Begin(2), Wait(1), Begin(3)]
        );
        let ordered = order(&graph("sc", &[(1, 0, false)])).unwrap();
        assert_eq!(ordered.steps, [Begin(0), Wait(0), Begin(1)]);
        assert!(!ordered.branched);
    }

    #[test]
    fn messages_are_under_way_before_work_and_branches_are_told() {
        use Step::{Begin, Wait};
        let ordered = order(&graph("csr", &[])).unwrap();
        assert_eq!(ordered.steps, [Begin(2), Begin(1), Begin(0)]);
        assert!(!ordered.branched);
        // Each computation requires a message of its own.
        let ordered = order(&graph("rrcc", &[(2, 0, false), (3, 1, false)])).unwrap();
        let steps = [Begin(0), Begin(1), Wait(0), Begin(2), Wait(1), Begin(3)];
        assert_eq!(ordered.steps, steps);
        assert!(ordered.branched);
    }

    #[test]
    fn cycles_are_told() {
        for cycle in [
            graph("cc", &[(0, 1, false), (1, 0, true)]),
            graph("c", &[(0, 0, false)]),
            graph("ccc", &[(0, 1, false), (1, 2, false), (2, 1, false)]),
        ] {
            let at = order(&cycle).unwrap_err();
            assert!(at < 3, "{at}");
        }
        let at = order(&graph(
            "cccc",
            &[(0, 1, false), (1, 2, false), (2, 1, false)],
        ));
        assert!(matches!(at, Err(1 | 2)), "{at:?}");
    }
}
