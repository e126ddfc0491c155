//! Instruction-set features of the guest's processor, which its CPUID announces. Instructions of other features raise `#UD`, or have the
//! meaning of their encoding on processors without the feature.

use iced_x86::{CpuidFeature, Decoder, DecoderError, DecoderOptions, Instruction};
use nodescope_x86::CpuidTable;
use nodescope_x86::cpuid::CpuidRegister::{self, Ecx};
use nodescope_x86::features::{ALWAYS, FEATURES};

use crate::cpu::Mode;
use crate::fetch::MAX_INSTRUCTION;

/// A bit of CPUID: leaf, subleaf, register, bit number.
type Bit = (u32, u32, CpuidRegister, u32);

/// Bit of leaf 8000_0001H ECX for LAHF and SAHF in 64-bit mode (SDM vol. 2A, LAHF).
const LAHF_IN_64_BIT_MODE: Bit = (0x8000_0001, 0, Ecx, 0);

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
        let announced = FEATURES.iter().filter(|row| {
            let (leaf, subleaf) = row.leaf;
            has((leaf, subleaf, row.register, row.bit))
        });
        let decoded = announced.flat_map(|row| row.decoded).chain(&ALWAYS);
        for &feature in decoded {
            there[feature as usize / 64] |= 1 << (feature as usize % 64);
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
    use nodescope_x86::cpuid::CpuidRegister::{Ebx, Edx};

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
}
