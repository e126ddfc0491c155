//! Tests that the reference clusters of guest-images/jobs/scaling have the published counts, caches and latencies.

use std::fs;
use std::path::{Path, PathBuf};

use nodescope_study::Study;

/// Published figures of a reference cluster. Sizes are in bytes.
struct Published {
    name: &'static str,
    nodes: u32,
    /// Hardware threads of the cluster, which the publication counts as cores.
    threads: u32,
    cores_per_socket: u32,
    memory: u64,
    hz: u64,
    /// Size and ways of L1i, L1d, L2 and L3.
    caches: [(u64, u32); 4],
}

const PUBLISHED: [Published; 2] = [
    Published {
        name: "gen1",
        nodes: 16,
        threads: 384,
        cores_per_socket: 6,
        memory: 24 << 30,
        hz: 3_330_000_000,
        caches: [(32 << 10, 4), (32 << 10, 8), (256 << 10, 8), (12 << 20, 16)],
    },
    Published {
        name: "gen2",
        nodes: 112,
        threads: 3584,
        cores_per_socket: 8,
        memory: 48 << 30,
        hz: 2_900_000_000,
        caches: [(32 << 10, 8), (32 << 10, 8), (256 << 10, 8), (20 << 20, 20)],
    },
];

fn jobs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images/jobs/scaling")
}

/// Returns the study of a program on a cluster, with its text joined from two files as `scripts/bench scaling` does.
fn study(cluster: &str, program: &str) -> Study {
    let read = |name: &str| fs::read_to_string(jobs().join(format!("{name}.toml"))).unwrap();
    let text = format!("{}{}", read(cluster), read(program));
    let file = jobs().join(format!("{program}-{cluster}.toml"));
    Study::parse(&file, &text).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn reference_clusters_have_the_published_counts_caches_and_latencies() {
    for published in &PUBLISHED {
        let study = study(published.name, "lammps");
        let topology = &study.topology;
        assert_eq!((study.nodes, topology.sockets), (published.nodes, 2));
        assert_eq!(topology.cores_per_socket, published.cores_per_socket);
        assert_eq!(study.nodes * topology.vcpus(), published.threads);
        assert_eq!(topology.socket_memory.iter().sum::<u64>(), published.memory);
        assert_eq!(topology.tsc_hz, published.hz);
        assert_eq!(topology.problems(), []);
        let caches = &study.caches;
        let instruction = caches.instruction.as_ref().unwrap();
        let found: Vec<_> = [instruction]
            .into_iter()
            .chain(&caches.levels)
            .map(|level| (level.size, level.ways))
            .collect();
        assert_eq!(found, published.caches);
        let misses: Vec<_> = (caches.levels.iter())
            .map(|level| (level.latency.read_miss, level.latency.write_miss))
            .collect();
        assert_eq!(misses, [(3, 3), (12, 10), (35, 35)]);
        let memory = serde_json::to_value(&study.memory).unwrap();
        let latency = serde_json::json!({"local": 100, "remote": 220});
        assert_eq!(memory["numa"]["latency"], latency);
    }
}

#[test]
fn every_program_fits_every_reference_cluster() {
    for cluster in ["gen1", "gen2"] {
        for program in ["lammps", "gromacs"] {
            let study = study(cluster, program);
            assert!(
                study.boots_once && study.windows.len() == 1,
                "{program} on {cluster}"
            );
            assert_eq!(
                study.network.link.latency_ps, 1_300_000,
                "{program} on {cluster}"
            );
        }
    }
}
