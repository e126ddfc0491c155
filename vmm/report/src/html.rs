//! The report as one HTML page, written so that it is well-formed XML, too.

use nodescope_page::{Entry, Page};
use nodescope_verdict::{NO_CAUSE, Place, Verdict};

use crate::charts::{Drawn, MOST_LANES};
use crate::code;
use crate::explain::meaning;
use crate::mpi::MpiReport;
use crate::table::Table;
use crate::text::{
    CORE, core, equations_table, general_tables, matrix_table, mpi_tables, network_table,
    program_title, sizes_table, title, window_check, window_lines, window_title,
};
use crate::window_tables::window_tables;
use crate::{Report, WindowReport, call_timeline};

/// Length in characters beyond which the page may cut a name.
const LONG: usize = 16;
/// Maximum number of rows of a table, sums not counted.
const ROWS: usize = 1000;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A section of a page below the overview.
pub(crate) struct Section {
    /// Anchor of the section, which links lead to.
    id: String,
    title: String,
    markup: String,
    /// True if the section is open when the page is loaded.
    open: bool,
}

impl Section {
    pub(crate) fn new(id: impl Into<String>, title: impl Into<String>, markup: Page) -> Section {
        Section {
            id: id.into(),
            title: title.into(),
            markup: markup.markup(),
            open: false,
        }
    }

    /// Returns the section, open when the page is loaded.
    pub(crate) fn opened(self) -> Section {
        Section { open: true, ..self }
    }
}

pub(crate) fn write(report: &Report) -> String {
    let mut page = begin(&title(report), &[report]);
    header(&mut page, report);
    let footer = "The exact figures are in report.json.";
    let overview = |page: &mut Page| overview(page, report);
    end(page, overview, &sections(report), footer, &[report])
}

/// Begins a page about these reports.
pub(crate) fn begin(title: &str, reports: &[&Report]) -> Page {
    let mut windows = reports.iter().flat_map(|report| &report.windows);
    let code_style = match windows.any(|window| window.code.is_some()) {
        true => code::style(),
        false => String::new(),
    };
    let style = format!("{STYLE}{}{code_style}", call_timeline::STYLE);
    Page::begin(title, &style)
}

/// Writes the overview, the sections and the scripts of a page, and returns the page.
pub(crate) fn end(
    mut page: Page,
    overview: impl FnOnce(&mut Page),
    sections: &[Section],
    footer: &str,
    reports: &[&Report],
) -> String {
    page.raw("<div class=\"frame\">\n");
    contents(&mut page, sections);
    page.raw("<main>\n<section id=\"overview\" class=\"overview\">");
    overview(&mut page);
    page.raw("</section>\n");
    for section in sections {
        let class = if section.id == "notes" { "notes" } else { "" };
        page.raw(&format!(
            "<section id=\"{}\" class=\"{class}\"><details",
            section.id
        ));
        page.raw(if section.open { " open=\"open\">" } else { ">" });
        page.raw("<summary>");
        page.element("h2", "", &section.title);
        page.raw("</summary>");
        page.raw(&section.markup);
        page.raw("</details></section>\n");
    }
    page.raw("</main></div>\n");
    page.element("footer", "", footer);
    page.raw("\n");
    page.sort_script();
    page.script(SCRIPT);
    if (reports.iter()).any(|report| !report.call_timelines.is_empty()) {
        call_timeline::script(&mut page);
    }
    page.finish()
}

fn header(page: &mut Page, report: &Report) {
    page.raw("<header>\n");
    page.element("h1", "", &report.study.name);
    page.raw("<dl>");
    let mut line = |label: &str, meaning: &str, value: &str| {
        page.raw("<div>");
        page.explained("dt", "", label, meaning);
        page.element("dd", "", value);
        page.raw("</div>");
    };
    for (label, value) in &report.study.description {
        line(label, "", value);
    }
    let of_core = meaning("", "core").unwrap_or_default();
    line(CORE, of_core, &core(&report.core));
    line("study", "", &report.study.id);
    page.raw("</dl></header>\n");
}

