//! A bare-metal guest for tests: code from an assembler, page tables, descriptors, and a platform that records accesses.
#![allow(dead_code, missing_docs)]

use std::collections::{BTreeMap, VecDeque};

use iced_x86::code_asm::CodeAssembler;
use nodescope_engine::{GuestVirtual, Hypercall, HypercallAnswer, MsrFault, Platform, StopReport};
use nodescope_engine_kvm::vm::with_hypercall_leaf;
use nodescope_engine_kvm::{KvmConfig, KvmVcpu, KvmVm, Probe, probe};
use nodescope_memory::Ram;
use nodescope_plugin_api::{Context, Counters, Hits, L0Update, MemRef, Outcome, Privilege};
use nodescope_test_needs::{Need, skip};
use nodescope_x86::bits::{cr0, cr4, efer, pte, xcr0};
use nodescope_x86::state::{Segment, seg};
use nodescope_x86::{CpuidEntry, CpuidTable, DescriptorTable, VcpuState};

pub const CODE: u64 = 0x10_0000;
pub const HANDLER: u64 = 0x11_0000;
pub const DATA: u64 = 0x20_0000;
pub const STACK: u64 = 0x8_0000;
pub const KERNEL_STACK: u64 = 0x7_0000;
pub const GDT: u64 = 0x1000;
pub const IDT: u64 = 0x2000;
pub const TSS: u64 = 0x3000;
pub const PML4: u64 = 0x9000;
/// Guest-physical address of a page table for 4-KiB pages, which maps linear 0x4000_0000 to 0x4020_0000.
pub const SMALL_PAGES: u64 = 0xf000;
pub const SMALL_BASE: u64 = 0x4000_0000;
/// An address without RAM, which is identity-mapped.
pub const MMIO: u64 = 0x3000_0000;

/// Examines the host's KVM. None if KVM cannot be used; the skip is then reported.
pub fn host() -> Option<Probe> {
    let found = probe()
        .map_err(|e| e.to_string())
        .and_then(|p| KvmVm::new(&memory()).map(|_| p).map_err(|e| e.to_string()));
    match found {
        Ok(p) => Some(p),
        Err(reason) => {
            skip(Need::Kvm, reason);
            None
        }
    }
}

