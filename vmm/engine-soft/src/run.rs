//! The run loop: interrupts, limits, blocks, traps.

use nodescope_engine::{EngineError, Exit, Limit, Platform, StopReport};
use nodescope_plugin_api::Counters;
use nodescope_x86::bits::rflags;
use nodescope_x86::state::{InterruptShadow, seg};
use nodescope_x86::{Exception, MpState, Vector};

use crate::cpu::Cpu;
use crate::fetch::MAX_BLOCK;
use crate::lookup::Entry;
use crate::native::{Budget, CodeAddress};
use crate::op::{Done, Flow, Op, RIP, Trap};
use crate::time_slice::TimeSlice;

/// Cycles of an exception if no instruction retired since the last exception. Other exceptions are part of the nominal CPI. Without these
/// cycles, a guest whose handlers fault at once would stop the study's clock. The number is about the cost of delivery on a processor.
const DELIVERY_CYCLES: u64 = 100;

/// Maximum number of instructions of a block behind its first instruction.
const LAST: i64 = MAX_BLOCK as i64 - 1;

/// Reason for which the inner loop ended.
enum End {
    /// The budget is spent, or the run loop must check the machine.
    Look,
    /// The vCPU executed HLT.
    Halt,
    /// An operation trapped.
    Trap,
}

/// Next step of the run loop.
enum Next {
    /// Translated code at this address. After this many instructions, no further block may begin.
    Code(CodeAddress, i64),
    /// A block that the interpreter executes.
    Block(Entry),
}

impl Cpu {
    /// Returns the vCPU's clock in cycles at the running operation: the time for the guest and its devices. The time does not depend on
    /// where budgets end. It does not depend on where blocks begin either, unless blocks have costs of their own.
    pub fn now(&self) -> u64 {
        let executed = match self.by_block {
            true => 0,
            false => executed(self.block_start, self.current),
        };
        self.clock_at(self.work + executed)
    }

    /// Returns the clock at the beginning of the running block, plus the stalls since then, in cycles. A model sees the block's references
    /// as simultaneous, except for stalls.
    pub fn now_at_block_start(&self) -> u64 {
        self.clock_at(self.work)
    }

    fn clock_at(&self, work: u64) -> u64 {
        self.time.cycles + self.stall + (self.fixed(work) >> 16)
    }

    /// Returns the time of so much work since the clock was last synchronised, in 1/65536 of a cycle.
    fn fixed(&self, work: u64) -> u64 {
        work * u64::from(self.cpi.value()) + u64::from(self.time.cycle_fraction)
    }

    /// Returns the run loop's budget at the beginning of the running block, in 1/65536 of a cycle, if blocks may begin until the clock
    /// shows `until`. `until` must not have passed.
    pub fn budget_at_block_start(&self, until: u64) -> i64 {
        let cycles = until - self.now_at_block_start();
        let fraction = self.fixed(self.work) & 0xffff;
        ((cycles.min(1 << 40) << 16) - fraction) as i64
    }

    /// Returns the instructions retired since power-on, at the beginning of the running block.
    pub fn instructions(&self) -> u64 {
        self.time.instructions + self.retired
    }

    /// Returns the machine around the running vCPU.
    pub fn platform(&mut self) -> &mut dyn Platform {
        let mut p = self.platform.expect("called only below run()");
        // SAFETY: `run` stores a pointer to the exclusive reference it was given and clears it before it returns; the
        // lifetime of the result is bound to `self`, which `run` holds.
        unsafe { p.as_mut() }
    }

    /// Adds the time of retired instructions and stalls to the clock, and clears their counts.
    pub fn synchronise_clock(&mut self) {
        let fixed = self.fixed(self.work);
        self.time.cycles += (fixed >> 16) + self.stall;
        self.time.cycle_fraction = (fixed & 0xffff) as u32;
        self.time.instructions += self.retired;
        self.retired = 0;
        self.work = 0;
        self.stall = 0;
        self.model_stall = 0;
        // No operation runs.
        self.block_start = self.current;
    }

