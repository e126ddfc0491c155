//! Generated code that searches and reorders a set of an exported cache, in the layout of [`nodescope_plugin_api::exported`].

use std::mem::offset_of;

use iced_x86::{Code, Instruction, MemoryOperand, Register};
use nodescope_plugin_api::exported::{ExportedCaches, SetCount, SetShape};

use super::EXPORTED;
use crate::native::assembler::{Assembler, Label, at, at_offset, cc};
use crate::native::registers::sized;

use Register::{
    EAX, K1, K2, K3, RAX, RDX, XMM0, XMM1, XMM2, XMM3, XMM4, XMM16, XMM17, XMM18, YMM16, YMM17,
    YMM18, YMM19,
};

/// Number of 32-bit words in an XMM register.
const LANES: u32 = 4;

/// An exported cache: the layout of its sets, and its index in [`ExportedCaches::words`].
#[derive(Clone, Copy)]
pub struct Cache {
    pub shape: SetShape,
    pub number: usize,
    /// True if the host has AVX-512, with mask registers and vector registers that no guest uses ([`super::VECTORS`]).
    pub avx512: bool,
}

/// Words of a set that one AVX-512 instruction processes.
#[derive(Clone, Copy)]
struct Chunk {
    /// Index of the first word in the set.
    first: u32,
    /// True for eight words, false for four.
    wide: bool,
}

impl Chunk {
    fn words(self) -> u32 {
        if self.wide { 8 } else { 4 }
    }

    fn pick<T>(self, wide: T, narrow: T) -> T {
        if self.wide { wide } else { narrow }
    }

    /// Returns the memory operand of the chunk's words in a set, moved `before` words towards lower addresses.
    fn at(self, set: Register, before: u32) -> MemoryOperand {
        at_offset(set, 4 * (i64::from(self.first) - i64::from(before)))
    }
}

fn multiply(a: &mut Assembler, register: Register, by: u32) {
    // The number of words in a cache fits a signed 32-bit number.
    let product = Instruction::with3(Code::Imul_r64_rm64_imm32, register, register, by as i32);
    a.made(product);
}

impl Cache {
    fn mask(self) -> MemoryOperand {
        let masks = offset_of!(ExportedCaches, tag_masks) + size_of::<[u32; 4]>() * self.number;
        at_offset(EXPORTED, masks as i64)
    }

    /// Returns the memory operand of the pointer to the cache's first word.
    pub fn words(self) -> MemoryOperand {
        let words = offset_of!(ExportedCaches, words) + size_of::<*mut u32>() * self.number;
        at_offset(EXPORTED, words as i64)
    }

    fn vectors(self) -> u32 {
        self.shape.ways.div_ceil(LANES)
    }

    /// Returns the words of a set in chunks, with padding.
    fn chunks(self) -> Vec<Chunk> {
        let mut first = 0;
        let mut chunks = Vec::new();
        while first
            < self
                .shape
                .stride
                .min(self.shape.ways.next_multiple_of(LANES))
        {
            let wide = first + 8 <= self.shape.stride;
            chunks.push(Chunk { first, wide });
            first += if wide { 8 } else { 4 };
        }
        chunks
    }

    /// Computes in RAX the line's number divided by the number of sets. Preserves all other registers.
    fn quotient(self, a: &mut Assembler, line: Register) {
        match self.shape.sets {
            SetCount::Power(log) => {
                a.copy(RAX, line);
                a.ri(Code::Shr_rm64_imm8, RAX, log as i32);
            }
            SetCount::Other { factor, shift, .. } => {
                a.r(Code::Push_r64, RDX);
                a.copy(RDX, line);
                a.rr(Code::Add_r64_rm64, RDX, RDX);
                a.constant(RAX, factor);
                // RAX becomes the upper half of the product.
                a.rrr(Code::VEX_Mulx_r64_r64_rm64, RAX, RAX, RAX);
                a.r(Code::Pop_r64, RDX);
                a.ri(Code::Shr_rm64_imm8, RAX, shift as i32);
            }
        }
    }

