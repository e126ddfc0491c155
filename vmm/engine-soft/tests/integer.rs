//! Integer, control-transfer and string instructions whose definition is easy to get wrong. The expected values are the SDM's. The
//! differential test (`tests/oracle`) covers instructions in general.

mod machine;

use iced_x86::code_asm::*;
use machine::*;
use nodescope_engine::Vcpu;
use nodescope_engine_soft::StepOutcome;
use nodescope_x86::Vector;

const CF: u64 = 1;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 0x40;
const SF: u64 = 0x80;
const DF: u64 = 0x400;
const OF: u64 = 0x800;
const AC_AND_ID: u64 = 0x24_0000;

#[test]
fn narrow_writes_keep_and_32_bit_writes_clear_the_rest_of_the_register() {
    let m = Machine::new(|a| {
        a.mov(ah, 0x55).unwrap();
        a.mov(bx, 0x1234).unwrap();
        a.mov(ecx, -1).unwrap();
        a.cmove(edx, edi).unwrap();
    })
    .set(RAX, u64::MAX)
    .set(RBX, u64::MAX)
    .set(RCX, u64::MAX)
    .set(RDX, u64::MAX)
    .steps(4);
    assert_eq!(m.reg(RAX), 0xffff_ffff_ffff_55ff);
    assert_eq!(m.reg(RBX), 0xffff_ffff_ffff_1234);
    assert_eq!(m.reg(RCX), 0xffff_ffff);
    // The condition is false: the destination keeps its low half and loses the high one.
    assert_eq!(m.reg(RDX), 0xffff_ffff);
}

#[test]
fn push_and_pop_of_the_stack_pointer() {
    let m = Machine::new(|a| {
        a.push(rsp).unwrap();
        a.pop(rax).unwrap();
        a.push(rbx).unwrap();
        a.pop(rsp).unwrap();
    })
    .set(RBX, DATA)
    .steps(4);
    assert_eq!(m.reg(RAX), STACK);
    assert_eq!(m.reg(RSP), DATA);
}

#[test]
fn pop_to_memory_addresses_with_the_moved_stack_pointer() {
    let m = Machine::new(|a| a.pop(qword_ptr(rsp)).unwrap())
        .poke(STACK, &[7; 8])
        .steps(1);
    assert_eq!(m.peek::<8>(STACK + 8), [7; 8]);
    assert_eq!(m.reg(RSP), STACK + 8);
}

#[test]
fn pop_to_an_absent_page_changes_nothing() {
    let (m, e) = Machine::new(|a| a.pop(qword_ptr(rax)).unwrap())
        .set(RAX, ABSENT)
        .fault();
    assert_eq!(
        (e.vector, e.address, e.error),
        (Vector::PageFault, ABSENT, 2)
    );
    assert_eq!((m.reg(RSP), m.rip()), (STACK, CODE));
}

#[test]
fn call_that_cannot_push_stays() {
    let (m, e) = Machine::new(|a| a.call(CODE + 0x100).unwrap())
        .set(RSP, ABSENT + 8)
        .fault();
    assert_eq!((e.vector, e.address), (Vector::PageFault, ABSENT));
    assert_eq!((m.reg(RSP), m.rip()), (ABSENT + 8, CODE));
}

#[test]
fn call_and_return_with_release() {
    let m = Machine::new(|a| {
        let mut f = a.create_label();
        a.call(f).unwrap();
        a.nop().unwrap();
        a.set_label(&mut f).unwrap();
        a.ret_1(0x10).unwrap();
    })
    .steps(3);
    assert_eq!(m.rip(), CODE + 6);
    assert_eq!(m.reg(RSP), STACK + 0x10);
    assert_eq!(m.peek::<8>(STACK - 8), (CODE + 5).to_le_bytes());
}

