//! Sensitivity of a predicted time: its derivatives with respect to the network's parameters and each rank's speed, and its tolerance of
//! latency.
//!
//! Two ways lead to each derivative. The critical path tells how much of the time consists of the parameter. And two further
//! interpretations, with a little less and a little more of the parameter, tell how much the time really changes. Both agree where the
//! path stays the path. Less and more differ where several paths are equally long: less of a parameter then gains nothing.
//!
//! The latency tolerance is that of Shen et al., "LLAMP: Assessing network latency tolerance of HPC applications with linear programming"
//! (SC 2024): the latency at which the time has grown by some percent over the time at the base latency. LLAMP finds it by linear
//! programming on a graph without contention; here the program is interpreted with other latencies until the value is found.

use nodescope_loop_tree::Program;
use serde::Serialize;

use crate::cluster::{Cluster, FitError};
use crate::code::Code;
use crate::interpreter::{Options, interpret};
use crate::network::{Channel, Table};
use crate::result::{Composition, Outcome};
use crate::series::in_parallel;

/// Step of the further interpretations, as a part of the parameter's value: one thousandth.
const STEP: f64 = 1e-3;
/// Least step of a latency, picoseconds.
const LEAST_STEP: u64 = 1000;
/// Largest number of ranks whose speed is changed.
const RANKS: usize = 16;
/// Growth of the time for which the latency is sought.
const GROWTHS: [f64; 3] = [0.01, 0.02, 0.05];
/// The longest latency that is tried, picoseconds: a minute.
const LONGEST_LATENCY: u64 = 60_000_000_000_000;
/// A latency is found to this part of its value.
const PRECISION: f64 = 1e-4;
/// Most interpretations for one latency.
const MOST_TRIES: u32 = 64;

/// A parameter on which the time depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Parameter {
    /// Latency L between nodes, of requests and permissions too.
    Latency,
    /// Time per byte G between nodes: the reciprocal of the bandwidth.
    PerByte,
    /// Overheads o: time of processors for messages at both ends, for copies, datatypes and reductions.
    Overhead,
    /// Least time between two messages of a sender.
    Gap,
    /// Latency of the links within the network.
    HopLatency,
    /// Latency and time per byte within nodes.
    WithinNodes,
    /// Bursts of all ranks.
    Computation,
    /// Bursts of a rank: the reciprocal of its speed.
    Rank(u32),
}

/// How the time depends on a parameter. A time that is proportional to the parameter is the derivative times the parameter's value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Derivative {
    /// The parameter.
    pub parameter: Parameter,
    /// The parameter in words.
    pub name: String,
    /// Value of a latency or gap in picoseconds, or of a time per byte in picoseconds; `None` for parameters of several values.
    pub value: Option<f64>,
    /// Time on the critical path that is proportional to the parameter, picoseconds; `None` for parameters that the path does not tell.
    pub path: Option<u64>,
    /// The same time by an interpretation with a little less of the parameter, picoseconds; `None` if there can be no less.
    pub less: Option<f64>,
    /// The same time by an interpretation with a little more of the parameter, picoseconds.
    pub more: f64,
}

/// A latency up to which the time grows by no more than a part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// Growth of the time over that at the base latency, as a part of that time.
    pub growth: f64,
    /// The latency at which the time has grown so much, picoseconds; `None` if a latency of a minute is still tolerated.
    pub latency: Option<u64>,
}

/// Sensitivity of a predicted time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sensitivity {
    /// The predicted time, picoseconds.
    pub time: u64,
    /// Step of the further interpretations as a part of each value.
    pub step: f64,
    /// Number of network latencies on the critical path: lambda_L in LLAMP.
    pub latencies: u64,
    /// Growth of the time by one more picosecond of latency, by interpretations with less and more latency; the first is `None` where the
    /// latency is 0.
    pub growth_per_latency: (Option<f64>, f64),
    /// Time on the critical path in which messages wait for links, for their sender's earlier messages, or until a rank is in MPI,
    /// picoseconds. Most of it is the time per byte of other messages.
    pub queueing: u64,
    /// Derivatives with respect to the network and all computation.
    pub parameters: Vec<Derivative>,
    /// Derivatives with respect to the time of each rank's bursts: the ranks with most time on the critical path, at most 16.
    pub ranks: Vec<Derivative>,
    /// Bursts on the critical path by node: node, picoseconds, greatest first. Empty if each node has one rank.
    pub nodes: Vec<(u32, u64)>,
    /// The base latency, picoseconds.
    pub latency: u64,
    /// Latency tolerance.
    pub tolerances: Vec<Tolerance>,
    /// Number of further interpretations.
    pub interpretations: u64,
}

