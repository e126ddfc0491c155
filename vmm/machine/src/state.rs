//! State of a node between two of its runs: everything except RAM on which the node's further execution depends.
//!
//! RAM is not part of the state, because it is large and is stored uncompressed in a snapshot (`vmm/snapshot`). State and RAM are loaded
//! into a node that was built from the same description. Decoded and translated code is not part of the state, because results do not
//! depend on it. Which pages count as code is part of the state, since a write to code ends a block. The numbers that windows have assigned
//! to code are part of the state, since a profile lists code by these numbers. Cached address translations are not part of the state,
//! although a guest can notice that: after it has cleared the accessed bit of a page without INVLPG, the bit is set again sooner. Models
//! exist only in windows, in which no state can be taken.
//!
//! A state may come from a damaged or hostile file. [`Node::load_state`] refuses a state that no node can have been in, if the state would
//! make the host panic or wait. A guest that fails because of its state harms only itself.

use nodescope_devices::chipset::ChipsetState;
use nodescope_devices::state::RestoreError;
use nodescope_devices::virtio::DeviceState;
use nodescope_devices::virtio::net::Frame;
use nodescope_engine::{CodeNumbers, EngineError, Vcpu};
use nodescope_hypercall::{Function, TRANSPORT_DIRECT, TRANSPORT_DOORBELL};
use nodescope_memory::CodePage;
use nodescope_plugin_api::Context;
use nodescope_x86::VcpuState;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::events::Events;
use crate::files::FileQuotaState;
use crate::motherboard::{Activity, MOST_ACTIVITIES, NodeEvent};
use crate::node::{Node, NodeStatus};
use crate::notes::Notes;
use crate::vcpu_state;

/// Upper limit of counters and clocks in a state: half a century at 2.9 GHz. Sums of a few such values do not overflow.
pub(crate) const MOST: u64 = 1 << 62;
/// Upper limit of the cycles by which the clock of a vCPU may be ahead of its node's clock. A vCPU is ahead by the rest of a block and its
/// stalls, or by a quantum if the vCPU has paused; the limit is some seconds.
const MOST_AHEAD: u64 = 1 << 34;
/// Upper limit of the cycles by which the clock of a running vCPU may be behind its node's. The vCPU executes all these cycles.
const MOST_BEHIND: u64 = 1 << 28;
/// Upper limit of the bytes of waiting events. [`Events`] pauses the guest far below this limit.
const MOST_EVENT_BYTES: u64 = 1 << 32;

/// State of a node without its RAM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// Frequency of the node's clock in Hz. All times in the state are cycles of this clock.
    pub hz: u64,
    /// Virtual time of the node in cycles.
    pub now: u64,
    /// Status of the node.
    pub status: NodeStatus,
    /// States of the vCPUs, in order. Their clocks may be ahead of the node's clock, or behind it.
    pub vcpus: Vec<VcpuState>,
    /// True for each vCPU that last stopped in HLT or waits for a start-up message.
    pub halted: Vec<bool>,
    /// State of the interrupt controllers and devices.
    pub chipset: ChipsetState,
    /// Transport of hypercalls. Running processes have asked for the transport once, so that it is part of the state.
    pub transport: u32,
    /// Hypercalls that wait to be taken.
    pub events: Vec<NodeEvent>,
    /// Approximate memory of the waiting events in bytes, plus the bytes that were read for hypercalls since events were last taken.
    pub event_bytes: u64,
    /// True if a vCPU must pause until the quantum ends.
    pub pause_requested: bool,
    /// MPI functions whose calls want attention ([`Node::subscribe`]).
    pub subscriptions: Vec<Function>,
    /// True if one of the waiting events wants attention.
    pub has_subscribed_event: bool,
    /// Meaning of each [`Context`], indexed by the context's number.
    pub activities: Vec<Activity>,
    /// For each vCPU, its last address space and thread, and their context; `None` if the context must be looked up again.
    pub recent: Vec<Option<((u64, u64), Context)>>,
    /// MPI function that each thread is executing, by address space and thread.
    pub inside: Vec<((u64, u64), Function)>,
    /// Notes for the user about refused hypercalls.
    pub notes: Notes,
    /// Quota and lengths of the guest's result files.
    pub files: FileQuotaState,
    /// State of the code map of each region of RAM.
    pub code: Vec<Vec<CodePage>>,
    /// Numbers that windows have assigned to code.
    pub numbers: CodeNumbers,
}

