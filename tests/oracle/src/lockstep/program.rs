//! Random programs: pieces of straight-line code from [`crate::generate`], joined by branches, or random bytes.

use iced_x86::{Encoder, Instruction, InstructionInfoFactory, OpKind, Register};

use super::guest::{
    ALIAS, CODE_AS_DATA, CODE_LEN, COMPATIBLE_CS, DEVICE, KERNEL_SPARE, STRIDE, USER_CS,
    WINDOW_ALIAS, WINDOW_REVERSED,
};
use crate::catalogue::Group;
use crate::generate::Generator;
use crate::layout::{CODE, PAGE, WINDOW, WRITABLE_LEN};
use crate::random::Random;

/// Places where pieces may start.
const PLACES: u64 = CODE_LEN as u64 / STRIDE;

/// How often each group is drawn.
const WEIGHTS: [(Group, u64); 10] = [
    (Group::Integer, 40),
    (Group::Bmi, 6),
    (Group::String, 6),
    (Group::X87, 8),
    (Group::Mmx, 4),
    (Group::Sse, 15),
    (Group::Avx, 14),
    (Group::Fma, 4),
    (Group::State, 2),
    (Group::Invalid, 1),
];

/// Writes programs.
pub struct Writer {
    generators: Vec<(Generator, u64)>,
    info: InstructionInfoFactory,
    /// Programs jump between 64-bit and 32-bit code.
    pub changes_mode: bool,
    /// Programs copy and fill by string instructions often.
    pub strings: bool,
    /// Programs use whole vector registers, and clear their upper halves, often.
    pub widths: bool,
    /// Programs load and store often where operands lie in two lines, or two pages.
    pub splits: bool,
    /// The guest has large pages.
    pub large: bool,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            generators: WEIGHTS
                .iter()
                .filter(|(g, _)| g.missing().is_empty())
                .map(|&(g, weight)| (Generator::new(g, 1), weight))
                .collect(),
            info: InstructionInfoFactory::new(),
            changes_mode: false,
            strings: false,
            widths: false,
            splits: false,
            large: false,
        }
    }
}

/// `mov r64, imm64`
fn load(code: &mut Vec<u8>, register: usize, value: u64) {
    code.extend([0x48 | (register >> 3) as u8, 0xb8 | register as u8 & 7]);
    code.extend(value.to_le_bytes());
}

/// ModRM and displacement of an absolute address; `reg` is the register or the opcode's extension.
fn absolute(code: &mut Vec<u8>, reg: u8, address: u64) {
    code.extend([0x04 | (reg & 7) << 3, 0x25]);
    code.extend((address as u32).to_le_bytes());
}

/// Operands at one base, or base and index, as a structure's fields are; with accidents in between.
fn fields(code: &mut Vec<u8>, starts: &[u64], large: bool, r: &mut Random) {
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
            // ADD base, constant
            0 => code.extend([0x48 | base >> 3, 0x83, 0xc0 | base & 7, r.next() as u8]),
            // FNOP, which the interpreter carries out.
            1 => code.extend([0xd9, 0xd0]),
            _ => {}
        }
        let near = [0, 0, 8, 16, 24, 32, 4, 1, 0xf8, 0x1000];
        let displacement = first + r.pick(&near);
        if r.chance(200) {
            let operand = |code: &mut Vec<u8>, prefix: &[u8], opcode: &[u8]| {
                form(code, (prefix, 0, opcode), 1, base, index, displacement);
            };
            pair(code, operand, r);
        } else {
            field(code, base, index, displacement, r);
        }
    }
}

