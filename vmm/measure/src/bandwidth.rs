//! Bytes that loads, stores and copies move, of one core and of all.

use std::arch::asm;
use std::sync::Barrier;
use std::thread;

use crate::MeasureError;
use crate::affinity::Bound;
use crate::buffer::{Buffer, Pages};
use crate::statistics::Measurement;
use crate::timer::{steps_of, thread_time};

/// Timed runs of each kind.
const RUNS: usize = 25;
/// Length of a run in nanoseconds.
const LENGTH: u64 = 2_000_000;
/// Bytes of a round of each loop.
const BLOCK: usize = 512;

/// What moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Loads of whole vectors.
    Load,
    /// Stores of whole vectors, which bring lines in.
    Store,
    /// A load and a store of each vector, from one half of the working set to the other. Bytes read and bytes written both count.
    Copy,
}

/// Bandwidth of a level, in GB/s: bytes in a nanosecond.
#[derive(Debug, Clone, PartialEq)]
pub struct Bandwidth {
    /// Number of cores that ask at the same time.
    pub cores: usize,
    /// Bytes that each core goes through.
    pub working_set: usize,
    /// Loads.
    pub load: Measurement<f64>,
    /// Stores.
    pub store: Measurement<f64>,
    /// Copies.
    pub copy: Measurement<f64>,
}

/// Returns the bytes of the vectors that are moved.
pub fn vector() -> usize {
    if is_x86_feature_detected!("avx2") {
        32
    } else {
        16
    }
}

/// Measures the bandwidth of all these CPUs together. Each goes through a working set of its own.
///
/// A CPU's rate is of its own processor time, so that other programs do not count. The rates of a round are added, and the upper quartile
/// of the rounds is taken.
pub fn measure(cpus: &[usize], working_set: usize) -> Result<Bandwidth, MeasureError> {
    let barrier = Barrier::new(cpus.len());
    let rates = thread::scope(|scope| {
        let start = |cpu: &usize| {
            let (cpu, barrier) = (*cpu, &barrier);
            scope.spawn(move || rates(cpu, working_set, barrier))
        };
        let threads: Vec<_> = cpus.iter().map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .expect("the threads of a bandwidth do not panic")
        };
        threads
            .into_iter()
            .map(join)
            .collect::<Result<Vec<Rates>, MeasureError>>()
    })?;
    let sum = |kind: usize| {
        let rounds = (0..RUNS).map(|run| rates.iter().map(|rates| rates[kind][run]).sum());
        Measurement::of_rates(&rounds.collect::<Vec<f64>>())
    };
    Ok(Bandwidth {
        cores: cpus.len(),
        working_set,
        load: sum(0),
        store: sum(1),
        copy: sum(2),
    })
}

/// Rates of each round of loads, stores and copies.
type Rates = [Vec<f64>; 3];

/// Measures the rates of one CPU. Each round begins when all CPUs are there.
fn rates(cpu: usize, working_set: usize, barrier: &Barrier) -> Result<Rates, MeasureError> {
    let bound = Bound::to(cpu);
    let buffer = Buffer::new(working_set, Pages::Huge);
    let bytes = working_set.next_multiple_of(2 * BLOCK);
    let rates = [Kind::Load, Kind::Store, Kind::Copy].map(|kind| {
        // A CPU without memory goes to the barriers all the same, since the others wait there.
        let mut run = |passes: u64| {
            if let Ok(buffer) = &buffer {
                for _ in 0..passes {
                    go(buffer, bytes, kind);
                }
            }
        };
        let passes = if buffer.is_ok() {
            steps_of(LENGTH, 1, &mut run)
        } else {
            1
        };
        let round = |_| {
            barrier.wait();
            let before = thread_time();
            run(passes);
            (passes * bytes as u64) as f64 / (thread_time() - before).max(1) as f64
        };
        (0..RUNS).map(round).collect()
    });
    bound.and(buffer)?;
    Ok(rates)
}

/// Goes once through the first `bytes` of a buffer.
fn go(buffer: &Buffer, bytes: usize, kind: Kind) {
    assert!(bytes <= buffer.len() && bytes.is_multiple_of(2 * BLOCK));
    let wide = vector() == 32;
    match (kind, wide) {
        (Kind::Load, true) => load_32(buffer.start(), bytes),
        (Kind::Load, false) => load_16(buffer.start(), bytes),
        (Kind::Store, true) => store_32(buffer.start(), bytes),
        (Kind::Store, false) => store_16(buffer.start(), bytes),
        (Kind::Copy, true) => copy_32(buffer.start(), bytes),
        (Kind::Copy, false) => copy_16(buffer.start(), bytes),
    }
}

