//! Snapshots: cost of saving, opening and restoring a node, and of cloning many nodes from one snapshot.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nodescope_cluster::{
    ClusterConfig, Ending, Observer, Options as RunOptions, Origin, Outcome, Progress,
    ResultsFolder, RunError, Save, When, run_with,
};
use nodescope_image::job_disk;
use nodescope_machine::topology::NodeTopology;
use nodescope_window::Moment;
use serde_json::{Value, json};

use crate::engine::{self, Engine};
use crate::guest::{Guest, Marks, executable};
use crate::{Failure, Options, machine};

/// Number of nodes that are cloned from one snapshot.
const NODES: u32 = 64;
/// Memory of a node in bytes.
const MEMORY: u64 = 128 << 20;
/// Name of the image that snapshots record.
const IMAGE: &str = "bench";
/// Job script of the first node: every node answers a packet, and then a command of its shell.
const JOB: &str = "#!/bin/sh
set -e
node=0
while [ $node -lt 64 ]; do
    busybox ping -c 1 node$node >/dev/null
    echo $(/opt/nodescope/rsh node$node hostname)
    node=$((node + 1))
done
";

/// Console output of the first node, and measurements at its progress.
#[derive(Default)]
struct Console {
    text: Vec<u8>,
    /// Length of the console output at the last check of the memory.
    seen: usize,
    /// Largest memory of this process that the checks have found so far, in bytes.
    memory: u64,
    /// Time at which the writing of a snapshot began.
    saving: Cell<Option<Instant>>,
}

impl Observer for Console {
    fn message(&mut self, _node: u32, _text: &str) {}

    fn console(&mut self, node: u32, bytes: &[u8]) {
        if node == 0 {
            self.text.extend(bytes);
        }
    }

    fn progress(&mut self, _progress: &dyn Fn() -> Progress) {
        if self.seen != self.text.len() {
            self.seen = self.text.len();
            // Memory grows only as the guest works. A check takes long, so it is made only after new output.
            self.memory = self.memory.max(memory().expect("it was read before"));
        }
    }

    fn state(&self) -> Vec<u8> {
        self.saving.set(Some(Instant::now()));
        Vec::new()
    }
}

/// Measurements of one round.
struct Round {
    save: Duration,
    bytes: u64,
    open: Duration,
    restore: Duration,
    instruction: Duration,
}

