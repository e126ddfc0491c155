//! Instructions of a program that the guest's processor lacks.
//!
//! Libraries such as OpenBLAS have code for many processors and choose by CPUID, so that such instructions in a file say little. The walk
//! begins at `main` and at the constructors, and follows calls, jumps and addresses of functions that the code takes. What it reaches is
//! either executed, or chosen by the program itself.

use std::collections::HashSet;

use iced_x86::{
    Code, CpuidFeature, FlowControl, Formatter, GasFormatter, Instruction, Mnemonic, OpKind,
    Register,
};
use nodescope_engine_soft::Features;

use crate::elf::Elf;

/// Maximum number of instructions of a file that are decoded: about half a second, and 100 MB of addresses.
const MOST_INSTRUCTIONS: usize = 4_000_000;

/// The instruction CPUID.
const CPUID: &[u8] = &[0x0f, 0xa2];

/// An instruction that the guest's processor lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lacking {
    /// Name of the feature, such as `AVX512F`.
    pub feature: String,
    /// Link-time address of the instruction.
    pub address: u64,
    /// The instruction in assembly language.
    pub text: String,
    /// True if nothing suggests that the program asks for the feature first.
    pub certain: bool,
}

/// Looks for the first instruction, by address, that a program reaches and the guest's processor lacks.
pub(crate) fn lacking(elf: &Elf, features: &Features) -> Option<Lacking> {
    let main = main_of(elf);
    // A function is compiled for one set of features as a whole. If `main` itself has such an instruction, nothing was asked before.
    let of_main = main.and_then(|main| {
        let mut walk = Walk::new(elf, features, Some(main));
        walk.from(main);
        walk.found.filter(|_| !walk.asks)
    });
    let certain = of_main.is_some();
    let (found, certain) = match of_main {
        Some(found) => (found, certain),
        None => {
            // The C library in a static program asks early, keeps the answers in memory, and chooses from addresses.
            let holds_library =
                elf.interpreter.is_none() && elf.needed.is_empty() && elf.has_code(CPUID);
            let mut walk = Walk::new(elf, features, None);
            walk.takes = !holds_library;
            elf.constructors
                .iter()
                .for_each(|&address| walk.from(address));
            walk.from(main.unwrap_or(elf.entry));
            let asks = walk.asks || elf.asks || holds_library;
            (walk.found?, !asks)
        }
    };
    let (address, instruction, feature) = found;
    let mut text = String::new();
    GasFormatter::new().format(&instruction, &mut text);
    Some(Lacking {
        feature,
        address,
        text,
        certain,
    })
}

/// Returns whether compilers use a feature for computing when they are told so (gcc -march). Of the others the C library uses some, such as
/// XSAVEC, after it has asked.
fn is_computing(feature: CpuidFeature) -> bool {
    let name = format!("{feature:?}");
    let families = [
        "ADX", "AES", "AMX", "AVX", "BMI", "F16C", "FMA", "GFNI", "LZCNT", "MOVBE", "PCLMUL",
        "POPCNT", "SHA", "SM3", "SM4", "SSE", "SSSE", "TBM", "VAES", "VPCLMUL", "XOP",
    ];
    families.iter().any(|family| name.starts_with(family))
}

/// Finds `main`: the C library's start code passes its address to `__libc_start_main` in RDI.
fn main_of(elf: &Elf) -> Option<u64> {
    let code = elf.code_at(elf.entry)?;
    let decoder = iced_x86::Decoder::with_ip(64, code, elf.entry, 0);
    for instruction in decoder.into_iter().take(24) {
        let target = match instruction.code() {
            Code::Lea_r64_m if instruction.is_ip_rel_memory_operand() => {
                instruction.ip_rel_memory_address()
            }
            Code::Mov_rm64_imm32 | Code::Mov_r64_imm64 | Code::Mov_r32_imm32 => {
                instruction.immediate(1)
            }
            _ if instruction.flow_control() != FlowControl::Next => return None,
            _ => continue,
        };
        if matches!(instruction.op0_register(), Register::RDI | Register::EDI) {
            return elf.code_at(target).map(|_| target);
        }
    }
    None
}

