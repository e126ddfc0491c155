//! Which files of `job.collect` a run still waits for.

use nodescope_study::Collect;

/// Most missing files that are named one by one.
const TOLD: usize = 8;

/// Entries of `job.collect`, and the nodes that have not answered them.
#[derive(Debug, Default)]
pub struct Awaited(Vec<(Collect, Vec<u32>)>);

impl Awaited {
    /// Nothing has come yet from a cluster of `nodes`.
    pub fn new(entries: &[Collect], nodes: u32) -> Awaited {
        let asked = entries
            .iter()
            .map(|entry| (entry.clone(), entry.asked(nodes).collect()));
        Awaited(asked.collect())
    }

    /// A file has come from a node.
    pub fn came(&mut self, node: u32, file: &str) {
        for (entry, nodes) in &mut self.0 {
            if let Ok(at) = nodes.binary_search(&node)
                && entry.is_answered_by(node, file)
            {
                nodes.remove(at);
            }
        }
    }

    /// A clause without its subject that names the missing files; none if all have come.
    pub fn missing(&self) -> Option<String> {
        let missing = self.0.iter().flat_map(|(entry, nodes)| {
            nodes
                .iter()
                .map(move |node| format!("{:?} on node{node}", entry.path))
        });
        let count: usize = self.0.iter().map(|(_, nodes)| nodes.len()).sum();
        let told: Vec<_> = missing.take(TOLD).collect();
        let more = match count - told.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (count > 0).then(|| format!("left no file for job.collect's {}{more}", told.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use nodescope_study::Place;

    use super::*;

    #[test]
    fn what_has_not_come_is_named_with_its_node() {
        let entry = |place, path: &str| Collect {
            place,
            path: path.into(),
        };
        let entries = [entry(Place::First, "a/out.txt"), entry(Place::All, "log.*")];
        let mut awaited = Awaited::new(&entries, 3);
        awaited.came(1, "node1/log.txt");
        awaited.came(0, "other");
        assert_eq!(
            awaited.missing().unwrap(),
            "left no file for job.collect's \"a/out.txt\" on node0, \"log.*\" on node0, \"log.*\" on node2"
        );
        awaited.came(0, "out.txt");
        awaited.came(0, "node0/log.1");
        awaited.came(2, "node2/log.x");
        assert_eq!(awaited.missing(), None);
        let many = Awaited::new(&entries, 20).missing().unwrap();
        assert!(many.ends_with("\"log.*\" on node6 and 13 more"), "{many}");
    }
}
