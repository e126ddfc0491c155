//! Names of guest code, found from outside the guest: the file, function and source line of executed code, and the calls that led to
//! the code.
//!
//! The guest needs no agent. [`GuestKernel`] reads the kernel's own structures in the guest's memory. [`Symbolizer`] reads the files that
//! these structures name. [`Unwinder`] reads stacks. `README.md` describes what is read, why reading is safe, and the limits.

mod btf;
mod child;
mod debug;
mod demangle;
mod elf;
mod error;
mod files;
mod frames;
mod image;
mod kallsyms;
mod kernel;
mod layout;
mod limits;
mod memory;
mod modules;
mod names;
mod page_cache;
mod plt;
mod process;
mod reader;
mod symbolizer;
mod tasks;
#[cfg(test)]
mod tests;
mod unwind;
mod wire;
pub use child::serve_names;
pub use error::KernelError;
pub use files::{Files, HOST_FILE_LIMIT, ListedFiles, MemoryFiles, RootImage, Sources};
pub use kallsyms::{KernelSymbol, KernelSymbols};
pub use kernel::{FileId, FilePage, GuestKernel};
pub use limits::{Limit, Lost};
pub use memory::{PhysicalMemory, read_linear, read_up_to, translate};
pub use modules::{Module, ModuleSymbol};
pub use names::{Names, SERVE_ARGUMENT};
pub use page_cache::FILE_LIMIT;
pub use symbolizer::{Frame, Location, SourceLine, Symbolizer};
pub use tasks::Task;
pub use unwind::{Call, DEPTH, Registers, Sample, Unwinder};
