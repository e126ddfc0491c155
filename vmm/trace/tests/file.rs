//! Tests of the file format: written events are read, a cut file is readable up to the cut, damage is found, and no input panics.

use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{
    Completion, Flavour, Function, Hello, MpiRecord, Peer, ProcessKind, Reduction, Tag, ThreadId,
};
use nodescope_trace::{
    Body, Event, Header, MpiCall, NodeEntry, Stamp, TraceError, TraceReader, TraceWriter,
    Unfinished,
};
use proptest::prelude::*;

fn header() -> Header {
    let node = |name: &str| NodeEntry {
        name: name.into(),
        vcpus: 2,
        frequency_hz: 2_900_000_000,
    };
    Header::new("hpl", "0123abcd", vec![node("n0"), node("n1")])
}

/// Returns the file's bytes, with a chunk after every `chunk` events.
fn file(events: &[Event], chunk: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, "memory", &header()).expect("write the header");
    for (index, event) in events.iter().enumerate() {
        writer.write(event).expect("write an event");
        if (index + 1) % chunk == 0 {
            writer.flush().expect("write a chunk");
        }
    }
    writer.finish().expect("finish");
    bytes
}

/// Returns the readable events, and the error at the end: `None` for a complete trace.
fn read(bytes: &[u8]) -> (Vec<Event>, Option<TraceError>) {
    let reader = match TraceReader::new(bytes, "memory") {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    assert_eq!(reader.header(), &header());
    let (mut events, mut error) = (Vec::new(), None);
    for item in reader.events() {
        assert!(error.is_none(), "nothing follows an error");
        match item {
            Ok(event) => events.push(event),
            Err(failure) => error = Some(failure),
        }
    }
    (events, error)
}

fn stamps() -> impl Strategy<Value = Stamp> {
    (any::<u64>(), any::<u64>(), 0..64u32).prop_map(|(time, instructions, vcpu)| Stamp {
        time,
        instructions,
        vcpu,
    })
}

prop_compose! {
    fn calls()(
        which in 0..Function::ALL.len(),
        (rank, destination, tag, bytes, request) in (0..9u32, 0..9u32, 0..99u32, any::<u64>(), any::<u64>()),
        (entry, exit, time_inside, instructions_inside) in (stamps(), stamps(), any::<u64>(), any::<u64>()),
        counts in prop::collection::vec(any::<u64>(), 0..6),
        (run, entry_seen) in any::<(bool, bool)>(),
    ) -> MpiCall {
        let mut record = MpiRecord::new(Function::ALL[which], ThreadId { pid: 1, tid: 2 }, Peer::Rank(rank), request);
        record.flags = if run { Flags::POLL_RUN } else { Flags::default() };
        (record.destination, record.send_tag, record.send_bytes) = (Peer::Rank(destination), Tag::Value(tag), bytes);
        record.reduction = Reduction::Sum;
        record.completions.push(Completion { request, bytes, source: Peer::Any, ..Completion::default() });
        record.send_bytes_to = counts;
        MpiCall { record, entry, exit, time_inside, instructions_inside, entry_seen }
    }
}

fn bodies() -> impl Strategy<Value = Body> {
    let hello = |(pid, host)| Hello {
        kind: ProcessKind::MpiRank,
        rank: Peer::Rank(pid),
        world_size: 4,
        pid,
        flavour: Flavour::OpenMpi,
        host,
        program: "hpcc".into(),
    };
    let unfinished = |(sequence, entry, call): (u64, Stamp, Option<MpiCall>)| {
        Box::new(Unfinished {
            function: Function::Recv,
            rank: Peer::Rank(0),
            thread: ThreadId::default(),
            sequence,
            entry,
            record: call.map(|call| call.record),
        })
    };
    prop_oneof![
        4 => calls().prop_map(|call| Body::Mpi(Box::new(call))),
        1 => (any::<u64>(), stamps(), prop::option::of(calls())).prop_map(unfinished).prop_map(Body::Unfinished),
        1 => (any::<u32>(), ".{0,8}").prop_map(hello).prop_map(Body::Process),
        1 => ".{0,12}".prop_map(Body::Mark),
        1 => ".{0,12}".prop_map(Body::WindowOpen),
        1 => ".{0,12}".prop_map(Body::WindowClose),
        1 => ".{0,12}".prop_map(Body::Message),
        1 => any::<i32>().prop_map(Body::JobExit),
    ]
}

prop_compose! {
    fn events()(node in 0..8u32, sequence: u64, stamp in stamps(), body in bodies()) -> Event {
        Event { node, sequence, stamp, body }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(events in prop::collection::vec(events(), 0..40), chunk in 1..20usize) {
        let (found, error) = read(&file(&events, chunk));
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(found, events);
    }

    #[test]
    fn a_cut_file_gives_what_was_before_the_cut(events in prop::collection::vec(events(), 0..12), chunk in 1..5usize, at: prop::sample::Index) {
        let bytes = file(&events, chunk);
        let length = at.index(bytes.len());
        let (found, error) = read(&bytes[..length]);
        let Some(TraceError::Cut { offset, events: intact, .. }) = error else {
            return Err(TestCaseError::fail(format!("{error:?}")));
        };
        prop_assert!(offset <= length as u64);
        prop_assert_eq!(intact, found.len() as u64);
        prop_assert_eq!(&found[..], &events[..found.len()]);
        // Every complete chunk has been read, so that the number of events is a multiple of the chunk's, or all events.
        prop_assert!(found.len() % chunk == 0 || found.len() == events.len());
    }

    #[test]
    fn damage_is_found(events in prop::collection::vec(events(), 1..12), chunk in 1..5usize, at: prop::sample::Index, change in 1..=255u8) {
        let mut bytes = file(&events, chunk);
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        let (found, error) = read(&bytes);
        prop_assert!(error.is_some(), "byte {at} changed unnoticed");
        prop_assert_eq!(&found[..], &events[..found.len()]);
    }

    #[test]
    fn noise_is_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200), real in any::<bool>()) {
        if real {
            let mut whole = file(&[], 1);
            whole.truncate(whole.len() - 24);
            whole.append(&mut bytes);
            bytes = whole;
        }
        prop_assert!(read(&bytes).1.is_some());
    }
}

