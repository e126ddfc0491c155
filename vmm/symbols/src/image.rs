//! ELF file of the kernel, and the addresses at which its segments are loaded.

use std::ops::Range;

use object::read::elf::{ElfFile64, ProgramHeader};
use object::{LittleEndian, Object, ObjectSection, SectionFlags, elf};

use crate::error::KernelError;

/// Segment of the kernel in memory: linear and guest-physical address, and size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub linear: u64,
    pub physical: u64,
    pub size: u64,
    /// Offset of the segment in the file. `file_size` is the segment's length in the file, bytes.
    pub offset: u64,
    pub file_size: u64,
}

impl Segment {
    /// Returns the linear address of a physical address; `None` outside the segment.
    pub fn linear(&self, physical: u64) -> Option<u64> {
        let within = physical.checked_sub(self.physical)?;
        (within < self.size).then(|| self.linear.wrapping_add(within))
    }

    /// Returns the physical address of a linear address; `None` outside the segment.
    pub fn physical(&self, linear: u64) -> Option<u64> {
        let within = linear.checked_sub(self.linear)?;
        (within < self.size).then(|| self.physical.wrapping_add(within))
    }
}

/// The kernel's ELF file.
#[derive(Debug)]
pub(crate) struct KernelImage<'a> {
    bytes: &'a [u8],
    elf: ElfFile64<'a, LittleEndian>,
    pub segments: Vec<Segment>,
}

impl<'a> KernelImage<'a> {
    /// Parses the headers of the file.
    pub fn new(bytes: &'a [u8]) -> Result<Self, KernelError> {
        let elf = ElfFile64::<LittleEndian>::parse(bytes)
            .map_err(|error| KernelError::Elf(error.to_string()))?;
        if elf.elf_header().e_machine.get(LittleEndian) != elf::EM_X86_64 {
            return Err(KernelError::Elf("another processor's".into()));
        }
        let segments = elf.elf_program_headers().iter();
        let segments = segments
            .filter(|header| header.p_type(LittleEndian) == elf::PT_LOAD)
            .map(|header| Segment {
                linear: header.p_vaddr(LittleEndian),
                physical: header.p_paddr(LittleEndian),
                size: header.p_memsz(LittleEndian),
                offset: header.p_offset(LittleEndian),
                file_size: header.p_filesz(LittleEndian),
            })
            // The segment of per-CPU variables has linear addresses from 0, because it is only a template.
            .filter(|segment| segment.linear >> 63 != 0)
            .collect();
        Ok(Self {
            bytes,
            elf,
            segments,
        })
    }

    /// Returns the contents of a section.
    pub fn section(&self, name: &'static str) -> Result<&'a [u8], KernelError> {
        let section = self.elf.section_by_name(name);
        section
            .and_then(|section| section.data().ok())
            .ok_or(KernelError::Section(name))
    }

    /// Returns the linear addresses of a section.
    pub fn range(&self, name: &'static str) -> Result<Range<u64>, KernelError> {
        let section = self.elf.section_by_name(name);
        let section = section.ok_or(KernelError::Section(name))?;
        Ok(section.address()..section.address().saturating_add(section.size()))
    }

    /// Returns the linear addresses of all executable sections.
    pub fn code(&self) -> Vec<Range<u64>> {
        let executable = |flags| match flags {
            SectionFlags::Elf { sh_flags, .. } => sh_flags.0 & elf::SHF_EXECINSTR.0 != 0,
            _ => false,
        };
        let sections = self.elf.sections();
        let code = sections.filter(|section| executable(section.flags()));
        code.map(|section| section.address()..section.address().saturating_add(section.size()))
            .collect()
    }

    /// Returns the physical address of a linear address; `None` outside all segments.
    pub fn physical(&self, linear: u64) -> Option<u64> {
        self.segments.iter().find_map(|s| s.physical(linear))
    }

    /// Returns the `len` bytes of the file that are loaded at a linear address.
    pub fn bytes(&self, linear: u64, len: u64) -> Option<&'a [u8]> {
        let mut segments = self.segments.iter();
        segments.find_map(|segment| {
            let within = linear.checked_sub(segment.linear)?;
            let end = within.checked_add(len)?;
            if end > segment.file_size {
                return None;
            }
            let from = usize::try_from(segment.offset.checked_add(within)?).ok()?;
            let to = from.checked_add(usize::try_from(len).ok()?)?;
            self.bytes.get(from..to)
        })
    }
}
