//! The results folder: locked while a run writes to it, with a list of everything that the run has made there.
//!
//! The next run may replace the files of the list. A file is listed before it is made, so that the list also covers a run that was
//! killed. All other files belong to the user: a run neither removes nor overwrites them. Symbolic links within the folder are
//! never followed, since no run makes any.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use thiserror::Error;

/// Name of the list among the results. Each line is a path relative to the folder; folders end with a slash. The run that writes to
/// the folder holds a lock (`flock`) on it.
pub const LIST: &str = "written.txt";

/// Why a results folder cannot be used, or a file in it not be written.
#[derive(Debug, Error)]
pub enum FolderError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}; results written so far are kept", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// Error of the host.
        source: io::Error,
    },
    /// Another run writes to the folder.
    #[error("another run is writing to {}; wait until it has ended, or give another folder with --results", .0.display())]
    Locked(PathBuf),
    /// The folder has results that must stay.
    #[error("{} already holds results; replace them with --force, or give another folder with --results", .0.display())]
    Occupied(PathBuf),
    /// The folder has files, but no results.
    #[error("{} holds other files than results; give another folder with --results", .0.display())]
    Foreign(PathBuf),
    /// The folder has results, but no list of the files that a run has written.
    #[error(
        "{} holds results without the list of what their run has written ({LIST}), so they cannot be told from files of yours; remove them yourself, or give another folder with --results", .0.display()
    )]
    Unlisted(PathBuf),
    /// A file, link or folder of the user's where a result would go.
    #[error("{} is in the way of a new result, and no run has written it; move it, or give another folder with --results", .0.display())]
    InTheWay(PathBuf),
    /// A path that leaves the folder.
    #[error("{0:?} is no path within the results")]
    Outside(String),
}

/// A results folder. Only this process writes to the folder as long as this value lives.
#[derive(Debug)]
pub struct ResultsFolder {
    path: PathBuf,
    list: Mutex<List>,
}

#[derive(Debug)]
struct List {
    file: File,
    /// Files and folders of the earlier run, until they are removed.
    earlier: Vec<String>,
    /// Files and folders that this run has made, and their order.
    own: BTreeSet<String>,
    order: Vec<String>,
    /// True if the list did not exist before.
    fresh: bool,
}

impl FolderError {
    /// Returns a function for `map_err` that reports a failed write of a file.
    pub fn writing(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
        io_error(path, "write")
    }
}

impl ResultsFolder {
    /// Takes a folder for a new run, and makes the folder if it is missing. Existing files do not change before [`ResultsFolder::clear`].
    /// `marker` is a file by which results without a list are recognised.
    ///
    /// # Errors
    ///
    /// Another run that writes to the folder, files that are not results, or results that must not be replaced.
    pub fn take(path: &Path, marker: &str, replace: bool) -> Result<Self, FolderError> {
        let shown = || path.to_path_buf();
        if !is_file(&path.join(LIST)) && holds_anything(path)? {
            return Err(match is_file(&path.join(marker)) {
                true if replace => FolderError::Unlisted(shown()),
                true => FolderError::Occupied(shown()),
                false => FolderError::Foreign(shown()),
            });
        }
        fs::create_dir_all(path).map_err(io_error(path, "create"))?;
        let mut list = List::open(path)?;
        if !list.fresh {
            list.read(path)?;
            if !list.earlier.is_empty() && !replace {
                return Err(FolderError::Occupied(shown()));
            }
        }
        Ok(Self {
            path: path.into(),
            list: Mutex::new(list),
        })
    }

