//! Estimate of the host cost of a larger cluster, by a fit of the measured runs.
//!
//! The processor time of a phase is fitted as
//!
//! ```text
//! cpu = a * nodes * virtual time + b * instructions
//! ```
//!
//! where a >= 0 is the cost of synchronizing a node for a second of virtual time, and b >= 0 is the cost of a modelled instruction. The
//! fit minimizes the squares of relative errors, so that short runs count as much as long ones. Runs of a single node are left out, since
//! a single node has no other to be synchronized with. Runs with equal numbers of ranks on each node hardly distinguish a from b. The
//! plan therefore has a second estimate, in which each instruction costs as much as in the run with most nodes. Boot and power-off cost
//! a time for each node, as in the run with most nodes.
//!
//! Memory is fitted as a straight line over the number of nodes, by least squares. Nodes that are made of one that has booted share the
//! pages that they do not write, so that runs of both kinds of boot are not on one line: only runs of the planned kind count.

use std::str::FromStr;

use nodescope_config::quantity::{Bytes, Time};
use serde::{Deserialize, Serialize};

use crate::analysis::Series;
use crate::point::{Cost, Host, Point};

/// A second in picoseconds.
const SECOND_PS: f64 = 1e12;
/// An hour in seconds.
pub(crate) const HOUR: f64 = 3600.0;
/// Number of nodes from which a cluster boots one node for all by default (`vmm/study/STUDY.md`, `cluster.boot`).
const BOOTS_ONCE_FROM: u32 = 8;
/// Largest number of nodes or cores in a request.
const MOST: u32 = 1 << 20;

/// Cluster whose host cost is requested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanRequest {
    /// Number of nodes of the cluster.
    pub nodes: u32,
    /// Number of cores of a node, each with one rank.
    pub cores: u32,
    /// Number of cores of a host.
    pub host_cores: u32,
    /// Memory of a host, bytes.
    pub host_memory_bytes: u64,
    /// Virtual time of the job outside its window, picoseconds; `None`: as in the run with most nodes.
    pub job_ps: Option<u64>,
    /// Virtual time of the window, warm-up included, picoseconds; `None`: as in the run with most nodes.
    pub window_ps: Option<u64>,
    /// Latency of the cluster's network, picoseconds: nodes of several hosts exchange messages after each such virtual time.
    #[serde(default = "latency_ps")]
    pub latency_ps: u64,
    /// Time that an exchange between the hosts takes, picoseconds; `None`: not planned.
    #[serde(default)]
    pub exchange_ps: Option<u64>,
}

/// Latency of the published study's network, as this project chose it.
fn latency_ps() -> u64 {
    1_300_000
}

impl FromStr for PlanRequest {
    type Err = String;

    /// Reads `nodes=224,cores=16` with optional `host-cores`, `host-memory`, `job`, `window`, `latency` and `exchange`.
    fn from_str(text: &str) -> Result<PlanRequest, String> {
        let (mut nodes, mut cores) = (None, None);
        // Defaults are those of the hosts of the published study.
        let (mut host_cores, mut host_memory_bytes) = (12, 24 << 30);
        let (mut job_ps, mut window_ps) = (None, None);
        let (mut latency, mut exchange_ps) = (None, None);
        for entry in text.split(',') {
            let (key, value) = entry.split_once('=').ok_or_else(|| {
                format!("\"{entry}\" has no \"=\"; write e.g. nodes=224,cores=16")
            })?;
            let (key, value) = (key.trim(), value.trim());
            let wrong = |error: &dyn std::fmt::Display| format!("{key}: {error}");
            let count = || match value.parse() {
                Ok(count @ 1..=MOST) => Ok(count),
                _ => Err(format!("{key} is no number from 1 to {MOST}")),
            };
            let time = || match value.parse::<Time>() {
                Ok(Time(0)) => Err(format!("{key} is no time above zero")),
                Ok(time) => Ok(Some(time.0)),
                Err(error) => Err(wrong(&error)),
            };
            match key {
                "nodes" => nodes = Some(count()?),
                "cores" => cores = Some(count()?),
                "host-cores" => host_cores = count()?,
                "host-memory" => {
                    host_memory_bytes = value.parse::<Bytes>().map_err(|error| wrong(&error))?.0;
                }
                "job" => job_ps = time()?,
                "window" => window_ps = time()?,
                "latency" => latency = time()?,
                "exchange" => exchange_ps = time()?,
                _ => {
                    return Err(format!(
                        "\"{key}\" is none of nodes, cores, host-cores, host-memory, job, window, latency, exchange"
                    ));
                }
            }
        }
        Ok(PlanRequest {
            nodes: nodes.ok_or("nodes is missing; write e.g. nodes=224,cores=16")?,
            cores: cores.ok_or("cores is missing; write e.g. nodes=224,cores=16")?,
            host_cores,
            host_memory_bytes,
            job_ps,
            window_ps,
            latency_ps: latency.unwrap_or_else(latency_ps),
            exchange_ps,
        })
    }
}

