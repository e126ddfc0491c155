//! Tests with hostile kernels: code in ring 0 that uses devices, registers and hypercalls at random, and a kernel that sends frames as fast
//! as it can. The host must neither panic nor run out of memory, each quantum must end, and the outcome must be the same on any number of
//! threads.

mod state;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use nodescope_cluster::RunError;
use nodescope_cluster::executor::{Executor, QuantumBatch};
use nodescope_cluster::network::Network;
use nodescope_devices::time::Hertz;
use nodescope_devices::virtio::Device;
use nodescope_devices::virtio::block::{Block, BlockTiming, Disk, Image};
use nodescope_devices::virtio::net::{Link, Net, NetConfig, Offloads};
use nodescope_devices::virtio::rng::Rng;
use nodescope_engine_soft::{SharedCode, SoftConfig, SoftVcpu, Translate};
use nodescope_fabric::{LinkConfig, Switch};
use nodescope_hypercall::NodeIdentity;
use nodescope_machine::acpi::{PlatformDescription, Trigger, VirtioSlot};
use nodescope_machine::cpuid::{CpuidOptions, tables};
use nodescope_machine::node::{Node, NodeError, NodeParts, NodeStatus};
use nodescope_machine::topology::NodeTopology;
use nodescope_memory::Ram;
use nodescope_x86::VcpuState;
use nodescope_x86::state::{DescriptorTable, Segment, seg};

const HZ: u64 = 1_000_000_000;
const PS: u64 = 1000;
/// Cycles of a quantum.
const QUANTUM: u64 = 10_000;
const RAM: u64 = 16 << 20;

/// Guest-physical addresses of page tables, descriptor tables, the handler of interrupts, code and stack.
const PAGES: u64 = 0x1000;
const GDT: u64 = 0x8000;
const IDT: u64 = 0x9000;
const HANDLER: u64 = 0xf000;
const CODE: u64 = 0x1_0000;
const STACK: u64 = 0x10_0000;
/// Beginning of the memory that is written at random, for rings, buffers and other data; it extends to the end of memory. Memory below it
/// remains unchanged.
const RINGS: u64 = 0x80_0000;

const VIRTIO: u64 = 0xd000_0000;
const DEVICES: u64 = 4;
const BLOCK: u64 = 0;
const NET: u64 = 1;

/// Offsets of the registers of a virtio device (virtio 1.2, section 4.2.2).
const FEATURES: u64 = 0x20;
const FEATURES_FROM: u64 = 0x24;
const QUEUE: u64 = 0x30;
const QUEUE_SIZE: u64 = 0x38;
const QUEUE_READY: u64 = 0x44;
const NOTIFY: u64 = 0x50;
const STATUS: u64 = 0x70;
const RING_ADDRESSES: [u64; 3] = [0x80, 0x90, 0xa0];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0.rotate_left(32)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn of(&mut self, choices: &[u64]) -> u64 {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns a random value: small, a power of two, all ones, or any.
    fn value(&mut self) -> u64 {
        let any = self.next();
        let (small, power) = (self.below(256), 1 << self.below(64));
        self.of(&[any, small, power, u64::MAX])
    }

    /// Returns an address for a ring or buffer: mostly one that a driver may use, sometimes of a device, at the end of memory, or any.
    fn address(&mut self) -> u64 {
        let near = RINGS + self.below(0x4000);
        match self.below(12) {
            0 => VIRTIO + self.below(DEVICES << 12),
            1 => RAM - self.below(64),
            2 => self.next(),
            _ => near,
        }
    }
}

fn write32(a: &mut CodeAssembler, address: u64, value: u64) -> Result<(), IcedError> {
    a.mov(rbx, address)?;
    a.mov(eax, value as u32)?;
    a.mov(dword_ptr(rbx), eax)
}

/// Emits code that starts a device as a driver does, with rings at these addresses: descriptors, available, used.
fn start(
    a: &mut CodeAssembler,
    device: u64,
    features: u64,
    queues: &[[u64; 3]],
    size: u64,
) -> Result<(), IcedError> {
    let base = VIRTIO + (device << 12);
    for status in [0, 1, 3] {
        write32(a, base + STATUS, status)?;
    }
    for half in [0, 1] {
        write32(a, base + FEATURES_FROM, half)?;
        write32(a, base + FEATURES, features >> (32 * half))?;
    }
    write32(a, base + STATUS, 11)?;
    for (queue, rings) in (0..).zip(queues) {
        write32(a, base + QUEUE, queue)?;
        write32(a, base + QUEUE_SIZE, size)?;
        for (register, address) in RING_ADDRESSES.iter().zip(rings) {
            write32(a, base + register, *address)?;
            write32(a, base + register + 4, address >> 32)?;
        }
        write32(a, base + QUEUE_READY, 1)?;
    }
    write32(a, base + STATUS, 15)
}

