//! SRAT, SLIT and HMAT: the NUMA node of processors and memory, distances, latencies and bandwidths.

use nodescope_memory::NumaRange;

use super::header;
use crate::topology::{MemoryPerformance, NodeTopology};

const ENABLED: u32 = 1;

/// Returns the system resource affinity table (ACPI 6.5 §5.2.16), revision 3, whose proximity domains have 32 bits.
pub(super) fn srat(topology: &NodeTopology, numa: &[NumaRange]) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(1_u32.to_le_bytes());
    body.extend([0; 8]);
    for place in topology.places() {
        let domain = place.socket.to_le_bytes();
        // Processor local APIC affinity structure: the domain's low byte is separate from the other three.
        body.extend([0, 16, domain[0], place.apic_id as u8]);
        body.extend(ENABLED.to_le_bytes());
        body.extend([0, domain[1], domain[2], domain[3]]);
        body.extend([0; 4]);
    }
    for range in numa {
        body.extend([1, 40]);
        body.extend(range.node.to_le_bytes());
        body.extend([0; 2]);
        body.extend(range.start.to_le_bytes());
        body.extend(range.len.to_le_bytes());
        body.extend([0; 4]);
        body.extend(ENABLED.to_le_bytes());
        body.extend([0; 8]);
    }
    finish(*b"SRAT", 3, &body)
}

/// Returns the system locality distance information table (ACPI 6.5 §5.2.17), with the topology's distances.
pub(super) fn slit(topology: &NodeTopology) -> Vec<u8> {
    let mut body = u64::from(topology.sockets).to_le_bytes().to_vec();
    for row in &topology.distances {
        body.extend(row);
    }
    finish(*b"SLIT", 1, &body)
}

/// Returns the heterogeneous memory attribute table (ACPI 6.5 §5.2.28), revision 2: latencies in picoseconds, bandwidths in MB/s.
pub(super) fn hmat(performance: &MemoryPerformance) -> Vec<u8> {
    let mut body = vec![0; 4];
    let domains = performance.latency_ns.len() as u32;
    for domain in 0..domains {
        // Memory proximity domain attributes: the socket's own processors are the initiator nearest to its memory.
        body.extend([0; 4]);
        body.extend(40_u32.to_le_bytes());
        body.extend(1_u32.to_le_bytes());
        body.extend(domain.to_le_bytes());
        body.extend(domain.to_le_bytes());
        body.extend([0; 20]);
    }
    const ACCESS_LATENCY: u8 = 0;
    const ACCESS_BANDWIDTH: u8 = 3;
    locality(&mut body, ACCESS_LATENCY, &performance.latency_ns, 1000);
    locality(&mut body, ACCESS_BANDWIDTH, &performance.bandwidth_mb_s, 1);
    finish(*b"HMAT", 2, &body)
}

/// Appends a system locality latency and bandwidth information structure: a matrix of 16-bit multiples of a base unit. `scale` is the
/// number of the table's units (ps, MB/s) in one unit of `matrix`.
fn locality(body: &mut Vec<u8>, data_type: u8, matrix: &[Vec<u32>], scale: u64) {
    let n = matrix.len();
    let largest = matrix.iter().flatten().copied().max().unwrap_or(0);
    // The value 0xffff means unreachable, so the base unit is the smallest power of ten that keeps all entries below.
    let unit = (0..)
        .map(|e| 10_u32.saturating_pow(e))
        .find(|u| largest.div_ceil(*u) < 0xffff)
        .unwrap_or(1);
    body.extend([1, 0, 0, 0]);
    body.extend((32 + 8 * n as u32 + 2 * (n * n) as u32).to_le_bytes());
    body.extend([0, data_type, 0, 0]);
    body.extend((n as u32).to_le_bytes());
    body.extend((n as u32).to_le_bytes());
    body.extend([0; 4]);
    body.extend((u64::from(unit) * scale).to_le_bytes());
    for _ in 0..2 {
        for domain in 0..n as u32 {
            body.extend(domain.to_le_bytes());
        }
    }
    for value in matrix.iter().flatten() {
        body.extend((value.div_ceil(unit) as u16).to_le_bytes());
    }
}

fn finish(signature: [u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    let mut table = header(signature, revision);
    table.append_slice(body);
    table.as_slice().to_vec()
}
