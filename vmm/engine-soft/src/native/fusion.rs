//! Load/store fusion: one look-up serves a load and a store to the loaded address soon after it, as in `y[i] += a * x[i]`.
//!
//! Between load and store there are only instructions on vector registers. These instructions cannot change the address of the cache line
//! and cannot fault: translated code uses vector registers only while all floating-point exceptions are masked ([`super::Native`]). So load
//! and store are looked up as one read-modify-write access. If this look-up finds no writable line, load and store are looked up
//! individually, out of line.

use iced_x86::{Instruction, OpKind, Register};

use super::assembler::{Label, cc};
use super::coalescing::OperandLookup;
use super::code_map::Part;
use super::emit::Emitter;
use super::out_of_line::{EmitterState, SlowPath};
use super::plan::{Memory, Passthrough, Plan};

use Register::AL;

/// Largest number of instructions from a load to its store, both included.
pub const MAX_DISTANCE: usize = 8;

/// Slow path of a fused pair, to be emitted out of line. It repeats all instructions of the pair, with individual look-ups.
pub struct FusedPair {
    entry: Label,
    resume: Label,
    /// Index of the load among the block's operations.
    first: usize,
    operations: Vec<Passthrough>,
    /// State of the emitter at the look-up.
    state: EmitterState,
}

/// Returns the plan of an instruction with only vector registers and at most a memory operand; none for other instructions.
fn vector_only<'a>(i: &Instruction, plan: &'a Plan) -> Option<&'a Passthrough> {
    let Plan::Passthrough(p) = plan else {
        return None;
    };
    let vectors = (0..i.op_count())
        .filter(|&n| i.op_kind(n) == OpKind::Register)
        .all(|n| i.op_register(n).is_vector_register());
    let flags = p.flags_in || p.flags_out || p.preset_flags;
    (p.vector && vectors && !flags && !p.rax && !p.cl && p.count.is_none()).then_some(p)
}

/// Returns, for each load of a block that can be fused with a store, the index of this store in the block; None for all other instructions.
pub fn find_fused_pairs(instructions: &[Instruction], plans: &[Plan]) -> Vec<Option<usize>> {
    let mut pairs = vec![None; plans.len()];
    let mut behind = 0;
    for first in 0..plans.len() {
        if first >= behind
            && let Some(last) = fusible_store(&instructions[first..], &plans[first..])
        {
            pairs[first] = Some(first + last);
            behind = first + last + 1;
        }
    }
    pairs
}

/// Returns the index in `instructions` of the store that can be fused with the first instruction; none if the first instruction is no load
/// or no store suits.
fn fusible_store(instructions: &[Instruction], plans: &[Plan]) -> Option<usize> {
    let address = |i: &Instruction| {
        (
            i.memory_base(),
            i.memory_index(),
            i.memory_index_scale(),
            i.memory_displacement64(),
        )
    };
    let load = &instructions[0];
    let read = vector_only(load, &plans[0])?.memory?;
    if !read.read || read.write || read.conditional {
        return None;
    }
    if matches!(load.memory_segment(), Register::FS | Register::GS) {
        return None;
    }
    for (k, (i, plan)) in instructions
        .iter()
        .zip(plans)
        .enumerate()
        .take(MAX_DISTANCE)
        .skip(1)
    {
        let Some(memory) = vector_only(i, plan)?.memory else {
            continue;
        };
        let store = memory.write && !memory.read && !memory.conditional;
        let same = memory.size == read.size
            && address(i) == address(load)
            && i.memory_segment() == load.memory_segment();
        return (store && same).then_some(k);
    }
    None
}

