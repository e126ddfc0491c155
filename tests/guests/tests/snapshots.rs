//! Tests of snapshots: a whole cluster that is saved and continues, and several nodes that are cloned from one booted node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Instant;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_cluster::{ClusterConfig, Ending, Options, Origin, Save, When};
use nodescope_guest_tests::{
    Finished, cluster, compile, image, program, run_well, run_with, script, small_node,
};
use nodescope_hypercall::Function;
use nodescope_machine::topology::NodeTopology;
use nodescope_window::{CacheConfig, Measure, MemorySpec, ModelSpec, Moment, Trigger, WindowSpec};

const JOB: &str = "#!/bin/sh
set -e
head -c 64 /dev/urandom | od -x >before
nodescope-guest put before before
mpirun -np 4 ./ring
head -c 64 /dev/urandom | od -x >after
nodescope-guest put after after
";

/// Returns the content of every file below a folder, by the file's path in the folder.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().display().to_string();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn same(one: (&Finished, &Path), other: (&Finished, &Path), compared: &str) {
    let (files_one, files_other) = (files(one.1), files(other.1));
    let names = |of: &BTreeMap<String, Vec<u8>>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&files_one), names(&files_other), "{compared}");
    for (name, content) in &files_one {
        let other = &files_other[name];
        let at = content.iter().zip(other).position(|(a, b)| a != b);
        assert!(
            content == other,
            "{name} differs at byte {at:?}: {compared}"
        );
    }
    let (one, other) = (&one.0.outcome, &other.0.outcome);
    assert_eq!(one.ending, other.ending);
    assert_eq!(one.instructions, other.instructions);
    assert_eq!(one.virtual_ps, other.virtual_ps);
    assert_eq!(one.network, other.network);
}

fn window(name: &str, call: u64) -> WindowSpec {
    WindowSpec {
        name: name.into(),
        open: Trigger::MpiCall {
            function: Function::Allreduce,
            call,
            rank: 0,
        },
        warm_up: 100_000,
        attribution: true,
        sampling: None,
        measure: Measure::Instructions(500_000),
        models: ModelSpec {
            caches: Some(CacheConfig::xeon_e5_2690()),
            memory: Some(MemorySpec::numa()),
            core: None,
            registered: Vec::new(),
        },
    }
}

fn save(path: &Path, at: Moment, stop: bool) -> Option<Save> {
    Some(Save {
        when: When::At(at),
        name: "test".into(),
        path: path.into(),
        stop,
    })
}

#[test]
fn an_mpi_job_goes_on_from_a_snapshot_as_if_it_had_never_stopped() {
    let Some(image) = image() else { return };
    let Some(ring) = compile("mpicc.openmpi", "ring.c", &["-O2"]) else {
        return;
    };
    let job = [program("ring", ring), program("run", JOB)];
    let mut config = cluster(image, 2, NodeTopology::uniform(2, 1, 1, 128 << 20), &job);
    config.trace = true;
    config.capture = true;
    config.windows = vec![window("early", 2), window("late", 9)];
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let whole = run_well(&config, &place("whole"));
    assert!(whole.consoles[0].contains("4 ranks: 10\n"));
    assert_eq!(whole.outcome.windows.windows.len(), 2);
    for name in [TRACE_FILE, "windows.json", "fabric.pcap", "files/before"] {
        let length = fs::read(place("whole").join(name)).unwrap().len();
        assert!(length > 100, "{name} has {length} bytes");
    }
    let allreduce = |call| {
        Moment::Trigger(Trigger::MpiCall {
            function: Function::Allreduce,
            call,
            rank: 0,
        })
    };
    let half = Moment::Trigger(Trigger::Time {
        ps: whole.outcome.virtual_ps / 4,
    });
    // In the job between both windows, at the opening of the late window, and during the boot.
    for (number, at) in [allreduce(6), allreduce(9), half].into_iter().enumerate() {
        let path = place(&format!("{number}.nss"));
        let options = Options {
            image: "test",
            save: save(&path, at, false),
            from: None,
            peers: None,
        };
        let through = place(&format!("through{number}"));
        let finished = run_with(&config, &through, options).unwrap();
        let saved = finished.outcome.saved.clone().unwrap();
        println!("{saved:?}");
        same((&whole, &place("whole")), (&finished, &through), "saved");
        for threads in [1, 2] {
            config.host_threads = threads;
            let begin = Instant::now();
            let origin = Origin::open(&path).unwrap();
            println!("opened in {:?}", begin.elapsed());
            let options = Options {
                image: "test",
                save: None,
                from: Some(&origin),
                peers: None,
            };
            let on = place(&format!("on{number}-{threads}"));
            let finished = run_with(&config, &on, options).unwrap();
            let compared = format!("snapshot {number}, {threads} host threads");
            same((&whole, &place("whole")), (&finished, &on), &compared);
        }
    }
}

