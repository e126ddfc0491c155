//! Kernel images: an uncompressed vmlinux (ELF) or a bzImage, checked before any of it is copied into guest RAM.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux_loader::loader::bootparam::setup_header;
use linux_loader::loader::{BzImage, Elf, KernelLoader};
use nodescope_memory::Ram;
use vm_memory::GuestAddress;

use super::{BootError, HIGH_MEMORY, read_file};

/// A kernel image in host memory, which any number of nodes can load.
#[derive(Clone, Debug)]
pub struct KernelImage {
    path: PathBuf,
    /// Contents of the file, shared by all clones. An `Arc` of the vector avoids the copy of some 50 MB that an `Arc` of a slice would
    /// need.
    bytes: Arc<Vec<u8>>,
    format: Format,
}

#[derive(Clone, Debug)]
enum Format {
    Elf { entry: u64, segments: Vec<Segment> },
    BzImage { load: u64, size: u64 },
}

/// Loadable segment of an ELF kernel.
#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    start: u64,
    file_size: u64,
    end: u64,
}

/// Addresses of a kernel that was loaded into guest memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadedKernel {
    /// Address of the 64-bit entry point.
    pub entry: u64,
    /// First guest-physical address after all memory that the kernel uses before it manages memory itself.
    pub end: u64,
    /// Setup header of a bzImage; `None` for an ELF kernel.
    pub header: Option<setup_header>,
}

impl KernelImage {
    /// Reads a kernel image from a file and checks its headers.
    pub fn open(path: &Path) -> Result<Self, BootError> {
        Self::parse(path, read_file("kernel", path)?)
    }

    /// Checks the headers of an image whose bytes were read from `path`; messages name `path`.
    pub fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self, BootError> {
        let format = if bytes.starts_with(b"\x7fELF") {
            parse_elf(path, &bytes)?
        } else if bytes.get(0x202..0x206) == Some(b"HdrS") {
            parse_bzimage(path, &bytes)?
        } else {
            return Err(BootError::NotAKernel {
                path: path.into(),
                first: bytes[..bytes.len().min(4)].to_vec(),
            });
        };
        Ok(Self {
            path: path.into(),
            bytes: Arc::new(bytes),
            format,
        })
    }

    /// Returns the path of the file from which the image was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Copies the kernel into guest RAM and returns its addresses.
    pub(super) fn load(&self, ram: &Ram) -> Result<LoadedKernel, BootError> {
        let failed = |source| BootError::Loader {
            path: self.path.clone(),
            source,
        };
        let mut file = Cursor::new(&self.bytes[..]);
        match &self.format {
            Format::Elf { entry, segments } => {
                for s in segments {
                    self.check_place(ram, s.start, s.end)?;
                }
                let high = Some(GuestAddress(HIGH_MEMORY));
                Elf::load(ram.memory(), None, &mut file, high).map_err(failed)?;
                for s in segments {
                    zero(ram, s.start + s.file_size, s.end);
                }
                Ok(LoadedKernel {
                    entry: *entry,
                    end: segments.iter().map(|s| s.end).max().unwrap_or(0),
                    header: None,
                })
            }
            Format::BzImage { load, size } => {
                self.check_place(ram, *load, load + size)?;
                let at = Some(GuestAddress(*load));
                let loaded = BzImage::load(ram.memory(), at, &mut file, None).map_err(failed)?;
                /// Offset of the 64-bit entry (Documentation/x86/boot.rst, "64-bit boot protocol").
                const ENTRY_64: u64 = 0x200;
                Ok(LoadedKernel {
                    entry: load + ENTRY_64,
                    end: load + size,
                    header: loaded.setup_header,
                })
            }
        }
    }

    fn check_place(&self, ram: &Ram, start: u64, end: u64) -> Result<(), BootError> {
        let low_end = ram.region(0).map_or(0, |r| r.len);
        if start >= HIGH_MEMORY && end <= low_end {
            Ok(())
        } else {
            Err(BootError::KernelLocation {
                path: self.path.clone(),
                start,
                end,
                low_end,
            })
        }
    }
}

fn zero(ram: &Ram, mut from: u64, end: u64) {
    let zeros = [0; 4096];
    while from < end {
        let n = (end - from).min(4096);
        // The caller has checked that the segment is in RAM.
        ram.write(from, &zeros[..n as usize]);
        from += n;
    }
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?))
}

