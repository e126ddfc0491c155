//! Extrapolation of the program of more ranks from programs of fewer.

use std::collections::{BTreeMap, HashMap};

use nodescope_hypercall::Function;
use nodescope_loop_tree::program::{Column, Rank, Step};
use nodescope_loop_tree::{Action, Bursts, CollectiveKind, Op, Origin, PeerRef, Program, Site};
use nodescope_trace::SiteNames;

use super::ScaleError;
use super::fit::{Fit, Form};
use super::shape::{Partner, SHAPES, Shape};
use super::structure::{RoleProgram, Structure, Traced, walk};
use crate::code::describe;

type At = (Site, Function);

/// A quantity that is fitted as a function of the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quantity {
    /// The burst before a call; the first field is the call before the burst, `None` for a rank's first call.
    Burst(Option<At>, At),
    /// The duration of a call that the model does not interpret.
    Opaque(At),
    /// Bytes that a call sends, or the bytes of a collective.
    Sent(At),
    /// Bytes of a call's receive buffer, or bytes that a one-sided call gets back.
    Room(At),
}

/// Sum and number of a quantity's values.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sum: f64,
    count: u64,
}

impl Sum {
    fn add(&mut self, value: u64) {
        self.sum += value as f64;
        self.count += 1;
    }

    fn mean(self) -> f64 {
        if self.count == 0 {
            0.0
        } else {
            self.sum / self.count as f64
        }
    }
}

/// Programs of several sizes with their common structure and fits, from which programs of other sizes are made.
#[derive(Debug)]
pub struct Extrapolation {
    traced: Vec<Traced>,
    structure: Structure,
    /// Sum and number of the values of each quantity, by number of ranks.
    means: BTreeMap<Quantity, BTreeMap<u32, Sum>>,
    /// Fitted function of each quantity.
    pub fits: BTreeMap<Quantity, Fit>,
    communicators: Vec<Option<u32>>,
    /// Origin of the largest traced program.
    origin: Origin,
    notes: Vec<String>,
}

/// Calls `visit` with each fitted quantity of each call of a rank, and its value.
fn quantities(traced: &Traced, rank: usize, mut visit: impl FnMut(Quantity, u64)) {
    let mut before = None;
    for entry in &traced.ranks[rank].entries {
        let at = (entry.op.site, entry.op.function);
        visit(Quantity::Burst(before, at), entry.burst.time);
        if let Some(duration) = entry.opaque {
            visit(Quantity::Opaque(at), duration);
        }
        match &entry.op.action {
            Action::Send { bytes, .. } => visit(Quantity::Sent(at), *bytes),
            Action::Receive { room, .. } => visit(Quantity::Room(at), *room),
            Action::SendReceive { send, receive } => {
                if let Some((.., bytes)) = send {
                    visit(Quantity::Sent(at), *bytes);
                }
                if let Some((.., room)) = receive {
                    visit(Quantity::Room(at), *room);
                }
            }
            Action::OneSided { out, back, .. } => {
                visit(Quantity::Sent(at), *out);
                visit(Quantity::Room(at), *back);
            }
            Action::Collective(collective) => visit(Quantity::Sent(at), collective.bytes),
            _ => {}
        }
        before = Some(at);
    }
}

