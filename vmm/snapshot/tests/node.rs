//! Tests that compare a node that is never saved with a node that is saved at many points and continues each time in a fresh node.

mod support;

use nodescope_engine_soft::Translate;
use nodescope_machine::motherboard::Activity;
use nodescope_machine::node::Node;
use nodescope_machine::state::NodeState;
use nodescope_memory::Ram;
use nodescope_snapshot::{Snapshot, SnapshotWriter};
use support::*;

const QUANTA: u64 = 120;

/// Saves the state of a node, and returns a fresh node that continues from the state.
fn moved(mut from: Node, translate: Translate, mapped: bool) -> Node {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.nss");
    let mut w = SnapshotWriter::create(&path).unwrap();
    w.state("node", &from.save_state().unwrap()).unwrap();
    w.ram("ram", from.ram()).unwrap();
    w.finish().unwrap();
    drop(from);
    let s = Snapshot::open(&path).unwrap();
    // Like a node of a new cluster, the fresh node has the contents of power-on, which loading must replace completely.
    let mut node = booted(translate);
    match mapped {
        true => s.map_ram("ram", node.ram()).unwrap(),
        false => s.read_ram("ram", node.ram()).unwrap(),
    }
    let state: NodeState = s.state("node").unwrap();
    node.load_state(state.clone()).unwrap();
    assert_eq!(node.save_state().unwrap(), state);
    node
}

#[test]
fn a_node_goes_on_in_fresh_nodes_as_if_it_had_stayed() {
    let mut plain = booted(Translate::Never);
    let expected: Vec<Output> = (0..QUANTA).map(|q| run(&mut plain, q)).collect();
    let end = contents(plain.ram());
    let events: usize = expected.iter().map(|s| s.events.len()).sum();
    let frames: usize = expected.iter().map(|s| s.frames.len()).sum();
    let console: usize = expected.iter().map(|s| s.console.len()).sum();
    let counts = counts(&end);
    println!(
        "{} instructions, {events} events, {frames} frames, {console} bytes of console, interrupts {counts:?}, notes {:?}",
        plain.instructions(),
        plain.notes()
    );
    assert!(events > 100 && frames > 10 && console > 100 && plain.notes().len() == 1);
    assert!(counts.iter().all(|count| *count > 20));
    for (translate, step, mapped) in [
        (Translate::Never, 3, false),
        (Translate::After(0), 1, true),
        (Translate::After(2), 7, true),
        (Translate::default(), 11, false),
    ] {
        let mut node = booted(translate);
        for (q, expected) in (0..).zip(&expected) {
            let found = run(&mut node, q);
            assert!(
                found == *expected,
                "{translate:?}, quantum {q}: {found:?} {expected:?}"
            );
            if q % step == 0 {
                node = moved(node, translate, mapped);
            }
        }
        assert!(contents(node.ram()) == end, "{translate:?}: RAM differs");
    }
}

#[test]
fn many_nodes_go_on_from_one_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.nss");
    let mut node = booted(Translate::default());
    for q in 0..40 {
        run(&mut node, q);
    }
    let mut w = SnapshotWriter::create(&path).unwrap();
    w.state("node", &node.save_state().unwrap()).unwrap();
    w.ram("ram", node.ram()).unwrap();
    w.finish().unwrap();
    let s = Snapshot::open(&path).unwrap();
    let mut clones: Vec<Node> = (0..8)
        .map(|n| {
            let ram = s.ram("ram", &[RAM]).unwrap();
            let mut clone = support::node(ram, Translate::default());
            let mut state: NodeState = s.state("node").unwrap();
            if n > 3 {
                assert!(state.reseed([n; 32]));
            }
            clone.load_state(state).unwrap();
            clone
        })
        .collect();
    for q in 40..80 {
        let expected = run(&mut node, q);
        for clone in &mut clones[..4] {
            assert!(run(clone, q) == expected);
        }
        for clone in &mut clones[4..] {
            run(clone, q);
        }
    }
    let end = contents(node.ram());
    let ends: Vec<_> = clones.iter().map(|c| contents(c.ram())).collect();
    assert!(ends[..4].iter().all(|e| *e == end));
    // The reseeded clones read other bytes from the entropy device, so their RAM differs.
    assert!(ends[4..].iter().all(|e| *e != end) && ends[4] != ends[5]);
}

#[test]
fn a_state_is_refused_by_another_node() {
    let mut node = booted(Translate::Never);
    for q in 0..20 {
        run(&mut node, q);
    }
    let good = node.save_state().unwrap();
    let refuse = |change: &dyn Fn(&mut NodeState), expected: &str| {
        let mut state = good.clone();
        change(&mut state);
        let mut other = support::node(Ram::new(&[RAM]).unwrap(), Translate::Never);
        let error = other.load_state(state).unwrap_err().to_string();
        assert!(
            error.contains("node 5") && error.contains(expected),
            "{error}"
        );
    };
    refuse(&|s| s.vcpus.truncate(1), "1 vCPUs, this node 2");
    refuse(&|s| s.halted.push(true), "3 sleeping");
    refuse(&|s| s.hz += 1, "2900000001 Hz");
    refuse(&|s| s.now = 1 << 62, "run for too long");
    refuse(&|s| s.now += 1 << 40, "too far behind");
    refuse(&|s| s.vcpus[1].time.cycles += 1 << 40, "too far ahead");
    refuse(&|s| s.vcpus[1].time.cycle_fraction = 1 << 16, "vCPU 1");
    refuse(&|s| s.vcpus[0].fx.set_mxcsr(1 << 16), "MXCSR");
    refuse(&|s| s.vcpus[0].control.xcr0 = 0xe7, "XCR0");
    refuse(&|s| s.vcpus[0].control.efer &= !0x400, "EFER");
    refuse(&|s| s.vcpus[0].segments.gdt.base = 1 << 63, "canonical");
    refuse(&|s| s.transport = 9, "transport");
    refuse(
        &|s| s.recent[0] = Some(((0, 0), nodescope_plugin_api::Context(9))),
        "address space",
    );
    let activity = Activity {
        cr3: 7,
        function: None,
    };
    refuse(&|s| s.activities = vec![activity; 2], "twice");
    refuse(&|s| s.chipset.virtio.truncate(2), "virtio devices");
    refuse(&|s| s.chipset.virtio.swap(0, 1), "queues differ");
    refuse(
        &|s| s.chipset.virtio[0].transport.queues[0].used = 1 << 40,
        "RAM",
    );
    refuse(
        &|s| s.chipset.virtio[0].transport.queues[0].size = 3,
        "virtqueue",
    );
    refuse(&|s| s.chipset.interrupts.local[1].id = 7, "vCPUs");
    refuse(&|s| s.chipset.rtc.index = 200, "real-time clock");
    refuse(&|s| s.chipset.serial.fifo = vec![0; 100], "serial port");
    refuse(&|s| s.code[0][0].page = 1 << 30, "code");
    let used = node.load_state(good.clone()).unwrap_err().to_string();
    assert!(used.contains("code"), "{used}");
    let mut other = support::node(Ram::new(&[RAM]).unwrap(), Translate::Never);
    other.load_state(good).unwrap();
}
