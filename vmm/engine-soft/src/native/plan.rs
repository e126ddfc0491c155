//! Plans: how translated code carries out each instruction of the guest.
//!
//! Most instructions run on the host as they are (native passthrough). Their plan states which operands must be moved, and which flags the
//! instruction reads and writes. [`plan`] returns [`Plan::Interpret`] for instructions that may behave differently on moved operands: most
//! system and string instructions, x87 and MMX instructions, masked moves, gathers.

use iced_x86::{
    Code, EncodingKind, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
    RflagsBits,
};

use super::Host;
use super::registers::is_high_byte;
use super::string::StringOperation;
use nodescope_x86::features::{Unit, unit};

use crate::lower::{is_locked, is_non_temporal_store};

/// The status flags as iced-x86 numbers them.
const STATUS: u32 = RflagsBits::CF
    | RflagsBits::PF
    | RflagsBits::AF
    | RflagsBits::ZF
    | RflagsBits::SF
    | RflagsBits::OF;

/// The method by which translated code carries out an instruction.
#[derive(Clone, Debug)]
pub enum Plan {
    /// By a call of the interpreter.
    Interpret,
    /// Not at all: the instruction does nothing that the guest can see (NOP, prefetches, fences).
    Nop,
    /// By the instruction itself, on the host.
    Passthrough(Box<Passthrough>),
    /// By a template for LEA.
    Lea,
    /// PUSH of a register or an immediate, 64 bits.
    Push,
    /// POP of a register, 64 bits.
    Pop,
    /// By a template for LEAVE.
    Leave,
    /// PUSH of memory, 64 bits.
    PushMemory,
    /// By a template for POP RSP.
    PopStackPointer,
    /// DIV or IDIV, 32 or 64 bits.
    Divide {
        /// True for IDIV, false for DIV.
        signed: bool,
    },
    /// A system instruction with a template.
    System(System),
    /// A repeated string instruction with a template for code without a model.
    String(StringOperation),
    /// CALL, RET, JMP or Jcc.
    Branch(Branch),
}

/// System instructions that are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Exchanges GS.base with IA32_KERNEL_GS_BASE: SWAPGS.
    SwapGs,
    /// Disables interrupts: CLI.
    DisableInterrupts,
    /// Enables interrupts: STI.
    EnableInterrupts,
    /// Pushes RFLAGS: PUSHFQ.
    PushFlags,
    /// Reads the time-stamp counter: RDTSC.
    ReadClock,
    /// Calls the kernel: SYSCALL.
    Call,
    /// SYSRET to 64-bit code.
    Return,
}

impl System {
    /// Returns whether there is a template for code of this privilege, with a model or without. With a model, SYSCALL and SYSRET have none,
    /// since counters change with the privilege.
    pub fn suits(self, kernel: bool, attached: bool) -> bool {
        match self {
            System::SwapGs | System::DisableInterrupts | System::EnableInterrupts => kernel,
            System::PushFlags | System::ReadClock => true,
            System::Call => !kernel && !attached,
            System::Return => kernel && !attached,
        }
    }
}

/// Branches that are translated.
#[derive(Clone, Copy, Debug)]
pub enum Branch {
    /// To a constant address.
    Direct,
    /// To a constant address if the condition with this encoding holds.
    Conditional(u8),
    /// To an address in a register or in memory.
    Indirect,
    /// CALL of a constant address.
    Call,
    /// CALL of an address in a register or in memory.
    CallIndirect,
    /// RET; bytes released besides the address.
    Return(u16),
}

/// A memory operand.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// True if the instruction reads the operand.
    pub read: bool,
    /// True if the instruction writes the operand.
    pub write: bool,
    /// True if the interpreter carries out the operation after a miss, for example since the operand is written only on a condition.
    pub conditional: bool,
    /// Size of the operand in bytes.
    pub size: u32,
    /// True if the operand must be aligned to its size.
    pub aligned: bool,
    /// True for a store with a non-temporal hint.
    pub non_temporal: bool,
    /// True if the instruction is locked.
    pub locked: bool,
}

