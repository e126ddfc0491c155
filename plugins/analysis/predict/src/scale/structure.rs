//! Programs of roles: the operations of ranks by their role in a shape, from which the program of any number of ranks follows.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nodescope_loop_tree::{Action, Forest, Node, Op, PeerRef, Sequence};
use nodescope_trace::SiteNames;

use super::shape::{Partner, Role, Shape};
use crate::code::describe;

/// Traced ranks of a run.
#[derive(Clone, Debug)]
pub struct Traced {
    /// Number of ranks of the run.
    pub size: u32,
    /// The sequence of each rank; peers are world ranks.
    pub ranks: Vec<Sequence>,
    /// Names of the run's call sites.
    pub names: SiteNames,
}

/// A part of a rank's program: an operation or a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// An operation, by its position. Positions number the operations of the program in order, from 0, loop bodies once.
    Leaf(u32),
    /// A loop, by its number among the loops (from 0), and its body.
    Loop(u32, Vec<Part>),
}

/// Number of a loop's iterations as a function of the number of ranks: slope * variable + base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    variable: Variable,
    /// Factor of the variable.
    slope: i64,
    base: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variable {
    Ranks,
    Logarithm,
    Side(usize),
}

/// The program of the ranks that have one role.
#[derive(Clone, Debug)]
pub struct RoleProgram {
    /// Parts of the program, in order.
    pub parts: Vec<Part>,
    /// Number of positions in the program.
    pub positions: u32,
    /// Iterations of loops, by the loop's number.
    pub counts: Vec<Count>,
    /// Partners of the operation at each position: the rank sent to (or the only partner), the rank received from, the root.
    pub partners: Vec<[Option<Partner>; 3]>,
    /// The largest traced size that has the role.
    pub size: u32,
    /// World ranks that have the role in the traced run of `size` ranks.
    pub ranks: Vec<u32>,
}

/// Roles of all ranks in a shape, with the program of each role.
#[derive(Clone, Debug)]
pub struct Structure {
    /// Arrangement of the ranks, such as a grid of two dimensions. The number of ranks gives the sides.
    pub shape: Shape,
    /// The program of each role.
    pub roles: BTreeMap<Role, RoleProgram>,
}

impl Structure {
    /// Finds the program of each role of the traced ranks in a shape; an error says why the ranks do not fit the shape.
    pub fn new(shape: Shape, traced: &[Traced]) -> Result<Structure, String> {
        let mut members_of: BTreeMap<Role, Vec<(usize, u32)>> = BTreeMap::new();
        for (index, one) in traced.iter().enumerate() {
            if shape.sides(one.size).is_none() {
                return Err(format!("{} ranks cannot be arranged so", one.size));
            }
            for rank in 0..one.size {
                let role = shape.role(rank, one.size);
                members_of.entry(role).or_default().push((index, rank));
            }
        }
        let mut roles = BTreeMap::new();
        for (role, members) in members_of {
            roles.insert(role, role_program(shape, traced, &members)?);
        }
        Ok(Structure { shape, roles })
    }
}

/// Numbers of operations that are equal but for peers, sizes and roots.
#[derive(Default)]
struct Symbols {
    numbers: HashMap<Op, u32>,
    ops: Vec<Op>,
}

impl Symbols {
    fn of(&mut self, op: &Op) -> u32 {
        let op = blind(op);
        if let Some(&number) = self.numbers.get(&op) {
            return number;
        }
        self.ops.push(op.clone());
        let number = self.ops.len() as u32 - 1;
        self.numbers.insert(op, number);
        number
    }
}

fn blind(op: &Op) -> Op {
    let mut op = op.map_peers(|_| PeerRef::Absolute(0));
    match &mut op.action {
        Action::Send { bytes, .. } => *bytes = 0,
        Action::Receive { room, .. } => *room = 0,
        Action::OneSided { out, back, .. } => (*out, *back) = (0, 0),
        Action::SendReceive { send, receive } => {
            if let Some((.., bytes)) = send {
                *bytes = 0;
            }
            if let Some((.., room)) = receive {
                *room = 0;
            }
        }
        Action::Collective(collective) => {
            (collective.root, collective.bytes) = (0, 0);
            collective.send_to = Box::default();
            collective.receive_from = Box::default();
        }
        _ => {}
    }
    op
}

