//! Direct boot of a Linux kernel by the 64-bit boot protocol (Documentation/x86/boot.rst): paging is on, RSI points to the boot parameters,
//! and no firmware runs. A kernel that is an ELF file needs no decompressor either.
//!
//! Guest-physical addresses below 1 MiB: GDT 0x1000, boot parameters 0x7000, stack below 0x9000, page tables 0x9000 to 0xf000, command line
//! 0x20000, ACPI tables 0xe0000. The initramfs is at the top of the RAM below the hole for devices.

mod kernel;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use nodescope_memory::Ram;
use nodescope_x86::bits::{cr0, cr4, efer, pte, rflags, xcr0};
use nodescope_x86::state::{Segment, seg};
use nodescope_x86::{DescriptorTable, VcpuState};
use thiserror::Error;
use vm_memory::GuestAddress;

use crate::acpi::{AcpiTables, TABLES_END};

pub use kernel::KernelImage;

/// Lowest guest-physical address of a kernel: 1 MiB.
pub const HIGH_MEMORY: u64 = 0x10_0000;
/// End of conventional memory, as the memory map states it.
const LOW_END: u64 = 0x9_fc00;
const GDT: u64 = 0x1000;
const ZERO_PAGE: u64 = 0x7000;
const STACK_TOP: u64 = 0x9000;
const PML4: u64 = 0x9000;
const PDPT: u64 = 0xa000;
/// Four page directories, which map the first 4 GiB in 2-MiB pages.
const PAGE_DIRECTORIES: u64 = 0xb000;
const COMMAND_LINE: u64 = 0x2_0000;
/// Maximum length of the command line in bytes, without its terminator (COMMAND_LINE_SIZE of x86 Linux).
pub const COMMAND_LINE_MAX: usize = 2047;

/// Selector of the code segment that the boot protocol prescribes. `BOOT_DS` is the prescribed selector of data segments.
const BOOT_CS: u16 = 0x10;
const BOOT_DS: u16 = 0x18;
const BOOT_TR: u16 = 0x20;

/// Reason why a guest cannot be started.
#[derive(Debug, Error)]
pub enum BootError {
    /// A file cannot be read.
    #[error("cannot read the {what} {path}: {source}; give the path of a readable file", path = path.display())]
    Read {
        /// Role of the file: `kernel` or `initramfs`.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the host.
        source: std::io::Error,
    },
    /// The file is neither an ELF file nor a bzImage.
    #[error(
        "{path} is not a kernel: it begins with {first:02x?}; give an uncompressed vmlinux (ELF) or a bzImage",
        path = path.display()
    )]
    NotAKernel {
        /// Path of the file.
        path: PathBuf,
        /// First bytes of the file, four at most.
        first: Vec<u8>,
    },
    /// The file is a kernel image that cannot be started.
    #[error("kernel {path}: {reason}; give an x86-64 Linux kernel", path = path.display())]
    KernelFormat {
        /// Path of the kernel.
        path: PathBuf,
        /// Reason why the kernel cannot be started.
        reason: String,
    },
    /// The kernel's file is shorter than its headers state.
    #[error("kernel {path} is cut: it has {len} bytes, its headers speak of {needed}; copy or unpack it again", path = path.display())]
    KernelTruncated {
        /// Path of the kernel.
        path: PathBuf,
        /// Bytes that the file should have.
        needed: u64,
        /// Bytes that the file has.
        len: u64,
    },
    /// The kernel needs memory below 1 MiB, or beyond the end of the RAM that starts at address 0.
    #[error(
        "kernel {path} wants memory from {start:#x} to {end:#x}, but RAM for it lies between 0x100000 and {low_end:#x}; give the node more memory",
        path = path.display()
    )]
    KernelLocation {
        /// Path of the kernel.
        path: PathBuf,
        /// First address that the kernel needs.
        start: u64,
        /// First address after the memory that the kernel needs.
        end: u64,
        /// End of the RAM below the hole for devices.
        low_end: u64,
    },
    /// The loader rejected the kernel.
    #[error("kernel {path} cannot be loaded: {source}", path = path.display())]
    Loader {
        /// Path of the kernel.
        path: PathBuf,
        /// Error of the loader.
        source: linux_loader::loader::Error,
    },
    /// The initramfs does not fit between the kernel and the end of low RAM.
    #[error(
        "initramfs {path} has {size} bytes, but only {room} are free between the kernel's end at {kernel_end:#x} and {low_end:#x}; give the node more memory",
        path = path.display()
    )]
    InitramfsTooBig {
        /// Path of the initramfs.
        path: PathBuf,
        /// Size of the initramfs, bytes.
        size: u64,
        /// Bytes that are free for the initramfs.
        room: u64,
        /// First address after the kernel.
        kernel_end: u64,
        /// End of the RAM below the hole for devices.
        low_end: u64,
    },
    /// The command line is too long or contains a NUL.
    #[error("the kernel command line {reason}; shorten or correct the study's kernel arguments")]
    CommandLine {
        /// Reason why the command line cannot be used.
        reason: String,
    },
    /// The RAM at address 0 is too small for a guest; the value is its size in bytes.
    #[error("the node has {0} bytes of memory at address 0; a guest needs at least 16 MiB")]
    Memory(u64),
}

