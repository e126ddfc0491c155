//! Functions and source lines of call sites.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodescope_symbols::{FileId, Files, HOST_FILE_LIMIT, Symbolizer};
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
}

/// Locator of call sites in the files of this machine.
///
/// A module is looked for in the given folders by its file name, and then at the path that it had where the program ran. A file whose
/// build id differs from the module's is another version and is not used.
#[derive(Default)]
pub struct CodeLocator {
    folders: Vec<PathBuf>,
    symbolizer: Symbolizer,
    found: BTreeMap<(String, Option<String>), Option<FileId>>,
    notes: Vec<String>,
}

impl CodeLocator {
    /// Creates a locator that searches `folders` first.
    pub fn new(folders: &[PathBuf]) -> CodeLocator {
        CodeLocator {
            folders: folders.to_vec(),
            ..CodeLocator::default()
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
        let location = self.symbolizer.locate_address(&HostFiles, &file, before);
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
        let function = match location.inlined.first() {
            Some(inlined) => inlined.function.clone(),
            None => location.function,
        };
        // A name made of file and offset contains no more than the address.
        if location.function_start.is_some() && !function.contains("+0x") {
            found.function = Some(function);
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
        candidates.push(PathBuf::from(&module.path));
        let mut other = None;
        let mut found = None;
        for candidate in candidates.iter().filter(|path| path.is_file()) {
            let file = FileId {
                file_system: String::new(),
                device: String::new(),
                mount: String::new(),
                path: candidate.display().to_string(),
                inode: 0,
                mapping: 0,
                deleted: false,
            };
            let there = self
                .symbolizer
                .locate_address(&HostFiles, &file, 0)
                .build_id;
            if there == module.build_id {
                found = Some(file);
                break;
            }
            other = Some(candidate.display().to_string());
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
