//! The guest's memory and its kernel.
//!
//! User pages have the linear addresses of [`crate::layout`], so that the cases of [`crate::generate`] steer operands to them. The RAM that
//! the kernel uses is mapped a second time in the upper half of the address space. Some guests map both data and kernel in pages of 2 MiB,
//! and code in pages of 4 KiB. After most exceptions the program continues at the next multiple of [`STRIDE`] behind the failing
//! instruction, where [`super::program`] has put code.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use nodescope_memory::{LayoutError, Ram};
use nodescope_x86::state::seg;
use nodescope_x86::{CpuidTable, DescriptorTable, Segment, VcpuState};

use crate::bare::page::{A, D, G, NX, P, U, W};
use crate::bare::{self, PageTables};
use crate::layout::{CODE, GS_BASE, PAGE, WINDOW, WINDOW_LEN, WRITABLE_LEN};

/// Length of RAM in bytes.
pub const RAM: u64 = 4 << 20;
/// Bytes of RAM that the guest uses, from physical address 0.
pub const USED: usize = 0x2_8000;
/// Physical address of the data in guests with large pages. The large page at this address contains no code.
pub const LARGE: u64 = 2 << 20;
/// Physical addresses and lengths of the parts of the large page that programs access most. The second part is at [`WINDOW_ALIAS`].
pub const LARGE_USED: [(u64, usize); 2] = [(LARGE, 0x8000), (LARGE + 0x10_0000, 0x8000)];
/// Length of the code in bytes: four pages.
pub const CODE_LEN: usize = 4 * PAGE as usize;
/// Second linear address of the physical memory at [`CODE`].
pub const ALIAS: u64 = CODE + 0x10_0000;
/// Linear address of the physical memory at [`CODE`] as data, in a large page; only in guests with large pages.
pub const CODE_AS_DATA: u64 = LARGE_AS_DATA + CODE_PHYSICAL;
const LARGE_AS_DATA: u64 = 0x3800_0000;
/// Linear address of a page of device memory.
pub const DEVICE: u64 = 0x5000_0000;
/// Distance in bytes of the addresses at which programs continue after an exception.
pub const STRIDE: u64 = 128;

/// Guest-physical address of the page tables. `IDT` and `GDT` are those of the descriptor tables.
const TABLES: u64 = 0x1000;
const IDT: u64 = 0x1_0000;
const GDT: u64 = 0x1_1000;
/// Address of the first vCPU's task state segment. The segments of the other vCPUs follow, [`TSS_SPACE`] bytes apart.
const TSS: u64 = 0x1_1800;
const TSS_SPACE: u64 = 0x80;
const KERNEL_CODE: u64 = 0x1_2000;
const KERNEL_DATA: u64 = 0x1_3000;
/// Top of the first vCPU's kernel stack. The second vCPU's kernel stack is a page below.
const KERNEL_STACK: u64 = 0x1_6000;
/// Guest-physical address of the code at [`CODE`].
pub const CODE_PHYSICAL: u64 = 0x1_8000;
/// Guest-physical address of the data at [`WINDOW`], in guests without large pages.
pub const WINDOW_PHYSICAL: u64 = 0x2_0000;
/// Second linear address of the data pages, with their initial mapping. In guests with large pages this address has other memory.
pub const WINDOW_ALIAS: u64 = WINDOW + 0x10_0000;
/// Linear address of the window's pages in reverse order, so that adjacent pages are not adjacent in physical memory.
pub const WINDOW_REVERSED: u64 = WINDOW + 0x18_0000;
const DEVICE_PHYSICAL: u64 = 0xd000_0000;
/// Distance in bytes from a page of code or data to the other memory that the kernel may map instead.
const OTHER: u64 = 0x4000;
/// Linear address at which the kernel has mapped physical address 0 and the RAM behind.
const KERNEL: u64 = 0xffff_8000_0000_0000;

/// Selector of the kernel's code segment. `KERNEL_SS` and `USER_SS` are the selectors of the kernel's and the user's stack segment.
const KERNEL_CS: u16 = 8;
const KERNEL_SS: u16 = 0x10;
const USER_SS: u16 = 0x23;
/// Selector of the 64-bit user code segment.
pub const USER_CS: u16 = 0x2b;
/// Selector of the 32-bit user code segment (compatibility mode).
pub const COMPATIBLE_CS: u16 = 0x1b;

/// Vectors of the devices' interrupts: the handler of the first does nothing, the handler of the second sets CR0.TS.
pub const INTERRUPTS: [u8; 2] = [0x40, 0x41];
/// Number of system calls. The number in EAX is taken modulo this one.
pub const SERVICES: u64 = 8;
/// Number of vCPUs for which the guest has tables and stacks.
pub const VCPUS: u64 = 2;

