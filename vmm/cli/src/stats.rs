//! Host times of a run's processes (`nodescope run --stats`): which process the others wait for.

use std::time::Duration;

use nodescope_cluster::{ClusterConfig, Peers, ResultsFolder};
use nodescope_distributed::{ExchangeTimes, Group};
use nodescope_scaling::chart::{Labels, Part, bars};
use nodescope_study::quantity::Time;
use serde::{Deserialize, Serialize};

use crate::exit::{Exit, Failure};
use crate::results::put;

/// Host times of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Process {
    /// Name of the process, with its host and its nodes.
    name: String,
    /// Way of its messages to the master, or of the master's to worker 1.
    way: String,
    /// Host threads on which its nodes ran.
    threads: usize,
    /// Seconds in which its nodes ran, or its threads waited for each other.
    running: f64,
    #[serde(flatten)]
    times: ExchangeTimes,
}

/// Contents of `processes.json`.
#[derive(Serialize)]
pub struct Stats {
    version: u32,
    /// Virtual time for which nodes run without frames of other nodes, picoseconds.
    lookahead_ps: u64,
    processes: Vec<Process>,
}

impl Stats {
    /// Names of the files among the results.
    pub const NAMES: [&'static str; 2] = ["processes.json", "processes.svg"];

    /// Gathers the times of all processes, each of which calls this function after its run. Returns `None` if a process is lost.
    pub fn gather(group: &Group, config: &ClusterConfig, elapsed: Duration) -> Option<Self> {
        let times = group.times();
        let spent = times.exchanging + times.waiting;
        let own = Process {
            name: group.names()[group.rank()].clone(),
            way: group.way(usize::from(group.rank() == 0)).into(),
            threads: config.host_threads,
            running: (elapsed.as_secs_f64() - spent).max(0.0),
            times,
        };
        let own = serde_json::to_vec(&own).ok()?;
        let all = group.all_gather(&own).ok()?;
        let processes = all.iter().map(|text| serde_json::from_slice(text));
        Some(Self {
            version: 1,
            lookahead_ps: config.link.latency_ps,
            processes: processes.collect::<Result<_, _>>().ok()?,
        })
    }

    /// Returns the times as text: a line for each process, and what follows from them.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "\nprocesses, host's time   running         waiting      exchanging   an exchange  by\n",
        );
        for process in &self.processes {
            let times = &process.times;
            let all = process.running + times.waiting + times.exchanging;
            let part =
                |seconds: f64| format!("{seconds:.1} s {:>3.0} %", 100.0 * seconds / all.max(1e-9));
            let each = times.exchanging * 1e6 / times.exchanges.max(1) as f64;
            text += &format!(
                "  {}\n{:>32}{:>16}{:>16}{each:>11.1} us  {}\n",
                process.name,
                part(process.running),
                part(times.waiting),
                part(times.exchanging),
                process.way,
            );
        }
        let first = &self.processes[0].times;
        text += &format!("exchanges   {}", first.exchanges);
        text += &format!(
            ", one after {} of virtual time at most while nodes run\n",
            Time(self.lookahead_ps)
        );
        text + &self.advice() + "\n"
    }

    /// Returns a sentence about the process that the others wait for.
    fn advice(&self) -> String {
        let waited = |of: &&Process| of.times.waiting;
        let slowest = self
            .processes
            .iter()
            .min_by(|a, b| waited(a).total_cmp(&waited(b)));
        let Some(slowest) = slowest else {
            return String::new();
        };
        let others = self.processes.iter().filter(|of| of.name != slowest.name);
        let most = others.map(|of| of.times.waiting).fold(0.0, f64::max);
        let whole = slowest.running + slowest.times.waiting + slowest.times.exchanging;
        if most - slowest.times.waiting > 0.1 * whole {
            format!(
                "slowest     {}: others wait {most:.1} s for this process; give it fewer nodes, more threads or a faster host",
                slowest.name
            )
        } else if slowest.times.exchanging > 0.3 * whole {
            "slowest     none: messages take more than 30 % of the time; use fewer processes, a faster network or MPI".into()
        } else {
            "slowest     none: the processes wait about equally long".into()
        }
    }

    /// Writes the times and their picture into the results.
    pub fn write(&self, results: &ResultsFolder) -> Result<(), Failure> {
        let failed = |error: &dyn std::error::Error| Failure::of(Exit::Host, error);
        let json = serde_json::to_string_pretty(self).map_err(|error| failed(&error))?;
        put(results, Self::NAMES[0], &(json + "\n"))?;
        let part = |name: &str, value: fn(&Process) -> f64| Part {
            name: name.into(),
            values: self.processes.iter().map(|of| Some(value(of))).collect(),
        };
        let parts = [
            part("running", |of| of.running),
            part("waiting for other processes", |of| of.times.waiting),
            part("exchanging messages", |of| of.times.exchanging),
        ];
        let positions: Vec<String> = (0..self.processes.len())
            .map(|rank| {
                if rank == 0 {
                    "master".into()
                } else {
                    format!("worker {rank}")
                }
            })
            .collect();
        let labels = Labels {
            title: "Host's time of the run's processes",
            values: "seconds",
            positions: &positions,
            across: "process",
        };
        let picture = bars(&labels, &parts).map_err(|error| failed(&error))?;
        put(results, Self::NAMES[1], &picture)
    }
}