/// Returns the sensitivity of a prediction's time; `None` if the outcome has no critical path, or did not come to its end.
///
/// # Errors
///
/// As [`interpret`].
pub fn sensitivity(
    program: &Program,
    cluster: &Cluster,
    outcome: &Outcome,
) -> Result<Option<Sensitivity>, FitError> {
    let Some(path) = outcome
        .critical_path
        .as_ref()
        .filter(|_| outcome.complete())
    else {
        return Ok(None);
    };
    let composition = &path.composition;
    let code = Code::new(program);
    let base = Base {
        code: &code,
        cluster,
        ranks: program.ranks.len(),
    };
    // A program of one node, or one whose network costs nothing, has no such parameter.
    let mut wanted = vec![Parameter::Latency, Parameter::PerByte, Parameter::Overhead];
    if cluster.network.gap > 0 {
        wanted.push(Parameter::Gap);
    }
    if cluster.hop_latency > 0 {
        wanted.push(Parameter::HopLatency);
    }
    if own_memory(cluster) {
        wanted.push(Parameter::WithinNodes);
    }
    wanted.push(Parameter::Computation);
    let others = wanted.len();
    let mut by_rank = vec![0; base.ranks];
    for &(rank, time) in &composition.computation {
        by_rank[rank as usize] = time;
    }
    let mut ranks: Vec<u32> = (0..base.ranks as u32).collect();
    ranks.sort_by_key(|&rank| (u64::MAX - by_rank[rank as usize], rank));
    wanted.extend(ranks.iter().take(RANKS).map(|&rank| Parameter::Rank(rank)));
    let both = in_parallel(2 * wanted.len(), |index| {
        base.changed(wanted[index / 2], index % 2 == 1)
    });
    let both: Vec<Option<(u64, f64)>> = both.into_iter().collect::<Result<_, FitError>>()?;
    let time = outcome.time;
    let derivatives = wanted.iter().zip(both.chunks(2)).map(|(&parameter, both)| {
        let growth = |of: Option<(u64, f64)>| {
            let (changed, step) = of?;
            Some((changed as f64 - time as f64) / step)
        };
        Derivative {
            parameter,
            name: name(parameter, cluster),
            value: value(parameter, cluster),
            path: on_path(parameter, composition, &by_rank),
            less: growth(both[0]),
            more: growth(both[1]).unwrap_or(0.0),
        }
    });
    let mut parameters: Vec<Derivative> = derivatives.collect();
    let ranks = parameters.split_off(others);
    let latency = cluster.network.latency;
    let per_latency = |time: f64| match latency {
        // The growth is by the least step, as there is no value to be a part of.
        0 => time / LEAST_STEP as f64 * STEP,
        latency => time / latency as f64,
    };
    let of_latency = parameters.first();
    let growth_per_latency = of_latency.map_or((None, 0.0), |of| {
        (of.less.map(per_latency), per_latency(of.more))
    });
    if latency == 0
        && let Some(of_latency) = parameters.first_mut()
    {
        of_latency.more = 0.0;
    }
    let found = in_parallel(GROWTHS.len(), |index| {
        base.tolerance(time, GROWTHS[index], growth_per_latency.1)
    });
    let found: Vec<(Tolerance, u64)> = found.into_iter().collect::<Result<_, FitError>>()?;
    let tried: u64 = found.iter().map(|(_, tried)| tried).sum();
    Ok(Some(Sensitivity {
        time,
        step: STEP,
        latencies: composition.latencies,
        growth_per_latency,
        queueing: composition.queueing,
        parameters,
        ranks,
        nodes: by_node(cluster, program, &by_rank)?,
        latency,
        tolerances: found.into_iter().map(|(tolerance, _)| tolerance).collect(),
        interpretations: both.iter().flatten().count() as u64 + tried,
    }))
}

/// Returns whether messages within nodes have costs of their own.
fn own_memory(cluster: &Cluster) -> bool {
    cluster.memory != cluster.network
}

