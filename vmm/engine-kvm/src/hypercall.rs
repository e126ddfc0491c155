//! The doorbell: hypercalls through an I/O port, since KVM answers CPUID itself (`vmm/hypercall`, "Transports").

use nodescope_engine::{EngineError, GuestVirtual, Hypercall, MemoryFault, Platform};
use nodescope_hypercall::{DOORBELL_PORT, LEAF};
use nodescope_memory::Ram;
use nodescope_memory::paging::{Access, translate_for};
use nodescope_plugin_api::Privilege;
use nodescope_x86::state::seg;

use crate::vcpu::KvmVcpu;
use crate::{refused, state};

/// Indices of registers in `General::gpr`.
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;
const RSI: usize = 6;
const RDI: usize = 7;

/// Returns whether a port write is a hypercall through the doorbell.
pub(crate) fn rings(port: u16, data: &[u8]) -> bool {
    port == DOORBELL_PORT && data == LEAF.to_le_bytes()
}

/// Guest memory by linear address, through the guest's page tables.
struct Memory<'a> {
    ram: &'a Ram,
    cr3: u64,
    user: bool,
}

impl Memory<'_> {
    /// Calls `f` for each page, with the physical address and the range of the buffer that is in the page.
    fn pages(
        &self,
        address: u64,
        len: usize,
        write: bool,
        mut f: impl FnMut(u64, std::ops::Range<usize>) -> bool,
    ) -> Result<(), MemoryFault> {
        let mut done = 0;
        while done < len {
            let at = address.wrapping_add(done as u64);
            let n = (4096 - at as usize % 4096).min(len - done);
            let read = |physical: u64| {
                let mut entry = [0; 8];
                let found = self.ram.read(physical, &mut entry);
                found.then(|| u64::from_le_bytes(entry))
            };
            let access = Access {
                user: self.user,
                write,
            };
            let physical = translate_for(read, self.cr3, at, access);
            if !physical.is_some_and(|physical| f(physical, done..done + n)) {
                return Err(MemoryFault { address: at });
            }
            done += n;
        }
        Ok(())
    }
}

impl GuestVirtual for Memory<'_> {
    fn read(&mut self, address: u64, buf: &mut [u8]) -> Result<(), MemoryFault> {
        self.pages(address, buf.len(), false, |physical, part| {
            self.ram.read(physical, &mut buf[part])
        })
    }

    fn write(&mut self, address: u64, buf: &[u8]) -> Result<(), MemoryFault> {
        self.pages(address, buf.len(), true, |physical, part| {
            self.ram.write(physical, &buf[part])
        })
    }
}

impl KvmVcpu {
    /// Executes a hypercall through the doorbell. Arguments and results are in the same registers as for the hypercall by CPUID.
    pub(crate) fn ring(&mut self, platform: &mut dyn Platform) -> Result<(), EngineError> {
        let mut regs = state::general(
            &self
                .fd
                .get_regs()
                .map_err(|e| refused("reading general registers", e))?,
        );
        let sregs = self
            .fd
            .get_sregs()
            .map_err(|e| refused("reading segment and control registers", e))?;
        let user = state::segments(&sregs).data[seg::CS].dpl() == 3;
        let r = &mut regs.gpr;
        let call = Hypercall {
            vcpu: self.id,
            operation: r[RCX] as u32,
            args: [r[RSI], r[RDI], r[8], r[9], r[10]],
            now: self.state.time.cycles,
            instructions: self.state.time.instructions,
            cr3: sregs.cr3,
            thread: sregs.fs.base,
            privilege: if user {
                Privilege::User
            } else {
                Privilege::Kernel
            },
        };
        let vm = self.vm.clone();
        let mut memory = Memory {
            ram: &vm.inner.ram,
            cr3: sregs.cr3,
            user,
        };
        let answer = platform.hypercall(&call, &mut memory);
        r[RAX] = answer.eax.into();
        r[RBX] = answer.ebx.into();
        r[RCX] = answer.ecx.into();
        r[RDX] = answer.edx.into();
        self.fd
            .set_regs(&state::regs(&regs))
            .map_err(|e| refused("setting general registers", e))
    }
}
