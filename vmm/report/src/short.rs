//! The short report: one screen of a terminal. It tells where the time goes, how sure that is, and which command tells more.

use nodescope_verdict::{Kind, NO_CAUSE, Verdict};

use crate::breakdown::{Scope, ScopeKind, TermValue, WindowReport};
use crate::findings::{FindingKind, mpi_share_of, percent};
use crate::mpi::{MpiReport, ProgramReport};
use crate::table::wrap;
use crate::text::{WIDTH, core, title};
use crate::units::{cpi, si, time};
use crate::{CoreCpi, Report, Section, timed};

/// Width of the labels at the beginning of lines.
const LABEL: usize = 12;
/// Most causes or findings.
const CAUSES: usize = 3;
/// Most lines of a verdict with causes.
const VERDICT: usize = 12;
/// Most windows, and most programs.
const LISTED: usize = 2;
/// Most notes.
const NOTES: usize = 2;
/// Most lines on how sure the figures are.
const SURENESS: usize = 11;
/// Instructions below which a window is short: as many as an interval of a sampled window has for each vCPU.
const SHORT_WINDOW: u128 = 1_000_000;
/// Share of the traced time below which a window is a small part of the run.
const SMALL_PART: f64 = 0.1;

impl Report {
    /// Returns the report as text of one screen: at most 37 lines of 100 columns. `results` is the results folder as a word of a command line;
    /// lines with the word may be longer.
    pub fn short(&self, results: &str) -> String {
        let title = cut(wrap(&title(self), WIDTH), WIDTH, 1).concat();
        let mut blocks = vec![
            causes(self),
            titled(
                "Where the time goes (modelled; MPI without initialisation and end)",
                times(self),
            ),
            titled("How sure this is", sureness(self)),
        ];
        blocks.push(vec![
            format!("next        nodescope {}", next(self, results)),
            format!("all         nodescope report {results} --full"),
        ]);
        blocks.retain(|block| !block.is_empty());
        let blocks: Vec<String> = blocks.iter().map(|lines| lines.join("\n") + "\n").collect();
        let line = "=".repeat(title.chars().count());
        format!("{title}\n{line}\n{}", blocks.join("\n"))
    }
}

/// Returns a block with its title; nothing without lines.
fn titled(title: &str, mut lines: Vec<String>) -> Vec<String> {
    if !lines.is_empty() {
        lines.insert(0, title.to_owned());
    }
    lines
}

/// Keeps at most `most` lines of at most `width` characters. A last line that is not the end of the text ends in `...`.
fn cut(mut lines: Vec<String>, width: usize, most: usize) -> Vec<String> {
    const MORE: &str = " ...";
    let is_cut = lines.len() > most;
    lines.truncate(most);
    if let Some(last) = lines.last_mut().filter(|_| is_cut) {
        let kept: String = last.chars().take(width - MORE.len()).collect();
        let whole = kept.rsplit_once(' ').map_or(&*kept, |(words, _)| words);
        *last = format!("{whole}{MORE}");
    }
    lines
}

/// Returns words in at most `most` lines behind a label.
fn labelled(label: &str, indent: usize, words: &str, most: usize) -> Vec<String> {
    let width = WIDTH - indent;
    let lines = cut(wrap(words, width), width, most).into_iter();
    let lines = lines.enumerate().map(|(number, line)| {
        let label = if number == 0 { label } else { "" };
        format!("{label:<indent$}{line}")
    });
    lines.collect()
}

/// Returns the verdict; `None` where ranks wait for ever, since nothing that saves time helps them.
fn verdict_of(report: &Report) -> Option<&Verdict> {
    let mut findings = report.findings.iter();
    let is_deadlocked =
        findings.any(|finding| matches!(finding.what, FindingKind::Deadlock { .. }));
    report.verdict.as_ref().filter(|_| !is_deadlocked)
}

/// Returns the causes of the verdict; without causes, the findings.
fn causes(report: &Report) -> Vec<String> {
    let of_run = verdict_of(report);
    let mut lines = of_run.map(verdict).unwrap_or_default();
    let has_causes = of_run.is_some_and(|verdict| !verdict.causes.is_empty());
    if has_causes || report.findings.is_empty() {
        return lines;
    }
    if !lines.is_empty() {
        lines.push(String::new());
    }
    lines.push("Findings".to_owned());
    for (number, finding) in (1..).zip(report.findings.iter().take(CAUSES)) {
        lines.extend(labelled(&format!("  {number}."), 5, &finding.text, 2));
    }
    lines
}

