//! The job disk of a study: the user's files and the script that starts the job on node 0.

use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use nodescope_hypercall::{INTERVALS_VARIABLE, intervals_value};
use nodescope_image::{ImageError, JobFile, job_disk};

use crate::collect::NodeSelection;
use crate::plan::{Job, Mpi, Program, Study};

/// Shell assignment that preloads the OpenMP tracer into a script, or into a command without a launcher. Ranks that a launcher starts get
/// the tracer from the image.
const OPENMP: &str =
    r#"LD_PRELOAD="/opt/nodescope/lib/libnodescope-openmp.so${LD_PRELOAD:+:$LD_PRELOAD}" "#;

/// Reason why the job disk cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A file cannot be read, although the check of the study found the file.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The archive of the job disk cannot hold the files.
    #[error(transparent)]
    Disk(#[from] ImageError),
}

impl Study {
    /// Returns the job disk: `run`, which starts the job and collects its files, and the files of the study.
    ///
    /// # Errors
    ///
    /// Fails if a file can no longer be read, or if the archive cannot hold the files.
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
                // Other permissions of the file on the host have no meaning in the guest.
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
        // The host file for hydra differs from that for Open MPI, and has a path of its own. Process 1 of the guest sets the variable to
        // Open MPI's, because it does not know which launcher a script starts.
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
                // Each rank runs a shell of its own, because launchers take a program with arguments, no shell command.
                let command = format!("/bin/sh -c {}", quoted(command));
                match self.mpi {
                    // hydra passes the whole environment to the ranks; Open MPI passes only the variables that the command line names.
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
            let selection = match &entry.nodes {
                NodeSelection::First => String::new(),
                NodeSelection::Node(node) => node.to_string(),
                NodeSelection::All => "*".into(),
                NodeSelection::Shared(_) => "shared".into(),
            };
            // A missing file does not change the exit status of the program. The results show which files are missing.
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
