//! Model of shared links in which each message flows like a fluid, with a rate of its own.
//!
//! A message is on all links of its path from when it enters the network until its last byte has left. Its rate changes whenever another
//! message begins or ends. Rates are max-min fair (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2): the rate of a message
//! can grow only at the cost of a message with no greater rate. Rates are found by progressive filling: the link that leaves least to each
//! of its messages decides their rates, and the rest of other links goes to other messages. With weights, messages that are limited by the
//! same link get shares in proportion to the weights.
//!
//! Only those messages are recomputed that share a link with a message that began or ended, directly or through others. All messages that
//! begin or end at one time are recomputed together.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Picoseconds after the current time within which messages that end are taken out now. Otherwise, rounding could turn one common end into
/// several ends, each with new rates.
const TOGETHER: u64 = 16;

/// Relative change of a message's rate up to which the message keeps its old rate.
const SAME: f64 = 1e-12;

/// A message on its path.
#[derive(Clone, Debug, Default)]
struct Flow {
    message: u32,
    /// Bytes that had still to flow at `since`.
    left: f64,
    /// Bytes per picosecond, from `since` on.
    rate: f64,
    since: u64,
    /// Time at which the message's last byte leaves if `rate` does not change, picoseconds.
    end: u64,
    /// Number by which out-of-date entries of the heap are recognised.
    generation: u32,
    weight: f64,
    links: Vec<u32>,
    fixed: bool,
}

/// A link's share for each unit of weight, and the link's number; ordered by share.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Share(f64, u32);

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Share) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Share) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

#[derive(Clone, Debug, Default)]
struct Pipe {
    /// Messages on the link.
    flows: Vec<u32>,
    /// Bandwidth of the link, bytes per picosecond.
    capacity: f64,
    /// While rates are found: capacity that is left for messages without a rate, whose weights have the sum `weight`.
    left: f64,
    weight: f64,
    /// Number of the last round of `Fluid::reach` that reached this link; 0 once all messages of the link have their rates.
    seen: u64,
    dirty: bool,
}

/// State of all messages on links.
#[derive(Debug, Default)]
pub(super) struct Fluid {
    pipes: Vec<Pipe>,
    flows: Vec<Flow>,
    spare: Vec<u32>,
    /// Links on which messages began or ended since rates were found.
    dirty: Vec<u32>,
    ends: BinaryHeap<Reverse<(u64, u32, u32)>>,
    round: u64,
    found: Vec<u32>,
    shares: BinaryHeap<Reverse<Share>>,
    /// Time at which the interpreter updates the shares next; `None` if no update is scheduled.
    pub next: Option<u64>,
}

impl Fluid {
    /// Returns `links` links without messages. A link gets its capacity when a message begins on it.
    pub fn new(links: usize) -> Fluid {
        Fluid {
            pipes: vec![Pipe::default(); links],
            ..Fluid::default()
        }
    }

    /// Adds a message that begins to flow over links, each given with its picoseconds per byte. Links that take no time are left out. At
    /// least one link must remain, and at least one byte.
    pub fn begin(
        &mut self,
        now: u64,
        message: u32,
        bytes: u64,
        weight: f64,
        links: impl Iterator<Item = (u32, f64)>,
    ) {
        let number = self.spare.pop().unwrap_or_else(|| {
            self.flows.push(Flow::default());
            (self.flows.len() - 1) as u32
        });
        let flow = &mut self.flows[number as usize];
        flow.links.clear();
        for (link, per_byte) in links.filter(|&(_, per_byte)| per_byte > 0.0) {
            flow.links.push(link);
            let pipe = &mut self.pipes[link as usize];
            pipe.capacity = 1.0 / per_byte;
            pipe.flows.push(number);
            if !std::mem::replace(&mut pipe.dirty, true) {
                self.dirty.push(link);
            }
        }
        debug_assert!(bytes > 0 && !flow.links.is_empty());
        flow.message = message;
        (flow.left, flow.rate) = (bytes as f64, 0.0);
        (flow.since, flow.end) = (now, u64::MAX);
        flow.weight = weight;
    }

