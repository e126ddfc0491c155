//! One node: its vCPUs take turns on one host thread, in slices of virtual time.

use std::any::Any;
use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as AtomicOrdering};

use nodescope_devices::chipset::{Chipset, ChipsetConfig, ChipsetError, VirtioPlace};
use nodescope_devices::lapic::TimerClock;
use nodescope_devices::power::PowerRequest;
use nodescope_devices::time::Hertz;
use nodescope_devices::virtio::Device;
use nodescope_devices::virtio::block::Image;
use nodescope_devices::virtio::net::Frame;
use nodescope_engine::{EngineError, Exit, Limit, Platform, Vcpu};
use nodescope_hypercall::{Function, NodeIdentity};
use nodescope_memory::Ram;
use nodescope_plugin_api::{BlockProfile, Context, Counters, MemoryModel, Privilege, Statistic};
use nodescope_x86::{MpState, VcpuState};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::acpi::{PlatformDescription, PlatformRegister};
use crate::actions;
use crate::board::{Activity, Board, Held, NodeEvent, Pace, Turn};
use crate::clock::NodeClock;
use crate::files::{FileBook, FileLimits};
use crate::parallel::Parallel;
use crate::samples::{Sampler, StackSample, sample};
use crate::topology::NodeTopology;

/// Longest turn of a vCPU in cycles: how far the clocks of a node's vCPUs may be apart.
pub const SLICE: u64 = 5_000;
/// First port of the real-time clock.
const RTC_PORT: u16 = 0x70;

/// What a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeStatus {
    /// Running, or idle.
    Running,
    /// Powered off by the guest.
    Off,
    /// Reset by the guest: it wanted to start again.
    Reset,
}

/// Why a node cannot go on.
#[derive(Debug, Error)]
pub enum NodeError {
    /// An engine stopped.
    #[error("node {node}: {source}")]
    Engine {
        /// Node.
        node: u32,
        /// Engine's report.
        source: EngineError,
    },
    /// The host gave no thread for a vCPU.
    #[error("node {node}: the host gives no thread for a vCPU: {source}")]
    Thread {
        /// Node.
        node: u32,
        /// What the host says.
        source: std::io::Error,
    },
    /// Triple fault.
    #[error(
        "node {node}: vCPU {vcpu} shut down (triple fault) at {ip:#x} after {instructions} instructions; see the node's console log"
    )]
    TripleFault {
        /// Node.
        node: u32,
        /// vCPU.
        vcpu: usize,
        /// Instruction pointer.
        ip: u64,
        /// Instructions it had retired.
        instructions: u64,
    },
}

/// Why a node cannot be put together.
#[derive(Debug, Error)]
pub enum AssemblyError {
    /// Devices collide.
    #[error("cannot place the node's devices: {0}")]
    Devices(#[from] ChipsetError),
    /// No clock.
    #[error("the node's clock is 0 Hz; give it a positive frequency")]
    Clock,
    /// Other registers than this machine has.
    #[error("a node needs a serial console and power registers at I/O ports")]
    Platform,
    /// Devices and places differ in number.
    #[error("{devices} virtio devices for {slots} places")]
    Slots {
        /// Devices given.
        devices: usize,
        /// Places described.
        slots: usize,
    },
}

/// What a window measured on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurement {
    /// The engine's counters by vCPU, address space and privilege.
    pub counters: Vec<(u16, Context, Privilege, Counters)>,
    /// The model's counters.
    pub statistics: Vec<Statistic>,
    /// What each [`Context`] stands for, by its index.
    pub activities: Vec<Activity>,
    /// Clock of each vCPU when measuring began and when it ended, in cycles.
    pub cycles: Vec<(u64, u64)>,
    /// Counts by basic block, where they were asked for.
    pub blocks: Option<BlockProfile>,
    /// Samples of call stacks, where counts by basic block were asked for.
    pub samples: Vec<StackSample>,
}

/// A node.
pub struct Node {
    pub(crate) index: u32,
    clock: NodeClock,
    pub(crate) board: Held,
    pub(crate) vcpus: Vec<Box<dyn Vcpu>>,
    /// Threads for the vCPUs, where their engine lets them run at once.
    pub(crate) parallel: Option<Parallel>,
    /// vCPUs on the other engine, between which the node changes.
    pub(crate) other: Vec<Box<dyn Vcpu>>,
    /// Whether the vCPU last stopped in HLT or waits for a start-up message.
    pub(crate) halted: Vec<bool>,
    ram: Ram,
    pub(crate) now: u64,
    pub(crate) status: NodeStatus,
    window_start: Vec<u64>,
    /// Where the open window attributes to code.
    pub(crate) sampler: Option<Sampler>,
    /// See [`Node::set_stop`].
    pub(crate) stop: Arc<AtomicBool>,
}

