//! Random machines and traces.

use nodescope_plugin_api::{Access, Site, VcpuPlace};
use nodescope_plugin_cache::{
    CacheConfig, Inclusion, LevelConfig, NonTemporalStores, Policy, Sharing,
};
use nodescope_plugin_numa::{Latencies, Numa, NumaConfig};
use proptest::prelude::*;

use super::{Step, price, small};

pub fn machines() -> impl Strategy<Value = (CacheConfig, Vec<VcpuPlace>)> {
    let places = prop_oneof![
        Just(VcpuPlace::grid(1, 1, 1)),
        Just(VcpuPlace::grid(1, 1, 2)),
        Just(VcpuPlace::grid(2, 1, 1)),
        Just(VcpuPlace::grid(1, 3, 1)),
        Just(VcpuPlace::grid(2, 2, 1)),
        Just(VcpuPlace::grid(2, 2, 2)),
        Just(VcpuPlace::grid(4, 1, 1)),
        // More cores than a line's entry has holder bits.
        Just(VcpuPlace::grid(1, 20, 1)),
    ];
    let config = (0..13usize).prop_map(|variant| {
        let mut config = small();
        let levels = &mut config.levels;
        match variant {
            0 => levels.truncate(1),
            1 => levels.truncate(2),
            2 => {
                levels.truncate(2);
                levels[1].shared_by = Sharing::Socket;
            }
            3 => levels.push(LevelConfig::new(8192, 8).shared()),
            4 => levels[2].shared_by = Sharing::Core,
            5 => config.instruction = None,
            6 => {
                levels
                    .iter_mut()
                    .chain(&mut config.instruction)
                    .for_each(|level| level.shared_by = Sharing::Socket);
            }
            // One way, and more sets than the L0 filter cache has slots (64 x 64 bytes = 4 KiB).
            7 => {
                levels[0] = LevelConfig::new(8192, 1);
                levels[1] = LevelConfig::new(8192, 2);
                levels[2] = LevelConfig::new(12288, 2).shared();
            }
            // A number of first-level sets that is no power of two.
            8 => levels[0] = LevelConfig::new(768, 2),
            // Real machines' numbers of ways: sets that are padded (this variant), and in the next variant sets that fill a line of the
            // host or take more than a line.
            10 => {
                levels[0] = LevelConfig::new(3 * 64 * 8, 8);
                levels[1] = LevelConfig::new(2 * 64 * 12, 12);
                levels[2] = LevelConfig::new(3 * 64 * 11, 11).shared();
            }
            11 => {
                levels[1] = LevelConfig::new(64 * 16, 16);
                levels[2] = LevelConfig::new(2 * 64 * 20, 20).shared();
            }
            9 => {
                levels[0].latency.write_hit = 2;
            }
            _ => {}
        }
        price(&mut config);
        if variant == 9 {
            config.levels[0].latency.write_hit = 2;
        }
        config
    });
    (config, places)
}

/// Parts of the structure of [`structured`] machines that vary. The other parts are the defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Structure {
    pub inclusion: bool,
    /// Groups of cores share caches.
    pub groups: bool,
    pub write_allocate: bool,
    pub non_temporal_stores: bool,
    /// Each cache has its own policy.
    pub policies: bool,
    /// Each cache has its own list of prefetchers.
    pub prefetchers: bool,
}

impl Structure {
    pub const ALL: Structure = Structure {
        inclusion: true,
        groups: true,
        write_allocate: true,
        non_temporal_stores: true,
        policies: true,
        prefetchers: true,
    };
}

/// Returns whether a policy is modelled for so many ways.
fn models(policy: Policy, ways: u32) -> bool {
    match policy {
        Policy::TreePlru => ways.is_power_of_two(),
        Policy::Fifo => ways <= 16,
        _ => true,
    }
}

