//! `nodescope verdict`, and the verdict with which a report begins.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use nodescope_cluster::run::TRACE_FILE;
use nodescope_config::quantity::{self, BitRate, Time};
use nodescope_loop_tree::{SequenceOptions, Sequences};
use nodescope_report::{CodeCosts, CodeReport, Report, TermValue, WindowReport, verdict_text};
use nodescope_study::{DEFAULT_BANDWIDTH, DEFAULT_LATENCY};
use nodescope_verdict::{Kind, Link, Place, ScalarLoop, Verdict, verdict as find};

use crate::args;
use crate::exit::{Exit, Failure};
use crate::measured::Measured;
use crate::openmp::analysis;
use crate::predict::read;
use crate::results::{RunFile, report};
use crate::terminal::{argument, print, print_json};

/// Size in bytes of the largest trace for which a report has a verdict: each candidate is a replay of the trace.
const LARGEST: u64 = 4 << 20;

/// Prints the causes of lost time in a traced run.
pub fn verdict(args: &args::Verdict) -> Result<Exit, Failure> {
    let options = SequenceOptions {
        program: args.program,
        ..SequenceOptions::default()
    };
    let (_, sequences) = read(&args.results, options)?;
    let measured = Measured::read(&args.results, None, &sequences)?;
    let verdict = of(&sequences, &args.results, measured.as_ref());
    let mut verdict = verdict.map_err(|why| Failure::new(Exit::Study, why))?;
    if args.results.join(RunFile::NAME).is_file() {
        let report = report(&args.results, None, &[])?;
        add_windows(&mut verdict, &report.windows);
        add_code(&mut verdict, measured.as_ref());
        add_threads(&mut verdict, &args.results, measured.as_ref());
    }
    if args.json {
        let json = serde_json::to_string_pretty(&verdict);
        let json = json.map_err(|error| Failure::of(Exit::Host, &error))?;
        print_json(&(json + "\n"))?;
    } else {
        print(&verdict_text(&verdict))?;
    }
    let mut gains = verdict.causes.iter().map(|cause| cause.gain);
    Ok(match args.fail_if_gain {
        Some(limit) if gains.any(|gain| gain >= limit.0) => Exit::JobFailed,
        _ => Exit::Ok,
    })
}

/// Adds the verdict to a report, or a note why there is none. A run without a trace of one MPI program has neither.
pub fn add_verdict(report: &mut Report, results: &Path) {
    let Ok(size) = results.join(TRACE_FILE).metadata().map(|file| file.len()) else {
        return;
    };
    if size > LARGEST {
        report.notes.push(format!(
            "there is no verdict, since the trace has {size} bytes, more than {LARGEST}; `nodescope verdict {}` looks for causes",
            argument(results)
        ));
        return;
    }
    let Ok((_, sequences)) = read(results, SequenceOptions::default()) else {
        return;
    };
    let measured = Measured::read(results, None, &sequences).ok().flatten();
    match of(&sequences, results, measured.as_ref()) {
        Ok(mut verdict) => {
            add_windows(&mut verdict, &report.windows);
            add_code(&mut verdict, measured.as_ref());
            add_threads(&mut verdict, results, measured.as_ref());
            report.verdict = Some(verdict);
        }
        Err(why) => report.notes.push(format!("there is no verdict: {why}")),
    }
}

/// Finds the verdict on the sequences of a run, whose results are in a folder.
fn of(
    sequences: &Sequences,
    results: &Path,
    measured: Option<&Measured>,
) -> Result<Verdict, String> {
    let (link, unknown) = link(results);
    let verdict = match measured {
        Some(measured) => measured.with_code(|code| find(sequences, link, Some(code))),
        None => find(sequences, link, None),
    };
    let mut verdict = verdict.map_err(|error| error.to_string())?;
    verdict.quality.extend(unknown);
    Ok(verdict)
}

