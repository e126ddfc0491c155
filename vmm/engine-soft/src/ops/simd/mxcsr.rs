//! The guest's MXCSR on the host's.
//!
//! Stubs of instructions that read or set MXCSR compare the host's value with the guest's first. Equal: the control bits
//! are the guest's, every exception is masked (the host never holds anything else), and the sticky flags that the
//! instruction raises end up in the guest's MXCSR as they do in the host's. Different: the stub does nothing and [`settle`]
//! brings the host's register to the guest's value. Rust code between stubs may raise sticky flags on the host (it does
//! not care about them), which costs one more `settle` and never reaches the guest. Control bits other than the default
//! are put back at once, because Rust code would round by them.
//!
//! Unmasked exceptions: the instruction runs masked, with clear flags, on copies; if it raised a flag that the guest has
//! unmasked, its results are discarded and `#XM` is raised. An unmasked underflow is raised by tiny results that are exact
//! too, which the masked run does not flag (SDM vol. 1 §11.5.2.4); they are found in the result. Two things differ from
//! hardware: with an unmasked underflow or overflow the precision flag tells of the masked result, not of the one with
//! unbounded exponent; and DPPS and DPPD go on to their sum after an unmasked exception in a product.

use nodescope_x86::bits::cr4;
use nodescope_x86::{Exception, Vector};

use crate::cpu::Cpu;
use crate::lower::Lowering;
use crate::op::{Done, Flow, Handler, Op, Trap};

use super::{need, require, x87};

/// All exceptions masked, round to nearest, no flags: what Rust code runs with.
pub const DEFAULT: u32 = 0x1f80;
/// Bits that may be set; what the save areas show as MXCSR_MASK.
pub const MASK: u32 = 0xffff;
const FLAGS: u32 = 0x3f;
/// Rounding, flush to zero, denormals are zeros.
const CONTROL: u32 = 0xe040;
const FLUSH: u32 = 0x8000;
const UNDERFLOW: u32 = 0x10;
const UNDERFLOW_MASK: u32 = 0x0800;
/// Invalid, denormal, zero divide: found before the operation, which then does not take place.
const EARLY: u32 = 0x07;

fn load_host(value: u32) {
    // SAFETY: callers pass values without reserved bits and with all exceptions masked; control bits other than the default
    // are put back before any Rust code does arithmetic.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &value, options(nostack, readonly, preserves_flags))
    };
}

/// Carry out a stub that found the host's MXCSR different from the guest's.
#[cold]
#[inline(never)]
pub fn settle(cpu: &mut Cpu, op: &Op, memory: *mut u8) -> Result<(), Trap> {
    let stub = super::execute::stub(op);
    let guest = cpu.fx.mxcsr();
    let cpu_ptr: *mut Cpu = cpu;
    if guest & DEFAULT == DEFAULT {
        load_host(guest);
        // SAFETY: the contract of the stub is the caller's; the host's MXCSR equals the guest's now.
        let missed = unsafe { stub(cpu_ptr, memory) };
        if guest & CONTROL != 0 {
            load_host(DEFAULT);
        }
        debug_assert_eq!(missed, 0);
        return Ok(());
    }
    let before = (cpu.vector, cpu.gpr, cpu.rflags);
    let mmx = x87::snapshot(cpu);
    let mut run = guest & CONTROL | DEFAULT;
    if guest & UNDERFLOW_MASK == 0 {
        // Flushing applies to masked underflow only (SDM vol. 1 §10.2.3.3).
        run &= !FLUSH;
    }
    cpu.fx.set_mxcsr(run);
    load_host(run);
    // SAFETY: as above.
    let missed = unsafe { stub(cpu_ptr, memory) };
    load_host(DEFAULT);
    debug_assert_eq!(missed, 0);
    let mut raised = cpu.fx.mxcsr() & FLAGS;
    if guest & UNDERFLOW_MASK == 0 && is_tiny(cpu, op.src) {
        raised |= UNDERFLOW;
    }
    let unmasked = raised & !(guest >> 7);
    if unmasked == 0 {
        cpu.fx.set_mxcsr(guest | raised);
        return Ok(());
    }
    (cpu.vector, cpu.gpr, cpu.rflags) = before;
    x87::roll_back(cpu, mmx);
    let shown = if unmasked & EARLY != 0 {
        raised & EARLY
    } else {
        raised
    };
    cpu.fx.set_mxcsr(guest | shown);
    Err(cpu.raise(if cpu.control.cr4 & cr4::OSXMMEXCPT != 0 {
        Exception::new(Vector::Simd)
    } else {
        Exception::ud()
    }))
}

