//! Coherence: which cache supplies a line, which caches lose the line, and the event counts.

mod support;

use nodescope_plugin_api::VcpuPlace;
use nodescope_plugin_cache::{CacheConfig, CacheKind, LevelConfig, State};
use support::{Engine, expect, price};

const LINE: u64 = 0x4_0000;

/// Returns the states of [`LINE`] in the caches of a level, by socket, then core; `None` for a cache without the line.
fn states(engine: &Engine, level: u8, kind: CacheKind) -> Vec<Option<State>> {
    let mut caches: Vec<_> = engine
        .model
        .contents()
        .into_iter()
        .filter(|cache| cache.level == level && cache.kind == kind)
        .collect();
    caches.sort_by_key(|cache| (cache.socket, cache.core));
    caches
        .iter()
        .map(|cache| {
            cache
                .sets
                .iter()
                .flat_map(|(_, lines)| lines)
                .find(|(line, _)| *line == LINE)
                .map(|&(_, state)| state)
        })
        .collect()
}

fn l3(engine: &Engine) -> Vec<Option<State>> {
    states(engine, 3, CacheKind::Unified)
}

fn l1d(engine: &Engine) -> Vec<Option<State>> {
    states(engine, 1, CacheKind::Data)
}

const S: Option<State> = Some(State::Shared);
const F: Option<State> = Some(State::Forward);
const E: Option<State> = Some(State::Exclusive);
const M: Option<State> = Some(State::Modified);

#[test]
fn false_sharing_between_sockets() {
    let mut config = CacheConfig::xeon_x5680();
    config.coherence.from_modified.other_socket = 200;
    config.coherence.invalidate.other_socket = 20;
    let mut engine = Engine::new(&config, &VcpuPlace::grid(2, 1, 1));
    let rounds = 1000;
    for _ in 0..rounds {
        engine.write(0, LINE);
        engine.write(0, LINE);
        engine.write(1, LINE + 32);
    }
    let writes = 2 * rounds;
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.write_hit", rounds),
            ("L1D.write_miss", writes),
            ("L1D.writeback", writes - 1),
            ("L2.write_miss", writes),
            ("L2.writeback", writes - 1),
            ("L3.write_miss", writes),
            ("from_other_socket_modified", writes - 1),
            ("invalidate_other_socket", writes - 1),
            ("memory.local", 1),
        ])
    );
    assert_eq!(
        engine.stall,
        writes * (3 + 10 + 35) + (writes - 1) * 220 + 100
    );
    assert_eq!(l3(&engine), [None, M]);
    engine.check_equations();
}

#[test]
fn no_sharing_where_lines_differ() {
    let mut engine = Engine::new(&CacheConfig::xeon_x5680(), &VcpuPlace::grid(2, 1, 1));
    for _ in 0..1000 {
        engine.write(0, LINE);
        engine.write(1, LINE + 64);
    }
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.write_hit", 1998),
            ("L1D.write_miss", 2),
            ("L2.write_miss", 2),
            ("L3.write_miss", 2),
            ("memory.local", 2),
        ])
    );
}

#[test]
fn false_sharing_between_cores_of_a_socket() {
    let mut config = CacheConfig::xeon_x5680();
    config.coherence.from_modified.other_core = 40;
    let mut engine = Engine::new(&config, &VcpuPlace::grid(1, 2, 1));
    for _ in 0..500 {
        engine.write(0, LINE);
        engine.write(1, LINE + 8);
    }
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.write_miss", 1000),
            ("L1D.writeback", 999),
            ("L2.write_miss", 1000),
            ("L2.writeback", 999),
            ("L3.write_hit", 999),
            ("L3.write_miss", 1),
            ("from_other_core_modified", 999),
            ("invalidate_other_core", 999),
            ("memory.local", 1),
        ])
    );
    assert_eq!(engine.stall, 1000 * (3 + 10) + 35 + 100 + 999 * 40);
    engine.check_equations();
}

