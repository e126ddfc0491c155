//! The interpreter of predictions compared with SimGrid's replay of the same traces: predicted times, and speed.

use std::fs;
use std::path::Path;

use nodescope_loop_tree::sequence::SequenceBuilder;
use nodescope_loop_tree::{Program, SequenceOptions};
use nodescope_predict::trace::write_trace;
use nodescope_predict::{
    Cluster, Code, Options as ModelOptions, Request, interpret, predict as predict_program,
};
use nodescope_simgrid::cases::{self, Case, WITHIN};
use nodescope_simgrid::replay;
use nodescope_trace::TraceReader;
use serde_json::{Map, Value, json};

use crate::comparison::{cell, number};
use crate::time::{Point, geometric_mean, median};
use crate::{Failure, Options};

/// Least processor time of a measurement of the interpreter, in seconds; the interpretation is repeated until then.
const LEAST: f64 = 0.2;

/// Measures accuracy once, speed in several rounds, and the interpretation of a hundred thousand ranks.
pub fn predict(options: &Options) -> Result<Value, Failure> {
    let peer = options.peer(replay::version).is_some();
    let mut line = Map::new();
    line.insert("name".into(), "predict".into());
    if peer {
        line.insert("accuracy".into(), accuracy(options)?);
    }
    let (table, least) = speed(options, peer)?;
    line.insert("speed".into(), table);
    line.insert("least_times_faster".into(), number(least));
    line.insert("large".into(), large(options)?);
    line.insert("whole".into(), whole(options)?);
    line.insert("rounds".into(), options.rounds.max(1).into());
    Ok(line.into())
}

fn failed(case: &Case, error: impl std::fmt::Display) -> Failure {
    Failure::Host(format!("{}: {error}", case.name))
}

/// Compares the predicted times of every case with SimGrid's times.
fn accuracy(options: &Options) -> Result<Value, Failure> {
    options.say(&format!(
        "\npredicted seconds\n{:<68}{:>11}{:>11}{:>11}{:>11}{:>9}",
        "", "queued", "shared", "SimGrid", "queued", "shared"
    ));
    // Differences of the cases that are comparable with queued messages, and of all cases with shared links.
    let mut queued = Differences::default();
    let mut shared = Differences::default();
    let all = [
        cases::point_to_point(),
        cases::collectives(),
        cases::mixed(),
    ];
    for case in all.into_iter().flatten() {
        let times = case.run().map_err(|e| failed(&case, e))?;
        options.say(&format!(
            "{:<68}{:>11.6}{:>11.6}{:>11.6}{:>9.2} %{:>7.2} %  {}",
            case.name,
            times.here,
            times.shared,
            times.there,
            times.difference() * 100.0,
            times.shared_difference() * 100.0,
            case.reason.unwrap_or_default(),
        ));
        shared.add(times.shared_difference());
        if case.reason.is_none() {
            queued.add(times.difference());
        }
    }
    options.say(&format!(
        "{}\n{}",
        queued.text("comparable ones with queued messages"),
        shared.text("with shared links")
    ));
    Ok(json!({ "queued": queued.json(), "shared": shared.json() }))
}

/// Absolute differences of predictions from SimGrid's times, relative to SimGrid's times.
#[derive(Default)]
struct Differences(Vec<f64>);

impl Differences {
    fn add(&mut self, difference: f64) {
        self.0.push(difference.abs());
    }

    fn beyond(&self, part: f64) -> usize {
        self.0
            .iter()
            .filter(|&&difference| difference > part)
            .count()
    }

    fn most(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max) * 100.0
    }

    fn text(&self, which: &str) -> String {
        format!(
            "{} {which}: at most {:.2} % apart, {} more than 1 %, in the median {:.2} %",
            self.0.len(),
            self.most(),
            self.beyond(0.01),
            median(self.0.iter().copied()) * 100.0,
        )
    }

    fn json(&self) -> Value {
        json!({
            "comparable": self.0.len(),
            "outside_5_percent": self.beyond(WITHIN),
            "outside_1_percent": self.beyond(0.01),
            "greatest_difference_percent": number(self.most()),
            "median_difference_percent": number(median(self.0.iter().copied()) * 100.0),
        })
    }
}

