//! Fit of a channel's costs to measurements.
//!
//! L is the latency, G the time per byte, o_s and o_r are the overheads. An eager message of n bytes takes T(n) = o_s(n) + L + n G +
//! o_r(n). A rendezvous takes 2 L more, because a request and a permission precede the data. `nodescope predict` interprets a ping-pong by
//! the same costs.
//!
//! T is measured. A trace can also show o_s, the time in sends that do not wait, and o_r, the time in receives of messages that came
//! before. L follows from the smallest size, and G from how T grows between the largest sizes. What then remains of T goes into the
//! receiver's table, so that the tables together give T as fitted. Late receives have a table of their own. Where only T is measured, the
//! remainder is divided equally between sender and receiver.

use nodescope_predict::{Channel, Frames, Model, Table};

use crate::exchanges::{Exchanges, Met};
use crate::piecewise::{Piecewise, Point, Residuals, Segment};
use crate::{CalibrateError, Measurements, Sample};

/// Least relative rise of the one-way time from one line to the next that counts as a change from eager to rendezvous. Noisy measurements
/// need a larger rise: four standard deviations.
const STEP: f64 = 0.05;
/// Least ratio of two estimates of the latency: a third of the intercept of the first line above the eager limit (without the send
/// overhead), and what the overheads leave of the smallest size's one-way time. Below this ratio, the intercept is not used.
const PLAUSIBLE: f64 = 0.3;
/// Size in bytes up to which the tables continue with the slope of the last line.
const BEYOND: u64 = 1 << 30;
/// Highest bandwidth of a fit in bytes per second, for paths on which the copies at both ends take all the time.
const FASTEST: f64 = 1e12;

/// Facts about the channel that the user states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FitOptions {
    /// Largest size in bytes of an eager message; `None` if the measurements must show it.
    pub eager_limit: Option<u64>,
    /// The wire between the two ends; `None` if the measurements must show latency and bandwidth.
    pub wire: Option<Wire>,
}

/// A network between two ends that is known, such as that of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Latency in picoseconds.
    pub latency: u64,
    /// Bandwidth in bytes per second.
    pub bandwidth: u64,
    /// Bytes that go over the wire with each message beyond its own.
    pub envelope: u64,
    /// Frames into which messages are divided.
    pub frames: Option<Frames>,
}

impl Wire {
    fn channel(&self) -> Channel {
        Channel {
            envelope: self.envelope,
            frames: self.frames,
            ..Channel::new(Model::LogGp, self.latency, self.bandwidth)
        }
    }
}

/// Origin of the eager limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The user gave the limit.
    Given,
    /// Late receives show the limit. Sends of this size in bytes, which is above the limit, wait for their receives.
    Waiting(u64),
    /// A step in the times shows the limit. This size in bytes is the first measured size behind the step.
    Step(u64),
    /// The measurements show no limit, so the limit is the largest size measured.
    Unseen,
}

/// A fitted channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Costs of the channel.
    pub channel: Channel,
    /// Bandwidth in bytes per second.
    pub bandwidth: u64,
    /// Lines through the one-way times.
    pub one_way: Piecewise,
    /// Lines through the times in sends up to the eager limit; `None` if the measurements have none.
    pub send: Option<Piecewise>,
    /// Lines through the times in late receives up to the eager limit; `None` if the measurements have none.
    pub receive: Option<Piecewise>,
    /// Origin of the eager limit.
    pub limit: Limit,
    /// Relative differences of the channel's one-way times from those measured.
    pub residuals: Residuals,
    /// Relative differences of the channel's times of late receives from those measured; `None` without late receives.
    pub late_residuals: Option<Residuals>,
    /// Costs of messages that meet others; `None` if they were not measured.
    pub met: Option<Met>,
    /// Smallest and largest size measured, bytes.
    pub range: (u64, u64),
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Fit {
    /// Puts another wire between the two ends. What messages cost at their ends stays.
    pub fn retarget(&mut self, wire: Wire) {
        let Wire {
            latency, bandwidth, ..
        } = wire;
        let base = wire.channel();
        self.bandwidth = bandwidth;
        self.channel = Channel {
            latency,
            per_byte: base.per_byte,
            envelope: base.envelope,
            frames: base.frames,
            ..self.channel.clone()
        };
    }
}

/// Returns the one-way time of a message in nanoseconds, by the costs of `channel`. The receive begins before the message arrives.
pub fn one_way(channel: &Channel, bytes: u64) -> f64 {
    let overheads = channel.send_overhead.at(bytes) + channel.receive(bytes).awaited;
    (overheads + way(channel, bytes)) as f64 / 1e3
}

