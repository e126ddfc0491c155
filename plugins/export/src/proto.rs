//! Perfetto's messages, as far as the export uses them (perfetto.dev, reference of the trace's protocol buffers).

use prost::Message;

/// A trace, or a part of a trace: the encoded bytes of parts can be concatenated.
#[derive(Message)]
pub(crate) struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub(crate) packet: Vec<Packet>,
}

/// Perfetto's message `TracePacket`.
#[derive(Message)]
pub(crate) struct Packet {
    /// Time of the event in nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    pub(crate) timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub(crate) sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    pub(crate) event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(crate) interned: Option<Interned>,
    #[prost(uint32, tag = "13")]
    pub(crate) sequence_flags: u32,
    #[prost(message, optional, tag = "60")]
    pub(crate) track: Option<Track>,
}

/// Perfetto's message `TrackEvent`.
#[derive(Message)]
pub(crate) struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub(crate) categories: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) annotations: Vec<Annotation>,
    #[prost(enumeration = "Kind", tag = "9")]
    pub(crate) kind: i32,
    /// Number of the event's name among the interned event names.
    #[prost(uint64, optional, tag = "10")]
    pub(crate) name: Option<u64>,
    #[prost(uint64, tag = "11")]
    pub(crate) track: u64,
    #[prost(string, optional, tag = "23")]
    pub(crate) name_text: Option<String>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub(crate) flows: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub(crate) last_flows: Vec<u64>,
}

/// Perfetto's enumeration `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Kind {
    Unspecified = 0,
    Begin = 1,
    End = 2,
    Instant = 3,
}

/// Perfetto's message `DebugAnnotation`, with exactly one of its values.
#[derive(Message)]
pub(crate) struct Annotation {
    /// Number of the annotation's name among the interned annotation names.
    #[prost(uint64, tag = "1")]
    pub(crate) name: u64,
    #[prost(uint64, optional, tag = "3")]
    pub(crate) number: Option<u64>,
    #[prost(string, optional, tag = "6")]
    pub(crate) text: Option<String>,
    #[prost(uint64, optional, tag = "7")]
    pub(crate) pointer: Option<u64>,
}

/// Perfetto's message `InternedData`.
#[derive(Message)]
pub(crate) struct Interned {
    #[prost(message, repeated, tag = "1")]
    pub(crate) categories: Vec<Name>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) event_names: Vec<Name>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) annotation_names: Vec<Name>,
}

/// An interned name, and its number, from 1.
#[derive(Message)]
pub(crate) struct Name {
    #[prost(uint64, tag = "1")]
    pub(crate) iid: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
}

/// Perfetto's message `TrackDescriptor`.
#[derive(Message)]
pub(crate) struct Track {
    #[prost(uint64, tag = "1")]
    pub(crate) uuid: u64,
    #[prost(string, optional, tag = "2")]
    pub(crate) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(crate) process: Option<Process>,
    #[prost(message, optional, tag = "4")]
    pub(crate) thread: Option<Thread>,
    #[prost(uint64, optional, tag = "5")]
    pub(crate) parent: Option<u64>,
}

/// Perfetto's message `ProcessDescriptor`.
#[derive(Message)]
pub(crate) struct Process {
    #[prost(int32, tag = "1")]
    pub(crate) pid: i32,
    #[prost(string, tag = "6")]
    pub(crate) name: String,
}

/// Perfetto's message `ThreadDescriptor`.
#[derive(Message)]
pub(crate) struct Thread {
    #[prost(int32, tag = "1")]
    pub(crate) pid: i32,
    #[prost(int32, tag = "2")]
    pub(crate) tid: i32,
    #[prost(string, tag = "5")]
    pub(crate) name: String,
}
