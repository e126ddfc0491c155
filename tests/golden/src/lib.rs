//! A guest whose bytes never change. A few instructions, assembled here, take the place of an operating system, so that neither compilers
//! nor packages change the guest.
//!
//! Each node has two vCPUs. The first vCPU starts the second, and each vCPU is an MPI rank. Between MPI calls, each vCPU accesses memory of
//! its own, at the first socket, and memory at the second socket that both share, and calculates. After the calls, the first vCPUs of both
//! nodes send each other frames. No instruction has a result that the architecture leaves undefined.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use nodescope_hypercall::call::HELLO;
use nodescope_hypercall::{
    ABI_VERSION, Function, LEAF, MpiRecord, Operation, Peer, ThreadId, record,
};

/// Number of nodes of the cluster.
pub const NODES: u32 = 2;
/// Number of vCPUs of each node.
pub const VCPUS: u32 = 2;
/// Number of MPI calls of each rank.
pub const CALLS: u64 = 24;
/// Number of frames that each node sends.
const FRAMES: u64 = 4;

/// Guest-physical address at which the ELF file is loaded, and at which the program begins. `LENGTH` is the loaded size in bytes.
const BASE: u64 = 0x10_0000;
const LENGTH: usize = 0x4_0000;
/// Address of the hello messages of ranks (`HELLO`), 256 bytes for each rank.
const HELLOS: u64 = BASE + 0x1_0000;
/// Address of the MPI records, 256 bytes for each call.
const RECORDS: u64 = BASE + 0x1_1000;
/// Address of the receive queue of the network interface, like `SEND` of the send queue. A queue has its descriptors, at offset 0x100 the
/// driver's ring, and at offset 0x200 the device's ring (virtio 1.2, section 2.7).
const RECEIVE: u64 = BASE + 0x2_0000;
const SEND: u64 = BASE + 0x2_1000;
const RING_SIZE: u64 = 8;
/// Address of the frames to send, one for each node. `IN` is the address of the buffers for received frames, `FRAME` a frame's size in
/// bytes.
const OUT: u64 = BASE + 0x2_2000;
const IN: u64 = BASE + 0x2_4000;
const FRAME: u32 = 600;
/// Length in bytes of the virtio header in front of a frame (virtio 1.2, section 5.1.6).
const NET_HEADER: u32 = 12;
/// Address of a counter that both vCPUs of a node increment before each call ends.
const ARRIVED: u64 = BASE + 0x3_0000;
/// Address at which the second vCPU begins, in real mode: a page below 1 MiB (SDM vol. 3A, section 9.4.4).
const START: u64 = 0x1_0000;
/// Address of the code that the first vCPU copies to `START`. `TRAMPOLINE_LENGTH` is the code's size in bytes.
const TRAMPOLINE: u64 = BASE + 0x1_f000;
const TRAMPOLINE_LENGTH: usize = 0x66;
/// Address of the topmost page table with which the first vCPU starts. `SECOND_TABLES` is a copy for the second vCPU, so that each rank has
/// an address space of its own.
const FIRST_TABLES: u64 = 0x9000;
const SECOND_TABLES: u64 = 0x1_1000;
/// Address of the memory of a node's first rank, at the first socket. `SHARED` is the memory that both ranks of a node use, at the second
/// socket.
const OWN: u64 = 0x80_0000;
const SHARED: u64 = 0x280_0000;
/// Memory of each of the two sockets, in bytes.
pub const SOCKET_MEMORY: u64 = 32 << 20;