    /// Computes in RAX the index of the line's set: the line's number modulo the number of sets. Preserves all other registers.
    fn remainder(self, a: &mut Assembler, line: Register) {
        match self.shape.sets {
            SetCount::Power(log) => {
                a.rr(Code::Mov_r32_rm32, EAX, sized(line, 4));
                a.ri(Code::And_rm32_imm32, EAX, ((1_u64 << log) - 1) as i32);
            }
            SetCount::Other { sets, .. } => {
                self.quotient(a, line);
                multiply(a, RAX, sets);
                a.r(Code::Neg_rm64, RAX);
                a.rr(Code::Add_r64_rm64, RAX, line);
            }
        }
    }

    /// Computes in RAX the byte offset of the line's set from the cache's first word.
    pub fn distance(self, a: &mut Assembler, line: Register) {
        let bytes = 4 * self.shape.stride;
        self.remainder(a, line);
        if bytes.is_power_of_two() {
            a.ri(Code::Shl_rm64_imm8, RAX, bytes.trailing_zeros() as i32);
        } else {
            multiply(a, RAX, bytes);
        }
    }

    /// Computes in `set` the address of the line's set. Uses RAX.
    pub fn set(self, a: &mut Assembler, line: Register, set: Register) {
        self.distance(a, line);
        a.rm(Code::Add_r64_rm64, RAX, self.words());
        a.copy(set, RAX);
    }

    /// Computes in EAX the line's tag, shifted to the tag's bits in a word.
    pub fn tag(self, a: &mut Assembler, line: Register) {
        self.quotient(a, line);
        a.ri(Code::Add_rm32_imm8, EAX, 1);
        a.ri(Code::Shl_rm32_imm8, EAX, self.shape.tag_shift as i32);
    }

    /// Loads the tag in EAX, and the mask of the tag's bits, into the vector registers from which [`Cache::find`] and [`Cache::has`] take
    /// them.
    pub fn look_for(self, a: &mut Assembler) {
        if self.avx512 {
            a.rr(Code::EVEX_Vpbroadcastd_ymm_k1z_r32, YMM16, EAX);
            a.rm(Code::EVEX_Vpbroadcastd_ymm_k1z_xmmm32, YMM17, self.mask());
            return;
        }
        a.rr(Code::VEX_Vmovd_xmm_rm32, XMM0, EAX);
        a.rr(Code::VEX_Vpbroadcastd_xmm_xmmm32, XMM0, XMM0);
        a.rm(Code::VEX_Vmovdqu_xmm_xmmm128, XMM3, self.mask());
    }

    /// Compares a vector of words with the prepared tag. Register `to` becomes all ones in the words that have the tag.
    fn compare(self, a: &mut Assembler, set: Register, vector: u32, to: Register) {
        let words = at_offset(set, i64::from(16 * vector));
        a.rrm(Code::VEX_Vpand_xmm_xmm_xmmm128, to, XMM3, words);
        a.rrr(Code::VEX_Vpcmpeqd_xmm_xmm_xmmm128, to, to, XMM0);
    }

    /// Compares a chunk with the prepared tag. Mask register `to` gets ones for the words that have the tag.
    fn compare_chunk(self, a: &mut Assembler, set: Register, chunk: Chunk, to: Register) {
        let (mask, wanted, scratch) = chunk.pick((YMM17, YMM16, YMM18), (XMM17, XMM16, XMM18));
        let and = chunk.pick(
            Code::EVEX_Vpandd_ymm_k1z_ymm_ymmm256b32,
            Code::EVEX_Vpandd_xmm_k1z_xmm_xmmm128b32,
        );
        let equal = chunk.pick(
            Code::EVEX_Vpcmpeqd_kr_k1_ymm_ymmm256b32,
            Code::EVEX_Vpcmpeqd_kr_k1_xmm_xmmm128b32,
        );
        a.rrm(and, scratch, mask, chunk.at(set, 0));
        a.rrr(equal, to, scratch, wanted);
    }

