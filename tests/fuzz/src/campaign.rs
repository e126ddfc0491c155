//! Campaigns: long runs of cases. A worker process runs the cases. The worker may die of a panic, of a lack of memory or of a stack
//! overflow, or a case may run for ever. The parent process then keeps the input of this case, and starts a new worker at the next case.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::targets::Target;

/// Limit of a worker's address space, in bytes.
const MEMORY: u64 = 4 << 30;
/// Stack size of the thread that runs cases, in bytes: as large as a main thread's.
const STACK: usize = 8 << 20;
/// Exit status of a worker in which a case panicked, as of any Rust program that panics.
const PANICKED: i32 = 101;

/// Cases of a campaign, and their limits.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Duration of the campaign in seconds.
    pub seconds: u64,
    /// Seed of the campaign's cases.
    pub seed: u64,
    /// Number of the first case.
    pub first: u64,
    /// Seconds after which a case counts as hung.
    pub limit: u64,
    /// Folder for the inputs of failed cases.
    pub failures: PathBuf,
}

/// A case whose input made a reader fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Number of the case.
    pub case: u64,
    /// Description of how the case ended: a panic, a signal, an exit status or a hang.
    pub how: String,
    /// Path of the file with the case's input.
    pub input: PathBuf,
}

/// The result of a campaign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of cases that ran, including those that failed.
    pub cases: u64,
    /// Cases that failed.
    pub failures: Vec<Failure>,
}

/// Runs a campaign on a target. `program` is the path of this program, which is started as the worker that calls [`work`].
///
/// # Errors
///
/// If a process or a file cannot be used.
pub fn run(program: &Path, target: &Target, campaign: &Campaign) -> io::Result<Found> {
    let end = Instant::now() + Duration::from_secs(campaign.seconds);
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("case");
    let output = folder.path().join("output");
    let mut found = Found::default();
    let mut next = campaign.first;
    while Instant::now() < end {
        // Removes the case number of the previous worker.
        let _ = fs::remove_file(&state);
        let child = Command::new(program)
            .args(["--worker", target.name])
            .args(["--seed", &campaign.seed.to_string()])
            .args(["--first", &next.to_string()])
            .arg("--state")
            .arg(&state)
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::null())
            .stderr(fs::File::create(&output)?)
            .spawn()?;
        let (case, status) = watch(child, &state, end, Duration::from_secs(campaign.limit))?;
        let case = case.unwrap_or(next);
        found.cases += case - next + 1;
        next = case + 1;
        let said = fs::read_to_string(&output).unwrap_or_default();
        let how = match status {
            // The campaign's time is over, or the worker has no case left.
            Ended::Over => break,
            Ended::Hangs => format!("goes on for more than {} s", campaign.limit),
            // A panic in a callback of the foreign library aborts the process, so the output shows the panic and not the exit status. A
            // foreign library may die in other ways.
            Ended::Died(_) if target.foreign && !said.contains("panicked at") => continue,
            Ended::Died(status) => died(status, &said),
        };
        fs::create_dir_all(&campaign.failures)?;
        let name = format!("{}-{}-{case}", target.name, campaign.seed);
        let input = campaign.failures.join(name);
        fs::write(&input, target.input(campaign.seed, case))?;
        eprintln!("{}: {how}", input.display());
        found.failures.push(Failure { case, how, input });
    }
    Ok(found)
}

fn died(status: ExitStatus, said: &str) -> String {
    let panic = said
        .lines()
        .skip_while(|line| !line.contains("panicked at"));
    let panic: Vec<&str> = panic.take(2).collect();
    match (panic.as_slice(), status.signal()) {
        ([], Some(signal)) => format!("ended by signal {signal}: {}", said.trim()),
        ([], None) => format!("ended with {status}: {}", said.trim()),
        (lines, _) => lines.join(" "),
    }
}

enum Ended {
    Over,
    Hangs,
    Died(ExitStatus),
}

/// Waits for a worker, and kills the worker when a case takes longer than `limit`, or at `end`. Returns the number of the last case that
/// the worker began (None: no case), and how the worker ended.
fn watch(
    mut child: Child,
    state: &Path,
    end: Instant,
    limit: Duration,
) -> io::Result<(Option<u64>, Ended)> {
    let at = || fs::read_to_string(state).ok()?.trim().parse::<u64>().ok();
    let mut since = (at(), Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            let ended = match status.success() {
                true => Ended::Over,
                false => Ended::Died(status),
            };
            return Ok((at(), ended));
        }
        let case = at();
        if case != since.0 {
            since = (case, Instant::now());
        }
        let hangs = since.1.elapsed() > limit;
        if hangs || Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            let ended = if hangs { Ended::Hangs } else { Ended::Over };
            return Ok((at(), ended));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs cases from `first` on until this process dies, and writes the number of the current case to the file `state`.
///
/// # Errors
///
/// If a limit, a thread or a file fails.
pub fn work(target: &'static Target, seed: u64, first: u64, state: &Path) -> io::Result<()> {
    limit()?;
    let state = state.to_owned();
    let cases = move || -> io::Result<()> {
        let mut keep = fs::File::create(&state)?;
        for case in first.. {
            number(&mut keep, case)?;
            target.check(&target.input(seed, case));
        }
        Ok(())
    };
    let worker = std::thread::Builder::new().stack_size(STACK).spawn(cases)?;
    match worker.join() {
        Ok(done) => done,
        // The panic message has already been printed.
        Err(_) => std::process::exit(PANICKED),
    }
}

fn number(file: &mut fs::File, case: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    file.seek(SeekFrom::Start(0))?;
    // The number only grows, so it overwrites the number before.
    file.write_all(case.to_string().as_bytes())
}

/// Limits this process's address space to `MEMORY` bytes.
fn limit() -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: MEMORY,
        rlim_max: MEMORY,
    };
    // SAFETY: `limit` is a valid structure, which the call only reads.
    match unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
