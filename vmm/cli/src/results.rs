//! The results folder: the facts of a run, and the report that is made from its files.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_cluster::{EngineSpan, FolderError, ResultsFolder};
use nodescope_profile::ProfilesFile;
use nodescope_report::{CoreCpi, NetworkCounts, Report, ReportInput, StudyInfo};
use nodescope_window::WindowsFile;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::cores::{self, CoreNames};
use crate::exit::{Exit, Failure};
use crate::site_names;

/// Facts of a run, in `run.json`. On the portable engine no fact depends on the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunFile {
    /// Format version, [`RunFile::VERSION`].
    pub version: u32,
    /// Name, identity and description of the study.
    pub study: StudyInfo,
    /// Source of CPI_core, with its values if they come from counters.
    pub core: CoreCpi,
    /// Cores on which the report models the windows' code; empty if the study names none.
    #[serde(default)]
    pub cores: CoreNames,
    /// Sentence about the end of the run; `None` while the run lasts, and if the run was killed.
    pub ending: Option<String>,
    /// Exit code of `nodescope run`; `None` while the run lasts, and if the run was killed.
    pub exit_code: Option<u8>,
    /// Exit status of the job; `None` if the job has not reported one.
    pub job_status: Option<i32>,
    /// Virtual time at the end of the run, picoseconds; 0 if the run has no outcome, since it lasts, has failed or was killed.
    pub virtual_ps: u64,
    /// Number of instructions that each node executed on the portable engine; empty if the run has no outcome.
    pub instructions: Vec<u64>,
    /// Network counts of each node; empty if the run has no outcome.
    pub network: Vec<NetworkCounts>,
    /// Engine that executed the guests, by interval of virtual time; empty where the portable engine executed all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<EngineSpan>,
    /// Notes for the user, which the report shows.
    pub notes: Vec<String>,
}

impl RunFile {
    /// Version of the format that this program writes and reads.
    pub const VERSION: u32 = 1;
    /// Name of the file among the results.
    pub const NAME: &'static str = "run.json";

    /// Writes the file into a results folder.
    pub fn write(&self, folder: &ResultsFolder) -> Result<(), Failure> {
        let mut text =
            serde_json::to_string_pretty(self).map_err(|error| Failure::of(Exit::Host, &error))?;
        text.push('\n');
        put(folder, Self::NAME, &text)
    }

    /// Reads the file from a results folder.
    pub fn read(folder: &Path) -> Result<RunFile, Failure> {
        let path = folder.join(Self::NAME);
        if !path.is_file() {
            return Err(Failure::new(
                Exit::Study,
                format!(
                    "{} holds no results of a run (no {}); give the folder that `nodescope run` named",
                    folder.display(),
                    Self::NAME
                ),
            ));
        }
        let text = fs::read_to_string(&path).map_err(Failure::input("read", &path))?;
        let wrong = |what: String| Failure::new(Exit::Study, format!("{}: {what}", path.display()));
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| wrong(format!("is damaged: {error}")))?;
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        if version != Some(Self::VERSION.into()) {
            return Err(wrong(format!(
                "has version {}, this program reads version {}; use the nodescope that wrote it",
                version.map_or("none".into(), |version| version.to_string()),
                Self::VERSION
            )));
        }
        serde_json::from_value(value).map_err(|error| wrong(format!("is damaged: {error}")))
    }
}

/// Fails if a file or folder is at a path that the user has named for a new file, unless `force` says to replace it. Devices and pipes are
/// written to.
pub fn refuse_existing(path: &Path, force: bool) -> Result<(), Failure> {
    if force || fs::symlink_metadata(path).is_err() || is_stream(path) {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Study,
        format!(
            "{} is there already; give another name, or --force to replace it",
            path.display()
        ),
    ))
}

/// Returns whether there is a device, a pipe or a socket at a path, such as `/dev/null`. Such a thing must not be replaced by a file.
pub fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Replaces a file with a text, completely or not at all.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    write_bytes(path, text.as_bytes())
}

/// Replaces a file with these bytes, completely or not at all. A device or a pipe gets the bytes.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if is_stream(path) {
        let written = fs::File::options().write(true).open(path);
        let written = written.and_then(|mut stream| stream.write_all(bytes));
        return written.map_err(Failure::io("write", path));
    }
    new_file(path)
        .and_then(|mut partial| {
            partial.write_all(bytes)?;
            partial.persist(path).map_err(|error| error.error)
        })
        .map(drop)
        .map_err(Failure::io("write", path))
}

