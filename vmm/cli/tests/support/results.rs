//! Results with windows that tests write. A test that uses this needs `solver`, `support` and `profiles` beside it.

use std::fs;

use nodescope_profile::ProfilesFile;
use nodescope_window::WindowsFile;
use tempfile::TempDir;

use crate::solver;

/// Writes results with windows of these names, each with a profile.
pub fn results(windows: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("r");
    fs::create_dir(&folder).unwrap();
    let run = serde_json::json!({
        "version": 1,
        "study": {"name": "heat", "id": "0123", "description": []},
        "core": {"nominal": {"source": "stated in the study: 1.0"}},
        "ending": "the job ended",
        "exit_code": 0,
        "job_status": 0,
        "virtual_ps": 1,
        "instructions": [],
        "network": [],
        "notes": [],
    });
    fs::write(folder.join("run.json"), run.to_string()).unwrap();
    let mut input = solver::with_code(dir.path());
    let record = input.windows.windows.remove(0);
    let mut profiles = input.profiles.take().unwrap();
    let profile = profiles.windows.remove(0);
    let mut records = Vec::new();
    for name in windows {
        let mut record = record.clone();
        record.name = (*name).into();
        records.push(record);
        let mut profile = profile.clone();
        profile.name = (*name).into();
        profiles.windows.push(profile);
    }
    let file = WindowsFile::new("heat", "0123", records, Vec::new());
    file.write(folder.join(WindowsFile::NAME)).unwrap();
    profiles.write(folder.join(ProfilesFile::NAME)).unwrap();
    dir
}
