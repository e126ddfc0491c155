//! A cluster whose nodes run in several processes, which may be on several hosts.
//!
//! Each process executes the whole run. It has the network, the trace and the windows of all nodes, and makes the same decisions as all
//! other processes. Only the nodes are distributed. Processes therefore exchange two things: the frames of a quantum at its end, and the
//! reports of nodes at the end of a batch. Each process puts both together in the order of nodes, as if all nodes were its own. Results are
//! the same bytes on any number of processes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodescope_fabric::SentFrame;
use nodescope_machine::motherboard::NodeEvent;
use nodescope_machine::node::NodeStatus;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::batch::BarrierSummary;

/// The processes of a run.
pub trait Peers: Send + Sync {
    /// Returns the number of this process, from 0. Process 0, the master, writes the results.
    fn rank(&self) -> usize;

    /// Returns the number of processes.
    fn count(&self) -> usize;

    /// Sends this message to all processes, waits for the messages of all, and returns them in the order of the processes' numbers.
    ///
    /// # Errors
    ///
    /// A process that has died, or has left.
    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, PeerError>;

    /// Reports to all processes why this process cannot continue.
    fn leave(&self, why: &str);
}

/// Reason for which processes cannot continue together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum PeerError {
    #[error("{peer} died")]
    Died { peer: String },
    #[error("{peer} cannot go on: {why}")]
    Left { peer: String, why: String },
    #[error("{peer} sent a message that cannot be read: {why}")]
    Message { peer: String, why: String },
    #[error("{} of {} processes would have no node; start at most {most}", .count - .most, .count)]
    TooMany { count: usize, most: usize },
}

/// Returns the numbers of a process's nodes: one of `count` contiguous blocks of about the same length.
pub fn block(nodes: usize, rank: usize, count: usize) -> Range<usize> {
    nodes * rank / count..nodes * (rank + 1) / count
}

/// An error of a node that runs in another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeFailure {
    pub text: String,
    /// True if the host is at fault, and not the guest.
    pub of_host: bool,
}

/// State of a node at the end of a batch, as far as a run reads it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeReport {
    pub result: Result<NodeStatus, NodeFailure>,
    pub next_activity_ps: u64,
    pub instructions: u64,
    pub connected: bool,
    pub wants_interval: bool,
    /// Virtual time that the node has reached, picoseconds.
    pub reached_ps: u64,
    pub file_bytes: u64,
    pub console: Vec<u8>,
    pub events: Vec<NodeEvent>,
}

/// Report of a process at the end of a batch.
#[derive(Serialize, Deserialize)]
struct BatchReport<N> {
    nodes: N,
    interrupted: bool,
}

/// Report of a process at the end of a quantum.
#[derive(Serialize, Deserialize)]
struct QuantumReport {
    number: u64,
    frames: Vec<SentFrame>,
    quiescent: bool,
    next_activity_ps: u64,
    connected: bool,
    interrupted: bool,
}

/// The share of one process in a run.
pub struct Distribution {
    peers: Arc<dyn Peers>,
    nodes: usize,
    /// State of all nodes at the end of the last batch.
    reports: Mutex<Vec<NodeReport>>,
    /// Set once the user has interrupted this process, or another process has reported an interrupt.
    interrupted: Arc<AtomicBool>,
    /// True once all processes know that the user wants the run to end.
    all_interrupted: AtomicBool,
    /// Reason why this process continues without the others; `None` while no process is lost.
    lost: Mutex<Option<PeerError>>,
}

impl Distribution {
    /// Returns the share of this process in a run of `nodes` nodes.
    ///
    /// # Errors
    ///
    /// More processes than nodes.
    pub fn new(
        peers: Arc<dyn Peers>,
        nodes: usize,
        interrupted: Arc<AtomicBool>,
    ) -> Result<Self, PeerError> {
        let count = peers.count();
        if count > nodes {
            return Err(PeerError::TooMany { count, most: nodes });
        }
        Ok(Self {
            peers,
            nodes,
            reports: Mutex::default(),
            interrupted,
            all_interrupted: AtomicBool::new(false),
            lost: Mutex::default(),
        })
    }

    /// Returns the number of all nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Returns the numbers of the nodes of this process.
    pub fn own(&self) -> Range<usize> {
        block(self.nodes, self.peers.rank(), self.peers.count())
    }

    /// Returns the reason why this process continues without the others; `None` while no process is lost.
    pub fn lost(&self) -> Option<PeerError> {
        let lost = self.lost.lock();
        lost.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether all processes know that the user wants the run to end.
    pub fn is_interrupted(&self) -> bool {
        self.all_interrupted.load(Ordering::Relaxed)
    }

    /// Reports to the other processes why this process cannot continue. Every later exchange of messages by this process fails.
    pub fn leave(&self, why: &str) {
        if self.lost().is_some() {
            return;
        }
        self.peers.leave(why);
        self.lose(PeerError::Left {
            peer: "this process".into(),
            why: why.into(),
        });
    }

    fn lose(&self, error: PeerError) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_or_insert(error);
    }

