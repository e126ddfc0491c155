//! The search for causes: the best remedy is applied, and all others are asked again.

use std::collections::BTreeMap;

use nodescope_loop_tree::Sequences;
use nodescope_predict::FitError;

use crate::cause::{Cause, Class, Kind, LEAST_GAIN, MOST_CAUSES, Place, RuledOut, Verdict};
use crate::checks::{Candidate, Subject, all};
use crate::code::MeasuredCode;
use crate::edit::{State, stretches};
use crate::replay::{Link, Replay};
use crate::text::{place, remedy, shown, what};

/// Most entries of sequences, over which candidates are replayed.
const MOST_ENTRIES: usize = 1_000_000;
/// A cause that names its place in the program comes before another placement, or before a better network, if it gains at least this part of
/// what these gain.
const BEFORE_PLACEMENT: f64 = 0.5;
const BEFORE_NETWORK: f64 = 0.4;
/// Of remedies that gain as much, the first is the one that changes least of the program: a barrier before the work of each step, this work
/// before another collective operation, and the imbalance of one computation before a rank that is slow everywhere.
const BEFORE_VARYING_WORK: f64 = 0.95;
const BEFORE_COLLECTIVE: f64 = 0.9;
const BEFORE_SLOW_RANK: f64 = 0.8;

/// Reason why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trace is too long.
    #[error(
        "the trace has {entries} calls, more than the {MOST_ENTRIES} of which causes are looked for; take a section of the run"
    )]
    TooLong {
        /// Calls of all ranks.
        entries: usize,
    },
    /// The replay came to no end.
    #[error("the replay of the trace comes to no end; `nodescope predict` says why")]
    NoEnd,
    /// The program does not fit on its own cluster.
    #[error(transparent)]
    Fit(#[from] FitError),
}

/// Returns an error if sequences are too long for replays of many changes.
pub(crate) fn within_limits(sequences: &Sequences) -> Result<(), Error> {
    let entries = sequences.ranks.iter().map(|rank| rank.entries.len()).sum();
    match entries > MOST_ENTRIES {
        true => Err(Error::TooLong { entries }),
        false => Ok(()),
    }
}

/// Finds the causes of lost time in a traced program. `code` says which code computations run.
///
/// # Errors
///
/// A trace that is too long, or cannot be replayed.
pub fn verdict(
    sequences: &Sequences,
    link: Link,
    code: Option<&MeasuredCode<'_>>,
) -> Result<Verdict, Error> {
    within_limits(sequences)?;
    let traced = sequences.spans.iter().copied().max().unwrap_or(0);
    let replay = Replay::fitted(sequences, link)?;
    let mut state = State::new(sequences.clone(), replay.cluster);
    let replayed = state.time()?;
    if replayed == u64::MAX {
        return Err(Error::NoEnd);
    }
    let mut causes = Vec::new();
    let mut now = replayed;
    let mut ruled_out = Vec::new();
    while causes.len() < MOST_CAUSES {
        let gains = gains(&state, now)?;
        if causes.is_empty() {
            ruled_out = without_gain(&gains, traced);
        }
        let Some((gain, candidate)) = best(gains) else {
            break;
        };
        if (gain as f64) < LEAST_GAIN * traced as f64 {
            break;
        }
        let place = Place {
            code: code.and_then(|code| code_of(&candidate, &state.sequences, code)),
            ..place(&candidate.subject, &sequences.origin.names)
        };
        causes.push(Cause {
            kind: candidate.kind,
            class: match candidate.kind {
                // Only the user knows which messages the computation needs.
                Kind::Overlap => Class::Bound,
                _ => Class::Replayed,
            },
            gain_ps: gain,
            gain: gain as f64 / traced.max(1) as f64,
            what: what(&candidate, &place),
            place,
            remedy: remedy(candidate.kind).to_owned(),
        });
        state = candidate.edit.apply(&state);
        now = now.saturating_sub(gain);
    }
    Ok(Verdict {
        traced_ps: traced,
        replayed_ps: replayed,
        causes,
        remedied_ps: now,
        ruled_out,
        start_up_ps: traced.saturating_sub(replayed),
        quality: quality(sequences, traced, replayed),
    })
}

/// Returns the code that makes a rank's computation longer than the others'.
fn code_of(
    candidate: &Candidate,
    sequences: &Sequences,
    code: &MeasuredCode<'_>,
) -> Option<String> {
    let Subject::Computation { stretch, rank, .. } = candidate.subject else {
        return None;
    };
    let computed = |rank: usize| {
        let all = stretches(&sequences.ranks[rank].entries);
        let same = all.filter(|(of, _)| *of == stretch);
        same.map(|(_, entry)| entry.burst.time as f64).sum()
    };
    code.excess(sequences, stretch, rank as usize, &computed)
}

/// Returns the gain of each candidate, picoseconds.
fn gains(state: &State, now: u64) -> Result<Vec<(u64, Candidate)>, Error> {
    let replay = Replay {
        cluster: state.cluster.clone(),
    };
    let outcome = replay.outcome(&state.sequences)?;
    let mut gains = Vec::new();
    for candidate in all(state, &outcome) {
        let changed = candidate.edit.apply(state);
        let time = changed.time()?;
        gains.push((now.saturating_sub(time), candidate));
    }
    Ok(gains)
}

/// Returns the candidate with the largest gain. What the user can change in the program comes first, and the network last.
fn best(gains: Vec<(u64, Candidate)>) -> Option<(u64, Candidate)> {
    let weight = |(gain, candidate): &(u64, Candidate)| {
        let part = match candidate.kind {
            Kind::VaryingWork => BEFORE_VARYING_WORK,
            Kind::Collective => BEFORE_COLLECTIVE,
            Kind::SlowRank => BEFORE_SLOW_RANK,
            Kind::Placement => BEFORE_PLACEMENT,
            Kind::Latency | Kind::Bandwidth => BEFORE_NETWORK,
            _ => 1.0,
        };
        (*gain as f64 * part) as u64
    };
    gains.into_iter().max_by_key(weight)
}

fn without_gain(gains: &[(u64, Candidate)], traced: u64) -> Vec<RuledOut> {
    let mut most: BTreeMap<Kind, u64> = Kind::OF_TRACE.into_iter().map(|kind| (kind, 0)).collect();
    for (gain, candidate) in gains {
        let most = most.entry(candidate.kind).or_default();
        *most = (*most).max(*gain);
    }
    let share = |(kind, gain): (Kind, u64)| RuledOut {
        kind,
        gain: gain as f64 / traced.max(1) as f64,
    };
    let all = most.into_iter().map(share);
    all.filter(|out| out.gain < LEAST_GAIN).collect()
}

/// Returns sentences on what makes gains less certain.
pub(crate) fn quality(sequences: &Sequences, traced: u64, replayed: u64) -> Vec<String> {
    let mut said = Vec::new();
    let share = LEAST_GAIN * traced as f64;
    if replayed as f64 > traced as f64 + share {
        said.push(format!(
            "the replay takes {} more than the traced run, so that gains are uncertain",
            shown(replayed - traced)
        ));
    }
    if traced as f64 > replayed as f64 + share {
        said.push(format!(
            "the run takes {} more than its replay: MPI makes connections at first use, which the replay does not have",
            shown(traced - replayed)
        ));
    }
    said.extend(sequences.notes.iter().cloned());
    said
}
