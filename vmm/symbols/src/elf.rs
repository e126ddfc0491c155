//! ELF file of the guest: segments, functions and sections.

use std::io::Read;
use std::ops::{Deref, Range};
use std::sync::Arc;

use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{
    CompressionFormat, LittleEndian, Object, ObjectSection, ObjectSymbol, SectionIndex, SymbolKind,
    elf,
};

use crate::frames::{self, Extent};
use crate::limits::{Limit, SYMBOL, UNPACKED};
use crate::plt;

/// Number of functions at or before an address that are examined, since functions may overlap.
const OVERLAP: usize = 16;
/// Maximum numbers of section headers and of program headers. Linkers write some dozens.
const SECTIONS: usize = 4096;
const SEGMENTS: usize = 256;
/// Maximum length of a section's name, of a build id, and of the path of another file, bytes.
const SECTION_NAME: usize = 256;
const BUILD_ID: usize = 64;
const PATH: usize = 4096;
/// Bytes of names by which functions of one address, one rank and one length are ordered.
const ORDER: usize = 256;

/// Segment of the file that is loaded (PT_LOAD): link-time address, offset and size in the file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    size: u64,
    executable: bool,
}

/// Place of a name in the bytes of a file. Many symbols may share one name, so that names are not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    at: usize,
    /// Length in bytes, at most [`SYMBOL`].
    len: usize,
    /// True if the name is longer and cut.
    cut: bool,
    /// True for the name of a linkage table's entry, which `@plt` follows.
    plt: bool,
}

impl Name {
    /// Finds the name at an offset of a string table, which is a range of the file. Returns `None` outside the table and for an empty name.
    pub fn new(file: &[u8], strings: &Range<usize>, offset: u32) -> Option<Self> {
        let at = strings.start.checked_add(offset as usize)?;
        let rest = file.get(at..strings.end)?;
        let (len, cut) = match rest.iter().take(SYMBOL + 1).position(|byte| *byte == 0) {
            Some(len) => (len, false),
            // The name is cut, or the table ends without a zero, which no linker writes.
            None => (SYMBOL, true),
        };
        (len > 0 && rest.len() > len).then_some(Self {
            at,
            len,
            cut,
            plt: false,
        })
    }

    /// Returns the name of the linkage table's entry for this function.
    pub fn plt(self) -> Self {
        Self { plt: true, ..self }
    }

    fn bytes<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        file.get(self.at..self.at + self.len).unwrap_or_default()
    }

    /// Returns the name as text. Three dots follow a name that is cut.
    fn text(&self, file: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(self.bytes(file)).into_owned();
        match (self.cut, self.plt) {
            (true, _) => text += "...",
            (_, true) => text += "@plt",
            _ => {}
        }
        text
    }
}

/// Function of a file, as its symbol describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub start: u64,
    /// Length in bytes; `None` for a symbol without a size, such as a label.
    pub size: Option<u64>,
    name: Name,
    /// True if the name is in the file with debug information.
    debug: bool,
    /// Rank among the names of one address, by binding, then by number of leading underscores. The name of the lowest rank is taken.
    rank: (u8, u8),
}

/// Variable of a file, as its symbol describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub start: u64,
    pub size: u64,
    /// Name as the symbol has it.
    pub name: String,
}

/// Parsed ELF file with its functions.
#[derive(Debug)]
pub(crate) struct Elf {
    bytes: Arc<[u8]>,
    /// Bytes of the file with debug information, if its symbols were added.
    debug: Arc<[u8]>,
    segments: Vec<Segment>,
    /// Functions, sorted by address, then rank, then length of the name.
    functions: Vec<Function>,
    /// Functions in `.eh_frame`, with or without a symbol, sorted by address.
    extents: Vec<Extent>,
    /// Build id of the file in hexadecimal digits; `None` if the file has no build id.
    pub build_id: Option<String>,
    /// Path of a file with debug information that several debug files share (`.gnu_debugaltlink`).
    pub shared_debug: Option<String>,
    /// Name and CRC-32 of the file with this file's debug information (`.gnu_debuglink`).
    pub debug_link: Option<(String, u32)>,
}

/// Contents of a section: a part of the file, or unpacked bytes.
#[derive(Clone)]
pub(crate) struct Section {
    whole: Whole,
    range: Range<usize>,
    /// Link-time address of the first byte.
    pub address: u64,
}

#[derive(Clone)]
enum Whole {
    File(Arc<[u8]>),
    Unpacked(Arc<Vec<u8>>),
}

