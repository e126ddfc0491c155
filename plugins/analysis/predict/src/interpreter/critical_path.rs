//! The critical path, found from the cause that ended each wait.

use std::collections::BTreeMap;

use nodescope_trace::Call;

use super::{Cause, Interpreter, PERMISSION_ARRIVES};
use crate::code::{NONE, Operation, describe};
use crate::network::{Channel, Model};
use crate::result::{Composition, CriticalPath, WaitKind};

/// A moment of a rank, from which the critical path goes back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub rank: u32,
    pub time: u64,
    /// Computation of the rank up to this moment, uninterpreted calls included, picoseconds.
    pub computed: u64,
    /// Last wait of the rank before this moment, as an index of the parts; `NONE` if there was none.
    pub path: u32,
}

/// How a message came from its origin to the end of the wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The data was sent at once.
    Eager,
    /// Only the request to send has come.
    Request,
    /// The sender asked, the receiver granted, the data was sent.
    Asked,
    /// The receiver granted, the data was sent.
    Granted,
    /// The permission had come, and the data was sent.
    Data,
    /// A request to another rank's memory was sent, and its answer.
    Access,
    /// No message.
    Nothing,
}

/// A wait that ended, and its cause.
#[derive(Clone, Copy, Debug)]
struct Part {
    end: u64,
    computed: u64,
    op: u32,
    origin: Origin,
    bytes: u64,
    /// Rank at the other end of the message.
    partner: u32,
    /// Operation of the partner, or of the rank itself where the partner has none.
    partner_op: u32,
    way: Way,
    /// True if the sender waited.
    sends: bool,
    /// True if the rank was busy with its own message.
    own: bool,
}

/// Every wait that ended, if they are kept.
#[derive(Debug)]
pub(super) struct Path {
    keep: bool,
    parts: Vec<Part>,
}

impl Path {
    pub fn new(keep: bool) -> Path {
        Path {
            keep,
            parts: Vec::new(),
        }
    }

    pub fn add(&mut self, end: u64, computed: u64, op: u32, cause: &Cause) -> u32 {
        if !self.keep || self.parts.len() >= NONE as usize {
            return NONE;
        }
        self.parts.push(Part {
            end,
            computed,
            op,
            origin: cause.origin,
            bytes: cause.bytes,
            partner: cause.rank,
            partner_op: cause.op,
            way: cause.way,
            sends: cause.kind == WaitKind::LateReceiver,
            own: false,
        });
        (self.parts.len() - 1) as u32
    }
}

impl Interpreter<'_> {
    /// Notes that a rank is busy with a message that it sends, from `origin` to `end`.
    pub(super) fn busy_sending(&mut self, context: u32, end: u64, origin: Origin, cause: Cause) {
        let account = self.accounts[origin.rank as usize];
        let computed = account.computation + account.opaque;
        let op = self.contexts[context as usize].op;
        let part = self.path.add(end, computed, op, &Cause { origin, ..cause });
        if let Some(part) = self.path.parts.get_mut(part as usize) {
            part.own = true;
        }
        if part != NONE {
            self.contexts[context as usize].path = part;
        }
    }
}

/// Costs of a message on the path, picoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    overhead: u64,
    latency: u64,
    /// Number of the latencies.
    latencies: u64,
    wire: u64,
    /// Number of ways of data through the whole network.
    data: u64,
}

/// Most ranks, and most call sites, of the critical path that are reported.
const MAX_REPORTED: usize = 10;

