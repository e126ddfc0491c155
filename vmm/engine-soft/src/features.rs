//! Instruction-set features of the guest's processor, which its CPUID announces. Instructions of other features raise `#UD`, or have the
//! meaning of their encoding on processors without the feature.

use iced_x86::{CpuidFeature, Decoder, DecoderError, DecoderOptions, Instruction};
use nodescope_x86::CpuidTable;
use nodescope_x86::cpuid::CpuidRegister::{self, Eax, Ebx, Ecx, Edx};

use crate::cpu::Mode;
use crate::fetch::MAX_INSTRUCTION;

/// A bit of CPUID: leaf, subleaf, register, bit number.
type Bit = (u32, u32, CpuidRegister, u32);

/// Condition under which a processor has a feature.
enum Announced {
    /// Every processor with 64-bit mode has the feature.
    Always,
    /// The processor has the feature if CPUID has any of these bits; never if the list is empty.
    By(&'static [Bit]),
}

/// Bit of leaf 8000_0001H ECX for LAHF and SAHF in 64-bit mode (SDM vol. 2A, LAHF).
const LAHF_IN_64_BIT_MODE: Bit = (0x8000_0001, 0, Ecx, 0);

/// Returns how CPUID announces a feature of the decoder (SDM vol. 2A, CPUID; APM vol. 3, appendix E).
fn announced(feature: CpuidFeature) -> Announced {
    use CpuidFeature as F;
    let bits: &'static [Bit] = match feature {
        // PAUSE is a NOP on processors without it. The other features in this list have no bit.
        F::INTEL8086
        | F::INTEL186
        | F::INTEL286
        | F::INTEL386
        | F::INTEL486
        | F::X64
        | F::CPUID
        | F::MULTIBYTENOP
        | F::PAUSE
        | F::RDPMC => return Announced::Always,

        F::FPU | F::FPU287 | F::FPU387 => &[(1, 0, Edx, 0)],
        F::TSC => &[(1, 0, Edx, 4)],
        F::MSR => &[(1, 0, Edx, 5)],
        F::CX8 => &[(1, 0, Edx, 8)],
        F::SEP => &[(1, 0, Edx, 11)],
        F::CMOV => &[(1, 0, Edx, 15)],
        F::CLFSH => &[(1, 0, Edx, 19)],
        F::MMX => &[(1, 0, Edx, 23)],
        F::FXSR => &[(1, 0, Edx, 24)],
        F::SSE => &[(1, 0, Edx, 25)],
        F::SSE2 => &[(1, 0, Edx, 26)],

        F::SSE3 => &[(1, 0, Ecx, 0)],
        F::PCLMULQDQ => &[(1, 0, Ecx, 1)],
        F::MONITOR => &[(1, 0, Ecx, 3)],
        F::VMX => &[(1, 0, Ecx, 5)],
        F::SMX => &[(1, 0, Ecx, 6)],
        F::SSSE3 => &[(1, 0, Ecx, 9)],
        F::FMA => &[(1, 0, Ecx, 12)],
        F::CMPXCHG16B => &[(1, 0, Ecx, 13)],
        F::SSE4_1 => &[(1, 0, Ecx, 19)],
        F::SSE4_2 => &[(1, 0, Ecx, 20)],
        F::MOVBE => &[(1, 0, Ecx, 22)],
        F::POPCNT => &[(1, 0, Ecx, 23)],
        F::AES => &[(1, 0, Ecx, 25)],
        F::XSAVE => &[(1, 0, Ecx, 26)],
        F::AVX => &[(1, 0, Ecx, 28)],
        F::F16C => &[(1, 0, Ecx, 29)],
        F::RDRAND => &[(1, 0, Ecx, 30)],

        F::FSGSBASE => &[(7, 0, Ebx, 0)],
        F::SGX1 => &[(7, 0, Ebx, 2)],
        F::BMI1 => &[(7, 0, Ebx, 3)],
        F::HLE => &[(7, 0, Ebx, 4)],
        F::AVX2 => &[(7, 0, Ebx, 5)],
        F::BMI2 => &[(7, 0, Ebx, 8)],
        F::INVPCID => &[(7, 0, Ebx, 10)],
        F::RTM => &[(7, 0, Ebx, 11)],
        F::HLE_or_RTM => &[(7, 0, Ebx, 4), (7, 0, Ebx, 11)],
        F::MPX => &[(7, 0, Ebx, 14)],
        F::AVX512F => &[(7, 0, Ebx, 16)],
        F::AVX512DQ => &[(7, 0, Ebx, 17)],
        F::RDSEED => &[(7, 0, Ebx, 18)],
        F::ADX => &[(7, 0, Ebx, 19)],
        F::SMAP => &[(7, 0, Ebx, 20)],
        F::AVX512_IFMA => &[(7, 0, Ebx, 21)],
        F::PCOMMIT => &[(7, 0, Ebx, 22)],
        F::CLFLUSHOPT => &[(7, 0, Ebx, 23)],
        F::CLWB => &[(7, 0, Ebx, 24)],
        F::AVX512PF => &[(7, 0, Ebx, 26)],
        F::AVX512ER => &[(7, 0, Ebx, 27)],
        F::AVX512CD => &[(7, 0, Ebx, 28)],
        F::SHA => &[(7, 0, Ebx, 29)],
        F::AVX512BW => &[(7, 0, Ebx, 30)],
        F::AVX512VL => &[(7, 0, Ebx, 31)],

        F::PREFETCHWT1 => &[(7, 0, Ecx, 0)],
        F::AVX512_VBMI => &[(7, 0, Ecx, 1)],
        F::PKU => &[(7, 0, Ecx, 3)],
        F::WAITPKG => &[(7, 0, Ecx, 5)],
        F::AVX512_VBMI2 => &[(7, 0, Ecx, 6)],
        F::CET_SS => &[(7, 0, Ecx, 7)],
        F::GFNI => &[(7, 0, Ecx, 8)],
        F::VAES => &[(7, 0, Ecx, 9)],
        F::VPCLMULQDQ => &[(7, 0, Ecx, 10)],
        F::AVX512_VNNI => &[(7, 0, Ecx, 11)],
        F::AVX512_BITALG => &[(7, 0, Ecx, 12)],
        F::AVX512_VPOPCNTDQ => &[(7, 0, Ecx, 14)],
        F::RDPID => &[(7, 0, Ecx, 22)],
        F::KL => &[(7, 0, Ecx, 23)],
        F::CLDEMOTE => &[(7, 0, Ecx, 25)],
        F::MOVDIRI => &[(7, 0, Ecx, 27)],
        F::MOVDIR64B => &[(7, 0, Ecx, 28)],
        F::ENQCMD => &[(7, 0, Ecx, 29)],

        F::AVX512_4VNNIW => &[(7, 0, Edx, 2)],
        F::AVX512_4FMAPS => &[(7, 0, Edx, 3)],
        F::UINTR => &[(7, 0, Edx, 5)],
        F::AVX512_VP2INTERSECT => &[(7, 0, Edx, 8)],
        F::SERIALIZE => &[(7, 0, Edx, 14)],
        F::TSXLDTRK => &[(7, 0, Edx, 16)],
        F::PCONFIG => &[(7, 0, Edx, 18)],
        F::CET_IBT => &[(7, 0, Edx, 20)],
        F::AMX_BF16 => &[(7, 0, Edx, 22)],
        F::AVX512_FP16 => &[(7, 0, Edx, 23)],
        F::AMX_TILE => &[(7, 0, Edx, 24)],
        F::AMX_INT8 => &[(7, 0, Edx, 25)],

        F::SHA512 => &[(7, 1, Eax, 0)],
        F::SM3 => &[(7, 1, Eax, 1)],
        F::SM4 => &[(7, 1, Eax, 2)],
        F::RAO_INT => &[(7, 1, Eax, 3)],
        F::AVX_VNNI => &[(7, 1, Eax, 4)],
        F::AVX512_BF16 => &[(7, 1, Eax, 5)],
        F::CMPCCXADD => &[(7, 1, Eax, 7)],
        F::FRED => &[(7, 1, Eax, 17)],
        F::LKGS => &[(7, 1, Eax, 18)],
        F::WRMSRNS => &[(7, 1, Eax, 19)],
        F::AMX_FP16 => &[(7, 1, Eax, 21)],
        F::HRESET => &[(7, 1, Eax, 22)],
        F::AVX_IFMA => &[(7, 1, Eax, 23)],
        F::MSRLIST => &[(7, 1, Eax, 27)],
        F::TSE => &[(7, 1, Ebx, 1)],
        F::AVX_VNNI_INT8 => &[(7, 1, Edx, 4)],
        F::AVX_NE_CONVERT => &[(7, 1, Edx, 5)],
        F::AMX_COMPLEX => &[(7, 1, Edx, 8)],
        F::AVX_VNNI_INT16 => &[(7, 1, Edx, 10)],
        F::PREFETCHITI => &[(7, 1, Edx, 14)],

        F::XSAVEOPT => &[(0xd, 1, Eax, 0)],
        F::XSAVEC => &[(0xd, 1, Eax, 1)],
        F::XSAVES => &[(0xd, 1, Eax, 3)],
        F::PTWRITE => &[(0x14, 0, Ebx, 4)],
        F::AESKLE => &[(0x19, 0, Ebx, 0)],
        F::WIDE_KL => &[(0x19, 0, Ebx, 2)],

        F::SVM => &[(0x8000_0001, 0, Ecx, 2)],
        F::LZCNT => &[(0x8000_0001, 0, Ecx, 5)],
        F::SSE4A => &[(0x8000_0001, 0, Ecx, 6)],
        F::PREFETCHW => &[(0x8000_0001, 0, Ecx, 8)],
        F::XOP => &[(0x8000_0001, 0, Ecx, 11)],
        F::SKINIT => &[(0x8000_0001, 0, Ecx, 12)],
        F::SKINIT_or_SVM => &[(0x8000_0001, 0, Ecx, 2), (0x8000_0001, 0, Ecx, 12)],
        F::LWP => &[(0x8000_0001, 0, Ecx, 15)],
        F::FMA4 => &[(0x8000_0001, 0, Ecx, 16)],
        F::TBM => &[(0x8000_0001, 0, Ecx, 21)],
        F::MONITORX => &[(0x8000_0001, 0, Ecx, 29)],
        F::SYSCALL => &[(0x8000_0001, 0, Edx, 11)],
        F::RDTSCP => &[(0x8000_0001, 0, Edx, 27)],
        F::D3NOWEXT => &[(0x8000_0001, 0, Edx, 30)],
        F::D3NOW => &[(0x8000_0001, 0, Edx, 31)],
        F::CLZERO => &[(0x8000_0008, 0, Ebx, 0)],
        F::INVLPGB => &[(0x8000_0008, 0, Ebx, 3)],
        F::RDPRU => &[(0x8000_0008, 0, Ebx, 4)],
        F::MCOMMIT => &[(0x8000_0008, 0, Ebx, 8)],
        F::WBNOINVD => &[(0x8000_0008, 0, Ebx, 9)],

        // Features that only other vendors or only older processors have, of system management mode, or that an MSR announces.
        _ => &[],
    };
    Announced::By(bits)
}

