//! Records of MPI calls in the format that they have in guest memory.
//!
//! A record is a header of [`HEADER`] bytes and a tail of sections, everything little-endian:
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | u32 | size of the whole record, a multiple of 8 |
//! | 4 | u16 | [function](Function) |
//! | 6 | u16 | [flags](Flags) |
//! | 8 | u64 | sequence: per thread, in the order of entry, from 0 |
//! | 16, 20 | u32 | pid, tid |
//! | 24 | i32 | the caller's rank in `MPI_COMM_WORLD`, or none |
//! | 28 | i32 | return code |
//! | 32 | u64 | communicator: 0 none, 1 world, 2 self, otherwise an id with the top bit set |
//! | 40 | u64 | return address of the call, relative to the load address of its module |
//! | 48, 52 | i32 | destination and tag of what is sent |
//! | 56, 60 | i32 | source and tag asked for in what is received |
//! | 64 | i32 | root |
//! | 68 | u32 | reduction operation |
//! | 72 | u64 | bytes sent |
//! | 80 | u64 | bytes of room for what is received |
//! | 88 | u64 | serial of the operation started (or, by `MPI_*_init`, of the preparation), 0 none |
//! | 96 | u64 | calls: 1, or the length of a poll run |
//! | 104 | u64 | communicator made |
//! | 112 | u32 | size of the communicator (of an intercommunicator: of the remote group) |
//! | 116 | u32 | bytes of one element |
//! | 120 | u32 | number of sections |
//! | 124 | u32 | detail, see [`MpiRecord::detail`] |
//! | 128 | u64 | window or file that the call works on, 0 none |
//! | 136 | u64 | offset: of a file transfer with an explicit one, or displacement at the target of an RMA operation |
//! | 144 | u64 | module that the call site is in, 0 for the main program; see [`MpiRecord::call_module`] |
//! | 152 | u64 | 0 |
//!
//! Ranks are ranks of `MPI_COMM_WORLD`; -1 stands for none, -2 for `MPI_PROC_NULL` (or `MPI_ROOT`), -3 for any, -4 for a process
//! outside this world. A section is `u32 kind, u32 count`, then the elements, then zeros up to a multiple of 8:
//!
//! | kind | elements |
//! |---|---|
//! | 1 | u64 bytes sent to each rank of the communicator |
//! | 2 | u64 bytes received from each rank of the communicator |
//! | 3 | u64 serials of the requests given (or, by `MPI_Start` and `MPI_Startall`, started), 0 for null or unknown |
//! | 4 | completions: u64 serial, u64 bytes, u32 index, i32 source, i32 tag, u32 cancelled |
//! | 5 | i32 world ranks of the members of the communicator made; only rank 0 of the new communicator sends them |
//! | 6 | u64 serials of the preparations that a start starts, parallel to section 3 |
//! | 7 | i32 world ranks: neighbours sent to, or targets of an RMA epoch |
//! | 8 | i32 world ranks: neighbours received from, or origins of an RMA epoch |
//! | 9 | i32 world ranks of the other side of an intercommunicator made; with section 5, which then has this side's |
//! | 10 | bytes of a name: of a file, a port, a service, a program spawned |
//! | 11 | bytes of the file name of the call site's module, when a process first names that module |
//!
//! Of neighbourhood collectives, sections 1 and 2 are parallel to sections 7 and 8: bytes to and from each neighbour.
//!
//! Bytes of collective operations count the buffers that the caller passes: `MPI_Bcast` sends on the root and receives elsewhere. In
//! gathers and scatters, the root's side is the sum over all ranks; in `MPI_Alltoall`, both sides are such sums. Arguments that are not
//! significant on the calling rank are recorded as none or 0.

use serde::{Deserialize, Serialize};

use crate::call::{GuestVirtual, MpiEnter, ThreadId};
use crate::function::Function;
use crate::limits;

