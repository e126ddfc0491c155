//! A prediction: the time, its interval, and where it goes.

use std::collections::BTreeMap;

use nodescope_loop_tree::{Converted, Origin, Program, ProgramSize};
use nodescope_trace::Place;
use serde::Serialize;

use crate::cluster::{Cluster, FitError};
use crate::code::Code;
use crate::delays::Delays;
use crate::interpreter::{Options, interpret};
use crate::interval::{Interval, intervals};
use crate::placed::Placed;
use crate::reduce::{Fragment, Reduced};
use crate::result::{Efficiencies, Outcome};
use crate::sensitivity::Sensitivity;
use crate::timeline::Phases;

/// Most rows (ranks or groups of ranks) and columns (intervals of time) of the phases that are reported.
const ROWS: u32 = 64;
const COLUMNS: u32 = 240;

/// Notes on programs that receive from any source.
const ANY_SOURCE: &str = "receives from any source, and waits for some of several requests, take the message that comes first here; that message has the part of the one that came first in the trace; work that depends on the message is as traced";
const ANY_SOURCE_AS_TRACED: &str = "receives from any source, and waits for some of several requests, take messages in the traced order: taken as they come here, the program would not come to its end";

/// Options of a prediction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of interpretations with bursts drawn anew (replicas), for the interval.
    pub replicas: u32,
    /// Seed of the first replica; each further replica takes the next number.
    pub seed: u64,
    /// Greatest delay of a rank's beginning in the replicas, picoseconds.
    pub stagger: u64,
    /// True to report the critical path.
    pub critical_path: bool,
    /// Most links to report.
    pub links: usize,
    /// True to report each rank's states over time.
    pub timeline: bool,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            replicas: 40,
            seed: 1,
            stagger: 0,
            critical_path: true,
            links: 10,
            timeline: false,
        }
    }
}

/// A section of the program: from when the first rank has passed the first mark until the last rank has passed the second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// Time of the section where the program was traced, picoseconds.
    pub traced: u64,
    /// Predicted time of the section, picoseconds.
    pub time: u64,
    /// Interval of the section's time; `None` as that of the whole time.
    pub interval: Option<Interval>,
}

/// Time of the traced run in a measurement window. In a window clocks also count the stalls that the models find, so that bursts last
/// longer than outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WindowTime {
    /// Name of the window.
    pub window: String,
    /// Part of the program's traced time in which the window was open, picoseconds.
    pub time: u64,
    /// Part of the section's traced time in which the window was open, picoseconds; `None` without a section.
    pub section: Option<u64>,
}

/// Time of bursts outside windows that were converted to the clock of the windows. Displays as a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ConvertedTime {
    /// Time of the bursts as traced, picoseconds, of all ranks together.
    pub traced: u64,
    /// Time of the bursts on the clock of the windows, picoseconds.
    pub time: u64,
    /// Part of the traced time whose call sites had bursts in windows, picoseconds.
    pub matched: u64,
}

impl From<Converted> for ConvertedTime {
    fn from(of: Converted) -> ConvertedTime {
        ConvertedTime {
            traced: of.traced,
            time: of.time,
            matched: of.matched,
        }
    }
}

impl std::fmt::Display for ConvertedTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let factor = self.time as f64 / self.traced as f64;
        write!(
            f,
            "bursts outside windows last {factor:.2} times as long here as when traced, as in windows"
        )
    }
}

