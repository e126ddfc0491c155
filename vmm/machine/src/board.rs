//! Everything in a node but its vCPUs: address decode, devices, interrupts, the attached model, hypercalls.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};

use nodescope_devices::chipset::Chipset;
use nodescope_devices::virtio::Device;
use nodescope_devices::virtio::net::Net;
use nodescope_engine::{GuestVirtual, Hypercall, HypercallAnswer, MemoryFault, MsrFault, Platform};
use nodescope_hypercall::{Answer, Call, Function, NodeIdentity, Request, TRANSPORT_DIRECT};
use nodescope_plugin_api::exported::AcceptedExport;
use nodescope_plugin_api::{
    Charges, Context, Counters, Hits, L0Update, MemRef, MemoryModel, Outcome, Permission, Privilege,
};

use serde::{Deserialize, Serialize};

use crate::events::Events;
use crate::files::{FileBook, FileLimits, FileRefusal};
use crate::node::SLICE;
use crate::notes::Notes;

/// Most address spaces, each inside and outside MPI functions, that are told apart. Only a kernel that makes address spaces up has more.
pub(crate) const MOST_ACTIVITIES: usize = 1 << 16;

/// A decoded hypercall with the state in which it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvent {
    /// Clock of the vCPU in cycles.
    pub cycles: u64,
    /// vCPU within the node.
    pub vcpu: u16,
    /// Instructions retired by the vCPU.
    pub instructions: u64,
    /// Address space of the caller.
    pub cr3: u64,
    /// The request of the guest. A refused piece of a file has lost its data.
    pub request: Request,
    /// Why a piece of a file was refused.
    pub refused: Option<Box<FileRefusal>>,
}

/// What a [`Context`] stands for: an address space, and the MPI function that its process is in.
///
/// The function is known per process, not per thread: with threads that call MPI at the same time the last entry counts.
/// Kernel threads run in whatever address space was loaded before them and are counted there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Activity {
    /// CR3.
    pub cr3: u64,
    /// MPI function, None outside MPI.
    pub function: Option<Function>,
}

/// Counters by vCPU, address space and privilege.
pub type Accounts = BTreeMap<(u16, Context, Privilege), Counters>;

/// Who says how far a node runs.
pub trait Pace: Any + Send {
    /// The node has run as far as it was told to, a vCPU of it runs on, and nobody waits for anything that it says: where to run to now, in
    /// cycles, if the node may go on at once.
    fn next(&mut self) -> Option<u64>;
}

/// A vCPU's turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    /// Where it begins, in cycles.
    pub(crate) start: u64,
    /// Where it ends.
    pub(crate) end: u64,
}

/// The node around its vCPUs.
pub struct Board {
    pub(crate) chipset: Chipset,
    network: Option<usize>,
    pub(crate) model: Option<Box<dyn MemoryModel>>,
    /// L0 filter cache changes of vCPUs that were not running.
    pub(crate) updates: Vec<Vec<L0Update>>,
    pub(crate) contexts: HashMap<Activity, Context>,
    /// Each vCPU's last address space and its context, unless a process has entered or left a function since.
    pub(crate) recent: Vec<Option<(u64, Context)>>,
    pub(crate) activities: Vec<Activity>,
    /// The MPI function that the process of an address space is in.
    pub(crate) inside: HashMap<u64, Function>,
    pub(crate) accounts: Accounts,
    pub(crate) events: Events,
    /// A vCPU has said more than can wait, and is to stand still until the quantum ends and somebody listens.
    pub(crate) standstill: bool,
    /// MPI functions whose calls somebody waits for.
    pub(crate) heeds: Vec<Function>,
    /// Among the events is one that somebody may wait for.
    pub(crate) heeded: bool,
    /// How programs make hypercalls ([`nodescope_hypercall`], "Transports").
    pub(crate) transport: u32,
    /// What NodeIdentity answers.
    pub(crate) identity: NodeIdentity,
    /// Hypercalls that could not be decoded, and what was refused, for the user.
    pub(crate) notes: Notes,
    /// The files that the guest has put among the results.
    pub(crate) files: FileBook,
    /// Where the node is to run to, in cycles.
    pub(crate) target: u64,
    /// Tells the next target, if anybody does, and is to be asked for it.
    pub(crate) pace: Option<Box<dyn Pace>>,
    pub(crate) paced: bool,
    pub(crate) turn: Turn,
    /// Clock of each vCPU at which its call stack is sampled next.
    pub(crate) sample_at: Vec<u64>,
}

/// A node's board, which the threads of its vCPUs have while they run at once.
pub(crate) struct Held(pub(crate) Option<Box<Board>>);

impl Held {
    pub(crate) fn new(board: Board) -> Self {
        Self(Some(Box::new(board)))
    }
}

impl Deref for Held {
    type Target = Board;

    #[inline]
    fn deref(&self) -> &Board {
        let board = self.0.as_deref();
        board.expect("the board comes back at the end of a round")
    }
}

impl DerefMut for Held {
    #[inline]
    fn deref_mut(&mut self) -> &mut Board {
        let board = self.0.as_deref_mut();
        board.expect("the board comes back at the end of a round")
    }
}

impl Board {
    /// A node's devices and what it answers when asked who it is.
    pub fn new(chipset: Chipset, vcpus: usize, identity: NodeIdentity) -> Self {
        let network = chipset
            .virtio()
            .position(|v| matches!(v.device(), Device::Net(_)));
        Self {
            chipset,
            network,
            model: None,
            updates: vec![Vec::new(); vcpus],
            contexts: HashMap::new(),
            recent: vec![None; vcpus],
            activities: Vec::new(),
            inside: HashMap::new(),
            accounts: Accounts::new(),
            events: Events::default(),
            standstill: false,
            heeds: Vec::new(),
            heeded: false,
            transport: TRANSPORT_DIRECT,
            identity,
            notes: Notes::default(),
            files: FileBook::new(FileLimits::default()),
            target: 0,
            pace: None,
            paced: false,
            turn: Turn::default(),
            sample_at: vec![u64::MAX; vcpus],
        }
    }

