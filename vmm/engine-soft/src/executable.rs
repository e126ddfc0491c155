//! Memory for generated code: one file in memory, mapped twice, so that no page is ever writable and executable.

use std::ffi::CStr;
use std::io;
use std::os::fd::FromRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

/// A huge page. Code that runs is spread over more pages than a processor's table of translations for instructions holds.
pub const HUGE: usize = 2 << 20;

/// Error of a host that does not give memory that can be executed.
#[derive(Debug, Error)]
#[error(
    "cannot {what} memory for generated code: {source}; allow memfd_create and PROT_EXEC mappings"
)]
pub struct ExecutableError {
    what: &'static str,
    source: io::Error,
}

/// Two views of one piece of memory, one to write and one to execute, and plain memory for data behind the executable view, within
/// reach of the code.
pub struct Executable {
    write: NonNull<u8>,
    execute: NonNull<u8>,
    code: usize,
    data: usize,
}

// SAFETY: only this value owns the mappings, and nothing in them depends on the thread.
unsafe impl Send for Executable {}

impl Executable {
    /// Reserves address space for so many bytes of code, a multiple of [`HUGE`], and of data; the host provides pages as they are
    /// written. `name`: what the host calls it.
    pub fn new(name: &CStr, code: usize, data: usize) -> Result<Self, ExecutableError> {
        assert!(code.is_multiple_of(HUGE));
        let failed = |what| ExecutableError {
            what,
            source: io::Error::last_os_error(),
        };
        // SAFETY: the name is a C string; the call has no other precondition.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed("create"));
        }
        // SAFETY: `fd` was just opened and is owned by nothing else.
        let file = unsafe { std::fs::File::from_raw_fd(fd) };
        file.set_len(code as u64)
            .map_err(|source| ExecutableError {
                what: "size",
                source,
            })?;
        // SAFETY: unmaps the unused part of a mapping made here.
        let unmap = |at: usize, len| unsafe { libc::munmap(at as *mut libc::c_void, len) };
        let map = |at: *mut libc::c_void, len, protection, flags, fd| {
            // SAFETY: either at an address of the kernel's choice, or over a reservation made below.
            let at = unsafe { libc::mmap(at, len, protection, flags, fd, 0) };
            (at != libc::MAP_FAILED)
                .then(|| NonNull::new(at.cast::<u8>()))
                .flatten()
        };
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let shared = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // Address space that begins where a huge page may begin.
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
        // Plain memory is mapped first, for the whole; the code's view then replaces its beginning.
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

    /// Returns the address at which the first byte of code will run.
    pub fn address(&self) -> u64 {
        self.execute.as_ptr() as u64
    }

    /// Writes code, so many bytes from the first.
    ///
    /// # Safety
    /// No code that was there before still runs.
    pub unsafe fn write(&mut self, at: usize, code: &[u8]) {
        assert!(at <= self.code && code.len() <= self.code - at);
        // SAFETY: within the writable view.
        unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), self.write.as_ptr().add(at), code.len());
        }
    }

    /// Returns the address of the first byte of data.
    pub fn data_address(&self) -> u64 {
        self.address() + self.code as u64
    }

    /// Writes a word of data, by its number. Code may read the word.
    ///
    /// # Safety
    /// Whatever code reads it may find this.
    pub unsafe fn write_data(&mut self, number: usize, word: u64) {
        assert!(number < self.data / 8);
        let at = (self.data_address() as *mut u64).wrapping_add(number);
        // SAFETY: within the plain memory behind the code, aligned. Code of other threads may read the word at the same time.
        unsafe { AtomicU64::from_ptr(at) }.store(word, Ordering::Release);
    }

    /// Puts the code from a multiple of [`HUGE`] on into a huge page. If the host does not do so, only speed differs.
    pub fn make_huge(&mut self, at: usize) {
        assert!(at.is_multiple_of(HUGE) && at < self.code);
        // SAFETY: within the writable view; the call keeps the contents.
        unsafe {
            let at = self.write.as_ptr().add(at);
            libc::madvise(at.cast(), HUGE, libc::MADV_COLLAPSE);
        }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: both views were mapped with these lengths, and code only runs through the vCPUs that keep them.
        unsafe {
            libc::munmap(self.write.as_ptr().cast(), self.code);
            libc::munmap(self.execute.as_ptr().cast(), self.code + self.data);
        }
    }
}
