//! Bare-metal guest on two vCPUs that uses all parts of a node: timers, interrupts between vCPUs, HLT, the console, random numbers,
//! self-modifying code, hypercalls, and a disk, a network card and an entropy device with interrupts.
#![allow(dead_code, missing_docs)]

use std::num::NonZeroU64;

use iced_x86::code_asm::*;
use nodescope_devices::time::Hertz;
use nodescope_devices::virtio::Device;
use nodescope_devices::virtio::block::{Block, BlockTiming, Disk};
use nodescope_devices::virtio::net::{Frame, Link, Net, NetConfig, Offloads};
use nodescope_devices::virtio::rng::Rng;
use nodescope_engine::Vcpu;
use nodescope_engine_soft::{SharedCode, SoftConfig, SoftVcpu, Translate};
use nodescope_hypercall::{Function, LEAF, NodeIdentity, Operation};
use nodescope_machine::acpi::{PlatformDescription, Trigger, VirtioSlot};
use nodescope_machine::motherboard::NodeEvent;
use nodescope_machine::node::{Node, NodeParts, NodeStatus};
use nodescope_machine::state::NodeState;
use nodescope_machine::topology::NodeTopology;
use nodescope_memory::Ram;
use nodescope_oracle::bare;
use nodescope_x86::state::{Segment, seg};
use nodescope_x86::{DescriptorTable, VcpuState};

/// Size of the node's RAM, bytes.
pub const RAM: u64 = 16 << 20;
/// Length of a quantum in these tests, cycles. No period of the guest is a multiple of the quantum.
pub const QUANTUM: u64 = 29_003;
/// Frequency of the node's clock, Hz.
pub const HZ: u64 = 2_900_000_000;

const GDT: u64 = 0x1000;
const IDT: u64 = 0x2000;
const TSS: u64 = 0x3000;
const PML4: u64 = 0x9000;
const COUNTS: u64 = 0x1_0000;
const TEXT: u64 = 0x1_1000;
const STACK: u64 = 0x8_0000;
const CODE: u64 = 0x10_0000;
const OTHER_CODE: u64 = 0x11_0000;
const HANDLERS: u64 = 0x12_0000;
const ROUTINE: u64 = 0x13_0000;
const DATA: u64 = 0x20_0000;
const COPY: u64 = 0x28_0000;
const RINGS: u64 = 0x30_0000;
const BUFFERS: u64 = 0x40_0000;
const IOAPIC: u64 = 0xfec0_0000;
const VIRTIO: u64 = 0xd000_0000;
const GSI: u32 = 16;

const TIMER: u8 = 0x41;
const MESSAGE: u8 = 0x42;
const VIRTIO_VECTOR: u8 = 0x43;

/// `IA32_APIC_BASE`. This and the next five constants are numbers of MSRs of the local APIC (SDM vol. 3A §11.12.1).
const APIC_BASE: u32 = 0x1b;
const DEADLINE: u32 = 0x6e0;
const EOI: u32 = 0x80b;
const SPURIOUS: u32 = 0x80f;
const ICR: u32 = 0x830;
const LVT_TIMER: u32 = 0x832;

/// Returns the address of the descriptors of a device's queue. The available ring is one page behind this address, the used ring two pages.
fn ring(device: u64, queue: u64) -> u64 {
    RINGS + (2 * device + queue) * 0x3000
}

/// Part of a descriptor chain: guest-physical address, length in bytes, and true if the device writes the part.
type Part = (u64, u32, bool);

/// Returns the chain of each queue in use: device, queue, parts.
fn chains() -> [(u64, u64, Vec<Part>); 4] {
    let buffer = |n: u64| BUFFERS + n * 0x1000;
    [
        (0, 0, vec![(buffer(0), 64, true)]),
        (
            1,
            0,
            vec![
                (buffer(1), 16, false),
                (DATA, 2048, false),
                (buffer(2), 1, true),
            ],
        ),
        (2, 0, vec![(buffer(3), 2048, true)]),
        (2, 1, vec![(buffer(4), 12, false), (DATA + 64, 200, false)]),
    ]
}