    /// Runs until `limit`, until the vCPU halts or shuts down, or until the platform asks for attention. Returns an error where the study
    /// must end.
    pub fn run_until(&mut self, limit: Limit) -> Result<Exit, EngineError> {
        self.time_slice = TimeSlice::new(limit);
        self.notice_code_changes();
        if self.attached {
            self.refresh_context();
        }
        loop {
            self.synchronise_clock();
            if std::mem::take(&mut self.touched_platform) {
                // Devices write memory while they serve an access.
                self.notice_code_changes();
                if self.attached {
                    // A hypercall may have informed the platform that the rank entered or left MPI.
                    self.refresh_context();
                }
                if self.platform().attention() {
                    return Ok(Exit::Attention);
                }
            }
            let spent = self.time.instructions >= limit.instructions;
            if spent || self.is_time_slice_over(self.time.cycles) {
                return Ok(Exit::Limit);
            }
            match self.events.mp {
                MpState::Running => {}
                MpState::Halted => {}
                MpState::WaitForSipi => return Ok(Exit::Halted),
                MpState::Shutdown => return Ok(Exit::Shutdown),
            }
            if self.attached {
                self.change_recording();
            }
            let (id, now) = (self.id, self.time.cycles);
            let shadow = std::mem::take(&mut self.events.shadow);
            let nmi = self.events.nmi_pending && !self.events.nmi_blocked;
            if shadow == InterruptShadow::None {
                if nmi {
                    self.events.nmi_pending = false;
                    self.events.nmi_blocked = true;
                    self.events.mp = MpState::Running;
                    self.deliver_interrupt(Vector::Nmi as u8)?;
                    continue;
                }
                if self.rflags & rflags::IF != 0
                    && self.platform().interrupt_pending(id, now)
                    && let Some(vector) = self.platform().acknowledge(id, now)
                {
                    self.events.mp = MpState::Running;
                    self.deliver_interrupt(vector)?;
                    continue;
                }
            }
            if self.events.mp == MpState::Halted {
                self.events.shadow = shadow;
                return Ok(Exit::Halted);
            }
            let mut until = self.time_slice.limit;
            // STI lets one instruction pass before a pending interrupt, and this instruction may be CLI.
            let behind_sti = shadow == InterruptShadow::Sti;
            let mut waits = behind_sti && nmi;
            if self.rflags & rflags::IF != 0 {
                let next = self.platform().next_event(id);
                until = until.min(next.max(now + 1));
                waits |= behind_sti && (next <= now || self.platform().interrupt_pending(id, now));
            }
            let behind_mov_ss = shadow == InterruptShadow::MovSs;
            let trap_flag = self.rflags & rflags::TF != 0;
            let breakpoints = self.breakpoints.on_code();
            if breakpoints {
                if !behind_mov_ss && let Some(exception) = self.fault_before() {
                    self.deliver_anew(exception)?;
                    continue;
                }
                // RF is for one instruction.
                self.rflags &= !rflags::RF;
            }
            self.forget_breakpoints_met();
            let instructions = if trap_flag || waits || behind_mov_ss || breakpoints {
                1
            } else {
                limit.instructions - self.time.instructions
            };
            let before = self.retired;
            self.time_slice.until = until;
            let end = self.run_blocks(until - now, instructions, true);
            let stepped = trap_flag && self.retired != before;
            match end {
                // A repeated instruction continues without another check for breakpoints.
                End::Look if breakpoints && self.retired == before => self.rflags |= rflags::RF,
                End::Look => {}
                End::Halt => {
                    self.synchronise_clock();
                    self.events.mp = MpState::Halted;
                }
                End::Trap => {
                    self.synchronise_clock();
                    // Processors drop the pending trap of a MOV SS or POP SS if the next instruction faults.
                    self.drop_pending_breakpoints();
                    let exception = self.take_trap()?;
                    self.deliver_anew(exception)?;
                    continue;
                }
            }
            if behind_mov_ss && self.events.shadow == InterruptShadow::MovSs {
                // Only the first of several such instructions blocks events (SDM vol. 3A §6.8.3). A program could otherwise block them for
                // long.
                self.events.shadow = InterruptShadow::None;
            }
            if let Some(exception) = self.trap_after(stepped) {
                self.synchronise_clock();
                if self.events.mp == MpState::Halted {
                    // A debug exception ends the wait of HLT (SDM vol. 2A, HLT).
                    self.events.mp = MpState::Running;
                }
                self.deliver_anew(exception)?;
            }
        }
    }

