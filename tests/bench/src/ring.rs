//! Dependent loads over rings of lines: the time of a load by the size of the memory in use.

use std::ptr::NonNull;

use crate::Failure;
use crate::cycles::{rate, ticks};
use crate::time::median;

/// Bytes of a node: a line.
pub const LINE: usize = 64;
/// Bytes of a large page, to which rings are aligned.
const LARGE: usize = 2 << 20;
/// Loads of a timed run. A run on a busy host is then often shorter than a turn, and crosses most of a ring in a few runs.
const STEPS: usize = 1 << 18;
/// Timed runs of a ring.
const RUNS: usize = 9;

/// Memory of its own mapping, in large pages where the host gives them.
struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

impl Pages {
    fn new(bytes: usize) -> Result<Self, Failure> {
        let bytes = bytes.next_multiple_of(LARGE) + LARGE;
        // SAFETY: a new private mapping replaces none.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let failed = || Failure::Files(std::io::Error::last_os_error());
        if start == libc::MAP_FAILED {
            return Err(failed());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(failed)?;
        // SAFETY: the range is the mapping. Hosts without large pages refuse the advice, and small pages serve as well but for the TLB.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        Ok(Self { start, bytes })
    }

    /// Returns the first byte that begins a large page.
    fn aligned(&self) -> *mut u8 {
        let over = self.start.as_ptr() as usize % LARGE;
        // SAFETY: the mapping is longer than what was asked for by a large page.
        unsafe { self.start.as_ptr().add((LARGE - over) % LARGE) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing refers to the mapping any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Returns the numbers of a ring's lines as they follow each other.
fn order(nodes: usize) -> Vec<u32> {
    let mut x = 88_172_645_463_325_252_u64;
    let mut shuffle = |numbers: &mut [u32]| {
        for last in (1..numbers.len()).rev() {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            numbers.swap(last, (x % (last as u64 + 1)) as usize);
        }
    };
    let of_page = (LARGE / LINE) as u32;
    let mut pages: Vec<u32> = (0..(nodes as u32).div_ceil(of_page)).collect();
    shuffle(&mut pages);
    let mut order = Vec::with_capacity(nodes);
    for page in pages {
        let start = order.len();
        order.extend(page * of_page..((page + 1) * of_page).min(nodes as u32));
        shuffle(&mut order[start..]);
    }
    order
}

/// A ring of lines, in random order within large pages, which are in random order themselves.
///
/// Loads of such a ring stay within a large page for long. The TLB holds the page even where a hypervisor backs each large page by
/// small ones, and prefetchers, which follow streams within small pages, find none.
pub struct Ring {
    /// Where the next load begins.
    at: *const usize,
    nodes: usize,
    _pages: Pages,
}

impl Ring {
    /// Makes a ring of so many bytes, at least of two lines.
    pub fn new(bytes: usize) -> Result<Self, Failure> {
        let nodes = (bytes / LINE).max(2);
        let pages = Pages::new(nodes * LINE)?;
        let base = pages.aligned();
        let order = order(nodes);
        // SAFETY: numbers of nodes are below `nodes`, for which the pages have room; lines are aligned for pointers.
        let node = |number: u32| unsafe { base.add(number as usize * LINE).cast::<usize>() };
        for pair in order.windows(2) {
            // SAFETY: as above.
            unsafe { node(pair[0]).write(node(pair[1]) as usize) };
        }
        // SAFETY: as above.
        unsafe { node(order[nodes - 1]).write(node(order[0]) as usize) };
        Ok(Self {
            at: node(order[0]),
            nodes,
            _pages: pages,
        })
    }

    /// Follows so many pointers, in eights.
    fn follow(&mut self, steps: usize) {
        let mut at = self.at;
        for _ in 0..steps.div_ceil(8) {
            for _ in 0..8 {
                // SAFETY: each node of the ring holds the address of a node. A volatile load stays a load.
                at = unsafe { at.read_volatile() } as *const usize;
            }
        }
        self.at = std::hint::black_box(at);
    }

    /// Returns the cycles of a load, once the whole ring was read: the median of some runs.
    pub fn cycles(&mut self) -> f64 {
        self.follow(self.nodes);
        let mut runs = Vec::new();
        let mut before = rate();
        for _ in 0..RUNS {
            let spent = ticks(|| self.follow(STEPS)) as f64;
            let after = rate();
            runs.push(spent * (before + after) / 2.0 / STEPS as f64);
            before = after;
        }
        median(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_comes_back_after_all_of_its_lines() {
        let mut ring = Ring::new(1 << 16).unwrap();
        let start = ring.at;
        for _ in 0..1024 / 8 - 1 {
            ring.follow(8);
            assert_ne!(ring.at, start);
        }
        ring.follow(8);
        assert_eq!(ring.at, start);
    }

    #[test]
    fn lines_are_visited_page_by_page_and_once() {
        let nodes = 3 * LARGE / LINE + 5;
        let order = order(nodes);
        let pages: Vec<usize> = order.iter().map(|n| *n as usize * LINE / LARGE).collect();
        assert_eq!(pages.windows(2).filter(|p| p[0] != p[1]).count(), 3);
        let mut sorted = order;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..nodes as u32));
    }

    #[test]
    fn a_load_of_the_first_level_takes_some_cycles() {
        let cycles = Ring::new(8 << 10).unwrap().cycles();
        assert!((2.0..200.0).contains(&cycles), "{cycles}");
    }
}
