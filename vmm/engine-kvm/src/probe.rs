//! What KVM on this host can do.

use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::{Cap, Kvm};
use nodescope_x86::{CpuidEntry, CpuidTable};
use thiserror::Error;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The processor's own virtualization is there, so ring 0 runs natively; without it KVM emulates ring 0 in
    /// software, slowly and incompletely.
    pub ring0_native: bool,
    /// Accesses to the platform's MSRs can be brought to user space.
    pub msr_exits: bool,
    /// Features KVM can show to a guest; intersect the CPUID template with them.
    pub cpuid: CpuidTable,
}

/// Why KVM cannot be used.
#[derive(Debug, Error)]
pub enum Unavailable {
    /// The device cannot be opened.
    #[error(
        "/dev/kvm cannot be opened: {0}; load the kvm module or grant access, or use the portable engine"
    )]
    Open(std::io::Error),
    /// An interface version other than the stable one.
    #[error("KVM speaks API version {0}, not 12; use the portable engine")]
    Version(i32),
    /// A capability is missing.
    #[error("KVM lacks {0}; use the portable engine")]
    Missing(&'static str),
    /// An ioctl failed.
    #[error("KVM refused {what}: {source}; use the portable engine")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// Answer.
        source: std::io::Error,
    },
}

/// Look at the host.
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
    let cpuid = CpuidTable::new(cpuid.as_slice().iter().map(|e| CpuidEntry {
        leaf: e.function,
        subleaf: (e.flags & kvm_bindings::KVM_CPUID_FLAG_SIGNIFCANT_INDEX != 0).then_some(e.index),
        eax: e.eax,
        ebx: e.ebx,
        ecx: e.ecx,
        edx: e.edx,
    }));
    // Whether VMX or SVM is visible here (SDM vol. 2A, CPUID leaf 1 ECX bit 5; APM vol. 3, leaf 0x80000001 ECX bit 2).
    let vmx = std::arch::x86_64::__cpuid(1).ecx & 1 << 5 != 0;
    let extended = std::arch::x86_64::__cpuid(0x8000_0000).eax;
    let svm = extended > 0x8000_0000 && std::arch::x86_64::__cpuid(0x8000_0001).ecx & 1 << 2 != 0;
    Ok(Probe {
        ring0_native: vmx || svm,
        msr_exits: kvm.check_extension_raw(kvm_bindings::KVM_CAP_X86_USER_SPACE_MSR.into()) > 0
            && kvm.check_extension_raw(kvm_bindings::KVM_CAP_X86_MSR_FILTER.into()) > 0,
        cpuid,
    })
}
