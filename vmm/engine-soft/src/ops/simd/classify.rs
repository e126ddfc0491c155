//! Classification of vector, MMX and x87 instructions: chooses a handler and, for most, a stub.

use iced_x86::{EncodingKind, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};

use nodescope_x86::features::{ALWAYS, Unit, announcing, missing_on_host, unit};

use crate::lower::Lowering;
use crate::op::{Handler, attr, thread};

use super::{elements, execute, moves, mxcsr, need, refused, x87, xsave};

/// Returns whether an instruction belongs to the units that this folder handles: vectors, MMX, x87, and the saving of their state.
pub fn is_ours(i: &Instruction) -> bool {
    let features = i.cpuid_features();
    matches!(i.encoding(), EncodingKind::Legacy | EncodingKind::VEX)
        && i.mnemonic() != Mnemonic::INVALID
        && (i.mnemonic() == Mnemonic::Wait
            || features.iter().any(|&feature| {
                use Unit::{Mmx, State, Vector, X87};
                matches!(unit(feature), Some(Vector | Mmx | X87 | State))
            }))
        && features
            .iter()
            .all(|feature| ALWAYS.contains(feature) || announcing(*feature).is_some())
}

/// Returns whether an instruction is one of the x87 unit.
pub fn is_x87(i: &Instruction) -> bool {
    let mut features = i.cpuid_features().iter();
    features.any(|&feature| unit(feature) == Some(Unit::X87))
}

/// Returns the name of a feature that the instruction needs and the host lacks; None where there is none.
fn missing_for(i: &Instruction) -> Option<&'static str> {
    let mut missing = missing_on_host()
        .iter()
        .filter(|missing| missing.unit == Some(Unit::Vector));
    let needed = missing.find(|missing| {
        let mut features = i.cpuid_features().iter();
        features.any(|feature| missing.decoded.contains(feature))
    });
    needed.map(|missing| missing.name)
}

/// Returns whether the instruction reads or sets MXCSR: arithmetic, comparison and conversion of floating-point numbers. RCP and RSQRT do
/// not (SDM vol. 1 §10.4.3).
pub fn uses_mxcsr(i: &Instruction) -> bool {
    let name = format!("{:?}", i.mnemonic()).to_ascii_lowercase();
    let name = match i.encoding() {
        EncodingKind::VEX => name.strip_prefix('v').unwrap_or(&name),
        _ => name.as_str(),
    };
    if name.starts_with("cvt") {
        // Conversions of 32-bit integers to doubles are exact.
        return !matches!(name, "cvtdq2pd" | "cvtpi2pd");
    }
    let fused = ["fmadd", "fmsub", "fnmadd", "fnmsub"];
    if fused.iter().any(|f| name.starts_with(f)) {
        return true;
    }
    let Some((stem, form)) = name
        .len()
        .checked_sub(2)
        .and_then(|n| name.split_at_checked(n))
    else {
        return false;
    };
    matches!(form, "ss" | "sd" | "ps" | "pd")
        && matches!(
            stem,
            "add"
                | "sub"
                | "mul"
                | "div"
                | "min"
                | "max"
                | "sqrt"
                | "addsub"
                | "hadd"
                | "hsub"
                | "dp"
                | "cmp"
                | "comi"
                | "ucomi"
                | "round"
        )
}

/// Returns the required alignment of the memory operand in bytes, minus one. Returns 0 if none is required. Of the VEX instructions, only
/// aligned and non-temporal moves require alignment. Of the legacy SSE instructions, all with an operand of 16 bytes require it, except
/// unaligned moves and string comparisons (SDM vol. 2A table 2-18 and following, exception types 1, 2, 4).
fn alignment(i: &Instruction, len: usize) -> u8 {
    use Mnemonic::*;
    let m = i.mnemonic();
    let aligned = if i.encoding() == EncodingKind::VEX {
        matches!(
            m,
            Vmovaps | Vmovapd | Vmovdqa | Vmovntps | Vmovntpd | Vmovntdq | Vmovntdqa
        )
    } else {
        len == 16
            && !matches!(
                m,
                Movups
                    | Movupd
                    | Movdqu
                    | Lddqu
                    | Pcmpestrm
                    | Pcmpestri
                    | Pcmpistrm
                    | Pcmpistri
                    | Pcmpestrm64
                    | Pcmpestri64
            )
    };
    if aligned { len as u8 - 1 } else { 0 }
}

