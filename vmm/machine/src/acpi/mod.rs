//! ACPI tables of a node (ACPI 6.5) of the hardware-reduced kind: no SCI, no PM timer, no legacy devices but a UART.
//!
//! All tables are in one block below 1 MiB, in the area that an operating system scans for the RSDP. The tables are RSDP, XSDT, FADT, DSDT,
//! MADT, SRAT, SLIT, PPTT and, if the study gives memory performance, HMAT.

mod cpus;
mod dsdt;
mod numa;

use acpi_tables::Aml;
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use nodescope_memory::{NumaRange, Ram};
use thiserror::Error;

use crate::topology::{NodeTopology, TopologyError};

const OEM_ID: [u8; 6] = *b"NSCOPE";
const OEM_TABLE: [u8; 8] = *b"NODESCOP";
const OEM_REVISION: u32 = 1;

/// Guest-physical address of the tables' block.
pub const TABLES_BASE: u64 = 0xe_0000;
/// First address after the area below 1 MiB that an operating system scans for the RSDP.
pub const TABLES_END: u64 = 0x10_0000;

/// Trigger mode of a device's interrupt signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A rising edge requests an interrupt.
    Edge,
    /// A high level requests interrupts as long as the level lasts.
    Level,
}

/// A virtio-mmio device for the guest to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioSlot {
    /// Guest-physical address of the device's registers, below 4 GiB.
    pub base: u64,
    /// Size of the registers in bytes.
    pub size: u64,
    /// Global system interrupt (IOAPIC input).
    pub gsi: u32,
    /// Trigger mode of the interrupt.
    pub trigger: Trigger,
}

/// Location of an 8-bit register of the platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlatformRegister {
    /// Register at an I/O port.
    Port(u16),
    /// Register at a guest-physical address.
    Memory(u64),
}

impl PlatformRegister {
    fn gas(self) -> GAS {
        let (space, address) = match self {
            Self::Port(p) => (AddressSpace::SystemIo, p.into()),
            Self::Memory(a) => (AddressSpace::SystemMemory, a),
        };
        GAS::new(space, 8, 0, AccessSize::ByteAccess, address)
    }
}

/// UART of the first serial port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SerialPort {
    /// Number of the first of the serial port's eight I/O ports.
    pub port: u16,
    /// Global system interrupt (IOAPIC input) of the port.
    pub gsi: u32,
}

/// Addresses and devices of a node's platform, without the topology.
#[derive(Clone, Debug)]
pub struct PlatformDescription {
    /// Guest-physical address of the local APICs' registers.
    pub local_apic: u32,
    /// Guest-physical address of the IOAPIC's registers.
    pub ioapic: u32,
    /// APIC id of the IOAPIC.
    pub ioapic_id: u8,
    /// Sleep control register: writing sleep type 5 with the enable bit powers the node off (ACPI 6.5 §4.8.3.7).
    pub sleep_control: PlatformRegister,
    /// Sleep status register (ACPI 6.5 §4.8.3.7).
    pub sleep_status: PlatformRegister,
    /// Reset register and the value whose write resets the node.
    pub reset: (PlatformRegister, u8),
    /// UART of the serial console; `None` if the node has none.
    pub serial: Option<SerialPort>,
    /// virtio-mmio devices in creation order.
    pub virtio: Vec<VirtioSlot>,
}

impl Default for PlatformDescription {
    /// Returns the default addresses: local APIC 0xfee00000, IOAPIC 0xfec00000, sleep control and status at ports 0x600 and 0x601, reset by
    /// writing 1 to port 0x602, COM1 at port 0x3f8 on GSI 4, no virtio devices.
    fn default() -> Self {
        Self {
            local_apic: 0xfee0_0000,
            ioapic: 0xfec0_0000,
            ioapic_id: 0,
            sleep_control: PlatformRegister::Port(0x600),
            sleep_status: PlatformRegister::Port(0x601),
            reset: (PlatformRegister::Port(0x602), 1),
            serial: Some(SerialPort {
                port: 0x3f8,
                gsi: 4,
            }),
            virtio: Vec::new(),
        }
    }
}

