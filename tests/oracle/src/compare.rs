//! What must agree, and what the architecture leaves open.

use iced_x86::{Code, Mnemonic, OpKind, RflagsBits};
use nodescope_x86::{Exception, Vector};

use crate::generate::Case;
use crate::layout::WINDOW;
use crate::state::Outcome;

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Register, flag, memory or exception.
    pub what: String,
    /// On the host's CPU.
    pub expected: String,
    /// On the engine.
    pub got: String,
}

/// Names of the general registers.
pub const GPR: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// All differences between the native outcome and the engine's.
pub fn compare(
    case: &Case,
    native: &Outcome,
    engine: &Outcome,
    memory: [&[u8]; 2],
) -> Vec<Difference> {
    let mut found = Vec::new();
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
    if native.exception != engine.exception && !either_operand(case, native, engine) {
        differ(
            "exception",
            describe(native.exception),
            describe(engine.exception),
        );
    }
    let faulted = native.exception.is_some();
    let (n, e) = (&native.state, &engine.state);
    // A gather that faults may or may not have loaded elements above the faulting one.
    let partial = faulted && i.is_vsib();
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
    if n.fx.fcw() != e.fx.fcw() {
        differ("fcw", hex(n.fx.fcw()), hex(e.fx.fcw()));
    }
    if n.fx.fsw() != e.fx.fsw() {
        differ("fsw", hex(n.fx.fsw()), hex(e.fx.fsw()));
    }
    if n.fx.0[4] != e.fx.0[4] {
        differ("ftw", hex(n.fx.0[4]), hex(e.fx.0[4]));
    }
    if n.fx.mxcsr() != e.fx.mxcsr() {
        differ("mxcsr", hex(n.fx.mxcsr()), hex(e.fx.mxcsr()));
    }
    for k in 0..8 {
        let at = 32 + 16 * k;
        let (a, b) = (&n.fx.0[at..at + 10], &e.fx.0[at..at + 10]);
        if a != b {
            differ(&format!("st{k}"), bytes_high_first(a), bytes_high_first(b));
        }
    }
    let [a, b] = memory;
    if a != b {
        let open = open_memory(case);
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

/// CMPS reads two places; where both fault, which one does so first is the processor's own choice.
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

/// A repeated string instruction with 32-bit addresses: whether the upper halves of its registers are cleared where it
/// did nothing (a count of zero, a fault of the first element) is the processor's own choice.
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

/// Flags that the architecture leaves undefined after this instruction in this state.
fn undefined_flags(case: &Case) -> u64 {
    let i = &case.instruction;
    let mut bits = i.rflags_undefined();
    if i.is_invalid() {
        return 0;
    }
    // A rotation by more than one leaves OF undefined, also where the count is a multiple of the width (SDM vol. 2B, RCL).
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
    // A shift by a variable count: the decoder's table knows only the general case. With a count of zero nothing
    // changes; with one OF is defined (SDM vol. 2B, RCL and SAL).
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

/// Memory that the engine need not fill as this host does: x87 pointers and opcode (SDM vol. 1 §8.1.8), which the engine
/// does not keep, and the mask and reserved fields of FXSAVE.
fn open_memory(case: &Case) -> Vec<(u64, u64)> {
    let i = &case.instruction;
    let Some(at) = (0..i.op_count())
        .find(|&o| i.op_kind(o) == OpKind::Memory)
        .and_then(|o| {
            i.virtual_address(o, 0, |r, e, s| {
                Some(crate::generate::register(&case.state, r, e, s))
            })
        })
    else {
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

/// Flags by name.
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

/// Hexadecimal digits as a number is written.
pub fn bytes_high_first(bytes: &[u8]) -> String {
    bytes.iter().rev().map(|b| format!("{b:02x}")).collect()
}

fn bytes_in_order(bytes: &[u8]) -> String {
    let list: Vec<_> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    list.join(" ")
}
