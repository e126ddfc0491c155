//! Differences between AMD's and Intel's CPUs, as rules.
//!
//! The engine does on every host what an Intel CPU does. Undefined flags and approximations are the exception: the architecture leaves them
//! to the processor, and they are not compared. A host of AMD (or of Hygon, whose design is AMD's) judges the engine all the same. Each
//! [`Rule`] turns the engine's outcome into that of an AMD CPU. The turned outcome must agree with the host's in every register, flag and
//! byte that is compared anywhere. A rule checks the engine's outcome first and does not apply where that outcome is not Intel's. On any
//! other host there are no rules. Differences that a rule explains are counted and reported.
//!
//! Two things stay unjudged in a case that a rule explains. The first is which flags the engine raises where the host reported only the
//! operand's fault ([`Rule::StoreFault`], [`Rule::ConversionFault`]). The second is what the host loads along with an MXCSR that the engine
//! refuses ([`Rule::MxcsrLoad`]). Other cases compare both: operands that do not fault, and values of MXCSR that both accept.
//!
//! `SDM` is Intel's manual, `APM` AMD's (24592, 24593 and 24594 for volumes 1 to 3).

use std::sync::OnceLock;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use nodescope_x86::{Exception, Vector};

use crate::compare::{compare, equal, memory_operand};
use crate::generate::{Case, register};
use crate::layout::{CODE, CODE_LEN, PAGE, WINDOW, WINDOW_LEN, WRITABLE_LEN};
use crate::state::{Outcome, State};

/// CPU vendors whose rules apply to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// Intel, and any vendor without rules of its own. No rule applies.
    Intel,
    /// AMD, and Hygon.
    Amd,
}

