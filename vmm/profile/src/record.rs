//! Profiles in the form that a results directory has.

use std::fs;
use std::io::{self, Write};
use std::path::{Path as FilePath, PathBuf};

use nodescope_plugin_api::{BlockCounts, FLOP_CLASSES};
use serde::{Deserialize, Serialize};

/// Kind of a [`Module`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleKind {
    /// A program or shared library.
    File,
    /// The kernel of the guest.
    Kernel,
    /// A module of the guest's kernel.
    KernelModule,
    /// Code that the kernel maps into every process (vDSO).
    Vdso,
    /// Anonymous memory, such as code of a just-in-time compiler.
    Anonymous,
    /// Memory whose origin is not known.
    Unknown,
}

/// A file, or another origin of code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Module {
    /// Kind of the module.
    pub kind: ModuleKind,
    /// Path in the guest, or a name in brackets such as `[kernel]`.
    pub name: String,
    /// Build id in hexadecimal; `None` if the file has none.
    pub build_id: Option<String>,
}

/// Returns whether the module at a path is a runtime of OpenMP: GCC's, LLVM's or Intel's. Threads in its functions mostly wait for other
/// threads.
pub fn is_openmp_runtime(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    let names = ["libgomp.so", "libomp.so", "libiomp5.so"];
    names.iter().any(|name| file.starts_with(name))
}

/// A function of a module.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Function {
    /// Index of the function's module in [`WindowProfile::modules`].
    pub module: u32,
    /// Name of the function, demangled; `module+0xoffset` if no symbol is known.
    pub name: String,
    /// Address of the function's first byte, in the terms of [`Block::offset`].
    pub start: u64,
    /// True if the name is from a symbol.
    pub named: bool,
}

/// A line of source code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceLine {
    /// Path of the source file, as the debugging information gives it.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u32,
}

/// A function that the compiler has inlined in another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inlined {
    /// Name of the function, demangled.
    pub function: String,
    /// Index of the source line that calls the function; `None` if unknown. The line is in the next function of [`SourceRange::inlined`],
    /// or, for the last one, in the block's function.
    pub called_from: Option<u32>,
}

/// Source of consecutive instructions of a block, from `first` up to the next range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRange {
    /// Index of the range's first instruction in the block, from 0.
    pub first: u32,
    /// Index of the innermost source line; `None` if unknown.
    pub line: Option<u32>,
    /// Functions inlined here, innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inlined: Vec<Inlined>,
}

/// Basic block that was executed in a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Index of the block's module in [`WindowProfile::modules`].
    pub module: u32,
    /// Address of the block's first byte: an offset in the module's file or kernel module, or a linear address in the kernel itself and in
    /// anonymous memory.
    pub offset: u64,
    /// Linear address at which the block was entered, one of several if processes map the code differently.
    pub address: u64,
    /// Index of the function in which the block begins.
    pub function: u32,
    /// True if the block was executed at CPL 0.
    pub kernel: bool,
    /// Width of the code segment in bits: 16, 32 or 64.
    pub bits: u8,
    /// Machine code of the block.
    #[serde(with = "hexadecimal")]
    pub bytes: Vec<u8>,
    /// Number of instructions.
    pub instructions: u32,
    /// Number of data reads in one execution.
    pub loads: u32,
    /// Number of data writes in one execution.
    pub stores: u32,
    /// Number of floating-point operations in one execution, by class.
    pub flops: [u32; FLOP_CLASSES],
    /// Source of the block's instructions, in order; the first range begins at instruction 0. Empty if the source is not known.
    #[serde(rename = "places")]
    pub source_ranges: Vec<SourceRange>,
}

impl Block {
    /// Returns the source of an instruction, by its index in the block; `None` if unknown.
    pub fn source_range(&self, instruction: u32) -> Option<&SourceRange> {
        let ranges = &self.source_ranges;
        let next = ranges.partition_point(|range| range.first <= instruction);
        next.checked_sub(1).map(|index| &ranges[index])
    }
}

/// Counts of a block in one context of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Number of the node.
    pub node: u32,
    /// Index of the context in the list of owners of the node's record in `windows.json`.
    pub context: u32,
    /// Index of the block in [`WindowProfile::blocks`].
    pub block: u32,
    /// Counts of the block.
    pub counts: BlockCounts,
}

/// Call path that was sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// Number of the node.
    pub node: u32,
    /// Index of the context, as in [`Count::context`].
    pub context: u32,
    /// Indices of functions, outermost first. The last one is the one that executed.
    pub functions: Vec<u32>,
    /// Number of samples with this path.
    pub samples: u64,
    /// Times of the samples, picoseconds of virtual time, ascending; empty in profiles that have no times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<u64>,
}

