//! Accesses to the memory of other ranks.
//!
//! Request and answer are messages that no call receives. The target's network interface or a thread of the MPI library serves them at
//! once, whatever the target rank does, and takes nothing of its processor. An access is complete when the answer has come, because only
//! the answer shows that written data has arrived.

use super::critical_path::Way;
use super::matching::{Message, Purpose};
use super::{CONTROL_ARRIVES, Cause, Context, Interpreter, Target};
use crate::network::{Model, ReceiveCost};

impl Interpreter<'_> {
    /// Starts an access: a rank sends `out` bytes to another rank's memory, from which `back` bytes come back.
    pub(super) fn access(
        &mut self,
        context: u32,
        to: u32,
        (out, back): (u64, u64),
        target: Target,
    ) {
        let Context {
            rank,
            op,
            clock: start,
            ..
        } = self.contexts[context as usize];
        if to >= self.world {
            // A rank that does not exist has no memory; the program would have failed.
            return;
        }
        let channel = self.channel(rank, to, op);
        self.events += 2;
        self.sent += 2;
        self.note_connection(rank, to, start);
        let both = out.saturating_add(back);
        self.sent_bytes = self.sent_bytes.saturating_add(both);
        let message = Message {
            purpose: Purpose::Access(back),
            ..self.message(context, to, out, target)
        };
        let number = self.messages.add(message);
        let busy = match channel.model {
            Model::LogGp => channel.send_overhead.at(out),
            Model::Post => 0,
        };
        let ready = start + busy;
        self.contexts[context as usize].clock = ready;
        self.expect(target);
        self.send_one_way(number, ready);
    }

    /// Sends the request or the answer of an access.
    fn send_one_way(&mut self, number: u32, time: u64) {
        let Message {
            from,
            to,
            bytes,
            op,
            ..
        } = *self.messages.get(number);
        let channel = self.channel(from, to, op);
        if self.arrives_unknown((from, to), bytes, channel) {
            self.messages.get_mut(number).in_flight = true;
            self.depart(number, time, channel.gap, true);
        } else {
            let (_, arrival) = self.transfer((from, to), bytes, time, channel, true);
            self.schedule(arrival, CONTROL_ARRIVES | number);
        }
    }

    /// Sends the answer of an access back.
    pub(super) fn send_answer(&mut self, number: u32, back: u64, time: u64) {
        let message = self.messages.get_mut(number);
        (message.purpose, message.bytes) = (Purpose::Answer, back);
        std::mem::swap(&mut message.from, &mut message.to);
        self.send_one_way(number, time);
    }

    /// Completes an access.
    pub(super) fn complete_access(&mut self, number: u32, time: u64) {
        let message = self.messages.get(number);
        let (from, to, bytes, sender) = (message.from, message.to, message.bytes, message.sender);
        // No rank was late: the access was requested when it was sent.
        let op = message.op;
        let cause = Cause {
            way: Way::Access,
            ..message.cause()
        };
        self.messages.release(number);
        // The notification of completion has no data.
        let cost = match bytes {
            0 => ReceiveCost::default(),
            bytes => self.channel(from, to, op).receive(bytes),
        };
        self.complete(sender, time, cost, cause);
    }
}