#[test]
fn return_to_a_non_canonical_address_is_a_protection_fault() {
    for target in [1 << 47, 1 << 63, u64::MAX >> 1, !(1 << 47)] {
        // After the load the TLB has the stack's page, so that translated code carries out the return itself.
        let mut m = Machine::new(|a| {
            a.mov(rax, qword_ptr(rsp)).unwrap();
            a.ret().unwrap();
        })
        .poke(STACK, &u64::to_le_bytes(target));
        m.vcpu.restore(&m.state);
        let end = m.vcpu.run_undelivered(&mut m.ports, 2).unwrap();
        let StepOutcome::Exception(e) = end else {
            panic!("{target:x}: {end:?}");
        };
        m.state = m.vcpu.save();
        assert_eq!(e.vector, Vector::GeneralProtection, "{target:x}");
        assert_eq!((m.reg(RAX), m.reg(RSP)), (target, STACK), "{target:x}");
        assert_eq!(m.rip(), CODE + 4, "{target:x}");
    }
}

#[test]
fn enter_and_leave_nest() {
    let m = Machine::new(|a| {
        a.enter(0x20, 2).unwrap();
        a.mov(rax, rsp).unwrap();
        a.leave().unwrap();
    })
    .set(RBP, DATA + 0x100)
    .poke(DATA + 0xf8, &[9; 8])
    .steps(3);
    assert_eq!(m.reg(RAX), STACK - 8 - 16 - 0x20);
    assert_eq!(m.peek::<8>(STACK - 16), [9; 8]);
    assert_eq!(m.peek::<8>(STACK - 24), (STACK - 8).to_le_bytes());
    assert_eq!((m.reg(RSP), m.reg(RBP)), (STACK, DATA + 0x100));
}

#[test]
fn shifts_by_zero_keep_flags_and_still_clear_the_high_half() {
    let m = Machine::new(|a| a.shl(eax, cl).unwrap())
        .set(RAX, u64::MAX)
        .set(RCX, 32)
        .flags(0x8d5)
        .steps(1);
    assert_eq!((m.reg(RAX), m.status()), (0xffff_ffff, 0x8d5));
}

#[test]
fn rotates_touch_carry_and_overflow_only() {
    let m = Machine::new(|a| a.rol(rax, 1).unwrap())
        .set(RAX, 1 << 63)
        .flags(0xd4)
        .steps(1);
    // OF = MSB of the result xor CF.
    assert_eq!((m.reg(RAX), m.status()), (1, 0xd4 | CF | OF));
}

#[test]
fn rotate_through_carry_takes_the_guests_carry() {
    for (carry, expected) in [(0, 0x100), (1, 0x101)] {
        let m = Machine::new(|a| a.rcl(rax, 1).unwrap())
            .set(RAX, 0x80)
            .flags(carry)
            .steps(1);
        assert_eq!((m.reg(RAX), m.status() & CF), (expected, 0));
    }
}

#[test]
fn increments_keep_carry() {
    for carry in [0, CF] {
        let m = Machine::new(|a| a.inc(eax).unwrap())
            .set(RAX, 0xffff_ffff)
            .flags(carry)
            .steps(1);
        // Zero, AF, even parity.
        assert_eq!((m.reg(RAX), m.status()), (0, ZF | 0x14 | carry));
    }
}

#[test]
fn carry_chains() {
    let m = Machine::new(|a| {
        a.add(rax, rbx).unwrap();
        a.adc(rcx, rdx).unwrap();
        a.sub(rax, rbx).unwrap();
        a.sbb(rcx, rdx).unwrap();
    })
    .set(RAX, 5)
    .set(RBX, u64::MAX)
    .set(RCX, 7)
    .set(RDX, 1);
    let m = m.steps(4);
    assert_eq!((m.reg(RAX), m.reg(RCX)), (5, 7));
    let m = Machine::new(|a| {
        a.adcx(rax, rbx).unwrap();
        a.adox(rcx, rdx).unwrap();
    })
    .set(RAX, 1)
    .set(RBX, u64::MAX)
    .set(RCX, 1)
    .set(RDX, 1)
    .flags(OF | ZF)
    .steps(2);
    assert_eq!((m.reg(RAX), m.reg(RCX), m.status()), (0, 3, CF | ZF));
}

