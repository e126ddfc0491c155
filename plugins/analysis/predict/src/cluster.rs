//! Cluster on which a program is predicted.

mod file;
mod preset;

use std::collections::BTreeMap;

use nodescope_loop_tree::{CollectiveKind, Origin};
use serde::Serialize;

use crate::collective::{Choice, Library, Selected};
use crate::network::{Channel, MOST_COST, Model};
use crate::topology::Topology;

pub use file::{ClusterFile, known_fields};
pub use preset::Preset;

/// Scaling of bursts from the machine on which they were traced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Speed {
    /// Factor by which bursts are faster than in the trace.
    Factor(f64),
    /// Instructions times CPI over frequency. Bursts whose instructions are unknown keep their time.
    Cpi {
        /// Cycles per instruction on the target.
        cpi: f64,
        /// Clock frequency of the target in hertz.
        frequency: u64,
    },
}

impl Speed {
    /// Returns the time of a burst on the target, picoseconds.
    pub fn scale(self, time: u64, instructions: u64) -> u64 {
        match self {
            Speed::Factor(1.0) => time.min(LONGEST),
            Speed::Factor(factor) => longest(time as f64 / factor),
            Speed::Cpi { .. } if instructions == 0 => time.min(LONGEST),
            Speed::Cpi { cpi, frequency } => {
                longest(instructions as f64 * cpi * 1e12 / frequency as f64)
            }
        }
    }
}

/// Returns a time rounded to picoseconds, but at most the longest run that is interpreted.
fn longest(time: f64) -> u64 {
    (time.round() as u64).min(LONGEST)
}

/// The longest run that is interpreted, picoseconds: 53 days.
pub(crate) const LONGEST: u64 = 1 << 62;

/// Placement of ranks on nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Each rank on a node together with the ranks that shared its node where the program was traced. If the trace does not tell where
    /// ranks ran: as [`Placement::Block`].
    Traced,
    /// Successive ranks fill one node after the other.
    Block,
    /// Successive ranks are on successive nodes, in turn.
    Cyclic,
    /// The node of each rank.
    Nodes(Vec<u32>),
}

/// The agent that moves messages while a rank computes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// No agent: a large message progresses only while its rank is in MPI.
    Calls,
    /// A thread beside the rank. While it moves data, bursts take 1 / (1 - beta) of their time.
    Thread {
        /// Share of the processor that the thread uses while it moves data, in [0, 1).
        beta: f64,
    },
}

/// Rule by which messages share a link that several use at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Messages follow one another in the order in which they were sent.
    #[default]
    Queue,
    /// Each message gets the same share of a link: max-min fairness.
    Fair,
    /// Messages get shares in proportion to the reciprocals of their latencies, as flows of TCP do: weighted max-min fairness.
    RoundTrip,
    /// Messages follow one another, except on the link to their receiver: there, frames of several messages pass in the order in which
    /// they come.
    Frames,
}

/// Relative standard deviations of what a cluster file says from what is true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Uncertainty {
    /// Of the costs of messages, all alike.
    pub messages: f64,
    /// Of the speed of computation.
    pub computation: f64,
}

/// Interruptions of computation by the operating system, on each core at moments of its own (Hoefler, Schneider and Lumsdaine,
/// "Characterizing the influence of system noise on large-scale applications by simulation", 2010).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Noise {
    /// Time from the beginning of an interruption to that of the next one, picoseconds.
    pub interval: u64,
    /// Duration of an interruption, picoseconds: less than `interval`.
    pub time: u64,
}

/// Cluster on which a program is predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cluster {
    /// Name of the cluster.
    pub name: String,
    /// Number of nodes; `None` for as many as are needed.
    pub nodes: Option<u32>,
    /// Number of cores of each node.
    pub cores: u32,
    /// Number of ranks that a block or cyclic placement puts on a node; `None` for as many as where the program was traced, or as many as
    /// there are cores if that is unknown.
    pub ranks_per_node: Option<u32>,
    /// Number of threads of each rank; `None` for as many as where the program was traced.
    pub threads_per_rank: Option<u32>,
    /// Placement of the ranks on nodes.
    pub placement: Placement,
    /// Scaling of bursts.
    pub speed: Speed,
    /// Speeds of those nodes that differ, in millionths of the others' speed, by node.
    pub node_speeds: BTreeMap<u32, u32>,
    /// Interruptions of computation by the system; `None` without any.
    pub noise: Option<Noise>,
    /// Channel between nodes.
    pub network: Channel,
    /// Channel within a node.
    pub memory: Channel,
    /// Connection of the nodes.
    pub topology: Topology,
    /// Latency of each link of the topology that a message passes, picoseconds.
    pub hop_latency: u64,
    /// Picoseconds per byte on the topology's links; `None` if these links are as fast as the nodes' own.
    pub link_per_byte: Option<f64>,
    /// True if messages within a node follow one another through the node's memory.
    pub memory_contention: bool,
    /// True if messages wait for links that others use.
    pub contention: bool,
    /// Rule by which messages share links; only used with contention.
    pub sharing: Sharing,
    /// Bytes that a connection between two ranks of different nodes holds for its sender. The send of a large message ends when the rest of the
    /// message fits.
    pub connection_buffer: u64,
    /// True if a rank serves accesses to its memory itself while it is in MPI; false if the network or a thread does.
    pub accesses_in_calls: bool,
    /// Picoseconds after which a rank without a connection looks again whether another rank connects to it. The library of such a rank looks
    /// rarely while the rank is in MPI.
    pub connection_poll: u64,
    /// Processor time of a step by which a connection opens, picoseconds. If this time and the one before are 0, connections are open from
    /// the beginning.
    pub connection_setup: u64,
    /// The agent that moves messages.
    pub progress: Progress,
    /// True if a rank that waits processes every message that comes meanwhile, also those that it does not wait for. Otherwise such
    /// messages cost nothing until they are received. Only without a progress thread.
    #[serde(rename = "takes_in")]
    pub receives_unexpected: bool,
    /// Choice of the collectives' algorithms.
    pub collectives: Choice,
    /// Picoseconds per byte to reduce two vectors to one.
    pub reduce_per_byte: f64,
    /// Picoseconds to make and free a datatype, where a collective names its blocks by a datatype.
    pub datatype_overhead: u64,
    /// How far this description may be off, for the interval of a prediction.
    pub uncertainty: Uncertainty,
}

