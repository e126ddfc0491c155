//! What prefetchers bring ahead of loads in regular order.

use crate::buffer::{Buffer, LINE};
use crate::chain::{Chain, LOADS_A_ROUND};
use crate::timer::{Effort, Reading, Timer};

/// Distances between loads in lines. A negative one goes downwards.
const STRIDES: [isize; 9] = [1, -1, 2, 3, 4, 8, 16, 32, 64];

/// Loads in regular order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stream {
    /// Distance between loads in lines.
    pub stride: isize,
    /// Time of a load.
    pub time: Reading,
}

/// Returns every `stride`-th of so many lines, then every `stride`-th from the next line on, until all lines are there.
fn order(lines: usize, stride: isize) -> Vec<u32> {
    let step = stride.unsigned_abs();
    let mut order: Vec<u32> = (0..step)
        .flat_map(|first| (first..lines).step_by(step))
        .map(|line| line as u32)
        .collect();
    if stride < 0 {
        order.reverse();
    }
    order
}

/// Measures dependent loads through the first `bytes` of a buffer at each stride. The core cannot run ahead of a dependent load, so that
/// what is faster than a random order is the work of prefetchers.
pub fn measure(timer: &mut Timer, buffer: &mut Buffer, bytes: usize) -> Vec<Stream> {
    let lines = bytes.min(buffer.len()) / LINE;
    let mut streams = Vec::new();
    for stride in STRIDES {
        let order = order(lines, stride);
        let mut chain = Chain::link(buffer, &order);
        chain.warm_up(1 << 19);
        let time = timer.time(Effort::MEMORY, LOADS_A_ROUND, |steps| chain.walk(steps));
        streams.push(Stream { stride, time });
    }
    streams
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stride_has_each_line_once() {
        assert_eq!(order(7, 3), [0, 3, 6, 1, 4, 2, 5]);
        assert_eq!(order(4, -1), [3, 2, 1, 0]);
        for stride in STRIDES {
            let mut order = order(500, stride);
            order.sort_unstable();
            assert_eq!(order, (0..500).collect::<Vec<u32>>());
        }
    }
}
