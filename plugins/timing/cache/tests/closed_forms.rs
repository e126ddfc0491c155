//! Event counts of the cache model that equal closed formulas.

mod support;

use nodescope_plugin_api::{Access, Context, Prefetched, Privilege, Site, Source, Term, VcpuPlace};
use nodescope_plugin_cache::{CacheConfig, FlatMemory, LevelConfig};
use nodescope_plugin_numa::{Latencies, Numa, NumaConfig};
use support::{Engine, Step, expect};

/// Returns the misses of an LRU cache in `passes` passes over `lines` lines that are `stride` lines apart. If a set has a way for each of
/// its lines, each line misses once. Otherwise every access to the set misses.
fn cyclic(lines: u64, stride: u64, sets: u64, ways: u64, passes: u64) -> u64 {
    let mut population = vec![0; sets as usize];
    for line in 0..lines {
        population[(line * stride % sets) as usize] += 1;
    }
    population
        .iter()
        .map(|&n| if n <= ways { n } else { n * passes })
        .sum()
}

/// Sets and ways of the three levels (L1D, L2, L3).
const X5680: [(u64, u64); 3] = [(64, 8), (512, 8), (12_288, 16)];
const E5_2690: [(u64, u64); 3] = [(64, 8), (512, 8), (16_384, 20)];

fn misses_of_passes(
    config: &CacheConfig,
    lines: u64,
    stride: u64,
    passes: u64,
    access: Access,
) -> [u64; 3] {
    let mut engine = Engine::new(config, &VcpuPlace::grid(1, 1, 1));
    for _ in 0..passes {
        for line in 0..lines {
            engine.go(0, access, line * stride * 64);
        }
    }
    engine.check_equations();
    match access {
        Access::Read => ["L1D.read_miss", "L2.read_miss", "L3.read_miss"],
        Access::Write => ["L1D.write_miss", "L2.write_miss", "L3.write_miss"],
        Access::Fetch => ["L1I.miss", "L2.fetch_miss", "L3.fetch_miss"],
    }
    .map(|event| engine.count(event))
}

#[test]
fn passes_over_and_under_each_level() {
    for (config, shape) in [
        (CacheConfig::xeon_x5680(), X5680),
        (CacheConfig::xeon_e5_2690(), E5_2690),
    ] {
        let [l1, l2, l3] = shape.map(|(sets, ways)| sets * ways);
        let cases = [
            // Lines that just fill a level, one line more, one line more for each set or for some sets.
            (l1, 1),
            (l1 + 1, 1),
            (l1 + 64, 1),
            (l2, 1),
            (l2 + 256, 1),
            (l2 + 512, 1),
            (l3, 1),
            (l3 + shape[2].0, 1),
            // All lines lie in one first-level set: strides of 4 KiB.
            (8, 64),
            (9, 64),
            (64, 64),
            (72, 64),
            (16 * 192, 64),
            (17 * 192, 64),
            // A stride of two lines uses every other set.
            (256, 2),
            (288, 2),
        ];
        for (lines, stride) in cases {
            let expected = shape.map(|(sets, ways)| cyclic(lines, stride, sets, ways, 3));
            assert_eq!(
                misses_of_passes(&config, lines, stride, 3, Access::Read),
                expected,
                "{lines} lines, {stride} lines apart"
            );
        }
    }
    // The numbers themselves, for one machine: either only the first pass misses, or every access misses.
    let config = CacheConfig::xeon_x5680();
    assert_eq!(
        misses_of_passes(&config, 512, 1, 3, Access::Read),
        [512, 512, 512]
    );
    assert_eq!(
        misses_of_passes(&config, 576, 1, 3, Access::Write),
        [1728, 576, 576]
    );
    assert_eq!(
        misses_of_passes(&config, 4608, 1, 3, Access::Read),
        [13_824, 13_824, 4608]
    );
    assert_eq!(
        misses_of_passes(&config, 208_896, 1, 2, Access::Write),
        [417_792; 3]
    );
    // The instruction cache of the X5680 has four ways.
    assert_eq!(
        misses_of_passes(&config, 512, 1, 3, Access::Fetch),
        [512, 512, 512]
    );
    assert_eq!(
        misses_of_passes(&config, 640, 1, 3, Access::Fetch),
        [1920, 640, 640]
    );
}

