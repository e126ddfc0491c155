//! The motherboard: everything in a node except its vCPUs. It has the address decode, devices, interrupts, attached memory model and
//! hypercalls.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};

use nodescope_devices::chipset::Chipset;
use nodescope_devices::virtio::Device;
use nodescope_devices::virtio::net::Net;
use nodescope_engine::{
    GuestVirtual, Hypercall, HypercallAnswer, MemoryFault, MsrFault, Platform, UndefinedInstruction,
};
use nodescope_hypercall::{Answer, Call, Function, NodeIdentity, Request, TRANSPORT_DIRECT};
use nodescope_plugin_api::{
    AcceptedDirectMisses, Charges, Context, Counters, Hits, L0Update, LineMoves, MemRef,
    MemoryModel, Outcome, Permission, Prefetched, Privilege, Recording, RecordingPlan,
};

use serde::{Deserialize, Serialize};

use crate::events::Events;
use crate::files::{FileLimits, FileQuota, FileRefusal};
use crate::modelled_core::ModelledCore;
use crate::node::{SHARING_SLICE_CYCLES, TIME_SLICE_CYCLES};
use crate::notes::Notes;

/// Maximum number of activities ([`Activity`]) that a node distinguishes. Only a guest kernel that invents address spaces would exceed it.
pub(crate) const MOST_ACTIVITIES: usize = 1 << 16;

/// A decoded hypercall with the state of the vCPU that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvent {
    /// Clock of the vCPU in cycles, at the hypercall.
    pub cycles: u64,
    /// Number of the vCPU in the node.
    pub vcpu: u16,
    /// Instructions that the vCPU had retired.
    pub instructions: u64,
    /// Address space of the caller: the value of CR3.
    pub cr3: u64,
    /// Request of the guest. If a piece of a file was refused, its data are dropped.
    pub request: Request,
    /// Reason why a piece of a file was refused; `None` for all other requests.
    pub refused: Option<Box<FileRefusal>>,
}

/// Meaning of a [`Context`]: an address space, and the MPI function that the running thread of its process is executing.
///
/// Kernel threads run in the address space that was loaded before, and count for it: inside MPI if one of the process's threads is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Activity {
    /// Address space: the value of CR3.
    pub cr3: u64,
    /// MPI function that is executing; `None` outside MPI.
    pub function: Option<Function>,
}

/// Counters by vCPU number, context and privilege.
pub type Accounts = BTreeMap<(u16, Context, Privilege), Counters>;

/// Source of further targets, which decides how far a node runs.
pub trait Pace: Any + Send {
    /// Returns the node's next target in cycles, or `None` if the node must stop. Called when the node has reached its present target, at
    /// the default end of a quantum ([`crate::node::Node::is_at_default_end`]).
    fn next(&mut self) -> Option<u64>;
}

/// Time slice of a vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimeSlice {
    /// Start of the time slice, in cycles of the node's clock.
    pub(crate) start: u64,
    /// End of the time slice, in cycles of the node's clock.
    pub(crate) end: u64,
}

