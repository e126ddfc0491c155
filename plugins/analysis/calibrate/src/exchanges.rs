//! Costs of messages that meet others, from a trace of `measure.c` on three ranks or more.
//!
//! A cost is the time from a message's arrival to the end of the call that waited for it. The arrival is the beginning of the send, and then
//! the send's overhead, the latency and the time on the wire. A message that was there before the call does not count. Round trips relate
//! the clocks of neighbours.

use std::collections::BTreeMap;

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Function, Tag};
use nodescope_predict::{Channel, Table};
use nodescope_trace::{Body, Event, MpiCall};

use crate::fit::{lines, way};
use crate::piecewise::{Piecewise, Point, median};
use crate::{CalibrateError, Sample, trace};

/// Tags of `measure.c`.
const RING: u32 = 2;
const TWO: u32 = 4;
const COLUMNS_TO_AND_FRO: u32 = 5;
const COLUMNS_IN_RING: u32 = 6;
const FIRST: u32 = 7;
const SECOND: u32 = 8;
const STREAM: u32 = 9;
/// Number of datatypes that `measure.c` makes between two barriers.
const DATATYPES: f64 = 20.0;
/// Bytes of the vectors that `measure.c` adds to others between two barriers.
const SUMMED: f64 = (1 << 20) as f64;
/// Number of messages in a stream of `measure.c`, and their size in bytes.
const STREAMED: (usize, u64) = (96, 8);
/// Fewest sizes of messages round a ring.
const FEWEST: usize = 4;

/// Beginnings and ends of calls in nanoseconds, on the clock of the first rank, by rank and in order.
type Calls = BTreeMap<u32, Vec<(f64, f64)>>;

/// Measured times of messages that meet others.
#[derive(Clone, Debug, Default)]
pub struct Exchanges {
    /// File or other source of the measurements.
    pub source: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Calls by size in bytes: messages round a ring.
    ring: BTreeMap<u64, Calls>,
    /// Two messages to each rank at once, from the first send to the end of both receives.
    two: BTreeMap<u64, Calls>,
    /// As `ring`, of columns.
    columns: BTreeMap<u64, Calls>,
    /// Times in sends of columns, nanoseconds.
    columns_sent: BTreeMap<u64, Vec<f64>>,
    /// Times to make and free a datatype, and to add a byte of a vector to another; nanoseconds.
    local: Local,
    /// Times of exchanges with which two ranks open their first connection, nanoseconds.
    first: Vec<f64>,
    /// By sender and receiver: times of sends that their receives wait for, the first of which opens a further connection; nanoseconds.
    second: BTreeMap<(u32, u32), Vec<f64>>,
    /// Times of the sends of all streams, nanoseconds.
    streamed: Vec<f64>,
}

/// What a rank's own work in collectives takes, nanoseconds; 0 if unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Local {
    /// To make and free a datatype.
    datatype: f64,
    /// To add a byte of a vector to another.
    summed_byte: f64,
}

/// What the first use of a connection takes, as [`nodescope_predict::Cluster`] has it; picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Time between two looks of a rank without a connection.
    pub poll: u64,
    /// Processor time of a step by which a connection opens.
    pub setup: u64,
}

/// Fitted costs of messages that meet others, and how far single times spread around them.
#[derive(Clone, Debug, PartialEq)]
pub struct Met {
    /// File or other source of the measurements.
    pub source: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Lines through the times that messages round a ring cost their receivers.
    pub ring: Piecewise,
    /// Time to make and free a datatype, picoseconds.
    pub datatype: u64,
    /// Bytes of a vector that are added to another in a second; 0 if that was not measured.
    pub reduce_bandwidth: u64,
    /// What the first use of a connection takes; `None` if that was not measured.
    pub opening: Option<Opening>,
    /// Relative standard deviation of what single messages round a ring cost their receivers: the median of all sizes.
    pub variation: f64,
}

/// Collector of measurements from the events of a trace.
#[derive(Debug, Default)]
pub struct Collector {
    found: Exchanges,
    /// Round trips of neighbours.
    trips: trace::Collector,
    /// By rank: size and beginning of the first send of two that are under way.
    sending: BTreeMap<u32, (u64, f64)>,
    /// By rank: times between two barriers on `MPI_COMM_SELF`, and the end of the last one if the next ends such a time.
    gaps: BTreeMap<u32, (Vec<f64>, Option<u64>)>,
}

impl Collector {
    /// Adds the next event of the trace.
    pub fn add(&mut self, event: &Event) {
        self.trips.add(event);
        if let Body::Mpi(call) = &event.body {
            self.call(call);
        }
    }

