//! Classes of instructions that a core executes in the same way.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use serde::Deserialize;

mod integer;
mod vector;

pub(crate) use vector::elements;

macro_rules! classes {
    ($($(#[doc = $text:literal])+ $name:ident,)+) => {
        /// Class of instructions. A core executes all instructions of a class with the same micro-operations, besides loads and stores.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Class {
            $($(#[doc = $text])+ $name,)+
        }

        impl Class {
            /// All classes.
            pub const ALL: &'static [Class] = &[$(Class::$name,)+];

            /// Returns the name of the class in descriptions of cores.
            pub fn name(self) -> String {
                let camel = match self {
                    $(Class::$name => stringify!($name),)+
                };
                let mut name = String::new();
                for (index, letter) in camel.char_indices() {
                    if letter.is_ascii_uppercase() && index > 0 {
                        name.push('-');
                    }
                    name.push(letter.to_ascii_lowercase());
                }
                name
            }
        }
    };
}

classes! {
    /// No work: NOP, ENDBR64, hints.
    Nop,
    /// Moves between general registers and of constants to them, and merges of 8 and 16 bits into a register.
    Move,
    /// Extensions of general registers: MOVZX, MOVSX, CDQE, CQO.
    Extend,
    /// One-cycle arithmetic and logic: ADD, AND, CMP, INC, NOT.
    Integer,
    /// Additions and subtractions with carry: ADC, SBB, ADCX.
    Carry,
    /// Shifts by a constant.
    Shift,
    /// Shifts by CL.
    ShiftByRegister,
    /// Shifts and rotations that leave the flags alone: SHLX, RORX.
    ShiftWithoutFlags,
    /// Rotations by a constant.
    Rotate,
    /// Rotations by CL.
    RotateByRegister,
    /// Rotations through the carry flag by one: RCL, RCR.
    RotateCarry,
    /// Rotations through the carry flag by more.
    RotateCarryByCount,
    /// Shifts of two registers by a constant: SHLD, SHRD.
    ShiftDouble,
    /// Shifts of two registers by CL.
    ShiftDoubleByRegister,
    /// LEA of at most two parts, without a scale.
    Lea,
    /// LEA of at most two parts, one of them scaled.
    LeaScaled,
    /// LEA of three parts without a scale, and LEA with 16-bit addresses.
    LeaThree,
    /// LEA of three parts, one of them scaled.
    LeaThreeScaled,
    /// Products of one register: IMUL of two or three operands.
    Multiply,
    /// Products of two registers: MUL, IMUL of one operand.
    MultiplyWide,
    /// Products of two registers that leave the flags alone: MULX.
    MultiplyWithoutFlags,
    /// Division of 8 and 16 bits.
    DivideNarrow,
    /// DIV of 32 bits.
    Divide32,
    /// DIV of 64 bits.
    Divide64,
    /// IDIV of 32 bits.
    SignedDivide32,
    /// IDIV of 64 bits.
    SignedDivide64,
    /// POPCNT.
    PopulationCount,
    /// LZCNT.
    LeadingZeros,
    /// TZCNT.
    TrailingZeros,
    /// BSF and BSR.
    BitScan,
    /// ANDN, BLSR, BLSI, BLSMSK.
    BitLogic,
    /// BEXTR.
    BitExtract,
    /// BZHI.
    BitZero,
    /// PDEP and PEXT.
    BitDeposit,
    /// BT.
    BitTest,
    /// BTS, BTR, BTC.
    BitSet,
    /// BT and its kin of memory with the number of the bit in a register.
    BitMemory,
    /// BSWAP of 32 bits, and MOVBE.
    ByteSwap,
    /// BSWAP of 64 bits, and MOVBE.
    ByteSwap64,
    /// CMOVcc by one flag or by flags other than carry.
    ConditionalMove,
    /// CMOVA and CMOVBE, which need carry and zero.
    ConditionalMoveTwo,
    /// SETcc by one flag or by flags other than carry.
    SetCondition,
    /// SETA and SETBE, which need carry and zero.
    SetConditionTwo,
    /// XCHG of registers.
    Exchange,
    /// XADD.
    ExchangeAdd,
    /// CMPXCHG.
    CompareExchange,
    /// CMPXCHG8B and CMPXCHG16B.
    CompareExchangeWide,
    /// LAHF and other reads of flags.
    FlagsRead,
    /// SAHF and other writes of flags.
    FlagsWrite,
    /// PUSHF.
    FlagsPush,
    /// POPF.
    FlagsPop,
    /// CLC, STC, CMC.
    CarryFlag,
    /// CLD and STD.
    DirectionFlag,
    /// CRC32.
    Crc32,
    /// Conditional jumps that are not fused with the instruction before.
    JumpConditional,
    /// Conditional jumps as one operation with the instruction before.
    JumpFused,
    /// Jumps to constant addresses.
    Jump,
    /// Jumps to addresses from registers and memory.
    JumpIndirect,
    /// Calls of constant addresses.
    Call,
    /// Calls of addresses from registers and memory.
    CallIndirect,
    /// Returns.
    Return,
    /// LOOP.
    Loop,
    /// JRCXZ.
    JumpCounter,
    /// Plain loads: MOV, vector moves, POP.
    Load,
    /// Loads with an extension by zeros: MOVZX.
    LoadExtend,
    /// Loads with an extension by the sign: MOVSX, MOVSXD.
    LoadSignExtend,
    /// Loads of 8 or 16 bits into a part of a register.
    LoadNarrow,
    /// Loads into all elements of 32, 64 or 128 bits of a vector.
    LoadBroadcast,
    /// Loads into all elements of 8 or 16 bits of a vector.
    LoadBroadcastNarrow,
    /// Loads into a half of an XMM register: MOVHPS, MOVLPS.
    LoadHalf,
    /// Loads under a mask: VMASKMOVPS.
    LoadMasked,
    /// Plain stores: MOV, vector moves, PUSH.
    Store,
    /// Stores of the upper half of an XMM register: MOVHPS.
    StoreHalf,
    /// Stores of an element of a vector: PEXTRD, EXTRACTPS.
    StoreElement,
    /// Stores of the upper half of a YMM register: VEXTRACTF128.
    StoreLane,
    /// Stores under a mask: VMASKMOVPS.
    StoreMasked,
    /// Prefetches.
    Prefetch,
    /// LEAVE.
    Leave,
    /// ENTER.
    Enter,
    /// MOVS without a prefix.
    StringMove,
    /// STOS without a prefix.
    StringStore,
    /// LODS without a prefix.
    StringLoad,
    /// SCAS without a prefix.
    StringScan,
    /// CMPS without a prefix.
    StringCompare,
    /// Moves between vector registers.
    VectorMove,
    /// MOVQ between XMM registers.
    VectorMoveLow,
    /// Logic of integer vectors: PAND, PXOR.
    VectorLogic,
    /// Logic of floating-point vectors: ANDPS, XORPD.
    FloatLogic,
    /// Additions, subtractions, minima and maxima of integers.
    VectorAdd,
    /// Additions and subtractions with saturation, PABS, PSIGN.
    VectorSaturate,
    /// PAVG.
    VectorAverage,
    /// PCMPEQ and PCMPGT.
    VectorCompare,
    /// PCMPGTQ.
    VectorCompareGreater64,
    /// Products of integers of 16 and 32 bits: PMULLW, PMADDWD, PMULUDQ.
    VectorMultiply,
    /// PMULLD.
    VectorMultiply32,
    /// PSADBW.
    VectorDifferences,
    /// MPSADBW.
    VectorDifferencesMultiple,
    /// PHMINPOSUW.
    VectorMinimumPosition,
    /// Shifts by a constant: PSLLD.
    VectorShift,
    /// Shifts by one count in an XMM register.
    VectorShiftByRegister,
    /// Shifts by a count for each element: VPSLLVD.
    VectorShiftVariable,
    /// Shuffles in a lane by a constant: PSHUFD, PUNPCKLBW.
    Shuffle,
    /// Shuffles of bytes in a lane: PSHUFB, PALIGNR, PACKSSDW, PSLLDQ.
    ShuffleBytes,
    /// Shuffles of floating-point elements in a lane by a constant: SHUFPS, UNPCKLPD, INSERTPS.
    FloatShuffle,
    /// VPERMILPS and VPERMILPD by a register.
    FloatShuffleVariable,
    /// PMOVZX and PMOVSX to an XMM register.
    VectorExtend,
    /// PMOVZX and PMOVSX to a YMM register.
    VectorExtendLanes,
    /// Shuffles across lanes: VPERMD, VPERMPD.
    ShuffleLanes,
    /// VPERM2F128.
    LanesPermute,
    /// VINSERTF128.
    LaneInsert,
    /// VEXTRACTF128.
    LaneExtract,
    /// Copies of the lowest element of a register to all elements, within an XMM register.
    Broadcast,
    /// Copies of the lowest element of a register to all elements of a YMM register.
    BroadcastLanes,
    /// Blends by a constant, and MOVSS and MOVSD between registers.
    Blend,
    /// PBLENDW.
    BlendWords,
    /// Blends by a register.
    BlendVariable,
    /// PINSRB and its kin from a general register.
    ElementInsert,
    /// PEXTRB and its kin to a general register.
    ElementExtract,
    /// MOVMSKPS, PMOVMSKB.
    MoveMask,
    /// MOVD and MOVQ from a general to a vector register.
    ToVector,
    /// MOVD and MOVQ from a vector to a general register.
    FromVector,
    /// PTEST, VTESTPS.
    VectorTest,
    /// Horizontal additions of integers: PHADDD.
    VectorHorizontalAdd,
    /// Horizontal additions of floating-point numbers: HADDPS.
    FloatHorizontalAdd,
    /// DPPS.
    DotProductSingle,
    /// DPPD.
    DotProductDouble,
    /// Additions of floating-point numbers.
    FloatAdd,
    /// Products of floating-point numbers.
    FloatMultiply,
    /// Fused products and sums.
    FloatMultiplyAdd,
    /// Comparisons to a mask, minima and maxima of floating-point numbers.
    FloatCompare,
    /// Comparisons to flags: COMISD.
    FloatCompareFlags,
    /// ROUNDPS and its kin.
    FloatRound,
    /// RCPPS and RSQRTPS.
    FloatReciprocal,
    /// RCPPS and RSQRTPS of YMM registers.
    FloatReciprocalWide,
    /// Division of single numbers, and of an XMM register of them.
    DivideSingle,
    /// Division of a YMM register of single numbers.
    DivideSingleWide,
    /// Division of double numbers, and of an XMM register of them.
    DivideDouble,
    /// Division of a YMM register of double numbers.
    DivideDoubleWide,
    /// Roots of single numbers, and of an XMM register of them.
    RootSingle,
    /// Roots of a YMM register of single numbers.
    RootSingleWide,
    /// Roots of double numbers, and of an XMM register of them.
    RootDouble,
    /// Roots of a YMM register of double numbers.
    RootDoubleWide,
    /// Conversions between integers and floating-point numbers of the same size.
    Convert,
    /// Conversions between sizes in XMM registers: CVTSS2SD, CVTDQ2PD.
    ConvertSize,
    /// Conversions to a larger size in a YMM register.
    ConvertWiden,
    /// Conversions to a smaller size from a YMM register.
    ConvertNarrow,
    /// Conversions from general registers: CVTSI2SD.
    ConvertFromGeneral,
    /// Conversions to general registers: CVTTSD2SI.
    ConvertToGeneral,
    /// Rounds of AES.
    Aes,
    /// AESIMC.
    AesInverse,
    /// AESKEYGENASSIST.
    AesKey,
    /// PCLMULQDQ.
    CarrylessMultiply,
    /// Rounds and schedules of SHA.
    Sha,
    /// PCMPISTRI and PCMPISTRM.
    StringSearch,
    /// PCMPESTRI and PCMPESTRM.
    StringSearchExplicit,
    /// VZEROUPPER.
    ZeroUpper,
    /// VZEROALL.
    ZeroAll,
    /// Operations of mask registers.
    Mask,
    /// Gathers of up to four elements, besides the loads.
    GatherFour,
    /// Gathers of more than four elements, besides the loads.
    GatherEight,
    /// Copies of x87 registers: FLD, FST.
    X87Move,
    /// Constants of x87: FLD1.
    X87Constant,
    /// FXCH.
    X87Exchange,
    /// FABS and FCHS.
    X87Sign,
    /// x87 additions and subtractions.
    X87Add,
    /// x87 products.
    X87Multiply,
    /// x87 division.
    X87Divide,
    /// FSQRT.
    X87Root,
    /// x87 comparisons to the status word.
    X87Compare,
    /// x87 comparisons to the flags: FCOMI.
    X87CompareFlags,
    /// FCMOVcc.
    X87ConditionalMove,
    /// Conversions of integers to x87 numbers and back, in memory: FILD, FISTP.
    X87Convert,
    /// FRNDINT.
    X87Round,
    /// Sines, logarithms and other functions of x87.
    X87Function,
    /// FPREM.
    X87Remainder,
    /// FLDCW, FNSTCW.
    X87Control,
    /// FNSTSW.
    X87Status,
    /// LDMXCSR.
    ControlLoad,
    /// STMXCSR.
    ControlStore,
    /// Anything that the system or microcode does; its time is one of [`crate::Costs`].
    System,
}

impl Class {
    /// Returns the class of an instruction. Every instruction has one: those that are not known by name get that of a simple operation of the
    /// registers that they use.
    pub fn of(instruction: &Instruction) -> Self {
        if let Some(class) = integer::class(instruction) {
            return class;
        }
        vector::class(instruction).unwrap_or_else(|| default(instruction))
    }
}

/// Returns the class of an instruction that is not known by name.
fn default(instruction: &Instruction) -> Class {
    let mut registers = (0..instruction.op_count())
        .filter(|n| instruction.op_kind(*n) == OpKind::Register)
        .map(|n| instruction.op_register(n));
    if instruction.is_privileged() || instruction.is_invalid() {
        Class::System
    } else if registers.clone().any(Register::is_vector_register) {
        Class::VectorAdd
    } else if registers.clone().any(Register::is_k) {
        Class::Mask
    } else if registers.any(Register::is_st) {
        Class::X87Add
    } else {
        Class::Integer
    }
}

/// Returns whether an operand of an instruction is in memory.
pub(crate) fn has_memory(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|n| instruction.op_kind(n) == OpKind::Memory)
}

/// Returns the register of an operand, or `Register::None` if the operand is no register.
pub(crate) fn register(instruction: &Instruction, operand: u32) -> Register {
    if operand < instruction.op_count() && instruction.op_kind(operand) == OpKind::Register {
        instruction.op_register(operand)
    } else {
        Register::None
    }
}

/// Returns whether an instruction writes its first operand to memory.
fn stores(instruction: &Instruction) -> bool {
    instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Memory
}

/// Returns whether an instruction is a string instruction of MOVSD's mnemonic, or has any other mnemonic.
fn is_string(instruction: &Instruction, mnemonic: Mnemonic) -> bool {
    instruction.mnemonic() == mnemonic && instruction.is_string_instruction()
}

#[cfg(test)]
mod tests;