/// Reason why the tables could not be made or written.
#[derive(Debug, Error)]
pub enum AcpiError {
    /// The topology is invalid.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A memory range belongs to a NUMA node without a socket.
    #[error(
        "memory range {start:#x} of {len:#x} bytes belongs to NUMA node {node}, but there are {sockets} sockets"
    )]
    Numa {
        /// First address of the range.
        start: u64,
        /// Length of the range, bytes.
        len: u64,
        /// NUMA node of the range.
        node: u32,
        /// Number of sockets.
        sockets: u32,
    },
    /// A device's registers are empty or not below 4 GiB, as a 32-bit resource descriptor needs.
    #[error(
        "virtio device {index} at {base:#x} of {size:#x} bytes does not lie below 4 GiB; move it into the hole for devices"
    )]
    Device {
        /// Index of the virtio device in creation order, from 0.
        index: usize,
        /// First guest-physical address of the device's registers.
        base: u64,
        /// Length of the device's registers, bytes.
        size: u64,
    },
    /// The node has more than 256 virtio devices.
    #[error("{0} virtio devices; a node can have at most 256")]
    Devices(usize),
    /// The tables do not fit between their first address and 1 MiB.
    #[error("the ACPI tables take {size} bytes at {base:#x}, but only {room} are left below 1 MiB")]
    Room {
        /// Size of the tables, bytes.
        size: usize,
        /// First guest-physical address of the block.
        base: u64,
        /// Size of the space for the block, bytes.
        room: u64,
    },
    /// The guest has no RAM at the block's address.
    #[error("the guest has no RAM for its ACPI tables at {0:#x}")]
    NotRam(u64),
}

/// Location of a table in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLocation {
    /// Signature in the table's header, such as `DSDT`.
    pub signature: [u8; 4],
    /// Guest-physical address of the table.
    pub address: u64,
    /// Length of the table in bytes.
    pub length: usize,
}

/// ACPI tables of a node, with the guest-physical addresses that they contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcpiTables {
    /// Guest-physical address of the block; the RSDP is the block's first structure.
    pub base: u64,
    /// Bytes of the block, to be written at `base`.
    pub bytes: Vec<u8>,
    /// Locations of the tables in the block, without the RSDP.
    pub tables: Vec<TableLocation>,
}

impl AcpiTables {
    /// Returns the guest-physical address of the RSDP.
    pub fn rsdp(&self) -> u64 {
        self.base
    }

    /// Returns the bytes of the table with this signature; `None` if the block has no such table.
    pub fn table(&self, signature: &[u8; 4]) -> Option<&[u8]> {
        let t = self.tables.iter().find(|t| t.signature == *signature)?;
        let from = (t.address - self.base) as usize;
        Some(&self.bytes[from..from + t.length])
    }

    /// Copies the block into guest RAM. Fails if the guest has no RAM there.
    pub fn write(&self, ram: &Ram) -> Result<(), AcpiError> {
        if ram.write(self.base, &self.bytes) {
            Ok(())
        } else {
            Err(AcpiError::NotRam(self.base))
        }
    }
}

/// Returns the tables for a node, to be written at [`TABLES_BASE`]. `numa` lists the RAM's ranges with their NUMA nodes.
pub fn build(
    topology: &NodeTopology,
    numa: &[NumaRange],
    platform: &PlatformDescription,
) -> Result<AcpiTables, AcpiError> {
    check(topology, numa, platform)?;
    let mut block = Block::new(TABLES_BASE);
    let dsdt = block.add(&dsdt::dsdt(topology, platform));
    let mut listed = vec![
        block.add(&fadt(platform, dsdt)),
        block.add(&cpus::madt(topology, platform)),
        block.add(&numa::srat(topology, numa)),
        block.add(&numa::slit(topology)),
        block.add(&cpus::pptt(topology)),
    ];
    if let Some(performance) = &topology.memory_performance {
        listed.push(block.add(&numa::hmat(performance)));
    }
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE, OEM_REVISION);
    for address in listed {
        xsdt.add_entry(address);
    }
    let xsdt = block.add(&bytes(&xsdt));
    block.finish(xsdt)
}

