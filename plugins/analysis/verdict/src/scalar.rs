//! Loops that compute with one floating-point number at a time, and that a compiler could turn into vector instructions. No register
//! carries a value from one iteration to the next, and arrays are walked in order. Machine code alone decides, so that arrays which overlap
//! are not noticed.

use std::collections::BTreeMap;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use nodescope_profile::Block;

/// Size of a vector register of AVX2, bytes.
const VECTOR: u32 = 32;

/// Returns how many iterations of a loop a vector instruction could compute at once. The loop is a block that branches to its own beginning.
/// Returns `None` for other blocks, for loops with vector instructions, and where an iteration needs the result of another one. Arrays with
/// different base registers are taken not to overlap.
pub(crate) fn lanes(block: &Block) -> Option<u32> {
    let body = body(block)?;
    let element = element(&body)?;
    let steps = steps(&body)?;
    (!carries(&body) && in_order(&body, element, &steps)).then_some(VECTOR / element)
}

/// Returns the instructions of a loop, without the branch to its beginning.
fn body(block: &Block) -> Option<Vec<Instruction>> {
    let mut decoder = Decoder::with_ip(64, &block.bytes, block.address, DecoderOptions::NONE);
    let mut body: Vec<Instruction> = decoder.iter().collect();
    let last = body.pop().filter(|_| block.bits == 64 && !block.kernel)?;
    let repeats = last.flow_control() == FlowControl::ConditionalBranch
        && last.near_branch_target() == block.address;
    let straight = |of: &Instruction| of.flow_control() == FlowControl::Next && !of.is_invalid();
    (repeats && body.iter().all(straight)).then_some(body)
}

/// What an instruction does in a loop of floating-point arithmetic.
enum Role {
    /// Arithmetic with one number of so many bytes.
    Arithmetic(u32),
    /// Moves a number of so many bytes.
    Move(u32),
    /// Moves or clears a register.
    Copy,
    /// Counts iterations, compares or does nothing.
    Count,
}

/// Returns the role of an instruction; `None` for all that such loops do not have.
fn role(instruction: &Instruction) -> Option<Role> {
    use Mnemonic::*;
    let name = format!("{:?}", instruction.mnemonic());
    let scalar = |name: &str| {
        let name = name.strip_prefix('V').unwrap_or(name).to_ascii_lowercase();
        let bytes = match name.get(name.len().checked_sub(2)?..)? {
            "sd" => 8,
            "ss" => 4,
            _ => return None,
        };
        let operation = &name[..name.len() - 2];
        let arithmetic = ["add", "sub", "mul", "div", "sqrt", "min", "max"];
        let fused = ["fmadd", "fmsub", "fnmadd", "fnmsub"];
        let is_fused = fused.iter().any(|of| operation.starts_with(of));
        match operation {
            "mov" => Some(Role::Move(bytes)),
            _ if arithmetic.contains(&operation) || is_fused => Some(Role::Arithmetic(bytes)),
            _ => None,
        }
    };
    match instruction.mnemonic() {
        Movapd | Movaps | Vmovapd | Vmovaps | Xorps | Xorpd | Pxor | Vxorps | Vxorpd | Vpxor
            if (0..instruction.op_count())
                .all(|op| instruction.op_kind(op) == OpKind::Register) =>
        {
            Some(Role::Copy)
        }
        Add | Sub | Inc | Dec | Lea | Cmp | Test | Nop => Some(Role::Count),
        _ => scalar(&name),
    }
}

/// Returns the size of the numbers that a loop computes with, which must be the same in all of its instructions.
fn element(body: &[Instruction]) -> Option<u32> {
    let mut element = None;
    let mut computes = false;
    for instruction in body {
        let role = role(instruction)?;
        computes |= matches!(role, Role::Arithmetic(_));
        if let Role::Arithmetic(bytes) | Role::Move(bytes) = role
            && *element.get_or_insert(bytes) != bytes
        {
            return None;
        }
    }
    element.filter(|_| computes)
}

