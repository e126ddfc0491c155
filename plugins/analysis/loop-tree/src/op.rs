//! Operations of a rank, free of what differs between iterations.

use nodescope_hypercall::Function;

/// The call site of a call: its return address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The address; 0 if unknown.
    pub address: u64,
    /// True if the address is relative to the main program's load address.
    pub in_program: bool,
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.address, self.in_program) {
            (0, _) => f.write_str("unknown"),
            (address, true) => write!(f, "program+{address:#x}"),
            (address, false) => write!(f, "{address:#x}"),
        }
    }
}

/// Reference to another rank of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerRef {
    /// World rank of the peer.
    Absolute(u32),
    /// Distance from the caller to the peer, modulo the number of ranks.
    Relative(u32),
}

impl PeerRef {
    /// Returns the world rank meant by `caller` in a world of `world` ranks.
    pub fn resolve(self, caller: u32, world: u32) -> u32 {
        match self {
            PeerRef::Absolute(rank) => rank,
            PeerRef::Relative(distance) => {
                ((u64::from(caller) + u64::from(distance)) % u64::from(world.max(1))) as u32
            }
        }
    }

    /// Returns the rank as a distance.
    pub fn relative(self, caller: u32, world: u32) -> PeerRef {
        let rank = u64::from(self.resolve(caller, world));
        let world = u64::from(world.max(1));
        PeerRef::Relative(((rank + world - u64::from(caller) % world) % world) as u32)
    }

    /// Returns the rank as a number.
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
    /// Returns the rank, unless it is any.
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

/// Collective operations by what they do; blocking and non-blocking ones are alike here.
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

    /// Returns the name, as in the choice of algorithms.
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

    /// Returns whether it has a root.
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
    /// The root's rank in the communicator; 0 where there is none.
    pub root: u32,
    /// Bytes: of the whole vector in broadcasts, reductions and scans (of a reduce-scatter: before scattering); of one rank's block in
    /// gathers, scatters and all-to-all; of the caller's own block in v forms.
    pub bytes: u64,
    /// Bytes to each rank of the communicator, where the call has them.
    pub send_to: Box<[u64]>,
    /// Bytes from each rank of the communicator, where the call has them.
    pub receive_from: Box<[u64]>,
    /// Request that the operation starts; none if the operation blocks.
    pub request: Option<u32>,
}

impl Collective {
    /// Returns a blocking collective of this kind, of no bytes, from or to the first rank.
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

/// The effect of an operation. Requests are numbered by the smallest number that no pending operation of the rank has, so that loops
/// repeat them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Has no effect on other ranks and takes no time.
    Nothing,
    /// Takes as long as it was traced to take: calls that are not interpreted.
    Opaque,
    /// Marks a moment of interest, by the mark's number, and takes no time.
    Mark(u32),
    /// A fragment of the program, by its number, of which only the attributes are known.
    Reduced(u32),
    /// A message to a rank; blocking without a request.
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
    /// A message from a rank; blocking without a request.
    Receive {
        /// Sender of the message.
        from: Source,
        /// Tag of the message; none for any.
        tag: Option<u32>,
        /// Size of the receive buffer in bytes.
        room: u64,
        /// Request that the receive starts.
        request: Option<u32>,
    },
    /// Sends and receives at the same time.
    SendReceive {
        /// Receiver, tag and bytes; none to `MPI_PROC_NULL`.
        send: Option<(PeerRef, u32, u64)>,
        /// Sender, tag and room; none from `MPI_PROC_NULL`.
        receive: Option<(Source, Option<u32>, u64)>,
    },
    /// Reads or writes another rank's memory, of which that rank's program takes no notice: something goes there, and something comes back.
    OneSided {
        /// The rank whose memory is accessed.
        to: PeerRef,
        /// Bytes that go.
        out: u64,
        /// Bytes that come back; 0 for only the notification of completion.
        back: u64,
        /// Request started; without one the call waits for what comes back.
        request: Option<u32>,
    },
    /// Waits until such a message has arrived, and leaves it in the queue.
    Probe {
        /// Sender of the message.
        from: Source,
        /// Tag of the message; none for any.
        tag: Option<u32>,
    },
    /// Waits for all of these requests.
    Wait {
        /// Requests that the operation waits for.
        requests: Box<[u32]>,
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

/// Operation of a rank: an MPI call, or a part of a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    /// The MPI function.
    pub function: Function,
    /// Call site of the call.
    pub site: Site,
    /// The communicator, by its number on the rank: 0 world, 1 self, then those that the rank met, in that order.
    pub communicator: u32,
    /// True if the sent or received data has a datatype that the program made, as far as the trace shows: elements of more than 32 bytes,
    /// which no predefined datatype has. Data of such types may have to be packed.
    pub derived: bool,
    /// True if the next operation belongs to the same call.
    pub more: bool,
    /// Effect of the operation.
    pub action: Action,
}

impl Op {
    /// Returns the operation with every peer rewritten.
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

    /// Returns the peers, at most two.
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
