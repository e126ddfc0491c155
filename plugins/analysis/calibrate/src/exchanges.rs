//! Costs of messages that meet others, from a trace of `measure.c` on three ranks or more.
//!
//! All ranks do the same at the same time. The clocks of two ranks are never compared: if each rank waits for the message of another, the
//! time by which a rank comes later than the sender of its message is 0 in the mean over all ranks. So the mean duration of a call is the
//! time of a message from the beginning of its send to the end of its receive.

use std::collections::BTreeMap;

use nodescope_hypercall::record::communicator;
use nodescope_hypercall::{Function, Tag};
use nodescope_predict::{Channel, Table};
use nodescope_trace::{Body, Event, MpiCall};

use crate::fit::{lines, way};
use crate::piecewise::{Piecewise, Point, median};
use crate::{CalibrateError, Sample};

/// Tags of `measure.c`.
const RING: u32 = 2;
const TWO: u32 = 4;
const COLUMNS_TO_AND_FRO: u32 = 5;
const COLUMNS_IN_RING: u32 = 6;
/// Number of datatypes that `measure.c` makes between two barriers.
const DATATYPES: f64 = 20.0;
/// Fewest sizes of messages round a ring.
const FEWEST: usize = 4;

/// Durations in nanoseconds, by rank, in order.
type Durations = BTreeMap<u32, Vec<f64>>;

/// Measured times of messages that meet others.
#[derive(Clone, Debug, Default)]
pub struct Exchanges {
    /// File or other source of the measurements.
    pub source: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Mean time of a message round a ring, from the beginning of the send to the end of the receive.
    ring: Vec<Sample>,
    /// The same of two messages to each rank at once: to the end of both receives.
    two: Vec<Sample>,
    /// Time in sends of columns.
    columns_sent: Vec<Sample>,
    /// As `ring`, of columns.
    columns: Vec<Sample>,
    /// Time to make and free a datatype, nanoseconds.
    datatype: f64,
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
    /// Relative standard deviation of the time of one message round a ring, beyond its time on the wire: the median of all sizes.
    pub variation: f64,
}

/// Collector of measurements from the events of a trace.
#[derive(Debug, Default)]
pub struct Collector {
    /// Durations by size in bytes and tag.
    calls: BTreeMap<(u64, u32), Durations>,
    /// By rank: size and beginning of the first send of two that are under way, picoseconds.
    sending: BTreeMap<u32, (u64, u64)>,
    /// By rank: times between two barriers on `MPI_COMM_SELF`, and the end of the last one if the next ends such a time.
    gaps: BTreeMap<u32, (Vec<f64>, Option<u64>)>,
}

impl Collector {
    /// Adds the next event of the trace.
    pub fn add(&mut self, event: &Event) {
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
        let bytes = record.send_bytes.max(record.receive_bytes);
        let (bytes, tag, begin) = match (record.function, record.send_tag) {
            (Function::Barrier, _) if record.communicator == communicator::SELF => {
                let (gaps, before) = self.gaps.entry(rank).or_default();
                match before.take() {
                    Some(before) => gaps.push(entry.saturating_sub(before) as f64 / 1e3),
                    None => *before = Some(exit),
                }
                return;
            }
            (Function::Isend, Tag::Value(TWO)) => {
                self.sending.entry(rank).or_insert((bytes, entry));
                return;
            }
            (Function::Waitall, _) => {
                let Some((bytes, begin)) = self.sending.remove(&rank) else {
                    return;
                };
                (bytes, TWO, begin)
            }
            (Function::Sendrecv, Tag::Value(tag @ (RING | COLUMNS_IN_RING)))
            | (Function::Send, Tag::Value(tag @ COLUMNS_TO_AND_FRO)) => (bytes, tag, entry),
            _ => return,
        };
        // The tracer's own time is not the program's.
        let own = (exit - entry).saturating_sub(call.time_inside);
        let time = exit.saturating_sub(begin).saturating_sub(own);
        let of = self.calls.entry((bytes, tag)).or_default();
        of.entry(rank).or_default().push(time as f64 / 1e3);
    }

    /// Returns the measurements from all events.
    ///
    /// # Errors
    ///
    /// A trace without messages round a ring of at least four sizes.
    pub fn finish(self, source: &str) -> Result<Exchanges, CalibrateError> {
        let unusable = |what: String| CalibrateError::Unusable {
            from: source.into(),
            what,
        };
        let mut found = Exchanges {
            source: source.into(),
            datatype: self.datatype(),
            ..Exchanges::default()
        };
        for ((bytes, tag), durations) in self.calls {
            found.ranks = found.ranks.max(durations.len());
            let samples = match tag {
                RING => &mut found.ring,
                TWO => &mut found.two,
                COLUMNS_IN_RING => &mut found.columns,
                _ => &mut found.columns_sent,
            };
            samples.extend(match tag {
                COLUMNS_TO_AND_FRO => {
                    Sample::median(bytes, durations.into_values().flatten().collect())
                }
                _ => Sample::mean(bytes, rounds(&durations)),
            });
        }
        if found.ring.len() < FEWEST {
            return Err(unusable(format!(
                "has messages round a ring of {} sizes, of which {FEWEST} are needed; trace plugins/analysis/calibrate/measure.c on three ranks or more, to its end",
                found.ring.len()
            )));
        }
        if found.two.is_empty() {
            return Err(unusable(
                "has no messages that come two at a time; trace plugins/analysis/calibrate/measure.c on three ranks or more, to its end".into(),
            ));
        }
        Ok(found)
    }

