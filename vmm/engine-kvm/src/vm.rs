//! A KVM virtual machine: memory slots for the node's RAM, MSR filter, CPUID tables.

use std::sync::Arc;

use kvm_bindings::{
    CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MEM_LOG_DIRTY_PAGES, kvm_cpuid_entry2,
    kvm_enable_cap, kvm_userspace_memory_region,
};
use kvm_ioctls::{Cap, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VmFd};
use nodescope_engine::EngineError;
use nodescope_hypercall::{ABI_VERSION, LEAF, SIGNATURE, TRANSPORT_DOORBELL};
use nodescope_memory::Ram;
use nodescope_x86::bits::msr;
use nodescope_x86::{CpuidEntry, CpuidTable};

use crate::probe::{self, Unavailable};
use crate::refused;

/// A KVM virtual machine with a node's RAM, which its vCPUs share.
#[derive(Clone)]
pub struct KvmVm {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub fd: VmFd,
    pub ram: Ram,
    /// True if KVM forwards accesses to the platform's MSRs to user space.
    pub msr_exits: bool,
    /// True if ring 0 of the guest runs natively on the processor.
    pub ring0_native: bool,
    /// True if the host's processor is QEMU's TCG: see [`probe::is_tcg`].
    pub tcg: bool,
}

impl KvmVm {
    /// Creates a virtual machine with one memory slot for each RAM region.
    pub fn new(ram: &Ram) -> Result<Self, EngineError> {
        let unavailable = |e: Unavailable| EngineError::Host {
            what: "KVM is not usable".into(),
            source: std::io::Error::other(e),
        };
        let kvm = probe::open().map_err(unavailable)?;
        let fd = kvm
            .create_vm()
            .map_err(|e| refused("creating a KVM virtual machine", e))?;
        if fd.check_extension(Cap::SetTssAddr) {
            // Three pages in the address hole for devices, which KVM needs for real mode on old Intel processors.
            fd.set_tss_address(0xfffb_d000)
                .map_err(|e| refused("placing KVM's task state segment", e))?;
        }
        for (slot, region) in ram.regions().iter().enumerate() {
            let slot_description = kvm_userspace_memory_region {
                slot: slot as u32,
                flags: KVM_MEM_LOG_DIRTY_PAGES,
                guest_phys_addr: region.start,
                memory_size: region.len,
                userspace_addr: region.host as u64,
            };
            // SAFETY: the region is a mapping of this length that exists as long as `ram`, and the machine owns a clone of `ram`. Slots do
            // not overlap because regions do not.
            unsafe { fd.set_user_memory_region(slot_description) }.map_err(|e| {
                refused(
                    format!(
                        "a KVM memory slot of {} bytes at {:#x}",
                        region.len, region.start
                    ),
                    e,
                )
            })?;
        }
        let msr_exits = route_msrs(&fd);
        Ok(Self {
            inner: Arc::new(Inner {
                fd,
                ram: ram.clone(),
                msr_exits,
                ring0_native: probe::ring0_native(),
                tcg: probe::is_tcg(),
            }),
        })
    }

    /// Returns whether KVM forwards accesses to the platform's MSRs to user space.
    pub fn msr_exits(&self) -> bool {
        self.inner.msr_exits
    }

    /// Reports to the code map the code pages that the guest wrote since the last call. The portable engine then drops blocks that were
    /// decoded from them.
    pub(crate) fn sync_code(&self) -> Result<(), EngineError> {
        for (slot, region) in self.inner.ram.regions().iter().enumerate() {
            let log = self
                .inner
                .fd
                .get_dirty_log(slot as u32, region.len as usize)
                .map_err(|e| refused("reading KVM's log of written pages", e))?;
            for (word, bits) in log.iter().enumerate().filter(|(_, bits)| **bits != 0) {
                for bit in (0..64).filter(|b| bits >> b & 1 != 0) {
                    let offset = (word * 64 + bit) << 12;
                    if offset < region.len as usize && region.code.has_code(offset) {
                        region.code.written(offset, 4096);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Makes KVM forward accesses to the platform's MSRs to user space. Returns false if the host cannot.
fn route_msrs(fd: &VmFd) -> bool {
    /// Reasons for forwarding: MSRs that KVM does not have, accesses that are invalid for KVM, and the filter.
    const ALL_REASONS: u64 = 7;
    let exits = kvm_enable_cap {
        cap: kvm_bindings::KVM_CAP_X86_USER_SPACE_MSR,
        args: [ALL_REASONS, 0, 0, 0],
        ..Default::default()
    };
    if fd.enable_cap(&exits).is_err() {
        return false;
    }
    let both = MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE;
    let one = |base, flags| MsrFilterRange {
        flags,
        base,
        msr_count: 1,
        bitmap: &[0],
    };
    // x2APIC registers need no filter: without an in-kernel APIC, they are invalid for KVM.
    fd.set_msr_filter(
        MsrFilterDefaultAction::ALLOW,
        &[
            one(msr::APIC_BASE, both),
            one(msr::TSC_DEADLINE, both),
            one(msr::TSC, MsrFilterRangeFlags::WRITE),
            one(msr::TSC_ADJUST, both),
        ],
    )
    .is_ok()
}

/// Returns the table with the hypercall leaf for KVM: the signature, and the doorbell as the transport. So guest tools know that the engine
/// did not see the CPUID instruction.
pub fn with_hypercall_leaf(table: &CpuidTable) -> CpuidTable {
    let mut table = table.clone();
    table.set(CpuidEntry {
        leaf: LEAF,
        subleaf: None,
        eax: SIGNATURE,
        ebx: TRANSPORT_DOORBELL,
        ecx: ABI_VERSION,
        edx: 0,
    });
    table
}

/// Converts a CPUID table to KVM's form.
pub(crate) fn kvm_cpuid(table: &CpuidTable) -> Result<CpuId, EngineError> {
    let rows: Vec<_> = table
        .entries
        .iter()
        .map(|e| kvm_cpuid_entry2 {
            function: e.leaf,
            index: e.subleaf.unwrap_or(0),
            flags: if e.subleaf.is_some() {
                KVM_CPUID_FLAG_SIGNIFCANT_INDEX
            } else {
                0
            },
            eax: e.eax,
            ebx: e.ebx,
            ecx: e.ecx,
            edx: e.edx,
            ..Default::default()
        })
        .collect();
    CpuId::from_entries(&rows).map_err(|e| EngineError::Host {
        what: format!("a CPUID table of {} rows for KVM", rows.len()),
        source: std::io::Error::other(format!("{e:?}")),
    })
}
