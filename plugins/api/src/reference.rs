//! Memory references and the traits of the models that time them.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::tables::{MemoryTables, Offer};
use crate::{Charges, Counters};

/// Kind of a memory reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Access {
    /// Data read.
    Read,
    /// Data write (a read-modify-write makes a read, then a write).
    Write,
    /// Instruction fetch, once for each line that execution enters.
    Fetch,
}

/// Which first-level cache a reference goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Side {
    /// Data.
    Data,
    /// Instructions.
    Instruction,
}

impl Access {
    /// The first-level cache this access goes to.
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
    /// CPL 3.
    User,
    /// CPL 0–2.
    Kernel,
}

/// Dense index of the address space a reference belongs to; the owner of the window maps it to a rank or process.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Context(pub u32);

/// One reference to one cache line (a reference that crosses a line is split, one `MemRef` for each line).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemRef {
    /// vCPU within its node.
    pub vcpu: u16,
    /// User or kernel.
    pub privilege: Privilege,
    /// Kind.
    pub access: Access,
    /// Address space.
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

/// What the engine's filter may answer on its own for a line from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// Nothing: ask again.
    None,
    /// Reads (or fetches).
    Read,
    /// Reads; and writes, if the model hears of the first one as [`Hits::modified`]: the line is held alone. Where a filter
    /// cannot do that it takes this for `Read`.
    Exclusive,
    /// Reads and writes: the line is held modified.
    ReadWrite,
}

/// A model's answer to a reference. Two words, also where there may be none, so that it is returned in registers: read from memory
/// in other pieces than it was written in, it would keep the host waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Stall, the permission above it, and [`Outcome::ANSWERED`].
    costs_and_grants: NonZeroU64,
    replaced: u64,
}

impl Outcome {
    /// Not the address of a line.
    const NO_LINE: u64 = u64::MAX;
    /// A bit that is always set.
    const ANSWERED: NonZeroU64 = NonZeroU64::new(1 << 63).unwrap();

    /// See the functions of the same names.
    #[inline(always)]
    pub fn new(stall: u32, filter: Permission, replaced: Option<u64>) -> Self {
        Self {
            costs_and_grants: Self::ANSWERED | u64::from(stall) | (filter as u64) << 32,
            replaced: replaced.unwrap_or(Self::NO_LINE),
        }
    }

    /// Cycles that the vCPU's clock advances in addition to the instruction's own.
    #[inline(always)]
    pub fn stall(self) -> u32 {
        self.costs_and_grants.get() as u32
    }

    /// What the filter of the *requesting* vCPU may answer for this line from now on.
    /// It replaces what the line's slot held, also where the engine keeps an array for each privilege.
    #[inline(always)]
    pub fn filter(self) -> Permission {
        match (self.costs_and_grants.get() >> 32) as u8 {
            0 => Permission::None,
            1 => Permission::Read,
            2 => Permission::Exclusive,
            _ => Permission::ReadWrite,
        }
    }

    /// Physical address of the line that left the requesting vCPU's first-level cache for this one. Needed where the
    /// filter keeps more than one line of a set ([`FilterGeometry::data_ways`]); else it may be None.
    #[inline(always)]
    pub fn replaced(self) -> Option<u64> {
        (self.replaced != Self::NO_LINE).then_some(self.replaced)
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outcome")
            .field("stall", &self.stall())
            .field("filter", &self.filter())
            .field("replaced", &self.replaced())
            .finish()
    }
}

/// What the filter of a vCPU has answered for, and the model has not heard of yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits<'a> {
    /// Of the reference's set of the vCPU's first-level cache, the line that was used least recently; None where the filter
    /// does not hold all lines of that set, or the reference's is among them. The cache replaces it if the set is still full.
    pub oldest: Option<u64>,
    /// Lines of any set of the data cache that were written under [`Permission::Exclusive`]: they are modified now. Told
    /// before the next reference of any vCPU.
    pub modified: &'a [u64],
}

/// A change to some vCPU's filter: its permission for a line becomes at most this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterUpdate {
    /// vCPU within its node.
    pub vcpu: u16,
    /// Data or instruction filter.
    pub side: Side,
    /// Physical address of the line.
    pub line: u64,
    /// New upper bound of the permission.
    pub permission: Permission,
}

