//! Perfetto: `trace.perfetto-trace`, the packets that ui.perfetto.dev and its trace processor read
//! (perfetto.dev, "TrackEvent" and the reference of its protocol buffers).
//!
//! A track for each thread, a slice for each call, a flow for each message. Names are interned, so that a call takes some 60 bytes.

use std::collections::HashMap;

use nodescope_trace::{Body, Event};

use crate::error::ExportError;
use crate::labels::{Value, arguments};
use crate::output::Output;
use crate::proto::Message;
use crate::slices::Slices;
use crate::steps::{Operation, Step, Stepped};
use crate::stream::{Channel, Channels, Sink, stream};
use crate::survey::Survey;
use crate::{Job, Summary};

/// Field numbers of Perfetto's messages.
mod field {
    pub(super) const TRACE_PACKET: u32 = 1;
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE_ID: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const INTERNED_DATA: u32 = 12;
    pub(super) const SEQUENCE_FLAGS: u32 = 13;
    pub(super) const TRACK_DESCRIPTOR: u32 = 60;
    pub(super) mod descriptor {
        pub(crate) const UUID: u32 = 1;
        pub(crate) const NAME: u32 = 2;
        pub(crate) const PROCESS: u32 = 3;
        pub(crate) const THREAD: u32 = 4;
        pub(crate) const PARENT: u32 = 5;
        pub(crate) const PROCESS_PID: u32 = 1;
        pub(crate) const PROCESS_NAME: u32 = 6;
        pub(crate) const THREAD_PID: u32 = 1;
        pub(crate) const THREAD_TID: u32 = 2;
        pub(crate) const THREAD_NAME: u32 = 5;
    }
    pub(super) mod event {
        pub(crate) const CATEGORY: u32 = 3;
        pub(crate) const ANNOTATION: u32 = 4;
        pub(crate) const TYPE: u32 = 9;
        pub(crate) const NAME: u32 = 10;
        pub(crate) const TRACK: u32 = 11;
        pub(crate) const NAME_TEXT: u32 = 23;
        pub(crate) const FLOW: u32 = 47;
        pub(crate) const LAST_FLOW: u32 = 48;
    }
    pub(super) mod annotation {
        pub(crate) const NAME: u32 = 1;
        pub(crate) const UINT: u32 = 3;
        pub(crate) const STRING: u32 = 6;
        pub(crate) const POINTER: u32 = 7;
    }
    pub(super) mod interned {
        pub(crate) const CATEGORY: u32 = 1;
        pub(crate) const EVENT_NAME: u32 = 2;
        pub(crate) const ANNOTATION_NAME: u32 = 3;
        pub(crate) const IID: u32 = 1;
        pub(crate) const NAME: u32 = 2;
    }
}

/// Values of `TrackEvent.Type`.
#[derive(Clone, Copy)]
enum Type {
    Begin = 1,
    End = 2,
    Instant = 3,
}

