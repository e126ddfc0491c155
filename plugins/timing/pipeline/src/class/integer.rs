//! Classes of instructions on general registers, of jumps and of the system.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::{Class, has_memory, is_string, register, stores};

/// Returns the class of an instruction on general registers; `None` for all others.
pub(super) fn class(instruction: &Instruction) -> Option<Class> {
    moves(instruction)
        .or_else(|| arithmetic(instruction))
        .or_else(|| bits(instruction))
        .or_else(|| jumps(instruction))
        .or_else(|| strings(instruction))
        .or_else(|| system(instruction))
}

fn moves(instruction: &Instruction) -> Option<Class> {
    use Mnemonic as M;
    let memory = has_memory(instruction);
    let store = stores(instruction);
    let target = register(instruction, 0);
    Some(match instruction.mnemonic() {
        M::Mov if special(target) || special(register(instruction, 1)) => Class::System,
        M::Push if target.is_segment_register() => Class::System,
        M::Mov if store => Class::Store,
        M::Push | M::Movnti | M::Movdiri => Class::Store,
        M::Mov if memory && target.is_gpr32() | target.is_gpr64() => Class::Load,
        M::Mov if memory => Class::LoadNarrow,
        M::Mov => Class::Move,
        M::Pop if target.is_segment_register() => Class::System,
        M::Pop => Class::Load,
        M::Movzx if memory => Class::LoadExtend,
        M::Movsx | M::Movsxd if memory => Class::LoadSignExtend,
        M::Movzx | M::Movsx | M::Movsxd => Class::Extend,
        M::Cbw | M::Cwde | M::Cdqe | M::Cwd | M::Cdq | M::Cqo => Class::Extend,
        M::Bswap if target.is_gpr64() => Class::ByteSwap64,
        M::Bswap => Class::ByteSwap,
        M::Movbe if target.is_gpr64() || register(instruction, 1).is_gpr64() => Class::ByteSwap64,
        M::Movbe => Class::ByteSwap,
        M::Lea => lea(instruction),
        M::Xchg => Class::Exchange,
        M::Xadd => Class::ExchangeAdd,
        M::Cmpxchg => Class::CompareExchange,
        M::Cmpxchg8b | M::Cmpxchg16b => Class::CompareExchangeWide,
        M::Xlatb => Class::Integer,
        M::Leave => Class::Leave,
        M::Enter => Class::Enter,
        M::Nop | M::Endbr64 | M::Endbr32 | M::Reservednop | M::Fnop | M::Wait => Class::Nop,
        M::Prefetchnta
        | M::Prefetcht0
        | M::Prefetcht1
        | M::Prefetcht2
        | M::Prefetchw
        | M::Prefetchwt1
        | M::Prefetch
        | M::Prefetchit0
        | M::Prefetchit1
        | M::Cldemote => Class::Prefetch,
        _ => return None,
    })
}

/// Returns whether a move to or from a register goes through the system: segment, control and debug registers.
fn special(register: Register) -> bool {
    register.is_segment_register() || register.is_cr() || register.is_dr() || register.is_tr()
}

fn lea(instruction: &Instruction) -> Class {
    let base = instruction.memory_base();
    let index = instruction.memory_index();
    if base.is_gpr16() || index.is_gpr16() {
        return Class::LeaThree;
    }
    // RIP and EIP are constants.
    let based = base.is_gpr();
    let scaled = index != Register::None && instruction.memory_index_scale() > 1;
    let displaced = instruction.memory_displacement64() != 0;
    let three = based && index != Register::None && displaced;
    match (three, scaled) {
        (true, true) => Class::LeaThreeScaled,
        (true, false) => Class::LeaThree,
        (false, true) => Class::LeaScaled,
        (false, false) => Class::Lea,
    }
}

