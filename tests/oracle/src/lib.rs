//! The host's own CPU as the oracle of the portable engine.
//!
//! One instruction at a time, in a random state, is run twice: natively ([`native`]) and on the engine ([`engine`]). The
//! states after it, the memory it could touch and the exception it raised are compared ([`compare`]). Instructions and
//! states are drawn by [`generate`] from the instructions that [`catalogue`] lists, and any case can be made again from
//! its group, seed and index. The engine does what Intel's CPUs do; on a host of AMD's the few things that those do otherwise
//! are looked up in [`vendor`], where each has its reason, and counted; on an Intel host there is nothing to look up. Whole
//! programs are run by the engine's interpreter and translator side by side in [`lockstep`].

pub mod bare;
pub mod campaign;
pub mod catalogue;
pub mod compare;
pub mod engine;
pub mod generate;
pub mod layout;
pub mod lockstep;
pub mod native;
pub mod random;
pub mod report;
pub mod state;
pub mod vendor;
