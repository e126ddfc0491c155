//! Reader of snapshots. States and files are checked before they are used. RAM is checked when it is copied, or when the snapshot is opened
//! with [`Verify::Everything`].

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodescope_memory::Ram;
use serde::de::DeserializeOwned;

use crate::error::{SnapshotError, io};
use crate::format::{
    CHUNK, FORMAT, HEADER, Hash, Header, Kind, MOST_NAME, MOST_STATE, NODESCOPE, NoHeader, PAGE,
    Section,
};
use crate::holes::write_with_holes;
use crate::ram::{self, Fault};

/// Parts of a snapshot that are checked when the snapshot is opened. Header and table are always checked; states and files are checked
/// again when they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// All parts of the file.
    Everything,
    /// All parts of the file but RAM. Use this where RAM has been verified before, or will be verified by [`Snapshot::read_ram`].
    State,
    /// Header and table only, to list the contents.
    Table,
}

/// Versions, sizes and sections of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Version of the format.
    pub format: u32,
    /// Version of nodescope that has written the snapshot.
    pub nodescope: String,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Bytes that the file takes on the disk, holes not counted.
    pub stored: u64,
    /// Sections of the file, in the order in which they were written.
    pub sections: Vec<Section>,
}

/// An open snapshot. Clones share the file.
#[derive(Clone, Debug)]
pub struct Snapshot(Arc<Open>);

#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: File,
    info: Info,
}

impl Snapshot {
    /// Opens a snapshot and checks all of it.
    pub fn open(path: &Path) -> Result<Self, SnapshotError> {
        Self::open_with(path, Verify::Everything)
    }

    /// Opens a snapshot and checks the parts that `verify` selects.
    pub fn open_with(path: &Path, verify: Verify) -> Result<Self, SnapshotError> {
        let file = File::open(path).map_err(io(path, "open"))?;
        let metadata = file.metadata().map_err(io(path, "look at"))?;
        if !metadata.is_file() {
            return Err(SnapshotError::NotSnapshot { path: path.into() });
        }
        let length = metadata.len();
        let header = read_header(path, &file, length)?;
        let sections = read_table(path, &file, &header, length)?;
        check_sections(path, &sections, header.table.0)?;
        let open = Self(Arc::new(Open {
            path: path.into(),
            file,
            info: Info {
                format: header.format,
                nodescope: header.nodescope,
                bytes: length,
                stored: metadata.blocks() * 512,
                sections,
            },
        }));
        if verify != Verify::Table {
            for section in &open.0.info.sections {
                match section.kind {
                    Kind::Ram if verify == Verify::State => {}
                    Kind::Ram => open.read_chunks(section, &|_, _| Ok(()))?,
                    _ => open.check_hash(section)?,
                }
            }
        }
        Ok(open)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the versions, sizes and sections of the snapshot.
    pub fn info(&self) -> &Info {
        &self.0.info
    }

    /// Returns whether the snapshot has a section of this name.
    pub fn has(&self, name: &str) -> bool {
        self.names().any(|other| other == name)
    }

    /// Returns the names of the sections, in the order in which they were written.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.info.sections.iter().map(|s| s.name.as_str())
    }

    /// Reads a value that [`crate::SnapshotWriter::state`] has written.
    pub fn state<T: DeserializeOwned>(&self, name: &str) -> Result<T, SnapshotError> {
        let section = self.section(name, Kind::State)?;
        let bytes = self.unpack(section)?;
        match postcard::take_from_bytes(&bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(self.decode(section, format!("{} bytes are left", rest.len()))),
            Err(cause) => Err(self.decode(section, cause)),
        }
    }

