//! Instructions that few programs use: loads of far pointers, and instructions that exist only in 16- and 32-bit code. The expected values
//! are the SDM's.

mod machine;

use machine::*;
use nodescope_oracle::bare;
use nodescope_x86::state::{InterruptShadow, seg};
use nodescope_x86::{VcpuState, Vector};

const CF: u64 = 1;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 0x40;
const SF: u64 = 0x80;
const OF: u64 = 0x800;

/// Returns a machine that runs these bytes as 32-bit code.
fn compatible(bytes: &[u8]) -> Machine {
    Machine::with_bytes(bytes).bits32()
}

#[test]
fn decimal_adjustment_of_sums_and_differences() {
    for (bytes, ax, flags, expected, status) in [
        // AAA: adjusts a digit above 9, adjusts for AF, and leaves a digit unchanged.
        (&[0x37][..], 0x010b, 0, 0x0201, AF | CF),
        (&[0x37], 0x0102, AF, 0x0208, AF | CF),
        (&[0x37], 0x0135, CF, 0x0105, PF),
        // AAS.
        (&[0x3f], 0x02fe, AF, 0x0108, AF | CF),
        (&[0x3f], 0x0203, 0, 0x0203, PF),
        // DAA: 79 + 35, as in the SDM's example.
        (&[0x27], 0x00ae, AF | SF, 0x0014, AF | CF | PF),
        (&[0x27], 0x002e, 0, 0x0034, AF),
        // DAS: 35 - 47.
        (&[0x2f], 0x00ee, AF | CF | SF, 0x0088, AF | CF | SF | PF),
        // AAM and AAD, with base ten and with other bases.
        (&[0xd4, 10], 99, CF, 0x0909, PF),
        (&[0xd4, 16], 0x5a, 0, 0x050a, PF),
        (&[0xd5, 10], 0x0909, 0, 99, PF),
        (&[0xd5, 7], 0x0300, AF, 21, 0),
        // SALC touches no flag.
        (&[0xd6], 0x1234, CF | OF, 0x12ff, CF | OF),
        (&[0xd6], 0x1234, ZF, 0x1200, ZF),
    ] {
        let m = compatible(bytes).set(RAX, 0xabcd_0000 | ax).flags(flags);
        let m = m.steps(1);
        assert_eq!(m.reg(RAX), 0xabcd_0000 | expected, "{bytes:02x?} {ax:#x}");
        assert_eq!(m.status(), status, "{bytes:02x?} {ax:#x}");
    }
    let (_, e) = compatible(&[0xd4, 0]).fault();
    assert_eq!(e.vector, Vector::DivideError);
}

#[test]
fn bound_compares_signed_numbers() {
    // bound eax, [ebx]; bound ax, [ebx]
    let words = [-5_i32, 7].map(i32::to_le_bytes).concat();
    let halves = [-5_i16, 7].map(i16::to_le_bytes).concat();
    for (bytes, bounds) in [(&[0x62, 0x03][..], words), (&[0x66, 0x62, 0x03], halves)] {
        let case = |index: i32| {
            let m = compatible(bytes).set(RBX, DATA).poke(DATA, &bounds);
            m.set(RAX, u64::from(index as u32))
        };
        for index in [-5, 0, 7] {
            case(index).steps(1);
        }
        for index in [-6, 8] {
            assert_eq!(case(index).fault().1.vector, Vector::BoundRange);
        }
    }
}

#[test]
fn arpl_raises_the_requested_privilege_level() {
    // arpl [ebx], cx; for a register: arpl bx, cx
    let m = compatible(&[0x63, 0x0b, 0x63, 0xcb])
        .set(RBX, DATA)
        .set(RCX, 2)
        .poke(DATA, &0x1235_u16.to_le_bytes())
        .steps(1);
    assert_eq!(u16::from_le_bytes(m.peek(DATA)), 0x1236);
    assert_eq!(m.status() & ZF, ZF);
    let m = m.set(RBX, 0xffff_0033).steps(1);
    assert_eq!(m.reg(RBX), 0xffff_0033);
    assert_eq!(m.status() & ZF, 0);
}

#[test]
fn far_pointers_load_a_segment_and_a_register() {
    const GDT: u64 = 0x7000;
    let machine = |bytes: &[u8]| {
        let mut m = Machine::with_bytes(bytes)
            .set(RBX, DATA)
            .poke(GDT + 0x18, &0x00cf_9300_1000_ffff_u64.to_le_bytes())
            .poke(DATA, &0x1122_3344_5566_7788_u64.to_le_bytes())
            .poke(DATA + 8, &0x18_u16.to_le_bytes());
        m.state.segments.gdt.base = GDT;
        m.state.segments.gdt.limit = 0x1f;
        m
    };
    // lss, lfs, lgs rax, [rbx]
    for (opcode, segment) in [(0xb2, seg::SS), (0xb4, seg::FS), (0xb5, seg::GS)] {
        let m = machine(&[0x48, 0x0f, opcode, 0x03]).steps(1);
        assert_eq!(m.reg(RAX), 0x1122_3344_5566_7788);
        let loaded = m.state.segments.data[segment];
        assert_eq!((loaded.selector, loaded.base), (0x18, 0x1000));
        assert_eq!(m.state.events.shadow, InterruptShadow::None);
    }
    // A selector beyond the table faults, and nothing is loaded.
    let (m, e) = machine(&[0x48, 0x0f, 0xb4, 0x03])
        .poke(DATA + 8, &0x23_u16.to_le_bytes())
        .fault();
    assert_eq!((e.vector, e.error), (Vector::GeneralProtection, 0x20));
    assert_eq!(
        (m.reg(RAX), m.state.segments.data[seg::FS].selector),
        (0, 0x10)
    );
    // les cx, [ebx]; lds eax, [ebx] of 32-bit code.
    let m = machine(&[0x66, 0xc4, 0x0b, 0xc5, 0x03])
        .bits32()
        .poke(DATA + 2, &0x18_u16.to_le_bytes())
        .poke(DATA + 4, &0x18_u16.to_le_bytes())
        .steps(2);
    assert_eq!((m.reg(RAX), m.reg(RCX)), (0x0018_7788, 0x7788));
    for segment in [seg::DS, seg::ES] {
        assert_eq!(m.state.segments.data[segment].selector, 0x18);
    }
}