/// Address of the registers of the network interface, which is the third virtio device (virtio 1.2, section 4.2.2).
const NETWORK: u64 = 0xd000_2000;
const FEATURES: u64 = NETWORK + 0x20;
const FEATURES_FROM: u64 = NETWORK + 0x24;
const QUEUE: u64 = NETWORK + 0x30;
const QUEUE_SIZE: u64 = NETWORK + 0x38;
const QUEUE_READY: u64 = NETWORK + 0x44;
const NOTIFY: u64 = NETWORK + 0x50;
const STATUS: u64 = NETWORK + 0x70;
const QUEUE_RINGS: [u64; 3] = [NETWORK + 0x80, NETWORK + 0x90, NETWORK + 0xa0];
const MAC: u64 = NETWORK + 0x100;
/// Port of the serial console. A write of `OFF` to the port `POWER` switches power off (ACPI 6.5, section 4.8.3.7).
const CONSOLE: u32 = 0x3f8;
const POWER: u32 = 0x600;
const OFF: u32 = 5 << 2 | 1 << 5;

/// Returns the thread identifier of a rank.
fn thread(rank: u32) -> ThreadId {
    ThreadId {
        pid: 100 + rank,
        tid: 100 + rank,
    }
}

/// Returns a rank's hello message, which the rank sends first.
fn hello(rank: u32) -> Vec<u8> {
    let numbers = [1, rank, NODES * VCPUS, 100 + rank, 1, ABI_VERSION];
    let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u32::to_le_bytes).collect();
    for text in [format!("node{}", rank / VCPUS), "golden".into()] {
        let mut field = text.into_bytes();
        field.resize(64, 0);
        bytes.extend(field);
    }
    assert_eq!(bytes.len(), HELLO);
    bytes
}

/// Returns the MPI record of a rank's call; all records have the same length.
fn call(rank: u32, call: u64) -> Vec<u8> {
    let mut record = MpiRecord::new(
        Function::Allreduce,
        thread(rank),
        Peer::Rank(rank),
        call + 1,
    );
    record.communicator = record::communicator::WORLD;
    record.communicator_size = NODES * VCPUS;
    record.element_size = 8;
    record.send_bytes = 8 << (call % 16);
    record.receive_bytes = 8 << (call % 16);
    record.call_site = 0x1000 + call;
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    assert!(bytes.len() <= 256);
    bytes
}

/// Returns a frame from a node to the other node, with the virtio header in front.
fn frame(node: u8) -> Vec<u8> {
    let mac = |node: u8| [0x02, 0x4e, 0x53, 0, 0, node + 1];
    let mut bytes = vec![0; NET_HEADER as usize];
    bytes.extend(mac(1 - node));
    bytes.extend(mac(node));
    // EtherType for experiments (IEEE 802, local experimental EtherType 1).
    bytes.extend([0x88, 0xb5]);
    bytes.extend((0..=u8::MAX).cycle().take(FRAME as usize - 14));
    bytes
}

/// Returns code that changes from real mode to the long-mode code at `to`, with the descriptor table with which the first vCPU started.
fn trampoline(to: u32) -> Vec<u8> {
    let mut code = vec![
        0xfa, // cli
        0x66, 0x2e, 0x0f, 0x01, 0x16, 0x60, 0x00, // lgdt cs:[0x60]
        0x0f, 0x20, 0xe0, // mov eax, cr4
        0x66, 0x0d, 0x20, 0x06, 0x00, 0x00, // or eax, PAE | OSFXSR | OSXMMEXCPT
        0x0f, 0x22, 0xe0, // mov cr4, eax
        0x66, 0xb8, 0x00, 0x10, 0x01, 0x00, // mov eax, 0x1_1000
        0x0f, 0x22, 0xd8, // mov cr3, eax
        0x66, 0xb9, 0x80, 0x00, 0x00, 0xc0, // mov ecx, EFER
        0x0f, 0x32, // rdmsr
        0x66, 0x0d, 0x00, 0x01, 0x00, 0x00, // or eax, LME
        0x0f, 0x30, // wrmsr
        0x66, 0xb8, 0x33, 0x00, 0x00, 0x80, // mov eax, PE | MP | ET | NE | PG
        0x0f, 0x22, 0xc0, // mov cr0, eax
        0x66, 0xea, // jmp 0x10:to
    ];
    code.extend(to.to_le_bytes());
    code.extend([0x10, 0x00]);
    assert!(code.len() <= 0x60);
    code.resize(0x60, 0);
    // Limit and address of the descriptor table.
    code.extend([0x27, 0x00, 0x00, 0x10, 0x00, 0x00]);
    assert_eq!(code.len(), TRAMPOLINE_LENGTH);
    code
}

