//! Re-reference interval prediction (Jaleel et al., ISCA 2010): SRRIP and DRRIP with two bits a line and hit priority.
//!
//! The age of a line is its predicted interval, RRPV. An empty way has age 3.

use super::ages::{Ages, OLDEST};
use super::{Replacement, SetState};

/// Age of a line that is expected to be used again after a long interval. SRRIP inserts lines with this age.
const LONG: u8 = 2;

/// Returns the leftmost line of age 3, after all lines have aged until there is one.
fn victim(set: SetState<'_>) -> u32 {
    let mut ages = Ages::new(set);
    ages.raise(ages.all());
    ages.oldest().unwrap_or(0)
}

/// SRRIP.
#[derive(Debug)]
pub(super) struct Srrip;

impl Replacement for Srrip {
    fn hit(&mut self, set: SetState<'_>, way: u32) {
        Ages::new(set).set(way, 0);
    }

    fn insert(&mut self, set: SetState<'_>, way: u32) {
        Ages::new(set).set(way, LONG);
    }

    fn victim(&mut self, set: SetState<'_>) -> u32 {
        victim(set)
    }

    fn remove(&mut self, set: SetState<'_>, way: u32) {
        Ages::new(set).set(way, OLDEST);
    }

    fn settled(&self, set: SetState<'_>, way: u32) -> bool {
        Ages::new(set).get(way) == 0
    }
}

/// Part of a set in the duel of DRRIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The set always uses SRRIP.
    SrripLeader,
    /// The set always uses BRRIP.
    BrripLeader,
    /// The set uses the policy whose leaders miss less.
    Follower,
}

/// Most leader sets of each policy.
const MOST_LEADERS: u32 = 32;

/// Values of the policy selector, which has 10 bits.
const SELECTOR_VALUES: u16 = 1 << 10;

/// BRRIP inserts one line in so many with age 2, and the others with age 3.
const BRRIP_PERIOD: u32 = 32;

/// DRRIP: a duel of SRRIP and BRRIP.
///
/// Each policy has 32 leader sets, or a quarter of the sets if that is less. The cache is cut into as many regions of equal size; the first
/// set of a region leads for SRRIP, the middle set for BRRIP. With fewer than 4 sets, all follow, and the policy is SRRIP. A miss is an
/// insertion, for whatever reason the line comes.
#[derive(Debug)]
pub(super) struct Drrip {
    /// Leader sets of each policy.
    leaders: u32,
    /// Sets of a region; 1 if there are no leaders.
    region: u32,
    /// Policy selector. A miss of a leader of SRRIP adds 1, one of BRRIP subtracts 1. From 512 on, followers use BRRIP. It starts at 511.
    selector: u16,
    /// Insertions by BRRIP in all sets since the last one with age 2.
    distant: u32,
}

impl Drrip {
    pub(super) fn new(sets: u32) -> Drrip {
        let leaders = (sets / 4).min(MOST_LEADERS);
        Drrip {
            leaders,
            region: sets.checked_div(leaders).unwrap_or(1),
            selector: SELECTOR_VALUES / 2 - 1,
            distant: 0,
        }
    }

    pub(super) fn role(&self, set: u32) -> Role {
        let (region, place) = (set / self.region, set % self.region);
        if region >= self.leaders {
            // Sets after the last region, or all sets of a cache without leaders.
            Role::Follower
        } else if place == 0 {
            Role::SrripLeader
        } else if place == self.region / 2 {
            Role::BrripLeader
        } else {
            Role::Follower
        }
    }

    /// Takes note of a miss and returns the age of the new line.
    fn miss(&mut self, set: u32) -> u8 {
        let bimodal = match self.role(set) {
            Role::SrripLeader => {
                self.selector = (self.selector + 1).min(SELECTOR_VALUES - 1);
                false
            }
            Role::BrripLeader => {
                self.selector = self.selector.saturating_sub(1);
                true
            }
            Role::Follower => self.selector >= SELECTOR_VALUES / 2,
        };
        if !bimodal {
            return LONG;
        }
        self.distant += 1;
        if self.distant < BRRIP_PERIOD {
            return OLDEST;
        }
        self.distant = 0;
        LONG
    }
}

impl Replacement for Drrip {
    fn hit(&mut self, set: SetState<'_>, way: u32) {
        Srrip.hit(set, way);
    }

    fn insert(&mut self, set: SetState<'_>, way: u32) {
        let age = self.miss(set.number);
        Ages::new(set).set(way, age);
    }

    fn victim(&mut self, set: SetState<'_>) -> u32 {
        victim(set)
    }

    fn remove(&mut self, set: SetState<'_>, way: u32) {
        Srrip.remove(set, way);
    }

    fn settled(&self, set: SetState<'_>, way: u32) -> bool {
        Srrip.settled(set, way)
    }
}
