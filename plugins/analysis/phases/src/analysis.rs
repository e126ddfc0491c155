//! Phases of a program: the step, the classes, and the figures of each phase.

use std::collections::BTreeSet;

use linfa_clustering::KMeansError;
use serde::Serialize;

use crate::classes::{ClassChoice, Classes, Vectors, runs};
use crate::mapping::Mapping;
use crate::message::{Include, Kinds, Messages, Traffic};
use crate::step::{Matrix, Steps};

/// Version of the JSON that this program writes.
pub const FORMAT: u32 = 1;
/// Numbers of steps that are tried where the step is not given: from the published tenth of the run to sixteen times as many, each
/// about the square root of two times the one before.
pub const CANDIDATES: [usize; 9] = [10, 14, 20, 28, 40, 56, 80, 112, 160];
/// Least mean length of phases, in steps of the finest candidate of a row, with which the row counts. A row of shorter phases shows single
/// iterations, or how the iterations fall into steps.
pub const LEAST_STEPS: usize = 3;
/// Most steps of a run: k-means over more takes minutes.
pub const MOST_STEPS: usize = 1024;

/// Request for an analysis: step, classes and seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Length of a step, picoseconds; `None` leaves the choice to the data.
    pub step: Option<u64>,
    /// Number of classes; `None` leaves the choice to the data.
    pub classes: Option<usize>,
    /// Seed of k-means.
    pub seed: u64,
}

/// Reason for which phases cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum PhasesError {
    /// More steps than can be compared.
    #[error(
        "a step of {step} ps cuts the run of {span} ps into {steps} steps, more than {MOST_STEPS}; give a longer step"
    )]
    TooManySteps {
        /// Length of the step in picoseconds.
        step: u64,
        /// Length of the run in picoseconds.
        span: u64,
        /// Number of steps in the run.
        steps: usize,
    },
    /// The clustering library failed.
    #[error("the steps cannot be clustered: {0}")]
    Clustering(#[from] KMeansError),
}

/// Reason for which the length of a step was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepReason {
    /// The user gave the length of the step.
    Given,
    /// The length is the middle one of the longest row of successive candidates with the same sequence of classes.
    Stable,
    /// No two successive candidates have the same sequence of classes, so the length is the published tenth of the run.
    Tenth,
}

/// Length of a step that was tried, with its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Number of steps in the run.
    pub steps: usize,
    /// Length of the step in picoseconds.
    pub step: u64,
    /// Number of classes with this step.
    pub classes: usize,
    /// Number of phases with this step.
    pub phases: usize,
    /// True in the row of candidates around the chosen step, which all give the same sequence of classes.
    pub agrees: bool,
}

/// Least, mean and greatest value over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Least value.
    pub min: u64,
    /// Mean value.
    pub mean: f64,
    /// Greatest value.
    pub max: u64,
}

impl Spread {
    /// Returns the spread of some values; zeros if there are none.
    pub fn of(values: &[u64]) -> Spread {
        let sum: u128 = values.iter().map(|&value| u128::from(value)).sum();
        Spread {
            min: values.iter().copied().min().unwrap_or(0),
            mean: sum as f64 / values.len().max(1) as f64,
            max: values.iter().copied().max().unwrap_or(0),
        }
    }
}

/// Figures of an interval's communication.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Messages and bytes.
    #[serde(flatten)]
    pub total: Traffic,
    /// Number of different ranks that a rank sends to or receives from, without itself.
    pub degree: Spread,
    /// Bytes that a rank sends.
    pub sent: Spread,
}

impl Figures {
    /// Returns the figures of a matrix over `ranks` ranks.
    pub fn new(matrix: &Matrix, ranks: u32) -> Figures {
        let mut partners: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); ranks as usize];
        let mut sent = vec![0u64; ranks as usize];
        for (from, to, traffic) in matrix.cells() {
            sent[from as usize] = sent[from as usize].saturating_add(traffic.bytes);
            if from != to {
                partners[from as usize].insert(to);
                partners[to as usize].insert(from);
            }
        }
        let degrees: Vec<u64> = partners.iter().map(|of| of.len() as u64).collect();
        Figures {
            total: matrix.total(),
            degree: Spread::of(&degrees),
            sent: Spread::of(&sent),
        }
    }
}

/// A run of successive steps of one class, as long as possible.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// Number of the phase's class.
    pub class: u32,
    /// Number of the phase's first step, from 0.
    pub first_step: usize,
    /// Number of steps in the phase.
    pub steps: usize,
    /// Beginning of the phase, picoseconds of the trace.
    pub from: u64,
    /// End of the phase, picoseconds of the trace.
    pub to: u64,
    /// Figures of the phase's communication.
    #[serde(flatten)]
    pub figures: Figures,
    /// Messages from rank to rank: `[from, to, messages, bytes]`.
    pub matrix: Matrix,
}

/// A class of steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Class {
    /// Number of the class.
    pub class: u32,
    /// Number of steps in the class.
    pub steps: usize,
    /// Number of phases of the class.
    pub phases: usize,
    /// Messages and bytes of all steps of the class.
    #[serde(flatten)]
    pub total: Traffic,
}

/// The phases of a program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// Version of the JSON output: [`FORMAT`].
    pub format: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Beginning of the first step, picoseconds of the trace.
    pub from: u64,
    /// End of the program, picoseconds of the trace.
    pub to: u64,
    /// Length of a step, picoseconds.
    pub step: u64,
    /// Reason for the length of the step.
    pub step_reason: StepReason,
    /// Lengths of steps that were tried; empty if the user gave the length.
    pub candidates: Vec<Candidate>,
    /// Kinds of messages that are counted beside those of point-to-point calls.
    pub include: Include,
    /// Messages of the trace by kind, counted or not.
    pub kinds: Kinds,
    /// The number of classes, and their stability.
    pub class_choice: ClassChoice,
    /// Class of each step.
    pub step_classes: Vec<u32>,
    /// Classes of steps, by number.
    pub classes: Vec<Class>,
    /// The phases in order.
    pub phases: Vec<Phase>,
    /// Figures of the whole run.
    pub whole: Figures,
    /// Messages of the whole run: `[from, to, messages, bytes]`.
    pub matrix: Matrix,
    /// Placements on a cluster, if one was given.
    pub mapping: Option<Mapping>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Finds the phases of a program.