fn check(
    topology: &NodeTopology,
    numa: &[NumaRange],
    platform: &PlatformDescription,
) -> Result<(), AcpiError> {
    topology.validate()?;
    if let Some(r) = numa.iter().find(|r| r.node >= topology.sockets) {
        return Err(AcpiError::Numa {
            start: r.start,
            len: r.len,
            node: r.node,
            sockets: topology.sockets,
        });
    }
    if platform.virtio.len() > 256 {
        return Err(AcpiError::Devices(platform.virtio.len()));
    }
    for (index, v) in platform.virtio.iter().enumerate() {
        if v.size == 0 || v.base.saturating_add(v.size) > 1 << 32 {
            return Err(AcpiError::Device {
                index,
                base: v.base,
                size: v.size,
            });
        }
    }
    Ok(())
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut out = Vec::new();
    table.to_aml_bytes(&mut out);
    out
}

/// Returns an empty table with this signature and revision, to which a body is appended.
fn header(signature: [u8; 4], revision: u8) -> Sdt {
    Sdt::new(signature, 36, revision, OEM_ID, OEM_TABLE, OEM_REVISION)
}

/// Returns the fixed ACPI description table (ACPI 6.5 §5.2.9).
fn fadt(platform: &PlatformDescription, dsdt: u64) -> Vec<u8> {
    /// IA-PC boot architecture flags: no VGA and no CMOS clock are set, "legacy devices" and "8042" are not. With other values the kernel
    /// would probe such devices and wait for answers.
    const NO_VGA: u16 = 1 << 2;
    const NO_CMOS_RTC: u16 = 1 << 5;
    let mut table = FADTBuilder::new(OEM_ID, OEM_TABLE, OEM_REVISION)
        .preferred_pm_profile(PmProfile::EnterpriseServer)
        .dsdt_64(dsdt)
        .flag(Flags::Wbinvd)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::ResetRegSup)
        .flag(Flags::HwReducedAcpi);
    table.iapc_boot_arch = (NO_VGA | NO_CMOS_RTC).into();
    table.reset_reg = platform.reset.0.gas();
    table.reset_value = platform.reset.1;
    table.sleep_control_reg = platform.sleep_control.gas();
    table.sleep_status_reg = platform.sleep_status.gas();
    table.hypervisor_vendor_identity = u64::from_le_bytes(OEM_TABLE).into();
    bytes(&table.finalize())
}

/// A block under construction: space for the RSDP, then tables on 16-byte boundaries.
struct Block {
    base: u64,
    bytes: Vec<u8>,
    tables: Vec<TableLocation>,
}

impl Block {
    fn new(base: u64) -> Self {
        Self {
            base,
            bytes: vec![0; Rsdp::len()],
            tables: Vec::new(),
        }
    }

    fn add(&mut self, table: &[u8]) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        let address = self.base + self.bytes.len() as u64;
        self.bytes.extend_from_slice(table);
        self.tables.push(TableLocation {
            signature: [table[0], table[1], table[2], table[3]],
            address,
            length: table.len(),
        });
        address
    }

    fn finish(mut self, xsdt: u64) -> Result<AcpiTables, AcpiError> {
        let rsdp = bytes(&Rsdp::new(OEM_ID, xsdt));
        self.bytes[..rsdp.len()].copy_from_slice(&rsdp);
        let room = TABLES_END - self.base;
        if self.bytes.len() as u64 > room {
            return Err(AcpiError::Room {
                size: self.bytes.len(),
                base: self.base,
                room,
            });
        }
        Ok(AcpiTables {
            base: self.base,
            bytes: self.bytes,
            tables: self.tables,
        })
    }
}

#[cfg(test)]
mod tests;