/// Adds the causes that the windows of a run show.
fn add_windows(verdict: &mut Verdict, windows: &[WindowReport]) {
    let mut causes = Vec::new();
    let measured = windows.iter().filter(|window| !window.warm_up_only);
    let mut seen = false;
    for (window, code) in measured.filter_map(|window| Some((window, window.code.as_ref()?))) {
        seen = true;
        let open = window.closed_ps.saturating_sub(window.measured_from_ps);
        let part = (open as f64 / verdict.traced_ps.max(1) as f64).min(1.0);
        for place in waiting_lines(code) {
            let remote = place.remote > place.waiting / 2.0;
            let (kind, share, what) = match remote {
                true => (Kind::RemoteMemory, place.remote, "memory of other sockets"),
                false => (Kind::MemoryBound, place.waiting, "caches and memory"),
            };
            let text = place.text;
            let what = format!(
                "{text} waits for {what} for {:.0} % of the code's cycles.",
                100.0 * share
            );
            causes.push(verdict.at_most(kind, share * part, here(text), what));
        }
        if let Some(first) = code.contended_lines.first() {
            let share: f64 = code.contended_lines.iter().map(|line| line.share).sum();
            let mut places = first.places.iter();
            // Code that interrupts the program has a name in brackets.
            let place = match places.find(|place| !place.function.starts_with('[')) {
                Some(place) => format!("{} ({})", place.function, place.source()),
                None => "code that is not known".to_owned(),
            };
            let sharing = match first.true_sharing {
                true => "which they share",
                false => "of which they use different bytes (false sharing)",
            };
            let what = format!(
                "Threads take the line of {}, {sharing}, from each other in {place}.",
                first.data()
            );
            causes.push(verdict.at_most(Kind::ContendedLine, share * part, here(place), what));
        }
    }
    if seen {
        verdict.add(&Kind::OF_WINDOWS, causes);
    }
}

/// Adds the causes that the machine code of a window shows.
fn add_code(verdict: &mut Verdict, measured: Option<&Measured>) {
    let Some(measured) = measured else {
        return;
    };
    let part = (measured.open_ps() as f64 / verdict.traced_ps.max(1) as f64).min(1.0);
    let loops = measured.with_code(|code| code.scalar_loops());
    let cause = |of: ScalarLoop| {
        let what = format!(
            "{} computes with one number at a time for {:.0} % of the code's cycles, though no register carries a value between iterations and its data lie in order.",
            of.place,
            100.0 * of.share
        );
        let gain = of.share * part * (1.0 - 1.0 / f64::from(of.lanes));
        verdict.at_most(Kind::ScalarLoop, gain, here(of.place), what)
    };
    let causes = loops.into_iter().map(cause).collect();
    verdict.add(&Kind::OF_CODE, causes);
}

/// Most lines between two lines of source that count as one place: those of a loop.
const NEAR: u32 = 5;

/// Lines of source that are one place, such as a loop, and wait for data.
struct WaitingPlace {
    /// File name, and first and last line.
    text: String,
    /// Share of the code's cycles that the lines wait for caches and memory.
    waiting: f64,
    /// Share of the code's cycles that the lines wait for memory of other sockets.
    remote: f64,
}

fn waiting_lines(code: &CodeReport) -> Vec<WaitingPlace> {
    let total: i128 = terms(&code.total).iter().map(|of| of.cycles_65536).sum();
    let mut lines: BTreeMap<(&str, u32), [i128; 2]> = BTreeMap::new();
    for line in &code.lines {
        if let (Some(file), Some(number)) = (&line.file, line.line) {
            let sum = |wanted: fn(&str) -> bool| -> i128 {
                let waits = terms(&line.costs).iter().filter(|of| wanted(&of.term));
                waits.map(|of| of.cycles_65536).sum()
            };
            let sums = lines.entry((file, number)).or_default();
            sums[0] += sum(is_memory);
            sums[1] += sum(|term| term == "memory_remote");
        }
    }
    let mut places: Vec<(&str, u32, u32, [i128; 2])> = Vec::new();
    for ((file, number), sums) in lines.into_iter().filter(|(_, sums)| sums[0] > 0) {
        match places.last_mut() {
            Some(place) if place.0 == file && number - place.2 <= NEAR => {
                place.2 = number;
                place.3[0] += sums[0];
                place.3[1] += sums[1];
            }
            _ => places.push((file, number, number, sums)),
        }
    }
    let share = |cycles: i128| cycles as f64 / total.max(1) as f64;
    let place = |(file, first, last, sums): (&str, u32, u32, [i128; 2])| {
        let file = file.rsplit('/').next().unwrap_or(file);
        WaitingPlace {
            text: match first == last {
                true => format!("{file}:{first}"),
                false => format!("{file}:{first}-{last}"),
            },
            waiting: share(sums[0]),
            remote: share(sums[1]),
        }
    };
    places.into_iter().map(place).collect()
}

