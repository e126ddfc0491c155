//! Function, inlined functions and source line of an offset in a file.

use std::collections::BTreeMap;
use std::sync::Arc;

use addr2line::Context;
use gimli::{EndianArcSlice, LittleEndian};

use crate::elf::Elf;
use crate::files::Files;
use crate::kernel::{FileId, FilePage, GuestKernel};
use crate::memory::PhysicalMemory;

/// Maximum number of frames of one address, inlined functions included.
const INLINED: usize = 64;
/// Folder in which Debian's packages put debug information.
const DEBUG: &str = "/usr/lib/debug/.build-id";

/// Maximum sum of the bytes of the files that a [`Symbolizer`] keeps. Code of further files gets no names. The limit exists because a guest
/// may have huge files that consist of holes.
const MOST_BYTES: u64 = 4 << 30;

type Reader = EndianArcSlice<LittleEndian>;

/// Line of a source file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLine {
    /// Path of the source file, as the compiler has written it.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u32,
}

/// A function that the compiler has inlined into another function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Name of the inlined function.
    pub function: String,
    /// Source line of the call: in the next function of the list, or in the location's function after the last one.
    pub called_from: Option<SourceLine>,
}

/// Names for an address of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Path of the file in the guest, or `[kernel]`, `[vdso]`, `[anonymous]`, or a module's name in brackets.
    pub module: String,
    /// Build id of the file, in hexadecimal digits; `None` without a build id, and always for the kernel and its modules.
    pub build_id: Option<String>,
    /// Demangled name of the function. A nameless function has the file's name, `+0x`, and the offset of the function's beginning in the
    /// file. If the beginning is not known, the offset is that of the located byte; in the kernel, its linear address.
    pub function: String,
    /// Link-time address of the function's first byte; for the kernel and its modules, the linear address.
    pub function_start: Option<u64>,
    /// Length of the function, bytes.
    pub function_size: Option<u64>,
    /// Source line of the located address, which may be a line of an inlined function.
    pub line: Option<SourceLine>,
    /// Functions that are inlined at the address, the innermost first.
    pub inlined: Vec<Frame>,
    /// True if the file has the executed bytes at this offset. A file with other bytes gives no names. Without executed bytes to compare,
    /// names are given and this is false. Always true for the kernel and its modules, which patch their code.
    pub verified: bool,
}

impl Location {
    fn unnamed(module: &str, offset: u64, verified: bool) -> Self {
        Self {
            module: module.into(),
            build_id: None,
            function: format!(
                "{}+{offset:#x}",
                module.rsplit('/').next().unwrap_or(module)
            ),
            function_start: None,
            function_size: None,
            line: None,
            inlined: Vec::new(),
            verified,
        }
    }
}

/// A file with its debug information.
struct Module {
    elf: Elf,
    context: Option<Context<Reader>>,
}

/// Symbolizer of offsets in files. Each file is read once.
///
/// Several nodes may share a symbolizer. If nodes have different files with the same [`FileId`], the symbolizer uses the first file that it
/// reads, and locations in the other nodes' files are unverified.
#[derive(Default)]
pub struct Symbolizer {
    modules: BTreeMap<FileId, Option<Module>>,
    /// Sum of the bytes of the files in `modules`.
    kept: u64,
}

impl Symbolizer {
    /// Creates a symbolizer that has read no file yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names an offset in a file. `code` has the bytes that were executed at the offset. If the file has other bytes, the location is
    /// unverified and has the file's name and the offset only. If `code` is empty, the location is unverified, but names are looked up.
    pub fn locate(
        &mut self,
        files: &dyn Files,
        file: &FileId,
        offset: u64,
        code: &[u8],
    ) -> Location {
        let kept = &mut self.kept;
        let module = self.modules.entry(file.clone()).or_insert_with(|| {
            let bytes = files.read(file)?;
            let size = bytes.len() as u64;
            if *kept + size > MOST_BYTES {
                return None;
            }
            let module = Module::new(files, bytes)?;
            *kept += size;
            Some(module)
        });
        locate(module.as_ref(), &file.guest_path(), offset, code)
    }

    /// Names a link-time address of a file, such as a call site that a program has recorded. The location is unverified: the caller must
    /// compare build ids. If the file is missing or has no code at the address, the name consists of the file's name and the address.
    pub fn locate_address(&mut self, files: &dyn Files, file: &FileId, address: u64) -> Location {
        let unknown = self.locate(files, file, 0, &[]);
        let module = self.modules.get(file).and_then(Option::as_ref);
        match module.and_then(|module| module.elf.offset(address)) {
            Some(offset) => locate(module, &file.guest_path(), offset, &[]),
            None => Location {
                build_id: unknown.build_id,
                ..Location::unnamed(&file.guest_path(), address, false)
            },
        }
    }

