//! Layout and allocation of guest RAM.

use std::sync::Arc;

use thiserror::Error;
use vm_memory::{
    Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, MmapRegion,
};

use crate::CodeMap;

/// View of the RAM for vm-memory, which devices and loaders use. Writes by this view are recorded in the code map.
pub type GuestRam = GuestMemoryMmap<CodeMap>;

/// Start of the address hole below 4 GiB for devices (local APIC, IOAPIC, virtio-mmio).
pub const MMIO_GAP_START: u64 = 0xc000_0000;
/// End of the address hole below 4 GiB for devices: the first address after the hole.
pub const MMIO_GAP_END: u64 = 0x1_0000_0000;

/// Memory that belongs to one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumaRange {
    /// First guest-physical address of the range.
    pub start: u64,
    /// Length of the range in bytes.
    pub len: u64,
    /// Number of the NUMA node (socket).
    pub node: u32,
}

/// Reason why RAM could not be laid out or allocated.
#[derive(Debug, Error)]
pub enum LayoutError {
    /// A size is zero or not a multiple of 2 MiB.
    #[error("memory of NUMA node {node} is {bytes} bytes; it must be a positive multiple of 2 MiB")]
    Size {
        /// Number of the NUMA node.
        node: u32,
        /// Requested size, bytes.
        bytes: u64,
    },
    /// The host could not map the memory.
    #[error(
        "the host cannot map {bytes} bytes of guest memory ({cause}); reduce the study's memory per node"
    )]
    Map {
        /// Size that could not be mapped, bytes.
        bytes: u64,
        /// Error that the host returned.
        cause: String,
    },
}

/// Contiguous region of RAM with the host memory behind it, in the form that engines use.
#[derive(Clone, Debug)]
pub struct RamRegion {
    /// First guest-physical address of the region.
    pub start: u64,
    /// Length of the region in bytes.
    pub len: u64,
    /// Host address of the first byte.
    pub host: *mut u8,
    /// Code map of the region.
    pub code: CodeMap,
}

// SAFETY: the pointer refers to a mapping that lives as long as the owning `Ram` or one of its clones. Code that dereferences the pointer
// must itself avoid data races.
unsafe impl Send for RamRegion {}
// SAFETY: as above; shared references to a `RamRegion` don't allow changes of its fields.
unsafe impl Sync for RamRegion {}

/// Guest RAM of one node. Clones share the memory.
#[derive(Clone, Debug)]
pub struct Ram {
    memory: GuestRam,
    regions: Arc<[RamRegion]>,
    numa: Arc<[NumaRange]>,
}

impl Ram {
    /// Allocates memory for NUMA nodes of these sizes in bytes, in the order of the nodes, around the address hole below 4 GiB. The host
    /// allocates pages when they are first touched.
    pub fn new(numa_bytes: &[u64]) -> Result<Self, LayoutError> {
        let mut numa = Vec::new();
        let mut at = 0;
        for (node, &bytes) in numa_bytes.iter().enumerate() {
            let node = node as u32;
            if bytes == 0 || bytes % (2 << 20) != 0 {
                return Err(LayoutError::Size { node, bytes });
            }
            let mut left = bytes;
            while left > 0 {
                if at == MMIO_GAP_START {
                    at = MMIO_GAP_END;
                }
                let room = if at < MMIO_GAP_START {
                    MMIO_GAP_START - at
                } else {
                    u64::MAX
                };
                let len = left.min(room);
                numa.push(NumaRange {
                    start: at,
                    len,
                    node,
                });
                at += len;
                left -= len;
            }
        }
        let total: u64 = numa_bytes.iter().sum();
        let low = total.min(MMIO_GAP_START);
        let mut pieces = vec![(0, low)];
        if total > low {
            pieces.push((MMIO_GAP_END, total - low));
        }
        let mut mapped = Vec::new();
        for &(start, len) in &pieces {
            let fail = |cause: String| LayoutError::Map { bytes: len, cause };
            let map = MmapRegion::<CodeMap>::new(len as usize).map_err(|e| fail(e.to_string()))?;
            // Guests touch most of their memory, and all over it. Without huge pages on the host, only speed differs.
            // SAFETY: the mapping was just made with this length; the advice changes no contents.
            unsafe { libc::madvise(map.as_ptr().cast(), len as usize, libc::MADV_HUGEPAGE) };
            mapped.push(
                GuestRegionMmap::new(map, GuestAddress(start))
                    .ok_or_else(|| fail("address space exhausted".into()))?,
            );
        }
        let memory = GuestRam::from_regions(mapped).map_err(|e| LayoutError::Map {
            bytes: total,
            cause: e.to_string(),
        })?;
        let regions = memory
            .iter()
            .map(|r| RamRegion {
                start: r.start_addr().raw_value(),
                len: r.len(),
                host: r.get_mmap().as_ptr(),
                code: r.get_mmap().bitmap().clone(),
            })
            .collect();
        Ok(Self {
            memory,
            regions,
            numa: numa.into(),
        })
    }

    /// Returns vm-memory's view of the RAM.
    pub fn memory(&self) -> &GuestRam {
        &self.memory
    }

    /// Returns the regions, sorted by address.
    pub fn regions(&self) -> &[RamRegion] {
        &self.regions
    }

    /// Returns the NUMA ranges, sorted by address.
    pub fn numa(&self) -> &[NumaRange] {
        &self.numa
    }

    /// Returns the region that contains this guest-physical address; `None` if the address is not RAM.
    #[inline]
    pub fn region(&self, physical: u64) -> Option<&RamRegion> {
        self.regions
            .iter()
            .find(|r| physical.wrapping_sub(r.start) < r.len)
    }

    /// Returns the total size of the RAM in bytes.
    pub fn size(&self) -> u64 {
        self.regions.iter().map(|r| r.len).sum()
    }

    /// Reads guest-physical memory. Returns false if any byte is not RAM.
    pub fn read(&self, physical: u64, buf: &mut [u8]) -> bool {
        self.memory.read_slice(buf, GuestAddress(physical)).is_ok()
    }

    /// Writes guest-physical memory, and records the write in the code map. Returns false if any byte is not RAM.
    pub fn write(&self, physical: u64, buf: &[u8]) -> bool {
        self.memory.write_slice(buf, GuestAddress(physical)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_above_the_hole_moves_up_and_keeps_its_numa_node() {
        let ram = Ram::new(&[2 << 30, 2 << 30]).unwrap();
        assert_eq!(ram.size(), 4 << 30);
        let ranges: Vec<_> = ram
            .numa()
            .iter()
            .map(|r| (r.start, r.len, r.node))
            .collect();
        assert_eq!(
            ranges,
            [
                (0, 2 << 30, 0),
                (2 << 30, 1 << 30, 1),
                (4 << 30, 1 << 30, 1)
            ]
        );
        assert!(ram.region(MMIO_GAP_START).is_none());
        assert!(ram.write((5 << 30) - 1, &[7]));
        assert!(!ram.write(5 << 30, &[7]));
    }

    #[test]
    fn dma_writes_reach_the_code_map() {
        let ram = Ram::new(&[2 << 20]).unwrap();
        let region = ram.region(0x3000).unwrap();
        region.code.mark(0x3040, 16);
        ram.write(0x2fc0, &[0; 64]);
        assert_eq!(region.code.generation(0x3000), 0);
        ram.write(0x2ff0, &[0; 32]);
        assert_eq!(region.code.generation(0x3000), 1);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let err = Ram::new(&[4096]).unwrap_err().to_string();
        assert!(err.contains("4096 bytes") && err.contains("2 MiB"), "{err}");
    }
}