/// What a node is put together from.
pub struct NodeParts {
    /// Number within the cluster.
    pub index: u32,
    /// Its description.
    pub topology: NodeTopology,
    /// Its devices' places.
    pub platform: PlatformDescription,
    /// Its memory, already loaded.
    pub ram: Ram,
    /// Its vCPUs in their reset state, in order.
    pub vcpus: Vec<Box<dyn Vcpu>>,
    /// State of the boot processor.
    pub boot: VcpuState,
    /// Devices, in the order of `platform.virtio`.
    pub virtio: Vec<Device>,
    /// What its real-time clock shows at power-on, seconds since 1970-01-01 UTC.
    pub epoch: i64,
    /// What it answers when asked who it is.
    pub identity: NodeIdentity,
}

impl Node {
    /// Put a node together; its first vCPU starts in the boot state, the others wait for a start-up message.
    pub fn new(parts: NodeParts) -> Result<Self, AssemblyError> {
        let hertz = |hz| Hertz::new(hz).ok_or(AssemblyError::Clock);
        let (PlatformRegister::Port(power_port), Some(serial)) =
            (parts.platform.sleep_control, parts.platform.serial)
        else {
            return Err(AssemblyError::Platform);
        };
        if parts.virtio.len() != parts.platform.virtio.len() {
            return Err(AssemblyError::Slots {
                devices: parts.virtio.len(),
                slots: parts.platform.virtio.len(),
            });
        }
        let places = parts.virtio.into_iter().zip(&parts.platform.virtio);
        let config = ChipsetConfig {
            apic_ids: parts.topology.places().map(|p| p.apic_id).collect(),
            clock: TimerClock {
                tsc: hertz(parts.topology.tsc_hz)?,
                input: hertz(parts.topology.crystal_hz().into())?,
            },
            ioapic: parts.platform.ioapic.into(),
            serial_port: serial.port,
            serial_gsi: serial.gsi,
            power_port,
            rtc_port: RTC_PORT,
            epoch: parts.epoch,
            virtio: places
                .map(|(device, slot)| VirtioPlace {
                    base: slot.base,
                    gsi: slot.gsi,
                    device,
                })
                .collect(),
        };
        let chipset = Chipset::new(config, parts.ram.memory())?;
        let mut vcpus = parts.vcpus;
        let board = Board::new(chipset, vcpus.len(), parts.identity);
        for (i, vcpu) in vcpus.iter_mut().enumerate() {
            let mut state = if i == 0 {
                parts.boot.clone()
            } else {
                VcpuState::reset()
            };
            if i > 0 {
                state.events.mp = MpState::WaitForSipi;
            }
            vcpu.restore(&state);
        }
        let n = vcpus.len();
        Ok(Self {
            index: parts.index,
            clock: NodeClock {
                hz: parts.topology.tsc_hz,
            },
            board: Held::new(board),
            vcpus,
            parallel: None,
            other: Vec::new(),
            halted: (0..n).map(|i| i > 0).collect(),
            ram: parts.ram,
            now: 0,
            status: NodeStatus::Running,
            window_start: Vec::new(),
            sampler: None,
            stop: Arc::default(),
        })
    }

    /// Number within the cluster.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its nominal clock.
    pub fn clock(&self) -> NodeClock {
        self.clock
    }

    /// Its memory.
    pub fn ram(&self) -> &Ram {
        &self.ram
    }

    /// Its virtual time in cycles.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// What it is doing.
    pub fn status(&self) -> NodeStatus {
        self.status
    }

    /// Instructions retired by all its vCPUs.
    pub fn instructions(&self) -> u64 {
        self.vcpus.iter().map(|v| v.instructions()).sum()
    }

    /// The complete state of a vCPU.
    pub fn vcpu_state(&self, vcpu: usize) -> VcpuState {
        self.vcpus[vcpu].save()
    }

    /// Load the complete state of a vCPU between two calls of [`Node::run_until`].
    pub fn restore_vcpu(&mut self, vcpu: usize, state: &VcpuState) {
        self.vcpus[vcpu].restore(state);
    }

    /// Let another vCPU, of the same memory, go on in the place of one. Between windows, or what the models
    /// have counted for it so far would start anew.
    pub fn replace_vcpu(&mut self, vcpu: usize, mut other: Box<dyn Vcpu>) -> Box<dyn Vcpu> {
        other.restore(&self.vcpus[vcpu].save());
        if let Some(model) = &self.board.model {
            other.attribute_to_code(self.sampler.is_some());
            other.attach(Some(model.l0_geometry()));
        }
        std::mem::replace(&mut self.vcpus[vcpu], other)
    }

