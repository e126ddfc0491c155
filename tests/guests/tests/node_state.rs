//! Tests that a node's saved state can continue in a fresh node, while a kernel boots and while an MPI job runs on two nodes. At the end,
//! registers, RAM, console and hypercalls are equal to those of nodes that were never saved.

use std::path::Path;
use std::time::{Duration, Instant};

use nodescope_cluster::ClusterConfig;
use nodescope_cluster::build::build;
use nodescope_devices::virtio::net::Frame;
use nodescope_fabric::{SentFrame, Switch};
use nodescope_guest_tests::{SECOND_PS, cluster, compile, image, program, script};
use nodescope_hypercall::Request;
use nodescope_machine::motherboard::NodeEvent;
use nodescope_machine::node::{Node, NodeStatus};
use nodescope_machine::state::NodeState;
use nodescope_machine::topology::NodeTopology;
use nodescope_snapshot::{Snapshot, SnapshotWriter, Verify};

/// State of all nodes at the end of the job, and their output until then.
#[derive(PartialEq)]
struct End {
    consoles: Vec<String>,
    events: Vec<Vec<NodeEvent>>,
    states: Vec<NodeState>,
    ram: Vec<blake3::Hash>,
    frames: u64,
}

/// Total times of saving and loading, and the size of the last snapshot file in bytes.
#[derive(Default)]
struct Figures {
    moves: u32,
    written: Duration,
    bytes: u64,
    opened: Duration,
    mapped: (Duration, u32),
    copied: (Duration, u32),
}

impl Figures {
    fn tell(&self, what: &str) {
        let mean =
            |(sum, times): (Duration, u32)| sum.as_secs_f64() * 1e3 / f64::from(times.max(1));
        println!(
            "{what}: moved {} times; the last file has {:.1} MB; mean times: written in {:.0} ms, opened and verified in {:.1} ms, a node mapped in {:.1} ms or copied in {:.0} ms",
            self.moves,
            self.bytes as f64 / 1e6,
            mean((self.written, self.moves)),
            mean((self.opened, self.moves)),
            mean(self.mapped),
            mean(self.copied),
        );
    }
}

/// The nodes of a cluster, driven by this test instead of the executor.
struct Nodes<'a> {
    config: &'a ClusterConfig,
    disk: &'a Path,
    switch: Switch,
    nodes: Vec<Node>,
}

impl<'a> Nodes<'a> {
    fn new(config: &'a ClusterConfig, disk: &'a Path) -> Self {
        let (switch, nodes) = build(config, disk).unwrap();
        Self {
            config,
            disk,
            switch,
            nodes,
        }
    }

    /// Writes all nodes to a snapshot file, and replaces them with fresh nodes that continue from the file.
    fn change(&mut self, figures: &mut Figures) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.nss");
        let began = Instant::now();
        let mut w = SnapshotWriter::create(&path).unwrap();
        for (n, node) in self.nodes.iter_mut().enumerate() {
            w.state(&format!("node-{n}/state"), &node.save_state().unwrap())
                .unwrap();
            w.ram(&format!("node-{n}/ram"), node.ram()).unwrap();
        }
        figures.bytes = w.finish().unwrap();
        figures.written += began.elapsed();
        let (_, fresh) = build(self.config, self.disk).unwrap();
        let old = std::mem::replace(&mut self.nodes, fresh);
        drop(old);
        let began = Instant::now();
        Snapshot::open(&path).unwrap();
        figures.opened += began.elapsed();
        let s = Snapshot::open_with(&path, Verify::State).unwrap();
        for (n, node) in self.nodes.iter_mut().enumerate() {
            let ram = format!("node-{n}/ram");
            let began = Instant::now();
            let mapped = (figures.moves as usize + n).is_multiple_of(2);
            match mapped {
                true => s.map_ram(&ram, node.ram()).unwrap(),
                false => s.read_ram(&ram, node.ram()).unwrap(),
            }
            let state = s.state(&format!("node-{n}/state")).unwrap();
            node.load_state(state).unwrap();
            let (sum, times) = match mapped {
                true => &mut figures.mapped,
                false => &mut figures.copied,
            };
            *sum += began.elapsed();
            *times += 1;
        }
        figures.moves += 1;
    }

    /// Gives the frames that the nodes have sent to the switch, and delivers what the switch forwards before a time. Returns the number of
    /// frames that the nodes have sent.
    fn exchange(&mut self, until_ps: u64) -> u64 {
        let mut frames = Vec::new();
        for (port, node) in self.nodes.iter_mut().enumerate() {
            let clock = node.clock();
            frames.extend(node.take_frames().into_iter().map(|frame| SentFrame {
                time_ps: clock.ps(frame.time),
                port,
                bytes: frame.bytes,
                missing: 0,
                checksum_valid: frame.checksum_valid,
            }));
        }
        let sent = frames.len() as u64;
        for delivery in self.switch.forward(frames, until_ps) {
            let node = &mut self.nodes[delivery.port];
            node.inject(Frame {
                time: node.clock().cycles(delivery.time_ps).max(node.now()),
                bytes: delivery.bytes,
                checksum_valid: delivery.checksum_valid,
            });
        }
        sent
    }
}

