//! Model-specific registers that are part of a vCPU's exchanged state.

use std::collections::BTreeSet;

use kvm_bindings::{Msrs as KvmMsrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;
use nodescope_engine::EngineError;
use nodescope_x86::Msrs;
use nodescope_x86::bits::msr;

use crate::refused;

/// Returns the MSR number and the field of every register in [`Msrs`] except TSC_ADJUST, which the run loop handles (see `run`).
fn fields(m: &mut Msrs) -> Vec<(u32, &mut u64)> {
    let mut all = vec![
        (msr::STAR, &mut m.star),
        (msr::LSTAR, &mut m.lstar),
        (msr::CSTAR, &mut m.cstar),
        (msr::SFMASK, &mut m.sfmask),
        (msr::KERNEL_GS_BASE, &mut m.kernel_gs_base),
        (msr::SYSENTER_CS, &mut m.sysenter_cs),
        (msr::SYSENTER_ESP, &mut m.sysenter_esp),
        (msr::SYSENTER_EIP, &mut m.sysenter_eip),
        (msr::PAT, &mut m.pat),
        (msr::TSC_AUX, &mut m.tsc_aux),
        (msr::MISC_ENABLE, &mut m.misc_enable),
        (msr::SPEC_CTRL, &mut m.spec_ctrl),
        (msr::MTRR_DEF_TYPE, &mut m.mtrr_def_type),
    ];
    let fixed = [msr::MTRR_FIX_64K, msr::MTRR_FIX_16K_0, msr::MTRR_FIX_16K_1]
        .into_iter()
        .chain(msr::MTRR_FIX_4K_0..=msr::MTRR_FIX_4K_7);
    all.extend(fixed.zip(m.mtrr_fixed.iter_mut()));
    let variable = msr::MTRR_PHYS_BASE0..=msr::MTRR_PHYS_MASK7;
    all.extend(variable.zip(m.mtrr_variable.iter_mut()));
    all
}

/// Loads the registers into KVM. Registers that KVM refuses are added to `kept`; the caller's state keeps their values.
pub(crate) fn load(fd: &VcpuFd, msrs: &Msrs, kept: &mut BTreeSet<u32>) -> Result<(), EngineError> {
    let mut copy = *msrs;
    let mut todo: Vec<_> = fields(&mut copy)
        .into_iter()
        .filter(|(index, _)| !kept.contains(index))
        .map(|(index, value)| kvm_msr_entry {
            index,
            data: *value,
            ..Default::default()
        })
        .collect();
    while !todo.is_empty() {
        let batch = batch(&todo)?;
        let done = fd
            .set_msrs(&batch)
            .map_err(|e| refused("KVM_SET_MSRS", e))?;
        if done >= todo.len() {
            break;
        }
        // KVM stops at the first register that it refuses.
        kept.insert(todo[done].index);
        todo.drain(..=done);
    }
    Ok(())
}

/// Reads the registers from KVM, except those in `kept`.
pub(crate) fn store(fd: &VcpuFd, msrs: &mut Msrs, kept: &BTreeSet<u32>) -> Result<(), EngineError> {
    let mut places: Vec<_> = fields(msrs)
        .into_iter()
        .filter(|(index, _)| !kept.contains(index))
        .collect();
    while !places.is_empty() {
        let wanted: Vec<_> = places
            .iter()
            .map(|(index, _)| kvm_msr_entry {
                index: *index,
                ..Default::default()
            })
            .collect();
        let mut batch = batch(&wanted)?;
        let done = fd
            .get_msrs(&mut batch)
            .map_err(|e| refused("KVM_GET_MSRS", e))?;
        for ((_, place), entry) in places.iter_mut().zip(&batch.as_slice()[..done]) {
            **place = entry.data;
        }
        if done >= places.len() {
            break;
        }
        // The field of the refused register does not change.
        places.drain(..=done);
    }
    Ok(())
}

/// Reads one register from KVM.
pub(crate) fn read(fd: &VcpuFd, index: u32) -> Result<u64, EngineError> {
    let mut one = batch(&[kvm_msr_entry {
        index,
        ..Default::default()
    }])?;
    match fd.get_msrs(&mut one) {
        Ok(1) => Ok(one.as_slice()[0].data),
        Ok(_) => Err(refused(
            format!("reading MSR {index:#x} from KVM"),
            kvm_ioctls::Error::new(libc::EINVAL),
        )),
        Err(e) => Err(refused(format!("reading MSR {index:#x} from KVM"), e)),
    }
}

/// Writes one register to KVM.
pub(crate) fn write(fd: &VcpuFd, index: u32, data: u64) -> Result<(), EngineError> {
    let one = batch(&[kvm_msr_entry {
        index,
        data,
        ..Default::default()
    }])?;
    match fd.set_msrs(&one) {
        Ok(1) => Ok(()),
        Ok(_) => Err(refused(
            format!("setting MSR {index:#x} of KVM to {data:#x}"),
            kvm_ioctls::Error::new(libc::EINVAL),
        )),
        Err(e) => Err(refused(format!("setting MSR {index:#x} of KVM"), e)),
    }
}

fn batch(entries: &[kvm_msr_entry]) -> Result<KvmMsrs, EngineError> {
    KvmMsrs::from_entries(entries).map_err(|e| EngineError::Host {
        what: "a list of MSRs for KVM".into(),
        source: std::io::Error::other(format!("{e:?}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_register_of_the_state_is_listed_once() {
        let mut m = Msrs::default();
        let count = fields(&mut m).len();
        let numbers: BTreeSet<_> = fields(&mut m).iter().map(|(i, _)| *i).collect();
        assert_eq!(numbers.len(), count);
        // All fields of the structure except TSC_ADJUST.
        assert_eq!(count + 1, std::mem::size_of::<Msrs>() / 8);
    }
}
