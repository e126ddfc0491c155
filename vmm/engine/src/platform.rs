//! The platform: services of the node that a vCPU uses.

use nodescope_plugin_api::{
    AcceptedDirectMisses, Charges, Context, Counters, Hits, L0Update, MemRef, Outcome, Prefetched,
    Privilege, Recording, RecordingPlan,
};

/// An access to an MSR that the platform refuses; the engine raises `#GP(0)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsrFault;

/// A guest-virtual address that is not mapped, found while serving a hypercall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFault {
    /// First address that could not be reached.
    pub address: u64,
}

/// Guest-virtual memory of the vCPU that made a hypercall, at its current privilege.
pub trait GuestVirtual {
    /// Reads bytes. After a fault the contents of `buf` are undefined.
    fn read(&mut self, address: u64, buf: &mut [u8]) -> Result<(), MemoryFault>;
    /// Writes bytes. After a fault the bytes before the fault may have been written.
    fn write(&mut self, address: u64, buf: &[u8]) -> Result<(), MemoryFault>;
}

/// Hypercall: the registers of the magic CPUID, or of the doorbell's OUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hypercall {
    /// Index of the vCPU within its node.
    pub vcpu: u16,
    /// Operation code: the contents of ECX.
    pub operation: u32,
    /// RSI, RDI, R8, R9, R10.
    pub args: [u64; 5],
    /// The vCPU's clock in cycles.
    pub now: u64,
    /// Instructions retired by the vCPU, this CPUID included.
    pub instructions: u64,
    /// Address space of the caller: the value of CR3.
    pub cr3: u64,
    /// Thread of the caller: the base of FS, where Linux keeps the address of the thread's own data on x86-64.
    pub thread: u64,
    /// Privilege of the caller.
    pub privilege: Privilege,
}

/// Instruction of a user program that raised `#UD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndefinedInstruction {
    /// Index of the vCPU within its node.
    pub vcpu: u16,
    /// Linear address of the instruction.
    pub address: u64,
    /// Stack pointer of the program.
    pub stack: u64,
    /// Bytes of the instruction; all that can be read, at most 15, if no processor has such an instruction.
    pub bytes: Vec<u8>,
    /// The instruction in assembly language; `None` if no processor has such an instruction.
    pub text: Option<String>,
    /// Number and name of a feature that the instruction requires and the guest's CPUID does not announce; `None` if there is none.
    pub feature: Option<(u16, String)>,
}

/// Answer to the guest, in RAX, RBX, RCX and RDX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct HypercallAnswer {
    pub eax: u32,
    pub ebx: u32,
    pub ecx: u32,
    pub edx: u32,
}

/// The machine as one of its vCPUs sees it. `now` is that vCPU's clock in cycles.
pub trait Platform {
    /// Executes an IN instruction of the guest: fills `data` from the I/O port.
    fn port_read(&mut self, vcpu: u16, now: u64, port: u16, data: &mut [u8]);
    /// Executes an OUT instruction of the guest: writes `data` to the I/O port.
    fn port_write(&mut self, vcpu: u16, now: u64, port: u16, data: &[u8]);
    /// Reads a guest-physical address that is not RAM.
    fn mmio_read(&mut self, vcpu: u16, now: u64, physical: u64, data: &mut [u8]);
    /// Writes a guest-physical address that is not RAM.
    fn mmio_write(&mut self, vcpu: u16, now: u64, physical: u64, data: &[u8]);

    /// Executes RDMSR of a register that is not part of the vCPU's own state (local APIC, TSC deadline).
    fn msr_read(&mut self, vcpu: u16, now: u64, msr: u32) -> Result<u64, MsrFault>;
    /// Executes WRMSR of a register that is not part of the vCPU's own state.
    fn msr_write(&mut self, vcpu: u16, now: u64, msr: u32, value: u64) -> Result<(), MsrFault>;
    /// Records a write of the TSC: from now on, TSC = the vCPU's clock in cycles + `offset`.
    fn tsc_offset_changed(&mut self, vcpu: u16, now: u64, offset: u64);

