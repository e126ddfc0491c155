//! Text reports from which a person can understand and repeat a test case.

use std::fmt::Write;

use iced_x86::{Formatter, GasFormatter};

use crate::compare::{Difference, GPR, bytes_high_first, flags};
use crate::generate::Case;

/// Returns the instruction in AT&T syntax.
pub fn disassembly(case: &Case) -> String {
    if case.instruction.is_invalid() {
        return "(bad)".into();
    }
    let mut text = String::new();
    GasFormatter::new().format(&case.instruction, &mut text);
    text
}

/// Returns the bytes of the instruction in hexadecimal, with spaces between them.
pub fn encoding(case: &Case) -> String {
    let list: Vec<_> = case.bytes.iter().map(|b| format!("{b:02x}")).collect();
    list.join(" ")
}

/// Returns the report of a case that differs: its id, instruction and bytes, then the expected and the found value of each difference.
pub fn mismatch(case: &Case, differences: &[Difference]) -> String {
    let mut t = String::new();
    let _ = writeln!(
        t,
        "MISMATCH {}  {}  {:?}",
        case.id,
        disassembly(case),
        case.instruction.code()
    );
    let _ = writeln!(t, "  bytes {} at {:#x}", encoding(case), case.state.rip);
    for d in differences {
        let _ = writeln!(
            t,
            "  {}\n    expected {}\n    got      {}",
            d.what, d.expected, d.got
        );
    }
    let _ = writeln!(t, "  repeat with: scripts/difftest --replay {}", case.id);
    t
}

/// Returns the machine state before the instruction: registers, and the first 64 bytes of each patch that the case puts into memory.
pub fn state(case: &Case) -> String {
    let s = &case.state;
    let mut t = String::new();
    for (k, (name, value)) in GPR.iter().zip(s.gpr).enumerate() {
        let _ = write!(
            t,
            "{}{name:>3} {value:016x}",
            if k % 4 == 0 { "\n  " } else { "  " }
        );
    }
    let _ = writeln!(
        t,
        "\n  rip {:#x}  rflags {}  mxcsr {:#x}  fcw {:#x}  fsw {:#x}  ftw {:#x}",
        s.rip,
        flags(s.rflags),
        s.fx.mxcsr(),
        s.fx.fcw(),
        s.fx.fsw(),
        s.fx.0[4]
    );
    for k in 0..8 {
        let at = 32 + 16 * k;
        let _ = writeln!(t, "  st{k} {}", bytes_high_first(&s.fx.0[at..at + 10]));
    }
    for (k, v) in s.vector.0.iter().enumerate() {
        let _ = writeln!(t, "  ymm{k:<2} {}", bytes_high_first(v));
    }
    for p in &case.patches {
        let _ = writeln!(
            t,
            "  memory {:#x}+{} {} (high first)",
            p.address,
            p.bytes.len(),
            bytes_high_first(&p.bytes[..p.bytes.len().min(64)])
        );
    }
    t
}
