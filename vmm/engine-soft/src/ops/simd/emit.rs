//! Making stubs: the instruction itself between loads and stores of the guest's registers.
//!
//! A stub is called as `extern "sysv64" fn(cpu, memory)`. The instruction is re-encoded: its memory operand becomes
//! `[rsi]`, explicit general registers become r8 and r9, vector registers keep their numbers. The key of a stub is the
//! re-encoded instruction with the guest numbers of its general registers, so that one stub serves every address.
//!
//! A stub of a legacy SSE instruction loads and stores 128 bits of a register and leaves the upper half unchanged. VEX instructions clear
//! the bits that they do not write, and the stub stores the whole 256-bit register. A stub with a 256-bit operand ends with VZEROUPPER, so
//! that the SSE code of the engine does not pay for merging upper halves.

use std::mem::offset_of;

use iced_x86::code_asm::{
    CodeAssembler, ah, al, cl, dword_ptr, eax, get_gpr64, get_xmm, get_ymm, qword_ptr, rax, rdi,
    xmmword_ptr, ymmword_ptr,
};
use iced_x86::{
    EncodingKind, IcedError, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register,
    RflagsBits,
};

use crate::cpu::Cpu;

/// A stub before it has an address.
pub struct Plan {
    /// Bytes that distinguish the stub from others.
    pub key: Box<[u8]>,
    core: Instruction,
    /// Explicit general registers: (host, guest number).
    gprs: Vec<(Register, usize)>,
    mxcsr: bool,
}

const VECTOR: i32 = offset_of!(Cpu, vector) as i32;
const GPR: i32 = offset_of!(Cpu, gpr) as i32;
const RFLAGS: i32 = offset_of!(Cpu, rflags) as i32;
/// MXCSR within the FXSAVE image.
const MXCSR: i32 = offset_of!(Cpu, fx) as i32 + 24;
const HOST_MXCSR: i32 = offset_of!(Cpu, simd.host_mxcsr) as i32;

/// The status flags as iced-x86 numbers them. iced-x86 reports the x87 condition codes as flags, too.
const STATUS: u32 = RflagsBits::CF
    | RflagsBits::PF
    | RflagsBits::AF
    | RflagsBits::ZF
    | RflagsBits::SF
    | RflagsBits::OF;

/// Re-encodes an instruction for a stub. `mxcsr`: the instruction reads or sets MXCSR.
pub fn plan(instruction: &Instruction, mxcsr: bool) -> Result<Plan, IcedError> {
    let mut core = *instruction;
    core.set_has_lock_prefix(false);
    core.set_has_rep_prefix(false);
    core.set_has_repne_prefix(false);
    core.set_segment_prefix(Register::None);
    let mut gprs = Vec::new();
    for n in 0..core.op_count() {
        match core.op_kind(n) {
            OpKind::Memory => {
                core.set_memory_base(Register::RSI);
                core.set_memory_index(Register::None);
                core.set_memory_index_scale(1);
                core.set_memory_displ_size(0);
                core.set_memory_displacement64(0);
            }
            OpKind::Register if core.op_register(n).is_gpr() => {
                let guest = core.op_register(n);
                let k = gprs.len();
                let host = match guest.size() {
                    8 => [Register::R8, Register::R9][k],
                    _ => [Register::R8D, Register::R9D][k],
                };
                core.set_op_register(n, host);
                gprs.push((host.full_register(), guest.full_register().number()));
            }
            _ => {}
        }
    }
    let mut encoder = iced_x86::Encoder::new(64);
    encoder.encode(&core, 0)?;
    let mut key = encoder.take_buffer();
    key.extend(gprs.iter().map(|(_, guest)| *guest as u8));
    Ok(Plan {
        key: key.into(),
        core,
        gprs,
        mxcsr,
    })
}

