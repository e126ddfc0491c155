//! Main memory with one latency for all addresses, for a node without NUMA.

use nodescope_plugin_api::{MemoryTiming, MemoryTimingModel, MissRef};

/// Memory that is local to every socket. Write-backs are posted and cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatMemory {
    /// Cycles of a line that is read from this memory.
    pub latency: u32,
}

impl Default for FlatMemory {
    /// Returns a memory with the latency of the reference clusters' local DDR3 memory, 100 cycles.
    fn default() -> FlatMemory {
        FlatMemory { latency: 100 }
    }
}

impl MemoryTimingModel for FlatMemory {
    fn request(&mut self, miss: &MissRef) -> MemoryTiming {
        MemoryTiming {
            toll: 0,
            latency: if miss.write_back { 0 } else { self.latency },
            local: true,
        }
    }

    fn home(&self, _physical: u64) -> u16 {
        0
    }
}
