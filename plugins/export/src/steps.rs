//! Calls as the steps that other formats contain: messages sent, receives posted, requests completed.
//!
//! Records name the requests that a call completed; other formats also need the operations of these requests. The sender of a receive
//! from any source is known only when the receive completes; [`Resolver`] holds back the calls of a process until then.
//!

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use nodescope_hypercall::{Class, Completion, Function, MpiRecord, Peer, Tag};
use nodescope_trace::MpiCall;

/// Mode in which a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The library chooses whether to buffer.
    Standard,
    /// The message is copied to a buffer that the program has attached.
    Buffered,
    /// The send completes only after the receive has begun.
    Synchronous,
    /// The program guarantees that the receive has been posted.
    Ready,
}

/// Send of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    /// Serial number of the request, 0 for a blocking call. If one request covers a send and a receive, the highest bit is set, too.
    pub request: u64,
    /// World rank of the receiver.
    pub to: u32,
    /// Tag of the message.
    pub tag: u32,
    /// Length of the message in bytes.
    pub bytes: u64,
    /// Id of the communicator.
    pub communicator: u64,
    /// Mode of the send.
    pub mode: Mode,
}

/// A message that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// World rank of the sender.
    pub from: u32,
    /// Tag of the message.
    pub tag: u32,
    /// Length of the message in bytes.
    pub bytes: u64,
    /// Entry and exit of the call that completed the receive, picoseconds.
    pub completed: (u64, u64),
}

/// Receive that was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Serial number of the request, 0 for a blocking call.
    pub request: u64,
    /// Id of the communicator.
    pub communicator: u64,
    /// World rank of the requested sender, or any.
    pub source: Peer,
    /// Requested tag, or any.
    pub tag: Tag,
    /// Size of the receive buffer in bytes.
    pub room: u64,
    /// The received message; `None` if the receive was cancelled, if the trace does not show its completion, or if the sender is unknown or
    /// outside the job.
    pub message: Option<Message>,
}

/// A non-blocking collective operation, which may be a neighbourhood collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// Serial number of the request.
    pub request: u64,
    /// Record of the call that started or prepared the operation.
    pub record: Rc<MpiRecord>,
}

/// The operation of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Operation that sends a message.
    Send(Send),
    /// Operation that receives a message.
    Receive(Receive),
    /// A collective operation.
    Collective(Collective),
}

/// Way in which a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The operation completed.
    Done,
    /// The operation was cancelled.
    Cancelled,
    /// The program freed the request before the operation completed.
    Freed,
}

/// Step of an MPI call, in terms of other trace formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A message is sent.
    Send(Send),
    /// A receive is posted; if its request is 0, the receive also completes.
    Receive(Receive),
    /// A non-blocking collective operation begins.
    Collective(Collective),
    /// A request ends.
    Complete {
        /// Serial number of the request.
        request: u64,
        /// Operation of the request; a receive contains its message.
        operation: Operation,
        /// Way in which the request ended.
        ending: Ending,
    },
}

/// Bit that marks the send's request in a call that starts a send and a receive under one request. Serial numbers are smaller.
const TWIN: u64 = 1 << 63;

/// Pending requests of one process, from which the steps of its calls follow.
#[derive(Debug, Default)]
pub struct Tracker {
    pending: HashMap<u64, Operation>,
    prepared: HashMap<u64, Operation>,
    /// Requests, and prepared requests, that are neither a collective nor a message of this job: with `MPI_PROC_NULL`, with other
    /// jobs, of files and windows.
    silent: HashSet<u64>,
    /// Messages matched by `MPI_Mprobe` that are not yet received, with their communicators.
    matched: VecDeque<(u64, Completion)>,
    /// Number of completed requests whose beginning the trace lacks.
    pub unknown: u64,
}

