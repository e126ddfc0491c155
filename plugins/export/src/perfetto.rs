//! Export for Perfetto: `trace.perfetto-trace`, the packets that ui.perfetto.dev and its trace processor read
//! (perfetto.dev, "TrackEvent" and the reference of its protocol buffers).
//!
//! Each thread has a track, each call a slice, and each message a flow. Names are interned, so that a call takes about 60 bytes.

use std::collections::HashMap;

use nodescope_trace::{Body, Event};
use prost::Message;

use crate::error::ExportError;
use crate::labels::{Value, arguments};
use crate::output::Output;
use crate::proto::{
    Annotation, Interned, Kind, Name, Packet, Process, Thread, Trace, Track, TrackEvent,
};
use crate::slices::Slices;
use crate::steps::{Operation, Step, SteppedCall};
use crate::stream::{Channel, Channels, Sink, stream};
use crate::survey::Survey;
use crate::{Job, Summary};

/// Writes `trace.perfetto-trace`.
pub(crate) fn write(job: &Job<'_>) -> Result<Summary, ExportError> {
    let out = Output::create(job.file("trace.perfetto-trace"))?;
    let mut sink = Perfetto {
        survey: job.survey,
        out,
        names: HashMap::new(),
        arguments: HashMap::new(),
        fresh: Interned::default(),
        channels: Channels::default(),
        slices: Slices::new(job.survey.locations.len()),
    };
    sink.begin()?;
    let notes = stream(job, &mut sink)?;
    Ok(Summary {
        files: vec![sink.out.finish()?],
        notes,
        ..Summary::default()
    })
}

struct Perfetto<'a> {
    survey: &'a Survey,
    out: Output,
    names: HashMap<&'static str, u64>,
    arguments: HashMap<&'static str, u64>,
    /// Names interned since the last packet, which the next packet must contain.
    fresh: Interned,
    channels: Channels,
    slices: Slices,
}

/// Id of the only sequence of packets.
const SEQUENCE: u32 = 1;
/// Sequence flag: the incremental state, which is the interned names, begins anew.
const CLEARED: u32 = 1;
/// Sequence flag: the packet needs the incremental state.
const NEEDED: u32 = 2;
/// Id of the track of events that belong to no thread, such as windows.
const STUDY_TRACK: u64 = 1;

fn process_track(process: usize) -> u64 {
    1 << 32 | process as u64
}

fn thread_track(location: usize) -> u64 {
    2 << 32 | location as u64
}

impl Perfetto<'_> {
    fn put(&mut self, packet: Packet) -> Result<(), ExportError> {
        let part = Trace {
            packet: vec![Packet {
                sequence_id: SEQUENCE,
                ..packet
            }],
        };
        self.out.put(part.encode_to_vec())
    }

    fn track(&mut self, track: Track) -> Result<(), ExportError> {
        self.put(Packet {
            track: Some(track),
            ..Packet::default()
        })
    }

    fn begin(&mut self) -> Result<(), ExportError> {
        self.put(Packet {
            sequence_flags: CLEARED,
            interned: Some(Interned {
                categories: vec![name(1, "mpi")],
                ..Interned::default()
            }),
            ..Packet::default()
        })?;
        let survey = self.survey;
        self.track(Track {
            uuid: STUDY_TRACK,
            name: Some(format!("study {}", survey.header.study)),
            ..Track::default()
        })?;
        for (number, process) in survey.processes.iter().enumerate() {
            self.track(Track {
                uuid: process_track(number),
                process: Some(Process {
                    // Process ids of guests repeat between nodes, but viewers need unique ids.
                    pid: id(number, 1),
                    name: format!(
                        "{} ({})",
                        survey.process_name(number),
                        survey.node_name(process.node)
                    ),
                }),
                ..Track::default()
            })?;
        }
        for (number, location) in survey.locations.iter().enumerate() {
            self.track(Track {
                uuid: thread_track(number),
                parent: Some(process_track(location.process)),
                thread: Some(Thread {
                    pid: id(location.process, 1),
                    tid: id(number, 1_000_000),
                    name: survey.location_name(number),
                }),
                ..Track::default()
            })?;
        }
        Ok(())
    }

    fn name(&mut self, text: &'static str) -> u64 {
        let next = self.names.len() as u64 + 1;
        *self.names.entry(text).or_insert_with(|| {
            self.fresh.event_names.push(name(next, text));
            next
        })
    }

    fn argument(&mut self, text: &'static str) -> u64 {
        let next = self.arguments.len() as u64 + 1;
        *self.arguments.entry(text).or_insert_with(|| {
            self.fresh.annotation_names.push(name(next, text));
            next
        })
    }

    /// Writes a packet with an event; `time` is in picoseconds.
    fn event(&mut self, time: u64, kind: Kind, event: TrackEvent) -> Result<(), ExportError> {
        let fresh = std::mem::take(&mut self.fresh);
        self.put(Packet {
            timestamp: Some(time / 1000),
            sequence_flags: NEEDED,
            interned: (fresh.encoded_len() > 0).then_some(fresh),
            event: Some(TrackEvent {
                kind: kind.into(),
                ..event
            }),
            ..Packet::default()
        })
    }
}

