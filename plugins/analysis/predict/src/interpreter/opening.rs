//! Connections that open at their first use.
//!
//! The first message between two ranks of different nodes waits until its connection is open. The sender's kernel connects, which takes a
//! round trip; the sender tells who it is; the receiver answers. Each of these steps waits until its rank is in MPI and looks for events. A
//! rank with a connection always looks. A rank without one looks when it enters MPI and then every `connection_poll`, because its library
//! polls rarely for the sake of other transports: Open MPI's `opal_progress` does so every 10 ms until a process has event users.

use std::collections::HashMap;

use super::critical_path::Origin;
use super::matching::{Message, Purpose};
use super::{CONTROL_ARRIVES, Cause, Interpreter, Target};
use crate::cluster::Cluster;
use crate::code::NONE;
use crate::network::{Model, ReceiveCost};
use crate::result::WaitKind;

/// A step on the way to an open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The rank that connects learns that the kernel has connected.
    Connected,
    /// The other rank learns who connects.
    Introduced,
    /// The rank that connects has the answer.
    Answered,
    /// A rank without a connection looks for events.
    Poll,
}

/// State of all connections between ranks of different nodes.
#[derive(Debug, Default)]
pub(super) struct Openings {
    /// Time between two looks of a rank without a connection, picoseconds.
    poll: u64,
    /// Processor time after a step until the next one's message leaves, picoseconds.
    setup: u64,
    /// By rank; empty if connections cost nothing.
    ranks: Vec<Looks>,
    /// By the rank that sends and the one that receives.
    ways: HashMap<(u32, u32), Connection>,
}

/// When a rank looks for events.
#[derive(Clone, Debug, Default)]
struct Looks {
    /// True if the rank looks whenever it is in MPI.
    always: bool,
    /// Time of the last look until now; `None` before the first.
    last: Option<u64>,
    /// Steps that wait for the next look.
    waiting: Vec<u32>,
}

/// A connection, seen from one end.
#[derive(Clone, Debug, Default)]
struct Connection {
    open: bool,
    /// Messages that wait until the connection is open, in the order in which they were sent.
    held: Vec<u32>,
    /// True if this end has begun to connect.
    begun: bool,
    /// True if this end has told who it is.
    introduced: bool,
}

impl Openings {
    pub(super) fn new(cluster: &Cluster, world: u32) -> Openings {
        let (poll, setup) = (cluster.connection_poll, cluster.connection_setup);
        let known = poll > 0 || setup > 0;
        Openings {
            poll,
            setup,
            ranks: vec![Looks::default(); if known { world as usize } else { 0 }],
            ways: HashMap::new(),
        }
    }

    /// Returns whether connections take time to open.
    pub(super) fn take_time(&self) -> bool {
        !self.ranks.is_empty()
    }

    /// Notes that a rank enters MPI. Returns the steps that waited for that.
    fn enter(&mut self, rank: u32, time: u64) -> Vec<u32> {
        match self.ranks.get_mut(rank as usize) {
            Some(looks)
                if !looks.always && looks.last.is_none_or(|last| time >= last + self.poll) =>
            {
                looks.last = Some(time);
                std::mem::take(&mut looks.waiting)
            }
            _ => Vec::new(),
        }
    }

    /// Notes that a rank leaves MPI.
    pub(super) fn leave(&mut self, rank: u32, time: u64) {
        if let Some(looks) = self.ranks.get_mut(rank as usize)
            && !looks.always
            && let Some(last) = &mut looks.last
            && self.poll > 0
        {
            *last += time.saturating_sub(*last) / self.poll * self.poll;
        }
    }

    /// Returns when a rank that is in MPI looks for the first time from `time` on.
    fn next_look(&self, rank: u32, time: u64) -> u64 {
        let looks = &self.ranks[rank as usize];
        match looks.last {
            Some(last) if !looks.always && time > last && self.poll > 0 => {
                last.saturating_add((time - last).div_ceil(self.poll).saturating_mul(self.poll))
            }
            _ => time,
        }
    }
}

