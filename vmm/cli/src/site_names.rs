//! Places of MPI call sites in the source: function, file and line, read from the files of the program among the results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use nodescope_cluster::run::JOB_DISK;
use nodescope_image::job_files;
use nodescope_report::Report;
use nodescope_symbols::{FileId, Files, HOST_FILE_LIMIT, ListedFiles, Names};
use nodescope_trace::{PendingCalls, Place, Site, SiteNames};

use crate::config::THIS_PROGRAM;
use crate::openmp::FILES;

/// Most call sites of a program that are looked up. A damaged trace may have any number.
const MOST_SITES: usize = 10_000;
/// Maximum depth of folders, and maximum number of their entries, in which programs are searched among results.
const DEPTH: usize = 8;
const ENTRIES: usize = 100_000;
/// Beginning of each program and library.
const ELF: &[u8] = b"\x7fELF";

/// Adds to `names` the places of call sites, as far as the files of a run tell them. The run's results are in the folder `results`.
pub fn read(results: &Path, names: &mut SiteNames, sites: impl IntoIterator<Item = Site>) {
    let makes = Names::in_process(Path::new(THIS_PROGRAM));
    Locator::new(results, makes).add(names, sites);
}

/// Gives pending calls the places of their call sites, as [`read`] does.
pub fn locate(results: &Path, pending: &mut PendingCalls) {
    let mut locator = Locator::new(results, Names::in_process(Path::new(THIS_PROGRAM)));
    pending.locate(|names, sites| locator.add(names, sites));
}

/// Gives the calls of a report's timelines the places of their call sites, as [`read`] does.
pub fn locate_calls(results: &Path, report: &mut Report) {
    let mut locator = None;
    report.locate_calls(|names, sites| {
        let new = || Locator::new(results, Names::in_process(Path::new(THIS_PROGRAM)));
        locator.get_or_insert_with(new).add(names, sites);
    });
}

/// Returns the programs and libraries of a run's job, with their paths in guests.
pub fn job_programs(results: &Path) -> Vec<(String, Vec<u8>)> {
    let disk = results.join(JOB_DISK);
    let size = disk.metadata().map_or(0, |disk| disk.len());
    if !(1..=HOST_FILE_LIMIT).contains(&size) {
        return Vec::new();
    }
    let files = fs::read(&disk).map(|disk| job_files(&disk).unwrap_or_default());
    let files = files.unwrap_or_default().into_iter();
    let programs = files.filter(|file| file.data.starts_with(ELF));
    let programs = programs.map(|file| (format!("/job/{}", file.path), file.data));
    programs.collect()
}

/// Locator of call sites in the programs and libraries of a run: the files of its job, and those that its guests have left.
struct Locator {
    files: ListedFiles,
    /// Paths of programs and libraries in `files`, by file name.
    paths: BTreeMap<String, Vec<String>>,
    makes: Names,
}

impl Locator {
    /// Creates a locator that has names made by `makes`. Guests may have made the files, so that this should be a process of its own.
    fn new(results: &Path, makes: Names) -> Locator {
        let mut locator = Locator {
            files: ListedFiles::default(),
            paths: BTreeMap::new(),
            makes,
        };
        for (path, data) in job_programs(results) {
            locator.files.insert(&path, data);
            locator.list(path);
        }
        locator.folder(&results.join(FILES), DEPTH, &mut { ENTRIES });
        locator
    }

    fn list(&mut self, path: String) {
        let name = path.rsplit('/').next().unwrap_or(&path).to_owned();
        self.paths.entry(name).or_default().push(path);
    }

