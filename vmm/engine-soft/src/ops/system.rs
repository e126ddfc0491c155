//! System instructions: control and debug registers, MSRs, descriptor tables, segment loads, far transfers, I/O, CPUID.

use iced_x86::{Code, Mnemonic, OpKind};
use nodescope_engine::{GuestVirtual, Hypercall, MemoryFault};
use nodescope_x86::Exception;
use nodescope_x86::bits::{cr0, cr4, efer, msr, rflags};
use nodescope_x86::exception::Vector;
use nodescope_x86::state::{InterruptShadow, seg};

use crate::cpu::{Cpu, Mode};
use crate::deliver::unpack;
use crate::lower::{Lowering, register_offset};
use crate::memory::is_canonical;
use crate::mmu::Intent;
use crate::op::{Done, Flow, Handler, Op, Trap};

/// EAX of the magic CPUID (`vmm/hypercall`).
const HYPERCALL_LEAF: u64 = 0x4e53_4350;

/// Whether a block ends after this instruction although control flow goes on: it reads the clock, changes what later
/// instructions depend on, or touches the platform.
pub fn ends_block(m: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        m,
        Rdtsc
            | Rdtscp
            | Cpuid
            | Rdmsr
            | Wrmsr
            | In
            | Out
            | Insb
            | Insw
            | Insd
            | Outsb
            | Outsw
            | Outsd
            | Invlpg
            | Lgdt
            | Lidt
            | Lldt
            | Ltr
            | Lmsw
            | Clts
            | Sti
            | Cli
            | Popf
            | Popfd
            | Popfq
            | Hlt
            | Xsetbv
            | Wbinvd
            | Invd
    )
}

/// An instruction that no group knows: the study stops.
pub fn unknown(cpu: &mut Cpu, op: &Op) -> Done {
    let linear = cpu.code_linear(cpu.ip(op));
    let mut bytes = Vec::new();
    for i in 0..u64::from(op.len) {
        if let Ok(page) = cpu.translate(linear.wrapping_add(i), Intent::Fetch)
            && !page.host.is_null()
        {
            // SAFETY: within a mapped page of RAM.
            bytes.push(unsafe { *page.host.add((linear.wrapping_add(i) & 0xfff) as usize) });
        }
    }
    let text = iced_x86::Decoder::with_ip(cpu.mode.bits(), &bytes, cpu.ip(op), 0).decode();
    let mut name = String::new();
    iced_x86::Formatter::format(&mut iced_x86::GasFormatter::new(), &text, &mut name);
    Err(cpu.unsupported(format!(
        "instruction not known to the engine: {name} ({:?})",
        text.code()
    )))
}

/// An encoding that no processor of the template knows.
fn undefined(cpu: &mut Cpu, _op: &Op) -> Done {
    Err(cpu.raise(Exception::ud()))
}

