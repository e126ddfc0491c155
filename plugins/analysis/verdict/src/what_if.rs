//! What a run would take if code, calls or the network were different: replays of the trace with changes, and the causal profile.
//!
//! The time of a run is the longest path through computations and messages. So a function that takes much time may gain nothing, where
//! other ranks take longer, and a function that is faster on one rank may gain more than its own time.

use std::collections::{BTreeMap, BTreeSet};

use nodescope_loop_tree::sequence::Entry;
use nodescope_loop_tree::{Action, CollectiveKind, Sequences};
use nodescope_predict::Cluster;
use serde::Serialize;

use crate::checks::balance;
use crate::edit::{Call, Edit, MILLION, Parts, State, Stretch, call, stretches};
use crate::replay::{Link, Replay};
use crate::shares::{Sample, Shares};
use crate::text::{at, between};
use crate::verdict::{Error, quality, within_limits};

/// Least share of the computing time, and largest number, of the functions and computations of a profile.
const LEAST_SHARE: f64 = 0.01;
const MOST_ROWS: usize = 12;

/// A change of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Functions keep parts of their costs, by rank and function; those that are not named keep all.
    Code(BTreeMap<(usize, u32), f64>),
    /// The computations of a rank keep a part of their time.
    Rank(usize, f64),
    /// A computation keeps a part of its time on all ranks.
    Computation(Stretch, f64),
    /// The computations of a node's ranks keep a part of their time.
    Node(u32, f64),
    /// The messages that calls send keep a part of their time: latency, time per byte and overheads.
    Messages(Vec<Call>, f64),
    /// Calls are left out.
    Without(Vec<Call>),
    /// Between the same two calls all ranks compute equally long.
    Balance,
    /// Messages take no time.
    IdealNetwork,
}

/// What a function or a computation gains, as shares of the run's time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the function, or the calls around the computation.
    pub place: String,
    /// Share of the computing time of all ranks.
    pub share: f64,
    /// Gain at 1.25 times the speed.
    pub quarter: f64,
    /// Gain at twice the speed.
    pub twice: f64,
    /// Gain at twice the speed by a run with the costs of code that a window measured; `None` if it was not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub twice_run: Option<f64>,
    /// Gain if the code takes no time.
    pub free: f64,
    /// Gain, below 0, if the code takes 1.25 times as long.
    pub slower: f64,
}

/// What a call gains that is left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallRow {
    /// The call and its place.
    pub place: String,
    /// Number of calls of all ranks.
    pub count: u64,
    /// Gain as a share of the run's time.
    pub gain: f64,
}

/// What faster code and fewer calls gain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CausalProfile {
    /// Functions of computations; empty where no window has sampled them.
    pub functions: Vec<Row>,
    /// Computations between two calls.
    pub computations: Vec<Row>,
    /// Collective calls.
    pub calls: Vec<CallRow>,
}

/// A traced run, of which changes are replayed.
#[derive(Debug)]
pub struct WhatIf {
    state: State,
    shares: Shares,
    /// Traced time, or predicted time on a given cluster.
    traced: u64,
    /// True if the program is predicted on a given cluster.
    predicted: bool,
    /// Node of each rank.
    nodes: Vec<u32>,
    replayed: u64,
}

impl WhatIf {
    /// Prepares the replay of sequences whose nodes had these links.
    ///
    /// # Errors
    ///
    /// A trace that is too long, or cannot be replayed.
    pub fn new(sequences: &Sequences, link: Link, samples: Vec<Sample>) -> Result<WhatIf, Error> {
        within_limits(sequences)?;
        let cluster = Replay::fitted(sequences, link)?.cluster;
        let traced = sequences.spans.iter().copied().max().unwrap_or(0);
        WhatIf::of(sequences, cluster, samples, Some(traced))
    }

    /// Prepares predictions of sequences on a cluster. Gains are shares of the predicted time.
    ///
    /// # Errors
    ///
    /// A trace that is too long, that cannot run on the cluster, or comes to no end there.
    pub fn on(
        sequences: &Sequences,
        cluster: &Cluster,
        samples: Vec<Sample>,
    ) -> Result<WhatIf, Error> {
        within_limits(sequences)?;
        WhatIf::of(sequences, cluster.clone(), samples, None)
    }

