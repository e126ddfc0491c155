//! Runs of a workload on the host itself: natively, or in valgrind's cachegrind.

use std::process::Command;

use crate::Failure;
use crate::session::{Mark, Run, Session, What};
use crate::time::Spent;
use crate::workload::Workload;

/// Command line of cachegrind with the cache sizes of the models. cachegrind simulates only the first and the last level. No output file is
/// written.
pub const CACHEGRIND: [&str; 7] = [
    "valgrind",
    "--tool=cachegrind",
    "--cache-sim=yes",
    "--I1=32768,8,64",
    "--D1=32768,8,64",
    "--LL=20971520,20,64",
    "--cachegrind-out-file=/dev/null",
];

/// Returns the first line that a program prints for `--version`, or a message that the program cannot be run.
pub fn version_of(program: &str, package: &str) -> Result<String, String> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|e| format!("cannot run {program}: {e}; install {package}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Returns the path of a program in `PATH`, or a message that the program is missing.
pub fn find(program: &str, package: &str) -> Result<std::path::PathBuf, String> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| format!("there is no {program}; install {package}"))
}

/// Runs a workload on the host, under a tool if `tool` is not empty. The program measures the processor time of its parts itself, so no
/// figure includes the start of the program or of the tool.
pub fn run(workload: &Workload, tool: &[&str]) -> Result<Session, Failure> {
    let mut words = tool.iter().map(|w| (*w).to_owned());
    let program = workload.host_program.clone();
    let mut command = match words.next() {
        Some(tool) => {
            let mut command = Command::new(tool);
            command.args(words).arg(program);
            command
        }
        None => Command::new(program),
    };
    let output = command
        .args(&workload.arguments)
        .envs(workload.environment.iter().cloned())
        .current_dir(&workload.folder)
        .output()
        .map_err(Failure::Files)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut session = Session::new();
    for mark in text.lines().filter_map(Mark::parse) {
        if let What::Time(cpu) = mark.what {
            let spent = Spent {
                cpu,
                wall: f64::NAN,
            };
            session.insert(
                mark.name,
                Run {
                    instructions: 0,
                    spent,
                },
            );
        }
    }
    match workload
        .rows
        .iter()
        .find(|r| !session.contains_key(&r.name))
    {
        Some(row) => Err(Failure::Host(format!(
            "{} did not come to the end of {}; it said: {}",
            tool.first().unwrap_or(&"the program"),
            row.name,
            String::from_utf8_lossy(&output.stderr)
        ))),
        None => Ok(session),
    }
}
