//! Samples of the vCPUs' call stacks while a window is open.
//!
//! The clock of a vCPU decides when a sample is taken. Samples therefore represent equal numbers of cycles, and are the same in every run
//! of a study. A sample copies the user stack; the frames are found in the copy after the window has closed.

use nodescope_memory::Ram;
use nodescope_memory::paging::translate;
use nodescope_plugin_api::Context;
use nodescope_x86::VcpuState;
use nodescope_x86::state::seg;

/// Number of cycles between two samples of a vCPU when a window opens.
const FIRST_PERIOD: u64 = 250_000;
/// Maximum number of bytes of a stack that a sample copies.
const STACK: u64 = 16 << 10;
/// Size of a page, bytes; a page is mapped or not as a whole.
const PAGE: u64 = 4096;
/// Size of Linux's kernel stacks on x86-64 (`THREAD_SIZE`), bytes; also their alignment.
const KERNEL_STACK: u64 = 16 << 10;
/// Size of Linux's `struct pt_regs`, bytes. This structure is at the top of a kernel stack that was entered from user mode.
const PT_REGS: usize = 168;
/// Offsets of fields in `struct pt_regs`, bytes.
const PT_BP: usize = 32;
const PT_IP: usize = 128;
const PT_CS: usize = 136;
const PT_SP: usize = 152;

/// Registers of user code and a copy of its stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserFrame {
    /// Instruction pointer of the user code.
    pub ip: u64,
    /// Guest-physical page of the instruction pointer: the process may have ended when frames are found. `None` if unknown.
    pub page: Option<u64>,
    /// Stack pointer: address of the first byte of `stack`.
    pub sp: u64,
    /// Register RBP: the frame pointer, in programs that use one.
    pub bp: u64,
    /// Bytes of the stack from `sp` on, up to 16 KiB or to the first page that is not mapped.
    pub stack: Vec<u8>,
}

/// Sample of a vCPU's call stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackSample {
    /// Index of the vCPU within the node.
    pub vcpu: u16,
    /// The vCPU's clock in cycles.
    pub clock: u64,
    /// Context in which the vCPU ran.
    pub context: Context,
    /// Address space: the value of CR3.
    pub address_space: u64,
    /// Instruction pointer of the kernel; `None` if user code ran.
    pub kernel_ip: Option<u64>,
    /// User code that ran, or from which the kernel was entered; `None` if unknown.
    pub user: Option<UserFrame>,
}

/// Collector of a node's samples.
#[derive(Debug)]
pub(crate) struct Sampler {
    period: u64,
    /// Number of samples at which every second one is dropped.
    most: usize,
    samples: Vec<StackSample>,
}

impl Sampler {
    /// Returns an empty sampler. When it has `most` samples, every second one is dropped and the period doubles.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            period: FIRST_PERIOD,
            most: most.max(2),
            samples: Vec::new(),
        }
    }

    /// Returns the clock in cycles at which a vCPU is sampled next, if its clock shows `now`.
    pub(crate) fn next(&self, now: u64) -> u64 {
        (now / self.period + 1) * self.period
    }

    /// Adds a sample.
    pub(crate) fn push(&mut self, sample: StackSample) {
        self.samples.push(sample);
        if self.samples.len() >= self.most {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.period *= 2;
        }
    }

    /// Returns and removes all samples.
    pub(crate) fn take(&mut self) -> Vec<StackSample> {
        std::mem::take(&mut self.samples)
    }

    /// Drops all samples.
    pub(crate) fn clear(&mut self) {
        self.samples.clear();
    }
}

/// Takes a sample of a vCPU with this clock and this state.
pub(crate) fn sample(
    vcpu: u16,
    clock: u64,
    context: Context,
    state: &VcpuState,
    ram: &Ram,
) -> StackSample {
    let cr3 = state.control.cr3;
    let general = &state.general;
    let in_kernel = state.segments.data[seg::SS].dpl() != 3;
    let user = if in_kernel {
        user_registers(ram, cr3, general.gpr[4])
    } else {
        Some((general.rip, general.gpr[4], general.gpr[5]))
    };
    StackSample {
        vcpu,
        clock,
        context,
        address_space: cr3,
        kernel_ip: in_kernel.then_some(general.rip),
        user: user.map(|(ip, sp, bp)| UserFrame {
            ip,
            page: physical(ram, cr3, ip).map(|at| at / PAGE * PAGE),
            sp,
            bp,
            stack: copy_stack(ram, cr3, sp),
        }),
    }
}

/// Returns the user's instruction, stack and frame pointer from the top of the kernel stack that contains `sp`. Returns `None` if the
/// kernel runs on another stack, or was not entered from user mode.
fn user_registers(ram: &Ram, cr3: u64, sp: u64) -> Option<(u64, u64, u64)> {
    let top = (sp.checked_sub(1)? | (KERNEL_STACK - 1)).checked_add(1)?;
    let mut registers = [0; PT_REGS];
    copy(ram, cr3, top - PT_REGS as u64, &mut registers).then_some(())?;
    let word = |at: usize| {
        let bytes = registers[at..at + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    };
    let (ip, sp, bp) = (word(PT_IP), word(PT_SP), word(PT_BP));
    let is_user = word(PT_CS) & 3 == 3 && ip >> 47 == 0 && sp >> 47 == 0;
    is_user.then_some((ip, sp, bp))
}

fn copy_stack(ram: &Ram, cr3: u64, sp: u64) -> Vec<u8> {
    let mut stack = Vec::new();
    let mut at = sp;
    let end = sp.saturating_add(STACK);
    while at < end {
        let piece = (PAGE - at % PAGE).min(end - at);
        let old = stack.len();
        stack.resize(old + piece as usize, 0);
        if !copy(ram, cr3, at, &mut stack[old..]) {
            stack.truncate(old);
            break;
        }
        at += piece;
    }
    stack
}

/// Returns the guest-physical address of a guest-linear one.
fn physical(ram: &Ram, cr3: u64, linear: u64) -> Option<u64> {
    let read = |at| {
        let mut word = [0; 8];
        ram.read(at, &mut word).then(|| u64::from_le_bytes(word))
    };
    translate(read, cr3, linear)
}

/// Copies guest-linear memory, which may cross pages. Returns false if a part is not mapped or is not RAM.
fn copy(ram: &Ram, cr3: u64, linear: u64, to: &mut [u8]) -> bool {
    let mut done = 0;
    while done < to.len() {
        let Some(at) = linear.checked_add(done as u64) else {
            return false;
        };
        let piece = ((PAGE - at % PAGE) as usize).min(to.len() - done);
        let Some(from) = physical(ram, cr3, at) else {
            return false;
        };
        if !ram.read(from, &mut to[done..done + piece]) {
            return false;
        }
        done += piece;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(vcpu: u16) -> StackSample {
        StackSample {
            vcpu,
            clock: 0,
            context: Context(0),
            address_space: 0,
            kernel_ip: None,
            user: None,
        }
    }

    #[test]
    fn samples_that_are_too_many_are_thinned_evenly() {
        let mut sampler = Sampler::new(8);
        for n in 0..8 {
            sampler.push(numbered(n));
        }
        let kept: Vec<u16> = sampler.samples.iter().map(|s| s.vcpu).collect();
        assert_eq!(kept, [0, 2, 4, 6]);
        assert_eq!(sampler.next(0), 2 * FIRST_PERIOD);
        assert_eq!(sampler.next(2 * FIRST_PERIOD), 4 * FIRST_PERIOD);
    }
}
