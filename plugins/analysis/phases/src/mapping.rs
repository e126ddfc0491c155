//! Placements for each phase and for the whole run, what they gain as predicted, and when changing the placement pays.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodescope_hypercall::Function;
use nodescope_loop_tree::sequence::{Burst, Entry, Sequences};
use nodescope_loop_tree::{Action, Op, Program, Site};
use nodescope_predict::{Cluster, Code, FitError, Options, interpret};
use serde::Serialize;

use crate::analysis::Analysis;
use crate::placement::{PlacementError, crossing, improve, sockets};
use crate::step::Matrix;

/// Most placements that are predicted.
pub const MOST_PLACEMENTS: usize = 64;

/// Cost of one change of the placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeCost {
    /// Time of a change in picoseconds, which adds to predicted times.
    Time(u64),
    /// Bytes that a change moves between nodes, which add to the bytes of messages.
    Bytes(u64),
}

/// Request for placements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappingRequest {
    /// Number of sockets of a node; `None` leaves sockets out.
    pub sockets: Option<u32>,
    /// Cost of a change; `None` requests no schedule.
    pub change: Option<ChangeCost>,
}

/// Reason for which there is no mapping.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The program does not fit on the cluster.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// The partitioner failed.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// More sockets are requested than a node has cores.
    #[error(
        "a node of {cores} cores cannot have {sockets} sockets; give at most {cores} to --sockets"
    )]
    Sockets {
        /// Cores of a node.
        cores: u32,
        /// Number of requested sockets.
        sockets: u32,
    },
}

/// A placement of all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlacementResult {
    /// Node of each rank.
    pub nodes: Vec<u32>,
    /// Number of ranks on another node than in the given placement.
    pub moved: u32,
    /// Bytes between nodes in the whole run.
    pub bytes: u64,
    /// Predicted time of the whole run, picoseconds; `None` if the program does not come to its end.
    pub time: Option<u64>,
    /// Bytes between nodes in each phase.
    pub phase_bytes: Vec<u64>,
    /// Predicted time of each phase, picoseconds: between the moments at which the last rank has passed the phase's begin and the phase's
    /// end. Empty if the program does not come to its end.
    pub phase_times: Vec<u64>,
    /// Placement on sockets, if it was requested.
    pub sockets: Option<OnSockets>,
}

/// A placement on sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OnSockets {
    /// The socket of each rank, numbered through all nodes.
    pub socket: Vec<u32>,
    /// Bytes between sockets of the same node with this placement.
    pub bytes: u64,
    /// Bytes between sockets of the same node if the ranks of each node fill its sockets in order.
    pub bytes_in_order: u64,
}

/// A change of the placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Phase before which the change happens.
    pub phase: usize,
    /// Beginning of that phase, picoseconds of the trace.
    pub at: u64,
    /// Placement before the change, as an index of [`Mapping::placements`].
    pub from: usize,
    /// Placement after the change, as an index of [`Mapping::placements`].
    pub to: usize,
}

/// Placements over time with the least sum of costs, changes included. The first placement costs no change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Schedule {
    /// Cost of a change. All sums have its unit: picoseconds or bytes.
    pub change: ChangeCost,
    /// Placement of each phase, as an index of [`Mapping::placements`].
    pub placements: Vec<usize>,
    /// Changes of the placement, in order.
    pub changes: Vec<Change>,
    /// Sum of the costs of all phases and changes.
    pub cost: u64,
    /// Best placement that never changes, as an index of [`Mapping::placements`].
    pub constant: usize,
    /// Sum of the costs of all phases with the best placement that never changes.
    pub constant_cost: u64,
    /// Sum of the costs of all phases with the given placement.
    pub given_cost: u64,
}

