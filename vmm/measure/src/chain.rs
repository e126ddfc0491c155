//! Chains of pointers through lines of a buffer: each load needs the load before it.

use std::arch::asm;
use std::arch::x86_64::{_mm_clflush, _mm_mfence};
use std::hint::black_box;
use std::marker::PhantomData;

use crate::buffer::{Buffer, LINE};

/// Loads of a round of the loop.
pub const LOADS_A_ROUND: u64 = 16;

/// Random numbers by SplitMix64 (Steele et al., OOPSLA 2014), the same in each run.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Puts the elements in a random order.
    pub fn shuffle<T>(&mut self, elements: &mut [T]) {
        for last in (1..elements.len()).rev() {
            let other = (u128::from(self.next()) * (last as u128 + 1)) >> 64;
            elements.swap(last, other as usize);
        }
    }
}

/// A cycle of pointers in a buffer. The first word of each line has the address of the next line.
#[derive(Debug)]
pub struct Chain<'a> {
    buffer: &'a mut Buffer,
    /// Lines of the cycle, in its order.
    order: &'a [u32],
    /// The line at which the walk goes on.
    at: *const u8,
}

impl<'a> Chain<'a> {
    /// Links these lines of a buffer to a cycle in their order.
    ///
    /// # Panics
    ///
    /// Panics if the buffer has no such line, or if there is no line.
    pub fn link(buffer: &'a mut Buffer, order: &'a [u32]) -> Self {
        let next = order.iter().cycle().skip(1);
        for (line, next) in order.iter().zip(next) {
            let next = buffer.line(*next as usize);
            let line = buffer.line(*line as usize);
            // SAFETY: the line lies in the buffer, which nothing else refers to. It is aligned for a pointer.
            unsafe { line.cast::<*mut u8>().write(next) };
        }
        let at = buffer.line(order[0] as usize);
        Self { buffer, order, at }
    }

    /// Loads `steps` pointers one after the other, and goes on where the last walk ended. [`LOADS_A_ROUND`] divides the steps.
    pub fn walk(&mut self, steps: u64) {
        // SAFETY: `at` is a line of the cycle that `link` has written, and the buffer is borrowed for as long as the chain lives.
        self.at = unsafe { follow(self.at, steps) };
    }

    /// Loads every pointer once, or as many as `most`.
    pub fn warm_up(&mut self, most: u64) {
        let steps = (self.order.len() as u64).min(most);
        self.walk(steps.next_multiple_of(LOADS_A_ROUND));
    }

    /// Loads a word of each line in the first `bytes` of the buffer, in ascending order: as fast as a core brings lines in.
    pub fn sweep(&self, bytes: usize) {
        for line in 0..bytes / LINE {
            // SAFETY: the line is one of the buffer, which is borrowed, and its words have been written.
            black_box(unsafe { self.buffer.line(line).cast::<u64>().read() });
        }
    }

    /// Removes all lines of the cycle from all caches.
    pub fn flush(&self) {
        for line in self.order {
            // SAFETY: the line is one of the buffer. The instruction changes no data.
            unsafe { _mm_clflush(self.buffer.line(*line as usize)) };
        }
        // SAFETY: every x86-64 processor has the instruction, which changes no data.
        unsafe { _mm_mfence() };
    }

    /// Returns how many lines the cycle has.
    pub fn lines(&self) -> usize {
        self.order.len()
    }

    /// Returns walks that begin at `count` places, equally far apart along the cycle.
    pub fn walks(&self, count: usize) -> Walks<'_> {
        let distance = self.order.len() / count.max(1);
        let places = self.order.iter().step_by(distance.max(1)).take(count);
        Walks {
            at: places
                .map(|line| self.buffer.line(*line as usize).cast_const())
                .collect(),
            lines: PhantomData,
        }
    }
}

/// Several independent walks along one chain.
#[derive(Debug)]
pub struct Walks<'a> {
    /// The line at which each walk goes on.
    at: Vec<*const u8>,
    /// The lines stay as they are while they are borrowed.
    lines: PhantomData<&'a [u32]>,
}

impl Walks<'_> {
    /// Loads one pointer of each walk in turn, and `rounds` pointers of each. `COUNT` is the number of walks.
    ///
    /// # Panics
    ///
    /// Panics if there are not `COUNT` walks.
    pub fn walk<const COUNT: usize>(&mut self, rounds: u64) {
        assert_eq!(self.at.len(), COUNT);
        // SAFETY: each place is a line of the cycle, and the chain is borrowed for as long as the walks live. The loop reads and writes the
        // `COUNT` places, and changes the registers that it names and the flags.
        unsafe {
            asm!(
                "2:",
                ".rept {count}",
                "mov {line}, [{place}]",
                "mov {line}, [{line}]",
                "mov [{place}], {line}",
                "add {place}, 8",
                ".endr",
                "sub {place}, 8 * {count}",
                "dec {rounds}",
                "jnz 2b",
                count = const COUNT,
                line = out(reg) _,
                place = inout(reg) self.at.as_mut_ptr() => _,
                rounds = inout(reg) rounds.max(1) => _,
                options(nostack),
            );
        }
    }
}

/// Loads `steps` pointers, and returns the last.
///
/// # Safety
///
/// `line` is the address of a pointer, which is the address of another, and so on.
unsafe fn follow(line: *const u8, steps: u64) -> *const u8 {
    let end;
    // SAFETY: the caller says that each load finds a pointer. The loop changes the registers that it names and the flags.
    unsafe {
        asm!(
            "2:",
            ".rept {block}",
            "mov {line}, [{line}]",
            ".endr",
            "dec {rounds}",
            "jnz 2b",
            block = const LOADS_A_ROUND,
            line = inout(reg) line => end,
            rounds = inout(reg) (steps / LOADS_A_ROUND).max(1) => _,
            options(readonly, nostack),
        );
    }
    end
}

/// Returns the numbers from 0 to `lines` in a random order.
pub fn random_order(lines: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..lines as u32).collect();
    Random(lines as u64).shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Pages;

    #[test]
    fn a_random_order_has_each_line_once() {
        let mut order = random_order(1000);
        assert_ne!(order, (0..1000).collect::<Vec<u32>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<u32>>());
    }

    #[test]
    fn a_walk_goes_around_the_cycle() {
        let mut buffer = Buffer::new(1 << 20, Pages::Small).unwrap();
        let order = random_order(48);
        let mut chain = Chain::link(&mut buffer, &order);
        let start = chain.at;
        chain.walk(16);
        assert_eq!(chain.at, chain.buffer.line(order[16] as usize));
        chain.warm_up(32);
        assert_eq!(chain.at, start);
    }

    #[test]
    fn several_walks_each_take_their_steps() {
        let mut buffer = Buffer::new(1 << 20, Pages::Small).unwrap();
        let order = random_order(48);
        let chain = Chain::link(&mut buffer, &order);
        let mut walks = chain.walks(3);
        walks.walk::<3>(5);
        for (place, at) in walks.at.iter().enumerate() {
            assert_eq!(
                *at,
                chain
                    .buffer
                    .line(order[16 * place + 5] as usize)
                    .cast_const()
            );
        }
    }
}
