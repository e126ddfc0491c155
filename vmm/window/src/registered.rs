//! Registered models around a memory model: observers, models that add cycles to references, and a model of main memory.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use nodescope_plugin_api::{
    AcceptedDirectMisses, Answered, Batch, Charges, ContendedLine, Context, Counters, Declaration,
    DirectMiss, DirectMisses, Event, Failure, Hits, Key, L0Geometry, L0Update, Ledger, LineMoves,
    MemRef, MemoryLatency, MemoryModel, MemoryRequest, MemoryTiming, MemoryTimingModel, MissRef,
    ModelFile, Needs, Observer, Outcome, Permission, Prefetched, Privilege, ReferenceTiming,
    Source, StallTerm, Statistic, Term,
};
use nodescope_plugin_numa::Numa;

/// Most events of a batch.
const BATCH: usize = 4096;

/// A memory model, and the registered models that see its references.
pub(crate) struct Registered {
    model: Box<dyn MemoryModel>,
    /// The memory model's function for direct misses.
    misses: Option<AcceptedDirectMisses>,
    needs: Needs,
    line_shift: u8,
    observers: Vec<Watching>,
    /// Whether an observer sees every reference, and whether one sees misses of the first level alone.
    observe_every: bool,
    observe_misses: bool,
    timings: Vec<Adding>,
    memory: Option<CountedMemory>,
    /// Events that observers have not seen yet: of every reference, and of misses of the first level.
    pending: [Pending; 2],
    /// Charges that the engine has not taken yet.
    charges: Charges,
    /// Lines that prefetchers have brought because of the last reference.
    prefetched: Vec<Prefetched>,
    failure: Failure,
}

// SAFETY: `misses` is used only by the function for direct misses, on the thread that runs the vCPUs, which has the memory model as well.
unsafe impl Send for Registered {}

/// Index in [`Registered::pending`].
const EVERY: usize = 0;
const MISSES: usize = 1;

/// Events of one key that observers have not seen yet, and the clock at the first.
struct Pending {
    events: Vec<Event>,
    key: Key,
    clock: u64,
}

impl Pending {
    fn new() -> Pending {
        Pending {
            events: Vec::new(),
            key: (0, Context::default(), Privilege::User),
            clock: 0,
        }
    }

    /// Returns whether an event of a reference cannot be one of this batch.
    fn ends_at(&self, reference: &MemRef) -> bool {
        let cycles = reference.now.wrapping_sub(self.clock);
        self.key != key(reference) || self.events.len() >= BATCH || cycles > Event::MOST_CYCLES
    }
}

fn key(reference: &MemRef) -> Key {
    (reference.vcpu, reference.context, reference.privilege)
}

struct Watching {
    declaration: Declaration,
    observer: Box<dyn Observer>,
    counts: BTreeMap<Key, Vec<u64>>,
}

struct Adding {
    declaration: Declaration,
    timing: Box<dyn ReferenceTiming>,
    ledger: Ledger,
}

/// Events of a registered model of main memory, which knows no contexts: it notes the events of a reference here.
type Noted = Arc<Mutex<Vec<u16>>>;

struct CountedMemory {
    declaration: Declaration,
    noted: Noted,
    ledger: Ledger,
}

/// A registered model of main memory, in memory whose homes are those of a NUMA node.
pub(crate) struct RegisteredMemory {
    pub(crate) model: Box<dyn MemoryLatency>,
    pub(crate) homes: Numa,
    pub(crate) noted: Noted,
}

impl MemoryTimingModel for RegisteredMemory {
    fn request(&mut self, miss: &MissRef) -> MemoryTiming {
        let home = self.homes.home(miss.line);
        let latency = self.model.request(&MemoryRequest {
            line: miss.line,
            now: miss.now,
            vcpu: miss.vcpu,
            socket: miss.socket,
            home,
            write_back: miss.write_back,
        });
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.extend(latency.event);
        MemoryTiming {
            latency: latency.cycles,
            local: home == miss.socket,
            toll: 0,
        }
    }

    fn home(&self, physical: u64) -> u16 {
        self.homes.home(physical)
    }
}

impl Registered {
    /// Wraps the memory model of a node. `failure` is the one with which its registered policies and prefetchers were made.
    pub(crate) fn new(model: Box<dyn MemoryModel>, failure: Failure) -> Registered {
        Registered {
            line_shift: model.l0_geometry().line_shift,
            model,
            misses: None,
            needs: Needs::default(),
            observers: Vec::new(),
            observe_every: false,
            observe_misses: false,
            timings: Vec::new(),
            memory: None,
            pending: [Pending::new(), Pending::new()],
            charges: Charges::default(),
            prefetched: Vec::new(),
            failure,
        }
    }

