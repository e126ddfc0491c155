//! Quota of the result files that a node's guest stores: it limits their number, lengths and sum.
//!
//! Each node has its own quota, so that the answer to a guest does not depend on other host threads. Between batches of quanta, each
//! quota learns how many bytes the whole study has left.

use std::collections::BTreeMap;

use nodescope_hypercall::{FileChunk, Status, is_file_name, printable};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Maximum number of result files of one node.
const MOST_FILES: usize = 1 << 16;
/// Bytes that count for each component of a file's name, besides the file's length: the host needs space even for an empty file or a
/// folder.
const OVERHEAD: u64 = 4096;

/// Limits on the bytes of result files that guests may store. A file with holes counts with its whole length. In `node` and `study`, each
/// component of a file's name counts 4096 bytes more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLimits {
    /// Limit of one file, bytes.
    pub file: u64,
    /// Limit of all files of one node, bytes.
    pub node: u64,
    /// Limit of all files of all nodes, bytes.
    pub study: u64,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self {
            file: 1 << 30,
            node: 4 << 30,
            study: 16 << 30,
        }
    }
}

/// Reason why a piece of a file was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum FileRefusal {
    /// The file would be longer than `results.file_limit`.
    #[error(
        "file \"{}\" would have {end} bytes, and results.file_limit allows {limit}",
        printable(name)
    )]
    File {
        /// Name of the file.
        name: String,
        /// Length that the file would have, bytes.
        end: u64,
        /// Largest length that `results.file_limit` allows, bytes.
        limit: u64,
    },
    /// The node's files would exceed `results.node_limit`.
    #[error(
        "with file \"{}\" the node would have put {bytes} bytes among the results, and results.node_limit allows {limit}",
        printable(name)
    )]
    Node {
        /// Name of the file.
        name: String,
        /// Bytes that all files of the node would count with the piece.
        bytes: u64,
        /// Bytes that `results.node_limit` allows.
        limit: u64,
    },
    /// The study's files would exceed `results.limit`.
    #[error(
        "file \"{}\" needs more than is left of results.limit, {left} bytes",
        printable(name)
    )]
    Study {
        /// Name of the file.
        name: String,
        /// Bytes left of `results.limit`.
        left: u64,
    },
    /// The node has stored the maximum number of files already.
    #[error("file \"{}\" would be the {}th of the node, and a node may put {MOST_FILES} files among the results", printable(name), MOST_FILES + 1)]
    Count {
        /// Name of the file.
        name: String,
    },
    /// The same name would be a file and a folder.
    #[error(
        "file \"{}\" cannot be stored: \"{}\" is a file, and would have to be a folder, too",
        printable(name),
        printable(file)
    )]
    Folder {
        /// Name of the file.
        name: String,
        /// The name that would be both a file and a folder.
        file: String,
    },
}

impl FileRefusal {
    /// Returns the status with which the hypercall answers the guest.
    pub fn status(&self) -> Status {
        match self {
            FileRefusal::Folder { .. } => Status::BadArgument,
            _ => Status::OverLimit,
        }
    }
}

/// Record of a stored file; `length` is in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    length: u64,
    /// True until the file's last piece has arrived. A later piece then begins the file anew.
    open: bool,
}

/// Saved state of a `FileQuota`, without the limits, which are part of the study.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileQuotaState {
    study_left: u64,
    files: BTreeMap<String, Entry>,
}

/// Quota of one node's files.
#[derive(Clone, Debug)]
pub(crate) struct FileQuota {
    limits: FileLimits,
    /// Bytes that the node may add before the study's limit is reached.
    study_left: u64,
    files: BTreeMap<String, Entry>,
    used: u64,
}

impl FileQuota {
    pub(crate) fn new(limits: FileLimits) -> Self {
        Self {
            limits,
            study_left: limits.study,
            files: BTreeMap::new(),
            used: 0,
        }
    }

    pub(crate) fn save(&self) -> FileQuotaState {
        FileQuotaState {
            study_left: self.study_left,
            files: self.files.clone(),
        }
    }

