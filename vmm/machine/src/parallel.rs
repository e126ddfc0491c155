//! The vCPUs of a node at once, each on a host thread, for engines that allow it.
//!
//! A round takes all vCPUs of the node to the same virtual time. The board is behind a mutex, which a vCPU takes for each
//! access to the platform; between accesses vCPUs run without meeting. After each access the other vCPUs are looked at: one
//! that sleeps and has an interrupt to take is woken, and goes on from the time of the access; one that runs is kicked out of the guest.
//!
//! Clocks of vCPUs are apart by a round at most. A vCPU that sleeps until its timer expires within the round goes on at once
//! from then. A device's next event is carried out by the first vCPU that reaches its time or, where all sleep, by the last that fell asleep.
//! Order between vCPUs is the host's, so nothing here is the same in each run.

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
use crate::board::Board;
use crate::node::NodeStatus;

/// Why a round failed.
pub(crate) enum Failure {
    /// The engine stopped.
    Engine(EngineError),
    /// A triple fault.
    Shutdown {
        vcpu: usize,
        ip: u64,
        instructions: u64,
    },
    /// A thread panicked.
    Panic(Box<dyn Any + Send>),
}

/// What a vCPU is doing in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// It runs, or looks at what it has to do.
    Running,
    /// It waits for another vCPU or a device to wake it.
    Asleep,
    /// The round is over for it.
    #[default]
    Finished,
}

/// A vCPU as the others see it.
struct Slot {
    vcpu: Option<Box<dyn Vcpu>>,
    kicker: Arc<dyn Kicker>,
    phase: Phase,
    /// It has stopped in HLT or waits for a start-up message.
    halted: bool,
    /// It has stopped in HLT with interrupts disabled: messages alone wake it.
    deaf: bool,
    /// The vector that it has been told of.
    told: Option<u8>,
    /// The vector that it has found pending itself, if it has looked since it was to run.
    found: Option<Option<u8>>,
    /// Clock of the access that woke it.
    woken_at: u64,
    /// Messages for it.
    actions: VecDeque<CpuAction>,
    /// It has said something that somebody waits for, and stands still until the round's end.
    stands: bool,
}

/// Between the threads of a node.
struct State {
    /// Here during a round.
    board: Option<Box<Board>>,
    /// Rounds begun.
    round: u64,
    /// Where the round ends, in cycles.
    end: u64,
    slots: Vec<Slot>,
    /// vCPUs in [`Phase::Running`].
    running: usize,
    /// vCPUs whose threads have not come back.
    out: usize,
    /// The node stops: a power request, a failure.
    over: bool,
    failure: Option<Failure>,
    dismissed: bool,
}

impl State {
    fn board(&mut self) -> &mut Board {
        self.board
            .as_deref_mut()
            .expect("the board is here during a round")
    }
}

struct Shared {
    state: Mutex<State>,
    /// By vCPU: a round begins, or something has happened to it in its sleep.
    wake: Vec<Condvar>,
    /// All threads have come back.
    back: Condvar,
    /// See [`crate::node::Node::set_stop`].
    stop: Mutex<Arc<AtomicBool>>,
}

/// Threads for the vCPUs of a node; the first vCPU runs on the caller's.
pub(crate) struct Parallel {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What a round works on, all of it handed back.
pub(crate) struct Round<'a> {
    pub board: &'a mut Option<Box<Board>>,
    pub vcpus: &'a mut Vec<Box<dyn Vcpu>>,
    pub halted: &'a mut Vec<bool>,
    pub stop: &'a Arc<AtomicBool>,
    /// Where it ends, in cycles.
    pub end: u64,
}