/// Writes `trace.perfetto-trace`.
pub(crate) fn write(job: &Job<'_>) -> Result<Summary, ExportError> {
    let out = Output::create(job.file("trace.perfetto-trace"))?;
    let mut sink = Perfetto {
        survey: job.survey,
        out,
        packet: Message::default(),
        names: HashMap::new(),
        arguments: HashMap::new(),
        fresh: Message::default(),
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
    packet: Message,
    names: HashMap<&'static str, u64>,
    arguments: HashMap<&'static str, u64>,
    /// Names interned since the last packet.
    fresh: Message,
    channels: Channels,
    slices: Slices,
}

/// The only sequence of packets.
const SEQUENCE: u64 = 1;
/// The track of what is nobody's, such as windows.
const STUDY_TRACK: u64 = 1;

fn process_track(process: usize) -> u64 {
    1 << 32 | process as u64
}

fn thread_track(location: usize) -> u64 {
    2 << 32 | location as u64
}

impl Perfetto<'_> {
    fn put(&mut self) -> Result<(), ExportError> {
        let mut head = Message::default();
        head.text(field::TRACE_PACKET, self.packet.bytes());
        self.packet.clear();
        self.out.put(head.bytes())
    }

    fn begin(&mut self) -> Result<(), ExportError> {
        use field::{descriptor, interned};
        self.packet
            .number(field::SEQUENCE_ID, SEQUENCE)
            // The incremental state is cleared.
            .number(field::SEQUENCE_FLAGS, 1)
            .message(field::INTERNED_DATA, |data| {
                data.message(interned::CATEGORY, |name| {
                    name.number(interned::IID, 1).text(interned::NAME, "mpi");
                });
            });
        self.put()?;
        let study = self.survey.header.study.clone();
        self.packet.number(field::SEQUENCE_ID, SEQUENCE).message(
            field::TRACK_DESCRIPTOR,
            |track| {
                track
                    .number(descriptor::UUID, STUDY_TRACK)
                    .text(descriptor::NAME, format!("study {study}"));
            },
        );
        self.put()?;
        for (number, process) in self.survey.processes.iter().enumerate() {
            let name = format!(
                "{} ({})",
                self.survey.process_name(number),
                self.survey.node_name(process.node)
            );
            self.packet.number(field::SEQUENCE_ID, SEQUENCE).message(
                field::TRACK_DESCRIPTOR,
                |track| {
                    track
                        .number(descriptor::UUID, process_track(number))
                        .message(descriptor::PROCESS, |entry| {
                            // Guests' ids repeat between nodes; viewers want them unique.
                            entry
                                .number(descriptor::PROCESS_PID, number as u64 + 1)
                                .text(descriptor::PROCESS_NAME, &name);
                        });
                },
            );
            self.put()?;
        }
        for (number, location) in self.survey.locations.iter().enumerate() {
            let name = self.survey.location_name(number);
            self.packet.number(field::SEQUENCE_ID, SEQUENCE).message(
                field::TRACK_DESCRIPTOR,
                |track| {
                    track
                        .number(descriptor::UUID, thread_track(number))
                        .number(descriptor::PARENT, process_track(location.process))
                        .message(descriptor::THREAD, |entry| {
                            entry
                                .number(descriptor::THREAD_PID, location.process as u64 + 1)
                                .number(descriptor::THREAD_TID, number as u64 + 1_000_000)
                                .text(descriptor::THREAD_NAME, &name);
                        });
                },
            );
            self.put()?;
        }
        Ok(())
    }

    fn name(&mut self, name: &'static str) -> u64 {
        let next = self.names.len() as u64 + 1;
        *self.names.entry(name).or_insert_with(|| {
            intern(&mut self.fresh, field::interned::EVENT_NAME, next, name);
            next
        })
    }

    fn argument(&mut self, name: &'static str) -> u64 {
        let next = self.arguments.len() as u64 + 1;
        *self.arguments.entry(name).or_insert_with(|| {
            let field = field::interned::ANNOTATION_NAME;
            intern(&mut self.fresh, field, next, name);
            next
        })
    }

    /// A packet with an event at a time in picoseconds.
    fn event(
        &mut self,
        time: u64,
        kind: Type,
        track: u64,
        build: impl FnOnce(&mut Message),
    ) -> Result<(), ExportError> {
        if !self.fresh.bytes().is_empty() {
            self.packet.text(field::INTERNED_DATA, self.fresh.bytes());
            self.fresh.clear();
        }
        self.packet
            .number(field::TIMESTAMP, time / 1000)
            .number(field::SEQUENCE_ID, SEQUENCE)
            // It needs the incremental state: the names.
            .number(field::SEQUENCE_FLAGS, 2)
            .message(field::TRACK_EVENT, |event| {
                event
                    .number(field::event::TYPE, kind as u64)
                    .number(field::event::TRACK, track);
                build(event);
            });
        self.put()
    }
}

fn intern(data: &mut Message, kind: u32, iid: u64, name: &str) {
    data.message(kind, |entry| {
        entry
            .number(field::interned::IID, iid)
            .text(field::interned::NAME, name);
    });
}

impl Sink for Perfetto<'_> {
    fn call(&mut self, stepped: Stepped) -> Result<(), ExportError> {
        use field::{annotation, event};
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
        self.event(entry, Type::Begin, track, |slice| {
            slice.number(event::CATEGORY, 1).number(event::NAME, name);
            for (name, value) in &list {
                slice.message(event::ANNOTATION, |entry| {
                    entry.number(annotation::NAME, *name);
                    match value {
                        Value::Number(value) => entry.number(annotation::UINT, *value),
                        Value::Text(text) => entry.text(annotation::STRING, text),
                        Value::Address(address) => entry.number(annotation::POINTER, *address),
                    };
                });
            }
            for &number in &sent {
                slice.fixed(event::FLOW, number);
            }
        })?;
        self.event(call.exit.time, Type::End, track, |_| {})?;
        for (number, (entry, exit)) in received {
            // A flow ends at what comes later than its beginning: not at the beginning of the wait, but where the message is there,
            // inside the slice.
            let arrival = self.name("message");
            let time = exit.saturating_sub(1000).max(entry);
            self.event(time, Type::Instant, track, |instant| {
                instant
                    .number(event::CATEGORY, 1)
                    .number(event::NAME, arrival)
                    .fixed(event::LAST_FLOW, number);
            })?;
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
                    // A slice without an end: viewers let it last to the end of the trace.
                    let name = self.name(call.function.name());
                    let track = thread_track(location);
                    self.event(call.entry.time, Type::Begin, track, |slice| {
                        slice
                            .number(field::event::CATEGORY, 1)
                            .number(field::event::NAME, name);
                    })?;
                }
                return Ok(());
            }
            Body::Mpi(_) | Body::Process(_) => return Ok(()),
        };
        let text = format!("{text} ({})", self.survey.node_name(event.node));
        self.event(time, Type::Instant, STUDY_TRACK, |instant| {
            instant.text(field::event::NAME_TEXT, &text);
        })
    }
}