fn verdict(verdict: &Verdict) -> Vec<String> {
    let mut lines = vec![match verdict.causes.len() {
        0..=CAUSES => "Verdict".to_owned(),
        all => format!("Verdict (the first {CAUSES} of {all} causes)"),
    }];
    if verdict.causes.is_empty() {
        lines.extend(labelled("", 2, NO_CAUSE, 1));
    }
    for (number, cause) in (1..).zip(verdict.causes.iter().take(CAUSES)) {
        let text = cause.text(verdict);
        lines.extend(labelled(&format!("  {number}."), 5, &text, 3));
    }
    if !verdict.ruled_out.is_empty() {
        let text = verdict.ruled_out_text();
        let most = match verdict.causes.is_empty() {
            true => 2,
            false => VERDICT.saturating_sub(lines.len()),
        };
        lines.extend(labelled("  ruled out:", 13, &text, most));
    }
    lines
}

fn times(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |label: &str, all: Vec<String>| {
        for (number, text) in all.iter().take(LISTED).enumerate() {
            let label = if number == 0 { label } else { "" };
            let most = if all.len() == 1 { 2 } else { 1 };
            lines.extend(labelled(label, LABEL, text, most));
        }
    };
    add("CPI stack", report.windows.iter().map(stack).collect());
    add("MPI", report.mpi.iter().flat_map(mpi).collect());
    let threads = report.openmp.as_ref();
    add(
        "OpenMP",
        threads.map(|of| of.summary.clone()).unwrap_or_default(),
    );
    if lines.is_empty() {
        lines.push("No window was measured, and no MPI call was traced.".to_owned());
    }
    lines
}

/// Returns the sum of a window's ranks; without ranks, the sum of all nodes.
fn sum(window: &WindowReport) -> Option<&Scope> {
    let mut scopes = window.scopes.iter();
    let ranks = scopes.find(|scope| scope.kind == ScopeKind::Ranks);
    ranks.or(window.scopes.last())
}

/// Returns a sentence with the CPI of a window, and each term's share of the CPI, largest first.
fn stack(window: &WindowReport) -> String {
    let name = &window.name;
    let Some(scope) = sum(window).filter(|scope| scope.instructions > 0) else {
        return format!("window \"{name}\": no instruction ran outside MPI");
    };
    let by_cause = window.timed.as_ref().and_then(|timed| {
        let mut scopes = timed.scopes.iter();
        scopes.find(|of_scope| of_scope.scope == scope.name)
    });
    let (all, value): (&[TermValue], _) = match by_cause {
        Some(timed) => (&timed.terms, timed.cpi),
        None => (&scope.terms, scope.cpi),
    };
    let total: i128 = all.iter().map(|term| term.cycles_65536).sum();
    let share = |term: &TermValue| term.cycles_65536 as f64 / total.max(1) as f64;
    let mut terms: Vec<&TermValue> = all.iter().filter(|term| share(term) >= 0.005).collect();
    terms.sort_by_key(|term| std::cmp::Reverse(term.cycles_65536));
    let terms = terms.into_iter();
    let terms = terms.map(|term| format!("{} {}", timed::head(&term.term), percent(share(term))));
    let terms: Vec<String> = terms.collect();
    format!(
        "window \"{name}\", CPI {}: {}",
        cpi(value),
        terms.join(", ")
    )
}

fn mpi(mpi: &MpiReport) -> Vec<String> {
    let programs = mpi.programs.iter();
    programs
        .filter_map(|program| program_times(mpi, program))
        .collect()
}

