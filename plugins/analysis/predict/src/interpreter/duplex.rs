//! Large messages in both directions between two ranks, on a network whose connections carry both at half speed.
//!
//! TCP acknowledges what has come, and an acknowledgement waits behind the data that its own side has queued on the same connection. If both
//! sides send much, each waits for acknowledgements as long as the other side's data takes, so that a connection uses half of its share of
//! the links (Zhang, Shenker and Clark, "Observations on the dynamics of a congestion control algorithm: the effects of two-way traffic",
//! 1991).

use std::collections::HashMap;

use super::Interpreter;

/// Number of messages from one rank to another that have permission and have not arrived.
#[derive(Debug, Default)]
pub(super) struct Granted(HashMap<(u32, u32), u32>);

impl Interpreter<'_> {
    /// Returns the ends of a message, if connections carry both directions at half speed and the message goes over the network.
    fn half_duplex(&self, number: u32) -> Option<(u32, u32)> {
        if !self.cluster.half_duplex {
            return None;
        }
        let message = self.messages.get(number);
        let (from, to) = (message.from, message.to);
        let between = self.node_of[from as usize] != self.node_of[to as usize];
        between.then_some((from, to))
    }

    /// Notes that a message has got permission.
    pub(super) fn note_granted(&mut self, number: u32) {
        if let Some(ends) = self.half_duplex(number) {
            *self.granted.0.entry(ends).or_default() += 1;
        }
    }

    /// Lets a message whose data goes now take twice its time on the links, if another message goes the opposite way.
    pub(super) fn slow_down(&mut self, number: u32) {
        if let Some((from, to)) = self.half_duplex(number)
            && self.granted.0.contains_key(&(to, from))
        {
            let message = self.messages.get_mut(number);
            message.slowed = true;
            message.bytes = message.bytes.saturating_mul(2);
        }
    }

    /// Notes that the data of a message with permission has arrived.
    pub(super) fn note_arrived(&mut self, number: u32) {
        let Some(ends) = self.half_duplex(number) else {
            return;
        };
        if let Some(count) = self.granted.0.get_mut(&ends) {
            *count -= 1;
            if *count == 0 {
                self.granted.0.remove(&ends);
            }
        }
        let message = self.messages.get_mut(number);
        if message.slowed {
            message.bytes /= 2;
        }
    }
}
