//! Prediction of the whole program from the replays of representatives.

use nodescope_loop_tree::Program;
use nodescope_loop_tree::Sequences;
use nodescope_predict::cluster::FitError;
use nodescope_predict::{Cluster, Prediction, Request, Section, Speed, predict};
use serde::Serialize;

use crate::assignment::Assignment;

/// Reason for a factor by which traced bursts are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// The speed of nodes that the cluster file states.
    ClusterFile,
    /// The ratio of the clocks of the replays' nodes and the traced nodes.
    Clocks,
}

/// Prediction without replays, to compare with: the traced bursts, all scaled by one speed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WithoutReplay {
    /// Where the speed comes from.
    pub scaling: Scaling,
    /// The speed.
    pub speed: Speed,
    /// Predicted time of the program, picoseconds.
    pub time: u64,
    /// The section; `None` if none was requested.
    pub section: Option<Section>,
}

/// A prediction from replays.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayPrediction {
    /// Version of this format.
    pub format: u32,
    /// The replayed rank whose computation each rank has, in ascending order of the ranks.
    pub assignments: Vec<Assignment>,
    /// Prediction of the program with the replayed computation.
    pub prediction: Prediction,
    /// Prediction of the program with its traced computation at another speed; `None` if no speed is known, or if the program did not
    /// come to its end.
    pub without_replay: Option<WithoutReplay>,
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
            without_replay: None,
        })
    }

    /// Adds the prediction without replays: with the speed of the cluster file, or with `clocks`, the ratio of the replays' clock and
    /// the traced one, where the file has none. `traced` has the bursts as traced.
    ///
    /// # Errors
    ///
    /// Fails if the program does not fit on the cluster.
    pub fn compare(
        &mut self,
        traced: &Program,
        cluster: &Cluster,
        clocks: Option<f64>,
        marks: &[Option<(u64, u64)>],
    ) -> Result<(), FitError> {
        let (scaling, speed) = match (cluster.speed, clocks) {
            (Speed::Factor(1.0), None) => return Ok(()),
            (Speed::Factor(1.0), Some(ratio)) => (Scaling::Clocks, Speed::Factor(ratio)),
            (stated, _) => (Scaling::ClusterFile, stated),
        };
        let mut cluster = cluster.clone();
        cluster.speed = speed;
        let request = Request {
            replicas: 0,
            critical_path: false,
            links: 0,
            ..Request::default()
        };
        let mut other = predict(traced, &cluster, &request)?;
        other.between(marks, &traced.origin);
        self.without_replay = other.outcome.complete().then_some(WithoutReplay {
            scaling,
            speed,
            time: other.outcome.time,
            section: other.section,
        });
        Ok(())
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
            "without_replay": self.without_replay,
        });
        let mut text = serde_json::to_string_pretty(&value).unwrap_or_default();
        text.push('\n');
        text
    }
}
