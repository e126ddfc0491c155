//! Measurement of the costs of an engine hand-off and of a hypercall by the doorbell, on this host's KVM. `scripts/bench kvm` runs it.

use std::time::{Duration, Instant};

use nodescope_cluster::Engine;
use nodescope_cluster::build::build;
use nodescope_guest_tests::{cluster, compile, image, program, script};
use nodescope_hypercall::Request;
use nodescope_kvm_tests::kvm;
use nodescope_machine::node::{Node, NodeStatus};
use nodescope_machine::topology::NodeTopology;

/// Number of hypercalls that `rings.c` makes between its markers `begin` and `end`.
const CALLS: u32 = 20_000;
/// Number of hand-offs in each direction that are timed.
const HANDOFFS: usize = 200;
/// Cycles for which a node runs at a time while the test waits for a marker.
const QUANTUM: u64 = 3_000_000;

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Returns a node of `vcpus` vCPUs that runs a job on KVM. None: there is no guest image.
fn node(vcpus: u32, job: &str, programs: &[(&str, Vec<u8>)]) -> Option<Node> {
    let mut files = script(job);
    files.extend(
        programs
            .iter()
            .map(|(name, data)| program(name, data.clone())),
    );
    let topology = NodeTopology::uniform(1, vcpus, 1, 256 << 20);
    let mut config = cluster(image()?, 1, topology, &files);
    config.engine = Engine::Kvm;
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::write(&disk, &config.job_disk).unwrap();
    let (_, mut nodes) = build(&config, &disk).unwrap();
    let mut node = nodes.remove(0);
    node.change_engine().unwrap();
    Some(node)
}

/// Runs a node until the guest sets the marker.
fn run_to(node: &mut Node, marker: &str) {
    loop {
        let status = node.run_until(node.now() + QUANTUM).unwrap();
        let mut events = node.take_events().into_iter();
        if events.any(|event| matches!(event.request, Request::Mark(name) if name == marker)) {
            return;
        }
        assert_eq!(status, NodeStatus::Running, "{marker}");
    }
}

#[test]
#[ignore = "a measurement"]
fn costs() {
    if !kvm() {
        return;
    }
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    println!("{}", model.unwrap_or("model name: unknown"));
    if let Some(rings) = compile("gcc", "rings.c", &["-O2"]) {
        let job = format!("#!/bin/sh\n./rings {CALLS}\n");
        if let Some(mut node) = node(1, &job, &[("rings", rings)]) {
            run_to(&mut node, "begin");
            let start = Instant::now();
            run_to(&mut node, "end");
            let each = start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS);
            println!("hypercall by the doorbell: {each:.1} us, mean of {CALLS}");
        }
    }
    for vcpus in [1, 4] {
        let job = "#!/bin/sh\nfor i in 1 2 3 4; do while :; do :; done & done\nnodescope-guest mark busy\nwait\n";
        let Some(mut node) = node(vcpus, job, &[]) else {
            return;
        };
        run_to(&mut node, "busy");
        let (mut there, mut back) = (Vec::new(), Vec::new());
        for _ in 0..HANDOFFS {
            for times in [&mut there, &mut back] {
                node.run_until(node.now() + QUANTUM / 10).unwrap();
                let start = Instant::now();
                node.change_engine().unwrap();
                times.push(start.elapsed());
            }
        }
        println!(
            "hand-off of {vcpus} vCPUs: {:.0} us from KVM, {:.0} us to KVM, medians of {HANDOFFS}",
            median(there),
            median(back)
        );
    }
}
