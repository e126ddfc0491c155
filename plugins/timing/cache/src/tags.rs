//! The lines of all caches, each set kept in LRU order.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ptr::NonNull;

use memmap2::{Advice, MmapMut};
use serde::{Deserialize, Serialize};

use crate::geometry::{Geometry, Shape, Spot};
use crate::spare::spare;
use crate::word::{Isa, Word};

/// State of a line in one cache, after MESIF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum State {
    /// Others may hold it too; clean with respect to what is outside the peers.
    Shared = 1,
    /// Shared, and this peer answers requests for it. Only where peers of the interconnect hold a line.
    Forward = 2,
    /// No peer holds it, and it is clean.
    Exclusive = 3,
    /// No peer holds it, and this cache or one inside it differs from what is outside.
    Modified = 4,
}

impl State {
    /// Whether a write needs no one else's permission.
    pub(crate) fn owned(self) -> bool {
        self >= State::Exclusive
    }

    /// What a cache inside one that has a line in this state may hold it in, one for instructions if so told. Only peers
    /// forward.
    #[inline(always)]
    pub(crate) fn inside(self, instructions: bool) -> State {
        match self {
            State::Exclusive if !instructions => State::Exclusive,
            State::Modified => State::Modified,
            _ => State::Shared,
        }
    }

    /// [`State::owned`] of an entry that is not empty.
    #[inline(always)]
    pub(crate) fn is_owned(entry: u64) -> bool {
        entry & STATE_MASK >= State::Exclusive as u64
    }

    /// Whether an entry holds a modified line.
    #[inline(always)]
    pub(crate) fn is_modified(entry: u64) -> bool {
        entry & STATE_MASK == State::Modified as u64
    }

    /// An entry with this state instead of its own.
    #[inline(always)]
    pub(crate) fn instead(self, entry: u64) -> u64 {
        entry & !STATE_MASK | self as u64
    }

    /// State of an entry that is not empty.
    #[inline(always)]
    pub(crate) fn of(entry: u64) -> State {
        match entry & STATE_MASK {
            1 => State::Shared,
            2 => State::Forward,
            3 => State::Exclusive,
            _ => State::Modified,
        }
    }
}

const STATE_MASK: u64 = (1 << Geometry::STATE_BITS) - 1;

/// Most holder bits of a line.
pub(crate) const HOLDERS: u32 = 13;

/// One of the entries, by [`Tags::place`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(usize);

/// Entries of every cache of a node in one piece of memory, so that one huge page of the host usually has them all.
/// Way 0 of a set is the most recently used line, the last way the least; empty ways come last.
///
/// A set is given by the [`Spot`] of a line in the cache's [`Geometry`], an entry by its index.
pub(crate) struct Tags<W> {
    /// First of the entries, in `memory`.
    first: NonNull<W>,
    length: usize,
    /// Owns them; None when it has been given away.
    memory: Option<MmapMut>,
}

impl<W> Drop for Tags<W> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            spare().give(memory);
        }
    }
}

// SAFETY: `first` points into `memory`, which the value owns and which may be used from any thread.
unsafe impl<W: Send> Send for Tags<W> {}

/// A huge page of the host.
const HUGE: usize = 2 << 20;

impl<W: Word> Tags<W> {
    /// `length` empty entries. As everywhere, the process ends if the host has no memory.
    pub(crate) fn new(length: usize) -> Tags<W> {
        let bytes = length * size_of::<W>();
        // A huge page pays where half of it is used.
        let (mapped, align) = if bytes >= HUGE / 2 {
            (bytes.next_multiple_of(HUGE) + HUGE, HUGE)
        } else {
            (bytes.max(1), 64)
        };
        let (mut memory, used_before) = spare().take(mapped);
        let from = memory.as_ptr().align_offset(align);
        if used_before {
            memory[from..from + bytes].fill(0);
        } else if align == HUGE {
            // Only a hint: without huge pages the result is the same.
            let _ = memory.advise_range(Advice::HugePage, from, mapped - HUGE);
        }
        let used = &mut memory[from..from + bytes];
        Tags {
            first: NonNull::from(used).cast(),
            length,
            memory: Some(memory),
        }
    }

