//! Decoding of a hypercall: registers in, a typed request or a typed error out.

use serde::{Deserialize, Serialize};

use crate::function::Function;
use crate::identity::IdentityBuffer;
use crate::limits;
use crate::record::{EntryRecord, MpiRecord, Peer, RecordError};
use crate::{ABI_VERSION, SIGNATURE, TRANSPORT_DIRECT};

/// Operation that a call asks for; the discriminant is the value of `ECX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Operation {
    /// A question for the presence of nodescope and the version of its ABI.
    Probe = 0,
    /// A process introduces itself.
    Hello = 1,
    /// An MPI call begins.
    MpiEnter = 2,
    /// MPI calls have ended.
    MpiEvent = 3,
    /// A poll of an MPI program, such as `MPI_Test`, has found nothing.
    MpiPollFailed = 4,
    /// Reserved for OpenMP events.
    OpenMpEvent = 5,
    /// Open a measurement window.
    OpenWindow = 6,
    /// Close a measurement window.
    CloseWindow = 7,
    /// Put a marker into the trace.
    Mark = 8,
    /// Asks for the identity of the node.
    NodeIdentity = 9,
    /// A text to show to the user.
    Message = 10,
    /// A piece of a file for the results.
    PutFile = 11,
    /// The job has ended.
    JobExit = 12,
}

impl Operation {
    /// Returns the operation with this number; `None` if no operation has the number.
    pub fn from_number(number: u32) -> Option<Operation> {
        use Operation::*;
        const ALL: [Operation; 13] = [
            Probe,
            Hello,
            MpiEnter,
            MpiEvent,
            MpiPollFailed,
            OpenMpEvent,
            OpenWindow,
            CloseWindow,
            Mark,
            NodeIdentity,
            Message,
            PutFile,
            JobExit,
        ];
        ALL.get(number as usize).copied()
    }
}

/// Status of an answer, in `EDX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Status {
    /// The hypercall was executed.
    Ok = 0,
    /// The operation does not exist.
    BadOperation = 1,
    /// Memory could not be read: touch it and call again.
    Unreadable = 2,
    /// Memory could not be written: touch it and call again.
    Unwritable = 3,
    /// The call was understood, but is not allowed, or the study does not provide the operation.
    Refused = 4,
    /// An argument is invalid: a length beyond its limit, a malformed record, a name that is not UTF-8, an unsafe file name.
    BadArgument = 5,
    /// A limit of the study is exceeded, such as the limit on bytes of files among the results.
    OverLimit = 6,
}

/// The registers of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Operation, from the number in `ECX`.
    pub op: Operation,
    /// Arguments 0 to 4, from `RSI`, `RDI`, `R8`, `R9`, `R10`.
    pub args: [u64; 5],
}

impl Call {
    /// Returns a call from register values. `Err` means that no operation has the number in `ECX`.
    pub fn new(ecx: u32, args: [u64; 5]) -> Result<Call, HypercallError> {
        let op =
            Operation::from_number(ecx).ok_or(HypercallError::BadOperation { operation: ecx })?;
        Ok(Call { op, args })
    }
}

/// The registers of an answer; each is zero-extended to 64 bits like those of any `CPUID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Contents of `EAX`: [`SIGNATURE`].
    pub eax: u32,
    /// Contents of `EBX`, the transport: [`TRANSPORT_DIRECT`], unless the node announces another.
    pub ebx: u32,
    /// Contents of `ECX`: the result of the operation.
    pub ecx: u32,
    /// Contents of `EDX`: the [`Status`] as a number.
    pub edx: u32,
}

impl Answer {
    /// Returns the answer to a call that was executed, with a result.
    pub fn ok(result: u32) -> Answer {
        Answer {
            eax: SIGNATURE,
            ebx: TRANSPORT_DIRECT,
            ecx: result,
            edx: Status::Ok as u32,
        }
    }