/// Bytes of a record without its sections.
pub const HEADER: usize = 160;
/// Bytes of one completion.
pub const COMPLETION: usize = 32;

/// Kinds of a record's sections, as guest and host number them.
pub mod section {
    /// Bytes sent to each rank of the communicator, or to each neighbour.
    pub const SEND_BYTES: u32 = 1;
    /// Bytes received from each rank of the communicator, or from each neighbour.
    pub const RECEIVE_BYTES: u32 = 2;
    /// Serials of the requests that the call is given or starts.
    pub const REQUESTS: u32 = 3;
    /// Completions of requests, receives or probes.
    pub const COMPLETIONS: u32 = 4;
    /// World ranks of the members of a new communicator.
    pub const MEMBERS: u32 = 5;
    /// Serials of the preparations (`MPI_*_init`) that `MPI_Start` or `MPI_Startall` starts.
    pub const PREPARED: u32 = 6;
    /// World ranks of the neighbours sent to, or of the targets of an RMA epoch.
    pub const DESTINATIONS: u32 = 7;
    /// World ranks of the neighbours received from, or of the origins of an RMA epoch.
    pub const SOURCES: u32 = 8;
    /// World ranks of the members of the remote group of a new intercommunicator.
    pub const REMOTE_MEMBERS: u32 = 9;
    /// Name of the file opened, of the port, of the service, or of the program spawned.
    pub const NAME: u32 = 10;
    /// File name of the call site's module.
    pub const MODULE: u32 = 11;
}

/// Ids of the communicators that every program has.
pub mod communicator {
    /// No communicator: the call has none.
    pub const NONE: u64 = 0;
    /// The predefined communicator `MPI_COMM_WORLD`.
    pub const WORLD: u64 = 1;
    /// The predefined communicator `MPI_COMM_SELF`.
    pub const SELF: u64 = 2;
}

/// Properties of a record, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flags(pub u16);

impl Flags {
    /// The flag of a call that was given `MPI_IN_PLACE`.
    pub const IN_PLACE: Flags = Flags(1);
    /// The flag of a poll run: the record stands for `calls` consecutive polls that found nothing.
    pub const POLL_RUN: Flags = Flags(2);
    /// The flag of a call whose call site is relative to the main program's load address.
    pub const CALL_SITE_IN_PROGRAM: Flags = Flags(4);
    /// The flag of a record without the sections that did not fit.
    pub const TAIL_DROPPED: Flags = Flags(8);
    /// The flag of a call whose communicator is an intercommunicator.
    pub const INTERCOMM: Flags = Flags(16);
    /// The flag of a call of the function's large-count form, such as `MPI_Send_c`.
    pub const LARGE_COUNT: Flags = Flags(32);
    const ALL: u16 = 63;

    /// Returns whether all bits of `other` are set in `self`.
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A rank of `MPI_COMM_WORLD`, or the reason why an argument is no such rank.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Peer {
    /// The call has no such argument, or it is not significant on this rank.
    #[default]
    None,
    /// No process: `MPI_PROC_NULL`, or `MPI_ROOT`.
    Null,
    /// Any process: `MPI_ANY_SOURCE`.
    Any,
    /// A process that is not in this `MPI_COMM_WORLD`.
    Outside,
    /// The process of this world rank.
    Rank(u32),
}

impl Peer {
    /// Returns the world rank; `None` for the other variants.
    pub fn rank(self) -> Option<u32> {
        match self {
            Peer::Rank(rank) => Some(rank),
            _ => None,
        }
    }

    fn from_wire(value: i32) -> Option<Peer> {
        Some(match value {
            -1 => Peer::None,
            -2 => Peer::Null,
            -3 => Peer::Any,
            -4 => Peer::Outside,
            _ => Peer::Rank(u32::try_from(value).ok()?),
        })
    }

