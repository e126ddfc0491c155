//! Hashes of the last events, for any number of events.
//!
//! Hardware folds its history of branches into a register for each table, since it cannot afford multipliers. Here the hash of the events
//! `e1` (the oldest) to `en` is the polynomial `e1 M^(n-1) + ... + en`, modulo 2^64. The hash of the last `L` events is a difference of two
//! such hashes, that of all events and that of all but the last `L`. So an event costs one multiplication, and so does each table that
//! asks. Unlike folds, the hash tells apart long histories of a short period.

/// Most events that a window can have.
pub const LONGEST: u16 = 255;

/// Hashes that are kept: a power of two above [`LONGEST`].
const RING: usize = 256;

/// Base of the polynomials: odd, with bits that look random.
const BASE: u64 = 0x9E6C_63D0_876A_3F6B;

/// Last events of a program, as hashes.
#[derive(Clone, Debug)]
pub struct History {
    /// Hash of all events up to each of the last ones.
    hashes: Box<[u64; RING]>,
    /// Place of the hash of all events.
    newest: usize,
}

/// A number of events.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    length: usize,
    /// `BASE` to the power of `length`.
    factor: u64,
}

impl Window {
    /// Makes a window of the last `length` events, at most [`LONGEST`].
    pub fn new(length: u16) -> Self {
        assert!(length <= LONGEST, "a history holds fewer events");
        Self {
            length: length.into(),
            factor: BASE.wrapping_pow(length.into()),
        }
    }
}

impl Default for History {
    fn default() -> Self {
        Self {
            hashes: Box::new([0; RING]),
            newest: 0,
        }
    }
}

impl History {
    /// Adds an event. Events are the better told apart the more of their low bits differ.
    #[inline]
    pub fn push(&mut self, event: u64) {
        let hash = self.hashes[self.newest % RING];
        self.newest = (self.newest + 1) % RING;
        self.hashes[self.newest] = hash.wrapping_mul(BASE).wrapping_add(event);
    }

    /// Returns the hash of the last events. Its high bits depend on all events, its low bits only on low bits of events.
    #[inline]
    pub fn hash(&self, window: Window) -> u64 {
        let before = self.hashes[self.newest.wrapping_sub(window.length) % RING];
        self.hashes[self.newest % RING].wrapping_sub(before.wrapping_mul(window.factor))
    }
}

/// Spreads a number over the 64 bits of a hash; the high bits are the best.
#[inline]
pub fn spread(number: u64) -> u64 {
    number.wrapping_mul(0xD134_2543_DE82_EF95)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_hash_depends_on_the_last_events_alone(
            before in prop::collection::vec(any::<u16>(), 0..600),
            other in prop::collection::vec(any::<u16>(), 0..600),
            last in prop::collection::vec(any::<u16>(), 1..=255),
        ) {
            let hash = |events: &[u16]| {
                let mut history = History::default();
                for event in events.iter().chain(&last) {
                    history.push(u64::from(*event));
                }
                history.hash(Window::new(last.len() as u16))
            };
            let plain = last.iter().fold(0u64, |h, e| h.wrapping_mul(BASE).wrapping_add(u64::from(*e)));
            prop_assert_eq!(hash(&before), plain);
            prop_assert_eq!(hash(&other), plain);
        }
    }

    #[test]
    fn phases_of_a_short_period_have_different_hashes() {
        let mut history = History::default();
        let mut hashes = std::collections::BTreeSet::new();
        for step in 0..1_200u64 {
            history.push(u64::from(step % 4 == 0));
            if step >= 1_000 {
                hashes.insert(history.hash(Window::new(128)));
            }
        }
        assert_eq!(hashes.len(), 4);
    }
}
