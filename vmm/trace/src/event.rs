//! Events and the header of a trace.

use nodescope_hypercall::{Function, Hello, MpiRecord, Peer, ThreadId};
use serde::{Deserialize, Serialize};

/// The header of a trace. Its contents are known when the nodes are powered on. The nodes of the ranks follow as [`Body::Process`]
/// events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the study.
    pub study: String,
    /// Identity of the study's exact inputs, such as a hash of the inputs in hexadecimal.
    pub study_id: String,
    /// The nodes, by number.
    pub nodes: Vec<NodeEntry>,
    /// Ticks of the trace's clock per second of virtual time; always 10^12 (picoseconds) in this version.
    pub ticks_per_second: u64,
}

impl Header {
    /// Returns a header with the clock of this version.
    pub fn new(
        study: impl Into<String>,
        study_id: impl Into<String>,
        nodes: Vec<NodeEntry>,
    ) -> Header {
        Header {
            study: study.into(),
            study_id: study_id.into(),
            nodes,
            ticks_per_second: 1_000_000_000_000,
        }
    }
}

/// Entry of a node in the header of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Host name of the node.
    pub name: String,
    /// Number of the node's virtual CPUs.
    pub vcpus: u32,
    /// Nominal frequency of the virtual CPUs, in hertz.
    pub frequency_hz: u64,
}

impl NodeEntry {
    /// Name of the only node of a trace whose source does not tell where ranks ran.
    pub const UNKNOWN: &str = "unknown";
}

/// Time and virtual CPU of something that the host observed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Stamp {
    /// Virtual time since power-on, picoseconds.
    pub time: u64,
    /// Number of instructions that this virtual CPU has retired since power-on.
    pub instructions: u64,
    /// Number of the virtual CPU within its node.
    pub vcpu: u32,
}

/// Event of a trace: something that happened on a node at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the node on which the event happened.
    pub node: u32,
    /// Number of the event on its node, in the order in which the node reported, from 0.
    pub sequence: u64,
    /// Time at which the event was reported. For an MPI call, this is the end of the call; for a poll run, it may be later than the run's
    /// end; for [`Body::Unfinished`], it is the end of the trace.
    pub stamp: Stamp,
    /// Contents of the event, by its kind.
    pub body: Body,
}

impl Event {
    /// Returns the key by which events in a file are sorted: time, then node, then the node's own order.
    pub fn key(&self) -> (u64, u32, u64) {
        (self.stamp.time, self.node, self.sequence)
    }
}

/// Merges the events of several nodes into the order of a file.
pub fn merge(streams: impl IntoIterator<Item = Vec<Event>>) -> Vec<Event> {
    let mut events: Vec<Event> = streams.into_iter().flatten().collect();
    events.sort_by_key(Event::key);
    events
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// An MPI call, or a run of failed polls, ended.
    Mpi(Box<MpiCall>),
    /// An MPI call or a poll run had begun and not ended when the trace ended. A deadlock shows as one of these on each rank involved
    /// ([`crate::PendingCalls`] finds it).
    Unfinished(Box<Unfinished>),
    /// A process reported its identity, such as its rank and program.
    Process(Hello),
    /// A program of the guest put a marker of this name.
    Mark(String),
    /// The measurement window of this name opened, or the guest asked to open a window of this name.
    WindowOpen(String),
    /// The measurement window of this name closed, or the guest asked to close a window of this name.
    WindowClose(String),
    /// The guest sent this message to the user.
    Message(String),
    /// The job ended, with this exit status.
    JobExit(i32),
}

/// Record of an MPI call, or of a run of consecutive polls that found nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MpiCall {
    /// The guest's record of the call: function, rank, arguments, return code.
    pub record: MpiRecord,
    /// Stamp of the call's beginning; of a run, the beginning of the first poll.
    pub entry: Stamp,
    /// Stamp of the call's end; of a run, the end of the last poll.
    pub exit: Stamp,
    /// Picoseconds inside the call: exit - entry. For a run, the sum over its polls, without the work between the polls. On real hardware,
    /// exit - entry includes the tracer's own work, and this time does not.
    pub time_inside: u64,
    /// Instructions inside the call or inside the polls of a run, on the calling virtual CPU. A call that ended on another virtual CPU than
    /// it began on counts 0.
    pub instructions_inside: u64,
    /// True if the host saw the beginning. If not, the entry equals the exit and the call counts as instantaneous.
    pub entry_seen: bool,
}

/// A call that had not ended, or a run of failed polls whose record the guest had not reported yet. After such a run, the thread may have
/// begun another call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// MPI function of the call.
    pub function: Function,
    /// The caller's world rank, if its process had introduced itself.
    pub rank: Peer,
    /// Thread that made the call.
    pub thread: ThreadId,
    /// Number of the call in its thread.
    pub sequence: u64,
    /// Stamp of the call's beginning; of a run, the beginning of its first poll.
    pub entry: Stamp,
    /// The guest's record at the beginning of the call: function, rank and arguments, no results. None if the guest did not report its
    /// arguments.
    pub record: Option<MpiRecord>,
}
