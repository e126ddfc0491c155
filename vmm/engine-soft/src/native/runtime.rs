//! The runtime of translated code: generated routines that enter and leave translated code and switch between the guest's and the host's
//! registers, and the functions that these routines call.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use nodescope_x86::bits::rflags;
use nodescope_x86::state::InterruptShadow;

use super::assembler::{Assembler, CPU, LEFT, cc, field_of_cpu};
use super::code_map::{self, Part};
use super::registers::{HOST, sized};
use super::split::SplitRoutines;
use super::string::StringRoutines;
use super::way_lookup::WayLookupRoutines;
use super::{Budget, Exit, Native, TranslationBlock, jump_cache};
use crate::cpu::{Cpu, Mode};
use crate::op::{Flow, RIP, Trap};
use crate::profile::Record;
use crate::site::RunningSite;

/// Returns the offset of a field of [`Native`] within the vCPU.
macro_rules! field {
    ($($f:tt)+) => { std::mem::offset_of!(crate::cpu::Cpu, native) + std::mem::offset_of!(crate::native::Native, $($f)+) };
}
pub(super) use field;

/// Returns the offset of a general register of the guest within the vCPU.
pub const fn gpr(number: usize) -> usize {
    offset_of!(Cpu, gpr) + 8 * number
}

/// Offset within the vCPU of the guest's MXCSR, which is in the FXSAVE image.
pub const MXCSR: usize = offset_of!(Cpu, fx) + 24;
pub const VECTOR: usize = offset_of!(Cpu, vector);
/// Control bits of MXCSR: rounding, flush to zero, denormals are zeros.
const MXCSR_CONTROL: i32 = 0xe040;

/// Addresses of the routines.
#[derive(Clone, Copy, Debug, Default)]
pub struct Routines {
    /// Enters translated code: see [`super::TranslationCache`].
    pub enter: u64,
    /// Leaves through the exit whose number is in [`Native::exit`].
    pub leave: u64,
    /// Leaves like `leave`, for a block that must be interpreted.
    pub leave_to_interpret: u64,
    /// Jumps to the code for the address in RCX after a miss in the first level of the [`super::jump_cache`], if the second level has the
    /// address. Otherwise leaves translated code with this address. One routine for kernel and one for user.
    pub leave_indirect: [u64; 2],
    /// Jumps as `leave_indirect` does, for a branch to a constant address. If the second level does not have the address, leaves through
    /// the exit whose number is in [`Native::exit`].
    pub leave_across: [u64; 2],
    /// Calls [`interpret`]; RAX is the address of the translation block, ECX the number of the operation.
    pub interpret: u64,
    /// Address of [`super::access::routine`]'s code.
    pub access: u64,
    /// Calls [`fetch`]; RAX is the address of the translation block.
    pub fetch: u64,
    /// Address of [`super::time_slice::routine`]'s code.
    pub budget_spent: u64,
    /// Loads the guest's vector registers. Returns with ZF set, and nothing done, where vector registers may not be used.
    pub load_vectors: u64,
    /// Addresses of the routines in [`super::string`].
    pub strings: StringRoutines,
    /// Routines that are tried before `access` and `fetch`.
    pub way_lookup: WayLookupRoutines,
    /// Routines for accesses that lie in two lines.
    pub split: SplitRoutines,
}

pub fn ymm(n: usize) -> Register {
    Register::YMM0 + n as u32
}

pub fn xmm(n: usize) -> Register {
    Register::XMM0 + n as u32
}

pub fn vector(n: usize) -> MemoryOperand {
    field_of_cpu(VECTOR + 32 * n)
}

pub fn upper_half(n: usize) -> MemoryOperand {
    field_of_cpu(VECTOR + 32 * n + 16)
}

/// Assembles a store of the guest's MXCSR. The host's MXCSR then gets default control bits. Changes flags.
pub fn save_mxcsr(a: &mut Assembler) {
    a.m(Code::Stmxcsr_m32, field_of_cpu(MXCSR));
    a.mi(Code::Test_rm32_imm32, field_of_cpu(MXCSR), MXCSR_CONTROL);
    let default_control = a.label();
    a.jcc(cc::E, default_control);
    a.m(Code::Ldmxcsr_m32, field_of_cpu(field!(default_mxcsr)));
    a.bind(default_control);
}

