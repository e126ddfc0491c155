//! The portable engine: decodes guest code into blocks of operations, interprets them, and translates warm blocks to host code.
//!
//! Reading order:
//!
//! - [`vcpu`]: the engine interface. `run`: the run loop.
//! - `block`: decoded blocks. `code`: code that the vCPUs of a node share. `pool`: decoded operations that nodes share. `lookup`: the block
//!   table.
//! - `features`: instruction-set features of the guest's processor. `lower`: from an instruction to an operation. `ops`: handlers of
//!   operations.
//! - `memory`: loads and stores. `softmmu`: the softmmu TLB and the L0 filter cache. `site`: instructions that make references. `mmu`: page
//!   walks.
//! - `deliver`: exceptions and interrupts. `undefined`: what is told of `#UD` in user programs. `call_gate`: call gates. `debug`: breakpoints.
//! - `native`: the translator.

mod block;
mod block_costs;
mod call_gate;
mod code;
mod cpi;
mod cpu;
mod debug;
mod deliver;
mod executable;
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
mod recorder;
mod run;
mod site;
mod softmmu;
mod split;
mod time_slice;
mod undefined;
pub mod vcpu;

pub use code::SharedCode;
pub use features::Features;
pub use native::{Activity, write_code_map};
pub use pool::{DecodedPool, PoolCounts};
pub use vcpu::{SoftConfig, SoftVcpu, StepOutcome, Translate};
