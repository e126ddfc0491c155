//! Results of `llvm-mca`, stored in a folder. The file name is a hash of everything that a result depends on.
//!
//! A file is written under a temporary name in the same folder and then renamed, so readers see only complete files, even if several
//! processes write. A file that is not a valid result, such as a truncated one, counts as absent and is written again.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::CoreError;

/// Version of the file format; it changes whenever the meaning of the files changes.
const FORMAT: &str = "nodescope core 1";

/// Folder of results; without a folder nothing is stored or found.
pub(crate) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// Opens a folder of results, and creates the folder if it does not exist. Without a folder, does nothing.
    pub fn new(folder: Option<&Path>) -> Result<Self, CoreError> {
        if let Some(folder) = folder {
            std::fs::create_dir_all(folder).map_err(|error| CoreError::File {
                path: folder.into(),
                error,
            })?;
        }
        Ok(Self {
            folder: folder.map(Path::to_path_buf),
        })
    }

    /// Returns the hash of all that a result depends on, which is the file name of the result.
    pub fn key(parts: &[&str]) -> String {
        let mut hasher = blake3::Hasher::new();
        for part in [FORMAT].iter().chain(parts) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Returns a stored result; None if there is no valid file.
    pub fn load<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        let file = self.folder.as_ref()?.join(key);
        serde_json::from_slice(&std::fs::read(file).ok()?).ok()
    }

    /// Stores a result; does nothing without a folder.
    pub fn store<T: Serialize>(&self, key: &str, value: &T) -> Result<(), CoreError> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let failed = |error| CoreError::File {
            path: folder.clone(),
            error,
        };
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        let text = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
        file.write_all(&text).map_err(failed)?;
        file.persist(folder.join(key))
            .map_err(|error| failed(error.error))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_back_and_cut_files_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(Some(&folder.path().join("a/b"))).unwrap();
        let key = Cache::key(&["one", "two"]);
        assert_ne!(key, Cache::key(&["onet", "wo"]));
        let value: Result<u64, String> = Ok(7);
        assert_eq!(cache.load::<Result<u64, String>>(&key), None);
        cache.store(&key, &value).unwrap();
        assert_eq!(cache.load(&key), Some(value.clone()));
        let file = folder.path().join("a/b").join(&key);
        let whole = std::fs::read(&file).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(cache.load::<Result<u64, String>>(&key), None, "{length}");
        }
        cache.store(&key, &value).unwrap();
        assert_eq!(cache.load(&key), Some(value));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Cache::new(Some(file.path())).err().unwrap();
        assert!(error.to_string().contains(&*file.path().to_string_lossy()));
    }
}