/// System instructions.
pub fn lower(l: &mut Lowering<'_>) -> Option<Handler> {
    use Mnemonic::*;
    let i = l.instruction;
    let register = |n: u32| i.op_register(n);
    let handler: Handler = match i.mnemonic() {
        INVALID => undefined,
        Syscall => syscall,
        Sysret | Sysretq => {
            l.op.aux = u32::from(i.code() == Code::Sysretq);
            sysret
        }
        Hlt => hlt,
        Cli => cli,
        Sti => sti,
        Cpuid => cpuid,
        Rdtsc => rdtsc::<false>,
        Rdtscp => rdtsc::<true>,
        Rdmsr => rdmsr,
        Wrmsr => wrmsr,
        Swapgs => swapgs,
        Clts => clts,
        Invlpg => invlpg,
        Wbinvd | Invd => cache_flush,
        Wbnoinvd => cache_flush,
        Rdpmc => rdpmc,
        Monitor | Mwait | Vmcall | Vmmcall | Invpcid | Rdpid | Clac | Stac => undefined,
        Lgdt | Lidt | Sgdt | Sidt => {
            l.op.aux = if l.mode == Mode::Bits64 {
                8
            } else if matches!(
                i.code(),
                Code::Lgdt_m1632 | Code::Lidt_m1632 | Code::Sgdt_m1632 | Code::Sidt_m1632
            ) {
                4
            } else {
                3
            };
            match i.mnemonic() {
                Lgdt => load_table::<false>,
                Lidt => load_table::<true>,
                Sgdt => store_table::<false>,
                _ => store_table::<true>,
            }
        }
        Lldt | Ltr | Verr | Verw | Lmsw => {
            if i.op0_kind() == OpKind::Register {
                l.op.src = register_offset(register(0));
                l.op.aux = 1;
            }
            match i.mnemonic() {
                Lldt => lldt,
                Ltr => ltr,
                Verr => verify::<false>,
                Verw => verify::<true>,
                _ => lmsw,
            }
        }
        Sldt | Str | Smsw => {
            if i.op0_kind() == OpKind::Register {
                l.op.dst = register_offset(register(0));
                l.op.aux = register(0).size() as u32;
            }
            match i.mnemonic() {
                Sldt => store_system::<0>,
                Str => store_system::<1>,
                _ => store_system::<2>,
            }
        }
        Lar | Lsl => {
            l.op.dst = register_offset(register(0));
            l.op.src2 = register(0).size() as u8;
            if i.op1_kind() == OpKind::Register {
                l.op.src = register_offset(register(1));
                l.op.aux = 1;
            }
            if i.mnemonic() == Lar { lar } else { lsl }
        }
        Rdfsbase | Rdgsbase | Wrfsbase | Wrgsbase => {
            l.op.dst = register_offset(register(0));
            l.op.aux = register(0).size() as u32;
            match i.mnemonic() {
                Rdfsbase => read_base::<{ seg::FS }>,
                Rdgsbase => read_base::<{ seg::GS }>,
                Wrfsbase => write_base::<{ seg::FS }>,
                _ => write_base::<{ seg::GS }>,
            }
        }
        Rdrand | Rdseed => {
            l.op.dst = register_offset(register(0));
            l.op.aux = register(0).size() as u32;
            random
        }
        Mov if i.op_count() == 2
            && i.op0_kind() == OpKind::Register
            && i.op1_kind() == OpKind::Register =>
        {
            let (a, b) = (register(0), register(1));
            if a.is_cr() {
                (l.op.dst, l.op.src) = (a.number() as u8, register_offset(b));
                write_cr
            } else if b.is_cr() {
                (l.op.src, l.op.dst) = (b.number() as u8, register_offset(a));
                read_cr
            } else if a.is_dr() {
                (l.op.dst, l.op.src) = (a.number() as u8, register_offset(b));
                write_dr
            } else if b.is_dr() {
                (l.op.src, l.op.dst) = (b.number() as u8, register_offset(a));
                read_dr
            } else if a.is_segment_register() {
                (l.op.dst, l.op.src, l.op.aux) = (a.number() as u8, register_offset(b), 1);
                write_segment
            } else if b.is_segment_register() {
                (l.op.src, l.op.dst, l.op.aux) =
                    (b.number() as u8, register_offset(a), a.size() as u32);
                read_segment
            } else {
                return None;
            }
        }
        Mov if i.op_count() == 2
            && i.op0_kind() == OpKind::Register
            && register(0).is_segment_register() =>
        {
            l.op.dst = register(0).number() as u8;
            write_segment
        }
        Mov if i.op_count() == 2
            && i.op1_kind() == OpKind::Register
            && register(1).is_segment_register() =>
        {
            l.op.src = register(1).number() as u8;
            read_segment
        }
        Push if i.op0_kind() == OpKind::Register && register(0).is_segment_register() => {
            l.op.src = register(0).number() as u8;
            l.op.aux = i.stack_pointer_increment().unsigned_abs();
            push_segment
        }
        Pop if i.op0_kind() == OpKind::Register && register(0).is_segment_register() => {
            l.op.dst = register(0).number() as u8;
            l.op.aux = i.stack_pointer_increment().unsigned_abs();
            pop_segment
        }
        In | Out => {
            let data = if i.mnemonic() == In {
                register(0)
            } else {
                register(1)
            };
            let port = if i.mnemonic() == In {
                i.op1_kind()
            } else {
                i.op0_kind()
            };
            l.op.aux = data.size() as u32;
            if port == OpKind::Register {
                l.op.src2 = 1;
            } else {
                l.op.imm = u64::from(i.immediate8());
            }
            if i.mnemonic() == In { input } else { output }
        }
        Int3 => int3,
        Int => {
            l.op.imm = u64::from(i.immediate8());
            int_n
        }
        Int1 => int1,
        Iret | Iretd | Iretq => {
            l.op.aux = match i.mnemonic() {
                Iret => 2,
                Iretd => 4,
                _ => 8,
            };
            iret
        }
        Retf => {
            l.op.imm = if i.op_count() > 0 {
                u64::from(i.immediate16())
            } else {
                0
            };
            l.op.aux = match i.code() {
                Code::Retfw | Code::Retfw_imm16 => 2,
                Code::Retfd | Code::Retfd_imm16 => 4,
                _ => 8,
            };
            return_far
        }
        Jmp | Call if i.is_jmp_far() || i.is_call_far() => {
            let far = if i.op0_kind() == OpKind::FarBranch16 {
                u32::from(i.far_branch16())
            } else {
                i.far_branch32()
            };
            l.op.imm = u64::from(far) | u64::from(i.far_branch_selector()) << 32;
            // Call: operand size for the pushes.
            l.op.aux = if i.op0_kind() == OpKind::FarBranch16 {
                2
            } else {
                4
            };
            if i.is_jmp_far() {
                jump_far_immediate
            } else {
                call_far_immediate
            }
        }
        Jmp | Call if i.is_jmp_far_indirect() || i.is_call_far_indirect() => {
            l.op.aux = match i.code() {
                Code::Jmp_m1616 | Code::Call_m1616 => 2,
                Code::Jmp_m1632 | Code::Call_m1632 => 4,
                _ => 8,
            };
            if i.is_jmp_far_indirect() {
                jump_far_memory
            } else {
                call_far_memory
            }
        }
        _ => return None,
    };
    Some(handler)
}

fn privileged(cpu: &mut Cpu) -> Result<(), Trap> {
    if cpu.cpl == 0 {
        Ok(())
    } else {
        Err(cpu.raise(Exception::gp(0)))
    }
}

/// Retire and let the run loop look around.
fn attend(cpu: &mut Cpu, op: &Op) -> Done {
    let ip = cpu.next_ip(op);
    let ip = cpu.wrap_ip(ip);
    cpu.set_ip(ip);
    Ok(Flow::Attend)
}

fn hlt(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    attend(cpu, op)?;
    Ok(Flow::Halt)
}

fn may_change_interrupts(cpu: &mut Cpu) -> Result<(), Trap> {
    let iopl = (cpu.rflags >> 12 & 3) as u8;
    if cpu.cpl <= iopl || cpu.control.cr0 & cr0::PE == 0 {
        Ok(())
    } else {
        Err(cpu.raise(Exception::gp(0)))
    }
}

fn cli(cpu: &mut Cpu, op: &Op) -> Done {
    may_change_interrupts(cpu)?;
    cpu.rflags &= !rflags::IF;
    attend(cpu, op)
}

fn sti(cpu: &mut Cpu, op: &Op) -> Done {
    may_change_interrupts(cpu)?;
    if cpu.rflags & rflags::IF == 0 {
        cpu.rflags |= rflags::IF;
        cpu.events.shadow = InterruptShadow::Sti;
    }
    attend(cpu, op)
}

fn rdtsc<const AUX: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.cpl != 0 && cpu.control.cr4 & cr4::TSD != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let tsc = cpu.now().wrapping_add(cpu.time.tsc_offset);
    cpu.gpr[0] = tsc & 0xffff_ffff;
    cpu.gpr[2] = tsc >> 32;
    if AUX {
        cpu.gpr[1] = cpu.msrs.tsc_aux & 0xffff_ffff;
    }
    let ip = cpu.next_ip(op);
    cpu.set_ip(ip);
    Ok(Flow::Branch)
}

fn rdpmc(cpu: &mut Cpu, _op: &Op) -> Done {
    Err(cpu.raise(Exception::gp(0)))
}

fn cache_flush(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    attend(cpu, op)
}

fn clts(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    cpu.control.cr0 &= !cr0::TS;
    cpu.refresh_mode();
    attend(cpu, op)
}

