//! Tests of reading valid study files, and of the messages about mistakes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[path = "support/counters.rs"]
mod counters;

use nodescope_hypercall::Function;
use nodescope_machine::topology::{CacheKind, SharedBy};
use nodescope_plugin_cache::{Inclusion, NonTemporalStores};
use nodescope_study::{ImageSource, Mpi, Problems, Program, Study, known_fields};
use nodescope_window::{Measure, MemorySpec, Trigger};

const SMALL: &str = r#"
[cluster]
nodes = 2

[node]
cores = 2

[job]
command = "hpcc"

[[window]]
name = "hpl"
measure = "50 M instructions"
"#;

const EVERY_FIELD: &str = include_str!("every-field.toml");
const OWN_IMAGE: &str = include_str!("own-image.toml");

/// Returns the path of a file in the folder of the example studies, so that relative paths in studies resolve.
fn beside(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

fn refused(text: &str) -> Problems {
    Study::parse(Path::new("study.toml"), text).unwrap_err()
}

#[test]
fn a_small_study_is_enough() {
    let study = Study::parse(Path::new("small.toml"), SMALL).unwrap();
    assert_eq!(study.name, "small");
    assert_eq!((study.nodes, study.topology.vcpus()), (2, 2));
    assert_eq!(study.deadlock.to_string(), "1 s");
    assert_eq!((study.job.ranks, study.job.slots), (4, 2));
    assert_eq!(study.node_memory().to_string(), "512 MiB");
    assert_eq!(study.results, Path::new("results/small"));
    assert_eq!(study.windows[0].models.caches, Some(study.caches.clone()));
    assert_eq!(study.windows[0].models.memory, Some(study.memory.clone()));
    assert_eq!(study.position_of("job.command").unwrap().line, 9);
    assert_eq!(study.topology.problems(), []);
}

/// One node boots for all from a number of nodes on, where clones can take the place of nodes that boot by themselves.
#[test]
fn many_nodes_boot_once() {
    let boots_once = |nodes: u32, more: &str| {
        let text = format!("cluster.nodes = {nodes}\njob.command = \"hpcc\"\n{more}");
        let study = Study::parse(Path::new("study.toml"), &text).unwrap();
        study.boots_once
    };
    assert!(!boots_once(7, ""));
    assert!(boots_once(8, ""));
    assert!(boots_once(2, "cluster.boot = \"once\""));
    assert!(!boots_once(64, "cluster.boot = \"each\""));
    assert!(!boots_once(64, "study.engine = \"kvm\""));
    assert!(!boots_once(64, "study.fast_forward = \"kvm\""));
    let window = |open: &str| {
        format!("[[window]]\nname = \"w\"\nmeasure = \"1 M instructions\"\nopen = {open}")
    };
    assert!(boots_once(64, &window("{ mpi = \"MPI_Init\" }")));
    assert!(!boots_once(64, &window("\"immediately\"")));
}

#[test]
fn limits_of_files_fit_into_each_other() {
    let limits = |lines: &str| {
        let text = format!("{SMALL}\n[results]\n{lines}");
        let limits = Study::parse(Path::new("s.toml"), &text)?.file_limits;
        Ok::<_, Problems>([limits.file, limits.node, limits.study].map(|bytes| bytes >> 30))
    };
    assert_eq!(limits("").unwrap(), [1, 4, 16]);
    assert_eq!(limits("limit = '2 GiB'").unwrap(), [1, 2, 2]);
    assert_eq!(limits("file_limit = '32 GiB'").unwrap(), [32, 32, 32]);
    let text = limits("file_limit = '3 GiB'\nlimit = '2 GiB'").unwrap_err();
    assert!(
        text.to_string().contains(
            "results.file_limit: is 3 GiB, more than all files together may have, 2 GiB; lower it"
        ),
        "{text}"
    );
    let text = limits("limit = '9 000 000 TiB'").unwrap_err().to_string();
    assert!(text.contains("results.limit"), "{text}");
}

#[test]
fn cores_are_a_name_or_up_to_four() {
    let parse = |lines: &str| {
        let text = SMALL.replace("cores = 2\n", &format!("cores = 2\n{lines}\n"));
        Study::parse(Path::new("s.toml"), &text)
    };
    let study = parse("core = 'znver4'\nmemory_parallelism = 2.5").unwrap();
    assert_eq!(study.cores, ["znver4"]);
    assert_eq!(study.memory_parallelism.misses(), 2.5);
    let plain = parse("").unwrap();
    assert!(plain.cores.is_empty());
    assert_eq!(plain.memory_parallelism.misses(), 1.0);
    // A study that models no core keeps the identity that it had before cores were modelled.
    let text = serde_json::to_string(&plain).unwrap();
    assert!(
        !text.contains("memory_parallelism") && !text.contains("cores\":[]"),
        "{text}"
    );
    for (lines, says) in [
        (
            "core = ['a', 'b', 'c', 'd', 'e']",
            "node.core: names 5 cores; at most 4 are compared",
        ),
        ("core = ['a', 'a']", "names \"a\" twice"),
        ("core = ''", "node.core: is empty"),
        ("core = 4", "node.core: is a number"),
        ("memory_parallelism = 0.5", "write a number from 1 to 64"),
        ("memory_parallelism = 'four'", "write a number from 1 to 64"),
    ] {
        let text = parse(lines).unwrap_err().to_string();
        assert!(text.contains(says), "{lines}: {text}");
    }
}

#[test]
fn the_shared_file_system_has_a_place_and_a_size() {
    let parse = |cluster: &str| {
        let text =
            format!("[cluster]\n{cluster}\n[job]\ncommand = 'true'\n[node]\nmemory = '256 MiB'\n");
        Study::parse(Path::new("s.toml"), &text)
    };
    let study = parse("nodes = 2\nshared = { path = '/home/shared', size = '1 GiB' }").unwrap();
    let server = study.file_server().unwrap();
    assert_eq!((server.vcpus(), server.sockets), (1, 1));
    assert!(server.socket_memory[0] > 1 << 30);
    assert!(
        study
            .description()
            .iter()
            .any(|(label, text)| label == "shared files"
                && text.starts_with("1 GiB in /home/shared, served by NFS from a further node")),
        "{:?}",
        study.description()
    );
    for (cluster, says) in [
        (
            "nodes = 2\nshared = '/scratch'",
            "cluster.shared: is a text, not a table",
        ),
        (
            "nodes = 2\nshared = {}",
            "cluster.shared.path: is missing; write e.g. path = \"/scratch\"",
        ),
        (
            "nodes = 2\nshared = { path = '/s' }",
            "cluster.shared.size: is missing",
        ),
        (
            "nodes = 2\nshared = { path = '/s', size = '1 kB' }",
            "write a size from \"1 MiB\" to \"1 TiB\"",
        ),
        (
            "nodes = 2\nshared = { path = 's', size = '1 GiB' }",
            "is not an absolute path",
        ),
        (
            "nodes = 2\nshared = { path = '/', size = '1 GiB' }",
            "is not an absolute path",
        ),
        (
            "nodes = 2\nshared = { path = '/a b', size = '1 GiB' }",
            "is not an absolute path",
        ),
        (
            "nodes = 2\nshared = { path = '/a/../b', size = '1 GiB' }",
            "is not an absolute path",
        ),
        (
            "nodes = 2\nshared = { path = '/job/x', size = '1 GiB' }",
            "lies in /job, which every node has for itself",
        ),
        (
            "nodes = 2\nshared = { path = '/tmp', size = '1 GiB' }",
            "lies in /tmp",
        ),
        (
            "nodes = 2\nshared = { path = '/s', size = '1 GiB', type = 'nfs' }",
            "cluster.shared.type: is not a known key",
        ),
        (
            "nodes = 1022\nshared = { path = '/s', size = '1 GiB' }",
            "lower cluster.nodes to 1021",
        ),
        (
            "nodes = 2\nboot = 'once'\nshared = { path = '/s', size = '1 GiB' }",
            "raise node.memory to 1280 MiB",
        ),
    ] {
        let text = parse(cluster).unwrap_err().to_string();
        assert!(text.contains(says), "{cluster}: {text}");
    }
}

#[test]
fn every_field_arrives() {
    let study = Study::load(&beside("every-field.toml")).unwrap();
    assert_eq!((study.name.as_str(), study.seed), ("every-field", 42));
    assert_eq!(study.host_threads, Some(1));
    assert_eq!(study.time_limit.to_string(), "10 min");
    let host = study.host_time_limit.map(|limit| limit.to_string());
    assert_eq!(host.as_deref(), Some("1 h"));
    assert_eq!(study.deadlock.to_string(), "100 ms");
    assert_eq!(study.core_cpi.as_f64(), 0.85);
    assert_eq!(study.cores, ["skylake-avx512", "znver4"]);
    assert_eq!(study.memory_parallelism.misses(), 4.0);
    let ImageSource::Debian(spec) = &study.image else {
        panic!("{:?}", study.image)
    };
    assert_eq!(spec.packages, ["lammps"]);
    assert_eq!(
        spec.mirror.as_deref(),
        Some("http://archive.example/debian/20260101")
    );
    assert_eq!(study.kernel_parameters, ["loglevel=7"]);
    assert_eq!(study.topology.socket_memory, [256 << 20, 512 << 20]);
    assert_eq!(study.topology.tsc_hz, 3_330_000_000);
    assert_eq!(study.topology.distances, [[10, 21], [21, 10]]);
    assert_eq!(study.cpuid.hidden, ["avx2"]);
    assert_eq!(study.network.link.bandwidth, 8_000_000_000);
    assert_eq!(study.network.link.latency_ps, 1_300_000);
    assert_eq!((study.network.mtu, study.network.offload), (9000, false));
    let limits = study.file_limits;
    let limits = [limits.file, limits.node, limits.study].map(|bytes| bytes >> 30);
    assert_eq!(limits, [2, 8, 8]);
    assert_eq!(study.job.mpi, Mpi::Openmpi);
    let names: Vec<_> = study.job.files.iter().map(|(_, to)| to.as_str()).collect();
    assert_eq!(names, ["every-field.toml", "input/reading.rs"]);

    let shared = study.shared.as_ref().unwrap();
    assert_eq!(
        (shared.path.as_str(), shared.size.0),
        ("/scratch", 256 << 20)
    );
    assert_eq!(study.guest_names(), ["node0", "node1", "fileserver"]);
    assert_eq!(study.file_server().as_ref(), Some(&study.topology));

    // The topology that guests read and the cache model come from the same description.
    let told: Vec<_> = study
        .topology
        .caches
        .iter()
        .map(|cache| {
            (
                cache.level,
                cache.kind,
                cache.size,
                cache.ways,
                cache.shared_by,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (1, CacheKind::Data, 32 << 10, 8, SharedBy::Core),
            (1, CacheKind::Instruction, 32 << 10, 4, SharedBy::Core),
            (2, CacheKind::Unified, 256 << 10, 8, SharedBy::Cores(2)),
            (3, CacheKind::Unified, 12 << 20, 16, SharedBy::Socket),
        ]
    );
    let told = study.topology.caches.iter();
    let told: Vec<_> = told.map(|c| (c.inclusive, c.write_allocate)).collect();
    assert_eq!(
        told,
        [(false, true), (false, true), (false, false), (true, true)]
    );
    let model = &study.caches;
    assert_eq!(model.non_temporal_stores, NonTemporalStores::Bypass);
    assert_eq!(model.levels[1].policy.to_string(), "qlru-h11-m1-r1-u2");
    assert_eq!(model.levels[1].inclusion, Inclusion::NonInclusive);
    assert!(!model.levels[1].write_allocate && model.levels[2].write_allocate);
    let prefetch: Vec<_> = (model.levels[1].prefetch.iter().map(ToString::to_string)).collect();
    assert_eq!(
        prefetch,
        [
            "adjacent-line",
            "stream:streams=16,distance=20,degree=2,train=2"
        ]
    );
    assert_eq!(study.caches.levels[2].size, 12 << 20);
    assert_eq!(study.caches.levels[2].latency.upgrade, 2);
    assert_eq!(study.caches.coherence.from.other_socket, 200); // 60 ns at 3.33 GHz
    let told = study.topology.memory_performance.as_ref().unwrap();
    assert_eq!(told.latency_ns, [[30, 66], [66, 30]]);
    assert_eq!(told.bandwidth_mb_s, [[32_000, 12_800], [12_800, 32_000]]);
    assert_eq!(
        serde_json::to_value(&study.memory).unwrap(),
        serde_json::json!({"numa": {
            "latency": {"local": 100, "remote": 220},
            "write_back": {"local": 5, "remote": 6},
            "bandwidth": {"local": 32_000_000_000u64, "remote": 12_800_000_000u64},
        }})
    );

    let windows = &study.windows;
    assert_eq!(windows[0].open, Trigger::Immediately);
    assert_eq!(
        windows[1].open,
        Trigger::Time {
            ps: 2_000_000_000_000
        }
    );
    assert_eq!(windows[1].warm_up, 5_000_000);
    assert_eq!(
        windows[1].measure,
        Measure::Time {
            ps: 500_000_000_000
        }
    );
    assert_eq!(
        windows[2].open,
        Trigger::MpiCall {
            function: Function::Barrier,
            call: 3,
            rank: 1
        }
    );
    assert!(windows[2].models.caches.is_none() && windows[2].models.memory.is_some());
    assert_eq!(
        windows[3].open,
        Trigger::Marker {
            name: "hpl".into(),
            occurrence: 2
        }
    );
    assert!(windows[3].models.caches.is_some() && windows[3].models.memory.is_none());
    assert_eq!(
        (&windows[4].open, windows[4].measure),
        (&Trigger::Guest, Measure::Guest)
    );
    assert_eq!(study.topology.problems(), []);
}

/// Returns a study of four cores with a level 1 and a level 2, and further lines in each.
fn levels(first: &str, second: &str) -> String {
    format!(
        "node.cores = 4\n{SMALL_LEVELS}ways = 8\n{first}\n[[caches.level]]\nlevel = 2\nsize = \"1 MiB\"\n{second}\n\
         [[window]]\nmeasure = \"1 M instructions\"\n"
    )
}

const SMALL_LEVELS: &str =
    "cluster.nodes = 1\njob.command = \"true\"\n[[caches.level]]\nlevel = 1\nsize = \"32 KiB\"\n";

#[test]
fn groups_of_cores_and_inclusion_arrive_in_the_topology() {
    let told = |second: &str| {
        let text = levels("", &format!("ways = 16\n{second}"));
        let study = Study::parse(Path::new("s.toml"), &text);
        let study = study.unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(study.topology.problems(), []);
        let cache = study.topology.caches[1];
        (cache.shared_by, cache.inclusive)
    };
    let (cores, socket) = (SharedBy::Cores(2), SharedBy::Socket);
    assert_eq!(told("shared_by = \"2 cores\""), (cores, true));
    assert_eq!(told("shared_by = \"socket\""), (socket, true));
    for inclusion in ["exclusive", "non_inclusive"] {
        let lines = format!("inclusion = \"{inclusion}\"\nshared_by = \"3 cores\"");
        assert_eq!(told(&lines), (SharedBy::Cores(3), false));
    }
    // The presets tell of no inclusion.
    for preset in ["gen1", "gen2"] {
        let text = format!("{SMALL}\n[caches]\npreset = \"{preset}\"\n");
        let study = Study::parse(Path::new("s.toml"), &text).unwrap();
        assert!(study.topology.caches.iter().all(|cache| !cache.inclusive));
    }
}

#[test]
fn wrong_properties_of_levels_are_named() {
    let ways = "ways = 16";
    let cases = [
        (
            "shared_by = \"4 core\"",
            ways,
            "s.toml:8: caches.level[0].shared_by: \"4 core\" shares no cache; write \"core\", \"socket\", or a number of cores such as \"4 cores\"",
        ),
        ("shared_by = \"1 cores\"", ways, "shares no cache"),
        (
            "shared_by = 4",
            ways,
            "s.toml:8: caches.level[0].shared_by: is a number (4), not a text",
        ),
        (
            "shared_by = \"2 cores\"",
            ways,
            "s.toml:9: caches.level[1].shared_by: is core, but a cache of the level inside it is for 2 cores; a cache contains whole caches",
        ),
        (
            "shared_by = \"2 cores\"",
            "ways = 16\nshared_by = \"3 cores\"",
            "s.toml:13: caches.level[1].shared_by: is 3 cores, but a cache of the level inside it is for 2 cores",
        ),
        (
            "policy = \"plru\"",
            ways,
            "s.toml:8: caches.level[0].policy: \"plru\" is no replacement policy; write \"lru\", \"fifo\", \"tree-plru\", \"qlru-hXY-mZ-rN-uN\"",
        ),
        (
            "policy = \"random-x\"",
            ways,
            "caches.level[0].policy: \"random-x\" is no replacement policy; the seed \"x\" is no whole number",
        ),
        (
            "",
            "ways = 128\npolicy = \"srrip\"",
            "s.toml:12: caches.level[1].ways: is 128, but policy srrip is modelled for at most",
        ),
        (
            "inclusion = \"exclusive\"",
            ways,
            "s.toml:8: caches.level[0].inclusion: has no meaning for a first-level cache, since no cache is inside it; leave it out",
        ),
        (
            "",
            "ways = 16\ninclusion = \"non-inclusive\"",
            "s.toml:13: caches.level[1].inclusion: \"non-inclusive\" is not an inclusion (there are \"inclusive\", \"exclusive\", \"non_inclusive\"); did you mean \"non_inclusive\"?",
        ),
        (
            "write_allocate = \"no\"",
            ways,
            "s.toml:8: caches.level[0].write_allocate: is \"no\"; write true or false",
        ),
        (
            "",
            "ways = 16\nwrite_allocate = false",
            "s.toml:13: caches.level[1].write_allocate: is false, but the level includes a level that allocates",
        ),
        (
            "[[caches.level]]\nlevel = 1\nkind = \"instruction\"\nsize = \"32 KiB\"\nways = 8\nwrite_allocate = false",
            ways,
            "s.toml:13: caches.level[1].write_allocate: has no meaning for an instruction cache; leave it out",
        ),
        (
            "prefetch = \"next-line\"",
            ways,
            "s.toml:8: caches.level[0].prefetch: is a text, not a list; write e.g. [\"next-line\"]",
        ),
        (
            "prefetch = [\"next-line\", \"stream:streams=0\"]",
            ways,
            "s.toml:8: caches.level[0].prefetch[1]: the prefetcher stream has streams=\"0\"; give a whole number from 1 to 1024",
        ),
        (
            "prefetch = [\"next-line\", \"next-line\"]",
            ways,
            "s.toml:8: caches.level[0].prefetch[1]: is \"next-line\" a second time, which wants the same lines; leave one out",
        ),
    ];
    for (first, second, expected) in cases {
        let problems = Study::parse(Path::new("s.toml"), &levels(first, second)).unwrap_err();
        let text = problems.to_string();
        assert!(
            text.contains(expected),
            "{first}\n{second}\nsaid:\n{text}\nexpected: {expected}"
        );
        assert_eq!(text.lines().count(), 1, "one message: {text}");
    }
    let text = format!("{SMALL}[caches]\nnon_temporal_stores = \"never\"\n");
    assert_eq!(
        refused(&text).to_string(),
        "study.toml:15: caches.non_temporal_stores: \"never\" is not an effect of non-temporal stores (there are \"as_stores\", \"bypass\")"
    );
    let text = format!("{SMALL}[caches]\nnon_temporal_stores = \"bypass\"\n");
    let study = Study::parse(Path::new("s.toml"), &text).unwrap();
    assert_eq!(study.caches.non_temporal_stores, NonTemporalStores::Bypass);
}

#[test]
fn own_files_and_matrices_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut kernel = vec![0; 2048];
    kernel[0x202..0x206].copy_from_slice(b"HdrS");
    kernel[0x1f1] = 1;
    fs::write(at("vmlinux"), kernel).unwrap();
    fs::write(at("initramfs.cpio"), b"\x1f\x8b compressed").unwrap();
    fs::write(at("root.img"), [0; 512]).unwrap();
    fs::write(at("start.sh"), "#!/bin/sh\nlscpu\n").unwrap();
    fs::write(at("perf.json"), counters::perf(1000, 400)).unwrap();
    fs::write(at("own-image.toml"), OWN_IMAGE).unwrap();
    let study = Study::load(&at("own-image.toml")).unwrap();
    assert_eq!(
        study.image,
        ImageSource::Files {
            kernel: at("vmlinux"),
            initramfs: at("initramfs.cpio"),
            root: at("root.img"),
        }
    );
    assert_eq!(study.core_cpi.as_f64(), 0.75);
    assert_eq!(study.job.program, Program::Script(at("start.sh")));
    assert_eq!(
        (study.job.mpi, study.job.ranks, study.job.trace),
        (Mpi::None, 1, false)
    );
    // 10 x 220 / 100
    assert_eq!(study.topology.distances, [[10, 22], [22, 10]]);
    assert_eq!(study.caches.levels[2].size, 12 << 20);
    assert!(matches!(study.memory, MemorySpec::Numa { .. }));
    let disk = study.job_disk().unwrap();
    let files = nodescope_image::job_files(&disk).unwrap();
    assert_eq!(files.len(), 2);
    assert_eq!((files[0].path.as_str(), files[0].mode), ("run", 0o755));
    assert_eq!((files[1].path.as_str(), files[1].mode), ("script", 0o755));
}

#[test]
fn the_start_script_passes_environment_and_collects() {
    let study = Study::load(&beside("every-field.toml")).unwrap();
    let script = study.job.start_script();
    assert!(script.contains("export OMP_NUM_THREADS='1'\n"), "{script}");
    assert!(
        script.contains(
            "mpirun.openmpi -np 4 --hostfile \"$NODESCOPE_HOSTFILE\" -x OMP_NUM_THREADS -x NODESCOPE_OPENMP_INTERVALS /bin/sh -c 'hpcc'\n"
        ),
        "{script}"
    );
    assert!(
        script.contains(
            "/opt/nodescope/collect '' 'hpccoutf.txt'\n/opt/nodescope/collect 'shared' 'checkpoint'\n"
        ),
        "{script}"
    );
    let check = std::process::Command::new("sh")
        .args(["-n", "-c", &script])
        .status()
        .unwrap();
    assert!(check.success(), "{script}");
}

#[test]
fn programs_that_no_launcher_starts_get_the_openmp_tracer() {
    let tracer = "/opt/nodescope/lib/libnodescope-openmp.so";
    let preloaded = |job: &str| {
        let text = format!("[cluster]\nnodes = 1\n[job]\n{job}");
        let mut study = Study::parse(Path::new("s.toml"), &text).unwrap();
        if job.contains("# script") {
            study.job.program = Program::Script("script".into());
        }
        // The variable gets another name, since the loader complains of a preloaded library that is not there.
        let script = (study.job.start_script())
            .replace("cd /job", "cd .")
            .replace("LD_PRELOAD", "PRELOAD")
            .replace("./script", "sh -c 'echo $PRELOAD'");
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}\n{script}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let command = "command = 'echo $LD_PRELOAD'\nmpi = \"none\"\n";
    let script = "command = 'true' # script\n";
    assert_eq!(preloaded(command), "\n");
    for job in [command, script] {
        let job = format!("{job}openmp = true\n");
        assert_eq!(preloaded(&job), format!("{tracer}\n"));
        let own = format!("{job}environment.LD_PRELOAD = \"own.so\"\n");
        assert_eq!(preloaded(&own), format!("{tracer}:own.so\n"));
    }
}

#[test]
fn a_study_that_does_not_ask_for_openmp_keeps_its_identity() {
    let plan = |more: &str| {
        let text = format!("[cluster]\nnodes = 1\n[job]\ncommand = \"true\"\n{more}");
        let study = Study::parse(Path::new("s.toml"), &text).unwrap();
        serde_json::to_string(&study.job).unwrap()
    };
    assert_eq!(plan(""), plan("openmp = false\n"));
    assert!(!plan("").contains("openmp\":"), "{}", plan(""));
    assert!(plan("openmp = true\n").contains("\"openmp\":true"));
}

/// Runs the start script of a study with substitute launchers, which run their command two times. Returns the standard output.
fn started(job: &str) -> String {
    let text = format!("[cluster]\nnodes = 1\n[job]\nslots = 2\n{job}");
    let study = Study::parse(Path::new("s.toml"), &text).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (launcher, skip) in [("mpirun.openmpi", 4), ("mpiexec.hydra", 2)] {
        let path = folder.path().join(launcher);
        let script = format!(
            "#!/bin/sh\nshift {skip}\nwhile [ \"$1\" = -x ]; do shift 2; done\n\"$@\" && \"$@\"\n"
        );
        fs::write(&path, script).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, executable).unwrap();
    }
    let place = folder.path().display();
    let script = study
        .job
        .start_script()
        .replace("cd /job", &format!("cd {place}"));
    let path = std::env::var("PATH").unwrap_or_default();
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .env("PATH", format!("{place}:{path}"))
        .env("NODESCOPE_HOSTFILE", "/etc/nodescope/hostfile")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}\n{script}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn every_rank_executes_the_command_in_a_shell() {
    let command = r#"command = """WORD="it's" sh -c 'echo $WORD $NUMBER' && echo 'after'""""#;
    for (mpi, times) in [("openmpi", 2), ("mpich", 2), ("none", 1)] {
        let job = format!("{command}\nmpi = \"{mpi}\"\nenvironment.NUMBER = \"a b\"\n");
        assert_eq!(started(&job), "it's a b\nafter\n".repeat(times), "{mpi}");
    }
}

