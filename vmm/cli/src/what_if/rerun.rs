//! Runs of a study with the costs that a window measured: without changes of code, and with them. Nodes boot once: runs with changes go on
//! from a snapshot at the start of the job.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nodescope_loop_tree::SequenceOptions;
use nodescope_verdict::shown;
use serde::Serialize;
use tempfile::TempDir;

use super::args;
use crate::exit::{Exit, Failure};
use crate::predict::read;

/// The times of two runs.
#[derive(Debug, Serialize)]
pub struct Rerun {
    /// Time without changes from the end of MPI's initialisation, picoseconds.
    pub before_ps: u64,
    /// Time with the changes of code, picoseconds.
    pub after_ps: u64,
    /// Gain as a share of the time before.
    pub gain: f64,
}

impl Rerun {
    pub fn text(&self) -> String {
        format!(
            "\nRun with the costs of the window: {}, with the changes of code {}: {:.1} % saved\n",
            shown(self.before_ps),
            shown(self.after_ps),
            100.0 * self.gain
        )
    }
}

/// Name of the snapshot at the start of the job.
const BEFORE_THE_JOB: &str = "job.nss";

/// A study that is run again, each time in a process of its own.
pub struct Reruns<'a> {
    study: &'a Path,
    args: &'a args::WhatIf,
    scratch: TempDir,
    before_ps: u64,
}

impl<'a> Reruns<'a> {
    /// Runs the study without changes.
    pub fn begin(study: &'a Path, args: &'a args::WhatIf) -> Result<Reruns<'a>, Failure> {
        let scratch = tempfile::tempdir();
        let mut runs = Reruns {
            study,
            args,
            scratch: scratch.map_err(Failure::io("create", &std::env::temp_dir()))?,
            before_ps: 0,
        };
        let snapshot = runs.snapshot().into_os_string();
        let save = [
            "--snapshot-at".into(),
            "job".into(),
            "--snapshot-name".into(),
            snapshot,
        ];
        runs.before_ps = runs.time(&save)?;
        Ok(runs)
    }

    /// Runs the study with changes of code, which are options of `nodescope run`.
    pub fn with(&self, changes: &[OsString]) -> Result<Rerun, Failure> {
        let go_on = ["--from".into(), self.snapshot().into_os_string()];
        let after_ps = self.time(&[&go_on, changes].concat())?;
        let saved = self.before_ps as f64 - after_ps as f64;
        Ok(Rerun {
            before_ps: self.before_ps,
            after_ps,
            gain: saved / self.before_ps.max(1) as f64,
        })
    }

    fn snapshot(&self) -> PathBuf {
        self.scratch.path().join(BEFORE_THE_JOB)
    }

    /// Runs the study with further options, and returns the time from the end of MPI's initialisation.
    fn time(&self, options: &[OsString]) -> Result<u64, Failure> {
        let results = self.scratch.path().join("results");
        let program = std::env::current_exe();
        let program = program.map_err(Failure::io("find", Path::new("nodescope")))?;
        let ran = Command::new(&program)
            .args(["run", "--quiet", "--force"])
            .arg(self.study)
            .arg("--results")
            .arg(&results)
            .arg("--costs-of")
            .arg(&self.args.results)
            .args(options)
            .stdout(Stdio::null())
            .status();
        let status = ran.map_err(Failure::io("start", &program))?;
        if !status.success() {
            return Err(Failure::new(
                Exit::JobFailed,
                format!("the run of {} has failed ({status})", self.study.display()),
            ));
        }
        let options = SequenceOptions {
            program: self.args.program,
            ..SequenceOptions::default()
        };
        let (_, sequences) = read(&results, options)?;
        Ok(sequences.spans.iter().copied().max().unwrap_or(0))
    }
}