/// Returns by how much each integer register changes in an iteration; `None` if one changes by anything but a constant.
fn steps(body: &[Instruction]) -> Option<BTreeMap<Register, i64>> {
    let mut steps: BTreeMap<Register, i64> = BTreeMap::new();
    for instruction in body {
        let step = match instruction.mnemonic() {
            Mnemonic::Inc => 1,
            Mnemonic::Dec => -1,
            Mnemonic::Add | Mnemonic::Sub => {
                let immediate = instruction.try_immediate(1).ok()? as i64;
                match instruction.mnemonic() {
                    Mnemonic::Add => immediate,
                    _ => immediate.checked_neg()?,
                }
            }
            Mnemonic::Lea => {
                let same = instruction.memory_base() == instruction.op0_register()
                    && instruction.memory_index() == Register::None;
                same.then(|| instruction.memory_displacement64() as i64)?
            }
            _ => continue,
        };
        if instruction.op0_kind() != OpKind::Register {
            return None;
        }
        let register = instruction.op0_register().full_register();
        let sum = steps.entry(register).or_default();
        *sum = sum.checked_add(step)?;
    }
    Some(steps)
}

/// Returns whether an iteration reads a vector register that the iteration before has written.
fn carries(body: &[Instruction]) -> bool {
    let mut info = InstructionInfoFactory::new();
    // The registers that an iteration has written so far, and those that it read before.
    let mut written: Vec<Register> = Vec::new();
    let mut read_first: Vec<Register> = Vec::new();
    for instruction in body {
        let clears = matches!(role(instruction), Some(Role::Copy))
            && (0..instruction.op_count())
                .all(|op| instruction.op_register(op) == instruction.op0_register());
        // These instructions read the register of their result only to keep its upper numbers.
        let replaces = matches!(
            instruction.mnemonic(),
            Mnemonic::Sqrtsd | Mnemonic::Sqrtss | Mnemonic::Movsd | Mnemonic::Movss
        );
        let used = info.info(instruction).used_registers().to_vec();
        let vectors = used.iter().filter(|of| of.register().is_vector_register());
        let reads = vectors.clone().filter(|of| {
            let result = replaces && of.register() == instruction.op0_register();
            let access = matches!(
                of.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            );
            access
                && !clears
                && !(result
                    && instruction.op0_kind() == OpKind::Register
                    && of.access() != OpAccess::Read)
        });
        for register in reads.map(|of| of.register().full_register()) {
            if !written.contains(&register) {
                read_first.push(register);
            }
        }
        let writes =
            vectors.filter(|of| !matches!(of.access(), OpAccess::Read | OpAccess::CondRead));
        written.extend(writes.map(|of| of.register().full_register()));
    }
    read_first.iter().any(|register| written.contains(register))
}

