//! Classes of instructions on vector, mask and x87 registers.

use std::collections::HashMap;
use std::sync::LazyLock;

use iced_x86::{Instruction, Mnemonic, Register};

use super::{Class, has_memory, register, stores};

/// Classes by mnemonic. A V before the name is optional; `*` stands for the rest of a name. Of several names that match, the longest counts.
/// Classes that depend on operands are refined in [`refine`].
const NAMES: &[(Class, &str)] = &[
    (
        Class::VectorMove,
        "movaps movapd movups movupd movdqa* movdqu* movntps movntpd movntdq movntq movntsd movntss movntdqa lddqu movq2dq movdq2q",
    ),
    (Class::Blend, "movss movsd movsh"),
    (Class::ToVector, "movd movq movw"),
    (Class::LoadHalf, "movlps movlpd movhps movhpd"),
    (Class::VectorLogic, "pand* por pord porq pxor* pternlog*"),
    (
        Class::FloatLogic,
        "andps andpd andnps andnpd orps orpd xorps xorpd",
    ),
    (Class::VectorAdd, "padd* psub* pmin* pmax*"),
    (
        Class::VectorSaturate,
        "paddsb paddsw paddusb paddusw psubsb psubsw psubusb psubusw pabs* psign*",
    ),
    (Class::VectorAverage, "pavg* pmulhrw"),
    (Class::VectorCompare, "pcmp* pcom* ptestm* ptestnm*"),
    (Class::VectorCompareGreater64, "pcmpgtq"),
    (
        Class::VectorMultiply,
        "pmul* pmadd* pmac* pmadc* pdpb* pdpw* dpbf* gf2p8*",
    ),
    (Class::VectorMultiply32, "pmulld pmullq"),
    (Class::VectorDifferences, "psadbw"),
    (Class::VectorDifferencesMultiple, "mpsadbw dbpsadbw"),
    (Class::VectorMinimumPosition, "phminposuw"),
    (
        Class::VectorShift,
        "psll* psrl* psra* prol* pror* prot* psha* pshl* pshrd*",
    ),
    (
        Class::VectorShiftVariable,
        "psllvd psllvq psllvw psrlvd psrlvq psrlvw psravd psravq psravw prolv* prorv* pshldv* pshrdv*",
    ),
    (
        Class::Shuffle,
        "pshufd pshufhw pshuflw pshufw punpck* pswapd",
    ),
    (
        Class::ShuffleBytes,
        "pshufb palignr packss* packus* pslldq psrldq extrq insertq pperm",
    ),
    (
        Class::FloatShuffle,
        "shufps shufpd unpck* movhlps movlhps movshdup movsldup movddup insertps permil*",
    ),
    (Class::VectorExtend, "pmovzx* pmovsx*"),
    (
        Class::ShuffleLanes,
        "permd permq permps permpd permb permw permi2* permt2* alignd alignq pcompress* compress* pexpand* expand* shuff* shufi* pmovdb pmovdw pmovqb pmovqd pmovqw pmovwb pmovs* pmovus*",
    ),
    (Class::LanesPermute, "perm2f128 perm2i128"),
    (Class::LaneInsert, "insertf* inserti*"),
    (Class::LaneExtract, "extractf* extracti*"),
    (Class::Broadcast, "broadcast* pbroadcast*"),
    (Class::Blend, "blendps blendpd pblendd"),
    (Class::BlendWords, "pblendw"),
    (
        Class::BlendVariable,
        "blendv* pblendvb blendm* pblendm* pcmov",
    ),
    (Class::ElementInsert, "pinsr*"),
    (Class::ElementExtract, "pextr* extractps"),
    (Class::MoveMask, "movmskps movmskpd pmovmskb"),
    (Class::VectorTest, "ptest testps testpd"),
    (Class::VectorHorizontalAdd, "phadd* phsub*"),
    (Class::FloatHorizontalAdd, "haddps haddpd hsubps hsubpd"),
    (Class::DotProductSingle, "dpps"),
    (Class::DotProductDouble, "dppd"),
    (
        Class::FloatAdd,
        "addps addpd addss addsd addph addsh subps subpd subss subsd subph subsh addsub* pfadd pfsub*",
    ),
    (
        Class::FloatMultiply,
        "mulps mulpd mulss mulsd mulph mulsh fmulcph fmulcsh fcmulcph fcmulcsh pfmul scalef*",
    ),
    (
        Class::FloatMultiplyAdd,
        "fmadd* fmsub* fnmadd* fnmsub* fcmadd* pmadd52* 4fmadd* 4fnmadd*",
    ),
    (
        Class::FloatCompare,
        "cmpps cmppd cmpss cmpsd cmpph cmpsh minps minpd minss minsd minph minsh maxps maxpd maxss maxsd maxph maxsh range* fpclass*",
    ),
    (
        Class::FloatCompareFlags,
        "comiss comisd comish ucomiss ucomisd ucomish",
    ),
    (
        Class::FloatRound,
        "round* rndscale* reduce* getexp* getmant* frcz*",
    ),
    (Class::FloatReciprocal, "rcp* rsqrt* pfrcp* pfrsq*"),
    (Class::DivideSingle, "divss divps divph divsh"),
    (Class::DivideDouble, "divsd divpd"),
    (Class::RootSingle, "sqrtss sqrtps sqrtph sqrtsh"),
    (Class::RootDouble, "sqrtsd sqrtpd"),
    (
        Class::Convert,
        "cvtdq2ps cvtps2dq cvttps2dq cvtqq2pd cvtuqq2pd cvtpd2qq cvttpd2qq cvtpd2uqq cvttpd2uqq cvtudq2ps cvtps2udq cvttps2udq",
    ),
    (Class::ConvertSize, "cvt*"),
    (Class::ConvertFromGeneral, "cvtsi2* cvtusi2*"),
    (
        Class::ConvertToGeneral,
        "cvtsd2si cvtss2si cvttsd2si cvttss2si cvtsh2si cvttsh2si cvtsd2usi cvtss2usi cvttsd2usi cvttss2usi cvtsh2usi cvttsh2usi",
    ),
    (Class::Aes, "aesenc aesenclast aesdec aesdeclast"),
    (Class::AesInverse, "aesimc"),
    (Class::AesKey, "aeskeygenassist"),
    (Class::CarrylessMultiply, "pclmulqdq"),
    (Class::Sha, "sha1* sha256* sha512* sm3* sm4*"),
    (Class::StringSearch, "pcmpistr*"),
    (Class::StringSearchExplicit, "pcmpestr*"),
    (Class::ZeroUpper, "zeroupper"),
    (Class::ZeroAll, "zeroall"),
    (Class::LoadMasked, "maskmov* pmaskmov*"),
    (Class::StoreMasked, "maskmovdqu maskmovq"),
    (Class::GatherFour, "gather* pgather* scatter* pscatter*"),
    (
        Class::Mask,
        "kadd* kand* kmov* knot* kor* kshift* ktest* kunpck* kxnor* kxor*",
    ),
    (Class::ControlLoad, "ldmxcsr"),
    (Class::ControlStore, "stmxcsr"),
    (Class::X87Move, "fld fst fstp ffree ffreep fincstp fdecstp"),
    (
        Class::X87Constant,
        "fld1 fldz fldpi fldl2e fldl2t fldlg2 fldln2",
    ),
    (Class::X87Exchange, "fxch"),
    (Class::X87Sign, "fabs fchs"),
    (
        Class::X87Add,
        "fadd faddp fsub fsubp fsubr fsubrp fiadd fisub fisubr",
    ),
    (Class::X87Multiply, "fmul fmulp fimul"),
    (Class::X87Divide, "fdiv fdivp fdivr fdivrp fidiv fidivr"),
    (Class::X87Root, "fsqrt"),
    (
        Class::X87Compare,
        "fcom fcomp fcompp fucom fucomp fucompp ficom ficomp ftst fxam",
    ),
    (Class::X87CompareFlags, "fcomi fcomip fucomi fucomip"),
    (Class::X87ConditionalMove, "fcmov*"),
    (Class::X87Convert, "fild fist fistp fisttp fbld fbstp"),
    (Class::X87Round, "frndint"),
    (
        Class::X87Function,
        "fsin fcos fsincos fptan fpatan f2xm1 fyl2x fyl2xp1 fscale fxtract",
    ),
    (Class::X87Remainder, "fprem fprem1"),
    (
        Class::X87Control,
        "fldcw fnstcw fstcw fninit finit fnclex fclex",
    ),
    (Class::X87Status, "fnstsw fstsw"),
];

