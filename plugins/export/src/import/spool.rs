//! Calls of imported processes on their way into a trace: sequences of bytes, of which most lie in a temporary file.
//!
//! A trace orders calls by their ends, and most formats have a file, or a part of a file, for each process. An import therefore keeps all
//! calls until it has read them all. Memory holds a block for each process, and the position of each block in the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nodescope_hypercall::MpiRecord;
use serde::{Deserialize, Serialize};

use crate::error::ImportError;

/// Most bytes that the open blocks of all processes have together.
const BUDGET: usize = 64 << 20;
/// Least and greatest length of a block in bytes. One call may be larger.
const BLOCK: (usize, usize) = (512, 64 << 10);

/// A call as the spool keeps it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) record: MpiRecord,
    /// Entry and exit, picoseconds.
    pub(super) time: (u64, u64),
    /// The process's instructions at entry and exit.
    pub(super) instructions: (u64, u64),
}

/// Calls of all processes, each in the order in which they were added.
#[derive(Debug)]
pub(super) struct Spool {
    folder: PathBuf,
    file: Option<File>,
    length: u64,
    processes: Vec<Process>,
}

#[derive(Debug, Default)]
struct Process {
    open: Vec<u8>,
    /// Offset and length of each block in the file.
    blocks: Vec<(u64, u32)>,
    count: u64,
}

impl Spool {
    /// Returns an empty spool, whose temporary file lies in `folder` if the calls need one.
    pub(super) fn new(folder: &Path) -> Spool {
        Spool {
            folder: folder.into(),
            file: None,
            length: 0,
            processes: Vec::new(),
        }
    }

    /// Adds a process, with the next number.
    pub(super) fn process(&mut self) {
        self.processes.push(Process::default());
    }

    /// Adds a call of a process, and returns the call's number in the process, from 0.
    pub(super) fn push(&mut self, process: usize, call: &Stored) -> Result<u64, ImportError> {
        let limit = (BUDGET / self.processes.len().max(1)).clamp(BLOCK.0, BLOCK.1);
        let open = std::mem::take(&mut self.processes[process].open);
        let open = postcard::to_extend(call, open).map_err(|cause| self.failed(other(cause)))?;
        let entry = &mut self.processes[process];
        entry.open = open;
        entry.count += 1;
        let number = entry.count - 1;
        if entry.open.len() >= limit {
            self.flush(process)?;
        }
        Ok(number)
    }

    fn flush(&mut self, process: usize) -> Result<(), ImportError> {
        if self.file.is_none() {
            let file = tempfile::tempfile_in(&self.folder);
            self.file = Some(file.map_err(|cause| self.failed(cause))?);
        }
        let Some(file) = &self.file else {
            return Ok(());
        };
        let entry = &mut self.processes[process];
        let length = entry.open.len();
        if let Err(cause) = file.write_all_at(&entry.open, self.length) {
            return Err(self.failed(cause));
        }
        // A block is a call longer than its limit, and a call comes from a line in memory.
        entry.blocks.push((self.length, length as u32));
        entry.open.clear();
        self.length += length as u64;
        Ok(())
    }

    /// Returns the calls of each process.
    pub(super) fn read(&self) -> Vec<Reader<'_>> {
        let reader = |process| Reader {
            spool: self,
            process,
            block: 0,
            bytes: Vec::new(),
            at: 0,
        };
        self.processes.iter().map(reader).collect()
    }

    fn failed(&self, cause: io::Error) -> ImportError {
        ImportError::Io {
            action: "keep calls in a temporary file in",
            file: self.folder.clone(),
            cause,
        }
    }
}

fn other(cause: postcard::Error) -> io::Error {
    io::Error::other(cause)
}

/// Reader of a process's calls.
pub(super) struct Reader<'a> {
    spool: &'a Spool,
    process: &'a Process,
    /// Index of the next block; the open block comes after those in the file.
    block: usize,
    bytes: Vec<u8>,
    at: usize,
}

impl Reader<'_> {
    /// Returns the next call; `None` after the last one.
    pub(super) fn next(&mut self) -> Result<Option<Stored>, ImportError> {
        while self.at == self.bytes.len() {
            match (self.process.blocks.get(self.block), &self.spool.file) {
                (Some(&(offset, length)), Some(file)) => {
                    self.bytes.resize(length as usize, 0);
                    file.read_exact_at(&mut self.bytes, offset)
                        .map_err(|cause| self.spool.failed(cause))?;
                }
                _ if self.block == self.process.blocks.len() => {
                    self.bytes.clone_from(&self.process.open);
                }
                _ => return Ok(None),
            }
            self.block += 1;
            self.at = 0;
        }
        let rest = &self.bytes[self.at..];
        let (call, after) =
            postcard::take_from_bytes(rest).map_err(|cause| self.spool.failed(other(cause)))?;
        self.at = self.bytes.len() - after.len();
        Ok(Some(call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodescope_hypercall::{Function, Peer, ThreadId};

    #[test]
    fn calls_come_back_from_blocks_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::new(folder.path());
        spool.process();
        spool.process();
        let call = |number: u64| {
            let thread = ThreadId { pid: 1, tid: 1 };
            let mut record = MpiRecord::new(Function::Send, thread, Peer::Rank(0), number);
            record.send_bytes_to = vec![number; 100];
            Stored {
                record,
                time: (number, number + 1),
                instructions: (0, 0),
            }
        };
        for number in 0..3000 {
            let process = (number % 3 == 0) as usize;
            spool.push(process, &call(number)).unwrap();
        }
        assert!(spool.file.is_some() && spool.length > 100_000);
        for (process, mut reader) in spool.read().into_iter().enumerate() {
            for number in (0..3000).filter(|number| (number % 3 == 0) as usize == process) {
                let stored = reader.next().unwrap().unwrap();
                assert_eq!(stored.record, call(number).record);
                assert_eq!(stored.time, (number, number + 1));
            }
            assert!(reader.next().unwrap().is_none());
            assert!(reader.next().unwrap().is_none());
        }
    }
}
