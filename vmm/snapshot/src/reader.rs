//! Reads a snapshot, and trusts nothing in it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodescope_memory::Ram;
use rustix::fs::{SeekFrom, seek};
use serde::de::DeserializeOwned;

use crate::error::SnapshotError;
use crate::format::{
    BYTES_LIMIT, CHUNK, Content, HEADER, Header, MAGIC, PAGE, Section, TABLE_LIMIT, Table, VERSION,
};
use crate::writer::{io_error, sum};

/// What is compared with its checksums when a snapshot is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// The table of sections. Others are compared when they are read, memory excepted.
    Table,
    /// All.
    All,
}

/// A snapshot.
#[derive(Debug)]
pub struct Snapshot {
    path: PathBuf,
    file: Arc<File>,
    table: Table,
}

impl Snapshot {
    /// Opens a snapshot and compares all of it with its checksums.
    ///
    /// # Errors
    ///
    /// A file that is no snapshot, of another version, or damaged.
    pub fn open(path: &Path) -> Result<Self, SnapshotError> {
        Self::open_with(path, Verify::All)
    }

    /// Opens a snapshot.
    ///
    /// # Errors
    ///
    /// See [`Snapshot::open`].
    pub fn open_with(path: &Path, verify: Verify) -> Result<Self, SnapshotError> {
        let file = File::open(path).map_err(io_error(path, "open"))?;
        let length = file.metadata().map_err(io_error(path, "examine"))?.len();
        let table = read_table(path, &file, length)?;
        let snapshot = Self {
            path: path.into(),
            file: Arc::new(file),
            table,
        };
        for section in &snapshot.table.sections {
            snapshot.check_place(section, length)?;
            if verify == Verify::All {
                snapshot.verify(section)?;
            }
        }
        Ok(snapshot)
    }

    /// The version of nodescope that has written it.
    pub fn program(&self) -> &str {
        &self.table.program
    }

    /// Its sections, in the order of the file.
    pub fn sections(&self) -> &[Section] {
        &self.table.sections
    }

    /// Returns whether there is a section.
    pub fn has(&self, name: &str) -> bool {
        self.sections().iter().any(|section| section.name == name)
    }