    /// Loads a saved state. Returns an error text for a state that no guest can have caused.
    pub(crate) fn restore(&mut self, state: FileQuotaState) -> Result<(), &'static str> {
        if state.files.len() > MOST_FILES {
            return Err("it has more files than a node may have");
        }
        if !state.files.keys().all(|name| is_file_name(name)) {
            return Err("a file has a name that leads out of the results");
        }
        let counted = |(name, entry): (&String, &Entry)| {
            let components = name.split('/').count() as u64;
            entry.length.checked_add(components * OVERHEAD)
        };
        let used = (state.files.iter().map(counted))
            .try_fold(0_u64, |sum, counts| sum.checked_add(counts?));
        let used = used.filter(|used| used.checked_add(state.study_left).is_some());
        self.used = used.ok_or("its files are longer than any file can be")?;
        self.study_left = state.study_left;
        self.files = state.files;
        Ok(())
    }

    /// Returns the bytes that the node's files count, with the overhead for their names.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Sets the number of bytes that the node may add before the study's limit is reached.
    pub(crate) fn set_study_left(&mut self, left: u64) {
        self.study_left = left;
    }

    /// Counts a piece of a file, or returns the reason why the piece is refused.
    pub(crate) fn enter(&mut self, chunk: &FileChunk) -> Result<(), FileRefusal> {
        let name = || chunk.name.clone();
        let end = chunk.offset.saturating_add(chunk.data.len() as u64);
        if end > self.limits.file {
            let limit = self.limits.file;
            return Err(FileRefusal::File {
                name: name(),
                end,
                limit,
            });
        }
        let before = self.files.get(&chunk.name).copied();
        if before.is_none() {
            if self.files.len() >= MOST_FILES {
                return Err(FileRefusal::Count { name: name() });
            }
            self.check_folders(&chunk.name)?;
        }
        let components = chunk.name.split('/').count() as u64;
        let length = match before {
            Some(entry) if entry.open => entry.length.max(end),
            _ => end,
        };
        let counted = before.map_or(0, |entry| entry.length + components * OVERHEAD);
        let counts = length + components * OVERHEAD;
        let used = self.used - counted + counts;
        if used > self.limits.node {
            return Err(FileRefusal::Node {
                name: name(),
                bytes: used,
                limit: self.limits.node,
            });
        }
        if used > self.used + self.study_left {
            let left = self.study_left;
            return Err(FileRefusal::Study { name: name(), left });
        }
        self.study_left = self.study_left + self.used - used;
        self.used = used;
        let open = !chunk.last;
        self.files.insert(name(), Entry { length, open });
        Ok(())
    }

    /// Refuses a new name if the same path would be a file and a folder.
    fn check_folders(&self, name: &str) -> Result<(), FileRefusal> {
        let conflict = |file: &str| {
            Err(FileRefusal::Folder {
                name: name.into(),
                file: file.into(),
            })
        };
        for (at, _) in name.match_indices('/') {
            if self.files.contains_key(&name[..at]) {
                return conflict(&name[..at]);
            }
        }
        let folder = format!("{name}/");
        let within = self.files.range(folder.clone()..).next();
        match within {
            Some((other, _)) if other.starts_with(&folder) => conflict(name),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(name: &str, offset: u64, bytes: usize, last: bool) -> FileChunk {
        FileChunk {
            name: name.into(),
            offset,
            data: vec![0; bytes],
            last,
        }
    }

    fn quota() -> FileQuota {
        FileQuota::new(FileLimits {
            file: 100_000,
            node: 150_000,
            study: 1 << 30,
        })
    }

    #[test]
    fn lengths_count_holes_included_and_nothing_overflows() {
        let mut quota = quota();
        for offset in [99_999, i64::MAX as u64, u64::MAX] {
            let refusal = quota.enter(&chunk("a", offset, 2, true)).unwrap_err();
            assert!(matches!(refusal, FileRefusal::File { .. }), "{refusal}");
            assert_eq!(refusal.status(), Status::OverLimit);
        }
        quota.enter(&chunk("a", 99_998, 2, false)).unwrap();
        assert_eq!(quota.used(), 104_096);
        // A piece within the file's length adds no bytes.
        quota.enter(&chunk("a", 0, 2, true)).unwrap();
        assert_eq!(quota.used(), 104_096);
        let refusal = quota.enter(&chunk("b", 0, 50_000, true)).unwrap_err();
        assert!(matches!(refusal, FileRefusal::Node { .. }), "{refusal}");
        // The file begins anew and is shorter, which frees space.
        quota.enter(&chunk("a", 0, 2, true)).unwrap();
        quota.enter(&chunk("b", 0, 50_000, true)).unwrap();
        assert_eq!(quota.used(), 4098 + 54_096);
    }

    #[test]
    fn the_study_has_an_end_too() {
        let mut quota = quota();
        quota.set_study_left(10_000);
        quota.enter(&chunk("a", 0, 1000, true)).unwrap();
        let refusal = quota.enter(&chunk("b", 0, 1000, true)).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "file \"b\" needs more than is left of results.limit, 4904 bytes"
        );
        quota.set_study_left(5096);
        quota.enter(&chunk("b", 0, 1000, true)).unwrap();
    }

    #[test]
    fn a_name_is_a_file_or_a_folder() {
        let mut quota = quota();
        quota.enter(&chunk("a", 0, 1, true)).unwrap();
        quota.enter(&chunk("c/d", 0, 1, true)).unwrap();
        quota.enter(&chunk("c-1", 0, 1, true)).unwrap();
        for name in ["a/b", "a/b/c", "c"] {
            let refusal = quota.enter(&chunk(name, 0, 1, true)).unwrap_err();
            assert!(matches!(refusal, FileRefusal::Folder { .. }), "{refusal}");
            assert_eq!(refusal.status(), Status::BadArgument);
        }
        quota.enter(&chunk("c/e", 0, 1, true)).unwrap();
        quota.enter(&chunk("c/d", 0, 1, true)).unwrap();
    }

    #[test]
    fn files_and_folders_count_although_they_are_empty() {
        let mut quota = quota();
        let entered =
            (0..100).filter(|n| quota.enter(&chunk(&format!("{n}/x"), 0, 0, true)).is_ok());
        assert_eq!(entered.count(), 150_000 / 8192);
        let mut quota = FileQuota::new(FileLimits::default());
        let entered = (0..=MOST_FILES).map(|n| quota.enter(&chunk(&n.to_string(), 0, 0, false)));
        let refused: Vec<_> = entered.filter_map(Result::err).collect();
        assert!(
            matches!(refused[..], [FileRefusal::Count { .. }]),
            "{refused:?}"
        );
    }
}