/// XMM1 is loaded, changed and stored to where it came from; `operand` writes an instruction of a prefix and an opcode.
fn pair(code: &mut Vec<u8>, operand: impl Fn(&mut Vec<u8>, &[u8], &[u8]), r: &mut Random) {
    // Of all sizes; two must be aligned.
    let ways: [(&[u8], u8, u8); 6] = [
        (&[], 0x10, 0x11),
        (&[0x66], 0x28, 0x29),
        (&[0xf2], 0x10, 0x11),
        (&[0x66], 0x6e, 0x7e),
        (&[0xf3], 0x10, 0x11),
        (&[0x66], 0x58, 0x11),
    ];
    let (prefix, load, store) = r.pick(&ways);
    operand(code, prefix, &[0x0f, load]);
    for _ in 0..r.below(3) {
        // PADDB, MULPD, UNPCKLPS with XMM2; COMISD, which writes flags; NOP; a load that comes between.
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

/// One of [`fields`].
fn field(code: &mut Vec<u8>, base: u8, index: Option<u8>, displacement: i32, r: &mut Random) {
    // Prefix, REX.W, opcode: moves either way, of all sizes, some that must be aligned; what reads and writes, conditions.
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
    // INC and DEC, ROL, RCR and SHL by CL: the register is the opcode's extension.
    let register = match opcode {
        [0xff] => r.below(2) as u8,
        [0xd3] => r.pick(&[0, 3, 4]),
        _ => r.below(16) as u8,
    };
    form(
        code,
        (prefix, wide, opcode),
        register,
        base,
        index,
        displacement,
    );
}

/// An instruction of a prefix, REX.W and an opcode, with a register and an operand in memory.
fn form(
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

/// ModRM and what belongs to it: a register, and a base, perhaps an index, and a displacement of four bytes.
fn operand(code: &mut Vec<u8>, register: u8, base: u8, index: Option<u8>, displacement: i32) {
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

/// REP MOVS or REP STOS of few elements: within pages, across them, where pages are missing, over what is to be copied yet.
fn string(code: &mut Vec<u8>, r: &mut Random) {
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
    // CLD or STD, where it matters.
    if r.chance(700) {
        code.push(if r.chance(900) { 0xfc } else { 0xfd });
    }
    code.push(0xf3);
    if r.chance(500) {
        code.push(0x48);
    }
    code.push(r.pick(&[0xa4, 0xa5, 0xaa, 0xab]));
}

/// A short loop over an array, which may lead to where a page is missing, or a device is.
fn stride(code: &mut Vec<u8>, r: &mut Random) {
    let (base, count) = (r.pick(&[3, 6, 7, 9, 12]), r.pick(&[0, 1, 2, 10]));
    let start = r.pick(&[WINDOW, WINDOW, DEVICE]) + r.below(6) * PAGE + r.pick(&[0, 0xf00, 0xfc8]);
    load(code, base.into(), start);
    load(code, count.into(), 1 + r.below(40));
    // Some push or pop as well, up to where the stack ends.
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
                form(code, (prefix, 0, opcode), 1, base, None, displacement);
            };
            pair(code, operand, r);
        } else {
            field(code, base, None, displacement, r);
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

/// A short loop over two arrays whose elements often lie in two lines, and now and then in two pages. One of the pages may be
/// missing, may be read-only, or may lie elsewhere than behind the other.
fn splits(code: &mut Vec<u8>, r: &mut Random) {
    // RBX and RSI, or two that the translator keeps in memory.
    let bases = r.pick(&[[3_u8, 6], [12, 13], [7, 9]]);
    for base in bases {
        let pages = r.pick(&[
            WINDOW,
            WINDOW,
            WINDOW_REVERSED,
            WINDOW_REVERSED,
            WINDOW_ALIAS,
        ]);
        // The last two pages of those in the opposite order may be written.
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
    // PUSH and POP split as well.
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
        // Of the register YMM1: VMOVUPS either way, VADDPD and VMULPS with YMM1 again, which may be much alike.
        let wide: [(u8, u8); 4] = [(0xfc, 0x10), (0xfc, 0x11), (0xf5, 0x58), (0xf4, 0x59)];
        let vector = |code: &mut Vec<u8>, (last, opcode): (u8, u8)| {
            // VEX of three bytes, for a base of any number.
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
                    form(code, (prefix, 0, opcode), 1, base, None, displacement);
                };
                pair(code, operand, r);
            }
            _ => field(code, base, None, displacement, r),
        }
    }
    for base in bases {
        let step: u32 = r.pick(&[0, 0, 0, 8, 32, 32, 48, 0x40, 0xff0]);
        code.extend([0x48 | base >> 3, 0x81, 0xc0 | base & 7]);
        code.extend(step.to_le_bytes());
    }
    loop_end(code, top, count, r);
}

/// Jumps back to what begins at `top`, by flags of all kinds, mostly of this register; with a count often few times.
fn loop_end(code: &mut Vec<u8>, top: usize, register: u8, r: &mut Random) {
    let (x, n) = (register >> 3, register & 7);
    match r.below(12) {
        // SUB, ADD, CMP, AND, OR, XOR of a constant; CMP and ADD of two registers; TEST, NEG, DEC, UCOMISD.
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

/// The upper half of a vector register comes into use, and may be cleared; a loop uses the lower one.
fn widths(code: &mut Vec<u8>, r: &mut Random) {
    let n = r.below(8) as u8;
    // VPCMPEQD YMM, with itself.
    code.extend([0xc5, 0x85 | (!n & 15) << 3, 0x76, 0xc0 | n << 3 | n]);
    if r.chance(500) {
        // FNOP, which the interpreter carries out.
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

/// Random bytes for all pages of code.
pub fn noise(r: &mut Random) -> Vec<u8> {
    /// Prefixes, and what leads to other maps of opcodes.
    const ESCAPES: [u8; 20] = [
        0x0f, 0x0f, 0x0f, 0x0f, 0x66, 0x66, 0xf2, 0xf2, 0xf3, 0xf3, 0x48, 0x41, 0xc4, 0xc5, 0x62,
        0x8f, 0xf0, 0x64, 0x67, 0x2e,
    ];
    let mut code = Vec::with_capacity(CODE_LEN + 8);
    while code.len() < CODE_LEN {
        if r.chance(300) {
            code.push(r.pick(&ESCAPES));
        } else {
            code.extend(&r.next().to_le_bytes()[..1 + r.below(8) as usize]);
        }
    }
    code.truncate(CODE_LEN);
    code
}

/// Loads and stores of all sizes at addresses of the data pages that follow no order, or one after the other, for ever. `splits`: pages
/// that follow each other may lie in the opposite order in memory, and operands lie across their ends often.
pub fn walk(splits: bool, r: &mut Random) -> Vec<u8> {
    let mut code = Vec::new();
    for _ in 0..4 + r.below(12) {
        // RBX is the next of a stream, or what RAX makes at random.
        if r.chance(300) {
            code.extend([0x48, 0x81, 0xc3]);
            code.extend(r.pick(&[8_u32, 16, 64, 4096]).to_le_bytes());
        } else {
            // IMUL and ADD: Knuth's generator, its upper bits.
            load(&mut code, 1, 6_364_136_223_846_793_005);
            code.extend([0x48, 0x0f, 0xaf, 0xc1, 0x48, 0x05, 1, 0, 0, 0]);
            code.extend([0x48, 0x89, 0xc3, 0x48, 0xc1, 0xeb, 40]);
        }
        let within: u32 = r.pick(&[0xff, 0x7ff, 0x1fff, 0x2ff8, 0x3ff0]);
        code.extend([0x81, 0xe3]);
        code.extend(within.to_le_bytes());
        for _ in 0..1 + r.below(3) {
            // Moves either way of one to 32 bytes, ADD to memory: RCX, XMM1 or YMM1, [RBX + displacement].
            let access: &[u8] = r.pick(&[
                &[0x48, 0x8b, 0x8b],
                &[0x48, 0x8b, 0x8b],
                &[0x48, 0x89, 0x8b],
                &[0x8b, 0x8b],
                &[0x0f, 0xb6, 0x8b],
                &[0x88, 0x8b],
                &[0x0f, 0x10, 0x8b],
                &[0x0f, 0x11, 0x8b],
                &[0xc5, 0xfc, 0x10, 0x8b],
                &[0xc5, 0xfc, 0x11, 0x8b],
                &[0x48, 0x01, 0x8b],
            ]);
            let third = if splits { WINDOW_REVERSED } else { WINDOW };
            let pages = r.pick(&[WINDOW, WINDOW, third, WINDOW_ALIAS]);
            let at = pages as u32 + r.pick(&[0, 0, 8, if splits { 0xff0 } else { 40 }]);
            match r.below(4) {
                0 => {
                    let operand = |code: &mut Vec<u8>, prefix: &[u8], opcode: &[u8]| {
                        form(code, (prefix, 0, opcode), 1, 3, None, at as i32);
                    };
                    pair(&mut code, operand, r);
                }
                1 if r.chance(300) => {
                    for opcode in [0x10, 0x11] {
                        code.extend([0xc5, 0xfc, opcode, 0x8b]);
                        code.extend(at.to_le_bytes());
                    }
                }
                _ => {
                    code.extend(access);
                    code.extend(at.to_le_bytes());
                }
            }
        }
    }
    let back = -(code.len() as i32 + 5);
    code.push(0xe9);
    code.extend(back.to_le_bytes());
    // Other places lead there.
    while code.len() < CODE_LEN {
        if code.len().is_multiple_of(STRIDE as usize) && code.len() + 5 <= CODE_LEN {
            let back = -(code.len() as i32 + 5);
            code.push(0xe9);
            code.extend(back.to_le_bytes());
        } else {
            code.push(0x90);
        }
    }
    code
}

/// Jumps to an address in 64-bit or 32-bit code, through memory; means the same in both.
fn far_jump(code: &mut Vec<u8>, target: u64, r: &mut Random) {
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

impl Writer {
    /// Random bytes, some of them random instructions with a bit changed here and there.
    pub fn bytes(&mut self, r: &mut Random) -> Vec<u8> {
        let mut code = Vec::with_capacity(CODE_LEN + 64);
        while code.len() < PAGE as usize {
            match r.below(8) {
                0 => code.extend(r.next().to_le_bytes()),
                1 => code.extend(&r.next().to_le_bytes()[..r.below(4) as usize]),
                // A branch to somewhere near.
                2 => code.extend([0x70 | r.next() as u8 & 15, r.next() as u8]),
                _ => {
                    let start = code.len();
                    let at = CODE + start as u64;
                    self.instruction(&mut code, at, r, 300);
                    if r.chance(150) && code.len() > start {
                        let k = start + r.below((code.len() - start) as u64) as usize;
                        code[k] ^= 1 << r.below(8);
                    }
                }
            }
        }
        // All pages get equal code, a few bytes apart: drawing instructions takes longer than running them.
        while code.len() < CODE_LEN {
            code.extend_from_within(..PAGE as usize - 5);
        }
        code.truncate(CODE_LEN);
        code
    }

    /// Pieces that jump to each other.
    pub fn blocks(&mut self, r: &mut Random) -> Vec<u8> {
        let mut code = vec![r.pick(&[0x90, 0x90, 0xcc]); CODE_LEN];
        let count = 4 + r.below(32);
        let mut starts = vec![CODE];
        for _ in 0..count {
            let mut at = CODE + r.below(PLACES) * STRIDE;
            if r.chance(150) {
                // Across the end of a page.
                at = (at & !(PAGE - 1)) + PAGE - 1 - r.below(60);
            }
            starts.push(at);
        }
        for k in 0..starts.len() {
            let room = CODE + CODE_LEN as u64 - starts[k];
            let mut piece = self.piece(starts[k], &starts, r);
            piece.truncate(room as usize);
            let offset = (starts[k] - CODE) as usize;
            code[offset..offset + piece.len()].copy_from_slice(&piece);
        }
        code
    }

    fn piece(&mut self, start: u64, starts: &[u64], r: &mut Random) -> Vec<u8> {
        let mut code = Vec::new();
        let length = r.pick(&[0, 1, 2, 3, 5, 8, 14]);
        // Where a loop may begin.
        let mut top = 0;
        for _ in 0..length {
            let at = start + code.len() as u64;
            if r.chance(300) {
                top = code.len();
            }
            if self.changes_mode && r.chance(60) {
                far_jump(&mut code, r.pick(starts), r);
                continue;
            }
            if self.strings && r.chance(250) {
                string(&mut code, r);
                continue;
            }
            if self.widths && r.chance(200) {
                widths(&mut code, r);
                continue;
            }
            if self.splits && r.chance(300) {
                splits(&mut code, r);
                continue;
            }
            match r.below(40) {
                // Code that changes: near, anywhere, another piece.
                0 | 1 => {
                    let target = match r.below(4) {
                        0 => at + 8 + r.below(24),
                        1 => CODE + r.below(CODE_LEN as u64 - 8),
                        2 => r.pick(starts) + r.below(40),
                        _ => (at | (PAGE - 1)) + 1 + r.below(8),
                    };
                    if r.chance(500) {
                        code.extend([0xc6]);
                        absolute(&mut code, 0, target);
                        code.push(r.next() as u8);
                    } else {
                        load(&mut code, 0, r.next());
                        code.extend([0x89]);
                        absolute(&mut code, 0, target);
                    }
                }
                // An immediate that the instruction before changes.
                2 => {
                    code.extend([0xc6]);
                    absolute(&mut code, 0, at + 9);
                    code.push(r.next() as u8);
                    code.extend([0xb8, 0, 0, 0, 0]);
                }
                3 => {
                    let opcode = r.pick(&[0x8b, 0x89, 0x03, 0x01, 0x87]);
                    code.push(opcode);
                    absolute(&mut code, r.next() as u8, DEVICE + r.below(64));
                }
                4 | 5 => {
                    load(&mut code, 0, r.next());
                    code.extend(r.pick(&[[0x0f, 0x05], [0xcd, 0x80]]));
                }
                // The stack, where it is of use.
                6..=8 => {
                    let top = WINDOW + WRITABLE_LEN as u64 - 8 * r.below(600);
                    load(&mut code, 4, top - r.pick(&[0, 0, 0, 4]));
                    if r.chance(500) {
                        for _ in 0..r.below(4) {
                            code.push(r.pick(&[0x50, 0x58]) | r.next() as u8 & 7);
                        }
                    } else {
                        // A function begins or ends.
                        let opcode = r.pick(&[0x50, 0x58]);
                        for _ in 0..2 + r.below(9) {
                            if r.chance(500) {
                                code.push(0x41);
                            }
                            code.push(opcode | r.next() as u8 & 7);
                        }
                    }
                }
                // The clock is read behind a change of the interrupt flag, where an interrupt may end a block's budget.
                9 if r.chance(300) => {
                    code.push(r.pick(&[0xfa, 0xfb, 0x9d]));
                    code.extend(std::iter::repeat_n(0x90, r.below(24) as usize));
                    // RDTSC, or a load from a device.
                    if r.chance(700) {
                        code.extend([0x0f, 0x31]);
                    } else {
                        code.push(0x8b);
                        absolute(&mut code, r.next() as u8, DEVICE + 8 * r.below(64));
                    }
                }
                // PUSHF, POPF, CLI, STI, HLT, PAUSE, RDTSC, LAHF, CLD, STD.
                9 => code.extend::<&[u8]>(r.pick(&[
                    &[0x9c],
                    &[0x9d],
                    &[0xfa],
                    &[0xfb],
                    &[0xf4],
                    &[0xf3, 0x90],
                    &[0x0f, 0x31],
                    &[0x9f],
                    &[0xfc],
                    &[0xfd],
                ])),
                10 => {
                    // A byte of code is read.
                    code.push(0x8b);
                    absolute(&mut code, r.next() as u8, r.pick(starts));
                }
                11 | 12 => {
                    for _ in 0..1 + r.below(3) {
                        fields(&mut code, starts, self.large, r);
                    }
                }
                13 | 14 => stride(&mut code, r),
                _ => self.instruction(&mut code, at, r, 800),
            }
        }
        if r.chance(250) {
            loop_end(&mut code, top, r.below(16) as u8, r);
        }
        self.end(&mut code, start, starts, r);
        code
    }

    fn end(&mut self, code: &mut Vec<u8>, start: u64, starts: &[u64], r: &mut Random) {
        let mut target = r.pick(starts);
        if r.chance(60) {
            target += ALIAS - CODE;
        }
        let relative = |code: &mut Vec<u8>, target: u64| {
            let next = start + code.len() as u64 + 4;
            code.extend((target.wrapping_sub(next) as u32).to_le_bytes());
        };
        let slot = WINDOW + 8 * r.below(64);
        match r.below(20) {
            0..=3 => {
                code.extend([0x0f, 0x80 | r.next() as u8 & 15]);
                relative(code, target);
                if r.chance(500) {
                    code.push(0xe9);
                    relative(code, r.pick(starts));
                }
            }
            4 | 5 => {
                code.push(0xe9);
                relative(code, target);
            }
            6 | 7 => {
                load(code, 4, WINDOW + 0x2000 + 8 * r.below(300));
                code.push(0xe8);
                relative(code, target);
            }
            8 | 9 => {
                // A return, sometimes to nowhere.
                if r.chance(800) {
                    load(code, 4, WINDOW + 0x2000 + 8 * r.below(300));
                    load(code, 1, if r.chance(950) { target } else { r.next() });
                    code.push(0x51);
                    if r.chance(400) {
                        // Behind the last of a function.
                        let pops = 1 + r.below(8) as u8;
                        code.extend([0x48, 0x83, 0xec, 8 * pops]);
                        for _ in 0..pops {
                            code.extend([0x40 | r.next() as u8 & 1, 0x58 | r.next() as u8 & 7]);
                        }
                    }
                }
                code.extend::<&[u8]>(r.pick(&[&[0xc3], &[0xc2, 16, 0]]));
            }
            10 | 11 => {
                let register = r.pick(&[0, 1, 3, 6, 8, 13]);
                load(
                    code,
                    register,
                    if r.chance(950) { target } else { r.next() },
                );
                if register >= 8 {
                    code.push(0x41);
                }
                code.extend([0xff, r.pick(&[0xe0, 0xd0]) | register as u8 & 7]);
            }
            12 | 13 => {
                load(code, 0, target);
                code.extend([0x48, 0x89]);
                absolute(code, 0, slot);
                code.push(0xff);
                absolute(code, r.pick(&[4, 2]), slot);
            }
            // A loop by a counter in memory, or in a register that the loop may change.
            14 | 15 => {
                code.extend([0xff]);
                absolute(code, 1, slot);
                code.extend([0x0f, 0x85]);
                relative(code, start);
            }
            16 => {
                code.extend([0xff, 0xc9, 0x0f, 0x85]);
                relative(code, start);
            }
            17 => code.extend([r.pick(&[0xe0, 0xe1, 0xe2, 0xe3]), r.next() as u8]),
            // On to whatever lies behind.
            _ => {}
        }
    }

    /// A random instruction, with the registers of its addresses loaded in `steered` of 1000 cases.
    fn instruction(&mut self, code: &mut Vec<u8>, at: u64, r: &mut Random, steered: u64) {
        let all: u64 = self.generators.iter().map(|(_, w)| w).sum();
        let mut n = r.below(all);
        let Some((generator, _)) = self.generators.iter_mut().find(|(_, weight)| {
            let here = n < *weight;
            n = n.wrapping_sub(*weight);
            here
        }) else {
            return;
        };
        let case = generator.case(r.next() >> 20);
        let i = &case.instruction;
        let start = code.len();
        if !i.is_invalid() {
            for register in addressing(i, &mut self.info) {
                if r.chance(steered) {
                    load(code, register, case.state.gpr[register]);
                }
            }
            if i.is_ip_rel_memory_operand() {
                let mut encoder = Encoder::new(64);
                let ip = at + (code.len() - start) as u64;
                if encoder.encode(i, ip).is_ok() {
                    code.extend(encoder.take_buffer());
                }
                return;
            }
        }
        code.extend(&case.bytes);
    }
}

/// General registers of which the instruction makes addresses, the stack pointer and a string's count included.
fn addressing(i: &Instruction, info: &mut InstructionInfoFactory) -> Vec<usize> {
    let mut registers = Vec::new();
    let mut add = |r: Register| {
        let full = r.full_register();
        if full.is_gpr() && !registers.contains(&full.number()) {
            registers.push(full.number());
        }
    };
    for m in info.info(i).used_memory() {
        add(m.base());
        add(m.index());
    }
    if (i.has_rep_prefix() || i.has_repne_prefix()) && i.is_string_instruction() {
        add(Register::RCX);
    }
    if (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory) && i.is_stack_instruction() {
        add(Register::RSP);
    }
    registers
}
