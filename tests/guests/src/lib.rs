//! Boots whole guests for tests: the image from the cache (or a fresh build), C programs on the job disk, and one run of a cluster.
//!
//! A test is skipped if this host lacks the tools that build the image, or a C compiler.

pub mod published;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use nodescope_cluster::{
    ClusterConfig, Observer, Options, Outcome, Progress, ResultsFolder, RunError,
};
use nodescope_fabric::LinkConfig;
use nodescope_image::{Image, ImageError, ImageSpec, JobFile};
use nodescope_machine::topology::NodeTopology;
use nodescope_plugin_api::Registry;
use nodescope_test_needs::{Need, have, skip};

/// Picoseconds in a second.
pub const SECOND_PS: u64 = 1_000_000_000_000;
/// Virtual seconds after which a test's guest counts as hung. Boots take about 0.3, and the job starts two seconds later.
pub const PATIENCE_S: u64 = 60;

/// Returns the guest image. If the image cannot be built for lack of a tool, returns None and reports the test as skipped.
///
/// # Panics
///
/// If the build fails for another reason.
pub fn image() -> Option<&'static Image> {
    static IMAGE: OnceLock<Result<Image, String>> = OnceLock::new();
    let image = IMAGE.get_or_init(|| {
        let built = nodescope_image::default_cache_dir().and_then(|cache| {
            nodescope_image::build(&ImageSpec::debian(), &cache, &mut |line| {
                eprintln!("{line}");
            })
        });
        match built {
            Ok(image) => Ok(image),
            Err(missing @ ImageError::MissingTool { .. }) => Err(missing.to_string()),
            Err(error) => panic!("the guest image cannot be built: {error}"),
        }
    });
    match image {
        Ok(image) => Some(image),
        Err(missing) => {
            skip(Need::Image, format_args!("no guest image: {missing}"));
            None
        }
    }
}

