//! Data of the fast miss paths ([`crate::l2_hit`], [`crate::l2_miss`]) about the caches of a vCPU. The data is computed in advance and
//! stored together, since the host's loads of it depend on each other and decide how long these paths take.

use crate::geometry::{Geometry, LineLookup, Shape};
use crate::hierarchy::{CacheKind, Children, Node};

/// Fast path from a first-level cache of one vCPU to the caches outside it.
#[derive(Clone, Debug)]
pub(crate) struct FastPath {
    pub(crate) first: PowerOfTwoCache,
    pub(crate) second: PowerOfTwoCache,
    /// Holder bit of the first level, as a mask of entries of the second level.
    pub(crate) holder_mask: u64,
    /// Mask of the holder bits, in entries of the second level, that may represent caches other than this first level.
    pub(crate) other_holders: u64,
    /// True if the first level is for instructions.
    pub(crate) instructions: bool,
    /// The path from the second level outwards; `None` if misses of the second level have no fast path.
    pub(crate) l3: Option<L3Path>,
}

/// Fast path from the second level to the third level, which is the outermost, and to its peers.
#[derive(Clone, Debug)]
pub(crate) struct L3Path {
    pub(crate) third: Geometry,
    /// Holder bit of the second level, as a mask of entries of the third level.
    pub(crate) holder_mask: u64,
    /// Mask of the holder bits, in entries of the third level, that may represent caches other than this second level.
    pub(crate) other_holders: u64,
    /// The socket of the third level.
    pub(crate) socket: u16,
    /// Indices of the first words of the peers: the node's other outermost caches, which have the shape of the third level.
    pub(crate) peers: Vec<usize>,
    /// Caches inside the second level, and caches inside the third level, by the number of the holder bit.
    pub(crate) inside: [Vec<Geometry>; 2],
}

/// Layout of a cache whose number of sets and stride are powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerOfTwoCache {
    base: usize,
    /// Number of the last set, which is also the mask of set numbers.
    last: u32,
    /// Number of words from one set to the next, as in [`Shape`].
    stride: u32,
    ways: u32,
    tag_mask: u64,
    sets_shift: u8,
    stride_shift: u8,
    tag_shift: u8,
}

impl FastPath {
    /// Makes the path from the first-level cache with this number. `None` if there is no second level, if a number of sets or a stride of
    /// these two levels is no power of two, or if several vCPUs share the first level.
    pub(crate) fn new(nodes: &[Node], children: &[Children], first: u32) -> Option<FastPath> {
        let inside = nodes.get(first as usize)?;
        let around = nodes.get(inside.outer as usize)?;
        if inside.several_vcpus {
            return None;
        }
        let bit = u64::from(inside.bit);
        let others = around.without(around.geometry.holders_mask(), bit);
        Some(FastPath {
            first: PowerOfTwoCache::new(&inside.geometry)?,
            second: PowerOfTwoCache::new(&around.geometry)?,
            holder_mask: bit << Geometry::STATE_BITS,
            other_holders: others << Geometry::STATE_BITS,
            instructions: inside.kind == CacheKind::Instruction,
            l3: L3Path::new(nodes, children, inside.outer),
        })
    }
}

impl L3Path {
    /// Makes the path from the second-level cache with this number. `None` if the third level is missing or not the outermost, peers differ
    /// in shape, or a holder bit represents several caches.
    fn new(nodes: &[Node], children: &[Children], second: u32) -> Option<L3Path> {
        let middle = nodes.get(second as usize)?;
        let root = nodes.get(middle.outer as usize)?;
        if !root.outermost() || !middle.exact || !root.exact {
            return None;
        }
        let bit = u64::from(middle.bit);
        let others = root.without(root.geometry.holders_mask(), bit);
        let third = root.geometry;
        let peers: Vec<Geometry> = nodes
            .iter()
            .filter(|node| node.outermost() && node.geometry.base != third.base)
            .map(|node| node.geometry)
            .collect();
        let inside = [second, middle.outer].map(|node| {
            let inner = children[node as usize].inner.iter();
            inner.map(|&inner| nodes[inner as usize].geometry).collect()
        });
        peers
            .iter()
            .all(|peer| peer.same_shape(&third))
            .then(|| L3Path {
                third,
                holder_mask: bit << Geometry::STATE_BITS,
                other_holders: others << Geometry::STATE_BITS,
                socket: root.socket,
                peers: peers.iter().map(|peer| peer.base).collect(),
                inside,
            })
    }

    /// Returns the look-up of a line in the peer whose first word has the index `base`, from the look-up in the third level.
    #[inline(always)]
    pub(crate) fn lookup_in_peer(&self, base: usize, lookup: LineLookup) -> LineLookup {
        LineLookup {
            start: lookup.start - self.third.base + base,
            ..lookup
        }
    }
}

impl PowerOfTwoCache {
    fn new(geometry: &Geometry) -> Option<PowerOfTwoCache> {
        let &Geometry { sets, stride, .. } = geometry;
        (sets.is_power_of_two() && stride.is_power_of_two()).then_some(PowerOfTwoCache {
            base: geometry.base,
            last: sets - 1,
            stride,
            ways: geometry.ways,
            tag_mask: geometry.tag_mask(),
            sets_shift: sets.trailing_zeros() as u8,
            stride_shift: stride.trailing_zeros() as u8,
            tag_shift: geometry.tag_shift,
        })
    }

    /// Returns the line number and the holder bits of an entry, as [`Geometry::line`] and [`Geometry::holders`] do.
    #[inline(always)]
    pub(crate) fn line_and_holders(&self, set: u32, entry: u64) -> (u64, u64) {
        let line = (((entry >> self.tag_shift) - 1) << self.sets_shift) + u64::from(set);
        (line, (entry & !self.tag_mask) >> Geometry::STATE_BITS)
    }

    /// Returns the look-up of a line, as [`Geometry::lookup`] does.
    #[inline(always)]
    pub(crate) fn lookup(&self, line: u64) -> LineLookup {
        let set = line as u32 & self.last;
        LineLookup {
            start: self.base + ((set as usize) << self.stride_shift),
            set,
            key: ((line >> self.sets_shift) + 1) << self.tag_shift,
        }
    }
}

impl Shape for PowerOfTwoCache {
    #[inline(always)]
    fn stride(&self) -> usize {
        self.stride as usize
    }

    #[inline(always)]
    fn ways(&self) -> usize {
        self.ways as usize
    }

    #[inline(always)]
    fn tag_mask(&self) -> u64 {
        self.tag_mask
    }
}