impl Extrapolation {
    /// Finds the structure and the fits of programs of ascending sizes. `forms` has fits whose forms each quantity takes over; only the
    /// coefficients are fitted anew. Without a form, a quantity takes the best one that is not negative at any of `targets`.
    ///
    /// # Errors
    ///
    /// Fails if the programs are not regular.
    pub fn new(
        programs: &[&Program],
        forms: Option<&BTreeMap<Quantity, Fit>>,
        targets: &[u32],
    ) -> Result<Extrapolation, ScaleError> {
        let traced: Vec<Traced> = (programs.iter())
            .map(|program| Traced {
                size: program.ranks.len() as u32,
                ranks: (0..program.ranks.len() as u32)
                    .map(|rank| program.unfold(rank))
                    .collect(),
                names: program.origin.names.clone(),
            })
            .collect();
        let communicators = communicators(programs, &traced)?;
        for one in &traced {
            lists(one)?;
        }
        let mut refused: Vec<(Shape, String)> = Vec::new();
        let mut structure = None;
        for shape in SHAPES {
            match Structure::new(shape, &traced) {
                Ok(found) => {
                    structure = Some(found);
                    break;
                }
                Err(reason) => refused.push((shape, reason)),
            }
        }
        let structure = structure.ok_or(ScaleError::Irregular { refused })?;
        let mut means: BTreeMap<Quantity, BTreeMap<u32, Sum>> = BTreeMap::new();
        for one in &traced {
            for rank in 0..one.ranks.len() {
                quantities(one, rank, |quantity, value| {
                    let sizes = means.entry(quantity).or_default();
                    sizes.entry(one.size).or_default().add(value);
                });
            }
        }
        let also: Vec<f64> = targets.iter().map(|&target| f64::from(target)).collect();
        let fits = (means.iter())
            .map(|(quantity, sizes)| {
                let points: Vec<_> = sizes
                    .iter()
                    .map(|(&p, sum)| (f64::from(p), sum.mean()))
                    .collect();
                let kept = forms
                    .and_then(|forms| forms.get(quantity))
                    .map(|fit| fit.form);
                let kept = kept.and_then(|form: Form| Fit::with(form, &points));
                (*quantity, kept.unwrap_or_else(|| Fit::new(&points, &also)))
            })
            .collect();
        Ok(Extrapolation {
            traced,
            structure,
            means,
            fits,
            communicators,
            origin: (programs.last())
                .map_or_else(Origin::default, |program| program.origin.clone()),
            notes: programs
                .last()
                .map_or(Vec::new(), |program| program.notes.clone()),
        })
    }

    /// Returns the names of the call sites of the largest traced program.
    pub fn names(&self) -> &SiteNames {
        &self.origin.names
    }

    /// Returns the arrangement of the ranks.
    pub fn shape(&self) -> Shape {
        self.structure.shape
    }

    /// Returns each burst and uninterpreted call with its traced time and its fit. The time is in picoseconds, the sum of all executions
    /// on all ranks at the largest traced size.
    pub fn times(&self) -> Vec<(Quantity, f64, Fit)> {
        let last = self.traced.last().map_or(0, |one| one.size);
        let all = self.means.iter();
        all.filter(|(quantity, _)| matches!(quantity, Quantity::Burst(..) | Quantity::Opaque(_)))
            .filter_map(|(quantity, sizes)| {
                Some((*quantity, sizes.get(&last)?.sum, self.fits[quantity]))
            })
            .collect()
    }

    /// Returns each traced number of ranks with the time of all ranks in bursts and uninterpreted calls, picoseconds.
    pub fn work(&self) -> Vec<(f64, f64)> {
        let sizes = self.traced.iter().map(|one| one.size);
        sizes
            .map(|size| {
                let bursts = self
                    .means
                    .iter()
                    .filter(|(q, _)| matches!(q, Quantity::Burst(..) | Quantity::Opaque(_)));
                let sum = bursts
                    .filter_map(|(_, sizes)| sizes.get(&size))
                    .map(|sum| sum.sum);
                (f64::from(size), sum.sum())
            })
            .collect()
    }

    /// Returns the ratio of a quantity's fitted value at `ranks` to its traced mean at `size`; 1 if the mean is 0 or unknown.
    fn factor(&self, quantity: Quantity, size: u32, ranks: u32) -> f64 {
        let mean = self.means.get(&quantity).and_then(|sizes| sizes.get(&size));
        match (mean.map(|sum| sum.mean()), self.fits.get(&quantity)) {
            (Some(mean), Some(fit)) if mean > 0.0 => fit.at(f64::from(ranks)).max(0.0) / mean,
            _ => 1.0,
        }
    }