/// An instruction that the host runs as it is, with moved operands at most.
#[derive(Clone, Debug)]
pub struct Passthrough {
    /// The instruction, in a form that names RAX where the guest's form implies RAX.
    pub instruction: Instruction,
    /// The memory operand.
    pub memory: Option<Memory>,
    /// True if the instruction reads or writes RAX without naming it.
    pub rax: bool,
    /// True if the host's instruction shifts or rotates by CL.
    pub cl: bool,
    /// Count of a rotation by a constant above 1, which becomes a rotation by CL; None for other instructions. OF is undefined, and hosts
    /// leave it differently after the two forms.
    pub count: Option<u8>,
    /// True if the instruction uses vector registers.
    pub vector: bool,
    /// True if the guest's flags must be in the host's flags before the instruction.
    pub flags_in: bool,
    /// True if the instruction writes flags.
    pub flags_out: bool,
    /// True if the flags must get a fixed value first: the host leaves undefined flags as they were, and results must be repeatable.
    pub preset_flags: bool,
    /// Bit mask of the operands that are written: bit n for operand n.
    pub written: u8,
}

fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

/// Returns the form that names its operand, for a form that implies RAX.
fn explicit(code: Code) -> Code {
    use Code::*;
    match code {
        Add_AL_imm8 => Add_rm8_imm8,
        Or_AL_imm8 => Or_rm8_imm8,
        Adc_AL_imm8 => Adc_rm8_imm8,
        Sbb_AL_imm8 => Sbb_rm8_imm8,
        And_AL_imm8 => And_rm8_imm8,
        Sub_AL_imm8 => Sub_rm8_imm8,
        Xor_AL_imm8 => Xor_rm8_imm8,
        Cmp_AL_imm8 => Cmp_rm8_imm8,
        Test_AL_imm8 => Test_rm8_imm8,
        Add_AX_imm16 => Add_rm16_imm16,
        Or_AX_imm16 => Or_rm16_imm16,
        Adc_AX_imm16 => Adc_rm16_imm16,
        Sbb_AX_imm16 => Sbb_rm16_imm16,
        And_AX_imm16 => And_rm16_imm16,
        Sub_AX_imm16 => Sub_rm16_imm16,
        Xor_AX_imm16 => Xor_rm16_imm16,
        Cmp_AX_imm16 => Cmp_rm16_imm16,
        Test_AX_imm16 => Test_rm16_imm16,
        Add_EAX_imm32 => Add_rm32_imm32,
        Or_EAX_imm32 => Or_rm32_imm32,
        Adc_EAX_imm32 => Adc_rm32_imm32,
        Sbb_EAX_imm32 => Sbb_rm32_imm32,
        And_EAX_imm32 => And_rm32_imm32,
        Sub_EAX_imm32 => Sub_rm32_imm32,
        Xor_EAX_imm32 => Xor_rm32_imm32,
        Cmp_EAX_imm32 => Cmp_rm32_imm32,
        Test_EAX_imm32 => Test_rm32_imm32,
        Add_RAX_imm32 => Add_rm64_imm32,
        Or_RAX_imm32 => Or_rm64_imm32,
        Adc_RAX_imm32 => Adc_rm64_imm32,
        Sbb_RAX_imm32 => Sbb_rm64_imm32,
        And_RAX_imm32 => And_rm64_imm32,
        Sub_RAX_imm32 => Sub_rm64_imm32,
        Xor_RAX_imm32 => Xor_rm64_imm32,
        Cmp_RAX_imm32 => Cmp_rm64_imm32,
        Test_RAX_imm32 => Test_rm64_imm32,
        Xchg_r16_AX => Xchg_rm16_r16,
        Xchg_r32_EAX => Xchg_rm32_r32,
        Xchg_r64_RAX => Xchg_rm64_r64,
        other => other,
    }
}

/// Returns whether an integer instruction without any extension of [`Host::bmi`] may run on the host as it is.
fn is_plain_integer(m: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        m,
        Mov | Movzx
            | Movsx
            | Movsxd
            | Add
            | Sub
            | And
            | Or
            | Xor
            | Cmp
            | Test
            | Adc
            | Sbb
            | Inc
            | Dec
            | Neg
            | Not
            | Shl
            | Sal
            | Shr
            | Sar
            | Rol
            | Ror
            | Rcl
            | Rcr
            | Shld
            | Shrd
            | Imul
            | Mul
            | Cdq
            | Cqo
            | Cwd
            | Cbw
            | Cwde
            | Cdqe
            | Bswap
            | Xchg
            | Xadd
            | Cmpxchg
            | Bt
            | Bts
            | Btr
            | Btc
            | Bsf
            | Bsr
            | Movnti
            | Clc
            | Stc
            | Cmc
            | Popcnt
            | Crc32
    )
}

