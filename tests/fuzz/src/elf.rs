//! ELF files with debug information, written field by field, so that each field can be damaged by its meaning.

use crate::choices::Choices;

/// Link-time address of the file's first byte.
pub const BASE: u64 = 0x40_0000;
/// Offset of the code in the file, in bytes.
pub const TEXT: u64 = 0x1000;
/// Length of the code, in bytes.
pub const TEXT_LEN: u64 = 0x1000;
/// Type of a section with contents of the program (ELF-64 object file format, as the constants below).
pub const PROGBITS: u32 = 1;
/// Type of a symbol table.
pub const SYMTAB: u32 = 2;
/// Type of a string table.
pub const STRTAB: u32 = 3;
/// Flag of a section that is loaded.
pub const ALLOC: u64 = 2;
/// Flag of a section whose contents are compressed.
pub const COMPRESSED: u64 = 1 << 11;

/// A field of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// Number of so many bytes, little-endian.
    Word(u64, usize),
    /// Unsigned number in LEB128.
    Leb(u64),
    /// Bytes as they are.
    Bytes(Vec<u8>),
    /// Length in four bytes of the fields up to the matching `End`.
    Begin,
    /// End of the fields since `Begin`.
    End,
}

/// Returns a field of one byte.
pub fn byte(value: u8) -> Field {
    Field::Word(value.into(), 1)
}

/// Returns a text that ends with a zero.
pub fn text(value: &str) -> Field {
    Field::Bytes([value.as_bytes(), b"\0"].concat())
}

/// Returns the bytes of fields.
pub fn encode(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut begun = Vec::new();
    for field in fields {
        match field {
            Field::Word(value, len) => bytes.extend(&value.to_le_bytes()[..*len]),
            Field::Leb(value) => leb(&mut bytes, *value),
            Field::Bytes(more) => bytes.extend(more),
            Field::Begin => {
                begun.push(bytes.len());
                bytes.extend([0; 4]);
            }
            Field::End => {
                if let Some(at) = begun.pop() {
                    let len = (bytes.len() - at - 4) as u32;
                    bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
                }
            }
        }
    }
    bytes
}