impl Tracker {
    /// Returns the steps of the process's next call. Calls must be given in the order of their ends.
    pub fn steps(&mut self, call: &MpiCall) -> Vec<Step> {
        let record = &call.record;
        let mut steps = Vec::new();
        use Function::*;
        match record.function {
            Send | Bsend | Ssend | Rsend => steps.extend(send(record).map(Step::Send)),
            Recv => steps.extend(self.received(record, call)),
            Sendrecv | SendrecvReplace => {
                steps.extend(send(record).map(Step::Send));
                steps.extend(self.received(record, call));
            }
            Isend | Ibsend | Issend | Irsend => {
                if let Some(send) = send(record) {
                    let operation = Operation::Send(send.clone());
                    self.pending.insert(record.request, operation);
                    steps.push(Step::Send(send));
                }
            }
            Isendrecv | IsendrecvReplace => {
                // One request covers the send and the receive.
                if let Some(send) = send(record) {
                    let request = record.request | TWIN;
                    let send = crate::steps::Send { request, ..send };
                    let operation = Operation::Send(send.clone());
                    self.pending.insert(request, operation);
                    steps.push(Step::Send(send));
                }
                if let Some(receive) = receive(record) {
                    let operation = Operation::Receive(receive.clone());
                    self.pending.insert(record.request, operation);
                    steps.push(Step::Receive(receive));
                }
            }
            Irecv => {
                if let Some(receive) = receive(record) {
                    let operation = Operation::Receive(receive.clone());
                    self.pending.insert(record.request, operation);
                    steps.push(Step::Receive(receive));
                }
            }
            Mprobe | Improbe => {
                let done = record.completions.first();
                let done = done.filter(|done| done.source.rank().is_some());
                self.matched
                    .extend(done.map(|done| (record.communicator, *done)));
            }
            Mrecv | Imrecv => steps.extend(self.matched(record, call)),
            SendInit | BsendInit | SsendInit | RsendInit | PsendInit => {
                if let Some(send) = send(record) {
                    self.prepared.insert(record.request, Operation::Send(send));
                }
            }
            RecvInit | PrecvInit => {
                if let Some(receive) = receive(record) {
                    self.prepared
                        .insert(record.request, Operation::Receive(receive));
                }
            }
            Start | Startall => {
                for (&serial, prepared) in record.requests.iter().zip(&record.prepared) {
                    let operation = match self.prepared.get(prepared) {
                        Some(operation) if serial != 0 => operation.clone(),
                        _ => {
                            if self.silent.contains(prepared) {
                                self.silent.insert(serial);
                            }
                            continue;
                        }
                    };
                    let operation = match operation {
                        Operation::Send(send) => {
                            let send = crate::steps::Send {
                                request: serial,
                                ..send
                            };
                            steps.push(Step::Send(send.clone()));
                            Operation::Send(send)
                        }
                        Operation::Receive(receive) => {
                            let receive = Receive {
                                request: serial,
                                ..receive
                            };
                            steps.push(Step::Receive(receive.clone()));
                            Operation::Receive(receive)
                        }
                        Operation::Collective(collective) => {
                            let collective = Collective {
                                request: serial,
                                ..collective
                            };
                            steps.push(Step::Collective(collective.clone()));
                            Operation::Collective(collective)
                        }
                    };
                    self.pending.insert(serial, operation);
                }
            }
            RequestFree => {
                for serial in &record.requests {
                    self.silent.remove(serial);
                    if let Some(operation) = self.pending.remove(serial) {
                        steps.push(Step::Complete {
                            request: *serial,
                            operation,
                            ending: Ending::Freed,
                        });
                    }
                }
            }
            function => self.by_class(function.class(), call, &mut steps),
        }
        let request = record.request;
        let followed =
            |request| self.pending.contains_key(&request) || self.prepared.contains_key(&request);
        if request != 0 && !followed(request) && !followed(request | TWIN) {
            self.silent.insert(request);
        }
        steps
    }

    fn by_class(&mut self, class: Class, call: &MpiCall, steps: &mut Vec<Step>) {
        let record = &call.record;
        let collective = || Collective {
            request: record.request,
            record: Rc::new(record.clone()),
        };
        match class {
            Class::StartCollective | Class::StartNeighbor if record.request != 0 => {
                let operation = Operation::Collective(collective());
                self.pending.insert(record.request, operation);
                steps.push(Step::Collective(collective()));
            }
            Class::PrepareCollective | Class::PrepareNeighbor => {
                let operation = Operation::Collective(collective());
                self.prepared.insert(record.request, operation);
            }
            Class::Completion => self.complete(call, steps),
            _ => {}
        }
    }