/// Host cost of a cluster, as estimated from smaller runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Cluster for which the cost is estimated.
    pub request: PlanRequest,
    /// Costs of the job outside its window, and of the window; without a phase that the largest run lacks.
    pub phases: Vec<PhasePlan>,
    /// True if all nodes are made of one that has booted, as the run with most nodes did, or as is the default for so many nodes.
    #[serde(default)]
    pub boots_once: bool,
    /// Processor time of the boot of all nodes and of their power-off, seconds of a host core.
    #[serde(default)]
    pub ends_cpu_seconds: f64,
    /// Sentences about figures that are limits only, or less exact than possible.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Host memory for each node, bytes: the slope of the fit.
    pub memory_per_node_bytes: f64,
    /// Host memory that does not depend on the number of nodes, bytes, for each host.
    pub memory_base_bytes: f64,
    /// Largest relative error of the memory fit over the runs.
    pub memory_error: f64,
    /// Memory of the whole cluster on all its hosts, bytes.
    pub memory_bytes: f64,
    /// Number of nodes for which the memory of a host suffices.
    pub nodes_per_host: u32,
    /// Number of hosts whose memory suffices for the cluster.
    pub hosts: u32,
    /// Processor time of the whole run by the fit, in hours of one host core: [`Plan::phases`] and [`Plan::ends_cpu_seconds`].
    pub core_hours: f64,
    /// Processor time of the whole run if each instruction costs as much as in the run with most nodes, in hours of one host core.
    pub core_hours_by_instruction: f64,
    /// Hours in which all hosts exchange messages, at most: once in each latency of the network. 0 on one host, or where the request has no
    /// time of an exchange.
    #[serde(default)]
    pub exchange_hours: f64,
    /// Elapsed hours if all cores of [`Plan::hosts`] hosts are busy outside exchanges, and exchanges take [`Plan::exchange_hours`]: for
    /// `core_hours`, and for `core_hours_by_instruction`.
    pub hours: [f64; 2],
}

/// Host cost of one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhasePlan {
    /// `job` (without models), or `window` (with caches, warm-up included).
    pub phase: String,
    /// Coefficient a: seconds of a host core for each node and second of virtual time.
    pub per_node_second: f64,
    /// Coefficient b: seconds of a host core for each modelled instruction.
    pub per_instruction: f64,
    /// Largest relative error of the fit over the runs.
    pub error: f64,
    /// Virtual time that the phase takes, seconds.
    pub virtual_seconds: f64,
    /// Number of modelled instructions that all cores of the cluster execute in the phase.
    pub instructions: f64,
    /// Processor time of the whole phase, seconds of a host core, by the fit.
    pub cpu_seconds: f64,
    /// Processor time of the whole phase, seconds of a host core, if each instruction costs as much as in the run with most nodes.
    pub cpu_seconds_by_instruction: f64,
}

/// Reason for which a plan cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Fewer than two runs on more than one node have host times.
    #[error(
        "{series}: a plan needs runs with host.json on two numbers of nodes above 1 at least, and there are {found}; run the studies with --host-times"
    )]
    TooFew {
        /// Name of the series.
        series: String,
        /// Number of runs with host times on more than one node.
        found: usize,
    },
    /// The memory of a host is too small for one node.
    #[error(
        "{series}: {need} MiB of memory are needed for one node, and a host has {have} MiB; give a larger host-memory"
    )]
    Memory {
        /// Name of the series.
        series: String,
        /// Memory that a host needs for one node, MiB.
        need: u64,
        /// Memory of a host, MiB.
        have: u64,
    },
}

