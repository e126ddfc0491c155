//! Atomics, locks and spin hints for threads: those of the standard library here, those of a model checker in `tests/interleavings`.

pub use std::hint::spin_loop;
pub use std::sync::Mutex;
pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use crossbeam::utils::CachePadded;
