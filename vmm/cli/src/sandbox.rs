//! What a process that runs guests gives up before their first instruction.

use std::fs;
use std::path::{Path, PathBuf};

use nodescope_cluster::ClusterConfig;
use nodescope_plugin_core::Tool;
use nodescope_sandbox::Sandbox;
use nodescope_study::Study;
use tempfile::TempDir;

use crate::args::SandboxMode;
use crate::cores;
use crate::exit::{Exit, Failure};
use crate::interrupt::Signals;

/// What a run keeps of the host, beside what every run keeps.
#[derive(Default)]
pub struct Kept {
    /// Files and folders to read.
    pub read: Vec<PathBuf>,
    /// Folders to write.
    pub write: Vec<PathBuf>,
    /// True if processes of the run talk by TCP.
    pub tcp: bool,
    /// True if this process has started workers.
    pub workers: bool,
}

/// A process that has entered the sandbox.
pub struct Confined {
    /// Sentence for the user about what this host does not hold; `None` if all is held, or if the user wants no sandbox.
    pub gaps: Option<String>,
    /// The one folder for temporary files that the process keeps.
    _temporary: TempDir,
}

/// Gives up what a run of this study does not need. Threads that begin later are held as well.
pub fn enter(
    mode: SandboxMode,
    study: &Study,
    config: &ClusterConfig,
    kept: Kept,
    signals: &mut Signals,
) -> Result<Confined, Failure> {
    let parent = std::env::temp_dir();
    let temporary = tempfile::Builder::new()
        .prefix("nodescope-")
        .tempdir()
        .map_err(Failure::io("create a folder in", &parent))?;
    if mode == SandboxMode::Off {
        tracing::info!("sandbox: off, by --sandbox off");
        return Ok(Confined {
            gaps: None,
            _temporary: temporary,
        });
    }
    // The rest of the process makes its temporary files there. An earlier value, of another run in this process, stays.
    let _ = tempfile::env::override_temp_dir(temporary.path());
    let sandbox = kept_by(study, config, kept)?.temporary(temporary.path());
    let entered = signals.without_thread(|| sandbox.enter())?;
    let status = entered.map_err(|error| Failure::of(Exit::Host, &error))?;
    tracing::info!("sandbox: {status}");
    if mode == SandboxMode::Require {
        let required = status.require();
        required.map_err(|error| Failure::of(Exit::Host, &error))?;
    }
    let gaps = status.gaps().map(|gaps| {
        format!("this host does not hold back all that the sandbox is to hold back: {gaps}")
    });
    if let Some(gaps) = &gaps {
        tracing::warn!("{gaps}");
    }
    Ok(Confined {
        gaps,
        _temporary: temporary,
    })
}

/// Returns the sandbox for a study.
fn kept_by(study: &Study, config: &ClusterConfig, kept: Kept) -> Result<Sandbox, Failure> {
    let mut sandbox = Sandbox::new()
        .read(&config.kernel)
        .read(&config.initramfs)
        .read(&config.root);
    for path in &kept.read {
        sandbox = sandbox.read(path);
    }
    for path in &kept.write {
        sandbox = sandbox.write(path);
    }
    if kept.tcp {
        sandbox = sandbox.tcp();
    }
    if kept.workers {
        sandbox = sandbox.earlier_children();
    }
    if config.engine.uses_kvm() {
        sandbox = sandbox.kvm();
    }
    if config.counting.is_some() {
        sandbox = sandbox.counters();
    }
    let attribution = config.windows.iter().any(|window| window.attribution);
    if attribution || study.job.trace || study.job.openmp {
        // A child process names the code of windows, and the report's call sites.
        sandbox = sandbox.start("/proc/self/exe");
    }
    if !study.cores.is_empty() {
        // The check of the study has found the tool. If it is gone since, the report says so.
        if let Ok(tool) = Tool::installed() {
            sandbox = sandbox.start(tool.path());
            // The report looks for the tool once more.
            let path = std::env::var_os("PATH").unwrap_or_default();
            for folder in std::env::split_paths(&path) {
                sandbox = sandbox.list(folder);
            }
        }
        if let Some(cache) = cores::cache() {
            fs::create_dir_all(&cache).map_err(Failure::io("create", &cache))?;
            sandbox = sandbox.write(cache);
        }
    }
    Ok(sandbox)
}

/// Returns the folder of a file.
pub fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if parent != Path::new("") => parent.into(),
        _ => ".".into(),
    }
}
