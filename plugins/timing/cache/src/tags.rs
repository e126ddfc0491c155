//! Tags, states and holder bits of the lines of all caches.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ptr::NonNull;

use memmap2::{Advice, MmapMut};
use serde::{Deserialize, Serialize};

use crate::geometry::{Geometry, LineLookup};
use crate::mapping_pool::mapping_pool;
use crate::word::{Variant, Word};

/// MESIF state of a line in one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum State {
    /// Other caches may hold the line, too. The data equals that in the cache outside this one, or in memory if this is an outermost cache.
    Shared = 1,
    /// The line is shared by outermost caches, of which this one answers the others' requests for it. Only outermost caches use this state.
    Forward = 2,
    /// No caches hold the line but this one, those inside it and those outside it, and the data equals that outside.
    Exclusive = 3,
    /// No caches hold the line but this one, those inside it and those outside it, and this cache or one inside has data that differs from
    /// that outside.
    Modified = 4,
}

impl State {
    /// Returns true if a write needs no permission from another cache.
    pub(crate) fn owned(self) -> bool {
        self >= State::Exclusive
    }

    /// Returns the state in which a cache may hold a line if the cache around it has the line in this state. `instructions` is true if the
    /// inner cache is for instructions. `Forward` becomes `Shared`, since only outermost caches forward.
    #[inline(always)]
    pub(crate) fn inside(self, instructions: bool) -> State {
        match self {
            State::Exclusive | State::Modified if !instructions => self,
            _ => State::Shared,
        }
    }

    /// Returns an entry with this state in place of its own state, and without the mark of a prefetch.
    #[inline(always)]
    pub(crate) fn instead(self, entry: u64) -> u64 {
        entry & !STATE_MASK | self as u64
    }

    /// Returns the state of an entry that is not empty.
    #[inline(always)]
    pub(crate) fn of(entry: u64) -> State {
        match entry & STATE_MASK {
            1 | 5 => State::Shared,
            2 | 6 => State::Forward,
            3 | 7 => State::Exclusive,
            _ => State::Modified,
        }
    }
}

const STATE_MASK: u64 = (1 << Geometry::STATE_BITS) - 1;

/// Difference between the state bits of a line that a prefetch brought and that no access has touched, and the number of its [`State`].
/// Such a line is never modified.
const PREFETCHED: u64 = 4;

/// Returns true if an entry has a line that a prefetch brought and that no access has touched.
#[inline(always)]
pub(crate) fn is_prefetched(entry: u64) -> bool {
    entry & STATE_MASK > PREFETCHED
}

/// Returns an entry, which is not empty and not modified, with the mark of a prefetch.
pub(crate) fn with_prefetch_mark(entry: u64) -> u64 {
    debug_assert!(entry & STATE_MASK < PREFETCHED);
    entry + PREFETCHED
}

/// Returns an entry without the mark of a prefetch.
#[inline(always)]
pub(crate) fn without_prefetch_mark(entry: u64) -> u64 {
    entry - if is_prefetched(entry) { PREFETCHED } else { 0 }
}

/// Returns true if an entry has a modified line.
#[inline(always)]
pub(crate) fn is_modified(entry: u64) -> bool {
    entry & STATE_MASK == State::Modified as u64
}

/// Largest number of holder bits in an entry.
pub(crate) const HOLDERS: u32 = 13;

/// Entries of every cache of a node in one memory mapping, so that usually one huge page of the host contains them all.
/// With LRU replacement, way 0 of a set is the most recently used line, the last way the least; empty ways come last. First-level sets
/// whose order an engine's L0 filter cache keeps may have their lines in another order. With other policies lines stay in their ways.
///
/// The [`LineLookup`] of a line in the cache's [`Geometry`] identifies a set; an index identifies an entry.
pub(crate) struct Tags<W> {
    /// Pointer to the first entry, inside `memory`.
    first: NonNull<W>,
    length: usize,
    /// Owner of the entries' memory; `None` after the mapping has been released to the pool.
    memory: Option<MmapMut>,
}

impl<W> Drop for Tags<W> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            mapping_pool().release(memory);
        }
    }
}

// SAFETY: `first` points into `memory`, which the value owns and which may be used from any thread.
unsafe impl<W: Send> Send for Tags<W> {}

/// Size of a huge page of the host in bytes.
const HUGE: usize = 2 << 20;

