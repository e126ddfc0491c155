//! Source lines and machine code of the most expensive functions side by side, with cycles by cause.

use std::collections::BTreeMap;

use nodescope_page::{Entry, Page};

use super::tables::{cut, file_name, listing_lines, listing_title, shown_share, si_cycles};
use super::{CodeCosts, CodeReport, Listing};
use crate::charts::part_colour;
use crate::explain::meaning;
use crate::timed;

/// Maximum number of blocks of machine code in the page.
const LISTINGS: usize = 20;
/// Length in characters beyond which the page may cut a cell of machine code.
const LONG: usize = 20;
/// Maximum number of lines between two lines of code that are shown, too, where their text is known.
const FILLED: usize = 6;
/// Number of functions, from the first on, that are open when the page is loaded.
const OPEN: usize = 1;

/// Style rules of the functions.
pub(super) const STYLE: &str = "
.twin { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 4px 32px; align-items: start; }
@media (max-width: 1000px) { .twin { grid-template-columns: minmax(0, 1fr); } }
.twin .line { all: unset; cursor: pointer; font-family: monospace; font-size: 12px; } .twin .line:hover { text-decoration: underline; } .twin .line:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.twin.texts { grid-template-columns: minmax(0, 4fr) minmax(0, 3fr); }
@media (max-width: 1000px) { .twin.texts { grid-template-columns: minmax(0, 1fr); } }
.code .twin td.name.text { max-width: none; font-family: monospace; font-size: 12px; white-space: pre; tab-size: 4; } .twin .between { font-family: monospace; font-size: 12px; color: var(--soft); }
.twin .causes { width: 100%; min-width: 90px; } .texts .causes { width: 90px; } .parts { display: flex; height: 12px; } .parts i { flex: none; height: 100%; print-color-adjust: exact; }
.asm td { font-family: monospace; font-size: 12px; text-align: left; padding: 1px 14px 1px 4px; border-bottom: 0; } .code .asm td.name + td.name { max-width: 270px; } .code .asm td.name + td.name + td.name { max-width: 150px; }
@media (min-width: 1700px) { .code .asm td.name + td.name, .code .asm td.name + td.name + td.name { max-width: 460px; } }
.twin tr.lit td { background: color-mix(in srgb, var(--accent) 18%, transparent); }
.parts ~ .legend i, .twins > .legend i { filter: none; }
";

/// The blocks of one function that the page lists.
type Function<'a> = (&'a str, &'a str, Vec<&'a Listing>);

/// Adds the functions of the most expensive blocks to the page.
pub(super) fn write(page: &mut Page, code: &CodeReport) {
    let mut functions: Vec<Function<'_>> = Vec::new();
    for listing in code.blocks.iter().take(LISTINGS) {
        let (name, module) = (listing.function.as_str(), listing.module.as_str());
        match functions
            .iter_mut()
            .find(|of| (of.0, of.1) == (name, module))
        {
            Some((.., blocks)) => blocks.push(listing),
            None => functions.push((name, module, vec![listing])),
        }
    }
    if functions.is_empty() {
        return;
    }
    functions.sort_by_key(|function| std::cmp::Reverse(cycles(code, function)));
    page.raw("<div class=\"twins\">");
    page.element(
        "h3",
        "",
        "Source lines and machine code of the most expensive blocks",
    );
    page.element(
        "p",
        "caption",
        "Cycles of a line are those of all its instructions in the window. A click on a line shows its instructions.",
    );
    legend(page, code);
    for (number, function) in functions.iter().enumerate() {
        write_function(page, code, function, number < OPEN);
    }
    page.raw("</div>\n");
}

/// Returns the costs of a listed function; `None` if the function is not among those of the report.
fn costs<'a>(code: &'a CodeReport, (name, module, _): &Function<'_>) -> Option<&'a CodeCosts> {
    let mut all = code.functions.iter();
    let of = all.find(|row| (row.function.as_str(), row.module.as_str()) == (*name, *module));
    of.map(|row| &row.costs)
}

fn cycles(code: &CodeReport, function: &Function<'_>) -> i128 {
    costs(code, function).map_or(0, |costs| costs.cycles_65536)
}