    fn to_wire(self) -> i32 {
        match self {
            Peer::None => -1,
            Peer::Null => -2,
            Peer::Any => -3,
            Peer::Outside => -4,
            Peer::Rank(rank) => rank as i32,
        }
    }
}

/// Tag of a message, or the reason why an argument is no tag.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Tag {
    /// The call has no tag.
    #[default]
    None,
    /// Any tag: `MPI_ANY_TAG`.
    Any,
    /// The tag of this value.
    Value(u32),
}

impl Tag {
    fn from_wire(value: i32) -> Option<Tag> {
        Some(match value {
            -1 => Tag::None,
            -3 => Tag::Any,
            _ => Tag::Value(u32::try_from(value).ok()?),
        })
    }

    fn to_wire(self) -> i32 {
        match self {
            Tag::None => -1,
            Tag::Any => -3,
            Tag::Value(tag) => tag as i32,
        }
    }
}

/// Operation of a reduction, such as a sum.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[allow(
    missing_docs,
    reason = "each variant is the predefined MPI operation of that name"
)]
#[repr(u32)]
pub enum Reduction {
    /// The call reduces nothing.
    #[default]
    None = 0,
    Max = 1,
    Min = 2,
    Sum = 3,
    Prod = 4,
    Land = 5,
    Band = 6,
    Lor = 7,
    Bor = 8,
    Lxor = 9,
    Bxor = 10,
    MaxLoc = 11,
    MinLoc = 12,
    Replace = 13,
    NoOp = 14,
    /// An operation that the program has defined.
    User = 255,
}

impl Reduction {
    fn from_wire(value: u32) -> Option<Reduction> {
        use Reduction::*;
        const PREDEFINED: [Reduction; 15] = [
            None, Max, Min, Sum, Prod, Land, Band, Lor, Bor, Lxor, Bxor, MaxLoc, MinLoc, Replace,
            NoOp,
        ];
        match value {
            255 => Some(User),
            _ => PREDEFINED.get(value as usize).copied(),
        }
    }
}

/// Completion of a request, a blocking receive or a probe, as reported by an MPI call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Completion {
    /// Serial of the request; 0 for a blocking call, or a request whose creation the tracer did not see.
    pub request: u64,
    /// Bytes received or read; 0 except for receives, probes and reads of files.
    pub bytes: u64,
    /// Index of the request in the array of requests that the call was given, from 0.
    pub index: u32,
    /// Sender of the received message.
    pub source: Peer,
    /// Tag of the received message.
    pub tag: Tag,
    /// True if the request was cancelled.
    pub cancelled: bool,
}

