//! Names for the entries of the procedure linkage table (PLT), through which a program calls functions of other files (System V ABI,
//! AMD64, 5.2).

use std::collections::BTreeMap;

use object::read::elf::ElfFile64;
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationFlags,
    RelocationTarget, elf,
};

/// An entry of the PLT: link-time address and size in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub start: u64,
    pub size: u64,
    /// Name of the called function, followed by `@plt`.
    pub name: String,
}

/// Opcodes of `jmp *disp(%rip)` and `push $n`.
const JUMP: [u8; 2] = [0xff, 0x25];
const PUSH: u8 = 0x68;
/// Encoding of the `endbr64` instruction.
const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Finds the entries with a name in all procedure linkage tables of a file.
pub(crate) fn entries(file: &ElfFile64<'_, LittleEndian>) -> Vec<Entry> {
    let mut slots = BTreeMap::new();
    let mut lazy = Vec::new();
    let table = file.dynamic_symbol_table();
    let (Some(relocations), Some(table)) = (file.dynamic_relocations(), table) else {
        return Vec::new();
    };
    for (slot, relocation) in relocations {
        let RelocationFlags::Elf { r_type } = relocation.flags() else {
            continue;
        };
        let name = match relocation.target() {
            RelocationTarget::Symbol(index) => table
                .symbol_by_index(index)
                .ok()
                .and_then(|symbol| symbol.name().ok())
                .map(str::to_owned),
            // A relocation of type IRELATIVE has no symbol: the program chooses one of its own functions when it begins.
            _ => None,
        };
        if r_type == elf::R_X86_64_JUMP_SLOT || r_type == elf::R_X86_64_IRELATIVE {
            lazy.push(name.clone());
        }
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            slots.insert(slot, name);
        }
    }
    let mut found = Vec::new();
    for (section, default) in [(".plt", 16), (".plt.sec", 16), (".plt.got", 8)] {
        let Some(section) = file.section_by_name(section) else {
            continue;
        };
        let Ok(code) = section.data() else { continue };
        let size = match section.elf_section_header().sh_entsize.get(LittleEndian) {
            size @ (8 | 16) => size,
            _ => default,
        };
        for (n, bytes) in (0..).zip(code.chunks_exact(size as usize)) {
            let start = section.address().wrapping_add(n * size);
            let name = by_slot(&slots, start, bytes).or_else(|| by_number(&lazy, bytes));
            if let Some(name) = name {
                let name = format!("{name}@plt");
                found.push(Entry { start, size, name });
            }
        }
    }
    found
}

/// Finds the name by the slot of the global offset table through which the entry jumps.
fn by_slot<'a>(slots: &'a BTreeMap<u64, String>, start: u64, bytes: &[u8]) -> Option<&'a str> {
    let at = bytes.windows(2).position(|pair| pair == JUMP)?;
    let end = at + 6;
    let disp = i32::from_le_bytes(*bytes.get(at + 2..end)?.first_chunk()?);
    let slot = start
        .wrapping_add(end as u64)
        .wrapping_add(i64::from(disp) as u64);
    slots.get(&slot).map(String::as_str)
}

/// Finds the name by the number of the relocation that the entry pushes for the dynamic linker.
fn by_number<'a>(lazy: &'a [Option<String>], bytes: &[u8]) -> Option<&'a str> {
    let rest = bytes.strip_prefix(&ENDBR).unwrap_or(bytes);
    let number = match rest.split_first()? {
        (&PUSH, number) => u32::from_le_bytes(*number.first_chunk()?),
        _ => return None,
    };
    lazy.get(number as usize)?.as_deref()
}
