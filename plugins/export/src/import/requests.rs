//! Requests under way in an imported rank, and the calls that complete them.

use nodescope_hypercall::{Completion, MpiRecord, Peer, Tag};

use super::build::CallId;
use super::matching::{Handle, Matcher};

/// Most requests that are given to all calls of a rank that end only one or none of them. The work for such calls grows with the requests
/// that they are given, so that a small file could cause hours of it.
const MOST_GIVEN: u64 = 1 << 28;
/// Most requests that the record of a test lists. What a test is given has no effect on times.
const MOST_LISTED: usize = 1000;

/// Requests that the calls of a rank may still be given where these calls end only one or none of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget(u64);

impl Default for Budget {
    fn default() -> Budget {
        Budget(MOST_GIVEN)
    }
}

impl Budget {
    /// Takes the requests of a call. Returns a description for people if they are too many.
    pub(super) fn spend(&mut self, given: usize) -> Result<(), String> {
        let left = self.0.checked_sub(given as u64);
        self.0 = left.ok_or_else(|| {
            format!(
                "the rank's tests and waits for any request are given more than {MOST_GIVEN} requests in all"
            )
        })?;
        Ok(())
    }
}

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
    let listed = match done.is_empty() {
        true => given.len().min(MOST_LISTED),
        false => given.len(),
    };
    let listed = given.iter().take(listed);
    record.requests = listed.map(|request| request.serial).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_in_a_message() {
        let mut budget = Budget::default();
        let call = 1 << 20;
        for _ in 0..MOST_GIVEN / call {
            budget.spend(call as usize).unwrap();
        }
        assert!(budget.spend(1).unwrap_err().contains("more than 268435456"));
    }

    #[test]
    fn tests_list_few_requests_and_waits_all() {
        let thread = nodescope_hypercall::ThreadId { pid: 1, tid: 1 };
        let function = nodescope_hypercall::Function::Testall;
        let mut record = MpiRecord::new(function, thread, Peer::Rank(0), 0);
        let given = [Request {
            serial: 7,
            receive: None,
        }; 2000];
        complete(&mut record, &given, &[]);
        assert_eq!(record.requests.len(), MOST_LISTED);
        complete(&mut record, &given, &[1999]);
        assert_eq!(
            (record.requests.len(), record.completions[0].index),
            (2000, 1999)
        );
    }
}