    /// Delivers an exception that no other delivery raised. The caller has synchronised the clock.
    fn deliver_anew(&mut self, exception: Exception) -> Result<(), EngineError> {
        if self.time.delivered_at == Some(self.time.instructions) {
            // No instruction has retired since the last exception: the first instruction of a handler raised this one. A handler with a
            // stack of its own could repeat this for ever.
            self.stall += DELIVERY_CYCLES;
        }
        self.time.delivered_at = Some(self.time.instructions);
        self.deliver_exception(exception)
    }

    /// Executes whole blocks until a number of cycles has passed, but no more than a number of instructions. To keep to this number, the
    /// last block may be cut. `deliver`: the caller delivers interrupts.
    ///
    /// Time slices end, and interrupts are taken, at the same instructions in the interpreter and in translated code, which checks its
    /// budget at the beginnings of blocks. The next time slice therefore begins at the beginning of a block, which the block table may
    /// already have.
    fn run_blocks(&mut self, cycles: u64, instructions: u64, deliver: bool) -> End {
        if self.attached {
            self.run_blocks_as::<true>(cycles, instructions, deliver)
        } else {
            self.run_blocks_as::<false>(cycles, instructions, deliver)
        }
    }

    fn run_blocks_as<const ATTACHED: bool>(
        &mut self,
        cycles: u64,
        instructions: u64,
        deliver: bool,
    ) -> End {
        let cpi = self.cpi;
        self.time_slice.extension = 0;
        let mut budget = (cycles.min(1 << 40) as i64) << 16;
        budget -= i64::from(self.time.cycle_fraction);
        let mut instructions = instructions.min(1 << 40) as i64;
        self.make_room();
        while budget > 0 && instructions > 0 {
            // Without stalls, cycles correspond to work.
            let mut left = cpi.instructions(budget);
            let mut most = instructions;
            let unchanged = match ATTACHED {
                true => self.until_recording_changes(),
                false => i64::MAX,
            };
            if unchanged <= 0 {
                return End::Look;
            }
            left = left.min(unchanged);
            let (retired, work, stall) = (self.retired, self.work, self.stall);
            let done = loop {
                let (before, work_before) = (self.retired, self.work);
                // While `whole` is above zero, any block may begin and finish. No instruction is less than a unit of work.
                let whole = left.min(most - LAST);
                let known = match ATTACHED && self.recorder.active {
                    true => None,
                    false => self.known_code(whole),
                };
                let next = match known {
                    Some(code) => Next::Code(code, whole),
                    None => match self.find_next::<ATTACHED>(whole, most) {
                        Ok(next) => next,
                        Err(Trap) => break Err(Trap),
                    },
                };
                let done = match next {
                    Next::Code(code, left) => {
                        let budget = Budget {
                            cycles: budget,
                            instructions: unchanged.min(instructions - LAST),
                            retired,
                            work,
                            stall,
                            deliver,
                        };
                        // SAFETY: `known_code`, or `translated` in `next_of`, has just answered with this code, and nothing ran since.
                        unsafe { self.run_translated(code, left, budget) }
                    }
                    Next::Block(entry) if ATTACHED => self.run_attached(entry, most),
                    Next::Block(entry) => {
                        let count = most.min(i64::from(entry.count)) as usize;
                        if self.by_block {
                            self.work += self.cost_of(entry, count);
                        }
                        self.run_block(entry, count)
                    }
                };
                left -= self.work.wrapping_sub(work_before) as i64;
                most -= self.retired.wrapping_sub(before) as i64;
                let goes_on = matches!(done, Ok(Flow::Next | Flow::Branch));
                if !goes_on
                    || left <= 0
                    || most <= 0
                    || self.stall != stall
                    || self.touched_platform
                {
                    break done;
                }
            };
            let done_work = self.work.wrapping_sub(work) as i64;
            budget -= done_work * cpi.divisor() + (((self.stall - stall) as i64) << 16);
            budget += std::mem::take(&mut self.time_slice.extension);
            instructions -= self.retired.wrapping_sub(retired) as i64;
            match done {
                Ok(Flow::Next | Flow::Branch) if !self.touched_platform => {}
                Ok(Flow::Halt) => return End::Halt,
                Ok(_) => return End::Look,
                Err(Trap) => return End::Trap,
            }
        }
        End::Look
    }

