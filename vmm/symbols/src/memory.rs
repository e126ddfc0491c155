//! The guest's memory as the host sees it.

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The guest's physical memory.
pub trait PhysicalMemory {
    /// Reads bytes at a guest-physical address. Returns false, and leaves `buf` unspecified, if not all of the bytes are RAM.
    fn read(&self, address: u64, buf: &mut [u8]) -> bool;
}

impl<F: Fn(u64, &mut [u8]) -> bool> PhysicalMemory for F {
    fn read(&self, address: u64, buf: &mut [u8]) -> bool {
        self(address, buf)
    }
}

/// Reads a little-endian 64-bit word at a guest-physical address.
fn word(memory: &dyn PhysicalMemory, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory
        .read(address, &mut bytes)
        .then_some(u64::from_le_bytes(bytes))
}

/// Translates a linear address by the page tables at CR3. Permissions are not checked. Addresses that are not canonical have no
/// translation.
pub fn translate(memory: &dyn PhysicalMemory, cr3: u64, linear: u64) -> Option<u64> {
    nodescope_memory::paging::translate(|at| word(memory, at), cr3, linear)
}

/// Reads bytes at a linear address, from several pages if necessary. Returns `None` if a page is not mapped to RAM.
pub fn read_linear(
    memory: &dyn PhysicalMemory,
    cr3: u64,
    linear: u64,
    buf: &mut [u8],
) -> Option<()> {
    read_paged(linear, buf, |address, part| {
        translate(memory, cr3, address).is_some_and(|physical| memory.read(physical, part))
    })
}

/// Reads at most `limit` bytes from a linear address upwards, such as a copy of a stack. Stops at the first page that is not mapped.
pub fn read_up_to(memory: &dyn PhysicalMemory, cr3: u64, linear: u64, limit: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < limit {
        let Some(address) = linear.checked_add(bytes.len() as u64) else {
            break;
        };
        let here = (PAGE - address % PAGE).min((limit - bytes.len()) as u64) as usize;
        let from = bytes.len();
        bytes.resize(from + here, 0);
        if read_linear(memory, cr3, address, &mut bytes[from..]).is_none() {
            bytes.truncate(from);
            break;
        }
    }
    bytes
}

/// Fills `buf` by a call of `read` for each page, since neighbouring linear pages need not be neighbours in physical memory.
pub(crate) fn read_paged(
    linear: u64,
    buf: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> bool,
) -> Option<()> {
    let mut done = 0;
    while done < buf.len() {
        let address = linear.checked_add(done as u64)?;
        let here = (PAGE - address % PAGE).min((buf.len() - done) as u64) as usize;
        if !read(address, &mut buf[done..done + here]) {
            return None;
        }
        done += here;
    }
    Some(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::{PhysicalMemory, read_linear, read_up_to, translate};

    /// Sparse memory of pages that tests write.
    #[derive(Default)]
    pub(crate) struct Pages(pub BTreeMap<u64, Vec<u8>>);

    impl Pages {
        pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) {
            for (address, byte) in (address..).zip(bytes) {
                let page = self.0.entry(address & !0xfff);
                page.or_insert_with(|| vec![0; 4096])[(address & 0xfff) as usize] = *byte;
            }
        }

        pub(crate) fn put(&mut self, address: u64, value: u64) {
            self.write(address, &value.to_le_bytes());
        }
    }

    impl PhysicalMemory for Pages {
        fn read(&self, address: u64, buf: &mut [u8]) -> bool {
            buf.iter_mut().enumerate().all(|(i, byte)| {
                let address = address.wrapping_add(i as u64);
                let page = self.0.get(&(address & !0xfff));
                page.is_some_and(|page| {
                    *byte = page[(address & 0xfff) as usize];
                    true
                })
            })
        }
    }

    fn tables() -> Pages {
        let mut memory = Pages::default();
        // Linear 0: two small pages, the second one at a lower physical address; then a hole; then the second page again.
        memory.put(0x1000, 0x2003);
        memory.put(0x2000, 0x3003);
        memory.put(0x3000, 0x4003);
        memory.put(0x4000, 0x9003);
        memory.put(0x4008, 0x7003);
        memory.put(0x4018, 0x7003);
        // 2 MiB at 2 MiB, with PAT; 1 GiB at 1 GiB.
        memory.put(0x3008, 0x60_1083);
        memory.put(0x2008, 0x4000_0083);
        // The last entry maps the top of the upper half, and refers to the table itself.
        memory.put(0x1ff8, 0x1003);
        memory
    }

    #[test]
    fn pages_of_every_size() {
        let memory = tables();
        let at = |linear| translate(&memory, 0x1fff, linear);
        assert_eq!(at(0x123), Some(0x9123));
        assert_eq!(at(0x1fff), Some(0x7fff));
        assert_eq!(at(0x2000), None);
        assert_eq!(at(0x20_1234), Some(0x60_1234));
        assert_eq!(at(0x4123_4567), Some(0x4123_4567));
        assert_eq!(at(0x8000_0000_0000), None);
        // A table that contains itself ends after four levels.
        assert_eq!(at(u64::MAX), Some(0x1fff));
        // The page tables are outside of RAM.
        assert_eq!(translate(&memory, 0x50_0000, 0), None);
    }

    #[test]
    fn reads_across_pages() {
        let mut memory = tables();
        memory.write(0x9ffe, &[1, 2]);
        memory.write(0x7000, &[3, 4]);
        let mut bytes = [0; 4];
        assert!(read_linear(&memory, 0x1000, 0xffe, &mut bytes).is_some());
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert!(read_linear(&memory, 0x1000, 0x1ffe, &mut bytes).is_none());
        assert!(read_linear(&memory, 0x1000, u64::MAX - 1, &mut bytes).is_none());
        assert_eq!(read_up_to(&memory, 0x1000, 0xffe, 1 << 16).len(), 0x1002);
        assert_eq!(read_up_to(&memory, 0x1000, 0xffe, 3), [1, 2, 3]);
        assert!(read_up_to(&memory, 0x1000, 0x2000, 100).is_empty());
    }
}
