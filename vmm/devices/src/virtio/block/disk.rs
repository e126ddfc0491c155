//! Contents of a block device: an image file that nodes share, memory of the node, or memory over an image.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use thiserror::Error;

use super::state::DiskState;
use crate::state::RestoreError;

/// Bytes in a sector.
pub const SECTOR: u64 = 512;

/// Size in bytes of a cluster, the unit in which written data is stored in memory.
const CLUSTER: u64 = 4096;

/// A check of an image file's contents, block by block.
pub trait BlockCheck: std::fmt::Debug + Send + Sync {
    /// Returns the size of a block in bytes. The last block of a file may be shorter.
    fn block_bytes(&self) -> u64;
    /// Returns whether `contents` are the expected ones of the block with this index, from 0.
    fn holds(&self, block: u64, contents: &[u8]) -> bool;
}

/// Reason why an image file could not be read for a guest. The host is at fault, not the guest.
#[derive(Clone, Debug, Error)]
pub enum ImageFault {
    /// The file's contents are not those with which it was made.
    #[error("{}: damaged: the {bytes} bytes at offset {offset} are not those that the image was made with", path.display())]
    Damaged {
        /// Path of the image file.
        path: PathBuf,
        /// Offset in bytes at which the damaged block begins.
        offset: u64,
        /// Length of the block in bytes.
        bytes: usize,
    },
    /// The host cannot read the file.
    #[error("cannot read {} at offset {offset}: {source}", path.display())]
    Read {
        /// Path of the image file.
        path: PathBuf,
        /// Offset in bytes of the data that cannot be read.
        offset: u64,
        /// Error of the host.
        source: Arc<io::Error>,
    },
}

/// A read-only image file that nodes share. The file must not change while it is in use.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
    file: File,
    len: u64,
    check: Option<Checked>,
    /// First failure of a read, if any.
    fault: OnceLock<ImageFault>,
}

/// The check of an image's blocks, with a bit for each block that has passed it.
#[derive(Debug)]
struct Checked {
    check: Box<dyn BlockCheck>,
    seen: Vec<AtomicU64>,
}

impl Image {
    /// Opens an image file without a check.
    pub fn open(path: &Path) -> io::Result<Arc<Self>> {
        Self::with_check(path, None)
    }

    /// Opens an image file. `check` checks each block when it is first read.
    pub fn open_checked(path: &Path, check: Box<dyn BlockCheck>) -> io::Result<Arc<Self>> {
        Self::with_check(path, Some(check))
    }

    fn with_check(path: &Path, check: Option<Box<dyn BlockCheck>>) -> io::Result<Arc<Self>> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let check = check.map(|check| {
            let words = len.div_ceil(check.block_bytes()).div_ceil(64);
            let seen = (0..words).map(|_| AtomicU64::new(0)).collect();
            Checked { check, seen }
        });
        Ok(Arc::new(Self {
            path: path.into(),
            file,
            len,
            check,
            fault: OnceLock::new(),
        }))
    }

    /// Returns the first failure of a read; none if all reads succeeded. With a failure, the guest has seen a disk error that the host
    /// caused.
    pub fn fault(&self) -> Option<&ImageFault> {
        self.fault.get()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads at byte offset `at`. Bytes past the end of the file are zero.
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let within = self.len.saturating_sub(at).min(buf.len() as u64) as usize;
        let (inside, outside) = buf.split_at_mut(within);
        outside.fill(0);
        if inside.is_empty() {
            return Ok(());
        }
        let read = self.check_blocks(at, inside.len()).and_then(|()| {
            let cannot = |source| self.cannot_read(at, source);
            self.file.read_exact_at(inside, at).map_err(cannot)
        });
        read.map_err(|fault| {
            let error = io::Error::other(fault.to_string());
            // Only the first failure is stored.
            let _ = self.fault.set(fault);
            error
        })
    }

    /// Checks the blocks that contain `len` bytes from offset `at`, except those that have passed already.
    fn check_blocks(&self, at: u64, len: usize) -> Result<(), ImageFault> {
        let Some(Checked { check, seen }) = &self.check else {
            return Ok(());
        };
        let size = check.block_bytes();
        for block in at / size..=(at + len as u64 - 1) / size {
            let (word, bit) = (&seen[(block / 64) as usize], 1 << (block % 64));
            // No other data depends on the bit. Two threads may check the same block.
            if word.load(Ordering::Relaxed) & bit != 0 {
                continue;
            }
            let offset = block * size;
            let mut contents = vec![0; (self.len - offset).min(size) as usize];
            let read = self.file.read_exact_at(&mut contents, offset);
            read.map_err(|source| self.cannot_read(offset, source))?;
            if !check.holds(block, &contents) {
                return Err(ImageFault::Damaged {
                    path: self.path.clone(),
                    offset,
                    bytes: contents.len(),
                });
            }
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }

    fn cannot_read(&self, offset: u64, source: io::Error) -> ImageFault {
        ImageFault::Read {
            path: self.path.clone(),
            offset,
            source: Arc::new(source),
        }
    }
}