/// Returns the host's vendor as CPUID leaf 0 names it.
pub fn name() -> String {
    let leaf = std::arch::x86_64::__cpuid(0);
    let bytes: Vec<_> = [leaf.ebx, leaf.edx, leaf.ecx]
        .iter()
        .flat_map(|r| r.to_le_bytes())
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the vendor whose rules hold on this host.
pub fn host() -> Vendor {
    static HOST: OnceLock<Vendor> = OnceLock::new();
    *HOST.get_or_init(|| match name().as_str() {
        "AuthenticAMD" | "HygonGenuine" => Vendor::Amd,
        _ => Vendor::Intel,
    })
}

/// Difference between an AMD CPU and an Intel CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A near branch with an operand-size prefix and without REX.W. On AMD it is a branch of 16 bits, with a shorter displacement and a
    /// truncated target (APM vol. 1 §3.7.9, table 3-9); Intel ignores the prefix (SDM vol. 1 §6.3.7). An AMD host would continue in the
    /// midst of the instruction, so the host does not run it.
    NearBranch,
    /// MXCSR_MASK, which FXSAVE and XSAVE store, has bit 17 set on AMD: MXCSR has a misaligned exception mask there (APM
    /// vol. 1 §4.2.2), which is reserved on Intel (SDM vol. 1 §10.2.3 and §11.6.6).
    MxcsrMask,
    /// LDMXCSR, FXRSTOR or XRSTOR of an MXCSR with bit 17 set: AMD loads the value, Intel raises `#GP` (the sections of
    /// [`Rule::MxcsrMask`]).
    MxcsrLoad,
    /// x87 stores that would raise an unmasked exception as well as a fault of their operand. AMD reports the fault, Intel
    /// leaves the exception pending and the memory unchanged. Both are in the same class of priority, within which the order
    /// is the processor's choice (SDM vol. 3A §6.9, table 6-2). Observed on Zen 4.
    StoreFault,
    /// VCVTPS2PH whose operand faults and whose conversion raises flags: AMD reports the operand's fault with MXCSR as it was. Intel sets
    /// flags and raises an unmasked exception first (SDM vol. 3A §6.9, table 6-2). Observed on Zen 4.
    ConversionFault,
    /// XSAVE or XRSTOR with a misaligned operand at a non-canonical address in the stack segment: `#GP` for the alignment on
    /// AMD, `#SS` on Intel, of the same class (SDM vol. 3A §6.9, table 6-2). Observed on Zen 4.
    AlignmentFault,
    /// CMPS with faults of both operands: AMD reports the first operand's fault, Intel the second's. The order is the processor's choice
    /// (SDM vol. 3A §6.9, table 6-2). Where both are page faults, either is accepted on any host. Observed on Zen 4.
    ComparisonOrder,
    /// A repeated CMPS or SCAS that faults after some elements: Intel restores the flags from before the instruction (SDM
    /// vol. 2B, REP), AMD leaves those of the last comparison. Observed on Zen 4; the APM says nothing.
    ComparisonFault,
    /// LOOPE and LOOPNE with a repeat prefix, whose use there is reserved (SDM vol. 2A §2.1.1; APM vol. 3, "Repeat Prefixes"). On AMD,
    /// prefix F3 makes LOOPE of either instruction, and F2 makes LOOPNE. Observed on Zen 4; Intel ignores the prefix.
    LoopPrefix,
    /// F3 90 with REX.B: AMD exchanges rAX with R8, as 90 with REX.B does without F3; Intel pauses. Observed on Zen 4; the
    /// manuals describe only F3 90 (SDM vol. 2B and APM vol. 3, PAUSE).
    Pause,
    /// UD0 and UD1 whose ModRM byte cannot be fetched: AMD raises `#UD` on the opcode alone. Some processors do so (SDM vol. 2B, UD); for
    /// UD1 it is observed on Zen 4.
    Undefined,
    /// MOVSXD with an operand-size prefix and without REX.W, a discouraged form: AMD reads 32 bits, Intel 16 (SDM vol. 2B, MOVSXD r16,
    /// r/m16). The difference shows where the upper 16 bits fault. Observed on Zen 4; the APM has only the 64-bit form.
    MovsxdWord,
    /// PCMPESTRI of registers with LOCK and REX.W: Zen 1 executes it, where other forms and other processors raise `#UD` (SDM vol. 2A, LOCK;
    /// APM vol. 3, "Lock Prefix"). The engine has no outcome to compare, so the host does not run it.
    LockedComparison,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Self; 13] = [
        Self::NearBranch,
        Self::MxcsrMask,
        Self::MxcsrLoad,
        Self::StoreFault,
        Self::ConversionFault,
        Self::AlignmentFault,
        Self::ComparisonOrder,
        Self::ComparisonFault,
        Self::LoopPrefix,
        Self::Pause,
        Self::Undefined,
        Self::MovsxdWord,
        Self::LockedComparison,
    ];

    /// Returns a description for reports.
    pub fn describe(self) -> &'static str {
        match self {
            Self::NearBranch => "not run here: near branch, of 16 bits with this prefix",
            Self::MxcsrMask => "MXCSR_MASK stored with bit 17",
            Self::MxcsrLoad => "MXCSR loaded with bit 17",
            Self::StoreFault => "x87 store: fault before unmasked exception",
            Self::ConversionFault => "VCVTPS2PH: fault before its exceptions",
            Self::AlignmentFault => "XSAVE or XRSTOR: #GP of alignment before #SS",
            Self::ComparisonOrder => "CMPS: first operand's fault before the second's",
            Self::ComparisonFault => "repeated CMPS or SCAS: flags at a fault",
            Self::LoopPrefix => "LOOPE or LOOPNE by its repeat prefix",
            Self::Pause => "PAUSE with REX.B exchanges",
            Self::Undefined => "UD0 or UD1 without its ModRM byte",
            Self::MovsxdWord => "MOVSXD of 16 bits reads 32",
            Self::LockedComparison => "not run here: PCMPESTRI with LOCK",
        }
    }

    /// Returns what an AMD CPU does where the engine did something else: an outcome and memory. `None` where the rule does not apply.
    fn answer(self, case: &Case, seen: &Seen<'_>) -> Option<Answer> {
        match self {
            Self::NearBranch | Self::LockedComparison => None,
            Self::MxcsrMask => mxcsr_mask(case, seen),
            Self::MxcsrLoad => mxcsr_load(case, seen),
            Self::StoreFault => store_fault(case, seen),
            Self::ConversionFault => conversion_fault(case, seen),
            Self::AlignmentFault => alignment_fault(case, seen),
            Self::ComparisonOrder => comparison_order(case, seen),
            Self::ComparisonFault => comparison_fault(case, seen),
            Self::LoopPrefix => loop_prefix(case, seen),
            Self::Pause => pause(case, seen),
            Self::Undefined => undefined(case, seen),
            Self::MovsxdWord => movsxd_word(case, seen),
        }
    }
}

