//! Entries of `job.collect`: files that are copied to the results when the job has ended.

use std::fmt;

use glob::{MatchOptions, Pattern};
use serde::Serialize;

/// Rules by which patterns match, like those of bash: `*` and `?` match no slash, and no wildcard matches a dot at the beginning of
/// a name.
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// Nodes whose files are collected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeSelection {
    /// Node 0, because the entry names no node.
    First,
    /// The node of this number.
    Node(u32),
    /// All nodes of the cluster.
    All,
    /// The file system that all nodes share, in this folder.
    Shared(String),
}

/// Folder, among the guests' files of the results, of the files from the shared file system.
const SHARED: &str = "shared";

/// An entry of `job.collect`: a file, a folder, or a pattern of files and folders below `/job`, on one node or on all nodes, or on the shared
/// file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Collect {
    /// Nodes whose files are collected.
    #[serde(rename = "place")]
    pub nodes: NodeSelection,
    /// Path or pattern, relative to `/job`, or to the folder of the shared file system.
    pub path: String,
}

impl Collect {
    /// Parses an entry: `PATH`, `nodeN:PATH` or `*:PATH`, where the path may begin with `/job/`; or a path in the folder of the shared file
    /// system. The cluster has `nodes` nodes.
    pub(crate) fn parse(text: &str, nodes: u32, shared: Option<&str>) -> Result<Collect, String> {
        let (mut selection, mut path) = match text.split_once(':') {
            None => (NodeSelection::First, text),
            Some(("*", path)) => (NodeSelection::All, path),
            Some((name, path)) => {
                let number = name.strip_prefix("node").and_then(|n| n.parse().ok());
                match number {
                    Some(node) if node < nodes => (NodeSelection::Node(node), path),
                    Some(node) => {
                        return Err(format!(
                            "names node {node}; the study's nodes are 0 to {}",
                            nodes - 1
                        ));
                    }
                    None => {
                        return Err(format!(
                            "has {name:?} before its colon, which is no node; write e.g. \"node0:out.txt\" or \"*:out.txt\", and \"?\" for a colon in a file's name"
                        ));
                    }
                }
            }
        };
        let below = |folder: &str| path.strip_prefix(folder)?.strip_prefix('/');
        if let Some((folder, rest)) = shared.and_then(|folder| Some((folder, below(folder)?))) {
            if selection != NodeSelection::First {
                return Err(format!(
                    "names nodes, but {folder} is the same on all nodes; write \"{path}\""
                ));
            }
            (selection, path) = (NodeSelection::Shared(folder.into()), rest);
        }
        let path = path.strip_prefix("/job/").unwrap_or(path);
        super::sections::guest_path(path)?;
        let entry = Collect {
            nodes: selection,
            path: path.to_owned(),
        };
        if entry.is_pattern() {
            // Shells disagree on the meaning of these parts of patterns.
            for odd in ["\\", "[^", "[:"] {
                if path.contains(odd) {
                    return Err(format!(
                        "holds {odd:?}, which patterns cannot have here; they are made of *, ?, [abc], [!abc] and, as a whole folder, **"
                    ));
                }
            }
            Pattern::new(path).map_err(|error| format!("is no pattern: {error}"))?;
        }
        Ok(entry)
    }

    /// Returns whether the path is a pattern.
    pub fn is_pattern(&self) -> bool {
        self.path.contains(['*', '?', '['])
    }

    /// Returns the folder, below the results' folder for files, of the files of `node`: empty, or with a slash at the end.
    fn folder(&self, node: u32) -> String {
        match self.nodes {
            NodeSelection::First => String::new(),
            NodeSelection::Node(_) | NodeSelection::All => format!("node{node}/"),
            NodeSelection::Shared(_) => format!("{SHARED}/"),
        }
    }

    /// Returns the name below the results' folder for files, without a node's folder. For a plain path, the name is the last component.
    /// A pattern is returned whole, because the files that it matches keep their paths.
    pub fn name(&self) -> &str {
        match self.path.rsplit_once('/') {
            Some((_, last)) if !self.is_pattern() => last,
            _ => &self.path,
        }
    }

