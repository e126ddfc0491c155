//! Cache state that a model exports to an engine that generates machine code. The generated code does the work of
//! [`crate::MemoryModel::miss`] itself. Properties that do not change are constants in the generated code.
//!
//! The caches have three levels. The first level for data is used by one vCPU. The second level includes it and a first level for
//! instructions, if there is one. The third level is the outermost, and may have peers. Each level includes the levels inside it. A *set*
//! is a row of 32-bit words, the most recently used line first. A word without a line is 0. Otherwise a word has, from its lowest
//! bit on
//!
//! - the line's [`WordState`], three bits;
//! - a holder bit for each cache inside, set if that cache may hold the line;
//! - the *tag*: the line's number divided by the number of sets, plus one. The remainder is the set.
//!
//! The words of a set of the first level for data are not in order: the engine's L0 filter cache has the order
//! ([`crate::L0Geometry::data_ways`]). If such a set is full, the engine may exchange its words.
//!
//! Generated code follows these pointers without a check, so only unsafe code may pass them on. A memory promises with
//! [`ExportedMemory::new`] that its part is sound, and a model promises this with [`StateExport::new`] for its own part. The platform
//! controls for how long vCPUs run with a model, and makes its promise with [`StateExport::accept`]. An engine uses the resulting
//! [`AcceptedExport`].

use std::ptr::{NonNull, null};

use crate::Tally;

/// MESIF state of a line, in the lowest bits of the line's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WordState {
    /// Other caches may hold the line, too.
    Shared = 1,
    /// Other caches may hold the line, and this cache answers requests for the line.
    Forward = 2,
    /// No peer holds the line, and the line is clean.
    Exclusive = 3,
    /// No peer holds the line, and the line is dirty.
    Modified = 4,
}

/// Number of bits of a [`WordState`] in a word.
pub const STATE_BITS: u32 = 3;

/// Number of sets of a cache, in the form by which generated code divides a line's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetCount {
    /// Division by a shift; the value is log2 of the number of sets. The first two levels have this form.
    Power(u32),
    /// Division by a multiplication: the quotient is the upper half of the 128-bit product of twice the line's number and `factor`,
    /// shifted right by `shift`.
    Other {
        /// The number of sets.
        sets: u32,
        /// Factor of the multiplication.
        factor: u64,
        /// Shift after the multiplication.
        shift: u32,
    },
}

/// Layout of the sets of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetShape {
    /// Number of sets.
    pub sets: SetCount,
    /// Number of lines in a set.
    pub ways: u32,
    /// Number of words from one set to the next, a multiple of 4. Words beyond the ways are 0.
    pub stride: u32,
    /// Number of the tag's lowest bit in a word.
    pub tag_shift: u32,
}

/// Properties of the exported caches that do not change while a model is attached. They are constants in generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportedShape {
    /// Shapes of the first level for data, the second level and the third level.
    pub levels: [SetShape; 3],
    /// Shape of the first level for instructions, and its holder bit as a mask of words of the second level; `None` without this cache.
    pub instruction: Option<(SetShape, u32)>,
    /// Holder bit of the first level for data, as a mask of words of the second level.
    pub data_holder_mask: u32,
    /// Number of peers of the third level. Peers have the third level's shape.
    pub peers: usize,
    /// Indices and costs of events.
    pub events: ExportedEvents,
}

/// Indices of events among the tallies, and the cycles of events with a constant cost. Pairs are for a read and a write, except in
/// [`ExportedEvents::memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportedEvents {
    /// Indices of hits, by level. The first level's indices are not used.
    pub hit: [[u32; 2]; 3],
    /// Indices of misses, by level.
    pub miss: [[u32; 2]; 3],
    /// Index of the write-back of a modified line that leaves a level, by level.
    pub write_back: [u32; 3],
    /// Indices of fills from memory, then of write-backs to memory. Each pair is for memory of the requester's socket and of another
    /// socket.
    pub memory: [[u32; 2]; 2],
    /// Cycles of an L2 hit, of an L3 hit, and of a miss of all three levels without the memory's cycles. The misses of the levels inside
    /// are included.
    pub stall: [[u32; 2]; 3],
    /// The cycles of `stall`, split by the level to which they are charged.
    pub stall_by_level: [[[u32; 3]; 2]; 3],
    /// Cycles of the write-back of a modified line that leaves a level, without the memory's cycles.
    pub write_back_stall: [u32; 3],
}

/// Largest number of caches inside the third level, each with its own holder bit.
pub const MAX_INNER_CACHES: usize = 13;
/// Largest number of peers of the third level.
pub const MAX_PEERS: usize = 7;

