//! Instructions as LLVM's assembler reads them, in AT&T syntax.

use iced_x86::{
    ConditionCode, FlowControl, Formatter, GasFormatter, Instruction, Mnemonic, OpKind, Register,
};

/// Properties of a core that LLVM's timing lacks. The text that `llvm-mca` gets is changed to account for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traits {
    /// Instructions that the core fuses with a following conditional jump into one operation.
    pub fusion: Fusion,
    /// True if the core executes zero idioms, such as `xor` of a register with itself, without waiting for operands, but LLVM's timing of
    /// the core waits.
    pub idioms: bool,
}

/// Instructions that a core fuses with a conditional jump (macro-fusion).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fusion {
    /// No instruction is fused.
    None,
    /// CMP and TEST are fused: AMD's Bulldozer, Zen and Zen 2 cores.
    Comparisons,
    /// CMP, TEST, ADD, SUB, AND, INC and DEC are fused: Intel's cores from Sandy Bridge on, except Atom's, and AMD's from Zen 3 on.
    Arithmetic,
}

/// Printer of instructions in the assembler syntax that `llvm-mca` reads.
pub(crate) struct Printer {
    formatter: GasFormatter,
}

impl Printer {
    pub fn new() -> Self {
        let mut formatter = GasFormatter::new();
        let options = formatter.options_mut();
        options.set_gas_show_mnemonic_size_suffix(true);
        options.set_rip_relative_addresses(true);
        options.set_show_useless_prefixes(false);
        options.set_uppercase_all(false);
        Self { formatter }
    }

    /// Appends the lines of an instruction; most instructions have one line.
    pub fn print(&mut self, instruction: &Instruction, lines: &mut Vec<String>) {
        let near = matches!(
            instruction.op0_kind(),
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
        );
        match instruction.flow_control() {
            // llvm-mca counts a call as a constant of 100 cycles. The text is a push of the return address and a jump instead.
            FlowControl::Call if near => {
                lines.push("pushq $0".into());
                lines.push("jmp 0".into());
            }
            FlowControl::IndirectCall => {
                lines.push("pushq $0".into());
                lines.push(format!("jmpq *{}", self.operand(instruction)));
            }
            FlowControl::IndirectBranch => {
                lines.push(format!("jmpq *{}", self.operand(instruction)));
            }
            // llvm-mca gives RET no operands. The text is a jump through the top of the stack and an addition to the stack pointer instead.
            FlowControl::Return => {
                let bytes = 8 + match instruction.op_count() {
                    0 => 0,
                    _ => u32::from(instruction.immediate16()),
                };
                lines.push("jmpq *(%rsp)".into());
                lines.push(format!("addq ${bytes}, %rsp"));
            }
            // All targets are the same, since times do not depend on them.
            FlowControl::UnconditionalBranch if near => lines.push("jmp 0".into()),
            FlowControl::ConditionalBranch if near => {
                let mut name = String::new();
                self.formatter.format_mnemonic_options(
                    instruction,
                    &mut name,
                    iced_x86::FormatMnemonicOptions::NO_PREFIXES,
                );
                // The formatter appends a branch hint to the mnemonic, after a comma.
                let name = name.split(',').next().unwrap_or_default();
                lines.push(format!("{name} 0"));
            }
            _ => lines.push(self.plain(instruction)),
        }
    }

    fn operand(&mut self, instruction: &Instruction) -> String {
        let mut text = String::new();
        self.formatter.format_all_operands(instruction, &mut text);
        text.trim_start_matches('*').to_owned()
    }

    fn plain(&mut self, instruction: &Instruction) -> String {
        // All sizes and encodings of NOP are one operation.
        if instruction.mnemonic() == Mnemonic::Nop {
            return "nop".into();
        }
        let mut text = String::new();
        self.formatter.format(instruction, &mut text);
        // LLVM spells these mnemonics without a size suffix.
        for name in [
            "fldenv", "fnstenv", "fstenv", "frstor", "fnsave", "fsave", "verw", "verr",
        ] {
            if let Some(rest) = text.strip_prefix(name) {
                return match rest.strip_prefix(['l', 'w', 's']) {
                    Some(operands) if operands.starts_with(' ') => format!("{name}{operands}"),
                    _ => text,
                };
            }
        }
        text
    }
}

