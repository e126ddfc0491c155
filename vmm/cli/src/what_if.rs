//! `nodescope what-if`: what faster code, fewer calls or another network gain.

pub mod args;
mod rerun;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use nodescope_loop_tree::{SequenceOptions, Sequences};
use nodescope_predict::ClusterFile;
use nodescope_report::wrapped;
use nodescope_trace::SiteNames;
use nodescope_verdict::{Call, CallRow, CausalProfile, Change, Row, WhatIf, shown};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::measured::Measured;
use crate::predict::read;
use crate::terminal::{print, print_json};
use crate::verdict::link;
use rerun::{Rerun, Reruns};

/// What changes gain.
#[derive(Debug, Serialize)]
struct Answer {
    /// Cluster on which the program is predicted; missing where the traced run is replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    /// Traced time from the end of MPI's initialisation, picoseconds; on a cluster the predicted time.
    traced_ps: u64,
    /// Time of the replay without a change, picoseconds; on a cluster the predicted time.
    replayed_ps: u64,
    /// The changes, each alone.
    changes: Vec<Changed>,
    /// All changes together; `None` without changes.
    together: Option<Outcome>,
    /// The study with the changes, run; `None` if it was not run.
    run: Option<Rerun>,
    /// What each function, computation and call gains; `None` with changes.
    profile: Option<CausalProfile>,
    /// The window that says what functions run; `None` without one.
    window: Option<String>,
    /// What makes the gains less certain.
    quality: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Changed {
    /// The change as the user wrote it.
    change: String,
    #[serde(flatten)]
    outcome: Outcome,
}

/// The time of a changed run. Times and gains are `None` if the changed program comes to no end.
#[derive(Clone, Copy, Debug, Serialize)]
struct Outcome {
    /// Time of the replay, picoseconds.
    replayed_ps: Option<u64>,
    /// Gain as a share of the traced time.
    gain: Option<f64>,
}

/// Prints what changes gain, or what each function, computation and call gains.
pub fn what_if(args: &args::WhatIf) -> Result<Exit, Failure> {
    let options = SequenceOptions {
        program: args.program,
        ..SequenceOptions::default()
    };
    let (_, sequences) = read(&args.results, options)?;
    let measured = Measured::read(&args.results, args.window.as_deref(), &sequences)?;
    let samples = measured.as_ref().map(|of| of.samples.clone());
    let samples = samples.unwrap_or_default();
    let (run, unknown, cluster) = match &args.cluster {
        None => {
            let (link, unknown) = link(&args.results);
            (WhatIf::new(&sequences, link, samples), unknown, None)
        }
        Some(file) => {
            let cluster = ClusterFile::load(file).and_then(|file| file.with(&[]));
            let cluster = cluster.map_err(|problems| Failure::of(Exit::Study, &problems))?;
            let run = WhatIf::on(&sequences, &cluster, samples);
            (run, None, Some(cluster.name))
        }
    };
    let run = run.map_err(|error| Failure::of(Exit::Study, &error))?;
    let changes = changes(args, &sequences, measured.as_ref(), &run)?;
    if args.run.is_some() && !changes.is_empty() && args.code.all().is_empty() {
        return Err(Failure::new(
            Exit::Study,
            "--run runs changes of code; give one by --function, --line or --term",
        ));
    }
    let mut answer = Answer {
        cluster,
        traced_ps: run.traced(),
        replayed_ps: run.replayed(),
        changes: Vec::new(),
        together: None,
        run: None,
        profile: None,
        window: measured.as_ref().map(|of| of.name().to_owned()),
        quality: run.quality().into_iter().chain(unknown).collect(),
    };
    if changes.is_empty() {
        let function = |number| match &measured {
            Some(measured) => measured.function(number),
            None => String::new(),
        };
        let profile = run.profile(&function);
        let mut profile = profile.map_err(|error| Failure::of(Exit::Study, &error))?;
        if let Some(study) = &args.run {
            run_best(&mut profile, study, args)?;
        }
        answer.profile = Some(profile);
    }
    for (text, change) in &changes {
        answer.changes.push(Changed {
            change: text.clone(),
            outcome: outcome(&run, std::slice::from_ref(change))?,
        });
    }
    if !changes.is_empty() {
        let all: Vec<Change> = changes.into_iter().map(|(_, change)| change).collect();
        answer.together = Some(outcome(&run, &all)?);
    }
    if let (Some(study), false) = (&args.run, args.code.all().is_empty()) {
        answer.run = Some(Reruns::begin(study, args)?.with(&args.code.options())?);
    }
    if args.json {
        let json = serde_json::to_string_pretty(&answer);
        let json = json.map_err(|error| Failure::of(Exit::Host, &error))?;
        print_json(&(json + "\n"))?;
    } else {
        print(&answer.text())?;
    }
    Ok(Exit::Ok)
}

/// Number of functions of a profile whose gain is also found by runs.
const RUN: usize = 3;

/// Runs the study with each of the functions that gain most at twice its speed.
fn run_best(profile: &mut CausalProfile, study: &Path, args: &args::WhatIf) -> Result<(), Failure> {
    let best = profile.functions.iter_mut().take(RUN);
    let mut best = best.filter(|row| row.twice > 0.0).peekable();
    if best.peek().is_none() {
        return Err(Failure::new(
            Exit::Study,
            "--run: the results have no function that gains; a window must have measured the code",
        ));
    }
    let runs = Reruns::begin(study, args)?;
    for row in best {
        let change = [
            OsString::from("--function"),
            format!("{}=2x", row.place).into(),
        ];
        row.twice_run = Some(runs.with(&change)?.gain);
    }
    Ok(())
}

fn outcome(run: &WhatIf, changes: &[Change]) -> Result<Outcome, Failure> {
    let time = run.time(changes);
    let time = time.map_err(|error| Failure::of(Exit::Study, &error))?;
    let gain = |time: u64| (run.replayed() as f64 - time as f64) / run.traced().max(1) as f64;
    Ok(Outcome {
        replayed_ps: time,
        gain: time.map(gain),
    })
}

/// Returns the changes that the command line asks for, each with its text.
fn changes(
    args: &args::WhatIf,
    sequences: &Sequences,
    measured: Option<&Measured>,
    run: &WhatIf,
) -> Result<Vec<(String, Change)>, Failure> {
    let names = &sequences.origin.names;
    let mut changes = Vec::new();
    for (text, change) in args.code.all() {
        let Some(measured) = measured else {
            return Err(Failure::new(
                Exit::Study,
                format!(
                    "{text}: the results have no window that says which code ranks run; add [[window]] to the study and run it again"
                ),
            ));
        };
        changes.push((text, measured.kept(&[change])?));
    }
    for place in &args.call_site {
        let none = format!("no call is at {place}; calls are");
        let calls = calls_at(place, names, &run.calls(), &none)?;
        changes.push((format!("{place}=free"), Change::Without(calls)));
    }
    for speed in &args.messages {
        let none = format!(
            "no call at {} sends messages; calls that do are",
            speed.place
        );
        let calls = calls_at(&speed.place, names, &run.sending_calls(), &none)?;
        let text = format!("messages of {} {}", speed.place, at_speed(speed.kept));
        changes.push((text, Change::Messages(calls, speed.kept)));
    }
    for speed in &args.node {
        if !run.nodes().contains(&speed.node) {
            let mut nodes: Vec<u32> = run.nodes().to_vec();
            nodes.sort_unstable();
            nodes.dedup();
            let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
            return Err(Failure::new(
                Exit::Study,
                format!(
                    "no rank is on node {}; ranks are on nodes {}",
                    speed.node,
                    nodes.join(", ")
                ),
            ));
        }
        let text = format!("node {} {}", speed.node, at_speed(speed.kept));
        changes.push((text, Change::Node(speed.node, speed.kept)));
    }
    for speed in &args.rank {
        let ranks = sequences.ranks.len();
        if speed.rank >= ranks {
            return Err(Failure::new(
                Exit::Study,
                format!(
                    "there is no rank {}; the ranks are 0 to {}",
                    speed.rank,
                    ranks - 1
                ),
            ));
        }
        let text = format!("rank {} {}", speed.rank, at_speed(speed.kept));
        changes.push((text, Change::Rank(speed.rank, speed.kept)));
    }
    if args.imbalance.is_some() {
        changes.push(("even computations".into(), Change::Balance));
    }
    if args.network.is_some() {
        changes.push(("ideal network".into(), Change::IdealNetwork));
    }
    Ok(changes)
}

fn at_speed(kept: f64) -> String {
    match kept {
        0.0 => "free".to_owned(),
        kept => format!("at {:.3} times its speed", 1.0 / kept),
    }
}

/// Returns those of some calls that are at a place: an MPI function, a function, a line or an address.
/// `none` says that there is none, and what follows.
fn calls_at(
    place: &str,
    names: &SiteNames,
    all: &BTreeSet<Call>,
    none: &str,
) -> Result<Vec<Call>, Failure> {
    let is_at = |(site, function): &Call| {
        let source = names.place(*site);
        let file = source.and_then(|of| of.file.as_deref().zip(of.line));
        let is_line = file.is_some_and(|(file, line)| {
            let whole = format!("{file}:{line}");
            let folders = whole.strip_suffix(place);
            folders.is_some_and(|folders| folders.is_empty() || folders.ends_with('/'))
        });
        let caller = source.and_then(|of| of.function.as_deref());
        is_line
            || caller == Some(place)
            || function.to_string() == place
            || names.address(*site) == place
    };
    let found: Vec<Call> = all.iter().copied().filter(is_at).collect();
    if found.is_empty() {
        const NAMED: usize = 6;
        let known = all.iter().take(NAMED);
        let known: Vec<String> = known
            .map(|(site, function)| format!("{function} in {}", names.text(*site)))
            .collect();
        return Err(Failure::new(
            Exit::Study,
            format!("{none} {}", known.join(", ")),
        ));
    }
    Ok(found)
}

impl Outcome {
    fn text(&self) -> String {
        match (self.replayed_ps, self.gain) {
            (Some(time), Some(gain)) => format!("{}  {}", percent(gain), shown(time)),
            _ => "others wait for ever: leave out both ends of a message".to_owned(),
        }
    }
}

fn percent(gain: f64) -> String {
    format!("{:>6.1} %", 100.0 * gain)
}

impl Answer {
    fn text(&self) -> String {
        let mut out = match &self.cluster {
            None => format!(
                "What if: of {}, the replay has {}\n",
                shown(self.traced_ps),
                shown(self.replayed_ps)
            ),
            Some(name) => format!(
                "What if: predicted for {name:?}, the program takes {}\n",
                shown(self.replayed_ps)
            ),
        };
        if !self.changes.is_empty() {
            let how = match self.cluster {
                None => "replayed",
                Some(_) => "predicted",
            };
            out.push_str(&format!("\n    gain  time        change, {how}\n"));
            for of in &self.changes {
                out.push_str(&format!("{}  {}\n", padded(&of.outcome), of.change));
            }
            if let (Some(together), 2..) = (&self.together, self.changes.len()) {
                out.push_str(&format!("{}  all of these\n", padded(together)));
            }
        }
        if let Some(run) = &self.run {
            out.push_str(&run.text());
        }
        if let Some(profile) = &self.profile {
            rows(&mut out, "function, its own code", &profile.functions);
            if profile.functions.is_empty() {
                let why =
                    "No window has samples of functions: add [[window]] to the study for them.";
                out.push_str(&format!("\n{why}\n"));
            }
            rows(&mut out, "computation", &profile.computations);
            calls(&mut out, &profile.calls);
        }
        for said in &self.quality {
            out.push_str(&wrapped("data: ", said));
        }
        out
    }
}

fn padded(outcome: &Outcome) -> String {
    format!("{:<20}", outcome.text())
}

fn rows(out: &mut String, head: &str, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    let is_run = rows.iter().any(|row| row.twice_run.is_some());
    let run = if is_run { "  2x, run" } else { "" };
    out.push_str(&format!(
        "\n   share  gain: 1.25x       2x     free  1.25x slower{run}  {head}\n"
    ));
    for row in rows {
        let run = match (is_run, row.twice_run) {
            (true, Some(gain)) => format!(" {}", percent(gain)),
            (true, None) => " ".repeat(9),
            (false, _) => String::new(),
        };
        let figures = format!(
            "{}     {} {} {}      {}{run}  ",
            percent(row.share),
            percent(row.quarter),
            percent(row.twice),
            percent(row.free),
            percent(row.slower)
        );
        out.push_str(&wrapped(&figures, &row.place));
    }
}

fn calls(out: &mut String, rows: &[CallRow]) {
    if rows.is_empty() {
        return;
    }
    out.push_str("\n   calls      gain  call left out\n");
    for row in rows {
        let figures = format!("{:>8}  {}  ", row.count, percent(row.gain));
        out.push_str(&wrapped(&figures, &row.place));
    }
}
