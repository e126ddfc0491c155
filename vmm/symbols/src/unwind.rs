//! Call paths of user code, from a copy of the thread's stack.
//!
//! Compilers describe in `.eh_frame` how to unwind each function's frame (System V ABI, AMD64, 3.7). The crate `framehop` follows these
//! descriptions, and frame pointers in code without descriptions.

use std::collections::BTreeMap;
use std::ops::Range;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use serde::{Deserialize, Serialize};

use crate::elf::{Elf, Section};
use crate::files::Files;
use crate::frames;
use crate::kernel::{FileId, FilePage, GuestKernel};
use crate::limits::{KEPT, Limit, Lost};
use crate::memory::{PhysicalMemory, translate};

/// Maximum length of a call path, in calls.
pub const DEPTH: usize = 1024;
/// Maximum sum of the bytes of descriptions of the `framehop` modules that are kept. A program that is started again and again has new
/// base addresses each time.
const INDEXED: usize = 256 << 20;
/// End of the linear addresses of user code.
const USER_END: u64 = 1 << 47;

/// Registers at the beginning of a call path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registers {
    /// Instruction pointer, RIP.
    pub ip: u64,
    /// Stack pointer, RSP.
    pub sp: u64,
    /// RBP, the frame pointer if the code uses one.
    pub bp: u64,
}

/// Registers and stack of a guest's thread at one time.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Registers of the thread.
    pub registers: Registers,
    /// Copy of the stack from the stack pointer upwards.
    pub stack: &'a [u8],
}

/// A call that has not returned yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Return address of the call.
    pub address: u64,
    /// File and offset, or other origin, of the call's last byte, which is the byte before the return address.
    pub page: FilePage,
}

/// File that a process has mapped: the linear addresses, and the base to which link-time addresses are added.
struct Mapped {
    range: Range<u64>,
    file: FileId,
    base: u64,
}

/// ELF file with the sections that unwinding needs.
struct Sections {
    elf: Elf,
    frames: Section,
    got: Range<u64>,
}

/// Unwinder, which finds call paths. Each file is read once.
#[derive(Default)]
pub struct Unwinder {
    files: BTreeMap<FileId, Option<Sections>>,
    /// Sum of the bytes of the files in `files`.
    kept: u64,
    /// Modules for `framehop`, by file and base address.
    modules: BTreeMap<(FileId, u64), Module<Section>>,
    /// Sum of the bytes of the descriptions in `modules`.
    indexed: usize,
    lost: Vec<Lost>,
}

impl GuestKernel {
    /// Finds the file, module or kernel to which the code at a linear address belongs, in the address space of CR3.
    pub fn file_at(&self, memory: &dyn PhysicalMemory, cr3: u64, linear: u64) -> Option<FilePage> {
        self.file_of(memory, translate(memory, cr3, linear)?)
    }
}

impl Unwinder {
    /// Creates an unwinder that has read no file yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the files that have lost their call paths since the last call.
    pub fn take_lost(&mut self) -> Vec<Lost> {
        std::mem::take(&mut self.lost)
    }

