//! Results that are known from elsewhere or follow from the definitions.

use super::super::random::Random;
use super::super::rrip::{Drrip, Role};
use super::{Cache, Numbers, Outcome, Policy, Quad, Step, trace};

/// Makes the trace whose hits the simulator of nanoBench counted. Low lines are more frequent.
fn nanobench_trace(ways: u64) -> Vec<u64> {
    let lines = 3 * ways / 2;
    let mut numbers = Numbers(ways);
    (0..10_000)
        .map(|_| {
            let first = numbers.below(lines);
            first.min((numbers.0 >> 48) % lines)
        })
        .collect()
}

/// The numbers of hits are those of nanoBench's simulator, `tools/CacheAnalyzer/cacheSim.py` at commit 313aa5ee.
#[test]
fn hits_are_those_of_nanobench() {
    for (text, expected) in [
        ("tree-plru", [8034, 7932, 7994]),
        ("srrip", [8155, 8214, 8294]),
        ("qlru-h11-m1-r0-u0", [8145, 8142, 8211]),
        ("qlru-h21-m2-r0-u0-umo", [8185, 8227, 8347]),
        ("qlru-h11-m1-r1-u2", [8147, 8138, 8207]),
        ("qlru-h00-m1-r2-u1", [8047, 8093, 8158]),
        ("qlru-h00-m1-r0-u1", [8046, 8099, 8158]),
        ("qlru-h20-m3-r1-u3-umo", [8470, 8646, 8692]),
    ] {
        let hits =
            [4, 8, 16].map(|ways| Cache::parse(text, 1, ways).hits(nanobench_trace(ways.into())));
        assert_eq!(hits, expected, "{text}");
    }
}

/// Each sum is over the accesses of the 320 quad-age policies that nanoBench's simulator knows, in order. The sum is FNV-1a.
/// An access is the byte 1 for a hit or 0.
#[test]
fn every_hit_is_that_of_nanobench() {
    for (ways, expected, all_hits) in [
        (4, 0xfa8f_354c_0f26_4612, 2_609_609),
        (8, 0x101a_323b_4c47_37f4, 2_616_563),
        (12, 0x74d2_ee1d_3e9b_3e80, 2_628_009),
        (16, 0x8524_1c1a_76ef_905a, 2_651_075),
        (32, 0xb53b_754b_2fcd_1d26, 2_643_513),
    ] {
        let (mut sum, mut hits) = (0xcbf2_9ce4_8422_2325_u64, 0);
        for quad in Quad::all().into_iter().filter(|quad| quad.hit != (0, 1)) {
            let mut cache = Cache::parse(&quad.text(), 1, ways);
            for line in nanobench_trace(ways.into()) {
                let hit = matches!(cache.access(line), Outcome::Hit(_));
                sum = (sum ^ u64::from(hit)).wrapping_mul(0x100_0000_01b3);
                hits += u32::from(hit);
            }
        }
        assert_eq!((sum, hits), (expected, all_hits), "{ways} ways");
    }
}

/// Returns the first step at which two policies differ; removals are left out if they are not wanted.
fn first_difference(one: &str, other: &str, ways: u32) -> Option<usize> {
    let (mut one, mut other) = (Cache::parse(one, 2, ways), Cache::parse(other, 2, ways));
    trace(2, ways.into(), 5)
        .into_iter()
        .position(|step| match step {
            Step::Access(line) => one.access(line) != other.access(line),
            Step::Remove(line) => {
                one.remove(line);
                other.remove(line);
                false
            }
        })
}

#[test]
fn srrip_is_a_quad_age_policy_that_updates_on_misses_only() {
    for ways in [1, 2, 4, 8, 16, 32] {
        let same = first_difference("srrip", "qlru-h00-m2-r0-u0-umo", ways);
        assert_eq!(same, None, "{ways} ways");
    }
    // Ages that grow at hits, too, reach 3 earlier.
    for ways in [4, 8, 16, 32] {
        let differs = first_difference("srrip", "qlru-h00-m2-r0-u0", ways);
        assert!(differs.is_some(), "{ways} ways");
    }
}

#[test]
fn on_misses_only_no_line_is_spared() {
    for ways in [1, 2, 8, 32] {
        for (spares, other) in [("u1", "u0"), ("u3", "u2")] {
            let text = |update| format!("qlru-h11-m1-r1-{update}-umo");
            assert_eq!(first_difference(&text(spares), &text(other), ways), None);
        }
    }
}

#[test]
fn tree_plru_with_two_ways_is_lru() {
    let mut cache = Cache::parse("tree-plru", 1, 2);
    let mut order: Vec<u64> = Vec::new();
    let mut numbers = Numbers(9);
    for _ in 0..2_000 {
        let line = numbers.below(4);
        let replaced = match cache.access(line) {
            Outcome::Hit(_) => {
                order.retain(|&held| held != line);
                None
            }
            Outcome::Filled(_) => None,
            Outcome::Replaced(_, old) => Some(old),
        };
        if order.len() == 2 {
            assert_eq!(replaced, Some(order.remove(0)));
        }
        order.push(line);
    }
}