/// Emits one random action that no kernel should do.
fn mischief(a: &mut CodeAssembler, random: &mut Random) -> Result<(), IcedError> {
    let mmio = [
        VIRTIO + random.below(DEVICES << 12),
        VIRTIO + (random.below(DEVICES) << 12) + 4 * random.below(0x41),
        0xfec0_0000 + 4 * random.below(8),
        0xfee0_0000 + 16 * random.below(0x30),
        0xfee0_0000 + 16 * (0x31 + random.below(15)),
        random.below(1 << 32) | 0xc000_0000,
    ];
    let port = [
        0x3f8 + random.below(8),
        0x70 + random.below(2),
        0x600 + random.below(3),
        random.below(1 << 16),
    ];
    // Writes to the APIC's base and to its command register mostly put a vCPU to sleep for ever, so that they are rare here.
    let asleep = match random.below(20) {
        0 => random.of(&[0x1b, 0x830]),
        _ => 0x80b,
    };
    let msr = [
        asleep,
        0x10,
        0x6e0,
        0x800 + random.below(0x30),
        random.below(1 << 12),
        0xc000_0080 + random.below(0x90),
    ];
    match random.below(16) {
        0 | 1 => {
            a.mov(rbx, random.of(&mmio))?;
            a.mov(rax, random.value())?;
            match random.below(4) {
                0 => a.mov(byte_ptr(rbx), al),
                1 => a.mov(word_ptr(rbx), ax),
                2 => a.mov(dword_ptr(rbx), eax),
                _ => a.mov(qword_ptr(rbx), rax),
            }
        }
        2 => {
            a.mov(rbx, random.of(&mmio))?;
            a.mov(rax, qword_ptr(rbx))
        }
        3 => {
            a.mov(edx, random.of(&port) as u32)?;
            // Without the bit that switches the node off, after which nothing else would happen.
            a.mov(eax, random.value() as u32 & !0x20)?;
            match random.below(5) {
                0 => a.out(dx, al),
                1 => a.out(dx, ax),
                2 => a.out(dx, eax),
                3 => a.in_(al, dx),
                _ => a.in_(eax, dx),
            }
        }
        4 => {
            // EFER and the registers that decide where code runs are only read: changes would end the program.
            let number = random.of(&msr);
            a.mov(ecx, number as u32)?;
            a.mov(eax, random.value() as u32)?;
            a.mov(edx, random.of(&[0, 0, 0xffff_ffff]) as u32)?;
            match random.below(3) {
                0 => a.rdmsr(),
                _ if (0xc000_0080..0xc000_0110).contains(&number) => a.rdmsr(),
                _ => a.wrmsr(),
            }
        }
        5 => {
            let rings = |random: &mut Random| {
                [0; 3].map(|_: u64| match random.below(10) {
                    0 => random.address(),
                    _ => RINGS + 16 * random.below(0x100),
                })
            };
            let queues = [rings(random), rings(random)];
            let features = 1 << 32 | random.next() & (1 << 28 | 1 << 29 | 0x8821);
            start(
                a,
                random.below(DEVICES),
                features,
                &queues,
                1 << random.below(9),
            )
        }
        6 | 7 => {
            // A descriptor: address, length, flags, next.
            a.mov(rbx, RINGS + 16 * random.below(0x100))?;
            a.mov(rax, random.address())?;
            a.mov(qword_ptr(rbx), rax)?;
            let length = [
                random.below(64),
                16 * random.below(300),
                random.below(1 << 32),
            ];
            let rest = random.of(&length) | random.below(8) << 32 | random.below(40) << 48;
            a.mov(rax, rest)?;
            a.mov(qword_ptr(rbx + 8), rax)
        }
        8 => {
            // The index of an available ring, or any other word there.
            a.mov(rbx, RINGS + 2 * random.below(0x800))?;
            a.add(word_ptr(rbx), random.below(20) as i32)
        }
        9 | 10 => {
            let device = VIRTIO + (random.below(DEVICES) << 12);
            write32(a, device + NOTIFY, random.below(3))
        }
        11 => {
            // A hypercall.
            a.mov(eax, 0x4e53_4350)?;
            a.mov(ecx, random.below(14) as u32)?;
            for register in [rsi, rdi, r8, r9, r10] {
                let (address, small) = (random.address(), random.below(1 << 17));
                a.mov(register, random.of(&[address, small, small, u64::MAX]))?;
            }
            a.cpuid()
        }
        12 => {
            a.mov(rsi, random.address())?;
            a.mov(rdi, random.of(&mmio))?;
            a.mov(ecx, random.below(0x200) as u32)?;
            match random.below(3) {
                0 => a.rep().movsb(),
                1 => a.rep().stosd(),
                _ => {
                    a.mov(edx, random.of(&port) as u32 & !0x600)?;
                    a.rep().outsb()
                }
            }
        }
        13 => {
            a.mov(rax, random.value())?;
            a.mov(cr8, rax)
        }
        14 => {
            // Sleep until the timer of the local APIC expires, if the timer still works.
            a.xor(eax, eax)?;
            a.mov(cr8, rax)?;
            for (register, value) in [(0xf0, 0x1ff), (0x320, 0x2_0041), (0x380, 100)] {
                write32(a, 0xfee0_0000 + register, value)?;
            }
            a.hlt()
        }
        _ => match random.below(3) {
            0 => a.ud2(),
            1 => a.int(random.below(256) as i32),
            _ => a.pause(),
        },
    }
}

