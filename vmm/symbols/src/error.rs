//! Reasons why the file of a guest's kernel cannot be used.

use thiserror::Error;

/// A problem of the kernel's file.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KernelError {
    /// The file is no ELF file for x86-64.
    #[error(
        "the guest's kernel is no ELF file for x86-64: {0}; give the vmlinux of the guest image"
    )]
    Elf(String),
    /// The file has no section of this name, or the section cannot be read.
    #[error(
        "the guest's kernel has no section {0}; use a kernel that is built with CONFIG_DEBUG_INFO_BTF"
    )]
    Section(&'static str),
    /// The section with type information, `.BTF`, is damaged.
    #[error(
        "the section .BTF of the guest's kernel is damaged at byte {offset:#x}: {what}; build the image anew"
    )]
    Btf {
        /// Offset of the damage in the section, bytes.
        offset: usize,
        /// Description of the damage.
        what: &'static str,
    },
    /// A type, member, enumerator or symbol of this description is missing, or the type is unusable.
    #[error("the guest's kernel has no {0}; only kernels of the series 6.1 are known")]
    Type(String),
    /// The symbol table (kallsyms) cannot be found, for the given reason.
    #[error(
        "the guest's kernel has no symbol table of the kind of Linux 6.1 ({0}); use a kernel that is built with CONFIG_KALLSYMS_ALL"
    )]
    Symbols(&'static str),
}
