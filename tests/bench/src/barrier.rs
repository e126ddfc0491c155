//! Upper bound of the throughput of two host threads that synchronize as often as the threads of two nodes do, independent of their work.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::utils::CachePadded;

/// Time for which steps are counted, to find the number of steps in a piece.
const CALIBRATION: Duration = Duration::from_millis(50);
/// Number of checks of the other thread's counter before a waiting thread yields its core.
const PATIENCE: u32 = 100_000;

/// Returns the throughput of two threads, divided by that of one thread that does the work of both. Each thread's work takes about `whole`
/// and is divided into pieces of duration `piece`. After each piece a thread waits until the other thread has done as many pieces. The work
/// is arithmetic in registers, so the threads share only two counters, use no cache, and their pieces are equal. Only two losses remain:
/// the synchronization itself, and waiting while the other thread's core is interrupted or slower.
pub fn throughput(piece: Duration, whole: Duration) -> f64 {
    let steps = steps_in(piece);
    let pieces = (whole.as_secs_f64() / piece.as_secs_f64()).ceil().max(1.0) as u64;
    let began = Instant::now();
    for _ in 0..2 * pieces {
        work(steps);
    }
    let one = began.elapsed();
    let counters = [Counter::default(), Counter::default()];
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| do_pieces(&counters[1], &counters[0], pieces, steps));
        do_pieces(&counters[0], &counters[1], pieces, steps);
    });
    one.as_secs_f64() / began.elapsed().as_secs_f64()
}

/// Number of pieces that a thread has done, on a cache line of its own.
type Counter = CachePadded<AtomicU64>;

/// Does all pieces, and waits after each piece for the other thread.
fn do_pieces(own: &Counter, other: &Counter, pieces: u64, steps: u64) {
    for done in 1..=pieces {
        work(steps);
        own.store(done, Ordering::Release);
        let mut checks = 0;
        while other.load(Ordering::Acquire) < done {
            checks += 1;
            if checks < PATIENCE {
                spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }
}

/// Returns the number of steps that a core does in `piece`, at least one.
fn steps_in(piece: Duration) -> u64 {
    const STEPS: u64 = 10_000;
    let began = Instant::now();
    let mut done = 0;
    while began.elapsed() < CALIBRATION {
        work(STEPS);
        done += STEPS;
    }
    let rate = done as f64 / began.elapsed().as_secs_f64();
    ((rate * piece.as_secs_f64()) as u64).max(1)
}

/// Performs a chain of dependent steps (xorshift).
fn work(steps: u64) {
    let mut x = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..steps {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_is_ahead_of_the_other_by_more_than_a_piece() {
        let counters = [Counter::default(), Counter::default()];
        thread::scope(|scope| {
            scope.spawn(|| do_pieces(&counters[1], &counters[0], 1000, 10));
            for done in 1..=1000 {
                // The other thread may have done this piece, but not the next one, since this thread has not reported this piece yet.
                assert!(counters[1].load(Ordering::Acquire) <= done);
                counters[0].store(done, Ordering::Release);
            }
        });
        assert_eq!(counters[1].load(Ordering::Acquire), 1000);
    }

    #[test]
    fn a_piece_is_at_least_a_step_and_the_ratio_one_of_two_times() {
        assert_eq!(steps_in(Duration::ZERO), 1);
        let ratio = throughput(Duration::from_micros(20), Duration::from_millis(2));
        assert!(ratio.is_finite() && ratio > 0.0, "{ratio}");
    }
}
