//! The hypercall: how programs in a guest talk to the nodescope that runs them.
//!
//! A guest program executes `CPUID` with `EAX` = [`LEAF`] and gets an answer. On real hardware the leaf does not exist: the answer lacks
//! the signature, and the program makes no further calls. The C side of this interface is `guest-images/tracer/nodescope.h`; a test
//! compiles that header and compares constants and offsets with this crate.
//!
//! # Registers
//!
//! | | register | meaning |
//! |---|---|---|
//! | in | `EAX` | [`LEAF`] |
//! | in | `ECX` | [`Operation`] |
//! | in | `RSI`, `RDI`, `R8`, `R9`, `R10` | arguments 0 to 4; addresses are guest-virtual, of the caller's address space |
//! | out | `EAX` | [`SIGNATURE`] |
//! | out | `EBX` | transport: 1 direct, 2 doorbell |
//! | out | `ECX` | result |
//! | out | `EDX` | [`Status`] |
//!
//! Like any `CPUID`, the call clears the upper halves of `RAX` to `RDX` (SDM vol. 2A, CPUID) and changes no other register and no flag. The
//! call is defined in 64-bit mode, at any privilege level.
//!
//! # Operations
//!
//! | `ECX` | operation | arguments | result |
//! |---|---|---|---|
//! | 0 | Probe | none | [`ABI_VERSION`] |
//! | 1 | Hello | address and bytes of a `nodescope_hello` | 0 |
//! | 2 | MpiEnter | function; pid << 32 \| tid; sequence; address of the record's header as far as known, or 0; address of its sections | 0 |
//! | 3 | MpiEvent | address and bytes of one or several [records](record) | number of records |
//! | 4 | MpiPollFailed | function; pid << 32 \| tid; sequence of the poll run joined | 0 |
//! | 5 | OpenMpEvent | reserved | refused |
//! | 6 | OpenWindow | address and bytes of a name | 0 |
//! | 7 | CloseWindow | address and bytes of a name | 0 |
//! | 8 | Mark | address and bytes of a name | 0 |
//! | 9 | NodeIdentity | address and bytes of a buffer | bytes of the whole identity; more than the buffer means: call again |
//! | 10 | Message | address and bytes of a text | 0 |
//! | 11 | PutFile | address and bytes of a name; offset; address of data; bytes, bit 63 set on the last chunk | 0 |
//! | 12 | JobExit | status | 0 |
//!
//! # Transports
//!
//! Every answer states the node's transport.
//!
//! *Direct* (1): the emulator executes the `CPUID` itself.
//!
//! *Doorbell* (2) is for engines on which the processor's virtualization answers `CPUID` from a table, without an exit to the emulator.
//! There the table's entry has the signature and transport 2. A program then executes `OUT DX, EAX` in place of `CPUID`:
//!
//! | | register | meaning |
//! |---|---|---|
//! | in | `EAX` | [`LEAF`] |
//! | in | `DX` | [`DOORBELL_PORT`] |
//! | in | all others | as for `CPUID` |
//! | out | `RAX` to `RDX` | as `CPUID` leaves them |
//!
//! Only an `OUT` of 4 bytes with the leaf in `EAX` is a call. A program needs permission for all four ports from the doorbell's on: by its
//! I/O privilege level, or by the bitmap of the task-state segment (SDM vol. 1 §19.5). Without permission the instruction raises `#GP`,
//! which Linux turns into a SIGSEGV.
//!
//! Linux gives the permission by `ioperm(2)` to a process with CAP_SYS_RAWIO. Children inherit the permission over `fork` and `execve`, and
//! keep it when they change their user. The guest's process 1 therefore asks once on each node, for all processes that it starts. It does
//! so only where the node's kernel parameters say `nodescope.doorbell=1`, because Linux has to load the bitmap whenever it switches to a
//! process with the permission. `nodescope_attach` of the C header finds out the transport, and tries the doorbell before programs rely on
//! it.
//!
//! Both transports complete a call with the instruction, so that order is kept and nothing is lost. A study that uses KVM announces the
//! doorbell on both engines, since processes survive a change of the engine. The portable engine serves both transports at any time.
//!
//! # Time
//!
//! A traced MPI call makes two hypercalls, MpiEnter just before and MpiEvent just after the real call. The guest sends no clock readings:
//! the host stamps virtual time and instructions retired at both. Models define these two quantities, which are the same in every run of a
//! study. The tracer prepares the record's arguments before MpiEnter, so that of its own work only the collection of results lies inside
//! the interval.
//!
//! MpiEnter shows the call's record without results, and the host keeps that record until the call ends. If the call never ends, as in a
//! deadlock, the trace has the record from MpiEnter. The record's size counts the header and the sections, which may have separate
//! addresses. The host answers with success even if the record is absent (address 0), unreadable or invalid, and then goes on without the
//! record.
//!
//! A program that polls (`MPI_Test`, `MPI_Iprobe`, ...) makes the same MpiEnter, and MpiPollFailed in place of MpiEvent when the poll finds
//! nothing; MpiPollFailed reads no memory. Consecutive failed polls of one kind form a run, which is sent as one record
//! ([`record::Flags::POLL_RUN`]) before the thread's next other event.
//!
//! # Memory
//!
//! The host reads guest memory without taking page faults on the guest's behalf. If a page is not present, the host answers
//! [`Status::Unreadable`] or [`Status::Unwritable`]; the tool touches the pages and calls again. Nothing that a guest passes makes the host
//! allocate more than the [`limits`] say, and no input makes [`decode`] panic.

