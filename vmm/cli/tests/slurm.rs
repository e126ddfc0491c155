//! Tests of runs under Slurm: a controller and two "hosts" on this machine, each a `slurmd` with a name and a port of its own.

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guest::{ends_within, files, ok, same, signal, stderr, talking, wait_until};
use nodescope_test_needs::{Need, have, mpi_abi, skip};
use tempfile::TempDir;

/// Longest time until Slurm has its hosts, until a run ends, or until hosts are released.
const SOON: Duration = Duration::from_secs(60);

/// A Slurm installation for one test. Dropping it ends the daemons.
struct Slurm {
    daemons: Vec<Child>,
    dir: TempDir,
}

impl Slurm {
    /// Starts Slurm's daemons and waits for both hosts. The first job has the number `first_job`. nodescope derives its port from the job's
    /// number, so tests that run at the same time need different ones. Skips the test and returns `None` if this machine cannot run them.
    fn start(first_job: u32) -> Option<Slurm> {
        if !have(Need::Slurm, &["slurmctld", "slurmd", "salloc", "srun"]) {
            return None;
        }
        // SAFETY: geteuid takes nothing and changes nothing.
        if unsafe { libc::geteuid() } != 0 {
            skip(Need::Slurm, "slurmd runs jobs as root alone");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display().to_string();
        // All three ports are bound at once, so that they differ.
        let held = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [controller, first, second] = held
            .each_ref()
            .map(|port| port.local_addr().unwrap().port());
        drop(held);
        let config = format!(
            "ClusterName=test\nFirstJobId={first_job}\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={controller}\n\
             AuthType=auth/none\nCredType=cred/none\nSlurmUser=root\nSlurmdUser=root\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\n\
             StateSaveLocation={at}/state\nTmpFS={at}/%n\nSlurmdSpoolDir={at}/%n\nSlurmctldPidFile={at}/controller.pid\n\
             SlurmdPidFile={at}/%n.pid\nSlurmctldLogFile={at}/controller.log\nSlurmdLogFile={at}/%n.log\n\
             SchedulerType=sched/builtin\nSelectType=select/linear\nAccountingStorageType=accounting_storage/none\n\
             JobAcctGatherType=jobacct_gather/none\nSlurmdParameters=config_overrides\n\
             NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={first} CPUs=2\n\
             NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={second} CPUs=2\n\
             PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP\n"
        );
        for folder in ["state", "n1", "n2"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        fs::write(dir.path().join("slurm.conf"), config).unwrap();
        let mut slurm = Slurm {
            daemons: Vec::new(),
            dir,
        };
        for (program, args) in [
            ("slurmctld", &["-i", "-D"][..]),
            ("slurmd", &["-D", "-N", "n1"]),
            ("slurmd", &["-D", "-N", "n2"]),
        ] {
            let config = slurm.config();
            let daemon = Command::new(program)
                .args(args)
                .arg("-f")
                .arg(&config)
                .env("SLURM_CONF", &config)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            slurm.daemons.push(daemon.unwrap());
        }
        let begin = Instant::now();
        while slurm.ask("sinfo", &["--noheader", "--states=idle", "--format=%D"]) != "2" {
            assert!(begin.elapsed() < SOON, "Slurm has no hosts");
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(slurm)
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("slurm.conf")
    }

    /// Returns the standard output of one of Slurm's commands, without blanks at its ends.
    fn ask(&self, program: &str, args: &[&str]) -> String {
        let mut command = Command::new(program);
        let output = command.args(args).env("SLURM_CONF", self.config()).output();
        String::from_utf8_lossy(&output.unwrap().stdout)
            .trim()
            .into()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // SAFETY: kill takes any process and signal; the child has not been waited for.
            unsafe { libc::kill(daemon.id() as i32, libc::SIGTERM) };
            let _ = daemon.wait();
        }
    }
}

#[test]
fn a_run_under_slurm_leaves_the_results_of_one_process() {
    let Some(slurm) = Slurm::start(100) else {
        return;
    };
    let work = talking();
    let command = |args: &[&str]| {
        let mut command = work.command(args);
        command.env("SLURM_CONF", slurm.config());
        command
    };
    ok(&work, &["run", "s.toml", "--results", "one", "--interpret"]);
    let run = [
        "slurm",
        "run",
        "s.toml",
        "--results",
        "two",
        "--interpret",
        "--hosts",
        "2",
    ];
    let output = command(&run).output().unwrap();
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains(": n1, n2"), "{told}");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(report.contains("window \"w\""), "{report}");
    same(&work.path().join("one"), &work.path().join("two"));
    let queue = || slurm.ask("squeue", &["--noheader", "--states=pending,running"]);
    assert_eq!(queue(), "", "the hosts are given back");

    // Results exist already, so the master refuses the run: its message and exit code must reach the user.
    let output = command(&run).output().unwrap();
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("already holds results"), "{told}");

