use nodescope_plugin_api::{L0Geometry, L0Update, Outcome, Permission, Privilege, Side};

use super::{Baseline, DataTlb, PageMapping};

/// An entry of a page must not serve a line that was not reported to the model, whatever the line's size.
#[test]
fn pages_do_not_answer_for_lines_as_large_as_pages() {
    let mut tlb = DataTlb::default();
    for line_shift in [6, 12] {
        tlb.configure(Some(L0Geometry {
            line_shift,
            data_slots: 0,
            instruction_slots: 0,
            data_ways: 1,
            instruction_ways: 1,
            page_sizes: false,
        }));
        let linear = 0x5000;
        let at = PageMapping {
            linear,
            physical: 0x9000,
            host: 0x10_0000,
            writable: true,
        };
        tlb.enter_page(&at, false);
        assert!(tlb.find_page(linear, true).is_some());
        let entry = *tlb.entry(linear);
        assert_eq!(tlb.hit(entry.read, linear, 8), None, "{line_shift}");
        let outcome = Outcome::new(0, Permission::Read, None);
        tlb.fill_line(linear, 0x10_0000, 0x9000, &outcome, None, true);
        let entry = *tlb.entry(linear);
        assert_eq!(tlb.hit(entry.read, linear, 8), Some(0), "{line_shift}");
        assert_eq!(tlb.hit(entry.write, linear, 8), None, "{line_shift}");
    }
}

/// Returns a TLB of lines of 64 bytes in 64 sets of two.
fn two_way_tlb() -> DataTlb {
    two_way_tlb_of(6)
}

/// Returns a TLB of lines of 64 bytes in sets of two; `slots` is log2 of the number of sets.
fn two_way_tlb_of(slots: u8) -> DataTlb {
    let mut tlb = DataTlb::default();
    tlb.configure(Some(L0Geometry {
        line_shift: 6,
        data_slots: slots,
        instruction_slots: 6,
        data_ways: 2,
        instruction_ways: 2,
        page_sizes: false,
    }));
    tlb.set_privilege(Privilege::User);
    tlb
}

/// Fills in a line as after a model's answer, in place of `replaced`.
fn answer(tlb: &mut DataTlb, linear: u64, held: Permission, replaced: Option<u64>) {
    let outcome = Outcome::new(0, held, replaced);
    let placement = tlb.directory.sets.placement(Baseline, linear);
    let host = linear + (1 << 40);
    tlb.fill_line(linear, host, linear, &outcome, Some(placement), true);
}

fn reads(tlb: &DataTlb, linear: u64) -> bool {
    tlb.hit(tlb.entry(linear).read, linear, 8).is_some()
}

fn writes(tlb: &DataTlb, linear: u64) -> bool {
    tlb.hit(tlb.entry(linear).write, linear, 8).is_some()
}

/// A line that one privilege may access misses at the other privilege, as the most recent line of its set and as another line.
#[test]
fn lines_are_known_to_the_privilege_that_asked() {
    let mut tlb = two_way_tlb();
    let (line, next) = (0x5000, 0x6000);
    answer(&mut tlb, line, Permission::ReadWrite, None);
    assert!(reads(&tlb, line) && writes(&tlb, line));
    tlb.set_privilege(Privilege::Kernel);
    assert!(!reads(&tlb, line) && !writes(&tlb, line));
    assert_eq!(tlb.promote(line, 8, false), None);
    answer(&mut tlb, next, Permission::ReadWrite, None);
    assert!(reads(&tlb, next));
    tlb.set_privilege(Privilege::User);
    assert!(!reads(&tlb, next) && !reads(&tlb, line));
    assert_eq!(tlb.promote(next, 8, false), None);
    assert!(tlb.promote(line, 8, true).is_some());
    tlb.set_privilege(Privilege::Kernel);
    assert!(!reads(&tlb, line) && !reads(&tlb, next));
    // After a reference at the other privilege, only that privilege may access the line.
    answer(&mut tlb, line, Permission::ReadWrite, None);
    assert!(reads(&tlb, line));
    tlb.set_privilege(Privilege::User);
    assert_eq!(tlb.promote(line, 8, false), None);
}