#[test]
fn division_errors() {
    let cases: [(&[u8], u64, u64, u64); 5] = [
        // div rcx by zero; quotient too large
        (&[0x48, 0xf7, 0xf1], 1, 0, 0),
        (&[0x48, 0xf7, 0xf1], 0, 5, 5),
        // idiv rcx, minimum / -1
        (&[0x48, 0xf7, 0xf9], 1 << 63, u64::MAX, u64::MAX),
        // idiv ecx, quotient 2^31
        (&[0xf7, 0xf9], 0, 1, 2),
        // idiv cl: 0x4000 / 0x7f = 129
        (&[0xf6, 0xf9], 0x4000, 0, 0x7f),
    ];
    for (code, low, high, divisor) in cases {
        let (m, e) = Machine::with_bytes(code)
            .set(RAX, low)
            .set(RDX, high)
            .set(RCX, divisor)
            .fault();
        assert_eq!(e.vector, Vector::DivideError, "{code:x?} {low:#x}");
        assert_eq!((m.reg(RAX), m.reg(RDX), m.rip()), (low, high, CODE));
    }
}

#[test]
fn division_of_double_width() {
    let m = Machine::new(|a| a.div(rcx).unwrap())
        .set(RDX, 4)
        .set(RAX, 3)
        .set(RCX, 5)
        .steps(1);
    let n = (4_u128 << 64) + 3;
    assert_eq!((m.reg(RAX), m.reg(RDX)), ((n / 5) as u64, (n % 5) as u64));
    let m = Machine::new(|a| a.idiv(rcx).unwrap())
        .set(RDX, (-2_i64) as u64)
        .set(RAX, 3)
        .set(RCX, 7)
        .steps(1);
    let n = (-2_i128 << 64) + 3;
    assert_eq!(
        (m.reg(RAX) as i64, m.reg(RDX) as i64),
        ((n / 7) as i64, (n % 7) as i64)
    );
    let m = Machine::new(|a| a.idiv(cl).unwrap())
        .set(RAX, 0xff81)
        .set(RCX, 2)
        .steps(1);
    // -127 / 2 = -63, remainder -1
    assert_eq!(m.reg(RAX), 0xffc1);
}

#[test]
fn multiplication_of_double_width() {
    let m = Machine::new(|a| {
        a.mul(rcx).unwrap();
        a.mov(rbx, rdx).unwrap();
        a.imul_3(rsi, rcx, -3).unwrap();
        a.imul(cl).unwrap();
    })
    .set(RAX, u64::MAX)
    .set(RCX, 3)
    .steps(4);
    assert_eq!(m.reg(RBX), 2);
    assert_eq!(m.reg(RSI) as i64, -9);
    // AL was 0xfd: -3 * 3 = -9 in AX; the rest of RAX stays.
    assert_eq!(m.reg(RAX), 0xffff_ffff_ffff_fff7);
    assert_eq!(m.status() & (CF | OF), 0);
}

#[test]
fn bit_strings_reach_beyond_the_operand() {
    let m = Machine::new(|a| {
        a.bts(qword_ptr(rdi), rsi).unwrap();
        a.bt(word_ptr(rdi), cx).unwrap();
    })
    .set(RDI, DATA + 64)
    .set(RSI, (-65_i64) as u64)
    .set(RCX, 0xffff)
    .steps(2);
    // Bit -65 is bit 63 of the quadword at -16; bit -1 of a word string is bit 15 of the word before.
    assert_eq!(m.peek::<8>(DATA + 48), (1_u64 << 63).to_le_bytes());
    assert_eq!(m.status() & CF, 0);
}

