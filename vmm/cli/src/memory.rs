//! Reports a failed allocation as a problem of the host, with a message and its exit code. Rust's own reaction is an abort, from which a
//! script cannot distinguish a small host from a broken program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::Exit;

/// The system's allocator, which records that an allocation has failed.
struct CheckedAllocator;

#[global_allocator]
static MEMORY: CheckedAllocator = CheckedAllocator;

static REFUSED: AtomicBool = AtomicBool::new(false);

impl CheckedAllocator {
    fn check(memory: *mut u8) -> *mut u8 {
        if memory.is_null() {
            REFUSED.store(true, Ordering::Relaxed);
        }
        memory
    }
}

// SAFETY: every method is the system allocator's, whose results are passed on unchanged.
unsafe impl GlobalAlloc for CheckedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps to GlobalAlloc::alloc's contract.
        Self::check(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps to GlobalAlloc::alloc_zeroed's contract.
        Self::check(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps to GlobalAlloc::realloc's contract.
        Self::check(unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to GlobalAlloc::dealloc's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

const MESSAGE: &str = "error: the host gives no more memory; what was written until now is kept\n  help: lower node.memory or cluster.nodes, raise the limit of this process (ulimit -v), or use a larger host\n";

/// Makes an abort after a failed allocation end the program with the exit code for a problem of the host. Other aborts remain aborts.
pub fn report_out_of_memory() {
    extern "C" fn aborted(signal: libc::c_int) {
        if REFUSED.load(Ordering::Relaxed) {
            // SAFETY: write and _exit are async-signal-safe; the message outlives the call.
            unsafe {
                libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
                libc::_exit(Exit::Host as i32);
            }
        }
        // SAFETY: signal and raise are async-signal-safe. The default action ends the program.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
    let handler: extern "C" fn(libc::c_int) = aborted;
    // SAFETY: the handler calls only async-signal-safe functions.
    unsafe { libc::signal(libc::SIGABRT, handler as libc::sighandler_t) };
}