/// A line that no other cache holds may be written once it is noted for the next report to the model.
#[test]
fn the_first_write_to_an_exclusive_line_is_noted() {
    let mut tlb = two_way_tlb();
    for (held, passes) in [
        (Permission::Read, false),
        (Permission::Exclusive, true),
        (Permission::ReadWrite, true),
    ] {
        let line = 0x5000 + ((held as u64) << 6);
        answer(&mut tlb, line, held, None);
        assert!(reads(&tlb, line));
        assert_eq!(writes(&tlb, line), held == Permission::ReadWrite);
        assert_eq!(tlb.promote(line, 8, true).is_some(), passes, "{held:?}");
        let noted: &[u64] = match held {
            Permission::Exclusive => &[line],
            _ => &[],
        };
        assert_eq!(tlb.directory.modified.drain(), noted, "{held:?}");
        assert_eq!(writes(&tlb, line), passes, "{held:?}");
    }
}

/// Updates reach the most recent line of a set and the others; the rest of the set stays.
#[test]
fn updates_lower_what_lines_permit() {
    for recent in [false, true] {
        for permission in [Permission::Read, Permission::None] {
            let mut tlb = two_way_tlb();
            let (line, other) = (0x5000, 0x6000);
            let order = if recent { [other, line] } else { [line, other] };
            for line in order {
                answer(&mut tlb, line, Permission::ReadWrite, None);
            }
            tlb.update(&L0Update {
                vcpu: 0,
                side: Side::Data,
                line,
                permission,
            });
            assert_eq!(reads(&tlb, line), recent && permission == Permission::Read);
            assert!(!writes(&tlb, line));
            assert_eq!(tlb.promote(line, 8, true), None);
            let held = tlb.promote(line, 8, false).is_some();
            assert_eq!(held, permission == Permission::Read);
            assert!(tlb.promote(other, 8, true).is_some());
        }
    }
}

/// The least recently used line is named as the line to replace.
#[test]
fn the_oldest_line_goes_first() {
    let mut tlb = two_way_tlb();
    let set = |n: u64| 0x5000 + n * 0x1000;
    let oldest = |tlb: &DataTlb, n| tlb.directory.sets.placement(Baseline, set(n)).oldest;
    assert_eq!(oldest(&tlb, 0), None);
    for n in [0, 1] {
        answer(&mut tlb, set(n), Permission::Read, None);
    }
    for (next, used, gone) in [(2, 0, 1), (3, 0, 2), (4, 3, 0), (5, 4, 3), (6, 5, 4)] {
        assert!(tlb.promote(set(used), 8, false).is_some());
        assert_eq!(oldest(&tlb, next), Some(set(gone)));
        answer(&mut tlb, set(next), Permission::Read, Some(set(gone)));
        assert_eq!(tlb.promote(set(gone), 8, false), None);
    }
    // A line that leaves makes room.
    tlb.directory.remove(set(5));
    assert_eq!(oldest(&tlb, 7), None);
    answer(&mut tlb, set(7), Permission::Read, None);
    assert_eq!(oldest(&tlb, 8), Some(set(6)));
}

/// Whatever the number of sets, a line that replaces another line is found, and the replaced line is not.
#[test]
fn lines_lie_where_they_are_looked_for() {
    for slots in 1..=6 {
        let mut tlb = two_way_tlb_of(slots);
        let step = 64 << slots;
        // Three lines of one set.
        for k in 0..64_u64 {
            let lines = [0, 1, 2].map(|n| 0x10_0000 + n * step + 64 * k);
            answer(&mut tlb, lines[0], Permission::Read, None);
            answer(&mut tlb, lines[1], Permission::Read, None);
            assert!(reads(&tlb, lines[1]), "{slots}: {k}");
            answer(&mut tlb, lines[2], Permission::Read, Some(lines[0]));
            assert!(reads(&tlb, lines[2]), "{slots}: {k}");
            assert!(!reads(&tlb, lines[1]) && !reads(&tlb, lines[0]));
            assert!(tlb.promote(lines[0], 8, false).is_none());
            assert!(tlb.promote(lines[1], 8, false).is_some());
            assert!(reads(&tlb, lines[1]) && !reads(&tlb, lines[2]));
            for line in lines {
                tlb.directory.remove(line);
            }
        }
    }
}