/// Fits a and b, and returns them and the largest relative error.
fn fit(costs: &[Cost]) -> (f64, f64, f64) {
    // Each row divided by its own cost: x a + y b = 1.
    let rows: Vec<(f64, f64)> = (costs.iter())
        .filter(|cost| cost.cpu_seconds > 0.0)
        .map(|cost| {
            (
                cost.node_seconds / cost.cpu_seconds,
                cost.instructions / cost.cpu_seconds,
            )
        })
        .collect();
    let sum = |term: &dyn Fn(&(f64, f64)) -> f64| rows.iter().map(term).sum::<f64>();
    let (xx, xy, yy) = (
        sum(&|r| r.0 * r.0),
        sum(&|r| r.0 * r.1),
        sum(&|r| r.1 * r.1),
    );
    let (x, y) = (sum(&|r| r.0), sum(&|r| r.1));
    let ratio = |above: f64, below: f64| if below > 0.0 { above / below } else { 0.0 };
    let determinant = xx * yy - xy * xy;
    let both = match determinant > 1e-9 * xx * yy {
        true => (
            (x * yy - y * xy) / determinant,
            (y * xx - x * xy) / determinant,
        ),
        // The runs do not distinguish the two coefficients.
        false => (-1.0, -1.0),
    };
    let error = |(a, b): (f64, f64)| {
        let errors = rows.iter().map(|(x, y)| (x * a + y * b - 1.0).abs());
        errors.fold(0.0, f64::max)
    };
    let squares = |(a, b): (f64, f64)| sum(&|(x, y)| (x * a + y * b - 1.0).powi(2));
    // A cost must not be negative: with a negative coefficient, the best fit has one coefficient of 0.
    let best = if both.0 >= 0.0 && both.1 >= 0.0 {
        both
    } else {
        let (left, right) = ((ratio(x, xx), 0.0), (0.0, ratio(y, yy)));
        if squares(left) < squares(right) {
            left
        } else {
            right
        }
    };
    (best.0, best.1, error(best))
}

/// Straight line through points, by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    /// Value at 0, which is never negative.
    base: f64,
    /// Slope, which is never negative.
    slope: f64,
    /// Largest relative error of a point.
    error: f64,
}

impl Line {
    /// Fits a line through at least one point.
    fn through(points: &[(f64, f64)]) -> Line {
        let count = points.len() as f64;
        let mean_x = points.iter().map(|p| p.0).sum::<f64>() / count;
        let mean_y = points.iter().map(|p| p.1).sum::<f64>() / count;
        let above: f64 = points.iter().map(|p| (p.0 - mean_x) * (p.1 - mean_y)).sum();
        let below: f64 = points.iter().map(|p| (p.0 - mean_x).powi(2)).sum();
        let slope = if below > 0.0 {
            (above / below).max(0.0)
        } else {
            0.0
        };
        let base = mean_y - slope * mean_x;
        if base >= 0.0 && below > 0.0 {
            return Line {
                base,
                slope,
                error: 0.0,
            }
            .with_error(points);
        }
        // A single point, or memory that grows faster than the nodes: a line through 0.
        let squares: f64 = points.iter().map(|p| p.0 * p.0).sum();
        let slope = points.iter().map(|p| p.0 * p.1).sum::<f64>() / squares;
        Line {
            base: 0.0,
            slope,
            error: 0.0,
        }
        .with_error(points)
    }

    fn with_error(self, points: &[(f64, f64)]) -> Line {
        let errors = (points.iter()).map(|(x, y)| ((self.base + self.slope * x) / y - 1.0).abs());
        Line {
            error: errors.fold(0.0, f64::max),
            ..self
        }
    }
}

/// Fits the memory of runs over their nodes. With a single run whose nodes were made of one, memory at the end of that is the base.
fn memory_line(runs: &[(&Point, &Host)]) -> Line {
    let points: Vec<(f64, f64)> = (runs.iter())
        .map(|(point, host)| (f64::from(point.nodes), host.memory() as f64))
        .collect();
    if let &[(_, host)] = runs
        && let &[(nodes, memory)] = points.as_slice()
        && let Some(shared) = host.shared_memory()
    {
        let base = (shared as f64).min(memory);
        let slope = (memory - base) / nodes;
        return Line {
            base,
            slope,
            error: 0.0,
        };
    }
    Line::through(&points)
}

/// Returns the processor time of the boot of `nodes` nodes and of their power-off, seconds, by the run with most nodes of `runs`.
fn ends(runs: &[(&Point, &Host)], nodes: u32) -> f64 {
    let Some((_, last)) = runs.last() else {
        return 0.0;
    };
    // With one boot for all, that of the single node is missing where its snapshot was found.
    let single = runs.iter().rev().find_map(|(_, host)| host.single_boot());
    let each = last.ends_of_node();
    single.unwrap_or(0.0) + each * f64::from(nodes)
}