/// Record of an MPI call, or of a run of failed polls, as the guest reports it. Sizes are in bytes; ranks are ranks of `MPI_COMM_WORLD`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MpiRecord {
    /// MPI function of the call.
    pub function: Function,
    /// Properties of the record, one bit each.
    pub flags: Flags,
    /// Number of the call in its thread, in the order of entry, from 0. A poll run has the number of its first poll.
    pub sequence: u64,
    /// Thread that made the call.
    pub thread: ThreadId,
    /// The caller's rank in `MPI_COMM_WORLD`; [`Peer::None`] before initialisation.
    pub rank: Peer,
    /// Return code; 0 is `MPI_SUCCESS`.
    pub result: i32,
    /// Communicator id, equal on all members and in every run of the same program; see [`communicator`].
    pub communicator: u64,
    /// Return address of the call, relative to the load address of `call_module`. For a call from Fortran, the address is in the code that
    /// calls the MPI library, not in the library's Fortran layer.
    pub call_site: u64,
    /// Receiver of the message that the call sends.
    pub destination: Peer,
    /// The tag of the message that the call sends.
    pub send_tag: Tag,
    /// Sender that the call asks for in the message to receive.
    pub source: Peer,
    /// Tag that the call asks for in the message to receive.
    pub receive_tag: Tag,
    /// Root of a rooted collective.
    pub root: Peer,
    /// Operation of a reduction; [`Reduction::None`] if the call reduces nothing.
    pub reduction: Reduction,
    /// Bytes that the caller passes in; 0 for a send to `MPI_PROC_NULL`.
    pub send_bytes: u64,
    /// Bytes of the caller's receive buffer; 0 for a receive from `MPI_PROC_NULL`.
    pub receive_bytes: u64,
    /// Serial of the operation that the call starts, or of the preparation that `MPI_*_init` makes; 0 for none. Serials count from 1 in
    /// each process.
    pub request: u64,
    /// Number of calls: 1, or the length of a poll run.
    pub calls: u64,
    /// Id of the communicator made; 0 for none.
    pub new_communicator: u64,
    /// Number of ranks in the communicator, or in the remote group of an intercommunicator.
    pub communicator_size: u32,
    /// Bytes of one element of the datatype.
    pub element_size: u32,
    /// Number of contiguous blocks of memory in an element of a datatype that the program made; 1 if elements are contiguous; 0 for a
    /// predefined datatype, or if the number is unknown.
    pub element_blocks: u64,
    /// A number whose meaning depends on the function; functions not in the table have none:
    ///
    /// | function | meaning |
    /// |---|---|
    /// | `MPI_Init`, `MPI_Init_thread` | thread level provided: 0 single, 1 funneled, 2 serialized, 3 multiple |
    /// | `MPI_Win_lock` | 1 exclusive, 2 shared |
    /// | `MPI_Psend_init`, `MPI_Precv_init` | partitions |
    /// | `MPI_Pready`, `MPI_Parrived` | the partition |
    /// | `MPI_Pready_range`, `MPI_Pready_list` | number of partitions |
    /// | `MPI_File_open` | access: 1 read, 2 write, 3 both |
    pub detail: u32,
    /// Id of the window or file that the call works on, equal on all ranks that share the object and in every run; 0 for none. For
    /// `MPI_Init` and `MPI_Init_thread`, the id of the program: equal on all ranks of one `MPI_COMM_WORLD`, and another one for each
    /// program of the launchers; 0 if unknown.
    pub object: u64,
    /// For file transfers with an explicit offset, the bytes of the view's data before the transfer. For `MPI_File_set_size` and
    /// `MPI_File_preallocate`, the size in bytes; for `MPI_File_set_view`, the displacement. For RMA operations, the target displacement as
    /// the program passed it.
    pub offset: u64,
    /// Id of the module that made the call: 0 for the main program, `u64::MAX` for code of no file, otherwise a hash of the module's file
    /// name.
    pub call_module: u64,
    /// Bytes sent to each rank of the communicator, or by a neighbourhood collective to each of `destinations`. Empty unless the function
    /// is a v or w form.
    pub send_bytes_to: Vec<u64>,
    /// Bytes received from each rank of the communicator, or by a neighbourhood collective from each of `sources`. Empty unless the
    /// function is a v or w form.
    pub receive_bytes_from: Vec<u64>,
    /// Serials of the requests that the call is given or starts; 0 for a null or unknown request.
    pub requests: Vec<u64>,
    /// Serials of the preparations that `MPI_Start` and `MPI_Startall` start, parallel to `requests`.
    pub prepared: Vec<u64>,
    /// Operations that the call completed, in the order in which MPI reported them.
    pub completions: Vec<Completion>,
    /// World ranks of the members of the communicator made, in its rank order; only the record of its rank 0 has them. For an
    /// intercommunicator, the members of the caller's own side; the record of rank 0 of each side has them.
    pub members: Vec<Peer>,
    /// World ranks of the members of the remote group of the intercommunicator made; present where `members` is.
    pub remote_members: Vec<Peer>,
    /// Neighbours that a neighbourhood collective sends to, in the topology's order; for `MPI_Win_start`, the targets.
    pub destinations: Vec<Peer>,
    /// Neighbours that a neighbourhood collective receives from; for `MPI_Win_post`, the origins.
    pub sources: Vec<Peer>,
    /// Name of the file opened, of the port, of the service, or of the program spawned; empty for none.
    pub name: String,
    /// File name of `call_module`, in the process's first record with that module; otherwise empty.
    pub module_name: String,
}

