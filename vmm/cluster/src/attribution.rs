//! Builds a window's profile from counts by basic block: adds the file, function and source lines of each block, and the sampled call
//! paths.

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use iced_x86::{Decoder, DecoderOptions};
use nodescope_machine::node::Node;
use nodescope_machine::samples::StackSample;
use nodescope_plugin_api::{BlockCounts, BlockProfile, Context, ProfiledBlock};
use nodescope_profile::{
    Block, Count, Function, Inlined, Module, ModuleKind, Path, SourceLine, SourceRange,
    WindowProfile,
};
use nodescope_symbols::{
    FileId, FilePage, GuestKernel, Location, MemoryFiles, Registers, RootImage, Sample, Sources,
    Symbolizer, Unwinder,
};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Name of the function for costs that belong to no basic block.
const OUTSIDE: &str = "[interrupts and translation]";
/// Name of code whose file cannot be found.
const UNKNOWN: &str = "[unknown]";

/// Finds the names of the code of all windows of a run.
pub struct Attribution {
    /// Symbols of the guests' kernel; `Err` where the kernel cannot be read, with the reason, which becomes a note of each profile.
    kernel: Result<GuestKernel, String>,
    root: RootImage,
    symbolizer: Symbolizer,
    unwinder: Unwinder,
}

impl Attribution {
    /// Reads the guests' kernel from its file; `root` is the root image.
    pub fn new(kernel: &FilePath, root: &FilePath) -> Self {
        let kernel = std::fs::read(kernel)
            .map_err(|error| error.to_string())
            .and_then(|bytes| GuestKernel::new(&bytes).map_err(|error| error.to_string()));
        Self {
            kernel,
            root: RootImage::new(root),
            symbolizer: Symbolizer::new(),
            unwinder: Unwinder::new(),
        }
    }

    /// Adds the counts and stack samples of a node to a window's profile.
    pub fn add(
        &mut self,
        into: &mut ProfileBuilder,
        node: &Node,
        blocks: &BlockProfile,
        samples: &[StackSample],
    ) {
        let memory = |address: u64, buf: &mut [u8]| node.ram().read(address, buf);
        let kernel = match &self.kernel {
            Ok(kernel) => Some(kernel),
            Err(error) => {
                into.note(format!(
                    "functions have no names, since the guest's kernel cannot be read: {error}"
                ));
                None
            }
        };
        let in_memory = kernel.map(|kernel| MemoryFiles::new(kernel, &memory));
        let mut files = Sources(vec![&self.root]);
        if let Some(in_memory) = &in_memory {
            files.0.push(in_memory);
        }
        let mut naming = Naming {
            kernel,
            memory: &memory,
            files: &files,
            symbolizer: &mut self.symbolizer,
            pages: BTreeMap::new(),
            entered: BTreeMap::new(),
            functions: BTreeMap::new(),
        };
        if blocks.lost_blocks > 0 {
            into.note(format!(
                "node {}: {} basic blocks were too many to be told apart; their misses are those of {OUTSIDE}, and their instructions are missing here",
                node.index(),
                blocks.lost_blocks
            ));
        }
        if blocks.lost_contexts > 0 {
            into.note(format!(
                "node {}: address spaces and MPI functions were too many to be told apart; costs of some are those of others",
                node.index()
            ));
        }
        let numbers: Vec<u32> = (0..blocks.blocks.len())
            .map(|n| naming.block(into, n, &blocks.blocks[n]))
            .collect();
        // Code that was decoded more than once is one block, whose counts are added up.
        let mut counted: BTreeMap<(u32, u32), BlockCounts> = BTreeMap::new();
        for (Context(context), block, counts) in &blocks.counts {
            let key = (*context, numbers[*block as usize]);
            counted.entry(key).or_default().add(counts);
        }
        let counts = counted.into_iter().map(|((context, block), counts)| Count {
            node: node.index(),
            context,
            block,
            counts,
        });
        into.profile.counts.extend(counts);
        let mut paths: BTreeMap<(u32, Vec<u32>), u64> = BTreeMap::new();
        for sample in samples {
            let path = naming.path(into, &mut self.unwinder, sample);
            *paths.entry((sample.context.0, path)).or_default() += 1;
        }
        for ((context, functions), samples) in paths {
            into.profile.paths.push(Path {
                node: node.index(),
                context,
                functions,
                samples,
            });
        }
    }
}