#[test]
fn a_script_gets_the_host_file_of_its_mpi() {
    for (mpi, file) in [("openmpi", "hostfile"), ("mpich", "hostfile.hydra")] {
        let job = format!("command = \"true\"\nmpi = \"{mpi}\"\n");
        let text = format!("[cluster]\nnodes = 1\n[job]\n{job}");
        let mut study = Study::parse(Path::new("s.toml"), &text).unwrap();
        study.job.program = Program::Script("script".into());
        let script = study
            .job
            .start_script()
            .replace("cd /job", "cd .")
            .replace("./script", "echo $NODESCOPE_HOSTFILE");
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .env("NODESCOPE_HOSTFILE", "/etc/nodescope/hostfile")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, format!("/etc/nodescope/{file}\n"));
    }
}

#[test]
fn the_start_script_collects_and_keeps_the_status() {
    let text = "[cluster]\nnodes=3\n[job]\ncommand='(exit 7)'\nmpi='none'\ncollect=[\"it's.txt\", 'node2:/job/a/*', '*:log']\n";
    let study = Study::parse(Path::new("s.toml"), text).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let script = study
        .job
        .start_script()
        .replace("cd /job", &format!("cd {}", folder.path().display()))
        .replace("/opt/nodescope/collect", "printf '<%s>' collect");
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "<collect><><it's.txt><collect><2><a/*><collect><*><log>"
    );
}

