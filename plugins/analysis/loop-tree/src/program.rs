//! A program as loop trees that equal ranks share.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use nodescope_hypercall::Function;

use crate::fold::{Forest, Node};
use crate::op::{Action, Op, PeerRef, Site};
use crate::origin::Origin;
use crate::sequence::{Burst, Entry, Sequence, Sequences};

/// A leaf: a burst of computation, then an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// Number of the slot whose values the burst takes: bursts between the same two calls, by their sites and functions, have one slot.
    pub slot: u32,
    /// Number of the operation, an index into [`Program::ops`].
    pub op: u32,
}

/// Range of [`Bursts::times`] that contains one slot's values on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Number of the slot.
    pub slot: u32,
    /// Index of the slot's first value in [`Bursts::times`].
    pub start: u32,
    /// Number of the slot's values. They are used in order, and from the first again after the last.
    pub length: u32,
}

/// The bursts of a rank: their values in the order of the trace, by slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bursts {
    /// Columns of all slots that the rank uses, by ascending slot number.
    pub columns: Vec<Column>,
    /// Times of the bursts, and durations of uninterpreted operations, in picoseconds.
    pub times: Vec<u64>,
    /// Instructions of the bursts, parallel to the times; empty if unknown.
    pub instructions: Vec<u64>,
}

/// Parts of a program that belong to one rank, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Number of the outermost body of the rank's tree in [`Program::forest`].
    pub tree: u32,
    /// Number of the rank's list in [`Program::communicator_lists`].
    pub communicators: u32,
    /// Number of the rank's bursts in [`Program::bursts`].
    pub bursts: u32,
}

/// A program: a tree for each rank, shared between ranks that do the same.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Different operations of all ranks, each once.
    pub ops: Vec<Op>,
    /// Different steps of all ranks, each once; their indices are the symbols of the trees.
    pub steps: Vec<Step>,
    /// Loop trees of the ranks.
    pub forest: Forest,
    /// Tree, communicators and bursts of each rank, by world rank.
    pub ranks: Vec<Rank>,
    /// Members of communicators, as world ranks in the communicator's order; entry 0 is the world. An empty list means all ranks of the
    /// world.
    pub communicators: Vec<Vec<u32>>,
    /// Numbers of the communicators that the traced program did not make: see [`Sequences::copies`].
    pub copies: BTreeSet<u32>,
    /// Lists of communicators: the index in [`Program::communicators`] for each communicator number of a rank; `None` is a communicator of
    /// only this rank.
    pub communicator_lists: Vec<Vec<Option<u32>>>,
    /// Bursts of the ranks; several ranks may share an entry.
    pub bursts: Vec<Bursts>,
    /// Number of slots, of bursts and of the durations of uninterpreted operations.
    pub slots: u32,
    /// Slots for the durations of uninterpreted operations, by call site and function.
    pub opaque_slots: BTreeMap<(Site, Function), u32>,
    /// Place and circumstances of the traced run.
    pub origin: Origin,
    /// Notes on results that are less exact than possible.
    pub notes: Vec<String>,
}

/// Sizes of a program as loop trees, and the number of operations that the trees represent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramSize {
    /// Number of operations of all ranks, with every iteration of a loop counted.
    pub operations: u64,
    /// Number of different operations.
    pub different: u64,
    /// Number of different trees.
    pub trees: u64,
    /// Entries of all trees' bodies.
    pub entries: u64,
    /// Deepest nesting of loops.
    pub depth: u64,
    /// Number of stored burst values.
    pub bursts: u64,
    /// Bytes of the trees and the different operations in memory.
    pub structure_bytes: u64,
    /// Bytes that the bursts' times and instructions would take as variable-length integers.
    pub burst_bytes: u64,
}

/// Number of peers of a rank that are remembered, so that sets of all ranks are not searched for them again.
const RECENT: usize = 16;

/// Returns the call sites whose peers have fewer different distances from the caller than different ranks.
fn relative_sites(sequences: &Sequences) -> BTreeSet<(Site, Function)> {
    let world = sequences.ranks.len() as u32;
    let mut peers: BTreeMap<(Site, Function), [BTreeSet<u32>; 2]> = BTreeMap::new();
    // Iterations of a loop have the same peers. Those of the last few operations are already in the sets.
    let mut recent: VecDeque<((Site, Function), PeerRef)> = VecDeque::with_capacity(RECENT);
    for (rank, sequence) in sequences.ranks.iter().enumerate() {
        recent.clear();
        for entry in &sequence.entries {
            for peer in entry.op.peers().into_iter().flatten() {
                let known = ((entry.op.site, entry.op.function), peer);
                if recent.contains(&known) {
                    continue;
                }
                if recent.len() == RECENT {
                    recent.pop_front();
                }
                recent.push_back(known);
                let sets = peers.entry((entry.op.site, entry.op.function)).or_default();
                if let PeerRef::Relative(distance) = peer.relative(rank as u32, world) {
                    sets[0].insert(distance);
                }
                sets[1].insert(peer.resolve(rank as u32, world));
            }
        }
    }
    peers
        .into_iter()
        .filter(|(_, [relative, absolute])| relative.len() < absolute.len())
        .map(|(site, _)| site)
        .collect()
}

