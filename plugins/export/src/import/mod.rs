//! Imports of other tools' traces into nodescope's format.

mod build;
mod simgrid;

pub(crate) use build::Builder;

use std::path::{Path, PathBuf};

use crate::error::ImportError;

/// Summary of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Number of ranks in the new trace.
    pub ranks: u32,
    /// Number of MPI calls in the new trace.
    pub calls: u64,
    /// Notes for the user on data that the new trace lacks or shows differently.
    pub notes: Vec<String>,
}

/// Converts an OTF2 archive (its anchor file, or the folder that contains it) or a SimGrid time-independent trace (the file that smpirun
/// replays: actions, or a list of files with actions) into the trace `output`. If the import fails, no new file remains, and an existing
/// file at `output` stays as it was.
pub fn import(input: &Path, output: &Path) -> Result<Imported, ImportError> {
    let input = find(input)?;
    let name = input.file_stem().unwrap_or_default().to_string_lossy();
    let mut builder = Builder::new(&name);
    let archive = input.extension().is_some_and(|kind| kind == "otf2");
    let notes = match archive {
        true => crate::otf2::read(&input, &mut builder)?,
        false => simgrid::read(&input, &mut builder)?,
    };
    let mut imported = builder.write(output)?;
    imported.notes = notes;
    Ok(imported)
}

/// Returns the file to read: `input` itself, or the only `.otf2` or `.ti` file in it if `input` is a folder.
fn find(input: &Path) -> Result<PathBuf, ImportError> {
    if !input.is_dir() {
        return Ok(input.into());
    }
    let entries = std::fs::read_dir(input).map_err(ImportError::io("read", input))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let kind = path.extension().and_then(|kind| kind.to_str());
            path.is_file() && matches!(kind, Some("otf2" | "ti"))
        })
        .collect();
    match (found.pop(), found.is_empty()) {
        (Some(path), true) => Ok(path),
        (Some(_), false) => Err(ImportError::Content {
            file: input.into(),
            what: "holds several traces; name one".into(),
        }),
        (None, _) => Err(ImportError::Unknown(input.into())),
    }
}
