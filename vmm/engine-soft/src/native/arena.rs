//! Memory for generated code and for the cells through which blocks jump to each other.
//!
//! One file in memory, mapped twice: a view to write and a view to execute, so that no page is ever writable and
//! executable. Behind the executable view lies plain memory for the cells: a link is made and undone by writing a
//! pointer there, so that code itself is never patched (a processor that executes near patched code stops for it).

use std::io;
use std::num::NonZeroU64;
use std::os::fd::FromRawFd;
use std::ptr::NonNull;

use thiserror::Error;

/// Bytes of code that one node keeps before everything is thrown away: in line and out of line.
const CODE: usize = HOT + COLD;
pub const HOT: usize = 20 << 20;
const COLD: usize = 28 << 20;
/// A huge page. Code that runs is spread over more pages than a processor's table of translations for instructions holds.
const HUGE: usize = 2 << 20;
/// Bytes of code in a huge page's worth of small ones from which on it becomes one.
const WORTH: usize = HUGE / 8;
const _: () = assert!(HOT.is_multiple_of(HUGE) && CODE.is_multiple_of(HUGE));
/// Cells that one node keeps before everything is thrown away.
pub const CELLS: usize = 1 << 19;

/// The host does not give memory that can be executed.
#[derive(Debug, Error)]
#[error(
    "cannot {what} memory for translated code: {source}; allow memfd_create and PROT_EXEC mappings"
)]
pub struct ArenaError {
    what: &'static str,
    source: io::Error,
}

/// Where code lies that an arena holds. Arenas alone make these. What is there is the code until its arena is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct CodeAddress(NonZeroU64);

impl CodeAddress {
    /// The address.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    #[cfg(test)]
    pub fn of_nothing(number: u64) -> Self {
        Self(NonZeroU64::new(number).expect("not zero"))
    }
}

/// A cell of an arena, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell(u32);

/// Code that was just appended: what is in line and what is out of line.
#[derive(Clone, Copy, Debug)]
pub struct Pushed([(CodeAddress, usize); 2]);

impl Pushed {
    /// Where it begins.
    pub fn start(&self) -> CodeAddress {
        self.0[0].0
    }

    /// An address within it.
    pub fn at(&self, address: u64) -> Option<CodeAddress> {
        let within = |(start, len): &(CodeAddress, usize)| {
            (start.get()..start.get() + *len as u64).contains(&address)
        };
        let found = self.0.iter().any(within);
        NonZeroU64::new(address).filter(|_| found).map(CodeAddress)
    }
}

/// Code and cells of one node.
pub struct Arena {
    write: NonNull<u8>,
    execute: NonNull<u8>,
    used: usize,
    cold: usize,
    cells: usize,
    /// Code below this is never thrown away.
    kept: usize,
    /// Code in line below this is in huge pages, as far as the host gives them.
    huge: usize,
    /// Bytes of code in line that may be used.
    room: usize,
}

// SAFETY: the mappings belong to this value alone and nothing in them depends on the thread.
unsafe impl Send for Arena {}

impl Arena {
    /// Reserve address space, of which at most `room` bytes (and [`HOT`]) are used for code in line; the host provides pages as
    /// they are written.
    pub fn new(room: usize) -> Result<Self, ArenaError> {
        let failed = |what| ArenaError {
            what,
            source: io::Error::last_os_error(),
        };
        // SAFETY: the name is a C string; the call has no other precondition.
        let fd = unsafe { libc::memfd_create(c"nodescope-code".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed("create"));
        }
        // SAFETY: `fd` was just opened and is owned by nothing else.
        let file = unsafe { std::fs::File::from_raw_fd(fd) };
        file.set_len(CODE as u64).map_err(|source| ArenaError {
            what: "size",
            source,
        })?;
        // SAFETY: the part of a mapping made here that is not used.
        let unmap = |at: usize, len| unsafe { libc::munmap(at as *mut libc::c_void, len) };
        let map = |at: *mut libc::c_void, len, protection, flags, fd| {
            // SAFETY: either at an address of the kernel's choice, or over a reservation made below.
            let at = unsafe { libc::mmap(at, len, protection, flags, fd, 0) };
            (at != libc::MAP_FAILED)
                .then(|| NonNull::new(at.cast::<u8>()))
                .flatten()
        };
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let shared = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let whole = CODE + CELLS * 8;
        // Address space that begins where a huge page may.
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
        // The cells' plain memory first, for the whole; the code's view over its beginning.
        let execute = reserve(whole).ok_or_else(|| failed("reserve"))?;
        let rx = libc::PROT_READ | libc::PROT_EXEC;
        if map(
            execute.as_ptr().cast(),
            CODE,
            rx,
            shared | libc::MAP_FIXED,
            fd,
        )
        .is_none()
        {
            let error = failed("map executable");
            unmap(execute.as_ptr() as usize, whole);
            return Err(error);
        }
        let write = reserve(CODE)
            .and_then(|at| map(at.as_ptr().cast(), CODE, rw, shared | libc::MAP_FIXED, fd));
        let Some(write) = write else {
            let error = failed("map");
            unmap(execute.as_ptr() as usize, whole);
            return Err(error);
        };
        Ok(Self {
            write,
            execute,
            used: 0,
            cold: HOT,
            cells: 0,
            kept: 0,
            huge: 0,
            room: room.min(HOT),
        })
    }

