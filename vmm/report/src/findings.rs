//! Findings: the facts that a report states first. Each is computed from the report's figures, and only reported above a threshold.
//!
//! This crate's `README.md` lists the thresholds as well.

use nodescope_profile::is_openmp_runtime;
use serde::Serialize;

use crate::breakdown::{Scope, ScopeKind, WindowReport};
use crate::code::{CodeReport, ContendedPlace, FunctionCost};
use crate::mpi::{FunctionRow, MpiReport, ProgramReport};
use crate::spinning;
use crate::units::grouped;

/// Maximum number of findings in a report.
const MOST: usize = 6;
/// Minimum share of MPI in a window's CPI, or in all ranks' time, for a finding.
const MPI: f64 = 0.2;
/// Minimum share of one cause in MPI's cycles for the cause to be called most of it.
const MAIN: f64 = 0.5;
/// Minimum ratio for a finding of imbalance: the longest compute time of a rank to the mean of the other ranks, or to the shortest.
const IMBALANCE: f64 = 1.2;
/// Minimum share of caches and memory in the cycles outside MPI, for a finding.
const MEMORY: f64 = 0.25;
/// Minimum values for a finding of remote memory: its share of the references to memory, and its share of the cycles outside MPI.
const REMOTE: (f64, f64) = (0.1, 0.02);
/// Minimum share of cycles in which threads wait for other threads, for a finding.
const THREADS_WAIT: f64 = 0.05;
/// Minimum share of one function in the code's cycles, for a finding.
const FUNCTION: f64 = 0.1;
/// Minimum share of contended lines in the code's cycles, for a finding.
const CONTENDED: f64 = 0.02;
/// Minimum share of one line in the cycles of all contended lines, for a finding: it names this line.
const CONTENDED_LINE: f64 = 0.1;
/// Minimum number of point-to-point messages for a finding of message sizes.
const MESSAGES: u64 = 100;
/// Largest size of a short message, bytes.
const SHORT: u64 = 1 << 10;
/// Size above which a message is long, bytes.
const LONG: u64 = 1 << 16;
/// Minimum share of short messages in all messages, or of long messages in all bytes, for a finding of message sizes.
const SIZES: f64 = 0.5;

/// Finding about a window or the run: its kind, its weight and a sentence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Kind of the finding, with its figures.
    #[serde(flatten)]
    pub what: FindingKind,
    /// Share of the time that the finding concerns, 0 to 1, by which findings are sorted. A deadlock has 1; message sizes have half the
    /// share of MPI.
    pub weight: f64,
    /// Sentence for people.
    pub text: String,
    /// Number of the MPI program that the finding concerns, where the run has several; `None` for findings of windows.
    pub program: Option<usize>,
}

