//! Finds plateaus and reaches of levels in a latency curve. Pure arithmetic.

use crate::timer::Reading;

/// Points of a curve from which a plateau's height is taken.
const WINDOW: usize = 3;

/// A point of a latency curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// What is gone through: bytes, or pages.
    pub size: f64,
    /// Time of a load.
    pub time: Reading,
}

impl Point {
    fn cycles(&self) -> f64 {
        self.time.cycles.value
    }
}

/// Returns the flattest [`WINDOW`] neighbouring points with sizes in the range, of which the middle one is the height of a plateau. Where
/// the range has fewer points, the point next to its middle is returned. Returns nothing of an empty curve.
pub fn plateau(curve: &[Point], from: f64, to: f64) -> Option<Point> {
    let inside: Vec<Point> = curve
        .iter()
        .filter(|p| p.size >= from && p.size <= to)
        .copied()
        .collect();
    let rise = |window: &[Point]| {
        let highest = window.iter().map(Point::cycles).fold(f64::MIN, f64::max);
        let lowest = window.iter().map(Point::cycles).fold(f64::MAX, f64::min);
        highest / lowest.max(1e-9)
    };
    let flattest = inside
        .windows(WINDOW)
        .min_by(|a, b| rise(a).total_cmp(&rise(b)));
    if let Some(window) = flattest {
        let mut window = window.to_vec();
        window.sort_by(|a, b| a.cycles().total_cmp(&b.cycles()));
        return Some(window[WINDOW / 2]);
    }
    let middle = (from.max(1.0) * to.min(1e15)).sqrt().ln();
    let distance = |p: &Point| (p.size.ln() - middle).abs();
    curve
        .iter()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
        .copied()
}

/// Returns how much a level serves: the greatest size times share of loads that the level answers. `inner` and `outer` are the latencies of
/// the level and of the one behind it, in cycles.
///
/// A level with exact LRU answers nothing of a cycle that is too long for it, so that the greatest product is at its size. With other
/// policies the share falls slowly, and the product stays near the size. Shares below a half are left out, since noise in them is large.
pub fn reach(curve: &[Point], inner: f64, outer: f64) -> f64 {
    let served = |p: &Point| {
        let share = (outer - p.cycles()) / (outer - inner).max(1e-9);
        (p.size, share.clamp(0.0, 1.0))
    };
    curve
        .iter()
        .map(served)
        .filter(|(_, share)| *share >= 0.5)
        .map(|(size, share)| size * share)
        .fold(0.0, f64::max)
}

/// Latency and reach of a level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// Time of a load that the level answers.
    pub time: Reading,
    /// Bytes of a working set that the level, with those inside it, answers.
    pub reach: f64,
}

/// Returns latency and reach of each level of these stated sizes, and the latency of memory. The curve goes beyond the last level.
pub fn read(curve: &[Point], sizes: &[f64]) -> Option<(Vec<Level>, Reading)> {
    let mut times = Vec::new();
    let mut inner = 0.0;
    for size in sizes {
        times.push(plateau(curve, inner * 2.0, size * 0.8)?.time);
        inner = *size;
    }
    let memory = plateau(curve, inner * 4.0, f64::INFINITY)?.time;
    times.push(memory);
    let levels = times
        .windows(2)
        .map(|pair| {
            let (time, outer) = (pair[0], pair[1]);
            let reach = reach(curve, time.cycles.value, outer.cycles.value);
            Level { time, reach }
        })
        .collect();
    Some((levels, memory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Measurement;

    /// Returns a reading of so many cycles at 2 GHz.
    fn time(cycles: f64) -> Reading {
        let cycles = Measurement {
            value: cycles,
            spread: 0.0,
        };
        Reading {
            cycles,
            nanoseconds: cycles.times(0.5),
        }
    }

    /// Returns the curve of caches of these sizes and latencies before memory, with four points an octave. `lru` caches answer nothing of a
    /// cycle that is too long for them. Others answer the share that they hold.
    fn curve(levels: &[(f64, f64)], memory: f64, lru: bool) -> Vec<Point> {
        (0..68)
            .map(|step| {
                let size = 4096.0 * (1.0 + f64::from(step % 4) / 4.0) * f64::from(1 << (step / 4));
                let latency = levels
                    .iter()
                    .rev()
                    .fold(memory, |outer, (capacity, latency)| {
                        let share = if size <= *capacity {
                            1.0
                        } else if lru {
                            0.0
                        } else {
                            capacity / size
                        };
                        latency * share + outer * (1.0 - share)
                    });
                Point {
                    size,
                    time: time(latency),
                }
            })
            .collect()
    }

    const SIZES: [f64; 3] = [32768.0, 1048576.0, 33554432.0];

    #[test]
    fn levels_of_exact_lru_have_their_sizes() {
        let caches = [(SIZES[0], 4.0), (SIZES[1], 14.0), (SIZES[2], 50.0)];
        let (levels, memory) = read(&curve(&caches, 400.0, true), &SIZES).unwrap();
        assert_eq!(memory.cycles.value, 400.0);
        for (level, (size, latency)) in levels.iter().zip(caches) {
            assert_eq!((level.reach, level.time.cycles.value), (size, latency));
        }
    }

    #[test]
    fn a_small_share_of_the_third_level_is_found() {
        let caches = [(SIZES[0], 4.0), (SIZES[1], 14.0), (6_000_000.0, 50.0)];
        let (levels, memory) = read(&curve(&caches, 400.0, true), &SIZES).unwrap();
        assert_eq!(levels[2].time.cycles.value, 50.0);
        assert!(
            (5e6..=6e6).contains(&levels[2].reach),
            "{}",
            levels[2].reach
        );
        assert_eq!(memory.cycles.value, 400.0);
    }

    #[test]
    fn levels_that_replace_at_random_are_found_within_a_fifth() {
        let caches = [(SIZES[0], 4.0), (SIZES[1], 14.0), (SIZES[2], 50.0)];
        let (levels, memory) = read(&curve(&caches, 400.0, false), &SIZES).unwrap();
        assert!(memory.cycles.value > 380.0 * 0.85);
        for (level, (size, latency)) in levels.iter().zip(caches) {
            assert!(
                (level.reach / size - 1.0).abs() < 0.2,
                "{} of {size}",
                level.reach
            );
            assert!((level.time.cycles.value / latency - 1.0).abs() < 0.2);
        }
    }

    #[test]
    fn a_short_range_has_the_nearest_point() {
        let curve = curve(&[(SIZES[0], 4.0)], 100.0, true);
        assert_eq!(plateau(&curve, 8192.0, 8192.0).unwrap().size, 8192.0);
        assert!(plateau(&[], 1.0, 2.0).is_none());
    }
}
