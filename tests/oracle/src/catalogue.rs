//! Catalogue of the instructions that are compared, by group.

use std::fmt;
use std::str::FromStr;

use iced_x86::{Code, CpuidFeature, EncodingKind, Mnemonic, OpCodeOperandKind, OpCodeTableKind};
use nodescope_x86::features::{ALWAYS, Feature, Unit, announcing};

/// Group of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Group {
    Integer,
    Branch,
    String,
    Bmi,
    X87,
    Mmx,
    Sse,
    Avx,
    Fma,
    /// FXSAVE, FXRSTOR, XSAVE, XRSTOR, and loads and stores of MXCSR.
    State,
    /// Encodings of all other groups' instructions that must raise `#UD`.
    Invalid,
}

impl Group {
    /// Every group, in the order of reports.
    pub const ALL: [Self; 11] = [
        Self::Integer,
        Self::Branch,
        Self::String,
        Self::Bmi,
        Self::X87,
        Self::Mmx,
        Self::Sse,
        Self::Avx,
        Self::Fma,
        Self::State,
        Self::Invalid,
    ];

    /// Returns the group's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Branch => "branch",
            Self::String => "string",
            Self::Bmi => "bmi",
            Self::X87 => "x87",
            Self::Mmx => "mmx",
            Self::Sse => "sse",
            Self::Avx => "avx",
            Self::Fma => "fma",
            Self::State => "state",
            Self::Invalid => "invalid",
        }
    }

    /// Returns the CPU features that this group needs and the host lacks.
    pub fn missing(self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        macro_rules! need {
            ($($feature:tt),*) => {{$(
                if !is_x86_feature_detected!($feature) {
                    missing.push($feature);
                }
            )*}};
        }
        match self {
            Self::Integer => need!("popcnt", "movbe", "adx", "sse4.2", "cmpxchg16b"),
            Self::Bmi => need!("bmi1", "bmi2", "lzcnt"),
            Self::Sse => need!("sse4.2", "aes", "pclmulqdq"),
            Self::Avx => need!("avx2", "f16c", "aes", "pclmulqdq"),
            Self::Fma => need!("fma"),
            Self::Mmx => need!("ssse3"),
            Self::State => need!("xsave", "fxsr"),
            Self::Invalid => need!("avx2", "fma", "bmi2", "f16c"),
            Self::Branch | Self::String | Self::X87 => {}
        }
        missing
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Group {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|g| g.name() == s)
            .ok_or_else(|| {
                let names: Vec<_> = Self::ALL.iter().map(|g| g.name()).collect();
                format!("unknown group '{s}'; groups are {}", names.join(", "))
            })
    }
}

/// Returns the instructions of a group, in iced-x86's order. The group `Invalid` has all instructions that are compared.
pub fn codes(group: Group) -> Vec<Code> {
    Code::values()
        .filter(|&c| {
            let g = group_of(c);
            if group == Group::Invalid {
                g.is_some()
            } else {
                g == Some(group)
            }
        })
        .collect()
}

