//! Host nanoseconds for each reference that the engine's filter does not answer, by where the line is found.
//!
//! `cargo run --release -p nodescope-plugin-cache --example throughput [-- PART OF A NAME]`

use std::time::Instant;

use nodescope_plugin_api::{Access, Context, Hits, MemRef, MemoryModel, Privilege, VcpuPlace};
use nodescope_plugin_cache::{CacheConfig, CacheModel};
use nodescope_plugin_numa::{Numa, NumaConfig};

/// Make `references` references given by `next` and print the time of one.
fn measure(
    name: &str,
    vcpus: u16,
    references: u64,
    mut next: impl FnMut(u64) -> (u16, Access, u64),
) {
    if !std::env::args().skip(1).all(|part| name.contains(&part)) {
        return;
    }
    let config = CacheConfig::xeon_x5680();
    let memory = Numa::new(&NumaConfig::contiguous(2, 4 << 30)).expect("a valid description");
    let places = VcpuPlace::grid(2, vcpus / 2, 1);
    let mut model =
        CacheModel::new(&config, &places, Box::new(memory)).expect("a valid description");
    let mut updates = Vec::new();
    let (mut stalls, mut changes) = (0, 0);
    let mut run = |from: u64, to: u64| {
        for step in from..to {
            let (vcpu, access, physical) = next(step);
            let reference = MemRef {
                vcpu,
                privilege: Privilege::User,
                access,
                context: Context(1),
                physical,
                linear: physical,
                size: 8,
                now: step,
            };
            stalls += u64::from(
                model
                    .reference(Hits::default(), &reference, &mut updates)
                    .stall,
            );
            changes += updates.len();
            updates.clear();
        }
    };
    // The fastest of many short slices: the one that other load on the host disturbs least.
    let slice = references / SLICES;
    run(0, slice);
    let mut fastest = f64::INFINITY;
    for index in 1..SLICES {
        let start = Instant::now();
        run(index * slice, (index + 1) * slice);
        fastest = fastest.min(start.elapsed().as_nanos() as f64 / slice as f64);
    }
    println!("{name:<58} {fastest:7.1} ns   ({stalls} cycles, {changes} filter updates)");
}

/// Parts of a measurement, the first of which only warms up.
const SLICES: u64 = 400;

/// A permutation of 0..2^bits, so that no host prefetcher helps and every line is visited once a pass.
fn scatter(step: u64, bits: u32) -> u64 {
    let mask = (1 << bits) - 1;
    (step & mask).wrapping_mul(0x9e37_79b9_7f4a_7c15 | 1) & mask
}

fn main() {
    let read = |line: u64| (0, Access::Read, line * 64);
    measure("L1 hit, most recent line", 2, 100_000_000, |step| {
        read(step % 64)
    });
    measure(
        "L1 hit, cyclic over 8 ways (worst case)",
        2,
        50_000_000,
        |step| read(step % 512),
    );
    measure("L1 hit, random", 2, 50_000_000, |step| {
        read(scatter(step, 9))
    });
    measure("L2 hit, cyclic", 2, 20_000_000, |step| read(step % 2048));
    measure("L2 hit, random", 2, 20_000_000, |step| {
        read(scatter(step, 11))
    });
    measure("L3 hit, random over 8 MiB", 2, 10_000_000, |step| {
        read(scatter(step, 17))
    });
    measure("memory, streaming reads", 2, 10_000_000, |step| {
        read(step % (1 << 24))
    });
    measure("memory, random reads over 1 GiB", 2, 10_000_000, |step| {
        read(scatter(step, 24))
    });
    measure(
        "memory, streaming writes (with write-backs)",
        2,
        10_000_000,
        |step| (0, Access::Write, (step % (1 << 24)) * 64),
    );
    measure(
        "one line written by two sockets in turn",
        2,
        10_000_000,
        |step| ((step % 2) as u16, Access::Write, 0),
    );
    measure(
        "64 lines written by twelve cores in turn",
        12,
        10_000_000,
        |step| {
            (
                (step % 12) as u16,
                Access::Write,
                scatter(step / 12, 6) * 64,
            )
        },
    );
}
