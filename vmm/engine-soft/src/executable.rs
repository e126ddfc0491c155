//! Memory for generated code: one memory file that is mapped twice, so that no mapping is both writable and executable.

use std::ffi::CStr;
use std::io;
use std::os::fd::FromRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

/// Size of a huge page in bytes. Generated code would take more small pages than a processor's instruction TLB has entries.
pub const HUGE: usize = 2 << 20;

/// Error of a host that does not provide executable memory.
#[derive(Debug, Error)]
#[error(
    "cannot {what} memory for generated code: {source}; allow memfd_create and PROT_EXEC mappings"
)]
pub struct ExecutableError {
    what: &'static str,
    source: io::Error,
}

/// Memory for code with a writable and an executable view, and plain memory for data. The data follows the executable view, within reach of
/// relative addresses.
pub struct Executable {
    write: NonNull<u8>,
    execute: NonNull<u8>,
    code: usize,
    data: usize,
}

// SAFETY: only this value owns the mappings, and nothing in them depends on the thread.
unsafe impl Send for Executable {}

impl Executable {
    /// Reserves address space for `code` bytes of code, a multiple of [`HUGE`], and `data` bytes of data. The host allocates pages when
    /// they are written. `name` is the memory file's name.
    pub fn new(name: &CStr, code: usize, data: usize) -> Result<Self, ExecutableError> {
        assert!(code.is_multiple_of(HUGE));
        let failed = |what| ExecutableError {
            what,
            source: io::Error::last_os_error(),
        };
        // SAFETY: the name is a C string, and the call has no other precondition.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed("create"));
        }
        // SAFETY: `fd` was just opened, and nothing else owns it.
        let file = unsafe { std::fs::File::from_raw_fd(fd) };
        file.set_len(code as u64)
            .map_err(|source| ExecutableError {
                what: "size",
                source,
            })?;
        // SAFETY: callers unmap only mappings, or parts of mappings, that this function made and that are not used afterwards.
        let unmap = |at: usize, len| unsafe { libc::munmap(at as *mut libc::c_void, len) };
        let map = |at: *mut libc::c_void, len, protection, flags, fd| {
            // SAFETY: the mapping is at an address that the kernel chooses, or replaces a reservation of this function.
            let at = unsafe { libc::mmap(at, len, protection, flags, fd, 0) };
            (at != libc::MAP_FAILED)
                .then(|| NonNull::new(at.cast::<u8>()))
                .flatten()
        };
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let shared = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // Reserves address space that begins at a multiple of a huge page.
        let reserve = |len: usize| {
            let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let from = map(std::ptr::null_mut(), len + HUGE, rw, plain, -1)?.as_ptr() as usize;
            let start = from.next_multiple_of(HUGE);
            if start > from {
                unmap(from, start - from);
            }
            if from + HUGE > start {
                unmap(start + len, from + HUGE - start);
            }
            NonNull::new(start as *mut u8)
        };
        // Plain memory is reserved for code and data together. The executable view then replaces its beginning.
        let whole = code + data;
        let execute = reserve(whole).ok_or_else(|| failed("reserve"))?;
        let rx = libc::PROT_READ | libc::PROT_EXEC;
        if map(execute.as_ptr().cast(), code, rx, shared, fd).is_none() {
            let error = failed("map executable");
            unmap(execute.as_ptr() as usize, whole);
            return Err(error);
        }
        let Some(write) = reserve(code) else {
            let error = failed("reserve");
            unmap(execute.as_ptr() as usize, whole);
            return Err(error);
        };
        if map(write.as_ptr().cast(), code, rw, shared, fd).is_none() {
            let error = failed("map");
            unmap(execute.as_ptr() as usize, whole);
            unmap(write.as_ptr() as usize, code);
            return Err(error);
        }
        Ok(Self {
            write,
            execute,
            code,
            data,
        })
    }

    /// Returns the address of the executable view's first byte.
    pub fn address(&self) -> u64 {
        self.execute.as_ptr() as u64
    }

    /// Writes code at byte offset `at`.
    ///
    /// # Safety
    /// The code that was there before must not be running.
    pub unsafe fn write(&mut self, at: usize, code: &[u8]) {
        assert!(at <= self.code && code.len() <= self.code - at);
        // SAFETY: the range was checked to be within the writable view.
        unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), self.write.as_ptr().add(at), code.len());
        }
    }

    /// Returns the address of the first byte of data.
    pub fn data_address(&self) -> u64 {
        self.address() + self.code as u64
    }

    /// Writes a word of data, by its index. Code may read the word at the same time.
    ///
    /// # Safety
    /// The code that reads the word must be correct with this value.
    pub unsafe fn write_data(&mut self, number: usize, word: u64) {
        assert!(number < self.data / 8);
        let at = (self.data_address() as *mut u64).wrapping_add(number);
        // SAFETY: the word is aligned and within the plain memory after the code. Code of other threads may read it at the same time, so
        // the store is atomic.
        unsafe { AtomicU64::from_ptr(at) }.store(word, Ordering::Release);
    }

    /// Requests a huge page for the code from offset `at` on, a multiple of [`HUGE`]. If the host refuses, only the speed differs.
    pub fn make_huge(&mut self, at: usize) {
        assert!(at.is_multiple_of(HUGE) && at < self.code);
        // SAFETY: the range is within the writable view, and the call preserves its contents.
        unsafe {
            let at = self.write.as_ptr().add(at);
            libc::madvise(at.cast(), HUGE, libc::MADV_COLLAPSE);
        }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: both views were mapped with these lengths. Code only runs through vCPUs, which keep this value alive.
        unsafe {
            libc::munmap(self.write.as_ptr().cast(), self.code);
            libc::munmap(self.execute.as_ptr().cast(), self.code + self.data);
        }
    }
}
