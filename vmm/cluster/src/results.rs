//! The results directory: console logs, files from the guests, trace, windows.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nodescope_hypercall::FileChunk;
use thiserror::Error;

/// A result could not be written. What was written before it stays.
#[derive(Debug, Error)]
#[error("cannot write {path}: {source}; results written so far are kept in their directory")]
pub struct ResultsError {
    /// The file.
    pub path: PathBuf,
    /// The host's answer.
    pub source: io::Error,
}

/// Where the results go.
pub struct Results {
    dir: PathBuf,
    consoles: Vec<(PathBuf, File)>,
    files: HashMap<String, (PathBuf, File)>,
}

impl Results {
    /// Create the directory (its parents, too) and the console logs.
    pub fn create(dir: &Path, nodes: u32) -> Result<Self, ResultsError> {
        let fail = |path: &Path| {
            let path = path.to_path_buf();
            move |source| ResultsError { path, source }
        };
        fs::create_dir_all(dir).map_err(fail(dir))?;
        let consoles = (0..nodes)
            .map(|n| {
                let path = dir.join(format!("console-node{n}.log"));
                let file = File::create(&path).map_err(fail(&path))?;
                Ok((path, file))
            })
            .collect::<Result<_, ResultsError>>()?;
        Ok(Self {
            dir: dir.into(),
            consoles,
            files: HashMap::new(),
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Console output of a node.
    pub fn console(&mut self, node: usize, bytes: &[u8]) -> Result<(), ResultsError> {
        let (path, file) = &mut self.consoles[node];
        file.write_all(bytes).map_err(|source| ResultsError {
            path: path.clone(),
            source,
        })
    }

    /// A piece of a file from a guest. Files land in `files/`; the name was checked to be plain when it was decoded.
    pub fn chunk(&mut self, chunk: &FileChunk) -> Result<(), ResultsError> {
        if !self.files.contains_key(&chunk.name) {
            let path = self.dir.join("files").join(&chunk.name);
            let fail = |source| ResultsError {
                path: path.clone(),
                source,
            };
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(fail)?;
            }
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path)
                .map_err(fail)?;
            self.files.insert(chunk.name.clone(), (path, file));
        }
        if let Some((path, file)) = self.files.get(&chunk.name) {
            file.write_all_at(&chunk.data, chunk.offset)
                .map_err(|source| ResultsError {
                    path: path.clone(),
                    source,
                })?;
        }
        if chunk.last {
            self.files.remove(&chunk.name);
        }
        Ok(())
    }

    /// A whole file.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, ResultsError> {
        let path = self.path(name);
        fs::write(&path, bytes).map_err(|source| ResultsError {
            path: path.clone(),
            source,
        })?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_land_at_their_offsets_and_a_new_file_of_the_same_name_starts_afresh() {
        let dir = tempfile::tempdir().unwrap();
        let mut results = Results::create(&dir.path().join("a/b"), 1).unwrap();
        let chunk = |offset, data: &[u8], last| FileChunk {
            name: "out/x.txt".into(),
            offset,
            data: data.into(),
            last,
        };
        results.chunk(&chunk(0, b"hello ", false)).unwrap();
        results.chunk(&chunk(6, b"world", true)).unwrap();
        let path = dir.path().join("a/b/files/out/x.txt");
        assert_eq!(fs::read(&path).unwrap(), b"hello world");
        results.chunk(&chunk(0, b"bye", true)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"bye");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let error = Results::create(Path::new("/proc/nodescope"), 1)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("/proc/nodescope"), "{error}");
    }
}