type Done = Result<(), IcedError>;

fn store(a: &mut CodeAssembler, at: u64, value: u32) -> Done {
    a.mov(rax, at)?;
    a.mov(dword_ptr(rax), value as i32)
}

fn write_msr(a: &mut CodeAssembler, msr: u32, value: u64) -> Done {
    a.mov(ecx, msr)?;
    a.mov(eax, value as u32)?;
    a.mov(edx, (value >> 32) as u32)?;
    a.wrmsr()
}

fn enable_apic(a: &mut CodeAssembler) -> Done {
    a.mov(ecx, APIC_BASE)?;
    a.rdmsr()?;
    a.or(eax, 0xc00)?;
    a.wrmsr()?;
    write_msr(a, SPURIOUS, 0x1ff)
}

fn set_deadline(a: &mut CodeAssembler) -> Done {
    a.rdtsc()?;
    a.add(eax, 9001)?;
    a.adc(edx, 0)?;
    a.mov(ecx, DEADLINE)?;
    a.wrmsr()
}

/// Emits code that sets up the three virtio devices and their queues of 8 descriptors. The only accepted features are VERSION_1 and, on the
/// network card, merged receive buffers.
fn set_up_devices(a: &mut CodeAssembler) -> Done {
    for device in 0..3 {
        let base = VIRTIO + 0x1000 * device;
        for status in [1, 3] {
            store(a, base + 0x70, status)?;
        }
        store(a, base + 0x24, 1)?;
        store(a, base + 0x20, 1)?;
        store(a, base + 0x24, 0)?;
        // Only the network card, device 2, has merged receive buffers (bit 15). No device has event indices.
        store(a, base + 0x20, if device == 2 { 1 << 15 } else { 0 })?;
        store(a, base + 0x70, 11)?;
        for (_, queue, _) in chains().iter().filter(|(d, ..)| *d == device) {
            store(a, base + 0x30, *queue as u32)?;
            store(a, base + 0x38, 8)?;
            for (register, page) in [(0x80, 0), (0x90, 1), (0xa0, 2)] {
                let at = ring(device, *queue) + 0x1000 * page;
                store(a, base + register, at as u32)?;
            }
            store(a, base + 0x44, 1)?;
        }
        store(a, base + 0x70, 15)?;
        let pin = GSI + device as u32;
        store(a, IOAPIC, 0x10 + 2 * pin)?;
        store(a, IOAPIC + 0x10, 1 << 15 | u32::from(VIRTIO_VECTOR))?;
    }
    Ok(())
}

/// Emits the code of `build`, which runs only in every `n`-th round. `n` is a power of two.
fn every(a: &mut CodeAssembler, n: i32, build: impl FnOnce(&mut CodeAssembler) -> Done) -> Done {
    let mut skip = a.create_label();
    a.test(r15d, n - 1)?;
    a.jne(skip)?;
    build(a)?;
    a.set_label(&mut skip)?;
    a.zero_bytes()
}

