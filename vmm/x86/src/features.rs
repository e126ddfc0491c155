//! The one table of processor features: CPUID bits, and what has to be known of the instructions behind them. A new feature is a row here.
//!
//! CPUID and its template (`vmm/machine/src/cpuid.rs`), the decoder (`vmm/engine-soft/src/features.rs`), the classes of vector instructions
//! and the tests of all opcodes take their lists from this table.

use std::sync::LazyLock;

use iced_x86::CpuidFeature::{self, *};

use crate::cpuid::{CpuidEntry, CpuidRegister};

use CpuidRegister::{Eax, Ebx, Ecx, Edx};
use Unit::{Integer, Mmx, Platform, State, System, Vector, X87};

/// Part of the processor that a feature belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// General-purpose registers. The results of the instructions depend on their operands alone.
    Integer,
    /// Vector registers.
    Vector,
    /// The x87 unit.
    X87,
    /// The MMX registers.
    Mmx,
    /// Saving and restoring of the state of the units.
    State,
    /// Paging, mode changes, clocks and random numbers.
    System,
    /// What the platform around the engine provides: interrupt controllers, timers, the clock, and their descriptions.
    Platform,
}

/// A processor feature: one CPUID bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Name by which a study hides or requires the feature. Most names are those of `/proc/cpuinfo`; `sse3` and `lzcnt`, for instance, are
    /// not.
    pub name: &'static str,
    /// Leaf and subleaf of the feature's register.
    pub leaf: (u32, u32),
    /// Register that contains the bit.
    pub register: CpuidRegister,
    /// Number of the bit in the register, from 0.
    pub bit: u32,
    /// Features of the decoder that the bit announces.
    pub decoded: &'static [CpuidFeature],
    /// Unit of the feature; `None` for a feature that no guest has.
    pub unit: Option<Unit>,
    /// Name of a feature without which this feature makes no sense; `None` for none.
    pub needs: Option<&'static str>,
    /// True if the portable engine executes the feature on the host's processor. The host must then have the feature.
    pub native: bool,
}

impl Feature {
    /// Returns whether the platform provides the feature, so that the engine need not support it.
    pub fn is_the_platforms(&self) -> bool {
        self.unit == Some(Platform)
    }

    /// Returns whether the host's processor has the feature and the host's operating system enables it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_on_host(&self) -> bool {
        // The operating system must enable AVX state too, which the standard library checks.
        let avx = self.name == "avx" || self.needs == Some("avx");
        if avx && !std::arch::is_x86_feature_detected!("avx") {
            return false;
        }
        let (leaf, subleaf) = self.leaf;
        host_cpuid(leaf, subleaf).register(self.register) >> self.bit & 1 != 0
    }

    /// Makes the feature one that guests have.
    const fn shown(self, unit: Unit, needs: Option<&'static str>, native: bool) -> Feature {
        Feature {
            unit: Some(unit),
            needs,
            native,
            ..self
        }
    }
}

/// Returns the host processor's CPUID values of a subleaf; zeros for a leaf beyond the highest one.
#[cfg(target_arch = "x86_64")]
fn host_cpuid(leaf: u32, subleaf: u32) -> CpuidEntry {
    let mut entry = CpuidEntry::zero(leaf, subleaf);
    if leaf <= std::arch::x86_64::__cpuid(leaf & 0x8000_0000).eax {
        let r = std::arch::x86_64::__cpuid_count(leaf, subleaf);
        (entry.eax, entry.ebx, entry.ecx, entry.edx) = (r.eax, r.ebx, r.ecx, r.edx);
    }
    entry
}

/// Features of the decoder that every processor with 64-bit mode has. PAUSE is a NOP on processors without it. The others have no bit.
pub const ALWAYS: [CpuidFeature; 10] = [
    INTEL8086,
    INTEL186,
    INTEL286,
    INTEL386,
    INTEL486,
    X64,
    CPUID,
    MULTIBYTENOP,
    PAUSE,
    RDPMC,
];