/// Returns the time of a message between its ends, picoseconds: one latency and its bytes on the wire. Above the eager limit, a request and
/// a permission take two latencies more.
pub(crate) fn way(channel: &Channel, bytes: u64) -> u64 {
    let crossings = if bytes > channel.eager_limit { 3 } else { 1 };
    crossings * channel.latency + channel.wire(bytes)
}

fn points(samples: &[Sample]) -> Vec<Point> {
    (samples.iter())
        .map(|sample| Point {
            bytes: sample.bytes,
            time: sample.time,
        })
        .collect()
}

fn piecewise(samples: &[Sample]) -> Option<Piecewise> {
    (!samples.is_empty()).then(|| Piecewise::fit(&points(samples)))
}

/// Fits a channel to measurements. `exchanges` adds what messages cost that meet others.
///
/// # Errors
///
/// Fewer than two sizes, or times that are not finite and positive.
pub fn fit(
    measured: &Measurements,
    exchanges: Option<&Exchanges>,
    options: FitOptions,
) -> Result<Fit, CalibrateError> {
    let unusable = |what: &str| CalibrateError::Unusable {
        from: measured.source.clone(),
        what: what.into(),
    };
    let times = points(&measured.one_way);
    if times.len() < 2 {
        return Err(unusable("has fewer than two sizes"));
    }
    if times
        .iter()
        .any(|point| !point.time.is_finite() || point.time <= 0.0)
    {
        return Err(unusable("has times that are not positive"));
    }
    let range = (times[0].bytes, times[times.len() - 1].bytes);
    let total = Piecewise::fit(&times);
    let (eager_limit, limit) = eager_limit(measured, &total, options, range);
    let below = |samples: &[Sample]| -> Vec<Sample> {
        let kept = samples.iter().filter(|sample| sample.bytes <= eager_limit);
        kept.copied().collect()
    };
    let send = piecewise(&below(&measured.send));
    let receive = piecewise(&below(&measured.receive));
    let costs = Costs {
        total: &total,
        send: send.as_ref(),
        receive: receive.as_ref(),
        eager_limit,
        smallest: range.0,
    };
    let knots = costs.knots(range.1);
    let (base, bandwidth) = match options.wire {
        Some(wire) => (wire.channel(), wire.bandwidth),
        None => {
            let latency = costs.latency(&knots);
            let slope = costs.slope(&knots, latency);
            let bandwidth = (1e9 / slope.max(1e9 / FASTEST)).round().max(1.0) as u64;
            let bandwidth = rounded(bandwidth);
            let latency = picoseconds(latency);
            (Channel::new(Model::LogGp, latency, bandwidth), bandwidth)
        }
    };
    let (mut channel, clipped) = costs.channel(&knots, base);
    let late = points(&below(&measured.receive));
    channel.buffered_overhead = receive.as_ref().map(|receive| lines(receive, None));
    let late_residuals = (!late.is_empty()).then(|| {
        let fitted = |point: &Point| {
            let time = channel.receive(point.bytes).buffered;
            Point {
                bytes: point.bytes,
                time: time as f64 / 1e3,
            }
        };
        let fitted: Vec<Point> = late.iter().map(fitted).collect();
        residuals(&fitted, &late, total.sigma)
    });
    let met = exchanges
        .map(|exchanges| exchanges.fit(&mut channel))
        .transpose()?;
    let check: Vec<Point> = (times.iter())
        .map(|point| Point {
            bytes: point.bytes,
            time: one_way(&channel, point.bytes),
        })
        .collect();
    let mut notes = measured.notes.clone();
    if send.is_none() {
        notes.push("only one-way times are known: what they are beyond latency and bandwidth is divided between both ends alike".into());
    } else if receive.is_none() {
        notes.push("no receive was late: the time in receives is taken to be that in sends".into());
    }
    if clipped > 0.05 {
        notes.push(format!(
            "latency and bandwidth alone exceed the one-way time by up to {:.0} % at some sizes",
            clipped * 100.0
        ));
    }
    Ok(Fit {
        residuals: residuals(&check, &times, total.sigma),
        late_residuals,
        channel,
        bandwidth,
        one_way: total,
        send,
        receive,
        limit,
        met,
        range,
        notes,
    })
}

fn picoseconds(time: f64) -> u64 {
    (time * 1e3).round().max(0.0) as u64
}

fn residuals(fitted: &[Point], measured: &[Point], sigma: f64) -> Residuals {
    let off = fitted
        .iter()
        .zip(measured)
        .map(|(fitted, measured)| ((fitted.time / measured.time - 1.0).abs(), measured.bytes));
    let off: Vec<(f64, u64)> = off.collect();
    let largest = off.iter().fold(
        (0.0, 0),
        |most, &off| if off.0 > most.0 { off } else { most },
    );
    Residuals {
        median: crate::piecewise::median(off.iter().map(|off| off.0).collect()),
        largest: largest.0,
        largest_at: largest.1,
        outliers: off.iter().filter(|off| off.0 > 3.0 * sigma).count(),
    }
}

