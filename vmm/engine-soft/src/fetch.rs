//! Instruction fetch.
