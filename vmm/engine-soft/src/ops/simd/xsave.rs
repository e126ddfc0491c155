//! FXSAVE, XSAVE and their inverses, XGETBV and XSETBV, on guest memory (SDM vol. 1 §10.5 and chapter 13).
//!
//! State components: x87 (0), SSE (1), AVX (2), standard format, 832 bytes. Whether a component is in use (XINUSE) is
//! decided only by its contents, so that equal states give equal images on every run.

use iced_x86::Mnemonic;
use nodescope_x86::bits::{cr0, cr4, xcr0};
use nodescope_x86::cpuid::CpuidRegister;
use nodescope_x86::{Exception, FxImage, Vector};

use crate::cpu::{Cpu, Mode};
use crate::lower::Lowering;
use crate::memory::is_canonical;
use crate::mmu::Intent;
use crate::op::{Done, Flow, Handler, Op, Trap};

use super::execute::{invalid, misaligned};
use super::{mxcsr, need, recompute_simd_availability, require, x87};

/// Bytes of the x87 registers in the image.
const X87: std::ops::Range<usize> = 32..160;
const XMM: usize = 160;
const HEADER: usize = 512;
const UPPER: usize = 576;
/// Bytes of an image with all components.
const SIZE: usize = 832;
/// Components that this engine has.
const COMPONENTS: u64 = xcr0::X87 | xcr0::SSE | xcr0::AVX;

/// Returns the number of vector registers that exist in the mode.
fn registers(cpu: &Cpu) -> usize {
    if cpu.mode == Mode::Bits64 { 16 } else { 8 }
}

/// Returns the x87 header (bytes 0 to 23): with 64-bit pointers, or with 32-bit pointers and zero selectors.
fn header(cpu: &Cpu, wide: bool) -> [u8; 24] {
    let mut h = [0; 24];
    h.copy_from_slice(&cpu.fx.0[..24]);
    h[5] = 0;
    if !wide {
        h[12..16].fill(0);
        h[20..24].fill(0);
    }
    h
}

fn set_header(cpu: &mut Cpu, image: &[u8], wide: bool) {
    cpu.fx.0[..24].copy_from_slice(&image[..24]);
    cpu.fx.0[5] = 0;
    if !wide {
        cpu.fx.0[12..16].fill(0);
        cpu.fx.0[20..24].fill(0);
    }
    // The summary and busy bits follow from flags and masks.
    let (fsw, fcw) = (cpu.fx.fsw(), cpu.fx.fcw());
    let fsw = if fsw & !fcw & 0x3f != 0 {
        fsw | 0x8080
    } else {
        fsw & !0x8080
    };
    cpu.fx.0[2..4].copy_from_slice(&fsw.to_le_bytes());
    // Bit 6 of the control word always reads as one, bits 7 and 13 to 15 as zero.
    cpu.fx.0[0] = cpu.fx.0[0] & 0x3f | 0x40;
    cpu.fx.0[1] &= 0x1f;
    for register in cpu.fx.0[X87].chunks_exact_mut(16) {
        register[10..].fill(0);
    }
}

fn xmm_area(cpu: &Cpu) -> [u8; 256] {
    let mut area = [0; 256];
    for (to, from) in area.chunks_exact_mut(16).zip(&cpu.vector.0) {
        to.copy_from_slice(&from[..16]);
    }
    area
}

fn upper_area(cpu: &Cpu) -> [u8; 256] {
    let mut area = [0; 256];
    for (to, from) in area.chunks_exact_mut(16).zip(&cpu.vector.0) {
        to.copy_from_slice(&from[16..]);
    }
    area
}

/// Returns the components that are not in their initial state. `cpu.fx` must be current.
fn in_use(cpu: &Cpu) -> u64 {
    let initial = FxImage::default();
    let mut mask = 0;
    if cpu.fx.0[..24] != initial.0[..24] || cpu.fx.0[X87] != initial.0[X87] {
        mask |= xcr0::X87;
    }
    if cpu.vector.0.iter().any(|r| r[..16] != [0; 16]) {
        mask |= xcr0::SSE;
    }
    if cpu.vector.0.iter().any(|r| r[16..] != [0; 16]) {
        mask |= xcr0::AVX;
    }
    mask
}

/// Raises `#UD` with CR0.EM, `#NM` with CR0.TS.
fn require_fx(cpu: &mut Cpu) -> Result<(), Trap> {
    if cpu.control.cr0 & cr0::EM != 0 {
        return Err(invalid(cpu));
    }
    if cpu.control.cr0 & cr0::TS != 0 {
        return Err(cpu.raise(Exception::new(Vector::DeviceNotAvailable)));
    }
    Ok(())
}

fn aligned(cpu: &mut Cpu, op: &Op, to: u64) -> Result<u64, Trap> {
    let linear = cpu.linear(op);
    if linear & (to - 1) != 0 {
        // An address that is not canonical is found before its alignment here, unlike with SSE operands.
        if cpu.long_mode() && !is_canonical(linear) {
            cpu.probe_write(linear, 1)?;
        }
        return Err(misaligned(cpu));
    }
    Ok(linear)
}

