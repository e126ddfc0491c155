//! Why a kernel's image cannot be used.

use thiserror::Error;

/// A problem of the kernel's file.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KernelError {
    /// No ELF file for x86-64.
    #[error(
        "the guest's kernel is no ELF file for x86-64: {0}; give the vmlinux of the guest image"
    )]
    Elf(String),
    /// A section is missing.
    #[error(
        "the guest's kernel has no section {0}; use a kernel that is built with CONFIG_DEBUG_INFO_BTF"
    )]
    Section(&'static str),
    /// Type information cannot be read.
    #[error(
        "the section .BTF of the guest's kernel is damaged at byte {offset:#x}: {what}; build the image anew"
    )]
    Btf {
        /// Offset of the damage in the section, bytes.
        offset: usize,
        /// Description of the damage.
        what: &'static str,
    },
    /// A type or a member is missing.
    #[error("the guest's kernel has no {0}; only kernels of the series 6.1 are known")]
    Type(String),
    /// The symbol table cannot be found.
    #[error(
        "the guest's kernel has no symbol table of the kind of Linux 6.1 ({0}); use a kernel that is built with CONFIG_KALLSYMS_ALL"
    )]
    Symbols(&'static str),
}
