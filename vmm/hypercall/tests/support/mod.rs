//! Helpers of several test files, which run MPI programs on real hardware with the tracer preloaded.

#![allow(dead_code, reason = "each test file uses a part of this")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Function, MpiRecord, Peer, ThreadId};
use nodescope_test_needs::{Need, have, mpi_abi};

/// Lock that lets one MPI job run at a time: on a small machine, several jobs that start at once take longer than one after the other.
static ONE_JOB: Mutex<()> = Mutex::new(());

/// Flavour of programs that are linked with the standard ABI's library. MPICH 5 runs them here.
pub const ABI: &str = "abi";

/// Returns a command of an MPI: its compiler or its launcher. Returns `None`, so that the test is skipped, where the MPI is absent.
pub fn tool(flavour: &str, name: &str) -> Option<PathBuf> {
    if flavour == ABI {
        let suffix = if name == "mpirun" { "" } else { "_abi" };
        return mpi_abi(&format!("{name}{suffix}"));
    }
    let command = format!("{name}.{flavour}");
    let needed = [command.as_str(), "mpicc.openmpi", "mpicc.mpich"];
    have(Need::Mpi, &needed).then(|| command.into())
}

pub struct Job {
    pub folder: tempfile::TempDir,
    flavour: &'static str,
    launcher: PathBuf,
    /// Command that runs in place of the compiled program; `None` for that program.
    command: Option<PathBuf>,
    _alone: MutexGuard<'static, ()>,
}

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/mpi")
        .join(name)
}

pub fn succeed(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{stderr}",
        output.status
    );
    output
}

/// Returns the folder with the built tracer; each test program builds the tracer once.
pub fn tracer() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let folder = tempfile::tempdir().expect("temporary folder");
            let build =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images/tracer/build");
            succeed(Command::new(build).arg(folder.path()));
            folder
        })
        .path()
}

impl Job {
    /// Compiles a program into the job's folder. Returns `None`, so that the test is skipped, where the compilers or the launcher are
    /// absent.
    pub fn new(flavour: &'static str, compiler: &str, program: &str) -> Option<Job> {
        Job::with_options(flavour, compiler, program, &[])
    }

    /// Compiles a program like [`Job::new`], with options for the compiler.
    pub fn with_options(
        flavour: &'static str,
        compiler: &str,
        program: &str,
        options: &[&str],
    ) -> Option<Job> {
        Job::compiled(flavour, &tool(flavour, compiler)?, program, options)
    }

    /// Compiles a program with plain gcc, so that it isn't linked with MPI.
    pub fn without_mpi(flavour: &'static str, program: &str, options: &[&str]) -> Option<Job> {
        Job::compiled(flavour, Path::new("gcc"), program, options)
    }

    /// Returns a job that runs an installed command. Returns `None`, so that the test is skipped, where the tools of MPI are absent.
    pub fn of_command(flavour: &'static str, command: &str) -> Option<Job> {
        tool(flavour, "mpicc")?;
        Some(Job {
            folder: tempfile::tempdir().expect("temporary folder"),
            flavour,
            launcher: tool(flavour, "mpirun")?,
            command: Some(command.into()),
            _alone: ONE_JOB.lock().unwrap_or_else(PoisonError::into_inner),
        })
    }

    /// Returns this job, changed to run the file `program` in its folder.
    pub fn with_program(self) -> Job {
        Job {
            command: None,
            ..self
        }
    }

    fn compiled(
        flavour: &'static str,
        compiler: &Path,
        program: &str,
        options: &[&str],
    ) -> Option<Job> {
        let launcher = tool(flavour, "mpirun")?;
        let alone = ONE_JOB.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().expect("temporary folder");
        succeed(
            Command::new(compiler)
                .args(["-O1", "-w"])
                .arg("-o")
                .arg(folder.path().join("program"))
                .arg(source(program))
                .args(options),
        );
        Some(Job {
            folder,
            flavour,
            launcher,
            command: None,
            _alone: alone,
        })
    }