fn arithmetic(instruction: &Instruction) -> Option<Class> {
    use Mnemonic as M;
    let by_register =
        register(instruction, instruction.op_count().saturating_sub(1)) == Register::CL;
    let by_one = instruction.op_count() == 2
        && instruction.op1_kind() == OpKind::Immediate8
        && instruction.immediate8() == 1;
    Some(match instruction.mnemonic() {
        M::Add | M::Sub | M::And | M::Or | M::Xor | M::Cmp | M::Test => Class::Integer,
        M::Inc | M::Dec | M::Neg | M::Not => Class::Integer,
        M::Adc | M::Sbb | M::Adcx | M::Adox => Class::Carry,
        M::Shl | M::Shr | M::Sal | M::Sar if by_register => Class::ShiftByRegister,
        M::Shl | M::Shr | M::Sal | M::Sar => Class::Shift,
        M::Shlx | M::Shrx | M::Sarx | M::Rorx => Class::ShiftWithoutFlags,
        M::Rol | M::Ror if by_register => Class::RotateByRegister,
        M::Rol | M::Ror => Class::Rotate,
        M::Rcl | M::Rcr if by_one => Class::RotateCarry,
        M::Rcl | M::Rcr => Class::RotateCarryByCount,
        M::Shld | M::Shrd if by_register => Class::ShiftDoubleByRegister,
        M::Shld | M::Shrd => Class::ShiftDouble,
        M::Imul if instruction.op_count() > 1 => Class::Multiply,
        M::Imul | M::Mul => Class::MultiplyWide,
        M::Mulx => Class::MultiplyWithoutFlags,
        M::Div | M::Idiv => divide(instruction),
        M::Aaa | M::Aas | M::Aad | M::Aam | M::Daa | M::Das => Class::DivideNarrow,
        _ => return None,
    })
}

fn divide(instruction: &Instruction) -> Class {
    let size = match instruction.op0_kind() {
        OpKind::Register => instruction.op0_register().size(),
        _ => instruction.memory_size().size(),
    };
    match (size, instruction.mnemonic()) {
        (4, Mnemonic::Div) => Class::Divide32,
        (4, _) => Class::SignedDivide32,
        (8, Mnemonic::Div) => Class::Divide64,
        (8, _) => Class::SignedDivide64,
        _ => Class::DivideNarrow,
    }
}

fn bits(instruction: &Instruction) -> Option<Class> {
    use Mnemonic as M;
    let in_memory = stores(instruction) && register(instruction, 1) != Register::None;
    Some(match instruction.mnemonic() {
        M::Popcnt => Class::PopulationCount,
        M::Lzcnt => Class::LeadingZeros,
        M::Tzcnt => Class::TrailingZeros,
        M::Bsf | M::Bsr => Class::BitScan,
        M::Andn | M::Blsr | M::Blsi | M::Blsmsk => Class::BitLogic,
        M::Bextr => Class::BitExtract,
        M::Bzhi => Class::BitZero,
        M::Pdep | M::Pext => Class::BitDeposit,
        M::Bt | M::Bts | M::Btr | M::Btc if in_memory => Class::BitMemory,
        M::Bt => Class::BitTest,
        M::Bts | M::Btr | M::Btc => Class::BitSet,
        M::Cmova | M::Cmovbe => Class::ConditionalMoveTwo,
        M::Cmovae | M::Cmovb | M::Cmove | M::Cmovne | M::Cmovg | M::Cmovge | M::Cmovl => {
            Class::ConditionalMove
        }
        M::Cmovle | M::Cmovno | M::Cmovnp | M::Cmovns | M::Cmovo | M::Cmovp | M::Cmovs => {
            Class::ConditionalMove
        }
        M::Seta | M::Setbe => Class::SetConditionTwo,
        M::Setae | M::Setb | M::Sete | M::Setne | M::Setg | M::Setge | M::Setl | M::Setle => {
            Class::SetCondition
        }
        M::Setno | M::Setnp | M::Setns | M::Seto | M::Setp | M::Sets | M::Salc => {
            Class::SetCondition
        }
        M::Lahf => Class::FlagsRead,
        M::Sahf => Class::FlagsWrite,
        M::Pushf | M::Pushfd | M::Pushfq => Class::FlagsPush,
        M::Popf | M::Popfd | M::Popfq => Class::FlagsPop,
        M::Clc | M::Stc | M::Cmc => Class::CarryFlag,
        M::Cld | M::Std => Class::DirectionFlag,
        M::Crc32 => Class::Crc32,
        _ => return None,
    })
}

