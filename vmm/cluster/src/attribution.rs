//! Builds a window's profile from counts by basic block: adds the file, function and source lines of each block, and the sampled call
//! paths.

mod contended;

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use iced_x86::{Decoder, DecoderOptions};
use nodescope_machine::node::Node;
use nodescope_machine::samples::StackSample;
use nodescope_plugin_api::{BlockCounts, BlockProfile, ContendedLine, Context, ProfiledBlock};
use nodescope_profile::{
    Block, Count, Function, Inlined, Module, ModuleKind, Path, SourceLine, SourceRange,
    WindowProfile,
};
use nodescope_symbols::{
    Call, FileId, FilePage, GuestKernel, Location, MemoryFiles, Names, Registers, RootImage,
    Sample, Sources,
};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Name of the function for costs that belong to no basic block.
const OUTSIDE: &str = "[interrupts and translation]";
/// Name of code whose file cannot be found.
const UNKNOWN: &str = "[unknown]";
/// Maximum sum of the bytes of the names of functions, files and inlined functions in a window's profile. Programs have some megabytes.
const TEXT: usize = 256 << 20;
/// Number of look-ups that are gathered for one request for names.
const GATHERED: usize = 16 << 10;

/// What was counted on a node in a window, for its profile.
pub struct Counted {
    pub blocks: BlockProfile,
    pub samples: Vec<StackSample>,
    pub contended: Vec<ContendedLine>,
    /// Address space (CR3) of each context.
    pub spaces: Vec<u64>,
}

/// Finds the names of the code of all windows of a run.
pub struct Attribution {
    /// Symbols of the guests' kernel; `Err` where the kernel cannot be read, with the reason, which becomes a note of each profile.
    kernel: Result<GuestKernel, String>,
    root: RootImage,
    names: Names,
    /// True once the log has said what does not restrict the process that makes names.
    warned: bool,
}

impl Attribution {
    /// Reads the guests' kernel from its file; `root` is the root image. Names are made by `names`.
    pub fn new(kernel: &FilePath, root: &FilePath, names: Names) -> Self {
        let kernel = std::fs::read(kernel)
            .map_err(|error| error.to_string())
            .and_then(|bytes| GuestKernel::new(&bytes).map_err(|error| error.to_string()));
        Self {
            kernel,
            root: RootImage::new(root),
            names,
            warned: false,
        }
    }

