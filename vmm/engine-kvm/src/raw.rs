//! KVM ioctls that kvm-ioctls does not wrap on x86 (Documentation/virt/kvm/api.rst, sections 4.16, 4.80).

use kvm_bindings::{KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, KVMIO, kvm_device_attr, kvm_interrupt};
use kvm_ioctls::{Error, VcpuFd};
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::ioctl_iow_nr;

ioctl_iow_nr!(KVM_INTERRUPT, KVMIO, 0x86, kvm_interrupt);
ioctl_iow_nr!(KVM_SET_DEVICE_ATTR, KVMIO, 0xe1, kvm_device_attr);
ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xe2, kvm_device_attr);

/// Queues an external interrupt. The caller must have checked that the vCPU can take interrupts now.
pub(crate) fn interrupt(fd: &VcpuFd, vector: u8) -> Result<(), Error> {
    let argument = kvm_interrupt { irq: vector.into() };
    // SAFETY: the request reads one `kvm_interrupt`, which outlives the call.
    result(unsafe { ioctl_with_ref(fd, KVM_INTERRUPT(), &argument) })
}

/// Returns the offset of the guest's TSC from the host's, in cycles of the TSC.
pub(crate) fn tsc_offset(fd: &VcpuFd) -> Result<u64, Error> {
    let mut value = 0_u64;
    let argument = tsc_attribute(&raw mut value);
    // SAFETY: the request writes the eight bytes at `addr`, which are those of `value`, alive during the call.
    result(unsafe { ioctl_with_ref(fd, KVM_GET_DEVICE_ATTR(), &argument) })?;
    Ok(value)
}

/// Sets the offset of the guest's TSC from the host's, in cycles of the TSC.
pub(crate) fn set_tsc_offset(fd: &VcpuFd, mut value: u64) -> Result<(), Error> {
    let argument = tsc_attribute(&raw mut value);
    // SAFETY: the request reads the eight bytes at `addr`, which are those of `value`, alive during the call.
    result(unsafe { ioctl_with_ref(fd, KVM_SET_DEVICE_ATTR(), &argument) })
}

fn tsc_attribute(value: *mut u64) -> kvm_device_attr {
    kvm_device_attr {
        flags: 0,
        group: KVM_VCPU_TSC_CTRL,
        attr: KVM_VCPU_TSC_OFFSET.into(),
        addr: value as u64,
    }
}

fn result(code: libc::c_int) -> Result<(), Error> {
    if code < 0 { Err(Error::last()) } else { Ok(()) }
}
