//! Predicts the wall time of MPI programs on this host from traces, and measures the wall time.
//!
//! Two ranks communicate over shared memory or over TCP's loopback. For each of these two paths a cluster is fitted to a traced ping-pong.
//! Each program runs over each path without the tracer, which gives the wall time, and with the tracer, which gives a trace. From each
//! trace the time over both paths is predicted. For the traced path the trace has the bursts of that path, but the times of messages are
//! predicted. For the other path the prediction uses no run over that path.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use nodescope_calibrate::trace::Collector;
use nodescope_calibrate::{ClusterFile, FitOptions, FittedPath};
use nodescope_host_trace::tracer::{Mpi, library};
use nodescope_hypercall::Function;
use nodescope_loop_tree::Program;
use nodescope_loop_tree::sequence::{SequenceBuilder, SequenceOptions};
use nodescope_predict::{Cluster, Request, predict};
use nodescope_trace::{Event, TraceReader};
use serde_json::{Value, json};
use statrs::statistics::{Data, OrderStatistics};
use thiserror::Error;

/// Paths between the two ranks by name, each with the transports that Open MPI must use.
const PATHS: [(&str, &str); 2] = [("shm", "self,vader"), ("tcp", "self,tcp")];
/// Names of the MPI programs, whose sources are in the folder `programs`.
const PROGRAMS: [&str; 4] = ["halo", "solver", "pipeline", "mixed"];
/// Arguments of the programs. A run takes some 0.4 s, so that runs that are compared are close together in time.
const ARGUMENTS: [(&str, &[&str]); 4] = [
    ("halo", &["512", "700"]),
    ("solver", &["128", "3500"]),
    ("pipeline", &["1700"]),
    ("mixed", &["45"]),
];

/// Reason for which nothing could be measured.
#[derive(Debug, Error)]
enum Failure {
    /// The compiler refuses a program: the program's name, and the compiler's messages.
    #[error("cannot compile {0}: {1}")]
    Compile(String, String),
    /// A file cannot be read or written.
    #[error("cannot read or write a file: {0}")]
    Files(std::io::Error),
    /// Another failure, with its message.
    #[error("{0}")]
    Other(String),
}

/// MPI programs on this host: times predicted from traces, compared with measured times (tests/native-mpi/README.md).
#[derive(Parser, Clone, Debug)]
struct Options {
    /// Print the line of JSON alone.
    #[arg(long)]
    json: bool,
    /// Rounds of interleaved runs; errors are medians over them.
    #[arg(long, default_value_t = 9)]
    rounds: u32,
    /// Programs to run, all by default.
    #[arg(long, value_delimiter = ',')]
    programs: Vec<String>,
    /// Keep the fitted clusters in this folder.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

impl Options {
    fn say(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }
}

/// Times of a program that is traced over one path, measured and predicted, in seconds; one value for each round.
#[derive(Clone, Debug, Default)]
struct Runs {
    /// Times without the tracer: directly before and directly after the traced run.
    plain: Vec<[f64; 2]>,
    traced: Vec<f64>,
    /// Times in seconds that are predicted from the round's trace, for each target path.
    predicted: [Vec<f64>; PATHS.len()],
}

/// Measures all programs in rounds, predicts their times from the traces, and compares both.
fn measure(options: &Options) -> Result<Value, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let machine = Machine::new(folder.path())?;
    let programs: Vec<&str> = match options.programs.as_slice() {
        [] => PROGRAMS.into(),
        chosen => chosen.iter().map(String::as_str).collect(),
    };
    for program in &programs {
        let source = sources().join("programs").join(format!("{program}.c"));
        machine.compile(&source, program)?;
    }
    machine.compile(&calibration(), "measure")?;
    let stolen = stolen();
    let mut collectors = PATHS.map(|_| Collector::default());
    let mut traces: Vec<Vec<[PathBuf; PATHS.len()]>> = Vec::new();
    let mut runs = vec![[(); PATHS.len()].map(|()| Runs::default()); programs.len()];
    for round in 1..=options.rounds.max(1) {
        options.say(&format!("round {round} of {}", options.rounds.max(1)));
        for ((path, transports), collector) in PATHS.iter().zip(&mut collectors) {
            let trace = machine
                .trace("measure", transports, &format!("measure-{path}"))?
                .1;
            for event in events(&trace)? {
                collector.add(&event?);
            }
        }
        let mut of_round = Vec::new();
        for (program, runs) in programs.iter().zip(&mut runs) {
            let mut paths = PATHS.map(|_| PathBuf::new());
            for (((path, transports), runs), kept) in PATHS.iter().zip(runs).zip(&mut paths) {
                let before = machine.run(program, transports, None)?;
                let (seconds, trace) =
                    machine.trace(program, transports, &format!("{program}-{path}-{round}"))?;
                let after = machine.run(program, transports, None)?;
                runs.plain.push([before, after]);
                runs.traced.push(seconds);
                *kept = trace;
            }
            of_round.push(paths);
        }
        traces.push(of_round);
    }
    let stolen = stolen_since(stolen);
    let mut clusters = Vec::new();
    for ((path, _), collector) in PATHS.iter().zip(collectors) {
        clusters.push(fitted(path, collector, options)?);
    }
    for of_round in &traces {
        for (paths, runs) in of_round.iter().zip(&mut runs) {
            for (trace, runs) in paths.iter().zip(runs) {
                let program = model(trace)?;
                for (cluster, predicted) in clusters.iter().zip(&mut runs.predicted) {
                    predicted.push(seconds(&program, cluster)?);
                }
            }
        }
    }
    Ok(compare(options, &programs, &runs, stolen))
}

