//! Contents of files that exist only in the guest's memory, from the kernel's page cache.

use crate::kernel::{FileId, GuestKernel};
use crate::memory::{PAGE, PhysicalMemory};

/// Maximum size of a file that is read from the guest's memory, bytes.
pub const FILE_LIMIT: u64 = 64 << 20;
/// Bits of an index that a node resolves (`XA_CHUNK_SHIFT`, include/linux/xarray.h).
const CHUNK: u32 = 6;
/// Low bits of an entry of an xarray: a value, an internal entry of the array, and the mask of both bits.
const VALUE: u64 = 1;
const INTERNAL: u64 = 2;
const TAGS: u64 = 3;
/// Internal entries up to here are siblings and errors, no nodes (`xa_is_node`).
const NO_NODE: u64 = 4096;
/// Maximum number of levels of an array with 64-bit indices.
const LEVELS: u32 = 11;

/// Entry for a page of a file in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// The page was never written, and reads as zeros.
    Hole,
    /// Linear address of the `struct page`.
    Page(u64),
}

impl GuestKernel {
    /// Reads a file of a `tmpfs` or a `ramfs` from its pages in the guest's memory. Returns `None` for other file systems, for
    /// files that no longer exist at `file.mapping`, and for files of more than [`FILE_LIMIT`] bytes.
    pub fn read_file(&self, memory: &dyn PhysicalMemory, file: &FileId) -> Option<Vec<u8>> {
        if !matches!(
            file.file_system.as_str(),
            "tmpfs" | "ramfs" | "devtmpfs" | "rootfs"
        ) {
            return None;
        }
        let layout = &self.layout.inode;
        let inode = self.word(memory, file.mapping.wrapping_add(layout.host))?;
        let at = |offset: u64| self.word(memory, inode.wrapping_add(offset));
        if at(layout.mapping)? != file.mapping || at(layout.number)? != file.inode {
            return None;
        }
        let size = at(layout.size)?;
        if size > FILE_LIMIT {
            return None;
        }
        let mut bytes = vec![0; size as usize];
        let head = file.mapping.wrapping_add(self.layout.xarray.head);
        let head = self.word(memory, head)?;
        for (number, part) in bytes.chunks_mut(PAGE as usize).enumerate() {
            if let Slot::Page(page) = self.slot(memory, head, number as u64)? {
                let physical = self.cached(memory, page, number as u64)?;
                if !memory.read(physical, part) {
                    return None;
                }
            }
        }
        Some(bytes)
    }

    /// Returns the physical address of page `number` of a file. `page` is the `struct page` of the entry, which may describe several pages.
    fn cached(&self, memory: &dyn PhysicalMemory, page: u64, number: u64) -> Option<u64> {
        let index = page.wrapping_add(self.layout.page.index);
        let ahead = number.checked_sub(self.word(memory, index)?)?;
        // 1 GiB is the largest page.
        let physical = self.page_address(page)?;
        (ahead < 1 << 18).then(|| physical + ahead * PAGE)
    }

    /// Finds the entry of an index in an xarray, from the array's head. Returns `None` for a page in swap space.
    fn slot(&self, memory: &dyn PhysicalMemory, head: u64, index: u64) -> Option<Slot> {
        let layout = &self.layout.xarray;
        let mut entry = head;
        // The array of a file with a single entry has no node.
        let is_node = |entry: u64| entry & TAGS == INTERNAL && entry > NO_NODE;
        if !is_node(head) && index > 0 && !self.spans(memory, head, index) {
            return Some(Slot::Hole);
        }
        for level in 0..LEVELS {
            if !is_node(entry) {
                return match entry {
                    0 => Some(Slot::Hole),
                    // The page is in swap space, or the entry is internal to the array.
                    _ if entry & TAGS != 0 => None,
                    page => Some(Slot::Page(page)),
                };
            }
            let node = entry - INTERNAL;
            let mut shift = [0];
            self.read(memory, node.wrapping_add(layout.shift), &mut shift)?;
            let shift = u32::from(shift[0]);
            if shift >= u64::BITS || (level == 0 && index >> shift >> CHUNK != 0) {
                return (shift < u64::BITS).then_some(Slot::Hole);
            }
            let slots = node.wrapping_add(layout.slots);
            let slot = |n: u64| self.word(memory, slots.wrapping_add(8 * n));
            let mut number = (index >> shift) & ((1 << CHUNK) - 1);
            entry = slot(number)?;
            // A sibling entry has the number of the slot whose entry covers this index, too.
            if entry & TAGS == INTERNAL && entry >> 2 < 1 << CHUNK {
                number = entry >> 2;
                entry = slot(number)?;
            }
        }
        None
    }

    /// Returns whether `page`, the entry of an array without a node, is a compound page that extends to this index.
    fn spans(&self, memory: &dyn PhysicalMemory, page: u64, index: u64) -> bool {
        if page == 0 || page & (VALUE | INTERNAL) != 0 {
            return false;
        }
        let layout = &self.layout.page;
        let tail = page.wrapping_add(index.wrapping_mul(layout.size));
        let head = self.word(memory, tail.wrapping_add(layout.compound_head));
        head == Some(page | 1)
    }
}