/// Emits a hypercall; registers other than EAX and ECX must be set before.
fn hypercall(a: &mut CodeAssembler, operation: Operation) -> Result<(), IcedError> {
    a.mov(ecx, operation as u32)?;
    a.mov(eax, LEAF)?;
    a.cpuid()
}

/// Emits a store to a register of the network interface, whose address needs 64 bits as an immediate (2 GiB to 4 GiB).
fn store(a: &mut CodeAssembler, register: u64, value: u32) -> Result<(), IcedError> {
    a.mov(rdx, register)?;
    a.mov(dword_ptr(rdx), value as i32)
}

fn connect(a: &mut CodeAssembler) -> Result<(), IcedError> {
    for status in [1, 3] {
        store(a, STATUS, status)?;
    }
    // Only the feature VIRTIO_F_VERSION_1.
    store(a, FEATURES_FROM, 1)?;
    store(a, FEATURES, 1)?;
    store(a, STATUS, 11)?;
    for (queue, rings) in [RECEIVE, SEND].into_iter().enumerate() {
        store(a, QUEUE, queue as u32)?;
        store(a, QUEUE_SIZE, RING_SIZE as u32)?;
        for (part, register) in QUEUE_RINGS.into_iter().enumerate() {
            store(a, register, (rings + 0x100 * part as u64) as u32)?;
            store(a, register + 4, 0)?;
        }
        store(a, QUEUE_READY, 1)?;
    }
    store(a, STATUS, 15)
}

/// Emits code that sends a frame, and waits until more than r14 frames have been sent and more than r14 have arrived.
fn exchange(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.inc(word_ptr(SEND + 0x102))?;
    store(a, NOTIFY, 1)?;
    for ring in [SEND, RECEIVE] {
        let mut wait = a.create_label();
        a.set_label(&mut wait)?;
        a.pause()?;
        a.movzx(eax, word_ptr(ring + 0x202))?;
        a.cmp(rax, r14)?;
        a.jbe(wait)?;
    }
    Ok(())
}

