//! Operations of a rank, free of values that differ between iterations.

use std::num::NonZeroU32;

use nodescope_hypercall::Function;
pub use nodescope_trace::Site;

/// Reference to a rank of the world with which an operation communicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerRef {
    /// World rank of the peer.
    Absolute(u32),
    /// Distance from the caller to the peer, modulo the number of ranks.
    Relative(u32),
}

impl PeerRef {
    /// Returns the peer's world rank, for the rank `caller` in a world of `world` ranks.
    pub fn resolve(self, caller: u32, world: u32) -> u32 {
        match self {
            PeerRef::Absolute(rank) => rank,
            PeerRef::Relative(distance) => {
                ((u64::from(caller) + u64::from(distance)) % u64::from(world.max(1))) as u32
            }
        }
    }

    /// Returns the same peer as a distance from `caller`.
    pub fn relative(self, caller: u32, world: u32) -> PeerRef {
        let rank = u64::from(self.resolve(caller, world));
        let world = u64::from(world.max(1));
        PeerRef::Relative(((rank + world - u64::from(caller) % world) % world) as u32)
    }

    /// Returns the same peer as a world rank.
    pub fn absolute(self, caller: u32, world: u32) -> PeerRef {
        PeerRef::Absolute(self.resolve(caller, world))
    }
}

/// The sender from which a receive accepts a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Rank that the program named.
    Peer(PeerRef),
    /// Rank whose message matched according to the trace; the program accepted any.
    Matched(PeerRef),
    /// Any rank; the matching message is unknown.
    Any,
}

impl Source {
    /// Returns the sender; `None` for any rank.
    pub fn peer(self) -> Option<PeerRef> {
        match self {
            Source::Peer(peer) | Source::Matched(peer) => Some(peer),
            Source::Any => None,
        }
    }

    fn map(self, with: impl Fn(PeerRef) -> PeerRef) -> Source {
        match self {
            Source::Peer(peer) => Source::Peer(with(peer)),
            Source::Matched(peer) => Source::Matched(with(peer)),
            Source::Any => Source::Any,
        }
    }
}

/// Send modes (MPI 4.0, section 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Standard: buffered or not, as the implementation likes.
    Standard,
    /// Buffered: complete as soon as the data is copied.
    Buffered,
    /// Synchronous: complete when the receive has begun.
    Synchronous,
    /// Ready: the receive has been posted.
    Ready,
}

/// Collective operations by their effect; a blocking and a non-blocking one have the same kind.
#[allow(
    missing_docs,
    reason = "each variant is the MPI operation of that name"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CollectiveKind {
    Barrier,
    Bcast,
    Reduce,
    Allreduce,
    Gather,
    Gatherv,
    Scatter,
    Scatterv,
    Allgather,
    Allgatherv,
    Alltoall,
    Alltoallv,
    ReduceScatter,
    ReduceScatterBlock,
    Scan,
    Exscan,
    /// Construction of a communicator: its members agree on an identifier.
    Create,
}

impl CollectiveKind {
    /// Every kind of collective.
    pub const ALL: [CollectiveKind; 17] = [
        CollectiveKind::Barrier,
        CollectiveKind::Bcast,
        CollectiveKind::Reduce,
        CollectiveKind::Allreduce,
        CollectiveKind::Gather,
        CollectiveKind::Gatherv,
        CollectiveKind::Scatter,
        CollectiveKind::Scatterv,
        CollectiveKind::Allgather,
        CollectiveKind::Allgatherv,
        CollectiveKind::Alltoall,
        CollectiveKind::Alltoallv,
        CollectiveKind::ReduceScatter,
        CollectiveKind::ReduceScatterBlock,
        CollectiveKind::Scan,
        CollectiveKind::Exscan,
        CollectiveKind::Create,
    ];

