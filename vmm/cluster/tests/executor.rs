//! Tests of the executor: nodes on any number of host threads have the same quanta and the same ends of batches. No node runs ahead of
//! frames that may still arrive. The vCPUs of these tests execute no instructions, but take host time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nodescope_cluster::distribution::{Distribution, PeerError, Peers};
use nodescope_cluster::executor::{Executor, QuantumBatch};
use nodescope_cluster::network::Network;
use nodescope_devices::virtio::Device;
use nodescope_devices::virtio::net::{Net, NetConfig, Offloads};
use nodescope_engine::{EngineError, Exit, Limit, Platform, Vcpu};
use nodescope_fabric::Switch;
use nodescope_hypercall::NodeIdentity;
use nodescope_machine::acpi::{PlatformDescription, Trigger, VirtioSlot};
use nodescope_machine::node::{Node, NodeParts, NodeStatus};
use nodescope_machine::topology::NodeTopology;
use nodescope_memory::Ram;
use nodescope_plugin_api::{L0Geometry, L0Update};
use nodescope_x86::VcpuState;

/// Frequency of the nodes' clocks: a cycle is a nanosecond, of `PS` picoseconds.
const HZ: u64 = 1_000_000_000;
const PS: u64 = 1000;
/// Cycles of a quantum.
const QUANTUM: u64 = 2_000;
/// First port of the serial console; `SLEEP` is the port at which a node is switched off.
const CONSOLE: u16 = 0x3f8;
const SLEEP: u16 = 0x600;
/// Registers of the network interface: base address, device status, 32 of the driver's features, and which 32 (virtio 1.2, section 4.2.2).
const NETWORK: u64 = 0xd000_0000;
const STATUS: u64 = NETWORK + 0x70;
const FEATURES: u64 = NETWORK + 0x20;
const FEATURES_FROM: u64 = NETWORK + 0x24;
/// Soft-off: sleep type 5 and sleep enable (ACPI 6.5, section 4.8.3.7).
const OFF: u8 = 5 << 2 | 1 << 5;

/// A vCPU that executes no instructions: each run takes a random host time and advances the vCPU's clock to the limit.
struct Idler {
    node: usize,
    cycles: u64,
    state: VcpuState,
    /// Cycles that each node has reached.
    reached: Arc<Vec<AtomicU64>>,
    random: u64,
    /// Cycles at which the vCPU writes to the console.
    writes_at: Vec<u64>,
    connects_at: u64,
    off_at: u64,
    panics_at: u64,
    /// Number of time slices, of all vCPUs, that began without a return to the node's code.
    extended: Arc<AtomicU64>,
}

/// Brings the network interface up (virtio 1.2, section 3.1.1).
fn connect(platform: &mut dyn Platform, now: u64) {
    let mut write = |register, value: u32| {
        platform.mmio_write(0, now, register, &value.to_le_bytes());
    };
    write(STATUS, 1);
    write(STATUS, 3);
    // VIRTIO_F_VERSION_1.
    write(FEATURES_FROM, 1);
    write(FEATURES, 1);
    write(STATUS, 11);
    write(STATUS, 15);
}

impl Idler {
    /// Runs one time slice, and checks that no other node is more than a quantum behind its end.
    fn run_time_slice(&mut self, platform: &mut dyn Platform, limit: Limit) -> Exit {
        for (other, reached) in self.reached.iter().enumerate() {
            let reached = reached.load(Ordering::SeqCst);
            assert!(
                limit.cycles <= reached + QUANTUM,
                "node {} goes on to {} while node {other} is at {reached}",
                self.node,
                limit.cycles,
            );
        }
        // Some time slices take the host longer than others, and a few much longer.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let spins = match self.random >> 59 {
            0 => 200_000,
            n => 100 * n,
        };
        for _ in 0..spins {
            std::hint::spin_loop();
        }
        assert!(limit.cycles < self.panics_at, "the panic of the script");
        let (vcpu, now) = (0, self.cycles);
        self.cycles = limit.cycles;
        self.reached[self.node].store(limit.cycles, Ordering::SeqCst);
        if self
            .writes_at
            .iter()
            .any(|at| (now..limit.cycles).contains(at))
        {
            platform.port_write(vcpu, limit.cycles, CONSOLE, b"!");
        }
        if (now..limit.cycles).contains(&self.connects_at) {
            connect(platform, now);
        }
        if (now..limit.cycles).contains(&self.off_at) {
            // Other nodes continue without this one, so that its time must not hold them back.
            self.reached[self.node].store(u64::MAX / 2, Ordering::SeqCst);
            platform.port_write(vcpu, limit.cycles, SLEEP, &[OFF]);
            return Exit::Attention;
        }
        Exit::Limit
    }
}

