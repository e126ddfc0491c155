//! Times at which messages arrive.
//!
//! With contention, a message reserves time on every link of its path when it enters the network. On each link it takes its bytes over the
//! link's bandwidth of the time that earlier messages have left free. A message that comes to a link earlier may pass before messages that
//! reserved the link earlier. It continues to the next link as it passes (virtual cut-through). So messages reserve links in the order in
//! which they enter the network, and later messages may fill free time before earlier ones. A link is idle while a message waits for it
//! only where the link has forgotten a free interval (`GAPS`). That takes no event per link. But messages do not share a link equally: of
//! several that start together, some are early, and the last is as late as under fair sharing.
//!
//! With fair sharing ([`fluid`](super::fluid)) a message's arrival is not known when it enters the network. Its number is kept until its
//! last byte has left; then it arrives after the latency of its path.

use super::fluid::Fluid;
use super::frames::{Coming, Part};
use super::{ENTERS_NETWORK, Interpreter, LINK_UPDATE};
use crate::cluster::{Cluster, Sharing};
use crate::network::{Channel, Model, picoseconds};
use crate::result::LinkLoad;

/// State of all links.
#[derive(Debug)]
pub(super) struct Links {
    nodes: u32,
    /// Each link of the topology; without contention each rank's own port.
    by_number: Vec<Link>,
    route: Vec<u32>,
    /// By node: time from which its memory is free for further messages within the node; empty where they do not wait for each other.
    memories: Vec<u64>,
    /// State of links that messages share with fair rates; `None` where messages or frames reserve the links.
    fluid: Option<Fluid>,
    /// Frames on their way to each node, by node; empty unless messages share the link to a node frame by frame.
    pub(super) arriving: Vec<Coming>,
}

/// A link of the topology, or a rank's own port where messages do not share links.
#[derive(Clone, Debug, Default)]
struct Link {
    /// Time from which nothing is reserved.
    free: u64,
    bytes: u64,
    busy: u64,
    /// Free intervals before `free`, which may still be reserved, ascending.
    gaps: Vec<(u64, u64)>,
}

/// Most free intervals that a link remembers; the earliest are forgotten.
const GAPS: usize = 32;

impl Link {
    /// Counts what passes. A sum that does not fit into 64 bits becomes the greatest number that fits.
    fn count(&mut self, bytes: u64, time: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.busy = self.busy.saturating_add(time);
    }

    /// Reserves `time` from `head` on, with pauses. Returns when the message has passed, and before it that end minus `time`: when the
    /// message would begin to pass if it did not pause.
    fn occupy(&mut self, now: u64, head: u64, time: u64) -> (u64, u64) {
        let (_, end) = self.pause(now, head, time);
        (end - time, end)
    }

    /// Reserves `time` from `head` on, with pauses. Returns when the message begins to pass, and when it has passed.
    fn pause(&mut self, now: u64, head: u64, time: u64) -> (u64, u64) {
        let mut left = time;
        let mut begin = None;
        if !self.gaps.is_empty() {
            let over = self.gaps.partition_point(|&(_, end)| end <= now);
            self.gaps
                .drain(..over.max(self.gaps.len().saturating_sub(GAPS)));
            let mut at = self.gaps.partition_point(|&(_, end)| end <= head);
            while let Some(&(from, to)) = self.gaps.get(at) {
                let start = from.max(head);
                if time == 0 {
                    return (start, start);
                }
                let begin = *begin.get_or_insert(start);
                let end = start + left.min(to - start);
                left -= end - start;
                match (from < start, end < to) {
                    (false, false) => drop(self.gaps.remove(at)),
                    (true, false) => {
                        self.gaps[at].1 = start;
                        at += 1;
                    }
                    (false, true) => self.gaps[at].0 = end,
                    (true, true) => {
                        self.gaps[at].1 = start;
                        self.gaps.insert(at + 1, (end, to));
                    }
                }
                if left == 0 {
                    return (begin, end);
                }
            }
        }
        let start = self.free.max(head);
        if start > self.free && start > now {
            self.gaps.push((self.free, start));
        }
        self.free = start.saturating_add(left);
        (begin.unwrap_or(start), self.free)
    }
}