    /// Runs the program on `ranks` ranks and returns the records of each rank.
    pub fn run(&self, ranks: usize) -> Vec<Vec<MpiRecord>> {
        self.run_with(ranks, &[])
    }

    /// Runs the program with arguments, checks the sequence numbers, and returns the records of each rank.
    pub fn run_with(&self, ranks: usize, arguments: &[&Path]) -> Vec<Vec<MpiRecord>> {
        let all = self.traced(ranks, arguments, &[], &[]);
        for (rank, records) in all.iter().enumerate() {
            check_sequence(records, rank);
        }
        all
    }

    /// Runs the program with `before` preloaded before the tracer and with variables of the environment. Returns each rank's records in the
    /// order in which the tracer sent them.
    pub fn traced(
        &self,
        ranks: usize,
        arguments: &[&Path],
        before: &[&Path],
        environment: &[(&str, &Path)],
    ) -> Vec<Vec<MpiRecord>> {
        let folder = self.folder.path();
        let mut command = Command::new("timeout");
        command.arg("300").arg(&self.launcher);
        if self.flavour == "openmpi" {
            command.args([
                "--allow-run-as-root",
                "--oversubscribe",
                "--mca",
                "btl",
                "self,vader,tcp",
            ]);
            command.env("OMPI_MCA_mpi_yield_when_idle", "1");
        }
        let program = self.command.clone();
        command
            .args(["-n", &ranks.to_string()])
            .arg(program.unwrap_or_else(|| folder.join("program")))
            .args(arguments);
        // The launcher of MPICH starts programs of both ABIs, so MPICH's tracer must find out which ABI the program has.
        let preloaded = if self.flavour == ABI {
            "mpich"
        } else {
            self.flavour
        };
        let tracer = tracer().join(format!("libnodescope-mpi-{preloaded}.so"));
        let mut preload = OsString::new();
        for library in before.iter().copied().chain([tracer.as_path()]) {
            preload.push(library);
            preload.push(":");
        }
        command.env("LD_PRELOAD", preload);
        command.env("NODESCOPE_TRACE_DUMP", folder.join("dump"));
        command.envs(environment.iter().copied());
        succeed(&mut command);
        let records = |rank| {
            let dump = std::fs::read(folder.join(format!("dump.{rank}")));
            MpiRecord::decode_all(&dump.expect("the rank's dump")).expect("well-formed records")
        };
        (0..ranks).map(records).collect()
    }
}

/// Checks that the calls of each thread are numbered from 0 without gaps or repetitions, and that all records have the caller's rank and
/// success.
pub fn check_sequence(records: &[MpiRecord], rank: usize) {
    let mut threads: BTreeMap<ThreadId, Vec<u64>> = BTreeMap::new();
    for record in records {
        threads
            .entry(record.thread)
            .or_default()
            .push(record.sequence);
        assert_eq!(record.rank, Peer::Rank(rank as u32), "{record:?}");
        assert_eq!(record.result, 0, "{record:?}");
    }
    for numbers in threads.values_mut() {
        numbers.sort_unstable();
        assert_eq!(*numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    }
}

/// Returns the function's name as the program calls it, with the suffix `_c` for the large-count form.
pub fn called(record: &MpiRecord) -> String {
    let suffix = if record.flags.contains(Flags::LARGE_COUNT) {
        "_c"
    } else {
        ""
    };
    format!("{}{suffix}", record.function)
}

pub fn counts(records: &[MpiRecord]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for record in records {
        *counts.entry(called(record)).or_default() += record.calls;
    }
    counts
}

pub fn of(records: &[MpiRecord], function: Function) -> Vec<&MpiRecord> {
    records
        .iter()
        .filter(|record| record.function == function)
        .collect()
}

pub fn only(records: &[MpiRecord], function: Function) -> &MpiRecord {
    match of(records, function)[..] {
        [record] => record,
        ref several => panic!("{} records of {function}", several.len()),
    }
}

pub fn rank_of(rank: usize) -> Peer {
    Peer::Rank(rank as u32)
}
