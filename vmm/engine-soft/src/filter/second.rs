//! Lines beyond the most recently used one of each set, by linear address.

use nodescope_plugin_api::{FilterGeometry, Permission};

use super::sets::{LANES, Sets};

/// Places for records, for each privilege: twice the lines of the usual first level, so that few share one.
const RECORDS: usize = 1024;
/// The place behind them, of a record that no line has.
const NO_RECORD: u16 = RECORDS as u16;
/// Not the first address of any line.
const NOWHERE: u64 = 1;
/// log2 of the size of a line: no other size is kept.
const LINE_SHIFT: u32 = 6;
/// Bytes of a line.
const LINE: u32 = 1 << LINE_SHIFT;

/// A line that is in a lane of [`Sets`], as its [`super::Entry`] will be when it is touched again. It lies where its linear
/// address says; whatever lay there is not found any more until the line is referred to again.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Record {
    /// First linear address, or an address that no line has.
    pub tag: u64,
    /// Host address.
    pub host: u64,
    /// Physical line.
    pub physical: u64,
    /// Offset in bytes of the lane's stamp from the first one.
    pub lane: u32,
    /// 0 where writes may pass; [`EXCLUSIVE`] where they may once the model is going to hear of it; else the size of a line. All but
    /// 0 make of an entry's address one that never hits, since it belongs to another slot.
    pub forbid: u32,
}

/// Three lines: see [`Record::forbid`].
pub const EXCLUSIVE: u32 = 3 * LINE;

impl Record {
    const EMPTY: Record = Record {
        tag: NOWHERE,
        host: 0,
        physical: 0,
        lane: 0,
        forbid: LINE,
    };

    /// log2 of its size, by which an address becomes an offset.
    pub const SHIFT: u32 = size_of::<Record>().trailing_zeros();
    /// From a linear address shifted right by `LINE_SHIFT - SHIFT` bits to the offset of its record.
    pub const MASK: u32 = ((RECORDS - 1) << Record::SHIFT) as u32;
}

/// What the model permits for the line in a lane, and where its records are.
#[derive(Clone, Copy, Debug)]
struct Lane {
    /// By privilege.
    records: [u16; 2],
    held: Permission,
}

const NO_LANE: Lane = Lane {
    records: [NO_RECORD; 2],
    held: Permission::None,
};

/// All lines of each set. Records and entries of [`super::DataFilter`] answer for a line as long as it has a lane.
#[repr(C)]
pub struct SecondLevel {
    /// Which lines, and their order.
    pub sets: Sets,
    /// By privilege: user, kernel.
    pub records: [[Record; RECORDS + 1]; 2],
    lanes: [Lane; LANES],
    /// Lines that became modified since the model was last told.
    pub modified: Modified,
    /// There are no records.
    forgotten: bool,
}

impl Default for SecondLevel {
    fn default() -> Self {
        Self {
            sets: Sets::default(),
            records: [[Record::EMPTY; RECORDS + 1]; 2],
            lanes: [NO_LANE; LANES],
            modified: Modified::EMPTY,
            forgotten: true,
        }
    }
}

impl SecondLevel {
    /// Bytes from the records of user to those of the kernel.
    pub const RECORDS_OF_PRIVILEGE: usize = size_of::<[Record; RECORDS + 1]>();

    /// Start empty; see [`Sets::shape`].
    pub fn shape(&mut self, geometry: Option<FilterGeometry>, slots: u8, ways: u8) {
        self.sets.shape(geometry, slots, ways);
        self.forget_linear();
        self.lanes = [NO_LANE; LANES];
    }

    #[inline(always)]
    fn place(linear: u64) -> usize {
        (linear >> LINE_SHIFT) as usize % RECORDS
    }

    /// Record of the line at a linear address.
    #[inline(always)]
    pub fn find(&mut self, privilege: usize, tag: u64) -> Option<&mut Record> {
        let record = &mut self.records[privilege][Self::place(tag)];
        (record.tag == tag).then_some(record)
    }

    /// A line is in this lane, `new`: for the first time; it was touched at this linear address by this privilege, whose page allows
    /// writes or not. The model permits `held`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub fn enter(
        &mut self,
        lane: usize,
        new: bool,
        privilege: usize,
        tag: u64,
        host: u64,
        writable: bool,
        held: Permission,
    ) {
        let lane = lane % LANES;
        let place = Self::place(tag);
        let known = &mut self.lanes[lane];
        known.held = held;
        let before = std::mem::replace(&mut known.records[privilege], place as u16);
        self.records[privilege][usize::from(before)].tag = NOWHERE;
        let other = privilege ^ 1;
        let elsewhere = usize::from(known.records[other]);
        if new {
            known.records[other] = NO_RECORD;
            self.records[other][elsewhere].tag = NOWHERE;
        } else if held != Permission::ReadWrite {
            self.records[other][elsewhere].forbid = LINE;
        }
        self.records[privilege][place] = Record {
            tag,
            host,
            physical: self.sets.lines[lane],
            lane: (lane * size_of::<u64>()) as u32,
            forbid: match held {
                Permission::ReadWrite if writable => 0,
                Permission::Exclusive if writable => EXCLUSIVE,
                _ => LINE,
            },
        };
        self.forgotten = false;
    }

    /// What the model permits for the line in a lane, once it has heard of what the filter let pass.
    #[inline(always)]
    pub fn held(&self, lane: usize) -> Permission {
        self.lanes[lane % LANES].held
    }

    fn forget_records(&mut self, lane: usize) {
        for privilege in [0, 1] {
            let place = std::mem::replace(&mut self.lanes[lane].records[privilege], NO_RECORD);
            self.records[privilege][usize::from(place)].tag = NOWHERE;
        }
    }

    /// A line has left the cache.
    pub fn remove(&mut self, line: u64) {
        if let Some(lane) = self.sets.remove(line) {
            self.forget_records(lane);
        }
    }

    /// A line may be read only.
    pub fn restrict(&mut self, line: u64) {
        let Some(lane) = self.sets.find(line) else {
            return;
        };
        let Lane { records, held } = &mut self.lanes[lane];
        *held = (*held).min(Permission::Read);
        for (of_privilege, place) in self.records.iter_mut().zip(records) {
            of_privilege[usize::from(*place)].forbid = LINE;
        }
    }

    /// Forget linear addresses; lines and their order stay.
    pub fn forget_linear(&mut self) {
        if !self.forgotten {
            for lane in 0..LANES {
                self.forget_records(lane);
            }
            self.forgotten = true;
        }
    }

    /// Forget those of one page.
    pub fn forget_page(&mut self, linear: u64) {
        if self.forgotten {
            return;
        }
        for offset in (0..0x1000).step_by(LINE as usize) {
            let tag = linear & !0xfff | offset;
            for privilege in [0, 1] {
                if let Some(record) = self.find(privilege, tag) {
                    record.tag = NOWHERE;
                }
            }
        }
    }

    /// Pages may have become ones that must not be written.
    pub fn forbid_writes(&mut self) {
        for record in self.records.as_flattened_mut() {
            record.forbid = LINE;
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
