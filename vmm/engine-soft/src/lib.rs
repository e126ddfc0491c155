//! The portable engine: decodes guest code into blocks of operations and interprets them.
//!
//! Reading order: [`vcpu`] (the engine interface), `run` (the loop), `block` (decoded blocks), `code` (what vCPUs share), `pool` (what nodes share),
//! `lookup` (what each has found), `features` (what the guest's processor decodes), `lower` (instruction → operation), `ops` (what
//! operations do), `memory` (loads and stores), `mmu` (translation), `deliver` (exceptions and interrupts), `call_gate` (call gates),
//! `debug` (breakpoints).

mod block;
mod call_gate;
mod code;
mod cpi;
mod cpu;
mod debug;
mod deliver;
mod executable;
mod fast_miss;
mod features;
mod fetch;
mod lookup;
mod lower;
mod memory;
mod mmu;
mod native;
mod op;
mod ops;
mod pool;
mod profile;
mod run;
mod softmmu;
mod split;
mod time_slice;
pub mod vcpu;

pub use code::SharedCode;
pub use native::{Activity, write_code_map};
pub use pool::{DecodedPool, PoolCounts};
pub use vcpu::{SoftConfig, SoftVcpu, StepOutcome, Translate};