    /// Takes out a message whose last byte leaves at `now` or up to `TOGETHER` later. Returns the message's number and the time when its
    /// last byte leaves; `None` if no such message is left.
    pub fn ended(&mut self, now: u64) -> Option<(u32, u64)> {
        while let Some(&Reverse((end, number, generation))) = self.ends.peek() {
            if self.flows[number as usize].generation != generation {
                self.ends.pop();
                continue;
            }
            if end > now.saturating_add(TOGETHER) {
                return None;
            }
            self.ends.pop();
            let flow = &mut self.flows[number as usize];
            flow.generation = flow.generation.wrapping_add(1);
            for &link in &flow.links {
                let pipe = &mut self.pipes[link as usize];
                if let Some(at) = pipe.flows.iter().position(|&other| other == number) {
                    pipe.flows.swap_remove(at);
                }
                if !std::mem::replace(&mut pipe.dirty, true) {
                    self.dirty.push(link);
                }
            }
            self.spare.push(number);
            return Some((flow.message, end));
        }
        None
    }

    /// Finds the rates anew if messages began or ended. Returns when the next message ends; `None` if no message is left.
    pub fn settle(&mut self, now: u64) -> Option<u64> {
        if !self.dirty.is_empty() {
            self.reach();
            self.fill(now);
        }
        while let Some(&Reverse((end, number, generation))) = self.ends.peek() {
            if self.flows[number as usize].generation == generation {
                return Some(end);
            }
            self.ends.pop();
        }
        None
    }

    /// Collects the links that changed, and all links that share messages with these, directly or through further links.
    fn reach(&mut self) {
        self.round += 1;
        self.found.clear();
        for link in self.dirty.drain(..) {
            let pipe = &mut self.pipes[link as usize];
            pipe.dirty = false;
            pipe.seen = self.round;
            self.found.push(link);
        }
        let mut at = 0;
        while let Some(&link) = self.found.get(at) {
            at += 1;
            let pipe = &mut self.pipes[link as usize];
            (pipe.left, pipe.weight) = (pipe.capacity, 0.0);
            for at in 0..self.pipes[link as usize].flows.len() {
                let number = self.pipes[link as usize].flows[at];
                let flow = &mut self.flows[number as usize];
                flow.fixed = false;
                self.pipes[link as usize].weight += flow.weight;
                for &other in &flow.links {
                    let other_pipe = &mut self.pipes[other as usize];
                    if other_pipe.seen != self.round {
                        other_pipe.seen = self.round;
                        self.found.push(other);
                    }
                }
            }
        }
    }

