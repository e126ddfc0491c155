//! Basic blocks of machine code, with execution counts from an emulator.

use std::fmt;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

/// Straight-line x86-64 code and how often it ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Linear address of the first byte.
    pub address: u64,
    /// Machine code of the block.
    pub bytes: Vec<u8>,
    /// Number of complete executions, from the first instruction to the last.
    pub executions: u64,
    /// Number of instructions in one execution.
    pub instructions: u32,
}

/// Reason for which a block has no cycles of its own, but the mean of all modelled instructions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// The bytes are no straight-line code, or their number of instructions differs from [`Block::instructions`].
    Bytes,
    /// The time of this instruction does not follow from its operands' latencies.
    Instruction(String),
    /// `llvm-mca` has no timing of this instruction on this core, or cannot read the instruction.
    Refused {
        /// The instruction as text.
        instruction: String,
        /// LLVM's error message about the instruction.
        message: String,
    },
    /// The block is on no path. Either it is among the least executed blocks, or the paths cover enough instructions without it.
    Cold,
    /// `llvm-mca` failed on each path that goes through the block.
    Path(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Bytes => f.write_str("the bytes are no code of as many instructions"),
            Reason::Instruction(name) => write!(f, "the time of {name} is not modelled"),
            Reason::Refused {
                instruction,
                message,
            } => write!(f, "llvm-mca does not take {instruction:?}: {message}"),
            Reason::Cold => f.write_str("executed too little to be modelled"),
            Reason::Path(message) => write!(f, "llvm-mca fails on its path: {message}"),
        }
    }
}

/// Successors of a block, as far as the block's code determines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The next byte only.
    Fall,
    /// A target only.
    Jump(u64),
    /// A target or the next byte.
    Branch(u64),
    /// A function that returns to the next byte. None: the code does not contain the function's address.
    Call(Option<u64>),
    /// The address behind the call of the function.
    Return,
    /// An unknown address.
    Unknown,
}

/// A block's decoded instructions; every instruction has a time that `llvm-mca` can predict.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    pub instructions: Vec<Instruction>,
    pub end: End,
    /// Address behind the last byte.
    pub next: u64,
}

impl Code {
    /// Decodes a block; an error if the bytes are wrong or an instruction has no predictable time.
    pub fn of(block: &Block) -> Result<Self, Reason> {
        if block.bytes.is_empty() {
            return Err(Reason::Bytes);
        }
        let mut decoder = Decoder::with_ip(64, &block.bytes, block.address, DecoderOptions::NONE);
        let mut instructions = Vec::new();
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                return Err(Reason::Bytes);
            }
            instructions.push(instruction);
        }
        let Some((last, others)) = instructions.split_last() else {
            return Err(Reason::Bytes);
        };
        let straight = others
            .iter()
            .all(|i| matches!(i.flow_control(), FlowControl::Next) || untimed(i));
        if !straight || instructions.len() != block.instructions as usize {
            return Err(Reason::Bytes);
        }
        if let Some(bad) = instructions.iter().find(|i| untimed(i)) {
            return Err(Reason::Instruction(name(bad)));
        }
        let end = end(last);
        Ok(Self {
            end,
            next: last.next_ip(),
            instructions,
        })
    }
}

