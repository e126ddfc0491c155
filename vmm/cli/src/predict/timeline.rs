//! Writes the predicted run as a trace.

use std::path::Path;

use nodescope_loop_tree::Program;
use nodescope_predict::timeline::Timeline;
use nodescope_predict::{Prediction, trace};

use crate::exit::{Exit, Failure};
use crate::results::{is_stream, new_file};

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
    let written = |path: &Path| {
        let written = trace::write_trace(program, &nodes, timeline, &name, path);
        written.map_err(|error| Failure::of(Exit::Host, &error))
    };
    if is_stream(file) {
        return written(file);
    }
    let partial = new_file(file).map_err(Failure::io("write", file))?;
    written(partial.path())?;
    let persisted = partial.persist(file);
    persisted
        .map(drop)
        .map_err(|error| Failure::io("write", file)(error.error))
}
