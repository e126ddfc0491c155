//! `nodescope slurm run`: a run over hosts that Slurm allocates.
//!
//! `salloc` waits for the hosts. Two steps of the Slurm job then run at the same time: the master on the first host, and a worker on each
//! of the others. They get the key by their environment.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, process};

use nodescope_distributed::{KEY_VARIABLE, Key};
use nodescope_hypercall::printable;

use crate::args::{Args, LogFormat, Run, Slurm, SlurmCommand, SlurmRun};
use crate::check;
use crate::distributed;
use crate::exit::{Exit, Failure};
use crate::interrupt::on_interrupt;
use crate::terminal::print_error_line;

/// First of the default ports of masters. A Slurm job's default port follows from its number, modulo `PORTS`.
const FIRST_PORT: u64 = 20_000;
const PORTS: u64 = 10_000;
/// Time that workers have to end after the master, before they are killed.
const WORKER_END_LIMIT: Duration = Duration::from_secs(10);
/// Interval between two checks whether a step has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the subcommand of `nodescope slurm`.
pub fn slurm(args: &Slurm, all: &Args) -> Result<Exit, Failure> {
    match &args.command {
        SlurmCommand::Run(args) => run(args, all),
    }
}

fn run(args: &SlurmRun, all: &Args) -> Result<Exit, Failure> {
    let of_user = |text: &str| Failure::new(Exit::Study, text);
    if args.run.workers.is_some() || args.run.listen.is_some() {
        return Err(of_user(
            "--workers and --listen follow from --hosts; leave them out",
        ));
    }
    let study = check::load(&args.run.study, args.run.engine, args.hosts)?;
    let workers = (args.hosts > 1).then_some(args.hosts - 1);
    let with_workers = Run {
        workers,
        ..args.run.clone()
    };
    distributed::check(&with_workers, &study)?;
    let signals = on_interrupt()?;
    let key = Key::new().map_err(|error| Failure::of(Exit::Host, &error))?;
    let job = Job::ask(args, signals.flag())?;
    let hosts = job.hosts()?;
    let Some((first, others)) = hosts.split_first() else {
        return Err(Failure::new(Exit::Host, "Slurm has given no hosts"));
    };
    print_unless_quiet(all, &format!("job {}: {}", job.number, hosts.join(", ")));
    let program = env::current_exe()
        .map_err(|error| Failure::new(Exit::Host, format!("cannot find this program: {error}")))?;
    let number: u64 = job.number.parse().unwrap_or(u64::from(process::id()));
    let port = match args.port {
        Some(port) => u64::from(port),
        None => FIRST_PORT + number % PORTS,
    };
    let mut step = Vec::new();
    if !others.is_empty() {
        let mut command = job.step(others, &program, &key);
        let address = format!("tcp://{}:{port}", address(first)?);
        let wait = args.run.worker_wait.to_string().replace(' ', "");
        command.args(["worker", "--quiet", "--connect", &address, "--wait", &wait]);
        // The master reports what happens to a worker.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        step.push(start(command)?);
    }
    let mut workers = Steps(step);
    let mut command = job.step(std::slice::from_ref(first), &program, &key);
    command.arg("run").args(arguments(&with_workers));
    if !others.is_empty() {
        command.args(["--listen", &format!("tcp://0.0.0.0:{port}")]);
    }
    command.args(of_all(all));
    let master = start(command)?;
    let status = job.follow(master, signals.flag())?;
    workers.end();
    exit(status)
}

fn print_unless_quiet(all: &Args, text: &str) {
    if !all.quiet && all.log_format == LogFormat::Text {
        print_error_line(text);
    }
}

/// Returns the master's exit code. The master has reported the reason to the user already.
fn exit(status: ExitStatus) -> Result<Exit, Failure> {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    let known = code.and_then(Exit::of);
    match known {
        Some(Exit::Ok) => Ok(Exit::Ok),
        Some(exit) => Err(Failure {
            exit,
            chain: Vec::new(),
            also: None,
        }),
        None => Err(Failure::new(
            Exit::Host,
            format!("the master's step of the job ended without a result: {status}"),
        )),
    }
}