/// Takes a snapshot of a booted cluster of one node, and opens the snapshot.
fn booted(config: &ClusterConfig, dir: &Path) -> Origin {
    let path = dir.join("booted.nss");
    let options = Options {
        image: "test",
        save: save(&path, Moment::Boot, true),
        from: None,
        peers: None,
    };
    let finished = run_with(config, &dir.join("booted"), options).unwrap();
    assert_eq!(finished.outcome.ending, Ending::Saved);
    println!("{:?}", finished.outcome.saved);
    Origin::open(&path).unwrap()
}

#[test]
fn one_booted_node_becomes_four_that_talk_to_each_other() {
    let Some(image) = image() else { return };
    let mut config = cluster(image, 1, small_node(128), &script("#!/bin/sh\n"));
    let dir = tempfile::tempdir().unwrap();
    let origin = booted(&config, dir.path());
    // The clones have another job, whose disk is larger.
    let job = [
        program("large", vec![7; 3 << 20]),
        program(
            "run",
            "#!/bin/sh
set -e
cksum </job/large
for node in node0 node1 node2 node3; do
    busybox ping -c 2 $node >/dev/null
    /opt/nodescope/rsh $node 'echo $(hostname) $(cat /etc/hostname /etc/machine-id /sys/class/net/eth0/address) $(head -c 16 /dev/urandom | od -An -tx8) $(date +%s)' >>who
done
nodescope-guest put who who
",
        ),
    ];
    config.job_disk = nodescope_image::job_disk(&job).unwrap();
    config.nodes = 4;
    let run = |name: &str, threads| {
        let config = ClusterConfig {
            host_threads: threads,
            ..config.clone()
        };
        let options = Options {
            image: "test",
            save: None,
            from: Some(&origin),
            peers: None,
        };
        let path = dir.path().join(name);
        let finished = run_with(&config, &path, options).unwrap();
        let outcome = &finished.outcome;
        let ended = (&outcome.ending, outcome.job_status);
        assert_eq!(
            ended,
            (&Ending::PoweredOff, Some(0)),
            "{}",
            finished.consoles[0]
        );
        (finished, path)
    };
    let (one, one_at) = run("one", 1);
    let (two, two_at) = run("two", 2);
    same((&one, &one_at), (&two, &two_at), "host threads");
    let who = one.file("who");
    println!("{who}");
    let rows: Vec<Vec<&str>> = who
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 4, "{who}");
    for (node, row) in rows.iter().enumerate() {
        assert_eq!(row[0], format!("node{node}"), "{who}");
        assert_eq!(row[1], format!("node{node}"), "{who}");
        assert_eq!(row[3], format!("02:4e:53:00:00:{:02x}", node + 1), "{who}");
    }
    for column in [2, 4, 5] {
        let different: BTreeSet<_> = rows.iter().map(|row| row[column]).collect();
        assert_eq!(different.len(), 4, "column {column}: {who}");
    }
}
