//! Guests that make endless or senseless hypercalls: the node needs bounded memory for these calls, and results are the same in every run.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use nodescope_engine::{
    EngineError, Exit, GuestVirtual, Hypercall, Limit, MemoryFault, Platform, Vcpu,
};
use nodescope_hypercall::{
    Function, LEAF, MpiRecord, NodeIdentity, Operation, Peer, SIGNATURE, Status, TRANSPORT_DIRECT,
    TRANSPORT_DOORBELL, ThreadId,
};
use nodescope_machine::acpi::PlatformDescription;
use nodescope_machine::files::FileLimits;
use nodescope_machine::node::{Node, NodeParts, NodeStatus};
use nodescope_machine::topology::NodeTopology;
use nodescope_memory::Ram;
use nodescope_plugin_api::{L0Geometry, L0Update, Privilege};
use nodescope_x86::VcpuState;

/// Length of a quantum in cycles.
const QUANTUM: u64 = 290_000;
/// Length of the guest's loop around a hypercall, in cycles.
const LOOP: u64 = 10;

/// Base of FS of the thread that makes the hypercalls.
const THREAD: u64 = 0x2000;

/// Function that returns the operation and arguments of a call, given the call's number.
type Calls = Box<dyn FnMut(u64) -> (u32, [u64; 5]) + Send>;

/// A vCPU that only makes hypercalls.
struct Caller {
    calls: Calls,
    made: u64,
    refused: u64,
    /// Transports in all answers, one bit for each transport's number.
    transports: Arc<AtomicU32>,
    /// After each call, the contexts of the calling thread, of another thread of the process, and of a kernel thread.
    contexts: Arc<Mutex<Vec<[u32; 3]>>>,
    memory: Memory,
    cycles: u64,
    state: VcpuState,
}

/// Guest memory from address 0 on.
struct Memory(Vec<u8>);

impl Memory {
    fn range(&self, address: u64, length: usize) -> Result<std::ops::Range<usize>, MemoryFault> {
        let end = address.checked_add(length as u64);
        match end.filter(|&end| end <= self.0.len() as u64) {
            Some(end) => Ok(address as usize..end as usize),
            None => Err(MemoryFault { address }),
        }
    }
}

impl GuestVirtual for Memory {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryFault> {
        buffer.copy_from_slice(&self.0[self.range(address, buffer.len())?]);
        Ok(())
    }
    fn write(&mut self, address: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let range = self.range(address, data.len())?;
        self.0[range].copy_from_slice(data);
        Ok(())
    }
}

impl Vcpu for Caller {
    fn run(&mut self, platform: &mut dyn Platform, limit: Limit) -> Result<Exit, EngineError> {
        while self.cycles < limit.cycles {
            let (operation, args) = (self.calls)(self.made);
            self.made += 1;
            self.cycles += LOOP;
            let call = Hypercall {
                vcpu: 0,
                operation,
                args,
                now: self.cycles,
                instructions: self.made,
                cr3: 0x1000,
                thread: THREAD,
                privilege: Privilege::User,
            };
            let answer = platform.hypercall(&call, &mut self.memory);
            let of = [THREAD, THREAD + 0x1000, 0];
            let contexts = of.map(|thread| platform.context(0, call.cr3, thread).0);
            self.contexts.lock().unwrap().push(contexts);
            assert_eq!(answer.eax, SIGNATURE);
            self.transports.fetch_or(1 << answer.ebx, Ordering::Relaxed);
            self.refused += u64::from(answer.edx == Status::OverLimit as u32);
            if platform.attention() {
                return Ok(Exit::Attention);
            }
        }
        Ok(Exit::Limit)
    }

    fn cycles(&self) -> u64 {
        self.cycles
    }

    fn advance_to(&mut self, cycles: u64) {
        self.cycles = self.cycles.max(cycles);
    }

    fn instructions(&self) -> u64 {
        self.made
    }

    fn save(&self) -> VcpuState {
        self.state.clone()
    }

    fn restore(&mut self, state: &VcpuState) {
        self.state = state.clone();
    }

    fn attach(&mut self, _: Option<L0Geometry>) {}

    fn update_l0(&mut self, _: &[L0Update]) {}

    fn flush_counters(&mut self, _: &mut dyn Platform) {}
}

fn node(memory: Vec<u8>, calls: Calls) -> Node {
    node_with(memory, calls, Arc::default(), Arc::default())
}