    /// Finds the rates of messages by progressive filling of the links that were collected.
    fn fill(&mut self, now: u64) {
        self.shares.clear();
        for &link in &self.found {
            let pipe = &self.pipes[link as usize];
            if !pipe.flows.is_empty() {
                let share = Share(pipe.left / pipe.weight, link);
                self.shares.push(Reverse(share));
            }
        }
        while let Some(Reverse(Share(share, link))) = self.shares.pop() {
            let pipe = &self.pipes[link as usize];
            if pipe.seen != self.round {
                // Every message of this link has its rate.
                continue;
            }
            // Where other messages took less of the link than their share, the share rises.
            let actual = pipe.left.max(0.0) / pipe.weight;
            if actual > share {
                self.shares.push(Reverse(Share(actual, link)));
                continue;
            }
            for at in 0..self.pipes[link as usize].flows.len() {
                let number = self.pipes[link as usize].flows[at];
                let flow = &mut self.flows[number as usize];
                if flow.fixed {
                    continue;
                }
                flow.fixed = true;
                let rate = share * flow.weight;
                for &other in flow.links.iter().filter(|&&other| other != link) {
                    let pipe = &mut self.pipes[other as usize];
                    pipe.left -= rate;
                    pipe.weight -= flow.weight;
                }
                if (rate - flow.rate).abs() > SAME * rate {
                    if flow.rate > 0.0 {
                        let passed = (now - flow.since) as f64 * flow.rate;
                        flow.left = (flow.left - passed).max(0.0);
                    }
                    (flow.rate, flow.since) = (rate, now);
                    flow.end = now.saturating_add((flow.left / rate).round() as u64);
                    flow.generation = flow.generation.wrapping_add(1);
                    let entry = (flow.end, number, flow.generation);
                    self.ends.push(Reverse(entry));
                }
            }
            self.pipes[link as usize].seen = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Picoseconds per byte: a byte a nanosecond.
    const PER_BYTE: f64 = 1000.0;

    type Links = [(u32, f64)];

    /// Runs messages (start, bytes, weight, links), and returns the end of each.
    fn ends(messages: &[(u64, u64, f64, &Links)]) -> Vec<u64> {
        let mut fluid = Fluid::new(8);
        let mut ends = vec![0; messages.len()];
        let mut starts: Vec<usize> = (0..messages.len()).collect();
        starts.sort_by_key(|&at| messages[at].0);
        let mut starts = starts.into_iter().peekable();
        let mut next = None;
        loop {
            let start = starts.peek().map(|&at| messages[at].0);
            let Some(now) = start.into_iter().chain(next).min() else {
                return ends;
            };
            while let Some((message, end)) = fluid.ended(now) {
                ends[message as usize] = end;
            }
            while let Some(at) = starts.next_if(|&at| messages[at].0 == now) {
                let (_, bytes, weight, links) = messages[at];
                fluid.begin(now, at as u32, bytes, weight, links.iter().copied());
            }
            next = fluid.settle(now);
        }
    }

    #[test]
    fn messages_on_one_link_share_it() {
        let link: &Links = &[(0, PER_BYTE)];
        // Both messages at once: each has half. The second message later: half from then on, the full rate for the rest.
        assert_eq!(
            ends(&[(0, 1000, 1.0, link), (0, 1000, 1.0, link)]),
            [2_000_000; 2]
        );
        assert_eq!(
            ends(&[(0, 1000, 1.0, link), (500_000, 1000, 1.0, link)]),
            [1_500_000, 2_000_000]
        );
        // The first message has a third of the link, the second two thirds until it has left.
        assert_eq!(
            ends(&[(0, 1000, 1.0, link), (0, 1000, 2.0, link)]),
            [2_000_000, 1_500_000]
        );
    }

    #[test]
    fn what_a_message_cannot_take_goes_to_the_others() {
        // Link 0 has three messages; one of them also goes over link 1, a sixth as fast, and leaves the other two 5/12 each.
        let long: &Links = &[(0, PER_BYTE), (1, 6.0 * PER_BYTE)];
        let short: &Links = &[(0, PER_BYTE)];
        let times = ends(&[
            (0, 1000, 1.0, long),
            (0, 1000, 1.0, short),
            (0, 1000, 1.0, short),
        ]);
        assert_eq!(times, [6_000_000, 2_400_000, 2_400_000]);
        // A chain of links, each with a message of its own beside one over all: the long one has half of each.
        let all: &Links = &[(0, PER_BYTE), (1, PER_BYTE), (2, PER_BYTE)];
        let [a, b, c]: [&Links; 3] = [&[(0, PER_BYTE)], &[(1, PER_BYTE)], &[(2, PER_BYTE)]];
        let times = ends(&[
            (0, 1000, 1.0, all),
            (0, 1000, 1.0, a),
            (0, 2000, 1.0, b),
            (0, 1000, 1.0, c),
        ]);
        assert_eq!(times, [2_000_000, 2_000_000, 3_000_000, 2_000_000]);
    }

    proptest! {
        /// All messages share link 0, and their other links are twice as fast. So link 0 is full while any message is left, and the last
        /// message ends, within 100 ps, when the bytes of all messages have passed link 0 one after the other.
        #[test]
        fn a_link_that_all_use_is_always_full(
            sizes in proptest::collection::vec((1u64..5000, 0u64..1000, 1u32..4), 1..40),
        ) {
            let paths: Vec<Vec<(u32, f64)>> = sizes
                .iter()
                .map(|&(.., other)| vec![(0, PER_BYTE), (other, PER_BYTE / 2.0)])
                .collect();
            let messages: Vec<_> = (sizes.iter().zip(&paths))
                .map(|(&(bytes, start, _), path)| (start, bytes, 1.0, path.as_slice()))
                .collect();
            let ends = ends(&messages);
            let (mut order, mut busy): (Vec<_>, u64) = (messages.clone(), 0);
            order.sort_by_key(|message| message.0);
            for (start, bytes, ..) in order {
                busy = busy.max(start) + bytes * PER_BYTE as u64;
            }
            let last = ends.iter().copied().max().unwrap_or(0);
            prop_assert!(last.abs_diff(busy) <= 100, "{last} {busy}");
        }
    }
}
