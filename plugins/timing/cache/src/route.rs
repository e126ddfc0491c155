//! What the ways of [`crate::near`] and [`crate::far`] need to know of the caches next to a vCPU, worked out beforehand and kept
//! together: what is read one after the other is what these ways wait for.

use crate::geometry::{Geometry, Shape, Spot};
use crate::hierarchy::{CacheKind, Neighbours, Node};

/// A first-level cache that one vCPU uses, and the caches outside it.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) first: Stop,
    pub(crate) second: Stop,
    /// What stands for the first among the holders in an entry of the second.
    pub(crate) bit: u64,
    /// Bits of an entry of the second that may stand for others.
    pub(crate) others: u64,
    /// The first level is for instructions.
    pub(crate) instructions: bool,
    /// The way on.
    pub(crate) on: Option<On>,
}

/// From the second level to the third, which is the outermost, and its peers.
#[derive(Clone, Debug)]
pub(crate) struct On {
    pub(crate) third: Geometry,
    /// See [`Route::bit`], for the second in the third.
    pub(crate) bit: u64,
    /// See [`Route::others`].
    pub(crate) others: u64,
    /// The socket of the third.
    pub(crate) socket: u16,
    /// First words of the peers, which look like the third.
    pub(crate) peers: Vec<usize>,
    /// Caches inside the second and inside the third, by their bits among the holders.
    pub(crate) inside: [Vec<Geometry>; 2],
}

/// A cache whose sets are a power of two, and a power of two of words apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    base: usize,
    /// The last set.
    last: u32,
    /// See [`Shape`].
    stride: u32,
    ways: u32,
    tag_mask: u64,
    sets_shift: u8,
    stride_shift: u8,
    tag_shift: u8,
}

impl Route {
    /// From the first-level cache of this number; None where there is no second level, a set is not found by shifting, or several
    /// vCPUs share the first level.
    pub(crate) fn new(nodes: &[Node], neighbours: &[Neighbours], first: u32) -> Option<Route> {
        let inside = nodes.get(first as usize)?;
        let around = nodes.get(inside.outer as usize)?;
        if inside.threads {
            return None;
        }
        let bit = u64::from(inside.bit);
        let others = around.without(around.geometry.holders_mask(), bit);
        Some(Route {
            first: Stop::new(&inside.geometry)?,
            second: Stop::new(&around.geometry)?,
            bit: bit << Geometry::STATE_BITS,
            others: others << Geometry::STATE_BITS,
            instructions: inside.kind == CacheKind::Instruction,
            on: On::new(nodes, neighbours, inside.outer),
        })
    }
}

impl On {
    /// From the second-level cache of this number; None where the third level is not the last, peers do not look alike, or holder bits
    /// stand for several caches.
    fn new(nodes: &[Node], neighbours: &[Neighbours], second: u32) -> Option<On> {
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
            let inner = neighbours[node as usize].inner.iter();
            inner.map(|&inner| nodes[inner as usize].geometry).collect()
        });
        peers.iter().all(|peer| peer.alike(&third)).then(|| On {
            third,
            bit: bit << Geometry::STATE_BITS,
            others: others << Geometry::STATE_BITS,
            socket: root.socket,
            peers: peers.iter().map(|peer| peer.base).collect(),
            inside,
        })
    }

    /// Where a line would be in the peer whose first word this is.
    #[inline(always)]
    pub(crate) fn at_peer(&self, base: usize, spot: Spot) -> Spot {
        Spot {
            start: spot.start - self.third.base + base,
            ..spot
        }
    }
}

impl Stop {
    fn new(geometry: &Geometry) -> Option<Stop> {
        let &Geometry { sets, stride, .. } = geometry;
        (sets.is_power_of_two() && stride.is_power_of_two()).then_some(Stop {
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

    /// [`Geometry::line`] and [`Geometry::holders`].
    #[inline(always)]
    pub(crate) fn line_and_holders(&self, set: u32, entry: u64) -> (u64, u64) {
        let line = (((entry >> self.tag_shift) - 1) << self.sets_shift) + u64::from(set);
        (line, (entry & !self.tag_mask) >> Geometry::STATE_BITS)
    }

    /// [`Geometry::spot`].
    #[inline(always)]
    pub(crate) fn spot(&self, line: u64) -> Spot {
        let set = line as u32 & self.last;
        Spot {
            start: self.base + ((set as usize) << self.stride_shift),
            set,
            key: ((line >> self.sets_shift) + 1) << self.tag_shift,
        }
    }
}

impl Shape for Stop {
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