/// Shape of the engine's filter that keeps a model exact: one slot for each set of the first-level cache (or fewer). A slot
/// answers for the most recently used line, hits of which change nothing, and for others where the ways say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterGeometry {
    /// log2 of the line size in bytes.
    pub line_shift: u8,
    /// log2 of the number of slots of the data filter; at most log2(sets), and `line_shift + slots <= 12`, so that the
    /// linear and the physical address agree on the slot.
    pub data_slots: u8,
    /// The same for the instruction filter.
    pub instruction_slots: u8,
    /// Lines of a slot that the filter may answer for: 1 is the most recently used alone. More, namely the ways of the
    /// cache, are allowed where a slot is exactly one set and no other vCPU uses that cache: then the order of hits is the
    /// filter's affair, and the model hears of its outcome by [`Hits::oldest`].
    pub data_ways: u8,
    /// The same for the instruction filter.
    pub instruction_ways: u8,
}

/// A timing model of the memory system of one node, as the engine drives it.
pub trait MemoryModel: Send {
    /// Filter under which this model stays exact.
    fn filter(&self) -> FilterGeometry;

    /// Account for one reference, made after these hits of the same vCPU. Changes to
    /// filters of any vCPU (also the requesting one, for other lines) are pushed to `updates`; the engine applies them before
    /// that vCPU's next reference.
    fn reference(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<FilterUpdate>,
    ) -> Outcome;

    /// What [`MemoryModel::reference`] does for a line that the first level does not hold, if it takes the place of `oldest`
    /// ([`Hits::oldest`]), no other line's permission changes in any filter, and the answer permits reads; None, with `modified` heard of
    /// and nothing else done, where that is not so or would take long. A model need not know such a way.
    fn miss(&mut self, modified: &[u64], oldest: u64, reference: &MemRef) -> Option<Outcome> {
        let _ = oldest;
        self.modified(reference.vcpu, modified);
        None
    }

    /// Offer a vCPU's tables to an engine that makes machine code, which then does for misses of reads and writes what
    /// [`MemoryModel::miss`] would. None where the caches are not what [`tables`](crate::tables) describes.
    fn tables(&mut self, vcpu: u16) -> Option<Offer> {
        let _ = vcpu;
        None
    }

    /// Returns the costs of all references since the last call, for an engine that attributes them to code. An engine takes the
    /// cycles of a stall that no term claims as [`StallTerm::Unattributed`](crate::StallTerm::Unattributed).
    fn take_charges(&mut self) -> Charges {
        Charges::default()
    }

    /// Hear of [`Hits::modified`] alone.
    fn modified(&mut self, vcpu: u16, lines: &[u64]);

    /// Forget statistics, keep state: the end of a warm-up.
    fn reset_statistics(&mut self);

    /// Every counter of this model, in an order that does not depend on the host. `counted` are the engine's counters of
    /// the same interval, needed for hits that the filter answered.
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

/// What the memory answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTiming {
    /// Latency in cycles.
    pub latency: u32,
    /// Whether the line's home is the requesting socket.
    pub local: bool,
}

/// Main memory behind the caches: decides by physical address which socket is home and how long it takes.
pub trait MemoryTimingModel: Send {
    /// Time one request.
    fn request(&mut self, miss: &MissRef) -> MemoryTiming;
    /// Home socket of a physical address.
    fn home(&self, physical: u64) -> u16;
    /// Tables by which an engine's machine code does what [`MemoryTimingModel::request`] does for a socket.
    fn tables(&self, socket: u16) -> Option<MemoryTables> {
        let _ = socket;
        None
    }
}

/// Role of a counter in the CPI equations (method R, equations 2–4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Term {
    /// CPI_L1, CPI_L2, CPI_L3, …: cache level, counted from 1.
    Cache(u8),
    /// CPI_memory.
    Memory,
    /// Informational: not a term (its cycles are zero or counted elsewhere).
    None,
}

/// One counter of a model: events of one kind and the cycles they cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistic {
    /// vCPU within its node.
    pub vcpu: u16,
    /// Address space.
    pub context: Context,
    /// User or kernel.
    pub privilege: Privilege,
    /// Stable name such as `L2.read_miss`.
    pub event: String,
    /// Equation term that these cycles belong to.
    pub term: Term,
    /// Events counted.
    pub count: u64,
    /// Latency of one event in cycles, where it is a constant.
    pub latency: u64,
    /// Cycles in total: what the clock advanced by because of these events.
    pub cycles: u64,
}