/// The mode in which a program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// 64-bit code of the kernel.
    Kernel,
    /// 64-bit code of a user program.
    User,
    /// 32-bit code of a user program.
    Compatible,
}

/// Initial contents of RAM.
pub struct Image {
    /// Contents of the RAM that the guest uses, from physical address 0: page tables, kernel and data. The length is [`USED`].
    pub bytes: Vec<u8>,
    /// Contents of the memory at [`LARGE`]; empty without large pages.
    pub large: Vec<u8>,
    /// Physical addresses of the page table entries that the kernel changes: of four pages of code, then of four pages of data. An unused
    /// word takes the place of an entry that does not exist with large pages.
    pub entries: [u64; 8],
}

impl Image {
    /// Makes tables, kernel and data. `window` has the contents of the data pages. With `large` the data and the kernel are in pages of 2
    /// MiB.
    ///
    /// # Errors
    /// If the assembler refuses the kernel's code.
    pub fn new(window: &[u8], large: bool) -> Result<Self, IcedError> {
        let mut image = Self {
            bytes: vec![0; USED],
            large: if large { window.to_vec() } else { Vec::new() },
            entries: [0; 8],
        };
        let mut tables = PageTables::new(TABLES);
        let memory = &mut image.bytes;
        let mut entries = [KERNEL_DATA + NO_ENTRY; 8];
        if large {
            tables.map_large(memory, KERNEL, P | W | A | D | G);
            tables.map_large(memory, LARGE_AS_DATA, P | W | U | NX);
            entries[5] = tables.map_large(memory, WINDOW, LARGE | P | W | U | NX);
        }
        let mut map = |linear, entry| tables.map(memory, linear, entry);
        for at in (0..if large { 0 } else { USED as u64 }).step_by(PAGE as usize) {
            map(KERNEL + at, at | P | W | A | D | G);
        }
        for k in 0..CODE_LEN as u64 / PAGE {
            let physical = CODE_PHYSICAL + k * PAGE;
            entries[k as usize] = map(CODE + k * PAGE, physical | P | W | U | A | D);
            map(ALIAS + k * PAGE, physical | P | U | A | D);
        }
        for k in 0..if large { 0 } else { WINDOW_LEN as u64 / PAGE } {
            let write = if k < WRITABLE_LEN as u64 / PAGE { W } else { 0 };
            let bits = P | U | NX | write | if k == 1 { 0 } else { A | D };
            entries[4 + k as usize] = map(WINDOW + k * PAGE, (WINDOW_PHYSICAL + k * PAGE) | bits);
            map(WINDOW_ALIAS + k * PAGE, (WINDOW_PHYSICAL + k * PAGE) | bits);
            let last = WINDOW_LEN as u64 / PAGE - 1;
            map(
                WINDOW_REVERSED + (last - k) * PAGE,
                (WINDOW_PHYSICAL + k * PAGE) | bits,
            );
        }
        map(DEVICE, DEVICE_PHYSICAL | P | W | U | NX);
        assert!(tables.end() <= IDT);
        image.entries = entries;
        let (code, vectors, system_call) = kernel(&entries)?;
        image.put(KERNEL_CODE, &code);
        for (v, target) in vectors.iter().enumerate() {
            let user: u64 = if v == 3 || v == 0x80 { 3 << 45 } else { 0 };
            let low = target & 0xffff
                | u64::from(KERNEL_CS) << 16
                | 1 << 32
                | 0x8e00 << 32
                | user
                | (target >> 16 & 0xffff) << 48;
            image.put(IDT + 16 * v as u64, &low.to_le_bytes());
            image.put(IDT + 16 * v as u64 + 8, &(target >> 32).to_le_bytes());
        }
        let descriptors: [u64; 6] = [
            0,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
            0x00cf_fb00_0000_ffff,
            0x00cf_f300_0000_ffff,
            0x00af_fb00_0000_ffff,
        ];
        for (k, d) in descriptors.iter().enumerate() {
            image.put(GDT + 8 * k as u64, &d.to_le_bytes());
        }
        for n in 0..VCPUS {
            let stack = KERNEL + KERNEL_STACK - n * PAGE;
            image.put(TSS + n * TSS_SPACE + 4, &stack.to_le_bytes());
            image.put(TSS + n * TSS_SPACE + 0x24, &stack.to_le_bytes());
        }
        image.put(KERNEL_DATA + DEFAULT_MXCSR, &0x1f80_u32.to_le_bytes());
        image.put(KERNEL_DATA + SYSTEM_CALL, &system_call.to_le_bytes());
        image.put(WINDOW_PHYSICAL, window);
        image.put(WINDOW_PHYSICAL + OTHER, &window[..2 * PAGE as usize]);
        Ok(image)
    }