/// A line of memory that vCPUs of a node took from each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContendedLine {
    /// Number of the node.
    pub node: u32,
    /// Guest-physical address of the line.
    pub physical: u64,
    /// Size of the line in bytes.
    pub size: u32,
    /// Linear address of the line in one of the processes that use it.
    pub address: u64,
    /// Variable that has the line's first used byte; `None` where no file's data have the byte, such as on heaps and stacks.
    pub variable: Option<Variable>,
    /// Uses of the line.
    pub uses: Vec<LineUse>,
}

/// A variable of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// Path of the module in the guest.
    pub module: String,
    /// Name of the variable, demangled; `module+0xaddress` if no symbol is known.
    pub name: String,
    /// Offset of the line's first byte from the variable's; negative if the variable begins within the line.
    pub offset: i64,
}

/// What one instruction of one vCPU did with a contended line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineUse {
    /// Number of the vCPU.
    pub vcpu: u16,
    /// Index of the context, as in [`Count::context`].
    pub context: u32,
    /// Index of the instruction's block in [`WindowProfile::blocks`].
    pub block: u32,
    /// Index of the instruction in the block.
    pub instruction: u32,
    /// True if the instruction writes the line.
    pub write: bool,
    /// True if the instruction is locked.
    pub locked: bool,
    /// Bytes of the line that the instruction touched, one bit for each 1/64 of the line.
    pub touched: u64,
    /// Number of times that the line came from another vCPU.
    pub taken: u64,
    /// Cycles in which the vCPU waited for the line.
    pub cycles: u64,
}

/// Profile of one window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowProfile {
    /// Name of the window.
    pub name: String,
    /// Modules of the functions and blocks.
    pub modules: Vec<Module>,
    /// Functions of the blocks and paths.
    pub functions: Vec<Function>,
    /// Source lines of the blocks.
    pub lines: Vec<SourceLine>,
    /// Blocks of all nodes; equal code of a file is one block.
    pub blocks: Vec<Block>,
    /// Counts of the blocks, by node and context.
    pub counts: Vec<Count>,
    /// Sampled call paths.
    pub paths: Vec<Path>,
    /// Lines that vCPUs took from each other, by node; those with the most cycles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contended: Vec<ContendedLine>,
    /// Sentences for the user about missing information.
    pub notes: Vec<String>,
}

/// Contents of the file [`ProfilesFile::NAME`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfilesFile {
    /// Format version, [`ProfilesFile::VERSION`].
    pub version: u32,
    /// Name of the study.
    pub study: String,
    /// Identifier of the study's exact inputs.
    pub study_id: String,
    /// Windows with a profile, in the order in which they opened.
    pub windows: Vec<WindowProfile>,
}

/// Reason why a profile could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The operating system returned an error for the file.
    #[error("cannot {action} the profile {}: {cause}", .file.display())]
    Io {
        /// Path of the profile.
        file: PathBuf,
        /// Name of the action: `read` or `write`.
        action: &'static str,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The file is truncated, damaged, or not a profile.
    #[error("the profile {} is damaged: {cause}", .file.display())]
    Damaged {
        /// Path of the profile.
        file: PathBuf,
        /// Description of the error.
        cause: String,
    },
    /// The format version is one that this program does not read.
    #[error("the profile {} has format version {version}; this program reads version {}", .file.display(), ProfilesFile::VERSION)]
    UnknownVersion {
        /// Path of the profile.
        file: PathBuf,
        /// Format version of the profile.
        version: u64,
    },
}

/// Maximum number of bytes of an unpacked profile, so that a damaged file cannot exhaust memory.
const MOST_BYTES: u64 = 4 << 30;

/// Maximum number of complete executions in a [`Count`]. This limit and the next two keep sums over any file from overflowing; real runs
/// are far below them.
const MOST_EXECUTIONS: u64 = 1 << 46;
/// Maximum number of executions in a [`Count`] that were cut short, and of the instructions in these executions.
const MOST_PARTIAL: u64 = 1 << 62;
/// Maximum number of instructions of a [`Block`] with counts.
const MOST_INSTRUCTIONS: u32 = 1 << 16;

impl ProfilesFile {
    /// Format version that this program writes and reads.
    pub const VERSION: u32 = 1;
    /// Name of the file in a results directory: JSON, compressed by Zstandard.
    pub const NAME: &'static str = "profile.json.zst";

