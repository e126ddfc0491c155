//! The guest's kernel, and the file to which a page of code belongs.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::btf::Types;
use crate::error::KernelError;
use crate::image::{KernelImage, Segment};
use crate::kallsyms::{KernelSymbol, KernelSymbols};
use crate::layout::Layout;
use crate::memory::{PAGE, PhysicalMemory, read_paged, translate};

/// Linear addresses of the direct map of physical memory: `PAGE_OFFSET` without KASLR (Linux, Documentation/x86/x86_64/mm.rst).
const DIRECT_MAP: Range<u64> = 0xffff_8880_0000_0000..0xffff_c880_0000_0000;
/// Linear addresses of the array of `struct page`: `vmemmap` without KASLR (the same page of the documentation).
const VMEMMAP: Range<u64> = 0xffff_ea00_0000_0000..0xffff_eb00_0000_0000;
/// Low bits of `page->mapping` (include/linux/page-flags.h): the bit of anonymous memory, and the mask of this bit and of the bit for
/// movable pages of drivers.
const MAPPING_ANON: u64 = 1;
const MAPPING_FLAGS: u64 = 3;
/// Bytes of `super_block.s_id`.
const SUPER_ID: usize = 32;
/// Maximum depth of mounts within mounts that a search follows.
const MOUNTS: usize = 64;
/// Maximum size of the vDSO, bytes. The vDSO of Linux 6.1 has two pages.
const VDSO: u64 = 1 << 20;
/// Maximum length of a directory entry's name (`NAME_MAX`), and of a path (`PATH_MAX`), bytes.
const NAME_MAX: u32 = 255;
const PATH_MAX: usize = 4096;
/// Maximum number of entries of a folder that a search examines.
const ENTRIES: usize = 1 << 16;

/// A file of the guest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileId {
    /// Type of the file system with the file, such as `ext4` or `tmpfs`.
    pub file_system: String,
    /// Name of this file system in the kernel (`super_block.s_id`), such as `vda` for a disk; `tmpfs` for a `tmpfs`.
    pub device: String,
    /// Path of the first mount of the file system; empty for the root file system, and for a file system without a mount.
    pub mount: String,
    /// Path from the root of the file system. A file without a folder has only a name, without a slash in front.
    pub path: String,
    /// Number of the inode.
    pub inode: u64,
    /// Linear address of the kernel's `struct address_space`, by which the file's pages are found.
    pub mapping: u64,
    /// True if the file has no name any more (no links).
    pub deleted: bool,
}

impl FileId {
    /// Returns the identity of the vDSO, the library that the kernel maps into each process. The vDSO is in no file system.
    pub(crate) fn vdso() -> Self {
        Self {
            file_system: "vdso".into(),
            device: String::new(),
            mount: String::new(),
            path: "[vdso]".into(),
            inode: 0,
            mapping: 0,
            deleted: false,
        }
    }
}

/// Origin of a page of code: a file, the kernel, a module, or memory without a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilePage {
    /// A page of a file.
    File {
        /// File to which the page belongs.
        file: FileId,
        /// Offset of the requested byte in the file.
        offset: u64,
    },
    /// Memory without a file, such as code that a program has generated.
    Anonymous,
    /// A page of the kernel's own code.
    Kernel {
        /// Linear address of the requested byte.
        address: u64,
    },
    /// A page of code of a kernel module.
    Module {
        /// Name of the module.
        name: String,
        /// Linear address of `struct module`.
        module: u64,
        /// Linear address of the requested byte.
        address: u64,
        /// Offset of the requested byte from the module's first byte in memory.
        offset: u64,
    },
}

impl FilePage {
    /// Returns the page's location moved forward by so many bytes.
    pub fn behind(self, bytes: u64) -> FilePage {
        match self {
            FilePage::File { file, offset } => FilePage::File {
                file,
                offset: offset.saturating_add(bytes),
            },
            FilePage::Anonymous => FilePage::Anonymous,
            FilePage::Kernel { address } => FilePage::Kernel {
                address: address.saturating_add(bytes),
            },
            FilePage::Module {
                name,
                module,
                address,
                offset,
            } => FilePage::Module {
                name,
                module,
                address: address.saturating_add(bytes),
                offset: offset.saturating_add(bytes),
            },
        }
    }
}

/// The kernel that a guest runs: layout of its structures, its symbols, and its addresses in memory.
#[derive(Debug)]
pub struct GuestKernel {
    pub(crate) layout: Layout,
    pub(crate) symbols: KernelSymbols,
    pub(crate) segments: Vec<Segment>,
    /// Linear addresses of all executable sections. `text` is the section `.text`, which the kernel never frees.
    pub(crate) code: Vec<Range<u64>>,
    pub(crate) text: Range<u64>,
    /// Physical address of the kernel's own page tables.
    pub(crate) tables: u64,
    /// Linear address of the head of the list of modules.
    pub(crate) modules: u64,
    /// Offset in the per-CPU area of the variable that points to the running task.
    pub(crate) current_task: u64,
    /// Linear addresses of the vDSO in the kernel's image. The kernel maps this library into each process.
    pub(crate) vdso: Range<u64>,
}