/// Number of words of the bit set in [`Features`].
const WORDS: usize = 4;

/// The features that a CPUID table announces, as a bit set over the decoder's feature numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    there: [u64; WORDS],
    /// Decoder options that depend on CPUID.
    options: u32,
}

impl Features {
    /// Returns the features that this CPUID table announces.
    pub fn new(cpuid: &CpuidTable) -> Self {
        let has = |(leaf, subleaf, register, bit): Bit| cpuid.has(leaf, subleaf, register, bit);
        let mut there = [0; WORDS];
        for feature in CpuidFeature::values() {
            let holds = match announced(feature) {
                Announced::Always => true,
                Announced::By(bits) => bits.iter().any(|&bit| has(bit)),
            };
            there[feature as usize / 64] |= u64::from(holds) << (feature as usize % 64);
        }
        let options = if has(LAHF_IN_64_BIT_MODE) {
            DecoderOptions::NONE
        } else {
            DecoderOptions::NO_LAHF_SAHF_64
        };
        Self { there, options }
    }

    /// Returns whether the guest's processor has all features that an instruction requires.
    pub fn have(&self, instruction: &Instruction) -> bool {
        self.lacking(instruction).is_none()
    }

    /// Decodes an instruction of 64-bit code. The second result is a feature that the instruction requires and the guest's processor lacks;
    /// `None` also for an encoding that has an older meaning on such a processor.
    pub fn decode(&self, bytes: &[u8], ip: u64) -> (Instruction, Option<CpuidFeature>) {
        let instruction = Decoder::with_ip(64, bytes, ip, self.options).decode();
        let lacks = self.lacking(&instruction).filter(|_| {
            let options = self.options | BEFORE_THE_FEATURE;
            let older = Decoder::with_ip(64, bytes, ip, options).decode();
            older.len() != instruction.len() || !self.have(&older)
        });
        (instruction, lacks)
    }