/// Returns arguments with which `nodescope run` does what these options ask for.
fn arguments(run: &Run) -> Vec<OsString> {
    // The pattern names every option, so that a new one does not compile until it is passed on here.
    let Run {
        study,
        results,
        host_threads,
        engine,
        interpret,
        force,
        follow,
        host_times,
        snapshot_at,
        snapshot_every,
        snapshot_name,
        stop_after_snapshot,
        from,
        workers,
        listen,
        key_file,
        worker_wait,
        transport,
        mpi,
        stats,
        sandbox,
        costs_of,
        code,
    } = run;
    fn named(choice: &impl clap::ValueEnum) -> Option<OsString> {
        Some(choice.to_possible_value()?.get_name().into())
    }
    let mut all: Vec<OsString> = vec![study.into()];
    let mut add = |name: &str, value: Option<OsString>| {
        if let Some(value) = value {
            let mut argument = OsString::from(format!("--{name}="));
            argument.push(value);
            all.push(argument);
        }
    };
    let text = |value: &dyn ToString| Some(OsString::from(value.to_string()));
    let path = |of: &Option<PathBuf>| of.as_ref().map(|path| path.clone().into_os_string());
    add("results", path(results));
    add("host-threads", host_threads.as_ref().and_then(|n| text(n)));
    add("engine", engine.as_ref().and_then(named));
    add("sandbox", named(sandbox));
    add("mpi", text(mpi));
    if workers.is_some() {
        add("transport", named(transport));
    }
    add("costs-of", path(costs_of));
    add("follow", follow.as_ref().and_then(|node| text(node)));
    add("snapshot-at", snapshot_at.as_ref().and_then(|at| text(at)));
    add(
        "snapshot-every",
        (snapshot_every.as_ref()).and_then(|time| text(&time.to_string().replace(' ', ""))),
    );
    add("snapshot-name", snapshot_name.as_ref().map(OsString::from));
    add("from", from.as_ref().map(OsString::from));
    add("workers", workers.as_ref().and_then(|n| text(n)));
    add("listen", listen.as_ref().map(OsString::from));
    add("key-file", path(key_file));
    if workers.is_some() {
        add(
            "worker-wait",
            text(&worker_wait.to_string().replace(' ', "")),
        );
    }
    let flags = [
        ("--interpret", interpret),
        ("--force", force),
        ("--host-times", host_times),
        ("--stats", stats),
        ("--stop-after-snapshot", stop_after_snapshot),
    ];
    all.extend(
        flags
            .iter()
            .filter(|(_, on)| **on)
            .map(|(name, _)| name.into()),
    );
    all.extend(code.options());
    all
}

/// Returns the options that all commands share, as they were given.
fn of_all(all: &Args) -> Vec<String> {
    let format = match all.log_format {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    };
    let mut options = vec![format!("--log-format={format}")];
    options.extend((0..all.verbose).map(|_| "--verbose".into()));
    options.extend(all.quiet.then(|| "--quiet".into()));
    options
}

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// Starts a Slurm command in a process group of its own: the terminal's signals reach only this process, which passes them on.
fn start(mut command: Command) -> Result<Child, Failure> {
    use std::os::unix::process::CommandExt;
    let program = command.get_program().to_string_lossy().into_owned();
    let started = command.process_group(0).spawn();
    started.map_err(|error| missing(&program, &error))
}

fn missing(program: &str, error: &std::io::Error) -> Failure {
    Failure::new(
        Exit::Host,
        format!(
            "cannot start {program}: {error}; nodescope slurm needs Slurm's commands (Debian: slurm-client)"
        ),
    )
}

