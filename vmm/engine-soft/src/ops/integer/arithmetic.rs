//! Addition, subtraction, logic and comparison.

use iced_x86::Mnemonic;
use nodescope_x86::bits::rflags::{CF, OF};

use super::host::{Adc, Add, And, Binary, Dec, Inc, Neg, Or, Sbb, Sub, Unary, Xor};
use super::operand::{
    Destination, Dst, Imm, Mem, OperandKind, Source, Src, Width, by_destination, by_source,
    by_width,
};
use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op};

fn binary<O: Binary, D: Destination, S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let b: T = S::get(cpu, op)?;
    let (a, at) = D::load(cpu, op)?;
    let (value, flags) = O::apply(a, b, cpu.rflags);
    D::store(cpu, op, at, value)?;
    cpu.set_status_flags(flags);
    Ok(Flow::Next)
}

/// Executes CMP and TEST: flags only.
fn compare<O: Binary, A: Source, B: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let a: T = A::get(cpu, op)?;
    let b: T = B::get(cpu, op)?;
    let (_, flags) = O::apply(a, b, cpu.rflags);
    cpu.set_status_flags(flags);
    Ok(Flow::Next)
}

fn unary<O: Unary, D: Destination, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let (a, at) = D::load::<T>(cpu, op)?;
    let (value, flags) = O::apply(a, cpu.rflags);
    D::store(cpu, op, at, value)?;
    cpu.set_status_flags(flags);
    Ok(Flow::Next)
}

fn not<D: Destination, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let (a, at) = D::load::<T>(cpu, op)?;
    D::store(cpu, op, at, T::from_u64(!a.to_u64()))?;
    Ok(Flow::Next)
}

/// Executes ADCX (`FLAG` = CF) and ADOX (OF): add with carry in and out of one flag, the others kept.
fn add_chain<const FLAG: u64, S: Source, T: Width>(cpu: &mut Cpu, op: &Op) -> Done {
    let b: T = S::get(cpu, op)?;
    let a: T = cpu.reg(op.dst);
    let carry = u128::from(cpu.rflags & FLAG != 0);
    let sum = u128::from(a.to_u64()) + u128::from(b.to_u64()) + carry;
    cpu.set_reg(op.dst, T::from_u64(sum as u64));
    let out = if sum >> T::BITS != 0 { FLAG } else { 0 };
    cpu.rflags = cpu.rflags & !FLAG | out;
    Ok(Flow::Next)
}

fn lower_binary<O: Binary>(l: &mut Lowering<'_>) -> Option<Handler> {
    let width = l.width(0);
    let memory = l.take_dst(0)?;
    match (memory, l.take_src(1)?) {
        (false, OperandKind::Register(_)) => by_width!(width, T => binary::<O, Dst, Src, T>),
        (false, OperandKind::Immediate) => by_width!(width, T => binary::<O, Dst, Imm, T>),
        (false, OperandKind::Memory) => by_width!(width, T => binary::<O, Dst, Mem, T>),
        (true, OperandKind::Register(_)) => by_width!(width, T => binary::<O, Mem, Src, T>),
        (true, OperandKind::Immediate) => by_width!(width, T => binary::<O, Mem, Imm, T>),
        (true, OperandKind::Memory) => None,
    }
}

fn lower_compare<O: Binary>(l: &mut Lowering<'_>) -> Option<Handler> {
    let width = l.width(0);
    let memory = l.take_dst(0)?;
    match (memory, l.take_src(1)?) {
        (false, OperandKind::Register(_)) => by_width!(width, T => compare::<O, Dst, Src, T>),
        (false, OperandKind::Immediate) => by_width!(width, T => compare::<O, Dst, Imm, T>),
        (false, OperandKind::Memory) => by_width!(width, T => compare::<O, Dst, Mem, T>),
        (true, OperandKind::Register(_)) => by_width!(width, T => compare::<O, Mem, Src, T>),
        (true, OperandKind::Immediate) => by_width!(width, T => compare::<O, Mem, Imm, T>),
        (true, OperandKind::Memory) => None,
    }
}

fn lower_unary<O: Unary>(l: &mut Lowering<'_>) -> Option<Handler> {
    let width = l.width(0);
    let memory = l.take_dst(0)?;
    by_destination!(memory, D => by_width!(width, T => unary::<O, D, T>))
}

fn lower_chain<const FLAG: u64>(l: &mut Lowering<'_>) -> Option<Handler> {
    l.take_dst(0)?;
    let shape = l.take_src(1)?;
    let wide = l.width(0) == 8;
    by_source!(shape, S => Some(if wide {
        add_chain::<FLAG, S, u64>
    } else {
        add_chain::<FLAG, S, u32>
    }))
}

/// Lowers the instructions of this file.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    match l.instruction.mnemonic() {
        Mnemonic::Add => lower_binary::<Add>(l),
        Mnemonic::Adc => lower_binary::<Adc>(l),
        Mnemonic::Sub => lower_binary::<Sub>(l),
        Mnemonic::Sbb => lower_binary::<Sbb>(l),
        Mnemonic::And => lower_binary::<And>(l),
        Mnemonic::Or => lower_binary::<Or>(l),
        Mnemonic::Xor => lower_binary::<Xor>(l),
        Mnemonic::Cmp => lower_compare::<Sub>(l),
        Mnemonic::Test => lower_compare::<And>(l),
        Mnemonic::Inc => lower_unary::<Inc>(l),
        Mnemonic::Dec => lower_unary::<Dec>(l),
        Mnemonic::Neg => lower_unary::<Neg>(l),
        Mnemonic::Not => {
            let width = l.width(0);
            let memory = l.take_dst(0)?;
            by_destination!(memory, D => by_width!(width, T => not::<D, T>))
        }
        Mnemonic::Adcx => lower_chain::<CF>(l),
        Mnemonic::Adox => lower_chain::<OF>(l),
        _ => None,
    }
}
