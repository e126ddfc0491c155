//! Check for states of vCPUs that no processor can be in.
//!
//! Engines load the state of a vCPU without the checks of instructions that write registers. A state from a file is therefore checked here
//! first. Vector and x87 arithmetic runs on the host's processor, which would fault on a control word with undefined bits.

use nodescope_x86::bits::{cr0, cr4, dr6, dr7, efer, rflags};
use nodescope_x86::{InterruptShadow, VcpuState};

use crate::state::MOST;

/// Bits of RFLAGS that are defined.
const RFLAGS: u64 = rflags::STATUS
    | rflags::FIXED
    | rflags::TF
    | rflags::IF
    | rflags::DF
    | rflags::IOPL
    | rflags::NT
    | rflags::RF
    | rflags::VM
    | rflags::AC
    | rflags::VIF
    | rflags::VIP
    | rflags::ID;
/// Bits of CR0 that are defined.
const CR0: u64 = cr0::PE
    | cr0::MP
    | cr0::EM
    | cr0::TS
    | cr0::ET
    | cr0::NE
    | cr0::WP
    | cr0::AM
    | cr0::NW
    | cr0::CD
    | cr0::PG;
/// Bits of CR4 that a vCPU's state may have set.
const CR4: u64 = cr4::VME
    | cr4::PVI
    | cr4::TSD
    | cr4::DE
    | cr4::PSE
    | cr4::PAE
    | cr4::MCE
    | cr4::PGE
    | cr4::PCE
    | cr4::OSFXSR
    | cr4::OSXMMEXCPT
    | cr4::UMIP
    | cr4::LA57
    | cr4::FSGSBASE
    | cr4::PCIDE
    | cr4::OSXSAVE
    | cr4::SMEP
    | cr4::SMAP
    | cr4::PKE;
/// Bits of EFER that a vCPU's state may have set.
const EFER: u64 = efer::SCE | efer::LME | efer::LMA | efer::NXE;
/// State components that XCR0 can enable: x87, SSE, AVX (SDM vol. 1 §13.1).
const XCR0: u64 = 7;
/// Bits of MXCSR that are defined (SDM vol. 1 §10.2.3).
const MXCSR: u32 = 0xffff;

/// Returns whether an address is canonical: bits 63 to 47 are all equal.
fn canonical(address: u64) -> bool {
    ((address as i64) << 16 >> 16) as u64 == address
}

/// Returns a description of a state's first fault; `None` for a valid state.
pub(crate) fn fault(state: &VcpuState) -> Option<&'static str> {
    let VcpuState {
        general,
        segments,
        control,
        debug,
        msrs,
        fx,
        events,
        time,
        ..
    } = state;
    let bases = segments.data.iter().chain([&segments.ldt, &segments.tr]);
    let tables = [segments.gdt.base, segments.idt.base];
    let addresses = [
        msrs.lstar,
        msrs.cstar,
        msrs.kernel_gs_base,
        msrs.sysenter_esp,
        msrs.sysenter_eip,
        general.rip,
    ];
    let mut addresses = bases.map(|s| s.base).chain(tables).chain(addresses);
    let paged = control.cr0 & cr0::PG != 0;
    let long = paged && control.efer & efer::LME != 0;
    let checks = [
        (
            general.rflags & !RFLAGS == 0,
            "RFLAGS has bits that do not exist",
        ),
        (
            control.cr0 & !CR0 == 0 && (!paged || control.cr0 & cr0::PE != 0),
            "CR0 has an impossible value",
        ),
        (control.cr4 & !CR4 == 0, "CR4 has bits that do not exist"),
        (
            control.efer & !EFER == 0 && (control.efer & efer::LMA != 0) == long,
            "EFER has an impossible value",
        ),
        (
            control.xcr0 & !XCR0 == 0 && control.xcr0 & 1 != 0 && control.xcr0 & 6 != 4,
            "XCR0 has an impossible value",
        ),
        (
            debug.dr6 & !(dr6::FIXED | dr6::CHANGES) == 0
                && debug.dr7 & !(dr7::FIXED | dr7::CHANGES) == 0,
            "DR6 or DR7 has bits that do not exist",
        ),
        (
            events.pending_breakpoints == 0
                || events.pending_breakpoints < 16 && events.shadow == InterruptShadow::MovSs,
            "its pending breakpoints do not exist or have no MOV SS before them",
        ),
        (fx.mxcsr() & !MXCSR == 0, "MXCSR has bits that do not exist"),
        (
            addresses.all(canonical),
            "an address in a register is not canonical",
        ),
        (
            time.cycles < MOST && time.instructions < MOST && time.random_draws < MOST,
            "it has run for too long",
        ),
        (
            time.cycle_fraction < 1 << 16,
            "its clock has more than a fraction of a cycle left",
        ),
    ];
    let failed = checks.into_iter().find(|(holds, _)| !holds);
    failed.map(|(_, what)| what)
}
