//! General-purpose instructions.

mod arithmetic;
mod bit;
mod bmi;
pub mod condition;
mod exchange;
mod flags;
mod hint;
pub mod host;
mod mov;
mod multiply;
mod older;
pub mod operand;
mod shift;
pub mod stack;

use crate::lower::Lowering;
use crate::op::Handler;

/// Lowers general-purpose instructions; None for instructions of other groups.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    None.or_else(|| mov::lower(l))
        .or_else(|| arithmetic::lower(l))
        .or_else(|| condition::lower(l))
        .or_else(|| stack::lower(l))
        .or_else(|| shift::lower(l))
        .or_else(|| bit::lower(l))
        .or_else(|| multiply::lower(l))
        .or_else(|| exchange::lower(l))
        .or_else(|| flags::lower(l))
        .or_else(|| hint::lower(l))
        .or_else(|| bmi::lower(l))
        .or_else(|| older::lower(l))
}