/// Returns the clock's cycles of code by cause; without a modelled core, the terms of the CPI.
fn terms(costs: &CodeCosts) -> &[TermValue] {
    match costs.causes.as_slice() {
        [] => &costs.terms,
        causes => causes,
    }
}

fn here(text: String) -> Place {
    Place {
        text,
        code: None,
        rank: None,
    }
}

/// Returns whether a term of the CPI, or a cause of exposed cycles, is waiting for data that no other core has taken.
fn is_memory(term: &str) -> bool {
    term.starts_with('L') || term.starts_with("memory") || matches!(term, "tlb" | "bandwidth")
}

/// Adds the causes that records of OpenMP show.
fn add_threads(verdict: &mut Verdict, results: &Path, measured: Option<&Measured>) {
    let Some(analysis) = analysis(results) else {
        return;
    };
    let traced = verdict.traced_ps.max(1) as f64;
    let mut causes = Vec::new();
    // Processes run at the same time, so that the process that loses most counts.
    let share = |nanoseconds: u128| (1000.0 * nanoseconds as f64 / traced).min(1.0);
    for process in &analysis.processes {
        for of in &process.loops {
            let place = of.location.text();
            let what = format!(
                "The loop at {place} keeps one thread {:.2} times as long as the mean of its threads.",
                of.work.most as f64 / of.work.mean.max(1) as f64
            );
            let gain = share(of.work.most - of.work.mean.min(of.work.most));
            causes.push(verdict.at_most(Kind::ThreadImbalance, gain, here(place), what));
        }
    }
    for rank in analysis.programs.iter().flat_map(|of| &of.hybrid.ranks) {
        let mut processes = analysis.processes.iter();
        let process = processes.find(|process| process.rank == Some(rank.rank));
        let threads = u128::from(process.map_or(1, |process| process.threads).max(1));
        if threads == 1 {
            continue;
        }
        // While one thread works, all others have nothing to do.
        let idle = rank.times.serialisation - rank.times.idle_in_mpi;
        let alone = idle / (threads - 1);
        let number = rank.rank as usize;
        let code = measured.and_then(|of| of.with_code(|code| code.of_one_thread(number)));
        let most = code.iter().map(|code| format!(", mostly in {code}"));
        let what = format!(
            "One of {threads} threads works alone for {} ms{}.",
            alone / 1_000_000,
            most.collect::<String>()
        );
        let place = Place {
            text: "code outside of parallel regions".to_owned(),
            code,
            rank: Some(rank.rank),
        };
        let gain = share(alone - alone / threads);
        causes.push(verdict.at_most(Kind::SerialThread, gain, place, what));
    }
    causes.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    let mut named = BTreeSet::new();
    causes.retain(|cause| named.insert((cause.kind, cause.place.text.clone())));
    verdict.add(&Kind::OF_THREADS, causes);
}

/// Returns the link of the study's nodes, and a sentence where no study is among the results.
pub fn link(results: &Path) -> (Link, Option<String>) {
    let text = fs::read_to_string(results.join("study.toml"));
    let unknown = text.is_err().then(|| {
        "the network of the run is not known: the default of studies is taken, 10 Gbit/s and 1.3 us"
            .to_owned()
    });
    let study: toml::Table = toml::from_str(&text.unwrap_or_default()).unwrap_or_default();
    let network = study.get("network").and_then(toml::Value::as_table);
    let of = |key: &str| network?.get(key)?.as_str();
    let latency = of("latency").and_then(|text| quantity::parse::<Time>(text).ok());
    let bandwidth = of("bandwidth").and_then(|text| quantity::parse::<BitRate>(text).ok());
    let link = Link {
        latency: latency.unwrap_or(DEFAULT_LATENCY).0,
        bandwidth: bandwidth.unwrap_or(DEFAULT_BANDWIDTH).0 / 8,
    };
    (link, unknown)
}