/// Assembles the addition of the offset of the running block's record to `record`, the address of the first record. Uses `scratch`.
pub fn add_record_offset(a: &mut Assembler, record: Register, scratch: Register) {
    const _: () = assert!(size_of::<Record>().is_power_of_two());
    let low = sized(scratch, 4);
    a.rm(Code::Mov_r32_rm32, low, field_of_cpu(field!(site)));
    a.ri(
        Code::And_rm32_imm32,
        low,
        (1 << RunningSite::BLOCK_BITS) - 1,
    );
    a.ri(
        Code::Shl_rm32_imm8,
        low,
        size_of::<Record>().trailing_zeros() as i32,
    );
    a.rr(Code::Add_r64_rm64, record, scratch);
}

/// Assembles the routines for an address; returns their code and the address of each.
pub fn routines(base: u64, host: super::Host) -> Result<(Vec<u8>, Routines), iced_x86::IcedError> {
    let avx = host.avx;
    use Register::{
        DL, EAX, ECX, EDX, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RSI, RSP, XMM0, XMM1,
    };
    let mut a = Assembler::new(base, base);
    a.part(Part::Call);
    let saved = [RBX, RBP, R12, R13, R14, R15];

    let load_registers = |a: &mut Assembler| {
        for (n, host) in HOST.iter().enumerate() {
            if let Some(host) = host {
                a.load(*host, gpr(n));
            }
        }
    };
    let store_registers = |a: &mut Assembler| {
        for (n, host) in HOST.iter().enumerate() {
            if let Some(host) = host {
                a.store(gpr(n), *host);
            }
        }
    };

    // Stores the vector registers; changes flags only.
    let save_vectors = a.here();
    if avx {
        for n in 0..16 {
            a.mr(Code::VEX_Vmovups_ymmm256_ymm, vector(n), ymm(n));
        }
        a.plain(Code::VEX_Vzeroupper);
    }
    a.mi(Code::Mov_rm8_imm8, field_of_cpu(field!(vectors_live)), 0);
    save_mxcsr(&mut a);
    a.plain(Code::Retnq);

    // Loads the vector registers; changes RAX and flags. If vector registers may not be used, sets ZF and does nothing else.
    let load_vectors = a.here();
    if avx {
        a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_allowed)), 0);
        let refused = a.label();
        a.jcc(cc::E, refused);
        a.m(Code::Ldmxcsr_m32, field_of_cpu(MXCSR));
        // If all upper halves are zero, leave them in their initial state: while any upper half is in use, a legacy SSE instruction depends
        // on the old value of its destination.
        a.rm(Code::VEX_Vmovdqu_xmm_xmmm128, XMM0, upper_half(0));
        a.rm(Code::VEX_Vmovdqu_xmm_xmmm128, XMM1, upper_half(1));
        for n in 2..16 {
            let accumulator = xmm(n % 2);
            a.rrm(
                Code::VEX_Vpor_xmm_xmm_xmmm128,
                accumulator,
                accumulator,
                upper_half(n),
            );
        }
        a.put(&iced_x86::Instruction::with3(
            Code::VEX_Vpor_xmm_xmm_xmmm128,
            XMM0,
            XMM0,
            XMM1,
        )?);
        a.rr(Code::VEX_Vptest_xmm_xmmm128, XMM0, XMM0);
        let narrow = a.label();
        let loaded = a.label();
        a.jcc(cc::E, narrow);
        for n in 0..16 {
            a.rm(Code::VEX_Vmovups_ymm_ymmm256, ymm(n), vector(n));
        }
        a.mi(Code::Mov_rm8_imm8, field_of_cpu(field!(vectors_wide)), 1);
        a.jmp(loaded);
        a.bind(narrow);
        a.mi(Code::Mov_rm8_imm8, field_of_cpu(field!(vectors_wide)), 0);
        a.plain(Code::VEX_Vzeroupper);
        for n in 0..16 {
            a.rm(Code::Movups_xmm_xmmm128, xmm(n), vector(n));
        }
        a.bind(loaded);
        a.mi(Code::Mov_rm8_imm8, field_of_cpu(field!(vectors_live)), 1);
        // Clears ZF.
        a.ri(Code::Or_rm32_imm8, EAX, 1);
        a.bind(refused);
    } else {
        a.rr(Code::Xor_r32_rm32, EAX, EAX);
    }
    a.plain(Code::Retnq);

    // Enters translated code: RDI is the vCPU, RSI the code.
    let enter = a.here();
    for r in saved {
        a.r(Code::Push_r64, r);
    }
    a.ri(Code::Sub_rm64_imm8, RSP, 8);
    a.copy(CPU, RDI);
    a.copy(RAX, RSI);
    a.load(LEFT, field!(left));
    load_registers(&mut a);
    a.r(Code::Jmp_rm64, RAX);

    // Leave translated code: EAX is the reason.
    let leave_common = a.label();
    let leave_stored = a.label();
    a.part(Part::Branch);
    let leave_indirect = [0, 1].map(|table| {
        let at = a.here();
        jump_cache::emit_l2_lookup(&mut a, table);
        a.store(gpr(RIP as usize), RCX);
        a.ri(Code::Mov_r32_imm32, EAX, Exit::Indirect as i32);
        a.jmp(leave_common);
        at
    });
    let leave_across = [0, 1].map(|table| {
        let at = a.here();
        jump_cache::emit_l2_lookup(&mut a, table);
        a.ri(Code::Mov_r32_imm32, EAX, Exit::Direct as i32);
        a.jmp(leave_common);
        at
    });
    a.part(Part::Call);
    let leave_to_interpret = a.here();
    a.ri(Code::Mov_r32_imm32, EAX, Exit::Interpret as i32);
    a.jmp(leave_common);
    let leave = a.here();
    a.ri(Code::Mov_r32_imm32, EAX, Exit::Direct as i32);
    a.bind(leave_common);
    store_registers(&mut a);
    a.store(field!(left), LEFT);
    a.bind(leave_stored);
    a.mi(Code::Cmp_rm8_imm8, field_of_cpu(field!(vectors_live)), 0);
    let no_vectors = a.label();
    a.jcc(cc::E, no_vectors);
    a.call_to(save_vectors);
    a.bind(no_vectors);
    a.ri(Code::Add_rm64_imm8, RSP, 8);
    for r in saved.iter().rev() {
        a.r(Code::Pop_r64, *r);
    }
    a.plain(Code::Retnq);

    // A routine that stores all registers and calls a function. Translated code continues if the function returns zero.
    let call_out = |a: &mut Assembler, function: u64| {
        let start = a.here();
        store_registers(a);
        a.store(field!(left), LEFT);
        a.ri(Code::Sub_rm64_imm8, RSP, 8);
        a.rm(Code::Movzx_r32_rm8, EDX, field_of_cpu(field!(vectors_live)));
        a.mr(
            Code::Mov_rm8_r8,
            field_of_cpu(field!(vectors_were_live)),
            DL,
        );
        a.rr(Code::Test_rm32_r32, EDX, EDX);
        let none = a.label();
        a.jcc(cc::E, none);
        a.call_to(save_vectors);
        a.bind(none);
        a.copy(RDI, CPU);
        a.copy(RSI, RAX);
        a.rr(Code::Mov_r32_rm32, EDX, ECX);
        a.constant(RAX, function);
        a.r(Code::Call_rm64, RAX);
        a.ri(Code::Add_rm64_imm8, RSP, 8);
        a.rr(Code::Test_rm32_r32, EAX, EAX);
        let resume = a.label();
        a.jcc(cc::E, resume);
        // Drop the return address into the block.
        a.ri(Code::Add_rm64_imm8, RSP, 8);
        a.ri(Code::Cmp_rm32_imm8, EAX, Exit::Continue as i32);
        a.jcc(cc::NE, leave_stored);
        // A block that needs vector registers loads them itself.
        a.load(LEFT, field!(left));
        load_registers(a);
        a.m(Code::Jmp_rm64, field_of_cpu(field!(next)));
        a.bind(resume);
        a.mi(
            Code::Cmp_rm8_imm8,
            field_of_cpu(field!(vectors_were_live)),
            0,
        );
        let still_none = a.label();
        a.jcc(cc::E, still_none);
        a.call_to(load_vectors);
        a.bind(still_none);
        a.load(LEFT, field!(left));
        load_registers(a);
        a.plain(Code::Retnq);
        start
    };
    let interpret = call_out(&mut a, self::interpret as *const () as u64);
    let fetch = call_out(&mut a, self::fetch as *const () as u64);
    a.part(Part::SlowPath);
    let access = super::access::routine(&mut a, host);
    a.part(Part::Prologue);
    let budget_spent = super::time_slice::routine(&mut a, host, leave);
    a.part(Part::SlowPath);
    let way_lookup = super::way_lookup::routines(&mut a, host);
    let split = super::split::routines(&mut a, host, &way_lookup);
    a.part(Part::Operation);
    let strings = super::string::routines(&mut a);
    code_map::note(a.pieces());
    let routines = Routines {
        access,
        enter,
        leave,
        leave_to_interpret,
        leave_indirect,
        leave_across,
        interpret,
        fetch,
        budget_spent,
        load_vectors,
        strings,
        way_lookup,
        split,
    };
    Ok((a.finish()?.0, routines))
}