#[test]
fn scans_of_zero_keep_the_destination() {
    let m = Machine::new(|a| {
        a.bsf(eax, ecx).unwrap();
        a.tzcnt(edx, ecx).unwrap();
        a.lzcnt(bx, cx).unwrap();
    })
    .set(RAX, u64::MAX)
    .steps(3);
    assert_eq!((m.reg(RAX), m.reg(RDX), m.reg(RBX)), (u64::MAX, 32, 16));
    assert_eq!(m.status() & (CF | ZF), CF);
}

#[test]
fn compare_and_exchange_writes_only_what_changes() {
    let m = Machine::new(|a| a.cmpxchg(ebx, ecx).unwrap())
        .set(RAX, 0xffff_ffff_0000_0001)
        .set(RBX, 0xffff_ffff_0000_0001)
        .set(RCX, 9)
        .steps(1);
    assert_eq!((m.reg(RAX), m.reg(RBX)), (0xffff_ffff_0000_0001, 9));
    let m = Machine::new(|a| a.cmpxchg(ebx, ecx).unwrap())
        .set(RAX, 0xffff_ffff_0000_0001)
        .set(RBX, 0xffff_ffff_0000_0002)
        .steps(1);
    assert_eq!((m.reg(RAX), m.reg(RBX)), (2, 0xffff_ffff_0000_0002));
}

#[test]
fn compare_and_exchange_needs_write_permission_even_if_unequal() {
    let (m, e) = Machine::new(|a| a.lock().cmpxchg(dword_ptr(rdi), ecx).unwrap())
        .set(RDI, READ_ONLY)
        .set(RAX, 5)
        .fault();
    assert_eq!((e.vector, e.error), (Vector::PageFault, 3));
    assert_eq!((m.reg(RAX), m.status()), (5, 0));
}

#[test]
fn sixteen_byte_compare_and_exchange() {
    let m = Machine::new(|a| a.lock().cmpxchg16b(xmmword_ptr(rdi)).unwrap())
        .set(RDI, DATA)
        .set(RBX, 3)
        .set(RCX, 4)
        .steps(1);
    assert_eq!(m.peek::<8>(DATA), 3_u64.to_le_bytes());
    assert_eq!(m.peek::<8>(DATA + 8), 4_u64.to_le_bytes());
    assert_eq!(m.status(), ZF);
    let (_, e) = Machine::new(|a| a.lock().cmpxchg16b(xmmword_ptr(rdi)).unwrap())
        .set(RDI, DATA + 8)
        .fault();
    assert_eq!(e.vector, Vector::GeneralProtection);
}

#[test]
fn exchange_and_add_of_one_register_doubles_it() {
    let m = Machine::new(|a| a.xadd(rax, rax).unwrap())
        .set(RAX, 21)
        .steps(1);
    assert_eq!(m.reg(RAX), 42);
}

#[test]
fn multiply_without_flags_prefers_the_high_half() {
    let m = Machine::new(|a| {
        a.mulx(rax, rax, rcx).unwrap();
        a.mulx(rsi, rdi, rcx).unwrap();
    })
    .set(RDX, 1 << 63)
    .set(RCX, 6)
    .flags(0x8d5)
    .steps(2);
    assert_eq!((m.reg(RAX), m.reg(RSI), m.reg(RDI)), (3, 3, 0));
    assert_eq!(m.status(), 0x8d5);
}

#[test]
fn bit_field_extraction_at_the_edges() {
    for (control, expected) in [
        (0x0804, 0xcd),
        (0x40, 0),
        (0xff04, 0x0fff_ffff_ffff_ffcd),
        (0, 0),
    ] {
        let m = Machine::new(|a| a.bextr(rax, rbx, rcx).unwrap())
            .set(RBX, 0xffff_ffff_ffff_fcde)
            .set(RCX, control)
            .steps(1);
        assert_eq!(m.reg(RAX), expected, "{control:#x}");
    }
    let m = Machine::new(|a| a.bzhi(eax, ebx, ecx).unwrap())
        .set(RBX, u64::MAX)
        .set(RCX, 0x120)
        .steps(1);
    // AF and PF are undefined; the engine leaves them as the host does.
    let status = m.status() & !(AF | PF);
    assert_eq!((m.reg(RAX), status), (0xffff_ffff, CF | SF));
}

