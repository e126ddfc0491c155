//! Tests of runs whose processes a launcher of MPI has started: Open MPI 4 and MPICH 4 by the shim, MPICH 5 by the standard ABI.

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use guest::{Kernel, WorkFolder, ends_within, holds, ok, same, stderr, talking, wait_until};
use nodescope_test_needs::{Need, have, mpi_abi};

/// Time within which all processes of a run must end.
const SOON: Duration = Duration::from_secs(60);

/// An MPI library with its launcher.
struct Mpi {
    name: &'static str,
    launcher: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl Mpi {
    /// Returns a command that starts `nodescope` with these arguments in so many processes.
    fn command(&self, work: &WorkFolder, processes: usize, args: &[&str]) -> Command {
        let alone = work.command(args);
        let mut command = Command::new(&self.launcher[0]);
        command
            .args(&self.launcher[1..])
            .args(["-n", &processes.to_string()])
            .arg(alone.get_program())
            .args(alone.get_args())
            .envs(
                alone
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(work.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

fn open_mpi() -> Option<Mpi> {
    let programs = ["mpirun.openmpi", "mpicc.openmpi"];
    have(Need::Mpi, &programs).then(|| Mpi {
        name: "Open MPI",
        launcher: ["mpirun.openmpi", "--oversubscribe"]
            .map(String::from)
            .into(),
        variables: ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]
            .map(|name| (name, "1".into()))
            .into(),
    })
}

fn mpich() -> Option<Mpi> {
    let programs = ["mpirun.mpich", "mpicc.mpich"];
    have(Need::Mpi, &programs).then(|| Mpi {
        name: "MPICH",
        launcher: vec!["mpirun.mpich".into()],
        variables: Vec::new(),
    })
}

/// Returns the library of MPICH 5 with the standard ABI.
fn abi_library(launcher: &std::path::Path) -> PathBuf {
    let environment = launcher.ancestors().nth(2).unwrap();
    environment.join("lib/libmpi_abi.so.1")
}

/// Returns MPICH 5, which is found by the system's loader.
fn standard() -> Option<Mpi> {
    let launcher = mpi_abi("mpiexec")?;
    let library = abi_library(&launcher);
    Some(Mpi {
        name: "MPICH 5",
        launcher: vec![launcher.display().to_string()],
        variables: vec![(
            "LD_LIBRARY_PATH",
            library.parent().unwrap().display().to_string(),
        )],
    })
}

#[test]
fn a_run_by_mpi_leaves_the_results_of_one_process() {
    let work = talking();
    ok(&work, &["run", "s.toml", "--results", "one"]);
    for mpi in [open_mpi(), mpich(), standard()].into_iter().flatten() {
        for processes in [2, 3] {
            let args = ["run", "s.toml", "--results", "mpi", "--force"];
            let output = mpi.command(&work, processes, &args).output().unwrap();
            let told = stderr(&output);
            assert_eq!(output.status.code(), Some(0), "{}: {told}", mpi.name);
            same(&work.path().join("one"), &work.path().join("mpi"));
        }
        let args = ["run", "s.toml", "--results", "off", "--mpi", "off"];
        let output = mpi.command(&work, 1, &args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}: {output:?}", mpi.name);
        fs::remove_dir_all(work.path().join("off")).unwrap();
    }
}

/// Checks that the user gets one message of nodescope, and that no process is left.
fn refused(mut command: Command, code: i32, text: &str) {
    let output = ends_within(command.spawn().unwrap(), SOON);
    let told = stderr(&output);
    assert!(
        told.contains(text),
        "{command:?}: {text:?} is not in:\n{told}"
    );
    assert_eq!(told.matches("error: ").count(), 1, "{told}");
    assert_eq!(output.status.code(), Some(code), "{command:?}: {told}");
}

#[test]
fn an_mpi_that_does_not_serve_is_one_message() {
    let work = talking();
    let run = |mpi: &Mpi, more: &[&str]| {
        mpi.command(&work, 2, &[&["run", "s.toml", "--force"], more].concat())
    };
    let Some(open) = open_mpi() else {
        return;
    };
    refused(
        run(&open, &["--mpi", "/nowhere/libmpi_abi.so.1"]),
        2,
        "cannot load the MPI library /nowhere/libmpi_abi.so.1",
    );
    // A library, but of another interface.
    refused(
        run(&open, &["--mpi", "libc.so.6"]),
        2,
        "libc.so.6 is no MPI library of the standard ABI: it lacks MPI_Init_thread",
    );
    refused(
        run(&open, &["--mpi", "/nowhere/mpicc"]),
        2,
        "/nowhere/mpicc cannot build the shim",
    );
    refused(run(&open, &["--workers", "1"]), 2, "leave --workers out");
    // The environment of a launcher is enough for what is found out before MPI starts.
    let started_by = |variables: &[(&str, &str)]| {
        let mut command = work.command(&["run", "s.toml"]);
        command.envs(variables.iter().copied());
        command
    };
    let size = ("OMPI_COMM_WORLD_SIZE", "2");
    refused(
        started_by(&[size, ("PATH", "/nowhere")]),
        2,
        "no MPI library is found: neither libmpi_abi.so.1 nor a compiler mpicc",
    );
    let step = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
    let plain =
        "srun has started 2 processes without an interface for MPI; start them by srun --mpi=pmix";
    refused(started_by(&step), 2, plain);
    // A library of another launcher sees only its own process.
    let Some(launcher) = mpi_abi("mpiexec") else {
        return;
    };
    let library = abi_library(&launcher).display().to_string();
    refused(
        run(&open, &["--mpi", &library]),
        2,
        "libmpi_abi.so.1 is MPICH 5.",
    );
    refused(
        work.command(&["run", "s.toml", "--mpi", &library]),
        2,
        "no launcher of MPI",
    );
}

/// Makes a study of four nodes that print their names for ever, with a window that closes early.
fn endless() -> WorkFolder {
    let window = "node.frequency = \"100 MHz\"\n\
        [[window]]\nname = \"w\"\nopen = { marker = \"step\", occurrence = 2 }\nmeasure = \"1 M instructions\"\n";
    WorkFolder::new(4, window, |path| {
        Kernel::new()
            .mark("step")
            .say_name()
            .work(1_000_000)
            .for_ever(path);
    })
}

/// Returns the process ids of all processes of a run, whose results these are.
fn processes_of(work: &WorkFolder) -> Vec<i32> {
    let folders = fs::read_dir("/proc").unwrap().flatten();
    let numbers = folders.filter_map(|of| of.file_name().to_str()?.parse().ok());
    let own = work.path().to_path_buf();
    let is_run = |process: &i32| {
        let of = |name: &str| fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
        let arguments = of("cmdline");
        let mut words = arguments.split(|&byte| byte == 0);
        let program = words.next().unwrap_or_default();
        program.ends_with(b"nodescope")
            && words.next() == Some(b"run")
            && fs::read_link(format!("/proc/{process}/cwd")).is_ok_and(|cwd| cwd == own)
    };
    let mut found: Vec<i32> = numbers.filter(is_run).collect();
    found.sort_unstable();
    found
}

/// Kills, stops or slows a process at ten seeded moments, with an Open MPI that gives the other processes a moment.
#[test]
fn a_process_that_is_killed_stopped_or_slowed_costs_no_results() {
    let Some(mpi) = open_mpi() else {
        return;
    };
    let work = endless();
    // A linear congruential generator (Knuth, MMIX) with a fixed seed.
    let mut random = 11_u64;
    for round in 0..10 {
        random = random.wrapping_mul(6_364_136_223_846_793_005);
        random = random.wrapping_add(1_442_695_040_888_963_407);
        let _ = fs::remove_dir_all(work.results());
        let mut run = mpi.command(&work, 3, &["run", "s.toml"]).spawn().unwrap();
        let log = work.results().join("console-node0.log");
        let bytes = (random >> 56).max(1);
        wait_until(&mut run, "console output", || holds(&log, bytes));
        let processes = processes_of(&work);
        assert_eq!(processes.len(), 3, "{processes:?}");
        // A rank follows from the environment, which only the process itself and root may read.
        let rank = |process: &i32| {
            let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            let find = |line: &[u8]| line.starts_with(b"OMPI_COMM_WORLD_RANK=");
            let line = environment.split(|&byte| byte == 0).find(|line| find(line));
            line.map(|line| String::from_utf8_lossy(&line[21..]).into_owned())
        };
        let victim = (random >> 40) as usize % 2 + 1;
        let of = |process: &&i32| rank(process) == Some(victim.to_string());
        let process = *processes.iter().find(of).unwrap();
        let send = |signal| {
            // SAFETY: kill takes any process and signal.
            assert_eq!(unsafe { libc::kill(process, signal) }, 0);
        };
        std::thread::sleep(Duration::from_millis(random >> 32 & 0xff));
        match round % 3 {
            0 => {}
            // A process that stands still for less than the control line's 5 s is waited for.
            1 => {
                send(libc::SIGSTOP);
                std::thread::sleep(Duration::from_millis(700));
                send(libc::SIGCONT);
            }
            _ => {
                for _ in 0..20 {
                    send(libc::SIGSTOP);
                    std::thread::sleep(Duration::from_millis(20));
                    send(libc::SIGCONT);
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        let before = fs::metadata(&log).unwrap().len();
        wait_until(&mut run, "further output", || holds(&log, before + 1));
        send(libc::SIGKILL);
        let output = ends_within(run, SOON);
        let told = stderr(&output);
        assert_eq!(told.matches("error: ").count(), 1, "{told}");
        let name = format!("worker {victim} (");
        assert!(
            told.contains(&name) && told.contains(" died after "),
            "{told}"
        );
        let report = ok(&work, &["report", "results/s"]);
        assert!(report.contains(" died after "), "{report}");
        let begin = std::time::Instant::now();
        while !processes_of(&work).is_empty() {
            assert!(begin.elapsed() < SOON, "processes are left");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
