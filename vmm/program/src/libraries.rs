//! How the dynamic linker of the guest looks for libraries (ld.so(8); glibc, elf/dl-load.c).

use std::collections::{BTreeSet, HashSet};

use crate::elf::{Elf, MOST_FOLDERS, Other};
use crate::files::{Files, JOB, normal};

/// Folders that the dynamic linker of Debian looks in last.
const DEFAULT: &[&str] = &[
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
];
/// List of libraries that the dynamic linker looks in before the folders of [`DEFAULT`].
const CACHE: &str = "/etc/ld.so.cache";
/// Beginning of the list, and its layout (glibc, sysdeps/generic/dl-cache.h): the number of entries is at 20, entries of 24 bytes begin at
/// 48. An entry has the offsets of a name and of a path at 4 and 8.
const CACHE_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Maximum number of libraries that a program is taken to have.
const MOST: usize = 1000;

/// Result of the search for a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    /// The library's path in the guest.
    At(String),
    /// No folder that the dynamic linker looks in has the library.
    Missing,
    /// A folder cannot be known before the run.
    Unknown,
}

/// Libraries of a guest.
pub(crate) struct Libraries<'a> {
    files: &'a Files,
    /// Names and paths of the image's list of libraries.
    cache: Vec<(String, String)>,
    /// Value of `LD_LIBRARY_PATH`.
    library_path: Option<String>,
}

/// A library that a program or another library needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Needed {
    pub name: String,
    /// Path of the file that needs the library.
    pub by: String,
    pub search: Search,
}

impl<'a> Libraries<'a> {
    pub fn new(files: &'a Files, library_path: Option<String>) -> Self {
        let cache = files.read(CACHE).map(|bytes| entries(&bytes));
        Libraries {
            files,
            cache: cache.unwrap_or_default(),
            library_path,
        }
    }

    /// Returns the libraries that a program needs, and those that the job's own libraries among them need. Libraries of the image have what
    /// they need: its packages see to that.
    pub fn of_program(&self, path: &str, program: &Elf) -> Vec<Needed> {
        let mut found: Vec<Needed> = Vec::new();
        let mut seen: HashSet<String> = HashSet::new();
        let mut waiting = vec![(path.to_owned(), program.clone(), Vec::new())];
        while let Some((by, elf, inherited)) = waiting.pop() {
            // A library with DT_RUNPATH ignores DT_RPATH, its own and that of its loaders.
            let own = || elf.rpath.iter().filter_map(|folder| expanded(folder, &by));
            let mut rpath: Vec<String> = inherited.clone();
            if elf.runpath.is_empty() {
                rpath.splice(0..0, own());
                rpath.truncate(MOST_FOLDERS);
            }
            for name in &elf.needed {
                if found.len() >= MOST || !seen.insert(name.clone()) {
                    continue;
                }
                let search = self.search(name, &by, &elf, &rpath);
                if let Search::At(at) = &search
                    && self.files.find(at).is_some_and(|file| file.host.is_some())
                    && let Some(library) = self
                        .files
                        .read(at)
                        .and_then(|bytes| Elf::parse(&bytes).ok())
                {
                    waiting.push((at.clone(), library, rpath.clone()));
                }
                found.push(Needed {
                    name: name.clone(),
                    by: by.clone(),
                    search,
                });
            }
        }
        found
    }

    fn search(&self, name: &str, by: &str, elf: &Elf, rpath: &[String]) -> Search {
        if name.contains('/') {
            let path = absolute(name);
            return self
                .fits(&path)
                .then_some(path)
                .map_or(Search::Missing, Search::At);
        }
        let mut unknown = elf
            .rpath
            .iter()
            .chain(&elf.runpath)
            .any(|folder| expanded(folder, by).is_none());
        let mut folders: Vec<String> = if elf.runpath.is_empty() {
            rpath.to_vec()
        } else {
            Vec::new()
        };
        let listed = self
            .library_path
            .iter()
            .flat_map(|list| list.split([':', ';']).take(MOST_FOLDERS));
        for folder in listed {
            unknown |= folder.contains('$') || folder.contains('`');
            // An empty folder is the working folder.
            folders.push(absolute(folder));
        }
        folders.extend(elf.runpath.iter().filter_map(|folder| expanded(folder, by)));
        let cached = self.cache.iter().filter(|(known, _)| known == name);
        let paths = (folders.iter().map(|folder| format!("{folder}/{name}")))
            .chain(cached.map(|(_, path)| path.clone()))
            .chain(DEFAULT.iter().map(|folder| format!("{folder}/{name}")));
        for path in paths {
            if self.fits(&path) {
                return Search::At(normal(&path));
            }
        }
        match unknown || !self.files.has_image() {
            true => Search::Unknown,
            false => Search::Missing,
        }
    }