    /// Returns the first feature that an instruction requires and the guest's processor lacks.
    pub fn lacking(&self, instruction: &Instruction) -> Option<CpuidFeature> {
        let lacks = |&feature: &CpuidFeature| {
            self.there[feature as usize / 64] >> (feature as usize % 64) & 1 == 0
        };
        instruction.cpuid_features().iter().copied().find(lacks)
    }
}

/// Decoder options that give encodings their meaning from before a later feature: hints are NOPs, and some prefixes are ignored.
const BEFORE_THE_FEATURE: u32 = DecoderOptions::FORCE_RESERVED_NOP
    | DecoderOptions::NO_WBNOINVD
    | DecoderOptions::NO_MPFX_0FBC
    | DecoderOptions::NO_MPFX_0FBD;

/// Decoder that decodes instructions like the guest's processor. Instructions that the processor lacks are invalid.
pub struct GuestDecoder<'a> {
    decoder: Decoder<'a>,
    bytes: &'a [u8],
    mode: Mode,
    features: Features,
}

impl<'a> GuestDecoder<'a> {
    /// Creates a decoder of these bytes, the first of which is at instruction pointer `ip`.
    pub fn new(features: Features, mode: Mode, bytes: &'a [u8], ip: u64) -> Self {
        Self {
            decoder: Decoder::with_ip(mode.bits(), bytes, ip, features.options),
            bytes,
            mode,
            features,
        }
    }

