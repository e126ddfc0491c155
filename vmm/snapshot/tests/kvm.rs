//! Tests of nodes that change engines: a node that was saved on KVM continues on the portable engine and on KVM, and a node that was saved
//! on the portable engine continues on both, too.

mod support;

use nodescope_engine::Vcpu;
use nodescope_engine_kvm::vm::with_hypercall_leaf;
use nodescope_engine_kvm::{KvmConfig, KvmVcpu, KvmVm, probe};
use nodescope_engine_soft::Translate;
use nodescope_machine::node::{Node, NodeStatus};
use nodescope_machine::state::NodeState;
use nodescope_oracle::bare;
use nodescope_snapshot::{Snapshot, SnapshotWriter};
use nodescope_test_needs::{Need, skip};
use support::*;

/// Returns whether nodes can run on this host's KVM; if not, the test is skipped.
fn host() -> bool {
    let why = match probe() {
        Ok(found) if found.ring0_native && found.msr_exits => return true,
        Ok(_) => "it emulates ring 0 in software, or hands no MSRs out".into(),
        Err(error) => error.to_string(),
    };
    skip(Need::Kvm, why);
    false
}

/// Returns a node at power-on that can change to KVM.
fn either() -> Node {
    let mut node = booted(Translate::default());
    let vm = KvmVm::new(node.ram()).unwrap();
    let vcpu = |id| {
        let config = KvmConfig {
            id,
            cpuid: with_hypercall_leaf(&bare::cpuid()),
            tsc_hz: HZ,
        };
        Box::new(KvmVcpu::new(&vm, config).unwrap()) as Box<dyn Vcpu>
    };
    node.set_other_engine(vec![vcpu(0), vcpu(1)]);
    node
}

/// Returns the number of rounds of the guest's program plus the number of handled interrupts. If VM exits take long, the timer's interrupts
/// leave no time for rounds.
fn progress(node: &Node) -> u64 {
    let counts = counts(&contents(node.ram()));
    node.vcpu_state(0).general.gpr[15] + counts.iter().sum::<u64>()
}

/// Runs the node for more than `quanta` steps of at least ten quanta, and further until the guest has made progress. On an emulated host,
/// an entry into the guest may take a thousand quanta. The vCPU is then ahead of its node and waits. So each step ends after the vCPU's
/// clock.
fn steps(node: &mut Node, quanta: u64) {
    let before = progress(node);
    for quantum in 0.. {
        let clock = node.vcpu_state(0).time.cycles;
        let status = node.run_until(clock.max(node.now() + 9 * QUANTUM) + QUANTUM);
        let status = status.unwrap();
        assert_eq!(status, NodeStatus::Running);
        node.take_events();
        node.take_frames();
        if quantum >= quanta && progress(node) > before {
            return;
        }
        assert!(quantum < 10_000, "the guest stands still at {before}");
    }
}

/// Returns a fresh node that has loaded a state, on KVM or on the portable engine.
fn loaded(snapshot: &Snapshot, on_kvm: bool) -> Node {
    let mut node = either();
    if on_kvm {
        node.change_engine().unwrap();
    }
    snapshot.map_ram("ram", node.ram()).unwrap();
    let mut state: NodeState = snapshot.state("node").unwrap();
    node.load_state(state.clone()).unwrap();
    let found = node.save_state().unwrap();
    // A loaded vCPU that sleeps in HLT has at least its node's time.
    for (vcpu, halted) in state.vcpus.iter_mut().zip(&state.halted) {
        if *halted {
            vcpu.time.cycles = vcpu.time.cycles.max(state.now);
        }
    }
    assert_eq!(found, state, "on KVM: {on_kvm}");
    node
}

#[test]
fn saved_nodes_change_engines() {
    if !host() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for saved_on_kvm in [true, false] {
        let mut node = either();
        steps(&mut node, 10);
        if saved_on_kvm {
            node.change_engine().unwrap();
            steps(&mut node, 40);
        }
        let path = folder.path().join("node.nss");
        let mut w = SnapshotWriter::create(&path).unwrap();
        w.state("node", &node.save_state().unwrap()).unwrap();
        w.ram("ram", node.ram()).unwrap();
        w.finish().unwrap();
        // The saved node continues, too.
        steps(&mut node, 20);
        drop(node);
        let snapshot = Snapshot::open(&path).unwrap();
        for on_kvm in [false, true] {
            let mut node = loaded(&snapshot, on_kvm);
            steps(&mut node, 20);
            node.change_engine().unwrap();
            steps(&mut node, 20);
            let counts = counts(&contents(node.ram()));
            println!("saved on KVM: {saved_on_kvm}, on KVM: {on_kvm}: {counts:?}");
            assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        }
    }
}