fn by_node(
    cluster: &Cluster,
    program: &Program,
    by_rank: &[u64],
) -> Result<Vec<(u32, u64)>, FitError> {
    let placed = cluster.place_ranks(by_rank.len() as u32, &program.origin)?;
    let count = placed.iter().max().map_or(0, |node| *node as usize + 1);
    let mut sums = vec![(0, 0); count];
    for (&node, &time) in placed.iter().zip(by_rank) {
        sums[node as usize].0 += 1;
        sums[node as usize].1 += time;
    }
    if sums.iter().all(|&(ranks, _)| ranks <= 1) {
        return Ok(Vec::new());
    }
    let mut nodes: Vec<(u32, u64)> = (0..).zip(sums.iter().map(|&(_, time)| time)).collect();
    nodes.sort_by_key(|&(node, time)| (u64::MAX - time, node));
    nodes.truncate(RANKS);
    Ok(nodes)
}

fn name(parameter: Parameter, cluster: &Cluster) -> String {
    let within = if own_memory(cluster) {
        ""
    } else {
        ", also within nodes"
    };
    match parameter {
        Parameter::Latency => format!("latency L{within}"),
        Parameter::PerByte => format!("time per byte G{within}"),
        Parameter::Overhead => "overheads o".to_owned(),
        Parameter::Gap => "gap g".to_owned(),
        Parameter::HopLatency => "latency of links within the network".to_owned(),
        Parameter::WithinNodes => "messages within nodes".to_owned(),
        Parameter::Computation => "computation, all ranks".to_owned(),
        Parameter::Rank(rank) => format!("computation, rank {rank}"),
    }
}

fn value(parameter: Parameter, cluster: &Cluster) -> Option<f64> {
    match parameter {
        Parameter::Latency => Some(cluster.network.latency as f64),
        Parameter::PerByte => Some(cluster.network.per_byte),
        Parameter::Gap => Some(cluster.network.gap as f64),
        Parameter::HopLatency => Some(cluster.hop_latency as f64),
        _ => None,
    }
}

fn on_path(parameter: Parameter, path: &Composition, by_rank: &[u64]) -> Option<u64> {
    match parameter {
        Parameter::Latency => Some(path.latency),
        Parameter::PerByte => Some(path.bandwidth),
        Parameter::Overhead => Some(path.overhead),
        Parameter::Gap => None,
        Parameter::HopLatency => Some(path.hops),
        Parameter::WithinNodes => Some(path.within_nodes),
        Parameter::Computation => Some(by_rank.iter().sum()),
        Parameter::Rank(rank) => by_rank.get(rank as usize).copied(),
    }
}

/// A program on a cluster, of which one value is changed.
struct Base<'a> {
    code: &'a Code<'a>,
    cluster: &'a Cluster,
    ranks: usize,
}

