//! Clusters of growing size that are cloned from one booted node: host memory, processor time and wall time for each node.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;
use nodescope_cluster::once::{self, Boot};
use nodescope_cluster::{
    ClusterConfig, Observer, Options as RunOptions, Origin, Progress, ResultsFolder, run_with,
};
use nodescope_image::job_disk;
use nodescope_machine::topology::NodeTopology;
use serde_json::{Value, json};

use crate::engine::{self, Engine};
use crate::guest::{Guest, Marks, executable};
use crate::snapshot::memory;
use crate::time::{Point, Spent};
use crate::{Failure, machine};

/// Name of the image that snapshots record.
const IMAGE: &str = "bench";
/// Source of the job's program.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/scale.c");
/// Job script: starts one rank on each node.
const JOB: &str = "#!/bin/sh\nexec mpirun.openmpi -n \"$NODESCOPE_NODES\" ./scale\n";
/// Least time between two checks of the memory. A check reads all page tables of the process.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A pause between checks is at least `SELDOM` times as long as the check took, so checks take little processor time.
const SELDOM: u32 = 50;

/// Options of this measurement.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    common: crate::Options,
    /// Numbers of nodes of the clusters.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    nodes: Vec<u32>,
    /// Memory of a node in MiB.
    #[arg(long, default_value_t = 128)]
    memory: u64,
}

/// Measurements of one cluster.
struct Figures {
    nodes: u32,
    /// Peak memory in bytes, less the memory that this process had before.
    memory: u64,
    spent: Spent,
    instructions: u64,
    virtual_s: f64,
}

/// Console output of the first node.
#[derive(Default)]
struct Console(Vec<u8>);

impl Observer for Console {
    fn message(&mut self, _node: u32, _text: &str) {}

    fn console(&mut self, node: u32, bytes: &[u8]) {
        if node == 0 {
            self.0.extend(bytes);
        }
    }

    fn progress(&mut self, _progress: &dyn Fn() -> Progress) {}
}

/// Boots a node once, and runs the job on clusters that are cloned from this node.
pub fn scale(options: &Options) -> Result<Value, Failure> {
    let common = &options.common;
    let image = common.image()?;
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let folder = folder.path();
    let program = compile(folder)?;
    let files = vec![executable("scale", program)];
    let guest = Guest::new(&image, JOB.into(), files, Vec::new(), Marks::Console)?;
    let mut config = engine::config(&guest, Engine::Translator, 1, 1);
    config.topology = NodeTopology::uniform(1, 1, 1, options.memory << 20);
    config.job_disk = job_disk(&[]).map_err(|e| Failure::Guest(e.to_string()))?;
    config.host_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let start = Point::now();
    let origin = boot(&config, folder)?;
    let booted = start.to(Point::now());
    config.job_disk.clone_from(&guest.disk);
    let name = machine::processor()?;
    common.say(&format!(
        "{name}\nnodes of one vCPU and {} MiB, made of one that booted in {:.1} s of processor time; an MPI rank on each\n\
         {:>6}{:>10}{:>10}{:>10}{:>12}{:>12}{:>10}{:>12}",
        options.memory,
        booted.cpu,
        "nodes", "CPU s", "wall s", "MiB", "CPU s/node", "MiB/node", "M instr/s", "virtual s",
    ));
    let mut rows = Vec::new();
    for &nodes in &options.nodes {
        config.nodes = nodes;
        let row = measure(&config, folder, &origin)?;
        let (each, mib) = (f64::from(nodes), row.memory as f64 / f64::from(1 << 20));
        common.say(&format!(
            "{:>6}{:>10.1}{:>10.1}{:>10.0}{:>12.2}{:>12.1}{:>10.0}{:>12.3}",
            row.nodes,
            row.spent.cpu,
            row.spent.wall,
            mib,
            row.spent.cpu / each,
            mib / each,
            row.instructions as f64 / row.spent.cpu / 1e6,
            row.virtual_s,
        ));
        rows.push(json!({
            "nodes": row.nodes,
            "cpu_s": row.spent.cpu,
            "wall_s": row.spent.wall,
            "mib": mib,
            "instructions": row.instructions,
            "virtual_s": row.virtual_s,
        }));
    }
    Ok(json!({
        "bench": "scale",
        "machine": name,
        "node_mib": options.memory,
        "boot_cpu_s": booted.cpu,
        "clusters": rows,
    }))
}

/// Compiles the job's program.
fn compile(folder: &Path) -> Result<Vec<u8>, Failure> {
    let program = folder.join("scale");
    let output = Command::new("mpicc.openmpi")
        .args(["-O2", "-o"])
        .args([program.as_path(), Path::new(PROGRAM)])
        .output()
        .map_err(|error| {
            Failure::Compile(format!(
                "mpicc.openmpi does not start: {error}; install libopenmpi-dev"
            ))
        })?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::Compile(text.into_owned()));
    }
    std::fs::read(program).map_err(Failure::Files)
}

fn failed(error: impl ToString) -> Failure {
    Failure::Guest(error.to_string())
}

fn boot(config: &ClusterConfig, folder: &Path) -> Result<Origin, Failure> {
    let results = ResultsFolder::take(&folder.join("boot"), "run.json", true).map_err(failed)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let mut console = Console::default();
    let path = folder.join("booted.nss");
    let boot = once::boot(config, IMAGE, &path, &results, &interrupted, &mut console);
    match boot.map_err(failed)? {
        Boot::Done(origin) => Ok(*origin),
        Boot::Failed(outcome) => Err(Failure::Guest(format!("no boot: {:?}", outcome.ending))),
    }
}

fn measure(config: &ClusterConfig, folder: &Path, origin: &Origin) -> Result<Figures, Failure> {
    let nodes = config.nodes;
    let results = folder.join(format!("nodes{nodes}"));
    let results = ResultsFolder::take(&results, "run.json", true).map_err(failed)?;
    let options = RunOptions {
        image: IMAGE,
        save: None,
        from: Some(origin),
        peers: None,
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    let mut console = Console::default();
    // SAFETY: malloc_trim returns freed memory of earlier clusters to the host; memory in use does not change.
    unsafe { libc::malloc_trim(0) };
    let before = memory()?;
    let most = AtomicU64::new(before);
    let (done, is_done) = mpsc::channel::<()>();
    let start = Point::now();
    let highest = &most;
    let outcome = std::thread::scope(|scope| {
        let looks = scope.spawn(move || -> Result<(), Failure> {
            loop {
                let begin = Instant::now();
                highest.fetch_max(memory()?, Ordering::Relaxed);
                let wait = POLL_INTERVAL.max(SELDOM * begin.elapsed());
                if is_done.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    return Ok(());
                }
            }
        });
        let outcome = run_with(config, &results, &interrupted, &mut console, options);
        drop(done);
        looks.join().expect("looking does not panic")?;
        outcome.map_err(failed)
    })?;
    let spent = start.to(Point::now());
    let text = String::from_utf8_lossy(&console.0);
    if outcome.job_status != Some(0) || !text.contains(&format!("scale: {nodes} ranks agree")) {
        return Err(Failure::Guest(format!(
            "the job on {nodes} nodes failed:\n{text}"
        )));
    }
    Ok(Figures {
        nodes,
        memory: most.into_inner().saturating_sub(before),
        spent,
        instructions: outcome.instructions.iter().sum(),
        virtual_s: outcome.virtual_ps as f64 / 1e12,
    })
}