/// The first reader gets the line from memory in state E. Each later reader gets the line from the newest copy, and state F with it.
#[test]
fn read_only_sharing_passes_the_forwarder_on() {
    let mut engine = Engine::new(&CacheConfig::xeon_x5680(), &VcpuPlace::grid(4, 1, 1));
    let expected = [
        [E, None, None, None],
        [S, F, None, None],
        [S, S, F, None],
        [S, S, S, F],
    ];
    for (vcpu, expected) in (0..4).zip(expected) {
        engine.read(vcpu, LINE);
        assert_eq!(l3(&engine), expected, "after vCPU {vcpu}");
    }
    for _ in 0..100 {
        for vcpu in 0..4 {
            assert_eq!(engine.read(vcpu, LINE + 8), 0);
        }
    }
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.read_hit", 400),
            ("L1D.read_miss", 4),
            ("L2.read_miss", 4),
            ("L3.read_miss", 4),
            ("from_other_socket", 3),
            ("memory.local", 1),
        ])
    );
    engine.check_equations();
}

/// A forwarder that is evicted leaves S copies behind. S copies do not supply the line, so memory supplies the next reader.
#[test]
fn without_a_forwarder_memory_supplies() {
    let config = CacheConfig {
        instruction: None,
        levels: vec![LevelConfig::new(128, 2), LevelConfig::new(256, 4).shared()],
        ..CacheConfig::xeon_x5680()
    };
    let mut engine = Engine::new(&config, &VcpuPlace::grid(3, 1, 1));
    let outer = |engine: &Engine| states(engine, 2, CacheKind::Unified);
    engine.read(0, LINE);
    engine.read(1, LINE);
    assert_eq!(outer(&engine), [S, F, None]);
    for other in 1..=4 {
        engine.read(1, LINE + other * 64);
    }
    assert_eq!(outer(&engine), [S, None, None]);
    engine.reset();
    engine.read(2, LINE);
    assert_eq!(outer(&engine), [S, None, F]);
    assert_eq!(
        (
            engine.count("memory.local"),
            engine.count("from_other_socket")
        ),
        (1, 0)
    );
}

/// A modified line that another socket reads is supplied by the owner, written back to memory, and shared afterwards.
#[test]
fn reading_a_modified_line_cleans_it() {
    let mut engine = Engine::new(&CacheConfig::xeon_x5680(), &VcpuPlace::grid(2, 1, 1));
    engine.write(0, LINE);
    engine.reset();
    engine.read(1, LINE);
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.read_miss", 1),
            ("L1D.writeback", 1),
            ("L2.read_miss", 1),
            ("L2.writeback", 1),
            ("L3.read_miss", 1),
            ("L3.writeback", 1),
            ("from_other_socket_modified", 1),
            ("memory.local_writeback", 1),
        ])
    );
    assert_eq!((l3(&engine), l1d(&engine)), (vec![S, F], vec![S, S]));
    // The former owner has to request ownership again, and the reader loses its copy.
    engine.reset();
    engine.write(0, LINE);
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.write_hit", 1),
            ("interconnect.upgrade", 1),
            ("invalidate_other_socket", 1),
        ])
    );
    assert_eq!((l3(&engine), l1d(&engine)), (vec![M, None], vec![M, None]));
}

#[test]
fn a_write_miss_takes_the_line_from_the_forwarder_and_clears_all_copies() {
    let mut engine = Engine::new(&CacheConfig::xeon_x5680(), &VcpuPlace::grid(4, 1, 1));
    for vcpu in 0..3 {
        engine.read(vcpu, LINE);
    }
    engine.reset();
    engine.write(3, LINE);
    assert_eq!(l3(&engine), [None, None, None, M]);
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.write_miss", 1),
            ("L2.write_miss", 1),
            ("L3.write_miss", 1),
            ("from_other_socket", 1),
            ("invalidate_other_socket", 3),
        ])
    );
}

