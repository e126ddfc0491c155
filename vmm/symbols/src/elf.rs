//! ELF file of the guest: segments, functions and sections.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use gimli::{BaseAddresses, CieOrFde, EhFrame, UnwindSection};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{
    CompressionFormat, LittleEndian, Object, ObjectSection, ObjectSymbol, SymbolKind, elf,
};

use crate::plt;

/// Maximum number of bytes of a decompressed section. Longer contents are cut.
const SECTION_LIMIT: u64 = 1 << 30;
/// Number of functions at or before an address that are examined, since functions may overlap.
const OVERLAP: usize = 16;

/// Segment of the file that is loaded (PT_LOAD): link-time address, offset and size in the file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    size: u64,
    executable: bool,
}

/// Function of a file, as its symbol describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub start: u64,
    /// Length in bytes; `None` for a symbol without a size, such as a label.
    pub size: Option<u64>,
    /// Name as the symbol has it.
    pub name: String,
    /// Rank among the names of one address, by binding, then by number of leading underscores. The name of the lowest rank is taken.
    rank: (u8, u8),
}

/// Parsed ELF file with its functions.
#[derive(Debug)]
pub(crate) struct Elf {
    bytes: Arc<[u8]>,
    segments: Vec<Segment>,
    /// Functions, sorted by address, then rank, then length of the name.
    functions: Vec<Function>,
    /// Link-time address and length in bytes of each function in `.eh_frame`, with or without a symbol. Sorted.
    extents: Vec<(u64, u64)>,
    /// Build id of the file in hexadecimal digits; `None` if the file has no build id.
    pub build_id: Option<String>,
    /// Path of a file with debug information that several debug files share (`.gnu_debugaltlink`).
    pub shared_debug: Option<String>,
}

/// A section: its link-time addresses and its contents.
pub(crate) type Section = (Range<u64>, Arc<[u8]>);

type Parsed<'a> = ElfFile64<'a, LittleEndian>;