    /// Names the code in a page that [`GuestKernel::file_of`] has found. The symbols of kernel modules are read from `memory`.
    pub fn locate_page(
        &mut self,
        files: &dyn Files,
        kernel: &GuestKernel,
        memory: &dyn PhysicalMemory,
        page: &FilePage,
        code: &[u8],
    ) -> Location {
        match page {
            FilePage::File { file, offset } => self.locate(files, file, *offset, code),
            FilePage::Anonymous => Location {
                function: "[anonymous]".into(),
                ..Location::unnamed("[anonymous]", 0, false)
            },
            FilePage::Kernel { address } => match kernel.function(*address) {
                Some(function) => Location {
                    function: function.name.into(),
                    function_start: Some(function.address),
                    function_size: function.size,
                    ..Location::unnamed("[kernel]", *address, true)
                },
                None => Location::unnamed("[kernel]", *address, true),
            },
            FilePage::Module {
                name,
                module,
                address,
                offset,
            } => {
                let location = Location::unnamed(&format!("[{name}]"), *offset, true);
                match kernel.module_function(memory, *module, *address) {
                    Some(function) => Location {
                        function: function.name,
                        function_start: Some(function.address),
                        function_size: function.size,
                        ..location
                    },
                    None => location,
                }
            }
        }
    }
}

fn locate(module: Option<&Module>, name: &str, offset: u64, code: &[u8]) -> Location {
    let Some(module) = module else {
        return Location::unnamed(name, offset, false);
    };
    let build_id = module.elf.build_id.clone();
    if !module.elf.holds(offset, code) {
        return Location::unnamed(name, offset, false);
    }
    let location = Location {
        build_id,
        ..Location::unnamed(name, offset, !code.is_empty())
    };
    match module.elf.address(offset) {
        Some(address) => module.locate(location, address),
        None => location,
    }
}

impl Module {
    fn new(files: &dyn Files, bytes: Arc<[u8]>) -> Option<Self> {
        let mut elf = Elf::new(bytes)?;
        let mut dwarf = load(files, &elf);
        if dwarf.is_none()
            && let Some(debug) = debug_file(files, &elf)
        {
            dwarf = load(files, &debug);
            elf.add_symbols(&debug);
        }
        let context = dwarf.and_then(|dwarf| Context::from_dwarf(dwarf).ok());
        Some(Self { elf, context })
    }

    /// Adds names and source lines of a link-time address, from symbols and debug information, to a location.
    fn locate(&self, mut location: Location, address: u64) -> Location {
        let symbol = self.elf.function(address);
        if let Some(symbol) = symbol {
            location.function = demangle(&symbol.name);
            location.function_start = Some(symbol.start);
            location.function_size = symbol.size;
        }
        if symbol.is_none()
            && let Some((start, size)) = self.elf.extent(address)
            && let Some(offset) = self.elf.offset(start)
        {
            location.function = Location::unnamed(&location.module, offset, true).function;
            location.function_start = Some(start);
            location.function_size = Some(size);
        }
        let mut frames = Vec::new();
        if let Some(context) = &self.context {
            let found = context.find_frames(address).skip_all_loads();
            if let Ok(mut found) = found {
                while let Ok(Some(frame)) = found.next() {
                    if frames.len() == INLINED {
                        break;
                    }
                    let name = frame.function.as_ref();
                    let name = name.and_then(|name| Some(name.demangle().ok()?.into_owned()));
                    let line = frame.location.and_then(|location| {
                        Some(SourceLine {
                            file: location.file?.into(),
                            line: location.line?,
                        })
                    });
                    frames.push((name, line));
                }
            }
        }
        location.line = frames.first().and_then(|(_, line)| line.clone());
        if symbol.is_none()
            && let Some((Some(name), _)) = frames.last()
        {
            location.function = name.clone();
        }
        for pair in frames.windows(2) {
            let [(name, _), (_, line)] = pair else { break };
            location.inlined.push(Frame {
                function: name.clone().unwrap_or_else(|| "[inlined]".into()),
                called_from: line.clone(),
            });
        }
        location
    }
}

/// Demangles names of C++ and Rust, and returns other names unchanged.
fn demangle(name: &str) -> String {
    // A symbol's version or `@plt` may follow the name.
    let (bare, rest) = name.split_at(name.find('@').unwrap_or(name.len()));
    addr2line::demangle_auto(bare.into(), None).into_owned() + rest
}

/// Reads the debug information of a file, and the part that the file shares with other files. Returns `None` without debug information.
fn load(files: &dyn Files, elf: &Elf) -> Option<gimli::Dwarf<Reader>> {
    let section = |elf: &Elf, id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        Ok(Reader::new(elf.section(id.name()).1, LittleEndian))
    };
    let mut dwarf = gimli::Dwarf::load(|id| section(elf, id)).ok()?;
    let empty = |reader: &gimli::DebugInfo<Reader>| {
        use gimli::{Reader as _, Section as _};
        reader.reader().is_empty()
    };
    if empty(&dwarf.debug_info) {
        return None;
    }
    if let Some(path) = &elf.shared_debug
        && let Some(shared) = files.read_path(path).and_then(Elf::new)
    {
        dwarf.load_sup(|id| section(&shared, id)).ok()?;
    }
    Some(dwarf)
}

/// Finds the separate file with the debug information of `elf`, by the build id.
fn debug_file(files: &dyn Files, elf: &Elf) -> Option<Elf> {
    let id = elf.build_id.as_deref()?;
    let (folder, name) = id.split_at_checked(2)?;
    let debug = files.read_path(&format!("{DEBUG}/{folder}/{name}.debug"))?;
    let debug = Elf::new(debug)?;
    (debug.build_id == elf.build_id).then_some(debug)
}
