//! The lines of each set beyond the most recently used one, where translated code finds them.

use nodescope_plugin_api::Permission;

use super::sets::{LANES, Sets};

/// What the filter holds beyond the most recently used line of each set, by the lanes of [`Sets`]. All of it is more than the host's
/// first-level cache has beside the guest's data: what is compared is kept apart from what one lane is asked for.
#[repr(C)]
pub struct SecondLevel {
    /// Which lines, and their order.
    pub sets: Sets,
    /// The lowest bits of the line's number in each lane's linear address ([`SecondLevel::key`]), so that those of a set can be
    /// compared at a time.
    pub keys: Keys,
    /// Where each lane's line is.
    pub known: [Known; LANES],
    /// Lines that became modified since the model was last told.
    pub modified: Modified,
    /// No lane has a linear address.
    pub forgotten: bool,
}

/// See [`SecondLevel::keys`]. Those of a set are in one line of the host.
#[repr(C, align(64))]
pub struct Keys(pub [u32; LANES]);

/// Where a line is: what its set's [`super::Entry`] is going to be when it is the most recently used, so that a copy is all that it takes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Known {
    /// First linear address at which the line was last touched.
    pub read: u64,
    /// The same where it may be written, else [`Writes::address`].
    pub write: u64,
    /// Host address.
    pub host: u64,
    /// The first linear address, plus one for the kernel ([`SecondLevel::tag`]); [`NOWHERE`] where there is none.
    pub tag: u64,
}

impl Known {
    const NOTHING: Known = Known {
        read: 0,
        write: 0,
        host: 0,
        tag: NOWHERE,
    };

    /// A line at a linear address, for a privilege (0: user, 1: kernel). `host` is a multiple of a line.
    #[inline(always)]
    pub fn new(line: u64, privilege: usize, host: u64, writes: Writes) -> Self {
        debug_assert!(host.is_multiple_of(SecondLevel::LINE));
        Known {
            read: line,
            write: writes.address(line),
            host,
            tag: SecondLevel::tag(line, privilege),
        }
    }

    /// Whether it may be written.
    pub fn writes(&self) -> Writes {
        match (self.write ^ self.read) / SecondLevel::LINE {
            0 => Writes::Pass,
            3 => Writes::Exclusive,
            _ => Writes::Forbidden,
        }
    }
}

/// Whether a line may be written. As many lines further is an address that never hits an entry of its set, where there are any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Writes {
    /// They may pass.
    Pass = 0,
    /// They may not.
    Forbidden = 1,
    /// They may once the model is going to hear of it.
    Exclusive = 3,
}

impl Writes {
    /// Of a line that a model permits so much of, on a page that may be written or not.
    #[inline(always)]
    pub fn of(held: Permission, writable: bool) -> Self {
        match held {
            Permission::ReadWrite if writable => Writes::Pass,
            Permission::Exclusive if writable => Writes::Exclusive,
            _ => Writes::Forbidden,
        }
    }

    /// What an entry of a line at this address has for writes.
    #[inline(always)]
    pub fn address(self, line: u64) -> u64 {
        line ^ (self as u64 * SecondLevel::LINE)
    }
}

/// Lines that were written while the model took them for clean, though held by this cache alone.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Modified {
    /// How many.
    pub count: u64,
    /// Physical lines.
    pub lines: [u64; Modified::ROOM],
}

impl Modified {
    /// Most lines; where there are more, the model is asked.
    pub const ROOM: usize = 64;
    const EMPTY: Modified = Modified {
        count: 0,
        lines: [0; Modified::ROOM],
    };

    /// What the model must hear before the next reference of any vCPU. It counts as told.
    #[inline(always)]
    pub fn report(&mut self) -> &[u64] {
        let count = std::mem::take(&mut self.count) as usize;
        &self.lines[..count]
    }

    /// Returns whether there is room for one more.
    #[inline]
    pub fn has_room(&self) -> bool {
        (self.count as usize) < Self::ROOM
    }

    /// Whether the line found room.
    #[inline]
    pub fn note(&mut self, line: u64) -> bool {
        let Some(place) = self.lines.get_mut(self.count as usize) else {
            return false;
        };
        *place = line;
        self.count += 1;
        true
    }
}

/// Not the tag of any line.
pub const NOWHERE: u64 = 2;

impl Default for SecondLevel {
    fn default() -> Self {
        Self {
            sets: Sets::default(),
            keys: Keys([0; LANES]),
            known: [Known::NOTHING; LANES],
            modified: Modified::EMPTY,
            forgotten: true,
        }
    }
}

impl SecondLevel {
    /// Bytes of a line; no other size is kept.
    pub const LINE: u64 = 64;

    /// What [`Known::tag`] has for a line's first address, where a privilege (0: user, 1: kernel) knows it.
    #[inline(always)]
    pub fn tag(line: u64, privilege: usize) -> u64 {
        line + privilege as u64
    }

    /// What [`SecondLevel::keys`] has for a line's first address.
    #[inline(always)]
    pub fn key(line: u64) -> u32 {
        (line / Self::LINE) as u32
    }

    /// A lane's line is known.
    #[inline(always)]
    pub fn enter(&mut self, lane: usize, known: Known) {
        self.keys.0[lane] = Self::key(known.read);
        self.known[lane] = known;
        self.forgotten = false;
    }

    /// Writes to a lane's line must be asked for, or may pass.
    pub fn set_writes(&mut self, lane: usize, writes: Writes) {
        let known = &mut self.known[lane];
        known.write = writes.address(known.read);
    }

    /// Forget linear addresses; lines and their order stay.
    pub fn forget_linear(&mut self) {
        if !self.forgotten {
            for known in &mut self.known[..self.sets.used()] {
                known.tag = NOWHERE;
            }
            self.forgotten = true;
        }
    }

    /// A line has left the cache.
    pub fn remove(&mut self, line: u64) {
        if let Some(lane) = self.sets.remove(line) {
            self.known[lane].tag = NOWHERE;
        }
    }

    /// Forget those of one page.
    pub fn forget_page(&mut self, linear: u64) {
        if self.forgotten {
            return;
        }
        for known in &mut self.known[..self.sets.used()] {
            if known.tag >> 12 == linear >> 12 {
                known.tag = NOWHERE;
            }
        }
    }
}