impl GuestKernel {
    /// Reads the file `vmlinux` of a guest image.
    ///
    /// # Errors
    ///
    /// Fails if the file is no kernel of Linux 6.1 with types (`CONFIG_DEBUG_INFO_BTF`) and symbols (`CONFIG_KALLSYMS_ALL`).
    pub fn new(vmlinux: &[u8]) -> Result<Self, KernelError> {
        let image = KernelImage::new(vmlinux)?;
        let types = Types::new(image.section(".BTF")?)?;
        let layout = Layout::new(&types)?;
        let symbols = KernelSymbols::new(image.section(".rodata")?)?;
        let symbol = |name: &str| {
            let address = symbols.address(name);
            address.ok_or_else(|| KernelError::Type(format!("symbol {name}")))
        };
        let tables = symbol("init_top_pgt")?;
        let tables = image.physical(tables);
        let tables = tables.ok_or(KernelError::Symbols("init_top_pgt lies nowhere"))?;
        // struct vdso_image has the library's address and its size.
        let vdso = symbol("vdso_image_64")?;
        let field = |member| -> Result<u64, KernelError> {
            let at = vdso.wrapping_add(types.offset("vdso_image", member)?);
            let bytes = image.bytes(at, 8).and_then(|bytes| bytes.first_chunk());
            let bytes = bytes.ok_or(KernelError::Symbols("vdso_image_64 lies nowhere"))?;
            Ok(u64::from_le_bytes(*bytes))
        };
        let start = field("data")?;
        let end = start.checked_add(field("size")?.min(VDSO));
        let end = end.ok_or(KernelError::Symbols("the vDSO lies nowhere"))?;
        Ok(Self {
            tables,
            modules: symbol("modules")?,
            current_task: symbol("current_task")?,
            text: image.range(".text")?,
            code: image.code(),
            segments: image.segments,
            vdso: start..end,
            layout,
            symbols,
        })
    }

    /// Returns the kernel's symbols.
    pub fn symbols(&self) -> &KernelSymbols {
        &self.symbols
    }

