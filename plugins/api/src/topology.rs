//! Core and socket of a vCPU.

use serde::{Deserialize, Serialize};

/// Core and socket of one vCPU. A slice of these, indexed by vCPU, tells a model which vCPUs share caches and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VcpuPlace {
    /// Number of the core within the node, from 0. vCPUs of one core are hardware threads that share its private caches.
    pub core: u16,
    /// Number of the socket, from 0.
    pub socket: u16,
}

impl VcpuPlace {
    /// Returns the places of `sockets` x `cores` x `threads` vCPUs: threads of a core are adjacent, and cores of a socket are adjacent.
    pub fn grid(sockets: u16, cores: u16, threads: u16) -> Vec<VcpuPlace> {
        let mut places = Vec::new();
        for socket in 0..sockets {
            for core in 0..cores {
                for _ in 0..threads {
                    places.push(VcpuPlace {
                        core: socket * cores + core,
                        socket,
                    });
                }
            }
        }
        places
    }
}
