//! Checks that a study agrees with a snapshot on everything that the booted cluster depends on.

use std::collections::BTreeMap;
use std::fmt;

use nodescope_machine::cpuid::shown;
use nodescope_machine::topology::NodeTopology;
use nodescope_x86::CpuidTable;
use serde::{Deserialize, Serialize};

use nodescope_config::quantity::{BitRate, ByteRate, Bytes, Frequency, Time};

use crate::build::{BuildError, cpuid_tables};
use crate::config::ClusterConfig;

/// Values from which a cluster was booted, as text, by the keys of a study.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement(BTreeMap<String, String>);

/// A key that has different values in a snapshot and a study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the key, as in a study file.
    pub key: String,
    /// The value in the snapshot; `nothing` if the snapshot lacks the key.
    pub snapshot: String,
    /// The value in the study; `nothing` if the study lacks the key.
    pub study: String,
}

/// Keys that may differ in clones of a node that has just booted, since a clone gets its identity after the boot.
pub const MAY_DIFFER_IN_CLONES: [&str; 6] = [
    "cluster.nodes",
    SHARED,
    "job",
    "job.slots",
    "job.trace",
    "job.openmp",
];

/// Key of the shared file system; a cluster without one lacks the key.
pub(crate) const SHARED: &str = "cluster.shared";
/// Key of the transport of hypercalls, and its two values. The guests' tools choose the transport when they start.
const CALLS: &str = "study.engine";
const BY_DOORBELL: &str = "guests call the host by its doorbell, as KVM needs it";
const BY_CPUID: &str = "guests call the host by CPUID, as the portable engine alone understands it";
/// Key of the features of the nodes' CPUs.
const CPU_FEATURES: &str = "features of the nodes' CPUs";

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            snapshot,
            study,
        } = self;
        write!(f, "{key}: {snapshot} in the snapshot, {study} in the study")
    }
}

impl Agreement {
    /// Returns the values of a cluster. `image` is the hash of the contents of kernel, initramfs and root disk.
    ///
    /// # Errors
    ///
    /// KVM that this host cannot use, or CPU features that the nodes must have and cannot.
    pub fn of(config: &ClusterConfig, image: &str) -> Result<Self, BuildError> {
        let node = &config.topology;
        let performance = match &node.memory_performance {
            Some(performance) => format!(
                "latencies {:?} ns, bandwidths {:?} MB/s",
                performance.latency_ns, performance.bandwidth_mb_s
            ),
            None => "not told".into(),
        };
        let onoff = |on| if on { "true" } else { "false" }.to_owned();
        let cpuid = cpuid_tables(config, node)?;
        let features = shown().filter(|feature| {
            let (leaf, subleaf) = feature.leaf;
            let has = |of: &CpuidTable| of.has(leaf, subleaf, feature.register, feature.bit);
            cpuid.first().is_some_and(has)
        });
        let features: Vec<_> = features.map(|feature| feature.name).collect();
        let job = blake3::hash(&config.job_disk).to_hex();
        let calls = match config.doorbell() {
            true => BY_DOORBELL,
            false => BY_CPUID,
        };
        let memory: Vec<_> = (node.socket_memory.iter())
            .map(|&bytes| Bytes(bytes).to_string())
            .collect();
        let values = [
            ("image", short(image)),
            (
                "image.kernel_parameters",
                format!("{:?}", config.kernel_parameters),
            ),
            (CALLS, calls.to_owned()),
            ("study.seed", config.seed.to_string()),
            (
                "study.core_cpi",
                (f64::from(config.nominal_cpi) / 65536.0).to_string(),
            ),
            ("cluster.nodes", config.nodes.to_string()),
            ("node.sockets", node.sockets.to_string()),
            ("node.cores", node.cores_per_socket.to_string()),
            ("node.threads", node.threads_per_core.to_string()),
            ("node.memory", memory.join(" and ")),
            ("node.frequency", Frequency(node.tsc_hz).to_string()),
            ("node.brand", format!("{:?}", node.brand)),
            ("node.distances", format!("{:?}", node.distances)),
            (CPU_FEATURES, features.join(" ")),
            ("node.hide", format!("{:?}", config.cpuid.hidden)),
            ("node.hypervisor", format!("{:?}", config.cpuid.hypervisor)),
            ("caches", caches(node)),
            ("memory", performance),
            (
                "network.bandwidth",
                BitRate(config.link.bandwidth).to_string(),
            ),
            ("network.latency", Time(config.link.latency_ps).to_string()),
            ("network.mtu", Bytes(config.mtu.into()).to_string()),
            ("network.offload", onoff(config.offload)),
            (
                "disk.latency",
                Time(config.disk_latency_ns * 1000).to_string(),
            ),
            (
                "disk.bandwidth",
                ByteRate(config.disk_bandwidth).to_string(),
            ),
            ("job", format!("files and command {}", short(&job))),
            ("job.slots", format!("{:?}", config.slots)),
            ("job.trace", onoff(config.trace)),
            ("job.openmp", onoff(config.openmp)),
            ("the nodes' clock at power-on", config.epoch.to_string()),
            ("a console", onoff(config.console)),
        ];
        let shared = config.shared.as_ref().map(|shared| {
            let (path, size) = (&shared.path, Bytes(shared.bytes));
            (SHARED, format!("{size} in {path}"))
        });
        let values = values.into_iter().chain(shared);
        Ok(Self(
            values.map(|(key, value)| (key.to_owned(), value)).collect(),
        ))
    }