/// Bit in an operation number, for a branch whose target is not canonical: only the exception is still to be raised. The interpreter's
/// operation would read the target again, and report this read to a model again.
pub const NON_CANONICAL_TARGET: u32 = 1 << 31;

impl Native {
    /// Packs the status flags in the form of translated code: OF in bit 0, and SF, ZF, AF, PF and CF in bits 15:8 as LAHF places them. SETO
    /// AL and LAHF leave this form in AX.
    pub fn pack_flags(rflags: u64) -> u16 {
        (rflags as u16 & 0xd5) << 8 | (rflags >> 11 & 1) as u16
    }

    /// Returns packed status flags at their places in RFLAGS.
    pub fn unpack_flags(packed: u16) -> u64 {
        u64::from(packed >> 8 & 0xd5) | u64::from(packed & 1) << 11
    }
}

/// Carries out one operation of a block by the interpreter's function. Returns zero if translated code continues after the operation, else
/// an [`Exit`].
///
/// # Safety
/// Only translated code calls this, with the vCPU that runs the code, and a translation block that lives as long as its code.
unsafe extern "sysv64" fn interpret(
    cpu: *mut Cpu,
    translation: *const TranslationBlock,
    k: u32,
) -> u32 {
    // SAFETY: `enter` was given an exclusive reference, which nothing uses while translated code runs.
    let cpu = unsafe { &mut *cpu };
    // SAFETY: see above.
    let translation = unsafe { &*translation };
    cpu.interpret_one(
        translation,
        (k & !NON_CANONICAL_TARGET) as usize,
        k & NON_CANONICAL_TARGET != 0,
    )
}

