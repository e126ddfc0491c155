//! Names for the entries of the procedure linkage table (PLT), through which a program calls functions of other files (System V ABI,
//! AMD64, 5.2).

use std::collections::BTreeMap;

use object::read::elf::{ElfFile64, Sym};
use object::{LittleEndian, Object, ObjectSection, RelocationFlags, RelocationTarget, elf};

use crate::elf::{Name, strings};

/// An entry of the PLT: link-time address and size in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub start: u64,
    pub size: u64,
    /// Name of the called function, as that of a linkage table's entry.
    pub name: Name,
}

/// Opcodes of `jmp *disp(%rip)` and `push $n`.
const JUMP: [u8; 2] = [0xff, 0x25];
const PUSH: u8 = 0x68;
/// Smallest size of a relocation (`Elf64_Rel`), bytes.
const RELOCATION: usize = 16;
/// Encoding of the `endbr64` instruction.
const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Finds the entries with a name in all procedure linkage tables of a file.
pub(crate) fn entries(file: &ElfFile64<'_, LittleEndian>) -> Vec<Entry> {
    let mut slots = BTreeMap::new();
    let mut lazy = Vec::new();
    let table = file.elf_dynamic_symbol_table();
    let strings = strings(file, table.string_section());
    let (Some(relocations), Some(strings)) = (file.dynamic_relocations(), strings) else {
        return Vec::new();
    };
    // Relocations of several sections may share their bytes in a damaged file.
    for (slot, relocation) in relocations.take(file.data().len() / RELOCATION) {
        let RelocationFlags::Elf { r_type } = relocation.flags() else {
            continue;
        };
        let name = match relocation.target() {
            RelocationTarget::Symbol(index) => table
                .symbol(index)
                .ok()
                .and_then(|symbol| Name::new(file.data(), &strings, symbol.st_name(LittleEndian))),
            // A relocation of type IRELATIVE has no symbol: the program chooses one of its own functions when it begins.
            _ => None,
        };
        if r_type == elf::R_X86_64_JUMP_SLOT || r_type == elf::R_X86_64_IRELATIVE {
            lazy.push(name);
        }
        if let Some(name) = name {
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
            if let Some(name) = name.map(Name::plt) {
                found.push(Entry { start, size, name });
            }
        }
    }
    found
}

/// Finds the name by the slot of the global offset table through which the entry jumps.
fn by_slot(slots: &BTreeMap<u64, Name>, start: u64, bytes: &[u8]) -> Option<Name> {
    let at = bytes.windows(2).position(|pair| pair == JUMP)?;
    let end = at + 6;
    let disp = i32::from_le_bytes(*bytes.get(at + 2..end)?.first_chunk()?);
    let slot = start
        .wrapping_add(end as u64)
        .wrapping_add(i64::from(disp) as u64);
    slots.get(&slot).copied()
}

/// Finds the name by the number of the relocation that the entry pushes for the dynamic linker.
fn by_number(lazy: &[Option<Name>], bytes: &[u8]) -> Option<Name> {
    let rest = bytes.strip_prefix(&ENDBR).unwrap_or(bytes);
    let number = match rest.split_first()? {
        (&PUSH, number) => u32::from_le_bytes(*number.first_chunk()?),
        _ => return None,
    };
    *lazy.get(number as usize)?
}