impl Elf {
    /// Parses a file. Returns `None` if the file is no ELF file for x86-64.
    pub fn new(bytes: Arc<[u8]>) -> Option<Self> {
        let file = Parsed::parse(&bytes[..]).ok()?;
        if file.elf_header().e_machine.get(LittleEndian) != elf::EM_X86_64 {
            return None;
        }
        let headers = file.elf_program_headers().iter();
        let segments = headers
            .filter(|header| header.p_type(LittleEndian) == elf::PT_LOAD)
            .map(|header| Segment {
                address: header.p_vaddr(LittleEndian),
                offset: header.p_offset(LittleEndian),
                size: header.p_filesz(LittleEndian),
                executable: header.p_flags(LittleEndian).0 & elf::PF_X.0 != 0,
            })
            .collect();
        let build_id = file.build_id().ok().flatten();
        let build_id = build_id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect());
        let shared = file.gnu_debugaltlink().ok().flatten();
        let shared_debug = shared.map(|(path, _)| String::from_utf8_lossy(path).into_owned());
        let mut functions: Vec<Function> = file.symbols().filter_map(function).collect();
        functions.extend(file.dynamic_symbols().filter_map(function));
        functions.extend(plt::entries(&file).into_iter().map(|entry| Function {
            start: entry.start,
            size: Some(entry.size),
            name: entry.name,
            rank: (0, 0),
        }));
        drop(file);
        let mut elf = Self {
            bytes,
            segments,
            functions: Vec::new(),
            extents: Vec::new(),
            build_id,
            shared_debug,
        };
        elf.extents = elf.read_extents();
        elf.add(functions);
        Some(elf)
    }

    fn add(&mut self, more: Vec<Function>) {
        self.functions.extend(more);
        // Of several names of one rank, the shortest one is the plainest.
        self.functions.sort_by(|a, b| {
            let key = |f: &Function| (f.start, f.rank, f.name.len());
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        self.functions.dedup();
    }

    /// Adds the functions of `debug`, the separate file with the debug information.
    pub fn add_symbols(&mut self, debug: &Elf) {
        self.add(debug.functions.clone());
    }

    /// Returns whether the file has these bytes at an offset.
    pub fn holds(&self, offset: u64, bytes: &[u8]) -> bool {
        let from = usize::try_from(offset).ok();
        let rest = from.and_then(|from| self.bytes.get(from..));
        rest.is_some_and(|rest| rest.starts_with(bytes))
    }

    /// Finds the link-time address of an offset in the file. If several segments have the offset, an executable one counts.
    pub fn address(&self, offset: u64) -> Option<u64> {
        let within = |segment: &&Segment| {
            let within = offset.checked_sub(segment.offset);
            within.is_some_and(|within| within < segment.size)
        };
        let found = self.segments.iter().filter(within);
        let best = found.max_by_key(|segment| segment.executable)?;
        best.address.checked_add(offset - best.offset)
    }

    /// Finds the offset in the file of a link-time address of code.
    pub fn offset(&self, address: u64) -> Option<u64> {
        let mut code = self.segments.iter().filter(|segment| segment.executable);
        code.find_map(|segment| {
            let within = address.checked_sub(segment.address)?;
            let offset = segment.offset.checked_add(within);
            offset.filter(|_| within < segment.size)
        })
    }

    /// Finds the function at a link-time address.
    pub fn function(&self, address: u64) -> Option<&Function> {
        let after = self.functions.partition_point(|f| f.start <= address);
        let before = &self.functions[after.saturating_sub(OVERLAP)..after];
        let mut best: Option<&Function> = None;
        for function in before.iter().rev() {
            let inside = match function.size {
                Some(size) => address - function.start < size,
                // A symbol without a size extends to the next symbol.
                None => before
                    .last()
                    .is_some_and(|last| last.start == function.start),
            };
            match best {
                _ if !inside => {}
                Some(found) if found.start != function.start => break,
                _ => best = Some(function),
            }
        }
        best
    }

    /// Finds the start address and the length in bytes of the function that contains a link-time address, according to `.eh_frame`.
    pub fn extent(&self, address: u64) -> Option<(u64, u64)> {
        let after = self.extents.partition_point(|extent| extent.0 <= address);
        let extent = *self.extents.get(after.checked_sub(1)?)?;
        (address - extent.0 < extent.1).then_some(extent)
    }

    fn read_extents(&self) -> Vec<(u64, u64)> {
        let (range, bytes) = self.section(".eh_frame");
        let frames = EhFrame::new(&bytes, gimli::LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(range.start);
        let mut found = Vec::new();
        let mut entries = frames.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            if let CieOrFde::Fde(partial) = entry
                && let Ok(fde) = partial.parse(EhFrame::cie_from_offset)
            {
                found.push((fde.initial_address(), fde.len()));
            }
        }
        found.sort_unstable();
        found
    }

    /// Returns the addresses and the decompressed contents of a section. Both are empty if the section is missing or unreadable.
    pub fn section(&self, name: &str) -> Section {
        let section = || {
            let file = Parsed::parse(&self.bytes[..]).ok()?;
            let section = file.section_by_name(name)?;
            let range = section.address()..section.address().checked_add(section.size())?;
            let data = section.compressed_data().ok()?;
            let limit = data.uncompressed_size.min(SECTION_LIMIT);
            let mut bytes = Vec::new();
            match data.format {
                CompressionFormat::None => return Some((range, data.data.into())),
                CompressionFormat::Zlib => flate2::read::ZlibDecoder::new(data.data)
                    .take(limit)
                    .read_to_end(&mut bytes)
                    .ok()?,
                CompressionFormat::Zstandard => zstd::Decoder::new(data.data)
                    .ok()?
                    .take(limit)
                    .read_to_end(&mut bytes)
                    .ok()?,
                _ => return None,
            };
            Some((range, bytes.into()))
        };
        section().unwrap_or_default()
    }

    /// Returns the range of link-time addresses of all loaded segments, up to the end of the last segment's bytes in the file.
    pub fn range(&self) -> Range<u64> {
        let ends = |s: &Segment| s.address.saturating_add(s.size);
        let start = self.segments.iter().map(|s| s.address).min().unwrap_or(0);
        start..self.segments.iter().map(ends).max().unwrap_or(start)
    }
}

/// Returns the function that a symbol describes; `None` if the symbol is undefined, absolute or nameless, or neither code
/// nor a label.
fn function<'a>(symbol: impl ObjectSymbol<'a>) -> Option<Function> {
    let label = match symbol.kind() {
        SymbolKind::Text => false,
        // Labels of assembly code have no type (STT_NOTYPE).
        SymbolKind::Unknown => true,
        _ => return None,
    };
    // The name does not include the version of a dynamic symbol.
    let name = symbol.name().ok().filter(|name| !name.is_empty())?;
    if symbol.is_undefined() || symbol.section_index().is_none() {
        return None;
    }
    let binding = match (label, symbol.is_weak(), symbol.is_global()) {
        (true, ..) => 3,
        (_, true, _) => 1,
        (_, _, true) => 0,
        _ => 2,
    };
    let underscores = name.bytes().take_while(|byte| *byte == b'_').count();
    Some(Function {
        start: symbol.address(),
        size: Some(symbol.size()).filter(|size| *size != 0),
        name: name.into(),
        rank: (binding, underscores.min(255) as u8),
    })
}
