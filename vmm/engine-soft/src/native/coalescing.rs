//! Address coalescing: one look-up serves several operands of a block.
//!
//! Often the addresses of a block's operands differ by a constant: fields of a structure, variables in a stack frame, memory that is read
//! and then written. Such operands form a *span*. The first of them looks up the whole span, and the span's host address is stored for the
//! others. Only blocks without a model do so, since a model counts each reference and each line.
//!
//! A span may cross the end of its page, or the page may not permit all accesses. Then each operand is looked up individually, out of line.
//! Operands are also looked up individually after an operation of the interpreter, which may have changed translations of pages.

use iced_x86::{Code, Instruction, InstructionInfoFactory, Register};

use super::assembler::{Label, at_offset, cc, field_of_cpu};
use super::code_map::Part;
use super::emit::{Emitter, number};
use super::out_of_line::SlowPath;
use super::plan::{Memory, Plan};
use super::runtime::field;

use Register::{AL, CL, RAX, RCX};

/// Number of spans whose host addresses can be stored at a time.
pub const SPAN_SLOTS: usize = 4;
/// Largest length of a span in bytes. At a random address, one in sixteen of the longest spans crosses the end of a page.
const MAX_SPAN: i64 = 256;

/// How an operand is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandLookup {
    /// By its own look-up.
    Individual,
    /// As the first operand of a span, which looks up the whole span.
    FirstOfSpan(Span),
    /// As a later operand of a span, by the stored host address of the span.
    InSpan(Span),
    /// Without a look-up: the host address is in RAX already.
    AddressInRax,
}

/// A span: bytes that one look-up serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index into [`super::Native::span_hosts`].
    slot: usize,
    /// Lowest displacement of the span's operands.
    lowest: i64,
    /// Length of the span in bytes.
    len: u32,
    /// True if some operand of the span is written.
    write: bool,
}

/// Parts of an address that all operands of a span share. The operands' addresses differ only in the displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    base: Register,
    index: Register,
    scale: u32,
}

/// Operands that may form a span.
struct Group {
    key: Key,
    members: Vec<usize>,
    lowest: i64,
    end: i64,
    write: bool,
    /// True if a register of the key has changed, or the interpreter may have run, so that the group takes no more operands.
    closed: bool,
}

fn operand(i: &Instruction, plan: &Plan) -> Option<(Key, i64, Memory)> {
    let Plan::Passthrough(p) = plan else {
        return None;
    };
    let memory = p.memory.filter(|memory| !memory.conditional)?;
    if matches!(i.memory_segment(), Register::FS | Register::GS) {
        return None;
    }
    let rip = i.memory_base() == Register::RIP;
    let key = Key {
        base: if rip { Register::None } else { i.memory_base() },
        index: i.memory_index(),
        scale: i.memory_index_scale(),
    };
    Some((key, i.memory_displacement64() as i64, memory))
}

/// Returns how the operand of each instruction in a block is looked up. Operands of fused pairs ([`super::fusion`]) do not join spans.
pub fn coalesce_addresses(
    instructions: &[Instruction],
    plans: &[Plan],
    fused_pairs: &[Option<usize>],
    factory: &mut InstructionInfoFactory,
) -> Vec<OperandLookup> {
    let paired =
        |k| fused_pairs.get(k).is_some_and(Option::is_some) || fused_pairs.contains(&Some(k));
    let mut lookups = vec![OperandLookup::Individual; plans.len()];
    let mut groups: Vec<Group> = Vec::new();
    for (k, (i, plan)) in instructions.iter().zip(plans).enumerate() {
        if let Some((key, at, memory)) = operand(i, plan)
            && !paired(k)
        {
            let end = at.wrapping_add(memory.size.into());
            let fits = |g: &&mut Group| {
                let len = g.end.max(end).wrapping_sub(g.lowest.min(at));
                !g.closed && g.key == key && (0..=MAX_SPAN).contains(&len)
            };
            match groups.iter_mut().rev().find(fits) {
                Some(group) => {
                    group.members.push(k);
                    group.lowest = group.lowest.min(at);
                    group.end = group.end.max(end);
                    group.write |= memory.write;
                }
                None if at < end => groups.push(Group {
                    key,
                    members: vec![k],
                    lowest: at,
                    end,
                    write: memory.write,
                    closed: false,
                }),
                None => {}
            }
        }
        let all = matches!(plan, Plan::Interpret | Plan::System(_));
        let written = super::flags::written(i, factory);
        for group in &mut groups {
            let Key { base, index, .. } = group.key;
            let changed = [base, index]
                .iter()
                .any(|r| *r != Register::None && written & 1 << number(*r) != 0);
            group.closed |= all || changed;
        }
    }
    groups.retain(|g| g.members.len() > 1);
    // Index of the last operation that uses each slot.
    let mut free = [None; SPAN_SLOTS];
    for group in &groups {
        let (first, last) = (group.members[0], group.members.last().copied());
        let Some(slot) = free.iter().position(|behind| *behind < Some(first)) else {
            continue;
        };
        free[slot] = last;
        let span = Span {
            slot,
            lowest: group.lowest,
            len: (group.end - group.lowest) as u32,
            write: group.write,
        };
        for &k in &group.members {
            lookups[k] = OperandLookup::InSpan(span);
        }
        lookups[first] = OperandLookup::FirstOfSpan(span);
    }
    lookups
}

