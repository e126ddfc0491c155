//! The interpreter's view of a vCPU: hot state first.

use std::ptr::NonNull;

use nodescope_engine::Platform;
use nodescope_plugin_api::{Context, Counters, L0Update};
use nodescope_x86::bits::rflags;
use nodescope_x86::{Control, Debug, Events, Exception, FxImage, Msrs, Segments, Time, Vector256};

use crate::code::Code;
use crate::debug::Breakpoints;
use crate::features::Features;
use crate::lookup::BlockTable;
use crate::mmu::PageWalkCache;
use crate::op::{Op, RIP, Trap, attr};
use crate::softmmu::{DataTlb, InstructionL0};

/// Operating mode as far as decoding and address arithmetic care (SDM vol. 3A §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// 16-bit code: real mode or a 16-bit code segment.
    Bits16,
    /// 32-bit code, protected or compatibility mode.
    Bits32,
    /// 64-bit mode.
    Bits64,
}

impl Mode {
    /// Returns the bitness that the decoder takes.
    pub fn bits(self) -> u32 {
        match self {
            Mode::Bits16 => 16,
            Mode::Bits32 => 32,
            Mode::Bits64 => 64,
        }
    }
}

/// The interpreter's vCPU.
#[repr(C)]
pub struct Cpu {
    /// General registers, then the constant zero, then the address of the current block's first instruction.
    pub gpr: [u64; 18],
    /// Flags, always exact.
    pub rflags: u64,
    /// Segment bases as address arithmetic uses them (ES, CS, SS, DS, FS, GS, zero): in 64-bit mode all but FS and GS
    /// are zero.
    pub segment_base: [u64; 7],
    /// The current block ends here; cleared to end it early (self-modifying code).
    pub block_end: *const Op,
    /// The first operation of the running block, while [`Cpu::current`] is one of it.
    pub block_start: *const Op,
    /// The operation that runs, or ran last.
    pub current: *const Op,
    /// Softmmu TLB of loads and stores, and L0 filter cache for data.
    pub data_tlb: DataTlb,
    /// L0 filter cache for instructions, while a model is attached.
    pub instruction_l0: InstructionL0,

    /// Vector registers of the guest.
    pub vector: Vector256,
    /// x87 state and MXCSR.
    pub fx: FxImage,

    /// Current privilege level.
    pub cpl: u8,
    /// Mode in which instructions are decoded.
    pub mode: Mode,
    /// Segment registers and tables; `segments.data[i].base` is authoritative, `segment_base` derived.
    pub segments: Segments,
    /// Control registers (CR8 lives in the local APIC).
    pub control: Control,
    /// Debug registers of the guest.
    pub debug: Debug,
    /// The breakpoints that the debug registers enable.
    pub breakpoints: Breakpoints,
    /// Model-specific registers of the guest.
    pub msrs: Msrs,
    /// Shadow, NMI, activity.
    pub events: Events,
    /// Clocks at the last synchronisation; see [`Cpu::now`].
    pub time: Time,

    /// Why the last [`Trap`] was raised.
    pub exception: Option<Exception>,
    /// Reason, set instead of `exception`, for which the study must stop.
    pub stop: Option<String>,

    /// Page-walk cache.
    pub page_walks: PageWalkCache,
    /// Decoded blocks that this vCPU has found.
    pub blocks: BlockTable,
    /// Decoded and translated code of the node, valid while `run` is on the stack.
    pub code: Option<NonNull<Code>>,
    /// RAM of the guest.
    pub ram: nodescope_memory::Ram,
    /// CPUID template of this vCPU.
    pub cpuid: nodescope_x86::CpuidTable,
    /// The instructions that CPUID announces.
    pub features: Features,
    /// Number within the node.
    pub id: u16,
    /// Seed of RDRAND and RDSEED and how many values were drawn.
    pub random: crate::ops::random::RandomSource,
    /// State that vector and x87 instructions share with the host's registers.
    pub simd: crate::ops::simd::SimdState,
    /// Translator's part of the vCPU: translated code and its state.
    pub native: crate::native::Native,
    /// Bounce buffer for vector operands that are not contiguous in host memory.
    pub scratch: Scratch,

