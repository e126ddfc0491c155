//! Number of floating-point operations of an instruction.
//!
//! The rule is that of the hardware's own counters, FP_ARITH_INST_RETIRED (SDM vol. 3B, performance monitoring events of
//! Skylake and later; umasks SCALAR_SINGLE … 256B_PACKED_SINGLE): "ADD, SUB, HADD, HSUB, SUBADD, MUL, DIV, MIN, MAX, SQRT,
//! RSQRT, RCP, DPP, FM(N)ADD/SUB. DPP and FM(N)ADD/SUB count twice as they perform two calculations per element."
//! A packed instruction counts all lanes of its width, whatever they hold. Comparisons, conversions, rounding, logic and
//! moves count nothing.
//!
//! Recent processors have no such counter for x87. In the spirit of FP_COMP_OPS_EXE.X87, one operation is counted for each FADD, FSUB, FMUL
//! and FDIV (also with integer operands, and reversed), FSQRT and FPREM. The transcendental functions, whose work is not one operation,
//! count nothing.

use iced_x86::{EncodingKind, Instruction, Mnemonic};
use nodescope_plugin_api::FlopClass;

use crate::op::Op;

/// Sets `flop_class` and `flops`.
pub fn count(instruction: &Instruction, op: &mut Op) {
    if let Some((class, flops)) = of(instruction) {
        op.flop_class = class as u8;
        op.flops = flops;
    }
}

/// Returns the class and the number of floating-point operations; None if the instruction has none.
pub fn of(instruction: &Instruction) -> Option<(FlopClass, u8)> {
    use Mnemonic::*;
    if super::classify::is_x87(instruction) {
        return matches!(
            instruction.mnemonic(),
            Fadd | Faddp
                | Fiadd
                | Fsub
                | Fsubp
                | Fsubr
                | Fsubrp
                | Fisub
                | Fisubr
                | Fmul
                | Fmulp
                | Fimul
                | Fdiv
                | Fdivp
                | Fdivr
                | Fdivrp
                | Fidiv
                | Fidivr
                | Fsqrt
                | Fprem
                | Fprem1
        )
        .then_some((FlopClass::X87, 1));
    }
    let name = format!("{:?}", instruction.mnemonic()).to_ascii_lowercase();
    let name = match instruction.encoding() {
        EncodingKind::VEX => name.strip_prefix('v')?,
        _ => &name,
    };
    let (stem, form) = name.split_at_checked(name.len().checked_sub(2)?)?;
    let fused = ["fmadd", "fmsub", "fnmadd", "fnmsub"]
        .iter()
        .any(|f| stem.starts_with(f));
    let each = match stem {
        "add" | "sub" | "mul" | "div" | "min" | "max" | "sqrt" | "rsqrt" | "rcp" | "addsub"
        | "hadd" | "hsub" => 1,
        "dp" => 2,
        _ if fused => 2,
        _ => return None,
    };
    let wide = (0..instruction.op_count()).any(|n| {
        instruction.op_kind(n) == iced_x86::OpKind::Register && instruction.op_register(n).is_ymm()
    });
    let (class, lanes) = match (form, wide) {
        ("ss", _) => (FlopClass::ScalarSingle, 1),
        ("sd", _) => (FlopClass::ScalarDouble, 1),
        ("ps", false) => (FlopClass::Packed128Single, 4),
        ("pd", false) => (FlopClass::Packed128Double, 2),
        ("ps", true) => (FlopClass::Packed256Single, 8),
        ("pd", true) => (FlopClass::Packed256Double, 4),
        _ => return None,
    };
    Some((class, lanes * each))
}