/// Checks that the guest's script finds the files that an entry of `job.collect` selects, and names each file as the host expects.
#[test]
fn the_guest_collects_what_the_host_waits_for() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (job, tools) = (folder.path().join("job"), folder.path().join("tools"));
    std::fs::create_dir_all(job.join("a/b")).unwrap();
    std::fs::create_dir_all(&tools).unwrap();
    for name in ["out.1", "out two", "a/b/deep.txt", "a/.hidden", "it's"] {
        std::fs::write(job.join(name), name).unwrap();
    }
    let tool = |name: &str, text: &str| {
        let path = tools.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    };
    // The tools get absolute paths, because the job may set any PATH.
    let put = tool("put", "#!/bin/sh\n[ -f \"$2\" ] && echo \"$3\"\n");
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../guest-images/debian/root/opt/nodescope/collect");
    let script = std::fs::read_to_string(script).unwrap();
    let rsh = tool(
        "rsh",
        "#!/bin/sh\nNODESCOPE_NODE=${1#node} exec sh -c \"$2\"\n",
    );
    let script = script
        .replace("top=/job", &format!("top={}", job.display()))
        .replace("/opt/nodescope/bin/nodescope-guest", put.to_str().unwrap())
        .replace("/opt/nodescope/rsh", rsh.to_str().unwrap());
    let script = tool("collect", &script);
    let collected = |entry: &nodescope_study::Collect| {
        let selection = match &entry.nodes {
            nodescope_study::NodeSelection::First => String::new(),
            nodescope_study::NodeSelection::Shared(_) => "shared".into(),
            nodescope_study::NodeSelection::Node(node) => node.to_string(),
            nodescope_study::NodeSelection::All => "*".into(),
        };
        let output = std::process::Command::new(&script)
            .args([&selection, &entry.path])
            .env("NODESCOPE_NODE", "0")
            .env("NODESCOPE_NODES", "2")
            .env("NODESCOPE_SHARED", folder.path())
            .output()
            .unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let cases: [(&str, &[&str]); 13] = [
        ("out.1", &["out.1"]),
        ("out*", &["out two", "out.1"]),
        ("it's", &["it's"]),
        ("node1:it's", &["node1/it's"]),
        ("/job/a/b/deep.txt", &["deep.txt"]),
        ("a/b", &["b/deep.txt"]),
        ("**/*.txt", &["a/b/deep.txt"]),
        ("a/**", &["a/.hidden", "a/b/deep.txt"]),
        ("node1:a/[!c]/d??p.txt", &["node1/a/b/deep.txt"]),
        ("*:out.?", &["node0/out.1", "node1/out.1"]),
        ("**/out.1", &["out.1"]),
        ("/scratch/job/a/b/deep.txt", &["shared/deep.txt"]),
        (
            "/scratch/job/out*",
            &["shared/job/out two", "shared/job/out.1"],
        ),
    ];
    for (entry, expected) in cases {
        let text = format!(
            "[cluster]\nnodes=2\nshared={{path='/scratch',size='1 MiB'}}\n[job]\ncommand='true'\nmpi='none'\ncollect=[\"{entry}\"]\n"
        );
        let study = Study::parse(Path::new("s.toml"), &text).unwrap();
        let entry = &study.job.collect[0];
        let files = collected(entry);
        assert_eq!(files, expected, "{entry}");
        let answered = |node| files.iter().any(|file| entry.is_answered_by(node, file));
        assert!(entry.asked(2).all(answered), "{entry}");
    }
    let nothing = Study::parse(
        Path::new("s.toml"),
        "[cluster]\nnodes=2\n[job]\ncommand='true'\nmpi='none'\ncollect=['none.*', 'node1:none']\n",
    )
    .unwrap();
    let said: Vec<_> = nothing.job.collect.iter().flat_map(collected).collect();
    let expected = [
        "nodescope: the job left no file none.*",
        "nodescope: the job left no file none on node1",
    ];
    assert_eq!(said, expected);
}