impl Program {
    /// Folds sequences into the loop trees of a program.
    pub fn new(sequences: &Sequences) -> Program {
        let relative = relative_sites(sequences);
        let world = sequences.ranks.len() as u32;
        let mut program = Program {
            communicators: sequences.communicators.clone(),
            copies: sequences.copies.clone(),
            origin: sequences.origin.clone(),
            notes: sequences.notes.clone(),
            ..Program::default()
        };
        let mut interner = Interner::default();
        let mut symbols: Vec<u32> = Vec::new();
        let mut folded: Option<u32> = None;
        for (rank, sequence) in sequences.ranks.iter().enumerate() {
            let rank = rank as u32;
            let mut values: Vec<(u32, Burst)> = Vec::with_capacity(sequence.entries.len());
            // Ranks mostly do what the rank before did, so its symbols are tried before all others.
            let guesses =
                std::mem::replace(&mut symbols, Vec::with_capacity(sequence.entries.len()));
            let mut before = None;
            for (at, entry) in sequence.entries.iter().enumerate() {
                let call_site = (entry.op.site, entry.op.function);
                let op = entry.op.map_peers(|peer| {
                    if relative.contains(&call_site) {
                        peer.relative(rank, world)
                    } else {
                        peer.absolute(rank, world)
                    }
                });
                let guess = guesses.get(at).copied();
                let guess = guess.filter(|&guess| {
                    let Step { slot, op: guessed } = program.steps[guess as usize];
                    interner.slot_keys.get(slot as usize) == Some(&Some((before, call_site)))
                        && program.ops[guessed as usize] == op
                });
                let symbol = guess.unwrap_or_else(|| {
                    let op = interner.op(&mut program, op);
                    let slot = interner.slot(&mut program, before, call_site);
                    interner.step(&mut program, Step { slot, op })
                });
                values.push((program.steps[symbol as usize].slot, entry.burst));
                if let Some(duration) = entry.opaque {
                    let slot = interner.opaque_slot(&mut program, call_site);
                    let burst = Burst {
                        time: duration,
                        instructions: 0,
                    };
                    values.push((slot, burst));
                }
                symbols.push(symbol);
                before = Some(call_site);
            }
            let same = folded.filter(|_| symbols == guesses);
            let tree = same.unwrap_or_else(|| program.forest.fold(symbols.iter().copied()));
            folded = Some(tree);
            let bursts = program.bursts.len() as u32;
            program.bursts.push(columns(values));
            let communicators = interner.list(&mut program, sequence);
            program.ranks.push(Rank {
                tree,
                communicators,
                bursts,
            });
        }
        program.opaque_slots = interner.opaque;
        program
    }

    /// Returns the slot for the durations of an uninterpreted operation; `None` if the program has no such slot.
    pub fn opaque_slot(&self, op: &Op) -> Option<u32> {
        self.opaque_slots.get(&(op.site, op.function)).copied()
    }

    /// Returns the sequence of a rank, as it was before folding.
    pub fn unfold(&self, rank: u32) -> Sequence {
        let world = self.ranks.len() as u32;
        let Rank {
            tree,
            communicators,
            bursts,
        } = self.ranks[rank as usize];
        let bursts = &self.bursts[bursts as usize];
        let mut cursors: HashMap<u32, u32> = HashMap::new();
        let mut next = |slot: u32| {
            let Ok(column) = bursts.columns.binary_search_by_key(&slot, |c| c.slot) else {
                return Burst::default();
            };
            let column = bursts.columns[column];
            let cursor = cursors.entry(slot).or_insert(0);
            let at = (column.start + *cursor % column.length.max(1)) as usize;
            *cursor += 1;
            Burst {
                time: bursts.times.get(at).copied().unwrap_or(0),
                instructions: bursts.instructions.get(at).copied().unwrap_or(0),
            }
        };
        let mut entries = Vec::new();
        self.forest.unfold(tree, &mut |symbol| {
            let Step { slot, op } = self.steps[symbol as usize];
            let op = &self.ops[op as usize];
            let burst = next(slot);
            let opaque = match op.action {
                Action::Opaque => self.opaque_slot(op).map(|slot| next(slot).time),
                _ => None,
            };
            entries.push(Entry {
                burst,
                op: Arc::new(op.map_peers(|peer| peer.absolute(rank, world))),
                opaque,
            });
        });
        Sequence {
            entries,
            communicators: self.communicator_lists[communicators as usize].clone(),
        }
    }

