//! An ELF file: its architecture, and what it needs of the dynamic linker.

use std::sync::Arc;

use object::LittleEndian;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::StringTable;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};

/// Maximum number of entries of a table that is read.
const MOST: usize = 4096;

/// Maximum number of folders of libraries that are read.
pub(crate) const MOST_FOLDERS: usize = 64;
/// Maximum length of a name, in characters. Longer names are cut: no file has such a name.
const MOST_NAME: usize = 256;
/// Functions and data by which programs ask for the processor's features.
const ASKING: &[&str] = &[
    "__cpu_features2",
    "__cpu_indicator_init",
    "__cpu_model",
    "__get_cpu_features",
    "__intel_cpu_feature_indicator",
    "__intel_cpu_feature_indicator_x",
    "__intel_cpu_features_init",
    "__x86_get_cpu_features",
    "__x86_get_cpuid_feature_leaf",
];

/// Property of GNU programs: levels of x86-64 without which the program does not run (x86-64 psABI, "Program Property").
const ISA_NEEDED: u32 = 0xc000_8002;

type Header = FileHeader64<LittleEndian>;

/// An ELF file of the guest's architecture.
#[derive(Clone, Debug)]
pub(crate) struct Elf {
    pub bytes: Arc<[u8]>,
    /// True if the file has fixed addresses (ET_EXEC).
    pub fixed: bool,
    /// Link-time address of the first instruction.
    pub entry: u64,
    pub segments: Vec<Segment>,
    /// Path of the dynamic linker; `None` for a static program or a library.
    pub interpreter: Option<String>,
    /// Names of libraries (DT_NEEDED).
    pub needed: Vec<String>,
    /// Folders of libraries: DT_RPATH, or DT_RUNPATH in its place.
    pub rpath: Vec<String>,
    pub runpath: Vec<String>,
    /// Constructors: DT_INIT and the addresses of DT_INIT_ARRAY.
    pub constructors: Vec<u64>,
    /// Versions of symbols that the file needs: library and version, such as `GLIBC_2.38`.
    pub versions_needed: Vec<(String, String)>,
    /// Versions of symbols that the file defines.
    pub versions_defined: Vec<String>,
    /// Link-time addresses and sizes of the sections with code; empty if the file has no sections. A segment with code may have constants, too.
    code: Vec<(u64, u64)>,
    /// True if the file takes functions or data from libraries by which programs ask for the processor's features.
    pub asks: bool,
    /// Highest level of x86-64 that the file states to need, from 1 to 4; 0 if it states none.
    pub level: u32,
}

/// A loaded part of the file (PT_LOAD).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    pub executable: bool,
}

/// A file that is no ELF file of the guest's architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// A script, with its first line after `#!`.
    Script(String),
    /// A program of another system or architecture; the text says which.
    Foreign(String),
    /// A damaged ELF file; the text says how.
    Damaged(String),
    /// Anything else.
    Unknown,
}

impl Elf {
    pub fn parse(bytes: &Arc<[u8]>) -> Result<Elf, Other> {
        let data = &bytes[..];
        if !data.starts_with(&elf::ELFMAG) {
            return Err(other(data));
        }
        let machine = foreign(data);
        if let Some(machine) = machine {
            return Err(Other::Foreign(machine));
        }
        let damaged = |error: object::Error| Other::Damaged(error.to_string());
        let header = Header::parse(data).map_err(damaged)?;
        let kind = header.e_type.get(LittleEndian);
        if kind != elf::ET_EXEC && kind != elf::ET_DYN {
            let what = match kind {
                elf::ET_REL => "an object file that is not linked yet",
                elf::ET_CORE => "a memory dump of a program",
                _ => "no program",
            };
            return Err(Other::Foreign(what.to_owned()));
        }
        let headers = header
            .program_headers(LittleEndian, data)
            .map_err(damaged)?;
        let segments = segments(headers, data.len() as u64)?;
        let mut parsed = Elf {
            bytes: bytes.clone(),
            fixed: kind == elf::ET_EXEC,
            entry: header.e_entry.get(LittleEndian),
            segments,
            interpreter: None,
            needed: Vec::new(),
            rpath: Vec::new(),
            runpath: Vec::new(),
            constructors: Vec::new(),
            versions_needed: Vec::new(),
            versions_defined: Vec::new(),
            code: Vec::new(),
            asks: false,
            level: 0,
        };
        for header in headers.iter().take(MOST) {
            if let Ok(Some(path)) = header.interpreter(LittleEndian, data) {
                parsed.interpreter = Some(name(path));
            }
            if let Ok(Some(entries)) = header.dynamic(LittleEndian, data) {
                parsed.read_dynamic(entries);
            }
            parsed.read_properties(header);
        }
        parsed.read_versions(header);
        Ok(parsed)
    }

    /// Returns the bytes of the file from a link-time address to the end of its segment.
    pub fn at(&self, address: u64) -> Option<&[u8]> {
        self.within(address, |_| true)
    }

