//! The model, compared on random machines and traces with a second, simple implementation of its semantics.

mod support;

use std::collections::BTreeSet;

use nodescope_plugin_api::{Access, Site, VcpuPlace};
use nodescope_plugin_cache::{
    CacheConfig, CacheContents, FlatMemory, Inclusion, LevelConfig, NonTemporalStores, Sharing,
    State,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use support::agreement::{check, ways};
use support::invariants::{self, NotingMemory};
use support::machines::{Structure, machines, steps, structured, structured_steps, traces};
use support::plain::Plain;
use support::plain::prefetch::{Answer, Observed, Prefetchers};
use support::{Step, small};

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_model_does_what_its_description_says(
        (config, places) in machines(),
        trace in traces(),
        reset in any::<prop::sample::Index>(),
        way in ways(),
    ) {
        let steps = steps(&trace, &places);
        check(&config, &places, &steps, reset.index(steps.len()), way)?;
    }

    /// From a random step on, two thirds of the references use addresses up to the highest. Their tags do not fit into the narrow tag words
    /// that the model uses at first.
    #[test]
    fn high_addresses_are_like_any_other(
        (config, places) in prop_oneof![machines(), structured(Structure::ALL)],
        trace in traces(),
        from in any::<prop::sample::Index>(),
        high in proptest::collection::vec(prop_oneof![38..52_u32, Just(51)], 2),
        way in ways(),
    ) {
        let mut steps = structured_steps(&trace, &places);
        let from = from.index(steps.len());
        for (index, step) in steps.iter_mut().enumerate().skip(from) {
            if index % 3 != 0 {
                step.address += 1 << high[index % 2];
            }
        }
        check(&config, &places, &steps, from / 2, way)?;
    }
}