    /// Finds the kernel's function that contains a linear address. Returns `None` outside the kernel's executable sections.
    pub fn function(&self, address: u64) -> Option<KernelSymbol<'_>> {
        let code = self.code.iter().find(|code| code.contains(&address))?;
        let found = self.symbols.function(address)?;
        // A function ends at the end of its section at the latest.
        let size = found.size.unwrap_or(u64::MAX).min(code.end - found.address);
        (found.address >= code.start).then_some(KernelSymbol {
            size: Some(size),
            ..found
        })
    }

    /// Reads the vDSO from the kernel's memory: an ELF file, in which the kernel has patched code.
    pub(crate) fn vdso(&self, memory: &dyn PhysicalMemory) -> Option<Vec<u8>> {
        let mut bytes = vec![0; (self.vdso.end - self.vdso.start) as usize];
        self.read(memory, self.vdso.start, &mut bytes)?;
        Some(bytes)
    }

    /// Finds the file, module or kernel to which the code at a guest-physical address belongs. Returns `None` if the kernel uses the page
    /// for other purposes, or if the kernel's structures contradict each other.
    pub fn file_of(&self, memory: &dyn PhysicalMemory, physical: u64) -> Option<FilePage> {
        let image = self.segments.iter().find_map(|s| s.linear(physical));
        if let Some(address) = image.filter(|address| self.text.contains(address)) {
            return Some(FilePage::Kernel { address });
        }
        let (number, within) = (physical / PAGE, physical % PAGE);
        let layout = &self.layout.page;
        let page = Self::page_struct(layout.size, number);
        let flags = page.and_then(|page| self.word(memory, page.wrapping_add(layout.flags)));
        let (page, flags) = match (page, flags, image) {
            (Some(page), Some(flags), _) => (page, flags),
            // Early in the boot, `struct page` does not exist yet, and all code is the kernel's.
            (_, _, Some(address)) => return Some(FilePage::Kernel { address }),
            _ => return None,
        };
        if flags & layout.reserved != 0 {
            // A reserved page of the image is the kernel's. Pages that the kernel has freed are reserved no more.
            let address = image?;
            return Some(match self.vdso.contains(&address) {
                true => FilePage::File {
                    file: FileId::vdso(),
                    offset: address - self.vdso.start,
                },
                false => FilePage::Kernel { address },
            });
        }
        // The `struct page` of the first page describes all pages of a compound page.
        let head = self.word(memory, page.wrapping_add(layout.compound_head))?;
        let head = match head & 1 {
            0 => page,
            _ => head - 1,
        };
        let tail = page.checked_sub(head)? / layout.size;
        let flags = self.word(memory, head.wrapping_add(layout.flags))?;
        if !VMEMMAP.contains(&head) || flags & layout.slab != 0 {
            return None;
        }
        let mapping = self.word(memory, head.wrapping_add(layout.mapping))?;
        if mapping == 0 {
            let module = self.module_of(memory, physical);
            // Early in the boot, pages of the kernel's image are not marked as reserved yet.
            return module.or(image.map(|address| FilePage::Kernel { address }));
        }
        if mapping & MAPPING_ANON != 0 {
            return Some(FilePage::Anonymous);
        }
        if mapping & MAPPING_FLAGS != 0 {
            return None;
        }
        let index = self.word(memory, head.wrapping_add(layout.index))?;
        let offset = index.checked_add(tail)?.checked_mul(PAGE)? + within;
        let file = self.file(memory, mapping)?;
        // On hugetlbfs, the index counts huge pages, so that `offset` would be wrong.
        (file.file_system != "hugetlbfs").then_some(FilePage::File { file, offset })
    }

    /// Returns the linear address of the `struct page` for a page number; `None` beyond the array.
    fn page_struct(size: u64, number: u64) -> Option<u64> {
        let page = VMEMMAP.start.checked_add(number.checked_mul(size)?)?;
        VMEMMAP.contains(&page).then_some(page)
    }

    /// Finds the physical address of the page that a `struct page` describes.
    pub(crate) fn page_address(&self, page: u64) -> Option<u64> {
        let within = page.checked_sub(VMEMMAP.start)?;
        let size = self.layout.page.size;
        let aligned = VMEMMAP.contains(&page) && within.is_multiple_of(size);
        aligned.then(|| within / size * PAGE)
    }

    /// Finds the file whose pages a `struct address_space` holds.
    fn file(&self, memory: &dyn PhysicalMemory, mapping: u64) -> Option<FileId> {
        let layout = &self.layout.inode;
        let inode = self.word(memory, mapping.wrapping_add(layout.host))?;
        let at = |offset: u64| self.word(memory, inode.wrapping_add(offset));
        if at(layout.mapping)? != mapping {
            return None;
        }
        let super_block = at(layout.super_block)?;
        let id = super_block.wrapping_add(layout.super_id);
        let kind = self.word(memory, super_block.wrapping_add(layout.super_type))?;
        let kind = self.word(memory, kind.wrapping_add(layout.type_name))?;
        Some(FileId {
            file_system: self.text(memory, kind, SUPER_ID)?,
            device: self.text(memory, id, SUPER_ID)?,
            mount: self.mount(memory, super_block).unwrap_or_default(),
            path: self.path(memory, inode)?,
            inode: at(layout.number)?,
            mapping,
            deleted: self.half(memory, inode.wrapping_add(layout.links))? == 0,
        })
    }

    /// Finds a file by its path from the folder of another file, on the same file system. The kernel keeps all entries of a `tmpfs` in
    /// memory.
    pub(crate) fn beside(
        &self,
        memory: &dyn PhysicalMemory,
        file: &FileId,
        path: &str,
    ) -> Option<FileId> {
        let (inodes, layout) = (&self.layout.inode, &self.layout.dentry);
        let inode = self.word(memory, file.mapping.wrapping_add(inodes.host))?;
        let number = self.word(memory, inode.wrapping_add(inodes.number))?;
        let alias = self.word(memory, inode.wrapping_add(inodes.aliases))?;
        if alias == 0 || number != file.inode {
            return None;
        }
        let dentry = alias.wrapping_sub(layout.alias);
        let mut entry = self.word(memory, dentry.wrapping_add(layout.parent))?;
        for name in path.split('/') {
            entry = self.entry(memory, entry, name.as_bytes())?;
        }
        let inode = self.word(memory, entry.wrapping_add(layout.inode))?;
        let mapping = self.word(memory, inode.wrapping_add(inodes.mapping))?;
        let found = self.file(memory, mapping)?;
        let here = |file: &FileId| (file.file_system.clone(), file.device.clone());
        (here(&found) == here(file)).then_some(found)
    }

    /// Finds the entry with this name in a folder.
    fn entry(&self, memory: &dyn PhysicalMemory, folder: u64, name: &[u8]) -> Option<u64> {
        let layout = &self.layout.dentry;
        let head = folder.wrapping_add(layout.children);
        let mut link = self.word(memory, head)?;
        for _ in 0..ENTRIES {
            if link == head {
                break;
            }
            let entry = link.wrapping_sub(layout.child);
            let len = self.half(memory, entry.wrapping_add(layout.len))?;
            if len as usize == name.len() {
                let mut bytes = vec![0; name.len()];
                let at = self.word(memory, entry.wrapping_add(layout.name))?;
                self.read(memory, at, &mut bytes)?;
                if bytes == name {
                    return Some(entry);
                }
            }
            link = self.word(memory, link)?;
        }
        None
    }

    /// Finds the path of an inode from the root of its file system, by its first name.
    fn path(&self, memory: &dyn PhysicalMemory, inode: u64) -> Option<String> {
        let layout = &self.layout.dentry;
        let alias = inode.wrapping_add(self.layout.inode.aliases);
        let alias = self.word(memory, alias)?;
        if alias == 0 {
            // The inode has no directory entry in memory. The kernel may free the entries of files that nobody has open.
            return None;
        }
        let dentry = alias.wrapping_sub(layout.alias);
        let (path, top) = self.names(memory, dentry)?;
        if !path.is_empty() {
            return Some(path);
        }
        // A file without a folder, such as a file of memfd_create: its dentry is a root of its own.
        let size = self.half(memory, top.wrapping_add(layout.len))?;
        let name = self.word(memory, top.wrapping_add(layout.name))?;
        self.text(memory, name, size.min(NAME_MAX) as usize)
    }

    /// Returns the path from the root of a file system to a directory entry, empty for the root, and the address of the root's entry.
    fn names(&self, memory: &dyn PhysicalMemory, mut dentry: u64) -> Option<(String, u64)> {
        let layout = &self.layout.dentry;
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut len = 0;
        loop {
            let parent = self.word(memory, dentry.wrapping_add(layout.parent))?;
            if parent == dentry {
                break;
            }
            let size = self.half(memory, dentry.wrapping_add(layout.len))?;
            let name = self.word(memory, dentry.wrapping_add(layout.name))?;
            if size == 0 || size > NAME_MAX {
                return None;
            }
            let mut bytes = vec![0; size as usize];
            self.read(memory, name, &mut bytes)?;
            // Each name has at least one byte, so that a cycle of entries ends here.
            len += bytes.len() + 1;
            if len > PATH_MAX || bytes.contains(&0) || bytes.contains(&b'/') {
                return None;
            }
            names.push(bytes);
            dentry = parent;
        }
        let mut path = String::new();
        for name in names.iter().rev() {
            path.push('/');
            path.push_str(&String::from_utf8_lossy(name));
        }
        Some((path, dentry))
    }

    /// Returns the path of the first mount of a file system; `None` without a mount.
    fn mount(&self, memory: &dyn PhysicalMemory, super_block: u64) -> Option<String> {
        let layout = &self.layout.mount;
        let head = super_block.wrapping_add(layout.first);
        let first = self.word(memory, head)?;
        if first == head {
            return None;
        }
        let mut mount = first.wrapping_sub(layout.instance);
        let mut path = String::new();
        for _ in 0..MOUNTS {
            let parent = self.word(memory, mount.wrapping_add(layout.parent))?;
            if parent == mount {
                return Some(path);
            }
            let point = self.word(memory, mount.wrapping_add(layout.point))?;
            path.insert_str(0, &self.names(memory, point)?.0);
            mount = parent;
        }
        None
    }

    /// Translates a linear address of the kernel to a guest-physical address.
    pub(crate) fn physical(&self, memory: &dyn PhysicalMemory, linear: u64) -> Option<u64> {
        if DIRECT_MAP.contains(&linear) {
            return Some(linear - DIRECT_MAP.start);
        }
        let image = self.segments.iter().find_map(|s| s.physical(linear));
        image.or_else(|| translate(memory, self.tables, linear))
    }

    /// Reads bytes at a linear address of the kernel.
    pub(crate) fn read(
        &self,
        memory: &dyn PhysicalMemory,
        linear: u64,
        buf: &mut [u8],
    ) -> Option<()> {
        read_paged(linear, buf, |address, part| {
            let physical = self.physical(memory, address);
            physical.is_some_and(|physical| memory.read(physical, part))
        })
    }

    pub(crate) fn word(&self, memory: &dyn PhysicalMemory, linear: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(memory, linear, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    pub(crate) fn half(&self, memory: &dyn PhysicalMemory, linear: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(memory, linear, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    /// Reads a text up to a zero byte, or `limit` bytes of it.
    pub(crate) fn text(
        &self,
        memory: &dyn PhysicalMemory,
        linear: u64,
        limit: usize,
    ) -> Option<String> {
        let mut bytes = Vec::new();
        for n in 0..limit {
            let mut byte = [0];
            self.read(memory, linear.wrapping_add(n as u64), &mut byte)?;
            if byte[0] == 0 {
                break;
            }
            bytes.push(byte[0]);
        }
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}