#[test]
fn one_reference_costs_the_sum_of_its_misses() {
    let mut engine = Engine::new(&CacheConfig::xeon_x5680(), &VcpuPlace::grid(1, 1, 1));
    assert_eq!(engine.read(0, 0x1000), 3 + 12 + 35 + 100);
    assert_eq!(engine.read(0, 0x1038), 0);
    assert_eq!(
        engine.write(0, 0x1038),
        0,
        "a line held alone is written without asking"
    );
    assert_eq!(engine.write(0, 0x2000), 3 + 10 + 35 + 100);
    assert_eq!(engine.fetch(0, 0x3000), 3 + 12 + 35 + 100);
    // Eight more lines of the same first-level set evict 0x1000 from the first level only.
    for way in 1..=8 {
        engine.read(0, 0x1000 + way * 0x1000);
    }
    assert_eq!(
        engine.read(0, 0x1000),
        3,
        "found by level 2, whose hits are free"
    );
    engine.check_equations();
}

#[test]
fn dirty_lines_are_written_back_once_a_level() {
    let config = CacheConfig::xeon_x5680();
    let lines = 12_288 * 16 + 5000;
    let mut engine = Engine::new(&config, &VcpuPlace::grid(1, 1, 1));
    for line in 0..lines {
        engine.write(0, line * 64);
        engine.write(0, line * 64 + 8);
    }
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.write_hit", lines),
            ("L1D.write_miss", lines),
            ("L1D.writeback", lines - 512),
            ("L2.write_miss", lines),
            ("L2.writeback", lines - 4096),
            ("L3.write_miss", lines),
            ("L3.writeback", 5000),
            ("memory.local", lines),
            ("memory.local_writeback", 5000),
        ])
    );
    // Reads make no line dirty: a second pass over clean lines writes back only lines that the first pass left dirty.
    engine.reset();
    for line in lines..2 * lines {
        engine.read(0, line * 64);
    }
    assert_eq!(engine.count("L1D.writeback"), 512);
    assert_eq!(engine.count("L2.writeback"), 4096);
    assert_eq!(engine.count("L3.writeback"), 12_288 * 16);
    engine.reset();
    for line in 0..lines {
        engine.read(0, line * 64);
    }
    assert_eq!(engine.count("L3.writeback"), 0);
    engine.check_equations();
}

/// Hits of a hot line in the first level do not update the LRU order of level 2. Level 2 evicts the line, so the first level loses it, too.
#[test]
fn outer_levels_include_inner_ones() {
    let mut engine = Engine::new(&CacheConfig::xeon_x5680(), &VcpuPlace::grid(1, 1, 1));
    let hot = 0;
    engine.write(0, hot);
    for way in 1..=7 {
        engine.read(0, way * 512 * 64);
        assert_eq!(engine.read(0, hot), 0);
    }
    assert_eq!(engine.count("L1.inclusion_victim"), 0);
    engine.read(0, 8 * 512 * 64);
    assert_eq!(engine.count("L1.inclusion_victim"), 1);
    assert_eq!(
        (engine.count("L1D.writeback"), engine.count("L2.writeback")),
        (1, 1)
    );
    assert_eq!(engine.read(0, hot), 3 + 12, "now found by level 3");
    engine.check_equations();
}

#[test]
fn memory_is_local_or_remote_by_home() {
    let numa = Numa::new(&NumaConfig {
        write_back: Latencies::Uniform {
            local: 5,
            remote: 9,
        },
        ..NumaConfig::contiguous(2, 1 << 30)
    })
    .unwrap();
    let config = CacheConfig {
        instruction: None,
        levels: vec![
            LevelConfig::new(4096, 4),
            LevelConfig::new(8192, 4).shared(),
        ],
        ..CacheConfig::xeon_x5680()
    };
    let mut engine = Engine::with_memory(&config, &VcpuPlace::grid(2, 1, 1), Box::new(numa));
    // Each vCPU writes 1000 lines of its own memory, then 500 of the other vCPU's memory. The last 128 lines stay in the cache.
    for vcpu in 0..2u64 {
        for line in 0..1000 {
            engine.write(vcpu as u16, (vcpu << 30) + line * 64);
        }
        for line in 0..500 {
            engine.write(vcpu as u16, ((1 - vcpu) << 30) + (1 << 20) + line * 64);
        }
    }
    let rows: Vec<(u16, String, u64, u64, u64)> = engine
        .statistics()
        .into_iter()
        .filter(|row| row.term == Term::Memory)
        .map(|row| (row.vcpu, row.event, row.count, row.latency, row.cycles))
        .collect();
    let expected: Vec<_> = (0..2)
        .flat_map(|vcpu| {
            [
                ("memory.local", 1000, 100),
                ("memory.remote", 500, 220),
                ("memory.local_writeback", 1000, 5),
                ("memory.remote_writeback", 500 - 128, 9),
            ]
            .map(|(event, count, latency)| {
                (vcpu, event.to_owned(), count, latency, count * latency)
            })
        })
        .collect();
    assert_eq!(rows, expected);
    engine.check_equations();
}