#[test]
fn the_reference_lists_every_field() {
    let page = fs::read_to_string(beside("../STUDY.md")).unwrap();
    let documented: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(field, _)| field.to_owned())
        .filter(|field| field.contains('.') && field.starts_with(char::is_alphabetic))
        .collect();
    let mut known = known_fields(&beside("every-field.toml"), EVERY_FIELD);
    known.extend(known_fields(&beside("own-image.toml"), OWN_IMAGE));
    // The section is the description of a core, which the pipeline model reads as a whole.
    assert!(known.remove("core") && page.contains("\n## `[core]`"));
    let undocumented: Vec<_> = known.difference(&documented).collect();
    let unknown: Vec<_> = documented.difference(&known).collect();
    assert!(
        undocumented.is_empty(),
        "missing in STUDY.md: {undocumented:?}"
    );
    assert!(unknown.is_empty(), "in STUDY.md, but not read: {unknown:?}");

    // The examples must also set every field: each last component of a field's name occurs as a key.
    let examples = format!("{EVERY_FIELD}{OWN_IMAGE}");
    for field in &documented {
        // No library of models is there to be named; the tests of such libraries set this field.
        if field == "study.plugins" {
            continue;
        }
        let key = field.rsplit('.').next().unwrap();
        let set = key == "*"
            || [
                format!("\n{key} = "),
                format!(" {key} = "),
                format!(".{key}]"),
            ]
            .iter()
            .any(|form| examples.contains(form.as_str()));
        assert!(set, "no example sets {field}");
    }
}