/// Returns the machine code that `body` emits, for this address.
fn assemble(at: u64, body: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Vec<u8> {
    let assemble = || {
        let mut a = CodeAssembler::new(64)?;
        body(&mut a)?;
        a.assemble(at)
    };
    assemble().unwrap()
}

/// Returns the code of the handler of faults and interrupts. The handler signals the end of the interrupt, without which no other would
/// come, and continues with the next action.
fn handler() -> Vec<u8> {
    assemble(HANDLER, |a| {
        write32(a, 0xfee0_00b0, 0)?;
        a.mov(rsp, STACK)?;
        a.jmp(r15)
    })
}

fn hostile(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    assemble(CODE, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        for _ in 0..400 {
            let mut next = a.create_label();
            a.lea(r15, ptr(next))?;
            a.sti()?;
            mischief(a, &mut random)?;
            a.set_label(&mut next)?;
            a.nop()?;
        }
        a.jmp(again)
    })
}

/// Returns code that sends one frame again and again, as fast as the device takes it.
fn flood() -> Vec<u8> {
    const SIZE: u64 = 256;
    let [descriptors, available, used] = [RINGS, RINGS + 0x1000, RINGS + 0x2000];
    let frame = RINGS + 0x4000;
    assemble(CODE, |a| {
        let receive = [descriptors + 0x8000, available + 0x8000, used + 0x8000];
        start(
            a,
            NET,
            1 << 32,
            &[receive, [descriptors, available, used]],
            SIZE,
        )?;
        // A frame to all nodes, after the virtio header of 12 bytes.
        a.mov(rbx, frame + 12)?;
        a.mov(rax, u64::MAX)?;
        a.mov(qword_ptr(rbx), rax)?;
        for number in 0..SIZE {
            a.mov(rbx, descriptors + 16 * number)?;
            a.mov(rax, frame)?;
            a.mov(qword_ptr(rbx), rax)?;
            a.mov(rax, 12 + 1514_u64)?;
            a.mov(qword_ptr(rbx + 8), rax)?;
            a.mov(rbx, available + 4 + 2 * number)?;
            a.mov(word_ptr(rbx), number as i32)?;
        }
        a.mov(rsi, available + 2)?;
        a.mov(rdi, used + 2)?;
        a.mov(rbx, VIRTIO + (NET << 12) + NOTIFY)?;
        a.xor(r12d, r12d)?;
        let mut more = a.create_label();
        let mut wait = a.create_label();
        a.set_label(&mut more)?;
        a.add(r12d, SIZE as i32)?;
        a.mov(word_ptr(rsi), r12w)?;
        a.mov(dword_ptr(rbx), 1)?;
        a.set_label(&mut wait)?;
        a.cmp(word_ptr(rdi), r12w)?;
        a.jne(wait)?;
        a.jmp(more)
    })
}

/// Returns a node of two vCPUs. The first one runs this code; the second one waits for a start-up IPI.
fn node(index: u32, code: &[u8], bandwidth: u64) -> Node {
    let ram = Ram::new(&[RAM]).unwrap();
    load(&ram, code);
    assembled(index, ram, bandwidth)
}

