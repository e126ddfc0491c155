//! Code whose linear address is mapped to other memory: blocks of the old memory must not run again.

mod machine;

use iced_x86::code_asm::*;
use machine::*;
use nodescope_engine::{Exit, Limit, Vcpu};

/// Linear address of the function, at the start of a page.
const FUNCTION: u64 = 0x7_0000;
/// Physical address of the memory to which a test maps a page later.
const OTHER: u64 = 0x8_0000;

/// Returns the address of a page's table entry (the machine maps the first 2 MiB by the table at 0x4000).
fn entry(linear: u64) -> u64 {
    0x4000 + (linear >> 12) * 8
}

/// Returns the function `mov eax, VALUE; ret`.
fn function(value: u8) -> [u8; 6] {
    [0xb8, value, 0, 0, 0, 0xc3]
}

/// Calls `target` a few times, maps `page` to [`OTHER`], flushes translations by `renew`, and calls `target` again. Returns the results of
/// the last call before and of the call after.
fn results(
    target: u64,
    page: u64,
    place: &[(u64, &[u8])],
    renew: impl Fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
) -> (u64, u64) {
    let mut m = Machine::new(|a| {
        let mut again = a.create_label();
        a.mov(rbx, target).unwrap();
        a.mov(ecx, 5).unwrap();
        a.set_label(&mut again).unwrap();
        a.call(rbx).unwrap();
        a.dec(ecx).unwrap();
        a.jne(again).unwrap();
        a.mov(esi, eax).unwrap();
        a.mov(qword_ptr(entry(page)), (OTHER | 7) as i32).unwrap();
        renew(a).unwrap();
        a.call(rbx).unwrap();
        a.mov(edi, eax).unwrap();
        a.hlt().unwrap();
    });
    for (at, bytes) in place {
        m = m.poke(*at, bytes);
    }
    m.vcpu.restore(&m.state);
    let exit = m.vcpu.run(&mut m.ports, Limit::instructions(1000)).unwrap();
    assert_eq!(exit, Exit::Halted);
    let state = m.vcpu.save();
    (state.general.gpr[RSI], state.general.gpr[RDI])
}

fn load_cr3(a: &mut CodeAssembler) -> Result<(), iced_x86::IcedError> {
    a.mov(rax, cr3)?;
    a.mov(cr3, rax)
}

#[test]
fn a_page_of_code_is_looked_up_again_after_invlpg() {
    let place: [(u64, &[u8]); 2] = [(FUNCTION, &function(1)), (OTHER, &function(2))];
    let renew = |a: &mut CodeAssembler| a.invlpg(byte_ptr(FUNCTION + 0x123));
    assert_eq!(results(FUNCTION, FUNCTION, &place, renew), (1, 2));
}

#[test]
fn a_page_of_code_is_looked_up_again_after_loading_cr3() {
    let place: [(u64, &[u8]); 2] = [(FUNCTION, &function(1)), (OTHER, &function(2))];
    assert_eq!(results(FUNCTION, FUNCTION, &place, load_cr3), (1, 2));
}

#[test]
fn an_instruction_across_pages_is_looked_up_again_when_its_second_page_changes() {
    let one = function(1);
    let (first, second) = one.split_at(1);
    let other = function(2);
    let next = FUNCTION + 0x1000;
    let place: [(u64, &[u8]); 3] = [(next - 1, first), (next, second), (OTHER, &other[1..])];
    let renew = |a: &mut CodeAssembler| a.invlpg(byte_ptr(next));
    assert_eq!(results(next - 1, next, &place, renew), (1, 2));
    assert_eq!(results(next - 1, next, &place, load_cr3), (1, 2));
}

#[test]
fn invlpg_of_another_page_leaves_code_as_it_is() {
    // The architecture lets a processor keep the old translation until INVLPG or a load of CR3. This processor keeps it, for blocks, too.
    let place: [(u64, &[u8]); 2] = [(FUNCTION, &function(1)), (OTHER, &function(2))];
    let renew = |a: &mut CodeAssembler| a.invlpg(byte_ptr(DATA));
    assert_eq!(results(FUNCTION, FUNCTION, &place, renew), (1, 1));
}

/// A page that was read is mapped to other memory without INVLPG, and then written. The write walks the page tables, since the page is not
/// known to be dirty. The whole read-modify-write instruction must use the result of the walk.
#[test]
fn a_read_modify_write_reads_where_it_writes() {
    let page = FUNCTION;
    let m = Machine::new(|a| {
        a.mov(eax, dword_ptr(page)).unwrap();
        a.mov(qword_ptr(entry(page)), (OTHER | 7) as i32).unwrap();
        a.add(dword_ptr(page), 1).unwrap();
        a.hlt().unwrap();
    });
    // Present, writable, user; not dirty.
    let m = m.poke(entry(page), &(page | 7).to_le_bytes());
    let m = m.poke(page, &5_u32.to_le_bytes());
    let m = m.poke(OTHER, &100_u32.to_le_bytes()).steps(3);
    assert_eq!(m.reg(RAX), 5);
    let [there, before] = [OTHER, page].map(|at| u32::from_le_bytes(m.peek(at)));
    assert_eq!((there, before), (101, 5));
}
