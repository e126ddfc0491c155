//! Measurements from the round trips of a trace: one-way times, times in sends, times in late receives.
//!
//! A round trip is a blocking send and, as the rank's next call, a blocking receive of as many bytes. The rank that answers receives the
//! first message and sends the second in its next call. The time between these two calls belongs to the program and is subtracted. So is
//! the time of the tracer, half of it before a call and half after. The difference between the clocks of two ranks follows from their
//! round trips as in network time protocols: a message is taken to need as long in one direction as in the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nodescope_hypercall::{Function, Peer, Tag};
use nodescope_trace::{Body, Event, MpiCall};

use crate::piecewise::median;
use crate::{CalibrateError, Measurements, Sample};

/// Least delay of a late receive after its send, in multiples of the message's one-way time.
const LATE: f64 = 8.0;

/// Fewest late receives of a size for that size to count. Fewer may be accidents of scheduling.
const FEWEST_LATE: usize = 6;

/// Sends or receives by rank, peer, communicator and tag; each is a rank and the index of a call.
type Lanes = HashMap<(u32, u32, u64, Tag), Vec<(u32, usize)>>;

/// A blocking call with one message; times in picoseconds of the trace's clock.
#[derive(Clone, Copy, Debug)]
struct Call {
    sends: bool,
    bytes: u64,
    entry: i64,
    exit: i64,
    inside: i64,
    /// True if the rank's previous call was a poll (`MPI_Iprobe`), in which its MPI library could already move messages.
    after_polls: bool,
    /// Other end of the message: its rank and the index of its call.
    other: Option<(u32, usize)>,
}

impl Call {
    /// Returns half the time that the tracer took in the call, picoseconds. The tracer is taken to spend this much before the MPI function
    /// and again after it.
    fn own(&self) -> i64 {
        (self.exit - self.entry - self.inside).max(0) / 2
    }
}

