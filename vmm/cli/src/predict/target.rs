//! The cluster of a prediction: a cluster file, or a study.

use std::path::Path;

use nodescope_predict::ClusterFile;
use nodescope_study::Study;

use crate::calibrate::retarget::of_study;
use crate::exit::{Exit, Failure};

/// Note of a prediction for a study without the costs of messages.
const NO_COSTS: &str = "the cluster is a study, which does not tell what messages cost their sender and receiver: they cost nothing here. nodescope calibrate run measures the costs; give its file as the cluster, or by --costs";

/// Reads the cluster in `path`, which describes a cluster or a study. A study's software costs are those of the cluster file `costs`.
/// Returns a note for the prediction, too, if the costs are missing.
pub fn load(
    path: &Path,
    costs: Option<&Path>,
) -> Result<(ClusterFile, Option<&'static str>), Failure> {
    let wrong = |problems| Failure::of(Exit::Study, &problems);
    if !is_study(path) {
        return match costs {
            None => Ok((ClusterFile::load(path).map_err(wrong)?, None)),
            Some(_) => Err(Failure::new(
                Exit::Study,
                format!(
                    "{}: is a cluster file, which has costs of its own; --costs goes with a study, or use nodescope calibrate retarget",
                    path.display()
                ),
            )),
        };
    }
    let study = Study::load(path).map_err(wrong)?;
    let file = ClusterFile::new(path, &of_study(&study, costs)?);
    file.with(&[]).map_err(wrong)?;
    Ok((file, costs.is_none().then_some(NO_COSTS)))
}

/// Returns whether a file describes a study: only studies have a job or a section of their cluster.
fn is_study(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let table = text.parse::<toml::Table>().unwrap_or_default();
    ["job", "cluster"]
        .iter()
        .any(|key| table.contains_key(*key))
}
