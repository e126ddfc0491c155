//! What a line costs that another core has.

use std::arch::asm;
use std::arch::x86_64::{_mm_clflush, _mm_mfence};
use std::hint::{black_box, spin_loop};
use std::ptr::from_ref;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};
use std::thread;

use crate::MeasureError;
use crate::affinity::Bound;
use crate::chain::Random;
use crate::statistics::quantile;
use crate::timer::{Reading, Timer, thread_time};

/// Lines that are moved in a run.
const LINES: usize = 128;
/// Timed runs of each kind.
const RUNS: usize = 400;
/// Round trips in a run.
const ROUNDS: u64 = 200;
/// Additions of each core to a counter in a run, so many that the cores get into step, and runs of them.
const COUNTS: u64 = 20_000;
const COUNTED_RUNS: usize = 60;
/// Independent additions of a run: about 100 us.
const ADDITIONS: u64 = 1_500_000 / 64 * 64;

/// What passes between two cores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// A load of a line that the other core alone has, unmodified.
    pub clean: Reading,
    /// A load of a line that the other core has modified.
    pub modified: Reading,
    /// What a locked addition takes longer if both cores have the line.
    pub upgrade: Reading,
    /// One way of a word that two cores write in turn.
    pub one_way: Reading,
    /// From one addition to a counter to the next, where two cores add at the same time by locked instructions.
    pub shared_counter: Reading,
    /// Rate of independent additions of a CPU while the other one adds too, as a share of its rate alone: near 1 on two cores, near a half on
    /// two threads of one core.
    pub together: f64,
}

/// A word in a line of its own. Two lines are left free, since some processors fetch pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Word(AtomicU64);

/// What the other core does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Task {
    /// Nothing more.
    End,
    /// It writes to all lines.
    Write,
    /// It reads all lines.
    Read,
    /// It waits for odd numbers in the word, and writes the next even one.
    Answer,
    /// It adds to the word by locked instructions.
    Count,
    /// It executes independent additions.
    Add,
}

const TASKS: [Task; 6] = [
    Task::End,
    Task::Write,
    Task::Read,
    Task::Answer,
    Task::Count,
    Task::Add,
];

/// A line that is moved. It is far from the next one, so that fetching a neighbour does not help.
#[derive(Debug, Default)]
#[repr(C, align(512))]
struct Line {
    next: AtomicPtr<Line>,
    value: AtomicU64,
}

/// Memory that both cores see.
#[derive(Debug)]
struct Shared {
    /// A task with a number that is different each time: `number * 8 + task`.
    order: Word,
    /// The last order that was executed.
    done: Word,
    /// The word that goes to and fro, and the counter.
    ball: Word,
    /// Lines of a cycle in random order.
    lines: Vec<Line>,
}

impl Shared {
    fn new() -> Self {
        let lines: Vec<Line> = (0..LINES).map(|_| Line::default()).collect();
        let mut order: Vec<usize> = (0..LINES).collect();
        Random(3).shuffle(&mut order);
        for (line, next) in order.iter().zip(order.iter().cycle().skip(1)) {
            let next = from_ref(&lines[*next]).cast_mut();
            lines[*line].next.store(next, Relaxed);
        }
        let [order, done, ball] = [(); 3].map(|()| Word::default());
        Self {
            order,
            done,
            ball,
            lines,
        }
    }

    /// Lets the other core begin a task.
    fn begin(&self, task: Task) {
        let number = self.order.0.load(Relaxed) / 8 + 1;
        self.order.0.store(number * 8 + task as u64, Release);
    }

    /// Waits until the other core has ended its task.
    fn wait(&self) {
        wait_for(&self.done, self.order.0.load(Relaxed));
    }

    fn complete(&self, task: Task) {
        self.begin(task);
        self.wait();
    }

    /// Goes through all lines in their random order, and executes a locked addition to each if `add`.
    fn walk(&self, add: bool) {
        let mut line = &self.lines[0];
        for _ in 0..LINES {
            if add {
                line.value.fetch_add(1, Relaxed);
            }
            // SAFETY: `new` has made each pointer that of a line of the vector, which stays as it is.
            line = unsafe { &*line.next.load(Relaxed) };
        }
        black_box(line);
    }

    /// Removes all lines from all caches.
    fn flush(&self) {
        for line in &self.lines {
            // SAFETY: the address is that of a line. The instruction changes no data.
            unsafe { _mm_clflush(from_ref(line).cast()) };
        }
        // SAFETY: every x86-64 processor has the instruction, which changes no data.
        unsafe { _mm_mfence() };
    }