    fn of(
        sequences: &Sequences,
        cluster: Cluster,
        samples: Vec<Sample>,
        traced: Option<u64>,
    ) -> Result<WhatIf, Error> {
        let state = State::new(sequences.clone(), cluster);
        let replayed = state.time()?;
        if replayed == u64::MAX {
            return Err(Error::NoEnd);
        }
        let ranks = sequences.ranks.len() as u32;
        Ok(WhatIf {
            shares: Shares::new(sequences, samples),
            traced: traced.unwrap_or(replayed),
            predicted: traced.is_none(),
            nodes: state.cluster.place_ranks(ranks, &sequences.origin)?,
            replayed,
            state,
        })
    }

    /// Returns the node of each rank.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Returns the traced time from the end of MPI's initialisation, picoseconds; on a given cluster the predicted time.
    pub fn traced(&self) -> u64 {
        self.traced
    }

    /// Returns the time of the replay without a change, picoseconds.
    pub fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Returns sentences on what makes gains less certain.
    pub fn quality(&self) -> Vec<String> {
        let traced = self
            .state
            .sequences
            .spans
            .iter()
            .copied()
            .max()
            .unwrap_or(0);
        match self.predicted {
            // What the replay lacks of the traced run says nothing of another cluster.
            true => quality(&self.state.sequences, traced, traced),
            false => quality(&self.state.sequences, traced, self.replayed),
        }
    }

    /// Returns the time of the replay with all of some changes, picoseconds; `None` if the changed program comes to no end.
    ///
    /// # Errors
    ///
    /// Sequences that cannot be replayed.
    pub fn time(&self, changes: &[Change]) -> Result<Option<u64>, Error> {
        let mut state = self.state.clone();
        // Changes of different functions of a computation add up, so that all of them are one change.
        let mut code: BTreeMap<(usize, u32), f64> = BTreeMap::new();
        for change in changes {
            if let Change::Code(kept) = change {
                for (of, kept) in kept {
                    *code.entry(*of).or_insert(1.0) *= kept;
                }
            }
        }
        let others = changes
            .iter()
            .filter(|change| !matches!(change, Change::Code(_)));
        for change in [&Change::Code(code)].into_iter().chain(others) {
            for edit in self.edits(change) {
                state = edit.apply(&state);
            }
        }
        let time = state.time()?;
        Ok((time != u64::MAX).then_some(time))
    }

    fn edits(&self, change: &Change) -> Vec<Edit> {
        let sequences = &self.state.sequences;
        let parts_of = |kept: f64, wanted: &dyn Fn(Stretch, usize) -> bool| -> Parts {
            let ranks = sequences.ranks.iter().enumerate();
            let all = ranks.flat_map(|(rank, sequence)| {
                stretches(&sequence.entries).map(move |(stretch, _)| (stretch, rank))
            });
            let parts = (kept * MILLION as f64).round() as u64;
            all.filter(|(stretch, rank)| wanted(*stretch, *rank))
                .map(|key| (key, parts))
                .collect()
        };
        match change {
            Change::Code(kept) => {
                let kept = |rank, function| kept.get(&(rank, function)).copied().unwrap_or(1.0);
                vec![Edit::Scale(self.shares.scaled(sequences, &kept))]
            }
            Change::Rank(of, kept) => vec![Edit::Scale(parts_of(*kept, &|_, rank| rank == *of))],
            Change::Node(of, kept) => {
                let is_on = |rank: usize| self.nodes.get(rank) == Some(of);
                vec![Edit::Scale(parts_of(*kept, &|_, rank| is_on(rank)))]
            }
            Change::Messages(calls, kept) => {
                let edits = calls.iter().map(|call| Edit::Messages(*call, *kept));
                edits.collect()
            }
            Change::Computation(of, kept) => {
                vec![Edit::Scale(parts_of(*kept, &|stretch, _| stretch == *of))]
            }
            Change::Without(calls) => calls.iter().copied().map(Edit::Without).collect(),
            Change::Balance => vec![Edit::Scale(balance(sequences))],
            Change::IdealNetwork if self.predicted => vec![Edit::Ideal],
            Change::IdealNetwork => vec![Edit::NoRendezvous, Edit::NoLatency, Edit::NoBytes],
        }
    }

    /// Returns all calls of the program.
    pub fn calls(&self) -> BTreeSet<Call> {
        let ranks = self.state.sequences.ranks.iter();
        ranks
            .flat_map(|rank| rank.entries.iter().map(call))
            .collect()
    }