/// Kinds of findings. Shares are from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum FindingKind {
    /// Ranks are deadlocked: they wait for ever.
    Deadlock {
        /// World ranks that wait for ever.
        ranks: Vec<u32>,
        /// Some of these ranks that wait for each other in a cycle; empty if no cycle was found.
        cycle: Vec<u32>,
    },
    /// MPI has a large share of a window's CPI.
    MpiShare {
        /// Name of the window.
        window: String,
        /// Share of MPI in the CPI of all ranks.
        share: f64,
        /// Share of waiting in MPI's cycles.
        waiting: f64,
        /// Name of the MPI function with most waiting, if its waiting is most of MPI; otherwise of the one with most cycles.
        function: &'static str,
        /// Share of the function in MPI's cycles; only of its waiting if `function_waits`.
        function_share: f64,
        /// True if `function_share` counts only the function's waiting.
        function_waits: bool,
    },
    /// A rank computes longer than other ranks.
    Imbalance {
        /// Name of the window.
        window: String,
        /// The rank that computes longest.
        rank: u32,
        /// Rank that computes shortest, with which `rank` is compared; `None` if `rank` is compared with the mean of all other ranks.
        than: Option<u32>,
        /// Computing time of `rank`, divided by that of `than` or by the mean.
        ratio: f64,
    },
    /// Caches and memory have a large share of the cycles outside MPI.
    MemoryShare {
        /// Name of the window.
        window: String,
        /// Share of caches and memory in the cycles outside MPI.
        share: f64,
        /// Name of the largest term among caches and memory, as in `scopes[].terms[]`.
        term: String,
        /// Share of the largest term in the cycles outside MPI.
        term_share: f64,
    },
    /// Many references that memory answers go to another socket.
    RemoteMemory {
        /// Name of the window.
        window: String,
        /// Share of remote references in those that memory answered.
        share: f64,
        /// Share of remote references in the cycles outside MPI.
        cycles: f64,
    },
    /// Threads of ranks spend much of their cycles waiting for other threads, without sleeping.
    ThreadsWait {
        /// Name of the window.
        window: String,
        /// Share of this waiting in the cycles of all ranks.
        share: f64,
    },
    /// A function has a large share of the code's cycles.
    Function {
        /// Name of the window.
        window: String,
        /// Name of the function.
        function: String,
        /// Share of the function in the cycles of the window's code.
        share: f64,
        /// Cycles per instruction of the function.
        cpi: f64,
        /// Name of the largest term of the function's CPI, as in `costs.terms[]`.
        term: String,
        /// Contribution of the largest term to the function's CPI, in cycles per instruction.
        term_cpi: f64,
    },
    /// vCPUs of a node take lines of memory from each other.
    ContendedLines {
        /// Name of the window.
        window: String,
        /// Share of waiting for such lines in the cycles of the window's code.
        share: f64,
        /// Data of the line with the most cycles: a variable, or an address.
        data: String,
        /// Share of this line in the cycles of the window's code.
        line_share: f64,
        /// False if no vCPU touched bytes of the line that another one wrote.
        true_sharing: bool,
        /// The code that waited longest for the line, as `function (file:line)`; at most two.
        code: Vec<String>,
    },
    /// Ranks spend a large share of the whole run in MPI.
    RunMpiShare {
        /// Share of MPI, without initialisation and finalisation, in all ranks' time from the first entry into MPI to the last exit.
        share: f64,
        /// Name of the MPI function with most time, other than initialisation and finalisation.
        function: &'static str,
        /// Share of the function with most time in all time in MPI, without initialisation and finalisation.
        function_share: f64,
    },
    /// Most messages are short, or most bytes are in long messages, or both.
    MessageSizes {
        /// Number of point-to-point messages in the whole run.
        messages: u64,
        /// Largest size of a short message, bytes.
        short_up_to_bytes: u64,
        /// Share of short messages in all messages.
        short_share: f64,
        /// Size above which a message is long, bytes.
        long_above_bytes: u64,
        /// Share of the bytes that long messages have.
        long_share: f64,
    },
}

