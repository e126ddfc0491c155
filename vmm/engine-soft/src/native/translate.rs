//! Emits the translation block of a basic block.

use iced_x86::{Code, Instruction, InstructionInfoFactory, Register};

use super::assembler::{Assembler, Label, cc, field_of_cpu, indexed_field};
use super::coalescing::{OperandLookup, coalesce_addresses};
use super::code_map::{self, Part};
use super::emit::Emitter;
use super::jump_cache::{self, JumpCache, JumpCacheEntry};
use super::out_of_line::EmitterState;
use super::plan::{Branch, Plan, System, plan};
use super::prologue::PrologueInputs;
use super::registers::STACK;
use super::runtime::{field, routines};
use super::{Arena, CodeAddress, PACKED_BITS, SHARED_EXIT, TranslationBlock};
use crate::block::{Block, HostCode};
use crate::cpu::{Cpu, Mode};
use crate::features::GuestDecoder;
use crate::fetch::MAX_INSTRUCTION;
use crate::memory::is_canonical;
use crate::site::RunningSite;

use Register::{RAX, RCX};

/// Most operations of a block with two prologues, whose operations are emitted twice.
const LONGEST_LOOP: usize = 32;

/// A direct exit whose out-of-line part is still to be emitted.
struct Pending {
    stub: Label,
    exit_number: u32,
}

impl Cpu {
    /// Translates a block for a linear address. Returns None where the block cannot be translated, the memory for code is used up, or the
    /// host gives no executable memory.
    #[cold]
    #[inline(never)]
    pub(super) fn translate_block(&mut self, block: &Block, ip: u64) -> Option<CodeAddress> {
        if self.attached && block.second_page != 0 {
            // The block is one instruction whose lines lie in two pages.
            return None;
        }
        if !block.is_current() || !self.prepare_arena() {
            return None;
        }
        let Some(instructions) = self.instructions_of(block, ip) else {
            block.never_translate();
            return None;
        };
        self.emit_or_forget(block, ip, &instructions)
    }

    /// Emits a block. On failure, removes the block's exits, which are never reached.
    pub(super) fn emit_or_forget(
        &mut self,
        block: &Block,
        ip: u64,
        instructions: &[Instruction],
    ) -> Option<CodeAddress> {
        let first_exit = self.code().translation_cache.exits.len();
        let code = self.emit_block(block, ip, instructions);
        if code.is_none() {
            self.code().translation_cache.exits.truncate(first_exit);
        }
        code
    }

    pub(super) fn prepare_arena(&mut self) -> bool {
        if self.code().translation_cache.arena.is_some() {
            return true;
        }
        let host = self.native.host;
        let made = Arena::new(self.code().translation_cache.room)
            .map_err(|e| e.to_string())
            .and_then(|mut arena| {
                let (code, routines) = routines(arena.next(), host).map_err(|e| {
                    // A template is wrong; the host does not matter.
                    debug_assert!(false, "{e}");
                    format!("cannot assemble the translator's routines: {e}")
                })?;
                let pushed = arena
                    .push(&code, &[])
                    .ok_or("no room for the translator's routines")?;
                arena.keep();
                Ok((arena, routines, pushed.at(routines.enter)))
            });
        match made {
            Ok((arena, routines, enter)) => {
                let cache = &mut self.code().translation_cache;
                cache.arena = Some(arena);
                cache.routines = routines;
                cache.enter = enter;
                true
            }
            Err(error) => {
                // Results are the same; only the speed differs.
                tracing::warn!("interpreting, since {error}");
                self.native.enabled = false;
                false
            }
        }
    }

