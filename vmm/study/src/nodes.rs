//! Descriptions of nodes that are built in, for `node.model`.

use nodescope_plugin_pipeline::{Core, DescriptionError};

/// Names and texts.
const NODES: &[(&str, &str)] = &[
    ("westmere", include_str!("../nodes/westmere.toml")),
    ("sandy-bridge", include_str!("../nodes/sandy-bridge.toml")),
    (
        "skylake-server",
        include_str!("../nodes/skylake-server.toml"),
    ),
    (
        "ice-lake-server",
        include_str!("../nodes/ice-lake-server.toml"),
    ),
    (
        "sapphire-rapids",
        include_str!("../nodes/sapphire-rapids.toml"),
    ),
    (
        "granite-rapids",
        include_str!("../nodes/granite-rapids.toml"),
    ),
    ("zen2", include_str!("../nodes/zen2.toml")),
    ("zen4", include_str!("../nodes/zen4.toml")),
    ("zen5", include_str!("../nodes/zen5.toml")),
];

/// A description of a node that is built in: frequency, core, caches and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeDescription {
    /// Name, as a study has it in `node.model`.
    pub name: &'static str,
    /// The description, as TOML with the keys of a study.
    pub text: &'static str,
}

impl NodeDescription {
    /// Returns all descriptions that are built in, the oldest processor of each vendor first.
    pub fn all() -> impl Iterator<Item = NodeDescription> {
        NODES
            .iter()
            .map(|&(name, text)| NodeDescription { name, text })
    }

    /// Returns the description of this name; `None` if there is none.
    pub fn find(name: &str) -> Option<NodeDescription> {
        Self::all().find(|node| node.name == name)
    }

    /// Returns the name for people: the first line of the text, which is a comment.
    pub fn title(&self) -> &'static str {
        let line = self.text.lines().next().unwrap_or_default();
        line.trim_start_matches(['#', ' '])
    }

    /// Returns the description of its core.
    ///
    /// # Errors
    ///
    /// If the text has no valid section `[core]`. A built-in text has one.
    pub fn core(&self) -> Result<Core, DescriptionError> {
        let table: toml::Table = self.text.parse().map_err(Box::new)?;
        let core = table.get("core").map(toml::to_string);
        Core::from_toml(&core.and_then(Result::ok).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_title_and_its_core() {
        for node in NodeDescription::all() {
            assert_eq!(NodeDescription::find(node.name), Some(node));
            assert!(node.title().len() > 10, "{}: {}", node.name, node.title());
            let core = node.core().unwrap();
            assert_eq!(core.name, node.name);
            // The head says so where no run was compared with a machine.
            let says = node.text.contains("# Not validated: ");
            assert_eq!(says, !core.validated, "{}", node.name);
        }
        assert_eq!(NodeDescription::find("zen"), None);
    }

    #[test]
    fn each_core_has_a_node() {
        let nodes: Vec<&str> = NodeDescription::all().map(|node| node.name).collect();
        assert_eq!(Core::presets().collect::<Vec<_>>(), nodes);
    }
}