    /// Creates an empty folder, or replaces the folder of an earlier run, as tests and consoles need.
    ///
    /// # Errors
    ///
    /// See [`ResultsFolder::take`] and [`ResultsFolder::clear`].
    pub fn create(path: &Path) -> Result<Self, FolderError> {
        let folder = Self::take(path, LIST, true)?;
        folder.clear(&[])?;
        Ok(folder)
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the files of the earlier run, and nothing else. `expected` are files that the new run will make: if something of
    /// the user's is in the way of one, nothing is removed.
    ///
    /// # Errors
    ///
    /// Something in the way, or a file that cannot be removed.
    pub fn clear(&self, expected: &[String]) -> Result<(), FolderError> {
        let mut list = self.list();
        let earlier: BTreeSet<&str> = list.earlier.iter().map(String::as_str).collect();
        for name in expected {
            let is_earlier = earlier.contains(name.as_str()) && is_file(&self.path.join(name));
            if let Some(found) = self.in_the_way(name, is_earlier) {
                return Err(FolderError::InTheWay(found));
            }
        }
        for name in earlier.iter().filter(|name| !name.ends_with('/')) {
            self.remove(name)?;
        }
        // A folder is listed before its contents. A folder with a file of the user's stays.
        for name in list.earlier.iter().rev().filter(|name| name.ends_with('/')) {
            if !self.leads_through_link(name) {
                let _ = fs::remove_dir(self.path.join(name));
            }
        }
        let path = self.path.join(LIST);
        list.file
            .set_len(0)
            .and_then(|()| list.file.seek(SeekFrom::Start(0)))
            .map_err(io_error(&path, "write"))?;
        list.earlier.clear();
        Ok(())
    }

    /// Returns the path of a file that this run is about to make. Makes the file's folders, and lists file and folders. The file does not
    /// exist, unless this run has made it before.
    ///
    /// # Errors
    ///
    /// Something of the user's in the way, or a list that cannot be written.
    pub fn reserve(&self, name: &str) -> Result<PathBuf, FolderError> {
        if !is_within(name) {
            return Err(FolderError::Outside(name.into()));
        }
        let mut list = self.list();
        for (end, _) in name.match_indices('/') {
            self.reserve_folder(&mut list, &name[..=end])?;
        }
        let path = self.path.join(name);
        if list.own.contains(name) {
            // A file that the user has put there in the meantime stays.
            return match fs::symlink_metadata(&path) {
                Ok(found) if !found.is_file() => Err(FolderError::InTheWay(path)),
                _ => Ok(path),
            };
        }
        if fs::symlink_metadata(&path).is_ok() {
            return Err(FolderError::InTheWay(path));
        }
        self.add(&mut list, name)?;
        Ok(path)
    }

    /// Creates an empty file for this run. Empties a file of this name that this run has made.
    ///
    /// # Errors
    ///
    /// See [`ResultsFolder::reserve`]; a file that cannot be made.
    pub fn create_file(&self, name: &str) -> Result<(PathBuf, File), FolderError> {
        self.file(name, true)
    }

    /// Opens a file as [`ResultsFolder::create_file`] does, and keeps the bytes that this run has already written to the file.
    ///
    /// # Errors
    ///
    /// See [`ResultsFolder::create_file`].
    pub fn open_file(&self, name: &str) -> Result<(PathBuf, File), FolderError> {
        self.file(name, false)
    }

    fn file(&self, name: &str, anew: bool) -> Result<(PathBuf, File), FolderError> {
        let path = self.reserve(name)?;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(anew)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(&path)
            .map_err(io_error(&path, "write"))?;
        Ok((path, file))
    }

    /// Writes a whole file. An earlier file of this run is replaced as a whole or not at all.
    ///
    /// # Errors
    ///
    /// See [`ResultsFolder::create_file`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, FolderError> {
        let path = self.reserve(name)?;
        let (partial, mut file) = self.create_file(&format!("{name}{PARTIAL}"))?;
        file.write_all(bytes)
            .and_then(|()| fs::rename(&partial, &path))
            .map_err(|source| {
                // On a full disk the incomplete file would only be in the way.
                let _ = fs::remove_file(&partial);
                io_error(&path, "write")(source)
            })?;
        Ok(path)
    }

    /// Returns the files that this run has listed below a folder within the results, by their names there, in the order in which they were
    /// listed. Files that could not be made are missing.
    pub fn own_files(&self, below: &str) -> Vec<String> {
        let below = format!("{below}/");
        let list = self.list();
        let names = (list.order.iter()).filter_map(|name| name.strip_prefix(&below));
        let files = names.filter(|name| !name.is_empty() && !name.ends_with('/'));
        files.map(str::to_owned).collect()
    }

