use proptest::prelude::*;

use super::*;
use TlbAnswer::{First, Second, Walk};

const SMALL_PAGE: u64 = 4096;
const LARGE_PAGE: u64 = 2 << 20;

/// Counts the answers to accesses to `pages` pages in turn, for so many rounds, after a first round.
fn rounds(tlb: &mut DataTlb, pages: u64, stride: u64, large: bool) -> [u32; 3] {
    let mut counts = [0; 3];
    for round in 0..4 {
        for page in 0..pages {
            let answer = tlb.access(0x7F00_0000_0000 + page * stride, large);
            counts[answer as usize] += u32::from(round > 0);
        }
    }
    counts
}

/// Returns the only answer to accesses to `pages` pages in turn, after the first round.
fn only(config: &TlbConfig, pages: u64, stride: u64, large: bool) -> TlbAnswer {
    let counts = rounds(&mut DataTlb::new(config), pages, stride, large);
    let all = 3 * pages as u32;
    *[First, Second, Walk]
        .iter()
        .find(|answer| counts[**answer as usize] == all)
        .unwrap_or_else(|| panic!("{counts:?} for {pages} pages"))
}

#[test]
fn pages_in_turn_fit_a_level_or_miss_it_always() {
    let zen4 = TlbConfig::default();
    for (stride, large) in [(SMALL_PAGE, false), (LARGE_PAGE, true)] {
        assert_eq!(only(&zen4, 72, stride, large), First);
        assert_eq!(only(&zen4, 73, stride, large), Second);
        assert_eq!(only(&zen4, 3_072, stride, large), Second);
        // One more page in every set.
        assert_eq!(only(&zen4, 3_072 + 128, stride, large), Walk);
    }
    // One page too many makes one set of 128 fail: its 25 pages.
    let counts = rounds(&mut DataTlb::new(&zen4), 3_073, SMALL_PAGE, false);
    assert_eq!(counts, [0, 3 * 3_048, 3 * 25]);
    // A stride of the number of sets reaches one set.
    assert_eq!(only(&zen4, 73, 128 * SMALL_PAGE, false), Walk);
}

#[test]
fn large_pages_may_have_a_first_level_of_their_own() {
    let intel = TlbConfig {
        first_entries: 96,
        first_ways: 6,
        first_large_entries: 32,
        first_large_ways: 4,
        second_entries: 2_048,
        second_ways: 16,
        ..TlbConfig::default()
    };
    assert_eq!(only(&intel, 96, SMALL_PAGE, false), First);
    assert_eq!(only(&intel, 112, SMALL_PAGE, false), Second);
    assert_eq!(only(&intel, 32, LARGE_PAGE, true), First);
    assert_eq!(only(&intel, 40, LARGE_PAGE, true), Second);
    // The two do not replace each other's entries.
    let mut tlb = DataTlb::new(&intel);
    tlb.access(0, false);
    rounds(&mut tlb, 1_000, LARGE_PAGE, true);
    assert_eq!(tlb.access(0, false), First);
}

#[test]
fn coalesced_pages_share_entries() {
    let config = TlbConfig {
        coalesce: true,
        ..TlbConfig::default()
    };
    assert_eq!(only(&config, 4 * 72, SMALL_PAGE, false), First);
    assert_eq!(only(&config, 72, LARGE_PAGE, true), First);
    assert_eq!(only(&config, 73, LARGE_PAGE, true), Second);
    let mut tlb = DataTlb::new(&config);
    let answers = [0, 1, 3, 4].map(|page| tlb.access(page * SMALL_PAGE, false));
    assert_eq!(answers, [Walk, First, First, Walk]);
}

#[test]
fn the_least_recently_used_page_leaves() {
    let config = TlbConfig {
        first_entries: 3,
        first_ways: 3,
        second_entries: 0,
        ..TlbConfig::default()
    };
    let mut tlb = DataTlb::new(&config);
    let pages = [1, 2, 3, 1, 4, 1, 3, 2, 4];
    let answers = pages.map(|page: u64| tlb.access(page * SMALL_PAGE + 8 * page, false));
    assert_eq!(
        answers,
        [Walk, Walk, Walk, First, Walk, First, First, Walk, Walk]
    );
}

