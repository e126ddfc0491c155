//! Programs that run on this machine under the tracer.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use nodescope_openmp::Record;
use nodescope_test_needs::{Need, have};
use tempfile::TempDir;

/// Returns the folder with the tracer, built once for all tests of a file; `None` where gcc is missing.
pub fn tracer() -> Option<&'static Path> {
    static TRACER: OnceLock<TempDir> = OnceLock::new();
    if !have(Need::Compiler, &["gcc"]) {
        return None;
    }
    let folder = TRACER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let script = manifest("../../../guest-images/tracer/build");
        let output = Command::new(script)
            .arg(folder.path())
            .arg("openmp")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        folder
    });
    Some(folder.path())
}

fn manifest(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A program of `tests/programs`, compiled.
pub struct Program {
    folder: TempDir,
}

impl Program {
    /// Compiles a program; returns `None` where the compiler is missing.
    pub fn new(compiler: &str, source: &str, options: &[&str]) -> Option<Program> {
        if !have(Need::Compiler, &[compiler]) {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new(compiler)
            .args(["-fopenmp", "-g", "-o"])
            .arg(folder.path().join("program"))
            .args(options)
            .arg("-I")
            .arg(manifest("../../../guest-images/tracer"))
            .arg(manifest("tests/programs").join(source))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler}: {text}");
        Some(Program { folder })
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// Returns a command that runs the program under the tracer, with records in the folder `log`.
    pub fn command(&self, tracer: &Path, log: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(self.path());
        command
            .args(args)
            .env("LD_PRELOAD", tracer.join("libnodescope-openmp.so"))
            .env("NODESCOPE_OPENMP_LOG", log)
            .env("OMP_NUM_THREADS", "4")
            .env("OMP_DYNAMIC", "false")
            .env("OMP_MAX_ACTIVE_LEVELS", "2");
        command
    }

    /// Runs the program, and returns its output, the paths of its records, and the folder of the records.
    pub fn run(&self, tracer: &Path, args: &[&str]) -> (Output, Vec<PathBuf>, TempDir) {
        let log = tempfile::tempdir().unwrap();
        let output = self.command(tracer, log.path(), args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {text}");
        let mut paths: Vec<PathBuf> = (log.path().read_dir().unwrap())
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        (output, paths, log)
    }

    /// Runs the program and reads its only record.
    pub fn record(&self, tracer: &Path, args: &[&str]) -> Record {
        let (_, paths, _log) = self.run(tracer, args);
        assert_eq!(paths.len(), 1, "{paths:?}");
        Record::read(&paths[0]).unwrap()
    }
}
