//! Checks of the user's own kernel, initramfs and root disk: wrong and truncated files are reported before a node boots.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// A file opened for checking.
struct Probe {
    file: File,
    len: u64,
}

impl Probe {
    fn open(path: &Path) -> Result<Probe, String> {
        let cannot = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                "there is no such file; paths are relative to the study file's folder".to_owned()
            }
            _ => format!("cannot be read: {error}"),
        };
        let data = std::fs::metadata(path).map_err(cannot)?;
        if !data.is_file() {
            return Err("is not a regular file".into());
        }
        let file = File::open(path).map_err(cannot)?;
        if data.len() == 0 {
            return Err("is empty".into());
        }
        Ok(Probe {
            file,
            len: data.len(),
        })
    }

    /// Reads `N` bytes at an offset. Returns `None` if the file ends before them or cannot be read.
    fn bytes<const N: usize>(&mut self, offset: u64) -> Option<[u8; N]> {
        let mut buffer = [0; N];
        self.file.seek(SeekFrom::Start(offset)).ok()?;
        self.file.read_exact(&mut buffer).ok()?;
        Some(buffer)
    }

    fn truncated(&self, needed: u128, what: &str) -> Result<(), String> {
        if needed > u128::from(self.len) {
            return Err(format!(
                "is truncated: {what} ends at byte {needed}, the file has {}; copy or build it again",
                self.len
            ));
        }
        Ok(())
    }
}

/// Offsets in a bzImage of fields of the x86 boot protocol (Documentation/arch/x86/boot.rst).
mod bzimage {
    pub const SETUP_SECTS: u64 = 0x1f1;
    pub const SYSSIZE: u64 = 0x1f4;
    pub const MAGIC: u64 = 0x202;
}

pub(crate) fn check_kernel(path: &Path) -> Result<(), String> {
    let mut probe = Probe::open(path)?;
    if probe.bytes(bzimage::MAGIC) == Some(*b"HdrS") {
        let [sectors] = probe.bytes::<1>(bzimage::SETUP_SECTS).unwrap_or_default();
        let sectors = if sectors == 0 { 4 } else { sectors };
        let size = probe.bytes(bzimage::SYSSIZE).map_or(0, u32::from_le_bytes);
        let end = (u128::from(sectors) + 1) * 512 + u128::from(size) * 16;
        return probe.truncated(end, "its bzImage");
    }
    const NEITHER: &str = "is neither an x86-64 ELF kernel (vmlinux) nor a bzImage";
    let Some(header) = probe
        .bytes::<64>(0)
        .filter(|header| header.starts_with(b"\x7fELF"))
    else {
        return Err(NEITHER.into());
    };
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    const CLASS_64: u8 = 2;
    const MACHINE_X86_64: u16 = 62;
    if header[4] != CLASS_64 || half(18) != MACHINE_X86_64 {
        return Err("is an ELF file of another processor; a kernel for x86-64 is needed".into());
    }
    let table = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| header[32 + i]));
    let (entry, count) = (half(54), half(56));
    if entry < 56 || count == 0 {
        return Err(NEITHER.into());
    }
    let table_end = u128::from(table) + u128::from(entry) * u128::from(count);
    probe.truncated(table_end, "its table of segments")?;
    for index in 0..u64::from(count) {
        let at = table + index * u64::from(entry);
        let word = |bytes: &[u8; 56], at: usize| {
            u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[at + i]))
        };
        if let Some(segment) = probe.bytes::<56>(at) {
            let end = u128::from(word(&segment, 8)) + u128::from(word(&segment, 32));
            probe.truncated(end, &format!("segment {index}"))?;
        }
    }
    Ok(())
}

pub(crate) fn check_initramfs(path: &Path) -> Result<(), String> {
    let mut probe = Probe::open(path)?;
    const COMPRESSED: &[&[u8]] = &[
        b"\x1f\x8b",
        b"BZh",
        b"\xfd7zXZ\0",
        b"\x5d\0\0",
        b"\x89LZO",
        b"\x02\x21\x4c\x18",
        b"\x28\xb5\x2f\xfd",
    ];
    let start = probe.bytes::<8>(0).unwrap_or_default();
    if COMPRESSED.iter().any(|magic| start.starts_with(magic)) {
        return Ok(());
    }
    if !is_newc(&start) {
        return Err(
            "is not an initramfs: neither a newc cpio archive nor a compression that Linux knows"
                .into(),
        );
    }
    // Another archive, or a compressed one, may follow the archive. The first archive must be complete.
    let mut offset = 0;
    while let Some(header) = probe.bytes::<110>(offset).filter(|header| is_newc(header)) {
        let field = |at: usize| {
            std::str::from_utf8(&header[at..at + 8])
                .ok()
                .and_then(|text| u64::from_str_radix(text, 16).ok())
        };
        let (Some(size), Some(name)) = (field(54), field(94)) else {
            return Err(format!(
                "is damaged: the cpio header at byte {offset} has a field that is no number"
            ));
        };
        let data = (offset + 110 + name).next_multiple_of(4);
        let end = data + size;
        probe.truncated(end.into(), &format!("the cpio entry at byte {offset}"))?;
        if probe.bytes(offset + 110) == Some(*b"TRAILER!!!") {
            return Ok(());
        }
        offset = end.next_multiple_of(4);
    }
    Err(format!(
        "is truncated: its cpio archive has no end mark (last entry ends at byte {offset}); copy or build it again"
    ))
}

