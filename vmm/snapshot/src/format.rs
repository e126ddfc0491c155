//! Layout of a snapshot file: a header of one page, the sections, and at the end the table of sections.

use serde::{Deserialize, Serialize};

/// Version of the format and of the states in it. States are not self-describing: a change of a state's type must increase this
/// version.
pub const FORMAT: u32 = 4;

/// Version of this nodescope. States of another version may differ in any way.
pub(crate) const NODESCOPE: &str = env!("CARGO_PKG_VERSION");

/// First bytes of a file. As in PNG, damage by text tools and 7-bit channels changes these bytes.
pub(crate) const MAGIC: [u8; 8] = *b"\x89NSS\r\n\x1a\n";
/// Bytes of a page. RAM regions begin at multiples of this size in the file.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of the header, of which only [`Header::BYTES`] are used; the others are zero.
pub(crate) const HEADER: u64 = PAGE;
/// Bytes of a chunk of RAM; the last chunk of a region may be shorter. Each chunk that is not all zero has a checksum.
pub(crate) const CHUNK: u64 = 256 << 10;
/// Maximum length of the table, and of a section that is read as a whole, in bytes before compression.
pub(crate) const MOST_STATE: u64 = 1 << 30;
/// Maximum length of a section's name, bytes.
pub(crate) const MOST_NAME: usize = 255;

/// BLAKE3 of some bytes.
pub(crate) type Hash = [u8; 32];

/// Kind of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A value in postcard's encoding.
    State,
    /// A value as JSON.
    Json,
    /// Bytes, such as a file's contents.
    Bytes,
    /// RAM of a node.
    Ram,
}

impl Kind {
    /// Returns the kind as the end of the message "section X holds ...".
    pub(crate) fn text(self) -> &'static str {
        match self {
            Kind::State => "a state",
            Kind::Json => "JSON",
            Kind::Bytes => "bytes",
            Kind::Ram => "RAM",
        }
    }
}

/// Entry of a RAM region in the table of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Region {
    /// First guest-physical address of the region.
    pub start: u64,
    /// Length of the region, bytes.
    pub len: u64,
    /// Offset of the region's first byte in the file, bytes.
    pub offset: u64,
    /// BLAKE3 of each chunk; `None` for a chunk whose bytes are all zero.
    pub chunks: Vec<Option<Hash>>,
}

/// Entry of a section in the table of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// Name of the section, unique in its file.
    pub name: String,
    /// Kind of the section.
    pub kind: Kind,
    /// Offset of the section's first byte in the file, bytes.
    pub offset: u64,
    /// Length in the file, bytes: compressed; for RAM, uncompressed with its holes.
    pub stored: u64,
    /// Length of the uncompressed contents, bytes.
    pub length: u64,
    /// BLAKE3 of the section's bytes in the file. For RAM, zero: chunks of RAM have hashes of their own.
    pub(crate) hash: Hash,
    /// Regions of RAM; empty for other sections.
    pub(crate) regions: Vec<Region>,
}

/// Contents of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub format: u32,
    /// Version of nodescope, cut to 32 bytes.
    pub nodescope: String,
    /// Offset and length of the compressed table in the file, bytes. The file ends with the table.
    pub table: (u64, u64),
    /// Length of the uncompressed table, bytes.
    pub unpacked: u64,
    /// BLAKE3 of the table's bytes in the file.
    pub hash: Hash,
}

/// Reason why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    /// The file does not begin with [`MAGIC`], so the file is no snapshot.
    Magic,
    /// The header is too short, or its checksum or padding is wrong.
    Checksum,
}

impl Header {
    /// Offset of the format version in the header, bytes, for messages.
    pub const FORMAT_AT: u64 = 8;
    const NAME: usize = 32;
    /// Bytes of the used part: magic, format, version of nodescope; offset, length, uncompressed length and hash of the table; CRC-32 of
    /// all these.
    pub const BYTES: usize = 8 + 4 + Self::NAME + 8 + 8 + 8 + 32 + 4;

    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(self.format.to_le_bytes());
        let mut name = self.nodescope.as_bytes().to_vec();
        name.resize(Self::NAME, 0);
        out.extend(name);
        for number in [self.table.0, self.table.1, self.unpacked] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.hash);
        out.extend(crc32fast::hash(&out).to_le_bytes());
        out.resize(HEADER as usize, 0);
        out
    }

    /// Returns the header in the first page of a file.
    pub fn decode(page: &[u8]) -> Result<Self, NoHeader> {
        if !page.starts_with(&MAGIC) {
            return Err(NoHeader::Magic);
        }
        let (used, rest) = page
            .split_at_checked(Self::BYTES)
            .ok_or(NoHeader::Checksum)?;
        let (used, crc) = used.split_at(Self::BYTES - 4);
        let whole = page.len() as u64 == HEADER && rest.iter().all(|&byte| byte == 0);
        if !whole || crc != crc32fast::hash(used).to_le_bytes() {
            return Err(NoHeader::Checksum);
        }
        let mut at = &used[MAGIC.len()..];
        let mut take = |n: usize| {
            let (head, tail) = at.split_at(n);
            at = tail;
            head
        };
        let format = take(4).try_into().map(u32::from_le_bytes);
        let name = take(Self::NAME);
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        let nodescope = String::from_utf8_lossy(&name[..end]).into_owned();
        let mut number = || {
            let bytes = take(8).try_into();
            bytes.map(u64::from_le_bytes).expect("eight bytes")
        };
        let table = (number(), number());
        let unpacked = number();
        Ok(Self {
            format: format.expect("four bytes"),
            nodescope,
            table,
            unpacked,
            hash: take(32).try_into().expect("32 bytes"),
        })
    }
}
