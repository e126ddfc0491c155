//! Events of a node's guest that wait to be taken.

use nodescope_hypercall::Request;

use crate::files::FileRefusal;
use crate::motherboard::NodeEvent;

/// From this number of waiting bytes on, the node wants attention when its quantum ends.
const SOME: usize = 1 << 20;
/// From this number of waiting bytes on, a vCPU that adds an event pauses until its quantum ends. Programs add a few hundred bytes a
/// microsecond.
const MOST: usize = 16 << 20;

/// Events in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct Events {
    list: Vec<NodeEvent>,
    /// Approximate memory of the events, plus the bytes that were read for calls. Bytes of refused calls count, too, since a read takes
    /// the host's time.
    bytes: usize,
}

impl Events {
    /// Adds an event.
    pub(crate) fn push(&mut self, event: NodeEvent) {
        self.bytes += size_of::<NodeEvent>() + size(&event.request);
        if event.refused.is_some() {
            // The refusal has the file's name, and may have another one that the name begins with.
            self.bytes += size_of::<FileRefusal>() + 2 * size(&event.request);
        }
        self.list.push(event);
    }

    /// Counts bytes that were read for a call.
    pub(crate) fn have_read(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Returns whether more bytes wait than may wait.
    pub(crate) fn are_too_many(&self) -> bool {
        self.bytes >= MOST
    }

    pub(crate) fn take(&mut self) -> Vec<NodeEvent> {
        self.bytes = 0;
        std::mem::take(&mut self.list)
    }

    /// Returns the waiting events, and the bytes that [`Events::are_many`] counts.
    pub(crate) fn waiting(&self) -> (&[NodeEvent], usize) {
        (&self.list, self.bytes)
    }

    /// Returns the waiting events of a saved state.
    pub(crate) fn restored(list: Vec<NodeEvent>, bytes: usize) -> Self {
        Self { list, bytes }
    }

    /// Returns whether nothing need be taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes < SOME && self.list.is_empty()
    }

    /// Returns whether so many bytes wait that the events should be taken soon.
    pub(crate) fn are_many(&self) -> bool {
        self.bytes >= SOME
    }
}

/// Returns the bytes of a request beyond the request's own size.
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