/// Prints the tables, and returns the line of JSON.
fn compare(
    options: &Options,
    programs: &[&str],
    runs: &[[Runs; PATHS.len()]],
    stolen: f64,
) -> Value {
    let rounds = options.rounds.max(1);
    let mut table = format!(
        "\nwall time of MPI programs, 2 ranks on this machine, medians of {rounds} rounds, seconds\n{:<10}{:>8}{:>8}{:>12}{:>12}{:>20}{:>9}{:>9}\n",
        "program", "traced", "for", "predicted", "measured", "(least to most)", "error", "+-"
    );
    let (mut same, mut other, mut slower) = (Vec::new(), Vec::new(), Vec::new());
    let (mut repeats, mut spreads, mut widths) = (Vec::new(), Vec::new(), Vec::new());
    let mut cells = Vec::new();
    for (program, by_path) in programs.iter().zip(runs) {
        for (on, (traced, _)) in PATHS.iter().enumerate() {
            let means = means(&by_path[on].plain);
            slower.extend(ratios(&by_path[on].traced, &means));
            let (least, most) = ends(&means);
            spreads.push((most - least) / median(&means));
            repeats.extend((by_path[on].plain.iter()).map(|[a, b]| 2.0 * (a - b).abs() / (a + b)));
            for (to, (target, _)) in PATHS.iter().enumerate() {
                // Each prediction is compared with times of the same round: the host's speed differs more between rounds than programs
                // differ from their predictions.
                let measured = self::means(&by_path[to].plain);
                let (least, most) = ends(&measured);
                let errors = ratios(&by_path[on].predicted[to], &measured);
                let (error, width) = (median(&errors), uncertainty(&errors));
                let (measured, predicted) = (median(&measured), median(&by_path[on].predicted[to]));
                if on == to {
                    same.push(error.abs());
                } else {
                    other.push(error.abs());
                }
                widths.push(width);
                let range = format!("({least:.3} to {most:.3})");
                // Writing to a string cannot fail.
                let _ = writeln!(
                    table,
                    "{program:<10}{traced:>8}{target:>8}{predicted:>12.4}{measured:>12.4}{range:>20}{:>8.1}%{:>8.1}%",
                    error * 100.0,
                    width * 100.0
                );
                cells.push(json!({
                    "program": program, "traced": traced, "for": target,
                    "predicted": round(predicted), "measured": round(measured),
                    "least": round(least), "most": round(most),
                    "error": round(error), "uncertainty": round(width),
                }));
            }
        }
    }
    let all: Vec<f64> = same.iter().chain(&other).copied().collect();
    let largest = all.iter().copied().fold(0.0, f64::max);
    let percent = |value: f64| value * 100.0;
    let _ = writeln!(
        table,
        "mean error {:.1} % (same path {:.1} %, other path {:.1} %), largest {:.1} %; uncertainty of an error {:.1} % in the median\n\
         noise: two runs one after the other differ by {:.1} % in the median, rounds by up to {:.1} % in the median; {:.1} % of the processors' time stolen by other machines\n\
         traced runs take {:+.1} % in the median",
        percent(mean(&all)),
        percent(mean(&same)),
        percent(mean(&other)),
        percent(largest),
        percent(median(&widths)),
        percent(median(&repeats)),
        percent(median(&spreads)),
        percent(stolen),
        percent(median(&slower)),
    );
    options.say(&table);
    json!({
        "name": "native-mpi",
        "mean_error": round(mean(&all)),
        "same_path": round(mean(&same)),
        "other_path": round(mean(&other)),
        "largest_error": round(largest),
        "uncertainty": round(median(&widths)),
        "noise": round(median(&repeats)),
        "noise_of_rounds": round(median(&spreads)),
        "stolen": round(stolen),
        "tracing": round(median(&slower)),
        "rounds": rounds,
        "cells": cells,
    })
}