#[test]
fn the_examples_of_the_reference_are_valid() {
    let page = fs::read_to_string(beside("../STUDY.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("hpccinf.txt"), "").unwrap();
    let mut count = 0;
    for part in page.split("```toml\n").skip(1) {
        let text = part.split("```").next().unwrap();
        Study::parse(&folder.path().join("page.toml"), text)
            .unwrap_or_else(|problems| panic!("{problems}"));
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn all_problems_are_told_at_once_with_their_lines() {
    let text = r#"[study]
engine = "fast"
sed = 1

[cluster]
nodes = 0

[node]
sockets = 5
memory = "513"
frequency = "2.9 Ghz"

[netwrok]
latency = "1 us"

[network]
latency = "1.3"
bandwidth = "10 GB"

[job]
ranks = "four"
files = ["missing.txt"]

[[window]]
measure = "50"
plugins = ["cash", "numa"]
open = { mpi = "MPI_Barier", time = "1 s" }
"#;
    let expected = r#"study.toml:2: study.engine: "fast" is not an engine (there are "soft", "auto", "kvm")
study.toml:3: study.sed: is not a known key; did you mean "seed"?
study.toml:6: cluster.nodes: is 0; write a whole number from 1 to 1022
study.toml:9: node.sockets: is 5; write a whole number from 1 to 4
study.toml:10: node.memory: "513" has no unit; write e.g. "512 MiB"
study.toml:11: node.frequency: "Ghz" in "2.9 Ghz" is spelt "GHz"; write e.g. "2.9 GHz"
study.toml:13: netwrok: is not a section of a study; did you mean "network"?
study.toml:17: network.latency: "1.3" has no unit; write e.g. "1.3 us"
study.toml:18: network.bandwidth: "10 GB" is not a bit rate: "GB" is none of the units bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s; write e.g. "10 Gbit/s"
study.toml:20: job.command: is missing, so nothing would run; write e.g. command = "hpcc" or script = "run.sh" below [job]
study.toml:21: job.ranks: is a text ("four"); write a whole number from 1 to 1000000, without quotes
study.toml:22: job.files[0]: missing.txt: there is no such file; paths are relative to the study file's folder
study.toml:25: window[0].measure: "50" has no unit; write e.g. "50 M instructions", "2 s" or "until closed"
study.toml:26: window[0].plugins[0]: "cash" is not a plugin (there are "cache", "numa", "pipeline", "record", "record-every"); did you mean "cache"?
study.toml:27: window[0].open: needs exactly one of time, mpi and marker; write e.g. "immediately", "job", "guest", { time = "2 s" }, { mpi = "MPI_Barrier", call = 3, rank = 0 } or { marker = "hpl" }
study.toml:27: window[0].open.mpi: "MPI_Barier" is not an MPI function that is traced; did you mean "MPI_Barrier"?"#;
    assert_eq!(refused(text).to_string(), expected);
}

/// Returns a study that ends with a wrong part. The lines before add the required fields of `[cluster]` and `[job]`, if the part does not
/// have these sections.
fn around(part: &str) -> String {
    let mut text = String::from("# ");
    for (section, line) in [
        ("cluster", "cluster.nodes = 2"),
        ("job", "job.command = 'hpcc'"),
    ] {
        if !part.contains(&format!("[{section}")) {
            text = format!("{line}\n{text}");
        }
    }
    format!("{text}\n{part}")
}

#[test]
fn impossible_values_are_named() {
    let cases: &[(&str, &str)] = &[
        (
            "[cluster]\nnodes = 1.5",
            "cluster.nodes: is a number with a fraction (1.5); write a whole number from 1 to 1022, without quotes",
        ),
        (
            "[cluster]\n",
            "cluster.nodes: is missing; write e.g. nodes = 2",
        ),
        (
            "[study]\nname = \"a/b\"",
            "study.name: \"a/b\" cannot name a folder",
        ),
        (
            "[study]\nseed = -1",
            "study.seed: is -1; write a whole number from 0 to",
        ),
        (
            "[study]\ntime_limit = \"0 s\"",
            "study.time_limit: is 0, so nothing would run",
        ),
        (
            "[study]\nhost_time_limit = \"0 s\"",
            "study.host_time_limit: is 0, so nothing would run",
        ),
        (
            "[study]\ncore_cpi = \"1\"",
            "study.core_cpi: is \"1\"; write a number from 0.01 to 1000",
        ),
        (
            "[study]\ncore_cpi = 0",
            "study.core_cpi: is 0; write a number from 0.01 to 1000",
        ),
        (
            "[study]\ncpi_source = \"x\"",
            "study.cpi_source: tells the origin of a core_cpi that is not given",
        ),
        (
            "[study]\nengine = \"tcg\"",
            "study.engine: \"tcg\" is not an engine (there are \"soft\", \"auto\", \"kvm\")",
        ),
        (
            "[image]\npackages = [\"Foo Bar\"]",
            "image.packages[0]: `Foo Bar` is not a Debian package name",
        ),
        (
            "[image]\npackages = \"lammps\"",
            "image.packages: is a text, not a list; write e.g. [\"lammps\"]",
        ),
        (
            "[image]\nmirror = \"archive.example\"",
            "image.mirror: \"archive.example\" is no address of a package archive",
        ),
        (
            "[image]\nkernel = \"vmlinux\"",
            "image.initramfs: is missing; with files of your own give kernel, initramfs and root",
        ),
        (
            "[image]\nkernel = \"missing\"\ninitramfs = \"x\"",
            "image.kernel: missing: there is no such file",
        ),
        (
            "[image]\nroot = \"x\"\npackages = []",
            "image.packages: is for images built from Debian packages",
        ),
        (
            "[image]\nkernel_parameters = [\"a b\"]",
            "image.kernel_parameters[0]: \"a b\" holds a blank",
        ),
        (
            "[node]\ncores = 33\nthreads = 2",
            "node.cores: sockets x cores x threads is 66; a node has 1 to 64 vCPUs",
        ),
        (
            "[node]\nmemory = 512",
            "node.memory: 512 has no unit; write e.g. \"512 MiB\"",
        ),
        (
            "[node]\nmemory = \"8 MiB\"",
            "node.memory: is 8 MiB for the socket; a socket needs a multiple of 2 MiB and at least 16 MiB",
        ),
        (
            "[node]\nmemory = \"33 MiB\"",
            "node.memory: is 33 MiB for the socket",
        ),
        (
            "[node]\nsockets = 3\nmemory = \"64 MiB\"",
            "node.memory: 64 MiB cannot be split evenly over 3 sockets; give a list",
        ),
        (
            "[node]\nsockets = 2\nmemory = [\"64 MiB\"]",
            "node.memory: has 1 sizes for 2 sockets; give one for each",
        ),
        (
            "[node]\nfrequency = \"1 Hz\"",
            "node.frequency: is 1 Hz; write a frequency from \"100 MHz\" to \"10 GHz\"",
        ),
        (
            "[node]\nfrequency = \"2900000001 Hz\"",
            "node.frequency: is not a multiple of 1 kHz",
        ),
        (
            "[node]\nbrand = \"0123456789012345678901234567890123456789012345678\"",
            "node.brand: \"0123",
        ),
        (
            "[node]\nsockets = 2\ndistances = [[10, 10], [21, 10]]",
            "node.distances[0][1]: is 10; a socket is 10 from itself and 11 to 254 from another",
        ),
        (
            "[node]\nsockets = 2\ndistances = [[10]]",
            "node.distances: has 1 entries; 2 sockets need 2",
        ),
        (
            "[node]\nhide = [\"avx3\"]",
            "node.hide[0]: unknown CPU feature \"avx3\"; the template has: fpu,",
        ),
        (
            "[node]\nrequire = [\"avx3\"]",
            "node.require[0]: \"avx3\" is no CPU feature that guests can have; did you mean \"avx\"?",
        ),
        (
            "[node]\nrequire = [\"avx2\"]\nhide = [\"avx\"]",
            "node.require[0]: \"avx2\" is hidden by node.hide",
        ),
        (
            "[study]\nfast_forward_until = { time = \"1 s\" }",
            "study.fast_forward_until: is for fast_forward = \"kvm\", which is not given",
        ),
        (
            "[study]\nfast_forward = \"kvm\"\nfast_forward_until = \"immediately\"",
            "study.fast_forward_until: cannot end a fast-forward",
        ),
        (
            "[study]\nengine = \"kvm\"\nfast_forward = \"kvm\"",
            "study.fast_forward: runs KVM up to a trigger, and engine = \"kvm\" runs it all along",
        ),
        (
            "[node]\nhide = [\"sse2\"]",
            "node.hide[0]: CPU feature \"sse2\" cannot be hidden",
        ),
        ("[network]\nlatency = \"0 s\"", "network.latency: is 0 "),
        (
            "[network]\nbandwidth = \"0 Gbit/s\"",
            "network.bandwidth: is less than 1 kbit/s",
        ),
        (
            "[network]\nmtu = \"70 kB\"",
            "network.mtu: is 70000 bytes; write a size from \"576 B\" to \"65521 B\"",
        ),
        (
            "[network]\noffload = \"yes\"",
            "network.offload: is \"yes\"; write true or false",
        ),
        (
            "[network]\ncapture = \"x.pcap\"",
            "network.capture: is \"x.pcap\"; write true or false",
        ),
        (
            "[job]\ncommand = \"\"",
            "job.command: is empty; write e.g. \"hpcc\"",
        ),
        (
            "[job]\ncommand = \"a\"\nscript = \"b\"",
            "job.script: is given together with command; leave out one of them",
        ),
        (
            "[job]\ncommand = \"cd x; /usr/bin/mpirun.openmpi -n 2 ./a\"",
            "job.command: starts /usr/bin/mpirun.openmpi, but every rank executes the command",
        ),
        (
            "[job]\ncommand = \"a\"\nranks = 3",
            "job.ranks: is 3, but 2 nodes with 1 slots each have room for 2",
        ),
        (
            "[job]\ncommand = \"a\"\nmpi = \"lam\"",
            "job.mpi: \"lam\" is not an MPI (there are \"openmpi\", \"mpich\", \"none\")",
        ),
        (
            "[job]\ncommand = \"a\"\ncollect = [\"/etc/passwd\"]",
            "job.collect[0]: \"/etc/passwd\" is absolute",
        ),
        (
            "[job]\ncommand = \"a\"\ncollect = [\"node7:x\"]",
            "job.collect[0]: \"node7:x\" names node 7; the study's nodes are 0 to ",
        ),
        (
            "[job]\ncommand = \"a\"\ncollect = [\"out.[1\"]",
            "job.collect[0]: \"out.[1\" is no pattern: ",
        ),
        (
            "[job]\ncommand = \"a\"\ncollect = [\"a/x\", \"b/x\"]",
            "job.collect[1]: \"b/x\" has the name of another collected file",
        ),
        (
            "[job]\ncommand = \"a\"\nenvironment = { \"1A\" = \"x\" }",
            "job.environment.1A: \"1A\" cannot name an environment variable",
        ),
        (
            "[job]\ncommand = \"a\"\nopenmp_intervals = [\"MPI_Barrier..MPI_Bcast\"]",
            "job.openmp_intervals: needs the OpenMP tracer and the MPI tracer",
        ),
        (
            "[job]\ncommand = \"a\"\nopenmp = true\nopenmp_intervals = [\"MPI_Foo..MPI_Bcast\"]",
            "\"MPI_Foo..MPI_Bcast\": MPI_Foo is no MPI function that is traced",
        ),
        (
            "[job]\ncommand = \"a\"\nenvironment = { A = 1 }",
            "job.environment.A: is a number (1), not a text",
        ),
        (
            "[job]\ncommand = \"a\"\nfiles = [{ to = \"x\" }]",
            "job.files[0].from: is missing",
        ),
        (
            "[caches]\npreset = \"gen3\"",
            "caches.preset: \"gen3\" is not a preset (there are \"gen1\", \"gen2\"); did you mean \"gen1\"?",
        ),
        (
            "[caches]\nline = \"64 B\"",
            "caches.line: belongs to [[caches.level]], and there is none",
        ),
        (
            "[caches]\nlevel = 3",
            "caches.level: is a number; write each one below a line [[caches.level]]",
        ),
        (
            "[[caches.level]]\nlevel = 2\nsize = \"32 KiB\"\nways = 8",
            "caches.level[0].level: is 2, but level 1 is not described",
        ),
        (
            "[[caches.level]]\nlevel = 1\nsize = \"33 KiB\"\nways = 8",
            "",
        ),
        (
            "[[caches.level]]\nlevel = 1\nsize = \"1000 B\"\nways = 8",
            "caches.level[0].size: 1000 bytes is not a positive multiple of ways x line = 512 bytes",
        ),
        (
            "[[caches.level]]\nlevel = 1\nkind = \"unified\"\nsize = \"32 KiB\"\nways = 8",
            "caches.level[0].kind: level 1 is modelled as two caches",
        ),
        (
            "[[caches.level]]\nlevel = 1\nkind = \"instruction\"\nsize = \"32 KiB\"\nways = 8",
            "caches.level: has no level 1 data cache",
        ),
        (
            "[[caches.level]]\nlevel = 2\nsize = \"16 KiB\"\nways = 8\n[[caches.level]]\nlevel = 1\nsize = \"32 KiB\"\nways = 8",
            "caches.level[0].size: 16384 bytes is less than caches.level[1].size = 32768; outer levels include inner ones",
        ),
        (
            "[[caches.level]]\nlevel = 1\nsize = \"32 KiB\"\nways = 8\nlatency = { read_miss = 3 }",
            "caches.level[0].latency.read_miss: 3 has no unit; write e.g. \"12 cycles\"",
        ),
        (
            "[[caches.level]]\nlevel = 1\nsize = \"32 KiB\"\nways = 8\nlatency = { read_mis = \"3 cycles\" }",
            "caches.level[0].latency.read_mis: is not a known key; did you mean \"read_miss\"?",
        ),
        (
            "[caches.coherence]\nfrom = { other_core = \"1 s\" }",
            "caches.coherence.from.other_core: is 2900000000 cycles; at most 1000000",
        ),
        (
            "[memory]\nlocal = \"100\"",
            "memory.local: \"100\" has no unit; write e.g. \"12 cycles\"",
        ),
        (
            "[memory]\nlatency = [[\"1 cycle\"], [\"1 cycle\"]]",
            "memory.latency: has 2 rows; 1 sockets need 1",
        ),
        (
            "[memory]\nlatency = [[\"1 cycle\"]]\nlocal = \"1 cycle\"",
            "memory.latency: is given together with local or remote",
        ),
        (
            "[window]\nmeasure = \"1 s\"",
            "window: is a table; write each one below a line [[window]]",
        ),
        (
            "[[window]]\nname = \"a\"",
            "window[0].measure: is missing; write e.g. measure = \"50 M instructions\"",
        ),
        (
            "[[window]]\nmeasure = \"0 s\"",
            "window[0].measure: is 0, so nothing would be measured",
        ),
        (
            "[[window]]\nmeasure = \"5 kg\"",
            "window[0].measure: \"5 kg\" is neither a number of instructions nor a time; write e.g. \"50 M instructions\", \"2 s\" or \"until closed\"",
        ),
        (
            "[[window]]\nmeasure = \"1 s\"\nopen = \"never\"",
            "window[0].open: \"never\" is not a trigger; write",
        ),
        (
            "[[window]]\nmeasure = \"1 s\"\nopen = { time = \"1 s\", call = 2 }",
            "window[0].open.call: belongs to mpi, which is not given; leave it out",
        ),
        (
            "[[window]]\nmeasure = \"1 s\"\nopen = { mpi = \"MPI_Barrier\", rank = 2 }",
            "window[0].open.rank: is 2; write a whole number from 0 to 1",
        ),
        (
            "[[window]]\nname = \"a\"\nmeasure = \"1 s\"\n[[window]]\nname = \"a\"\nmeasure = \"1 s\"",
            "window[1].name: \"a\" is also the name of window[0]; give another",
        ),
        (
            "[job]\ncommand = \"a\"\ntrace = false\n[[window]]\nmeasure = \"1 s\"\nopen = { mpi = \"MPI_Init\" }",
            "window[0].open.mpi: needs the MPI trace",
        ),
        (
            "[results]\ndirectory = 1",
            "results.directory: is a number (1), not a text",
        ),
        (
            "results = 1",
            "results: is a number, not a table; write [results]",
        ),
        (
            "[[node]]\ncores = 2",
            "node: is a list; there is one, so write [node]",
        ),
        (
            "[a]\nb = 1",
            "a: is not a section of a study; known here: caches, cluster,",
        ),
        ("[node\n", "is not TOML:"),
        ("[node]\ncores = 1\ncores = 2", "is not TOML: duplicate key"),
    ];
    for (part, expected) in cases {
        let text = around(part);
        match Study::parse(Path::new("study.toml"), &text) {
            Ok(_) => assert_eq!(*expected, "", "accepted: {part}"),
            Err(problems) => {
                let text = problems.to_string();
                assert!(
                    !expected.is_empty() && text.contains(expected),
                    "{part}\nsaid:\n{text}\nexpected: {expected}"
                );
            }
        }
    }
}

#[test]
fn a_syntax_error_does_not_hide_other_problems() {
    let text = "[cluster]\nnodes = \n[node]\ncores = 0\n[job]\ncommand = \"a\"\n";
    let problems = refused(text).to_string();
    let lines: Vec<_> = problems.lines().collect();
    assert_eq!(lines.len(), 2, "{problems}");
    assert!(
        lines[0].starts_with("study.toml:2: is not TOML: "),
        "{problems}"
    );
    assert!(
        lines[1].starts_with("study.toml:4: node.cores: is 0"),
        "{problems}"
    );
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let problems = Study::load(Path::new("/nonexistent/s.toml"))
        .unwrap_err()
        .to_string();
    assert!(
        problems.starts_with("/nonexistent/s.toml: cannot be read: No such file"),
        "{problems}"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latin1.toml");
    fs::write(&path, b"[cluster]\nnodes = 1\n# caf\xe9\n").unwrap();
    let problems = Study::load(&path).unwrap_err().to_string();
    assert!(
        problems.ends_with("latin1.toml:3: is not UTF-8 text from here on; save the file as UTF-8"),
        "{problems}"
    );
}

#[test]
fn nesting_is_refused_and_does_not_overflow() {
    let deep = format!("a = {}", "[".repeat(100_000));
    refused(&deep);
}

mod properties {
    use nodescope_study::Problems;
    use proptest::prelude::*;

    use super::*;

    fn positions_lie_in(text: &[u8], problems: &Problems) {
        let lines: Vec<_> = text.split_inclusive(|&b| b == b'\n').collect();
        assert!(!problems.is_empty());
        for problem in problems.list() {
            let position = problem.position.expect("a problem of the file has a place");
            assert!(
                position.line >= 1 && position.line <= lines.len().max(1),
                "{problem:?} in {} lines",
                lines.len()
            );
            let columns = lines.get(position.line - 1).map_or(0, |line| line.len());
            assert!(
                position.column >= 1 && position.column <= columns + 1,
                "{problem:?}"
            );
            assert!(
                !problem.message.is_empty() && !problem.message.contains('\n'),
                "{problem:?}"
            );
        }
    }

    fn read(bytes: &[u8]) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("study.toml");
        fs::write(&path, bytes).unwrap();
        if let Err(problems) = Study::load(&path) {
            positions_lie_in(bytes, &problems);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            read(&bytes);
        }

        #[test]
        fn random_words(words in prop::collection::vec(
            prop::sample::select(EVERY_FIELD.split_inclusive(|c: char| " =\n[]{}\"".contains(c)).collect::<Vec<_>>()), 0..60,
        )) {
            read(words.concat().as_bytes());
        }

        #[test]
        fn mutated_studies(
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8, any::<u8>()), 1..8),
        ) {
            let mut bytes = EVERY_FIELD.as_bytes().to_vec();
            for (index, kind, byte) in changes {
                if bytes.is_empty() {
                    break;
                }
                let at = index.index(bytes.len());
                match kind {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte & 0x7f),
                    2 => { bytes.remove(at); }
                    _ => bytes.truncate(at.max(1)),
                }
            }
            read(&bytes);
        }

        #[test]
        fn lines_left_out_or_swapped(out in any::<prop::sample::Index>(), a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>()) {
            let mut lines: Vec<_> = EVERY_FIELD.split_inclusive('\n').collect();
            lines.remove(out.index(lines.len()));
            let (a, b) = (a.index(lines.len()), b.index(lines.len()));
            lines.swap(a, b);
            read(lines.concat().as_bytes());
        }
    }
}

#[test]
fn a_study_with_a_core_samples_its_whole_job() {
    let read = |more: &str| {
        let text = format!("[cluster]\nnodes = 2\n[job]\ncommand = 'true'\nmpi = 'none'\n{more}");
        Study::parse(Path::new("s.toml"), &text)
    };
    let sampled = read("[node]\nmodel = 'zen4'\ncores = 2\n").unwrap().windows;
    assert_eq!(sampled.len(), 1);
    assert_eq!(sampled[0].open, Trigger::Job);
    assert_eq!(sampled[0].sampling.unwrap().measured, 4_000_000);
    assert!(sampled[0].models.core.is_some());
    let windows = |more: &str| read(&format!("[node]\nmodel = 'zen4'\n{more}"));
    assert!(
        windows("[study]\ntiming = 'none'\n")
            .unwrap()
            .windows
            .is_empty()
    );
    let own = windows("[[window]]\nopen = 'job'\nmeasure = '1 s'\n")
        .unwrap()
        .windows;
    assert_eq!((own.len(), own[0].sampling), (1, None));
    assert!(read("").unwrap().windows.is_empty());
    for (more, field) in [
        ("[study]\ntiming = 'none'\n", "study.timing"),
        ("[[window]]\ntiming = 'sampled'\n", "window[0].timing"),
    ] {
        let problems = read(more).unwrap_err().to_string();
        assert!(problems.contains(field), "{problems}");
    }
}