fn invlpg(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let linear = cpu.linear(op);
    cpu.forget_page(linear);
    attend(cpu, op)
}

fn swapgs(cpu: &mut Cpu, _op: &Op) -> Done {
    privileged(cpu)?;
    let gs = &mut cpu.segments.data[seg::GS];
    std::mem::swap(&mut gs.base, &mut cpu.msrs.kernel_gs_base);
    cpu.segment_base[seg::GS] = cpu.segments.data[seg::GS].base;
    Ok(Flow::Next)
}

fn read_base<const S: usize>(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.control.cr4 & cr4::FSGSBASE == 0 {
        return Err(cpu.raise(Exception::ud()));
    }
    let base = cpu.segments.data[S].base;
    if op.aux == 4 {
        cpu.set_reg::<u32>(op.dst, base as u32)
    } else {
        cpu.set_reg::<u64>(op.dst, base)
    }
    Ok(Flow::Next)
}

fn write_base<const S: usize>(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.control.cr4 & cr4::FSGSBASE == 0 {
        return Err(cpu.raise(Exception::ud()));
    }
    let base = if op.aux == 4 {
        cpu.reg::<u32>(op.dst).into()
    } else {
        cpu.reg::<u64>(op.dst)
    };
    if !is_canonical(base) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.segments.data[S].base = base;
    cpu.segment_base[S] = base;
    Ok(Flow::Next)
}

fn random(cpu: &mut Cpu, op: &Op) -> Done {
    cpu.time.random_draws += 1;
    let value = cpu.random.value(cpu.time.random_draws);
    match op.aux {
        2 => cpu.set_reg(op.dst, value as u16),
        4 => cpu.set_reg(op.dst, value as u32),
        _ => cpu.set_reg(op.dst, value),
    }
    cpu.set_status_flags(rflags::CF);
    Ok(Flow::Next)
}

/// A linear-address view for hypercalls: RAM only, not reported to models.
struct Borrowed<'a>(&'a mut Cpu);

impl Borrowed<'_> {
    fn copy(
        &mut self,
        address: u64,
        len: usize,
        intent: Intent,
        mut f: impl FnMut(*mut u8, usize, usize),
    ) -> Result<(), MemoryFault> {
        let mut done = 0;
        while done < len {
            let at = address.wrapping_add(done as u64);
            let fault = MemoryFault { address: at };
            if !is_canonical(at) {
                return Err(fault);
            }
            let page = self.0.translate(at, intent).map_err(|Trap| {
                self.0.exception = None;
                self.0.stop = None;
                fault
            })?;
            if page.host.is_null() {
                return Err(fault);
            }
            let offset = (at & 0xfff) as usize;
            let n = (4096 - offset).min(len - done);
            if intent == Intent::Write {
                let region = &self.0.ram.regions()[page.region as usize];
                region
                    .code
                    .written((page.physical - region.start) as usize + offset, n);
            }
            // SAFETY: `n` bytes from `offset` lie within the mapped page.
            f(unsafe { page.host.add(offset) }, done, n);
            done += n;
        }
        Ok(())
    }
}

impl GuestVirtual for Borrowed<'_> {
    fn read(&mut self, address: u64, buf: &mut [u8]) -> Result<(), MemoryFault> {
        self.copy(address, buf.len(), Intent::Read, |host, at, n| {
            // SAFETY: `copy` hands out `n` readable bytes.
            unsafe { std::ptr::copy_nonoverlapping(host, buf[at..at + n].as_mut_ptr(), n) }
        })
    }
    fn write(&mut self, address: u64, buf: &[u8]) -> Result<(), MemoryFault> {
        self.copy(address, buf.len(), Intent::Write, |host, at, n| {
            // SAFETY: `copy` hands out `n` writable bytes.
            unsafe { std::ptr::copy_nonoverlapping(buf[at..at + n].as_ptr(), host, n) }
        })
    }
}

fn cpuid(cpu: &mut Cpu, op: &Op) -> Done {
    let (leaf, subleaf) = (cpu.gpr[0] as u32, cpu.gpr[1] as u32);
    let (a, b, c, d);
    if u64::from(leaf) == HYPERCALL_LEAF {
        let call = Hypercall {
            vcpu: cpu.id,
            operation: subleaf,
            args: [cpu.gpr[6], cpu.gpr[7], cpu.gpr[8], cpu.gpr[9], cpu.gpr[10]],
            now: cpu.now(),
            instructions: cpu.instructions() + 1,
            cr3: cpu.control.cr3,
            privilege: cpu.privilege(),
        };
        let mut platform = cpu.platform.expect("called only below run()");
        // SAFETY: as in `Cpu::platform`; `Borrowed` never calls the platform, so the reference is exclusive.
        let answer = unsafe { platform.as_mut() }.hypercall(&call, &mut Borrowed(cpu));
        (a, b, c, d) = (answer.eax, answer.ebx, answer.ecx, answer.edx);
        cpu.touched_platform = true;
    } else {
        let mut e = cpu.cpuid.get(leaf, subleaf);
        // OSXSAVE mirrors CR4 (SDM vol. 2A, CPUID leaf 1 ECX bit 27).
        if leaf == 1 {
            e.ecx = e.ecx & !(1 << 27) | u32::from(cpu.control.cr4 & cr4::OSXSAVE != 0) << 27;
        }
        (a, b, c, d) = (e.eax, e.ebx, e.ecx, e.edx);
    }
    cpu.gpr[0] = a.into();
    cpu.gpr[3] = b.into();
    cpu.gpr[1] = c.into();
    cpu.gpr[2] = d.into();
    attend(cpu, op)
}

