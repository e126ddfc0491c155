//! Writes the results of a run: console logs and files from the guests.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use nodescope_hypercall::{FileChunk, printable};
use nodescope_snapshot::write_with_holes;

use crate::folder::{FolderError, ResultsFolder};

/// Folder of the guests' files, in the results folder.
pub const FILES: &str = "files";

/// Greatest number of guests' files that are open at a time: guests may have begun any number.
const MOST_OPEN: usize = 16;

/// Result of storing a piece of a file.
#[derive(Debug)]
pub enum Stored {
    /// The piece was written to the file on the host.
    Done,
    /// The name or the offset makes storing impossible: the name is that of a folder or of a file of the user, or the host's file system
    /// cannot have such a file.
    Impossible(FolderError),
}

/// Writer of the results of a run.
pub struct Results<'a> {
    folder: &'a ResultsFolder,
    consoles: Vec<(PathBuf, File)>,
    /// Names of the unfinished files of guests, whose last piece has not arrived.
    begun: BTreeSet<String>,
    /// The open ones among the unfinished files; the most recently used one is last.
    open: Vec<(String, (PathBuf, File))>,
}

impl<'a> Results<'a> {
    /// Creates the console logs, with these names in the order of the nodes.
    pub fn create(
        folder: &'a ResultsFolder,
        logs: impl IntoIterator<Item = String>,
    ) -> Result<Self, FolderError> {
        Ok(Self {
            folder,
            consoles: (logs.into_iter())
                .map(|log| folder.create_file(&log))
                .collect::<Result<_, _>>()?,
            begun: BTreeSet::new(),
            open: Vec::new(),
        })
    }

    /// Returns the names of all guests' files, below [`FILES`], and the names of the unfinished ones, whose last piece has not arrived.
    pub fn files(&self) -> (Vec<String>, Vec<String>) {
        let begun = self.begun.iter().cloned().collect();
        (self.folder.own_files(FILES), begun)
    }

    /// Marks these files as unfinished, so that further pieces are added to them.
    pub fn reopen(&mut self, begun: Vec<String>) {
        self.begun = begun.into_iter().collect();
    }

    /// Returns notes for the user about the guests' files.
    pub fn notes(&self) -> Option<String> {
        renamed(&self.folder.own_files(FILES))
    }

    /// Returns the results folder.
    pub fn folder(&self) -> &'a ResultsFolder {
        self.folder
    }

    /// Appends console output of a node to the node's log.
    pub fn console(&mut self, node: usize, bytes: &[u8]) -> Result<(), FolderError> {
        let (path, file) = &mut self.consoles[node];
        file.write_all(bytes).map_err(FolderError::writing(path))
    }

    /// Writes a piece of a file from a guest into the folder [`FILES`]. The name was checked to be a plain path when the piece was decoded.
    pub fn chunk(&mut self, chunk: &FileChunk) -> Result<Stored, FolderError> {
        let stored = self.file(&chunk.name).and_then(|(path, file)| {
            write_with_holes(file, &chunk.data, chunk.offset).map_err(FolderError::writing(path))
        });
        if chunk.last {
            self.begun.remove(&chunk.name);
            self.open.retain(|(name, _)| *name != chunk.name);
        }
        match stored {
            Ok(()) => Ok(Stored::Done),
            Err(error) if is_guests(&error) => Ok(Stored::Impossible(error)),
            Err(error) => Err(error),
        }
    }

    /// Returns the open file of this name. Creates the file, or empties it, if this is the first piece; reopens it if it was closed since.
    fn file(&mut self, name: &str) -> Result<&(PathBuf, File), FolderError> {
        let open = match self.open.iter().position(|(other, _)| other == name) {
            Some(at) => self.open.remove(at),
            None => {
                let below = format!("{FILES}/{}", stored_name(name));
                let file = match self.begun.insert(name.to_owned()) {
                    true => self.folder.create_file(&below)?,
                    false => self.folder.open_file(&below)?,
                };
                (name.to_owned(), file)
            }
        };
        if self.open.len() >= MOST_OPEN {
            self.open.remove(0);
        }
        self.open.push(open);
        Ok(&self.open[self.open.len() - 1].1)
    }
}