/// Motherboard of a node: everything but its vCPUs.
pub struct Motherboard {
    pub(crate) chipset: Chipset,
    network: Option<usize>,
    pub(crate) model: Option<Box<dyn MemoryModel>>,
    /// Model of the core, with what it needs to answer direct misses.
    pub(crate) core: Option<Box<ModelledCore>>,
    /// Changes of each vCPU's L0 filter cache that accesses of other vCPUs have caused; applied before the vCPU runs again.
    pub(crate) updates: Vec<Vec<L0Update>>,
    pub(crate) contexts: HashMap<Activity, Context>,
    /// For each vCPU, the address space, thread and context of its last look-up. `None` before the first look-up, and after any process of the
    /// node has entered or left an MPI function.
    pub(crate) recent: Vec<Option<((u64, u64), Context)>>,
    pub(crate) activities: Vec<Activity>,
    /// MPI function that each thread is executing, by address space and thread.
    pub(crate) inside: BTreeMap<(u64, u64), Function>,
    pub(crate) accounts: Accounts,
    pub(crate) events: Events,
    /// True if the waiting events have reached their limit. The running vCPU must then pause until the quantum ends and the events are
    /// taken.
    pub(crate) pause_requested: bool,
    /// MPI functions whose calls the node reports at once ([`crate::node::Node::subscribe`]).
    pub(crate) subscriptions: Vec<Function>,
    /// True if one of the waiting events must be reported at once: any but entries into MPI functions and ended MPI calls without a
    /// subscription.
    pub(crate) has_subscribed_event: bool,
    /// Transport by which programs make hypercalls ([`nodescope_hypercall`], "Transports").
    pub(crate) transport: u32,
    /// Answer to the hypercall NodeIdentity.
    pub(crate) identity: NodeIdentity,
    /// Notes for the user about refused hypercalls.
    pub(crate) notes: Notes,
    /// Quota and lengths of the files that the guest has put among the results.
    pub(crate) files: FileQuota,
    /// Clock, in cycles, up to which the node is to run.
    pub(crate) target: u64,
    /// Source of further targets, if any; `has_pace` is true if the node asks the source in this run.
    pub(crate) pace: Option<Box<dyn Pace>>,
    pub(crate) has_pace: bool,
    pub(crate) time_slice: TimeSlice,
    /// Length of the next time slice in cycles.
    pub(crate) slice_cycles: u64,
    /// Number of lines that vCPUs had taken from each other before the last time slice.
    pub(crate) moves_seen: u64,
    /// Clock in cycles of each vCPU at which its call stack is sampled next; `u64::MAX` for never.
    pub(crate) sample_at: Vec<u64>,
    /// For each vCPU, the clock in cycles at which the node looks whether the cost of its code is known ([`crate::watch`]).
    pub(crate) watch_at: Vec<u64>,
    /// True if code of unknown cost asks for an interval of a sampled window.
    pub(crate) wants_interval: bool,
}

/// Holder of a node's motherboard, which is empty while the threads of parallel vCPUs have the motherboard.
pub(crate) struct MotherboardHolder(pub(crate) Option<Box<Motherboard>>);

impl MotherboardHolder {
    pub(crate) fn new(motherboard: Motherboard) -> Self {
        Self(Some(Box::new(motherboard)))
    }
}

impl Deref for MotherboardHolder {
    type Target = Motherboard;

    #[inline]
    fn deref(&self) -> &Motherboard {
        let motherboard = self.0.as_deref();
        motherboard.expect("the motherboard comes back at the end of a round")
    }
}

impl DerefMut for MotherboardHolder {
    #[inline]
    fn deref_mut(&mut self) -> &mut Motherboard {
        let motherboard = self.0.as_deref_mut();
        motherboard.expect("the motherboard comes back at the end of a round")
    }
}

impl Motherboard {
    /// Keeps updates of the L0 filter caches of other vCPUs than `running` until those run.
    fn keep_updates_of_others(&mut self, running: u16, updates: &mut Vec<L0Update>) {
        updates.retain(|update| {
            let own = update.vcpu == running;
            if !own {
                self.updates[usize::from(update.vcpu)].push(*update);
            }
            own
        });
    }

    /// Returns a motherboard with these devices. The hypercall NodeIdentity is answered with `identity`.
    pub fn new(chipset: Chipset, vcpus: usize, identity: NodeIdentity) -> Self {
        let network = chipset
            .virtio()
            .position(|v| matches!(v.device(), Device::Net(_)));
        Self {
            chipset,
            network,
            model: None,
            core: None,
            updates: vec![Vec::new(); vcpus],
            contexts: HashMap::new(),
            recent: vec![None; vcpus],
            activities: Vec::new(),
            inside: BTreeMap::new(),
            accounts: Accounts::new(),
            events: Events::default(),
            pause_requested: false,
            subscriptions: Vec::new(),
            has_subscribed_event: false,
            transport: TRANSPORT_DIRECT,
            identity,
            notes: Notes::default(),
            files: FileQuota::new(FileLimits::default()),
            target: 0,
            pace: None,
            has_pace: false,
            time_slice: TimeSlice::default(),
            slice_cycles: TIME_SLICE_CYCLES,
            moves_seen: 0,
            sample_at: vec![u64::MAX; vcpus],
            watch_at: vec![u64::MAX; vcpus],
            wants_interval: false,
        }
    }

    /// Returns whether the node has output that the cluster may wait for: serial output, an event that must be reported at once
    /// (`has_subscribed_event`), many waiting bytes of events, or the wish for an interval of a sampled window.
    pub(crate) fn wants_attention(&mut self) -> bool {
        self.chipset.serial.has_output()
            || self.has_subscribed_event
            || self.events.are_many()
            || self.wants_interval
    }

    /// Returns whether the running vCPU must pause until the quantum ends, and resets the request.
    pub(crate) fn take_pause_request(&mut self) -> bool {
        std::mem::take(&mut self.pause_requested)
    }