/// Outcomes of the host (`native`) and of the engine, with the window's bytes afterwards in the order of [`compare`]: the host's, the
/// engine's.
struct Seen<'a> {
    native: &'a Outcome,
    engine: &'a Outcome,
    memory: [&'a [u8]; 2],
}

struct Answer {
    outcome: Outcome,
    /// The window's bytes after the instruction; `None`: they are those of the engine.
    memory: Option<Vec<u8>>,
}

impl From<Outcome> for Answer {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            memory: None,
        }
    }
}

/// Returns the rule for which a host of this vendor must not run a case, because that vendor's CPUs decode another instruction.
pub fn forbids(vendor: Vendor, case: &Case) -> Option<Rule> {
    use iced_x86::FlowControl::*;
    if vendor == Vendor::Intel {
        return None;
    }
    if case.instruction.is_invalid() && is_locked_comparison(&case.bytes) {
        return Some(Rule::LockedComparison);
    }
    if !matches!(
        case.instruction.flow_control(),
        UnconditionalBranch | ConditionalBranch | IndirectBranch | Call | IndirectCall | Return
    ) {
        return None;
    }
    let there = Decoder::with_ip(64, &case.bytes, case.state.rip, DecoderOptions::AMD).decode();
    (there.code() != case.instruction.code()).then_some(Rule::NearBranch)
}

/// Returns whether bytes are PCMPESTRI of two registers with LOCK and REX.W.
fn is_locked_comparison(bytes: &[u8]) -> bool {
    let prefixes = [0xf0, 0x66, 0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x67];
    let count = (bytes.iter())
        .take_while(|byte| prefixes.contains(byte))
        .count();
    let (before, opcode) = bytes.split_at(count);
    before.contains(&0xf0)
        && before.contains(&0x66)
        && matches!(opcode, [0x48..=0x4f, 0x0f, 0x3a, 0x61, 0xc0..=0xff, ..])
}

/// Returns the rule by which a host of this vendor rightly differs from the engine, which does what Intel CPUs do. `memory` is the window's
/// bytes after the host's run and after the engine's.
pub fn explains(
    vendor: Vendor,
    case: &Case,
    native: &Outcome,
    engine: &Outcome,
    memory: [&[u8]; 2],
) -> Option<Rule> {
    if vendor == Vendor::Intel {
        return None;
    }
    let seen = Seen {
        native,
        engine,
        memory,
    };
    Rule::ALL.into_iter().find(|rule| {
        rule.answer(case, &seen).is_some_and(|answer| {
            let after = answer.memory.as_deref().unwrap_or(memory[1]);
            compare(case, native, &answer.outcome, [memory[0], after]).is_empty()
        })
    })
}

/// Returns an outcome that raises `exception` and changes nothing of the case's state.
fn before(case: &Case, exception: Option<Exception>) -> Outcome {
    Outcome {
        exception,
        state: case.state.clone(),
    }
}

/// Returns an outcome that changes only RIP, which points behind the instruction.
fn behind(case: &Case) -> Outcome {
    let mut outcome = before(case, None);
    outcome.state.rip = case.instruction.next_ip();
    outcome
}

/// Returns `len` bytes at a guest address, out of the window's contents; `None` where they are not all in the window.
fn read(memory: &[u8], address: u64, len: usize) -> Option<&[u8]> {
    memory
        .get(address.wrapping_sub(WINDOW).try_into().ok()?..)?
        .get(..len)
}

fn word(memory: &[u8], address: u64) -> Option<u32> {
    Some(u32::from_le_bytes(
        read(memory, address, 4)?.try_into().ok()?,
    ))
}

fn canonical(address: u64) -> bool {
    (address as i64) << 16 >> 16 == address as i64
}

/// Returns whether the operand is relative to SS; prefixes other than FS and GS do not count in 64-bit mode (SDM vol. 1 §3.4.2.1).
fn in_stack_segment(i: &Instruction) -> bool {
    use Register::*;
    matches!(i.memory_base(), RSP | RBP | ESP | EBP) && !matches!(i.memory_segment(), FS | GS)
}