/// Prediction of a program's time on a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Version of the JSON format.
    pub format: u32,
    /// Cluster for which the program is predicted.
    pub cluster: Cluster,
    /// Number of ranks.
    pub ranks: u32,
    /// Placement of the ranks, here and where they were traced.
    pub placement: Placed,
    /// Differences between the traced run and the cluster that change what the prediction means, one sentence each.
    pub differences: Vec<String>,
    /// Measurement windows within the traced time.
    pub windows: Vec<WindowTime>,
    /// Bursts outside these windows that were converted to the clock of the windows; `None` if bursts last as traced.
    pub converted: Option<ConvertedTime>,
    /// Time of the program where it was traced, from the end of its initialisation, picoseconds; `None` if unknown.
    pub traced: Option<u64>,
    /// Section of the program; `None` if none was requested.
    pub section: Option<Section>,
    /// The interpretation with the bursts as they were traced.
    pub outcome: Outcome,
    /// Interval of the time; `None` without replicas, without anything that varies or is uncertain, or if the program did not come to its
    /// end.
    pub interval: Option<Interval>,
    /// Interval of the section between the first two marks, until [`Prediction::between`] moves it there.
    #[serde(skip)]
    section_interval: Option<Interval>,
    /// Fragments that were reduced.
    pub fragments: Vec<Fragment>,
    /// States of each rank over time; `None` if they were not requested.
    pub phases: Option<Phases>,
    /// Efficiencies; `None` if the program did not come to its end.
    pub efficiencies: Option<Efficiencies>,
    /// Size of the loop trees.
    #[serde(rename = "model")]
    pub loop_trees: LoopTreeSize,
    /// How the time depends on the network and the ranks; `None` if it was not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensitivity: Option<Sensitivity>,
    /// Which computations and calls cause the waiting; `None` if it was not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delays: Option<Delays>,
    /// Places of the program's call sites in the source, by address, as far as they are known.
    pub places: BTreeMap<String, Place>,
    /// Notes on results that are less exact than possible.
    pub notes: Vec<String>,
}

/// Size of the program as loop trees: [`ProgramSize`] in the encoded form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LoopTreeSize {
    /// Operations of all ranks.
    pub operations: u64,
    /// Number of different operations.
    pub different_operations: u64,
    /// Number of different trees.
    pub trees: u64,
    /// Entries of the trees.
    pub entries: u64,
    /// Bytes of trees and operations.
    pub structure_bytes: u64,
    /// Number of burst values.
    pub bursts: u64,
    /// Bytes of the burst values.
    pub burst_bytes: u64,
    /// Bytes of the trace's file; `None` if unknown.
    pub trace_bytes: Option<u64>,
}

impl LoopTreeSize {
    fn new(size: ProgramSize) -> LoopTreeSize {
        LoopTreeSize {
            operations: size.operations,
            different_operations: size.different,
            trees: size.trees,
            entries: size.entries,
            structure_bytes: size.structure_bytes,
            bursts: size.bursts,
            burst_bytes: size.burst_bytes,
            trace_bytes: None,
        }
    }
}

/// Predicts a program's time on a cluster.
///
/// # Errors
///
/// A program that does not fit on the cluster, or a progress thread's share that cannot be predicted with its links.
pub fn predict(
    program: &Program,
    cluster: &Cluster,
    request: &Request,
) -> Result<Prediction, FitError> {
    run(program, &Code::new(program), cluster, request)
}

/// Predicts the time of a program with reduced fragments, on the cluster for which they were reduced. Bursts in fragments are not drawn
/// anew.
///
/// # Errors
///
/// As [`predict`].
pub fn predict_reduced(
    program: &Program,
    reduced: &Reduced,
    cluster: &Cluster,
    request: &Request,
) -> Result<Prediction, FitError> {
    let code = Code::with_fragments(&reduced.program, &reduced.fragments);
    let mut prediction = run(program, &code, cluster, request)?;
    prediction.notes.push(
        "within reduced fragments, waiting is what others' later entries cost, and bursts are not drawn anew".into(),
    );
    prediction.fragments = reduced.fragments.clone();
    Ok(prediction)
}

