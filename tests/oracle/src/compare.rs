//! Comparison of outcomes; results that the architecture leaves undefined are ignored.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, RflagsBits};
use nodescope_x86::{Exception, Vector};

use crate::generate::Case;
use crate::layout::WINDOW;
use crate::state::Outcome;

/// Difference of an outcome from the reference, in one register, flag field, part of memory, or in the exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the register, flags, memory range or exception.
    pub what: String,
    /// Value of the reference: of the host's CPU, or of interpreted code where translated code differs from it.
    pub expected: String,
    /// Value of the outcome that is compared with the reference, such as the engine's.
    pub got: String,
}

/// Names of the general registers, in the order of their numbers in encodings.
pub const GPR: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// Returns whether two outcomes are equal in every bit that [`compare`] compares, so that [`compare`] need not run. Memory is not compared.
pub fn equal(native: &Outcome, engine: &Outcome) -> bool {
    let (n, e) = (&native.state, &engine.state);
    let (nf, ef) = (&n.fx.0, &e.fx.0);
    native.exception == engine.exception
        && n.gpr == e.gpr
        && n.rip == e.rip
        && n.rflags == e.rflags
        && n.vector == e.vector
        && nf[..5] == ef[..5]
        && nf[24..28] == ef[24..28]
        && (0..8).all(|k| nf[32 + 16 * k..][..10] == ef[32 + 16 * k..][..10])
}