    /// Decodes the block's bytes again. Returns None if the instructions do not agree with the block's operations.
    pub(super) fn instructions_of(&self, block: &Block, ip: u64) -> Option<Vec<Instruction>> {
        let mut bytes = vec![0_u8; block.len() as usize];
        let in_first = (block.len() as usize).min(4096 - (block.physical & 0xfff) as usize);
        self.copy_physical(block.physical, &mut bytes[..in_first])?;
        self.copy_physical(block.second_page, &mut bytes[in_first..])?;
        let mut decoder = GuestDecoder::new(self.features, Mode::Bits64, &bytes, ip);
        let instructions: Vec<_> = block.ops().iter().map(|_| decoder.decode()).collect();
        let agree = instructions
            .iter()
            .zip(block.ops().iter())
            .all(|(i, op)| i.len() == usize::from(op.len) && !i.is_invalid());
        agree.then_some(instructions)
    }

    pub(crate) fn copy_physical(&self, from: u64, to: &mut [u8]) -> Option<()> {
        if to.is_empty() {
            return Some(());
        }
        let region = self.ram.region(from)?;
        let offset = (from - region.start) as usize;
        if offset + to.len() > region.len as usize {
            return None;
        }
        // SAFETY: the bytes lie within the region, which the host has mapped.
        unsafe {
            std::ptr::copy_nonoverlapping(region.host.add(offset), to.as_mut_ptr(), to.len());
        }
        Some(())
    }