/// Writes the list of sections.
fn contents(page: &mut Page, sections: &[Section]) {
    page.raw("<nav class=\"contents\" aria-label=\"Contents\"><ul>");
    let overview = [("overview", "Overview")].into_iter();
    let others = sections
        .iter()
        .map(|section| (section.id.as_str(), section.title.as_str()));
    for (id, title) in overview.chain(others) {
        page.raw(&format!("<li><a href=\"#{id}\">"));
        page.text(title);
        page.raw("</a></li>");
    }
    page.raw("</ul></nav>\n");
}

/// Number of windows whose CPI stacks the overview shows. Further stacks are in the windows' sections.
const MOST_STACKS: usize = 2;

/// Writes what a reader sees first: the verdict or the findings, the CPI stack, and the timeline.
fn overview(page: &mut Page, report: &Report) {
    page.raw("<div class=\"sides\"><div>");
    verdict_or_findings(page, report, "h2");
    page.raw("</div>\n");
    if has_stacks(report) {
        page.raw("<div>");
        stacks(page, report);
        page.raw("</div>\n");
    }
    page.raw("</div>\n");
    timeline(page, report, 0, 0, "");
}

/// Writes the verdict and the CPI stacks of a report, below each other.
pub(crate) fn charts_and_verdict(page: &mut Page, report: &Report, heading: &str) {
    stacks(page, report);
    verdict_or_findings(page, report, heading);
}

fn verdict_or_findings(page: &mut Page, report: &Report, heading: &str) {
    match &report.verdict {
        Some(of_run) => verdict(page, of_run, heading),
        None => {
            page.element(heading, "", "Findings");
            match report.findings.as_slice() {
                [] => page.element("p", "", "No finding is above its threshold."),
                _ => finding_list(page, report),
            }
        }
    }
}

fn shown_stacks(report: &Report) -> impl Iterator<Item = (&WindowReport, &Drawn)> {
    let stacks = report.windows.iter().zip(&report.charts.stacks);
    stacks
        .take(MOST_STACKS)
        .filter(|(_, (svg, _))| !svg.is_empty())
}

fn has_stacks(report: &Report) -> bool {
    shown_stacks(report).next().is_some()
}

fn stacks(page: &mut Page, report: &Report) {
    for (window, (svg, legend)) in shown_stacks(report) {
        let title = format!("CPI stack of window \"{}\"", window.name);
        chart(page, &title, svg, legend, None);
    }
}

/// Writes the timeline of a program; nothing if the program has no calls. `id` is a number that no other timeline of the page has, and `side`
/// the name of the run where the page has several.
pub(crate) fn timeline(page: &mut Page, report: &Report, number: usize, id: usize, side: &str) {
    let (Some(calls), Some(drawn)) = (
        report.call_timelines.get(number),
        report.charts.programs.get(number),
    ) else {
        return;
    };
    let Some((svg, legend)) = &drawn.timeline else {
        return;
    };
    let label = report.mpi.as_ref().and_then(|mpi| mpi.label(number));
    let of: Vec<String> = [Some(side.to_owned()).filter(|side| !side.is_empty()), label]
        .into_iter()
        .flatten()
        .collect();
    let title = match of.as_slice() {
        [] => "Timeline of MPI calls".to_owned(),
        of => format!("Timeline of MPI calls of {}", of.join(", ")),
    };
    let ranks = drawn.ranks;
    call_timeline::write(page, &title, calls, &report.windows, id, |page| {
        page.raw("<div class=\"wide\">");
        page.raw(svg);
        if ranks > MOST_LANES {
            let what = format!("Not all of the {ranks} ranks are drawn: evenly spaced ones are.");
            page.element("p", "", &what);
        }
        page.raw("</div>");
        self::legend(page, legend);
    });
}