/// Reason why a node's state cannot be taken or loaded.
#[derive(Debug, Error)]
pub enum StateError {
    /// A measurement window is open.
    #[error(
        "node {node}: a measurement window is open; its state can be taken and loaded only outside of windows"
    )]
    Window {
        /// Number of the node.
        node: u32,
    },
    /// An engine could not save or load a vCPU's state.
    #[error("node {node}: {source}")]
    Engine {
        /// Number of the node.
        node: u32,
        /// Error of the engine.
        source: EngineError,
    },
    /// A count of the state differs from the node's.
    #[error(
        "node {node}: the saved state has {found} {what}, this node {own}; load it into a node of the same study"
    )]
    Count {
        /// Number of the node.
        node: u32,
        /// Name of what is counted, such as vCPUs.
        what: &'static str,
        /// Count in the state.
        found: u64,
        /// Count in the node.
        own: u64,
    },
    /// A device refused its state.
    #[error("node {node}: {source}")]
    Device {
        /// Number of the node.
        node: u32,
        /// Error of the device.
        source: RestoreError,
    },
    /// A vCPU's state is one that no processor can have.
    #[error(
        "node {node}: the saved state of vCPU {vcpu} is none that a processor can be in: {what}; the snapshot was not written by nodescope, or is damaged"
    )]
    Vcpu {
        /// Number of the node.
        node: u32,
        /// Index of the vCPU within the node.
        vcpu: usize,
        /// Description of the fault, such as `CR0 has an impossible value`.
        what: &'static str,
    },
    /// The node's state is one that no node can have.
    #[error(
        "node {node}: the saved state is none that a node can be in: {what}; the snapshot was not written by nodescope, or is damaged"
    )]
    Impossible {
        /// Number of the node.
        node: u32,
        /// Description of the fault, such as `a frame was sent in the future`.
        what: &'static str,
    },
}

impl NodeState {
    /// Sets another seed in the entropy device, which a clone of the node needs. Returns false if the node has no such device.
    pub fn reseed(&mut self, seed: [u8; 32]) -> bool {
        let mut found = false;
        for device in &mut self.chipset.virtio {
            if let DeviceState::Rng(rng) = &mut device.device {
                rng.reseed(seed);
                found = true;
            }
        }
        found
    }

    /// Returns a description of the state's first fault, by the checks that do not depend on a node; `None` for a valid state.
    fn fault(&self) -> Option<&'static str> {
        let clocks = self.vcpus.iter().map(|vcpu| vcpu.time.cycles);
        let latest = clocks.max().unwrap_or(0).max(self.now);
        let kept_up = |(vcpu, halted): (&VcpuState, &bool)| {
            *halted || vcpu.time.cycles.saturating_add(MOST_BEHIND) >= self.now
        };
        let unsent = |frame: &Frame| frame.time <= latest;
        let frames_sent = self.chipset.virtio.iter().all(|v| match &v.device {
            DeviceState::Net(net) => net.outgoing.iter().all(unsent),
            _ => true,
        });
        let known = |recent: &Option<((u64, u64), Context)>| {
            recent.is_none_or(|(_, context)| (context.0 as usize) < self.activities.len())
        };
        let event = |event: &NodeEvent| {
            usize::from(event.vcpu) < self.vcpus.len()
                && event.cycles <= latest
                && event.instructions < MOST
                && event.request.is_possible()
        };
        let checks = [
            (self.now < MOST, "its clock has run for too long"),
            (
                latest - self.now < MOST_AHEAD,
                "a vCPU is too far ahead of the node",
            ),
            (
                self.status != NodeStatus::Running
                    || self.vcpus.iter().zip(&self.halted).all(kept_up),
                "a vCPU is too far behind the node",
            ),
            (frames_sent, "a frame was sent in the future"),
            (
                matches!(self.transport, TRANSPORT_DIRECT | TRANSPORT_DOORBELL),
                "there is no such transport of hypercalls",
            ),
            (
                self.event_bytes < MOST_EVENT_BYTES && self.events.iter().all(event),
                "no guest can have made a hypercall that waits",
            ),
            (
                self.activities.len() <= MOST_ACTIVITIES && self.inside.len() <= MOST_ACTIVITIES,
                "it tells too many address spaces apart",
            ),
            (
                self.recent.iter().all(known),
                "a vCPU is in an address space that is not known",
            ),
            (self.notes.are_possible(), "its notes are too many"),
        ];
        let failed = checks.into_iter().find(|(holds, _)| !holds);
        failed.map(|(_, what)| what)
    }
}

impl Node {
    /// Returns the node's state between two of its runs. The node continues afterwards as if no state had been taken.
    pub fn save_state(&mut self) -> Result<NodeState, StateError> {
        self.refuse_in_window()?;
        if self.runs_in_parallel() {
            for vcpu in &mut self.vcpus {
                let synchronized = vcpu.synchronize(&mut *self.motherboard);
                synchronized.map_err(|source| StateError::Engine {
                    node: self.index,
                    source,
                })?;
            }
            // Finishing the delivery of an interrupt may have woken a vCPU or sent a message to another.
            self.carry_out_actions();
        }
        let motherboard = &*self.motherboard;
        let (events, event_bytes) = motherboard.events.waiting();
        Ok(NodeState {
            hz: self.clock().hz,
            now: self.now,
            status: self.status,
            vcpus: self.vcpus.iter().map(|v| v.save()).collect(),
            halted: self.halted.clone(),
            chipset: motherboard.chipset.save(),
            transport: motherboard.transport,
            events: events.to_vec(),
            event_bytes: event_bytes as u64,
            pause_requested: motherboard.pause_requested,
            subscriptions: motherboard.subscriptions.clone(),
            has_subscribed_event: motherboard.has_subscribed_event,
            activities: motherboard.activities.clone(),
            recent: motherboard.recent.clone(),
            inside: motherboard.inside.iter().map(|(k, v)| (*k, *v)).collect(),
            notes: motherboard.notes.clone(),
            files: motherboard.files.save(),
            code: self.ram().regions().iter().map(|r| r.code.save()).collect(),
            numbers: self
                .portable()
                .map(|v| v.code_numbers())
                .unwrap_or_default(),
        })
    }

