//! CPUID: the template's answers, and hypercalls of the guest's tools (`vmm/hypercall`).

use nodescope_engine::{GuestVirtual, Hypercall, MemoryFault};
use nodescope_x86::bits::{apic_base, cr4, msr};
use nodescope_x86::state::seg;

use super::attend;
use crate::cpu::Cpu;
use crate::memory::is_canonical;
use crate::mmu::Intent;
use crate::op::{Done, Op, Trap};

/// EAX of the magic CPUID (`vmm/hypercall`).
const HYPERCALL_LEAF: u64 = 0x4e53_4350;

/// The doorbell: OUT to this port, of 4 bytes, with the leaf in EAX, makes the hypercall, too (`vmm/hypercall`, "Transports").
const DOORBELL_PORT: u16 = 0x5e0;

/// Leaf 1 EDX: there is a local APIC.
const APIC: u32 = 1 << 9;

impl Cpu {
    /// Returns whether IA32_APIC_BASE disables the local APIC, in which case CPUID announces none (SDM vol. 3A §11.4.3).
    fn local_apic_is_off(&mut self) -> bool {
        let (id, now) = (self.id, self.now());
        let base = self.platform().msr_read(id, now, msr::APIC_BASE);
        base.is_ok_and(|base| base & apic_base::ENABLE == 0)
    }
}

/// Returns whether an OUT to a port rings the doorbell.
pub(super) fn rings(cpu: &Cpu, port: u16, size: u32) -> bool {
    port == DOORBELL_PORT && size == 4 && u64::from(cpu.gpr[0] as u32) == HYPERCALL_LEAF
}

/// Makes the hypercall that the registers describe; RAX to RDX become the answer.
pub(super) fn hypercall(cpu: &mut Cpu) {
    let call = Hypercall {
        vcpu: cpu.id,
        operation: cpu.gpr[1] as u32,
        args: [cpu.gpr[6], cpu.gpr[7], cpu.gpr[8], cpu.gpr[9], cpu.gpr[10]],
        now: cpu.now(),
        instructions: cpu.instructions() + 1,
        cr3: cpu.control.cr3,
        thread: cpu.segment_base[seg::FS],
        privilege: cpu.privilege(),
    };
    let mut platform = cpu.platform.expect("called only below run()");
    let mut memory = Borrowed::new(cpu);
    // SAFETY: as in `Cpu::platform`; `Borrowed` never calls the platform, so the reference is exclusive.
    let platform = unsafe { platform.as_mut() };
    let answer = platform.hypercall(&call, &mut memory);
    let written = memory.written;
    // Most hypercalls only report what the guest does. They change nothing but the context that a model counts in.
    cpu.touched_platform |= written || cpu.attached || platform.attention();
    cpu.gpr[0] = answer.eax.into();
    cpu.gpr[3] = answer.ebx.into();
    cpu.gpr[1] = answer.ecx.into();
    cpu.gpr[2] = answer.edx.into();
}

pub(super) fn cpuid(cpu: &mut Cpu, op: &Op) -> Done {
    let (leaf, subleaf) = (cpu.gpr[0] as u32, cpu.gpr[1] as u32);
    if u64::from(leaf) == HYPERCALL_LEAF {
        hypercall(cpu);
        return attend(cpu, op);
    }
    let mut e = cpu.cpuid.get(leaf, subleaf);
    // OSXSAVE mirrors CR4 (SDM vol. 2A, CPUID leaf 1 ECX bit 27).
    if leaf == 1 {
        e.ecx = e.ecx & !(1 << 27) | u32::from(cpu.control.cr4 & cr4::OSXSAVE != 0) << 27;
    }
    if leaf == 1 && cpu.local_apic_is_off() {
        e.edx &= !APIC;
    }
    cpu.gpr[0] = e.eax.into();
    cpu.gpr[3] = e.ebx.into();
    cpu.gpr[1] = e.ecx.into();
    cpu.gpr[2] = e.edx.into();
    attend(cpu, op)
}

/// View of guest memory by linear address, for hypercalls: RAM only, not reported to models.
pub(crate) struct Borrowed<'a> {
    cpu: &'a mut Cpu,
    /// True if a store was made, which may have changed code.
    written: bool,
}

impl<'a> Borrowed<'a> {
    pub(crate) fn new(cpu: &'a mut Cpu) -> Self {
        Self {
            cpu,
            written: false,
        }
    }

    fn copy(
        &mut self,
        address: u64,
        len: usize,
        intent: Intent,
        mut f: impl FnMut(*mut u8, usize, usize),
    ) -> Result<(), MemoryFault> {
        let mut done = 0;
        while done < len {
            let at = address.wrapping_add(done as u64);
            let fault = MemoryFault { address: at };
            if !is_canonical(at) {
                return Err(fault);
            }
            let page = self.cpu.translate(at, intent).map_err(|Trap| {
                self.cpu.exception = None;
                self.cpu.stop = None;
                fault
            })?;
            if page.host.is_null() {
                return Err(fault);
            }
            let offset = (at & 0xfff) as usize;
            let n = (4096 - offset).min(len - done);
            if intent == Intent::Write {
                self.written = true;
                let region = &self.cpu.ram.regions()[page.region as usize];
                region
                    .code
                    .written((page.physical - region.start) as usize + offset, n);
            }
            // SAFETY: `n` bytes from `offset` lie within the mapped page.
            f(unsafe { page.host.add(offset) }, done, n);
            done += n;
        }
        Ok(())
    }
}

impl GuestVirtual for Borrowed<'_> {
    fn read(&mut self, address: u64, buf: &mut [u8]) -> Result<(), MemoryFault> {
        self.copy(address, buf.len(), Intent::Read, |host, at, n| {
            // SAFETY: `copy` gives `n` readable bytes.
            unsafe { std::ptr::copy_nonoverlapping(host, buf[at..at + n].as_mut_ptr(), n) }
        })
    }
    fn write(&mut self, address: u64, buf: &[u8]) -> Result<(), MemoryFault> {
        self.copy(address, buf.len(), Intent::Write, |host, at, n| {
            // SAFETY: `copy` gives `n` writable bytes.
            unsafe { std::ptr::copy_nonoverlapping(buf[at..at + n].as_ptr(), host, n) }
        })
    }
}
