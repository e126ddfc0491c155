//! Queue of a node's events, such as decoded hypercalls, until the cluster takes them.

use nodescope_hypercall::Request;

use crate::files::FileRefusal;
use crate::motherboard::NodeEvent;

/// Number of waiting bytes from which on the node wants attention at the end of its quantum.
const ATTENTION_BYTES: usize = 1 << 20;
/// Number of waiting bytes from which on a vCPU that makes any hypercall pauses until its quantum ends. Programs add a few hundred bytes
/// per microsecond.
const PAUSE_BYTES: usize = 16 << 20;

/// Waiting events, in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Events {
    list: Vec<NodeEvent>,
    /// Approximate size of the events in host memory, plus the bytes that were read for hypercalls. Bytes read for refused calls count as
    /// well, since reading takes host time.
    bytes: usize,
}

impl Events {
    /// Adds an event.
    pub(crate) fn push(&mut self, event: NodeEvent) {
        self.bytes += size_of::<NodeEvent>() + size(&event.request);
        if event.refused.is_some() {
            // A refusal contains the file's name, and may contain a second name that is a prefix of the first.
            self.bytes += size_of::<FileRefusal>() + 2 * size(&event.request);
        }
        self.list.push(event);
    }

    /// Counts bytes that were read from guest memory for a hypercall.
    pub(crate) fn have_read(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Returns whether the waiting bytes have reached the limit at which vCPUs pause.
    pub(crate) fn are_too_many(&self) -> bool {
        self.bytes >= PAUSE_BYTES
    }

    pub(crate) fn take(&mut self) -> Vec<NodeEvent> {
        self.bytes = 0;
        std::mem::take(&mut self.list)
    }

    /// Returns the waiting events, and the number of bytes that [`Events::are_many`] compares with its limit.
    pub(crate) fn waiting(&self) -> (&[NodeEvent], usize) {
        (&self.list, self.bytes)
    }

    /// Returns a queue with the events and the byte count of a saved state.
    pub(crate) fn restored(list: Vec<NodeEvent>, bytes: usize) -> Self {
        Self { list, bytes }
    }

    /// Returns whether the queue has no events, and few bytes of refused calls.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes < ATTENTION_BYTES && self.list.is_empty()
    }

    /// Returns whether the waiting bytes have reached the limit at which the events should be taken soon.
    pub(crate) fn are_many(&self) -> bool {
        self.bytes >= ATTENTION_BYTES
    }
}

/// Returns the heap memory of a request, in bytes.
fn size(request: &Request) -> usize {
    match request {
        Request::MpiEnter(_, shown) => shown.size(),
        Request::MpiEvents(records) => records.iter().map(|record| record.size()).sum(),
        Request::Hello(hello) => hello.host.len() + hello.program.len(),
        Request::OpenWindow(text)
        | Request::CloseWindow(text)
        | Request::Mark(text)
        | Request::Message(text) => text.len(),
        Request::PutFile(chunk) => chunk.name.len() + chunk.data.len(),
        Request::Probe
        | Request::MpiPollFailed(_)
        | Request::NodeIdentity(_)
        | Request::JobExit(_) => 0,
    }
}