    /// The machine, valid while `run` is on the stack.
    pub platform: Option<NonNull<dyn Platform>>,
    /// Model attached: references are reported and events counted.
    pub attached: bool,
    /// Address space of the running code, valid while attached and known.
    pub context: Context,
    /// True if the address space was requested from the platform since the model was attached.
    pub context_known: bool,
    /// Counts since the last flush: user, kernel.
    pub counters: [Counters; 2],
    /// Scratch for a model's answer.
    pub updates: Vec<L0Update>,
    /// Cycles added to the clock by models and by long instructions since the last synchronisation.
    pub stall: u64,
    /// The part of `stall` that models charged.
    pub model_stall: u64,
    /// Instructions retired up to the current block, since the last synchronisation.
    pub retired: u64,
    /// Cycles an instruction takes, in 1/65536.
    pub cpi: crate::cpi::Cpi,
    /// Time slice and budget of the running vCPU.
    pub time_slice: crate::time_slice::TimeSlice,
    /// True if the access just made went to the platform: the run loop must check the machine after this instruction.
    pub touched_platform: bool,
    /// Sum of the code maps' marks when this vCPU last looked.
    pub marks_seen: u64,
    /// The rewrites of each region's code map when this vCPU last looked.
    pub rewrites_seen: Vec<u64>,
    /// Distinguishes blocks that decode or translate differently at the same address; see [`Cpu::block_key`].
    pub code_key: u8,
}

/// A buffer for operands that cross pages or lie in device memory.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Scratch(pub [u8; 512]);

/// Unsigned integers that general registers and memory operands hold.
pub trait Int: Copy + PartialEq + Eq + std::fmt::Debug + 'static {
    /// Width in bits.
    const BITS: u32;
    /// Width in bytes.
    const BYTES: usize = (Self::BITS / 8) as usize;
    /// Zero-extends the value to 64 bits.
    fn to_u64(self) -> u64;
    /// Truncates a value to this width.
    fn from_u64(value: u64) -> Self;
}

macro_rules! int {
    ($($t:ty),*) => {$(
        impl Int for $t {
            const BITS: u32 = <$t>::BITS;
            #[inline(always)]
            fn to_u64(self) -> u64 { self as u64 }
            #[inline(always)]
            fn from_u64(value: u64) -> Self { value as $t }
        }
    )*};
}
int!(u8, u16, u32, u64);

impl Cpu {
    /// Reads a general register given as a byte offset into the register file.
    #[inline(always)]
    pub fn reg<T: Int>(&self, offset: u8) -> T {
        debug_assert!(usize::from(offset) + T::BYTES <= 128);
        // SAFETY: lowering only makes offsets of one of the 16 registers (or of AH, CH, DH, BH with an 8-bit width), so the
        // read lies within `gpr`; any bit pattern is a valid integer; unaligned reads are allowed.
        unsafe {
            self.gpr
                .as_ptr()
                .cast::<u8>()
                .add(offset.into())
                .cast::<T>()
                .read_unaligned()
        }
    }

    /// Writes a general register given as a byte offset; a 32-bit write clears the upper half (SDM vol. 1 §3.4.1.1).
    #[inline(always)]
    pub fn set_reg<T: Int>(&mut self, offset: u8, value: T) {
        debug_assert!(usize::from(offset) + T::BYTES <= 128);
        let at = self.gpr.as_mut_ptr().cast::<u8>();
        // SAFETY: as in `reg`; 32- and 64-bit registers start at multiples of 8, so the 8-byte write stays within its slot.
        unsafe {
            let at = at.add(offset.into());
            if T::BITS == 32 {
                at.cast::<u64>().write_unaligned(value.to_u64())
            } else {
                at.cast::<T>().write_unaligned(value)
            }
        }
    }