    /// Returns what runs at the instruction pointer, where the jump cache does not know. Raises the faults of the fetch. `whole` and `most`:
    /// see [`Cpu::next_of`].
    #[inline(always)]
    fn find_next<const ATTACHED: bool>(&mut self, whole: i64, most: i64) -> Result<Next, Trap> {
        if let Some(entry) = self.known_block() {
            return Ok(self.next_of(entry, whole, most));
        }
        if !ATTACHED
            && whole > 0
            && let Some(code) = self.shared_code_here()?
        {
            return Ok(Next::Code(code, whole));
        }
        let entry = self.block()?;
        Ok(self.next_of(entry, whole, most))
    }

    /// Returns how a block runs: as translated code, or by the interpreter. `whole`: see [`Cpu::known_code`]; `most`: the number of
    /// instructions that may still run.
    #[inline(always)]
    fn next_of(&mut self, entry: Entry, whole: i64, most: i64) -> Next {
        // Near the end of the budget, this block may still be short enough.
        let fits = whole > 0 || most >= i64::from(entry.count);
        let code = if fits && !self.take_interpret_next() && !self.recorder.active {
            self.translated(entry)
        } else {
            None
        };
        code.map_or(Next::Block(entry), |code| Next::Code(code, whole.max(1)))
    }

    /// Executes the first `count` operations of a block. Afterwards `gpr[RIP]` is the address of the next instruction (of the failing
    /// instruction after a trap).
    #[inline(always)]
    fn run_block(&mut self, entry: Entry, count: usize) -> Done {
        // SAFETY: `count` is at most the block's length.
        self.block_end = unsafe { entry.ops.add(count) };
        self.run_operations(entry.ops, entry.ops)
    }

    /// Executes operations from `op` to `block_end`; `start` is the first operation of their block.
    #[inline(always)]
    pub fn run_operations(&mut self, start: *const Op, op: *const Op) -> Done {
        self.block_start = start;
        let mut op = op;
        loop {
            self.current = op;
            // SAFETY: `op` is below `block_end`, within the block, which outlives this call: blocks are freed only when
            // the cache is cleared, which happens when a block is inserted.
            let done = unsafe { ((*op).handler)(self, &*op) };
            // SAFETY: handlers continue only with operations of the same block.
            let last = unsafe { &*self.current };
            let executed = executed(start, last);
            match done {
                Ok(Flow::Next) => {
                    // SAFETY: one past an element of the block.
                    op = unsafe { self.current.add(1) };
                    if op >= self.block_end {
                        self.end_straight(last, executed);
                        return Ok(Flow::Next);
                    }
                }
                Ok(flow) => {
                    self.retire(executed + 1);
                    return Ok(flow);
                }
                Err(Trap) => {
                    self.end_trapped(last, executed);
                    return Err(Trap);
                }
            }
        }
    }

    /// Counts instructions that have retired at the end of a block's execution.
    #[inline(always)]
    pub fn retire(&mut self, instructions: u64) {
        self.retired = self.retired.wrapping_add(instructions);
        if !self.by_block {
            self.work = self.work.wrapping_add(instructions);
        }
    }

