//! Accesses to the memory of other ranks.
//!
//! Request and answer are messages that no call receives. The target's network interface or a thread of the MPI library serves them at
//! once, whatever the target rank does, and takes nothing of its processor. Or the target serves them in its calls of MPI. An access is
//! complete when the answer has come, because only the answer shows that written data has arrived.

use nodescope_hypercall::Function;

use super::critical_path::Way;
use super::matching::{Message, Purpose};
use super::{CONTROL_ARRIVES, Cause, Context, Interpreter, Target};
use crate::collective::Library;
use crate::network::{Channel, Model, ReceiveCost};

/// Bytes of a number in a window that tells of posts and completions.
const NUMBER: u64 = 8;

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

    /// Handles an access that arrives at its target.
    pub(super) fn access_arrived(&mut self, number: u32, back: u64, time: u64) {
        if !self.cluster.accesses_in_calls {
            return self.send_answer(number, back, time);
        }
        let to = self.messages.get(number).to;
        if !self.in_mpi(to) {
            let waiting = self.deferred.entry(to).or_default();
            return waiting.push(CONTROL_ARRIVES | number);
        }
        let cost = self.serving(number, back);
        let time = self.serviced(to, time);
        self.contexts[to as usize].add_cost(time, cost);
        self.send_answer(number, back, time + cost.awaited);
    }

    /// Serves an access that came before its target was in MPI.
    pub(super) fn serve_access(&mut self, number: u32, back: u64) {
        let to = self.messages.get(number).to;
        let cost = self.serving(number, back);
        let clock = &mut self.contexts[to as usize].clock;
        *clock += cost.buffered;
        let time = *clock;
        self.send_answer(number, back, time);
    }

    /// Returns what it costs the target's processor to receive an access and to answer with `back` bytes.
    fn serving(&self, number: u32, back: u64) -> ReceiveCost {
        let message = self.messages.get(number);
        let channel = self.channel(message.from, message.to, message.op);
        let answer = channel.send_overhead.at(back);
        channel.receive(message.bytes).and(answer)
    }

    /// Returns how long a call of `MPI_Win_post` takes before a notification leaves, or one of `MPI_Win_complete` after it has left. Open
    /// MPI's component osc/rdma finds a place in the origin's window and takes it, or counts a completion in the target's window.
    pub(super) fn notification_times(&self, op: u32, channel: &Channel) -> (u64, u64) {
        if !self.cluster.accesses_in_calls || self.cluster.collectives.library != Library::OpenMpi {
            return (0, 0);
        }
        let way = channel.send_overhead.at(NUMBER) + channel.latency + channel.wire(NUMBER);
        let round_trip = 2 * (way + channel.receive(NUMBER).awaited);
        match self.code.program.ops.get(op as usize).map(|op| op.function) {
            Some(Function::WinPost) => (2 * round_trip, 0),
            Some(Function::WinComplete) => (0, round_trip),
            _ => (0, 0),
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
            0 if !self.cluster.accesses_in_calls => ReceiveCost::default(),
            bytes => self.channel(from, to, op).receive(bytes),
        };
        self.complete(sender, time, cost, cause);
    }
}