/// Returns whether the iterations of a loop read and write memory in order, and no iteration reads near what another one writes.
fn in_order(body: &[Instruction], element: u32, steps: &BTreeMap<Register, i64>) -> bool {
    let of_memory = body.iter().filter(|instruction| {
        instruction.mnemonic() != Mnemonic::Lea
            && (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory)
    });
    let place = |of: &Instruction| (of.memory_base(), of.memory_index(), of.memory_index_scale());
    let stores = |of: &Instruction| of.op0_kind() == OpKind::Memory;
    let step = |of: &Instruction| {
        let step = |register: Register| steps.get(&register.full_register()).copied().unwrap_or(0);
        let of_index = step(of.memory_index()).saturating_mul(of.memory_index_scale().into());
        step(of.memory_base()).saturating_add(of_index)
    };
    let mut streams = 0;
    for one in of_memory.clone() {
        match step(one).unsigned_abs() {
            0 if !stores(one) => {}
            bytes if bytes == u64::from(element) => streams += 1,
            _ => return false,
        }
        let differs = |other: &Instruction| {
            place(one) == place(other)
                && one.memory_displacement64() != other.memory_displacement64()
        };
        if stores(one) && of_memory.clone().any(differs) {
            return false;
        }
    }
    streams > 0
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::*;

    use super::*;

    /// Returns the lanes of a loop whose body `emit` assembles.
    fn of(emit: impl Fn(&mut CodeAssembler)) -> Option<u32> {
        let mut code = CodeAssembler::new(64).unwrap();
        let mut begin = code.create_label();
        code.set_label(&mut begin).unwrap();
        emit(&mut code);
        code.jne(begin).unwrap();
        lanes(&Block {
            module: 0,
            offset: 0x1000,
            address: 0x40_1000,
            function: 0,
            kernel: false,
            bits: 64,
            bytes: code.assemble(0x40_1000).unwrap(),
            instructions: 0,
            loads: 0,
            stores: 0,
            flops: Default::default(),
            source_ranges: Vec::new(),
        })
    }

    fn next(code: &mut CodeAssembler) {
        code.add(rax, 8).unwrap();
        code.cmp(rax, rdx).unwrap();
    }

    #[test]
    fn independent_iterations_have_lanes() {
        // b[i] = a[i] * s + b[i]
        let axpy = of(|code| {
            code.movsd_2(xmm0, qword_ptr(rdi + rax)).unwrap();
            code.mulsd(xmm0, xmm7).unwrap();
            code.addsd(xmm0, qword_ptr(rsi + rax)).unwrap();
            code.movsd_2(qword_ptr(rsi + rax), xmm0).unwrap();
            next(code);
        });
        assert_eq!(axpy, Some(4));
        let single = of(|code| {
            code.vmovss(xmm0, dword_ptr(rdi + rax * 4)).unwrap();
            code.vmulss(xmm1, xmm0, xmm0).unwrap();
            code.vmovss(dword_ptr(rsi + rax * 4), xmm1).unwrap();
            code.inc(rax).unwrap();
            code.cmp(rax, rdx).unwrap();
        });
        assert_eq!(single, Some(8));
    }

    #[test]
    fn iterations_that_need_each_other_have_none() {
        let sum = of(|code| {
            code.addsd(xmm0, qword_ptr(rdi + rax)).unwrap();
            next(code);
        });
        // a[i] = a[i - 1] * s
        let recurrence = of(|code| {
            code.movsd_2(xmm0, qword_ptr(rdi + rax - 8)).unwrap();
            code.mulsd(xmm0, xmm7).unwrap();
            code.movsd_2(qword_ptr(rdi + rax), xmm0).unwrap();
            next(code);
        });
        assert_eq!((sum, recurrence), (None, None));
    }

    #[test]
    fn other_loops_have_none() {
        let strided = of(|code| {
            code.movsd_2(xmm0, qword_ptr(rdi + rax * 8)).unwrap();
            code.mulsd(xmm0, xmm7).unwrap();
            code.movsd_2(qword_ptr(rsi + rax * 8), xmm0).unwrap();
            next(code);
        });
        let packed = of(|code| {
            code.movupd(xmm0, xmmword_ptr(rdi + rax)).unwrap();
            code.mulpd(xmm0, xmm7).unwrap();
            code.movupd(xmmword_ptr(rsi + rax), xmm0).unwrap();
            next(code);
        });
        let gathered = of(|code| {
            code.mov(rcx, qword_ptr(r8 + rax)).unwrap();
            code.movsd_2(xmm0, qword_ptr(rdi + rcx * 8)).unwrap();
            code.mulsd(xmm0, xmm7).unwrap();
            code.movsd_2(qword_ptr(rsi + rax), xmm0).unwrap();
            next(code);
        });
        let copied = of(|code| {
            code.movsd_2(xmm0, qword_ptr(rdi + rax)).unwrap();
            code.movsd_2(qword_ptr(rsi + rax), xmm0).unwrap();
            next(code);
        });
        assert_eq!(
            (strided, packed, gathered, copied),
            (None, None, None, None)
        );
    }
}
