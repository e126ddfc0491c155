//! Parts of test guests: page tables, flat segments, a vCPU, and a platform without devices.

use std::sync::LazyLock;

use nodescope_engine::{GuestVirtual, Hypercall, HypercallAnswer, MsrFault, Platform};
use nodescope_engine_soft::{SharedCode, SoftConfig, SoftVcpu, Translate};
use nodescope_machine::cpuid::{CpuidOptions, tables};
use nodescope_machine::topology::NodeTopology;
use nodescope_memory::Ram;
use nodescope_plugin_api::{
    Access, Context, Counters, Hits, L0Update, MemRef, Outcome, Permission, Privilege,
};
use nodescope_x86::bits::msr;
use nodescope_x86::state::seg;
use nodescope_x86::{CpuidTable, FxImage, Segment, VcpuState};

/// Bits of a page table entry (SDM vol. 3A section 4.5).
pub mod page {
    /// Present bit (P).
    pub const P: u64 = 1;
    /// Writable bit (R/W).
    pub const W: u64 = 2;
    /// Bit of a page that user code may access (U/S).
    pub const U: u64 = 4;
    /// Accessed bit, which the processor sets on the first access.
    pub const A: u64 = 0x20;
    /// Dirty bit, which the processor sets on the first write.
    pub const D: u64 = 0x40;
    /// Page size bit: the entry, above the last level, maps a large page (SDM vol. 3A section 4.5.4).
    pub const PS: u64 = 0x80;
    /// Global bit: a write to CR3 does not flush the page's TLB entries.
    pub const G: u64 = 0x100;
    /// Execute-disable bit.
    pub const NX: u64 = 1 << 63;
    /// Mask of the physical address in an entry.
    pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
}

/// Builder of four-level page tables, which are one contiguous range of guest-physical memory.
pub struct PageTables {
    /// Guest-physical address of the topmost table (PML4).
    root: u64,
    /// Guest-physical address of the first byte behind the tables.
    next: u64,
}

impl PageTables {
    /// Makes empty tables that begin at the page `root`.
    pub fn new(root: u64) -> Self {
        Self {
            root,
            next: root + 4096,
        }
    }

    /// Returns the guest-physical address of the first byte behind the tables.
    pub fn end(&self) -> u64 {
        self.next
    }

    /// Maps the page of 4 KiB at `linear` with the page table entry `entry`. `memory` begins at physical address 0. Returns the entry's
    /// physical address.
    pub fn map(&mut self, memory: &mut [u8], linear: u64, entry: u64) -> u64 {
        self.enter(memory, linear, entry, &[39, 30, 21], 12)
    }

    /// Maps a page of 2 MiB, like [`PageTables::map`], and sets the page size bit of the entry.
    pub fn map_large(&mut self, memory: &mut [u8], linear: u64, entry: u64) -> u64 {
        self.enter(memory, linear, entry | page::PS, &[39, 30], 21)
    }

    fn enter(
        &mut self,
        memory: &mut [u8],
        linear: u64,
        entry: u64,
        upper: &[u32],
        last: u32,
    ) -> u64 {
        let mut table = self.root;
        for shift in upper {
            let at = (table + (linear >> shift & 511) * 8) as usize;
            let mut word = [0; 8];
            word.copy_from_slice(&memory[at..at + 8]);
            if word == [0; 8] {
                word = (self.next | page::P | page::W | page::U | page::A).to_le_bytes();
                memory[at..at + 8].copy_from_slice(&word);
                self.next += 4096;
            }
            table = u64::from_le_bytes(word) & page::ADDRESS;
        }
        let at = table + (linear >> last & 511) * 8;
        memory[at as usize..][..8].copy_from_slice(&entry.to_le_bytes());
        at
    }
}

/// Returns a segment with base 0 and no limit.
pub fn flat(selector: u16, attributes: u16) -> Segment {
    Segment {
        selector,
        base: 0,
        limit: u32::MAX,
        attributes,
        unusable: false,
    }
}

/// Returns the state of 64-bit mode with the control register features that Linux enables, and the x87 state after FNINIT.
pub fn long_mode(code: Segment, data: Segment, cr3: u64) -> VcpuState {
    let mut s = VcpuState::reset();
    s.fx = FxImage::default();
    s.segments.data = [data; 6];
    s.segments.data[seg::CS] = code;
    // PE, MP, ET, NE, WP, AM, PG.
    s.control.cr0 = 0x8005_0033;
    s.control.cr3 = cr3;
    // PAE, PGE, OSFXSR, OSXMMEXCPT, FSGSBASE, OSXSAVE.
    s.control.cr4 = 0x0005_06a0;
    // SCE, LME, LMA, NXE.
    s.control.efer = 0xd01;
    s.control.xcr0 = 7;
    s
}