fn node_with(
    memory: Vec<u8>,
    calls: Calls,
    transports: Arc<AtomicU32>,
    contexts: Arc<Mutex<Vec<[u32; 3]>>>,
) -> Node {
    assert_eq!(LEAF, 0x4e53_4350, "what the engine takes for a call");
    let topology = NodeTopology::uniform(1, 1, 1, 2 << 20);
    let parts = NodeParts {
        index: 0,
        ram: Ram::new(&topology.socket_memory).unwrap(),
        topology,
        platform: PlatformDescription::default(),
        vcpus: vec![Box::new(Caller {
            calls,
            made: 0,
            refused: 0,
            transports,
            contexts,
            memory: Memory(memory),
            cycles: 0,
            state: VcpuState::reset(),
        })],
        boot: VcpuState::reset(),
        virtio: Vec::new(),
        epoch: 0,
        identity: NodeIdentity {
            node: 0,
            nodes: 1,
            vcpus: 1,
            seed: 0,
            ipv4: [10, 0, 0, 1],
            prefix: 16,
            mac: [2, 0, 0, 0, 0, 1],
            name: "node0".into(),
            text: String::new(),
        },
    };
    Node::new(parts).unwrap()
}

/// Returns records of the minimum length, as many as one call may transfer (1 MiB).
fn records() -> Vec<u8> {
    let thread = ThreadId { pid: 1, tid: 1 };
    let mut one = Vec::new();
    MpiRecord::new(Function::Send, thread, Peer::Rank(0), 0).encode(&mut one);
    one.repeat((1 << 20) / one.len())
}

#[test]
fn a_flood_of_records_waits_until_somebody_listens() {
    let records = records();
    let args = [0, records.len() as u64, 0, 0, 0];
    let mut node = node(
        records,
        Box::new(move |_| (Operation::MpiEvent as u32, args)),
    );
    let mut taken = Vec::new();
    for quantum in 1..=20 {
        let status = node.run_until(quantum * QUANTUM).unwrap();
        assert_eq!(
            (status, node.now()),
            (NodeStatus::Running, quantum * QUANTUM)
        );
        assert!(node.wants_attention());
        taken.push(node.take_events().len());
        assert!(!node.wants_attention());
    }
    // A quantum has time for 29,000 calls, whose records take some 3 MB of host memory each.
    let first = taken[0];
    assert!((1..20).contains(&first), "{first} calls");
    assert_eq!(taken, [first; 20], "the same in each quantum");
    assert_eq!(node.notes(), [""; 0]);
}

#[test]
fn a_flood_of_records_that_make_no_sense_waits_too() {
    let mut records = records();
    let last = records.len() - 160;
    records[last + 6] = 0xff;
    let args = [0, records.len() as u64, 0, 0, 0];
    let mut node = node(
        records,
        Box::new(move |_| (Operation::MpiEvent as u32, args)),
    );
    for quantum in 1..=3 {
        node.run_until(quantum * QUANTUM).unwrap();
        assert!(node.has_output() && node.wants_attention());
        assert!(node.take_events().is_empty());
        assert!(!node.has_output());
        // The decoder reads a little less than 1 MiB per call, so that the 17th call reaches the limit of 16 MiB.
        assert_eq!(node.instructions(), 17 * quantum);
    }
    let notes = node.notes();
    assert!(
        notes[0].contains("the first of 51 of this kind"),
        "{notes:?}"
    );
}

#[test]
fn many_small_calls_are_taken_when_their_quantum_ends() {
    let args = [Function::Send as u64, 1 << 32, 0, 0, 0];
    let calls = move |_| (Operation::MpiEnter as u32, args);
    let mut node = node(Vec::new(), Box::new(calls));
    node.run_until(QUANTUM / 10).unwrap();
    assert!(!node.wants_attention(), "nobody waits for a few of them");
    node.run_until(QUANTUM).unwrap();
    assert!(node.wants_attention());
    let events = node.take_events();
    assert_eq!(events.len() as u64, QUANTUM / LOOP, "none was kept back");
}

/// Every answer must state the node's transport, even answers to malformed or refused calls.
#[test]
fn answers_state_the_transport() {
    for (doorbell, transport) in [(false, TRANSPORT_DIRECT), (true, TRANSPORT_DOORBELL)] {
        let seen = Arc::<AtomicU32>::default();
        let calls = |number| (number as u32 % 14, [0, number % 200, 0, 0, 0]);
        let mut node = node_with(vec![0; 4096], Box::new(calls), seen.clone(), Arc::default());
        if doorbell {
            node.use_doorbell();
        }
        node.run_until(14 * 200 * LOOP).unwrap();
        assert_eq!(node.instructions(), 14 * 200);
        assert_eq!(seen.load(Ordering::Relaxed), 1 << transport);
    }
}

