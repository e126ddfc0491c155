//! Circumstances of the run in which a program was traced.

use std::collections::BTreeMap;

use nodescope_trace::{Header, NodeEntry, SiteNames};

use crate::Converted;

/// Place and circumstances of the traced run. A prediction repeats the placement unless the cluster states another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Node of each rank, by world rank. Nodes are numbered from 0 without gaps, in the order of the trace. Empty if the trace does not
    /// tell where ranks ran.
    pub nodes: Vec<u32>,
    /// Number of cores (virtual CPUs) of each of these nodes; empty if unknown.
    pub cores: Vec<u32>,
    /// Number of threads of the rank that had most; `None` if unknown.
    pub threads: Option<u32>,
    /// Measurement windows of the traced run; empty if there were none, or if they are unknown. A trace does not have them.
    pub windows: Vec<WindowSpan>,
    /// Bursts outside these windows, if they have been converted to the clock of the windows.
    pub converted: Option<Converted>,
    /// Names of the program's call sites. A trace has the names of files, not the places in the source.
    pub names: SiteNames,
}

/// Interval of the trace in which a measurement window was open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowSpan {
    /// Name of the window.
    pub name: String,
    /// Beginning of the interval, picoseconds of the trace.
    pub opened: u64,
    /// End of the interval, picoseconds of the trace.
    pub closed: u64,
}

impl WindowSpan {
    /// Returns how long the window was open between two times, picoseconds.
    pub fn within(&self, from: u64, to: u64) -> u64 {
        self.closed.min(to).saturating_sub(self.opened.max(from))
    }
}

impl Origin {
    /// Returns the largest number of ranks on a node; `None` if the trace does not tell where ranks ran.
    pub fn ranks_per_node(&self) -> Option<u32> {
        ranks_of(&self.nodes).into_values().max()
    }

    /// Returns the origin of a run with these nodes of ranks, by the trace's numbers. The header has the nodes of these numbers.
    pub(crate) fn new(raw: &[u32], header: Option<&Header>) -> Origin {
        let entries: &[NodeEntry] = header.map_or(&[], |header| &header.nodes);
        if entries
            .first()
            .is_some_and(|node| node.name == NodeEntry::UNKNOWN)
        {
            return Origin::default();
        }
        let counts = ranks_of(raw);
        let numbers: BTreeMap<u32, u32> = counts.keys().copied().zip(0..).collect();
        let cores: Vec<u32> = (counts.keys())
            .map_while(|&node| entries.get(node as usize))
            .map(|entry| entry.vcpus)
            .collect();
        // Imported and predicted traces state as many CPUs as ranks, whatever the nodes had.
        let stated = header
            .is_some_and(|header| !header.study_id.is_empty() || !cores.iter().eq(counts.values()));
        let known = stated && cores.len() == counts.len();
        Origin {
            nodes: raw.iter().map(|node| numbers[node]).collect(),
            cores: if known { cores } else { Vec::new() },
            threads: None,
            windows: Vec::new(),
            converted: None,
            names: SiteNames::default(),
        }
    }
}

/// Returns the number of ranks of each node.
fn ranks_of(nodes: &[u32]) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for &node in nodes {
        *counts.entry(node).or_default() += 1;
    }
    counts
}
