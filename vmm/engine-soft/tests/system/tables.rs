//! Descriptor tables, and the effect of the local APIC's state on CPUID.

use iced_x86::code_asm::*;
use nodescope_engine::Exit;

use crate::machine::*;
use crate::*;

/// Returns a system with a descriptor of 16 bytes at selector 0x40, which the code at CODE may load.
fn loading(code: impl FnOnce(&mut CodeAssembler), low: u64, high: u64) -> System {
    let mut s = System::new(|a| {
        code(a);
        a.hlt().unwrap();
    })
    .set(RAX, 0x40);
    s.m.state.segments.gdt.limit = 0x4f;
    s.put(GDT + 0x40, low);
    s.put(GDT + 0x48, high);
    s
}

#[test]
fn descriptors_of_tasks_and_local_tables_must_be_whole_and_canonical() {
    const TASK: u64 = 0x8900_0000_0067;
    const LOCAL_TABLE: u64 = 0x8200_0000_0067;
    type Load = fn(&mut CodeAssembler);
    let load_task: Load = |a| a.ltr(ax).unwrap();
    let load_table: Load = |a| a.lldt(ax).unwrap();
    for (load, low) in [(load_task, TASK), (load_table, LOCAL_TABLE)] {
        let mut s = loading(load, low, 0xffff_8000);
        assert_eq!(s.run(), Exit::Halted);
        let segments = &s.m.state.segments;
        let loaded = if low == TASK {
            segments.tr
        } else {
            segments.ldt
        };
        assert_eq!(
            (loaded.selector, loaded.base),
            (0x40, 0xffff_8000_0000_0000)
        );
        // A base that is not canonical, and an upper half with a type other than zero.
        for high in [0x0000_8000, 0x8000_0000, 0xffff_7fff, 1 << 40] {
            let mut s = loading(load, low, high);
            assert_eq!(s.handled(), 13, "{high:#x}");
            let (error, frame) = s.frame(true);
            assert_eq!((error, frame.rip), (Some(0x40), CODE));
            // The descriptor is not marked busy.
            assert_eq!(s.get(GDT + 0x40), low);
        }
        // The upper half lies beyond the table.
        let mut s = loading(load, low, 0);
        s.m.state.segments.gdt.limit = 0x47;
        assert_eq!(s.handled(), 13);
    }
    // A busy TSS, and a 16-bit TSS.
    for low in [TASK | 2 << 40, 0x8100_0000_0067] {
        let mut s = loading(load_task, low, 0);
        assert_eq!(s.handled(), 13);
        assert_eq!(s.frame(true).0, Some(0x40));
    }
}

#[test]
fn tables_are_at_canonical_addresses() {
    type Load = fn(&mut CodeAssembler);
    let global: Load = |a| a.lgdt(tbyte_ptr(rbx)).unwrap();
    let interrupts: Load = |a| a.lidt(tbyte_ptr(rbx)).unwrap();
    for load in [global, interrupts] {
        let mut s = System::new(load).set(RBX, DATA + 6);
        s.put(DATA + 8, 1 << 47);
        assert_eq!(s.handled(), 13);
        assert_eq!(s.frame(true).0, Some(0));
    }
}

#[test]
fn cpuid_announces_a_local_apic_as_long_as_it_is_enabled() {
    for (base, announced) in [
        (None, true),
        (Some(0xfee0_0800), true),
        (Some(0xfee0_0000), false),
    ] {
        let mut s = System::new(|a| {
            a.mov(eax, 1).unwrap();
            a.cpuid().unwrap();
            a.hlt().unwrap();
        });
        s.m.ports.apic_base = base;
        assert_eq!(s.run(), Exit::Halted);
        assert_eq!(s.m.reg(RDX) >> 9 & 1 != 0, announced, "{base:x?}");
    }
}