#[test]
fn files_beyond_the_limit_are_refused_and_noted_once() {
    // The guest sends one endless file in pieces of 64 KiB. The file's name is at address 1, its data begin at address 2. The call with
    // number 3 uses the bad name at address 0.
    let mut memory = vec![b'f'; 1 << 17];
    memory[0] = b'\x1b';
    memory[1] = b'n';
    let put = |number: u64| {
        let name = u64::from(number != 3);
        let args = [name, 1, number << 16, 2, 1 << 16];
        (Operation::PutFile as u32, args)
    };
    let mut node = node(memory, Box::new(put));
    node.set_file_limits(FileLimits {
        file: 10 << 16,
        ..FileLimits::default()
    });
    node.run_until(100 * LOOP).unwrap();
    let events = node.take_events();
    let (refused, stored): (Vec<_>, Vec<_>) = events.iter().partition(|e| e.refused.is_some());
    assert_eq!(stored.len(), 9, "one had no plain name");
    assert_eq!(refused.len(), 90);
    for event in refused {
        let nodescope_hypercall::Request::PutFile(chunk) = &event.request else {
            panic!("{:?}", event.request);
        };
        assert_eq!((&*chunk.name, chunk.data.len()), ("n", 0));
    }
    assert_eq!(node.file_bytes(), (10 << 16) + 4096);
    assert_eq!(
        node.notes(),
        [
            "hypercall PutFile: \"\\u{1b}\" is not a plain relative file name",
            "file \"n\" would have 720896 bytes, and results.file_limit allows 655360 (the first of 90 of this kind)",
        ]
    );
}

#[test]
fn random_calls_are_answered_and_forgotten() {
    for seed in 1..4_u64 {
        let mut random = seed;
        let mut next = move || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            random >> 16
        };
        let mut memory = records();
        for _ in 0..1000 {
            let at = next() as usize % memory.len();
            memory[at] = next() as u8;
        }
        let any = move |_| {
            let operation = next() % 14;
            let args = std::array::from_fn(|_| match next() % 4 {
                0 => next() % 64,
                1 => next() % (1 << 21),
                2 => u64::MAX - next() % 64,
                _ => next() << 16 | next(),
            });
            (operation as u32, args)
        };
        let mut node = node(memory, Box::new(any));
        for quantum in 1..=10 {
            node.run_until(quantum * QUANTUM / 10).unwrap();
            node.take_events();
        }
        let notes = node.notes();
        assert!((1..=17).contains(&notes.len()), "{notes:?}");
        let bytes: usize = notes.iter().map(String::len).sum();
        assert!(bytes < 16 << 10, "{bytes} bytes of notes");
    }
}

#[test]
fn a_node_that_is_told_to_stop_stops() {
    let calls = |_| (Operation::Probe as u32, [0; 5]);
    let mut node = node(Vec::new(), Box::new(calls));
    let stop = Arc::new(AtomicBool::new(false));
    node.set_stop(Arc::clone(&stop));
    node.run_until(QUANTUM).unwrap();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(node.run_until(u64::MAX).unwrap(), NodeStatus::Running);
    assert_eq!(node.now(), QUANTUM);
}

#[test]
fn a_node_that_is_told_to_stop_while_it_runs_stops_soon() {
    let stop = Arc::new(AtomicBool::new(false));
    let signal = Arc::clone(&stop);
    let calls = move |number| {
        if number == 12_345 {
            signal.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        (Operation::Probe as u32, [0; 5])
    };
    let mut node = node(Vec::new(), Box::new(calls));
    node.set_stop(stop);
    assert_eq!(node.run_until(u64::MAX).unwrap(), NodeStatus::Running);
    let slice = nodescope_machine::node::TIME_SLICE_CYCLES;
    assert!((12_345 * LOOP..12_345 * LOOP + slice + LOOP).contains(&node.now()));
}

#[test]
fn a_thread_inside_mpi_leaves_the_others_outside() {
    let mut one = Vec::new();
    let thread = ThreadId { pid: 1, tid: 1 };
    MpiRecord::new(Function::Send, thread, Peer::Rank(0), 0).encode(&mut one);
    let length = one.len() as u64;
    let calls = move |number| match number % 2 {
        0 => (
            Operation::MpiEnter as u32,
            [Function::Send as u64, 1 << 32, 0, 0, 0],
        ),
        _ => (Operation::MpiEvent as u32, [0, length, 0, 0, 0]),
    };
    let contexts: Arc<Mutex<Vec<[u32; 3]>>> = Arc::default();
    let mut node = node_with(one, Box::new(calls), Arc::default(), contexts.clone());
    node.run_until(4 * LOOP).unwrap();
    let contexts = contexts.lock().unwrap();
    // A kernel thread counts for the process, and is inside MPI with any of its threads.
    let inside = contexts[0][0];
    let outside = contexts[0][1];
    assert_ne!(inside, outside);
    let expected = [[inside, outside, inside], [outside; 3]];
    assert_eq!(contexts[..], [expected, expected].concat());
}
