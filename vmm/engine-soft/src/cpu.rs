//! State of a vCPU for the interpreter and translated code, with the most frequently used fields first.

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

/// Operating mode, as far as decoding and address arithmetic depend on it (SDM vol. 3A §2.2).
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
    /// Returns the number of bits for the decoder: 16, 32 or 64.
    pub fn bits(self) -> u32 {
        match self {
            Mode::Bits16 => 16,
            Mode::Bits32 => 32,
            Mode::Bits64 => 64,
        }
    }
}

/// State of a vCPU on the portable engine.
#[repr(C)]
pub struct Cpu {
    /// The 16 general registers, then the constant zero, then the instruction pointer of the current block's first instruction.
    pub gpr: [u64; 18],
    /// RFLAGS. The six status flags are stale while translated code runs, which has them in the host's flags or in the field `native`.
    pub rflags: u64,
    /// Segment bases for address arithmetic (ES, CS, SS, DS, FS, GS, zero). In 64-bit mode, all but those of FS and GS are zero.
    pub segment_base: [u64; 7],
    /// End of the current block's operations. Cleared to end the block early, as after self-modifying code.
    pub block_end: *const Op,
    /// First operation of the running block. Valid while [`Cpu::current`] is an operation of that block.
    pub block_start: *const Op,
    /// The operation that runs now, or ran last.
    pub current: *const Op,
    /// Softmmu TLB of loads and stores, and L0 filter cache for data.
    pub data_tlb: DataTlb,
    /// L0 filter cache for instructions, which is used while a model is attached.
    pub instruction_l0: InstructionL0,

    /// Vector registers of the guest.
    pub vector: Vector256,
    /// x87 state and MXCSR.
    pub fx: FxImage,

    /// Current privilege level.
    pub cpl: u8,
    /// Mode in which instructions are decoded and executed.
    pub mode: Mode,
    /// Segment registers and descriptor tables. `segments.data[i].base` is the guest's base, from which `segment_base` is derived.
    pub segments: Segments,
    /// Control registers, except CR8, which is in the local APIC.
    pub control: Control,
    /// Debug registers of the guest.
    pub debug: Debug,
    /// Breakpoints that the debug registers enable.
    pub breakpoints: Breakpoints,
    /// Model-specific registers of the guest.
    pub msrs: Msrs,
    /// Interrupt shadow, NMI state and activity state.
    pub events: Events,
    /// Clock and instruction count at the last synchronisation; see [`Cpu::now`].
    pub time: Time,

    /// Exception that the last [`Trap`] raised.
    pub exception: Option<Exception>,
    /// Reason to stop the study, which a [`Trap`] sets instead of `exception`.
    pub stop: Option<String>,

    /// Page-walk cache.
    pub page_walks: PageWalkCache,
    /// Block table of this vCPU: decoded blocks that it has found.
    pub blocks: BlockTable,
    /// Decoded and translated code of the node. Set only during `run`.
    pub code: Option<NonNull<Code>>,
    /// RAM of the guest.
    pub ram: nodescope_memory::Ram,
    /// CPUID table of this vCPU.
    pub cpuid: nodescope_x86::CpuidTable,
    /// Features that CPUID announces.
    pub features: Features,
    /// Index of the vCPU within the node.
    pub id: u16,
    /// Seed of RDRAND and RDSEED, and the number of values drawn.
    pub random: crate::ops::random::RandomSource,
    /// State for vector and x87 instructions that run in the host's registers.
    pub simd: crate::ops::simd::SimdState,
    /// The translator's state of the vCPU.
    pub native: crate::native::Native,
    /// Bounce buffer for vector operands that are not contiguous in host memory.
    pub scratch: Scratch,

    /// The platform. Set only during `run`.
    pub platform: Option<NonNull<dyn Platform>>,
    /// True if a model is attached: references are reported and events are counted.
    pub attached: bool,
    /// True if the attached model asks for the sizes of pages.
    pub page_sizes: bool,
    /// Address space of the running code. Valid only if `context_known`.
    pub context: Context,
    /// True if the platform has been asked for the address space since the model was attached.
    pub context_known: bool,
    /// Event counts since the last flush, of user code and of kernel code.
    pub counters: [Counters; 2],
    /// Buffer for the updates of L0 filter caches in a model's answer.
    pub updates: Vec<L0Update>,
    /// Cycles that models and long instructions added to the clock since the last synchronisation.
    pub stall: u64,
    /// The part of `stall` that models added.
    pub model_stall: u64,
    /// Instructions retired before the current block since the last synchronisation.
    pub retired: u64,
    /// Work done before the current block since the last synchronisation. Work is counted in instructions. Where blocks have costs of their
    /// own ([`crate::block_costs`]), work is counted in sixteenths of a cycle, and has the running block's cost already.
    pub work: u64,
    /// Cycles per unit of work: `nominal_cpi`, or a sixteenth where blocks have costs of their own.
    pub cpi: crate::cpi::Cpi,
    /// The one of `cost_tables` by which the clock advances now.
    pub block_costs: *const crate::block_costs::Correction,
    /// The costs of the node's blocks for the time without a model and with one; null where all instructions cost the same.
    pub cost_tables: [*const crate::block_costs::Correction; 2],
    /// True if the clock advances by the costs of blocks now.
    pub by_block: bool,
    /// Cycles per instruction without a model of the core.
    pub nominal_cpi: crate::cpi::Cpi,
    /// Recording of executed instructions, in windows.
    pub recorder: crate::recorder::Recorder,
    /// Time slice and budget of the running vCPU.
    pub time_slice: crate::time_slice::TimeSlice,
    /// True if the current instruction accessed the platform or triggered a breakpoint. The run loop must then check for their consequences
    /// after the instruction.
    pub touched_platform: bool,
    /// Sum of the code maps' marks at this vCPU's last check.
    pub marks_seen: u64,
    /// Number of rewrites of each region's code map at this vCPU's last check.
    pub rewrites_seen: Vec<u64>,
    /// Key that distinguishes blocks that decode or translate differently at the same address; see [`Cpu::block_key`].
    pub code_key: u8,
}

