//! Pieces of random programs. Each piece exercises one path of the translator: operands at close addresses, string instructions, loops,
//! split accesses, upper halves of vector registers, changes of mode.

use super::encode::{absolute, instruction_with_memory, load, operand};
use super::guest::{
    CODE_AS_DATA, COMPATIBLE_CS, DEVICE, KERNEL_SPARE, USER_CS, WINDOW_ALIAS, WINDOW_REVERSED,
};
use crate::layout::{CODE, PAGE, WINDOW};
use crate::random::Random;

/// Appends accesses to fields of a structure: operands with the same base, or base and index. Sometimes the base changes between two
/// accesses, or an instruction that only the interpreter executes is in between.
pub fn fields(code: &mut Vec<u8>, starts: &[u64], large: bool, r: &mut Random) {
    let (base, index) = (r.below(16) as u8, r.below(16) as u8);
    let index = (index & 15 != 4 && r.chance(300)).then_some(index);
    let near = r.pick(&[0, 8, 64, 0x800, 0xf40, 0xfe0]) + r.below(64);
    let to = match r.below(16) {
        0 => DEVICE + near,
        1 => match r.pick(starts) {
            at if large && r.chance(600) => at - CODE + CODE_AS_DATA,
            at => at,
        },
        2 if large && r.chance(600) => KERNEL_SPARE,
        2 => r.next(),
        page => WINDOW + (page % 6) * PAGE + near,
    };
    load(code, base.into(), to);
    if let Some(index) = index {
        let far = r.pick(&[0, 8, 0x100, 0xff8]);
        load(code, index.into(), if index == base { to } else { far });
    }
    let first = r.below(0x200) as i32 - 0x100;
    for _ in 0..2 + r.below(8) {
        match r.below(16) {
            // ADD base, imm8.
            0 => code.extend([0x48 | base >> 3, 0x83, 0xc0 | base & 7, r.next() as u8]),
            // FNOP, which the interpreter executes.
            1 => code.extend([0xd9, 0xd0]),
            _ => {}
        }
        let near = [0, 0, 8, 16, 24, 32, 4, 1, 0xf8, 0x1000];
        let displacement = first + r.pick(&near);
        if r.chance(200) {
            let operand = |code: &mut Vec<u8>, prefix: &[u8], opcode: &[u8]| {
                instruction_with_memory(code, (prefix, 0, opcode), 1, base, index, displacement);
            };
            load_change_store(code, operand, r);
        } else {
            field_access(code, base, index, displacement, r);
        }
    }
}

/// Appends a load to XMM1, instructions that change XMM1, and a store to the loaded address. `operand` appends an instruction from a prefix
/// and an opcode.
pub fn load_change_store(
    code: &mut Vec<u8>,
    operand: impl Fn(&mut Vec<u8>, &[u8], &[u8]),
    r: &mut Random,
) {
    // Prefix, opcode of the load and opcode of the store, for several sizes; one form needs alignment, and its store is non-temporal.
    let forms: [(&[u8], u8, u8); 6] = [
        (&[], 0x10, 0x11),
        (&[0x66], 0x28, 0x2b),
        (&[0xf2], 0x10, 0x11),
        (&[0x66], 0x6e, 0x7e),
        (&[0xf3], 0x10, 0x11),
        (&[0x66], 0x58, 0x11),
    ];
    let (prefix, load, store) = r.pick(&forms);
    operand(code, prefix, &[0x0f, load]);
    for _ in 0..r.below(3) {
        // PADDB, MULPD and UNPCKLPS with XMM2; COMISD, which writes flags; NOP; a second load.
        match r.below(12) {
            0 => code.extend([0x66, 0x0f, 0x2f, 0xca]),
            1 => code.push(0x90),
            2 => operand(code, &[0x66], &[0x0f, 0xfe]),
            n if n < 6 => code.extend([0x66, 0x0f, 0x59, 0xca]),
            n if n < 9 => code.extend([0x0f, 0x14, 0xca]),
            _ => code.extend([0x66, 0x0f, 0xfc, 0xca]),
        }
    }
    operand(code, prefix, &[0x0f, store]);
}

