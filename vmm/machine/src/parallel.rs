//! Parallel execution of a node's vCPUs, each on a host thread, for engines that allow this.
//!
//! A round runs all vCPUs of the node to the same virtual time. A mutex protects the motherboard; a vCPU locks the mutex for each access to
//! the platform. Between accesses vCPUs run independently. After an access that may cause interrupts, the thread notifies the other vCPUs
//! that have an interrupt to take. A sleeping vCPU wakes and continues from the time of the access. A running vCPU is kicked out of the
//! guest.
//!
//! The clocks of vCPUs differ by one round at most. A vCPU that sleeps until its timer expires within the round continues at once, from
//! that time. The first vCPU that reaches the time of a device's next event advances the device. If all vCPUs sleep, the vCPU that fell
//! asleep last does so. The host decides the order of vCPUs, so that results differ from run to run.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nodescope_devices::lapic::CpuAction;
use nodescope_devices::power::PowerRequest;
use nodescope_engine::{
    EngineError, Exit, GuestVirtual, Hypercall, HypercallAnswer, Kicker, Limit, MsrFault, Platform,
    Vcpu,
};
use nodescope_plugin_api::{
    Context, Counters, Hits, L0Update, MemRef, Outcome, Permission, Privilege,
};

use crate::actions;
use crate::motherboard::Motherboard;
use crate::node::NodeStatus;

/// Reason why a round failed.
pub(crate) enum Failure {
    /// The engine stopped with an error.
    Engine(EngineError),
    /// A vCPU shut down after a triple fault.
    Shutdown {
        vcpu: usize,
        ip: u64,
        instructions: u64,
    },
    /// A vCPU's thread panicked, with this payload.
    Panic(Box<dyn Any + Send>),
}

/// Phase of a vCPU within a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The vCPU runs, or is about to run.
    Running,
    /// The vCPU waits for another vCPU or a device to wake it.
    Asleep,
    /// The vCPU has finished the round.
    #[default]
    Finished,
}

/// State of a vCPU that the threads of the other vCPUs may access.
struct Slot {
    vcpu: Option<Box<dyn Vcpu>>,
    kicker: Arc<dyn Kicker>,
    phase: Phase,
    /// True if the vCPU has stopped in HLT, or waits for a start-up message.
    halted: bool,
    /// True if the vCPU has stopped in HLT with interrupts disabled: only an INIT or NMI message wakes it.
    interrupts_disabled: bool,
    /// Pending vector of which the vCPU was notified last; `None` for none.
    notified: Option<u8>,
    /// Pending vector that the vCPU itself found; outer `None` if it has not checked since it began to run.
    observed: Option<Option<u8>>,
    /// Clock, in cycles, of the access or device event that woke the vCPU.
    woken_at: u64,
    /// INIT, start-up and NMI messages that wait for the vCPU.
    actions: VecDeque<CpuAction>,
    /// True if the vCPU has made a hypercall that wants attention, and therefore pauses until the round's end.
    paused: bool,
}

/// State that the threads of a node's vCPUs share.
struct State {
    /// Motherboard of the node; `None` outside a round.
    motherboard: Option<Box<Motherboard>>,
    /// Number of rounds that have begun.
    round: u64,
    /// End of the round, in cycles.
    end: u64,
    slots: Vec<Slot>,
    /// Number of vCPUs in [`Phase::Running`].
    running: usize,
    /// Number of vCPUs whose threads have not finished the round.
    out: usize,
    /// True if the round ends early, after a power request or a failure.
    over: bool,
    failure: Option<Failure>,
    dismissed: bool,
}

impl State {
    fn motherboard(&mut self) -> &mut Motherboard {
        self.motherboard
            .as_deref_mut()
            .expect("the motherboard is here during a round")
    }
}

struct Shared {
    state: Mutex<State>,
    /// For each vCPU, a condition that is signalled when a round begins or the sleeping vCPU may have to wake.
    wake: Vec<Condvar>,
    /// Condition that is signalled when all threads have finished the round.
    back: Condvar,
    /// Stop flag of the node; see [`crate::node::Node::set_stop`].
    stop: Mutex<Arc<AtomicBool>>,
}

/// Threads for the vCPUs of a node. The first vCPU runs on the thread that calls [`Parallel::round`].
pub(crate) struct Parallel {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Input of a round. The motherboard, the vCPUs and their flags `halted` are taken, and put back at the round's end.
pub(crate) struct Round<'a> {
    pub motherboard: &'a mut Option<Box<Motherboard>>,
    pub vcpus: &'a mut Vec<Box<dyn Vcpu>>,
    pub halted: &'a mut Vec<bool>,
    pub stop: &'a Arc<AtomicBool>,
    /// End of the round, in cycles.
    pub end: u64,
}

