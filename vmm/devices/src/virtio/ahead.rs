//! How far a device's work may be ahead of virtual time.
//!
//! A guest can ask for any amount of work with one notification. A device carries out requests at once as long as their end is near
//! in virtual time; the rest stays in its queue until virtual time has come closer. So a guest's requests cannot take unbounded
//! time or memory of the host. A guest that asks for more than a device can do waits, as on a real device.

/// Until when a device has work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    /// When what was carried out is over, cycles.
    pub until: u64,
    /// How much later that may be than now for another request to be carried out; at least 1.
    pub most: u64,
    /// Requests were left in the queue.
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

    /// Returns whether another request may be carried out; if not, the rest waits.
    pub fn may_go_on(&mut self, now: u64) -> bool {
        self.waiting = self.until.saturating_sub(now) >= self.most;
        !self.waiting
    }

    /// A request takes so many cycles, after those before it.
    pub fn spend(&mut self, now: u64, cycles: u64) {
        self.until = self.until.max(now).saturating_add(cycles);
    }

    /// When the requests that wait may go on; `u64::MAX` if there are none.
    pub fn next_event(&self) -> u64 {
        match self.waiting {
            true => self.until - self.most + 1,
            false => u64::MAX,
        }
    }

    /// Returns whether there are requests that may go on now.
    pub fn is_due(&self, now: u64) -> bool {
        self.next_event() <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_on_when_time_has_come_near() {
        let mut ahead = Ahead::new(100);
        assert!(ahead.may_go_on(5));
        ahead.spend(5, 250);
        assert_eq!(ahead.next_event(), u64::MAX, "nothing waits");
        assert!(!ahead.may_go_on(155));
        assert_eq!(ahead.next_event(), 156);
        assert!(!ahead.is_due(155) && ahead.is_due(156));
        assert!(ahead.may_go_on(156));
        ahead.spend(156, 1);
        assert_eq!((ahead.until, ahead.next_event()), (256, u64::MAX));
        // An idle device gains nothing from having been idle.
        ahead.spend(1000, 1);
        assert_eq!(ahead.until, 1001);
        ahead.spend(1000, u64::MAX);
        assert!(!ahead.may_go_on(u64::MAX - 100));
    }
}
