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

    /// Sends `own[r]` to each other process `r` if `senders` holds for this process. Waits for the message of each other process for which
    /// `senders` holds, and returns the messages by process. All other entries of the result are empty. All processes call this function
    /// with the same `senders`.
    ///
    /// # Errors
    ///
    /// A process that has died, or has left.
    fn exchange(&self, own: &[Vec<u8>], senders: &[bool]) -> Result<Vec<Vec<u8>>, PeerError>;

    /// Sends a message to one other process, which calls [`Peers::receive`].
    ///
    /// # Errors
    ///
    /// A process that has died, or has left.
    fn send(&self, to: usize, message: &[u8]) -> Result<(), PeerError>;

    /// Waits for a message of one other process.
    ///
    /// # Errors
    ///
    /// A process that has died, or has left.
    fn receive(&self, from: usize) -> Result<Vec<u8>, PeerError>;

    /// Sends this message to all processes, waits for the messages of all, and returns them in the order of the processes' numbers.
    ///
    /// # Errors
    ///
    /// A process that has died, or has left.
    fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, PeerError> {
        let count = self.count();
        let mut all = self.exchange(&vec![own.to_vec(); count], &vec![true; count])?;
        all[self.rank()] = own.to_vec();
        Ok(all)
    }

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

/// Returns the process that runs a node, see [`block`].
fn process_of(nodes: usize, node: usize, count: usize) -> usize {
    (0..count)
        .find(|&rank| block(nodes, rank, count).contains(&node))
        .unwrap_or(0)
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
    /// True if a snapshot is requested. Only the master's counts.
    save: bool,
}

/// Report of a process at the end of a quantum. The bytes of the frames follow it in the message.
#[derive(Serialize, Deserialize)]
struct QuantumReport {
    number: u64,
    quiescent: bool,
    next_activity_ps: u64,
    connected: bool,
    interrupted: bool,
    frames: Vec<FrameReport>,
}

/// A frame in a [`QuantumReport`].
#[derive(Clone, Serialize, Deserialize)]
struct FrameReport {
    time_ps: u64,
    port: usize,
    length: usize,
    /// Number of the frame's first bytes that are in the message.
    carried: usize,
    checksum_valid: bool,
}

/// Bytes of a frame that every process gets: the Ethernet header, by which each process's switch finds the receivers (IEEE 802.3 §3.1.1).
const FRAME_HEADER: usize = 14;

/// What all processes know of one of them at the end of a quantum.
#[derive(Clone, Copy)]
struct Known {
    summary: BarrierSummary,
    /// True if `next_activity_ps` is exact. A frame that was delivered since then may wake the process's nodes up earlier, at
    /// `next_activity_ps` at the earliest.
    exact: bool,
}

impl Known {
    /// Nothing is known: the process may act at any time.
    const NOTHING: Self = Self {
        summary: BarrierSummary {
            quiescent: true,
            next_activity_ps: 0,
            connected: false,
        },
        exact: true,
    };
}

/// The share of one process in a run.
pub struct Distribution {
    peers: Arc<dyn Peers>,
    nodes: usize,
    /// True if the master captures all frames.
    captured: bool,
    /// State of all nodes at the end of the last batch.
    reports: Mutex<Vec<NodeReport>>,
    /// What is known of each process.
    known: Mutex<Vec<Known>>,
    /// Set once the user has interrupted this process, or another process has reported an interrupt.
    interrupted: Arc<AtomicBool>,
    /// True once all processes know that the user wants the run to end.
    all_interrupted: AtomicBool,
    /// True if a snapshot is requested from this process, and true if all processes know of the master's request.
    save: AtomicBool,
    all_save: AtomicBool,
    /// Reason why this process continues without the others; `None` while no process is lost.
    lost: Mutex<Option<PeerError>>,
}

impl Distribution {
    /// Returns the share of this process in a run of `nodes` nodes. With `captured`, the master gets all bytes of all frames.
    ///
    /// # Errors
    ///
    /// More processes than nodes.
    pub fn new(
        peers: Arc<dyn Peers>,
        nodes: usize,
        captured: bool,
        interrupted: Arc<AtomicBool>,
    ) -> Result<Self, PeerError> {
        let count = peers.count();
        if count > nodes {
            return Err(PeerError::TooMany { count, most: nodes });
        }
        Ok(Self {
            peers,
            nodes,
            captured,
            reports: Mutex::default(),
            known: Mutex::new(vec![Known::NOTHING; count]),
            interrupted,
            all_interrupted: AtomicBool::new(false),
            save: AtomicBool::new(false),
            all_save: AtomicBool::new(false),
            lost: Mutex::default(),
        })
    }