/// Placements of a program's ranks on a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mapping {
    /// The cluster's name.
    pub cluster: String,
    /// Placements, the given one first.
    pub placements: Vec<PlacementResult>,
    /// Placement for the whole run, as an index of the placements.
    pub whole: usize,
    /// Placement for each phase, as an index of the placements.
    pub phases: Vec<usize>,
    /// Schedule of changes; `None` if none was requested, or if changes cost time and no times could be predicted.
    pub schedule: Option<Schedule>,
    /// Notes on limits of the placements.
    pub notes: Vec<String>,
}

/// Places the ranks of a program on a cluster, and predicts the gain in time and bytes.
///
/// # Errors
///
/// A program that does not fit on the cluster, more sockets than cores, or a failure of the partitioner.
pub fn map_ranks(
    analysis: &Analysis,
    sequences: &Sequences,
    cluster: &Cluster,
    request: &MappingRequest,
) -> Result<Mapping, MappingError> {
    if let Some(sockets) = request.sockets.filter(|&sockets| sockets > cluster.cores) {
        let cores = cluster.cores;
        return Err(MappingError::Sockets { cores, sockets });
    }
    let given = cluster.place_ranks(analysis.ranks, &sequences.origin)?;
    let mut notes = Vec::new();
    let mut distinct = vec![given.clone()];
    let mut number = |nodes: Vec<u32>| -> Option<usize> {
        if let Some(known) = distinct.iter().position(|other| *other == nodes) {
            return Some(known);
        }
        (distinct.len() < MOST_PLACEMENTS).then(|| {
            distinct.push(nodes);
            distinct.len() - 1
        })
    };
    let whole_nodes = improve(&analysis.matrix, &given)?;
    let whole = number(whole_nodes.clone()).unwrap_or(0);
    // Phases with most bytes between nodes come first where there are too many.
    let mut order: Vec<usize> = (0..analysis.phases.len()).collect();
    let bytes = |phase: usize| crossing(&analysis.phases[phase].matrix, &given);
    order.sort_by_key(|&phase| (std::cmp::Reverse(bytes(phase)), phase));
    let mut phases = vec![0; analysis.phases.len()];
    let mut left_out = 0;
    for phase in order {
        let matrix = &analysis.phases[phase].matrix;
        let own = improve(matrix, &given)?;
        let least = crossing(matrix, &own);
        // A phase has a placement of its own only where both the given one and the whole run's have more bytes between nodes.
        phases[phase] = if crossing(matrix, &given) <= least {
            0
        } else if crossing(matrix, &whole_nodes) <= least {
            whole
        } else {
            number(own).unwrap_or_else(|| {
                left_out += 1;
                whole
            })
        };
    }
    if left_out > 0 {
        notes.push(format!(
            "{left_out} phases with few bytes between nodes have the whole run's placement, since no more than {MOST_PLACEMENTS} placements are predicted"
        ));
    }
    let program = Program::new(&marked(sequences, analysis));
    let code = Code::new(&program);
    let mut placements = Vec::with_capacity(distinct.len());
    for nodes in distinct {
        let placed = predicted(analysis, &code, cluster, &given, nodes, request)?;
        placements.push(placed);
    }
    if placements.iter().any(|placed| placed.time.is_none()) {
        notes.push(
            "the program does not come to its end on this cluster, so that no times are predicted: nodescope predict tells why".into(),
        );
    }
    if cluster.topology != nodescope_predict::Topology::Crossbar {
        notes.push(format!(
            "placements lower the bytes between nodes, whatever the number of links between the nodes of the {}",
            cluster.topology
        ));
    }
    if request.sockets.is_some() {
        notes.push(
            "the prediction knows nodes, not sockets: what sockets gain is told in bytes".into(),
        );
    }
    let schedule = match request.change {
        Some(change) => schedule(analysis, &placements, change, &mut notes),
        None => None,
    };
    Ok(Mapping {
        cluster: cluster.name.clone(),
        placements,
        whole,
        phases,
        schedule,
        notes,
    })
}