/// Builder of a window's profile, with tables that number modules, functions, lines and blocks.
#[derive(Default)]
pub struct ProfileBuilder {
    profile: WindowProfile,
    modules: BTreeMap<Module, u32>,
    functions: BTreeMap<Function, u32>,
    lines: BTreeMap<SourceLine, u32>,
    blocks: BTreeMap<BlockKey, u32>,
}

/// Identity of a block on all nodes: module, offset, privilege, width of the code segment, machine code.
type BlockKey = (u32, u64, bool, u8, Vec<u8>);

fn key(block: &Block) -> BlockKey {
    let Block {
        module,
        offset,
        kernel,
        bits,
        ref bytes,
        ..
    } = *block;
    (module, offset, kernel, bits, bytes.clone())
}

impl From<WindowProfile> for ProfileBuilder {
    fn from(profile: WindowProfile) -> Self {
        let numbered = |of: usize| 0..of as u32;
        let modules = profile.modules.iter().cloned();
        let functions = profile.functions.iter().cloned();
        let lines = profile.lines.iter().cloned();
        let blocks = profile.blocks.iter().map(key);
        Self {
            modules: modules.zip(numbered(profile.modules.len())).collect(),
            functions: functions.zip(numbered(profile.functions.len())).collect(),
            lines: lines.zip(numbered(profile.lines.len())).collect(),
            blocks: blocks.zip(numbered(profile.blocks.len())).collect(),
            profile,
        }
    }
}

/// Returns the index of an element in a list without duplicates. Appends the element if it is missing.
fn number<T: Clone + Ord>(known: &mut BTreeMap<T, u32>, list: &mut Vec<T>, element: T) -> u32 {
    let next = list.len() as u32;
    *known.entry(element).or_insert_with_key(|element| {
        list.push(element.clone());
        next
    })
}

impl ProfileBuilder {
    /// Returns an empty profile of the window with this name.
    pub fn new(name: &str) -> Self {
        let mut builder = Self::default();
        builder.profile.name = name.into();
        builder
    }

    /// Returns the profile.
    pub fn finish(self) -> WindowProfile {
        self.profile
    }

    /// Appends the profile of the nodes with the next higher numbers, as if [`Attribution::add`] had added these nodes here.
    pub fn append(&mut self, part: WindowProfile) {
        part.notes.into_iter().for_each(|note| self.note(note));
        let modules = part.modules.into_iter();
        let modules: Vec<u32> = modules
            .map(|module| number(&mut self.modules, &mut self.profile.modules, module))
            .collect();
        let function = |function: Function| Function {
            module: modules[function.module as usize],
            ..function
        };
        let functions = part.functions.into_iter().map(function);
        let functions: Vec<u32> = functions
            .map(|function| number(&mut self.functions, &mut self.profile.functions, function))
            .collect();
        let mut blocks = Vec::with_capacity(part.blocks.len());
        for block in part.blocks {
            let block = Block {
                module: modules[block.module as usize],
                function: functions[block.function as usize],
                ..block
            };
            let next = self.profile.blocks.len() as u32;
            let known = self.blocks.get(&key(&block)).copied();
            blocks.push(known.unwrap_or(next));
            if known.is_some() {
                continue;
            }
            // A line is numbered when the first block that refers to it is added.
            let line = |builder: &mut Self, line: u32| {
                let line = part.lines[line as usize].clone();
                number(&mut builder.lines, &mut builder.profile.lines, line)
            };
            let mut source_ranges = block.source_ranges.clone();
            for range in &mut source_ranges {
                range.line = range.line.map(|of| line(self, of));
                for inlined in &mut range.inlined {
                    inlined.called_from = inlined.called_from.map(|of| line(self, of));
                }
            }
            self.blocks.insert(key(&block), next);
            self.profile.blocks.push(Block {
                source_ranges,
                ..block
            });
        }
        // Within a node, counts and paths are sorted by the profile's numbers, which differ from those of the part.
        let counts = part.counts.into_iter().map(|count| Count {
            block: blocks[count.block as usize],
            ..count
        });
        let mut counts: Vec<Count> = counts.collect();
        counts.sort_by_key(|count| (count.node, count.context, count.block));
        self.profile.counts.append(&mut counts);
        let paths = part.paths.into_iter().map(|path| Path {
            functions: (path.functions.iter())
                .map(|of| functions[*of as usize])
                .collect(),
            ..path
        });
        let mut paths: Vec<Path> = paths.collect();
        paths.sort_by(|one, other| {
            let key = |path: &Path| (path.node, path.context);
            (key(one).cmp(&key(other))).then_with(|| one.functions.cmp(&other.functions))
        });
        self.profile.paths.append(&mut paths);
    }

