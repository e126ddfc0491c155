//! Checks the code where the host threads of a cluster meet, for every order of their actions with at most two interruptions
//! (fewer for some models of sleeping nodes, `Model::interrupted`), and for every value that the memory model lets them see. The code is the cluster's own, `crew.rs`, `meetings.rs` and `stretch.rs`, on loom's atomics instead of the
//! standard library's (<https://docs.rs/loom>).
//!
//! The waiting of a thread (`gate.rs`) is not checked: there a thread that may miss a call looks again after a millisecond, and no
//! model has such a time. Here a waiting thread lets the others go on, and looks again.
#![cfg(test)]

#[path = "../../../vmm/cluster/src/crew.rs"]
mod crew;
#[path = "../../../vmm/cluster/src/meetings.rs"]
mod meetings;
#[path = "../../../vmm/cluster/src/stretch.rs"]
mod stretch;

/// Takes the place of `vmm/cluster/src/sync.rs`.
mod sync {
    pub use crossbeam::utils::CachePadded;
    pub use loom::hint::spin_loop;
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

/// Takes the place of `vmm/cluster/src/gate.rs`.
mod gate {
    /// Looks before a thread that goes on by itself lets the executor wait.
    pub const PATIENCE: u32 = 1;

    #[derive(Default)]
    pub struct Gate;

    impl Gate {
        pub fn wait(&self, mut done: impl FnMut() -> bool, impatient: impl FnOnce()) {
            if done() {
                return;
            }
            impatient();
            while !done() {
                loom::thread::yield_now();
            }
        }

        pub fn open(&self) {}
    }
}

mod models;