fn median(values: &[f64]) -> f64 {
    Data::new(values.to_vec()).median()
}

/// Returns the mean of each round's two runs without the tracer.
fn means(plain: &[[f64; 2]]) -> Vec<f64> {
    plain.iter().map(|[a, b]| (a + b) / 2.0).collect()
}

/// Returns the relative difference of each value from its counterpart in `of`.
fn ratios(values: &[f64], of: &[f64]) -> Vec<f64> {
    let pairs = values.iter().zip(of);
    pairs.map(|(value, of)| value / of - 1.0).collect()
}

/// Returns the standard error of the median: 1.2533 standard deviations over the square root of the number of values. The standard
/// deviation is estimated from the median absolute deviation, as for a normal distribution.
fn uncertainty(values: &[f64]) -> f64 {
    let middle = median(values);
    let off: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    1.2533 * 1.4826 * median(&off) / (values.len() as f64).sqrt()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn ends(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(0.0, f64::max))
}

/// Returns a value rounded to four decimals.
fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// Returns the source of the ping-pong program that measures a path.
fn calibration() -> PathBuf {
    sources().join("../../plugins/analysis/calibrate/measure.c")
}

fn other(what: impl std::fmt::Display) -> Failure {
    Failure::Other(what.to_string())
}

/// Runner of MPI programs on this host.
struct Machine<'a> {
    folder: &'a Path,
    tracer: PathBuf,
}

impl Machine<'_> {
    fn new(folder: &Path) -> Result<Machine<'_>, Failure> {
        let tools = sources().join("../../guest-images/tracer");
        let tracer = library(Mpi::OpenMpi, &tools, &folder.join("tracer")).map_err(other)?;
        Ok(Machine { folder, tracer })
    }

    fn compile(&self, source: &Path, name: &str) -> Result<(), Failure> {
        let output = Command::new("mpicc.openmpi")
            .args(["-O2", "-o"])
            .arg(self.folder.join(name))
            .arg(source)
            .arg("-lm")
            .output()
            .map_err(|error| {
                other(format!(
                    "mpicc.openmpi does not start: {error}; install libopenmpi-dev"
                ))
            })?;
        if output.status.success() {
            Ok(())
        } else {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(Failure::Compile(name.into(), text.into_owned()))
        }
    }

    /// Runs a program over some transports, with the tracer if `logs` names a folder for its logs. Returns the seconds that the program
    /// measured, or NaN if it prints none.
    fn run(&self, program: &str, transports: &str, logs: Option<&Path>) -> Result<f64, Failure> {
        let mut command = Command::new("mpirun.openmpi");
        command.args(["--allow-run-as-root", "-np", "2", "--mca", "pml", "ob1"]);
        command.args(["--mca", "btl", transports]);
        if let Some(logs) = logs {
            command.env("LD_PRELOAD", &self.tracer);
            command.env("NODESCOPE_TRACE_LOG", logs);
        }
        let arguments = ARGUMENTS.iter().find(|(name, _)| *name == program);
        let output = command
            .arg(self.folder.join(program))
            .args(arguments.map_or(&[][..], |arguments| arguments.1))
            .output()
            .map_err(|error| {
                other(format!(
                    "mpirun.openmpi does not start: {error}; install openmpi-bin"
                ))
            })?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(other(format!("{program} over {transports}: {text}")));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let seconds = text.lines().find_map(|line| line.strip_prefix("seconds "));
        Ok(seconds
            .and_then(|seconds| seconds.parse().ok())
            .unwrap_or(f64::NAN))
    }

    /// Runs a program with the tracer. Returns the seconds that the program measured, and the path of the trace.
    fn trace(
        &self,
        program: &str,
        transports: &str,
        name: &str,
    ) -> Result<(f64, PathBuf), Failure> {
        let logs = self.folder.join("logs");
        std::fs::create_dir_all(&logs).map_err(Failure::Files)?;
        let seconds = self.run(program, transports, Some(&logs))?;
        let trace = self.folder.join(format!("{name}.nst"));
        nodescope_host_trace::merge(&logs, &trace, Some(0)).map_err(other)?;
        std::fs::remove_dir_all(&logs).map_err(Failure::Files)?;
        Ok((seconds, trace))
    }
}