    fn call(&mut self, call: &MpiCall) {
        let record = &call.record;
        let Some(rank) = record.rank.rank().filter(|_| call.entry_seen) else {
            return;
        };
        let (entry, exit) = (call.entry.time, call.exit.time);
        // The tracer's own time is not the program's. The tracer is taken to spend half of it before the MPI function.
        let own = (exit - entry).saturating_sub(call.time_inside) as f64 / 2e3;
        let (begin, end) = (entry as f64 / 1e3 + own, exit as f64 / 1e3 - own);
        let bytes = record.send_bytes.max(record.receive_bytes);
        let add = |of: &mut BTreeMap<u64, Calls>, bytes, begin| {
            let calls = of.entry(bytes).or_default();
            calls.entry(rank).or_default().push((begin, end));
        };
        match (record.function, record.send_tag) {
            (Function::Barrier, _) if record.communicator == communicator::SELF => {
                let (gaps, before) = self.gaps.entry(rank).or_default();
                match before.take() {
                    Some(before) => gaps.push(entry.saturating_sub(before) as f64 / 1e3),
                    None => *before = Some(exit),
                }
            }
            (Function::Isend, Tag::Value(TWO)) => {
                self.sending.entry(rank).or_insert((bytes, begin));
            }
            (Function::Waitall, _) => {
                if let Some((bytes, begin)) = self.sending.remove(&rank) {
                    add(&mut self.found.two, bytes, begin);
                }
            }
            (Function::Sendrecv, Tag::Value(RING)) => add(&mut self.found.ring, bytes, begin),
            (Function::Sendrecv, Tag::Value(COLUMNS_IN_RING)) => {
                add(&mut self.found.columns, bytes, begin);
            }
            (Function::Send, Tag::Value(COLUMNS_TO_AND_FRO)) => {
                let times = self.found.columns_sent.entry(bytes).or_default();
                times.push(end - begin);
            }
            (Function::Send, Tag::Value(STREAM)) => self.found.streamed.push(end - begin),
            (Function::Sendrecv, Tag::Value(FIRST)) => self.found.first.push(end - begin),
            (Function::Ssend, Tag::Value(SECOND)) => {
                let pair = (rank, record.destination.rank().unwrap_or(rank));
                self.found.second.entry(pair).or_default().push(end - begin);
            }
            _ => {}
        }
    }

    /// Returns the measurements from all events.
    ///
    /// # Errors
    ///
    /// A trace without messages round a ring of at least four sizes, or without messages that come two at a time.
    pub fn finish(self, source: &str) -> Result<Exchanges, CalibrateError> {
        let unusable = |what: String| CalibrateError::Unusable {
            from: source.into(),
            what: format!(
                "{what}; trace plugins/analysis/calibrate/measure.c on three ranks or more, to its end"
            ),
        };
        let mut found = Exchanges {
            source: source.into(),
            local: self.local(),
            ..self.found
        };
        if found.ring.len() < FEWEST {
            return Err(unusable(format!(
                "has messages round a ring of {} sizes, of which {FEWEST} are needed",
                found.ring.len()
            )));
        }
        if found.two.is_empty() {
            return Err(unusable("has no messages that come two at a time".into()));
        }
        found.ranks = found.ring.values().map(BTreeMap::len).max().unwrap_or(0);
        found.relate(&self.trips.skews());
        Ok(found)
    }

    /// Returns what lay between the barriers on `MPI_COMM_SELF`: in turn nothing, datatypes and sums.
    fn local(&self) -> Local {
        let mut gaps = [Vec::new(), Vec::new(), Vec::new()];
        for (of, _) in self.gaps.values() {
            for (number, gap) in of.iter().enumerate() {
                gaps[number % 3].push(*gap);
            }
        }
        if gaps.iter().any(Vec::is_empty) {
            return Local::default();
        }
        let [none, datatypes, sums] = gaps.map(median);
        Local {
            datatype: ((datatypes - none) / DATATYPES).max(0.0),
            summed_byte: ((sums - none) / SUMMED).max(0.0),
        }
    }
}

impl Exchanges {
    /// Puts all times on the clock of the first rank, by the differences between the clocks of neighbours.
    fn relate(&mut self, skews: &BTreeMap<(u32, u32), f64>) {
        let mut behind = 0.0;
        let mut clocks = BTreeMap::from([(0, 0.0)]);
        for rank in 1..self.ranks as u32 {
            behind += skews.get(&(rank - 1, rank)).copied().unwrap_or(0.0);
            clocks.insert(rank, behind);
        }
        for calls in [&mut self.ring, &mut self.two, &mut self.columns] {
            for (rank, times) in calls.values_mut().flatten() {
                let behind = clocks.get(rank).copied().unwrap_or(0.0);
                for (begin, end) in times {
                    *begin -= behind;
                    *end -= behind;
                }
            }
        }
    }