/// Returns whether an integer instruction needs an extension that [`Host::bmi`] includes.
fn is_extended_integer(m: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        m,
        Tzcnt
            | Lzcnt
            | Andn
            | Blsi
            | Blsr
            | Blsmsk
            | Bextr
            | Bzhi
            | Mulx
            | Pdep
            | Pext
            | Rorx
            | Sarx
            | Shlx
            | Shrx
            | Movbe
            | Adcx
            | Adox
    )
}

/// Returns whether a vector instruction must be interpreted: for example, it has conditional or several memory operands, or concerns the
/// vector state itself.
fn is_odd_vector(m: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        m,
        Ldmxcsr
            | Stmxcsr
            | Vldmxcsr
            | Vstmxcsr
            | Maskmovdqu
            | Vmaskmovdqu
            // These instructions write RCX without naming it, and may name RCX in an address.
            | Pcmpestri
            | Pcmpestri64
            | Pcmpistri
            | Vpcmpestri
            | Vpcmpestri64
            | Vpcmpistri
            | Vmaskmovps
            | Vmaskmovpd
            | Vpmaskmovd
            | Vpmaskmovq
            | Vgatherdps
            | Vgatherdpd
            | Vgatherqps
            | Vgatherqpd
            | Vpgatherdd
            | Vpgatherdq
            | Vpgatherqd
            | Vpgatherqq
            | Clflush
            | Pause
    )
}

fn is_nop(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        i.mnemonic(),
        Nop | Endbr64
            // ENDBR64 is a reserved NOP on a processor without indirect branch tracking (SDM vol. 2A, ENDBR64).
            | Reservednop
            | Prefetchnta
            | Prefetcht0
            | Prefetcht1
            | Prefetcht2
            | Prefetchw
            | Lfence
            | Sfence
            | Mfence
    )
}

/// Returns whether a memory operand must be aligned (SDM vol. 2A §2.4, exception classes). With few exceptions, operands of 16 bytes of
/// legacy SSE instructions must be aligned. Operands of VEX instructions must be aligned only for aligned and non-temporal moves.
fn must_be_aligned(i: &Instruction, size: u32) -> bool {
    use Mnemonic::*;
    match i.encoding() {
        EncodingKind::Legacy => {
            size == 16
                && !matches!(
                    i.mnemonic(),
                    Movups
                        | Movupd
                        | Movdqu
                        | Lddqu
                        | Pcmpestrm
                        | Pcmpestrm64
                        | Pcmpistri
                        | Pcmpistrm
                )
        }
        _ => matches!(
            i.mnemonic(),
            Vmovaps | Vmovapd | Vmovdqa | Vmovntps | Vmovntpd | Vmovntdq | Vmovntdqa
        ),
    }
}

fn system(code: Code) -> Option<System> {
    Some(match code {
        Code::Swapgs => System::SwapGs,
        Code::Cli => System::DisableInterrupts,
        Code::Sti => System::EnableInterrupts,
        Code::Pushfq => System::PushFlags,
        Code::Rdtsc => System::ReadClock,
        Code::Syscall => System::Call,
        Code::Sysretq => System::Return,
        _ => return None,
    })
}

fn branch(i: &Instruction) -> Option<Branch> {
    use Mnemonic::*;
    Some(match i.mnemonic() {
        Jmp if i.op0_kind() == OpKind::NearBranch64 => Branch::Direct,
        Jmp if i.code() == Code::Jmp_rm64 => Branch::Indirect,
        Call if i.op0_kind() == OpKind::NearBranch64 => Branch::Call,
        Call if i.code() == Code::Call_rm64 => Branch::CallIndirect,
        Ret if i.code() == Code::Retnq => Branch::Return(0),
        Ret if i.code() == Code::Retnq_imm16 => Branch::Return(i.immediate16()),
        _ => {
            // LOOPcc has a condition, too, but also counts in RCX.
            if i.op0_kind() != OpKind::NearBranch64 || !i.is_jcc_short_or_near() {
                return None;
            }
            Branch::Conditional(crate::ops::integer::condition::encoding(
                i.condition_code(),
            )?)
        }
    })
}

