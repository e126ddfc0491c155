//! Decoding of calls: which calls are accepted, which status refuses others, and that decoding neither panics nor allocates without bound.

use nodescope_hypercall::record::{Flags, HEADER};
use nodescope_hypercall::{
    Call, Completion, EntryRecord, Fault, FileChunk, Function, GuestVirtual, HypercallError,
    IdentityBuffer, MpiEnter, MpiRecord, NodeIdentity, Operation, Peer, Reduction, Request, Status,
    Tag, ThreadId, decode, limits,
};
use proptest::prelude::*;

/// One range of guest memory, which counts the bytes that are read.
struct Memory {
    base: u64,
    bytes: Vec<u8>,
    read: usize,
}

impl Memory {
    fn new(base: u64, bytes: impl Into<Vec<u8>>) -> Memory {
        Memory {
            base,
            bytes: bytes.into(),
            read: 0,
        }
    }

    fn range(
        &self,
        address: u64,
        length: usize,
        write: bool,
    ) -> Result<std::ops::Range<usize>, Fault> {
        let fault = Fault { address, write };
        let start =
            usize::try_from(address.checked_sub(self.base).ok_or(fault)?).map_err(|_| fault)?;
        let end = start
            .checked_add(length)
            .filter(|&end| end <= self.bytes.len())
            .ok_or(fault)?;
        Ok(start..end)
    }
}

impl GuestVirtual for Memory {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        self.read += buffer.len();
        buffer.copy_from_slice(&self.bytes[self.range(address, buffer.len(), false)?]);
        Ok(())
    }
    fn write(&mut self, address: u64, data: &[u8]) -> Result<(), Fault> {
        let range = self.range(address, data.len(), true)?;
        self.bytes[range].copy_from_slice(data);
        Ok(())
    }
}

fn ask(op: Operation, args: [u64; 5], memory: &mut Memory) -> Result<Request, HypercallError> {
    decode(&Call { op, args }, memory)
}

fn status(result: Result<Request, HypercallError>) -> Status {
    result.expect_err("must be refused").status()
}

#[test]
fn unknown_operations_are_refused() {
    let error = Call::new(13, [0; 5]).expect_err("no such operation");
    assert_eq!(error.status(), Status::BadOperation);
    assert_eq!(error.answer().edx, 1);
    assert_eq!(error.answer().eax, nodescope_hypercall::SIGNATURE);
    for number in 0..13 {
        assert_eq!(
            Operation::from_number(number).map(|operation| operation as u32),
            Some(number)
        );
    }
}

#[test]
fn names_are_read_and_checked() {
    let mut memory = Memory::new(0x1000, *b"hpl\xff");
    assert_eq!(
        ask(Operation::Mark, [0x1000, 3, 0, 0, 0], &mut memory),
        Ok(Request::Mark("hpl".into()))
    );
    assert_eq!(
        status(ask(Operation::Mark, [0x1000, 4, 0, 0, 0], &mut memory)),
        Status::BadArgument
    );
    assert_eq!(
        status(ask(Operation::Mark, [0x1000, 0, 0, 0, 0], &mut memory)),
        Status::BadArgument
    );
    assert_eq!(
        status(ask(
            Operation::OpenWindow,
            [0x1001, 4, 0, 0, 0],
            &mut memory
        )),
        Status::Unreadable
    );
    let message = ask(Operation::Message, [0x1000, 4, 0, 0, 0], &mut memory);
    assert_eq!(message, Ok(Request::Message("hpl\u{fffd}".into())));
    assert_eq!(
        status(ask(Operation::OpenMpEvent, [0; 5], &mut memory)),
        Status::Refused
    );
    assert_eq!(
        ask(Operation::JobExit, [7, 0, 0, 0, 0], &mut memory),
        Ok(Request::JobExit(7))
    );
}

#[test]
fn entries_need_no_memory() {
    let mut memory = Memory::new(0, []);
    let args = [Function::Send as u64, (7 << 32) | 8, 9, 0, 0];
    let enter = MpiEnter {
        function: Function::Send,
        thread: ThreadId { pid: 7, tid: 8 },
        sequence: 9,
    };
    assert_eq!(
        ask(Operation::MpiEnter, args, &mut memory),
        Ok(Request::MpiEnter(enter, EntryRecord::default()))
    );
    assert_eq!(
        ask(Operation::MpiPollFailed, args, &mut memory),
        Ok(Request::MpiPollFailed(enter))
    );
    assert_eq!(
        status(ask(
            Operation::MpiEnter,
            [0x1_0000_000a, 0, 0, 0, 0],
            &mut memory
        )),
        Status::BadArgument
    );
    assert_eq!(memory.read, 0);
}

