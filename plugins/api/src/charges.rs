//! Stall cycles of references by the term of the CPI equations, for an engine that attributes cycles to code.

/// Source of the answer to a reference that missed the first level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
pub enum Source {
    /// The second-level cache.
    Level2,
    /// The third-level cache, or a level beyond it.
    Level3,
    /// A cache that is not between the core and memory: of another core or another socket.
    OtherCache,
    /// Memory of the requesting socket.
    LocalMemory,
    /// Memory of another socket.
    RemoteMemory,
}

/// Number of [`Source`]s.
pub const SOURCES: usize = 5;

impl Source {
    /// Every source, in index order.
    pub const ALL: [Source; SOURCES] = [
        Source::Level2,
        Source::Level3,
        Source::OtherCache,
        Source::LocalMemory,
        Source::RemoteMemory,
    ];

    /// Returns the source for a hit in a cache level, counted from 1; None for the first level.
    pub fn of_level(level: usize) -> Option<Source> {
        match level {
            0 | 1 => None,
            2 => Some(Source::Level2),
            _ => Some(Source::Level3),
        }
    }

    /// Returns the source of a reference with these charges, the farthest one if there are several; `None` for the first level.
    #[inline(always)]
    pub fn of(charges: &Charges) -> Option<Source> {
        let mut sources = Source::ALL.into_iter().rev();
        sources.find(|source| charges.answers[*source as usize] > 0)
    }

    /// Returns the stable name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Source::Level2 => "L2",
            Source::Level3 => "L3",
            Source::OtherCache => "other_cache",
            Source::LocalMemory => "memory_local",
            Source::RemoteMemory => "memory_remote",
        }
    }
}

/// Term of the CPI equations to which stall cycles belong, as far as code attribution distinguishes terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StallTerm {
    /// CPI_L1: stall cycles of the first-level caches.
    Level1,
    /// CPI_L2: stall cycles of the second-level cache.
    Level2,
    /// CPI_L3: stall cycles of the third-level cache, and of the levels beyond it.
    Level3,
    /// CPI_memory: stall cycles of the memory of the requesting socket.
    LocalMemory,
    /// CPI_memory: stall cycles of the memory of other sockets.
    RemoteMemory,
    /// Stall cycles of a model that names no term.
    Unattributed,
}

/// Number of [`StallTerm`]s.
pub const STALL_TERMS: usize = 6;

impl StallTerm {
    /// Every term, in index order.
    pub const ALL: [StallTerm; STALL_TERMS] = [
        StallTerm::Level1,
        StallTerm::Level2,
        StallTerm::Level3,
        StallTerm::LocalMemory,
        StallTerm::RemoteMemory,
        StallTerm::Unattributed,
    ];

    /// Returns the term of a cache level, counted from 1; levels beyond the third have the third level's term.
    pub fn of_level(level: u8) -> StallTerm {
        match level {
            0 | 1 => StallTerm::Level1,
            2 => StallTerm::Level2,
            _ => StallTerm::Level3,
        }
    }

    /// Returns the stable name for reports, which is the term's name in the CPI breakdown.
    pub fn name(self) -> &'static str {
        match self {
            StallTerm::Level1 => "L1",
            StallTerm::Level2 => "L2",
            StallTerm::Level3 => "L3",
            StallTerm::LocalMemory => "memory_local",
            StallTerm::RemoteMemory => "memory_remote",
            StallTerm::Unattributed => "unattributed",
        }
    }
}

/// Numbers of references that were answered outside the first level, and stall cycles by term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[repr(C)]
pub struct Charges {
    /// Number of answers, indexed by [`Source`].
    pub answers: [u64; SOURCES],
    /// Stall cycles, indexed by [`StallTerm`].
    pub cycles: [u64; STALL_TERMS],
}

impl Charges {
    /// Counts an answer from `source`.
    #[inline(always)]
    pub fn answer(&mut self, source: Source) {
        self.answers[source as usize] += 1;
    }

    /// Adds stall cycles to a term.
    #[inline(always)]
    pub fn stall(&mut self, term: StallTerm, cycles: u64) {
        self.cycles[term as usize] += cycles;
    }

    /// Adds the answers and cycles of other charges.
    #[inline(always)]
    pub fn add(&mut self, other: &Charges) {
        for (sum, count) in self.answers.iter_mut().zip(other.answers) {
            *sum += count;
        }
        for (sum, cycles) in self.cycles.iter_mut().zip(other.cycles) {
            *sum += cycles;
        }
    }

    /// Returns the sum of the stall cycles of all terms.
    #[inline(always)]
    pub fn total(&self) -> u64 {
        self.cycles.iter().sum()
    }
}