/// Returns a CPUID table for a 64-bit guest, with AVX and other optional instructions as far as the host's KVM has them.
pub fn cpuid(host: &Probe) -> CpuidTable {
    let mask = host.cpuid.xcr0_supported() & (xcr0::X87 | xcr0::SSE | xcr0::AVX);
    let row = |leaf, subleaf, r: [u32; 4]| CpuidEntry {
        leaf,
        subleaf,
        eax: r[0],
        ebx: r[1],
        ecx: r[2],
        edx: r[3],
    };
    let host_1 = host.cpuid.get(1, 0);
    let host_7 = host.cpuid.get(7, 0);
    // SSE3, SSSE3, FMA, CX16, SSE4, x2APIC, POPCNT, TSC deadline, XSAVE, AVX; BMI, AVX2, FSGSBASE.
    let ecx = 0x1d98_3201 | 1 << 21 | 1 << 24 | 1 << 9;
    let ebx = 0x0000_0129;
    CpuidTable::new([
        row(0, None, [0xd, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
        row(
            1,
            None,
            [
                0x306f2,
                0x800,
                ecx & (host_1.ecx | 1 << 21 | 1 << 24),
                0x0783_fb7f,
            ],
        ),
        row(7, Some(0), [0, ebx & host_7.ebx, 0, 0]),
        row(0xd, Some(0), [mask as u32, 832, 832, 0]),
        row(0xd, Some(1), [0; 4]),
        row(0xd, Some(2), [256, 576, 0, 0]),
        row(0x8000_0000, None, [0x8000_0008, 0, 0, 0]),
        row(0x8000_0001, None, [0, 0, 1, 0x2c10_0800]),
        row(0x8000_0008, None, [48 << 8 | 40, 0, 0, 0]),
    ])
}

/// A platform that records accesses and answers reads with values that the test has set.
#[derive(Default)]
pub struct Recorder {
    pub out: Vec<(u16, Vec<u8>)>,
    pub input: BTreeMap<u16, u64>,
    pub mmio: Vec<(u64, Vec<u8>)>,
    pub mmio_values: BTreeMap<u64, u64>,
    pub msrs: BTreeMap<u32, u64>,
    pub msr_writes: Vec<(u32, u64)>,
    /// Interrupt vectors that become pending when these MSRs are written, by MSR.
    pub msr_interrupts: BTreeMap<u32, u8>,
    pub interrupts: VecDeque<u8>,
    pub stop_at_port: Option<u16>,
    pub attention: bool,
    pub tsc_offset: Option<u64>,
    pub last_now: u64,
}

impl Platform for Recorder {
    fn port_read(&mut self, _: u16, now: u64, port: u16, data: &mut [u8]) {
        assert!(now >= self.last_now, "the clock went backwards");
        self.last_now = now;
        let value = self.input.get(&port).copied().unwrap_or(u64::MAX);
        let n = data.len();
        data.copy_from_slice(&value.to_le_bytes()[..n]);
    }
    fn port_write(&mut self, _: u16, now: u64, port: u16, data: &[u8]) {
        assert!(now >= self.last_now, "the clock went backwards");
        self.last_now = now;
        self.out.push((port, data.to_vec()));
        self.attention |= self.stop_at_port == Some(port);
    }
    fn mmio_read(&mut self, _: u16, _: u64, physical: u64, data: &mut [u8]) {
        let value = self.mmio_values.get(&physical).copied().unwrap_or(0);
        let n = data.len();
        data.copy_from_slice(&value.to_le_bytes()[..n]);
    }
    fn mmio_write(&mut self, _: u16, _: u64, physical: u64, data: &[u8]) {
        self.mmio.push((physical, data.to_vec()));
    }
    fn msr_read(&mut self, _: u16, _: u64, msr: u32) -> Result<u64, MsrFault> {
        self.msrs.get(&msr).copied().ok_or(MsrFault)
    }
    fn msr_write(&mut self, _: u16, _: u64, msr: u32, value: u64) -> Result<(), MsrFault> {
        self.msr_writes.push((msr, value));
        self.interrupts.extend(self.msr_interrupts.get(&msr));
        match self.msrs.get_mut(&msr) {
            Some(v) => {
                *v = value;
                Ok(())
            }
            None => Err(MsrFault),
        }
    }
    fn tsc_offset_changed(&mut self, _: u16, _: u64, offset: u64) {
        self.tsc_offset = Some(offset);
    }
    fn task_priority(&mut self, _: u16) -> u8 {
        0
    }
    fn set_task_priority(&mut self, _: u16, _: u64, _: u8) {}
    fn interrupt_pending(&mut self, _: u16, _: u64) -> bool {
        !self.interrupts.is_empty()
    }
    fn acknowledge(&mut self, _: u16, _: u64) -> Option<u8> {
        self.interrupts.pop_front()
    }
    fn next_event(&mut self, _: u16) -> u64 {
        u64::MAX
    }
    fn attention(&mut self) -> bool {
        std::mem::take(&mut self.attention)
    }
    fn hypercall(&mut self, _: &Hypercall, _: &mut dyn GuestVirtual) -> HypercallAnswer {
        HypercallAnswer::default()
    }
    fn context(&mut self, _: u16, _: u64, _: u64) -> Context {
        Context::default()
    }
    fn reference(&mut self, _: Hits<'_>, _: &MemRef, _: &mut Vec<L0Update>) -> Outcome {
        unreachable!("no model is attached")
    }
    fn modified(&mut self, _: u16, _: &[u64]) {
        unreachable!("no model is attached")
    }
    fn account(&mut self, _: u16, _: Context, _: Privilege, _: &Counters) {}
}

/// Returns RAM with descriptors and page tables. The first GiB is identity-mapped with user-accessible 2-MiB pages. A table of 4-KiB pages
/// is left for the test to fill.
pub fn memory() -> Ram {
    let ram = Ram::new(&[16 << 20]).unwrap();
    let quad = |at: u64, value: u64| assert!(ram.write(at, &value.to_le_bytes()));
    let all = pte::PRESENT | pte::WRITABLE | pte::USER;
    quad(PML4, 0xa000 | all);
    quad(0xa000, 0xb000 | all);
    quad(0xa008, 0xc000 | all);
    for i in 0..512 {
        quad(0xb000 + 8 * i, i << 21 | all | pte::LARGE);
    }
    quad(0xc000, SMALL_PAGES | all);
    // Null, kernel code 0x8, kernel data 0x10, user code 0x18, user data 0x20, TSS 0x28.
    let tss = 0x0000_8b00_0000_0067 | (TSS & 0xff_ffff) << 16;
    for (i, d) in [
        0,
        0x00af_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00af_fb00_0000_ffff,
        0x00cf_f300_0000_ffff,
        tss,
        0,
    ]
    .into_iter()
    .enumerate()
    {
        quad(GDT + 8 * i as u64, d);
    }
    quad(TSS + 4, KERNEL_STACK);
    ram
}

/// Writes an interrupt gate to the IDT.
pub fn gate(ram: &Ram, vector: u8, handler: u64) {
    let low = (handler & 0xffff) | 0x8 << 16 | 0xee00 << 32 | (handler >> 16 & 0xffff) << 48;
    let at = IDT + 16 * u64::from(vector);
    assert!(ram.write(at, &low.to_le_bytes()));
    assert!(ram.write(at + 8, &(handler >> 32).to_le_bytes()));
}

/// Assembles code and writes it to an address.
pub fn place(ram: &Ram, at: u64, build: impl FnOnce(&mut CodeAssembler)) {
    let mut a = CodeAssembler::new(64).unwrap();
    build(&mut a);
    assert!(ram.write(at, &a.assemble(at).unwrap()));
}

/// Returns a state in 64-bit mode at CPL 0 or 3, with RIP at [`CODE`].
pub fn state(cpl: u16) -> VcpuState {
    let mut s = VcpuState::reset();
    s.general.gpr = [0; 16];
    s.general.gpr[4] = STACK;
    s.general.rip = CODE;
    let dpl = cpl << 5;
    let (code, data) = if cpl == 0 { (8, 0x10) } else { (0x1b, 0x23) };
    let segment = |selector, attributes| Segment {
        selector,
        base: 0,
        limit: u32::MAX,
        attributes: attributes | dpl,
        unusable: false,
    };
    s.segments.data = [segment(data, 0xc093); 6];
    s.segments.data[seg::CS] = segment(code, 0xa09b);
    s.segments.tr = Segment {
        selector: 0x28,
        base: TSS,
        limit: 0x67,
        attributes: 0x8b,
        unusable: false,
    };
    s.segments.ldt = Segment {
        unusable: true,
        ..Default::default()
    };
    s.segments.gdt = DescriptorTable {
        base: GDT,
        limit: 0x37,
    };
    s.segments.idt = DescriptorTable {
        base: IDT,
        limit: 0xfff,
    };
    s.control.cr0 = cr0::PE | cr0::MP | cr0::ET | cr0::NE | cr0::WP | cr0::PG;
    s.control.cr3 = PML4;
    s.control.cr4 = cr4::PAE | cr4::OSFXSR | cr4::OSXMMEXCPT | cr4::OSXSAVE;
    s.control.efer = efer::SCE | efer::LME | efer::LMA | efer::NXE;
    s.control.xcr0 = 7;
    s
}

/// Creates a KVM vCPU with this RAM.
pub fn vcpu(ram: &Ram, host: &Probe) -> KvmVcpu {
    let vm = KvmVm::new(ram).unwrap();
    KvmVcpu::new(
        &vm,
        KvmConfig {
            id: 0,
            cpuid: with_hypercall_leaf(&cpuid(host)),
            tsc_hz: 2_500_000_000,
        },
    )
    .unwrap()
}

/// Returns the report of an error that has one; otherwise panics.
pub fn report(error: nodescope_engine::EngineError) -> StopReport {
    match error {
        nodescope_engine::EngineError::Unsupported(r) => *r,
        other => panic!("{other}"),
    }
}
