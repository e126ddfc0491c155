//! Interface of observers and of models that add cycles to references.

use serde::{Deserialize, Serialize};

use crate::{Batch, MemRef, Source};

/// A model that sees events and counts. Nothing that it computes changes time.
pub trait Observer: Send {
    /// Sees a batch of events, and adds to the counts of their vCPU, context and privilege. `counts` has one element for each event that the
    /// model declares, in that order. Batches of one node come in the order in which the node executes.
    fn observe(&mut self, batch: &Batch<'_>, counts: &mut [u64]);

    /// Returns a file for the results when the window closes, at most [`MOST_FILE_BYTES`]; empty for none.
    fn file(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

/// Most bytes of the file of one observer of one node.
pub const MOST_FILE_BYTES: usize = 64 << 20;

/// The file of an observer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Name of the observer.
    pub model: String,
    /// Contents of the file.
    pub bytes: Vec<u8>,
}

/// Answer of the caches and memory to a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Where the line came from; `None` for the first level.
    pub source: Option<Source>,
    /// Cycles of the answer beyond a hit of the first level.
    pub stall: u32,
}

/// Cycles that a model adds to a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra {
    /// Number of the event, among those that the model declares, to which the cycles are charged.
    pub event: u16,
    /// Cycles, at most [`Extra::MOST_CYCLES`].
    pub cycles: u32,
}

impl Extra {
    /// Most cycles that a model adds to one reference, or that memory takes for one request.
    pub const MOST_CYCLES: u32 = 1_000_000;
}

/// A model that adds cycles to references, in a term of its own: a TLB, for instance.
pub trait ReferenceTiming: Send {
    /// Sees a reference and its answer: a miss of the first level, or any reference if the model declares that it needs every one. Returns
    /// the cycles to add; `None` for a reference that is no event of the model.
    fn reference(&mut self, reference: &MemRef, answered: Answered) -> Option<Extra>;
}

/// Request to main memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// Guest-physical address of the line.
    pub line: u64,
    /// Clock of the requesting vCPU in cycles.
    pub now: u64,
    /// Number of the requesting vCPU within its node.
    pub vcpu: u16,
    /// Socket of the requesting vCPU.
    pub socket: u16,
    /// Socket to whose memory the line belongs.
    pub home: u16,
    /// True for the write-back of a modified line, false for a fill.
    pub write_back: bool,
}

/// Answer of main memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Cycles until the line is there, at most [`Extra::MOST_CYCLES`].
    pub cycles: u32,
    /// Number of the event, among those that the model declares, that is counted; `None` for none.
    pub event: Option<u16>,
}

/// A model of main memory behind the caches.
pub trait MemoryLatency: Send {
    /// Returns how long one request takes. The cycles belong to the terms `memory_local` and `memory_remote`, by the line's home.
    fn request(&mut self, request: &MemoryRequest) -> Latency;
}