/// Returns the sections below the overview.
fn sections(report: &Report) -> Vec<Section> {
    let mut sections = Vec::new();
    if report.verdict.is_some() && !report.findings.is_empty() {
        let mut page = Page::default();
        finding_list(&mut page, report);
        sections.push(Section::new("findings", "Findings", page));
    }
    if !report.notes.is_empty() {
        let mut page = Page::default();
        page.raw("<ul>");
        for note in &report.notes {
            page.element("li", "", note);
        }
        page.raw("</ul>");
        sections.push(Section::new("notes", "Notes", page).opened());
    }
    for (number, (window, stack)) in report.windows.iter().zip(&report.charts.stacks).enumerate() {
        let mut page = Page::default();
        window_section(&mut page, window, (number >= MOST_STACKS).then_some(stack));
        let title = window_title(window);
        sections.push(Section::new(format!("window-{number}"), title, page));
        if let Some(code) = &window.code {
            let mut page = Page::default();
            code::html(&mut page, code, &mut table);
            let title = format!("Code of window \"{}\"", window.name);
            sections.push(Section::new(format!("code-{number}"), title, page));
        }
    }
    if let Some(mpi) = &report.mpi {
        sections.extend(mpi_sections(report, mpi));
    }
    for (number, section) in report.sections.iter().enumerate() {
        sections.push(Section {
            id: format!("part-{number}"),
            title: section.title.clone(),
            markup: section.markup.clone(),
            open: false,
        });
    }
    if !report.network.is_empty() {
        let mut page = Page::default();
        table(&mut page, network_table(&report.network));
        sections.push(Section::new("network", "Network", page));
    }
    sections.push(Section::new(
        "sources",
        "Units and sources",
        sources(report),
    ));
    sections
}

fn window_section(page: &mut Page, window: &WindowReport, stack: Option<&Drawn>) {
    for line in window_lines(window) {
        page.element("p", "", &line);
    }
    page.raw(&format!(
        "<p><a href=\"#overview\" data-from=\"{}\" data-to=\"{}\">Show the window in the timeline</a></p>",
        window.measured_from_ps, window.closed_ps
    ));
    page.raw("<div class=\"blocks\">\n");
    if let Some((svg, legend)) = stack.filter(|(svg, _)| !svg.is_empty()) {
        chart(page, "CPI stack", svg, legend, None);
    }
    for shown in window_tables(window) {
        table(page, shown);
    }
    page.raw("</div>\n");
    if let Some(check) = window_check(window) {
        page.element("p", "", &check);
    }
}

fn sources(report: &Report) -> Page {
    let mut page = Page::default();
    page.raw("<div class=\"blocks\">\n");
    let mut sources = Table::new("", 3, &["figures", "unit", "source"]).about("sources");
    for source in &report.sources {
        sources.row(vec![
            source.figure.into(),
            source.unit.into(),
            source.source.clone(),
        ]);
    }
    table(&mut page, sources);
    if !report.windows.is_empty() {
        table(&mut page, equations_table());
    }
    page.raw("</div>");
    page
}

fn finding_list(page: &mut Page, report: &Report) {
    page.raw("<ol>");
    for finding in &report.findings {
        page.element("li", "", &finding.text);
    }
    page.raw("</ol>");
}

fn chart(
    page: &mut Page,
    title: &str,
    svg: &str,
    legend: &[(String, String, &str)],
    below: Option<&str>,
) {
    page.raw("<figure class=\"block\">");
    page.element("h3", "", title);
    // Drawings of a fixed width scroll where the page is narrower.
    let is_drawing = svg.starts_with("<svg");
    page.raw(if is_drawing {
        "<div class=\"wide\">"
    } else {
        ""
    });
    page.raw(svg);
    page.raw(if is_drawing { "</div>" } else { "" });
    self::legend(page, legend);
    if let Some(below) = below {
        page.element("p", "", below);
    }
    page.raw("</figure>\n");
}

fn legend(page: &mut Page, legend: &[(String, String, &str)]) {
    page.explained_legend(legend.iter().map(|(name, colour, meaning)| Entry {
        name,
        colour,
        meaning,
    }));
}

pub(crate) fn table(page: &mut Page, table: Table) {
    let table = table.limited(ROWS);
    page.raw("<figure class=\"block\">");
    if !table.title.is_empty() {
        let (head, rest) = table.title.split_once(". ").unwrap_or((&table.title, ""));
        page.element("h3", "", head);
        if !rest.is_empty() {
            page.element("p", "caption", rest);
        }
    }
    if !table.rows.is_empty() {
        rows(page, &table);
    }
    for sentence in &table.below {
        page.element("p", "", sentence);
    }
    page.raw("</figure>\n");
}

