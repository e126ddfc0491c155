//! Events that the engine itself counts while a window is open.

use serde::{Deserialize, Serialize};

/// Class of a floating-point operation: element type and register width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum FlopClass {
    /// x87, any precision.
    X87,
    /// Scalar single precision (SSE or AVX).
    ScalarSingle,
    /// Scalar double precision.
    ScalarDouble,
    /// 128-bit packed single precision.
    Packed128Single,
    /// 128-bit packed double precision.
    Packed128Double,
    /// 256-bit packed single precision.
    Packed256Single,
    /// 256-bit packed double precision.
    Packed256Double,
}

/// Number of [`FlopClass`]es.
pub const FLOP_CLASSES: usize = 7;

impl FlopClass {
    /// Every class, in index order.
    pub const ALL: [FlopClass; FLOP_CLASSES] = [
        FlopClass::X87,
        FlopClass::ScalarSingle,
        FlopClass::ScalarDouble,
        FlopClass::Packed128Single,
        FlopClass::Packed128Double,
        FlopClass::Packed256Single,
        FlopClass::Packed256Double,
    ];

    /// Returns the stable name for reports.
    pub fn name(self) -> &'static str {
        match self {
            FlopClass::X87 => "x87",
            FlopClass::ScalarSingle => "scalar_single",
            FlopClass::ScalarDouble => "scalar_double",
            FlopClass::Packed128Single => "packed128_single",
            FlopClass::Packed128Double => "packed128_double",
            FlopClass::Packed256Single => "packed256_single",
            FlopClass::Packed256Double => "packed256_double",
        }
    }
}

/// Counted events of one vCPU in one context at one privilege.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Instructions retired (a REP string instruction is one).
    pub instructions: u64,
    /// Cycles that long instructions (REP strings, PAUSE) take beyond the nominal CPI.
    pub long_cycles: u64,
    /// Cycles added by attached models.
    pub stall_cycles: u64,
    /// Cycles spent in HLT.
    pub idle_cycles: u64,
    /// Data reads, one for each cache line touched.
    pub loads: u64,
    /// Data writes, one for each cache line touched.
    pub stores: u64,
    /// Instruction fetches, one for each cache line that execution enters.
    pub fetches: u64,
    /// Floating-point operations, indexed by [`FlopClass`]. Each lane counts, and an FMA counts as two.
    pub flops: [u64; FLOP_CLASSES],
}

impl Counters {
    /// Adds the counts of another interval.
    pub fn add(&mut self, other: &Counters) {
        self.instructions += other.instructions;
        self.long_cycles += other.long_cycles;
        self.stall_cycles += other.stall_cycles;
        self.idle_cycles += other.idle_cycles;
        self.loads += other.loads;
        self.stores += other.stores;
        self.fetches += other.fetches;
        for (a, b) in self.flops.iter_mut().zip(other.flops) {
            *a += b;
        }
    }

    /// Returns the number of floating-point operations of all classes.
    pub fn flops_total(&self) -> u64 {
        self.flops.iter().sum()
    }

    /// Returns true if all counts are zero.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
