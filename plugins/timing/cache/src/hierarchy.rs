//! The tree of caches and the protocol that keeps them coherent.
//!
//! Every cache includes the caches inside it, so a line that a cache does not hold is nowhere inside it. What a cache may
//! do with a line is bounded by what the cache outside it may do, and a line that is modified anywhere is marked
//! modified at every level outwards; an eviction therefore never has to look outwards. The outermost caches are peers
//! on the interconnect and speak MESIF.

use std::collections::BTreeMap;
use std::mem;

use nodescope_plugin_api::{Account, Ledger, MemoryTimingModel, Side, VcpuPlace};
use serde::{Deserialize, Serialize};

use crate::config::{CacheConfig, LevelConfig, Sharing};
use crate::events::Events;
use crate::flat::FlatMemory;
use crate::geometry::{Geometry, Spot};
use crate::loans::Loans;
use crate::model::FirstLevel;
use crate::route::Route;
use crate::tags::{HOLDERS, State, Tags};
use crate::word::Word;

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CacheKind {
    /// Data, at the first level.
    Data,
    /// Instructions, at the first level.
    Instruction,
    /// Both.
    Unified,
}

/// Contents of one cache, for inspection and tests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheContents {
    /// Level, counted from 1.
    pub level: u8,
    /// What it holds.
    pub kind: CacheKind,
    /// Its socket.
    pub socket: u16,
    /// Its core, unless the socket shares it.
    pub core: Option<u16>,
    /// Position of the cache outside it in the list of all, if there is one.
    pub outer: Option<usize>,
    /// Sets that hold lines: set number, then line addresses and states, most recently used first.
    pub sets: Vec<(u64, Vec<(u64, State)>)>,
}

/// One cache: what the walk through the levels needs, in one line of the host.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Node {
    pub(crate) geometry: Geometry,
    /// The cache outside it, or [`NONE`].
    pub(crate) outer: u32,
    /// What stands for it among the holders in the outer one.
    pub(crate) bit: u16,
    pub(crate) socket: u16,
    /// Its core, or [`SHARED`].
    pub(crate) core: u32,
    pub(crate) level: u8,
    pub(crate) kind: CacheKind,
    /// Several vCPUs use it directly.
    pub(crate) threads: bool,
    /// Every cache inside has a holder bit of its own.
    pub(crate) exact: bool,
}

const _: () = assert!(size_of::<Node>() == 64);

/// No cache.
pub(crate) const NONE: u32 = u32::MAX;

/// No core: the socket shares it.
pub(crate) const SHARED: u32 = u32::MAX;

impl Node {
    pub(crate) fn side(&self) -> Side {
        if self.kind == CacheKind::Instruction {
            Side::Instruction
        } else {
            Side::Data
        }
    }

    pub(crate) fn outermost(&self) -> bool {
        self.outer == NONE
    }

    /// Holder bits that may stand for a cache other than the one inside whose bit is `bit`.
    #[inline]
    pub(crate) fn without(&self, holders: u64, bit: u64) -> u64 {
        if self.exact { holders & !bit } else { holders }
    }
}

/// All caches by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes(Vec<Node>);

impl Nodes {
    /// A cache. Its number comes from the constructor of [`Hierarchy`] and is not [`NONE`].
    #[inline(always)]
    pub(crate) fn get(&self, node: u32) -> &Node {
        debug_assert!((node as usize) < self.0.len());
        // SAFETY: the constructor counts what it adds; later none is added or removed, and callers leave NONE out.
        unsafe { self.0.get_unchecked(node as usize) }
    }
}

/// Who is next to a cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Neighbours {
    /// Caches inside.
    pub(crate) inner: Vec<u32>,
    /// vCPUs that use it directly; only at the first level.
    pub(crate) vcpus: Vec<u16>,
}