fn main_program(a: &mut CodeAssembler) -> Done {
    enable_apic(a)?;
    write_msr(a, LVT_TIMER, 2 << 17 | u64::from(TIMER))?;
    // An NMI wakes the other vCPU, which sleeps.
    write_msr(a, ICR, 1 << 32 | 4 << 8)?;
    set_up_devices(a)?;
    set_deadline(a)?;
    a.mov(r13, DATA)?;
    a.sti()?;
    let mut round = a.create_label();
    a.set_label(&mut round)?;
    a.mov(rax, 6_364_136_223_846_793_005_u64)?;
    a.imul_2(r14, rax)?;
    a.add(r14, r15)?;
    a.rdrand(rbx)?;
    a.add(r12, rbx)?;
    a.mov(ecx, r15d)?;
    a.and(ecx, 0xfff)?;
    a.mov(qword_ptr(r13 + rcx * 8), r12)?;
    a.cvtsi2sd(xmm0, r14)?;
    a.addsd(xmm1, xmm0)?;
    a.fld1()?;
    a.faddp(st1, st0)?;
    a.inc(r15)?;
    every(a, 64, |a| {
        a.mov(edx, 0x3f8)?;
        a.mov(eax, r14d)?;
        a.out(dx, al)
    })?;
    every(a, 128, |a| {
        call(a, Operation::Mark, TEXT, 5, None)?;
        let number = Function::Barrier as u64;
        a.mov(r8, r15)?;
        call(a, Operation::MpiEnter, number, 9, Some(()))
    })?;
    every(a, 256, |a| {
        a.mov(rax, ROUTINE + 1)?;
        a.mov(byte_ptr(rax), r15b)?;
        a.mov(byte_ptr(rax), r14b)?;
        a.dec(rax)?;
        a.call(rax)?;
        write_msr(a, ICR, 1 << 32 | u64::from(MESSAGE))
    })?;
    every(a, 512, |a| {
        call(
            a,
            Operation::MpiPollFailed,
            Function::Barrier as u64,
            9,
            Some(()),
        )?;
        // The name of this window is empty. The node rejects the call and adds a note.
        call(a, Operation::OpenWindow, TEXT, 0, None)?;
        for (device, queue, _) in chains() {
            a.mov(rax, ring(device, queue) + 0x1002)?;
            a.inc(word_ptr(rax))?;
            store(a, VIRTIO + 0x1000 * device + 0x50, queue as u32)?;
        }
        Ok(())
    })?;
    every(a, 1024, |a| a.hlt())?;
    a.jmp(round)
}

/// Emits a hypercall. With `sequence`, the caller's code has put a third argument into R8, and R9 and R10 become zero: the call has no
/// record.
fn call(
    a: &mut CodeAssembler,
    operation: Operation,
    first: u64,
    second: u64,
    sequence: Option<()>,
) -> Done {
    a.mov(rsi, first)?;
    a.mov(rdi, second)?;
    if sequence.is_some() {
        a.xor(r9d, r9d)?;
        a.xor(r10d, r10d)?;
    }
    a.mov(ecx, operation as u32)?;
    a.mov(eax, LEAF)?;
    a.cpuid()
}

fn other_program(a: &mut CodeAssembler) -> Done {
    enable_apic(a)?;
    a.sti()?;
    let mut wait = a.create_label();
    a.set_label(&mut wait)?;
    a.hlt()?;
    a.rdrand(rbx)?;
    a.add(r12, rbx)?;
    a.jmp(wait)
}

/// Returns an interrupt handler that counts the interrupt, runs the code of `build`, and writes the EOI register.
fn handler(
    vector: u8,
    build: impl FnOnce(&mut CodeAssembler) -> Done,
) -> impl FnOnce(&mut CodeAssembler) -> Done {
    move |a| {
        let saved = [rax, rcx, rdx, rsi, rdi];
        for register in saved {
            a.push(register)?;
        }
        a.mov(rax, COUNTS + 8 * u64::from(vector))?;
        a.inc(qword_ptr(rax))?;
        build(a)?;
        write_msr(a, EOI, 0)?;
        for register in saved.into_iter().rev() {
            a.pop(register)?;
        }
        a.iretq()
    }
}

fn place(ram: &Ram, at: u64, build: impl FnOnce(&mut CodeAssembler) -> Done) {
    let mut a = CodeAssembler::new(64).unwrap();
    build(&mut a).unwrap();
    assert!(ram.write(at, &a.assemble(at).unwrap()));
}

fn place_handler(ram: &Ram, vector: u8, build: impl FnOnce(&mut CodeAssembler) -> Done) {
    let at = HANDLERS + 0x400 * u64::from(vector);
    place(ram, at, build);
    let low = (at & 0xffff) | 0x8 << 16 | 0x8e00 << 32 | (at >> 16 & 0xffff) << 48;
    let gate = IDT + 16 * u64::from(vector);
    assert!(ram.write(gate, &low.to_le_bytes()));
    assert!(ram.write(gate + 8, &(at >> 32).to_le_bytes()));
}