/// Writes page tables, descriptor tables, the handler and the code into memory.
fn load(ram: &Ram, code: &[u8]) {
    let put = |at: u64, value: u64| assert!(ram.write(at, &value.to_le_bytes()));
    // Identity mapping of memory and devices, with pages of 2 MiB.
    put(PAGES, (PAGES + 0x1000) | 7);
    for gib in 0..4 {
        let table = PAGES + 0x2000 + (gib << 12);
        put(PAGES + 0x1000 + 8 * gib, table | 7);
        for page in 0..512 {
            put(table + 8 * page, gib << 30 | page << 21 | 0x87);
        }
    }
    put(GDT + 8, 0x00af_9b00_0000_ffff);
    put(GDT + 16, 0x00cf_9300_0000_ffff);
    for vector in 0..256 {
        // An interrupt gate; the handler is in the first 64 KiB of memory.
        put(IDT + 16 * vector, HANDLER | 8 << 16 | 0x8e00 << 32);
    }
    assert!(ram.write(CODE, code) && ram.write(HANDLER, &handler()));
}

/// Returns a node with this memory, whose vCPUs begin in 64-bit mode at `CODE`.
fn assembled(index: u32, ram: Ram, bandwidth: u64) -> Node {
    let mut topology = NodeTopology::uniform(1, 2, 1, RAM);
    topology.tsc_hz = HZ;
    let segment = |selector, attributes| Segment {
        selector,
        base: 0,
        limit: u32::MAX,
        attributes,
        unusable: false,
    };
    let table = |base, limit| DescriptorTable { base, limit };
    let mut boot = VcpuState::reset();
    boot.control.cr0 = 0x8005_0033;
    boot.control.cr3 = PAGES;
    boot.control.cr4 = 0x20;
    boot.control.efer = 0xd00;
    boot.segments.data = [segment(0x10, 0xc093); 6];
    boot.segments.data[seg::CS] = segment(8, 0xa09b);
    boot.segments.gdt = table(GDT, 0x17);
    boot.segments.idt = table(IDT, 0xfff);
    boot.general.rip = CODE;
    boot.general.gpr[4] = STACK;
    boot.general.rflags = 2;

    // The engine has only the features that CPUID announces, among them MSRs, so a full CPUID table is needed.
    let cpuid = tables(
        &NodeTopology::default(),
        &CpuidOptions::default(),
        &[],
        |_| true,
    )
    .unwrap();
    let shared = SharedCode::new(ram.clone());
    let vcpu = |id| -> Box<dyn nodescope_engine::Vcpu> {
        Box::new(SoftVcpu::new(SoftConfig {
            id,
            code: shared.clone(),
            cpuid: cpuid[0].clone(),
            cpi: 1 << 16,
            seed: 1,
            translate: Translate::default(),
        }))
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), vec![index as u8; 1 << 20]).unwrap();
    let clock = Hertz::new(HZ).unwrap();
    let timing = BlockTiming {
        clock,
        latency_ns: 1000,
        bytes_per_second: std::num::NonZeroU64::new(2_000_000_000),
    };
    let disk = |disk| Device::Block(Block::new(disk, "disk", timing));
    let interface = NetConfig {
        mac: [2, 0, 0, 0, 0, index as u8],
        mtu: 1500,
        offloads: Offloads {
            checksum: true,
            segmentation: true,
        },
        backlog: 4096,
    };
    let image = Image::open(file.path()).unwrap();
    let virtio = vec![
        disk(Disk::overlay(image)),
        Device::Net(Net::new(interface).on(Link { clock, bandwidth })),
        Device::Rng(Rng::new([index as u8; 32])),
        disk(Disk::memory(1 << 20)),
    ];
    assert_eq!(virtio.len() as u64, DEVICES);
    assert!(matches!(virtio[BLOCK as usize], Device::Block(_)));
    let slot = |device: u32| VirtioSlot {
        base: VIRTIO + (u64::from(device) << 12),
        size: 0x1000,
        gsi: 16 + device,
        trigger: Trigger::Level,
    };
    Node::new(NodeParts {
        index,
        platform: PlatformDescription {
            virtio: (0..DEVICES as u32).map(slot).collect(),
            ..PlatformDescription::default()
        },
        topology,
        ram: ram.clone(),
        vcpus: vec![vcpu(0), vcpu(1)],
        boot,
        virtio,
        epoch: 0,
        identity: NodeIdentity {
            node: index,
            nodes: 2,
            vcpus: 2,
            seed: 0,
            ipv4: [10, 0, 0, 1],
            prefix: 16,
            mac: interface.mac,
            name: "node".into(),
            text: String::new(),
        },
    })
    .unwrap()
}