fn rdmsr(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let number = cpu.gpr[1] as u32;
    let m = &cpu.msrs;
    let value = match number {
        msr::EFER => cpu.control.efer,
        msr::STAR => m.star,
        msr::LSTAR => m.lstar,
        msr::CSTAR => m.cstar,
        msr::SFMASK => m.sfmask,
        msr::FS_BASE => cpu.segments.data[seg::FS].base,
        msr::GS_BASE => cpu.segments.data[seg::GS].base,
        msr::KERNEL_GS_BASE => m.kernel_gs_base,
        msr::TSC_AUX => m.tsc_aux,
        msr::TSC => cpu.now().wrapping_add(cpu.time.tsc_offset),
        msr::TSC_ADJUST => m.tsc_adjust,
        msr::SYSENTER_CS => m.sysenter_cs,
        msr::SYSENTER_ESP => m.sysenter_esp,
        msr::SYSENTER_EIP => m.sysenter_eip,
        msr::PAT => m.pat,
        msr::MISC_ENABLE => m.misc_enable,
        msr::SPEC_CTRL => m.spec_ctrl,
        // Eight variable ranges, fixed ranges, write combining.
        msr::MTRR_CAP => 0x508,
        msr::MTRR_DEF_TYPE => m.mtrr_def_type,
        msr::MTRR_PHYS_BASE0..=msr::MTRR_PHYS_MASK7 => {
            m.mtrr_variable[(number - msr::MTRR_PHYS_BASE0) as usize]
        }
        msr::MTRR_FIX_64K => m.mtrr_fixed[0],
        msr::MTRR_FIX_16K_0 | msr::MTRR_FIX_16K_1 => {
            m.mtrr_fixed[(number - msr::MTRR_FIX_16K_0 + 1) as usize]
        }
        msr::MTRR_FIX_4K_0..=msr::MTRR_FIX_4K_7 => {
            m.mtrr_fixed[(number - msr::MTRR_FIX_4K_0 + 3) as usize]
        }
        msr::MCG_CAP | msr::MCG_STATUS | msr::BIOS_SIGN_ID => 0,
        // Locked, VMX off.
        msr::FEATURE_CONTROL => 1,
        _ => {
            cpu.touched_platform = true;
            let (id, now) = (cpu.id, cpu.now());
            match cpu.platform().msr_read(id, now, number) {
                Ok(value) => value,
                Err(_) => return Err(cpu.raise(Exception::gp(0))),
            }
        }
    };
    cpu.gpr[0] = value & 0xffff_ffff;
    cpu.gpr[2] = value >> 32;
    attend(cpu, op)
}

fn wrmsr(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let number = cpu.gpr[1] as u32;
    let value = cpu.gpr[0] & 0xffff_ffff | cpu.gpr[2] << 32;
    let canonical_only = matches!(
        number,
        msr::LSTAR
            | msr::CSTAR
            | msr::FS_BASE
            | msr::GS_BASE
            | msr::KERNEL_GS_BASE
            | msr::SYSENTER_ESP
            | msr::SYSENTER_EIP
    );
    if canonical_only && !is_canonical(value) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let now = cpu.now();
    let m = &mut cpu.msrs;
    match number {
        msr::EFER => {
            let known = efer::SCE | efer::LME | efer::LMA | efer::NXE;
            let paging = cpu.control.cr0 & cr0::PG != 0;
            if value & !known != 0 || paging && (value ^ cpu.control.efer) & efer::LME != 0 {
                return Err(cpu.raise(Exception::gp(0)));
            }
            cpu.control.efer = value & !efer::LMA | cpu.control.efer & efer::LMA;
            cpu.update_long_mode();
            cpu.forget_translations();
            cpu.refresh_mode();
        }
        msr::STAR => m.star = value,
        msr::LSTAR => m.lstar = value,
        msr::CSTAR => m.cstar = value,
        msr::SFMASK => m.sfmask = value & 0xffff_ffff,
        msr::FS_BASE => {
            cpu.segments.data[seg::FS].base = value;
            cpu.segment_base[seg::FS] = value;
        }
        msr::GS_BASE => {
            cpu.segments.data[seg::GS].base = value;
            cpu.segment_base[seg::GS] = value;
        }
        msr::KERNEL_GS_BASE => m.kernel_gs_base = value,
        msr::TSC_AUX => m.tsc_aux = value & 0xffff_ffff,
        msr::TSC | msr::TSC_ADJUST => {
            let old = cpu.time.tsc_offset;
            let new = if number == msr::TSC {
                value.wrapping_sub(now)
            } else {
                old.wrapping_add(value.wrapping_sub(m.tsc_adjust))
            };
            m.tsc_adjust = m.tsc_adjust.wrapping_add(new.wrapping_sub(old));
            cpu.time.tsc_offset = new;
            cpu.touched_platform = true;
            let (id, now) = (cpu.id, cpu.now());
            cpu.platform().tsc_offset_changed(id, now, new);
        }
        msr::SYSENTER_CS => m.sysenter_cs = value,
        msr::SYSENTER_ESP => m.sysenter_esp = value,
        msr::SYSENTER_EIP => m.sysenter_eip = value,
        msr::PAT => m.pat = value,
        msr::MISC_ENABLE => m.misc_enable = value,
        msr::SPEC_CTRL => m.spec_ctrl = value,
        msr::PRED_CMD => {}
        msr::MTRR_DEF_TYPE => m.mtrr_def_type = value,
        msr::MTRR_PHYS_BASE0..=msr::MTRR_PHYS_MASK7 => {
            m.mtrr_variable[(number - msr::MTRR_PHYS_BASE0) as usize] = value
        }
        msr::MTRR_FIX_64K => m.mtrr_fixed[0] = value,
        msr::MTRR_FIX_16K_0 | msr::MTRR_FIX_16K_1 => {
            m.mtrr_fixed[(number - msr::MTRR_FIX_16K_0 + 1) as usize] = value
        }
        msr::MTRR_FIX_4K_0..=msr::MTRR_FIX_4K_7 => {
            m.mtrr_fixed[(number - msr::MTRR_FIX_4K_0 + 3) as usize] = value
        }
        msr::MCG_STATUS | msr::BIOS_SIGN_ID => {}
        _ => {
            cpu.touched_platform = true;
            let (id, now) = (cpu.id, cpu.now());
            if cpu.platform().msr_write(id, now, number, value).is_err() {
                return Err(cpu.raise(Exception::gp(0)));
            }
        }
    }
    attend(cpu, op)
}

fn read_cr(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let value = match op.src {
        0 => cpu.control.cr0,
        2 => cpu.control.cr2,
        3 => cpu.control.cr3,
        4 => cpu.control.cr4,
        8 => {
            let id = cpu.id;
            cpu.platform().task_priority(id).into()
        }
        _ => return Err(cpu.raise(Exception::ud())),
    };
    if cpu.mode == Mode::Bits64 {
        cpu.set_reg::<u64>(op.dst, value)
    } else {
        cpu.set_reg::<u32>(op.dst, value as u32)
    }
    Ok(Flow::Next)
}