    fn note(&mut self, note: String) {
        if !self.profile.notes.contains(&note) {
            self.profile.notes.push(note);
        }
    }

    fn module(&mut self, kind: ModuleKind, name: &str, build_id: Option<String>) -> u32 {
        let module = Module {
            kind,
            name: name.into(),
            build_id,
        };
        number(&mut self.modules, &mut self.profile.modules, module)
    }

    fn line(&mut self, line: &nodescope_symbols::SourceLine) -> u32 {
        let line = SourceLine {
            file: line.file.clone(),
            line: line.line,
        };
        number(&mut self.lines, &mut self.profile.lines, line)
    }

    /// Returns the numbers of a location's module and function. `offset` is the start of a function without a symbol.
    fn function(
        &mut self,
        page: Option<&FilePage>,
        location: &Location,
        offset: u64,
    ) -> (u32, u32) {
        let kind = match page {
            Some(FilePage::File { file, .. }) if file.file_system == "vdso" => ModuleKind::Vdso,
            Some(FilePage::File { .. }) => ModuleKind::File,
            Some(FilePage::Anonymous) => ModuleKind::Anonymous,
            Some(FilePage::Kernel { .. }) => ModuleKind::Kernel,
            Some(FilePage::Module { .. }) => ModuleKind::KernelModule,
            None => ModuleKind::Unknown,
        };
        let module = self.module(kind, &location.module, location.build_id.clone());
        let anonymous = matches!(kind, ModuleKind::Anonymous | ModuleKind::Unknown);
        let file = location.module.rsplit('/').next().unwrap_or_default();
        // Name of code without a symbol.
        let unnamed = format!("{file}+0x");
        let function = Function {
            module,
            name: location.function.clone(),
            start: location
                .function_start
                .unwrap_or(if anonymous { 0 } else { offset }),
            named: !anonymous && !location.function.starts_with(&unnamed),
        };
        let function = number(&mut self.functions, &mut self.profile.functions, function);
        (module, function)
    }
}

/// Returns a location of this name for code without a known module and function.
fn unknown(name: &str) -> Location {
    Location {
        module: name.into(),
        build_id: None,
        function: name.into(),
        function_start: None,
        function_size: None,
        line: None,
        inlined: Vec::new(),
        verified: false,
    }
}

/// Finds the names of one node's code, with caches of what was found.
struct Naming<'a> {
    kernel: Option<&'a GuestKernel>,
    memory: &'a dyn nodescope_symbols::PhysicalMemory,
    files: &'a Sources<'a>,
    symbolizer: &'a mut Symbolizer,
    /// Files or other memory, by number of the physical page; `None` where a page's contents are unknown.
    pages: BTreeMap<u64, Option<FilePage>>,
    /// Physical addresses of pages of code that were executed, by address space and number of the linear page.
    entered: BTreeMap<(u64, u64), u64>,
    /// Numbers of functions, by address space and linear address.
    functions: BTreeMap<(u64, u64), u32>,
}

