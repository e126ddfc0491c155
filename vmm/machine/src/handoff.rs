//! Hand-off of a node between engines: each vCPU continues at its present instruction on the other engine.

use std::sync::Arc;

use nodescope_engine::{Kicker, Vcpu};
use nodescope_hypercall::TRANSPORT_DOORBELL;

use crate::node::{Node, NodeError, NodeStatus};
use crate::parallel::{Failure, Parallel, Round};

impl Node {
    /// Returns whether the node's vCPUs run in parallel, each on a host thread of its own.
    pub fn runs_in_parallel(&self) -> bool {
        self.parallel.is_some()
    }

    /// Announces the doorbell to guest programs, whose hypercalls then work on every engine (`vmm/hypercall`, "Transports").
    pub fn use_doorbell(&mut self) {
        self.motherboard.transport = TRANSPORT_DOORBELL;
    }

    /// Sets the vCPUs of the other engine, to which [`Node::change_engine`] moves the node. They must use the node's memory and be in the
    /// order of its present vCPUs. Panics if their number differs.
    pub fn set_other_engine(&mut self, vcpus: Vec<Box<dyn Vcpu>>) {
        assert_eq!(vcpus.len(), self.vcpus.len(), "one for each vCPU");
        self.other = vcpus;
    }

    /// Moves the vCPUs to the node's other engine, or back. Does nothing if the node has only one engine. Callers change engines outside
    /// windows only.
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
            from.synchronize(&mut *self.motherboard).map_err(engine)?;
            to.restore(&from.save());
            if cfg!(debug_assertions) {
                to.check_restored().map_err(engine)?;
            }
            std::mem::swap(from, to);
        }
        // Finishing the delivery of an interrupt may have woken a vCPU or sent a message to another.
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

    /// Runs the node as [`Node::run_until`] does, for vCPUs that run in parallel.
    pub(crate) fn run_parallel(&mut self, target: u64) -> Result<NodeStatus, NodeError> {
        if self.now >= target || self.status != NodeStatus::Running {
            return Ok(self.status);
        }
        self.motherboard.chipset.advance(self.now);
        let device = self.motherboard.chipset.next_event();
        let activity = self.next_activity_after(device);
        if activity >= target {
            // All vCPUs sleep until the target time.
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
            motherboard: &mut self.motherboard.0,
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