/// Predicts the program with a placement, and returns the placement with its figures.
fn predicted(
    analysis: &Analysis,
    code: &Code<'_>,
    cluster: &Cluster,
    given: &[u32],
    nodes: Vec<u32>,
    request: &MappingRequest,
) -> Result<PlacementResult, MappingError> {
    let there = Cluster {
        placement: nodescope_predict::Placement::Nodes(nodes.clone()),
        ..cluster.clone()
    };
    let options = Options {
        critical_path: false,
        links: 0,
        ..Options::default()
    };
    let outcome = interpret(code, &there, &options)?;
    let time = outcome.complete().then_some(outcome.time);
    let mut phase_times = Vec::new();
    if time.is_some() {
        let mut before = 0;
        for phase in 0..analysis.phases.len() {
            // After the last phase, only the end of the run is left.
            let after = outcome.marks.get(phase).map_or(outcome.time, |mark| mark.1);
            phase_times.push(after.saturating_sub(before));
            before = after.max(before);
        }
    }
    let on_sockets = match request.sockets {
        Some(count) => Some(on_sockets(&analysis.matrix, &nodes, count)?),
        None => None,
    };
    let bytes = |matrix: &Matrix| crossing(matrix, &nodes);
    Ok(PlacementResult {
        moved: given
            .iter()
            .zip(&nodes)
            .filter(|(one, other)| one != other)
            .count() as u32,
        bytes: bytes(&analysis.matrix),
        time,
        phase_bytes: analysis
            .phases
            .iter()
            .map(|phase| bytes(&phase.matrix))
            .collect(),
        phase_times,
        sockets: on_sockets,
        nodes,
    })
}

fn on_sockets(matrix: &Matrix, nodes: &[u32], count: u32) -> Result<OnSockets, PlacementError> {
    let [in_order, socket] = sockets(matrix, nodes, count)?;
    let between_nodes = crossing(matrix, nodes);
    let within = |sockets: &[u32]| crossing(matrix, sockets) - between_nodes;
    Ok(OnSockets {
        bytes: within(&socket),
        bytes_in_order: within(&in_order),
        socket,
    })
}

/// Returns the program with a mark on every rank where each phase but the first begins.
fn marked(sequences: &Sequences, analysis: &Analysis) -> Sequences {
    let mut marked = sequences.clone();
    let borders: Vec<u64> = analysis
        .phases
        .iter()
        .skip(1)
        .map(|phase| phase.from)
        .collect();
    for (rank, sequence) in marked.ranks.iter_mut().enumerate() {
        let begins = sequences.begins.get(rank).map_or(&[][..], Vec::as_slice);
        let entries = std::mem::take(&mut sequence.entries);
        let mut rest = (0..).zip(&borders).peekable();
        for (at, mut entry) in entries.into_iter().enumerate() {
            let begin = begins.get(at).copied().unwrap_or(analysis.from);
            // A call of several operations may have marks only before its first operation.
            while let Some((number, border)) = rest.next_if(|&(_, &border)| border <= begin) {
                // The border divides the computation before the call.
                let after = (begin - border).min(entry.burst.time);
                let [before, left] = divide(entry.burst, entry.burst.time - after);
                entry.burst = left;
                sequence.entries.push(mark(number, before));
            }
            sequence.entries.push(entry);
        }
        for (number, _) in rest {
            sequence.entries.push(mark(number, Burst::default()));
        }
    }
    marked
}

/// Divides a burst into its first `time` picoseconds and the rest.
fn divide(burst: Burst, time: u64) -> [Burst; 2] {
    let share = u128::from(burst.instructions) * u128::from(time) / u128::from(burst.time.max(1));
    let instructions = share as u64;
    [
        Burst { time, instructions },
        Burst {
            time: burst.time - time,
            instructions: burst.instructions - instructions,
        },
    ]
}

