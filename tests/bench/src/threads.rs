//! Two nodes on two host threads, beside one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nodescope_cluster::{Observer, Progress};
use serde_json::{Map, Value, json};

use crate::comparison::{cell, number};
use crate::engine::{self, Console, Engine};
use crate::guest::{Guest, Marks};
use crate::session::{Mark, Run, What};
use crate::time::{Point, median};
use crate::workload::Workload;
use crate::{Failure, Options};

/// Kernels that both nodes run; none that waits for the host's memory, which the nodes share.
const KERNELS: [&str; 4] = [
    "integer",
    "dgemm_scalar_sse2",
    "dgemm_vector_sse2",
    "quicksort",
];

/// Two nodes run the kernels, each its own; the time counts while both do.
pub fn threads(options: &Options) -> Result<Value, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let kernels = match options.kernels.as_slice() {
        [] => KERNELS.map(String::from).into(),
        chosen => chosen.to_vec(),
    };
    let workload = Workload::kernels(folder.path(), &kernels, 1)?;
    let launcher = "mpirun -np 2 --map-by node";
    let guest = workload.guest(&options.image()?, launcher, Marks::Console)?;
    let mut line = Map::new();
    line.insert("name".into(), "threads".into());
    let mut by_engine = Map::new();
    for engine in options.engines() {
        let (mut one, mut two) = (Vec::new(), Vec::new());
        for round in 1..=options.rounds.max(1) {
            options.say(&format!("round {round} of {}", options.rounds.max(1)));
            one.push(run(&guest, engine, 1)?);
            two.push(run(&guest, engine, 2)?);
        }
        let of = |runs: &[Run], f: fn(&Run) -> f64| median(runs.iter().map(f));
        let wall_speed = |r: &Run| r.instructions as f64 / r.spent.wall / 1e6;
        let cores = |r: &Run| r.spent.cpu / r.spent.wall;
        options.say(&format!(
            "\nthreads, {}: medians\n{:<20}{:>10}{:>10}{:>10}{:>14}{:>8}",
            engine.name(),
            "",
            "M instr",
            "wall s",
            "CPU s",
            "M/s of wall",
            "cores"
        ));
        for (name, runs) in [("one host thread", &one), ("two host threads", &two)] {
            options.say(&format!(
                "{name:<20}{:>10}{:>10}{:>10}{:>14}{:>8}",
                cell(of(runs, |r| r.instructions as f64 / 1e6), 1),
                cell(of(runs, |r| r.spent.wall), 3),
                cell(of(runs, |r| r.spent.cpu), 3),
                cell(of(runs, wall_speed), 1),
                cell(of(runs, cores), 2),
            ));
        }
        let ratio = of(&two, wall_speed) / of(&one, wall_speed);
        let work = of(&two, Run::speed) / of(&one, Run::speed);
        options.say(&format!(
            "throughput {} x; instructions for a second of processor time {} x",
            cell(ratio, 2),
            cell(work, 2)
        ));
        let value = json!({
            "million_instructions": number(of(&one, |r| r.instructions as f64 / 1e6)),
            "one_thread_million_instructions_per_wall_second": number(of(&one, wall_speed)),
            "two_threads_million_instructions_per_wall_second": number(of(&two, wall_speed)),
            "two_threads_cores": number(of(&two, cores)),
            "throughput_ratio": number(ratio),
            "processor_time_ratio": number(work),
        });
        // The last engine, the default, stands for all.
        line.insert("engine".into(), engine.name().into());
        line.insert("throughput_ratio".into(), number(ratio));
        by_engine.insert(engine.name().into(), value);
    }
    line.insert("engines".into(), by_engine.into());
    line.insert("rounds".into(), options.rounds.max(1).into());
    Ok(line.into())
}

/// From when both nodes have begun to when the first has ended.
fn run(guest: &Guest, engine: Engine, host_threads: usize) -> Result<Run, Failure> {
    let mut config = engine::config(guest, engine, 2, 1);
    config.host_threads = host_threads;
    let results = tempfile::tempdir().map_err(Failure::Files)?;
    let enough = Arc::new(AtomicBool::new(false));
    let mut watch = Watch {
        first: guest.wanted.first().cloned().unwrap_or_default(),
        last: guest.wanted.last().cloned().unwrap_or_default(),
        begun: 0,
        ended: false,
        open: None,
        run: None,
        console: Console::default(),
        enough: enough.clone(),
    };
    let outcome = nodescope_cluster::run(&config, results.path(), &enough, &mut watch)
        .map_err(|e| Failure::Guest(e.to_string()))?;
    watch.run.ok_or_else(|| {
        Failure::Guest(format!(
            "two nodes did not run the kernels at the same time; they ended by {:?}; the console:\n{}",
            outcome.ending,
            watch.console.text()
        ))
    })
}

/// Reads the marks of both ranks off node 0's console.
struct Watch {
    first: String,
    last: String,
    /// Ranks that have begun the first kernel.
    begun: u32,
    /// Whether a rank has ended the last.
    ended: bool,
    open: Option<(Point, u64)>,
    run: Option<Run>,
    console: Console,
    /// Set when all is known: the cluster stops.
    enough: Arc<AtomicBool>,
}

impl Observer for Watch {
    fn progress(&mut self, progress: &dyn Fn() -> Progress) {
        if self.run.is_some() || self.begun < 2 || (self.open.is_some() && !self.ended) {
            return;
        }
        let instructions = progress().instructions.iter().sum();
        let now = Point::now();
        match self.open {
            None => self.open = Some((now, instructions)),
            Some((began, before)) => {
                self.run = Some(Run {
                    instructions: instructions - before,
                    spent: began.to(now),
                });
                self.enough.store(true, Ordering::Relaxed);
            }
        }
    }

    fn message(&mut self, _node: u32, _text: &str) {}

    fn console(&mut self, node: u32, bytes: &[u8]) {
        if node != 0 {
            return;
        }
        for line in self.console.take(bytes.to_vec()) {
            match Mark::parse(&line) {
                Some(mark) if mark.what == What::Begin && mark.name == self.first => {
                    self.begun += 1;
                }
                Some(mark) if mark.what == What::End && mark.name == self.last => {
                    self.ended = true;
                }
                _ => {}
            }
        }
    }
}