/// Buffer for operands that cross pages or are in device memory.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Scratch(pub [u8; 512]);

/// Unsigned integers that can be in general registers and memory operands.
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
    /// Reads the general register at a byte offset into the register file.
    #[inline(always)]
    pub fn reg<T: Int>(&self, offset: u8) -> T {
        debug_assert!(usize::from(offset) + T::BYTES <= 128);
        // SAFETY: lowering only makes offsets of one of the 16 registers (or of AH, CH, DH, BH with an 8-bit width), so the read is within
        // `gpr`. Any bit pattern is a valid integer, and the read may be unaligned.
        unsafe {
            self.gpr
                .as_ptr()
                .cast::<u8>()
                .add(offset.into())
                .cast::<T>()
                .read_unaligned()
        }
    }

    /// Writes the general register at a byte offset into the register file. A 32-bit write clears the upper half (SDM vol. 1 §3.4.1.1).
    #[inline(always)]
    pub fn set_reg<T: Int>(&mut self, offset: u8, value: T) {
        debug_assert!(usize::from(offset) + T::BYTES <= 128);
        let at = self.gpr.as_mut_ptr().cast::<u8>();
        // SAFETY: as in `reg`. 32- and 64-bit registers start at multiples of 8, so the 8-byte write is within the register.
        unsafe {
            let at = at.add(offset.into());
            if T::BITS == 32 {
                at.cast::<u64>().write_unaligned(value.to_u64())
            } else {
                at.cast::<T>().write_unaligned(value)
            }
        }
    }

    /// Returns the effective address of the memory operand, without the segment base: the value of LEA before truncation to the operand
    /// size.
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

    /// Returns the linear address of the memory operand, including the segment base.
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

    /// Returns the result of [`Cpu::linear`] for 16- and 32-bit address sizes, which 64-bit code rarely uses. A separate function keeps the
    /// handlers short.
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

    /// Returns the instruction pointer of this operation.
    #[inline(always)]
    pub fn ip(&self, op: &Op) -> u64 {
        self.gpr[RIP as usize].wrapping_add(op.offset.into())
    }

    /// Returns the instruction pointer of the instruction after this operation.
    #[inline(always)]
    pub fn next_ip(&self, op: &Op) -> u64 {
        self.gpr[RIP as usize].wrapping_add(u64::from(op.offset) + u64::from(op.len))
    }

    /// Sets the instruction pointer of the next instruction. The handler must return `Flow::Branch` or another ending flow afterwards.
    #[inline(always)]
    pub fn set_ip(&mut self, ip: u64) {
        self.gpr[RIP as usize] = ip;
    }

    /// Replaces the six status flags in RFLAGS.
    #[inline(always)]
    pub fn set_status_flags(&mut self, flags: u64) {
        self.rflags = self.rflags & !rflags::STATUS | flags & rflags::STATUS;
    }

    /// Returns the decoded and translated code of the node.
    #[inline(always)]
    pub fn code(&mut self) -> &mut Code {
        self.blocks_and_code().1
    }

    /// Returns the block table of this vCPU, and the code as [`Cpu::code`] does.
    #[inline(always)]
    pub fn blocks_and_code(&mut self) -> (&mut BlockTable, &mut Code) {
        let mut code = self.code.expect("called only while the vCPU runs");
        // SAFETY: the code that sets the pointer holds the lock, and clears the pointer before it releases the lock. The result borrows
        // `self`, through which alone the pointer is accessed.
        (&mut self.blocks, unsafe { code.as_mut() })
    }

    /// Raises an exception. The handler must return the result.
    #[cold]
    pub fn raise(&mut self, exception: Exception) -> Trap {
        self.exception = Some(exception);
        Trap
    }

    /// Stops the study because the engine does not implement something. The handler must return the result.
    #[cold]
    pub fn unsupported(&mut self, what: impl Into<String>) -> Trap {
        self.stop = Some(what.into());
        Trap
    }

    /// Returns whether long mode is active (EFER.LMA), in 64-bit mode or compatibility mode.
    pub fn long_mode(&self) -> bool {
        self.control.efer & nodescope_x86::bits::efer::LMA != 0
    }
}
