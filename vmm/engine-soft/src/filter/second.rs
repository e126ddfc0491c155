//! The lines of each set beyond the most recently used one, where translated code finds them.

use nodescope_plugin_api::Permission;

use super::sets::{LANES, Sets};

/// What the filter holds beyond the most recently used line of each set, by the lanes of [`Sets`]. A lane takes little room: all
/// of them are more than the host's first-level cache has beside the guest's data.
#[repr(C)]
pub struct SecondLevel {
    /// Which lines, and their order.
    pub sets: Sets,
    /// First linear address at which a lane's line was last touched, plus one for the kernel ([`SecondLevel::tag`]);
    /// [`NOWHERE`] where there is none.
    pub linear: [u64; LANES],
    /// Where a lane's line is on the host, and whether it may be written at that address: see [`Place`].
    pub places: [Place; LANES],
    /// Lines that became modified since the model was last told.
    pub modified: Modified,
    /// No lane has a linear address.
    pub forgotten: bool,
}

/// Host address of a line, whose lowest bits are a [`Writes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Place(u64);

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
    /// Bits of a [`Place`].
    pub const MASK: u64 = 3;

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

impl Place {
    /// `host` is a multiple of a line.
    #[inline(always)]
    pub fn new(host: u64, writes: Writes) -> Self {
        debug_assert!(host.is_multiple_of(SecondLevel::LINE));
        Place(host | writes as u64)
    }

    #[inline(always)]
    pub fn host(self) -> u64 {
        self.0 & !Writes::MASK
    }

    pub fn writes(self) -> Writes {
        match self.0 & Writes::MASK {
            0 => Writes::Pass,
            3 => Writes::Exclusive,
            _ => Writes::Forbidden,
        }
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
    pub fn tell(&mut self) -> &[u64] {
        let count = std::mem::take(&mut self.count) as usize;
        &self.lines[..count]
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
            linear: [NOWHERE; LANES],
            places: [Place::new(0, Writes::Forbidden); LANES],
            modified: Modified::EMPTY,
            forgotten: true,
        }
    }
}

impl SecondLevel {
    /// Bytes of a line; no other size is kept.
    pub const LINE: u64 = 64;

    /// What [`SecondLevel::linear`] has for a line's first address, where a privilege (0: user, 1: kernel) knows it.
    #[inline(always)]
    pub fn tag(line: u64, privilege: usize) -> u64 {
        line + privilege as u64
    }

    /// A lane's line is known at this address, by this privilege.
    #[inline(always)]
    pub fn enter(&mut self, lane: usize, privilege: usize, line: u64, place: Place) {
        self.linear[lane] = Self::tag(line, privilege);
        self.places[lane] = place;
        self.forgotten = false;
    }

    /// Writes to a lane's line must be asked for, or may pass.
    pub fn set_writes(&mut self, lane: usize, writes: Writes) {
        self.places[lane] = Place::new(self.places[lane].host(), writes);
    }

    /// Forget linear addresses; lines and their order stay.
    pub fn forget_linear(&mut self) {
        if !self.forgotten {
            self.linear = [NOWHERE; LANES];
            self.forgotten = true;
        }
    }

    /// A line has left the cache.
    pub fn remove(&mut self, line: u64) {
        if let Some(lane) = self.sets.remove(line) {
            self.linear[lane] = NOWHERE;
        }
    }

    /// Forget those of one page.
    pub fn forget_page(&mut self, linear: u64) {
        if self.forgotten {
            return;
        }
        for tag in &mut self.linear {
            if *tag >> 12 == linear >> 12 {
                *tag = NOWHERE;
            }
        }
    }
}