/// Appends one access of [`fields`].
pub fn field_access(
    code: &mut Vec<u8>,
    base: u8,
    index: Option<u8>,
    displacement: i32,
    r: &mut Random,
) {
    // Prefix, REX.W and opcode: loads and stores of several sizes, some with aligned operands; read-modify-write; conditional instructions.
    let (prefix, wide, opcode): (&[u8], u8, &[u8]) = r.pick(&[
        (&[], 8, &[0x8b]),
        (&[], 8, &[0x89]),
        (&[], 0, &[0x8b]),
        (&[], 0, &[0x89]),
        (&[], 0, &[0x88]),
        (&[], 0, &[0x0f, 0xb6]),
        (&[], 8, &[0x01]),
        (&[], 8, &[0x03]),
        (&[], 8, &[0x3b]),
        (&[], 8, &[0xff]),
        (&[], 8, &[0xd3]),
        (&[], 8, &[0x0f, 0xc1]),
        (&[], 8, &[0x0f, 0xb1]),
        (&[], 8, &[0x0f, 0x44]),
        (&[], 0, &[0x0f, 0x10]),
        (&[], 0, &[0x0f, 0x11]),
        (&[], 0, &[0x0f, 0x28]),
        (&[], 0, &[0x0f, 0x29]),
        (&[0x66], 0, &[0x0f, 0x6f]),
        (&[0xf2], 0, &[0x0f, 0x10]),
        (&[0x66], 0, &[0x0f, 0x58]),
    ]);
    // For INC and DEC, and for ROL, RCR and SHL by CL, the register field is the opcode's extension.
    let register = match opcode {
        [0xff] => r.below(2) as u8,
        [0xd3] => r.pick(&[0, 3, 4]),
        _ => r.below(16) as u8,
    };
    // Some stores are non-temporal: MOVNTI, MOVNTPS. This choice draws no number, so that seeds keep their programs.
    let opcode: &[u8] = match opcode {
        [0x89] if register & 3 == 3 => &[0x0f, 0xc3],
        [0x0f, 0x29] if register & 1 == 1 => &[0x0f, 0x2b],
        _ => opcode,
    };
    instruction_with_memory(
        code,
        (prefix, wide, opcode),
        register,
        base,
        index,
        displacement,
    );
}

/// Appends REP MOVS or REP STOS with at most 607 elements: within a page, across pages, on missing pages, or with overlapping operands.
pub fn string_instruction(code: &mut Vec<u8>, r: &mut Random) {
    let place = |r: &mut Random| {
        let page = r.pick(&[WINDOW, WINDOW, WINDOW, DEVICE]) + r.below(6) * PAGE;
        page + r.pick(&[0, 8, 0x800, 0xe00, 0xff0]) + r.below(64)
    };
    let to = place(r);
    let from = match r.below(3) {
        0 => to - 64 + r.below(128),
        _ => place(r),
    };
    load(code, 1, r.pick(&[0, 1, 8, 64, 600]) + r.below(8));
    load(code, 6, from);
    load(code, 7, to);
    // CLD or STD.
    if r.chance(700) {
        code.push(if r.chance(900) { 0xfc } else { 0xfd });
    }
    code.push(0xf3);
    if r.chance(500) {
        code.push(0x48);
    }
    code.push(r.pick(&[0xa4, 0xa5, 0xaa, 0xab]));
}

