//! Reader of a trace. The reader returns the readable events, and reports where and why the rest cannot be read.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::event::{Event, Header};
use crate::format::{FRAME, Frame, HEADER_LIMIT, Kind, MAGIC, PROLOGUE, VERSION};

/// Reason why a trace or the rest of a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The operating system cannot read the file.
    #[error("cannot read the trace {}: {cause}", .file.display())]
    Io {
        /// Path of the trace.
        file: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The file is no trace.
    #[error("{} is not a nodescope trace", .file.display())]
    NotATrace {
        /// Path of the file.
        file: PathBuf,
    },
    /// The trace has a format version that this program does not know.
    #[error("the trace {} has format version {version}; this program reads version {VERSION}", .file.display())]
    UnknownVersion {
        /// Path of the trace.
        file: PathBuf,
        /// Format version of the trace.
        version: u32,
    },
    /// The file ends before the end mark of the trace, for example because the study was interrupted or the disk was full. All events of
    /// complete chunks have been returned.
    #[error("the trace {} is cut at byte {offset}; {events} events before the cut are intact", .file.display())]
    Cut {
        /// Path of the trace.
        file: PathBuf,
        /// Offset at which the first incomplete chunk, or the missing end mark, would begin, bytes. If the header is incomplete, the length
        /// of the file.
        offset: u64,
        /// Number of events returned before the cut.
        events: u64,
    },
    /// A checksum is wrong, or another rule of the format is violated. Every event before the damaged chunk has been returned.
    #[error("the trace {} is damaged at byte {offset}: {what}; {events} events before it are intact", .file.display())]
    Damaged {
        /// Path of the trace.
        file: PathBuf,
        /// Offset at which the damaged part begins, bytes.
        offset: u64,
        /// Rule of the format that the damaged part violates.
        what: &'static str,
        /// Number of events returned before the damage.
        events: u64,
    },
}

/// Reader of an open trace.
#[derive(Debug)]
pub struct TraceReader<R: Read = BufReader<File>> {
    file: PathBuf,
    input: R,
    header: Header,
    offset: u64,
}

impl TraceReader {
    /// Opens a trace and reads its header.
    pub fn open(file: impl AsRef<Path>) -> Result<TraceReader, TraceError> {
        let file = file.as_ref();
        let input = File::open(file).map_err(|cause| TraceError::Io {
            file: file.into(),
            cause,
        })?;
        TraceReader::new(BufReader::new(input), file)
    }
}

impl<R: Read> TraceReader<R> {
    /// Reads the header of a trace from any input. `file` is the path for messages.
    pub fn new(mut input: R, file: impl AsRef<Path>) -> Result<TraceReader<R>, TraceError> {
        let file = file.as_ref().to_path_buf();
        let cut = |offset| TraceError::Cut {
            file: file.clone(),
            offset,
            events: 0,
        };
        let mut prologue = [0; PROLOGUE];
        let got = fill(&mut input, &mut prologue, &file)?;
        if !prologue.starts_with(&MAGIC[..got.min(8)]) {
            return Err(TraceError::NotATrace { file });
        }
        if got < PROLOGUE {
            return Err(cut(got as u64));
        }
        let word = |at: usize| {
            u32::from_le_bytes([
                prologue[at],
                prologue[at + 1],
                prologue[at + 2],
                prologue[at + 3],
            ])
        };
        let (version, length) = (word(8), word(12));
        if version != VERSION {
            return Err(TraceError::UnknownVersion { file, version });
        }
        let damaged = |what| TraceError::Damaged {
            file: file.clone(),
            offset: 0,
            what,
            events: 0,
        };
        if length > HEADER_LIMIT {
            return Err(damaged("impossible length of the header"));
        }
        let mut encoded = vec![0; length as usize];
        let got = fill(&mut input, &mut encoded, &file)?;
        if got < encoded.len() {
            return Err(cut((PROLOGUE + got) as u64));
        }
        let mut crc = crc32fast::Hasher::new();
        crc.update(&prologue[..16]);
        crc.update(&encoded);
        if crc.finalize() != word(16) {
            return Err(damaged("checksum of the header"));
        }
        let header =
            postcard::from_bytes(&encoded).map_err(|_| damaged("content of the header"))?;
        Ok(TraceReader {
            file,
            input,
            header,
            offset: (PROLOGUE + encoded.len()) as u64,
        })
    }

