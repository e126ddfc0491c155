//! Requests under way in an imported rank, and the calls that complete them.

use nodescope_hypercall::{Completion, MpiRecord, Peer, Tag};

use super::build::CallId;
use super::matching::{Handle, Matcher};

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Serial number of the request in its process.
    pub(super) serial: u64,
    /// What the request receives; `None` for a send and a collective.
    pub(super) receive: Option<Receive>,
}

/// What a request receives, as far as the trace states it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
    pub(super) source: Peer,
    pub(super) tag: Tag,
    pub(super) bytes: u64,
    /// The receive in the matcher, if there is one.
    pub(super) handle: Option<Handle>,
}

impl Receive {
    /// Adds the completion of a receive, which began with the request `serial` or is blocking (0), to the record of a call.
    pub(super) fn complete(&self, record: &mut MpiRecord, serial: u64, index: u32) {
        record.completions.push(Completion {
            request: serial,
            index,
            bytes: self.bytes,
            source: self.source,
            tag: self.tag,
            cancelled: false,
        });
    }
}

/// Adds the completion of requests to the record of a call. `given` are the requests that the call was given, of which it completed
/// `done`, by their indices.
pub(super) fn complete(record: &mut MpiRecord, given: &[Request], done: &[usize]) {
    record.requests = given.iter().map(|request| request.serial).collect();
    for &index in done {
        let request = &given[index];
        match &request.receive {
            Some(receive) => receive.complete(record, request.serial, index as u32),
            None => record.completions.push(Completion {
                request: request.serial,
                index: index as u32,
                ..Completion::default()
            }),
        }
    }
}

/// Tells the matcher which call completed the receives among the requests `done` of `given`.
pub(super) fn completed(
    matcher: &mut Option<Matcher>,
    call: CallId,
    given: &[Request],
    done: &[usize],
) {
    let Some(matcher) = matcher else {
        return;
    };
    for (at, &index) in done.iter().enumerate() {
        let handle = given[index].receive.and_then(|receive| receive.handle);
        if let Some(handle) = handle {
            matcher.completed(handle, call, at as u32);
        }
    }
}
