//! Second pass over a trace, for formats that contain the steps of calls.

use std::collections::HashMap;

use nodescope_trace::{Body, Event};

use crate::Job;
use crate::error::ExportError;
use crate::steps::{Resolver, SteppedCall};

/// Receiver of a trace's calls and other events, one at a time.
pub(crate) trait Sink {
    /// Takes a call with its steps. Its receives have their messages, unless they were cancelled or the trace lacks their completion. Calls
    /// of one process come in the order of the trace; calls of different processes come in any order.
    fn call(&mut self, stepped: SteppedCall) -> Result<(), ExportError>;

    /// Takes an event other than an ended call of a known rank, in the order of the trace. `_location` is the thread of a call that had not
    /// ended; such calls come after all other events.
    fn other(&mut self, _event: &Event, _location: Option<usize>) -> Result<(), ExportError> {
        Ok(())
    }
}

/// Passes the trace to a sink. Returns notes for the user.
pub(crate) fn stream(job: &Job<'_>, sink: &mut impl Sink) -> Result<Vec<String>, ExportError> {
    let survey = job.survey;
    let mut resolvers: Vec<Resolver> = Vec::new();
    resolvers.resize_with(survey.processes.len(), Resolver::default);
    let mut unfinished = Vec::new();
    survey.replay::<ExportError>(job.trace, |event, location| {
        if let (Body::Mpi(_), Some(location)) = (&event.body, location) {
            let Body::Mpi(call) = event.body else {
                return Ok(());
            };
            let resolver = &mut resolvers[survey.locations[location].process];
            resolver.push(location, call);
            while let Some(stepped) = resolver.pop() {
                sink.call(stepped)?;
            }
            return Ok(());
        }
        if matches!(event.body, Body::Unfinished(_)) {
            unfinished.push((event, location));
            return Ok(());
        }
        sink.other(&event, location)
    })?;
    for resolver in &mut resolvers {
        while let Some(stepped) = resolver.take() {
            sink.call(stepped)?;
        }
    }
    for (event, location) in &unfinished {
        sink.other(event, *location)?;
    }
    let unknown: u64 = resolvers.iter().map(Resolver::unknown).sum();
    Ok((unknown > 0)
        .then(|| format!("{unknown} requests completed whose beginning is not in the trace"))
        .into_iter()
        .collect())
}

/// Channels of messages, by sender, receiver, communicator and tag. On a channel, messages do not overtake each other (MPI 3.1,
/// section 3.5), so that the k-th receive posted takes the k-th message sent.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    channels: HashMap<Channel, Counts>,
}

/// Channel on which messages do not overtake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Channel {
    pub(crate) world: usize,
    pub(crate) communicator: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) tag: u32,
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    number: u64,
    sent: u64,
    received: u64,
}

impl Channels {
    fn counts(&mut self, channel: Channel) -> &mut Counts {
        let number = self.channels.len() as u64;
        self.channels.entry(channel).or_insert(Counts {
            number,
            sent: 0,
            received: 0,
        })
    }

    /// Returns a unique number for the next message sent on a channel.
    pub(crate) fn send(&mut self, channel: Channel) -> u64 {
        let counts = self.counts(channel);
        counts.sent += 1;
        (counts.number << 32) | (counts.sent & 0xFFFF_FFFF)
    }

    /// Returns the number of the next message received on a channel, which equals the number that its send got.
    pub(crate) fn receive(&mut self, channel: Channel) -> u64 {
        let counts = self.counts(channel);
        counts.received += 1;
        (counts.number << 32) | (counts.received & 0xFFFF_FFFF)
    }
}
