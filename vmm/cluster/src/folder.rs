//! The results folder: locked while a run writes to it, with a list of everything that the run has created in it.
//!
//! The next run may replace the files of the list. A file is listed before it is created, so that the list also covers a run that was
//! killed. All other files belong to the user: a run neither removes nor overwrites them. Symbolic links within the folder are never
//! followed, since no run creates any.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use thiserror::Error;

/// File name of the list. Each line is a path relative to the folder; folders end with a slash. The run that writes to the folder has a
/// lock (`flock`) on the list.
pub const LIST: &str = "written.txt";

/// Reason for which a results folder cannot be used, or a file in it cannot be written.
#[derive(Debug, Error)]
pub enum FolderError {
    /// The operating system refused an action on a file or folder.
    #[error("cannot {action} {}: {source}; results written so far are kept", .path.display())]
    Io {
        /// File or folder on which the action failed.
        path: PathBuf,
        /// The action that failed, as a verb such as `write`.
        action: &'static str,
        /// Error of the host.
        source: io::Error,
    },
    /// Another run writes to the folder.
    #[error("another run is writing to {}; wait until it has ended, or give another folder with --results", .0.display())]
    Locked(PathBuf),
    /// The folder has results, and the run was not told to replace them.
    #[error("{} already holds results; replace them with --force, or give another folder with --results", .0.display())]
    Occupied(PathBuf),
    /// The folder has files, but no results.
    #[error("{} holds other files than results; give another folder with --results", .0.display())]
    Foreign(PathBuf),
    /// The folder has results, which the run was told to replace, but no list of the files that a run has written.
    #[error(
        "{} holds results without the list of what their run has written ({LIST}), so they cannot be told from files of yours; remove them yourself, or give another folder with --results", .0.display()
    )]
    Unlisted(PathBuf),
    /// A file, link or folder of the user has the path of a new result.
    #[error("{} is in the way of a new result, and no run has written it; move it, or give another folder with --results", .0.display())]
    InTheWay(PathBuf),
    /// The path is not within the folder, is not a plain one, or is that of the list.
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
    /// Files and folders that this run has created; `order` has them in the order of creation.
    own: BTreeSet<String>,
    order: Vec<String>,
    /// True if this run has created the list.
    fresh: bool,
}

impl FolderError {
    /// Returns a function for `map_err` that reports a failed write of a file.
    pub fn writing(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
        io_error(path, "write")
    }
}

impl ResultsFolder {
    /// Locks a folder for a new run, and creates the folder if it is missing. Existing files do not change before [`ResultsFolder::clear`].
    /// A file `marker` shows that a folder without a list has results. With `replace`, listed results may be replaced.
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

