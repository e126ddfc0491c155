//! Implementation of the engine interface by the portable engine.

use std::ptr::NonNull;

use nodescope_engine::{
    CodeCost, CodeNumbers, EngineError, Exit, Limit, NextBlock, Platform, Vcpu,
};
use nodescope_plugin_api::{BlockProfile, Context, Counters, L0Geometry, L0Update};
use nodescope_x86::{CpuidTable, Exception, FxImage, General, MpState, VcpuState, Vector256};

use crate::code::SharedCode;
use crate::cpi::Cpi;
use crate::cpu::{Cpu, Mode, Scratch};
use crate::features::Features;
use crate::native::Activity;
use crate::op::{RIP, ZERO};
use crate::ops::random::RandomSource;
use crate::site::RunningSite;

/// Parts that a vCPU is made from.
#[derive(Clone, Debug)]
pub struct SoftConfig {
    /// Index of the vCPU within the node, from 0.
    pub id: u16,
    /// Guest RAM and the code in it, shared by the node's vCPUs.
    pub code: SharedCode,
    /// Answers of CPUID.
    pub cpuid: CpuidTable,
    /// Cycles that an instruction takes, in units of 1/65536 cycle.
    pub cpi: u32,
    /// Seed of RDRAND and RDSEED.
    pub seed: u64,
    /// Which blocks are translated to host code; results are the same.
    pub translate: Translate,
}

/// Choice of the blocks that are translated to host code; the rest is interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translate {
    /// No block is translated.
    Never,
    /// Blocks are translated after they were interpreted this many times.
    After(u32),
}

impl Default for Translate {
    /// Returns a threshold of 100: translating costs as much as interpreting a block about a hundred times (docs/history.md).
    fn default() -> Self {
        Translate::After(100)
    }
}

/// Result of a run of one or several instructions that delivers no exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// No exception and no HLT: the instructions retired, or one did a chunk of its repetition, or the run loop must check the machine.
    Retired,
    /// The last instruction raised this exception, which was not delivered.
    Exception(Exception),
    /// The last instruction was HLT.
    Halted,
}

/// A vCPU of the portable engine.
pub struct SoftVcpu {
    pub(crate) cpu: Box<Cpu>,
    code: SharedCode,
}

// SAFETY: the raw pointers inside refer to guest RAM and to decoded blocks, which `code` keeps alive and which are used under its lock.
// A model's function for direct misses is called only while the model is attached, and the pointer to a platform is used only while `run`
// is on the stack. One thread at a time uses a vCPU, together with the model of its node.
unsafe impl Send for SoftVcpu {}

impl SoftVcpu {
    /// Makes a vCPU in its reset state.
    pub fn new(config: SoftConfig) -> Self {
        let state = VcpuState::reset();
        let cpu = Cpu {
            gpr: [0; 18],
            rflags: 2,
            segment_base: [0; 7],
            block_end: std::ptr::null(),
            block_start: std::ptr::null(),
            current: std::ptr::null(),
            data_tlb: Default::default(),
            instruction_l0: Default::default(),
            vector: state.vector,
            fx: state.fx,
            cpl: 0,
            mode: Mode::Bits16,
            segments: state.segments,
            control: state.control,
            debug: state.debug,
            breakpoints: Default::default(),
            msrs: state.msrs,
            events: state.events,
            time: state.time,
            exception: None,
            stop: None,
            page_walks: Default::default(),
            blocks: Default::default(),
            code: None,
            ram: config.code.ram().clone(),
            features: Features::new(&config.cpuid),
            cpuid: config.cpuid,
            id: config.id,
            random: RandomSource { seed: config.seed },
            simd: Default::default(),
            native: crate::native::Native::new(config.translate),
            scratch: Scratch([0; 512]),
            platform: None,
            attached: false,
            page_sizes: false,
            context: Context::default(),
            context_known: false,
            counters: [Counters::default(); 2],
            updates: Vec::new(),
            stall: 0,
            model_stall: 0,
            retired: 0,
            work: 0,
            block_costs: std::ptr::null(),
            cost_tables: [std::ptr::null(); 2],
            by_block: false,
            cpi: Cpi::new(config.cpi),
            nominal_cpi: Cpi::new(config.cpi),
            recorder: Default::default(),
            time_slice: Default::default(),
            touched_platform: false,
            marks_seen: 0,
            rewrites_seen: vec![0; config.code.ram().regions().len()],
            code_key: 0,
        };
        let mut vcpu = Self {
            cpu: Box::new(cpu),
            code: config.code,
        };
        if let Some(costs) = &vcpu.code.lock().block_costs {
            vcpu.cpu.cost_tables = costs.pointers();
        }
        vcpu.cpu.choose_cpi();
        vcpu.restore(&state);
        vcpu
    }