/// Classes of all mnemonics that [`NAMES`] contains.
static CLASSES: LazyLock<HashMap<Mnemonic, Class>> = LazyLock::new(|| {
    Mnemonic::values()
        .filter_map(|mnemonic| Some((mnemonic, by_name(mnemonic)?)))
        .collect()
});

/// Returns the class of an instruction on vector, mask or x87 registers; `None` for all others.
pub(super) fn class(instruction: &Instruction) -> Option<Class> {
    let class = *CLASSES.get(&instruction.mnemonic())?;
    Some(refine(instruction, class))
}

/// Returns the class of the longest name in [`NAMES`] that matches a mnemonic.
fn by_name(mnemonic: Mnemonic) -> Option<Class> {
    let name = format!("{mnemonic:?}").to_lowercase();
    let matching = |name: &str| {
        NAMES
            .iter()
            .flat_map(|(class, patterns)| patterns.split(' ').map(move |p| (p, *class)))
            .filter(|(pattern, _)| matches(pattern, name))
            .max_by_key(|(pattern, _)| (pattern.len(), !pattern.ends_with('*')))
            .map(|(_, class)| class)
    };
    matching(&name).or_else(|| matching(name.strip_prefix('v')?))
}

pub(super) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

/// Returns the class that the operands make of the class of a mnemonic.
fn refine(instruction: &Instruction, class: Class) -> Class {
    let memory = has_memory(instruction);
    let store = stores(instruction);
    let wide = (0..instruction.op_count()).any(|n| {
        let register = register(instruction, n);
        register.is_ymm() || register.is_zmm()
    });
    match class {
        Class::VectorMove | Class::Blend if store => Class::Store,
        Class::VectorMove if memory => Class::Load,
        Class::Blend if memory && instruction.op_count() == 2 => match moves(instruction) {
            true => Class::Load,
            false => class,
        },
        Class::ToVector => transfer(instruction),
        Class::LoadHalf => half(instruction),
        Class::FloatShuffle if memory && instruction.op_count() == 2 => duplicate(instruction),
        Class::FloatShuffle if register(instruction, 2).is_vector_register() => {
            permute(instruction)
        }
        Class::VectorShift
            if register(instruction, instruction.op_count() - 1).is_vector_register() =>
        {
            Class::VectorShiftByRegister
        }
        Class::VectorExtend if wide => Class::VectorExtendLanes,
        Class::LaneInsert | Class::LaneExtract if store => Class::StoreLane,
        Class::LaneInsert if memory => Class::Blend,
        Class::Broadcast => broadcast(instruction, wide),
        Class::ElementExtract if store => Class::StoreElement,
        // The element comes from memory, and the insertion is a shuffle.
        Class::ElementInsert if memory => Class::Shuffle,
        Class::LoadMasked if store => Class::StoreMasked,
        Class::GatherFour if elements(instruction) > 4 => Class::GatherEight,
        _ => arithmetic(instruction, class, wide, memory, store),
    }
}

