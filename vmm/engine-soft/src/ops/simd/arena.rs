//! Executable memory for stubs.

use thiserror::Error;

use crate::executable::{Executable, ExecutableError};

/// Bytes of stubs that one pool may hold. A stub takes about 80 bytes. It depends on the opcode, the registers and the immediate,
/// never on addresses, so that ordinary programs make a few thousand. Where a guest has more, its node continues with a new pool.
pub const CAPACITY: usize = 16 << 20;

/// Executable memory could not be had or is used up.
#[derive(Debug, Error)]
pub enum ArenaError {
    /// The host refused memory that can be executed.
    #[error(transparent)]
    Host(#[from] ExecutableError),
    /// The arena has no room for a stub, although a new pool is made in time.
    #[error("no room for the code of a vector instruction among {} MiB, though room is made before each block: this is a bug of nodescope, please report it", CAPACITY >> 20)]
    Full,
}

/// The stubs of one pool.
pub struct Arena {
    memory: Executable,
    used: usize,
}

impl Arena {
    /// Reserves address space; the host provides pages as they are written.
    pub fn new() -> Result<Self, ArenaError> {
        Ok(Self {
            memory: Executable::new(c"nodescope-stubs", CAPACITY, 0)?,
            used: 0,
        })
    }

    /// Address at which the next stub will run.
    pub fn next(&self) -> u64 {
        self.memory.address() + self.used as u64
    }

    /// Appends code that was assembled for [`Arena::next`]; returns where it runs.
    pub fn push(&mut self, code: &[u8]) -> Result<u64, ArenaError> {
        if code.len() > CAPACITY - self.used {
            return Err(ArenaError::Full);
        }
        let at = self.next();
        // SAFETY: the bytes from `used` on are not in use.
        unsafe { self.memory.write(self.used, code) };
        self.used = (self.used + code.len()).next_multiple_of(16).min(CAPACITY);
        Ok(at)
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used
    }
}
