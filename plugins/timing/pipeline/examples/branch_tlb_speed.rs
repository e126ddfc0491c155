//! Measures what the branch predictor and the TLBs cost on streams made by small programs: nanoseconds for each branch or access, and how
//! many of them were mispredicted or missed the first level. The best of 25 runs counts.
//!
//!     cargo run --release -p nodescope-plugin-pipeline --example branch_tlb_speed

use std::time::Instant;

use nodescope_plugin_pipeline::{
    DataTlb, Flow, Predictor, PredictorConfig, TlbAnswer, TlbConfig, Walker,
};

/// Branches or accesses of a stream.
const LENGTH: usize = 200_000;

/// A branch: its address, flow, direction and target.
type Branch = (u64, Flow, bool, u64);

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Branches that a program executes.
#[derive(Default)]
struct Stream(Vec<Branch>);

impl Stream {
    /// Executes a conditional branch and returns its condition.
    fn when(&mut self, site: u64, taken: bool) -> bool {
        let address = 0x40_0000 + 13 * site;
        self.0
            .push((address, Flow::Conditional, taken, address + 64));
        taken
    }

    fn go(&mut self, site: u64, flow: Flow, target: u64) {
        self.0.push((0x40_0000 + 13 * site, flow, true, target));
    }
}

/// Loops of 4, 16 and 100 trips inside each other, with the call of a function.
fn loops(stream: &mut Stream) {
    for outer in 1..=100 {
        for middle in 1..=16 {
            for inner in 1..=4 {
                stream.when(1, inner < 4);
            }
            stream.go(2, Flow::Call, 0x50_0000);
            stream.go(1_000, Flow::Return, 0x40_0000 + 13 * 2 + 5);
            stream.when(3, middle < 16);
        }
        stream.when(4, outer < 100);
    }
}

/// Sorts 4,000 random numbers by insertion into short runs and merging.
fn sort(stream: &mut Stream, random: &mut Random) {
    let mut numbers: Vec<u64> = (0..4_000).map(|_| random.below(1 << 30)).collect();
    let mut width = 1;
    while stream.when(1, width < numbers.len()) {
        for run in numbers.chunks_mut(2 * width) {
            let (left, right) = run.split_at(width.min(run.len()));
            let (mut a, mut b) = (left.iter().peekable(), right.iter().peekable());
            let mut merged = Vec::with_capacity(left.len() + right.len());
            while stream.when(2, a.peek().is_some() && b.peek().is_some()) {
                let first = stream.when(3, a.peek() <= b.peek());
                merged.extend(if first { a.next() } else { b.next() });
            }
            merged.extend(a.chain(b));
            run.copy_from_slice(&merged);
        }
        width *= 2;
    }
}

/// Searches random numbers in a sorted table of 1,024.
fn search(stream: &mut Stream, random: &mut Random) {
    let wanted = random.below(1_024);
    let (mut low, mut high) = (0, 1_024);
    while stream.when(1, high - low > 1) {
        let middle = (low + high) / 2;
        if stream.when(2, wanted < middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
}

/// Interprets a program of 300 random instructions of 12 kinds, some with a condition.
fn interpret(stream: &mut Stream, program: &[u64]) {
    for (place, code) in program.iter().enumerate() {
        stream.go(1, Flow::IndirectJump, 0x60_0000 + 96 * code);
        if *code < 4 {
            stream.when(10 + code, place % 3 == 0);
        }
    }
    stream.when(2, true);
}

/// Runs a stream 25 times from the same state and prints the cost.
fn measure(name: &str, make: impl Fn(&mut Stream, &mut Random)) {
    let (mut stream, mut random) = (Stream::default(), Random(1));
    while stream.0.len() < LENGTH {
        make(&mut stream, &mut random);
    }
    let (mut best, mut wrong) = (f64::MAX, 0);
    for _ in 0..25 {
        let mut predictor = Predictor::new(&PredictorConfig::default());
        let start = Instant::now();
        wrong = stream
            .0
            .iter()
            .filter(|(address, flow, taken, target)| {
                !predictor.branch(*address, *flow, *taken, *target, *address + 5)
            })
            .count();
        best = best.min(start.elapsed().as_nanos() as f64 / stream.0.len() as f64);
    }
    let share = 100.0 * wrong as f64 / stream.0.len() as f64;
    println!("{name:24} {best:6.1} ns a branch {share:6.2} % mispredicted");
}

/// Translates accesses to random pages among `pages`, or to pages in turn.
fn translate(name: &str, pages: u64, in_turn: bool) {
    let mut random = Random(1);
    let page = |n| {
        if in_turn {
            n as u64 % pages
        } else {
            random.below(pages)
        }
    };
    let accesses: Vec<u64> = (0..LENGTH).map(page).map(|page| page << 12).collect();
    let (mut best, mut missed, mut loads) = (f64::MAX, 0, 0);
    for _ in 0..25 {
        let config = TlbConfig::default();
        let (mut tlb, mut walker) = (DataTlb::new(&config), Walker::new(&config));
        (missed, loads) = (0, 0);
        let start = Instant::now();
        for linear in &accesses {
            match tlb.access(*linear, false) {
                TlbAnswer::First => {}
                TlbAnswer::Second => missed += 1,
                TlbAnswer::Walk => {
                    missed += 1;
                    loads += walker.walk(*linear, false);
                }
            }
        }
        best = best.min(start.elapsed().as_nanos() as f64 / LENGTH as f64);
    }
    let share = 100.0 * f64::from(missed) / LENGTH as f64;
    println!("{name:24} {best:6.1} ns an access {share:6.2} % missed, {loads} loads of walks");
}

fn main() {
    measure("constant loops", |stream, _| loops(stream));
    measure("always taken, 64 sites", |stream, _| {
        for site in 0..64 {
            stream.when(site, true);
        }
    });
    measure("random, 64 sites", |stream, random| {
        for site in 0..64 {
            stream.when(site, random.below(2) == 0);
        }
    });
    measure("random, 20,000 sites", |stream, random| {
        let site = random.below(20_000);
        stream.when(site, site % 10 < 5);
    });
    measure("merge sort", sort);
    measure("binary search", search);
    let mut random = Random(2);
    let program: Vec<u64> = (0..300).map(|_| random.below(12)).collect();
    measure("interpreter", |stream, _| interpret(stream, &program));
    translate("1 page", 1, true);
    translate("8 pages in turn", 8, true);
    translate("60 random pages", 60, false);
    translate("1,000 random pages", 1_000, false);
    translate("1,000,000 random pages", 1_000_000, false);
}