    fn complete(&mut self, call: &MpiCall, steps: &mut Vec<Step>) {
        for done in call
            .record
            .completions
            .iter()
            .filter(|done| done.request != 0)
        {
            let twin = done.request | TWIN;
            let sent = self.pending.remove(&twin);
            steps.extend(sent.clone().map(|operation| Step::Complete {
                request: twin,
                operation,
                ending: Ending::Done,
            }));
            let Some(mut operation) = self.pending.remove(&done.request) else {
                let known = sent.is_some() || self.silent.remove(&done.request);
                self.unknown += u64::from(!known);
                continue;
            };
            if let (Operation::Receive(receive), false) = (&mut operation, done.cancelled) {
                receive.message = message(done, receive, call);
            }
            steps.push(Step::Complete {
                request: done.request,
                operation,
                ending: match done.cancelled {
                    true => Ending::Cancelled,
                    false => Ending::Done,
                },
            });
        }
    }

    fn received(&self, record: &MpiRecord, call: &MpiCall) -> Option<Step> {
        let mut posted = receive(record)?;
        let done = Completion {
            bytes: posted.room,
            source: posted.source,
            tag: posted.tag,
            ..Completion::default()
        };
        let done = record.completions.first().unwrap_or(&done);
        posted.message = message(done, &posted, call);
        Some(Step::Receive(posted))
    }

    /// Returns the receive of a message that a probe has matched. Records of this version do not name the message, so the oldest matched
    /// message that fits into the buffer is taken.
    fn matched(&mut self, record: &MpiRecord, call: &MpiCall) -> Option<Step> {
        if record.source == Peer::Null {
            return None;
        }
        let fits = |(_, done): &(u64, Completion)| done.bytes <= record.receive_bytes;
        let at = self.matched.iter().position(fits)?;
        let (communicator, done) = self.matched.remove(at)?;
        let mut posted = Receive {
            request: 0,
            communicator,
            source: done.source,
            tag: done.tag,
            room: record.receive_bytes,
            message: None,
        };
        if record.function == Function::Imrecv {
            posted.request = record.request;
            let operation = Operation::Receive(posted.clone());
            self.pending.insert(record.request, operation);
        } else {
            posted.message = message(&done, &posted, call);
        }
        Some(Step::Receive(posted))
    }
}

fn send(record: &MpiRecord) -> Option<Send> {
    use Function::*;
    Some(crate::steps::Send {
        request: match record.function.class() {
            Class::StartSend => record.request,
            _ => 0,
        },
        to: record.destination.rank()?,
        tag: value(record.send_tag).unwrap_or(0),
        bytes: record.send_bytes,
        communicator: record.communicator,
        mode: match record.function {
            Bsend | Ibsend | BsendInit => Mode::Buffered,
            Ssend | Issend | SsendInit => Mode::Synchronous,
            Rsend | Irsend | RsendInit => Mode::Ready,
            _ => Mode::Standard,
        },
    })
}

fn receive(record: &MpiRecord) -> Option<Receive> {
    matches!(record.source, Peer::Rank(_) | Peer::Any).then(|| Receive {
        request: match record.function.class() {
            Class::StartReceive | Class::StartSendReceive => record.request,
            _ => 0,
        },
        communicator: record.communicator,
        source: record.source,
        tag: record.receive_tag,
        room: record.receive_bytes,
        message: None,
    })
}

/// Returns the message that completed a receive; `None` if its sender or tag is unknown, or if its sender is outside the job. A source or
/// tag that the completion lacks is the requested one.
fn message(done: &Completion, asked: &Receive, call: &MpiCall) -> Option<Message> {
    let from = match done.source {
        Peer::Rank(rank) => rank,
        // A receive from MPI_PROC_NULL, or from outside the job.
        Peer::Null | Peer::Outside => return None,
        Peer::None | Peer::Any => asked.source.rank()?,
    };
    Some(Message {
        from,
        tag: value(done.tag).or(value(asked.tag))?,
        bytes: done.bytes,
        completed: (call.entry.time, call.exit.time),
    })
}

fn value(tag: Tag) -> Option<u32> {
    match tag {
        Tag::Value(value) => Some(value),
        Tag::None | Tag::Any => None,
    }
}

/// A call with its steps.
#[derive(Clone, Debug)]
pub struct SteppedCall {
    /// Index in [`Survey::locations`](crate::survey::Survey::locations) of the thread that made the call.
    pub location: usize,
    /// The MPI call.
    pub call: Box<MpiCall>,
    /// Steps of the call.
    pub steps: Vec<Step>,
}

