//! Threads that run on vCPUs, and the user registers of threads that are in the kernel.

use crate::kernel::GuestKernel;
use crate::memory::PhysicalMemory;
use crate::unwind::Registers;

/// Bytes of `task_struct.comm` (`TASK_COMM_LEN`).
const COMM: usize = 16;
/// Bytes of a stack of the kernel (`THREAD_SIZE`, arch/x86/include/asm/page_64_types.h, without KASAN).
const STACK: u64 = 16 << 10;

/// A thread of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Number of the thread.
    pub thread: u32,
    /// Number of the process.
    pub process: u32,
    /// Name of the thread.
    pub name: String,
    /// Linear address of the thread's kernel stack.
    stack: u64,
}

impl GuestKernel {
    /// Finds the thread that runs on a vCPU. `gs_base` is the kernel's base of GS: the base of the segment while the kernel runs, and the
    /// MSR `KERNEL_GS_BASE` while user code runs.
    pub fn current(&self, memory: &dyn PhysicalMemory, gs_base: u64) -> Option<Task> {
        let layout = &self.layout.task;
        let task = self.word(memory, gs_base.wrapping_add(self.current_task))?;
        Some(Task {
            thread: self.half(memory, task.wrapping_add(layout.pid))?,
            process: self.half(memory, task.wrapping_add(layout.tgid))?,
            name: self.text(memory, task.wrapping_add(layout.comm), COMM)?,
            stack: self.word(memory, task.wrapping_add(layout.stack))?,
        })
    }

    /// Finds the user registers of a thread that is in the kernel. The kernel's entry code saves these registers at the top of the thread's
    /// kernel stack (arch/x86/entry/entry_64.S). Returns `None` for threads of the kernel itself.
    pub fn user_registers(&self, memory: &dyn PhysicalMemory, task: &Task) -> Option<Registers> {
        let layout = &self.layout.task;
        let registers = task
            .stack
            .wrapping_add(STACK.checked_sub(layout.registers)?);
        let at = |offset: u64| self.word(memory, registers.wrapping_add(offset));
        // Only user code has privilege 3.
        (at(layout.cs)? & 3 == 3).then_some(Registers {
            ip: at(layout.ip)?,
            sp: at(layout.sp)?,
            bp: at(layout.bp)?,
        })
    }
}