/// Returns the events of a trace.
fn events(trace: &Path) -> Result<impl Iterator<Item = Result<Event, Failure>>, Failure> {
    let reader = TraceReader::open(trace).map_err(other)?;
    Ok(reader.events().map(|event| event.map_err(other)))
}

/// Returns the fitted cluster: each rank has a node of its own, and the path is the network. The cluster is parsed from its file, as a
/// user's is.
fn fitted(path: &str, collector: Collector, options: &Options) -> Result<Cluster, Failure> {
    let measured = collector.finish(path).map_err(other)?;
    let fit =
        nodescope_calibrate::fit::fit(&measured, None, FitOptions::default()).map_err(other)?;
    let file = ClusterFile {
        name: path.into(),
        cores: 1,
        network: Some(FittedPath {
            source: format!("a ping-pong over {path}"),
            fit,
        }),
        memory: None,
        library: nodescope_predict::Library::OpenMpi,
        connection_buffer: None,
        accesses_in_calls: false,
        checked: None,
    };
    options.say(&file.summary());
    // All ranks were traced on this machine, and each is to have a node of its own.
    let text = (file.text()).replacen("cores = 1\n", "cores = 1\nranks_per_node = 1\n", 1);
    if let Some(folder) = &options.keep {
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(folder.join(format!("{path}.toml")), &text))
            .map_err(Failure::Files)?;
    }
    Cluster::parse(Path::new(path), &text).map_err(other)
}

/// Program of a trace, and for each barrier around its measured part the times at which the first and the last rank passed, in picoseconds
/// of the trace.
struct Marked {
    program: Program,
    marks: Vec<Option<(u64, u64)>>,
}

fn model(trace: &Path) -> Result<Marked, Failure> {
    let mut builder = SequenceBuilder::new(SequenceOptions {
        marks: vec![(Function::Barrier, 1), (Function::Barrier, 2)],
        ..SequenceOptions::default()
    });
    for event in events(trace)? {
        builder.add(&event?);
    }
    let sequences = builder.finish().map_err(other)?;
    Ok(Marked {
        program: Program::new(&sequences),
        marks: sequences.marks,
    })
}

/// Returns the predicted time of the measured part in seconds.
fn seconds(marked: &Marked, cluster: &Cluster) -> Result<f64, Failure> {
    let request = Request {
        replicas: 0,
        critical_path: false,
        ..Request::default()
    };
    let mut prediction = predict(&marked.program, cluster, &request).map_err(other)?;
    prediction.between(&marked.marks, &marked.program.origin);
    match prediction.section {
        Some(section) if prediction.outcome.complete() => Ok(section.time as f64 * 1e-12),
        _ => Err(other(format!(
            "the prediction does not come to its end: {:?}",
            prediction.outcome.problems
        ))),
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    match measure(&options) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("nodescope-native-mpi: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the stolen ticks and all ticks of all processors since the host's boot.
fn stolen() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = text.lines().next().unwrap_or_default().split_whitespace();
    let ticks: Vec<f64> = ticks.skip(1).filter_map(|tick| tick.parse().ok()).collect();
    // The first fields are user nice system idle iowait irq softirq steal. The later fields are included in user and nice.
    let all = ticks.iter().take(8).sum();
    (ticks.get(7).copied().unwrap_or(0.0), all)
}

fn stolen_since(before: (f64, f64)) -> f64 {
    let now = stolen();
    (now.0 - before.0) / (now.1 - before.1).max(1.0)
}
