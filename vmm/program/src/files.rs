//! The files of a guest: those of the job, and those of the image's root disk.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ext4_view::{Ext4, Ext4Error};

/// Folder of the job's files in the guest.
pub(crate) const JOB: &str = "/job";
/// Maximum size of a file that is read, bytes.
const MOST_BYTES: u64 = 1 << 30;

/// A file of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Path on the host; `None` for a file of the image.
    pub host: Option<PathBuf>,
    pub executable: bool,
    pub folder: bool,
}

/// The files of a guest.
pub(crate) struct Files {
    /// Files of the job on the host, by their paths in the guest.
    job: BTreeMap<String, PathBuf>,
    /// The image's root disk; `None` if there is none, or if its file system cannot be read.
    image: Option<Ext4>,
}

impl Files {
    /// `job` has paths on the host and paths below `/job`; `root` is the image's root disk.
    pub fn new(job: &[(PathBuf, String)], root: Option<&Path>) -> Files {
        let place = |(host, name): &(PathBuf, String)| (format!("{JOB}/{name}"), host.clone());
        Files {
            job: job.iter().map(place).collect(),
            image: root.and_then(|root| Ext4::load_from_path(root).ok()),
        }
    }

    /// Returns whether the files of the image are known.
    pub fn has_image(&self) -> bool {
        self.image.is_some()
    }

    /// Returns the files of the job: paths in the guest and on the host.
    pub fn of_job(&self) -> impl Iterator<Item = (&str, &Path)> {
        (self.job.iter()).map(|(name, host)| (name.as_str(), host.as_path()))
    }

    /// Finds a file by its absolute path. Returns `None` if the guest has no such file, or if the image is unknown or damaged there.
    pub fn find(&self, path: &str) -> Option<Found> {
        let path = normal(path);
        if let Some(host) = self.job.get(&path) {
            let mode = std::fs::metadata(host).map_or(0, |data| data.permissions().mode());
            return Some(Found {
                host: Some(host.clone()),
                executable: mode & 0o111 != 0,
                folder: false,
            });
        }
        let metadata = self.image.as_ref()?.metadata(path.as_str()).ok()?;
        Some(Found {
            host: None,
            executable: metadata.mode() & 0o111 != 0,
            folder: metadata.is_dir(),
        })
    }

    /// Returns whether it is certain that the guest has no such file when the job starts.
    pub fn lacks(&self, path: &str) -> bool {
        let path = normal(path);
        if self.job.contains_key(&path) {
            return false;
        }
        // The job's folder has the job's files alone.
        if path.starts_with("/job/") {
            return true;
        }
        let Some(image) = &self.image else {
            return false;
        };
        matches!(
            image.metadata(path.as_str()),
            Err(Ext4Error::NotFound | Ext4Error::NotADirectory)
        )
    }

    /// Reads a file. Returns `None` if the guest has no such file, or if the file is too long or cannot be read.
    pub fn read(&self, path: &str) -> Option<Arc<[u8]>> {
        let path = normal(path);
        if let Some(host) = self.job.get(&path) {
            let length = std::fs::metadata(host).ok()?.len();
            return (length <= MOST_BYTES)
                .then(|| std::fs::read(host).ok())?
                .map(Into::into);
        }
        let image = self.image.as_ref()?;
        let metadata = image.metadata(path.as_str()).ok()?;
        (!metadata.is_dir() && metadata.len() <= MOST_BYTES).then_some(())?;
        Some(image.read(path.as_str()).ok()?.into())
    }
}

/// Returns an absolute path without empty components, `.` and `..`. A symbolic link before `..` is not followed.
pub(crate) fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_job_are_found_by_any_spelling() {
        let folder = tempfile::tempdir().unwrap();
        let host = folder.path().join("app");
        std::fs::write(&host, "x").unwrap();
        let files = Files::new(&[(host.clone(), "bin/app".into())], None);
        for path in ["/job/bin/app", "/job/./bin//app", "/job/lib/../bin/app"] {
            let found = files.find(path).unwrap();
            assert_eq!((found.host, found.executable), (Some(host.clone()), false));
            assert_eq!(files.read(path).as_deref(), Some(&b"x"[..]));
        }
        assert!(files.lacks("/job/app"));
        // Without an image, nothing is known of other folders.
        assert!(!files.lacks("/usr/bin/true") && files.find("/usr/bin/true").is_none());
    }
}