/// Returns the mean processor seconds of one interpretation, and its number of events.
fn interpretation(
    case: &Case,
    cluster: &Cluster,
    critical_path: bool,
) -> Result<(f64, u64), Failure> {
    let code = Code::new(&case.program);
    let how = ModelOptions {
        critical_path,
        ..ModelOptions::default()
    };
    let start = Point::now();
    let mut repeats = 0;
    loop {
        let outcome = interpret(&code, cluster, &how).map_err(|e| failed(case, e))?;
        repeats += 1;
        let spent = start.to(Point::now()).cpu;
        if spent >= LEAST {
            return Ok((spent / f64::from(repeats), outcome.events));
        }
    }
}

/// Measures the speed of the interpreter, with queued messages and with shared links, and of SimGrid. Returns the measurements, and the
/// smallest speedup over SimGrid of the interpreter with queued messages (NaN without SimGrid).
fn speed(options: &Options, peer: bool) -> Result<(Value, f64), Failure> {
    struct Row {
        case: Case,
        folder: tempfile::TempDir,
        empty: tempfile::TempDir,
        actions: u64,
        options: Vec<String>,
        events: u64,
        here: Vec<f64>,
        shared: Vec<f64>,
        there: Vec<f64>,
        start: Vec<f64>,
        memory: u64,
    }
    let mut rows = Vec::new();
    for case in cases::speed() {
        let folder = tempfile::tempdir().map_err(Failure::Files)?;
        let empty = tempfile::tempdir().map_err(Failure::Files)?;
        let (actions, smpirun) = case.write(folder.path()).map_err(|e| failed(&case, e))?;
        // Run as many ranks without work, to measure the start of smpirun.
        case.platform.write(empty.path()).map_err(Failure::Files)?;
        let mut list = String::new();
        for rank in 0..case.program.ranks.len() {
            let nothing = format!("{rank} init\n{rank} finalize\n");
            fs::write(empty.path().join(format!("rank{rank}")), nothing).map_err(Failure::Files)?;
            list.push_str(&format!("rank{rank}\n"));
        }
        fs::write(empty.path().join("trace"), list).map_err(Failure::Files)?;
        rows.push(Row {
            case,
            folder,
            empty,
            actions,
            options: smpirun,
            events: 0,
            here: Vec::new(),
            shared: Vec::new(),
            there: Vec::new(),
            start: Vec::new(),
            memory: 0,
        });
    }
    let rounds = options.rounds.max(1);
    for round in 1..=rounds {
        options.say(&format!("round {round} of {rounds}"));
        for row in &mut rows {
            let (seconds, events) = interpretation(&row.case, &row.case.cluster, true)?;
            row.here.push(seconds);
            row.events = events;
            let shared = row.case.shared_cluster();
            row.shared.push(interpretation(&row.case, &shared, true)?.0);
            if peer {
                let ranks = row.case.program.ranks.len() as u32;
                let run = |folder: &tempfile::TempDir| {
                    replay::run(folder.path(), ranks, &row.options)
                        .map_err(|e| failed(&row.case, e))
                };
                let (whole, start) = (run(&row.folder)?, run(&row.empty)?);
                row.there.push(whole.processor);
                row.start.push(start.processor);
                row.memory = whole.memory;
            }
        }
    }
    options.say(&format!(
        "\nreplay: median seconds of processor time; SimGrid's less its start\n{:<40}{:>8}{:>8}{:>9}{:>9}{:>10}{:>9}{:>10}{:>11}{:>9}{:>11}",
        "",
        "actions",
        "events",
        "here",
        "M ev./s",
        "M act./s",
        "SimGrid",
        "M act./s",
        "x SimGrid",
        "shared",
        "x SimGrid"
    ));
    let mut table = Map::new();
    let mut ratios = Vec::new();
    let mut shared_ratios = Vec::new();
    for row in &rows {
        let here = median(row.here.iter().copied());
        let whole = median(row.there.iter().copied());
        let there = whole - median(row.start.iter().copied());
        let (actions, events) = (row.actions as f64 / 1e6, row.events as f64 / 1e6);
        let shared = median(row.shared.iter().copied());
        let ratio = there / here;
        ratios.push(ratio);
        shared_ratios.push(there / shared);
        options.say(&format!(
            "{:<40}{:>8}{:>8}{:>9}{:>9}{:>10}{:>9}{:>10}{:>11}{:>9}{:>11}",
            row.case.name,
            row.actions,
            row.events,
            cell(here, 4),
            cell(events / here, 2),
            cell(actions / here, 2),
            cell(there, 3),
            cell(actions / there, 3),
            cell(ratio, 1),
            cell(shared, 4),
            cell(there / shared, 1),
        ));
        let value = json!({
            "actions": row.actions,
            "events": row.events,
            "seconds": number(here),
            "million_events_per_second": number(events / here),
            "simgrid_seconds": number(there),
            "simgrid_start_seconds": number(whole - there),
            "simgrid_bytes": row.memory,
            "times_faster": number(ratio),
            "shared_seconds": number(shared),
            "shared_times_faster": number(there / shared),
        });
        table.insert(row.case.name.clone(), value);
    }
    let mean = geometric_mean(ratios.iter().copied());
    let least = ratios.iter().copied().fold(f64::NAN, f64::min);
    let shared_mean = geometric_mean(shared_ratios.iter().copied());
    options.say(&format!(
        "{:<40}{:>74}{:>20}",
        "geometric mean",
        cell(mean, 1),
        cell(shared_mean, 1)
    ));
    Ok((table.into(), least))
}

