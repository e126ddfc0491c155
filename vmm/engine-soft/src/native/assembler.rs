//! A thin assembler over iced-x86's encoder: straight-line code, forward and backward jumps within one piece, and jumps
//! to fixed addresses.

use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};

use super::code_map::{Part, Piece};

/// A place in the code, bound or not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Conditions as the opcode numbers them (SDM vol. 2A, appendix B.1.4.7).
pub mod cc {
    /// Equal, zero.
    pub const E: u8 = 4;
    /// Not equal, not zero.
    pub const NE: u8 = 5;
    /// Unsigned below.
    pub const B: u8 = 2;
    /// Unsigned above or equal.
    pub const AE: u8 = 3;
    /// Unsigned below or equal.
    pub const BE: u8 = 6;
    /// Unsigned above.
    pub const A: u8 = 7;
    /// Signed less or equal.
    pub const LE: u8 = 14;
}

/// Register that points to the vCPU.
pub const CPU: Register = Register::R15;
/// Register that holds the instructions left.
pub const LEFT: Register = Register::R14;

/// Code under construction.
pub struct Assembler {
    encoder: Encoder,
    base: u64,
    /// Where the out-of-line part will run, and where it begins in the stream.
    out_of_line_base: u64,
    out_of_line_from: Option<usize>,
    position: usize,
    labels: Vec<Option<usize>>,
    fixups: Vec<(usize, Label)>,
    failed: Option<IcedError>,
    /// Where another part begins than before.
    parts: Vec<(usize, Part)>,
}

impl Assembler {
    /// Start a piece of code that will run at `base`, and at `out_of_line_base` from [`Assembler::begin_out_of_line`] on.
    pub fn new(base: u64, out_of_line_base: u64) -> Self {
        Self {
            encoder: Encoder::new(64),
            base,
            out_of_line_base,
            out_of_line_from: None,
            position: 0,
            labels: Vec::new(),
            fixups: Vec::new(),
            failed: None,
            parts: vec![(0, Part::default())],
        }
    }

    /// What follows is for this. What was before.
    pub fn part(&mut self, part: Part) -> Part {
        let (from, before) = *self.parts.last().expect("there is always one");
        if from == self.position {
            self.parts.pop();
        }
        if self.parts.last().is_none_or(|(_, last)| *last != part) {
            self.parts.push((self.position, part));
        }
        before
    }