    /// Finds the calls on a stack, innermost first, without the instruction pointer itself. `resolve` returns the origin of code at
    /// an address.
    ///
    /// `resolve` is called once for each ELF file of a path. Further offsets in the file are computed, because their pages may not be
    /// mapped yet.
    ///
    /// The path ends at the outermost function, at the end of the copy of the stack, at a return address for which `resolve` returns no
    /// user code, or after [`DEPTH`] calls.
    pub fn unwind(
        &mut self,
        files: &dyn Files,
        sample: &Sample<'_>,
        resolve: &mut dyn FnMut(u64) -> Option<FilePage>,
    ) -> Vec<Call> {
        let Registers { ip, sp, bp } = sample.registers;
        let mut read = |address: u64| -> Result<u64, ()> {
            let from = address.checked_sub(sp).ok_or(())?;
            let from = usize::try_from(from).map_err(|_| ())?;
            let word = sample.stack.get(from..).and_then(|rest| rest.first_chunk());
            word.map(|word| u64::from_le_bytes(*word)).ok_or(())
        };
        let mut registers = UnwindRegsX86_64::new(ip, sp, bp);
        // The cache is for this sample only. With a cache for several samples, a path would depend on the samples before.
        let mut cache = CacheX86_64::new();
        let mut process = UnwinderX86_64::new();
        let mut known: Vec<Mapped> = Vec::new();
        let mut path = Vec::new();
        let mut frame = FrameAddress::from_instruction_pointer(ip);
        while path.len() < DEPTH {
            // For a return address, the lookup address is one less, because a call may be the last instruction of its function.
            let address = frame.address_for_lookup();
            if address >= USER_END {
                break;
            }
            let mapped = known.iter().find(|mapped| mapped.range.contains(&address));
            let page = match mapped {
                Some(mapped) => self.file_page(mapped, address),
                None => resolve(address),
            };
            let Some(page @ (FilePage::File { .. } | FilePage::Anonymous)) = page else {
                break;
            };
            if let FilePage::File { file, offset } = &page
                && mapped.is_none()
                && let Some(module) = self.module(files, file, address, *offset)
            {
                known.push(Mapped {
                    range: module.avma_range(),
                    file: file.clone(),
                    base: module.base_avma(),
                });
                process.add_module(module);
            }
            if let FrameAddress::ReturnAddress(address) = frame {
                let address = address.get();
                path.push(Call { address, page });
            }
            let next = process.unwind_frame(frame, &mut registers, &mut cache, &mut read);
            let next = next
                .ok()
                .flatten()
                .and_then(FrameAddress::from_return_address);
            let Some(next) = next else { break };
            frame = next;
        }
        path
    }

    /// Returns the file and the offset of a linear address in a mapped file.
    fn file_page(&self, mapped: &Mapped, address: u64) -> Option<FilePage> {
        let sections = self.files.get(&mapped.file)?.as_ref()?;
        Some(FilePage::File {
            offset: sections.elf.offset(address - mapped.base)?,
            file: mapped.file.clone(),
        })
    }

    /// Returns the `framehop` module of a file that a process has mapped so that the file's `offset` is at the linear `address`.
    fn module(
        &mut self,
        files: &dyn Files,
        file: &FileId,
        address: u64,
        offset: u64,
    ) -> Option<Module<Section>> {
        if !self.files.contains_key(file) {
            let sections = self.read(files, file);
            let sections = sections.unwrap_or_else(|limit| {
                let module = file.guest_path();
                self.lost.push(Lost { module, limit });
                None
            });
            self.files.insert(file.clone(), sections);
        }
        let sections = self.files.get(file)?.as_ref()?;
        let base = address.checked_sub(sections.elf.address(offset)?)?;
        let linked = sections.elf.range();
        let mapped = base.checked_add(linked.start)?..base.checked_add(linked.end)?;
        if mapped.end > USER_END || !mapped.contains(&address) {
            return None;
        }
        let key = (file.clone(), base);
        if !self.modules.contains_key(&key) {
            self.indexed += sections.frames.len();
            if self.indexed > INDEXED {
                self.modules.clear();
                self.indexed = sections.frames.len();
            }
        }
        let module = self.modules.entry(key).or_insert_with_key(|(file, _)| {
            let frames = Some(&sections.frames).filter(|frames| !frames.is_empty());
            let eh_frame_svma = frames.map(Section::addresses);
            let eh_frame = frames.cloned();
            // The module has no `.eh_frame_hdr`, because gimli 0.33 subtracts unchecked if the table of a damaged file has an
            // address before the section.
            let info = ExplicitModuleSectionInfo {
                eh_frame_svma,
                eh_frame,
                got_svma: Some(sections.got.clone()).filter(|got| !got.is_empty()),
                ..Default::default()
            };
            Module::new(file.path.clone(), mapped, base, info)
        });
        Some(module.clone())
    }

    fn read(&mut self, files: &dyn Files, file: &FileId) -> Result<Option<Sections>, Limit> {
        let Some(bytes) = files.read(file) else {
            return Ok(None);
        };
        let kept = self.kept + bytes.len() as u64;
        if kept > KEPT {
            return Err(Limit::Kept);
        }
        let Some(elf) = Elf::new(bytes)? else {
            return Ok(None);
        };
        let frames = elf.loaded(".eh_frame");
        frames::check(&frames)?;
        self.kept = kept;
        Ok(Some(Sections {
            frames,
            got: elf.loaded(".got").addresses(),
            elf,
        }))
    }
}
