//! Operands of integer instructions. Lowering decides where an operand is, by the type parameters of the handler.

use iced_x86::OpKind;

use crate::cpu::{Cpu, Int};
use crate::lower::{Lowering, register_offset};
use crate::memory::Plain;
use crate::op::{Op, Trap};

/// Width of an integer operand: an unsigned integer type.
pub trait Width: Int + Plain {
    /// Sign-extends the value to 64 bits.
    fn sign_extend(self) -> u64;
    /// Value of all ones, zero-extended.
    const ONES: u64 = u64::MAX >> (64 - Self::BITS);
    /// The sign bit, zero-extended.
    const SIGN: u64 = 1 << (Self::BITS - 1);
}

macro_rules! width_of {
    ($($unsigned:ty => $signed:ty),*) => {$(
        impl Width for $unsigned {
            #[inline(always)]
            fn sign_extend(self) -> u64 {
                self as $signed as i64 as u64
            }
        }
    )*};
}
width_of!(u8 => i8, u16 => i16, u32 => i32, u64 => i64);

/// Operand that is only read.
pub trait Source {
    /// Returns the operand's value.
    fn get<T: Width>(cpu: &mut Cpu, op: &Op) -> Result<T, Trap>;
}

/// Operand that is written, or read and then written.
pub trait Destination {
    /// Location that [`Destination::load`] found, for [`Destination::store`].
    type Location: Copy;
    /// Reads the operand before a write. A fault is reported as that of a write.
    fn load<T: Width>(cpu: &mut Cpu, op: &Op) -> Result<(T, Self::Location), Trap>;
    /// Writes the operand at the location that [`Destination::load`] found.
    fn store<T: Width>(cpu: &mut Cpu, op: &Op, at: Self::Location, value: T) -> Result<(), Trap>;
    /// Writes the operand without reading it.
    fn set<T: Width>(cpu: &mut Cpu, op: &Op, value: T) -> Result<(), Trap>;
}

/// The register `op.dst`.
pub struct Dst;
/// The register `op.src`.
pub struct Src;
/// The register `op.src2`.
pub struct Src2;
/// The immediate `op.imm`.
pub struct Imm;
/// The memory operand.
pub struct Mem;

impl Source for Dst {
    #[inline(always)]
    fn get<T: Width>(cpu: &mut Cpu, op: &Op) -> Result<T, Trap> {
        Ok(cpu.reg(op.dst))
    }
}

impl Source for Src {
    #[inline(always)]
    fn get<T: Width>(cpu: &mut Cpu, op: &Op) -> Result<T, Trap> {
        Ok(cpu.reg(op.src))
    }
}

impl Source for Src2 {
    #[inline(always)]
    fn get<T: Width>(cpu: &mut Cpu, op: &Op) -> Result<T, Trap> {
        Ok(cpu.reg(op.src2))
    }
}

impl Source for Imm {
    #[inline(always)]
    fn get<T: Width>(_: &mut Cpu, op: &Op) -> Result<T, Trap> {
        Ok(T::from_u64(op.imm))
    }
}

impl Source for Mem {
    #[inline(always)]
    fn get<T: Width>(cpu: &mut Cpu, op: &Op) -> Result<T, Trap> {
        cpu.load(cpu.linear(op))
    }
}

impl Destination for Dst {
    type Location = ();
    #[inline(always)]
    fn load<T: Width>(cpu: &mut Cpu, op: &Op) -> Result<(T, ()), Trap> {
        Ok((cpu.reg(op.dst), ()))
    }
    #[inline(always)]
    fn store<T: Width>(cpu: &mut Cpu, op: &Op, (): (), value: T) -> Result<(), Trap> {
        cpu.set_reg(op.dst, value);
        Ok(())
    }
    #[inline(always)]
    fn set<T: Width>(cpu: &mut Cpu, op: &Op, value: T) -> Result<(), Trap> {
        cpu.set_reg(op.dst, value);
        Ok(())
    }
}

impl Destination for Mem {
    type Location = u64;
    #[inline(always)]
    fn load<T: Width>(cpu: &mut Cpu, op: &Op) -> Result<(T, u64), Trap> {
        let linear = cpu.linear(op);
        Ok((cpu.load_rmw(linear)?, linear))
    }
    #[inline(always)]
    fn store<T: Width>(cpu: &mut Cpu, _: &Op, at: u64, value: T) -> Result<(), Trap> {
        cpu.store(at, value)
    }
    #[inline(always)]
    fn set<T: Width>(cpu: &mut Cpu, op: &Op, value: T) -> Result<(), Trap> {
        cpu.store(cpu.linear(op), value)
    }
}

