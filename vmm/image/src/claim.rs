//! Lets one process at a time build an image, and removes the files of builds that were killed.
//!
//! A build holds a lock on the file `KEY.lock` in the cache from its beginning to its end, however the build ends: the kernel drops
//! the lock of a process that dies. A build unpacks into folders that bear the key. The process that has a key's lock may therefore
//! remove such folders: nobody works in them.

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

/// The right to build an image, until dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    _lock: File,
    key: String,
    /// Why the file could not be locked, on a file system without locks.
    unlocked: Option<Errno>,
}

impl Claim {
    /// Takes the right to build the image `key`. While another process has the right, the call waits, and calls `waiting` once.
    ///
    /// # Errors
    ///
    /// The lock's file cannot be made; or [`ImageError::Interrupted`].
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

    fn try_take(cache_dir: &Path, key: &str) -> Result<Option<Claim>, ImageError> {
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

    /// Returns the claim after an attempt to lock its file; none if another process has the lock.
    fn of(file: File, key: &str, locked: Result<(), Errno>) -> Option<Claim> {
        let unlocked = match locked {
            Ok(()) => None,
            Err(Errno::WOULDBLOCK) => return None,
            // Some file systems cannot lock. A build there works, too, as long as no other build runs.
            Err(error) => Some(error),
        };
        Some(Claim {
            _lock: file,
            key: key.to_owned(),
            unlocked,
        })
    }

    /// Makes a fresh folder of this build in `parent`.
    pub(crate) fn folder(&self, parent: &Path) -> Result<TempDir, ImageError> {
        tempfile::Builder::new()
            .prefix(&prefix(&self.key))
            // Where a plain user builds, the packages' scripts run as another user, who must get in.
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in(parent)
            .map_err(ImageError::io("create a folder in", parent))
    }
}

/// Removes the folders that killed builds have left in `folders`. Without a lock the function removes nothing, since another build may
/// work there. Tells `progress` which folders cannot be removed.
///
/// # Errors
///
/// The lock's file of a build cannot be made.
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
            // Another image may be under construction.
            let claim = if key == own.key {
                None
            } else {
                match Claim::try_take(cache_dir, &key)? {
                    Some(claim) if claim.unlocked.is_none() => Some(claim),
                    _ => continue,
                }
            };
            let removed = match mounts_below(&path) {
                // Removal would go through a mount, into the mounted files.
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

/// Returns the beginning of the names of a build's folders.
fn prefix(key: &str) -> String {
    format!(".nodescope-build-{key}-")
}

/// Returns the folders of builds in a folder, with their keys.
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

/// Returns whether this process sees a mount in a folder (proc(5), /proc/PID/mountinfo: the fifth field is where). If in doubt,
/// yes.
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
        // Blanks and other special characters are octal there. The names of the folders have none, and the path before the names does not
        // matter.
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
        // A build that is killed removes nothing.
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
