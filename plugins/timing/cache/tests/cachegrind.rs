//! Comparison of the model with `valgrind --tool=cachegrind` on a program's own reference trace.
//!
//! The test applies two rules of cachegrind to the trace: a reference that crosses a line touches both lines but counts at most one miss,
//! and a read-modify-write counts as a read.

mod support;

use std::collections::HashMap;

use nodescope_plugin_api::{
    Access, Context, Hits, MemRef, MemoryModel, Privilege, Site, VcpuPlace,
};
use nodescope_plugin_cache::{CacheConfig, CacheModel, FlatMemory, LevelConfig};
use support::program::Program;

/// Returns the total of each of cachegrind's events (Ir, I1mr, Dr, D1mr, Dw, D1mw, ...).
fn cachegrind(program: &Program, instruction: &str, data: &str) -> HashMap<String, u64> {
    let file = program.directory().join("cachegrind.out");
    let arguments = [
        "--tool=cachegrind".to_owned(),
        "--cache-sim=yes".to_owned(),
        format!("--I1={instruction}"),
        format!("--D1={data}"),
        "--LL=8388608,16,64".to_owned(),
        format!("--cachegrind-out-file={}", file.display()),
    ];
    program.valgrind(&arguments);
    let text = std::fs::read_to_string(file).expect("cachegrind writes its totals");
    let line = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no line {name} in cachegrind's output"))
            .split_whitespace()
            .map(str::to_owned)
    };
    let counts = line("summary:").map(|count| count.replace(',', "").parse().expect("a count"));
    line("events:").zip(counts).collect()
}

#[test]
fn misses_agree_with_cachegrind() {
    let Some(program) = Program::compile() else {
        return;
    };
    let references = program.references();

    for (size, ways, instruction_size, instruction_ways) in [
        (32 << 10, 8, 32 << 10, 4),
        (4096, 2, 256, 1),
        (2048, 4, 128, 2),
        (1024, 1, 512, 8),
    ] {
        let theirs = cachegrind(
            &program,
            &format!("{instruction_size},{instruction_ways},64"),
            &format!("{size},{ways},64"),
        );
        let config = CacheConfig {
            instruction: Some(LevelConfig::new(instruction_size, instruction_ways)),
            levels: vec![LevelConfig::new(size, ways)],
            coherence: Default::default(),
            non_temporal_stores: Default::default(),
        };
        let mut model = CacheModel::new(
            &config,
            &VcpuPlace::grid(1, 1, 1),
            Box::new(FlatMemory { latency: 1 }),
        )
        .expect("valid");
        let mut updates = Vec::new();
        let (mut ours, mut crossings, mut double) = (HashMap::new(), 0u64, 0u64);
        for &(kind, address, size) in &references {
            let (access, refs, misses) = match kind {
                'I' => (Access::Fetch, "Ir", "I1mr"),
                'S' => (Access::Write, "Dw", "D1mw"),
                _ => (Access::Read, "Dr", "D1mr"),
            };
            let mut lines = 0;
            let mut touch = |access: Access, physical: u64| {
                let reference = MemRef {
                    vcpu: 0,
                    privilege: Privilege::User,
                    access,
                    context: Context(0),
                    physical,
                    linear: physical,
                    size: 1,
                    now: 0,
                    site: Site::default(),
                    non_temporal: false,
                    locked: false,
                    large_page: false,
                };
                // In this configuration, a miss costs one cycle and all else costs nothing.
                lines += u64::from(
                    model
                        .reference(Hits::default(), &reference, &mut updates)
                        .stall(),
                );
            };
            let last = address + size - 1;
            let crosses = last / 64 != address / 64;
            touch(access, address);
            if crosses {
                touch(access, last);
            }
            if kind == 'M' {
                // The write half hits the line that the read half brought in.
                touch(Access::Write, address);
                if crosses {
                    touch(Access::Write, last);
                }
            }
            *ours.entry(refs).or_insert(0) += 1;
            *ours.entry(misses).or_insert(0) += lines.min(1);
            crossings += u64::from(crosses);
            double += u64::from(lines == 2);
        }
        let compare = ["Ir", "I1mr", "Dr", "D1mr", "Dw", "D1mw"];
        println!(
            "D1 {size},{ways} I1 {instruction_size},{instruction_ways}: {} ({crossings} references cross a line, \
             {double} of them miss twice and count once in cachegrind)",
            compare
                .map(|event| format!("{event} {} = {}", ours[event], theirs[event]))
                .join(", ")
        );
        for event in compare {
            assert_eq!(
                ours[event], theirs[event],
                "{event} with D1 {size},{ways} and I1 {instruction_size}"
            );
        }
        assert!(
            crossings > 500 && theirs["D1mr"] + theirs["D1mw"] > 250,
            "the program exercises the cache"
        );
    }
}
