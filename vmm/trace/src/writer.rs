//! Writer of a trace, chunk by chunk. Written chunks remain readable even if the run is interrupted.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::event::{Event, Header};
use crate::format::{CHUNK_LIMIT, Frame, HEADER_LIMIT, Kind, MAGIC, PROLOGUE, VERSION};

/// Number of uncompressed bytes after which a chunk is written.
const CHUNK: usize = 256 << 10;
/// Zstandard level of chunks. Higher levels save a few per cent of space and take several times as long.
const ZSTD_LEVEL: i32 = 3;

/// Reason why a trace cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The operating system cannot write the file. The chunks written before are a readable, cut trace.
    #[error("cannot write the trace {}: {cause}; {written} events before this are readable", .file.display())]
    Io {
        /// Path of the trace.
        file: PathBuf,
        /// Number of events in the chunks written before.
        written: u64,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// A header, an event, or the collected events of a [`WriterState`] exceed the format's limits.
    #[error("cannot write the trace {}: {what} is larger than the format's limit of {limit} bytes", .file.display())]
    TooLarge {
        /// Path of the trace.
        file: PathBuf,
        /// Name of the part that is too large, such as a header or an event.
        what: &'static str,
        /// Limit of the format, bytes.
        limit: u32,
    },
    /// The header or an event cannot be encoded, or collected events cannot be decoded.
    #[error("cannot encode an event for the trace {}: {cause}", .file.display())]
    Encode {
        /// Path of the trace.
        file: PathBuf,
        /// Error of the encoder.
        cause: postcard::Error,
    },
}

/// State of a [`TraceWriter`]: events that have been collected and are not in the file yet. A writer that resumes from the state divides a
/// trace into the same chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriterState {
    chunk: Vec<u8>,
    in_chunk: u32,
    written: u64,
}

/// A trace that is being written. Without [`TraceWriter::finish`], a reader reports the trace as cut.
pub struct TraceWriter<W: Write = File> {
    file: PathBuf,
    out: W,
    chunk: Vec<u8>,
    in_chunk: u32,
    written: u64,
    failed: bool,
}

impl TraceWriter<File> {
    /// Creates the file, or replaces an existing one, and writes the header.
    pub fn create(
        file: impl AsRef<Path>,
        header: &Header,
    ) -> Result<TraceWriter<File>, WriteError> {
        let file = file.as_ref();
        let out = File::create(file).map_err(|cause| WriteError::Io {
            file: file.into(),
            written: 0,
            cause,
        })?;
        TraceWriter::new(out, file, header)
    }
}

impl TraceWriter<File> {
    /// Creates the file, or replaces an existing one, and continues where another writer has stopped. `earlier` is the whole file that the
    /// other writer had written. The new file has the given header, and the chunks of `earlier` unchanged.
    pub fn resume(
        file: impl AsRef<Path>,
        header: &Header,
        mut earlier: impl Read,
        state: WriterState,
    ) -> Result<TraceWriter<File>, WriteError> {
        let mut writer = TraceWriter::create(file, header)?;
        let failed = |cause| WriteError::Io {
            file: writer.file.clone(),
            written: 0,
            cause,
        };
        let mut prologue = [0; PROLOGUE];
        earlier.read_exact(&mut prologue).map_err(failed)?;
        let length = [prologue[12], prologue[13], prologue[14], prologue[15]];
        let length = u32::from_le_bytes(length).min(HEADER_LIMIT);
        let mut header = earlier.by_ref().take(length.into());
        io::copy(&mut header, &mut io::sink()).map_err(failed)?;
        io::copy(&mut earlier, &mut &writer.out).map_err(failed)?;
        if state.chunk.len() > CHUNK_LIMIT as usize {
            return Err(WriteError::TooLarge {
                file: writer.file.clone(),
                what: "what was collected",
                limit: CHUNK_LIMIT,
            });
        }
        writer.chunk = state.chunk;
        writer.in_chunk = state.in_chunk;
        writer.written = state.written;
        Ok(writer)
    }
}

impl<W: Write> TraceWriter<W> {
    /// Returns the state from which [`TraceWriter::resume`] continues, together with the present contents of the file.
    pub fn state(&self) -> WriterState {
        WriterState {
            chunk: self.chunk.clone(),
            in_chunk: self.in_chunk,
            written: self.written,
        }
    }

