//! (being written)

use crate::lower::Lowering;
use crate::op::Handler;

pub fn lower(_l: &mut Lowering<'_>) -> Option<Handler> {
    None
}
