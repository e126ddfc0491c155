//! Cache state that a model exports to an engine that generates machine code. The generated code does the work of
//! [`crate::MemoryModel::miss`] itself, and has everything that does not change as constants.
//!
//! The caches have three levels: a first level for data that one vCPU uses, a second level around it (and around a first level for
//! instructions, if there is one), and a third level, which is the outermost and may have peers. Each level includes the levels inside
//! it. A *set* is a row of words of 32 bits, the most recently used line first. A word is 0 where there is no line. Otherwise a word has,
//! from its lowest bit on
//!
//! - the line's [`WordState`], three bits;
//! - a bit for each cache inside that may hold the line;
//! - the *tag*: the line's number divided by the number of sets, plus one. The remainder is the set.
//!
//! The sets of the first level for data are not in order: the engine's L0 filter cache has the order
//! ([`crate::L0Geometry::data_ways`]). Where such a set is full, the engine may exchange its words.
//!
//! Machine code follows these pointers without a check, so only unsafe code may pass the pointers on. A memory promises by
//! [`ExportedMemory::new`] that its part is sound, a model by [`StateExport::new`]. A platform knows for how long vCPUs run with a model,
//! and promises this by [`StateExport::accept`]. An engine uses the resulting [`AcceptedExport`].

use std::ptr::{NonNull, null};

use crate::Tally;

/// State of a line in the lowest bits of its word, after MESIF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WordState {
    /// Others may hold the line, too.
    Shared = 1,
    /// Others may hold the line, and this cache answers requests for the line.
    Forward = 2,
    /// No peer holds the line, and the line is clean.
    Exclusive = 3,
    /// No peer holds the line, and the line was written.
    Modified = 4,
}

/// Bits of a [`WordState`].
pub const STATE_BITS: u32 = 3;

/// Number of sets of a cache, in the form in which a line's number is divided by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetCount {
    /// By shifting: log2 of the number. The first two levels have such numbers.
    Power(u32),
    /// By multiplication: the quotient is the upper half of the 128-bit product of twice the line's number and `factor`, shifted right by
    /// `shift`.
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
    /// Lines of a set.
    pub ways: u32,
    /// Words from one set to the next, a multiple of 4. Words beyond the ways are 0.
    pub stride: u32,
    /// Lowest bit of the tag.
    pub tag_shift: u32,
}

/// Properties of the exported caches that do not change while a model is attached: constants of generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportedShape {
    /// First level for data, second level, third level.
    pub levels: [SetShape; 3],
    /// First level for instructions, if there is one, and its holder bit in words of the second level.
    pub instruction: Option<(SetShape, u32)>,
    /// Holder bit of the first level for data in words of the second level.
    pub data_holder_bit: u32,
    /// Number of peers of the third level. Peers have the third level's shape.
    pub peers: usize,
    /// Indices and costs of events.
    pub events: ExportedEvents,
}

/// Indices of events among the tallies, and the cycles of events with a constant cost. Pairs are for reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportedEvents {
    /// A hit, by level. The first level's index is not used.
    pub hit: [[u32; 2]; 3],
    /// A miss, by level.
    pub miss: [[u32; 2]; 3],
    /// A modified line that leaves a level.
    pub write_back: [u32; 3],
    /// A line from memory: from the requester's socket, and from another socket. Then the two events for lines written back.
    pub memory: [[u32; 2]; 2],
    /// Cycles of an L2 hit, of an L3 hit, and of a miss of all three levels without the memory's cycles. Misses of the levels inside are
    /// included.
    pub stall: [[u32; 2]; 3],
    /// The cycles of `stall` by the level that is charged.
    pub stall_by_level: [[[u32; 3]; 2]; 3],
    /// Cycles of a modified line that leaves a level, without the memory's cycles.
    pub write_back_stall: [u32; 3],
}

/// Most caches inside the third level that have a holder bit of their own.
pub const MAX_INNER_CACHES: usize = 13;
/// Most peers of the third level.
pub const MAX_PEERS: usize = 7;

/// Cache state that generated code of one vCPU reads and changes. The model brings this state up to date whenever one of the model's
/// functions is called. Between these calls the engine may change the state as the model would.
#[derive(Debug)]
#[repr(C)]
pub struct ExportedCaches {
    /// First line number that only the model serves: generated code serves lines below it. 0 while nothing is exported.
    pub line_limit: u64,
    /// The [`crate::Context`] whose events `tallies` count.
    pub context: u32,
    /// Holder bit of this vCPU's second level in words of the third level.
    pub l3_holder_bit: u32,
    /// Holder bits of all other second levels.
    pub l3_other_holders: u32,
    /// Index of the vCPU's socket among homes.
    pub socket: u32,
    /// Tallies by privilege: user, kernel.
    pub tallies: [*mut Tally; 2],
    /// First words of the first level for data, of the first level for instructions, of the second level and of the third level.
    pub words: [*mut u32; 4],
    /// First words of the second levels inside the third level, by holder bit.
    pub inner_caches: [*mut u32; MAX_INNER_CACHES],
    /// First words of the third level's peers.
    pub peers: [*mut u32; MAX_PEERS],
    /// Addresses with the home that was looked up last.
    pub recent_home: *const RecentHome,
    /// Cycles by home: of a line from memory, and of a line written back.
    pub latencies: [*const u32; 2],
    /// Bits of a tag, by cache as in `words`, repeated for a vector.
    pub tag_masks: [[u32; 4]; 4],
    /// The numbers 0, 1, 2 and so on, for vector comparisons with the number of a way.
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
    /// As long as the model exists, until the model makes another export for that vCPU, and whenever none of the model's functions runs:
    ///
    /// - `caches` may be read. Where [`ExportedCaches::line_limit`] is not zero, the pointers in it are good for what `shape` says: words
    ///   of caches and tallies may be read and written, data that belongs to memory may be read.
    /// - Changes of words and tallies by the rules of this module lead no function of the model to memory that is not the model's own.
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
    /// Until the vCPU is attached anew or detached, and whenever the vCPU runs: the model exists, makes no other export for that vCPU, and
    /// only the platform's functions that this vCPU calls use the model.
    pub unsafe fn accept(self) -> AcceptedExport {
        AcceptedExport(self)
    }
}

/// Exported cache state that generated code may use, for as long as [`StateExport::accept`] says.
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

/// State that a memory exports for the requests of one socket: valid as long as the memory is.
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
    /// As long as the memory exists and is not moved, and whenever none of its functions runs: `recent_home` may be read. Wherever an
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