impl Parallel {
    /// Starts threads for vCPUs with these kickers, one for each vCPU but the first.
    pub fn new(kickers: Vec<Arc<dyn Kicker>>) -> io::Result<Self> {
        let count = kickers.len();
        let slot = |kicker| Slot {
            vcpu: None,
            kicker,
            phase: Phase::Finished,
            halted: false,
            interrupts_disabled: false,
            notified: None,
            observed: None,
            woken_at: 0,
            actions: VecDeque::new(),
            paused: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                motherboard: None,
                round: 0,
                end: 0,
                slots: kickers.into_iter().map(slot).collect(),
                running: 0,
                out: 0,
                over: false,
                failure: None,
                dismissed: false,
            }),
            wake: (0..count).map(|_| Condvar::new()).collect(),
            back: Condvar::new(),
            stop: Mutex::default(),
        });
        let mut this = Self {
            shared,
            threads: Vec::new(),
        };
        for v in 1..count {
            let shared = Arc::clone(&this.shared);
            let thread = std::thread::Builder::new().name(format!("vcpu{v}"));
            this.threads
                .push(thread.spawn(move || shared.follow_rounds(v))?);
        }
        Ok(this)
    }

    /// Runs all vCPUs to the round's end. Returns the node's new status if the guest has requested a power-off or reset, otherwise `None`.
    pub fn round(&mut self, round: Round<'_>) -> Result<Option<NodeStatus>, Failure> {
        let shared = &self.shared;
        let count = round.vcpus.len();
        *lock(&shared.stop) = Arc::clone(round.stop);
        let mut state = lock(&shared.state);
        state.motherboard = round.motherboard.take();
        let vcpus = round.vcpus.drain(..).zip(round.halted.iter());
        for (slot, (vcpu, halted)) in state.slots.iter_mut().zip(vcpus) {
            slot.vcpu = Some(vcpu);
            slot.phase = Phase::Running;
            slot.halted = *halted;
            slot.interrupts_disabled = false;
            slot.notified = None;
            slot.woken_at = 0;
            slot.paused = false;
        }
        state.end = round.end;
        state.running = count;
        state.out = count;
        state.over = false;
        state.round += 1;
        drop(state);
        for wake in &shared.wake[1..] {
            wake.notify_one();
        }
        shared.run_round(0);
        let mut state = lock(&shared.state);
        while state.out > 0 {
            state = wait(&shared.back, state);
        }
        // These messages are for vCPUs that had already finished the round.
        for v in 0..count {
            while let Some(action) = state.slots[v].actions.pop_front() {
                let Some(mut vcpu) = state.slots[v].vcpu.take() else {
                    break;
                };
                drop(state);
                let result = shared.carry_out(v, vcpu.as_mut(), action);
                state = lock(&shared.state);
                let slot = &mut state.slots[v];
                slot.vcpu = Some(vcpu);
                match result {
                    Ok(halted) => slot.halted = halted.unwrap_or(slot.halted),
                    Err(failure) => {
                        state.failure.get_or_insert(failure);
                    }
                }
            }
        }
        *round.motherboard = state.motherboard.take();
        round.halted.clear();
        for slot in &mut state.slots {
            round.vcpus.extend(slot.vcpu.take());
            round.halted.push(slot.halted);
        }
        match state.failure.take() {
            Some(Failure::Panic(panic)) => {
                drop(state);
                resume_unwind(panic)
            }
            Some(failure) => Err(failure),
            None => {
                let motherboard = round.motherboard.as_deref_mut();
                let request =
                    motherboard.and_then(|motherboard| motherboard.chipset.power.take_request());
                Ok(request.map(|request| match request {
                    PowerRequest::PowerOff => NodeStatus::Off,
                    PowerRequest::Reset => NodeStatus::Reset,
                }))
            }
        }
    }
}