/// Error in the format of a record. Offsets are in bytes from the start of the buffer.
#[allow(missing_docs, reason = "the messages name the fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The buffer ends within a record.
    #[error("record at byte {offset} needs {needed} bytes, {available} are left")]
    Cut {
        offset: usize,
        needed: usize,
        available: usize,
    },
    /// The size is less than a header, or not a multiple of 8.
    #[error("record at byte {offset} states the impossible size {size}")]
    BadSize { offset: usize, size: u32 },
    /// A field has a value that this version does not define.
    #[error("record at byte {offset}: field {field} has the unknown value {value}")]
    UnknownValue {
        offset: usize,
        field: &'static str,
        value: i64,
    },
    /// A section extends beyond the end of its record, or bytes follow the last section.
    #[error("record at byte {offset}: its sections do not fit its size")]
    BadSections { offset: usize },
}

impl MpiRecord {
    /// Returns an empty record of a call: every optional argument absent, one call, result `MPI_SUCCESS`.
    pub fn new(function: Function, thread: ThreadId, rank: Peer, sequence: u64) -> MpiRecord {
        MpiRecord {
            function,
            flags: Flags::default(),
            sequence,
            thread,
            rank,
            result: 0,
            communicator: communicator::NONE,
            call_site: 0,
            destination: Peer::None,
            send_tag: Tag::None,
            source: Peer::None,
            receive_tag: Tag::None,
            root: Peer::None,
            reduction: Reduction::None,
            send_bytes: 0,
            receive_bytes: 0,
            request: 0,
            calls: 1,
            new_communicator: communicator::NONE,
            communicator_size: 0,
            element_size: 0,
            element_blocks: 0,
            send_bytes_to: Vec::new(),
            receive_bytes_from: Vec::new(),
            requests: Vec::new(),
            prepared: Vec::new(),
            completions: Vec::new(),
            members: Vec::new(),
            remote_members: Vec::new(),
            destinations: Vec::new(),
            sources: Vec::new(),
            name: String::new(),
            module_name: String::new(),
            detail: 0,
            object: 0,
            offset: 0,
            call_module: 0,
        }
    }

    /// Returns the approximate number of bytes that the record takes in the host's memory.
    pub fn size(&self) -> usize {
        let numbers = [
            &self.send_bytes_to,
            &self.receive_bytes_from,
            &self.requests,
            &self.prepared,
        ];
        let ranks = [
            &self.members,
            &self.remote_members,
            &self.destinations,
            &self.sources,
        ];
        size_of::<MpiRecord>()
            + numbers
                .iter()
                .map(|list| size_of_val(&list[..]))
                .sum::<usize>()
            + ranks
                .iter()
                .map(|list| size_of_val(&list[..]))
                .sum::<usize>()
            + size_of_val(&self.completions[..])
            + self.name.len()
            + self.module_name.len()
    }

    /// Decodes a buffer that contains consecutive records and nothing else.
    pub fn decode_all(buffer: &[u8]) -> Result<Vec<MpiRecord>, RecordError> {
        let mut records = Vec::new();
        let mut offset = 0;
        while offset < buffer.len() {
            let (record, size) = decode_one(&buffer[offset..], offset)?;
            records.push(record);
            offset += size;
        }
        Ok(records)
    }