    /// Sends a message to all processes, and returns the messages of all, decoded, in the order of processes and so of nodes.
    ///
    /// # Errors
    ///
    /// A process that is lost, now or before.
    fn all_gather<T: DeserializeOwned>(
        &self,
        own: &[u8],
        decode: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Result<Vec<T>, PeerError> {
        if let Some(lost) = self.lost() {
            return Err(lost);
        }
        let gathered = self.peers.all_gather(own).and_then(|messages| {
            let decoded = messages.iter().enumerate().map(|(rank, message)| {
                decode(message).map_err(|why| PeerError::Message {
                    peer: format!("process {rank}"),
                    why,
                })
            });
            decoded.collect()
        });
        gathered.inspect_err(|error| self.lose(error.clone()))
    }

    fn gather<T: DeserializeOwned>(&self, own: &impl Serialize) -> Result<Vec<T>, PeerError> {
        let own = postcard::to_stdvec(own).map_err(|error| unsendable(&error))?;
        self.all_gather(&own, |message| {
            postcard::from_bytes(message).map_err(|error| error.to_string())
        })
    }

    /// Exchanges values with all processes as JSON, for types whose encoding is made for files. Returns all values in the order of
    /// processes.
    ///
    /// # Errors
    ///
    /// A process that is lost, now or before.
    pub fn gather_json<T: Serialize + DeserializeOwned>(
        &self,
        own: &T,
    ) -> Result<Vec<T>, PeerError> {
        let own = serde_json::to_vec(own).map_err(|error| unsendable(&error))?;
        self.all_gather(&own, |message| {
            serde_json::from_slice(message).map_err(|error| error.to_string())
        })
    }

    /// Exchanges the frames of a quantum and the summaries of nodes with all processes. Returns all frames in the order of nodes, and the
    /// summary of all nodes.
    pub(crate) fn gather_quantum(
        &self,
        number: u64,
        frames: Vec<SentFrame>,
        own: BarrierSummary,
    ) -> Result<(Vec<SentFrame>, BarrierSummary), PeerError> {
        let reports: Vec<QuantumReport> = self.gather(&QuantumReport {
            number,
            frames,
            quiescent: own.quiescent,
            next_activity_ps: own.next_activity_ps,
            connected: own.connected,
            interrupted: self.interrupted.load(Ordering::Relaxed),
        })?;
        let mut frames = Vec::new();
        let mut all = BarrierSummary {
            quiescent: true,
            next_activity_ps: u64::MAX,
            connected: false,
        };
        for (rank, report) in reports.into_iter().enumerate() {
            if report.number != number {
                let error = PeerError::Message {
                    peer: format!("process {rank}"),
                    why: format!("it is of quantum {} and not {number}", report.number),
                };
                self.lose(error.clone());
                return Err(error);
            }
            frames.extend(report.frames);
            all = all.merge(BarrierSummary {
                // The batch ends where a process is interrupted.
                quiescent: report.quiescent && !report.interrupted,
                next_activity_ps: report.next_activity_ps,
                connected: report.connected,
            });
            if report.interrupted {
                self.interrupted.store(true, Ordering::Relaxed);
            }
        }
        Ok((frames, all))
    }

    /// Returns the earliest time at which any node of any process has something to do, picoseconds. `own_ps` is the time of this process's
    /// nodes.
    pub(crate) fn gather_activity(&self, own_ps: u64) -> Result<u64, PeerError> {
        let all: Vec<u64> = self.gather(&own_ps)?;
        Ok(all.into_iter().min().unwrap_or(u64::MAX))
    }

    /// Exchanges the reports of nodes with all processes, and stores the reports of all nodes. If a process is lost, stores those of this
    /// process's nodes.
    pub(crate) fn gather_nodes(&self, own: Vec<NodeReport>) -> Result<(), PeerError> {
        let gathered = self.gather(&BatchReport {
            nodes: &own,
            interrupted: self.interrupted.load(Ordering::Relaxed),
        });
        let reports: Vec<BatchReport<Vec<NodeReport>>> = match gathered {
            Ok(reports) => reports,
            Err(error) => {
                for (index, report) in self.own().zip(own) {
                    if let Some(of) = self.reports().get_mut(index) {
                        *of = report;
                    }
                }
                return Err(error);
            }
        };
        if reports.iter().any(|report| report.interrupted) {
            self.interrupted.store(true, Ordering::Relaxed);
            self.all_interrupted.store(true, Ordering::Relaxed);
        }
        let nodes: Vec<NodeReport> = reports.into_iter().flat_map(|of| of.nodes).collect();
        if nodes.len() != self.nodes {
            let error = PeerError::Message {
                peer: "a process".into(),
                why: format!("{} of {} nodes are reported", nodes.len(), self.nodes),
            };
            self.lose(error.clone());
            return Err(error);
        }
        *self.reports() = nodes;
        Ok(())
    }

    /// Locks the reports of all nodes at the end of the last batch.
    pub(crate) fn reports(&self) -> MutexGuard<'_, Vec<NodeReport>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unsendable(error: &dyn std::error::Error) -> PeerError {
    PeerError::Message {
        peer: "this process".into(),
        why: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_all_nodes_once() {
        for nodes in 1..40 {
            for count in 1..=nodes {
                let blocks: Vec<_> = (0..count).map(|rank| block(nodes, rank, count)).collect();
                assert!(blocks.iter().all(|block| !block.is_empty()));
                let all: Vec<_> = blocks.into_iter().flatten().collect();
                assert_eq!(all, (0..nodes).collect::<Vec<_>>());
            }
        }
    }
}