impl Series {
    /// Estimates the host cost of a cluster from the runs with host times.
    ///
    /// # Errors
    ///
    /// Fails if fewer than two runs of several nodes have host times, or if the memory of a host is too small for a node.
    pub fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let runs: Vec<(&Point, &Host)> = (self.points.iter())
            .filter(|point| point.nodes > 1)
            .filter_map(|point| Some((point, point.host.as_ref()?)))
            .collect();
        let [.., (last, last_host)] = runs.as_slice() else {
            return Err(self.too_few(0));
        };
        if runs.len() < 2 {
            return Err(self.too_few(runs.len()));
        }
        let phases: Vec<PhasePlan> = [("job", request.job_ps), ("window", request.window_ps)]
            .into_iter()
            .filter_map(|(phase, asked)| {
                let costs: Vec<_> = runs.iter().map(|(_, host)| host.cost(phase)).collect();
                let of_last = last_host.cost(phase);
                let measured = of_last.virtual_seconds > 0.0;
                measured.then(|| phase_plan(phase, asked, &costs, of_last, last, request))
            })
            .collect();
        let boots_once = last_host.booted_once()
            || (last.nodes < BOOTS_ONCE_FROM && request.nodes >= BOOTS_ONCE_FROM);
        let mut alike = runs.clone();
        alike.retain(|(_, host)| host.booted_once() == boots_once);
        let mut notes = Vec::new();
        if alike.is_empty() {
            notes.push(format!(
                "from {BOOTS_ONCE_FROM} nodes on one node boots for all unless the study says otherwise, and nodes share what they do not write; in these runs each node booted, so that memory and boot are at most what the plan says; give runs with cluster.boot = \"once\""
            ));
            alike.clone_from(&runs);
        }
        if alike.iter().any(|(_, host)| host.memory_bytes.is_none()) && boots_once {
            notes.push(
                "the memory of runs from older host.json counts pages that nodes share once for each node, so that the plan's is too high; run them again".to_owned(),
            );
        }
        let Line {
            base,
            slope,
            error: memory_error,
        } = memory_line(&alike);
        let ends_cpu_seconds = ends(&alike, request.nodes);
        let room = request.host_memory_bytes as f64 - base;
        if room < slope {
            return Err(PlanError::Memory {
                series: self.name.clone(),
                need: ((base + slope) / f64::from(1 << 20)) as u64,
                have: request.host_memory_bytes >> 20,
            });
        }
        let nodes_per_host = match slope > 0.0 {
            true => ((room / slope).floor() as u32).min(request.nodes),
            false => request.nodes,
        };
        let hosts = request.nodes.div_ceil(nodes_per_host);
        let hours = |cost: fn(&PhasePlan) -> f64| {
            (phases.iter().map(cost).sum::<f64>() + ends_cpu_seconds) / HOUR
        };
        let core_hours = hours(|phase| phase.cpu_seconds);
        let core_hours_by_instruction = hours(|phase| phase.cpu_seconds_by_instruction);
        let cores = f64::from(hosts) * f64::from(request.host_cores);
        let exchanges = phases
            .iter()
            .map(|phase| phase.virtual_seconds)
            .sum::<f64>()
            * SECOND_PS
            / request.latency_ps as f64;
        let exchange_hours = match request.exchange_ps {
            Some(ps) if hosts > 1 => exchanges * ps as f64 / SECOND_PS / HOUR,
            _ => 0.0,
        };
        if hosts > 1 && request.exchange_ps.is_none() {
            notes.push(
                "hosts also exchange messages after each latency of the network: give exchange=TIME, which nodescope run --stats measures".to_owned(),
            );
        }
        Ok(Plan {
            request: request.clone(),
            phases,
            boots_once,
            ends_cpu_seconds,
            notes,
            memory_per_node_bytes: slope,
            memory_base_bytes: base,
            memory_error,
            memory_bytes: f64::from(hosts) * base + f64::from(request.nodes) * slope,
            nodes_per_host,
            hosts,
            core_hours,
            core_hours_by_instruction,
            exchange_hours,
            hours: [core_hours, core_hours_by_instruction]
                .map(|hours| hours / cores + exchange_hours),
        })
    }

    fn too_few(&self, found: usize) -> PlanError {
        PlanError::TooFew {
            series: self.name.clone(),
            found,
        }
    }
}

