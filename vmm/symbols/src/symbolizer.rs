//! Function, inlined functions and source line of an offset in a file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::debug::DebugInfo;
use crate::demangle::demangle;
use crate::elf::{Elf, Function};
use crate::files::Files;
use crate::kernel::{FileId, FilePage, GuestKernel};
use crate::limits::{AllSteps, KEPT, Limit, Lost, NAMES, SYMBOL, all_steps, cut};
use crate::memory::PhysicalMemory;

/// Line of a source file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceLine {
    /// Path of the source file, as the compiler has written it.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u32,
}

/// A function that the compiler has inlined into another function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Name of the inlined function.
    pub function: String,
    /// Source line of the call: in the next function of the list, or in the location's function after the last one.
    pub called_from: Option<SourceLine>,
}

/// Names for an address of code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Link-time address of located data; `None` for code.
    pub data_address: Option<u64>,
    /// Source line of the located address, which may be a line of an inlined function.
    pub line: Option<SourceLine>,
    /// Functions that are inlined at the address, the innermost first.
    pub inlined: Vec<Frame>,
    /// True if the file has the executed bytes at this offset. A file with other bytes gives no names. Without executed bytes to compare,
    /// names are given and this is false. Always true for the kernel and its modules, which patch their code.
    pub verified: bool,
}

impl Location {
    /// Returns the name of the function whose code is located, the innermost one where functions are inlined; `None` where it has no name.
    pub fn named_function(&self) -> Option<&str> {
        let function = match self.inlined.first() {
            Some(inlined) => &inlined.function,
            None => &self.function,
        };
        // A name made of file and offset contains no more than the address.
        (self.function_start.is_some() && !function.contains("+0x")).then_some(function)
    }

    /// Returns the location of code without names: the file's name and the offset.
    pub(crate) fn unnamed(module: &str, offset: u64, verified: bool) -> Self {
        Self {
            module: module.into(),
            build_id: None,
            function: format!(
                "{}+{offset:#x}",
                module.rsplit('/').next().unwrap_or(module)
            ),
            function_start: None,
            function_size: None,
            data_address: None,
            line: None,
            inlined: Vec::new(),
            verified,
        }
    }
}