impl Default for Section {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl From<Vec<u8>> for Section {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            range: 0..bytes.len(),
            whole: Whole::Unpacked(bytes.into()),
            address: 0,
        }
    }
}

impl Deref for Section {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let whole: &[u8] = match &self.whole {
            Whole::File(bytes) => bytes,
            Whole::Unpacked(bytes) => bytes,
        };
        whole.get(self.range.clone()).unwrap_or_default()
    }
}

impl Section {
    /// Returns the link-time addresses of the section.
    pub fn addresses(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.len() as u64)
    }
}

/// Bytes that a file's sections may still unpack to.
#[derive(Debug)]
pub(crate) struct Unpacked {
    left: u64,
}

impl Unpacked {
    /// Returns the allowance of a file, where all files together may keep `most` bytes more.
    pub fn new(most: u64) -> Self {
        Self {
            left: UNPACKED.min(most),
        }
    }

    /// Returns the bytes that sections have unpacked to, of an allowance that was made with the same `most`.
    pub fn taken(&self, most: u64) -> u64 {
        UNPACKED.min(most) - self.left
    }

    /// Counts a further file that is kept.
    pub fn keep(&mut self, file: &Elf) -> Result<(), Limit> {
        self.left = self.left.checked_sub(file.len()).ok_or(Limit::Kept)?;
        Ok(())
    }

    /// Unpacks a section.
    fn unpack(&mut self, format: CompressionFormat, data: &[u8]) -> Result<Vec<u8>, Limit> {
        let mut bytes = Vec::new();
        // One byte beyond the limit shows that there are more.
        let most = self.left + 1;
        let read = match format {
            CompressionFormat::Zlib => flate2::read::ZlibDecoder::new(data)
                .take(most)
                .read_to_end(&mut bytes),
            CompressionFormat::Zstandard => match zstd::Decoder::new(data) {
                Ok(decoder) => decoder.take(most).read_to_end(&mut bytes),
                Err(_) => return Ok(Vec::new()),
            },
            _ => return Ok(Vec::new()),
        };
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.unwrap_or(0);
        if left.is_none() {
            return Err(Limit::Unpacked);
        }
        // A damaged stream has no contents, but what was unpacked counts.
        Ok(read.map(|_| bytes).unwrap_or_default())
    }
}

type Parsed<'a> = ElfFile64<'a, LittleEndian>;

/// Checks that the headers of a file are not too many, and that sections do not overlap. Otherwise many sections could share their bytes,
/// and readers would read these again and again.
fn check_headers(file: &Parsed<'_>) -> Result<(), Limit> {
    let sections = file.elf_section_table();
    let headers = file.elf_program_headers();
    if sections.len() > SECTIONS || headers.len() > SEGMENTS {
        return Err(Limit::Headers);
    }
    let header = file.elf_header();
    let names = header.section_strings_index(LittleEndian, file.data());
    let names = names.ok().and_then(|index| strings(file, index));
    let most = file.data().len() as u64;
    let mut sizes = 0u64;
    for section in sections.iter() {
        if let Some((_, size)) = section.file_range(LittleEndian) {
            sizes = sizes.saturating_add(size.min(most));
        }
        let name = section.sh_name(LittleEndian);
        let name = names
            .as_ref()
            .and_then(|names| Name::new(file.data(), names, name));
        if name.is_some_and(|name| name.len > SECTION_NAME) {
            return Err(Limit::Headers);
        }
    }
    let notes = headers
        .iter()
        .filter(|header| header.p_type(LittleEndian) == elf::PT_NOTE);
    let notes: u64 = notes
        .map(|header| header.p_filesz(LittleEndian).min(most))
        .sum();
    match sizes > most || notes > 2 * most {
        true => Err(Limit::Headers),
        false => Ok(()),
    }
}

/// Returns the range of a string table in the file.
pub(crate) fn strings(file: &Parsed<'_>, section: SectionIndex) -> Option<Range<usize>> {
    let header = file.elf_section_table().section(section).ok()?;
    let (from, len) = header.file_range(LittleEndian)?;
    let end = usize::try_from(from.checked_add(len)?).ok()?;
    Some(usize::try_from(from).ok()?..end.min(file.data().len()))
}