    /// Returns the calls of the program that send messages.
    pub fn sending_calls(&self) -> BTreeSet<Call> {
        let ranks = self.state.sequences.ranks.iter();
        let sends = |entry: &&Entry| {
            matches!(
                entry.op.action,
                Action::Send { .. }
                    | Action::SendReceive { send: Some(_), .. }
                    | Action::OneSided { .. }
                    | Action::Collective(_)
            )
        };
        let entries = ranks.flat_map(|rank| rank.entries.iter().filter(sends));
        entries.map(call).collect()
    }

    /// Returns what each function, computation and call gains, those with the largest shares. `function` gives the name of a function.
    ///
    /// # Errors
    ///
    /// Sequences that cannot be replayed.
    pub fn profile(&self, function: &dyn Fn(u32) -> String) -> Result<CausalProfile, Error> {
        let names = &self.state.sequences.origin.names;
        let large = |share: f64| share >= LEAST_SHARE;
        let functions = self.shares.functions().into_iter();
        let functions = functions.filter(|(_, share)| large(*share)).take(MOST_ROWS);
        let ranks = self.state.sequences.ranks.len();
        let functions = functions.map(|(number, share)| {
            let change =
                |kept| Change::Code((0..ranks).map(|rank| ((rank, number), kept)).collect());
            self.row(function(number), share, change)
        });
        let computations = self.computations().into_iter();
        let computations = computations
            .filter(|(_, share)| large(*share))
            .take(MOST_ROWS);
        let computations = computations.map(|(stretch, share)| {
            let change = |kept| Change::Computation(stretch, kept);
            self.row(between(stretch, names), share, change)
        });
        let calls = self.optional_calls().into_iter().take(MOST_ROWS);
        let calls = calls.map(|(call, count)| {
            Ok(CallRow {
                place: at(call, names),
                count,
                gain: self.gain(&[Change::Without(vec![call])])?,
            })
        });
        let mut profile = CausalProfile {
            functions: functions.collect::<Result<_, Error>>()?,
            computations: computations.collect::<Result<_, Error>>()?,
            calls: calls.collect::<Result<_, Error>>()?,
        };
        for rows in [&mut profile.functions, &mut profile.computations] {
            rows.sort_by(|a, b| b.twice.total_cmp(&a.twice));
        }
        profile.calls.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        Ok(profile)
    }

    fn row(&self, place: String, share: f64, change: impl Fn(f64) -> Change) -> Result<Row, Error> {
        let gain = |kept| self.gain(&[change(kept)]);
        Ok(Row {
            place,
            share,
            quarter: gain(1.0 / 1.25)?,
            twice: gain(1.0 / 2.0)?,
            twice_run: None,
            free: gain(0.0)?,
            slower: gain(1.25)?,
        })
    }

    /// Returns the gain of changes as a share of the traced time; 0 if the changed program comes to no end.
    fn gain(&self, changes: &[Change]) -> Result<f64, Error> {
        let time = self.time(changes)?.unwrap_or(self.replayed);
        Ok((self.replayed as f64 - time as f64) / self.traced.max(1) as f64)
    }

    /// Returns the computations with their shares of the computing time of all ranks, largest first.
    fn computations(&self) -> Vec<(Stretch, f64)> {
        let mut sums: BTreeMap<Stretch, u128> = BTreeMap::new();
        for sequence in &self.state.sequences.ranks {
            for (stretch, entry) in stretches(&sequence.entries) {
                *sums.entry(stretch).or_default() += u128::from(entry.burst.time);
            }
        }
        let all: u128 = sums.values().sum();
        let mut sums: Vec<(Stretch, u128)> = sums.into_iter().collect();
        sums.sort_by_key(|(_, sum)| u128::MAX - sum);
        let share = |sum: u128| sum as f64 / all.max(1) as f64;
        sums.into_iter().map(|(of, sum)| (of, share(sum))).collect()
    }

    /// Returns the calls without which all others still end, most frequent first.
    fn optional_calls(&self) -> Vec<(Call, u64)> {
        let mut counts: BTreeMap<Call, u64> = BTreeMap::new();
        for entry in (self.state.sequences.ranks.iter()).flat_map(|rank| &rank.entries) {
            if let Action::Collective(of) = &entry.op.action
                && of.request.is_none()
                && of.kind != CollectiveKind::Create
            {
                *counts.entry(call(entry)).or_default() += 1;
            }
        }
        let mut counts: Vec<(Call, u64)> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| u64::MAX - count);
        counts
    }
}
