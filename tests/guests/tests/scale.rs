//! Tests of large sizes that a study may have: many CPUs in a node, and many nodes on a host.

use nodescope_guest_tests::{cluster, image, peak_memory, run_well, script, small_node};
use nodescope_machine::topology::NodeTopology;

#[test]
fn eight_nodes_boot_together_within_eight_gigabytes() {
    let Some(image) = image() else { return };
    let job = script(
        "#!/bin/sh\nset -e\nfor i in 0 1 2 3 4 5 6 7; do\n    /opt/nodescope/rsh node$i 'echo $(hostname) has $(nproc)'\ndone\n",
    );
    let mut config = cluster(image, 8, small_node(512), &job);
    config.host_threads = 2;
    let before = peak_memory();
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    for node in 0..8 {
        let line = format!("node{node} has 1\n");
        assert!(
            finished.consoles[0].contains(&line),
            "{line}{}",
            finished.consoles[0]
        );
    }
    let peak = peak_memory();
    println!(
        "peak memory {} MiB, {} MiB a node of 512 MiB",
        peak >> 20,
        (peak - before) >> 23
    );
    assert!(peak < 8_000_000_000, "{peak} bytes");
}

#[test]
fn four_sockets_of_four_cores_boot() {
    let Some(image) = image() else { return };
    let job = script(
        "#!/bin/sh\nset -e\nnproc\nlscpu >lscpu\nnodescope-guest put lscpu lscpu\nfor c in $(seq 0 15); do taskset -c $c sh -c 'echo cpu $(cut -d\" \" -f39 /proc/self/stat)'; done\n",
    );
    let node = NodeTopology::uniform(4, 4, 1, 128 << 20);
    let config = cluster(image, 1, node, &job);
    let dir = tempfile::tempdir().unwrap();
    let finished = run_well(&config, dir.path());
    let console = &finished.consoles[0];
    assert!(console.contains("\n16\n"), "{console}");
    // A program runs on each CPU, so that not only idle loops run there.
    for cpu in 0..16 {
        assert!(
            console.contains(&format!("cpu {cpu}\n")),
            "{cpu}: {console}"
        );
    }
    let lscpu = finished.file("lscpu");
    let fields: Vec<Vec<&str>> = lscpu
        .lines()
        .map(|l| l.split(':').map(str::trim).collect())
        .collect();
    for (name, value) in [
        ("Socket(s)", "4"),
        ("Core(s) per socket", "4"),
        ("NUMA node(s)", "4"),
        ("NUMA node3 CPU(s)", "12-15"),
    ] {
        assert!(fields.contains(&vec![name, value]), "{name}\n{lscpu}");
    }
}
