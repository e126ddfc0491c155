//! The trees of caches of a node.
//!
//! Each cache is a vertex, and each outermost cache is the root of a tree. [`crate::protocol`] has the rules by which the caches stay
//! coherent.

use std::collections::BTreeMap;
use std::mem;

use nodescope_plugin_api::{Account, Ledger, MemoryTimingModel, Side, VcpuPlace};
use serde::{Deserialize, Serialize};

use crate::config::{CacheConfig, LevelConfig, Sharing};
use crate::events::Events;
use crate::export::Exports;
use crate::fast_path::FastPath;
use crate::flat::FlatMemory;
use crate::geometry::{Geometry, LineLookup};
use crate::model::FirstLevel;
use crate::tags::{HOLDERS, State, Tags};
use crate::word::Word;

/// Kind of lines that a cache has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CacheKind {
    /// Data, at the first level.
    Data,
    /// Instructions, at the first level.
    Instruction,
    /// Data and instructions, at the levels outside the first.
    Unified,
}

/// Contents of one cache, for inspection and tests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheContents {
    /// Level, counted from 1.
    pub level: u8,
    /// Kind of lines that the cache has.
    pub kind: CacheKind,
    /// Socket of the cache.
    pub socket: u16,
    /// Core of the cache; `None` if the cores of the socket share the cache.
    pub core: Option<u16>,
    /// Index, in the list of all caches, of the cache outside this one; `None` for an outermost cache.
    pub outer: Option<usize>,
    /// Sets that have lines: set number, then physical addresses and states of the lines. The most recently used line is first, unless an
    /// engine's L0 filter cache keeps the order of the set.
    pub sets: Vec<(u64, Vec<(u64, State)>)>,
}

/// Cache of the hierarchy. All data for a walk through the levels fits in one host cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Node {
    pub(crate) geometry: Geometry,
    /// Number of the cache outside this one, or [`NONE`].
    pub(crate) outer: u32,
    /// Holder bit of this cache in entries of the outer cache: a mask, shifted to bit 0.
    pub(crate) bit: u16,
    pub(crate) socket: u16,
    /// Number of the cache's core, or [`SHARED`].
    pub(crate) core: u32,
    pub(crate) level: u8,
    pub(crate) kind: CacheKind,
    /// True if several vCPUs use this cache as their first level.
    pub(crate) several_vcpus: bool,
    /// True if each cache inside this one has its own holder bit.
    pub(crate) exact: bool,
}

const _: () = assert!(size_of::<Node>() == 64);

/// Number that stands for no cache.
pub(crate) const NONE: u32 = u32::MAX;

/// Core number of a cache that the cores of a socket share.
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

    /// Returns those of the holder bits `holders` that may represent a cache other than the inner cache with the bit `bit`.
    #[inline]
    pub(crate) fn without(&self, holders: u64, bit: u64) -> u64 {
        if self.exact { holders & !bit } else { holders }
    }
}

/// All caches of a hierarchy, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes(Vec<Node>);

impl Nodes {
    /// Returns a cache. Its number must come from the constructor of [`Hierarchy`], and must not be [`NONE`].
    #[inline(always)]
    pub(crate) fn get(&self, node: u32) -> &Node {
        debug_assert!((node as usize) < self.0.len());
        // SAFETY: the constructor numbers all caches and none is added or removed later; callers never pass NONE.
        unsafe { self.0.get_unchecked(node as usize) }
    }
}

/// Caches and vCPUs directly inside a cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Children {
    /// Numbers of the caches directly inside this one.
    pub(crate) inner: Vec<u32>,
    /// vCPUs that use the cache as their first level; empty for other levels.
    pub(crate) vcpus: Vec<u16>,
}

/// First-level caches of one vCPU, and the fast paths from them.
#[derive(Clone, Debug)]
pub(crate) struct VcpuCaches {
    /// Numbers of the first-level caches for data and for instructions; the latter may be [`NONE`].
    pub(crate) first: [u32; 2],
    /// Fast paths of misses, for data and for instructions; `None` where only the slow path applies.
    pub(crate) fast_paths: [Option<FastPath>; 2],
    pub(crate) socket: u16,
    pub(crate) core: u32,
}

/// All caches of a node, their counters, and the request in progress.
pub(crate) struct Hierarchy<W> {
    pub(crate) nodes: Nodes,
    /// Caches and vCPUs inside each cache, by the cache's number.
    pub(crate) children: Vec<Children>,
    pub(crate) tags: Tags<W>,
    pub(crate) roots: Vec<u32>,
    pub(crate) vcpu_caches: Vec<VcpuCaches>,
    pub(crate) line_shift: u32,
    /// The first line number that does not fit into the words of `tags`.
    pub(crate) line_limit: u64,
    pub(crate) events: Events,
    pub(crate) ledger: Ledger,
    pub(crate) memory: Box<dyn MemoryTimingModel>,
    pub(crate) request: Request,
    /// Caches from the second level outwards to the outermost, for the request in progress, with the look-up of the line in each.
    pub(crate) path: Vec<(u32, LineLookup)>,
    /// True if an L0 filter cache (for data, for instructions) holds all lines of a set instead of only the most recently used line.
    pub(crate) whole_sets: [bool; 2],
    pub(crate) first_level: FirstLevel,
    /// States that were exported to engines.
    pub(crate) exports: Exports,
}