impl FindingKind {
    /// Returns the finding as a sentence. `run` names what findings of the run concern: the whole run, or one of its programs.
    fn text(&self, run: &str) -> String {
        match self {
            FindingKind::Deadlock { ranks, cycle } => match (ranks.as_slice(), cycle.len()) {
                ([rank], _) => format!("Deadlock: rank {rank} waits for ever."),
                (ranks, 0) => format!("Deadlock: {} ranks wait for ever.", ranks.len()),
                (ranks, 1..=8) => format!(
                    "Deadlock: {} ranks wait for ever; ranks {} wait for each other.",
                    ranks.len(),
                    listed(cycle)
                ),
                (ranks, count) => format!(
                    "Deadlock: {} ranks wait for ever; {count} of them wait for each other.",
                    ranks.len()
                ),
            },
            FindingKind::MpiShare {
                window,
                share,
                waiting,
                function,
                function_share,
                function_waits,
            } => {
                let all = format!("Window \"{window}\": {} of the CPI is MPI", percent(*share));
                match (function_waits, *function_share >= MAIN) {
                    (true, _) => format!("{all}, most of it waiting in {function}."),
                    (false, true) => format!(
                        "{all}, most of it in {function}; {} of it is waiting.",
                        percent(*waiting)
                    ),
                    (false, false) => format!(
                        "{all}; {} of it is waiting. {function} has the largest part of MPI, {}.",
                        percent(*waiting),
                        percent(*function_share)
                    ),
                }
            }
            FindingKind::Imbalance {
                window,
                rank,
                than,
                ratio,
            } => {
                let whom = match than {
                    Some(than) => format!("rank {than}"),
                    None => "the mean of the other ranks".to_owned(),
                };
                format!(
                    "Window \"{window}\": rank {rank} computes {ratio:.1} times as long as {whom}."
                )
            }
            FindingKind::MemoryShare {
                window,
                share,
                term,
                term_share,
            } => format!(
                "Window \"{window}\": caches and memory take {} of the cycles outside MPI; the largest part is {}, {}.",
                percent(*share),
                stall(term),
                percent(*term_share)
            ),
            FindingKind::RemoteMemory {
                window,
                share,
                cycles,
            } => format!(
                "Window \"{window}\": {} of the references that memory answers go to another socket; they take {} of the cycles outside MPI.",
                percent(*share),
                percent(*cycles)
            ),
            FindingKind::ThreadsWait { window, share } => format!(
                "Window \"{window}\": threads wait for other threads, in OpenMP's runtime or in loops with PAUSE, for {} of all cycles: the term \"spinning\".",
                percent(*share)
            ),
            FindingKind::Function {
                window,
                function,
                share,
                cpi,
                term,
                term_cpi,
            } => format!(
                "Window \"{window}\": {function} takes {} of the cycles of the code; its CPI is {cpi:.2}, of which {term_cpi:.2} is {}.",
                percent(*share),
                stall(term)
            ),
            FindingKind::ContendedLines {
                window,
                share,
                data,
                line_share,
                true_sharing,
                code,
            } => {
                let kind = match true_sharing {
                    true => "share it",
                    false => "use different bytes of it (false sharing)",
                };
                format!(
                    "Window \"{window}\": {} of the cycles of the code are waiting for lines of memory that vCPUs take from each other, {} of them for the line of {data}. vCPUs {kind} in {}.",
                    percent(*share),
                    percent(line_share / share),
                    code.join(" and ")
                )
            }
            FindingKind::RunMpiShare {
                share,
                function,
                function_share,
            } => format!(
                "{run}: {} of the ranks' time is MPI, without initialisation and end; {function} has the largest part of it, {}.",
                percent(*share),
                percent(*function_share)
            ),
            FindingKind::MessageSizes {
                messages,
                short_share,
                long_share,
                ..
            } => {
                let messages = grouped((*messages).into());
                let short = format!(
                    "{} of the {messages} point-to-point messages have at most 1 KiB",
                    percent(*short_share)
                );
                let long = format!("{} of the bytes", percent(*long_share));
                match (*short_share >= SIZES, *long_share >= SIZES) {
                    (true, true) => format!(
                        "{run}: {short}, but {long} are in messages of more than 64 KiB. Both the latency and the bandwidth of the network matter."
                    ),
                    (true, false) => format!(
                        "{run}: {short}. The network's latency matters more for them than its bandwidth."
                    ),
                    (false, _) => format!(
                        "{run}: {long} of the {messages} point-to-point messages are in messages of more than 64 KiB. The network's bandwidth matters more for them than its latency."
                    ),
                }
            }
        }
    }
}

/// Returns the ranks as a text such as `1, 2 and 3`.
fn listed(ranks: &[u32]) -> String {
    let words: Vec<String> = ranks.iter().map(u32::to_string).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// Formats a share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    // A share close to 100 % keeps a decimal, so that it is not printed as all.
    if (9.95..99.5).contains(&percent) || percent == 100.0 {
        format!("{percent:.0} %")
    } else {
        format!("{percent:.1} %")
    }
}

/// Returns the name of a term in words.
fn stall(term: &str) -> String {
    match term {
        "core" => "the core itself".into(),
        "memory_local" => "local memory".into(),
        "memory_remote" => "remote memory".into(),
        level if level.starts_with('L') => format!("misses of {level}"),
        _ => "other stalls".into(),
    }
}

