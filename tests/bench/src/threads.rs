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

/// Links by latency in picoseconds: the nodes meet once in each latency. InfiniBand as in the ready study of hpcc, whose figure is
/// the one that counts, and Ethernet.
const LINKS: [(&str, u64); 2] = [("1.3us", 1_300_000), ("20us", 20_000_000)];

/// Two nodes run the kernels, each its own, from the same virtual time on, as behind a barrier; the time counts while both do. Two
/// clusters at once that have nothing to do with each other, on a host thread each, tell what the host's two cores give at most:
/// those of one processor share caches, power and memory, and where they are threads of one core, nearly all of it.
pub fn threads(options: &Options) -> Result<Value, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let kernels = match options.kernels.as_slice() {
        [] => KERNELS.map(String::from).into(),
        chosen => chosen.to_vec(),
    };
    let mut workload = Workload::kernels(folder.path(), &kernels, 1)?;
    workload.arguments.insert(0, "together".into());
    let launcher = "mpirun -np 2 --map-by node";
    let guest = workload.guest(&options.image()?, launcher, Marks::Console)?;
    let mut line = Map::new();
    line.insert("name".into(), "threads".into());
    let rounds = options.rounds.max(1);
    let mut by_engine = Map::new();
    for engine in options.engines() {
        let mut by_link = [(); LINKS.len()].map(|()| (Vec::new(), Vec::new(), Vec::new()));
        for round in 1..=rounds {
            options.say(&format!("round {round} of {rounds}"));
            for ((_, latency), (one, two, apart)) in LINKS.iter().zip(&mut by_link) {
                one.push(run(&guest, engine, *latency, 1)?);
                two.push(run(&guest, engine, *latency, 2)?);
                apart.push(clusters_at_once(&guest, engine, *latency)?);
            }
        }
        options.say(&format!(
            "\nthreads, {}: medians\n{:<10}{:>14}{:>10}{:>10}{:>10}{:>14}{:>8}{:>12}{:>12}{:>12}",
            engine.name(),
            "link",
            "host threads",
            "M instr",
            "wall s",
            "CPU s",
            "M/s of wall",
            "cores",
            "throughput",
            "work",
            "at most"
        ));
        let mut links = Map::new();
        for ((link, _), (one, two, apart)) in LINKS.iter().zip(&by_link) {
            let (one, two) = (Medians::of(one), Medians::of(two));
            let most = median(apart.iter().copied()) / one.wall_speed;
            let throughput = two.wall_speed / one.wall_speed;
            let work = two.cpu_speed / one.cpu_speed;
            for (threads, m) in [(1, &one), (2, &two)] {
                let (throughput, work, most) = match threads {
                    1 => (String::new(), String::new(), String::new()),
                    _ => (cell(throughput, 2), cell(work, 2), cell(most, 2)),
                };
                options.say(&format!(
                    "{link:<10}{threads:>14}{:>10}{:>10}{:>10}{:>14}{:>8}{throughput:>12}{work:>12}{most:>12}",
                    cell(m.instructions, 1),
                    cell(m.wall, 3),
                    cell(m.cpu, 3),
                    cell(m.wall_speed, 1),
                    cell(m.cores, 2),
                ));
            }
            let value = json!({
                "million_instructions": number(one.instructions),
                "one_thread_million_instructions_per_wall_second": number(one.wall_speed),
                "two_threads_million_instructions_per_wall_second": number(two.wall_speed),
                "one_thread_cores": number(one.cores),
                "two_threads_cores": number(two.cores),
                "throughput_ratio": number(throughput),
                "work_ratio": number(work),
                "unrelated_clusters_throughput_ratio": number(most),
            });
            // The first link's figure stands for all, and that of the last engine, the default.
            if *link == LINKS[0].0 {
                line.insert("engine".into(), engine.name().into());
                line.insert("throughput_ratio".into(), number(throughput));
            }
            links.insert((*link).into(), value);
        }
        by_engine.insert(engine.name().into(), links.into());
    }
    line.insert("engines".into(), by_engine.into());
    line.insert("rounds".into(), rounds.into());
    Ok(line.into())
}

/// Medians of runs that did the same.
struct Medians {
    /// Millions.
    instructions: f64,
    /// Seconds.
    wall: f64,
    /// Seconds.
    cpu: f64,
    /// Million instructions a second of wall time.
    wall_speed: f64,
    /// Million instructions a second of processor time.
    cpu_speed: f64,
    /// Processor time for each second of wall time: what the host gave.
    cores: f64,
}

impl Medians {
    fn of(runs: &[Run]) -> Self {
        let of = |f: fn(&Run) -> f64| median(runs.iter().map(f));
        Self {
            instructions: of(|r| r.instructions as f64 / 1e6),
            wall: of(|r| r.spent.wall),
            cpu: of(|r| r.spent.cpu),
            wall_speed: of(|r| r.instructions as f64 / r.spent.wall / 1e6),
            cpu_speed: of(Run::speed),
            cores: of(|r| r.spent.cpu / r.spent.wall),
        }
    }
}

/// Two clusters at once, on a host thread each: their million instructions a second of wall time, together.
fn clusters_at_once(guest: &Guest, engine: Engine, latency_ps: u64) -> Result<f64, Failure> {
    let speed = || -> Result<f64, Failure> {
        let run = run(guest, engine, latency_ps, 1)?;
        Ok(run.instructions as f64 / run.spent.wall / 1e6)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(speed);
        let own = speed();
        let other = other
            .join()
            .unwrap_or_else(|e| std::panic::resume_unwind(e));
        Ok(own? + other?)
    })
}

/// From when both nodes have begun to when the first has ended.
fn run(
    guest: &Guest,
    engine: Engine,
    latency_ps: u64,
    host_threads: usize,
) -> Result<Run, Failure> {
    let mut config = engine::config(guest, engine, 2, 1);
    config.link.latency_ps = latency_ps;
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