#[test]
fn pages_of_different_sizes_are_told_apart() {
    let mut tlb = DataTlb::new(&TlbConfig::default());
    assert_eq!(tlb.access(0, false), Walk);
    assert_eq!(tlb.access(0, true), Walk);
    assert_eq!(tlb.access(LARGE_PAGE - 1, true), First);
    assert_eq!(tlb.access(SMALL_PAGE - 1, false), First);
    assert_eq!(tlb.access(SMALL_PAGE, false), Walk);
    tlb.flush();
    assert_eq!(tlb.access(0, true), Walk);
    assert_eq!(tlb.access(0, false), Walk);
}

#[test]
fn a_walk_starts_behind_the_lowest_cached_entry() {
    const GIB: u64 = 1 << 30;
    let mut walker = Walker::new(&TlbConfig::default());
    assert_eq!(walker.walk(0, false), 4);
    assert_eq!(walker.walk(SMALL_PAGE, false), 1);
    assert_eq!(walker.walk(LARGE_PAGE, false), 2);
    assert_eq!(walker.walk(GIB, false), 3);
    assert_eq!(walker.walk(2 * LARGE_PAGE, true), 1);
    assert_eq!(walker.walk(2 * GIB, true), 2);
    assert_eq!(walker.walk(512 * GIB, true), 3);
    // A large page has no entry that small pages could use.
    assert_eq!(walker.walk(512 * GIB, false), 2);
    walker.flush();
    assert_eq!(walker.walk(0, false), 4);
}

#[test]
fn random_small_pages_need_two_loads_within_the_reach_of_upper_entries() {
    let mut walker = Walker::new(&TlbConfig::default());
    // 33 page directory entries in turn: 32 do not suffice.
    let loads = |walker: &mut Walker, count: u64| -> u32 {
        (0..count).map(|n| walker.walk(n * LARGE_PAGE, false)).sum()
    };
    loads(&mut walker, 33);
    assert_eq!(loads(&mut walker, 33), 2 * 33);
    loads(&mut walker, 32);
    assert_eq!(loads(&mut walker, 32), 32);
    let none = TlbConfig {
        pde_entries: 0,
        pdpte_entries: 0,
        pml4e_entries: 0,
        ..TlbConfig::default()
    };
    let mut walker = Walker::new(&none);
    assert_eq!([(); 2].map(|()| walker.walk(0, false)), [4, 4]);
    assert_eq!([(); 2].map(|()| walker.walk(0, true)), [3, 3]);
}

#[test]
fn impossible_sizes_are_refused() {
    let text = |change: fn(&mut TlbConfig)| {
        let mut config = TlbConfig::default();
        change(&mut config);
        config.check().unwrap_err().to_string()
    };
    assert_eq!(TlbConfig::default().check(), Ok(()));
    assert_eq!(
        text(|c| c.first_entries = 0),
        "first_entries: is 0; write at least 1"
    );
    assert!(text(|c| c.first_ways = 7).starts_with("first_ways: 7 ways do not divide 72"));
    assert!(text(|c| c.first_ways = 24).starts_with("first_ways: 24 ways"));
    assert!(text(|c| c.second_ways = 0).starts_with("second_ways:"));
    assert!(text(|c| c.pde_entries = u32::MAX).starts_with("pde_entries:"));
}

/// Says of each key whether LRU sets have it, by the definition: fewer other keys of its set came since than the set has ways.
fn plain(accesses: &[(u64, u64)], entries: u32, ways: u32) -> Vec<bool> {
    let sets = u64::from((entries / ways.max(1)).max(1));
    let hit = |(n, (index, key)): (usize, &(u64, u64))| {
        let Some(last) = accesses[..n].iter().rposition(|(_, other)| other == key) else {
            return false;
        };
        let since = accesses[last + 1..n]
            .iter()
            .filter(|(other, _)| other % sets == index % sets);
        let others: std::collections::BTreeSet<_> = since.collect();
        others.len() < ways as usize
    };
    accesses.iter().enumerate().map(hit).collect()
}