/// Individual look-up of a span's operand, to be emitted out of line.
pub struct UncoalescedOperand {
    entry: Label,
    resume: Label,
    /// Entry to the interpreter call for the operation.
    interpret: Label,
    instruction: Instruction,
    memory: Memory,
    /// Offset in bytes of the operand from the span's first byte.
    offset: i32,
    /// Number of the operation.
    operation: usize,
    /// The slot to clear, if the operand is the one that looks up the span.
    cleared_slot: Option<usize>,
}

fn span_host(slot: usize) -> iced_x86::MemoryOperand {
    field_of_cpu(field!(span_hosts) + 8 * slot)
}

impl Emitter {
    /// Emits the look-up of an instruction's memory operand. The operand's host address is RAX plus the returned displacement.
    pub fn coalesced_operand(&mut self, i: &Instruction, memory: Memory, operation: usize) -> i32 {
        let (span, first) = match self.operand_lookups[operation] {
            OperandLookup::Individual => {
                self.operand(i, memory, operation);
                return 0;
            }
            OperandLookup::AddressInRax => return 0,
            OperandLookup::FirstOfSpan(span) => (span, true),
            OperandLookup::InSpan(span) => (span, false),
        };
        self.clobber_flags();
        let interpret = self.interpreter_entry(operation);
        let (entry, resume) = (self.a.label(), self.a.label());
        let offset = (i.memory_displacement64() as i64).wrapping_sub(span.lowest) as i32;
        let outer = self.a.part(Part::LookUp);
        if first {
            let mut lowest = *i;
            lowest.set_memory_displacement64(span.lowest as u64);
            self.address(&lowest);
            let whole = Memory {
                size: span.len,
                write: span.write,
                ..memory
            };
            self.compare(whole, entry);
            self.add_host_address();
            self.a.mr(Code::Mov_rm64_r64, span_host(span.slot), RAX);
        } else {
            self.a.rm(Code::Mov_r64_rm64, RAX, span_host(span.slot));
            self.a.rr(Code::Test_rm64_r64, RAX, RAX);
            self.a.jcc(cc::E, entry);
        }
        if memory.aligned {
            // Host addresses of pages are page-aligned, so the host address shows the operand's alignment.
            let mask = memory.size as i32 - 1;
            if offset & mask == 0 {
                self.a.ri(Code::Test_rm8_imm8, AL, mask);
            } else {
                let at = at_offset(RAX, offset.into());
                self.a.rm(Code::Lea_r64_m, RCX, at);
                self.a.ri(Code::Test_rm8_imm8, CL, mask);
            }
            self.a.jcc(cc::NE, interpret);
        }
        self.a.bind(resume);
        self.uncoalesced.push(UncoalescedOperand {
            entry,
            resume,
            interpret,
            instruction: *i,
            memory,
            offset,
            operation,
            cleared_slot: first.then_some(span.slot),
        });
        self.a.part(outer);
        offset
    }