    /// The image files behind its disks.
    pub fn images(&self) -> Vec<Arc<Image>> {
        let disks = self
            .board
            .chipset
            .virtio()
            .filter_map(|v| match v.device() {
                Device::Block(block) => block.disk().image().cloned(),
                _ => None,
            });
        disks.collect()
    }

    /// What the guest has written to its console since the last call.
    pub fn take_console(&mut self) -> Vec<u8> {
        self.board.chipset.serial.take_output()
    }

    /// Bytes typed at the console.
    pub fn type_console(&mut self, bytes: &[u8]) {
        self.board.chipset.console_input(bytes);
    }

    /// Whether a driver has brought the network interface up: frames that arrive before are lost.
    pub fn is_connected(&mut self) -> bool {
        self.board.network().is_some_and(|net| net.is_active())
    }

    /// Whether there are frames to take.
    pub fn has_frames(&mut self) -> bool {
        self.board.network().is_some_and(|net| net.has_frames())
    }

    /// Whether there is anything else for the `take_` functions: console output, hypercalls.
    pub fn has_output(&mut self) -> bool {
        self.board.chipset.serial.has_output() || !self.board.events.is_empty()
    }

    /// Whether somebody may wait for that: for anything but MPI calls that were not asked for ([`Node::heed`]).
    pub fn wants_attention(&mut self) -> bool {
        self.board.wants_attention()
    }

    /// The node runs on, its network interface is up, and nobody need know anything else about it before it goes on.
    pub fn is_usual(&mut self) -> bool {
        self.board.is_usual() && self.next_activity() <= self.now
    }

    /// MPI calls of these functions want attention when they have ended.
    pub fn heed(&mut self, functions: Vec<Function>) {
        self.board.heeds = functions;
    }

    /// Hypercalls since the last call, in the order in which they were made.
    pub fn take_events(&mut self) -> Vec<NodeEvent> {
        self.board.heeded = false;
        self.board.events.take()
    }

    /// Sentences for the user about hypercalls that made no sense and files that were refused, since power-on.
    pub fn notes(&self) -> Vec<String> {
        self.board.notes.texts()
    }

    /// How much the guest may put among the results. To be told before the node runs.
    pub fn set_file_limits(&mut self, limits: FileLimits) {
        self.board.files = FileBook::new(limits);
    }

    /// The bytes that the guest's files count so far.
    pub fn file_bytes(&self) -> u64 {
        self.board.files.used()
    }

    /// How much more it may put there before the limit of the study is reached.
    pub fn set_file_bytes_left(&mut self, left: u64) {
        self.board.files.set_study_left(left);
    }

