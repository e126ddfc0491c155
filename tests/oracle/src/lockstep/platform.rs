//! Platform for lockstep tests: it gives random answers, the same to both sides, and logs every call.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hint::black_box;
use std::ptr::NonNull;

use nodescope_engine::{GuestVirtual, Hypercall, HypercallAnswer, MsrFault, Platform};
use nodescope_plugin_api::{
    AcceptedDirectMisses, Access, BlockCounts, BlockProfile, Charges, Context, Counters,
    DirectMiss, DirectMisses, Hits, L0Geometry, L0Update, MemRef, Outcome, Permission, Privilege,
    Recording, RecordingPlan, Side, StallTerm,
};

use super::caches::Caches;
use super::guest::{INTERRUPTS, VCPUS};
use crate::random::Random;

/// A call of the platform.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Effects of hits: the least recently used line of a full set, and the lines that became modified.
    Hits(Option<u64>, Vec<u64>),
    /// A reference and its answer.
    Reference(MemRef, Outcome),
    /// Counters that the vCPU reported to the platform.
    Account(Context, Privilege, Counters),
    /// Counts by basic block at the end of a window, by context and code.
    Profile(Vec<((Context, Code), BlockCounts)>),
    /// The vCPU requested the context of a thread, by its CR3 and its base of FS.
    Context(u64, u64),
    /// An access to a port, device memory, an MSR or CR8, or a change of the TSC offset: kind, time in cycles, address or offset, and
    /// value.
    Device(&'static str, u64, u64, Vec<u8>),
    /// The vCPU requested more time at the end of its time slice. The value is the slice's new end; None: the slice was not extended.
    Extended(Option<u64>),
    /// The vCPU took an interrupt: time and vector.
    Interrupt(u64, u8),
    /// The vCPU asked whether the platform wants attention; the answer.
    Attention(bool),
    /// A hypercall by CPUID.
    Hypercall(Hypercall),
    /// Instructions that the vCPU recorded for a model of the core.
    Recorded(Recording),
}

/// Identity of a block that does not depend on the side: physical addresses of its pages, width of the code segment in bits, machine code.
pub type Code = (u64, u64, u8, Vec<u8>);

/// Platform of one side's vCPUs in lockstep: a log of events, a random model and random devices.
pub struct Machine {
    /// Counters since the last profile was taken.
    counted: BTreeMap<(u16, Context, Privilege), Counters>,
    /// Events since the log was last cleared.
    pub log: Vec<Event>,
    model: Random,
    devices: Random,
    timer: Random,
    slice_extensions: Random,
    recordings: Random,
    due: u64,
    period: u64,
    /// End of the running vCPU's time slice, in cycles.
    limit: u64,
    lines: [u64; 16],
    line_shift: u8,
    /// Updates that the toy model's direct misses have caused.
    updates: Vec<L0Update>,
    /// Caches of the toy model, by vCPU.
    caches: [Cache; VCPUS as usize],
    /// Real model; None: the toy model answers.
    pub real: Option<Caches>,
    /// Wrong value of MXCSR in a call of the platform: the guest's value instead of the host's. None: all calls were right.
    pub foreign_mxcsr: Option<u32>,
}

/// Lines of the toy model's cache by side and set, the most recently answered first. Empty if L0 filter caches keep one line.
#[derive(Default)]
struct Cache {
    sets: HashMap<(bool, u64), Vec<u64>>,
    /// Numbers of sets and of ways: for data, then for instructions.
    shape: [(u64, usize); 2],
    /// Lines that may be written if the write is reported to the model (state exclusive).
    exclusive: HashSet<u64>,
}

impl Cache {
    fn set(&mut self, side: Side, line: u64) -> Option<(&mut Vec<u64>, usize)> {
        let instruction = side == Side::Instruction;
        let (sets, ways) = self.shape[usize::from(instruction)];
        let key = (instruction, line >> 6 & sets.wrapping_sub(1));
        (ways > 1).then(|| (self.sets.entry(key).or_default(), ways))
    }