/// Emits the code that both vCPUs of a node run, with the node in r12 and the vCPU in r13.
fn rank(a: &mut CodeAssembler, record_length: u64) -> Result<(), IcedError> {
    // r15 is the rank's number.
    a.lea(r15, ptr(r12 * 2))?;
    a.add(r15, r13)?;
    a.mov(rsi, r15)?;
    a.shl(rsi, 8)?;
    a.add(rsi, HELLOS as i32)?;
    a.mov(edi, HELLO as u32)?;
    hypercall(a, Operation::Hello)?;
    a.xor(r14d, r14d)?;
    let mut next_call = a.create_label();
    a.set_label(&mut next_call)?;
    // The call begins: function, thread, sequence number.
    a.mov(esi, u32::from(Function::Allreduce as u16))?;
    a.lea(rdi, ptr(r15 + 100))?;
    a.mov(rax, rdi)?;
    a.shl(rdi, 32)?;
    a.or(rdi, rax)?;
    a.lea(r8, ptr(r14 + 1))?;
    a.xor(r9d, r9d)?;
    a.xor(r10d, r10d)?;
    hypercall(a, Operation::MpiEnter)?;
    // Barrier of the two vCPUs.
    a.lock().inc(dword_ptr(ARRIVED))?;
    a.lea(rax, ptr(r14 * 2 + 2))?;
    let mut meet = a.create_label();
    a.set_label(&mut meet)?;
    a.pause()?;
    a.cmp(dword_ptr(ARRIVED), eax)?;
    a.jb(meet)?;
    // The call of this iteration ends.
    a.mov(rsi, r15)?;
    a.imul_3(rsi, rsi, CALLS as i32)?;
    a.add(rsi, r14)?;
    a.shl(rsi, 8)?;
    a.add(rsi, RECORDS as i32)?;
    a.mov(edi, record_length as u32)?;
    hypercall(a, Operation::MpiEvent)?;
    // 512 KiB of the rank's own memory: one update in each cache line.
    a.mov(rsi, r13)?;
    a.shl(rsi, 22)?;
    a.add(rsi, OWN as i32)?;
    a.mov(ecx, 8192)?;
    let mut own = a.create_label();
    a.set_label(&mut own)?;
    a.mov(rax, qword_ptr(rsi))?;
    a.add(rax, r14)?;
    a.mov(qword_ptr(rsi), rax)?;
    a.add(rsi, 64)?;
    a.dec(ecx)?;
    a.jnz(own)?;
    // 32 KiB that both ranks write: x becomes x / 2 + 1.
    a.mov(eax, 0x3f00_0000)?;
    a.movd(xmm1, eax)?;
    a.cvtss2sd(xmm1, xmm1)?;
    a.mov(rsi, SHARED)?;
    a.mov(ecx, 4096)?;
    let mut shared = a.create_label();
    a.set_label(&mut shared)?;
    a.movsd_2(xmm0, qword_ptr(rsi))?;
    a.mulsd(xmm0, xmm1)?;
    a.addsd(xmm0, xmm1)?;
    a.addsd(xmm0, xmm1)?;
    a.movsd_2(qword_ptr(rsi), xmm0)?;
    a.add(rsi, 8)?;
    a.dec(ecx)?;
    a.jnz(shared)?;
    a.inc(r14)?;
    a.cmp(r14, CALLS as i32)?;
    a.jb(next_call)
}

fn enable_sse(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rax, cr4)?;
    // OSFXSR and OSXMMEXCPT.
    a.or(eax, 0x600)?;
    a.mov(cr4, rax)
}

/// Returns the code of the program, and the address at which the second vCPU begins in long mode.
fn assemble(record_length: u64) -> Result<(Vec<u8>, u64), IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let a = &mut a;
    let mut second = a.create_label();
    let mut node = a.create_label();
    let mut halt = a.create_label();
    enable_sse(a)?;
    a.mov(rsp, BASE + 0x3_8000)?;
    a.call(node)?;
    a.xor(r13d, r13d)?;
    // Address of the frame that this node sends.
    a.mov(rax, r12)?;
    a.shl(rax, 12)?;
    a.add(rax, OUT as i32)?;
    a.mov(qword_ptr(SEND), rax)?;
    connect(a)?;
    a.mov(rsi, TRAMPOLINE)?;
    a.mov(rdi, START)?;
    a.mov(ecx, TRAMPOLINE_LENGTH as u32)?;
    a.cld()?;
    a.rep().movsb()?;
    a.mov(rsi, FIRST_TABLES)?;
    a.mov(rdi, SECOND_TABLES)?;
    a.mov(ecx, 512)?;
    a.rep().movsq()?;
    // x2APIC mode, then INIT and start-up to all other vCPUs (SDM vol. 3A, sections 11.12.1 and 11.12.9).
    a.mov(ecx, 0x1b)?;
    a.rdmsr()?;
    a.or(eax, 0xc00)?;
    a.wrmsr()?;
    for command in [0xc_4500, 0xc_4600 | (START >> 12) as u32] {
        a.mov(ecx, 0x830)?;
        a.xor(edx, edx)?;
        a.mov(eax, command)?;
        a.wrmsr()?;
    }
    rank(a, record_length)?;
    a.xor(r14d, r14d)?;
    let mut next_frame = a.create_label();
    a.set_label(&mut next_frame)?;
    exchange(a)?;
    a.inc(r14)?;
    a.cmp(r14, FRAMES as i32)?;
    a.jb(next_frame)?;
    a.mov(edx, CONSOLE)?;
    for byte in b"done\n" {
        a.mov(eax, u32::from(*byte))?;
        a.out(dx, al)?;
    }
    a.xor(esi, esi)?;
    hypercall(a, Operation::JobExit)?;
    a.mov(edx, POWER)?;
    a.mov(eax, OFF)?;
    a.out(dx, al)?;
    a.set_label(&mut halt)?;
    a.hlt()?;
    a.jmp(halt)?;

    a.set_label(&mut node)?;
    // The last byte of the interface's MAC address is the node's number plus one.
    a.mov(rdx, MAC + 5)?;
    a.movzx(r12d, byte_ptr(rdx))?;
    a.dec(r12)?;
    a.ret()?;

    a.set_label(&mut second)?;
    enable_sse(a)?;
    a.mov(rsp, BASE + 0x3_c000)?;
    a.call(node)?;
    a.mov(r13d, 1)?;
    rank(a, record_length)?;
    a.jmp(halt)?;

    let options = iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
    let assembled = a.assemble_options(BASE, options)?;
    let second = assembled.label_ip(&second)?;
    Ok((assembled.inner.code_buffer, second))
}