/// Returns whether the templates can compute a memory operand's address: its registers, if any, are 64-bit registers.
fn has_plain_address(i: &Instruction) -> bool {
    let wide = |r: Register| r == Register::None || r.is_gpr64() || r == Register::RIP;
    let (base, index) = (i.memory_base(), i.memory_index());
    if !wide(base) || !wide(index) {
        return false;
    }
    // Without registers only the displacement shows the address size.
    base != Register::None
        || index != Register::None
        || i.memory_displacement64() >> 31 == 0
        || i.memory_displacement64() >> 31 == (1 << 33) - 1
}

/// Returns whether an instruction combines AH, BH, CH or DH with a constant. Compilers test and clear bits of the second byte in this way.
fn is_on_high_byte(i: &Instruction) -> bool {
    use Mnemonic::*;
    i.op0_kind() == OpKind::Register
        && is_high_byte(i.op0_register())
        && i.op_count() == 2
        && i.op1_kind() == OpKind::Immediate8
        && matches!(i.mnemonic(), Add | And | Cmp | Mov | Or | Sub | Test | Xor)
}

/// Returns the plan of an instruction of 64-bit code.
pub fn plan(i: &Instruction, info: &mut InstructionInfoFactory, host: Host) -> Plan {
    if is_nop(i) {
        return Plan::Nop;
    }
    let has_memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    if has_memory && !has_plain_address(i) {
        return Plan::Interpret;
    }
    if let Some(branch) = branch(i) {
        return Plan::Branch(branch);
    }
    let m = i.mnemonic();
    if let Some(what) = system(i.code()) {
        return Plan::System(what);
    }
    if let Some(what) = StringOperation::of(i) {
        return Plan::String(what);
    }
    let named = |n: u32| match i.op_kind(n) {
        OpKind::Register => {
            let r = i.op_register(n);
            (r.is_gpr() || r.is_xmm() || r.is_ymm())
                && (!is_high_byte(r) || n == 0 && is_on_high_byte(i))
        }
        OpKind::Memory
        | OpKind::Immediate8
        | OpKind::Immediate8_2nd
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => true,
        _ => false,
    };
    if !(0..i.op_count()).all(named) {
        return Plan::Interpret;
    }
    match m {
        Mnemonic::Lea => {
            return if i.op_register(0).size() >= 4 && i.memory_base() != Register::RIP
                || i.op_register(0).is_gpr64()
            {
                Plan::Lea
            } else {
                Plan::Interpret
            };
        }
        Mnemonic::Push => {
            return match i.code() {
                Code::Push_r64 | Code::Pushq_imm32 | Code::Pushq_imm8 => Plan::Push,
                Code::Push_rm64 if has_memory => Plan::PushMemory,
                Code::Push_rm64 => Plan::Push,
                _ => Plan::Interpret,
            };
        }
        Mnemonic::Pop => {
            return match i.code() {
                Code::Pop_r64 if i.op0_register() == Register::RSP => Plan::PopStackPointer,
                Code::Pop_r64 => Plan::Pop,
                _ => Plan::Interpret,
            };
        }
        Mnemonic::Div | Mnemonic::Idiv => {
            return match i.code() {
                Code::Div_rm32 | Code::Div_rm64 => Plan::Divide { signed: false },
                Code::Idiv_rm32 | Code::Idiv_rm64 => Plan::Divide { signed: true },
                _ => Plan::Interpret,
            };
        }
        Mnemonic::Leave => {
            return if i.code() == Code::Leaveq {
                Plan::Leave
            } else {
                Plan::Interpret
            };
        }
        _ => {}
    }
    passthrough(i, info, host).map_or(Plan::Interpret, |p| Plan::Passthrough(Box::new(p)))
}

/// Returns the count of a rotation by a constant; None for other instructions, and for counts of zero and one.
fn rotation(i: &Instruction) -> Option<u8> {
    by_register(i.code())?;
    let wide = match i.op0_kind() {
        OpKind::Register => i.op0_register().is_gpr64(),
        _ => i.memory_size().size() == 8,
    };
    let count = i.immediate8() & if wide { 63 } else { 31 };
    (count > 1).then_some(count)
}