    /// Emits the individual look-ups of spans' operands, out of line.
    pub fn emit_uncoalesced(&mut self) {
        self.a.part(Part::LookUp);
        for operand in std::mem::take(&mut self.uncoalesced) {
            self.a.bind(operand.entry);
            if let Some(slot) = operand.cleared_slot {
                self.a.mi(Code::Mov_rm64_imm32, span_host(slot), 0);
            }
            self.address(&operand.instruction);
            let miss = self.a.label();
            self.compare(operand.memory, miss);
            if operand.memory.aligned {
                let mask = operand.memory.size as i32 - 1;
                self.a.ri(Code::Test_rm8_imm8, AL, mask);
                self.a.jcc(cc::NE, operand.interpret);
            }
            self.add_host_address();
            let found = self.a.label();
            self.a.bind(found);
            self.a.rm(
                Code::Lea_r64_m,
                RAX,
                at_offset(RAX, -i64::from(operand.offset)),
            );
            self.a.jmp(operand.resume);
            self.slow_paths.push(SlowPath {
                entry: miss,
                resume: found,
                interpret: operand.interpret,
                memory: operand.memory,
                address: None,
                operations: [operand.operation; 2],
                fallback: None,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::*;

    use super::super::plan::planned;
    use super::*;

    /// Returns a character for each instruction: `.` for an individual look-up, a capital letter for the first operand of a span, and the
    /// small letter for the span's other operands.
    fn spans(code: impl FnOnce(&mut CodeAssembler)) -> String {
        let (instructions, plans) = planned(code);
        let mut factory = InstructionInfoFactory::new();
        let name = |span: Span| (b'a' + span.slot as u8) as char;
        coalesce_addresses(&instructions, &plans, &[], &mut factory)
            .into_iter()
            .map(|lookup| match lookup {
                OperandLookup::Individual | OperandLookup::AddressInRax => '.',
                OperandLookup::FirstOfSpan(span) => name(span).to_ascii_uppercase(),
                OperandLookup::InSpan(span) => name(span),
            })
            .collect()
    }

    #[test]
    fn fields_of_a_structure_are_one_span() {
        let found = spans(|a| {
            a.mov(rax, qword_ptr(rbx + 16)).unwrap();
            a.add(rax, qword_ptr(rbx + rcx * 4)).unwrap();
            a.mov(qword_ptr(rbx + 8), rax).unwrap();
            a.add(rax, qword_ptr(rbx + rcx * 4 + 64)).unwrap();
            a.mov(rdx, qword_ptr(rbx + rcx * 8 + 64)).unwrap();
        });
        assert_eq!(found, "ABab.");
    }

    #[test]
    fn a_span_ends_where_a_register_of_its_address_changes() {
        let found = spans(|a| {
            a.mov(rax, qword_ptr(rbx)).unwrap();
            // The address is computed before the register changes.
            a.mov(rbx, qword_ptr(rbx + 8)).unwrap();
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.mov(rdx, qword_ptr(rbx + 8)).unwrap();
            a.add(ebx, 8).unwrap();
            a.mov(rdx, qword_ptr(rbx)).unwrap();
        });
        assert_eq!(found, "AaAa..");
    }

    #[test]
    fn distant_conditional_and_segmented_operands_are_looked_up_individually() {
        let found = spans(|a| {
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.mov(rax, qword_ptr(rbx + 0x1000)).unwrap();
            a.cmpxchg(qword_ptr(rbx), rdx).unwrap();
            a.mov(rax, qword_ptr(rbx).gs()).unwrap();
            a.mov(rax, qword_ptr(rbx + 248)).unwrap();
            a.mov(rax, qword_ptr(rbx + 249)).unwrap();
        });
        assert_eq!(found, "A...a.");
    }

    #[test]
    fn the_interpreter_ends_spans() {
        let found = spans(|a| {
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.fnop().unwrap();
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.mov(rax, qword_ptr(rbx + 8)).unwrap();
        });
        assert_eq!(found, "..Aa");
    }

    #[test]
    fn no_more_spans_are_kept_than_there_are_slots() {
        let found = spans(|a| {
            for _ in 0..2 {
                for base in [rbx, rcx, rdx, rsi, rdi] {
                    a.mov(rax, qword_ptr(base)).unwrap();
                }
            }
        });
        assert_eq!(found, "ABCD.abcd.");
    }
}
