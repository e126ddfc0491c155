//! Handlers of operations, one family of instructions a file.

pub mod control;
pub mod integer;
pub mod random;
pub mod simd;
pub mod string;
pub mod system;
