//! Writes the predicted run as a trace.

use std::path::Path;

use nodescope_loop_tree::Program;
use nodescope_predict::timeline::Timeline;
use nodescope_predict::{Prediction, trace};

use crate::exit::{Exit, Failure};

/// Writes the trace of a prediction to `file`, completely or not at all.
pub fn write(
    prediction: &Prediction,
    program: &Program,
    timeline: &Timeline,
    file: &Path,
) -> Result<(), Failure> {
    let nodes = prediction
        .cluster
        .place_ranks(prediction.ranks, &program.origin);
    let nodes = nodes.map_err(|error| Failure::of(Exit::Study, &error))?;
    let name = format!("predicted for {}", prediction.cluster.name);
    let partial = file.with_extension("partial");
    trace::write_trace(program, &nodes, timeline, &name, &partial).map_err(|error| {
        // An incomplete file is of no use, and takes space on a full disk.
        let _ = std::fs::remove_file(&partial);
        Failure::of(Exit::Host, &error)
    })?;
    std::fs::rename(&partial, file).map_err(Failure::io("write", file))
}