/// Fetches all lines of a block, and reports to the model those that miss the L0 filter cache. Called if not all of them hit. Returns zero.
///
/// # Safety
/// As for [`interpret`].
unsafe extern "sysv64" fn fetch(cpu: *mut Cpu, translation: *const TranslationBlock) -> u32 {
    // SAFETY: as in `interpret`.
    let cpu = unsafe { &mut *cpu };
    // SAFETY: as in `interpret`.
    let translation = unsafe { &*translation };
    cpu.fetch_translated(translation);
    0
}

impl Cpu {
    /// Sets the counts of retired instructions and of work to their values at the beginning of the running block, which has this many
    /// instructions.
    #[inline(always)]
    pub(super) fn return_to_block_start(&mut self, count: i64) {
        let behind = self.native.retired();
        self.retired = behind.wrapping_sub(count as u64);
        self.work = match self.by_block {
            true => self.native.work(),
            false => self.retired,
        };
    }

    /// Brings the vCPU's fields to the state that the interpreter expects at an operation of this block. `counted` is true if the block's
    /// prologue has counted the block.
    fn arrive(&mut self, translation: &TranslationBlock, counted: bool) {
        self.gpr[RIP as usize] = translation.ip;
        self.set_status_flags(Native::unpack_flags(self.native.flags));
        self.return_to_block_start(translation.count.into());
        if self.attached {
            self.native.site = translation.site;
            self.settle_counters(translation, counted);
        }
    }

    /// Moves the translator's counts to the vCPU's counters, without the running block's counts of stores, loads and FLOPs if the block is
    /// `counted`.
    fn settle_counters(&mut self, translation: &TranslationBlock, counted: bool) {
        // The running block's lines are fetched already, so its fetches are moved, too.
        let own = if counted {
            translation.packed & !super::FETCHES
        } else {
            0
        };
        self.settle_packed(own);
        if counted {
            let counters = &mut self.counters[translation.privilege];
            for (class, n) in translation.flops() {
                counters.flops[class] -= n;
            }
        }
    }

