//! Hashes of an image's files, block by block, so that a run can tell a damaged file from an error of the guest.
//!
//! Hashing a whole root disk takes a second, while a run reads a tenth of the disk. Each block is therefore checked when a run reads the
//! block for the first time. All hashes are in one file beside the image's files: 32 bytes of BLAKE3 for each block, with the files in the
//! order of their names.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use crate::ImageError;

/// Bytes of a block; a file's last block may be shorter.
pub const BLOCK_BYTES: u64 = 64 << 10;

/// BLAKE3 hash of a block.
pub(crate) type BlockHash = [u8; 32];

/// The hashes of a file's blocks, in the order of the file.
#[derive(Clone, PartialEq, Eq)]
pub struct BlockHashes(Arc<[BlockHash]>);

impl BlockHashes {
    /// Computes the hashes of a file's present contents.
    pub(crate) fn of(path: &Path) -> Result<BlockHashes, ImageError> {
        let mut hashes = Vec::new();
        each_block(path, |block| hashes.push(*blake3::hash(block).as_bytes()))?;
        Ok(BlockHashes(hashes.into()))
    }

    /// Returns an object with hashes that were recorded earlier.
    pub(crate) fn recorded(hashes: &[BlockHash]) -> BlockHashes {
        BlockHashes(hashes.into())
    }

    /// Returns the hashes of the blocks, in the order of the file.
    pub(crate) fn hashes(&self) -> &[BlockHash] {
        &self.0
    }

    /// Returns whether the contents match the hash of the block with this number, counted from 0. Returns false for a block beyond the last
    /// one.
    pub fn holds(&self, block: u64, contents: &[u8]) -> bool {
        let hash = usize::try_from(block).ok().and_then(|n| self.0.get(n));
        hash.is_some_and(|hash| blake3::hash(contents) == *hash)
    }

    /// Returns the offset in bytes of the first block that differs from its recorded hash, is missing or is too much; `None` for an intact
    /// file.
    pub(crate) fn first_damage(&self, path: &Path) -> Result<Option<u64>, ImageError> {
        let mut blocks = 0;
        let mut damage = None;
        each_block(path, |contents| {
            if damage.is_none() && !self.holds(blocks, contents) {
                damage = Some(blocks * BLOCK_BYTES);
            }
            blocks += 1;
        })?;
        let missing = (blocks < self.0.len() as u64).then_some(blocks * BLOCK_BYTES);
        Ok(damage.or(missing))
    }
}

impl fmt::Debug for BlockHashes {
    /// Prints the number of hashes: nobody reads thousands of hashes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockHashes({})", self.0.len())
    }
}

/// Returns the number of blocks of a file with this many bytes.
pub(crate) fn block_count(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

fn each_block(path: &Path, mut block: impl FnMut(&[u8])) -> Result<(), ImageError> {
    let mut file = File::open(path).map_err(ImageError::io("open", path))?;
    let mut buffer = vec![0; BLOCK_BYTES as usize];
    loop {
        let filled = fill(&mut file, &mut buffer).map_err(ImageError::io("read", path))?;
        if filled == 0 {
            return Ok(());
        }
        block(&buffer[..filled]);
    }
}

/// Reads until the buffer is full or the file ends, and returns the number of bytes read.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_found_in_its_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut bytes: Vec<u8> = (0..200_000_u32).map(|n| (n / 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let hashes = BlockHashes::of(&path).unwrap();
        assert_eq!(hashes.hashes().len(), 4);
        assert_eq!(hashes.first_damage(&path).unwrap(), None);
        assert!(hashes.holds(1, &bytes[65536..131_072]));
        assert!(!hashes.holds(2, &bytes[65536..131_072]));
        assert!(!hashes.holds(4, &[]));
        bytes[140_000] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(hashes.first_damage(&path).unwrap(), Some(131_072));
        std::fs::write(&path, &bytes[..65536]).unwrap();
        assert_eq!(hashes.first_damage(&path).unwrap(), Some(65536));
    }
}
