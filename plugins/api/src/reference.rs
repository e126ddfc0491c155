//! Memory references, and the traits of the models that determine their stalls.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::{Charges, ContendedLine, Counters, DirectMisses, ModelFile, Prefetched};

/// Kind of a memory reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Access {
    /// Read of data.
    Read,
    /// Data write (a read-modify-write makes a read, then a write).
    Write,
    /// Instruction fetch, once for each line that execution enters.
    Fetch,
}

/// First-level cache to which a reference goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Side {
    /// First-level data cache.
    Data,
    /// First-level instruction cache.
    Instruction,
}

impl Access {
    /// Returns the first-level cache to which this access goes.
    pub fn side(self) -> Side {
        if self == Access::Fetch {
            Side::Instruction
        } else {
            Side::Data
        }
    }
}

/// Privilege at which a reference was made or an instruction retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum Privilege {
    /// User mode: CPL 3.
    User,
    /// Kernel mode: CPL 0–2.
    Kernel,
}

/// Dense index of a context: an address space and the MPI function that its running thread is inside, if any. The owner of the window maps
/// the index to a rank or process, and to that function.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[repr(transparent)]
pub struct Context(pub u32);

/// Instruction that makes a reference: number of its block, and of the operation within the block. An engine numbers blocks from 1 on in
/// the order of their first execution in a window. Block 0 stands for references outside of numbered blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct Site {
    /// Number of the block.
    pub block: u32,
    /// Number of the operation within the block, from 0 on.
    pub operation: u32,
}

/// Reference to one cache line. A reference that crosses lines is split into one `MemRef` for each line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MemRef {
    /// Number of the vCPU within its node.
    pub vcpu: u16,
    /// Privilege at which the reference was made.
    pub privilege: Privilege,
    /// Kind of the reference: data read, data write or instruction fetch.
    pub access: Access,
    /// Context that the reference belongs to: address space and MPI function.
    pub context: Context,
    /// Guest-physical address of the first byte.
    pub physical: u64,
    /// Guest-linear address of the first byte.
    pub linear: u64,
    /// Number of bytes referenced within the line.
    pub size: u32,
    /// The vCPU's clock at the reference, in cycles.
    pub now: u64,
    /// The instruction that makes the reference.
    pub site: Site,
    /// True for a store with a non-temporal hint (SDM vol. 1 §10.4.6.2).
    pub non_temporal: bool,
    /// True for the read and the write of a locked instruction (SDM vol. 3A §9.1.2).
    pub locked: bool,
    /// True if a page of more than 4 KiB maps the address. Always false unless [`L0Geometry::page_sizes`] asks for it.
    pub large_page: bool,
}

/// Accesses to a line that the engine's L0 filter cache may answer without asking the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// No access: the L0 filter cache must ask the model.
    None,
    /// Reads, or fetches on the instruction side.
    Read,
    /// Reads, and writes if the first write is reported to the model as [`Hits::modified`]. No other cache holds the line. An L0 filter
    /// cache that cannot report the write treats this permission as `Read`.
    Exclusive,
    /// Reads and writes: the line is modified.
    ReadWrite,
}

/// A model's answer to a reference. The answer has two 64-bit words, so that functions return it in registers. An answer in memory would
/// defeat the host's store forwarding if it were read in other pieces than it was written in.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Outcome {
    /// Stall in bits 0 to 31, permission in bits 32 to 39, [`Outcome::UPDATES`], and [`Outcome::ANSWERED`].
    costs_and_grants: NonZeroU64,
    replaced: u64,
}

impl Outcome {
    /// Value that is not the address of a line.
    const NO_LINE: u64 = u64::MAX;
    /// Bit that is set if the model keeps updates.
    const UPDATES: u64 = 1 << 40;
    /// Bit that is always set, so that the word is never zero.
    const ANSWERED: NonZeroU64 = NonZeroU64::new(1 << 63).unwrap();

    /// Makes an answer with this [`Outcome::stall`] in cycles, [`Outcome::permission`] and [`Outcome::replaced`].
    #[inline(always)]
    pub fn new(stall: u32, permission: Permission, replaced: Option<u64>) -> Self {
        Self {
            costs_and_grants: Self::ANSWERED | u64::from(stall) | (permission as u64) << 32,
            replaced: replaced.unwrap_or(Self::NO_LINE),
        }
    }

    /// Returns the answer with another stall.
    #[inline(always)]
    pub fn with_stall(self, stall: u32) -> Self {
        let others = self.costs_and_grants.get() & !u64::from(u32::MAX);
        Self {
            costs_and_grants: Self::ANSWERED | others | u64::from(stall),
            ..self
        }
    }

