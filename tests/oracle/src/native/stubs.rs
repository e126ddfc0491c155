//! Machine code of the stubs: one loads all registers from the frame, one stores them in it.

use std::mem::offset_of;

use iced_x86::code_asm::*;

use super::{FRAME, Frame, STUBS};

/// Returns a memory operand: the field of the frame at the offset `field`.
fn at(field: usize) -> AsmMemoryOperand {
    ptr(FRAME + field as u64)
}

/// The general registers, in the order of their numbers in encodings.
const GPR: [AsmRegister64; 16] = [
    rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15,
];
/// Registers that the C calling convention preserves, besides RSP.
const SAVED: [AsmRegister64; 6] = [rbx, rbp, r12, r13, r14, r15];

/// Returns the code of the stubs for the address [`STUBS`], the entry stub first, and the address of the exit stub.
pub fn assemble() -> (Vec<u8>, u64) {
    build().expect("the stubs consist of encodable instructions")
}

/// Returns the address of the last part of the exit stub, which restores the host's state.
pub fn resume() -> u64 {
    build_parts()
        .expect("the stubs consist of encodable instructions")
        .2
}

fn build() -> Result<(Vec<u8>, u64), IcedError> {
    let (code, exit, _) = build_parts()?;
    Ok((code, exit))
}

type IcedError = iced_x86::IcedError;

fn build_parts() -> Result<(Vec<u8>, u64, u64), IcedError> {
    let stack_top = FRAME + offset_of!(Frame, stack) as u64 + 16 * 8;
    let mut enter = CodeAssembler::new(64)?;
    for r in SAVED {
        enter.push(r)?;
    }
    let a = &mut enter;
    a.mov(qword_ptr(at(offset_of!(Frame, host_rsp))), rsp)?;
    a.stmxcsr(at(offset_of!(Frame, host_mxcsr)))?;
    a.fnstcw(at(offset_of!(Frame, host_fcw)))?;
    a.mov(eax, 7)?;
    a.xor(edx, edx)?;
    a.xrstor64(at(offset_of!(Frame, xsave_in)))?;
    a.mov(esp, stack_top as u32)?;
    a.push(qword_ptr(at(offset_of!(Frame, rflags_in))))?;
    a.popfq()?;
    for (i, r) in GPR.into_iter().enumerate() {
        if r != rsp {
            a.mov(r, qword_ptr(at(offset_of!(Frame, gpr_in) + 8 * i)))?;
        }
    }
    a.mov(rsp, qword_ptr(at(offset_of!(Frame, gpr_in) + 8 * 4)))?;
    a.jmp(qword_ptr(at(offset_of!(Frame, entry))))?;
    let mut code = enter.assemble(STUBS)?;

    let exit = STUBS + code.len() as u64;
    let mut leave = CodeAssembler::new(64)?;
    let a = &mut leave;
    for (i, r) in GPR.into_iter().enumerate() {
        a.mov(qword_ptr(at(offset_of!(Frame, gpr_out) + 8 * i)), r)?;
    }
    a.mov(esp, stack_top as u32)?;
    a.pushfq()?;
    a.pop(qword_ptr(at(offset_of!(Frame, rflags_out))))?;
    a.mov(eax, 7)?;
    a.xor(edx, edx)?;
    a.xsave64(at(offset_of!(Frame, xsave_out)))?;
    code.extend(leave.assemble(exit)?);

    let resume = STUBS + code.len() as u64;
    let mut back = CodeAssembler::new(64)?;
    let a = &mut back;
    // The flags DF, AC and NT must not stay set in the host.
    a.mov(esp, stack_top as u32)?;
    a.push(2)?;
    a.popfq()?;
    a.fninit()?;
    a.fldcw(word_ptr(at(offset_of!(Frame, host_fcw))))?;
    a.ldmxcsr(at(offset_of!(Frame, host_mxcsr)))?;
    a.vzeroupper()?;
    a.mov(rsp, qword_ptr(at(offset_of!(Frame, host_rsp))))?;
    for r in SAVED.into_iter().rev() {
        a.pop(r)?;
    }
    a.ret()?;
    code.extend(back.assemble(resume)?);
    Ok((code, exit, resume))
}
