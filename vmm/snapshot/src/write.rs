//! Writer of snapshots. The writer writes sections one after the other to a temporary file, and renames the complete file.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nodescope_memory::Ram;
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::error::{SnapshotError, io};
use crate::format::{
    FORMAT, HEADER, Hash, Header, Kind, MOST_NAME, MOST_STATE, NODESCOPE, PAGE, Section,
};
use crate::ram;

/// Zstandard level of the table and of all sections but RAM, which is not compressed. Higher levels save a few per cent of space and take
/// several times as long.
const ZSTD_LEVEL: i32 = 3;

/// A snapshot that is being written. A writer that is dropped before [`SnapshotWriter::finish`] leaves no file.
#[derive(Debug)]
pub struct SnapshotWriter {
    path: PathBuf,
    file: NamedTempFile,
    /// Offset in the file from which the next section may begin, bytes.
    at: u64,
    sections: Vec<Section>,
}

impl SnapshotWriter {
    /// Creates a temporary file in the folder of `path`, the final path of the snapshot.
    pub fn create(path: &Path) -> Result<Self, SnapshotError> {
        let folder = folder(path);
        let file = tempfile::Builder::new()
            .prefix(".unfinished-")
            .suffix(".nss")
            // The umask of the process removes permissions, as for any new file.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(io(path, "create a file for"))?;
        Ok(Self {
            path: path.into(),
            file,
            at: HEADER,
            sections: Vec::new(),
        })
    }

    /// Writes a value in postcard's encoding, which is not self-describing: the value must be read back as the same type.
    pub fn state<T: Serialize + ?Sized>(
        &mut self,
        name: &str,
        value: &T,
    ) -> Result<(), SnapshotError> {
        let bytes = postcard::to_stdvec(value).map_err(|cause| self.encode(name, cause))?;
        self.whole(name, Kind::State, &bytes)
    }

    /// Writes a value as JSON, for types that need a self-describing encoding.
    pub fn json<T: Serialize + ?Sized>(
        &mut self,
        name: &str,
        value: &T,
    ) -> Result<(), SnapshotError> {
        let bytes = serde_json::to_vec(value).map_err(|cause| self.encode(name, cause))?;
        self.whole(name, Kind::Json, &bytes)
    }

    /// Writes a section of plain bytes, at most 1 GiB.
    pub fn bytes(&mut self, name: &str, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.whole(name, Kind::Bytes, bytes)
    }

    /// Writes the present contents of the file at `path` as a section of bytes, and returns their length in bytes.
    pub fn file(&mut self, name: &str, path: &Path) -> Result<u64, SnapshotError> {
        let mut file = File::open(path).map_err(io(path, "open"))?;
        self.stream(name, Kind::Bytes, &mut file, path)
    }

    /// Writes the RAM of a node that does not run.
    pub fn ram(&mut self, name: &str, ram: &Ram) -> Result<(), SnapshotError> {
        self.check_name(name)?;
        let offset = self.at.next_multiple_of(PAGE);
        let (regions, end) =
            ram::write(self.file.as_file(), offset, ram).map_err(io(&self.path, "write"))?;
        self.sections.push(Section {
            name: name.into(),
            kind: Kind::Ram,
            offset,
            stored: end - offset,
            length: ram.size(),
            hash: Hash::default(),
            regions,
        });
        self.at = end;
        Ok(())
    }

    /// Writes the table and the header, and renames the temporary file to the final path. Replaces an earlier file of this name. Returns
    /// the bytes that the file takes on the disk.
    pub fn finish(mut self) -> Result<u64, SnapshotError> {
        let sections = std::mem::take(&mut self.sections);
        let encoded = postcard::to_stdvec(&sections);
        let encoded = encoded.map_err(|cause| self.encode("table", cause))?;
        let write = io(&self.path, "write");
        let (at, hash, stored) = self.pack(&mut &encoded[..], &self.path)?.0;
        let header = Header {
            format: FORMAT,
            nodescope: NODESCOPE.into(),
            table: (at, stored),
            unpacked: encoded.len() as u64,
            hash,
        };
        let file = self.file.as_file();
        file.write_all_at(&header.encode(), 0)
            .and_then(|()| file.sync_all())
            .map_err(write)?;
        let named = self.file.persist(&self.path);
        let named = named.map_err(|e| io(&self.path, "give its name to")(e.error))?;
        // The new name survives a crash of the host only once the folder is synchronised.
        File::open(folder(&self.path))
            .and_then(|folder| folder.sync_all())
            .map_err(io(&self.path, "write the folder of"))?;
        let metadata = named.metadata().map_err(io(&self.path, "look at"))?;
        Ok(metadata.blocks() * 512)
    }

