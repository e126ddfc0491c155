//! When a message arrives.
//!
//! With contention, a message reserves every link on its way when it enters the network: on each it waits until the messages that
//! entered before it have passed, then occupies it for its bytes over the link's bandwidth, and its head goes on at once (virtual
//! cut-through). Links thus serve messages in the order in which these enter the network. That takes no event per link, and gives
//! each link's throughput exactly; it does not share a link among messages that are on it at the same time, so that of several that
//! start together some are early and the last is as late as under fair sharing.

use super::Engine;
use crate::cluster::Cluster;
use crate::network::{Channel, Model};
use crate::result::LinkLoad;

/// State of the wires.
#[derive(Debug)]
pub(super) struct Wires {
    nodes: u32,
    /// Each link, or each rank's own port without contention.
    links: Vec<Link>,
    route: Vec<u32>,
}

/// A link, or a port.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// When it is free again.
    free: u64,
    bytes: u64,
    busy: u64,
}

impl Wires {
    pub fn new(cluster: &Cluster, world: u32, node_of: &[u32]) -> Wires {
        let used = node_of.iter().max().map_or(0, |&node| node + 1);
        let nodes = match cluster.topology {
            crate::topology::Topology::Crossbar => used,
            _ => cluster.topology.capacity() as u32,
        };
        let links = match cluster.contention {
            true => cluster.topology.links(nodes) as usize,
            false => world as usize,
        };
        Wires {
            nodes,
            links: vec![Link::default(); links],
            route: Vec::new(),
        }
    }

    fn occupy(&mut self, link: u32, head: u64, bytes: u64, time: u64) -> u64 {
        let link = &mut self.links[link as usize];
        let start = link.free.max(head);
        link.free = start + time;
        link.bytes += bytes;
        link.busy += time;
        start
    }

    /// Has a node's own links at hand.
    pub fn prepare(&self, node: u32) {
        if let Some(link) = self.links.get(node as usize) {
            super::agenda::prefetch(link);
        }
    }

    /// The links that carried most.
    pub fn loads(&self, cluster: &Cluster, most: usize) -> Vec<LinkLoad> {
        let mut order: Vec<usize> = (0..self.links.len())
            .filter(|&link| self.links[link].bytes > 0)
            .collect();
        order.sort_by_key(|&link| (u64::MAX - self.links[link].busy, link));
        order
            .into_iter()
            .take(most)
            .map(|link| LinkLoad {
                link: cluster.topology.link_name(link as u32, self.nodes),
                bytes: self.links[link].bytes,
                busy: self.links[link].busy,
            })
            .collect()
    }
}

impl Engine<'_> {
    /// A message that enters the network at `time`: when its last byte has left, and when it has arrived. Without contention,
    /// messages that are sent `at_once` follow one another at their sender; those that had to ask do not wait there.
    pub(super) fn transfer(
        &mut self,
        (from, to): (u32, u32),
        bytes: u64,
        time: u64,
        channel: &Channel,
        at_once: bool,
    ) -> (u64, u64) {
        let wire = channel.wire(bytes);
        let extra = match channel.model {
            Model::LogGp => channel.latency,
            Model::Post => channel.latency + channel.send_overhead.at(bytes),
        };
        let (a, b) = (self.node_of[from as usize], self.node_of[to as usize]);
        if a == b {
            return (time + wire, time + wire + extra);
        }
        let occupied = wire.max(channel.gap);
        let cluster = self.cluster;
        let wires = &mut self.wires;
        let needs_route = cluster.contention || cluster.hop_latency > 0;
        wires.route.clear();
        if needs_route {
            cluster.topology.route(a, b, wires.nodes, &mut wires.route);
        }
        let hops = wires.route.len() as u64 * cluster.hop_latency;
        if !cluster.contention && !at_once {
            return (time + wire, time + wire + extra + hops);
        }
        if !cluster.contention {
            let port = &mut wires.links[from as usize];
            let start = port.free.max(time);
            // A post occupies its sender until it has arrived.
            let busy = match channel.model {
                Model::LogGp => occupied,
                Model::Post => wire + extra,
            };
            port.free = start + busy;
            return (start + wire, start + wire + extra + hops);
        }
        let route = std::mem::take(&mut wires.route);
        let slow = cluster.link_per_byte.unwrap_or(channel.per_byte);
        let inner = (bytes as f64 * slow).round() as u64;
        let start = wires.occupy(a, time, bytes, occupied);
        let mut head = start;
        for &link in &route {
            head = wires.occupy(link, head, bytes, inner) + cluster.hop_latency;
        }
        head = wires.occupy(wires.nodes + b, head, bytes, wire);
        wires.route = route;
        let last = if wires.route.is_empty() {
            wire
        } else {
            wire.max(inner)
        };
        (start + wire, head + last + extra)
    }
}
