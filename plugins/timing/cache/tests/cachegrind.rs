//! Comparison of the model with `valgrind --tool=cachegrind` on a program's own reference trace.
//!
//! The trace comes from `valgrind --tool=lackey --trace-mem=yes`. The test applies two rules of cachegrind to it: a reference
//! that crosses a line touches both lines but counts at most one miss, and a read-modify-write counts as a read.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use nodescope_plugin_api::{Access, Context, Hits, MemRef, MemoryModel, Privilege, VcpuPlace};
use nodescope_plugin_cache::{CacheConfig, CacheModel, FlatMemory, LevelConfig};
use nodescope_test_needs::{Need, have};

/// C program with strided, transposed, unaligned and read-modify-write references over about 31 KiB of data, without a C library.
const PROGRAM: &str = r#"
static int a[48][48], b[48][48];
static char text[9000];
static unsigned long table[512];

static void leave(void)
{
    __asm__ volatile("syscall" : : "a"(60), "D"(0) : "rcx", "r11", "memory");
    __builtin_unreachable();
}

void _start(void)
{
    unsigned long seed = 12345;
    for (int i = 0; i < 48; i++)
        for (int j = 0; j < 48; j++)
            a[i][j] = i * 31 + j;
    for (int i = 0; i < 48; i++)
        for (int j = 0; j < 48; j++)
            b[j][i] = a[i][j];
    for (int i = 0; i + 8 < 9000; i += 13)
        *(volatile unsigned long *)(text + i) = i;
    for (int i = 0; i < 8000; i++) {
        seed = seed * 6364136223846793005ul + 1442695040888963407ul;
        table[seed >> 55] += text[(seed >> 40) % 9000];
        *(volatile unsigned int *)(text + (seed >> 33) % 8996) += b[(seed >> 20) % 48][(seed >> 50) % 48];
    }
    leave();
}
"#;

fn valgrind(arguments: &[String], program: &Path) {
    let output = Command::new("valgrind")
        .args(arguments)
        .arg(program)
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap_or_default())
        .output()
        .expect("valgrind starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Returns the kind, address and size of each memory reference, in program order.
fn trace(directory: &Path, program: &Path) -> Vec<(char, u64, u64)> {
    let log = directory.join("trace");
    let arguments = [
        "--tool=lackey".to_owned(),
        "--trace-mem=yes".to_owned(),
        "--basic-counts=no".to_owned(),
        format!("--log-file={}", log.display()),
    ];
    valgrind(&arguments, program);
    let text = std::fs::read_to_string(log).expect("lackey writes its trace");
    text.lines()
        .filter(|line| !line.starts_with("=="))
        .map(|line| {
            let (kind, place) = line.trim().split_once(' ').expect("kind and place");
            let (address, size) = place.trim().split_once(',').expect("address and size");
            let address = u64::from_str_radix(address, 16).expect("a hexadecimal address");
            (
                kind.chars().next().expect("a kind"),
                address,
                size.parse().expect("a size"),
            )
        })
        .collect()
}

/// Returns the total of each of cachegrind's events (Ir, I1mr, Dr, D1mr, Dw, D1mw, ...).
fn cachegrind(
    directory: &Path,
    program: &Path,
    instruction: &str,
    data: &str,
) -> HashMap<String, u64> {
    let file = directory.join("cachegrind.out");
    let arguments = [
        "--tool=cachegrind".to_owned(),
        "--cache-sim=yes".to_owned(),
        format!("--I1={instruction}"),
        format!("--D1={data}"),
        "--LL=8388608,16,64".to_owned(),
        format!("--cachegrind-out-file={}", file.display()),
    ];
    valgrind(&arguments, program);
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
    if !have(Need::Valgrind, &["valgrind"]) || !have(Need::Compiler, &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (source, program) = (
        directory.path().join("kernel.c"),
        directory.path().join("kernel"),
    );
    std::fs::write(&source, PROGRAM).expect("the source is written");
    let compiled = Command::new("cc")
        .args([
            "-O1",
            "-nostdlib",
            "-static",
            "-no-pie",
            "-fno-stack-protector",
            "-o",
        ])
        .args([&program, &source])
        .output()
        .expect("cc starts");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let references = trace(directory.path(), &program);

    for (size, ways, instruction_size, instruction_ways) in [
        (32 << 10, 8, 32 << 10, 4),
        (4096, 2, 256, 1),
        (2048, 4, 128, 2),
        (1024, 1, 512, 8),
    ] {
        let theirs = cachegrind(
            directory.path(),
            &program,
            &format!("{instruction_size},{instruction_ways},64"),
            &format!("{size},{ways},64"),
        );
        let config = CacheConfig {
            instruction: Some(LevelConfig::new(instruction_size, instruction_ways)),
            levels: vec![LevelConfig::new(size, ways)],
            coherence: Default::default(),
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
