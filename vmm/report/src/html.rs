//! The report as one HTML page, written so that it is well-formed XML, too.

use nodescope_page::{Entry, Page};
use nodescope_verdict::{NO_CAUSE, Verdict};

use crate::Report;
use crate::code;
use crate::explain::meaning;
use crate::mpi::MpiReport;
use crate::table::Table;
use crate::text::{
    CORE, core, equations_table, general_tables, matrix_table, mpi_tables, network_table,
    program_title, sizes_table, title, window_check, window_lines, window_title,
};
use crate::window_tables::window_tables;

/// Length in characters beyond which the page may cut a name.
const LONG: usize = 16;
/// Maximum number of rows of a table, sums not counted.
const ROWS: usize = 1000;

const STYLE: &str = "
:root { --ink: #1f2733; --soft: #5b6675; --line: #e3e7ed; --ground: #f6f7f9; --accent: #3b6fb6; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
header { background: #16263d; color: #fff; padding: 28px 0 24px; }
header h1 { margin: 0 0 6px; font-size: 26px; font-weight: 600; }
header dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px; margin: 12px 0 0; font-size: 14px; }
header dt { color: #a9bbd3; } header dd { margin: 0; }
main, header > div { max-width: 1860px; margin: 0 auto; padding: 0 24px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 20px 24px; margin: 22px 0; }
h2 { margin: 0 0 8px; font-size: 20px; } h3 { margin: 22px 0 6px; font-size: 15px; font-weight: 600; }
p { margin: 4px 0; color: var(--soft); } .caption { font-size: 13px; margin: 0 0 4px; }
.findings { border-left: 4px solid var(--accent); } .findings li { margin: 5px 0; font-size: 16px; } .findings ol { margin: 0; padding-left: 22px; }
/* Charts and tables stand beside each other where there is room. Their titles are no wider than they are. */
.blocks { display: flex; flex-wrap: wrap; gap: 4px 48px; align-items: flex-start; }
.block { margin: 0; max-width: 100%; min-width: min(100%, 360px); } .block > h3, .block > p { width: 0; min-width: 100%; } .block > p { font-size: 13px; }
.notes { border-left: 4px solid #e07b39; } .notes li { margin: 3px 0; } .notes ul { margin: 0; padding-left: 18px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: var(--soft); margin: 8px 0 0; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
.wide { overflow-x: auto; } svg { max-width: 100%; height: auto; display: block; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 12px 4px 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; } [title] { cursor: help; } th[title] { text-decoration: underline dotted 1px; text-underline-offset: 3px; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: \" \\2191\"; } th[aria-sort=descending] button::after { content: \" \\2193\"; }
tfoot td { font-weight: 600; } tbody + tbody tr:first-child td, tfoot tr:first-child td { border-top: 2px solid var(--line); } .name { text-align: left; }
tr:hover td { background: #f3f6fa; }
footer { max-width: 1860px; margin: 0 auto 40px; padding: 0 24px; color: var(--soft); font-size: 13px; }
@media print { body { background: #fff; } section { break-inside: avoid; } }
";

pub(crate) fn write(report: &Report) -> String {
    let has_code = report.windows.iter().any(|window| window.code.is_some());
    let style = format!("{STYLE}{}", if has_code { code::STYLE } else { "" });
    let mut page = Page::begin(&title(report), &style);
    page.raw("<header><div>\n");
    page.element("h1", "", &report.study.name);
    page.raw("<dl>");
    for (label, value) in &report.study.description {
        page.element("dt", "", label);
        page.element("dd", "", value);
    }
    page.explained("dt", "", CORE, meaning("", "core").unwrap_or_default());
    page.element("dd", "", &core(&report.core));
    page.element("dt", "", "study");
    page.element("dd", "", &report.study.id);
    page.raw("</dl>\n</div></header>\n<main>\n");

    if let Some(of_run) = &report.verdict {
        verdict(&mut page, of_run);
    }
    if !report.findings.is_empty() {
        page.raw("<section class=\"findings\">");
        page.element("h2", "", "Findings");
        page.raw("<ol>");
        for finding in &report.findings {
            page.element("li", "", &finding.text);
        }
        page.raw("</ol></section>\n");
    }
    if !report.notes.is_empty() {
        page.raw("<section class=\"notes\">");
        page.element("h2", "", "Notes");
        page.raw("<ul>");
        for note in &report.notes {
            page.element("li", "", note);
        }
        page.raw("</ul></section>\n");
    }
    for (window, (svg, legend)) in report.windows.iter().zip(&report.charts.stacks) {
        page.raw("<section>");
        page.element("h2", "", &window_title(window));
        for line in window_lines(window) {
            page.element("p", "", &line);
        }
        page.raw("<div class=\"blocks\">\n");
        if !svg.is_empty() {
            chart(&mut page, "CPI stack", svg, legend, None);
        }
        for shown in window_tables(window) {
            table(&mut page, shown);
        }
        page.raw("</div>\n");
        if let Some(check) = window_check(window) {
            page.element("p", "", &check);
        }
        page.raw("</section>\n");
        if let Some(code) = &window.code {
            page.raw("<section>");
            page.element("h2", "", &format!("Code of window \"{}\"", window.name));
            code::html(&mut page, code, &mut table);
            page.raw("</section>\n");
        }
    }
    if let Some(mpi) = &report.mpi {
        mpi_sections(&mut page, report, mpi);
    }
    for section in &report.sections {
        page.raw("<section>");
        page.element("h2", "", &section.title);
        page.raw(&section.markup);
        page.raw("</section>\n");
    }
    if !report.network.is_empty() {
        page.raw("<section>");
        page.element("h2", "", "Network");
        table(&mut page, network_table(&report.network));
        page.raw("</section>\n");
    }
    page.raw("<section>");
    page.element("h2", "", "Units and sources");
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
    page.raw("</div></section>\n</main>\n<footer>The exact figures are in report.json.</footer>\n");
    page.sort_script();
    page.finish()
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
    page.raw("<div class=\"wide\">");
    page.raw(svg);
    page.raw("</div>");
    page.explained_legend(legend.iter().map(|(name, colour, meaning)| Entry {
        name,
        colour,
        meaning,
    }));
    if let Some(below) = below {
        page.element("p", "", below);
    }
    page.raw("</figure>\n");
}

fn table(page: &mut Page, table: Table) {
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

/// Writes the MPI profile: a section for each program, after one of the whole run where the run has several programs.
fn mpi_sections(page: &mut Page, report: &Report, mpi: &MpiReport) {
    let mut general = general_tables(mpi);
    if mpi.programs.len() != 1 && !general.is_empty() {
        page.raw("<section>");
        page.element("h2", "", "MPI programs of the run");
        page.raw("<div class=\"blocks\">\n");
        for shown in std::mem::take(&mut general) {
            table(page, shown);
        }
        page.raw("</div></section>\n");
    }
    for (program, drawn) in mpi.programs.iter().zip(&report.charts.programs) {
        page.raw("<section>");
        page.element("h2", "", &program_title(mpi, program));
        page.raw("<div class=\"blocks\">\n");
        if let Some((svg, legend)) = &drawn.timeline {
            let shown = program.ranks.len();
            let below = (shown > crate::charts::MOST_LANES).then(|| {
                format!("Not all of the {shown} ranks are drawn: evenly spaced ones are.")
            });
            let title = "Timeline: how much of each interval the ranks spent inside MPI, from the first entry to the last exit";
            chart(page, title, svg, legend, below.as_deref());
        }
        if let Some(svg) = &drawn.matrix {
            let below = "The darker a cell, the more bytes: half as many bytes are half as dark.";
            let title = "Bytes sent, point to point, counted";
            chart(page, title, svg, &[], Some(below));
        }
        for shown in std::mem::take(&mut general) {
            table(page, shown);
        }
        for shown in mpi_tables(program) {
            table(page, shown);
        }
        let last = [Some(matrix_table(program)), sizes_table(program)];
        for shown in last.into_iter().flatten() {
            table(page, shown);
        }
        page.raw("</div></section>\n");
    }
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

fn verdict(page: &mut Page, verdict: &Verdict) {
    page.raw("<section class=\"findings\">");
    page.element("h2", "", "Verdict");
    match verdict.causes.as_slice() {
        [] => page.element("p", "", NO_CAUSE),
        causes => {
            page.raw("<ol>");
            for cause in causes {
                page.element("li", "", &cause.text(verdict));
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
    page.raw("</section>\n");
}
