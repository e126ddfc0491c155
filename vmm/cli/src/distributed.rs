//! The master of a run over several processes: starts workers or waits for them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

use nodescope_cluster::distribution::block;
use nodescope_cluster::{ClusterConfig, Origin, PeerError, Peers, RunError};
use nodescope_distributed::{
    Admission, Group, GroupError, KEY_VARIABLE, Key, Listener, Place, Transport,
};
use nodescope_study::Study;
use serde::{Deserialize, Serialize};

use crate::args::{self, SandboxMode, TransportChoice};
use crate::exit::{Exit, Failure};
use crate::mpi::{self, Launched};

/// Address at which workers on this host connect; the system chooses a free port.
const LOCAL: &str = "tcp://127.0.0.1:*";
/// Address of a master whose workers a launcher of MPI has started, on any host.
const ANY: &str = "tcp://0.0.0.0:*";
/// Time that workers on this host have to end after the run, before they are killed.
const WORKER_END_LIMIT: Duration = Duration::from_secs(5);

/// The master's instructions to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    /// Path of the study's file, which all hosts must be able to read.
    pub study: PathBuf,
    /// Hash of everything that decides the results, as the master computed it.
    pub study_id: String,
    /// True if all guest code is interpreted, see [`args::Run::interpret`].
    pub interpret: bool,
    /// See [`args::Run::host_threads`].
    pub host_threads: Option<u64>,
    /// True if [`args::Run::engine`] asks for the portable engine in place of the study's.
    pub soft: bool,
    /// Number of hosts that share the nodes.
    pub hosts: u32,
    /// See [`args::Run::sandbox`].
    pub sandbox: SandboxMode,
    /// Files and folders of snapshots that the nodes may begin from.
    pub snapshots: Vec<PathBuf>,
    /// Snapshots that the master takes.
    pub save: Option<SaveTask>,
    /// See [`args::Run::stats`].
    pub stats: bool,
}

/// Snapshots that the master takes with the nodes of all processes.
#[derive(Debug, Serialize, Deserialize)]
pub struct SaveTask {
    /// See [`args::Run::snapshot_at`]; `None` for [`args::Run::snapshot_every`].
    pub at: Option<String>,
    /// See [`args::Run::stop_after_snapshot`].
    pub stop: bool,
}

/// The snapshot that all processes begin from.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct StartPoint {
    /// File of the snapshot, which all hosts must be able to read; `None` if the nodes boot.
    pub snapshot: Option<PathBuf>,
    /// True if the user named the snapshot, so that nodes continue as the snapshot has them ([`Origin::adopt`]).
    pub adopt: bool,
}

/// Returns the number of hosts that share the nodes. With `--listen`, each worker may be on a host of its own.
pub fn hosts(args: &args::Run) -> u32 {
    match (&args.listen, args.workers) {
        (Some(_), Some(workers)) => workers + 1,
        _ => 1,
    }
}

/// Checks that a study can run in several processes, if `--workers` asks for that.
pub fn check(args: &args::Run, study: &Study) -> Result<(), Failure> {
    let wrong = |text: String| Err(Failure::new(Exit::Study, text));
    let Some(workers) = args.workers else {
        return match args.stats {
            true => {
                wrong("--stats compares processes, and this run has one; give --workers".into())
            }
            false => Ok(()),
        };
    };
    if workers >= study.nodes {
        return wrong(format!(
            "--workers: {} processes are more than the study's {} nodes; give {} workers at most",
            workers + 1,
            study.nodes,
            study.nodes - 1
        ));
    }
    if study.uses_kvm() {
        return wrong(
            "--workers: KVM runs all nodes in one process; use --engine soft, or leave --workers out"
                .into(),
        );
    }
    Ok(())
}

/// Returns the version of this program: its number, and a digest of its file, since another build may give other results.
pub fn version() -> Result<String, Failure> {
    let path = PathBuf::from("/proc/self/exe");
    let program = fs::read(&path).map_err(Failure::io("read", &path))?;
    let digest = blake3::hash(&program).to_hex();
    Ok(format!(
        "{} (build {})",
        env!("CARGO_PKG_VERSION"),
        &digest[..12]
    ))
}