fn write_function(page: &mut Page, code: &CodeReport, function: &Function<'_>, open: bool) {
    let (name, module, blocks) = function;
    page.raw(if open {
        "<details open=\"open\">"
    } else {
        "<details>"
    });
    let share = costs(code, function).map_or_else(|| "-".into(), shown_share);
    page.element(
        "summary",
        "",
        &format!("{share} of the cycles: {name} in {module}"),
    );
    // Numbers of the lines, in the order in which the instructions name them.
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    for source in blocks.iter().flat_map(|block| &block.instructions) {
        if let Some(source) = &source.source {
            let next = numbers.len();
            numbers.entry(source).or_insert(next);
        }
    }
    if numbers.is_empty() {
        let why = "No source line is known: there is no debugging information (-g) of this code.";
        page.element("p", "caption", why);
        page.raw("<div class=\"blocks\">");
    } else {
        let has_text = !code.sources.is_empty();
        let class = if has_text { "twin texts" } else { "twin" };
        page.raw(&format!("<div class=\"{class}\"><div class=\"wide\">"));
        lines(page, code, &numbers);
        page.raw("</div><div>\n");
    }
    for block in blocks {
        machine_code(page, block, &numbers);
    }
    page.raw(if numbers.is_empty() {
        "</div></details>\n"
    } else {
        "</div></div></details>\n"
    });
}

/// Writes the source lines of a function's listed instructions, with their costs.
fn lines(page: &mut Page, code: &CodeReport, numbers: &BTreeMap<&str, usize>) {
    let mut costs: BTreeMap<(&str, u32), &CodeCosts> = BTreeMap::new();
    for row in &code.lines {
        if let (Some(file), Some(line)) = (&row.file, row.line) {
            costs.insert((file, line), &row.costs);
        }
    }
    let mut rows: Vec<(&str, u32, usize)> = (numbers.iter())
        .filter_map(|(source, &number)| {
            let (file, line) = source.rsplit_once(':')?;
            Some((file, line.parse().ok()?, number))
        })
        .collect();
    rows.sort_unstable();
    let cost = |(file, line): (&str, u32)| costs.get(&(file, line)).copied();
    let all = rows.iter().filter_map(|row| cost((row.0, row.1)));
    let most = all.map(sum).max().unwrap_or(0);
    let rows = with_text(code, &rows);
    let has_text = rows.iter().any(|row| row.text.is_some());
    let texts = rows.iter().filter_map(|row| row.text);
    let texts = texts.filter(|text| !text.trim().is_empty());
    let indentation = texts
        .map(|text| text.len() - text.trim_start().len())
        .min()
        .unwrap_or(0);
    page.raw("<table><thead><tr>");
    for (head, class) in [
        ("line", "name"),
        ("share", ""),
        ("cycles", ""),
        ("by cause", "name"),
        ("source", "name"),
    ] {
        if head != "source" || has_text {
            page.explained("th", class, head, meaning("side", head).unwrap_or_default());
        }
    }
    page.raw("</tr></thead><tbody>\n");
    for row in &rows {
        let place = format!("{}:{}", file_name(row.file), row.line);
        match row.number {
            Some(number) => {
                page.raw(&format!(
                    "<tr data-line=\"{number}\"><td class=\"name\"><button type=\"button\" class=\"line\" title=\""
                ));
                page.text(&format!("{}:{}", row.file, row.line));
                page.raw("\">");
                page.text(&place);
                page.raw("</button></td>");
            }
            None => {
                page.raw("<tr>");
                page.element("td", "name between", &place);
            }
        }
        match cost((row.file, row.line)) {
            Some(costs) => {
                page.element("td", "", &shown_share(costs));
                page.element("td", "", &si_cycles(costs.cycles_65536));
                page.raw("<td class=\"causes\">");
                parts(page, costs, most);
                page.raw("</td>");
            }
            None => page.raw("<td></td><td></td><td class=\"causes\"></td>"),
        }
        if has_text {
            let text = row.text.unwrap_or_default();
            let text = text.get(indentation..).unwrap_or(text);
            page.element("td", "name text", &cut(text, 200));
        }
        page.raw("</tr>\n");
    }
    page.raw("</tbody></table>");
}

/// Row of the source lines.
struct SourceRow<'a> {
    file: &'a str,
    line: u32,
    /// Number by which the line's instructions name it; `None` for a line without listed instructions.
    number: Option<usize>,
    /// Text of the line, if it is known.
    text: Option<&'a str>,
}

