//! Test that a study always gives the same bytes: in two runs on one host thread, on two host threads, and interpreted and translated.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_guest_tests::{Finished, cluster, compile, image, program, run_well};
use nodescope_hypercall::Function;
use nodescope_machine::topology::NodeTopology;
use nodescope_report::{CoreCpi, ReportInput, StudyInfo};
use nodescope_window::{
    CacheConfig, CoreSpec, Ending, Measure, MemorySpec, ModelSpec, Sampling, Trigger, WindowSpec,
};

const JOB: &str = "#!/bin/sh
set -e
mpirun -np 4 ./ring
dmesg | tail -n 20 >dmesg-tail
nodescope-guest put dmesg-tail dmesg-tail
head -c 64 /dev/urandom | od -x >random
nodescope-guest put random random
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

/// Writes the report's three forms into the folder of the results.
fn report(finished: &Finished) {
    let report = nodescope_report::build(&ReportInput {
        profiles: None,
        models: Vec::new(),
        memory_parallelism: 1.0,
        windows: finished.outcome.windows.clone(),
        trace: Some(finished.dir.join(TRACE_FILE)),
        study: StudyInfo::default(),
        core: CoreCpi::Nominal {
            source: "stated in the test".into(),
        },
        network: Vec::new(),
        notes: finished.outcome.warnings.clone(),
    })
    .unwrap();
    for (name, text) in [
        ("report.txt", report.text()),
        ("report.json", report.json()),
        ("report.html", report.html()),
    ] {
        fs::write(finished.dir.join(name), text).unwrap();
    }
}

#[test]
fn the_same_study_gives_the_same_bytes() {
    let Some(image) = image() else { return };
    let Some(ring) = compile("mpicc.openmpi", "ring.c", &["-O2"]) else {
        return;
    };
    let job = [program("ring", ring), program("run", JOB)];
    let mut config = cluster(image, 2, NodeTopology::uniform(2, 1, 1, 128 << 20), &job);
    config.trace = true;
    config.capture = true;
    config.windows = vec![WindowSpec {
        name: "rounds".into(),
        open: Trigger::MpiCall {
            function: Function::Allreduce,
            call: 3,
            rank: 0,
        },
        warm_up: 500_000,
        attribution: true,
        sampling: None,
        measure: Measure::Instructions(4_000_000),
        models: ModelSpec {
            caches: Some(CacheConfig::xeon_e5_2690()),
            memory: Some(MemorySpec::numa()),
            core: zen4(),
            registered: Vec::new(),
        },
    }];
    let results: Vec<_> = [1, 1, 2]
        .into_iter()
        .map(|threads| {
            config.host_threads = threads;
            let dir = tempfile::tempdir().unwrap();
            let finished = run_well(&config, dir.path());
            report(&finished);
            (threads, finished, files(dir.path()), dir)
        })
        .collect();
    let (_, first, bytes, _) = &results[0];
    assert!(
        first.consoles[0].contains("4 ranks: 10\n"),
        "{}",
        first.consoles[0]
    );
    let outcome = &first.outcome.windows.outcomes[0];
    assert_eq!(outcome.ending, Ending::Complete, "{outcome}");
    // The files to compare are not empty.
    for name in [
        TRACE_FILE,
        "windows.json",
        "fabric.pcap",
        "console-node0.log",
        "console-node1.log",
        "files/random",
        "files/dmesg-tail",
        "report.json",
        "report.html",
    ] {
        let size = bytes.get(name).map_or(0, Vec::len);
        println!("{name}: {size} bytes");
        let least = if name == "console-node1.log" { 50 } else { 100 };
        assert!(size > least, "{name} has {size} bytes");
    }
    assert!(
        first.consoles[1].contains("node1 ready"),
        "{}",
        first.consoles[1]
    );
    let record = &first.outcome.windows.windows[0];
    for node in &record.nodes {
        assert!(!node.statistics.is_empty());
        let stalls: u64 = node.counters.iter().map(|(.., c)| c.stall_cycles).sum();
        assert!(stalls > 0, "the models cost no cycle on {}", node.name);
    }
    for (threads, other, others, _) in &results[1..] {
        let compared = format!("1 and {threads} host threads");
        same((first, bytes), (other, others), &compared);
    }
}

/// Checks that two runs have the same results, file by file.
fn same(
    (first, bytes): (&Finished, &BTreeMap<String, Vec<u8>>),
    (other, others): (&Finished, &BTreeMap<String, Vec<u8>>),
    compared: &str,
) {
    assert_eq!(
        bytes.keys().collect::<Vec<_>>(),
        others.keys().collect::<Vec<_>>(),
        "{compared}"
    );
    for (name, content) in bytes {
        let same = content == &others[name];
        let at = content.iter().zip(&others[name]).position(|(a, b)| a != b);
        assert!(same, "{name} differs at byte {at:?}: {compared}");
    }
    assert_eq!(first.outcome.instructions, other.outcome.instructions);
    assert_eq!(first.outcome.virtual_ps, other.outcome.virtual_ps);
    assert_eq!(first.outcome.network, other.outcome.network);
}

/// Returns a core for windows.
fn zen4() -> Option<CoreSpec> {
    Some(CoreSpec {
        description: "base = \"zen4\"".into(),
    })
}