/// Returns at most [`MOST`] findings, sorted by weight, largest first.
pub(crate) fn find(windows: &[WindowReport], mpi: Option<&MpiReport>) -> Vec<Finding> {
    let mut found = Vec::new();
    for window in windows.iter().filter(|window| !window.warm_up_only) {
        of_window(window, &mut found);
    }
    let mut findings: Vec<Finding> = (found.into_iter())
        .map(|(weight, what)| Finding {
            text: what.text(WHOLE_RUN),
            what,
            weight,
            program: None,
        })
        .collect();
    if let Some(mpi) = mpi {
        findings.extend(of_run(mpi));
    }
    findings.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    findings.truncate(MOST);
    findings
}

fn cycles_of(scope: &Scope, of: impl Fn(&str) -> bool) -> f64 {
    let terms = scope.terms.iter().filter(|term| of(&term.term));
    terms.map(|term| term.cycles_65536).sum::<i128>() as f64
}

fn of_window(window: &WindowReport, found: &mut Vec<(f64, FindingKind)>) {
    let code = window.code.as_ref();
    found.extend(code.and_then(|code| contended(&window.name, code)));
    let mut scopes = window.scopes.iter();
    let Some(all) = scopes.find(|scope| scope.kind == ScopeKind::Ranks) else {
        return;
    };
    let total = all.cycles_65536 as f64;
    if total <= 0.0 || all.instructions == 0 {
        return;
    }
    let name = &window.name;
    let mpi = cycles_of(all, |term| term == "mpi");
    let outside = total - mpi;
    found.extend(mpi_share(name, all, mpi / total));
    found.extend(imbalance(window, outside / total));
    if outside > 0.0 {
        let is_stall = |term: &str| term.starts_with('L') || term.starts_with("memory_");
        let stalls = cycles_of(all, is_stall);
        let largest = (all.terms.iter())
            .filter(|term| is_stall(&term.term))
            .max_by_key(|term| term.cycles_65536);
        if let Some(largest) = largest.filter(|_| stalls / outside >= MEMORY) {
            let what = FindingKind::MemoryShare {
                window: name.clone(),
                share: stalls / outside,
                term: largest.term.clone(),
                term_share: largest.cycles_65536 as f64 / outside,
            };
            found.push((stalls / total, what));
        }
        // Events without cycles are not references that a rank waits for.
        let count = |name: &str| {
            let events = all.events.iter();
            let events =
                events.filter(|event| event.term.as_deref() == Some(name) && event.cycles > 0);
            events.map(|event| event.count).sum::<u128>() as f64
        };
        let (local, remote) = (count("memory_local"), count("memory_remote"));
        let cycles = cycles_of(all, |term| term == "memory_remote");
        let share = remote / (local + remote);
        if share >= REMOTE.0 && cycles / outside >= REMOTE.1 {
            let what = FindingKind::RemoteMemory {
                window: name.clone(),
                share,
                cycles: cycles / outside,
            };
            found.push((cycles / total, what));
        }
    }
    let spinning = cycles_of(all, |term| term == spinning::TERM) / total;
    let what = FindingKind::ThreadsWait {
        window: name.clone(),
        share: spinning,
    };
    found.extend((spinning >= THREADS_WAIT).then_some((spinning, what)));
    let works = |function: &&FunctionCost| !is_openmp_runtime(&function.module);
    let first = code.and_then(|code| code.functions.iter().find(works));
    found.extend(first.and_then(|first| function(name, first, total)));
}

fn contended(window: &str, code: &CodeReport) -> Option<(f64, FindingKind)> {
    let share: f64 = code.contended_lines.iter().map(|line| line.share).sum();
    let first = code.contended_lines.first()?;
    let place = |place: &ContendedPlace| match place.source() {
        source if source.is_empty() => place.function.clone(),
        source => format!("{} ({source})", place.function),
    };
    // vCPUs that touched other bytes have a place of their own for the same code.
    let mut code: Vec<String> = Vec::new();
    for place in first.places.iter().map(place) {
        if !code.contains(&place) {
            code.push(place);
        }
    }
    code.truncate(2);
    let what = FindingKind::ContendedLines {
        window: window.to_owned(),
        share,
        data: first.data(),
        line_share: first.share,
        true_sharing: first.true_sharing,
        code,
    };
    let stands = share >= CONTENDED && first.share >= CONTENDED_LINE * share;
    stands.then_some((share, what))
}

