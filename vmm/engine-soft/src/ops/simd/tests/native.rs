//! The reference: the instruction executed by the host with the whole state loaded around it.

use std::mem::offset_of;

use iced_x86::code_asm::*;
use iced_x86::{Instruction, OpKind, Register};

use crate::ops::simd::arena::Arena;

/// Everything an instruction can see or change.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct State {
    /// FXSAVE image; its XMM area is not used.
    pub fx: [u8; 512],
    pub vector: [[u8; 32]; 16],
    pub memory: [u8; 576],
    pub gpr: [u64; 16],
    pub rflags: u64,
}

/// General registers that are loaded and compared.
pub const GPRS: [usize; 7] = [0, 1, 2, 8, 9, 10, 11];

/// Executes one instruction whose memory operand is `[rbx]`.
pub fn run(arena: &mut Arena, instruction: &Instruction, state: &mut State) {
    let mut core = *instruction;
    for n in 0..core.op_count() {
        if core.op_kind(n) == OpKind::Memory {
            core.set_memory_base(Register::RSI);
        }
    }
    let assemble = |ip: u64| -> Result<Vec<u8>, iced_x86::IcedError> {
        let mut a = CodeAssembler::new(64)?;
        a.lea(rsi, qword_ptr(rdi + offset_of!(State, memory)))?;
        a.fxrstor64(byte_ptr(rdi + offset_of!(State, fx)))?;
        for n in 0..16_u32 {
            let ymm = get_ymm(Register::YMM0 + n).expect("a register");
            a.vmovups(
                ymm,
                ymmword_ptr(rdi + offset_of!(State, vector) + 32 * n as usize),
            )?;
        }
        a.push(qword_ptr(rdi + offset_of!(State, rflags)))?;
        for n in GPRS {
            let gpr = get_gpr64(Register::RAX + n as u32).expect("a register");
            a.mov(gpr, qword_ptr(rdi + offset_of!(State, gpr) + 8 * n))?;
        }
        a.popfq()?;
        a.add_instruction(core)?;
        a.pushfq()?;
        a.pop(qword_ptr(rdi + offset_of!(State, rflags)))?;
        for n in GPRS {
            let gpr = get_gpr64(Register::RAX + n as u32).expect("a register");
            a.mov(qword_ptr(rdi + offset_of!(State, gpr) + 8 * n), gpr)?;
        }
        for n in 0..16_u32 {
            let ymm = get_ymm(Register::YMM0 + n).expect("a register");
            a.vmovups(
                ymmword_ptr(rdi + offset_of!(State, vector) + 32 * n as usize),
                ymm,
            )?;
        }
        a.vzeroupper()?;
        a.fxsave64(byte_ptr(rdi + offset_of!(State, fx)))?;
        a.fninit()?;
        a.push(0x1f80)?;
        a.ldmxcsr(dword_ptr(rsp))?;
        a.pop(rax)?;
        a.ret()?;
        a.assemble(ip)
    };
    let code = assemble(arena.next()).expect("the reference assembles");
    let at = arena.push(&code).expect("room in the arena");
    // SAFETY: the code reads and writes only `state`, changes only caller-saved registers, and leaves x87 and MXCSR in
    // their default modes; exceptions are masked by the state that tests give.
    let f: unsafe extern "sysv64" fn(*mut State) = unsafe { std::mem::transmute(at as usize) };
    // SAFETY: as above.
    unsafe { f(state) };
}
