//! Atomics, locks and spin hints of threads: the standard library's here, a model checker's in `tests/interleavings`.

pub use std::hint::spin_loop;
pub use std::sync::Mutex;
pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use crossbeam::utils::CachePadded;