/// First-level caches of one vCPU.
#[derive(Clone, Debug)]
pub(crate) struct Entrance {
    /// For data and for instructions; the latter may be [`NONE`].
    pub(crate) first: [u32; 2],
    /// The ways from them, where they are short.
    pub(crate) routes: [Option<Route>; 2],
    pub(crate) socket: u16,
    pub(crate) core: u32,
}

/// All caches of a node, their counters, and the request in progress.
pub(crate) struct Hierarchy<W> {
    pub(crate) nodes: Nodes,
    /// By node.
    pub(crate) neighbours: Vec<Neighbours>,
    pub(crate) tags: Tags<W>,
    pub(crate) roots: Vec<u32>,
    pub(crate) entrances: Vec<Entrance>,
    pub(crate) line_shift: u32,
    /// Lines from this number on do not fit into the words of `tags`.
    pub(crate) limit: u64,
    pub(crate) events: Events,
    pub(crate) ledger: Ledger,
    pub(crate) memory: Box<dyn MemoryTimingModel>,
    pub(crate) request: Request,
    /// Caches from the second level outwards that do not have the line of the request, and where it would be in each.
    pub(crate) path: Vec<(u32, Spot)>,
    /// The filters of data and instructions keep all lines of a set, not the most recently used alone.
    pub(crate) whole_sets: [bool; 2],
    pub(crate) first_level: FirstLevel,
    /// What engines use themselves.
    pub(crate) loans: Loans,
}

/// The request in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Who made it, and when.
    pub(crate) requester: u16,
    pub(crate) account: Account,
    pub(crate) now: u64,
    /// Cycles charged to it so far.
    pub(crate) stall: u64,
}

impl<W: Word> Hierarchy<W> {
    /// The caches of a valid description.
    pub(crate) fn new(
        config: &CacheConfig,
        places: &[VcpuPlace],
        memory: Box<dyn MemoryTimingModel>,
    ) -> Hierarchy<W> {
        let mut nodes: Vec<Node> = Vec::new();
        let mut neighbours: Vec<Neighbours> = Vec::new();
        let mut entrances: Vec<Entrance> = Vec::with_capacity(places.len());
        // Caches by level, kind and the core or socket that shares them (at one level and kind it is always one of the two).
        let mut known: BTreeMap<(usize, CacheKind, u16), u32> = BTreeMap::new();
        for (vcpu, place) in places.iter().enumerate() {
            let mut find = |index: usize, kind: CacheKind, level: &LevelConfig| {
                let (shared_by, core) = match level.shared_by {
                    Sharing::Core => (place.core, place.core.into()),
                    Sharing::Socket => (place.socket, SHARED),
                };
                *known.entry((index, kind, shared_by)).or_insert_with(|| {
                    nodes.push(Node {
                        // The place and the holder bits follow below, when all caches are known.
                        geometry: Geometry::new(0, level.sets() as u32, level.ways, 0),
                        outer: NONE,
                        bit: 0,
                        socket: place.socket,
                        core,
                        level: index as u8,
                        kind,
                        threads: false,
                        exact: true,
                    });
                    nodes.len() as u32 - 1
                })
            };
            let data = find(0, CacheKind::Data, &config.levels[0]);
            let instruction = config
                .instruction
                .map_or(NONE, |level| find(0, CacheKind::Instruction, &level));
            let unified: Vec<u32> = config
                .levels
                .iter()
                .enumerate()
                .skip(1)
                .map(|(index, level)| find(index, CacheKind::Unified, level))
                .collect();
            neighbours.resize(nodes.len(), Neighbours::default());
            for first in [data, instruction] {
                let Some(neighbours_of_first) = neighbours.get_mut(first as usize) else {
                    continue;
                };
                neighbours_of_first.vcpus.push(vcpu as u16);
                let mut inner = first;
                for &outer in &unified {
                    if nodes[inner as usize].outermost() {
                        nodes[inner as usize].outer = outer;
                        neighbours[outer as usize].inner.push(inner);
                    }
                    inner = outer;
                }
            }
            entrances.push(Entrance {
                first: [data, instruction],
                // Follow when all caches are known.
                routes: [None, None],
                socket: place.socket,
                core: place.core.into(),
            });
        }
        let mut end = 0;
        for index in 0..nodes.len() {
            let Neighbours { inner, vcpus } = &neighbours[index];
            let bits = inner.len().min(HOLDERS as usize);
            for (position, &inner) in inner.iter().enumerate() {
                nodes[inner as usize].bit = 1 << (position % bits);
            }
            let node = &mut nodes[index];
            let Geometry { sets, ways, .. } = node.geometry;
            node.geometry = Geometry::new(end, sets, ways, bits as u32);
            node.threads = vcpus.len() > 1;
            node.exact = inner.len() == bits;
            end = node.geometry.end();
        }
        for entrance in &mut entrances {
            entrance.routes = entrance
                .first
                .map(|first| Route::new(&nodes, &neighbours, first));
        }
        let events = Events::new(config);
        Hierarchy {
            roots: (0..nodes.len() as u32)
                .filter(|&node| nodes[node as usize].outermost())
                .collect(),
            ledger: Ledger::new(events.len(), places.len()),
            line_shift: config.levels[0].line.trailing_zeros(),
            limit: Self::limit(&nodes),
            tags: Tags::new(end),
            request: Request {
                requester: 0,
                account: Account::default(),
                now: 0,
                stall: 0,
            },
            path: vec![(NONE, Spot::default()); config.levels.len()],
            whole_sets: [false; 2],
            first_level: FirstLevel::new([0; 3], [false; 2]),
            loans: Loans::default(),
            nodes: Nodes(nodes),
            neighbours,
            entrances,
            events,
            memory,
        }
    }