impl Vcpu for Idler {
    fn run(&mut self, platform: &mut dyn Platform, limit: Limit) -> Result<Exit, EngineError> {
        let mut limit = limit;
        loop {
            let exit = self.run_time_slice(platform, limit);
            let more = match exit {
                Exit::Limit if limit.extends => platform.extend(0),
                _ => None,
            };
            match more {
                Some(cycles) => limit.cycles = cycles,
                None => return Ok(exit),
            }
            self.extended.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn cycles(&self) -> u64 {
        self.cycles
    }

    fn advance_to(&mut self, cycles: u64) {
        self.cycles = cycles;
    }

    fn instructions(&self) -> u64 {
        self.cycles
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

/// Events of all nodes, at times in cycles.
#[derive(Clone, Copy)]
struct Script<'a> {
    /// Times at which each node writes to its console, by node.
    console_at: &'a [&'a [u64]],
    /// Time at which the nodes bring their network interfaces up. From then on quanta end by default.
    connect_at: u64,
    /// Time at which the last node powers off.
    off_at: u64,
    /// Index of a node that panics at half of `off_at`.
    panics: Option<usize>,
}

fn nodes(script: Script<'_>, extended: &Arc<AtomicU64>) -> Vec<Node> {
    let Script {
        console_at, off_at, ..
    } = script;
    let reached: Arc<Vec<AtomicU64>> =
        Arc::new(console_at.iter().map(|_| AtomicU64::new(0)).collect());
    let last = console_at.len() - 1;
    let interface = NetConfig {
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        offloads: Offloads::default(),
        backlog: 8,
    };
    let parts = console_at.iter().enumerate().map(|(node, writes_at)| {
        let mut topology = NodeTopology::uniform(1, 1, 1, 2 << 20);
        topology.tsc_hz = HZ;
        NodeParts {
            index: node as u32,
            ram: Ram::new(&topology.socket_memory).unwrap(),
            topology,
            platform: PlatformDescription {
                virtio: vec![VirtioSlot {
                    base: NETWORK,
                    size: 0x200,
                    gsi: 16,
                    trigger: Trigger::Edge,
                }],
                ..PlatformDescription::default()
            },
            vcpus: vec![Box::new(Idler {
                node,
                cycles: 0,
                state: VcpuState::reset(),
                reached: reached.clone(),
                random: node as u64,
                writes_at: writes_at.to_vec(),
                connects_at: script.connect_at,
                off_at: if node == last { off_at } else { u64::MAX },
                panics_at: match script.panics {
                    Some(panics) if panics == node => off_at / 2,
                    _ => u64::MAX,
                },
                extended: extended.clone(),
            })],
            boot: VcpuState::reset(),
            virtio: vec![Device::Net(Net::new(interface))],
            epoch: 0,
            identity: NodeIdentity {
                node: node as u32,
                nodes: console_at.len() as u32,
                vcpus: 1,
                seed: 0,
                ipv4: [10, 0, 0, 1],
                prefix: 16,
                mac: [2, 0, 0, 0, 0, 1],
                name: String::new(),
                text: String::new(),
            },
        }
    });
    parts.map(|parts| Node::new(parts).unwrap()).collect()
}

/// End of a batch: its time, the status of each node, and whether each node had console output.
type End = (u64, Vec<NodeStatus>, Vec<bool>);

/// Runs batches of at most `most` quanta until a node is off. Returns the ends of all batches, and the number of time slices that began
/// without a return to the node's code.
fn ends(threads: usize, script: Script<'_>, most: u64) -> (Vec<End>, u64) {
    let network = Network::new(Switch::new(&[]).unwrap(), None);
    let extended = Arc::default();
    let executor = Executor::new(nodes(script, &extended), network);
    let ends = ends_of(&executor, threads, script, most);
    (ends, extended.load(Ordering::Relaxed))
}

fn ends_of(executor: &Executor, threads: usize, script: Script<'_>, most: u64) -> Vec<End> {
    let mut ends: Vec<End> = Vec::new();
    executor.run(threads, |run_batch| {
        loop {
            let now = ends.last().map_or(0, |end| end.0);
            let (reached, statuses) = run_batch(QuantumBatch {
                first_end_ps: now + QUANTUM * PS,
                lookahead_ps: QUANTUM * PS,
                disconnected_lookahead_ps: QUANTUM * PS,
                end_limit_ps: u64::MAX,
                start_limit_ps: u64::MAX,
                quanta_left: most,
            });
            let output = (0..executor.len())
                .map(|node| !executor.take_output(node).0.is_empty())
                .collect();
            let statuses = statuses.unwrap();
            let over = statuses.contains(&NodeStatus::Off);
            ends.push((reached, statuses, output));
            if over {
                let connected = executor.any_connected();
                assert_eq!(connected, script.connect_at < script.off_at);
                return;
            }
        }
    });
    ends
}

/// A process of a distributed run, in whose place these tests have a thread.
struct Process {
    rank: usize,
    /// Messages from each process to each other one.
    queues: Arc<Vec<Vec<Queue>>>,
}

#[derive(Default)]
struct Queue(Mutex<VecDeque<Vec<u8>>>);

impl Peers for Process {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.queues.len()
    }

    fn exchange(&self, own: &[Vec<u8>], senders: &[bool]) -> Result<Vec<Vec<u8>>, PeerError> {
        if senders[self.rank] {
            for (queue, message) in self.queues[self.rank].iter().zip(own) {
                queue.0.lock().unwrap().push_back(message.clone());
            }
        }
        let from = |from: usize| loop {
            if from == self.rank || !senders[from] {
                return Vec::new();
            }
            if let Some(message) = self.queues[from][self.rank].0.lock().unwrap().pop_front() {
                return message;
            }
            std::thread::yield_now();
        };
        Ok((0..self.count()).map(from).collect())
    }

    fn send(&self, _: usize, _: &[u8]) -> Result<(), PeerError> {
        unreachable!("these tests take no snapshot")
    }

    fn receive(&self, _: usize) -> Result<Vec<u8>, PeerError> {
        unreachable!("these tests take no snapshot")
    }

    fn leave(&self, why: &str) {
        panic!("{why}");
    }
}

/// Runs the script in `count` processes. Returns the ends of all batches as each process sees them.
fn ends_of_processes(count: usize, threads: usize, script: Script<'_>, most: u64) -> Vec<Vec<End>> {
    let mut nodes = nodes(script, &Arc::default());
    let all = nodes.len();
    let queues = (0..count).map(|_| (0..count).map(|_| Queue::default()).collect());
    let queues: Arc<Vec<Vec<Queue>>> = Arc::new(queues.collect());
    std::thread::scope(|scope| {
        let processes: Vec<_> = (0..count)
            .map(|rank| {
                let peers = Arc::new(Process {
                    rank,
                    queues: Arc::clone(&queues),
                });
                let distribution = Distribution::new(peers, all, false, Arc::default()).unwrap();
                let own = nodes.drain(..distribution.own().len()).collect();
                scope.spawn(move || {
                    let network = Network::new(Switch::new(&[]).unwrap(), None);
                    let executor = Executor::distributed(own, network, distribution).unwrap();
                    ends_of(&executor, threads, script, most)
                })
            })
            .collect();
        processes.into_iter().map(|of| of.join().unwrap()).collect()
    })
}

#[test]
fn quanta_are_the_same_in_any_number_of_processes() {
    let console_at: [&[u64]; 5] = [
        &[],
        &[1, 31_000, 700_000],
        &[31_500],
        &[QUANTUM * 40],
        &[700_000],
    ];
    for (connect_at, most) in [(u64::MAX, 1000), (0, 1000), (20_000, 7)] {
        let script = Script {
            console_at: &console_at,
            connect_at,
            off_at: 1_001_999,
            panics: None,
        };
        let (expected, _) = ends(1, script, most);
        for (count, threads) in [(1, 1), (2, 1), (2, 2), (3, 2), (5, 1)] {
            for found in ends_of_processes(count, threads, script, most) {
                assert_eq!(found, expected, "{count} processes of {threads} threads");
            }
        }
    }
}

/// Checks runs on as many threads as nodes, on fewer threads, and on more threads than nodes.
#[test]
fn quanta_are_the_same_on_any_number_of_threads() {
    let console_at: [&[u64]; 5] = [
        &[],
        &[1, 31_000, 700_000],
        &[31_500],
        &[QUANTUM * 40],
        &[700_000],
    ];
    let off_at = 1_001_999;
    let expected: Vec<(u64, Vec<bool>)> = [
        (QUANTUM, [1, 1]),
        (32_000, [1, 2]),
        (QUANTUM * 41, [3, 3]),
        (702_000, [1, 4]),
        (1_002_000, [9, 9]),
    ]
    .map(|(end, who)| (end * PS, (0..5).map(|node| who.contains(&node)).collect()))
    .to_vec();
    for threads in [1, 2, 3, 5, 8] {
        for (connect_at, most) in [(u64::MAX, 1000), (0, 1000), (20_000, 7)] {
            let script = Script {
                console_at: &console_at,
                connect_at,
                off_at,
                panics: None,
            };
            let (ends, extended) = ends(threads, script, most);
            // With three or more threads, some thread has a single node.
            let may_go_on = threads >= 3 && connect_at < off_at;
            assert!(may_go_on || extended == 0, "{threads} threads: {extended}");
            let found: Vec<(u64, Vec<bool>)> = ends
                .iter()
                .map(|(end, _, output)| (*end, output.clone()))
                .filter(|(end, output)| {
                    most == 1000 || output.contains(&true) || *end == expected[4].0
                })
                .collect();
            assert_eq!(found, expected, "{threads} threads");
            let (_, statuses, _) = ends.last().unwrap();
            assert_eq!(statuses[4], NodeStatus::Off);
            assert!(statuses[..4].iter().all(|s| *s == NodeStatus::Running));
            let mut from = 0;
            for (end, ..) in ends {
                assert!(end - from <= most * QUANTUM * PS, "{threads} threads");
                from = end;
            }
        }
    }
}

/// Checks that the only node of a thread continues without a return to the thread's code where its quanta end by default.
#[test]
fn a_node_alone_goes_on_at_once() {
    let script = Script {
        console_at: &[&[31_000, 701_000]],
        connect_at: 4_000,
        off_at: 1_001_999,
        panics: None,
    };
    for most in [1000, 10] {
        let (ends, extended) = ends(1, script, most);
        let times: Vec<u64> = ends.iter().map(|(end, ..)| *end / PS).collect();
        if most == 1000 {
            assert_eq!(times, [32_000, 702_000, 1_002_000]);
        }
        // Of 501 time slices, the first of each batch and the two before the interface is up follow a return to the node's code.
        assert_eq!(extended, 501 - times.len() as u64 - 2, "{times:?}");
    }
}

/// Checks that a panic ends the run, whichever thread panics, and that no thread waits for ever.
#[test]
fn a_panic_ends_all_threads() {
    for threads in [1, 2, 4] {
        for node in 0..3 {
            let script = Script {
                console_at: &[&[], &[], &[]],
                connect_at: 0,
                off_at: 200_000,
                panics: Some(node),
            };
            let run = || ends(threads, script, 1000);
            assert!(std::panic::catch_unwind(run).is_err(), "{threads} threads");
        }
    }
}