/// Returns the guest as an ELF file that nodescope boots instead of a kernel.
pub fn kernel() -> Vec<u8> {
    let record_length = call(0, 0).len();
    let (code, second) = assemble(record_length as u64).expect("instructions that can be encoded");
    let mut image = vec![0; LENGTH];
    let mut place = |address: u64, bytes: &[u8]| {
        let at = (address - BASE) as usize;
        image[at..at + bytes.len()].copy_from_slice(bytes);
    };
    place(BASE, &code);
    for rank in 0..NODES * VCPUS {
        place(HELLOS + 256 * u64::from(rank), &hello(rank));
        for number in 0..CALLS {
            let record = call(rank, number);
            assert_eq!(record.len(), record_length);
            let index = u64::from(rank) * CALLS + number;
            place(RECORDS + 256 * index, &record);
        }
    }
    for node in 0..NODES as u8 {
        place(OUT + 0x1000 * u64::from(node), &frame(node));
    }
    // A descriptor is an address, a length, flags (2: the device writes) and the index of the next descriptor (virtio 1.2, section 2.7.5).
    let descriptor = |address: u64, length: u32, flags: u16| {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend([0, 0]);
        bytes
    };
    for n in 0..RING_SIZE {
        place(RECEIVE + 16 * n, &descriptor(IN + 0x800 * n, 0x800, 2));
        place(RECEIVE + 0x104 + 2 * n, &(n as u16).to_le_bytes());
    }
    place(RECEIVE + 0x102, &(RING_SIZE as u16).to_le_bytes());
    // The program fills in the frame's address, which depends on the node.
    place(SEND, &descriptor(0, NET_HEADER + FRAME, 0));
    place(TRAMPOLINE, &trampoline(second as u32));
    elf(&image)
}

/// Returns an ELF file of one segment; its entry point is the segment's first byte.
fn elf(image: &[u8]) -> Vec<u8> {
    const HEADER: u64 = 64;
    const SEGMENT: u64 = 56;
    let length = image.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // Type: executable. Machine: x86-64. Version: 1.
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    file.extend([BASE, HEADER, 0].into_iter().flat_map(u64::to_le_bytes));
    file.extend([0; 4]);
    let halves = [HEADER as u16, SEGMENT as u16, 1, 64, 0, 0];
    file.extend(halves.into_iter().flat_map(u16::to_le_bytes));
    // Type: loadable. Flags: readable, writable and executable.
    file.extend([1, 0, 0, 0, 7, 0, 0, 0]);
    let words = [HEADER + SEGMENT, BASE, BASE, length, length, 16];
    file.extend(words.into_iter().flat_map(u64::to_le_bytes));
    file.extend(image);
    file
}