/// Saves a booted node, restores it, and runs a cluster of clones of it.
pub fn snapshot(options: &Options) -> Result<Value, Failure> {
    let image = options.image()?;
    let guest = Guest::new(&image, JOB.into(), Vec::new(), Vec::new(), Marks::Console)?;
    let mut config = engine::config(&guest, Engine::Translator, 1, 1);
    config.topology = NodeTopology::uniform(1, 1, 1, MEMORY);
    config.job_disk = job_disk(&[executable("run", b"#!/bin/sh\n".to_vec())])
        .map_err(|e| Failure::Guest(e.to_string()))?;
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let folder = folder.path();
    let mut rounds = Vec::new();
    for number in 0..options.rounds.max(1) {
        rounds.push(round(&config, folder, number)?);
    }
    let median = |of: fn(&Round) -> Duration| {
        let mut times: Vec<_> = rounds.iter().map(of).collect();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e3
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let bytes = rounds.iter().map(|round| round.bytes).max().unwrap_or(0);
    let name = machine::processor()?;
    options.say(&format!(
        "{name}\none node of one vCPU and {} MiB, booted: {:.0} MiB of disk\n\
         save               {:8.1} ms\n\
         open and verify    {:8.1} ms\n\
         restore            {:8.1} ms, then the first instruction after {:.2} ms\n\
         medians of {}",
        MEMORY >> 20,
        mib(bytes),
        median(|r| r.save),
        median(|r| r.open),
        median(|r| r.restore),
        median(|r| r.instruction),
        rounds.len(),
    ));

    // Many nodes from one snapshot.
    config.job_disk.clone_from(&guest.disk);
    config.nodes = NODES;
    config.host_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let job = folder.join("job");
    std::fs::write(&job, &config.job_disk).map_err(Failure::Files)?;
    let origin = open(folder)?;
    let start = Instant::now();
    let mut nodes = origin.nodes(&config, IMAGE, &job).map_err(failed)?;
    let built = start.elapsed();
    let mut first = Vec::new();
    for node in &mut nodes {
        let start = Instant::now();
        let target = node.now() + 1;
        node.run_until(target)
            .map_err(|e| Failure::Guest(e.to_string()))?;
        first.push(start.elapsed());
    }
    first.sort_unstable();
    drop(nodes);
    drop(origin);
    let before = memory()?;
    let mut console = Console::default();
    let start = Instant::now();
    let origin = open(folder)?;
    let outcome = run(
        &config,
        &folder.join("many"),
        Some(&origin),
        None,
        &mut console,
    )?;
    let elapsed = start.elapsed();
    let text = String::from_utf8_lossy(&console.text);
    let answered = (0..NODES)
        .filter(|n| text.lines().any(|line| line.trim() == format!("node{n}")))
        .count();
    if outcome.job_status != Some(0) || answered != NODES as usize {
        return Err(Failure::Guest(format!(
            "only {answered} nodes answered:\n{text}"
        )));
    }
    let peak = console.memory.saturating_sub(before);
    let each = built.as_secs_f64() * 1e3 / f64::from(NODES);
    let most = first[first.len() - 1].as_secs_f64() * 1e3;
    options.say(&format!(
        "{NODES} nodes of the snapshot, each of which answers over the network: {:.1} s, {:.0} MiB of host memory, the snapshot's pages included once\n\
         a node is made in {each:.1} ms, and executes its first instruction {most:.2} ms later at most",
        elapsed.as_secs_f64(),
        mib(peak)
    ));
    Ok(json!({
        "bench": "snapshot",
        "machine": name,
        "rounds": rounds.len(),
        "mib": mib(bytes),
        "save_ms": median(|r| r.save),
        "open_ms": median(|r| r.open),
        "restore_ms": median(|r| r.restore),
        "first_instruction_ms": median(|r| r.instruction),
        "nodes": NODES,
        "nodes_s": elapsed.as_secs_f64(),
        "nodes_mib": mib(peak),
        "node_made_ms": each,
        "node_first_instruction_ms": most,
    }))
}

fn failed(error: RunError) -> Failure {
    Failure::Guest(error.to_string())
}

fn open(folder: &Path) -> Result<Origin, Failure> {
    Origin::open(&folder.join("booted.nss")).map_err(|e| Failure::Guest(e.to_string()))
}

fn run(
    config: &ClusterConfig,
    results: &Path,
    from: Option<&Origin>,
    save: Option<Save>,
    observer: &mut dyn Observer,
) -> Result<Outcome, Failure> {
    let folder = ResultsFolder::take(results, "run.json", true)
        .map_err(|e| Failure::Guest(e.to_string()))?;
    let options = RunOptions {
        image: IMAGE,
        save,
        from,
        peers: None,
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    run_with(config, &folder, &interrupted, observer, options).map_err(failed)
}

/// Boots a node, saves it, and restores it.
fn round(config: &ClusterConfig, folder: &Path, number: u32) -> Result<Round, Failure> {
    let save = Save {
        when: When::At(Moment::Boot),
        name: "booted".into(),
        path: folder.join("booted.nss"),
        stop: true,
    };
    let results = folder.join(format!("booted{number}"));
    let mut console = Console::default();
    let outcome = run(config, &results, None, Some(save), &mut console)?;
    let saving = console
        .saving
        .get()
        .map_or(Duration::ZERO, |start| start.elapsed());
    let saved = match (&outcome.ending, &outcome.saved) {
        (Ending::Saved, Some(saved)) => saved.clone(),
        (ending, _) => return Err(Failure::Guest(format!("no snapshot: {ending:?}"))),
    };
    let start = Instant::now();
    let origin = open(folder)?;
    let opened = start.elapsed();
    let job = folder.join("job");
    std::fs::write(&job, &config.job_disk).map_err(Failure::Files)?;
    let start = Instant::now();
    let mut nodes = origin.nodes(config, IMAGE, &job).map_err(failed)?;
    let restore = start.elapsed();
    let start = Instant::now();
    let target = nodes[0].now() + 1;
    nodes[0]
        .run_until(target)
        .map_err(|e| Failure::Guest(e.to_string()))?;
    let instruction = start.elapsed();
    Ok(Round {
        save: saving,
        bytes: saved.bytes,
        open: opened,
        restore,
        instruction,
    })
}

/// Returns the memory of this process in bytes: pages that are mapped several times count once (`Pss`, proc(5)).
pub fn memory() -> Result<u64, Failure> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").map_err(Failure::Files)?;
    let kib = rollup.lines().find_map(|line| {
        let kib = line.strip_prefix("Pss:")?.trim().strip_suffix("kB")?;
        kib.trim().parse::<u64>().ok()
    });
    let missing = || Failure::Host("/proc/self/smaps_rollup has no line Pss".into());
    Ok(kib.ok_or_else(missing)? << 10)
}