/// Returns the CPUID table of a study's default processor, without the features that this host cannot execute.
pub fn cpuid() -> CpuidTable {
    static TABLE: LazyLock<CpuidTable> = LazyLock::new(|| {
        let mut tables = tables(
            &NodeTopology::default(),
            &CpuidOptions::default(),
            &[],
            |_| true,
        )
        .expect("this host executes what a 64-bit Linux needs");
        tables.swap_remove(0)
    });
    TABLE.clone()
}

/// Returns a vCPU in its reset state, for a node with this RAM. Each of its instructions takes one cycle.
pub fn vcpu(ram: &Ram, translate: Translate) -> SoftVcpu {
    vcpu_with(SharedCode::new(ram.clone()), translate)
}

/// Returns a vCPU in its reset state, for a node with this shared code. Each of its instructions takes one cycle.
pub fn vcpu_with(code: SharedCode, translate: Translate) -> SoftVcpu {
    SoftVcpu::new(SoftConfig {
        id: 0,
        code,
        cpuid: cpuid(),
        cpi: 1 << 16,
        seed: 1,
        translate,
    })
}

/// A platform without devices. It records port writes, answers port reads with a count, and has at most one pending interrupt. As a memory
/// model it holds all lines at once, and lets the L0 filter cache answer for them.
#[derive(Default)]
pub struct Bare {
    /// Vector of the pending interrupt; None: no interrupt is pending.
    pub interrupt: Option<u8>,
    /// Ports that were written, with the bytes.
    pub written: Vec<(u16, Vec<u8>)>,
    /// Number of port reads so far, modulo 256.
    pub reads: u8,
    /// Hypercalls so far.
    pub calls: Vec<Hypercall>,
    /// The answer to every hypercall.
    pub answer: HypercallAnswer,
    /// Value of IA32_APIC_BASE; None: there is no local APIC.
    pub apic_base: Option<u64>,
    /// Address spaces that the vCPU has used: the CR3 of each context, by the context's index.
    pub spaces: Vec<u64>,
    /// Counters that the vCPU has reported to the platform.
    pub accounts: Vec<(Context, Privilege, Counters)>,
}

impl Bare {
    /// Operation of a hypercall that stores its second argument, as a byte, at the address in its first argument.
    pub const STORE: u32 = 1;
}

impl Platform for Bare {
    fn port_read(&mut self, _: u16, _: u64, _: u16, data: &mut [u8]) {
        self.reads = self.reads.wrapping_add(1);
        data.fill(self.reads);
    }
    fn port_write(&mut self, _: u16, _: u64, port: u16, data: &[u8]) {
        self.written.push((port, data.to_vec()));
    }
    fn mmio_read(&mut self, _: u16, _: u64, _: u64, data: &mut [u8]) {
        data.fill(0);
    }
    fn mmio_write(&mut self, _: u16, _: u64, _: u64, _: &[u8]) {}
    fn msr_read(&mut self, _: u16, _: u64, number: u32) -> Result<u64, MsrFault> {
        let base = self.apic_base.filter(|_| number == msr::APIC_BASE);
        base.ok_or(MsrFault)
    }
    fn msr_write(&mut self, _: u16, _: u64, _: u32, _: u64) -> Result<(), MsrFault> {
        Err(MsrFault)
    }
    fn tsc_offset_changed(&mut self, _: u16, _: u64, _: u64) {}
    fn task_priority(&mut self, _: u16) -> u8 {
        0
    }
    fn set_task_priority(&mut self, _: u16, _: u64, _: u8) {}
    fn interrupt_pending(&mut self, _: u16, _: u64) -> bool {
        self.interrupt.is_some()
    }
    fn acknowledge(&mut self, _: u16, _: u64) -> Option<u8> {
        self.interrupt.take()
    }
    fn next_event(&mut self, _: u16) -> u64 {
        u64::MAX
    }
    fn attention(&mut self) -> bool {
        false
    }
    fn hypercall(&mut self, call: &Hypercall, memory: &mut dyn GuestVirtual) -> HypercallAnswer {
        self.calls.push(*call);
        if call.operation == Self::STORE {
            let stored = memory.write(call.args[0], &[call.args[1] as u8]);
            stored.expect("tests store to memory that is there");
        }
        self.answer
    }
    fn context(&mut self, _: u16, cr3: u64, _: u64) -> Context {
        let known = self.spaces.iter().position(|space| *space == cr3);
        let index = known.unwrap_or_else(|| {
            self.spaces.push(cr3);
            self.spaces.len() - 1
        });
        Context(index as u32)
    }
    fn reference(&mut self, _: Hits<'_>, reference: &MemRef, _: &mut Vec<L0Update>) -> Outcome {
        Outcome::new(
            0,
            if reference.access == Access::Fetch {
                Permission::Read
            } else {
                Permission::ReadWrite
            },
            None,
        )
    }
    fn modified(&mut self, _: u16, _: &[u64]) {
        unreachable!("the L0 filter cache keeps one line of a set")
    }
    fn account(&mut self, _: u16, context: Context, privilege: Privilege, counters: &Counters) {
        self.accounts.push((context, privilege, *counters));
    }
}
