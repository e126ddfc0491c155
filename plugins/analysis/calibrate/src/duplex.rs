//! Whether a connection carries large messages in both directions at full speed, from a trace of `measure.c`.

use std::collections::BTreeMap;

use nodescope_hypercall::{Function, Tag};
use nodescope_predict::Channel;
use nodescope_trace::{Body, Event};

use crate::piecewise::median;

/// Tags of `measure.c`: in both directions at once, and in one.
const BOTH: u32 = 7;
const ONE: u32 = 8;
/// Least share of a message's time that its bytes on the wire must take. Otherwise the processor is the limit, not the connection.
const WIRE: f64 = 0.5;
/// Share of the time on the wire that the second direction adds, from which on a connection counts as half duplex.
const HALF: f64 = 0.5;

/// Collector of measurements from the events of a trace.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    /// Durations of calls in nanoseconds, by size in bytes.
    both: BTreeMap<u64, Vec<f64>>,
    one: BTreeMap<u64, Vec<f64>>,
}

impl Collector {
    /// Adds the next event of the trace.
    pub fn add(&mut self, event: &Event) {
        let Body::Mpi(call) = &event.body else {
            return;
        };
        let record = &call.record;
        let came = record.completions.first().copied().unwrap_or_default();
        let (of, bytes) = match (record.function, record.send_tag, came.tag) {
            (Function::Sendrecv, Tag::Value(BOTH), _) => (&mut self.both, record.send_bytes),
            (Function::Recv, _, Tag::Value(ONE)) => (&mut self.one, came.bytes),
            _ => return,
        };
        of.entry(bytes)
            .or_default()
            .push(call.time_inside as f64 / 1e3);
    }

    /// Returns whether both directions together take as long as one after the other, on a wire as of `channel`; `None` if that was not
    /// measured, or if the processor is the limit.
    pub fn half_duplex(&self, channel: &Channel) -> Option<bool> {
        let shares = self.both.iter().filter_map(|(&bytes, both)| {
            let one = median(self.one.get(&bytes)?.clone());
            let wire = channel.wire(bytes) as f64 / 1e3;
            (wire > WIRE * one).then(|| (median(both.clone()) - one) / wire)
        });
        let shares: Vec<f64> = shares.collect();
        (!shares.is_empty()).then(|| median(shares) > HALF)
    }
}