/// Returns the path, below [`FILES`], of a file that a guest has put under a name. Most commands take a name with a leading dash for an
/// option, so that a part of a name that begins with one gets an underscore before it. So does a part that begins with underscores and a
/// dash: different names remain different.
pub fn stored_name(name: &str) -> String {
    let parts = name.split('/').map(|part| {
        let renamed = part.trim_start_matches('_').starts_with('-');
        format!("{}{part}", if renamed { "_" } else { "" })
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Returns a note for the user about files that have other names among the results than in the guests; `None` if there are none.
fn renamed(files: &[String]) -> Option<String> {
    let is_renamed =
        |part: &str| part.starts_with('_') && part.trim_start_matches('_').starts_with('-');
    let renamed: Vec<_> = (files.iter().filter(|file| file.split('/').any(is_renamed))).collect();
    let first = printable(renamed.first()?);
    let others = match renamed.len() {
        1 => String::new(),
        count => format!(", and {} others,", count - 1),
    };
    Some(format!(
        "{FILES}/{first}{others} had a name in the guest that begins with a dash, which most commands take for an option; an underscore is put before it"
    ))
}

/// Returns whether the cause of an error is the guest's choice of name and offset, or a file of the user, and not the host's disk.
fn is_guests(error: &FolderError) -> bool {
    use io::ErrorKind::{
        AlreadyExists, InvalidFilename, InvalidInput, IsADirectory, NotADirectory,
    };
    match error {
        FolderError::InTheWay(_) => true,
        FolderError::Io { source, .. } => matches!(
            source.kind(),
            AlreadyExists | InvalidFilename | InvalidInput | IsADirectory | NotADirectory
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn piece(name: &str, offset: u64, data: &[u8], last: bool) -> FileChunk {
        FileChunk {
            name: name.into(),
            offset,
            data: data.into(),
            last,
        }
    }

    #[test]
    fn any_number_of_files_may_be_begun() {
        let dir = tempfile::tempdir().unwrap();
        let folder = ResultsFolder::create(dir.path()).unwrap();
        let mut results = Results::create(&folder, []).unwrap();
        let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
        let before = descriptors();
        for text in [b"ab", b"cd"] {
            for number in 0..3000 {
                let offset = 2 * u64::from(text == b"cd");
                let piece = piece(&format!("{number}"), offset, text, false);
                assert!(matches!(results.chunk(&piece), Ok(Stored::Done)));
            }
        }
        // Other tests of this process have files open, too.
        assert!(descriptors() < before + 200);
        results.chunk(&piece("7", 4, b"e", true)).unwrap();
        assert_eq!(fs::read(dir.path().join("files/7")).unwrap(), b"abcde");
        results.chunk(&piece("7", 0, b"f", true)).unwrap();
        assert_eq!(fs::read(dir.path().join("files/7")).unwrap(), b"f");
    }

    #[test]
    fn what_cannot_be_a_file_is_no_failure_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let folder = ResultsFolder::create(dir.path()).unwrap();
        let mut results = Results::create(&folder, []).unwrap();
        results.chunk(&piece("a", 0, b"x", true)).unwrap();
        results.chunk(&piece("c/d", 0, b"x", true)).unwrap();
        let long = "n".repeat(256);
        for (name, offset) in [("a/b", 0), ("c", 0), (&long, 0), ("a", i64::MAX as u64 + 1)] {
            let stored = results.chunk(&piece(name, offset, b"x", true)).unwrap();
            assert!(
                matches!(stored, Stored::Impossible(_)),
                "{name}: {stored:?}"
            );
        }
        results.chunk(&piece("c/d", 0, b"y", true)).unwrap();
        assert_eq!(fs::read(dir.path().join("files/c/d")).unwrap(), b"y");
    }

    #[test]
    fn chunks_land_at_their_offsets_and_a_new_file_of_the_same_name_starts_afresh() {
        let dir = tempfile::tempdir().unwrap();
        let folder = ResultsFolder::create(&dir.path().join("a/b")).unwrap();
        let mut results = Results::create(&folder, []).unwrap();
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
    fn a_name_with_a_dash_is_no_option_and_zeros_take_no_space() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let folder = ResultsFolder::create(dir.path()).unwrap();
        let mut results = Results::create(&folder, ["console-node0.log".into()]).unwrap();
        assert_eq!(results.notes(), None);
        for (name, data) in [
            ("-rf", &b"1"[..]),
            ("_-rf", b"2"),
            ("a/--x/b-c", b"3"),
            ("_x", b"4"),
        ] {
            results.chunk(&piece(name, 0, data, true)).unwrap();
        }
        let read = |name: &str| fs::read(dir.path().join("files").join(name)).unwrap();
        assert_eq!([read("_-rf"), read("__-rf")], [b"1", b"2"]);
        assert_eq!([read("a/_--x/b-c"), read("_x")], [b"3", b"4"]);
        let note = results.notes().unwrap();
        assert!(
            note.starts_with("files/_-rf, and 2 others, had a name"),
            "{note}"
        );
        // A file of 256 MiB with one page of data, as a guest reads it.
        for at in 0..256 {
            let mut data = vec![0; 1 << 20];
            data[7] = u8::from(at == 100);
            results
                .chunk(&piece("sparse", at << 20, &data, at == 255))
                .unwrap();
        }
        let found = fs::metadata(dir.path().join("files/sparse")).unwrap();
        assert_eq!(found.len(), 256 << 20);
        assert!(found.blocks() * 512 <= 1 << 20, "{}", found.blocks());
        assert_eq!(read("sparse")[(100 << 20) + 7], 1);
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