/// Returns the differences between the native outcome and the engine's that the architecture does not permit; of the window, only the
/// first. `memory` has the window on both sides, native first.
pub fn compare(
    case: &Case,
    native: &Outcome,
    engine: &Outcome,
    memory: [&[u8]; 2],
) -> Vec<Difference> {
    let mut found = Vec::new();
    if masked_bytes_fault(case, native, engine) {
        return found;
    }
    let mut differ = |what: &str, expected: String, got: String| {
        if expected != got {
            found.push(Difference {
                what: what.to_owned(),
                expected,
                got,
            });
        }
    };
    let i = &case.instruction;
    // Equivalent page faults: on the same page with any address, or on any of the pages of one operand.
    let equivalent = |n: Exception, e: Exception| {
        let same_page = n.address >> 12 == e.address >> 12;
        n.vector == Vector::PageFault
            && e.vector == Vector::PageFault
            && (n.error == e.error || !same_page && n.error | 1 == e.error | 1)
            && (same_page
                || memory_operand(case)
                    .is_some_and(|at| [n, e].iter().all(|x| x.address.wrapping_sub(at) < 1024)))
    };
    let agree = native.exception == engine.exception
        || either_operand(case, native, engine)
        || in_pieces(i)
            && native
                .exception
                .zip(engine.exception)
                .is_some_and(|(n, e)| equivalent(n, e));
    if !agree {
        differ(
            "exception",
            describe(native.exception),
            describe(engine.exception),
        );
    }
    let faulted = native.exception.is_some();
    let (n, e) = (&native.state, &engine.state);
    // A gather that faults may or may not have loaded elements above the faulting one. A restore may or may not have loaded the parts
    // before the fault.
    let restores = faulted && is_restore(i);
    let partial = faulted && i.is_vsib() || restores;
    let mut engine_fx = e.fx;
    let mut native_fx = n.fx;
    if faulted && is_mmx(i) {
        // At the fault, the transition to MMX (SDM vol. 1 section 9.5) may or may not have taken place. The instruction that is run again
        // does not depend on the transition.
        for fx in [&mut native_fx, &mut engine_fx] {
            to_physical_order(&mut fx.0);
        }
    }
    let (n_fx, e_fx) = (&native_fx, &engine_fx);
    let open = if repeats_narrow(case) {
        [1, 6, 7].as_slice()
    } else {
        &[]
    };
    for (k, name) in GPR.iter().enumerate() {
        let unchanged = n.gpr[k] as u32 == case.state.gpr[k] as u32;
        if n.gpr[k] != e.gpr[k]
            && !(open.contains(&k) && unchanged && n.gpr[k] as u32 == e.gpr[k] as u32)
        {
            differ(name, hex(n.gpr[k]), hex(e.gpr[k]));
        }
    }
    if n.rip != e.rip {
        differ("rip", hex(n.rip), hex(e.rip));
    }
    let ignored = if faulted { 0 } else { undefined_flags(case) };
    if (n.rflags ^ e.rflags) & !ignored != 0 {
        differ(
            "rflags",
            flags(n.rflags & !ignored),
            flags(e.rflags & !ignored),
        );
    }
    for k in 0..16 {
        if n.vector.0[k] != e.vector.0[k] && !partial {
            differ(
                &format!("ymm{k}"),
                bytes_high_first(&n.vector.0[k]),
                bytes_high_first(&e.vector.0[k]),
            );
        }
    }
    if !restores {
        if n_fx.fcw() != e_fx.fcw() {
            differ("fcw", hex(n_fx.fcw()), hex(e_fx.fcw()));
        }
        if n_fx.fsw() != e_fx.fsw() {
            differ("fsw", hex(n_fx.fsw()), hex(e_fx.fsw()));
        }
        if n_fx.0[4] != e_fx.0[4] {
            differ("ftw", hex(n_fx.0[4]), hex(e_fx.0[4]));
        }
        if n_fx.mxcsr() != e_fx.mxcsr() {
            differ("mxcsr", hex(n_fx.mxcsr()), hex(e_fx.mxcsr()));
        }
        for k in 0..8 {
            let at = 32 + 16 * k;
            let (a, b) = (&n_fx.0[at..at + 10], &e_fx.0[at..at + 10]);
            if a != b {
                differ(&format!("st{k}"), bytes_high_first(a), bytes_high_first(b));
            }
        }
    }
    let [a, b] = memory;
    if a != b {
        let mut open = open_memory(case);
        if faulted
            // Some processors also write a MOVBE operand that crosses pages in pieces.
            && (in_pieces(i) || i.memory_size().size() == 10 || i.mnemonic() == Mnemonic::Movbe)
            && let Some(at) = memory_operand(case)
        {
            // The pieces before the fault may have been written.
            open.push((at, 1024));
        }
        let at = (0..a.len()).find(|&k| {
            a[k] != b[k]
                && !open
                    .iter()
                    .any(|&(start, len)| (WINDOW + k as u64).wrapping_sub(start) < len)
        });
        if let Some(at) = at {
            let end = (at + 32).min(a.len());
            differ(
                &format!("memory at {:#x}, low first", WINDOW + at as u64),
                bytes_in_order(&a[at..end]),
                bytes_in_order(&b[at..end]),
            );
        }
    }
    found
}

/// Returns whether an instruction accesses memory in pieces: the processor chooses which byte of a page it reports as faulting.
fn in_pieces(i: &Instruction) -> bool {
    use Mnemonic::*;
    is_restore(i)
        || matches!(
            i.mnemonic(),
            Fnstenv
                | Fnsave
                | Fxsave
                | Fxsave64
                | Xsave
                | Xsave64
                | Maskmovq
                | Maskmovdqu
                | Vmaskmovdqu
                | Vmaskmovps
                | Vmaskmovpd
                | Vpmaskmovd
                | Vpmaskmovq
        )
}

/// Returns whether an instruction loads much state from memory; a fault may leave part of the state loaded (SDM vol. 1 section 13.8).
fn is_restore(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        i.mnemonic(),
        Fldenv | Frstor | Fxrstor | Fxrstor64 | Xrstor | Xrstor64
    )
}

fn is_mmx(i: &Instruction) -> bool {
    crate::catalogue::group_of(i.code()) == Some(crate::catalogue::Group::Mmx)
}