fn mark(sequence: u64) -> Event {
    Event {
        node: 0,
        sequence,
        stamp: Stamp {
            time: sequence * 1000,
            ..Stamp::default()
        },
        body: Body::Mark(format!("m{sequence}")),
    }
}

#[test]
fn every_byte_of_a_small_file_is_protected() {
    let events: Vec<Event> = (0..4).map(mark).collect();
    let good = file(&events, 2);
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            assert!(
                read(&bytes).1.is_some(),
                "bit {bit} of byte {at} changed unnoticed"
            );
        }
    }
    for length in 0..good.len() {
        let (_, error) = read(&good[..length]);
        assert!(
            matches!(error, Some(TraceError::Cut { .. })),
            "{length} bytes: {error:?}"
        );
    }
}

#[test]
fn messages_name_file_version_and_offset() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("trace.nst");
    let message = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("write the file");
        let error = match TraceReader::open(&path) {
            Err(error) => error,
            Ok(reader) => reader
                .events()
                .last()
                .expect("an item")
                .expect_err("an error"),
        };
        error
            .to_string()
            .replace(&path.display().to_string(), "FILE")
    };
    let good = file(&[mark(0), mark(1)], 1);
    assert_eq!(message(b"\x89PNG\r\n"), "FILE is not a nodescope trace");
    let mut other = good.clone();
    other[8] = 9;
    assert_eq!(
        message(&other),
        "the trace FILE has format version 9; this program reads version 4"
    );
    let first = 20 + u32::from_le_bytes([good[12], good[13], good[14], good[15]]) as usize;
    assert_eq!(
        message(&good[..good.len() - 1]),
        format!(
            "the trace FILE is cut at byte {}; 2 events before the cut are intact",
            good.len() - 24
        )
    );
    let mut damaged = good.clone();
    damaged[first + 24] ^= 1;
    assert_eq!(
        message(&damaged),
        format!(
            "the trace FILE is damaged at byte {first}: checksum of a chunk; 0 events before it are intact"
        )
    );
    let mut longer = good.clone();
    longer.push(0);
    assert_eq!(
        message(&longer),
        format!(
            "the trace FILE is damaged at byte {}: bytes after the end; 2 events before it are intact",
            good.len()
        )
    );
    let absent = TraceReader::open(folder.path().join("none")).expect_err("no such file");
    assert!(
        absent.to_string().starts_with("cannot read the trace "),
        "{absent}"
    );
}