    /// Returns whether the cluster needs no information from the node at the end of a quantum: the network interface is up and has no
    /// frames to send, and no output wants attention. The caller checks that a vCPU runs.
    pub(crate) fn is_at_default_end(&mut self) -> bool {
        let connected = |net: &mut Net| net.is_active() && !net.has_frames();
        !self.wants_attention() && self.network().is_some_and(connected)
    }

    /// Returns the latest clock, in cycles, at which a time slice that begins at `now` may end.
    pub(crate) fn latest_slice_end(&self, now: u64) -> u64 {
        self.target.min(now + self.slice_cycles)
    }

    /// Returns the lines that vCPUs have taken from each other in the open window.
    pub(crate) fn line_moves(&self) -> LineMoves {
        let model = self.model.as_ref();
        model.map(|model| model.line_moves()).unwrap_or_default()
    }

    /// Sets the length of the next time slice: short after a slice in which vCPUs took lines from each other, and twice as long after each
    /// other slice, up to [`TIME_SLICE_CYCLES`].
    pub(crate) fn adapt_slices(&mut self) {
        if self.model.is_none() {
            return;
        }
        let moves = self.line_moves().count;
        self.slice_cycles = match moves == self.moves_seen {
            true => TIME_SLICE_CYCLES.min(2 * self.slice_cycles),
            false => SHARING_SLICE_CYCLES,
        };
        self.moves_seen = moves;
    }

    /// Returns the node's network device; `None` if it has none.
    pub fn network(&mut self) -> Option<&mut Net> {
        match self.chipset.virtio_device_mut(self.network?) {
            Some(Device::Net(net)) => Some(net),
            _ => None,
        }
    }

    fn answer(&mut self, call: &Hypercall, memory: &mut dyn GuestVirtual) -> Answer {
        let mut memory = HypercallMemory { memory, read: 0 };
        let mut refused = None;
        let decoded = Call::new(call.operation, call.args)
            .and_then(|c| nodescope_hypercall::decode(&c, &mut memory));
        self.events.have_read(memory.read);
        let mut request = match decoded {
            Ok(request) => request,
            Err(error) => {
                // An unreadable page is an ordinary case: the tool touches the page and calls again.
                if !matches!(error, nodescope_hypercall::HypercallError::Memory(_)) {
                    self.notes.bad_call(call.operation, &error);
                }
                return error.answer();
            }
        };
        if matches!(
            &request,
            Request::MpiEnter(..) | Request::MpiEvents(_) | Request::MpiPollFailed(_)
        ) {
            self.recent.fill(None);
        }
        let caller = (call.cr3, call.thread);
        match &request {
            Request::MpiEnter(enter, _)
                if self.inside.len() < MOST_ACTIVITIES || self.inside.contains_key(&caller) =>
            {
                self.inside.insert(caller, enter.function);
            }
            Request::MpiEvents(_) | Request::MpiPollFailed(_) => {
                self.inside.remove(&caller);
            }
            _ => {}
        }
        let answer = match &mut request {
            Request::Probe => return Answer::probe(),
            Request::NodeIdentity(buffer) => {
                return match self.identity.write_to(*buffer, &mut memory) {
                    Ok(n) => Answer::ok(n),
                    Err(fault) => nodescope_hypercall::HypercallError::from(fault).answer(),
                };
            }
            Request::MpiEvents(records) => Answer::ok(records.len() as u32),
            Request::PutFile(chunk) => match self.files.enter(chunk) {
                Ok(()) => Answer::ok(0),
                Err(refusal) => {
                    self.notes.refused(&refusal);
                    chunk.data = Vec::new();
                    let status = refusal.status();
                    refused = Some(Box::new(refusal));
                    Answer::failed(status)
                }
            },
            _ => Answer::ok(0),
        };
        self.has_subscribed_event |= match &request {
            Request::MpiEnter(..) => false,
            Request::MpiPollFailed(enter) => self.subscriptions.contains(&enter.function),
            Request::MpiEvents(records) => {
                let mut functions = records.iter().map(|record| record.function);
                functions.any(|function| self.subscriptions.contains(&function))
            }
            _ => true,
        };
        self.events.push(NodeEvent {
            cycles: call.now,
            vcpu: call.vcpu,
            instructions: call.instructions,
            cr3: call.cr3,
            request,
            refused,
        });
        answer
    }
}