/// Returns whether an access to `len` bytes from `at` on can raise this exception, with its error code and address.
fn faults(case: &Case, at: u64, len: u64, write: bool, exception: Exception) -> bool {
    let last = at.wrapping_add(len - 1);
    let stack = in_stack_segment(&case.instruction);
    match exception.vector {
        Vector::PageFault => {
            let offset = exception.address.wrapping_sub(WINDOW);
            let page = offset / PAGE * PAGE;
            let read_only = (WRITABLE_LEN as u64..WINDOW_LEN as u64).contains(&page);
            let error = 4 | u32::from(write) << 1 | u32::from(read_only);
            let denied = if write {
                page >= WRITABLE_LEN as u64
            } else {
                page >= WINDOW_LEN as u64
            };
            denied && exception.error == error && exception.address.wrapping_sub(at) < len
        }
        Vector::GeneralProtection | Vector::StackFault => {
            stack == (exception.vector == Vector::StackFault)
                && exception.error == 0
                && !(canonical(at) && canonical(last))
        }
        _ => false,
    }
}

/// Bits of MXCSR that Intel defines, 0 to 15. `MISALIGNED` is AMD's misaligned exception mask, bit 17.
const MXCSR: u32 = 0xffff;
const MISALIGNED: u32 = 1 << 17;

fn mxcsr_mask(case: &Case, seen: &Seen<'_>) -> Option<Answer> {
    use Mnemonic::*;
    let saves = matches!(
        case.instruction.mnemonic(),
        Fxsave | Fxsave64 | Xsave | Xsave64
    );
    let at = memory_operand(case)?.wrapping_add(28);
    if !saves || seen.engine.exception.is_some() || word(seen.memory[1], at)? != MXCSR {
        return None;
    }
    let mut memory = seen.memory[1].to_vec();
    let offset = (at - WINDOW) as usize;
    memory[offset..offset + 4].copy_from_slice(&(MXCSR | MISALIGNED).to_le_bytes());
    Some(Answer {
        outcome: seen.engine.clone(),
        memory: Some(memory),
    })
}

fn mxcsr_load(case: &Case, seen: &Seen<'_>) -> Option<Answer> {
    use Mnemonic::*;
    let at = memory_operand(case)?;
    let (at, whole) = match case.instruction.mnemonic() {
        Ldmxcsr | Vldmxcsr => (at, false),
        Fxrstor | Fxrstor64 | Xrstor | Xrstor64 => (at.wrapping_add(24), true),
        _ => return None,
    };
    let value = word(seen.memory[1], at)?;
    let mut intel = before(case, Some(Exception::gp(0)));
    let loads_x87 =
        matches!(case.instruction.mnemonic(), Xrstor | Xrstor64) && case.state.gpr[0] & 1 != 0;
    if loads_x87 {
        // The engine's XRSTOR has loaded the x87 component before it refuses MXCSR; a fault may find part of the state loaded (SDM vol. 1
        // §13.8). The host loads the same component.
        let (to, from) = (&mut intel.state.fx.0, &seen.native.state.fx.0);
        to[..24].copy_from_slice(&from[..24]);
        to[32..160].copy_from_slice(&from[32..160]);
    }
    if value & !MXCSR != MISALIGNED
        || !equal(seen.engine, &intel)
        || seen.native.exception.is_some()
    {
        return None;
    }
    // The host restores all components; the engine has restored only the x87 part above. The others are taken from the host, unjudged.
    let mut outcome = behind(case);
    if whole {
        let rip = outcome.state.rip;
        outcome.state = seen.native.state.clone();
        outcome.state.rip = rip;
        outcome.state.gpr = case.state.gpr;
        outcome.state.rflags = case.state.rflags;
    }
    outcome.state.fx.set_mxcsr(value);
    Some(outcome.into())
}

fn store_fault(case: &Case, seen: &Seen<'_>) -> Option<Answer> {
    use Mnemonic::*;
    /// Exceptions for which nothing is stored: invalid operation, overflow and underflow. `SUMMARY` is error summary and busy. `ALL` adds
    /// what else an exception may change: the other exceptions, stack fault and C1.
    const PREVENTS: u16 = 0x19;
    const SUMMARY: u16 = 0x8080;
    const ALL: u16 = SUMMARY | 0x27f;
    let i = &case.instruction;
    if !matches!(i.mnemonic(), Fst | Fstp | Fist | Fistp | Fisttp | Fbstp) {
        return None;
    }
    let at = memory_operand(case)?;
    let exception = seen.native.exception?;
    let pending = &seen.engine.state.fx;
    let mut intel = behind(case);
    let flags = case.state.fx.fsw() & !ALL | pending.fsw() & ALL;
    intel.state.fx.0[2..4].copy_from_slice(&flags.to_le_bytes());
    let raised = pending.fsw() & !case.state.fx.fcw() & PREVENTS != 0
        && pending.fsw() & SUMMARY == SUMMARY
        && case.state.fx.fsw() & !pending.fsw() & 0x7f == 0;
    let applies = raised
        && equal(seen.engine, &intel)
        && faults(case, at, i.memory_size().size() as u64, true, exception);
    applies.then(|| before(case, Some(exception)).into())
}

