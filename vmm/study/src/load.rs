//! Reader of study files. The result is a [`Study`] or a list of all problems of the file.

use std::collections::BTreeSet;
use std::path::Path;

use nodescope_config::document::{self, Document};
use nodescope_config::problem::Problems;

use crate::plan::Study;
use crate::sections;
use crate::sections::{EXCLUDES, NodeModel};

impl Study {
    /// Reads and checks the study in file `path`.
    ///
    /// # Errors
    ///
    /// All problems of the study, in the order of the file.
    pub fn load(path: &Path) -> Result<Study, Problems> {
        document::load(path, "a study", Study::parse)
    }

    /// Checks the text of a study. Paths in the text, except `results.directory`, are relative to the folder of `file`, a path
    /// that is not read and need not exist.
    ///
    /// # Errors
    ///
    /// As [`Study::load`].
    pub fn parse(file: &Path, text: &str) -> Result<Study, Problems> {
        let (study, mut positions) = read(file, text).checked?;
        // What a description of a node gives has no line in the study.
        let lines = text.lines().count();
        positions.retain(|_, position| position.line <= lines);
        Ok(Study {
            text: text.to_owned(),
            positions,
            ..study
        })
    }
}

/// Returns the names of all fields that the readers look up in a text, for a test that compares them with the reference. In the names,
/// `window[]` stands for a list of tables, and `*` for a name that the user chooses.
#[doc(hidden)]
pub fn known_fields(file: &Path, text: &str) -> BTreeSet<String> {
    read(file, text).known
}

fn read(file: &Path, text: &str) -> Document<Study> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let model = named_model(text).map(|name| NodeModel::find(folder, &name));
    let base = model.as_ref().and_then(NodeModel::base);
    let base = base.map(|base| (base, EXCLUDES));
    document::read_based(file, text, base, "a study", |root| {
        sections::study(file, root)
    })
}

/// Returns the value of `node.model`; `None` if the study has none, or cannot be read.
fn named_model(text: &str) -> Option<String> {
    let study: toml::Table = text.parse().ok()?;
    Some(study.get("node")?.get("model")?.as_str()?.to_owned())
}