/// Fills RAM with the guest: page tables, descriptor tables, code and data.
pub fn load(ram: &Ram) {
    let quad = |at: u64, value: u64| assert!(ram.write(at, &value.to_le_bytes()));
    quad(PML4, 0xa003);
    for gib in 0..4 {
        quad(0xa000 + 8 * gib, (0xb000 + gib * 0x1000) | 3);
        for large in 0..512 {
            let entry = gib << 30 | large << 21 | 0x83;
            quad(0xb000 + gib * 0x1000 + 8 * large, entry);
        }
    }
    let tss = 0x0000_8b00_0000_0067 | (TSS & 0xff_ffff) << 16;
    let descriptors = [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, tss, 0];
    for (i, d) in descriptors.into_iter().enumerate() {
        quad(GDT + 8 * i as u64, d);
    }
    assert!(ram.write(TEXT, b"fives"));
    place(ram, CODE, main_program);
    place(ram, OTHER_CODE, other_program);
    place(ram, ROUTINE, |a| {
        a.mov(eax, 0x1234_5678)?;
        a.add(r12, rax)?;
        a.ret()
    });
    place_handler(ram, 2, |a| a.iretq());
    place_handler(ram, TIMER, handler(TIMER, set_deadline));
    place_handler(
        ram,
        MESSAGE,
        handler(MESSAGE, |a| {
            a.mov(rsi, DATA)?;
            a.mov(rdi, COPY)?;
            a.mov(ecx, 0x1803)?;
            a.rep().movsb()
        }),
    );
    place_handler(
        ram,
        VIRTIO_VECTOR,
        handler(VIRTIO_VECTOR, |a| {
            for device in 0..3 {
                a.mov(rax, VIRTIO + 0x1000 * device + 0x60)?;
                a.mov(ecx, dword_ptr(rax))?;
                a.mov(dword_ptr(rax + 4), ecx)?;
            }
            Ok(())
        }),
    );
    for (device, queue, parts) in chains() {
        let at = ring(device, queue);
        for (i, (address, len, writes)) in parts.iter().enumerate() {
            let next = i + 1 < parts.len();
            let flags = u16::from(next) | (u16::from(*writes) << 1);
            let mut d = address.to_le_bytes().to_vec();
            d.extend(len.to_le_bytes());
            d.extend(flags.to_le_bytes());
            d.extend((i as u16 + 1).to_le_bytes());
            assert!(ram.write(at + 16 * i as u64, &d));
        }
    }
    // This is the header of a request to the disk: write from sector 3 on.
    assert!(ram.write(BUFFERS + 0x1000, &[1, 0, 0, 0, 0, 0, 0, 0, 3]));
}

/// Returns the state of a vCPU in 64-bit mode at CPL 0.
fn start(code: u64, stack: u64) -> VcpuState {
    let flat = |selector, attributes| Segment {
        selector,
        base: 0,
        limit: u32::MAX,
        attributes,
        unusable: false,
    };
    let mut s = bare::long_mode(flat(8, 0xa09b), flat(0x10, 0xc093), PML4);
    s.general.gpr = [0; 16];
    s.general.gpr[4] = stack;
    s.general.rip = code;
    s.segments.data[seg::CS] = flat(8, 0xa09b);
    s.segments.tr = Segment {
        limit: 0x67,
        ..flat(0x18, 0x8b)
    };
    s.segments.tr.base = TSS;
    s.segments.gdt = DescriptorTable {
        base: GDT,
        limit: 0x27,
    };
    s.segments.idt = DescriptorTable {
        base: IDT,
        limit: 0xfff,
    };
    s
}

