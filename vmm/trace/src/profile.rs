//! Sums over a trace's MPI calls.

use std::collections::{BTreeMap, HashMap};

use nodescope_hypercall::{Class, Function, MpiRecord, Peer};

use crate::event::{Body, Event, MpiCall};
use crate::site::Site;

/// Sums of one rank in one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionProfile {
    /// Number of calls; each poll of a poll run counts.
    pub calls: u64,
    /// Number of bytes that calls passed to MPI.
    pub send_bytes: u64,
    /// Bytes received, as far as known: for receives and file reads, the bytes that arrived; for collectives and RMA operations, the length
    /// of the receive buffer.
    pub receive_bytes: u64,
    /// Time inside calls of the function, picoseconds.
    pub time: u64,
    /// Duration of the longest call, in picoseconds. A poll run counts with the mean of its polls.
    pub max_time: u64,
    /// Number of instructions inside calls of the function.
    pub instructions: u64,
}

impl FunctionProfile {
    /// Returns the mean time inside a call, picoseconds; 0 without calls.
    pub fn mean_time(&self) -> f64 {
        if self.calls == 0 {
            0.0
        } else {
            self.time as f64 / self.calls as f64
        }
    }

    /// Adds one call or poll run.
    pub fn add_call(&mut self, call: &MpiCall) {
        let record = &call.record;
        self.merge(&FunctionProfile {
            calls: record.calls,
            send_bytes: record.send_bytes,
            receive_bytes: received(record),
            time: call.time_inside,
            max_time: call.time_inside / record.calls.max(1),
            instructions: call.instructions_inside,
        });
    }

    /// Adds another profile.
    pub fn merge(&mut self, other: &FunctionProfile) {
        // The sums saturate, because the numbers come from the guest and may have any value.
        self.calls = self.calls.saturating_add(other.calls);
        self.send_bytes = self.send_bytes.saturating_add(other.send_bytes);
        self.receive_bytes = self.receive_bytes.saturating_add(other.receive_bytes);
        self.time = self.time.saturating_add(other.time);
        self.max_time = self.max_time.max(other.max_time);
        self.instructions = self.instructions.saturating_add(other.instructions);
    }
}

/// Returns the bytes that a call is known to have received. A probe receives no message. A call that only starts a receive has not received
/// the message yet: the bytes count at the call that completes the receive.
fn received(record: &MpiRecord) -> u64 {
    match record.function {
        Function::Probe | Function::Iprobe | Function::Mprobe | Function::Improbe => 0,
        function => match function.class() {
            Class::Receive
            | Class::SendReceive
            | Class::Completion
            | Class::FileTransfer
            | Class::EndFileTransfer => record
                .completions
                .iter()
                .fold(0, |sum: u64, done| sum.saturating_add(done.bytes)),
            Class::Collective
            | Class::StartCollective
            | Class::Neighbor
            | Class::StartNeighbor
            | Class::Rma
            | Class::StartRma => record.receive_bytes,
            _ => 0,
        },
    }
}

/// Number of functions with call sites that a profile tells apart. A damaged trace may have any number.
const MOST_SITES: usize = 10_000;

/// Sums of one function at one call site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteProfile {
    /// Sums of all ranks.
    pub sums: FunctionProfile,
    /// Time inside the calls, picoseconds, by rank.
    pub times: BTreeMap<u32, u64>,
}

/// Calls, bytes and time of every rank in every function, and of every call site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    entries: BTreeMap<(u32, Function), FunctionProfile>,
    sites: BTreeMap<(Site, Function), SiteProfile>,
}

impl Profile {
    /// Adds an event. Ignores all events but MPI calls of a known rank.
    pub fn add(&mut self, event: &Event) {
        if let Body::Mpi(call) = &event.body {
            self.add_call(call);
        }
    }

    /// Adds a call.
    pub fn add_call(&mut self, call: &MpiCall) {
        let record = &call.record;
        let Peer::Rank(rank) = record.rank else {
            return;
        };
        let entry = self.entries.entry((rank, record.function)).or_default();
        entry.add_call(call);
        let site = self.counted_site(Site::of(record), record.function);
        let site = self.sites.entry((site, record.function)).or_default();
        site.sums.add_call(call);
        let time = site.times.entry(rank).or_default();
        *time = time.saturating_add(call.time_inside);
    }

