//! Predictor of the exits of loops with constant trip counts.
//!
//! Source: Seznec, "A 256 Kbits L-TAGE branch prediction predictor", JILP 9, 2007, section 5. The trips of a loop are the executions of its
//! branch from the first of a round to that which leaves the loop.

/// Loops in a set.
const WAYS: usize = 4;
/// Rounds with equal trips that a loop must have had before its exit is predicted.
const CONFIDENT: u8 = 3;
/// Least trips: exits after fewer are left to history, which sees them as well.
const LEAST_TRIPS: u16 = 3;
/// Refused allocations that a new loop withstands.
const NEW_AGE: u8 = 3;
/// Refused allocations that a loop withstands whose predictions have been better than those from history.
const OLDEST: u8 = 7;

/// What is known of a loop.
#[derive(Clone, Copy, Debug, Default)]
struct Loop {
    /// Mark of the branch; 0 for a free place.
    tag: u16,
    /// Trips of the last round; 0 while unknown.
    trips: u16,
    /// Executions in the current round.
    seen: u16,
    /// Rounds in succession with equal trips, up to [`CONFIDENT`].
    confidence: u8,
    /// Refused allocations that the loop withstands.
    age: u8,
    /// Direction of the branch that stays in the loop.
    body: bool,
}

/// Place of a branch in [`Loops`], and the prediction of it.
#[derive(Clone, Copy, Debug)]
pub struct LoopAnswer {
    set: usize,
    tag: u16,
    way: Option<usize>,
    /// Predicted direction, if trip counts predict one.
    pub taken: Option<bool>,
}

/// Loops with their trip counts, in sets.
#[derive(Clone, Debug)]
pub struct Loops {
    loops: Box<[[Loop; WAYS]]>,
    most_trips: u16,
}

impl Loops {
    /// Makes a predictor of so many loops (a power of two, or 0) of at most `most_trips` trips.
    pub fn new(entries: u32, most_trips: u16) -> Self {
        let sets = if most_trips < LEAST_TRIPS {
            0
        } else {
            entries as usize / WAYS
        };
        Self {
            loops: vec![[Loop::default(); WAYS]; sets].into(),
            most_trips,
        }
    }

    /// Returns the prediction for a branch with the hash `site` of its address, or none if the predictor has no entries.
    #[inline]
    pub fn predict(&self, site: u64) -> Option<LoopAnswer> {
        if self.loops.is_empty() {
            return None;
        }
        let set = (site >> 48) as usize & (self.loops.len() - 1);
        let tag = (site >> 32) as u16 | 1;
        let way = self.loops[set].iter().position(|known| known.tag == tag);
        let taken = way.and_then(|way| self.loops[set][way].prediction());
        Some(LoopAnswer {
            set,
            tag,
            way,
            taken,
        })
    }

    /// Learns what a branch did; `by_history` tells whether the history predicted it right.
    #[inline]
    pub fn train(&mut self, answer: LoopAnswer, taken: bool, by_history: bool) {
        match answer.way {
            Some(way) => {
                let known = &mut self.loops[answer.set][way];
                if answer.taken == Some(taken) && !by_history {
                    known.age = OLDEST;
                }
                if answer.taken == Some(!taken) || !known.step(taken, self.most_trips) {
                    *known = Loop::default();
                }
            }
            None if !by_history => self.allocate(answer, taken),
            None => {}
        }
    }

    /// Takes a loop up whose branch has just left it, as the misprediction suggests.
    fn allocate(&mut self, answer: LoopAnswer, taken: bool) {
        let set = &mut self.loops[answer.set];
        match set.iter_mut().find(|known| known.age == 0) {
            Some(free) => {
                *free = Loop {
                    tag: answer.tag,
                    age: NEW_AGE,
                    body: !taken,
                    ..Loop::default()
                }
            }
            None => set.iter_mut().for_each(|known| known.age -= 1),
        }
    }
}

impl Loop {
    fn prediction(&self) -> Option<bool> {
        let leaves = self.seen + 1 == self.trips;
        (self.confidence >= CONFIDENT).then_some(self.body != leaves)
    }

    /// Follows an execution of the branch. Returns false if this is no loop to keep.
    fn step(&mut self, taken: bool, most_trips: u16) -> bool {
        self.seen += 1;
        if taken == self.body {
            if self.trips != 0 && self.seen >= self.trips {
                self.trips = 0;
                self.confidence = 0;
            }
            return self.seen < most_trips;
        }
        let trips = std::mem::take(&mut self.seen);
        if trips == self.trips {
            self.confidence = (self.confidence + 1).min(CONFIDENT);
        } else {
            self.trips = trips;
            self.confidence = 0;
        }
        trips >= LEAST_TRIPS
    }
}