    /// Returns whether a path is a library of the guest's architecture. The dynamic linker passes over others.
    fn fits(&self, path: &str) -> bool {
        let Some(found) = self.files.find(path) else {
            return false;
        };
        // Those of the image are right.
        found.host.is_none()
            || self
                .files
                .read(path)
                .is_some_and(|bytes| !matches!(Elf::parse(&bytes), Err(Other::Foreign(_))))
    }

    /// Returns the first version of symbols that a file needs and the libraries found for the file do not define: library, its path and the
    /// version.
    pub fn missing_version(
        &self,
        elf: &Elf,
        libraries: &[Needed],
    ) -> Option<(String, String, String)> {
        let files: BTreeSet<&str> = elf
            .versions_needed
            .iter()
            .map(|(file, _)| file.as_str())
            .collect();
        for file in files.into_iter().take(MOST_FOLDERS) {
            let needed = libraries.iter().find(|needed| needed.name == file);
            let Some(Search::At(path)) = needed.map(|needed| &needed.search) else {
                continue;
            };
            let Some(library) = self
                .files
                .read(path)
                .and_then(|bytes| Elf::parse(&bytes).ok())
            else {
                continue;
            };
            // A library without versions satisfies every version (elf/dl-version.c).
            if library.versions_defined.is_empty() {
                continue;
            }
            let versions = elf.versions_needed.iter().filter(|(of, _)| of == file);
            let mut missing: Vec<&String> = (versions.map(|(_, version)| version))
                .filter(|version| !library.versions_defined.contains(version))
                .collect();
            missing.sort_by_key(|version| numbers(version));
            if let Some(version) = missing.last() {
                return Some((file.to_owned(), path.clone(), (*version).clone()));
            }
        }
        None
    }
}

/// Returns the numbers in a version, so that `2.9` comes before `2.38`.
fn numbers(version: &str) -> Vec<u64> {
    let parts = version.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// Returns an absolute path; a relative one is relative to the folder in which jobs start.
fn absolute(path: &str) -> String {
    match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{JOB}/{path}"),
    }
}

/// Replaces the variables of the dynamic linker in a folder of DT_RPATH or DT_RUNPATH. Returns `None` for one whose value is not known.
fn expanded(folder: &str, by: &str) -> Option<String> {
    let origin = by.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut text = folder.to_owned();
    for (variable, value) in [("ORIGIN", origin), ("LIB", "lib/x86_64-linux-gnu")] {
        text = text.replace(&format!("${{{variable}}}"), value);
        text = text.replace(&format!("${variable}"), value);
    }
    (!text.contains('$')).then(|| absolute(&text))
}

/// Reads the names and paths of a list of libraries.
fn entries(bytes: &[u8]) -> Vec<(String, String)> {
    let word = |at: usize| {
        let bytes: [u8; 4] = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes) as usize)
    };
    let text = |at: usize| {
        let rest = bytes.get(at..)?;
        let end = rest.iter().take(4096).position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    };
    if !bytes.starts_with(CACHE_MAGIC) {
        return Vec::new();
    }
    let count = word(20).unwrap_or(0).min(bytes.len() / 24);
    let entry = |n: usize| Some((text(word(48 + 24 * n + 4)?)?, text(word(48 + 24 * n + 8)?)?));
    (0..count).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_folders() {
        let by = "/job/bin/app";
        assert_eq!(
            expanded("$ORIGIN/../lib", by).as_deref(),
            Some("/job/bin/../lib")
        );
        assert_eq!(expanded("${ORIGIN}:x", by).as_deref(), Some("/job/bin:x"));
        assert_eq!(expanded("lib", by).as_deref(), Some("/job/lib"));
        assert_eq!(expanded("/opt/$PLATFORM", by), None);
    }

    #[test]
    fn damaged_lists_of_libraries_are_read_to_where_they_end() {
        let mut bytes = CACHE_MAGIC.to_vec();
        bytes.extend(u32::MAX.to_le_bytes());
        assert!(entries(&bytes).is_empty());
        bytes.resize(48 + 24, 0);
        bytes[52..56].copy_from_slice(&72u32.to_le_bytes());
        bytes[56..60].copy_from_slice(&77u32.to_le_bytes());
        bytes.extend(b"name\0/path\0");
        let found = entries(&bytes);
        assert_eq!(found[0], ("name".to_owned(), "/path".to_owned()));
        for length in 0..bytes.len() {
            entries(&bytes[..length]);
        }
    }

    #[test]
    fn newest_versions_come_last() {
        assert!(numbers("GLIBC_2.9") < numbers("GLIBC_2.38"));
    }
}