    fn emit_block(
        &mut self,
        block: &Block,
        ip: u64,
        instructions: &[Instruction],
    ) -> Option<CodeAddress> {
        let kernel = self.cpl != 3;
        let lines: Vec<u64> = if self.attached {
            let shift = self.instruction_l0.shift();
            let last = block.physical + u64::from(block.len().max(1)) - 1;
            (block.physical >> shift..=last >> shift)
                .map(|l| l << shift)
                .collect()
        } else {
            Vec::new()
        };
        let fetches = lines.len() as u64;
        let site = if self.attached {
            RunningSite::of_block(self.number_of(block, ip))
        } else {
            RunningSite::NONE
        };
        // All counts of a block with a record follow from the record's executions.
        let recorded = self.profiling() && site.block() != 0;
        let counts = self.attached && !recorded;
        let packed = if counts {
            fetches
                | u64::from(block.decoded.stores) << PACKED_BITS
                | u64::from(block.decoded.loads) << (2 * PACKED_BITS)
        } else {
            0
        };
        let translation = Box::new(TranslationBlock {
            site,
            recorded,
            decoded: block.decoded.clone(),
            block: if self.attached {
                block
            } else {
                std::ptr::null()
            },
            ip,
            code: block.code_span(block.len()),
            count: block.ops().len() as u32,
            cost: block.cost,
            mode: self.mode,
            privilege: usize::from(kernel),
            packed,
            flops: match &block.decoded.flops {
                Some(flops) if counts => **flops,
                _ => Default::default(),
            },
        });
        let arena = self.code().translation_cache.arena.as_ref()?;
        let (base, out_of_line_base) = (arena.next(), arena.next_out_of_line());
        let mut factory = InstructionInfoFactory::new();
        let host = self.native.host;
        let unknown = crate::ops::system::unknown as *const ();
        let plans: Vec<Plan> = instructions
            .iter()
            .zip(block.ops().iter())
            .map(|(i, op)| {
                if std::ptr::eq(op.handler as *const (), unknown) {
                    Plan::Interpret
                } else {
                    plan(i, &mut factory, host)
                }
            })
            .collect();
        let vectors = plans
            .iter()
            .any(|p| matches!(p, Plan::Passthrough(p) if p.vector));

        let fused_pairs = super::fusion::find_fused_pairs(instructions, &plans);
        let operand_lookups = if self.attached {
            vec![OperandLookup::Individual; plans.len()]
        } else {
            coalesce_addresses(instructions, &plans, &fused_pairs, &mut factory)
        };
        let routines = self.code().translation_cache.routines;
        let mut e = Emitter::new(
            Assembler::new(base, out_of_line_base),
            self.data_tlb.layout(),
            (kernel, self.attached),
            routines,
            (&raw const *translation as u64, translation.count),
            super::flags::flags_needed_after(&plans),
            operand_lookups,
        );
        e.site = self.attached.then_some(site);
        e.by_block = self.by_block;
        let start = e.a.label();
        let mut exits = Exits {
            pending: Vec::new(),
            page: (block.second_page == 0).then_some(ip >> 12),
            ip,
            start,
            loop_prologue: None,
            table: field!(jump_cache) + JumpCache::l1_table(usize::from(!kernel)),
        };
        e.a.part(Part::Prologue);
        let load_vectors = e.a.label();
        let vectors_loaded = e.a.label();
        if vectors {
            e.a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_live)), 0);
            e.a.jcc(cc::E, load_vectors);
            e.a.bind(vectors_loaded);
        }
        e.a.bind(start);
        let inputs = PrologueInputs {
            translation: &translation,
            lines: &lines,
            routines,
        };
        let body = Body {
            instructions,
            plans: &plans,
            fused_pairs: &fused_pairs,
        };
        let mut prologues = vec![self.emit_prologue(&mut e, inputs)];
        e.a.part(Part::Operation);
        self.operations(&mut e, &mut exits, &body, &mut factory)?;
        if let Some((loop_prologue, state)) = exits.loop_prologue {
            e.a.part(Part::Prologue);
            e.a.bind(loop_prologue);
            e.restore_state(state);
            prologues.push(self.emit_prologue(&mut e, inputs));
            e.a.part(Part::Operation);
            self.operations(&mut e, &mut exits, &body, &mut factory)?;
        }
        e.a.begin_out_of_line();
        e.emit_out_of_line();
        e.a.part(Part::Prologue);
        let exit_number = self.code().translation_cache.push_exit(ip, None);
        for prologue in &prologues {
            self.emit_prologue_slow_paths(&mut e, prologue, inputs, exit_number);
        }
        e.a.bind(load_vectors);
        if vectors {
            e.a.mi(
                Code::Mov_rm32_imm32,
                field_of_cpu(field!(exit)),
                exit_number as i32,
            );
            e.a.call_to(routines.load_vectors);
            e.a.jcc(cc::NE, vectors_loaded);
            e.a.jmp_to(routines.leave_to_interpret);
        } else {
            e.a.bind(vectors_loaded);
        }
        e.a.part(Part::Branch);
        // Chain slots lead to these stubs until the exits are chained.
        let mut stubs = Vec::new();
        for pending in exits.pending {
            e.a.bind(pending.stub);
            let number = pending.exit_number & !SHARED_EXIT;
            let block_exit = self.code().translation_cache.exits[number as usize];
            stubs.extend(
                block_exit
                    .chain_slot
                    .map(|chain_slot| (chain_slot, e.a.here())),
            );
            e.a.mi(
                Code::Mov_rm32_imm32,
                field_of_cpu(field!(exit)),
                pending.exit_number as i32,
            );
            // The stub of an exit without a chain slot has the target's address in RCX.
            let in_tables = block_exit.chain_slot.is_none() && is_canonical(block_exit.ip);
            e.a.jmp_to(if in_tables {
                routines.leave_across[usize::from(!kernel)]
            } else {
                routines.leave
            });
        }
        code_map::note(e.a.pieces());
        let (in_line, out_of_line) = match e.a.finish() {
            Ok(code) => code,
            Err(error) => {
                tracing::error!(ip, %error, "a block could not be encoded and is interpreted");
                debug_assert!(false, "{error}");
                block.never_translate();
                return None;
            }
        };
        let arena = self.code().translation_cache.arena.as_mut()?;
        let Some(pushed) = arena.push(&in_line, &out_of_line) else {
            self.code().translation_cache.full = true;
            return None;
        };
        for (chain_slot, stub) in stubs {
            arena.set_chain_slot(chain_slot, pushed.at(stub).expect("stubs lie out of line"));
        }
        let code = pushed.start();
        let page = self.code().translation_cache.page;
        block.add_native(self.host_code(ip, code, page));
        self.code().translation_cache.blocks.push(translation);
        Some(code)
    }

    /// Returns the record of host code for this vCPU's mode and privilege.
    pub(super) fn host_code(
        &self,
        ip: u64,
        code: CodeAddress,
        page: Option<super::SharedPage>,
    ) -> HostCode {
        HostCode {
            ip,
            code,
            page,
            key: self.code_key,
            attached: self.attached,
        }
    }

    /// Emits all operations of a block, after one of its prologues. Returns None if no chain slot is free.
    fn operations(
        &mut self,
        e: &mut Emitter,
        exits: &mut Exits,
        body: &Body<'_>,
        factory: &mut InstructionInfoFactory,
    ) -> Option<()> {
        let &Body {
            instructions,
            plans,
            fused_pairs,
        } = body;
        let mut ended = false;
        let unit = self.data_tlb.layout().unit;
        let mut next_operation = 0;
        for (k, (i, p)) in instructions.iter().zip(plans).enumerate() {
            if k < next_operation {
                continue;
            }
            if let Some((length, returns)) =
                super::stack::push_pop_run(&instructions[k..], &plans[k..], unit)
            {
                next_operation = k + length;
                let operations: Vec<_> = (k..next_operation)
                    .map(|k| {
                        let i = &instructions[k];
                        (k, *i, super::flags::written(i, factory))
                    })
                    .collect();
                let written = operations.iter().fold(0, |all, (_, _, w)| all | w);
                e.before_writes(k, written, false);
                let returns = returns.then_some(next_operation);
                e.push_pop_run(operations, matches!(p, Plan::Push), returns);
                e.after_writes(written, false);
                continue;
            }
            if let Some(last) = fused_pairs[k] {
                next_operation = last + 1;
                let written = instructions[k..=last].iter();
                let written = written.fold(0, |all, i| all | super::flags::written(i, factory));
                e.before_writes(k, written, false);
                e.fused_pair(k, &plans[k..=last]);
                e.after_writes(written, false);
                continue;
            }
            let (mut written, mut flags) = (0, false);
            if e.has_rematerialisation() {
                written = super::flags::written(i, factory);
                flags = matches!(p, Plan::Passthrough(p) if p.flags_out);
                e.before_writes(k, written, flags);
            }
            match p {
                Plan::Interpret => e.interpret(k),
                Plan::Nop => {}
                Plan::Passthrough(p) => {
                    if !e.passthrough(p, k) {
                        e.interpret(k);
                    }
                }
                Plan::Lea => e.lea(i),
                Plan::Push => e.push(i, k),
                Plan::Pop => e.pop(i, k),
                Plan::Leave => e.leave(k),
                Plan::PushMemory => e.push_memory(i, k),
                Plan::PopStackPointer => e.pop_stack_pointer(k),
                Plan::Divide { signed } => e.divide(i, *signed, k),
                Plan::System(what @ (System::Call | System::Return))
                    if what.suits(e.kernel, self.attached) =>
                {
                    ended = true;
                    match what {
                        System::Call => e.system_call(i.next_ip(), k),
                        _ => e.system_return(k),
                    }
                }
                Plan::String(what) if !self.attached => e.string(*what, k),
                Plan::String(_) => e.interpret(k),
                Plan::System(what) => {
                    if what.suits(e.kernel, self.attached) {
                        e.system(*what, k, plans.len() as i32);
                    } else {
                        e.interpret(k);
                    }
                }
                Plan::Branch(b) => {
                    ended = true;
                    e.a.part(Part::Branch);
                    self.branch(e, exits, i, *b, k)?;
                }
            }
            e.after_writes(written, flags);
        }
        if !ended {
            e.a.part(Part::Branch);
            e.save_flags();
            let next = instructions.last()?.next_ip();
            self.leave_to(e, exits, next)?;
        }
        Some(())
    }

    /// Returns the code for an address in the block's own page, where there is code. A direct jump can lead to that code. When the page's
    /// code changes, none of its blocks is found any more, so that nothing leads to the jump either. While the block runs, only its own
    /// stores can change the page, and such a store ends the block.
    fn known(&mut self, exits: &Exits, target: u64) -> Option<Known> {
        if exits.page != Some(target >> 12) {
            return None;
        }
        if target == exits.ip {
            return Some(Known::Start);
        }
        if let Some(page) = self.code().translation_cache.page {
            let key = self.code_key;
            let shared = &self.code().pool.translation_cache;
            return shared.find(page, target, key).map(Known::Code);
        }
        let entry = self.blocks.find(target, self.code_key)?;
        // SAFETY: the entry was just found: its block is alive.
        let block = unsafe { &*entry.block };
        if block.second_page != 0 || !block.is_current() {
            return None;
        }
        let native = block.native(target, self.code_key, self.attached)?;
        // Shared code may lie too far away for a jump.
        native.page.is_none().then_some(Known::Code(native.code))
    }

    /// Emits an exit to a constant address. The flags are in memory. Returns None if no chain slot is free.
    fn leave_to(&mut self, e: &mut Emitter, exits: &mut Exits, target: u64) -> Option<()> {
        match self.known(exits, target) {
            Some(Known::Start) => {
                e.a.jmp(exits.start);
                return Some(());
            }
            Some(Known::Code(code)) => {
                e.a.jmp_to(code.get());
                return Some(());
            }
            None => {}
        }
        let stub = e.a.label();
        let mut chain_slot = None;
        if exits.page == Some(target >> 12) && !may_cross(target) {
            // The slot gets the stub's address when the code is complete.
            let arena = self.code().translation_cache.arena.as_mut()?;
            let Some(new) = arena.allocate_chain_slot() else {
                self.code().translation_cache.full = true;
                return None;
            };
            e.a.jmp_through(arena.address_of(new));
            chain_slot = Some(new);
        } else {
            let slot = exits.table + JumpCache::l1_index(target) * size_of::<JumpCacheEntry>();
            e.a.constant(RCX, target);
            e.a.rm(Code::Cmp_r64_rm64, RCX, field_of_cpu(slot + jump_cache::IP));
            e.a.jcc(cc::NE, stub);
            e.a.m(Code::Jmp_rm64, field_of_cpu(slot + jump_cache::CODE));
        }
        let exit_number = self.code().translation_cache.push_exit(target, chain_slot);
        exits.pending.push(Pending { stub, exit_number });
        Some(())
    }

    /// Returns the label of the loop prologue, for a conditional jump to the block's own beginning. Returns None for other jumps, for long
    /// blocks, and where the flags, which are only in the host's flags, could not be rematerialised in the loop prologue.
    fn loop_prologue(&mut self, e: &mut Emitter, exits: &mut Exits, target: u64) -> Option<Label> {
        let lazy = e.flags_in_host && !e.flags_in_memory && e.flags_needed.len() <= LONGEST_LOOP;
        let to_start = matches!(self.known(exits, target), Some(Known::Start));
        if !lazy || e.rematerialisation.is_none() || !to_start {
            return None;
        }
        // The prologue clobbers the host's flags.
        let state = EmitterState {
            flags_in_host: false,
            ..e.state()
        };
        let (loop_prologue, _) = *exits
            .loop_prologue
            .get_or_insert_with(|| (e.a.label(), state));
        Some(loop_prologue)
    }

    fn branch(
        &mut self,
        e: &mut Emitter,
        exits: &mut Exits,
        i: &Instruction,
        branch: Branch,
        k: usize,
    ) -> Option<()> {
        let fall_through = i.next_ip();
        if let Branch::Conditional(condition) = branch
            && let Some(loop_prologue) = self.loop_prologue(e, exits, i.near_branch_target())
        {
            e.a.jcc(condition, loop_prologue);
            e.save_flags();
            return self.leave_to(e, exits, fall_through);
        }
        e.save_flags();
        match branch {
            Branch::Direct => {
                self.leave_to(e, exits, i.near_branch_target())?;
            }
            Branch::Conditional(condition) => {
                e.load_flags();
                let target = i.near_branch_target();
                match self.known(exits, target) {
                    Some(Known::Start) => e.a.jcc(condition, exits.start),
                    Some(Known::Code(code)) => e.a.jcc_to(condition, code.get()),
                    None => {
                        let taken = e.a.label();
                        e.a.jcc(condition, taken);
                        self.leave_to(e, exits, fall_through)?;
                        e.a.bind(taken);
                        return self.leave_to(e, exits, target);
                    }
                }
                self.leave_to(e, exits, fall_through)?;
            }
            Branch::Call => {
                e.stack(STACK, -8, true, k);
                e.store_constant(fall_through);
                e.move_stack(-8);
                self.leave_to(e, exits, i.near_branch_target())?;
                e.resume_by_interpreter(k);
            }
            Branch::Indirect => {
                e.value(i, k);
                e.jump(exits.table, 0, k);
                e.resume_by_interpreter(k);
            }
            Branch::CallIndirect => {
                e.value(i, k);
                e.check_canonical(k);
                e.a.store(field!(spill), RCX);
                e.stack(STACK, -8, true, k);
                e.store_constant(fall_through);
                e.a.load(RCX, field!(spill));
                e.jump(exits.table, -8, k);
                e.resume_by_interpreter(k);
            }
            Branch::Return(released) => {
                if !e.run_has_target(k) {
                    e.target_on_stack(k);
                }
                e.jump(exits.table, 8 + i64::from(released), k);
                e.resume_by_interpreter(k);
            }
        }
        Some(())
    }
}

