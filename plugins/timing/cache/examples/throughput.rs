//! Measurement of the host's nanoseconds for each reference that the engine's L0 filter cache does not answer, by the line's location.
//!
//! `cargo run --release -p nodescope-plugin-cache --example throughput [-- PART OF A NAME]`

use std::time::Instant;

use nodescope_plugin_api::{
    Access, Charges, Context, DirectMiss, Hits, MemRef, MemoryModel, Privilege, Site, VcpuPlace,
};
use nodescope_plugin_cache::{CacheConfig, CacheModel};
use nodescope_plugin_numa::{Numa, NumaConfig};

/// Order of the lines of each set of a first-level cache, as an engine's L0 filter cache keeps it: 64 sets of eight lines, oldest first.
#[derive(Clone, Default)]
struct Order(Vec<Vec<u64>>);

impl Order {
    /// Makes a reference. Returns `None` if the L0 filter cache answers it, else the replaced line, which is `None` if the set is not
    /// full.
    fn refer(&mut self, line: u64) -> Option<Option<u64>> {
        self.0.resize(64, Vec::new());
        let set = &mut self.0[line as usize / 64 % 64];
        let held = set.iter().position(|&other| other == line);
        let full = held.is_none() && set.len() == 8;
        let gone = held.or(full.then_some(0)).map(|at| set.remove(at));
        set.push(line);
        held.is_none().then_some(gone)
    }
}

/// Makes `references` references given by `next`, and prints the mean time of a reference that reaches the model, in the fastest slice. If
/// `shared`, vCPUs take lines from each other, so that all references reach the model, and the model keeps the order of sets.
fn measure(
    name: &str,
    vcpus: u16,
    references: u64,
    shared: bool,
    mut next: impl FnMut(u64) -> (u16, Access, u64),
) {
    if !std::env::args().skip(1).all(|part| name.contains(&part)) {
        return;
    }
    let config = CacheConfig::xeon_x5680();
    let memory = Numa::new(&NumaConfig::contiguous(2, 4 << 30)).expect("a valid description");
    let places = VcpuPlace::grid(2, vcpus / 2, 1);
    let model = CacheModel::new(&config, &places, Box::new(memory)).expect("a valid description");
    let mut model = Box::new(model);
    let direct = model.direct_misses().expect("the model has the function");
    // SAFETY: the model is boxed, and its functions run one at a time.
    let direct = unsafe { direct.accept() };
    let mut charges = Charges::default();
    let mut updates = Vec::new();
    let (mut stalls, mut changes) = (0, 0);
    let mut order = Order::default();
    // The fastest of many short slices is the one that other load on the host disturbs least.
    let slice = references / SLICES;
    let mut fastest = f64::INFINITY;
    for index in 0..SLICES {
        let reported: Vec<(MemRef, Option<u64>)> = (index * slice..(index + 1) * slice)
            .filter_map(|step| {
                let (vcpu, access, physical) = next(step);
                let oldest = if shared { None } else { order.refer(physical)? };
                let reference = MemRef {
                    vcpu,
                    privilege: Privilege::User,
                    access,
                    context: Context(1),
                    physical,
                    linear: physical,
                    size: 8,
                    now: step,
                    site: Site::default(),
                    non_temporal: false,
                    locked: false,
                    large_page: false,
                };
                Some((reference, oldest))
            })
            .collect();
        let start = Instant::now();
        for (reference, oldest) in &reported {
            let hits = Hits {
                oldest: *oldest,
                ..Hits::default()
            };
            let outcome = match (oldest, shared) {
                (Some(oldest), false) => {
                    let miss = DirectMiss {
                        reference: *reference,
                        oldest: *oldest,
                        modified: std::ptr::null(),
                        modified_count: 0,
                        charges: &mut charges,
                    };
                    // SAFETY: the model is boxed, and the pointers of the miss are valid.
                    unsafe { direct.function()(direct.model(), &miss) }
                }
                _ => model.reference(hits, reference, &mut updates),
            };
            stalls += u64::from(outcome.stall());
            changes += updates.len();
            updates.clear();
        }
        if index > 0 && !reported.is_empty() {
            fastest = fastest.min(start.elapsed().as_nanos() as f64 / reported.len() as f64);
        }
    }
    println!("{name:<58} {fastest:7.1} ns   ({stalls} cycles, {changes} filter updates)");
}

/// Number of slices of a measurement. The first only warms up.
const SLICES: u64 = 400;

/// Returns element `step` of a permutation of 0..2^bits, repeated endlessly. Consecutive elements differ by a large constant modulo
/// 2^bits, which host prefetchers do not follow.
fn scatter(step: u64, bits: u32) -> u64 {
    let mask = (1 << bits) - 1;
    (step & mask).wrapping_mul(0x9e37_79b9_7f4a_7c15 | 1) & mask
}

fn main() {
    let read = |line: u64| (0, Access::Read, line * 64);
    measure("L2 hit, cyclic", 2, 20_000_000, false, |step| {
        read(step % 2048)
    });
    measure("L2 hit, random", 2, 20_000_000, false, |step| {
        read(scatter(step, 11))
    });
    measure("L3 hit, random over 8 MiB", 2, 10_000_000, false, |step| {
        read(scatter(step, 17))
    });
    measure("memory, streaming reads", 2, 10_000_000, false, |step| {
        read(step % (1 << 24))
    });
    measure(
        "memory, random reads over 1 GiB",
        2,
        10_000_000,
        false,
        |step| read(scatter(step, 24)),
    );
    measure(
        "memory, streaming writes (with write-backs)",
        2,
        10_000_000,
        false,
        |step| (0, Access::Write, (step % (1 << 24)) * 64),
    );
    measure(
        "one line written by two sockets in turn",
        2,
        10_000_000,
        true,
        |step| ((step % 2) as u16, Access::Write, 0),
    );
    measure(
        "64 lines written by twelve cores in turn",
        12,
        10_000_000,
        true,
        |step| {
            (
                (step % 12) as u16,
                Access::Write,
                scatter(step / 12, 6) * 64,
            )
        },
    );
}
