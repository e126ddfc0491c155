//! Condition codes (SDM vol. 1, appendix B), and SETcc and CMOVcc.

use iced_x86::{ConditionCode, Mnemonic};
use nodescope_x86::bits::rflags::{CF, OF, PF, SF, ZF};

use super::operand::{Destination, Source, Width, by_destination, by_source};
use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op, thread};

/// Returns whether condition `CC` (its encoding in the opcode) holds.
#[inline(always)]
pub fn holds<const CC: u8>(flags: u64) -> bool {
    let less = (flags >> 7 ^ flags >> 11) & 1 != 0;
    let plain = match CC >> 1 {
        0 => flags & OF != 0,
        1 => flags & CF != 0,
        2 => flags & ZF != 0,
        3 => flags & (CF | ZF) != 0,
        4 => flags & SF != 0,
        5 => flags & PF != 0,
        6 => less,
        _ => less || flags & ZF != 0,
    };
    plain != (CC & 1 != 0)
}

/// Returns the condition's encoding in the opcode; None where there is no condition.
pub fn encoding(code: ConditionCode) -> Option<u8> {
    use ConditionCode::*;
    Some(match code {
        o => 0,
        no => 1,
        b => 2,
        ae => 3,
        e => 4,
        ne => 5,
        be => 6,
        a => 7,
        s => 8,
        ns => 9,
        p => 10,
        np => 11,
        l => 12,
        ge => 13,
        le => 14,
        g => 15,
        None => return Option::None,
    })
}

/// Chooses the handler for a condition's encoding: `by_condition!(encoding, C => handler::<C>)`. The result is None for other numbers.
macro_rules! by_condition {
    ($cc:expr, $c:ident => $handler:expr) => {
        by_condition!(@ $cc, $c, $handler, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $cc:expr, $c:ident, $handler:expr, $($n:literal)*) => {
        match $cc {
            $($n => {
                const $c: u8 = $n;
                Some($handler)
            })*
            _ => None,
        }
    };
}
pub(crate) use by_condition;

fn set<const CC: u8, D: Destination>(cpu: &mut Cpu, op: &Op) -> Done {
    D::set(cpu, op, u8::from(holds::<CC>(cpu.rflags)))?;
    Ok(Flow::Next)
}

/// Executes CMOVcc. Even if the condition does not hold, the source is read, and the upper half of a 32-bit destination is cleared.
fn cmov<const CC: u8, S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let source: T = S::get(cpu, op)?;
    let old: T = cpu.reg(op.dst);
    let value = if holds::<CC>(cpu.rflags) { source } else { old };
    cpu.set_reg(op.dst, value);
    Ok(Flow::Next)
}

/// Lowers SETcc and CMOVcc.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let cc = encoding(l.instruction.condition_code())?;
    match l.instruction.mnemonic() {
        Seta | Setae | Setb | Setbe | Sete | Setg | Setge | Setl | Setle | Setne | Setno
        | Setnp | Setns | Seto | Setp | Sets => {
            let memory = l.take_dst(0)?;
            by_destination!(memory, D => by_condition!(cc, C => thread(set::<C, D>)))
        }
        Cmova | Cmovae | Cmovb | Cmovbe | Cmove | Cmovg | Cmovge | Cmovl | Cmovle | Cmovne
        | Cmovno | Cmovnp | Cmovns | Cmovo | Cmovp | Cmovs => {
            l.take_dst(0)?;
            let shape = l.take_src(1)?;
            let width = l.width(0);
            by_source!(shape, S => by_condition!(cc, C => match width {
                2 => thread(cmov::<C, S, u16>),
                4 => thread(cmov::<C, S, u32>),
                _ => thread(cmov::<C, S, u64>),
            }))
        }
        _ => None,
    }
}