    /// Makes a line the most recently answered one of its set. Returns the line that it replaced: `oldest` if the L0 filter cache names it,
    /// otherwise the line whose last answer is the oldest. None: the set had space, or sets are not modelled.
    fn enter(&mut self, side: Side, line: u64, oldest: Option<u64>) -> Option<u64> {
        let (set, ways) = self.set(side, line)?;
        let held = set.contains(&line);
        set.retain(|&l| l != line);
        if let Some(oldest) = oldest {
            assert!(!held, "no line has to go for one that is there");
            // The set is not full if an update has removed a line since the L0 filter cache named `oldest`.
            let full = set.len() == ways;
            if full {
                assert!(set.contains(&oldest), "not a line to replace");
                set.retain(|&l| l != oldest);
            }
            set.insert(0, line);
            return full.then_some(oldest);
        }
        set.insert(0, line);
        if set.len() > ways { set.pop() } else { None }
    }

    fn remove(&mut self, side: Side, line: u64) {
        if let Some((set, _)) = self.set(side, line) {
            set.retain(|&l| l != line);
        }
    }
}

/// A random answer of the toy model.
struct Answer {
    /// Index in `Machine::lines` of the line that the reference's line replaces.
    place: usize,
    stall: u32,
    permission: Permission,
    /// True if the answer also updates another line.
    update: bool,
}

impl Answer {
    fn draw(r: &mut Random, access: Access) -> Self {
        let place = r.below(16) as usize;
        let stall = match r.below(16) {
            0..=9 => 0,
            10..=14 => r.below(200) as u32,
            _ => r.below(5000) as u32,
        };
        let permission = match r.below(8) {
            0 => Permission::None,
            1 | 2 => Permission::Read,
            _ if access == Access::Fetch => Permission::Read,
            3 | 4 => Permission::Exclusive,
            _ => Permission::ReadWrite,
        };
        let update = r.chance(100);
        Self {
            place,
            stall,
            permission,
            update,
        }
    }
}

impl Machine {
    /// Makes a platform. `period` is the mean number of cycles between interrupts; 0: no interrupts.
    pub fn new(seed: u64, period: u64) -> Self {
        let mut timer = Random::new(seed ^ 3);
        let due = if period == 0 {
            u64::MAX
        } else {
            timer.below(2 * period)
        };
        Self {
            counted: BTreeMap::new(),
            log: Vec::new(),
            model: Random::new(seed ^ 1),
            devices: Random::new(seed ^ 2),
            timer,
            slice_extensions: Random::new(seed ^ 4),
            recordings: Random::new(seed ^ 6),
            due,
            period,
            limit: 0,
            lines: [0; 16],
            line_shift: 6,
            updates: Vec::new(),
            caches: Default::default(),
            real: None,
            foreign_mxcsr: None,
        }
    }

    /// Computes with floating-point numbers, as a model may. Checks that MXCSR has the host's value, and records a wrong one.
    fn compute(&mut self) {
        let mut mxcsr = 0_u32;
        // SAFETY: STMXCSR writes four bytes, to a variable of four bytes.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack)) };
        // The host's MXCSR: rounding to nearest, no flush of subnormal numbers, all exceptions masked. The flags are ignored.
        let third = black_box(1.0_f64) / black_box(3.0);
        let subnormal = black_box(f64::MIN_POSITIVE) / black_box(2.0);
        if mxcsr & 0xffc0 != 0x1f80 || third.to_bits() != 0x3fd5_5555_5555_5555 || subnormal == 0.0
        {
            self.foreign_mxcsr = Some(mxcsr);
        }
    }

    /// Attaches the toy model with an L0 geometry; its caches are empty.
    pub fn attach(&mut self, geometry: &L0Geometry) {
        self.line_shift = geometry.line_shift;
        let shape = [
            (1 << geometry.data_slots, geometry.data_ways.into()),
            (
                1 << geometry.instruction_slots,
                geometry.instruction_ways.into(),
            ),
        ];
        for cache in &mut self.caches {
            *cache = Cache {
                sets: HashMap::new(),
                shape,
                exclusive: HashSet::new(),
            };
        }
    }

