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
        /// The MPI function inside which the rank is; `None` while the rank computes.
        mpi: Option<Function>,
    },
    /// A process that reported itself and is no rank.
    Process {
        /// Process id in the guest.
        pid: u32,
        /// The program's short name.
        program: String,
    },
    /// All other owners: kernel threads, daemons, and processes that have not reported themselves (yet).
    Other,
}

/// Maximum number of address spaces that have an owner. Further address spaces belong to [`Owner::Other`].
const MOST: usize = 1 << 16;

/// Owner of each address space of one node. If an address space is used again, its owner is the process that reported itself last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owners {
    spaces: BTreeMap<u64, Owner>,
}

impl Owners {
    /// Records a process that has reported itself, as the owner of its address space `cr3`.
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

    /// Returns the owner of a context, which is the address space `cr3` inside the MPI function `mpi`.
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

    /// Returns the address spaces (CR3) of ranks, each with its rank.
    pub fn ranks(&self) -> impl Iterator<Item = (u64, u32)> {
        self.spaces.iter().filter_map(|(&cr3, owner)| match owner {
            Owner::Rank { rank, .. } => Some((cr3, *rank)),
            _ => None,
        })
    }
}