/// Creates a file that becomes the one at `path` when it is complete. Until then the file has a name that no file of the user has. It has
/// the permissions of any new file.
pub fn new_file(path: &Path) -> std::io::Result<NamedTempFile> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    tempfile::Builder::new()
        .prefix(".nodescope-")
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(parent.unwrap_or(Path::new(".")))
}

/// Writes a file into a results folder.
pub fn put(folder: &ResultsFolder, name: &str, text: &str) -> Result<(), Failure> {
    folder
        .write(name, text.as_bytes())
        .map(drop)
        .map_err(folder_failure)
}

/// Returns a failure with the exit code for an unusable results folder: a host problem for I/O errors, else the user's mistake.
pub fn folder_failure(error: FolderError) -> Failure {
    let exit = match error {
        FolderError::Io { .. } => Exit::Host,
        _ => Exit::Study,
    };
    Failure::of(exit, &error)
}

/// Returns the report of results, complete or not. `core` replaces the study's CPI_core. `cores` replace the study's cores, unless the
/// slice is empty.
pub fn report(folder: &Path, core: Option<CoreCpi>, cores: &[String]) -> Result<Report, Failure> {
    let input = input(folder, core, cores)?;
    let report = nodescope_report::build(&input);
    let mut report = report.map_err(|error| Failure::of(Exit::Study, &error))?;
    if let Some(mpi) = report.mpi.as_mut().filter(|mpi| !mpi.pending.is_empty()) {
        site_names::locate(folder, &mut mpi.pending);
    }
    site_names::locate_calls(folder, &mut report);
    Ok(report)
}

/// Reads the files of results, complete or not, for a report. `core` replaces the study's CPI_core. `cores` replace the study's cores,
/// unless the slice is empty.
pub fn input(
    folder: &Path,
    core: Option<CoreCpi>,
    cores: &[String],
) -> Result<ReportInput, Failure> {
    let run = RunFile::read(folder)?;
    let wrong = |error: &dyn std::error::Error| Failure::of(Exit::Study, error);
    let windows = folder.join(WindowsFile::NAME);
    let mut notes = Vec::new();
    match &run.ending {
        Some(ending) if run.exit_code != Some(0) => notes.push(ending.clone()),
        Some(_) => {}
        None => notes.push(
            "the run has not ended, or was killed: only what was written until then is shown"
                .into(),
        ),
    }
    notes.extend(run.notes);
    let windows = if windows.exists() {
        WindowsFile::read(&windows).map_err(|error| wrong(&error))?
    } else {
        notes.push("no window was recorded".into());
        WindowsFile::new(&run.study.name, &run.study.id, Vec::new(), Vec::new())
    };
    let profiles = folder.join(ProfilesFile::NAME);
    let profiles = match profiles.exists() {
        true => Some(ProfilesFile::read(&profiles).map_err(|error| wrong(&error))?),
        false => None,
    };
    let CoreNames {
        names: of_study,
        memory_parallelism,
    } = run.cores;
    let names = match cores.is_empty() {
        true => of_study,
        false => cores.to_vec(),
    };
    let mut core = core.unwrap_or(run.core);
    let mut models = Vec::new();
    if let Some(first) = names.first() {
        let mut missing = format!("no window has code that core {first} could be modelled by");
        let timed = profiles.as_ref().map(|of| cores::models(of, &names));
        match timed.transpose() {
            Ok(windows) => models = windows.unwrap_or_default(),
            Err(error) => {
                notes.push(format!("no core is modelled: {error}"));
                missing = error.to_string();
            }
        }
        // Counters take precedence over a model, and a model over a nominal number.
        if matches!(core, CoreCpi::Nominal { .. } | CoreCpi::Modelled { .. }) {
            let model = models.iter().find_map(|window| window.cores.first());
            core = match model {
                Some(model) => CoreCpi::Modelled {
                    source: format!("{}; {}", model.source, model.published_error),
                },
                None => CoreCpi::Nominal {
                    source: format!("nominal, since {missing}"),
                },
            };
        }
    }
    let trace = folder.join(TRACE_FILE);
    Ok(ReportInput {
        windows,
        profiles,
        models,
        memory_parallelism,
        trace: trace.exists().then_some(trace),
        study: run.study,
        core,
        network: run.network,
        notes,
    })
}

/// File name of the report as JSON, among the results.
pub const REPORT_JSON: &str = "report.json";
/// File name of the report as an HTML page, among the results.
pub const REPORT_HTML: &str = "report.html";