/// Says by the definition what the TLBs answer.
fn plain_answers(config: &TlbConfig, accesses: &[(u64, bool)]) -> Vec<TlbAnswer> {
    let small = if config.coalesce { 14 } else { 12 };
    let key = |(linear, large): (u64, bool)| match large {
        true => (linear >> 21, 2 * (linear >> 21) + 1),
        false => (linear >> small, 2 * (linear >> small)),
    };
    let mut answers = vec![Walk; accesses.len()];
    let mut first = |separate: bool, entries, ways| {
        let own = |n: &usize| config.first_large_entries == 0 || accesses[*n].1 == separate;
        let places: Vec<usize> = (0..accesses.len()).filter(own).collect();
        let keys: Vec<_> = places.iter().map(|n| key(accesses[*n])).collect();
        for (place, hit) in places.into_iter().zip(plain(&keys, entries, ways)) {
            if hit {
                answers[place] = First;
            }
        }
    };
    first(false, config.first_entries, config.first_ways);
    if config.first_large_entries != 0 {
        first(true, config.first_large_entries, config.first_large_ways);
    }
    let missed = |n: &usize| answers[*n] != First;
    let places: Vec<usize> = (0..accesses.len()).filter(missed).collect();
    let keys: Vec<_> = places.iter().map(|n| key(accesses[*n])).collect();
    let hits = plain(&keys, config.second_entries, config.second_ways);
    for (place, hit) in places.into_iter().zip(hits) {
        if hit {
            answers[place] = Second;
        }
    }
    answers
}

proptest! {
    #[test]
    fn equals_the_plain_definition(
        first in (0u32..=2, 1u32..=5),
        large in prop_oneof![Just((0, 0)), (0u32..=2, 1u32..=3)],
        second in prop_oneof![Just((0, 0)), (0u32..=3, 1u32..=6)],
        coalesce: bool,
        accesses in prop::collection::vec((0u64..1 << 18, prop::bool::weighted(0.3)), 1..300),
    ) {
        let level = |(sets, ways): (u32, u32)| (ways << sets, ways);
        let config = TlbConfig {
            first_entries: level(first).0,
            first_ways: level(first).1,
            first_large_entries: level(large).0,
            first_large_ways: level(large).1,
            second_entries: level(second).0,
            second_ways: level(second).1,
            coalesce,
            ..TlbConfig::default()
        };
        // Few pages of either size.
        let accesses: Vec<_> = accesses
            .into_iter()
            .map(|(linear, large)| (if large { linear << 7 } else { linear }, large))
            .collect();
        let mut tlb = DataTlb::new(&config);
        let answers: Vec<_> = accesses.iter().map(|(linear, large)| tlb.access(*linear, *large)).collect();
        prop_assert_eq!(answers, plain_answers(&config, &accesses));
    }

    #[test]
    fn walks_equal_the_plain_definition(
        entries in (0u32..=4, 0u32..=3, 0u32..=2),
        pages in prop::collection::vec((0u64..4, 0u64..4, 0u64..4, any::<bool>()), 1..200),
    ) {
        let config = TlbConfig {
            pde_entries: entries.0,
            pdpte_entries: entries.1,
            pml4e_entries: entries.2,
            ..TlbConfig::default()
        };
        let mut walker = Walker::new(&config);
        // Caches as lists with the latest entry at the end.
        let mut caches: [Vec<u64>; 3] = Default::default();
        let sizes = [entries.0, entries.1, entries.2].map(|size| size as usize);
        for (top, middle, low, large) in pages {
            let linear = top << 39 | middle << 30 | low << 21;
            let mut lowest = 3;
            for (level, shift) in [21, 30, 39].into_iter().enumerate().skip(usize::from(large)) {
                let (cache, entry) = (&mut caches[level], linear >> shift);
                if cache.contains(&entry) {
                    lowest = level;
                }
                cache.retain(|other| *other != entry);
                cache.push(entry);
                let extra = cache.len().saturating_sub(sizes[level]);
                cache.drain(..extra);
                if lowest == level {
                    break;
                }
            }
            let loads = lowest as u32 + 1 - u32::from(large);
            prop_assert_eq!(walker.walk(linear, large), loads);
        }
    }
}