    /// Returns the answer of a direct miss with this [`Outcome::has_updates`].
    #[inline(always)]
    pub fn with_updates(self, kept: bool) -> Self {
        let bit = if kept { Self::UPDATES } else { 0 };
        Self {
            costs_and_grants: self.costs_and_grants | bit,
            ..self
        }
    }

    /// Returns the upper half of the first word of an answer with this permission, for generated code. The lower half is the stall. Answers
    /// that tell of updates have another upper half.
    pub const fn upper_half(permission: Permission) -> u32 {
        (Self::ANSWERED.get() >> 32) as u32 | permission as u32
    }

    /// Returns whether the model keeps changes to L0 filter caches, as answers of direct misses tell ([`MemoryModel::take_updates`]).
    #[inline(always)]
    pub fn has_updates(self) -> bool {
        self.costs_and_grants.get() & Self::UPDATES != 0
    }

    /// Returns the cycles by which the vCPU's clock advances in addition to the instruction's own.
    #[inline(always)]
    pub fn stall(self) -> u32 {
        self.costs_and_grants.get() as u32
    }

    /// Returns the permission for this line that the *requesting* vCPU's L0 filter cache has from now on. The line and its permission
    /// replace the contents of the line's slot, for both privileges even if the engine has separate slots for each.
    #[inline(always)]
    pub fn permission(self) -> Permission {
        match (self.costs_and_grants.get() >> 32) as u8 {
            0 => Permission::None,
            1 => Permission::Read,
            2 => Permission::Exclusive,
            _ => Permission::ReadWrite,
        }
    }

    /// Returns the physical address of the line that this line replaced in the requesting vCPU's first-level cache. An L0 filter cache
    /// needs this address if it holds more than one line of a set ([`L0Geometry::data_ways`]). Otherwise the address may be `None`.
    #[inline(always)]
    pub fn replaced(self) -> Option<u64> {
        (self.replaced != Self::NO_LINE).then_some(self.replaced)
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outcome")
            .field("stall", &self.stall())
            .field("permission", &self.permission())
            .field("replaced", &self.replaced())
            .finish()
    }
}

/// Effects of a vCPU's L0 filter cache hits that the model does not know yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits<'a> {
    /// The least recently used line in the reference's set of the vCPU's first-level cache, as a physical address. The cache replaces
    /// this line if the set is still full. `None` if the L0 filter cache does not hold all lines of that set, or holds the reference's
    /// line.
    pub oldest: Option<u64>,
    /// Physical addresses of lines of the data cache that were written under [`Permission::Exclusive`], and are now modified. Lines
    /// of any set are reported before the next reference of any vCPU.
    pub modified: &'a [u64],
}

/// Change to the L0 filter cache of one vCPU: a new upper bound of the permission for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L0Update {
    /// Number of the vCPU within its node.
    pub vcpu: u16,
    /// Side of the L0 filter cache: data or instructions.
    pub side: Side,
    /// Physical address of the line.
    pub line: u64,
    /// New upper bound of the permission.
    pub permission: Permission,
}

/// Shape of the L0 filter cache under which a model stays exact: one slot for each set of the first-level cache, or fewer slots. A slot
/// answers for the set's most recently used line, since a hit of this line changes nothing. A slot answers for further lines if
/// `data_ways` or `instruction_ways` is more than 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct L0Geometry {
    /// log2 of the line size in bytes.
    pub line_shift: u8,
    /// log2 of the number of slots for data: at most log2(sets), and `line_shift + data_slots <= 12`, so that the linear and the physical
    /// address agree on the slot.
    pub data_slots: u8,
    /// log2 of the number of slots for instructions.
    pub instruction_slots: u8,
    /// Number of lines for which a data slot may answer. 1: only the most recently used line. The number of ways of the cache is allowed
    /// if a slot is exactly one set and no other vCPU uses that cache. The L0 filter cache then keeps the order of the lines, and reports
    /// the least recently used line to the model ([`Hits::oldest`]).
    pub data_ways: u8,
    /// Number of lines for which an instruction slot may answer, by the rule of `data_ways`.
    pub instruction_ways: u8,
    /// True if the model asks for [`MemRef::large_page`]. The model then has no function for direct misses.
    #[serde(default, skip_serializing_if = "is_false")]
    pub page_sizes: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Lines that vCPUs took from each other, for a node that decides how long its vCPUs run in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineMoves {
    /// Number of times that a vCPU took a line that another vCPU had written.
    pub count: u64,
    /// Clock in cycles up to which the vCPU that took the last line should run, even beyond its time slice.
    pub keeps_until: u64,
}

/// A timing model of the memory system of one node. The engine calls these functions.
pub trait MemoryModel: Send {
    /// Returns the shape of the L0 filter cache under which this model stays exact.
    fn l0_geometry(&self) -> L0Geometry;

