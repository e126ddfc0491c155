//! Exception vectors and the data that are delivered with them (SDM vol. 3A §6.3, table 6-1).

/// Vectors of the processor's exceptions.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[repr(u8)]
pub enum Vector {
    /// Divide error (`#DE`).
    DivideError = 0,
    /// Debug exception (`#DB`).
    Debug = 1,
    /// Non-maskable interrupt (NMI).
    Nmi = 2,
    /// Breakpoint of INT3 (`#BP`).
    Breakpoint = 3,
    /// Overflow of INTO (`#OF`).
    Overflow = 4,
    /// BOUND range exceeded (`#BR`).
    BoundRange = 5,
    /// Invalid opcode (`#UD`).
    InvalidOpcode = 6,
    /// Device not available: x87 or SSE state is not loaded (`#NM`).
    DeviceNotAvailable = 7,
    /// Double fault (`#DF`).
    DoubleFault = 8,
    /// Invalid task-state segment (`#TS`).
    InvalidTss = 10,
    /// Segment not present (`#NP`).
    SegmentNotPresent = 11,
    /// Stack-segment fault (`#SS`).
    StackFault = 12,
    /// General protection (`#GP`).
    GeneralProtection = 13,
    /// Page fault (`#PF`).
    PageFault = 14,
    /// x87 floating-point error (`#MF`).
    X87 = 16,
    /// Alignment check (`#AC`).
    AlignmentCheck = 17,
    /// Machine check (`#MC`).
    MachineCheck = 18,
    /// SIMD floating-point exception (`#XM`).
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

    /// Returns whether the exception is contributory: a contributory exception during the delivery of another one makes a double
    /// fault (SDM vol. 3A §6.15, table 6-5).
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
    /// Vector of the exception.
    pub vector: Vector,
    /// Error code (0 where the vector has none).
    pub error: u32,
    /// Faulting linear address, loaded into CR2 on delivery of a page fault.
    pub address: u64,
}

impl Exception {
    /// Returns an exception without error code.
    pub const fn new(vector: Vector) -> Self {
        Self {
            vector,
            error: 0,
            address: 0,
        }
    }

    /// Returns an exception with error code.
    pub const fn with_error(vector: Vector, error: u32) -> Self {
        Self {
            vector,
            error,
            address: 0,
        }
    }

    /// Returns `#GP(error)`.
    pub const fn gp(error: u32) -> Self {
        Self::with_error(Vector::GeneralProtection, error)
    }

    /// Returns `#UD`.
    pub const fn ud() -> Self {
        Self::new(Vector::InvalidOpcode)
    }

    /// Returns `#PF(error)` at a linear address.
    pub const fn page_fault(address: u64, error: u32) -> Self {
        Self {
            vector: Vector::PageFault,
            error,
            address,
        }
    }
}