    /// Somebody may wait for what the node has to say: for anything but MPI calls that were not asked for.
    pub(crate) fn wants_attention(&mut self) -> bool {
        self.chipset.serial.has_output() || self.heeded || self.events.are_many()
    }

    /// Returns, once, whether the vCPU that runs is to stand still until the quantum ends.
    pub(crate) fn take_standstill(&mut self) -> bool {
        std::mem::take(&mut self.standstill)
    }

    /// The network interface is up, and nobody need know anything else about a node of which a vCPU runs.
    pub(crate) fn is_usual(&mut self) -> bool {
        let connected = |net: &mut Net| net.is_active() && !net.has_frames();
        !self.wants_attention() && self.network().is_some_and(connected)
    }

    /// Where a turn ends at the latest that begins now.
    pub(crate) fn last_end(&self, now: u64) -> u64 {
        self.target.min(now + SLICE)
    }

    /// The node's network device.
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
                // An unreadable page is ordinary: the tool touches it and calls again.
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
        match &request {
            Request::MpiEnter(enter, _)
                if self.inside.len() < MOST_ACTIVITIES || self.inside.contains_key(&call.cr3) =>
            {
                self.inside.insert(call.cr3, enter.function);
            }
            Request::MpiEvents(_) | Request::MpiPollFailed(_) => {
                self.inside.remove(&call.cr3);
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
        self.heeded |= match &request {
            Request::MpiEnter(..) => false,
            Request::MpiPollFailed(enter) => self.heeds.contains(&enter.function),
            Request::MpiEvents(records) => {
                let mut functions = records.iter().map(|record| record.function);
                functions.any(|function| self.heeds.contains(&function))
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

/// Adapts the engine's view of guest memory to the hypercall decoder's.
struct HypercallMemory<'a> {
    memory: &'a mut dyn GuestVirtual,
    /// Bytes asked for.
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

impl Platform for Board {
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

    /// As [`crate::node::Node::run_until`] would give this vCPU the next turn.
    fn extend(&mut self, vcpu: u16) -> Option<u64> {
        let now = self.turn.end;
        let device = self.chipset.next_event();
        if device <= now
            || !self.updates[usize::from(vcpu)].is_empty()
            || now >= self.sample_at[usize::from(vcpu)]
        {
            return None;
        }
        let vcpus = self.updates.len() as u16;
        let others = || (0..vcpus).filter(|other| *other != vcpu);
        let interrupts = &mut self.chipset.interrupts;
        for other in others() {
            // Its timer first: asked whether it is due, it expires, though the vCPU may still have its own turn before.
            if interrupts.next_event(other) <= now || interrupts.pending(other, now).is_some() {
                return None;
            }
        }
        if now >= self.target {
            if !self.paced || !self.is_usual() {
                return None;
            }
            self.target = self.pace.as_mut()?.next()?;
        }
        let end = self.last_end(now).min(device);
        if others().any(|other| self.chipset.interrupts.next_event(other) < end) {
            return None;
        }
        self.turn = Turn { start: now, end };
        Some(end)
    }

    fn attention(&mut self) -> bool {
        self.standstill
            || self.chipset.interrupts.has_actions()
            || self.chipset.power.request().is_some()
    }

    fn hypercall(&mut self, call: &Hypercall, memory: &mut dyn GuestVirtual) -> HypercallAnswer {
        let a = self.answer(call, memory);
        self.standstill |= self.events.are_too_many();
        HypercallAnswer {
            eax: a.eax,
            ebx: self.transport,
            ecx: a.ecx,
            edx: a.edx,
        }
    }

    fn context(&mut self, vcpu: u16, cr3: u64) -> Context {
        let recent = &mut self.recent[usize::from(vcpu)];
        if let Some((last, context)) = *recent
            && last == cr3
        {
            return context;
        }
        let activity = Activity {
            cr3,
            function: self.inside.get(&cr3).copied(),
        };
        // Beyond the number that is told apart, all are the last.
        let next = Context(self.activities.len().min(MOST_ACTIVITIES - 1) as u32);
        if self.activities.len() >= MOST_ACTIVITIES && !self.contexts.contains_key(&activity) {
            return next;
        }
        let activities = &mut self.activities;
        let context = *self.contexts.entry(activity).or_insert_with(|| {
            activities.push(activity);
            next
        });
        *recent = Some((cr3, context));
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
        let outcome = model.reference(hits, reference, updates);
        if !updates.is_empty() {
            updates.retain(|update| {
                let own = update.vcpu == reference.vcpu;
                if !own {
                    self.updates[usize::from(update.vcpu)].push(*update);
                }
                own
            });
        }
        outcome
    }

    fn miss(&mut self, modified: &[u64], oldest: u64, reference: &MemRef) -> Option<Outcome> {
        self.model.as_mut()?.miss(modified, oldest, reference)
    }

    fn exported_state(&mut self, vcpu: u16) -> Option<AcceptedExport> {
        let export = self.model.as_mut()?.export_state(vcpu)?;
        // SAFETY: the node alone attaches and detaches models (`Node::attach`, `Node::detach`), and then its vCPUs, before any of them
        // runs again. Nothing else reaches the board's model, which vCPUs use one at a time.
        Some(unsafe { export.accept() })
    }

    fn take_charges(&mut self) -> Charges {
        self.model
            .as_mut()
            .map(|model| model.take_charges())
            .unwrap_or_default()
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