#[test]
fn a_dropped_writer_leaves_its_events_in_a_cut_trace() {
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, "memory", &header()).expect("write the header");
    writer.write(&mark(0)).expect("write");
    drop(writer);
    let (events, error) = read(&bytes);
    assert_eq!(events, [mark(0)]);
    assert!(
        matches!(error, Some(TraceError::Cut { events: 1, .. })),
        "{error:?}"
    );
}

#[test]
fn a_full_disk_is_reported_and_what_was_written_stays() {
    struct Full(Vec<u8>, usize);
    impl std::io::Write for Full {
        fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
            let room = self.1.saturating_sub(self.0.len()).min(data.len());
            if room == 0 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.0.extend(&data[..room]);
            Ok(room)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let room = file(&[mark(0)], 1).len();
    let mut disk = Full(Vec::new(), room);
    let mut writer =
        TraceWriter::new(&mut disk, "/results/trace", &header()).expect("write the header");
    writer
        .write(&mark(0))
        .and_then(|()| writer.flush())
        .expect("the first chunk fits");
    let error = writer
        .write(&mark(1))
        .and_then(|()| writer.flush())
        .expect_err("the second does not")
        .to_string();
    assert!(
        error.starts_with("cannot write the trace /results/trace: ")
            && error.ends_with("1 events before this are readable"),
        "{error}"
    );
    drop(writer);
    assert_eq!(read(&disk.0).0, [mark(0)]);
}

#[test]
fn large_traces_are_written_in_chunks() {
    let events: Vec<Event> = (0..50_000).map(mark).collect();
    let bytes = file(&events, usize::MAX);
    let chunks = bytes.windows(4).filter(|window| window == b"EVTS").count();
    assert!(chunks >= 2, "{chunks} chunks");
    assert_eq!(read(&bytes).0, events);
    assert_eq!(
        file(&events, usize::MAX),
        bytes,
        "the same events give the same bytes"
    );
}

#[test]
fn merged_streams_are_ordered_by_time_node_and_number() {
    let event = |node, sequence, time| Event {
        node,
        sequence,
        stamp: Stamp {
            time,
            ..Stamp::default()
        },
        body: Body::JobExit(0),
    };
    let merged = nodescope_trace::merge([
        vec![event(1, 0, 5), event(1, 1, 5), event(1, 2, 9)],
        vec![event(0, 0, 5), event(0, 1, 7)],
    ]);
    let keys: Vec<_> = merged.iter().map(Event::key).collect();
    assert_eq!(
        keys,
        [(5, 0, 0), (5, 1, 0), (5, 1, 1), (7, 0, 1), (9, 1, 2)]
    );
}

/// Pins the encoding that FORMAT.md describes, byte by byte: a change of the encoding must raise the version.
#[test]
fn the_encoding_is_that_of_version_4() {
    let mut record = MpiRecord::new(
        Function::Send,
        ThreadId { pid: 300, tid: 2 },
        Peer::Rank(1),
        7,
    );
    (record.result, record.communicator, record.destination) = (-1, 1, Peer::Rank(0));
    (record.send_tag, record.send_bytes, record.element_size) = (Tag::Value(5), 128, 8);
    record.reduction = Reduction::User;
    record.element_blocks = 6;
    (record.detail, record.sources, record.name) = (3, vec![Peer::Null], "a.b".into());
    record.completions.push(Completion {
        index: 3,
        cancelled: true,
        ..Completion::default()
    });
    let stamp = |time| Stamp {
        time,
        instructions: 4,
        vcpu: 1,
    };
    let call = MpiCall {
        record,
        entry: stamp(9),
        exit: stamp(10),
        time_inside: 1,
        instructions_inside: 0,
        entry_seen: true,
    };
    let event = Event {
        node: 1,
        sequence: 2,
        stamp: stamp(10),
        body: Body::Mpi(Box::new(call)),
    };
    let unfinished = |record| Event {
        node: 1,
        sequence: 3,
        stamp: stamp(11),
        body: Body::Unfinished(Box::new(Unfinished {
            function: Function::Barrier,
            rank: Peer::Rank(1),
            thread: ThreadId { pid: 3, tid: 4 },
            sequence: 8,
            entry: stamp(10),
            record,
        })),
    };
    let barrier = MpiRecord::new(
        Function::Barrier,
        ThreadId { pid: 3, tid: 4 },
        Peer::Rank(1),
        8,
    );
    let bytes = file(&[event, unfinished(None), unfinished(Some(barrier))], 3);
    let length = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
    let header: &[&[u8]] = &[
        b"\x03hpl\x080123abcd",
        b"\x02\x02n0\x02\x80\xfa\xe9\xe6\x0a\x02n1\x02\x80\xfa\xe9\xe6\x0a",
        b"\x80\xa0\x94\xa5\x8d\x1d",
    ];
    assert_eq!(bytes[20..20 + length], header.concat());
    let chunk = zstd::bulk::decompress(&bytes[20 + length + 24..bytes.len() - 24], 1000)
        .expect("one zstd frame");
    let expected: &[&[u8]] = &[
        &[1, 2, 10, 4, 1, 0],                  // node, sequence, stamp, MPI call
        &[10, 0, 7, 0xac, 2, 2, 4, 1, 1, 1], // Send, flags, sequence, thread, rank, result, communicator
        &[0, 4, 0, 2, 5, 0, 0, 0, 15], // call site, destination, tag, source, tag, root, reduction
        &[0x80, 1, 0, 0, 1, 0, 0, 8, 6], // bytes, request, calls, new communicator, sizes, blocks
        &[3, 0, 0, 0],                 // detail, object, offset, module
        &[0, 0, 0, 0, 1, 0, 0, 3, 0, 0, 1, 0], // lists, one completion, members
        &[0, 0, 1, 1, 3, b'a', b'.', b'b', 0], // remote members, destinations, sources, name, module's name
        &[9, 4, 1, 10, 4, 1, 1, 0, 1],         // entry, exit, inside, entry seen
        // Unfinished: function, rank, thread, sequence, entry; without arguments and with them.
        &[1, 3, 11, 4, 1, 1, 70, 4, 1, 3, 4, 8, 10, 4, 1, 0],
        &[1, 3, 11, 4, 1, 1, 70, 4, 1, 3, 4, 8, 10, 4, 1, 1],
        &[
            70, 0, 8, 3, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
        &[0; 11],
    ];
    assert_eq!(chunk, expected.concat());
    // Functions are encoded by their numbers. The description must list all numbers.
    let description = include_str!("../FORMAT.md");
    for function in Function::ALL {
        let entry = format!("{} {}", &function.name()[4..], *function as u16);
        let listed = description
            .split([',', '\n'])
            .any(|item| item.trim() == entry);
        assert!(listed, "FORMAT.md lacks {entry}");
    }
}

#[test]
fn chunks_and_events_are_no_larger_than_the_format_says() {
    let mut bytes = file(&[], 1);
    bytes.truncate(bytes.len() - 24);
    let mut frame = b"EVTS".to_vec();
    for word in [0u32, 17 << 20, 1, crc32fast::hash(&[])] {
        frame.extend(word.to_le_bytes());
    }
    let crc = crc32fast::hash(&frame);
    bytes.extend(frame);
    bytes.extend(crc.to_le_bytes());
    let (_, error) = read(&bytes);
    let told = error.expect("an error").to_string();
    assert!(told.contains("checksum of a chunk's frame"), "{told}");

    let mut writer = TraceWriter::new(Vec::new(), "memory", &header()).expect("write the header");
    let long = Event {
        node: 0,
        sequence: 0,
        stamp: Stamp::default(),
        body: Body::Mark("x".repeat(9 << 20)),
    };
    let told = writer.write(&long).expect_err("an error").to_string();
    assert!(told.contains("an event is larger than"), "{told}");
}