fn arithmetic(
    instruction: &Instruction,
    class: Class,
    wide: bool,
    memory: bool,
    store: bool,
) -> Class {
    match class {
        Class::FloatReciprocal if wide => Class::FloatReciprocalWide,
        Class::DivideSingle if wide => Class::DivideSingleWide,
        Class::DivideDouble if wide => Class::DivideDoubleWide,
        Class::RootSingle if wide => Class::RootSingleWide,
        Class::RootDouble if wide => Class::RootDoubleWide,
        Class::ConvertSize if wide => convert(instruction),
        // Conversions from memory have no operation on general registers.
        Class::ConvertFromGeneral if memory => Class::Convert,
        Class::X87Move if instruction.mnemonic() == Mnemonic::Fld && memory => Class::Load,
        Class::X87Move if memory => Class::Store,
        Class::Mask if store => Class::Store,
        Class::Mask if memory => Class::Load,
        _ => class,
    }
}

/// Returns whether an instruction with the class of MOVSS is a move and no blend by a constant.
fn moves(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Movss | M::Movsd | M::Vmovss | M::Vmovsd | M::Vmovsh
    )
}

/// Returns the class of MOVD or MOVQ.
fn transfer(instruction: &Instruction) -> Class {
    let target = register(instruction, 0);
    if stores(instruction) {
        Class::Store
    } else if has_memory(instruction) {
        Class::Load
    } else if target.is_gpr() {
        Class::FromVector
    } else if register(instruction, 1).is_gpr() {
        Class::ToVector
    } else {
        Class::VectorMoveLow
    }
}