    /// Whether several vCPUs use one first-level cache of this side.
    pub(crate) fn shares_first_level(&self, side: Side) -> bool {
        self.nodes
            .0
            .iter()
            .any(|node| node.level == 0 && node.side() == side && node.threads)
    }

    fn limit(nodes: &[Node]) -> u64 {
        let limits = nodes.iter().map(|node| node.geometry.limit(W::BITS));
        limits.min().unwrap_or(0)
    }

    /// The same caches, lines, counters and memory in wider words; what is left here is of no use.
    pub(crate) fn widen<V: Word>(&mut self) -> Hierarchy<V> {
        let nothing: Box<dyn MemoryTimingModel> = Box::new(FlatMemory::default());
        Hierarchy {
            limit: Hierarchy::<V>::limit(&self.nodes.0),
            tags: self.tags.widen(),
            nodes: mem::take(&mut self.nodes),
            neighbours: mem::take(&mut self.neighbours),
            roots: mem::take(&mut self.roots),
            entrances: mem::take(&mut self.entrances),
            line_shift: self.line_shift,
            events: self.events.clone(),
            ledger: self.ledger.clone(),
            memory: mem::replace(&mut self.memory, nothing),
            request: self.request,
            path: mem::take(&mut self.path),
            whole_sets: self.whole_sets,
            first_level: self.first_level,
            loans: self.loans.recall(),
        }
    }

    /// Contents of every cache.
    pub(crate) fn contents(&self) -> Vec<CacheContents> {
        self.nodes
            .0
            .iter()
            .map(|node| CacheContents {
                level: node.level + 1,
                kind: node.kind,
                socket: node.socket,
                core: (node.core != SHARED).then_some(node.core as u16),
                outer: (!node.outermost()).then_some(node.outer as usize),
                sets: self
                    .tags
                    .contents(&node.geometry)
                    .into_iter()
                    .map(|(set, lines)| {
                        let lines = lines
                            .into_iter()
                            .map(|(line, state)| (line << self.line_shift, state));
                        (set, lines.collect())
                    })
                    .collect(),
            })
            .collect()
    }
}