pub mod call;
pub mod function;
pub mod identity;
mod interval;
mod printable;
pub mod record;

pub use call::{
    Answer, Call, Fault, FileChunk, Flavour, GuestVirtual, Hello, HypercallError, MpiEnter,
    Operation, ProcessKind, Request, Status, ThreadId, decode, is_file_name,
};
pub use function::{Class, Function};
pub use identity::{IdentityBuffer, NodeIdentity};
pub use interval::{
    CallInterval, CallIntervalError, INTERVALS_VARIABLE, MOST_INTERVALS, NamedCall, intervals_value,
};
pub use printable::{printable, printable_json, printable_lines};
pub use record::{Completion, EntryRecord, MpiRecord, Peer, RecordError, Reduction, Tag};

/// The value of `EAX` that makes `CPUID` a hypercall: `NSCP`.
pub const LEAF: u32 = 0x4E53_4350;
/// The answer in `EAX` that distinguishes nodescope from real hardware: `NSOK`.
pub const SIGNATURE: u32 = 0x4E53_4F4B;
/// The ABI version that Probe returns and that a hello must state. Since version 2 records have more fields, and a hello states its
/// version.
pub const ABI_VERSION: u32 = 2;
/// The transport, in the answer's `EBX`, of a node whose programs make calls by `CPUID`.
pub const TRANSPORT_DIRECT: u32 = 1;
/// The transport, in the answer's `EBX`, of a node whose programs make calls through [`DOORBELL_PORT`].
pub const TRANSPORT_DOORBELL: u32 = 2;
/// The doorbell's first I/O port; the doorbell takes four ports.
pub const DOORBELL_PORT: u16 = 0x5e0;

/// Maximum sizes, in bytes, of the data that one call makes the host read.
pub mod limits {
    /// Maximum length of a name of a window, marker or file, in bytes.
    pub const NAME: u64 = 255;
    /// Maximum length of a message to the user, in bytes.
    pub const MESSAGE: u64 = 4096;
    /// Maximum length of the data of one PutFile call, in bytes.
    pub const CHUNK: u64 = 65536;
    /// Maximum length of all records of one MpiEvent call together, in bytes.
    pub const RECORDS: u64 = 1 << 20;
}
