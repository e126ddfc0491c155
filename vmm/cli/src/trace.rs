//! `nodescope trace`.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_config::quantity::Time;
use nodescope_host_trace::tracer::{Mpi, library};
use nodescope_host_trace::{HostTraceError, SUFFIX, Summary, merge};
use nodescope_image::{ImageSpec, Recipe};
use tempfile::TempPath;

use crate::args::{self, MpiName};
use crate::exit::{Exit, Failure};
use crate::interrupt::outlive_signals;
use crate::terminal::print;

/// Folder of the processes' logs, in the results folder.
const LOGS: &str = "calls";

/// A library that ranks load besides the tracer. The tracer calls it in place of the MPI library.
pub struct RankLibrary {
    /// Beginning of the library's file name, before the MPI's name, such as `libnodescope-replay`.
    pub name: &'static str,
    /// Variables that the ranks get in their environment: names and values.
    pub environment: Vec<(&'static str, OsString)>,
}

/// Traces an MPI program on this machine.
pub fn trace(args: &args::Trace) -> Result<Exit, Failure> {
    trace_with(args, None)
}

/// Traces an MPI program on this machine, optionally with a library between the tracer and the MPI library.
pub fn trace_with(args: &args::Trace, rank_library: Option<&RankLibrary>) -> Result<Exit, Failure> {
    let trace = args.output.join(TRACE_FILE);
    if trace.exists() && !args.force {
        return Err(Failure::new(
            Exit::Study,
            format!(
                "{} is there already; give another folder, or --force to replace it",
                trace.display()
            ),
        ));
    }
    let mpi = mpi(args.mpi, &args.command[0])?;
    let library = library(mpi, &sources()?, &cache()?).map_err(fail)?;
    let logs = args.output.join(LOGS);
    let earlier = logs_in(&logs)?;
    if !earlier.is_empty() && !args.force {
        return Err(Failure::new(
            Exit::Study,
            format!(
                "{} holds logs of an earlier trace; give another folder, or --force to replace them",
                logs.display()
            ),
        ));
    }
    remove_files(&earlier)?;
    fs::create_dir_all(&logs).map_err(Failure::io("create", &logs))?;
    let logs = fs::canonicalize(&logs).map_err(Failure::io("open", &logs))?;
    let mut environment = vec![("NODESCOPE_TRACE_LOG", logs.clone().into_os_string())];
    let mut libraries = vec![library.clone()];
    if let Some(rank_library) = rank_library {
        if mpi == Mpi::StandardAbi {
            return Err(Failure::new(
                Exit::Study,
                "recordings and replays of ranks do not know the standard ABI of MPI; link the program with the MPI's own library in place of libmpi_abi.so.1, and give --mpi openmpi or --mpi mpich",
            ));
        }
        let name = format!("{}-{}.so", rank_library.name, mpi.name());
        libraries.push(library.with_file_name(name));
        environment.extend(rank_library.environment.iter().cloned());
    }
    let status = run(&args.command, &libraries, &environment, &logs)?;
    let summary = merge(&logs, &trace, Some(status)).map_err(fail)?;
    if !args.keep_logs {
        remove_files(&logs_in(&logs)?)?;
        // This fails if the user has files in the folder; the folder then remains.
        let _ = fs::remove_dir(&logs);
    }
    print(&text(&summary, &trace))?;
    if status == 0 {
        Ok(Exit::Ok)
    } else {
        tracing::warn!(
            "the command ended with status {status}; the trace is of what it did until then"
        );
        Ok(Exit::JobFailed)
    }
}

/// Returns the processes' logs in a folder, recognized by the extension that the tracer gives them. Other files there are the user's.
fn logs_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::io("list", folder)(error)),
    };
    let mut logs = Vec::new();
    for entry in entries {
        let path = entry.map_err(Failure::io("list", folder))?.path();
        let named = path.extension().is_some_and(|suffix| suffix == SUFFIX);
        if named && fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
            logs.push(path);
        }
    }
    Ok(logs)
}

pub fn remove_files(files: &[PathBuf]) -> Result<(), Failure> {
    (files.iter()).try_for_each(|file| fs::remove_file(file).map_err(Failure::io("remove", file)))
}

fn text(summary: &Summary, trace: &Path) -> String {
    let calls = summary.calls.max(1);
    let mut text = format!(
        "{}: {} rank{}{} on {} node{}, {} MPI calls, {}\n",
        trace.display(),
        summary.ranks,
        if summary.ranks == 1 { "" } else { "s" },
        match summary.programs {
            0 | 1 => String::new(),
            programs => format!(" of {programs} programs"),
        },
        summary.nodes.len(),
        if summary.nodes.len() == 1 { "" } else { "s" },
        summary.calls,
        time(summary.span),
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "  the tracer took {} a call, which is kept apart from both the calls and the work between them",
        time(summary.own / calls)
    );
    text
}

/// Formats a measured time with one decimal.
fn time(picoseconds: u64) -> String {
    Time(picoseconds).rounded(1)
}

pub fn fail(error: HostTraceError) -> Failure {
    let exit = match error {
        HostTraceError::NothingTraced => Exit::Study,
        _ => Exit::Host,
    };
    Failure::of(exit, &error)
}

/// Returns the MPI library that the user names, or else the one of the launcher.
pub fn mpi(named: Option<MpiName>, launcher: &OsString) -> Result<Mpi, Failure> {
    match named {
        Some(MpiName::Openmpi) => Ok(Mpi::OpenMpi),
        Some(MpiName::Mpich) => Ok(Mpi::Mpich),
        Some(MpiName::Abi) => Ok(Mpi::StandardAbi),
        None => mpi_of(launcher),
    }
}