    /// Returns the answer to a call that failed.
    pub fn failed(status: Status) -> Answer {
        Answer {
            edx: status as u32,
            ..Answer::ok(0)
        }
    }

    /// Returns the answer to a probe; its result is [`ABI_VERSION`].
    pub fn probe() -> Answer {
        Answer::ok(ABI_VERSION)
    }
}

/// Failure to access guest memory at an address; the access may succeed once the guest has touched the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("guest-virtual address {address:#x} is not {}", if *.write { "writable" } else { "readable" })]
pub struct Fault {
    /// The first address that failed.
    pub address: u64,
    /// True if a write failed, false if a read failed.
    pub write: bool,
}

/// Guest memory as the calling program sees it, at the program's privilege level. An access may cross pages; one that fails may have been
/// done in part.
pub trait GuestVirtual {
    /// Fills `buffer` with the bytes from the guest-virtual address `address` on.
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), Fault>;
    /// Stores `data` from the guest-virtual address `address` on.
    fn write(&mut self, address: u64, data: &[u8]) -> Result<(), Fault>;
}

/// Reason why a call could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HypercallError {
    /// `ECX` names no operation.
    #[error("hypercall operation {operation} does not exist in ABI version {ABI_VERSION}")]
    BadOperation {
        /// The value of `ECX`.
        operation: u32,
    },
    /// The operation is reserved.
    #[error("hypercall operation {operation:?} is reserved")]
    Reserved {
        /// Operation that the guest called.
        operation: Operation,
    },
    /// Guest memory could not be accessed, such as a page that is not present.
    #[error(transparent)]
    Memory(#[from] Fault),
    /// A length is outside its limits: the argument is too long, or too short for its structure.
    #[error("hypercall {operation:?}: {what} of {length} bytes, allowed are {least} to {most}")]
    BadLength {
        /// Operation that the guest called.
        operation: Operation,
        /// Name of the argument whose length is wrong.
        what: &'static str,
        /// The length that the guest stated, bytes.
        length: u64,
        /// Smallest length that is allowed, bytes.
        least: u64,
        /// Greatest length that is allowed, bytes.
        most: u64,
    },
    /// A name is not UTF-8.
    #[error("hypercall {operation:?}: the name is not UTF-8")]
    BadText {
        /// Operation that the guest called.
        operation: Operation,
    },
    /// A file name would leave the results directory, or has control characters or backslashes.
    #[error("hypercall PutFile: \"{}\" is not a plain relative file name", name.escape_default())]
    BadFileName {
        /// File name that the guest stated.
        name: String,
    },
    /// An argument has a value without a meaning.
    #[error("hypercall {operation:?}: {what} has the unknown value {value}")]
    UnknownValue {
        /// Operation that the guest called.
        operation: Operation,
        /// Name of the argument.
        what: &'static str,
        /// Value of the argument.
        value: u64,
    },
    /// The guest's tools have another ABI version. Tools of version 1 did not state their version, which reads as 0.
    #[error(
        "the guest's tools speak ABI version {}, this nodescope {ABI_VERSION}: build the guest image anew",
        if *.version == 0 { 1 } else { *.version }
    )]
    OtherVersion {
        /// The version that the guest states.
        version: u32,
    },
    /// A record cannot be decoded.
    #[error("hypercall MpiEvent: {0}")]
    Record(#[from] RecordError),
}

impl HypercallError {
    /// Returns the status that reports the error to the guest.
    pub fn status(&self) -> Status {
        match self {
            HypercallError::BadOperation { .. } => Status::BadOperation,
            HypercallError::Reserved { .. } => Status::Refused,
            HypercallError::Memory(Fault { write: false, .. }) => Status::Unreadable,
            HypercallError::Memory(Fault { write: true, .. }) => Status::Unwritable,
            _ => Status::BadArgument,
        }
    }