    /// Clears ZF if a word of the set has the prepared tag, or else sets ZF. May change RAX.
    pub fn has(self, a: &mut Assembler, set: Register) {
        if self.avx512 {
            for chunk in self.chunks() {
                let to = if chunk.first == 0 { K1 } else { K2 };
                self.compare_chunk(a, set, chunk, to);
                if chunk.first != 0 {
                    a.rrr(Code::VEX_Korw_kr_kr_kr, K1, K1, K2);
                }
            }
            a.rr(Code::VEX_Kortestw_kr_kr, K1, K1);
            return;
        }
        self.compare(a, set, 0, XMM1);
        for vector in 1..self.vectors() {
            self.compare(a, set, vector, XMM2);
            a.rrr(Code::VEX_Vpor_xmm_xmm_xmmm128, XMM1, XMM1, XMM2);
        }
        a.rr(Code::VEX_Vptest_xmm_xmmm128, XMM1, XMM1);
    }

    /// Computes in `way` the index of the way with the prepared tag, or jumps to `absent` if no way has this tag. Uses RAX.
    pub fn find(self, a: &mut Assembler, set: Register, way: Register, absent: Label) {
        let way = sized(way, 4);
        if self.avx512 {
            self.find_in_chunks(a, set, way, absent);
            return;
        }
        let pack = |a: &mut Assembler, code, with| a.rrr(code, XMM1, XMM1, with);
        match self.vectors() {
            1 => {
                self.compare(a, set, 0, XMM1);
                a.rr(Code::VEX_Vmovmskps_r32_xmm, EAX, XMM1);
                a.rr(Code::Test_rm32_r32, EAX, EAX);
                a.jcc(cc::E, absent);
            }
            2 => {
                self.compare(a, set, 0, XMM1);
                self.compare(a, set, 1, XMM2);
                pack(a, Code::VEX_Vpackssdw_xmm_xmm_xmmm128, XMM2);
                pack(a, Code::VEX_Vpacksswb_xmm_xmm_xmmm128, XMM1);
                a.rr(Code::VEX_Vpmovmskb_r32_xmm, EAX, XMM1);
                a.ri(Code::And_rm32_imm32, EAX, 0xff);
                a.jcc(cc::E, absent);
            }
            vectors => {
                // Usually no word has the tag.
                self.has(a, set);
                a.jcc(cc::E, absent);
                for vector in 0..vectors {
                    let bits = if vector == 0 { EAX } else { way };
                    self.compare(a, set, vector, XMM1);
                    a.rr(Code::VEX_Vmovmskps_r32_xmm, bits, XMM1);
                    if vector > 0 {
                        a.ri(Code::Shl_rm32_imm8, way, (LANES * vector) as i32);
                        a.rr(Code::Or_r32_rm32, EAX, way);
                    }
                }
            }
        }
        a.rr(Code::Tzcnt_r32_rm32, way, EAX);
    }

    fn find_in_chunks(self, a: &mut Assembler, set: Register, way: Register, absent: Label) {
        // Two masks of eight bits become one mask of sixteen.
        for (pair, chunks) in self.chunks().chunks(2).enumerate() {
            for (chunk, to) in chunks.iter().zip([K1, K2]) {
                self.compare_chunk(a, set, *chunk, to);
            }
            if chunks.len() == 2 {
                a.rrr(Code::VEX_Kunpckbw_kr_kr_kr, K1, K2, K1);
            }
            let to = if pair == 0 { EAX } else { way };
            a.rr(Code::VEX_Kmovw_r32_kr, to, K1);
            if pair > 0 {
                a.ri(Code::Shl_rm32_imm8, way, 16 * pair as i32);
                a.rr(Code::Or_r32_rm32, EAX, way);
            }
        }
        a.rr(Code::Tzcnt_r32_rm32, way, EAX);
        // TZCNT sets CF if no bit is set.
        a.jcc(cc::B, absent);
    }