/// Returns a node with this RAM, at power-on.
pub fn node(ram: Ram, translate: Translate) -> Node {
    let topology = NodeTopology {
        tsc_hz: HZ,
        ..NodeTopology::uniform(1, 2, 1, RAM)
    };
    let clock = Hertz::new(HZ).unwrap();
    let timing = BlockTiming {
        clock,
        latency_ns: 20_000,
        bytes_per_second: NonZeroU64::new(100_000_000),
    };
    let card = NetConfig {
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        offloads: Offloads::default(),
        backlog: 16,
    };
    let virtio = vec![
        Device::Rng(Rng::new([3; 32])),
        Device::Block(Block::new(Disk::memory(1 << 20), "disk", timing)),
        Device::Net(Net::new(card).on(Link {
            clock,
            bandwidth: 1_000_000_000,
        })),
    ];
    let slot = |i: u32| VirtioSlot {
        base: VIRTIO + 0x1000 * u64::from(i),
        size: 0x1000,
        gsi: GSI + i,
        trigger: Trigger::Level,
    };
    let code = SharedCode::new(ram.clone());
    let vcpu = |id: u16| {
        Box::new(SoftVcpu::new(SoftConfig {
            id,
            code: code.clone(),
            cpuid: bare::cpuid(),
            cpi: 0x1_5555,
            seed: 7 + u64::from(id),
            translate,
        })) as Box<dyn Vcpu>
    };
    let mut node = Node::new(NodeParts {
        index: 5,
        ram,
        topology,
        platform: PlatformDescription {
            virtio: (0..3).map(slot).collect(),
            ..Default::default()
        },
        vcpus: vec![vcpu(0), vcpu(1)],
        boot: start(CODE, STACK),
        virtio,
        epoch: 1_700_000_000,
        identity: NodeIdentity {
            node: 5,
            nodes: 6,
            vcpus: 2,
            seed: 1,
            ipv4: [10, 0, 0, 6],
            prefix: 16,
            mac: card.mac,
            name: "node5".into(),
            text: String::new(),
        },
    })
    .unwrap();
    // vCPU 1 sleeps until the NMI comes.
    node.restore_vcpu(1, &start(OTHER_CODE, STACK - 0x1000));
    node
}

/// Returns a node at power-on with the guest in it.
pub fn booted(translate: Translate) -> Node {
    let ram = Ram::new(&[RAM]).unwrap();
    load(&ram);
    node(ram, translate)
}

/// Output that [`run`] takes from a node after a quantum (none after odd quanta), and the node's state at the end of the quantum.
#[derive(Debug, PartialEq)]
pub struct Output {
    pub console: Vec<u8>,
    pub events: Vec<NodeEvent>,
    pub frames: Vec<(u64, Vec<u8>)>,
    pub state: NodeState,
}

/// Runs a node for a quantum. In even quanta, takes the node's output, and returns each frame to the node 31,000 cycles later. In odd
/// quanta, takes no output.
pub fn run(node: &mut Node, quantum: u64) -> Output {
    let target = (quantum + 1) * QUANTUM;
    assert_eq!(node.run_until(target).unwrap(), NodeStatus::Running);
    let (mut console, mut events, mut frames) = (Vec::new(), Vec::new(), Vec::new());
    if quantum.is_multiple_of(2) {
        console = node.take_console();
        events = node.take_events();
        for frame in node.take_frames() {
            frames.push((frame.time, frame.bytes.clone()));
            node.inject(Frame {
                time: frame.time.max(node.now()) + 31_000,
                ..frame
            });
        }
    }
    Output {
        console,
        events,
        frames,
        state: node.save_state().unwrap(),
    }
}

pub fn contents(ram: &Ram) -> Vec<u8> {
    let mut bytes = vec![0; ram.size() as usize];
    assert!(ram.read(0, &mut bytes));
    bytes
}

/// Returns how often the handlers of `TIMER`, `MESSAGE` and `VIRTIO_VECTOR` ran, from RAM's contents.
pub fn counts(ram: &[u8]) -> [u64; 3] {
    [TIMER, MESSAGE, VIRTIO_VECTOR].map(|vector| {
        let at = (COUNTS + 8 * u64::from(vector)) as usize;
        u64::from_le_bytes(ram[at..at + 8].try_into().unwrap())
    })
}