/// Checks that the model and the simple implementation agree on machines that differ from the default in the given parts.
fn structures_agree(structure: Structure) {
    let cases = (
        structured(structure),
        traces(),
        any::<prop::sample::Index>(),
        ways(),
    );
    let config = ProptestConfig {
        cases: 600,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
        .run(&cases, |((config, places), trace, reset, way)| {
            let steps = structured_steps(&trace, &places);
            check(&config, &places, &steps, reset.index(steps.len()), way).map(drop)
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn default_structures_agree() {
    structures_agree(Structure::default());
}

#[test]
fn inclusions_agree() {
    structures_agree(Structure {
        inclusion: true,
        ..Structure::default()
    });
}

#[test]
fn groups_of_cores_agree() {
    structures_agree(Structure {
        groups: true,
        ..Structure::default()
    });
}

#[test]
fn caches_without_write_allocate_agree() {
    structures_agree(Structure {
        write_allocate: true,
        ..Structure::default()
    });
}

#[test]
fn non_temporal_stores_agree() {
    structures_agree(Structure {
        non_temporal_stores: true,
        ..Structure::default()
    });
}

#[test]
fn policies_agree() {
    structures_agree(Structure {
        policies: true,
        ..Structure::default()
    });
}

#[test]
fn prefetchers_agree() {
    structures_agree(Structure {
        prefetchers: true,
        ..Structure::default()
    });
}

#[test]
fn all_structures_agree() {
    structures_agree(Structure::ALL);
}

/// Prefetchers that want lines after and before some of the accesses.
struct Neighbours(u64);

impl Prefetchers for Neighbours {
    fn observe(&mut self, access: &Observed) -> Vec<u64> {
        let chance = access.line * 7 + access.cache as u64 + u64::from(access.level) + self.0;
        match (access.answer, chance % 4) {
            (Answer::PrefetchedHit, _) => vec![access.line + 1],
            (_, 0) => vec![access.line + 1, access.line + 4],
            (Answer::Miss, 1) => vec![access.line ^ 1],
            _ => Vec::new(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// The simple implementation keeps copies coherent, loses no written data, and accounts for every cycle and every prefetched line.
    #[test]
    fn the_rules_keep_copies_coherent(
        (config, places) in structured(Structure::ALL),
        trace in traces(),
        prefetches in any::<Option<u64>>(),
    ) {
        let (memory, written) = NotingMemory::new();
        let mut plain = Plain::new(&config, &places, memory);
        if let Some(seed) = prefetches {
            plain = plain.with_prefetchers(Box::new(Neighbours(seed % 1000)));
        }
        let mut dirty = BTreeSet::new();
        let mut stall = 0;
        for step in structured_steps(&trace[..trace.len().min(200)], &places) {
            let line = step.address / 64 * 64;
            let write = step.access == Access::Write;
            if write && step.non_temporal && config.non_temporal_stores == NonTemporalStores::Bypass {
                dirty.remove(&line);
            } else if write {
                dirty.insert(line);
            }
            stall += plain.step(step);
            for line in written.lock().unwrap().drain(..) {
                dirty.remove(&line);
            }
            invariants::check(&config, &plain.contents(), &dirty);
        }
        let cycles: u64 = plain.events().values().map(|(_, cycles)| cycles).sum();
        prop_assert_eq!(cycles, stall);
        // A mark also ends where another prefetch takes the line further in, and modified lines have none.
        let used_or_not = plain.count("prefetch_hit") + plain.count(".prefetch_unused");
        prop_assert!(plain.count(".prefetch") >= used_or_not + plain.marked());
        prop_assert!(prefetches.is_some() || plain.count(".prefetch") == 0);
    }
}

fn reference(vcpu: u16, access: Access, line: u64) -> Step {
    Step {
        vcpu,
        access,
        address: line * 64,
        context: 0,
        kernel: false,
        non_temporal: false,
        site: Site::default(),
    }
}

fn plain(config: &CacheConfig, places: &[VcpuPlace]) -> Plain {
    Plain::new(config, places, Box::new(FlatMemory::default()))
}

/// Returns levels and states of the caches that have a line, in the order of [`Plain::contents`].
fn holders(contents: &[CacheContents], line: u64) -> Vec<(u8, State)> {
    let mut holders = Vec::new();
    for cache in contents {
        let mut lines = cache.sets.iter().flat_map(|(_, lines)| lines);
        if let Some(&(_, state)) = lines.find(|&&(held, _)| held == line * 64) {
            holders.push((cache.level, state));
        }
    }
    holders
}

/// An exclusive level has what the first level replaced, and gives a line up that it supplies.
#[test]
fn an_exclusive_level_takes_replaced_lines() {
    let mut config = small();
    config.levels.truncate(2);
    config.levels[1].inclusion = Inclusion::Exclusive;
    let mut plain = plain(&config, &VcpuPlace::grid(1, 1, 1));
    // Lines of one set: 2 ways at level 1, 4 at level 2.
    for line in [0, 4, 8, 12, 16, 20] {
        plain.step(reference(0, Access::Write, line));
    }
    assert_eq!(holders(&plain.contents(), 0), [(2, State::Modified)]);
    assert_eq!(holders(&plain.contents(), 20), [(1, State::Modified)]);
    assert_eq!(plain.count("_writeback"), 0);
    plain.step(reference(0, Access::Read, 0));
    assert_eq!(plain.count("L2.read_hit"), 1);
    assert_eq!(holders(&plain.contents(), 0), [(1, State::Modified)]);
    assert_eq!(holders(&plain.contents(), 16), [(2, State::Modified)]);
    plain.step(reference(0, Access::Read, 24));
    assert_eq!(plain.count("L1D.writeback"), 6);
    assert_eq!(plain.count("L2.writeback"), 1);
    assert_eq!(plain.count("memory.local_writeback"), 1);
    assert_eq!(plain.count("memory.local"), 7);
    assert_eq!(plain.count("inclusion_victim"), 0);
}

/// A level that includes nothing may lose a line that another core then gets from its neighbour.
#[test]
fn a_neighbour_supplies_what_a_non_inclusive_level_lost() {
    let mut config = small();
    config.levels[1].size = 4096;
    config.levels[2] = LevelConfig::new(4096, 1).shared();
    config.levels[2].inclusion = Inclusion::NonInclusive;
    let mut plain = plain(&config, &VcpuPlace::grid(1, 2, 1));
    plain.step(reference(0, Access::Write, 0));
    plain.step(reference(0, Access::Read, 64));
    assert_eq!(
        holders(&plain.contents(), 0),
        [(1, State::Modified), (2, State::Modified)]
    );
    assert_eq!(plain.count("memory.local_writeback"), 1);
    plain.step(reference(1, Access::Read, 0));
    assert_eq!(plain.count("from_other_core_modified"), 1);
    assert_eq!(plain.count("memory.local"), 2);
    let shared = State::Shared;
    let expected = [
        (1, shared),
        (2, shared),
        (3, State::Modified),
        (1, shared),
        (2, shared),
    ];
    assert_eq!(holders(&plain.contents(), 0), expected);
    plain.step(reference(1, Access::Write, 0));
    assert_eq!(plain.count("L3.upgrade"), 1);
    assert_eq!(plain.count("invalidate_other_core"), 1);
    let modified = State::Modified;
    assert_eq!(
        holders(&plain.contents(), 0),
        [(3, modified), (1, modified), (2, modified)]
    );
}

/// A write that no level takes goes to memory, and takes the line from other sockets.
#[test]
fn a_write_without_allocation_goes_to_memory() {
    let mut config = small();
    for level in &mut config.levels {
        level.write_allocate = false;
    }
    let mut plain = plain(&config, &VcpuPlace::grid(2, 1, 1));
    plain.step(reference(1, Access::Read, 0));
    plain.step(reference(0, Access::Write, 0));
    assert_eq!(holders(&plain.contents(), 0), []);
    assert_eq!(plain.count("from_other_socket"), 1);
    assert_eq!(plain.count("invalidate_other_socket"), 1);
    assert_eq!(plain.count("memory.local"), 1);
    assert_eq!(plain.count("memory.local_writeback"), 1);
    plain.step(reference(0, Access::Read, 0));
    plain.step(reference(0, Access::Write, 0));
    assert_eq!(plain.count("L1D.write_hit"), 1);
    assert_eq!(
        holders(&plain.contents(), 0),
        [1, 2, 3].map(|level| (level, State::Modified))
    );
}

/// Non-temporal stores remove all copies, and a write-combining buffer takes one request for its line.
#[test]
fn non_temporal_stores_are_combined() {
    let mut config = small();
    config.non_temporal_stores = NonTemporalStores::Bypass;
    let mut plain = plain(&config, &VcpuPlace::grid(1, 2, 1));
    let store = |line| Step {
        non_temporal: true,
        ..reference(0, Access::Write, line)
    };
    plain.step(reference(0, Access::Write, 0));
    plain.step(reference(1, Access::Write, 1));
    let before = plain.count("");
    for line in [0, 1, 0, 1] {
        plain.step(store(line));
        assert_eq!(holders(&plain.contents(), line), []);
    }
    assert_eq!(plain.count("memory.local_non_temporal"), 2);
    assert_eq!(plain.count("invalidate_other_core"), 1);
    // Each store counts, and the copy of the other core was modified.
    assert_eq!(plain.count("L1D.non_temporal_store"), 4);
    assert_eq!(plain.count("from_other_core_modified"), 1);
    assert_eq!(plain.count(""), before + 10);
    // The ninth line takes the oldest buffer.
    for line in [2, 3, 4, 5, 6, 7, 0, 8, 1, 0] {
        plain.step(store(line));
    }
    assert_eq!(plain.count("memory.local_non_temporal"), 10);
}

/// Cores of a group share a cache. Another group on the socket is another cache.
#[test]
fn groups_of_cores_share_a_cache() {
    let mut config = small();
    config.levels[1].shared_by = Sharing::Cores(2);
    let mut plain = plain(&config, &VcpuPlace::grid(1, 3, 1));
    let second = |plain: &Plain| {
        plain
            .contents()
            .iter()
            .filter(|cache| cache.level == 2)
            .count()
    };
    assert_eq!(second(&plain), 2);
    plain.step(reference(0, Access::Write, 0));
    plain.step(reference(1, Access::Read, 0));
    assert_eq!(plain.count("L2.read_hit"), 1);
    assert_eq!(plain.count("from_other_core_modified"), 1);
    plain.step(reference(2, Access::Read, 0));
    assert_eq!(plain.count("L3.read_hit"), 1);
    assert_eq!(plain.count("from_other_group_modified"), 1);
}

/// Prefetchers that want the next line at level 2.
struct NextLine;

impl Prefetchers for NextLine {
    fn observe(&mut self, access: &Observed) -> Vec<u64> {
        let wanted = access.level == 2 && access.answer != Answer::Hit;
        wanted.then_some(access.line + 1).into_iter().collect()
    }
}

/// A prefetched line costs nothing, and its first use is counted apart from other hits.
#[test]
fn prefetched_lines_are_counted() {
    let config = small();
    let plain = plain(&config, &VcpuPlace::grid(1, 1, 1));
    let mut plain = plain.with_prefetchers(Box::new(NextLine));
    let levels = &config.levels;
    let miss = |level: usize| u64::from(levels[level].latency.read_miss);
    let stall = plain.step(reference(0, Access::Read, 0));
    assert_eq!(stall, miss(0) + miss(1) + miss(2) + 100);
    assert_eq!(
        holders(&plain.contents(), 1),
        [(2, State::Exclusive), (3, State::Exclusive)]
    );
    let stall = plain.step(reference(0, Access::Read, 1));
    assert_eq!(stall, miss(0) + u64::from(levels[1].latency.read_hit));
    assert_eq!(plain.count("L2.prefetch"), 2);
    assert_eq!(plain.count("L2.read_prefetch_hit"), 1);
    assert_eq!(plain.count("L2.read_hit"), 0);
    assert_eq!(plain.count("memory.local_prefetch"), 2);
    assert_eq!(plain.count("memory.local"), 1);
    assert_eq!(plain.marked(), 1);
}