/// A sampled window gives the same bytes interpreted and translated, and on two host threads. The nodes share code.
#[test]
fn a_sampled_window_gives_the_same_bytes() {
    let Some(image) = image() else { return };
    let Some(ring) = compile("mpicc.openmpi", "ring.c", &["-O2"]) else {
        return;
    };
    let job = [program("ring", ring), program("run", JOB)];
    let mut config = cluster(image, 2, NodeTopology::uniform(2, 1, 1, 128 << 20), &job);
    config.trace = true;
    let each = 50_000;
    config.windows = vec![WindowSpec {
        name: "job".into(),
        open: Trigger::MpiCall {
            function: Function::Init,
            call: 1,
            rank: 0,
        },
        warm_up: 200_000,
        attribution: true,
        sampling: Some(Sampling {
            warm_up: each,
            measured: each,
            apart: 8 * each,
            most_apart: 32 * each,
            longest_ps: 1_000_000_000_000,
            most_per_second: 100_000_000_000,
        }),
        measure: Measure::Guest,
        models: ModelSpec {
            caches: Some(CacheConfig::xeon_e5_2690()),
            memory: Some(MemorySpec::numa()),
            core: zen4(),
            registered: Vec::new(),
        },
    }];
    let results: Vec<_> = [(1, true), (2, false)]
        .into_iter()
        .map(|(threads, translate)| {
            config.host_threads = threads;
            config.translate = translate;
            let dir = tempfile::tempdir().unwrap();
            let finished = run_well(&config, dir.path());
            report(&finished);
            (finished, files(dir.path()), dir)
        })
        .collect();
    let (first, bytes, _) = &results[0];
    let outcome = &first.outcome.windows.outcomes[0];
    assert_eq!(outcome.ending, Ending::Complete, "{outcome}");
    let record = &first.outcome.windows.windows[0];
    println!("{} intervals", record.intervals_ps.len());
    assert!(record.intervals_ps.len() > 20);
    let cores = record.nodes.iter().filter_map(|node| node.core.as_ref());
    for core in cores.clone() {
        assert!(core.intervals.iter().any(|interval| interval.cycles > 0));
    }
    assert_eq!(cores.count(), 2);
    for (other, others, _) in &results[1..] {
        same((first, bytes), (other, others), "sampled");
    }
}

/// A whole boot with windows gives the same bytes: one window from power-on, others during the boot and later.
#[test]
fn an_interpreted_and_a_translated_boot_give_the_same_bytes() {
    let Some(image) = image() else { return };
    let job = [program(
        "run",
        "#!/bin/sh
set -e
ls -lR /proc/self /etc | sort | gzip | cksum
dmesg | tail -n 20 >dmesg-tail
nodescope-guest put dmesg-tail dmesg-tail
head -c 64 /dev/urandom | od -x >random
nodescope-guest put random random
",
    )];
    let node = NodeTopology::uniform(1, 2, 1, 128 << 20);
    let mut config = cluster(image, 1, node, &job);
    config.trace = true;
    let window = |name: &str, open| WindowSpec {
        name: name.into(),
        open,
        warm_up: 300_000,
        attribution: true,
        sampling: None,
        measure: Measure::Instructions(3_000_000),
        models: ModelSpec {
            caches: Some(CacheConfig::xeon_e5_2690()),
            memory: Some(MemorySpec::numa()),
            core: None,
            registered: Vec::new(),
        },
    };
    config.windows = vec![
        window("kernel", Trigger::Immediately),
        window(
            "boot",
            Trigger::Time {
                ps: 100_000_000_000,
            },
        ),
        window(
            "core",
            Trigger::Time {
                ps: 180_000_000_000,
            },
        ),
        window(
            "user",
            Trigger::Time {
                ps: 250_000_000_000,
            },
        ),
    ];
    // In this window the clock counts what a model of the core learns.
    config.windows[2].models.core = zen4();
    // This window models only latencies of memory: for such a model the L0 filter cache answers no reference.
    config.windows[3].models.caches = None;
    let [interpreted, translated] = [false, true].map(|translate| {
        config.translate = translate;
        let dir = tempfile::tempdir().unwrap();
        let finished = run_well(&config, dir.path());
        report(&finished);
        let files = files(dir.path());
        (finished, files, dir)
    });
    for outcome in &interpreted.0.outcome.windows.outcomes {
        assert_eq!(outcome.ending, Ending::Complete, "{outcome}");
    }
    let record = &interpreted.0.outcome.windows.windows[2];
    let core = record.nodes[0].core.as_ref().unwrap();
    assert!(core.timed.recordings >= 8, "{core:?}");
    for name in ["windows.json", "console-node0.log", "files/random"] {
        assert!(interpreted.1.get(name).map_or(0, Vec::len) > 100, "{name}");
    }
    same(
        (&interpreted.0, &interpreted.1),
        (&translated.0, &translated.1),
        "interpreted and translated",
    );
}

#[test]
fn another_seed_gives_other_random_numbers() {
    let Some(image) = image() else { return };
    let job = [program(
        "run",
        "#!/bin/sh\nhead -c 64 /dev/urandom | od -x >random && nodescope-guest put random random\n",
    )];
    let random = |seed| {
        let mut config = cluster(image, 1, NodeTopology::uniform(1, 1, 1, 128 << 20), &job);
        config.seed = seed;
        let dir = tempfile::tempdir().unwrap();
        run_well(&config, dir.path()).file("random")
    };
    assert_ne!(random(1), random(2));
}