    /// Makes the configuration of a study take over the snapshot's transport of hypercalls and its features of the CPUs. Features that the
    /// study cannot have remain a difference.
    pub fn adopt(&self, config: &mut ClusterConfig) {
        config.doorbell |= self.0.get(CALLS).is_some_and(|calls| calls == BY_DOORBELL);
        let features = self.0.get(CPU_FEATURES);
        config.offered_features =
            features.map(|names| names.split_whitespace().map(String::from).collect());
    }

    /// Returns the keys whose values in this snapshot and in `study` differ, without the keys of `may_differ`.
    pub fn differences(&self, study: &Self, may_differ: &[&str]) -> Vec<Difference> {
        let value = |of: &Self, key: &str| of.0.get(key).cloned();
        let mut keys: Vec<&String> = self.0.keys().chain(study.0.keys()).collect();
        keys.sort();
        keys.dedup();
        let differ = |key: &&&String| value(self, key) != value(study, key);
        let counts = |key: &&&String| !may_differ.contains(&key.as_str());
        let none = || "nothing".to_owned();
        (keys.iter().filter(differ).filter(counts))
            .map(|key| Difference {
                key: (*key).clone(),
                snapshot: value(self, key).unwrap_or_else(none),
                study: value(study, key).unwrap_or_else(none),
            })
            .collect()
    }

    /// Returns the keys with their values, sorted by key.
    pub fn rows(&self) -> impl Iterator<Item = (&str, &str)> {
        (self.0.iter()).map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

/// Returns what the guests are told of their caches.
fn caches(node: &NodeTopology) -> String {
    let caches = node.sorted_caches();
    let caches: Vec<_> = (caches.iter())
        .map(|cache| {
            format!(
                "L{} {}: {}, {} ways, lines of {}, of each {}{}{}",
                cache.level,
                format!("{:?}", cache.kind).to_lowercase(),
                Bytes(cache.size),
                cache.ways,
                Bytes(cache.line.into()),
                cache.shared_by,
                if cache.inclusive { ", inclusive" } else { "" },
                match cache.write_allocate {
                    true => "",
                    false => ", not filled by writes",
                }
            )
        })
        .collect();
    caches.join("; ")
}

/// Returns the first 16 digits of a digest, which are enough to distinguish two digests.
fn short(digest: &str) -> String {
    digest.chars().take(16).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodescope_machine::topology::SharedBy;

    #[test]
    fn all_that_guests_are_told_of_caches_counts() {
        let plain = NodeTopology::default();
        assert_eq!(
            caches(&plain),
            "L1 data: 32 KiB, 8 ways, lines of 64 B, of each core; L1 instruction: 32 KiB, 8 ways, lines of 64 B, of each core; \
             L2 unified: 256 KiB, 8 ways, lines of 64 B, of each core; L3 unified: 20 MiB, 20 ways, lines of 64 B, of each socket"
        );
        let mut other = plain.clone();
        other.caches[3].shared_by = SharedBy::Cores(4);
        other.caches[3].inclusive = true;
        other.caches[3].write_allocate = false;
        let told = caches(&other);
        let end = "lines of 64 B, of each 4 cores, inclusive, not filled by writes";
        assert!(told.ends_with(end), "{told}");
    }
}