    /// Returns whether this entry selects `file` of `node`. `file` is a path below the results' folder for files.
    pub fn is_answered_by(&self, node: u32, file: &str) -> bool {
        let is_asked = match self.nodes {
            // The first node sends the files that all nodes share.
            NodeSelection::First | NodeSelection::Shared(_) => node == 0,
            NodeSelection::Node(selection) => selection == node,
            NodeSelection::All => true,
        };
        let own = file.strip_prefix(&self.folder(node)).filter(|_| is_asked);
        let Some(own) = own else { return false };
        // An entry that matches a folder selects all files in the folder.
        let ends = own.match_indices('/').map(|(at, _)| at);
        let mut paths = ends.chain([own.len()]).map(|end| &own[..end]);
        if self.is_pattern() {
            Pattern::new(&self.path)
                .is_ok_and(|pattern| paths.any(|path| pattern.matches_with(path, MATCHING)))
        } else {
            paths.any(|path| path == self.name())
        }
    }

    /// Returns the numbers of the nodes whose files are collected. The cluster has `nodes` nodes.
    pub fn asked(&self, nodes: u32) -> std::ops::Range<u32> {
        match self.nodes {
            NodeSelection::First | NodeSelection::Shared(_) => 0..1,
            NodeSelection::Node(node) => node..node + 1,
            NodeSelection::All => 0..nodes,
        }
    }

    /// Returns the paths, below the results' folder for files, of what a plain path names on each selected node. Returns an empty list for
    /// a pattern.
    pub fn result_paths(&self, nodes: u32) -> Vec<String> {
        if self.is_pattern() {
            return Vec::new();
        }
        let path = |node| self.folder(node) + self.name();
        self.asked(nodes).map(path).collect()
    }

    /// Returns whether two entries may select different files that would have the same path among the results.
    pub(crate) fn collides(&self, other: &Collect) -> bool {
        use NodeSelection::{All, First, Node, Shared};
        let in_folder_of = |first: &Collect, selection: &NodeSelection| {
            let name = first.name().split('/').next().unwrap_or_default();
            if matches!(selection, Shared(_)) {
                return name == SHARED
                    || Pattern::new(name).is_ok_and(|of| of.matches_with(SHARED, MATCHING))
                        && first.path.contains('/');
            }
            let Some(number) = name.strip_prefix("node") else {
                return false;
            };
            match selection {
                First | Shared(_) => false,
                // The pattern may match the folder of any node.
                _ if number.contains(['*', '?', '[']) => true,
                Node(node) => number == node.to_string(),
                All => number.parse::<u32>().is_ok(),
            }
        };
        let together = match (&self.nodes, &other.nodes) {
            (First, First) | (All, All) | (Shared(_), Shared(_)) => true,
            // A folder of node 0 that has the name of a node would be mixed with the results' folder of that node.
            (First, selection) => return in_folder_of(self, selection),
            (selection, First) => return in_folder_of(other, selection),
            (Node(one), Node(two)) => one == two,
            (Node(_), All) | (All, Node(_)) => true,
            (Shared(_), _) | (_, Shared(_)) => false,
        };
        // The same path given twice selects the same file.
        if !together || self.path == other.path {
            return false;
        }
        let may_give = |pattern: &Collect, plain: &Collect| {
            // The plain path may name a folder, whose files then have names below the path's last component.
            let within = pattern.path.strip_prefix(plain.name());
            plain.name() != plain.path
                && (within.is_some_and(|rest| rest.starts_with('/'))
                    || Pattern::new(&pattern.path)
                        .is_ok_and(|pattern| pattern.matches_with(plain.name(), MATCHING)))
        };
        match (self.is_pattern(), other.is_pattern()) {
            (false, false) => self.name() == other.name(),
            (true, false) => may_give(self, other),
            (false, true) => may_give(other, self),
            (true, true) => false,
        }
    }
}

impl fmt::Display for Collect {
    /// Writes the entry as in a study.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.nodes {
            NodeSelection::First => f.write_str(&self.path),
            NodeSelection::Shared(folder) => write!(f, "{folder}/{}", self.path),
            NodeSelection::Node(node) => write!(f, "node{node}:{}", self.path),
            NodeSelection::All => write!(f, "*:{}", self.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str) -> Collect {
        Collect::parse(text, 4, Some("/scratch")).unwrap()
    }

    #[test]
    fn files_of_the_shared_file_system_are_those_of_no_node() {
        let of = entry("/scratch/out/a.h5");
        assert_eq!((&*of.path, of.name()), ("out/a.h5", "a.h5"));
        assert_eq!(of.to_string(), "/scratch/out/a.h5");
        assert_eq!(of.result_paths(4), ["shared/a.h5"]);
        assert!(of.is_answered_by(0, "shared/a.h5"));
        assert!(!of.is_answered_by(0, "a.h5"));
        assert!(entry("/scratch/ck/**").is_answered_by(0, "shared/ck/1/rank0"));
        let parse = |text, shared| Collect::parse(text, 4, shared).unwrap_err();
        let error = parse("*:/scratch/x", Some("/scratch"));
        assert!(
            error.contains("is the same on all nodes; write \"/scratch/x\""),
            "{error}"
        );
        for (text, shared) in [
            ("/scratch/x", None),
            ("/scratch2/x", Some("/scratch")),
            ("/scratch", Some("/scratch")),
        ] {
            assert!(parse(text, shared).contains("is absolute"), "{text}");
        }
    }

