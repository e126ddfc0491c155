//! Every policy against a plain one, step by step, and known results.

mod known;
mod plain;
mod text;

use super::{CacheShape, Policy, Replacement, SetState};
use crate::registered::NoModels;
use plain::{Plain, Quad};

/// What happens to a cache.
#[derive(Clone, Copy, Debug)]
enum Step {
    Access(u64),
    /// The line leaves if the cache has it.
    Remove(u64),
}

/// Random numbers for traces.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Hit(usize),
    Filled(usize),
    Replaced(usize, u64),
}

/// A cache as the hierarchy uses a policy.
struct Cache {
    sets: u64,
    lines: Vec<Vec<Option<u64>>>,
    bits: Vec<u64>,
    policy: Box<dyn Replacement>,
}

impl Cache {
    fn new(policy: Policy, sets: u32, ways: u32) -> Cache {
        Cache {
            sets: sets.into(),
            lines: vec![vec![None; ways as usize]; sets as usize],
            bits: vec![0; sets as usize],
            policy: {
                let cache = CacheShape {
                    level: 1,
                    sets,
                    ways,
                    line_bytes: 64,
                };
                policy.replacement(&cache, &NoModels).unwrap().unwrap()
            },
        }
    }

    fn parse(text: &str, sets: u32, ways: u32) -> Cache {
        Cache::new(text.parse().unwrap(), sets, ways)
    }

    fn set(&self, line: u64) -> usize {
        (line % self.sets) as usize
    }

    fn state(bits: &mut [u64], set: usize, ways: usize) -> SetState<'_> {
        SetState {
            number: set as u32,
            ways: ways as u32,
            bits: &mut bits[set],
        }
    }

    fn find(&self, line: u64) -> Option<usize> {
        let lines = &self.lines[self.set(line)];
        lines.iter().position(|&held| held == Some(line))
    }

    fn access(&mut self, line: u64) -> Outcome {
        let set = self.set(line);
        let ways = self.lines[set].len();
        if let Some(way) = self.find(line) {
            let state = Cache::state(&mut self.bits, set, ways);
            self.policy.hit(state, way as u32);
            return Outcome::Hit(way);
        }
        let empty = (0..ways)
            .filter(|&way| self.lines[set][way].is_none())
            .fold(0, |mask, way| mask | 1 << way);
        let way = if empty != 0 {
            self.policy.empty_way(empty)
        } else {
            self.policy.victim(Cache::state(&mut self.bits, set, ways))
        };
        let replaced = self.lines[set][way as usize].replace(line);
        assert_eq!(replaced.is_none(), empty != 0);
        self.policy
            .insert(Cache::state(&mut self.bits, set, ways), way);
        match replaced {
            None => Outcome::Filled(way as usize),
            Some(old) => Outcome::Replaced(way as usize, old),
        }
    }

    fn hits(&mut self, lines: impl IntoIterator<Item = u64>) -> usize {
        lines
            .into_iter()
            .filter(|&line| matches!(self.access(line), Outcome::Hit(_)))
            .count()
    }

    fn remove(&mut self, line: u64) {
        if let Some(way) = self.find(line) {
            let set = self.set(line);
            let ways = self.lines[set].len();
            self.lines[set][way] = None;
            let state = Cache::state(&mut self.bits, set, ways);
            self.policy.remove(state, way as u32);
        }
    }

    fn settled(&mut self, line: u64) -> bool {
        let (set, way) = (self.set(line), self.find(line).unwrap());
        let ways = self.lines[set].len();
        let state = Cache::state(&mut self.bits, set, ways);
        self.policy.settled(state, way as u32)
    }
}

/// A cache with a plain policy.
struct PlainCache<P> {
    lines: Vec<Vec<Option<u64>>>,
    policy: P,
}

impl<P: Plain> PlainCache<P> {
    fn access(&mut self, line: u64) -> Outcome {
        let set = line as usize % self.lines.len();
        let lines = &mut self.lines[set];
        for (way, held) in lines.iter().enumerate() {
            if *held == Some(line) {
                self.policy.hit(set, way);
                return Outcome::Hit(way);
            }
        }
        let used: Vec<bool> = lines.iter().map(Option::is_some).collect();
        let way = self.policy.miss(set, &used);
        match lines[way].replace(line) {
            None => Outcome::Filled(way),
            Some(old) => Outcome::Replaced(way, old),
        }
    }

    fn remove(&mut self, line: u64) {
        let set = line as usize % self.lines.len();
        for way in 0..self.lines[set].len() {
            if self.lines[set][way] == Some(line) {
                self.lines[set][way] = None;
                self.policy.removed(set, way);
            }
        }
    }

    /// Returns true if a second hit of a line would change nothing.
    fn settled(&self, line: u64) -> bool {
        let set = line as usize % self.lines.len();
        let way = self.lines[set].iter().position(|&held| held == Some(line));
        let mut again = self.policy.clone();
        again.hit(set, way.unwrap());
        again == self.policy
    }
}

