//! Reader of `[job]`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use nodescope_hypercall::{CallInterval, MOST_INTERVALS};
use nodescope_machine::topology::NodeTopology;

use super::resolve;
use crate::collect::Collect;
use crate::plan::{Job, Mpi, Program, SharedFileSystem};
use nodescope_config::reader::{Item, Section};

/// Names in `/job` that nodescope uses itself, for the start script and for the user's script.
const RESERVED: [&str; 2] = ["run", "script"];

/// Maximum number of entries of `collect`. The limit exists because each entry is compared with all others.
const MOST_COLLECTED: usize = 1000;

pub(super) fn read(
    folder: &Path,
    section: &Section<'_>,
    nodes: u32,
    topology: &NodeTopology,
    shared: Option<&SharedFileSystem>,
) -> Job {
    let mpi = section
        .item("mpi")
        .and_then(|item| {
            item.choice(
                "an MPI",
                &[
                    ("openmpi", Mpi::Openmpi),
                    ("mpich", Mpi::Mpich),
                    ("none", Mpi::None),
                ],
            )
        })
        .unwrap_or(Mpi::Openmpi);
    let slots = section
        .item("slots")
        .and_then(|item| item.count(1..=4096))
        .unwrap_or_else(|| topology.vcpus());
    let room = slots.saturating_mul(nodes);
    let ranks_item = section.item("ranks");
    let ranks = ranks_item
        .as_ref()
        .and_then(|item| item.count(1..=1_000_000));
    let default = if mpi == Mpi::None { 1 } else { room };
    let ranks = ranks.unwrap_or(default);
    if let Some(item) = &ranks_item {
        if mpi == Mpi::None && ranks != 1 {
            item.add_problem(
                "with mpi = \"none\" the command runs once; leave out ranks, or choose an MPI",
            );
        } else if ranks > room {
            item.add_problem(format!(
                "is {ranks}, but {nodes} nodes with {slots} slots each have room for {room}; lower it, or raise cluster.nodes, node.cores or job.slots"
            ));
        }
    }
    let program = program(folder, section, mpi);
    let files = section
        .item("files")
        .map(|item| files(folder, &item))
        .unwrap_or_default();
    let mut collect = Vec::new();
    let folder = shared.map(|shared| shared.path.as_str());
    if let Some(item) = section.item("collect") {
        let entries = item.lines("hpccoutf.txt");
        if entries.len() > MOST_COLLECTED {
            item.add_problem(format!(
                "has {} entries; give at most {MOST_COLLECTED}, for example as patterns",
                entries.len()
            ));
        }
        for (item, text) in entries.into_iter().take(MOST_COLLECTED) {
            match Collect::parse(&text, nodes, folder) {
                Err(problem) => item.add_problem(format!("{text:?} {problem}")),
                Ok(entry) if collect.iter().any(|other| entry.collides(other)) => {
                    item.add_problem(format!("{text:?} has the name of another collected file, which it would overwrite; rename one"));
                }
                Ok(entry) => collect.push(entry),
            }
        }
    }
    let trace = section
        .item("trace")
        .and_then(|item| item.boolean())
        .unwrap_or(mpi != Mpi::None);
    let openmp = section
        .item("openmp")
        .and_then(|item| item.boolean())
        .unwrap_or(false);
    let openmp_intervals = section
        .item("openmp_intervals")
        .map(|item| {
            if !(openmp && trace && mpi != Mpi::None) {
                item.add_problem(
                    "needs the OpenMP tracer and the MPI tracer; set job.openmp = true, and let job.trace and job.mpi not switch the MPI tracer off",
                );
            }
            intervals(&item)
        })
        .unwrap_or_default();
    let mut environment = BTreeMap::new();
    let table = section.section("environment");
    for (name, item) in table.free_entries() {
        let plain = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !plain {
            item.add_problem(format!("{name:?} cannot name an environment variable; use letters, digits and \"_\", no digit first"));
        }
        if let Some(value) = item.text("4") {
            if value.contains(['\0', '\n']) {
                item.add_problem("holds a line break or a NUL; write it in one line");
            }
            environment.insert(name, value);
        }
    }
    Job {
        program,
        ranks,
        mpi,
        slots,
        files,
        collect,
        trace,
        openmp,
        openmp_intervals,
        environment,
    }
}

/// Reads `openmp_intervals`: the intervals between MPI calls for the OpenMP tracer.
fn intervals(item: &Item<'_>) -> Vec<CallInterval> {
    let lines = item.lines("MPI_Barrier:1..MPI_Barrier:2");
    if lines.len() > MOST_INTERVALS {
        item.add_problem(format!(
            "has {} intervals; give at most {MOST_INTERVALS}",
            lines.len()
        ));
    }
    let read = |(item, text): (Item<'_>, String)| match text.parse() {
        Ok(interval) => Some(interval),
        Err(problem) => {
            item.add_problem(format!("{text:?}: {problem}"));
            None
        }
    };
    lines.into_iter().filter_map(read).collect()
}