/// Executes FXSAVE; `WIDE`: FXSAVE64.
fn fxsave<const WIDE: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    require_fx(cpu)?;
    let linear = aligned(cpu, op, 16)?;
    x87::check_byte(cpu, linear.wrapping_add(511), Intent::Write)?;
    x87::sync(cpu);
    let mut image = [0; 416];
    image[..24].copy_from_slice(&header(cpu, WIDE));
    image[24..28].copy_from_slice(&cpu.fx.mxcsr().to_le_bytes());
    image[28..32].copy_from_slice(&mxcsr::MASK.to_le_bytes());
    image[X87].copy_from_slice(&cpu.fx.0[X87]);
    image[XMM..].copy_from_slice(&xmm_area(cpu));
    let end = XMM + 16 * registers(cpu);
    cpu.write_bytes(linear, &image[..end])?;
    Ok(Flow::Next)
}

/// Executes FXRSTOR; `WIDE`: FXRSTOR64.
fn fxrstor<const WIDE: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    require_fx(cpu)?;
    let linear = aligned(cpu, op, 16)?;
    x87::check_byte(cpu, linear.wrapping_add(511), Intent::Read)?;
    let mut image = [0; 512];
    cpu.read_bytes(linear, &mut image)?;
    let control = u32::from_le_bytes([image[24], image[25], image[26], image[27]]);
    if control & !mxcsr::MASK != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    x87::forget(cpu);
    cpu.fx.0[X87].copy_from_slice(&image[X87]);
    set_header(cpu, &image, WIDE);
    cpu.fx.set_mxcsr(control);
    for n in 0..registers(cpu) {
        cpu.vector.0[n][..16].copy_from_slice(&image[XMM + 16 * n..XMM + 16 * n + 16]);
    }
    Ok(Flow::Next)
}

/// Returns the requested-feature bitmap: EDX:EAX, limited to the bits of XCR0 and to the engine's components.
fn requested(cpu: &Cpu) -> u64 {
    (cpu.gpr[2] << 32 | cpu.gpr[0] & 0xffff_ffff) & cpu.control.xcr0 & COMPONENTS
}

/// Executes XSAVE and XSAVEOPT (`OPTIMISED`: initial components are not written); `WIDE`: with REX.W.
fn xsave<const WIDE: bool, const OPTIMISED: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::XSAVE)?;
    let linear = aligned(cpu, op, 64)?;
    x87::sync(cpu);
    let requested = requested(cpu);
    let used = in_use(cpu);
    let write = if OPTIMISED {
        requested & used
    } else {
        requested
    };
    // Everything that will be touched is checked before anything is written.
    cpu.probe_write(
        linear,
        SIZE.min(if requested & xcr0::AVX != 0 {
            SIZE
        } else {
            UPPER
        }),
    )?;
    let old: u64 = cpu.load(linear.wrapping_add(HEADER as u64))?;
    if write & xcr0::X87 != 0 {
        let head = header(cpu, WIDE);
        cpu.write_bytes(linear, &head)?;
        let data: [u8; 128] = cpu.fx.0[X87].try_into().expect("eight registers");
        cpu.write_bytes(linear.wrapping_add(32), &data)?;
    }
    if requested & (xcr0::SSE | xcr0::AVX) != 0 {
        let mut word = [0; 8];
        word[..4].copy_from_slice(&cpu.fx.mxcsr().to_le_bytes());
        word[4..].copy_from_slice(&mxcsr::MASK.to_le_bytes());
        cpu.write_bytes(linear.wrapping_add(24), &word)?;
    }
    let bytes = 16 * registers(cpu);
    if write & xcr0::SSE != 0 {
        let area = xmm_area(cpu);
        cpu.write_bytes(linear.wrapping_add(XMM as u64), &area[..bytes])?;
    }
    if write & xcr0::AVX != 0 {
        let area = upper_area(cpu);
        cpu.write_bytes(linear.wrapping_add(UPPER as u64), &area[..bytes])?;
    }
    cpu.store(
        linear.wrapping_add(HEADER as u64),
        old & !requested | used & requested,
    )?;
    Ok(Flow::Next)
}