/// Reason for which a program cannot run on a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// Too few nodes.
    #[error(
        "{ranks} ranks at {per_node} a node need {needed} nodes, but cluster {cluster:?} has {nodes}; raise nodes.count (or the topology), or put more ranks on a node (nodes.ranks_per_node, --ranks-per-node)"
    )]
    Nodes {
        /// Number of ranks.
        ranks: u32,
        /// Number of ranks that the placement puts on a node.
        per_node: u32,
        /// Number of nodes that the ranks need.
        needed: u32,
        /// Number of nodes that the cluster has and its topology connects.
        nodes: u64,
        /// Name of the cluster.
        cluster: String,
    },
    /// Too few nodes for the placement that the ranks had where they were traced.
    #[error(
        "the {ranks} ranks ran on {needed} nodes where they were traced, but cluster {cluster:?} has {nodes}; raise nodes.count (or the topology), or state another placement (nodes.ranks_per_node, nodes.placement; --ranks-per-node, --placement)"
    )]
    TracedNodes {
        /// Number of ranks.
        ranks: u32,
        /// Number of nodes on which the ranks ran.
        needed: u32,
        /// Number of nodes that the cluster has and its topology connects.
        nodes: u64,
        /// Name of the cluster.
        cluster: String,
    },
    /// The placement lists the nodes of another number of ranks than the program has.
    #[error("the placement lists the nodes of {listed} ranks, but the program has {ranks}")]
    Placement {
        /// Number of ranks that the placement lists.
        listed: usize,
        /// Number of ranks of the program.
        ranks: u32,
    },
    /// More ranks on a node than it has cores.
    #[error(
        "the {rule} placement puts {ranks} ranks on node {node}, which has {cores} cores; raise nodes.cores, or state another placement (nodes.ranks_per_node, nodes.placement; --ranks-per-node, --placement)"
    )]
    Cores {
        /// Rule of the placement, such as `traced`.
        rule: &'static str,
        /// Number of the node.
        node: u32,
        /// Number of ranks on the node.
        ranks: u32,
        /// Number of cores in the node.
        cores: u32,
    },
    /// Progress threads that take a share of the processor, with contention on links that are not shared as queues.
    #[error(
        "a progress thread's share of the processor (network.beta) can be predicted with network.sharing = \"queue\" only"
    )]
    Sharing,
}

impl Cluster {
    /// Returns the latency of a path of `links` links within the network, picoseconds.
    pub(crate) fn hops(&self, links: usize) -> u64 {
        let all = self.hop_latency.saturating_mul(links as u64);
        all.min(MOST_COST)
    }

    /// Returns a cluster of one rank a node and as many nodes as are needed, on a crossbar of this channel. There is no contention, and
    /// messages progress while their ranks compute.
    pub fn simple(name: &str, network: Channel) -> Cluster {
        Cluster {
            name: name.to_owned(),
            nodes: None,
            cores: 1,
            ranks_per_node: Some(1),
            threads_per_rank: None,
            placement: Placement::Block,
            speed: Speed::Factor(1.0),
            node_speeds: BTreeMap::new(),
            noise: None,
            memory: network.clone(),
            network,
            topology: Topology::Crossbar,
            hop_latency: 0,
            link_per_byte: None,
            memory_contention: false,
            contention: false,
            sharing: Sharing::Queue,
            connection_buffer: 0,
            accesses_in_calls: false,
            connection_poll: 0,
            connection_setup: 0,
            progress: Progress::Thread { beta: 0.0 },
            receives_unexpected: false,
            collectives: Choice {
                library: Library::OpenMpi,
                fixed: BTreeMap::new(),
            },
            reduce_per_byte: 0.0,
            datatype_overhead: 0,
            uncertainty: Uncertainty::default(),
        }
    }