fn jumps(instruction: &Instruction) -> Option<Class> {
    use iced_x86::FlowControl as F;
    let far = instruction.is_jmp_far()
        || instruction.is_call_far()
        || instruction.is_jmp_far_indirect()
        || instruction.is_call_far_indirect();
    Some(match instruction.flow_control() {
        F::Next => return None,
        _ if far => Class::System,
        F::UnconditionalBranch => Class::Jump,
        F::IndirectBranch => Class::JumpIndirect,
        F::ConditionalBranch => match instruction.mnemonic() {
            Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne => Class::Loop,
            Mnemonic::Jcxz | Mnemonic::Jecxz | Mnemonic::Jrcxz => Class::JumpCounter,
            _ => Class::JumpConditional,
        },
        F::Call if instruction.is_call_near() => Class::Call,
        F::IndirectCall => Class::CallIndirect,
        F::Return if instruction.mnemonic() == Mnemonic::Ret => Class::Return,
        _ => Class::System,
    })
}

fn strings(instruction: &Instruction) -> Option<Class> {
    use Mnemonic as M;
    if is_string(instruction, M::Movsd) {
        return Some(Class::StringMove);
    }
    if is_string(instruction, M::Cmpsd) {
        return Some(Class::StringCompare);
    }
    Some(match instruction.mnemonic() {
        M::Movsb | M::Movsw | M::Movsq => Class::StringMove,
        M::Stosb | M::Stosw | M::Stosd | M::Stosq => Class::StringStore,
        M::Lodsb | M::Lodsw | M::Lodsd | M::Lodsq => Class::StringLoad,
        M::Scasb | M::Scasw | M::Scasd | M::Scasq => Class::StringScan,
        M::Cmpsb | M::Cmpsw | M::Cmpsq => Class::StringCompare,
        _ => return None,
    })
}

fn system(instruction: &Instruction) -> Option<Class> {
    use Mnemonic as M;
    if instruction.is_privileged() || instruction.is_save_restore_instruction() {
        return Some(Class::System);
    }
    Some(match instruction.mnemonic() {
        M::Cpuid | M::Rdtsc | M::Rdtscp | M::Rdpmc | M::Rdpid | M::Rdrand | M::Rdseed => {
            Class::System
        }
        M::Xgetbv | M::Rdpkru | M::Wrpkru | M::Serialize | M::Pause => Class::System,
        M::Mfence | M::Lfence | M::Sfence => Class::System,
        M::Clflush | M::Clflushopt | M::Clwb | M::Clzero | M::Movdir64b | M::Enqcmd => {
            Class::System
        }
        M::Rdfsbase | M::Rdgsbase | M::Wrfsbase | M::Wrgsbase => Class::System,
        M::In | M::Out | M::Insb | M::Insw | M::Insd | M::Outsb | M::Outsw | M::Outsd => {
            Class::System
        }
        M::Umonitor | M::Umwait | M::Tpause | M::Monitorx | M::Mwaitx => Class::System,
        M::Pusha | M::Pushad | M::Popa | M::Popad | M::Bound | M::Arpl => Class::System,
        M::Verr | M::Verw | M::Lar | M::Lsl | M::Sgdt | M::Sidt | M::Sldt | M::Smsw | M::Str => {
            Class::System
        }
        M::Lds | M::Les | M::Lfs | M::Lgs | M::Lss => Class::System,
        M::Emms | M::Femms => Class::System,
        _ => return None,
    })
}
