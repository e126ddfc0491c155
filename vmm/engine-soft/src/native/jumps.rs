//! Where the code for an instruction pointer is: what branches look in that are not linked, those across pages and indirect ones.
//!
//! Two tables for each privilege. Code looks in the near one in line. What that lacks is found in the far one, and brought into the
//! near one. Where a turn went on, which no branch has looked for, is in the far one alone.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

use iced_x86::{Code, Register};

use super::CodeAddress;
use super::assembler::{Assembler, cc, field_of_cpu, indexed_field};
use super::runtime::field;
use crate::memory::is_canonical;

use Register::{EAX, ECX, RAX, RCX};

/// Entries of a near table: a kernel and its processes' libraries jump to some thousands of places.
pub const NEAR: usize = 1 << NEAR_SHIFT;
/// log2 of the same.
pub const NEAR_SHIFT: u32 = 13;
/// Entries of a far table.
const FAR: usize = 1 << FAR_SHIFT;
const FAR_SHIFT: u32 = 15;
/// Bits of an instruction pointer that differ between canonical addresses; the others are all like the highest of them.
const CANONICAL: u32 = 48;
/// log2 of the size of an entry.
const ENTRY_SHIFT: u32 = size_of::<Jump>().trailing_zeros();
const _: () = assert!(size_of::<Jump>() == 16, "machine code reads two words");

/// Where the code for an instruction pointer is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Jump {
    /// In a far table: with the table's age in its uppermost bits.
    pub ip: u64,
    pub code: Option<CodeAddress>,
}

/// Offsets within an entry.
pub const IP: usize = std::mem::offset_of!(Jump, ip);
pub const CODE: usize = std::mem::offset_of!(Jump, code);

/// A near table without jumps. An empty place holds an address that belongs to another place, so that no branch finds it, not
/// even one to an address that is not canonical.
static NO_JUMPS: [Jump; NEAR] = {
    let mut table = [Jump { ip: 0, code: None }; NEAR];
    let mut at = 0;
    while at < NEAR {
        table[at].ip = (at ^ 1) as u64;
        at += 1;
    }
    table
};

/// A far table's age while it is new. An empty entry holds none, and is not found: only canonical addresses are asked for.
const NEW: u64 = 1 << CANONICAL;

/// The tables, by privilege: kernel, user.
#[repr(C)]
pub struct Jumps {
    near: [[Jump; NEAR]; 2],
    far: [Box<[Jump; FAR]>; 2],
    /// Advances when a far table is emptied: entries of another age are not found.
    ages: [u64; 2],
    /// Halves of the address space that each pair of tables has entries of.
    halves: [[bool; 2]; 2],
    /// Entries of each near table that are in use, once or more often each; so many that all are, where it is as long as it may get.
    used: [Vec<u16>; 2],
}

impl Default for Jumps {
    fn default() -> Self {
        // What is never written to takes no memory of the host.
        let far = || {
            let layout = Layout::new::<[Jump; FAR]>();
            // SAFETY: the layout has a size.
            let table = unsafe { alloc_zeroed(layout) }.cast::<[Jump; FAR]>();
            if table.is_null() {
                handle_alloc_error(layout);
            }
            // SAFETY: allocated as a box of this type would be; its entries are two words each, which may be zero.
            unsafe { Box::from_raw(table) }
        };
        Self {
            near: [NO_JUMPS; 2],
            far: [far(), far()],
            ages: [NEW; 2],
            halves: Default::default(),
            used: Default::default(),
        }
    }
}

impl Jumps {
    /// Place of an instruction pointer in a near table.
    pub fn near_index(ip: u64) -> usize {
        (ip ^ ip >> NEAR_SHIFT) as usize & (NEAR - 1)
    }

    fn far_index(ip: u64) -> usize {
        (ip ^ ip >> FAR_SHIFT) as usize & (FAR - 1)
    }

    /// Offset of a near table from the beginning.
    pub const fn near_table(privilege: usize) -> usize {
        std::mem::offset_of!(Self, near) + privilege * size_of::<[Jump; NEAR]>()
    }

    /// The code for an instruction pointer.
    #[inline]
    pub fn find(&self, table: usize, ip: u64) -> Option<CodeAddress> {
        let near = self.near[table][Self::near_index(ip)];
        if near.ip == ip {
            return near.code;
        }
        let far = self.far[table][Self::far_index(ip)];
        let there = far.ip == ip ^ self.ages[table] && is_canonical(ip);
        far.code.filter(|_| there)
    }

    /// Where the code for an instruction pointer is; `near`: a branch has looked for it.
    pub fn add(&mut self, table: usize, ip: u64, code: CodeAddress, near: bool) {
        if !is_canonical(ip) {
            return;
        }
        self.halves[table][(ip >> 63) as usize] = true;
        self.far[table][Self::far_index(ip)] = Jump {
            ip: ip ^ self.ages[table],
            code: Some(code),
        };
        let at = Self::near_index(ip);
        if near {
            self.near[table][at] = Jump {
                ip,
                code: Some(code),
            };
        }
        // Whoever finds it in the far table brings it into the near one.
        if self.used[table].len() < NEAR / 8 {
            self.used[table].push(at as u16);
        }
    }

    /// Empty all tables.
    pub fn forget(&mut self) {
        for table in 0..2 {
            self.forget_table(table);
        }
    }

    /// Empty the tables that have entries of a half of the address space.
    pub fn forget_half(&mut self, half: usize) {
        for table in 0..2 {
            if self.halves[table][half] {
                self.forget_table(table);
            }
        }
    }