fn mpi_share(window: &str, all: &Scope, share: f64) -> Option<(f64, FindingKind)> {
    if share < MPI {
        return None;
    }
    let cycle = crate::breakdown::CYCLE as f64;
    let mpi: f64 = all.mpi.iter().map(|value| value.cycles_65536 as f64).sum();
    let waits: f64 = all
        .mpi
        .iter()
        .map(|value| value.waiting as f64 * cycle)
        .sum();
    let longest = all.mpi.iter().max_by_key(|value| value.cycles_65536)?;
    let idlest = all.mpi.iter().max_by_key(|value| value.waiting)?;
    let idle = idlest.waiting as f64 * cycle / mpi;
    let function_waits = idle >= MAIN;
    let (function, function_share) = match function_waits {
        true => (idlest.function, idle),
        false => (longest.function, longest.cycles_65536 as f64 / mpi),
    };
    let what = FindingKind::MpiShare {
        window: window.to_owned(),
        share,
        waiting: waits / mpi,
        function,
        function_share,
        function_waits,
    };
    Some((share, what))
}

/// Compares the times that ranks compute. `outside` is the share of the ranks' time outside MPI.
fn imbalance(window: &WindowReport, outside: f64) -> Option<(f64, FindingKind)> {
    let times: Vec<(u32, f64)> = (window.scopes.iter())
        .filter(|scope| scope.kind == ScopeKind::Rank && scope.cycles_65536 > 0)
        .filter_map(|scope| {
            let computes = 1.0 - cycles_of(scope, |term| term == "mpi") / scope.cycles_65536 as f64;
            Some((scope.rank?, scope.flops.busy_seconds * computes))
        })
        .filter(|(_, time)| *time > 0.0)
        .collect();
    let (rank, longest) = times
        .iter()
        .copied()
        .reduce(|a, b| if b.1 > a.1 { b } else { a })?;
    let (least, shortest) = times
        .iter()
        .copied()
        .reduce(|a, b| if b.1 < a.1 { b } else { a })?;
    if times.len() < 2 {
        return None;
    }
    let sum: f64 = times.iter().map(|(_, time)| time).sum();
    let others = (sum - longest) / (times.len() - 1) as f64;
    let (than, ratio) = match longest / others >= IMBALANCE {
        true => (None, longest / others),
        false => (Some(least), longest / shortest),
    };
    let what = FindingKind::Imbalance {
        window: window.name.clone(),
        rank,
        than,
        ratio,
    };
    // Share of all ranks' time that they would lose by waiting for the longest one.
    let lost = 1.0 - sum / (longest * times.len() as f64);
    (ratio >= IMBALANCE).then_some((outside * lost, what))
}

fn function(window: &str, first: &FunctionCost, total: f64) -> Option<(f64, FindingKind)> {
    let costs = &first.costs;
    let (share, cpi) = costs.share.zip(costs.cpi)?;
    let largest = costs.terms.iter().max_by_key(|term| term.cycles_65536)?;
    if share < FUNCTION {
        return None;
    }
    let what = FindingKind::Function {
        window: window.to_owned(),
        function: first.function.chars().take(60).collect(),
        share,
        cpi,
        term: largest.term.clone(),
        term_cpi: largest.cpi.unwrap_or(0.0),
    };
    Some(((costs.cycles_65536 as f64 / total).min(1.0), what))
}

/// What findings of a run with a single MPI program concern.
const WHOLE_RUN: &str = "Whole run";

