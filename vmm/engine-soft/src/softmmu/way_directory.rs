//! L1 way directory: linear and host addresses of all lines of each set of the modelled first level. Interpreter and translated code look
//! through a set here when the set's most recently used line is not the wanted line.

use nodescope_plugin_api::Permission;

use super::lru_sets::{DIRECTORY_WAYS, LruSets};

/// Directory of the ways of the modelled first-level data cache, by the way indices of [`LruSets`]. The directory and the guest's data
/// together do not fit in the host's first-level cache. The keys, which each look-up compares, are therefore separate from the entries, of
/// which a look-up reads one.
#[repr(C)]
pub struct WayDirectory {
    /// Physical lines and their order.
    pub sets: LruSets,
    /// Lowest bits of the line number of each way's linear address ([`WayDirectory::key`]), so that the keys of a set can be compared at a
    /// time.
    pub keys: Keys,
    /// Addresses of each way's line.
    pub entries: [WayEntry; DIRECTORY_WAYS],
    /// Lines that became modified since the last report to the model.
    pub modified: ModifiedLines,
    /// True if no entry has a valid tag.
    pub no_tags: bool,
}

/// Array of [`WayDirectory::keys`]. The keys of a set are in one line of the host.
#[repr(C, align(64))]
pub struct Keys(pub [u32; DIRECTORY_WAYS]);

/// Addresses of the line in one way. `read`, `write` and `host` are a copy of the [`super::TlbEntry`] that the set gets when the line
/// becomes the most recently used.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct WayEntry {
    /// Linear address of the line, as of the last access.
    pub read: u64,
    /// Linear address for writes: the line's address if it may be written, else a changed address ([`WritePermission::address`]).
    pub write: u64,
    /// Host address of the line.
    pub host: u64,
    /// Linear address of the line, plus one for the kernel ([`WayDirectory::tag`]); [`NO_TAG`] in an empty way.
    pub tag: u64,
}

impl WayEntry {
    const EMPTY: WayEntry = WayEntry {
        read: 0,
        write: 0,
        host: 0,
        tag: NO_TAG,
    };

    /// Makes the entry of a line at a linear address, for a privilege (0: user, 1: kernel). `host` is a multiple of a line.
    #[inline(always)]
    pub fn new(line: u64, privilege: usize, host: u64, writes: WritePermission) -> Self {
        debug_assert!(host.is_multiple_of(WayDirectory::LINE));
        WayEntry {
            read: line,
            write: writes.address(line),
            host,
            tag: WayDirectory::tag(line, privilege),
        }
    }

    /// Returns the permission to write the line.
    pub fn writes(&self) -> WritePermission {
        match (self.write ^ self.read) / WayDirectory::LINE {
            0 => WritePermission::Allowed,
            3 => WritePermission::Exclusive,
            _ => WritePermission::Denied,
        }
    }
}

/// Permission to write a line. It is encoded in an entry's address for writes: the line's address XOR the permission's number times the
/// bytes of a line. A changed address never hits an entry of its set, unless there is only one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WritePermission {
    /// Writes go ahead.
    Allowed = 0,
    /// Writes take the slow path, because the model or the page does not permit them.
    Denied = 1,
    /// Writes go ahead after the line is noted for the next report to the model ([`ModifiedLines`]).
    Exclusive = 3,
}

impl WritePermission {
    /// Returns the permission for a line, from the model's permission and from whether the page is writable.
    #[inline(always)]
    pub const fn of(held: Permission, writable: bool) -> Self {
        match held {
            Permission::ReadWrite if writable => WritePermission::Allowed,
            Permission::Exclusive if writable => WritePermission::Exclusive,
            _ => WritePermission::Denied,
        }
    }

    /// Returns the address for writes in the entry of a line at this address.
    #[inline(always)]
    pub fn address(self, line: u64) -> u64 {
        line ^ (self as u64 * WayDirectory::LINE)
    }
}

/// Lines that were written while the model had them as clean and held by only this cache, since the last report to the model.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ModifiedLines {
    /// Number of lines.
    pub count: u64,
    /// Physical addresses of the lines.
    pub lines: [u64; ModifiedLines::CAPACITY],
}

impl ModifiedLines {
    /// Maximum number of lines. When the list is full, a further write asks the model.
    pub const CAPACITY: usize = 64;
    const EMPTY: ModifiedLines = ModifiedLines {
        count: 0,
        lines: [0; ModifiedLines::CAPACITY],
    };

    /// Removes and returns all lines, for a report to the model before the next reference of any vCPU.
    #[inline(always)]
    pub fn drain(&mut self) -> &[u64] {
        let count = std::mem::take(&mut self.count) as usize;
        &self.lines[..count]
    }

    /// Returns whether one more line fits.
    #[inline]
    pub fn has_room(&self) -> bool {
        (self.count as usize) < Self::CAPACITY
    }

    /// Adds a line. Returns false, with nothing done, if the list is full.
    #[inline]
    pub fn push(&mut self, line: u64) -> bool {
        let Some(next) = self.lines.get_mut(self.count as usize) else {
            return false;
        };
        *next = line;
        self.count += 1;
        true
    }
}

/// Tag of an empty way: not the tag of any line.
pub const NO_TAG: u64 = 2;

impl Default for WayDirectory {
    fn default() -> Self {
        Self {
            sets: LruSets::default(),
            keys: Keys([0; DIRECTORY_WAYS]),
            entries: [WayEntry::EMPTY; DIRECTORY_WAYS],
            modified: ModifiedLines::EMPTY,
            no_tags: true,
        }
    }
}

impl WayDirectory {
    /// Bytes of a line; no other size is supported.
    pub const LINE: u64 = 64;

    /// Returns [`WayEntry::tag`] of a line at this address that a privilege (0: user, 1: kernel) has accessed.
    #[inline(always)]
    pub fn tag(line: u64, privilege: usize) -> u64 {
        line + privilege as u64
    }

    /// Returns the element of [`WayDirectory::keys`] for a line at this address.
    #[inline(always)]
    pub fn key(line: u64) -> u32 {
        (line / Self::LINE) as u32
    }

    /// Sets the entry of a way.
    #[inline(always)]
    pub fn set_entry(&mut self, way: usize, entry: WayEntry) {
        self.keys.0[way] = Self::key(entry.read);
        self.entries[way] = entry;
        self.no_tags = false;
    }

    /// Sets the permission to write a way's line.
    pub fn set_writes(&mut self, way: usize, writes: WritePermission) {
        let entry = &mut self.entries[way];
        entry.write = writes.address(entry.read);
    }

    /// Clears the tags of all ways. The sets keep their lines and LRU order.
    pub fn clear_tags(&mut self) {
        if !self.no_tags {
            for entry in &mut self.entries[..self.sets.used_ways()] {
                entry.tag = NO_TAG;
            }
            self.no_tags = true;
        }
    }

    /// Removes a line that has left the cache.
    pub fn remove(&mut self, line: u64) {
        if let Some(way) = self.sets.remove(line) {
            self.entries[way].tag = NO_TAG;
        }
    }

    /// Clears the tags of the lines of one page.
    pub fn clear_tags_of_page(&mut self, linear: u64) {
        if self.no_tags {
            return;
        }
        for entry in &mut self.entries[..self.sets.used_ways()] {
            if entry.tag >> 12 == linear >> 12 {
                entry.tag = NO_TAG;
            }
        }
    }
}
