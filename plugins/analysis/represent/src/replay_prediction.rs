//! Prediction of the whole program from the replays of representatives.

use nodescope_loop_tree::Program;
use nodescope_loop_tree::Sequences;
use nodescope_predict::cluster::FitError;
use nodescope_predict::{Cluster, Prediction, Request, Speed, predict};

use crate::assignment::Assignment;

/// A prediction from replays.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayPrediction {
    /// Version of this format.
    pub format: u32,
    /// The replayed rank whose computation each rank has, in ascending order of the ranks.
    pub assignments: Vec<Assignment>,
    /// Prediction of the program with the replayed computation.
    pub prediction: Prediction,
}

impl ReplayPrediction {
    /// Predicts the time of a program whose computation was replayed on the target. Bursts are not scaled again, whatever speed the
    /// cluster file states.
    ///
    /// # Errors
    ///
    /// Fails if the program does not fit on the cluster.
    pub fn new(
        sequences: &Sequences,
        assignments: Vec<Assignment>,
        cluster: &Cluster,
        request: &Request,
    ) -> Result<ReplayPrediction, FitError> {
        let stated = cluster.speed;
        let mut cluster = cluster.clone();
        cluster.speed = Speed::Factor(1.0);
        let mut prediction = predict(&Program::new(sequences), &cluster, request)?;
        if stated != cluster.speed {
            prediction.notes.push(
                "the cluster file's speed of nodes is not applied: replayed computation is that of the target".into(),
            );
        }
        prediction.traced = sequences.spans.iter().copied().max();
        Ok(ReplayPrediction {
            format: 1,
            assignments,
            prediction,
        })
    }

    /// Returns the prediction as JSON; `SCHEMA.md` describes it.
    pub fn json(&self) -> String {
        // The prediction's own JSON has ratios in addition to its fields.
        let prediction: serde_json::Value =
            serde_json::from_str(&self.prediction.json()).unwrap_or_default();
        let value = serde_json::json!({
            "format": self.format,
            "given": self.assignments,
            "prediction": prediction,
        });
        let mut text = serde_json::to_string_pretty(&value).unwrap_or_default();
        text.push('\n');
        text
    }
}