    /// Returns the program of `ranks` ranks.
    ///
    /// # Errors
    ///
    /// Fails for a number of ranks that the shape cannot have, with roles that no traced size has, or if a partner or a loop's iterations
    /// do not exist at that number.
    pub fn program(&self, ranks: u32) -> Result<Program, ScaleError> {
        let shape = self.structure.shape;
        if shape.sides(ranks).is_none() {
            return Err(ScaleError::Arrangement { ranks, shape });
        }
        let mut made = Made {
            program: Program {
                communicators: vec![Vec::new(); 1 + self.communicators.len()],
                communicator_lists: vec![self.communicators.clone()],
                origin: self.origin_of(ranks),
                notes: self.notes.clone(),
                ..Program::default()
            },
            ..Made::default()
        };
        let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for rank in 0..ranks {
            let role = shape.role(rank, ranks);
            let role_program = self.structure.roles.get(&role);
            let role_program =
                role_program.ok_or(ScaleError::UnknownRole { rank, ranks, shape })?;
            let number = seen.entry(role.clone()).or_default();
            let source = role_program.ranks[*number % role_program.ranks.len()];
            *number += 1;
            let counts: Option<Vec<u32>> = role_program
                .counts
                .iter()
                .map(|count| count.at(shape, ranks))
                .collect();
            let counts = counts.ok_or(ScaleError::Arrangement { ranks, shape })?;
            let peers = peers(shape, role_program, rank, ranks).ok_or(ScaleError::UnknownRole {
                rank,
                ranks,
                shape,
            })?;
            let key = (role, source, distinct(role_program, &peers));
            let tree = match made.trees.get(&key) {
                Some(&tree) => tree,
                None => {
                    let tree = self.tree(&mut made, role_program, source, &counts, &peers, ranks);
                    made.trees.insert(key, tree);
                    tree
                }
            };
            let bursts = self.bursts(&mut made, role_program.size, source, ranks);
            made.program.ranks.push(Rank {
                tree,
                communicators: 0,
                bursts,
            });
        }
        Ok(made.program)
    }

    /// Returns the origin of a program of `ranks` ranks: blocks of as many ranks a node as the largest traced program had.
    fn origin_of(&self, ranks: u32) -> Origin {
        let Some(per_node) = self.origin.ranks_per_node() else {
            return self.origin.clone();
        };
        let nodes = ranks.div_ceil(per_node) as usize;
        let cores = self.origin.cores.iter().copied().min();
        Origin {
            nodes: (0..ranks).map(|rank| rank / per_node).collect(),
            cores: cores.map_or(Vec::new(), |cores| vec![cores; nodes]),
            threads: self.origin.threads,
            windows: Vec::new(),
            converted: None,
            names: self.origin.names.clone(),
        }
    }

    fn source(&self, size: u32) -> Option<&Traced> {
        self.traced.iter().find(|one| one.size == size)
    }

    fn tree(
        &self,
        made: &mut Made,
        role_program: &RoleProgram,
        source: u32,
        counts: &[u32],
        peers: &[[Option<PeerRef>; 3]],
        ranks: u32,
    ) -> u32 {
        let Some(traced) = self.source(role_program.size) else {
            return made.program.forest.body(&[]);
        };
        let entries = &traced.ranks[source as usize].entries;
        // Indices of the traced entries at each position, in order.
        let mut at_position: Vec<Vec<u32>> = vec![Vec::new(); role_program.positions as usize];
        let mut next = 0;
        let traced_counts: Vec<u32> = (role_program.counts.iter())
            .map(|count| {
                count
                    .at(self.structure.shape, role_program.size)
                    .unwrap_or(0)
            })
            .collect();
        walk(
            &role_program.parts,
            &|number| traced_counts[number as usize],
            &mut |position| {
                at_position[position as usize].push(next);
                next += 1;
            },
        );
        let mut done = vec![0usize; role_program.positions as usize];
        let mut symbols = Vec::new();
        let mut before = None;
        walk(
            &role_program.parts,
            &|number| counts[number as usize],
            &mut |position| {
                let known = &at_position[position as usize];
                let Some(&entry) = known.get(done[position as usize] % known.len().max(1)) else {
                    return;
                };
                done[position as usize] += 1;
                let op = &entries[entry as usize].op;
                let at = (op.site, op.function);
                let op = self.op(op, peers[position as usize], role_program.size, ranks);
                let step = Step {
                    slot: made.slot(Quantity::Burst(before, at)),
                    op: made.op(op),
                };
                symbols.push(made.step(step));
                before = Some(at);
            },
        );
        made.program.forest.fold(symbols)
    }

