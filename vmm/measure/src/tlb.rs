//! Reach of the TLBs, and what a translation costs that they lack.

use std::arch::x86_64::{__cpuid, __cpuid_count};

use crate::MeasureError;
use crate::buffer::{Buffer, LINE, PAGE, Pages};
use crate::chain::{Chain, Random, random_order};
use crate::curve::around;
use crate::levels::{Point, plateau, reach};
use crate::timer::{Reading, Timer};

/// Fewest and most pages that are gone through.
const FEWEST: usize = 16;
const MOST: usize = 8192;
/// Cycles by which a translation must be slower to count as one of the next level.
const NOTICEABLE: f64 = 1.5;

/// Translations of pages of 4 KiB.
#[derive(Debug, Clone, PartialEq)]
pub struct Tlb {
    /// Pages that the first level translates.
    pub first: f64,
    /// Pages that both levels translate.
    pub second: f64,
    /// Time that a hit of the second level adds to a load.
    pub second_hit: Reading,
    /// Time that a walk through the page tables adds to a load whose translation both levels lack, from 4,096 to 8,192 pages.
    pub walk: Reading,
    /// Entries of both levels for data and pages of 4 KiB that CPUID states, where it does.
    pub stated: (Option<u32>, Option<u32>),
    /// Time that translation adds to a load, by number of pages of 4 KiB with a line each.
    pub curve: Vec<Point>,
    /// The same for lines that are as far apart in huge pages. Where a hypervisor backs huge pages by small ones, it is no less.
    pub huge_curve: Vec<Point>,
}

/// Returns the numbers of pages that are gone through: eight in each octave.
fn counts() -> Vec<usize> {
    let octaves = (0..).map(|octave| FEWEST << octave);
    let mut counts: Vec<usize> = octaves
        .take_while(|count| *count < MOST)
        .flat_map(|count| (8..16).map(move |eighth| count / 8 * eighth))
        .collect();
    counts.push(MOST);
    counts
}

/// Returns a line of each of `pages` pages, in random order. The lines lie at different places of their pages, so that they share no more
/// sets of the first level than neighbouring lines do.
fn order(pages: usize) -> Vec<u32> {
    let lines = PAGE / LINE;
    let mut order: Vec<u32> = (0..pages)
        .map(|page| (page * lines + page % lines) as u32)
        .collect();
    Random(pages as u64).shuffle(&mut order);
    order
}

/// Measures loads of one line a page, less those of as many neighbouring lines. `pages` is the size of pages to ask for.
fn added(timer: &mut Timer, pages: Pages) -> Result<Vec<Point>, MeasureError> {
    let mut spread = Buffer::new(MOST * PAGE, pages)?;
    let mut dense = Buffer::new(MOST * LINE, Pages::Huge)?;
    let mut curve = Vec::new();
    for pages in counts() {
        let mut time = |buffer: &mut Buffer, order: &[u32]| {
            let mut chain = Chain::link(buffer, order);
            chain.warm_up(1 << 16);
            around(timer, &mut chain)
        };
        let added = time(&mut spread, &order(pages)).minus(time(&mut dense, &random_order(pages)));
        curve.push(Point {
            size: pages as f64,
            time: added,
        });
    }
    Ok(curve)
}

/// Measures what translation adds to loads, with pages of 4 KiB and with huge ones.
pub fn measure(timer: &mut Timer) -> Result<Tlb, MeasureError> {
    let small = added(timer, Pages::Small)?;
    let huge = added(timer, Pages::Huge)?;
    Ok(read(small, huge, stated()))
}

/// Finds the levels in a curve of added times.
fn read(curve: Vec<Point>, huge_curve: Vec<Point>, stated: (Option<u32>, Option<u32>)) -> Tlb {
    let cycles = |p: &Point| p.time.cycles.value;
    // A first level holds at least the fewest pages. The points before the first noticeable time are its own.
    let base = curve.first().map_or(0.0, cycles);
    let slow = curve
        .iter()
        .position(|p| cycles(p) > base + NOTICEABLE)
        .unwrap_or(curve.len());
    let first_end = curve[..slow].last().map_or(0.0, |p| p.size);
    let zero = Reading {
        cycles: scaled(0.0),
        nanoseconds: scaled(0.0),
    };
    let last = plateau(&curve, MOST as f64 / 2.0, MOST as f64).map_or(zero, |p| p.time);
    let second_hit = plateau(&curve, first_end * 1.5, MOST as f64 / 8.0).map_or(zero, |p| p.time);
    let second = reach(&curve, second_hit.cycles.value, last.cycles.value);
    Tlb {
        first: reach(&curve, base, second_hit.cycles.value),
        second,
        second_hit,
        walk: last,
        stated,
        curve,
        huge_curve,
    }
}

fn scaled(value: f64) -> crate::statistics::Measurement<f64> {
    crate::statistics::Measurement { value, spread: 0.0 }
}

/// Returns the entries that CPUID states for data and pages of 4 KiB.
fn stated() -> (Option<u32>, Option<u32>) {
    let amd = __cpuid(0x8000_0000).eax >= 0x8000_0006 && __cpuid(0x8000_0005).ebx != 0;
    if amd {
        let first = __cpuid(0x8000_0005).ebx >> 16 & 0xff;
        let second = __cpuid(0x8000_0006).ebx >> 16 & 0xfff;
        return (some(first), some(second));
    }
    if __cpuid(0).eax < 0x18 {
        return (None, None);
    }
    let mut entries = [None; 2];
    for subleaf in 0..=__cpuid_count(0x18, 0).eax.min(32) {
        let leaf = __cpuid_count(0x18, subleaf);
        // SDM vol. 2A, CPUID leaf 18H: data, unified and load-only TLBs, by level. The first is taken.
        let (kind, level) = (leaf.edx & 0x1f, leaf.edx >> 5 & 7);
        if matches!(kind, 1 | 3 | 4) && (1..=2).contains(&level) && leaf.ebx & 1 != 0 {
            let entry: &mut Option<u32> = &mut entries[level as usize - 1];
            *entry = entry.or(some((leaf.ebx >> 16) * leaf.ecx));
        }
    }
    (entries[0], entries[1])
}

fn some(entries: u32) -> Option<u32> {
    (entries != 0).then_some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_levels_are_found_in_a_curve_that_still_rises() {
        let curve = counts().into_iter().map(|pages| {
            let cycles = match pages {
                ..=72 => 0.2,
                73..=3072 => 7.0,
                _ => 38.0 + pages as f64 / 1000.0,
            };
            let time = Reading {
                cycles: scaled(cycles),
                nanoseconds: scaled(cycles / 3.0),
            };
            Point {
                size: pages as f64,
                time,
            }
        });
        let tlb = read(curve.collect(), Vec::new(), (None, None));
        assert_eq!((tlb.first, tlb.second), (72.0, 3072.0));
        assert_eq!(tlb.second_hit.cycles.value, 7.0);
        assert!(tlb.walk.cycles.value > 42.0);
    }

    #[test]
    fn lines_lie_on_different_pages_and_places() {
        let mut order = order(130);
        order.sort_unstable();
        assert_eq!(order[..3], [0, 65, 130]);
        assert_eq!(order[64], 64 * 64);
        assert_eq!(order.len(), 130);
    }
}