/// Returns a sentence on a program's time in MPI and its longest functions; `None` without calls.
fn program_times(mpi: &MpiReport, program: &ProgramReport) -> Option<String> {
    let (share, mut functions) = mpi_share_of(program)?;
    functions.sort_by(|a, b| b.time_ps.cmp(&a.time_ps).then(a.function.cmp(b.function)));
    let inside: f64 = functions.iter().map(|row| row.time_ps as f64).sum();
    let longest = functions.iter().take(3);
    let longest = longest.map(|row| {
        let of_mpi = row.time_ps as f64 / inside.max(1.0);
        format!("{} {}", row.function, percent(share * of_mpi))
    });
    let longest: Vec<String> = longest.collect();
    let label = mpi.label(program.number);
    Some(format!(
        "{}{} of the ranks' time: {}",
        label.map_or_else(String::new, |label| format!("{label}: ")),
        percent(share),
        longest.join(", ")
    ))
}

fn sureness(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let most = if report.windows.len() == 1 { 2 } else { 1 };
    for (number, window) in report.windows.iter().take(LISTED).enumerate() {
        let label = if number == 0 { "window" } else { "" };
        lines.extend(labelled(label, LABEL, &measured(report, window), most));
    }
    if let Some(more @ 1..) = report.windows.len().checked_sub(LISTED) {
        lines.extend(labelled("", LABEL, &format!("{more} more windows"), 1));
    }
    if !report.windows.is_empty() {
        lines.extend(labelled("core", LABEL, &core_model(report), 2));
    }
    if let Some(text) = lines_known(report) {
        lines.extend(labelled("code", LABEL, &text, 1));
    }
    lines.extend(notes(report));
    if let Some(verdict) = verdict_of(report) {
        let text = verdict.quality.join("; ");
        let most = SURENESS.saturating_sub(lines.len()).min(2);
        lines.extend(labelled("verdict", LABEL, &text, most));
    }
    lines
}

fn notes(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    // How the run ended comes before details of the data.
    let (of_data, of_run) = report.notes.split_at(report.notes_of_data);
    for (number, note) in of_run.iter().chain(of_data).take(NOTES).enumerate() {
        let most = if number == 0 { 2 } else { 1 };
        lines.extend(labelled("note", LABEL, note, most));
    }
    if let Some(more @ 1..) = report.notes.len().checked_sub(NOTES) {
        lines.extend(labelled("", LABEL, &format!("{more} more notes"), 1));
    }
    lines
}

/// Returns a sentence on how much a window measured.
fn measured(report: &Report, window: &WindowReport) -> String {
    let state = match (window.warm_up_only, window.complete) {
        (true, _) => "cut in its warm-up",
        (false, false) => "cut",
        (false, true) => "complete",
    };
    let duration = window.closed_ps.saturating_sub(window.measured_from_ps);
    let share = traced_share(report, window);
    let of_run = share.map(|share| format!(", {} of the traced time", percent(share)));
    let instructions = sum(window).map_or(0, |of| of.instructions + of.instructions_in_mpi);
    let counted = match &window.sampled {
        Some(sampled) => format!("sampled: {}", sampled.brief()),
        None => format!("all {} instructions counted", si(instructions as f64)),
    };
    let short = match (instructions < SHORT_WINDOW, share) {
        (true, _) => "; the window is short: single interrupts and page faults weigh much",
        (_, Some(..SMALL_PART)) => "; the rest of the run may differ",
        _ => "",
    };
    let (name, duration) = (&window.name, time(duration as f64));
    let of_run = of_run.unwrap_or_default();
    format!("\"{name}\" {state}, {duration}{of_run}, {counted}{short}")
}

/// Returns the share of the MPI programs' time in which a window measured; `None` without such time.
fn traced_share(report: &Report, window: &WindowReport) -> Option<f64> {
    let programs = &report.mpi.as_ref()?.programs;
    let from = programs.iter().map(|program| program.from_ps).min()?;
    let to = programs.iter().map(|program| program.to_ps).max()?;
    let all = to.checked_sub(from).filter(|&all| all > 0)?;
    let both = window
        .closed_ps
        .min(to)
        .saturating_sub(window.measured_from_ps.max(from));
    Some(both as f64 / all as f64)
}