    /// Adds what was counted on a node to a window's profile.
    pub fn add(&mut self, into: &mut ProfileBuilder, node: &Node, counted: &Counted) {
        let Counted {
            blocks,
            samples,
            contended,
            spaces,
        } = counted;
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
            names: &mut self.names,
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
        let numbers = naming.blocks(into, &blocks.blocks);
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
        let lines = naming.contended(node.index(), contended, &blocks.blocks, &numbers, spaces);
        into.profile.contended.extend(lines);
        for sample in samples {
            if let Some((ip, page)) = sample
                .user
                .as_ref()
                .and_then(|user| Some((user.ip, user.page?)))
            {
                let at = (sample.address_space, ip / PAGE);
                naming.entered.entry(at).or_insert(page);
            }
        }
        let mut paths: BTreeMap<(u32, Vec<u32>), Vec<u64>> = BTreeMap::new();
        let found = naming.paths(into, samples);
        for (sample, path) in samples.iter().zip(found) {
            let times = paths.entry((sample.context.0, path)).or_default();
            times.push(node.clock().ps(sample.clock));
        }
        for ((context, functions), mut times) in paths {
            times.sort_unstable();
            into.profile.paths.push(Path {
                node: node.index(),
                context,
                functions,
                samples: times.len() as u64,
                times,
            });
        }
        for lost in self.names.take_lost() {
            into.note(lost);
        }
        if let Some(gaps) = self.names.gaps().filter(|_| !self.warned) {
            tracing::warn!("the process that makes names of guest code: not held: {gaps}");
            self.warned = true;
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
    /// Sum of the bytes of names in the tables and of inlined functions.
    text: usize,
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
            text: 0,
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
        let contended = part.contended.into_iter().map(|mut line| {
            for of_line in &mut line.uses {
                of_line.block = blocks[of_line.block as usize];
            }
            line
        });
        self.profile.contended.extend(contended);
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
        if !self.lines.contains_key(&line) {
            self.text += line.file.len();
        }
        number(&mut self.lines, &mut self.profile.lines, line)
    }

    /// Returns the number of a block, and whether the block is new. A new block has no source lines yet.
    fn block(
        &mut self,
        page: Option<&FilePage>,
        block: &ProfiledBlock,
        location: &Location,
    ) -> (u32, bool) {
        let offset = offset_of(page, block.address);
        let (module, function) = self.function(page, location, offset);
        let key = (
            module,
            offset,
            block.kernel,
            block.bits,
            block.bytes.clone(),
        );
        if let Some(known) = self.blocks.get(&key) {
            return (*known, false);
        }
        let number = self.profile.blocks.len() as u32;
        self.blocks.insert(key, number);
        self.profile.blocks.push(Block {
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
            source_ranges: Vec::new(),
        });
        (number, true)
    }

    /// Adds the source lines of a block from the locations of its instructions.
    fn add_source_ranges(&mut self, block: u32, locations: impl Iterator<Item = Location>) {
        let mut source_ranges: Vec<SourceRange> = Vec::new();
        for (instruction, mut location) in (0..).zip(locations) {
            let names = location.inlined.iter().map(|frame| frame.function.len());
            let text: usize = names.sum();
            if self.is_full(text) {
                location.inlined.clear();
                location.line = None;
            }
            let range = SourceRange {
                first: instruction,
                line: location.line.as_ref().map(|line| self.line(line)),
                inlined: (location.inlined.into_iter())
                    .map(|frame| Inlined {
                        called_from: frame.called_from.as_ref().map(|line| self.line(line)),
                        function: frame.function,
                    })
                    .collect(),
            };
            let same = source_ranges
                .last()
                .is_some_and(|last| (last.line, &last.inlined) == (range.line, &range.inlined));
            if !same {
                self.text += text;
                source_ranges.push(range);
            }
        }
        if let Some(block) = self.profile.blocks.get_mut(block as usize) {
            block.source_ranges = source_ranges;
        }
    }

    /// Returns whether the profile has no room for so many more bytes of names. A note then says so.
    fn is_full(&mut self, more: usize) -> bool {
        let full = self.text + more > TEXT;
        if full {
            self.note(format!(
                "some functions and lines have no names, since names would take more than {} MiB",
                TEXT >> 20
            ));
        }
        full
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
        let mut function = Function {
            module,
            name: location.function.clone(),
            start: location
                .function_start
                .unwrap_or(if anonymous { 0 } else { offset }),
            named: !anonymous && !location.function.starts_with(&unnamed),
        };
        if !self.functions.contains_key(&function) {
            if self.is_full(function.name.len()) {
                function.name = format!("{unnamed}{offset:x}");
                function.named = false;
            }
            self.text += function.name.len();
        }
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
        data_address: None,
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
    names: &'a mut Names,
    /// Files or other memory, by number of the physical page; `None` where a page's contents are unknown.
    pages: BTreeMap<u64, Option<FilePage>>,
    /// Physical addresses of pages of code that were executed, by address space and number of the linear page.
    entered: BTreeMap<(u64, u64), u64>,
    /// Numbers of functions, by address space and linear address.
    functions: BTreeMap<(u64, u64), u32>,
}

/// Code at a linear address of an address space, and its file or other memory.
type Site = (u64, u64, FilePage);

impl Naming<'_> {
    /// Returns the file, or other memory, to which a byte at a physical address belongs; `None` where it is unknown.
    fn page(&mut self, physical: u64) -> Option<FilePage> {
        let (kernel, memory) = (self.kernel?, self.memory);
        let page = self.pages.entry(physical / PAGE).or_insert_with(|| {
            kernel
                .file_of(memory, physical / PAGE * PAGE)
                .map(without_mapping)
        });
        page.clone().map(|page| page.behind(physical % PAGE))
    }

    /// Names code in pages. Each page comes with the executed bytes.
    fn locate(&mut self, pages: &[(Option<&FilePage>, &[u8])]) -> Vec<Location> {
        let Some(kernel) = self.kernel else {
            return vec![unknown(UNKNOWN); pages.len()];
        };
        let known = pages
            .iter()
            .filter_map(|(page, code)| Some(((*page)?, *code)));
        let known: Vec<(&FilePage, &[u8])> = known.collect();
        let found = self
            .names
            .locate_pages(self.files, kernel, self.memory, &known);
        let mut found = found.into_iter();
        let next = |(page, _): &(Option<&FilePage>, &[u8])| match page {
            Some(_) => found.next().unwrap_or_else(|| unknown(UNKNOWN)),
            None => unknown(UNKNOWN),
        };
        pages.iter().map(next).collect()
    }

    /// Returns the numbers of blocks in the profile. Adds blocks that are missing. Index 0 stands for costs outside blocks.
    fn blocks(&mut self, into: &mut ProfileBuilder, blocks: &[ProfiledBlock]) -> Vec<u32> {
        let mut numbers = Vec::with_capacity(blocks.len());
        for (n, blocks) in blocks.chunks(GATHERED).enumerate() {
            let pages = self.block_pages(blocks, n == 0);
            let places = pages.iter().zip(blocks);
            let places: Vec<_> = places
                .map(|(page, block)| (page.as_ref(), &block.bytes[..]))
                .collect();
            let mut locations = self.locate(&places);
            if n == 0
                && let Some(first) = locations.first_mut()
            {
                *first = unknown(OUTSIDE);
            }
            let mut new = Vec::new();
            for ((block, page), location) in blocks.iter().zip(pages).zip(locations) {
                let (number, added) = into.block(page.as_ref(), block, &location);
                numbers.push(number);
                // Without debugging information, no instruction of the file has a line.
                if added
                    && location.line.is_some()
                    && block.bits != 0
                    && let Some(page) = page
                {
                    new.push((number, block, page, location));
                }
            }
            self.source_ranges(into, &new);
        }
        numbers
    }

    /// Returns the files or other memory of blocks, and notes where the blocks were executed from. The first block stands for costs
    /// outside blocks if `outside` is true.
    fn block_pages(&mut self, blocks: &[ProfiledBlock], outside: bool) -> Vec<Option<FilePage>> {
        let mut pages = Vec::with_capacity(blocks.len());
        for (n, block) in blocks.iter().enumerate() {
            if outside && n == 0 {
                pages.push(None);
                continue;
            }
            pages.push(self.page(block.physical));
            let key = (block.address_space, block.address / PAGE);
            self.entered.insert(key, block.physical / PAGE * PAGE);
        }
        pages
    }

    /// Adds the source lines of new blocks' instructions, as ranges with the same line and the same inlined functions. Each block comes
    /// with its number, its page, and the location of its first instruction.
    fn source_ranges(
        &mut self,
        into: &mut ProfileBuilder,
        new: &[(u32, &ProfiledBlock, FilePage, Location)],
    ) {
        // The instructions of several blocks are looked up together.
        let mut from = 0;
        while from < new.len() {
            let mut pages = Vec::new();
            let mut to = from;
            while to < new.len() && pages.len() < GATHERED {
                let (_, block, page, _) = &new[to];
                for (at, end) in instructions(block).skip(1) {
                    pages.push((page.clone().behind(at as u64), &block.bytes[at..end]));
                }
                to += 1;
            }
            let places: Vec<_> = pages
                .iter()
                .map(|(page, code)| (Some(page), *code))
                .collect();
            let mut found = self.locate(&places).into_iter();
            for (number, block, _, first) in &new[from..to] {
                let count = instructions(block).count();
                let rest = found.by_ref().take(count.saturating_sub(1));
                let locations = std::iter::once(first.clone()).take(count).chain(rest);
                into.add_source_ranges(*number, locations);
            }
            from = to;
        }
    }

    /// Returns the numbers of the functions on the stack of each sample, outermost first.
    fn paths(&mut self, into: &mut ProfileBuilder, samples: &[StackSample]) -> Vec<Vec<u32>> {
        let callers = self.callers(samples);
        let mut sites: Vec<Vec<Site>> = Vec::new();
        for (sample, callers) in samples.iter().zip(callers) {
            let space = sample.address_space;
            let mut path = Vec::new();
            for call in callers.into_iter().rev() {
                // The byte before the return address decides: a call may be the last instruction of its function.
                let at = call.address.wrapping_sub(1);
                path.push((space, at, without_mapping(call.page)));
            }
            let ips = [sample.user.as_ref().map(|user| user.ip), sample.kernel_ip];
            for ip in ips.into_iter().flatten() {
                path.extend(self.page_at(space, ip).map(|page| (space, ip, page)));
            }
            sites.push(path);
        }
        let mut located = self.name_sites(sites.iter().flatten());
        let paths = sites.into_iter().map(|path| {
            let mut functions = Vec::with_capacity(path.len().max(1));
            for (space, at, page) in path {
                if let Some(location) = located.remove(&(space, at)) {
                    let offset = offset_of(Some(&page), at);
                    let (_, function) = into.function(Some(&page), &location, offset);
                    self.functions.insert((space, at), function);
                }
                functions.extend(self.functions.get(&(space, at)));
            }
            if functions.is_empty() {
                functions.push(into.function(None, &unknown(UNKNOWN), 0).1);
            }
            functions
        });
        paths.collect()
    }

    /// Returns the calls on the stack of each sample, innermost first.
    fn callers(&mut self, samples: &[StackSample]) -> Vec<Vec<Call>> {
        let user = samples.iter().filter_map(|sample| {
            let user = sample.user.as_ref()?;
            let registers = Registers {
                ip: user.ip,
                sp: user.sp,
                bp: user.bp,
            };
            let stack = &user.stack;
            Some((sample.address_space, Sample { registers, stack }))
        });
        let user: Vec<_> = user.collect();
        // `names` must not be borrowed with the rest, which finds pages.
        let files = self.files;
        let mut names = std::mem::replace(self.names, Names::here());
        let mut resolve = |space, address| self.page_at(space, address);
        let mut found = names.unwind(files, &user, &mut resolve).into_iter();
        *self.names = names;
        let callers = samples.iter().map(|sample| match sample.user {
            Some(_) => found.next().unwrap_or_default(),
            None => Vec::new(),
        });
        callers.collect()
    }

    /// Names the sites whose function has no number yet, by address space and linear address.
    fn name_sites<'s>(
        &mut self,
        sites: impl Iterator<Item = &'s Site>,
    ) -> BTreeMap<(u64, u64), Location> {
        let mut wanted: BTreeMap<(u64, u64), &FilePage> = BTreeMap::new();
        for (space, at, page) in sites {
            if !self.functions.contains_key(&(*space, *at)) {
                wanted.entry((*space, *at)).or_insert(page);
            }
        }
        let wanted: Vec<_> = wanted.into_iter().collect();
        let mut located = BTreeMap::new();
        for wanted in wanted.chunks(GATHERED) {
            let places: Vec<_> = wanted
                .iter()
                .map(|(_, page)| (Some(*page), &[][..]))
                .collect();
            let found = self.locate(&places);
            located.extend(wanted.iter().map(|(key, _)| *key).zip(found));
        }
        located
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

/// Returns the beginning and the end of each instruction in a block's bytes.
fn instructions(block: &ProfiledBlock) -> impl Iterator<Item = (usize, usize)> {
    let mut decoder = Decoder::new(block.bits.into(), &block.bytes, DecoderOptions::NONE);
    (0..block.instructions).map_while(move |_| {
        let at = decoder.position();
        decoder.can_decode().then(|| {
            let _ = decoder.decode();
            (at, decoder.position())
        })
    })
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
            times: vec![u64::from(node)],
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
