//! Instructions that a core does not execute as they stand: idioms for constants, moves, and pairs that it fuses.

use iced_x86::{ConditionCode, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::class::{Class, has_memory, register};
use crate::description::{Core, Fusion, Idiom};

/// How a core treats an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    /// It is executed and waits for its operands.
    Execute,
    /// It is executed, but waits for no operand.
    Independent,
    /// It makes a constant without being executed.
    Constant,
    /// It passes its source on without being executed.
    Renamed,
}

/// Returns how a core treats an instruction of a class.
pub(super) fn treatment(core: &Core, instruction: &Instruction, class: Class) -> Treatment {
    let renaming = &core.renaming;
    let idiom = if makes_zero(instruction) {
        renaming.zeroes
    } else if makes_ones(instruction) {
        renaming.ones
    } else {
        Idiom::Executed
    };
    match idiom {
        Idiom::Eliminated => return Treatment::Constant,
        Idiom::Independent => return Treatment::Independent,
        Idiom::Executed => {}
    }
    let (target, source) = (register(instruction, 0), register(instruction, 1));
    let whole = |r: Register| r.is_gpr32() || r.is_gpr64();
    let renamed = match class {
        Class::Move => renaming.general_moves && whole(target) && whole(source),
        Class::Extend => {
            renaming.extensions
                && instruction.mnemonic() == Mnemonic::Movzx
                && whole(target)
                && source.is_gpr8()
                && !upper_byte(source)
        }
        Class::VectorMove => {
            renaming.vector_moves && target.is_vector_register() && source.is_vector_register()
        }
        _ => false,
    };
    match renamed {
        true => Treatment::Renamed,
        false => Treatment::Execute,
    }
}

fn upper_byte(register: Register) -> bool {
    matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    )
}

/// Returns the register that an instruction combines with itself; `None` if its last two operands differ.
pub(super) fn same(instruction: &Instruction) -> Option<Register> {
    let count = instruction.op_count();
    let registers = (0..count).all(|n| instruction.op_kind(n) == OpKind::Register);
    if count < 2 || !registers || instruction.op_mask() != Register::None {
        return None;
    }
    let [one, other] = [count - 2, count - 1].map(|n| instruction.op_register(n));
    (one == other).then_some(one)
}

/// Returns whether an instruction makes zero of any value of its operand.
pub(super) fn makes_zero(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    let Some(register) = same(instruction) else {
        return false;
    };
    match instruction.mnemonic() {
        M::Xor | M::Sub => register.is_gpr32() || register.is_gpr64(),
        M::Pxor | M::Psubb | M::Psubw | M::Psubd | M::Psubq => register.is_xmm(),
        M::Pcmpgtb | M::Pcmpgtw | M::Pcmpgtd | M::Pcmpgtq => register.is_xmm(),
        M::Xorps | M::Xorpd | M::Vxorps | M::Vxorpd => true,
        M::Vpxor | M::Vpxord | M::Vpxorq => true,
        M::Vpsubb | M::Vpsubw | M::Vpsubd | M::Vpsubq => true,
        // Comparisons to a mask register are no idioms.
        M::Vpcmpgtb | M::Vpcmpgtw | M::Vpcmpgtd | M::Vpcmpgtq => {
            instruction.op0_register().is_vector_register()
        }
        _ => false,
    }
}

/// Returns whether an instruction makes ones of any value of its operand.
fn makes_ones(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    let compared = matches!(
        instruction.mnemonic(),
        M::Pcmpeqb | M::Pcmpeqw | M::Pcmpeqd | M::Vpcmpeqb | M::Vpcmpeqw | M::Vpcmpeqd
    );
    compared
        && instruction.op0_register().is_vector_register()
        && same(instruction).is_some_and(Register::is_vector_register)
}

/// Returns whether a core fuses an instruction and the following conditional jump into one operation (Intel 64 and IA-32 Architectures
/// Optimization Reference Manual, "Macro-Fusion"; AMD's Software Optimization Guides, "Branch Fusion").
pub(super) fn fuses(fusion: Fusion, first: &Instruction, jump: &Instruction) -> bool {
    use ConditionCode as C;
    use Mnemonic as M;
    if jump.flow_control() != FlowControl::ConditionalBranch || !jump.is_jcc_short_or_near() {
        return false;
    }
    let memory = has_memory(first);
    let constant =
        first.op_count() == 2 && !matches!(first.op1_kind(), OpKind::Register | OpKind::Memory);
    let compares = matches!(first.mnemonic(), M::Cmp | M::Test);
    // A comparison of memory with a constant, and a result in memory, do not fuse.
    if memory && (constant || first.op0_kind() == OpKind::Memory && !compares) {
        return false;
    }
    let condition = jump.condition_code();
    let unsigned = matches!(condition, C::b | C::ae | C::be | C::a);
    let signed = matches!(condition, C::e | C::ne | C::l | C::ge | C::le | C::g);
    match (fusion, first.mnemonic()) {
        (Fusion::Nothing, _) => false,
        // AMD's cores fuse with any condition.
        (Fusion::Comparisons, M::Cmp) | (Fusion::Logic, M::Cmp | M::Add | M::Sub) => true,
        (Fusion::Logic, M::Inc | M::Dec | M::Or | M::Xor | M::Neg | M::Not) => true,
        (_, M::Test) => true,
        (_, M::Cmp) => unsigned || signed,
        (Fusion::Arithmetic | Fusion::Logic, M::And) => true,
        (Fusion::Arithmetic, M::Add | M::Sub) => unsigned || signed,
        (Fusion::Arithmetic, M::Inc | M::Dec) => signed,
        _ => false,
    }
}
