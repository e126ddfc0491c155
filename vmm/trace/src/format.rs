//! Constants of the file format, and the frame of a chunk. `FORMAT.md` describes the format.

/// The first eight bytes of a trace.
pub const MAGIC: [u8; 8] = *b"NSTRACE\n";
/// The version of the file format that this crate writes and reads.
pub const VERSION: u32 = 4;
/// The greatest length of a header, in bytes.
pub const HEADER_LIMIT: u32 = 16 << 20;
/// The greatest length of a chunk, compressed or not, in bytes: a reader allocates no more, whatever a file states. A few
/// compressed bytes may stand for a whole chunk, and a byte of an event may take eight in memory.
pub const CHUNK_LIMIT: u32 = 16 << 20;
/// Bytes before a file's header: magic, version, length, checksum.
pub const PROLOGUE: usize = 20;
/// Bytes before a chunk's data.
pub const FRAME: usize = 24;

/// Kinds of a trace file's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A chunk with events.
    Events,
    /// The last chunk, which marks the trace as complete.
    End,
}

/// Frame of a chunk: the bytes before the chunk's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    /// Bytes of data in the file.
    pub stored: u32,
    /// Bytes of data uncompressed.
    pub raw: u32,
    /// Number of events in the chunk. In the chunk of kind `End`, number of events in the whole trace, modulo 2^32.
    pub events: u32,
    /// CRC-32 of the data in the file.
    pub data_crc: u32,
}

impl Frame {
    pub fn encode(&self) -> [u8; FRAME] {
        let mut bytes = [0; FRAME];
        bytes[0..4].copy_from_slice(match self.kind {
            Kind::Events => b"EVTS",
            Kind::End => b"DONE",
        });
        for (slot, value) in bytes[4..20].chunks_exact_mut(4).zip([
            self.stored,
            self.raw,
            self.events,
            self.data_crc,
        ]) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        let crc = crc32fast::hash(&bytes[..20]);
        bytes[20..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a frame. Returns `None` if the frame's own checksum is wrong, the kind is unknown, or a length exceeds [`CHUNK_LIMIT`].
    pub fn decode(bytes: &[u8; FRAME]) -> Option<Frame> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let kind = match &bytes[0..4] {
            b"EVTS" => Kind::Events,
            b"DONE" => Kind::End,
            _ => return None,
        };
        let frame = Frame {
            kind,
            stored: word(4),
            raw: word(8),
            events: word(12),
            data_crc: word(16),
        };
        let sane = word(20) == crc32fast::hash(&bytes[..20])
            && frame.stored <= CHUNK_LIMIT
            && frame.raw <= CHUNK_LIMIT;
        sane.then_some(frame)
    }
}
