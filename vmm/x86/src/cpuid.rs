//! CPUID as a table (SDM vol. 2A, CPUID): what a guest is told, the same on every engine.

use serde::{Deserialize, Serialize};

/// Values of one leaf and subleaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CpuidEntry {
    pub leaf: u32,
    /// None: the leaf ignores ECX.
    pub subleaf: Option<u32>,
    pub eax: u32,
    pub ebx: u32,
    pub ecx: u32,
    pub edx: u32,
}

/// The CPUID table of one vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuidTable {
    /// Entries; the first that matches counts.
    pub entries: Vec<CpuidEntry>,
}

impl CpuidTable {
    /// Look a leaf up as the processor does: a basic leaf above the maximum answers as the highest basic leaf, other
    /// unknown leaves and subleaves answer zero.
    pub fn get(&self, leaf: u32, subleaf: u32) -> CpuidEntry {
        let find = |leaf: u32| {
            self.entries
                .iter()
                .find(|e| e.leaf == leaf && e.subleaf.is_none_or(|s| s == subleaf))
                .copied()
        };
        let leaf = if self.entries.iter().any(|e| e.leaf == leaf) {
            leaf
        } else {
            let range = leaf & 0xf000_0000;
            let max = self
                .entries
                .iter()
                .find(|e| e.leaf == range)
                .map_or(0, |e| e.eax);
            let top = self
                .entries
                .iter()
                .find(|e| e.leaf == 0)
                .map_or(0, |e| e.eax);
            if range == 0 && leaf > top || range == 0x8000_0000 && leaf > max {
                top
            } else {
                leaf
            }
        };
        find(leaf).unwrap_or(CpuidEntry {
            leaf,
            subleaf: Some(subleaf),
            ..Default::default()
        })
    }

    /// The features engines look at themselves: leaf 1 ECX, leaf 7 EBX and so on are read through `get`.
    pub fn has(&self, leaf: u32, subleaf: u32, register: usize, bit: u32) -> bool {
        let e = self.get(leaf, subleaf);
        [e.eax, e.ebx, e.ecx, e.edx][register] >> bit & 1 != 0
    }
}