/// Computes the cost of a phase. Each core executes as many instructions in a second of virtual time as in the run with most nodes.
fn phase_plan(
    phase: &str,
    asked: Option<u64>,
    costs: &[Cost],
    last: Cost,
    point: &Point,
    request: &PlanRequest,
) -> PhasePlan {
    let (per_node_second, per_instruction, error) = fit(costs);
    let virtual_seconds = asked.map_or(last.virtual_seconds, |ps| ps as f64 / SECOND_PS);
    let cores = f64::from(request.nodes) * f64::from(request.cores);
    let per_core_second =
        last.instructions / (f64::from(point.ranks.max(1)) * last.virtual_seconds);
    let instructions = per_core_second * cores * virtual_seconds;
    let node_seconds = f64::from(request.nodes) * virtual_seconds;
    PhasePlan {
        phase: phase.to_owned(),
        per_node_second,
        per_instruction,
        error,
        virtual_seconds,
        instructions,
        cpu_seconds: per_node_second * node_seconds + per_instruction * instructions,
        cpu_seconds_by_instruction: last.cpu_seconds / last.instructions.max(1.0) * instructions,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn costs(a: f64, b: f64, runs: &[(f64, f64)]) -> Vec<Cost> {
        let cost = |&(node_seconds, instructions): &(f64, f64)| Cost {
            node_seconds,
            instructions,
            cpu_seconds: a * node_seconds + b * instructions,
            ..Cost::default()
        };
        runs.iter().map(cost).collect()
    }

    #[test]
    fn exact_costs_are_found() {
        // 0.5 s for each node and second, 10 ns for each instruction.
        let (a, b, error) = fit(&costs(0.5, 1e-8, &[(1.0, 1e9), (4.0, 2e9), (8.0, 3e9)]));
        assert!(
            (a - 0.5).abs() < 1e-9 && (b - 1e-8).abs() < 1e-17,
            "{a} {b}"
        );
        assert!(error < 1e-9);
    }

    #[test]
    fn costs_that_the_runs_do_not_tell_apart_are_all_put_to_one() {
        let (a, b, error) = fit(&costs(1.0, 0.0, &[(1.0, 1e9), (2.0, 2e9)]));
        assert!(error < 1e-9, "{a} {b} {error}");
        assert!((a == 0.0) != (b == 0.0));
    }

    #[test]
    fn a_line_is_found() {
        let line = Line::through(&[(1.0, 150.0), (2.0, 200.0), (4.0, 300.0)]);
        assert!((line.base - 100.0).abs() < 1e-9 && (line.slope - 50.0).abs() < 1e-9);
        assert!(line.error < 1e-12);
        // A line with a value below 0 at 0, and a single point.
        let steep = Line::through(&[(1.0, 10.0), (2.0, 40.0)]);
        assert_eq!((steep.base, steep.slope), (0.0, 18.0));
        let single = Line::through(&[(4.0, 40.0)]);
        assert_eq!((single.base, single.slope), (0.0, 10.0));
    }

    #[test]
    fn requests_are_read_and_mistakes_told() {
        let request: PlanRequest = "nodes=224,cores=16,host-memory=48 GiB,window=20ms"
            .parse()
            .unwrap();
        assert_eq!(
            (request.nodes, request.cores, request.host_cores),
            (224, 16, 12)
        );
        assert_eq!(request.host_memory_bytes, 48 << 30);
        assert_eq!(
            (request.job_ps, request.window_ps),
            (None, Some(20_000_000_000))
        );
        let told = |text: &str| text.parse::<PlanRequest>().unwrap_err();
        assert!(told("nodes=224").contains("cores is missing"));
        assert!(told("nodes=0,cores=1").contains("no number from 1"));
        assert!(told("nodes").contains("has no \"=\""));
        assert!(told("nodes=1,cores=1,hosts=2").contains("is none of"));
        assert_eq!((request.latency_ps, request.exchange_ps), (1_300_000, None));
        let with: PlanRequest = "nodes=2,cores=1,latency=10us,exchange=21us"
            .parse()
            .unwrap();
        assert_eq!(
            (with.latency_ps, with.exchange_ps),
            (10_000_000, Some(21_000_000))
        );
        assert!(told("nodes=1,cores=1,job=0s").contains("no time above zero"));
    }

    proptest! {
        #[test]
        fn fitted_costs_are_never_below_zero(
            runs in prop::collection::vec((0.001f64..100.0, 1e3f64..1e11, 0.001f64..1e4), 1..8)
        ) {
            let costs: Vec<Cost> = runs.iter().map(|&(node_seconds, instructions, cpu_seconds)| Cost {
                node_seconds, instructions, cpu_seconds, ..Cost::default()
            }).collect();
            let (a, b, error) = fit(&costs);
            prop_assert!(a >= 0.0 && b >= 0.0 && a.is_finite() && b.is_finite() && error.is_finite());
        }
    }
}
