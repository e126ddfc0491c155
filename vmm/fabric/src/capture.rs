//! Frames into a pcap file, as Wireshark and tcpdump read it, with virtual time as time stamps.

use std::borrow::Cow;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use thiserror::Error;

use crate::SentFrame;

/// A capture could not be written.
#[derive(Debug, Error)]
#[error("cannot write the packet capture {path}: {cause}")]
pub struct CaptureError {
    path: PathBuf,
    cause: String,
}

/// A pcap file being written.
pub struct Capture {
    path: PathBuf,
    writer: PcapWriter<BufWriter<File>>,
}

impl Capture {
    /// Create the file.
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
        let writer = PcapWriter::with_header(BufWriter::new(file), header)
            .map_err(|e| fail(e.to_string()))?;
        Ok(Self {
            path: path.into(),
            writer,
        })
    }

    /// Append the frames of one quantum in the order of their times.
    pub fn record(&mut self, frames: &[SentFrame]) -> Result<(), CaptureError> {
        let mut order: Vec<&SentFrame> = frames.iter().collect();
        order.sort_by_key(|f| (f.time_ps, f.port));
        for f in order {
            let packet = PcapPacket {
                timestamp: Duration::from_nanos(f.time_ps / 1000),
                orig_len: f.bytes.len() as u32,
                data: Cow::Borrowed(&f.bytes),
            };
            self.writer
                .write_packet(&packet)
                .map_err(|e| CaptureError {
                    path: self.path.clone(),
                    cause: e.to_string(),
                })?;
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
    fn an_impossible_path_is_named() {
        let error = Capture::create(Path::new("/nonexistent/x.pcap"))
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("/nonexistent/x.pcap"), "{error}");
    }
}