    /// Returns the size of the loop trees.
    pub fn size(&self) -> ProgramSize {
        let trees: BTreeSet<u32> = self.ranks.iter().map(|rank| rank.tree).collect();
        let lists: u64 = (self.ops.iter())
            .map(|op| match &op.action {
                Action::Wait { requests, among } => 4 * (requests.len() + among.len()) as u64,
                Action::Free { requests } | Action::Cancel { requests } => {
                    4 * requests.len() as u64
                }
                Action::Collective(collective) => {
                    8 * (collective.send_to.len() + collective.receive_from.len()) as u64
                }
                _ => 0,
            })
            .sum();
        let entries = self.forest.entries();
        let varint = |value: &u64| u64::from((64 - value.leading_zeros()).div_ceil(7).max(1));
        let values = |bursts: &Bursts| {
            let all = bursts.times.iter().chain(&bursts.instructions);
            all.map(varint).sum::<u64>()
        };
        ProgramSize {
            operations: self.operations(),
            different: self.ops.len() as u64,
            trees: trees.len() as u64,
            entries,
            depth: (trees.iter().map(|&tree| self.forest.depth(tree) as u64))
                .max()
                .unwrap_or(0),
            bursts: self.bursts.iter().map(|b| b.times.len() as u64).sum(),
            structure_bytes: entries * 4
                + (self.ops.len() * size_of::<Op>() + self.steps.len() * size_of::<Step>()) as u64
                + (self.ranks.len() * size_of::<Rank>()) as u64
                + lists,
            burst_bytes: self.bursts.iter().map(values).sum(),
        }
    }

    /// Returns the number of operations of all ranks, unfolded.
    pub fn operations(&self) -> u64 {
        let mut lengths = HashMap::new();
        self.ranks
            .iter()
            .map(|rank| {
                *lengths
                    .entry(rank.tree)
                    .or_insert_with(|| self.forest.length(rank.tree))
            })
            .sum()
    }

    /// Returns the tree of a rank as text, one line for each leaf and for each loop.
    pub fn outline(&self, rank: u32) -> String {
        let mut text = String::new();
        self.outline_body(self.ranks[rank as usize].tree, 0, &mut text);
        text
    }

    fn outline_body(&self, body: u32, indent: usize, text: &mut String) {
        for &node in self.forest.children(body) {
            text.push_str(&"  ".repeat(indent));
            match self.forest.get(node) {
                Node::Leaf(symbol) => {
                    let op = &self.ops[self.steps[symbol as usize].op as usize];
                    text.push_str(&format!("{} at {}\n", op.function, op.site));
                }
                Node::Loop { count, body } => {
                    text.push_str(&format!("{count} times\n"));
                    self.outline_body(body, indent + 1, text);
                }
            }
        }
    }
}

/// Returns the columns of bursts, each with its slot. Bursts of a slot keep their order.
fn columns(mut values: Vec<(u32, Burst)>) -> Bursts {
    let mut bursts = Bursts {
        times: Vec::with_capacity(values.len()),
        ..Bursts::default()
    };
    values.sort_by_key(|&(slot, _)| slot);
    let counted = values.iter().any(|(_, burst)| burst.instructions != 0);
    for column in values.chunk_by(|(one, _), (other, _)| one == other) {
        bursts.columns.push(Column {
            slot: column[0].0,
            start: bursts.times.len() as u32,
            length: column.len() as u32,
        });
        bursts
            .times
            .extend(column.iter().map(|(_, burst)| burst.time));
        if counted {
            let counts = column.iter().map(|(_, burst)| burst.instructions);
            bursts.instructions.extend(counts);
        }
    }
    bursts
}

type CallSite = (Site, Function);

/// The call sites before and after a burst.
type SlotKey = (Option<CallSite>, CallSite);

/// Numbers of the parts that are stored only once.
#[derive(Default)]
struct Interner {
    ops: HashMap<Op, u32>,
    steps: HashMap<Step, u32>,
    slots: HashMap<SlotKey, u32>,
    /// Keys of `slots` by number; `None` for opaque slots.
    slot_keys: Vec<Option<SlotKey>>,
    opaque: BTreeMap<CallSite, u32>,
    lists: HashMap<Vec<Option<u32>>, u32>,
}

impl Interner {
    fn op(&mut self, program: &mut Program, op: Op) -> u32 {
        if let Some(&number) = self.ops.get(&op) {
            return number;
        }
        let number = program.ops.len() as u32;
        program.ops.push(op.clone());
        self.ops.insert(op, number);
        number
    }

    fn slot(
        &mut self,
        program: &mut Program,
        before: Option<CallSite>,
        call_site: CallSite,
    ) -> u32 {
        let key = (before, call_site);
        *self.slots.entry(key).or_insert_with(|| {
            program.slots += 1;
            let slot = program.slots - 1;
            self.slot_keys.resize(slot as usize, None);
            self.slot_keys.push(Some(key));
            slot
        })
    }

    fn opaque_slot(&mut self, program: &mut Program, call_site: CallSite) -> u32 {
        *self.opaque.entry(call_site).or_insert_with(|| {
            program.slots += 1;
            program.slots - 1
        })
    }

    fn step(&mut self, program: &mut Program, step: Step) -> u32 {
        *self.steps.entry(step).or_insert_with(|| {
            program.steps.push(step);
            (program.steps.len() - 1) as u32
        })
    }

    fn list(&mut self, program: &mut Program, sequence: &Sequence) -> u32 {
        let list = &sequence.communicators;
        *self.lists.entry(list.clone()).or_insert_with(|| {
            program.communicator_lists.push(list.clone());
            (program.communicator_lists.len() - 1) as u32
        })
    }
}