/// Policies of caches. An L0 filter cache may answer repeated hits of all but `qlru-h21-m2-r1-u1` and `qlru-h00-m1-r1-u2`.
const POLICIES: [&str; 11] = [
    "lru",
    "fifo",
    "tree-plru",
    "qlru-h11-m1-r0-u0",
    "qlru-h21-m2-r1-u1",
    "qlru-h20-m3-r2-u1-umo",
    "qlru-h00-m1-r1-u2",
    "srrip",
    "drrip",
    "random",
    "random-3",
];

/// Lists of prefetchers of caches.
const PREFETCHERS: [&[&str]; 10] = [
    &[],
    &["next-line"],
    &["adjacent-line"],
    &["up-down"],
    &["stride:entries=8,degree=2"],
    &["stride:entries=1,distance=2"],
    &["stream:streams=2,distance=5,degree=2,train=1"],
    &["stream:streams=1,distance=20,degree=16,train=2"],
    &["stream", "next-line"],
    &["adjacent-line", "stride:entries=64,distance=3", "next-line"],
];

/// Gives each cache the policy and the prefetchers at its numbers in the lists, as far as the structure varies them.
fn choose(config: &mut CacheConfig, structure: Structure, numbers: &[(usize, usize)]) {
    let levels = config.levels.iter_mut().chain(&mut config.instruction);
    for (level, &(policy, prefetchers)) in levels.zip(numbers) {
        let policy = POLICIES[policy].parse().expect("a policy");
        if structure.policies && models(policy, level.ways) {
            level.policy = policy;
        }
        if structure.prefetchers {
            let texts = PREFETCHERS[prefetchers].iter();
            level.prefetch = texts
                .map(|text| text.parse().expect("a prefetcher"))
                .collect();
        }
    }
}

/// Returns the places of cores that are numbered across the sockets in turn, or listed from the highest number down.
fn scattered(sockets: u16, cores: u16, descending: bool) -> Vec<VcpuPlace> {
    let place = |core| VcpuPlace {
        core,
        socket: core % sockets,
    };
    let mut places: Vec<VcpuPlace> = (0..sockets * cores).map(place).collect();
    if descending {
        places.reverse();
    }
    places
}

/// Makes machines of [`machines`] whose structure differs from the default in the given parts.
pub fn structured(structure: Structure) -> impl Strategy<Value = (CacheConfig, Vec<VcpuPlace>)> {
    use Sharing::{Core, Cores, Socket};
    let inclusions = prop_oneof![
        Just(Inclusion::Inclusive),
        Just(Inclusion::NonInclusive),
        Just(Inclusion::Exclusive),
    ];
    let sharing = prop_oneof![
        Just([Core, Core, Cores(2), Socket]),
        Just([Core, Cores(2), Socket, Socket]),
        Just([Core, Cores(2), Cores(4), Socket]),
        Just([Core, Cores(3), Cores(3), Cores(3)]),
        Just([Core, Core, Cores(2), Cores(4)]),
        Just([Cores(2), Cores(2), Cores(2), Socket]),
        Just([Cores(2), Cores(4), Socket, Socket]),
    ];
    let places = prop_oneof![
        Just(VcpuPlace::grid(1, 4, 1)),
        Just(VcpuPlace::grid(2, 3, 1)),
        Just(VcpuPlace::grid(1, 5, 2)),
        Just(VcpuPlace::grid(2, 4, 1)),
        Just(VcpuPlace::grid(1, 20, 1)),
        Just(scattered(2, 3, false)),
        Just(scattered(2, 4, true)),
    ];
    let groups = (sharing, places);
    let inclusions = proptest::collection::vec(inclusions, 4);
    let allocates = proptest::collection::vec(any::<bool>(), 4);
    let numbers = proptest::collection::vec((0..POLICIES.len(), 0..PREFETCHERS.len()), 5);
    (
        machines(),
        groups,
        inclusions,
        allocates,
        any::<bool>(),
        numbers,
    )
        .prop_map(
            move |((mut config, mut places), groups, inclusions, allocates, bypass, numbers)| {
                choose(&mut config, structure, &numbers);
                if structure.groups {
                    let sharing;
                    (sharing, places) = groups;
                    for (level, shared_by) in config.levels.iter_mut().zip(sharing) {
                        level.shared_by = shared_by;
                    }
                    if let Some(instruction) = &mut config.instruction {
                        instruction.shared_by = sharing[0];
                    }
                }
                if structure.inclusion {
                    let levels = config.levels.iter_mut().skip(1);
                    for (level, inclusion) in levels.zip(inclusions) {
                        level.inclusion = inclusion;
                    }
                }
                if structure.write_allocate {
                    let mut inner = false;
                    for (level, allocate) in config.levels.iter_mut().zip(allocates) {
                        let must = inner && level.inclusion == Inclusion::Inclusive;
                        level.write_allocate = allocate || must;
                        inner |= level.write_allocate;
                    }
                }
                if structure.non_temporal_stores && bypass {
                    config.non_temporal_stores = NonTemporalStores::Bypass;
                }
                assert_eq!(config.faults(&places), []);
                (config, places)
            },
        )
}

