//! Writes a snapshot.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nodescope_memory::Ram;
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::error::SnapshotError;
use crate::format::{CHUNK, Content, HEADER, Header, PAGE, Section, Sum, Table};

/// Higher levels save little of states that are a few megabytes.
const ZSTD_LEVEL: i32 = 3;

/// A snapshot being written. It gets its name when it is finished; until then an earlier file of the name stays.
pub struct SnapshotWriter {
    path: PathBuf,
    file: NamedTempFile,
    end: u64,
    sections: Vec<Section>,
}

impl SnapshotWriter {
    /// Begins a file.
    ///
    /// # Errors
    ///
    /// A folder in which no file can be made.
    pub fn create(path: &Path) -> Result<Self, SnapshotError> {
        let folder = path
            .parent()
            .filter(|folder| *folder != Path::new(""))
            .unwrap_or(Path::new("."));
        let file = tempfile::Builder::new()
            .prefix(".nodescope-")
            .permissions(std::fs::Permissions::from_mode(0o666))
            .tempfile_in(folder);
        Ok(Self {
            file: file.map_err(io_error(path, "write"))?,
            path: path.into(),
            end: HEADER,
            sections: Vec::new(),
        })
    }

    /// Writes a section with a state.
    ///
    /// # Errors
    ///
    /// A state that cannot be encoded, a name that is taken, a full disk.
    pub fn state(&mut self, name: &str, state: &impl Serialize) -> Result<(), SnapshotError> {
        let bytes = postcard::to_stdvec(state).map_err(|error| SnapshotError::Section {
            name: name.into(),
            problem: error.to_string(),
        })?;
        self.bytes(name, &bytes)
    }

    /// Writes a section of bytes.
    ///
    /// # Errors
    ///
    /// A name that is taken, a full disk.
    pub fn bytes(&mut self, name: &str, bytes: &[u8]) -> Result<(), SnapshotError> {
        let written = self.compressed(name, bytes)?;
        written.map_err(io_error(&self.path, "write"))
    }

    /// Writes a section with the contents of a file.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, a name that is taken, a full disk.
    pub fn file(&mut self, name: &str, path: &Path) -> Result<(), SnapshotError> {
        let file = File::open(path).map_err(io_error(path, "read"))?;
        let written = self.compressed(name, BufReader::new(file))?;
        written.map_err(io_error(&self.path, "write"))
    }

    fn compressed(
        &mut self,
        name: &str,
        mut from: impl Read,
    ) -> Result<io::Result<()>, SnapshotError> {
        self.check_name(name)?;
        let offset = self.end;
        let mut write = || -> io::Result<_> {
            let mut out = Summed {
                file: self.file.as_file_mut(),
                hash: blake3::Hasher::new(),
                length: 0,
            };
            out.file.seek(SeekFrom::Start(offset))?;
            let mut encoder = zstd::Encoder::new(&mut out, ZSTD_LEVEL)?;
            let length = io::copy(&mut from, &mut encoder)?;
            encoder.finish()?;
            Ok((length, out.length, *out.hash.finalize().as_bytes()))
        };
        Ok(write().map(|(length, stored, sum)| {
            self.end = offset + stored;
            self.sections.push(Section {
                name: name.into(),
                offset,
                stored,
                content: Content::Bytes { length, sum },
            });
        }))
    }

    /// Writes a section with a node's memory.
    ///
    /// # Errors
    ///
    /// A name that is taken, a full disk.
    pub fn ram(&mut self, name: &str, ram: &Ram) -> Result<(), SnapshotError> {
        self.check_name(name)?;
        let offset = self.end.next_multiple_of(PAGE);
        let regions: Vec<_> = ram.regions().iter().map(|r| (r.start, r.len)).collect();
        let mut sums = Vec::new();
        let mut chunk = vec![0; CHUNK as usize];
        let mut at = offset;
        for &(start, len) in &regions {
            for address in (start..start + len).step_by(CHUNK as usize) {
                let chunk = &mut chunk[..(start + len - address).min(CHUNK) as usize];
                if !ram.read(address, chunk) {
                    return Err(SnapshotError::Section {
                        name: name.into(),
                        problem: format!("there is no memory at {address:#x}"),
                    });
                }
                sums.push(match chunk.iter().all(|&byte| byte == 0) {
                    true => None,
                    false => {
                        let written = self.file.as_file().write_all_at(chunk, at);
                        written.map_err(io_error(&self.path, "write"))?;
                        Some(sum(chunk))
                    }
                });
                at += chunk.len() as u64;
            }
        }
        // Holes are part of the file, too.
        let sized = self.file.as_file().set_len(at);
        sized.map_err(io_error(&self.path, "write"))?;
        self.end = at;
        self.sections.push(Section {
            name: name.into(),
            offset,
            stored: at - offset,
            content: Content::Memory { regions, sums },
        });
        Ok(())
    }

    fn check_name(&self, name: &str) -> Result<(), SnapshotError> {
        match self.sections.iter().any(|section| section.name == name) {
            true => Err(SnapshotError::Section {
                name: name.into(),
                problem: "it is there already".into(),
            }),
            false => Ok(()),
        }
    }

    /// Writes the table, and gives the file its name. Returns the disk space that it takes, bytes.
    ///
    /// # Errors
    ///
    /// A full disk.
    pub fn finish(self) -> Result<u64, SnapshotError> {
        let table = Table {
            program: env!("CARGO_PKG_VERSION").into(),
            sections: self.sections,
        };
        let table = postcard::to_stdvec(&table).map_err(|error| SnapshotError::Section {
            name: "table".into(),
            problem: error.to_string(),
        })?;
        let beginning = Header::beginning(self.end, table.len() as u64);
        let mut hash = blake3::Hasher::new();
        hash.update(&beginning).update(&table);
        let file = self.file.as_file();
        file.write_all_at(&table, self.end)
            .and_then(|()| file.write_all_at(&beginning, 0))
            .and_then(|()| file.write_all_at(hash.finalize().as_bytes(), 32))
            .and_then(|()| file.sync_all())
            .map_err(io_error(&self.path, "write"))?;
        let kept = self.file.persist(&self.path);
        let kept = kept.map_err(|error| io_error(&self.path, "write")(error.error))?;
        let found = kept.metadata().map_err(io_error(&self.path, "examine"))?;
        Ok(found.blocks() * 512)
    }
}

/// The checksum of bytes.
pub(crate) fn sum(bytes: &[u8]) -> Sum {
    *blake3::hash(bytes).as_bytes()
}

/// For `map_err`: an error with the file and what was done to it.
pub(crate) fn io_error(
    path: &Path,
    action: &'static str,
) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_path_buf();
    move |source| SnapshotError::Io {
        path,
        action,
        source,
    }
}

/// A file of which what is written is summed up.
struct Summed<'a> {
    file: &'a mut File,
    hash: blake3::Hasher,
    length: u64,
}

impl Write for Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