/// Returns the first word of a shell command that names a launcher of MPI ranks, such as `mpirun`; `None` without such a word.
fn launcher(command: &str) -> Option<&str> {
    let words = command.split(|c: char| c.is_whitespace() || ";&|()".contains(c));
    words.into_iter().find(|word| {
        let name = word.rsplit('/').next().unwrap_or_default();
        let stem = name.split('.').next().unwrap_or_default();
        matches!(stem, "mpirun" | "mpiexec" | "orterun")
    })
}

fn program(folder: &Path, section: &Section<'_>, mpi: Mpi) -> Program {
    let command = section.item("command");
    let script = section.item("script");
    let line = command.as_ref().and_then(|item| item.line("hpcc"));
    if mpi != Mpi::None
        && let Some(item) = &command
        && let Some(word) = line.as_deref().and_then(launcher)
    {
        item.add_problem(format!(
            "starts {word}, but every rank executes the command, and nodescope starts the ranks; give the program alone and job.ranks, or start the ranks in job.script"
        ));
    }
    let path = script.as_ref().and_then(|item| {
        let path = resolve(folder, &item.line("run-hpcc.sh")?);
        if let Err(problem) = readable_file(&path) {
            item.add_problem(problem);
        }
        Some(path)
    });
    match (&command, &script) {
        (None, None) => section.add_problem(
            "command",
            "is missing, so nothing would run; write e.g. command = \"hpcc\" or script = \"run.sh\" below [job]",
        ),
        (Some(_), Some(item)) => {
            item.add_problem("is given together with command; leave out one of them");
        }
        _ => {}
    }
    match path {
        Some(path) => Program::Script(path),
        None => Program::Command(line.unwrap_or_default()),
    }
}

/// Reads `files`: paths, or tables of `from` and `to`. A folder stands for all files below it. Returns pairs of the path on the host and
/// the path below `/job`.
fn files(folder: &Path, item: &Item<'_>) -> Vec<(PathBuf, String)> {
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    let mut names = BTreeSet::new();
    for member in item.list(r#"["hpccinf.txt"]"#) {
        let (from, to) = if member.is_table() {
            let table = member.section();
            let from = table.require("from", "\"input/hpccinf.txt\"");
            let from = from.and_then(|item| item.line("input/hpccinf.txt"));
            let to = table.item("to").and_then(|item| item.line("hpccinf.txt"));
            table.finish();
            (from, to)
        } else {
            (member.line("hpccinf.txt"), None)
        };
        let Some(from) = from else { continue };
        let host = resolve(folder, &from);
        let own_name = host
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let to = to.or(own_name).unwrap_or_default();
        if let Err(problem) = guest_path(&to) {
            member.add_problem(format!("{to:?} {problem}"));
            continue;
        }
        let mut found = Vec::new();
        if let Err(problem) = collect_files(&host, &to, &mut found, 0) {
            member.add_problem(problem);
        }
        for (path, name) in found {
            if RESERVED.contains(&name.as_str()) {
                member.add_problem(format!(
                    "/job/{name} is nodescope's own; give another name by \"to\""
                ));
            } else if !names.insert(name.clone()) {
                member.add_problem(format!(
                    "/job/{name} is already another file; give another name by \"to\""
                ));
            } else {
                files.push((path, name));
            }
        }
    }
    files
}

/// Adds the file `host` to `found` under the path `name`. If `host` is a folder, adds all files below the folder.
fn collect_files(
    host: &Path,
    name: &str,
    found: &mut Vec<(PathBuf, String)>,
    depth: usize,
) -> Result<(), String> {
    if !host.is_dir() {
        readable_file(host)?;
        found.push((host.to_path_buf(), name.to_owned()));
        return Ok(());
    }
    let cannot = |error| format!("{}: cannot be listed: {error}", host.display());
    // Symbolic links may form cycles, and the whole job disk is read into memory. So depth and number of files are limited.
    if depth > 32 || found.len() > 10_000 {
        return Err(format!(
            "{}: holds more than 10000 files or 32 nested folders; give an archive instead",
            host.display()
        ));
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(host).map_err(cannot)? {
        names.push(entry.map_err(cannot)?.file_name());
    }
    names.sort();
    for entry in names {
        let Some(text) = entry.to_str() else {
            return Err(format!(
                "{}: its name is not UTF-8; rename it",
                host.join(entry).display()
            ));
        };
        collect_files(
            &host.join(text),
            &format!("{name}/{text}"),
            found,
            depth + 1,
        )?;
    }
    Ok(())
}

fn readable_file(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let data = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{shown}: there is no such file; paths are relative to the study file's folder")
        }
        _ => format!("{shown}: cannot be read: {error}"),
    })?;
    if !data.is_file() {
        return Err(format!("{shown}: is not a regular file"));
    }
    if data.len() >= 1 << 32 {
        return Err(format!(
            "{shown}: has 4 GiB or more, which a job disk cannot hold; split it"
        ));
    }
    std::fs::File::open(path)
        .map(drop)
        .map_err(|error| format!("{shown}: cannot be read: {error}"))
}

pub(crate) fn guest_path(path: &str) -> Result<(), &'static str> {
    if path.starts_with('/') {
        return Err("is absolute; give a path relative to the guest's /job folder");
    }
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(
            "has an empty, \".\" or \"..\" component; give a plain path below the guest's /job folder",
        );
    }
    Ok(())
}