    /// Accounts for one reference that a vCPU made after these hits, and returns its answer. Changes to the L0 filter cache of any vCPU
    /// are pushed to `updates` (also for other lines of the requesting vCPU). The engine applies a change before that vCPU's next
    /// reference.
    fn reference(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome;

    /// Returns a function that serves misses of the first level for generated code. `None` if the model has none.
    fn direct_misses(&mut self) -> Option<DirectMisses> {
        None
    }

    /// Pushes the changes to L0 filter caches that direct misses have caused since the last call to `updates`.
    fn take_updates(&mut self, updates: &mut Vec<L0Update>) {
        let _ = updates;
    }

    /// Returns the charges of all references since the last call, for an engine that attributes them to code. If the charges are less
    /// than a stall, the engine counts the difference as [`StallTerm::Unattributed`](crate::StallTerm::Unattributed).
    fn take_charges(&mut self) -> Charges {
        Charges::default()
    }

    /// Pushes the lines that prefetchers have brought because of the last reference that they saw to `prefetched`, each once.
    fn take_prefetched(&mut self, prefetched: &mut Vec<Prefetched>) {
        let _ = prefetched;
    }

    /// Returns the lines that vCPUs have taken from each other so far.
    fn line_moves(&self) -> LineMoves {
        LineMoves::default()
    }

    /// Returns the lines that vCPUs have taken from each other since the statistics were last cleared, in an order that does not depend on
    /// the host.
    fn contended_lines(&self) -> Vec<ContendedLine> {
        Vec::new()
    }

    /// Delivers what the model keeps back, such as events of a batch that is not full. Called before statistics are read.
    fn flush(&mut self) {}

    /// Returns the files of observers when a window closes.
    fn take_files(&mut self) -> Vec<ModelFile> {
        Vec::new()
    }

    /// Returns why a model cannot go on, as a sentence that begins with the model's name; `None` if all can. The answers of the memory model
    /// then mean nothing.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Records lines that became modified ([`Hits::modified`]), without a reference.
    fn modified(&mut self, vcpu: u16, lines: &[u64]);

    /// Clears the statistics at the end of a warm-up. The caches' contents stay.
    fn reset_statistics(&mut self);

    /// Returns every counter of this model, in an order that does not depend on the host. `counted` has the engine's counters of the
    /// same interval, which include the hits that the L0 filter cache answered.
    fn statistics(&self, counted: &[(u16, Context, Privilege, Counters)]) -> Vec<Statistic>;
}

/// A request to memory from the last cache level (or from a vCPU, for every reference, if no cache is attached).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissRef {
    /// Number of the requesting socket.
    pub socket: u16,
    /// Number of the requesting vCPU within its node.
    pub vcpu: u16,
    /// Physical address of the line.
    pub line: u64,
    /// True for a write-back of a dirty line, false for a fill.
    pub write_back: bool,
    /// Clock of the requesting vCPU in cycles.
    pub now: u64,
}

/// Answer of the memory to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTiming {
    /// Latency in cycles.
    pub latency: u32,
    /// True if the line's home is the requesting socket.
    pub local: bool,
    /// Cycles that the requester waits because vCPUs share the memory's bandwidth. Nothing hides them, and prefetches and write-backs cost
    /// them as well.
    pub toll: u32,
}

/// Main memory behind the caches: determines the home socket of an address and the latency of a request.
pub trait MemoryTimingModel: Send {
    /// Returns the latency of one request.
    fn request(&mut self, miss: &MissRef) -> MemoryTiming;
    /// Returns the home socket of a physical address.
    fn home(&self, physical: u64) -> u16;
}

/// Term of the CPI equations to which a counter belongs (Rechistov 2013, equations 2–4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Term {
    /// CPI_L1, CPI_L2, CPI_L3 and so on: the cache level, counted from 1.
    Cache(u8),
    /// Memory access: CPI_memory.
    Memory,
    /// The own term of a registered model, whose name stands before the dot of the event's name.
    Model,
    /// No term, for information only (the cycles are zero or counted elsewhere).
    None,
}

/// Counter of a model: number of events of one kind, and the cycles that they cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistic {
    /// Number of the vCPU within its node.
    pub vcpu: u16,
    /// Context to which the events belong: address space and MPI function.
    pub context: Context,
    /// Privilege at which the events happened.
    pub privilege: Privilege,
    /// Stable name such as `L2.read_miss`.
    pub event: String,
    /// Term of the CPI equations to which the cycles belong.
    pub term: Term,
    /// Number of events.
    pub count: u64,
    /// Latency of one event in cycles; 0 if the latency is not constant.
    pub latency: u64,
    /// Total cycles by which these events advanced the vCPU's clock.
    pub cycles: u64,
}