    /// Ends the execution of a block behind `last`, which retired after `executed` other operations and did not branch.
    #[inline(always)]
    pub fn end_straight(&mut self, last: &Op, executed: u64) {
        let ip = self.next_ip(last);
        self.set_ip(self.wrap_ip(ip));
        self.retire(executed + 1);
    }

    /// Ends the execution of a block at `last`, which trapped after `executed` operations had retired.
    #[inline(always)]
    pub fn end_trapped(&mut self, last: &Op, executed: u64) {
        self.name_stack_fault(last);
        let ip = self.ip(last);
        self.set_ip(self.wrap_ip(ip));
        self.retire(executed);
    }

    /// Executes at most `most` operations of a block with a model attached. Reports the block's fetches to the model, and counts events.
    fn run_attached(&mut self, entry: Entry, most: i64) -> Done {
        // SAFETY: blocks are freed only when the cache is cleared, which happens when a block is inserted: not before this block has been
        // executed.
        let block = unsafe { &*entry.block };
        let count = most.min(i64::from(entry.count)) as usize;
        let partial = count < block.ops().len();
        let planned = if partial {
            let last = &block.ops()[count - 1];
            u32::from(last.offset) + u32::from(last.len)
        } else {
            block.len()
        };
        let privilege = usize::from(self.cpl != 3);
        if self.by_block {
            self.work += self.cost_of(entry, count);
        }
        self.enter_numbered(block);
        self.fetch_lines(block.code_span(planned));
        let before = self.retired;
        let stall_before = self.stall - self.model_stall;
        let done = match self.recorder.active {
            true => self.run_recorded(entry, block, count),
            false => self.run_block(entry, count),
        };
        let delta = self.retired.wrapping_sub(before);
        // An unfinished REP chunk counted its iterations but retired nothing.
        let executed = delta as usize;
        let counters = &mut self.counters[privilege];
        counters.instructions = counters.instructions.wrapping_add(delta);
        let long = self.stall - self.model_stall - stall_before;
        counters.long_cycles += long;
        self.charge_long(long);
        if self.numbered() {
            if executed != block.ops().len() {
                self.cut_profiled(block, executed, planned);
            }
            self.leave_numbered();
            return done;
        }
        self.leave_numbered();
        let counters = &mut self.counters[privilege];
        if executed == block.ops().len() {
            counters.loads += u64::from(block.decoded.loads);
            counters.stores += u64::from(block.decoded.stores);
            if let Some(flops) = &block.decoded.flops {
                for (total, n) in counters.flops.iter_mut().zip(flops.iter()) {
                    *total += u64::from(*n);
                }
            }
        } else {
            for op in &block.ops()[..executed.min(block.ops().len())] {
                count_operation(counters, op);
            }
        }
        done
    }

    /// Wraps an instruction pointer at the width of the code segment.
    #[inline(always)]
    pub fn wrap_ip(&self, ip: u64) -> u64 {
        match self.mode {
            crate::cpu::Mode::Bits64 => ip,
            crate::cpu::Mode::Bits32 => ip & 0xffff_ffff,
            crate::cpu::Mode::Bits16 => ip & 0xffff,
        }
    }

    /// Executes at most this many instructions, without taking interrupts. An exception is returned, not delivered.
    pub fn run_undelivered(
        &mut self,
        instructions: u64,
    ) -> Result<crate::vcpu::StepOutcome, EngineError> {
        self.notice_code_changes();
        if self.attached {
            self.synchronise_clock();
            self.change_recording();
        }
        self.time_slice = TimeSlice::default();
        let end = self.run_blocks(1 << 40, instructions, false);
        self.synchronise_clock();
        Ok(match end {
            End::Look => crate::vcpu::StepOutcome::Retired,
            End::Halt => {
                self.events.mp = MpState::Halted;
                crate::vcpu::StepOutcome::Halted
            }
            End::Trap => crate::vcpu::StepOutcome::Exception(self.take_trap()?),
        })
    }

