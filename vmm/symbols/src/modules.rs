//! Modules of the kernel: addresses and symbols, read from the guest's memory.

use crate::kernel::{FilePage, GuestKernel};
use crate::memory::{PAGE, PhysicalMemory};

/// Maximum number of modules that are read.
const MODULES: usize = 1024;
/// Maximum number of pages of code that a search examines, over all modules: 256 MiB.
const PAGES: u64 = 1 << 16;
/// Maximum number of symbols of a module, and maximum length of a symbol's name in bytes.
const SYMBOLS: u64 = 1 << 18;
const NAME: usize = 512;
/// Bytes of `module.name` (`MODULE_NAME_LEN`).
const MODULE_NAME: usize = 56;
/// Bytes of an `Elf64_Sym`.
const SYMBOL: usize = 24;

/// A loaded module of the guest's kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Name of the module.
    pub name: String,
    /// Linear address of `struct module`.
    pub address: u64,
    /// Linear address of the module's first byte of code.
    pub base: u64,
    /// Size of the module's code, bytes.
    pub size: u64,
}

/// A function of a kernel module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleSymbol {
    /// Name of the function.
    pub name: String,
    /// Linear address of the function.
    pub address: u64,
    /// Size of the function, bytes; `None` if the symbol has no size.
    pub size: Option<u64>,
}

impl GuestKernel {
    /// Finds the modules that are loaded now, in the kernel's order.
    pub fn modules(&self, memory: &dyn PhysicalMemory) -> Vec<Module> {
        let layout = &self.layout.module;
        let mut found = Vec::new();
        let mut entry = self.word(memory, self.modules);
        while let Some(link) = entry.filter(|link| *link != self.modules) {
            if found.len() == MODULES {
                break;
            }
            let address = link.wrapping_sub(layout.list);
            let module = || {
                Some(Module {
                    name: self.text(memory, address.wrapping_add(layout.name), MODULE_NAME)?,
                    address,
                    base: self.word(memory, address.wrapping_add(layout.base))?,
                    size: self.half(memory, address.wrapping_add(layout.text))?.into(),
                })
            };
            let Some(module) = module() else { break };
            found.push(module);
            entry = self.word(memory, link);
        }
        found
    }

    /// Finds the module whose code is at a physical address. Modules' pages are scattered over physical memory, so that the search
    /// translates the address of each page.
    pub(crate) fn module_of(&self, memory: &dyn PhysicalMemory, physical: u64) -> Option<FilePage> {
        let page = physical & !(PAGE - 1);
        let mut left = PAGES;
        for module in self.modules(memory) {
            let pages = module.size.div_ceil(PAGE).min(left);
            left -= pages;
            for offset in (0..pages).map(|n| n * PAGE) {
                let linear = module.base.wrapping_add(offset);
                if self.physical(memory, linear) == Some(page) {
                    let offset = offset + physical % PAGE;
                    return Some(FilePage::Module {
                        name: module.name,
                        module: module.address,
                        address: module.base.wrapping_add(offset),
                        offset,
                    });
                }
            }
        }
        None
    }

    /// Finds the function of a module that contains a linear address. `module` is the linear address of the `struct module`.
    pub fn module_function(
        &self,
        memory: &dyn PhysicalMemory,
        module: u64,
        address: u64,
    ) -> Option<ModuleSymbol> {
        let layout = &self.layout.module;
        let tables = self.word(memory, module.wrapping_add(layout.kallsyms))?;
        let field = |offset: u64| self.word(memory, tables.wrapping_add(offset));
        let (symbols, strings) = (field(layout.symbols)?, field(layout.strings)?);
        let count = (field(layout.count)? & 0xffff_ffff).min(SYMBOLS);
        let mut bytes = vec![0; SYMBOL * count as usize];
        self.read(memory, symbols, &mut bytes)?;
        let mut best: Option<(u64, u64, u32)> = None;
        for symbol in bytes.chunks_exact(SYMBOL) {
            let word = |at: usize| {
                let bytes = symbol[at..].first_chunk::<8>();
                bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
            };
            // st_name and st_info with st_shndx share a word; st_value; st_size (ELF-64).
            let (name, value, size) = (word(0) as u32, word(8), word(16));
            let function = symbol[4] & 0xf == object::elf::STT_FUNC.0;
            if function && value <= address && best.is_none_or(|(found, ..)| value > found) {
                best = Some((value, size, name));
            }
        }
        let (start, size, name) = best?;
        if size != 0 && address - start >= size {
            return None;
        }
        let name = self.text(memory, strings.wrapping_add(name.into()), NAME)?;
        (!name.is_empty()).then_some(ModuleSymbol {
            name,
            address: start,
            size: (size != 0).then_some(size),
        })
    }
}