    pub(crate) fn observe_by(&mut self, declaration: Declaration, observer: Box<dyn Observer>) {
        self.needs = self.needs.and(declaration.needs);
        match declaration.needs.every_reference {
            true => self.observe_every = true,
            false => self.observe_misses = true,
        }
        self.observers.push(Watching {
            declaration,
            observer,
            counts: BTreeMap::new(),
        });
    }

    pub(crate) fn add_cycles_by(
        &mut self,
        declaration: Declaration,
        timing: Box<dyn ReferenceTiming>,
        vcpus: usize,
    ) {
        self.needs = self.needs.and(declaration.needs);
        self.timings.push(Adding {
            declaration,
            timing,
            ledger: Ledger::new(declaration.events.len(), vcpus),
        });
    }

    pub(crate) fn count_memory(&mut self, declaration: Declaration, noted: Noted, vcpus: usize) {
        self.memory = Some(CountedMemory {
            declaration,
            noted,
            ledger: Ledger::new(declaration.events.len(), vcpus),
        });
    }

    fn sees_nothing(&self) -> bool {
        self.observers.is_empty() && self.timings.is_empty() && self.memory.is_none()
    }

    /// Shows a reference and its answer to the models. Returns the cycles that they add.
    fn show(&mut self, reference: &MemRef, outcome: Outcome, charges: &Charges) -> u32 {
        if let Some(memory) = &mut self.memory {
            let mut noted = memory.noted.lock().unwrap_or_else(PoisonError::into_inner);
            if !noted.is_empty() {
                let account = memory.ledger.select(reference);
                for event in noted.drain(..) {
                    memory.ledger.charge_fixed(account, event.into(), 0);
                }
            }
        }
        let source = Source::of(charges);
        let mut added = 0_u32;
        let answered = Answered {
            source,
            stall: outcome.stall(),
        };
        for adding in &mut self.timings {
            // What a model sees must not depend on what the others need.
            let needs = adding.declaration.needs;
            if source.is_none() && !needs.every_reference {
                continue;
            }
            let seen = MemRef {
                large_page: reference.large_page && needs.page_sizes,
                ..*reference
            };
            if let Some(extra) = adding.timing.reference(&seen, answered) {
                let account = adding.ledger.select(reference);
                let event = usize::from(extra.event);
                adding.ledger.charge(account, event, extra.cycles.into());
                added = added.saturating_add(extra.cycles);
            }
        }
        if !self.observers.is_empty() {
            self.prefetched.clear();
            self.model.take_prefetched(&mut self.prefetched);
            if self.observe_every {
                self.note(EVERY, reference, charges);
            }
            if self.observe_misses && (source.is_some() || !self.prefetched.is_empty()) {
                self.note(MISSES, reference, charges);
            }
        }
        added
    }

    /// Adds the events of a reference to a batch.
    fn note(&mut self, batch: usize, reference: &MemRef, charges: &Charges) {
        if self.pending[batch].ends_at(reference) {
            self.deliver(batch);
            (self.pending[batch].key, self.pending[batch].clock) = (key(reference), reference.now);
        }
        let Pending { events, clock, .. } = &mut self.pending[batch];
        let shift = self.line_shift;
        let event = Event::of_reference(reference, charges, shift, reference.now - *clock);
        if batch == EVERY || event.source().is_some() {
            events.push(event);
        }
        let prefetched = self.prefetched.iter();
        events.extend(prefetched.map(|line| event.of_prefetch(line, shift)));
    }

    /// Shows the events of a batch to its observers.
    fn deliver(&mut self, batch: usize) {
        let Pending { events, key, clock } = &mut self.pending[batch];
        if events.is_empty() {
            return;
        }
        let (vcpu, context, privilege) = *key;
        let shown = Batch {
            vcpu,
            context,
            privilege,
            line_bytes: 1 << self.line_shift,
            clock: *clock,
            events,
        };
        for watching in &mut self.observers {
            let declaration = &watching.declaration;
            if declaration.needs.every_reference != (batch == EVERY) {
                continue;
            }
            let counts = watching.counts.entry(*key);
            let counts = counts.or_insert_with(|| vec![0; declaration.events.len()]);
            watching.observer.observe(&shown, counts);
        }
        events.clear();
    }

    fn deliver_all(&mut self) {
        self.deliver(EVERY);
        self.deliver(MISSES);
    }

    fn rows(&self) -> Vec<Statistic> {
        let row = |declaration: &Declaration, key: Key, event: usize, term| Statistic {
            vcpu: key.0,
            context: key.1,
            privilege: key.2,
            event: format!("{}.{}", declaration.name, declaration.events[event].name),
            term,
            count: 0,
            latency: 0,
            cycles: 0,
        };
        let mut rows = Vec::new();
        for Watching {
            declaration,
            counts,
            ..
        } in &self.observers
        {
            for (key, counts) in counts {
                let counted = counts.iter().enumerate().filter(|(_, count)| **count != 0);
                rows.extend(counted.map(|(event, count)| Statistic {
                    count: *count,
                    ..row(declaration, *key, event, Term::None)
                }));
            }
        }
        let ledgers = (self.timings.iter())
            .map(|adding| (&adding.declaration, &adding.ledger, Term::Model))
            .chain(
                (self.memory.iter())
                    .map(|memory| (&memory.declaration, &memory.ledger, Term::None)),
            );
        for (declaration, ledger, term) in ledgers {
            for (key, tallies) in ledger.accounts() {
                let counted = tallies
                    .iter()
                    .enumerate()
                    .filter(|(_, tally)| tally.count != 0);
                rows.extend(counted.map(|(event, tally)| Statistic {
                    count: tally.count,
                    latency: tally.latency(),
                    cycles: tally.cycles,
                    ..row(declaration, key, event, term)
                }));
            }
        }
        rows
    }
}

