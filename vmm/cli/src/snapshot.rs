//! Snapshots of running clusters: their folder and names, and `nodescope snapshot`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use nodescope_cluster::saving::rounded;
use nodescope_cluster::{About, ClusterConfig, Origin, RunError, Save, SnapshotFault, When, once};
use nodescope_config::reader::closest;
use nodescope_study::Study;
use nodescope_study::quantity::Bytes;

use crate::args::{self, SnapshotCommand};
use crate::exit::{Exit, Failure};
use crate::run::exit_of;
use crate::terminal::print;

/// Ending of a snapshot's file name.
const ENDING: &str = ".nss";

/// Lists, shows or removes snapshots.
pub fn snapshot(args: &args::Snapshot) -> Result<Exit, Failure> {
    match &args.command {
        SnapshotCommand::List => list(),
        SnapshotCommand::Show { snapshot } => show(&find(snapshot)?),
        SnapshotCommand::Remove { snapshot } => {
            let path = find(snapshot)?;
            fs::remove_file(&path).map_err(Failure::io("remove", &path))?;
            Ok(Exit::Ok)
        }
    }
}

/// Opens the snapshot, given by name or path, from which a run continues.
pub fn open(text: &str) -> Result<Origin, Failure> {
    Origin::open(&find(text)?).map_err(failure)
}

/// Returns the snapshot that a run is to take; `None` if it takes none. Fails if its moment does not suit the study, or if the file exists
/// and `--force` is not given.
pub fn planned(args: &args::Run, study: &Study) -> Result<Option<Save>, Failure> {
    let wrong = |text: String| Failure::new(Exit::Study, text);
    let when = match (&args.snapshot_at, args.snapshot_every) {
        (None, None) if args.snapshot_name.is_some() => {
            return Err(wrong(
                "--snapshot-name names no snapshot; take one with --snapshot-at or --snapshot-every".into(),
            ));
        }
        (None, None) => return Ok(None),
        (Some(at), _) => {
            at.check(study)
                .map_err(|why| wrong(format!("--snapshot-at: {why}")))?;
            When::At(at.0.clone())
        }
        (None, Some(interval)) if interval.is_zero() => {
            return Err(wrong(
                "--snapshot-every: the time is 0; give a time such as 10min".into(),
            ));
        }
        (None, Some(_)) => When::Requested(Arc::default()),
    };
    let name = args.snapshot_name.clone();
    let name = name.unwrap_or_else(|| plain(&study.name));
    let path = snapshot_path(&name)?;
    // A run that goes on from the last of its snapshots takes the next ones at the same place.
    let goes_on = args
        .from
        .as_deref()
        .is_some_and(|from| snapshot_path(from).is_ok_and(|of| of == path));
    if path.exists() && !args.force && !goes_on {
        return Err(wrong(format!(
            "there is a snapshot {} already; replace it with --force, or give another --snapshot-name",
            path.display()
        )));
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Failure::io("create", folder))?;
    }
    Ok(Some(Save {
        when,
        name: name_of(&path),
        path,
        stop: args.stop_after_snapshot,
    }))
}

/// Requests snapshots from now on, each time that the host's time of `--snapshot-every` has passed.
pub fn request(args: &args::Run, save: Option<&Save>) -> Result<(), Failure> {
    let (Some(interval), Some(When::Requested(flag))) =
        (args.snapshot_every, save.map(|save| &save.when))
    else {
        return Ok(());
    };
    let flag = Arc::clone(flag);
    let thread = std::thread::Builder::new().name("snapshots".into());
    let started = thread.spawn(move || {
        loop {
            std::thread::sleep(*interval);
            flag.store(true, Ordering::Relaxed);
        }
    });
    started.map_err(|error| Failure::of(Exit::Host, &error))?;
    Ok(())
}

/// Returns the path of the snapshot of one booted node, from which the nodes of this configuration are cloned.
pub fn booted(config: &ClusterConfig, image: &str) -> Result<PathBuf, Failure> {
    let name = once::name(config, image).map_err(|error| Failure::of(exit_of(&error), &error))?;
    let folder = folder()?;
    fs::create_dir_all(&folder).map_err(Failure::io("create", &folder))?;
    Ok(folder.join(format!("{name}{ENDING}")))
}

/// Returns the failure for a snapshot that cannot be used, with the host's or the study's exit code.
pub fn failure(fault: SnapshotFault) -> Failure {
    let error = RunError::Snapshot(fault);
    Failure::of(exit_of(&error), &error)
}

/// Returns the folder of snapshots that are given by name; it is beside the folder of guest images.
fn folder() -> Result<PathBuf, Failure> {
    let images = nodescope_image::default_cache_dir();
    let images = images.map_err(|error| Failure::of(Exit::Host, &error))?;
    Ok(images.with_file_name("snapshots"))
}

