//! Templates of REP MOVS and REP STOS, by which kernels and libraries copy and clear short pieces of memory.
//!
//! Each operation has a routine for each privilege. The routine carries out all elements at once, as the interpreter does
//! ([`crate::ops::string`]), if the direction flag is clear and each operand lies within one page of 4 KiB that the TLB has. An instruction
//! that takes additional cycles also requires a CPI of one. The interpreter carries out all other cases.

use iced_x86::{Code, IcedError, Instruction, OpKind, Register};
use nodescope_x86::bits::rflags;

use super::Left;
use super::assembler::{Assembler, LEFT, cc, field_of_cpu, indexed_field};
use super::emit::{ENTRIES, Emitter, HOST_ADDRESS, READ, WRITE};
use super::registers::{HOST, sized};
use super::runtime::field;
use crate::cpi::Cpi;
use crate::cpu::Cpu;
use crate::ops::string::FAST_STRING_BYTES_PER_CYCLE;
use crate::softmmu::DataTlb;

use Register::{EAX, ECX, R11, R12, RAX, RBX, RCX, RDI, RDX, RSI};

/// Bytes of a page.
const PAGE: i32 = 1 << 12;

/// Host registers of the guest's RAX and RCX, which these instructions imply.
const VALUE: Register = R11;
const COUNT: Register = R12;
const _: () = assert!(
    matches!(HOST[0], Some(VALUE))
        && matches!(HOST[1], Some(COUNT))
        && matches!(HOST[6], Some(RSI))
        && matches!(HOST[7], Some(RDI))
);

/// A repeated string instruction with a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringOperation {
    /// REP MOVSB: copies bytes.
    CopyBytes,
    /// REP MOVSQ: copies words of 8 bytes.
    CopyWords,
    /// REP STOSB: fills bytes.
    FillBytes,
    /// REP STOSQ: fills words of 8 bytes.
    FillWords,
}

use StringOperation::*;

impl StringOperation {
    const ALL: [Self; 4] = [CopyBytes, CopyWords, FillBytes, FillWords];

    /// Returns the operation of an instruction of 64-bit code; None where there is no template.
    pub fn of(i: &Instruction) -> Option<Self> {
        let what = match i.code() {
            Code::Movsb_m8_m8 => CopyBytes,
            Code::Movsq_m64_m64 => CopyWords,
            Code::Stosb_m8_AL => FillBytes,
            Code::Stosq_m64_RAX => FillWords,
            _ => return None,
        };
        // The destination's segment cannot be overridden.
        let flat = !matches!(i.segment_prefix(), Register::FS | Register::GS);
        let wide = i.op0_kind() == OpKind::MemoryESRDI;
        (flat && wide && i.has_rep_prefix()).then_some(what)
    }

    fn copies(self) -> bool {
        matches!(self, CopyBytes | CopyWords)
    }

    /// Returns log2 of an element's bytes.
    fn shift(self) -> u32 {
        match self {
            CopyBytes | FillBytes => 0,
            CopyWords | FillWords => 3,
        }
    }

    fn instruction(self) -> Result<Instruction, IcedError> {
        match self {
            CopyBytes => Instruction::with_rep_movsb(64),
            CopyWords => Instruction::with_rep_movsq(64),
            FillBytes => Instruction::with_rep_stosb(64),
            FillWords => Instruction::with_rep_stosq(64),
        }
    }
}

/// Addresses of the routines, by privilege (user, kernel) and operation.
pub type StringRoutines = [[u64; StringOperation::ALL.len()]; 2];

/// Assembles the routines.
pub fn routines(a: &mut Assembler) -> StringRoutines {
    [false, true].map(|kernel| StringOperation::ALL.map(|what| routine(a, what, kernel)))
}

