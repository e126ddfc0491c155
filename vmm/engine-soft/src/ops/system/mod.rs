//! System instructions.
//!
//! Reading order: [`lower`] below (from an instruction to its file) and the helpers after it; `interrupts` (masking, waiting, INT n, IRET),
//! `syscall`; `segments` and `far` (selectors, far transfers, over `stack`), `tables` (descriptor tables, LAR and related instructions);
//! `control` (control and debug registers), `msr`; instructions that reach outside the vCPU: `ports`, `cpuid` (with the hypercall),
//! `sources` (time, random numbers).

mod control;
mod cpuid;
mod far;
mod interrupts;
mod msr;
mod ports;
mod segments;
mod sources;
mod stack;
mod syscall;
mod tables;

use iced_x86::{Code, Mnemonic};
use nodescope_x86::Exception;

use crate::cpu::Cpu;
use crate::lower::{Lowering, register_offset};
use crate::mmu::Intent;
use crate::op::{Done, Flow, Handler, Op, Trap};

pub(crate) use cpuid::Borrowed;
pub use ports::io_allowed;

/// Lowers system instructions; None for instructions of other groups.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    one_form(l)
        .or_else(|| interrupts::lower(l))
        .or_else(|| segments::lower(l))
        .or_else(|| control::lower(l))
        .or_else(|| tables::lower(l))
        .or_else(|| ports::lower(l))
        .or_else(|| far::lower(l))
}

/// Lowers instructions that have one form each, or are undefined in every form.
fn one_form(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let i = l.instruction;
    let handler: Handler = match i.mnemonic() {
        INVALID => undefined,
        Syscall => syscall::syscall,
        Sysret | Sysretq => {
            l.op.aux = u32::from(i.code() == Code::Sysretq);
            syscall::sysret
        }
        Cpuid => cpuid::cpuid,
        Rdtsc => sources::rdtsc::<false>,
        Rdtscp => sources::rdtsc::<true>,
        Rdpmc => sources::rdpmc,
        Rdrand | Rdseed => {
            l.op.dst = register_offset(i.op_register(0));
            l.op.aux = i.op_register(0).size() as u32;
            sources::random
        }
        Rdmsr => msr::rdmsr,
        Wrmsr => msr::wrmsr,
        Sysenter => syscall::sysenter,
        Sysexit | Sysexitq => {
            l.op.aux = u32::from(i.code() == Code::Sysexitq);
            syscall::sysexit
        }
        _ => return None,
    };
    Some(handler)
}

/// Returns whether a block ends after this instruction although control flow continues. Such an instruction reads the clock, changes state
/// that later instructions depend on, or accesses the platform.
pub fn ends_block(m: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        m,
        Rdtsc
            | Rdtscp
            | Cpuid
            | Rdmsr
            | Wrmsr
            | Wrfsbase
            | In
            | Out
            | Insb
            | Insw
            | Insd
            | Outsb
            | Outsw
            | Outsd
            | Invlpg
            | Lgdt
            | Lidt
            | Lldt
            | Ltr
            | Lmsw
            | Clts
            | Sti
            | Cli
            | Popf
            | Popfd
            | Popfq
            | Hlt
            | Xsetbv
            | Wbinvd
            | Invd
    )
}

/// Executes an instruction that the guest's processor has and that the engine does not implement. In the kernel, the study stops. In user
/// mode, where any bytes may run, the instruction raises `#UD`.
pub fn unknown(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.cpl == 3 {
        return undefined(cpu, op);
    }
    let linear = cpu.code_linear(cpu.ip(op));
    let mut bytes = Vec::new();
    for i in 0..u64::from(op.len) {
        if let Ok(page) = cpu.translate(linear.wrapping_add(i), Intent::Fetch)
            && !page.host.is_null()
        {
            // SAFETY: within a mapped page of RAM.
            bytes.push(unsafe { *page.host.add((linear.wrapping_add(i) & 0xfff) as usize) });
        }
    }
    let text = iced_x86::Decoder::with_ip(cpu.mode.bits(), &bytes, cpu.ip(op), 0).decode();
    let mut name = String::new();
    iced_x86::Formatter::format(&mut iced_x86::GasFormatter::new(), &text, &mut name);
    Err(cpu.unsupported(format!(
        "instruction not known to the engine: {name} ({:?})",
        text.code()
    )))
}

/// Raises `#GP` for an instruction with more bytes than allowed (SDM vol. 2A §2.3.11).
pub fn too_long(cpu: &mut Cpu, _op: &Op) -> Done {
    Err(cpu.raise(Exception::gp(0)))
}

/// Raises `#UD` for an encoding that the guest's processor does not have.
fn undefined(cpu: &mut Cpu, _op: &Op) -> Done {
    Err(cpu.raise(Exception::ud()))
}

fn privileged(cpu: &mut Cpu) -> Result<(), Trap> {
    if cpu.cpl == 0 {
        Ok(())
    } else {
        Err(cpu.raise(Exception::gp(0)))
    }
}

/// Retires the instruction, and makes the run loop check the machine.
fn attend(cpu: &mut Cpu, op: &Op) -> Done {
    let ip = cpu.next_ip(op);
    let ip = cpu.wrap_ip(ip);
    cpu.set_ip(ip);
    Ok(Flow::Attend)
}