/// Where the results of an instruction lie that can underflow: register number, bit 4 set for doubles, bits 7:5 the
/// number of elements, as 1 + log2. Zero where there are none.
pub fn tiny_results(i: &iced_x86::Instruction) -> u8 {
    use iced_x86::{EncodingKind, Mnemonic, OpKind};
    if i.op0_kind() != OpKind::Register || !i.op0_register().is_vector_register() {
        return 0;
    }
    let register = i.op0_register();
    let name = format!("{:?}", i.mnemonic()).to_ascii_lowercase();
    let name = match i.encoding() {
        EncodingKind::VEX => name.strip_prefix('v').unwrap_or(&name),
        _ => name.as_str(),
    };
    let (double, packed) = match i.mnemonic() {
        Mnemonic::Cvtsd2ss | Mnemonic::Vcvtsd2ss => (false, false),
        Mnemonic::Cvtpd2ps | Mnemonic::Vcvtpd2ps => (false, true),
        _ => {
            let stems = [
                "add", "sub", "mul", "div", "hadd", "hsub", "dp", "fmadd", "fmsub", "fnmadd",
                "fnmsub",
            ];
            let (double, packed) = match name.as_bytes() {
                [.., b's', b's'] => (false, false),
                [.., b's', b'd'] => (true, false),
                [.., b'p', b's'] => (false, true),
                [.., b'p', b'd'] => (true, true),
                _ => return 0,
            };
            if !stems.iter().any(|s| name.starts_with(s)) {
                return 0;
            }
            (double, packed)
        }
    };
    let elements = if packed {
        register.size() / if double { 8 } else { 4 }
    } else {
        1
    };
    register.number() as u8 | u8::from(double) << 4 | (1 + elements.ilog2() as u8) << 5
}

/// Whether one of these results is subnormal.
fn is_tiny(cpu: &Cpu, results: u8) -> bool {
    if results == 0 {
        return false;
    }
    let register = &cpu.vector.0[usize::from(results & 15)];
    let elements = 1_usize << ((results >> 5) - 1);
    if results & 1 << 4 != 0 {
        let (numbers, _) = register.as_chunks::<8>();
        numbers[..elements]
            .iter()
            .any(|b| f64::from_le_bytes(*b).is_subnormal())
    } else {
        let (numbers, _) = register.as_chunks::<4>();
        numbers[..elements]
            .iter()
            .any(|b| f32::from_le_bytes(*b).is_subnormal())
    }
}

/// LDMXCSR, STMXCSR and their VEX forms.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use iced_x86::Mnemonic::*;
    Some(match l.instruction.mnemonic() {
        Ldmxcsr => load::<{ need::SSE }>,
        Vldmxcsr => load::<{ need::AVX }>,
        Stmxcsr => store::<{ need::SSE }>,
        Vstmxcsr => store::<{ need::AVX }>,
        _ => return None,
    })
}

fn load<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    let value: u32 = cpu.load(cpu.linear(op))?;
    if value & !MASK != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.fx.set_mxcsr(value);
    Ok(Flow::Next)
}

fn store<const NEED: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    require(cpu, NEED)?;
    cpu.store(cpu.linear(op), cpu.fx.mxcsr())?;
    Ok(Flow::Next)
}