fn conversion_fault(case: &Case, seen: &Seen<'_>) -> Option<Answer> {
    const FLAGS: u32 = 0x3f;
    let i = &case.instruction;
    if i.mnemonic() != Mnemonic::Vcvtps2ph {
        return None;
    }
    let at = memory_operand(case)?;
    let exception = seen.native.exception?;
    let (old, new) = (case.state.fx.mxcsr(), seen.engine.state.fx.mxcsr());
    let unmasked = |flags: u32| flags & !(old >> 7) & FLAGS != 0;
    let mut intel = before(case, seen.engine.exception);
    intel.state.fx.set_mxcsr(old | new & FLAGS);
    let applies = equal(seen.engine, &intel)
        && match seen.engine.exception? {
            e if e.vector == Vector::Simd => unmasked(new),
            e => e == exception && !unmasked(new & !old),
        }
        && faults(case, at, i.memory_size().size() as u64, true, exception);
    applies.then(|| before(case, Some(exception)).into())
}

fn alignment_fault(case: &Case, seen: &Seen<'_>) -> Option<Answer> {
    use Mnemonic::*;
    let i = &case.instruction;
    let at = memory_operand(case)?;
    let intel = before(case, Some(Exception::with_error(Vector::StackFault, 0)));
    let applies = matches!(i.mnemonic(), Xsave | Xsave64 | Xrstor | Xrstor64)
        && in_stack_segment(i)
        && at % 64 != 0
        && !canonical(at)
        && equal(seen.engine, &intel);
    applies.then(|| before(case, Some(Exception::gp(0))).into())
}

/// Returns the size of an element of CMPS or SCAS in bytes; `None` for other instructions.
fn element(i: &Instruction) -> Option<u64> {
    use Mnemonic::*;
    Some(match i.mnemonic() {
        Cmpsb | Scasb => 1,
        Cmpsw | Scasw => 2,
        Cmpsd | Scasd => 4,
        Cmpsq | Scasq => 8,
        _ => return None,
    })
}

fn operand_address(i: &Instruction, state: &State, operand: u32) -> Option<u64> {
    i.virtual_address(operand, 0, |r, element, len| {
        Some(register(state, r, element, len))
    })
}

fn comparison_order(case: &Case, seen: &Seen<'_>) -> Option<Answer> {
    let i = &case.instruction;
    let size = element(i)?;
    if i.op0_kind() == OpKind::Register {
        return None;
    }
    let [first, second] = [0, 1].map(|operand| operand_address(i, &seen.engine.state, operand));
    let (engine, native) = (seen.engine.exception?, seen.native.exception?);
    let applies =
        faults(case, second?, size, false, engine) && faults(case, first?, size, false, native);
    let mut outcome = seen.engine.clone();
    outcome.exception = Some(native);
    applies.then(|| outcome.into())
}

fn comparison_fault(case: &Case, seen: &Seen<'_>) -> Option<Answer> {
    let i = &case.instruction;
    let size = element(i)?;
    let (e, count) = (&seen.engine.state, 1);
    if !(i.has_rep_prefix() || i.has_repne_prefix())
        || seen.engine.exception.is_none()
        || e.rflags != case.state.rflags
        || e.gpr[count] == case.state.gpr[count]
    {
        return None;
    }
    let step = if e.rflags & 1 << 10 != 0 {
        size.wrapping_neg()
    } else {
        size
    };
    // The operands of the last comparison lie one element before the addresses in the registers.
    let value = |operand: u32| {
        let kind = i.op_kind(operand);
        if kind == OpKind::Register {
            return Some(register(e, i.op_register(operand), 0, 0));
        }
        let address = operand_address(i, e, operand)?;
        let bytes = read(seen.memory[1], address.wrapping_sub(step), size as usize)?;
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    };
    let mut outcome = seen.engine.clone();
    outcome.state.rflags = e.rflags & !STATUS | of_subtraction(value(0)?, value(1)?, 8 * size);
    Some(outcome.into())
}

