//! `stride`: prefetch by the distance between the accesses of one instruction (T.-F. Chen and J.-L. Baer, "Effective Hardware-Based Data
//! Prefetching for High-Performance Processors", IEEE Transactions on Computers 44 (5), 1995).

use std::fmt;

use nodescope_plugin_api::{Access, Parameter, Site};

use super::page::Pages;
use super::parameters::{self, UnknownPrefetcher, parameter};
use super::{Answer, Observed, Prefetcher};

/// Name in the text form.
pub(super) const NAME: &str = "stride";

pub(super) const PARAMETERS: [Parameter; 4] = [
    parameter("entries", "entries of the table of instructions", 64, 1024),
    parameter(
        "distance",
        "strides from the accessed line to the first wanted one",
        1,
        64,
    ),
    parameter("degree", "lines that one access asks for", 1, 16),
    parameters::PAGES,
];

/// Parameters of the prefetcher `stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stride {
    /// Entries of the table of instructions.
    entries: u32,
    /// Strides from the accessed line to the first line that is asked for.
    distance: u32,
    /// Lines that one access asks for.
    degree: u32,
    /// Pages in which these lines are: that of the access, and those behind it.
    pages: u32,
}

impl Stride {
    pub(super) fn read(values: Option<&str>) -> Result<Stride, UnknownPrefetcher> {
        parameters::read(NAME, &PARAMETERS, values).map(|[entries, distance, degree, pages]| {
            Stride {
                entries,
                distance,
                degree,
                pages,
            }
        })
    }

    pub(super) fn prefetcher(self, pages: Pages) -> StrideTable {
        StrideTable {
            parameters: self,
            pages,
            entries: vec![None; self.entries as usize],
        }
    }

    /// Returns the number of the table's entry for an instruction. Fibonacci hashing spreads the neighbours in a block.
    fn entry(self, site: Site) -> usize {
        let key = (u64::from(site.block) << 32) | u64::from(site.operation);
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((hash * u64::from(self.entries)) >> 32) as usize
    }
}

impl fmt::Display for Stride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = [self.entries, self.distance, self.degree, self.pages];
        parameters::write(f, NAME, &PARAMETERS, values)
    }
}

/// What the table knows of one instruction.
#[derive(Clone, Copy, Debug)]
struct Entry {
    site: Site,
    /// The line that the instruction accessed last.
    line: u64,
    /// Lines from the access before to the last one; 0 after the first access.
    stride: i64,
}

/// Direct-mapped table of the instructions that read or write data. An access asks for lines if its stride is that of the access before.
/// An access to the line that its instruction accessed last changes nothing.
#[derive(Debug)]
pub(super) struct StrideTable {
    parameters: Stride,
    pages: Pages,
    entries: Vec<Option<Entry>>,
}

