//! Exact folding of a sequence into nested loops.
//!
//! Symbols are appended to a stack. After each one, if the last k elements equal the k before them, both become a loop of two; if
//! they equal the body of the loop before them, that loop runs once more. Loops are elements like any other, so that loops of loops
//! form. Nodes and bodies are stored once each: equal sequences get equal numbers, which makes comparing cheap and lets ranks that do
//! the same share one tree. No step loses anything: [`Forest::unfold`] gives the sequence back.

use std::collections::HashMap;

/// Most earlier occurrences of an element that are tried as the end of the previous repetition.
const CANDIDATES: usize = 48;
/// Longest body of a loop, in elements.
const LONGEST: usize = 1 << 16;

/// Node of a loop tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// Symbol of the folded sequence, by its number.
    Leaf(u32),
    /// Body that is repeated.
    Loop {
        /// Number of iterations.
        count: u32,
        /// Number of the body.
        body: u32,
    },
}

/// Loop trees, of which each node and each body is stored once.
#[derive(Clone, Debug, Default)]
pub struct Forest {
    nodes: Vec<Node>,
    bodies: Vec<Box<[u32]>>,
    node_numbers: HashMap<Node, u32>,
    body_numbers: HashMap<Box<[u32]>, u32>,
}

impl Forest {
    /// Returns the number of a node, which is added if it is new.
    pub fn node(&mut self, node: Node) -> u32 {
        *self.node_numbers.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        })
    }

    /// Returns the number of a body, a sequence of nodes; the body is added if it is new.
    pub fn body(&mut self, nodes: &[u32]) -> u32 {
        if let Some(&number) = self.body_numbers.get(nodes) {
            return number;
        }
        let number = self.bodies.len() as u32;
        self.bodies.push(nodes.into());
        self.body_numbers.insert(nodes.into(), number);
        number
    }

    /// Returns the node of this number.
    pub fn get(&self, node: u32) -> Node {
        self.nodes[node as usize]
    }

    /// Returns the nodes of a body.
    pub fn children(&self, body: u32) -> &[u32] {
        &self.bodies[body as usize]
    }

    /// Folds a sequence of symbols, and returns the number of the tree's outermost body.
    pub fn fold(&mut self, symbols: impl IntoIterator<Item = u32>) -> u32 {
        let mut stack = Stack::default();
        for symbol in symbols {
            let node = self.node(Node::Leaf(symbol));
            stack.push(self, node);
            while stack.fold_once(self) {}
        }
        self.body(&stack.elements)
    }

    /// Calls `visit` with every symbol of a tree, in order.
    pub fn unfold(&self, body: u32, visit: &mut impl FnMut(u32)) {
        for &node in self.children(body) {
            match self.get(node) {
                Node::Leaf(symbol) => visit(symbol),
                Node::Loop { count, body } => {
                    for _ in 0..count {
                        self.unfold(body, visit);
                    }
                }
            }
        }
    }

    /// Returns the number of symbols in the unfolded sequence.
    pub fn length(&self, body: u32) -> u64 {
        let node = |&node: &u32| match self.get(node) {
            Node::Leaf(_) => 1,
            Node::Loop { count, body } => u64::from(count) * self.length(body),
        };
        self.children(body).iter().map(node).sum()
    }

    /// Returns the deepest nesting of loops in a body; 0 if the body has no loop.
    pub fn depth(&self, body: u32) -> usize {
        let node = |&node: &u32| match self.get(node) {
            Node::Leaf(_) => 0,
            Node::Loop { body, .. } => 1 + self.depth(body),
        };
        self.children(body).iter().map(node).max().unwrap_or(0)
    }

    /// Returns the number of entries in all bodies, a measure of the memory that the trees take.
    pub fn entries(&self) -> u64 {
        self.bodies.iter().map(|body| body.len() as u64).sum()
    }
}

/// Elements of a sequence that is being folded.
#[derive(Default)]
struct Stack {
    elements: Vec<u32>,
    /// Hashes of the elements from the first to each one, so that runs of equal length compare in constant time.
    hashes: Vec<u64>,
    /// Last node of each element: the element itself, or the last node of a loop's body.
    tails: Vec<u32>,
    /// Position of the previous element with the same tail.
    previous: Vec<u32>,
    last: HashMap<u32, u32>,
    powers: Vec<u64>,
}

const BASE: u64 = 0x9E37_79B9_7F4A_7C15;
const NONE: u32 = u32::MAX;

impl Stack {
    fn push(&mut self, forest: &Forest, node: u32) {
        let tail = match forest.get(node) {
            Node::Leaf(_) => node,
            Node::Loop { body, .. } => *forest.children(body).last().unwrap_or(&node),
        };
        let position = self.elements.len() as u32;
        let before = self.hashes.last().copied().unwrap_or(0);
        self.hashes
            .push(before.wrapping_mul(BASE).wrapping_add(u64::from(node) + 1));
        self.elements.push(node);
        self.tails.push(tail);
        self.previous
            .push(self.last.insert(tail, position).unwrap_or(NONE));
        if self.powers.is_empty() {
            self.powers.push(1);
        }
        if self.powers.len() <= self.elements.len() {
            let last = self.powers[self.powers.len() - 1];
            self.powers.push(last.wrapping_mul(BASE));
        }
    }

