//! Events of a node's guest that nobody has taken yet.

use nodescope_hypercall::Request;

use crate::board::NodeEvent;
use crate::files::FileRefusal;

/// With so many bytes waiting, the node wants to be looked at when its quantum ends.
const SOME: usize = 1 << 20;
/// With so many, a vCPU that says more stands still until then. Programs say a few hundred bytes a microsecond.
const MOST: usize = 16 << 20;

/// Events in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct Events {
    list: Vec<NodeEvent>,
    /// About the memory that the events take, plus the bytes read for calls, even for calls that made no sense: to read takes the
    /// host's time.
    bytes: usize,
}

impl Events {
    /// Add one.
    pub(crate) fn push(&mut self, event: NodeEvent) {
        self.bytes += size_of::<NodeEvent>() + size(&event.request);
        if event.refused.is_some() {
            // The refusal has the file's name, and may have another one that the name begins with.
            self.bytes += size_of::<FileRefusal>() + 2 * size(&event.request);
        }
        self.list.push(event);
    }

    /// So many bytes were read for a call.
    pub(crate) fn have_read(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// There is more than can wait.
    pub(crate) fn are_too_many(&self) -> bool {
        self.bytes >= MOST
    }

    pub(crate) fn take(&mut self) -> Vec<NodeEvent> {
        self.bytes = 0;
        std::mem::take(&mut self.list)
    }

    /// Those that wait, and what [`Events::are_many`] counts.
    pub(crate) fn waiting(&self) -> (&[NodeEvent], usize) {
        (&self.list, self.bytes)
    }

    /// Events that wait since before a state was saved.
    pub(crate) fn restored(list: Vec<NodeEvent>, bytes: usize) -> Self {
        Self { list, bytes }
    }

    /// Nothing need be taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes < SOME && self.list.is_empty()
    }

    /// There is so much that it should be taken soon.
    pub(crate) fn are_many(&self) -> bool {
        self.bytes >= SOME
    }
}

/// Bytes that a request has beyond its own.
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
