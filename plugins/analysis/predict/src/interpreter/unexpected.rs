//! Messages that come while their rank waits for others.
//!
//! An MPI library without a progress thread reads its connections in any call that waits. It processes messages in the order in which they
//! come, and keeps those without a receive. Meanwhile it does not see that the awaited message is there. So a rank's wait ends later by
//! the cost of such messages. When the rank receives them, only the copy is left of their cost. Of messages in frames, those frames count
//! that come before the wait is over.

use super::Interpreter;
use crate::code::NONE;
use crate::network::ReceiveCost;

impl Interpreter<'_> {
    /// Lets a waiting rank receive the messages that come before the end of its wait. Returns true if other ranks may send more before
    /// that end: then the rank wakes at that time, and the wait is computed again.
    pub(super) fn process_unexpected(&mut self, context: u32) -> bool {
        if !self.receives_unexpected || context >= self.world {
            return false;
        }
        let at = context as usize;
        let c = &self.contexts[at];
        if c.inbox.is_empty() && c.ready <= c.clock {
            // The rank has nothing to wait for, and does not poll.
            return false;
        }
        let mut end = self.end_of_wait(context);
        loop {
            let known = self.contexts[at].inbox.len();
            self.take_unexpected(context, end);
            self.take_requests(context, end);
            if self.contexts[at].inbox.len() == known {
                break;
            }
            end = self.end_of_wait(context);
        }
        let again = self.has_earlier_event(end);
        if again {
            self.wake(context, end);
        }
        again
    }

    /// Returns when a rank has processed all that it waits for, and those frames that come meanwhile and belong to messages that are not
    /// complete by then. Each frame costs as much as a message of one frame, but all frames of a message cost no more than the message.
    fn end_of_wait(&mut self, context: u32) -> u64 {
        let at = context as usize;
        self.contexts[at].disturbed = 0;
        let end = self.contexts[at].processed_at();
        let last = self.contexts[at].ready;
        let mut disturbed = 0;
        let mut left: Vec<(u32, u64)> = Vec::new();
        for (time, of) in self.links.received(self.node_of[at], end) {
            let message = self.messages.get(of.number);
            let complete = !message.in_flight && message.arrival < end;
            let service = message.purpose.is_service();
            if message.sequence != of.sequence || message.to != context || complete || service {
                continue;
            }
            let channel = self.channel(message.from, context, message.op);
            let frame = channel.queued_frame(message.bytes);
            if time <= last {
                // The frame is processed before the message that has been waited for.
                disturbed = (time + frame).saturating_sub(last);
                continue;
            }
            if time >= end + disturbed {
                break;
            }
            let known = left.iter().position(|&(other, _)| other == of.number);
            let index = known.unwrap_or_else(|| {
                left.push((of.number, channel.receive(message.bytes).queued));
                left.len() - 1
            });
            let spent = frame.min(left[index].1);
            left[index].1 -= spent;
            disturbed += spent;
        }
        self.contexts[at].disturbed = disturbed;
        end + disturbed
    }

    /// Processes eager messages that arrive before `end` and have no receive yet.
    fn take_unexpected(&mut self, context: u32, end: u64) {
        let mut number = self.queues.messages[context as usize].first;
        while number != NONE {
            let message = self.messages.get_mut(number);
            let next = message.next;
            if !message.rendezvous && !message.in_flight && !message.taken && message.arrival < end
            {
                message.taken = true;
                let (from, bytes, arrival) = (message.from, message.bytes, message.arrival);
                let op = message.op;
                let cost = self.channel(from, context, op).receive(bytes);
                self.contexts[context as usize].add_cost(arrival, cost);
            }
            number = next;
        }
    }

    /// Processes messages of receives that the rank waits for later, if they arrive before `end`.
    fn take_requests(&mut self, context: u32, end: u64) {
        let mut unread = std::mem::take(&mut self.unread[context as usize]);
        unread.retain(|&index| {
            let request = &mut self.requests[index as usize];
            if !request.done || request.cost == ReceiveCost::default() {
                return false;
            }
            if request.at >= end {
                return true;
            }
            let cost = std::mem::take(&mut request.cost);
            self.contexts[context as usize].add_cost(request.at, cost);
            false
        });
        self.unread[context as usize] = unread;
    }
}