impl Elf {
    /// Parses a file. Returns `None` if the file is no ELF file for x86-64.
    ///
    /// # Errors
    ///
    /// Fails if the file's headers exceed a limit.
    pub fn new(bytes: Arc<[u8]>) -> Result<Option<Self>, Limit> {
        let Ok(file) = Parsed::parse(&bytes[..]) else {
            return Ok(None);
        };
        if file.elf_header().e_machine.get(LittleEndian) != elf::EM_X86_64 {
            return Ok(None);
        }
        check_headers(&file)?;
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
        let build_id = build_id.filter(|id| id.len() <= BUILD_ID);
        let build_id = build_id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect());
        let shared = file.gnu_debugaltlink().ok().flatten();
        let shared = shared.filter(|(path, _)| path.len() <= PATH);
        let shared_debug = shared.map(|(path, _)| String::from_utf8_lossy(path).into_owned());
        let link = file.gnu_debuglink().ok().flatten();
        let link = link.filter(|(name, _)| name.len() <= PATH);
        let debug_link = link.map(|(name, crc)| (String::from_utf8_lossy(name).into_owned(), crc));
        let tables = [
            (file.elf_symbol_table(), file.symbols()),
            (file.elf_dynamic_symbol_table(), file.dynamic_symbols()),
        ];
        let mut functions = Vec::new();
        for (table, symbols) in tables {
            if let Some(strings) = strings(&file, table.string_section()) {
                functions.extend(symbols.filter_map(|symbol| {
                    let name = symbol.elf_symbol().st_name(LittleEndian);
                    function(&symbol, Name::new(&bytes, &strings, name)?, &bytes)
                }));
            }
        }
        functions.extend(plt::entries(&file).into_iter().map(|entry| Function {
            start: entry.start,
            size: Some(entry.size),
            name: entry.name,
            debug: false,
            rank: (0, 0),
        }));
        drop(file);
        let mut elf = Self {
            bytes,
            debug: Arc::new([]),
            segments,
            functions: Vec::new(),
            extents: Vec::new(),
            build_id,
            shared_debug,
            debug_link,
        };
        elf.extents = frames::extents(&elf.loaded(".eh_frame"));
        elf.add(functions);
        Ok(Some(elf))
    }

    fn add(&mut self, more: Vec<Function>) {
        self.functions.extend(more);
        let name = |f: &Function| match f.debug {
            false => f.name.bytes(&self.bytes),
            true => f.name.bytes(&self.debug),
        };
        // Of several names of one rank, the shortest one is the plainest.
        let key = |f: &Function| (f.start, f.rank, f.name.len + if f.name.plt { 4 } else { 0 });
        self.functions.sort_by(|a, b| {
            let order = |f| {
                let name: &[u8] = name(f);
                &name[..name.len().min(ORDER)]
            };
            key(a).cmp(&key(b)).then_with(|| match a.name == b.name {
                true => std::cmp::Ordering::Equal,
                false => order(a).cmp(order(b)),
            })
        });
        self.functions.dedup_by(|b, a| {
            let same =
                (a.start, a.size, a.rank, a.name.plt) == (b.start, b.size, b.rank, b.name.plt);
            same && (a.name == b.name && a.debug == b.debug || name(a) == name(b))
        });
    }

    /// Adds the functions of `debug`, the separate file with the debug information.
    pub fn add_symbols(&mut self, debug: &Elf) {
        self.debug = debug.bytes.clone();
        let of_debug = |function: &Function| Function {
            debug: true,
            ..*function
        };
        self.add(debug.functions.iter().map(of_debug).collect());
    }

    /// Returns the name of a function as the symbol has it.
    pub fn name(&self, function: &Function) -> String {
        function.name.text(match function.debug {
            false => &self.bytes,
            true => &self.debug,
        })
    }

    /// Returns the length of the file, bytes.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns the CRC-32 of the file, as `.gnu_debuglink` has it.
    pub fn crc(&self) -> u32 {
        crc32fast::hash(&self.bytes)
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

    /// Finds the variable at a link-time address of data. Returns `None` if no segment that is written has the address, and `Some(None)` if
    /// the address has no symbol.
    pub fn variable(&self, address: u64) -> Option<Option<Variable>> {
        let file = Parsed::parse(&self.bytes[..]).ok()?;
        let mut headers = file.elf_program_headers().iter();
        let data = headers.any(|header| {
            let within = address.checked_sub(header.p_vaddr(LittleEndian));
            header.p_type(LittleEndian) == elf::PT_LOAD
                && header.p_flags(LittleEndian).0 & elf::PF_W.0 != 0
                && within.is_some_and(|within| within < header.p_memsz(LittleEndian))
        });
        data.then(|| {
            let tables = [&self.bytes, &self.debug];
            let found = tables.map(|bytes| variable(bytes, address));
            // The smallest variable is the most exact one.
            found.into_iter().flatten().min_by_key(|found| found.size)
        })
    }

    /// Finds the start address and the length in bytes of the function that contains a link-time address, according to `.eh_frame`.
    pub fn extent(&self, address: u64) -> Option<(u64, u64)> {
        let after = self.extents.partition_point(|extent| extent.0 <= address);
        let extent = *self.extents.get(after.checked_sub(1)?)?;
        (address - extent.0 < extent.1).then_some(extent)
    }

    /// Returns a section that programs load, which is never compressed. The section is empty if it is missing or unreadable.
    pub fn loaded(&self, name: &str) -> Section {
        self.section(name, &mut Unpacked { left: 0 })
            .unwrap_or_default()
    }

    /// Returns a section with its contents unpacked. The section is empty if it is missing or unreadable.
    ///
    /// # Errors
    ///
    /// Fails if the section is compressed and has more bytes than `unpacked` allows.
    pub fn section(&self, name: &str, unpacked: &mut Unpacked) -> Result<Section, Limit> {
        let found = || {
            let file = Parsed::parse(&self.bytes[..]).ok()?;
            let section = file.section_by_name(name)?;
            let range = section.compressed_file_range().ok()?;
            Some((section.address(), range))
        };
        let Some((address, range)) = found() else {
            return Ok(Section::default());
        };
        let from = usize::try_from(range.offset).ok();
        let len = usize::try_from(range.compressed_size).ok();
        let within = from.and_then(|from| Some(from..from.checked_add(len?)?));
        let within = within.filter(|within| self.bytes.get(within.clone()).is_some());
        let Some(within) = within else {
            return Ok(Section::default());
        };
        let section = match range.format {
            CompressionFormat::None => Section {
                whole: Whole::File(self.bytes.clone()),
                range: within,
                address,
            },
            format => Section {
                address,
                ..unpacked.unpack(format, &self.bytes[within])?.into()
            },
        };
        Ok(section)
    }

    /// Returns the range of link-time addresses of all loaded segments, up to the end of the last segment's bytes in the file.
    pub fn range(&self) -> Range<u64> {
        let ends = |s: &Segment| s.address.saturating_add(s.size);
        let start = self.segments.iter().map(|s| s.address).min().unwrap_or(0);
        start..self.segments.iter().map(ends).max().unwrap_or(start)
    }
}