fn write_cr(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let value = if cpu.mode == Mode::Bits64 {
        cpu.reg::<u64>(op.src)
    } else {
        cpu.reg::<u32>(op.src).into()
    };
    match op.dst {
        0 => write_cr0(cpu, value)?,
        2 => cpu.control.cr2 = value,
        3 => {
            // Bit 63 (no flush) needs PCID, which the template hides; reserved address bits fault.
            if cpu.long_mode() && value >> 52 != 0 {
                return Err(cpu.raise(Exception::gp(0)));
            }
            cpu.control.cr3 = value;
            cpu.forget_local_translations();
            if cpu.attached {
                cpu.refresh_context();
            }
        }
        4 => write_cr4(cpu, value)?,
        8 => {
            if value > 15 {
                return Err(cpu.raise(Exception::gp(0)));
            }
            cpu.touched_platform = true;
            let (id, now) = (cpu.id, cpu.now());
            cpu.platform().set_task_priority(id, now, value as u8);
        }
        _ => return Err(cpu.raise(Exception::ud())),
    }
    attend(cpu, op)
}

fn write_cr0(cpu: &mut Cpu, value: u64) -> Result<(), Trap> {
    let bad = value >> 32 != 0
        || value & cr0::PG != 0 && value & cr0::PE == 0
        || value & cr0::NW != 0 && value & cr0::CD == 0
        || value & cr0::PG != 0
            && cpu.control.efer & efer::LME != 0
            && cpu.control.cr4 & cr4::PAE == 0
        || value & cr0::PG == 0 && cpu.mode == Mode::Bits64;
    if bad {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let known = cr0::PE
        | cr0::MP
        | cr0::EM
        | cr0::TS
        | cr0::NE
        | cr0::WP
        | cr0::AM
        | cr0::NW
        | cr0::CD
        | cr0::PG;
    let changed = value ^ cpu.control.cr0;
    cpu.control.cr0 = value & known | cr0::ET;
    if value & cr0::PE == 0 {
        cpu.cpl = 0;
    }
    cpu.update_long_mode();
    if changed & (cr0::PG | cr0::WP | cr0::PE) != 0 {
        cpu.forget_translations();
    }
    cpu.refresh_mode();
    Ok(())
}

/// CR4 bits of what the engine implements; setting any other raises `#GP(0)` as on a processor without the feature.
const CR4_KNOWN: u64 = cr4::VME
    | cr4::PVI
    | cr4::TSD
    | cr4::DE
    | cr4::PSE
    | cr4::PAE
    | cr4::MCE
    | cr4::PGE
    | cr4::OSFXSR
    | cr4::OSXMMEXCPT
    | cr4::FSGSBASE
    | cr4::OSXSAVE
    | cr4::SMEP;

fn write_cr4(cpu: &mut Cpu, value: u64) -> Result<(), Trap> {
    if value & !CR4_KNOWN != 0 || cpu.long_mode() && value & cr4::PAE == 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let changed = value ^ cpu.control.cr4;
    cpu.control.cr4 = value;
    if changed & (cr4::PGE | cr4::PAE | cr4::PSE | cr4::SMEP) != 0 {
        cpu.forget_translations();
    }
    cpu.refresh_mode();
    Ok(())
}

fn read_dr(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let value = match op.src {
        n @ 0..=3 => cpu.debug.dr[usize::from(n)],
        4 | 6 => cpu.debug.dr6,
        _ => cpu.debug.dr7,
    };
    if cpu.mode == Mode::Bits64 {
        cpu.set_reg::<u64>(op.dst, value)
    } else {
        cpu.set_reg::<u32>(op.dst, value as u32)
    }
    Ok(Flow::Next)
}

fn write_dr(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let value = if cpu.mode == Mode::Bits64 {
        cpu.reg::<u64>(op.src)
    } else {
        cpu.reg::<u32>(op.src).into()
    };
    match op.dst {
        n @ 0..=3 => cpu.debug.dr[usize::from(n)] = value,
        4 | 6 => cpu.debug.dr6 = value & 0x1_e00f | 0xffff_0ff0 & !(1 << 16) | value & 1 << 16,
        _ => {
            if value & 0xff != 0 {
                return Err(cpu.unsupported("hardware breakpoints (DR7 enables one)"));
            }
            cpu.debug.dr7 = value & 0xffff_2bff | 0x400;
        }
    }
    Ok(Flow::Next)
}

fn write_segment(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = if op.aux != 0 {
        cpu.reg::<u16>(op.src)
    } else {
        let at = cpu.linear(op);
        cpu.load::<u16>(at)?
    };
    if usize::from(op.dst) == seg::CS {
        return Err(cpu.raise(Exception::ud()));
    }
    cpu.load_segment(op.dst.into(), selector)?;
    if usize::from(op.dst) == seg::SS {
        cpu.events.shadow = InterruptShadow::MovSs;
    }
    attend(cpu, op)
}

fn read_segment(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = cpu.segments.data[usize::from(op.src)].selector;
    match op.aux {
        0 => {
            let at = cpu.linear(op);
            cpu.store::<u16>(at, selector)?;
        }
        2 => cpu.set_reg::<u16>(op.dst, selector),
        4 => cpu.set_reg::<u32>(op.dst, selector.into()),
        _ => cpu.set_reg::<u64>(op.dst, selector.into()),
    }
    Ok(Flow::Next)
}

/// Stack address and new stack pointer after moving it by `delta`, at the stack's width.
fn stack(cpu: &Cpu, delta: i64) -> (u64, u64) {
    let ss = cpu.segments.data[seg::SS];
    let (mask, base) = match cpu.mode {
        Mode::Bits64 => (u64::MAX, 0),
        _ if ss.default_32() => (0xffff_ffff, ss.base),
        _ => (0xffff, ss.base),
    };
    let old = cpu.gpr[4];
    let new = old.wrapping_add(delta as u64) & mask;
    let at = if delta < 0 { new } else { old & mask };
    (base.wrapping_add(at), old & !mask | new)
}

fn push(cpu: &mut Cpu, size: u32, value: u64) -> Result<(), Trap> {
    let (at, sp) = stack(cpu, -i64::from(size));
    match size {
        2 => cpu.store(at, value as u16)?,
        4 => cpu.store(at, value as u32)?,
        _ => cpu.store(at, value)?,
    }
    cpu.gpr[4] = sp;
    Ok(())
}

fn peek(cpu: &mut Cpu, size: u32, index: u32) -> Result<u64, Trap> {
    let (at, _) = stack(cpu, i64::from(size * index));
    let at = at.wrapping_add(u64::from(size * index));
    Ok(match size {
        2 => cpu.load::<u16>(at)?.into(),
        4 => cpu.load::<u32>(at)?.into(),
        _ => cpu.load::<u64>(at)?,
    })
}

fn push_segment(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = cpu.segments.data[usize::from(op.src)].selector;
    push(cpu, op.aux, selector.into())?;
    Ok(Flow::Next)
}

fn pop_segment(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = peek(cpu, op.aux, 0)? as u16;
    cpu.load_segment(op.dst.into(), selector)?;
    cpu.gpr[4] = stack(cpu, op.aux.into()).1;
    if usize::from(op.dst) == seg::SS {
        cpu.events.shadow = InterruptShadow::MovSs;
    }
    attend(cpu, op)
}

fn load_table<const IDT: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let at = cpu.linear(op);
    let limit: u16 = cpu.load(at)?;
    let base = match op.aux {
        8 => cpu.load::<u64>(at.wrapping_add(2))?,
        4 => cpu.load::<u32>(at.wrapping_add(2))?.into(),
        _ => u64::from(cpu.load::<u32>(at.wrapping_add(2))? & 0xff_ffff),
    };
    if cpu.mode == Mode::Bits64 && !is_canonical(base) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let table = if IDT {
        &mut cpu.segments.idt
    } else {
        &mut cpu.segments.gdt
    };
    (table.base, table.limit) = (base, limit);
    attend(cpu, op)
}