impl Prefetcher for StrideTable {
    fn observe(&mut self, access: &Observed, wanted: &mut Vec<u64>) {
        let &Observed { line, site, .. } = access;
        if access.answer == Answer::Hit || access.access == Access::Fetch {
            return;
        }
        let slot = &mut self.entries[self.parameters.entry(site)];
        let Some(entry) = slot.as_mut().filter(|entry| entry.site == site) else {
            *slot = Some(Entry {
                site,
                line,
                stride: 0,
            });
            return;
        };
        let stride = line.wrapping_sub(entry.line).cast_signed();
        if stride == 0 {
            return;
        }
        let repeats = stride == entry.stride;
        entry.line = line;
        entry.stride = stride;
        if repeats {
            let Stride {
                distance,
                degree,
                pages,
                ..
            } = self.parameters;
            // The sum saturates beyond every page.
            let ahead = (distance..distance + degree).map(|n| stride.saturating_mul(n.into()));
            wanted.extend(ahead.map_while(|lines| self.pages.step_within(pages, line, lines)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nodescope_plugin_api::{Access, Site};
    use proptest::prelude::*;

    use super::super::testing::{accesses, compare, scan, wanted};
    use super::super::{Answer, Observed};
    use super::Stride;

    /// Returns the lines of a history that the last access wants: the last three different lines of its site, since another site used the
    /// same entry, must be equally far apart.
    fn plain(history: &[Observed], stride: Stride, line_shift: u32) -> Vec<u64> {
        let learns = |a: &&Observed| a.access != Access::Fetch && a.answer != Answer::Hit;
        let now = history[history.len() - 1];
        let mut lines: Vec<i128> = history
            .iter()
            .rev()
            .filter(learns)
            .filter(|a| stride.entry(a.site) == stride.entry(now.site))
            .take_while(|a| a.site == now.site)
            .map(|a| a.line.into())
            .collect();
        if !learns(&&now) || lines.get(1) == Some(&now.line.into()) {
            return Vec::new();
        }
        lines.dedup();
        let [last, second, third, ..] = lines[..] else {
            return Vec::new();
        };
        let page = |line: i128| (line << line_shift).div_euclid(4096);
        (0..i128::from(stride.degree))
            .map(|n| last + (last - second) * (n + i128::from(stride.distance)))
            .filter(|line| {
                let pages = i128::from(stride.pages);
                *line >= 0
                    && last - second == second - third
                    && (page(*line) - page(last)).abs() < pages
            })
            .map(|line| line.try_into().unwrap())
            .collect()
    }

    fn at(site: Site, line: u64) -> Observed {
        Observed {
            line,
            site,
            access: Access::Read,
            answer: Answer::Miss,
        }
    }

    const A: Site = Site {
        block: 7,
        operation: 3,
    };
    const B: Site = Site {
        block: 7,
        operation: 4,
    };

    proptest! {
        #[test]
        fn equals_the_plain_definition(
            entries in prop_oneof![1u32..=4, Just(64), Just(1024)],
            distance in prop_oneof![1u32..=3, Just(64)],
            degree in prop_oneof![1u32..=3, Just(16)],
            pages in prop_oneof![Just(1u32), 2u32..=4],
            line_shift in prop_oneof![4 => Just(6u32), 1 => 5u32..=12],
            accesses in accesses(),
        ) {
            let stride = Stride { entries, distance, degree, pages };
            compare(&stride.to_string(), line_shift, &accesses, |history| {
                plain(history, stride, line_shift)
            })?;
        }
    }

    #[test]
    fn the_third_access_of_a_stride_is_the_first_to_ask() {
        let third = scan("stride", 6, (640..704).step_by(3));
        assert_eq!(third.misses, [640, 643, 646]);
        assert_eq!(
            third.wanted.concat(),
            (649..704).step_by(3).collect::<Vec<_>>()
        );
        assert_eq!(third.wanted[2], [649]);
        let far = scan("stride:distance=2,degree=2", 6, (640..704).step_by(3));
        assert_eq!(far.wanted[..2], [[]; 2]);
        assert_eq!(far.wanted[2], [652, 655]);
        // The cache has line 655 by then.
        assert_eq!(far.wanted[3], [658]);
        assert_eq!(far.misses, [640, 643, 646, 649]);
    }

    #[test]
    fn every_stride_up_to_a_third_of_a_page_is_found_in_both_directions() {
        for stride in 1..=21 {
            let lines: Vec<u64> = (640..704).step_by(stride).collect();
            let forward = scan("stride", 6, lines.iter().copied());
            assert_eq!(forward.misses, lines[..3]);
            assert_eq!(forward.wanted.concat(), lines[3..]);
            let back: Vec<u64> = lines.iter().rev().copied().collect();
            let backward = scan("stride", 6, back.iter().copied());
            assert_eq!(backward.misses, back[..3]);
            // The next line backward from the first may still be in the page, or not.
            assert_eq!(backward.wanted.concat()[..back.len() - 3], back[3..]);
        }
    }

    #[test]
    fn a_stride_goes_on_in_the_next_page() {
        let long = scan("stride", 6, 640..832);
        // The first line of each page is not asked for from the page before.
        assert_eq!(long.misses, [640, 641, 642, 704, 768]);
        let across = scan("stride:pages=2", 6, 640..832);
        assert_eq!(across.misses, [640, 641, 642]);
    }

    #[test]
    fn another_stride_must_repeat_before_it_counts() {
        let asked = wanted(
            "stride",
            [0, 1, 2, 3, 10, 11, 12, 13].map(|line| at(A, line)),
        );
        let expected: [&[u64]; 8] = [&[], &[], &[3], &[4], &[], &[], &[13], &[14]];
        assert_eq!(asked, expected);
        // A triangle never repeats a stride.
        let triangle = (1..11).scan(0, |line, n| {
            *line += n;
            Some(at(A, *line))
        });
        assert!(wanted("stride", triangle).concat().is_empty());
    }

    #[test]
    fn repeated_lines_hits_and_fetches_change_nothing() {
        let other = |access, answer| Observed {
            access,
            answer,
            ..at(A, 40)
        };
        let asked = wanted(
            "stride",
            [
                at(A, 0),
                at(A, 0),
                at(A, 2),
                other(Access::Fetch, Answer::Miss),
                other(Access::Read, Answer::Hit),
                at(A, 2),
                at(A, 4),
                at(A, 4),
                at(A, 6),
            ],
        );
        let expected: [&[u64]; 9] = [&[], &[], &[], &[], &[], &[], &[6], &[], &[8]];
        assert_eq!(asked, expected);
    }

    #[test]
    fn sites_that_share_an_entry_replace_each_other() {
        let alternating = (0..10).flat_map(|n| [at(A, n), at(B, 100 + 2 * n)]);
        assert!(
            wanted("stride:entries=1", alternating.clone())
                .concat()
                .is_empty()
        );
        let asked = wanted("stride:entries=1024", alternating);
        assert_eq!(asked[4], [3]);
        assert_eq!(asked[5], [106]);
        assert!(asked[4..].iter().all(|lines| lines.len() == 1));
    }

    #[test]
    fn neighbouring_instructions_spread_over_the_table() {
        for entries in [1, 5, 64, 1024] {
            let stride = Stride {
                entries,
                distance: 1,
                degree: 1,
                pages: 1,
            };
            let mut sites: BTreeMap<usize, u32> = BTreeMap::new();
            for (block, operation) in (1..=64).flat_map(|b| (0..64).map(move |o| (b, o))) {
                *sites
                    .entry(stride.entry(Site { block, operation }))
                    .or_default() += 1;
            }
            assert!(sites.keys().all(|&entry| entry < entries as usize));
            assert_eq!(sites.len(), entries as usize);
            assert!(*sites.values().max().unwrap() <= 4 * 4096 / entries);
        }
    }

    #[test]
    fn strides_across_all_of_memory_ask_for_nothing() {
        let far = [
            0,
            1 << 63,
            0,
            u64::MAX,
            u64::MAX - 1,
            u64::MAX - 2,
            0,
            u64::MAX,
            0,
        ];
        let asked = wanted("stride:distance=64,degree=16", far.map(|line| at(A, line)));
        assert!(asked.concat().is_empty());
        let last = [u64::MAX - 2, u64::MAX - 1, u64::MAX].map(|line| at(A, line));
        assert!(wanted("stride", last).concat().is_empty());
    }
}
