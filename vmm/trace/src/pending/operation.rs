//! Operations of MPI calls, as far as they concern other ranks.

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Class, Function, MpiRecord, Peer, Tag};

use super::CallSite;
use super::collectives::CollectiveId;

/// A message that a send passes to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    pub to: u32,
    pub tag: u32,
    pub communicator: u64,
    pub bytes: u64,
    /// True if the send ends without a receiver, because the program has provided a buffer (MPI_Bsend).
    pub buffered: bool,
}

/// A message that a receive or a probe requests. `room` is the length of the receive's buffer in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    pub from: Peer,
    pub tag: Tag,
    pub communicator: u64,
    pub room: u64,
}

/// The members that must have entered a collective operation before a member may leave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequiredMembers {
    /// All members of the communicator.
    All,
    /// The root. If the root has entered, perhaps some other member.
    Root(u32),
    /// All members of lower rank than the caller. If they have entered, perhaps some other member.
    Before,
    /// All `sources`. If they have entered, perhaps some of `destinations`.
    Neighbours {
        sources: Vec<u32>,
        destinations: Vec<u32>,
    },
    /// Perhaps some member: which one, and whether any, depends on the algorithm.
    Some,
}

/// The need of an operation: what other ranks must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    Nothing,
    /// All of these ranks must act.
    All(Vec<u32>),
    /// One of these ranks must act.
    Any(Vec<u32>),
    /// One of these ranks must act, unless the operation is over already: the MPI library may complete it alone, for example by buffering a
    /// short message.
    Perhaps(Vec<u32>),
}

/// Kind of an operation that has begun, with its messages or members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Send(Outgoing),
    Receive(Incoming),
    SendReceive(Option<Outgoing>, Option<Incoming>),
    Collective(CollectiveId, RequiredMembers),
    /// An operation that the analysis does not follow.
    Other,
}

/// An operation and the call that began it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub site: CallSite,
    pub kind: Kind,
    /// True if the program has asked for the operation's cancellation: whether the operation is cancelled or not, a wait for it ends (MPI
    /// 4.0, section 3.8.4).
    pub cancelled: bool,
}

impl Operation {
    pub fn new(site: CallSite, kind: Kind) -> Operation {
        Operation {
            site,
            kind,
            cancelled: false,
        }
    }
}

fn send(record: &MpiRecord) -> Option<Outgoing> {
    let (Peer::Rank(to), Tag::Value(tag)) = (record.destination, record.send_tag) else {
        return None;
    };
    use Function::*;
    Some(Outgoing {
        to,
        tag,
        communicator: record.communicator,
        bytes: record.send_bytes,
        buffered: matches!(record.function, Bsend | Ibsend | BsendInit),
    })
}

fn receive(record: &MpiRecord) -> Option<Incoming> {
    matches!(record.source, Peer::Rank(_) | Peer::Any).then_some(Incoming {
        from: record.source,
        tag: record.receive_tag,
        communicator: record.communicator,
        room: record.receive_bytes,
    })
}

/// Returns the messages of a call, or of the operation that it starts or prepares. Probes and matched receives have no message here:
/// a plain probe takes no message, and a matched probe has already taken the message of a matched receive.
pub fn messages(record: &MpiRecord) -> Kind {
    use Function::*;
    let one = |send: Option<Outgoing>, receive: Option<Incoming>| match (send, receive) {
        (Some(send), _) => Kind::Send(send),
        (None, Some(receive)) => Kind::Receive(receive),
        (None, None) => Kind::Other,
    };
    match record.function {
        Send | Bsend | Ssend | Rsend | Isend | Ibsend | Issend | Irsend | SendInit | BsendInit
        | SsendInit | RsendInit | PsendInit => one(send(record), None),
        Recv | Irecv | RecvInit | PrecvInit => one(None, receive(record)),
        Sendrecv | SendrecvReplace | Isendrecv | IsendrecvReplace => {
            Kind::SendReceive(send(record), receive(record))
        }
        _ => Kind::Other,
    }
}

/// Returns the message that a blocking probe requests; `None` for other calls.
pub fn probe(record: &MpiRecord) -> Option<Incoming> {
    let probes = matches!(record.function, Function::Probe | Function::Mprobe);
    probes.then(|| receive(record)).flatten()
}