    /// Address at which the next code will run.
    pub fn next(&self) -> u64 {
        self.execute.as_ptr() as u64 + self.used as u64
    }

    /// Address at which the next out-of-line code will run.
    pub fn next_cold(&self) -> u64 {
        self.execute.as_ptr() as u64 + self.cold as u64
    }

    /// Append code that was assembled for [`Arena::next`], and its out-of-line part for [`Arena::next_cold`]; None where
    /// there is no room.
    pub fn push(&mut self, hot: &[u8], cold: &[u8]) -> Option<Pushed> {
        if hot.len() > self.room.saturating_sub(self.used) || cold.len() > CODE - self.cold {
            return None;
        }
        let parts = [(self.next(), hot.len()), (self.next_cold(), cold.len())];
        for (code, to) in [(hot, self.used), (cold, self.cold)] {
            // SAFETY: the bytes from `to` on lie within the writable view and are not yet in use.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    code.as_ptr(),
                    self.write.as_ptr().add(to),
                    code.len(),
                );
            }
        }
        self.used = (self.used + hot.len()).next_multiple_of(16).min(HOT);
        self.cold = (self.cold + cold.len()).next_multiple_of(16).min(CODE);
        if self.used >= self.huge + WORTH && self.huge < HOT {
            self.make_huge();
        }
        let start = |at| CodeAddress(NonZeroU64::new(at).expect("no mapping begins at zero"));
        Some(Pushed(parts.map(|(at, len)| (start(at), len))))
    }

    /// Put the next part of the code in line into a huge page. Where the host does not, only speed differs.
    #[cold]
    fn make_huge(&mut self) {
        // SAFETY: within the writable view; the call keeps the contents.
        unsafe {
            let at = self.write.as_ptr().add(self.huge);
            libc::madvise(at.cast(), HUGE, libc::MADV_COLLAPSE);
        }
        self.huge += HUGE;
    }

    /// Address of a cell.
    pub fn address_of(&self, cell: Cell) -> u64 {
        self.execute.as_ptr() as u64 + CODE as u64 + u64::from(cell.0) * 8
    }

    /// Take a cell, which leads nowhere yet; None where there are no more.
    pub fn push_cell(&mut self) -> Option<Cell> {
        if self.cells == CELLS {
            return None;
        }
        let cell = Cell(self.cells as u32);
        self.cells += 1;
        self.write_cell(cell, 0);
        Some(cell)
    }

    /// Let a cell that was taken before lead to code.
    pub fn set_cell(&mut self, cell: Cell, code: CodeAddress) {
        self.write_cell(cell, code.get());
    }

    fn write_cell(&mut self, cell: Cell, value: u64) {
        assert!((cell.0 as usize) < self.cells, "the cell was taken");
        // SAFETY: within the plain memory behind the code, aligned.
        unsafe { (self.address_of(cell) as *mut u64).write(value) };
    }

    /// What was pushed so far survives [`Arena::clear`].
    pub fn keep(&mut self) {
        self.kept = self.used;
    }

    /// Throw away all code but what is kept, and all cells.
    pub fn clear(&mut self) {
        self.used = self.kept;
        self.cold = HOT;
        self.cells = 0;
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: both views were mapped with these lengths, and code only runs through the vCPUs that keep them.
        unsafe {
            libc::munmap(self.write.as_ptr().cast(), CODE);
            libc::munmap(self.execute.as_ptr().cast(), CODE + CELLS * 8);
        }
    }
}