    /// The code so far, by what it is for.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        let out_of_line = self.out_of_line_from.unwrap_or(self.position);
        let ends = self.parts[1..].iter().map(|(from, _)| *from);
        let parts = self.parts.iter().zip(ends.chain([self.position]));
        parts
            .flat_map(move |(&(from, part), to)| {
                [
                    (from, to.min(out_of_line), part),
                    (from.max(out_of_line), to, part),
                ]
            })
            .filter(|(from, to, _)| from < to)
            .map(|(from, to, part)| (self.address(from), to - from, part))
    }

    /// Address of the next instruction.
    pub fn here(&self) -> u64 {
        self.address(self.position)
    }

    fn address(&self, position: usize) -> u64 {
        match self.out_of_line_from {
            Some(from) if position >= from => self.out_of_line_base + (position - from) as u64,
            _ => self.base + position as u64,
        }
    }

    /// What follows is out of line: kept apart, so that the code that runs often lies close together.
    pub fn begin_out_of_line(&mut self) {
        self.out_of_line_from = Some(self.position);
    }

    /// The code, with all jumps resolved: in line, then out of line.
    pub fn finish(mut self) -> Result<(Vec<u8>, Vec<u8>), IcedError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut code = self.encoder.take_buffer();
        for &(at, label) in &self.fixups {
            let target = self.labels[label.0].expect("every label is bound");
            let distance = self.address(target).wrapping_sub(self.address(at) + 4) as i64;
            code[at..at + 4].copy_from_slice(&(distance as i32).to_le_bytes());
        }
        let out_of_line = code.split_off(self.out_of_line_from.unwrap_or(self.position));
        Ok((code, out_of_line))
    }

    /// A new label, not yet bound.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Bind a label here.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.position);
    }

    /// Append an instruction.
    pub fn put(&mut self, instruction: &Instruction) {
        match self.encoder.encode(instruction, self.here()) {
            Ok(len) => self.position += len,
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }

    /// Append an instruction that iced has made.
    pub fn made(&mut self, instruction: Result<Instruction, IcedError>) {
        match instruction {
            Ok(instruction) => self.put(&instruction),
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.encoder.write_u8(b);
        }
        self.position += bytes.len();
    }

    fn distance(&mut self, label: Label) {
        self.fixups.push((self.position, label));
        self.bytes(&[0; 4]);
    }

    fn distance_to(&mut self, address: u64) {
        let distance = address.wrapping_sub(self.here() + 4) as i64;
        debug_assert_eq!(i64::from(distance as i32), distance);
        self.bytes(&(distance as i32).to_le_bytes());
    }

    /// Jump.
    pub fn jmp(&mut self, label: Label) {
        self.bytes(&[0xe9]);
        self.distance(label);
    }

    /// Jump if a condition (see [`cc`]) holds.
    pub fn jcc(&mut self, condition: u8, label: Label) {
        self.bytes(&[0x0f, 0x80 | condition]);
        self.distance(label);
    }

    /// Jump to an address within reach if a condition (see [`cc`]) holds.
    pub fn jcc_to(&mut self, condition: u8, address: u64) {
        self.bytes(&[0x0f, 0x80 | condition]);
        self.distance_to(address);
    }

    /// Jump to an address within reach.
    pub fn jmp_to(&mut self, address: u64) {
        self.bytes(&[0xe9]);
        self.distance_to(address);
    }

    /// Call an address within reach.
    pub fn call_to(&mut self, address: u64) {
        self.bytes(&[0xe8]);
        self.distance_to(address);
    }

    /// Jump through a pointer at an address within reach.
    pub fn jmp_through(&mut self, slot: u64) {
        self.bytes(&[0xff, 0x25]);
        self.distance_to(slot);
    }

    /// One instruction of one operand in a register.
    pub fn r(&mut self, code: Code, a: Register) {
        self.made(Instruction::with1(code, a));
    }

    /// One instruction of two registers.
    pub fn rr(&mut self, code: Code, a: Register, b: Register) {
        self.made(Instruction::with2(code, a, b));
    }

    /// Register and memory.
    pub fn rm(&mut self, code: Code, a: Register, m: MemoryOperand) {
        self.made(Instruction::with2(code, a, m));
    }

    /// Three registers.
    pub fn rrr(&mut self, code: Code, a: Register, b: Register, c: Register) {
        self.made(Instruction::with3(code, a, b, c));
    }

    /// Two registers and memory.
    pub fn rrm(&mut self, code: Code, a: Register, b: Register, m: MemoryOperand) {
        self.made(Instruction::with3(code, a, b, m));
    }

    /// Memory and register.
    pub fn mr(&mut self, code: Code, m: MemoryOperand, a: Register) {
        self.made(Instruction::with2(code, m, a));
    }

    /// Register and immediate.
    pub fn ri(&mut self, code: Code, a: Register, value: i32) {
        self.made(Instruction::with2(code, a, value));
    }

    /// Memory and immediate.
    pub fn mi(&mut self, code: Code, m: MemoryOperand, value: i32) {
        self.made(Instruction::with2(code, m, value));
    }

    /// One memory operand.
    pub fn m(&mut self, code: Code, m: MemoryOperand) {
        self.made(Instruction::with1(code, m));
    }

    /// No operand.
    pub fn plain(&mut self, code: Code) {
        self.put(&Instruction::with(code));
    }

    /// A 64-bit constant in the shortest way; leaves flags alone.
    pub fn constant(&mut self, register: Register, value: u64) {
        if value <= u64::from(u32::MAX) {
            let narrow = super::registers::sized(register, 4);
            self.made(Instruction::with2(
                Code::Mov_r32_imm32,
                narrow,
                value as u32,
            ));
        } else if value as i64 == i64::from(value as i32) {
            self.ri(Code::Mov_rm64_imm32, register, value as i32);
        } else {
            self.made(Instruction::with2(Code::Mov_r64_imm64, register, value));
        }
    }

    /// Load 64 bits of the vCPU.
    pub fn load(&mut self, register: Register, field: usize) {
        self.rm(Code::Mov_r64_rm64, register, field_of_cpu(field));
    }

    /// Store 64 bits to the vCPU.
    pub fn store(&mut self, field: usize, register: Register) {
        self.mr(Code::Mov_rm64_r64, field_of_cpu(field), register);
    }

    /// Copy a 64-bit register.
    pub fn copy(&mut self, to: Register, from: Register) {
        if to != from {
            self.rr(Code::Mov_r64_rm64, to, from);
        }
    }
}

/// A field of the vCPU.
pub fn field_of_cpu(offset: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ_size(CPU, offset as i64, 1)
}

/// A field of the vCPU, indexed by a register in bytes.
pub fn indexed_field(offset: usize, index: Register) -> MemoryOperand {
    MemoryOperand::with_base_index_scale_displ_size(CPU, index, 1, offset as i64, 1)
}

/// Memory at a register.
pub fn at(base: Register) -> MemoryOperand {
    MemoryOperand::with_base(base)
}

/// A word of 32 bits, by its number from where a register points to.
pub fn word_of(base: Register, number: Register) -> MemoryOperand {
    MemoryOperand::new(base, number, 4, 0, 0, false, Register::None)
}

/// Memory at a register and a displacement.
pub fn at_offset(base: Register, displacement: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ_size(base, displacement, 1)
}
