//! DSDT: processors, UART and virtio-mmio devices (ACPI 6.5 §5.2.11.1).

use acpi_tables::Aml;
use acpi_tables::aml::{
    Device, EISAName, IO, Interrupt, Memory32Fixed, Name, Package, Path, ResourceTemplate, Scope,
};

use super::{PlatformDescription, SerialPort, Trigger, VirtioSlot, bytes, header};
use crate::topology::NodeTopology;

/// Value of _STA: present, enabled, shown, functioning.
const STATUS_OK: u8 = 0xf;

pub(super) fn dsdt(topology: &NodeTopology, platform: &PlatformDescription) -> Vec<u8> {
    let mut system = Vec::new();
    for vcpu in 0..topology.vcpus() {
        system.extend(processor(vcpu));
    }
    if let Some(serial) = &platform.serial {
        system.extend(uart(serial));
    }
    // The kernel numbers devices in the order in which it finds them, so that the order of creation is also that of the names in /dev.
    for (index, slot) in platform.virtio.iter().enumerate() {
        system.extend(virtio(index, slot));
    }
    let mut table = header(*b"DSDT", 2);
    table.append_slice(&Scope::raw("\\_SB_".into(), system));
    // The sleep control register gets sleep type 5 for power-off (ACPI 6.5 §7.4.2).
    let s5 = Name::new(
        "\\_S5_".into(),
        &Package::new(vec![&5_u8, &0_u8, &0_u8, &0_u8]),
    );
    table.append_slice(&bytes(&s5));
    table.as_slice().to_vec()
}

fn processor(vcpu: u32) -> Vec<u8> {
    bytes(&Device::new(
        Path::new(&format!("C{vcpu:03X}")),
        vec![
            &Name::new("_HID".into(), &"ACPI0007"),
            &Name::new("_UID".into(), &vcpu),
            &Name::new("_STA".into(), &STATUS_OK),
        ],
    ))
}

fn uart(serial: &SerialPort) -> Vec<u8> {
    let resources = bytes(&ResourceTemplate::new(vec![
        &IO::new(serial.port, serial.port, 1, 8) as &dyn Aml,
        &Interrupt::new(true, true, false, false, serial.gsi),
    ]));
    bytes(&Device::new(
        "COM1".into(),
        vec![
            &Name::new("_HID".into(), &EISAName::new("PNP0501")),
            &Name::new("_UID".into(), &0_u8),
            &Name::new("_STA".into(), &STATUS_OK),
            &Name::new("_CRS".into(), &Raw(resources)),
        ],
    ))
}

fn virtio(index: usize, slot: &VirtioSlot) -> Vec<u8> {
    let edge = slot.trigger == Trigger::Edge;
    let resources = bytes(&ResourceTemplate::new(vec![
        &Memory32Fixed::new(true, slot.base as u32, slot.size as u32) as &dyn Aml,
        &Interrupt::new(true, edge, false, false, slot.gsi),
    ]));
    bytes(&Device::new(
        Path::new(&format!("V{index:03X}")),
        vec![
            &Name::new("_HID".into(), &"LNRO0005"),
            &Name::new("_UID".into(), &(index as u32)),
            &Name::new("_CCA".into(), &1_u8),
            &Name::new("_CRS".into(), &Raw(resources)),
        ],
    ))
}

/// Bytes that are encoded as AML already.
struct Raw(Vec<u8>);

impl Aml for Raw {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        sink.vec(&self.0);
    }
}
