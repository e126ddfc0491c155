//! The identity of a node, which programs in the node's guest may read.

use serde::{Deserialize, Serialize};

use crate::call::{Fault, GuestVirtual};

/// Bytes of an encoded identity without its text.
pub const HEADER: usize = 104;

/// Identity of a node, which the guest reads at run time, so that one image serves all nodes.
///
/// In guest memory, little-endian: u32 version, node, nodes, vcpus; u64 seed; 4 bytes IPv4; u8 prefix; u8 0; 6 bytes MAC; u32 bytes
/// of text; 64 bytes name, NUL-terminated; the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Number of the node, from 0.
    pub node: u32,
    /// Number of nodes in the cluster.
    pub nodes: u32,
    /// Number of virtual CPUs of this node.
    pub vcpus: u32,
    /// Seed for random values that the guest generates.
    pub seed: u64,
    /// IPv4 address of the node.
    pub ipv4: [u8; 4],
    /// Length of the IPv4 address's network prefix, bits.
    pub prefix: u8,
    /// MAC address of the node.
    pub mac: [u8; 6],
    /// Host name; the encoded identity has its first 63 bytes.
    pub name: String,
    /// Lines of the form `KEY=VALUE` for the guest's start-up scripts.
    pub text: String,
}

/// Guest buffer that receives the identity of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityBuffer {
    /// Guest-virtual address of the buffer.
    pub address: u64,
    /// Size of the buffer, bytes.
    pub capacity: u64,
}

impl NodeIdentity {
    /// Returns the identity's bytes as the guest reads them, in the format that [`NodeIdentity`] describes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.text.len());
        for value in [crate::ABI_VERSION, self.node, self.nodes, self.vcpus] {
            out.extend(value.to_le_bytes());
        }
        out.extend(self.seed.to_le_bytes());
        out.extend(self.ipv4);
        out.extend([self.prefix, 0]);
        out.extend(self.mac);
        out.extend((self.text.len() as u32).to_le_bytes());
        let mut name = [0; 64];
        let length = self.name.len().min(63);
        name[..length].copy_from_slice(&self.name.as_bytes()[..length]);
        out.extend(name);
        out.extend(self.text.as_bytes());
        out
    }

    /// Writes as many bytes of the identity as fit into the buffer. Returns the number of bytes of the whole identity,
    /// which is the hypercall's result.
    pub fn write_to<G: GuestVirtual + ?Sized>(
        &self,
        buffer: IdentityBuffer,
        memory: &mut G,
    ) -> Result<u32, Fault> {
        let bytes = self.encode();
        let length = usize::try_from(buffer.capacity)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        memory.write(buffer.address, &bytes[..length])?;
        Ok(bytes.len() as u32)
    }
}
