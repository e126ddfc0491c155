//! Memory for working sets, in pages of a chosen size.

use std::fs;
use std::io;
use std::ptr;

use crate::MeasureError;

/// Bytes of a cache line. Every x86-64 processor has lines of this size.
pub const LINE: usize = 64;
/// Bytes of a small page.
pub const PAGE: usize = 4096;
/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Size of the pages that a buffer asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Pages of 4 KiB.
    Small,
    /// Pages of 2 MiB, where the system has some.
    Huge,
}

/// Memory that is mapped, touched, and aligned to huge pages.
#[derive(Debug)]
pub struct Buffer {
    mapping: *mut libc::c_void,
    mapped: usize,
    start: *mut u8,
    len: usize,
}

// SAFETY: the buffer owns its mapping, which is no thread's own.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Maps at least `len` bytes, and writes to every page.
    pub fn new(len: usize, pages: Pages) -> Result<Self, MeasureError> {
        let len = len.next_multiple_of(HUGE_PAGE);
        let mapped = len + HUGE_PAGE;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new anonymous mapping where the system wants it touches no other memory.
        let mapping = unsafe { libc::mmap(ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if mapping == libc::MAP_FAILED {
            return Err(MeasureError::Memory {
                bytes: mapped,
                source: io::Error::last_os_error(),
            });
        }
        let start = mapping.cast::<u8>();
        // SAFETY: the offset is less than a huge page, which the mapping has beyond `len`.
        let start = unsafe { start.add(start.align_offset(HUGE_PAGE)) };
        let advice = match pages {
            Pages::Small => libc::MADV_NOHUGEPAGE,
            Pages::Huge => libc::MADV_HUGEPAGE,
        };
        // SAFETY: the range lies in the mapping. The advice is about the size of pages. A system without huge pages refuses it, and the
        // buffer then has small pages, which `huge_share` tells.
        unsafe { libc::madvise(start.cast(), len, advice) };
        for page in (0..len).step_by(PAGE) {
            // SAFETY: the byte lies in the buffer.
            unsafe { start.add(page).write_volatile(1) };
        }
        Ok(Self {
            mapping,
            mapped,
            start,
            len,
        })
    }

    /// Returns the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of a line.
    ///
    /// # Panics
    ///
    /// Panics if the buffer has no such line.
    pub fn line(&self, line: usize) -> *mut u8 {
        assert!(
            line < self.len / LINE,
            "line {line} is outside of the buffer"
        );
        // SAFETY: the line lies in the buffer.
        unsafe { self.start.add(line * LINE) }
    }

    /// Returns the share of the buffer that is in huge pages, from 0 to 1, or `None` where Linux does not tell.
    pub fn huge_share(&self) -> Option<f64> {
        let text = fs::read_to_string("/proc/self/smaps").ok()?;
        let (start, end) = (self.start as usize, self.start as usize + self.len);
        Some(huge_bytes(&text, start, end)? as f64 / self.len as f64)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is the buffer's own, and nothing refers to it any more.
        unsafe { libc::munmap(self.mapping, self.mapped) };
    }
}

/// Returns how many bytes in huge pages `/proc/self/smaps` tells for the mappings inside these addresses.
fn huge_bytes(smaps: &str, start: usize, end: usize) -> Option<usize> {
    let mut inside = false;
    let mut bytes = None;
    for line in smaps.lines() {
        if let Some((from, to)) = addresses(line) {
            inside = from >= start && to <= end;
        } else if inside && let Some(rest) = line.strip_prefix("AnonHugePages:") {
            let kilobytes: usize = rest.trim().strip_suffix(" kB")?.parse().ok()?;
            bytes = Some(bytes.unwrap_or(0) + kilobytes * 1024);
        }
    }
    bytes
}

/// Returns the addresses in a mapping's first line, such as `7f00-7f10 rw-p 0 00:00 0`.
fn addresses(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split_once(' ')?.0.split_once('-')?;
    Some((
        usize::from_str_radix(from, 16).ok()?,
        usize::from_str_radix(to, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_counted_for_the_buffer_alone() {
        let smaps = "1000-2000 rw-p 00000000 00:00 0\nSize: 4 kB\nAnonHugePages:      64 kB\n\
                     4000-8000 rw-p 00000000 00:00 0\nAnonHugePages:      8 kB\nVmFlags: rd\n\
                     8000-9000 rw-p 00000000 00:00 0\nAnonHugePages:      4 kB\n";
        assert_eq!(huge_bytes(smaps, 0x4000, 0x9000), Some(12 << 10));
        assert_eq!(huge_bytes(smaps, 0x9000, 0xa000), None);
    }

    #[test]
    fn a_buffer_is_aligned_and_of_small_pages_if_asked() {
        let buffer = Buffer::new(5 << 20, Pages::Small).unwrap();
        assert_eq!(buffer.len(), 6 << 20);
        assert_eq!(buffer.start() as usize % HUGE_PAGE, 0);
        assert_eq!(buffer.huge_share().unwrap_or(0.0), 0.0);
    }
}
