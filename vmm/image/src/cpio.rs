//! The "newc" cpio format, in which the kernel reads an initramfs and busybox unpacks a job disk.
//!
//! Source: Linux, Documentation/driver-api/early-userspace/buffer-format.rst. Each entry is a header of 13 fields of 8 hexadecimal
//! digits behind the magic number 070701, the name with a final NUL, and the data; name and data are padded to 4 bytes.

use crate::ImageError;

const MAGIC: &[u8; 6] = b"070701";
const HEADER: usize = 6 + 13 * 8;
const TRAILER: &str = "TRAILER!!!";

/// File type bits of a mode, as in `stat.h`.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// Writer of an archive, entry by entry. Equal calls give equal bytes: owner 0, time 0, consecutive inode numbers.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    inode: u32,
}

impl Writer {
    /// Returns a writer of an empty archive.
    pub fn new() -> Writer {
        Writer::default()
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        debug_assert!(
            u32::try_from(data.len()).is_ok(),
            "the format's sizes are 32 bits wide; callers check"
        );
        self.inode += 1;
        let links = if mode & 0o170_000 == DIRECTORY { 2 } else { 1 };
        let fields = [
            self.inode,
            mode,
            0,
            0,
            links,
            0,
            data.len() as u32,
            0,
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(MAGIC);
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    /// Adds a directory with these permission bits.
    pub fn directory(&mut self, name: &str, permissions: u32) {
        self.entry(name, DIRECTORY | (permissions & 0o7777), (0, 0), &[]);
    }

    /// Adds a regular file with these permission bits and contents.
    pub fn file(&mut self, name: &str, permissions: u32, data: &[u8]) {
        self.entry(name, REGULAR | (permissions & 0o7777), (0, 0), data);
    }

    /// Adds a character device with these permission bits and device numbers.
    pub fn character_device(&mut self, name: &str, permissions: u32, major: u32, minor: u32) {
        self.entry(
            name,
            CHARACTER_DEVICE | (permissions & 0o7777),
            (major, minor),
            &[],
        );
    }

    /// Ends the archive and returns its bytes, padded with zeros to a multiple of `block` bytes.
    pub fn finish(mut self, block: usize) -> Vec<u8> {
        self.entry(TRAILER, 0, (0, 0), &[]);
        self.bytes
            .resize(self.bytes.len().next_multiple_of(block.max(4)), 0);
        self.bytes
    }
}

/// Entry of an archive that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Path of the entry in the archive.
    pub name: &'a str,
    /// File type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Contents of the entry.
    pub data: &'a [u8],
}

impl Entry<'_> {
    /// Returns whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & 0o170_000 == REGULAR
    }
}

/// Reads all entries before the trailer.
///
/// # Errors
///
/// [`ImageError::Archive`] with the offset, if the archive is damaged or ends before its trailer.
pub fn read(archive: &[u8]) -> Result<Vec<Entry<'_>>, ImageError> {
    let mut entries = Vec::new();
    let mut offset = 0;
    loop {
        let fail = |offset: usize, problem: &str| ImageError::Archive {
            offset,
            problem: problem.into(),
        };
        let header = archive
            .get(offset..offset + HEADER)
            .ok_or_else(|| fail(offset, "the archive ends without a trailer"))?;
        if &header[..6] != MAGIC {
            return Err(fail(offset, "no newc header (070701)"));
        }
        let mut fields = [0u32; 13];
        for (i, field) in fields.iter_mut().enumerate() {
            let at = 6 + 8 * i;
            *field = std::str::from_utf8(&header[at..at + 8])
                .ok()
                .and_then(|digits| u32::from_str_radix(digits, 16).ok())
                .ok_or_else(|| fail(offset + at, "a header field is not hexadecimal"))?;
        }
        let (mode, size, name_size) = (fields[1], fields[6] as usize, fields[11] as usize);
        let name_at = offset + HEADER;
        let name = archive
            .get(name_at..name_at + name_size)
            .and_then(|bytes| bytes.strip_suffix(&[0]))
            .ok_or_else(|| fail(name_at, "a name is cut short"))?;
        let name = std::str::from_utf8(name).map_err(|_| fail(name_at, "a name is not UTF-8"))?;
        let data_at = (name_at + name_size).next_multiple_of(4);
        let data = archive
            .get(data_at..data_at + size)
            .ok_or_else(|| fail(data_at, "a file's contents are cut short"))?;
        if name == TRAILER {
            return Ok(entries);
        }
        entries.push(Entry {
            name,
            mode,
            device: (fields[9], fields[10]),
            data,
        });
        offset = (data_at + size).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_was_written() {
        let mut writer = Writer::new();
        writer.directory("dev", 0o755);
        writer.character_device("dev/console", 0o600, 5, 1);
        writer.file("init", 0o755, b"#!/bin/busybox sh\n");
        writer.file("empty", 0o644, b"");
        let archive = writer.finish(512);
        assert_eq!(archive.len() % 512, 0);
        let entries = read(&archive).unwrap();
        assert_eq!(
            entries,
            [
                Entry {
                    name: "dev",
                    mode: 0o040_755,
                    device: (0, 0),
                    data: b""
                },
                Entry {
                    name: "dev/console",
                    mode: 0o020_600,
                    device: (5, 1),
                    data: b""
                },
                Entry {
                    name: "init",
                    mode: 0o100_755,
                    device: (0, 0),
                    data: b"#!/bin/busybox sh\n"
                },
                Entry {
                    name: "empty",
                    mode: 0o100_644,
                    device: (0, 0),
                    data: b""
                },
            ]
        );
    }

    #[test]
    fn names_the_offset_of_damage() {
        let mut writer = Writer::new();
        writer.file("a", 0o644, b"1234");
        let archive = writer.finish(4);
        assert_eq!(
            read(&archive[..120]).unwrap_err().to_string(),
            "cpio archive: the archive ends without a trailer at offset 116"
        );
        let mut damaged = archive.clone();
        damaged[0] = b'x';
        assert_eq!(
            read(&damaged).unwrap_err().to_string(),
            "cpio archive: no newc header (070701) at offset 0"
        );
        let mut damaged = archive;
        damaged[14] = b'z';
        assert_eq!(
            read(&damaged).unwrap_err().to_string(),
            "cpio archive: a header field is not hexadecimal at offset 14"
        );
    }
}