fn reads(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

impl Plan {
    /// Assembles the stub for an address. A stub that uses MXCSR returns 0 when done. It returns 1, and does nothing, if the host's MXCSR
    /// did not have the guest's value. Other stubs return nothing.
    pub fn assemble(&self, ip: u64) -> Result<Vec<u8>, IcedError> {
        let core = &self.core;
        let vex = core.encoding() == EncodingKind::VEX;
        let wide = (0..core.op_count())
            .any(|n| core.op_kind(n) == OpKind::Register && core.op_register(n).is_ymm());
        let has_memory = (0..core.op_count()).any(|n| core.op_kind(n) == OpKind::Memory);
        let modifies_flags = core.rflags_modified() & STATUS != 0;
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(core);
        // (read, written) by vector register number and by general register number.
        let mut vectors = [(false, false); 16];
        let mut generals = [(false, false); 16];
        for used in info.used_registers() {
            let r = used.register();
            let slot = if r.is_vector_register() {
                &mut vectors[r.number() & 15]
            } else if r.is_gpr() && !(has_memory && r.full_register() == Register::RSI) {
                &mut generals[r.full_register().number()]
            } else {
                continue;
            };
            slot.0 |= reads(used.access());
            slot.1 |= writes(used.access());
        }
        let guest = |host: usize| {
            self.gprs
                .iter()
                .find(|(h, _)| h.number() == host)
                .map_or(host, |(_, g)| *g)
        };

        let mut a = CodeAssembler::new(64)?;
        let mut miss = a.create_label();
        if self.mxcsr {
            a.stmxcsr(dword_ptr(rdi + HOST_MXCSR))?;
            a.mov(eax, dword_ptr(rdi + HOST_MXCSR))?;
            a.cmp(eax, dword_ptr(rdi + MXCSR))?;
            a.jne(miss)?;
        }
        for (n, (read, write)) in generals.iter().enumerate() {
            if *read || *write {
                let host = get_gpr64(Register::RAX + n as u32).expect("a general register");
                a.mov(host, qword_ptr(rdi + GPR + 8 * guest(n) as i32))?;
            }
        }
        for (n, (read, write)) in vectors.iter().enumerate() {
            let at = VECTOR + 32 * n as i32;
            let xmm = get_xmm(Register::XMM0 + n as u32).expect("a vector register");
            if vex && *read && wide {
                let ymm = get_ymm(Register::YMM0 + n as u32).expect("a vector register");
                a.vmovups(ymm, ymmword_ptr(rdi + at))?;
            } else if vex && *read {
                a.vmovups(xmm, xmmword_ptr(rdi + at))?;
            } else if !vex && (*read || *write) {
                a.movups(xmm, xmmword_ptr(rdi + at))?;
            }
        }
        if core.rflags_read() & STATUS != 0 || super::classify::is_x87(core) && modifies_flags {
            // FCMOVcc reads flags, FCOMI leaves some unchanged; SAHF takes SF ZF AF PF CF from AH.
            a.mov(eax, dword_ptr(rdi + RFLAGS))?;
            a.shl(eax, 8)?;
            a.sahf()?;
        }
        a.add_instruction(*core)?;
        if modifies_flags {
            // LAHF and SETO cost less than PUSHFQ. AH has SF, ZF, AF, PF and CF at their positions in RFLAGS; OF is bit 11. The code below
            // uses ECX, so store a result of PCMPxSTRI in ECX first.
            if generals[1].1 {
                a.mov(
                    qword_ptr(rdi + GPR + 8 * guest(1) as i32),
                    iced_x86::code_asm::rcx,
                )?;
            }
            a.lahf()?;
            a.seto(al)?;
            a.movzx(iced_x86::code_asm::ecx, al)?;
            a.shl(iced_x86::code_asm::ecx, 11)?;
            a.mov(cl, ah)?;
            a.and(iced_x86::code_asm::ecx, 0x8d5)?;
            a.mov(rax, qword_ptr(rdi + RFLAGS))?;
            a.and(rax, !0x8d5)?;
            a.or(rax, iced_x86::code_asm::rcx)?;
            a.mov(qword_ptr(rdi + RFLAGS), rax)?;
            generals[1].1 = false;
        }
        for (n, (_, write)) in generals.iter().enumerate() {
            if *write {
                let host = get_gpr64(Register::RAX + n as u32).expect("a general register");
                a.mov(qword_ptr(rdi + GPR + 8 * guest(n) as i32), host)?;
            }
        }
        for (n, (_, write)) in vectors.iter().enumerate() {
            if *write {
                let at = VECTOR + 32 * n as i32;
                if vex {
                    let ymm = get_ymm(Register::YMM0 + n as u32).expect("a vector register");
                    a.vmovups(ymmword_ptr(rdi + at), ymm)?;
                } else {
                    let xmm = get_xmm(Register::XMM0 + n as u32).expect("a vector register");
                    a.movups(xmmword_ptr(rdi + at), xmm)?;
                }
            }
        }
        if self.mxcsr {
            a.stmxcsr(dword_ptr(rdi + MXCSR))?;
        }
        if wide {
            a.vzeroupper()?;
        }
        if self.mxcsr {
            a.xor(eax, eax)?;
            a.ret()?;
            a.set_label(&mut miss)?;
            a.mov(eax, 1)?;
        }
        a.ret()?;
        a.assemble(ip)
    }
}