impl Location {
    /// Names code of the kernel, of its modules, and of memory without a file. Code of a file has no name here.
    pub(crate) fn outside_files(
        kernel: &GuestKernel,
        memory: &dyn PhysicalMemory,
        page: &FilePage,
    ) -> Location {
        match page {
            FilePage::File { file, offset } => {
                Location::unnamed(&file.guest_path(), *offset, false)
            }
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

/// A file with its debug information.
struct Module {
    elf: Elf,
    debug: Option<DebugInfo>,
    /// Names as the source has them, by the names that symbols and debug information have.
    names: BTreeMap<String, String>,
    /// Sum of the bytes of `names`.
    names_len: usize,
}

/// Symbolizer of offsets in files. Each file is read once.
///
/// Several nodes may share a symbolizer. If nodes have different files with the same [`FileId`], the symbolizer uses the first file that it
/// reads, and locations in the other nodes' files are unverified.
///
/// Files need not be trusted. A file that exceeds a limit ([`Limit`]) has no names from then on, and [`Symbolizer::take_lost`] says so. One
/// thing alone has no limit that counts: a mangled name of C++ may take up to about a tenth of a second. Programs that read files of others
/// use [`Names`](crate::Names) with a process of its own.
pub struct Symbolizer {
    modules: BTreeMap<FileId, Option<Module>>,
    /// Sum of the bytes of the files in `modules`, and of their unpacked sections.
    kept: u64,
    steps: AllSteps,
    lost: Vec<Lost>,
}

impl Default for Symbolizer {
    fn default() -> Self {
        Self {
            modules: BTreeMap::new(),
            kept: 0,
            steps: all_steps(),
            lost: Vec::new(),
        }
    }
}

impl Symbolizer {
    /// Creates a symbolizer that has read no file yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the files that have lost their names since the last call.
    pub fn take_lost(&mut self) -> Vec<Lost> {
        std::mem::take(&mut self.lost)
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
        let name = file.guest_path();
        self.find(files, file, |module| {
            module.locate_offset(&name, offset, code)
        })
        .unwrap_or_else(|| Location::unnamed(&name, offset, false))
    }

    /// Names a link-time address of a file, such as a call site that a program has recorded. The location is unverified: the caller must
    /// compare build ids. If the file is missing or has no code at the address, the name consists of the file's name and the address.
    pub fn locate_address(&mut self, files: &dyn Files, file: &FileId, address: u64) -> Location {
        let name = file.guest_path();
        let found = self.find(files, file, |module| match module.elf.offset(address) {
            Some(offset) => module.locate_offset(&name, offset, &[]),
            None => Ok(Location {
                build_id: module.elf.build_id.clone(),
                ..Location::unnamed(&name, address, false)
            }),
        });
        found.unwrap_or_else(|| Location::unnamed(&name, address, false))
    }

    /// Names data at a distance in bytes from the code at an offset in a file. The location's function is the variable; its name is empty if
    /// the file has no data there. Without a symbol, the name is the file's, and the link-time address.
    pub fn locate_data(
        &mut self,
        files: &dyn Files,
        file: &FileId,
        code: u64,
        distance: i64,
    ) -> Location {
        let name = file.guest_path();
        let none = Location {
            function: String::new(),
            ..Location::unnamed(&name, 0, false)
        };
        let found = self.find(files, file, |module| {
            let address = module.elf.address(code);
            let address = address.map(|address| address.wrapping_add_signed(distance));
            let Some((address, found)) =
                address.and_then(|address| Some((address, module.elf.variable(address)?)))
            else {
                return Ok(none.clone());
            };
            let Some(variable) = found else {
                return Ok(Location {
                    function_start: Some(address),
                    data_address: Some(address),
                    ..Location::unnamed(&name, address, false)
                });
            };
            Ok(Location {
                data_address: Some(address),
                function: module.source_name(variable.name)?,
                function_start: Some(variable.start),
                function_size: Some(variable.size),
                ..none.clone()
            })
        });
        found.unwrap_or(none)
    }

    /// Reads a file at its first look-up, and looks something up in it. Returns `None` for a file that is missing or has exceeded a limit.
    fn find(
        &mut self,
        files: &dyn Files,
        file: &FileId,
        look: impl FnOnce(&mut Module) -> Result<Location, Limit>,
    ) -> Option<Location> {
        let mut limit = None;
        if !self.modules.contains_key(file) {
            let module = self.read(files, file).unwrap_or_else(|exceeded| {
                limit = Some(exceeded);
                None
            });
            self.modules.insert(file.clone(), module);
        }
        let module = self.modules.get_mut(file)?;
        let found = module.as_mut().map(look).transpose();
        let found = found.unwrap_or_else(|exceeded| {
            limit = Some(exceeded);
            None
        });
        if let Some(limit) = limit {
            *module = None;
            let module = file.guest_path();
            self.lost.push(Lost { module, limit });
        }
        found
    }

    fn read(&mut self, files: &dyn Files, file: &FileId) -> Result<Option<Module>, Limit> {
        let Some(bytes) = files.read(file) else {
            return Ok(None);
        };
        let left = KEPT - self.kept;
        if bytes.len() as u64 > left {
            return Err(Limit::Kept);
        }
        let Some(elf) = Elf::new(bytes)? else {
            return Ok(None);
        };
        let left = left - elf.len();
        let (elf, debug, kept) = DebugInfo::of(files, file, elf, left, &self.steps)?;
        self.kept += kept;
        Ok(Some(Module {
            elf,
            debug,
            names: BTreeMap::new(),
            names_len: 0,
        }))
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
            other => Location::outside_files(kernel, memory, other),
        }
    }
}

impl Module {
    fn locate_offset(&mut self, name: &str, offset: u64, code: &[u8]) -> Result<Location, Limit> {
        if !self.elf.holds(offset, code) {
            return Ok(Location::unnamed(name, offset, false));
        }
        let location = Location {
            build_id: self.elf.build_id.clone(),
            ..Location::unnamed(name, offset, !code.is_empty())
        };
        match self.elf.address(offset) {
            Some(address) => self.locate(location, address),
            None => Ok(location),
        }
    }

    /// Adds names and source lines of a link-time address, from symbols and debug information, to a location.
    fn locate(&mut self, mut location: Location, address: u64) -> Result<Location, Limit> {
        let symbol: Option<Function> = self.elf.function(address).copied();
        if let Some(symbol) = &symbol {
            let raw = self.elf.name(symbol);
            location.function = self.source_name(raw)?;
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
        let frames = match &self.debug {
            Some(debug) => debug.frames(address)?,
            None => Vec::new(),
        };
        location.line = frames.first().and_then(|(_, line)| line.clone());
        for pair in frames.windows(2) {
            let [(name, _), (_, line)] = pair else { break };
            let function = match name {
                Some(name) => self.source_name(name.clone())?,
                None => "[inlined]".into(),
            };
            location.inlined.push(Frame {
                function,
                called_from: line.clone(),
            });
        }
        if symbol.is_none()
            && let Some((Some(name), _)) = frames.last()
        {
            location.function = self.source_name(name.clone())?;
        }
        Ok(location)
    }

    /// Returns a name as the source has it.
    fn source_name(&mut self, raw: String) -> Result<String, Limit> {
        if let Some(known) = self.names.get(&raw) {
            return Ok(known.clone());
        }
        let raw = cut(raw, SYMBOL + "...".len());
        let name = demangle(&raw);
        self.names_len += raw.len() + name.len();
        if self.names_len > NAMES {
            return Err(Limit::Names);
        }
        self.names.insert(raw, name.clone());
        Ok(name)
    }
}
