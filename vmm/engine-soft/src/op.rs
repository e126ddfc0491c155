//! Operations: decoded instructions in the form that the interpreter executes.

use crate::cpu::Cpu;

/// Effect of an operation on the flow of control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Continue with the next operation.
    Next,
    /// `gpr[RIP]` holds the next instruction's address: the block ends here.
    Branch,
    /// Retired, but the run loop must check the machine (an access to the platform, a change of mode, of
    /// interruptibility or of address space). `gpr[RIP]` holds the next instruction's address.
    Attend,
    /// Retired HLT; `gpr[RIP]` holds the next instruction's address.
    Halt,
}

/// Mark of an operation that did not retire: `Cpu::exception` or `Cpu::stop` has the reason. Registers and memory are as before the
/// operation, except that repeated string instructions and gathers keep the elements before a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trap;

/// Result of an operation; one byte.
pub type Done = Result<Flow, Trap>;

/// Function that executes an operation, or (see [`thread`]) an operation and its successors. [`Cpu::current`] is the operation that the
/// result belongs to.
pub type Handler = fn(&mut Cpu, &Op) -> Done;

/// Makes a handler that calls the next operation's handler itself (threaded code). The handler ends in a jump to the next operation's
/// handler. The host then predicts each jump by its own history, and no return to the run loop is needed before the block ends.
///
/// Where the compiler makes a call of the jump, the stack grows by a few words for each operation of the block at most.
pub fn thread<F: Fn(&mut Cpu, &Op) -> Done + Copy>(_: F) -> Handler {
    const { assert!(size_of::<F>() == 0, "give a function, not a pointer to one") };
    threaded::<F>
}

fn threaded<F: Fn(&mut Cpu, &Op) -> Done + Copy>(cpu: &mut Cpu, op: &Op) -> Done {
    // SAFETY: `thread` was given a value of this type; it has no size, so any aligned address holds one.
    let f = unsafe { std::ptr::NonNull::<F>::dangling().as_ref() };
    match f(cpu, op) {
        Ok(Flow::Next) => {
            // SAFETY: at most one past the last operation of the block.
            let next = unsafe { std::ptr::from_ref(op).add(1) };
            if next >= cpu.block_end {
                return Ok(Flow::Next);
            }
            cpu.current = next;
            // SAFETY: below the block's end.
            let next = unsafe { &*next };
            (next.handler)(cpu, next)
        }
        done => done,
    }
}

/// Index into [`Cpu::gpr`] of a register that always reads zero.
pub const ZERO: u8 = 16;
/// Index into [`Cpu::gpr`] of the address of the current block's first instruction.
pub const RIP: u8 = 17;
/// Index into [`Cpu::segment_base`] of an entry that is always zero.
pub const FLAT: u8 = 6;

/// Flags of an [`Op`]: its address size, its prefixes LOCK, REP and REPNE, how it uses the stack, and hints.
pub mod attr {
    /// Effective addresses wrap at 32 bits.
    pub const ADDRESS_32: u8 = 1 << 0;
    /// Effective addresses wrap at 16 bits.
    pub const ADDRESS_16: u8 = 1 << 1;
    /// The instruction is locked ([`crate::lower::is_locked`]).
    pub const LOCK: u8 = 1 << 2;
    /// REP / REPE prefix (F3).
    pub const REP: u8 = 1 << 3;
    /// REPNE prefix (F2).
    pub const REPNE: u8 = 1 << 4;
    /// The memory operand is relative to SS by its base register. Set only for 64-bit code, where RSP or RBP is the base and no FS or GS
    /// prefix is present.
    pub const STACK_OPERAND: u8 = 1 << 5;
    /// The instruction pushes or pops besides its memory operand, if it has one.
    pub const STACK: u8 = 1 << 6;
    /// The store has a non-temporal hint (SDM vol. 1 §10.4.6.2).
    pub const NON_TEMPORAL: u8 = 1 << 7;
}

/// Decoded instruction.
///
/// Register operands are *byte offsets* into [`Cpu::gpr`] (`8 * number`, plus 1 for AH, CH, DH, BH), vector operands are
/// plain numbers. The handler decides the meaning of `dst`, `src`, `src2`, `imm` and `aux`. The memory operand
/// (at most one for everything but string instructions) is described by `base` … `disp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Op {
    /// Function to call.
    pub handler: Handler,
    /// Immediate, branch target relative to the block's first instruction, or address of a stub; the handler decides the meaning.
    pub imm: u64,
    /// Displacement; relative to the block's first instruction where `base` is [`RIP`].
    pub disp: i64,
    /// Base register number, [`ZERO`] or [`RIP`].
    pub base: u8,
    /// Index register number or [`ZERO`].
    pub index: u8,
    /// log2 of the index's factor.
    pub scale: u8,
    /// Index into [`Cpu::segment_base`]; [`FLAT`] where the base is zero by architecture.
    pub segment: u8,
    /// First operand; the handler decides the meaning.
    pub dst: u8,
    /// Second operand; the handler decides the meaning.
    pub src: u8,
    /// Third operand; the handler decides the meaning.
    pub src2: u8,
    /// Bits of [`attr`].
    pub attr: u8,
    /// Offset of the instruction from the block's first byte.
    pub offset: u16,
    /// Length in bytes.
    pub len: u8,
    /// Number of data reads of the instruction, for counting. String instructions count their accesses when they execute.
    pub loads: u8,
    /// Number of data writes of the instruction, for counting.
    pub stores: u8,
    /// Index of the [`nodescope_plugin_api::FlopClass`], meaningful where `flops` is not zero.
    pub flop_class: u8,
    /// Number of floating-point operations: one for each lane, two for each lane of an FMA or of a dot product.
    pub flops: u8,
    /// Further detail for the handler.
    pub aux: u32,
}

const _: () = assert!(std::mem::size_of::<Done>() == 1);
