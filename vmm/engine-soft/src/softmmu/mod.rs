//! Softmmu TLB and L0 filter cache: loads, stores and fetches ask here first whether an access may go ahead without a page walk and without
//! the model.
//!
//! - [`DataTlb`] serves loads and stores. With no model attached, an entry holds a page: the softmmu TLB. In a window an entry holds the
//!   most recently used line of a set of the model's first-level cache: the L0 filter cache.
//! - [`InstructionL0`] has the most recently used instruction lines, in a window.
//!
//! Where the model allows it, both keep the other lines of each set, too. Hits anywhere in the first level then need no call of the model.
//! [`LruSets`] has these lines and their order, [`WayDirectory`] the linear and host addresses of data lines. When the model must replace a
//! line of a full set, the engine names the oldest line. The engine reports lines that became modified ([`ModifiedLines`]) before the next
//! reference of any vCPU.
//!
//! A *way* is given by an index that counts through the ways of all sets.

mod data_tlb;
mod instruction_l0;
mod isa;
mod lru_sets;
#[cfg(test)]
mod tests;
mod way_directory;

pub use data_tlb::{DataTlb, LARGE_SHIFT, PAGE_SHIFT, PageMapping, TlbEntry, TlbLayout};
pub use instruction_l0::InstructionL0;
pub use isa::{Avx2, Baseline, Isa};
pub use lru_sets::{LruSets, NO_LINE, Placement, TICK};
pub use way_directory::{ModifiedLines, WayDirectory, WayEntry, WritePermission};
