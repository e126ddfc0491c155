//! Straight lines through measured times, with as many breaks as the data warrant.
//!
//! Errors of measured times grow with the times, so residuals are relative to the measured value. Dynamic programming cuts the points, in
//! the order of their sizes, into runs (Bai and Perron, "Computation and analysis of multiple structural change models", 2003). Each run
//! has a line of its own, so steps are possible. The number of runs is the one of least Schwarz criterion (Schwarz, "Estimating the
//! dimension of a model", 1978), with three parameters a run: intercept, slope, break.
//!
//! Outliers must neither shift a line nor get a run of their own. So a residual of more than three standard deviations costs as much as
//! one of three (the truncated quadratic). A run's line begins as Tukey's resistant line (Exploratory Data Analysis, 1977) and as the
//! least-squares line. Least squares over the points that are no outliers improves each of these lines, and the cheapest line is used. The
//! standard deviation is estimated first, from the median distance of a point from the line through its neighbours (the median absolute
//! deviation of Hampel, 1974).

use statrs::statistics::{Data, OrderStatistics};

/// Largest number of points that are fitted. Of more points, neighbours are joined first.
pub const MOST_POINTS: usize = 240;
/// Least relative standard deviation that a fit assumes. Smaller differences are not worth a break.
const LEAST_SIGMA: f64 = 0.004;
/// Standard deviations beyond which a point is an outlier.
const OUTLIER: f64 = 3.0;
/// Fewest points of a run, if there are as many points.
const SHORTEST: usize = 3;
/// Most lines that are tried from each start: the start itself, then its improvements by least squares.
const ROUNDS: usize = 4;

/// Measured time at a message size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Size of the message in bytes.
    pub bytes: u64,
    /// Time in nanoseconds.
    pub time: f64,
}

/// Run of points of successive sizes, and the straight line through them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Smallest message size of the segment's points, bytes.
    pub from: u64,
    /// Largest message size of the segment's points, bytes.
    pub to: u64,
    /// Number of points in the segment.
    pub points: usize,
    /// Value of the line at 0 bytes, nanoseconds.
    pub intercept: f64,
    /// Slope of the line, nanoseconds per byte.
    pub slope: f64,
}

impl Segment {
    /// Returns the line's value, nanoseconds.
    pub fn at(&self, bytes: u64) -> f64 {
        self.intercept + self.slope * bytes as f64
    }
}

/// Distances of points from a fit: relative residuals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residuals {
    /// Median of the absolute residuals, as a fraction of the measured time.
    pub median: f64,
    /// Greatest absolute residual, as a fraction of the measured time.
    pub largest: f64,
    /// Message size with the greatest absolute residual, bytes.
    pub largest_at: u64,
    /// Number of points whose residual exceeds three standard deviations.
    pub outliers: usize,
}

/// A fit of straight lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Piecewise {
    /// Segments in the order of ascending sizes.
    pub segments: Vec<Segment>,
    /// The relative standard deviation of single points that the fit assumed.
    pub sigma: f64,
    /// Distances of the points from the fit.
    pub residuals: Residuals,
}

impl Piecewise {
    /// Fits lines to points. Their sizes must ascend without repetition, and their times must be positive.
    ///
    /// # Panics
    ///
    /// Without a point.
    pub fn fit(points: &[Point]) -> Piecewise {
        assert!(!points.is_empty(), "no points to fit");
        let points = thinned(points);
        let sigma = sigma(&points);
        let segments = cut(&points, sigma);
        let mut fit = Piecewise {
            segments,
            sigma,
            residuals: Residuals {
                median: 0.0,
                largest: 0.0,
                largest_at: points[0].bytes,
                outliers: 0,
            },
        };
        fit.residuals = fit.residuals_of(&points);
        fit
    }

    /// Returns the fitted time at a size, nanoseconds. Between two runs, the time is interpolated from the end of the first to the
    /// beginning of the second. Outside all runs, the nearest line continues.
    pub fn at(&self, bytes: u64) -> f64 {
        let next = self.segments.partition_point(|segment| segment.to < bytes);
        let Some(segment) = self.segments.get(next) else {
            let last = self.segments.last();
            return last.map_or(0.0, |last| last.at(bytes));
        };
        let before = next.checked_sub(1).map(|before| self.segments[before]);
        match before {
            Some(before) if bytes < segment.from => {
                let (from, to) = (before.to, segment.from);
                let part = (bytes - from) as f64 / (to - from) as f64;
                let (low, high) = (before.at(from), segment.at(to));
                low + (high - low) * part
            }
            _ => segment.at(bytes),
        }
    }

    /// Returns the relative residuals of given points from this fit.
    pub fn residuals_of(&self, points: &[Point]) -> Residuals {
        let mut largest = (0.0, points.first().map_or(0, |point| point.bytes));
        let mut all = Vec::with_capacity(points.len());
        for point in points {
            let residual = (self.at(point.bytes) / point.time - 1.0).abs();
            if residual > largest.0 {
                largest = (residual, point.bytes);
            }
            all.push(residual);
        }
        let outliers = (all.iter())
            .filter(|&&residual| residual > OUTLIER * self.sigma)
            .count();
        Residuals {
            median: median(all),
            largest: largest.0,
            largest_at: largest.1,
            outliers,
        }
    }
}

