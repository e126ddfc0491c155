//! Large pages with data and code: an entry of the TLB for a page of 2 MiB must not hide writes to code in that page.

mod machine;

use iced_x86::code_asm::*;
use machine::*;
use nodescope_engine::{Exit, Limit, Vcpu};
use nodescope_engine_soft::Translate;
use nodescope_oracle::bare;
use nodescope_x86::bits::cr4;

/// Address of a large page, which the machine maps to itself.
const LARGE: u64 = 4 << 20;
/// A function in the large page: `mov eax, 1; ret`.
const FUNCTION: u64 = LARGE + 0x3000;
const RETURNS_ONE: [u8; 6] = [0xb8, 1, 0, 0, 0, 0xc3];

/// Runs a program that changes the function's constant. Returns the function's results before and after the change.
fn results(program: impl FnOnce(&mut CodeAssembler)) -> (u64, u64) {
    run(Machine::new(program).poke(FUNCTION, &RETURNS_ONE))
}

/// Runs the machine to HLT; returns RSI and RDI.
fn run(mut m: Machine) -> (u64, u64) {
    m.vcpu.restore(&m.state);
    let exit = m.vcpu.run(&mut m.ports, Limit::instructions(1000)).unwrap();
    assert_eq!(exit, Exit::Halted);
    let gpr = m.vcpu.save().general.gpr;
    (gpr[RSI], gpr[RDI])
}

fn call(a: &mut CodeAssembler) {
    a.mov(rbx, FUNCTION).unwrap();
    a.call(rbx).unwrap();
}

fn change_and_call_again(a: &mut CodeAssembler) {
    a.mov(esi, eax).unwrap();
    a.mov(byte_ptr(rbx + 1), 2).unwrap();
    call(a);
    a.mov(edi, eax).unwrap();
    a.hlt().unwrap();
}

#[test]
fn a_write_to_code_is_seen_where_the_large_page_was_written_before_it_had_code() {
    let found = results(|a| {
        // From here on the TLB permits writes to the large page's other 4 KiB pages.
        a.mov(qword_ptr((LARGE + 0x5000) as u32), 7).unwrap();
        a.mov(qword_ptr((LARGE + 0x6000) as u32), 7).unwrap();
        call(a);
        change_and_call_again(a);
    });
    assert_eq!(found, (1, 2));
}

#[test]
fn a_write_to_code_is_seen_where_the_large_page_was_written_after_it_had_code() {
    let found = results(|a| {
        call(a);
        a.mov(qword_ptr((LARGE + 0x5000) as u32), 7).unwrap();
        a.mov(qword_ptr((LARGE + 0x6000) as u32), 7).unwrap();
        change_and_call_again(a);
    });
    assert_eq!(found, (1, 2));
}

/// A write to code makes the engine forget the code. The bytes are then data, until they are executed again.
#[test]
fn a_write_to_code_is_seen_after_the_large_page_has_lost_its_code_and_got_it_back() {
    let found = results(|a| {
        call(a);
        a.mov(byte_ptr(rbx + 1), 3).unwrap();
        a.mov(qword_ptr((LARGE + 0x5000) as u32), 7).unwrap();
        call(a);
        change_and_call_again(a);
    });
    assert_eq!(found, (3, 2));
}

/// Reads at the same offset in two large pages, by turns, are told apart.
#[test]
fn large_pages_that_share_a_slot_are_told_apart() {
    let other: u64 = 2 << 20;
    let m = Machine::new(|a| {
        for _ in 0..2 {
            a.add(rsi, qword_ptr(rbx)).unwrap();
            a.add(rdi, qword_ptr(rcx)).unwrap();
        }
        a.hlt().unwrap();
    })
    .set(RBX, LARGE + 0x8000)
    // Both pages have one slot: their numbers differ by 512. The second gigabyte has a directory of its own.
    .set(RCX, (1 << 30) + LARGE + 0x8000)
    .poke(0x2008, &(0x5000_u64 | 7).to_le_bytes())
    .poke(0x5000 + (LARGE >> 21) * 8, &(other | 0x87).to_le_bytes())
    .poke(LARGE + 0x8000, &1_u64.to_le_bytes())
    .poke(other + 0x8000, &10_u64.to_le_bytes());
    assert_eq!(run(m), (2, 20));
}