/// Returns the smallest variable with an address in a file's symbols.
fn variable(bytes: &[u8], address: u64) -> Option<Variable> {
    let file = Parsed::parse(bytes).ok()?;
    let tables = [
        (file.elf_symbol_table(), file.symbols()),
        (file.elf_dynamic_symbol_table(), file.dynamic_symbols()),
    ];
    let mut best: Option<Variable> = None;
    for (table, symbols) in tables {
        let Some(strings) = strings(&file, table.string_section()) else {
            continue;
        };
        for symbol in symbols {
            let within = address.checked_sub(symbol.address());
            let inside = within.is_some_and(|within| within < symbol.size());
            let smaller = best.as_ref().is_none_or(|best| symbol.size() < best.size);
            if symbol.kind() != SymbolKind::Data || symbol.is_undefined() || !inside || !smaller {
                continue;
            }
            let name = symbol.elf_symbol().st_name(LittleEndian);
            best = Name::new(bytes, &strings, name)
                .map(|name| Variable {
                    start: symbol.address(),
                    size: symbol.size(),
                    name: name.text(bytes),
                })
                .or(best);
        }
    }
    best
}

/// Returns the function that a symbol of this name describes; `None` if the symbol is undefined or absolute, or neither code nor a label.
fn function<'a>(symbol: &impl ObjectSymbol<'a>, name: Name, file: &[u8]) -> Option<Function> {
    let label = match symbol.kind() {
        SymbolKind::Text => false,
        // Labels of assembly code have no type (STT_NOTYPE).
        SymbolKind::Unknown => true,
        _ => return None,
    };
    if symbol.is_undefined() || symbol.section_index().is_none() {
        return None;
    }
    let binding = match (label, symbol.is_weak(), symbol.is_global()) {
        (true, ..) => 3,
        (_, true, _) => 1,
        (_, _, true) => 0,
        _ => 2,
    };
    let underscores = name.bytes(file).iter().take(255);
    let underscores = underscores.take_while(|byte| **byte == b'_').count();
    Some(Function {
        start: symbol.address(),
        size: Some(symbol.size()).filter(|size| *size != 0),
        name,
        debug: false,
        rank: (binding, underscores as u8),
    })
}