    fn whole(&mut self, name: &str, kind: Kind, bytes: &[u8]) -> Result<(), SnapshotError> {
        if bytes.len() as u64 > MOST_STATE {
            return Err(SnapshotError::TooLarge {
                path: self.path.clone(),
                name: name.into(),
                bytes: bytes.len() as u64,
                most: MOST_STATE,
            });
        }
        let path = self.path.clone();
        self.stream(name, kind, &mut &bytes[..], &path)?;
        Ok(())
    }

    /// Writes a section from the bytes of `from`. Errors of reading name the file `source`. Returns the number of bytes read.
    fn stream(
        &mut self,
        name: &str,
        kind: Kind,
        from: &mut dyn Read,
        source: &Path,
    ) -> Result<u64, SnapshotError> {
        self.check_name(name)?;
        let ((offset, hash, stored), length) = self.pack(from, source)?;
        self.sections.push(Section {
            name: name.into(),
            kind,
            offset,
            stored,
            length,
            hash,
            regions: Vec::new(),
        });
        self.at = offset + stored;
        Ok(length)
    }

    /// Compresses the bytes of `from` to the end of the file. Returns the offset, hash and length of the compressed bytes in the file, and
    /// the number of bytes read.
    fn pack(
        &self,
        from: &mut dyn Read,
        source: &Path,
    ) -> Result<((u64, Hash, u64), u64), SnapshotError> {
        let cannot_write = |error| io(&self.path, "write")(error);
        let mut placed = Placed {
            file: self.file.as_file(),
            at: self.at,
            hasher: blake3::Hasher::new(),
        };
        let mut out =
            zstd::Encoder::new(BufWriter::new(&mut placed), ZSTD_LEVEL).map_err(cannot_write)?;
        let mut length = 0;
        let mut buffer = vec![0; 256 << 10];
        loop {
            let n = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(io(source, "read")(e)),
            };
            out.write_all(&buffer[..n]).map_err(cannot_write)?;
            length += n as u64;
        }
        let buffered = out.finish().map_err(cannot_write)?;
        let flushed = buffered.into_inner();
        flushed.map_err(|e| cannot_write(e.into_error()))?;
        let stored = placed.at - self.at;
        let hash = *placed.hasher.finalize().as_bytes();
        Ok(((self.at, hash, stored), length))
    }

    fn check_name(&self, name: &str) -> Result<(), SnapshotError> {
        let why = if name.is_empty() {
            "it is empty"
        } else if name.len() > MOST_NAME {
            "it is longer than 255 bytes"
        } else if name.chars().any(char::is_control) {
            "it has control characters"
        } else if self.sections.iter().any(|s| s.name == name) {
            "there is one of this name already"
        } else {
            return Ok(());
        };
        Err(SnapshotError::Name {
            path: self.path.clone(),
            name: name.into(),
            why,
        })
    }

    fn encode(&self, name: &str, cause: impl ToString) -> SnapshotError {
        SnapshotError::Encode {
            path: self.path.clone(),
            name: name.into(),
            cause: cause.to_string(),
        }
    }
}

/// Returns the folder that contains a file.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Writer to a file from the offset `at` on, which hashes the written bytes.
struct Placed<'a> {
    file: &'a File,
    at: u64,
    hasher: blake3::Hasher,
}

impl Write for Placed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write_at(bytes, self.at)?;
        self.hasher.update(&bytes[..n]);
        self.at += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