    /// A state.
    ///
    /// # Errors
    ///
    /// A section that is not there, or that holds another state.
    pub fn state<T: DeserializeOwned>(&self, name: &str) -> Result<T, SnapshotError> {
        let bytes = self.bytes(name)?;
        let (section, ..) = self.section(name)?;
        let wrong =
            |problem: String| self.damaged(section.offset, format!("section {name:?}: {problem}"));
        match postcard::take_from_bytes(&bytes) {
            Ok((state, [])) => Ok(state),
            Ok((_, rest)) => Err(wrong(format!("{} bytes follow its state", rest.len()))),
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    /// The bytes of a section.
    ///
    /// # Errors
    ///
    /// A section that is not there, or damaged.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>, SnapshotError> {
        let (section, length) = self.section(name)?;
        if length > BYTES_LIMIT {
            let problem = format!("section {name:?} has {length} bytes");
            return Err(self.damaged(section.offset, problem));
        }
        let mut bytes = Vec::new();
        self.decompress(section, length, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes the bytes of a section into a new file, or over an old one.
    ///
    /// # Errors
    ///
    /// A section that is not there, or damaged; a file that cannot be written.
    pub fn extract(&self, name: &str, path: &Path) -> Result<(), SnapshotError> {
        let (section, length) = self.section(name)?;
        let mut file = File::create(path).map_err(io_error(path, "write"))?;
        self.decompress(section, length, &mut file)
    }

    /// Memory of a node with these NUMA nodes ([`Ram::from_file`]). Any number of nodes may have the same section.
    ///
    /// # Errors
    ///
    /// A section that is not there, or of another layout; what the host cannot map.
    pub fn ram(&self, name: &str, numa_bytes: &[u64]) -> Result<Ram, SnapshotError> {
        let section = self.find(name, "memory")?;
        let Content::Memory { regions, .. } = &section.content else {
            return Err(self.missing(name, "memory"));
        };
        let expected = Ram::layout(numa_bytes);
        if *regions != expected {
            return Err(SnapshotError::Layout {
                path: self.path.clone(),
                name: name.into(),
                found: regions.clone(),
                expected,
            });
        }
        let mut at = section.offset;
        let offsets: Vec<_> = (regions.iter())
            .map(|&(_, len)| {
                at += len;
                at - len
            })
            .collect();
        Ok(Ram::from_file(numa_bytes, &self.file, &offsets)?)
    }

    fn damaged(&self, offset: u64, problem: impl Into<String>) -> SnapshotError {
        damaged(&self.path, offset, problem)
    }

    fn missing(&self, name: &str, kind: &'static str) -> SnapshotError {
        SnapshotError::Missing {
            path: self.path.clone(),
            name: name.into(),
            kind,
            program: self.table.program.clone(),
        }
    }

    fn find(&self, name: &str, kind: &'static str) -> Result<&Section, SnapshotError> {
        let found = self.sections().iter().find(|section| section.name == name);
        found.ok_or_else(|| self.missing(name, kind))
    }

    /// A section of bytes, and how many.
    fn section(&self, name: &str) -> Result<(&Section, u64), SnapshotError> {
        let section = self.find(name, "bytes")?;
        match section.content {
            Content::Bytes { length, .. } => Ok((section, length)),
            Content::Memory { .. } => Err(self.missing(name, "bytes")),
        }
    }

    /// Writes what a section of so many bytes holds, after its checksum has been compared.
    fn decompress(
        &self,
        section: &Section,
        length: u64,
        out: &mut impl Write,
    ) -> Result<(), SnapshotError> {
        self.verify(section)?;
        let stored = Stored {
            file: &self.file,
            at: section.offset,
            left: section.stored,
        };
        let name = &section.name;
        let wrong =
            |problem: String| self.damaged(section.offset, format!("section {name:?}: {problem}"));
        let decoder = zstd::Decoder::new(stored).map_err(|error| wrong(error.to_string()))?;
        let copied = io::copy(&mut decoder.take(length.saturating_add(1)), out);
        match copied {
            Ok(copied) if copied == length => Ok(()),
            Ok(_) => Err(wrong(format!(
                "it has not the {length} bytes that the table says"
            ))),
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    /// Checks that a section lies in the file, and that its parts add up.
    fn check_place(&self, section: &Section, length: u64) -> Result<(), SnapshotError> {
        let end = section.offset.checked_add(section.stored);
        if section.offset < HEADER || end.is_none_or(|end| end > length) {
            let problem = format!("section {:?} would end behind the file", section.name);
            return Err(self.damaged(length, problem));
        }
        let Content::Memory { regions, sums } = &section.content else {
            return Ok(());
        };
        let lengths = regions.iter().map(|(_, len)| *len);
        let total = lengths.clone().try_fold(0u64, u64::checked_add);
        let chunks: u64 = lengths.map(|len| len.div_ceil(CHUNK)).sum();
        if total != Some(section.stored)
            || chunks != sums.len() as u64
            || section.offset % PAGE != 0
            || regions.iter().any(|(_, len)| len % PAGE != 0)
        {
            let problem = format!("the parts of section {:?} do not fit", section.name);
            return Err(self.damaged(section.offset, problem));
        }
        Ok(())
    }

    /// Compares a section with its checksums.
    fn verify(&self, section: &Section) -> Result<(), SnapshotError> {
        match &section.content {
            Content::Bytes { sum, .. } => {
                let mut hash = blake3::Hasher::new();
                let mut stored = Stored {
                    file: &self.file,
                    at: section.offset,
                    left: section.stored,
                };
                io::copy(&mut stored, &mut hash).map_err(io_error(&self.path, "read"))?;
                match hash.finalize().as_bytes() == sum {
                    true => Ok(()),
                    false => Err(self.changed(section, section.offset)),
                }
            }
            Content::Memory { regions, sums } => {
                let mut sums = sums.iter();
                let mut at = section.offset;
                let mut data = 0..0;
                let mut chunk = vec![0; CHUNK as usize];
                for &(_, len) in regions {
                    let end = at + len;
                    while at < end {
                        let chunk = &mut chunk[..(end - at).min(CHUNK) as usize];
                        let of = sums.next().copied().flatten();
                        // Zeros lie in holes, which need not be read.
                        if data.end <= at {
                            data = self.data_from(at)?;
                        }
                        let hole = data.start >= at + chunk.len() as u64;
                        if of.is_some() || !hole {
                            let read = self.file.read_exact_at(chunk, at);
                            read.map_err(io_error(&self.path, "read"))?;
                            let same = match of {
                                Some(of) => sum(chunk) == of,
                                None => chunk.iter().all(|&byte| byte == 0),
                            };
                            if !same {
                                return Err(self.changed(section, at));
                            }
                        }
                        at += chunk.len() as u64;
                    }
                }
                Ok(())
            }
        }
    }

    fn changed(&self, section: &Section, offset: u64) -> SnapshotError {
        let problem = format!("section {:?} is not as it was written", section.name);
        self.damaged(offset, problem)
    }

    /// The next stretch of the file, from `at` on, that is no hole.
    fn data_from(&self, at: u64) -> Result<std::ops::Range<u64>, SnapshotError> {
        let sought = |from| match seek(&self.file, from) {
            // Nothing but a hole follows.
            Err(rustix::io::Errno::NXIO) => Ok(u64::MAX),
            other => other.map_err(|error| io_error(&self.path, "read")(error.into())),
        };
        let start = sought(SeekFrom::Data(at))?;
        match start {
            u64::MAX => Ok(start..start),
            _ => Ok(start..sought(SeekFrom::Hole(start))?),
        }
    }
}

/// The table of sections.
fn read_table(path: &Path, file: &File, length: u64) -> Result<Table, SnapshotError> {
    let mut bytes = [0; HEADER as usize];
    let found = bytes
        .len()
        .min(usize::try_from(length).unwrap_or(usize::MAX));
    file.read_exact_at(&mut bytes[..found], 0)
        .map_err(io_error(path, "read"))?;
    if !bytes[..found].starts_with(&MAGIC) {
        return Err(SnapshotError::Foreign { path: path.into() });
    }
    if found < bytes.len() {
        return Err(damaged(path, length, "the file ends within its header"));
    }
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(number)
    };
    let version = number(8) as u32;
    if version != VERSION {
        let path = path.into();
        return Err(SnapshotError::Version {
            path,
            found: version,
        });
    }
    let header = Header {
        table: number(16),
        length: number(24),
        sum: {
            let mut sum = [0; 32];
            sum.copy_from_slice(&bytes[32..]);
            sum
        },
    };
    if header.length > TABLE_LIMIT || header.table.checked_add(header.length) != Some(length) {
        return Err(damaged(
            path,
            16,
            "the file does not end with its table of sections",
        ));
    }
    let mut table = vec![0; header.length as usize];
    file.read_exact_at(&mut table, header.table)
        .map_err(io_error(path, "read"))?;
    let mut hash = blake3::Hasher::new();
    hash.update(&bytes[..32]).update(&table);
    if *hash.finalize().as_bytes() != header.sum {
        let problem = "the header or the table of sections is not as it was written";
        return Err(damaged(path, header.table, problem));
    }
    match postcard::take_from_bytes(&table) {
        Ok((table, [])) => Ok(table),
        Ok(_) => Err(damaged(
            path,
            header.table,
            "bytes follow the table of sections",
        )),
        Err(error) => Err(damaged(path, header.table, error.to_string())),
    }
}

fn damaged(path: &Path, offset: u64, problem: impl Into<String>) -> SnapshotError {
    SnapshotError::Damaged {
        path: path.into(),
        offset,
        problem: problem.into(),
    }
}

/// A stretch of a file.
struct Stored<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Stored<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nodescope_memory::MMIO_GAP_END;
    use proptest::prelude::*;

    use super::*;
    use crate::SnapshotWriter;

    const MEMORY: [u64; 1] = [2 << 20];

    /// A snapshot with all kinds of sections.
    fn written() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        fs::write(&log, "booted\n".repeat(1000)).unwrap();
        let ram = Ram::new(&MEMORY).unwrap();
        assert!(ram.write(0x1_2345, b"kernel"));
        assert!(ram.write((2 << 20) - 1, b"!"));
        let path = dir.path().join("s.nss");
        let mut writer = SnapshotWriter::create(&path).unwrap();
        writer.state("run", &(7u64, "text".to_owned())).unwrap();
        writer.ram("ram", &ram).unwrap();
        writer.bytes("empty", b"").unwrap();
        writer.file("log", &log).unwrap();
        assert!(writer.bytes("run", b"").is_err(), "its name is taken");
        let disk = writer.finish().unwrap();
        assert!(disk < 1 << 20, "{disk}: zeros are holes");
        (dir, path)
    }

    type Contents = ((u64, String), Vec<u8>, Vec<u8>, Vec<u8>);

    fn contents(path: &Path) -> Result<Contents, SnapshotError> {
        let snapshot = Snapshot::open(path)?;
        let ram = snapshot.ram("ram", &MEMORY)?;
        let mut memory = vec![0; MEMORY[0] as usize];
        assert!(ram.read(0, &mut memory));
        let log = path.with_file_name("extracted");
        snapshot.extract("log", &log)?;
        Ok((
            snapshot.state("run")?,
            memory,
            snapshot.bytes("empty")?,
            fs::read(log).unwrap(),
        ))
    }

    #[test]
    fn what_was_written_is_read() {
        let (_dir, path) = written();
        let (run, memory, empty, log) = contents(&path).unwrap();
        assert_eq!(run, (7, "text".into()));
        assert_eq!(&memory[0x1_2345..0x1_234b], b"kernel");
        assert_eq!(memory.iter().filter(|&&byte| byte != 0).count(), 7);
        assert!(empty.is_empty());
        assert_eq!(log, "booted\n".repeat(1000).as_bytes());
        let snapshot = Snapshot::open_with(&path, Verify::Table).unwrap();
        assert!(snapshot.has("log") && !snapshot.has("lag"));
        assert_eq!(snapshot.program(), env!("CARGO_PKG_VERSION"));
        for wrong in [
            snapshot.bytes("ram").map(drop),
            snapshot.bytes("other").map(drop),
            snapshot.ram("run", &MEMORY).map(drop),
            snapshot.ram("ram", &[4 << 20]).map(drop),
            snapshot.state::<u8>("run").map(drop),
            snapshot.state::<(u64, String, u64)>("run").map(drop),
        ] {
            let error = wrong.unwrap_err();
            assert!(error.to_string().contains("s.nss"), "{error}");
            assert!(!error.is_hosts(), "{error}");
        }
    }

    #[test]
    fn memory_around_the_hole_for_devices_has_two_regions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.nss");
        let sizes = [3 << 30, 2 << 20];
        let ram = Ram::new(&sizes).unwrap();
        let address = MMIO_GAP_END + 5;
        assert!(ram.write(address, b"above"));
        // Only what is above is read: the rest are 3 GiB of zeros.
        let mut writer = SnapshotWriter::create(&path).unwrap();
        writer.ram("ram", &ram).unwrap();
        writer.finish().unwrap();
        let ram = Snapshot::open(&path).unwrap().ram("ram", &sizes).unwrap();
        let mut found = [0; 5];
        assert!(ram.read(address, &mut found));
        assert_eq!(&found, b"above");
    }

    #[test]
    fn a_snapshot_that_is_cut_or_of_another_version_is_refused() {
        let (_dir, path) = written();
        let whole = fs::read(&path).unwrap();
        let lengths = (0..200).map(|n| n * whole.len() / 200);
        for length in lengths.chain([1, 63, 64, whole.len() - 1]) {
            fs::write(&path, &whole[..length]).unwrap();
            let error = Snapshot::open(&path).unwrap_err().to_string();
            assert!(error.contains("s.nss"), "{length}: {error}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        fs::write(&path, &longer).unwrap();
        let error = Snapshot::open(&path).unwrap_err().to_string();
        assert!(
            error.contains("byte 16: the snapshot is damaged"),
            "{error}"
        );
        let mut later = whole.clone();
        later[8] = 9;
        fs::write(&path, &later).unwrap();
        let error = Snapshot::open(&path).unwrap_err().to_string();
        assert!(
            error.contains("byte 8: the snapshot has format version 9"),
            "{error}"
        );
        fs::write(&path, b"text").unwrap();
        let error = Snapshot::open(&path).unwrap_err().to_string();
        assert!(error.contains("is no snapshot"), "{error}");
    }

    #[test]
    fn damage_in_memory_is_told_with_its_place() {
        let (_dir, path) = written();
        let snapshot = Snapshot::open_with(&path, Verify::Table).unwrap();
        let ram = snapshot.find("ram", "memory").unwrap().offset;
        let whole = fs::read(&path).unwrap();
        for (at, chunk) in [(0x1_2345, CHUNK), (5 * CHUNK + 9, 5 * CHUNK)] {
            let mut bytes = whole.clone();
            bytes[(ram + at) as usize] ^= 1;
            fs::write(&path, &bytes).unwrap();
            let error = Snapshot::open(&path).unwrap_err().to_string();
            let place = format!("byte {}: the snapshot is damaged", ram + chunk);
            assert!(error.contains(&place), "{place}: {error}");
        }
        // A file without holes is good, too.
        fs::write(&path, &whole).unwrap();
        assert!(contents(&path).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        #[test]
        fn a_damaged_snapshot_is_refused_or_the_same(
            damage in prop::collection::vec((0usize..1 << 22, 1u8..), 1..4),
            near_ends in any::<bool>(),
        ) {
            let (_dir, path) = written();
            let expected = contents(&path).unwrap();
            let mut bytes = fs::read(&path).unwrap();
            let length = bytes.len();
            for (place, change) in damage {
                let at = match (near_ends, place % 2) {
                    (true, 0) => place % 256,
                    (true, _) => length - 1 - place % 512,
                    (false, _) => place % length,
                };
                bytes[at] ^= change;
            }
            fs::write(&path, &bytes).unwrap();
            match contents(&path) {
                Ok(found) => prop_assert_eq!(found, expected),
                Err(error) => prop_assert!(error.to_string().contains("s.nss")),
            }
        }
    }
}
