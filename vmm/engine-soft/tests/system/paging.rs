//! Page faults, accessed and dirty bits, and changes of translations.

use iced_x86::code_asm::*;
use nodescope_engine::{Exit, Vcpu};
use nodescope_x86::{Exception, Vector};

use crate::machine::*;
use crate::*;

/// Accesses a page at [`DATA`] whose page-table entry is `entry`, after `control` has changed the machine. Returns the page fault's error
/// code; None if the access succeeds.
fn page_fault(user: bool, entry: u64, control: impl Fn(&mut Machine), write: bool) -> Option<u32> {
    let code = |a: &mut CodeAssembler| {
        if write {
            a.mov(qword_ptr(rbx), rax).unwrap();
        } else {
            a.mov(rax, qword_ptr(rbx)).unwrap();
        }
    };
    let mut s = System::new(code).set(RBX, DATA + 8).page(DATA, entry);
    if user {
        s = s.user();
    } else {
        // The kernel's own page, so that SMEP and SMAP do not stop the fetch.
        s = s.page(CODE, CODE | 3);
    }
    control(&mut s.m);
    let mut m = s.m;
    m.vcpu.restore(&m.state);
    match m.vcpu.step_undelivered(&mut m.ports).unwrap() {
        nodescope_engine_soft::StepOutcome::Retired => None,
        nodescope_engine_soft::StepOutcome::Exception(Exception {
            vector: Vector::PageFault,
            error,
            address,
        }) => {
            assert_eq!(address, DATA + 8);
            Some(error)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn page_fault_error_codes() {
    const NX: u64 = 1 << 63;
    let plain = |_: &mut Machine| {};
    let no_wp = |m: &mut Machine| m.state.control.cr0 &= !(1 << 16);
    let smap = |m: &mut Machine| m.state.control.cr4 |= 1 << 21;
    let smap_ac = |m: &mut Machine| {
        m.state.control.cr4 |= 1 << 21;
        m.state.general.rflags |= 1 << 18;
    };
    // Error codes by privilege, access and page (SDM vol. 3A figure 4-12).
    for user in [false, true] {
        let u = if user { 4 } else { 0 };
        assert_eq!(page_fault(user, 0, plain, false), Some(u));
        assert_eq!(page_fault(user, 0, plain, true), Some(u | 2));
        assert_eq!(page_fault(user, DATA | 5, plain, true), Some(u | 3));
        assert_eq!(page_fault(user, DATA | 5, plain, false), None);
        assert_eq!(page_fault(user, DATA | NX | 7, plain, true), None);
        // The entry has a reserved bit.
        assert_eq!(
            page_fault(user, DATA | 1 << 50 | 7, plain, false),
            Some(u | 9)
        );
    }
    assert_eq!(page_fault(true, DATA | 3, plain, false), Some(5));
    assert_eq!(page_fault(true, DATA | 3, plain, true), Some(7));
    assert_eq!(page_fault(false, DATA | 1, no_wp, true), None);
    assert_eq!(page_fault(true, DATA | 5, no_wp, true), Some(7));
    assert_eq!(page_fault(false, DATA | 7, smap, false), Some(1));
    assert_eq!(page_fault(false, DATA | 7, smap, true), Some(3));
    assert_eq!(page_fault(false, DATA | 7, smap_ac, true), None);
    assert_eq!(page_fault(false, DATA | 3, smap, true), None);
}

#[test]
fn fetches_need_execute_permission() {
    let fault = |s: System| {
        let (_, e) = s.m.fault();
        assert_eq!((e.vector, e.address), (Vector::PageFault, CODE));
        e.error
    };
    let nop = |a: &mut CodeAssembler| a.nop().unwrap();
    assert_eq!(fault(System::new(nop).page(CODE, CODE | 1 << 63 | 7)), 0x11);
    assert_eq!(
        fault(System::new(nop).page(CODE, CODE | 1 << 63 | 7).user()),
        0x15
    );
    assert_eq!(fault(System::new(nop).page(CODE, CODE | 3).user()), 0x15);
    assert_eq!(fault(System::new(nop).page(CODE, 0)), 0x10);
    let mut smep = System::new(nop);
    smep.m.state.control.cr4 |= 1 << 20;
    assert_eq!(fault(smep), 0x11);
}

#[test]
fn accessed_and_dirty_bits_follow_the_accesses() {
    let mut s = System::new(|a| {
        a.mov(rax, qword_ptr(rbx)).unwrap();
        a.hlt().unwrap();
        a.mov(qword_ptr(rbx), rax).unwrap();
        a.hlt().unwrap();
    })
    .set(RBX, DATA);
    assert_eq!(s.entry(DATA) & 0x60, 0);
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.entry(DATA) & 0x60, 0x20);
    s.m.state.events = Default::default();
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.entry(DATA) & 0x60, 0x60);
    // Upper levels are marked as accessed.
    assert_eq!(s.get(0x1000) & 0x20, 0x20);
    assert_eq!(s.entry(DATA + 0x1000) & 0x60, 0);
}

#[test]
fn translations_are_renewed_by_invlpg_and_by_loading_cr3() {
    let other = DATA + 0x4000;
    for whole in [false, true] {
        let mut s = System::new(|a| {
            a.mov(rcx, qword_ptr(DATA)).unwrap();
            // Map the page to other memory.
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.mov(rdx, other | 7).unwrap();
            a.mov(qword_ptr(rbx), rdx).unwrap();
            if whole {
                a.mov(rax, cr3).unwrap();
                a.mov(cr3, rax).unwrap();
            } else {
                a.invlpg(byte_ptr(DATA)).unwrap();
            }
            a.mov(rdx, qword_ptr(DATA)).unwrap();
            a.hlt().unwrap();
        })
        .set(RBX, LEAVES + (DATA >> 12) * 8);
        s.put(DATA, 11);
        s.put(other, 22);
        assert_eq!(s.run(), Exit::Halted);
        assert_eq!((s.m.reg(RCX), s.m.reg(RDX)), (11, 22));
    }
}

#[test]
fn invlpg_renews_all_of_a_large_page() {
    const LARGE: u64 = 2 << 20;
    // The table whose entries from the second on are large pages.
    const TABLE: u64 = 0x3000;
    let (page, other) = (2 * LARGE, 3 * LARGE);
    let mut s = System::new(|a| {
        a.mov(rcx, qword_ptr(page + 0x5000)).unwrap();
        a.mov(rdx, other | 0x87).unwrap();
        a.mov(qword_ptr(rbx), rdx).unwrap();
        // Access another 4 KiB of the page.
        a.invlpg(byte_ptr(page + 0x1f_3000)).unwrap();
        a.mov(rdx, qword_ptr(page + 0x5000)).unwrap();
        a.hlt().unwrap();
    })
    .set(RBX, TABLE + page / LARGE * 8);
    s.put(page + 0x5000, 11);
    s.put(other + 0x5000, 22);
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!((s.m.reg(RCX), s.m.reg(RDX)), (11, 22));
}