/// Contents of a block device of one node.
#[derive(Clone, Debug)]
pub struct Disk {
    base: Option<Arc<Image>>,
    sectors: u64,
    read_only: bool,
    /// Written clusters of 4096 bytes, by cluster index.
    written: BTreeMap<u64, Box<[u8]>>,
}

impl Disk {
    /// Makes a disk from an image that the guest can only read.
    pub fn read_only(image: Arc<Image>) -> Self {
        Self {
            read_only: true,
            ..Self::overlay(image)
        }
    }

    /// Makes a disk from an image, with the node's changes in its own memory.
    pub fn overlay(image: Arc<Image>) -> Self {
        Self {
            sectors: image.len().div_ceil(SECTOR),
            base: Some(image),
            read_only: false,
            written: BTreeMap::new(),
        }
    }

    /// Makes a disk of `bytes`, rounded down to whole sectors, that is zero at first. Only written clusters take host memory.
    pub fn memory(bytes: u64) -> Self {
        Self {
            base: None,
            sectors: bytes / SECTOR,
            read_only: false,
            written: BTreeMap::new(),
        }
    }

    /// Returns the size in sectors of 512 bytes.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the image under the written clusters; none for a disk in memory.
    pub fn image(&self) -> Option<&Arc<Image>> {
        self.base.as_ref()
    }

    /// Returns whether the guest can only read the disk.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns whether `len` is a whole number of sectors, and these are on the disk from `sector` on.
    pub(super) fn holds(&self, sector: u64, len: u64) -> bool {
        len.is_multiple_of(SECTOR)
            && sector
                .checked_add(len / SECTOR)
                .is_some_and(|end| end <= self.sectors)
    }

    /// Splits `len` bytes from byte offset `at` at cluster boundaries, into (cluster, offset in the cluster, length).
    fn pieces(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let here = at + done as u64;
            let offset = (here % CLUSTER) as usize;
            let piece = (CLUSTER as usize - offset).min(len - done);
            done += piece;
            (piece > 0).then_some((here / CLUSTER, offset, piece))
        })
    }

    /// Reads from byte offset `at` on the disk.
    pub(super) fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        match &self.base {
            Some(image) => image.read(at, buf)?,
            None => buf.fill(0),
        }
        if self.written.is_empty() {
            return Ok(());
        }
        let mut rest = buf;
        for (cluster, offset, len) in Self::pieces(at, rest.len()) {
            let (piece, after) = rest.split_at_mut(len);
            if let Some(data) = self.written.get(&cluster) {
                piece.copy_from_slice(&data[offset..offset + len]);
            }
            rest = after;
        }
        Ok(())
    }

    /// Writes at byte offset `at` on the disk.
    pub(super) fn write(&mut self, at: u64, buf: &[u8]) -> io::Result<()> {
        if self.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let mut rest = buf;
        for (cluster, offset, len) in Self::pieces(at, buf.len()) {
            let (piece, after) = rest.split_at(len);
            if !self.written.contains_key(&cluster) {
                let mut data = vec![0; CLUSTER as usize].into_boxed_slice();
                if let Some(image) = &self.base {
                    image.read(cluster * CLUSTER, &mut data)?;
                }
                self.written.insert(cluster, data);
            }
            if let Some(data) = self.written.get_mut(&cluster) {
                data[offset..offset + len].copy_from_slice(piece);
            }
            rest = after;
        }
        Ok(())
    }

    pub(super) fn save(&self) -> DiskState {
        DiskState {
            sectors: self.sectors,
            written: self
                .written
                .iter()
                .map(|(&i, data)| (i, data.to_vec()))
                .collect(),
        }
    }

    pub(super) fn restore(&mut self, state: &DiskState) -> Result<(), RestoreError> {
        if self.read_only && !state.written.is_empty() {
            let reason = "the guest has written to a disk that it can only read";
            return Err(RestoreError::new("block device", reason));
        }
        let fits = |(i, data): &(u64, Vec<u8>)| {
            data.len() as u64 == CLUSTER && *i < (self.sectors * SECTOR).div_ceil(CLUSTER)
        };
        if state.sectors != self.sectors || !state.written.iter().all(fits) {
            let reason = format!(
                "it has {} sectors, the disk {}",
                state.sectors, self.sectors
            );
            return Err(RestoreError::new("block device", reason));
        }
        let clusters = state.written.iter();
        self.written = clusters
            .map(|(i, data)| (*i, data.clone().into_boxed_slice()))
            .collect();
        Ok(())
    }
}