/// Cache state that generated code of one vCPU reads and changes. The model brings this state up to date in each of its functions that
/// serves references. Between these calls, generated code may change the state by the same rules as the model.
#[derive(Debug)]
#[repr(C)]
pub struct ExportedCaches {
    /// First line number that only the model serves; generated code serves the lines below. 0 while nothing is exported.
    pub line_limit: u64,
    /// The [`crate::Context`] whose events `tallies` count.
    pub context: u32,
    /// Holder bit of this vCPU's second level, as a mask of words of the third level.
    pub l3_holder_mask: u32,
    /// Holder bits of all other second levels, as a mask of words of the third level.
    pub l3_other_holders: u32,
    /// Index of the vCPU's socket among homes, as the memory numbers them.
    pub socket: u32,
    /// First tallies of the two privileges: user, kernel.
    pub tallies: [*mut Tally; 2],
    /// First words of four caches: the first level for data, the first level for instructions, the second level and the third level.
    pub words: [*mut u32; 4],
    /// First words of the second levels inside the third level, by the number of the holder bit.
    pub inner_caches: [*mut u32; MAX_INNER_CACHES],
    /// First words of the third level's peers.
    pub peers: [*mut u32; MAX_PEERS],
    /// Range of addresses whose home the memory looked up last.
    pub recent_home: *const RecentHome,
    /// Cycles by home: of a fill from memory, and of a write-back to memory.
    pub latencies: [*const u32; 2],
    /// Mask of the tag's bits, by cache as in `words`, repeated four times for a vector.
    pub tag_masks: [[u32; 4]; 4],
    /// The numbers 0 to 31, for vector comparisons with the number of a way.
    pub way_numbers: [u32; 32],
}

/// Export of a model's cache state for one vCPU ([`crate::MemoryModel::export_state`]). An engine must not follow the pointers before
/// [`StateExport::accept`].
#[derive(Debug)]
pub struct StateExport {
    shape: ExportedShape,
    caches: NonNull<ExportedCaches>,
}

impl StateExport {
    /// Makes an export.
    ///
    /// # Safety
    /// The following must hold while the model exists, until the model makes another export for that vCPU, whenever none of its functions
    /// runs:
    ///
    /// - `caches` may be read. If [`ExportedCaches::line_limit`] is not zero, its pointers are valid for the caches that `shape`
    ///   describes: words of caches and tallies may be read and written, data that belongs to memory may be read.
    /// - Changes of words and tallies by the rules of this module never cause the model to access memory that is not its own.
    pub unsafe fn new(shape: ExportedShape, caches: NonNull<ExportedCaches>) -> Self {
        Self { shape, caches }
    }

    /// Returns the constants of the exported caches.
    pub fn shape(&self) -> &ExportedShape {
        &self.shape
    }

    /// Returns the exported caches.
    pub fn caches(&self) -> NonNull<ExportedCaches> {
        self.caches
    }

    /// Accepts the export on behalf of an engine.
    ///
    /// # Safety
    /// Until the vCPU is attached anew or detached, and whenever the vCPU runs: the model exists, makes no other export for that vCPU,
    /// and is used only by the platform's functions that this vCPU calls.
    pub unsafe fn accept(self) -> AcceptedExport {
        AcceptedExport(self)
    }
}

/// Exported cache state that generated code may use, for as long as the caller of [`StateExport::accept`] promised.
#[derive(Debug)]
pub struct AcceptedExport(StateExport);

impl AcceptedExport {
    /// Returns the constants of the exported caches.
    pub fn shape(&self) -> &ExportedShape {
        &self.0.shape
    }

    /// Returns the exported caches.
    pub fn caches(&self) -> NonNull<ExportedCaches> {
        self.0.caches
    }
}

/// Range of physical addresses with one home: the range that was looked up last.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RecentHome {
    /// First physical address of the range.
    pub start: u64,
    /// Last physical address of the range.
    pub last: u64,
    /// Index of the home.
    pub home: u64,
}

impl RecentHome {
    /// Range of all addresses, whose home has index 0.
    pub const ALL: RecentHome = RecentHome {
        start: 0,
        last: u64::MAX,
        home: 0,
    };
    /// Empty range, which no address is in.
    pub const NONE: RecentHome = RecentHome {
        start: 1,
        last: 0,
        home: 0,
    };
}

/// State that a memory exports for the requests of one socket. The state is valid as long as the memory exists and is not moved.
#[derive(Clone, Copy, Debug)]
pub struct ExportedMemory {
    recent_home: *const RecentHome,
    latencies: [*const u32; 2],
    socket: u32,
}

impl ExportedMemory {
    /// State of a memory that exports nothing: no address has a known home.
    pub const NOTHING: ExportedMemory = ExportedMemory {
        recent_home: &RecentHome::NONE,
        latencies: [null(); 2],
        socket: 0,
    };

    /// Makes an export of [`ExportedCaches::recent_home`] and [`ExportedCaches::latencies`]. `socket` is the requester's index among homes.
    ///
    /// # Safety
    /// As long as the memory exists and is not moved, and whenever none of its functions runs: `recent_home` may be read. If any
    /// address belongs to that range, element [`RecentHome::home`] of both `latencies` may be read, too.
    pub unsafe fn new(
        recent_home: *const RecentHome,
        latencies: [*const u32; 2],
        socket: u32,
    ) -> Self {
        Self {
            recent_home,
            latencies,
            socket,
        }
    }

    /// Returns the pointer for [`ExportedCaches::recent_home`].
    pub fn recent_home(&self) -> *const RecentHome {
        self.recent_home
    }

    /// Returns the pointers for [`ExportedCaches::latencies`].
    pub fn latencies(&self) -> [*const u32; 2] {
        self.latencies
    }

    /// Returns the requester's index among homes.
    pub fn socket(&self) -> u32 {
        self.socket
    }
}