impl<W: Word> Tags<W> {
    /// Makes `length` empty entries. As everywhere, the process ends if the host has no memory.
    pub(crate) fn new(length: usize) -> Tags<W> {
        let bytes = length * size_of::<W>();
        // A huge page pays if half of it is used.
        let (mapped, align) = if bytes >= HUGE / 2 {
            (bytes.next_multiple_of(HUGE) + HUGE, HUGE)
        } else {
            (bytes.max(1), 64)
        };
        let (mut memory, used_before) = mapping_pool().acquire(mapped);
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

    #[inline(always)]
    fn entries(&self) -> &[W] {
        // SAFETY: `first` is the aligned start of `length` words of `memory`, which lives as long as `self`. The words are written only
        // while `self` is borrowed exclusively, or by an engine while no function of the model runs; any bit pattern is a valid word.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.length) }
    }

    #[inline(always)]
    fn entries_mut(&mut self) -> &mut [W] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.length) }
    }

    /// Returns a copy of the entries in wider words.
    pub(crate) fn widen<V: Word>(&self) -> Tags<V> {
        let mut wide = Tags::new(self.length);
        for (wide, &narrow) in wide.entries_mut().iter_mut().zip(self.entries()) {
            // Host pages that were never touched stay untouched.
            if narrow.value() != 0 {
                *wide = V::truncate(narrow.value());
            }
        }
        wide
    }

    /// Prefetches a set into the host's caches.
    #[inline(always)]
    pub(crate) fn prefetch(&self, geometry: &Geometry, lookup: LineLookup) {
        let set = self.set(geometry, lookup).as_ptr_range();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect that a program can observe. A set has at least four words.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(set.start.cast());
            if size_of::<W>() * (geometry.stride as usize) > 64 {
                // Larger sets are prefetched by their first and last host cache line, which are all lines of sets of up to 128 bytes.
                _mm_prefetch::<_MM_HINT_T0>(set.end.sub(1).cast());
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = set;
    }

    #[inline(always)]
    fn set(&self, geometry: &Geometry, lookup: LineLookup) -> &[W] {
        debug_assert!(lookup.start + (geometry.stride as usize) <= self.length);
        // SAFETY: a look-up comes from the geometry of its cache, and the constructor of the hierarchy allocates the sets of all
        // caches; the rest as in `entries`.
        unsafe {
            std::slice::from_raw_parts(
                self.first.as_ptr().add(lookup.start),
                geometry.stride as usize,
            )
        }
    }

    #[inline(always)]
    fn set_mut(&mut self, geometry: &Geometry, lookup: LineLookup) -> &mut [W] {
        debug_assert!(lookup.start + (geometry.stride as usize) <= self.length);
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.first.as_ptr().add(lookup.start),
                geometry.stride as usize,
            )
        }
    }

    /// Returns the way of a line within its set; `None` if the cache does not have the line.
    #[inline(always)]
    pub(crate) fn find<V: Variant>(
        &self,
        variant: V,
        geometry: &Geometry,
        lookup: LineLookup,
    ) -> Option<usize> {
        let mask = geometry.tag_mask();
        let set = self.set(geometry, lookup);
        W::find(variant, set, W::truncate(mask), W::truncate(lookup.key))
    }

    /// Returns the entry of a way: tag, holders and state. The entry of an empty way is 0.
    #[inline(always)]
    pub(crate) fn way(&self, geometry: &Geometry, lookup: LineLookup, way: usize) -> u64 {
        debug_assert!(way < geometry.stride as usize);
        // SAFETY: as in `set`; callers have the way from this geometry.
        unsafe { self.set(geometry, lookup).get_unchecked(way) }.value()
    }

    /// Returns the entry at an index among those of all caches.
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

    /// Makes the line of an entry a shared copy. The mark of a prefetch stays.
    pub(crate) fn share(&mut self, at: usize) {
        let entry = &mut self.entries_mut()[at];
        let before = entry.value();
        let mark = if is_prefetched(before) { PREFETCHED } else { 0 };
        *entry = W::truncate(State::Shared.instead(before) + mark);
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

    /// Gives the way a new entry, and makes the way the first of its set.
    #[inline(always)]
    pub(crate) fn put_first<V: Variant>(
        &mut self,
        variant: V,
        geometry: &Geometry,
        lookup: LineLookup,
        way: usize,
        entry: u64,
    ) {
        W::promote(
            variant,
            self.set_mut(geometry, lookup),
            way,
            W::truncate(entry),
        );
    }

    /// Gives the way a new entry; 0 empties the way.
    #[inline(always)]
    pub(crate) fn put(&mut self, geometry: &Geometry, lookup: LineLookup, way: usize, entry: u64) {
        debug_assert!(way < geometry.stride as usize);
        // SAFETY: as in `way`.
        *unsafe { self.set_mut(geometry, lookup).get_unchecked_mut(way) } = W::truncate(entry);
    }

    /// Returns a mask of the empty ways of a set of at most 64 ways.
    pub(crate) fn empty_ways(&self, geometry: &Geometry, lookup: LineLookup) -> u64 {
        let ways = &self.set(geometry, lookup)[..geometry.ways as usize];
        (ways.iter().enumerate()).fold(0, |mask, (way, word)| {
            mask | u64::from(word.value() == 0) << way
        })
    }

    /// Removes the line of a way, and moves the later lines forward.
    pub(crate) fn close_up(&mut self, geometry: &Geometry, lookup: LineLookup, way: usize) {
        W::remove(self.set_mut(geometry, lookup), way);
    }

    /// Returns set number, line numbers and states of each set that is not empty, in the order of the ways.
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