/// Runs until the job of the first node ends. After every `every` quanta, all nodes are saved and continue in fresh nodes.
fn drive(config: &ClusterConfig, every: Option<u64>, figures: &mut Figures) -> End {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::write(&disk, &config.job_disk).unwrap();
    let mut cluster = Nodes::new(config, &disk);
    let count = cluster.nodes.len();
    let quantum_ps = cluster.switch.lookahead().unwrap_or(100_000_000);
    let mut consoles = vec![Vec::new(); count];
    let mut events: Vec<Vec<NodeEvent>> = vec![Vec::new(); count];
    let (mut now_ps, mut quanta, mut frames) = (0, 0, 0);
    // The limit is three times what the job takes.
    while now_ps < 8 * SECOND_PS {
        now_ps += quantum_ps;
        quanta += 1;
        for (n, node) in cluster.nodes.iter_mut().enumerate() {
            let target = node.clock().cycles(now_ps);
            let status = node.run_until(target).unwrap();
            consoles[n].extend(node.take_console());
            events[n].extend(node.take_events());
            assert!(
                status == NodeStatus::Running,
                "{}",
                String::from_utf8_lossy(&consoles[n])
            );
        }
        frames += cluster.exchange(now_ps);
        if every.is_some_and(|every| quanta % every == 0) {
            cluster.change(figures);
        }
        let ended = |event: &NodeEvent| matches!(event.request, Request::JobExit(_));
        if events[0].iter().any(ended) {
            let nodes = cluster.nodes.iter_mut();
            let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
            return End {
                consoles: consoles.iter().map(text).collect(),
                events,
                states: nodes.map(|node| node.save_state().unwrap()).collect(),
                ram: cluster.nodes.iter().map(digest).collect(),
                frames,
            };
        }
    }
    panic!(
        "the job does not end: {}",
        String::from_utf8_lossy(&consoles[0])
    );
}

fn digest(node: &Node) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; 1 << 20];
    for region in node.ram().regions() {
        for at in (0..region.len).step_by(piece.len()) {
            assert!(node.ram().read(region.start + at, &mut piece));
            hasher.update(&piece);
        }
    }
    hasher.finalize()
}

fn compare(found: &End, plain: &End) {
    assert_eq!(found.consoles, plain.consoles);
    assert!(found.events == plain.events, "other hypercalls");
    for (n, (found, plain)) in found.states.iter().zip(&plain.states).enumerate() {
        assert_eq!(found.vcpus, plain.vcpus, "node {n}");
        assert!(found == plain, "node {n}: another state");
    }
    assert_eq!(found.ram, plain.ram);
    assert_eq!(found.frames, plain.frames);
}

#[test]
fn a_kernel_boots_through_fresh_nodes() {
    let Some(image) = image() else { return };
    let job = script("#!/bin/sh\nhead -c 64 /dev/urandom | od -x\ndate -u\ncat /proc/uptime\n");
    let config = cluster(image, 1, NodeTopology::uniform(2, 1, 1, 64 << 20), &job);
    let plain = drive(&config, None, &mut Figures::default());
    let mut figures = Figures::default();
    let moved = drive(&config, Some(397), &mut figures);
    figures.tell("boot of a node of 128 MiB");
    compare(&moved, &plain);
    assert!(figures.moves > 20, "{}", figures.moves);
}

#[test]
fn an_mpi_job_runs_through_fresh_nodes() {
    let Some(image) = image() else { return };
    let Some(ring) = compile("mpicc.openmpi", "ring.c", &["-O2"]) else {
        return;
    };
    let run = "#!/bin/sh\nset -e\nmpirun -np 4 ./ring\nhead -c 64 /dev/urandom | od -x\n";
    let job = [program("ring", ring), program("run", run)];
    let mut config = cluster(image, 2, NodeTopology::uniform(2, 1, 1, 64 << 20), &job);
    config.trace = true;
    let plain = drive(&config, None, &mut Figures::default());
    let mut figures = Figures::default();
    let moved = drive(&config, Some(4001), &mut figures);
    figures.tell("MPI job on two nodes of 128 MiB");
    compare(&moved, &plain);
    let calls = plain.events.iter().map(Vec::len).sum::<usize>();
    println!("{calls} hypercalls, {} frames", plain.frames);
    assert!(plain.consoles[0].contains("4 ranks: 10"));
    assert!(calls > 100 && plain.frames > 100 && figures.moves > 20);
}