    /// Loads a state into a node of the same description that has not run yet. The node's RAM must have the contents that belong to the
    /// state. After an error the node must not run.
    pub fn load_state(&mut self, state: NodeState) -> Result<(), StateError> {
        self.refuse_in_window()?;
        let node = self.index;
        let vcpus = self.vcpus.len();
        for (what, found, own) in [
            ("vCPUs", state.vcpus.len() as u64, vcpus as u64),
            (
                "sleeping vCPUs or others",
                state.halted.len() as u64,
                vcpus as u64,
            ),
            (
                "vCPUs with address spaces",
                state.recent.len() as u64,
                vcpus as u64,
            ),
            ("Hz", state.hz, self.clock().hz),
        ] {
            if found != own {
                return Err(StateError::Count {
                    node,
                    what,
                    found,
                    own,
                });
            }
        }
        let impossible = |what| StateError::Impossible { node, what };
        if let Some(what) = state.fault() {
            return Err(impossible(what));
        }
        for (vcpu, s) in state.vcpus.iter().enumerate() {
            if let Some(what) = vcpu_state::fault(s) {
                return Err(StateError::Vcpu { node, vcpu, what });
            }
        }
        let indexed = (0..).map(Context);
        let contexts: std::collections::HashMap<_, _> =
            state.activities.iter().copied().zip(indexed).collect();
        if contexts.len() != state.activities.len() {
            return Err(impossible("it knows an address space twice"));
        }
        let motherboard = &mut *self.motherboard;
        let devices = motherboard.chipset.restore(&state.chipset);
        devices.map_err(|source| StateError::Device { node, source })?;
        motherboard.files.restore(state.files).map_err(impossible)?;
        motherboard.transport = state.transport;
        motherboard.events = Events::restored(state.events, state.event_bytes as usize);
        motherboard.pause_requested = state.pause_requested;
        motherboard.subscriptions = state.subscriptions;
        motherboard.has_subscribed_event = state.has_subscribed_event;
        motherboard.contexts = contexts;
        motherboard.activities = state.activities;
        motherboard.recent = state.recent;
        motherboard.inside = state.inside.into_iter().collect();
        motherboard.notes = state.notes;
        let regions = self.ram().regions();
        let mut maps = regions.iter().zip(&state.code);
        if regions.len() != state.code.len() || !maps.all(|(r, code)| r.code.restore(code)) {
            return Err(impossible(
                "its code is not in its memory, or the node has run",
            ));
        }
        let restored = match self.portable_mut() {
            Some(vcpu) => vcpu.restore_code_numbers(state.numbers),
            None => true,
        };
        if !restored {
            return Err(impossible("its windows have counted too much code"));
        }
        self.now = state.now;
        self.status = state.status;
        self.halted = state.halted;
        for ((vcpu, state), halted) in self.vcpus.iter_mut().zip(&state.vcpus).zip(&self.halted) {
            vcpu.restore(state);
            if *halted {
                // A vCPU that slept on an engine with parallel vCPUs may have a clock behind the node's. It has slept until now.
                vcpu.advance_to(self.now);
            }
            // The host's processor may refuse a state that was saved on another host.
            let taken = vcpu.check_restored();
            taken.map_err(|source| StateError::Engine { node, source })?;
        }
        Ok(())
    }

    /// Returns the first vCPU of the portable engine, the only engine on which windows count code. Returns `None` if the node has no vCPUs
    /// on this engine.
    fn portable(&self) -> Option<&dyn Vcpu> {
        let vcpus = match self.runs_in_parallel() {
            true => &self.other,
            false => &self.vcpus,
        };
        vcpus.first().map(|vcpu| &**vcpu)
    }

    fn portable_mut(&mut self) -> Option<&mut Box<dyn Vcpu>> {
        let vcpus = match self.runs_in_parallel() {
            true => &mut self.other,
            false => &mut self.vcpus,
        };
        vcpus.first_mut()
    }

    fn refuse_in_window(&self) -> Result<(), StateError> {
        match self.attached() {
            true => Err(StateError::Window { node: self.index }),
            false => Ok(()),
        }
    }
}