/// The request in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The vCPU that made the request.
    pub(crate) requester: u16,
    pub(crate) account: Account,
    pub(crate) now: u64,
    /// Cycles charged to the request so far.
    pub(crate) stall: u64,
}

impl<W: Word> Hierarchy<W> {
    /// Makes the caches of a valid description.
    pub(crate) fn new(
        config: &CacheConfig,
        places: &[VcpuPlace],
        memory: Box<dyn MemoryTimingModel>,
    ) -> Hierarchy<W> {
        let mut nodes: Vec<Node> = Vec::new();
        let mut children: Vec<Children> = Vec::new();
        let mut vcpu_caches: Vec<VcpuCaches> = Vec::with_capacity(places.len());
        // Caches by level, kind, and number of the core or socket; all caches of one level and kind have the same sharing.
        let mut known: BTreeMap<(usize, CacheKind, u16), u32> = BTreeMap::new();
        for (vcpu, place) in places.iter().enumerate() {
            let mut find = |index: usize, kind: CacheKind, level: &LevelConfig| {
                let (shared_by, core) = match level.shared_by {
                    Sharing::Core => (place.core, place.core.into()),
                    Sharing::Socket => (place.socket, SHARED),
                };
                *known.entry((index, kind, shared_by)).or_insert_with(|| {
                    nodes.push(Node {
                        // The first word and the holder bits are set below, when all caches exist.
                        geometry: Geometry::new(0, level.sets() as u32, level.ways, 0),
                        outer: NONE,
                        bit: 0,
                        socket: place.socket,
                        core,
                        level: index as u8,
                        kind,
                        several_vcpus: false,
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
            children.resize(nodes.len(), Children::default());
            for first in [data, instruction] {
                let Some(children_of_first) = children.get_mut(first as usize) else {
                    continue;
                };
                children_of_first.vcpus.push(vcpu as u16);
                let mut inner = first;
                for &outer in &unified {
                    if nodes[inner as usize].outermost() {
                        nodes[inner as usize].outer = outer;
                        children[outer as usize].inner.push(inner);
                    }
                    inner = outer;
                }
            }
            vcpu_caches.push(VcpuCaches {
                first: [data, instruction],
                // The paths are set below, when all caches exist.
                fast_paths: [None, None],
                socket: place.socket,
                core: place.core.into(),
            });
        }
        let mut end = 0;
        for index in 0..nodes.len() {
            let Children { inner, vcpus } = &children[index];
            let bits = inner.len().min(HOLDERS as usize);
            for (position, &inner) in inner.iter().enumerate() {
                nodes[inner as usize].bit = 1 << (position % bits);
            }
            let node = &mut nodes[index];
            let Geometry { sets, ways, .. } = node.geometry;
            node.geometry = Geometry::new(end, sets, ways, bits as u32);
            node.several_vcpus = vcpus.len() > 1;
            node.exact = inner.len() == bits;
            end = node.geometry.end();
        }
        for own in &mut vcpu_caches {
            own.fast_paths = own
                .first
                .map(|first| FastPath::new(&nodes, &children, first));
        }
        let events = Events::new(config);
        Hierarchy {
            roots: (0..nodes.len() as u32)
                .filter(|&node| nodes[node as usize].outermost())
                .collect(),
            ledger: Ledger::new(events.len(), places.len()),
            line_shift: config.levels[0].line.trailing_zeros(),
            line_limit: Self::line_limit(&nodes),
            tags: Tags::new(end),
            request: Request {
                requester: 0,
                account: Account::default(),
                now: 0,
                stall: 0,
            },
            path: vec![(NONE, LineLookup::default()); config.levels.len()],
            whole_sets: [false; 2],
            first_level: FirstLevel::new([0; 3], [false; 2]),
            exports: Exports::default(),
            nodes: Nodes(nodes),
            children,
            vcpu_caches,
            events,
            memory,
        }
    }

    /// Returns true if several vCPUs use the same first-level cache of this side.
    pub(crate) fn shares_first_level(&self, side: Side) -> bool {
        self.nodes
            .0
            .iter()
            .any(|node| node.level == 0 && node.side() == side && node.several_vcpus)
    }

    fn line_limit(nodes: &[Node]) -> u64 {
        let limits = nodes.iter().map(|node| node.geometry.line_limit(W::BITS));
        limits.min().unwrap_or(0)
    }

    /// Moves caches, lines, counters and memory to a hierarchy with wider words. The hierarchy that remains here must not be used.
    pub(crate) fn widen<V: Word>(&mut self) -> Hierarchy<V> {
        let nothing: Box<dyn MemoryTimingModel> = Box::new(FlatMemory::default());
        Hierarchy {
            line_limit: Hierarchy::<V>::line_limit(&self.nodes.0),
            tags: self.tags.widen(),
            nodes: mem::take(&mut self.nodes),
            children: mem::take(&mut self.children),
            roots: mem::take(&mut self.roots),
            vcpu_caches: mem::take(&mut self.vcpu_caches),
            line_shift: self.line_shift,
            events: self.events.clone(),
            ledger: self.ledger.clone(),
            memory: mem::replace(&mut self.memory, nothing),
            request: self.request,
            path: mem::take(&mut self.path),
            whole_sets: self.whole_sets,
            first_level: self.first_level,
            exports: self.exports.revoke(),
        }
    }

    /// Returns the contents of every cache.
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