    /// Returns the exception of the last trap, or an error that ends the study.
    pub fn take_trap(&mut self) -> Result<Exception, EngineError> {
        if let Some(what) = self.stop.take() {
            return Err(self.stop_report(what));
        }
        Ok(self
            .exception
            .take()
            .expect("a trap without exception or stop reason"))
    }

    /// Returns an error that describes where the engine stopped, and `what` stopped it.
    pub fn stop_report(&mut self, what: String) -> EngineError {
        let mut bytes = Vec::new();
        let linear = self.code_linear(self.gpr[RIP as usize]);
        for i in 0..15 {
            match self.translate(linear.wrapping_add(i), crate::mmu::Intent::Read) {
                Ok(page) if !page.host.is_null() => {
                    let at = (linear.wrapping_add(i) & 0xfff) as usize;
                    // SAFETY: within a mapped page of RAM.
                    bytes.push(unsafe { *page.host.add(at) });
                }
                _ => break,
            }
        }
        self.exception = None;
        self.stop = None;
        crate::ops::simd::x87::release(self);
        EngineError::Unsupported(Box::new(StopReport {
            vcpu: self.id,
            what,
            bytes,
            state: Box::new(self.save_state()),
        }))
    }

    /// Updates this vCPU for changes to code since it last ran. Pages that other vCPUs decoded must not be written without a check. Code
    /// that other vCPUs or devices wrote must not run in its old form.
    fn notice_code_changes(&mut self) {
        let marks = self.ram.regions().iter().map(|r| r.code.marks()).sum();
        if marks != self.marks_seen {
            self.marks_seen = marks;
            self.data_tlb.revoke_writes();
        }
        self.notice_rewrites();
    }

    /// Forgets the blocks of pages whose code was written to. Their translation blocks stay chained, since chains lead from such a page to
    /// the page itself.
    pub fn notice_rewrites(&mut self) {
        for (region, seen) in self.ram.regions().iter().zip(&mut self.rewrites_seen) {
            let now = region.code.rewrites();
            if now == *seen {
                continue;
            }
            match region.code.rewritten_since(*seen) {
                Some(pages) => {
                    for offset in pages {
                        self.blocks.forget_code(region.start + offset as u64);
                    }
                }
                None => self.blocks.forget_all_code(),
            }
            *seen = now;
        }
    }

    /// Asks the platform for the vCPU's context (address space and the thread's MPI function), and selects the records of this context. Where the
    /// context has changed, first hands over the counters of the previous context.
    pub fn refresh_context(&mut self) {
        let (id, cr3, thread) = (self.id, self.control.cr3, self.segment_base[seg::FS]);
        let context = self.platform().context(id, cr3, thread);
        if !self.context_known {
            // The time in which the vCPU slept since the model was attached belongs to this address space, too.
            self.context = context;
            self.context_known = true;
        } else if context != self.context {
            self.hand_over_counters();
            self.context = context;
        }
        self.select_records();
    }

    /// Hands the counters gathered since the last hand-over to the platform, for the current context, and clears them.
    pub fn hand_over_counters(&mut self) {
        use nodescope_plugin_api::Privilege;
        let counted = self.counters.iter().any(|counters| !counters.is_empty());
        if counted && !self.context_known {
            // The vCPU has slept since the model was attached, so that the context is still unknown.
            self.refresh_context();
        }
        for (i, privilege) in [(0, Privilege::User), (1, Privilege::Kernel)] {
            let counters = std::mem::take(&mut self.counters[i]);
            if !counters.is_empty() {
                let (id, context) = (self.id, self.context);
                self.platform().account(id, context, privilege, &counters);
            }
        }
    }
}

/// Returns the number of operations from `start` to `op` in a block.
#[inline(always)]
pub fn executed(start: *const Op, op: *const Op) -> u64 {
    ((op as usize - start as usize) / size_of::<Op>()) as u64
}

pub fn count_operation(counters: &mut Counters, op: &Op) {
    counters.loads += u64::from(op.loads);
    counters.stores += u64::from(op.stores);
    counters.flops[usize::from(op.flop_class)] += u64::from(op.flops);
}
