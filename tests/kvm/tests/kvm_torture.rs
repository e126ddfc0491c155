//! Test of hand-offs between KVM and the portable engine at random points of a program with vector code, page faults, signals and
//! interrupts between four vCPUs. The program must print the same text as on the host.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nodescope_cluster::Engine;
use nodescope_cluster::build::build;
use nodescope_guest_tests::{cluster, compile, image, program, script};
use nodescope_kvm_tests::kvm;
use nodescope_machine::node::{Node, NodeStatus};
use nodescope_machine::topology::NodeTopology;

/// Number of hand-offs of the short test. `NODESCOPE_HANDOFFS` sets another number, such as 2000 for the campaign.
const HANDOFFS: u64 = 100;
/// Rounds of the program for each hand-off, so that the program does not end before the last hand-off.
const ROUNDS_PER_HANDOFF: f64 = 0.4;
/// Maximum number of cycles that a node runs on KVM between two hand-offs: about 20 ms.
const LONGEST_ON_KVM: u64 = 60_000_000;
/// Maximum number of cycles that a node runs on the portable engine between two hand-offs.
const LONGEST_ON_PORTABLE: u64 = 300_000;
/// Maximum number of cycles of one call of `Node::run_until`.
const ROUND: u64 = 3_000_000;

/// Generator of pseudo-random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}

/// Runs a node for some cycles, and appends its console output to `console`.
fn run(node: &mut Node, cycles: u64, console: &mut Vec<u8>) -> NodeStatus {
    let end = node.now() + cycles;
    let mut status = NodeStatus::Running;
    while node.now() < end && status == NodeStatus::Running {
        let target = end.min(node.now() + ROUND);
        status = node.run_until(target).unwrap();
        console.extend(node.take_console());
        node.take_events();
    }
    status
}

#[test]
fn a_program_survives_hand_offs_at_random_points() {
    let Some(image) = kvm().then(image).flatten() else {
        return;
    };
    let Some(torture) = compile("gcc", "torture.c", &["-O2", "-mavx2", "-mfma", "-pthread"]) else {
        return;
    };
    let handoffs = std::env::var("NODESCOPE_HANDOFFS")
        .ok()
        .map_or(HANDOFFS, |text| {
            text.parse().expect("a number of hand-offs")
        });
    let rounds = (handoffs as f64 * ROUNDS_PER_HANDOFF) as u64 + 20;
    let dir = tempfile::tempdir().unwrap();
    let native = dir.path().join("torture");
    std::fs::write(&native, &torture).unwrap();
    std::fs::set_permissions(&native, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(&native)
        .arg(rounds.to_string())
        .output()
        .unwrap();
    let expected = String::from_utf8(output.stdout).unwrap();
    assert!(expected.contains("all: "), "{expected}");

    let mut files = script(&format!("#!/bin/sh\n./torture {rounds}\n"));
    files.push(program("torture", torture));
    let mut config = cluster(image, 1, NodeTopology::uniform(2, 2, 1, 256 << 20), &files);
    config.engine = Engine::Kvm;
    let disk = dir.path().join("disk");
    std::fs::write(&disk, &config.job_disk).unwrap();
    let (_, mut nodes) = build(&config, &disk).unwrap();
    let node = &mut nodes[0];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut console = Vec::new();
    let has = |console: &[u8], text: &str| String::from_utf8_lossy(console).contains(text);

    // Boot on KVM, and hand over once the program runs.
    node.change_engine().unwrap();
    let limit = 600 * node.clock().hz;
    while !has(&console, "job starts") {
        assert_eq!(run(node, ROUND, &mut console), NodeStatus::Running);
        assert!(node.now() < limit, "{}", String::from_utf8_lossy(&console));
    }
    run(node, 10 * ROUND, &mut console);
    let (mut done, mut status) = (0, NodeStatus::Running);
    let start = std::time::Instant::now();
    let mut changing = std::time::Duration::ZERO;
    while status == NodeStatus::Running && !has(&console, "job ends with status 0") {
        assert!(node.now() < limit, "{}", String::from_utf8_lossy(&console));
        let longest = match node.runs_in_parallel() {
            true => LONGEST_ON_KVM,
            false => LONGEST_ON_PORTABLE,
        };
        let cycles = 1 + random.below(longest);
        status = run(node, cycles, &mut console);
        if done < handoffs {
            let before = std::time::Instant::now();
            node.change_engine().unwrap();
            changing += before.elapsed();
            done += 1;
        } else if !node.runs_in_parallel() {
            node.change_engine().unwrap();
        }
    }
    let text = String::from_utf8_lossy(&console).replace('\r', "");
    println!(
        "{done} hand-offs of 4 vCPUs, {:.0} us each, {:.0} s in all",
        changing.as_secs_f64() * 1e6 / done as f64,
        start.elapsed().as_secs_f64()
    );
    assert!(text.contains(&expected), "{text}\nexpected\n{expected}");
    assert!(text.contains("job ends with status 0"), "{text}");
    assert_eq!(done, handoffs, "the program ended too early");
}