/// Returns the group of an instruction; None if the instruction is not compared.
pub fn group_of(code: Code) -> Option<Group> {
    use CpuidFeature as F;
    use Mnemonic as M;
    let info = code.op_code();
    if !info.is_instruction()
        || !info.mode64()
        || info.must_be_cpl0()
        || info.is_privileged()
        || info.is_reserved_nop()
        // iced-x86 treats FWAIT and the instruction after it as one; a CPU executes two.
        || info.fwait()
        || !matches!(info.encoding(), EncodingKind::Legacy | EncodingKind::VEX)
        || !matches!(
            info.table(),
            OpCodeTableKind::Normal
                | OpCodeTableKind::T0F
                | OpCodeTableKind::T0F38
                | OpCodeTableKind::T0F3A
        )
    {
        return None;
    }
    let features = code.cpuid_features();
    let known = |feature: &CpuidFeature| {
        // Results of the others differ between any two machines, or are no results.
        let computes = |shown: &Feature| {
            shown.unit != Some(Unit::System) && *feature != F::XSAVEOPT && shown.is_on_host()
        };
        ALWAYS.contains(feature) || announcing(*feature).is_some_and(computes)
    };
    if !features.iter().all(known) {
        return None;
    }
    // Instructions with segment, control, debug or test registers and far branches are left out: the native side has other selectors, and
    // other tests load segments.
    if (0..code.op_code().op_count()).any(|i| {
        use OpCodeOperandKind as K;
        matches!(
            info.op_kind(i),
            K::seg_reg
                | K::es
                | K::cs
                | K::ss
                | K::ds
                | K::fs
                | K::gs
                | K::farbr2_2
                | K::farbr4_2
                | K::cr_reg
                | K::dr_reg
                | K::tr_reg
                | K::seg_rBX_al
        ) && info.op_kind(i) != K::seg_rBX_al
    }) {
        return None;
    }
    // 16-bit near branches in 64-bit mode differ between vendors.
    let near = code.is_jmp_short_or_near()
        || code.is_jmp_near_indirect()
        || code.is_call_near()
        || code.is_call_near_indirect()
        || code.is_jcc_short_or_near()
        || code.is_jcx_short()
        || code.is_loopcc()
        || code.is_loop()
        || matches!(code.mnemonic(), M::Ret);
    if near {
        let other_size = info.operand_size() == 16
            || (0..info.op_count()).any(|i| {
                use OpCodeOperandKind as K;
                matches!(
                    info.op_kind(i),
                    K::br16_1 | K::br16_2 | K::br32_1 | K::br32_4
                )
            });
        return (!other_size).then_some(Group::Branch);
    }
    match code.mnemonic() {
        // System instructions, and instructions whose results differ between any two machines.
        M::Cpuid | M::Syscall | M::Sysret | M::Sysenter | M::Sysexit | M::Sysretq | M::Sysexitq => {
            return None;
        }
        M::Int | M::Int1 | M::Int3 | M::Into | M::Iret | M::Iretd | M::Iretq | M::Retf => {
            return None;
        }
        M::In | M::Out | M::Insb | M::Insw | M::Insd | M::Outsb | M::Outsw | M::Outsd => {
            return None;
        }
        M::Jmp | M::Call | M::Jmpe | M::Lss | M::Lfs | M::Lgs | M::Hlt | M::Cli | M::Sti => {
            return None;
        }
        M::Lar | M::Lsl | M::Verr | M::Verw | M::Str | M::Sldt | M::Smsw | M::Sgdt | M::Sidt => {
            return None;
        }
        M::Xgetbv | M::Xsetbv | M::Loadall | M::Rdtsc | M::Rdpmc => return None,
        // UD0 without ModRM is an older definition of the same opcode.
        M::Ud0 if info.op_count() == 0 => return None,
        // The result of BSWAP on 16 bits is undefined.
        M::Bswap if info.operand_size() == 16 => return None,
        M::Fxsave | M::Fxsave64 | M::Fxrstor | M::Fxrstor64 => return Some(Group::State),
        M::Xsave | M::Xsave64 | M::Xrstor | M::Xrstor64 => return Some(Group::State),
        M::Wait => return Some(Group::X87),
        M::Ldmxcsr | M::Stmxcsr | M::Vldmxcsr | M::Vstmxcsr => return Some(Group::State),
        M::Movsb | M::Movsw | M::Movsq | M::Cmpsb | M::Cmpsw | M::Cmpsq => {
            return Some(Group::String);
        }
        M::Stosb | M::Stosw | M::Stosd | M::Stosq | M::Lodsb | M::Lodsw | M::Lodsd | M::Lodsq => {
            return Some(Group::String);
        }
        M::Scasb | M::Scasw | M::Scasd | M::Scasq => return Some(Group::String),
        _ => {}
    }
    if code.is_string_instruction() {
        return Some(Group::String);
    }
    let has = |list: &[CpuidFeature]| features.iter().any(|f| list.contains(f));
    Some(if has(&[F::FMA]) {
        Group::Fma
    } else if has(&[F::FPU, F::FPU287, F::FPU387]) {
        Group::X87
    } else if has(&[F::BMI1, F::BMI2, F::LZCNT]) {
        Group::Bmi
    } else if has(&[F::AVX, F::AVX2, F::F16C]) {
        Group::Avx
    } else if (0..info.op_count()).any(|i| {
        use OpCodeOperandKind as K;
        matches!(info.op_kind(i), K::mm_reg | K::mm_rm | K::mm_or_mem)
    }) || has(&[F::MMX])
    {
        Group::Mmx
    } else if has(&[
        F::SSE,
        F::SSE2,
        F::SSE3,
        F::SSSE3,
        F::SSE4_1,
        F::AES,
        F::PCLMULQDQ,
    ]) || has(&[F::SSE4_2]) && code.mnemonic() != M::Crc32
    {
        Group::Sse
    } else {
        Group::Integer
    })
}