/// Appends a short loop over an array, which may reach a missing page or a device.
pub fn array_loop(code: &mut Vec<u8>, r: &mut Random) {
    let (base, count) = (r.pick(&[3, 6, 7, 9, 12]), r.pick(&[0, 1, 2, 10]));
    let start = r.pick(&[WINDOW, WINDOW, DEVICE]) + r.below(6) * PAGE + r.pick(&[0, 0xf00, 0xfc8]);
    load(code, base.into(), start);
    load(code, count.into(), 1 + r.below(40));
    // Some loops also push or pop, up to the end of the stack.
    let stack = r
        .chance(400)
        .then(|| (r.pick(&[0x50, 0x58]), 2 + r.below(3)));
    if stack.is_some() {
        load(code, 4, WINDOW + r.below(6) * PAGE + 8 * r.below(60));
    }
    let top = code.len();
    if let Some((opcode, operations)) = stack {
        for _ in 0..operations {
            code.push(opcode | 5);
        }
    }
    for _ in 0..1 + r.below(2) {
        let displacement = r.pick(&[0, 0, 8, 0x38, 0x200]);
        if r.chance(500) {
            let operand = |code: &mut Vec<u8>, prefix: &[u8], opcode: &[u8]| {
                instruction_with_memory(code, (prefix, 0, opcode), 1, base, None, displacement);
            };
            load_change_store(code, operand, r);
        } else {
            field_access(code, base, None, displacement, r);
        }
    }
    let step: u32 = r.pick(&[4, 16, 64, 0x200, 0x1000]);
    code.extend([0x48 | base >> 3, 0x81, 0xc0 | base & 7]);
    code.extend(step.to_le_bytes());
    if r.chance(700) {
        // SUB and JNE.
        code.extend([0x48 | count >> 3, 0x83, 0xe8 | count & 7, 1, 0x0f, 0x85]);
        let back = top as i64 - (code.len() as i64 + 4);
        code.extend((back as i32).to_le_bytes());
    } else {
        loop_end(code, top, count, r);
    }
}

/// Appends a short loop over two arrays. Its accesses are often split between two lines, and sometimes between two pages. One of the pages
/// may be missing or read-only. Adjacent pages may not be adjacent in physical memory.
pub fn split_accesses(code: &mut Vec<u8>, r: &mut Random) {
    // RBX and RSI, or two registers that the translator keeps in memory.
    let bases = r.pick(&[[3_u8, 6], [12, 13], [7, 9]]);
    for base in bases {
        let pages = r.pick(&[
            WINDOW,
            WINDOW,
            WINDOW_REVERSED,
            WINDOW_REVERSED,
            WINDOW_ALIAS,
        ]);
        // Index 2 is the boundary to the last page, which is writable if the pages are in reverse order.
        let (page, within) = match r.below(3) {
            0 => (2, r.pick(&[0xfc8, 0xfe8, 0xff0, 0xffc])),
            _ => (
                r.below(4),
                r.pick(&[0x10, 0x30, 0x3c, 0x7f0, 0xf30, 0xfb0, 0xfe8, 0xff0]),
            ),
        };
        let at = pages + page * PAGE + within + r.pick(&[0, 0, 0, 1, 4, 7]);
        load(code, base.into(), at);
    }
    let count = r.pick(&[0_u8, 1, 2, 10]);
    load(code, count.into(), 1 + r.below(30));
    // PUSH and POP are split, too.
    if r.chance(200) {
        load(
            code,
            4,
            WINDOW + r.below(4) * PAGE + r.pick(&[0x44, 0x84, 0xffc, 0x1004]),
        );
        code.extend([0x50 | r.next() as u8 & 7, 0x58 | r.pick(&[0, 1, 2, 3])]);
    }
    let top = code.len();
    for _ in 0..1 + r.below(4) {
        let base = r.pick(&bases);
        let displacement = r.pick(&[0, 0, 0x20, 0x40, -0x10, 0x3f, 0x200]);
        // VMOVUPS of YMM1 in both directions, VADDPD and VMULPS to YMM1.
        let wide: [(u8, u8); 4] = [(0xfc, 0x10), (0xfc, 0x11), (0xf5, 0x58), (0xf4, 0x59)];
        let vector = |code: &mut Vec<u8>, (last, opcode): (u8, u8)| {
            // A VEX prefix of three bytes, which permits any base.
            code.extend([0xc4, 0xc1 | (!base >> 3 & 1) << 5, last & 0x7f, opcode]);
            operand(code, 1, base, None, displacement);
        };
        match r.below(8) {
            0..=2 => vector(code, r.pick(&wide)),
            // y[i] += a * x[i]
            3 | 4 => {
                for form in [wide[0], wide[2], wide[1]] {
                    vector(code, form);
                }
            }
            5 => {
                let operand = |code: &mut Vec<u8>, prefix: &[u8], opcode: &[u8]| {
                    instruction_with_memory(code, (prefix, 0, opcode), 1, base, None, displacement);
                };
                load_change_store(code, operand, r);
            }
            _ => field_access(code, base, None, displacement, r),
        }
    }
    for base in bases {
        let step: u32 = r.pick(&[0, 0, 0, 8, 32, 32, 48, 0x40, 0xff0]);
        code.extend([0x48 | base >> 3, 0x81, 0xc0 | base & 7]);
        code.extend(step.to_le_bytes());
    }
    loop_end(code, top, count, r);
}