/// Assembles a routine that carries out the whole instruction and returns with ZF set, or changes nothing and returns with ZF clear. Uses
/// RAX, RCX and flags.
fn routine(a: &mut Assembler, what: StringOperation, kernel: bool) -> u64 {
    let at = a.here();
    let (elsewhere, restore, quick) = (a.label(), a.label(), a.label());
    let direction = std::mem::offset_of!(Cpu, rflags) + 1;
    let backward = (rflags::DF >> 8) as i32;
    a.mi(Code::Test_rm8_imm8, field_of_cpu(direction), backward);
    a.jcc(cc::NE, elsewhere);
    a.ri(Code::Cmp_rm64_imm32, COUNT, PAGE >> what.shift());
    a.jcc(cc::A, elsewhere);
    let (bytes, destination) = (RDX, RBX);
    a.r(Code::Push_r64, bytes);
    a.r(Code::Push_r64, destination);
    a.copy(bytes, COUNT);
    if what.shift() > 0 {
        a.ri(Code::Shl_rm64_imm8, bytes, what.shift() as i32);
    }
    // Looks up `bytes` bytes at a register's address: RAX becomes the host address.
    let find = |a: &mut Assembler, register, tag| {
        let pages = ENTRIES + DataTlb::PAGES[usize::from(kernel)];
        let (shift, mask) = DataTlb::PAGE_INDEX;
        a.rr(Code::Mov_r32_rm32, ECX, sized(register, 4));
        a.ri(Code::Shr_rm32_imm8, ECX, shift as i32);
        a.ri(Code::And_rm32_imm32, ECX, mask as i32);
        a.copy(RAX, register);
        a.rm(Code::Sub_r64_rm64, RAX, indexed_field(pages + tag, RCX));
        a.ri(Code::Cmp_rm64_imm32, RAX, PAGE - 1);
        a.jcc(cc::A, restore);
        a.rr(Code::Add_r64_rm64, RAX, bytes);
        a.ri(Code::Cmp_rm64_imm32, RAX, PAGE);
        a.jcc(cc::A, restore);
        a.rr(Code::Sub_r64_rm64, RAX, bytes);
        let host = indexed_field(pages + HOST_ADDRESS, RCX);
        a.rm(Code::Add_r64_rm64, RAX, host);
    };
    find(a, RDI, WRITE);
    a.copy(destination, RAX);
    if what.copies() {
        // Source and destination may overlap: the host's instruction then reads bytes that it has written, like the guest's.
        find(a, RSI, READ);
    }
    // The cycles beyond the instruction's own one shorten the budget.
    let cycles = FAST_STRING_BYTES_PER_CYCLE.trailing_zeros() as i32;
    a.rr(Code::Mov_r32_rm32, ECX, sized(bytes, 4));
    a.ri(Code::Shr_rm32_imm8, ECX, cycles);
    a.jcc(cc::E, quick);
    let cpi = field_of_cpu(std::mem::offset_of!(Cpu, cpi) + Cpi::VALUE);
    let stall = field_of_cpu(std::mem::offset_of!(Cpu, stall));
    let (whole, stalled) = (a.label(), a.label());
    a.mi(Code::Cmp_rm32_imm32, cpi, 1 << 16);
    a.jcc(cc::E, whole);
    a.mi(Code::Cmp_rm32_imm32, cpi, Cpi::SIXTEENTH.value() as i32);
    a.jcc(cc::NE, restore);
    a.mr(Code::Add_rm64_r64, stall, RCX);
    a.ri(Code::Shl_rm64_imm8, RCX, 4);
    a.jmp(stalled);
    a.bind(whole);
    a.mr(Code::Add_rm64_r64, stall, RCX);
    a.bind(stalled);
    a.mr(Code::Sub_rm64_r64, field_of_cpu(field!(total)), RCX);
    a.ri(Code::Shl_rm64_imm8, RCX, Left::BITS as i32);
    a.rr(Code::Sub_r64_rm64, LEFT, RCX);
    a.bind(quick);
    a.copy(RCX, COUNT);
    a.r(Code::Push_r64, RDI);
    a.copy(RDI, destination);
    if what.copies() {
        a.r(Code::Push_r64, RSI);
        a.copy(RSI, RAX);
    } else {
        a.copy(RAX, VALUE);
    }
    a.made(what.instruction());
    if what.copies() {
        a.r(Code::Pop_r64, RSI);
        a.rr(Code::Add_r64_rm64, RSI, bytes);
    }
    a.r(Code::Pop_r64, RDI);
    a.rr(Code::Add_r64_rm64, RDI, bytes);
    let count = sized(COUNT, 4);
    a.rr(Code::Xor_r32_rm32, count, count);
    a.r(Code::Pop_r64, destination);
    a.r(Code::Pop_r64, bytes);
    a.plain(Code::Retnq);
    a.bind(restore);
    a.r(Code::Pop_r64, destination);
    a.r(Code::Pop_r64, bytes);
    a.bind(elsewhere);
    // Clears ZF.
    a.ri(Code::Or_rm32_imm8, EAX, 1);
    a.plain(Code::Retnq);
    at
}

impl Emitter {
    /// Emits a repeated string instruction, for code without a model.
    pub fn string(&mut self, what: StringOperation, operation: usize) {
        self.clobber_flags();
        let interpret = self.interpreter_entry(operation);
        let routine = self.routines.strings[usize::from(self.kernel)][what as usize];
        self.a.call_to(routine);
        self.a.jcc(cc::NE, interpret);
        self.resume(operation);
    }
}