/// Returns the class of MOVLPS, MOVHPS and their kin.
fn half(instruction: &Instruction) -> Class {
    use Mnemonic as M;
    let upper = matches!(
        instruction.mnemonic(),
        M::Movhps | M::Movhpd | M::Vmovhps | M::Vmovhpd
    );
    match (stores(instruction), upper) {
        (true, true) => Class::StoreHalf,
        (true, false) => Class::Store,
        (false, _) => Class::LoadHalf,
    }
}

/// Returns the class of a shuffle with one vector operand, which is in memory: MOVDDUP of an XMM register is a load into all elements.
fn duplicate(instruction: &Instruction) -> Class {
    let movddup = matches!(
        instruction.mnemonic(),
        Mnemonic::Movddup | Mnemonic::Vmovddup
    );
    let whole = matches!(
        instruction.mnemonic(),
        Mnemonic::Movshdup | Mnemonic::Vmovshdup | Mnemonic::Movsldup | Mnemonic::Vmovsldup
    );
    match movddup || whole {
        true => Class::LoadBroadcast,
        false => Class::FloatShuffle,
    }
}

/// Returns the class of a shuffle whose last operand is a register: VPERMILPS by a register is slower than by a constant.
fn permute(instruction: &Instruction) -> Class {
    let variable = matches!(
        instruction.mnemonic(),
        Mnemonic::Vpermilps | Mnemonic::Vpermilpd | Mnemonic::Vpermil2ps | Mnemonic::Vpermil2pd
    );
    match variable {
        true => Class::FloatShuffleVariable,
        false => Class::FloatShuffle,
    }
}

fn broadcast(instruction: &Instruction, wide: bool) -> Class {
    use Mnemonic as M;
    let narrow = matches!(instruction.mnemonic(), M::Vpbroadcastb | M::Vpbroadcastw);
    match (has_memory(instruction), register(instruction, 1)) {
        (true, _) if narrow => Class::LoadBroadcastNarrow,
        (true, _) => Class::LoadBroadcast,
        (false, source) if source.is_gpr() => Class::ToVector,
        _ if wide => Class::BroadcastLanes,
        _ => Class::Broadcast,
    }
}

/// Returns the class of a conversion between sizes with a YMM register: to that register, or from it.
fn convert(instruction: &Instruction) -> Class {
    let target = register(instruction, 0);
    match target.is_ymm() || target.is_zmm() {
        true => Class::ConvertWiden,
        false => Class::ConvertNarrow,
    }
}

/// Returns the number of elements of a gather.
pub(crate) fn elements(instruction: &Instruction) -> usize {
    let size = |register: Register| match register == Register::None {
        true => 16,
        false => register.size(),
    };
    let element = instruction.memory_size().size().max(4);
    let index = instruction.memory_index();
    let narrow_index = size(index) / index_size(instruction);
    let data = (0..instruction.op_count())
        .map(|n| register(instruction, n))
        .find(|r| r.is_vector_register())
        .map_or(16, size);
    (data / element).min(narrow_index).max(1)
}

/// Returns the bytes of an index of a gather: 4 in VGATHERDPS, 8 in VGATHERQPS.
fn index_size(instruction: &Instruction) -> usize {
    let name = format!("{:?}", instruction.mnemonic()).to_lowercase();
    let rest = name.rsplit("er").next().unwrap_or_default();
    match rest.starts_with('q') {
        true => 8,
        false => 4,
    }
}

/// Returns all names of the table.
#[cfg(test)]
pub(super) fn patterns() -> impl Iterator<Item = &'static str> {
    NAMES.iter().flat_map(|(_, patterns)| patterns.split(' '))
}

/// Returns the class that the table has for a mnemonic.
#[cfg(test)]
pub(super) fn named(mnemonic: Mnemonic) -> Option<Class> {
    CLASSES.get(&mnemonic).copied()
}
