//! Exception vectors and what is delivered with them (SDM vol. 3A §6.3, table 6-1).

/// Exception vectors.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[repr(u8)]
pub enum Vector {
    /// `#DE`
    DivideError = 0,
    /// `#DB`
    Debug = 1,
    /// NMI
    Nmi = 2,
    /// `#BP`
    Breakpoint = 3,
    /// `#OF`
    Overflow = 4,
    /// `#BR`
    BoundRange = 5,
    /// `#UD`
    InvalidOpcode = 6,
    /// `#NM`
    DeviceNotAvailable = 7,
    /// `#DF`
    DoubleFault = 8,
    /// `#TS`
    InvalidTss = 10,
    /// `#NP`
    SegmentNotPresent = 11,
    /// `#SS`
    StackFault = 12,
    /// `#GP`
    GeneralProtection = 13,
    /// `#PF`
    PageFault = 14,
    /// `#MF`
    X87 = 16,
    /// `#AC`
    AlignmentCheck = 17,
    /// `#MC`
    MachineCheck = 18,
    /// `#XM`
    Simd = 19,
}

impl Vector {
    /// Returns whether the processor pushes an error code with this exception.
    pub fn has_error_code(self) -> bool {
        use Vector::*;
        matches!(
            self,
            DoubleFault
                | InvalidTss
                | SegmentNotPresent
                | StackFault
                | GeneralProtection
                | PageFault
                | AlignmentCheck
        )
    }

    /// Contributory exceptions: two in a row make a double fault (SDM vol. 3A §6.15, table 6-5).
    pub fn is_contributory(self) -> bool {
        use Vector::*;
        matches!(
            self,
            DivideError | InvalidTss | SegmentNotPresent | StackFault | GeneralProtection
        )
    }
}

/// An exception raised by an instruction, not yet delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Exception {
    /// Vector.
    pub vector: Vector,
    /// Error code (0 where the vector has none).
    pub error: u32,
    /// Faulting linear address, loaded into CR2 on delivery of a page fault.
    pub address: u64,
}

impl Exception {
    /// An exception without error code.
    pub const fn new(vector: Vector) -> Self {
        Self {
            vector,
            error: 0,
            address: 0,
        }
    }

    /// An exception with error code.
    pub const fn with_error(vector: Vector, error: u32) -> Self {
        Self {
            vector,
            error,
            address: 0,
        }
    }

    /// `#GP(error)`.
    pub const fn gp(error: u32) -> Self {
        Self::with_error(Vector::GeneralProtection, error)
    }

    /// `#UD`.
    pub const fn ud() -> Self {
        Self::new(Vector::InvalidOpcode)
    }

    /// `#PF(error)` at a linear address.
    pub const fn page_fault(address: u64, error: u32) -> Self {
        Self {
            vector: Vector::PageFault,
            error,
            address,
        }
    }
}