/// Returns the assembler lines of instructions, with the core's traits applied.
pub(crate) fn lines(instructions: &[Instruction], traits: Traits) -> Vec<String> {
    let mut printer = Printer::new();
    let mut lines = Vec::new();
    for (index, instruction) in instructions.iter().enumerate() {
        let before = index.checked_sub(1).map(|i| &instructions[i]);
        // The jump of a fused pair has no line of its own.
        if before.is_some_and(|before| fuses(traits.fusion, before, instruction)) {
            continue;
        }
        match zero(instruction).filter(|_| traits.idioms) {
            Some(line) => lines.push(line),
            None => printer.print(instruction, &mut lines),
        }
    }
    lines
}

/// Returns whether a core fuses an instruction and the following conditional jump into one operation (Intel 64 and IA-32 Architectures
/// Optimization Reference Manual, "Macro-Fusion"; AMD's Software Optimization Guides, "Branch Fusion").
fn fuses(fusion: Fusion, first: &Instruction, jump: &Instruction) -> bool {
    use ConditionCode::*;
    if jump.flow_control() != FlowControl::ConditionalBranch || !jump.is_jcc_short_or_near() {
        return false;
    }
    let memory = (0..first.op_count()).any(|n| first.op_kind(n) == OpKind::Memory);
    let constant =
        first.op_count() == 2 && !matches!(first.op1_kind(), OpKind::Register | OpKind::Memory);
    // A comparison of memory with a constant, and a result in memory, do not fuse.
    if memory && (constant || first.op0_kind() == OpKind::Memory && !compares(first)) {
        return false;
    }
    let condition = jump.condition_code();
    let unsigned = matches!(condition, b | ae | be | a);
    let signed = matches!(condition, e | ne | l | ge | le | g);
    match (fusion, first.mnemonic()) {
        (Fusion::None, _) => false,
        (_, Mnemonic::Test) => true,
        (_, Mnemonic::Cmp) => unsigned || signed,
        (Fusion::Arithmetic, Mnemonic::And) => true,
        (Fusion::Arithmetic, Mnemonic::Add | Mnemonic::Sub) => unsigned || signed,
        (Fusion::Arithmetic, Mnemonic::Inc | Mnemonic::Dec) => signed,
        _ => false,
    }
}

fn compares(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test)
}

