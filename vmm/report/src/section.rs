//! The text report by its sections, each of which a command can print alone.

use std::str::FromStr;

use crate::breakdown::WindowReport;
use crate::code;
use crate::table::hanging;
use crate::text::{
    CORE, ROWS, WIDTH, core, equations_table, mpi_sections, network_table, title, underlined,
    verdict_text, window_check, window_lines, window_title,
};
use crate::window_tables::window_tables;
use crate::{OpenMpText, Report};

/// A section of the text report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// What costs time, and what the removal of each cause saves.
    Verdict,
    /// Sentences on the largest parts of the time.
    Findings,
    /// The cluster, the job, and the source of CPI_core.
    Study,
    /// Notes for the user.
    Notes,
    /// The windows: CPI stacks, misses, MPI, FLOPS.
    Window,
    /// The code of the windows.
    Code,
    /// The MPI profile of the whole run.
    Mpi,
    /// The times of OpenMP threads.
    OpenMp,
    /// Frames and bytes of each node.
    Network,
    /// The published equations.
    Equations,
}

impl Section {
    /// All sections, in the order of the text.
    pub const ALL: [Section; 10] = [
        Section::Verdict,
        Section::Findings,
        Section::Study,
        Section::Notes,
        Section::Window,
        Section::Code,
        Section::Mpi,
        Section::OpenMp,
        Section::Network,
        Section::Equations,
    ];

    /// Returns the section's name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Section::Verdict => "verdict",
            Section::Findings => "findings",
            Section::Study => "study",
            Section::Notes => "notes",
            Section::Window => "window",
            Section::Code => "code",
            Section::Mpi => "mpi",
            Section::OpenMp => "openmp",
            Section::Network => "network",
            Section::Equations => "equations",
        }
    }

    /// Returns a sentence for a report that has no data for the section.
    pub fn missing(self) -> &'static str {
        match self {
            Section::Verdict => {
                "There is no verdict: it needs a short trace of one MPI program. The command `nodescope verdict` also takes long traces."
            }
            Section::Findings => "There are no findings: no part of the time is large enough.",
            Section::Study => "There is no description of the study.",
            Section::Notes => "There are no notes.",
            Section::Window => {
                "There is no window: the study has none, or none opened. The notes tell which."
            }
            Section::Code => "There is no code: no window recorded which code ran in it.",
            Section::Mpi => "There is no MPI profile: no MPI call was traced.",
            Section::OpenMp => {
                "There are no records of OpenMP: the study does not set job.openmp, or no program used OpenMP."
            }
            Section::Network => "There are no counts of the network: the run did not end.",
            Section::Equations => "There are no equations: no window uses them.",
        }
    }
}

impl FromStr for Section {
    type Err = String;

    fn from_str(name: &str) -> Result<Section, String> {
        let mut all = Section::ALL.into_iter();
        all.find(|section| section.name() == name).ok_or_else(|| {
            let names = Section::ALL.map(Section::name).join(", ");
            format!("there is no section {name}; the sections are {names}")
        })
    }
}

impl Report {
    /// Returns the report as plain text with aligned tables, made for a terminal of 100 columns. Tables with very long cells are wider.
    pub fn text(&self) -> String {
        let mut parts = vec![verdict(self), findings(self)];
        parts.push(study(self) + &notes(self));
        for of_window in &self.windows {
            parts.extend([window(of_window), window_code(of_window)]);
        }
        parts.extend(after_windows(self));
        format!("{}{}", underlined(&title(self), '='), joined(parts))
    }

    /// Returns one section of the text; `None` if the report has no data for the section.
    pub fn section(&self, section: Section) -> Option<String> {
        let [mpi, threads, network, equations] = after_windows(self);
        let text = match section {
            Section::Verdict => verdict(self),
            Section::Findings => findings(self),
            Section::Study => study(self),
            Section::Notes => notes(self),
            Section::Window => joined(self.windows.iter().map(window).collect()),
            Section::Code => joined(self.windows.iter().map(window_code).collect()),
            Section::Mpi => mpi,
            Section::OpenMp => threads,
            Section::Network => network,
            Section::Equations => equations,
        };
        Some(text).filter(|text| !text.is_empty())
    }
}

/// Joins parts of the text with blank lines. Empty parts are left out.
fn joined(mut parts: Vec<String>) -> String {
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

fn verdict(report: &Report) -> String {
    report
        .verdict
        .as_ref()
        .map(verdict_text)
        .unwrap_or_default()
}

fn findings(report: &Report) -> String {
    if report.findings.is_empty() {
        return String::new();
    }
    let mut out = String::from("Findings\n");
    for (number, finding) in (1..).zip(&report.findings) {
        out.push_str(&hanging(&format!("  {number}."), 5, &finding.text, WIDTH));
    }
    out
}

fn study(report: &Report) -> String {
    let row = |label: &str, value: &str| hanging(&format!("{label:<16} "), 17, value, WIDTH);
    let description = report.study.description.iter();
    let mut out: String = description
        .map(|(label, value)| row(label, value))
        .collect();
    out.push_str(&row(CORE, &core(&report.core)));
    out
}

fn notes(report: &Report) -> String {
    let notes = report.notes.iter();
    notes.map(|note| hanging("note:", 6, note, WIDTH)).collect()
}

fn window(window: &WindowReport) -> String {
    let mut out = underlined(&window_title(window), '-');
    for line in window_lines(window) {
        out.push_str(&hanging("", 0, &line, WIDTH));
    }
    for table in window_tables(window) {
        out.push_str(&format!("\n{}", table.limited(ROWS).text(WIDTH)));
    }
    if let Some(check) = window_check(window) {
        out.push_str(&format!("\n{}", hanging("", 0, &check, WIDTH)));
    }
    out
}

fn window_code(window: &WindowReport) -> String {
    let Some(code) = &window.code else {
        return String::new();
    };
    let head = underlined(&format!("Code of window \"{}\"", window.name), '-');
    head + &code::text(code, WIDTH)
}

/// Returns the sections behind the windows, each empty without data: MPI, OpenMP, the network, equations.
fn after_windows(report: &Report) -> [String; 4] {
    let mpi = report.mpi.iter().flat_map(mpi_sections);
    let mpi = mpi.map(|(title, tables)| {
        let tables = tables.iter().map(|table| table.text(WIDTH));
        underlined(&title, '-') + &joined(tables.collect())
    });
    let threads = |of: &OpenMpText| underlined("OpenMP", '-') + &of.text;
    let network = match report.network.as_slice() {
        [] => String::new(),
        network => network_table(network).text(WIDTH),
    };
    let equations = match report.windows.as_slice() {
        [] => String::new(),
        _ => equations_table().text(WIDTH),
    };
    [
        joined(mpi.collect()),
        report.openmp.as_ref().map(threads).unwrap_or_default(),
        network,
        equations,
    ]
}