fn role_program(
    shape: Shape,
    traced: &[Traced],
    members: &[(usize, u32)],
) -> Result<RoleProgram, String> {
    let mut symbols = Symbols::default();
    let lists: Vec<Vec<u32>> = (members.iter())
        .map(|&(index, rank)| {
            let entries = &traced[index].ranks[rank as usize].entries;
            entries.iter().map(|entry| symbols.of(&entry.op)).collect()
        })
        .collect();
    let name = |member: (usize, u32)| format!("rank {} of {}", member.1, traced[member.0].size);
    let equal = lists.windows(2).all(|pair| pair[0] == pair[1]);
    let (parts, all_counts) = if equal {
        let leaves = (0..lists[0].len() as u32).map(Part::Leaf).collect();
        (leaves, Vec::new())
    } else {
        // As loop trees, the programs may differ only in the iterations of loops.
        let mut forest = Forest::default();
        let bodies: Vec<u32> = (lists.iter())
            .map(|list| forest.fold(list.iter().copied()))
            .collect();
        let mut shapes = Shapes {
            forest: &forest,
            positions: 0,
            counts: Vec::new(),
        };
        let parts = shapes.parts(bodies[0]);
        let mut counts: Vec<Vec<u32>> = shapes.counts.iter().map(|&count| vec![count]).collect();
        for (number, &body) in bodies.iter().enumerate().skip(1) {
            let mut same = Comparison {
                forest: &forest,
                counts: Vec::new(),
            };
            if let Err((one, other)) = same.bodies(bodies[0], body) {
                let told = |symbol: Option<u32>| match symbol {
                    Some(symbol) => {
                        let (names, op) =
                            (&traced[members[0].0].names, &symbols.ops[symbol as usize]);
                        describe(names, op).to_string()
                    }
                    None => "nothing more".to_owned(),
                };
                return Err(format!(
                    "what {} and {} do differs in more than how often loops run: the one has {}, the other {}",
                    name(members[0]),
                    name(members[number]),
                    told(one),
                    told(other)
                ));
            }
            for (all, count) in counts.iter_mut().zip(same.counts) {
                all.push(count);
            }
        }
        (parts, counts)
    };
    let sizes: Vec<u32> = members
        .iter()
        .map(|&(index, _)| traced[index].size)
        .collect();
    let mut counts = Vec::new();
    for all in &all_counts {
        let points: BTreeSet<(u32, u32)> = sizes.iter().copied().zip(all.iter().copied()).collect();
        counts.push(Count::fit(shape, &points)?);
    }
    let positions = length(&parts);
    let mut sets: Vec<[Option<BTreeSet<Partner>>; 3]> =
        vec![[None, None, None]; positions as usize];
    for (number, &(index, rank)) in members.iter().enumerate() {
        let Traced { size, ranks, names } = &traced[index];
        let own = |loop_number: u32| all_counts[loop_number as usize][number];
        let entries = &ranks[rank as usize].entries;
        let mut at = 0;
        let mut wrong = None;
        walk(&parts, &own, &mut |position| {
            let op = &entries[at].op;
            at += 1;
            if wrong.is_some() {
                return;
            }
            let peers = op
                .peers()
                .map(|peer| peer.map(|peer| peer.resolve(rank, *size)));
            let root = match &op.action {
                Action::Collective(collective) if collective.kind.rooted() => Some(collective.root),
                _ => None,
            };
            for (slot, peer) in [peers[0], peers[1], root].into_iter().enumerate() {
                let Some(peer) = peer else { continue };
                let ways: BTreeSet<Partner> = (shape.partners(rank, peer, *size).into_iter())
                    .filter(|way| slot < 2 || matches!(way, Partner::First(_) | Partner::Last(_)))
                    .collect();
                let set = &mut sets[position as usize][slot];
                let left = match set.take() {
                    None => ways,
                    Some(known) => known.intersection(&ways).copied().collect(),
                };
                if left.is_empty() {
                    wrong = Some(format!(
                        "{}: the partner of rank {rank} of {size} is rank {peer}, which is not where other ranks of its place have theirs",
                        describe(names, op)
                    ));
                }
                *set = Some(left);
            }
        });
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
    }
    let partners = (sets.into_iter())
        .map(|slots| {
            slots.map(|set| set.and_then(|set| set.into_iter().min_by_key(|p| p.preference())))
        })
        .collect();
    let size = sizes.iter().copied().max().unwrap_or(0);
    let ranks = (members.iter())
        .filter(|&&(index, _)| traced[index].size == size)
        .map(|&(_, rank)| rank)
        .collect();
    Ok(RoleProgram {
        parts,
        positions,
        counts,
        partners,
        size,
        ranks,
    })
}

/// Returns the number of positions in a program, those in loop bodies counted once.
fn length(parts: &[Part]) -> u32 {
    let each = parts.iter().map(|part| match part {
        Part::Leaf(_) => 1,
        Part::Loop(_, body) => length(body),
    });
    each.sum()
}

/// Calls `visit` with the position of each executed operation, in order; `count` returns the iterations of a loop by its number.
pub fn walk(parts: &[Part], count: &impl Fn(u32) -> u32, visit: &mut impl FnMut(u32)) {
    for part in parts {
        match part {
            Part::Leaf(position) => visit(*position),
            Part::Loop(number, body) => {
                for _ in 0..count(*number) {
                    walk(body, count, visit);
                }
            }
        }
    }
}