/// Returns the MPI profile: a section for each program, after one of the whole run where the run has several programs.
fn mpi_sections(report: &Report, mpi: &MpiReport) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut general = general_tables(mpi);
    if mpi.programs.len() != 1 && !general.is_empty() {
        let mut page = Page::default();
        page.raw("<div class=\"blocks\">\n");
        for shown in std::mem::take(&mut general) {
            table(&mut page, shown);
        }
        page.raw("</div>");
        sections.push(Section::new("programs", "MPI programs of the run", page));
    }
    let drawn = report.charts.programs.iter();
    for (number, (program, drawn)) in mpi.programs.iter().zip(drawn).enumerate() {
        let mut page = Page::default();
        if number > 0 {
            timeline(&mut page, report, number, number, "");
        }
        page.raw("<div class=\"blocks\">\n");
        if let Some(svg) = &drawn.matrix {
            let below = "The stronger a cell's colour, the more bytes: half as many bytes are half as strong.";
            let title = "Bytes sent, point to point, counted";
            chart(&mut page, title, svg, &[], Some(below));
        }
        for shown in std::mem::take(&mut general) {
            table(&mut page, shown);
        }
        for shown in mpi_tables(program) {
            table(&mut page, shown);
        }
        let last = [Some(matrix_table(program)), sizes_table(program)];
        for shown in last.into_iter().flatten() {
            table(&mut page, shown);
        }
        page.raw("</div>");
        let title = program_title(mpi, program);
        sections.push(Section::new(format!("mpi-{number}"), title, page));
    }
    sections
}

/// Writes the rows of a table in groups, and the sums as the footer. Unless the table is ordered, the page's script can sort the rows
/// within each group.
fn rows(page: &mut Page, table: &Table) {
    let class = |column: usize| if column < table.names { "name" } else { "" };
    page.raw("<div class=\"wide\"><table");
    page.raw(if table.ordered {
        ""
    } else {
        " class=\"sortable\""
    });
    page.raw(">\n<thead><tr>");
    for (column, cell) in table.head.iter().enumerate() {
        let meaning = meaning(table.topic, cell).unwrap_or_default();
        page.explained("th", class(column), cell, meaning);
    }
    page.raw("</tr></thead>\n<tbody>\n");
    let own = table.rows.len() - table.sums.min(table.rows.len());
    for (number, row) in table.rows.iter().enumerate() {
        if number == own {
            page.raw("</tbody>\n<tfoot>\n");
        } else if number > 0 && table.groups.contains(&number) {
            page.raw("</tbody>\n<tbody>\n");
        }
        page.raw("<tr>");
        for (column, cell) in row.iter().enumerate() {
            // The style sheet may cut a long name, so a tooltip shows the whole name.
            let is_long = column < table.names && cell.chars().count() > LONG;
            let whole = if is_long { cell.as_str() } else { "" };
            page.explained("td", class(column), cell, whole);
        }
        page.raw("</tr>\n");
    }
    let end = if own < table.rows.len() {
        "tfoot"
    } else {
        "tbody"
    };
    page.raw(&format!("</{end}></table></div>\n"));
}

fn verdict(page: &mut Page, verdict: &Verdict, heading: &str) {
    page.element(heading, "", "Verdict");
    match verdict.causes.as_slice() {
        [] => page.element("p", "", NO_CAUSE),
        causes => {
            page.raw("<ol>");
            for cause in causes {
                page.raw("<li>");
                page.text(&cause.text(verdict));
                places(page, &cause.place);
                page.raw("</li>");
            }
            page.raw("</ol>");
        }
    }
    if !verdict.ruled_out.is_empty() {
        page.element(
            "p",
            "",
            &format!("Ruled out: {}.", verdict.ruled_out_text()),
        );
    }
    for said in &verdict.quality {
        page.element("p", "", &format!("Data: {said}."));
    }
}

/// Writes buttons that show only the rank and the MPI function of a place, in tables and timeline.
fn places(page: &mut Page, place: &Place) {
    let rank = place.rank.map(|rank| ("rank", format!("rank {rank}")));
    let mut words = place
        .text
        .split(|character: char| !character.is_alphanumeric() && character != '_');
    let call = words.find(|word| word.starts_with("MPI_"));
    let call = call.map(|call| ("call", call.to_owned()));
    for (what, name) in rank.into_iter().chain(call) {
        page.raw(&format!(
            " <button type=\"button\" class=\"pick place\" data-pick=\"{what}\" title=\"Show only this in tables and timeline\">"
        ));
        page.text(&name);
        page.raw("</button>");
    }
}
