//! The trees of caches of a node: everything about the caches that does not change.
//!
//! Each cache is a vertex, and each outermost cache is the root of a tree. The changing state is in [`crate::hierarchy::Hierarchy`]. They
//! are apart so that compiled code need not read a description again after each change of state.

use nodescope_plugin_api::{L0Geometry, Side, VcpuPlace};

use crate::builder::Builder;
use crate::config::{CacheConfig, Keep, NonTemporalStores};
use crate::events::Events;
use crate::first_level::FirstLevel;
use crate::node::{Children, Node, VcpuCaches};

/// All caches of a node.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) nodes: Nodes,
    /// Caches and vCPUs inside each cache, by the cache's number.
    pub(crate) children: Vec<Children>,
    /// Outermost caches.
    pub(crate) roots: Vec<u32>,
    pub(crate) vcpu_caches: Vec<VcpuCaches>,
    pub(crate) line_shift: u32,
    pub(crate) events: Events,
    pub(crate) first_level: FirstLevel,
    pub(crate) non_temporal_stores: NonTemporalStores,
    pub(crate) any_prefetcher: bool,
    /// True if all levels take the lines of writes.
    pub(crate) writes_allocate: bool,
    pub(crate) keep: Option<Keep>,
    /// True if the structure is the usual one ([`crate::word::Variant::USUAL`]).
    pub(crate) usual: bool,
}

/// All caches of a tree, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes(pub(crate) Vec<Node>);

impl Nodes {
    /// Returns a cache. Its number must come from the constructor of [`Tree`], and must not be [`crate::node::NONE`].
    #[inline(always)]
    pub(crate) fn get(&self, node: u32) -> &Node {
        debug_assert!((node as usize) < self.0.len());
        // SAFETY: the constructor numbers all caches and none is added or removed later; callers never pass NONE.
        unsafe { self.0.get_unchecked(node as usize) }
    }
}

impl Tree {
    /// Makes the caches of a valid description, and the geometry of the L0 filter cache. `sees_hits`: whether a prefetcher of the first
    /// level must see every hit, of data and of instructions.
    pub(crate) fn new(
        config: &CacheConfig,
        places: &[VcpuPlace],
        builder: &Builder<'_>,
        sees_hits: [bool; 2],
    ) -> (Tree, L0Geometry) {
        let nodes = &builder.nodes;
        let several_vcpus = [Side::Data, Side::Instruction].map(|side| {
            let mut first = nodes.iter().filter(|node| node.level == 0);
            first.any(|node| node.side() == side && node.traits.several_vcpus)
        });
        let (first_level, l0_geometry) = FirstLevel::new(config, several_vcpus, sees_hits);
        let tree = Tree {
            children: builder.children.clone(),
            roots: (0..nodes.len() as u32)
                .filter(|&node| nodes[node as usize].outermost())
                .collect(),
            vcpu_caches: builder.vcpu_caches(places),
            line_shift: config.levels[0].line.trailing_zeros(),
            events: Events::new(config),
            first_level,
            non_temporal_stores: config.non_temporal_stores,
            keep: config.coherence.keep,
            writes_allocate: nodes.iter().all(|node| node.traits.allocates),
            any_prefetcher: nodes.iter().any(|node| node.traits.prefetches),
            usual: nodes.iter().all(Node::usual),
            nodes: Nodes(nodes.clone()),
        };
        (tree, l0_geometry)
    }
}