/// Cores of one socket: the second reader makes the first reader's copy shared. Level 3 grants a write without any message to another
/// socket.
#[test]
fn sharing_within_a_socket_stays_within_it() {
    let mut config = CacheConfig::xeon_x5680();
    price(&mut config);
    let mut engine = Engine::new(&config, &VcpuPlace::grid(2, 3, 1));
    engine.read(0, LINE);
    assert_eq!(l1d(&engine)[..3], [E, None, None]);
    engine.reset();
    engine.read(1, LINE);
    engine.read(2, LINE);
    assert_eq!(
        (l1d(&engine)[..3].to_vec(), l3(&engine)),
        (vec![S, S, S], vec![E, None])
    );
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.read_miss", 2),
            ("L2.read_miss", 2),
            ("L3.read_hit", 2),
            ("snoop_other_core", 1),
        ])
    );
    engine.reset();
    engine.write(1, LINE);
    assert_eq!(
        (l1d(&engine)[..3].to_vec(), l3(&engine)),
        (vec![None, M, None], vec![M, None])
    );
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.write_hit", 1),
            ("L3.upgrade", 1),
            ("invalidate_other_core", 2)
        ])
    );
    engine.check_equations();
}

/// A store to a line that the instruction cache of the same core holds invalidates that copy; the next fetch gets the modified line.
#[test]
fn stores_reach_the_own_instruction_cache() {
    let mut engine = Engine::new(&CacheConfig::xeon_x5680(), &VcpuPlace::grid(1, 1, 1));
    engine.fetch(0, LINE);
    engine.read(0, LINE);
    engine.reset();
    engine.write(0, LINE);
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.write_hit", 1),
            ("L2.upgrade", 1),
            ("invalidate_same_core", 1)
        ])
    );
    engine.reset();
    engine.fetch(0, LINE);
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.writeback", 1),
            ("L1I.miss", 1),
            ("L2.fetch_hit", 1),
            ("from_same_core_modified", 1),
        ])
    );
    // The line is now shared with the instruction cache, so the next store needs an upgrade.
    engine.reset();
    engine.write(0, LINE);
    assert_eq!(engine.count("L2.upgrade"), 1);
    assert_eq!(states(&engine, 1, CacheKind::Instruction), [None]);
}

/// If all levels are private, the outermost caches of the cores are peers on the interconnect.
#[test]
fn private_outermost_caches_are_peers() {
    let config = CacheConfig {
        levels: vec![
            LevelConfig::new(32 << 10, 8),
            LevelConfig::new(256 << 10, 8),
        ],
        ..CacheConfig::xeon_x5680()
    };
    let mut engine = Engine::new(&config, &VcpuPlace::grid(2, 2, 1));
    engine.write(0, LINE);
    engine.read(1, LINE);
    engine.read(2, LINE);
    assert_eq!(states(&engine, 2, CacheKind::Unified), [S, S, F, None]);
    assert_eq!(
        (
            engine.count("from_other_core_modified"),
            engine.count("from_other_socket"),
            engine.count("from_other_core")
        ),
        (1, 1, 0)
    );
    engine.check_equations();
}

/// Hardware threads of one core share the core's caches, so accesses of two threads cause no coherence traffic.
#[test]
fn threads_of_a_core_share_its_caches() {
    let mut engine = Engine::new(&CacheConfig::xeon_x5680(), &VcpuPlace::grid(1, 1, 2));
    for round in 0..100 {
        engine.write(round % 2, LINE);
        engine.read((round + 1) % 2, LINE + 64 * 64 * u64::from(round % 4));
    }
    let counts = engine.counts();
    assert_eq!(counts["L1D.read_miss"], 3);
    assert_eq!(counts["L1D.write_miss"], 1);
    assert!(
        counts
            .keys()
            .all(|event| !event.contains("core") && !event.contains("upgrade")),
        "{counts:?}"
    );
    engine.check_equations();
}