    /// Locks an empty or new folder, or one with the results of an earlier run, which are removed. Used for temporary folders, such as
    /// those of consoles, workers and tests.
    ///
    /// # Errors
    ///
    /// See [`ResultsFolder::take`] and [`ResultsFolder::clear`].
    pub fn create(path: &Path) -> Result<Self, FolderError> {
        let folder = Self::take(path, LIST, true)?;
        folder.clear(&[])?;
        Ok(folder)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the files of the earlier run, and nothing else. `expected` are paths of files that the new run will create. If something of
    /// the user has one of these paths, nothing is removed.
    ///
    /// # Errors
    ///
    /// Something of the user at the path of a new file, or a file that cannot be removed.
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
        // A folder is listed before its contents, so the reverse order removes contents first. A folder with a file of the user remains.
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

    /// Returns the path of a file that this run is about to create. Creates the file's folders, and lists the file and the folders. The
    /// file does not exist, unless this run has created it before.
    ///
    /// # Errors
    ///
    /// Something of the user at this path, a path that leads out of the folder, or a list that cannot be written.
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
            // Where the user has replaced the run's file by a link or folder, that remains.
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

    /// Creates an empty file for this run, or empties a file that this run has created under this name.
    ///
    /// # Errors
    ///
    /// See [`ResultsFolder::reserve`]; a file that cannot be created.
    pub fn create_file(&self, name: &str) -> Result<(PathBuf, File), FolderError> {
        self.file(name, true)
    }

    /// Opens a file as [`ResultsFolder::create_file`] does, but without removing the bytes that this run has already written to the file.
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

    /// Writes a whole file. A file of this name from this run is replaced completely or not at all.
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
                // An incomplete file is of no use, and takes space on a full disk.
                let _ = fs::remove_file(&partial);
                io_error(&path, "write")(source)
            })?;
        Ok(path)
    }

    /// Returns the files that this run has listed below a folder of the results, by their paths within that folder, in the order in which
    /// they were listed. Files whose creation failed after that are included.
    pub fn own_files(&self, below: &str) -> Vec<String> {
        let below = format!("{below}/");
        let list = self.list();
        let names = (list.order.iter()).filter_map(|name| name.strip_prefix(&below));
        let files = names.filter(|name| !name.is_empty() && !name.ends_with('/'));
        files.map(str::to_owned).collect()
    }

    fn list(&self) -> std::sync::MutexGuard<'_, List> {
        // After a panic the list is still valid: at worst it names files that do not exist.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, list: &mut List, name: &str) -> Result<(), FolderError> {
        // The line is written with one system call, so that a line is incomplete only if the host crashes.
        list.file
            .write_all(format!("{name}\n").as_bytes())
            .map_err(io_error(&self.path.join(LIST), "write"))?;
        list.own.insert(name.into());
        list.order.push(name.into());
        Ok(())
    }

    /// Lists and creates a folder within the results, unless it exists; `name` ends with a slash.
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

    /// Removes a file that the earlier run has created. Does nothing if the file is gone, or if its path now has something else.
    fn remove(&self, name: &str) -> Result<(), FolderError> {
        let path = self.path.join(name);
        if self.leads_through_link(name) || !is_file(&path) {
            return Ok(());
        }
        fs::remove_file(&path).map_err(io_error(&path, "remove"))
    }

    /// Returns what prevents the creation of a file: something at its path, unless `is_earlier` (it will be removed), or something other
    /// than a folder at the path of one of its folders. Returns `None` if nothing does.
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

    /// Returns whether a listed path, or a folder on it, is now a symbolic link.
    fn leads_through_link(&self, name: &str) -> bool {
        let name = name.trim_end_matches('/');
        let folders = name.match_indices('/').map(|(end, _)| &name[..end]);
        folders.chain([name]).any(|part| {
            fs::symlink_metadata(self.path.join(part)).is_ok_and(|found| found.is_symlink())
        })
    }
}

impl Drop for ResultsFolder {
    /// Removes the list and the folder if this run has created the list and nothing else.
    fn drop(&mut self) {
        let list = self.list.get_mut().unwrap_or_else(PoisonError::into_inner);
        if list.fresh && list.own.is_empty() {
            let _ = fs::remove_file(self.path.join(LIST));
            // Only an empty folder is removed.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Ending of the name of a file that is written to replace another one.
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

/// Returns whether a name is a path within the folder that consists only of plain names, and is not the list's.
fn is_within(name: &str) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    let path = Path::new(name);
    !name.is_empty()
        && !name.contains(['\n', '\0'])
        && path.components().all(plain)
        // `components` ignores ".", "//" and a slash at the end, so the counts differ for such names.
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
    /// Opens or creates the list in a folder, and locks it.
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
                // Some file systems cannot lock. A run there works, as long as no other run uses the folder.
                Err(error) => {
                    tracing::warn!(
                        "{} cannot be locked ({error}): start no second run there",
                        path.display()
                    );
                }
            }
            // A run that created nothing may have removed the list between opening and locking: the lock is then on a deleted file.
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
        // The last line is incomplete if the host crashed: its file was not created yet. Lines that lead out of the folder are not from a
        // run.
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