/// Returns the median, or 0 of no values.
pub(crate) fn median(values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    Data::new(values).median()
}

/// Joins neighbouring points by their median time where there are more than [`MOST_POINTS`].
fn thinned(points: &[Point]) -> Vec<Point> {
    let size = points.len().div_ceil(MOST_POINTS);
    (points.chunks(size))
        .map(|chunk| Point {
            bytes: chunk[chunk.len() / 2].bytes,
            time: median(chunk.iter().map(|point| point.time).collect()),
        })
        .collect()
}

/// Returns the relative standard deviation of a point, from each point's distance from the line through its neighbours.
fn sigma(points: &[Point]) -> f64 {
    let off: Vec<f64> = (points.windows(3))
        .map(|three| {
            let [a, b, c] = [three[0], three[1], three[2]];
            let part = (b.bytes - a.bytes) as f64 / (c.bytes - a.bytes) as f64;
            let middle = a.time + (c.time - a.time) * part;
            let (left, right) = ((1.0 - part) * a.time / b.time, part * c.time / b.time);
            // If the three points have the same relative standard deviation, that of the difference is this many times larger.
            let scale = (1.0 + left * left + right * right).sqrt();
            (middle / b.time - 1.0).abs() / scale
        })
        .collect();
    // The median absolute deviation of a normal distribution is 0.6745 standard deviations.
    (median(off) / 0.6745).max(LEAST_SIGMA)
}

/// A line and the cost of its residuals.
#[derive(Clone, Copy, Debug)]
struct Line {
    intercept: f64,
    slope: f64,
    cost: f64,
}

fn cost(points: &[Point], sigma: f64, (intercept, slope): (f64, f64)) -> f64 {
    (points.iter())
        .map(|point| {
            let residual = (intercept + slope * point.bytes as f64) / point.time - 1.0;
            (residual / sigma).abs().min(OUTLIER).powi(2)
        })
        .sum()
}

/// Returns intercept and slope of the least-squares line of relative residuals over the points for which `keep` is true; the slope is 0 if
/// these points have one size. Returns `None` without points.
fn least_squares(points: &[Point], keep: impl Fn(&Point) -> bool) -> Option<(f64, f64)> {
    // The sums are taken about the weighted mean, so that large sizes lose no digits.
    let (mut weights, mut x, mut y) = (0.0, 0.0, 0.0);
    for point in points.iter().filter(|point| keep(point)) {
        let weight = point.time.powi(-2);
        weights += weight;
        x += weight * point.bytes as f64;
        y += weight * point.time;
    }
    if weights == 0.0 {
        return None;
    }
    let (x, y) = (x / weights, y / weights);
    let (mut xx, mut xy) = (0.0, 0.0);
    for point in points.iter().filter(|point| keep(point)) {
        let weight = point.time.powi(-2);
        let from_mean = point.bytes as f64 - x;
        xx += weight * from_mean * from_mean;
        xy += weight * from_mean * (point.time - y);
    }
    let slope = if xx > 0.0 { xy / xx } else { 0.0 };
    Some((y - slope * x, slope))
}

/// Returns intercept and slope of Tukey's resistant line. The slope joins the medians of the outer thirds, and the intercept is the median
/// of what the slope leaves.
fn resistant(points: &[Point]) -> (f64, f64) {
    let third = points.len().div_ceil(3);
    let of =
        |points: &[Point], value: fn(&Point) -> f64| median(points.iter().map(value).collect());
    let (low, high) = (&points[..third], &points[points.len() - third..]);
    let size = |point: &Point| point.bytes as f64;
    let (from, to) = (of(low, size), of(high, size));
    let rise = of(high, |point| point.time) - of(low, |point| point.time);
    let slope = if to > from { rise / (to - from) } else { 0.0 };
    let rests = (points.iter()).map(|point| point.time - slope * point.bytes as f64);
    (median(rests.collect()), slope)
}

fn line(points: &[Point], sigma: f64) -> Line {
    let starts = [least_squares(points, |_| true), Some(resistant(points))];
    let mut best = Line {
        intercept: 0.0,
        slope: 0.0,
        cost: f64::INFINITY,
    };
    for start in starts.into_iter().flatten() {
        let mut now = start;
        for _ in 0..ROUNDS {
            let cost = cost(points, sigma, now);
            if cost < best.cost {
                best = Line {
                    intercept: now.0,
                    slope: now.1,
                    cost,
                };
            }
            let inlier = |point: &Point| {
                let value = now.0 + now.1 * point.bytes as f64;
                (value / point.time - 1.0).abs() <= OUTLIER * sigma
            };
            match least_squares(points, inlier) {
                Some(better) if better != now => now = better,
                _ => break,
            }
        }
    }
    best
}