/// Returns whether an instruction at this address may reach into the next page. A block of such an instruction depends on the translations
/// of two pages. Branches find this block by the jump cache, which is flushed when one of the translations may have changed.
fn may_cross(ip: u64) -> bool {
    (ip & 0xfff) + MAX_INSTRUCTION as u64 > 4096
}

/// Code that a block may jump to directly.
enum Known {
    /// The block's own code.
    Start,
    /// The code of another block of the page.
    Code(CodeAddress),
}

/// The instructions of a block, with their plans.
struct Body<'a> {
    instructions: &'a [Instruction],
    plans: &'a [Plan],
    /// Result of [`super::fusion::find_fused_pairs`].
    fused_pairs: &'a [Option<usize>],
}

/// The exits of a block that is being emitted.
struct Exits {
    pending: Vec<Pending>,
    /// Number of the page within which the block may be chained; None if the block lies in two pages.
    page: Option<u64>,
    /// Linear address of the block's first instruction.
    ip: u64,
    /// The first prologue. It lies after the check of vector registers, which a jump from the block itself need not repeat.
    start: Label,
    /// The loop prologue ([`super::prologue`]), and the emitter's state there.
    loop_prologue: Option<(Label, EmitterState)>,
    /// Offset of the L1 table of the jump cache for the block's privilege.
    table: usize,
}

impl Emitter {
    /// Emits a check that RCX is canonical (48 bits), and an exception where it is not. Uses RAX and flags.
    fn check_canonical(&mut self, operation: usize) {
        let raise =
            self.interpreter_entry(operation | super::runtime::NON_CANONICAL_TARGET as usize);
        self.leave_unless_canonical(raise);
    }

    /// Emits a change of the stack pointer and a jump to the instruction pointer in RCX. Uses RAX and flags.
    fn jump(&mut self, table: usize, stack: i64, operation: usize) {
        let elsewhere = self.a.label();
        jump_cache::emit_l1_offset(&mut self.a);
        self.a.rm(
            Code::Cmp_r64_rm64,
            RCX,
            indexed_field(table + jump_cache::IP, RAX),
        );
        self.a.jcc(cc::NE, elsewhere);
        if stack != 0 {
            self.move_stack(stack);
        }
        self.a
            .m(Code::Jmp_rm64, indexed_field(table + jump_cache::CODE, RAX));
        self.a.bind(elsewhere);
        self.check_canonical(operation);
        if stack != 0 {
            self.move_stack(stack);
        }
        let leave = self.routines.leave_indirect[usize::from(!self.kernel)];
        self.a.jmp_to(leave);
    }
}