/// Makes cycles over one line less than the ways, as many and one more; scans past a hot set; random accesses and removals.
fn trace(sets: u64, ways: u64, seed: u64) -> Vec<Step> {
    let mut steps = Vec::new();
    for lines in [ways + 1, ways, ways - 1, 2 * ways + 1] {
        for _ in 0..5 {
            steps.extend((0..lines * sets).map(Step::Access));
        }
    }
    let mut numbers = Numbers(seed);
    let mut scan = 100 * ways * sets;
    for round in 0..6 {
        for line in 0..(ways / 2 + 1) * sets {
            steps.extend([Step::Access(line); 2]);
        }
        for _ in 0..round * ways * sets / 2 {
            steps.push(Step::Access(scan));
            scan += 1;
        }
        if round % 2 == 1 {
            steps.push(Step::Remove(numbers.below(ways * sets)));
        }
    }
    for _ in 0..60 * ways * sets {
        let line = numbers
            .below(3 * ways * sets)
            .min(numbers.below(2 * ways * sets));
        steps.push(match numbers.below(12) {
            0 => Step::Remove(line),
            _ => Step::Access(line),
        });
    }
    steps
}

/// Compares a policy with a plain one on [`trace`].
fn compare<P: Plain>(policy: Policy, plain: P, sets: u32, ways: u32) {
    let seed = u64::from(sets) << 32 | u64::from(ways);
    let steps = trace(sets.into(), ways.into(), seed);
    compare_steps(policy, plain, sets, ways, steps);
}

/// Compares each hit, fill and victim of a policy, and whether its sets are settled, with those of a plain policy.
fn compare_steps<P: Plain>(policy: Policy, plain: P, sets: u32, ways: u32, steps: Vec<Step>) {
    let mut cache = Cache::new(policy, sets, ways);
    let mut plain = PlainCache {
        lines: vec![vec![None; ways as usize]; sets as usize],
        policy: plain,
    };
    for (at, step) in steps.into_iter().enumerate() {
        match step {
            Step::Access(line) => {
                let context = || format!("{policy}, {sets} sets, {ways} ways, step {at}: {step:?}");
                assert_eq!(cache.access(line), plain.access(line), "{}", context());
                // The plain policy copies all its sets for the answer.
                if sets < 16 || at % 64 == 0 {
                    assert_eq!(cache.settled(line), plain.settled(line), "{}", context());
                }
            }
            Step::Remove(line) => {
                cache.remove(line);
                plain.remove(line);
            }
        }
    }
}

#[test]
fn tree_plru_is_the_plain_one() {
    for ways in [1, 2, 4, 8, 16, 32, 64] {
        for sets in [1, 3] {
            let plain = plain::TreePlru::new(sets as usize);
            compare(Policy::TreePlru, plain, sets, ways);
        }
    }
}

#[test]
fn qlru_is_the_plain_one() {
    for quad in Quad::all() {
        for (sets, ways) in [
            (1, 1),
            (2, 2),
            (1, 3),
            (3, 4),
            (1, 8),
            (2, 12),
            (1, 31),
            (1, 32),
        ] {
            let plain = plain::Qlru::new(quad, sets as usize, ways as usize);
            compare(quad.text().parse().unwrap(), plain, sets, ways);
        }
    }
}

#[test]
fn srrip_is_the_plain_one() {
    for ways in [1, 2, 3, 4, 8, 11, 16, 31, 32] {
        for sets in [1, 3, 4] {
            let plain = plain::Rrip::srrip(sets as usize, ways as usize);
            compare(Policy::Srrip, plain, sets, ways);
        }
    }
}

#[test]
fn drrip_is_the_plain_one() {
    for (sets, ways) in [
        (1, 4),
        (3, 2),
        (4, 16),
        (7, 8),
        (64, 3),
        (100, 8),
        (128, 4),
        (133, 1),
        (1024, 2),
        (8, 32),
    ] {
        let plain = plain::Rrip::drrip(sets as usize, ways as usize);
        compare(Policy::Drrip, plain, sets, ways);
    }
}

/// Of four sets, 0 leads for SRRIP and 2 for BRRIP. Their misses drive the selector to both of its ends, and set 1 follows.
#[test]
fn drrip_has_a_selector_of_ten_bits() {
    let mut steps = Vec::new();
    let mut new = 0;
    for leader in [0, 2, 0, 2] {
        for _ in 0..1_500 {
            new += 4;
            steps.extend([leader, 1].map(|set| Step::Access(new + set)));
        }
    }
    compare_steps(Policy::Drrip, plain::Rrip::drrip(4, 4), 4, 4, steps);
}

#[test]
fn fifo_is_the_plain_one() {
    for ways in [1, 2, 3, 4, 7, 12, 16] {
        compare(Policy::Fifo, plain::Fifo::new(3, ways as usize), 3, ways);
    }
}

#[test]
fn random_is_the_plain_one() {
    for ways in [1, 2, 3, 4, 7, 16, 24, 64] {
        for seed in [0, 1, 2, u64::MAX] {
            compare(Policy::Random(seed), plain::Random::new(seed), 3, ways);
        }
    }
}
