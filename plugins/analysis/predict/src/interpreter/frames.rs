//! Messages that share the link to their receiver frame by frame.
//!
//! A switch forwards frames in the order in which they come. If several nodes send to one node at the same time, a message is delayed by
//! the frames of other messages that come between its own frames. So a message's arrival is known only when its last frame has reached
//! the link to its receiver, because other messages may begin to come until then. A long message goes in a few large pieces, which gives
//! almost the same times.

use std::collections::VecDeque;

use super::matching::{Message, Purpose};
use super::{CONTROL_ARRIVES, ENTERS_NETWORK, Interpreter};
use crate::network::MOST_COST;

/// Most pieces into which the model divides a message, or its acknowledgements. Each piece stands for one or more frames.
const PIECES: u64 = 32;

/// Most frames that are remembered after they have passed the link to a node.
const PASSED: usize = 4 * PIECES as usize;

/// Frames on their way to one node, in the order of the times at which they come to its link.
#[derive(Clone, Debug, Default)]
pub(super) struct Coming {
    frames: VecDeque<Frame>,
    /// The last frames of messages that passed the link, without acknowledgements: the time when each is received, and the message of which
    /// it is a part.
    passed: VecDeque<(u64, Part)>,
}

/// The message of which a frame is a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Number of the message, which is used again once the message has been received.
    pub number: u32,
    /// Number that distinguishes messages with the same `number`.
    pub sequence: u32,
}

/// Frame, or piece of several frames, on its way to a node.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Time at which the frame's first bit comes to the link.
    head: u64,
    /// Time that the frame takes on the link.
    time: u64,
    /// Message of which the frame is a part; `None` for an acknowledgement.
    of: Option<Part>,
    /// True if the frame is the last of its message.
    last: bool,
    /// Time from the frame's passing of the link until it is received.
    beyond: u64,
}

impl Coming {
    /// Adds a frame, behind those that come at the same time.
    fn add(&mut self, frame: Frame) {
        let frames = &self.frames;
        let at = frames.partition_point(|other| other.head <= frame.head);
        self.frames.insert(at, frame);
    }

    /// Returns the frames that passed the link last, and those that come to it before `until`, as [`super::Links::received`] describes. The
    /// link is free from `free` on.
    pub(super) fn received(&self, free: u64, until: u64) -> impl Iterator<Item = (u64, Part)> + '_ {
        let coming = (self.frames.iter())
            .take_while(move |frame| frame.head < until)
            .scan(free, |free, frame| {
                *free = frame.head.max(*free).saturating_add(frame.time);
                Some(frame.of.map(|of| (free.saturating_add(frame.beyond), of)))
            });
        self.passed.iter().copied().chain(coming.flatten())
    }
}

impl Interpreter<'_> {
    /// Sends a message into the network in frames.
    pub(super) fn send_frames(&mut self, number: u32, time: u64) {
        let message = self.messages.get(number);
        let (from, to, bytes) = (message.from, message.to, message.bytes);
        let channel = self.channel(from, to, message.op);
        let (a, b) = (self.node_of[from as usize], self.node_of[to as usize]);
        let (begin, left, head, passed) = self.reserve_route((a, b), bytes, time, channel);
        let message = self.messages.get_mut(number);
        (message.left, message.passed) = (left, passed);
        if message.rendezvous && self.cluster.connection_buffer > 0 {
            // The send ends before the message arrives.
            self.end_send(number, time, left);
        }
        let wire = channel.wire(bytes);
        let frames = channel.number_of_frames(bytes);
        let pieces = frames.clamp(1, PIECES);
        // A delay of the message at its node delays its frames, too.
        let (first, takes) = (head + begin + wire - left, left - begin);
        let mut last = first;
        let sequence = self.messages.get(number).sequence;
        let of = Part { number, sequence };
        self.schedule_acknowledgements(number, head);
        let beyond = self.beyond(number);
        for piece in 0..pieces {
            let [from, to] =
                [piece, piece + 1].map(|at| channel.wire_of_frames(bytes, frames * at / pieces));
            last = first + (u128::from(takes) * u128::from(from) / u128::from(wire.max(1))) as u64;
            self.links.arriving[b as usize].add(Frame {
                head: last,
                time: to - from,
                of: Some(of),
                last: piece + 1 == pieces,
                beyond,
            });
        }
        self.links.count(b, channel.bytes(bytes));
        self.schedule(last, ENTERS_NETWORK | number);
    }

    /// Schedules the acknowledgements of a message's frames, for the times when the frames come if nothing delays them.
    fn schedule_acknowledgements(&mut self, number: u32, head: u64) {
        let message = self.messages.get(number).clone();
        let channel = self.channel(message.from, message.to, message.op);
        let Some(frames) = channel.frames.filter(|frames| frames.acknowledge > 0) else {
            return;
        };
        let frames_of_it = channel.number_of_frames(message.bytes);
        let acknowledgements = frames_of_it / frames.acknowledge;
        let pieces = acknowledgements.min(PIECES);
        let bytes = acknowledgements as f64 * frames.header as f64;
        let time = (bytes * channel.per_byte).min(MOST_COST as f64);
        for piece in 0..pieces {
            let acknowledged = acknowledgements * (piece + 1) / pieces * frames.acknowledge;
            let come = channel.wire_of_frames(message.bytes, acknowledged);
            let takes = (time / pieces as f64).round() as u64;
            let number = self.messages.add(Message {
                from: message.to,
                to: message.from,
                purpose: Purpose::Acknowledgement(takes),
                ..message.clone()
            });
            self.schedule(head + come + channel.latency, CONTROL_ARRIVES | number);
        }
    }

    /// Sends acknowledgements of frames, which take time of the links back.
    pub(super) fn acknowledge(&mut self, number: u32, takes: u64) {
        let Message { from, to, .. } = *self.messages.get(number);
        self.messages.release(number);
        let (a, b) = (self.node_of[from as usize], self.node_of[to as usize]);
        let head = self.links.leave(self.now, a, takes);
        self.links.arriving[b as usize].add(Frame {
            head,
            time: takes,
            of: None,
            last: false,
            beyond: 0,
        });
    }

    /// Lets frames pass the link to a receiver, up to the last frame of a message, and sets the message's arrival. No earlier frame can
    /// come any more.
    pub(super) fn pass_frames(&mut self, number: u32) {
        let message = self.messages.get(number);
        let node = self.node_of[message.to as usize];
        loop {
            let coming = &mut self.links.arriving[node as usize].frames;
            let Some(&frame) = coming.front().filter(|frame| frame.head <= self.now) else {
                break;
            };
            coming.pop_front();
            let end = self.links.pass(node, frame.head, frame.time);
            let Some(of) = frame.of else {
                continue;
            };
            let passed = &mut self.links.arriving[node as usize].passed;
            if passed.len() == PASSED {
                passed.pop_front();
            }
            passed.push_back((end.saturating_add(frame.beyond), of));
            if frame.last {
                let message = self.messages.get_mut(of.number);
                message.passed = message.passed.max(end);
            }
        }
        let message = self.messages.get(number);
        let (left, passed) = (message.left, message.passed);
        let arrival = passed.saturating_add(self.beyond(number));
        self.set_arrival(number, left, arrival);
    }
}