    /// Writes bytes at a guest-physical address.
    pub fn put(&mut self, physical: u64, bytes: &[u8]) {
        self.bytes[physical as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn word(&self, physical: u64) -> u64 {
        let mut b = [0; 8];
        b.copy_from_slice(&self.bytes[physical as usize..][..8]);
        u64::from_le_bytes(b)
    }

    /// Returns the initial state of a vCPU, at the beginning of [`CODE`].
    pub fn state(&self, vcpu: u64, start: Start) -> VcpuState {
        let user = bare::flat(USER_SS, 0xc0f3);
        let (code, data) = match start {
            Start::Kernel => (bare::flat(KERNEL_CS, 0xa09b), bare::flat(KERNEL_SS, 0xc093)),
            Start::User => (bare::flat(USER_CS, 0xa0fb), user),
            Start::Compatible => (bare::flat(COMPATIBLE_CS, 0xc0fb), user),
        };
        let mut s = bare::long_mode(code, data, TABLES);
        s.segments.data[seg::GS].base = GS_BASE;
        s.segments.tr = Segment {
            selector: 0x30,
            base: KERNEL + TSS + vcpu * TSS_SPACE,
            limit: 0x67,
            attributes: 0x8b,
            unusable: false,
        };
        s.segments.gdt = DescriptorTable {
            base: KERNEL + GDT,
            limit: 6 * 8 - 1,
        };
        s.segments.idt = DescriptorTable {
            base: KERNEL + IDT,
            limit: 0xfff,
        };
        s.msrs.star = 0x18 << 48 | u64::from(KERNEL_CS) << 32;
        s.msrs.lstar = self.word(KERNEL_DATA + SYSTEM_CALL);
        s.msrs.cstar = s.msrs.lstar;
        // TF, IF, DF, NT, AC.
        s.msrs.sfmask = 0x4_4700;
        s.general.rip = CODE;
        s
    }
}

/// Allocates RAM, filled with zeros.
///
/// # Errors
/// If the host refuses the memory.
pub fn ram() -> Result<Ram, LayoutError> {
    Ram::new(&[RAM])
}

/// Returns the CPUID table of the guest's vCPUs.
pub fn cpuid() -> CpuidTable {
    bare::cpuid()
}

/// Offset in the kernel's data of the MXCSR that the kernel loads after a SIMD exception. Counts of exceptions by vector come first.
/// `SYSTEM_CALL` is the offset of the system call's address.
const DEFAULT_MXCSR: u64 = 0x900;
const SYSTEM_CALL: u64 = 0x908;
/// Offset of a word that the kernel changes instead of a page table entry that does not exist.
const NO_ENTRY: u64 = 0x910;
/// Linear address of kernel memory that the kernel does not use itself.
pub const KERNEL_SPARE: u64 = KERNEL + KERNEL_DATA + 0xa00;

/// Returns the kernel's code, the addresses of its 256 handlers and the address of its system call. `entries` has the page table entries of
/// the pages of code and of data.
fn kernel(entries: &[u64; 8]) -> Result<(Vec<u8>, Vec<u64>, u64), IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let (mut common, mut nmi) = (a.create_label(), a.create_label());
    let mut labels = Vec::new();
    for v in 0..=255_i32 {
        let mut l = a.create_label();
        a.set_label(&mut l)?;
        if !matches!(v, 8 | 10..=14 | 17) {
            a.push(0)?;
        }
        a.push(v)?;
        a.jmp(if v == 2 { nmi } else { common })?;
        labels.push(l);
    }
    a.set_label(&mut common)?;
    a.push(rax)?;
    a.push(rcx)?;
    // The stack has RCX, RAX, vector, error code, RIP at offset 32, CS, and RFLAGS at offset 48.
    let (mut done, mut simd, mut x87, mut step, mut device) = (
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
    );
    let (mut skip, mut next, mut switch) = (a.create_label(), a.create_label(), a.create_label());
    a.mov(rcx, KERNEL + KERNEL_DATA)?;
    a.mov(rax, qword_ptr(rsp + 16))?;
    a.inc(qword_ptr(rcx + rax * 8))?;
    a.cmp(eax, 7)?;
    a.je(device)?;
    a.cmp(eax, 16)?;
    a.je(x87)?;
    a.cmp(eax, 19)?;
    a.je(simd)?;
    a.cmp(eax, 1)?;
    a.je(step)?;
    a.cmp(eax, i32::from(INTERRUPTS[1]))?;
    a.je(switch)?;
    a.cmp(eax, 3)?;
    a.je(done)?;
    a.cmp(eax, 32)?;
    a.jae(done)?;
    a.set_label(&mut skip)?;
    a.mov(rax, qword_ptr(rsp + 32))?;
    for base in [CODE, ALIAS] {
        a.lea(rcx, qword_ptr(rax - base as i32))?;
        a.cmp(rcx, (CODE_LEN as u64 - STRIDE) as i32)?;
        a.jb(next)?;
    }
    a.mov(eax, (CODE - 1) as i32)?;
    a.set_label(&mut next)?;
    a.or(rax, (STRIDE - 1) as i32)?;
    a.inc(rax)?;
    a.mov(qword_ptr(rsp + 32), rax)?;
    a.set_label(&mut done)?;
    a.pop(rcx)?;
    a.pop(rax)?;
    a.add(rsp, 16)?;
    a.iretq()?;
    a.set_label(&mut device)?;
    a.clts()?;
    a.jmp(done)?;
    a.set_label(&mut x87)?;
    a.fnclex()?;
    a.jmp(skip)?;
    a.set_label(&mut simd)?;
    a.ldmxcsr(dword_ptr(rcx + DEFAULT_MXCSR as i32))?;
    a.jmp(skip)?;
    a.set_label(&mut step)?;
    a.and(dword_ptr(rsp + 48), !0x100)?;
    a.jmp(done)?;
    a.set_label(&mut switch)?;
    a.mov(rcx, cr0)?;
    a.or(rcx, 8)?;
    a.mov(cr0, rcx)?;
    a.jmp(done)?;
    a.set_label(&mut nmi)?;
    a.push(rax)?;
    a.mov(rax, KERNEL + KERNEL_DATA)?;
    a.inc(qword_ptr(rax + 2 * 8))?;
    a.pop(rax)?;
    a.add(rsp, 16)?;
    a.iretq()?;

    let mut system_call = a.create_label();
    a.set_label(&mut system_call)?;
    let mut back = a.create_label();
    let mut services: Vec<_> = (0..SERVICES).map(|_| a.create_label()).collect();
    a.and(eax, (SERVICES - 1) as i32)?;
    for (k, l) in services.iter().enumerate() {
        a.cmp(eax, k as i32)?;
        a.je(*l)?;
    }
    for (k, l) in services.iter_mut().enumerate() {
        a.set_label(l)?;
        match k {
            // Map other memory for a page of data or code, with and without INVLPG; change permissions; set CR0.TS; reload CR3.
            1 => toggle(&mut a, entries[4], OTHER as i32, Some(WINDOW))?,
            2 => toggle(&mut a, entries[1], OTHER as i32, Some(CODE + PAGE))?,
            3 => toggle(&mut a, entries[5], W as i32, Some(WINDOW + PAGE))?,
            4 => {
                toggle(&mut a, entries[6], P as i32, None)?;
                a.mov(rax, cr3)?;
                a.mov(cr3, rax)?;
            }
            5 => {
                a.mov(rax, cr0)?;
                a.or(rax, 8)?;
                a.mov(cr0, rax)?;
            }
            6 => {
                a.mov(rax, cr3)?;
                a.mov(cr3, rax)?;
            }
            7 => toggle(&mut a, entries[1], OTHER as i32, None)?,
            _ => {}
        }
        a.jmp(back)?;
    }
    a.set_label(&mut back)?;
    a.sysretq()?;

    let options = iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
    let result = a.assemble_options(KERNEL + KERNEL_CODE, options)?;
    let vectors = labels
        .iter()
        .map(|l| result.label_ip(l))
        .collect::<Result<Vec<_>, _>>()?;
    let system_call = result.label_ip(&system_call)?;
    let code = result.inner.code_buffer;
    assert!(code.len() <= PAGE as usize);
    Ok((code, vectors, system_call))
}

/// Emits code that flips a bit of a page table entry, and invalidates `page` in the TLB if it is given.
fn toggle(a: &mut CodeAssembler, entry: u64, bit: i32, page: Option<u64>) -> Result<(), IcedError> {
    a.mov(rax, KERNEL + entry)?;
    a.xor(qword_ptr(rax), bit)?;
    if let Some(page) = page {
        a.mov(eax, page as u32)?;
        a.invlpg(byte_ptr(rax))?;
    }
    Ok(())
}
