//! The L0 filter cache never changes a result, and the protocol's invariants hold after every reference.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use nodescope_plugin_api::{MemoryModel, VcpuPlace};
use nodescope_plugin_cache::{CacheConfig, CacheContents, CacheKind, State};
use proptest::prelude::*;
use support::Engine;
use support::machines::{machines, memory, steps, traces};

fn states(cache: &CacheContents) -> BTreeMap<u64, State> {
    cache
        .sets
        .iter()
        .flat_map(|(_, lines)| lines.iter().copied())
        .collect()
}

fn check_invariants(caches: &[CacheContents]) {
    let held: Vec<BTreeMap<u64, State>> = caches.iter().map(states).collect();
    let owned = |state: &State| matches!(state, State::Exclusive | State::Modified);
    for (index, cache) in caches.iter().enumerate() {
        for (line, state) in &held[index] {
            // Peers: caches with the same outer cache, or all outermost caches.
            let peers: Vec<State> = caches
                .iter()
                .enumerate()
                .filter(|&(other, peer)| other != index && peer.outer == cache.outer)
                .filter_map(|(other, _)| held[other].get(line).copied())
                .collect();
            if owned(state) {
                assert_eq!(
                    peers,
                    [],
                    "{line:#x} is {state:?} in cache {index} and elsewhere"
                );
            }
            match cache.outer {
                Some(outer) => {
                    let outside = held[outer].get(line).copied();
                    let outside = outside
                        .unwrap_or_else(|| panic!("{line:#x} is in cache {index}, not in {outer}"));
                    assert_ne!(*state, State::Forward, "F belongs to the interconnect");
                    assert!(
                        !owned(state) || owned(&outside),
                        "{line:#x}: {state:?} inside {outside:?}"
                    );
                    if *state == State::Modified {
                        assert_eq!(outside, State::Modified, "{line:#x} modified inside only");
                    }
                }
                None if *state == State::Forward => {
                    assert!(
                        !peers.contains(&State::Forward),
                        "{line:#x} has two forwarders"
                    );
                }
                None => {}
            }
            if cache.kind == CacheKind::Instruction {
                assert_ne!(
                    *state,
                    State::Modified,
                    "{line:#x} modified in an instruction cache"
                );
            }
        }
        for (set, lines) in &cache.sets {
            let unique: BTreeSet<u64> = lines.iter().map(|&(line, _)| line).collect();
            assert_eq!(
                unique.len(),
                lines.len(),
                "a line twice in set {set} of cache {index}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Statistics, stalls and final state are the same in three cases: with the L0 filter cache, with the L0 filter cache and direct
    /// misses, and with neither.
    #[test]
    fn l0_filter_cache_is_exact((config, places) in machines(), trace in traces(), reset in any::<prop::sample::Index>()) {
        let steps = steps(&trace, &places);
        let reset = reset.index(steps.len());
        let mut filtered = Engine::with_memory(&config, &places, memory());
        let mut direct = Engine::with_memory(&config, &places, memory()).with_direct_misses();
        let mut plain = Engine::with_memory(&config, &places, memory()).without_l0_filter();
        for (index, &step) in steps.iter().enumerate() {
            if index == reset {
                filtered.reset();
                direct.reset();
                plain.reset();
            }
            let stall = plain.step(step);
            prop_assert_eq!(filtered.step(step), stall, "step {} {:?}", index, step);
            prop_assert_eq!(direct.step(step), stall, "step {} {:?}, direct", index, step);
        }
        prop_assert_eq!(filtered.statistics(), plain.statistics());
        prop_assert_eq!(filtered.contents(), plain.contents());
        prop_assert_eq!(direct.statistics(), plain.statistics());
        prop_assert_eq!(direct.contents(), plain.contents());
        filtered.check_equations();
    }

    /// After every reference: an owned line has no other copy among its peers, a line has at most one forwarder, outer caches include inner
    /// ones, and a line that is modified in an inner cache is modified in its outer cache.
    #[test]
    fn protocol_invariants((config, places) in machines(), trace in traces()) {
        let mut engine = Engine::with_memory(&config, &places, memory());
        for step in steps(&trace[..trace.len().min(150)], &places) {
            engine.step(step);
            check_invariants(&engine.model.contents());
        }
    }
}

/// A loop over one line of each set calls the model once for each line.
#[test]
fn l0_filter_cache_answers_repeated_references() {
    let mut engine = Engine::new(&CacheConfig::xeon_x5680(), &VcpuPlace::grid(1, 1, 1));
    for _ in 0..100 {
        for line in 0..64 {
            engine.read(0, line * 64);
            engine.write(0, line * 64 + 8);
            engine.fetch(0, 0x1_0000 + line * 64);
        }
    }
    assert_eq!(
        engine.calls,
        2 * 64,
        "the first write of each line is reported later"
    );
    assert_eq!(engine.count("L1D.read_hit"), 100 * 64 - 64);
    assert_eq!(engine.count("L1D.write_hit"), 100 * 64);
    assert_eq!(engine.count("L1I.hit"), 100 * 64 - 64);
    engine.check_equations();
}

/// A loop over as many lines as the first level holds calls the model once for each line.
#[test]
fn l0_filter_cache_answers_for_whole_sets() {
    let mut engine = Engine::new(&CacheConfig::xeon_x5680(), &VcpuPlace::grid(1, 1, 1));
    assert_eq!(engine.model.l0_geometry().data_ways, 8);
    for _ in 0..10 {
        for line in 0..512 {
            engine.read(0, line * 64);
        }
    }
    assert_eq!(engine.calls, 512);
    assert_eq!(engine.count("L1D.read_hit"), 9 * 512);
    engine.check_equations();
}
