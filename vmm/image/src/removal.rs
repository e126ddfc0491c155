//! Removal of images from the cache, and leases, which keep an image while a run uses it.
//!
//! A lease is a shared lock (`flock`) on the image's folder. A removal takes the lock alone, and moves the folder away in one step. The
//! kernel drops the locks of a process that dies.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::claim::Claim;
use crate::{Image, ImageError, ImageSpec, InputSet};

/// Right to use an image, until dropped: the image is not removed.
#[derive(Debug)]
pub struct Lease {
    _folder: File,
}

/// An image that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Key of the image.
    pub key: String,
    /// Disk space that the image's files took, bytes.
    pub bytes: u64,
}

impl Image {
    /// Returns the right to use this image. On a file system without locks, nothing keeps the image from removal.
    ///
    /// # Errors
    ///
    /// [`ImageError::Gone`] if the image has been removed since it was opened; [`ImageError::Io`] if its folder cannot be opened.
    pub fn lease(&self) -> Result<Lease, ImageError> {
        let gone = || ImageError::Gone(self.dir.clone());
        let folder = match File::open(&self.dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(gone()),
            opened => opened.map_err(ImageError::io("open", &self.dir))?,
        };
        match flock(&folder, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => return Err(gone()),
            Err(error) => tracing::debug!("{}: no lock: {error}", self.dir.display()),
            Ok(()) => {}
        }
        // The folder may have been moved away between the two calls.
        let same = |a: &fs::Metadata, b: &fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        match (folder.metadata(), fs::metadata(&self.dir)) {
            (Ok(opened), Ok(found)) if same(&opened, &found) => Ok(Lease { _folder: folder }),
            _ => Err(gone()),
        }
    }

    /// Returns whether the recipe of `spec` makes this image, with the same or other packages of a study.
    ///
    /// # Errors
    ///
    /// The recipe cannot be read.
    pub fn is_of(&self, spec: &ImageSpec) -> Result<bool, ImageError> {
        let own = |inputs: &InputSet| -> Vec<_> {
            let of_study = |name: &str| name == "mirror" || name.starts_with("package/");
            let inputs = inputs.0.iter();
            inputs
                .filter(|input| !of_study(&input.name))
                .cloned()
                .collect()
        };
        Ok(own(&self.manifest.inputs) == own(&InputSet::of(spec)?))
    }
}

/// Removes the image with this key from the cache, damaged or not, with the log of its build.
///
/// # Errors
///
/// [`ImageError::InUse`] while a run uses the image or a process builds it; [`ImageError::Io`] if there is no such image or it cannot be
/// removed.
pub fn remove(cache_dir: &Path, key: &str) -> Result<Removed, ImageError> {
    let dir = cache_dir.join(key);
    let in_use = |what| ImageError::InUse {
        dir: dir.clone(),
        what,
    };
    let folder = File::open(&dir).map_err(ImageError::io("open", &dir))?;
    let claim = Claim::try_take(cache_dir, key)?.ok_or_else(|| in_use("a process builds it"))?;
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(in_use("a run uses it")),
        Err(_) => {
            return Err(in_use(
                "a run may use it, since this file system has no locks; remove the folder yourself",
            ));
        }
    }
    let bytes = disk_space(&dir);
    // A removal that is killed leaves a folder as a killed build does. The next build removes it.
    let away = claim.folder(cache_dir)?;
    fs::rename(&dir, away.path().join(key)).map_err(ImageError::io("remove", &dir))?;
    let path = away.path().to_path_buf();
    away.close().map_err(ImageError::io("remove", &path))?;
    let log = cache_dir.join(format!("{key}.log"));
    match fs::remove_file(&log) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(ImageError::io("remove", &log)(error));
        }
        _ => {}
    }
    Ok(Removed {
        key: key.to_owned(),
        bytes,
    })
}

/// Returns the disk space that the files in a folder take, bytes; files that cannot be examined count nothing.
fn disk_space(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| entry.metadata().ok());
    found.map(|found| found.blocks() * 512).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::plant;
    use crate::key::tests::sample;
    use crate::{find, keys};

    #[test]
    fn an_image_goes_unless_a_run_uses_it_or_a_process_builds_it() {
        let (_recipe, spec) = sample();
        let cache = tempfile::tempdir().unwrap();
        let dir = plant(&spec, cache.path());
        let image = find(&spec, cache.path()).unwrap().unwrap();
        let key = image.manifest.key.clone();
        fs::write(cache.path().join(format!("{key}.log")), "said").unwrap();
        let leases = [image.lease().unwrap(), image.lease().unwrap()];
        let error = remove(cache.path(), &key).unwrap_err().to_string();
        assert!(error.contains("a run uses it"), "{error}");
        drop(leases);
        let claim = Claim::try_take(cache.path(), &key).unwrap().unwrap();
        let error = remove(cache.path(), &key).unwrap_err().to_string();
        assert!(error.contains("a process builds it"), "{error}");
        drop(claim);
        assert!(dir.is_dir());
        let removed = remove(cache.path(), &key).unwrap();
        assert!(removed.bytes >= 200_000, "{removed:?}");
        assert_eq!(removed.key, key);
        let left: Vec<_> = fs::read_dir(cache.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "the lock's file alone: {left:?}");
        assert!(matches!(image.lease(), Err(ImageError::Gone(_))));
        assert!(remove(cache.path(), &key).is_err());
    }

    #[test]
    fn a_damaged_image_goes_and_an_outdated_one_is_known() {
        let (_recipe, spec) = sample();
        let cache = tempfile::tempdir().unwrap();
        plant(&spec, cache.path());
        let image = find(&spec, cache.path()).unwrap().unwrap();
        let other = ImageSpec {
            packages: vec!["gcc".into()],
            mirror: Some("http://archive.example".into()),
            ..spec.clone()
        };
        assert!(image.is_of(&other).unwrap());
        fs::write(spec.recipe.join("root/etc/motd"), "changed\n").unwrap();
        assert!(!image.is_of(&spec).unwrap());
        fs::write(image.dir.join("manifest.json"), "{").unwrap();
        assert_eq!(
            keys(cache.path()).unwrap(),
            vec![image.manifest.key.clone()]
        );
        remove(cache.path(), &image.manifest.key).unwrap();
        assert!(keys(cache.path()).unwrap().is_empty());
    }
}