    /// Returns the header of the trace.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the events in the file's order. The last item of an incomplete or damaged trace is the error that reports the damage.
    pub fn events(self) -> Events<R> {
        Events {
            file: self.file,
            input: self.input,
            offset: self.offset,
            chunk: Vec::new(),
            at: 0,
            in_chunk: 0,
            chunk_offset: 0,
            events: 0,
            done: false,
        }
    }
}

/// The events of a trace.
pub struct Events<R: Read> {
    file: PathBuf,
    input: R,
    /// Offset of the next chunk in the file, bytes.
    offset: u64,
    chunk: Vec<u8>,
    at: usize,
    in_chunk: u32,
    chunk_offset: u64,
    events: u64,
    done: bool,
}

impl<R: Read> Events<R> {
    fn damaged(&self, offset: u64, what: &'static str) -> TraceError {
        TraceError::Damaged {
            file: self.file.clone(),
            offset,
            what,
            events: self.events,
        }
    }

    fn cut(&self) -> TraceError {
        TraceError::Cut {
            file: self.file.clone(),
            offset: self.offset,
            events: self.events,
        }
    }

    /// Reads the next chunk of events; false at the end of a complete trace.
    fn next_chunk(&mut self) -> Result<bool, TraceError> {
        let mut bytes = [0; FRAME];
        if fill(&mut self.input, &mut bytes, &self.file)? < FRAME {
            return Err(self.cut());
        }
        let frame = Frame::decode(&bytes)
            .ok_or_else(|| self.damaged(self.offset, "checksum of a chunk's frame"))?;
        if frame.kind == Kind::End {
            if frame.events != self.events as u32
                || (frame.stored, frame.raw, frame.data_crc) != (0, 0, 0)
            {
                return Err(self.damaged(self.offset, "number of events"));
            }
            if fill(&mut self.input, &mut [0], &self.file)? != 0 {
                return Err(self.damaged(self.offset + FRAME as u64, "bytes after the end"));
            }
            return Ok(false);
        }
        let mut data = vec![0; frame.stored as usize];
        if fill(&mut self.input, &mut data, &self.file)? < data.len() {
            return Err(self.cut());
        }
        if crc32fast::hash(&data) != frame.data_crc {
            return Err(self.damaged(self.offset, "checksum of a chunk"));
        }
        self.chunk = zstd::bulk::decompress(&data, frame.raw as usize)
            .ok()
            .filter(|chunk| chunk.len() == frame.raw as usize)
            .ok_or_else(|| self.damaged(self.offset, "compression of a chunk"))?;
        (self.at, self.in_chunk, self.chunk_offset) = (0, frame.events, self.offset);
        self.offset += (FRAME + data.len()) as u64;
        Ok(true)
    }

    fn next_event(&mut self) -> Result<Option<Event>, TraceError> {
        while self.in_chunk == 0 {
            if self.at != self.chunk.len() {
                return Err(self.damaged(self.chunk_offset, "bytes after a chunk's last event"));
            }
            if !self.next_chunk()? {
                return Ok(None);
            }
        }
        let rest = &self.chunk[self.at..];
        let (event, after) = postcard::take_from_bytes(rest)
            .map_err(|_| self.damaged(self.chunk_offset, "content of an event"))?;
        self.at = self.chunk.len() - after.len();
        self.in_chunk -= 1;
        self.events += 1;
        Ok(Some(event))
    }
}

impl<R: Read> Iterator for Events<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = self.next_event().transpose();
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Reads until the buffer is full or the input ends; returns the bytes read.
fn fill(input: &mut impl Read, buffer: &mut [u8], file: &Path) -> Result<usize, TraceError> {
    let mut got = 0;
    while got < buffer.len() {
        match input.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => {
                return Err(TraceError::Io {
                    file: file.into(),
                    cause,
                });
            }
        }
    }
    Ok(got)
}