    /// Returns whether bytes are left to decode.
    pub fn can_decode(&self) -> bool {
        self.decoder.can_decode()
    }

    /// Returns the number of bytes decoded so far.
    pub fn position(&self) -> usize {
        self.decoder.position()
    }

    /// Returns whether the bytes ended within the last instruction.
    pub fn was_cut(&self) -> bool {
        self.decoder.last_error() == DecoderError::NoMoreBytes
    }

    /// Returns whether the last instruction is invalid because it is longer than 15 bytes. The decoder reports other invalid instructions
    /// alike.
    pub fn is_too_long(&self, instruction: &Instruction) -> bool {
        if !instruction.is_invalid() || instruction.len() < MAX_INSTRUCTION {
            return false;
        }
        let bytes = &self.bytes[self.position() - instruction.len()..];
        let is_rex = |byte| self.mode == Mode::Bits64 && matches!(byte, 0x40..=0x4f);
        let is_prefix = |byte| {
            is_rex(byte)
                || matches!(
                    byte,
                    0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
                )
        };
        let prefixes = bytes.iter().take_while(|&&b| is_prefix(b)).count();
        // The instruction is decoded again without repeated prefixes, REX before another prefix, LOCK and segment prefixes. Its real length
        // includes these bytes.
        let mut shorter: Vec<u8> = (0..prefixes)
            .filter(|&n| {
                let behind = &bytes[n + 1..prefixes];
                let matters = !matches!(bytes[n], 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0);
                matters && !behind.contains(&bytes[n]) && (behind.is_empty() || !is_rex(bytes[n]))
            })
            .map(|n| bytes[n])
            .collect();
        let dropped = prefixes - shorter.len();
        shorter.extend(bytes[prefixes..].iter().take(MAX_INSTRUCTION));
        let shorter = Decoder::new(self.mode.bits(), &shorter, self.features.options).decode();
        let is_known = !shorter.is_invalid() && dropped + shorter.len() > MAX_INSTRUCTION;
        prefixes >= MAX_INSTRUCTION || is_known
    }