/// Returns the length of the memory operand in bytes.
pub fn memory_len(i: &Instruction) -> usize {
    i.memory_size().size()
}

fn has_memory(i: &Instruction) -> bool {
    (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory)
}

fn has_mmx(i: &Instruction) -> bool {
    (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n).is_mm())
}

fn has_xmm(i: &Instruction) -> bool {
    (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n).is_xmm())
}

/// Returns whether the memory operand is written.
fn writes_memory(i: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    factory.info(i).used_memory().iter().any(|m| {
        matches!(
            m.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        )
    })
}

/// Counts the memory operand as a store if the instruction writes it, else as a load.
pub fn count_access(l: &mut Lowering<'_>) {
    if writes_memory(l.instruction) {
        l.op.stores = 1;
    } else {
        l.op.loads = 1;
    }
}

/// Attaches the instruction's stub to `handler`. Returns a handler that stops the study if no stub can be made.
pub fn with_stub(l: &mut Lowering<'_>, mxcsr: bool, handler: Handler) -> Handler {
    match l.stubs.get(l.instruction, mxcsr) {
        Ok(at) => {
            l.op.imm = at;
            l.op.aux = memory_len(l.instruction) as u32;
            handler
        }
        Err(error) => {
            l.op.aux = l.stubs.message(error.to_string());
            refused
        }
    }
}

/// Raises `#UD` for LOCK before an instruction that cannot be locked.
fn locked(cpu: &mut crate::cpu::Cpu, _: &crate::op::Op) -> crate::op::Done {
    Err(execute::invalid(cpu))
}

/// Chooses the handler of an instruction of this folder. Most handlers run a stub.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    let i = l.instruction;
    if l.op.attr & attr::LOCK != 0 {
        return Some(locked);
    }
    if let Some(feature) = missing_for(i) {
        let error = super::StubError::Host {
            instruction: format!("{:?}", i.mnemonic()),
            feature,
        };
        l.op.aux = l.stubs.message(error.to_string());
        return Some(refused);
    }
    if let Some(handler) = x87::lower(l) {
        return Some(handler);
    }
    if let Some(handler) = xsave::lower(l) {
        return Some(handler);
    }
    let memory = has_memory(i);
    let write = memory && writes_memory(i);
    if memory {
        count_access(l);
    }
    if let Some(handler) = mxcsr::lower(l) {
        return Some(handler);
    }
    if let Some(handler) = elements::lower(l) {
        return Some(handler);
    }
    // CVTPI2PS and CVTPI2PD with a memory operand make no transition to MMX.
    let mmx = has_mmx(i);
    l.op.src2 = if i.encoding() == EncodingKind::VEX {
        need::AVX
    } else if mmx && !has_xmm(i) {
        need::MMX
    } else {
        need::SSE
    };
    l.op.dst = if memory {
        alignment(i, memory_len(i))
    } else {
        0
    };
    if !mmx && let Some(handler) = moves::lower(l) {
        return Some(handler);
    }
    let mxcsr = uses_mxcsr(i);
    if i.mnemonic() == Mnemonic::Vcvtps2ph {
        let handler = if memory {
            thread(execute::half_store)
        } else {
            l.op.src = i.op0_register().number() as u8;
            thread(execute::half_registers)
        };
        return Some(with_stub(l, mxcsr, handler));
    }
    let handler: Handler = match (mmx, memory, write, mxcsr) {
        (false, false, _, false) => thread(execute::registers::<false>),
        (false, false, _, true) => thread(execute::registers::<true>),
        (false, true, false, false) => thread(execute::load::<false>),
        (false, true, false, true) => thread(execute::load::<true>),
        (false, true, true, false) => thread(execute::store::<false>),
        (false, true, true, true) => thread(execute::store::<true>),
        (true, false, _, false) => thread(execute::mmx_registers::<false>),
        (true, false, _, true) => thread(execute::mmx_registers::<true>),
        (true, true, false, false) => thread(execute::mmx_load::<false>),
        (true, true, false, true) => thread(execute::mmx_load::<true>),
        (true, true, true, _) => thread(execute::mmx_store),
    };
    Some(with_stub(l, mxcsr, handler))
}
