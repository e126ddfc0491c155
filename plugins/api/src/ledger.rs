//! Ledger of a model's events by vCPU, context and privilege.

use std::collections::{BTreeMap, HashMap};

use crate::{Charges, Context, MemRef, Privilege};

/// Number of events of one kind, and the cycles that they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tally {
    /// Number of events.
    pub count: u64,
    /// Sum of the cycles of all events.
    pub cycles: u64,
    /// Latency of each event in cycles, or [`Tally::VARIES`] if events had different latencies.
    latency: u64,
}

impl Tally {
    /// Value of the field `latency` if events had different latencies.
    const VARIES: u64 = u64::MAX;
    /// Returns the latency of one event in cycles if all events had the same latency, and 0 if latencies differed.
    pub fn latency(&self) -> u64 {
        if self.latency == Self::VARIES {
            0
        } else {
            self.latency
        }
    }

    /// Counts an event that cost `latency` cycles.
    #[inline]
    pub fn add(&mut self, latency: u64) {
        if self.count == 0 {
            self.latency = latency;
        } else if self.latency != latency {
            self.latency = Self::VARIES;
        }
        self.count += 1;
        self.cycles += latency;
    }
}

/// Key of tallies: number of the vCPU, context, privilege.
pub type Key = (u16, Context, Privilege);

/// Tallies of a fixed number of event kinds for each vCPU, context and privilege.
///
/// [`Ledger::select`] is cheap as long as a vCPU does not change its context.
#[derive(Clone, Debug)]
pub struct Ledger {
    events: usize,
    /// Context of each vCPU's last reference, and the index of the context's first tally.
    current: Vec<(Context, usize)>,
    starts: HashMap<(u16, Context), usize>,
    tallies: Vec<Tally>,
    /// Charges since they were last taken ([`crate::MemoryModel::take_charges`]).
    pub charges: Charges,
}

/// Position of the tallies of one key in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account(usize);

impl Ledger {
    const NO_TALLIES: usize = usize::MAX;

    /// Makes an empty ledger of `events` kinds for `vcpus` vCPUs.
    pub fn new(events: usize, vcpus: usize) -> Ledger {
        Ledger {
            events,
            current: vec![(Context::default(), Self::NO_TALLIES); vcpus],
            starts: HashMap::new(),
            tallies: Vec::new(),
            charges: Charges::default(),
        }
    }

    /// Returns the account to which a reference belongs. The account is valid until [`Ledger::clear`].
    #[inline(always)]
    pub fn select(&mut self, reference: &MemRef) -> Account {
        let (context, start) = self.current[usize::from(reference.vcpu)];
        let start = if context == reference.context && start != Self::NO_TALLIES {
            start
        } else {
            self.switch(reference.vcpu, reference.context)
        };
        Account(start + self.events * usize::from(reference.privilege == Privilege::Kernel))
    }

    #[cold]
    fn switch(&mut self, vcpu: u16, context: Context) -> usize {
        let start = *self.starts.entry((vcpu, context)).or_insert_with(|| {
            let start = self.tallies.len();
            self.tallies
                .resize(start + 2 * self.events, Tally::default());
            start
        });
        self.current[usize::from(vcpu)] = (context, start);
        start
    }

    /// Counts one event of kind `event` that cost `latency` cycles.
    #[inline]
    pub fn charge(&mut self, account: Account, event: usize, latency: u64) {
        self.tallies[account.0 + event].add(latency);
    }

    /// Counts one event of kind `event` whose events have one latency, known to the model, unless they cost nothing.
    #[inline(always)]
    pub fn charge_fixed(&mut self, account: Account, event: usize, cycles: u64) {
        let tally = &mut self.tallies[account.0 + event];
        tally.count += 1;
        tally.cycles += cycles;
    }

    /// Clears all tallies.
    pub fn clear(&mut self) {
        self.current.fill((Context::default(), Self::NO_TALLIES));
        self.starts.clear();
        self.tallies.clear();
    }

    /// Returns the tallies of every key that had an event, indexed by kind, in the order of the keys.
    pub fn accounts(&self) -> BTreeMap<Key, &[Tally]> {
        let mut accounts = BTreeMap::new();
        for (&(vcpu, context), &start) in &self.starts {
            for (offset, privilege) in [(0, Privilege::User), (self.events, Privilege::Kernel)] {
                let tallies = &self.tallies[start + offset..start + offset + self.events];
                if tallies.iter().any(|tally| tally.count != 0) {
                    accounts.insert((vcpu, context, privilege), tallies);
                }
            }
        }
        accounts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Site};

    fn reference(vcpu: u16, context: u32, privilege: Privilege) -> MemRef {
        MemRef {
            vcpu,
            privilege,
            access: Access::Read,
            context: Context(context),
            physical: 0,
            linear: 0,
            size: 8,
            now: 0,
            site: Site::default(),
            non_temporal: false,
            locked: false,
            large_page: false,
        }
    }

    #[test]
    fn keys_are_apart_and_ordered() {
        let mut ledger = Ledger::new(3, 2);
        for (vcpu, context, privilege, event, latency) in [
            (1, 7, Privilege::User, 0, 5),
            (1, 7, Privilege::Kernel, 0, 6),
            (0, 9, Privilege::User, 2, 1),
            (1, 8, Privilege::User, 1, 4),
            (1, 7, Privilege::User, 0, 5),
            (1, 7, Privilege::User, 1, 2),
            (1, 7, Privilege::User, 1, 3),
        ] {
            let account = ledger.select(&reference(vcpu, context, privilege));
            ledger.charge(account, event, latency);
        }
        let accounts = ledger.accounts();
        let keys: Vec<Key> = accounts.keys().copied().collect();
        assert_eq!(
            keys,
            [
                (0, Context(9), Privilege::User),
                (1, Context(7), Privilege::User),
                (1, Context(7), Privilege::Kernel),
                (1, Context(8), Privilege::User),
            ]
        );
        let tallies = accounts[&(1, Context(7), Privilege::User)];
        assert_eq!(
            (tallies[0].count, tallies[0].cycles, tallies[0].latency()),
            (2, 10, 5)
        );
        assert_eq!(
            (tallies[1].count, tallies[1].cycles, tallies[1].latency()),
            (2, 5, 0)
        );
        assert_eq!(tallies[2], Tally::default());
    }

    #[test]
    fn clear_forgets_and_the_same_key_starts_again() {
        let mut ledger = Ledger::new(1, 1);
        let account = ledger.select(&reference(0, 3, Privilege::User));
        ledger.charge(account, 0, 9);
        ledger.clear();
        assert!(ledger.accounts().is_empty());
        let account = ledger.select(&reference(0, 3, Privilege::User));
        ledger.charge(account, 0, 2);
        let accounts = ledger.accounts();
        assert_eq!(accounts[&(0, Context(3), Privilege::User)][0].cycles, 2);
    }
}