    /// The word at which a cache begins, for who is lent the cache.
    pub(crate) fn lend(&mut self, base: usize) -> *mut W {
        &raw mut self.entries_mut()[base]
    }

    #[inline(always)]
    fn entries(&self) -> &[W] {
        // SAFETY: `first` is the aligned start of `length` words of `memory`, which lives as long as `self` and is
        // written through `entries_mut` alone; any bit pattern is a valid word.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.length) }
    }

    #[inline(always)]
    fn entries_mut(&mut self) -> &mut [W] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.length) }
    }

    /// The same entries in wider words.
    pub(crate) fn widen<V: Word>(&self) -> Tags<V> {
        let mut wide = Tags::new(self.length);
        for (wide, &narrow) in wide.entries_mut().iter_mut().zip(self.entries()) {
            // Pages of the host that were never touched stay so.
            if narrow.value() != 0 {
                *wide = V::truncate(narrow.value());
            }
        }
        wide
    }

    /// Have the host bring a set nearer.
    #[inline(always)]
    pub(crate) fn prefetch(&self, shape: &impl Shape, spot: Spot) {
        let set = self.set(shape, spot).as_ptr_range();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect that a program could see. A set has at least four words.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(set.start.cast());
            if size_of::<W>() * shape.stride() > 64 {
                // Sets of more than a line of the host have at most two where it matters.
                _mm_prefetch::<_MM_HINT_T0>(set.end.sub(1).cast());
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = set;
    }

    #[inline(always)]
    fn set(&self, shape: &impl Shape, spot: Spot) -> &[W] {
        debug_assert!(spot.start + shape.stride() <= self.length);
        // SAFETY: a spot comes from a geometry, here always that of its cache, and the constructor of the hierarchy makes
        // room for the sets of all; the rest as in `entries`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr().add(spot.start), shape.stride()) }
    }

    #[inline(always)]
    fn set_mut(&mut self, shape: &impl Shape, spot: Spot) -> &mut [W] {
        debug_assert!(spot.start + shape.stride() <= self.length);
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe {
            std::slice::from_raw_parts_mut(self.first.as_ptr().add(spot.start), shape.stride())
        }
    }

    /// Way of a line within its set.
    #[inline(always)]
    pub(crate) fn find<I: Isa>(&self, isa: I, shape: &impl Shape, spot: Spot) -> Option<usize> {
        let mask = shape.tag_mask();
        let set = self.set(shape, spot);
        W::find(isa, set, W::truncate(mask), W::truncate(spot.key))
    }

    /// Where a line is.
    #[inline(always)]
    pub(crate) fn locate<I: Isa>(&self, isa: I, shape: &impl Shape, spot: Spot) -> Option<Place> {
        let way = self.find(isa, shape, spot)?;
        Some(self.place(shape, spot, way))
    }

    /// The entry of a way.
    #[inline(always)]
    pub(crate) fn place(&self, shape: &impl Shape, spot: Spot, way: usize) -> Place {
        debug_assert!(way < shape.stride());
        debug_assert!(spot.start + shape.stride() <= self.length);
        Place(spot.start + way)
    }

    /// What is there.
    #[inline(always)]
    pub(crate) fn at(&self, place: Place) -> u64 {
        // SAFETY: a place is a way of a spot; the rest as in `set`.
        unsafe { self.first.add(place.0).read() }.value()
    }

    /// The whole entry, 0 if the way is empty.
    #[inline(always)]
    pub(crate) fn entry(&self, at: usize) -> u64 {
        self.entries()[at].value()
    }

    #[inline(always)]
    pub(crate) fn state(&self, at: usize) -> State {
        State::of(self.entry(at))
    }

    #[inline(always)]
    pub(crate) fn set_state(&mut self, at: usize, state: State) {
        let entry = &mut self.entries_mut()[at];
        *entry = W::truncate(state.instead(entry.value()));
    }

    #[inline(always)]
    pub(crate) fn holders(&self, geometry: &Geometry, at: usize) -> u64 {
        geometry.holders(self.entry(at))
    }

    #[inline(always)]
    pub(crate) fn set_holders(&mut self, geometry: &Geometry, at: usize, holders: u64) {
        let entry = &mut self.entries_mut()[at];
        let rest = entry.value() & !(geometry.holders_mask() << Geometry::STATE_BITS);
        *entry = W::truncate(rest | holders << Geometry::STATE_BITS);
    }

    /// Make the line of a way the most recently used, and a cache inside one more of its holders. Its entry before.
    #[inline(always)]
    pub(crate) fn touch<I: Isa>(
        &mut self,
        isa: I,
        shape: &impl Shape,
        spot: Spot,
        way: usize,
        holder: u64,
    ) -> u64 {
        let set = self.set_mut(shape, spot);
        let entry = set[way].value();
        W::promote(
            isa,
            set,
            way,
            W::truncate(entry | holder << Geometry::STATE_BITS),
        );
        entry
    }

    /// Make the line of a way the most recently used, with this entry.
    #[inline(always)]
    pub(crate) fn renew<I: Isa>(
        &mut self,
        isa: I,
        shape: &impl Shape,
        spot: Spot,
        way: usize,
        entry: u64,
    ) {
        W::promote(isa, self.set_mut(shape, spot), way, W::truncate(entry));
    }

    /// Put a line in the place of a way's and make it the most recently used.
    #[inline(always)]
    pub(crate) fn insert<I: Isa>(
        &mut self,
        isa: I,
        shape: &impl Shape,
        spot: Spot,
        way: usize,
        state: State,
        holders: u64,
    ) {
        let entry = spot.key | holders << Geometry::STATE_BITS | state as u64;
        W::promote(isa, self.set_mut(shape, spot), way, W::truncate(entry));
    }

    /// Put a line in the place of the least recently used one of its set.
    #[inline(always)]
    pub(crate) fn enter<I: Isa>(
        &mut self,
        isa: I,
        shape: &impl Shape,
        spot: Spot,
        state: State,
        holders: u64,
    ) {
        let way = shape.ways() - 1;
        self.insert(isa, shape, spot, way, state, holders);
    }

    /// Put a line that no cache inside has at an entry; the order of its set stays.
    #[inline(always)]
    pub(crate) fn replace(&mut self, place: Place, spot: Spot, state: State) {
        let entry = W::truncate(spot.key | state as u64);
        // SAFETY: as in `at`, and `self` is borrowed exclusively.
        unsafe { self.first.add(place.0).write(entry) };
    }

    /// The entry of the least recently used line of a set, 0 if there is room.
    #[inline(always)]
    pub(crate) fn last(&self, shape: &impl Shape, spot: Spot) -> u64 {
        self.set(shape, spot)[shape.ways() - 1].value()
    }

    /// Remove the line of a way; the others keep their order.
    pub(crate) fn remove(&mut self, shape: &impl Shape, spot: Spot, way: usize) {
        W::remove(self.set_mut(shape, spot), way);
    }

    /// Lines of each set that has any, most recently used first.
    pub(crate) fn contents(&self, geometry: &Geometry) -> Vec<(u64, Vec<(u64, State)>)> {
        (0..geometry.sets)
            .map(|set| {
                let start = geometry.base + set as usize * geometry.stride as usize;
                let lines = self.entries()[start..][..geometry.ways as usize]
                    .iter()
                    .map(|entry| entry.value())
                    .filter(|&entry| entry != 0)
                    .map(|entry| (geometry.line(set, entry), State::of(entry)))
                    .collect();
                (set.into(), lines)
            })
            .filter(|(_, lines): &(u64, Vec<_>)| !lines.is_empty())
            .collect()
    }
}
