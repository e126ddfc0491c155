//! Random machines and traces.

use nodescope_plugin_api::{Access, VcpuPlace};
use nodescope_plugin_cache::{CacheConfig, LevelConfig, Sharing};
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

pub fn traces() -> impl Strategy<Value = Vec<(u16, u8, u64, u32, bool)>> {
    // Lines come from a small range, so vCPUs share lines and lines conflict often. Some references are repeated, as in real programs.
    let step = (0..64u16, 0..10u8, 0..96u64, 0..2u32, any::<bool>());
    let runs = (step, 1..4usize).prop_map(|(step, times)| vec![step; times]);
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