    /// Returns the answer that reports the error to the guest.
    pub fn answer(&self) -> Answer {
        Answer::failed(self.status())
    }
}

/// Identification of a thread of a guest process, unique on its node.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ThreadId {
    /// Process id in the guest.
    pub pid: u32,
    /// Thread id in the guest.
    pub tid: u32,
}

impl From<u64> for ThreadId {
    fn from(packed: u64) -> ThreadId {
        ThreadId {
            pid: (packed >> 32) as u32,
            tid: packed as u32,
        }
    }
}

/// Kind of a process in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProcessKind {
    /// A rank of an MPI program.
    MpiRank,
    /// A program that is parallelised with OpenMP.
    OpenMp,
    /// A tool of nodescope.
    Tool,
}

/// Implementation of MPI that a process runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Flavour {
    /// No MPI.
    None,
    /// The Open MPI library.
    OpenMpi,
    /// MPICH, or another library with MPICH's ABI.
    Mpich,
    /// The standard ABI of MPI 5 (`libmpi_abi.so.1`), which several implementations have.
    StandardAbi,
}

impl Flavour {
    /// Returns whether a return code of this implementation is `MPI_ERR_TRUNCATE`: a message was longer than the receive buffer. In Open
    /// MPI the code is 15; in MPICH the code's low 7 bits hold the error class, which is 14. The standard ABI gives the class the number
    /// 15, and leaves codes to the implementation: MPICH 5 and Intel MPI have the class in the low 7 bits.
    pub fn is_truncation(self, code: i32) -> bool {
        match self {
            Flavour::OpenMpi => code == 15,
            Flavour::Mpich => code & 0x7f == 14,
            Flavour::StandardAbi => code & 0x7f == 15,
            Flavour::None => false,
        }
    }
}

/// Introduction of a process; an MPI rank introduces itself at the end of its initialisation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Kind of the process.
    pub kind: ProcessKind,
    /// Rank of the process in `MPI_COMM_WORLD`; [`Peer::None`] for a process without a rank.
    pub rank: Peer,
    /// Number of ranks in `MPI_COMM_WORLD`.
    pub world_size: u32,
    /// Process id in the guest.
    pub pid: u32,
    /// MPI implementation of the process.
    pub flavour: Flavour,
    /// The guest's host name.
    pub host: String,
    /// The program's short name.
    pub program: String,
}

/// Bytes of a [`Hello`] in guest memory.
pub const HELLO: usize = 152;

/// Beginning of an MPI call, or one failed poll that joins a poll run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MpiEnter {
    /// Function that is called.
    pub function: Function,
    /// Thread that makes the call.
    pub thread: ThreadId,
    /// Number of the call in its thread; for a failed poll, the number of the poll run's first poll.
    pub sequence: u64,
}

/// A piece of a file for the results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChunk {
    /// Path of the file, relative and of plain components, safe to join to the results directory.
    pub name: String,
    /// Offset of the data in the file, bytes.
    pub offset: u64,
    /// Bytes of the file from `offset` on.
    pub data: Vec<u8>,
    /// True if the chunk is the file's last.
    pub last: bool,
}

/// A decoded call; the request owns everything that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Asks for nodescope and its ABI version; the answer is [`Answer::probe`].
    Probe,
    /// A process introduces itself.
    Hello(Hello),
    /// An MPI call begins. The second field is its record as far as known at entry, empty if the guest showed none.
    MpiEnter(MpiEnter, EntryRecord),
    /// MPI calls have ended, with these records; the answer's result is the number of records.
    MpiEvents(Vec<MpiRecord>),
    /// A poll of an MPI program, such as `MPI_Test`, has found nothing.
    MpiPollFailed(MpiEnter),
    /// Open the window of this name.
    OpenWindow(String),
    /// Close the window of this name.
    CloseWindow(String),
    /// Put a marker into the trace.
    Mark(String),
    /// Write the node's identity into the guest's buffer, by [`crate::NodeIdentity::write_to`].
    NodeIdentity(IdentityBuffer),
    /// Show a text to the user; bytes that are not UTF-8 have been replaced.
    Message(String),
    /// Store a piece of a file.
    PutFile(FileChunk),
    /// The job has ended with this exit status.
    JobExit(i32),
}

