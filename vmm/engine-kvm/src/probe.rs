//! Abilities of KVM on this host.

use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::{Cap, Kvm};
use nodescope_x86::{CpuidEntry, CpuidTable};
use thiserror::Error;

/// Abilities of a host's KVM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// True if the processor's virtualization extensions (VMX or SVM) are available, so that ring 0 of the guest runs natively. Otherwise
    /// KVM emulates ring 0 in software, slowly and incompletely.
    pub ring0_native: bool,
    /// True if KVM can forward accesses to the platform's MSRs to user space.
    pub msr_exits: bool,
    /// Features that a guest can use; intersect the CPUID template with them. They are the features that KVM lists. A software KVM lists
    /// only those of its ring-0 emulator, although ring 3 runs natively. In this case the host's instructions for user code are added.
    pub cpuid: CpuidTable,
}

/// Reason why KVM cannot be used.
#[derive(Debug, Error)]
pub enum Unavailable {
    /// The device cannot be opened.
    #[error(
        "/dev/kvm cannot be opened: {0}; load the kvm module or grant access, or use the portable engine"
    )]
    Open(std::io::Error),
    /// An interface version other than 12, the stable one.
    #[error("KVM speaks API version {0}, not 12; use the portable engine")]
    Version(i32),
    /// A capability is missing.
    #[error("KVM lacks {0}; use the portable engine")]
    Missing(&'static str),
    /// An ioctl of KVM failed.
    #[error("KVM refused {what}: {source}; use the portable engine")]
    Refused {
        /// Description of the request for the message.
        what: &'static str,
        /// Error of the host.
        source: std::io::Error,
    },
}

/// Examines KVM on this host.
pub fn probe() -> Result<Probe, Unavailable> {
    open().and_then(|kvm| examine(&kvm))
}

fn io(error: kvm_ioctls::Error) -> std::io::Error {
    std::io::Error::from_raw_os_error(error.errno())
}

pub(crate) fn open() -> Result<Kvm, Unavailable> {
    Kvm::new().map_err(|e| Unavailable::Open(io(e)))
}

fn examine(kvm: &Kvm) -> Result<Probe, Unavailable> {
    let version = kvm.get_api_version();
    if version != 12 {
        return Err(Unavailable::Version(version));
    }
    for (cap, name) in [
        (Cap::UserMemory, "user memory slots"),
        (Cap::ExtCpuid, "CPUID tables"),
        (Cap::VcpuEvents, "access to pending events"),
        (Cap::Debugregs, "access to debug registers"),
        (Cap::Xsave, "access to XSAVE state"),
        (Cap::Xcrs, "access to XCR0"),
    ] {
        if !kvm.check_extension(cap) {
            return Err(Unavailable::Missing(name));
        }
    }
    let cpuid = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(|e| Unavailable::Refused {
            what: "its list of CPUID features",
            source: io(e),
        })?;
    let mut cpuid = CpuidTable::new(cpuid.as_slice().iter().map(|e| CpuidEntry {
        leaf: e.function,
        subleaf: (e.flags & kvm_bindings::KVM_CPUID_FLAG_SIGNIFCANT_INDEX != 0).then_some(e.index),
        eax: e.eax,
        ebx: e.ebx,
        ecx: e.ecx,
        edx: e.edx,
    }));
    let ring0_native = ring0_native();
    if !ring0_native {
        add_user_instructions(&mut cpuid);
    }
    Ok(Probe {
        ring0_native,
        msr_exits: kvm.check_extension_raw(kvm_bindings::KVM_CAP_X86_USER_SPACE_MSR.into()) > 0
            && kvm.check_extension_raw(kvm_bindings::KVM_CAP_X86_MSR_FILTER.into()) > 0,
        cpuid,
    })
}

/// Returns whether VMX or SVM is visible to this process (SDM vol. 2A, CPUID leaf 1 ECX bit 5; APM vol. 3, leaf 0x80000001 ECX bit 2).
pub(crate) fn ring0_native() -> bool {
    let vmx = std::arch::x86_64::__cpuid(1).ecx & 1 << 5 != 0;
    let extended = std::arch::x86_64::__cpuid(0x8000_0000).eax;
    vmx || extended > 0x8000_0000 && std::arch::x86_64::__cpuid(0x8000_0001).ecx & 1 << 2 != 0
}

/// Returns whether the host's processor is QEMU's TCG. Its SVM has two faults that a guest would see. First, XSETBV does not exit, so KVM
/// would leave a guest's XCR0 at its reset value, and lose further state components. Second, the I/O permission bitmap is only used if the
/// task register's type is that of an available TSS. By the architecture, and in KVM, the type is that of a busy TSS.
pub(crate) fn is_tcg() -> bool {
    let signature = std::arch::x86_64::__cpuid(0x4000_0000);
    let text = [signature.ebx, signature.ecx, signature.edx].map(u32::to_le_bytes);
    text.as_flattened() == b"TCGTCGTCGTCG"
}

/// Bits in CPUID leaf 1 ECX of instructions that user code can execute if XCR0 enables their state (SDM vol. 2A, CPUID): SSE3, PCLMULQDQ,
/// SSSE3, FMA, CX16, SSE4, MOVBE, POPCNT, AES, XSAVE, AVX, F16C, RDRAND.
const USER_1_ECX: u32 = 0x76d8_3203;
/// Bits in CPUID leaf 7 EBX of such instructions for user code: BMI1, AVX2, BMI2, ERMS, RDSEED, ADX, CLFLUSHOPT.
const USER_7_EBX: u32 = 0x008c_0328;
/// Bits in CPUID leaf 0x80000001 ECX of such instructions for user code: LAHF, LZCNT, PREFETCHW.
const USER_EXTENDED_ECX: u32 = 0x0000_0121;

fn add_user_instructions(table: &mut CpuidTable) {
    let host = |leaf, subleaf| std::arch::x86_64::__cpuid_count(leaf, subleaf);
    for row in &mut table.entries {
        match (row.leaf, row.subleaf.unwrap_or(0)) {
            (1, _) => row.ecx |= host(1, 0).ecx & USER_1_ECX,
            (7, 0) => row.ebx |= host(7, 0).ebx & USER_7_EBX,
            (0xd, 1) => row.eax |= host(0xd, 1).eax & 1,
            (0x8000_0001, _) => row.ecx |= host(0x8000_0001, 0).ecx & USER_EXTENDED_ECX,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_instructions_of_the_host_are_added_and_nothing_else() {
        let row = |leaf, subleaf| CpuidEntry {
            leaf,
            subleaf,
            ..Default::default()
        };
        let mut t = CpuidTable::new([
            row(0, None),
            row(1, None),
            row(7, Some(0)),
            row(0x8000_0000, None),
        ]);
        add_user_instructions(&mut t);
        let host = std::arch::x86_64::__cpuid(1).ecx;
        assert_eq!(t.get(1, 0).ecx, 0, "leaf 0 announces no leaf 1");
        assert_eq!(t.find(1, 0).unwrap().ecx, host & USER_1_ECX);
        assert_eq!(t.find(1, 0).unwrap().edx, 0);
        // VMX, MONITOR, x2APIC and similar features are not instructions for user code.
        assert_eq!(
            USER_1_ECX & (1 << 3 | 1 << 5 | 1 << 21 | 1 << 24 | 1 << 31),
            0
        );
    }
}
