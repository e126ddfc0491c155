//! Executable memory for stubs.

use thiserror::Error;

use crate::executable::{Executable, ExecutableError};

/// Bytes of stubs that one pool may hold. A stub takes about 80 bytes. Stubs differ by opcode, registers and immediate, never by address,
/// so ordinary programs make a few thousand stubs. When a pool is full, the node continues with a new pool.
pub const CAPACITY: usize = 16 << 20;

/// Failure to get memory for a stub.
#[derive(Debug, Error)]
pub enum ArenaError {
    /// The host refused memory that can be executed.
    #[error(transparent)]
    Host(#[from] ExecutableError),
    /// The arena is full, although a new pool should have been made before.
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

    /// Returns the address at which the next stub will run.
    pub fn next(&self) -> u64 {
        self.memory.address() + self.used as u64
    }

    /// Appends code that was assembled for [`Arena::next`]; returns the address at which the code runs.
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

    /// Returns the number of bytes in use.
    pub fn used(&self) -> usize {
        self.used
    }
}