    /// Returns the task priority as CR8 (APIC TPR bits 7:4).
    fn task_priority(&mut self, vcpu: u16) -> u8;
    /// Executes MOV to CR8.
    fn set_task_priority(&mut self, vcpu: u16, now: u64, priority: u8);
    /// Returns whether an interrupt is deliverable to this vCPU now (timers that are due included).
    fn interrupt_pending(&mut self, vcpu: u16, now: u64) -> bool;
    /// Takes the interrupt, which is then in service. Returns its vector, or `None` if there is no interrupt any more.
    fn acknowledge(&mut self, vcpu: u16, now: u64) -> Option<u8>;
    /// Returns the value of the vCPU's clock, in cycles, at which an interrupt may become pending without an access by this vCPU (its
    /// timer); `u64::MAX` if never. The engine asks again after every access to the platform.
    fn next_event(&mut self, vcpu: u16) -> u64;
    /// Returns a later limit for a vCPU whose clock has reached its limit ([`crate::Limit::cycles`]), or `None` where the vCPU must return.
    /// The platform returns a limit if it would only let the vCPU run again at once. The engine asks only if [`crate::Limit::extends`] is
    /// true, and not again after `None`. The vCPU returns at the last limit.
    fn extend(&mut self, vcpu: u16) -> Option<u64> {
        let _ = vcpu;
        None
    }
    /// Returns whether the node wants the running vCPU to return (power-off, reset, INIT of another vCPU, a window trigger).
    /// The engine asks after every access to the platform.
    fn attention(&mut self) -> bool;

    /// Serves a hypercall: the magic CPUID, or the doorbell (`vmm/hypercall`).
    fn hypercall(&mut self, call: &Hypercall, memory: &mut dyn GuestVirtual) -> HypercallAnswer;

    /// Takes note of an instruction of a user program that raises `#UD`. `memory` is the program's.
    fn undefined_instruction(
        &mut self,
        instruction: &UndefinedInstruction,
        memory: &mut dyn GuestVirtual,
    ) {
        let _ = (instruction, memory);
    }

    /// Returns the context of a thread, the base of FS, in the address space of this CR3, for counters and references. The engine asks while
    /// a model is attached: when the vCPU starts to run, when CR3 or the base of FS changes, and after accesses to the platform.
    fn context(&mut self, vcpu: u16, cr3: u64, thread: u64) -> Context;
    /// Passes a memory reference that the L0 filter cache could not answer to the model. Updates of the running vCPU's own L0 filter cache
    /// are pushed to `updates`; the platform keeps updates of other vCPUs until these run. `hits` are the hits that the L0 filter cache has
    /// answered before.
    fn reference(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome;
    /// Returns the function of [`nodescope_plugin_api::MemoryModel::direct_misses`], accepted by the platform. `None` if the model has
    /// none.
    fn direct_misses(&mut self) -> Option<AcceptedDirectMisses> {
        None
    }
    /// Takes the updates that direct misses have caused. As with [`Platform::reference`], those of the running vCPU are pushed to
    /// `updates`, and the platform keeps those of other vCPUs.
    fn take_updates(&mut self, vcpu: u16, updates: &mut Vec<L0Update>) {
        let _ = (vcpu, updates);
    }
    /// Returns the charges as [`nodescope_plugin_api::MemoryModel::take_charges`] does.
    fn take_charges(&mut self) -> Charges {
        Charges::default()
    }
    /// Gives the instructions that a vCPU has recorded to a model of the core. Returns when the vCPU records next, `None` for never. The
    /// engine asks first with an empty recording, when the vCPU first runs with a model attached.
    fn recorded(&mut self, vcpu: u16, recording: &Recording) -> Option<RecordingPlan> {
        let _ = (vcpu, recording);
        None
    }
    /// Pushes the lines that prefetchers have brought since the last call to `prefetched`, while a vCPU records.
    fn take_prefetched(&mut self, prefetched: &mut Vec<Prefetched>) {
        let _ = prefetched;
    }
    /// Reports the lines that the running vCPU wrote under [`nodescope_plugin_api::Permission::Exclusive`], before another vCPU runs.
    fn modified(&mut self, vcpu: u16, lines: &[u64]);
    /// Adds the counters that the running vCPU gathered since the last call, for one context and privilege.
    fn account(&mut self, vcpu: u16, context: Context, privilege: Privilege, counters: &Counters);
}