/// Adapter from the engine's view of guest memory to the hypercall decoder's.
struct HypercallMemory<'a> {
    memory: &'a mut dyn GuestVirtual,
    /// Number of bytes that the decoder has requested.
    read: usize,
}

impl nodescope_hypercall::GuestVirtual for HypercallMemory<'_> {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), nodescope_hypercall::Fault> {
        self.read += buffer.len();
        self.memory
            .read(address, buffer)
            .map_err(|MemoryFault { address }| nodescope_hypercall::Fault {
                address,
                write: false,
            })
    }
    fn write(&mut self, address: u64, data: &[u8]) -> Result<(), nodescope_hypercall::Fault> {
        self.memory
            .write(address, data)
            .map_err(|MemoryFault { address }| nodescope_hypercall::Fault {
                address,
                write: true,
            })
    }
}

impl Platform for Motherboard {
    fn port_read(&mut self, _vcpu: u16, now: u64, port: u16, data: &mut [u8]) {
        self.chipset.port_read(now, port, data);
    }

    fn port_write(&mut self, _vcpu: u16, now: u64, port: u16, data: &[u8]) {
        self.chipset.port_write(now, port, data);
    }

    fn mmio_read(&mut self, vcpu: u16, now: u64, physical: u64, data: &mut [u8]) {
        self.chipset.mmio_read(vcpu, now, physical, data);
    }

    fn mmio_write(&mut self, vcpu: u16, now: u64, physical: u64, data: &[u8]) {
        self.chipset.mmio_write(vcpu, now, physical, data);
    }

    fn msr_read(&mut self, vcpu: u16, now: u64, msr: u32) -> Result<u64, MsrFault> {
        use nodescope_x86::bits::msr as number;
        match msr {
            number::ARCH_CAPABILITIES => Ok(nodescope_x86::cpuid::ARCH_CAPABILITIES),
            _ => self
                .chipset
                .interrupts
                .read_msr(vcpu, now, msr)
                .map_err(|_| MsrFault),
        }
    }

    fn msr_write(&mut self, vcpu: u16, now: u64, msr: u32, value: u64) -> Result<(), MsrFault> {
        self.chipset
            .interrupts
            .write_msr(vcpu, now, msr, value)
            .map_err(|_| MsrFault)
    }

    fn tsc_offset_changed(&mut self, vcpu: u16, now: u64, offset: u64) {
        self.chipset.interrupts.set_tsc_offset(vcpu, now, offset);
    }

    fn task_priority(&mut self, vcpu: u16) -> u8 {
        self.chipset.interrupts.cr8(vcpu)
    }

    fn set_task_priority(&mut self, vcpu: u16, _now: u64, priority: u8) {
        self.chipset.interrupts.set_cr8(vcpu, priority);
    }

    fn interrupt_pending(&mut self, vcpu: u16, now: u64) -> bool {
        self.chipset.interrupts.pending(vcpu, now).is_some()
    }

    fn acknowledge(&mut self, vcpu: u16, now: u64) -> Option<u8> {
        self.chipset.interrupts.acknowledge(vcpu, now)
    }

    fn next_event(&mut self, vcpu: u16) -> u64 {
        self.chipset.interrupts.next_event(vcpu)
    }

    /// Returns the end of the time slice that [`crate::node::Node::run_until`] would give this vCPU next; `None` if the vCPU must return to
    /// the node first.
    fn extend(&mut self, vcpu: u16) -> Option<u64> {
        let now = self.time_slice.end;
        let device = self.chipset.next_event();
        if device <= now
            || !self.updates[usize::from(vcpu)].is_empty()
            || now >= self.sample_at[usize::from(vcpu)]
            || now >= self.watch_at[usize::from(vcpu)]
            || self
                .model
                .as_ref()
                .is_some_and(|model| model.failure().is_some())
        {
            return None;
        }
        let vcpus = self.updates.len() as u16;
        let others = || (0..vcpus).filter(|other| *other != vcpu);
        let interrupts = &mut self.chipset.interrupts;
        for other in others() {
            // The order is essential: `next_event` must be asked first, because `pending` lets a timer that is due expire, although the
            // other vCPU may get a time slice before.
            if interrupts.next_event(other) <= now || interrupts.pending(other, now).is_some() {
                return None;
            }
        }
        if now >= self.target {
            if !self.has_pace || !self.is_at_default_end() {
                return None;
            }
            self.target = self.pace.as_mut()?.next()?;
        }
        let end = self.latest_slice_end(now).min(device);
        if others().any(|other| self.chipset.interrupts.next_event(other) < end) {
            return None;
        }
        self.time_slice = TimeSlice { start: now, end };
        self.adapt_slices();
        Some(end)
    }

