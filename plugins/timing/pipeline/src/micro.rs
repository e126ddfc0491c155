//! Micro-operations of instructions, as the timing of a core sees them.

/// Number of a register or of another value that micro-operations pass to each other; see [`resource`].
pub type Resource = u8;

/// Mark of an unused place in lists of resources.
pub const NONE: Resource = 255;

/// Mark of a load or store whose access recordings leave out: those of string instructions and gathers.
pub const NO_ACCESS: u8 = 255;

/// Numbers of resources.
pub mod resource {
    /// First of the 16 general registers, in the order of their encoding. Narrow registers count as their full register.
    pub const GENERAL: u8 = 0;
    /// First of the 32 vector registers. XMM and YMM registers count as the register that contains them.
    pub const VECTOR: u8 = 16;
    /// First of the 8 mask registers.
    pub const MASK: u8 = 48;
    /// The x87 stack and MMX registers, as one resource for each of 8 registers.
    pub const X87: u8 = 56;
    /// Carry flag.
    pub const CARRY: u8 = 64;
    /// All other status flags.
    pub const FLAGS: u8 = 65;
    /// First of 6 temporaries, which live within one instruction: a loaded value, an address, a result on its way to memory.
    pub const TEMPORARY: u8 = 66;
    /// Number of all resources.
    pub const COUNT: usize = 72;
}

/// Set of ports on which a micro-operation can run, one bit for each port of the core.
pub type Ports = u32;

/// What a micro-operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Computes: results are there `latency` cycles after the start.
    Compute,
    /// Loads from memory: the access says from where. The latency is that of the cache that answers, plus `latency`.
    Load,
    /// Computes the address of a store. Its sources are address registers.
    StoreAddress,
    /// Hands the data of a store over. Its sources are the data.
    StoreData,
    /// Takes a place in the reorder buffer, but no port: a NOP, an eliminated move, an idiom that makes zero. Results are there at once, or
    /// with the source if there is one.
    Eliminated,
}

/// A micro-operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroOperation {
    /// What the micro-operation does.
    pub kind: Kind,
    /// Ports on which it can run; 0 only for [`Kind::Eliminated`].
    pub ports: Ports,
    /// Cycles from its start to its results. Of a load: cycles beyond those of the cache, as of vector loads.
    pub latency: u16,
    /// Cycles for which the port accepts no other micro-operation: 1 where it is pipelined, more for dividers.
    pub busy: u16,
    /// Values that it waits for; [`NONE`] marks unused places, which come last.
    pub sources: [Resource; 4],
    /// Values that it makes; [`NONE`] marks unused places, which come last.
    pub results: [Resource; 4],
    /// Number of the access within the instruction ([`nodescope_plugin_api::DataAccess`]), for loads and stores; [`NO_ACCESS`] for all
    /// others, and where recordings have none.
    pub access: u8,
    /// Bytes that a load or store accesses.
    pub size: u16,
}

/// How an instruction directs the flow of control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The next instruction follows.
    Next,
    /// A jump or not, by a condition.
    Conditional,
    /// A jump to a constant address.
    Jump,
    /// A jump to an address from a register or memory.
    IndirectJump,
    /// A call of a constant address.
    Call,
    /// A call of an address from a register or memory.
    IndirectCall,
    /// A return from a call.
    Return,
    /// Anything else: system calls, interrupts, returns from interrupts, HLT.
    System,
}

/// An instruction as micro-operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Micro-operations in the order in which they are dispatched.
    pub operations: Vec<MicroOperation>,
    /// Places that the instruction takes at dispatch, in the reorder buffer and at retirement: at least 1, unless `fused`.
    pub slots: u8,
    /// True if the instruction is executed as one with the instruction before: the jump of a comparison and a conditional jump, or a NOP of
    /// cores where it takes no place. `slots` is then 0. The only operation of such a jump waits for the flags and is
    /// [`Kind::Eliminated`]; the port that both take is that of the instruction before.
    pub fused: bool,
    /// How the instruction directs the flow of control.
    pub flow: Flow,
    /// Address to which a jump or call of a constant address goes; 0 for other instructions.
    pub target: u64,
    /// True if all earlier instructions must have retired before this one starts, and later ones wait for it: CPUID, MFENCE and others.
    pub serialising: bool,
    /// True if earlier stores must be in the cache first: locked instructions and XCHG with memory.
    pub locked: bool,
    /// True if the store has a non-temporal hint.
    pub non_temporal: bool,
    /// Cycles that the instruction takes by itself in microcode, during which no other instruction is dispatched; 0 for most.
    pub microcode: u32,
    /// Cycles for each element of a repeated string instruction, in 1/65536.
    pub each_repeat_65536: u32,
    /// Length in bytes.
    pub length: u8,
}