/// Returns the runs for which the sum of the lines' costs and of a penalty for each run is least.
fn cut(points: &[Point], sigma: f64) -> Vec<Segment> {
    let count = points.len();
    let shortest = SHORTEST.min(count);
    let penalty = 3.0 * (count as f64).ln().max(1.0);
    // best[i]: least cost of the first i points, with the beginning and the line of their last run.
    let mut best: Vec<Option<(f64, usize, Line)>> = vec![None; count + 1];
    for end in shortest..=count {
        for start in 0..=end - shortest {
            let before = match start {
                0 => 0.0,
                _ => match best[start] {
                    Some((cost, _, _)) => cost,
                    None => continue,
                },
            };
            let line = line(&points[start..end], sigma);
            let cost = before + line.cost + penalty;
            if best[end].is_none_or(|(least, _, _)| cost < least) {
                best[end] = Some((cost, start, line));
            }
        }
    }
    let mut segments = Vec::new();
    let mut end = count;
    while let Some((_, start, line)) = best[end] {
        segments.push(Segment {
            from: points[start].bytes,
            to: points[end - 1].bytes,
            points: end - start,
            intercept: line.intercept,
            slope: line.slope,
        });
        if start == 0 {
            break;
        }
        end = start;
    }
    segments.reverse();
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> Vec<u64> {
        let mut sizes = vec![1, 2, 3, 4, 6, 8, 12, 13, 16, 19, 21, 24, 27, 29, 32, 35];
        let mut size = 45_u64;
        while size < 8 << 20 {
            sizes.extend([size - 3, size, size + 3]);
            size = size * 7 / 5;
        }
        sizes
    }

    /// Returns deterministic noise in [-1, 1).
    fn noise(seed: u64) -> f64 {
        let mixed = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    fn truth(bytes: u64) -> f64 {
        let n = bytes as f64;
        match bytes {
            0..=4096 => 1000.0 + 0.5 * n,
            4097..=65536 => 4000.0 + 0.2 * n,
            _ => 12_000.0 + 0.1 * n,
        }
    }

    fn points(amplitude: f64, outliers: bool) -> Vec<Point> {
        (sizes().into_iter().enumerate())
            .map(|(number, bytes)| {
                let mut time = truth(bytes) * (1.0 + amplitude * noise(number as u64));
                if outliers && number % 13 == 5 {
                    time *= 3.0;
                }
                Point { bytes, time }
            })
            .collect()
    }

    #[test]
    fn lines_and_breaks_are_found_again() {
        for (amplitude, outliers, bound) in [
            (0.0, false, 1e-9),
            (0.02, false, 0.015),
            (0.02, true, 0.02),
            (0.05, true, 0.05),
        ] {
            let fit = Piecewise::fit(&points(amplitude, outliers));
            let what = format!("noise {amplitude}, outliers {outliers}: {fit:#?}");
            assert_eq!(fit.segments.len(), 3, "{what}");
            for bytes in [
                1,
                100,
                1000,
                3000,
                6000,
                30_000,
                50_000,
                100_000,
                1 << 20,
                8 << 20,
            ] {
                let error = (fit.at(bytes) / truth(bytes) - 1.0).abs();
                assert!(error <= bound, "{bytes} B: {error} in {what}");
            }
            // No break is off by more than the distance between neighbouring sizes.
            assert!((2900..=4096).contains(&fit.segments[0].to), "{what}");
            assert!((46_000..=74_000).contains(&fit.segments[1].to), "{what}");
        }
    }

    #[test]
    fn one_line_stays_one() {
        let points: Vec<Point> = (sizes().into_iter().enumerate())
            .map(|(number, bytes)| Point {
                bytes,
                time: (500.0 + 0.3 * bytes as f64) * (1.0 + 0.04 * noise(number as u64)),
            })
            .collect();
        let fit = Piecewise::fit(&points);
        assert_eq!(fit.segments.len(), 1, "{fit:#?}");
        assert!((0.01..0.05).contains(&fit.sigma), "{fit:#?}");
        assert!((fit.segments[0].slope / 0.3 - 1.0).abs() < 0.02);
    }

    #[test]
    fn few_points_and_many_give_a_fit() {
        let one = Piecewise::fit(&[Point {
            bytes: 8,
            time: 5.0,
        }]);
        assert_eq!(one.at(800), 5.0);
        let two = [(8, 5.0), (16, 9.0)].map(|(bytes, time)| Point { bytes, time });
        assert!((Piecewise::fit(&two).at(12) - 7.0).abs() < 1e-9);
        let many: Vec<Point> = (1..2000)
            .map(|bytes| Point {
                bytes,
                time: 100.0 + bytes as f64,
            })
            .collect();
        let fit = Piecewise::fit(&many);
        assert!((fit.at(1000) / 1100.0 - 1.0).abs() < 1e-6, "{fit:?}");
    }
}