    /// Moves the counts of loads, stores, fetches and instructions to the vCPU's counters, except the packed counts `keep`, which remain.
    pub(super) fn settle_packed(&mut self, keep: u64) {
        let packed = self.native.packed - keep;
        self.native.packed = keep;
        let counters = &mut self.counters[self.native.privilege];
        let field = |n: u32| packed >> (super::PACKED_BITS * n) & ((1 << super::PACKED_BITS) - 1);
        counters.fetches += field(0);
        counters.stores += field(1);
        counters.loads += field(2);
        let retired = self.retired;
        counters.instructions = counters
            .instructions
            .wrapping_add(retired.wrapping_sub(self.native.settled));
        self.native.settled = retired;
    }

    fn fetch_translated(&mut self, translation: &TranslationBlock) {
        self.arrive(translation, false);
        let fetches = self.counters[translation.privilege].fetches;
        let stall = self.stall;
        self.fetch_lines(translation.code);
        // Translated code counts the fetches itself.
        self.counters[translation.privilege].fetches = fetches;
        if self.stall != stall {
            self.shorten_budget(translation.count.into());
        }
    }

    /// Shortens the budget after a stall in a block of `count` operations.
    pub(super) fn shorten_budget(&mut self, count: i64) {
        let behind = self.retired.wrapping_add(count as u64);
        let work = match self.by_block {
            true => self.work,
            false => behind,
        };
        let left = self
            .native
            .left_after_stall(behind, work, self.stall, self.cpi);
        self.native.reduce_to(left);
    }

    fn interpret_one(
        &mut self,
        translation: &TranslationBlock,
        k: usize,
        non_canonical: bool,
    ) -> u32 {
        self.native.activity.interpreted += 1;
        // The operation may change translations of pages.
        self.native.span_hosts = Default::default();
        self.arrive(translation, true);
        let ops = &translation.decoded.ops;
        let op = &ops[k];
        // A handler continues with the next operation up to the block's end. The end is set after this operation.
        // SAFETY: at most one past the last operation.
        self.block_end = unsafe { ops.as_ptr().add(k + 1) };
        self.block_start = ops.as_ptr();
        self.current = op;
        let stall = self.stall;
        let long = self.stall - self.model_stall;
        let counts = self.blocks.counts();
        let (start, work) = (self.retired, self.work);
        let done = if non_canonical {
            Err(self.raise(nodescope_x86::Exception::gp(0)))
        } else {
            (op.handler)(self, op)
        };
        self.native.served = None;
        // An unfinished REP instruction reduces the count of retired instructions by one.
        let taken_back = self.retired.wrapping_sub(start);
        (self.retired, self.work) = (start, work);
        if self.attached {
            let long = self.stall - self.model_stall - long;
            self.counters[translation.privilege].long_cycles += long;
            self.charge_long(long);
        }
        let may_go_on = matches!(done, Ok(Flow::Next)) && !self.block_end.is_null();
        if may_go_on && self.blocks.counts() == counts && self.vectors_as_before() {
            self.native.flags = Native::pack_flags(self.rflags);
            if self.attached {
                let counters = &mut self.counters[translation.privilege];
                for (class, n) in translation.flops() {
                    counters.flops[class] += n;
                }
            }
            if self.stall != stall {
                self.shorten_budget(translation.count.into());
            }
            return 0;
        }
        // The block ends here, or the interpreter finishes it.
        let (done, executed) = match done {
            Ok(Flow::Next) if may_go_on && k + 1 < ops.len() => {
                let long = self.stall - self.model_stall;
                let start = self.retired;
                self.block_end = ops.as_ptr_range().end;
                let done = self.run_operations(ops.as_ptr(), &ops[k + 1]);
                let executed = self.retired.wrapping_sub(start);
                (self.retired, self.work) = (start, work);
                if self.attached {
                    let long = self.stall - self.model_stall - long;
                    self.counters[translation.privilege].long_cycles += long;
                    self.charge_long(long);
                }
                (done, executed)
            }
            Ok(Flow::Next) => {
                let ip = self.next_ip(op);
                self.set_ip(ip);
                (Ok(Flow::Next), (k as u64 + 1).wrapping_add(taken_back))
            }
            Ok(Flow::Branch | Flow::Attend)
                if k + 1 == ops.len()
                    && taken_back == 0
                    && self.blocks.counts() == counts
                    && self.continue_with_next_block(translation, self.stall != stall) =>
            {
                return Exit::Continue as u32;
            }
            Ok(flow) => (Ok(flow), (k as u64 + 1).wrapping_add(taken_back)),
            Err(Trap) => {
                self.name_stack_fault(op);
                let ip = self.ip(op);
                self.set_ip(ip);
                (Err(Trap), (k as u64).wrapping_add(taken_back))
            }
        };
        debug_assert_eq!(translation.mode, Mode::Bits64);
        if self.numbered() {
            if executed as usize != ops.len() {
                // SAFETY: blocks have numbers only in windows, where the translation block does not outlive its basic block.
                let block = unsafe { &*translation.block };
                self.cut_profiled(block, executed as usize, block.len());
            }
        } else if self.attached {
            self.native.packed = 0;
            let counters = &mut self.counters[translation.privilege];
            for op in &ops[..executed as usize] {
                crate::run::count_operation(counters, op);
            }
        }
        self.native.done = done;
        self.native.partial = Some((i64::from(translation.count), executed));
        Exit::Interpreted as u32
    }

