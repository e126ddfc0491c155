//! Tests with programs under Open MPI and MPICH. All ranks are recorded, then each is replayed by one process without the others. The
//! replay must make the rank's MPI calls, as the tracer records them, and print what the rank printed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nodescope_hypercall::{Function, MpiRecord, ThreadId};
use nodescope_test_needs::{Need, have};

/// Lock under which one MPI job runs at a time: on a small machine, several jobs at once start more slowly than one after the other.
static ONE_JOB: Mutex<()> = Mutex::new(());
const RANKS: u32 = 4;

/// A program that is compiled with one MPI, and the folder of its files.
struct Job {
    flavour: &'static str,
    folder: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

fn output(command: &mut Command) -> Output {
    let output = command.output();
    output.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeed(command: &mut Command) -> String {
    let output = output(command);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{out}\n{error}",
        output.status
    );
    out
}

/// Returns the folder of the tracer and replay libraries, which are built once for all tests.
fn libraries() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let build = || {
        let folder = tempfile::tempdir().unwrap();
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images/tracer/build");
        succeed(Command::new(build).arg(folder.path()));
        folder
    };
    BUILT.get_or_init(build).path()
}

impl Job {
    /// Compiles a program of `programs/`. Skips the test and returns `None` where the compilers or launchers are absent.
    fn new(flavour: &'static str, source: &str) -> Option<Job> {
        let compiler = if source.ends_with(".f90") {
            "mpifort"
        } else {
            "mpicc"
        };
        let compiler = format!("{compiler}.{flavour}");
        let launcher = format!("mpirun.{flavour}");
        if !have(
            Need::Mpi,
            &[&compiler, "mpicc.openmpi", "mpicc.mpich", &launcher],
        ) {
            return None;
        }
        let alone = ONE_JOB.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("programs")
            .join(source);
        succeed(
            Command::new(compiler)
                .args(["-O1", "-w", "-o"])
                .arg(folder.path().join("program"))
                .arg(source)
                .arg("-lm"),
        );
        Some(Job {
            flavour,
            folder,
            _alone: alone,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the value for `LD_PRELOAD`: the tracer if `traced`, then the replay library.
    fn preload(&self, traced: bool) -> OsString {
        let library =
            |name: &str| libraries().join(format!("libnodescope-{name}-{}.so", self.flavour));
        let mut preload = OsString::new();
        if traced {
            preload.push(library("mpi"));
            preload.push(":");
        }
        preload.push(library("replay"));
        preload
    }

    fn recording_command(&self, arguments: &[&str], traced: bool) -> Command {
        let mut command = Command::new("timeout");
        command.arg("120").arg(format!("mpirun.{}", self.flavour));
        if self.flavour == "openmpi" {
            command.args(["--allow-run-as-root", "--oversubscribe"]);
            command.env("OMPI_MCA_mpi_yield_when_idle", "1");
        }
        command
            .args(["-n", &RANKS.to_string()])
            .arg(self.path("program"))
            .args(arguments)
            .env("LD_PRELOAD", self.preload(traced))
            .env("NODESCOPE_RECORD", self.path("recording"));
        if traced {
            command.env("NODESCOPE_TRACE_DUMP", self.path("original"));
        }
        command
    }

    fn replay_command(&self, rank: u32, arguments: &[&str], traced: bool) -> Command {
        let mut command = Command::new("timeout");
        command
            .arg("120")
            .arg(self.path("program"))
            .args(arguments)
            .env("LD_PRELOAD", self.preload(traced))
            .env(
                "NODESCOPE_REPLAY",
                self.path("recording").join(format!("rank-{rank}")),
            );
        if traced {
            command.env("NODESCOPE_TRACE_DUMP", self.path("replayed"));
        }
        command
    }

    /// Returns the records of a rank out of a dump, with the ids of process, thread and launch cleared.
    fn records(&self, dump: &str, rank: u32) -> Vec<MpiRecord> {
        let bytes = std::fs::read(self.path(&format!("{dump}.{rank}"))).unwrap();
        let mut records = MpiRecord::decode_all(&bytes).unwrap();
        for record in &mut records {
            record.thread = ThreadId::default();
            // A replay is no program of the launcher that recorded.
            if record.function == Function::Init || record.function == Function::InitThread {
                record.object = 0;
            }
        }
        records
    }

    /// Records all ranks in one run and replays each. Checks that the replay prints the same lines and makes the same calls.
    fn check(&self, arguments: &[&str]) {
        let printed = succeed(&mut self.recording_command(arguments, true));
        for rank in 0..RANKS {
            let replayed = succeed(&mut self.replay_command(rank, arguments, true));
            let of_rank = format!("rank {rank} of {RANKS}:");
            let expected: Vec<&str> = printed
                .lines()
                .filter(|line| line.starts_with(&of_rank))
                .collect();
            assert!(
                !expected.is_empty(),
                "rank {rank} printed nothing:\n{printed}"
            );
            assert_eq!(
                replayed.lines().collect::<Vec<_>>(),
                expected,
                "{} rank {rank}",
                self.flavour
            );
            let original = self.records("original", rank);
            let replayed = self.records("replayed", rank);
            assert_eq!(
                original.len(),
                replayed.len(),
                "{} rank {rank}",
                self.flavour
            );
            for (number, (a, b)) in original.iter().zip(&replayed).enumerate() {
                assert_eq!(a, b, "{} rank {rank}, record {number}", self.flavour);
            }
        }
    }
}

fn both(source: &str, check: impl Fn(&Job)) {
    for flavour in ["openmpi", "mpich"] {
        if let Some(job) = Job::new(flavour, source) {
            check(&job);
        }
    }
}

#[test]
fn halos() {
    both("jacobi.c", |job| job.check(&[]));
}

#[test]
fn wavefronts() {
    both("wavefront.c", |job| job.check(&[]));
}

#[test]
fn ranks_that_all_differ() {
    both("different.c", |job| job.check(&[]));
}

#[test]
fn wildcards_and_orders_of_completion() {
    both("wildcards.c", |job| job.check(&[]));
}

#[test]
fn every_kind_of_call() {
    both("kinds.c", |job| job.check(&[]));
}

#[test]
fn fortran() {
    both("heat.f90", |job| job.check(&[]));
}

#[test]
fn without_the_tracer() {
    both("wildcards.c", |job| {
        let printed = succeed(&mut job.recording_command(&[], false));
        let replayed = succeed(&mut job.replay_command(0, &[], false));
        assert!(
            printed.contains(replayed.trim_end()),
            "{printed}\n{replayed}"
        );
    });
}

#[test]
fn chosen_ranks_alone_are_recorded() {
    both("jacobi.c", |job| {
        succeed(
            job.recording_command(&[], false)
                .env("NODESCOPE_RECORD_RANKS", "0,3"),
        );
        let there = |rank: u32| job.path("recording").join(format!("rank-{rank}")).exists();
        assert_eq!([0, 1, 2, 3].map(there), [true, false, false, true]);
    });
}

/// Runs a replay that must fail with exit status 127, and returns its standard error.
fn message_of(job: &Job, rank: u32, arguments: &[&str]) -> String {
    let replay = output(&mut job.replay_command(rank, arguments, true));
    let message = text(&replay.stderr);
    assert_eq!(replay.status.code(), Some(127), "{message}");
    message
}

#[test]
fn other_input_diverges_at_the_first_other_call() {
    both("jacobi.c", |job| {
        succeed(&mut job.recording_command(&["40", "64"], false));
        let message = message_of(job, 1, &["40", "65"]);
        for part in [
            "the replay of rank 1 diverges at call 1.",
            "recorded: MPI_Irecv, communicator 0, source 0, tag received 1, room for 512 bytes",
            "made:     MPI_Irecv, communicator 0, source 0, tag received 1, room for 520 bytes",
        ] {
            assert!(message.contains(part), "{message}");
        }
        // Fewer sweeps: the program makes another call where the recording has a receive.
        let message = message_of(job, 1, &["5", "64"]);
        for part in [
            "at call 26.",
            "recorded: MPI_Irecv",
            "made:     MPI_Finalize",
        ] {
            assert!(message.contains(part), "{message}");
        }
        // More sweeps than were recorded.
        let message = message_of(job, 1, &["41", "64"]);
        assert!(message.contains("recorded: MPI_Finalize"), "{message}");
    });
}

#[test]
fn functions_that_recordings_do_not_cover_are_named() {
    both("refused.c", |job| {
        let recorded = output(&mut job.recording_command(&[], false));
        let message = text(&recorded.stderr) + &text(&recorded.stdout);
        assert!(!recorded.status.success(), "{message}");
        assert!(
            message.contains("recordings do not cover MPI_Win_create"),
            "{message}"
        );
    });
}

#[test]
fn damaged_recordings_are_told() {
    both("jacobi.c", |job| {
        succeed(&mut job.recording_command(&[], false));
        let path = job.path("recording").join("rank-1");
        let whole = std::fs::read(&path).unwrap();
        for (bytes, part) in [
            (&whole[..0], "no recording of a rank"),
            (&whole[..whole.len() / 16 * 8 + 8], "recording"),
            (
                &b"something else that is long enough for a header"[..],
                "no recording of a rank",
            ),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let message = message_of(job, 1, &[]);
            assert!(message.contains(part), "{message}");
        }
        // Bytes that are no valid entry.
        let mut changed = whole.clone();
        changed[32..40].copy_from_slice(&[0xff; 8]);
        std::fs::write(&path, &changed).unwrap();
        let message = message_of(job, 1, &[]);
        assert!(message.contains("the recording is damaged"), "{message}");
    });
}

#[test]
fn a_replay_is_one_process() {
    both("jacobi.c", |job| {
        succeed(&mut job.recording_command(&[], false));
        let mut command = job.recording_command(&[], false);
        command.env_remove("NODESCOPE_RECORD");
        command.env("NODESCOPE_REPLAY", job.path("recording").join("rank-0"));
        let run = output(&mut command);
        let message = text(&run.stderr) + &text(&run.stdout);
        assert!(
            !run.status.success() && message.contains("a replay is one process"),
            "{message}"
        );
    });
}