impl Parallel {
    /// Threads for vCPUs with these kickers.
    pub fn new(kickers: Vec<Arc<dyn Kicker>>) -> io::Result<Self> {
        let count = kickers.len();
        let slot = |kicker| Slot {
            vcpu: None,
            kicker,
            phase: Phase::Finished,
            halted: false,
            deaf: false,
            told: None,
            found: None,
            woken_at: 0,
            actions: VecDeque::new(),
            stands: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                board: None,
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

    /// Run all vCPUs to the round's end. What the guest asks of the node's power comes back.
    pub fn round(&mut self, round: Round<'_>) -> Result<Option<NodeStatus>, Failure> {
        let shared = &self.shared;
        let count = round.vcpus.len();
        *lock(&shared.stop) = Arc::clone(round.stop);
        let mut state = lock(&shared.state);
        state.board = round.board.take();
        let vcpus = round.vcpus.drain(..).zip(round.halted.iter());
        for (slot, (vcpu, halted)) in state.slots.iter_mut().zip(vcpus) {
            slot.vcpu = Some(vcpu);
            slot.phase = Phase::Running;
            slot.halted = *halted;
            slot.deaf = false;
            slot.told = None;
            slot.woken_at = 0;
            slot.stands = false;
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
        // Messages for vCPUs whose part of the round was over.
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
        *round.board = state.board.take();
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
                let board = round.board.as_deref_mut();
                let request = board.and_then(|board| board.chipset.power.take_request());
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
            // Its panic has been handed on.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the round with a failure; nobody goes on with what it left.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition
        .wait(guard)
        .unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The life of a vCPU's thread.
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

    /// A vCPU's part of a round, from taking it to giving it back.
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

    /// The vCPU no longer runs. When the last leaves, those who sleep have to see to what is next.
    fn leave(&self, state: &mut State, v: usize, phase: Phase) {
        if state.slots[v].phase == Phase::Running {
            state.running -= 1;
        }
        let slot = &mut state.slots[v];
        slot.phase = phase;
        // Asleep, it has seen no interrupt: also one with the vector of the last must wake it.
        slot.told = None;
        if state.running == 0 {
            for (other, slot) in state.slots.iter().enumerate() {
                if slot.phase == Phase::Asleep && other != v {
                    self.wake[other].notify_one();
                }
            }
        }
    }

    /// The round ends early for all.
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
                        .board()
                        .chipset
                        .interrupts
                        .pending(v as u16, vcpu.cycles());
                    let slot = &mut state.slots[v];
                    slot.halted = true;
                    // An interrupt that the vCPU found and did not take: HLT with interrupts disabled, from which only NMI and
                    // INIT wake. An interrupt that has come since wakes the vCPU. One that waits for a start-up message has not looked.
                    slot.deaf =
                        pending.is_some() && slot.found.is_none_or(|found| found == pending);
                }
                Exit::Attention => {
                    if state.slots[v].stands {
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

    /// Sleep until there is something to run; false where the round is over before.
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
                slot.deaf = false;
                continue;
            }
            let end = state.end;
            if state.slots[v].halted && !self.may_wake(&mut state, v, vcpu, end) {
                self.leave(&mut state, v, Phase::Asleep);
                if state.running == 0 {
                    // Everybody sleeps or has finished: a device may have something to do.
                    let device = state.board().chipset.next_event();
                    if device >= end {
                        vcpu.advance_to(end);
                        return Ok(false);
                    }
                    state.board().chipset.advance(device);
                    self.look_around(&mut state, v, device);
                    state.slots[v].woken_at = device;
                    if !self.others_wake(&mut state, v) {
                        continue;
                    }
                }
                state = wait(&self.wake[v], state);
                continue;
            }
            let slot = &mut state.slots[v];
            slot.told = None;
            slot.found = None;
            if slot.phase != Phase::Running {
                slot.phase = Phase::Running;
                state.running += 1;
            }
            return Ok(true);
        }
    }

    /// Whether any of the others that sleep has an interrupt to take.
    fn others_wake(&self, state: &mut State, v: usize) -> bool {
        (0..state.slots.len()).any(|other| {
            let slot = &state.slots[other];
            let sleeps = slot.phase == Phase::Asleep && !slot.deaf && other != v;
            let interrupts = &mut state.board().chipset.interrupts;
            sleeps && interrupts.pending(other as u16, 0).is_some()
        })
    }

    /// Whether a sleeping vCPU has an interrupt to take before the round's end; it then is as old as the interrupt.
    fn may_wake(&self, state: &mut State, v: usize, vcpu: &mut dyn Vcpu, end: u64) -> bool {
        let id = v as u16;
        if state.slots[v].deaf {
            return false;
        }
        let woken_at = std::mem::take(&mut state.slots[v].woken_at);
        let interrupts = &mut state.board().chipset.interrupts;
        // An interrupt of the local APIC's own timer comes when the timer expires.
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

    /// An INIT, start-up or NMI message; whether the vCPU sleeps then, where the message says so.
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

    /// After an access of `v` at `now`: tell other vCPUs what it has brought them.
    fn look_around(&self, state: &mut State, v: usize, now: u64) {
        let State {
            board: Some(board),
            slots,
            ..
        } = state
        else {
            return;
        };
        let interrupts = &mut board.chipset.interrupts;
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
            // At time 0 no timer is asked to expire.
            let pending = interrupts.pending(other as u16, 0);
            if pending.is_some() && pending != slot.told {
                slot.told = pending;
                if slot.phase == Phase::Asleep {
                    slot.woken_at = now;
                    self.wake[other].notify_one();
                } else {
                    slot.kicker.kick();
                }
            }
        }
        if board.chipset.power.request().is_some() && !state.over {
            self.end_all(state);
        }
    }
}

/// The board as one of the vCPUs sees it.
struct Access<'a> {
    shared: &'a Shared,
    v: usize,
}

impl Access<'_> {
    /// Look at something that brings other vCPUs nothing.
    fn look<R>(&self, f: impl FnOnce(&mut Board) -> R) -> R {
        f(lock(&self.shared.state).board())
    }