    /// Returns the time to make and free a datatype, nanoseconds; 0 if unknown.
    fn datatype(&self) -> f64 {
        let mut gaps = [Vec::new(), Vec::new()];
        for (of, _) in self.gaps.values() {
            for (number, gap) in of.iter().enumerate() {
                gaps[number % 2].push(*gap);
            }
        }
        if gaps.iter().any(Vec::is_empty) {
            return 0.0;
        }
        let [none, twenty] = gaps.map(median);
        ((twenty - none) / DATATYPES).max(0.0)
    }
}

/// Returns the mean over all ranks for each round.
fn rounds(durations: &Durations) -> Vec<f64> {
    let shortest = durations.values().map(Vec::len).min().unwrap_or(0);
    let mean = |round| {
        let of = durations.values().map(|times| times[round]);
        of.sum::<f64>() / durations.len() as f64
    };
    (0..shortest).map(mean).collect()
}

impl Exchanges {
    /// Replaces the receiver's costs in a channel by those of messages round a ring, and adds those of messages that come together and of
    /// derived datatypes. The channel's costs of a send and its wire stay.
    pub fn fit(&self, channel: &mut Channel) -> Met {
        let nanoseconds = |time: u64| time as f64 / 1e3;
        let before = channel.clone();
        let base = |bytes| nanoseconds(before.send_overhead.at(bytes) + way(&before, bytes));
        let awaited: Vec<(Sample, f64)> = (self.ring.iter())
            .map(|sample| (*sample, sample.time - base(sample.bytes)))
            .collect();
        let after_first = |bytes| nanoseconds(before.wire_after_first(bytes));
        // A receiver handles frames while further frames come.
        let whole = awaited
            .iter()
            .map(|(sample, time)| (sample.bytes, time + after_first(sample.bytes)));
        let one_frame = before
            .frames
            .map(|frames| frames.payload.saturating_sub(before.envelope));
        let ring = fitted(whole).unwrap_or_else(|| {
            Piecewise::fit(&[Point {
                bytes: 0,
                time: 1.0,
            }])
        });
        let largest = self.ring.last().map_or(0, |sample| sample.bytes);
        let table = lines(&ring, one_frame);
        channel.receive_overhead = continued(table, largest, &before.receive_overhead);
        let awaited = channel.clone();
        // Where the second message comes only after the first has been handled, the time shows no cost of meeting.
        let meets = |bytes: u64| {
            let apart = awaited.send_overhead.at(bytes).max(awaited.wire(bytes));
            apart < awaited.receive(bytes).awaited && bytes <= awaited.eager_limit
        };
        let queued = (self.two.iter())
            .filter(|sample| meets(sample.bytes))
            .map(|sample| {
                let first = base(sample.bytes) + nanoseconds(awaited.receive(sample.bytes).awaited);
                (sample.bytes, sample.time - first)
            });
        channel.queued_overhead = fitted(queued).map(|fit| lines(&fit, one_frame));
        let pack = (self.columns_sent.iter()).map(|sample| {
            let plain = nanoseconds(awaited.send_overhead.at(sample.bytes));
            (sample.bytes, sample.time - plain)
        });
        channel.pack_overhead = fitted(pack).map_or_else(Table::default, |fit| lines(&fit, None));
        let unpack = (self.columns.iter()).map(|sample| {
            let bytes = sample.bytes;
            let plain =
                nanoseconds(channel.pack_overhead.at(bytes) + awaited.receive(bytes).awaited);
            (bytes, sample.time - base(bytes) - plain)
        });
        channel.unpack_overhead =
            fitted(unpack).map_or_else(Table::default, |fit| lines(&fit, None));
        let software = (self.ring.iter()).map(|sample| {
            let wire = nanoseconds(way(&before, sample.bytes)).min(0.9 * sample.time);
            sample.spread * sample.time / (sample.time - wire)
        });
        Met {
            source: self.source.clone(),
            ranks: self.ranks,
            ring,
            datatype: (self.datatype * 1e3).round() as u64,
            // A sample is the mean of all ranks.
            variation: median(software.collect()) * (self.ranks as f64).sqrt(),
        }
    }
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
