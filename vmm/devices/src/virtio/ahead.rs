//! Limit of a device's work ahead of virtual time.
//!
//! A guest can request any amount of work with one notification. A device carries out requests at once while the end of its work is close
//! to the current virtual time. Other requests stay in the queue until virtual time has advanced. So a guest cannot take unbounded time or
//! memory of the host, and waits as on a real device.

/// Limit of the work that a device carries out ahead of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    /// Virtual time in cycles at which the work carried out so far ends.
    pub until: u64,
    /// Distance in cycles from now to `until` from which no further request is carried out; at least 1.
    pub most: u64,
    /// True if requests were left in the queue because of the limit.
    pub waiting: bool,
}

impl Ahead {
    pub fn new(most: u64) -> Self {
        Self {
            until: 0,
            most: most.max(1),
            waiting: false,
        }
    }

    /// Returns whether another request may be carried out at `now` (cycles); if not, marks requests as waiting.
    pub fn may_proceed(&mut self, now: u64) -> bool {
        self.waiting = self.until.saturating_sub(now) >= self.most;
        !self.waiting
    }

    /// Adds the work of a request, which takes `cycles` after the earlier requests.
    pub fn spend(&mut self, now: u64, cycles: u64) {
        self.until = self.until.max(now).saturating_add(cycles);
    }

    /// Returns the virtual time in cycles at which waiting requests may continue; `u64::MAX` if none wait. If a loaded state has requests
    /// that need not wait, the time is in the past.
    pub fn next_event(&self) -> u64 {
        match self.waiting {
            true => self.until.saturating_sub(self.most - 1),
            false => u64::MAX,
        }
    }

    /// Returns whether requests wait and may continue at `now` (cycles). If so, they no longer count as waiting, even if the caller drops
    /// them because their queue is gone.
    pub fn resume(&mut self, now: u64) -> bool {
        self.waiting && self.may_proceed(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_on_when_time_has_come_near() {
        let mut ahead = Ahead::new(100);
        assert!(ahead.may_proceed(5));
        ahead.spend(5, 250);
        assert_eq!(ahead.next_event(), u64::MAX, "nothing waits");
        assert!(!ahead.may_proceed(155));
        assert_eq!(ahead.next_event(), 156);
        assert!(!ahead.resume(155) && ahead.resume(156));
        assert!(!ahead.resume(156), "they have gone on");
        assert!(ahead.may_proceed(156));
        ahead.spend(156, 1);
        assert_eq!((ahead.until, ahead.next_event()), (256, u64::MAX));
        // Time in which a device was idle does not extend the limit.
        ahead.spend(1000, 1);
        assert_eq!(ahead.until, 1001);
        ahead.spend(1000, u64::MAX);
        assert!(!ahead.may_proceed(u64::MAX - 100));
    }
    #[test]
    fn requests_that_wait_without_need_go_on_at_once() {
        for until in [0, 98, 99, 100] {
            let mut ahead = Ahead {
                until,
                waiting: true,
                ..Ahead::new(100)
            };
            assert_eq!(ahead.next_event(), until.saturating_sub(99));
            assert!(ahead.resume(1), "{until}");
            assert_eq!(ahead.next_event(), u64::MAX);
        }
    }
}