/// Checks an ELF header and its program headers (System V ABI, chapters 4 and 5).
fn parse_elf(path: &Path, b: &[u8]) -> Result<Format, BootError> {
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    const EXECUTABLE: u16 = 2;
    const X86_64: u16 = 62;
    const PROGRAM_HEADER: u16 = 56;
    const LOAD: u32 = 1;
    let truncated = |needed: u64| BootError::KernelTruncated {
        path: path.into(),
        needed,
        len: b.len() as u64,
    };
    let wrong = |reason: String| BootError::KernelFormat {
        path: path.into(),
        reason,
    };
    if b.len() < 64 {
        return Err(truncated(64));
    }
    let half = |at| u16_at(b, at).unwrap_or(0);
    if b[4] != CLASS_64 || b[5] != LITTLE_ENDIAN || half(18) != X86_64 {
        return Err(wrong(format!(
            "it is for another machine (class {}, data {}, machine {})",
            b[4],
            b[5],
            half(18)
        )));
    }
    if half(16) != EXECUTABLE {
        return Err(wrong(format!(
            "its ELF type is {}, not an executable's 2",
            half(16)
        )));
    }
    if half(54) != PROGRAM_HEADER {
        return Err(wrong(format!(
            "its program headers have {} bytes, not {PROGRAM_HEADER}",
            half(54)
        )));
    }
    let entry = u64_at(b, 24).unwrap_or(0);
    let table = u64_at(b, 32).unwrap_or(0);
    let count = u64::from(half(56));
    let table_end = table.saturating_add(count * u64::from(PROGRAM_HEADER));
    if table_end > b.len() as u64 {
        return Err(truncated(table_end));
    }
    let mut segments = Vec::new();
    for i in 0..count {
        let at = (table + i * u64::from(PROGRAM_HEADER)) as usize;
        let word = |offset| u64_at(b, at + offset).unwrap_or(0);
        if u32_at(b, at) != Some(LOAD) {
            continue;
        }
        let (offset, start, file_size, memory_size) = (word(8), word(24), word(32), word(40));
        let file_end = offset.saturating_add(file_size);
        if file_end > b.len() as u64 {
            return Err(truncated(file_end));
        }
        let Some(end) = start.checked_add(memory_size) else {
            return Err(wrong(format!("segment {i} wraps around the address space")));
        };
        if file_size > memory_size {
            return Err(wrong(format!("segment {i} has more bytes than memory")));
        }
        segments.push(Segment {
            offset,
            start,
            file_size,
            end,
        });
    }
    if !segments
        .iter()
        .any(|s| (s.start..s.start + s.file_size).contains(&entry))
    {
        return Err(wrong(format!(
            "its entry point {entry:#x} lies in none of its {} loadable segments",
            segments.len()
        )));
    }
    debug_assert!(segments.iter().all(|s| s.offset <= b.len() as u64));
    Ok(Format::Elf { entry, segments })
}

/// Checks a bzImage's setup header (Documentation/x86/boot.rst).
fn parse_bzimage(path: &Path, b: &[u8]) -> Result<Format, BootError> {
    let wrong = |reason: String| BootError::KernelFormat {
        path: path.into(),
        reason,
    };
    const XLF_KERNEL_64: u16 = 1;
    const OLDEST: u16 = 0x20c;
    let version = u16_at(b, 0x206).unwrap_or(0);
    let (Some(pref), Some(init_size), Some(xloadflags)) =
        (u64_at(b, 0x258), u32_at(b, 0x260), u16_at(b, 0x236))
    else {
        return Err(BootError::KernelTruncated {
            path: path.into(),
            needed: 0x264,
            len: b.len() as u64,
        });
    };
    if version < OLDEST || xloadflags & XLF_KERNEL_64 == 0 {
        return Err(wrong(format!(
            "its boot protocol {version:#x} has no 64-bit entry point"
        )));
    }
    let sectors = match b[0x1f1] {
        0 => 4,
        n => u64::from(n),
    };
    let setup = (sectors + 1) * 512;
    let len = b.len() as u64;
    // The header counts the protected-mode part of the file in 16-byte units.
    let needed = setup + u64::from(u32_at(b, 0x1f4).unwrap_or(0)) * 16;
    if needed > len || setup >= len {
        return Err(BootError::KernelTruncated {
            path: path.into(),
            needed: needed.max(setup + 1),
            len,
        });
    }
    let size = u64::from(init_size).max(len - setup);
    if pref.checked_add(size).is_none() {
        return Err(wrong(format!(
            "its preferred address {pref:#x} wraps around"
        )));
    }
    Ok(Format::BzImage { load: pref, size })
}
