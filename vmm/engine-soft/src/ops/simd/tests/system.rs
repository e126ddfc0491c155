//! Control state: availability, save areas, exceptions, masks.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use nodescope_x86::bits::{cr0, cr4};
use nodescope_x86::{Exception, Vector};

use super::{DATA, IP, execute, lower, vcpu};
use crate::cpu::Cpu;
use crate::op::{Done, Flow, Trap};
use crate::ops::simd::{recompute_simd_availability, x87};

/// Assembles one instruction and executes it with RBX and RDI at the data.
fn run(cpu: &mut Cpu, f: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Done {
    let mut a = CodeAssembler::new(64).expect("an assembler");
    f(&mut a).expect("an instruction");
    let bytes = a.assemble(IP).expect("an instruction");
    let op = lower(cpu, &bytes);
    cpu.gpr[3] = DATA;
    cpu.gpr[7] = DATA;
    cpu.exception = None;
    execute(cpu, &op)
}

fn raised(cpu: &Cpu, done: Done) -> Option<Exception> {
    match done {
        Ok(_) => None,
        Err(Trap) => Some(cpu.exception.expect("an exception")),
    }
}

const NM: Option<Exception> = Some(Exception::new(Vector::DeviceNotAvailable));
const UD: Option<Exception> = Some(Exception::ud());
const XM: Option<Exception> = Some(Exception::new(Vector::Simd));
const MF: Option<Exception> = Some(Exception::new(Vector::X87));
const GP: Option<Exception> = Some(Exception::gp(0));

fn set_double(cpu: &mut Cpu, n: usize, value: f64) {
    cpu.vector.0[n][..8].copy_from_slice(&value.to_le_bytes());
}

fn double(cpu: &Cpu, n: usize) -> f64 {
    f64::from_le_bytes(cpu.vector.0[n][..8].try_into().expect("eight bytes"))
}

fn memory<const N: usize>(cpu: &Cpu, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    assert!(cpu.ram.read(at, &mut bytes));
    bytes
}

type Change = fn(&mut Cpu);
type Assemble = fn(&mut CodeAssembler) -> Result<(), IcedError>;

#[test]
fn control_bits_decide_what_may_run() {
    let sse = |a: &mut CodeAssembler| a.addpd(xmm1, xmm2);
    let hot = |a: &mut CodeAssembler| a.movaps(xmm1, xmm2);
    let avx = |a: &mut CodeAssembler| a.vaddpd(xmm1, xmm2, xmm3);
    let x87 = |a: &mut CodeAssembler| a.fld1();
    let mmx = |a: &mut CodeAssembler| a.paddb(mm1, mm2);
    // Change of control state; expected for SSE, AVX, x87, MMX.
    let rows: [(Change, [Option<Exception>; 4]); 6] = [
        (|_| (), [None, None, None, None]),
        (|c| c.control.cr0 |= cr0::TS, [NM, NM, NM, NM]),
        (|c| c.control.cr0 |= cr0::EM, [UD, None, NM, UD]),
        (|c| c.control.cr4 &= !cr4::OSFXSR, [UD, None, None, None]),
        (|c| c.control.cr4 &= !cr4::OSXSAVE, [None, UD, None, None]),
        (|c| c.control.xcr0 = 3, [None, UD, None, None]),
    ];
    for (n, (change, want)) in rows.into_iter().enumerate() {
        let mut vcpu = vcpu();
        let cpu = &mut vcpu.cpu;
        change(cpu);
        recompute_simd_availability(cpu);
        let mut got = [None; 4];
        let done = run(cpu, sse);
        got[0] = raised(cpu, done);
        let done = run(cpu, hot);
        assert_eq!(
            raised(cpu, done),
            got[0],
            "row {n}: moves obey like arithmetic"
        );
        let done = run(cpu, avx);
        got[1] = raised(cpu, done);
        let done = run(cpu, x87);
        got[2] = raised(cpu, done);
        let done = run(cpu, mmx);
        got[3] = raised(cpu, done);
        assert_eq!(got, want, "row {n}");
        x87::release(cpu);
    }
    // #UD goes before #NM.
    let mut vcpu = vcpu();
    let cpu = &mut vcpu.cpu;
    cpu.control.cr0 |= cr0::TS;
    cpu.control.cr4 &= !cr4::OSXSAVE;
    recompute_simd_availability(cpu);
    let done = run(cpu, avx);
    assert_eq!(raised(cpu, done), UD);
}

#[test]
fn unmasked_vector_exceptions_leave_the_destination_alone() {
    let mut vcpu = vcpu();
    let cpu = &mut vcpu.cpu;
    set_double(cpu, 1, 1.0);
    set_double(cpu, 2, 0.0);
    // Divide by zero unmasked, a sticky flag of before kept.
    cpu.fx.set_mxcsr(0x1f80 & !(1 << 9) | 1 << 5);
    let done = run(cpu, |a| a.divsd(xmm1, xmm2));
    assert_eq!(raised(cpu, done), XM);
    assert_eq!(double(cpu, 1), 1.0);
    assert_eq!(cpu.fx.mxcsr(), 0x1f80 & !(1 << 9) | 1 << 5 | 1 << 2);
    // Without CR4.OSXMMEXCPT it is #UD.
    cpu.control.cr4 &= !cr4::OSXMMEXCPT;
    let done = run(cpu, |a| a.divsd(xmm1, xmm2));
    assert_eq!(raised(cpu, done), UD);
    // A masked exception of the same instruction passes.
    set_double(cpu, 2, 3.0);
    let done = run(cpu, |a| a.divsd(xmm1, xmm2));
    assert_eq!(done, Ok(Flow::Next));
    assert_eq!(double(cpu, 1), 1.0 / 3.0);
    // Flags of a comparison are not changed by an unmasked invalid operand.
    cpu.control.cr4 |= cr4::OSXMMEXCPT;
    cpu.fx.set_mxcsr(0x1f00);
    set_double(cpu, 2, f64::NAN);
    let before = cpu.rflags;
    let done = run(cpu, |a| a.comisd(xmm1, xmm2));
    assert_eq!(raised(cpu, done), XM);
    assert_eq!(cpu.rflags, before);
}

#[test]
fn rounding_of_the_guest_stays_with_the_guest() {
    let mut vcpu = vcpu();
    let cpu = &mut vcpu.cpu;
    cpu.fx.set_mxcsr(0x1f80 | 2 << 13);
    set_double(cpu, 1, 1.0);
    set_double(cpu, 2, 3.0);
    assert_eq!(run(cpu, |a| a.divsd(xmm1, xmm2)), Ok(Flow::Next));
    let up = double(cpu, 1);
    let near = std::hint::black_box(1.0_f64) / std::hint::black_box(3.0);
    assert_eq!(up.to_bits(), near.to_bits() + 1);
    assert_eq!(cpu.fx.mxcsr(), 0x1f80 | 2 << 13 | 1 << 5);
}

#[test]
fn mxcsr_refuses_reserved_bits() {
    let mut vcpu = vcpu();
    let cpu = &mut vcpu.cpu;
    cpu.ram.write(DATA, &0x0001_1f80_u32.to_le_bytes());
    let done = run(cpu, |a| a.ldmxcsr(dword_ptr(rbx)));
    assert_eq!(raised(cpu, done), GP);
    cpu.ram.write(DATA, &0x0000_9fc0_u32.to_le_bytes());
    assert_eq!(run(cpu, |a| a.ldmxcsr(dword_ptr(rbx))), Ok(Flow::Next));
    assert_eq!(run(cpu, |a| a.stmxcsr(dword_ptr(rbx + 4))), Ok(Flow::Next));
    assert_eq!(memory::<4>(cpu, DATA + 4), 0x9fc0_u32.to_le_bytes());
}

#[test]
fn misaligned_operands_fault_where_the_encoding_asks_for_alignment() {
    let mut vcpu = vcpu();
    let cpu = &mut vcpu.cpu;
    for n in 0..2 {
        let want = if n == 0 { None } else { GP };
        let done = run(cpu, |a| a.addps(xmm1, xmmword_ptr(rbx + n)));
        assert_eq!(raised(cpu, done), want);
        let done = run(cpu, |a| a.movaps(xmm1, xmmword_ptr(rbx + n)));
        assert_eq!(raised(cpu, done), want);
        let done = run(cpu, |a| a.vmovaps(ymmword_ptr(rbx + 16 * n), ymm1));
        assert_eq!(raised(cpu, done), want);
        for f in [
            run(cpu, |a| a.movups(xmm1, xmmword_ptr(rbx + n))),
            run(cpu, |a| a.vaddps(xmm1, xmm1, xmmword_ptr(rbx + n))),
            run(cpu, |a| a.pcmpistri(xmm1, xmmword_ptr(rbx + n), 0)),
        ] {
            assert_eq!(f, Ok(Flow::Next));
        }
    }
}

#[test]
fn pending_x87_exceptions_reach_the_next_waiting_instruction() {
    let mut vcpu = vcpu();
    let cpu = &mut vcpu.cpu;
    // Unmask zero divide.
    cpu.ram.write(DATA, &0x037b_u16.to_le_bytes());
    assert_eq!(run(cpu, |a| a.fldcw(word_ptr(rbx))), Ok(Flow::Next));
    assert_eq!(run(cpu, |a| a.fldz()), Ok(Flow::Next));
    assert_eq!(run(cpu, |a| a.fld1()), Ok(Flow::Next));
    // 1 / 0: the instruction itself completes, the exception waits.
    assert_eq!(run(cpu, |a| a.fdiv_2(st0, st1)), Ok(Flow::Next));
    let done = run(cpu, |a| a.wait());
    assert_eq!(raised(cpu, done), MF);
    let done = run(cpu, |a| a.fld1());
    assert_eq!(raised(cpu, done), MF);
    let done = run(cpu, |a| a.paddb(mm1, mm2));
    assert_eq!(raised(cpu, done), MF);
    // The state survives a trip through the save area.
    x87::release(cpu);
    let done = run(cpu, |a| a.fld1());
    assert_eq!(raised(cpu, done), MF);
    // Instructions that do not wait do not see the exception; FNSTSW shows the summary bit.
    assert_eq!(run(cpu, |a| a.fnstsw(ax)), Ok(Flow::Next));
    assert_eq!(cpu.gpr[0] & 0x84, 0x84);
    assert_eq!(run(cpu, |a| a.fnclex()), Ok(Flow::Next));
    assert_eq!(run(cpu, |a| a.fstp(qword_ptr(rbx))), Ok(Flow::Next));
    // The numerator was left in place.
    assert_eq!(memory::<8>(cpu, DATA), 1.0_f64.to_le_bytes());
    x87::release(cpu);
}

#[test]
fn environment_shows_guest_addresses() {
    let mut vcpu = vcpu();
    let cpu = &mut vcpu.cpu;
    assert_eq!(run(cpu, |a| a.fninit()), Ok(Flow::Next));
    assert_eq!(run(cpu, |a| a.fld(qword_ptr(rbx + 8))), Ok(Flow::Next));
    assert_eq!(run(cpu, |a| a.fnstenv(ptr(rbx))), Ok(Flow::Next));
    let env: [u8; 28] = memory(cpu, DATA);
    let word = |at: usize| u32::from_le_bytes(env[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(word(0) & 0xffff, 0x37f);
    assert_eq!(word(4) & 0x3800, 0x3800);
    assert_eq!(u64::from(word(12)), IP);
    assert_eq!(u64::from(word(20)), DATA + 8);
    // FNSAVE and FRSTOR are inverses.
    assert_eq!(run(cpu, |a| a.fldpi()), Ok(Flow::Next));
    x87::release(cpu);
    let before = cpu.fx;
    assert_eq!(run(cpu, |a| a.fnsave(ptr(rbx))), Ok(Flow::Next));
    x87::release(cpu);
    assert_eq!(cpu.fx.fcw(), 0x37f);
    assert_eq!(cpu.fx.0[4], 0);
    assert_eq!(run(cpu, |a| a.frstor(ptr(rbx))), Ok(Flow::Next));
    x87::release(cpu);
    assert_eq!(cpu.fx, before);
}

#[test]
fn xsave_and_xrstor_are_inverses_and_skip_initial_components() {
    let mut vcpu = vcpu();
    let cpu = &mut vcpu.cpu;
    for (n, r) in cpu.vector.0.iter_mut().enumerate() {
        r.fill(n as u8 + 1);
    }
    cpu.fx.set_mxcsr(0x1fa0);
    assert_eq!(run(cpu, |a| a.fldpi()), Ok(Flow::Next));
    x87::release(cpu);
    let (vector, fx) = (cpu.vector, cpu.fx);
    cpu.gpr[0] = 7;
    cpu.gpr[2] = 0;
    cpu.ram.write(DATA + 512, &[0; 64]);
    assert_eq!(run(cpu, |a| a.xsave64(byte_ptr(rbx))), Ok(Flow::Next));
    assert_eq!(memory::<8>(cpu, DATA + 512), 7_u64.to_le_bytes());
    cpu.vector = Default::default();
    cpu.fx = Default::default();
    assert_eq!(run(cpu, |a| a.xrstor64(byte_ptr(rbx))), Ok(Flow::Next));
    assert_eq!((cpu.vector, cpu.fx), (vector, fx));
    // Initial state: XSTATE_BV is 0 and XRSTOR initialises whatever the image holds.
    cpu.vector = Default::default();
    cpu.fx = Default::default();
    assert_eq!(run(cpu, |a| a.xsaveopt64(byte_ptr(rbx))), Ok(Flow::Next));
    assert_eq!(memory::<8>(cpu, DATA + 512), [0; 8]);
    assert_eq!(memory::<16>(cpu, DATA + 160), [1; 16], "not written");
    cpu.vector = vector;
    assert_eq!(run(cpu, |a| a.xrstor64(byte_ptr(rbx))), Ok(Flow::Next));
    assert_eq!(cpu.vector, Default::default());
    // Bad headers and addresses.
    for (at, byte) in [(512, 8_u8), (520, 1), (528, 1), (26, 1)] {
        let old: [u8; 1] = memory(cpu, DATA + at);
        cpu.ram.write(DATA + at, &[byte]);
        let done = run(cpu, |a| a.xrstor64(byte_ptr(rbx)));
        assert_eq!(raised(cpu, done), GP, "byte {at}");
        cpu.ram.write(DATA + at, &old);
    }
    let done = run(cpu, |a| a.xsave64(byte_ptr(rbx + 16)));
    assert_eq!(raised(cpu, done), GP);
    let done = run(cpu, |a| a.fxsave64(byte_ptr(rbx + 8)));
    assert_eq!(raised(cpu, done), GP);
}

#[test]
fn fxsave_image_has_the_hosts_layout() {
    let mut vcpu = vcpu();
    let cpu = &mut vcpu.cpu;
    assert_eq!(run(cpu, |a| a.fld1()), Ok(Flow::Next));
    for (n, r) in cpu.vector.0.iter_mut().enumerate() {
        r.fill(n as u8 + 1);
    }
    assert_eq!(run(cpu, |a| a.fxsave64(byte_ptr(rbx))), Ok(Flow::Next));
    let image: [u8; 416] = memory(cpu, DATA);
    assert_eq!(image[0..2], 0x37f_u16.to_le_bytes());
    assert_eq!(image[4], 0x80);
    assert_eq!(image[8..16], IP.to_le_bytes());
    assert_eq!(image[24..32], [0x80, 0x1f, 0, 0, 0xff, 0xff, 0, 0]);
    assert_eq!(image[32..42], [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]);
    assert_eq!(image[400..416], [16; 16]);
    // FXRSTOR restores the vector registers that FXSAVE wrote.
    let vector = cpu.vector;
    for r in &mut cpu.vector.0 {
        r[..16].fill(0);
    }
    assert_eq!(run(cpu, |a| a.fxrstor64(byte_ptr(rbx))), Ok(Flow::Next));
    assert_eq!(cpu.vector, vector);
    x87::release(cpu);
}

#[test]
fn masked_moves_touch_selected_elements_alone() {
    let mut vcpu = vcpu();
    let cpu = &mut vcpu.cpu;
    cpu.ram.write(DATA, &[0xaa; 64]);
    cpu.vector.0[1].fill(0x11);
    for n in 0..8 {
        cpu.vector.0[2][4 * n..4 * n + 4].fill(if n % 3 == 0 { 0x80 } else { 0x7f });
    }
    assert_eq!(
        run(cpu, |a| a.vmaskmovps(ymmword_ptr(rbx), ymm2, ymm1)),
        Ok(Flow::Next)
    );
    let got: [u8; 40] = memory(cpu, DATA);
    for n in 0..10 {
        let want = if n % 3 == 0 && n < 8 { 0x11 } else { 0xaa };
        assert_eq!(got[4 * n..4 * n + 4], [want; 4], "element {n}");
    }
    assert_eq!(
        run(cpu, |a| a.vpmaskmovd(ymm3, ymm2, ymmword_ptr(rbx))),
        Ok(Flow::Next)
    );
    for n in 0..8 {
        let want = if n % 3 == 0 { 0x11 } else { 0 };
        assert_eq!(cpu.vector.0[3][4 * n..4 * n + 4], [want; 4], "element {n}");
    }
    cpu.ram.write(DATA, &[0xaa; 64]);
    cpu.vector.0[4] = [0x7f; 32];
    cpu.vector.0[4][5] = 0xff;
    assert_eq!(run(cpu, |a| a.maskmovdqu(xmm1, xmm4)), Ok(Flow::Next));
    let mut want = [0xaa_u8; 16];
    want[5] = 0x11;
    assert_eq!(memory::<16>(cpu, DATA), want);
    // MMX: the same through the x87 registers, whatever the top of the stack was.
    assert_eq!(run(cpu, |a| a.fninit()), Ok(Flow::Next));
    assert_eq!(run(cpu, |a| a.fld1()), Ok(Flow::Next));
    cpu.gpr[0] = 0x1122_3344_5566_7788;
    cpu.gpr[2] = 0x8000_0000_0000_0080;
    assert_eq!(run(cpu, |a| a.movq(mm1, rax)), Ok(Flow::Next));
    assert_eq!(run(cpu, |a| a.movq(mm2, rdx)), Ok(Flow::Next));
    cpu.ram.write(DATA, &[0xaa; 8]);
    assert_eq!(run(cpu, |a| a.maskmovq(mm1, mm2)), Ok(Flow::Next));
    assert_eq!(
        memory::<8>(cpu, DATA),
        [0x88, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0x11]
    );
    x87::release(cpu);
    assert_eq!(cpu.fx.0[4], 0xff);
    assert_eq!(cpu.fx.fsw() >> 11 & 7, 0);
}

#[test]
fn operations_are_counted_as_the_hardware_counts_them() {
    use nodescope_plugin_api::FlopClass::*;
    let rows: [(Assemble, _); 14] = [
        (|a| a.addsd(xmm1, xmm2), Some((ScalarDouble, 1))),
        (|a| a.mulps(xmm1, xmm2), Some((Packed128Single, 4))),
        (|a| a.vdivpd(ymm1, ymm2, ymm3), Some((Packed256Double, 4))),
        (
            |a| a.vaddps(ymm1, ymm2, ymmword_ptr(rbx)),
            Some((Packed256Single, 8)),
        ),
        (
            |a| a.vfmadd231pd(ymm1, ymm2, ymm3),
            Some((Packed256Double, 8)),
        ),
        (
            |a| a.vfnmsub213ss(xmm1, xmm2, xmm3),
            Some((ScalarSingle, 2)),
        ),
        (|a| a.dppd(xmm1, xmm2, 0x31), Some((Packed128Double, 4))),
        (|a| a.haddpd(xmm1, xmm2), Some((Packed128Double, 2))),
        (|a| a.fmulp(st1, st0), Some((X87, 1))),
        (|a| a.cvtsi2sd(xmm1, rax), None),
        (|a| a.xorpd(xmm1, xmm2), None),
        (|a| a.cmppd(xmm1, xmm2, 1), None),
        (|a| a.paddd(xmm1, xmm2), None),
        (|a| a.fld1(), None),
    ];
    for (n, (f, want)) in rows.into_iter().enumerate() {
        let mut a = CodeAssembler::new(64).expect("an assembler");
        f(&mut a).expect("an instruction");
        let i = a.instructions()[0];
        assert_eq!(
            crate::ops::simd::flops::of(&i),
            want,
            "row {n}: {:?}",
            i.code()
        );
    }
}