/// After the ways 0, 1, 2, 3 were used in order, the bits lead to way 0. A hit of way 0 turns them to way 2.
#[test]
fn tree_plru_of_four_ways() {
    let mut cache = Cache::parse("tree-plru", 1, 4);
    let filled = [0, 1, 2, 3].map(|line| cache.access(line));
    assert_eq!(filled, [0, 1, 2, 3].map(Outcome::Filled));
    assert_eq!(cache.access(0), Outcome::Hit(0));
    assert_eq!(cache.access(10), Outcome::Replaced(2, 2));
    assert_eq!(cache.access(11), Outcome::Replaced(1, 1));
    assert_eq!(cache.access(12), Outcome::Replaced(3, 3));
    assert_eq!(cache.access(13), Outcome::Replaced(0, 0));
}

/// In a set of 8 ways under SRRIP, four lines that were used twice outlast a scan of 12 lines. The 13th line replaces one of them.
#[test]
fn srrip_outlasts_a_scan() {
    let kept = |text: &str, scan: u64| {
        let mut cache = Cache::parse(text, 1, 8);
        cache.hits([0, 1, 2, 3, 0, 1, 2, 3]);
        cache.hits(100..100 + scan);
        (0..4).filter(|&line| cache.find(line).is_some()).count()
    };
    assert_eq!(kept("srrip", 12), 4);
    assert_eq!(kept("srrip", 13), 3);
    assert_eq!(kept("srrip", 16), 0);
    assert_eq!(kept("tree-plru", 12), 0);
}

#[test]
fn drrip_has_as_many_leaders_of_each_policy() {
    for (sets, expected) in [
        (1, 0),
        (3, 0),
        (4, 1),
        (7, 1),
        (64, 16),
        (127, 31),
        (128, 32),
        (133, 32),
        (2048, 32),
        (12_288, 32),
        (1 << 26, 32),
    ] {
        let drrip = Drrip::new(sets);
        let leaders = |role| (0..sets).filter(|&set| drrip.role(set) == role).count();
        assert_eq!(leaders(Role::SrripLeader), expected, "{sets} sets");
        assert_eq!(leaders(Role::BrripLeader), expected, "{sets} sets");
    }
    let drrip = Drrip::new(2048);
    assert_eq!(
        [0, 32, 64, 2016].map(|set| drrip.role(set)),
        [
            Role::SrripLeader,
            Role::BrripLeader,
            Role::SrripLeader,
            Role::BrripLeader,
        ]
    );
}

/// A cycle over twice the lines of a cache never hits under SRRIP. DRRIP keeps a part of the lines, except in the leaders of SRRIP.
#[test]
fn drrip_does_not_thrash() {
    let cycle = || (0..100).flat_map(|_| 0..2 * 256 * 8);
    assert_eq!(Cache::parse("srrip", 256, 8).hits(cycle()), 0);
    let hits = Cache::parse("drrip", 256, 8).hits(cycle());
    let share = hits as f64 / cycle().count() as f64;
    assert!((0.3..0.45).contains(&share), "{share}");
}

/// With fewer than 4 sets there is no duel.
#[test]
fn drrip_of_few_sets_is_srrip() {
    let (mut drrip, mut srrip) = (Cache::parse("drrip", 3, 8), Cache::parse("srrip", 3, 8));
    let mut numbers = Numbers(3);
    for _ in 0..5_000 {
        let line = numbers.below(60);
        assert_eq!(drrip.access(line), srrip.access(line));
    }
}

/// The first numbers of SplitMix64 for the seed 1234567, from the published reference.
#[test]
fn random_numbers_are_those_of_splitmix64() {
    let mut random = Random::new(1_234_567);
    let numbers = [(); 5].map(|()| random.next());
    assert_eq!(
        numbers,
        [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ]
    );
}

fn victims(policy: Policy, ways: u32, hits_between: bool) -> Vec<usize> {
    let mut cache = Cache::new(policy, 1, ways);
    (0..10_000 + u64::from(ways))
        .filter_map(|line| match cache.access(line) {
            Outcome::Replaced(way, _) => {
                if hits_between {
                    assert_eq!(cache.access(line), Outcome::Hit(way));
                }
                Some(way)
            }
            _ => None,
        })
        .collect()
}

#[test]
fn random_victims_are_uniform_and_repeat() {
    for ways in [2, 3, 8, 12, 64] {
        let chosen = victims(Policy::Random(7), ways, false);
        assert_eq!(chosen, victims(Policy::Random(7), ways, true));
        assert_ne!(chosen, victims(Policy::Random(8), ways, false));
        let expected = chosen.len() as f64 / f64::from(ways);
        let squares: f64 = (0..ways as usize)
            .map(|way| chosen.iter().filter(|&&victim| victim == way).count())
            .map(|count| (count as f64 - expected).powi(2) / expected)
            .sum();
        // The statistic has the mean `ways - 1` and twice that as its variance.
        let freedom = f64::from(ways - 1);
        assert!(
            squares < freedom + 4.0 * (2.0 * freedom).sqrt(),
            "{ways} ways: {squares}"
        );
    }
}