fn store_table<const IDT: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    let at = cpu.linear(op);
    let table = if IDT {
        cpu.segments.idt
    } else {
        cpu.segments.gdt
    };
    let mut bytes = [0; 10];
    bytes[..2].copy_from_slice(&table.limit.to_le_bytes());
    bytes[2..].copy_from_slice(&table.base.to_le_bytes());
    let len = if op.aux == 8 { 10 } else { 6 };
    cpu.write_bytes(at, &bytes[..len])?;
    Ok(Flow::Next)
}

fn selector_operand(cpu: &mut Cpu, op: &Op) -> Result<u16, Trap> {
    if op.aux != 0 {
        return Ok(cpu.reg(op.src));
    }
    let at = cpu.linear(op);
    cpu.load(at)
}

/// The descriptor of a system segment (16 bytes in long mode).
fn system_descriptor(
    cpu: &mut Cpu,
    selector: u16,
    kinds: [u16; 2],
) -> Result<nodescope_x86::Segment, Trap> {
    let error = u32::from(selector) & !3;
    if selector & 4 != 0 {
        return Err(cpu.raise(Exception::gp(error)));
    }
    let Some((raw, at)) = cpu.descriptor(selector)? else {
        return Err(cpu.raise(Exception::gp(error)));
    };
    let mut s = unpack(selector, raw);
    if s.attributes & 0x10 != 0 || !kinds.contains(&(s.attributes & 0xf)) {
        return Err(cpu.raise(Exception::gp(error)));
    }
    if s.attributes & 0x80 == 0 {
        return Err(cpu.raise(Exception::with_error(Vector::SegmentNotPresent, error)));
    }
    if cpu.long_mode() {
        let high = cpu.as_supervisor(|c| c.load::<u64>(at.wrapping_add(8)))?;
        s.base |= high << 32;
    }
    Ok(s)
}

fn lldt(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let selector = selector_operand(cpu, op)?;
    if selector & !3 == 0 {
        cpu.segments.ldt = nodescope_x86::Segment {
            selector,
            unusable: true,
            ..Default::default()
        };
        return attend(cpu, op);
    }
    cpu.segments.ldt = system_descriptor(cpu, selector, [2, 2])?;
    attend(cpu, op)
}

fn ltr(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let selector = selector_operand(cpu, op)?;
    if selector & !3 == 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let mut s = system_descriptor(cpu, selector, [9, 1])?;
    // Mark the task busy.
    if let Some((raw, at)) = cpu.descriptor(selector)? {
        cpu.as_supervisor(|c| c.store::<u64>(at, raw | 2 << 40))?;
    }
    s.attributes |= 2;
    cpu.segments.tr = s;
    attend(cpu, op)
}

fn store_system<const WHAT: u8>(cpu: &mut Cpu, op: &Op) -> Done {
    let value = match WHAT {
        0 => u64::from(cpu.segments.ldt.selector),
        1 => u64::from(cpu.segments.tr.selector),
        _ => cpu.control.cr0,
    };
    match op.aux {
        0 => {
            let at = cpu.linear(op);
            cpu.store::<u16>(at, value as u16)?;
        }
        2 => cpu.set_reg::<u16>(op.dst, value as u16),
        4 => cpu.set_reg::<u32>(op.dst, value as u32),
        _ => cpu.set_reg::<u64>(op.dst, value),
    }
    Ok(Flow::Next)
}

fn lmsw(cpu: &mut Cpu, op: &Op) -> Done {
    privileged(cpu)?;
    let value = u64::from(selector_operand(cpu, op)?);
    // PE can be set, not cleared (SDM vol. 2A, LMSW).
    let new = cpu.control.cr0 & !0xe | value & 0xf;
    write_cr0(cpu, new)?;
    attend(cpu, op)
}

/// The descriptor that LAR, LSL, VERR and VERW may look at, or None (SDM vol. 2A, LAR, table 3-52).
fn visible(
    cpu: &mut Cpu,
    selector: u16,
    systems: u32,
) -> Result<Option<(u64, nodescope_x86::Segment)>, Trap> {
    let Some((raw, _)) = cpu.descriptor(selector)? else {
        return Ok(None);
    };
    let s = unpack(selector, raw);
    let kind = s.attributes & 0xf;
    let normal = s.attributes & 0x10 != 0;
    if !normal && systems >> kind & 1 == 0 {
        return Ok(None);
    }
    let conforming = normal && kind & 0xc == 0xc;
    let rpl = (selector & 3) as u8;
    if !conforming && s.dpl() < cpu.cpl.max(rpl) {
        return Ok(None);
    }
    Ok(Some((raw, s)))
}

