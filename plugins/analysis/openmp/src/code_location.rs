//! Functions and source lines of call sites.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodescope_symbols::{FileId, Files, HOST_FILE_LIMIT, ListedFiles, Names, Sources};
use serde::Serialize;

use crate::record::{Module, Site};

/// A call site in a program, with its function and source line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct CodeLocation {
    /// Path, where the program ran, of the program or library file that contains the call site; empty for code of no file.
    pub module: String,
    /// Return address of the call, as linked.
    pub address: u64,
    /// Function that calls, the innermost one where functions are inlined; `None` if unknown.
    pub function: Option<String>,
    /// Source file, as the compiler wrote its name; `None` if unknown.
    pub file: Option<String>,
    /// Number of the line in the source file, from 1; `None` if unknown.
    pub line: Option<u32>,
}

impl CodeLocation {
    /// Returns the call site in one line: source line and function, or file and address.
    pub fn text(&self) -> String {
        let short = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        let function = self.function.as_deref();
        match (&self.file, self.line, function) {
            (Some(file), Some(line), Some(function)) => {
                format!("{}:{line} {function}", short(file))
            }
            (Some(file), Some(line), None) => format!("{}:{line}", short(file)),
            (_, _, Some(function)) => {
                format!("{function} ({}+{:#x})", short(&self.module), self.address)
            }
            _ if self.module.is_empty() => format!("{:#x}", self.address),
            _ => format!("{}+{:#x}", short(&self.module), self.address),
        }
    }
}

/// Maximum depth of folders, and maximum number of their entries, in which a program is searched among results.
const DEPTH: usize = 8;
const ENTRIES: usize = 100_000;

/// Files of this machine.
struct HostFiles;

impl Files for HostFiles {
    fn read(&self, file: &FileId) -> Option<Arc<[u8]>> {
        self.read_path(&file.path)
    }

    fn read_path(&self, path: &str) -> Option<Arc<[u8]>> {
        let mut bytes = Vec::new();
        let file = File::open(path).ok()?;
        // A pipe, for instance, might never end.
        file.metadata().ok().filter(|found| found.is_file())?;
        file.take(HOST_FILE_LIMIT + 1)
            .read_to_end(&mut bytes)
            .ok()?;
        (bytes.len() as u64 <= HOST_FILE_LIMIT).then(|| bytes.into())
    }

    fn read_beside(&self, file: &FileId, name: &str) -> Option<Arc<[u8]>> {
        let path = Path::new(&file.path).with_file_name(name);
        self.read_path(path.to_str()?)
    }
}

/// Locator of call sites in the files of this machine.
///
/// A module is looked for among the files of the job, then by its file name in the given folders, then anywhere among the given results, and
/// then at the path that it had where the program ran. A file whose build id differs from the module's is another version and is not used.
pub struct CodeLocator {
    folders: Vec<PathBuf>,
    /// Paths of the files among results, by file name.
    among_results: BTreeMap<OsString, Vec<PathBuf>>,
    /// Files that the host put into the guest, by their paths there.
    job: ListedFiles,
    names: Names,
    found: BTreeMap<(String, Option<String>), Option<FileId>>,
    notes: Vec<String>,
}