    for (args, code, text) in [
        (
            &["--hosts", "4"][..],
            2,
            "4 processes are more than the study's 3 nodes",
        ),
        (
            &["--hosts", "2", "--slurm-option=--partition=none"],
            5,
            "Slurm gives no hosts: salloc: error: ",
        ),
        (
            &["--hosts", "2", "--workers", "1"],
            2,
            "--workers and --listen follow",
        ),
    ] {
        let args = [&["slurm", "run", "s.toml", "--results", "three"], args].concat();
        let output = command(&args).output().unwrap();
        let told = stderr(&output);
        assert!(told.contains(text), "{args:?}: {told}");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {told}");
    }
    assert!(!work.path().join("three").exists());
    assert!(!files(&work.path().join("two")).is_empty());
}

/// Checks runs that `srun` starts on both hosts: Open MPI by the shim, MPICH 5 by the standard ABI, and start-ups that do not serve.
#[test]
fn a_run_by_mpi_under_slurm_leaves_the_results_of_one_process() {
    let Some(slurm) = Slurm::start(300) else {
        return;
    };
    if !have(Need::Mpi, &["mpicc.openmpi", "mpirun.openmpi"]) {
        return;
    }
    let work = talking();
    ok(&work, &["run", "s.toml", "--results", "one"]);
    let srun = |plug_in: &str, more: &[&str]| {
        let run = work.command(&[&["run", "s.toml", "--results", "mpi", "--force"], more].concat());
        let mut command = Command::new("srun");
        command
            .args(["--nodes=2", "--ntasks=2", "--ntasks-per-node=1"])
            .arg(format!("--mpi={plug_in}"))
            .arg(run.get_program())
            .args(run.get_args())
            .envs(
                run.get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .env("SLURM_CONF", slurm.config())
            .current_dir(work.path());
        command
    };
    let passes = |mut command: Command| {
        let output = command.output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{command:?}: {}",
            stderr(&output)
        );
        same(&work.path().join("one"), &work.path().join("mpi"));
    };
    let fails = |mut command: Command, text: &str| {
        let output = command.output().unwrap();
        let told = stderr(&output);
        assert!(
            told.contains(text),
            "{command:?}: {text:?} is not in:\n{told}"
        );
        assert_eq!(
            told.matches("error: --mpi").count() + told.matches("error: srun has").count(),
            1,
            "{told}"
        );
        assert_eq!(output.status.code(), Some(2), "{command:?}: {told}");
    };
    passes(srun("pmix", &["--mpi=mpicc.openmpi"]));
    fails(
        srun("pmi2", &["--mpi=mpicc.openmpi"]),
        "start them by srun --mpi=pmix",
    );
    fails(
        srun("none", &[]),
        "srun has started 2 processes without an interface",
    );
    let Some(launcher) = mpi_abi("mpiexec") else {
        return;
    };
    let library = launcher
        .ancestors()
        .nth(2)
        .unwrap()
        .join("lib/libmpi_abi.so.1");
    let library = format!("--mpi={}", library.display());
    passes(srun("pmi2", &[&library]));
    fails(srun("pmix", &[&library]), "start them by srun --mpi=pmi2");
}

#[test]
fn an_interrupted_run_gives_its_hosts_back() {
    let Some(slurm) = Slurm::start(200) else {
        return;
    };
    let work = guest::WorkFolder::new(2, "", |path| {
        guest::Kernel::new()
            .say("on\n")
            .work(1_000_000)
            .for_ever(path);
    });
    for sent in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let mut run = work.command(&["slurm", "run", "s.toml", "--hosts", "2"]);
        let mut run = run.env("SLURM_CONF", slurm.config()).spawn().unwrap();
        let log = work.results().join("console-node0.log");
        wait_until(&mut run, "console output", || guest::holds(&log, 100));
        signal(&run, sent);
        let output = ends_within(run, SOON);
        let code = (sent != libc::SIGKILL).then_some(130);
        assert_eq!(output.status.code(), code, "{output:?}");
        let begin = Instant::now();
        while !slurm.ask("squeue", &["--noheader"]).is_empty() {
            assert!(begin.elapsed() < SOON, "the hosts are not given back");
            std::thread::sleep(Duration::from_millis(100));
        }
        fs::remove_dir_all(work.results()).unwrap();
    }
}
