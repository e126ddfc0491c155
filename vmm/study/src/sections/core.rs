//! Reader of `[core]` and `node.model`: the core whose micro-operations are timed in windows.

use std::path::{Path, PathBuf};

use nodescope_config::document::Base;
use nodescope_config::reader::Section;
use nodescope_machine::topology::NodeTopology;
use nodescope_plugin_pipeline::{Core, DescriptionError};
use nodescope_window::CoreSpec;

use crate::nodes::NodeDescription;

/// Keys of a study that take the place of other keys of its node description.
pub(crate) const EXCLUDES: &[(&str, &str)] = &[
    ("preset", "level"),
    ("latency", "local"),
    ("latency", "remote"),
];

/// A description of a node that a study names.
pub(crate) enum NodeModel {
    /// A built-in description or a file: name, text.
    Known(String, String),
    /// A description that cannot be had, with the reason.
    Missing(String),
}

impl NodeModel {
    /// Finds a description by the value of `node.model`. Anything with a dot or a slash is a path, relative to `folder`.
    pub(crate) fn find(folder: &Path, name: &str) -> NodeModel {
        if name.contains(['.', '/']) {
            let path: PathBuf = folder.join(name);
            return match std::fs::read_to_string(&path) {
                Ok(text) => NodeModel::Known(path.display().to_string(), text),
                Err(error) => NodeModel::Missing(format!(
                    "{} cannot be read: {error}; name a file that `nodescope node measure` has written, or one of {}",
                    path.display(),
                    names()
                )),
            };
        }
        match NodeDescription::find(name) {
            Some(node) => NodeModel::Known(format!("node {name}"), node.text.to_owned()),
            None => NodeModel::Missing(format!(
                "{name:?} is no node that is known; write one of {}, or the path of a file",
                names()
            )),
        }
    }

    pub(crate) fn base(&self) -> Option<Base<'_>> {
        match self {
            NodeModel::Known(name, text) => Some(Base { name, text }),
            NodeModel::Missing(_) => None,
        }
    }
}

fn names() -> String {
    let names: Vec<String> = NodeDescription::all()
        .map(|node| format!("{:?}", node.name))
        .collect();
    names.join(", ")
}

/// Reads the core's description; `None` if the study has none.
pub(super) fn read(
    folder: &Path,
    root: &Section<'_>,
    node: &Section<'_>,
    topology: &NodeTopology,
) -> Option<CoreSpec> {
    if let Some(item) = node.item("model")
        && let Some(name) = item.line("zen4")
        && let NodeModel::Missing(why) = NodeModel::find(folder, &name)
    {
        item.add_problem(why);
    }
    let item = root.item("core")?;
    let text = toml::to_string(&item.toml()).unwrap_or_default();
    match Core::from_toml(&text) {
        Ok(_) if topology.threads_per_core > 1 => {
            let field = "node.threads";
            root.source().problem_of(
                field,
                "is more than 1: how threads share a core is not modelled; leave out [core] and node.model, or set node.threads = 1",
            );
            None
        }
        Ok(_) => Some(CoreSpec { description: text }),
        Err(DescriptionError::Value { field, problem }) => {
            let field = format!("core.{field}");
            root.source().problem_of(&field, problem);
            None
        }
        Err(error) => {
            item.add_problem(error.to_string().trim().replace('\n', ", "));
            None
        }
    }
}