fn name(iid: u64, text: &str) -> Name {
    Name {
        iid,
        name: text.into(),
    }
}

/// Returns the id of a process or thread: its number plus `first`.
fn id(number: usize, first: i32) -> i32 {
    i32::try_from(number).map_or(i32::MAX, |number| number.saturating_add(first))
}

impl Sink for Perfetto<'_> {
    fn call(&mut self, stepped: SteppedCall) -> Result<(), ExportError> {
        let (call, location) = (&stepped.call, stepped.location);
        let process = self.survey.process_of(location);
        let (world, rank) = (process.world, process.rank);
        let list = arguments(
            &call.record,
            &self.survey.worlds[world],
            call.instructions_inside,
        );
        let list: Vec<(u64, Value)> = list
            .into_iter()
            .map(|(name, value)| (self.argument(name), value))
            .collect();
        let name = self.name(call.record.function.name());
        let mut sent = Vec::new();
        let mut received = Vec::new();
        for step in &stepped.steps {
            match step {
                Step::Send(send) => sent.push(self.channels.send(Channel {
                    world,
                    communicator: send.communicator,
                    from: rank,
                    to: send.to,
                    tag: send.tag,
                })),
                Step::Receive(posted) => {
                    let Some(message) = &posted.message else {
                        continue;
                    };
                    let number = self.channels.receive(Channel {
                        world,
                        communicator: posted.communicator,
                        from: message.from,
                        to: rank,
                        tag: message.tag,
                    });
                    received.push((number, message.completed));
                }
                Step::Complete {
                    operation: Operation::Send(_) | Operation::Receive(_) | Operation::Collective(_),
                    ..
                }
                | Step::Collective(_) => {}
            }
        }
        let track = thread_track(location);
        let entry = (self.slices).begin(location, call.entry.time, call.exit.time);
        let annotations = list.into_iter().map(|(name, value)| {
            let mut annotation = Annotation {
                name,
                ..Annotation::default()
            };
            match value {
                Value::Number(value) => annotation.number = Some(value),
                Value::Text(text) => annotation.text = Some(text),
                Value::Address(address) => annotation.pointer = Some(address),
            }
            annotation
        });
        let slice = TrackEvent {
            categories: vec![1],
            annotations: annotations.collect(),
            name: Some(name),
            track,
            flows: sent,
            ..TrackEvent::default()
        };
        self.event(entry, Kind::Begin, slice)?;
        let end = TrackEvent {
            track,
            ..TrackEvent::default()
        };
        self.event(call.exit.time, Kind::End, end)?;
        for (number, (entry, exit)) in received {
            // A flow must end later than its beginning. So the flow ends not at the beginning of the wait, but one nanosecond before the
            // end of the call that completed the receive, when the message has arrived.
            let arrival = TrackEvent {
                categories: vec![1],
                name: Some(self.name("message")),
                track,
                last_flows: vec![number],
                ..TrackEvent::default()
            };
            let time = exit.saturating_sub(1000).max(entry);
            self.event(time, Kind::Instant, arrival)?;
        }
        Ok(())
    }

    fn other(&mut self, event: &Event, location: Option<usize>) -> Result<(), ExportError> {
        let (time, text) = match &event.body {
            Body::Mark(text) => (event.stamp.time, format!("mark {text}")),
            Body::WindowOpen(name) => (event.stamp.time, format!("window {name} opens")),
            Body::WindowClose(name) => (event.stamp.time, format!("window {name} closes")),
            Body::Message(text) => (event.stamp.time, text.clone()),
            Body::JobExit(status) => (event.stamp.time, format!("job exits with {status}")),
            Body::Unfinished(call) => {
                if let Some(location) = location {
                    // The slice has no end: viewers extend it to the end of the trace.
                    let slice = TrackEvent {
                        categories: vec![1],
                        name: Some(self.name(call.function.name())),
                        track: thread_track(location),
                        ..TrackEvent::default()
                    };
                    self.event(call.entry.time, Kind::Begin, slice)?;
                }
                return Ok(());
            }
            Body::Mpi(_) | Body::Process(_) => return Ok(()),
        };
        let text = format!("{text} ({})", self.survey.node_name(event.node));
        let instant = TrackEvent {
            track: STUDY_TRACK,
            name_text: Some(text),
            ..TrackEvent::default()
        };
        self.event(time, Kind::Instant, instant)
    }
}
