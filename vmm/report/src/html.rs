//! The report as one HTML page, written so that it is well-formed XML, too.

use nodescope_page::Page;

use crate::Report;
use crate::code;
use crate::table::Table;
use crate::text::{
    core, limited, matrix_table, mpi_tables, network_table, title, window_lines, window_tables,
    window_title,
};

/// Characters of a name beyond which it may be cut.
const LONG: usize = 16;
/// Most rows of a table.
const ROWS: usize = 1000;

const STYLE: &str = "
:root { --ink: #1f2733; --soft: #5b6675; --line: #e3e7ed; --ground: #f6f7f9; --accent: #3b6fb6; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
header { background: #16263d; color: #fff; padding: 28px 0 24px; }
header h1 { margin: 0 0 6px; font-size: 26px; font-weight: 600; }
header dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px; margin: 12px 0 0; font-size: 14px; }
header dt { color: #a9bbd3; } header dd { margin: 0; }
main, header > div { max-width: 1160px; margin: 0 auto; padding: 0 24px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 20px 24px; margin: 22px 0; }
h2 { margin: 0 0 8px; font-size: 20px; } h3 { margin: 22px 0 6px; font-size: 15px; font-weight: 600; }
p { margin: 4px 0; color: var(--soft); } .caption { font-size: 13px; margin: 0 0 4px; }
.notes { border-left: 4px solid #e07b39; } .notes li { margin: 3px 0; } .notes ul { margin: 0; padding-left: 18px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: var(--soft); margin: 8px 0 0; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
.wide { overflow-x: auto; } svg { max-width: 100%; height: auto; display: block; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 12px 4px 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } .name { text-align: left; }
tbody tr:hover { background: #f3f6fa; }
footer { max-width: 1160px; margin: 0 auto 40px; padding: 0 24px; color: var(--soft); font-size: 13px; }
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
    page.element("dt", "", "CPI_core");
    page.element("dd", "", &core(&report.core));
    page.element("dt", "", "study");
    page.element("dd", "", &report.study.id);
    page.raw("</dl>\n</div></header>\n<main>\n");

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
        if !svg.is_empty() {
            page.element("h3", "", "CPI stack");
            chart(&mut page, svg, legend);
        }
        for shown in window_tables(window) {
            table(&mut page, shown);
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
        page.raw("<section>");
        page.element("h2", "", "MPI profile of the whole run");
        if let Some((svg, legend)) = &report.charts.timeline {
            page.element(
                "h3",
                "",
                "Timeline: how much of each interval the ranks spent inside MPI, from the first entry to the last exit",
            );
            chart(&mut page, svg, legend);
            let shown = report.mpi.as_ref().map_or(0, |mpi| mpi.ranks.len());
            if shown > crate::charts::MOST_LANES {
                page.element(
                    "p",
                    "",
                    &format!("Not all of the {shown} ranks are drawn: evenly spaced ones are."),
                );
            }
        }
        if let Some(svg) = &report.charts.matrix {
            page.element("h3", "", "Bytes sent, point to point, counted");
            chart(&mut page, svg, &[]);
        }
        for shown in mpi_tables(mpi) {
            table(&mut page, shown);
        }
        table(&mut page, matrix_table(mpi));
        page.raw("</section>\n");
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
    let mut sources = Table::new("", 3, &["figures", "unit", "source"]);
    for source in &report.sources {
        sources.row(vec![
            source.figure.into(),
            source.unit.into(),
            source.source.clone(),
        ]);
    }
    table(&mut page, sources);
    page.raw("</section>\n</main>\n<footer>The exact figures are in report.json.</footer>\n");
    page.finish()
}

fn chart(page: &mut Page, svg: &str, legend: &[(String, String)]) {
    page.raw("<div class=\"wide\">");
    page.raw(svg);
    page.raw("</div>");
    page.legend(
        legend
            .iter()
            .map(|(name, colour)| (name.as_str(), colour.as_str())),
    );
    page.raw("\n");
}

fn table(page: &mut Page, table: Table) {
    let table = limited(table, ROWS);
    if !table.title.is_empty() {
        let (head, rest) = table.title.split_once(". ").unwrap_or((&table.title, ""));
        page.element("h3", "", head);
        if !rest.is_empty() {
            page.element("p", "caption", rest);
        }
    }
    if !table.rows.is_empty() {
        let class = |column: usize| if column < table.names { "name" } else { "" };
        page.raw("<div class=\"wide\"><table>\n<thead><tr>");
        for (column, cell) in table.head.iter().enumerate() {
            page.element("th", class(column), cell);
        }
        page.raw("</tr></thead>\n<tbody>\n");
        for row in &table.rows {
            page.raw("<tr>");
            for (column, cell) in row.iter().enumerate() {
                if column < table.names && cell.chars().count() > LONG {
                    // A name that is cut shows as a whole where the mouse rests.
                    page.raw("<td class=\"name\" title=\"");
                    page.text(cell);
                    page.raw("\">");
                    page.text(cell);
                    page.raw("</td>");
                } else {
                    page.element("td", class(column), cell);
                }
            }
            page.raw("</tr>\n");
        }
        page.raw("</tbody></table></div>\n");
    }
    for sentence in &table.below {
        page.element("p", "", sentence);
    }
}
