//! Tracks which files of `job.collect` a run still waits for.

use std::fmt;

use nodescope_study::{Collect, NodeSelection};

/// Greatest number of missing files that a message names, and of nodes whose refused file is recorded.
const MAX_LISTED: usize = 8;

/// Files of `job.collect` that a run waits for, and those that could not be stored.
#[derive(Debug, Default)]
pub struct Awaited {
    /// Entries of `job.collect`, each with the nodes from which no file of the entry has come.
    entries: Vec<(Collect, Vec<u32>)>,
    /// First refused file of each node, if `job.collect` asks for it: the node, the file and the reason as a sentence. At most `MAX_LISTED`
    /// nodes.
    refused: Vec<(u32, String, String)>,
}

impl Awaited {
    /// Returns the state in which no file has come yet from a cluster of `nodes` nodes.
    pub fn new(entries: &[Collect], nodes: u32) -> Awaited {
        let asked = entries
            .iter()
            .map(|entry| (entry.clone(), entry.asked(nodes).collect()));
        Awaited {
            entries: asked.collect(),
            refused: Vec::new(),
        }
    }

    /// Returns the state for a snapshot: the nodes that have not answered each entry, and the refused files.
    pub fn state(&self) -> Vec<u8> {
        let entries: Vec<_> = self
            .entries
            .iter()
            .map(|(entry, nodes)| (key(entry), nodes))
            .collect();
        serde_json::to_vec(&(entries, &self.refused)).unwrap_or_default()
    }

    /// Restores the state from a snapshot. Entries that the snapshot does not contain still wait for all of their nodes.
    pub fn load(&mut self, state: &[u8]) -> Result<(), String> {
        type State = (Vec<(String, Vec<u32>)>, Vec<(u32, String, String)>);
        let state = serde_json::from_slice::<State>(state);
        let (entries, refused) =
            state.map_err(|error| format!("files that are awaited: {error}"))?;
        for (entry, nodes) in &mut self.entries {
            let name = key(entry);
            if let Some((_, left)) = entries.iter().find(|(other, _)| *other == name) {
                nodes.retain(|node| left.contains(node));
            }
        }
        self.refused = refused;
        Ok(())
    }

    /// Records that a file has come from a node.
    pub fn file_arrived(&mut self, node: u32, file: &str) {
        for (entry, nodes) in &mut self.entries {
            if let Ok(at) = nodes.binary_search(&node)
                && entry.is_answered_by(node, file)
            {
                nodes.remove(at);
            }
        }
    }

    /// Returns a clause that continues a sentence about the job, and names what is missing or incomplete; `None` if all files have come
    /// whole.
    pub fn missing(&self) -> Option<String> {
        let listed: Vec<_> = (self.refused.iter())
            .map(|(node, file, why)| format!("{file:?} of node{node}: {why}"))
            .collect();
        let cut = (!listed.is_empty()).then(|| {
            format!(
                "not all that job.collect asks for could be stored: {}",
                listed.join("; ")
            )
        });
        match (self.unanswered(), cut) {
            (Some(unanswered), Some(cut)) => Some(format!("{unanswered}, and {cut}")),
            (unanswered, cut) => unanswered.or(cut),
        }
    }

    /// Records that a piece of a node's file was refused. A file that `job.collect` asks for then counts as incomplete, even if other
    /// pieces of the file come.
    pub fn file_refused(&mut self, node: u32, file: &str, why: &dyn fmt::Display) {
        let asks = |(entry, _): &(Collect, Vec<u32>)| entry.is_answered_by(node, file);
        if !self.entries.iter().any(asks) {
            return;
        }
        // The node has the file, so the entry does not count as unanswered.
        self.file_arrived(node, file);
        let known = self.refused.iter().any(|(other, ..)| *other == node);
        if !known && self.refused.len() < MAX_LISTED {
            (self.refused).push((node, file.to_owned(), why.to_string()));
        }
    }

    /// Returns a clause that names the entries without a file and their nodes; `None` if there are none.
    fn unanswered(&self) -> Option<String> {
        let missing = self.entries.iter().flat_map(|(entry, nodes)| {
            nodes.iter().map(move |node| match entry.nodes {
                NodeSelection::Shared(_) => format!("{:?}", entry.to_string()),
                _ => format!("{:?} on node{node}", entry.path),
            })
        });
        let count: usize = self.entries.iter().map(|(_, nodes)| nodes.len()).sum();
        let listed: Vec<_> = missing.take(MAX_LISTED).collect();
        let more = match count - listed.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (count > 0).then(|| format!("left no file for job.collect's {}{more}", listed.join(", ")))
    }
}

/// Returns the name of an entry in a snapshot's state. Snapshots name the entry's nodes `place`.
fn key(entry: &Collect) -> String {
    format!(
        "Collect {{ place: {:?}, path: {:?} }}",
        entry.nodes, entry.path
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_come_is_named_with_its_node() {
        let entry = |nodes, path: &str| Collect {
            nodes,
            path: path.into(),
        };
        let entries = [
            entry(NodeSelection::First, "a/out.txt"),
            entry(NodeSelection::All, "log.*"),
        ];
        let mut awaited = Awaited::new(&entries, 3);
        awaited.file_arrived(1, "node1/log.txt");
        awaited.file_arrived(0, "other");
        assert_eq!(
            awaited.missing().unwrap(),
            "left no file for job.collect's \"a/out.txt\" on node0, \"log.*\" on node0, \"log.*\" on node2"
        );
        awaited.file_arrived(0, "out.txt");
        awaited.file_arrived(0, "node0/log.1");
        awaited.file_arrived(2, "node2/log.x");
        assert_eq!(awaited.missing(), None);
        awaited.file_refused(1, "other", &"too long");
        awaited.file_refused(1, "a/out.txt", &"too long");
        assert_eq!(awaited.missing(), None, "nobody asked for these");
        awaited.file_refused(2, "node2/log.y", &"too long");
        awaited.file_arrived(2, "node2/log.y");
        assert_eq!(
            awaited.missing().unwrap(),
            "not all that job.collect asks for could be stored: \"node2/log.y\" of node2: too long"
        );
        let mut alone = Awaited::new(&entries[..1], 1);
        alone.file_refused(0, "out.txt", &"too long");
        assert_eq!(
            alone.missing().unwrap(),
            "not all that job.collect asks for could be stored: \"out.txt\" of node0: too long"
        );
        let many = Awaited::new(&entries, 20).missing().unwrap();
        assert!(many.ends_with("\"log.*\" on node6 and 13 more"), "{many}");
    }
}
