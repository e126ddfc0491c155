//! Messages between a process and the process that makes names for it.
//!
//! A message is its length, in four bytes, and its fields by the crate `postcard`. The process that makes names may be in the hands of
//! whoever wrote the file that it reads. Its messages are bounded, and what it may ask for is checked.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::kernel::{FileId, FilePage};
use crate::limits::Lost;
use crate::symbolizer::Location;
use crate::unwind::{Call, Registers};

/// Largest message, bytes. Contents of files follow their message and do not count.
const MESSAGE: usize = 128 << 20;
/// Largest numbers of look-ups and of stacks in one message. An answer fits a message with them.
pub(crate) const LOOKUPS: usize = 256;
pub(crate) const STACKS: usize = 64;

/// Request for names.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Names of offsets in a file, with the executed bytes at each.
    Offsets(FileId, Vec<(u64, Vec<u8>)>),
    /// Names of link-time addresses of a file.
    Addresses(FileId, Vec<u64>),
    /// Names of data, each at a distance from an offset of code in the file.
    Data(FileId, Vec<(u64, i64)>),
    /// Call paths of stacks, each with its address space. True for the first stacks of a guest whose memory may have changed.
    Paths(Vec<(u64, Registers, Vec<u8>)>, bool),
}

/// Message of the process that makes names.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Say {
    /// The process has begun. The text says which of its restrictions this host does not hold.
    Ready(Option<String>),
    /// The process needs the contents of a file.
    Want(Want),
    /// The process needs the origin of the code at the beginning of a page, in this address space.
    Resolve(u64, u64),
    /// Names; `None` where they are those of the look-up before. Then the files that have lost their names.
    Locations(Vec<Option<Location>>, Vec<Lost>),
    /// Call paths, and the files that have lost theirs.
    Paths(Vec<Vec<Call>>, Vec<Lost>),
}

/// File that the process that makes names needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Want {
    /// A file of the guest.
    File(FileId),
    /// A file below `/usr/lib/debug`.
    Debug(String),
    /// A file beside a file of the guest.
    Beside(FileId, String),
}

/// Origin of a page, as an answer to [`Say::Resolve`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Resolved(pub Option<FilePage>);

/// Writes a message.
pub(crate) fn put(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    to.write_all(&len.to_le_bytes())?;
    to.write_all(&bytes)
}

/// Reads a message.
pub(crate) fn get<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MESSAGE {
        return Err(io::Error::other("a message is too long"));
    }
    // The buffer grows with what arrives.
    let mut bytes = Vec::new();
    from.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// Writes the contents of a file: its length plus one, or 0 for a file that is missing, then its bytes.
pub(crate) fn put_file(to: &mut impl Write, bytes: Option<&[u8]>) -> io::Result<()> {
    let len = bytes.map_or(0, |bytes| bytes.len() as u64 + 1);
    to.write_all(&len.to_le_bytes())?;
    to.write_all(bytes.unwrap_or_default())
}

/// Reads the contents of a file.
pub(crate) fn get_file(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 8];
    from.read_exact(&mut len)?;
    let Some(len) = u64::from_le_bytes(len).checked_sub(1) else {
        return Ok(None);
    };
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    from.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}