    /// Logs the counts by block of a window, and checks that the sums over blocks are the window's counters. Does neither if the vCPU lost
    /// counts of some blocks; the sums of a real model's stall cycles are checked in any case.
    ///
    /// # Panics
    /// If the sums are not the window's counters.
    pub fn take_profile(&mut self, profile: Option<BlockProfile>) {
        let counted = std::mem::take(&mut self.counted);
        let Some(profile) = profile else {
            return;
        };
        let mut merged: BTreeMap<(Context, Code), BlockCounts> = BTreeMap::new();
        let mut sums: BTreeMap<Context, Counters> = BTreeMap::new();
        let mut expected = sums.clone();
        for ((_, context, _), counters) in &counted {
            expected.entry(*context).or_default().add(counters);
            let sum = sums.entry(*context).or_default();
            sum.idle_cycles += counters.idle_cycles;
            sum.fetches += counters.fetches;
        }
        let mut charges = Charges::default();
        let complete = profile.lost_blocks == 0;
        for (context, block, counts) in profile.counts {
            let block = &profile.blocks[block as usize];
            let partial = &counts.partial;
            let sum = sums.entry(context).or_default();
            sum.instructions += counts.instructions(block.instructions);
            sum.long_cycles += counts.long_cycles;
            sum.stall_cycles += counts.charges.total();
            charges.add(&counts.charges);
            let all = |each: u32| counts.executions * u64::from(each);
            sum.loads += all(block.loads) + partial.loads + counts.more_loads;
            sum.stores += all(block.stores) + partial.stores + counts.more_stores;
            for (n, flops) in sum.flops.iter_mut().enumerate() {
                *flops += all(block.flops[n]) + partial.flops[n];
            }
            let code = (
                block.physical,
                block.second_page,
                block.bits,
                block.bytes.clone(),
            );
            merged.entry((context, code)).or_default().add(&counts);
        }
        if complete {
            assert_eq!(sums, expected, "blocks do not add up to what was counted");
        }
        if let Some(real) = &self.real {
            let counted: Vec<_> = counted
                .iter()
                .map(|((v, c, p), n)| (*v, *c, *p, *n))
                .collect();
            assert_eq!(
                charges.cycles,
                real.cycles_by_term(&counted),
                "terms of blocks do not add up to the model's"
            );
        }
        // Code that is decoded again gets another number, and may exceed the limit of blocks on only one side.
        if complete {
            self.log.push(Event::Profile(merged.into_iter().collect()));
        }
    }