impl Base<'_> {
    /// Interprets with a little less or more of a parameter. Returns the time, and the step as a part of the value, below 0 for less;
    /// `None` if there can be no less.
    fn changed(&self, parameter: Parameter, more: bool) -> Result<Option<(u64, f64)>, FitError> {
        let step = if more { STEP } else { -STEP };
        let part = 1.0 + step;
        let mut cluster = self.cluster.clone();
        let mut pace = Vec::new();
        let millionths = (part * 1e6).round() as u32;
        let mut step = step;
        match parameter {
            Parameter::Latency => {
                let latency = cluster.network.latency;
                let by = ((latency as f64 * STEP).round() as u64).max(LEAST_STEP);
                match (more, latency) {
                    (false, _) if by > latency => return Ok(None),
                    (false, _) => cluster = with_latency(&cluster, latency - by),
                    (true, _) => cluster = with_latency(&cluster, latency + by),
                }
                if latency > 0 {
                    step = step.signum() * by as f64 / latency as f64;
                }
            }
            Parameter::PerByte => each(&mut cluster, false, |channel| channel.per_byte *= part),
            Parameter::Overhead => {
                for channel in [&mut cluster.network, &mut cluster.memory] {
                    overheads(channel, part);
                }
                let time = cluster.datatype_overhead as f64 * part;
                cluster.datatype_overhead = time.round() as u64;
                cluster.reduce_per_byte *= part;
            }
            Parameter::Gap => each(&mut cluster, false, |channel| {
                channel.gap = (channel.gap as f64 * part).round() as u64;
            }),
            Parameter::HopLatency => {
                cluster.hop_latency = (cluster.hop_latency as f64 * part).round() as u64;
            }
            Parameter::WithinNodes => each(&mut cluster, true, |channel| {
                channel.latency = (channel.latency as f64 * part).round() as u64;
                channel.per_byte *= part;
            }),
            Parameter::Computation => pace = vec![millionths; self.ranks],
            Parameter::Rank(rank) => {
                pace = vec![1_000_000; self.ranks];
                pace[rank as usize] = millionths;
            }
        }
        if parameter == Parameter::PerByte {
            cluster.link_per_byte = cluster.link_per_byte.map(|slow| slow * part);
        }
        Ok(Some((self.time(&cluster, pace)?, step)))
    }

    fn time(&self, cluster: &Cluster, pace: Vec<u32>) -> Result<u64, FitError> {
        let options = Options {
            critical_path: false,
            links: 0,
            pace,
            ..Options::default()
        };
        Ok(interpret(self.code, cluster, &options)?.time)
    }

    /// Finds the latency at which the time has grown by a part over `time`, and the number of interpretations. `growth_per_latency` is
    /// the growth by one more picosecond. Without contention the time is a convex function of the latency, so that the first guess is
    /// beyond.
    fn tolerance(
        &self,
        time: u64,
        growth: f64,
        growth_per_latency: f64,
    ) -> Result<(Tolerance, u64), FitError> {
        let base = self.cluster.network.latency;
        let target = time as f64 * (1.0 + growth);
        let at = |latency: u64| self.time(&with_latency(self.cluster, latency), Vec::new());
        let mut tried = 0;
        let (mut low, mut low_by) = (base, time as f64 - target);
        let guess = match growth_per_latency > 0.0 {
            true => -low_by / growth_per_latency,
            false => time as f64 * growth,
        };
        let mut high = base.saturating_add((guess.ceil() as u64).max(LEAST_STEP));
        let mut high_by = loop {
            high = high.min(LONGEST_LATENCY);
            let by = at(high)? as f64 - target;
            tried += 1;
            if by >= 0.0 {
                break by;
            }
            (low, low_by) = (high, by);
            if high >= LONGEST_LATENCY {
                let tolerance = Tolerance {
                    growth,
                    latency: None,
                };
                return Ok((tolerance, tried));
            }
            high = base.saturating_add((high - base).saturating_mul(2));
        };
        // The method of false position; the side that stays twice is weighed by half (Dowell and Jarratt, BIT 11, 1971: "Illinois").
        let mut kept = 0;
        for _ in 0..MOST_TRIES {
            let width = high - low;
            if width as f64 <= (high as f64 * PRECISION).max(1.0) || high_by <= 0.0 {
                break;
            }
            let part = low_by / (low_by - high_by);
            let between = low + (width as f64 * part).round() as u64;
            let latency = between.clamp(low + 1, high - 1);
            let by = at(latency)? as f64 - target;
            tried += 1;
            if by >= 0.0 {
                (high, high_by) = (latency, by);
                low_by = if kept == 1 { low_by / 2.0 } else { low_by };
                kept = 1;
            } else {
                (low, low_by) = (latency, by);
                high_by = if kept == -1 { high_by / 2.0 } else { high_by };
                kept = -1;
            }
        }
        let tolerance = Tolerance {
            growth,
            latency: Some(high),
        };
        Ok((tolerance, tried))
    }
}

/// Changes the channel within nodes or between them. A cluster whose channels are the same has one channel for both.
fn each(cluster: &mut Cluster, within: bool, change: impl Fn(&mut Channel)) {
    let both = !own_memory(cluster);
    if within || both {
        change(&mut cluster.memory);
    }
    if !within {
        change(&mut cluster.network);
    }
}

/// Returns a cluster of another latency between nodes. Requests and permissions take as much longer.
fn with_latency(cluster: &Cluster, latency: u64) -> Cluster {
    let mut cluster = cluster.clone();
    let base = cluster.network.latency;
    each(&mut cluster, false, |channel| {
        channel.latency = latency;
        channel.service_latency = (channel.service_latency)
            .map(|service| service.saturating_add(latency).saturating_sub(base));
    });
    cluster
}

/// Scales the time of processors for messages.
fn overheads(channel: &mut Channel, part: f64) {
    let scale = |table: &mut Table| {
        for (_, time) in &mut table.points {
            *time = (*time as f64 * part).round() as u64;
        }
    };
    let tables = [
        Some(&mut channel.send_overhead),
        Some(&mut channel.receive_overhead),
        channel.buffered_overhead.as_mut(),
        channel.queued_overhead.as_mut(),
        Some(&mut channel.pack_overhead),
        Some(&mut channel.unpack_overhead),
    ];
    tables.into_iter().flatten().for_each(scale);
    channel.copy_per_byte *= part;
    channel.send_per_byte *= part;
    let acknowledgement = channel.acknowledgement_overhead as f64 * part;
    channel.acknowledgement_overhead = acknowledgement.round() as u64;
}
