//! Chains of dependent loads over rings of cache lines, to measure the latency of a load by the size of the data.

use std::ptr::NonNull;

use crate::Failure;
use crate::cycles::{rate, ticks};
use crate::time::median;

/// Bytes of a node of a ring: one cache line.
pub const LINE: usize = 64;
/// Bytes of a large page, to which rings are aligned.
const LARGE: usize = 2 << 20;
/// Loads of a timed run. On a busy host most runs are then shorter than a scheduler's time slice. The runs of a ring read 144 MiB together.
const STEPS: usize = 1 << 18;
/// Number of timed runs of a ring.
const RUNS: usize = 9;

/// Anonymous memory mapping, in large pages if the host provides them.
struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

impl Pages {
    fn new(bytes: usize) -> Result<Self, Failure> {
        let bytes = bytes.next_multiple_of(LARGE) + LARGE;
        // SAFETY: the mapping is new and replaces no other mapping, since no address is given.
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
        // SAFETY: the range is the whole mapping. Hosts without large pages refuse the advice; small pages only cost more TLB misses.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        Ok(Self { start, bytes })
    }

    /// Returns the first address in the mapping that is aligned to a large page.
    fn aligned(&self) -> *mut u8 {
        let over = self.start.as_ptr() as usize % LARGE;
        // SAFETY: the mapping is one large page longer than requested, so the aligned address is inside.
        unsafe { self.start.as_ptr().add((LARGE - over) % LARGE) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference to the mapping is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Returns the indices of a ring's lines in the order in which loads visit the lines.
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

/// A ring of cache lines. Its large pages are in random order, and so are the lines within each large page.
///
/// Many consecutive loads stay within one large page. Therefore TLB misses are rare, even if a hypervisor backs each large page by small
/// pages. Prefetchers, which follow streams within small pages, find no stream.
pub struct Ring {
    /// Address of the node that the next load reads.
    at: *const usize,
    nodes: usize,
    _pages: Pages,
}

impl Ring {
    /// Makes a ring of `bytes` bytes, at least two lines.
    pub fn new(bytes: usize) -> Result<Self, Failure> {
        let nodes = (bytes / LINE).max(2);
        let pages = Pages::new(nodes * LINE)?;
        let base = pages.aligned();
        let order = order(nodes);
        // SAFETY: node numbers are below `nodes`, and the mapping has space for `nodes` lines; lines are aligned for pointers.
        let node = |number: u32| unsafe { base.add(number as usize * LINE).cast::<usize>() };
        for pair in order.windows(2) {
            // SAFETY: the node is inside the mapping, as `node` ensures, and nothing else refers to it.
            unsafe { node(pair[0]).write(node(pair[1]) as usize) };
        }
        // SAFETY: the node is inside the mapping, as `node` ensures, and nothing else refers to it.
        unsafe { node(order[nodes - 1]).write(node(order[0]) as usize) };
        Ok(Self {
            at: node(order[0]),
            nodes,
            _pages: pages,
        })
    }

    /// Follows `steps` pointers, rounded up to a multiple of eight.
    fn follow(&mut self, steps: usize) {
        let mut at = self.at;
        for _ in 0..steps.div_ceil(8) {
            for _ in 0..8 {
                // SAFETY: each node of the ring holds the address of a node. The compiler does not remove a volatile load.
                at = unsafe { at.read_volatile() } as *const usize;
            }
        }
        self.at = std::hint::black_box(at);
    }

    /// Returns the cycles of one load: the median of several runs, after one pass over the whole ring.
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
