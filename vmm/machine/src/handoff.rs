//! A node changes engines: its vCPUs go on, at the instruction where each stands, on another engine.

use std::sync::Arc;

use nodescope_engine::{Kicker, Vcpu};
use nodescope_hypercall::TRANSPORT_DOORBELL;

use crate::node::{Node, NodeError, NodeStatus};
use crate::parallel::{Failure, Parallel, Round};

impl Node {
    /// Whether the vCPUs of the node run at once, each on a host thread.
    pub fn runs_at_once(&self) -> bool {
        self.parallel.is_some()
    }

    /// Announces the doorbell to programs, whose hypercalls then reach every engine (`vmm/hypercall`, "Transports").
    pub fn use_doorbell(&mut self) {
        self.board.transport = TRANSPORT_DOORBELL;
    }

    /// vCPUs of the same memory on another engine, to which [`Node::change_engine`] moves. They are in the order of the node's own.
    pub fn set_other_engine(&mut self, vcpus: Vec<Box<dyn Vcpu>>) {
        assert_eq!(vcpus.len(), self.vcpus.len(), "one for each vCPU");
        self.other = vcpus;
    }

    /// Move the vCPUs to the node's other engine, or back; between windows. Nothing happens where the node has one engine alone.
    pub fn change_engine(&mut self) -> Result<(), NodeError> {
        if self.other.is_empty() {
            return Ok(());
        }
        let engine = |source| NodeError::Engine {
            node: self.index,
            source,
        };
        for v in 0..self.vcpus.len() {
            let (from, to) = (&mut self.vcpus[v], &mut self.other[v]);
            from.synchronize(&mut *self.board).map_err(engine)?;
            to.restore(&from.save());
            if cfg!(debug_assertions) {
                to.check_restored().map_err(engine)?;
            }
            std::mem::swap(from, to);
        }
        // An interrupt that was being delivered may have woken a vCPU, and a message may have been sent.
        self.carry_out_actions();
        let kickers: Option<Vec<Arc<dyn Kicker>>> = self.vcpus.iter().map(|v| v.kicker()).collect();
        self.parallel = match kickers {
            Some(kickers) => {
                let parallel = Parallel::new(kickers).map_err(|source| NodeError::Thread {
                    node: self.index,
                    source,
                })?;
                Some(parallel)
            }
            None => None,
        };
        Ok(())
    }

    /// [`Node::run_until`] where vCPUs run at once.
    pub(crate) fn run_at_once(&mut self, target: u64) -> Result<NodeStatus, NodeError> {
        if self.now >= target || self.status != NodeStatus::Running {
            return Ok(self.status);
        }
        self.board.chipset.advance(self.now);
        let device = self.board.chipset.next_event();
        let activity = self.next_activity_after(device);
        if activity >= target {
            // Everybody sleeps through.
            for vcpu in &mut self.vcpus {
                vcpu.advance_to(target);
            }
            self.now = target;
            return Ok(self.status);
        }
        let Some(parallel) = &mut self.parallel else {
            return Ok(self.status);
        };
        let request = parallel.round(Round {
            board: &mut self.board.0,
            vcpus: &mut self.vcpus,
            halted: &mut self.halted,
            stop: &self.stop,
            end: target,
        });
        match request {
            Ok(request) => self.status = request.unwrap_or(self.status),
            Err(Failure::Engine(source)) => {
                return Err(NodeError::Engine {
                    node: self.index,
                    source,
                });
            }
            Err(Failure::Shutdown {
                vcpu,
                ip,
                instructions,
            }) => {
                return Err(NodeError::TripleFault {
                    node: self.index,
                    vcpu,
                    ip,
                    instructions,
                });
            }
            Err(Failure::Panic(panic)) => std::panic::resume_unwind(panic),
        }
        self.now = target;
        Ok(self.status)
    }
}
