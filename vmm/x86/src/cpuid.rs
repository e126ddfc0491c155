//! The table behind the CPUID instruction and its look-up rules (SDM vol. 2A, CPUID, tables 3-8 and following).
//!
//! One table per vCPU is built before power-on. Every engine answers CPUID from this table, so code that chose its path by CPUID
//! under one engine also runs under another engine.

use serde::{Deserialize, Serialize};

use crate::bits::{cr4, xcr0};

/// First leaf of the range reserved for hypervisors.
pub const HYPERVISOR_BASE: u32 = 0x4000_0000;
/// Number of the first extended leaf.
pub const EXTENDED_BASE: u32 = 0x8000_0000;

/// Number of physical-address bits of every guest, MAXPHYADDR (1 TiB), which CPUID leaf 0x80000008 reports.
pub const PHYSICAL_BITS: u32 = 40;

/// IA32_ARCH_CAPABILITIES (MSR 0x10a) as every engine reports it where it can: the modelled core leaks nothing, so a
/// stock kernel needs no mitigation that would disturb measurements.
///
/// RDCL_NO, IBRS_ALL, SKIP_L1DFL_VMENTRY, SSB_NO, MDS_NO, PSCHANGE_MC_NO, TAA_NO, SBDR_SSDP_NO, FBSDP_NO, PSDP_NO,
/// BHI_NO, PBRSB_NO, GDS_NO, RFDS_NO, ITS_NO (SDM vol. 4, table 2-2).
pub const ARCH_CAPABILITIES: u64 = 1 << 0
    | 1 << 1
    | 1 << 3
    | 1 << 4
    | 1 << 5
    | 1 << 6
    | 1 << 8
    | 1 << 13
    | 1 << 14
    | 1 << 15
    | 1 << 20
    | 1 << 24
    | 1 << 26
    | 1 << 27
    | 1 << 62;

/// Returns the bytes of an XSAVE area in the standard format for an XCR0 of x87, SSE and AVX bits (SDM vol. 1 §13.4).
pub const fn xsave_size(xcr0_value: u64) -> u32 {
    if xcr0_value & xcr0::AVX != 0 {
        832
    } else {
        576
    }
}

/// Output register of the CPUID instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum CpuidRegister {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

/// Row of a CPUID table: the four registers that one leaf and subleaf returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CpuidEntry {
    /// Leaf: the value of EAX on entry.
    pub leaf: u32,
    /// Subleaf: the value of ECX on entry; `None` where the leaf ignores ECX.
    pub subleaf: Option<u32>,
    pub eax: u32,
    pub ebx: u32,
    pub ecx: u32,
    pub edx: u32,
}

impl CpuidEntry {
    /// Returns a row for a leaf and subleaf with zeros in all registers.
    pub fn zero(leaf: u32, subleaf: u32) -> Self {
        Self {
            leaf,
            subleaf: Some(subleaf),
            ..Self::default()
        }
    }

    /// Returns the value of a register of the row.
    pub fn register(&self, register: CpuidRegister) -> u32 {
        match register {
            CpuidRegister::Eax => self.eax,
            CpuidRegister::Ebx => self.ebx,
            CpuidRegister::Ecx => self.ecx,
            CpuidRegister::Edx => self.edx,
        }
    }

    /// Returns a register of the row for modification.
    pub fn register_mut(&mut self, register: CpuidRegister) -> &mut u32 {
        match register {
            CpuidRegister::Eax => &mut self.eax,
            CpuidRegister::Ebx => &mut self.ebx,
            CpuidRegister::Ecx => &mut self.ecx,
            CpuidRegister::Edx => &mut self.edx,
        }
    }
}

/// The rows of one vCPU, sorted by leaf and subleaf.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuidTable {
    /// Rows of the table.
    pub entries: Vec<CpuidEntry>,
}

impl CpuidTable {
    /// Returns a table of these rows; a later row replaces an earlier one of the same leaf and subleaf.
    pub fn new(rows: impl IntoIterator<Item = CpuidEntry>) -> Self {
        let mut table = Self::default();
        for row in rows {
            table.set(row);
        }
        table
    }

    /// Inserts or replaces a row.
    pub fn set(&mut self, row: CpuidEntry) {
        let key = (row.leaf, row.subleaf);
        match self
            .entries
            .binary_search_by_key(&key, |e| (e.leaf, e.subleaf))
        {
            Ok(at) => self.entries[at] = row,
            Err(at) => self.entries.insert(at, row),
        }
    }

    /// Returns the row of this leaf that has this subleaf or ignores subleaves; `None` without such a row.
    pub fn find(&self, leaf: u32, subleaf: u32) -> Option<&CpuidEntry> {
        let from = self.entries.partition_point(|e| e.leaf < leaf);
        self.entries[from..]
            .iter()
            .take_while(|e| e.leaf == leaf)
            .find(|e| e.subleaf.is_none_or(|s| s == subleaf))
    }

    /// Returns the highest basic leaf, as leaf 0 reports it; 0 without leaf 0.
    pub fn max_basic(&self) -> u32 {
        self.find(0, 0).map_or(0, |e| e.eax)
    }

