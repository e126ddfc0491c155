//! Shape of a file server: the node that serves the file system of a cluster from its memory, and runs no ranks.

use crate::topology::{MemoryPerformance, NodeTopology};

/// Largest number of cores of a file server.
pub const MOST_CORES: u32 = 4;

/// Memory of a file server beside the files, bytes: kernel, user space, and buffers of the NFS server.
pub const RESERVE: u64 = 192 << 20;

/// Returns the least memory of a node that serves `bytes` of files, in whole large pages. A 16th of the files is added: the file system
/// needs a 32nd for its own tables, and the kernel a 64th of all memory to manage its pages.
pub fn memory(bytes: u64) -> u64 {
    let needed = bytes.saturating_add(bytes / 16).saturating_add(RESERVE);
    needed.checked_next_multiple_of(2 << 20).unwrap_or(u64::MAX)
}

/// Returns the topology of a file server with `bytes` of files beside nodes of the topology `node`: one socket of such a node, with at most
/// [`MOST_CORES`] cores of one thread each, and with the memory for the files.
pub fn topology(node: &NodeTopology, bytes: u64) -> NodeTopology {
    let first = |rows: &[Vec<u32>]| -> Vec<Vec<u32>> {
        let value = rows.first().and_then(|row| row.first());
        value.map(|&value| vec![vec![value]]).unwrap_or_default()
    };
    let performance = node.memory_performance.as_ref();
    NodeTopology {
        sockets: 1,
        cores_per_socket: node.cores_per_socket.min(MOST_CORES),
        threads_per_core: 1,
        socket_memory: vec![memory(bytes)],
        distances: vec![vec![10]],
        memory_performance: performance.map(|of| MemoryPerformance {
            latency_ns: first(&of.latency_ns),
            bandwidth_mb_s: first(&of.bandwidth_mb_s),
        }),
        ..node.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_server_is_a_valid_node_with_memory_for_the_files() {
        let mut node = NodeTopology::uniform(2, 8, 2, 512 << 20);
        node.memory_performance = Some(MemoryPerformance {
            latency_ns: vec![vec![30, 60], vec![60, 30]],
            bandwidth_mb_s: vec![vec![51_200, 16_000], vec![16_000, 51_200]],
        });
        let server = topology(&node, 2 << 30);
        server.validate().unwrap();
        assert_eq!((server.sockets, server.vcpus()), (1, 4));
        assert_eq!(server.tsc_hz, node.tsc_hz);
        assert!(server.socket_memory[0] > (2 << 30) + RESERVE);
        assert_eq!(
            topology(&NodeTopology::uniform(1, 1, 1, 64 << 20), 1).vcpus(),
            1
        );
        assert_eq!(memory(u64::MAX), u64::MAX);
    }
}
