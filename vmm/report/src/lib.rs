//! Reports on a study's measurements: the CPI breakdown of each rank and node, FLOPS, and the MPI profile, as text, JSON and one
//! self-contained HTML page.
//!
//! The definitions, and why the terms add up exactly, are in this crate's `README.md`; the JSON's schema is in `SCHEMA.md`. A report
//! depends only on its input: the same input gives the same bytes.

mod breakdown;
mod call_sites;
mod call_timeline;
mod calls;
mod charts;
pub mod code;
pub mod compare;
mod compare_page;
mod cores;
mod explain;
mod findings;
mod flops;
mod html;
mod input;
mod json;
mod mpi;
mod sampled;
mod section;
mod short;
mod spinning;
mod table;
mod text;
mod timed;
mod units;
mod window_tables;

pub use breakdown::{
    CYCLE, ClockCheck, EventValue, MpiValue, PrivilegeValue, Scope, ScopeKind, TermValue,
    WindowReport,
};
pub use call_sites::CallSiteRow;
pub use code::{CodeCosts, CodeReport};
pub use cores::{CoreStack, CoreStacks, ModelledCore, NotModelled, WindowCores};
pub use findings::{Finding, FindingKind};
pub use flops::{ClassCount, Flops};
pub use input::{
    CoreCpi, NetworkCounts, OpenMpText, PageSection, ReportError, ReportInput, StudyInfo,
};
pub use mpi::{
    FunctionRow, MatrixCell, MessageSize, MpiReport, ProgramReport, RankRow, TraceSummary,
};
pub use section::Section;
pub use text::{verdict_text, wrapped};
pub use timed::{TimedReport, TimedScope};

use std::collections::BTreeSet;

use nodescope_trace::{Site, SiteNames};
use nodescope_verdict::Verdict;
use nodescope_window::WindowOutcome;
use serde::Serialize;

use call_timeline::CallTimeline;
use cores::CoreTimes;
use spinning::Spinning;

/// Version of the JSON schema of a [`Report`].
pub const VERSION: u32 = 4;

/// Unit and source of a kind of figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Source {
    /// Name of the kind of figures.
    pub figure: &'static str,
    /// Unit of the figures.
    pub unit: &'static str,
    /// Origin of the figures: `counted`, `modelled`, `stated` or `imported`, and the part or tool that supplied them.
    pub source: String,
}

/// Report of a study. The serialised form is `report.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of the JSON schema, [`VERSION`].
    pub version: u32,
    /// Name, identity and description of the study.
    pub study: StudyInfo,
    /// Source of CPI_core.
    pub core: CoreCpi,
    /// Unit and source of every kind of figure.
    pub sources: Vec<Source>,
    /// What costs a traced MPI program its time, and what the removal of each cause saves. [`build`] leaves it out, callers may add it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Findings, in descending order of the time that they concern; may be empty.
    pub findings: Vec<Finding>,
    /// Notes for the user. Notes on missing, cut or inconsistent data come before the input's own notes.
    pub notes: Vec<String>,
    /// Outcome of every window of the study, including windows that never opened.
    pub outcomes: Vec<WindowOutcome>,
    /// Results of the windows that opened.
    pub windows: Vec<WindowReport>,
    /// Summary of the trace; `None` without a trace.
    pub trace: Option<TraceSummary>,
    /// The MPI profile of the whole trace, by program; `None` without a trace.
    pub mpi: Option<MpiReport>,
    /// Network traffic of each node.
    pub network: Vec<NetworkCounts>,
    #[serde(skip)]
    charts: charts::Charts,
    /// Calls of the MPI programs that a page shows.
    #[serde(skip)]
    call_timelines: Vec<CallTimeline>,
    /// Sections that callers add to the HTML page; [`build`] leaves the list empty.
    #[serde(skip)]
    pub sections: Vec<PageSection>,
    /// The times of OpenMP threads, which callers add to the text; [`build`] leaves them out.
    #[serde(skip)]
    pub openmp: Option<OpenMpText>,
    /// Number of notes at the beginning of `notes` that are not the input's own.
    #[serde(skip)]
    notes_of_data: usize,
}

