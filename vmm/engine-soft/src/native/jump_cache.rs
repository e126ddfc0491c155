//! Jump cache: tables from an instruction pointer to its translation block, for branches that are not chained. These are indirect branches
//! and branches across pages.
//!
//! Each privilege has two tables. Translated code looks up the first-level (L1) table in line. After a miss, a routine looks up the
//! second-level (L2) table and copies the entry to the first level. The run loop also adds blocks at which time slices begin. No branch has
//! looked these up, so they are added only to the second level.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

use iced_x86::{Code, Register};

use super::CodeAddress;
use super::assembler::{Assembler, cc, field_of_cpu, indexed_field};
use super::runtime::field;
use crate::memory::is_canonical;

use Register::{EAX, ECX, RAX, RCX};

/// Number of entries in an L1 table. A kernel and the libraries of its processes have some thousands of branch targets.
pub const L1_ENTRIES: usize = 1 << L1_SHIFT;
/// log2 of [`L1_ENTRIES`].
pub const L1_SHIFT: u32 = 13;
/// Number of entries in an L2 table. `L2_SHIFT` is its log2.
const L2_ENTRIES: usize = 1 << L2_SHIFT;
const L2_SHIFT: u32 = 15;
/// Number of significant low bits of a canonical address. All bits above are equal to the highest of them.
const CANONICAL: u32 = 48;
/// log2 of the size of an entry in bytes.
const ENTRY_SHIFT: u32 = size_of::<JumpCacheEntry>().trailing_zeros();
const _: () = assert!(
    size_of::<JumpCacheEntry>() == 16,
    "machine code reads two words"
);

/// An entry: an instruction pointer, and the address of its code.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct JumpCacheEntry {
    /// Instruction pointer. In an L2 table, its uppermost bits are XORed with the table's generation.
    pub ip: u64,
    pub code: Option<CodeAddress>,
}

/// Offset of `ip` in an entry, in bytes. `CODE` is the offset of `code`.
pub const IP: usize = std::mem::offset_of!(JumpCacheEntry, ip);
pub const CODE: usize = std::mem::offset_of!(JumpCacheEntry, code);

/// An empty L1 table. An empty entry contains an address whose index is that of another entry. So no branch finds the empty entry, not even
/// a branch to an address that is not canonical.
static EMPTY_L1: [JumpCacheEntry; L1_ENTRIES] = {
    let mut table = [JumpCacheEntry { ip: 0, code: None }; L1_ENTRIES];
    let mut at = 0;
    while at < L1_ENTRIES {
        table[at].ip = (at ^ 1) as u64;
        at += 1;
    }
    table
};

/// First generation of an L2 table, and the step between generations. Empty entries have generation zero, so no canonical address finds
/// them.
const FIRST_GENERATION: u64 = 1 << CANONICAL;

/// Jump cache of a vCPU. All arrays are indexed by privilege: 0 for the kernel, 1 for user code.
#[repr(C)]
pub struct JumpCache {
    l1: [[JumpCacheEntry; L1_ENTRIES]; 2],
    l2: [Box<[JumpCacheEntry; L2_ENTRIES]>; 2],
    /// Generation of each L2 table, which advances when the table is emptied. Entries of other generations are not found.
    generations: [u64; 2],
    /// For each privilege, whether its tables may have entries of the lower and of the upper half of the address space.
    halves: [[bool; 2]; 2],
    /// For each privilege, indices of the L1 entries that may be in use; an index may occur several times. If the list is full, any entry
    /// may be in use.
    used: [Vec<u16>; 2],
}

impl Default for JumpCache {
    fn default() -> Self {
        // Pages of the table that were never written to take no memory of the host.
        let l2 = || {
            let layout = Layout::new::<[JumpCacheEntry; L2_ENTRIES]>();
            // SAFETY: the size of the layout is not zero.
            let table = unsafe { alloc_zeroed(layout) }.cast::<[JumpCacheEntry; L2_ENTRIES]>();
            if table.is_null() {
                handle_alloc_error(layout);
            }
            // SAFETY: the memory was allocated with the layout of this type. Its entries are two words each, which may be zero.
            unsafe { Box::from_raw(table) }
        };
        Self {
            l1: [EMPTY_L1; 2],
            l2: [l2(), l2()],
            generations: [FIRST_GENERATION; 2],
            halves: Default::default(),
            used: Default::default(),
        }
    }
}