    /// Returns what the first use of a connection takes where a service message takes `service` nanoseconds; `None` if that was not measured.
    fn opening(&self, service: f64) -> Option<Opening> {
        let [opens, repeats] = [0, 1].map(|number| {
            let times = self.second.values();
            times
                .filter_map(|times| times.get(number).copied())
                .collect::<Vec<f64>>()
        });
        if opens.is_empty() || repeats.is_empty() || self.first.is_empty() {
            return None;
        }
        let (opens, repeats) = (median(opens), median(repeats));
        // The way to an open connection: a round trip of the kernel's, an introduction and an answer.
        let steps = opens - repeats - 4.0 * service;
        let setup = (steps / 2.0).max(0.0);
        // The kernel's round trip passes during the wait for a look. A wait as short as the opening itself is none.
        let wait = median(self.first.clone()) - opens + 2.0 * service;
        let poll = if wait > opens { wait } else { 0.0 };
        let picoseconds = |nanoseconds: f64| (nanoseconds * 1e3).round() as u64;
        Some(Opening {
            poll: picoseconds(poll),
            setup: picoseconds(setup),
        })
    }

    /// Returns the picoseconds that a byte of a large message costs its sender's processor: what a byte takes round the ring, where each rank
    /// sends and receives, beyond what it costs a receiver. 0 if that was not measured, or if the wire limits messages round the ring.
    fn send_per_byte(&self, pairs: &Channel) -> f64 {
        let large = self
            .ring
            .iter()
            .filter(|(bytes, _)| **bytes > pairs.eager_limit);
        let times: Vec<(f64, f64)> = large
            .map(|(&bytes, calls)| {
                let lasted = calls.values().flatten().map(|(begin, end)| end - begin);
                let whole = pairs.receive_overhead.at(bytes) as f64;
                (bytes as f64, 1e3 * median(lasted.collect()) - whole)
            })
            .collect();
        let [first, .., last] = times[..] else {
            return 0.0;
        };
        let per_byte = (last.1 - first.1) / (last.0 - first.0);
        if per_byte > 2.0 * pairs.per_byte {
            per_byte
        } else {
            0.0
        }
    }

    /// Returns the processor time of an acknowledgement, picoseconds, where a send alone takes `send` nanoseconds and each `every` frames are
    /// acknowledged; 0 if streams were not measured. Acknowledgements come in the second half of each stream.
    fn acknowledgement(&self, send: f64, every: u64) -> u64 {
        let streams = self.streamed.chunks_exact(STREAMED.0);
        let means = streams.map(|stream| {
            let half = &stream[STREAMED.0 / 2..];
            half.iter().sum::<f64>() / half.len() as f64
        });
        let means: Vec<f64> = means.collect();
        if means.is_empty() {
            return 0;
        }
        ((median(means) - send).max(0.0) * every as f64 * 1e3).round() as u64
    }