/// SDM vol. 3A table 9-1: a program that does not initialise the x87 FPU finds the state after power-on.
#[test]
fn the_x87_fpu_after_power_on_differs_from_an_initialised_one() {
    let store = |initialise: bool| {
        // FNINIT and FNSTENV [RBX].
        let code = [0xdb, 0xe3, 0xd9, 0x33];
        let skipped = if initialise { 0 } else { 2 };
        let mut m = Machine::with_bytes(&code[skipped..]).set(RBX, DATA);
        m.state.fx = VcpuState::reset().fx;
        m = m.steps(if initialise { 2 } else { 1 });
        let words: [u8; 12] = m.peek(DATA);
        [0, 4, 8].map(|at| u16::from_le_bytes([words[at], words[at + 1]]))
    };
    // FCW, FSW and FTW.
    assert_eq!(store(false), [0x40, 0, 0x5555]);
    assert_eq!(store(true), [0x37f, 0, 0xffff]);
}

#[test]
fn reserved_nops_do_nothing() {
    let before = Machine::with_bytes(&[0x90]).state;
    for second in 0x18..=0x1f_u8 {
        for prefix in [&[][..], &[0x66], &[0xf2], &[0xf3], &[0x48]] {
            // ModRM for a register, for absent memory, and for an operand with a byte of displacement.
            for operand in [&[0xc0][..], &[0x04, 0x25, 0, 0, 5, 0], &[0x40, 0x7f]] {
                let bytes = [prefix, &[0x0f, second], operand].concat();
                let m = Machine::with_bytes(&bytes).steps(1);
                assert_eq!(m.rip(), CODE + bytes.len() as u64, "{bytes:02x?}");
                assert_eq!(m.state.general.gpr, before.general.gpr);
            }
        }
    }
}

/// SDM vol. 2A §2.3.11: more than 15 bytes raise `#GP`, whatever they are.
#[test]
fn an_instruction_has_15_bytes_at_most() {
    let bytes = |prefixes| [vec![0x66; prefixes], vec![0x90]].concat();
    Machine::with_bytes(&bytes(14)).steps(1);
    let (_, e) = Machine::with_bytes(&[vec![0x66; 14], vec![0x06]].concat()).fault();
    assert_eq!(e.vector, Vector::InvalidOpcode);
    for opcode in [0x90, 0x06] {
        let (_, e) = Machine::with_bytes(&[vec![0x66; 15], vec![opcode]].concat()).fault();
        assert_eq!((e.vector, e.error), (Vector::GeneralProtection, 0));
    }
    // add qword ptr fs:[rax+rax+0], 0, with each prefix once: one byte too long.
    let mut long = vec![0xf2, 0x64, 0x67, 0x2e, 0x48, 0x81, 0x84, 0x00];
    long.resize(16, 0);
    let (_, e) = Machine::with_bytes(&long).set(RAX, DATA).fault();
    assert_eq!((e.vector, e.error), (Vector::GeneralProtection, 0));
    long.remove(0);
    Machine::with_bytes(&long).set(RAX, DATA).steps(1);
}

/// No guest can exhaust the memory for stubs of vector instructions: the memory is used again, and evicted stubs are made again.
#[test]
fn any_number_of_distinct_vector_instructions_runs() {
    let mut m = Machine::with_bytes(&[0x90]);
    m.state.control.cr4 |= 0x600;
    m.vcpu = bare::vcpu(&m.ram, nodescope_engine_soft::Translate::Never);
    // The smallest permitted memory, which has less room than the 512 stubs of this test need.
    m.vcpu.limit_code(0);
    for round in 0..2 {
        for immediate in 0..=255_u8 {
            // pshufd xmm1, xmm2, n, then pshufd xmm3, xmm1, n
            let mut code = Vec::new();
            for modrm in [0xca, 0xd9] {
                code.extend([0x66, 0x0f, 0x70, modrm, immediate]);
            }
            m = m.poke(CODE, &code);
            for (k, b) in m.state.vector.0[2].iter_mut().enumerate() {
                *b = k as u8 + round;
            }
            m.state.general.rip = CODE;
            m = m.steps(2);
            let lane = |of: usize| usize::from(immediate >> (2 * of) & 3);
            for k in 0..4 {
                let from = 4 * lane(lane(k)) as u8 + round;
                let got = &m.state.vector.0[3][4 * k..][..4];
                assert_eq!(got, [from, from + 1, from + 2, from + 3], "{immediate:#x}");
            }
        }
    }
}