    /// Executes tasks until the end.
    fn serve(&self) {
        let mut last = 0;
        loop {
            let order = loop {
                let order = self.order.0.load(Acquire);
                if order != last {
                    break order;
                }
                spin_loop();
            };
            match TASKS[(order % 8) as usize] {
                Task::End => return,
                Task::Write => self
                    .lines
                    .iter()
                    .for_each(|line| line.value.store(order, Relaxed)),
                Task::Read => self.walk(false),
                Task::Answer => (0..ROUNDS).for_each(|round| answer(&self.ball, 2 * round + 1)),
                Task::Count => count(&self.ball),
                Task::Add => independent_additions(4 * ADDITIONS),
            }
            last = order;
            self.done.0.store(order, Release);
        }
    }
}

/// Waits until a word has a value.
fn wait_for(word: &Word, value: u64) {
    while word.0.load(Acquire) != value {
        spin_loop();
    }
}

/// Waits for a value without PAUSE, and writes the next one.
fn answer(word: &Word, value: u64) {
    while word.0.load(Acquire) != value {}
    word.0.store(value + 1, Release);
}

fn count(word: &Word) {
    for _ in 0..COUNTS {
        word.0.fetch_add(1, Relaxed);
    }
}

/// Executes so many additions, a multiple of 64, in four chains. They fill the units that add.
fn independent_additions(count: u64) {
    // SAFETY: the loop changes the registers that it names and the flags.
    unsafe {
        asm!(
            "2:",
            ".rept 16",
            "add {a}, {n}",
            "add {b}, {n}",
            "add {c}, {n}",
            "add {d}, {n}",
            ".endr",
            "dec {rounds}",
            "jnz 2b",
            a = inout(reg) 0_u64 => _,
            b = inout(reg) 0_u64 => _,
            c = inout(reg) 0_u64 => _,
            d = inout(reg) 0_u64 => _,
            n = in(reg) 1_u64,
            rounds = inout(reg) (count / 64).max(1) => _,
            options(nomem, nostack),
        );
    }
}

/// Measures what passes between the CPU on which the calling thread is bound and another one.
pub fn measure(timer: &mut Timer, other: usize) -> Result<Transfer, MeasureError> {
    let shared = Shared::new();
    thread::scope(|scope| {
        let partner = scope.spawn(|| {
            // Tasks are executed even if the thread is not bound, since the other one waits for them.
            let bound = Bound::to(other);
            shared.serve();
            bound.map(|_| ())
        });
        let transfer = between(timer, &shared);
        shared.begin(Task::End);
        partner
            .join()
            .expect("the partner of a transfer does not panic")?;
        Ok(transfer)
    })
}

fn between(timer: &mut Timer, shared: &Shared) -> Transfer {
    let together = together(shared);
    let mut lines = |prepare: &dyn Fn(), add: bool| {
        timer.sample(RUNS, LINES as u64, prepare, || shared.walk(add))
    };
    let clean = lines(&|| (shared.flush(), shared.complete(Task::Read)).1, false);
    let modified = lines(&|| shared.complete(Task::Write), false);
    let both_read = || {
        shared.complete(Task::Read);
        shared.walk(false);
    };
    let locked = lines(&both_read, true);
    let owned = lines(&|| shared.walk(true), true);
    let one_way = timer.sample(
        RUNS,
        2 * ROUNDS,
        || shared.ball.0.store(0, Relaxed),
        || {
            shared.begin(Task::Answer);
            (0..ROUNDS).for_each(|round| answer(&shared.ball, 2 * round));
            shared.wait();
        },
    );
    let shared_counter = timer.median(
        COUNTED_RUNS,
        2 * COUNTS,
        || (),
        || {
            shared.begin(Task::Count);
            count(&shared.ball);
            shared.wait();
        },
    );
    Transfer {
        clean,
        modified,
        upgrade: locked.minus(owned),
        one_way,
        shared_counter,
        together,
    }
}

/// Compares the rate of this CPU while the other one works with the rate alone: the median of pairs.
fn together(shared: &Shared) -> f64 {
    let time = || {
        let before = thread_time();
        independent_additions(ADDITIONS);
        (thread_time() - before) as f64
    };
    let pair = |_| {
        let alone = time();
        shared.begin(Task::Add);
        let both = time();
        shared.wait();
        alone / both
    };
    let mut ratios: Vec<f64> = (0..41).map(pair).collect();
    ratios.sort_by(f64::total_cmp);
    quantile(&ratios, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cycle_has_all_lines() {
        let shared = Shared::new();
        shared.walk(true);
        assert!(
            shared
                .lines
                .iter()
                .all(|line| line.value.load(Relaxed) == 1)
        );
        assert_eq!(size_of::<Line>(), 512);
    }

    #[test]
    fn the_partner_does_each_task() {
        let shared = Shared::new();
        thread::scope(|scope| {
            scope.spawn(|| shared.serve());
            shared.complete(Task::Write);
            assert!(
                shared
                    .lines
                    .iter()
                    .all(|line| line.value.load(Relaxed) != 0)
            );
            shared.complete(Task::Count);
            assert_eq!(shared.ball.0.load(Relaxed), COUNTS);
            for task in [Task::Read, Task::Add] {
                shared.complete(task);
            }
            shared.begin(Task::End);
        });
    }
}