    /// As [`Elf::at`], of code.
    pub fn code_at(&self, address: u64) -> Option<&[u8]> {
        let is_code = |&(start, size): &(u64, u64)| address.wrapping_sub(start) < size;
        if !self.code.is_empty() && !self.code.iter().any(is_code) {
            return None;
        }
        self.within(address, |segment| segment.executable)
    }

    /// Returns whether these bytes are anywhere in the file's code.
    pub fn has_code(&self, wanted: &[u8]) -> bool {
        let code = self.segments.iter().filter(|segment| segment.executable);
        let mut code = code.filter_map(|s| {
            self.bytes
                .get(s.offset as usize..(s.offset + s.size) as usize)
        });
        code.any(|bytes| bytes.windows(wanted.len()).any(|bytes| bytes == wanted))
    }

    fn within(&self, address: u64, which: impl Fn(&Segment) -> bool) -> Option<&[u8]> {
        let segment = (self.segments.iter())
            .find(|s| which(s) && address >= s.address && address - s.address < s.size)?;
        let start = segment.offset + (address - segment.address);
        self.bytes
            .get(start as usize..(segment.offset + segment.size) as usize)
    }

    fn word_at(&self, address: u64) -> Option<u64> {
        let bytes = self.at(address)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    }

    fn read_dynamic(&mut self, entries: &[elf::Dyn64<LittleEndian>]) {
        let entries: Vec<(i64, u64)> = (entries.iter().take(MOST))
            .map(|entry| (entry.d_tag(LittleEndian).0, entry.d_val(LittleEndian)))
            .take_while(|(tag, _)| *tag != elf::DT_NULL.0)
            .collect();
        let value = |wanted: elf::DynamicTag| {
            let found = entries.iter().find(|(tag, _)| *tag == wanted.0);
            found.map(|(_, value)| *value)
        };
        let strings = value(elf::DT_STRTAB).and_then(|at| self.at(at));
        let text = |offset: u64| {
            let rest = strings?.get(usize::try_from(offset).ok()?..)?;
            let end = rest.iter().take(MOST).position(|&byte| byte == 0)?;
            Some(name(&rest[..end]))
        };
        let texts = |wanted: elf::DynamicTag| -> Vec<String> {
            let found = entries.iter().filter(|(tag, _)| *tag == wanted.0);
            found.filter_map(|(_, offset)| text(*offset)).collect()
        };
        let folders = |wanted| -> Vec<String> {
            let all = texts(wanted).into_iter();
            all.flat_map(|text| text.split(':').map(str::to_owned).collect::<Vec<_>>())
                .filter(|folder| !folder.is_empty())
                .take(MOST_FOLDERS)
                .collect()
        };
        let needed = texts(elf::DT_NEEDED);
        let (rpath, runpath) = (folders(elf::DT_RPATH), folders(elf::DT_RUNPATH));
        let mut constructors: Vec<u64> = value(elf::DT_INIT).into_iter().collect();
        if let (Some(at), Some(size)) = (value(elf::DT_INIT_ARRAY), value(elf::DT_INIT_ARRAYSZ)) {
            let words = (0..size / 8).take(MOST);
            let words = words.filter_map(|n| self.word_at(at.checked_add(8 * n)?));
            constructors.extend(words.filter(|word| *word != 0 && *word != u64::MAX));
        }
        (self.needed, self.rpath, self.runpath, self.constructors) =
            (needed, rpath, runpath, constructors);
    }

    fn read_properties(&mut self, header: &ProgramHeader64<LittleEndian>) {
        let Ok(Some(mut notes)) = header.notes(LittleEndian, &self.bytes[..]) else {
            return;
        };
        let mut level = 0;
        for _ in 0..MOST {
            let Ok(Some(note)) = notes.next() else { break };
            let Some(mut properties) = note.gnu_properties(LittleEndian) else {
                continue;
            };
            for _ in 0..MOST {
                let Ok(Some(property)) = properties.next() else {
                    break;
                };
                if property.pr_type().0 == ISA_NEEDED
                    && let Ok(bits) = property.data_u32(LittleEndian)
                {
                    // Bit 0: the baseline; bit 3: x86-64-v4.
                    level = 32 - (bits & 0xf).leading_zeros();
                }
            }
        }
        self.level = self.level.max(level);
    }