/// Farthest place of a function's code that a jump is taken to lead to, bytes from the function's beginning. A jump farther away leads to
/// another function.
const REACH_OF_FUNCTION: u64 = 4096;

/// Returns whether an instruction fills a gap between functions, or begins a function.
fn is_gap(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Nop | Mnemonic::Int3 | Mnemonic::Endbr64
    )
}

struct Walk<'a> {
    elf: &'a Elf,
    features: &'a Features,
    /// Function to which the walk keeps; `None` for all functions that are reached.
    only: Option<u64>,
    /// True if the walk follows addresses of functions that the code takes.
    takes: bool,
    /// Addresses that were or will be decoded.
    seen: HashSet<u64>,
    waiting: Vec<u64>,
    /// Instructions that may still be decoded.
    left: usize,
    /// True if the code that was reached asks for the processor's features.
    asks: bool,
    /// Instruction with the lowest address: address, instruction, feature.
    found: Option<(u64, Instruction, String)>,
}

impl<'a> Walk<'a> {
    fn new(elf: &'a Elf, features: &'a Features, only: Option<u64>) -> Self {
        Walk {
            elf,
            features,
            only,
            takes: only.is_none(),
            seen: HashSet::new(),
            waiting: Vec::new(),
            left: MOST_INSTRUCTIONS,
            asks: false,
            found: None,
        }
    }

    /// Decodes what is reached from an address.
    fn from(&mut self, start: u64) {
        self.reach(start);
        while let Some(address) = self.waiting.pop() {
            self.run(address);
        }
    }

    fn reach(&mut self, address: u64) {
        if self.elf.code_at(address).is_some() && self.seen.insert(address) {
            self.waiting.push(address);
        }
    }

    /// Decodes instructions up to the end of their flow.
    fn run(&mut self, start: u64) {
        let elf = self.elf;
        let calls = self.only.is_none();
        let Some(mut code) = elf.code_at(start) else {
            return;
        };
        let mut ip = start;
        while self.left > 0 && !code.is_empty() {
            if ip != start && !self.seen.insert(ip) {
                return;
            }
            self.left -= 1;
            let (instruction, lacks) = self.features.decode(code, ip);
            if instruction.is_invalid() {
                return;
            }
            if let Some(feature) = lacks
                && is_computing(feature)
                && self.found.as_ref().is_none_or(|(first, ..)| ip < *first)
            {
                self.found = Some((ip, instruction, format!("{feature:?}")));
            }
            self.asks |= matches!(instruction.mnemonic(), Mnemonic::Cpuid | Mnemonic::Xgetbv);
            match instruction.flow_control() {
                FlowControl::UnconditionalBranch => {
                    let target = instruction.near_branch_target();
                    let stays = |function| target.wrapping_sub(function) < REACH_OF_FUNCTION;
                    if instruction.op0_kind() == OpKind::NearBranch64 && self.only.is_none_or(stays)
                    {
                        self.reach(target);
                    }
                    return;
                }
                FlowControl::ConditionalBranch => self.reach(instruction.near_branch_target()),
                FlowControl::Call if calls && instruction.op0_kind() == OpKind::NearBranch64 => {
                    self.reach(instruction.near_branch_target());
                }
                FlowControl::Return | FlowControl::IndirectBranch | FlowControl::Exception => {
                    return;
                }
                _ => {}
            }
            if self.takes {
                self.reach_taken(&instruction);
            }
            code = &code[instruction.len().min(code.len())..];
            ip = instruction.next_ip();
            // Behind a call that does not return lies another function, mostly after a gap.
            if instruction.flow_control() == FlowControl::Call
                && is_gap(&self.features.decode(code, ip).0)
            {
                return;
            }
        }
    }

    /// Follows the address of a function that an instruction takes, as for a thread or a parallel region.
    fn reach_taken(&mut self, instruction: &Instruction) {
        match instruction.code() {
            Code::Lea_r64_m if instruction.is_ip_rel_memory_operand() => {
                self.reach(instruction.ip_rel_memory_address())
            }
            Code::Mov_rm64_imm32 | Code::Mov_r32_imm32 if self.elf.fixed => {
                self.reach(instruction.immediate(1))
            }
            _ => {}
        }
    }
}
