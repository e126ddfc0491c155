//! Whose an address space is.

use std::collections::BTreeMap;

use nodescope_hypercall::{Function, Hello, Peer, ProcessKind, Request, ThreadId};
use serde::{Deserialize, Serialize};

/// Whom a context's instructions and cycles belong to. The kernel runs in the address space of the process that it serves or interrupted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// A rank of an MPI program.
    Rank {
        /// Its rank in `MPI_COMM_WORLD`.
        rank: u32,
        /// The program's short name.
        program: String,
        /// The MPI function that it is inside, or none while it computes.
        mpi: Option<Function>,
    },
    /// Another process that introduced itself.
    Process {
        /// Its process id in the guest.
        pid: u32,
        /// The program's short name.
        program: String,
    },
    /// Everything else: kernel threads, daemons, processes that have not introduced themselves (yet).
    Other,
}

/// Which MPI call each address space of one node is inside, followed by the hypercalls that its processes make.
///
/// Threads that share an address space cannot be told apart by it: the space counts as inside MPI while any of its threads is, in the function
/// that was entered last.
#[derive(Clone, Debug, Default)]
pub struct MpiStates {
    inside: BTreeMap<u64, Vec<(ThreadId, Function)>>,
}

/// Threads followed in one address space, and address spaces on one node. A guest that makes them up is cut off.
const MOST: usize = 4096;

impl MpiStates {
    /// Takes a request that was made in the address space `cr3`. True if what [`MpiStates::function`] says of it has changed: the node
    /// then has to ask for the context anew.
    pub fn request(&mut self, cr3: u64, request: &Request) -> bool {
        let before = self.function(cr3);
        match request {
            Request::MpiEnter(enter)
                if self.inside.len() < MOST || self.inside.contains_key(&cr3) =>
            {
                let threads = self.inside.entry(cr3).or_default();
                threads.retain(|(thread, _)| *thread != enter.thread);
                if threads.len() < MOST {
                    threads.push((enter.thread, enter.function));
                }
            }
            Request::MpiEvents(records) => {
                for record in records {
                    self.leave(cr3, record.thread);
                }
            }
            Request::MpiPollFailed(poll) => self.leave(cr3, poll.thread),
            // A new process: whatever its address space was before is over.
            Request::Hello(_) => {
                self.inside.remove(&cr3);
            }
            _ => {}
        }
        self.function(cr3) != before
    }

    fn leave(&mut self, cr3: u64, thread: ThreadId) {
        if let Some(threads) = self.inside.get_mut(&cr3) {
            threads.retain(|(inside, _)| *inside != thread);
            if threads.is_empty() {
                self.inside.remove(&cr3);
            }
        }
    }

    /// The MPI function that this address space is inside.
    pub fn function(&self, cr3: u64) -> Option<Function> {
        self.inside
            .get(&cr3)
            .and_then(|threads| threads.last())
            .map(|(_, function)| *function)
    }
}

/// Which process each address space of one node belongs to. Where an address space is used again, the last process counts.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    spaces: BTreeMap<u64, Owner>,
}

impl Owners {
    /// A process in the address space `cr3` has introduced itself.
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
        self.spaces.insert(cr3, owner);
    }

    /// The owner of what happened in `cr3` while it was inside `mpi`.
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

    /// Address spaces of ranks.
    pub fn ranks(&self) -> impl Iterator<Item = (u64, u32)> {
        self.spaces.iter().filter_map(|(&cr3, owner)| match owner {
            Owner::Rank { rank, .. } => Some((cr3, *rank)),
            _ => None,
        })
    }
}