    /// An access at `now`.
    fn with<R>(&self, now: u64, f: impl FnOnce(&mut Board) -> R) -> R {
        let mut state = lock(&self.shared.state);
        let result = f(state.board());
        self.shared.look_around(&mut state, self.v, now);
        result
    }
}

impl Platform for Access<'_> {
    fn port_read(&mut self, vcpu: u16, now: u64, port: u16, data: &mut [u8]) {
        self.with(now, |board| board.port_read(vcpu, now, port, data));
    }

    fn port_write(&mut self, vcpu: u16, now: u64, port: u16, data: &[u8]) {
        self.with(now, |board| board.port_write(vcpu, now, port, data));
    }

    fn mmio_read(&mut self, vcpu: u16, now: u64, physical: u64, data: &mut [u8]) {
        self.with(now, |board| board.mmio_read(vcpu, now, physical, data));
    }

    fn mmio_write(&mut self, vcpu: u16, now: u64, physical: u64, data: &[u8]) {
        self.with(now, |board| board.mmio_write(vcpu, now, physical, data));
    }

    fn msr_read(&mut self, vcpu: u16, now: u64, msr: u32) -> Result<u64, MsrFault> {
        self.with(now, |board| board.msr_read(vcpu, now, msr))
    }

    fn msr_write(&mut self, vcpu: u16, now: u64, msr: u32, value: u64) -> Result<(), MsrFault> {
        self.with(now, |board| board.msr_write(vcpu, now, msr, value))
    }

    fn tsc_offset_changed(&mut self, vcpu: u16, now: u64, offset: u64) {
        self.look(|board| board.tsc_offset_changed(vcpu, now, offset));
    }

    fn task_priority(&mut self, vcpu: u16) -> u8 {
        self.look(|board| board.task_priority(vcpu))
    }

    fn set_task_priority(&mut self, vcpu: u16, now: u64, priority: u8) {
        self.look(|board| board.set_task_priority(vcpu, now, priority));
    }

    /// Devices whose time has come by this vCPU's clock are seen to first.
    fn interrupt_pending(&mut self, vcpu: u16, now: u64) -> bool {
        let mut state = lock(&self.shared.state);
        let board = state.board();
        if board.chipset.next_event() <= now {
            board.chipset.advance(now);
            self.shared.look_around(&mut state, self.v, now);
        }
        let pending = state.board().chipset.interrupts.pending(vcpu, now);
        let slot = &mut state.slots[self.v];
        slot.told = pending;
        slot.found = Some(pending);
        pending.is_some()
    }

    fn acknowledge(&mut self, vcpu: u16, now: u64) -> Option<u8> {
        self.look(|board| board.acknowledge(vcpu, now))
    }

    /// The vCPU's timer, or a device.
    fn next_event(&mut self, vcpu: u16) -> u64 {
        self.look(|board| board.next_event(vcpu).min(board.chipset.next_event()))
    }

    fn attention(&mut self) -> bool {
        let state = lock(&self.shared.state);
        let slot = &state.slots[self.v];
        state.over || slot.stands || !slot.actions.is_empty() || self.shared.stopped()
    }

    fn hypercall(&mut self, call: &Hypercall, memory: &mut dyn GuestVirtual) -> HypercallAnswer {
        let mut state = lock(&self.shared.state);
        let board = state.board();
        let answer = board.hypercall(call, memory);
        // A window may open here: the vCPU goes no further in this round.
        let stands = board.take_standstill() || board.heeded;
        state.slots[self.v].stands |= stands;
        self.shared.look_around(&mut state, self.v, call.now);
        answer
    }

    fn context(&mut self, vcpu: u16, cr3: u64) -> Context {
        self.look(|board| board.context(vcpu, cr3))
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

    fn miss(&mut self, _modified: &[u64], _oldest: u64, _reference: &MemRef) -> Option<Outcome> {
        None
    }

    fn modified(&mut self, _vcpu: u16, _lines: &[u64]) {}

    fn account(&mut self, vcpu: u16, context: Context, privilege: Privilege, counters: &Counters) {
        self.look(|board| board.account(vcpu, context, privilege, counters));
    }
}