    /// Returns a traced operation with the given peers, and with its sizes scaled from `size` to `ranks`.
    fn op(&self, op: &Op, peers: [Option<PeerRef>; 3], size: u32, ranks: u32) -> Op {
        let at = (op.site, op.function);
        let scaled = |quantity: Quantity, value: u64| {
            (value as f64 * self.factor(quantity, size, ranks)).round() as u64
        };
        // Twice the scaled buffer size and 64 bytes more: a receive must not refuse a message that rounding made larger.
        let room = |value: u64| {
            scaled(Quantity::Room(at), value)
                .saturating_mul(2)
                .saturating_add(64)
        };
        let mut op = op.clone();
        match &mut op.action {
            Action::Send { to, bytes, .. } => {
                *to = peers[0].unwrap_or(*to);
                *bytes = scaled(Quantity::Sent(at), *bytes);
            }
            Action::Receive {
                from, room: own, ..
            } => {
                *from = replace(*from, peers[0]);
                *own = room(*own);
            }
            Action::OneSided { to, out, back, .. } => {
                *to = peers[0].unwrap_or(*to);
                *out = scaled(Quantity::Sent(at), *out);
                *back = scaled(Quantity::Room(at), *back);
            }
            Action::Probe { from, .. } => *from = replace(*from, peers[0]),
            Action::SendReceive { send, receive } => {
                if let Some((to, _, bytes)) = send {
                    *to = peers[0].unwrap_or(*to);
                    *bytes = scaled(Quantity::Sent(at), *bytes);
                }
                if let Some((from, _, own)) = receive {
                    *from = replace(*from, peers[1]);
                    *own = room(*own);
                }
            }
            Action::Collective(collective) => {
                let all = scaled(Quantity::Sent(at), collective.bytes);
                if let Some(PeerRef::Absolute(root)) = peers[2] {
                    collective.root = root;
                }
                let mut factor = self.factor(Quantity::Sent(at), size, ranks);
                // In these collectives the fitted size is that of the whole vector; each entry of a list is the share of one rank.
                if matches!(
                    collective.kind,
                    CollectiveKind::Alltoallv
                        | CollectiveKind::ReduceScatter
                        | CollectiveKind::ReduceScatterBlock
                ) {
                    factor *= f64::from(size) / f64::from(ranks);
                }
                for list in [&mut collective.send_to, &mut collective.receive_from] {
                    if let Some(&each) = list.first() {
                        let each = (each as f64 * factor).round() as u64;
                        *list = vec![each; ranks as usize].into();
                    }
                }
                collective.bytes = all;
            }
            _ => {}
        }
        op
    }

    fn bursts(&self, made: &mut Made, size: u32, source: u32, ranks: u32) -> u32 {
        if let Some(&known) = made.bursts.get(&(size, source)) {
            return known;
        }
        let mut values: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        if let Some(traced) = self.source(size) {
            let mut before = None;
            for entry in &traced.ranks[source as usize].entries {
                let at = (entry.op.site, entry.op.function);
                let mut add = |quantity: Quantity, slot: u32, time: u64, instructions: u64| {
                    let factor = self.factor(quantity, size, ranks);
                    let scale = |value: u64| (value as f64 * factor).round() as u64;
                    let value = (scale(time), scale(instructions));
                    values.entry(slot).or_default().push(value);
                };
                let quantity = Quantity::Burst(before, at);
                let slot = made.slot(quantity);
                add(quantity, slot, entry.burst.time, entry.burst.instructions);
                if let Some(duration) = entry.opaque {
                    let slot = made.slot(Quantity::Opaque(at));
                    made.program.opaque_slots.insert(at, slot);
                    add(Quantity::Opaque(at), slot, duration, 0);
                }
                before = Some(at);
            }
        }
        let mut bursts = Bursts::default();
        let counted = values.values().flatten().any(|value| value.1 != 0);
        for (slot, list) in values {
            bursts.columns.push(Column {
                slot,
                start: bursts.times.len() as u32,
                length: list.len() as u32,
            });
            bursts.times.extend(list.iter().map(|value| value.0));
            if counted {
                bursts.instructions.extend(list.iter().map(|value| value.1));
            }
        }
        made.program.bursts.push(bursts);
        let number = made.program.bursts.len() as u32 - 1;
        made.bursts.insert((size, source), number);
        number
    }
}

/// The key of a tree: the role, the number of the traced rank, and the distinct partners.
type TreeKey = (Vec<u8>, u32, Vec<PeerRef>);

/// A program under construction, with the numbers of the parts that it already has.
#[derive(Default)]
struct Made {
    program: Program,
    ops: HashMap<Op, u32>,
    steps: HashMap<Step, u32>,
    slots: HashMap<Quantity, u32>,
    trees: HashMap<TreeKey, u32>,
    bursts: HashMap<(u32, u32), u32>,
}

