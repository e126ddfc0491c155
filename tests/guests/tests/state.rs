//! Test that saving and restoring vCPU states (also into new vCPUs) changes nothing while a kernel boots on two vCPUs.

use nodescope_cluster::ClusterConfig;
use nodescope_cluster::build::{build, vcpus};
use nodescope_guest_tests::{cluster, image, script};
use nodescope_machine::node::{Node, NodeStatus};
use nodescope_machine::topology::NodeTopology;
use nodescope_x86::VcpuState;

/// Cycles between two checks of the state. The number is not a multiple of any other period.
const STEP: u64 = 1_234_567;

/// Boots until the job runs, and calls `each` with the node after each step. Returns the node's console output, its vCPUs' states and its
/// number of instructions. None: there is no guest image.
fn boot(mut each: impl FnMut(&ClusterConfig, &mut Node)) -> Option<(String, Vec<VcpuState>, u64)> {
    let config = cluster(
        image()?,
        1,
        NodeTopology::uniform(2, 1, 1, 96 << 20),
        &script("#!/bin/sh\necho job runs\n"),
    );
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::write(&disk, &config.job_disk).unwrap();
    let (_, mut nodes) = build(&config, &disk).unwrap();
    let node = &mut nodes[0];
    let mut console = Vec::new();
    // The limit is three times what the boot takes.
    while node.now() < 8 * node.clock().hz {
        let status = node.run_until(node.now() + STEP).unwrap();
        console.extend(node.take_console());
        let text = String::from_utf8_lossy(&console);
        if text.contains("job runs") {
            assert_eq!(status, NodeStatus::Running);
            let states = (0..2).map(|v| node.vcpu_state(v)).collect();
            return Some((text.into_owned(), states, node.instructions()));
        }
        each(&config, node);
    }
    panic!("{}", String::from_utf8_lossy(&console));
}

#[test]
fn state_taken_out_and_put_back_while_booting_changes_nothing() {
    let Some(plain) = boot(|_, _| {}) else { return };
    let mut times = 0;
    let disturbed = boot(|config, node| {
        for v in 0..2 {
            let state = node.vcpu_state(v);
            let text = serde_json::to_string(&state).unwrap();
            let read: VcpuState = serde_json::from_str(&text).unwrap();
            assert_eq!(read, state);
            // The reset state is loaded in between, so that a field that is not restored would differ.
            node.restore_vcpu(v, &VcpuState::reset());
            node.restore_vcpu(v, &read);
            assert_eq!(node.vcpu_state(v), state);
        }
        times += 1;
        if times % 50 == 0 {
            let ram = node.ram().clone();
            for (v, fresh) in vcpus(config, 0, &ram).unwrap().into_iter().enumerate() {
                node.replace_vcpu(v, fresh);
            }
        }
    })
    .unwrap();
    println!(
        "{times} times on two CPUs, {} M instructions",
        plain.2 / 1_000_000
    );
    assert!(times > 100);
    assert_eq!(disturbed.0, plain.0);
    assert_eq!(disturbed.1, plain.1);
    assert_eq!(disturbed.2, plain.2);
}
