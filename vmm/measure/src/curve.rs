//! Latency of loads by the size of what they go through.

use std::cell::RefCell;

use crate::MeasureError;
use crate::buffer::{Buffer, LINE, Pages};
use crate::chain::{Chain, LOADS_A_ROUND, random_order};
use crate::levels::Point;
use crate::timer::{Reading, Timer};

/// Smallest size of a curve in bytes.
const SMALLEST: usize = 4096;
/// Bytes over which flushed lines lie: in rows of all banks of memory, and in no more pages than second-level TLBs have.
const FLUSHED: usize = 4 << 20;
/// Timed runs of a point.
const RUNS: usize = 100;
/// Loads before the first timed one, at most.
const WARM_UP: u64 = 1 << 20;

/// Returns the sizes of a curve up to `most` bytes: four in each octave.
pub fn sizes(most: usize) -> Vec<usize> {
    let octaves = (0..).map(|octave| SMALLEST << octave);
    octaves
        .take_while(|size| *size <= most)
        .flat_map(|size| (4..8).map(move |quarter| size / 4 * quarter))
        .filter(|size| *size <= most)
        .collect()
}

/// A latency curve, and how it was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Time of a load by the bytes of the working set.
    pub points: Vec<Point>,
    /// Share of the buffer in huge pages, from 0 to 1, where Linux tells it.
    pub huge_share: Option<f64>,
}

/// Where the kinds of a curve's points begin.
#[derive(Debug, Clone, Copy)]
pub struct Method {
    /// Bytes of the caches that the core has for itself.
    pub private: usize,
    /// Bytes of the last cache.
    pub last: usize,
    /// Whether working sets of shared caches are loaded anew before each run. Otherwise other cores take lines away while a slow walk goes
    /// around.
    pub refresh: bool,
    /// Size of pages.
    pub pages: Pages,
}

/// Measures the latency of dependent loads of lines in random order, for working sets of these sizes.
///
/// In private caches and in memory, the walk goes around the working set. In shared caches, the working set is first loaded in ascending
/// order. The walk then goes through the half that was loaded first, which private caches no longer have.
pub fn measure(timer: &mut Timer, sizes: &[usize], method: Method) -> Result<Curve, MeasureError> {
    let most = sizes.last().copied().unwrap_or(SMALLEST);
    let mut buffer = Buffer::new(most, method.pages)?;
    let huge_share = buffer.huge_share();
    let mut points = Vec::new();
    for size in sizes {
        let refreshed = method.refresh && *size > method.private && *size <= 2 * method.last;
        let walked = if refreshed { size / 2 } else { *size };
        let order = random_order(walked / LINE);
        let mut chain = Chain::link(&mut buffer, &order);
        chain.warm_up(WARM_UP);
        let time = if refreshed {
            after_sweep(timer, &mut chain, *size)
        } else {
            around(timer, &mut chain)
        };
        points.push(Point {
            size: *size as f64,
            time,
        });
    }
    Ok(Curve { points, huge_share })
}

/// Times a walk that goes on around its cycle.
pub fn around(timer: &mut Timer, chain: &mut Chain<'_>) -> Reading {
    let steps = (chain.lines() as u64)
        .clamp(1024, 4096)
        .next_multiple_of(LOADS_A_ROUND);
    timer.sample(RUNS, steps, || (), || chain.walk(steps))
}

/// Times parts of a walk, each after all lines of the first `bytes` were loaded.
fn after_sweep(timer: &mut Timer, chain: &mut Chain<'_>, bytes: usize) -> Reading {
    let steps = 1024.min(chain.lines() as u64) / LOADS_A_ROUND * LOADS_A_ROUND;
    let chain = RefCell::new(chain);
    timer.sample(
        RUNS,
        steps,
        || chain.borrow().sweep(bytes),
        || chain.borrow_mut().walk(steps),
    )
}

/// Measures the latency of memory: loads of lines that were flushed from all caches, in random order, of so few pages that TLBs have them.
pub fn memory(timer: &mut Timer) -> Result<Reading, MeasureError> {
    let mut buffer = Buffer::new(FLUSHED, Pages::Huge)?;
    let mut order = random_order(FLUSHED / LINE);
    order.truncate(1024);
    let mut chain = Chain::link(&mut buffer, &order);
    chain.warm_up(WARM_UP);
    let chain = RefCell::new(chain);
    let steps = order.len() as u64;
    Ok(timer.sample(
        4 * RUNS,
        steps,
        || chain.borrow().flush(),
        || chain.borrow_mut().walk(steps),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_up_to_the_greatest() {
        assert_eq!(sizes(8192), [4096, 5120, 6144, 7168, 8192]);
        let sizes = sizes(256 << 20);
        assert_eq!(sizes.last(), Some(&(256 << 20)));
        assert!(sizes.iter().all(|size| size % LINE == 0));
    }
}