/// Compiles a program of `programs/`, and returns its ELF file. Without the compiler, returns None and reports the test as skipped.
///
/// # Panics
///
/// If the compiler refuses the program.
pub fn compile(compiler: &str, source: &str, flags: &[&str]) -> Option<Vec<u8>> {
    let need = match compiler.starts_with("mpi") {
        true => Need::Mpi,
        false => Need::Compiler,
    };
    if !have(need, &[compiler]) {
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let out = dir.path().join("program");
    let result = Command::new(compiler)
        .arg("-I")
        .arg(root.join("../../guest-images/tracer"))
        .arg("-o")
        .arg(&out)
        .arg(root.join("programs").join(source))
        .args(flags)
        .output();
    match result {
        Ok(output) if output.status.success() => {
            Some(fs::read(&out).expect("the compiler's output"))
        }
        Ok(output) => panic!(
            "{compiler} refuses {source}: {}",
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => panic!("{compiler}: {error}"),
    }
}

/// Makes an executable file for the job disk.
pub fn program(path: &str, data: impl Into<Vec<u8>>) -> JobFile {
    JobFile {
        path: path.into(),
        mode: 0o755,
        data: data.into(),
    }
}

/// Returns the files of a job that is one shell script.
pub fn script(text: &str) -> Vec<JobFile> {
    vec![program("run", text)]
}

/// Returns a node of one vCPU with `mib` MiB of memory.
pub fn small_node(mib: u64) -> NodeTopology {
    NodeTopology::uniform(1, 1, 1, mib << 20)
}

/// Returns a cluster that runs a job. The links have 10 Gbit/s and 20 us (few, long quanta). There are no windows, and one host thread.
///
/// # Panics
///
/// If the files do not fit on a job disk.
pub fn cluster(image: &Image, nodes: u32, node: NodeTopology, job: &[JobFile]) -> ClusterConfig {
    ClusterConfig {
        name: "test".into(),
        study_id: "0".into(),
        seed: 1,
        nodes,
        shared: None,
        topology: node,
        cpuid: Default::default(),
        required_features: Vec::new(),
        engine: Default::default(),
        kvm_quantum_ps: nodescope_cluster::config::KVM_QUANTUM_PS,
        counting: None,
        doorbell: false,
        offered_features: None,
        nominal_cpi: 65536,
        translate: true,
        kernel: image.vmlinux.clone(),
        initramfs: image.initramfs.clone(),
        root: image.root.clone(),
        root_blocks: Some(image.root_blocks.clone()),
        job_disk: nodescope_image::job_disk(job).expect("a job disk"),
        link: LinkConfig {
            bandwidth: 10_000_000_000,
            latency_ps: 20_000_000,
        },
        mtu: 1500,
        offload: true,
        capture: false,
        trace: false,
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
        windows: Vec::new(),
        registry: Registry::default(),
        time_limit_ps: PATIENCE_S * SECOND_PS,
        deadlock_ps: None,
        host_threads: 1,
    }
}

/// A run that ended without an error of nodescope.
#[derive(Debug)]
pub struct Finished {
    /// The cluster's outcome.
    pub outcome: Outcome,
    /// Console output of each node, without carriage returns.
    pub consoles: Vec<String>,
    /// Folder of the results.
    pub dir: PathBuf,
}

impl Finished {
    /// Returns the content of a file that the guest stored among the results.
    ///
    /// # Panics
    ///
    /// If there is no such file; the message contains the console of node 0.
    pub fn file(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join("files").join(name))
            .unwrap_or_else(|error| panic!("no file {name} ({error}):\n{}", self.consoles[0]))
    }
}

struct Silent;

impl Observer for Silent {
    fn progress(&mut self, _: &dyn Fn() -> Progress) {}
    fn message(&mut self, node: u32, text: &str) {
        println!("node {node}: {text}");
    }
    fn console(&mut self, _: u32, _: &[u8]) {}
}

/// Runs a cluster, and prints its virtual time, instructions and speed.
///
/// # Errors
///
/// Fails as [`fn@nodescope_cluster::run`] does.
pub fn run(config: &ClusterConfig, dir: &Path) -> Result<Finished, RunError> {
    run_with(config, dir, Options::default())
}

/// Runs a cluster like [`run`], with options: from a snapshot, or with a snapshot to save.
///
/// # Errors
///
/// Fails as [`nodescope_cluster::run_with`] does.
pub fn run_with(
    config: &ClusterConfig,
    dir: &Path,
    options: Options<'_>,
) -> Result<Finished, RunError> {
    let start = Instant::now();
    let folder = ResultsFolder::create(dir)?;
    let stop = Arc::default();
    let outcome = nodescope_cluster::run_with(config, &folder, &stop, &mut Silent, options)?;
    let seconds = start.elapsed().as_secs_f64();
    let millions: Vec<u64> = outcome.instructions.iter().map(|n| n / 1_000_000).collect();
    let total: u64 = outcome.instructions.iter().sum();
    println!(
        "{:?}, job {:?}, {:.3} virtual s, {millions:?} M instructions, {seconds:.1} s, {:.0} M instructions/s on {} host threads",
        outcome.ending,
        outcome.job_status,
        outcome.virtual_ps as f64 / SECOND_PS as f64,
        total as f64 / 1e6 / seconds,
        config.host_threads,
    );
    let consoles = (0..config.nodes)
        .map(|n| {
            let path = dir.join(format!("console-node{n}.log"));
            let bytes = fs::read(path).expect("a console log");
            String::from_utf8_lossy(&bytes).replace('\r', "")
        })
        .collect();
    Ok(Finished {
        outcome,
        consoles,
        dir: dir.into(),
    })
}

/// Runs a cluster whose job must succeed.
///
/// # Panics
///
/// If the job does not succeed; the message contains the console of node 0.
pub fn run_well(config: &ClusterConfig, dir: &Path) -> Finished {
    let finished = run(config, dir).unwrap_or_else(|error| {
        let console = fs::read_to_string(dir.join("console-node0.log")).unwrap_or_default();
        panic!("{error}\n{console}")
    });
    let outcome = &finished.outcome;
    assert_eq!(
        (&outcome.ending, outcome.job_status),
        (&nodescope_cluster::Ending::PoweredOff, Some(0)),
        "{}",
        finished.consoles[0]
    );
    finished
}

/// Returns the peak of this process's resident memory in bytes (`VmHWM`).
///
/// # Panics
///
/// If the host has no `/proc`.
pub fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB"));
    1024 * kib
        .and_then(|n| n.trim().parse::<u64>().ok())
        .expect("VmHWM")
}