impl Links {
    pub fn new(cluster: &Cluster, world: u32, node_of: &[u32]) -> Links {
        let used = node_of.iter().max().map_or(0, |&node| node + 1);
        let nodes = match cluster.topology {
            crate::topology::Topology::Crossbar => used,
            _ => cluster.topology.capacity() as u32,
        };
        let links = match cluster.contention {
            true => cluster.topology.links(nodes) as usize,
            false => world as usize,
        };
        let fluid = matches!(cluster.sharing, Sharing::Fair | Sharing::RoundTrip);
        let shared = cluster.contention && fluid;
        let frames = cluster.contention && cluster.sharing == Sharing::Frames;
        Links {
            nodes,
            by_number: vec![Link::default(); links],
            route: Vec::new(),
            memories: vec![
                0;
                if cluster.memory_contention {
                    used as usize
                } else {
                    0
                }
            ],
            fluid: shared.then(|| Fluid::new(links)),
            arriving: vec![Coming::default(); if frames { nodes as usize } else { 0 }],
        }
    }

    fn pause(&mut self, now: u64, link: u32, head: u64, bytes: u64, time: u64) -> (u64, u64) {
        let link = &mut self.by_number[link as usize];
        link.count(bytes, time);
        link.pause(now, head, time)
    }

    fn occupy(&mut self, now: u64, link: u32, head: u64, bytes: u64, time: u64) -> (u64, u64) {
        let link = &mut self.by_number[link as usize];
        link.count(bytes, time);
        link.occupy(now, head, time)
    }

    /// Lets a frame pass the link to a node, to which it has come at `head`, behind earlier frames. Returns when its last bit has passed.
    pub(super) fn pass(&mut self, node: u32, head: u64, time: u64) -> u64 {
        let link = &mut self.by_number[(self.nodes + node) as usize];
        link.count(0, time);
        link.free = link.free.max(head).saturating_add(time);
        link.free
    }

    /// Returns the frames that are received at a node, with the time and the message of each, if frames share links. These are the frames
    /// that have passed the link to the node last, and those that come to it before `until`, as far as is known.
    pub(super) fn received(&self, node: u32, until: u64) -> impl Iterator<Item = (u64, Part)> + '_ {
        let free = self.by_number.get((self.nodes + node) as usize);
        let free = free.map_or(0, |link| link.free);
        let coming = self.arriving.get(node as usize).into_iter();
        coming.flat_map(move |coming| coming.received(free, until))
    }

    /// Lets a frame leave a node behind others. Returns when the frame begins to leave.
    pub(super) fn leave(&mut self, now: u64, node: u32, wire: u64) -> u64 {
        self.by_number[node as usize].pause(now, now, wire).0
    }

    /// Counts bytes on the link to a node.
    pub(super) fn count(&mut self, node: u32, bytes: u64) {
        self.by_number[(self.nodes + node) as usize].count(bytes, 0);
    }

    /// Returns the time from which a rank's own port is free, where messages do not share links.
    pub fn port(&self, rank: u32) -> u64 {
        self.by_number
            .get(rank as usize)
            .map_or(0, |link| link.free)
    }

    /// Keeps a rank's own port busy until a time.
    pub fn keep_port(&mut self, rank: u32, until: u64) {
        if let Some(link) = self.by_number.get_mut(rank as usize) {
            link.free = link.free.max(until);
        }
    }

    /// Prefetches a node's link into the network.
    pub fn prefetch(&self, node: u32) {
        if let Some(link) = self.by_number.get(node as usize) {
            super::event_queue::prefetch(link);
        }
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the busiest links that carried bytes, at most `most`.
    pub fn loads(&self, cluster: &Cluster, most: usize) -> Vec<LinkLoad> {
        let mut order: Vec<usize> = (0..self.by_number.len())
            .filter(|&link| self.by_number[link].bytes > 0)
            .collect();
        order.sort_by_key(|&link| (u64::MAX - self.by_number[link].busy, link));
        order
            .into_iter()
            .take(most)
            .map(|link| LinkLoad {
                link: cluster.topology.link_name(link as u32, self.nodes),
                bytes: self.by_number[link].bytes,
                busy: self.by_number[link].busy,
            })
            .collect()
    }
}