fn mark(number: u32, burst: Burst) -> Entry {
    Entry {
        burst,
        op: Arc::new(Op {
            // A mark is no call, and its function is never shown.
            function: Function::Barrier,
            site: Site::default(),
            communicator: 0,
            block: None,
            more: false,
            action: Action::Mark(number),
        }),
        opaque: None,
    }
}

/// Finds the placements over time with the least sum of costs: a shortest path through phases and placements.
fn schedule(
    analysis: &Analysis,
    placements: &[PlacementResult],
    change: ChangeCost,
    notes: &mut Vec<String>,
) -> Option<Schedule> {
    let costs: Vec<&[u64]> = (placements.iter())
        .map(|placed| match change {
            ChangeCost::Time(_) => placed.phase_times.as_slice(),
            ChangeCost::Bytes(_) => placed.phase_bytes.as_slice(),
        })
        .collect();
    let phases = analysis.phases.len();
    if costs.iter().any(|costs| costs.len() != phases) || phases == 0 {
        notes.push("there are no predicted times to choose changes of the placement by".into());
        return None;
    }
    let (ChangeCost::Time(price) | ChangeCost::Bytes(price)) = change;
    let price = u128::from(price);
    // Least cost up to a phase with each placement, and the placement of the phase before.
    let mut least: Vec<u128> = costs.iter().map(|of| u128::from(of[0])).collect();
    let mut before: Vec<Vec<usize>> = Vec::with_capacity(phases);
    for phase in 1..phases {
        let (cheapest, &cost) = (least.iter().enumerate()).min_by_key(|&(at, &cost)| (cost, at))?;
        let mut came = Vec::with_capacity(costs.len());
        let next = (0..costs.len())
            .map(|at| {
                let stay = least[at] <= cost + price;
                came.push(if stay { at } else { cheapest });
                let up_to_here = if stay { least[at] } else { cost + price };
                up_to_here + u128::from(costs[at][phase])
            })
            .collect();
        least = next;
        before.push(came);
    }
    let (last, &cost) = (least.iter().enumerate()).min_by_key(|&(at, &cost)| (cost, at))?;
    let mut path = vec![last];
    for came in before.iter().rev() {
        path.push(came[path[path.len() - 1]]);
    }
    path.reverse();
    let changes = (1..phases)
        .filter(|&phase| path[phase] != path[phase - 1])
        .map(|phase| Change {
            phase,
            at: analysis.phases[phase].from,
            from: path[phase - 1],
            to: path[phase],
        })
        .collect();
    let small = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
    let sums: Vec<u64> = (costs.iter())
        .map(|of| small(of.iter().map(|&cost| u128::from(cost)).sum()))
        .collect();
    let constant = (0..sums.len()).min_by_key(|&at| (sums[at], at))?;
    Some(Schedule {
        change,
        placements: path,
        changes,
        cost: small(cost),
        constant,
        constant_cost: sums[constant],
        given_cost: sums[0],
    })
}

impl Mapping {
    /// Returns the uses of each placement in words: given, whole run, phases. The text of a placement without use is empty. Phases that use
    /// the given placement are not named.
    pub fn uses(&self) -> BTreeMap<usize, String> {
        let mut phases: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for (phase, &placement) in self.phases.iter().enumerate().filter(|of| *of.1 != 0) {
            phases.entry(placement).or_default().push(phase.to_string());
        }
        let mut uses = BTreeMap::new();
        for at in 0..self.placements.len() {
            let mut names = Vec::new();
            if at == 0 {
                names.push("given".to_owned());
            }
            if at == self.whole {
                names.push("whole run".to_owned());
            }
            match phases.get(&at).map(Vec::as_slice) {
                None => {}
                Some([one]) => names.push(format!("phase {one}")),
                Some([first, second]) => names.push(format!("phases {first} and {second}")),
                Some([first, .., last]) => {
                    let count = phases[&at].len();
                    names.push(format!("{count} phases, {first} to {last}"));
                }
                Some([]) => {}
            }
            uses.insert(at, names.join("; "));
        }
        uses
    }
}
