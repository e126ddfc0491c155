//! Stores, and instructions that order memory.

use std::arch::asm;

use crate::MeasureError;
use crate::buffer::{Buffer, LINE, Pages};
use crate::chain::Random;
use crate::timer::{Effort, Reading, Timer};

/// Instructions of a round of a loop.
const BLOCK: u64 = 16;

/// Loads whose store is chosen at random, before the choices repeat.
const CHOICES: u64 = 2048;

/// Times of stores and of instructions that order memory, with data in the first level.
#[derive(Debug, Clone, PartialEq)]
pub struct Stores {
    /// From the data of a store to those of a load that follows, where one of two stores, at random, is to the load's place.
    pub forwarding: Reading,
    /// The same where the store is always the same. Some cores then predict that the load has the store's data.
    pub fixed_forwarding: Reading,
    /// From one store of 8 bytes to the next, all to one word.
    pub store: Reading,
    /// From one store to the next, each to a line that the second level has.
    pub second_level_store: Reading,
    /// A locked addition to a word of the first level.
    pub locked_add: Reading,
    /// A full barrier (MFENCE) with nothing to wait for.
    pub fence: Reading,
    /// A hint that the thread waits (PAUSE).
    pub pause: Reading,
}

/// Executes the instructions in braces, [`BLOCK`] times in each round of a loop.
macro_rules! rounds {
    ($steps:ident, $line:expr, $($instruction:literal),+) => {
        // SAFETY: the instructions read and write words of one line of a buffer of the caller, and change the registers that are named and
        // the flags.
        unsafe {
            asm!(
                "2:",
                ".rept {block}",
                $($instruction,)+
                ".endr",
                "dec {rounds}",
                "jnz 2b",
                block = const BLOCK,
                rounds = inout(reg) ($steps / BLOCK).max(1) => _,
                inout("rax") 1_u64 => _,
                in("rsi") $line,
                in("rdi") $line,
                options(nostack),
            )
        }
    };
}

/// Measures stores, locked additions, barriers and pauses. `second_level` is a size that fits the second level and not the first.
pub fn measure(timer: &mut Timer, second_level: usize) -> Result<Stores, MeasureError> {
    let buffer = Buffer::new(second_level, Pages::Huge)?;
    let line = buffer.start();
    let forwarding = varying(timer, line);
    let mut time =
        |body: fn(u64, *mut u8)| timer.time(Effort::CORE, BLOCK, |steps| body(steps, line));
    Ok(Stores {
        forwarding,
        fixed_forwarding: time(|steps, line| {
            rounds!(steps, line, "mov [rdi], rax", "mov rax, [rsi]")
        }),
        store: time(|steps, line| rounds!(steps, line, "mov [rdi], rax")),
        locked_add: time(|steps, line| rounds!(steps, line, "lock add [rdi], rax")),
        fence: time(|steps, line| rounds!(steps, line, "mfence")),
        pause: time(|steps, line| rounds!(steps, line, "pause")),
        second_level_store: lines(timer, &buffer, second_level),
    })
}

/// Times a load of a word that one of two stores before it, at random, has written with the data of the last load.
fn varying(timer: &mut Timer, line: *mut u8) -> Reading {
    let mut random = Random(11);
    let places: Vec<u64> = (0..=CHOICES).map(|_| 8 * (random.next() >> 63)).collect();
    timer.time(Effort::CORE, CHOICES, |steps| {
        for _ in 0..steps / CHOICES {
            forward(&places, line);
        }
    })
}

/// Goes through the places: stores the same data to one place and to the other of a pair of words, and loads the data from the next place.
fn forward(places: &[u64], line: *mut u8) {
    // SAFETY: places are 0 and 8, which are words of a line of the caller's buffer. The loop reads the places, of which there are at least
    // two, and changes the registers that it names and the flags.
    unsafe {
        asm!(
            "2:",
            "mov {first}, [{place}]",
            "mov {loaded}, [{place} + 8]",
            "mov [{line} + {first}], {data}",
            "xor {first}, 8",
            "mov [{line} + {first}], {data}",
            "mov {data}, [{line} + {loaded}]",
            "add {place}, 8",
            "cmp {place}, {end}",
            "jb 2b",
            first = out(reg) _,
            loaded = out(reg) _,
            data = inout(reg) 1_u64 => _,
            place = inout(reg) places.as_ptr() => _,
            end = in(reg) places.as_ptr().add(places.len() - 1),
            line = in(reg) line,
            options(nostack),
        );
    }
}

/// Times a store to each line of the first `bytes` of a buffer, in ascending order.
fn lines(timer: &mut Timer, buffer: &Buffer, bytes: usize) -> Reading {
    let lines = bytes.min(buffer.len()) / LINE;
    let block = lines as u64;
    timer.time(Effort::CORE, block, |steps| {
        for line in (0..steps / block).flat_map(|_| 0..lines) {
            // SAFETY: the line lies in the buffer, and no one else refers to it.
            unsafe {
                buffer
                    .start()
                    .add(line * LINE)
                    .cast::<u64>()
                    .write_volatile(steps)
            };
        }
    })
}