impl Made {
    fn slot(&mut self, quantity: Quantity) -> u32 {
        *self.slots.entry(quantity).or_insert_with(|| {
            self.program.slots += 1;
            self.program.slots - 1
        })
    }

    fn op(&mut self, op: Op) -> u32 {
        if let Some(&number) = self.ops.get(&op) {
            return number;
        }
        self.program.ops.push(op.clone());
        let number = self.program.ops.len() as u32 - 1;
        self.ops.insert(op, number);
        number
    }

    fn step(&mut self, step: Step) -> u32 {
        *self.steps.entry(step).or_insert_with(|| {
            self.program.steps.push(step);
            self.program.steps.len() as u32 - 1
        })
    }
}

fn replace(
    from: nodescope_loop_tree::Source,
    peer: Option<PeerRef>,
) -> nodescope_loop_tree::Source {
    use nodescope_loop_tree::Source;
    match (from, peer) {
        (Source::Peer(_), Some(peer)) => Source::Peer(peer),
        (Source::Matched(_), Some(peer)) => Source::Matched(peer),
        (from, _) => from,
    }
}

/// Returns the partners of a rank by position. Offsets and bits become relative peers where these let ranks share trees.
/// `None` if a partner does not exist among the ranks.
fn peers(
    shape: Shape,
    role_program: &RoleProgram,
    rank: u32,
    ranks: u32,
) -> Option<Vec<[Option<PeerRef>; 3]>> {
    let one = |partner: Option<Partner>| match partner {
        None => Some(None),
        Some(partner) => {
            let peer = PeerRef::Absolute(shape.resolve(partner, rank, ranks)?);
            Some(Some(match partner {
                Partner::Offset(_) | Partner::Bits(_) => peer.relative(rank, ranks),
                Partner::First(_) | Partner::Last(_) => peer,
            }))
        }
    };
    let all = role_program.partners.iter().map(|slots| {
        let [a, b, c] = slots.map(one);
        Some([a?, b?, c?])
    });
    all.collect()
}

/// Returns the peer of each distinct partner of the program, once.
fn distinct(role_program: &RoleProgram, peers: &[[Option<PeerRef>; 3]]) -> Vec<PeerRef> {
    let pairs = role_program
        .partners
        .iter()
        .flatten()
        .zip(peers.iter().flatten());
    let by_partner: BTreeMap<Partner, PeerRef> = pairs
        .filter_map(|(partner, peer)| Some(((*partner)?, (*peer)?)))
        .collect();
    by_partner.into_values().collect()
}

/// Returns the longest list of communicators of a traced rank; `None` in it is a communicator of one rank.
/// Fails if a communicator has some of the ranks only.
fn communicators(programs: &[&Program], traced: &[Traced]) -> Result<Vec<Option<u32>>, ScaleError> {
    let mut longest: Vec<Option<u32>> = Vec::new();
    for (program, traced) in programs.iter().zip(traced) {
        for (sequence, rank) in traced.ranks.iter().zip(0..) {
            let mut next = 0;
            let mut list = Vec::new();
            for number in &sequence.communicators {
                let members = number.map(|number| &program.communicators[number as usize]);
                if let Some(members) = members
                    && !members.is_empty()
                {
                    return Err(ScaleError::Communicator {
                        rank,
                        ranks: traced.size,
                        members: members.len(),
                    });
                }
                list.push(number.map(|_| {
                    next += 1;
                    next - 1
                }));
            }
            if list.len() > longest.len() {
                longest = list;
            }
        }
    }
    Ok(longest)
}

/// Fails if a collective's list of bytes by rank has entries that differ.
fn lists(traced: &Traced) -> Result<(), ScaleError> {
    for (sequence, rank) in traced.ranks.iter().zip(0..) {
        for entry in &sequence.entries {
            let Action::Collective(collective) = &entry.op.action else {
                continue;
            };
            let lists = [&collective.send_to, &collective.receive_from];
            if lists
                .iter()
                .any(|list| list.windows(2).any(|pair| pair[0] != pair[1]))
            {
                return Err(ScaleError::Lists {
                    rank,
                    ranks: traced.size,
                    at: describe(&traced.names, &entry.op).to_string(),
                });
            }
        }
    }
    Ok(())
}
