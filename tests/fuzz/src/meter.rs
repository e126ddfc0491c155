//! Meter of memory: bytes in use now, and their maximum.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, with counters of the bytes in use.
pub struct Meter;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed unchanged to the system's allocator; the counters are separate.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller makes the same promise for this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller makes the same promise for this function.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller makes the same promise for this function.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller makes the same promise for this function.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn took(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

/// Returns the bytes in use now, and resets the maximum to this number.
pub fn begin() -> usize {
    let now = NOW.load(Ordering::Relaxed);
    MOST.store(now, Ordering::Relaxed);
    now
}

/// Returns the maximum number of bytes that were in use since [`begin`].
pub fn most() -> usize {
    MOST.load(Ordering::Relaxed)
}
