//! Random programs: pieces of straight-line code from [`crate::generate`] and `pieces`, connected by branches, or random bytes.

use iced_x86::{Encoder, Instruction, InstructionInfoFactory, OpKind, Register};

use super::encode::{absolute, instruction_with_memory, load};
use super::guest::{ALIAS, CODE_LEN, DEVICE, STRIDE, WINDOW_ALIAS, WINDOW_REVERSED};
use super::pieces::{
    array_loop, far_jump, fields, load_change_store, loop_end, split_accesses, string_instruction,
    upper_halves,
};
use crate::catalogue::Group;
use crate::generate::Generator;
use crate::layout::{CODE, PAGE, WINDOW, WRITABLE_LEN};
use crate::random::Random;

/// Number of multiples of `STRIDE` in the code. Most pieces start at one of them, others shortly before the end of a page.
const PLACES: u64 = CODE_LEN as u64 / STRIDE;

/// Groups of which random instructions are drawn, each with its relative weight.
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

/// Generator of random programs.
pub struct Writer {
    generators: Vec<(Generator, u64)>,
    info: InstructionInfoFactory,
    /// True if programs jump between 64-bit and 32-bit code.
    pub changes_mode: bool,
    /// True if programs often copy and fill memory with string instructions.
    pub strings: bool,
    /// True if programs often use whole vector registers, and clear their upper halves.
    pub widths: bool,
    /// True if programs often make accesses that are split between two lines or two pages.
    pub splits: bool,
    /// True if the guest has large pages.
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

/// Returns random bytes for all pages of code.
pub fn noise(r: &mut Random) -> Vec<u8> {
    /// Prefixes, and bytes that select other opcode maps.
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

/// Returns an endless loop of loads and stores of 1 to 32 bytes, at random or consecutive addresses of the data pages. With `splits`,
/// accesses often cross the ends of pages, and some pages are in reverse order in physical memory.
pub fn walk(splits: bool, r: &mut Random) -> Vec<u8> {
    let mut code = Vec::new();
    for _ in 0..4 + r.below(12) {
        // RBX is the next address of a stream, or a random number from RAX.
        if r.chance(300) {
            code.extend([0x48, 0x81, 0xc3]);
            code.extend(r.pick(&[8_u32, 16, 64, 4096]).to_le_bytes());
        } else {
            // IMUL and ADD: Knuth's linear congruential generator. Its upper bits are used.
            load(&mut code, 1, 6_364_136_223_846_793_005);
            code.extend([0x48, 0x0f, 0xaf, 0xc1, 0x48, 0x05, 1, 0, 0, 0]);
            code.extend([0x48, 0x89, 0xc3, 0x48, 0xc1, 0xeb, 40]);
        }
        let within: u32 = r.pick(&[0xff, 0x7ff, 0x1fff, 0x2ff8, 0x3ff0]);
        code.extend([0x81, 0xe3]);
        code.extend(within.to_le_bytes());
        for _ in 0..1 + r.below(3) {
            // Moves of 1 to 32 bytes in both directions, and ADD to memory: RCX, XMM1 or YMM1 with [RBX + displacement].
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
                        instruction_with_memory(code, (prefix, 0, opcode), 1, 3, None, at as i32);
                    };
                    load_change_store(&mut code, operand, r);
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
    // At every multiple of STRIDE behind the loop there is a jump to the loop.
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

impl Writer {
    /// Returns a mixture of random bytes and random instructions, some of them with a flipped bit.
    pub fn bytes(&mut self, r: &mut Random) -> Vec<u8> {
        let mut code = Vec::with_capacity(CODE_LEN + 64);
        while code.len() < PAGE as usize {
            match r.below(8) {
                0 => code.extend(r.next().to_le_bytes()),
                1 => code.extend(&r.next().to_le_bytes()[..r.below(4) as usize]),
                // A short branch.
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
        // All pages have these bytes, shifted by a few bytes, since generating instructions takes longer than running them.
        while code.len() < CODE_LEN {
            code.extend_from_within(..PAGE as usize - 5);
        }
        code.truncate(CODE_LEN);
        code
    }

    /// Returns pieces of code that branch to each other.
    pub fn blocks(&mut self, r: &mut Random) -> Vec<u8> {
        let mut code = vec![r.pick(&[0x90, 0x90, 0xcc]); CODE_LEN];
        let count = 4 + r.below(32);
        let mut starts = vec![CODE];
        for _ in 0..count {
            let mut at = CODE + r.below(PLACES) * STRIDE;
            if r.chance(150) {
                // The piece crosses the end of a page.
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
        // Offset of a possible beginning of a loop.
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
                string_instruction(&mut code, r);
                continue;
            }
            if self.widths && r.chance(200) {
                upper_halves(&mut code, r);
                continue;
            }
            if self.splits && r.chance(300) {
                split_accesses(&mut code, r);
                continue;
            }
            match r.below(40) {
                // Code that modifies code: close behind, anywhere, in another piece, or on the next page.
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
                // The immediate of the next instruction is modified.
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
                // Stack operations, with the stack pointer in the window.
                6..=8 => {
                    let top = WINDOW + WRITABLE_LEN as u64 - 8 * r.below(600);
                    load(&mut code, 4, top - r.pick(&[0, 0, 0, 4]));
                    if r.chance(500) {
                        for _ in 0..r.below(4) {
                            code.push(r.pick(&[0x50, 0x58]) | r.next() as u8 & 7);
                        }
                    } else {
                        // The prologue or epilogue of a function.
                        let opcode = r.pick(&[0x50, 0x58]);
                        for _ in 0..2 + r.below(9) {
                            if r.chance(500) {
                                code.push(0x41);
                            }
                            code.push(opcode | r.next() as u8 & 7);
                        }
                    }
                }
                // The clock is read after a change of the interrupt flag, since an interrupt may then end a block's budget.
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
                    // A load from code.
                    code.push(0x8b);
                    absolute(&mut code, r.next() as u8, r.pick(starts));
                }
                11 | 12 => {
                    for _ in 0..1 + r.below(3) {
                        fields(&mut code, starts, self.large, r);
                    }
                }
                13 | 14 => array_loop(&mut code, r),
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
                // A return, sometimes to a random address.
                if r.chance(800) {
                    load(code, 4, WINDOW + 0x2000 + 8 * r.below(300));
                    load(code, 1, if r.chance(950) { target } else { r.next() });
                    code.push(0x51);
                    if r.chance(400) {
                        // The epilogue of a function in front of the return.
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
            // A loop with a counter in memory, or in a register that the loop may change.
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
            // No branch: execution continues with the bytes behind the piece.
            _ => {}
        }
    }

    /// Appends a random instruction. Each register that its addresses use is loaded first with a probability of `steered` in 1000.
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

/// Returns the numbers of the general registers in the instruction's addresses, of the stack pointer and of a string's count.
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