#[test]
fn crc32_of_the_check_string() {
    // CRC-32C of "123456789" is 0xe3069283.
    let m = Machine::new(|a| {
        a.mov(eax, -1).unwrap();
        a.crc32(rax, qword_ptr(rsi)).unwrap();
        a.crc32(eax, byte_ptr(rsi + 8)).unwrap();
        a.not(eax).unwrap();
    })
    .set(RSI, DATA)
    .poke(DATA, b"123456789")
    .steps(4);
    assert_eq!(m.reg(RAX), 0xe306_9283);
}

#[test]
fn table_look_up_adds_al_unsigned() {
    let m = Machine::new(|a| a.xlatb().unwrap())
        .set(RAX, 0xab_00ff)
        .set(RBX, DATA)
        .poke(DATA + 0xff, &[0x42])
        .steps(1);
    assert_eq!(m.reg(RAX), 0xab_0042);
}

#[test]
fn loops_and_count_jumps() {
    let m = Machine::new(|a| {
        let mut top = a.create_label();
        a.set_label(&mut top).unwrap();
        a.inc(rax).unwrap();
        a.loop_(top).unwrap();
        a.jrcxz(CODE + 0x40).unwrap();
    })
    .set(RCX, 5)
    .steps(11);
    assert_eq!((m.reg(RAX), m.reg(RCX), m.rip()), (5, 0, CODE + 0x40));
}

#[test]
fn flags_popped_at_user_privilege_keep_interrupts_and_iopl() {
    let mut m = Machine::new(|a| a.popfq().unwrap()).poke(STACK, &u64::MAX.to_le_bytes());
    m.state.segments.data[nodescope_x86::state::seg::CS].attributes |= 0x60;
    m.state.segments.data[nodescope_x86::state::seg::SS].attributes |= 0x60;
    let m = m.steps(1);
    // Status, TF, DF, NT, AC, ID; not IF, IOPL, VM, VIF, VIP, RF.
    assert_eq!(
        m.state.general.rflags,
        0x8d5 | 2 | 0x100 | DF | 0x4000 | AC_AND_ID
    );
    let m = Machine::new(|a| a.popfq().unwrap())
        .poke(STACK, &u64::MAX.to_le_bytes())
        .steps(1);
    assert_eq!(
        m.state.general.rflags,
        0x8d5 | 2 | 0x100 | 0x200 | DF | 0x3000 | 0x4000 | AC_AND_ID
    );
}