    /// Returns the call site at which calls of `function` from `site` count: the unknown site for those that are too many to be told apart.
    pub fn counted_site(&self, site: Site, function: Function) -> Site {
        match self.sites.len() < MOST_SITES || self.sites.contains_key(&(site, function)) {
            true => site,
            false => Site::default(),
        }
    }

    /// Returns the sums of every function at every call site.
    pub fn sites(&self) -> impl Iterator<Item = (Site, Function, &SiteProfile)> {
        let sites = self.sites.iter();
        sites.map(|(&(site, function), profile)| (site, function, profile))
    }

    /// Returns the sums of `rank` in `function`; zeros if the rank made no such call.
    pub fn get(&self, rank: u32, function: Function) -> FunctionProfile {
        self.entries
            .get(&(rank, function))
            .copied()
            .unwrap_or_default()
    }

    /// Returns every entry, by rank and then function.
    pub fn entries(&self) -> impl Iterator<Item = (u32, Function, &FunctionProfile)> {
        self.entries
            .iter()
            .map(|(&(rank, function), profile)| (rank, function, profile))
    }

    /// Returns the sums of all ranks by function.
    pub fn by_function(&self) -> BTreeMap<Function, FunctionProfile> {
        let mut sums: BTreeMap<Function, FunctionProfile> = BTreeMap::new();
        for (&(_, function), profile) in &self.entries {
            sums.entry(function).or_default().merge(profile);
        }
        sums
    }

    /// Returns the sums of all functions by rank.
    pub fn by_rank(&self) -> BTreeMap<u32, FunctionProfile> {
        let mut sums: BTreeMap<u32, FunctionProfile> = BTreeMap::new();
        for (&(rank, _), profile) in &self.entries {
            sums.entry(rank).or_default().merge(profile);
        }
        sums
    }
}

/// Number and bytes of messages, such as those from one rank to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of messages.
    pub messages: u64,
    /// Sum of the messages' bytes.
    pub bytes: u64,
}

/// The communication matrix: point-to-point traffic between world ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix {
    cells: BTreeMap<(u32, u32), Traffic>,
    /// Traffic by size class. The key is the largest size of the class, bytes.
    sizes: BTreeMap<u64, Traffic>,
}

impl Matrix {
    /// Returns the largest size in bytes, and the traffic, of each size class with at least one message. The largest sizes of the classes
    /// are 0, 1, 4, 16, 64 bytes, and so on.
    pub fn sizes(&self) -> impl Iterator<Item = (u64, Traffic)> {
        self.sizes.iter().map(|(&up_to, &traffic)| (up_to, traffic))
    }

    /// Returns the traffic from `from` to `to`.
    pub fn get(&self, from: u32, to: u32) -> Traffic {
        self.cells.get(&(from, to)).copied().unwrap_or_default()
    }

    /// Returns every pair with at least one message.
    pub fn cells(&self) -> impl Iterator<Item = (u32, u32, Traffic)> {
        self.cells
            .iter()
            .map(|(&(from, to), &traffic)| (from, to, traffic))
    }

    /// Returns one more than the greatest rank that sent or received a message; 0 without messages.
    pub fn ranks(&self) -> u32 {
        self.cells
            .keys()
            .map(|&(from, to)| from.max(to).saturating_add(1))
            .max()
            .unwrap_or(0)
    }

    /// Returns the sum of all messages that were sent.
    pub fn total(&self) -> Traffic {
        let mut total = Traffic::default();
        for traffic in self.cells.values() {
            total.messages = total.messages.saturating_add(traffic.messages);
            total.bytes = total.bytes.saturating_add(traffic.bytes);
        }
        total
    }
}

/// Builder of a [`Matrix`] from a trace. A message counts at the call that begins its send. Messages to `MPI_PROC_NULL` and to processes of
/// another world do not count. Sends by persistent requests count at each start.
#[derive(Clone, Debug, Default)]
pub struct MatrixBuilder {
    matrix: Matrix,
    /// Persistent sends: destination and bytes, by sender's rank and serial of the preparation.
    prepared: HashMap<(u32, u64), (u32, u64)>,
}