    /// Replaces the receiver's costs in a channel by those of messages round a ring, and adds those of messages that come together and of
    /// derived datatypes. The channel's costs of a send and its wire stay.
    ///
    /// # Errors
    ///
    /// No call round the ring shows a cost of its receiver.
    pub fn fit(&self, channel: &mut Channel) -> Result<Met, CalibrateError> {
        let nanoseconds = |time: u64| time as f64 / 1e3;
        let before = channel.clone();
        let send = |bytes| nanoseconds(before.send_overhead.at(bytes));
        let between = |bytes| nanoseconds(way(&before, bytes));
        // Larger messages wait for permissions, which the data of others delays.
        let eager = |bytes: &u64| *bytes <= before.eager_limit;
        let ring: Vec<Sample> = (self.ring.iter())
            .filter(|(bytes, _)| eager(bytes))
            .filter_map(|(&bytes, calls)| {
                Sample::median(bytes, after_arrival(calls, send(bytes), between(bytes)))
            })
            .collect();
        // A receiver handles frames while further frames come.
        let whole = ring.iter().map(|sample| {
            let after_first = nanoseconds(before.wire_after_first(sample.bytes));
            (sample.bytes, sample.time + after_first)
        });
        let one_frame = before
            .frames
            .map(|frames| frames.payload.saturating_sub(before.envelope));
        let lines_of_ring = fitted(whole).ok_or_else(|| CalibrateError::Unusable {
            from: self.source.clone(),
            what: "no call round the ring shows a cost of its receiver: none waited for its message, or the messages came faster than the wire allows; give each rank a node of its own, and measure on the network that is stated".into(),
        })?;
        let largest = ring.last().map_or(0, |sample| sample.bytes);
        let table = lines(&lines_of_ring, one_frame);
        channel.receive_overhead = continued(table, largest, &before.receive_overhead);
        let awaited = |bytes| nanoseconds(channel.receive(bytes).awaited);
        let two = self.two.iter().filter(|(bytes, _)| eager(bytes));
        let queued = two.filter_map(|(&bytes, calls)| {
            let times = after_another(calls, send(bytes), between(bytes), awaited(bytes));
            Some((bytes, Sample::mean(bytes, times)?.time))
        });
        let queued = fitted(queued)
            .map(|fit| continued(lines(&fit, one_frame), largest, &channel.receive_overhead));
        let pack = self.columns_sent.iter().filter_map(|(&bytes, times)| {
            Some((
                bytes,
                Sample::median(bytes, times.clone())?.time - send(bytes),
            ))
        });
        let pack = fitted(pack).map_or_else(Table::default, |fit| lines(&fit, None));
        let unpack = self.columns.iter().filter_map(|(&bytes, calls)| {
            let send = send(bytes) + nanoseconds(pack.at(bytes));
            let times = after_arrival(calls, send, between(bytes));
            Some((bytes, Sample::median(bytes, times)?.time - awaited(bytes)))
        });
        let unpack = fitted(unpack).map_or_else(Table::default, |fit| lines(&fit, None));
        (channel.queued_overhead, channel.pack_overhead) = (queued, pack);
        channel.unpack_overhead = unpack;
        channel.send_per_byte = self.send_per_byte(&before);
        channel.acknowledgement_overhead = before.frames.map_or(0, |frames| {
            self.acknowledgement(send(STREAMED.1), frames.acknowledge)
        });
        Ok(Met {
            source: self.source.clone(),
            ranks: self.ranks,
            ring: lines_of_ring,
            datatype: (self.local.datatype * 1e3).round() as u64,
            reduce_bandwidth: match self.local.summed_byte {
                0.0 => 0,
                byte => (1e9 / byte).round() as u64,
            },
            opening: self.opening(nanoseconds(before.service())),
            variation: median(ring.iter().map(|sample| sample.spread).collect()),
        })
    }
}

/// Returns the times in nanoseconds from a message's arrival to the end of the call that waited for the message.
fn after_arrival(calls: &Calls, send: f64, way: f64) -> Vec<f64> {
    let ranks = calls.len() as u32;
    let mut times = Vec::new();
    for (&rank, own) in calls {
        let Some(before) = calls.get(&((rank + ranks - 1) % ranks)) else {
            continue;
        };
        for (&(begin, end), &(sent, _)) in own.iter().zip(before) {
            let arrival = sent + send + way;
            if arrival > begin + send {
                times.push(end - arrival);
            }
        }
    }
    times
}

/// Returns the times from the end of the handling of the first of two messages to the end of the waiting call, in nanoseconds. Only calls
/// count in which the second message arrived while the receiver handled the first.
fn after_another(calls: &Calls, send: f64, way: f64, receive: f64) -> Vec<f64> {
    let ranks = calls.len() as u32;
    let mut times = Vec::new();
    for (&rank, own) in calls {
        for (round, &(begin, end)) in own.iter().enumerate() {
            // The first message of the previous rank, and the second message of the rank before that.
            let [Some(one), Some(other)] = [1, 2].map(|distance| {
                let from = calls.get(&((rank + ranks - distance) % ranks))?;
                let (sent, _) = from.get(round)?;
                Some(sent + f64::from(distance) * send + way)
            }) else {
                continue;
            };
            let (first, second) = (one.min(other), one.max(other));
            if first > begin + 2.0 * send && second < first + receive {
                times.push(end - first - receive);
            }
        }
    }
    times
}

/// Fits lines to times in nanoseconds by size in bytes; `None` if no time is positive.
fn fitted(times: impl Iterator<Item = (u64, f64)>) -> Option<Piecewise> {
    let points = times.map(|(bytes, time)| Point { bytes, time });
    let points: Vec<Point> = points.filter(|point| point.time > 0.0).collect();
    (!points.is_empty()).then(|| Piecewise::fit(&points))
}

/// Returns a table up to size `last`, and beyond it another table, shifted so that no step arises.
fn continued(mut table: Table, last: u64, other: &Table) -> Table {
    let (time, from) = (table.at(last), other.at(last));
    let beyond: Vec<&(u64, u64)> = (other.points.iter())
        .filter(|(bytes, _)| *bytes > last)
        .collect();
    if !beyond.is_empty() && table.points.last().is_none_or(|&(bytes, _)| bytes < last) {
        table.points.push((last, time));
    }
    let shifted = beyond
        .iter()
        .map(|(bytes, of)| (*bytes, (time + of).saturating_sub(from).max(time)));
    table.points.extend(shifted);
    table
}
