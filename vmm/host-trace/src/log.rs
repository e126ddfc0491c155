//! The log of one process.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use nodescope_hypercall::call::{Fault, GuestVirtual, decode};
use nodescope_hypercall::{Call, Operation, Request, limits};

use crate::HostTraceError;

/// The first bytes of a log.
pub const MAGIC: [u8; 8] = *b"NSCALLS\n";
/// The version that this crate reads.
pub const VERSION: u32 = 1;
/// Bytes of a log's header.
pub const HEADER: usize = 72;
/// Bytes of a log frame without its payload.
pub const FRAME: usize = 48;

/// A moment on three clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Time of the log's own clock, ticks.
    pub ticks: u64,
    /// Time of the node's monotonic clock, nanoseconds.
    pub monotonic: u64,
    /// Time of the node's clock of day, nanoseconds since 1970.
    pub real: u64,
}

/// The header of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Processors of the node.
    pub processors: u32,
    /// Frequency of the processors, hertz; 0 if unknown.
    pub frequency: u64,
    /// Moment at which the process began.
    pub first: Moment,
    /// Moment late in the process, to relate the clocks.
    pub last: Moment,
}

impl Header {
    /// Returns the time of the node's monotonic clock at a tick, in picoseconds. 64 bits would be enough for only 213 days, and a node may
    /// run for longer.
    pub fn time(&self, ticks: u64) -> i128 {
        let (first, last) = (self.first, self.last);
        let span = i128::from(last.ticks) - i128::from(first.ticks);
        let nanoseconds = i128::from(last.monotonic) - i128::from(first.monotonic);
        // Without a second moment a tick counts as a nanosecond; such a log has no frames.
        let (span, nanoseconds) = if span <= 0 || nanoseconds <= 0 {
            (1, 1)
        } else {
            (span, nanoseconds)
        };
        // A damaged log may have any moments; 128 bits suffice for those of a real log.
        let since = i128::from(ticks) - i128::from(first.ticks);
        let since = since.saturating_mul(nanoseconds).saturating_mul(1000) / span;
        (i128::from(first.monotonic) * 1000).saturating_add(since)
    }

    /// Returns the nanoseconds to add to a time of the monotonic clock, to get the time of day since 1970.
    pub fn epoch(&self) -> i128 {
        i128::from(self.first.real) - i128::from(self.first.monotonic)
    }
}

/// Entry of a log: a hypercall and the moments around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The hypercall, decoded.
    pub request: Request,
    /// Ticks: when the MPI function itself began, or had returned.
    pub inner: u64,
    /// Ticks: when the tracer began before the MPI function, or was done after it.
    pub outer: u64,
    /// Ticks: when the hypercall was logged. The log is in this order.
    pub written: u64,
}

/// Reader of a process's log.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    file: BufReader<File>,
    header: Header,
    at: u64,
    length: u64,
}

/// Payload of a log frame, read like the guest memory that the hypercall's arguments point to.
struct Payload<'a>(&'a [u8]);

impl GuestVirtual for Payload<'_> {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        let from = usize::try_from(address).ok();
        let bytes = from.and_then(|from| self.0.get(from..)?.get(..buffer.len()));
        let bytes = bytes.ok_or(Fault {
            address,
            write: false,
        })?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write(&mut self, address: u64, _: &[u8]) -> Result<(), Fault> {
        Err(Fault {
            address,
            write: true,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(half)
}

impl LogReader {
    /// Opens the log in file `path`.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or that is no log of this version.
    pub fn open(path: &Path) -> Result<LogReader, HostTraceError> {
        let file = File::open(path).map_err(HostTraceError::io("read", path))?;
        let length = file.metadata().map_err(HostTraceError::io("read", path))?;
        let mut file = BufReader::with_capacity(1 << 16, file);
        let mut bytes = [0; HEADER];
        let no_log = |what: String| HostTraceError::NoLog {
            path: path.into(),
            what,
        };
        file.read_exact(&mut bytes)
            .map_err(|_| no_log(format!("it has fewer than {HEADER} bytes")))?;
        if bytes[..8] != MAGIC {
            return Err(no_log("it does not begin like one".into()));
        }
        let version = half(&bytes, 8);
        if version != VERSION {
            return Err(no_log(format!(
                "it has version {version}, this program reads version {VERSION}"
            )));
        }
        let moment = |at| Moment {
            ticks: word(&bytes, at),
            monotonic: word(&bytes, at + 8),
            real: word(&bytes, at + 16),
        };
        Ok(LogReader {
            path: path.into(),
            file,
            header: Header {
                processors: half(&bytes, 12),
                frequency: word(&bytes, 16),
                first: moment(24),
                last: moment(48),
            },
            at: HEADER as u64,
            length: length.len(),
        })
    }

    /// Returns the header of the log.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the next hypercall; None at the log's end, where the process ended normally or was killed.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or whose contents the tracer would not write.
    pub fn next_entry(&mut self) -> Result<Option<LogEntry>, HostTraceError> {
        if self.at + FRAME as u64 > self.length {
            return Ok(None);
        }
        let mut bytes = [0; FRAME];
        self.read(&mut bytes)?;
        let size = u64::from(half(&bytes, 0));
        if size == 0 {
            return Ok(None);
        }
        let operation = half(&bytes, 4);
        let most = FRAME as u64 + limits::RECORDS;
        if size < FRAME as u64 || size % 8 != 0 || size > most || self.at + size > self.length {
            return Err(self.damaged(format!("a frame of {size} bytes")));
        }
        let mut payload = vec![0; size as usize - FRAME];
        self.read(&mut payload)?;
        let (inner, outer) = (word(&bytes, 8), word(&bytes, 16));
        let arguments = [word(&bytes, 24), word(&bytes, 32), word(&bytes, 40), 0, 0];
        let call = |cause| HostTraceError::Call {
            path: self.path.clone(),
            at: self.at,
            cause,
        };
        let request = Call::new(operation, arguments)
            .and_then(|call| decode(&call, &mut Payload(&payload)))
            .map_err(call)?;
        let enters = operation == Operation::MpiEnter as u32;
        self.at += size;
        Ok(Some(LogEntry {
            request,
            inner,
            outer,
            written: if enters { inner } else { outer },
        }))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), HostTraceError> {
        self.file
            .read_exact(bytes)
            .map_err(HostTraceError::io("read", &self.path))
    }

    fn damaged(&self, what: String) -> HostTraceError {
        HostTraceError::Damaged {
            path: self.path.clone(),
            at: self.at,
            what,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_time_between_the_two_moments() {
        let moment = |ticks, monotonic| Moment {
            ticks,
            monotonic,
            real: monotonic + 50,
        };
        let header = Header {
            first: moment(1000, 10),
            last: moment(26_000, 10_010),
            ..Header::default()
        };
        // 2.5 ticks a nanosecond.
        assert_eq!(header.time(1000), 10_000);
        assert_eq!(header.time(1005), 12_000);
        assert_eq!(header.time(900), -30_000);
        assert_eq!(header.epoch(), 50);
        assert_eq!(Header::default().time(3), 3000);
        let damaged = Header {
            first: moment(0, 0),
            last: moment(1, u64::MAX - 50),
            ..Header::default()
        };
        assert!(damaged.time(u64::MAX) > i128::from(u64::MAX));
        // A node that has run for a year.
        let year: u64 = 365 * 86_400 * 1_000_000_000;
        let long = Header {
            first: moment(0, year),
            last: moment(1000, year + 1000),
            ..Header::default()
        };
        assert_eq!(long.time(7) - i128::from(year) * 1000, 7000);
    }
}