    /// Appends the record to `out`, in the format of guest memory.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let u32s = |out: &mut Vec<u8>, values: &[u32]| {
            values
                .iter()
                .for_each(|value| out.extend(value.to_le_bytes()))
        };
        out.extend([0; 4]);
        out.extend((self.function as u16).to_le_bytes());
        out.extend(self.flags.0.to_le_bytes());
        out.extend(self.sequence.to_le_bytes());
        u32s(
            out,
            &[
                self.thread.pid,
                self.thread.tid,
                self.rank.to_wire() as u32,
                self.result as u32,
            ],
        );
        out.extend(self.communicator.to_le_bytes());
        out.extend(self.call_site.to_le_bytes());
        u32s(
            out,
            &[
                self.destination.to_wire() as u32,
                self.send_tag.to_wire() as u32,
            ],
        );
        u32s(
            out,
            &[
                self.source.to_wire() as u32,
                self.receive_tag.to_wire() as u32,
            ],
        );
        u32s(out, &[self.root.to_wire() as u32, self.reduction as u32]);
        for value in [
            self.send_bytes,
            self.receive_bytes,
            self.request,
            self.calls,
            self.new_communicator,
        ] {
            out.extend(value.to_le_bytes());
        }
        let count_at = out.len() + 8;
        u32s(
            out,
            &[self.communicator_size, self.element_size, 0, self.detail],
        );
        for value in [
            self.object,
            self.offset,
            self.call_module,
            self.element_blocks,
        ] {
            out.extend(value.to_le_bytes());
        }
        let mut sections = 0u32;
        let mut begin = |out: &mut Vec<u8>, kind: u32, count: usize| {
            sections += u32::from(count > 0);
            if count > 0 {
                u32s(out, &[kind, count as u32]);
            }
        };
        let lists = [
            (section::SEND_BYTES, &self.send_bytes_to),
            (section::RECEIVE_BYTES, &self.receive_bytes_from),
            (section::REQUESTS, &self.requests),
            (section::PREPARED, &self.prepared),
        ];
        for (kind, values) in lists {
            begin(out, kind, values.len());
            values
                .iter()
                .for_each(|value| out.extend(value.to_le_bytes()));
        }
        begin(out, section::COMPLETIONS, self.completions.len());
        for completion in &self.completions {
            out.extend(completion.request.to_le_bytes());
            out.extend(completion.bytes.to_le_bytes());
            for value in [
                completion.index,
                completion.source.to_wire() as u32,
                completion.tag.to_wire() as u32,
                u32::from(completion.cancelled),
            ] {
                out.extend(value.to_le_bytes());
            }
        }
        let pad =
            |out: &mut Vec<u8>| out.resize(start + (out.len() - start).next_multiple_of(8), 0);
        let peers = [
            (section::MEMBERS, &self.members),
            (section::REMOTE_MEMBERS, &self.remote_members),
            (section::DESTINATIONS, &self.destinations),
            (section::SOURCES, &self.sources),
        ];
        for (kind, ranks) in peers {
            begin(out, kind, ranks.len());
            for rank in ranks {
                out.extend(rank.to_wire().to_le_bytes());
            }
            pad(out);
        }
        for (kind, text) in [
            (section::NAME, &self.name),
            (section::MODULE, &self.module_name),
        ] {
            begin(out, kind, text.len());
            out.extend(text.as_bytes());
            pad(out);
        }
        let size = (out.len() - start) as u32;
        out[start..start + 4].copy_from_slice(&size.to_le_bytes());
        out[count_at..count_at + 4].copy_from_slice(&sections.to_le_bytes());
    }
}

/// A record as the guest showed it when its call began, without results; empty if the guest showed none. The record stays undecoded,
/// because most calls end and then have a record of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRecord(Vec<u8>);

impl EntryRecord {
    /// Reads the record whose header and sections are at these guest-virtual addresses. Returns an empty one if `header` is 0, or the
    /// record can't be read or has an invalid size.
    pub(crate) fn read<G: GuestVirtual + ?Sized>(
        memory: &mut G,
        header: u64,
        sections: u64,
    ) -> EntryRecord {
        let mut bytes = vec![0; HEADER];
        if header == 0 || memory.read(header, &mut bytes).is_err() {
            return EntryRecord::default();
        }
        let size = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        if size < HEADER || size as u64 > limits::RECORDS {
            return EntryRecord::default();
        }
        if size > HEADER {
            bytes.resize(size, 0);
            if memory.read(sections, &mut bytes[HEADER..]).is_err() {
                return EntryRecord::default();
            }
        }
        EntryRecord(bytes)
    }