    fn list(&self) -> std::sync::MutexGuard<'_, List> {
        // After a panic the list is still good: it may name files that do not exist.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, list: &mut List, name: &str) -> Result<(), FolderError> {
        // One system call: the list is cut within a line only if the host goes down.
        list.file
            .write_all(format!("{name}\n").as_bytes())
            .map_err(io_error(&self.path.join(LIST), "write"))?;
        list.own.insert(name.into());
        list.order.push(name.into());
        Ok(())
    }

    /// Makes a folder within the results; `name` ends with a slash.
    fn reserve_folder(&self, list: &mut List, name: &str) -> Result<(), FolderError> {
        let path = self.path.join(name.trim_end_matches('/'));
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => return Ok(()),
            Ok(_) => return Err(FolderError::InTheWay(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error(&path, "create")(error)),
        }
        if !list.own.contains(name) {
            self.add(list, name)?;
        }
        fs::create_dir(&path).map_err(io_error(&path, "create"))
    }

    /// Removes a file that a run has made, unless it is gone or something else lies in its place.
    fn remove(&self, name: &str) -> Result<(), FolderError> {
        let path = self.path.join(name);
        if self.leads_through_link(name) || !is_file(&path) {
            return Ok(());
        }
        fs::remove_file(&path).map_err(io_error(&path, "remove"))
    }

    /// Returns the obstacle to a new file: something in its place, unless that `is_earlier` and will be removed, or something on the way to
    /// it that is no folder.
    fn in_the_way(&self, name: &str, is_earlier: bool) -> Option<PathBuf> {
        let folders = name.match_indices('/').map(|(end, _)| &name[..end]);
        for folder in folders {
            let path = self.path.join(folder);
            if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_dir()) {
                return Some(path);
            }
        }
        let path = self.path.join(name);
        (!is_earlier && fs::symlink_metadata(&path).is_ok()).then_some(path)
    }

    /// Returns whether a folder on the way to a listed path has become a link.
    fn leads_through_link(&self, name: &str) -> bool {
        let name = name.trim_end_matches('/');
        let folders = name.match_indices('/').map(|(end, _)| &name[..end]);
        folders.chain([name]).any(|part| {
            fs::symlink_metadata(self.path.join(part)).is_ok_and(|found| found.is_symlink())
        })
    }
}

impl Drop for ResultsFolder {
    /// Removes the folder of a run that has made nothing.
    fn drop(&mut self) {
        let list = self.list.get_mut().unwrap_or_else(PoisonError::into_inner);
        if list.fresh && list.own.is_empty() {
            let _ = fs::remove_file(self.path.join(LIST));
            // Only an empty folder is removed.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// The end of the name of a file that is being written to replace another.
const PARTIAL: &str = ".partial";

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_path_buf();
    move |source| FolderError::Io {
        path,
        action,
        source,
    }
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

/// Returns whether a name leads to something in the folder, by nothing but plain names.
fn is_within(name: &str) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    let path = Path::new(name);
    !name.is_empty()
        && !name.contains(['\n', '\0'])
        && path.components().all(plain)
        // Components pass over ".", "//" and a slash at the end.
        && path.components().count() == name.split('/').count()
        && name != LIST
}

fn holds_anything(path: &Path) -> Result<bool, FolderError> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error(path, "list")(error)),
    }
}

impl List {
    /// Opens the list in a folder, or makes it, and locks it.
    fn open(folder: &Path) -> Result<List, FolderError> {
        let path = folder.join(LIST);
        loop {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
            let (file, fresh) = match options.clone().create_new(true).open(&path) {
                Ok(file) => (file, true),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    match options.open(&path) {
                        Ok(file) => (file, false),
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        Err(error) => return Err(io_error(&path, "open")(error)),
                    }
                }
                Err(error) => return Err(io_error(&path, "write")(error)),
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(FolderError::Locked(folder.into()));
                }
                // Some file systems cannot lock. A run there is as good as before, as long as no other run uses the folder.
                Err(error) => {
                    tracing::warn!(
                        "{} cannot be locked ({error}): start no second run there",
                        path.display()
                    );
                }
            }
            // A run that made nothing may have removed the list between these two steps: the lock is then on a file without a name.
            let opened = file.metadata().map_err(io_error(&path, "open"))?;
            let named = fs::symlink_metadata(&path);
            if named.is_ok_and(|named| (named.dev(), named.ino()) == (opened.dev(), opened.ino())) {
                return Ok(List {
                    file,
                    earlier: Vec::new(),
                    own: BTreeSet::new(),
                    order: Vec::new(),
                    fresh,
                });
            }
        }
    }

    fn read(&mut self, folder: &Path) -> Result<(), FolderError> {
        let path = folder.join(LIST);
        let mut bytes = Vec::new();
        self.file
            .read_to_end(&mut bytes)
            .map_err(io_error(&path, "read"))?;
        let text = String::from_utf8_lossy(&bytes);
        // The last line may be cut where the host went down: its file was not made yet. No run writes a line that leads elsewhere.
        self.earlier = text
            .split_inclusive('\n')
            .filter_map(|line| line.strip_suffix('\n'))
            .filter(|name| is_within(name.strip_suffix('/').unwrap_or(name)))
            .map(str::to_owned)
            .collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
