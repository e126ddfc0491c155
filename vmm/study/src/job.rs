//! The job disk of a study: the user's files and the script that starts the job on node 0.

use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use nodescope_hypercall::{INTERVALS_VARIABLE, intervals_value};
use nodescope_image::{ImageError, JobFile, job_disk};

use crate::collect::NodeSelection;
use crate::plan::{Job, Mpi, Program, Study};

/// Setting of the shell that gives the OpenMP tracer to a program without a launcher. Ranks get the tracer from the image, where their
/// launchers start them.
const OPENMP: &str =
    r#"LD_PRELOAD="/opt/nodescope/lib/libnodescope-openmp.so${LD_PRELOAD:+:$LD_PRELOAD}" "#;

/// Reasons why the job disk cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A file has gone or changed since the study was checked.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The archive of the job disk does not take the file.
    #[error(transparent)]
    Disk(#[from] ImageError),
}

impl Study {
    /// Returns the job disk: `run`, which starts the job and collects its files, and the files of the study.
    ///
    /// # Errors
    ///
    /// A file that can no longer be read.
    pub fn job_disk(&self) -> Result<Vec<u8>, JobError> {
        let mut files = vec![JobFile {
            path: "run".into(),
            mode: 0o755,
            data: self.job.start_script().into_bytes(),
        }];
        let script = match &self.job.program {
            Program::Script(path) => Some((path.clone(), "script".to_owned())),
            Program::Command(_) => None,
        };
        for (path, name) in script.iter().chain(&self.job.files) {
            let fail = |source| JobError::Read {
                path: path.clone(),
                source,
            };
            let mode = std::fs::metadata(path).map_err(fail)?.permissions().mode();
            let executable = mode & 0o111 != 0 || name == "script";
            files.push(JobFile {
                path: name.clone(),
                // The owner's rights on the host have no meaning in the guest.
                mode: if executable { 0o755 } else { 0o644 },
                data: std::fs::read(path).map_err(fail)?,
            });
        }
        Ok(job_disk(&files)?)
    }
}

impl Job {
    /// Returns the shell script `/job/run`: environment, program, collection of files, exit status of the program.
    pub fn start_script(&self) -> String {
        let mut script = String::from("#!/bin/sh\ncd /job || exit 1\n");
        let mut line = |text: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = writeln!(script, "{text}");
        };
        line(format_args!("export NODESCOPE_RANKS={}", self.ranks));
        for (name, value) in &self.environment {
            line(format_args!("export {name}={}", quoted(value)));
        }
        if !self.openmp_intervals.is_empty() {
            let value = intervals_value(&self.openmp_intervals);
            line(format_args!(
                "export {INTERVALS_VARIABLE}={}",
                quoted(&value)
            ));
        }
        // Open MPI's and hydra's host files differ, and process 1 does not know whose launcher a script starts.
        if self.mpi == Mpi::Mpich {
            line(format_args!(
                "export NODESCOPE_HOSTFILE=\"$NODESCOPE_HOSTFILE.hydra\""
            ));
        }
        let preload = if self.openmp { OPENMP } else { "" };
        match &self.program {
            Program::Script(_) => line(format_args!("{preload}./script")),
            Program::Command(command) => {
                let ranks = self.ranks;
                // A shell of each rank's own: launchers take a program and its arguments.
                let command = format!("/bin/sh -c {}", quoted(command));
                match self.mpi {
                    // hydra passes the environment on, Open MPI only the variables that the command line names.
                    Mpi::Openmpi => {
                        let names = self.environment.keys().map(String::as_str);
                        let intervals = !self.openmp_intervals.is_empty();
                        let names = names.chain(intervals.then_some(INTERVALS_VARIABLE));
                        let pass: String = names.map(|name| format!(" -x {name}")).collect();
                        line(format_args!(
                            "mpirun.openmpi -np {ranks} --hostfile \"$NODESCOPE_HOSTFILE\"{pass} {command}"
                        ));
                    }
                    Mpi::Mpich => line(format_args!("mpiexec.hydra -n {ranks} {command}")),
                    Mpi::None => line(format_args!("{preload}{command}")),
                }
            }
        }
        line(format_args!("status=$?"));
        for entry in &self.collect {
            let selection = match entry.nodes {
                NodeSelection::First => String::new(),
                NodeSelection::Node(node) => node.to_string(),
                NodeSelection::All => "*".into(),
            };
            // The status stays the program's; the results show which files are missing.
            line(format_args!(
                "/opt/nodescope/collect {} {}",
                quoted(&selection),
                quoted(&entry.path)
            ));
        }
        line(format_args!("exit \"$status\""));
        script
    }
}

/// Quotes a text as one word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
