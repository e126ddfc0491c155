//! Test that a guest's sockets, cores, caches, memory and distances are those of the study.

use nodescope_guest_tests::{cluster, image, program, run_well};
use nodescope_machine::topology::{CacheDescription, CacheKind, NodeTopology, SharedBy};

const JOB: &str = r#"#!/bin/sh
set -e
put() { nodescope-guest put "$1" "$1"; }
lscpu >lscpu; put lscpu
lscpu -C=NAME,ONE-SIZE,WAYS,COHERENCY-SIZE,SETS --bytes >caches; put caches
lscpu -p=CPU,CORE,SOCKET,NODE | grep -v '^#' >places; put places
numactl -H >numactl; put numactl
dmesg | grep 'ACPI: SRAT: Node' >srat; put srat
for c in /sys/devices/system/cpu/cpu[0-9]*; do
    for i in $c/cache/index*; do
        echo "$(basename $c) $(cat $i/level $i/type $i/shared_cpu_list | tr '\n' ' ')"
    done
done >shared; put shared
"#;

fn field<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines()
        .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("no {name} in\n{text}"))
        .trim()
}

/// Splits a text into rows of words.
fn words(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}

/// Returns the size in bytes of a NUMA node's memory in the firmware's SRAT, from the kernel's messages.
fn srat_bytes(text: &str, node: usize) -> u64 {
    let range = |line: &str| {
        let (start, end) = line
            .split_once("[mem ")?
            .1
            .split_once(']')?
            .0
            .split_once('-')?;
        let hex = |s: &str| u64::from_str_radix(s.trim_start_matches("0x"), 16).ok();
        Some(hex(end)? + 1 - hex(start)?)
    };
    text.lines()
        .filter(|line| line.contains(&format!("SRAT: Node {node} ")))
        .map(|line| range(line).unwrap_or_else(|| panic!("{line}")))
        .sum()
}

#[test]
fn lscpu_and_numactl_show_what_was_asked_for() {
    let Some(image) = image() else { return };
    let cache = |level, kind, size, ways, shared_by| CacheDescription {
        level,
        kind,
        size,
        ways,
        line: 64,
        shared_by,
        inclusive: false,
        write_allocate: true,
    };
    let mut node = NodeTopology::uniform(2, 2, 1, 0);
    node.socket_memory = vec![320 << 20, 192 << 20];
    node.distances = vec![vec![10, 31], vec![31, 10]];
    node.caches = vec![
        cache(1, CacheKind::Data, 48 << 10, 12, SharedBy::Core),
        cache(1, CacheKind::Instruction, 32 << 10, 8, SharedBy::Core),
        cache(2, CacheKind::Unified, 1 << 20, 16, SharedBy::Core),
        cache(3, CacheKind::Unified, 6 << 20, 12, SharedBy::Socket),
    ];
    node.brand = "test CPU of two sockets".into();
    let config = cluster(image, 1, node, &[program("run", JOB)]);
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());

    let lscpu = finished.file("lscpu");
    for (name, value) in [
        ("CPU(s)", "4"),
        ("On-line CPU(s) list", "0-3"),
        ("Model name", "test CPU of two sockets"),
        ("Thread(s) per core", "1"),
        ("Core(s) per socket", "2"),
        ("Socket(s)", "2"),
        ("NUMA node(s)", "2"),
        ("NUMA node0 CPU(s)", "0,1"),
        ("NUMA node1 CPU(s)", "2,3"),
    ] {
        assert_eq!(field(&lscpu, name), value, "{name}\n{lscpu}");
    }
    assert_eq!(
        finished.file("places"),
        "0,0,0,0\n1,1,0,0\n2,2,1,1\n3,3,1,1\n"
    );
    assert_eq!(
        words(&finished.file("caches")),
        [
            ["NAME", "ONE-SIZE", "WAYS", "COHERENCY-SIZE", "SETS"],
            ["L1d", "49152", "12", "64", "64"],
            ["L1i", "32768", "8", "64", "64"],
            ["L2", "1048576", "16", "64", "1024"],
            ["L3", "6291456", "12", "64", "8192"],
        ]
    );
    let shared: Vec<String> = (0..4)
        .flat_map(|cpu: u32| {
            let socket = if cpu < 2 { "0-1" } else { "2-3" };
            [
                format!("cpu{cpu} 1 Data {cpu}"),
                format!("cpu{cpu} 1 Instruction {cpu}"),
                format!("cpu{cpu} 2 Unified {cpu}"),
                format!("cpu{cpu} 3 Unified {socket}"),
            ]
        })
        .collect();
    let file = finished.file("shared");
    let told: Vec<&str> = file.lines().map(str::trim_end).collect();
    assert_eq!(told, shared);

    let srat = finished.file("srat");
    assert_eq!(srat_bytes(&srat, 0), 320 << 20, "{srat}");
    assert_eq!(srat_bytes(&srat, 1), 192 << 20, "{srat}");
    let numactl = finished.file("numactl");
    println!("{numactl}");
    assert_eq!(field(&numactl, "available"), "2 nodes (0-1)");
    assert_eq!(field(&numactl, "node 0 cpus"), "0 1");
    assert_eq!(field(&numactl, "node 1 cpus"), "2 3");
    // The kernel does not count its own image, page descriptors and reserved ranges as memory of a node.
    for (name, asked) in [("node 0 size", 320), ("node 1 size", 192)] {
        let size = field(&numactl, name).trim_end_matches(" MB");
        let size: u64 = size.parse().unwrap();
        assert!(
            size <= asked && size >= asked - 80,
            "{name} {size}\n{numactl}"
        );
    }
    let distances: Vec<_> = numactl
        .lines()
        .skip_while(|l| !l.starts_with("node distances"))
        .collect();
    assert_eq!(
        words(&distances[1..].join("\n")),
        [
            vec!["node", "0", "1"],
            vec!["0:", "10", "31"],
            vec!["1:", "31", "10"]
        ]
    );
}