    /// Reads a value that [`crate::SnapshotWriter::json`] has written.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, SnapshotError> {
        let section = self.section(name, Kind::Json)?;
        let bytes = self.unpack(section)?;
        serde_json::from_slice(&bytes).map_err(|cause| self.decode(section, cause))
    }

    /// Reads a section that [`crate::SnapshotWriter::bytes`] or [`crate::SnapshotWriter::file`] has written, at most 1 GiB.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>, SnapshotError> {
        self.unpack(self.section(name, Kind::Bytes)?)
    }

    /// Copies a section of bytes, of any length, to the new file `to`, and returns the length in bytes. Fails if `to` exists.
    pub fn extract(&self, name: &str, to: &Path) -> Result<u64, SnapshotError> {
        let section = self.section(name, Kind::Bytes)?;
        self.check_hash(section)?;
        let file = File::create_new(to).map_err(io(to, "create"))?;
        let mut reader = self.unpacked(section)?;
        let mut buffer = vec![0; 256 << 10];
        let mut length = 0;
        loop {
            let n = match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) => return Err(self.decode(section, cause)),
            };
            write_with_holes(&file, &buffer[..n], length).map_err(io(to, "write"))?;
            length += n as u64;
        }
        self.check_length(section, length)?;
        Ok(length)
    }

    /// Maps a section copy-on-write as a node's RAM. Nodes share the pages to which they have not written. Does not check the contents.
    /// The node must not run.
    pub fn map_ram(&self, name: &str, ram: &Ram) -> Result<(), SnapshotError> {
        let section = self.ram_section(name, ram)?;
        let offsets: Vec<u64> = section.regions.iter().map(|r| r.offset).collect();
        let mapped = ram.map_file(&self.0.file, &offsets);
        mapped.map_err(|source| SnapshotError::Map {
            path: self.0.path.clone(),
            source,
        })
    }

    /// Copies a section into a node's RAM, and checks the contents. The node then has memory of its own, in large pages as far as the host
    /// provides them. The node must not run.
    pub fn read_ram(&self, name: &str, ram: &Ram) -> Result<(), SnapshotError> {
        let section = self.ram_section(name, ram)?;
        ram.clear().map_err(|source| SnapshotError::Map {
            path: self.0.path.clone(),
            source,
        })?;
        self.read_chunks(section, &|address, bytes| match ram.write(address, bytes) {
            true => Ok(()),
            false => Err(io::Error::other("a region of RAM cannot be written")),
        })
    }

    /// Returns new RAM, mapped copy-on-write from a section. `numa_bytes` has the bytes of each NUMA node.
    pub fn ram(&self, name: &str, numa_bytes: &[u64]) -> Result<Ram, SnapshotError> {
        let ram = Ram::new(numa_bytes)?;
        self.map_ram(name, &ram)?;
        Ok(ram)
    }

    fn section(&self, name: &str, wanted: Kind) -> Result<&Section, SnapshotError> {
        let path = || self.0.path.clone();
        let mut sections = self.0.info.sections.iter();
        let Some(section) = sections.find(|s| s.name == name) else {
            return Err(SnapshotError::NoSection {
                path: path(),
                name: name.into(),
            });
        };
        if section.kind != wanted {
            return Err(SnapshotError::Kind {
                path: path(),
                offset: section.offset,
                name: name.into(),
                found: section.kind.text(),
                wanted: wanted.text(),
            });
        }
        Ok(section)
    }

    /// Returns a section of RAM. Fails if its regions differ from those of the node's RAM.
    fn ram_section(&self, name: &str, ram: &Ram) -> Result<&Section, SnapshotError> {
        let section = self.section(name, Kind::Ram)?;
        let found: Vec<_> = section.regions.iter().map(|r| (r.start, r.len)).collect();
        let own: Vec<_> = ram.regions().iter().map(|r| (r.start, r.len)).collect();
        if found == own {
            return Ok(section);
        }
        let text = |regions: &[(u64, u64)]| {
            let region = |(start, len): &(u64, u64)| format!("{len} bytes at {start:#x}");
            let regions: Vec<_> = regions.iter().map(region).collect();
            regions.join(", ")
        };
        Err(SnapshotError::Layout {
            path: self.0.path.clone(),
            offset: section.offset,
            name: name.into(),
            found: text(&found),
            own: text(&own),
        })
    }

    fn read_chunks(
        &self,
        section: &Section,
        take: &(dyn Fn(u64, &[u8]) -> io::Result<()> + Sync),
    ) -> Result<(), SnapshotError> {
        let read = ram::read(&self.0.file, &section.regions, take);
        read.map_err(|fault| match fault {
            Fault::Io(source) => io(&self.0.path, "read")(source),
            Fault::Damaged(offset) => {
                let what = format!(
                    "section \"{}\" is not the RAM that was written",
                    section.name
                );
                damaged(&self.0.path, offset, what)
            }
        })
    }

    fn check_hash(&self, section: &Section) -> Result<(), SnapshotError> {
        let path = &self.0.path;
        let place = (section.offset, section.stored);
        if hash(&self.0.file, place).map_err(io(path, "read"))? != section.hash {
            let what = format!("section \"{}\" is not what was written", section.name);
            return Err(damaged(path, section.offset, what));
        }
        Ok(())
    }

    fn check_length(&self, section: &Section, length: u64) -> Result<(), SnapshotError> {
        match length == section.length {
            true => Ok(()),
            false => {
                let cause = format!("it has not {} bytes", section.length);
                Err(self.decode(section, cause))
            }
        }
    }

    /// Returns a reader of the decompressed contents of a section. The reader yields at most one byte more than the section's length.
    fn unpacked(&self, section: &Section) -> Result<impl Read, SnapshotError> {
        let place = (section.offset, section.stored);
        unpacked(&self.0.file, place, section.length).map_err(io(&self.0.path, "unpack"))
    }

    fn unpack(&self, section: &Section) -> Result<Vec<u8>, SnapshotError> {
        if section.length > MOST_STATE {
            return Err(SnapshotError::TooLarge {
                path: self.0.path.clone(),
                name: section.name.clone(),
                bytes: section.length,
                most: MOST_STATE,
            });
        }
        self.check_hash(section)?;
        let mut bytes = Vec::new();
        let read = self.unpacked(section)?.read_to_end(&mut bytes);
        read.map_err(|cause| self.decode(section, cause))?;
        self.check_length(section, bytes.len() as u64)?;
        Ok(bytes)
    }

    fn decode(&self, section: &Section, cause: impl ToString) -> SnapshotError {
        SnapshotError::Decode {
            path: self.0.path.clone(),
            offset: section.offset,
            name: section.name.clone(),
            cause: cause.to_string(),
        }
    }
}

fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> SnapshotError {
    SnapshotError::Damaged {
        path: path.into(),
        offset,
        what: what.into(),
    }
}

fn read_header(path: &Path, file: &File, length: u64) -> Result<Header, SnapshotError> {
    let mut page = vec![0; HEADER.min(length) as usize];
    file.read_exact_at(&mut page, 0).map_err(io(path, "read"))?;
    let header = Header::decode(&page).map_err(|no| match no {
        NoHeader::Magic => SnapshotError::NotSnapshot { path: path.into() },
        NoHeader::Checksum => damaged(path, 0, "the header is not what was written"),
    })?;
    if header.format != FORMAT || header.nodescope != NODESCOPE {
        return Err(SnapshotError::Version {
            path: path.into(),
            offset: Header::FORMAT_AT,
            nodescope: header.nodescope,
            format: header.format,
        });
    }
    let (at, stored) = header.table;
    if at < HEADER || at.checked_add(stored) != Some(length) {
        let what = format!(
            "the table should end at offset {}, and the file has {length} bytes",
            at.saturating_add(stored)
        );
        return Err(damaged(path, at.min(length), what));
    }
    Ok(header)
}

fn read_table(
    path: &Path,
    file: &File,
    header: &Header,
    length: u64,
) -> Result<Vec<Section>, SnapshotError> {
    let at = header.table.0;
    let no_table = |what: String| damaged(path, at, what);
    if hash(file, header.table).map_err(io(path, "read"))? != header.hash {
        return Err(no_table(
            "the table of sections is not what was written".into(),
        ));
    }
    // The table is much shorter than this limit: each chunk of 256 KiB of RAM takes at most 33 bytes of the table.
    if header.unpacked > MOST_STATE.min(length.saturating_mul(4).saturating_add(1 << 20)) {
        return Err(no_table(format!(
            "the table of sections has {} bytes",
            header.unpacked
        )));
    }
    let mut bytes = Vec::new();
    unpacked(file, header.table, header.unpacked)
        .and_then(|mut table| table.read_to_end(&mut bytes))
        .map_err(|e| no_table(format!("the table of sections cannot be unpacked: {e}")))?;
    match postcard::take_from_bytes(&bytes) {
        Ok((sections, [])) if bytes.len() as u64 == header.unpacked => Ok(sections),
        _ => Err(no_table("the table of sections cannot be read".into())),
    }
}