    fn forget_table(&mut self, table: usize) {
        // A process that is switched to and away from has used few of them.
        if self.used[table].len() < NEAR / 8 {
            for &at in &self.used[table] {
                let at = usize::from(at);
                self.near[table][at] = NO_JUMPS[at];
            }
        } else {
            self.near[table] = NO_JUMPS;
        }
        self.used[table].clear();
        self.halves[table] = [false; 2];
        self.ages[table] = self.ages[table].wrapping_add(NEW);
        if self.ages[table] == 0 {
            self.far[table].fill(Jump { ip: 0, code: None });
            self.ages[table] = NEW;
        }
    }
}

/// The offset of the entry for the address in RCX from a near table's first, into RAX. Changes flags.
pub fn near_offset(a: &mut Assembler) {
    a.rr(Code::Mov_r32_rm32, EAX, ECX);
    a.ri(Code::Shr_rm32_imm8, EAX, NEAR_SHIFT as i32);
    a.rr(Code::Xor_r32_rm32, EAX, ECX);
    a.ri(Code::And_rm32_imm32, EAX, (NEAR - 1) as i32);
    a.ri(Code::Shl_rm32_imm8, EAX, ENTRY_SHIFT as i32);
}

/// Assemble a search that goes on at the code for the address in RCX, if the near table knows it. Uses RAX and flags.
pub fn look_in_near_table(a: &mut Assembler, table: usize) {
    let near = field!(jumps) + Jumps::near_table(table);
    let elsewhere = a.label();
    near_offset(a);
    a.rm(Code::Cmp_r64_rm64, RCX, indexed_field(near + IP, RAX));
    a.jcc(cc::NE, elsewhere);
    a.m(Code::Jmp_rm64, indexed_field(near + CODE, RAX));
    a.bind(elsewhere);
}

/// Assemble the end of a search that the near table did not end: goes on at the code for the canonical address in RCX if the far
/// table knows it, or behind this, with RCX as it was. Uses RAX and flags.
pub fn look_in_far_table(a: &mut Assembler, table: usize) {
    let age = field!(jumps) + std::mem::offset_of!(Jumps, ages) + 8 * table;
    let far = field!(jumps) + std::mem::offset_of!(Jumps, far) + 8 * table;
    let unknown = a.label();
    a.rr(Code::Mov_r32_rm32, EAX, ECX);
    a.ri(Code::Shr_rm32_imm8, EAX, FAR_SHIFT as i32);
    a.rr(Code::Xor_r32_rm32, EAX, ECX);
    a.ri(Code::And_rm32_imm32, EAX, (FAR - 1) as i32);
    a.ri(Code::Shl_rm32_imm8, EAX, ENTRY_SHIFT as i32);
    a.rm(Code::Add_r64_rm64, RAX, field_of_cpu(far));
    a.rm(Code::Xor_r64_rm64, RCX, field_of_cpu(age));
    let of_entry = |offset: usize| super::assembler::at_offset(RAX, offset as i64);
    let ip = of_entry(IP);
    a.rm(Code::Cmp_r64_rm64, RCX, ip);
    a.jcc(cc::NE, unknown);
    a.rm(Code::Mov_r64_rm64, RAX, of_entry(CODE));
    a.store(field!(spill), RAX);
    a.rm(Code::Xor_r64_rm64, RCX, field_of_cpu(age));
    near_offset(a);
    let near = field!(jumps) + Jumps::near_table(table);
    a.mr(Code::Mov_rm64_r64, indexed_field(near + IP, RAX), RCX);
    a.load(RCX, field!(spill));
    a.mr(Code::Mov_rm64_r64, indexed_field(near + CODE, RAX), RCX);
    a.r(Code::Jmp_rm64, RCX);
    a.bind(unknown);
    a.rm(Code::Xor_r64_rm64, RCX, field_of_cpu(age));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(number: u64) -> CodeAddress {
        CodeAddress::of_nothing(number)
    }

    #[test]
    fn what_was_added_is_found_until_it_is_forgotten() {
        let mut jumps = Jumps::default();
        let (user, kernel) = (0x7fff_1234_5678, 0xffff_ffff_8123_4567);
        jumps.add(0, kernel, code(1), true);
        jumps.add(1, user, code(2), false);
        assert_eq!(jumps.find(0, kernel), Some(code(1)));
        assert_eq!(jumps.find(1, user), Some(code(2)));
        assert_eq!(jumps.find(0, user), None, "another privilege's");
        jumps.forget_half(0);
        assert_eq!(jumps.find(1, user), None);
        assert_eq!(jumps.find(0, kernel), Some(code(1)));
        jumps.forget_half(1);
        assert_eq!(jumps.find(0, kernel), None);
    }

    #[test]
    fn a_neighbour_in_the_near_table_is_found_in_the_far_one() {
        let mut jumps = Jumps::default();
        let (a, b) = (0x40_0000_u64, 0x40_0000 ^ (1 << NEAR_SHIFT | 1));
        assert_eq!(Jumps::near_index(a), Jumps::near_index(b));
        jumps.add(1, a, code(1), true);
        jumps.add(1, b, code(2), true);
        assert_eq!(
            (jumps.find(1, a), jumps.find(1, b)),
            (Some(code(1)), Some(code(2)))
        );
    }

    #[test]
    fn no_age_is_mistaken_for_another() {
        let mut jumps = Jumps::default();
        let ip = 0x1234;
        jumps.add(1, ip, code(1), false);
        for age in 1..=1_u64 << (64 - CANONICAL) {
            jumps.forget();
            // The address that the entry would answer for is not canonical.
            assert_eq!(jumps.find(1, ip), None, "{age}");
            assert_eq!(jumps.find(1, ip ^ age << CANONICAL), None, "{age}");
        }
    }
}