/// Returns the findings of the MPI programs of a run. A program's weights are shares of all programs' time.
fn of_run(mpi: &MpiReport) -> Vec<Finding> {
    let all: f64 = mpi.programs.iter().map(rank_time).sum();
    let mut findings = Vec::new();
    for program in &mpi.programs {
        let mut found = Vec::new();
        of_program(program, &mut found);
        let part = match mpi.programs.len() {
            1 => 1.0,
            _ => rank_time(program) / all,
        };
        for (weight, _) in &mut found {
            *weight *= part;
        }
        let deadlocks = mpi.pending.deadlocks.iter();
        for deadlock in deadlocks.filter(|deadlock| deadlock.job == program.number) {
            let what = FindingKind::Deadlock {
                ranks: deadlock.ranks.clone(),
                cycle: deadlock.cycle.clone(),
            };
            found.push((1.0, what));
        }
        let label = mpi.label(program.number);
        let run = (label.as_ref()).map_or_else(|| WHOLE_RUN.into(), |label| format!("MPI {label}"));
        for (weight, what) in found {
            let is_deadlock = matches!(what, FindingKind::Deadlock { .. });
            let mut text = what.text(&run);
            if is_deadlock && label.is_some() {
                text = format!("{run}: {text}");
            }
            findings.push(Finding {
                text,
                what,
                weight,
                program: label.is_some().then_some(program.number),
            });
        }
    }
    findings
}

/// Returns the time of all ranks from the program's first entry into MPI to its last exit, picoseconds.
fn rank_time(program: &ProgramReport) -> f64 {
    program.to_ps.saturating_sub(program.from_ps) as f64 * program.ranks.len() as f64
}

/// Returns the share of MPI in the time of a program's ranks, and the functions that have it. Initialisation and finalisation are left out:
/// they take the same time in short and long runs, and would hide the program's own behaviour. `None` if the program has no time.
pub(crate) fn mpi_share_of(program: &ProgramReport) -> Option<(f64, Vec<&FunctionRow>)> {
    const ENDS: [&str; 3] = ["MPI_Init", "MPI_Init_thread", "MPI_Finalize"];
    let rows = (program.functions.iter()).filter(|row| !ENDS.contains(&row.function));
    let rows: Vec<&FunctionRow> = rows.collect();
    let inside: f64 = rows.iter().map(|row| row.time_ps as f64).sum();
    let span = rank_time(program);
    (span > 0.0 && !rows.is_empty()).then(|| (inside / span, rows))
}

fn of_program(mpi: &ProgramReport, found: &mut Vec<(f64, FindingKind)>) {
    let Some((share, rows)) = mpi_share_of(mpi).filter(|(share, _)| *share >= MPI) else {
        return;
    };
    let inside: f64 = rows.iter().map(|row| row.time_ps as f64).sum();
    let Some(longest) = rows.into_iter().max_by_key(|row| row.time_ps) else {
        return;
    };
    let what = FindingKind::RunMpiShare {
        share,
        function: longest.function,
        function_share: longest.time_ps as f64 / inside,
    };
    // The share may exceed 1, because calls of several threads of a rank can overlap.
    let share = share.min(1.0);
    found.push((share, what));

    let sizes = &mpi.message_sizes;
    let messages: u64 = sizes.iter().map(|size| size.messages).sum();
    let bytes: f64 = sizes.iter().map(|size| size.bytes as f64).sum();
    if messages < MESSAGES {
        return;
    }
    let short = sizes.iter().filter(|size| size.up_to_bytes <= SHORT);
    let short = short.map(|size| size.messages).sum::<u64>() as f64 / messages as f64;
    let long = sizes.iter().filter(|size| size.up_to_bytes > LONG);
    let long = long.map(|size| size.bytes as f64).sum::<f64>() / bytes;
    if short < SIZES && (long.is_nan() || long < SIZES) {
        return;
    }
    let what = FindingKind::MessageSizes {
        messages,
        short_up_to_bytes: SHORT,
        short_share: short,
        long_above_bytes: LONG,
        // Without any bytes the share is undefined, and reported as 0.
        long_share: if long.is_nan() { 0.0 } else { long },
    };
    // The weight is halved, because message sizes explain the time in MPI and follow that finding.
    found.push((share / 2.0, what));
}

#[cfg(test)]
mod tests;