/// Returns an executor of nodes on one switch, one node for each of the codes. Links have this bandwidth in bits per second.
fn cluster(codes: &[Vec<u8>], bandwidth: u64) -> Executor {
    let link = LinkConfig {
        bandwidth,
        latency_ps: QUANTUM * PS,
    };
    let ports: Vec<_> = (0..codes.len() as u8)
        .map(|index| ([2, 0, 0, 0, 0, index], link))
        .collect();
    let nodes = (0..).zip(codes);
    let nodes = nodes.map(|(index, code)| node(index, code, bandwidth));
    let network = Network::new(Switch::new(&ports).unwrap(), None);
    Executor::new(nodes.collect(), network)
}

/// Returns the ending, the instructions and hashes of output and memory of each node: after so many cycles, or when the first node has
/// ended.
fn outcome(executor: &Executor, threads: usize, cycles: u64) -> Vec<(String, u64, u64, u64)> {
    let mut ending = String::new();
    let mut output = DefaultHasher::new();
    executor.run(threads, |run_batch| {
        let mut now = 0;
        while now < cycles * PS {
            let (reached, statuses) = run_batch(QuantumBatch {
                first_end_ps: now + QUANTUM * PS,
                lookahead_ps: QUANTUM * PS,
                disconnected_lookahead_ps: QUANTUM * PS,
                end_limit_ps: u64::MAX,
                start_limit_ps: u64::MAX,
                quanta_left: 100,
            });
            assert!(reached > now, "time goes on");
            now = reached;
            for node in 0..executor.len() {
                executor.with_node(node, |node| {
                    node.take_console().hash(&mut output);
                    for event in node.take_events() {
                        (event.cycles, event.instructions).hash(&mut output);
                    }
                });
            }
            match statuses {
                Ok(statuses) if statuses.iter().all(|s| *s == NodeStatus::Running) => {}
                Ok(statuses) => {
                    ending = format!("{statuses:?}");
                    return;
                }
                // A guest may end by a triple fault, or start a vCPU in a mode that the engine refuses.
                Err(RunError::Node(
                    error @ (NodeError::TripleFault { .. } | NodeError::Engine { .. }),
                )) => {
                    ending = error.to_string();
                    return;
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
    let output = output.finish();
    (0..executor.len())
        .map(|node| {
            executor.with_node(node, |node| {
                let mut memory = vec![0; (RAM - RINGS) as usize];
                assert!(node.ram().read(RINGS, &mut memory));
                let mut hasher = DefaultHasher::new();
                (memory, node.notes()).hash(&mut hasher);
                let ending = ending.clone();
                (ending, node.instructions(), output, hasher.finish())
            })
        })
        .collect()
}

/// Returns the peak of this process's memory in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB"));
    1024 * kib.unwrap().trim().parse::<u64>().unwrap()
}

/// Runs kernels of random actions. For more seeds: `NODESCOPE_SEEDS=1000 cargo test --release -p nodescope-cluster --test hostile`.
#[test]
fn whatever_a_kernel_does_the_host_goes_on() {
    let seeds = std::env::var("NODESCOPE_SEEDS").map_or(8, |seeds| seeds.parse().unwrap());
    let mut instructions = 0;
    for seed in 0..seeds {
        let codes = [hostile(2 * seed + 1), hostile(2 * seed + 2)];
        let run = |threads| outcome(&cluster(&codes, 1_000_000_000), threads, 3_000_000);
        let one = run(1);
        println!(
            "seed {seed}: {} instructions, {}",
            one[0].1 + one[1].1,
            one[0].0
        );
        assert_eq!(one, run(2), "seed {seed}");
        instructions += one[0].1 + one[1].1;
    }
    assert!(
        instructions > 1000 * seeds,
        "kernels that come to nothing show nothing"
    );
    assert!(peak() < 1 << 30, "{} bytes", peak());
}

#[test]
fn a_flood_fills_no_memory_and_leaves_at_the_links_rate() {
    let idle = assemble(CODE, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.lea(r15, ptr(again))?;
        a.hlt()?;
        a.jmp(again)
    });
    let codes = [flood(), idle];
    let executor = cluster(&codes, 10_000_000);
    // In half a second the link sends at its rate; the rest waits in the card's buffer of 256 KiB.
    let first = outcome(&executor, 1, HZ / 2);
    assert_eq!(first[0].0, "", "both run on");
    let counts = executor.network().counts();
    let per_second = 10_000_000 / (8 * 1538);
    let sent = counts[0].sent_frames;
    assert!(
        (per_second / 2 - 2..=per_second / 2 + 2).contains(&sent),
        "{sent} frames"
    );
    assert_eq!(
        counts[0].dropped_frames, 0,
        "the card waits, nothing is lost"
    );
    assert!(peak() < 1 << 30, "{} bytes", peak());
}