fn set_zero_flag(cpu: &mut Cpu, set: bool) {
    cpu.rflags = cpu.rflags & !rflags::ZF | if set { rflags::ZF } else { 0 };
}

fn lar(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = selector_operand(cpu, op)?;
    // Long mode: LDT, available and busy 64-bit TSS, 64-bit call gate.
    let found = visible(cpu, selector, 1 << 2 | 1 << 9 | 1 << 11 | 1 << 12)?;
    set_zero_flag(cpu, found.is_some());
    if let Some((raw, _)) = found {
        let value = raw >> 32 & 0x00ff_ff00;
        match op.src2 {
            2 => cpu.set_reg::<u16>(op.dst, value as u16),
            4 => cpu.set_reg::<u32>(op.dst, value as u32),
            _ => cpu.set_reg::<u64>(op.dst, value),
        }
    }
    Ok(Flow::Next)
}

fn lsl(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = selector_operand(cpu, op)?;
    let found = visible(cpu, selector, 1 << 2 | 1 << 9 | 1 << 11)?;
    set_zero_flag(cpu, found.is_some());
    if let Some((_, s)) = found {
        match op.src2 {
            2 => cpu.set_reg::<u16>(op.dst, s.limit as u16),
            4 => cpu.set_reg::<u32>(op.dst, s.limit),
            _ => cpu.set_reg::<u64>(op.dst, s.limit.into()),
        }
    }
    Ok(Flow::Next)
}

fn verify<const WRITE: bool>(cpu: &mut Cpu, op: &Op) -> Done {
    let selector = selector_operand(cpu, op)?;
    let found = visible(cpu, selector, 0)?;
    let ok = found.is_some_and(|(_, s)| {
        let code = s.attributes & 8 != 0;
        if WRITE {
            !code && s.attributes & 2 != 0
        } else {
            !code || s.attributes & 2 != 0
        }
    });
    set_zero_flag(cpu, ok);
    Ok(Flow::Next)
}

pub fn io_allowed(cpu: &mut Cpu, port: u16, size: u32) -> Result<(), Trap> {
    let iopl = (cpu.rflags >> 12 & 3) as u8;
    if cpu.control.cr0 & cr0::PE == 0 || cpu.cpl <= iopl {
        return Ok(());
    }
    // The TSS's I/O permission bitmap (SDM vol. 1 §19.5.2).
    let tr = cpu.segments.tr;
    let fault = Exception::gp(0);
    if tr.limit < 0x67 {
        return Err(cpu.raise(fault));
    }
    let map = cpu.as_supervisor(|c| c.load::<u16>(tr.base.wrapping_add(0x66)))?;
    let at = u64::from(map) + u64::from(port / 8);
    if at + 1 > u64::from(tr.limit) {
        return Err(cpu.raise(fault));
    }
    let bits = cpu.as_supervisor(|c| c.load::<u16>(tr.base.wrapping_add(at)))?;
    if bits >> (port % 8) & ((1 << size) - 1) != 0 {
        return Err(cpu.raise(fault));
    }
    Ok(())
}

fn port(cpu: &Cpu, op: &Op) -> u16 {
    if op.src2 != 0 {
        cpu.gpr[2] as u16
    } else {
        op.imm as u16
    }
}

fn input(cpu: &mut Cpu, op: &Op) -> Done {
    let port = port(cpu, op);
    io_allowed(cpu, port, op.aux)?;
    let mut data = [0; 4];
    let (id, now) = (cpu.id, cpu.now());
    cpu.platform()
        .port_read(id, now, port, &mut data[..op.aux as usize]);
    cpu.touched_platform = true;
    let value = u32::from_le_bytes(data);
    match op.aux {
        1 => cpu.set_reg::<u8>(0, value as u8),
        2 => cpu.set_reg::<u16>(0, value as u16),
        _ => cpu.set_reg::<u32>(0, value),
    }
    attend(cpu, op)
}

fn output(cpu: &mut Cpu, op: &Op) -> Done {
    let port = port(cpu, op);
    io_allowed(cpu, port, op.aux)?;
    let data = (cpu.gpr[0] as u32).to_le_bytes();
    let (id, now) = (cpu.id, cpu.now());
    cpu.platform()
        .port_write(id, now, port, &data[..op.aux as usize]);
    cpu.touched_platform = true;
    attend(cpu, op)
}

/// SYSCALL in long mode (SDM vol. 2B).
fn syscall(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.control.efer & efer::SCE == 0 || !cpu.long_mode() || cpu.mode != Mode::Bits64 {
        return Err(cpu.raise(Exception::ud()));
    }
    cpu.gpr[1] = cpu.next_ip(op);
    cpu.gpr[11] = cpu.rflags & !rflags::RF;
    let selector = (cpu.msrs.star >> 32) as u16 & !3;
    cpu.segments.data[seg::CS] = Cpu::flat_segment(selector, true, true, 0);
    cpu.segments.data[seg::SS] = Cpu::flat_segment(selector + 8, false, false, 0);
    cpu.rflags = cpu.rflags & !cpu.msrs.sfmask & !rflags::RF | rflags::FIXED;
    cpu.cpl = 0;
    let target = cpu.msrs.lstar;
    cpu.set_ip(target);
    cpu.refresh_mode();
    Ok(Flow::Attend)
}

fn sysret(cpu: &mut Cpu, op: &Op) -> Done {
    if cpu.control.efer & efer::SCE == 0 || cpu.mode != Mode::Bits64 {
        return Err(cpu.raise(Exception::ud()));
    }
    privileged(cpu)?;
    let to_64 = op.aux != 0;
    let target = if to_64 {
        cpu.gpr[1]
    } else {
        cpu.gpr[1] & 0xffff_ffff
    };
    if !is_canonical(target) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let base = (cpu.msrs.star >> 48) as u16;
    let cs = if to_64 { base.wrapping_add(16) } else { base } | 3;
    cpu.segments.data[seg::CS] = Cpu::flat_segment(cs, true, to_64, 3);
    cpu.segments.data[seg::SS] = Cpu::flat_segment(base.wrapping_add(8) | 3, false, false, 3);
    cpu.rflags = cpu.gpr[11] & 0x3c_7fd7 & !rflags::RF | rflags::FIXED;
    cpu.cpl = 3;
    cpu.set_ip(target);
    cpu.refresh_mode();
    Ok(Flow::Attend)
}

