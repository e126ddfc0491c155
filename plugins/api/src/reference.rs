//! Memory references and the traits of the models that time them.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::exported::{ExportedMemory, StateExport};
use crate::{Charges, Counters};

/// Kind of a memory reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Access {
    /// Read of data.
    Read,
    /// Data write (a read-modify-write makes a read, then a write).
    Write,
    /// Instruction fetch, once for each line that execution enters.
    Fetch,
}

/// First-level cache that a reference goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Side {
    /// First-level data cache.
    Data,
    /// First-level instruction cache.
    Instruction,
}

impl Access {
    /// Returns the first-level cache that this access goes to.
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
pub enum Privilege {
    /// User mode: CPL 3.
    User,
    /// Kernel mode: CPL 0–2.
    Kernel,
}

/// Dense index of the address space a reference belongs to; the owner of the window maps it to a rank or process.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Context(pub u32);

/// Reference to one cache line. A reference that crosses lines is split into one `MemRef` for each line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemRef {
    /// Number of the vCPU within its node.
    pub vcpu: u16,
    /// Privilege at which the reference was made.
    pub privilege: Privilege,
    /// Kind of the reference: data read, data write or instruction fetch.
    pub access: Access,
    /// Address space that the reference belongs to.
    pub context: Context,
    /// Guest-physical address of the first byte.
    pub physical: u64,
    /// Guest-linear address of the first byte.
    pub linear: u64,
    /// Bytes referenced within the line.
    pub size: u32,
    /// The vCPU's clock in cycles.
    pub now: u64,
}

/// Accesses to a line that the engine's L0 filter cache may answer on its own from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// No access: the filter cache must ask the model again.
    None,
    /// Reads (or fetches).
    Read,
    /// Reads, and writes if the first write is reported to the model as [`Hits::modified`]: no other cache holds the line. An L0 filter
    /// cache that cannot report the write treats this permission as `Read`.
    Exclusive,
    /// Reads and writes: the line is held modified.
    ReadWrite,
}

/// A model's answer to a reference. The answer has two words, also as an `Option`, so that it is returned in registers. An answer in
/// memory that is read in other pieces than it was written in would stall the host's store forwarding.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Stall, the permission above it, and [`Outcome::ANSWERED`].
    costs_and_grants: NonZeroU64,
    replaced: u64,
}

impl Outcome {
    /// Value that is not the address of a line.
    const NO_LINE: u64 = u64::MAX;
    /// A bit that is always set.
    const ANSWERED: NonZeroU64 = NonZeroU64::new(1 << 63).unwrap();

    /// Makes an answer of [`Outcome::stall`], [`Outcome::permission`] and [`Outcome::replaced`].
    #[inline(always)]
    pub fn new(stall: u32, permission: Permission, replaced: Option<u64>) -> Self {
        Self {
            costs_and_grants: Self::ANSWERED | u64::from(stall) | (permission as u64) << 32,
            replaced: replaced.unwrap_or(Self::NO_LINE),
        }
    }

    /// Returns the cycles by which the vCPU's clock advances in addition to the instruction's own.
    #[inline(always)]
    pub fn stall(self) -> u32 {
        self.costs_and_grants.get() as u32
    }

    /// Returns the permission of the *requesting* vCPU's L0 filter cache for this line from now on. The line and its permission replace
    /// the contents of the line's slot, also where the engine keeps an array for each privilege.
    #[inline(always)]
    pub fn permission(self) -> Permission {
        match (self.costs_and_grants.get() >> 32) as u8 {
            0 => Permission::None,
            1 => Permission::Read,
            2 => Permission::Exclusive,
            _ => Permission::ReadWrite,
        }
    }

    /// Returns the physical address of the line that left the requesting vCPU's first-level cache for this line. An L0 filter cache needs
    /// this address if it keeps more than one line of a set ([`L0Geometry::data_ways`]). Otherwise the address may be None.
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

/// Hits that a vCPU's L0 filter cache has answered and that were not reported to the model yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits<'a> {
    /// The least recently used line in the reference's set of the vCPU's first-level cache. The cache replaces this line if the set is
    /// still full. None where the L0 filter cache does not keep all lines of that set, or keeps the reference's line.
    pub oldest: Option<u64>,
    /// Lines of any set of the data cache that were written under [`Permission::Exclusive`], and are modified now. They are reported
    /// before the next reference of any vCPU.
    pub modified: &'a [u64],
}

/// Change to some vCPU's L0 filter cache: an upper bound of the permission for a line.
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

