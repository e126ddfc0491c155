//! Acknowledgements that take time of a sender's processor.
//!
//! A receiver acknowledges every so many frames, unless it sends a message itself, which carries the acknowledgement. The frames of one
//! message come so close together that they are acknowledged at once. An acknowledgement that comes while its rank sends interrupts the
//! send. At other times the rank waits, or it computes, and then the traced computation contains what acknowledgements took.

use std::collections::{HashMap, VecDeque};

use crate::cluster::{Cluster, LONGEST};
use crate::network::Channel;

/// State of all connections and ranks.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements {
    /// By rank: when acknowledgements come, in the order in which their messages were sent; empty if acknowledgements cost nothing.
    coming: Vec<VecDeque<u64>>,
    /// By sender and receiver: frames that are not acknowledged.
    frames: HashMap<(u32, u32), u64>,
}

impl Acknowledgements {
    pub(super) fn new(cluster: &Cluster, world: u32) -> Acknowledgements {
        let cost = [&cluster.network, &cluster.memory]
            .iter()
            .any(|channel| acknowledge_every(channel).is_some());
        Acknowledgements {
            coming: vec![VecDeque::new(); if cost { world as usize } else { 0 }],
            frames: HashMap::new(),
        }
    }

    /// Returns whether acknowledgements cost time.
    pub(super) fn take_time(&self) -> bool {
        !self.coming.is_empty()
    }

    /// Notes a message that its sender sends from `start` to `end`. Returns when the send ends, with the acknowledgements that interrupt
    /// the send.
    pub(super) fn send(
        &mut self,
        (from, to): (u32, u32),
        bytes: u64,
        (start, mut end): (u64, u64),
        channel: &Channel,
    ) -> u64 {
        let (Some(coming), Some(every)) = (
            self.coming.get_mut(from as usize),
            acknowledge_every(channel),
        ) else {
            return end;
        };
        while let Some(&time) = coming.front()
            && time <= end
            && end <= LONGEST
        {
            coming.pop_front();
            if time > start {
                end += channel.acknowledgement_overhead;
            }
        }
        self.frames.remove(&(to, from));
        let frames = self.frames.entry((from, to)).or_default();
        *frames = frames.saturating_add(channel.number_of_frames(bytes));
        if *frames >= every {
            *frames = 0;
            coming.push_back(end + channel.wire(bytes) + 2 * channel.latency);
        }
        end
    }
}

/// Returns the number of frames after which an acknowledgement comes that costs time.
fn acknowledge_every(channel: &Channel) -> Option<u64> {
    let frames = channel.frames.filter(|frames| frames.acknowledge > 0)?;
    (channel.acknowledgement_overhead > 0).then_some(frames.acknowledge)
}
