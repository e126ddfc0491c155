//! The model, compared with the simple implementation on a program's own memory references.

mod support;

use nodescope_plugin_api::{Access, Site, VcpuPlace};
use nodescope_plugin_cache::{CacheConfig, Inclusion, LevelConfig};
use support::agreement::{Way, check};
use support::program::Program;
use support::{Step, price};

/// References of a vCPU before it is the next vCPU's turn.
const TURN: usize = 5_000;

/// Returns a modern structure, whose caches are small enough for the program: each second level has what passes inwards, and the last level
/// of a socket has the victims of the second levels.
fn modern() -> CacheConfig {
    let cache = |size: u64, ways: u32, policy: &str, prefetch: &[&str]| {
        let prefetch = prefetch.iter().map(|text| text.parse().unwrap());
        LevelConfig {
            policy: policy.parse().unwrap(),
            prefetch: prefetch.collect(),
            ..LevelConfig::new(size, ways)
        }
    };
    let second = cache(
        8192,
        8,
        "qlru-h00-m1-r2-u1",
        &["stream:train=1", "next-line"],
    );
    let last = cache(16384, 16, "qlru-h11-m1-r0-u0", &["adjacent-line"]);
    let mut config = CacheConfig {
        instruction: Some(cache(128, 2, "tree-plru", &["next-line"])),
        levels: vec![
            cache(2048, 4, "tree-plru", &["stride", "next-line"]),
            LevelConfig {
                inclusion: Inclusion::NonInclusive,
                ..second
            },
            LevelConfig {
                inclusion: Inclusion::Exclusive,
                ..last.shared()
            },
        ],
        coherence: Default::default(),
        non_temporal_stores: Default::default(),
    };
    price(&mut config);
    config
}

/// Returns the program's references by line, with the instructions that make them.
fn steps(references: &[(char, u64, u64)]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut site = Site::default();
    for &(kind, address, size) in references {
        let accesses: &[Access] = match kind {
            'I' => &[Access::Fetch],
            'S' => &[Access::Write],
            'L' => &[Access::Read],
            _ => &[Access::Read, Access::Write],
        };
        if kind == 'I' {
            site = Site {
                block: 1 + (address / 64) as u32,
                operation: (address % 64) as u32,
            };
        }
        let last = (address + size - 1) / 64 * 64;
        let crossed = (last > address).then_some(last);
        for address in [Some(address), crossed].into_iter().flatten() {
            steps.extend(accesses.iter().map(|&access| Step {
                vcpu: 0,
                access,
                address,
                context: 0,
                kernel: false,
                non_temporal: false,
                site,
            }));
        }
    }
    steps
}

/// Two cores of a socket and one of another socket run the program in turns, over the same memory.
#[test]
fn a_program_agrees_on_a_modern_structure() {
    let Some(program) = Program::compile() else {
        return;
    };
    let one = steps(&program.references());
    let mut steps = Vec::new();
    for turn in one.chunks(TURN) {
        for vcpu in 0..3 {
            steps.extend(turn.iter().map(|&step| Step { vcpu, ..step }));
        }
    }
    let places = [(0, 0), (1, 0), (2, 1)].map(|(core, socket)| VcpuPlace { core, socket });
    let config = modern();
    for way in [Way::WithoutL0Filter, Way::WithL0Filter, Way::DirectMisses] {
        let plain = check(&config, &places, &steps, 0, way);
        let plain = plain.unwrap_or_else(|error| panic!("{way:?}: {error}"));
        for event in [
            "L1D.read_prefetch_hit",
            "L1I.prefetch_hit",
            "L2.read_hit",
            "L2.read_prefetch_hit",
            "L2.prefetch_unused",
            "L3.prefetch",
            "L3.read_hit",
            "L3.writeback",
            "from_other_core_modified",
            "from_other_socket_modified",
            "memory.remote_prefetch",
        ] {
            assert!(plain.count(event) > 100, "{event}: {}", plain.count(event));
        }
    }
}
