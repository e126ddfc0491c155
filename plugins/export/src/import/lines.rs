//! Lines of text files, with errors that name file and line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::error::ImportError;

/// Greatest length of a line in bytes. A line of a rank has at most a few numbers for each rank of its communicator.
const LONGEST: u64 = 16 << 20;

/// Reader of a text file's lines.
#[derive(Debug)]
pub(super) struct Lines {
    file: PathBuf,
    reader: BufReader<File>,
    text: String,
    number: usize,
}

impl Lines {
    /// Opens a regular file.
    pub(super) fn open(file: &Path) -> Result<Lines, ImportError> {
        let opened = File::open(file).map_err(ImportError::io("open", file))?;
        Ok(Lines {
            file: file.into(),
            reader: BufReader::with_capacity(1 << 16, opened),
            text: String::new(),
            number: 0,
        })
    }

    /// Returns the number, from 1, and the text of the next line without its end; `None` after the last one.
    pub(super) fn next(&mut self) -> Result<Option<(usize, &str)>, ImportError> {
        self.text.clear();
        self.number += 1;
        let mut limited = self.reader.by_ref().take(LONGEST);
        let read = limited.read_line(&mut self.text);
        let read = read.map_err(|cause| match cause.kind() {
            std::io::ErrorKind::InvalidData => wrong(&self.file, self.number, "is no text"),
            _ => ImportError::io("read", &self.file)(cause),
        })?;
        if read as u64 == LONGEST {
            let what = format!("is longer than {LONGEST} bytes");
            return Err(wrong(&self.file, self.number, what));
        }
        let text = self.text.trim_end_matches(['\n', '\r']);
        Ok((read > 0).then_some((self.number, text)))
    }
}

/// Returns an error at a line of a file.
pub(super) fn wrong(file: &Path, line: usize, what: impl Into<String>) -> ImportError {
    ImportError::Line {
        file: file.into(),
        line,
        what: what.into(),
    }
}

/// Returns true if any line of the files has one of these words, which are separated by white space.
pub(super) fn has_word(files: &[PathBuf], words: &[&str]) -> Result<bool, ImportError> {
    for file in files {
        let mut lines = Lines::open(file)?;
        while let Some((_, line)) = lines.next()? {
            if line.contains('-') && line.split_whitespace().any(|word| words.contains(&word)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
