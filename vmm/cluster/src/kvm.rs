//! Nodes on KVM: checks whether this host can run them, and creates their vCPUs.

use nodescope_engine::{EngineError, Vcpu};
use nodescope_engine_kvm::vm::with_hypercall_leaf;
use nodescope_engine_kvm::{KvmConfig, KvmVcpu, KvmVm, Probe, Unavailable, probe};
use nodescope_memory::Ram;
use nodescope_x86::CpuidTable;
use thiserror::Error;

use crate::config::ClusterConfig;

/// Reason for which this host cannot run studies on KVM.
#[derive(Debug, Error)]
pub enum KvmError {
    /// KVM is not available: its device cannot be opened, or lacks something that nodescope needs.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The host's KVM cannot boot Linux.
    #[error(
        "this host's KVM emulates ring 0 in software, since the processor shows neither VMX nor SVM, and cannot boot Linux; enable virtualization in the BIOS or, in a virtual machine, nested virtualization, or use the portable engine (engine = \"soft\")"
    )]
    Emulated,
    /// KVM does not pass accesses to model-specific registers on to nodescope.
    #[error(
        "this host's KVM does not hand accesses to MSRs to nodescope; Linux 5.10 or later is needed, or use the portable engine (engine = \"soft\")"
    )]
    Msrs,
    /// An ioctl of KVM failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Returns the abilities of this host's KVM, if studies can run on KVM here.
pub fn usable() -> Result<Probe, KvmError> {
    let found = probe()?;
    if !found.ring0_native {
        return Err(KvmError::Emulated);
    }
    if !found.msr_exits {
        return Err(KvmError::Msrs);
    }
    Ok(found)
}

/// Returns the vCPUs of a node in the order of their numbers, in their reset state.
pub(crate) fn vcpus(
    config: &ClusterConfig,
    node: u32,
    ram: &Ram,
    tables: &[CpuidTable],
) -> Result<Vec<Box<dyn Vcpu>>, KvmError> {
    let vm = KvmVm::new(ram)?;
    let vcpu = |(id, table): (usize, &CpuidTable)| {
        let id = id as u16;
        let parts = KvmConfig {
            id,
            cpuid: with_hypercall_leaf(table),
            tsc_hz: config.topology.tsc_hz,
        };
        let mut vcpu = KvmVcpu::new(&vm, parts)?;
        if let Some(counting) = &config.counting {
            vcpu.count(counting.vcpu(node, id));
        }
        Ok(Box::new(vcpu) as Box<dyn Vcpu>)
    };
    tables.iter().enumerate().map(vcpu).collect()
}
