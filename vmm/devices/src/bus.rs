//! Address decode: finds the device that answers an address, and the offset into the device's range. A device does not know its own
//! address.

use std::fmt::Debug;

use thiserror::Error;

/// A device with registers in an address range.
pub trait BusDevice {
    /// Reads `data.len()` bytes at `offset` from the device's first address, at virtual time `now` (cycles).
    fn read(&mut self, offset: u64, data: &mut [u8], now: u64);
    /// Writes `data` at `offset`, at virtual time `now` (cycles).
    fn write(&mut self, offset: u64, data: &[u8], now: u64);
}

/// Reason why an address range cannot be assigned to a device.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BusError {
    /// A range that is empty or extends past the end of the address space.
    #[error(
        "range of {len:#x} bytes at {base:#x} is empty or wraps around; give it a place in the address space"
    )]
    Range {
        /// First address of the range.
        base: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A range that overlaps another device's range.
    #[error(
        "range of {len:#x} bytes at {base:#x} overlaps the one at {other:#x}; move one of them"
    )]
    Overlap {
        /// First address of the range.
        base: u64,
        /// Length in bytes.
        len: u64,
        /// First address of the range that is already assigned.
        other: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Range<T> {
    base: u64,
    len: u64,
    target: T,
}

/// Map from address ranges to targets. `T` names a device of the map's owner.
#[derive(Clone, Debug)]
pub struct Bus<T> {
    ranges: Vec<Range<T>>,
}

impl<T> Default for Bus<T> {
    fn default() -> Self {
        Self { ranges: Vec::new() }
    }
}

impl<T: Copy> Bus<T> {
    /// Assigns `base..base + len` to `target`.
    pub fn insert(&mut self, base: u64, len: u64, target: T) -> Result<(), BusError> {
        if len == 0 || base.checked_add(len - 1).is_none() {
            return Err(BusError::Range { base, len });
        }
        let last = base + (len - 1);
        if let Some(other) = self
            .ranges
            .iter()
            .find(|r| r.base <= last && base <= r.base + (r.len - 1))
        {
            let other = other.base;
            return Err(BusError::Overlap { base, len, other });
        }
        let at = self.ranges.partition_point(|r| r.base < base);
        self.ranges.insert(at, Range { base, len, target });
        Ok(())
    }

    /// Returns the target that answers an access of `size` bytes at `address`, and the offset into its range. None if no single range has
    /// the whole access; such a read gives all-ones, and such a write has no effect.
    #[inline]
    pub fn find(&self, address: u64, size: usize) -> Option<(T, u64)> {
        let at = self.ranges.partition_point(|r| r.base <= address);
        let range = self.ranges.get(at.checked_sub(1)?)?;
        let offset = address - range.base;
        (range.len.checked_sub(offset)? >= size as u64).then_some((range.target, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_gives_offsets_and_refuses_straddling_accesses() {
        let mut bus = Bus::default();
        bus.insert(0x3f8, 8, 'a').unwrap();
        bus.insert(0x100, 4, 'b').unwrap();
        bus.insert(u64::MAX - 3, 4, 'c').unwrap();
        assert_eq!(bus.find(0x3fd, 1), Some(('a', 5)));
        assert_eq!(bus.find(0x103, 1), Some(('b', 3)));
        assert_eq!(bus.find(0x103, 2), None);
        assert_eq!(bus.find(0x104, 1), None);
        assert_eq!(bus.find(0xff, 1), None);
        assert_eq!(bus.find(u64::MAX, 1), Some(('c', 3)));
    }

    #[test]
    fn overlaps_and_impossible_ranges_are_refused() {
        let mut bus = Bus::default();
        bus.insert(0x1000, 0x1000, 0).unwrap();
        for base in [0x0fff, 0x1000, 0x1fff] {
            let other = 0x1000;
            let err = bus.insert(base, 0x1000, 1).unwrap_err();
            assert_eq!(
                err,
                BusError::Overlap {
                    base,
                    len: 0x1000,
                    other
                }
            );
        }
        bus.insert(0x2000, 0x1000, 1).unwrap();
        bus.insert(0, 0x1000, 1).unwrap();
        assert!(bus.insert(0x9000, 0, 1).is_err());
        assert!(bus.insert(u64::MAX, 2, 1).is_err());
    }
}
