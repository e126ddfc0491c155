//! The call of the model's function, with the guest's vector registers and MXCSR saved.

use iced_x86::{Code, Register};

use super::field;
use crate::native::access::{load_vectors, store_vectors};
use crate::native::assembler::{Assembler, CPU, at_offset, cc, field_of_cpu};
use crate::native::runtime::{MXCSR, save_mxcsr};

use Register::{RDI, RSI, RSP};

/// Assembles a routine that calls the function for [`super::DirectState::miss`], on a host with AVX. The answer is in RAX and RDX. The
/// routine keeps the registers that a function keeps, and the guest's vector registers. The function gets the host's MXCSR, since models
/// may compute with floating-point numbers. Returns the routine's address.
pub fn model(a: &mut Assembler) -> u64 {
    let start = a.here();
    let (vectors, wide) = (a.label(), a.label());
    let function = || field_of_cpu(field!(direct.function));
    a.load(RDI, field!(direct.model));
    let miss = at_offset(CPU, field!(direct.miss) as i64);
    a.rm(Code::Lea_r64_m, RSI, miss);
    a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_live)), 0);
    a.jcc(cc::NE, vectors);
    a.m(Code::Jmp_rm64, function());
    a.bind(vectors);
    a.ri(Code::Sub_rm64_imm8, RSP, 8);
    a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_wide)), 0);
    a.jcc(cc::NE, wide);
    for is_wide in [false, true] {
        if is_wide {
            a.bind(wide);
        }
        store_vectors(a, is_wide);
        save_mxcsr(a);
        a.m(Code::Call_rm64, function());
        a.m(Code::Ldmxcsr_m32, field_of_cpu(MXCSR));
        load_vectors(a, is_wide);
        a.ri(Code::Add_rm64_imm8, RSP, 8);
        a.plain(Code::Retnq);
    }
    start
}