/// The TLB has several parts of a large page when the page is mapped to other memory.
#[test]
fn loading_cr3_renews_all_parts_of_a_large_page() {
    let other = 2 * LARGE;
    let parts = [0x5000, 0x8000, 0x1f_f000];
    let read = |a: &mut CodeAssembler| {
        for part in parts {
            a.add(rdi, qword_ptr((LARGE + part) as u32)).unwrap();
        }
    };
    let mut m = Machine::new(|a| {
        read(a);
        a.mov(rsi, rdi).unwrap();
        a.mov(
            qword_ptr((0x3000 + (LARGE >> 21) * 8) as u32),
            (other | 0x87) as i32,
        )
        .unwrap();
        a.mov(rax, cr3).unwrap();
        a.mov(cr3, rax).unwrap();
        a.xor(edi, edi).unwrap();
        read(a);
        a.hlt().unwrap();
    });
    for (part, n) in parts.into_iter().zip(1_u64..) {
        m = m
            .poke(LARGE + part, &n.to_le_bytes())
            .poke(other + part, &(10 * n).to_le_bytes());
    }
    assert_eq!(run(m), (6, 60));
}

/// The guest removes a large page from its tables without INVLPG. Until INVLPG a processor may continue to write to the page (SDM vol. 3A
/// §4.10.3). Interpreter and translated code do the same, although only the softmmu TLB still has the page.
#[test]
fn a_large_page_in_the_tlb_is_written_to_without_a_page_walk() {
    let entry = 0x3000 + (LARGE >> 21) * 8;
    let code: u64 = LARGE + (2 << 20);
    // A fetch from the second page replaces the large page in the page-walk cache. The softmmu TLB keeps the large page: it drops
    // write permissions only when a page has code for the first time.
    let gigabyte = 1 << 30;
    let (first, second) = (gigabyte + code, gigabyte + LARGE);
    type Write = fn(&mut CodeAssembler);
    let writes: [Write; 3] = [
        |a| a.add(qword_ptr(rsi), 5).unwrap(),
        |a| a.movups(xmmword_ptr(rsi), xmm0).unwrap(),
        |a| {
            a.fild(qword_ptr(DATA as u32)).unwrap();
            a.fistp(qword_ptr(rsi)).unwrap();
        },
    ];
    for write in writes {
        for translate in [Translate::After(0), Translate::Never] {
            let mut m = Machine::new(|a| {
                a.mov(eax, 5).unwrap();
                a.movd(xmm0, eax).unwrap();
                a.fninit().unwrap();
                a.mov(rbx, first).unwrap();
                let mut again = a.create_label();
                a.set_label(&mut again).unwrap();
                a.mov(qword_ptr((LARGE + 0x5000) as u32), 7).unwrap();
                a.call(rbx).unwrap();
                a.mov(qword_ptr(entry as u32), rcx).unwrap();
                write(a);
                a.add(rsi, 0x1000).unwrap();
                a.mov(rbx, second).unwrap();
                a.xor(ecx, ecx).unwrap();
                a.dec(edx).unwrap();
                a.jnz(again).unwrap();
                a.hlt().unwrap();
            })
            // Present, writable, user, accessed, dirty, large; then the entry is removed.
            .set(RCX, LARGE | 0xe7)
            .set(RDX, 2)
            .set(RSI, LARGE + 0x6000)
            .poke(0x2008, &(0x5000_u64 | 7).to_le_bytes())
            .poke(0x5000 + (LARGE >> 21) * 8, &(code | 0x87).to_le_bytes())
            .poke(0x5000 + (code >> 21) * 8, &(code | 0x87).to_le_bytes())
            .poke(code, &RETURNS_ONE)
            .poke(DATA, &5_u64.to_le_bytes());
            m.state.control.cr4 |= cr4::OSFXSR;
            m.vcpu = bare::vcpu(&m.ram, translate);
            m.vcpu.restore(&m.state);
            let exit = m.vcpu.run(&mut m.ports, Limit::instructions(1000)).unwrap();
            assert_eq!(exit, Exit::Halted, "{translate:?}");
            for at in [LARGE + 0x6000, LARGE + 0x7000] {
                assert_eq!(u64::from_le_bytes(m.peek(at)), 5, "{translate:?} {at:#x}");
            }
        }
    }
}