    /// Jumps to `other` unless the word in memory has the tag in EAX. Uses `scratch`.
    pub fn is_tag(self, a: &mut Assembler, word: MemoryOperand, scratch: Register, other: Label) {
        let scratch = sized(scratch, 4);
        a.rr(Code::Mov_r32_rm32, scratch, EAX);
        a.rm(Code::Xor_r32_rm32, scratch, word);
        a.ri(Code::Shr_rm32_imm8, scratch, self.shape.tag_shift as i32);
        a.jcc(cc::NE, other);
    }

    /// Moves each word of a set before `way` to the next position, overwriting the word of `way`, and stores `word` first. Without a way,
    /// moves all words and drops the last. Uses RAX.
    fn shift(self, a: &mut Assembler, set: Register, way: Option<Register>, word: Register) {
        if let Some(way) = way {
            a.rr(Code::Xor_r32_rm32, EAX, EAX);
            a.rr(Code::Bts_rm32_r32, EAX, sized(way, 4));
            a.rr(Code::VEX_Blsmsk_r32_rm32, EAX, EAX);
            a.rr(Code::VEX_Kmovd_kr_r32, K3, EAX);
        }
        let chunks = self.chunks();
        for &chunk in chunks.iter().rev() {
            let whole = way.is_none() && chunk.first + chunk.words() <= self.shape.ways;
            let (moved, first) = chunk.pick((YMM18, YMM16), (XMM18, XMM16));
            let load = chunk.pick(
                Code::EVEX_Vmovdqu32_ymm_k1z_ymmm256,
                Code::EVEX_Vmovdqu32_xmm_k1z_xmmm128,
            );
            let mask = if way.is_none() {
                // Words beyond the ways must remain 0.
                if !whole {
                    let ways = self.shape.ways - chunk.first;
                    a.constant(RAX, (1_u64 << ways) - 1);
                    a.rr(Code::VEX_Kmovd_kr_r32, K1, EAX);
                }
                K1
            } else if chunk.first == 0 {
                K3
            } else {
                let shift = Code::VEX_Kshiftrd_kr_kr_imm8;
                a.made(Instruction::with3(shift, K1, K3, chunk.first));
                K1
            };
            let mut change = if chunk.first == 0 {
                let broadcast = chunk.pick(
                    Code::EVEX_Vpbroadcastd_ymm_k1z_r32,
                    Code::EVEX_Vpbroadcastd_xmm_k1z_r32,
                );
                a.rr(broadcast, first, sized(word, 4));
                let before = chunk.pick(YMM19, Register::XMM19);
                a.rm(load, before, chunk.at(set, 0));
                if !whole {
                    a.rr(load, moved, before);
                }
                // Each word gets the value of the word before it.
                let align = chunk.pick(
                    Code::EVEX_Valignd_ymm_k1z_ymm_ymmm256b32_imm8,
                    Code::EVEX_Valignd_xmm_k1z_xmm_xmmm128b32_imm8,
                );
                Instruction::with4(align, moved, before, first, chunk.words() - 1)
            } else {
                if !whole {
                    a.rm(load, moved, chunk.at(set, 0));
                }
                Instruction::with2(load, moved, chunk.at(set, 1))
            };
            if let (false, Ok(change)) = (whole, &mut change) {
                change.set_op_mask(mask);
            }
            a.made(change);
            let store = chunk.pick(
                Code::EVEX_Vmovdqu32_ymmm256_k1z_ymm,
                Code::EVEX_Vmovdqu32_xmmm128_k1z_xmm,
            );
            a.mr(store, chunk.at(set, 0), moved);
        }
    }

