//! What a mispredicted branch costs.

use std::arch::asm;

use crate::chain::Random;
use crate::timer::{Effort, Reading, Timer};

/// Words of bits that decide branches. Their half a million branches are too many for a predictor to learn.
const WORDS: usize = 8192;
/// Branches for each word.
const BRANCHES: u64 = 64;

/// Branches that depend on data.
#[derive(Debug, Clone, PartialEq)]
pub struct Branches {
    /// Time that a mispredicted branch loses.
    pub mispredict: Reading,
    /// Time of a branch that is predicted: the mean of one that is always taken, and of one that never is.
    pub predicted: Reading,
    /// Time of a branch of which half go either way at random.
    pub random: Reading,
}

/// Measures the same code with random bits, with ones and with zeros. Half of the random branches are mispredicted.
pub fn measure(timer: &mut Timer) -> Branches {
    let mut random = Random(7);
    let mixed: Vec<u64> = (0..WORDS).map(|_| random.next()).collect();
    let mut time = |words: &[u64]| {
        let block = WORDS as u64 * BRANCHES;
        let effort = Effort {
            length: 2_000_000,
            ..Effort::CORE
        };
        timer.time(effort, block, |branches| {
            for _ in 0..branches / block {
                decide(words);
            }
        })
    };
    let random = time(&mixed);
    let (zeros, ones) = (time(&[0; WORDS]), time(&[u64::MAX; WORDS]));
    let predicted = mean(zeros, ones);
    Branches {
        mispredict: random.minus(predicted).divided(0.5),
        predicted,
        random,
    }
}

fn mean(a: Reading, b: Reading) -> Reading {
    let mean = |a: crate::Measurement<f64>, b: crate::Measurement<f64>| crate::Measurement {
        value: (a.value + b.value) / 2.0,
        spread: a.spread.max(b.spread),
    };
    Reading {
        cycles: mean(a.cycles, b.cycles),
        nanoseconds: mean(a.nanoseconds, b.nanoseconds),
    }
}

/// Executes a branch for each bit of the words. The branch waits for one shift, which has its operand at once.
fn decide(words: &[u64]) {
    // SAFETY: the loop reads the words, of which there is at least one, and changes the registers that it names and the flags.
    unsafe {
        asm!(
            "2:",
            "mov {bits}, [{word}]",
            ".rept {branches}",
            "shr {bits}, 1",
            "jnc 3f",
            "inc {count}",
            "3:",
            ".endr",
            "add {word}, 8",
            "cmp {word}, {end}",
            "jb 2b",
            branches = const BRANCHES,
            bits = out(reg) _,
            count = inout(reg) 0_u64 => _,
            word = inout(reg) words.as_ptr() => _,
            end = in(reg) words.as_ptr_range().end,
            options(readonly, nostack),
        );
    }
}