/// Builds the report of a study from its input.
pub fn build(input: &ReportInput) -> Result<Report, ReportError> {
    let records = &input.windows.windows;
    let traced = match &input.trace {
        Some(file) => Some(mpi::read(file, records)?),
        None => None,
    };
    let nothing = calls::Calls::default();
    let mut windows = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let calls = traced
            .as_ref()
            .map_or(&nothing, |traced| &traced.calls[index]);
        let (profile, cores) = (input.profile_of(record), input.cores_of(record));
        let times = match (&input.core, profile, cores.first()) {
            (CoreCpi::Modelled { .. }, Some(profile), Some(core)) => {
                Some(CoreTimes::new(profile, core))
            }
            _ => None,
        };
        let spinning = match profile {
            Some(profile) => {
                let cores = code::cores(&input.core, record, profile, cores)?;
                Spinning::new(profile, &*cores[0].cycles)
            }
            None => Spinning::default(),
        };
        let mut window = breakdown::analyse(record, &input.core, times.as_ref(), &spinning, calls)?;
        if let Some(profile) = profile {
            window.cores = cores::stacks(input, record, profile, calls, cores)?;
            window.timed = timed::report(record, profile, &window.scopes);
            window.code = Some(code::of_window(input, record, profile, cores)?);
        }
        windows.push(window);
    }
    let mut notes = notes(
        input,
        &windows,
        traced.as_ref().map(|t| (&t.summary, &t.report)),
    );
    let notes_of_data = notes.len();
    notes.extend(input.notes.iter().cloned());
    let findings = findings::find(&windows, traced.as_ref().map(|traced| &traced.report));
    let charts = charts::draw(
        &windows,
        traced
            .as_ref()
            .map(|traced| (&traced.report, traced.timelines.as_slice())),
    )?;
    let (trace, mpi, call_timelines) = match traced {
        Some(traced) => (
            Some(traced.summary),
            Some(traced.report),
            traced.call_timelines,
        ),
        None => (None, None, Vec::new()),
    };
    Ok(Report {
        version: VERSION,
        study: input.study.clone(),
        core: input.core.clone(),
        sources: sources(&input.core),
        verdict: None,
        findings,
        notes,
        outcomes: input.windows.outcomes.clone(),
        windows,
        trace,
        mpi,
        network: input.network.clone(),
        charts,
        call_timelines,
        sections: Vec::new(),
        openmp: None,
        notes_of_data,
    })
}

impl Report {
    /// Returns the report as JSON, by the schema in `SCHEMA.md`.
    pub fn json(&self) -> String {
        json::text(self)
    }

    /// Adds the texts of source files to the code that the page shows. `read` returns the text of a file by its path in the debugging
    /// information, which guests may have made up; `None` if the text is not known.
    pub fn add_sources(&mut self, read: impl Fn(&str) -> Option<String>) {
        for code in self
            .windows
            .iter_mut()
            .filter_map(|window| window.code.as_mut())
        {
            let files = code.source_files().into_iter();
            let texts = files.filter_map(|file| Some((file.to_owned(), read(file)?)));
            code.sources = texts.collect();
        }
    }

    /// Lets `add` add names of the call sites of calls, program by program.
    pub fn locate_calls(&mut self, mut add: impl FnMut(&mut SiteNames, BTreeSet<Site>)) {
        let programs = self.mpi.iter_mut().flat_map(|mpi| &mut mpi.programs);
        for (number, program) in programs.enumerate() {
            program.locate(&mut add);
            if let Some(timeline) = self.call_timelines.get_mut(number) {
                timeline.names.clone_from(&program.names);
            }
        }
    }

    /// Returns the report as one self-contained HTML page, which loads no other resource.
    pub fn html(&self) -> String {
        html::write(self)
    }
}