impl Emitter {
    /// Emits a fused pair. `plans` are all instructions from the load, which is operation `first` of the block, to the store.
    pub fn fused_pair(&mut self, first: usize, plans: &[Plan]) {
        let operations: Vec<Passthrough> = plans
            .iter()
            .filter_map(|plan| match plan {
                Plan::Passthrough(p) => Some((**p).clone()),
                _ => None,
            })
            .collect();
        let both = [operations.first(), operations.last()]
            .into_iter()
            .flatten()
            .filter_map(|p| p.memory)
            .reduce(|load, store| Memory {
                write: true,
                aligned: load.aligned || store.aligned,
                non_temporal: store.non_temporal,
                ..load
            })
            .expect("load and store have an operand in memory");
        let load = operations[0].instruction;
        let [entry, miss, found, resume] = [(); 4].map(|()| self.a.label());
        self.clobber_flags();
        let state = self.state();
        let address = self.plain_address(&load);
        self.within(Part::LookUp, |e| {
            e.address(&load);
            e.compare(both, miss);
            if both.aligned {
                let mask = both.size as i32 - 1;
                e.a.ri(iced_x86::Code::Test_rm8_imm8, AL, mask);
                e.a.jcc(cc::NE, entry);
            }
            e.add_host_address();
        });
        self.a.bind(found);
        let last = first + operations.len() - 1;
        self.slow_paths.push(SlowPath {
            entry: miss,
            resume: found,
            interpret: entry,
            memory: both,
            address,
            operations: [first, last],
            fallback: Some(entry),
        });
        for operation in [first, last] {
            self.operand_lookups[operation] = OperandLookup::AddressInRax;
        }
        self.operations_of_pair(first, &operations);
        for operation in [first, last] {
            self.operand_lookups[operation] = OperandLookup::Individual;
        }
        self.a.bind(resume);
        self.fused_pairs.push(FusedPair {
            entry,
            resume,
            first,
            operations,
            state,
        });
    }

    fn operations_of_pair(&mut self, first: usize, operations: &[Passthrough]) {
        for (k, p) in operations.iter().enumerate() {
            let emitted = self.passthrough(p, first + k);
            assert!(emitted, "vector registers need no others");
        }
    }

    /// Emits the slow paths of fused pairs, out of line.
    pub fn emit_pair_slow_paths(&mut self) {
        self.a.part(Part::Operation);
        for pair in std::mem::take(&mut self.fused_pairs) {
            self.a.bind(pair.entry);
            self.restore_state(pair.state);
            self.operations_of_pair(pair.first, &pair.operations);
            self.a.jmp(pair.resume);
        }
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::*;

    use super::super::plan::planned;
    use super::*;

    fn found(code: impl FnOnce(&mut CodeAssembler)) -> Vec<(usize, usize)> {
        let (instructions, plans) = planned(code);
        let pairs = find_fused_pairs(&instructions, &plans)
            .into_iter()
            .enumerate();
        pairs.filter_map(|(k, last)| Some((k, last?))).collect()
    }

    #[test]
    fn a_load_and_a_store_to_the_same_place_are_fused() {
        let daxpy = found(|a| {
            a.movupd(xmm0, xmmword_ptr(rdi + rax)).unwrap();
            a.movupd(xmm2, xmmword_ptr(rsi + rax)).unwrap();
            a.mulpd(xmm0, xmm1).unwrap();
            a.addpd(xmm0, xmm2).unwrap();
            a.movups(xmmword_ptr(rsi + rax), xmm0).unwrap();
            a.add(rax, 16).unwrap();
        });
        assert_eq!(daxpy, [(1, 4)]);
        let fused = found(|a| {
            a.vfmadd213pd(ymm0, ymm1, ymmword_ptr(rsi + rax)).unwrap();
            a.vmovupd(ymmword_ptr(rsi + rax), ymm0).unwrap();
            a.vaddsd(xmm3, xmm4, qword_ptr(rsi + 8)).unwrap();
            a.vmovsd(qword_ptr(rsi + 8), xmm3).unwrap();
        });
        assert_eq!(fused, [(0, 1), (2, 3)]);
    }

    #[test]
    fn accesses_changed_addresses_and_other_registers_prevent_fusion() {
        type Between = fn(&mut CodeAssembler);
        let between: [Between; 5] = [
            |a| a.addpd(xmm1, xmmword_ptr(rbx)).unwrap(),
            |a| a.movups(xmmword_ptr(rbx), xmm1).unwrap(),
            |a| a.add(rsi, 16).unwrap(),
            |a| a.ucomisd(xmm0, xmm1).unwrap(),
            |a| a.cvttsd2si(rcx, xmm0).unwrap(),
        ];
        for between in between {
            let pairs = found(|a| {
                a.movupd(xmm0, xmmword_ptr(rsi)).unwrap();
                between(a);
                a.movups(xmmword_ptr(rsi), xmm0).unwrap();
            });
            assert_eq!(pairs, []);
        }
        let elsewhere = found(|a| {
            a.movupd(xmm0, xmmword_ptr(rsi)).unwrap();
            a.movups(xmmword_ptr(rsi + 16), xmm0).unwrap();
            a.movsd_2(xmm0, qword_ptr(rsi)).unwrap();
            a.movups(xmmword_ptr(rsi), xmm0).unwrap();
        });
        assert_eq!(elsewhere, []);
    }
}
