//! Imports of other tools' traces into nodescope's format.
//!
//! `kind` recognises the format, and each format has a reader. Readers give calls to the builder, which keeps them outside of memory and
//! writes the trace. Where a format does not say which message a receive took, `matching` finds it.

mod build;
mod goal;
mod kind;
mod liballprof;
mod lines;
mod matching;
mod requests;
mod simgrid;
mod spool;

pub(crate) use build::{Builder, CallId, Patch};
pub(crate) use kind::KNOWN;
pub use kind::{Kind, recognise};

use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

use nodescope_hypercall::Function;

use crate::error::ImportError;

/// Summary of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Number of ranks in the new trace, of all jobs.
    pub ranks: u32,
    /// Number of jobs in the new trace.
    pub jobs: u32,
    /// Number of MPI calls in the new trace.
    pub calls: u64,
    /// Notes for the user on data that the new trace lacks or shows differently.
    pub notes: Vec<String>,
}

/// Converts a trace of another tool into the trace `output`. `input` is an OTF2 archive (its anchor file), a SimGrid time-independent
/// trace (the file that smpirun replays: actions, or a list of files with actions), the file of a rank of a liballprof trace, a GOAL
/// schedule, or the folder that contains one of these. The format is recognised by content. If the import fails, no new file remains, and
/// an existing file at `output` stays as it was.
pub fn import(input: &Path, output: &Path) -> Result<Imported, ImportError> {
    let (kind, file) = recognise(input)?;
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let mut builder = Builder::new(&name, output);
    let notes = match kind {
        Kind::Otf2 => crate::otf2::read(&file, &mut builder)?,
        Kind::Simgrid => simgrid::read(&file, &mut builder)?,
        Kind::Liballprof => liballprof::read(&file, &mut builder)?,
        Kind::Goal => goal::read(&file, &mut builder)?,
    };
    let mut imported = builder.write(output)?;
    imported.notes = notes;
    Ok(imported)
}

/// Returns the function of this name, such as `MPI_Send`.
pub(crate) fn function_named(name: &str) -> Option<Function> {
    static NAMES: LazyLock<HashMap<&str, Function>> = LazyLock::new(|| {
        let functions = Function::ALL.iter();
        functions
            .map(|&function| (function.name(), function))
            .collect()
    });
    NAMES.get(name).copied()
}
