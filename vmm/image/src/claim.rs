//! Locks that let one process at a time build an image, and removal of files that killed builds have left.
//!
//! A build holds a lock on the file `KEY.lock` in the cache from its beginning to its end. The kernel drops the lock of a process that
//! dies. A build unpacks into folders that have the key in their names. The process that holds a key's lock may therefore remove such
//! folders: no other build uses them.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::ImageError;
use crate::options::BuildOptions;

/// Time between two attempts to lock a file that another build has locked.
const PATIENCE: Duration = Duration::from_millis(100);

/// Exclusive right to build an image, until dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    _lock: File,
    key: String,
    /// Error of the lock operation on a file system that doesn't support locks; `None` if the file is locked.
    unlocked: Option<Errno>,
}

impl Claim {
    /// Takes the right to build the image `key`. While another process has the right, waits, and calls `waiting` once.
    ///
    /// # Errors
    ///
    /// The lock file cannot be opened or created; or [`ImageError::Interrupted`].
    pub(crate) fn take(
        cache_dir: &Path,
        key: &str,
        options: &BuildOptions<'_>,
        mut waiting: impl FnMut(),
    ) -> Result<Claim, ImageError> {
        let mut told = false;
        loop {
            if let Some(claim) = Claim::try_take(cache_dir, key)? {
                return Ok(claim);
            }
            if !told {
                waiting();
                told = true;
            }
            options.check()?;
            thread::sleep(PATIENCE);
        }
    }

    /// Takes the right if no other process has it; `None` otherwise.
    pub(crate) fn try_take(cache_dir: &Path, key: &str) -> Result<Option<Claim>, ImageError> {
        let path = cache_dir.join(format!("{key}.lock"));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(ImageError::io("open", &path))?;
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(Claim::of(file, key, locked))
    }

    /// Returns the claim after an attempt to lock its file; `None` if another process has the lock.
    fn of(file: File, key: &str, locked: Result<(), Errno>) -> Option<Claim> {
        let unlocked = match locked {
            Ok(()) => None,
            Err(Errno::WOULDBLOCK) => return None,
            // Some file systems cannot lock files. A build works there too, as long as no other build runs.
            Err(error) => Some(error),
        };
        Some(Claim {
            _lock: file,
            key: key.to_owned(),
            unlocked,
        })
    }

    /// Makes a new folder of this build in `parent`, removed when dropped.
    pub(crate) fn folder(&self, parent: &Path) -> Result<TempDir, ImageError> {
        tempfile::Builder::new()
            .prefix(&prefix(&self.key))
            // If a plain user builds, the packages' scripts run as another user, who needs access to the folder.
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in(parent)
            .map_err(ImageError::io("create a folder in", parent))
    }
}

/// Removes the folders that killed builds have left in `folders`, and reports each to `progress`. Without a lock the function removes
/// nothing, since another build may be using the folders.
///
/// # Errors
///
/// The lock file of a build cannot be opened or created.
pub(crate) fn remove_leftovers(
    cache_dir: &Path,
    own: &Claim,
    folders: &[&Path],
    progress: &mut dyn FnMut(&str),
) -> Result<(), ImageError> {
    if let Some(error) = own.unlocked {
        progress(&format!(
            "warning: {} cannot be locked ({error}): start no second build there; what killed builds left stays",
            cache_dir.join(format!("{}.lock", own.key)).display()
        ));
        return Ok(());
    }
    for folder in folders {
        for (path, key) in leftovers(folder) {
            // Another process may be building the image with this key.
            let claim = if key == own.key {
                None
            } else {
                match Claim::try_take(cache_dir, &key)? {
                    Some(claim) if claim.unlocked.is_none() => Some(claim),
                    _ => continue,
                }
            };
            let removed = match mounts_below(&path) {
                // Removal would delete the mounted files too.
                true => Err("something is mounted in it; unmount that".to_owned()),
                false => fs::remove_dir_all(&path).map_err(|error| error.to_string()),
            };
            match removed {
                Ok(()) => progress(&format!(
                    "removed what a killed build left in {}",
                    path.display()
                )),
                Err(problem) => progress(&format!(
                    "cannot remove {}, which a killed build left: {problem}",
                    path.display()
                )),
            }
            drop(claim);
        }
    }
    Ok(())
}

/// Returns the prefix of the names of a build's folders.
fn prefix(key: &str) -> String {
    format!(".nodescope-build-{key}-")
}

/// Returns the builds' folders in `folder`, sorted, each with the key in its name.
fn leftovers(folder: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (key, _) = name.strip_prefix(".nodescope-build-")?.split_once('-')?;
            let is_key = key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit());
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            (is_key && is_folder).then(|| (entry.path(), key.to_owned()))
        })
        .collect();
    found.sort();
    found
}

