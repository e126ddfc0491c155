//! The study of these tests: a small cluster whose guests are made up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_cluster::{ClusterConfig, Observer, Outcome, Progress, ResultsFolder};
use nodescope_fabric::LinkConfig;
use nodescope_machine::topology::NodeTopology;
use nodescope_report::{CoreCpi, ReportInput, StudyInfo};
use nodescope_test_golden::{NODES, SOCKET_MEMORY, VCPUS, kernel};
use nodescope_window::{
    CacheConfig, Measure, MemorySpec, ModelSpec, Registry, Trigger, WindowSpec,
};

/// Observer of a run that only prints messages.
pub struct Silent;

impl Observer for Silent {
    fn progress(&mut self, _: &dyn Fn() -> Progress) {}
    fn message(&mut self, node: u32, text: &str) {
        println!("node {node}: {text}");
    }
    fn console(&mut self, _: u32, _: &[u8]) {}
}

/// Returns the study, whose files are in this folder.
pub fn config(files: &Path) -> ClusterConfig {
    let file = |name: &str, bytes: &[u8]| -> PathBuf {
        std::fs::write(files.join(name), bytes).unwrap();
        files.join(name)
    };
    let window = |name: &str, open| WindowSpec {
        name: name.into(),
        open,
        warm_up: 100_000,
        attribution: true,
        sampling: None,
        measure: Measure::Instructions(400_000),
        models: ModelSpec {
            caches: Some(CacheConfig::xeon_e5_2690()),
            memory: Some(MemorySpec::numa()),
            core: None,
            registered: Vec::new(),
        },
    };
    ClusterConfig {
        name: "golden".into(),
        study_id: "0".into(),
        seed: 1,
        nodes: NODES,
        shared: None,
        topology: NodeTopology::uniform(VCPUS, 1, 1, u64::from(VCPUS) * SOCKET_MEMORY),
        cpuid: Default::default(),
        required_features: Vec::new(),
        engine: Default::default(),
        kvm_quantum_ps: nodescope_cluster::config::KVM_QUANTUM_PS,
        counting: None,
        doorbell: false,
        offered_features: None,
        nominal_cpi: 65536,
        translate: true,
        kernel: file("kernel", &kernel()),
        initramfs: file("initramfs", b"none"),
        root: file("root", &[0; 4096]),
        root_blocks: None,
        job_disk: vec![0; 4096],
        link: LinkConfig {
            bandwidth: 10_000_000_000,
            latency_ps: 20_000_000,
        },
        mtu: 1500,
        offload: true,
        capture: true,
        trace: true,
        openmp: false,
        slots: Vec::new(),
        console: false,
        kernel_parameters: Vec::new(),
        warm: false,
        epoch: 1_700_000_000,
        disk_latency_ns: 20_000,
        disk_bandwidth: 2_000_000_000,
        file_limits: Default::default(),
        names_program: None,
        code_costs: Arc::default(),
        core_without_window: false,
        registry: Registry::default(),
        windows: vec![
            window("time", Trigger::Time { ps: 10_000_000 }),
            window(
                "call",
                Trigger::MpiCall {
                    function: nodescope_hypercall::Function::Allreduce,
                    call: 16,
                    rank: 1,
                },
            ),
        ],
        time_limit_ps: 1_000_000_000_000,
        deadlock_ps: None,
        host_threads: 2,
    }
}

/// Runs the study, writes its reports beside its results, and returns its outcome.
pub fn run(config: &ClusterConfig, results: &Path) -> Outcome {
    let interrupted = Arc::new(AtomicBool::new(false));
    let folder = ResultsFolder::create(results).unwrap();
    let outcome = nodescope_cluster::run(config, &folder, &interrupted, &mut Silent).unwrap();
    let report = nodescope_report::build(&ReportInput {
        models: Vec::new(),
        memory_parallelism: 1.0,
        windows: outcome.windows.clone(),
        profiles: outcome.profiles.clone(),
        trace: Some(results.join(TRACE_FILE)),
        study: StudyInfo::default(),
        core: CoreCpi::Nominal {
            source: "stated in the test".into(),
        },
        network: Vec::new(),
        notes: outcome.warnings.clone(),
    })
    .unwrap();
    std::fs::write(results.join("report.txt"), report.text()).unwrap();
    std::fs::write(results.join("report.json"), report.json()).unwrap();
    // The uncompressed profile is compared, since versions of the compressor differ in their bytes.
    let profile = serde_json::to_string(&outcome.profiles).unwrap();
    std::fs::write(results.join("profile.json"), profile).unwrap();
    outcome
}