/// Reorders x87 registers of an FXSAVE image from stack order to physical order, and sets the fields that the transition to MMX changes.
fn to_physical_order(image: &mut [u8]) {
    let top = usize::from(image[3] >> 3 & 7);
    image[32..160].rotate_right(16 * top);
    image[3] &= !0x38;
    image[4] = 0xff;
}

/// Returns whether MASKMOVQ or MASKMOVDQU faulted on either side: the processor chooses whether bytes outside the mask fault (SDM vol. 2A).
fn masked_bytes_fault(case: &Case, native: &Outcome, engine: &Outcome) -> bool {
    let faulted = |o: &Outcome| {
        o.exception.is_some_and(|e| {
            matches!(
                e.vector,
                Vector::PageFault | Vector::GeneralProtection | Vector::StackFault
            )
        })
    };
    matches!(
        case.instruction.mnemonic(),
        Mnemonic::Maskmovq | Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu
    ) && (faulted(native) || faulted(engine))
}

/// Returns whether a difference is a documented deviation of the engine (`ops/simd/mxcsr.rs`). The deviations exist only with unmasked
/// exceptions: the precision flag that accompanies an unmasked underflow or overflow, and the sum in DPPS and DPPD, which continues after
/// an unmasked exception in a product. Such cases are counted separately.
pub fn is_known_deviation(case: &Case, native: &Outcome, differences: &[Difference]) -> bool {
    const UNDERFLOW_OVERFLOW: u32 = 0x18;
    const ALL: u32 = 0x1f80;
    let raised = native.state.fx.mxcsr() & UNDERFLOW_OVERFLOW;
    let unmasked = !(case.state.fx.mxcsr() >> 7);
    let simd = native.exception.is_some_and(|e| e.vector == Vector::Simd);
    match case.instruction.mnemonic() {
        Mnemonic::Dpps | Mnemonic::Dppd | Mnemonic::Vdpps | Mnemonic::Vdppd => {
            simd && case.state.fx.mxcsr() & ALL != ALL
        }
        _ => simd && raised & unmasked != 0 && matches!(differences, [d] if d.what == "mxcsr"),
    }
}

/// Returns whether the case is CMPS with a page fault on both sides: if both of its operands fault, the processor chooses which fault it
/// reports.
fn either_operand(case: &Case, native: &Outcome, engine: &Outcome) -> bool {
    case.instruction.op0_kind() != OpKind::Register
        && matches!(
            case.instruction.mnemonic(),
            Mnemonic::Cmpsb | Mnemonic::Cmpsw | Mnemonic::Cmpsd | Mnemonic::Cmpsq
        )
        && native
            .exception
            .zip(engine.exception)
            .is_some_and(|(n, e)| n.vector == Vector::PageFault && n.vector == e.vector)
}

/// Returns whether the case is a string instruction with 32-bit addresses. If a repeated one did nothing (a count of zero, or a fault at
/// the first element), the processor chooses whether it clears the upper halves of the address and count registers.
fn repeats_narrow(case: &Case) -> bool {
    let i = &case.instruction;
    i.is_string_instruction()
        && (0..i.op_count()).any(|o| {
            matches!(
                i.op_kind(o),
                OpKind::MemorySegESI | OpKind::MemoryESEDI | OpKind::MemorySegEDI
            )
        })
}