impl Naming<'_> {
    /// Returns the file, or other memory, to which a byte at a physical address belongs; `None` where it is unknown.
    fn page(&mut self, physical: u64) -> Option<FilePage> {
        let (kernel, memory) = (self.kernel?, self.memory);
        let page = self.pages.entry(physical / PAGE).or_insert_with(|| {
            kernel
                .file_of(memory, physical / PAGE * PAGE)
                .map(without_mapping)
        });
        page.clone().map(|page| behind(page, physical % PAGE))
    }

    fn locate(&mut self, page: Option<&FilePage>, code: &[u8]) -> Location {
        match (self.kernel, page) {
            (Some(kernel), Some(page)) => {
                self.symbolizer
                    .locate_page(self.files, kernel, self.memory, page, code)
            }
            _ => unknown(UNKNOWN),
        }
    }

    /// Returns the number of a block in the profile. Adds the block if it is missing. Index 0 stands for costs outside blocks.
    fn block(&mut self, into: &mut ProfileBuilder, index: usize, block: &ProfiledBlock) -> u32 {
        let (page, location) = if index == 0 {
            (None, unknown(OUTSIDE))
        } else {
            let page = self.page(block.physical);
            let location = self.locate(page.as_ref(), &block.bytes);
            let key = (block.address_space, block.address / PAGE);
            self.entered.insert(key, block.physical / PAGE * PAGE);
            (page, location)
        };
        let offset = offset_of(page.as_ref(), block.address);
        let (module, function) = into.function(page.as_ref(), &location, offset);
        let key = (
            module,
            offset,
            block.kernel,
            block.bits,
            block.bytes.clone(),
        );
        if let Some(known) = into.blocks.get(&key) {
            return *known;
        }
        let source_ranges = self.source_ranges(into, page.as_ref(), block, location);
        let number = into.profile.blocks.len() as u32;
        into.blocks.insert(key, number);
        into.profile.blocks.push(Block {
            module,
            offset,
            address: block.address,
            function,
            kernel: block.kernel,
            bits: block.bits,
            bytes: block.bytes.clone(),
            instructions: block.instructions,
            loads: block.loads,
            stores: block.stores,
            flops: block.flops,
            source_ranges,
        });
        number
    }

    /// Returns the source lines of a block's instructions, as ranges with the same line and the same inlined functions. `first` is the
    /// location of the first instruction.
    fn source_ranges(
        &mut self,
        into: &mut ProfileBuilder,
        page: Option<&FilePage>,
        block: &ProfiledBlock,
        first: Location,
    ) -> Vec<SourceRange> {
        // Without debugging information, no instruction of the file has a line.
        if first.line.is_none() || block.bits == 0 {
            return Vec::new();
        }
        let Some(page) = page else {
            return Vec::new();
        };
        let mut source_ranges: Vec<SourceRange> = Vec::new();
        let mut decoder = Decoder::new(block.bits.into(), &block.bytes, DecoderOptions::NONE);
        for instruction in 0..block.instructions {
            let at = decoder.position();
            if !decoder.can_decode() {
                break;
            }
            let _ = decoder.decode();
            let code = &block.bytes[at..decoder.position()];
            let location = if at == 0 {
                first.clone()
            } else {
                self.locate(Some(&behind(page.clone(), at as u64)), code)
            };
            let range = SourceRange {
                first: instruction,
                line: location.line.as_ref().map(|line| into.line(line)),
                inlined: location
                    .inlined
                    .iter()
                    .map(|frame| Inlined {
                        function: frame.function.clone(),
                        called_from: frame.called_from.as_ref().map(|line| into.line(line)),
                    })
                    .collect(),
            };
            let same = source_ranges
                .last()
                .is_some_and(|last| (last.line, &last.inlined) == (range.line, &range.inlined));
            if !same {
                source_ranges.push(range);
            }
        }
        source_ranges
    }

    /// Returns the numbers of the functions on the stack of a sample, outermost first.
    fn path(
        &mut self,
        into: &mut ProfileBuilder,
        unwinder: &mut Unwinder,
        sample: &StackSample,
    ) -> Vec<u32> {
        let space = sample.address_space;
        let mut path = Vec::new();
        if let Some(user) = &sample.user {
            let registers = Registers {
                ip: user.ip,
                sp: user.sp,
                bp: user.bp,
            };
            let copied = Sample {
                registers,
                stack: &user.stack,
            };
            let files = self.files;
            let callers =
                unwinder.unwind(files, &copied, &mut |address| self.page_at(space, address));
            for call in callers.iter().rev() {
                // The byte before the return address decides: a call may be the last instruction of its function.
                let at = call.address.wrapping_sub(1);
                path.push(self.function_in(into, space, at, &without_mapping(call.page.clone())));
            }
            path.extend(self.function_at(into, space, user.ip));
        }
        if let Some(ip) = sample.kernel_ip {
            path.extend(self.function_at(into, space, ip));
        }
        if path.is_empty() {
            path.push(into.function(None, &unknown(UNKNOWN), 0).1);
        }
        path
    }

    /// Returns the file, or other memory, at a linear address. Takes the physical page that blocks were executed from, or else translates
    /// the address by the page tables, which may no longer exist if the process has ended.
    fn page_at(&mut self, space: u64, linear: u64) -> Option<FilePage> {
        let entered = self.entered.get(&(space, linear / PAGE)).copied();
        let physical = match entered {
            Some(page) => page + linear % PAGE,
            None => nodescope_symbols::translate(self.memory, space, linear)?,
        };
        self.page(physical)
    }

    /// Returns the number of the function at a linear address; `None` where the memory there is unknown.
    fn function_at(&mut self, into: &mut ProfileBuilder, space: u64, linear: u64) -> Option<u32> {
        if let Some(known) = self.functions.get(&(space, linear)) {
            return Some(*known);
        }
        let page = self.page_at(space, linear)?;
        Some(self.function_in(into, space, linear, &page))
    }

    /// Returns the number of the function at a linear address, whose file or memory is `page`.
    fn function_in(
        &mut self,
        into: &mut ProfileBuilder,
        space: u64,
        linear: u64,
        page: &FilePage,
    ) -> u32 {
        if let Some(known) = self.functions.get(&(space, linear)) {
            return *known;
        }
        let location = self.locate(Some(page), &[]);
        let function = into
            .function(Some(page), &location, offset_of(Some(page), linear))
            .1;
        self.functions.insert((space, linear), function);
        function
    }
}