    fn pop(&mut self) {
        self.elements.pop();
        self.hashes.pop();
        if let (Some(tail), Some(previous)) = (self.tails.pop(), self.previous.pop()) {
            if previous == NONE {
                self.last.remove(&tail);
            } else {
                self.last.insert(tail, previous);
            }
        }
    }

    /// Returns the hash of elements `from..to`.
    fn hash(&self, from: usize, to: usize) -> u64 {
        let at = |end: usize| if end == 0 { 0 } else { self.hashes[end - 1] };
        at(to).wrapping_sub(at(from).wrapping_mul(self.powers[to - from]))
    }

    /// Folds the end of the stack once; returns false where nothing folds.
    fn fold_once(&mut self, forest: &mut Forest) -> bool {
        let end = self.elements.len();
        let Some(&newest) = self.elements.last() else {
            return false;
        };
        // Elements with the same tail form a chain. Loops like the newest have its tail; loops whose body ends with the newest have it as
        // their tail.
        let own = self.tails[end - 1];
        let nested = (newest != own).then(|| self.last.get(&newest).copied().unwrap_or(NONE));
        let chains = [Some(self.previous[end - 1]), nested];
        chains
            .into_iter()
            .flatten()
            .any(|candidate| self.fold_with(forest, candidate, newest))
    }

    /// Tries earlier elements of a chain, from `candidate` backwards, as the end of the previous repetition; returns whether one folded.
    fn fold_with(&mut self, forest: &mut Forest, mut candidate: u32, newest: u32) -> bool {
        let end = self.elements.len();
        for _ in 0..CANDIDATES {
            if candidate == NONE {
                return false;
            }
            let at = candidate as usize;
            let length = end - 1 - at;
            if length > LONGEST {
                return false;
            }
            // The loop just before the last elements runs once more.
            if let Node::Loop { count, body } = forest.get(self.elements[at]) {
                let body_nodes = forest.children(body);
                if count < u32::MAX
                    && body_nodes.len() == length
                    && body_nodes == &self.elements[end - length..]
                {
                    for _ in 0..=length {
                        self.pop();
                    }
                    let node = forest.node(Node::Loop {
                        count: count + 1,
                        body,
                    });
                    self.push(forest, node);
                    return true;
                }
            }
            // The last elements repeat those before them.
            if self.elements[at] == newest
                && 2 * length <= end
                && self.hash(end - 2 * length, end - length) == self.hash(end - length, end)
                && self.elements[end - 2 * length..end - length] == self.elements[end - length..]
            {
                let body = forest.body(&self.elements[end - length..]);
                for _ in 0..2 * length {
                    self.pop();
                }
                let node = forest.node(Node::Loop { count: 2, body });
                self.push(forest, node);
                return true;
            }
            candidate = self.previous[at];
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(symbols: &[u32]) -> (Forest, u32) {
        let mut forest = Forest::default();
        let root = forest.fold(symbols.iter().copied());
        let mut out = Vec::new();
        forest.unfold(root, &mut |symbol| out.push(symbol));
        assert_eq!(out, symbols);
        assert_eq!(forest.length(root), symbols.len() as u64);
        (forest, root)
    }

    #[test]
    fn nested_loops_fold_to_their_source() {
        // 100 x (1, 20 x (2 3), 4)
        let inner: Vec<u32> = [2, 3].repeat(20);
        let symbols = [vec![1], inner, vec![4]].concat().repeat(100);
        let (forest, root) = round_trip(&symbols);
        let [outer] = forest.children(root) else {
            panic!("{:?}", forest.children(root));
        };
        let Node::Loop { count: 100, body } = forest.get(*outer) else {
            panic!("{:?}", forest.get(*outer));
        };
        assert_eq!(forest.children(body).len(), 3);
        assert_eq!(forest.depth(root), 2);
    }

    #[test]
    fn a_body_that_ends_with_a_loop_folds() {
        let symbols = [vec![1], vec![2; 7], [3, 4].repeat(5)].concat().repeat(30);
        let (forest, root) = round_trip(&symbols);
        assert_eq!(forest.children(root).len(), 1);
        assert_eq!(forest.depth(root), 2);
    }

    #[test]
    fn a_long_loop_takes_little_and_a_random_sequence_no_more_than_itself() {
        let (forest, _) = round_trip(&[7, 8, 9].repeat(10_000));
        assert!(forest.entries() < 20, "{}", forest.entries());
        let symbols: Vec<u32> = (0..5000).collect();
        let (forest, _) = round_trip(&symbols);
        assert_eq!(forest.entries(), 5000);
    }

    #[test]
    fn equal_sequences_are_one_tree() {
        let mut forest = Forest::default();
        let first = forest.fold([1, 2].repeat(50));
        let second = forest.fold([1, 2].repeat(50));
        let third = forest.fold([1, 2].repeat(51));
        assert_eq!(first, second);
        assert_ne!(first, third);
    }

    fn looped() -> impl Strategy<Value = Vec<u32>> {
        let leaf = proptest::collection::vec(0u32..4, 1..4);
        leaf.prop_recursive(4, 64, 4, |inner| {
            (proptest::collection::vec(inner, 1..4), 1usize..6)
                .prop_map(|(parts, times)| parts.concat().repeat(times))
        })
    }

    proptest! {
        #[test]
        fn unfolding_gives_the_sequence_back(symbols in looped()) {
            round_trip(&symbols);
        }

        #[test]
        fn unfolding_gives_any_sequence_back(symbols in proptest::collection::vec(0u32..3, 0..400)) {
            round_trip(&symbols);
        }
    }
}