/// Serves a direct miss.
///
/// # Safety
/// As for [`nodescope_plugin_api::DirectMissFunction`], for a [`Registered`].
unsafe extern "sysv64" fn direct_miss(model: NonNull<()>, miss: *const DirectMiss) -> Outcome {
    // SAFETY: the caller's promise. While the function runs, nothing else uses the model or the miss.
    let (model, miss) = unsafe { (model.cast::<Registered>().as_mut(), &*miss) };
    let misses = model.misses.expect("set before this function is known");
    // SAFETY: the promises of the caller and of `Registered::direct_misses`.
    let (outcome, charges) = unsafe { misses.serve(miss) };
    let added = model.show(&miss.reference, outcome, &charges);
    // SAFETY: the caller's promise.
    if let Some(target) = unsafe { miss.charges.as_mut() } {
        target.stall(StallTerm::Unattributed, added.into());
    }
    outcome.with_stall(outcome.stall().saturating_add(added))
}

impl MemoryModel for Registered {
    fn l0_geometry(&self) -> L0Geometry {
        self.needs.of(self.model.l0_geometry())
    }

    fn reference(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        let outcome = self.model.reference(hits, reference, updates);
        if self.sees_nothing() {
            return outcome;
        }
        let charges = self.model.take_charges();
        self.charges.add(&charges);
        let added = self.show(reference, outcome, &charges);
        self.charges.stall(StallTerm::Unattributed, added.into());
        let stall = outcome.stall().saturating_add(added);
        match self.needs.every_reference {
            true => Outcome::new(stall, Permission::None, outcome.replaced()),
            false => outcome.with_stall(stall),
        }
    }

    fn direct_misses(&mut self) -> Option<DirectMisses> {
        if self.needs.page_sizes || self.needs.every_reference {
            return None;
        }
        let misses = self.model.direct_misses()?;
        if self.sees_nothing() {
            return Some(misses);
        }
        // SAFETY: the memory model is in a box that this value keeps, and only this value uses the model. The engine calls the function
        // below only as long as this value exists and is not moved.
        self.misses = Some(unsafe { misses.accept() });
        // SAFETY: the function expects this value, and makes no other demands than those of its type.
        Some(unsafe { DirectMisses::new(NonNull::from(self).cast(), direct_miss) })
    }

    fn take_updates(&mut self, updates: &mut Vec<L0Update>) {
        self.model.take_updates(updates);
    }

    fn take_charges(&mut self) -> Charges {
        match self.sees_nothing() {
            true => self.model.take_charges(),
            false => std::mem::take(&mut self.charges),
        }
    }

    fn take_prefetched(&mut self, prefetched: &mut Vec<Prefetched>) {
        match self.observers.is_empty() {
            true => self.model.take_prefetched(prefetched),
            false => prefetched.append(&mut self.prefetched),
        }
    }

    fn line_moves(&self) -> LineMoves {
        self.model.line_moves()
    }

    fn contended_lines(&self) -> Vec<ContendedLine> {
        self.model.contended_lines()
    }

    fn modified(&mut self, vcpu: u16, lines: &[u64]) {
        self.model.modified(vcpu, lines);
    }

    fn flush(&mut self) {
        self.deliver_all();
    }

    fn take_files(&mut self) -> Vec<ModelFile> {
        let files = self.observers.iter_mut().map(|watching| ModelFile {
            model: watching.declaration.name.to_owned(),
            bytes: watching.observer.file(),
        });
        files.filter(|file| !file.bytes.is_empty()).collect()
    }

    fn failure(&self) -> Option<String> {
        self.failure.get().map(str::to_owned)
    }

    fn reset_statistics(&mut self) {
        self.deliver_all();
        self.model.reset_statistics();
        for watching in &mut self.observers {
            watching.counts.clear();
        }
        for adding in &mut self.timings {
            adding.ledger.clear();
        }
        if let Some(memory) = &mut self.memory {
            memory.ledger.clear();
        }
    }

    fn statistics(&self, counted: &[(u16, Context, Privilege, Counters)]) -> Vec<Statistic> {
        let mut statistics = self.model.statistics(counted);
        statistics.extend(self.rows());
        statistics
    }
}