/// Returns the path of a snapshot: `text` itself if it has a slash or ends in `.nss`, else the file of this name in the folder of
/// snapshots.
fn snapshot_path(text: &str) -> Result<PathBuf, Failure> {
    if text.contains('/') || text.ends_with(ENDING) {
        return Ok(text.into());
    }
    if text != plain(text) {
        return Err(Failure::new(
            Exit::Study,
            format!(
                "{text:?} is no name of a snapshot: use letters, digits, \".\", \"_\" and \"-\", and a letter or digit first, or give a path that ends in {ENDING}"
            ),
        ));
    }
    Ok(folder()?.join(format!("{text}{ENDING}")))
}

/// Returns a name in which `-` replaces all characters that names of snapshots may not have.
fn plain(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = name
        .chars()
        .map(|c| if allowed(c) { c } else { '-' })
        .collect();
    match name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()) {
        "" => "snapshot".into(),
        name => name.into(),
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the path of an existing snapshot. The failure suggests a similar name.
fn find(text: &str) -> Result<PathBuf, Failure> {
    let path = snapshot_path(text)?;
    if path.is_file() {
        return Ok(path);
    }
    let mut message = format!("there is no snapshot {}", path.display());
    if !text.contains('/') {
        let names: Vec<_> = all()?.iter().map(|path| name_of(path)).collect();
        let close = closest(text, names.iter().map(String::as_str));
        message += &match (close, names.is_empty()) {
            (Some(close), _) => format!("; did you mean {close:?}?"),
            (None, true) => "; take one with nodescope run --snapshot-at".into(),
            (None, false) => format!("; there are {}", names.join(", ")),
        };
    }
    Err(Failure::new(Exit::Study, message))
}

/// Returns the paths of all snapshots in the folder of snapshots, sorted.
fn all() -> Result<Vec<PathBuf>, Failure> {
    let folder = folder()?;
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(&folder).map_err(Failure::io("list", &folder))? {
        let path = entry.map_err(Failure::io("list", &folder))?.path();
        if path.is_file() && path.extension().is_some_and(|ending| ending == "nss") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn list() -> Result<Exit, Failure> {
    for path in all()? {
        match About::read(&path) {
            Ok(about) => print(&format!("{}\n", line(&path, &about)))?,
            Err(error) => tracing::warn!("{error}"),
        }
    }
    Ok(Exit::Ok)
}

fn line(path: &Path, about: &About) -> String {
    let nodes = match about.nodes() {
        1 => "1 node".to_owned(),
        nodes => format!("{nodes} nodes"),
    };
    format!(
        "{}  study {}, {}, {nodes}, {}, {}",
        name_of(path),
        about.study,
        rounded(about.virtual_ps),
        size(path),
        date(path)
    )
}

/// Returns the disk space that a file takes, rounded down to whole MiB if it is at least one.
fn size(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let Ok(found) = fs::metadata(path) else {
        return "size unknown".into();
    };
    let bytes = found.blocks() * 512;
    Bytes(match bytes >> 20 {
        0 => bytes,
        whole => whole << 20,
    })
    .to_string()
}

/// Returns the time when a file was last written, in UTC.
fn date(path: &Path) -> String {
    let written = fs::metadata(path).and_then(|found| found.modified());
    let written = written.unwrap_or(SystemTime::UNIX_EPOCH);
    // `humantime` cannot format years after 9999.
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    let text = humantime::format_rfc3339_seconds(written.clamp(SystemTime::UNIX_EPOCH, last));
    text.to_string().replace('T', " ").replace('Z', " UTC")
}

fn show(path: &Path) -> Result<Exit, Failure> {
    let origin = Origin::open(path).map_err(failure)?;
    let about = origin.about();
    let mut text = format!("{}\n  {}\n", line(path, about), path.display());
    let mut row = |label: &str, value: &str| text += &format!("  {label:<13} {value}\n");
    row("taken at", &about.at);
    row("written by", &format!("nodescope {}", origin.program()));
    row("study id", &about.study_id);
    for (node, instructions) in about.instructions.iter().enumerate() {
        let name = match node < about.nodes() {
            true => format!("node{node}"),
            false => "file server".into(),
        };
        row(&name, &format!("{instructions} instructions"));
    }
    if !about.windows.is_empty() {
        row("windows", &about.windows.join(", "));
    }
    text += "booted from\n";
    for (key, value) in about.agreement.rows() {
        text += &format!("  {key:<24} {value}\n");
    }
    text += "sections\n";
    for section in origin.sections() {
        text += &format!("  {section}\n");
    }
    print(&text)?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_studies_become_names_of_snapshots() {
        for (name, expected) in [
            ("hpl", "hpl"),
            ("my study: 2 nodes", "my-study--2-nodes"),
            ("../x", "x"),
            ("-v", "v"),
            ("", "snapshot"),
            ("ü", "snapshot"),
        ] {
            assert_eq!(plain(name), expected, "{name:?}");
        }
        assert_eq!(snapshot_path("a/b").unwrap(), Path::new("a/b"));
        assert_eq!(snapshot_path("b.nss").unwrap(), Path::new("b.nss"));
        assert!(snapshot_path("a b").is_err());
    }
}
