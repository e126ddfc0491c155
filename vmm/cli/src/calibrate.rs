//! `nodescope calibrate`.

pub mod args;
mod read;
pub mod retarget;
mod run;

use std::path::Path;

use nodescope_calibrate::fit::fit;
use nodescope_calibrate::{ClusterFile, FitOptions, FittedPath};
use nodescope_study::quantity::Bytes;

use crate::args::Calibrate;
use crate::exit::{Exit, Failure};
use crate::results;
use crate::terminal::print;

/// Fits a cluster's network to measurements, writes the cluster file and prints a summary.
pub fn calibrate(args: &Calibrate) -> Result<Exit, Failure> {
    match &args.way {
        Some(args::Way::Run(args)) => return run::run(args),
        Some(args::Way::Retarget(args)) => return retarget::retarget(args),
        None => {}
    }
    let Some(output) = &args.output else {
        return Err(Failure::new(
            Exit::Study,
            "--output names no cluster file to write",
        ));
    };
    results::refuse_existing(output, args.force)?;
    let stem = output.file_stem().unwrap_or_default();
    let file = ClusterFile {
        name: (args.name.clone()).unwrap_or_else(|| stem.to_string_lossy().into_owned()),
        cores: args.cores,
        network: path(
            args.network.as_deref(),
            args.exchanges.as_deref(),
            args.eager_limit,
        )?,
        memory: path(args.memory.as_deref(), None, args.memory_eager_limit)?,
        library: nodescope_predict::Library::OpenMpi,
        connection_buffer: None,
        accesses_in_calls: false,
        checked: None,
    };
    results::write(output, &file.text())?;
    print(&format!("{}{}\n", file.summary(), output.display()))?;
    Ok(Exit::Ok)
}

fn path(
    source: Option<&Path>,
    exchanged: Option<&Path>,
    eager_limit: Option<Bytes>,
) -> Result<Option<FittedPath>, Failure> {
    let Some(source) = source else {
        return Ok(None);
    };
    let options = FitOptions {
        eager_limit: eager_limit.map(|Bytes(bytes)| bytes),
        wire: None,
    };
    let exchanges = exchanged.map(|source| read::exchanges(source, None));
    let exchanges = exchanges.transpose().map_err(read::failure)?;
    let measured = read::measurements(source).map_err(read::failure)?;
    let fit = fit(&measured, exchanges.as_ref(), options).map_err(read::failure)?;
    Ok(Some(FittedPath {
        source: source.display().to_string(),
        fit,
    }))
}