/// Returns the offset of a byte of code in its file or kernel module; for the kernel and other memory, the byte's address.
fn offset_of(page: Option<&FilePage>, linear: u64) -> u64 {
    match page {
        Some(FilePage::File { offset, .. } | FilePage::Module { offset, .. }) => *offset,
        Some(FilePage::Kernel { address }) => *address,
        Some(FilePage::Anonymous) | None => linear,
    }
}

/// Makes a page of a file on the root disk equal on all nodes: removes the address at which the node's kernel has the file's page cache.
fn without_mapping(page: FilePage) -> FilePage {
    match page {
        FilePage::File { file, offset } if file.file_system == "ext4" => FilePage::File {
            file: FileId { mapping: 0, ..file },
            offset,
        },
        page => page,
    }
}

/// Returns the page's location moved forward by so many bytes.
fn behind(page: FilePage, bytes: u64) -> FilePage {
    match page {
        FilePage::File { file, offset } => FilePage::File {
            file,
            offset: offset + bytes,
        },
        FilePage::Anonymous => FilePage::Anonymous,
        FilePage::Kernel { address } => FilePage::Kernel {
            address: address + bytes,
        },
        FilePage::Module {
            name,
            module,
            address,
            offset,
        } => FilePage::Module {
            name,
            module,
            address: address + bytes,
            offset: offset + bytes,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(function: &str, line: u32) -> Location {
        Location {
            line: Some(nodescope_symbols::SourceLine {
                file: "f.c".into(),
                line,
            }),
            ..unknown(function)
        }
    }

    /// Adds a block of each of these functions, with one entry of counts on a node, and one call path through all of them.
    fn add(into: &mut ProfileBuilder, node: u32, functions: &[&str]) {
        let mut path = Vec::new();
        let mut counts = BTreeMap::new();
        for name in functions {
            let location = location(name, name.len() as u32);
            let (module, function) = into.function(None, &location, 0);
            path.push(function);
            let next = into.profile.blocks.len() as u32;
            let block = Block {
                module,
                offset: u64::from(name.as_bytes()[0]),
                address: 0,
                function,
                kernel: false,
                bits: 64,
                bytes: name.as_bytes().into(),
                instructions: 1,
                loads: 0,
                stores: 0,
                flops: Default::default(),
                source_ranges: Vec::new(),
            };
            let number = *into.blocks.entry(key(&block)).or_insert(next);
            if number == next {
                let line = location.line.as_ref().map(|line| into.line(line));
                let range = SourceRange {
                    first: 0,
                    line,
                    inlined: Vec::new(),
                };
                let source_ranges = vec![range];
                into.profile.blocks.push(Block {
                    source_ranges,
                    ..block
                });
            }
            counts.insert((0, number), BlockCounts::default());
        }
        into.profile.counts.extend(
            (counts.into_iter()).map(|((context, block), counts)| Count {
                node,
                context,
                block,
                counts,
            }),
        );
        into.profile.paths.push(Path {
            node,
            context: 0,
            functions: path,
            samples: 1,
        });
        into.note(format!("note of {}", functions[0]));
    }

    #[test]
    fn profiles_of_several_processes_become_that_of_one() {
        let nodes: [&[&str]; 4] = [&["a", "bb"], &["ccc", "a"], &["dddd", "ccc", "a"], &["bb"]];
        let build = |numbers: std::ops::Range<usize>| {
            let mut builder = ProfileBuilder::new("w");
            for node in numbers {
                add(&mut builder, node as u32, nodes[node]);
            }
            builder.finish()
        };
        let whole = build(0..4);
        for cut in 1..4 {
            let mut merged = ProfileBuilder::from(build(0..cut));
            merged.append(build(cut..4));
            assert_eq!(merged.finish(), whole, "cut before node {cut}");
        }
    }
}
