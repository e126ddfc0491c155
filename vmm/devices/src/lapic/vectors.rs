//! Set of interrupt vectors, for IRR, ISR and TMR (SDM vol. 3A, "Interrupt Acceptance for Fixed Interrupts").

use serde::{Deserialize, Serialize};

/// A set of interrupt vectors as 256 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VectorSet([u64; 4]);

impl VectorSet {
    /// Adds a vector.
    #[inline]
    pub fn insert(&mut self, vector: u8) {
        self.0[vector as usize >> 6] |= 1 << (vector & 63);
    }

    /// Removes a vector.
    #[inline]
    pub fn remove(&mut self, vector: u8) {
        self.0[vector as usize >> 6] &= !(1 << (vector & 63));
    }

    /// Returns whether a vector is in the set.
    #[inline]
    pub fn contains(&self, vector: u8) -> bool {
        self.0[vector as usize >> 6] >> (vector & 63) & 1 != 0
    }

    /// Returns the highest vector in the set, which has the highest priority; none if the set is empty.
    #[inline]
    pub fn highest(&self) -> Option<u8> {
        (0..4)
            .rev()
            .find(|&i| self.0[i] != 0)
            .map(|i| (i * 64 + 63) as u8 - self.0[i].leading_zeros() as u8)
    }

    /// Returns the 32-bit APIC register (`index` 0 to 7) that shows a part of the set.
    pub fn register(&self, index: usize) -> u32 {
        (self.0[index >> 1] >> (32 * (index & 1))) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_and_registers() {
        let mut set = VectorSet::default();
        assert_eq!(set.highest(), None);
        for v in [0, 31, 32, 63, 64, 200, 255] {
            set.insert(v);
            assert_eq!(set.highest(), Some(v));
            assert_eq!(set.register(v as usize / 32) >> (v % 32), 1);
        }
        set.remove(255);
        assert_eq!(set.highest(), Some(200));
        assert!(!set.contains(255) && set.contains(63));
    }
}
