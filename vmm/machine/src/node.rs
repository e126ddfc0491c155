//! A node: its vCPUs run in turn on one host thread, in time slices of virtual time.

use std::any::Any;
use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as AtomicOrdering};

use nodescope_devices::chipset::{Chipset, ChipsetConfig, ChipsetError, VirtioSlot};
use nodescope_devices::lapic::TimerClock;
use nodescope_devices::power::PowerRequest;
use nodescope_devices::time::Hertz;
use nodescope_devices::virtio::Device;
use nodescope_devices::virtio::block::Image;
use nodescope_devices::virtio::net::Frame;
use nodescope_engine::{EngineError, Exit, Limit, Platform, Vcpu};
use nodescope_hypercall::{Function, NodeIdentity};
use nodescope_memory::Ram;
use nodescope_plugin_api::{CoreModel, MemoryModel};
use nodescope_x86::state::seg;
use nodescope_x86::{MpState, VcpuState};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::acpi::{PlatformDescription, PlatformRegister};
use crate::actions;
use crate::clock::NodeClock;
use crate::counting::Counting;
use crate::files::{FileLimits, FileQuota};
use crate::modelled_core::ModelledCore;
use crate::motherboard::{Motherboard, MotherboardHolder, NodeEvent, Pace, TimeSlice};
use crate::parallel::Parallel;
use crate::samples::{Sampler, sample};
use crate::topology::NodeTopology;

/// Maximum length of a vCPU's time slice in cycles. The clocks of a node's running vCPUs therefore differ by about this length at most.
pub const TIME_SLICE_CYCLES: u64 = 5_000;
/// Length of a time slice, in cycles, while vCPUs take written lines from each other in a window.
pub const SHARING_SLICE_CYCLES: u64 = 100;
/// First I/O port of the real-time clock.
const RTC_PORT: u16 = 0x70;

/// Status of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeStatus {
    /// The node runs, or all its vCPUs sleep.
    Running,
    /// The guest has powered the node off.
    Off,
    /// The guest has reset the node, in order to start again.
    Reset,
}

/// Reason why a node cannot continue.
#[derive(Debug, Error)]
pub enum NodeError {
    /// An engine stopped with an error.
    #[error("node {node}: {source}")]
    Engine {
        /// Number of the node.
        node: u32,
        /// Error of the engine.
        source: EngineError,
    },
    /// The host could not start a thread for a vCPU.
    #[error("node {node}: the host gives no thread for a vCPU: {source}")]
    Thread {
        /// Number of the node.
        node: u32,
        /// Error of the host.
        source: std::io::Error,
    },
    /// A registered model cannot go on.
    #[error("node {node}: {why}")]
    Model {
        /// Number of the node.
        node: u32,
        /// A sentence that begins with the model's name.
        why: String,
    },
    /// A vCPU shut down after a triple fault.
    #[error(
        "node {node}: vCPU {vcpu} shut down (triple fault) at {ip:#x} after {instructions} instructions; see the node's console log"
    )]
    TripleFault {
        /// Number of the node.
        node: u32,
        /// Index of the vCPU within the node.
        vcpu: usize,
        /// Instruction pointer of the vCPU.
        ip: u64,
        /// Number of instructions that the vCPU had retired.
        instructions: u64,
    },
}

