//! Differential test: the host's own CPU is the reference for the portable engine.
//!
//! Each case is one instruction in a random state. It runs natively ([`native`]) and on the engine ([`engine`]). Then the states, the
//! memory that the instruction can access and the exceptions are compared ([`compare`]). [`generate`] draws cases from the instructions in
//! [`catalogue`]. Group, seed, index and variant reproduce any case. The engine follows Intel's CPUs. On a host with an AMD CPU, [`vendor`]
//! has the few rules by which AMD differs, each with its reason, and cases that need a rule are counted. [`lockstep`] runs whole programs
//! on the engine's interpreter and translator and compares both.

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