    fn with_platform<R>(
        &mut self,
        platform: &mut dyn Platform,
        f: impl FnOnce(&mut Cpu) -> R,
    ) -> R {
        // SAFETY: only the lifetime is erased; the pointer is cleared before `platform`'s borrow ends.
        let erased: &'static mut dyn Platform = unsafe {
            std::mem::transmute::<&mut dyn Platform, &'static mut dyn Platform>(platform)
        };
        self.cpu.platform = Some(NonNull::from(erased));
        let mut code = self.code.lock();
        self.cpu.code = Some(NonNull::from(&mut *code));
        let result = f(&mut self.cpu);
        self.cpu.report_modified();
        crate::ops::simd::x87::release(&mut self.cpu);
        self.cpu.code = None;
        self.cpu.platform = None;
        result
    }

    /// Executes one instruction (or one chunk of a REP instruction) without a check for interrupts. An exception is returned, not
    /// delivered. For instruction tests.
    pub fn step_undelivered(
        &mut self,
        platform: &mut dyn Platform,
    ) -> Result<StepOutcome, EngineError> {
        self.run_undelivered(platform, 1)
    }

    /// Executes at most this many instructions as [`SoftVcpu::step_undelivered`] does. Ends at the first exception or HLT, and wherever the
    /// run loop must check the machine.
    pub fn run_undelivered(
        &mut self,
        platform: &mut dyn Platform,
        instructions: u64,
    ) -> Result<StepOutcome, EngineError> {
        self.with_platform(platform, |cpu| cpu.run_undelivered(instructions))
    }

    /// Replaces the registers that user code can change, and leaves all other state unchanged, cached translations included. For
    /// instruction tests.
    pub fn set_user_registers(&mut self, general: &General, fx: &FxImage, vector: &Vector256) {
        self.cpu.set_general(general);
        self.cpu.fx = *fx;
        self.cpu.vector = *vector;
    }

    /// Returns the registers that user code can change.
    pub fn user_registers(&self) -> (General, &FxImage, &Vector256) {
        (self.cpu.general(), &self.cpu.fx, &self.cpu.vector)
    }

    /// Makes translated code do without AVX-512, as on a host without AVX-512; results are the same. Must be called for all vCPUs of a
    /// node, before any of them runs.
    pub fn without_avx512(&mut self) {
        self.cpu.native.without_avx512();
    }

    /// Limits the node's translated code, and the code of its vector instructions, to this many bytes each: a full memory is emptied. For
    /// tests, before a vCPU has run.
    pub fn limit_code(&mut self, bytes: usize) {
        let mut code = self.code.lock();
        code.translation_cache.set_room(bytes);
        code.pool.stubs().set_room(bytes);
    }

    /// Limits the number of decoded blocks that have no translation. For tests, before a vCPU has run.
    pub fn limit_blocks(&mut self, blocks: usize) {
        self.code.lock().blocks.set_room(blocks);
    }

    /// Distinguishes at most `blocks` basic blocks where costs are attributed to code. For tests, before a vCPU has run.
    pub fn limit_profile(&mut self, blocks: usize) {
        self.code.lock().profile.fewer_blocks = Some(blocks);
    }

    /// Returns how often translated code ran and called out.
    pub fn activity(&self) -> Activity {
        self.cpu.native.activity()
    }

    /// Returns the number of translation blocks that only this node has; shared translation blocks do not count.
    pub fn translations(&self) -> usize {
        self.code.lock().translation_cache.len()
    }
}

