//! RDMSR and WRMSR. The vCPU holds some registers itself; the platform has all others.

use nodescope_x86::Exception;
use nodescope_x86::bits::{apic_base, cr0, efer, msr};
use nodescope_x86::cpuid::CpuidRegister::Ecx;
use nodescope_x86::state::seg;

use super::{attend, privileged};
use crate::cpu::Cpu;
use crate::memory::is_canonical;
use crate::op::{Done, Op};

pub(super) fn rdmsr(cpu: &mut Cpu, op: &Op) -> Done {
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

pub(super) fn wrmsr(cpu: &mut Cpu, op: &Op) -> Done {
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
    // x2APIC mode is reserved where CPUID does not announce it.
    if number == msr::APIC_BASE && value & apic_base::X2APIC != 0 && !cpu.cpuid.has(1, 0, Ecx, 21) {
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
            cpu.change_thread();
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
