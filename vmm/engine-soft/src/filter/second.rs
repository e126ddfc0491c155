//! The lines of each set beyond the most recently used one, where translated code finds them.

use super::sets::{LANES, Sets};

/// What the filter holds beyond the most recently used line of each set: for each lane of [`Sets`] the linear address at
/// which its line was last touched, by privilege.
#[repr(C)]
pub struct SecondLevel {
    /// Which lines, and their order.
    pub sets: Sets,
    /// First linear address of a lane's line for user, for the kernel; [`NOWHERE`] where there is none.
    pub linear: [[u64; LANES]; 2],
    /// The rest.
    pub lanes: [Lane; LANES],
    /// Lines that became modified since the model was last told.
    pub modified: Modified,
    /// No lane has a linear address.
    pub forgotten: bool,
}

/// See [`SecondLevel`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Lane {
    /// Host address of the line.
    pub host: u64,
    /// By privilege: 0 where writes may pass; [`EXCLUSIVE`] where they may once the model is going to hear of it; else the size of
    /// a line. All but 0 make of an entry's address one that never hits, since it belongs to another slot.
    pub forbid: [u32; 2],
}

/// Three lines: see [`Lane::forbid`].
pub const EXCLUSIVE: u32 = 3 * 64;

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

/// Not the first address of any line.
pub const NOWHERE: u64 = 1;
const _: () = assert!(size_of::<Lane>() == 16);

impl Default for SecondLevel {
    fn default() -> Self {
        Self {
            sets: Sets::default(),
            linear: [[NOWHERE; LANES]; 2],
            lanes: [Lane {
                host: 0,
                forbid: [0; 2],
            }; LANES],
            modified: Modified::EMPTY,
            forgotten: true,
        }
    }
}

impl SecondLevel {
    /// Bytes of a line; no other size is kept.
    pub const LINE: u64 = 64;
    /// Most sets.
    pub const SETS: usize = 64;

    /// A line is in a lane for the first time: known by this privilege, at this linear address.
    #[inline(always)]
    pub fn enter(&mut self, lane: usize, privilege: usize, tag: u64, host: u64, forbid: u32) {
        self.linear[privilege][lane] = tag;
        self.linear[privilege ^ 1][lane] = NOWHERE;
        let kept = &mut self.lanes[lane];
        kept.host = host;
        kept.forbid[privilege] = forbid;
        kept.forbid[privilege ^ 1] = Self::LINE as u32;
        self.forgotten = false;
    }

    /// Forget linear addresses; lines and their order stay.
    pub fn forget_linear(&mut self) {
        if !self.forgotten {
            self.linear = [[NOWHERE; LANES]; 2];
            self.forgotten = true;
        }
    }

    /// A line has left the cache.
    pub fn remove(&mut self, line: u64) {
        if let Some(lane) = self.sets.remove(line) {
            self.linear[0][lane] = NOWHERE;
            self.linear[1][lane] = NOWHERE;
        }
    }

    /// Forget those of one page.
    pub fn forget_page(&mut self, linear: u64) {
        if self.forgotten {
            return;
        }
        for tag in self.linear.as_flattened_mut() {
            if *tag >> 12 == linear >> 12 {
                *tag = NOWHERE;
            }
        }
    }
}