/// Makes a trace as [`steps`] does, in which some writes have a non-temporal hint, and in which the references have sites.
pub fn structured_steps(trace: &[(u16, u8, u64, u32, bool)], places: &[VcpuPlace]) -> Vec<Step> {
    let steps = steps(trace, places).into_iter().zip(trace);
    steps
        .map(|(step, &(_, kind, line, ..))| Step {
            non_temporal: kind == 7,
            site: Site {
                block: 1 + u32::from(kind) % 3,
                operation: line as u32 % 4,
            },
            ..step
        })
        .collect()
}

/// Number of different lines in a trace.
const LINES: u64 = 96;

pub fn traces() -> impl Strategy<Value = Vec<(u16, u8, u64, u32, bool)>> {
    // Lines come from a small range, so vCPUs share lines and lines conflict often. Some references are repeated, or go on to lines that
    // are equally far apart, as in real programs.
    let step = (0..64u16, 0..10u8, 0..LINES, 0..2u32, any::<bool>());
    let runs = prop_oneof![4 => (Just(0), 1..4u64), 1 => (-4..=4i64, 3..12u64)];
    let runs = (step, runs).prop_map(|((vcpu, kind, line, context, kernel), (stride, times))| {
        let stride = stride.rem_euclid(LINES as i64) as u64;
        let lines = (0..times).map(|time| (line + time * stride) % LINES);
        let steps = lines.map(|line| (vcpu, kind, line, context, kernel));
        steps.collect::<Vec<_>>()
    });
    proptest::collection::vec(runs, 1..400).prop_map(|runs| runs.concat())
}

pub fn steps(trace: &[(u16, u8, u64, u32, bool)], places: &[VcpuPlace]) -> Vec<Step> {
    trace
        .iter()
        .map(|&(vcpu, kind, line, context, kernel)| Step {
            vcpu: vcpu % places.len() as u16,
            access: match kind {
                0..=4 => Access::Read,
                5..=7 => Access::Write,
                _ => Access::Fetch,
            },
            // Every other line of the upper half is at 64 KiB more, in the same sets as without the offset if their number is a power of
            // two.
            address: line * 64
                + if line > 48 && line % 2 == 0 {
                    0x1_0000
                } else {
                    0
                }
                + line % 64,
            context,
            kernel,
            non_temporal: false,
            site: Site::default(),
        })
        .collect()
}

pub fn memory() -> Box<Numa> {
    let config = NumaConfig {
        latency: Latencies::Uniform {
            local: 10_037,
            remote: 20_021,
        },
        write_back: Latencies::Uniform {
            local: 7,
            remote: 13,
        },
        ..NumaConfig::contiguous(4, 0x1000)
    };
    Box::new(Numa::new(&config).unwrap())
}
