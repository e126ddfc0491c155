//! Tables of a cache model, lent to an engine that makes machine code: it then does itself what [`crate::MemoryModel::miss`] does, with
//! all that does not change as constants.
//!
//! The caches are three: a first level for data that one vCPU uses, a second level around it (and around a first level for
//! instructions, if there is one), and a third that is the outermost and may have peers. Each includes those inside it. A *set* is a
//! row of words of 32 bits, the most recently used line first; a word is 0 where there is no line, else from its lowest bit on
//!
//! - the line's [`WordState`], three bits;
//! - a bit for each cache inside that may hold the line;
//! - the *tag*: the line's number divided by the number of sets, plus one. The set is the rest.
//!
//! The first level's sets are not in order: the engine's filter knows that ([`crate::FilterGeometry::data_ways`]), and where a set is full
//! the engine may exchange its words.
//!
//! Machine code follows these pointers without a check, so only unsafe code may pass them on. A memory promises that its tables are
//! sound by [`MemoryTables::new`], a model by [`Offer::new`]. A platform, which knows for how long vCPUs run with a model, promises
//! this by [`Offer::lend`]. A [`Loan`] is what an engine takes.

use std::ptr::{NonNull, null};

use crate::Tally;

/// What a line's word says in its lowest bits, after MESIF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WordState {
    /// Others may hold it, too.
    Shared = 1,
    /// The same, and this cache answers for it.
    Forward = 2,
    /// No peer holds it, and it is clean.
    Exclusive = 3,
    /// No peer holds it, and it was written.
    Modified = 4,
}

/// Bits of a [`WordState`].
pub const STATE_BITS: u32 = 3;

/// A number of sets, as a line's number is divided by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetCount {
    /// By shifting: log2 of the number. The first two levels' are such.
    Power(u32),
    /// By multiplication: the quotient is the upper half of the 128-bit product of twice the line's number and `factor`, shifted right by
    /// `shift`.
    Other {
        /// The number.
        sets: u32,
        /// See above.
        factor: u64,
        /// See above.
        shift: u32,
    },
}

/// The sets of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetShape {
    /// How many there are.
    pub sets: SetCount,
    /// Lines of a set.
    pub ways: u32,
    /// Words from one set to the next, a multiple of 4; those beyond the ways are 0.
    pub stride: u32,
    /// Lowest bit of the tag.
    pub tag_shift: u32,
}

/// What stays as it is while a model is attached: constants of machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablesShape {
    /// Data, second, third.
    pub levels: [SetShape; 3],
    /// The first level for instructions, if there is one, and its bit in words of the second.
    pub instruction: Option<(SetShape, u32)>,
    /// The bit of the first level for data in words of the second.
    pub data_bit: u32,
    /// How many peers the third level has. They look like it.
    pub peers: usize,
    /// Numbers of events, and what they cost.
    pub events: TableEvents,
}

/// Where events are counted, and the cycles of those that always cost the same. Pairs are for reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEvents {
    /// A hit, by level; that of the first is not used.
    pub hit: [[u32; 2]; 3],
    /// A miss.
    pub miss: [[u32; 2]; 3],
    /// A modified line that leaves a level.
    pub write_back: [u32; 3],
    /// A line from memory: from its own socket's, and from another's; then the same for lines written back.
    pub memory: [[u32; 2]; 2],
    /// Cycles of a miss of the first level that hits the second, of one of both that hits the third, and of one of all three without
    /// the memory's.
    pub stall: [[u32; 2]; 3],
    /// The cycles of `stall` by the level that they are charged to.
    pub stall_by_level: [[[u32; 3]; 2]; 3],
    /// Cycles of a modified line that leaves a level, without the memory's.
    pub write_back_stall: [u32; 3],
}

/// Most caches inside the third level of which each has a bit of its own.
pub const MOST_INSIDE: usize = 13;
/// Most peers of the third level.
pub const MOST_PEERS: usize = 7;