    /// Prepares to continue with the next block's code after an operation of the interpreter that ended a block. Returns false where the
    /// next block has no code, or the run loop would find something to do.
    fn continue_with_next_block(&mut self, translation: &TranslationBlock, stalled: bool) -> bool {
        let table = usize::from(self.cpl == 3);
        let ip = self.gpr[RIP as usize];
        let Some(code) = self.native.jump_cache.find(table, ip) else {
            return false;
        };
        let shadow = self.events.shadow;
        if self.attached
            || !self.native.budget.deliver
            || self.touched_platform
            || self.mode != Mode::Bits64
            || self.rflags & rflags::TF != 0
            || self.events.nmi_pending
            // The operation may have enabled breakpoints on code, which the run loop checks before each instruction.
            || self.breakpoints.on_code()
            || shadow == InterruptShadow::MovSs
        {
            return false;
        }
        if stalled {
            self.shorten_budget(translation.count.into());
        }
        if self.rflags & rflags::IF != 0
            && !self.native.ends_at_interrupt
            && !self.end_at_next_interrupt()
        {
            return false;
        }
        if shadow == InterruptShadow::Sti {
            if self.native.left.work() <= 0 {
                return false;
            }
            // One more instruction runs before an interrupt may be taken.
            self.events.shadow = InterruptShadow::None;
        }
        self.native.vectors_allowed = self.vectors_allowed().into();
        self.native.flags = Native::pack_flags(self.rflags);
        self.native.privilege = usize::from(self.cpl != 3);
        self.native.next = code.get();
        true
    }

    /// Ends the budget in time for the next interrupt, since interrupts have been enabled. Returns false if an interrupt is due already.
    fn end_at_next_interrupt(&mut self) -> bool {
        self.return_to_block_start(0);
        let (retired, work) = (self.retired, self.work);
        let (id, now) = (self.id, self.now_at_block_start());
        let next = self.platform().next_event(id);
        if next <= now || self.platform().interrupt_pending(id, now) {
            return false;
        }
        let old = self.native.budget;
        let executed = retired.wrapping_sub(old.retired) as i64;
        let stalled = (self.stall - old.stall) as i64;
        let cpi = i64::from(self.cpi.value());
        let done = work.wrapping_sub(old.work) as i64;
        let left = old.cycles - done * cpi - (stalled << 16);
        self.native.budget = Budget {
            cycles: left.min(self.budget_at_block_start(next)),
            instructions: old.instructions - executed,
            retired,
            work,
            stall: self.stall,
            ..old
        };
        let left = self
            .native
            .left_after_stall(retired, work, self.stall, self.cpi);
        self.native.reduce_to(left);
        self.native.ends_at_interrupt = true;
        self.native.must_attend = true;
        true
    }

    /// Returns whether the guest's vector registers may be loaded again, or were not loaded before the call of the interpreter.
    fn vectors_as_before(&mut self) -> bool {
        let allowed = self.vectors_allowed();
        self.native.vectors_allowed = allowed.into();
        allowed || self.native.vectors_were_live == 0
    }
}