/// Queue that holds back the calls of one process until every receive in them and before them has ended. The queue returns calls in the
/// process's order, so that receives come in the order in which they were posted.
#[derive(Debug, Default)]
pub struct Resolver {
    tracker: Tracker,
    queue: VecDeque<(SteppedCall, usize)>,
    /// Number of the call at the front of the queue, counted from 0 over all calls of the process.
    front: usize,
    /// Call number and step index of each posted receive that waits for its message, by request.
    waiting: HashMap<u64, (usize, usize)>,
}

impl Resolver {
    /// Adds the process's next call.
    pub fn push(&mut self, location: usize, call: Box<MpiCall>) {
        let steps = self.tracker.steps(&call);
        let number = self.front + self.queue.len();
        let mut open = 0;
        for (at, step) in steps.iter().enumerate() {
            match step {
                Step::Receive(posted) if posted.request != 0 => {
                    open += 1;
                    self.waiting.insert(posted.request, (number, at));
                }
                Step::Complete {
                    request, operation, ..
                } => {
                    if let (Some(place), Operation::Receive(done)) =
                        (self.waiting.remove(request), operation)
                    {
                        self.resolve(place, done.message.clone());
                    }
                }
                _ => {}
            }
        }
        let stepped = SteppedCall {
            location,
            call,
            steps,
        };
        self.queue.push_back((stepped, open));
    }

    fn resolve(&mut self, (number, at): (usize, usize), message: Option<Message>) {
        let entry = number
            .checked_sub(self.front)
            .and_then(|at| self.queue.get_mut(at));
        if let Some((stepped, open)) = entry {
            *open -= 1;
            if let Some(Step::Receive(posted)) = stepped.steps.get_mut(at) {
                posted.message = message;
            }
        }
    }

    /// Returns the next call if all its receives have ended; `None` if one has not, or if the queue is empty.
    pub fn pop(&mut self) -> Option<SteppedCall> {
        match self.queue.front() {
            Some((_, 0)) => self.take(),
            _ => None,
        }
    }

    /// Returns the next call even if its receives have not completed, for the end of the trace; `None` if the queue is empty.
    pub fn take(&mut self) -> Option<SteppedCall> {
        self.front += 1;
        match self.queue.pop_front() {
            Some((stepped, _)) => Some(stepped),
            None => {
                self.front -= 1;
                None
            }
        }
    }

    /// Returns the number of completed requests whose beginning the trace lacks.
    pub fn unknown(&self) -> u64 {
        self.tracker.unknown
    }
}

#[cfg(test)]
mod tests {
    use nodescope_hypercall::ThreadId;
    use nodescope_trace::Stamp;

    use super::*;

    fn call(function: Function, change: impl FnOnce(&mut MpiRecord)) -> MpiCall {
        let mut record = MpiRecord::new(function, ThreadId::default(), Peer::Rank(0), 0);
        change(&mut record);
        MpiCall {
            record,
            entry: Stamp::default(),
            exit: Stamp::default(),
            time_inside: 0,
            instructions_inside: 0,
            entry_seen: true,
        }
    }

    fn completed(request: u64) -> MpiCall {
        call(Function::Wait, |record| {
            record.requests = vec![request];
            record.completions = vec![Completion {
                request,
                ..Completion::default()
            }];
        })
    }

    #[test]
    fn requests_of_no_message_are_known_and_make_no_step() {
        let mut tracker = Tracker::default();
        let silent = [
            call(Function::Isend, |record| {
                (record.request, record.destination) = (1, Peer::Null);
            }),
            call(Function::Irecv, |record| {
                (record.request, record.source) = (2, Peer::Null);
            }),
            call(Function::SendInit, |record| {
                (record.request, record.destination) = (3, Peer::Null);
            }),
            call(Function::Start, |record| {
                (record.requests, record.prepared) = (vec![4], vec![3]);
            }),
            call(Function::Rput, |record| record.request = 5),
            completed(1),
            completed(2),
            completed(4),
            completed(5),
        ];
        for call in &silent {
            assert_eq!(tracker.steps(call), [], "{}", call.record.function);
        }
        assert_eq!(tracker.unknown, 0);
        // Completed operations whose beginning the trace lacks are counted.
        assert_eq!(tracker.steps(&completed(9)), []);
        assert_eq!(tracker.unknown, 1);
    }
}
