//! Memory for translated code, and for the chain slots through which translation blocks jump to each other.
//!
//! Chain slots are plain memory after the code. Blocks are chained and unchained by writing a pointer to a slot, so code is never patched.
//! (A processor stalls when code near its instruction pointer is patched.)

use std::num::NonZeroU64;

use crate::executable::{Executable, ExecutableError, HUGE};

/// Bytes of in-line code of a node's own arena. When the arena is used up, the node evicts all its code.
pub const IN_LINE: usize = 20 << 20;
/// Bytes of in-line code of the arena that nodes share. When the arena is used up, its code is kept, but no more is added.
pub const SHARED_IN_LINE: usize = 80 << 20;
/// Number of bytes of in-line code in a huge page's range at which the arena asks the host for a huge page there.
const WORTH: usize = HUGE / 8;

/// Address of code in an arena. Only arenas make these values. The code remains there until its arena is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct CodeAddress(NonZeroU64);

impl CodeAddress {
    /// Returns the address as a number.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    #[cfg(test)]
    pub fn of_nothing(number: u64) -> Self {
        Self(NonZeroU64::new(number).expect("not zero"))
    }
}

/// Index of a chain slot in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainSlot(u32);

/// Code that was just appended: address and length of the in-line part and of the out-of-line part.
#[derive(Clone, Copy, Debug)]
pub struct Pushed([(CodeAddress, usize); 2]);

impl Pushed {
    /// Returns the address of the in-line part's first instruction.
    pub fn start(&self) -> CodeAddress {
        self.0[0].0
    }

    /// Returns `address` as a code address; none if it is not within the appended code.
    pub fn at(&self, address: u64) -> Option<CodeAddress> {
        let within = |(start, len): &(CodeAddress, usize)| {
            (start.get()..start.get() + *len as u64).contains(&address)
        };
        let found = self.0.iter().any(within);
        NonZeroU64::new(address).filter(|_| found).map(CodeAddress)
    }
}

/// Arena for code and chain slots: those of one node, or those that all nodes share.
pub struct Arena {
    memory: Executable,
    used: usize,
    out_of_line: usize,
    chain_slots: usize,
    /// Number of bytes of in-line code that survive [`Arena::clear`].
    kept: usize,
    /// Number of bytes of in-line code for which huge pages were requested.
    huge: usize,
    /// Maximum number of bytes of in-line code. The address space for in-line code may be larger.
    room: usize,
    /// Sizes of the address space for in-line code and for all code, in bytes, and number of chain slots.
    in_line: usize,
    code: usize,
    most_chain_slots: usize,
}

impl Arena {
    /// Reserves address space for so many bytes of in-line code, with out-of-line code and chain slots in proportion. The host allocates
    /// pages when they are written.
    pub fn new(room: usize) -> Result<Self, ExecutableError> {
        let in_line = room.next_multiple_of(HUGE);
        // For 20 MiB of in-line code, 28 MiB of out-of-line code and 2^19 chain slots.
        let code = (in_line * 12 / 5).next_multiple_of(HUGE);
        let most_chain_slots = in_line / 40;
        Ok(Self {
            memory: Executable::new(c"nodescope-code", code, most_chain_slots * 8)?,
            used: 0,
            out_of_line: in_line,
            chain_slots: 0,
            kept: 0,
            huge: 0,
            room,
            in_line,
            code,
            most_chain_slots,
        })
    }

    /// Returns the address of the next in-line code.
    pub fn next(&self) -> u64 {
        self.memory.address() + self.used as u64
    }

    /// Returns the address of the next out-of-line code.
    pub fn next_out_of_line(&self) -> u64 {
        self.memory.address() + self.out_of_line as u64
    }

    /// Appends code that was assembled for [`Arena::next`], and its out-of-line part for [`Arena::next_out_of_line`]. None if there is not
    /// enough space.
    pub fn push(&mut self, in_line: &[u8], out_of_line: &[u8]) -> Option<Pushed> {
        if in_line.len() > self.room.saturating_sub(self.used)
            || out_of_line.len() > self.code - self.out_of_line
        {
            return None;
        }
        let parts = [
            (self.next(), in_line.len()),
            (self.next_out_of_line(), out_of_line.len()),
        ];
        for (code, to) in [(in_line, self.used), (out_of_line, self.out_of_line)] {
            // SAFETY: the bytes from `to` on have not been given to any code.
            unsafe { self.memory.write(to, code) };
        }
        self.used = (self.used + in_line.len())
            .next_multiple_of(16)
            .min(self.in_line);
        self.out_of_line = (self.out_of_line + out_of_line.len())
            .next_multiple_of(16)
            .min(self.code);
        if self.used >= self.huge + WORTH && self.huge < self.in_line {
            self.memory.make_huge(self.huge);
            self.huge += HUGE;
        }
        let start = |at| CodeAddress(NonZeroU64::new(at).expect("no mapping begins at zero"));
        Some(Pushed(parts.map(|(at, len)| (start(at), len))))
    }

    /// Returns the address of a chain slot in memory.
    pub fn address_of(&self, slot: ChainSlot) -> u64 {
        self.memory.data_address() + u64::from(slot.0) * 8
    }

    /// Allocates a chain slot, which contains zero until it is set; none if all are in use.
    pub fn allocate_chain_slot(&mut self) -> Option<ChainSlot> {
        if self.chain_slots == self.most_chain_slots {
            return None;
        }
        let slot = ChainSlot(self.chain_slots as u32);
        self.chain_slots += 1;
        self.write_chain_slot(slot, 0);
        Some(slot)
    }

    /// Makes an allocated chain slot point to code.
    pub fn set_chain_slot(&mut self, slot: ChainSlot, code: CodeAddress) {
        self.write_chain_slot(slot, code.get());
    }

    fn write_chain_slot(&mut self, slot: ChainSlot, value: u64) {
        assert!(
            (slot.0 as usize) < self.chain_slots,
            "the slot was allocated"
        );
        // SAFETY: code jumps to the address in the slot, which is an address of code. The slot is zero only while no code uses it.
        unsafe { self.memory.write_data(slot.0 as usize, value) };
    }

    /// Marks all in-line code so far as code that survives [`Arena::clear`].
    pub fn keep(&mut self) {
        self.kept = self.used;
    }

    /// Drops all chain slots, and all code except that marked by [`Arena::keep`].
    pub fn clear(&mut self) {
        self.used = self.kept;
        self.out_of_line = self.in_line;
        self.chain_slots = 0;
    }
}