/// Returns the standard output of one of Slurm's commands.
fn asked(program: &str, args: &[&str]) -> Result<String, Failure> {
    let output = command(program).args(args).output();
    let output = output.map_err(|error| missing(program, &error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(
            Exit::Host,
            format!("Slurm: {program} failed: {}", printable(said.trim())),
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the address in Slurm's configuration at which other hosts reach this host.
fn address(host: &str) -> Result<String, Failure> {
    let shown = asked("scontrol", &["--oneliner", "show", "node", host])?;
    let address = shown
        .split_whitespace()
        .find_map(|word| word.strip_prefix("NodeAddr="));
    address.map(String::from).ok_or_else(|| {
        Failure::new(
            Exit::Host,
            format!("Slurm: scontrol shows no NodeAddr of {host}"),
        )
    })
}

/// Steps of a Slurm job that end after the master. Dropping kills those that have not ended.
struct Steps(Vec<Child>);

impl Steps {
    fn end(&mut self) {
        let begin = Instant::now();
        for step in &mut self.0 {
            while matches!(step.try_wait(), Ok(None)) && begin.elapsed() < WORKER_END_LIMIT {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        for step in &mut self.0 {
            // The call fails for a step that has ended already.
            let _ = step.kill();
            let _ = step.wait();
        }
    }
}

/// A Slurm job. Dropping it releases its hosts. Slurm releases them, too, if this process is killed: `salloc` waits for a command that ends
/// with its standard input.
struct Job {
    number: String,
    salloc: Child,
}

impl Job {
    /// Asks Slurm for hosts, and waits until they are allocated.
    fn ask(args: &SlurmRun, interrupted: &AtomicBool) -> Result<Job, Failure> {
        let hosts = args.hosts.to_string();
        let mut salloc = command("salloc");
        salloc
            .arg("--job-name=nodescope")
            .args(["--nodes", &hosts, "--ntasks", &hosts, "--ntasks-per-node=1"])
            .args(&args.slurm_option)
            .arg("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut salloc = start(salloc)?;
        let said = salloc.stderr.take().map(BufReader::new);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in said
                .into_iter()
                .flat_map(BufRead::lines)
                .map_while(Result::ok)
            {
                // Nobody receives the output after the line with the job's number, so that sending may fail.
                let _ = sender.send(printable(line.trim()).to_string());
            }
        });
        let mut output = Vec::new();
        let mut ends = false;
        loop {
            match lines.recv_timeout(POLL_INTERVAL) {
                Ok(line) => {
                    if let Some((_, number)) = line.split_once("Granted job allocation ") {
                        let number = number.to_owned();
                        return Ok(Job { number, salloc });
                    }
                    if line.contains("queued and waiting") {
                        print_error_line(&line);
                    }
                    output.push(line);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            if interrupted.load(Ordering::Relaxed) && !std::mem::replace(&mut ends, true) {
                // `salloc` then cancels its request in the queue.
                terminate(&salloc);
            }
        }
        // `salloc` has closed its standard error, so it ends now.
        let _ = salloc.wait();
        if interrupted.load(Ordering::Relaxed) {
            return Err(Failure::new(
                Exit::Interrupted,
                "interrupted while waiting for hosts",
            ));
        }
        Err(Failure::new(
            Exit::Host,
            format!("Slurm gives no hosts: {}", output.join("; ")),
        ))
    }

    /// Returns the names of the job's hosts.
    fn hosts(&self) -> Result<Vec<String>, Failure> {
        let job = asked(
            "squeue",
            &["--noheader", "--jobs", &self.number, "--format=%N"],
        )?;
        let names = asked("scontrol", &["show", "hostnames", job.trim()])?;
        Ok(names.lines().map(String::from).collect())
    }

    /// Returns an `srun` command that starts this program once on each of these hosts of the job. The caller adds the arguments.
    fn step(&self, hosts: &[String], program: &Path, key: &Key) -> Command {
        let count = hosts.len().to_string();
        let mut srun = command("srun");
        srun.args(["--jobid", &self.number, "--overlap", "--kill-on-bad-exit=0"])
            .args(["--nodes", &count, "--ntasks", &count, "--ntasks-per-node=1"])
            .args(["--nodelist", &hosts.join(",")])
            .arg(program)
            .env(KEY_VARIABLE, key.text());
        srun
    }

    /// Waits for the master's step and returns its status. Passes an interrupt on; the master then writes its results and ends.
    fn follow(&self, mut master: Child, interrupted: &AtomicBool) -> Result<ExitStatus, Failure> {
        let mut signalled = false;
        loop {
            match master.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => std::thread::sleep(POLL_INTERVAL),
                Err(error) => return Err(missing("srun", &error)),
            }
            if interrupted.load(Ordering::Relaxed) && !std::mem::replace(&mut signalled, true) {
                asked("scancel", &["--signal=INT", &self.number])?;
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        drop(self.salloc.stdin.take());
        if let Err(error) = self.salloc.wait() {
            tracing::warn!("job {} may still have its hosts: {error}", self.number);
        }
    }
}

fn terminate(child: &Child) {
    // SAFETY: kill takes any process and signal; the child has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
}