/// Returns a memory figure of this process in bytes, by its field of `/proc/self/status`: `VmRSS:` (now) or `VmHWM:` (peak).
fn memory(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Measures the interpretation of a hundred thousand ranks: speed, and memory for each rank.
fn large(options: &Options) -> Result<Value, Failure> {
    options.say(&format!(
        "\na hundred thousand ranks\n{:<42}{:>16}{:>11}{:>9}{:>10}{:>16}",
        "", "", "events", "CPU s", "M ev./s", "B/rank at most"
    ));
    let mut table = Map::new();
    for case in cases::large() {
        let ranks = case.program.ranks.len() as u64;
        let mut value = Map::new();
        for (what, critical_path) in [("", false), ("critical path", true)] {
            // SAFETY: malloc_trim only returns freed memory to the system.
            unsafe { libc::malloc_trim(0) };
            // Resets the peak (VmHWM), so that memory of the case's program is not part of the difference.
            let reset = fs::write("/proc/self/clear_refs", "5").is_ok();
            let before = memory("VmRSS:");
            let runs = (0..options.rounds.max(1))
                .map(|_| interpretation(&case, &case.cluster, critical_path));
            let runs: Vec<(f64, u64)> = runs.collect::<Result<_, _>>()?;
            let seconds = median(runs.iter().map(|(seconds, _)| *seconds));
            let events = runs[0].1;
            let bytes = memory("VmHWM:").saturating_sub(before) as f64 / ranks as f64;
            let bytes = if reset { bytes } else { f64::NAN };
            options.say(&format!(
                "{:<42}{what:>16}{events:>11}{:>9}{:>10}{:>16}",
                case.name,
                cell(seconds, 2),
                cell(events as f64 / seconds / 1e6, 2),
                cell(bytes, 0),
            ));
            let key = if critical_path {
                "with_critical_path"
            } else {
                "without_critical_path"
            };
            value.insert(
                key.into(),
                json!({
                    "events": events,
                    "seconds": number(seconds),
                    "million_events_per_second": number(events as f64 / seconds / 1e6),
                    "bytes_per_rank": number(bytes),
                }),
            );
        }
        table.insert(case.name.clone(), value.into());
    }
    Ok(table.into())
}

/// Seconds of processor time of the parts of a prediction from a trace's file, and the most memory of all parts in bytes.
#[derive(Clone, Copy, Default)]
struct Parts {
    import: f64,
    folding: f64,
    prediction: f64,
    bytes: f64,
}

impl Parts {
    fn sum(&self) -> f64 {
        self.import + self.folding + self.prediction
    }
}

/// Predicts from a trace's file, as `nodescope predict` does without replicas. Returns the costs, the calls of the trace, and the
/// interpreted events.
fn from_trace(case: &Case, cluster: &Cluster, file: &Path) -> Result<(Parts, u64, u64), Failure> {
    // SAFETY: malloc_trim only returns freed memory to the system.
    unsafe { libc::malloc_trim(0) };
    let reset = fs::write("/proc/self/clear_refs", "5").is_ok();
    let before = memory("VmRSS:");
    let start = Point::now();
    let reader = TraceReader::open(file).map_err(|e| failed(case, e))?;
    let mut builder = SequenceBuilder::new(SequenceOptions::default());
    builder.set_header(reader.header());
    for event in reader.events() {
        builder.add(&event.map_err(|e| failed(case, e))?);
    }
    let sequences = builder.finish().map_err(|e| failed(case, e))?;
    let imported = Point::now();
    let calls = sequences
        .ranks
        .iter()
        .map(|rank| rank.entries.len() as u64)
        .sum();
    let program = Program::new(&sequences);
    let folded = Point::now();
    let how = ModelOptions {
        critical_path: true,
        ..ModelOptions::default()
    };
    let outcome = interpret(&Code::new(&program), cluster, &how).map_err(|e| failed(case, e))?;
    let end = Point::now();
    let bytes = memory("VmHWM:").saturating_sub(before) as f64;
    let parts = Parts {
        import: start.to(imported).cpu,
        folding: imported.to(folded).cpu,
        prediction: folded.to(end).cpu,
        bytes: if reset { bytes } else { f64::NAN },
    };
    Ok((parts, calls, outcome.events))
}

/// Measures predictions from traces' files as one figure, beside their parts: reading the trace, folding, and interpreting.
fn whole(options: &Options) -> Result<Value, Failure> {
    options.say(&format!(
        "\nfrom the trace's file to the prediction, seconds of processor time\n{:<36}{:>8}{:>10}{:>10}{:>8}{:>9}{:>9}{:>8}{:>10}{:>12}{:>11}",
        "", "", "calls", "events", "import", "folding", "predict", "all", "M ev./s", "M calls/s", "MiB at most"
    ));
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let file = folder.path().join("trace.nst");
    let mut table = Map::new();
    for case in cases::traced() {
        write(&case, &file)?;
        let mut value = Map::new();
        for (what, cluster) in [
            ("queued", case.cluster.clone()),
            ("shared", case.shared_cluster()),
        ] {
            let rounds = 0..options.rounds.max(1);
            let runs: Vec<_> = rounds
                .map(|_| from_trace(&case, &cluster, &file))
                .collect::<Result<_, _>>()?;
            let of = |part: fn(&Parts) -> f64| median(runs.iter().map(|(parts, _, _)| part(parts)));
            let (calls, events) = (runs[0].1, runs[0].2);
            let (import, folding) = (of(|parts| parts.import), of(|parts| parts.folding));
            let (prediction, all) = (of(|parts| parts.prediction), of(Parts::sum));
            let bytes = of(|parts| parts.bytes);
            options.say(&format!(
                "{:<36}{what:>8}{calls:>10}{events:>10}{:>8}{:>9}{:>9}{:>8}{:>10}{:>12}{:>11}",
                case.name,
                cell(import, 2),
                cell(folding, 2),
                cell(prediction, 2),
                cell(all, 2),
                cell(events as f64 / all / 1e6, 2),
                cell(calls as f64 / all / 1e6, 2),
                cell(bytes / f64::from(1 << 20), 0),
            ));
            value.insert(
                what.into(),
                json!({
                    "calls": calls,
                    "events": events,
                    "import_seconds": number(import),
                    "folding_seconds": number(folding),
                    "prediction_seconds": number(prediction),
                    "seconds": number(all),
                    "million_events_per_second": number(events as f64 / all / 1e6),
                    "million_calls_per_second": number(calls as f64 / all / 1e6),
                    "bytes": number(bytes),
                }),
            );
        }
        table.insert(case.name.clone(), value.into());
    }
    Ok(table.into())
}

/// Writes the predicted run of a case as a trace.
fn write(case: &Case, file: &Path) -> Result<(), Failure> {
    let request = Request {
        replicas: 0,
        critical_path: false,
        timeline: true,
        ..Request::default()
    };
    let prediction = predict_program(&case.program, &case.cluster, &request);
    let prediction = prediction.map_err(|e| failed(case, e))?;
    let nodes = (case.cluster)
        .place_ranks(prediction.ranks, &case.program.origin)
        .map_err(|e| failed(case, e))?;
    match &prediction.outcome.timeline {
        Some(timeline) => write_trace(&case.program, &nodes, timeline, &case.name, file)
            .map_err(|e| failed(case, e)),
        None => Err(failed(case, "the prediction has no timeline")),
    }
}
