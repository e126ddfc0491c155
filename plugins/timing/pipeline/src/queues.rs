//! Queues and ports of a core, as times at which their places become free.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::micro::Ports;

/// A queue whose places are given out and become free in program order: the reorder buffer, the load queue, the store queue.
#[derive(Clone, Debug)]
pub(crate) struct InOrder {
    /// Times at which the places become free, the place that was given out first at `next`.
    free_at: Vec<u64>,
    next: usize,
}

impl InOrder {
    /// Makes a queue with so many free places, at least one.
    pub(crate) fn new(places: u32) -> Self {
        Self {
            free_at: vec![0; places.max(1) as usize],
            next: 0,
        }
    }

    /// Returns the time at which the next place is free.
    pub(crate) fn free(&self) -> u64 {
        self.free_at[self.next]
    }

    /// Gives the next place out until a time.
    pub(crate) fn take(&mut self, until: u64) {
        self.free_at[self.next] = until;
        self.next += 1;
        if self.next == self.free_at.len() {
            self.next = 0;
        }
    }
}

/// A pool of equal places that become free in any order: a scheduler, line-fill buffers, page walkers.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    places: usize,
    busy_until: BinaryHeap<Reverse<u64>>,
}

impl Pool {
    /// Makes a pool with so many free places, at least one.
    pub(crate) fn new(places: u32) -> Self {
        Self {
            places: places.max(1) as usize,
            busy_until: BinaryHeap::new(),
        }
    }

    /// Returns the first time from `now` on at which a place is free.
    pub(crate) fn free(&mut self, now: u64) -> u64 {
        while self.busy_until.len() >= self.places {
            match self.busy_until.peek() {
                Some(Reverse(until)) if *until > now => return *until,
                _ => self.busy_until.pop(),
            };
        }
        now
    }

    /// Takes a place until a time. The place must be free at a time that [`Pool::free`] has returned.
    pub(crate) fn take(&mut self, until: u64) {
        if self.busy_until.len() >= self.places {
            self.busy_until.pop();
        }
        self.busy_until.push(Reverse(until));
    }
}

/// Cycles that the table of busy ports covers: a power of two.
const CYCLES: u64 = 1 << 14;

/// Ports of a core, with the cycles in which they start a micro-operation.
#[derive(Clone, Debug)]
pub(crate) struct PortTable {
    /// For each cycle, modulo [`CYCLES`], the cycle's number and its busy ports.
    busy: Vec<(u64, Ports)>,
    /// Number of micro-operations that each port has started.
    uses: [u32; Ports::BITS as usize],
}

impl PortTable {
    pub(crate) fn new() -> Self {
        Self {
            busy: vec![(u64::MAX, 0); CYCLES as usize],
            uses: [0; Ports::BITS as usize],
        }
    }

    fn at(&mut self, cycle: u64) -> &mut Ports {
        let slot = &mut self.busy[(cycle % CYCLES) as usize];
        if slot.0 != cycle {
            *slot = (cycle, 0);
        }
        &mut slot.1
    }

    /// Starts a micro-operation on one of `ports`, from `earliest` on, which keeps its port for `busy` cycles. Returns the cycle in which it
    /// starts. Of several free ports the one that was used least is taken.
    pub(crate) fn start(&mut self, ports: Ports, earliest: u64, busy: u16) -> u64 {
        if ports == 0 {
            return earliest;
        }
        let mut cycle = earliest;
        let free = loop {
            let free = ports & !*self.at(cycle);
            if free != 0 {
                break free;
            }
            cycle += 1;
        };
        let mut chosen = free.trailing_zeros();
        let mut rest = free & (free - 1);
        while rest != 0 {
            let port = rest.trailing_zeros();
            if self.uses[port as usize] < self.uses[chosen as usize] {
                chosen = port;
            }
            rest &= rest - 1;
        }
        self.uses[chosen as usize] += 1;
        for busy_cycle in cycle..cycle + u64::from(busy.max(1)) {
            *self.at(busy_cycle) |= 1 << chosen;
        }
        cycle
    }
}

/// Slots that a path remembers: a power of two.
const SLOTS: u64 = 1 << 12;