///
/// # Errors
///
/// A step that is too short, or a failure of the clustering library.
pub fn analyse(messages: &Messages, request: &Request) -> Result<Analysis, PhasesError> {
    let mut candidates = Vec::new();
    let (steps, step_reason) = match request.step {
        Some(step) => (Steps::of_length(messages, step), StepReason::Given),
        None => choose(messages, request, &mut candidates)?,
    };
    if steps.count > MOST_STEPS {
        return Err(PhasesError::TooManySteps {
            step: steps.length,
            span: messages.to.saturating_sub(messages.from),
            steps: steps.count,
        });
    }
    let vectors = Vectors::new(&steps.vectors(messages));
    let mut classes = vectors.classify(request.classes, request.seed)?;
    if request.step.is_none() {
        vectors.join_mixed(&mut classes);
    }
    vectors.compare(&mut classes)?;
    Ok(assemble(
        messages,
        request,
        &steps,
        step_reason,
        candidates,
        classes,
    ))
}

/// Chooses the step: the middle one of the longest row of successive candidates that give the same sequence of classes, of phases that
/// last several steps.
fn choose(
    messages: &Messages,
    request: &Request,
    candidates: &mut Vec<Candidate>,
) -> Result<(Steps, StepReason), PhasesError> {
    let mut tried: Vec<Steps> = Vec::new();
    let mut shapes: Vec<Vec<u32>> = Vec::new();
    for count in CANDIDATES {
        let steps = Steps::of_count(messages, count);
        // A run of few picoseconds has the same steps for several counts.
        if tried.contains(&steps) {
            continue;
        }
        let vectors = Vectors::new(&steps.vectors(messages));
        let mut classes = vectors.classify(request.classes, request.seed)?;
        vectors.join_mixed(&mut classes);
        let shape: Vec<u32> = runs(&classes.of).into_iter().map(|run| run.0).collect();
        candidates.push(Candidate {
            steps: steps.count,
            step: steps.length,
            classes: classes.choice.count,
            phases: shape.len(),
            agrees: false,
        });
        tried.push(steps);
        shapes.push(shape);
    }
    let (mut best, mut from) = (0..1, 0);
    for at in 1..=shapes.len() {
        if at == shapes.len() || shapes[at] != shapes[from] {
            let lasting = shapes[from].len() * LEAST_STEPS <= tried[at - 1].count;
            if at - from > best.len() && lasting {
                best = from..at;
            }
            from = at;
        }
    }
    if best.len() == 1 {
        return Ok((tried[0], StepReason::Tenth));
    }
    let middle = best.start + (best.len() - 1) / 2;
    for candidate in &mut candidates[best] {
        candidate.agrees = true;
    }
    Ok((tried[middle], StepReason::Stable))
}

fn assemble(
    messages: &Messages,
    request: &Request,
    steps: &Steps,
    step_reason: StepReason,
    candidates: Vec<Candidate>,
    classes: Classes,
) -> Analysis {
    let split = steps.split(&messages.list);
    let Classes { of, choice, .. } = classes;
    let phases: Vec<Phase> = runs(&of)
        .into_iter()
        .map(|(class, range)| {
            let mut matrix = Matrix::default();
            for step in &split[range.clone()] {
                matrix.add(&Matrix::new(step));
            }
            Phase {
                class,
                first_step: range.start,
                steps: range.len(),
                from: steps.begin(range.start),
                to: steps.begin(range.end).min(messages.to.max(messages.from)),
                figures: Figures::new(&matrix, messages.ranks),
                matrix,
            }
        })
        .collect();
    let mut all: Vec<Class> = Vec::new();
    let mut whole = Matrix::default();
    for phase in &phases {
        whole.add(&phase.matrix);
        // Classes are numbered as they first occur.
        if phase.class as usize == all.len() {
            all.push(Class {
                class: phase.class,
                steps: 0,
                phases: 0,
                total: Traffic::default(),
            });
        }
        let class = &mut all[phase.class as usize];
        class.steps += phase.steps;
        class.phases += 1;
        class.total.add_all(phase.figures.total);
    }
    let mut notes = messages.notes.clone();
    if messages.ranks == 1 {
        notes.push("the program has one rank, which can send to itself alone".into());
    }
    if messages.list.is_empty() {
        notes.push("no message is counted: the whole run is one silent phase".into());
    }
    if let Some(asked) = request.classes.filter(|&asked| asked > choice.count) {
        notes.push(format!(
            "{asked} classes are asked for, but {} of the steps differ: there are {} classes",
            choice.different, choice.count
        ));
    }
    if step_reason == StepReason::Tenth {
        notes.push("no two steps that were tried give the same sequence of classes: the step is a tenth of the run".into());
    }
    Analysis {
        format: FORMAT,
        ranks: messages.ranks,
        from: steps.from,
        to: messages.to.max(messages.from),
        step: steps.length,
        step_reason,
        candidates,
        include: messages.include,
        kinds: messages.kinds,
        class_choice: choice,
        step_classes: of,
        classes: all,
        phases,
        whole: Figures::new(&whole, messages.ranks),
        matrix: whole,
        mapping: None,
        notes,
    }
}
