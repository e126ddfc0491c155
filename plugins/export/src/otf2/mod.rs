//! OTF2 archives, written and read by the library libotf2 (Debian: in otf2-tools). Only that library documents the format, so that a
//! reader or writer without the library is not worth the effort.

mod library;
mod read;
mod write;

pub(crate) use read::read;
pub(crate) use write::write;

use nodescope_hypercall::{Class, Function};

/// Reason for which an operation with the OTF2 library failed.
#[derive(Debug, thiserror::Error)]
pub enum Otf2Error {
    /// The library is not installed.
    #[error(
        "OTF2 archives need the library libotf2, version 3, which is not installed; on Debian: apt-get install otf2-tools"
    )]
    Missing,
    /// The library lacks a function, so that its version is not supported.
    #[error(
        "the installed libotf2 has no function {0}: version 3.0 or a later 3.x is needed; on Debian: apt-get install otf2-tools"
    )]
    Version(String),
    /// The library reports an error.
    #[error("OTF2: cannot {doing}: {what}")]
    Library {
        /// The operation that failed, with the file.
        doing: String,
        /// The library's message.
        what: String,
    },
    /// A name contains a NUL.
    #[error("OTF2 cannot hold the name {0:?}")]
    Name(String),
}

impl Otf2Error {
    /// Returns true if the library is missing or has an unsupported version.
    pub fn missing(&self) -> bool {
        matches!(self, Otf2Error::Missing | Otf2Error::Version(_))
    }
}

/// Values of OTF2's enumerations, and OTF2's undefined values.
mod value {
    pub(super) const UNDEFINED: u32 = u32::MAX;
    pub(super) const UNDEFINED_TIME: u64 = u64::MAX;
    pub(super) const ROOT_NONE: u32 = u32::MAX;
    pub(super) const ROOT_SELF: u32 = u32::MAX - 1;
    pub(super) const PARADIGM_USER: u8 = 1;
    pub(super) const PARADIGM_MPI: u8 = 4;
    pub(super) const GROUP_COMM_LOCATIONS: u8 = 4;
    pub(super) const GROUP_COMM: u8 = 5;
    pub(super) const GROUP_COMM_SELF: u8 = 6;
    pub(super) const GROUP_FLAG_GLOBAL: u32 = 1;
    pub(super) const LOCATION_THREAD: u8 = 1;
    pub(super) const LOCATION_GROUP_PROCESS: u8 = 1;
    pub(super) const CREATE_HANDLE: u8 = 17;
}

/// Returns the `OTF2_CollectiveOp` of a function; `None` if it is no collective operation.
fn operation(function: Function) -> Option<u8> {
    use Function::*;
    Some(match function.blocking() {
        Barrier => 0,
        Bcast => 1,
        Gather => 2,
        Gatherv => 3,
        Scatter => 4,
        Scatterv => 5,
        Allgather | NeighborAllgather => 6,
        Allgatherv | NeighborAllgatherv => 7,
        Alltoall | NeighborAlltoall => 8,
        Alltoallv | NeighborAlltoallv => 9,
        Alltoallw | NeighborAlltoallw => 10,
        Allreduce => 11,
        Reduce => 12,
        ReduceScatter => 13,
        Scan => 14,
        Exscan => 15,
        ReduceScatterBlock => 16,
        CommFree | CommDisconnect => return None,
        function if function.class() == Class::Communicator => value::CREATE_HANDLE,
        _ => return None,
    })
}

/// Returns the `OTF2_RegionRole` of a function.
fn role(function: Function) -> u8 {
    use Function::*;
    const FUNCTION: u8 = 1;
    const BARRIER: u8 = 15;
    const ONE_TO_ALL: u8 = 23;
    const ALL_TO_ONE: u8 = 24;
    const ALL_TO_ALL: u8 = 25;
    const COLLECTIVE: u8 = 26;
    const FILE: u8 = 27;
    const POINT_TO_POINT: u8 = 28;
    const RMA: u8 = 29;
    match function.blocking() {
        Barrier => BARRIER,
        Bcast | Scatter | Scatterv => ONE_TO_ALL,
        Reduce | Gather | Gatherv => ALL_TO_ONE,
        Scan | Exscan => COLLECTIVE,
        blocking => match blocking.class() {
            Class::Collective => ALL_TO_ALL,
            Class::Neighbor | Class::Communicator => COLLECTIVE,
            Class::Send
            | Class::Receive
            | Class::SendReceive
            | Class::Persistent
            | Class::Completion => POINT_TO_POINT,
            Class::Rma | Class::Epoch => RMA,
            Class::File | Class::FileTransfer => FILE,
            _ => FUNCTION,
        },
    }
}

/// Prefix of the address in the name of a region that represents a call site.
const CALL_SITE: &str = "call site ";