/// A path that moves one line at a time, in a fixed number of cycles each: between two levels, or to memory. Time is cut into slots of one
/// line each. Requests come in program order, and may take a slot before one that is taken already.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// Numbers of the slots that are taken, modulo [`SLOTS`].
    taken: Vec<u64>,
    /// Time for a line, in 1/256 of a cycle; 0 for no limit.
    each_line: u64,
    /// Slots that are all taken, from the first to the one behind the last, so that a search need not look at each.
    full: (u64, u64),
    /// Share of a slot that a line takes in the other direction, and the sum of those that have taken no slot yet, in 1/256.
    back: u32,
    waiting_back: u32,
}

impl Path {
    /// Makes a path that moves a line in so many 1/256 of a cycle, and a line in the other direction in a share of this time, in 1/256.
    pub(crate) fn new(each_line: u32, back: u32) -> Self {
        Self {
            taken: vec![u64::MAX; SLOTS as usize],
            each_line: each_line.into(),
            full: (0, 0),
            back,
            waiting_back: 0,
        }
    }

    /// Moves a line in the other direction.
    pub(crate) fn move_back(&mut self, at: u64) {
        self.waiting_back += self.back;
        if self.waiting_back >= 256 {
            self.waiting_back -= 256;
            self.arrival(at, 0);
        }
    }

    /// Returns when a line arrives that is requested at `at`, and would arrive at `arrives` on a free path.
    pub(crate) fn arrival(&mut self, at: u64, arrives: u64) -> u64 {
        if self.each_line == 0 {
            return arrives;
        }
        let wanted = (at << 8) / self.each_line;
        let mut slot = wanted;
        if (self.full.0..self.full.1).contains(&slot) {
            slot = self.full.1;
        }
        while self.taken[(slot % SLOTS) as usize] == slot {
            slot += 1;
        }
        self.taken[(slot % SLOTS) as usize] = slot;
        self.full = match (self.full.0..=self.full.1).contains(&wanted) {
            true => (self.full.0, slot + 1),
            false => (wanted, slot + 1),
        };
        let moved = ((slot + 1) * self.each_line).div_ceil(256);
        arrives.max(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_waits_for_its_first_place() {
        let mut queue = InOrder::new(2);
        queue.take(10);
        queue.take(7);
        assert_eq!(queue.free(), 10);
        queue.take(20);
        assert_eq!(queue.free(), 7);
    }

    #[test]
    fn a_full_pool_waits_for_the_place_that_is_free_first() {
        let mut pool = Pool::new(2);
        pool.take(10);
        pool.take(7);
        assert_eq!(pool.free(3), 7);
        assert_eq!(pool.free(8), 8);
        pool.take(30);
        assert_eq!(pool.free(9), 10);
    }

    #[test]
    fn ports_start_one_operation_a_cycle() {
        let mut ports = PortTable::new();
        let starts: Vec<u64> = (0..5).map(|_| ports.start(0b11, 4, 1)).collect();
        assert_eq!(starts, [4, 4, 5, 5, 6]);
        // A divider keeps its port.
        assert_eq!(ports.start(0b100, 4, 10), 4);
        assert_eq!(ports.start(0b100, 4, 10), 14);
        assert_eq!(ports.start(0, 4, 1), 4);
    }

    #[test]
    fn a_path_moves_one_line_at_a_time() {
        let mut path = Path::new(2 << 8, 0);
        assert_eq!(path.arrival(0, 14), 14);
        let last = (0..20).map(|_| path.arrival(0, 14)).last();
        assert_eq!(last, Some(42));
        // A later request in program order may be earlier in time.
        let mut path = Path::new(2 << 8, 0);
        assert_eq!(path.arrival(100, 114), 114);
        assert_eq!(path.arrival(10, 24), 24);
    }

    #[test]
    fn lines_that_go_back_take_their_share_of_the_path() {
        let mut path = Path::new(2 << 8, 64);
        for line in 1..=400 {
            path.arrival(0, 0);
            path.move_back(0);
            assert_eq!(path.full.1, line + line / 4);
        }
    }
}