    /// Returns the static part of the answer, by Intel's rules. A leaf beyond its range's maximum gets the data of the highest basic leaf.
    /// A missing leaf or subleaf within the range gets zeros. The topology leaves echo the subleaf, and report the x2APIC id for every
    /// subleaf.
    pub fn get(&self, leaf: u32, subleaf: u32) -> CpuidEntry {
        let leaf = if self.in_range(leaf) {
            leaf
        } else {
            self.max_basic()
        };
        match self.find(leaf, subleaf) {
            Some(row) => *row,
            None if leaf == 0xb || leaf == 0x1f => CpuidEntry {
                ecx: subleaf & 0xff,
                edx: self.find(leaf, 0).map_or(0, |e| e.edx),
                ..CpuidEntry::zero(leaf, subleaf)
            },
            None => CpuidEntry::zero(leaf, subleaf),
        }
    }

    /// Returns the answer that the processor gives now: [`get`](Self::get), then OSXSAVE mirrors CR4 and the size of the
    /// XSAVE area follows XCR0.
    pub fn query(&self, leaf: u32, subleaf: u32, cr4_value: u64, xcr0_value: u64) -> CpuidEntry {
        let mut result = self.get(leaf, subleaf);
        match (leaf, subleaf) {
            (1, _) => {
                const OSXSAVE: u32 = 1 << 27;
                result.ecx &= !OSXSAVE;
                if cr4_value & cr4::OSXSAVE != 0 {
                    result.ecx |= OSXSAVE;
                }
            }
            (0xd, 0) if result.eax != 0 => result.ebx = xsave_size(xcr0_value),
            _ => {}
        }
        result
    }

    /// Returns whether bit `bit` (from 0) of a register is set. A missing row has no bits set.
    pub fn has(&self, leaf: u32, subleaf: u32, register: CpuidRegister, bit: u32) -> bool {
        self.find(leaf, subleaf)
            .is_some_and(|e| e.register(register) >> bit & 1 != 0)
    }

    /// Returns the XCR0 bits that XSETBV accepts.
    pub fn xcr0_supported(&self) -> u64 {
        self.find(0xd, 0)
            .map_or(0, |e| u64::from(e.eax) | u64::from(e.edx) << 32)
    }

    fn in_range(&self, leaf: u32) -> bool {
        let base = if leaf >= EXTENDED_BASE {
            EXTENDED_BASE
        } else if leaf >= HYPERVISOR_BASE {
            // Software looks for signatures at several bases, each with its own maximum.
            HYPERVISOR_BASE | (leaf & 0xff00)
        } else {
            0
        };
        self.find(base, 0).is_some_and(|e| leaf <= e.eax)
            // The signature leaf of a hypercall doorbell is outside of all reported ranges.
            || (leaf >= HYPERVISOR_BASE && self.find(leaf, 0).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(leaf: u32, subleaf: Option<u32>, eax: u32) -> CpuidEntry {
        CpuidEntry {
            leaf,
            subleaf,
            eax,
            ebx: leaf,
            ecx: 0,
            edx: 0,
        }
    }

    fn table() -> CpuidTable {
        let mut topology = row(0xb, Some(0), 1);
        topology.edx = 5;
        CpuidTable::new([
            row(0x8000_0000, None, 0x8000_0001),
            row(0x8000_0001, None, 3),
            row(0, None, 0x16),
            row(1, None, 9),
            row(4, Some(0), 7),
            row(4, Some(1), 8),
            topology,
            row(0xd, Some(0), 7),
            row(0x16, None, 2900),
            row(0x4000_0000, None, 0x4000_0001),
        ])
    }

    #[test]
    fn subleaves_select_their_row_and_a_missing_one_is_zero() {
        let t = table();
        assert_eq!(t.get(4, 1).eax, 8);
        assert_eq!(t.get(4, 2), CpuidEntry::zero(4, 2));
        assert_eq!(t.get(1, 77).eax, 9, "leaf 1 ignores the subleaf");
        assert_eq!(t.get(3, 0), CpuidEntry::zero(3, 0));
    }

    #[test]
    fn beyond_a_range_the_highest_basic_leaf_answers() {
        let t = table();
        for leaf in [0x17, 0x3fff_ffff, 0x4000_0002, 0x8000_0002, u32::MAX] {
            assert_eq!(t.get(leaf, 0).eax, 2900, "{leaf:#x}");
        }
        assert_eq!(t.get(0x8000_0001, 0).eax, 3);
        assert_eq!(t.get(0x4000_0001, 0), CpuidEntry::zero(0x4000_0001, 0));
    }

    #[test]
    fn a_topology_subleaf_beyond_the_last_names_itself_and_the_apic_id() {
        let r = table().get(0xb, 0x105);
        assert_eq!((r.eax, r.ebx, r.ecx, r.edx), (0, 0, 5, 5));
    }

    #[test]
    fn dynamic_bits_follow_cr4_and_xcr0() {
        let t = table();
        assert_eq!(t.query(1, 0, 0, 0).ecx, 0);
        assert_eq!(t.query(1, 0, cr4::OSXSAVE, 0).ecx, 1 << 27);
        assert_eq!(t.query(0xd, 0, 0, 1).ebx, 576);
        assert_eq!(t.query(0xd, 0, 0, 7).ebx, 832);
    }

    #[test]
    fn a_row_outside_the_named_ranges_answers_for_itself() {
        let mut t = table();
        t.set(row(0x4e53_4350, None, 42));
        assert_eq!(t.get(0x4e53_4350, 3).eax, 42);
    }
}
