//! Decoded blocks and where they are found.

use crate::op::Op;

/// Straight-line code within one page.
pub struct Block {
    /// Operations.
    pub ops: Box<[Op]>,
}

/// All blocks of a vCPU.
#[derive(Default)]
pub struct BlockCache {}