    /// Lists the programs and libraries in a folder of this machine. Links are not followed.
    fn folder(&mut self, folder: &Path, depth: usize, left: &mut usize) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut entries: Vec<_> = entries.take(*left).collect();
        *left -= entries.len();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            match (entry.file_type(), path.to_str()) {
                (Ok(kind), _) if kind.is_dir() && depth > 0 => self.folder(&path, depth - 1, left),
                (Ok(kind), Some(text)) if kind.is_file() && is_elf(&path) => {
                    self.files.insert_host(text, &path);
                    self.list(text.to_owned());
                }
                _ => {}
            }
        }
    }

    /// Adds to `names` the places of call sites.
    fn add(&mut self, names: &mut SiteNames, sites: impl IntoIterator<Item = Site>) {
        let sites = sites.into_iter().filter(|site| site.address != 0);
        let sites: BTreeSet<Site> = sites.take(MOST_SITES).collect();
        let mut files: BTreeMap<String, Option<FileId>> = BTreeMap::new();
        for site in sites {
            let Some(name) = names.file(site) else {
                continue;
            };
            let file = match files.get(name) {
                Some(known) => known,
                None => (files.entry(name.to_owned())).or_insert(self.file(name)),
            };
            let Some(file) = file else {
                continue;
            };
            // The return address may belong to the line after the call, so the address before it is looked up.
            let location = (self.makes).locate_address(&self.files, file, site.address - 1);
            let function = location.named_function().map(str::to_owned);
            let line = location.line;
            if function.is_some() || line.is_some() {
                let place = Place {
                    function,
                    line: line.as_ref().map(|line| line.line),
                    file: line.map(|line| line.file),
                };
                names.places.insert(site, place);
            }
        }
        for lost in self.makes.take_lost() {
            tracing::warn!("{lost}");
        }
    }

    /// Returns the file of this name; `None` if there is none, or if several differ, since it is not known which of them ran.
    fn file(&self, name: &str) -> Option<FileId> {
        let paths = self.paths.get(name)?;
        let contents = |path: &String| self.files.read_path(path);
        let first: Arc<[u8]> = contents(paths.first()?)?;
        let same = |path: &String| contents(path).is_some_and(|other| other == first);
        paths[1..].iter().all(same).then(|| FileId {
            file_system: "tmpfs".into(),
            device: "tmpfs".into(),
            mount: String::new(),
            path: paths[0].clone(),
            inode: 0,
            mapping: 0,
            deleted: false,
        })
    }
}

/// Returns whether a file is a program or a library.
fn is_elf(path: &Path) -> bool {
    let mut begin = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == ELF
}

#[cfg(test)]
mod tests {
    use nodescope_image::{JobFile, job_disk};

    use super::*;

    #[test]
    fn a_file_is_known_where_all_of_its_name_are_equal() {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str, data: &[u8]| JobFile {
            path: path.into(),
            mode: 0o755,
            data: data.to_vec(),
        };
        let files = [
            file("run", b"#!/bin/sh"),
            file("p", b"\x7fELF one"),
            file("a/q", b"\x7fELF one"),
            file("b/q", b"\x7fELF other"),
        ];
        fs::write(dir.path().join(JOB_DISK), job_disk(&files).unwrap()).unwrap();
        let left = dir.path().join(FILES).join("node1");
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("p"), b"\x7fELF one").unwrap();
        std::os::unix::fs::symlink(left.join("p"), left.join("link")).unwrap();
        let locator = Locator::new(dir.path(), Names::here());
        let path = |name| locator.file(name).map(|file| file.path);
        assert_eq!(path("p").as_deref(), Some("/job/p"));
        for name in ["q", "run", "link", "missing"] {
            assert_eq!(path(name), None, "{name}");
        }
    }

    #[test]
    fn damaged_files_give_no_places() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(JOB_DISK), "no archive").unwrap();
        let left = dir.path().join(FILES);
        fs::create_dir(&left).unwrap();
        fs::write(left.join("p"), b"\x7fELF and no more").unwrap();
        let mut names = SiteNames::default();
        names.executables.insert("p".into());
        let site = Site {
            address: 0x20,
            module: 0,
        };
        let mut locator = Locator::new(dir.path(), Names::here());
        locator.add(&mut names, [site, Site::default()]);
        assert_eq!(names.places, BTreeMap::new());
        assert_eq!(names.text(site), "program+0x20");
    }
}
