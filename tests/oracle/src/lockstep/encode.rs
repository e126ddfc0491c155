//! Encodings of single instructions and operands, appended to a vector of bytes.

/// Appends `mov r64, imm64`.
pub fn load(code: &mut Vec<u8>, register: usize, value: u64) {
    code.extend([0x48 | (register >> 3) as u8, 0xb8 | register as u8 & 7]);
    code.extend(value.to_le_bytes());
}

/// Appends ModRM, SIB and displacement of an absolute address. `reg` is a register or the opcode's extension.
pub fn absolute(code: &mut Vec<u8>, reg: u8, address: u64) {
    code.extend([0x04 | (reg & 7) << 3, 0x25]);
    code.extend((address as u32).to_le_bytes());
}

/// Appends an instruction with a register and an operand in memory. The tuple has the prefixes, REX.W and the opcode.
pub fn instruction_with_memory(
    code: &mut Vec<u8>,
    (prefix, wide, opcode): (&[u8], u8, &[u8]),
    register: u8,
    base: u8,
    index: Option<u8>,
    displacement: i32,
) {
    code.extend(prefix);
    code.push(0x40 | wide | register >> 3 << 2 | index.unwrap_or(0) >> 3 << 1 | base >> 3);
    code.extend(opcode);
    operand(code, register, base, index, displacement);
}

/// Appends ModRM, SIB and displacement for a register and an operand in memory. The operand has a base, perhaps an index, and a
/// displacement of four bytes.
pub fn operand(code: &mut Vec<u8>, register: u8, base: u8, index: Option<u8>, displacement: i32) {
    let register = (register & 7) << 3;
    if index.is_some() || base & 7 == 4 {
        let scale = if index.is_some() { 0 } else { 0xc0 };
        let index = (index.unwrap_or(4) & 7) << 3;
        code.extend([0x84 | register, scale | index | base & 7]);
    } else {
        code.push(0x80 | register | base & 7);
    }
    code.extend(displacement.to_le_bytes());
}
