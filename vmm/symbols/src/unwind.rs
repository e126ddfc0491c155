//! Call paths of user code, from a copy of its stack.
//!
//! Compilers describe in `.eh_frame` how to leave each function (System V ABI, AMD64, 3.7). The crate `framehop` follows these
//! descriptions, and frame pointers where there are none.

use std::collections::BTreeMap;
use std::ops::Range;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};

use crate::elf::{Elf, Section};
use crate::files::Files;
use crate::kernel::{FileId, FilePage, GuestKernel};
use crate::memory::{PhysicalMemory, translate};

/// Longest call path, in calls.
pub const DEPTH: usize = 1024;
/// Bytes of files that are kept, as the symbolizer's.
const MOST_BYTES: u64 = 4 << 30;
/// Addresses of user code end here.
const USER_END: u64 = 1 << 47;

/// Registers that a call path begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Instruction pointer, RIP.
    pub ip: u64,
    /// Stack pointer, RSP.
    pub sp: u64,
    /// Frame pointer, where the code keeps one.
    pub bp: u64,
}

/// A thread of the guest at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Registers of the thread.
    pub registers: Registers,
    /// The stack from the stack pointer upwards.
    pub stack: &'a [u8],
}

/// A call that has not returned yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Return address of the call.
    pub address: u64,
    /// File and offset, or other origin, of the call's last byte, which is the byte before the return address.
    pub page: FilePage,
}

/// File at the addresses where a process has mapped it.
struct Mapped {
    range: Range<u64>,
    file: FileId,
    base: u64,
}

/// Sections of a file with the rules to leave its functions.
struct Sections {
    elf: Elf,
    frames: Section,
    got: Range<u64>,
}

/// Finds call paths. Each file is read once.
#[derive(Default)]
pub struct Unwinder {
    files: BTreeMap<FileId, Option<Sections>>,
    /// Bytes of the files that are kept.
    kept: u64,
    /// Files at the addresses where they have been met.
    modules: BTreeMap<(FileId, u64), Module<std::sync::Arc<[u8]>>>,
}

impl GuestKernel {
    /// Finds what the code at a linear address is a part of, in the address space of CR3.
    pub fn file_at(&self, memory: &dyn PhysicalMemory, cr3: u64, linear: u64) -> Option<FilePage> {
        self.file_of(memory, translate(memory, cr3, linear)?)
    }
}

impl Unwinder {
    /// Creates one that knows no file yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Finds the calls on a stack, innermost first, without the instruction pointer itself. `resolve` returns what an address belongs to.
    ///
    /// `resolve` is called once for each file of a path: code that calls may lie in pages that the process has not mapped yet.
    ///
    /// The path ends at the outermost function, where the copy of the stack ends, where a return address is none of user code that
    /// `resolve` knows, and after [`DEPTH`] calls.
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
        // Only for this sample: rules of a cache that outlives it would depend on what came before.
        let mut cache = CacheX86_64::new();
        let mut process = UnwinderX86_64::new();
        let mut known: Vec<Mapped> = Vec::new();
        let mut path = Vec::new();
        let mut frame = FrameAddress::from_instruction_pointer(ip);
        while path.len() < DEPTH {
            // A call may be the last instruction of its function: the address before counts.
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

    /// Finds the place in a file of an address of code.
    fn file_page(&self, mapped: &Mapped, address: u64) -> Option<FilePage> {
        let sections = self.files.get(&mapped.file)?.as_ref()?;
        Some(FilePage::File {
            offset: sections.elf.offset(address - mapped.base)?,
            file: mapped.file.clone(),
        })
    }

    /// Finds a file where a process has mapped it, for the unwinder.
    fn module(
        &mut self,
        files: &dyn Files,
        file: &FileId,
        address: u64,
        offset: u64,
    ) -> Option<Module<std::sync::Arc<[u8]>>> {
        let kept = &mut self.kept;
        let sections = self.files.entry(file.clone()).or_insert_with(|| {
            let bytes = files.read(file)?;
            let size = bytes.len() as u64;
            if *kept + size > MOST_BYTES {
                return None;
            }
            let elf = Elf::new(bytes)?;
            *kept += size;
            Some(Sections {
                frames: elf.section(".eh_frame"),
                got: elf.section(".got").0,
                elf,
            })
        });
        let sections = sections.as_ref()?;
        let base = address.checked_sub(sections.elf.address(offset)?)?;
        let linked = sections.elf.range();
        let mapped = base.checked_add(linked.start)?..base.checked_add(linked.end)?;
        if mapped.end > USER_END || !mapped.contains(&address) {
            return None;
        }
        let some = |section: &Section| {
            let (range, bytes) = section.clone();
            match bytes.is_empty() {
                true => (None, None),
                false => (Some(range), Some(bytes)),
            }
        };
        let module = self
            .modules
            .entry((file.clone(), base))
            .or_insert_with_key(|(file, _)| {
                let (eh_frame_svma, eh_frame) = some(&sections.frames);
                // Without `.eh_frame_hdr`: gimli 0.33 subtracts unchecked where the table of a damaged file leads before the section.
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
}