fn read_file(what: &'static str, path: &Path) -> Result<Vec<u8>, BootError> {
    std::fs::read(path).map_err(|source| BootError::Read {
        what,
        path: path.into(),
        source,
    })
}

/// An initial RAM file system in host memory, which any number of nodes can load.
#[derive(Clone, Debug)]
pub struct Initramfs {
    path: PathBuf,
    bytes: Arc<Vec<u8>>,
}

impl Initramfs {
    /// Reads the file without checking its format, which the guest's kernel does.
    pub fn open(path: &Path) -> Result<Self, BootError> {
        Ok(Self::new(path, read_file("initramfs", path)?))
    }

    /// Returns an initramfs with the bytes that were read from `path`.
    pub fn new(path: &Path, bytes: Vec<u8>) -> Self {
        Self {
            path: path.into(),
            bytes: Arc::new(bytes),
        }
    }
}

/// Parts of a guest to start.
#[derive(Clone, Copy, Debug)]
pub struct BootConfig<'a> {
    /// Linux kernel to load.
    pub kernel: &'a KernelImage,
    /// Initial RAM file system to load; `None` for a kernel without one.
    pub initramfs: Option<&'a Initramfs>,
    /// Command line of the kernel.
    pub command_line: &'a str,
    /// ACPI tables of the node, which [`load`] writes into RAM as well.
    pub acpi: &'a AcpiTables,
}

/// Start state of a guest whose RAM has been loaded.
#[derive(Clone, Debug)]
pub struct Boot {
    /// State of the boot processor; the other vCPUs wait for a start-up IPI.
    pub state: VcpuState,
    /// First guest-physical address after the memory that the kernel uses before it manages memory itself.
    pub kernel_end: u64,
    /// Guest-physical address and size in bytes of the initramfs; `None` without one.
    pub initramfs: Option<(u64, u64)>,
}

/// Writes kernel, initramfs, command line, boot parameters, page tables, GDT and ACPI tables into RAM. Returns the state in which the boot
/// processor starts.
pub fn load(ram: &Ram, config: &BootConfig<'_>) -> Result<Boot, BootError> {
    let low_end = ram.region(0).map_or(0, |r| r.len);
    if low_end < 16 << 20 {
        return Err(BootError::Memory(low_end));
    }
    check_command_line(config.command_line)?;
    let kernel = config.kernel.load(ram)?;
    let initramfs = config
        .initramfs
        .map(|i| place_initramfs(ram, i, kernel.end, low_end))
        .transpose()?;

    let mut params = boot_params::default();
    if let Some(header) = kernel.header {
        params.hdr = header;
    } else {
        params.hdr.boot_flag = 0xaa55;
        params.hdr.header = 0x5372_6448;
        params.hdr.version = 0x20f;
        params.hdr.kernel_alignment = 0x100_0000;
    }
    /// Type of a boot loader without an assigned number.
    const LOADER_OTHER: u8 = 0xff;
    params.hdr.type_of_loader = LOADER_OTHER;
    params.hdr.cmd_line_ptr = COMMAND_LINE as u32;
    params.hdr.cmdline_size = config.command_line.len() as u32;
    if let Some((at, size)) = initramfs {
        // Address and size are below 4 GiB, because low RAM ends before the hole for devices.
        params.hdr.ramdisk_image = at as u32;
        params.hdr.ramdisk_size = size as u32;
    }
    params.acpi_rsdp_addr = config.acpi.rsdp();
    let map = memory_map(ram);
    params.e820_entries = map.len() as u8;
    params.e820_table[..map.len()].copy_from_slice(&map);

    let mut line = config.command_line.as_bytes().to_vec();
    line.push(0);
    let written = ram.write(COMMAND_LINE, &line)
        && LinuxBootConfigurator::write_bootparams(
            &BootParams::new(&params, GuestAddress(ZERO_PAGE)),
            ram.memory(),
        )
        .is_ok()
        && write_tables(ram)
        && config.acpi.write(ram).is_ok();
    if !written {
        return Err(BootError::Memory(low_end));
    }
    Ok(Boot {
        state: boot_state(kernel.entry),
        kernel_end: kernel.end,
        initramfs,
    })
}