fn end(last: &Instruction) -> End {
    let near = matches!(
        last.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    let target = last.near_branch_target();
    match last.flow_control() {
        FlowControl::Next => End::Fall,
        FlowControl::UnconditionalBranch if near => End::Jump(target),
        FlowControl::ConditionalBranch if near => End::Branch(target),
        FlowControl::Call if near => End::Call(Some(target)),
        FlowControl::IndirectCall => End::Call(None),
        FlowControl::Return => End::Return,
        _ => End::Unknown,
    }
}

fn name(instruction: &Instruction) -> String {
    let name = format!("{:?}", instruction.mnemonic()).to_uppercase();
    if repeated(instruction) {
        format!("REP {name}")
    } else if far(instruction) {
        format!("far {name}")
    } else if instruction.mnemonic() == Mnemonic::Mov {
        // Only moves to or from control and debug registers are untimed.
        "privileged MOV".into()
    } else {
        name
    }
}

fn repeated(instruction: &Instruction) -> bool {
    instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

fn far(instruction: &Instruction) -> bool {
    instruction.is_jmp_far()
        || instruction.is_call_far()
        || instruction.is_jmp_far_indirect()
        || instruction.is_call_far_indirect()
}

/// Returns whether the time of an instruction depends on more than its operands: on a count in a register, on the system, or on other
/// instructions in flight. LLVM gives some such instructions a large constant.
fn untimed(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    far(instruction)
        || instruction.is_privileged()
        || repeated(instruction)
        || matches!(
            instruction.flow_control(),
            FlowControl::Interrupt | FlowControl::Exception | FlowControl::XbeginXabortXend
        )
        || matches!(
            instruction.mnemonic(),
            Cpuid
                | Syscall
                | Sysenter
                | Sysret
                | Sysretq
                | Sysexit
                | Sysexitq
                | Vmcall
                | Vmgexit
                | Vmmcall
                | Rdtsc
                | Rdtscp
                | Rdpmc
                | Rdpid
                | Rdrand
                | Rdseed
                | Xgetbv
                | Xsetbv
                | Wrpkru
                | Rdpkru
                | Iret
                | Iretd
                | Iretq
                | Retf
                | Serialize
                | Clflush
                | Clflushopt
                | Clwb
                | Cldemote
                | Xsave
                | Xsave64
                | Xsavec
                | Xsavec64
                | Xsaveopt
                | Xsaveopt64
                | Xsaves
                | Xsaves64
                | Xrstor
                | Xrstor64
                | Xrstors
                | Xrstors64
                | Fxsave
                | Fxsave64
                | Fxrstor
                | Fxrstor64
                | Monitor
                | Mwait
                | Umonitor
                | Umwait
                | Tpause
                | Pause
                | In
                | Insb
                | Insw
                | Insd
                | Out
                | Outsb
                | Outsw
                | Outsd
                | Swapgs
                | Enqcmd
                | Movdir64b
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(bytes: &[u8], instructions: u32) -> Block {
        Block {
            address: 0x1000,
            bytes: bytes.to_vec(),
            executions: 1,
            instructions,
        }
    }

    #[test]
    fn ends_of_blocks_lead_where_the_code_says() {
        for (bytes, end) in [
            (&[0x90][..], End::Fall),
            (&[0xeb, 0xfe], End::Jump(0x1000)),
            (&[0x75, 0x10], End::Branch(0x1012)),
            (&[0xe2, 0x10], End::Branch(0x1012)),
            (&[0xe8, 0, 1, 0, 0], End::Call(Some(0x1105))),
            (&[0xff, 0xd0], End::Call(None)),
            (&[0xff, 0xe0], End::Unknown),
            (&[0xc3], End::Return),
            (&[0xc2, 8, 0], End::Return),
        ] {
            assert_eq!(Code::of(&block(bytes, 1)).unwrap().end, end, "{bytes:x?}");
        }
    }

    #[test]
    fn what_is_no_straight_code_is_refused() {
        for (bytes, count) in [
            (&[][..], 0),
            (&[0x0f][..], 1),
            (&[0x06], 1),
            (&[0x90, 0x90], 1),
            (&[0xeb, 0, 0x90], 2),
        ] {
            assert_eq!(Code::of(&block(bytes, count)).unwrap_err(), Reason::Bytes);
        }
    }

    #[test]
    fn instructions_without_a_time_are_named() {
        for (bytes, name) in [
            (&[0x0f, 0xa2][..], "CPUID"),
            (&[0x0f, 0x05], "SYSCALL"),
            (&[0xf3, 0xa4], "REP MOVSB"),
            (&[0x0f, 0x31], "RDTSC"),
            (&[0xf4], "HLT"),
            (&[0x0f, 0x0b], "UD2"),
            (&[0xcf], "IRETD"),
            (&[0xcb], "RETF"),
            (&[0x0f, 0x01, 0xf8], "SWAPGS"),
            (&[0x0f, 0x22, 0xd8], "privileged MOV"),
            (&[0xff, 0x28], "far JMP"),
        ] {
            assert_eq!(
                Code::of(&block(bytes, 1)).unwrap_err(),
                Reason::Instruction(name.into())
            );
        }
        // A string instruction without a REP prefix moves one element.
        assert!(Code::of(&block(&[0xa4], 1)).is_ok());
    }
}