#[test]
fn entries_show_their_arguments_from_two_places() {
    let thread = ThreadId { pid: 7, tid: 8 };
    let mut record = MpiRecord::new(Function::Waitall, thread, Peer::Rank(3), 9);
    record.requests = vec![5, 6];
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    let (header, sections) = bytes.split_at(160);
    let enter = MpiEnter {
        function: Function::Waitall,
        thread,
        sequence: 9,
    };
    // The sections precede the header, with a gap between them.
    let mut memory = Memory::new(0x1000, [sections, &[0; 8], header].concat());
    let at = 0x1000 + sections.len() as u64 + 8;
    let mut shown = |header, sections| {
        let args = [Function::Waitall as u64, (7 << 32) | 8, 9, header, sections];
        match ask(Operation::MpiEnter, args, &mut memory) {
            Ok(Request::MpiEnter(told, shown)) if told == enter => shown,
            other => panic!("{other:?}"),
        }
    };
    let whole = shown(at, 0x1000);
    assert_eq!(whole, EntryRecord::new(&record));
    assert_eq!(whole.decode(&enter), Some(record));
    // A call of another number does not match the record that was shown.
    let other = MpiEnter {
        sequence: 10,
        ..enter
    };
    assert_eq!(whole.decode(&other), None);
    // An unreadable or absent record is left out.
    for nothing in [shown(at, 0x9000), shown(0x9000, 0x1000), shown(0, 0)] {
        assert_eq!((nothing.size(), nothing.decode(&enter)), (0, None));
    }
    assert_eq!(shown(0x1000, 0x1000).decode(&enter), None);
}

#[test]
fn files_come_in_chunks_under_safe_names() {
    let mut memory = Memory::new(0, *b"out/a.txtDATA");
    let chunk = |name: &str, last| {
        Ok(Request::PutFile(FileChunk {
            name: name.into(),
            offset: 65536,
            data: b"DATA".to_vec(),
            last,
        }))
    };
    assert_eq!(
        ask(Operation::PutFile, [0, 9, 65536, 9, 4], &mut memory),
        chunk("out/a.txt", false)
    );
    assert_eq!(
        ask(
            Operation::PutFile,
            [4, 5, 65536, 9, 4 | 1 << 63],
            &mut memory
        ),
        chunk("a.txt", true)
    );
    assert_eq!(
        status(ask(Operation::PutFile, [4, 5, 0, 9, 65537], &mut memory)),
        Status::BadArgument
    );
    for bad in [
        "/etc/passwd",
        "../x",
        "a/../b",
        "a//b",
        "a/",
        ".",
        "a\nb",
        "a\0b",
        "a\\b",
    ] {
        let mut memory = Memory::new(0, bad.as_bytes());
        let error = ask(
            Operation::PutFile,
            [0, bad.len() as u64, 0, 0, 0],
            &mut memory,
        );
        assert_eq!(error, Err(HypercallError::BadFileName { name: bad.into() }));
    }
}

#[test]
fn identity_is_cut_to_the_buffer_and_its_size_returned() {
    let node = NodeIdentity {
        node: 1,
        nodes: 2,
        vcpus: 2,
        seed: 5,
        ipv4: [10, 0, 0, 2],
        prefix: 24,
        mac: [2; 6],
        name: "x".repeat(100),
        text: "A=1\n".into(),
    };
    let mut memory = Memory::new(0, vec![0xaa; 200]);
    let request = ask(Operation::NodeIdentity, [8, 20, 0, 0, 0], &mut memory);
    let buffer = IdentityBuffer {
        address: 8,
        capacity: 20,
    };
    assert_eq!(request, Ok(Request::NodeIdentity(buffer)));
    assert_eq!(node.write_to(buffer, &mut memory), Ok(108));
    assert_eq!(memory.bytes[8..28], node.encode()[..20]);
    assert_eq!(memory.bytes[28], 0xaa);
    assert_eq!(node.encode()[40 + 63], 0);
    let outside = IdentityBuffer {
        address: 190,
        capacity: u64::MAX,
    };
    assert_eq!(
        node.write_to(outside, &mut memory),
        Err(Fault {
            address: 190,
            write: true
        })
    );
}