#[test]
fn statistics_are_kept_apart_by_vcpu_context_and_privilege() {
    let mut engine = Engine::new(&CacheConfig::xeon_x5680(), &VcpuPlace::grid(1, 2, 1));
    let mut line = 0;
    for (vcpu, context, kernel, count) in [
        (0, 1, false, 3),
        (0, 1, true, 4),
        (0, 2, false, 5),
        (1, 1, false, 6),
        (0, 1, false, 7),
    ] {
        for _ in 0..count {
            line += 1;
            engine.step(Step {
                vcpu,
                access: Access::Read,
                address: line * 64,
                context,
                kernel,
                non_temporal: false,
                site: Site::default(),
            });
        }
    }
    let rows: Vec<_> = engine
        .statistics()
        .into_iter()
        .filter(|row| row.event == "L3.miss")
        .map(|row| (row.vcpu, row.context, row.privilege, row.count, row.term))
        .collect();
    let row =
        |vcpu, context, privilege, count| (vcpu, Context(context), privilege, count, Term::None);
    assert_eq!(
        rows,
        [
            row(0, 1, Privilege::User, 10),
            row(0, 1, Privilege::Kernel, 4),
            row(0, 2, Privilege::User, 5),
            row(1, 1, Privilege::User, 6),
        ]
    );
}

#[test]
fn one_level_without_instruction_cache_or_l0_filter() {
    let mut config = CacheConfig {
        instruction: None,
        levels: vec![LevelConfig::new(1024, 2).misses(7, 9, 0)],
        coherence: Default::default(),
        non_temporal_stores: Default::default(),
    };
    config.levels[0].latency.read_hit = 1;
    config.levels[0].latency.write_hit = 2;
    let memory = Box::new(FlatMemory { latency: 50 });
    let mut engine = Engine::with_memory(&config, &VcpuPlace::grid(1, 1, 1), memory);
    assert_eq!(engine.read(0, 0), 57);
    assert_eq!(engine.read(0, 8), 1);
    assert_eq!(engine.read(0, 8), 1, "timed hits are not filtered");
    assert_eq!(engine.write(0, 8), 2);
    assert_eq!(engine.write(0, 64), 59);
    assert_eq!(engine.fetch(0, 4096), 0);
    engine.check_equations();
    assert_eq!(
        engine.counts(),
        expect([
            ("L1D.read_hit", 2),
            ("L1D.read_miss", 1),
            ("L1D.write_hit", 1),
            ("L1D.write_miss", 1),
            ("memory.local", 2),
        ])
    );
}

#[test]
fn a_prefetched_line_tells_where_it_came_from() {
    let mut config = CacheConfig::xeon_e5_2690();
    for level in [0, 1] {
        let mut config = config.clone();
        config.levels[level].prefetch = vec!["next-line".parse().unwrap()];
        let mut engine = Engine::new(&config, &VcpuPlace::grid(1, 1, 1));
        let mut read = |line: u64| {
            engine.go(0, Access::Read, line * 64);
            engine.take_prefetched()
        };
        let next = |line: u64, source| {
            vec![Prefetched {
                line: 64 * (line + 1),
                level: level as u8 + 1,
                source,
            }]
        };
        assert_eq!(read(1000), next(1000, Source::LocalMemory));
        // 32 lines in each set of the second level push the first out, but not out of the third.
        for line in (1..32).map(|n| 1000 + 512 * n) {
            read(line);
            read(line + 1);
        }
        assert_eq!(read(1000), next(1000, Source::Level3), "level {level}");
    }
    config.levels[0].prefetch = vec!["next-line".parse().unwrap()];
    let mut engine = Engine::new(&config, &VcpuPlace::grid(1, 1, 1));
    engine.go(0, Access::Read, 65 * 64);
    for n in 1..16 {
        engine.go(0, Access::Read, (64 + 64 * n) * 64);
        engine.go(0, Access::Read, (65 + 64 * n) * 64);
    }
    engine.go(0, Access::Read, 64 * 64);
    let source = engine.take_prefetched().first().map(|line| line.source);
    assert_eq!(source, Some(Source::Level2));
}