/// Shape of the engine's L0 filter cache that keeps a model exact: one slot for each set of the first-level cache, or fewer slots. A slot
/// answers for the set's most recently used line, since a hit of this line changes nothing. A slot answers for further lines if
/// `data_ways` or `instruction_ways` is more than 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct L0Geometry {
    /// log2 of the line size in bytes.
    pub line_shift: u8,
    /// log2 of the number of slots for data: at most log2(sets), and `line_shift + slots <= 12`, so that the linear and the physical
    /// address agree on the slot.
    pub data_slots: u8,
    /// log2 of the number of slots for instructions.
    pub instruction_slots: u8,
    /// Lines that a data slot may answer for. 1: only the most recently used line. More, namely the ways of the cache, are allowed where
    /// a slot is exactly one set and no other vCPU uses that cache. The L0 filter cache then keeps the order of the lines, and names the
    /// least recently used line to the model ([`Hits::oldest`]).
    pub data_ways: u8,
    /// Lines that an instruction slot may answer for, by the rule of `data_ways`.
    pub instruction_ways: u8,
}

/// A timing model of the memory system of one node, as the engine drives it.
pub trait MemoryModel: Send {
    /// Returns the shape of the L0 filter cache under which this model stays exact.
    fn l0_geometry(&self) -> L0Geometry;

    /// Accounts for one reference that a vCPU made after these hits. Changes to the L0 filter cache of any vCPU are pushed to `updates`
    /// (also changes for other lines of the requesting vCPU). The engine applies a change before that vCPU's next reference.
    fn reference(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome;

    /// Accounts for a miss by the fast miss path, with the effect of [`MemoryModel::reference`]. The first level does not hold the line.
    /// The fast miss path serves the miss if the line replaces `oldest` ([`Hits::oldest`]), no other line's permission changes in any L0
    /// filter cache, and the answer permits reads. Otherwise, or where the work would take long, the answer is None: then nothing was done
    /// but to record `modified` ([`Hits::modified`]). A model need not have a fast miss path.
    fn miss(&mut self, modified: &[u64], oldest: u64, reference: &MemRef) -> Option<Outcome> {
        let _ = oldest;
        self.modified(reference.vcpu, modified);
        None
    }

    /// Exports the cache state of a vCPU to an engine that generates machine code. The code then does the work of [`MemoryModel::miss`]
    /// for misses of reads and writes. None where the caches are not as [`exported`](crate::exported) describes.
    fn export_state(&mut self, vcpu: u16) -> Option<StateExport> {
        let _ = vcpu;
        None
    }

    /// Returns the costs of all references since the last call, for an engine that attributes them to code. An engine takes the
    /// cycles of a stall that no term claims as [`StallTerm::Unattributed`](crate::StallTerm::Unattributed).
    fn take_charges(&mut self) -> Charges {
        Charges::default()
    }

    /// Records lines that became modified ([`Hits::modified`]), without a reference.
    fn modified(&mut self, vcpu: u16, lines: &[u64]);

    /// Clears the statistics and keeps the caches' state, at the end of a warm-up.
    fn reset_statistics(&mut self);

    /// Returns every counter of this model, in an order that does not depend on the host. `counted` are the engine's counters of the
    /// same interval, which include the hits that the L0 filter cache answered.
    fn statistics(&self, counted: &[(u16, Context, Privilege, Counters)]) -> Vec<Statistic>;
}

/// A request that left the last cache level (or every reference, where no cache is attached).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissRef {
    /// Socket the request comes from.
    pub socket: u16,
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
    /// Whether the line's home is the requesting socket.
    pub local: bool,
}

/// Main memory behind the caches: decides by physical address which socket is home and how long it takes.
pub trait MemoryTimingModel: Send {
    /// Returns the latency of one request.
    fn request(&mut self, miss: &MissRef) -> MemoryTiming;
    /// Returns the home socket of a physical address.
    fn home(&self, physical: u64) -> u16;
    /// Exports the state by which an engine's machine code does the work of [`MemoryTimingModel::request`] for a socket. None where the
    /// memory exports nothing.
    fn export_state(&self, socket: u16) -> Option<ExportedMemory> {
        let _ = socket;
        None
    }
}

/// Role of a counter in the CPI equations (method R, equations 2–4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Term {
    /// CPI_L1, CPI_L2, CPI_L3, …: cache level, counted from 1.
    Cache(u8),
    /// Memory access: CPI_memory.
    Memory,
    /// Informational: not a term (its cycles are zero or counted elsewhere).
    None,
}

/// Counter of a model: events of one kind and the cycles they cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistic {
    /// Number of the vCPU within its node.
    pub vcpu: u16,
    /// Address space to which the events belong.
    pub context: Context,
    /// User or kernel.
    pub privilege: Privilege,
    /// Stable name such as `L2.read_miss`.
    pub event: String,
    /// Equation term that these cycles belong to.
    pub term: Term,
    /// Number of events.
    pub count: u64,
    /// Latency of one event in cycles, where it is a constant.
    pub latency: u64,
    /// Cycles in total: what the clock advanced by because of these events.
    pub cycles: u64,
}