/// Returns rows with their text. Where the text is known, short gaps between lines are filled.
fn with_text<'a>(code: &'a CodeReport, rows: &[(&'a str, u32, usize)]) -> Vec<SourceRow<'a>> {
    let texts: BTreeMap<&str, Vec<&str>> = (code.sources.iter())
        .map(|(file, text)| (file.as_str(), text.lines().collect()))
        .collect();
    let mut shown: Vec<SourceRow<'a>> = Vec::new();
    for &(file, line, number) in rows {
        let text = |line: u32| {
            let lines = texts.get(file)?;
            lines.get((line as usize).checked_sub(1)?).copied()
        };
        let before = shown.last().filter(|row| row.file == file);
        let gap = before.map_or(line..line, |row| row.line + 1..line);
        if gap.len() <= FILLED && texts.contains_key(file) {
            shown.extend(gap.map(|line| SourceRow {
                file,
                line,
                number: None,
                text: text(line),
            }));
        }
        shown.push(SourceRow {
            file,
            line,
            number: Some(number),
            text: text(line),
        });
    }
    shown
}

fn machine_code(page: &mut Page, block: &Listing, numbers: &BTreeMap<&str, usize>) {
    page.raw("<div class=\"block\">");
    page.element("p", "", &listing_title(block));
    for line in listing_lines(block) {
        page.element("p", "caption", &line);
    }
    parts(page, &block.costs, sum(&block.costs));
    page.raw("<div class=\"wide\"><table class=\"asm\"><tbody>\n");
    for row in super::tables::listing_rows(block)
        .into_iter()
        .zip(&block.instructions)
    {
        let (cells, instruction) = row;
        let source = instruction.source.as_deref();
        match source.and_then(|source| numbers.get(source)) {
            Some(number) => page.raw(&format!("<tr data-line=\"{number}\">")),
            None => page.raw("<tr>"),
        }
        for cell in cells {
            // The style sheet may cut a long cell, so a tooltip shows the whole.
            let whole = if cell.chars().count() > LONG {
                &cell
            } else {
                ""
            };
            page.explained("td", "name", &cell, whole);
        }
        page.raw("</tr>\n");
    }
    page.raw("</tbody></table></div></div>\n");
}

/// Returns the names and cycles of what costs are made of: causes on the core of the pipeline model, or else terms of the CPI.
fn shares(costs: &CodeCosts) -> impl Iterator<Item = (&str, i128)> {
    let values = match costs.causes.is_empty() {
        true => &costs.terms,
        false => &costs.causes,
    };
    let values = values
        .iter()
        .map(|value| (value.term.as_str(), value.cycles_65536));
    values.map(|(name, cycles)| (name, cycles.max(0)))
}

/// Returns the sum of what costs are made of. With the pipeline model, the sum is that of another core than the costs' cycles.
fn sum(costs: &CodeCosts) -> i128 {
    shares(costs).map(|(_, cycles)| cycles).sum()
}

/// Writes costs as a bar of their causes, whose whole width is `most` cycles in 1/65536.
fn parts(page: &mut Page, costs: &CodeCosts, most: i128) {
    page.raw("<div class=\"parts\">");
    for (index, (name, cycles)) in shares(costs)
        .enumerate()
        .filter(|(_, (_, cycles))| *cycles > 0)
    {
        let width = 100.0 * cycles as f64 / most.max(1) as f64;
        let (colour, head) = (part_colour(index), timed::head(name));
        let of = 100.0 * cycles as f64 / sum(costs).max(1) as f64;
        page.raw(&format!(
            "<i style=\"background: {colour}; width: {width:.2}%\" title=\"{head}: {} cycles, {of:.1} %\"></i>",
            si_cycles(cycles)
        ));
    }
    page.raw("</div>");
}

fn legend(page: &mut Page, code: &CodeReport) {
    let used: Vec<(String, &str)> = (shares(&code.total).enumerate())
        .filter(|(_, (_, cycles))| *cycles > 0)
        .map(|(index, (name, _))| (part_colour(index), timed::head(name)))
        .collect();
    page.explained_legend(used.iter().map(|(colour, name)| Entry {
        name,
        colour,
        meaning: meaning("code stack", name).unwrap_or_default(),
    }));
}