/// Returns the rows of the features that the default template shows to guests.
pub fn shown() -> impl Iterator<Item = &'static Feature> {
    FEATURES.iter().filter(|feature| feature.unit.is_some())
}

/// Returns the shown feature that announces a feature of the decoder; `None` where guests lack it, and for those of [`ALWAYS`].
pub fn announcing(decoded: CpuidFeature) -> Option<&'static Feature> {
    static ANNOUNCING: LazyLock<Vec<Option<&Feature>>> = LazyLock::new(|| {
        let of = |decoded| shown().find(|feature| feature.decoded.contains(&decoded));
        CpuidFeature::values().map(of).collect()
    });
    ANNOUNCING[decoded as usize]
}

/// Returns the shown features that the engine executes on the host's processor and the host lacks. A processor with 64-bit mode lacks no
/// feature up to SSE2.
#[cfg(target_arch = "x86_64")]
pub fn missing_on_host() -> &'static [&'static Feature] {
    static MISSING: LazyLock<Vec<&Feature>> = LazyLock::new(|| {
        let native = shown().filter(|feature| feature.native);
        native.filter(|feature| !feature.is_on_host()).collect()
    });
    &MISSING
}

/// Returns the unit of a feature of the decoder; `None` for features that guests lack, and for those of [`ALWAYS`].
pub fn unit(decoded: CpuidFeature) -> Option<Unit> {
    announcing(decoded).and_then(|feature| feature.unit)
}

const HOST: bool = true;
const OWN: bool = false;
const L1: (u32, u32) = (1, 0);
const L7: (u32, u32) = (7, 0);
const L71: (u32, u32) = (7, 1);
const LD: (u32, u32) = (0xd, 1);
const E1: (u32, u32) = (0x8000_0001, 0);
const E8: (u32, u32) = (0x8000_0008, 0);

const fn f(
    name: &'static str,
    leaf: (u32, u32),
    register: CpuidRegister,
    bit: u32,
    decoded: &'static [CpuidFeature],
) -> Feature {
    Feature {
        name,
        leaf,
        register,
        bit,
        decoded,
        unit: None,
        needs: None,
        native: false,
    }
}