/// Returns the rotation by CL that corresponds to a rotation by a constant; None for other instructions.
fn by_register(code: Code) -> Option<Code> {
    use Code::*;
    Some(match code {
        Rol_rm8_imm8 => Rol_rm8_CL,
        Rol_rm16_imm8 => Rol_rm16_CL,
        Rol_rm32_imm8 => Rol_rm32_CL,
        Rol_rm64_imm8 => Rol_rm64_CL,
        Ror_rm8_imm8 => Ror_rm8_CL,
        Ror_rm16_imm8 => Ror_rm16_CL,
        Ror_rm32_imm8 => Ror_rm32_CL,
        Ror_rm64_imm8 => Ror_rm64_CL,
        Rcl_rm8_imm8 => Rcl_rm8_CL,
        Rcl_rm16_imm8 => Rcl_rm16_CL,
        Rcl_rm32_imm8 => Rcl_rm32_CL,
        Rcl_rm64_imm8 => Rcl_rm64_CL,
        Rcr_rm8_imm8 => Rcr_rm8_CL,
        Rcr_rm16_imm8 => Rcr_rm16_CL,
        Rcr_rm32_imm8 => Rcr_rm32_CL,
        Rcr_rm64_imm8 => Rcr_rm64_CL,
        _ => return None,
    })
}

fn passthrough(
    i: &Instruction,
    info: &mut InstructionInfoFactory,
    host: Host,
) -> Option<Passthrough> {
    let m = i.mnemonic();
    let vector = (0..i.op_count()).any(|n| {
        i.op_kind(n) == OpKind::Register && (i.op_register(n).is_xmm() || i.op_register(n).is_ymm())
    }) || matches!(m, Mnemonic::Vzeroupper | Mnemonic::Vzeroall);
    let conditional = i.condition_code() != iced_x86::ConditionCode::None;
    let known = if vector {
        host.avx
            && i.cpuid_features()
                .iter()
                .all(|f| unit(*f) == Some(Unit::Vector))
            && !is_odd_vector(m)
    } else {
        is_plain_integer(m) || conditional || host.bmi && is_extended_integer(m)
    };
    if !known {
        return None;
    }
    let mut instruction = *i;
    instruction.set_code(explicit(i.code()));
    // The vCPUs of a node run one at a time, so that accesses are atomic anyway.
    instruction.set_has_lock_prefix(false);
    let count = rotation(i);
    if let Some(code) = count.and(by_register(i.code())) {
        instruction.set_code(code);
        instruction.set_op1_kind(OpKind::Register);
        instruction.set_op1_register(Register::CL);
    }
    use Code::*;
    // Some hosts (AMD's) read 32 bits for the 16-bit operand of MOVSXD r16. The upper 16 bits may lie in a page that does not exist.
    if matches!(
        i.code(),
        Movsxd_r16_rm16
            | Mov_AL_moffs8
            | Mov_AX_moffs16
            | Mov_EAX_moffs32
            | Mov_RAX_moffs64
            | Mov_moffs8_AL
            | Mov_moffs16_AX
            | Mov_moffs32_EAX
            | Mov_moffs64_RAX
    ) {
        return None;
    }
    let by_cl = matches!(
        m,
        Mnemonic::Shl
            | Mnemonic::Sal
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Shld
            | Mnemonic::Shrd
    ) && {
        let last = i.op_count() - 1;
        count.is_some()
            || i.op_kind(last) == OpKind::Register && i.op_register(last) == Register::CL
    };
    let info = info.info(i);
    let memory = match info.used_memory() {
        [] => None,
        [m] => {
            use OpAccess::{CondRead, Read, ReadCondWrite, ReadWrite, Write};
            let (read, write) = match m.access() {
                Read => (true, false),
                CondRead if conditional => (true, false),
                Write => (false, true),
                ReadWrite | ReadCondWrite => (true, true),
                _ => return None,
            };
            let size = m.memory_size().size() as u32;
            if size == 0 || size > 32 {
                return None;
            }
            Some(Memory {
                read,
                write,
                conditional: m.access() == ReadCondWrite,
                size,
                aligned: must_be_aligned(i, size),
                non_temporal: is_non_temporal_store(i.mnemonic()),
                locked: is_locked(i),
            })
        }
        _ => return None,
    };
    // With a bit number in a register, these instructions access memory beyond the operand.
    if memory.is_some()
        && matches!(
            m,
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
        )
        && i.op_kind(1) == OpKind::Register
    {
        return None;
    }
    let mut rax = false;
    for used in info.used_registers() {
        let r = used.register().full_register();
        if !r.is_gpr() {
            continue;
        }
        let is_named = (0..i.op_count()).any(|n| match i.op_kind(n) {
            OpKind::Register => i.op_register(n).full_register() == r,
            OpKind::Memory => i.memory_base() == r || i.memory_index() == r,
            _ => false,
        });
        if is_named {
            continue;
        }
        match r {
            Register::RAX => rax = true,
            Register::RDX => {}
            _ => return None,
        }
    }
    // These instructions use RAX implicitly, and may also name RAX as an operand or in an address.
    if matches!(
        m,
        Mnemonic::Pcmpestrm
            | Mnemonic::Pcmpestrm64
            | Mnemonic::Vpcmpestrm
            | Mnemonic::Vpcmpestrm64
            | Mnemonic::Cmpxchg
            | Mnemonic::Mul
            | Mnemonic::Cdq
            | Mnemonic::Cqo
            | Mnemonic::Cwd
            | Mnemonic::Cbw
            | Mnemonic::Cwde
            | Mnemonic::Cdqe
    ) || m == Mnemonic::Imul && i.op_count() == 1
    {
        rax = true;
    }
    let names_rax = (0..i.op_count()).any(|n| {
        i.op_kind(n) == OpKind::Register && i.op_register(n).full_register() == Register::RAX
    });
    let rdx_moves = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory) && by_cl;
    if rdx_moves || rax && by_cl {
        return None;
    }
    // A named RAX would become another host register than the implied RAX.
    if rax && names_rax {
        return None;
    }
    let (read, modified) = (i.rflags_read() & STATUS, i.rflags_modified() & STATUS);
    // A rotation through the carry by a full round may change the undefined OF on some hosts (AMD's).
    let flags_out = modified != 0 || count.is_some();
    let preset_flags = host.keeps_flags
        && matches!(
            m,
            Mnemonic::Imul | Mnemonic::Mul | Mnemonic::Tzcnt | Mnemonic::Lzcnt
        );
    let keeps = host.scans_keep_flags && matches!(m, Mnemonic::Bsf | Mnemonic::Bsr);
    let mut written = 0;
    for n in 0..i.op_count() {
        if writes(info.op_access(n)) {
            written |= 1 << n;
        }
    }
    Some(Passthrough {
        instruction,
        memory,
        rax,
        cl: by_cl,
        count,
        vector,
        flags_in: read != 0 || flags_out && (modified != STATUS || by_cl || keeps),
        flags_out,
        preset_flags,
        written,
    })
}