impl JumpCache {
    /// Returns the index of an instruction pointer in an L1 table.
    pub fn l1_index(ip: u64) -> usize {
        (ip ^ ip >> L1_SHIFT) as usize & (L1_ENTRIES - 1)
    }

    fn l2_index(ip: u64) -> usize {
        (ip ^ ip >> L2_SHIFT) as usize & (L2_ENTRIES - 1)
    }

    /// Returns the byte offset of a privilege's L1 table in the jump cache.
    pub const fn l1_table(privilege: usize) -> usize {
        std::mem::offset_of!(Self, l1) + privilege * size_of::<[JumpCacheEntry; L1_ENTRIES]>()
    }

    /// Returns the code for an instruction pointer in the tables of a privilege; none if neither table has it.
    #[inline]
    pub fn find(&self, table: usize, ip: u64) -> Option<CodeAddress> {
        let l1 = self.l1[table][Self::l1_index(ip)];
        if l1.ip == ip {
            return l1.code;
        }
        let l2 = self.l2[table][Self::l2_index(ip)];
        let there = l2.ip == ip ^ self.generations[table] && is_canonical(ip);
        l2.code.filter(|_| there)
    }

    /// Adds the code for a canonical instruction pointer to the second level. `l1` says to add it to the first level, too, since a branch
    /// has looked it up.
    pub fn add(&mut self, table: usize, ip: u64, code: CodeAddress, l1: bool) {
        if !is_canonical(ip) {
            return;
        }
        self.halves[table][(ip >> 63) as usize] = true;
        self.l2[table][Self::l2_index(ip)] = JumpCacheEntry {
            ip: ip ^ self.generations[table],
            code: Some(code),
        };
        let at = Self::l1_index(ip);
        if l1 {
            self.l1[table][at] = JumpCacheEntry {
                ip,
                code: Some(code),
            };
        }
        // A branch that finds the entry in the second level copies it to this index of the first level.
        if self.used[table].len() < L1_ENTRIES / 8 {
            self.used[table].push(at as u16);
        }
    }

    /// Empties the tables of both privileges.
    pub fn flush(&mut self) {
        for table in 0..2 {
            self.flush_table(table);
        }
    }

    /// Empties the tables of each privilege that has entries of one half of the address space (0 for the lower half, 1 for the upper half).
    pub fn flush_half(&mut self, half: usize) {
        for table in 0..2 {
            if self.halves[table][half] {
                self.flush_table(table);
            }
        }
    }

    fn flush_table(&mut self, table: usize) {
        // A process that ran for a short time has used few entries, which are emptied individually.
        if self.used[table].len() < L1_ENTRIES / 8 {
            for &at in &self.used[table] {
                let at = usize::from(at);
                self.l1[table][at] = EMPTY_L1[at];
            }
        } else {
            self.l1[table] = EMPTY_L1;
        }
        self.used[table].clear();
        self.halves[table] = [false; 2];
        self.generations[table] = self.generations[table].wrapping_add(FIRST_GENERATION);
        if self.generations[table] == 0 {
            self.l2[table].fill(JumpCacheEntry { ip: 0, code: None });
            self.generations[table] = FIRST_GENERATION;
        }
    }
}

/// Assembles code that computes in RAX the byte offset, within an L1 table, of the entry for the address in RCX. Changes flags.
pub fn emit_l1_offset(a: &mut Assembler) {
    a.rr(Code::Mov_r32_rm32, EAX, ECX);
    a.ri(Code::Shr_rm32_imm8, EAX, L1_SHIFT as i32);
    a.rr(Code::Xor_r32_rm32, EAX, ECX);
    a.ri(Code::And_rm32_imm32, EAX, (L1_ENTRIES - 1) as i32);
    a.ri(Code::Shl_rm32_imm8, EAX, ENTRY_SHIFT as i32);
}

/// Assembles a look-up in the first level: jumps to the code for the address in RCX, if the L1 table has it. Uses RAX and flags.
pub fn emit_l1_lookup(a: &mut Assembler, table: usize) {
    let l1 = field!(jump_cache) + JumpCache::l1_table(table);
    let elsewhere = a.label();
    emit_l1_offset(a);
    a.rm(Code::Cmp_r64_rm64, RCX, indexed_field(l1 + IP, RAX));
    a.jcc(cc::NE, elsewhere);
    a.m(Code::Jmp_rm64, indexed_field(l1 + CODE, RAX));
    a.bind(elsewhere);
}