/// Checks the table: names are valid and unique; sections and their RAM regions lie in the file one after the other, before `end`.
fn check_sections(path: &Path, sections: &[Section], end: u64) -> Result<(), SnapshotError> {
    let mut at = HEADER;
    let mut names = BTreeSet::new();
    for section in sections {
        let wrong = |what: &str| {
            let name = section.name.escape_debug();
            damaged(
                path,
                end,
                format!("the table of sections is wrong about \"{name}\": {what}"),
            )
        };
        let plain = !section.name.chars().any(char::is_control);
        if !plain || !(1..=MOST_NAME).contains(&section.name.len()) {
            return Err(wrong("no section can have this name"));
        }
        if !names.insert(&section.name) {
            return Err(wrong("there are two of this name"));
        }
        let after = section.offset.checked_add(section.stored);
        let Some(after) = after.filter(|after| *after <= end && section.offset >= at) else {
            return Err(wrong("it does not lie where sections are"));
        };
        let mut region_at = section.offset;
        for region in &section.regions {
            let whole = region.len > 0
                && region.len.is_multiple_of(PAGE)
                && region.offset.is_multiple_of(PAGE)
                && region.start.checked_add(region.len).is_some()
                && region.chunks.len() as u64 == region.len.div_ceil(CHUNK);
            let region_end = region.offset.checked_add(region.len);
            let within = region_end.filter(|e| *e <= after && region.offset >= region_at);
            match within {
                Some(end) if whole => region_at = end,
                _ => return Err(wrong("its RAM is not of whole pages in it")),
            }
        }
        let is_ram = section.kind == Kind::Ram;
        let lengths: u64 = section.regions.iter().map(|r| r.len).sum();
        if is_ram == section.regions.is_empty() || is_ram && lengths != section.length {
            return Err(wrong(
                "it has RAM and should have none, or the other way round",
            ));
        }
        at = after;
    }
    Ok(())
}

/// Returns the BLAKE3 of a part of a file.
fn hash(file: &File, (at, len): (u64, u64)) -> io::Result<Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; (256 << 10).min(len) as usize];
    let mut done = 0;
    while done < len {
        let piece = &mut buffer[..(256 << 10).min(len - done) as usize];
        file.read_exact_at(piece, at + done)?;
        hasher.update(piece);
        done += piece.len() as u64;
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Returns a reader of the decompressed contents of a part of a file. The reader yields at most one byte more than `length`.
fn unpacked(file: &File, (at, left): (u64, u64), length: u64) -> io::Result<impl Read + use<'_>> {
    let part = Part { file, at, left };
    let unpacked = zstd::Decoder::with_buffer(BufReader::with_capacity(256 << 10, part))?;
    Ok(unpacked.take(length.saturating_add(1)))
}

/// Reader of a part of a file, at offset `at` and with `left` bytes left.
struct Part<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.left.min(buffer.len() as u64) as usize;
        let n = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += n as u64;
        self.left -= n as u64;
        Ok(n)
    }
}