    /// Returns the number of all nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Returns whether this process is the master, which writes the results.
    pub fn is_master(&self) -> bool {
        self.peers.rank() == 0
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

    /// Returns whether all processes know that the master is to take a snapshot. `flag` is set where a snapshot is requested from this
    /// process; the others learn that with the next reports of nodes.
    pub(crate) fn is_snapshot_requested(&self, flag: &AtomicBool) -> bool {
        self.save
            .store(flag.load(Ordering::Relaxed), Ordering::Relaxed);
        self.all_save.swap(false, Ordering::Relaxed)
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

    /// Calls a function with the processes, unless one is lost. Remembers a process that is lost in the call.
    fn unless_lost<R>(
        &self,
        call: impl FnOnce(&dyn Peers) -> Result<R, PeerError>,
    ) -> Result<R, PeerError> {
        if let Some(lost) = self.lost() {
            return Err(lost);
        }
        call(&*self.peers).inspect_err(|error| self.lose(error.clone()))
    }

    /// Sends a message about a node of this process to the master.
    pub(crate) fn send_to_master(&self, message: &[u8]) -> Result<(), PeerError> {
        self.unless_lost(|peers| peers.send(0, message))
    }

    /// Receives a message about a node from the node's process.
    pub(crate) fn receive_from_node(&self, node: usize) -> Result<Vec<u8>, PeerError> {
        self.unless_lost(|peers| peers.receive(process_of(self.nodes, node, peers.count())))
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

    /// Exchanges the frames of a quantum that ended at `end_ps`, and the summaries of nodes, with all processes. Returns all frames in the
    /// order of nodes. A process of which all know that its nodes slept throughout the quantum sends nothing,
    /// so that nobody waits for that process. `has_receiver` says whether a frame is for one of some nodes.
    pub(crate) fn gather_quantum(
        &self,
        (number, end_ps): (u64, u64),
        frames: Vec<SentFrame>,
        own: BarrierSummary,
        has_receiver: impl Fn(&SentFrame, Range<usize>) -> bool,
    ) -> Result<Vec<SentFrame>, PeerError> {
        let mut known = self.known();
        let senders: Vec<bool> = (known.iter())
            .map(|of| of.summary.next_activity_ps < end_ps)
            .collect();
        let (rank, count) = (self.peers.rank(), self.peers.count());
        let mut messages = vec![Vec::new(); count];
        if senders[rank] {
            let report = QuantumReport {
                number,
                quiescent: own.quiescent,
                next_activity_ps: own.next_activity_ps,
                connected: own.connected,
                interrupted: self.interrupted.load(Ordering::Relaxed),
                frames: Vec::new(),
            };
            for to in (0..count).filter(|&to| to != rank) {
                let block = block(self.nodes, to, count);
                let needs_bytes = |frame: &SentFrame| {
                    to == 0 && self.captured || has_receiver(frame, block.clone())
                };
                messages[to] = encode(&report, &frames, needs_bytes)?;
            }
            known[rank] = Known {
                summary: BarrierSummary {
                    quiescent: own.quiescent && !report.interrupted,
                    ..own
                },
                exact: true,
            };
        }
        let received = self.unless_lost(|peers| peers.exchange(&messages, &senders))?;
        let mut all = Vec::new();
        let mut own_frames = Some(frames);
        for (from, message) in received.iter().enumerate() {
            if from == rank {
                all.extend(own_frames.take().into_iter().flatten());
            } else if senders[from] {
                let (report, of) = decode(number, message).map_err(|why| {
                    let peer = format!("process {from}");
                    let error = PeerError::Message { peer, why };
                    self.lose(error.clone());
                    error
                })?;
                all.extend(of);
                if report.interrupted {
                    self.interrupted.store(true, Ordering::Relaxed);
                }
                known[from] = Known {
                    summary: BarrierSummary {
                        // The batch ends where a process is interrupted.
                        quiescent: report.quiescent && !report.interrupted,
                        next_activity_ps: report.next_activity_ps,
                        connected: report.connected,
                    },
                    exact: true,
                };
            }
        }
        Ok(all)
    }

    /// Takes into account that frames were delivered to nodes, each with its time in picoseconds. Returns the summary of all nodes after
    /// that. Where all nodes sleep, processes whose nodes got frames report when they wake up: only they can find out. `own_ps` returns
    /// that time for this process's nodes.
    pub(crate) fn gather_activity(
        &self,
        end_ps: u64,
        delivered: impl Iterator<Item = (usize, u64)>,
        own_ps: impl FnOnce() -> u64,
    ) -> Result<BarrierSummary, PeerError> {
        let mut known = self.known();
        let (rank, count) = (self.peers.rank(), self.peers.count());
        for (node, time_ps) in delivered {
            let of = &mut known[process_of(self.nodes, node, count)];
            of.exact = false;
            of.summary.next_activity_ps = of.summary.next_activity_ps.min(time_ps);
        }
        let all = merged(&known);
        let inexact: Vec<bool> = known.iter().map(|of| !of.exact).collect();
        if all.next_activity_ps <= end_ps || !inexact.contains(&true) {
            return Ok(all);
        }
        let own_ps = match inexact[rank] {
            true => own_ps(),
            false => 0,
        };
        let own = own_ps.to_le_bytes().to_vec();
        let received =
            self.unless_lost(|peers| peers.exchange(&vec![own.clone(); count], &inexact))?;
        for (from, mut message) in received.into_iter().enumerate() {
            if !inexact[from] {
                continue;
            }
            if from == rank {
                message.clone_from(&own);
            }
            let time_ps = message.try_into().map_err(|message: Vec<u8>| {
                let error = PeerError::Message {
                    peer: format!("process {from}"),
                    why: format!("it has {} bytes and not 8", message.len()),
                };
                self.lose(error.clone());
                error
            })?;
            known[from].summary.next_activity_ps = u64::from_le_bytes(time_ps);
            known[from].exact = true;
        }
        Ok(merged(&known))
    }

    /// Exchanges the reports of nodes with all processes, and stores the reports of all nodes. If a process is lost, stores those of this
    /// process's nodes.
    pub(crate) fn gather_nodes(&self, own: Vec<NodeReport>) -> Result<(), PeerError> {
        let gathered = self.gather(&BatchReport {
            nodes: &own,
            interrupted: self.interrupted.load(Ordering::Relaxed),
            save: self.save.load(Ordering::Relaxed),
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
        let save = reports.first().is_some_and(|master| master.save);
        self.all_save.store(save, Ordering::Relaxed);
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
        // Between batches, a run may wake up any node.
        self.known().fill(Known::NOTHING);
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the reports of all nodes at the end of the last batch.
    pub(crate) fn reports(&self) -> MutexGuard<'_, Vec<NodeReport>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the summary of the nodes of all processes.
fn merged(known: &[Known]) -> BarrierSummary {
    let none = BarrierSummary {
        quiescent: true,
        next_activity_ps: u64::MAX,
        connected: false,
    };
    (known.iter()).fold(none, |all, of| all.merge(of.summary))
}

/// Returns a quantum's message: the report with these frames, and the bytes of the frames, all of them or only the header.
fn encode(
    report: &QuantumReport,
    frames: &[SentFrame],
    needs_bytes: impl Fn(&SentFrame) -> bool,
) -> Result<Vec<u8>, PeerError> {
    let parts: Vec<(FrameReport, &[u8])> = (frames.iter())
        .map(|frame| {
            let carried = match needs_bytes(frame) {
                true => frame.bytes.len(),
                false => frame.bytes.len().min(FRAME_HEADER),
            };
            let report = FrameReport {
                time_ps: frame.time_ps,
                port: frame.port,
                length: frame.len(),
                carried,
                checksum_valid: frame.checksum_valid,
            };
            (report, &frame.bytes[..carried])
        })
        .collect();
    let report = QuantumReport {
        frames: parts.iter().map(|(frame, _)| frame.clone()).collect(),
        ..*report
    };
    let mut message = postcard::to_stdvec(&report).map_err(|error| unsendable(&error))?;
    for (_, bytes) in parts {
        message.extend_from_slice(bytes);
    }
    Ok(message)
}

/// Decodes the message of quantum `number`, see [`encode`].
fn decode(number: u64, message: &[u8]) -> Result<(QuantumReport, Vec<SentFrame>), String> {
    let (report, mut bytes): (QuantumReport, &[u8]) =
        postcard::take_from_bytes(message).map_err(|error| error.to_string())?;
    if report.number != number {
        return Err(format!(
            "it is of quantum {} and not {number}",
            report.number
        ));
    }
    let frame = |of: &FrameReport| {
        let missing = of
            .length
            .checked_sub(of.carried)
            .ok_or("a frame is too short")?;
        let carried = bytes.split_off(..of.carried).ok_or("a frame is cut")?;
        Ok(SentFrame {
            time_ps: of.time_ps,
            port: of.port,
            bytes: carried.to_vec(),
            missing,
            checksum_valid: of.checksum_valid,
        })
    };
    let frames = report
        .frames
        .iter()
        .map(frame)
        .collect::<Result<_, String>>()?;
    Ok((report, frames))
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
