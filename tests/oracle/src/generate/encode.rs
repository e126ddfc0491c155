//! Random encodings of a given instruction. The fixed parts come from its opcode, and everything else is random. An encoding is kept if the
//! decoder finds the instruction in it. Therefore redundant forms also occur: unused REX and VEX bits, useless prefixes, any ModRM.

use iced_x86::{
    Code, Decoder, DecoderOptions, EncodingKind, Instruction, MandatoryPrefix, OpCodeInfo,
    OpCodeOperandKind, OpCodeTableKind,
};

use crate::random::Random;

/// Returns an encoding and its decoded instruction at `address`. With `invalid`, returns an encoding that no processor accepts. None: this
/// try gave no such encoding.
pub fn encode(
    code: Code,
    address: u64,
    invalid: bool,
    r: &mut Random,
) -> Option<(Vec<u8>, Instruction)> {
    let info = code.op_code();
    let mut bytes = Vec::with_capacity(40);
    if info.encoding() == EncodingKind::VEX {
        vex(info, invalid, r, &mut bytes);
    } else {
        legacy(info, invalid, r, &mut bytes);
    }
    let decode = |options| Decoder::with_ip(64, &bytes, address, options).decode();
    let instruction = decode(DecoderOptions::NONE);
    if invalid {
        // Without the checks of LOCK, vvvv and so on, these bytes decode to the instruction.
        let unchecked = decode(DecoderOptions::NO_INVALID_CHECK);
        if !instruction.is_invalid() || unchecked.code() != code || unchecked.len() > 15 {
            return None;
        }
        // Bytes behind the instruction are random and not part of it.
        bytes.truncate(unchecked.len());
        return Some((bytes, instruction));
    }
    if instruction.code() != code || instruction.len() > 15 {
        return None;
    }
    bytes.truncate(instruction.len());
    Some((bytes, instruction))
}

fn legacy(info: &OpCodeInfo, invalid: bool, r: &mut Random, bytes: &mut Vec<u8>) {
    let mut prefixes: Vec<u8> = Vec::new();
    match info.mandatory_prefix() {
        MandatoryPrefix::P66 => prefixes.push(0x66),
        MandatoryPrefix::PF3 => prefixes.push(0xf3),
        MandatoryPrefix::PF2 => prefixes.push(0xf2),
        MandatoryPrefix::PNP => {}
        MandatoryPrefix::None => {
            if info.can_use_rep_prefix() && r.chance(500) {
                prefixes.push(0xf3);
            } else if info.can_use_repne_prefix() && r.chance(500) {
                prefixes.push(0xf2);
            } else if r.chance(10) {
                prefixes.push(r.pick(&[0x66, 0xf2, 0xf3]));
            }
        }
    }
    if info.operand_size() == 16 && info.mandatory_prefix() != MandatoryPrefix::P66 {
        prefixes.push(0x66);
    }
    if (info.can_use_lock_prefix() && r.chance(350)) || invalid {
        prefixes.push(0xf0);
    }
    if info.address_size() == 32 || r.chance(80) {
        prefixes.push(0x67);
    }
    if r.chance(50) {
        prefixes.push(r.pick(&[0x65, 0x65, 0x3e, 0x2e, 0x26, 0x36]));
    }
    // The prefixes are in random order.
    for i in (1..prefixes.len()).rev() {
        prefixes.swap(i, r.below(i as u64 + 1) as usize);
    }
    bytes.extend(prefixes);
    let wide = if info.operand_size() == 64 || info.w() == 1 {
        900
    } else {
        80
    };
    if r.chance(wide) {
        bytes.push(0x48 | r.next() as u8 & 7);
    } else if r.chance(400) {
        bytes.push(0x40 | r.next() as u8 & 7);
    }
    match info.table() {
        OpCodeTableKind::T0F => bytes.push(0x0f),
        OpCodeTableKind::T0F38 => bytes.extend([0x0f, 0x38]),
        OpCodeTableKind::T0F3A => bytes.extend([0x0f, 0x3a]),
        _ => {}
    }
    opcode(info, r, bytes);
}

fn vex(info: &OpCodeInfo, invalid: bool, r: &mut Random, bytes: &mut Vec<u8>) {
    if r.chance(60) {
        bytes.push(0x67);
    }
    if r.chance(40) {
        bytes.push(r.pick(&[0x65, 0x3e, 0x2e, 0x26, 0x36]));
    }
    let spoil = if invalid { r.below(4) } else { 9 };
    if spoil == 0 {
        bytes.push(r.pick(&[0x66, 0xf2, 0xf3, 0xf0, 0x40, 0x48]));
    }
    let map = match info.table() {
        OpCodeTableKind::T0F => 1,
        OpCodeTableKind::T0F38 => 2,
        _ => 3,
    };
    let pp = match info.mandatory_prefix() {
        MandatoryPrefix::P66 => 1,
        MandatoryPrefix::PF3 => 2,
        MandatoryPrefix::PF2 => 3,
        _ => 0,
    };
    let mut w = if info.is_wig() {
        r.below(2)
    } else {
        info.w().into()
    };
    let mut l = if info.is_lig() {
        r.below(2)
    } else {
        info.l().into()
    };
    if spoil == 1 {
        w ^= 1;
    }
    if spoil == 2 {
        l ^= 1;
    }
    let uses_vvvv = (0..info.op_count()).any(|i| {
        use OpCodeOperandKind as K;
        matches!(
            info.op_kind(i),
            K::xmm_vvvv | K::ymm_vvvv | K::r32_vvvv | K::r64_vvvv
        )
    });
    let vvvv = if uses_vvvv || spoil == 3 {
        r.below(16)
    } else {
        15
    } as u8;
    let rxb = r.next() as u8 & 7;
    let last = vvvv << 3 | (l as u8 & 1) << 2 | pp;
    if map == 1 && w == 0 && rxb & 3 == 3 {
        bytes.extend([0xc5, (rxb >> 2) << 7 | last]);
    } else {
        bytes.extend([0xc4, rxb << 5 | map, (w as u8) << 7 | last]);
    }
    opcode(info, r, bytes);
}

/// Appends the opcode bytes, ModRM with its fixed fields, and random bytes for all that follows.
fn opcode(info: &OpCodeInfo, r: &mut Random, bytes: &mut Vec<u8>) {
    let opcode = info.op_code();
    if info.op_code_len() == 2 {
        bytes.push((opcode >> 8) as u8);
    }
    bytes.push(opcode as u8);
    let at = bytes.len();
    for _ in 0..3 {
        bytes.extend(r.next().to_le_bytes());
    }
    if r.chance(450) {
        bytes[at] |= 0xc0;
    }
    if info.group_index() >= 0 {
        bytes[at] = bytes[at] & 0xc7 | (info.group_index() as u8) << 3;
    }
    if info.rm_group_index() >= 0 {
        bytes[at] = bytes[at] & 0xf8 | info.rm_group_index() as u8;
    }
}