impl Drop for Parallel {
    fn drop(&mut self) {
        lock(&self.shared.state).dismissed = true;
        for wake in &self.shared.wake {
            wake.notify_all();
        }
        for thread in self.threads.drain(..) {
            // The thread's panic has been caught, and resumed on the caller's thread.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread's panic may poison the mutex, and ends the round with a failure. The threads still use the state until the round has ended.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition
        .wait(guard)
        .unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Runs a vCPU's part of each round on the vCPU's thread, until the thread is dismissed.
    fn follow_rounds(&self, v: usize) {
        let mut seen = 0;
        loop {
            let mut state = lock(&self.state);
            while state.round == seen && !state.dismissed {
                state = wait(&self.wake[v], state);
            }
            if state.dismissed {
                return;
            }
            seen = state.round;
            drop(state);
            self.run_round(v);
        }
    }

    /// Runs a vCPU's part of a round: takes the vCPU from its slot, and puts it back afterwards.
    fn run_round(&self, v: usize) {
        let Some(mut vcpu) = lock(&self.state).slots[v].vcpu.take() else {
            return;
        };
        let result = catch_unwind(AssertUnwindSafe(|| self.run_vcpu(v, vcpu.as_mut())))
            .unwrap_or_else(|panic| Err(Failure::Panic(panic)));
        let mut state = lock(&self.state);
        if let Err(failure) = result {
            state.failure.get_or_insert(failure);
            self.end_all(&mut state);
        }
        self.leave(&mut state, v, Phase::Finished);
        state.slots[v].vcpu = Some(vcpu);
        state.out -= 1;
        if state.out == 0 {
            self.back.notify_all();
        }
    }

    /// Records that the vCPU no longer runs. If it was the last one running, wakes the sleeping vCPUs, one of which must advance the
    /// devices.
    fn leave(&self, state: &mut State, v: usize, phase: Phase) {
        if state.slots[v].phase == Phase::Running {
            state.running -= 1;
        }
        let slot = &mut state.slots[v];
        slot.phase = phase;
        // A sleeping vCPU has not seen the interrupt of its last notification, so that the same vector must notify it again.
        slot.notified = None;
        if state.running == 0 {
            for (other, slot) in state.slots.iter().enumerate() {
                if slot.phase == Phase::Asleep && other != v {
                    self.wake[other].notify_one();
                }
            }
        }
    }

    /// Ends the round early for all vCPUs.
    fn end_all(&self, state: &mut State) {
        state.over = true;
        for (slot, wake) in state.slots.iter().zip(&self.wake) {
            match slot.phase {
                Phase::Running => slot.kicker.kick(),
                Phase::Asleep => wake.notify_one(),
                Phase::Finished => {}
            }
        }
    }

    fn stopped(&self) -> bool {
        lock(&self.stop).load(Ordering::Relaxed)
    }

    fn run_vcpu(&self, v: usize, vcpu: &mut dyn Vcpu) -> Result<(), Failure> {
        let mut access = Access { shared: self, v };
        while self.has_work(v, vcpu)? {
            let end = lock(&self.state).end;
            let exit = vcpu
                .run(&mut access, Limit::cycles(end))
                .map_err(Failure::Engine)?;
            let mut state = lock(&self.state);
            match exit {
                Exit::Limit => return Ok(()),
                Exit::Halted => {
                    let pending = state
                        .motherboard()
                        .chipset
                        .interrupts
                        .pending(v as u16, vcpu.cycles());
                    let slot = &mut state.slots[v];
                    slot.halted = true;
                    // The vCPU observed this interrupt and did not take it, so it is in HLT with interrupts disabled: only NMI and INIT
                    // wake it. A newer interrupt would wake the vCPU. A vCPU that waits for a start-up message has not observed any.
                    slot.interrupts_disabled =
                        pending.is_some() && slot.observed.is_none_or(|found| found == pending);
                }
                Exit::Attention => {
                    if state.slots[v].paused {
                        return Ok(());
                    }
                }
                Exit::Shutdown => {
                    drop(state);
                    return Err(Failure::Shutdown {
                        vcpu: v,
                        ip: vcpu.save().general.rip,
                        instructions: vcpu.instructions(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Sleeps until the vCPU has something to execute. Returns false if the round ends before that.
    fn has_work(&self, v: usize, vcpu: &mut dyn Vcpu) -> Result<bool, Failure> {
        let mut state = lock(&self.state);
        loop {
            if state.over || self.stopped() {
                return Ok(false);
            }
            if let Some(action) = state.slots[v].actions.pop_front() {
                drop(state);
                let halted = self.carry_out(v, vcpu, action)?;
                state = lock(&self.state);
                let slot = &mut state.slots[v];
                slot.halted = halted.unwrap_or(slot.halted);
                slot.interrupts_disabled = false;
                continue;
            }
            let end = state.end;
            if state.slots[v].halted && !self.may_wake(&mut state, v, vcpu, end) {
                self.leave(&mut state, v, Phase::Asleep);
                if state.running == 0 {
                    // All vCPUs sleep or have finished: the next event may be that of a device.
                    let device = state.motherboard().chipset.next_event();
                    if device >= end {
                        vcpu.advance_to(end);
                        return Ok(false);
                    }
                    state.motherboard().chipset.advance(device);
                    self.notify_others(&mut state, v, device);
                    state.slots[v].woken_at = device;
                    if !self.others_wake(&mut state, v) {
                        continue;
                    }
                }
                state = wait(&self.wake[v], state);
                continue;
            }
            let slot = &mut state.slots[v];
            slot.notified = None;
            slot.observed = None;
            if slot.phase != Phase::Running {
                slot.phase = Phase::Running;
                state.running += 1;
            }
            return Ok(true);
        }
    }

    /// Returns whether another sleeping vCPU has an interrupt to take.
    fn others_wake(&self, state: &mut State, v: usize) -> bool {
        (0..state.slots.len()).any(|other| {
            let slot = &state.slots[other];
            let sleeps = slot.phase == Phase::Asleep && !slot.interrupts_disabled && other != v;
            let interrupts = &mut state.motherboard().chipset.interrupts;
            sleeps && interrupts.pending(other as u16, 0).is_some()
        })
    }

    /// Returns whether a sleeping vCPU has an interrupt to take before the round's end. If so, advances the vCPU's clock to the interrupt.
    fn may_wake(&self, state: &mut State, v: usize, vcpu: &mut dyn Vcpu, end: u64) -> bool {
        let id = v as u16;
        if state.slots[v].interrupts_disabled {
            return false;
        }
        let woken_at = std::mem::take(&mut state.slots[v].woken_at);
        let interrupts = &mut state.motherboard().chipset.interrupts;
        // An interrupt of the local APIC's timer becomes pending when the timer expires.
        while interrupts.pending(id, vcpu.cycles()).is_none() {
            let timer = interrupts.next_event(id);
            if timer >= end {
                return false;
            }
            vcpu.advance_to(timer);
        }
        vcpu.advance_to(woken_at.min(end));
        state.slots[v].halted = false;
        true
    }

    /// Applies an INIT, start-up or NMI message to the vCPU. Returns whether the vCPU sleeps afterwards; `None` if the message has no
    /// effect.
    fn carry_out(
        &self,
        v: usize,
        vcpu: &mut dyn Vcpu,
        action: CpuAction,
    ) -> Result<Option<bool>, Failure> {
        let mut access = Access { shared: self, v };
        vcpu.synchronize(&mut access).map_err(Failure::Engine)?;
        let mut before = vcpu.save();
        let halted = actions::carry_out(action, &mut before);
        vcpu.restore(&before);
        Ok(halted)
    }

    /// Notifies other vCPUs of messages and interrupts after an access of vCPU `v` at clock `now`, in cycles.
    fn notify_others(&self, state: &mut State, v: usize, now: u64) {
        let State {
            motherboard: Some(motherboard),
            slots,
            ..
        } = state
        else {
            return;
        };
        let interrupts = &mut motherboard.chipset.interrupts;
        if interrupts.has_actions() {
            for action in interrupts.take_actions() {
                let target = usize::from(actions::target(action));
                let slot = &mut slots[target];
                slot.actions.push_back(action);
                match slot.phase {
                    Phase::Running if target != v => slot.kicker.kick(),
                    Phase::Asleep => self.wake[target].notify_one(),
                    _ => {}
                }
            }
        }
        for (other, slot) in slots.iter_mut().enumerate() {
            if other == v || slot.phase == Phase::Finished {
                continue;
            }
            // With time 0 no timer expires by this check.
            let pending = interrupts.pending(other as u16, 0);
            if pending.is_some() && pending != slot.notified {
                slot.notified = pending;
                if slot.phase == Phase::Asleep {
                    slot.woken_at = now;
                    self.wake[other].notify_one();
                } else {
                    slot.kicker.kick();
                }
            }
        }
        if motherboard.chipset.power.request().is_some() && !state.over {
            self.end_all(state);
        }
    }
}

/// The motherboard as vCPU `v` accesses it during a round.
struct Access<'a> {
    shared: &'a Shared,
    v: usize,
}

impl Access<'_> {
    /// Accesses the motherboard by `f`, which must not affect other vCPUs.
    fn access<R>(&self, f: impl FnOnce(&mut Motherboard) -> R) -> R {
        f(lock(&self.shared.state).motherboard())
    }

    /// Accesses the motherboard by `f` at clock `now`, and notifies other vCPUs.
    fn access_and_notify<R>(&self, now: u64, f: impl FnOnce(&mut Motherboard) -> R) -> R {
        let mut state = lock(&self.shared.state);
        let result = f(state.motherboard());
        self.shared.notify_others(&mut state, self.v, now);
        result
    }
}

impl Platform for Access<'_> {
    fn port_read(&mut self, vcpu: u16, now: u64, port: u16, data: &mut [u8]) {
        self.access_and_notify(now, |motherboard| {
            motherboard.port_read(vcpu, now, port, data)
        });
    }

    fn port_write(&mut self, vcpu: u16, now: u64, port: u16, data: &[u8]) {
        self.access_and_notify(now, |motherboard| {
            motherboard.port_write(vcpu, now, port, data)
        });
    }

    fn mmio_read(&mut self, vcpu: u16, now: u64, physical: u64, data: &mut [u8]) {
        self.access_and_notify(now, |motherboard| {
            motherboard.mmio_read(vcpu, now, physical, data)
        });
    }

    fn mmio_write(&mut self, vcpu: u16, now: u64, physical: u64, data: &[u8]) {
        self.access_and_notify(now, |motherboard| {
            motherboard.mmio_write(vcpu, now, physical, data)
        });
    }

    fn msr_read(&mut self, vcpu: u16, now: u64, msr: u32) -> Result<u64, MsrFault> {
        self.access_and_notify(now, |motherboard| motherboard.msr_read(vcpu, now, msr))
    }

    fn msr_write(&mut self, vcpu: u16, now: u64, msr: u32, value: u64) -> Result<(), MsrFault> {
        self.access_and_notify(now, |motherboard| {
            motherboard.msr_write(vcpu, now, msr, value)
        })
    }

    fn tsc_offset_changed(&mut self, vcpu: u16, now: u64, offset: u64) {
        self.access(|motherboard| motherboard.tsc_offset_changed(vcpu, now, offset));
    }

    fn task_priority(&mut self, vcpu: u16) -> u8 {
        self.access(|motherboard| motherboard.task_priority(vcpu))
    }

    fn set_task_priority(&mut self, vcpu: u16, now: u64, priority: u8) {
        self.access(|motherboard| motherboard.set_task_priority(vcpu, now, priority));
    }

    /// Advances devices whose events are due by this vCPU's clock, then returns whether the vCPU has an interrupt to take.
    fn interrupt_pending(&mut self, vcpu: u16, now: u64) -> bool {
        let mut state = lock(&self.shared.state);
        let motherboard = state.motherboard();
        if motherboard.chipset.next_event() <= now {
            motherboard.chipset.advance(now);
            self.shared.notify_others(&mut state, self.v, now);
        }
        let pending = state.motherboard().chipset.interrupts.pending(vcpu, now);
        let slot = &mut state.slots[self.v];
        slot.notified = pending;
        slot.observed = Some(pending);
        pending.is_some()
    }

    fn acknowledge(&mut self, vcpu: u16, now: u64) -> Option<u8> {
        self.access(|motherboard| motherboard.acknowledge(vcpu, now))
    }

    /// Returns the time in cycles of the vCPU's timer or of the next device event, whichever is first.
    fn next_event(&mut self, vcpu: u16) -> u64 {
        self.access(|motherboard| {
            motherboard
                .next_event(vcpu)
                .min(motherboard.chipset.next_event())
        })
    }

    fn attention(&mut self) -> bool {
        let state = lock(&self.shared.state);
        let slot = &state.slots[self.v];
        state.over || slot.paused || !slot.actions.is_empty() || self.shared.stopped()
    }

    fn hypercall(&mut self, call: &Hypercall, memory: &mut dyn GuestVirtual) -> HypercallAnswer {
        let mut state = lock(&self.shared.state);
        let motherboard = state.motherboard();
        let answer = motherboard.hypercall(call, memory);
        // A window may open after this hypercall, so the vCPU pauses until the end of the round.
        let pause = motherboard.take_pause_request() || motherboard.has_subscribed_event;
        state.slots[self.v].paused |= pause;
        self.shared.notify_others(&mut state, self.v, call.now);
        answer
    }

    fn context(&mut self, vcpu: u16, cr3: u64, thread: u64) -> Context {
        self.access(|motherboard| motherboard.context(vcpu, cr3, thread))
    }

    fn reference(
        &mut self,
        _hits: Hits<'_>,
        _reference: &MemRef,
        _updates: &mut Vec<L0Update>,
    ) -> Outcome {
        // No model is attached to vCPUs that run in parallel.
        Outcome::new(0, Permission::None, None)
    }

    fn modified(&mut self, _vcpu: u16, _lines: &[u64]) {}

    fn account(&mut self, vcpu: u16, context: Context, privilege: Privilege, counters: &Counters) {
        self.access(|motherboard| motherboard.account(vcpu, context, privilege, counters));
    }
}
