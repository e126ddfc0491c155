//! Machine code of the most expensive blocks, with its source lines.

use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, Instruction};
use nodescope_profile::{Block, ModuleKind, WindowProfile};
use serde::Serialize;

use super::costs::{CodeCosts, Sum};
use crate::breakdown::CYCLE;

/// Listing of a basic block: its instructions and costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listing {
    /// Name of the function in which the block begins.
    pub function: String,
    /// Name of the block's module.
    pub module: String,
    /// Address of the block's first byte: a linear address in the kernel itself and in memory without a file, otherwise an offset in the
    /// module's file or kernel module.
    pub address: u64,
    /// Costs of all the block's executions.
    pub costs: CodeCosts,
    /// Mean core cycles of one execution, long instructions included.
    pub core_per_execution: f64,
    /// Mean stall cycles of one execution.
    pub stalls_per_execution: f64,
    /// Instructions of the block, in order.
    pub instructions: Vec<InstructionRow>,
}

/// Row of a listing: an instruction and its source lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InstructionRow {
    /// Address of the instruction, in the same terms as the listing's.
    pub address: u64,
    /// The instruction in AT&T syntax.
    pub text: String,
    /// Innermost source line, as `file:line`; `None` if unknown.
    pub source: Option<String>,
    /// Names of functions inlined here, innermost first.
    pub inlined: Vec<String>,
}

impl Listing {
    /// Maximum number of blocks that are listed.
    pub(super) const MOST: usize = 50;

    pub(super) fn new(profile: &WindowProfile, index: u32, sum: &Sum, costs: CodeCosts) -> Listing {
        let block = &profile.blocks[index as usize];
        let module = &profile.modules[block.module as usize];
        let executions = sum.costs.executions.max(1) as f64;
        let core = costs.term("core");
        let per_execution = |cycles: i128| cycles as f64 / CYCLE as f64 / executions;
        let address = match module.kind {
            ModuleKind::Kernel | ModuleKind::Anonymous | ModuleKind::Unknown => block.address,
            _ => block.offset,
        };
        Listing {
            function: profile.functions[block.function as usize].name.clone(),
            module: module.name.clone(),
            address,
            core_per_execution: per_execution(core),
            stalls_per_execution: per_execution(costs.cycles_65536 - core),
            costs,
            instructions: disassembled(profile, block, address),
        }
    }
}

/// Maximum number of instructions of a listing; an engine's blocks are far shorter.
const MOST_INSTRUCTIONS: usize = 1000;

fn disassembled(profile: &WindowProfile, block: &Block, address: u64) -> Vec<InstructionRow> {
    let bits = match block.bits {
        16 => 16,
        32 => 32,
        _ => 64,
    };
    let mut decoder = Decoder::with_ip(bits, &block.bytes, address, DecoderOptions::NONE);
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_space_after_operand_separator(true);
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    let mut rows = Vec::new();
    let mut instruction = Instruction::default();
    while decoder.can_decode() && rows.len() < MOST_INSTRUCTIONS {
        decoder.decode_out(&mut instruction);
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        let range = block.source_range(rows.len() as u32);
        let line = range.and_then(|range| range.line);
        let inlined = range.map(|range| range.inlined.iter());
        rows.push(InstructionRow {
            address: instruction.ip(),
            text,
            source: line.map(|line| {
                let line = &profile.lines[line as usize];
                format!("{}:{}", line.file, line.line)
            }),
            inlined: inlined
                .into_iter()
                .flatten()
                .map(|inlined| inlined.function.clone())
                .collect(),
        });
    }
    rows
}