    /// Begins a vCPU's time slice, which ends at the cycle `limit` unless the platform extends the slice.
    pub fn begin_slice(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Returns the time of the next interrupt, in cycles.
    pub fn due(&self) -> u64 {
        self.due
    }

    fn device(&mut self, what: &'static str, now: u64, at: u64, data: &[u8]) {
        self.log.push(Event::Device(what, now, at, data.to_vec()));
    }

    fn answer(&mut self, what: &'static str, now: u64, at: u64, data: &mut [u8]) {
        data.fill(self.devices.next() as u8);
        self.device(what, now, at, data);
    }

    /// Accounts for hits, and checks that the L0 filter cache was permitted to answer them.
    fn account_hits(&mut self, vcpu: u16, hits: Hits<'_>) {
        let cache = &mut self.caches[usize::from(vcpu)];
        let modified = hits.modified.to_vec();
        for line in &modified {
            let allowed = cache.exclusive.remove(line);
            assert!(allowed, "a write to a line that is not held alone");
        }
        if hits.oldest.is_some() || !modified.is_empty() {
            self.log.push(Event::Hits(hits.oldest, modified));
        }
    }

    /// Returns a random change to a vCPU's L0 filter cache, as another vCPU could cause. None: the change would be of the line `answered`.
    pub fn update(&mut self, vcpu: u16, answered: Option<u64>) -> Option<L0Update> {
        let update = L0Update {
            vcpu,
            side: self
                .model
                .pick(&[Side::Data, Side::Data, Side::Instruction]),
            line: self.model.pick(&self.lines),
            permission: self.model.pick(&[Permission::None, Permission::Read]),
        };
        if Some(update.line) == answered {
            return None;
        }
        if update.side == Side::Data {
            let cache = &mut self.caches[usize::from(vcpu)];
            cache.exclusive.remove(&update.line);
        }
        if update.permission == Permission::None {
            self.caches[usize::from(vcpu)].remove(update.side, update.line);
        }
        Some(update)
    }
}

/// Serves a direct miss by the toy model.
///
/// # Safety
/// As for [`nodescope_plugin_api::DirectMissFunction`], for a [`Machine`].
unsafe extern "sysv64" fn toy_miss(machine: NonNull<()>, miss: *const DirectMiss) -> Outcome {
    // SAFETY: the caller's promise. While the function runs, nothing else uses the machine or the miss.
    let (machine, miss) = unsafe { (machine.cast::<Machine>().as_mut(), &*miss) };
    // SAFETY: the caller's promise; the pointer is never null.
    let modified =
        unsafe { std::slice::from_raw_parts(miss.modified, miss.modified_count as usize) };
    let hits = Hits {
        oldest: Some(miss.oldest),
        modified,
    };
    let mut updates = std::mem::take(&mut machine.updates);
    let outcome = machine.reference(hits, &miss.reference, &mut updates);
    machine.updates = updates;
    // SAFETY: the caller's promise.
    if let Some(charges) = unsafe { miss.charges.as_mut() } {
        charges.stall(StallTerm::Unattributed, outcome.stall().into());
    }
    outcome.with_updates(!machine.updates.is_empty())
}

impl Platform for Machine {
    fn port_read(&mut self, _: u16, now: u64, port: u16, data: &mut [u8]) {
        self.answer("port read", now, port.into(), data);
    }
    fn port_write(&mut self, _: u16, now: u64, port: u16, data: &[u8]) {
        self.device("port write", now, port.into(), data);
    }
    fn mmio_read(&mut self, _: u16, now: u64, physical: u64, data: &mut [u8]) {
        self.answer("read", now, physical, data);
    }
    fn mmio_write(&mut self, _: u16, now: u64, physical: u64, data: &[u8]) {
        self.device("write", now, physical, data);
    }
    fn msr_read(&mut self, _: u16, now: u64, msr: u32) -> Result<u64, MsrFault> {
        self.device("RDMSR", now, msr.into(), &[]);
        Err(MsrFault)
    }
    fn msr_write(&mut self, _: u16, now: u64, msr: u32, value: u64) -> Result<(), MsrFault> {
        self.device("WRMSR", now, msr.into(), &value.to_le_bytes());
        Err(MsrFault)
    }
    fn tsc_offset_changed(&mut self, _: u16, now: u64, offset: u64) {
        self.device("TSC", now, offset, &[]);
    }
    fn task_priority(&mut self, _: u16) -> u8 {
        0
    }
    fn set_task_priority(&mut self, _: u16, now: u64, priority: u8) {
        self.device("CR8", now, 0, &[priority]);
    }
    fn interrupt_pending(&mut self, _: u16, now: u64) -> bool {
        self.due <= now
    }
    fn acknowledge(&mut self, _: u16, now: u64) -> Option<u8> {
        if self.due > now {
            return None;
        }
        self.due = now + 1 + self.timer.below(2 * self.period);
        // In some cases the interrupt is no longer pending.
        if self.timer.chance(50) {
            return None;
        }
        let vector = self.timer.pick(&INTERRUPTS);
        self.log.push(Event::Interrupt(now, vector));
        Some(vector)
    }
    fn next_event(&mut self, _: u16) -> u64 {
        self.due
    }
    fn extend(&mut self, _: u16) -> Option<u64> {
        self.compute();
        let more = self.slice_extensions.below(4) * 50;
        self.limit = self.limit.saturating_add(more);
        let extended = (more > 0).then_some(self.limit);
        self.log.push(Event::Extended(extended));
        extended
    }
    fn attention(&mut self) -> bool {
        let wanted = self.devices.chance(200);
        self.log.push(Event::Attention(wanted));
        wanted
    }
    fn hypercall(&mut self, call: &Hypercall, _: &mut dyn GuestVirtual) -> HypercallAnswer {
        self.log.push(Event::Hypercall(*call));
        HypercallAnswer {
            eax: self.devices.next() as u32,
            ..Default::default()
        }
    }
    fn context(&mut self, _: u16, cr3: u64, thread: u64) -> Context {
        self.log.push(Event::Context(cr3, thread));
        Context((cr3 >> 12) as u32 & 7 | u32::from(self.devices.chance(300)) << 3)
    }
    fn reference(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        self.compute();
        if let Some(real) = &mut self.real {
            return real.reference(hits, reference, updates);
        }
        self.account_hits(reference.vcpu, hits);
        let line = reference.physical >> self.line_shift << self.line_shift;
        let Answer {
            place,
            stall,
            permission,
            update,
        } = Answer::draw(&mut self.model, reference.access);
        self.lines[place] = line;
        if update {
            // An update must not be of the line that is answered.
            updates.extend(self.update(reference.vcpu, Some(line)));
        }
        let side = reference.access.side();
        let outcome = Outcome::new(
            stall,
            permission,
            self.caches[usize::from(reference.vcpu)].enter(side, line, hits.oldest),
        );
        let cache = &mut self.caches[usize::from(reference.vcpu)];
        if side == Side::Data {
            cache.exclusive.remove(&line);
            if let Some(replaced) = &outcome.replaced() {
                cache.exclusive.remove(replaced);
            }
            if permission == Permission::Exclusive {
                cache.exclusive.insert(line);
            }
        }
        self.log.push(Event::Reference(*reference, outcome));
        outcome
    }
    fn direct_misses(&mut self) -> Option<AcceptedDirectMisses> {
        let misses = match &mut self.real {
            Some(real) => real.direct_misses()?,
            // SAFETY: the function is for a machine.
            None => unsafe { DirectMisses::new(NonNull::from(self).cast(), toy_miss) },
        };
        // SAFETY: only `Pair::attach` replaces the model, and attaches it to all vCPUs again. The pair and its machines are not moved while
        // the pair runs. The vCPUs run one at a time.
        Some(unsafe { misses.accept() })
    }
    fn take_updates(&mut self, vcpu: u16, updates: &mut Vec<L0Update>) {
        match &mut self.real {
            Some(real) => real.take_updates(vcpu, updates),
            None => updates.append(&mut self.updates),
        }
    }
    fn modified(&mut self, vcpu: u16, lines: &[u64]) {
        if let Some(real) = &mut self.real {
            return real.modified(vcpu, lines);
        }
        let hits = Hits {
            oldest: None,
            modified: lines,
        };
        self.account_hits(vcpu, hits);
    }
    fn take_charges(&mut self) -> Charges {
        self.real
            .as_mut()
            .map(Caches::take_charges)
            .unwrap_or_default()
    }
    fn recorded(&mut self, _: u16, recording: &Recording) -> Option<RecordingPlan> {
        self.compute();
        let mut recording = recording.clone();
        // Numbers of blocks depend on the side. A model without an L0 filter cache answers more references.
        for block in &mut recording.blocks {
            block.number = 0;
        }
        recording.answers.clear();
        for step in &mut recording.steps {
            step.answers = 0;
        }
        self.log.push(Event::Recorded(recording.clone()));
        let r = &mut self.recordings;
        r.chance(900).then(|| RecordingPlan {
            after: r.below(300),
            length: 1 + r.below(200),
            costs: (recording.blocks.iter())
                .map(|_| {
                    let known = r.chance(700);
                    known.then(|| r.pick(&[1 << 16, 20_000, 99_991, 12_000, 1 << 18, 0]))
                })
                .collect(),
        })
    }
    fn account(&mut self, vcpu: u16, context: Context, privilege: Privilege, counters: &Counters) {
        self.counted
            .entry((vcpu, context, privilege))
            .or_default()
            .add(counters);
        self.log.push(Event::Account(context, privilege, *counters));
    }
}
