//! Model checks of the barrier at which the host threads of a cluster wait for each other. The checker, loom (<https://docs.rs/loom>),
//! tries every order of the threads' actions with at most two preemptions (fewer for some models, see `Model::interruptions`). It also
//! tries every value that the memory model lets the threads read. The code is the cluster's own, `host_thread.rs`, `barrier.rs` and
//! `batch.rs`, with loom's atomics instead of the standard library's.
//!
//! The checks leave out the parker (`parker.rs`): a parked thread that misses a wake-up checks again after a millisecond, and models have
//! no time. Here a waiting thread yields to other threads, and checks again.
#![cfg(test)]

#[path = "../../../vmm/cluster/src/barrier.rs"]
mod barrier;
#[path = "../../../vmm/cluster/src/batch.rs"]
mod batch;
#[path = "../../../vmm/cluster/src/host_thread.rs"]
mod host_thread;

/// Replacement of `vmm/cluster/src/sync.rs`, with loom's primitives.
mod sync {
    pub use crossbeam::utils::CachePadded;
    pub use loom::hint::spin_loop;
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

/// Replacement of `vmm/cluster/src/parker.rs`, without sleep.
mod parker {
    /// Number of failed checks of the barrier after which `arrive_and_wait` gives up, and the host thread waits in `Parker::wait_until`.
    pub const SHORT_SPINS: u32 = 1;

    #[derive(Default)]
    pub struct Parker;

    impl Parker {
        pub fn wait_until(&self, mut done: impl FnMut() -> bool, on_long_wait: impl FnOnce()) {
            if done() {
                return;
            }
            on_long_wait();
            while !done() {
                loom::thread::yield_now();
            }
        }

        pub fn unpark_all(&self) {}
    }
}

mod models;