    fn attention(&mut self) -> bool {
        self.pause_requested
            || self.chipset.interrupts.has_actions()
            || self.chipset.power.request().is_some()
    }

    fn hypercall(&mut self, call: &Hypercall, memory: &mut dyn GuestVirtual) -> HypercallAnswer {
        let a = self.answer(call, memory);
        self.pause_requested |= self.events.are_too_many();
        HypercallAnswer {
            eax: a.eax,
            ebx: self.transport,
            ecx: a.ecx,
            edx: a.edx,
        }
    }

    fn undefined_instruction(
        &mut self,
        instruction: &UndefinedInstruction,
        memory: &mut dyn GuestVirtual,
    ) {
        self.notes.undefined(instruction, memory);
    }

    fn context(&mut self, vcpu: u16, cr3: u64, thread: u64) -> Context {
        let recent = &mut self.recent[usize::from(vcpu)];
        if let Some((last, context)) = *recent
            && last == (cr3, thread)
        {
            return context;
        }
        // Kernel threads have no base of FS.
        let function = match thread {
            0 => self.inside.range((cr3, 0)..=(cr3, u64::MAX)).next(),
            _ => self.inside.get_key_value(&(cr3, thread)),
        };
        let activity = Activity {
            cr3,
            function: function.map(|(_, function)| *function),
        };
        // All activities beyond the maximum number share the last context.
        let next = Context(self.activities.len().min(MOST_ACTIVITIES - 1) as u32);
        if self.activities.len() >= MOST_ACTIVITIES && !self.contexts.contains_key(&activity) {
            return next;
        }
        let activities = &mut self.activities;
        let context = *self.contexts.entry(activity).or_insert_with(|| {
            activities.push(activity);
            next
        });
        *recent = Some(((cr3, thread), context));
        context
    }

    fn reference(
        &mut self,
        hits: Hits<'_>,
        reference: &MemRef,
        updates: &mut Vec<L0Update>,
    ) -> Outcome {
        let Some(model) = self.model.as_mut() else {
            return Outcome::new(0, Permission::None, None);
        };
        let mut outcome = model.reference(hits, reference, updates);
        if let Some(core) = &mut self.core {
            outcome = core.answer(outcome, reference, &model.take_charges());
        }
        self.keep_updates_of_others(reference.vcpu, updates);
        outcome
    }

    fn direct_misses(&mut self) -> Option<AcceptedDirectMisses> {
        let misses = self.model.as_mut()?.direct_misses()?;
        let misses = match &mut self.core {
            // SAFETY: as below. The core is in a box, and is replaced with the model.
            Some(core) => unsafe { core.direct_misses(misses) },
            None => misses,
        };
        // SAFETY: only the node attaches and detaches models (`Node::attach`, `Node::detach`), and then its vCPUs, before any of them runs
        // again. Nothing else reaches the motherboard's model, which vCPUs use one at a time.
        Some(unsafe { misses.accept() })
    }

    fn take_updates(&mut self, vcpu: u16, updates: &mut Vec<L0Update>) {
        if let Some(model) = self.model.as_mut() {
            model.take_updates(updates);
            self.keep_updates_of_others(vcpu, updates);
        }
    }

    fn take_charges(&mut self) -> Charges {
        let charges = self.model.as_mut().map(|model| model.take_charges());
        let mut charges = charges.unwrap_or_default();
        if let Some(core) = &mut self.core {
            charges.add(&core.take_charges());
        }
        charges
    }

    fn recorded(&mut self, vcpu: u16, recording: &Recording) -> Option<RecordingPlan> {
        self.core.as_mut()?.model.recorded(vcpu, recording)
    }

    fn take_prefetched(&mut self, prefetched: &mut Vec<Prefetched>) {
        if let Some(model) = self.model.as_mut() {
            model.take_prefetched(prefetched);
        }
    }

    fn modified(&mut self, vcpu: u16, lines: &[u64]) {
        if let Some(model) = self.model.as_mut() {
            model.modified(vcpu, lines);
        }
    }

    fn account(&mut self, vcpu: u16, context: Context, privilege: Privilege, counters: &Counters) {
        self.accounts
            .entry((vcpu, context, privilege))
            .or_default()
            .add(counters);
    }
}