/// All features with a CPUID bit that the decoder or a guest knows (SDM vol. 2A, CPUID; for the extended leaves AMD64 APM vol. 3, appendix
/// E). Features of the decoder that are in no row belong to other vendors or older processors, to system management mode, or an MSR
/// announces them.
#[rustfmt::skip]
pub const FEATURES: &[Feature] = &[
    f("fpu", L1, Edx, 0, &[FPU, FPU287, FPU387]).shown(X87, None, HOST),
    f("de", L1, Edx, 2, &[]).shown(System, None, OWN),
    f("pse", L1, Edx, 3, &[]).shown(System, None, OWN),
    f("tsc", L1, Edx, 4, &[TSC]).shown(System, None, OWN),
    f("msr", L1, Edx, 5, &[MSR]).shown(System, None, OWN),
    f("pae", L1, Edx, 6, &[]).shown(System, None, OWN),
    f("cx8", L1, Edx, 8, &[CX8]).shown(Integer, None, OWN),
    f("apic", L1, Edx, 9, &[]).shown(Platform, None, OWN),
    f("sep", L1, Edx, 11, &[SEP]).shown(System, None, OWN),
    f("mtrr", L1, Edx, 12, &[]).shown(System, None, OWN),
    f("pge", L1, Edx, 13, &[]).shown(System, None, OWN),
    f("cmov", L1, Edx, 15, &[CMOV]).shown(Integer, None, OWN),
    f("pat", L1, Edx, 16, &[]).shown(System, None, OWN),
    f("pse36", L1, Edx, 17, &[]).shown(System, None, OWN),
    f("clflush", L1, Edx, 19, &[CLFSH]).shown(Integer, None, OWN),
    f("mmx", L1, Edx, 23, &[MMX]).shown(Mmx, Some("fpu"), HOST),
    f("fxsr", L1, Edx, 24, &[FXSR]).shown(State, Some("fpu"), HOST),
    f("sse", L1, Edx, 25, &[SSE]).shown(Vector, Some("fxsr"), HOST),
    f("sse2", L1, Edx, 26, &[SSE2]).shown(Vector, Some("sse"), HOST),

    f("sse3", L1, Ecx, 0, &[SSE3]).shown(Vector, Some("sse2"), HOST),
    f("pclmulqdq", L1, Ecx, 1, &[PCLMULQDQ]).shown(Vector, Some("sse2"), HOST),
    f("monitor", L1, Ecx, 3, &[MONITOR]),
    f("vmx", L1, Ecx, 5, &[VMX]),
    f("smx", L1, Ecx, 6, &[SMX]),
    f("ssse3", L1, Ecx, 9, &[SSSE3]).shown(Vector, Some("sse3"), HOST),
    f("fma", L1, Ecx, 12, &[FMA]).shown(Vector, Some("avx"), HOST),
    f("cx16", L1, Ecx, 13, &[CMPXCHG16B]).shown(Integer, None, OWN),
    f("sse4_1", L1, Ecx, 19, &[SSE4_1]).shown(Vector, Some("ssse3"), HOST),
    f("sse4_2", L1, Ecx, 20, &[SSE4_2]).shown(Vector, Some("sse4_1"), HOST),
    f("x2apic", L1, Ecx, 21, &[]).shown(Platform, Some("apic"), OWN),
    f("movbe", L1, Ecx, 22, &[MOVBE]).shown(Integer, None, OWN),
    f("popcnt", L1, Ecx, 23, &[POPCNT]).shown(Integer, None, HOST),
    f("tsc_deadline_timer", L1, Ecx, 24, &[]).shown(Platform, Some("apic"), OWN),
    f("aes", L1, Ecx, 25, &[AES]).shown(Vector, Some("sse2"), HOST),
    f("xsave", L1, Ecx, 26, &[XSAVE]).shown(State, Some("fxsr"), HOST),
    f("avx", L1, Ecx, 28, &[AVX]).shown(Vector, Some("xsave"), HOST),
    f("f16c", L1, Ecx, 29, &[F16C]).shown(Vector, Some("avx"), HOST),
    f("rdrand", L1, Ecx, 30, &[RDRAND]).shown(System, None, OWN),
    f("hypervisor", L1, Ecx, 31, &[]).shown(Platform, None, OWN),

    f("arat", (0x6, 0), Eax, 2, &[]).shown(Platform, Some("apic"), OWN),

    f("fsgsbase", L7, Ebx, 0, &[FSGSBASE]).shown(System, None, OWN),
    f("tsc_adjust", L7, Ebx, 1, &[]).shown(Platform, Some("tsc"), OWN),
    f("sgx1", L7, Ebx, 2, &[SGX1]),
    f("bmi1", L7, Ebx, 3, &[BMI1]).shown(Integer, None, HOST),
    f("hle", L7, Ebx, 4, &[HLE, HLE_or_RTM]),
    f("avx2", L7, Ebx, 5, &[AVX2]).shown(Vector, Some("avx"), HOST),
    f("smep", L7, Ebx, 7, &[]).shown(System, None, OWN),
    f("bmi2", L7, Ebx, 8, &[BMI2]).shown(Integer, None, HOST),
    f("erms", L7, Ebx, 9, &[]).shown(System, None, OWN),
    f("invpcid", L7, Ebx, 10, &[INVPCID]),
    f("rtm", L7, Ebx, 11, &[RTM, HLE_or_RTM]),
    f("mpx", L7, Ebx, 14, &[MPX]),
    f("avx512f", L7, Ebx, 16, &[AVX512F]),
    f("avx512dq", L7, Ebx, 17, &[AVX512DQ]),
    f("rdseed", L7, Ebx, 18, &[RDSEED]).shown(System, None, OWN),
    f("adx", L7, Ebx, 19, &[ADX]).shown(Integer, None, HOST),
    f("smap", L7, Ebx, 20, &[SMAP]),
    f("avx512_ifma", L7, Ebx, 21, &[AVX512_IFMA]),
    f("pcommit", L7, Ebx, 22, &[PCOMMIT]),
    f("clflushopt", L7, Ebx, 23, &[CLFLUSHOPT]).shown(System, Some("clflush"), OWN),
    f("clwb", L7, Ebx, 24, &[CLWB]),
    f("avx512pf", L7, Ebx, 26, &[AVX512PF]),
    f("avx512er", L7, Ebx, 27, &[AVX512ER]),
    f("avx512cd", L7, Ebx, 28, &[AVX512CD]),
    f("sha", L7, Ebx, 29, &[SHA]),
    f("avx512bw", L7, Ebx, 30, &[AVX512BW]),
    f("avx512vl", L7, Ebx, 31, &[AVX512VL]),

    f("prefetchwt1", L7, Ecx, 0, &[PREFETCHWT1]),
    f("avx512_vbmi", L7, Ecx, 1, &[AVX512_VBMI]),
    f("pku", L7, Ecx, 3, &[PKU]),
    f("waitpkg", L7, Ecx, 5, &[WAITPKG]),
    f("avx512_vbmi2", L7, Ecx, 6, &[AVX512_VBMI2]),
    f("cet_ss", L7, Ecx, 7, &[CET_SS]),
    f("gfni", L7, Ecx, 8, &[GFNI]),
    f("vaes", L7, Ecx, 9, &[VAES]),
    f("vpclmulqdq", L7, Ecx, 10, &[VPCLMULQDQ]),
    f("avx512_vnni", L7, Ecx, 11, &[AVX512_VNNI]),
    f("avx512_bitalg", L7, Ecx, 12, &[AVX512_BITALG]),
    f("avx512_vpopcntdq", L7, Ecx, 14, &[AVX512_VPOPCNTDQ]),
    f("rdpid", L7, Ecx, 22, &[RDPID]),
    f("kl", L7, Ecx, 23, &[KL]),
    f("cldemote", L7, Ecx, 25, &[CLDEMOTE]),
    f("movdiri", L7, Ecx, 27, &[MOVDIRI]),
    f("movdir64b", L7, Ecx, 28, &[MOVDIR64B]),
    f("enqcmd", L7, Ecx, 29, &[ENQCMD]),

    f("avx512_4vnniw", L7, Edx, 2, &[AVX512_4VNNIW]),
    f("avx512_4fmaps", L7, Edx, 3, &[AVX512_4FMAPS]),
    f("fsrm", L7, Edx, 4, &[]).shown(System, Some("erms"), OWN),
    f("uintr", L7, Edx, 5, &[UINTR]),
    f("avx512_vp2intersect", L7, Edx, 8, &[AVX512_VP2INTERSECT]),
    f("serialize", L7, Edx, 14, &[SERIALIZE]),
    f("tsxldtrk", L7, Edx, 16, &[TSXLDTRK]),
    f("pconfig", L7, Edx, 18, &[PCONFIG]),
    f("cet_ibt", L7, Edx, 20, &[CET_IBT]),
    f("amx_bf16", L7, Edx, 22, &[AMX_BF16]),
    f("avx512_fp16", L7, Edx, 23, &[AVX512_FP16]),
    f("amx_tile", L7, Edx, 24, &[AMX_TILE]),
    f("amx_int8", L7, Edx, 25, &[AMX_INT8]),
    f("spec_ctrl", L7, Edx, 26, &[]).shown(System, None, OWN),
    f("arch_capabilities", L7, Edx, 29, &[]).shown(Platform, None, OWN),

    f("sha512", L71, Eax, 0, &[SHA512]),
    f("sm3", L71, Eax, 1, &[SM3]),
    f("sm4", L71, Eax, 2, &[SM4]),
    f("rao_int", L71, Eax, 3, &[RAO_INT]),
    f("avx_vnni", L71, Eax, 4, &[AVX_VNNI]),
    f("avx512_bf16", L71, Eax, 5, &[AVX512_BF16]),
    f("cmpccxadd", L71, Eax, 7, &[CMPCCXADD]),
    f("fred", L71, Eax, 17, &[FRED]),
    f("lkgs", L71, Eax, 18, &[LKGS]),
    f("wrmsrns", L71, Eax, 19, &[WRMSRNS]),
    f("amx_fp16", L71, Eax, 21, &[AMX_FP16]),
    f("hreset", L71, Eax, 22, &[HRESET]),
    f("avx_ifma", L71, Eax, 23, &[AVX_IFMA]),
    f("msrlist", L71, Eax, 27, &[MSRLIST]),

    f("tse", L71, Ebx, 1, &[TSE]),

    f("avx_vnni_int8", L71, Edx, 4, &[AVX_VNNI_INT8]),
    f("avx_ne_convert", L71, Edx, 5, &[AVX_NE_CONVERT]),
    f("amx_complex", L71, Edx, 8, &[AMX_COMPLEX]),
    f("avx_vnni_int16", L71, Edx, 10, &[AVX_VNNI_INT16]),
    f("prefetchiti", L71, Edx, 14, &[PREFETCHITI]),

    f("xsaveopt", LD, Eax, 0, &[XSAVEOPT]).shown(State, Some("xsave"), HOST),
    f("xsavec", LD, Eax, 1, &[XSAVEC]),
    f("xsaves", LD, Eax, 3, &[XSAVES]),

    f("ptwrite", (0x14, 0), Ebx, 4, &[PTWRITE]),

    f("aeskle", (0x19, 0), Ebx, 0, &[AESKLE]),
    f("wide_kl", (0x19, 0), Ebx, 2, &[WIDE_KL]),

    f("lahf_lm", E1, Ecx, 0, &[]).shown(System, None, OWN),
    f("svm", E1, Ecx, 2, &[SVM, SKINIT_or_SVM]),
    f("lzcnt", E1, Ecx, 5, &[LZCNT]).shown(Integer, None, HOST),
    f("sse4a", E1, Ecx, 6, &[SSE4A]),
    f("3dnowprefetch", E1, Ecx, 8, &[PREFETCHW]).shown(Integer, None, OWN),
    f("xop", E1, Ecx, 11, &[XOP]),
    f("skinit", E1, Ecx, 12, &[SKINIT, SKINIT_or_SVM]),
    f("lwp", E1, Ecx, 15, &[LWP]),
    f("fma4", E1, Ecx, 16, &[FMA4]),
    f("tbm", E1, Ecx, 21, &[TBM]),
    f("monitorx", E1, Ecx, 29, &[MONITORX]),

    f("syscall", E1, Edx, 11, &[SYSCALL]).shown(System, None, OWN),
    f("nx", E1, Edx, 20, &[]).shown(System, None, OWN),
    f("pdpe1gb", E1, Edx, 26, &[]).shown(System, None, OWN),
    f("rdtscp", E1, Edx, 27, &[RDTSCP]).shown(System, Some("tsc"), OWN),
    f("lm", E1, Edx, 29, &[]).shown(System, None, OWN),
    f("d3nowext", E1, Edx, 30, &[D3NOWEXT]),
    f("d3now", E1, Edx, 31, &[D3NOW]),

    f("invariant_tsc", (0x8000_0007, 0), Edx, 8, &[]).shown(Platform, Some("tsc"), OWN),

    f("clzero", E8, Ebx, 0, &[CLZERO]),
    f("invlpgb", E8, Ebx, 3, &[INVLPGB]),
    f("rdpru", E8, Ebx, 4, &[RDPRU]),
    f("mcommit", E8, Ebx, 8, &[MCOMMIT]),
    f("wbnoinvd", E8, Ebx, 9, &[WBNOINVD]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_distinct_and_needs_are_shown() {
        for (index, feature) in FEATURES.iter().enumerate() {
            let place = |f: &Feature| (f.leaf, f.register as u32, f.bit);
            for other in &FEATURES[..index] {
                assert_ne!(place(other), place(feature), "{}", feature.name);
                assert_ne!(other.name, feature.name);
            }
            let needed = feature
                .needs
                .map(|needs| shown().any(|other| other.name == needs));
            assert_ne!(needed, Some(false), "{}", feature.name);
        }
    }
}
