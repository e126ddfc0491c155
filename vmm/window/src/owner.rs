//! Owners of address spaces.

use std::collections::BTreeMap;

use nodescope_hypercall::{Function, Hello, Peer, ProcessKind};
use serde::{Deserialize, Serialize};

/// Owner of a context's instructions and cycles. The kernel runs in the address space of the process that it serves or interrupted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// A rank of an MPI program.
    Rank {
        /// Rank of the process in `MPI_COMM_WORLD`.
        rank: u32,
        /// The program's short name.
        program: String,
        /// The MPI function that the rank is inside, or none while the rank computes.
        mpi: Option<Function>,
    },
    /// A process that introduced itself and is no rank.
    Process {
        /// Process id in the guest.
        pid: u32,
        /// The program's short name.
        program: String,
    },
    /// Everything else: kernel threads, daemons, processes that have not introduced themselves (yet).
    Other,
}

/// Largest number of address spaces that have an owner. Further address spaces belong to "other".
const MOST: usize = 1 << 16;

/// Owner of each address space of one node. Where an address space is used again, the last process counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owners {
    spaces: BTreeMap<u64, Owner>,
}

impl Owners {
    /// Records a process in the address space `cr3` that has introduced itself.
    pub fn hello(&mut self, cr3: u64, hello: &Hello) {
        let program = hello.program.clone();
        let owner = match (hello.kind, hello.rank) {
            (ProcessKind::MpiRank, Peer::Rank(rank)) => Owner::Rank {
                rank,
                program,
                mpi: None,
            },
            _ => Owner::Process {
                pid: hello.pid,
                program,
            },
        };
        if self.spaces.len() < MOST || self.spaces.contains_key(&cr3) {
            self.spaces.insert(cr3, owner);
        }
    }

    /// Returns the owner of a context: the address space `cr3` inside the function `mpi`.
    pub fn owner(&self, cr3: u64, mpi: Option<Function>) -> Owner {
        match self.spaces.get(&cr3) {
            Some(Owner::Rank { rank, program, .. }) => Owner::Rank {
                rank: *rank,
                program: program.clone(),
                mpi,
            },
            Some(owner) => owner.clone(),
            None => Owner::Other,
        }
    }

    /// Returns the address spaces of ranks.
    pub fn ranks(&self) -> impl Iterator<Item = (u64, u32)> {
        self.spaces.iter().filter_map(|(&cr3, owner)| match owner {
            Owner::Rank { rank, .. } => Some((cr3, *rank)),
            _ => None,
        })
    }
}