/// Returns whether this process sees a mount at a folder or below it (proc(5), /proc/PID/mountinfo: the fifth field is the mount point).
/// Returns true if that can't be determined.
fn mounts_below(folder: &Path) -> bool {
    let Ok(folder) = fs::canonicalize(folder) else {
        return true;
    };
    let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") else {
        return true;
    };
    let mut places = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        // Blanks and other special characters are in octal. The names of the builds' folders have none.
        .map(|place| place.replace("\\040", " "));
    places.any(|place| Path::new(&place).starts_with(&folder))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef";
    const OTHER: &str = "fedcba9876543210fedcba9876543210";

    fn take(cache: &Path, key: &str) -> Claim {
        Claim::take(cache, key, &BuildOptions::default(), || {
            panic!("it is free")
        })
        .unwrap()
    }

    #[test]
    fn the_second_build_of_an_image_waits_for_the_first() {
        let cache = tempfile::tempdir().unwrap();
        let first = take(cache.path(), KEY);
        drop(take(cache.path(), OTHER));
        let waits = AtomicBool::new(false);
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                let options = BuildOptions::default();
                Claim::take(cache.path(), KEY, &options, || {
                    waits.store(true, Ordering::SeqCst);
                })
            });
            while !waits.load(Ordering::SeqCst) {
                assert!(!second.is_finished());
                thread::yield_now();
            }
            drop(first);
            second.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_build_that_waits_can_be_interrupted() {
        let cache = tempfile::tempdir().unwrap();
        let _first = take(cache.path(), KEY);
        let stop = AtomicBool::new(false);
        let options = BuildOptions {
            stop: Some(&stop),
            ..BuildOptions::default()
        };
        let result = Claim::take(cache.path(), KEY, &options, || {
            stop.store(true, Ordering::SeqCst);
        });
        assert!(matches!(result, Err(ImageError::Interrupted)));
    }

    #[test]
    fn leftovers_go_and_what_others_work_in_stays() {
        let cache = tempfile::tempdir().unwrap();
        let temporary = tempfile::tempdir().unwrap();
        let folders = [cache.path(), temporary.path()];
        let busy = take(cache.path(), OTHER);
        let kept = busy.folder(temporary.path()).unwrap();
        // Folders that were kept, as those of a killed build are.
        for (key, parent) in [(KEY, 0), (KEY, 1), (&KEY.replace('0', "1"), 1)] {
            let folder = take(cache.path(), key).folder(folders[parent]).unwrap();
            fs::write(folder.path().join("root.tar"), "half").unwrap();
            let _ = folder.keep();
        }
        let unrelated = temporary.path().join(".nodescope-build-of-mine");
        fs::create_dir(&unrelated).unwrap();
        let own = take(cache.path(), KEY);
        let mut said = Vec::new();
        let mut say = |line: &str| said.push(line.to_owned());
        remove_leftovers(cache.path(), &own, &folders, &mut say).unwrap();
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(
            said.iter().all(|line| line.starts_with("removed what")),
            "{said:?}"
        );
        assert!(leftovers(cache.path()).is_empty());
        assert_eq!(
            leftovers(temporary.path()),
            [(kept.path().to_path_buf(), OTHER.to_owned())]
        );
        assert!(unrelated.is_dir());
    }

    #[test]
    fn without_locks_a_build_goes_on_and_removes_nothing() {
        let cache = tempfile::tempdir().unwrap();
        let folder = take(cache.path(), KEY).folder(cache.path()).unwrap();
        let file = tempfile::tempfile().unwrap();
        assert!(Claim::of(file.try_clone().unwrap(), KEY, Err(Errno::WOULDBLOCK)).is_none());
        let own = Claim::of(file, KEY, Err(Errno::NOLCK)).unwrap();
        let mut said = Vec::new();
        let mut say = |line: &str| said.push(line.to_owned());
        remove_leftovers(cache.path(), &own, &[cache.path()], &mut say).unwrap();
        assert!(folder.path().is_dir());
        assert!(
            said.len() == 1 && said[0].contains("cannot be locked"),
            "{said:?}"
        );
    }

    #[test]
    fn mounts_are_seen() {
        assert!(mounts_below(Path::new("/")));
        assert!(mounts_below(Path::new("/proc")));
        let dir = tempfile::tempdir().unwrap();
        assert!(!mounts_below(dir.path()));
        assert!(mounts_below(&dir.path().join("absent")));
    }
}
