//! Files that an export writes.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::ExportError;

/// A file that is being written, with its path for error messages and its length so far.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    out: BufWriter<File>,
    bytes: u64,
}

impl Output {
    /// Creates a file, or empties an existing file.
    pub(crate) fn create(path: PathBuf) -> Result<Output, ExportError> {
        let file = File::create(&path).map_err(ExportError::io("create", &path))?;
        Ok(Output {
            path,
            out: BufWriter::with_capacity(1 << 16, file),
            bytes: 0,
        })
    }

    /// Returns a function for `map_err`, which adds this file's path to a write error.
    pub(crate) fn error(&self) -> impl FnOnce(io::Error) -> ExportError + use<> {
        ExportError::io("write", &self.path)
    }

    /// Appends text or bytes.
    pub(crate) fn put(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), ExportError> {
        let bytes = bytes.as_ref();
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(self.error())
    }

    /// Appends the contents of another file from its present position on.
    pub(crate) fn copy(&mut self, input: &mut File) -> Result<(), ExportError> {
        self.bytes += io::copy(input, &mut self.out).map_err(self.error())?;
        Ok(())
    }

    /// Returns the number of bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes all buffered bytes, and returns the path of the file.
    pub(crate) fn finish(mut self) -> Result<PathBuf, ExportError> {
        self.out.flush().map_err(self.error())?;
        Ok(self.path)
    }
}

/// A file that is open only while a part of it is written, since there may be more ranks than files that a process may open.
#[derive(Debug)]
pub(crate) struct Part {
    path: PathBuf,
    text: String,
}

impl Part {
    /// Creates an empty file, or empties an existing file.
    pub(crate) fn create(path: PathBuf) -> Result<Part, ExportError> {
        std::fs::write(&path, "").map_err(ExportError::io("create", &path))?;
        Ok(Part {
            path,
            text: String::new(),
        })
    }

    /// Adds text to the part, and writes all buffered text to the file when 32 KiB are buffered.
    pub(crate) fn put(&mut self, line: &str) -> Result<(), ExportError> {
        self.text.push_str(line);
        if self.text.len() >= 1 << 15 {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the buffered text to the file.
    pub(crate) fn flush(&mut self) -> Result<(), ExportError> {
        OpenOptions::new()
            .append(true)
            .open(&self.path)
            .and_then(|mut file| file.write_all(self.text.as_bytes()))
            .map_err(ExportError::io("write", &self.path))?;
        self.text.clear();
        Ok(())
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Writes a small file as a whole.
pub(crate) fn write(path: PathBuf, text: &str) -> Result<PathBuf, ExportError> {
    std::fs::write(&path, text).map_err(ExportError::io("write", &path))?;
    Ok(path)
}

/// Makes a folder and its missing parents.
pub(crate) fn folder(path: &Path) -> Result<(), ExportError> {
    std::fs::create_dir_all(path).map_err(ExportError::io("create", path))
}