    /// Makes a way of a set the most recently used one, with `word` as its new word. Uses RAX.
    pub fn make_mru(self, a: &mut Assembler, set: Register, way: Register, word: Register) {
        if self.avx512 {
            self.shift(a, set, Some(way), word);
            return;
        }
        let broadcast = |a: &mut Assembler, to, from| {
            a.rr(Code::VEX_Vmovd_xmm_rm32, to, sized(from, 4));
            a.rr(Code::VEX_Vpbroadcastd_xmm_xmmm32, to, to);
        };
        broadcast(a, XMM3, way);
        // `word` comes before the first word.
        broadcast(a, XMM0, word);
        for vector in 0..self.vectors() {
            let words = at_offset(set, i64::from(16 * vector));
            let numbers = offset_of!(ExportedCaches, way_numbers) as i64 + i64::from(16 * vector);
            a.rm(Code::VEX_Vmovdqu_xmm_xmmm128, XMM1, words);
            // Each word up to the way gets the value of the word before it.
            a.made(Instruction::with4(
                Code::VEX_Vpalignr_xmm_xmm_xmmm128_imm8,
                XMM2,
                XMM1,
                XMM0,
                12,
            ));
            a.rm(
                Code::VEX_Vmovdqu_xmm_xmmm128,
                XMM4,
                at_offset(EXPORTED, numbers),
            );
            a.rrr(Code::VEX_Vpcmpgtd_xmm_xmm_xmmm128, XMM4, XMM4, XMM3);
            a.made(Instruction::with4(
                Code::VEX_Vpblendvb_xmm_xmm_xmmm128_xmm,
                XMM2,
                XMM2,
                XMM1,
                XMM4,
            ));
            if vector + 1 < self.vectors() {
                a.rr(Code::VEX_Vmovdqu_xmm_xmmm128, XMM0, XMM1);
            }
            a.mr(Code::VEX_Vmovdqu_xmmm128_xmm, words, XMM2);
        }
    }

    /// Stores `word` before the other words of a set, and drops the last word. Uses RAX.
    pub fn replace_lru(self, a: &mut Assembler, set: Register, word: Register) {
        if self.avx512 {
            self.shift(a, set, None, word);
            return;
        }
        let mut rest = self.shape.ways - 1;
        let from = |word: u32| at_offset(set, i64::from(4 * word));
        while rest >= LANES {
            rest -= LANES;
            a.rm(Code::VEX_Vmovdqu_xmm_xmmm128, XMM1, from(rest));
            a.mr(Code::VEX_Vmovdqu_xmmm128_xmm, from(rest + 1), XMM1);
        }
        if rest == LANES - 1 && self.shape.ways > LANES {
            // The last vector move covers four words from the beginning, one of which has moved already.
            a.rm(Code::VEX_Vmovdqu_xmm_xmmm128, XMM1, from(0));
            a.mr(Code::VEX_Vmovdqu_xmmm128_xmm, from(1), XMM1);
            rest = 0;
        }
        for n in (0..rest).rev() {
            a.rm(Code::Mov_r32_rm32, EAX, from(n));
            a.mr(Code::Mov_rm32_r32, from(n + 1), EAX);
        }
        a.mr(Code::Mov_rm32_r32, at(set), sized(word, 4));
    }

    /// Computes in `line` the number of the line that a word of this cache stands for. `like` is the number of any line in the same set.
    /// Uses RAX.
    pub fn line_of(self, a: &mut Assembler, word: Register, like: Register, line: Register) {
        a.rr(Code::Mov_r32_rm32, sized(line, 4), sized(word, 4));
        a.ri(
            Code::Shr_rm32_imm8,
            sized(line, 4),
            self.shape.tag_shift as i32,
        );
        a.ri(Code::Sub_rm64_imm8, line, 1);
        match self.shape.sets {
            SetCount::Power(log) => a.ri(Code::Shl_rm64_imm8, line, log as i32),
            SetCount::Other { sets, .. } => multiply(a, line, sets),
        }
        self.remainder(a, like);
        a.rr(Code::Add_r64_rm64, line, RAX);
    }
}
