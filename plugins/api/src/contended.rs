//! Lines that vCPUs took from each other, with the instructions that used them.

use crate::{Access, Context, Privilege, Site};

/// A line that vCPUs took from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContendedLine {
    /// Guest-physical address of the line's first byte.
    pub physical: u64,
    /// Size of the line in bytes.
    pub size: u32,
    /// Uses of the line, in an order that does not depend on the host.
    pub uses: Vec<LineUse>,
}

impl ContendedLine {
    /// Adds the uses of the line at a later time.
    pub fn add(&mut self, later: &ContendedLine) {
        for of in &later.uses {
            let key = |u: &LineUse| {
                (
                    u.vcpu,
                    u.context,
                    u.privilege,
                    u.site,
                    u.access,
                    u.locked,
                    u.linear,
                )
            };
            match self.uses.iter_mut().find(|known| key(known) == key(of)) {
                Some(known) => {
                    known.touched |= of.touched;
                    known.taken += of.taken;
                    known.cycles += of.cycles;
                }
                None => self.uses.push(*of),
            }
        }
    }
}

/// What one instruction of one vCPU did with a contended line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineUse {
    /// Number of the vCPU within its node.
    pub vcpu: u16,
    /// Context of the references.
    pub context: Context,
    /// Privilege of the references.
    pub privilege: Privilege,
    /// The instruction.
    pub site: Site,
    /// Kind of the references.
    pub access: Access,
    /// True if the instruction is locked.
    pub locked: bool,
    /// Guest-linear address of the line's first byte in the context's address space.
    pub linear: u64,
    /// Bytes of the line that the references touched, one bit for each 1/64 of the line.
    pub touched: u64,
    /// Number of times that the line came from another vCPU.
    pub taken: u64,
    /// Cycles in which the vCPU waited for the line.
    pub cycles: u64,
}