#[test]
fn malformed_records_say_where() {
    let mut bytes = Vec::new();
    let good = MpiRecord::new(Function::Barrier, ThreadId::default(), Peer::Rank(0), 0);
    good.encode(&mut bytes);
    good.encode(&mut bytes);
    bytes[HEADER + 4] = 9;
    let error = MpiRecord::decode_all(&bytes)
        .expect_err("function 9 does not exist")
        .to_string();
    assert_eq!(
        error,
        "record at byte 160: field function has the unknown value 9"
    );
    bytes[HEADER + 4] = 70;
    bytes[0] = 0xff;
    let error = MpiRecord::decode_all(&bytes)
        .expect_err("odd size")
        .to_string();
    assert_eq!(error, "record at byte 0 states the impossible size 255");
    bytes[0] = HEADER as u8;
    let error = MpiRecord::decode_all(&bytes[..200])
        .expect_err("cut")
        .to_string();
    assert_eq!(error, "record at byte 160 needs 160 bytes, 40 are left");
}

fn peers() -> impl Strategy<Value = Peer> {
    prop_oneof![
        Just(Peer::None),
        Just(Peer::Null),
        Just(Peer::Any),
        Just(Peer::Outside),
        (0..=i32::MAX as u32).prop_map(Peer::Rank)
    ]
}

fn tags() -> impl Strategy<Value = Tag> {
    prop_oneof![
        Just(Tag::None),
        Just(Tag::Any),
        (0..=i32::MAX as u32).prop_map(Tag::Value)
    ]
}

prop_compose! {
    fn completions()(request: u64, bytes: u64, index: u32, source in peers(), tag in tags(), cancelled: bool) -> Completion {
        Completion { request, bytes, index, source, tag, cancelled }
    }
}

prop_compose! {
    fn records()(
        (which, flags, sequence, pid, tid, rank) in (0..Function::ALL.len(), 0..64u16, any::<u64>(), any::<u32>(), any::<u32>(), peers()),
        (result, communicator, call_site, destination, source, root) in (any::<i32>(), any::<u64>(), any::<u64>(), peers(), peers(), peers()),
        (send_tag, receive_tag, user) in (tags(), tags(), any::<bool>()),
        (numbers, communicator_size, element_size) in (any::<[u64; 5]>(), any::<u32>(), any::<u32>()),
        lists in prop::array::uniform4(prop::collection::vec(any::<u64>(), 0..5)),
        completions in prop::collection::vec(completions(), 0..4),
        groups in prop::array::uniform4(prop::collection::vec(peers(), 0..6)),
        (detail, object, offset, call_module, element_blocks, name, module_name) in (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), ".{0,9}", ".{0,9}"),
    ) -> MpiRecord {
        let mut record = MpiRecord::new(Function::ALL[which], ThreadId { pid, tid }, rank, sequence);
        let [to, from, requests, prepared] = lists;
        record.prepared = prepared;
        record.flags = Flags(flags);
        (record.result, record.communicator, record.call_site) = (result, communicator, call_site);
        (record.destination, record.source, record.root) = (destination, source, root);
        (record.send_tag, record.receive_tag) = (send_tag, receive_tag);
        record.reduction = if user { Reduction::User } else { Reduction::Sum };
        [record.send_bytes, record.receive_bytes, record.request, record.calls, record.new_communicator] = numbers;
        (record.communicator_size, record.element_size) = (communicator_size, element_size);
        (record.send_bytes_to, record.receive_bytes_from, record.requests) = (to, from, requests);
        record.completions = completions;
        [record.members, record.remote_members, record.destinations, record.sources] = groups;
        (record.detail, record.object, record.offset, record.call_module) = (detail, object, offset, call_module);
        record.element_blocks = element_blocks;
        (record.name, record.module_name) = (name, module_name);
        record
    }
}

proptest! {
    #[test]
    fn records_survive_the_wire(records in prop::collection::vec(records(), 0..5)) {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.encode(&mut bytes));
        prop_assert_eq!(MpiRecord::decode_all(&bytes), Ok(records));
    }

    #[test]
    fn damaged_records_never_panic(record in records(), at: prop::sample::Index, value: u8, cut: prop::sample::Index) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = MpiRecord::decode_all(&bytes);
        let cut = cut.index(bytes.len());
        let decoded = MpiRecord::decode_all(&bytes[..cut]);
        prop_assert!(cut == 0 || decoded.is_err() || u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize <= cut);
    }

    #[test]
    fn any_registers_and_memory_are_answered(
        ecx in 0..16u32,
        args in prop::array::uniform5(prop_oneof![any::<u64>(), 0..300u64, Just(1 << 63 | 5), Just(152)]),
        base in prop_oneof![Just(0u64), Just(16), Just(u64::MAX - 100)],
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(0xff)], 0..400),
    ) {
        let mut memory = Memory::new(base, bytes);
        if let Ok(call) = Call::new(ecx, args) {
            let _ = decode(&call, &mut memory);
        }
        prop_assert!(memory.read as u64 <= limits::RECORDS + limits::NAME);
    }
}
