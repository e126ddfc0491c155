//! Cache configurations: the reference machines, configurations in TOML, and configurations that are refused.

use nodescope_plugin_api::{L0Geometry, MemoryModel, VcpuPlace};
use nodescope_plugin_cache::{CacheConfig, CacheModel, FlatMemory, LevelConfig, Sharing};

fn texts(config: &CacheConfig, places: &[VcpuPlace]) -> Vec<String> {
    config
        .faults(places)
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn reference_machines() {
    for (config, l1i_ways, l3_sets) in [
        (CacheConfig::xeon_x5680(), 4, 12_288),
        (CacheConfig::xeon_e5_2690(), 8, 16_384),
    ] {
        assert!(config.faults(&VcpuPlace::grid(2, 8, 2)).is_empty());
        assert_eq!(config.instruction.unwrap().ways, l1i_ways);
        assert_eq!(
            config
                .levels
                .iter()
                .map(LevelConfig::sets)
                .collect::<Vec<_>>(),
            [64, 512, l3_sets]
        );
        let misses: Vec<_> = config
            .levels
            .iter()
            .map(|level| (level.latency.read_miss, level.latency.write_miss))
            .collect();
        assert_eq!(misses, [(3, 3), (12, 10), (35, 35)]);
        assert_eq!(config.levels[2].shared_by, Sharing::Socket);
    }
}

#[test]
fn l0_filter_cache_has_a_slot_for_each_set_and_stays_within_a_page() {
    // The L0 filter cache answers for whole sets if each set has a slot of its own, has at most 16 ways, and lines have 64 bytes.
    for (size, ways, line, expected, kept) in [
        (32 << 10, 8, 64, 6, 8),
        (64 << 10, 4, 64, 6, 1),
        (48 << 10, 12, 64, 6, 12),
        (80 << 10, 20, 64, 6, 1),
        (768, 2, 64, 1, 1),
        (64 << 10, 2, 32, 6, 1),
        (64 << 10, 16, 4096, 0, 1),
    ] {
        let level = LevelConfig {
            line,
            ..LevelConfig::new(size, ways)
        };
        let config = CacheConfig {
            instruction: None,
            levels: vec![level],
            coherence: Default::default(),
            non_temporal_stores: Default::default(),
        };
        let model = CacheModel::new(
            &config,
            &VcpuPlace::grid(1, 1, 1),
            Box::new(FlatMemory::default()),
        )
        .unwrap();
        let line_shift = line.trailing_zeros() as u8;
        let geometry = L0Geometry {
            line_shift,
            data_slots: expected,
            instruction_slots: (12 - line_shift).min(6),
            data_ways: kept,
            instruction_ways: 1,
            page_sizes: false,
        };
        assert_eq!(
            model.l0_geometry(),
            geometry,
            "{size} bytes, {ways} ways, lines of {line}"
        );
    }
}

#[test]
fn a_description_is_read_from_text() {
    let text = r#"
        levels = [
            { size = 32768, ways = 8, latency = { read_miss = 3, write_miss = 3 } },
            { size = 262144, ways = 8, shared_by = "core", policy = "lru" },
            { size = 12582912, ways = 16, line = 64, shared_by = "socket" },
        ]
        [coherence]
        from_modified = { other_socket = 200 }
    "#;
    let config: CacheConfig = toml::from_str(text).unwrap();
    assert_eq!(config.instruction, None);
    assert_eq!(config.levels[0].latency.read_miss, 3);
    assert_eq!(config.levels[2].shared_by, Sharing::Socket);
    assert_eq!(config.coherence.from_modified.other_socket, 200);
    assert!(config.faults(&VcpuPlace::grid(1, 1, 1)).is_empty());
    let again: CacheConfig = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
    assert_eq!(again, config);
    let wrong = toml::from_str::<CacheConfig>("levels = [{ size = 1024, way = 2 }]").unwrap_err();
    assert!(wrong.to_string().contains("way"), "{wrong}");
}

#[test]
fn faults_name_the_field() {
    let places = VcpuPlace::grid(1, 1, 1);
    let level = LevelConfig::new(1024, 2);
    let mut config = CacheConfig {
        instruction: Some(LevelConfig {
            ways: 0,
            ..level.clone().shared()
        }),
        levels: vec![
            level.clone(),
            LevelConfig {
                size: 1000,
                ..level.clone().shared()
            },
            LevelConfig {
                line: 48,
                ..level.clone()
            },
            LevelConfig {
                line: 128,
                size: 1 << 33,
                ..level.clone().shared()
            },
        ],
        coherence: Default::default(),
        non_temporal_stores: Default::default(),
    };
    config.levels[0].latency.read_miss = 2_000_000;
    config.coherence.snoop.other_core = 1_000_001;
    assert_eq!(
        texts(&config, &places),
        [
            "instruction.ways: is 0; a set has at least one line",
            "instruction.shared_by: differs from levels[0].shared_by; the two first-level caches are shared alike",
            "levels[0].latency.read_miss: is 2000000 cycles; at most 1000000 are modelled for one event",
            "levels[1].size: 1000 bytes is not a positive multiple of ways x line = 128 bytes",
            "levels[1].size: 1000 bytes is less than levels[0].size = 1024; outer levels include inner ones",
            "levels[1].size: 1000 bytes is less than instruction.size = 1024; outer levels include inner ones",
            "levels[2].line: is 48; give a power of two from 32 to 4096 bytes",
            "levels[2].shared_by: is core, but a cache of the level inside it is for socket; a cache contains whole caches",
            "levels[3].line: is 128, but levels[0].line is 64; the hierarchy has one line size",
            "levels[3].size: 8589934592 bytes is more than the 4 GiB that one modelled cache may have",
            "coherence.snoop.other_core: is 1000001 cycles; at most 1000000 are modelled for one event",
        ]
    );
    let first = config.faults(&places).remove(0);
    let refused = CacheModel::new(&config, &places, Box::new(FlatMemory::default())).err();
    assert_eq!(refused, Some(first));
}

#[test]
fn empty_descriptions_are_refused() {
    let config = CacheConfig {
        instruction: None,
        levels: vec![],
        coherence: Default::default(),
        non_temporal_stores: Default::default(),
    };
    assert_eq!(
        texts(&config, &[]),
        [
            "levels: is empty; describe at least the first-level data cache",
            "vcpus: there is none; a node has at least one",
        ]
    );
    let config = CacheConfig {
        levels: vec![LevelConfig {
            size: 0,
            ..LevelConfig::new(0, 1)
        }],
        ..config
    };
    let places = [
        VcpuPlace { core: 3, socket: 0 },
        VcpuPlace { core: 3, socket: 1 },
    ];
    assert_eq!(
        texts(&config, &places),
        [
            "levels[0].size: 0 bytes is not a positive multiple of ways x line = 64 bytes",
            "vcpus[1]: core 3 is on socket 1 here and on socket 0 for an earlier vCPU",
        ]
    );
}
