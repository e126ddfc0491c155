//! Instructions without an effect on the state (NOP, prefetches, cache-line flushes, fences, CET markers), PAUSE, and UD.

use iced_x86::Mnemonic;
use nodescope_x86::Exception;

use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op};

fn nop(_: &mut Cpu, _: &Op) -> Done {
    Ok(Flow::Next)
}

/// Cycles of a PAUSE: about 140 since Skylake (Intel Optimization Reference Manual, "Pause latency in Skylake").
const PAUSE_CYCLES: u64 = 140;

fn pause(cpu: &mut Cpu, _: &Op) -> Done {
    cpu.stall += PAUSE_CYCLES;
    Ok(Flow::Next)
}

fn undefined(cpu: &mut Cpu, _: &Op) -> Done {
    Err(cpu.raise(Exception::ud()))
}

/// This family.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    match l.instruction.mnemonic() {
        Nop | Endbr64 | Endbr32 | Prefetch | Prefetchw | Prefetchwt1 | Prefetchnta | Prefetcht0
        | Prefetcht1 | Prefetcht2 | Prefetchit0 | Prefetchit1 | Clflush | Clflushopt | Clwb
        | Cldemote | Lfence | Mfence | Sfence => Some(nop),
        // Without shadow stacks (CR4.CET clear) RDSSP is a NOP (SDM vol. 2B).
        Rdsspd | Rdsspq => Some(nop),
        Pause => Some(pause),
        Ud0 | Ud1 | Ud2 => Some(undefined),
        _ => None,
    }
}
