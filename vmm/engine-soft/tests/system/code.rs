//! Self-modifying code, and code whose page is mapped anew.

use iced_x86::code_asm::*;
use nodescope_engine::Exit;
use nodescope_oracle::bare::Bare;

use crate::machine::*;
use crate::*;

/// EAX of the magic CPUID (`vmm/hypercall`).
const HYPERCALL: u32 = 0x4e53_4350;

#[test]
fn code_that_changes_the_next_instruction_runs_the_new_one() {
    let mut s = System::new(|a| {
        a.nop().unwrap();
        a.mov(byte_ptr(CODE + 0x0a), 7).unwrap();
        a.mov(eax, 1).unwrap();
        a.hlt().unwrap();
    });
    // NOP, C6 04 25 disp32 imm8, then B8 imm32, whose immediate is at offset 10.
    assert_eq!(s.m.peek::<1>(CODE + 9), [0xb8]);
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.m.reg(RAX), 7);
}

#[test]
fn code_changed_on_another_page_and_through_another_address_is_decoded_again() {
    let function = CODE + 0x2000;
    let alias = DATA + 0x8000;
    let mut s = System::new(|a| {
        a.call(function).unwrap();
        a.mov(ebx, eax).unwrap();
        a.mov(byte_ptr(function + 1), 2).unwrap();
        a.call(function).unwrap();
        a.mov(ecx, eax).unwrap();
        a.mov(byte_ptr(alias + 1), 3).unwrap();
        a.call(function).unwrap();
        a.hlt().unwrap();
    })
    .page(alias, function | 7);
    // mov eax, 1; ret
    assert!(s.m.ram.write(function, &[0xb8, 1, 0, 0, 0, 0xc3]));
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!((s.m.reg(RBX), s.m.reg(RCX), s.m.reg(RAX)), (1, 2, 3));
}

#[test]
fn code_written_by_a_device_is_decoded_again() {
    let mut s = System::new(|a| {
        a.mov(eax, 1).unwrap();
        a.hlt().unwrap();
    });
    for value in [1, 9, 200] {
        s.m.state.general.rip = CODE;
        s.m.state.events = Default::default();
        assert!(s.m.ram.write(CODE + 1, &[value]));
        assert_eq!(s.run(), Exit::Halted);
        assert_eq!(s.m.reg(RAX), u64::from(value));
    }
}

#[test]
fn code_written_by_a_hypercall_is_decoded_again() {
    let function = CODE + 0x2000;
    let mut s = System::new(|a| {
        a.call(function).unwrap();
        a.mov(r12d, eax).unwrap();
        a.mov(eax, HYPERCALL).unwrap();
        a.mov(ecx, Bare::STORE).unwrap();
        a.mov(rsi, function + 1).unwrap();
        a.mov(edi, 2).unwrap();
        a.cpuid().unwrap();
        a.call(function).unwrap();
        a.hlt().unwrap();
    });
    // mov eax, 1; ret
    assert!(s.m.ram.write(function, &[0xb8, 1, 0, 0, 0, 0xc3]));
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!((s.m.reg(12), s.m.reg(RAX)), (1, 2));
}

#[test]
fn an_instruction_across_pages_faults_on_the_second_and_runs_once_it_is_there() {
    let place = CODE + 0x1ffd;
    let code = [0xb8, 1, 2, 3, 4, 0xf4];
    let mut s = System::new(|a| a.nop().unwrap()).page(CODE + 0x2000, 0);
    assert!(s.m.ram.write(place, &code));
    s.m.state.general.rip = place;
    assert_eq!(s.handled(), 14);
    assert_eq!(s.m.state.control.cr2, CODE + 0x2000);
    let (error, frame) = s.frame(true);
    assert_eq!((error, frame.rip), (Some(0x10), place));
    // The handler maps the page. The page's absence must not have been cached.
    let mut s = s.page(CODE + 0x2000, (CODE + 0x2000) | 7);
    s.m.state.general.rip = place;
    s.m.state.events = Default::default();
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.m.reg(RAX), 0x0403_0201);
    // A change of the instruction's part on the second page is seen, too.
    assert!(s.m.ram.write(CODE + 0x2001, &[5]));
    s.m.state.general.rip = place;
    s.m.state.events = Default::default();
    assert_eq!(s.run(), Exit::Halted);
    assert_eq!(s.m.reg(RAX), 0x0503_0201);
}
