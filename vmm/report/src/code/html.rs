//! A window's code as a section of the report's page.

use nodescope_page::Page;

use super::CodeReport;
use super::side_by_side;
use super::tables::{Shape, tables};

/// Maximum number of rows of a table in the page.
const ROWS: usize = 100;

const STYLE: &str = "
.code td.name { max-width: 240px; overflow: hidden; text-overflow: ellipsis; white-space: pre; }
.code td.name + td.name { max-width: 130px; }
@media (min-width: 1700px) { .code td.name { max-width: 480px; } .code td.name + td.name { max-width: 200px; } }
.code p { font-size: 13px; }
.code details { border-top: 1px solid var(--line); padding: 6px 0; } .code summary { font-size: 14px; overflow-wrap: anywhere; }
";

/// Returns the style rules of the section.
pub(crate) fn style() -> String {
    format!("{STYLE}{}", side_by_side::STYLE)
}

/// Adds the section of a window's code to the page; `table` adds a table.
pub(crate) fn write(
    page: &mut Page,
    code: &CodeReport,
    table: &mut dyn FnMut(&mut Page, crate::table::Table),
) {
    page.raw("<div class=\"code\">\n");
    for note in &code.notes {
        page.element("p", "", note);
    }
    page.raw("<div class=\"blocks\">\n<figure class=\"block\">");
    page.element("h3", "", "Flame graph of the window's cycles");
    page.element(
        "p",
        "caption",
        "Cycles of functions are exact; their call paths are sampled. Code without a sample stands on its owner.",
    );
    page.raw("<div class=\"wide\">");
    page.raw(&code.drawings.flame);
    page.raw("</div></figure>\n");
    let shape = Shape {
        rows: ROWS,
        width: 400,
        module: 60,
        narrow: false,
    };
    for shown in tables(code, &shape) {
        let is_roofline = shown.title.starts_with("Roofline");
        if let Some(svg) = code.drawings.roofline.as_ref().filter(|_| is_roofline) {
            page.raw("<figure class=\"block\">");
            page.element("h3", "", "Roofline by level");
            page.element(
                "p",
                "caption",
                "Numbers are those of the table below; where many points meet, some have none.",
            );
            page.raw("<div class=\"wide\">");
            page.raw(svg);
            page.raw("</div></figure>\n");
        }
        table(page, shown);
    }
    page.raw("</div>\n");
    side_by_side::write(page, code);
    page.raw("</div>\n");
}