    /// Returns the cluster with a network that costs nothing: zero latency, infinite bandwidth, no overheads.
    pub fn ideal_network(&self) -> Cluster {
        Cluster {
            network: Channel::ideal(),
            memory: Channel::ideal(),
            topology: Topology::Crossbar,
            hop_latency: 0,
            link_per_byte: None,
            memory_contention: false,
            contention: false,
            sharing: Sharing::Queue,
            connection_buffer: 0,
            accesses_in_calls: false,
            connection_poll: 0,
            connection_setup: 0,
            progress: Progress::Thread { beta: 0.0 },
            receives_unexpected: false,
            reduce_per_byte: 0.0,
            datatype_overhead: 0,
            ..self.clone()
        }
    }

    /// Returns the cluster with connections that are open from the beginning, for parts of programs.
    pub fn with_open_connections(&self) -> Cluster {
        Cluster {
            connection_poll: 0,
            connection_setup: 0,
            ..self.clone()
        }
    }

    /// Returns the cluster with one algorithm for a kind of collective, whatever the size.
    pub fn with_algorithm(mut self, kind: CollectiveKind, selected: Selected) -> Cluster {
        self.collectives.fixed.insert(kind, selected);
        self
    }

    /// Returns the number of ranks that a block or cyclic placement puts on a node.
    pub(crate) fn block(&self, origin: &Origin) -> u32 {
        let traced = || origin.ranks_per_node().unwrap_or(self.cores);
        self.ranks_per_node.unwrap_or_else(traced).max(1)
    }

    /// Returns the node of each rank of a program that was traced as `origin` says.
    ///
    /// # Errors
    ///
    /// Too few nodes or cores, or a placement that lists another number of ranks.
    pub fn place_ranks(&self, ranks: u32, origin: &Origin) -> Result<Vec<u32>, FitError> {
        let per_node = self.block(origin);
        let needed = ranks.div_ceil(per_node);
        let nodes = self
            .nodes
            .map_or(u64::MAX, u64::from)
            .min(self.topology.capacity());
        let rule = self.rule(ranks, origin);
        let placed = self.placed(ranks, needed, origin)?;
        let used = placed.iter().max().map_or(0, |&node| node + 1);
        if u64::from(used) > nodes {
            let cluster = self.name.clone();
            return Err(match rule {
                "traced" => FitError::TracedNodes {
                    ranks,
                    needed: used,
                    nodes,
                    cluster,
                },
                _ => FitError::Nodes {
                    ranks,
                    per_node,
                    needed: used,
                    nodes,
                    cluster,
                },
            });
        }
        let mut on_node: BTreeMap<u32, u32> = BTreeMap::new();
        for &node in &placed {
            *on_node.entry(node).or_default() += 1;
        }
        match on_node.into_iter().find(|&(_, ranks)| ranks > self.cores) {
            Some((node, ranks)) => Err(FitError::Cores {
                rule,
                node,
                ranks,
                cores: self.cores,
            }),
            None => Ok(placed),
        }
    }

    /// Returns the node of each rank, whether or not the cluster has these nodes.
    fn placed(&self, ranks: u32, needed: u32, origin: &Origin) -> Result<Vec<u32>, FitError> {
        let per_node = self.block(origin);
        Ok(match (&self.placement, self.rule(ranks, origin)) {
            (Placement::Nodes(list), _) if list.len() != ranks as usize => {
                return Err(FitError::Placement {
                    listed: list.len(),
                    ranks,
                });
            }
            (Placement::Nodes(list), _) => list.clone(),
            (_, "traced") => origin.nodes.clone(),
            (Placement::Cyclic, _) => (0..ranks).map(|rank| rank % needed.max(1)).collect(),
            _ => (0..ranks).map(|rank| rank / per_node).collect(),
        })
    }

    /// Returns the name of the rule by which the ranks of a program are placed: `traced`, `block`, `cyclic` or `listed`.
    pub(crate) fn rule(&self, ranks: u32, origin: &Origin) -> &'static str {
        match &self.placement {
            Placement::Traced if origin.nodes.len() == ranks as usize => "traced",
            Placement::Traced | Placement::Block => "block",
            Placement::Cyclic => "cyclic",
            Placement::Nodes(_) => "listed",
        }
    }

    /// Checks that bursts beside progress threads can be interpreted. With contention, only queued links show when these threads move
    /// data.
    pub(crate) fn can_share(&self) -> Result<(), FitError> {
        match self.progress {
            Progress::Thread { beta }
                if beta > 0.0 && self.contention && self.sharing != Sharing::Queue =>
            {
                Err(FitError::Sharing)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the post model applies between nodes.
    pub fn posts(&self) -> bool {
        self.network.model == Model::Post
    }
}
