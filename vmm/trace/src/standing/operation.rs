//! What a call does, as far as others may wait for it.

use nodescope_hypercall::record::{Flags, communicator};
use nodescope_hypercall::{Class, Function, MpiRecord, Peer, Tag};

use super::Place;

/// A message that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    pub to: u32,
    pub tag: u32,
    pub communicator: u64,
    pub bytes: u64,
    /// It needs no receiver to end: the program has given a buffer.
    pub buffered: bool,
}

/// A message that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    pub from: Peer,
    pub tag: Tag,
    pub communicator: u64,
    pub room: u64,
}

/// Who must have entered a collective operation before a member may leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// All members.
    All,
    /// The root; and if it has, some other member.
    Root(u32),
    /// Some member: which one depends on the algorithm.
    Some,
}

/// An operation that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Send(Outgoing),
    Receive(Incoming),
    Both(Option<Outgoing>, Option<Incoming>),
    /// The so-manieth collective operation of its rank on the communicator or window, from 0.
    Collective {
        key: u64,
        index: u64,
        needs: Needs,
    },
    /// What is not followed.
    Other,
}

/// An operation and the call that began it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub place: Place,
    pub kind: Kind,
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

/// The messages of a call, or of the operation that it starts or prepares. Probes and matched receives are none: a probe takes no
/// message, and a matched one has been taken.
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
            Kind::Both(send(record), receive(record))
        }
        _ => Kind::Other,
    }
}

/// What a probe asks for.
pub fn probe(record: &MpiRecord) -> Option<Incoming> {
    let probes = matches!(record.function, Function::Probe | Function::Mprobe);
    probes.then(|| receive(record)).flatten()
}

/// Whose members call it together, in one order: a communicator, or a window. None for what is not collective, or not followed.
pub fn together(record: &MpiRecord) -> Option<u64> {
    use Function::*;
    let on_communicator = match record.function {
        CommCreateGroup | CommCreateFromGroup | IntercommCreateFromGroups => false,
        WinCreate | WinAllocate | WinAllocateShared | WinCreateDynamic => true,
        WinFence | WinFree => return (record.object != 0).then_some(record.object),
        function => matches!(
            function.class(),
            Class::Collective
                | Class::StartCollective
                | Class::PrepareCollective
                | Class::Neighbor
                | Class::StartNeighbor
                | Class::PrepareNeighbor
                | Class::Communicator
        ),
    };
    let followed =
        record.communicator > communicator::NONE && record.communicator != communicator::SELF;
    (on_communicator && followed).then_some(record.communicator)
}

/// Who must come before the caller may leave.
pub fn needs(record: &MpiRecord) -> Needs {
    use Function::*;
    let is_root = record.root == record.rank;
    match record.function.blocking() {
        // Between the two sides of an intercommunicator other rules hold.
        _ if record.flags.contains(Flags::INTERCOMM) => Needs::Some,
        Bcast | Scatter | Scatterv => match record.root {
            Peer::Rank(root) if !is_root => Needs::Root(root),
            _ => Needs::Some,
        },
        Reduce | Gather | Gatherv if is_root => Needs::All,
        Reduce | Gather | Gatherv | Scan | Exscan => Needs::Some,
        function if function.class() == Class::Neighbor => Needs::Some,
        _ => Needs::All,
    }
}