/// Predicts with `code`, in which fragments of `program` may be reduced. Efficiencies need an ideal network, on which reduced fragments
/// would cost something else, so there the whole `program` is interpreted.
fn run(
    program: &Program,
    code: &Code<'_>,
    cluster: &Cluster,
    request: &Request,
) -> Result<Prediction, FitError> {
    let mut options = Options {
        critical_path: request.critical_path,
        links: request.links,
        timeline: request.timeline,
        connections: true,
        matched: !code.any_source,
        ..Options::default()
    };
    let mut outcome = interpret(code, cluster, &options)?;
    let mut notes = program.notes.clone();
    if code.any_source {
        if !outcome.complete() {
            options.matched = true;
            outcome = interpret(code, cluster, &options)?;
        }
        notes.push(match options.matched {
            false => ANY_SOURCE.into(),
            true => ANY_SOURCE_AS_TRACED.into(),
        });
    }
    let plain = Options {
        critical_path: false,
        links: 0,
        matched: options.matched,
        ..Options::default()
    };
    let (mut efficiencies, mut around) = (None, None);
    if outcome.complete() {
        let ideal = interpret(&Code::new(program), &cluster.ideal_network(), &plain)?;
        efficiencies = Some(Efficiencies::new(&outcome, &ideal));
        around = intervals(code, cluster, &plain, &outcome, request)?;
    }
    let (interval, section_interval) = around.map(|around| (around.time, around.section)).unzip();
    let ranks = program.ranks.len() as u32;
    let origin = &program.origin;
    let nodes = cluster.place_ranks(ranks, origin)?;
    let placement = Placed::new(cluster, &nodes, origin);
    let crossing = outcome.connections.map(|of| of.pairs);
    // A program that stopped early may have had messages yet to send, and fragments hide theirs.
    let crossing = crossing.filter(|_| outcome.complete() && code.fragments.is_empty());
    let windows = origin.windows.iter().map(|window| WindowTime {
        window: window.name.clone(),
        time: window.closed.saturating_sub(window.opened),
        section: None,
    });
    Ok(Prediction {
        format: 1,
        cluster: cluster.clone(),
        ranks,
        differences: placement.differences(ranks, crossing),
        placement,
        windows: windows.collect(),
        converted: origin.converted.map(ConvertedTime::from),
        traced: None,
        section: None,
        fragments: Vec::new(),
        phases: (outcome.timeline.as_ref())
            .map(|timeline| timeline.phases(code.program, ROWS, COLUMNS)),
        outcome,
        interval,
        section_interval: section_interval.flatten(),
        efficiencies,
        loop_trees: LoopTreeSize::new(program.size()),
        sensitivity: None,
        delays: None,
        places: origin.names.by_address(),
        notes,
    })
}

impl Prediction {
    /// Adds the section between two marks, whose times in the trace are given, with the windows that were open there. Adds nothing unless
    /// there are exactly two marks that all ranks passed, and the predicted program came to its end.
    pub fn between(&mut self, traced: &[Option<(u64, u64)>], origin: &Origin) {
        if let (&[Some(from), Some(to)], &[start, end]) = (traced, &*self.outcome.marks)
            && self.outcome.complete()
        {
            self.section = Some(Section {
                traced: to.1.saturating_sub(from.0),
                time: end.1.saturating_sub(start.0),
                interval: self.section_interval.take(),
            });
            for (told, window) in self.windows.iter_mut().zip(&origin.windows) {
                told.section = Some(window.within(from.0, to.1));
            }
        }
    }

    /// Returns the prediction as JSON; `SCHEMA.md` describes the format.
    pub fn json(&self) -> String {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        // The ratios stand beside the numbers from which they are computed.
        if let (Some(of), Some(object)) = (
            &self.efficiencies,
            value
                .get_mut("efficiencies")
                .and_then(serde_json::Value::as_object_mut),
        ) {
            object.insert("load_balance".into(), of.load_balance().into());
            object.insert("serialisation".into(), of.serialisation().into());
            object.insert("transfer".into(), of.transfer().into());
            object.insert("communication".into(), of.communication().into());
            object.insert("parallel".into(), of.parallel().into());
        }
        let mut text = serde_json::to_string_pretty(&value).unwrap_or_default();
        text.push('\n');
        text
    }
}