/// Rounds to four significant digits, because measured values have no more.
fn rounded(value: u64) -> u64 {
    let mut unit = 1;
    while value / unit >= 10_000 {
        unit *= 10;
    }
    (value + unit / 2) / unit * unit
}

/// Returns the eager limit in bytes, and its origin.
fn eager_limit(
    measured: &Measurements,
    total: &Piecewise,
    options: FitOptions,
    range: (u64, u64),
) -> (u64, Limit) {
    if let Some(limit) = options.eager_limit {
        return (limit, Limit::Given);
    }
    // A step counts only between the largest size that was sent at once and the smallest size that waited.
    let between = (measured.sent_at_once, measured.waited);
    let (least, most) = match between {
        (None, None) => (range.0, range.1),
        (at_once, waited) => (at_once.unwrap_or(range.0), waited.unwrap_or(range.1)),
    };
    let steps = total.segments.windows(2).filter_map(|pair| {
        let (before, after): (&Segment, &Segment) = (&pair[0], &pair[1]);
        let rise = after.at(after.from) / before.at(after.from).max(f64::MIN_POSITIVE) - 1.0;
        let real = rise > STEP.max(4.0 * total.sigma);
        let within = before.to >= least && after.from <= most;
        (real && within).then_some((rise, before.to, after.from))
    });
    let step = steps.max_by(|a, b| a.0.total_cmp(&b.0));
    match (between, step) {
        ((Some(at_once), Some(_)), Some((_, before, after))) => {
            (before.max(at_once), Limit::Waiting(after))
        }
        ((Some(at_once), Some(waited)), None) => (at_once, Limit::Waiting(waited)),
        (_, Some((_, before, after))) => (before, Limit::Step(after)),
        _ => (range.1, Limit::Unseen),
    }
}

/// Lines from which the costs of the channel follow, nanoseconds.
struct Costs<'a> {
    total: &'a Piecewise,
    send: Option<&'a Piecewise>,
    receive: Option<&'a Piecewise>,
    eager_limit: u64,
    smallest: u64,
}

