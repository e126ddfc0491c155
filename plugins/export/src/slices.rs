//! Calls of a thread as properly nested slices.
//!
//! A run of polls lasts from its first to its last poll. A program may poll for two requests in turn; then their runs overlap without
//! nesting. Viewers drop such slices, or take the end of one for the end of the other.

use std::collections::VecDeque;

/// Number of slices remembered for each thread: more than the tracer has open runs of polls.
const REMEMBERED: usize = 8;

/// Earlier slices of each thread, by which later slices are shortened.
#[derive(Debug)]
pub struct Slices {
    ended: Vec<VecDeque<(u64, u64)>>,
}

impl Slices {
    /// Makes an empty list of slices for each of `threads` threads.
    pub fn new(threads: usize) -> Slices {
        Slices {
            ended: vec![VecDeque::new(); threads],
        }
    }

    /// Returns the beginning of a slice for a call from `entry` to `exit`. The beginning is moved later if an earlier slice
    /// began before the call and ended inside it. Slices of a thread must come in the order of their ends.
    pub fn begin(&mut self, thread: usize, entry: u64, exit: u64) -> u64 {
        let Some(ended) = self.ended.get_mut(thread) else {
            return entry;
        };
        let mut begin = entry;
        for &(from, to) in ended.iter() {
            if from < begin && begin < to {
                begin = to.min(exit);
            }
        }
        if ended.len() == REMEMBERED {
            ended.pop_front();
        }
        ended.push_back((begin, exit));
        begin
    }
}

#[cfg(test)]
mod tests {
    use super::Slices;

    #[test]
    fn slices_nest() {
        let mut slices = Slices::new(2);
        let begin = |slices: &mut Slices, entry, exit| slices.begin(1, entry, exit);
        assert_eq!(begin(&mut slices, 10, 20), 10);
        // After the first slice, around both, and inside none.
        assert_eq!(begin(&mut slices, 20, 30), 20);
        assert_eq!(begin(&mut slices, 5, 40), 5);
        assert_eq!(slices.begin(0, 15, 45), 15, "another thread");
        // A slice that began inside the last one begins when the last one has ended.
        assert_eq!(begin(&mut slices, 35, 50), 40);
        assert_eq!(begin(&mut slices, 45, 60), 50);
        // A slice that began inside the first one begins when the slice around the first one has ended.
        assert_eq!(begin(&mut slices, 12, 70), 40);
        assert_eq!(slices.begin(7, 1, 2), 1, "no such thread");
    }
}
