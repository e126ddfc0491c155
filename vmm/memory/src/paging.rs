//! Translation of guest addresses by the guest's page tables, without executing in the guest.

/// P bit of a page-table entry: the entry is present.
const PRESENT: u64 = 1;
/// R/W bit of a page-table entry: writes are allowed.
const WRITABLE: u64 = 1 << 1;
/// U/S bit of a page-table entry: user code may access the page.
const USER: u64 = 1 << 2;
/// PS bit of an entry for 1 GiB or 2 MiB: the entry maps a large page.
const LARGE: u64 = 1 << 7;
/// Bits of the physical address in a page-table entry (SDM vol. 3A §4.5, 52 bits).
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Kind of an access, for the check of permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// True for an access from CPL 3.
    pub user: bool,
    /// True for a write. A write needs a writable page at every privilege level, as with CR0.WP set.
    pub write: bool,
}

/// Translates a linear address to a physical one with four-level page tables, without changing accessed or dirty bits. `read` returns eight
/// bytes of guest-physical memory, or `None` outside RAM. Returns `None` if the address is not canonical or not mapped, or if a page table
/// is outside RAM. The physical address itself may be outside RAM.
pub fn translate(read: impl Fn(u64) -> Option<u64>, cr3: u64, linear: u64) -> Option<u64> {
    translate_for(read, cr3, linear, Access::default())
}

/// Translates as [`translate`] does. Also returns `None` if the access is not permitted (SDM vol. 3A §4.6; SMAP is not checked).
pub fn translate_for(
    read: impl Fn(u64) -> Option<u64>,
    cr3: u64,
    linear: u64,
    access: Access,
) -> Option<u64> {
    if ((linear as i64) << 16 >> 16) as u64 != linear {
        return None;
    }
    let mut needed = PRESENT;
    if access.user {
        needed |= USER;
    }
    if access.write {
        needed |= WRITABLE;
    }
    let mut table = cr3 & ADDRESS;
    for shift in [39, 30, 21, 12] {
        let entry = read(table + 8 * (linear >> shift & 0x1ff))?;
        if entry & needed != needed {
            return None;
        }
        let large = entry & LARGE != 0 && (shift == 30 || shift == 21);
        if shift == 12 || large {
            let offset = (1 << shift) - 1;
            return Some(entry & ADDRESS & !offset | linear & offset);
        }
        table = entry & ADDRESS;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn tables(entries: &[(u64, u64)]) -> impl Fn(u64) -> Option<u64> {
        let entries: BTreeMap<u64, u64> = entries.iter().copied().collect();
        move |at| Some(entries.get(&at).copied().unwrap_or(0))
    }

    #[test]
    fn small_and_large_pages_are_found() {
        let read = tables(&[
            (0x1000, 0x2003),
            (0x2000, 0x3003),
            (0x3000, 0x4003),
            (0x3008, 0x8000_0000_0060_0083),
            (0x4008, 0x8000_0000_0000_5003),
            (0x2008, 0x4000_0083),
        ]);
        assert_eq!(translate(&read, 0x1000, 0x1234), Some(0x5234));
        assert_eq!(translate(&read, 0x1018, 0x20_1234), Some(0x60_1234));
        assert_eq!(translate(&read, 0x1000, 0x4123_4567), Some(0x4123_4567));
        assert_eq!(translate(&read, 0x1000, 0x2000), None);
        assert_eq!(translate(&read, 0x1000, 1 << 47), None);
    }

    #[test]
    fn permissions_of_every_level_count() {
        // The second-lowest level of the tables forbids writes to one page, and user accesses to another.
        let read = tables(&[
            (0x1000, 0x2007),
            (0x2000, 0x3007),
            (0x3000, 0x4005),
            (0x3008, 0x5003),
            (0x4008, 0x6007),
            (0x5008, 0x7007),
        ]);
        let at = |linear, user, write| {
            let access = Access { user, write };
            translate_for(&read, 0x1000, linear, access)
        };
        assert_eq!(at(0x1234, true, false), Some(0x6234));
        assert_eq!(at(0x1234, true, true), None);
        assert_eq!(at(0x1234, false, true), None);
        assert_eq!(at(0x20_1234, true, false), None);
        assert_eq!(at(0x20_1234, false, true), Some(0x7234));
    }

    #[test]
    fn a_table_that_refers_to_itself_ends() {
        let read = |_| Some(0x1003);
        assert_eq!(translate(read, 0x1000, 0x7fff_ffff_f123), Some(0x1123));
        assert_eq!(translate(|_| None, 0x1000, 0), None);
    }
}
