//! The state of a whole node, its memory apart, from which another node of the same description goes on alike.

use nodescope_devices::chipset::ChipsetState;
use nodescope_devices::state::RestoreError;
use nodescope_engine::CodeNumbers;
use nodescope_hypercall::Function;
use nodescope_plugin_api::Context;
use nodescope_x86::VcpuState;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::board::{Activity, MOST_ACTIVITIES};
use crate::files::FileBookState;
use crate::node::{Node, NodeStatus};
use crate::notes::Notes;

/// Clocks are below this, so that sums of them are no overflow. No study reaches it.
const MOST_CYCLES: u64 = 1 << 62;
/// A vCPU is ahead of its node by less: by the rest of a block, and by what an instruction waits for.
const MOST_AHEAD: u64 = 1 << 40;
/// Bits of MXCSR that processors have (SDM vol. 1 §10.2.3). Others raise an exception where they are loaded.
const MXCSR: u32 = 0xffff;

/// State of a node between two calls of [`Node::run_until`], while no window is open. What a host thread keeps to be faster is no part of it: decoded
/// code, translations of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    now: u64,
    status: NodeStatus,
    vcpus: Vec<VcpuState>,
    halted: Vec<bool>,
    chipset: ChipsetState,
    /// Contexts of counters, by their numbers.
    activities: Vec<Activity>,
    /// Address spaces within a function of MPI.
    inside: Vec<(u64, Function)>,
    heeds: Vec<Function>,
    heeded: bool,
    standstill: bool,
    read_bytes: u64,
    notes: Notes,
    files: FileBookState,
    numbers: CodeNumbers,
}

impl NodeState {
    /// The node's time, cycles.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// What the node was doing.
    pub fn status(&self) -> NodeStatus {
        self.status
    }
}

impl Node {
    /// Makes the state of one node the state of this one, which has not run: another node from here on, with its own random numbers and its own
    /// disks. The guest has to ask who it is.
    ///
    /// # Errors
    ///
    /// Another kind of node.
    pub fn renew_state(&self, state: &mut NodeState) -> Result<(), StateError> {
        match state.chipset.renew(&self.board.chipset.save()) {
            true => Ok(()),
            false => Err(StateError::Unfit(
                "it has other devices, or has written to a disk".into(),
            )),
        }
    }
}

/// Why a node's state cannot be saved or loaded.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum StateError {
    /// The models of an open window are no part of the state.
    #[error("a window is open; the node's state can be saved between windows only")]
    Window,
    /// Events or output that would be lost.
    #[error("the node has events or output that nobody has taken yet")]
    Untaken,
    /// vCPUs that run on threads of their own.
    #[error("the node runs on KVM; it must change to the portable engine before")]
    Engine,
    /// A state of another node, or of none.
    #[error("the saved state of the node does not fit: {0}; load it into a node of the same study")]
    Unfit(String),
    /// A device's state.
    #[error(transparent)]
    Device(#[from] RestoreError),
}

impl Node {
    /// The state from which [`Node::load_state`] goes on, in another node of the same description that has the same memory.
    ///
    /// # Errors
    ///
    /// A window is open, or something has not been taken from the node: console output, events, frames.
    pub fn save_state(&mut self) -> Result<NodeState, StateError> {
        if self.attached() {
            return Err(StateError::Window);
        }
        if self.runs_at_once() {
            return Err(StateError::Engine);
        }
        let read_bytes = self.board.events.read_bytes();
        let (false, Some(read_bytes)) = (self.has_frames(), read_bytes) else {
            return Err(StateError::Untaken);
        };
        let board = &*self.board;
        let mut inside: Vec<_> = board.inside.iter().map(|(&cr3, &f)| (cr3, f)).collect();
        inside.sort_unstable();
        Ok(NodeState {
            now: self.now,
            status: self.status,
            vcpus: self.vcpus.iter().map(|vcpu| vcpu.save()).collect(),
            halted: self.halted.clone(),
            chipset: board.chipset.save(),
            activities: board.activities.clone(),
            inside,
            heeds: board.heeds.clone(),
            heeded: board.heeded,
            standstill: board.standstill,
            read_bytes,
            notes: board.notes.clone(),
            files: board.files.state(),
            numbers: self.vcpus[0].code_numbers(),
        })
    }

    /// Goes on where another node has stopped. This one has its memory, and has not run.
    ///
    /// # Errors
    ///
    /// A state that does not fit the node; the node must not be used further then.
    pub fn load_state(&mut self, state: NodeState) -> Result<(), StateError> {
        if self.attached() {
            return Err(StateError::Window);
        }
        if self.runs_at_once() {
            return Err(StateError::Engine);
        }
        self.check(&state).map_err(StateError::Unfit)?;
        self.board.chipset.restore(&state.chipset)?;
        for (vcpu, state) in self.vcpus.iter_mut().zip(&state.vcpus) {
            vcpu.restore(state);
        }
        self.now = state.now;
        self.status = state.status;
        self.halted = state.halted;
        let board = &mut *self.board;
        let contexts = state.activities.iter().zip(0..);
        board.contexts = contexts.map(|(&of, n)| (of, Context(n))).collect();
        board.recent.fill(None);
        board.activities = state.activities;
        board.inside = state.inside.into_iter().collect();
        board.heeds = state.heeds;
        board.heeded = state.heeded;
        board.standstill = state.standstill;
        board.events.load(state.read_bytes);
        board.notes = state.notes;
        if !board.files.load(state.files) {
            return Err(StateError::Unfit(
                "its files have impossible lengths".into(),
            ));
        }
        match self.vcpus[0].restore_code_numbers(state.numbers) {
            true => Ok(()),
            false => Err(StateError::Unfit(
                "its windows have counted too much code".into(),
            )),
        }
    }

    /// Checks what the node relies on: the state may come from any file.
    fn check(&self, state: &NodeState) -> Result<(), String> {
        let (own, vcpus) = (self.vcpus.len(), state.vcpus.len());
        if vcpus != own || state.halted.len() != own {
            return Err(format!("it is of {vcpus} vCPUs, and the node has {own}"));
        }
        if state.activities.len() > MOST_ACTIVITIES || state.inside.len() > MOST_ACTIVITIES {
            return Err("it has more contexts than a node can have".into());
        }
        if state.now >= MOST_CYCLES {
            return Err(format!("its clock shows {} cycles", state.now));
        }
        for (number, vcpu) in state.vcpus.iter().enumerate() {
            let time = &vcpu.time;
            if time.cycles > state.now + MOST_AHEAD
                || time.instructions >= MOST_CYCLES
                || time.cycle_fraction >= 1 << 16
            {
                return Err(format!(
                    "the clock of vCPU {number} shows {} cycles after {} instructions, the node's {}",
                    time.cycles, time.instructions, state.now
                ));
            }
            let mxcsr = vcpu.fx.mxcsr();
            if mxcsr & !MXCSR != 0 {
                return Err(format!("MXCSR of vCPU {number} is {mxcsr:#x}"));
            }
        }
        Ok(())
    }
}