    /// Returns the events that have been collected and are not in the file yet.
    pub fn collected(&self) -> Result<Vec<Event>, WriteError> {
        let mut rest = &self.chunk[..];
        let mut events = Vec::new();
        while !rest.is_empty() {
            let (event, after) =
                postcard::take_from_bytes(rest).map_err(|cause| WriteError::Encode {
                    file: self.file.clone(),
                    cause,
                })?;
            events.push(event);
            rest = after;
        }
        Ok(events)
    }

    /// Creates a writer to any output, and writes the header. `file` is the path for messages.
    pub fn new(
        out: W,
        file: impl AsRef<Path>,
        header: &Header,
    ) -> Result<TraceWriter<W>, WriteError> {
        let file = file.as_ref().to_path_buf();
        let mut writer = TraceWriter {
            file,
            out,
            chunk: Vec::new(),
            in_chunk: 0,
            written: 0,
            failed: false,
        };
        let encoded = postcard::to_stdvec(header).map_err(|cause| WriteError::Encode {
            file: writer.file.clone(),
            cause,
        })?;
        let length = u32::try_from(encoded.len())
            .ok()
            .filter(|&length| length <= HEADER_LIMIT);
        let length = length.ok_or_else(|| WriteError::TooLarge {
            file: writer.file.clone(),
            what: "the header",
            limit: HEADER_LIMIT,
        })?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        let mut crc = crc32fast::Hasher::new();
        crc.update(&bytes);
        crc.update(&encoded);
        bytes.extend(crc.finalize().to_le_bytes());
        bytes.extend(encoded);
        writer.put(&bytes)?;
        Ok(writer)
    }

    /// Adds an event. Events must come in an order that does not depend on the host, such as that of [`Event::key`].
    pub fn write(&mut self, event: &Event) -> Result<(), WriteError> {
        let encoded = postcard::to_stdvec(event).map_err(|cause| WriteError::Encode {
            file: self.file.clone(),
            cause,
        })?;
        if encoded.len() > (CHUNK_LIMIT / 2) as usize {
            return Err(WriteError::TooLarge {
                file: self.file.clone(),
                what: "an event",
                limit: CHUNK_LIMIT / 2,
            });
        }
        self.chunk.extend(encoded);
        self.in_chunk += 1;
        if self.chunk.len() >= CHUNK {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Returns whether events have been collected that are not in the file yet.
    pub fn has_collected(&self) -> bool {
        self.in_chunk != 0
    }

    /// Writes the collected events as a chunk, if there are any.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        if self.in_chunk == 0 {
            return Ok(());
        }
        let raw = self.chunk.len() as u32;
        let data =
            zstd::bulk::compress(&self.chunk, ZSTD_LEVEL).map_err(|cause| WriteError::Io {
                file: self.file.clone(),
                written: self.written,
                cause,
            })?;
        let frame = Frame {
            kind: Kind::Events,
            stored: data.len() as u32,
            raw,
            events: self.in_chunk,
            data_crc: crc32fast::hash(&data),
        };
        let mut bytes = frame.encode().to_vec();
        bytes.extend(data);
        self.put(&bytes)?;
        self.written += u64::from(self.in_chunk);
        self.in_chunk = 0;
        self.chunk.clear();
        Ok(())
    }

    /// Writes the collected events and the end chunk, which marks a complete trace.
    pub fn finish(mut self) -> Result<(), WriteError> {
        self.flush()?;
        let frame = Frame {
            kind: Kind::End,
            stored: 0,
            raw: 0,
            events: self.written as u32,
            data_crc: 0,
        };
        self.put(&frame.encode())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.out
            .write_all(bytes)
            .and_then(|()| self.out.flush())
            .map_err(|cause| {
                self.failed = true;
                WriteError::Io {
                    file: self.file.clone(),
                    written: self.written,
                    cause,
                }
            })
    }
}

impl<W: Write> Drop for TraceWriter<W> {
    /// Writes the events collected so far, also when a study is interrupted; an error here cannot be reported any more.
    fn drop(&mut self) {
        if !self.failed {
            let _ = self.flush();
        }
    }
}
