//! Checks the barrier at which the host threads of a cluster meet. The checker tries every order of the threads' actions with at most two
//! interruptions (fewer for some models, see `Model::interruptions`), and every value that the memory model lets the
//! threads see. The code is the cluster's own, `host_thread.rs`, `barrier.rs` and `batch.rs`, on loom's atomics instead of the standard
//! library's (<https://docs.rs/loom>).
//!
//! The checks leave out the parker (`parker.rs`): a parked thread that may miss a call checks again after a millisecond, and models have
//! no such time. Here a waiting thread lets other threads continue, and checks again.
#![cfg(test)]

#[path = "../../../vmm/cluster/src/barrier.rs"]
mod barrier;
#[path = "../../../vmm/cluster/src/batch.rs"]
mod batch;
#[path = "../../../vmm/cluster/src/host_thread.rs"]
mod host_thread;

/// Takes the place of `vmm/cluster/src/sync.rs`.
mod sync {
    pub use crossbeam::utils::CachePadded;
    pub use loom::hint::spin_loop;
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

/// Takes the place of `vmm/cluster/src/parker.rs`.
mod parker {
    /// Spins of a node that waits at the barrier before the executor waits instead.
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