    /// Reads versions and imports of symbols, which are found by the sections. A file without sections has none.
    fn read_versions(&mut self, header: &Header) {
        let bytes = self.bytes.clone();
        let data = &bytes[..];
        let Ok(sections) = header.sections(LittleEndian, data) else {
            return;
        };
        use object::read::elf::{SectionHeader, Sym};
        let code = sections.iter().take(MOST);
        let code =
            code.filter(|section| section.sh_flags(LittleEndian).0 & elf::SHF_EXECINSTR.0 != 0);
        let place = |section: &elf::SectionHeader64<LittleEndian>| {
            (section.sh_addr(LittleEndian), section.sh_size(LittleEndian))
        };
        self.code = code.map(place).collect();
        if let Ok(Some((mut needs, link))) = sections.gnu_verneed(LittleEndian, data) {
            let strings = sections.strings(LittleEndian, data, link);
            let strings = strings.unwrap_or(StringTable::default());
            while let Ok(Some((need, mut versions))) = needs.next() {
                let Ok(file) = need.file(LittleEndian, strings) else {
                    break;
                };
                while let Ok(Some(version)) = versions.next() {
                    let is_weak = version.vna_flags.get(LittleEndian).0 & elf::VER_FLG_WEAK.0 != 0;
                    if let Ok(text) = version.name(LittleEndian, strings)
                        && !is_weak
                        && self.versions_needed.len() < MOST
                    {
                        self.versions_needed.push((name(file), name(text)));
                    }
                }
            }
        }
        if let Ok(Some((mut defines, link))) = sections.gnu_verdef(LittleEndian, data) {
            let strings = sections.strings(LittleEndian, data, link);
            let strings = strings.unwrap_or(StringTable::default());
            while let Ok(Some((_, mut names))) = defines.next() {
                if let Ok(Some(first)) = names.next()
                    && let Ok(text) = first.name(LittleEndian, strings)
                    && self.versions_defined.len() < MOST
                {
                    self.versions_defined.push(name(text));
                }
            }
        }
        if let Ok(symbols) = sections.symbols(LittleEndian, data, elf::SHT_DYNSYM) {
            let imports = symbols.iter().take(1 << 20);
            let mut imports = imports.filter(|symbol| symbol.is_undefined(LittleEndian));
            self.asks = imports.any(|symbol| {
                let name = symbol.name(LittleEndian, symbols.strings());
                name.is_ok_and(|name| ASKING.iter().any(|asking| asking.as_bytes() == name))
            });
        }
    }
}

/// Returns a name of a file as text that can be shown.
fn name(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * MOST_NAME)]);
    // Of the formatting characters, those that turn the direction of text hide what a name says.
    let hides =
        |c: char| c.is_control() || matches!(c, '\u{200e}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (text.chars().take(MOST_NAME))
        .map(|c| if hides(c) { '?' } else { c })
        .collect()
}

/// Returns the loaded parts of a file of `length` bytes.
fn segments(headers: &[ProgramHeader64<LittleEndian>], length: u64) -> Result<Vec<Segment>, Other> {
    let loads = headers
        .iter()
        .filter(|header| header.p_type(LittleEndian) == elf::PT_LOAD);
    let mut segments = Vec::new();
    for header in loads.take(MOST) {
        let segment = Segment {
            address: header.p_vaddr(LittleEndian),
            offset: header.p_offset(LittleEndian),
            size: header.p_filesz(LittleEndian),
            executable: header.p_flags(LittleEndian).0 & elf::PF_X.0 != 0,
        };
        let end = segment.offset.checked_add(segment.size);
        if end.is_none_or(|end| end > length) {
            return Err(Other::Damaged(format!(
                "a segment ends at byte {}, the file has {length}",
                segment.offset.saturating_add(segment.size)
            )));
        }
        segments.push(segment);
    }
    if segments.is_empty() {
        return Err(Other::Damaged("it has no segment to load".to_owned()));
    }
    Ok(segments)
}

/// Returns the architecture of an ELF file, if it is another than the guest's.
fn foreign(data: &[u8]) -> Option<String> {
    let (class, order) = (*data.get(4)?, *data.get(5)?);
    let machine: [u8; 2] = data.get(18..20)?.try_into().ok()?;
    let machine = match order {
        2 => u16::from_be_bytes(machine),
        _ => u16::from_le_bytes(machine),
    };
    let name = match machine {
        3 => "x86",
        8 => "MIPS",
        20 | 21 => "POWER",
        22 => "S/390",
        40 => "ARM",
        62 => "x86-64",
        183 => "AArch64",
        243 => "RISC-V",
        258 => "LoongArch",
        _ => "an unknown processor",
    };
    let bits = if class == 1 { 32 } else { 64 };
    match (machine, class, order) {
        (62, 2, 1) => None,
        (62, 1, _) => Some("a program for x32, the 32-bit ABI of x86-64".to_owned()),
        _ => Some(format!("a program for {name}, with {bits} bits")),
    }
}

/// Says what a file is that is no ELF file.
fn other(data: &[u8]) -> Other {
    if let Some(rest) = data.strip_prefix(b"#!") {
        let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
        // The kernel reads so much (BINPRM_BUF_SIZE).
        let line = &line[..line.len().min(254)];
        return Other::Script(
            String::from_utf8_lossy(line)
                .replace(|c: char| c.is_control() && c != '\r' && c != '\t', "?"),
        );
    }
    let foreign = |what: &str| Other::Foreign(what.to_owned());
    match data {
        [b'M', b'Z', ..] => foreign("a program for Windows"),
        [0xcf, 0xfa, 0xed, 0xfe, ..] | [0xca, 0xfe, 0xba, 0xbe, ..] => {
            foreign("a program for macOS")
        }
        _ => Other::Unknown,
    }
}