/// Ways keep nothing from one window to the next, whatever sets there were in between.
#[test]
fn another_geometry_starts_empty() {
    for between in [None, Some(1), Some(6)] {
        let mut tlb = two_way_tlb_of(6);
        for k in 0..64_u64 {
            answer(&mut tlb, 0x10_0000 + 64 * k, Permission::Read, None);
            answer(&mut tlb, 0x20_0000 + 64 * k, Permission::Read, None);
        }
        let geometry = |slots| L0Geometry {
            line_shift: 6,
            data_slots: slots,
            instruction_slots: 6,
            data_ways: 2,
            instruction_ways: 2,
            page_sizes: false,
        };
        tlb.configure(between.map(geometry));
        tlb.configure(Some(geometry(6)));
        for k in 0..64_u64 {
            for line in [0x10_0000 + 64 * k, 0x20_0000 + 64 * k] {
                assert_eq!(tlb.promote(line, 8, false), None, "{between:?} {k}");
            }
        }
    }
}

/// An entry of a large page serves all of its parts, until the entry is flushed as pages are.
#[test]
fn large_pages_answer_for_their_parts() {
    let part = PageMapping {
        linear: 0x40_5008,
        physical: 0x80_5008,
        host: 0x7000_0040_5008,
        writable: true,
    };
    let other = 0x5f_f123;
    for global in [false, true] {
        let mut tlb = DataTlb::default();
        tlb.enter_large_page(&part, global);
        let found = tlb.find_page(other, true).expect("a part of it");
        assert_eq!((found.linear, found.physical), (other, 0x9f_f123));
        assert_eq!((found.host, found.writable), (0x7000_005f_f123, true));
        // Before the large page, behind it, and 512 large pages later, which is the same slot.
        for elsewhere in [0x3f_ffff, 0x60_0000, other + (512 << 21)] {
            assert!(tlb.find_page(elsewhere, false).is_none(), "{elsewhere:#x}");
        }
        tlb.set_privilege(Privilege::User);
        assert!(tlb.find_page(other, false).is_none());
        tlb.set_privilege(Privilege::Kernel);

        // Without a model the part gets an entry as a small page, which is flushed with the large page.
        let hits = |tlb: &DataTlb, base: u64| tlb.hit(base, other, 1).is_some();
        assert!(!hits(&tlb, tlb.entry(other).write));
        assert!(tlb.refill_from_large_page(other, true).is_some());
        assert!(hits(&tlb, tlb.entry(other).write));
        tlb.revoke_writes();
        assert!(!hits(&tlb, tlb.entry(other).write));
        assert!(tlb.refill_from_large_page(other, true).is_none());
        assert!(
            !tlb.refill_from_large_page(other, false)
                .expect("reads")
                .writable
        );
        tlb.flush_non_global();
        assert_eq!(hits(&tlb, tlb.entry(other).read), global);
        assert_eq!(tlb.find_page(other - 0x1000, false).is_some(), global);
        tlb.flush();
        assert!(tlb.find_page(other, false).is_none());

        tlb.enter_large_page(&part, global);
        tlb.flush_page(other);
        assert!(tlb.find_page(part.linear, false).is_none());
    }
}

/// In a window, no entry of a read-only small page remains within a writable large page.
#[test]
fn parts_are_forgotten_when_a_large_page_may_be_written() {
    let mut tlb = two_way_tlb_of(6);
    let part = PageMapping {
        linear: 0x40_5008,
        physical: 0x80_5008,
        host: 0x7000_0040_5008,
        writable: false,
    };
    let beside = PageMapping {
        linear: 0x60_0008,
        ..part
    };
    tlb.enter_large_page(&part, false);
    tlb.enter_page(&part, false);
    tlb.enter_page(&beside, false);
    assert!(
        !tlb.find_page(part.linear, false)
            .expect("read-only")
            .writable
    );
    let writable = PageMapping {
        linear: part.linear + 0x3000,
        physical: part.physical + 0x3000,
        host: part.host + 0x3000,
        writable: true,
    };
    tlb.enter_large_page(&writable, false);
    assert!(tlb.find_page(part.linear, false).expect("a part").writable);
    assert!(
        !tlb.find_page(beside.linear, false)
            .expect("another")
            .writable
    );
}
