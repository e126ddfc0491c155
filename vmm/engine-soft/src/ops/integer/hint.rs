//! Instructions without an effect on the state (NOP, reserved NOPs, prefetches, fences, CET markers), cache-line flushes, PAUSE,
//! and UD.

use iced_x86::Mnemonic;
use nodescope_x86::Exception;

use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::memory::is_canonical;
use crate::mmu::Intent;
use crate::op::{Done, Flow, Handler, Op, thread};

fn nop(_: &mut Cpu, _: &Op) -> Done {
    Ok(Flow::Next)
}

/// Stall cycles of a PAUSE: about 140 since Skylake (Intel Optimization Reference Manual, "Pause latency in Skylake").
const PAUSE_CYCLES: u64 = 140;

fn pause(cpu: &mut Cpu, _: &Op) -> Done {
    cpu.stall += PAUSE_CYCLES;
    Ok(Flow::Next)
}

/// Executes CLFLUSH, CLFLUSHOPT and CLWB. Nothing is flushed, but these instructions fault as a load of a byte does (SDM vol. 2A, CLFLUSH).
fn flush_line(cpu: &mut Cpu, op: &Op) -> Done {
    let linear = cpu.linear(op);
    if cpu.direct_read_range(linear).is_none() {
        if cpu.long_mode() && !is_canonical(linear) {
            return Err(cpu.raise(Exception {
                address: linear,
                ..Exception::gp(0)
            }));
        }
        cpu.translate(linear, Intent::Read)?;
    }
    Ok(Flow::Next)
}

fn undefined(cpu: &mut Cpu, _: &Op) -> Done {
    Err(cpu.raise(Exception::ud()))
}

/// Lowers the instructions of this file.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    match l.instruction.mnemonic() {
        Nop | Reservednop | Endbr64 | Endbr32 | Prefetch | Prefetchw | Prefetchwt1
        | Prefetchnta | Prefetcht0 | Prefetcht1 | Prefetcht2 | Prefetchit0 | Prefetchit1
        | Cldemote | Lfence | Mfence | Sfence => Some(thread(nop)),
        // Without shadow stacks (CR4.CET clear) RDSSP is a NOP (SDM vol. 2B).
        Rdsspd | Rdsspq => Some(thread(nop)),
        Clflush | Clflushopt | Clwb => Some(flush_line),
        Pause => Some(pause),
        Ud0 | Ud1 | Ud2 => Some(undefined),
        _ => None,
    }
}
