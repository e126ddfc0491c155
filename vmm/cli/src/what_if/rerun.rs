//! Runs of a study with the costs that a window measured: without changes of code, and with them.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use nodescope_loop_tree::SequenceOptions;
use nodescope_verdict::shown;
use serde::Serialize;

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
            "\nRun with the costs that the window measured: {}, with the changes of code {}: {:.1} % saved\n",
            shown(self.before_ps),
            shown(self.after_ps),
            100.0 * self.gain
        )
    }
}

/// Runs a study twice, each time in a process of its own.
pub fn rerun(study: &Path, args: &args::WhatIf) -> Result<Rerun, Failure> {
    let scratch = tempfile::tempdir();
    let scratch = scratch.map_err(Failure::io("create", &std::env::temp_dir()))?;
    let time = |name: &str, changes: &[OsString]| {
        let results = scratch.path().join(name);
        let program = std::env::current_exe();
        let program = program.map_err(Failure::io("find", Path::new("nodescope")))?;
        let ran = Command::new(&program)
            .args(["run", "--quiet"])
            .arg(study)
            .arg("--results")
            .arg(&results)
            .arg("--costs-of")
            .arg(&args.results)
            .args(changes)
            .stdout(std::process::Stdio::null())
            .status();
        let status = ran.map_err(Failure::io("start", &program))?;
        if !status.success() {
            return Err(Failure::new(
                Exit::JobFailed,
                format!("the run of {} has failed ({status})", study.display()),
            ));
        }
        let options = SequenceOptions {
            program: args.program,
            ..SequenceOptions::default()
        };
        let (_, sequences) = read(&results, options)?;
        Ok(sequences.spans.iter().copied().max().unwrap_or(0))
    };
    let before_ps = time("before", &[])?;
    let after_ps = time("after", &args.code.options())?;
    Ok(Rerun {
        before_ps,
        after_ps,
        gain: (before_ps as f64 - after_ps as f64) / before_ps.max(1) as f64,
    })
}