impl Request {
    /// Returns false if the request breaks a limit that [`decode`] enforces. Requests are read from snapshots too, whose contents may be
    /// invalid.
    pub fn is_possible(&self) -> bool {
        let within = |text: &str, most: u64| text.len() as u64 <= most;
        match self {
            Request::Probe
            | Request::MpiPollFailed(_)
            | Request::NodeIdentity(_)
            | Request::JobExit(_) => true,
            Request::Hello(hello) => {
                // Decoding replaces bytes that are not UTF-8 with U+FFFD, so that one byte becomes three at most.
                within(&hello.host, 3 * 64)
                    && within(&hello.program, 3 * 64)
                    && match hello.rank {
                        Peer::None => true,
                        Peer::Rank(rank) => i32::try_from(rank).is_ok(),
                        _ => false,
                    }
            }
            Request::MpiEnter(_, shown) => shown.is_possible(),
            Request::MpiEvents(records) => {
                let mut bytes = Vec::new();
                for record in records {
                    record.encode(&mut bytes);
                }
                bytes.len() as u64 <= limits::RECORDS
                    && MpiRecord::decode_all(&bytes).is_ok_and(|again| again == *records)
            }
            Request::OpenWindow(text) | Request::CloseWindow(text) | Request::Mark(text) => {
                within(text, limits::NAME)
            }
            Request::Message(text) => within(text, 3 * limits::MESSAGE),
            Request::PutFile(chunk) => {
                within(&chunk.name, limits::NAME)
                    && is_file_name(&chunk.name)
                    && chunk.data.len() as u64 <= limits::CHUNK
            }
        }
    }
}

/// Decodes a call and reads the guest memory that its arguments point to. The request owns the data; only [`Request::NodeIdentity`] keeps a
/// guest address, to which the answer is written later.
pub fn decode<G: GuestVirtual + ?Sized>(
    call: &Call,
    memory: &mut G,
) -> Result<Request, HypercallError> {
    let operation = call.op;
    let [a0, a1, a2, a3, a4] = call.args;
    if operation == Operation::MpiEnter {
        return Ok(Request::MpiEnter(
            entered(call)?,
            EntryRecord::read(memory, a3, a4),
        ));
    }
    let mut fetch = |what, address, length, least, most| {
        fetch(memory, operation, what, address, length, least, most)
    };
    let name = |bytes| String::from_utf8(bytes).map_err(|_| HypercallError::BadText { operation });
    Ok(match operation {
        Operation::Probe => Request::Probe,
        Operation::Hello => Request::Hello(decode_hello(&fetch(
            "hello",
            a0,
            a1,
            HELLO as u64,
            HELLO as u64,
        )?)?),
        // An `MpiEnter` has returned above, so that the operation here is `MpiPollFailed`.
        Operation::MpiEnter | Operation::MpiPollFailed => Request::MpiPollFailed(entered(call)?),
        Operation::MpiEvent => {
            let least = crate::record::HEADER as u64;
            Request::MpiEvents(MpiRecord::decode_all(&fetch(
                "records",
                a0,
                a1,
                least,
                limits::RECORDS,
            )?)?)
        }
        Operation::OpenMpEvent => return Err(HypercallError::Reserved { operation }),
        Operation::OpenWindow => {
            Request::OpenWindow(name(fetch("name", a0, a1, 1, limits::NAME)?)?)
        }
        Operation::CloseWindow => {
            Request::CloseWindow(name(fetch("name", a0, a1, 1, limits::NAME)?)?)
        }
        Operation::Mark => Request::Mark(name(fetch("name", a0, a1, 1, limits::NAME)?)?),
        Operation::NodeIdentity => Request::NodeIdentity(IdentityBuffer {
            address: a0,
            capacity: a1,
        }),
        Operation::Message => Request::Message(
            String::from_utf8_lossy(&fetch("text", a0, a1, 0, limits::MESSAGE)?).into_owned(),
        ),
        Operation::PutFile => {
            let name = name(fetch("name", a0, a1, 1, limits::NAME)?)?;
            if !is_file_name(&name) {
                return Err(HypercallError::BadFileName { name });
            }
            let last = a4 >> 63 == 1;
            let data = fetch("data", a3, a4 & !(1 << 63), 0, limits::CHUNK)?;
            Request::PutFile(FileChunk {
                name,
                offset: a2,
                data,
                last,
            })
        }
        Operation::JobExit => {
            let status = i32::try_from(a0 as i64);
            Request::JobExit(status.map_err(|_| HypercallError::UnknownValue {
                operation,
                what: "exit status",
                value: a0,
            })?)
        }
    })
}