impl Interpreter<'_> {
    /// Sends a message into the network at `time`. Returns when its last byte has left and when it has arrived. Without contention,
    /// messages that are sent `at_once` follow one another at their sender; those that follow a request do not wait there.
    pub(super) fn transfer(
        &mut self,
        (from, to): (u32, u32),
        bytes: u64,
        time: u64,
        channel: &Channel,
        at_once: bool,
    ) -> (u64, u64) {
        let wire = channel.wire(bytes);
        let extra = channel.beyond_wire(bytes);
        let (a, b) = (self.node_of[from as usize], self.node_of[to as usize]);
        if a == b {
            let begin = match self.links.memories.get_mut(a as usize) {
                None => time,
                Some(free) => {
                    let begin = time.max(*free);
                    *free = begin.saturating_add(wire);
                    begin
                }
            };
            self.exceeds_limit(begin);
            return (begin + wire, begin + wire + extra);
        }
        let occupied = wire.max(channel.gap);
        let cluster = self.cluster;
        let links = &mut self.links;
        let needs_route = cluster.contention || cluster.hop_latency > 0;
        links.route.clear();
        if needs_route {
            cluster.topology.route(a, b, links.nodes, &mut links.route);
        }
        let hops = cluster.hops(links.route.len());
        if !cluster.contention && !at_once {
            return (time + wire, time + wire + extra + hops);
        }
        if !cluster.contention {
            let port = &mut links.by_number[from as usize];
            let start = port.free.max(time);
            // A post occupies its sender until it has arrived.
            let busy = match channel.model {
                Model::LogGp => occupied,
                Model::Post => wire + extra,
            };
            let free = start + busy;
            port.free = free;
            self.exceeds_limit(free);
            return (start + wire, start + wire + extra + hops);
        }
        let (_, left, head, passed) = self.reserve_route((a, b), bytes, time, channel);
        let links = &mut self.links;
        let (_, end) = links.occupy(self.now, links.nodes + b, head, bytes, wire);
        let passed = passed.max(end);
        self.exceeds_limit(passed);
        (left, passed.saturating_add(extra))
    }

    /// Reserves the link of the sender and those within the network, but not the receiver's, behind others. Returns four times: when the
    /// first byte leaves its node, when the last byte has left, when the first byte comes to the receiver's link, if it does not pause,
    /// and when the last byte has passed the links before.
    pub(super) fn reserve_route(
        &mut self,
        (a, b): (u32, u32),
        bytes: u64,
        time: u64,
        channel: &Channel,
    ) -> (u64, u64, u64, u64) {
        let cluster = self.cluster;
        let links = &mut self.links;
        let wire = channel.wire(bytes);
        let occupied = wire.max(channel.gap);
        let mut route = std::mem::take(&mut links.route);
        route.clear();
        cluster.topology.route(a, b, links.nodes, &mut route);
        let slow = cluster.link_per_byte.unwrap_or(channel.per_byte);
        let inner = picoseconds(channel.bytes(bytes) as f64 * slow);
        let (begin, end) = links.pause(self.now, a, time, bytes, occupied);
        let (mut head, left) = (end - occupied, end);
        // The gap comes after the last byte.
        let left = left - (occupied - wire);
        let mut passed = left;
        for &link in &route {
            let (start, end) = links.occupy(self.now, link, head, bytes, inner);
            head = start + cluster.hop_latency;
            passed = passed.max(end).saturating_add(cluster.hop_latency);
        }
        links.route = route;
        self.exceeds_limit(passed.max(head));
        (begin, left, head, passed)
    }

    /// Returns whether a message's arrival is still unknown when it enters the network.
    pub(super) fn arrives_unknown(
        &self,
        (from, to): (u32, u32),
        bytes: u64,
        channel: &Channel,
    ) -> bool {
        (self.links.fluid.is_some() || !self.links.arriving.is_empty())
            && self.node_of[from as usize] != self.node_of[to as usize]
            && channel.bytes(bytes) > 0
            && (channel.per_byte > 0.0 || self.cluster.link_per_byte.is_some_and(|slow| slow > 0.0))
    }

    /// Schedules, at `time`, the entry into the network of a message whose arrival is unknown. Under fair sharing, messages sent `at_once`
    /// enter at least `gap` after the last such message of their node.
    pub(super) fn depart(&mut self, number: u32, mut time: u64, gap: u64, at_once: bool) {
        if !self.links.arriving.is_empty() {
            self.send_frames(number, time);
            return;
        }
        if gap > 0 && at_once {
            let node = self.node_of[self.messages.get(number).from as usize];
            let link = &mut self.links.by_number[node as usize];
            time = time.max(link.free);
            link.free = time + gap;
        }
        self.schedule(time, ENTERS_NETWORK | number);
    }

    /// Lets a message enter the network, whose links it shares from now on.
    pub(super) fn enter_network(&mut self, number: u32, time: u64) {
        let message = self.messages.get(number);
        let (from, to, bytes) = (message.from, message.to, message.bytes);
        let channel = self.channel(from, to, message.op);
        let (a, b) = (self.node_of[from as usize], self.node_of[to as usize]);
        let cluster = self.cluster;
        let links = &mut self.links;
        let Some(fluid) = &mut links.fluid else {
            return;
        };
        links.route.clear();
        cluster.topology.route(a, b, links.nodes, &mut links.route);
        let bytes = channel.bytes(bytes);
        let slow = cluster.link_per_byte.unwrap_or(channel.per_byte);
        let own = [(a, channel.per_byte), (links.nodes + b, channel.per_byte)];
        let way = own
            .into_iter()
            .chain(links.route.iter().map(|&link| (link, slow)));
        for (link, per_byte) in way.clone() {
            let link = &mut links.by_number[link as usize];
            link.count(bytes, picoseconds(bytes as f64 * per_byte));
        }
        let latency = channel.latency + cluster.hops(links.route.len());
        let weight = match cluster.sharing {
            Sharing::RoundTrip => 1.0 / latency.max(1) as f64,
            _ => 1.0,
        };
        fluid.begin(time, number, bytes, weight, way);
        self.schedule_update(time);
    }

    /// Lets messages that have left arrive, and shares the freed bandwidth among the others.
    pub(super) fn update_shares(&mut self, now: u64) {
        let Some(fluid) = &mut self.links.fluid else {
            return;
        };
        if fluid.next.is_some_and(|next| next <= now) {
            fluid.next = None;
        }
        while let Some((number, left)) = self.links.fluid.as_mut().and_then(|f| f.ended(now)) {
            let message = self.messages.get(number);
            let (from, to, bytes) = (message.from, message.to, message.bytes);
            let channel = self.channel(from, to, message.op);
            let (a, b) = (self.node_of[from as usize], self.node_of[to as usize]);
            let links = &mut self.links;
            let cluster = self.cluster;
            links.route.clear();
            if cluster.hop_latency > 0 {
                cluster.topology.route(a, b, links.nodes, &mut links.route);
            }
            let hops = cluster.hops(links.route.len());
            self.set_arrival(number, left, left + channel.beyond_wire(bytes) + hops);
        }
        if let Some(next) = self.links.fluid.as_mut().and_then(|f| f.settle(now)) {
            self.schedule_update(next);
        }
    }

    /// Schedules [`Interpreter::update_shares`] at a time, after all other events of that time, unless an update is scheduled by then.
    fn schedule_update(&mut self, time: u64) {
        if let Some(fluid) = &mut self.links.fluid
            && fluid.next.is_none_or(|next| time < next)
        {
            fluid.next = Some(time);
            self.queue.add(time, u32::MAX, LINK_UPDATE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_take_what_earlier_ones_leave() {
        let mut link = Link::default();
        assert_eq!(link.occupy(0, 100, 50), (100, 150));
        // Before it, around it, and after it.
        assert_eq!(link.occupy(0, 0, 30), (0, 30));
        assert_eq!(link.occupy(0, 60, 60), (110, 170));
        assert_eq!(link.occupy(0, 0, 10), (30, 40));
        assert_eq!(link.occupy(0, 160, 5), (170, 175));
        assert_eq!(link.gaps, [(40, 60)]);
        // The message waits no longer than necessary, and no time of the link is lost.
        assert_eq!(link.occupy(0, 45, 5), (45, 50));
        assert_eq!(link.gaps, [(40, 45), (50, 60)]);
        assert_eq!(link.occupy(55, 55, 0), (55, 55));
        assert_eq!(link.occupy(60, 200, 1), (200, 201));
        assert_eq!(link.gaps, [(175, 200)]);
        assert_eq!((link.free, link.busy), (201, 0));
    }

    #[test]
    fn throughput_is_exact() {
        let mut link = Link::default();
        let mut sum = 0;
        for message in 0..1000u64 {
            let (head, time) = (message * 7 % 31 + message, message % 5);
            link.occupy(message, head, time);
            sum += time;
        }
        let idle: u64 = link.gaps.iter().map(|(from, to)| to - from).sum();
        // A forgotten gap had passed, or was one more than a link remembers.
        assert!(link.free >= sum + idle, "{} {sum} {idle}", link.free);
        assert!(link.free <= 2100, "{}", link.free);
    }
}