impl CodeLocator {
    /// Creates a locator that searches `folders` first, and reads files in this process.
    pub fn new(folders: &[PathBuf]) -> CodeLocator {
        CodeLocator {
            folders: folders.to_vec(),
            among_results: BTreeMap::new(),
            job: ListedFiles::default(),
            names: Names::here(),
            found: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// Also searches folders of results, with the folders in them. Guests have made the files there.
    pub fn among(mut self, results: &[PathBuf]) -> CodeLocator {
        let mut left = ENTRIES;
        for folder in results {
            self.list(folder, DEPTH, &mut left);
        }
        self
    }

    /// Also searches files that the host put into the guest, by the paths that they had there.
    pub fn with_job(self, job: ListedFiles) -> CodeLocator {
        CodeLocator { job, ..self }
    }

    /// Has names made by `names`, such as in a process of its own.
    pub fn with(self, names: Names) -> CodeLocator {
        CodeLocator { names, ..self }
    }

    /// Lists the files in a folder. Links are not followed.
    fn list(&mut self, folder: &Path, depth: usize, left: &mut usize) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut entries: Vec<_> = entries.take(*left).collect();
        *left -= entries.len();
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth > 0 => self.list(&entry.path(), depth - 1, left),
                Ok(kind) if kind.is_file() => {
                    let named = self.among_results.entry(entry.file_name()).or_default();
                    named.push(entry.path());
                }
                _ => {}
            }
        }
    }

    /// Returns the notes about files that are missing, differ, or have no debug information; each once.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Finds the function and the source line of a site, in the modules of a record.
    pub fn locate(&mut self, modules: &BTreeMap<usize, Module>, site: Site) -> CodeLocation {
        let module = modules.get(&site.module);
        let mut found = CodeLocation {
            module: module.map(|module| module.path.clone()).unwrap_or_default(),
            address: site.address,
            function: None,
            file: None,
            line: None,
        };
        let Some(file) = module.and_then(|module| self.file(module)) else {
            return found;
        };
        // The return address may belong to the line after the call, so the address before it is looked up.
        let before = site.address.saturating_sub(1);
        let files = Sources(vec![&self.job, &HostFiles]);
        let location = self.names.locate_address(&files, &file, before);
        for lost in self.names.take_lost() {
            self.note(lost);
        }
        found.function = location.named_function().map(str::to_owned);
        if let Some(line) = location.line {
            found.file = Some(line.file);
            found.line = Some(line.line);
        } else {
            let note = format!(
                "{} has no debug information for some call sites: compile with -g to see source lines",
                found.module
            );
            self.note(note);
        }
        found
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn file(&mut self, module: &Module) -> Option<FileId> {
        let key = (module.path.clone(), module.build_id.clone());
        if let Some(found) = self.found.get(&key) {
            return found.clone();
        }
        let name = Path::new(&module.path).file_name();
        let mut candidates: Vec<PathBuf> = (self.folders.iter())
            .filter_map(|folder| Some(folder.join(name?)))
            .collect();
        let among = name.and_then(|name| self.among_results.get(name));
        candidates.extend(among.into_iter().flatten().cloned());
        candidates.push(PathBuf::from(&module.path));
        let in_job = self.job.read_path(&module.path).is_some();
        let of_job = in_job.then(|| file_of("tmpfs", module.path.clone()));
        let of_host = candidates.iter().filter(|path| path.is_file());
        let of_host = of_host.map(|path| file_of("", path.display().to_string()));
        let mut other = None;
        let mut found = None;
        let files = Sources(vec![&self.job, &HostFiles]);
        for file in of_job.into_iter().chain(of_host) {
            let there = self.names.locate_address(&files, &file, 0).build_id;
            if there == module.build_id {
                found = Some(file);
                break;
            }
            other = Some(file.path);
        }
        for lost in self.names.take_lost() {
            self.note(lost);
        }
        if found.is_none() {
            let note = match other {
                Some(path) => format!(
                    "{path} is not the file that ran (its build id differs): call sites of {} have addresses alone; name the folder of the one that ran by --files",
                    module.path
                ),
                None => format!(
                    "{} is not on this machine: its call sites have addresses alone; name the folder that holds it by --files",
                    module.path
                ),
            };
            self.note(note);
        }
        self.found.insert(key, found.clone());
        found
    }
}

fn file_of(file_system: &str, path: String) -> FileId {
    FileId {
        file_system: file_system.into(),
        device: file_system.into(),
        mount: String::new(),
        path,
        inode: 0,
        mapping: 0,
        deleted: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_among_results() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("files/deep");
        fs::create_dir_all(&folder).unwrap();
        fs::write(
            folder.join("program"),
            "no ELF file, and without a build id",
        )
        .unwrap();
        let module = Module {
            path: "/job/program".into(),
            build_id: None,
        };
        let mut locator = CodeLocator::new(&[]).among(&[dir.path().join("files")]);
        let found = locator.file(&module).unwrap();
        assert_eq!(Path::new(&found.path), folder.join("program"));
        assert!(locator.notes().is_empty());
        // Links are not followed, and a file of another build is no program of this run.
        let other = Module {
            build_id: Some("0123".into()),
            ..module
        };
        assert_eq!(locator.file(&other), None);
        assert!(locator.notes()[0].contains("build id differs"));
        std::os::unix::fs::symlink(&folder, dir.path().join("link")).unwrap();
        let links = CodeLocator::new(&[]).among(&[dir.path().to_path_buf()]);
        assert_eq!(links.among_results.values().flatten().count(), 1);
    }
}
