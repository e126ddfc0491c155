//! How many misses a core waits for at a time.

use crate::buffer::{Buffer, LINE};
use crate::chain::{Chain, Walks, random_order};
use crate::statistics::Measurement;
use crate::timer::{Reading, Timer};

/// Numbers of walks that are tried.
const COUNTS: [usize; 14] = [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32];

/// Timed runs of each number, and loads in a run.
const RUNS: usize = 100;
const LOADS: usize = 4096;

/// Loads of several independent walks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Number of walks.
    pub walks: usize,
    /// Time from one load to the next, whichever walk it is of.
    pub time: Reading,
}

/// Misses in flight.
#[derive(Debug, Clone, PartialEq)]
pub struct Parallelism {
    /// Latency of the best throughput: misses that wait at a time.
    pub misses: Measurement<f64>,
    /// Throughput by number of walks.
    pub steps: Vec<Step>,
}

/// Measures the throughput of 1 to 32 walks along a random cycle of the first `bytes` of a buffer, and puts it in relation to the latency of
/// one walk. With `refresh`, all lines are loaded before each run, and the walks go through the half that was loaded first.
pub fn measure(
    timer: &mut Timer,
    buffer: &mut Buffer,
    bytes: usize,
    refresh: bool,
    latency: Reading,
) -> Parallelism {
    let order = random_order(if refresh { bytes / 2 } else { bytes } / LINE);
    let mut chain = Chain::link(buffer, &order);
    chain.warm_up(1 << 20);
    let mut steps = Vec::new();
    for count in COUNTS {
        let mut walks = chain.walks(count);
        let loads = LOADS.min(order.len());
        let rounds = (loads / count) as u64;
        let prepare = || {
            if refresh {
                chain.sweep(bytes);
            }
        };
        let round = timer.sample(RUNS, rounds, prepare, || go(&mut walks, count, rounds));
        steps.push(Step {
            walks: count,
            time: round.divided(count as f64),
        });
    }
    Parallelism {
        misses: in_flight(&steps, latency),
        steps,
    }
}

fn go(walks: &mut Walks<'_>, count: usize, rounds: u64) {
    match count {
        1 => walks.walk::<1>(rounds),
        2 => walks.walk::<2>(rounds),
        3 => walks.walk::<3>(rounds),
        4 => walks.walk::<4>(rounds),
        6 => walks.walk::<6>(rounds),
        8 => walks.walk::<8>(rounds),
        10 => walks.walk::<10>(rounds),
        12 => walks.walk::<12>(rounds),
        14 => walks.walk::<14>(rounds),
        16 => walks.walk::<16>(rounds),
        20 => walks.walk::<20>(rounds),
        24 => walks.walk::<24>(rounds),
        28 => walks.walk::<28>(rounds),
        _ => walks.walk::<32>(rounds),
    }
}

/// Returns latency divided by the shortest time between two loads: by Little's law the loads that wait at a time.
pub fn in_flight(steps: &[Step], latency: Reading) -> Measurement<f64> {
    let times = steps.iter().map(|step| step.time.nanoseconds);
    let Some(best) = times.min_by(|a, b| a.value.total_cmp(&b.value)) else {
        return Measurement {
            value: 1.0,
            spread: 0.0,
        };
    };
    Measurement {
        value: (latency.nanoseconds.value / best.value.max(1e-9)).max(1.0),
        spread: latency.nanoseconds.spread + best.spread,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(nanoseconds: f64) -> Reading {
        let nanoseconds = Measurement {
            value: nanoseconds,
            spread: 0.01,
        };
        Reading {
            cycles: nanoseconds.times(3.0),
            nanoseconds,
        }
    }

    #[test]
    fn throughput_times_latency_is_what_waits() {
        // A core with 12 buffers: more walks do not help.
        let step = |walks: usize| Step {
            walks,
            time: time(96.0 / walks.min(12) as f64),
        };
        let steps = COUNTS.map(step);
        let misses = in_flight(&steps, time(96.0));
        assert!((misses.value - 12.0).abs() < 1e-9);
        assert!((misses.spread - 0.02).abs() < 1e-9);
    }

    #[test]
    fn at_least_one_miss_waits() {
        let step = Step {
            walks: 1,
            time: time(104.0),
        };
        assert_eq!(in_flight(&[step], time(100.0)).value, 1.0);
        assert_eq!(in_flight(&[], time(100.0)).value, 1.0);
    }
}
