//! Replays traces with smpirun.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// The results of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replay {
    /// Simulated time of the replayed program, in seconds.
    pub simulated: f64,
    /// Processor time that smpirun took on this machine, seconds.
    pub processor: f64,
    /// Peak resident memory of smpirun, bytes.
    pub memory: u64,
}

/// Reason for which a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The program smpirun cannot be started, or its output cannot be read.
    #[error("cannot start smpirun: {0}")]
    Start(std::io::Error),
    /// The program smpirun failed or printed no simulated time; with its output.
    #[error("smpirun failed; it said:\n{0}")]
    Failed(String),
}

/// Returns the version of smpirun.
///
/// # Errors
///
/// A text that says why smpirun cannot be run and, where it cannot be started, which package to install.
pub fn version() -> Result<String, String> {
    match Command::new("smpirun").arg("-version").output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(text.lines().next().unwrap_or_default().to_owned())
        }
        Ok(output) => Err(format!("smpirun -version failed: {}", output.status)),
        Err(error) => Err(format!(
            "smpirun cannot be started ({error}); Debian's libsimgrid-dev brings it"
        )),
    }
}

/// Replays the folder's `trace` on its `platform.xml` and `hosts` with smpirun.
///
/// # Errors
///
/// A smpirun that cannot be started, fails, or prints no simulated time.
pub fn run(folder: &Path, ranks: u32, options: &[String]) -> Result<Replay, ReplayError> {
    let mut child = Command::new("smpirun")
        .current_dir(folder)
        .args(["-np", &ranks.to_string()])
        .args(["-platform", "platform.xml", "-hostfile", "hosts"])
        .args(["-replay", "trace", "--log=root.app:stdout"])
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(ReplayError::Start)?;
    let mut said = String::new();
    let errors = child.stderr.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = pipe.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    });
    if let Some(mut pipe) = child.stdout.take() {
        let mut text = Vec::new();
        pipe.read_to_end(&mut text).map_err(ReplayError::Start)?;
        said.push_str(&String::from_utf8_lossy(&text));
    }
    if let Some(errors) = errors.and_then(|thread| thread.join().ok()) {
        said.push_str(&errors);
    }
    // SAFETY: all zero bytes are a value of this structure of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: the process is a child of this one that has not been waited for; `status` and `usage` are valid for writes.
    let ended = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage) };
    let simulated = said
        .lines()
        .find_map(|line| line.split("Simulation time ").nth(1))
        .and_then(|rest| rest.trim().parse().ok());
    match simulated {
        Some(simulated) if ended >= 0 && status == 0 => Ok(Replay {
            simulated,
            processor: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            memory: usage.ru_maxrss as u64 * 1024,
        }),
        _ => Err(ReplayError::Failed(said)),
    }
}

fn seconds(time: libc::timeval) -> f64 {
    time.tv_sec as f64 + time.tv_usec as f64 / 1e6
}