    #[test]
    fn entries_name_nodes_and_paths() {
        for (text, selection, path, name) in [
            ("out.txt", NodeSelection::First, "out.txt", "out.txt"),
            (
                "/job/a/out.txt",
                NodeSelection::First,
                "a/out.txt",
                "out.txt",
            ),
            (
                "node1:/job/a/*.txt",
                NodeSelection::Node(1),
                "a/*.txt",
                "a/*.txt",
            ),
            ("*:log", NodeSelection::All, "log", "log"),
            ("**/x[0-9]", NodeSelection::First, "**/x[0-9]", "**/x[0-9]"),
        ] {
            let entry = entry(text);
            assert_eq!((&entry.nodes, &*entry.path), (&selection, path));
            assert_eq!(entry.name(), name);
        }
        for (text, problem) in [
            ("node4:x", "names node 4; the study's nodes are 0 to 3"),
            ("nod1:x", "which is no node"),
            ("node1:/etc/passwd", "is absolute"),
            ("a/../*", "has an empty"),
            ("node1:", "has an empty"),
            ("a[1", "is no pattern"),
            ("a**b", "is no pattern"),
            ("[^a]*", "patterns cannot have"),
        ] {
            let error = Collect::parse(text, 4, None).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn what_has_come_answers_the_entry_that_asked() {
        let cases = [
            ("a/out.txt", 0, "out.txt", true),
            ("a/out.txt", 1, "out.txt", false),
            ("folder", 0, "folder/deep/file", true),
            ("folder", 0, "folder2/file", false),
            ("out.*", 0, "out.1", true),
            ("out.*", 0, "out.1/inner", true),
            ("out.*", 0, "a/out.1", false),
            ("**/out.*", 0, "a/b/out.1", true),
            ("**/out.*", 0, "out.1", true),
            ("dir/**", 0, "dir/a/b", true),
            ("*", 0, ".hidden", false),
            ("node1:out.dat", 1, "node1/out.dat", true),
            ("node1:out.dat", 1, "node10/out.dat", false),
            ("node1:out.dat", 0, "node1/out.dat", false),
            ("*:out.?", 3, "node3/out.x", true),
            ("*:out.?", 3, "node2/out.x", false),
        ];
        for (text, node, file, expected) in cases {
            let answered = entry(text).is_answered_by(node, file);
            assert_eq!(answered, expected, "{text}, node {node}: {file}");
        }
    }

    #[test]
    fn files_that_would_overwrite_each_other_are_known() {
        for (one, two, expected) in [
            ("a/x", "b/x", true),
            ("a/x", "a/x", false),
            ("a/x", "x*", true),
            ("x", "x*", false),
            ("a/x", "a/*", false),
            ("a/x", "node0:b/x", false),
            ("a/x", "x/*", true),
            ("a/x", "x/b/**", true),
            ("x", "x/*", false),
            ("a/x", "xy/*", false),
            ("node1:a/x", "*:x/*", true),
            ("node1/*", "node1:out", true),
            ("node1/*", "node2:out", false),
            ("node1/*", "*:out", true),
            ("a/node1", "node1:out", true),
            ("a/node1", "node1:b/*", true),
            ("node?/out", "node1:out", true),
            ("*.dat", "*:out", false),
            ("nodes/*", "*:out", false),
            ("node1:a/x", "*:b/x", true),
            ("node1:a/x", "node2:b/x", false),
            ("x", "/scratch/x", false),
            ("*:x", "/scratch/x", false),
            ("/scratch/a/x", "/scratch/x", true),
            ("/scratch/x", "/scratch/x", false),
            ("a/shared", "/scratch/x", true),
            ("shared/*", "/scratch/x", true),
            ("*", "/scratch/x", false),
            ("*/x", "/scratch/x", true),
        ] {
            let (one, two) = (entry(one), entry(two));
            assert_eq!(one.collides(&two), expected, "{one} {two}");
            assert_eq!(two.collides(&one), expected, "{two} {one}");
        }
    }
}