impl Vcpu for SoftVcpu {
    fn run(&mut self, platform: &mut dyn Platform, limit: Limit) -> Result<Exit, EngineError> {
        self.with_platform(platform, |cpu| cpu.run_until(limit))
    }

    fn cycles(&self) -> u64 {
        self.cpu.time.cycles
    }

    fn advance_to(&mut self, cycles: u64) {
        let cpu = &mut self.cpu;
        let delta = cycles.saturating_sub(cpu.time.cycles);
        if cpu.attached {
            cpu.counters[1].idle_cycles += delta;
        }
        cpu.time.cycles += delta;
    }

    fn instructions(&self) -> u64 {
        self.cpu.time.instructions
    }

    fn save(&self) -> VcpuState {
        self.cpu.save_state()
    }

    fn restore(&mut self, state: &VcpuState) {
        let cpu = &mut self.cpu;
        cpu.set_general(&state.general);
        cpu.gpr[ZERO as usize] = 0;
        cpu.segments = state.segments;
        cpu.control = state.control;
        cpu.debug = state.debug;
        cpu.msrs = state.msrs;
        cpu.fx = state.fx;
        cpu.vector = state.vector;
        cpu.events = state.events;
        cpu.time = state.time;
        cpu.retired = 0;
        cpu.work = 0;
        cpu.stall = 0;
        cpu.model_stall = 0;
        // CPL is SS.DPL (SDM vol. 3A §5.5); in real mode it is zero.
        cpu.cpl = if state.control.cr0 & 1 == 0 {
            0
        } else {
            state.segments.data[nodescope_x86::state::seg::SS].dpl()
        };
        cpu.forget_translations();
        cpu.refresh_breakpoints();
        cpu.refresh_mode();
    }

    fn attach(&mut self, geometry: Option<L0Geometry>) {
        self.cpu.attached = geometry.is_some();
        self.cpu.page_sizes = geometry.is_some_and(|geometry| geometry.page_sizes);
        self.cpu.context_known = false;
        self.cpu.recorder.reset();
        self.cpu.choose_cpi();
        self.cpu.data_tlb.configure(geometry);
        self.cpu.instruction_l0.configure(geometry);
        self.cpu.counters = [Counters::default(); 2];
        // Blocks have code with and without a model, but code for one geometry of the L0 filter cache does not fit another.
        self.cpu.native.flush_jump_cache();
        self.cpu.forget_miss_routines();
        if let Some(shape) = geometry {
            let mut code = self.code.lock();
            let made_for = (shape, self.cpu.profiling());
            let before = code.translation_cache.window.replace(made_for);
            if before.is_some_and(|before| before != made_for) {
                code.clear();
            }
        }
    }

    fn pause(&mut self) {
        let recorder = self.cpu.pause_recordings();
        self.attach(None);
        self.attribute_to_code(false);
        self.cpu.recorder = recorder;
    }

    fn resume(&mut self, geometry: L0Geometry) {
        let recorder = std::mem::take(&mut self.cpu.recorder);
        self.attribute_to_code(true);
        self.attach(Some(geometry));
        self.cpu.resume_recordings(recorder);
    }