    /// Returns the name of the kind, by which users choose its algorithm.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::Barrier => "barrier",
            CollectiveKind::Bcast => "bcast",
            CollectiveKind::Reduce => "reduce",
            CollectiveKind::Allreduce => "allreduce",
            CollectiveKind::Gather => "gather",
            CollectiveKind::Gatherv => "gatherv",
            CollectiveKind::Scatter => "scatter",
            CollectiveKind::Scatterv => "scatterv",
            CollectiveKind::Allgather => "allgather",
            CollectiveKind::Allgatherv => "allgatherv",
            CollectiveKind::Alltoall => "alltoall",
            CollectiveKind::Alltoallv => "alltoallv",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::ReduceScatterBlock => "reduce_scatter_block",
            CollectiveKind::Scan => "scan",
            CollectiveKind::Exscan => "exscan",
            CollectiveKind::Create => "comm_create",
        }
    }

    /// Returns whether the collective has a root.
    pub fn rooted(self) -> bool {
        matches!(
            self,
            CollectiveKind::Bcast
                | CollectiveKind::Reduce
                | CollectiveKind::Gather
                | CollectiveKind::Gatherv
                | CollectiveKind::Scatter
                | CollectiveKind::Scatterv
        )
    }
}

/// Collective operation of a rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Collective {
    /// Kind of the collective.
    pub kind: CollectiveKind,
    /// Rank of the root in the communicator; 0 without a root.
    pub root: u32,
    /// Number of bytes. Broadcasts, reductions and scans: the whole vector (reduce-scatter: before scattering). Gathers, scatters and
    /// all-to-all: one rank's block. v forms: all that the caller sends, or receives in a scatter.
    pub bytes: u64,
    /// Bytes to each rank of the communicator; empty if the call does not list them.
    pub send_to: Box<[u64]>,
    /// Bytes from each rank of the communicator; empty if the call does not list them.
    pub receive_from: Box<[u64]>,
    /// Request that the operation starts; `None` if the operation blocks.
    pub request: Option<u32>,
}

impl Collective {
    /// Returns a blocking collective of this kind, with 0 bytes and the communicator's first rank as its root.
    pub fn of(kind: CollectiveKind) -> Collective {
        Collective {
            kind,
            root: 0,
            bytes: 0,
            send_to: Box::default(),
            receive_from: Box::default(),
            request: None,
        }
    }
}

/// The effect of an operation. A new request gets the smallest number that no pending request of the rank has, so that the iterations of a
/// loop use the same numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Has no effect on other ranks and takes no time.
    Nothing,
    /// A call that is not interpreted: it takes as long as in the trace.
    Opaque,
    /// Marks a moment of interest, by the mark's number, and takes no time.
    Mark(u32),
    /// Fragment of the program, by its number, of which only the costs are known.
    Reduced(u32),
    /// Send of a message to a rank; the send blocks if it has no request.
    Send {
        /// Rank of the receiver.
        to: PeerRef,
        /// Tag of the message.
        tag: u32,
        /// Size of the message in bytes.
        bytes: u64,
        /// Mode of the send.
        mode: Mode,
        /// Request that the send starts.
        request: Option<u32>,
    },
    /// Receive of a message from a rank; the receive blocks if it has no request.
    Receive {
        /// Sender of the message.
        from: Source,
        /// Tag of the message; `None` for any.
        tag: Option<u32>,
        /// Size of the receive buffer in bytes.
        room: u64,
        /// Request that the receive starts.
        request: Option<u32>,
    },
    /// Sends and receives at the same time.
    SendReceive {
        /// Receiver, tag and bytes; `None` for `MPI_PROC_NULL`.
        send: Option<(PeerRef, u32, u64)>,
        /// Sender, tag (`None` for any) and size of the buffer in bytes; `None` for `MPI_PROC_NULL`.
        receive: Option<(Source, Option<u32>, u64)>,
    },
    /// Access to another rank's memory in which that rank's program takes no part. Data goes to the target, and data or an acknowledgement
    /// comes back.
    OneSided {
        /// The rank whose memory is accessed.
        to: PeerRef,
        /// Bytes that go to the target.
        out: u64,
        /// Bytes that come back; 0 if only the acknowledgement of completion comes back.
        back: u64,
        /// Request that the access starts. Without a request the call waits for what comes back.
        request: Option<u32>,
    },
    /// Waits until a matching message has arrived, and leaves the message in the queue.
    Probe {
        /// Sender of the message.
        from: Source,
        /// Tag of the message; `None` for any.
        tag: Option<u32>,
    },
    /// Waits for requests.
    Wait {
        /// Requests that the operation waits for, or those that it found complete in the trace.
        requests: Box<[u32]>,
        /// The requests among which the operation waits for as many as `requests` has, whichever complete first; empty if it waits for all
        /// of `requests`.
        among: Box<[u32]>,
    },
    /// Frees requests; their operations still complete.
    Free {
        /// Requests that are freed.
        requests: Box<[u32]>,
    },
    /// Cancels receives that have no message.
    Cancel {
        /// Requests that are cancelled.
        requests: Box<[u32]>,
    },
    /// Takes part in a collective with all ranks of a communicator.
    Collective(Box<Collective>),
}

