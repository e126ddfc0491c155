//! Source files of programs, from a folder of the user: `nodescope report --source`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nodescope_report::Report;

use crate::exit::Failure;

/// Maximum depth of folders, and maximum number of their entries, in which source files are searched.
const DEPTH: usize = 16;
const ENTRIES: usize = 100_000;
/// Size in bytes of the largest source file that is read.
const LARGEST: u64 = 4 << 20;

/// Adds the texts of source files in `folder` to a report. Debugging information of guests names the files, so that nothing outside the
/// folder is read.
pub fn add(report: &mut Report, folder: &Path) -> Result<(), Failure> {
    fs::read_dir(folder).map_err(Failure::input("read", folder))?;
    let files = SourceFiles::of(folder);
    report.add_sources(|path| files.text(path));
    Ok(())
}

/// The files of a folder, by name.
#[derive(Default)]
struct SourceFiles(BTreeMap<String, Vec<PathBuf>>);

impl SourceFiles {
    fn of(folder: &Path) -> SourceFiles {
        let mut files = SourceFiles::default();
        files.list(folder, DEPTH, &mut { ENTRIES });
        files
    }

    /// Lists the files in a folder. Links are not followed.
    fn list(&mut self, folder: &Path, depth: usize, left: &mut usize) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut entries: Vec<_> = entries.take(*left).collect();
        *left -= entries.len();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            match (entry.file_type(), entry.file_name().into_string()) {
                (Ok(kind), _) if kind.is_dir() && depth > 0 => {
                    self.list(&entry.path(), depth - 1, left);
                }
                (Ok(kind), Ok(name)) if kind.is_file() => {
                    self.0.entry(name).or_default().push(entry.path());
                }
                _ => {}
            }
        }
    }

    /// Returns the text of the file whose path has most components at its end in common with `path`.
    fn text(&self, path: &str) -> Option<String> {
        let path = Path::new(path);
        let common = |file: &PathBuf| {
            let pairs = file.components().rev().zip(path.components().rev());
            pairs.take_while(|(a, b)| a == b).count()
        };
        let named = self.0.get(path.file_name()?.to_str()?)?;
        // Of several equally good ones, the first in the order of names is taken.
        let file = named.iter().rev().max_by_key(|file| common(file))?;
        let size = file.metadata().ok()?.len();
        let bytes = (size <= LARGEST).then(|| fs::read(file).ok())??;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_with_the_most_similar_path_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, path.to_str().unwrap()).unwrap();
        };
        for path in ["a/main.c", "b/main.c", "b/lib/util.c"] {
            put(path);
        }
        let secret = tempfile::tempdir().unwrap();
        fs::write(secret.path().join("secret.c"), "secret").unwrap();
        std::os::unix::fs::symlink(secret.path(), folder.path().join("link")).unwrap();
        let files = SourceFiles::of(folder.path());
        let text = |path: &str| files.text(path).unwrap_or_default();
        assert!(text("/build/b/main.c").ends_with("/b/main.c"));
        assert!(text("/build/x/main.c").ends_with("/a/main.c"));
        assert!(text("util.c").ends_with("/b/lib/util.c"));
        for path in ["other.c", "/", "..", "", "secret.c", "/etc/passwd"] {
            assert_eq!(files.text(path), None, "{path}");
        }
    }
}