    fn set_code_costs(&mut self, costs: &[CodeCost<'_>]) {
        let mut code = self.code.lock();
        if let Some(table) = &mut code.block_costs {
            for cost in costs {
                let block = cost.block;
                let number = table.number(&block.bytes, block.physical, block.bits);
                let instructions = i64::from(block.instructions);
                let nominal = self.cpu.nominal_cost(instructions);
                let work = cost.sixteenths.max(instructions as u64);
                table.set_detached(number, work, nominal);
            }
        }
    }

    fn next_block(&mut self, platform: &mut dyn Platform) -> Option<NextBlock> {
        self.with_platform(platform, |cpu| {
            let Ok(entry) = cpu.block() else {
                // The vCPU will meet the fault itself.
                cpu.exception = None;
                cpu.stop = None;
                return None;
            };
            // SAFETY: the block was just looked up, and nothing ran since.
            let block = unsafe { &*entry.block };
            let number = match cpu.profiling() {
                true => cpu.number_of(block, cpu.gpr[RIP as usize]),
                false => 0,
            };
            let has_cost = cpu.has_cost(block);
            Some(NextBlock { number, has_cost })
        })
    }

    fn record_soon(&mut self) {
        self.cpu.record_soon();
    }

    fn forget_code_costs(&mut self) {
        if let Some(table) = &mut self.code.lock().block_costs {
            table.clear();
        }
    }

    fn attribute_to_code(&mut self, on: bool) {
        let mut code = self.code.lock();
        self.cpu.native.site = RunningSite::NONE;
        self.cpu.native.records_of = None;
        self.cpu.native.records = if on {
            code.profile.begin_attribution(self.cpu.id);
            code.profile.records((self.cpu.id, Context::default()))
        } else {
            std::ptr::null_mut()
        };
    }

    fn forget_block_profile(&mut self) {
        self.code.lock().profile.clear();
    }

    fn take_block_profile(&mut self) -> Option<BlockProfile> {
        self.cpu
            .profiling()
            .then(|| self.code.lock().profile.take())
    }

    fn code_numbers(&self) -> CodeNumbers {
        self.code.lock().profile.numbers()
    }

    fn restore_code_numbers(&mut self, numbers: CodeNumbers) -> bool {
        self.code.lock().profile.restore_numbers(numbers)
    }

    fn update_l0(&mut self, updates: &[L0Update]) {
        for u in updates {
            self.cpu.apply_l0_update(u);
        }
    }

    fn flush_counters(&mut self, platform: &mut dyn Platform) {
        self.with_platform(platform, |cpu| {
            cpu.hand_over_counters();
            cpu.settle_profile();
        });
    }
}

impl Cpu {
    /// Chooses the costs of blocks for the time with a model or without, and the cycles of a unit of work. The clock is synchronised.
    fn choose_cpi(&mut self) {
        self.block_costs = self.cost_tables[usize::from(self.attached)];
        self.by_block = !self.block_costs.is_null();
        self.cpi = match self.by_block {
            true => Cpi::SIXTEENTH,
            false => self.nominal_cpi,
        };
    }

    fn general(&self) -> General {
        let mut gpr = [0; 16];
        gpr.copy_from_slice(&self.gpr[..16]);
        General {
            gpr,
            rip: self.gpr[RIP as usize],
            rflags: self.rflags,
        }
    }

    fn set_general(&mut self, general: &General) {
        self.gpr[..16].copy_from_slice(&general.gpr);
        self.gpr[RIP as usize] = general.rip;
        self.rflags = general.rflags | 2;
    }

    /// Returns the whole state, in the typed elements of the engine interface.
    pub fn save_state(&self) -> VcpuState {
        let state = VcpuState {
            general: self.general(),
            segments: self.segments,
            control: self.control,
            debug: self.debug,
            msrs: self.msrs,
            fx: self.fx,
            vector: self.vector,
            events: self.events,
            time: self.time,
        };
        debug_assert!(self.events.mp != MpState::Shutdown || self.exception.is_none());
        state
    }

    /// Drops all cached translations.
    pub fn forget_translations(&mut self) {
        self.page_walks.flush_all();
        self.data_tlb.flush();
        self.blocks.forget_translations();
    }

    /// Drops cached translations of pages that are not global.
    pub fn forget_local_translations(&mut self) {
        self.page_walks.flush_non_global();
        self.data_tlb.flush_non_global();
        self.blocks.forget_local_translations();
    }

    /// Drops the cached translation of one page, which may be a large page.
    pub fn forget_page(&mut self, linear: u64) {
        if self.page_walks.in_large_page(linear) {
            return self.forget_translations();
        }
        self.page_walks.flush_page(linear);
        self.data_tlb.flush_page(linear);
        self.blocks.forget_page(linear);
    }
}
