//! Assembler on top of iced-x86's encoder: straight-line code, forward and backward jumps within it, and jumps to fixed addresses.

use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};

use super::code_map::{Part, Piece};

/// A label: a position in the code, which may be bound after it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Condition codes of jumps, as opcodes encode them (SDM vol. 2A, appendix B.1.4.7).
pub mod cc {
    /// Equal, or zero.
    pub const E: u8 = 4;
    /// Not equal, or not zero.
    pub const NE: u8 = 5;
    /// Below, unsigned.
    pub const B: u8 = 2;
    /// Above or equal, unsigned.
    pub const AE: u8 = 3;
    /// Below or equal, unsigned.
    pub const BE: u8 = 6;
    /// Above, unsigned.
    pub const A: u8 = 7;
    /// Negative.
    pub const S: u8 = 8;
    /// Less or equal, signed.
    pub const LE: u8 = 14;
}

/// Host register that points to the vCPU.
pub const CPU: Register = Register::R15;
/// Host register with what is left of the budget ([`super::Left`]).
pub const LEFT: Register = Register::R14;

/// Code under construction.
pub struct Assembler {
    encoder: Encoder,
    base: u64,
    /// Address of the out-of-line part, and the position in the stream at which it begins.
    out_of_line_base: u64,
    out_of_line_from: Option<usize>,
    position: usize,
    labels: Vec<Option<usize>>,
    fixups: Vec<(usize, Label)>,
    failed: Option<IcedError>,
    /// Positions in the stream at which code of another [`Part`] begins.
    parts: Vec<(usize, Part)>,
}

impl Assembler {
    /// Creates an assembler for code that will run at `base`, and at `out_of_line_base` from [`Assembler::begin_out_of_line`] on.
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

    /// Sets the [`Part`] of the following code for the code map, and returns the part before.
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

    /// Returns the pieces of the code so far, with their parts, for the code map.
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

    /// Returns the address of the next instruction.
    pub fn here(&self) -> u64 {
        self.address(self.position)
    }

    fn address(&self, position: usize) -> u64 {
        match self.out_of_line_from {
            Some(from) if position >= from => self.out_of_line_base + (position - from) as u64,
            _ => self.base + position as u64,
        }
    }

    /// Begins the out-of-line code, which gets other addresses, so that the code of fast paths is contiguous.
    pub fn begin_out_of_line(&mut self) {
        self.out_of_line_from = Some(self.position);
    }

    /// Returns the in-line and the out-of-line code, with all jumps resolved. Fails with the first instruction that could not be encoded.
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

    /// Creates a label, which is not bound yet.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds a label to the current position.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.position);
    }

    /// Appends an instruction.
    pub fn put(&mut self, instruction: &Instruction) {
        match self.encoder.encode(instruction, self.here()) {
            Ok(len) => self.position += len,
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }

    /// Appends an instruction that iced-x86 has constructed. An error is returned later by [`Assembler::finish`].
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

    /// Appends an unconditional jump to a label.
    pub fn jmp(&mut self, label: Label) {
        self.bytes(&[0xe9]);
        self.distance(label);
    }

    /// Appends a conditional jump (see [`cc`]) to a label.
    pub fn jcc(&mut self, condition: u8, label: Label) {
        self.bytes(&[0x0f, 0x80 | condition]);
        self.distance(label);
    }

    /// Appends a conditional jump (see [`cc`]) to an address within 2 GiB.
    pub fn jcc_to(&mut self, condition: u8, address: u64) {
        self.bytes(&[0x0f, 0x80 | condition]);
        self.distance_to(address);
    }

    /// Appends an unconditional jump to an address within 2 GiB.
    pub fn jmp_to(&mut self, address: u64) {
        self.bytes(&[0xe9]);
        self.distance_to(address);
    }

    /// Appends a call of an address within 2 GiB.
    pub fn call_to(&mut self, address: u64) {
        self.bytes(&[0xe8]);
        self.distance_to(address);
    }

    /// Appends a jump through the pointer at an address within 2 GiB.
    pub fn jmp_through(&mut self, slot: u64) {
        self.bytes(&[0xff, 0x25]);
        self.distance_to(slot);
    }

    /// Appends an instruction with one register operand.
    pub fn r(&mut self, code: Code, a: Register) {
        self.made(Instruction::with1(code, a));
    }

    /// Appends an instruction with two register operands.
    pub fn rr(&mut self, code: Code, a: Register, b: Register) {
        self.made(Instruction::with2(code, a, b));
    }

    /// Appends an instruction with a register and a memory operand.
    pub fn rm(&mut self, code: Code, a: Register, m: MemoryOperand) {
        self.made(Instruction::with2(code, a, m));
    }

    /// Appends an instruction with three register operands.
    pub fn rrr(&mut self, code: Code, a: Register, b: Register, c: Register) {
        self.made(Instruction::with3(code, a, b, c));
    }

    /// Appends an instruction with two registers and a memory operand.
    pub fn rrm(&mut self, code: Code, a: Register, b: Register, m: MemoryOperand) {
        self.made(Instruction::with3(code, a, b, m));
    }

    /// Appends an instruction with a memory operand and a register.
    pub fn mr(&mut self, code: Code, m: MemoryOperand, a: Register) {
        self.made(Instruction::with2(code, m, a));
    }

    /// Appends an instruction with a register and an immediate.
    pub fn ri(&mut self, code: Code, a: Register, value: i32) {
        self.made(Instruction::with2(code, a, value));
    }

    /// Appends an instruction with a memory operand and an immediate.
    pub fn mi(&mut self, code: Code, m: MemoryOperand, value: i32) {
        self.made(Instruction::with2(code, m, value));
    }

    /// Appends an instruction with one memory operand.
    pub fn m(&mut self, code: Code, m: MemoryOperand) {
        self.made(Instruction::with1(code, m));
    }

    /// Appends an instruction without operands.
    pub fn plain(&mut self, code: Code) {
        self.put(&Instruction::with(code));
    }

    /// Appends the shortest MOV of a 64-bit constant to a register, which leaves flags unchanged.
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

    /// Appends a load of 64 bits from a field of the vCPU.
    pub fn load(&mut self, register: Register, field: usize) {
        self.rm(Code::Mov_r64_rm64, register, field_of_cpu(field));
    }

    /// Appends a store of 64 bits to a field of the vCPU.
    pub fn store(&mut self, field: usize, register: Register) {
        self.mr(Code::Mov_rm64_r64, field_of_cpu(field), register);
    }

    /// Appends a copy of a 64-bit register, unless both are the same.
    pub fn copy(&mut self, to: Register, from: Register) {
        if to != from {
            self.rr(Code::Mov_r64_rm64, to, from);
        }
    }
}

/// Returns the memory operand of the vCPU's field at a byte offset.
pub fn field_of_cpu(offset: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ_size(CPU, offset as i64, 1)
}

/// Returns the memory operand of the vCPU's field at a byte offset plus the number of bytes in the register `index`.
pub fn indexed_field(offset: usize, index: Register) -> MemoryOperand {
    MemoryOperand::with_base_index_scale_displ_size(CPU, index, 1, offset as i64, 1)
}

/// Returns the memory operand at the address in a register.
pub fn at(base: Register) -> MemoryOperand {
    MemoryOperand::with_base(base)
}

/// Returns the memory operand at the address in a register plus a displacement.
pub fn at_offset(base: Register, displacement: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ_size(base, displacement, 1)
}