/// Kind of an operand: a register, memory, or an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandKind {
    /// General register, by its byte offset in [`Cpu::gpr`].
    Register(u8),
    /// The memory operand.
    Memory,
    /// An immediate operand.
    Immediate,
}

impl Lowering<'_> {
    /// Returns the kind of operand `n`; None for kinds that integer instructions do not have.
    pub fn operand_kind(&self, n: u32) -> Option<OperandKind> {
        if n >= self.instruction.op_count() {
            return None;
        }
        match self.instruction.op_kind(n) {
            OpKind::Register => {
                let r = self.instruction.op_register(n);
                r.is_gpr()
                    .then(|| OperandKind::Register(register_offset(r)))
            }
            OpKind::Memory => Some(OperandKind::Memory),
            OpKind::Immediate8
            | OpKind::Immediate8_2nd
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64 => Some(OperandKind::Immediate),
            _ => None,
        }
    }

    /// Returns the width of operand `n` in bytes: for an immediate, the width of the first operand; 0 where there is none.
    pub fn width(&self, n: u32) -> usize {
        match self.instruction.op_kind(n) {
            OpKind::Register => self.instruction.op_register(n).size(),
            OpKind::Memory => self.instruction.memory_size().size(),
            _ if n > 0 => self.width(0),
            _ => 0,
        }
    }

    /// Stores operand `n` as destination in the operation. Returns true for memory, false for a register, and None for all others.
    pub fn take_dst(&mut self, n: u32) -> Option<bool> {
        match self.operand_kind(n)? {
            OperandKind::Register(r) => {
                self.op.dst = r;
                Some(false)
            }
            OperandKind::Memory => Some(true),
            OperandKind::Immediate => None,
        }
    }

    /// Stores operand `n` as source in the operation, and returns its kind; None as for [`Self::operand_kind`].
    pub fn take_src(&mut self, n: u32) -> Option<OperandKind> {
        let shape = self.operand_kind(n)?;
        match shape {
            OperandKind::Register(r) => self.op.src = r,
            OperandKind::Memory => {}
            OperandKind::Immediate => self.op.imm = self.instruction.immediate(n),
        }
        Some(shape)
    }
}

/// Chooses the handler for a width of 1, 2, 4 or 8 bytes: `by_width!(bytes, T => handler::<T>)`. The result is None for other widths.
macro_rules! by_width {
    ($bytes:expr, $t:ident => $handler:expr) => {
        match $bytes {
            1 => {
                type $t = u8;
                Some(crate::op::thread($handler))
            }
            2 => {
                type $t = u16;
                Some(crate::op::thread($handler))
            }
            4 => {
                type $t = u32;
                Some(crate::op::thread($handler))
            }
            8 => {
                type $t = u64;
                Some(crate::op::thread($handler))
            }
            _ => None,
        }
    };
}

/// Chooses the handler for a width of 2, 4 or 8 bytes, as `by_width!` does.
macro_rules! by_wide {
    ($bytes:expr, $t:ident => $handler:expr) => {
        match $bytes {
            2 => {
                type $t = u16;
                Some(crate::op::thread($handler))
            }
            4 => {
                type $t = u32;
                Some(crate::op::thread($handler))
            }
            8 => {
                type $t = u64;
                Some(crate::op::thread($handler))
            }
            _ => None,
        }
    };
}

/// Chooses the handler for operand 0 in memory (true) or in a register: `by_destination!(memory, D => handler::<D>)`.
macro_rules! by_destination {
    ($memory:expr, $d:ident => $handler:expr) => {
        if $memory {
            type $d = crate::ops::integer::operand::Mem;
            $handler
        } else {
            type $d = crate::ops::integer::operand::Dst;
            $handler
        }
    };
}

/// Chooses the handler for a source in a register (`op.src`), in memory or in the instruction: `by_source!(kind, S => handler::<S>)`. `S`
/// is `Src`, `Mem` or `Imm`.
macro_rules! by_source {
    ($shape:expr, $s:ident => $handler:expr) => {
        match $shape {
            crate::ops::integer::operand::OperandKind::Register(_) => {
                type $s = crate::ops::integer::operand::Src;
                $handler
            }
            crate::ops::integer::operand::OperandKind::Memory => {
                type $s = crate::ops::integer::operand::Mem;
                $handler
            }
            crate::ops::integer::operand::OperandKind::Immediate => {
                type $s = crate::ops::integer::operand::Imm;
                $handler
            }
        }
    };
}

pub(crate) use {by_destination, by_source, by_wide, by_width};