/// Decodes the function, thread and number from the registers of `MpiEnter` or `MpiPollFailed`.
fn entered(call: &Call) -> Result<MpiEnter, HypercallError> {
    let [number, thread, sequence, ..] = call.args;
    let function = u16::try_from(number).ok().and_then(Function::from_number);
    Ok(MpiEnter {
        function: function.ok_or(HypercallError::UnknownValue {
            operation: call.op,
            what: "function",
            value: number,
        })?,
        thread: thread.into(),
        sequence,
    })
}

fn fetch<G: GuestVirtual + ?Sized>(
    memory: &mut G,
    operation: Operation,
    what: &'static str,
    address: u64,
    length: u64,
    least: u64,
    most: u64,
) -> Result<Vec<u8>, HypercallError> {
    if length < least || length > most {
        return Err(HypercallError::BadLength {
            operation,
            what,
            length,
            least,
            most,
        });
    }
    let mut bytes = vec![0; length as usize];
    memory.read(address, &mut bytes)?;
    Ok(bytes)
}

/// Returns whether a name can be joined to a directory without leaving the directory. Such a name has no empty, `.` or `..` component, no
/// backslash and no control character.
pub fn is_file_name(name: &str) -> bool {
    name.split('/')
        .all(|part| !matches!(part, "" | "." | "..") && !part.contains('\\'))
        && !name.chars().any(char::is_control)
}

fn decode_hello(bytes: &[u8]) -> Result<Hello, HypercallError> {
    let operation = Operation::Hello;
    // `bytes` is `HELLO` bytes long: the caller fetched exactly that number.
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let text = |at: usize| {
        let field = &bytes[at..at + 64];
        let end = field
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(field.len());
        String::from_utf8_lossy(&field[..end]).into_owned()
    };
    let unknown = |what, value: u32| HypercallError::UnknownValue {
        operation,
        what,
        value: value.into(),
    };
    if word(20) != ABI_VERSION {
        return Err(HypercallError::OtherVersion { version: word(20) });
    }
    Ok(Hello {
        kind: match word(0) {
            1 => ProcessKind::MpiRank,
            2 => ProcessKind::OpenMp,
            3 => ProcessKind::Tool,
            other => return Err(unknown("process kind", other)),
        },
        rank: match word(4) as i32 {
            -1 => Peer::None,
            rank if rank >= 0 => Peer::Rank(rank as u32),
            other => return Err(unknown("world rank", other as u32)),
        },
        world_size: word(8),
        pid: word(12),
        flavour: match word(16) {
            0 => Flavour::None,
            1 => Flavour::OpenMpi,
            2 => Flavour::Mpich,
            3 => Flavour::StandardAbi,
            other => return Err(unknown("MPI flavour", other)),
        },
        host: text(24),
        program: text(88),
    })
}