impl Interpreter<'_> {
    /// Notes that a rank enters MPI, where it may look for events.
    pub(super) fn enter_mpi(&mut self, rank: u32, time: u64) {
        let steps = self.openings.enter(rank, time);
        if !steps.is_empty() {
            let steps = steps.into_iter().map(|number| CONTROL_ARRIVES | number);
            self.deferred.entry(rank).or_default().extend(steps);
        }
    }

    /// Returns whether messages between two ranks wait until their connection is open. The first such message begins to open the connection.
    pub(super) fn opens_first(&mut self, from: u32, to: u32, time: u64) -> bool {
        if !self.openings.take_time() || self.node_of[from as usize] == self.node_of[to as usize] {
            return false;
        }
        let way = self.openings.ways.entry((from, to)).or_default();
        if way.open {
            return false;
        }
        if !std::mem::replace(&mut way.begun, true) {
            let round_trip = 2 * self.cluster.network.service();
            self.schedule_step(Step::Connected, (to, from), time + round_trip);
        }
        true
    }

    /// Keeps a message, which has been delivered as in flight, until its connection is open.
    pub(super) fn hold(&mut self, number: u32) {
        let message = self.messages.get(number);
        let way = (message.from, message.to);
        self.openings.ways.entry(way).or_default().held.push(number);
    }

    fn schedule_step(&mut self, step: Step, (from, to): (u32, u32), time: u64) {
        let number = self.messages.add(Message {
            sequence: self.sent as u32,
            purpose: Purpose::Opening(step),
            ..Message::control(from, to)
        });
        self.schedule(time, CONTROL_ARRIVES | number);
    }

    /// Handles a step that comes to a rank in MPI.
    pub(super) fn open_step(&mut self, number: u32, step: Step, time: u64) {
        let Message { from, to, .. } = *self.messages.get(number);
        if step == Step::Poll {
            self.messages.release(number);
            let waiting = std::mem::take(&mut self.openings.ranks[to as usize].waiting);
            for number in waiting {
                self.control_arrived(number, time);
            }
            return;
        }
        let look = self.openings.next_look(to, time);
        let looks = &mut self.openings.ranks[to as usize];
        if look > time {
            looks.waiting.push(number);
            self.schedule_step(Step::Poll, (to, to), look);
            return;
        }
        looks.last = Some(time);
        self.messages.release(number);
        let told = (time.saturating_add(self.openings.setup))
            .saturating_add(self.cluster.network.service());
        match step {
            Step::Connected => {
                // Where both ranks connect, the connection stays that comes first.
                let ways = &mut self.openings.ways;
                let met = ways.get(&(from, to)).is_some_and(|way| way.introduced);
                let own = ways.entry((to, from)).or_default();
                if !met && !own.open {
                    own.introduced = true;
                    self.schedule_step(Step::Introduced, (to, from), told);
                }
            }
            Step::Introduced => {
                self.open_way((to, from), time);
                self.schedule_step(Step::Answered, (to, from), told);
            }
            Step::Answered => self.open_way((to, from), time),
            Step::Poll => {}
        }
        self.look_always(to, time);
    }

    /// Lets a rank look for events whenever it is in MPI.
    fn look_always(&mut self, rank: u32, time: u64) {
        let looks = &mut self.openings.ranks[rank as usize];
        looks.always = true;
        for number in std::mem::take(&mut looks.waiting) {
            self.schedule(time, CONTROL_ARRIVES | number);
        }
    }

    /// Opens a connection in one direction, and sends what waits for that.
    fn open_way(&mut self, (from, to): (u32, u32), time: u64) {
        let way = self.openings.ways.entry((from, to)).or_default();
        way.open = true;
        for number in std::mem::take(&mut way.held) {
            self.send_held(number, time);
        }
    }

    /// Sends a message whose connection has opened.
    fn send_held(&mut self, number: u32, time: u64) {
        let message = self.messages.get(number).clone();
        let (ends, bytes) = ((message.from, message.to), message.bytes);
        let channel = self.channel(message.from, message.to, message.op);
        if message.rendezvous {
            if self.service_shares(ends, channel) {
                return self.send_request(number, time);
            }
            let request = self.messages.add(Message {
                sequence: message.sequence,
                purpose: Purpose::Request(number),
                ..Message::control(message.from, message.to)
            });
            return self.schedule(time + channel.service(), CONTROL_ARRIVES | request);
        }
        if channel.model == Model::LogGp {
            let cause = Cause {
                kind: WaitKind::LateReceiver,
                rank: message.to,
                ..message.cause()
            };
            self.messages.get_mut(number).sender = Target::Nobody;
            self.complete(message.sender, time, ReceiveCost::default(), cause);
        }
        if self.arrives_unknown(ends, bytes, channel) {
            self.depart(number, time, channel.gap, true);
        } else {
            let (left, arrival) = self.transfer(ends, bytes, time, channel, true);
            self.set_arrival(number, left, arrival);
        }
    }
}

impl Message {
    /// Returns a message that no receive takes, without meaning but its ends.
    fn control(from: u32, to: u32) -> Message {
        Message {
            from,
            to,
            key: NONE,
            tag: NONE,
            bytes: 0,
            arrival: 0,
            entered: 0,
            op: NONE,
            sequence: 0,
            next: NONE,
            rendezvous: false,
            in_flight: true,
            left: 0,
            passed: 0,
            sender: Target::Nobody,
            origin: Origin {
                rank: from,
                time: 0,
                computed: 0,
                path: NONE,
            },
            receive: NONE,
            taken: false,
            purpose: Purpose::Data,
        }
    }
}