/// Executes XRSTOR, standard format; `WIDE`: with REX.W.
fn xrstor<const WIDE: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, need::XSAVE)?;
    let linear = aligned(cpu, op, 64)?;
    let requested = requested(cpu);
    let mut image = [0; SIZE];
    // XCOMP_BV is checked first.
    x87::check_byte(cpu, linear.wrapping_add(HEADER as u64 + 8), Intent::Read)?;
    // The legacy region is read only if some component is requested (seen on Cascade Lake).
    if requested != 0 {
        cpu.read_bytes(linear, &mut image[..HEADER])?;
    }
    cpu.read_bytes(
        linear.wrapping_add(HEADER as u64),
        &mut image[HEADER..UPPER],
    )?;
    let quad = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&image[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let present = quad(HEADER);
    // XCOMP_BV and the following eight bytes must be zero in the standard format, the only format here.
    if present & !cpu.control.xcr0 != 0 || quad(HEADER + 8) != 0 || quad(HEADER + 16) != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    if requested & present & xcr0::AVX != 0 {
        cpu.read_bytes(linear.wrapping_add(UPPER as u64), &mut image[UPPER..])?;
    }
    if requested & xcr0::X87 != 0 {
        x87::forget(cpu);
        if present & xcr0::X87 != 0 {
            cpu.fx.0[X87].copy_from_slice(&image[X87]);
            set_header(cpu, &image, WIDE);
        } else {
            let initial = FxImage::default();
            cpu.fx.0[..24].copy_from_slice(&initial.0[..24]);
            cpu.fx.0[X87].copy_from_slice(&initial.0[X87]);
        }
    }
    // Processors have loaded the x87 component by the time they check MXCSR.
    let control = u32::from_le_bytes([image[24], image[25], image[26], image[27]]);
    let sets_mxcsr = requested & (xcr0::SSE | xcr0::AVX) != 0;
    if sets_mxcsr && control & !mxcsr::MASK != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    if sets_mxcsr {
        cpu.fx.set_mxcsr(control);
    }
    for n in 0..registers(cpu) {
        let register = &mut cpu.vector.0[n];
        if requested & xcr0::SSE != 0 {
            if present & xcr0::SSE != 0 {
                register[..16].copy_from_slice(&image[XMM + 16 * n..XMM + 16 * n + 16]);
            } else {
                register[..16].fill(0);
            }
        }
        if requested & xcr0::AVX != 0 {
            if present & xcr0::AVX != 0 {
                register[16..].copy_from_slice(&image[UPPER + 16 * n..UPPER + 16 * n + 16]);
            } else {
                register[16..].fill(0);
            }
        }
    }
    Ok(Flow::Next)
}

/// Executes XGETBV: XCR0 for ECX = 0; components in use for ECX = 1, where CPUID.(D,1):EAX\[2\] announces it.
pub fn xgetbv(cpu: &mut Cpu, _op: &Op) -> Done {
    if cpu.control.cr4 & cr4::OSXSAVE == 0 {
        return Err(invalid(cpu));
    }
    let value = match cpu.gpr[1] as u32 {
        0 => cpu.control.xcr0,
        1 if cpu.cpuid.has(0xd, 1, CpuidRegister::Eax, 2) => {
            x87::sync(cpu);
            let mut used = in_use(cpu);
            if cpu.fx.mxcsr() != mxcsr::DEFAULT {
                used |= xcr0::SSE;
            }
            used & cpu.control.xcr0
        }
        _ => return Err(cpu.raise(Exception::gp(0))),
    };
    cpu.set_reg::<u32>(0, value as u32);
    cpu.set_reg::<u32>(16, (value >> 32) as u32);
    Ok(Flow::Next)
}

/// Executes XSETBV: sets XCR0, at CPL 0.
pub fn xsetbv(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.control.cr4 & cr4::OSXSAVE == 0 {
        return Err(invalid(cpu));
    }
    let value = cpu.gpr[2] << 32 | cpu.gpr[0] & 0xffff_ffff;
    let legal = value & xcr0::X87 != 0
        && value & !(COMPONENTS & cpu.cpuid.xcr0_supported()) == 0
        && (value & xcr0::AVX == 0 || value & xcr0::SSE != 0);
    if cpu.cpl != 0 || cpu.gpr[1] as u32 != 0 || !legal {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.control.xcr0 = value;
    recompute_simd_availability(cpu);
    let next = cpu.next_ip(op);
    cpu.set_ip(next);
    Ok(Flow::Attend)
}

/// Lowers the instructions that save and restore extended state.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let (handler, loads, stores): (Handler, u8, u8) = match l.instruction.mnemonic() {
        Fxsave => (fxsave::<false>, 0, 1),
        Fxsave64 => (fxsave::<true>, 0, 1),
        Fxrstor => (fxrstor::<false>, 1, 0),
        Fxrstor64 => (fxrstor::<true>, 1, 0),
        Xsave => (xsave::<false, false>, 1, 1),
        Xsave64 => (xsave::<true, false>, 1, 1),
        Xsaveopt => (xsave::<false, true>, 1, 1),
        Xsaveopt64 => (xsave::<true, true>, 1, 1),
        Xrstor => (xrstor::<false>, 1, 0),
        Xrstor64 => (xrstor::<true>, 1, 0),
        Xgetbv => (xgetbv, 0, 0),
        Xsetbv => (xsetbv, 0, 0),
        _ => return None,
    };
    (l.op.loads, l.op.stores) = (loads, stores);
    Some(handler)
}