fn leb(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Section of a file.
#[derive(Clone, Debug)]
pub struct Section {
    /// Name.
    pub name: String,
    /// Type, such as [`PROGBITS`].
    pub kind: u32,
    /// Flags, such as [`ALLOC`].
    pub flags: u64,
    /// Index of the linked section, such as the string table of symbols.
    pub link: u32,
    /// Contents.
    pub fields: Vec<Field>,
    /// Index of the section whose bytes this section has, too.
    pub shares: Option<usize>,
}

impl Section {
    /// Returns a section of this name.
    pub fn new(name: &str, flags: u64, fields: Vec<Field>) -> Self {
        Self {
            name: name.into(),
            kind: PROGBITS,
            flags,
            link: 0,
            fields,
            shares: None,
        }
    }
}

/// File with one segment, which has the whole file, and sections. `.text` is first.
#[derive(Clone, Debug)]
pub struct File(pub Vec<Section>);

impl File {
    /// Returns a file with code that does nothing.
    pub fn new(sections: Vec<Section>) -> Self {
        let code = Field::Bytes(vec![0x90; TEXT_LEN as usize]);
        let text = Section::new(".text", ALLOC | 4, vec![code]);
        Self([vec![text], sections].concat())
    }

    /// Returns the section with this name.
    pub fn section(&mut self, name: &str) -> Option<&mut Section> {
        self.0.iter_mut().find(|section| section.name == name)
    }

    /// Returns the offset of a section's first byte in the file, if the sections before it stay as they are.
    pub fn offset(&self, name: &str) -> u64 {
        let mut at = TEXT as usize;
        for section in &self.0 {
            if section.name == name {
                break;
            }
            if section.shares.is_none() {
                at += encode(&section.fields).len().next_multiple_of(8);
            }
        }
        at as u64
    }

    /// Returns the file's bytes.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = vec![0; TEXT as usize];
        let mut names = vec![0];
        // Name, type, flags, address, offset, size, link of each section; the first section is empty.
        let mut headers = vec![(0, 0, 0, 0, 0, 0, 0)];
        let mut places: Vec<(u64, u64)> = Vec::new();
        for section in &self.0 {
            let place = section.shares.and_then(|other| places.get(other).copied());
            let (offset, size) = place.unwrap_or_else(|| {
                let contents = encode(&section.fields);
                let at = bytes.len() as u64;
                bytes.extend(&contents);
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                (at, contents.len() as u64)
            });
            places.push((offset, size));
            let address = match section.flags & ALLOC {
                0 => 0,
                _ => BASE + offset,
            };
            let name = names.len() as u32;
            names.extend(section.name.as_bytes());
            names.push(0);
            headers.push((
                name,
                section.kind,
                section.flags,
                address,
                offset,
                size,
                section.link,
            ));
        }
        let name = names.len() as u32;
        names.extend(b".shstrtab\0");
        headers.push((
            name,
            STRTAB,
            0,
            0,
            bytes.len() as u64,
            names.len() as u64,
            0,
        ));
        bytes.extend(&names);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let table = bytes.len() as u64;
        for (name, kind, flags, address, offset, size, link) in &headers {
            bytes.extend(name.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            for word in [flags, address, offset, size] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(link.to_le_bytes());
            // Number of the first global symbol; alignment; size of an entry.
            bytes.extend(0u32.to_le_bytes());
            bytes.extend(1u64.to_le_bytes());
            bytes.extend(if *kind == SYMTAB { 24u64 } else { 0 }.to_le_bytes());
        }
        let len = bytes.len() as u64;
        // Identification, then ET_EXEC, EM_X86_64, version; entry, program headers, section headers; flags; sizes and numbers.
        let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        header.extend(encode(&[
            Field::Word(2, 2),
            Field::Word(62, 2),
            Field::Word(1, 4),
            Field::Word(BASE + TEXT, 8),
            Field::Word(64, 8),
            Field::Word(table, 8),
            Field::Word(0, 4),
            Field::Word(64, 2),
            Field::Word(56, 2),
            Field::Word(1, 2),
            Field::Word(64, 2),
            Field::Word(headers.len() as u64, 2),
            Field::Word(headers.len() as u64 - 1, 2),
        ]));
        // PT_LOAD, readable and executable.
        header.extend(encode(&[Field::Word(1, 4), Field::Word(5, 4)]));
        header.extend(encode(
            &[0, BASE, BASE, len, len, 4096].map(|word| Field::Word(word, 8)),
        ));
        bytes[..header.len()].copy_from_slice(&header);
        bytes
    }
}

/// Changes fields at random: numbers, lengths, lists that grow and shrink, nesting, fields of other places, and LEB128 without an end.
pub fn damage(fields: &mut Vec<Field>, choices: &mut Choices<'_>) {
    if fields.is_empty() {
        return;
    }
    let at = choices.below(fields.len());
    let to = at + 1 + choices.below((fields.len() - at).min(40));
    match choices.below(8) {
        0..=2 => match &mut fields[at] {
            Field::Word(value, _) | Field::Leb(value) => *value = choices.number(*value),
            Field::Bytes(bytes) => {
                let place = choices.below(bytes.len());
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = choices.byte();
                }
            }
            // The length no longer fits.
            Field::Begin | Field::End => fields[at] = Field::Word(choices.number(0), 4),
        },
        3 => {
            let end = to.min(fields.len());
            fields.drain(at..end);
        }
        // A piece again and again: nesting and counts.
        4 => {
            let piece = fields[at..to.min(fields.len())].to_vec();
            let times = [1, 2, 10, 300, 5000][choices.below(5)];
            let more = std::iter::repeat_n(piece, times).flatten();
            let end = to.min(fields.len());
            fields.splice(end..end, more);
        }
        5 => {
            let other = choices.below(fields.len());
            fields.swap(at, other);
        }
        6 => {
            let other = fields[choices.below(fields.len())].clone();
            fields.insert(at, other);
        }
        _ => {
            let len = [1, 9, 10, 11, 40][choices.below(5)];
            fields[at] = Field::Bytes(vec![0x80 | choices.byte(); len]);
        }
    }
}
