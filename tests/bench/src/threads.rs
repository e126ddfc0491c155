//! Two nodes on two host threads, compared with two nodes on one host thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nodescope_cluster::{Observer, Progress, ResultsFolder};
use serde_json::{Map, Value, json};

use crate::comparison::{cell, number};
use crate::engine::{self, Console, Engine};
use crate::guest::{Guest, Marks};
use crate::session::{Mark, Run, What};
use crate::time::{Point, median};
use crate::workload::{Length, Workload};
use crate::{Failure, Options, barrier};

/// Kernels that both nodes run. No kernel is bound by the host's memory, which the nodes share.
const KERNELS: [&str; 4] = [
    "integer",
    "dgemm_scalar_sse2",
    "dgemm_vector_sse2",
    "quicksort",
];

/// Links by latency in picoseconds: the nodes synchronize once in each latency. The first link is InfiniBand as in the ready study of hpcc;
/// its figure is reported for the whole measurement. The second link is Ethernet.
const LINKS: [(&str, u64); 2] = [("1.3us", 1_300_000), ("20us", 20_000_000)];

/// Duration of each thread's work in the control, [`barrier::throughput`].
const BARRIER_WORK: Duration = Duration::from_secs(2);

/// Measures two nodes on one host thread and on two. Both nodes begin their kernels at about the same virtual time, as after a barrier.
/// Only the time in which both nodes run kernels counts.
///
/// Two further figures show the limits of two cores of this host:
///
/// - two independent clusters at the same time, on one host thread each: cores of one processor share caches, power and memory, and may be
///   threads of one core;
/// - two threads that only synchronize, as often as the nodes: each thread waits whenever the other thread's core is interrupted.
///
/// Ratios compare runs of the same round, so that slow hours of the host do not count.
pub fn threads(options: &Options) -> Result<Value, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let image = options.image()?;
    let mut line = Map::new();
    line.insert("name".into(), "threads".into());
    let rounds = options.rounds.max(1);
    let mut by_engine = Map::new();
    for engine in options.engines() {
        let guest = guest(options, folder.path(), &image, engine)?;
        let mut by_link = [const { Vec::new() }; LINKS.len()];
        for round in 1..=rounds {
            for ((link, latency), of_link) in LINKS.iter().zip(&mut by_link) {
                let of_round = Round::run(&guest, engine, *latency, round % 2 == 0)?;
                options.say(&format!(
                    "round {round} of {rounds}, {link}: one thread {:.3} s, two {:.3} s, ratio {:.2}; barrier {:.2}",
                    of_round.one.spent.wall,
                    of_round.two.spent.wall,
                    of_round.throughput(),
                    of_round.barrier
                ));
                of_link.push(of_round);
            }
        }
        options.say(&format!(
            "\nthreads, {}: medians\n{:<8}{:>13}{:>9}{:>9}{:>9}{:>13}{:>7}{:>12}{:>15}{:>7}{:>8}{:>9}",
            engine.name(),
            "link",
            "host threads",
            "M instr",
            "wall s",
            "CPU s",
            "M/s of wall",
            "cores",
            "throughput",
            "(of rounds)",
            "work",
            "apart",
            "barrier"
        ));
        let mut links = Map::new();
        for ((link, _), of_link) in LINKS.iter().zip(&by_link) {
            let one = Medians::of(of_link, |r| &r.one);
            let two = Medians::of(of_link, |r| &r.two);
            let throughput = Spread::of(of_link, Round::throughput);
            let work = Spread::of(of_link, |r| r.two.speed() / r.one.speed());
            let apart = Spread::of(of_link, |r| r.apart / wall_speed(&r.one));
            let barrier = Spread::of(of_link, |r| r.barrier);
            for (threads, m) in [(1, &one), (2, &two)] {
                let ratios = match threads {
                    1 => String::new(),
                    _ => format!(
                        "{:>12}{:>15}{:>7}{:>8}{:>9}",
                        cell(throughput.median, 2),
                        format!("{:.2} to {:.2}", throughput.least, throughput.most),
                        cell(work.median, 2),
                        cell(apart.median, 2),
                        cell(barrier.median, 2),
                    ),
                };
                options.say(&format!(
                    "{link:<8}{threads:>13}{:>9}{:>9}{:>9}{:>13}{:>7}{ratios}",
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
                "throughput_ratio": number(throughput.median),
                "least_throughput_ratio": number(throughput.least),
                "most_throughput_ratio": number(throughput.most),
                "work_ratio": number(work.median),
                "unrelated_clusters_throughput_ratio": number(apart.median),
                "barrier_alone_throughput_ratio": number(barrier.median),
            });
            // The first link with the last (default) engine gives the reported figure.
            if *link == LINKS[0].0 {
                line.insert("engine".into(), engine.name().into());
                line.insert("throughput_ratio".into(), number(throughput.median));
            }
            links.insert((*link).into(), value);
        }
        by_engine.insert(engine.name().into(), links.into());
    }
    line.insert("engines".into(), by_engine.into());
    line.insert("rounds".into(), rounds.into());
    Ok(line.into())
}

/// Makes the guest of both nodes. Its kernels run for some seconds in either engine, since slow phases of a host's core last milliseconds
/// to tenths of a second.
fn guest(options: &Options, folder: &Path, image: &Path, engine: Engine) -> Result<Guest, Failure> {
    let kernels = match options.kernels.as_slice() {
        [] => KERNELS.map(String::from).into(),
        chosen => chosen.to_vec(),
    };
    let length = match engine {
        Engine::Interpreter => Length::Times(1),
        Engine::Translator => Length::Times(10),
    };
    let mut workload = Workload::kernels(folder, &kernels, length)?;
    workload.arguments.insert(0, "together".into());
    workload.guest(image, "mpirun -np 2 --map-by node", Marks::Console)
}

