//! Tags of messages in formats that know neither communicators nor messages of collectives.

use std::collections::HashMap;

use crate::stream::Channel;

/// Tags of messages. A message's tag has the number of its channel among those from this sender to this receiver, and its number on
/// the channel. The replay identifies requests by sender, receiver and tag, so that two pending ones need different tags.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    channels: HashMap<(Channel, bool), TagCounts>,
    pairs: HashMap<(u32, u32), u32>,
}

#[derive(Clone, Copy, Debug)]
struct TagCounts {
    number: u32,
    sent: u64,
    received: u64,
}

impl Tags {
    /// Returns the replay's tag of the next message sent on a channel (of the next one received if `sends` is false). Messages of
    /// collectives have their own tags.
    pub(crate) fn next(&mut self, channel: Channel, collective: bool, sends: bool) -> u32 {
        let pairs = &mut self.pairs;
        let counts = self
            .channels
            .entry((channel, collective))
            .or_insert_with(|| {
                let next = pairs.entry((channel.from, channel.to)).or_default();
                *next += 1;
                TagCounts {
                    number: *next - 1,
                    sent: 0,
                    received: 0,
                }
            });
        let count = match sends {
            true => &mut counts.sent,
            false => &mut counts.received,
        };
        *count += 1;
        (counts.number % (1 << 15)) << 16 | ((*count - 1) % (1 << 16)) as u32
    }

    /// Returns the number of messages without a receive, and of receives without a message.
    pub(crate) fn open(&self) -> (u64, u64) {
        self.channels
            .values()
            .fold((0, 0), |(sends, receives), counts| {
                (
                    sends + counts.sent.saturating_sub(counts.received),
                    receives + counts.received.saturating_sub(counts.sent),
                )
            })
    }
}
