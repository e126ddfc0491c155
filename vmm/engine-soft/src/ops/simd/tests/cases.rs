//! Instances of every instruction form that this folder supports.

use iced_x86::{
    Code, CpuidFeature, EncodingKind, Instruction, MemoryOperand, Mnemonic, OpCodeOperandKind,
    Register,
};

use nodescope_x86::features::{Unit, unit};

use super::{DATA, Values, encode};

/// Returns whether this folder must support the form, by its CPUID features.
fn promised(code: Code) -> bool {
    use Unit::{Mmx, State, Vector, X87};
    let features = code.cpuid_features();
    let ours = |f: &CpuidFeature| matches!(unit(*f), Some(Vector | X87 | Mmx | State));
    matches!(code.encoding(), EncodingKind::Legacy | EncodingKind::VEX)
        && features
            .iter()
            .all(|f| ours(f) || *f == CpuidFeature::CMOV)
        && features.iter().any(|f| *f != CpuidFeature::CMOV)
        // Lowered with the general-purpose instructions.
        && code.mnemonic() != Mnemonic::Crc32
}

/// Returns every supported form that exists in 64-bit mode.
pub fn codes() -> Vec<Code> {
    Code::values()
        .filter(|c| promised(*c) && c.op_code().mode64())
        .collect()
}

/// Registers that test instructions use for general operands: not those that the harness needs.
const GPRS: [usize; 5] = [0, 1, 2, 9, 11];

/// Returns an instance of a form with operands drawn at random; the memory operand, if any, is `[rbx]`. Returns None where the form cannot
/// have these operands.
pub fn instance(code: Code, values: &mut Values, memory: bool) -> Option<(Instruction, Vec<u8>)> {
    use OpCodeOperandKind::*;
    use std::option::Option::None;
    let info = code.op_code();
    let mut i = Instruction::default();
    i.set_code(code);
    let place = MemoryOperand::with_base(Register::RBX);
    let vsib = |index: Register| MemoryOperand::with_base_index_scale(Register::RBX, index, 1);
    let set_memory = |i: &mut Instruction, n: u32, m: MemoryOperand| {
        i.set_op_kind(n, iced_x86::OpKind::Memory);
        i.set_memory_base(m.base);
        i.set_memory_index(m.index);
        i.set_memory_index_scale(m.scale);
    };
    for n in 0..info.op_count() {
        let gpr = GPRS[values.below(5) as usize] as u32;
        let vector = values.below(16) as u32;
        let register = |i: &mut Instruction, r: Register| {
            i.set_op_kind(n, iced_x86::OpKind::Register);
            i.set_op_register(n, r);
        };
        let kind = info.op_kind(n);
        let either = match kind {
            mm_or_mem => Some(Register::MM0 + values.below(8) as u32),
            xmm_or_mem => Some(Register::XMM0 + vector),
            ymm_or_mem => Some(Register::YMM0 + vector),
            r32_or_mem => Some(Register::EAX + gpr),
            r64_or_mem => Some(Register::RAX + gpr),
            _ => None,
        };
        match kind {
            mem | mem_offs => set_memory(&mut i, n, place),
            mem_vsib32x | mem_vsib64x => set_memory(&mut i, n, vsib(Register::XMM13)),
            mem_vsib32y | mem_vsib64y => set_memory(&mut i, n, vsib(Register::YMM13)),
            _ if either.is_some() && memory => set_memory(&mut i, n, place),
            _ if let Some(r) = either => register(&mut i, r),
            r32_reg | r32_rm | r32_vvvv => register(&mut i, Register::EAX + gpr),
            r64_reg | r64_rm | r64_vvvv => register(&mut i, Register::RAX + gpr),
            mm_reg | mm_rm => register(&mut i, Register::MM0 + values.below(8) as u32),
            xmm_reg | xmm_rm | xmm_vvvv | xmm_is4 | xmm_is5 => {
                register(&mut i, Register::XMM0 + vector)
            }
            ymm_reg | ymm_rm | ymm_vvvv | ymm_is4 | ymm_is5 => {
                register(&mut i, Register::YMM0 + vector)
            }
            ax => register(&mut i, Register::AX),
            st0 => register(&mut i, Register::ST0),
            sti_opcode => register(&mut i, Register::ST0 + values.below(8) as u32),
            imm8 | imm4_m2z => {
                i.set_op_kind(n, iced_x86::OpKind::Immediate8);
                i.set_immediate8(if kind == imm4_m2z {
                    values.below(4) as u8
                } else {
                    values.next() as u8
                });
            }
            seg_rDI => {
                i.set_op_kind(n, iced_x86::OpKind::MemorySegRDI);
            }
            _ => return None,
        }
    }
    let bytes = encode(&i)?;
    // Gathers with registers that overlap are not valid.
    let decoded = super::decode(&bytes);
    (decoded.code() != Code::INVALID).then_some((decoded, bytes))
}

/// Returns the address of test data at an offset: the value for RBX.
pub fn data_address(offset: u64) -> u64 {
    DATA + offset
}