/// Returns a replacement line without dependencies, if an instruction is a zero idiom: it makes zero of a register and itself. For vectors
/// the line is a load from a constant address, since no other vector instruction is without a source register.
fn zero(instruction: &Instruction) -> Option<String> {
    use Mnemonic::*;
    let count = instruction.op_count();
    let registers = (0..count).all(|n| instruction.op_kind(n) == OpKind::Register);
    if count < 2 || !registers || instruction.op_mask() != Register::None {
        return None;
    }
    let [one, other] = [count - 2, count - 1].map(|n| instruction.op_register(n));
    if one != other {
        return None;
    }
    let target = instruction.op0_register();
    let name = format!("%{target:?}").to_lowercase();
    match instruction.mnemonic() {
        // A write of a smaller register depends on the rest of the full register.
        Xor | Sub if target.is_gpr32() || target.is_gpr64() => {
            Some(format!("movl $0, %{:?}", target.full_register32()).to_lowercase())
        }
        Pxor | Xorps | Xorpd | Psubb | Psubw | Psubd | Psubq if target.is_xmm() => {
            Some(format!("movaps 0, {name}"))
        }
        Vpxor | Vpxord | Vpxorq | Vxorps | Vxorpd | Vpsubb | Vpsubw | Vpsubd | Vpsubq => {
            Some(format!("vmovaps 0, {name}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;

    const NONE: Traits = Traits {
        fusion: Fusion::None,
        idioms: false,
    };

    fn text(traits: Traits, code: impl FnOnce(&mut CodeAssembler)) -> Vec<String> {
        let mut assembler = CodeAssembler::new(64).unwrap();
        code(&mut assembler);
        let bytes = assembler.assemble(0x1000).unwrap();
        let decoder = iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0);
        lines(&decoder.into_iter().collect::<Vec<_>>(), traits)
    }

    #[test]
    fn spellings_are_those_of_llvm() {
        let lines = text(NONE, |a| {
            let mut top = a.create_label();
            a.set_label(&mut top).unwrap();
            a.mov(rax, 0x1234_5678_9abc_u64).unwrap();
            a.lock().add(dword_ptr(rax).fs(), 1).unwrap();
            a.notrack().jmp(qword_ptr(rax + 8)).unwrap();
            a.bnd().ret().unwrap();
            a.ret_1(16).unwrap();
            a.call(top).unwrap();
            a.call(rax).unwrap();
            a.jrcxz(top).unwrap();
            a.fnstenv(ptr(rsp)).unwrap();
            a.nop_1(dword_ptr(rax + 5)).unwrap();
        });
        assert_eq!(
            lines,
            [
                "movabsq $0x123456789ABC,%rax",
                "lock addl $1,%fs:(%rax)",
                "jmpq *8(%rax)",
                "jmpq *(%rsp)",
                "addq $8, %rsp",
                "jmpq *(%rsp)",
                "addq $24, %rsp",
                "pushq $0",
                "jmp 0",
                "pushq $0",
                "jmpq *%rax",
                "jrcxz 0",
                "fnstenv (%rsp)",
                "nop",
            ]
        );
    }

    #[test]
    fn jumps_fuse_as_the_manuals_say() {
        let all = Traits {
            fusion: Fusion::Arithmetic,
            idioms: false,
        };
        let some = Traits {
            fusion: Fusion::Comparisons,
            idioms: false,
        };
        type Code = fn(&mut CodeAssembler, CodeLabel);
        let count = |traits, code: Code| {
            text(traits, |a| {
                let mut top = a.create_label();
                a.set_label(&mut top).unwrap();
                code(a, top);
            })
            .len()
        };
        for (code, lines) in [
            (
                (|a, t| {
                    a.cmp(rax, rbx).unwrap();
                    a.jne(t).unwrap()
                }) as Code,
                [2, 1, 1],
            ),
            (
                |a, t| {
                    a.cmp(rax, rbx).unwrap();
                    a.js(t).unwrap()
                },
                [2, 2, 2],
            ),
            (
                |a, t| {
                    a.test(rax, rax).unwrap();
                    a.js(t).unwrap()
                },
                [2, 1, 1],
            ),
            (
                |a, t| {
                    a.dec(rax).unwrap();
                    a.jne(t).unwrap()
                },
                [2, 2, 1],
            ),
            (
                |a, t| {
                    a.dec(rax).unwrap();
                    a.jb(t).unwrap()
                },
                [2, 2, 2],
            ),
            (
                |a, t| {
                    a.cmp(dword_ptr(rax), 7).unwrap();
                    a.je(t).unwrap()
                },
                [2, 2, 2],
            ),
            (
                |a, t| {
                    a.cmp(rbx, qword_ptr(rax)).unwrap();
                    a.je(t).unwrap()
                },
                [2, 1, 1],
            ),
            (
                |a, t| {
                    a.add(qword_ptr(rax), rbx).unwrap();
                    a.je(t).unwrap()
                },
                [2, 2, 2],
            ),
            (
                |a, t| {
                    a.cmp(rax, rbx).unwrap();
                    a.jmp(t).unwrap()
                },
                [2, 2, 2],
            ),
            (
                |a, t| {
                    a.cmp(rax, rbx).unwrap();
                    a.jrcxz(t).unwrap()
                },
                [2, 2, 2],
            ),
        ] {
            assert_eq!([NONE, some, all].map(|traits| count(traits, code)), lines);
        }
    }

    #[test]
    fn zeroes_wait_for_nothing() {
        let traits = Traits {
            fusion: Fusion::None,
            idioms: true,
        };
        let lines = text(traits, |a| {
            a.xor(eax, eax).unwrap();
            a.sub(r8, r8).unwrap();
            a.xor(eax, ebx).unwrap();
            a.xor(ax, ax).unwrap();
            a.pxor(xmm1, xmm1).unwrap();
            a.vxorpd(ymm2, ymm3, ymm3).unwrap();
            a.vpxord(zmm2, zmm3, zmm4).unwrap();
            a.xor(rax, 1).unwrap();
        });
        assert_eq!(
            lines,
            [
                "movl $0, %eax",
                "movl $0, %r8d",
                "xorl %ebx,%eax",
                "xorw %ax,%ax",
                "movaps 0, %xmm1",
                "vmovaps 0, %ymm2",
                "vpxord %zmm4,%zmm3,%zmm2",
                "xorq $1,%rax",
            ]
        );
    }
}
