//! Requests and permissions of large messages.
//!
//! Where messages share links frame by frame, a service message is a frame, too. It leaves its node behind all data that the node has sent
//! before, and comes to its receiver behind what others send there. So two ranks that send large messages to each other do so one after the
//! other if the data of one goes before it grants the other's, as on a TCP connection.

use super::critical_path::{Origin, Way};
use super::matching::{Message, Purpose};
use super::{CONTROL_ARRIVES, Cause, Interpreter, PERMISSION_ARRIVES, Phase, Target};
use crate::code::NONE;
use crate::network::{Channel, ReceiveCost, picoseconds};
use crate::result::WaitKind;

impl Interpreter<'_> {
    /// Returns whether service messages between two ranks share links with data.
    pub(super) fn service_shares(&self, (from, to): (u32, u32), channel: &Channel) -> bool {
        !self.links.arriving.is_empty() && self.arrives_unknown((from, to), 1, channel)
    }

    /// Sends a service message for the message `number` between the given ranks.
    fn send_service(&mut self, number: u32, purpose: Purpose, ends: (u32, u32), time: u64) {
        let service = Message {
            from: ends.0,
            to: ends.1,
            bytes: 0,
            rendezvous: false,
            in_flight: true,
            sender: Target::Nobody,
            receive: NONE,
            purpose,
            ..self.messages.get(number).clone()
        };
        let service = self.messages.add(service);
        self.send_frames(service, time);
    }

    /// Sends the request of a large message.
    pub(super) fn send_request(&mut self, number: u32, time: u64) {
        let message = self.messages.get(number);
        let ends = (message.from, message.to);
        self.send_service(number, Purpose::Request(number), ends, time);
    }

    /// Handles the request of a message, which arrives at its receiver.
    pub(super) fn request_arrived(&mut self, number: u32, time: u64) {
        let message = self.messages.get_mut(number);
        (message.in_flight, message.arrival) = (false, time);
        let (receive, cause) = (message.receive, message.cause());
        for target in self.probed.remove(&number).unwrap_or_default() {
            self.complete(target, time, ReceiveCost::default(), cause);
        }
        if receive != NONE {
            self.ask(number);
        }
    }

    /// Returns when a rank processes a service message that arrives at a time. A rank that waits processes what has come before first.
    pub(super) fn serviced(&mut self, rank: u32, time: u64) -> u64 {
        let context = &mut self.contexts[rank as usize];
        match context.phase == Phase::Blocked && !self.links.arriving.is_empty() {
            true => context.processed_by(time).max(time),
            false => time,
        }
    }

    /// Asks the receiver of a message, which has its request and a receive for it, for permission.
    pub(super) fn ask(&mut self, number: u32) {
        let message = self.messages.get(number);
        let posted = self.posted.get(message.receive);
        let arrival = message.arrival;
        // A rank that blocks in this receive is in MPI when the request comes; a rank that continues may not be.
        let waits = self.is_rank(posted.target);
        if posted.time >= arrival || waits || self.asynchronous {
            let (to, time) = (message.to, arrival.max(posted.time));
            let time = self.serviced(to, time);
            self.grant(number, time);
        } else {
            self.schedule(arrival, CONTROL_ARRIVES | number);
        }
    }

    /// Grants a message: sends the permission to the message's sender.
    pub(super) fn grant(&mut self, number: u32, time: u64) {
        let message = self.messages.get(number);
        let ends = (message.to, message.from);
        let channel = self.channel(message.from, message.to, message.op);
        if self.service_shares(ends, channel) {
            return self.send_service(number, Purpose::Permission(number), ends, time);
        }
        let arrives = time + channel.service();
        let waits = self.is_rank(message.sender);
        // Links are reserved in the order of times, so the permission must wait for its turn; so must a sender that may be computing.
        if self.cluster.contention || !(waits || self.asynchronous) {
            self.schedule(arrives, PERMISSION_ARRIVES | number);
        } else {
            self.send_data(number, arrives);
        }
    }

    /// Returns the time from when the last byte of a message in frames has passed the links until the message arrives.
    pub(super) fn beyond(&self, number: u32) -> u64 {
        let message = self.messages.get(number);
        let channel = self.channel(message.from, message.to, message.op);
        match message.purpose.is_service() {
            true => channel.service().saturating_sub(channel.wire(0)),
            false => channel.beyond_wire(message.bytes),
        }
    }

    /// Completes the send of a large message, whose data goes from `time` on and has left at `left`: as soon as the rest fits into the
    /// connection's buffer.
    pub(super) fn end_send(&mut self, number: u32, time: u64, left: u64) {
        let message = self.messages.get(number);
        let (from, to, bytes, sender) = (message.from, message.to, message.bytes, message.sender);
        let per_byte = self.channel(from, to, message.op).per_byte;
        let rest = picoseconds(self.cluster.connection_buffer as f64 * per_byte);
        let end = left.saturating_sub(rest).max(time);
        let posted = self.posted.get(message.receive);
        let (at, op) = (posted.time, posted.op);
        let (origin, way) = self.decided(number);
        self.messages.get_mut(number).sender = Target::Nobody;
        if matches!(sender, Target::Request { .. }) {
            self.progresses(from, time, end);
        }
        let receiver = Cause {
            at,
            rank: to,
            op,
            kind: WaitKind::LateReceiver,
            origin,
            bytes,
            way,
        };
        self.complete(sender, end, ReceiveCost::default(), receiver);
    }

    /// Returns what determined when the data of a large message went: the later of sender and receiver, or a rank that was not in MPI.
    pub(super) fn decided(&self, number: u32) -> (Origin, Way) {
        let message = self.messages.get(number);
        let posted = self.posted.get(message.receive);
        let later = if posted.time > message.arrival {
            (posted.origin, Way::Granted)
        } else {
            (message.origin, Way::Asked)
        };
        self.late.get(&number).copied().unwrap_or(later)
    }
}