/// Returns a sentence on the model behind the core's cycles.
fn core_model(report: &Report) -> String {
    let timed = report.windows.iter();
    let timed = timed.filter_map(|window| window.timed.as_ref());
    if let Some(first) = timed.clone().next() {
        let recordings: u64 = timed.map(|of| of.recordings).sum();
        return format!(
            "{}, timed by micro-operation on {recordings} recordings: misses overlap",
            first.core
        );
    }
    const STALLS: &str = "every stall is added in full, of which a real core hides a part";
    let mut windows = report.windows.iter();
    let modelled = windows.find_map(|window| window.cores.first());
    match (&report.core, modelled) {
        (CoreCpi::Nominal { source }, _) => {
            format!("one CPI for all instructions ({source}); {STALLS}")
        }
        (CoreCpi::Modelled { .. }, Some(model)) => format!(
            "{}, by basic block for {} of the instructions; {STALLS}",
            model.source,
            percent(model.coverage)
        ),
        (other, _) => format!("{}; {STALLS}", core(other)),
    }
}

/// Returns a sentence on the share of the code whose source lines are known; `None` without code.
fn lines_known(report: &Report) -> Option<String> {
    let (mut all, mut known) = (0, 0);
    for code in report
        .windows
        .iter()
        .filter_map(|window| window.code.as_ref())
    {
        all += code.total.cycles_65536;
        let lines = code.lines.iter().filter(|line| line.file.is_some());
        known += lines.map(|line| line.costs.cycles_65536).sum::<i128>();
    }
    let share = known as f64 / all as f64;
    (all > 0).then(|| match known {
        0 => "no source line is known: build the program with -g".to_owned(),
        _ => format!(
            "source lines are known for {} of the cycles",
            percent(share)
        ),
    })
}

/// Returns the command that tells more about the first cause or finding.
fn next(report: &Report, results: &str) -> String {
    let first_cause = verdict_of(report).and_then(|verdict| verdict.causes.first());
    let kind = first_cause.map(|cause| cause.kind);
    match kind {
        Some(Kind::Imbalance | Kind::SerialRank) => return format!("what-if {results}"),
        Some(Kind::Placement) => return format!("phases {results}"),
        _ => {}
    }
    let section = next_section(report, kind).name();
    format!("report {results} --section {section}")
}

/// Returns the section that tells more about the first cause, or else about the first finding.
fn next_section(report: &Report, first_cause: Option<Kind>) -> Section {
    let wanted = match first_cause {
        Some(kind) => of_cause(kind),
        None => match report.findings.first() {
            Some(finding) => of_finding(&finding.what),
            None => Section::OpenMp,
        },
    };
    let has = |section: &Section| match section {
        Section::Code => report.windows.iter().any(|window| window.code.is_some()),
        Section::Window => !report.windows.is_empty(),
        Section::Mpi => report.mpi.is_some(),
        Section::OpenMp => report.openmp.is_some(),
        Section::Notes => !report.notes.is_empty(),
        _ => true,
    };
    let sections = [
        wanted,
        Section::Window,
        Section::Mpi,
        Section::Notes,
        Section::Study,
    ];
    sections.into_iter().find(has).unwrap_or(Section::Study)
}

fn of_cause(kind: Kind) -> Section {
    match kind {
        Kind::Imbalance | Kind::SerialRank | Kind::SlowRank | Kind::VaryingWork => Section::Window,
        Kind::ScalarLoop | Kind::MemoryBound | Kind::RemoteMemory | Kind::ContendedLine => {
            Section::Code
        }
        Kind::ThreadImbalance | Kind::SerialThread => Section::OpenMp,
        Kind::Barrier
        | Kind::Collective
        | Kind::ShortMessages
        | Kind::LateReceiver
        | Kind::Overlap
        | Kind::Placement
        | Kind::Latency
        | Kind::Bandwidth => Section::Mpi,
    }
}

fn of_finding(finding: &FindingKind) -> Section {
    match finding {
        FindingKind::Deadlock { .. }
        | FindingKind::RunMpiShare { .. }
        | FindingKind::MessageSizes { .. } => Section::Mpi,
        FindingKind::MpiShare { .. } | FindingKind::Imbalance { .. } => Section::Window,
        FindingKind::MemoryShare { .. }
        | FindingKind::RemoteMemory { .. }
        | FindingKind::ThreadsWait { .. }
        | FindingKind::Function { .. }
        | FindingKind::ContendedLines { .. } => Section::Code,
    }
}