fn check_command_line(line: &str) -> Result<(), BootError> {
    let wrong = |reason: String| Err(BootError::CommandLine { reason });
    if line.len() > COMMAND_LINE_MAX {
        return wrong(format!(
            "has {} bytes, the kernel takes {COMMAND_LINE_MAX}",
            line.len()
        ));
    }
    match line.bytes().position(|b| b == 0) {
        Some(at) => wrong(format!("has a NUL at byte {at}")),
        None => Ok(()),
    }
}

fn place_initramfs(
    ram: &Ram,
    initramfs: &Initramfs,
    kernel_end: u64,
    low_end: u64,
) -> Result<(u64, u64), BootError> {
    let size = initramfs.bytes.len() as u64;
    let start = low_end.checked_sub(size).map(|s| s & !0xfff);
    match start {
        Some(at) if at >= kernel_end && ram.write(at, &initramfs.bytes) => Ok((at, size)),
        _ => Err(BootError::InitramfsTooBig {
            path: initramfs.path.clone(),
            size,
            room: low_end.saturating_sub(kernel_end),
            kernel_end,
            low_end,
        }),
    }
}

/// Returns the e820 memory map. All RAM is listed except the area from the end of conventional memory to 1 MiB, of which the part for ACPI
/// tables is reserved.
fn memory_map(ram: &Ram) -> Vec<boot_e820_entry> {
    const RAM: u32 = 1;
    const RESERVED: u32 = 2;
    let entry = |addr, size, kind| boot_e820_entry {
        addr,
        size,
        r#type: kind,
    };
    let tables = crate::acpi::TABLES_BASE;
    let mut map = vec![
        entry(0, LOW_END, RAM),
        entry(tables, TABLES_END - tables, RESERVED),
    ];
    for region in ram.regions() {
        let start = region.start.max(HIGH_MEMORY);
        map.push(entry(start, region.start + region.len - start, RAM));
    }
    map
}

/// Descriptors: null, unused, 64-bit code, data, busy TSS (SDM vol. 3A §3.4.5).
const DESCRIPTORS: [u64; 5] = [
    0,
    0,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0x0000_8b00_0000_ffff,
];

fn write_tables(ram: &Ram) -> bool {
    let present = pte::PRESENT | pte::WRITABLE;
    let quad = |at: u64, value: u64| ram.write(at, &value.to_le_bytes());
    let gdt = DESCRIPTORS
        .iter()
        .enumerate()
        .all(|(i, d)| quad(GDT + 8 * i as u64, *d));
    let top = quad(PML4, PDPT | present);
    let pdpt = (0..4).all(|i| quad(PDPT + 8 * i, (PAGE_DIRECTORIES + (i << 12)) | present));
    let directories =
        (0..4 * 512).all(|i| quad(PAGE_DIRECTORIES + 8 * i, i << 21 | present | pte::LARGE));
    gdt && top && pdpt && directories
}

/// Returns the state in which a kernel starts: 64-bit mode, interrupts off, flat segments, RSI pointing to the boot parameters.
fn boot_state(entry: u64) -> VcpuState {
    let mut s = VcpuState::reset();
    s.general.gpr = [0; 16];
    s.general.rip = entry;
    s.general.rflags = rflags::FIXED;
    const RSP: usize = 4;
    const RSI: usize = 6;
    s.general.gpr[RSP] = STACK_TOP;
    s.general.gpr[RSI] = ZERO_PAGE;
    let flat = |selector, attributes| Segment {
        selector,
        base: 0,
        limit: u32::MAX,
        attributes,
        unusable: false,
    };
    s.segments.data = [flat(BOOT_DS, 0xc093); 6];
    s.segments.data[seg::CS] = flat(BOOT_CS, 0xa09b);
    s.segments.tr = Segment {
        selector: BOOT_TR,
        base: 0,
        limit: 0xffff,
        attributes: 0x8b,
        unusable: false,
    };
    s.segments.ldt.unusable = true;
    s.segments.gdt = DescriptorTable {
        base: GDT,
        limit: (DESCRIPTORS.len() * 8 - 1) as u16,
    };
    s.segments.idt = DescriptorTable { base: 0, limit: 0 };
    s.control.cr0 = cr0::PE | cr0::ET | cr0::NE | cr0::PG;
    s.control.cr3 = PML4;
    s.control.cr4 = cr4::PAE;
    s.control.efer = efer::LME | efer::LMA;
    s.control.xcr0 = xcr0::X87;
    s
}

#[cfg(test)]
mod tests;
