//! Calls of a thread as slices that nest.
//!
//! A run of polls lasts from its first to its last, and a program may poll for two things in turn: their runs overlap, and neither is
//! in the other. Viewers drop such slices or take the end of one for that of the other.

use std::collections::VecDeque;

/// Slices remembered of each thread: more than the tracer has runs of polls at a time.
const REMEMBERED: usize = 8;

/// Ends of earlier slices on each thread.
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

    /// Returns the time when a slice begins that lasts from `entry` to `exit`: later, where another that ended before it would end in it. Slices of a
    /// thread come in the order of their ends.
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
        // Behind it, around both, and within nothing.
        assert_eq!(begin(&mut slices, 20, 30), 20);
        assert_eq!(begin(&mut slices, 5, 40), 5);
        assert_eq!(slices.begin(0, 15, 45), 15, "another thread");
        // A slice that began within the last: it begins when the last has ended.
        assert_eq!(begin(&mut slices, 35, 50), 40);
        assert_eq!(begin(&mut slices, 45, 60), 50);
        // A slice that began within the first: it begins when the slice around the first has ended.
        assert_eq!(begin(&mut slices, 12, 70), 40);
        assert_eq!(slices.begin(7, 1, 2), 1, "no such thread");
    }
}