/// Defines a function that goes through memory by a loop. A round of the loop executes `$load` and `$store`, if given, for eight vectors.
macro_rules! pass {
    ($name:ident, $width:literal, $move:literal, $register:literal, $end:literal, $($what:ident)+) => {
        fn $name(start: *mut u8, bytes: usize) {
            let way = if stringify!($($what)+) == "load store" { bytes / 2 } else { bytes };
            // SAFETY: the caller has checked that the buffer has the bytes, that whole rounds go into half of them, and that the processor
            // has the vectors. The loop changes the registers that it names and the flags.
            unsafe {
                asm!(
                    "2:",
                    $(pass!($what $width $move $register),)+
                    "add {from}, 8 * {width}",
                    "add {to}, 8 * {width}",
                    "cmp {from}, {end}",
                    "jb 2b",
                    $end,
                    width = const $width,
                    from = inout(reg) start => _,
                    to = inout(reg) start.add(bytes - way) => _,
                    end = in(reg) start.add(way),
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    options(nostack),
                );
            }
        }
    };
    (load $width:literal $move:literal $register:literal) => {
        concat!(
            $move, " ", $register, "0, [{from} + 0 * {width}]\n",
            $move, " ", $register, "1, [{from} + 1 * {width}]\n",
            $move, " ", $register, "2, [{from} + 2 * {width}]\n",
            $move, " ", $register, "3, [{from} + 3 * {width}]\n",
            $move, " ", $register, "4, [{from} + 4 * {width}]\n",
            $move, " ", $register, "5, [{from} + 5 * {width}]\n",
            $move, " ", $register, "6, [{from} + 6 * {width}]\n",
            $move, " ", $register, "7, [{from} + 7 * {width}]\n",
        )
    };
    (store $width:literal $move:literal $register:literal) => {
        concat!(
            $move, " [{to} + 0 * {width}], ", $register, "0\n",
            $move, " [{to} + 1 * {width}], ", $register, "1\n",
            $move, " [{to} + 2 * {width}], ", $register, "2\n",
            $move, " [{to} + 3 * {width}], ", $register, "3\n",
            $move, " [{to} + 4 * {width}], ", $register, "4\n",
            $move, " [{to} + 5 * {width}], ", $register, "5\n",
            $move, " [{to} + 6 * {width}], ", $register, "6\n",
            $move, " [{to} + 7 * {width}], ", $register, "7\n",
        )
    };
}

pass!(load_32, 32, "vmovdqa", "ymm", "vzeroupper", load);
pass!(store_32, 32, "vmovdqa", "ymm", "vzeroupper", store);
pass!(copy_32, 32, "vmovdqa", "ymm", "vzeroupper", load store);
pass!(load_16, 16, "movdqa", "xmm", "", load);
pass!(store_16, 16, "movdqa", "xmm", "", store);
pass!(copy_16, 16, "movdqa", "xmm", "", load store);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_moves_the_first_half_to_the_second() {
        let copies: [fn(*mut u8, usize); 2] = [copy_16, copy_32];
        for copy in &copies[..vector() / 16] {
            let buffer = Buffer::new(2 * BLOCK, Pages::Small).unwrap();
            let byte = |at: usize| buffer.line(0).wrapping_add(at);
            for at in 0..BLOCK {
                // SAFETY: the byte lies in the buffer.
                unsafe { byte(at).write(at as u8) };
            }
            copy(buffer.start(), 2 * BLOCK);
            for at in 0..BLOCK {
                // SAFETY: the byte lies in the buffer.
                assert_eq!(unsafe { byte(BLOCK + at).read() }, at as u8);
            }
        }
    }

    #[test]
    fn every_cpu_is_asked_and_a_missing_one_is_an_error() {
        let cpus = crate::affinity::allowed().unwrap();
        let bandwidth = measure(&cpus[..1], 16 << 10).unwrap();
        assert_eq!(bandwidth.cores, 1);
        assert!(bandwidth.load.value > 0.0 && bandwidth.copy.value > 0.0);
        assert!(matches!(
            measure(&[cpus[0], 1023], 16 << 10),
            Err(MeasureError::Cpu { .. })
        ));
    }
}
