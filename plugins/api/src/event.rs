//! The stream of events of a window, as observers and recordings get it. `plugins/api/EVENTS.md` describes the format.

use crate::{Access, Charges, Context, MemRef, Prefetched, Privilege, Source};

/// Version of [`Event`] and [`Batch`]. A change of their meaning or layout advances the version.
pub const STREAM_VERSION: u32 = 1;

/// One event: a reference to one line, or a line that a prefetcher brought. 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// Number of the line in bits 0 to 39, cycles since the batch began in bits 40 to 63.
    place: u64,
    /// Number of the block that makes the reference ([`crate::Site::block`]).
    pub block: u32,
    /// Number of the operation within the block.
    pub operation: u8,
    /// Reason in bits 0 and 1, then [`Event::LOCKED`], [`Event::NON_TEMPORAL`] and [`Event::LARGE_PAGE`].
    flags: u8,
    /// Source of the answer, from 1 on; 0 for the first level.
    answer: u8,
    /// Level of the cache that a prefetcher filled, from 1 on; 0 for a reference.
    pub filled: u8,
}

/// Reason of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Data is read.
    Read,
    /// Data is written.
    Write,
    /// Instructions are fetched.
    Fetch,
    /// A prefetcher brought the line.
    Prefetch,
}

impl Reason {
    /// Every reason, by number.
    pub const ALL: [Reason; 4] = [Reason::Read, Reason::Write, Reason::Fetch, Reason::Prefetch];
}

impl Event {
    /// Number of bits of a line's number: guest-physical memory up to 64 TiB in lines of 64 bytes.
    pub const LINE_BITS: u32 = 40;
    /// Largest number of cycles from the beginning of a batch to an event of the batch.
    pub const MOST_CYCLES: u64 = (1 << (64 - Self::LINE_BITS)) - 1;
    /// Flag of a locked instruction.
    pub const LOCKED: u8 = 1 << 2;
    /// Flag of a store with a non-temporal hint.
    pub const NON_TEMPORAL: u8 = 1 << 3;
    /// Flag of a page larger than 4 KiB, where the model asked for page sizes.
    pub const LARGE_PAGE: u8 = 1 << 4;

    /// Makes the event of a reference that was answered with these charges, `cycles` after the batch began.
    #[inline]
    pub fn of_reference(
        reference: &MemRef,
        charges: &Charges,
        line_shift: u8,
        cycles: u64,
    ) -> Self {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let answer = Source::of(charges).map_or(0, |source| source as u8 + 1);
        Self {
            place: Self::place(reference.physical >> line_shift, cycles),
            block: reference.site.block,
            operation: reference.site.operation.min(u8::MAX.into()) as u8,
            flags: reference.access as u8
                | flag(reference.locked, Self::LOCKED)
                | flag(reference.non_temporal, Self::NON_TEMPORAL)
                | flag(reference.large_page, Self::LARGE_PAGE),
            answer,
            filled: 0,
        }
    }

    /// Makes the event of a prefetch that the reference of another event caused.
    #[inline]
    pub fn of_prefetch(self, prefetched: &Prefetched, line_shift: u8) -> Self {
        Self {
            place: Self::place(prefetched.line >> line_shift, self.cycles()),
            flags: Reason::Prefetch as u8,
            answer: prefetched.source as u8 + 1,
            filled: prefetched.level,
            ..self
        }
    }

    #[inline]
    fn place(line: u64, cycles: u64) -> u64 {
        line & ((1 << Self::LINE_BITS) - 1) | cycles.min(Self::MOST_CYCLES) << Self::LINE_BITS
    }

    /// Returns the number of the line: its guest-physical address divided by [`Batch::line_bytes`].
    #[inline]
    pub fn line(&self) -> u64 {
        self.place & ((1 << Self::LINE_BITS) - 1)
    }

    /// Returns the cycles from the beginning of the batch to this event.
    #[inline]
    pub fn cycles(&self) -> u64 {
        self.place >> Self::LINE_BITS
    }

    /// Returns the reason of the event.
    #[inline]
    pub fn reason(&self) -> Reason {
        Reason::ALL[usize::from(self.flags & 3)]
    }

    /// Returns where the line came from; `None` for the first level.
    #[inline]
    pub fn source(&self) -> Option<Source> {
        Source::ALL
            .get(usize::from(self.answer).wrapping_sub(1))
            .copied()
    }

    /// Returns the event as 16 bytes, the fields in their order, the lowest byte of each first.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.place.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.block.to_le_bytes());
        bytes[12..].copy_from_slice(&[self.operation, self.flags, self.answer, self.filled]);
        bytes
    }

    /// Returns the event of bytes as [`Event::to_bytes`] gives them.
    pub fn from_bytes(bytes: &[u8; 16]) -> Self {
        let byte = |at: usize| u64::from(bytes[at]);
        Self {
            place: (0..8).fold(0, |sum, at| sum | byte(at) << (8 * at)),
            block: (8..12).fold(0, |sum, at| sum | (byte(at) as u32) << (8 * (at - 8))),
            operation: bytes[12],
            flags: bytes[13],
            answer: bytes[14],
            filled: bytes[15],
        }
    }

    /// Returns whether the instruction is locked.
    #[inline]
    pub fn locked(&self) -> bool {
        self.flags & Self::LOCKED != 0
    }

    /// Returns whether the store has a non-temporal hint.
    #[inline]
    pub fn non_temporal(&self) -> bool {
        self.flags & Self::NON_TEMPORAL != 0
    }

    /// Returns whether a page of more than 4 KiB maps the line. False unless a model asked for page sizes ([`crate::Needs`]).
    #[inline]
    pub fn large_page(&self) -> bool {
        self.flags & Self::LARGE_PAGE != 0
    }
}

/// Events of one vCPU in one context at one privilege, in order.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Number of the vCPU within its node.
    pub vcpu: u16,
    /// Address space and MPI function.
    pub context: Context,
    /// Privilege of the code.
    pub privilege: Privilege,
    /// Bytes of a line.
    pub line_bytes: u32,
    /// The vCPU's clock at the beginning of the batch, in cycles: the cycles of instructions and stalls so far.
    pub clock: u64,
    /// The events.
    pub events: &'a [Event],
}

impl Batch<'_> {
    /// Returns the access of an event's reference; `None` for a prefetch.
    pub fn access(event: &Event) -> Option<Access> {
        match event.reason() {
            Reason::Read => Some(Access::Read),
            Reason::Write => Some(Access::Write),
            Reason::Fetch => Some(Access::Fetch),
            Reason::Prefetch => None,
        }
    }
}