/// Returns the instructions of 64-bit code, and their plans for a host with all features but AVX-512.
#[cfg(test)]
pub fn planned(
    code: impl FnOnce(&mut iced_x86::code_asm::CodeAssembler),
) -> (Vec<Instruction>, Vec<Plan>) {
    use iced_x86::code_asm::CodeAssembler;
    use iced_x86::{Decoder, DecoderOptions};

    let mut assembler = CodeAssembler::new(64).unwrap();
    code(&mut assembler);
    let bytes = assembler.assemble(0x1000).unwrap();
    let instructions: Vec<_> = Decoder::with_ip(64, &bytes, 0x1000, DecoderOptions::NONE)
        .into_iter()
        .collect();
    let mut factory = InstructionInfoFactory::new();
    let plans: Vec<_> = instructions
        .iter()
        .map(|i| plan(i, &mut factory, HOST))
        .collect();
    (instructions, plans)
}

/// A host with all features but AVX-512.
#[cfg(test)]
const HOST: Host = Host {
    avx: true,
    bmi: true,
    avx512: false,
    keeps_flags: false,
    scans_keep_flags: false,
};

#[cfg(test)]
mod tests {
    use nodescope_machine::cpuid::{CpuidOptions, tables};
    use nodescope_machine::topology::NodeTopology;

    use super::*;
    use crate::cpu::Mode;
    use crate::features::{Features, GuestDecoder};

    /// The guests' processor has no indirect branch tracking, and ENDBR64 begins most functions of stock kernels and libraries.
    #[test]
    fn endbr64_costs_no_call_of_the_interpreter() {
        let tables = tables(
            &NodeTopology::default(),
            &CpuidOptions::default(),
            &[],
            |_| true,
        )
        .expect("this host executes what a 64-bit Linux needs");
        let features = Features::new(&tables[0]);
        let endbr64 = &[0xf3, 0x0f, 0x1e, 0xfa];
        let i = GuestDecoder::new(features, Mode::Bits64, endbr64, 0x1000).decode();
        assert_eq!(i.len(), endbr64.len());
        let plan = plan(&i, &mut InstructionInfoFactory::new(), HOST);
        assert!(matches!(plan, Plan::Nop), "{:?}: {plan:?}", i.code());
    }
}