/// Returns the mask of status flags in RFLAGS that the architecture leaves undefined after this instruction in this state.
fn undefined_flags(case: &Case) -> u64 {
    let i = &case.instruction;
    let mut bits = i.rflags_undefined();
    if i.is_invalid() {
        return 0;
    }
    // A rotation by more than one leaves OF undefined, even if the count is a multiple of the width (SDM vol. 2B, RCL).
    if matches!(
        i.mnemonic(),
        Mnemonic::Rcl | Mnemonic::Rcr | Mnemonic::Rol | Mnemonic::Ror
    ) && i.op1_kind() == OpKind::Immediate8
    {
        let wide = match i.op0_kind() {
            OpKind::Register => i.op0_register().size() == 8,
            _ => i.memory_size().size() == 8,
        };
        if i.immediate8() & if wide { 63 } else { 31 } > 1 {
            bits |= RflagsBits::OF;
        }
    }
    // A shift or rotation by CL: the decoder's table has only the general case. A count of zero changes no flag; for a count of one OF is
    // defined (SDM vol. 2B, RCL and SAL).
    if i.op_count() >= 2
        && i.op1_kind() == OpKind::Register
        && i.op1_register() == iced_x86::Register::CL
        || i.op_count() == 3
            && i.op2_kind() == OpKind::Register
            && i.op2_register() == iced_x86::Register::CL
    {
        let wide = match i.op0_kind() {
            OpKind::Register => i.op0_register().size() == 8,
            _ => i.memory_size().size() == 8,
        };
        let count = case.state.gpr[1] & if wide { 63 } else { 31 };
        match count {
            0 => bits = 0,
            1 => bits &= !RflagsBits::OF,
            _ => {}
        }
    }
    let mut mask = 0;
    for (bit, flag) in [
        (RflagsBits::CF, 0),
        (RflagsBits::PF, 2),
        (RflagsBits::AF, 4),
        (RflagsBits::ZF, 6),
        (RflagsBits::SF, 7),
        (RflagsBits::OF, 11),
    ] {
        if bits & bit != 0 {
            mask |= 1 << flag;
        }
    }
    mask
}

/// Returns the ranges of memory (address, bytes) that the engine may fill differently from this host: x87 pointers and opcode (SDM vol. 1
/// section 8.1.8), which the engine does not keep.
fn open_memory(case: &Case) -> Vec<(u64, u64)> {
    let i = &case.instruction;
    let Some(at) = memory_operand(case) else {
        return Vec::new();
    };
    match i.code() {
        Code::Fnstenv_m14byte | Code::Fnsave_m94byte => vec![(at.wrapping_add(6), 8)],
        Code::Fnstenv_m28byte | Code::Fnsave_m108byte => vec![(at.wrapping_add(12), 16)],
        _ => match i.mnemonic() {
            Mnemonic::Fxsave | Mnemonic::Fxsave64 | Mnemonic::Xsave | Mnemonic::Xsave64 => {
                vec![(at.wrapping_add(6), 18)]
            }
            _ => Vec::new(),
        },
    }
}

/// Returns the address of the explicit memory operand, from the registers before the instruction; None without such an operand.
pub(crate) fn memory_operand(case: &Case) -> Option<u64> {
    let i = &case.instruction;
    (0..i.op_count())
        .find(|&o| i.op_kind(o) == OpKind::Memory)
        .and_then(|o| {
            i.virtual_address(o, 0, |r, e, s| {
                Some(crate::generate::register(&case.state, r, e, s))
            })
        })
}

fn describe(exception: Option<Exception>) -> String {
    match exception {
        None => "none".into(),
        Some(e) if e.vector == Vector::PageFault => {
            format!("PageFault error {:#x} address {:#x}", e.error, e.address)
        }
        Some(e) => format!("{:?} error {:#x}", e.vector, e.error),
    }
}

fn hex(value: impl Into<u64>) -> String {
    format!("{:#x}", value.into())
}

/// Returns the flags as a number, with the names of those that are set.
pub fn flags(value: u64) -> String {
    let mut text = format!("{value:#x}");
    for (bit, name) in [
        (0, "CF"),
        (2, "PF"),
        (4, "AF"),
        (6, "ZF"),
        (7, "SF"),
        (10, "DF"),
        (11, "OF"),
    ] {
        if value >> bit & 1 != 0 {
            text.push(' ');
            text.push_str(name);
        }
    }
    text
}

/// Returns hexadecimal digits with the highest byte first, as a number is written.
pub fn bytes_high_first(bytes: &[u8]) -> String {
    bytes.iter().rev().map(|b| format!("{b:02x}")).collect()
}

fn bytes_in_order(bytes: &[u8]) -> String {
    let list: Vec<_> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    list.join(" ")
}
