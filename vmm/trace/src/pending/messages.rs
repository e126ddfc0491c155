//! Point-to-point messages that have been sent and not received.

use std::collections::{BTreeMap, VecDeque};

use nodescope_hypercall::{Peer, Tag};

use super::CallSite;
use super::operation::{Incoming, Outgoing};

/// A message that has been sent and not received; its length is in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub bytes: u64,
    pub site: CallSite,
    /// Serial of the sender's request; 0 for a blocking send that has ended, and `PENDING_SEND` for a blocking send that has not.
    pub serial: u64,
}

/// Messages of one sender, receiver, communicator and tag, which do not overtake each other (MPI 3.1, section 3.5).
#[derive(Clone, Debug, Default)]
struct Channel {
    sent: VecDeque<Message>,
    /// Number of messages whose receive was reported before their send: a send is reported when it ends, which may be later than the
    /// receive.
    early: u64,
}

/// Unreceived messages of a job, by receiver and communicator, then by sender and tag.
#[derive(Debug, Default)]
pub struct Messages {
    channels: BTreeMap<(u32, u64), BTreeMap<(u32, u32), Channel>>,
}

impl Messages {
    fn channel(&mut self, from: u32, to: u32, communicator: u64, tag: u32) -> &mut Channel {
        let channels = self.channels.entry((to, communicator)).or_default();
        channels.entry((from, tag)).or_default()
    }

    pub fn record_send(&mut self, from: u32, send: &Outgoing, site: CallSite, serial: u64) {
        let channel = self.channel(from, send.to, send.communicator, send.tag);
        if channel.early > 0 {
            channel.early -= 1;
            return;
        }
        channel.sent.push_back(Message {
            bytes: send.bytes,
            site,
            serial,
        });
    }

    pub fn record_receive(&mut self, from: u32, to: u32, communicator: u64, tag: u32) {
        let channel = self.channel(from, to, communicator, tag);
        if channel.sent.pop_front().is_none() {
            channel.early += 1;
        }
    }

    /// Removes the message of a cancelled send, by the serial of the send's request.
    pub fn withdraw(&mut self, from: u32, send: &Outgoing, serial: u64) {
        let channel = self.channel(from, send.to, send.communicator, send.tag);
        channel.sent.retain(|message| message.serial != serial);
    }

    /// Returns whether the message of this send is still unreceived.
    pub fn is_unreceived(&self, from: u32, send: &Outgoing, serial: u64) -> bool {
        let channel = self.channels.get(&(send.to, send.communicator));
        let channel = channel.and_then(|channels| channels.get(&(from, send.tag)));
        channel.is_some_and(|channel| channel.sent.iter().any(|message| message.serial == serial))
    }

    /// Returns a message that matches a receive of rank `to`: sender, tag and the message. If several senders' messages match, returns one
    /// of them.
    pub fn find_match(&self, to: u32, receive: &Incoming) -> Option<(u32, u32, Message)> {
        let channels = self.channels.get(&(to, receive.communicator))?;
        let mut fitting = channels.iter().filter(|((from, tag), _)| {
            (receive.from == Peer::Any || receive.from == Peer::Rank(*from))
                && (receive.tag == Tag::Any || receive.tag == Tag::Value(*tag))
        });
        fitting.find_map(|((from, tag), channel)| Some((*from, *tag, *channel.sent.front()?)))
    }

    /// Removes and returns the message that [`Messages::find_match`] finds.
    pub fn take_match(&mut self, to: u32, receive: &Incoming) -> Option<(u32, u32, Message)> {
        let (from, tag, message) = self.find_match(to, receive)?;
        self.record_receive(from, to, receive.communicator, tag);
        Some((from, tag, message))
    }

    /// Returns unreceived messages by channel: sender, receiver, tag, the first message and the number of messages.
    pub fn unreceived(&self) -> impl Iterator<Item = (u32, u32, u32, Message, u64)> {
        self.channels.iter().flat_map(|((to, _), channels)| {
            channels.iter().filter_map(move |((from, tag), channel)| {
                let first = *channel.sent.front()?;
                Some((*from, *to, *tag, first, channel.sent.len() as u64))
            })
        })
    }
}
