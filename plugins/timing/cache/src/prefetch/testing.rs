//! Sequences of accesses for the tests of all prefetchers.

use std::collections::{BTreeMap, BTreeSet};

use nodescope_plugin_api::{Access, CacheShape, Site};
use proptest::prelude::*;

use super::{Answer, Observed, Prefetch, Prefetcher};
use crate::registered::NoModels;

/// Lines among which random sequences stay: six pages of lines of 64 bytes.
const LINES: i64 = 6 * 64;

/// Makes a prefetcher from its text form.
pub(super) fn make(text: &str, line_shift: u32) -> Box<dyn Prefetcher> {
    let cache = CacheShape {
        level: 1,
        sets: 64,
        ways: 8,
        line_bytes: 1 << line_shift,
    };
    let prefetch: Prefetch = text.parse().unwrap();
    prefetch.prefetcher(&cache, &NoModels).unwrap()
}

/// One of the streams that a random sequence interleaves.
#[derive(Clone, Debug)]
struct Walker {
    site: Site,
    access: Access,
    line: i64,
    stride: i64,
}

/// Next access of a walker.
#[derive(Clone, Debug)]
enum Move {
    /// One stride on.
    Walk,
    /// The same line again.
    Stay,
    /// To another line, from which the walker goes on.
    Jump(i64),
    /// One stride back, and the other way from here on.
    Turn,
}

fn walker() -> impl Strategy<Value = Walker> {
    let access = prop_oneof![
        4 => Just(Access::Read),
        2 => Just(Access::Write),
        1 => Just(Access::Fetch),
    ];
    let stride = prop_oneof![3 => Just(1), 3 => Just(-1), 4 => -9i64..=9];
    ((1u32..=2, 0u32..=2), access, 0..LINES, stride).prop_map(
        |((block, operation), access, line, stride)| Walker {
            site: Site { block, operation },
            access,
            line,
            stride,
        },
    )
}

/// Returns random sequences: interleaved streams with strides of both signs that turn, jump and share instructions, and leave and come back
/// to few pages. The answers are random too.
pub(super) fn accesses() -> impl Strategy<Value = Vec<Observed>> {
    let walkers = prop::collection::vec(walker(), 1..=6);
    let step = prop_oneof![
        20 => Just(Move::Walk),
        2 => Just(Move::Stay),
        1 => (0..LINES).prop_map(Move::Jump),
        1 => Just(Move::Turn),
    ];
    let answer = prop_oneof![
        6 => Just(Answer::Miss),
        5 => Just(Answer::PrefetchedHit),
        1 => Just(Answer::Hit),
    ];
    let steps = prop::collection::vec((any::<prop::sample::Index>(), step, answer), 1..300);
    let base = prop_oneof![Just(0), Just(1i64 << 40)];
    (walkers, steps, base).prop_map(|(mut walkers, steps, base)| {
        let one = |(index, step, answer): (prop::sample::Index, Move, Answer)| {
            let number = index.index(walkers.len());
            let walker = &mut walkers[number];
            match step {
                Move::Walk => walker.line += walker.stride,
                Move::Stay => {}
                Move::Jump(line) => walker.line = line,
                Move::Turn => {
                    walker.stride = -walker.stride;
                    walker.line += walker.stride;
                }
            }
            walker.line = walker.line.rem_euclid(LINES);
            Observed {
                line: (base + walker.line).cast_unsigned(),
                site: walker.site,
                access: walker.access,
                answer,
            }
        };
        steps.into_iter().map(one).collect()
    })
}

/// Checks after each access that a prefetcher wants what `plain` says of the history so far. Checks what holds for all prefetchers too: no
/// line is the accessed line, comes twice, or is in another page, unless the text has `pages`.
pub(super) fn compare(
    text: &str,
    line_shift: u32,
    accesses: &[Observed],
    plain: impl Fn(&[Observed]) -> Vec<u64>,
) -> Result<(), TestCaseError> {
    let mut prefetcher = make(text, line_shift);
    for (number, access) in accesses.iter().enumerate() {
        let mut wanted = Vec::new();
        prefetcher.observe(access, &mut wanted);
        prop_assert_eq!(&wanted, &plain(&accesses[..=number]), "access {}", number);
        let page = |line: u64| line / (4096 >> line_shift);
        let distinct: BTreeSet<u64> = wanted.iter().copied().collect();
        prop_assert_eq!(distinct.len(), wanted.len());
        prop_assert!(!distinct.contains(&access.line));
        let leaves = distinct.iter().any(|&line| page(line) != page(access.line));
        prop_assert!(!leaves || text.contains("pages="));
    }
    Ok(())
}

/// Returns reads of lines by one instruction. All of them miss.
pub(super) fn reads(lines: impl IntoIterator<Item = u64>) -> impl Iterator<Item = Observed> {
    lines.into_iter().map(|line| Observed {
        line,
        site: Site::default(),
        access: Access::Read,
        answer: Answer::Miss,
    })
}

/// Returns the lines of 64 bytes that each of the accesses wants.
pub(super) fn wanted(text: &str, accesses: impl IntoIterator<Item = Observed>) -> Vec<Vec<u64>> {
    let mut prefetcher = make(text, 6);
    let one = |access| {
        let mut wanted = Vec::new();
        prefetcher.observe(&access, &mut wanted);
        wanted
    };
    accesses.into_iter().map(one).collect()
}

/// Outcome of a sequence of reads with a prefetcher.
pub(super) struct Scan {
    /// The lines that each read wants and the cache does not have.
    pub(super) wanted: Vec<Vec<u64>>,
    /// The lines that miss.
    pub(super) misses: Vec<u64>,
}

/// Reads lines through a cache that never replaces a line.
pub(super) fn scan(text: &str, line_shift: u32, lines: impl IntoIterator<Item = u64>) -> Scan {
    let mut prefetcher = make(text, line_shift);
    let mut untouched: BTreeMap<u64, bool> = BTreeMap::new();
    let mut scan = Scan {
        wanted: Vec::new(),
        misses: Vec::new(),
    };
    for read in reads(lines) {
        let answer = match untouched.insert(read.line, false) {
            None => Answer::Miss,
            Some(true) => Answer::PrefetchedHit,
            Some(false) => Answer::Hit,
        };
        if answer == Answer::Miss {
            scan.misses.push(read.line);
        }
        let mut wanted = Vec::new();
        prefetcher.observe(&Observed { answer, ..read }, &mut wanted);
        wanted.retain(|line| !untouched.contains_key(line));
        untouched.extend(wanted.iter().map(|line| (*line, true)));
        scan.wanted.push(wanted);
    }
    scan
}