/// What one vCPU's misses look up and change. The model keeps it up to date whenever one of its own functions is called; in between,
/// the engine may do with it what the model would.
#[derive(Debug)]
#[repr(C)]
pub struct Tables {
    /// Lines from this number on are the model's own affair; 0 while nothing is lent.
    pub limit: u64,
    /// Whose events `tallies` count ([`crate::Context`]).
    pub context: u32,
    /// The bit of this vCPU's second level in words of the third.
    pub third_bit: u32,
    /// The bits of all others.
    pub third_others: u32,
    /// The socket's own number among homes.
    pub socket: u32,
    /// By privilege: user, kernel.
    pub tallies: [*mut Tally; 2],
    /// First words of the first level for data, of that for instructions, of the second level and of the third.
    pub words: [*mut u32; 4],
    /// Those of the second levels inside the third, by their bits there.
    pub inside: [*mut u32; MOST_INSIDE],
    /// Those of the third level's peers.
    pub peers: [*mut u32; MOST_PEERS],
    /// Where memory is.
    pub recent: *const Recent,
    /// Cycles of a line from memory by home, and of one written back.
    pub latencies: [*const u32; 2],
    /// Bits of a tag, by cache as `words`, for a vector.
    pub tag_masks: [[u32; 4]; 4],
    /// 0, 1, 2 and so on.
    pub numbers: [u32; 32],
}

/// The tables that a model offers to lend to one vCPU ([`crate::MemoryModel::tables`]).
#[derive(Debug)]
pub struct Offer {
    shape: TablesShape,
    tables: NonNull<Tables>,
}

impl Offer {
    /// An offer.
    ///
    /// # Safety
    /// As long as the model exists, until it makes another offer for that vCPU, and whenever none of its functions runs:
    ///
    /// - `tables` may be read. Where [`Tables::limit`] is not zero, the pointers in it are good for what `shape` says: words of caches
    ///   and tallies may be read and written, what belongs to memory may be read.
    /// - What the words and the tallies are changed to, by the rules of this module, leads no function of the model to memory
    ///   that is not its own.
    pub unsafe fn new(shape: TablesShape, tables: NonNull<Tables>) -> Self {
        Self { shape, tables }
    }

    /// The constants of the tables.
    pub fn shape(&self) -> &TablesShape {
        &self.shape
    }

    /// The tables that are lent.
    pub fn tables(&self) -> NonNull<Tables> {
        self.tables
    }

    /// Take the offer.
    ///
    /// # Safety
    /// Until the vCPU is attached anew or detached, and whenever it runs, the model exists, makes that vCPU no other offer, and is used
    /// by nobody but the platform's functions that this vCPU calls.
    pub unsafe fn lend(self) -> Loan {
        Loan(self)
    }
}

/// Tables that machine code may follow, for as long as [`Offer::lend`] says.
#[derive(Debug)]
pub struct Loan(Offer);

impl Loan {
    /// The constants of the tables.
    pub fn shape(&self) -> &TablesShape {
        &self.0.shape
    }

    /// The tables that are lent.
    pub fn tables(&self) -> NonNull<Tables> {
        self.0.tables
    }
}

/// Physical addresses that have one home: those that were asked for last.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Recent {
    /// The first.
    pub start: u64,
    /// The last.
    pub last: u64,
    /// Index of the home.
    pub home: u64,
}

impl Recent {
    /// All addresses have the first home.
    pub const ALL: Recent = Recent {
        start: 0,
        last: u64::MAX,
        home: 0,
    };
    /// No address.
    pub const NONE: Recent = Recent {
        start: 1,
        last: 0,
        home: 0,
    };
}

/// What a memory lends for requests of one socket: valid as long as the memory is.
#[derive(Clone, Copy, Debug)]
pub struct MemoryTables {
    recent: *const Recent,
    latencies: [*const u32; 2],
    socket: u32,
}

impl MemoryTables {
    /// The tables of a memory that lends nothing: no address has a known home.
    pub const NOTHING: MemoryTables = MemoryTables {
        recent: &Recent::NONE,
        latencies: [null(); 2],
        socket: 0,
    };

    /// See [`Tables::recent`] and [`Tables::latencies`]; `socket` is the socket's own number among homes.
    ///
    /// # Safety
    /// As long as the memory exists and is not moved, and whenever none of its functions runs, `recent` may be read, and so may the number
    /// [`Recent::home`] of both `latencies`, wherever an address belongs to the former.
    pub unsafe fn new(recent: *const Recent, latencies: [*const u32; 2], socket: u32) -> Self {
        Self {
            recent,
            latencies,
            socket,
        }
    }

    /// See [`Tables::recent`].
    pub fn recent(&self) -> *const Recent {
        self.recent
    }

    /// See [`Tables::latencies`].
    pub fn latencies(&self) -> [*const u32; 2] {
        self.latencies
    }

    /// The socket's own number among homes.
    pub fn socket(&self) -> u32 {
        self.socket
    }
}