impl Costs<'_> {
    /// Returns the sizes at which a line begins or ends and the sizes next to the eager limit, between the smallest and the largest size
    /// measured.
    fn knots(&self, largest: u64) -> Vec<u64> {
        let ends = |fit: &Piecewise| -> Vec<u64> {
            let ends = fit
                .segments
                .iter()
                .flat_map(|segment| [segment.from, segment.to]);
            ends.collect()
        };
        let mut knots = ends(self.total);
        for fit in [self.send, self.receive].into_iter().flatten() {
            knots.extend(ends(fit));
        }
        if self.eager_limit < largest {
            knots.extend([self.eager_limit, self.eager_limit + 1]);
        }
        knots.retain(|&bytes| bytes >= self.smallest && bytes <= largest);
        knots.sort_unstable();
        knots.dedup();
        knots
    }

    /// Returns the one-way time. Between the eager limit and the first line above it, that line continues downwards.
    fn total(&self, bytes: u64) -> f64 {
        let segments = &self.total.segments;
        let next = segments.partition_point(|segment| segment.to < bytes);
        match segments.get(next) {
            Some(segment)
                if bytes > self.eager_limit
                    && bytes < segment.from
                    && next > 0
                    && segments[next - 1].to <= self.eager_limit =>
            {
                segment.at(bytes)
            }
            _ => self.total.at(bytes),
        }
    }

    fn crossings(&self, bytes: u64) -> f64 {
        if bytes > self.eager_limit { 3.0 } else { 1.0 }
    }

    /// Returns the time that a sender is busy, in nanoseconds; 0 if no sends were measured. Above the eager limit, the sender sends a
    /// request, which is taken to cost as much as a message of the smallest size.
    fn send(&self, bytes: u64) -> f64 {
        let bytes = if bytes > self.eager_limit {
            self.smallest
        } else {
            bytes
        };
        // A send that lasts longer than the one-way time has waited for something else.
        self.send
            .map_or(0.0, |send| send.at(bytes).max(0.0).min(self.total(bytes)))
    }

    /// Returns the receiver's overhead in nanoseconds by the late receives, or the sender's overhead if there are none; never more than the
    /// sender leaves of the one-way time. Above the eager limit, the overhead is that of the smallest size.
    fn receive(&self, bytes: u64) -> f64 {
        let bytes = if bytes > self.eager_limit {
            self.smallest
        } else {
            bytes
        };
        let rest = self.total(bytes) - self.send(bytes);
        match self.receive {
            Some(receive) => receive.at(bytes).clamp(0.0, rest.max(0.0)),
            None => self.send(bytes).min(rest).max(0.0),
        }
    }

    fn latency(&self, knots: &[u64]) -> f64 {
        let smallest = self.smallest;
        let rest = self.total(smallest) - self.send(smallest) - self.receive(smallest);
        // A rendezvous takes three latencies. So a third of the intercept of the first line above the eager limit bounds the latency,
        // where that third is plausible.
        let above = (self.total.segments.iter()).find(|segment| segment.from > self.eager_limit);
        let third = above.map_or(rest, |above| {
            (above.intercept - self.send(above.from)) / 3.0
        });
        let rest = if third > PLAUSIBLE * rest {
            rest.min(third)
        } else {
            rest
        };
        let asks = (knots.iter()).filter(|&&bytes| bytes > self.eager_limit);
        asks.map(|&bytes| (self.total(bytes) - self.send(bytes)) / 3.0)
            .fold(rest, f64::min)
            .max(0.0)
    }

    /// Returns the time per byte in nanoseconds: the slope of the last line, or less, so that latency and bytes do not exceed the time of
    /// any size.
    fn slope(&self, knots: &[u64], latency: f64) -> f64 {
        let last = self.total.segments.last().map_or(0.0, |last| last.slope);
        // Small sizes tell little about the slope.
        let matters = 2.0 * self.total(self.smallest);
        (knots.iter())
            .filter(|&&bytes| bytes > 0 && self.total(bytes) >= matters)
            .map(|&bytes| (self.total(bytes) - self.crossings(bytes) * latency) / bytes as f64)
            .fold(last, f64::min)
            .max(0.0)
    }

    /// Returns the channel, and the largest share of a one-way time by which latency and bandwidth alone exceed that time.
    fn channel(&self, knots: &[u64], base: Channel) -> (Channel, f64) {
        let mut channel = base;
        channel.eager_limit = self.eager_limit;
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        let mut clipped: f64 = 0.0;
        let mut add = |bytes: u64, total: f64| {
            let rest = total - way(&channel, bytes) as f64 / 1e3;
            let (send, receive) = match self.send {
                // A send that ends only when the message has arrived contains the wire's time, so the remainder bounds it.
                Some(_) => {
                    let send = self.send(bytes).min(rest.max(0.0));
                    (send, rest - send)
                }
                None => (rest / 2.0, rest / 2.0),
            };
            clipped = clipped.max(-rest / total);
            sends.push((bytes, picoseconds(send)));
            // A receiver handles frames while further frames come.
            receives.push((
                bytes,
                picoseconds(receive) + channel.wire_after_first(bytes),
            ));
        };
        for &bytes in knots {
            add(bytes, self.total(bytes));
        }
        let last = self.total.segments.last();
        if let (Some(last), Some(&largest)) = (last, knots.last())
            && largest < BEYOND
        {
            let more = (BEYOND - largest) as f64 * last.slope.max(0.0);
            add(BEYOND, self.total(largest) + more);
        }
        channel.send_overhead = table(sends);
        channel.receive_overhead = table(receives);
        (channel, clipped)
    }
}

/// Returns the table of fitted lines, of their ends and of one more size in bytes between the ends.
pub(crate) fn lines(fit: &Piecewise, more: Option<u64>) -> Table {
    let ends = (fit.segments.iter()).flat_map(|segment| [segment.from, segment.to]);
    let mut sizes: Vec<u64> = ends.collect();
    let range = sizes.first().copied().zip(sizes.last().copied());
    sizes.extend(more.filter(|more| range.is_some_and(|(from, to)| (from..=to).contains(more))));
    sizes.sort_unstable();
    sizes.dedup();
    let points = sizes.into_iter();
    table(
        points
            .map(|bytes| (bytes, picoseconds(fit.at(bytes))))
            .collect(),
    )
}

/// Returns a table without points that lie on the line between their neighbours.
fn table(points: Vec<(u64, u64)>) -> Table {
    let mut kept: Vec<(u64, u64)> = Vec::new();
    for (at, &point) in points.iter().enumerate() {
        if let (Some(&before), Some(&after)) = (kept.last(), points.get(at + 1)) {
            let line = Table {
                points: vec![before, after],
            };
            if line.at(point.0).abs_diff(point.1) <= 1 {
                continue;
            }
        }
        kept.push(point);
    }
    if kept.iter().all(|&(_, time)| time == kept[0].1) {
        return Table::constant(kept.first().map_or(0, |point| point.1));
    }
    Table { points: kept }
}