    /// Encodes a record as the guest shows it at the call's entry.
    pub fn new(record: &MpiRecord) -> EntryRecord {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        EntryRecord(bytes)
    }

    /// Returns the number of bytes of the encoded record; 0 if the guest showed none.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the size is one that [`EntryRecord::read`] can have read.
    pub(crate) fn is_possible(&self) -> bool {
        self.0.is_empty() || (HEADER..=limits::RECORDS as usize).contains(&self.0.len())
    }

    /// Returns the record of the call that `enter` describes. Returns `None` if the guest showed no record, an invalid one, or that of
    /// another call.
    pub fn decode(&self, enter: &MpiEnter) -> Option<MpiRecord> {
        let (record, _) = decode_one(&self.0, 0).ok()?;
        let same = (record.function, record.thread, record.sequence)
            == (enter.function, enter.thread, enter.sequence);
        same.then_some(record)
    }
}

/// A cursor over bytes; reading beyond the last one returns `None`.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

fn decode_one(buffer: &[u8], offset: usize) -> Result<(MpiRecord, usize), RecordError> {
    let cut = |needed| RecordError::Cut {
        offset,
        needed,
        available: buffer.len(),
    };
    if buffer.len() < HEADER {
        return Err(cut(HEADER));
    }
    let stated = u32::from_le_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
    let size = stated as usize;
    if size < HEADER || !size.is_multiple_of(8) {
        return Err(RecordError::BadSize {
            offset,
            size: stated,
        });
    }
    let body = buffer.get(4..size).ok_or_else(|| cut(size))?;
    let unknown = |field, value: i64| RecordError::UnknownValue {
        offset,
        field,
        value,
    };
    let mut bytes = Bytes(body);
    // The size is at least a header's, so that all fields before the sections are present; `?` on `None` avoids code that could panic.
    let short = || RecordError::BadSections { offset };
    let peer =
        |value: i32, field| Peer::from_wire(value).ok_or_else(|| unknown(field, value.into()));
    let tag = |value: i32, field| Tag::from_wire(value).ok_or_else(|| unknown(field, value.into()));

    let number = bytes.u16().ok_or_else(short)?;
    let function =
        Function::from_number(number).ok_or_else(|| unknown("function", number.into()))?;
    let flags = bytes.u16().ok_or_else(short)?;
    if flags & !Flags::ALL != 0 {
        return Err(unknown("flags", flags.into()));
    }
    let sequence = bytes.u64().ok_or_else(short)?;
    let thread = ThreadId {
        pid: bytes.u32().ok_or_else(short)?,
        tid: bytes.u32().ok_or_else(short)?,
    };
    let rank = peer(bytes.i32().ok_or_else(short)?, "rank")?;
    let mut record = MpiRecord::new(function, thread, rank, sequence);
    record.flags = Flags(flags);
    record.result = bytes.i32().ok_or_else(short)?;
    record.communicator = bytes.u64().ok_or_else(short)?;
    record.call_site = bytes.u64().ok_or_else(short)?;
    record.destination = peer(bytes.i32().ok_or_else(short)?, "destination")?;
    record.send_tag = tag(bytes.i32().ok_or_else(short)?, "send_tag")?;
    record.source = peer(bytes.i32().ok_or_else(short)?, "source")?;
    record.receive_tag = tag(bytes.i32().ok_or_else(short)?, "receive_tag")?;
    record.root = peer(bytes.i32().ok_or_else(short)?, "root")?;
    let reduction = bytes.u32().ok_or_else(short)?;
    record.reduction =
        Reduction::from_wire(reduction).ok_or_else(|| unknown("reduction", reduction.into()))?;
    record.send_bytes = bytes.u64().ok_or_else(short)?;
    record.receive_bytes = bytes.u64().ok_or_else(short)?;
    record.request = bytes.u64().ok_or_else(short)?;
    record.calls = bytes.u64().ok_or_else(short)?;
    record.new_communicator = bytes.u64().ok_or_else(short)?;
    record.communicator_size = bytes.u32().ok_or_else(short)?;
    record.element_size = bytes.u32().ok_or_else(short)?;
    let sections = bytes.u32().ok_or_else(short)?;
    record.detail = bytes.u32().ok_or_else(short)?;
    record.object = bytes.u64().ok_or_else(short)?;
    record.offset = bytes.u64().ok_or_else(short)?;
    record.call_module = bytes.u64().ok_or_else(short)?;
    record.element_blocks = bytes.u64().ok_or_else(short)?;
    for _ in 0..sections {
        let kind = bytes.u32().ok_or_else(short)?;
        let count = bytes.u32().ok_or_else(short)? as usize;
        let element = match kind {
            section::SEND_BYTES
            | section::RECEIVE_BYTES
            | section::REQUESTS
            | section::PREPARED => 8,
            section::COMPLETIONS => COMPLETION,
            section::MEMBERS
            | section::REMOTE_MEMBERS
            | section::DESTINATIONS
            | section::SOURCES => 4,
            section::NAME | section::MODULE => 1,
            _ => return Err(unknown("section kind", kind.into())),
        };
        // The length is checked against the bytes that are left before anything is allocated for the elements.
        let length = count.checked_mul(element).ok_or_else(short)?;
        let (elements, rest) = bytes.0.split_at_checked(length).ok_or_else(short)?;
        let padding = length.next_multiple_of(8) - length;
        bytes = Bytes(rest.get(padding..).ok_or_else(short)?);
        let numbers = || {
            elements
                .chunks_exact(8)
                .filter_map(|chunk| Bytes(chunk).u64())
        };
        match kind {
            section::SEND_BYTES => record.send_bytes_to.extend(numbers()),
            section::RECEIVE_BYTES => record.receive_bytes_from.extend(numbers()),
            section::REQUESTS => record.requests.extend(numbers()),
            section::PREPARED => record.prepared.extend(numbers()),
            section::MEMBERS
            | section::REMOTE_MEMBERS
            | section::DESTINATIONS
            | section::SOURCES => {
                let ranks = match kind {
                    section::MEMBERS => &mut record.members,
                    section::REMOTE_MEMBERS => &mut record.remote_members,
                    section::DESTINATIONS => &mut record.destinations,
                    _ => &mut record.sources,
                };
                for chunk in elements.chunks_exact(4) {
                    ranks.push(peer(Bytes(chunk).i32().ok_or_else(short)?, "member")?);
                }
            }
            // The guest chooses names of files, so that they need not be UTF-8.
            section::NAME => record.name = String::from_utf8_lossy(elements).into_owned(),
            section::MODULE => record.module_name = String::from_utf8_lossy(elements).into_owned(),
            _ => {
                for chunk in elements.chunks_exact(COMPLETION) {
                    let mut chunk = Bytes(chunk);
                    record.completions.push(Completion {
                        request: chunk.u64().ok_or_else(short)?,
                        bytes: chunk.u64().ok_or_else(short)?,
                        index: chunk.u32().ok_or_else(short)?,
                        source: peer(chunk.i32().ok_or_else(short)?, "completion source")?,
                        tag: tag(chunk.i32().ok_or_else(short)?, "completion tag")?,
                        cancelled: match chunk.u32().ok_or_else(short)? {
                            0 => false,
                            1 => true,
                            other => return Err(unknown("cancelled", other.into())),
                        },
                    });
                }
            }
        }
    }
    if !bytes.0.is_empty() {
        return Err(RecordError::BadSections { offset });
    }
    Ok((record, size))
}