/// Status flags: CF, PF, AF, ZF, SF and OF.
const STATUS: u64 = 0x8d5;

/// Returns the status flags of `a - b`, for operands of `bits` bits (SDM vol. 1 §3.4.3.1).
fn of_subtraction(a: u64, b: u64, bits: u64) -> u64 {
    let low = u64::MAX >> (64 - bits);
    let top = 1 << (bits - 1);
    let r = a.wrapping_sub(b) & low;
    let overflow = (a ^ b) & (a ^ r) & top != 0;
    u64::from(a < b)
        | u64::from((r as u8).count_ones().is_multiple_of(2)) << 2
        | (a ^ b ^ r) & 0x10
        | u64::from(r == 0) << 6
        | u64::from(r & top != 0) << 7
        | u64::from(overflow) << 11
}

fn loop_prefix(case: &Case, seen: &Seen<'_>) -> Option<Answer> {
    let i = &case.instruction;
    let equal_wanted = match i.mnemonic() {
        Mnemonic::Loope => true,
        Mnemonic::Loopne => false,
        _ => return None,
    };
    // The last two bytes are the opcode and the displacement.
    let prefixes = &case.bytes[..case.bytes.len() - 2];
    let by_prefix = *prefixes.iter().rfind(|&&b| matches!(b, 0xf2 | 0xf3))? == 0xf3;
    let left = seen.engine.state.gpr[1]
        & if i.code().op_code().address_size() == 32 {
            u32::MAX.into()
        } else {
            u64::MAX
        };
    let zero = case.state.rflags & 1 << 6 != 0;
    let to = |wanted: bool| {
        if left != 0 && zero == wanted {
            i.near_branch_target()
        } else {
            i.next_ip()
        }
    };
    let mut outcome = seen.engine.clone();
    outcome.state.rip = to(by_prefix);
    (seen.engine.state.rip == to(equal_wanted)).then(|| outcome.into())
}

fn pause(case: &Case, seen: &Seen<'_>) -> Option<Answer> {
    const RAX: usize = 0;
    const R8: usize = 8;
    let rex = *case.bytes.iter().rev().nth(1)?;
    let applies = case.instruction.code() == Code::Pause
        && rex & 0xf1 == 0x41
        && equal(seen.engine, &behind(case));
    if !applies {
        return None;
    }
    let mut outcome = seen.engine.clone();
    let gpr = &mut outcome.state.gpr;
    gpr.swap(RAX, R8);
    if rex & 8 == 0 {
        if case.bytes.contains(&0x66) {
            for k in [RAX, R8] {
                gpr[k] = case.state.gpr[k] & !0xffff | gpr[k] & 0xffff;
            }
        } else {
            gpr[RAX] &= 0xffff_ffff;
            gpr[R8] &= 0xffff_ffff;
        }
    }
    Some(outcome.into())
}

fn undefined(case: &Case, seen: &Seen<'_>) -> Option<Answer> {
    let end = CODE + CODE_LEN as u64;
    // No prefix has the value 0x0f, so the first such byte is the opcode's escape.
    let escape = case.bytes.iter().position(|&b| b == 0x0f)? as u64;
    let applies = matches!(case.instruction.mnemonic(), Mnemonic::Ud0 | Mnemonic::Ud1)
        && case.state.rip + escape + 2 <= end
        && equal(
            seen.engine,
            &before(case, Some(Exception::page_fault(end, 0x14))),
        );
    applies.then(|| before(case, Some(Exception::ud())).into())
}

fn movsxd_word(case: &Case, seen: &Seen<'_>) -> Option<Answer> {
    let i = &case.instruction;
    if i.code() != Code::Movsxd_r16_rm16 {
        return None;
    }
    let at = memory_operand(case)?;
    let value = read(seen.memory[1], at, 2)?;
    let exception = seen.native.exception?;
    let mut intel = behind(case);
    let to = &mut intel.state.gpr[i.op0_register().full_register().number()];
    *to = *to & !0xffff | u64::from(u16::from_le_bytes(value.try_into().ok()?));
    let applies =
        equal(seen.engine, &intel) && faults(case, at.wrapping_add(2), 2, false, exception);
    applies.then(|| before(case, Some(exception)).into())
}