/// Returns notes on missing, cut or inconsistent data.
fn notes(
    input: &ReportInput,
    windows: &[WindowReport],
    traced: Option<(&TraceSummary, &MpiReport)>,
) -> Vec<String> {
    let mut notes = Vec::new();
    for outcome in &input.windows.outcomes {
        if outcome.ending != nodescope_window::Ending::Complete {
            notes.push(outcome.text.clone());
        }
    }
    for window in windows {
        let name = &window.name;
        if window.warm_up_only {
            notes.push(format!(
                "window \"{name}\": the figures are those of its warm-up; nothing was measured after it"
            ));
        }
        for scope in &window.scopes {
            if scope.terms.iter().any(|term| term.term == "unattributed") {
                notes.push(format!(
                    "window \"{name}\", {}: the models' events do not account for all stall cycles; see the term \"unattributed\"",
                    scope.name
                ));
            }
            if scope.clock.is_some_and(|clock| !clock.consistent) {
                notes.push(format!(
                    "window \"{name}\", {}: the terms and the vCPUs' clocks differ by more than rounding",
                    scope.name
                ));
            }
        }
    }
    match traced {
        None => notes.push("there is no trace: calls, bytes and times of MPI are unknown".into()),
        Some((summary, mpi)) => {
            if let Some(problem) = &summary.problem {
                notes.push(format!("{problem}; the MPI profile ends there"));
            }
            for deadlock in &mpi.pending.deadlocks {
                let note = match deadlock.ranks.as_slice() {
                    [rank] => {
                        format!("rank {rank} waits for ever: see the calls that had not ended")
                    }
                    ranks => format!(
                        "{} ranks are deadlocked: see the calls that had not ended",
                        ranks.len()
                    ),
                };
                notes.push(match mpi.label(deadlock.job) {
                    Some(label) => format!("MPI {label}: {note}"),
                    None => note,
                });
            }
            match mpi.pending.calls.len() {
                0 => {}
                1 => notes.push("1 MPI call had not ended when the trace did".into()),
                count => notes.push(format!(
                    "{count} MPI calls had not ended when the trace did"
                )),
            }
            if let Some(status @ 1..) = summary.job_exit {
                notes.push(format!("the job ended with status {status}"));
            }
        }
    }
    notes
}

fn sources(core: &CoreCpi) -> Vec<Source> {
    let core = match core {
        CoreCpi::Nominal { source } => {
            format!("stated: nominal CPI, {source}; extra cycles of long instructions modelled")
        }
        CoreCpi::Modelled { source } => format!("modelled: {source}"),
        CoreCpi::Replaced { cpi, source } => format!("imported: {cpi}, {source}"),
        CoreCpi::PerRank {
            whole,
            ranks,
            source,
        } => {
            let own: Vec<_> = ranks
                .iter()
                .map(|(rank, cpi)| format!("rank {rank} {cpi}"))
                .collect();
            let own = if own.is_empty() {
                String::new()
            } else {
                format!(" ({})", own.join(", "))
            };
            format!("imported: {whole}{own}, {source}")
        }
    };
    [
        (
            "instructions, references, FLOPs",
            "1",
            "counted by the engine".to_owned(),
        ),
        ("CPI_core", "cycles per instruction outside MPI", core),
        (
            "CPI_L1, CPI_L2, ..., CPI_memory",
            "cycles per instruction outside MPI",
            "modelled: events counted in the models, latencies stated in the study".into(),
        ),
        (
            "CPI_MPI",
            "cycles per instruction outside MPI",
            "modelled: all cycles inside MPI calls; calls counted in the trace".into(),
        ),
        ("times", "seconds of virtual time", "modelled".into()),
        (
            "FLOPS as published",
            "FLOP/s of one core",
            "modelled: the published formula, equation (6)".into(),
        ),
        (
            "FLOPS, direct",
            "FLOP/s",
            "counted operations over modelled time".into(),
        ),
        (
            "MPI calls, bytes",
            "1, bytes",
            "counted in the trace".into(),
        ),
        ("network", "frames, bytes", "counted by the fabric".into()),
    ]
    .into_iter()
    .map(|(figure, unit, source)| Source {
        figure,
        unit,
        source,
    })
    .collect()
}
