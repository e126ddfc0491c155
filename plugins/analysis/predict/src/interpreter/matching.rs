//! Messages that wait for their receives, and receives that wait for their messages: linked lists in arrays.

use super::critical_path::{Origin, Way};
use super::opening::Step;
use super::{Cause, Target};
use crate::code::{ANY, NONE};

/// Twice the number of a communicator, plus one for messages of its collectives.
pub(super) type Key = u32;

/// A message that has been sent and not received.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub from: u32,
    pub to: u32,
    pub key: Key,
    pub tag: u32,
    pub bytes: u64,
    /// Time at which the message, or the request to send it, arrives; without meaning while the message is [in
    /// flight](Message::in_flight).
    pub arrival: u64,
    /// Time at which the sender entered its call.
    pub entered: u64,
    pub op: u32,
    /// Number of messages counted as sent when this one was sent, this one included, modulo 2^32.
    pub sequence: u32,
    pub next: u32,
    /// True if the message waits for its receiver's permission.
    pub rendezvous: bool,
    /// True if the message, or its request, has been sent and its time of arrival is not known yet.
    pub in_flight: bool,
    /// For a message in frames: time at which its last byte has left its node. The next field is the time at which it has passed the
    /// links, as far as known.
    pub left: u64,
    pub passed: u64,
    /// The context or request to which the end of sending, or of an access, is reported, if that end is not known at once.
    pub sender: Target,
    pub origin: Origin,
    /// Number of the receive that matched the message; `NONE` before that.
    pub receive: u32,
    /// True if the receiver has processed the message before its receive.
    pub taken: bool,
    /// Purpose of the message.
    pub purpose: Purpose,
}

/// The purpose of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Data for a receive.
    Data,
    /// Access to another rank's memory, with the number of bytes that come back.
    Access(u64),
    /// Answer from the accessed rank.
    Answer,
    /// Acknowledgement of frames, with its time on the wire in picoseconds.
    Acknowledgement(u64),
    /// Request to send the message of this number.
    Request(u32),
    /// Permission to send the message of this number.
    Permission(u32),
    /// A step on the way to an open connection.
    Opening(Step),
}

impl Purpose {
    /// Returns whether the message is a request or a permission.
    pub fn is_service(self) -> bool {
        matches!(self, Purpose::Request(_) | Purpose::Permission(_))
    }
}

/// A posted receive that has not completed, or a probe that has found no message.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub from: u32,
    /// Rank whose message matched where the program was traced, if here the first that comes matches; otherwise `NONE`.
    pub traced: u32,
    pub key: Key,
    pub tag: u32,
    pub room: u64,
    pub time: u64,
    pub op: u32,
    pub next: u32,
    /// True if the receive is a probe, which leaves the message in the queue.
    pub probe: bool,
    pub target: Target,
    pub origin: Origin,
}

impl Posted {
    fn takes(&self, message: &Message) -> bool {
        self.key == message.key
            && (self.from == message.from || self.from == ANY)
            && (self.tag == message.tag || self.tag == ANY)
    }
}

/// Elements by number. Numbers of released elements are used again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    elements: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab {
            elements: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub fn add(&mut self, element: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.elements[number as usize] = element;
                number
            }
            None => {
                self.elements.push(element);
                (self.elements.len() - 1) as u32
            }
        }
    }

    pub fn release(&mut self, number: u32) {
        self.free.push(number);
    }

    pub fn get(&self, number: u32) -> &T {
        &self.elements[number as usize]
    }

    pub fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.elements[number as usize]
    }
}

/// First and last element of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub first: u32,
    last: u32,
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
};

/// Queues of each rank: messages without receives, and receives without messages.
#[derive(Debug)]
pub(super) struct Queues {
    pub messages: Vec<List>,
    pub posted: Vec<List>,
}

/// An element of a list.
pub(super) trait Linked {
    fn next(&mut self) -> &mut u32;
}

impl Linked for Message {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl Linked for Posted {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl Queues {
    pub fn new(ranks: u32) -> Queues {
        Queues {
            messages: vec![EMPTY; ranks as usize],
            posted: vec![EMPTY; ranks as usize],
        }
    }
}

/// Appends an element.
pub(super) fn append<T: Linked>(list: &mut List, slab: &mut Slab<T>, element: u32) {
    *slab.get_mut(element).next() = NONE;
    if list.last == NONE {
        list.first = element;
    } else {
        *slab.get_mut(list.last).next() = element;
    }
    list.last = element;
}

/// Takes out an element, given the element before it.
fn unlink<T: Linked>(list: &mut List, slab: &mut Slab<T>, before: u32, element: u32) {
    let next = *slab.get_mut(element).next();
    if before == NONE {
        list.first = next;
    } else {
        *slab.get_mut(before).next() = next;
    }
    if list.last == element {
        list.last = before;
    }
}

/// Takes out the first receive that accepts a message, and returns its number, or `NONE`. Probes before it that accept the message are
/// taken out, too, and go to `seen`.
pub(super) fn take_posted(
    list: &mut List,
    slab: &mut Slab<Posted>,
    message: &Message,
    mut seen: impl FnMut(u32),
) -> u32 {
    let (mut before, mut at) = (NONE, list.first);
    while at != NONE {
        let posted = slab.get(at);
        let (next, probe) = (posted.next, posted.probe);
        if posted.takes(message) {
            unlink(list, slab, before, at);
            if !probe {
                return at;
            }
            seen(at);
        } else {
            before = at;
        }
        at = next;
    }
    NONE
}

/// Returns the first message that a receive accepts, or `NONE`. Of messages from several ranks, that is the one that comes first; messages
/// of one rank do not overtake each other. The message is taken out unless the receive is a probe.
pub(super) fn take_message(list: &mut List, slab: &mut Slab<Message>, posted: &Posted) -> u32 {
    let mut found: Option<(u64, u32, u32)> = None;
    let mut senders: Vec<u32> = Vec::new();
    let (mut before, mut at) = (NONE, list.first);
    while at != NONE {
        let message = slab.get(at);
        if posted.takes(message) && !senders.contains(&message.from) {
            let comes = match message.in_flight {
                true => u64::MAX,
                false => message.arrival,
            };
            if found.is_none_or(|(first, ..)| comes < first) {
                found = Some((comes, before, at));
            }
            if posted.traced == NONE {
                break;
            }
            senders.push(message.from);
        }
        (before, at) = (at, message.next);
    }
    let Some((_, before, at)) = found else {
        return NONE;
    };
    if !posted.probe {
        unlink(list, slab, before, at);
    }
    at
}

/// Takes out the receive of a request, and returns its number, or `NONE`.
pub(super) fn take_request(list: &mut List, slab: &mut Slab<Posted>, index: u32) -> u32 {
    let (mut before, mut at) = (NONE, list.first);
    while at != NONE {
        let posted = slab.get(at);
        let next = posted.next;
        if matches!(posted.target, Target::Request { index: own, .. } if own == index) {
            unlink(list, slab, before, at);
            return at;
        }
        before = at;
        at = next;
    }
    NONE
}

impl Message {
    /// Returns the cause that ends the wait of a receive for this message.
    pub fn cause(&self) -> Cause {
        Cause {
            at: self.entered,
            rank: self.from,
            op: self.op,
            kind: crate::result::WaitKind::LateSender,
            origin: self.origin,
            bytes: self.bytes,
            way: match self.rendezvous {
                true => Way::Request,
                false => Way::Eager,
            },
        }
    }
}
