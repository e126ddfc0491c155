//! Instructions as LLVM's assembler reads them, in AT&T syntax.

use iced_x86::{FlowControl, Formatter, GasFormatter, Instruction, Mnemonic, OpKind};

/// Prints instructions.
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

    /// Adds the lines of an instruction; most have one line.
    pub fn print(&mut self, instruction: &Instruction, lines: &mut Vec<String>) {
        let near = matches!(
            instruction.op0_kind(),
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
        );
        match instruction.flow_control() {
            // llvm-mca takes a call for a constant of 100 cycles: the call is a push of the return address and a jump.
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
            // llvm-mca gives RET no operands: a return is a pop that ends in a jump.
            FlowControl::Return => {
                let bytes = 8 + match instruction.op_count() {
                    0 => 0,
                    _ => u32::from(instruction.immediate16()),
                };
                lines.push("jmpq *(%rsp)".into());
                lines.push(format!("addq ${bytes}, %rsp"));
            }
            // Targets are all alike: times do not depend on them.
            FlowControl::UnconditionalBranch if near => lines.push("jmp 0".into()),
            FlowControl::ConditionalBranch if near => {
                let mut name = String::new();
                self.formatter.format_mnemonic_options(
                    instruction,
                    &mut name,
                    iced_x86::FormatMnemonicOptions::NO_PREFIXES,
                );
                // A hint for the branch is a part of the mnemonic.
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
        // LLVM knows these without a suffix.
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

/// Returns the lines of instructions.
pub(crate) fn lines(instructions: &[Instruction]) -> Vec<String> {
    let mut printer = Printer::new();
    let mut lines = Vec::new();
    for instruction in instructions {
        printer.print(instruction, &mut lines);
    }
    lines
}