impl MatrixBuilder {
    /// Adds an event. Ignores all events but sends.
    pub fn add(&mut self, event: &Event) {
        if let Body::Mpi(call) = &event.body {
            self.add_record(&call.record);
        }
    }

    /// Adds the record of a call. Ignores all calls but sends.
    pub fn add_record(&mut self, record: &MpiRecord) {
        let Peer::Rank(from) = record.rank else {
            return;
        };
        match (record.function.class(), record.destination) {
            (
                Class::Send | Class::SendReceive | Class::StartSend | Class::StartSendReceive,
                Peer::Rank(to),
            ) => self.message(from, to, record.send_bytes),
            (Class::Persistent, Peer::Rank(to)) => {
                self.prepared
                    .insert((from, record.request), (to, record.send_bytes));
            }
            (Class::Persistent, _) => {
                for &serial in &record.prepared {
                    if let Some(&(to, bytes)) = self.prepared.get(&(from, serial)) {
                        self.message(from, to, bytes);
                    }
                }
            }
            _ => {}
        }
    }

    fn message(&mut self, from: u32, to: u32, bytes: u64) {
        let cell = self.matrix.cells.entry((from, to)).or_default();
        let size = self.matrix.sizes.entry(class_of(bytes)).or_default();
        for sum in [cell, size] {
            sum.messages = sum.messages.saturating_add(1);
            sum.bytes = sum.bytes.saturating_add(bytes);
        }
    }

    /// Returns the sums so far.
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }
}

