//! What the bytes of a snapshot mean.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The first bytes: one that is no ASCII, the name, and line ends that a transfer as text would change.
pub(crate) const MAGIC: [u8; 8] = *b"\x89NSS\r\n\x1a\n";

/// The version of the format that this program writes and reads.
pub const VERSION: u32 = 1;

/// Bytes before the first section.
pub(crate) const HEADER: u64 = 64;

/// Sections of memory begin at a multiple of this, so that they can be mapped.
pub(crate) const PAGE: u64 = 4096;

/// Bytes of memory that a checksum is for. A chunk of zeros is not written.
pub(crate) const CHUNK: u64 = 64 << 10;

/// Most bytes of a table of sections.
pub(crate) const TABLE_LIMIT: u64 = 256 << 20;

/// Most bytes of a section that is read into memory.
pub(crate) const BYTES_LIMIT: u64 = 4 << 30;

/// A checksum.
pub(crate) type Sum = [u8; 32];

/// Where the table of sections is, behind magic and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) table: u64,
    pub(crate) length: u64,
    /// Of the bytes before it in the header, and of the table.
    pub(crate) sum: Sum,
}

impl Header {
    /// The bytes before the checksum.
    pub(crate) fn beginning(table: u64, length: u64) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&table.to_le_bytes());
        bytes[24..].copy_from_slice(&length.to_le_bytes());
        bytes
    }
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// The version of nodescope that has written the file.
    pub(crate) program: String,
    pub(crate) sections: Vec<Section>,
}

/// A section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    pub(crate) name: String,
    /// Where it begins in the file, and how many bytes it takes there, holes included.
    pub(crate) offset: u64,
    pub(crate) stored: u64,
    pub(crate) content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Content {
    /// Bytes, compressed by zstd.
    Bytes {
        /// How many.
        length: u64,
        /// Of what is stored.
        sum: Sum,
    },
    /// Memory as it is: regions one after the other.
    Memory {
        /// Guest-physical addresses and lengths.
        regions: Vec<(u64, u64)>,
        /// Of each chunk; none: it is zero, and has not been written.
        sums: Vec<Option<Sum>>,
    },
}

impl Section {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Section {
            name,
            offset,
            stored,
            content,
        } = self;
        match content {
            Content::Bytes { length, .. } => write!(
                f,
                "{name:<20} at byte {offset:>12}: {length} bytes, stored as {stored}"
            ),
            Content::Memory { sums, .. } => {
                let written = sums.iter().flatten().count() as u64 * CHUNK;
                write!(
                    f,
                    "{name:<20} at byte {offset:>12}: {stored} bytes of memory, of which {written} are stored"
                )
            }
        }
    }
}
