//! The results directory: console logs, files from the guests, trace, windows.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use nodescope_hypercall::FileChunk;

use crate::folder::{FolderError, ResultsFolder};

/// Folder of the guests' files among the results.
pub const FILES: &str = "files";

/// Name of a node's console log among the results.
pub fn console_log(node: u32) -> String {
    format!("console-node{node}.log")
}

/// Where the results go.
pub struct Results<'a> {
    folder: &'a ResultsFolder,
    consoles: Vec<(PathBuf, File)>,
    files: HashMap<String, (PathBuf, File)>,
}

impl<'a> Results<'a> {
    /// Create the console logs.
    pub fn create(folder: &'a ResultsFolder, nodes: u32) -> Result<Self, FolderError> {
        Ok(Self {
            folder,
            consoles: (0..nodes)
                .map(|node| folder.create_file(&console_log(node)))
                .collect::<Result<_, _>>()?,
            files: HashMap::new(),
        })
    }

    /// The folder.
    pub fn folder(&self) -> &'a ResultsFolder {
        self.folder
    }

    /// Console output of a node.
    pub fn console(&mut self, node: usize, bytes: &[u8]) -> Result<(), FolderError> {
        let (path, file) = &mut self.consoles[node];
        file.write_all(bytes).map_err(FolderError::writing(path))
    }

    /// A piece of a file from a guest. Files land in `files/`; the name was checked to be plain when it was decoded.
    pub fn chunk(&mut self, chunk: &FileChunk) -> Result<(), FolderError> {
        if !self.files.contains_key(&chunk.name) {
            let file = self
                .folder
                .create_file(&format!("{FILES}/{}", chunk.name))?;
            self.files.insert(chunk.name.clone(), file);
        }
        if let Some((path, file)) = self.files.get(&chunk.name) {
            file.write_all_at(&chunk.data, chunk.offset)
                .map_err(FolderError::writing(path))?;
        }
        if chunk.last {
            self.files.remove(&chunk.name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn chunks_land_at_their_offsets_and_a_new_file_of_the_same_name_starts_afresh() {
        let dir = tempfile::tempdir().unwrap();
        let folder = ResultsFolder::create(&dir.path().join("a/b")).unwrap();
        let mut results = Results::create(&folder, 1).unwrap();
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
        let error = ResultsFolder::create(Path::new("/proc/nodescope"))
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("/proc/nodescope"), "{error}");
    }
}
