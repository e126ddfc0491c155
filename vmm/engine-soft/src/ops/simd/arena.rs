//! Executable memory for stubs: one file in memory, mapped twice, so that no page is ever writable and executable.

use std::io;
use std::ptr::NonNull;

use thiserror::Error;

/// Bytes of stubs that one node may hold. A stub takes about 80 bytes and depends on the opcode, its registers and its
/// immediate alone, never on addresses, so that ordinary programs make a few thousand. Where a guest has more, all are thrown away.
pub const CAPACITY: usize = 16 << 20;

/// Executable memory could not be had or is used up.
#[derive(Debug, Error)]
pub enum ArenaError {
    /// The host refused memory that can be executed.
    #[error(
        "cannot {what} executable memory for vector instructions: {source}; allow memfd_create and PROT_EXEC mappings"
    )]
    Host {
        /// The step that failed.
        what: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// There is no room for a stub though others were thrown away.
    #[error("no room for the code of a vector instruction among {} MiB", CAPACITY >> 20)]
    Full,
}

/// Two views of the same memory.
pub struct Arena {
    write: NonNull<u8>,
    execute: NonNull<u8>,
    used: usize,
}

// SAFETY: the mappings belong to this value alone and nothing in them depends on the thread.
unsafe impl Send for Arena {}

impl Arena {
    /// Reserve address space; the host provides pages as they are written.
    pub fn new() -> Result<Self, ArenaError> {
        let failed = |what| ArenaError::Host {
            what,
            source: io::Error::last_os_error(),
        };
        // SAFETY: the name is a C string; the call has no other precondition.
        let fd = unsafe { libc::memfd_create(c"nodescope-stubs".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed("create"));
        }
        // SAFETY: `fd` was just opened and is owned by nothing else.
        let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        file.set_len(CAPACITY as u64)
            .map_err(|source| ArenaError::Host {
                what: "size",
                source,
            })?;
        let map = |protection| {
            // SAFETY: a new mapping at an address of the kernel's choice, of an open file that is CAPACITY long.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    CAPACITY,
                    protection,
                    libc::MAP_SHARED | libc::MAP_NORESERVE,
                    fd,
                    0,
                )
            };
            if at == libc::MAP_FAILED {
                None
            } else {
                NonNull::new(at.cast::<u8>())
            }
        };
        let write = map(libc::PROT_READ | libc::PROT_WRITE).ok_or_else(|| failed("map"))?;
        let Some(execute) = map(libc::PROT_READ | libc::PROT_EXEC) else {
            let error = failed("map");
            // SAFETY: `write` was mapped above with this length and is not used any more.
            unsafe { libc::munmap(write.as_ptr().cast(), CAPACITY) };
            return Err(error);
        };
        Ok(Self {
            write,
            execute,
            used: 0,
        })
    }

    /// Address at which the next stub will run.
    pub fn next(&self) -> u64 {
        self.execute.as_ptr() as u64 + self.used as u64
    }

    /// Append code that was assembled for [`Arena::next`]; returns where it runs.
    pub fn push(&mut self, code: &[u8]) -> Result<u64, ArenaError> {
        if code.len() > CAPACITY - self.used {
            return Err(ArenaError::Full);
        }
        let at = self.next();
        // SAFETY: the bytes `used .. used + len` lie within the writable view and are not yet in use.
        unsafe {
            std::ptr::copy_nonoverlapping(
                code.as_ptr(),
                self.write.as_ptr().add(self.used),
                code.len(),
            );
        }
        self.used = (self.used + code.len()).next_multiple_of(16).min(CAPACITY);
        Ok(at)
    }

    /// Use the memory again from its beginning: no stub in it is called any more.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: both views were mapped with this length, and stubs are only called through the vCPUs that keep them.
        unsafe {
            libc::munmap(self.write.as_ptr().cast(), CAPACITY);
            libc::munmap(self.execute.as_ptr().cast(), CAPACITY);
        }
    }
}