#[test]
fn repeated_copy_stops_at_the_faulting_element() {
    let (m, e) = Machine::new(|a| a.rep().movsd().unwrap())
        .set(RSI, DATA)
        .set(RDI, ABSENT - 10)
        .set(RCX, 8)
        .poke(DATA, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
        .fault();
    assert_eq!((e.vector, e.address), (Vector::PageFault, ABSENT));
    assert_eq!(
        (m.reg(RSI), m.reg(RDI), m.reg(RCX)),
        (DATA + 8, ABSENT - 2, 6)
    );
    assert_eq!(m.rip(), CODE);
    assert_eq!(m.peek::<10>(ABSENT - 10), [1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
}

#[test]
fn repeated_copy_onto_itself_repeats_the_pattern() {
    let m = Machine::new(|a| a.rep().movsb().unwrap())
        .set(RSI, DATA)
        .set(RDI, DATA + 3)
        .set(RCX, 8)
        .poke(DATA, &[1, 2, 3])
        .steps(1);
    assert_eq!(m.peek::<11>(DATA), [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2]);
    // A downward copy with overlap, as memmove makes it.
    let m = Machine::new(|a| a.rep().movsb().unwrap())
        .set(RSI, DATA + 1)
        .set(RDI, DATA)
        .set(RCX, 4)
        .poke(DATA, &[1, 2, 3, 4, 5])
        .steps(1);
    assert_eq!(m.peek::<5>(DATA), [2, 3, 4, 5, 5]);
}

#[test]
fn backward_copy() {
    let m = Machine::new(|a| a.rep().movsw().unwrap())
        .set(RSI, DATA + 4)
        .set(RDI, DATA + 6)
        .set(RCX, 3)
        .flags(DF)
        .poke(DATA, &[1, 1, 2, 2, 3, 3])
        .steps(1);
    assert_eq!(m.peek::<8>(DATA), [1, 1, 1, 1, 2, 2, 3, 3]);
    assert_eq!((m.reg(RSI), m.reg(RDI)), (DATA - 2, DATA));
}

#[test]
fn long_fills_retire_once() {
    // Eight-byte stores that straddle every page end.
    let m = Machine::new(|a| a.rep().stosq().unwrap())
        .set(RDI, 0x20_0003)
        .set(RAX, 0x0807_0605_0403_0201)
        .set(RCX, 10_000)
        .steps(1);
    assert_eq!((m.reg(RCX), m.reg(RDI)), (0, 0x20_0003 + 80_000));
    assert_eq!(m.rip(), CODE + 3);
    assert_eq!(m.vcpu.instructions(), 1);
    let mut bytes = vec![0; 80_002];
    assert!(m.ram.read(0x20_0002, &mut bytes));
    assert_eq!((bytes[0], bytes[80_001]), (0, 0));
    for (i, b) in bytes[1..80_001].iter().enumerate() {
        assert_eq!(*b, (i % 8) as u8 + 1, "{i}");
    }
}

#[test]
fn scan_and_compare_end_early() {
    let m = Machine::new(|a| a.repne().scasb().unwrap())
        .set(RDI, DATA)
        .set(RAX, b'd'.into())
        .set(RCX, 100)
        .poke(DATA, b"abcdef")
        .steps(1);
    assert_eq!(
        (m.reg(RDI), m.reg(RCX), m.status() & ZF),
        (DATA + 4, 96, ZF)
    );
    let m = Machine::new(|a| a.repe().cmpsb().unwrap())
        .set(RSI, DATA)
        .set(RDI, DATA + 16)
        .set(RCX, 6)
        .poke(DATA, b"abcxef")
        .poke(DATA + 16, b"abcdef")
        .steps(1);
    assert_eq!((m.reg(RCX), m.status() & (ZF | CF)), (2, 0));
    // A count of zero changes nothing, flags included.
    let m = Machine::new(|a| a.repe().cmpsb().unwrap())
        .flags(ZF | CF)
        .steps(1);
    assert_eq!(m.status(), ZF | CF);
}

#[test]
fn faulting_comparison_restores_flags_but_not_registers() {
    let (m, e) = Machine::new(|a| a.repne().scasw().unwrap())
        .set(RDI, ABSENT - 4)
        .set(RAX, 1)
        .set(RCX, 5)
        .flags(ZF | OF)
        .fault();
    assert_eq!((e.vector, e.address), (Vector::PageFault, ABSENT));
    assert_eq!((m.reg(RDI), m.reg(RCX)), (ABSENT, 3));
    assert_eq!(m.status(), ZF | OF);
}

#[test]
fn port_strings_move_one_element_a_turn() {
    let m = Machine::new(|a| {
        a.rep().outsw().unwrap();
        a.mov(ecx, 2).unwrap();
        a.rep().insb().unwrap();
    })
    .set(RSI, DATA)
    .set(RDI, DATA + 16)
    .set(RDX, 0x3f8)
    .set(RCX, 2)
    .poke(DATA, &[1, 2, 3, 4])
    .steps(5);
    assert_eq!(m.ports.written, [(0x3f8, vec![1, 2]), (0x3f8, vec![3, 4])]);
    assert_eq!(m.peek::<3>(DATA + 16), [1, 2, 0]);
    assert_eq!(m.vcpu.instructions(), 3);
}

#[test]
fn compatibility_mode_wraps_at_4_gib() {
    // push eax; pop ebx; loop to the beginning: the stack and LOOP's count use 32 bits.
    let m = Machine::with_bytes(&[0x50, 0x5b, 0xe2, 0xfc])
        .bits32()
        .set(RAX, 0x1234_5678)
        .set(RCX, 2)
        .steps(3);
    assert_eq!((m.reg(RBX), m.reg(RSP)), (0x1234_5678, STACK));
    assert_eq!((m.reg(RCX), m.rip()), (1, CODE));
    // 16-bit operand size: jmp rel16 cuts EIP.
    let m = Machine::with_bytes(&[0x66, 0xe9, 0x10, 0x00])
        .bits32()
        .steps(1);
    assert_eq!(m.rip(), (CODE + 4 + 0x10) & 0xffff);
}

#[test]
fn undefined_instruction() {
    let (m, e) = Machine::new(|a| a.ud2().unwrap()).fault();
    assert_eq!((e.vector, m.rip()), (Vector::InvalidOpcode, CODE));
}

#[test]
fn line_flushes_fault_as_loads() {
    let (_, e) = Machine::new(|a| a.clflush(byte_ptr(rdi)).unwrap())
        .set(RDI, ABSENT)
        .fault();
    assert_eq!(
        (e.vector, e.address, e.error),
        (Vector::PageFault, ABSENT, 0)
    );
}

/// Translated code does not store the flags of TEST, but rematerialises them.
#[test]
fn flags_that_are_made_again_reach_the_stack() {
    let mut m = Machine::new(|a| {
        a.stc().unwrap();
        a.test(al, 0x72).unwrap();
        a.pushfq().unwrap();
        a.pop(rbx).unwrap();
        a.hlt().unwrap();
    })
    .set(RAX, 0x72);
    m.vcpu.restore(&m.state);
    m.vcpu
        .run(&mut m.ports, nodescope_engine::Limit::instructions(100))
        .unwrap();
    assert!(m.vcpu.activity().entries > 0, "it was interpreted");
    assert_eq!(m.vcpu.save().general.gpr[RBX] & 0x8d5, 4);
}

/// The interpreter carries out a load while all upper halves are zero. Upper halves that are set later must survive another load that
/// misses the softmmu TLB and finds its page in the page-walk cache.
#[test]
fn upper_halves_outlive_loads_that_miss() {
    if !is_x86_feature_detected!("avx2") {
        nodescope_test_needs::skip(nodescope_test_needs::Need::Cpu, "the host has no AVX2");
        return;
    }
    // Two pages share an entry of the TLB. Another page is touched for the first time.
    let (page, same, other) = (0x20_0000, 0xa0_0000, 0x80_0000);
    let mut m = Machine::new(|a| {
        a.mov(rbx, qword_ptr(page)).unwrap();
        a.mov(rbx, qword_ptr(same)).unwrap();
        a.vpxor(ymm1, ymm1, ymm1).unwrap();
        a.mov(rbx, qword_ptr(other)).unwrap();
        a.vpcmpeqd(ymm1, ymm1, ymm1).unwrap();
        a.mov(rbx, qword_ptr(page)).unwrap();
        a.vpermq(ymm2, ymm1, 0).unwrap();
        a.hlt().unwrap();
    });
    m.state.control.cr4 |= 0x4_0600;
    m.state.control.xcr0 = 7;
    m.vcpu.restore(&m.state);
    let end = m.vcpu.run_undelivered(&mut m.ports, 8).unwrap();
    assert_eq!(end, StepOutcome::Halted);
    let state = m.vcpu.save();
    assert_eq!(m.vcpu.activity().misses, 4, "{:?}", m.vcpu.activity());
    for register in [1, 2] {
        assert_eq!(state.vector.0[register], [0xff; 32], "YMM{register}");
    }
}