    /// Returns the effective address of the memory operand without segment base (what LEA computes before truncation).
    #[inline(always)]
    pub fn offset(&self, op: &Op) -> u64 {
        // SAFETY: lowering only makes `base` and `index` up to RIP (17), the last element.
        let (base, index) = unsafe {
            (
                *self.gpr.get_unchecked(op.base as usize),
                *self.gpr.get_unchecked(op.index as usize),
            )
        };
        let sum = base
            .wrapping_add(index << op.scale)
            .wrapping_add(op.disp as u64);
        if op.attr & (attr::ADDRESS_32 | attr::ADDRESS_16) == 0 {
            sum
        } else if op.attr & attr::ADDRESS_32 != 0 {
            sum & 0xffff_ffff
        } else {
            sum & 0xffff
        }
    }

    /// Returns the linear address of the memory operand.
    #[inline(always)]
    pub fn linear(&self, op: &Op) -> u64 {
        if op.attr & (attr::ADDRESS_32 | attr::ADDRESS_16) != 0 {
            return self.linear_narrow(op);
        }
        // SAFETY: lowering only makes `segment` up to FLAT (6), the last element, and `base` and `index` up to RIP (17).
        let (segment, base, index) = unsafe {
            (
                *self.segment_base.get_unchecked(op.segment as usize),
                *self.gpr.get_unchecked(op.base as usize),
                *self.gpr.get_unchecked(op.index as usize),
            )
        };
        segment
            .wrapping_add(base)
            .wrapping_add(index << op.scale)
            .wrapping_add(op.disp as u64)
    }

    /// Returns the result of [`Cpu::linear`] for 16- and 32-bit addresses, which 64-bit code hardly uses: kept out of the handlers.
    #[cold]
    #[inline(never)]
    fn linear_narrow(&self, op: &Op) -> u64 {
        // SAFETY: lowering only makes `segment` up to FLAT (6), the last element.
        let base = unsafe { *self.segment_base.get_unchecked(op.segment as usize) };
        let sum = base.wrapping_add(self.offset(op));
        if self.mode == Mode::Bits64 {
            sum
        } else {
            sum & 0xffff_ffff
        }
    }

    /// Returns the address of an instruction.
    #[inline(always)]
    pub fn ip(&self, op: &Op) -> u64 {
        self.gpr[RIP as usize].wrapping_add(op.offset.into())
    }

    /// Returns the address of the instruction after this one.
    #[inline(always)]
    pub fn next_ip(&self, op: &Op) -> u64 {
        self.gpr[RIP as usize].wrapping_add(u64::from(op.offset) + u64::from(op.len))
    }

    /// Sets the address of the next instruction; return `Flow::Branch` or another ending flow after it.
    #[inline(always)]
    pub fn set_ip(&mut self, ip: u64) {
        self.gpr[RIP as usize] = ip;
    }

    /// Replaces the six status flags.
    #[inline(always)]
    pub fn set_status_flags(&mut self, flags: u64) {
        self.rflags = self.rflags & !rflags::STATUS | flags & rflags::STATUS;
    }

    /// Returns the decoded and translated code of the node.
    #[inline(always)]
    pub fn code(&mut self) -> &mut Code {
        self.blocks_and_code().1
    }

    /// Returns [`Cpu::code`], and the blocks that this vCPU has found.
    #[inline(always)]
    pub fn blocks_and_code(&mut self) -> (&mut BlockTable, &mut Code) {
        let mut code = self.code.expect("called only while the vCPU runs");
        // SAFETY: code that sets the pointer holds the lock, and clears the pointer before it gives up the lock; the result borrows
        // `self`, the only access to the pointer.
        (&mut self.blocks, unsafe { code.as_mut() })
    }

    /// Raises an exception: return the trap from the handler.
    #[cold]
    pub fn raise(&mut self, exception: Exception) -> Trap {
        self.exception = Some(exception);
        Trap
    }

    /// Stops the study, since the engine does not implement something.
    #[cold]
    pub fn unsupported(&mut self, what: impl Into<String>) -> Trap {
        self.stop = Some(what.into());
        Trap
    }

    /// Returns whether paging is on and the code runs in 64-bit mode or compatibility mode.
    pub fn long_mode(&self) -> bool {
        self.control.efer & nodescope_x86::bits::efer::LMA != 0
    }
}
