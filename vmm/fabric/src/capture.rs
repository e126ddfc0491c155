//! Writes frames into a pcap file for Wireshark and tcpdump, with virtual time as time stamps.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use thiserror::Error;

use crate::SentFrame;

/// Error of a capture that could not be written.
#[derive(Debug, Error)]
#[error("cannot write the packet capture {path}: {cause}")]
pub struct CaptureError {
    path: PathBuf,
    cause: String,
}

/// Bytes of a pcap file before its first packet.
const HEADER: u64 = 24;

/// The file, which the library's writer shares with this capture.
#[derive(Clone)]
struct Output(Arc<Mutex<BufWriter<File>>>);

impl Output {
    fn get(&self) -> MutexGuard<'_, BufWriter<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.get().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.get().flush()
    }
}

/// A pcap file being written.
pub struct Capture {
    path: PathBuf,
    output: Output,
    writer: PcapWriter<Output>,
}

impl Capture {
    /// Creates the file, without packets.
    pub fn create(path: &Path) -> Result<Self, CaptureError> {
        let fail = |cause: String| CaptureError {
            path: path.into(),
            cause,
        };
        let file = File::create(path).map_err(|e| fail(e.to_string()))?;
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::Little,
            ..Default::default()
        };
        let output = Output(Arc::new(Mutex::new(BufWriter::new(file))));
        let writer =
            PcapWriter::with_header(output.clone(), header).map_err(|e| fail(e.to_string()))?;
        Ok(Self {
            path: path.into(),
            output,
            writer,
        })
    }

    /// Creates the file with the packets of an earlier capture. Further packets follow them.
    pub fn resume(path: &Path, mut earlier: impl Read) -> Result<Self, CaptureError> {
        let capture = Self::create(path)?;
        let mut header = earlier.by_ref().take(HEADER);
        io::copy(&mut header, &mut io::sink())
            .and_then(|_| io::copy(&mut earlier, &mut *capture.output.get()))
            .map_err(|error| capture.failed(&error))?;
        Ok(capture)
    }

    /// Writes the collected frames into the file.
    pub fn flush(&mut self) -> Result<(), CaptureError> {
        let written = self.output.flush();
        written.map_err(|error| self.failed(&error))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, cause: &dyn ToString) -> CaptureError {
        CaptureError {
            path: self.path.clone(),
            cause: cause.to_string(),
        }
    }

    /// Appends the frames of one quantum in the order of their times.
    pub fn record(&mut self, frames: &[SentFrame]) -> Result<(), CaptureError> {
        let mut order: Vec<&SentFrame> = frames.iter().collect();
        order.sort_by_key(|f| (f.time_ps, f.port));
        for f in order {
            let packet = PcapPacket {
                timestamp: Duration::from_nanos(f.time_ps / 1000),
                orig_len: f.bytes.len() as u32,
                data: Cow::Borrowed(&f.bytes),
            };
            let written = self.writer.write_packet(&packet);
            written.map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fabric.pcap");
        let mut capture = Capture::create(&path).unwrap();
        let frame = |t, n| SentFrame {
            time_ps: t,
            port: 0,
            bytes: vec![n; 60],
            missing: 0,
            checksum_valid: false,
        };
        capture
            .record(&[frame(2_500_000, 2), frame(1_000_999, 1)])
            .unwrap();
        drop(capture);
        let mut reader = pcap_file::pcap::PcapReader::new(File::open(&path).unwrap()).unwrap();
        let mut got = Vec::new();
        while let Some(p) = reader.next_packet() {
            let p = p.unwrap();
            got.push((p.timestamp.as_nanos(), p.data[0], p.orig_len));
        }
        assert_eq!(got, [(1000, 1, 60), (2500, 2, 60)]);
    }

    #[test]
    fn a_capture_that_is_resumed_is_as_if_it_had_never_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let frame = |t| SentFrame {
            time_ps: t,
            port: 0,
            bytes: vec![7; 60],
            missing: 0,
            checksum_valid: false,
        };
        let [whole, half, rest] = ["whole", "half", "rest"].map(|name| dir.path().join(name));
        let mut through = Capture::create(&whole).unwrap();
        through.record(&[frame(1000)]).unwrap();
        through.record(&[frame(2000)]).unwrap();
        drop(through);
        let mut first = Capture::create(&half).unwrap();
        first.record(&[frame(1000)]).unwrap();
        first.flush().unwrap();
        let mut second = Capture::resume(&rest, File::open(first.path()).unwrap()).unwrap();
        second.record(&[frame(2000)]).unwrap();
        drop(second);
        assert_eq!(
            std::fs::read(&whole).unwrap(),
            std::fs::read(&rest).unwrap()
        );
    }

    #[test]
    fn an_impossible_path_is_named() {
        let error = Capture::create(Path::new("/nonexistent/x.pcap"))
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("/nonexistent/x.pcap"), "{error}");
    }
}