/// Assembles a look-up in the second level, after a miss of the first level. It jumps to the code for the canonical address in RCX, if the
/// L2 table has it. Otherwise execution continues after this code, with RCX unchanged. Uses RAX and flags.
pub fn emit_l2_lookup(a: &mut Assembler, table: usize) {
    let generation = field!(jump_cache) + std::mem::offset_of!(JumpCache, generations) + 8 * table;
    let l2 = field!(jump_cache) + std::mem::offset_of!(JumpCache, l2) + 8 * table;
    let unknown = a.label();
    a.rr(Code::Mov_r32_rm32, EAX, ECX);
    a.ri(Code::Shr_rm32_imm8, EAX, L2_SHIFT as i32);
    a.rr(Code::Xor_r32_rm32, EAX, ECX);
    a.ri(Code::And_rm32_imm32, EAX, (L2_ENTRIES - 1) as i32);
    a.ri(Code::Shl_rm32_imm8, EAX, ENTRY_SHIFT as i32);
    a.rm(Code::Add_r64_rm64, RAX, field_of_cpu(l2));
    a.rm(Code::Xor_r64_rm64, RCX, field_of_cpu(generation));
    let of_entry = |offset: usize| super::assembler::at_offset(RAX, offset as i64);
    let ip = of_entry(IP);
    a.rm(Code::Cmp_r64_rm64, RCX, ip);
    a.jcc(cc::NE, unknown);
    a.rm(Code::Mov_r64_rm64, RAX, of_entry(CODE));
    a.store(field!(spill), RAX);
    a.rm(Code::Xor_r64_rm64, RCX, field_of_cpu(generation));
    emit_l1_offset(a);
    let l1 = field!(jump_cache) + JumpCache::l1_table(table);
    a.mr(Code::Mov_rm64_r64, indexed_field(l1 + IP, RAX), RCX);
    a.load(RCX, field!(spill));
    a.mr(Code::Mov_rm64_r64, indexed_field(l1 + CODE, RAX), RCX);
    a.r(Code::Jmp_rm64, RCX);
    a.bind(unknown);
    a.rm(Code::Xor_r64_rm64, RCX, field_of_cpu(generation));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(number: u64) -> CodeAddress {
        CodeAddress::of_nothing(number)
    }

    #[test]
    fn an_entry_is_found_until_it_is_flushed() {
        let mut cache = JumpCache::default();
        let (user, kernel) = (0x7fff_1234_5678, 0xffff_ffff_8123_4567);
        cache.add(0, kernel, code(1), true);
        cache.add(1, user, code(2), false);
        assert_eq!(cache.find(0, kernel), Some(code(1)));
        assert_eq!(cache.find(1, user), Some(code(2)));
        assert_eq!(cache.find(0, user), None, "another privilege's");
        cache.flush_half(0);
        assert_eq!(cache.find(1, user), None);
        assert_eq!(cache.find(0, kernel), Some(code(1)));
        cache.flush_half(1);
        assert_eq!(cache.find(0, kernel), None);
    }

    #[test]
    fn an_entry_that_l1_has_lost_is_found_in_l2() {
        let mut cache = JumpCache::default();
        let (a, b) = (0x40_0000_u64, 0x40_0000 ^ (1 << L1_SHIFT | 1));
        assert_eq!(JumpCache::l1_index(a), JumpCache::l1_index(b));
        cache.add(1, a, code(1), true);
        cache.add(1, b, code(2), true);
        assert_eq!(
            (cache.find(1, a), cache.find(1, b)),
            (Some(code(1)), Some(code(2)))
        );
    }

    #[test]
    fn no_generation_is_mistaken_for_another() {
        let mut cache = JumpCache::default();
        let ip = 0x1234;
        cache.add(1, ip, code(1), false);
        for generation in 1..=1_u64 << (64 - CANONICAL) {
            cache.flush();
            // An entry of an old generation would match an address that is not canonical. Such an address must not find it.
            assert_eq!(cache.find(1, ip), None, "{generation}");
            assert_eq!(
                cache.find(1, ip ^ generation << CANONICAL),
                None,
                "{generation}"
            );
        }
    }
}
