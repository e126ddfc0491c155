//! Place of a vCPU in its node.

use serde::{Deserialize, Serialize};

/// Place of one vCPU. The slice of all places, indexed by vCPU, is what a model needs to know about the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VcpuPlace {
    /// Core, numbered through the whole node; vCPUs of one core are hardware threads that share its private caches.
    pub core: u16,
    /// Socket, counted from 0.
    pub socket: u16,
}

impl VcpuPlace {
    /// Places of `sockets` x `cores` x `threads` vCPUs, threads of a core adjacent, cores of a socket adjacent.
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