/// Returns the largest size of the size class to which a size belongs: 0, a power of four, or `u64::MAX` for the last class.
fn class_of(bytes: u64) -> u64 {
    let bits = bytes
        .checked_next_power_of_two()
        .map_or(64, u64::trailing_zeros);
    match (bytes, bits.next_multiple_of(2)) {
        (0, _) => 0,
        (_, 64..) => u64::MAX,
        (_, bits) => 1 << bits,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_fall_into_classes() {
        let classes = [0, 1, 2, 4, 5, 16, 17, 1024, 1025, u64::MAX].map(super::class_of);
        assert_eq!(classes, [0, 1, 4, 4, 16, 16, 64, 1024, 4096, u64::MAX]);
    }

    use nodescope_hypercall::record::Flags;
    use nodescope_hypercall::{Completion, ThreadId};

    use super::*;
    use crate::event::Stamp;

    fn call(rank: u32, function: Function, time: u64) -> MpiCall {
        MpiCall {
            record: MpiRecord::new(function, ThreadId::default(), Peer::Rank(rank), 0),
            entry: Stamp::default(),
            exit: Stamp::default(),
            time_inside: time,
            instructions_inside: 10 * time,
            entry_seen: true,
        }
    }

    fn send(rank: u32, function: Function, to: Peer, bytes: u64) -> MpiCall {
        let mut call = call(rank, function, 1);
        call.record.destination = to;
        call.record.send_bytes = bytes;
        call
    }

    fn with_completion(mut call: MpiCall, bytes: u64) -> MpiCall {
        call.record.receive_bytes = 1000;
        call.record.completions.push(Completion {
            bytes,
            ..Completion::default()
        });
        call
    }

    #[test]
    fn profiles_add_up() {
        let mut profile = Profile::default();
        for time in [100, 300, 200] {
            let mut call = call(0, Function::Allreduce, time);
            (call.record.send_bytes, call.record.receive_bytes) = (8, 8);
            profile.add_call(&call);
        }
        profile.add_call(&with_completion(call(0, Function::Recv, 50), 64));
        profile.add_call(&with_completion(call(0, Function::Probe, 5), 64));
        profile.add_call(&with_completion(call(1, Function::Recv, 70), 32));
        let mut run = call(1, Function::Test, 90);
        (run.record.calls, run.record.flags) = (30, Flags::POLL_RUN);
        profile.add_call(&run);

        let all = profile.get(0, Function::Allreduce);
        let expected = FunctionProfile {
            calls: 3,
            send_bytes: 24,
            receive_bytes: 24,
            time: 600,
            max_time: 300,
            instructions: 6000,
        };
        assert_eq!(all, expected);
        assert_eq!(all.mean_time(), 200.0);
        assert_eq!(profile.get(0, Function::Probe).receive_bytes, 0);
        let test = profile.get(1, Function::Test);
        assert_eq!(
            (test.calls, test.time, test.max_time, test.mean_time()),
            (30, 90, 3, 3.0)
        );
        let receive = profile.by_function()[&Function::Recv];
        assert_eq!(
            (
                receive.calls,
                receive.receive_bytes,
                receive.time,
                receive.max_time
            ),
            (2, 96, 120, 70)
        );
        let ranks: Vec<_> = profile
            .by_rank()
            .into_iter()
            .map(|(rank, sum)| (rank, sum.calls, sum.time))
            .collect();
        assert_eq!(ranks, [(0, 5, 655), (1, 31, 160)]);
        assert_eq!(profile.entries().count(), 5);
        assert_eq!(FunctionProfile::default().mean_time(), 0.0);
    }

    #[test]
    fn call_sites_beyond_the_limit_count_together() {
        let mut profile = Profile::default();
        for site in (1..=MOST_SITES as u64 + 2).chain([1]) {
            let mut call = call(0, Function::Send, 1);
            call.record.call_site = site;
            profile.add_call(&call);
        }
        let calls = |address: u64| {
            let of = |(site, _, _): &(Site, Function, &SiteProfile)| site.address == address;
            profile.sites().find(of).map(|(_, _, site)| site.sums.calls)
        };
        assert_eq!([1, 2, 0].map(calls), [Some(2), Some(1), Some(2)]);
        assert_eq!(calls(MOST_SITES as u64 + 1), None);
        assert_eq!(profile.sites().count(), MOST_SITES + 1);
    }

    #[test]
    fn calls_before_the_rank_is_known_are_left_out() {
        let mut profile = Profile::default();
        let mut early = call(0, Function::Init, 5);
        early.record.rank = Peer::None;
        profile.add_call(&early);
        assert_eq!(profile, Profile::default());
    }

    #[test]
    fn messages_count_where_they_are_sent() {
        let mut builder = MatrixBuilder::default();
        for (function, bytes) in [
            (Function::Send, 1),
            (Function::Isend, 10),
            (Function::Sendrecv, 100),
            (Function::Bsend, 1000),
        ] {
            builder.add_record(&send(0, function, Peer::Rank(2), bytes).record);
        }
        builder.add_record(&send(2, Function::Ssend, Peer::Rank(0), 5).record);
        for nowhere in [Peer::Null, Peer::Outside, Peer::None] {
            builder.add_record(&send(1, Function::Send, nowhere, 7).record);
        }
        // A receive, a wait and a collective send nothing point to point.
        for function in [Function::Recv, Function::Waitall, Function::Allreduce] {
            builder.add_record(&with_completion(call(1, function, 1), 9).record);
        }
        let matrix = builder.matrix();
        let cells: Vec<_> = matrix.cells().collect();
        assert_eq!(
            cells,
            [
                (
                    0,
                    2,
                    Traffic {
                        messages: 4,
                        bytes: 1111
                    }
                ),
                (
                    2,
                    0,
                    Traffic {
                        messages: 1,
                        bytes: 5
                    }
                )
            ]
        );
        assert_eq!(
            (matrix.ranks(), matrix.total()),
            (
                3,
                Traffic {
                    messages: 5,
                    bytes: 1116
                }
            )
        );
        assert_eq!(matrix.get(1, 0), Traffic::default());
    }

    #[test]
    fn persistent_sends_count_at_each_start() {
        let mut builder = MatrixBuilder::default();
        let mut init = send(3, Function::SendInit, Peer::Rank(1), 16);
        init.record.request = 5;
        builder.add_record(&init.record);
        assert_eq!(builder.matrix().total().messages, 0);
        let mut start = call(3, Function::Startall, 1);
        // Serial 5 is the send. Serial 6 was not prepared as a send.
        start.record.prepared = vec![5, 6];
        builder.add_record(&start.record);
        builder.add_record(&start.record);
        assert_eq!(
            builder.matrix().get(3, 1),
            Traffic {
                messages: 2,
                bytes: 32
            }
        );
    }
}