/// Returns the MPI library of a launcher, as its `--version` output names it.
fn mpi_of(launcher: &OsString) -> Result<Mpi, Failure> {
    let output = Command::new(launcher)
        .arg("--version")
        .output()
        .map_err(|error| cannot_start(launcher, &error))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Mpi::of_version(&text).ok_or_else(|| {
        Failure::new(
            Exit::Study,
            format!(
                "{} does not say whose MPI it starts; add --mpi openmpi, --mpi mpich or --mpi abi",
                launcher.display()
            ),
        )
    })
}

pub fn cannot_start(command: &OsString, error: &std::io::Error) -> Failure {
    Failure::new(
        Exit::Host,
        format!("cannot start {}: {error}", command.display()),
    )
}

/// End of the script by which Open MPI starts a rank. Open MPI passes the program's name as it is on the command line. A name without a
/// slash is looked up in `PATH`, then in the working folder. The guest's script, `guest-images/debian/root/opt/nodescope/rank`, has the
/// same end.
const START_PROGRAM: &str = r#"program=$1
shift
in_path() {
    case $program in */*) return ;; esac
    set -f
    IFS=:
    for folder in $PATH; do
        [ -f "$folder/$program" ] && [ -x "$folder/$program" ] && return
    done
    return 1
}
(in_path) || [ ! -x "./$program" ] || program=./$program
exec "$program" "$@"
"#;

/// Runs the command with these libraries in its processes, and returns the exit status: 128 plus the signal's number if a signal ended it.
fn run(
    command: &[OsString],
    libraries: &[PathBuf],
    environment: &[(&str, OsString)],
    logs: &Path,
) -> Result<i32, Failure> {
    // Ctrl-C also reaches the command. This process must survive the signal to write the trace until then.
    outlive_signals()?;
    let mut preload = OsString::new();
    for (number, library) in libraries.iter().enumerate() {
        preload.push(if number == 0 { "" } else { ":" });
        preload.push(library);
    }
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        preload.push(":");
        preload.push(before);
    }
    let mut program = Command::new(&command[0]);
    // The script must exist until the command has ended.
    let agent = fork_agent(libraries, environment, logs)?;
    if let Some(agent) = &agent {
        program.env("OMPI_MCA_orte_fork_agent", agent.as_os_str());
    }
    let status = program
        .args(&command[1..])
        .env("LD_PRELOAD", &preload)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .status()
        .map_err(|error| cannot_start(&command[0], &error))?;
    Ok(status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
}

/// Writes the script by which Open MPI starts its ranks. Ranks on other nodes lack this process's environment, and the script sets it. Open
/// MPI also has a list of variables for ranks, but refuses the list beside `mpirun -x`. The script is in the folder of logs, which other
/// nodes can read, and has a name of its own. The script is removed when the caller drops the path. Returns `None` where the folder's path
/// is not UTF-8 or has a blank, at which Open MPI would split it; ranks on this node need no script.
fn fork_agent(
    libraries: &[PathBuf],
    environment: &[(&str, OsString)],
    logs: &Path,
) -> Result<Option<TempPath>, Failure> {
    if logs
        .to_str()
        .is_none_or(|text| text.contains(char::is_whitespace))
    {
        return Ok(None);
    }
    let mut script = String::from("#!/bin/sh\n");
    // The script puts each library before those that are in LD_PRELOAD already, so the first library is handled last.
    for library in libraries.iter().rev() {
        let library = quoted(library.as_os_str())?;
        // A rank on this node has the library in LD_PRELOAD already.
        let _ = write!(
            script,
            "case \":$LD_PRELOAD:\" in\n*:{library}:*) ;;\n\
             *) export LD_PRELOAD={library}\"${{LD_PRELOAD:+:$LD_PRELOAD}}\" ;;\nesac\n"
        );
    }
    for (name, value) in environment {
        let _ = writeln!(script, "export {name}={}", quoted(value)?);
    }
    script.push_str(START_PROGRAM);
    let mut file = tempfile::Builder::new()
        .prefix("rank-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempfile_in(logs)
        .map_err(Failure::io("write to", logs))?;
    file.write_all(script.as_bytes())
        .map_err(Failure::io("write", file.path()))?;
    // The system runs no script that is open for writing, so the file is closed here.
    Ok(Some(file.into_temp_path()))
}

/// Returns a path or text as one quoted word of the shell.
fn quoted(word: &OsStr) -> Result<String, Failure> {
    let text = word.to_str().ok_or_else(|| {
        Failure::new(
            Exit::Study,
            format!("{} is not UTF-8; use another folder", word.display()),
        )
    })?;
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

/// Returns the folder of the tracers' sources, which the recipe of the guest images names.
pub fn sources() -> Result<PathBuf, Failure> {
    let recipe = ImageSpec::debian().recipe;
    let tools = Recipe::read(&recipe).map_err(|error| Failure::of(Exit::Host, &error))?;
    Ok(recipe.join(tools.tools))
}

pub fn cache() -> Result<PathBuf, Failure> {
    let images =
        nodescope_image::default_cache_dir().map_err(|error| Failure::of(Exit::Host, &error))?;
    Ok(images.with_file_name("tracer"))
}

#[cfg(test)]
mod tests {
    use super::START_PROGRAM;

    #[test]
    fn programs_are_found_alike_on_real_machines_and_in_guests() {
        let guest = include_str!("../../../guest-images/debian/root/opt/nodescope/rank");
        assert!(guest.ends_with(START_PROGRAM), "{guest}");
    }
}