/// Returns whether a function returns without waiting for other ranks. Such a function starts an operation, or prepares an operation
/// between two ranks (MPI 4.0, section 2.4).
pub fn returns_at_once(function: Function) -> bool {
    use Function::*;
    match function.class() {
        Class::StartSend
        | Class::StartReceive
        | Class::StartSendReceive
        | Class::StartCollective
        | Class::StartNeighbor
        | Class::Persistent => true,
        // Not the first halves of split collectives, which may be the whole operation (MPI 4.0, section 14.4.5).
        Class::StartFileTransfer => !matches!(
            function,
            FileReadAtAllBegin
                | FileReadAllBegin
                | FileReadOrderedBegin
                | FileWriteAtAllBegin
                | FileWriteAllBegin
                | FileWriteOrderedBegin
        ),
        _ => matches!(function, CommIdup | CommIdupWithInfo),
    }
}

/// Returns whether a function is collective over all ranks that have opened the file (MPI 4.0, sections 14.2 to 14.6).
fn is_collective_on_file(function: Function) -> bool {
    use Function::*;
    matches!(
        function.blocking(),
        FileClose
            | FileSetSize
            | FilePreallocate
            | FileSetView
            | FileSync
            | FileSeekShared
            | FileSetAtomicity
            | FileSetInfo
            | FileReadAtAll
            | FileReadAll
            | FileReadOrdered
            | FileWriteAtAll
            | FileWriteAll
            | FileWriteOrdered
    )
}

/// Returns the communicator, window or file on which a call is collective, so that all members make their calls in one order. None for
/// other calls.
pub fn collective_object(record: &MpiRecord) -> Option<u64> {
    use Function::*;
    if record.communicator == communicator::SELF {
        return None;
    }
    let key = match record.function {
        CommCreateGroup | CommCreateFromGroup | IntercommCreateFromGroups => return None,
        WinCreate | WinAllocate | WinAllocateShared | WinCreateDynamic | FileOpen => {
            record.communicator
        }
        WinFence | WinFree | WinSetInfo => record.object,
        // Collective operations on a file use a duplicate of the communicator that opened the file (MPI 4.0, section 14.6.4). So they
        // have an order of their own.
        function if is_collective_on_file(function) => record.object,
        function => match function.class() {
            Class::Collective
            | Class::StartCollective
            | Class::PrepareCollective
            | Class::Neighbor
            | Class::StartNeighbor
            | Class::PrepareNeighbor
            | Class::Communicator => record.communicator,
            _ => return None,
        },
    };
    // `communicator::NONE` is also the id for no window and no file.
    (key != communicator::NONE).then_some(key)
}

/// Returns the members that must enter a collective operation before the caller may leave the operation. [`super::windows`] is more exact
/// for calls on windows.
pub fn required_members(record: &MpiRecord) -> RequiredMembers {
    use Function::*;
    let is_root = record.root == record.rank;
    match record.function.blocking() {
        // An intercommunicator has other rules for its two sides.
        _ if record.flags.contains(Flags::INTERCOMM) => RequiredMembers::Some,
        Bcast | Scatter | Scatterv => match record.root {
            Peer::Rank(root) if !is_root => RequiredMembers::Root(root),
            _ => RequiredMembers::Some,
        },
        Reduce | Gather | Gatherv if is_root => RequiredMembers::All,
        Reduce | Gather | Gatherv | Scan | Exscan => RequiredMembers::Some,
        // Each rank's position in the file follows the data of the ranks before it (MPI 4.0, section 14.4.4).
        FileReadOrdered | FileWriteOrdered if record.send_bytes.max(record.receive_bytes) > 0 => {
            RequiredMembers::Before
        }
        function => match function.class() {
            Class::Neighbor => neighbours(record),
            // No rank needs the others' data, but the MPI library may let any rank wait (MPI 4.0, sections 6.14 and 14.6.4).
            Class::File | Class::FileTransfer => RequiredMembers::Some,
            _ if record.function == WinSetInfo => RequiredMembers::Some,
            _ => RequiredMembers::All,
        },
    }
}

/// Returns the members that a neighbourhood collective requires. The caller needs the data of its sources. Data for a destination may go
/// into a buffer. A neighbour that exchanges no data with the caller need not come (MPI 4.0, section 8.6).
fn neighbours(record: &MpiRecord) -> RequiredMembers {
    if record.flags.contains(Flags::TAIL_DROPPED) {
        return RequiredMembers::Some;
    }
    let with_data = |ranks: &[Peer], each: &[u64], total: u64| -> Vec<u32> {
        let has = |at: usize| each.get(at).map_or(total > 0, |&bytes| bytes > 0);
        let ranks = ranks.iter().enumerate().filter(|&(at, _)| has(at));
        ranks.filter_map(|(_, rank)| rank.rank()).collect()
    };
    RequiredMembers::Neighbours {
        sources: with_data(
            &record.sources,
            &record.receive_bytes_from,
            record.receive_bytes,
        ),
        destinations: with_data(
            &record.destinations,
            &record.send_bytes_to,
            record.send_bytes,
        ),
    }
}