fn software(cpu: &mut Cpu, op: &Op, vector: u8) -> Done {
    let start = cpu.gpr[crate::op::RIP as usize];
    let next = cpu.next_ip(op);
    cpu.set_ip(next);
    if let Err(trap) = cpu.software_interrupt(vector) {
        // The fault belongs to the INT instruction itself.
        cpu.set_ip(start);
        return Err(trap);
    }
    Ok(Flow::Attend)
}

fn int3(cpu: &mut Cpu, op: &Op) -> Done {
    software(cpu, op, 3)
}

fn int_n(cpu: &mut Cpu, op: &Op) -> Done {
    software(cpu, op, op.imm as u8)
}

fn int1(cpu: &mut Cpu, _op: &Op) -> Done {
    Err(cpu.unsupported("INT1 (ICEBP)"))
}

fn iret(cpu: &mut Cpu, op: &Op) -> Done {
    cpu.interrupt_return(op.aux.into())?;
    Ok(Flow::Attend)
}

fn return_far(cpu: &mut Cpu, op: &Op) -> Done {
    let size = op.aux;
    let ip = peek(cpu, size, 0)?;
    let selector = peek(cpu, size, 1)? as u16;
    if cpu.control.cr0 & cr0::PE == 0 {
        real_code_segment(cpu, selector);
        let sp = stack(cpu, i64::from(2 * size) + op.imm as i64).1;
        cpu.gpr[4] = sp;
        cpu.set_ip(ip & 0xffff);
        cpu.refresh_mode();
        return Ok(Flow::Attend);
    }
    let cs = cpu.code_segment(selector, true)?;
    let new_cpl = (cs.selector & 3) as u8;
    if cs.long() && !is_canonical(ip) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let sp = stack(cpu, i64::from(2 * size) + op.imm as i64).1;
    if new_cpl == cpu.cpl {
        cpu.gpr[4] = sp;
    } else {
        let (at, _) = stack(cpu, 0);
        let at = at.wrapping_add(u64::from(2 * size) + op.imm);
        let (new_sp, ss) = match size {
            2 => (
                cpu.load::<u16>(at)?.into(),
                cpu.load::<u16>(at.wrapping_add(2))?,
            ),
            4 => (
                cpu.load::<u32>(at)?.into(),
                cpu.load::<u16>(at.wrapping_add(4))?,
            ),
            _ => (cpu.load::<u64>(at)?, cpu.load::<u16>(at.wrapping_add(8))?),
        };
        let ss = cpu.return_stack_segment(ss, new_cpl, cs.long())?;
        cpu.segments.data[seg::SS] = ss;
        cpu.gpr[4] = new_sp.wrapping_add(op.imm);
        cpu.cpl = new_cpl;
        cpu.drop_inner_segments();
    }
    cpu.segments.data[seg::CS] = cs;
    cpu.refresh_mode();
    let ip = cpu.wrap_ip(ip);
    cpu.set_ip(ip);
    Ok(Flow::Attend)
}

fn real_code_segment(cpu: &mut Cpu, selector: u16) {
    let cs = &mut cpu.segments.data[seg::CS];
    cs.selector = selector;
    cs.base = u64::from(selector) << 4;
}

fn jump_far(cpu: &mut Cpu, selector: u16, ip: u64) -> Done {
    if cpu.control.cr0 & cr0::PE == 0 {
        real_code_segment(cpu, selector);
        cpu.set_ip(ip);
        cpu.refresh_mode();
        return Ok(Flow::Attend);
    }
    let cs = cpu.code_segment(selector, false)?;
    if cs.long() && cpu.long_mode() && !is_canonical(ip) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.segments.data[seg::CS] = cs;
    cpu.refresh_mode();
    let ip = cpu.wrap_ip(ip);
    cpu.set_ip(ip);
    Ok(Flow::Attend)
}

fn jump_far_immediate(cpu: &mut Cpu, op: &Op) -> Done {
    jump_far(cpu, (op.imm >> 32) as u16, op.imm & 0xffff_ffff)
}

fn far_pointer(cpu: &mut Cpu, op: &Op) -> Result<(u16, u64), Trap> {
    let at = cpu.linear(op);
    let ip = match op.aux {
        2 => cpu.load::<u16>(at)?.into(),
        4 => cpu.load::<u32>(at)?.into(),
        _ => cpu.load::<u64>(at)?,
    };
    Ok((cpu.load::<u16>(at.wrapping_add(op.aux.into()))?, ip))
}

fn jump_far_memory(cpu: &mut Cpu, op: &Op) -> Done {
    let (selector, ip) = far_pointer(cpu, op)?;
    jump_far(cpu, selector, ip)
}

fn call_far(cpu: &mut Cpu, op: &Op, selector: u16, ip: u64) -> Done {
    let old = cpu.segments.data[seg::CS].selector;
    let cs = if cpu.control.cr0 & cr0::PE == 0 {
        None
    } else {
        Some(cpu.code_segment(selector, false)?)
    };
    let (sp, next) = (cpu.gpr[4], cpu.next_ip(op));
    push(cpu, op.aux, old.into())?;
    if let Err(trap) = push(cpu, op.aux, next) {
        cpu.gpr[4] = sp;
        return Err(trap);
    }
    match cs {
        None => real_code_segment(cpu, selector),
        Some(cs) => cpu.segments.data[seg::CS] = cs,
    }
    cpu.refresh_mode();
    let ip = cpu.wrap_ip(ip);
    cpu.set_ip(ip);
    Ok(Flow::Attend)
}

fn call_far_immediate(cpu: &mut Cpu, op: &Op) -> Done {
    call_far(cpu, op, (op.imm >> 32) as u16, op.imm & 0xffff_ffff)
}

fn call_far_memory(cpu: &mut Cpu, op: &Op) -> Done {
    let (selector, ip) = far_pointer(cpu, op)?;
    call_far(cpu, op, selector, ip)
}