/// Measurements of one round, taken within about a minute.
struct Round {
    /// The nodes on one host thread.
    one: Run,
    /// The nodes on two host threads.
    two: Run,
    /// Million instructions per second of wall time, summed over two clusters that run at the same time on one host thread each.
    apart: f64,
    /// Result of [`barrier::throughput`] for pieces as long as a node's mean work in a quantum.
    barrier: f64,
}

impl Round {
    /// Runs a round. If `two_first` is true, the run with two threads comes first.
    fn run(
        guest: &Guest,
        engine: Engine,
        latency_ps: u64,
        two_first: bool,
    ) -> Result<Self, Failure> {
        let on = |threads| run(guest, engine, latency_ps, threads);
        let ((one, virtual_ps), (two, _)) = if two_first {
            let two = on(2)?;
            (on(1)?, two)
        } else {
            (on(1)?, on(2)?)
        };
        let quanta = virtual_ps as f64 / latency_ps as f64;
        let piece = Duration::from_secs_f64(one.spent.wall / quanta / 2.0);
        Ok(Self {
            one,
            two,
            apart: clusters_at_once(guest, engine, latency_ps)?,
            barrier: barrier::throughput(piece, BARRIER_WORK),
        })
    }

    fn throughput(&self) -> f64 {
        wall_speed(&self.two) / wall_speed(&self.one)
    }
}

/// Returns million instructions per second of wall time.
fn wall_speed(run: &Run) -> f64 {
    run.instructions as f64 / run.spent.wall / 1e6
}

/// Medians of the runs with the same number of host threads.
struct Medians {
    /// Instructions in millions.
    instructions: f64,
    /// Wall time in seconds.
    wall: f64,
    /// Processor time in seconds.
    cpu: f64,
    /// Million instructions per second of wall time.
    wall_speed: f64,
    /// Processor time divided by wall time: the mean number of cores in use.
    cores: f64,
}

impl Medians {
    fn of(rounds: &[Round], run: fn(&Round) -> &Run) -> Self {
        let of = |f: fn(&Run) -> f64| median(rounds.iter().map(|r| f(run(r))));
        Self {
            instructions: of(|r| r.instructions as f64 / 1e6),
            wall: of(|r| r.spent.wall),
            cpu: of(|r| r.spent.cpu),
            wall_speed: of(wall_speed),
            cores: of(|r| r.spent.cpu / r.spent.wall),
        }
    }
}

/// Median, minimum and maximum of a ratio over all rounds.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(rounds: &[Round], ratio: fn(&Round) -> f64) -> Self {
        let ratios = || rounds.iter().map(ratio);
        Self {
            median: median(ratios()),
            least: ratios().fold(f64::INFINITY, f64::min),
            most: ratios().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// Runs two clusters at the same time, on one host thread each. Returns the sum of their million instructions per second of wall time.
fn clusters_at_once(guest: &Guest, engine: Engine, latency_ps: u64) -> Result<f64, Failure> {
    let speed = || run(guest, engine, latency_ps, 1).map(|(run, _)| wall_speed(&run));
    std::thread::scope(|scope| {
        let other = scope.spawn(speed);
        let own = speed();
        let other = other
            .join()
            .unwrap_or_else(|e| std::panic::resume_unwind(e));
        Ok(own? + other?)
    })
}

/// Measures from the time at which both nodes have begun to the time at which the first node has ended. Also returns the length of this
/// interval in virtual time, in picoseconds.
fn run(
    guest: &Guest,
    engine: Engine,
    latency_ps: u64,
    host_threads: usize,
) -> Result<(Run, u64), Failure> {
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
    let folder =
        ResultsFolder::create(results.path()).map_err(|e| Failure::Guest(e.to_string()))?;
    let outcome = nodescope_cluster::run(&config, &folder, &enough, &mut watch)
        .map_err(|e| Failure::Guest(e.to_string()))?;
    watch.run.ok_or_else(|| {
        Failure::Guest(format!(
            "two nodes did not run the kernels at the same time; they ended by {:?}; the console:\n{}",
            outcome.ending,
            watch.console.text()
        ))
    })
}

/// Observer of both ranks' marks on the console of node 0.
struct Watch {
    first: String,
    last: String,
    /// Number of ranks that have begun the first kernel.
    begun: u32,
    /// True once a rank has ended the last kernel.
    ended: bool,
    /// State when both ranks had begun: host time, instructions and virtual time in picoseconds.
    open: Option<(Point, u64, u64)>,
    /// Result of [`run`].
    run: Option<(Run, u64)>,
    console: Console,
    /// Set when the measurement is complete, so that the cluster stops.
    enough: Arc<AtomicBool>,
}

impl Observer for Watch {
    fn progress(&mut self, progress: &dyn Fn() -> Progress) {
        if self.run.is_some() || self.begun < 2 || (self.open.is_some() && !self.ended) {
            return;
        }
        let progress = progress();
        let instructions = progress.instructions.iter().sum();
        let now = Point::now();
        match self.open {
            None => self.open = Some((now, instructions, progress.virtual_ps)),
            Some((began, before, since_ps)) => {
                let run = Run {
                    instructions: instructions - before,
                    spent: began.to(now),
                };
                self.run = Some((run, progress.virtual_ps - since_ps));
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