/// Converter of a loop tree into [`Part`]s. The converter numbers leaves and loops, and collects the iterations of the loops.
struct Shapes<'a> {
    forest: &'a Forest,
    positions: u32,
    counts: Vec<u32>,
}

impl Shapes<'_> {
    fn parts(&mut self, body: u32) -> Vec<Part> {
        let nodes = self.forest.children(body).to_vec();
        let part = |node| match self.forest.get(node) {
            Node::Leaf(_) => {
                self.positions += 1;
                Part::Leaf(self.positions - 1)
            }
            Node::Loop { count, body } => {
                self.counts.push(count);
                let number = self.counts.len() as u32 - 1;
                Part::Loop(number, self.parts(body))
            }
        };
        nodes.into_iter().map(part).collect()
    }
}

/// Comparison of two loop trees that may differ in the iterations of their loops.
struct Comparison<'a> {
    forest: &'a Forest,
    /// Iterations of the second tree's loops, in the order of the loops of the first.
    counts: Vec<u32>,
}

/// The symbols at which two trees differ; `None` where a body ends.
type Difference = (Option<u32>, Option<u32>);

impl Comparison<'_> {
    fn bodies(&mut self, one: u32, other: u32) -> Result<(), Difference> {
        let (ones, others) = (self.forest.children(one), self.forest.children(other));
        for at in 0..ones.len().max(others.len()) {
            let node = |nodes: &[u32]| nodes.get(at).map(|&node| self.forest.get(node));
            match (node(ones), node(others)) {
                (Some(Node::Leaf(a)), Some(Node::Leaf(b))) if a == b => {}
                (Some(Node::Loop { body: a, .. }), Some(Node::Loop { body: b, count })) => {
                    self.counts.push(count);
                    self.bodies(a, b)?;
                }
                (a, b) => return Err((self.first(a), self.first(b))),
            }
        }
        Ok(())
    }

    fn first(&self, node: Option<Node>) -> Option<u32> {
        match node? {
            Node::Leaf(symbol) => Some(symbol),
            Node::Loop { body, .. } => {
                let first = *self.forest.children(body).first()?;
                self.first(Some(self.forest.get(first)))
            }
        }
    }
}

impl Variable {
    fn at(self, shape: Shape, ranks: u32) -> Option<i64> {
        match self {
            Variable::Ranks => Some(ranks.into()),
            Variable::Logarithm => ranks.is_power_of_two().then(|| ranks.ilog2().into()),
            Variable::Side(axis) => Some(shape.sides(ranks)?[axis].into()),
        }
    }
}

impl Count {
    /// Returns the function that gives the count of all points of (ranks, count) exactly; the error says that there is none.
    fn fit(shape: Shape, points: &BTreeSet<(u32, u32)>) -> Result<Count, String> {
        let first = points.first().copied().unwrap_or_default();
        if points.iter().all(|point| point.1 == first.1) {
            return Ok(Count {
                variable: Variable::Ranks,
                slope: 0,
                base: first.1.into(),
            });
        }
        let variables = [
            Variable::Ranks,
            Variable::Logarithm,
            Variable::Side(0),
            Variable::Side(1),
            Variable::Side(2),
        ];
        for variable in variables {
            let told: Option<Vec<(i64, i64)>> = (points.iter())
                .map(|&(size, count)| Some((variable.at(shape, size)?, i64::from(count))))
                .collect();
            let Some(told) = told.filter(|told| told.len() >= 3) else {
                continue;
            };
            let (from, to) = (told[0], told[told.len() - 1]);
            if from.0 == to.0 || (to.1 - from.1) % (to.0 - from.0) != 0 {
                continue;
            }
            let slope = (to.1 - from.1) / (to.0 - from.0);
            let base = from.1 - slope * from.0;
            if told.iter().all(|&(at, count)| slope * at + base == count) {
                return Ok(Count {
                    variable,
                    slope,
                    base,
                });
            }
        }
        let told: Vec<String> = (points.iter())
            .map(|(size, count)| format!("{count} times at {size} ranks"))
            .collect();
        Err(format!(
            "a loop runs {}, which is neither the same nor a + b p, a + b log2(p) or a + b times a side of the grid",
            told.join(", ")
        ))
    }

    /// Returns the loop's iterations at `ranks` ranks; `None` if the function has no such value there.
    pub fn at(&self, shape: Shape, ranks: u32) -> Option<u32> {
        if self.slope == 0 {
            return u32::try_from(self.base).ok();
        }
        let variable = self.variable.at(shape, ranks)?;
        u32::try_from(self.slope * variable + self.base).ok()
    }
}