/// Appends an instruction that sets the flags, mostly from `register`, and a conditional jump back to `top`.
pub fn loop_end(code: &mut Vec<u8>, top: usize, register: u8, r: &mut Random) {
    let (x, n) = (register >> 3, register & 7);
    match r.below(12) {
        // SUB, ADD, CMP, AND, OR and XOR with a constant; CMP and ADD of two registers; TEST, NEG, DEC, UCOMISD.
        0..=2 => code.extend([0x48 | x, 0x83, 0xe8 | n, 1 + r.below(2) as u8]),
        3 => code.extend([0x48 | x, 0x83, 0xc0 | n, r.next() as u8]),
        4 => code.extend([0x48 | x, 0x83, 0xf8 | n, r.next() as u8]),
        5 => code.extend([
            0x40 | x,
            0x83,
            r.pick(&[0xe0, 0xc8, 0xf0]) | n,
            r.next() as u8,
        ]),
        6 => code.extend([0x48, 0x39, 0xc0 | r.below(64) as u8]),
        7 => code.extend([0x48, 0x01, 0xc0 | r.below(64) as u8]),
        8 => code.extend([0x48 | x << 2 | x, 0x85, 0xc0 | n << 3 | n]),
        9 => code.extend([0x48 | x, 0xf7, 0xd8 | n]),
        10 => code.extend([0x48 | x, 0xff, 0xc8 | n]),
        _ => code.extend([0x66, 0x0f, 0x2e, 0xc0 | r.below(64) as u8]),
    }
    code.extend([0x0f, 0x80 | r.pick(&[5, 5, 5, 4, 2, 3, 8, 12, 15])]);
    let back = top as i64 - (code.len() as i64 + 4);
    code.extend((back as i32).to_le_bytes());
}

/// Appends code that uses the upper half of a vector register and may clear it, then a loop on the lower half.
pub fn upper_halves(code: &mut Vec<u8>, r: &mut Random) {
    let n = r.below(8) as u8;
    // VPCMPEQD of a YMM register with itself.
    code.extend([0xc5, 0x85 | (!n & 15) << 3, 0x76, 0xc0 | n << 3 | n]);
    if r.chance(500) {
        // FNOP, which the interpreter executes.
        code.extend([0xd9, 0xd0]);
    }
    if r.chance(500) {
        // VZEROUPPER
        code.extend([0xc5, 0xf8, 0x77]);
    }
    let count = r.pick(&[1, 3, 5, 6, 7]);
    load(code, count.into(), 1 + r.below(60));
    let top = code.len();
    // PADDD
    code.extend([0x66, 0x0f, 0xfe, 0xc0 | n << 3 | r.below(8) as u8]);
    loop_end(code, top, count, r);
}

/// Appends a far jump, through memory, to an address in 64-bit or 32-bit code. The encoding is valid in both modes.
pub fn far_jump(code: &mut Vec<u8>, target: u64, r: &mut Random) {
    let slot = WINDOW + 0x800 + 8 * r.below(64);
    code.push(0xc7);
    absolute(code, 0, slot);
    code.extend((target as u32).to_le_bytes());
    code.extend([0x66, 0xc7]);
    absolute(code, 0, slot + 4);
    code.extend(r.pick(&[USER_CS, COMPATIBLE_CS]).to_le_bytes());
    code.push(0xff);
    absolute(code, 5, slot);
}