/// Reason why a node cannot be assembled.
#[derive(Debug, Error)]
pub enum AssemblyError {
    /// Two devices have overlapping addresses or the same interrupt, or an interrupt does not exist.
    #[error("cannot place the node's devices: {0}")]
    Devices(#[from] ChipsetError),
    /// The frequency of the node's clock is 0.
    #[error("the node's clock is 0 Hz; give it a positive frequency")]
    Clock,
    /// The description lacks a serial console, or its power registers are not I/O ports.
    #[error("a node needs a serial console and power registers at I/O ports")]
    Platform,
    /// The number of virtio devices differs from the number of slots in the platform's description.
    #[error("{devices} virtio devices for {slots} places")]
    Slots {
        /// Number of virtio devices that were given.
        devices: usize,
        /// Number of virtio slots in the platform's description.
        slots: usize,
    },
}

/// Emulated computer: vCPUs, RAM, and a motherboard with devices.
pub struct Node {
    pub(crate) index: u32,
    clock: NodeClock,
    pub(crate) motherboard: MotherboardHolder,
    pub(crate) vcpus: Vec<Box<dyn Vcpu>>,
    /// Threads of the vCPUs; `None` if the engine runs vCPUs one after the other.
    pub(crate) parallel: Option<Parallel>,
    /// vCPUs on the other engine; empty if the node has one engine.
    pub(crate) other: Vec<Box<dyn Vcpu>>,
    /// For each vCPU, true if it last stopped in HLT, or waits for a start-up message.
    pub(crate) halted: Vec<bool>,
    ram: Ram,
    pub(crate) now: u64,
    pub(crate) status: NodeStatus,
    /// The open window's counts.
    pub(crate) counting: Counting,
    /// Sampler of call stacks; `None` unless the open window attributes costs to code.
    pub(crate) sampler: Option<Sampler>,
    /// Flag that stops the node; see [`Node::set_stop`].
    pub(crate) stop: Arc<AtomicBool>,
}

/// Parts from which a node is assembled.
pub struct NodeParts {
    /// Number of the node within the cluster.
    pub index: u32,
    /// Description of the node's processors and memory.
    pub topology: NodeTopology,
    /// Addresses, interrupts and other properties of the node's devices.
    pub platform: PlatformDescription,
    /// Memory of the node, with the guest's kernel already loaded.
    pub ram: Ram,
    /// vCPUs of the node in their reset state, in the order of their numbers.
    pub vcpus: Vec<Box<dyn Vcpu>>,
    /// Start state of the boot processor, vCPU 0.
    pub boot: VcpuState,
    /// Virtio devices, in the order of `platform.virtio`.
    pub virtio: Vec<Device>,
    /// Time of the node's real-time clock at power-on, seconds since 1970-01-01 UTC.
    pub epoch: i64,
    /// Answer to the hypercall NodeIdentity.
    pub identity: NodeIdentity,
}

impl Node {
    /// Assembles a node. The first vCPU starts in the boot state; the others wait for a start-up message.
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
                .map(|(device, slot)| VirtioSlot {
                    base: slot.base,
                    gsi: slot.gsi,
                    device,
                })
                .collect(),
        };
        let chipset = Chipset::new(config, parts.ram.memory())?;
        let mut vcpus = parts.vcpus;
        let motherboard = Motherboard::new(chipset, vcpus.len(), parts.identity);
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
            motherboard: MotherboardHolder::new(motherboard),
            vcpus,
            parallel: None,
            other: Vec::new(),
            halted: (0..n).map(|i| i > 0).collect(),
            ram: parts.ram,
            now: 0,
            status: NodeStatus::Running,
            counting: Counting::default(),
            sampler: None,
            stop: Arc::default(),
        })
    }

    /// Returns the node's number within the cluster.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the node's nominal clock.
    pub fn clock(&self) -> NodeClock {
        self.clock
    }

    /// Returns the node's memory.
    pub fn ram(&self) -> &Ram {
        &self.ram
    }

    /// Returns the node's virtual time in cycles.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns the node's status.
    pub fn status(&self) -> NodeStatus {
        self.status
    }

    /// Returns the sum of the instructions that the node's vCPUs have retired.
    pub fn instructions(&self) -> u64 {
        self.vcpus.iter().map(|v| v.instructions()).sum()
    }

    /// Returns the complete state of the vCPU with this number.
    pub fn vcpu_state(&self, vcpu: usize) -> VcpuState {
        self.vcpus[vcpu].save()
    }

    /// Loads the complete state of a vCPU. Callers may do so between two calls of [`Node::run_until`].
    pub fn restore_vcpu(&mut self, vcpu: usize, state: &VcpuState) {
        self.vcpus[vcpu].restore(state);
    }

    /// Replaces a vCPU by `other`, which uses this node's memory and continues from the replaced vCPU's state. Returns the replaced vCPU.
    /// Callers replace vCPUs outside windows, in which the vCPU's counts would restart from 0.
    pub fn replace_vcpu(&mut self, vcpu: usize, mut other: Box<dyn Vcpu>) -> Box<dyn Vcpu> {
        other.restore(&self.vcpus[vcpu].save());
        if let Some(model) = &self.motherboard.model {
            other.attribute_to_code(self.sampler.is_some());
            other.attach(Some(model.l0_geometry()));
        }
        std::mem::replace(&mut self.vcpus[vcpu], other)
    }

    /// Returns the image files of those of the node's disks that have one.
    pub fn images(&self) -> Vec<Arc<Image>> {
        let disks = self
            .motherboard
            .chipset
            .virtio()
            .filter_map(|v| match v.device() {
                Device::Block(block) => block.disk().image().cloned(),
                _ => None,
            });
        disks.collect()
    }

    /// Returns and removes the console output of the guest since the last call.
    pub fn take_console(&mut self) -> Vec<u8> {
        self.motherboard.chipset.serial.take_output()
    }

    /// Sends bytes to the guest as console input.
    pub fn type_console(&mut self, bytes: &[u8]) {
        self.motherboard.chipset.console_input(bytes);
    }

    /// Returns whether a driver has brought the network interface up. Frames that arrive before that are lost.
    pub fn is_connected(&mut self) -> bool {
        self.motherboard
            .network()
            .is_some_and(|net| net.is_active())
    }

    /// Returns whether [`Node::take_frames`] would return frames.
    pub fn has_frames(&mut self) -> bool {
        self.motherboard
            .network()
            .is_some_and(|net| net.has_frames())
    }

    /// Returns whether console output or hypercalls wait to be taken. Many refused hypercalls count too, until [`Node::take_events`].
    pub fn has_output(&mut self) -> bool {
        self.motherboard.chipset.serial.has_output() || !self.motherboard.events.is_empty()
    }

    /// Returns whether the node has output that the cluster may wait for: console output, many waiting hypercalls, or an urgent one. An
    /// entry into an MPI function is not urgent, nor is the end of an MPI call without a subscription ([`Node::subscribe`]).
    pub fn wants_attention(&mut self) -> bool {
        self.motherboard.wants_attention()
    }

    /// Returns whether the node is at the default end of a quantum: a vCPU runs, the network interface is up, and the node has neither
    /// frames nor urgent output, so that the node may continue at once.
    pub fn is_at_default_end(&mut self) -> bool {
        self.motherboard.is_at_default_end() && self.next_activity() <= self.now
    }

    /// Sets the MPI functions to which the cluster subscribes: a call of such a function wants attention when the call has ended.
    pub fn subscribe(&mut self, functions: Vec<Function>) {
        self.motherboard.subscriptions = functions;
    }

    /// Returns and removes the hypercalls since the last call of this function, in the order in which they were made.
    pub fn take_events(&mut self) -> Vec<NodeEvent> {
        self.motherboard.has_subscribed_event = false;
        self.motherboard.events.take()
    }

    /// Returns notes for the user about hypercalls and files that were refused since power-on.
    pub fn notes(&self) -> Vec<String> {
        self.motherboard.notes.texts()
    }

    /// Sets the limits of the guest's result files. Callers set the limits before the node runs.
    pub fn set_file_limits(&mut self, limits: FileLimits) {
        self.motherboard.files = FileQuota::new(limits);
    }

    /// Returns the number of bytes that the guest's result files count so far.
    pub fn file_bytes(&self) -> u64 {
        self.motherboard.files.used()
    }

    /// Sets the number of bytes that the guest may still add to its result files before the limit of the study is reached.
    pub fn set_file_bytes_left(&mut self, left: u64) {
        self.motherboard.files.set_study_left(left);
    }

    /// Sets a flag that ends every run of the node soon after the flag becomes true. The time at which the node then stops is not
    /// deterministic.
    pub fn set_stop(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    /// Returns and removes the frames that the guest has sent since the last call; their times are in cycles.
    pub fn take_frames(&mut self) -> Vec<Frame> {
        self.motherboard
            .network()
            .map(|net| net.take_frames())
            .unwrap_or_default()
    }

    /// Delivers a frame to the guest. The frame arrives at its time in cycles, which must not be before [`Node::now`].
    pub fn inject(&mut self, frame: Frame) {
        if let Some(net) = self.motherboard.network() {
            net.inject(frame);
        }
    }

    /// Returns the time in cycles of the next activity in this node if nothing arrives from outside: now if a vCPU runs, `u64::MAX` for a
    /// stopped node.
    pub fn next_activity(&mut self) -> u64 {
        if self.status != NodeStatus::Running {
            return u64::MAX;
        }
        let device = self.motherboard.chipset.next_event();
        self.next_activity_after(device)
    }

    /// Returns [`Node::next_activity`] of a running node. `device` is the time of the next device event.
    pub(crate) fn next_activity_after(&mut self, device: u64) -> u64 {
        let mut next = device;
        for v in 0..self.vcpus.len() {
            if !self.halted[v]
                || self
                    .motherboard
                    .chipset
                    .interrupts
                    .pending(v as u16, self.now)
                    .is_some()
            {
                return self.now;
            }
            next = next.min(self.motherboard.chipset.interrupts.next_event(v as u16));
        }
        next.max(self.now)
    }

    /// Sets the pace, which decides how far [`Node::run_from`] may continue after its target.
    pub fn set_pace(&mut self, pace: Box<dyn Pace>) {
        self.motherboard.pace = Some(pace);
    }

    /// Returns the pace that [`Node::set_pace`] has set; `None` if there is none or it has another type.
    pub fn pace<P: Pace>(&mut self) -> Option<&mut P> {
        let pace: &mut dyn Any = self.motherboard.pace.as_deref_mut()?;
        pace.downcast_mut()
    }

    /// Runs until the node's clock shows `target` cycles, or the node stops. Returns the node's status.
    pub fn run_until(&mut self, target: u64) -> Result<NodeStatus, NodeError> {
        self.motherboard.has_pace = false;
        self.run(target)
    }

    /// Advances the clock of a sleeping node to `target` cycles. No activity of the node may be due before ([`Node::next_activity`]).
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

    /// Runs until the node's clock shows `target` cycles. A vCPU that is the only one awake may then continue to further targets, which the
    /// node's pace gives.
    pub fn run_from(&mut self, target: u64) -> Result<NodeStatus, NodeError> {
        self.motherboard.has_pace = self.motherboard.pace.is_some();
        self.run(target)
    }

    fn run(&mut self, target: u64) -> Result<NodeStatus, NodeError> {
        self.motherboard.target = target;
        if self.parallel.is_some() {
            return self.run_parallel(target);
        }
        while self.now < self.motherboard.target
            && self.status == NodeStatus::Running
            && !self.stop.load(AtomicOrdering::Relaxed)
        {
            let mut device = self.motherboard.chipset.next_event();
            if device <= self.now {
                self.motherboard.chipset.advance(self.now);
                device = self.motherboard.chipset.next_event();
            }
            let until = device.max(self.now + 1);
            let activity = self.next_activity_after(device);
            if activity > self.now {
                // All vCPUs sleep: nothing happens before the next timer or device event.
                let end = self.motherboard.target.min(until).min(activity);
                for v in 0..self.vcpus.len() {
                    self.vcpus[v].advance_to(end);
                }
                self.now = end;
                continue;
            }
            self.motherboard.time_slice = TimeSlice {
                start: self.now,
                end: self.motherboard.latest_slice_end(self.now).min(until),
            };
            for v in 0..self.vcpus.len() {
                self.run_vcpu(v)?;
                if self.status != NodeStatus::Running {
                    return Ok(self.status);
                }
            }
            self.now = self.motherboard.time_slice.end;
            self.motherboard.adapt_slices();
        }
        Ok(self.status)
    }

    /// Runs a vCPU for its time slice. If all other vCPUs sleep, the vCPU may extend its slice by further ones. The last of these is then
    /// also the time slice of the other vCPUs.
    fn run_vcpu(&mut self, v: usize) -> Result<(), NodeError> {
        let first = self.motherboard.time_slice.end;
        let result = self.run_time_slices(v);
        self.sample(v);
        self.look_at_code(v);
        let TimeSlice { start, end } = self.motherboard.time_slice;
        if end > first {
            // The other vCPUs would have slept in the earlier slices. Those before this vCPU would have slept in the last slice as well.
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

    /// Samples a vCPU's call stack, if a sample is due.
    fn sample(&mut self, v: usize) {
        let Some(sampler) = &mut self.sampler else {
            return;
        };
        let now = self.vcpus[v].cycles();
        if now < self.motherboard.sample_at[v] {
            return;
        }
        if !self.halted[v] {
            let state = self.vcpus[v].save();
            let thread = state.segments.data[seg::FS].base;
            let context = self
                .motherboard
                .context(v as u16, state.control.cr3, thread);
            sampler.push(sample(v as u16, now, context, &state, &self.ram));
        }
        self.motherboard.sample_at[v] = sampler.next(now);
    }

    /// Runs a vCPU to the end of its time slice, and of the slices by which the vCPU extends it ([`Platform::extend`]). In between,
    /// interrupts wake the vCPU, and the node serves the vCPU's requests.
    fn run_time_slices(&mut self, v: usize) -> Result<(), NodeError> {
        let id = v as u16;
        let moves = self.motherboard.line_moves().count;
        let mut kept = None;
        loop {
            if !self.motherboard.updates[v].is_empty() {
                let updates = std::mem::take(&mut self.motherboard.updates[v]);
                self.vcpus[v].update_l0(&updates);
            }
            let end = self.motherboard.time_slice.end;
            if self.halted[v] {
                let now = self.vcpus[v].cycles();
                if self
                    .motherboard
                    .chipset
                    .interrupts
                    .pending(id, now)
                    .is_none()
                {
                    let wake = self.motherboard.chipset.interrupts.next_event(id);
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
                extends: alone
                    && kept.is_none()
                    && (end < self.motherboard.target || self.motherboard.has_pace),
                ..Limit::cycles(kept.unwrap_or(end))
            };
            let exit = self.vcpus[v]
                .run(&mut *self.motherboard, limit)
                .map_err(|source| NodeError::Engine {
                    node: self.index,
                    source,
                })?;
            if let Some(why) = self.motherboard.model.as_ref().and_then(|m| m.failure()) {
                return Err(NodeError::Model {
                    node: self.index,
                    why,
                });
            }
            match exit {
                Exit::Limit => {
                    let taken = self.motherboard.line_moves();
                    let keeps = taken.count != moves && taken.keeps_until > self.vcpus[v].cycles();
                    if !keeps || kept.is_some() {
                        return Ok(());
                    }
                    kept = Some(taken.keeps_until);
                }
                Exit::Halted => {
                    self.halted[v] = true;
                    let now = self.vcpus[v].cycles();
                    if self
                        .motherboard
                        .chipset
                        .interrupts
                        .pending(id, now)
                        .is_some()
                    {
                        // The vCPU is in HLT with interrupts disabled, from which only NMI and INIT wake it.
                        self.vcpus[v].advance_to(self.motherboard.time_slice.end);
                        return Ok(());
                    }
                }
                Exit::Attention => {
                    self.carry_out_actions();
                    if let Some(request) = self.motherboard.chipset.power.take_request() {
                        self.status = match request {
                            PowerRequest::PowerOff => NodeStatus::Off,
                            PowerRequest::Reset => NodeStatus::Reset,
                        };
                        return Ok(());
                    }
                    if self.motherboard.take_pause_request() {
                        self.vcpus[v].advance_to(self.motherboard.target);
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

    /// Applies waiting INIT, start-up and NMI messages to their vCPUs (SDM vol. 3A §8.4).
    pub(crate) fn carry_out_actions(&mut self) {
        for action in self.motherboard.chipset.interrupts.take_actions() {
            let v = usize::from(actions::target(action));
            let mut state = self.vcpus[v].save();
            if let Some(halted) = actions::carry_out(action, &mut state) {
                self.halted[v] = halted;
                self.vcpus[v].restore(&state);
            }
        }
    }

    /// Attaches a model: a window opens, beginning with its warm-up. With `samples`, counts are attributed to code, and up to about this
    /// many call stacks are sampled.
    pub fn attach(&mut self, model: Box<dyn MemoryModel>, samples: Option<usize>) {
        let geometry = model.l0_geometry();
        self.motherboard.model = Some(model);
        self.sampler = samples.map(Sampler::new);
        for v in &mut self.vcpus {
            v.attribute_to_code(samples.is_some());
            v.attach(Some(geometry));
        }
        self.watch_code(self.motherboard.core.is_some());
        self.start_measuring();
    }

    /// Gives the next window a model of the core. Its costs are filled into the window's counts by basic block.
    pub fn model_core(&mut self, model: Box<dyn CoreModel>) {
        self.motherboard.core = Some(Box::new(ModelledCore::new(model)));
    }

    /// Returns whether a model is attached.
    pub fn attached(&self) -> bool {
        self.motherboard.model.is_some()
    }
}

impl Node {
    /// Returns the node's platform, for tests that run a vCPU themselves.
    pub fn platform(&mut self) -> &mut dyn Platform {
        &mut *self.motherboard
    }
}