    /// Returns the name of the temporary file that is written and then renamed to [`ProfilesFile::NAME`].
    pub fn partial_name() -> String {
        format!("{}.partial", Self::NAME)
    }

    /// Writes the file. An existing file is replaced as a whole or not at all.
    pub fn write(&self, file: impl AsRef<FilePath>) -> Result<(), ProfileError> {
        let file = file.as_ref();
        let failed = |cause| ProfileError::Io {
            file: file.into(),
            action: "write",
            cause,
        };
        let mut partial = file.as_os_str().to_owned();
        partial.push(".partial");
        let write = || -> io::Result<()> {
            let out = fs::File::create(&partial)?;
            let mut out = zstd::Encoder::new(io::BufWriter::new(out), 3)?;
            serde_json::to_writer(&mut out, self)?;
            out.finish()?.flush()?;
            fs::rename(&partial, file)
        };
        write().map_err(failed)
    }

    /// Reads a file, and checks its version, indices and counts.
    pub fn read(file: impl AsRef<FilePath>) -> Result<ProfilesFile, ProfileError> {
        #[derive(Deserialize)]
        struct Version {
            version: u64,
        }
        let file = file.as_ref();
        let damaged = |cause: String| ProfileError::Damaged {
            file: file.into(),
            cause,
        };
        let input = fs::File::open(file).map_err(|cause| ProfileError::Io {
            file: file.into(),
            action: "read",
            cause,
        })?;
        let unpacked = zstd::Decoder::new(input).map_err(|e| damaged(e.to_string()))?;
        let mut text = Vec::new();
        let mut bounded = io::Read::take(unpacked, MOST_BYTES);
        io::Read::read_to_end(&mut bounded, &mut text).map_err(|e| damaged(e.to_string()))?;
        let Version { version } =
            serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        if version != u64::from(Self::VERSION) {
            return Err(ProfileError::UnknownVersion {
                file: file.into(),
                version,
            });
        }
        let profiles: ProfilesFile =
            serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        for window in &profiles.windows {
            window.check().map_err(damaged)?;
        }
        Ok(profiles)
    }
}

impl WindowProfile {
    /// Checks that indices, the order of source ranges, and counts are possible.
    fn check(&self) -> Result<(), String> {
        let within = |what: &str, index: u32, of: usize| {
            if (index as usize) < of {
                Ok(())
            } else {
                Err(format!(
                    "window {:?} refers to {what} {index}, but has {of}",
                    self.name
                ))
            }
        };
        for function in &self.functions {
            within("module", function.module, self.modules.len())?;
        }
        for block in &self.blocks {
            within("module", block.module, self.modules.len())?;
            within("function", block.function, self.functions.len())?;
            let inlined =
                |range: &SourceRange| range.inlined.iter().filter_map(|i| i.called_from).collect();
            for range in &block.source_ranges {
                let inlined: Vec<u32> = inlined(range);
                for line in range.line.into_iter().chain(inlined) {
                    within("line", line, self.lines.len())?;
                }
            }
            if block
                .source_ranges
                .first()
                .is_some_and(|range| range.first != 0)
                || !block.source_ranges.is_sorted_by(|a, b| a.first < b.first)
            {
                return Err(format!(
                    "places of the block at {:#x} in window {:?} are out of order",
                    block.offset, self.name
                ));
            }
        }
        for count in &self.counts {
            within("block", count.block, self.blocks.len())?;
            let partial = &count.counts.partial;
            let most = [partial.executions, partial.instructions].into_iter().max();
            if count.counts.executions > MOST_EXECUTIONS
                || most > Some(MOST_PARTIAL)
                || self.blocks[count.block as usize].instructions > MOST_INSTRUCTIONS
            {
                return Err(format!(
                    "window {:?} counts more for block {} than any run can have",
                    self.name, count.block
                ));
            }
        }
        for of_line in self.contended.iter().flat_map(|line| &line.uses) {
            within("block", of_line.block, self.blocks.len())?;
        }
        for path in &self.paths {
            for &function in &path.functions {
                within("function", function, self.functions.len())?;
            }
        }
        Ok(())
    }
}

/// Serialization of bytes as hexadecimal text.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(2 * bytes.len());
        for byte in bytes {
            text.push_str(&format!("{byte:02x}"));
        }
        serializer.serialize_str(&text)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
        let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        });
        pairs.collect::<Option<_>>().ok_or_else(|| {
            serde::de::Error::custom("machine code must be pairs of hexadecimal digits")
        })
    }
}