    /// Decodes the next instruction. If the processor lacks its feature, the result is the older meaning of its encoding, or an invalid
    /// instruction.
    pub fn decode(&mut self) -> Instruction {
        let start = self.decoder.position();
        let instruction = self.decoder.decode();
        if instruction.is_invalid() || self.features.have(&instruction) {
            return instruction;
        }
        let options = self.features.options | BEFORE_THE_FEATURE;
        let (bits, ip) = (self.mode.bits(), instruction.ip());
        let older = Decoder::with_ip(bits, &self.bytes[start..], ip, options).decode();
        if older.len() == instruction.len() && self.features.have(&older) {
            return older;
        }
        let mut invalid = Instruction::new();
        invalid.set_len(instruction.len());
        invalid.set_next_ip(instruction.next_ip());
        invalid.set_code_size(instruction.code_size());
        invalid
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::Mnemonic;
    use nodescope_x86::cpuid::CpuidEntry;

    use super::*;

    /// Makes a CPUID table with only these bits.
    fn table(bits: &[Bit]) -> CpuidTable {
        let mut table = CpuidTable::default();
        for &(leaf, subleaf, register, bit) in bits {
            let old = table.find(leaf, subleaf).copied();
            let mut row = old.unwrap_or(CpuidEntry::zero(leaf, subleaf));
            *row.register_mut(register) |= 1 << bit;
            table.set(row);
        }
        table
    }

    fn decode(bits: &[Bit], bytes: &[u8]) -> (Mnemonic, usize) {
        let features = Features::new(&table(bits));
        let i = GuestDecoder::new(features, Mode::Bits64, bytes, 0x1000).decode();
        assert_eq!(i.ip(), 0x1000);
        (i.mnemonic(), i.len())
    }

    #[test]
    fn what_is_not_announced_is_invalid() {
        use Mnemonic::*;
        const VAES: Bit = (7, 0, Ecx, 9);
        const XGETBV: &[u8] = &[0x0f, 0x01, 0xd0];
        for (bytes, bits, known) in [
            (&[0xc6, 0xf8, 0x00][..], &[(7, 0, Ebx, 11)][..], Xabort),
            (&[0x0f, 0x01, 0xee], &[(7, 0, Ecx, 3)], Rdpkru),
            (&[0x0f, 0x01, 0xfc], &[(0x8000_0008, 0, Ebx, 0)], Clzero),
            (&[0xc4, 0xe2, 0x75, 0xdc, 0xc2], &[VAES], Vaesenc),
            (XGETBV, &[(1, 0, Ecx, 26)], Xgetbv),
            (&[0x9f], &[LAHF_IN_64_BIT_MODE], Lahf),
            // Either of two bits announces XTEST.
            (&[0x0f, 0x01, 0xd6], &[(7, 0, Ebx, 4)], Xtest),
            (&[0x0f, 0x01, 0xd6], &[(7, 0, Ebx, 11)], Xtest),
        ] {
            assert_eq!(decode(bits, bytes), (known, bytes.len()));
            assert_eq!(decode(&[], bytes), (INVALID, bytes.len()), "{bytes:02x?}");
        }
    }

    #[test]
    fn all_features_of_an_instruction_are_needed() {
        // VAESENC with 128-bit operands.
        let bytes = &[0xc4, 0xe2, 0x71, 0xdc, 0xc2];
        let (aes, avx) = ((1, 0, Ecx, 25), (1, 0, Ecx, 28));
        assert_eq!(decode(&[aes], bytes).0, Mnemonic::INVALID);
        assert_eq!(decode(&[avx], bytes).0, Mnemonic::INVALID);
        assert_eq!(decode(&[aes, avx], bytes).0, Mnemonic::Vaesenc);
    }

    #[test]
    fn encodings_with_an_older_meaning_keep_it() {
        use Mnemonic::*;
        for (bytes, bit, newer, older) in [
            (&[0xf3, 0x0f, 0xbc, 0xc1][..], (7, 0, Ebx, 3), Tzcnt, Bsf),
            (
                &[0xf3, 0x0f, 0xbd, 0xc1],
                (0x8000_0001, 0, Ecx, 5),
                Lzcnt,
                Bsr,
            ),
            (
                &[0xf3, 0x0f, 0x1e, 0xfa],
                (7, 0, Edx, 20),
                Endbr64,
                Reservednop,
            ),
            (
                &[0xf3, 0x48, 0x0f, 0x1e, 0xc8],
                (7, 0, Ecx, 7),
                Rdsspq,
                Reservednop,
            ),
            (&[0x0f, 0x1c, 0x00], (7, 0, Ecx, 25), Cldemote, Reservednop),
            (
                &[0x0f, 0x0d, 0x08],
                (0x8000_0001, 0, Ecx, 8),
                Prefetchw,
                Reservednop,
            ),
            (
                &[0xf3, 0x0f, 0x09],
                (0x8000_0008, 0, Ebx, 9),
                Wbnoinvd,
                Wbinvd,
            ),
        ] {
            assert_eq!(decode(&[bit], bytes), (newer, bytes.len()));
            assert_eq!(decode(&[], bytes), (older, bytes.len()));
        }
    }

    #[test]
    fn every_bit_announces_one_feature() {
        let mut seen = std::collections::HashMap::new();
        for feature in CpuidFeature::values() {
            let Announced::By(&[bit]) = announced(feature) else {
                continue;
            };
            if let Some(other) = seen.insert(format!("{bit:x?}"), feature) {
                let x87 = [
                    CpuidFeature::FPU,
                    CpuidFeature::FPU287,
                    CpuidFeature::FPU387,
                ];
                assert!(
                    x87.contains(&other) && x87.contains(&feature),
                    "{other:?} and {feature:?}"
                );
            }
        }
    }
}