/// Collector of measurements from the events of a trace.
#[derive(Debug, Default)]
pub struct Collector {
    /// Calls by rank, in order; `None` for a call that is not measured.
    calls: BTreeMap<u32, Vec<Option<Call>>>,
    sent: Lanes,
    received: Lanes,
    /// Ranks whose last call was a poll (`MPI_Iprobe`).
    polling: BTreeSet<u32>,
    /// Ranks with other calls that receive or send on a communicator, such as nonblocking receives or persistent operations, and the peers of
    /// these calls. Their sends and receives on this communicator are not matched.
    other_receives: BTreeSet<(u32, u64)>,
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
        let Some(rank) = record.rank.rank() else {
            return;
        };
        let after_polls = self.polling.remove(&rank);
        if record.function == Function::Iprobe {
            self.polling.insert(rank);
        }
        let calls = self.calls.entry(rank).or_default();
        let index = calls.len();
        let new = |sends, bytes| {
            Some(Call {
                sends,
                bytes,
                entry: call.entry.time as i64,
                exit: call.exit.time as i64,
                inside: call.time_inside as i64,
                after_polls,
                other: None,
            })
        };
        let lane = |peer: u32, tag| (rank, peer, record.communicator, tag);
        use Function as F;
        match record.function {
            F::Send
            | F::Bsend
            | F::Ssend
            | F::Rsend
            | F::Isend
            | F::Ibsend
            | F::Issend
            | F::Irsend => {
                // Every send counts in the order of messages, but only standard blocking sends are measured.
                let standard = record.function == F::Send;
                calls.push(new(true, record.send_bytes).filter(|_| standard && call.entry_seen));
                if let Peer::Rank(to) = record.destination {
                    let lane = lane(to, record.send_tag);
                    self.sent.entry(lane).or_default().push((rank, index));
                }
            }
            F::Recv => {
                let came = record.completions.first().copied().unwrap_or_default();
                calls.push(new(false, came.bytes).filter(|_| call.entry_seen));
                if let Peer::Rank(from) = came.source {
                    let lane = lane(from, came.tag);
                    self.received.entry(lane).or_default().push((rank, index));
                }
            }
            F::Sendrecv
            | F::SendrecvReplace
            | F::Irecv
            | F::RecvInit
            | F::Mrecv
            | F::Imrecv
            | F::Isendrecv
            | F::SendInit
            | F::BsendInit
            | F::SsendInit
            | F::RsendInit => {
                calls.push(None);
                let communicator = record.communicator;
                self.other_receives.insert((rank, communicator));
                // Messages of these calls would disturb the order by which sends and receives are matched.
                for peer in [record.destination, record.source] {
                    if let Peer::Rank(peer) = peer {
                        self.other_receives.insert((peer, communicator));
                    }
                }
            }
            _ => calls.push(None),
        }
    }

    /// Returns the measurements from all events.
    ///
    /// # Errors
    ///
    /// A trace without round trips, or with round trips of one size only.
    pub fn finish(mut self, source: &str) -> Result<Measurements, CalibrateError> {
        self.join();
        let mut trips = BTreeMap::<u64, Vec<f64>>::new();
        let mut skews = BTreeMap::<(u32, u32), Vec<f64>>::new();
        for (&a, calls) in &self.calls {
            for index in 1..calls.len() {
                if let Some(trip) = self.trip(a, index) {
                    trips.entry(trip.bytes).or_default().push(trip.one_way);
                    skews.entry((a, trip.with)).or_default().push(trip.skew);
                }
            }
        }
        if trips.is_empty() {
            return Err(CalibrateError::Unusable {
                from: source.into(),
                what: "has no round trips: MPI_Send, MPI_Recv on one rank answered by MPI_Recv, MPI_Send of as many bytes on another; trace a ping-pong".into(),
            });
        }
        if trips.len() < 2 {
            return Err(CalibrateError::Unusable {
                from: source.into(),
                what: "has round trips of one size only, from which latency and bandwidth do not both follow".into(),
            });
        }
        let one_way = samples(trips);
        let skews: BTreeMap<(u32, u32), f64> = skews
            .into_iter()
            .map(|(ranks, skews)| (ranks, median(skews)))
            .collect();
        let mut found = Measurements {
            source: source.into(),
            one_way,
            ..Measurements::default()
        };
        self.ends(&skews, &mut found);
        Ok(found)
    }

    /// Returns by how much the clock of a pair's second rank is before that of its first, nanoseconds, for each pair with round trips.
    pub(crate) fn skews(mut self) -> BTreeMap<(u32, u32), f64> {
        self.join();
        let mut skews = BTreeMap::<(u32, u32), Vec<f64>>::new();
        for (&a, calls) in &self.calls {
            for trip in (1..calls.len()).filter_map(|index| self.trip(a, index)) {
                skews.entry((a, trip.with)).or_default().push(trip.skew);
            }
        }
        (skews.into_iter())
            .map(|(ranks, skews)| (ranks, median(skews)))
            .collect()
    }

    /// Matches sends with receives in order, because messages of one lane do not overtake each other.
    fn join(&mut self) {
        for (&(from, to, communicator, tag), sends) in &self.sent {
            let others = |rank| self.other_receives.contains(&(rank, communicator));
            if others(from) || others(to) {
                continue;
            }
            let receives = self.received.get(&(to, from, communicator, tag));
            for (&send, &receive) in sends.iter().zip(receives.into_iter().flatten()) {
                for (end, other) in [(send, receive), (receive, send)] {
                    let calls = self.calls.get_mut(&end.0);
                    if let Some(Some(call)) = calls.and_then(|calls| calls.get_mut(end.1)) {
                        call.other = Some(other);
                    }
                }
            }
        }
    }

    fn get(&self, (rank, index): (u32, usize)) -> Option<&Call> {
        self.calls.get(&rank)?.get(index)?.as_ref()
    }

    /// Returns the round trip whose answer rank `a` receives in its call `index`, from 0; `None` if that call ends no round trip.
    fn trip(&self, a: u32, index: usize) -> Option<Trip> {
        let (send, receive) = (self.get((a, index - 1))?, self.get((a, index))?);
        if !send.sends || receive.sends || send.bytes != receive.bytes {
            return None;
        }
        let (there, back) = (send.other?, receive.other?);
        let (got, answer) = (self.get(there)?, self.get(back)?);
        if there.0 != back.0 || there.0 == a || back.1 != there.1 + 1 {
            return None;
        }
        let (start, end) = (send.entry + send.own(), receive.exit - receive.own());
        let (arrived, left) = (got.exit - got.own(), answer.entry + answer.own());
        let time = (end - start) - (left - arrived);
        (time > 0).then(|| Trip {
            with: there.0,
            bytes: send.bytes,
            one_way: time as f64 / 2e3,
            // Clock of the other rank minus the clock of rank `a`.
            skew: ((arrived - start) as f64 - (end - left) as f64) / 2e3,
        })
    }

    /// Measures the times in sends and in late receives, and the sizes around the eager limit.
    fn ends(&self, skews: &BTreeMap<(u32, u32), f64>, found: &mut Measurements) {
        let lasts = |bytes: u64| {
            let next = found.one_way.partition_point(|sample| sample.bytes < bytes);
            let sample = found.one_way.get(next).or(found.one_way.last());
            sample.map_or(0.0, |sample| sample.time)
        };
        let mut sends = BTreeMap::<u64, Vec<f64>>::new();
        let mut receives = BTreeMap::<u64, Vec<f64>>::new();
        // Number of sends by size, [did not wait, waited] for their late receives; first of receives after work, then of receives after
        // polls.
        let mut late = [BTreeMap::new(), BTreeMap::<u64, [usize; 2]>::new()];
        for (&from, calls) in &self.calls {
            for send in calls.iter().flatten().filter(|call| call.sends) {
                sends
                    .entry(send.bytes)
                    .or_default()
                    .push(send.inside as f64 / 1e3);
                let Some((to, receive)) = send.other.and_then(|to| Some((to.0, self.get(to)?)))
                else {
                    continue;
                };
                let skew = match (skews.get(&(from, to)), skews.get(&(to, from))) {
                    (Some(skew), _) => *skew,
                    (None, Some(skew)) => -skew,
                    (None, None) => continue,
                };
                let begins = receive.entry as f64 / 1e3 - skew;
                if begins - send.entry as f64 / 1e3 < LATE * lasts(send.bytes) {
                    continue;
                }
                let waits = send.exit as f64 / 1e3 >= begins;
                let counts = late[usize::from(receive.after_polls)].entry(send.bytes);
                counts.or_default()[usize::from(waits)] += 1;
                if !receive.after_polls {
                    let time = receive.inside as f64 / 1e3;
                    receives.entry(send.bytes).or_default().push(time);
                }
            }
        }
        for late in &mut late {
            late.retain(|_, counts| counts[0] + counts[1] >= FEWEST_LATE);
        }
        receives.retain(|_, times| times.len() >= FEWEST_LATE);
        // After polls, MPI could already move messages, so a send that still waits does so for its receive.
        let [after_work, after_polls] = &late;
        let shows = if after_polls.is_empty() {
            after_work
        } else {
            after_polls
        };
        let most = |waits: usize| {
            (shows.iter())
                .filter(move |(_, counts)| counts[waits] > counts[1 - waits])
                .map(|(&bytes, _)| bytes)
        };
        found.waited = most(1).min();
        found.sent_at_once = most(0).max();
        if let (Some(least), Some(largest)) = (found.waited, found.sent_at_once)
            && least < largest
        {
            // A send below the limit can wait for buffer space too.
            found.notes.push(format!(
                "sends of {least} B waited for their receives, sends of {largest} B did not: the eager limit is taken to be the larger"
            ));
            found.waited = most(1).find(|&bytes| bytes > largest);
        }
        let limit = found.sent_at_once.unwrap_or(u64::MAX);
        let held =
            (after_work.iter()).find(|(bytes, counts)| **bytes <= limit && counts[1] > counts[0]);
        if let Some((bytes, _)) = held {
            found.notes.push(format!(
                "sends of {bytes} B and more, though sent at once, wait until their receivers call MPI; predictions do not know that"
            ));
        }
        receives.retain(|&bytes, _| bytes <= limit);
        found.receive = samples(receives);
        sends.retain(|&bytes, _| bytes <= limit);
        found.send = samples(sends);
    }
}

/// A round trip; times in nanoseconds.
struct Trip {
    with: u32,
    bytes: u64,
    one_way: f64,
    skew: f64,
}

fn samples(times: BTreeMap<u64, Vec<f64>>) -> Vec<Sample> {
    (times.into_iter())
        .filter_map(|(bytes, times)| Sample::median(bytes, times))
        .collect()
}