impl Interpreter<'_> {
    /// Returns the critical path, followed back from the rank that ends last; `None` if the waits were not kept.
    pub(super) fn critical_path(&self) -> Option<CriticalPath> {
        if !self.path.keep {
            return None;
        }
        let main = &self.contexts[..self.world as usize];
        let last = (main.iter().zip(0..)).max_by_key(|(c, rank)| (c.clock, u32::MAX - rank));
        let Some((_, last)) = last else {
            return Some(CriticalPath::default());
        };
        let mut at = self.origin(last);
        let mut path = CriticalPath::default();
        let mut ranks: BTreeMap<u32, u64> = BTreeMap::new();
        let mut calls: BTreeMap<u32, u64> = BTreeMap::new();
        let mut composition = Composition::default();
        let mut computed_by: BTreeMap<u32, u64> = BTreeMap::new();
        loop {
            let part = self.path.parts.get(at.path as usize);
            let (from, computed) = part.map_or((0, 0), |part| (part.end, part.computed));
            let span = at.time.saturating_sub(from);
            let computation = at.computed.saturating_sub(computed).min(span);
            path.computation += computation;
            path.communication += span - computation;
            composition.overhead += span - computation;
            *computed_by.entry(at.rank).or_default() += computation;
            *ranks.entry(at.rank).or_default() += span;
            let Some(part) = part else {
                break;
            };
            let start = part.origin.time.min(part.end);
            self.compose(part, at.rank, part.end - start, &mut composition);
            if part.own {
                path.communication += part.end - start;
                *ranks.entry(at.rank).or_default() += part.end - start;
            } else {
                path.transfer += part.end - start;
                path.messages += 1;
                let site = self.code.site_of.get(part.op as usize);
                *calls.entry(site.copied().unwrap_or(NONE)).or_default() += part.end - start;
            }
            at = Origin {
                time: start,
                ..part.origin
            };
        }
        let mut ranks: Vec<_> = ranks.into_iter().collect();
        ranks.sort_by_key(|&(rank, time)| (u64::MAX - time, rank));
        ranks.truncate(MAX_REPORTED);
        let mut calls: Vec<_> = calls.into_iter().collect();
        calls.sort_by_key(|&(site, time)| (u64::MAX - time, site));
        calls.truncate(MAX_REPORTED);
        path.ranks = ranks;
        computed_by.retain(|_, time| *time > 0);
        composition.computation = computed_by.into_iter().collect();
        path.composition = composition;
        path.calls = calls
            .into_iter()
            .map(|(site, time)| (self.call_at(site), time))
            .collect();
        Some(path)
    }

    /// Adds what the time of a message on the path is made of. What is left beyond the message's own costs is queueing.
    fn compose(&self, part: &Part, rank: u32, time: u64, sum: &mut Composition) {
        let (Some(&own), Some(&other)) = (
            self.node_of.get(rank as usize),
            self.node_of.get(part.partner as usize),
        ) else {
            sum.queueing += time;
            return;
        };
        let cluster = self.cluster;
        let inside = own == other;
        let sender = if part.sends { part.op } else { part.partner_op };
        let channel = self.channel(rank, part.partner, sender);
        let parts = self.parts_of(part, sender, channel);
        let mut left = time;
        let mut take = |wanted: u64| {
            let taken = wanted.min(left);
            left -= taken;
            taken
        };
        let overhead = take(parts.overhead);
        let latency = take(parts.latency);
        let bandwidth = take(parts.wire);
        let hops = match inside || parts.data == 0 || cluster.hop_latency == 0 {
            true => 0,
            false => {
                let (mut route, nodes) = (Vec::new(), self.links.nodes());
                let (from, to) = if part.sends {
                    (own, other)
                } else {
                    (other, own)
                };
                cluster.topology.route(from, to, nodes, &mut route);
                take(cluster.hops(route.len()).saturating_mul(parts.data))
            }
        };
        sum.overhead += overhead;
        sum.queueing += left;
        if inside && cluster.memory != cluster.network {
            sum.within_nodes += latency + bandwidth;
            return;
        }
        sum.latency += latency;
        sum.latencies += parts.latencies;
        sum.hops += hops;
        sum.bandwidth += bandwidth;
    }

    /// Returns what a message of the path costs where nothing else is on the way. `sender` is the operation that sent its data.
    fn parts_of(&self, part: &Part, sender: u32, channel: &Channel) -> Costs {
        let bytes = part.bytes;
        let before = || {
            let pack = self.packing(sender, bytes, &channel.pack_overhead);
            match channel.model {
                Model::LogGp => channel.send_overhead.at(bytes) + pack,
                Model::Post => pack,
            }
        };
        // A sender of the LogGP model does not wait until its data has arrived.
        let arrives = !(part.sends && channel.model == Model::LogGp && part.way != Way::Eager);
        let (services, data, overhead) = match part.way {
            Way::Nothing => return Costs::default(),
            Way::Eager => (0, 1, before()),
            Way::Request => (1, 0, before()),
            Way::Asked => (2, 1, before()),
            Way::Granted => (1, 1, 0),
            Way::Data => (0, 1, 0),
            Way::Access => (0, 2, 0),
        };
        let mut costs = Costs {
            overhead,
            latency: services * channel.service(),
            latencies: services,
            wire: 0,
            data: 0,
        };
        if data > 0 {
            costs.wire = channel.wire(bytes);
        }
        if part.way == Way::Access
            && let Some(Operation::OneSided { out, .. }) =
                self.code.operations.get(part.partner_op as usize)
        {
            costs.wire += channel.wire(*out);
            if channel.model == Model::LogGp {
                costs.overhead += channel.send_overhead.at(*out);
            }
        }
        if arrives {
            costs.latency += data * channel.latency;
            costs.latencies += data;
            costs.overhead += data * (channel.beyond_wire(bytes) - channel.latency);
            costs.data = data;
        }
        costs
    }

    /// Notes that a message went on only when a rank was in MPI. `what` is the event that waited: a request or a permission.
    pub(super) fn note_late(&mut self, what: u32, context: u32) {
        if !self.path.keep {
            return;
        }
        let way = match what & PERMISSION_ARRIVES {
            0 => Way::Granted,
            _ => Way::Data,
        };
        let number = what & !(PERMISSION_ARRIVES | super::CONTROL_ARRIVES);
        self.late.insert(number, (self.origin(context), way));
    }

    /// Returns the call of a function and call site, by their index in the code.
    pub(super) fn call_at(&self, site: u32) -> Call {
        match self.code.op_at(site) {
            Some(op) => describe(&self.code.program.origin.names, op),
            None => Call::without_site("unknown"),
        }
    }
}