impl Action {
    /// Returns a wait for all of these requests.
    pub fn wait(requests: impl Into<Box<[u32]>>) -> Action {
        Action::Wait {
            requests: requests.into(),
            among: Box::default(),
        }
    }
}

/// Operation of a rank: an MPI call, or a part of a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    /// The MPI function.
    pub function: Function,
    /// Call site of the call.
    pub site: Site,
    /// Number of the communicator on the rank: 0 is the world, 1 is self, the others follow in the order in which the rank first used
    /// them.
    pub communicator: u32,
    /// Mean length in bytes of the contiguous blocks of which the sent or received data consists, if its datatype has several. Such data
    /// may have to be packed. Where the trace does not tell, elements of more than 32 bytes, which no predefined datatype has, are taken as
    /// blocks of 8.
    pub block: Option<NonZeroU32>,
    /// True if the next operation belongs to the same call.
    pub more: bool,
    /// Effect of the operation.
    pub action: Action,
}

impl Op {
    /// Returns the operation with each peer replaced by `with` of that peer.
    pub fn map_peers(&self, with: impl Fn(PeerRef) -> PeerRef) -> Op {
        let action = match &self.action {
            Action::Send {
                to,
                tag,
                bytes,
                mode,
                request,
            } => Action::Send {
                to: with(*to),
                tag: *tag,
                bytes: *bytes,
                mode: *mode,
                request: *request,
            },
            Action::Receive {
                from,
                tag,
                room,
                request,
            } => Action::Receive {
                from: from.map(&with),
                tag: *tag,
                room: *room,
                request: *request,
            },
            Action::SendReceive { send, receive } => Action::SendReceive {
                send: send.map(|(to, tag, bytes)| (with(to), tag, bytes)),
                receive: receive.map(|(from, tag, room)| (from.map(&with), tag, room)),
            },
            Action::OneSided {
                to,
                out,
                back,
                request,
            } => Action::OneSided {
                to: with(*to),
                out: *out,
                back: *back,
                request: *request,
            },
            Action::Probe { from, tag } => Action::Probe {
                from: from.map(&with),
                tag: *tag,
            },
            other => other.clone(),
        };
        Op {
            action,
            ..self.clone()
        }
    }

    /// Returns the peers that a point-to-point or one-sided operation names. Only a send and receive can have two: first the receiver, then
    /// the sender.
    pub fn peers(&self) -> [Option<PeerRef>; 2] {
        match &self.action {
            Action::Send { to, .. } | Action::OneSided { to, .. } => [Some(*to), None],
            Action::Receive { from, .. } | Action::Probe { from, .. } => [from.peer(), None],
            Action::SendReceive { send, receive } => [
                send.map(|(to, ..)| to),
                receive.and_then(|(from, ..)| from.peer()),
            ],
            _ => [None, None],
        }
    }
}