fn is_newc(bytes: &[u8]) -> bool {
    bytes.starts_with(b"070701") || bytes.starts_with(b"070702")
}

pub(crate) fn check_root(path: &Path) -> Result<(), String> {
    let mut probe = Probe::open(path)?;
    if probe.bytes(0) == Some(*b"hsqs") {
        let used = probe.bytes(40).map_or(0, u64::from_le_bytes);
        return probe.truncated(used.into(), "its squashfs");
    }
    const SUPERBLOCK: u64 = 1024;
    let mut field = |at: u64| probe.bytes(SUPERBLOCK + at).map(u32::from_le_bytes);
    let magic = field(0x38).map(|word| word as u16);
    if magic == Some(0xef53) {
        const INCOMPAT_64BIT: u32 = 0x80;
        let low = field(0x4).unwrap_or(0);
        let high = match field(0x60) {
            Some(features) if features & INCOMPAT_64BIT != 0 => field(0x150).unwrap_or(0),
            _ => 0,
        };
        let block = 1024_u128 << field(0x18).unwrap_or(0).min(16);
        let blocks = u128::from(high) << 32 | u128::from(low);
        probe.truncated(blocks * block, "its ext4 file system")?;
    }
    if probe.len % 512 != 0 {
        return Err(format!(
            "has {} bytes, which is no whole number of 512-byte sectors: it is truncated or no disk image",
            probe.len
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn elf(file_bytes: u64) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[18] = 62;
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64 + 8] = 120;
        bytes[64 + 32..64 + 40].copy_from_slice(&file_bytes.to_le_bytes());
        bytes
    }

    #[test]
    fn whole_files_pass() {
        let mut kernel = elf(100);
        kernel.extend([0; 100]);
        check_kernel(file(&kernel).path()).unwrap();
        let mut bzimage = vec![0; 1024 + 32];
        bzimage[0x1f1] = 1;
        bzimage[0x1f4] = 2;
        bzimage[0x202..0x206].copy_from_slice(b"HdrS");
        check_kernel(file(&bzimage).path()).unwrap();
        check_initramfs(file(b"\x1f\x8b compressed").path()).unwrap();
        let mut ext4 = vec![0; 8192];
        ext4[1024 + 4] = 8;
        ext4[1024 + 0x38..1024 + 0x3a].copy_from_slice(&[0x53, 0xef]);
        check_root(file(&ext4).path()).unwrap();
    }

    #[test]
    fn truncated_files_say_where_they_should_end() {
        let says = |result: Result<(), String>, text: &str| {
            let message = result.unwrap_err();
            assert!(message.contains(text), "{message}");
        };
        says(
            check_kernel(file(&elf(100)).path()),
            "segment 0 ends at byte 220, the file has 120",
        );
        let mut bzimage = vec![0; 1024];
        bzimage[0x1f1] = 1;
        bzimage[0x1f4] = 2;
        bzimage[0x202..0x206].copy_from_slice(b"HdrS");
        says(
            check_kernel(file(&bzimage).path()),
            "its bzImage ends at byte 1056",
        );
        let disk = nodescope_image::job_disk(&[nodescope_image::JobFile {
            path: "init".into(),
            mode: 0o755,
            data: vec![b'x'; 1000],
        }])
        .unwrap();
        check_initramfs(file(&disk).path()).unwrap();
        says(
            check_initramfs(file(&disk[..500]).path()),
            "the cpio entry at byte 0 ends at byte",
        );
        says(check_initramfs(file(&disk[..1120]).path()), "no end mark");
        let mut ext4 = vec![0; 7168];
        ext4[1024 + 4] = 8;
        ext4[1024 + 0x38..1024 + 0x3a].copy_from_slice(&[0x53, 0xef]);
        says(
            check_root(file(&ext4).path()),
            "its ext4 file system ends at byte 8192, the file has 7168",
        );
        says(
            check_root(file(&[1; 700]).path()),
            "no whole number of 512-byte sectors",
        );
    }

    #[test]
    fn other_files_are_refused() {
        assert!(
            check_kernel(file(b"#!/bin/sh").path())
                .unwrap_err()
                .contains("neither")
        );
        assert!(
            check_initramfs(file(b"#!/bin/sh").path())
                .unwrap_err()
                .contains("not an initramfs")
        );
        assert_eq!(check_root(file(b"").path()).unwrap_err(), "is empty");
        assert!(
            check_kernel(Path::new("/nonexistent"))
                .unwrap_err()
                .contains("no such file")
        );
        assert_eq!(
            check_kernel(Path::new("/")).unwrap_err(),
            "is not a regular file"
        );
    }
}