    /// A flag that ends every run of the node soon when it is set. Where it then stands is not determined.
    pub fn set_stop(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    /// Frames sent since the last call; times in cycles.
    pub fn take_frames(&mut self) -> Vec<Frame> {
        self.board
            .network()
            .map(|net| net.take_frames())
            .unwrap_or_default()
    }

    /// A frame that arrives at a time (cycles) not before [`Node::now`].
    pub fn inject(&mut self, frame: Frame) {
        if let Some(net) = self.board.network() {
            net.inject(frame);
        }
    }

    /// When something can happen next in this node if nothing comes from outside: now, where a vCPU runs.
    pub fn next_activity(&mut self) -> u64 {
        if self.status != NodeStatus::Running {
            return u64::MAX;
        }
        let device = self.board.chipset.next_event();
        self.next_activity_after(device)
    }

    /// The same, with when a device does something next.
    pub(crate) fn next_activity_after(&mut self, device: u64) -> u64 {
        let mut next = device;
        for v in 0..self.vcpus.len() {
            if !self.halted[v]
                || self
                    .board
                    .chipset
                    .interrupts
                    .pending(v as u16, self.now)
                    .is_some()
            {
                return self.now;
            }
            next = next.min(self.board.chipset.interrupts.next_event(v as u16));
        }
        next.max(self.now)
    }

    /// Who is asked how far it runs on after what [`Node::run_from`] was told.
    pub fn set_pace(&mut self, pace: Box<dyn Pace>) {
        self.board.pace = Some(pace);
    }

    /// Who was given to [`Node::set_pace`], if it is of this kind.
    pub fn pace<P: Pace>(&mut self) -> Option<&mut P> {
        let pace: &mut dyn Any = self.board.pace.as_deref_mut()?;
        pace.downcast_mut()
    }

    /// Run until the node's clock shows `target` cycles, or it stops.
    pub fn run_until(&mut self, target: u64) -> Result<NodeStatus, NodeError> {
        self.board.paced = false;
        self.run(target)
    }

    /// Let a node sleep until the node's clock shows `target` cycles: nothing is due before ([`Node::next_activity`]).
    pub fn sleep_until(&mut self, target: u64) {
        if self.now >= target || self.status != NodeStatus::Running {
            return;
        }
        debug_assert!(self.next_activity() >= target);
        for vcpu in &mut self.vcpus {
            vcpu.advance_to(target);
        }
        self.now = target;
    }

    /// Run until the node's clock shows `target` cycles, and on until the time that its pace has told last.
    pub fn run_from(&mut self, target: u64) -> Result<NodeStatus, NodeError> {
        self.board.paced = self.board.pace.is_some();
        self.run(target)
    }

    fn run(&mut self, target: u64) -> Result<NodeStatus, NodeError> {
        self.board.target = target;
        if self.parallel.is_some() {
            return self.run_at_once(target);
        }
        while self.now < self.board.target
            && self.status == NodeStatus::Running
            && !self.stop.load(AtomicOrdering::Relaxed)
        {
            let mut device = self.board.chipset.next_event();
            if device <= self.now {
                self.board.chipset.advance(self.now);
                device = self.board.chipset.next_event();
            }
            let until = device.max(self.now + 1);
            let activity = self.next_activity_after(device);
            if activity > self.now {
                // Everybody sleeps: nothing happens before the next timer or device.
                let end = self.board.target.min(until).min(activity);
                for v in 0..self.vcpus.len() {
                    self.vcpus[v].advance_to(end);
                }
                self.now = end;
                continue;
            }
            self.board.turn = Turn {
                start: self.now,
                end: self.board.last_end(self.now).min(until),
            };
            for v in 0..self.vcpus.len() {
                self.run_vcpu(v)?;
                if self.status != NodeStatus::Running {
                    return Ok(self.status);
                }
            }
            self.now = self.board.turn.end;
        }
        Ok(self.status)
    }

    /// Give a vCPU its turn. Where all others sleep, more may follow at once, whose last is the turn then that the others have, too.
    fn run_vcpu(&mut self, v: usize) -> Result<(), NodeError> {
        let first = self.board.turn.end;
        let result = self.run_turns(v);
        self.sample(v);
        let Turn { start, end } = self.board.turn;
        if end > first {
            // They would have slept through the turns before, and those who come before this one through the last.
            for (other, vcpu) in self.vcpus.iter_mut().enumerate() {
                match other.cmp(&v) {
                    Ordering::Less => vcpu.advance_to(end),
                    Ordering::Equal => {}
                    Ordering::Greater => vcpu.advance_to(start),
                }
            }
        }
        result
    }

    /// Sample a vCPU's call stack, if that is due.
    fn sample(&mut self, v: usize) {
        let Some(sampler) = &mut self.sampler else {
            return;
        };
        let now = self.vcpus[v].cycles();
        if now < self.board.sample_at[v] {
            return;
        }
        if !self.halted[v] {
            let state = self.vcpus[v].save();
            let context = self.board.context(v as u16, state.control.cr3);
            sampler.push(sample(v as u16, context, &state, &self.ram));
        }
        self.board.sample_at[v] = sampler.next(now);
    }

    /// Run a vCPU to the end of its turn, and of those that follow at once ([`Platform::extend`]), through interrupts that end its sleep and what
    /// the machine has to do for it.
    fn run_turns(&mut self, v: usize) -> Result<(), NodeError> {
        let id = v as u16;
        loop {
            if !self.board.updates[v].is_empty() {
                let updates = std::mem::take(&mut self.board.updates[v]);
                self.vcpus[v].update_l0(&updates);
            }
            let end = self.board.turn.end;
            if self.halted[v] {
                let now = self.vcpus[v].cycles();
                if self.board.chipset.interrupts.pending(id, now).is_none() {
                    let wake = self.board.chipset.interrupts.next_event(id);
                    self.vcpus[v].advance_to(wake.min(end));
                    if wake >= end {
                        return Ok(());
                    }
                }
                self.halted[v] = false;
            }
            let mut awake = (0..self.vcpus.len()).filter(|other| !self.halted[*other]);
            let alone = awake.all(|other| other == v);
            let limit = Limit {
                extends: alone && (end < self.board.target || self.board.paced),
                ..Limit::cycles(end)
            };
            let exit = self.vcpus[v]
                .run(&mut *self.board, limit)
                .map_err(|source| NodeError::Engine {
                    node: self.index,
                    source,
                })?;
            match exit {
                Exit::Limit => return Ok(()),
                Exit::Halted => {
                    self.halted[v] = true;
                    let now = self.vcpus[v].cycles();
                    if self.board.chipset.interrupts.pending(id, now).is_some() {
                        // HLT with interrupts disabled: only NMI and INIT wake it.
                        self.vcpus[v].advance_to(self.board.turn.end);
                        return Ok(());
                    }
                }
                Exit::Attention => {
                    self.carry_out_actions();
                    if let Some(request) = self.board.chipset.power.take_request() {
                        self.status = match request {
                            PowerRequest::PowerOff => NodeStatus::Off,
                            PowerRequest::Reset => NodeStatus::Reset,
                        };
                        return Ok(());
                    }
                    if self.board.take_standstill() {
                        self.vcpus[v].advance_to(self.board.target);
                        return Ok(());
                    }
                    if self.stop.load(AtomicOrdering::Relaxed) {
                        return Ok(());
                    }
                }
                Exit::Shutdown => {
                    return Err(NodeError::TripleFault {
                        node: self.index,
                        vcpu: v,
                        ip: self.vcpus[v].save().general.rip,
                        instructions: self.vcpus[v].instructions(),
                    });
                }
            }
        }
    }

    /// INIT, start-up and NMI messages (SDM vol. 3A §8.4).
    pub(crate) fn carry_out_actions(&mut self) {
        for action in self.board.chipset.interrupts.take_actions() {
            let v = usize::from(actions::target(action));
            let mut state = self.vcpus[v].save();
            if let Some(halted) = actions::carry_out(action, &mut state) {
                self.halted[v] = halted;
                self.vcpus[v].restore(&state);
            }
        }
    }

    /// Attach a model: a window opens with its warm-up. `samples`: what is counted is attributed to code, and this many call stacks are
    /// sampled at most.
    pub fn attach(&mut self, model: Box<dyn MemoryModel>, samples: Option<usize>) {
        let geometry = model.l0_geometry();
        self.board.model = Some(model);
        self.sampler = samples.map(Sampler::new);
        for v in &mut self.vcpus {
            v.attribute_to_code(samples.is_some());
            v.attach(Some(geometry));
        }
        self.start_measuring();
    }

    /// The warm-up is over: forget what was counted, keep the model's state.
    pub fn start_measuring(&mut self) {
        for v in &mut self.vcpus {
            v.flush_counters(&mut *self.board);
        }
        if let Some(model) = self.board.model.as_mut() {
            model.reset_statistics();
        }
        self.board.accounts.clear();
        if let Some(sampler) = &mut self.sampler {
            for v in &mut self.vcpus {
                v.forget_block_profile();
            }
            sampler.clear();
            let clocks = self.vcpus.iter().map(|v| sampler.next(v.cycles()));
            self.board.sample_at = clocks.collect();
        }
        self.window_start = self.vcpus.iter().map(|v| v.cycles()).collect();
    }

    /// The window closes: detach the model and return what was measured since the warm-up's end.
    pub fn detach(&mut self) -> Measurement {
        for v in &mut self.vcpus {
            v.flush_counters(&mut *self.board);
        }
        let cycles = self
            .window_start
            .drain(..)
            .zip(self.vcpus.iter().map(|v| v.cycles()))
            .collect();
        let accounts = std::mem::take(&mut self.board.accounts);
        let counters: Vec<_> = accounts
            .into_iter()
            .map(|((v, c, p), n)| (v, c, p, n))
            .collect();
        let statistics = self
            .board
            .model
            .take()
            .map(|m| m.statistics(&counters))
            .unwrap_or_default();
        // vCPUs of a node share what they know of its code.
        let blocks = self.vcpus[0].take_block_profile();
        for v in &mut self.vcpus {
            v.attach(None);
            v.attribute_to_code(false);
        }
        self.board.sample_at.fill(u64::MAX);
        let samples = self.sampler.take().map(|mut sampler| sampler.take());
        for u in &mut self.board.updates {
            u.clear();
        }
        Measurement {
            counters,
            statistics,
            activities: self.board.activities.clone(),
            cycles,
            blocks,
            samples: samples.unwrap_or_default(),
        }
    }

    /// Whether a model is attached.
    pub fn attached(&self) -> bool {
        self.board.model.is_some()
    }
}

impl Node {
    /// The platform, for tests that drive a vCPU by hand.
    pub fn platform(&mut self) -> &mut dyn Platform {
        &mut *self.board
    }
}