/// Returns a failure with the exit code for processes that could not form a group.
pub fn group_failure(error: GroupError) -> Failure {
    let exit = match error {
        GroupError::Version { .. }
        | GroupError::OtherKey { .. }
        | GroupError::Refused { .. }
        | GroupError::NoMemory => Exit::Study,
        _ => Exit::Host,
    };
    Failure::of(exit, &error)
}

/// Facts about the run that the master needs to gather workers.
pub struct RunInfo<'a> {
    /// Files and folders of snapshots that the nodes may begin from.
    pub snapshots: &'a [PathBuf],
    /// Configuration of the cluster.
    pub config: &'a ClusterConfig,
    /// Set once the user has interrupted the program.
    pub interrupted: &'a AtomicBool,
}

/// Group of all processes of a run, and the workers that this process started.
pub struct Processes {
    group: Arc<Group>,
    _started: Started,
}

/// Worker processes that this process or a launcher has started, and the key of the run. Dropping waits for this process's workers to end,
/// and kills those that take too long.
pub struct Started {
    workers: Vec<Child>,
    key: Key,
    place: Place,
    /// Processes that a launcher of MPI has started, with the addresses of this host.
    launched: Option<(Launched, Vec<String>)>,
}

impl Drop for Started {
    fn drop(&mut self) {
        let begin = Instant::now();
        for worker in &mut self.workers {
            // Without an address the worker ends.
            drop(worker.stdin.take());
            while matches!(worker.try_wait(), Ok(None)) {
                if begin.elapsed() > WORKER_END_LIMIT {
                    // The call fails if the worker has ended in the meantime.
                    let _ = worker.kill();
                    let _ = worker.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Started {
    /// Starts the workers on this host, unless they are started elsewhere (`--listen`). They wait for the address at which to connect, so
    /// that this process can start them before it gives up starting programs.
    pub fn begin(
        args: &args::Run,
        workers: u32,
        launched: Option<Launched>,
    ) -> Result<Started, Failure> {
        let key = match &args.listen {
            Some(_) => Key::find(args.key_file.as_deref()),
            None => Key::new(),
        };
        let key = key.map_err(|error| Failure::of(Exit::Study, &error))?;
        let mut started = Started {
            workers: Vec::new(),
            key,
            // A process in the sandbox can find out neither its place nor the interfaces of its host.
            place: Place::own(),
            launched: launched.map(|launched| (launched, mpi::hosts())),
        };
        if args.listen.is_none() && started.launched.is_none() {
            for _ in 0..workers {
                started.workers.push(start(&started.key)?);
            }
        }
        Ok(started)
    }

    /// Returns whether this process has started the workers.
    pub fn has_children(&self) -> bool {
        !self.workers.is_empty()
    }

    /// Tells the workers the address.
    fn tell(&mut self, address: &str) {
        for worker in &mut self.workers {
            if let Some(mut stdin) = worker.stdin.take() {
                // A worker that has ended is found out while the others are awaited.
                let _ = writeln!(stdin, "{address}");
            }
        }
    }
}

impl Processes {
    /// Tells the workers on this host where to connect, or waits with `--listen` for others to connect, and forms the group.
    pub fn gather(
        args: &args::Run,
        mut started: Started,
        info: RunInfo<'_>,
        print: &mut dyn FnMut(&str),
    ) -> Result<Processes, Failure> {
        let RunInfo {
            snapshots,
            config,
            interrupted,
        } = info;
        let workers = args.workers.unwrap_or(0);
        let default = if started.launched.is_some() {
            ANY
        } else {
            LOCAL
        };
        let address = args.listen.as_deref().unwrap_or(default);
        let listener = Listener::bind(address, &started.key).map_err(group_failure)?;
        let address = listener.address().map_err(group_failure)?;
        let mut world = None;
        match (&args.listen, started.launched.take()) {
            (_, Some((launched, hosts))) => {
                let port = address.rsplit(':').next().unwrap_or_default();
                world = Some(launched.invite(&hosts, port, &started.key)?);
            }
            (Some(_), None) => print(&format!("waiting for {workers} workers at {address}")),
            (None, None) => started.tell(&address),
        }
        let transport = match (&world, args.transport) {
            (Some(_), _) => Transport::Mpi,
            (None, TransportChoice::Auto) => Transport::Auto,
            (None, TransportChoice::Memory) => Transport::Memory,
            (None, TransportChoice::Sockets) => Transport::Sockets,
        };
        let study = (args.study.canonicalize()).map_err(Failure::io("find", &args.study))?;
        let task = Task {
            study,
            study_id: config.study_id.clone(),
            interpret: args.interpret,
            host_threads: args.host_threads,
            soft: args.engine == Some(args::EngineChoice::Soft),
            hosts: hosts(args),
            sandbox: args.sandbox,
            snapshots: snapshots.iter().map(|path| absolute(path)).collect(),
            save: (args.snapshot_at.is_some() || args.snapshot_every.is_some()).then(|| SaveTask {
                at: args.snapshot_at.as_ref().map(ToString::to_string),
                stop: args.stop_after_snapshot,
            }),
            stats: args.stats,
        };
        let nodes = config.guests() as usize;
        let share = |rank| {
            let block = block(nodes, rank, workers as usize + 1);
            match block.len() {
                1 => format!("node {}", block.start),
                _ => format!("nodes {} to {}", block.start, block.end - 1),
            }
        };
        let mut check = || {
            if interrupted.load(Ordering::Relaxed) {
                return Err("interrupted while waiting for workers".into());
            }
            for worker in &mut started.workers {
                if let Ok(Some(status)) = worker.try_wait() {
                    let number = worker.id();
                    return Err(format!(
                        "worker process {number} ended before it began: {status}"
                    ));
                }
            }
            Ok(())
        };
        let group = listener.admit(Admission {
            workers: workers as usize,
            version: &version()?,
            task: serde_json::to_value(task).expect("plain values have a form in JSON"),
            limit: *args.worker_wait,
            place: started.place.clone(),
            transport,
            world,
            share: &share,
            check: &mut check,
        });
        let group = group.map_err(|error| match interrupted.load(Ordering::Relaxed) {
            true => Failure::new(Exit::Interrupted, error.to_string()),
            false => group_failure(error),
        })?;
        Ok(Processes {
            group: Arc::new(group),
            _started: started,
        })
    }

    /// Returns the group of all processes.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Sends all workers the snapshot to begin from, and waits until all have prepared.
    pub fn send_start(&self, origin: Option<&Origin>, adopt: bool) -> Result<(), RunError> {
        let snapshot = origin.map(|origin| absolute(origin.path()));
        let start_point = StartPoint { snapshot, adopt };
        let message = serde_json::to_vec(&start_point).expect("plain values have a form in JSON");
        self.group.all_gather(&message)?;
        Ok(())
    }
}

/// Returns the path of a file for other processes.
fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.into())
}

/// Starts a worker on this host, in a process group of its own: the terminal's signals reach only the master, which informs the workers.
fn start(key: &Key) -> Result<Child, Failure> {
    use std::os::unix::process::CommandExt;
    let program = PathBuf::from("/proc/self/exe");
    let name = env::args_os().next().unwrap_or_else(|| "nodescope".into());
    Command::new(&program)
        .arg0(name)
        .args(["worker", "--quiet", "--connect", "-"])
        .env(KEY_VARIABLE, key.text())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(Failure::io("start a worker by", &program))
}

/// Receives the master's message about the snapshot from which all processes begin.
pub fn start_point(group: &Group) -> Result<StartPoint, PeerError> {
    let messages = group.all_gather(&[])?;
    serde_json::from_slice(&messages[0]).map_err(|error| PeerError::Message {
        peer: group.names()[0].clone(),
        why: error.to_string(),
    })
}
