//! The identity of a node, which its guest may read.

use serde::{Deserialize, Serialize};

use crate::call::{Fault, GuestVirtual};

/// Bytes of the fixed part of an identity.
pub const HEADER: usize = 104;

/// Identity of a node, given at run time so that one image serves all nodes.
///
/// In guest memory, little-endian: u32 version, node, nodes, vcpus; u64 seed; 4 bytes IPv4; u8 prefix; u8 0; 6 bytes MAC; u32 bytes
/// of text; 64 bytes name, NUL-terminated; the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Number of the node, from 0.
    pub node: u32,
    /// Nodes in the cluster.
    pub nodes: u32,
    /// Virtual CPUs of this node.
    pub vcpus: u32,
    /// Seed for whatever the guest makes up by itself.
    pub seed: u64,
    /// IPv4 address of the node.
    pub ipv4: [u8; 4],
    /// Bits of the IPv4 address's network part.
    pub prefix: u8,
    /// MAC address of the node.
    pub mac: [u8; 6],
    /// Host name; bytes past 63 are cut.
    pub name: String,
    /// Lines `KEY=VALUE` for the guest's start-up scripts.
    pub text: String,
}

/// Buffer of the guest that takes the identity of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityBuffer {
    /// Guest-virtual address of the buffer.
    pub address: u64,
    /// Bytes of room in the buffer.
    pub capacity: u64,
}

impl NodeIdentity {
    /// Returns the bytes that the guest sees.
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

    /// Writes as much as the buffer holds and returns the bytes of the whole, which is the call's result.
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
