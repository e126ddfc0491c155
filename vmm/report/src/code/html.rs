//! A window's code as a section of the report's page.

use nodescope_page::Page;

use super::tables::{Shape, listing_lines, listing_rows, listing_title, tables};
use super::{CodeReport, Listing};

/// Maximum number of rows of a table in the page.
const ROWS: usize = 100;
/// Maximum number of listings of machine code in the page.
const LISTINGS: usize = 20;
/// Number of listings of machine code, from the first on, that are open when the page is loaded.
const OPEN: usize = 2;

/// Style rules that the section needs in addition to the report's own.
pub(crate) const STYLE: &str = "
.code td.name { max-width: 300px; overflow: hidden; text-overflow: ellipsis; white-space: pre; }
.code td.name + td.name { max-width: 140px; }
.code p { font-size: 13px; }
.code details { border-top: 1px solid var(--line); padding: 6px 0; } .code summary { font-size: 14px; }
.asm td { font-family: monospace; font-size: 12px; text-align: left; padding: 1px 18px 1px 0; border-bottom: 0; }
.code .asm td.name { max-width: 560px; }
";

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
    if !code.blocks.is_empty() {
        page.element("h3", "", "Machine code of the most expensive blocks");
    }
    for (n, listing) in code.blocks.iter().take(LISTINGS).enumerate() {
        write_listing(page, listing, n < OPEN);
    }
    page.raw("</div>\n");
}

fn write_listing(page: &mut Page, listing: &Listing, open: bool) {
    page.raw(if open {
        "<details open=\"open\">"
    } else {
        "<details>"
    });
    page.element("summary", "", &listing_title(listing));
    for line in listing_lines(listing) {
        page.element("p", "caption", &line);
    }
    page.raw("<div class=\"wide\"><table class=\"asm\"><tbody>\n");
    for row in listing_rows(listing) {
        page.raw("<tr>");
        for cell in row {
            page.element("td", "name", &cell);
        }
        page.raw("</tr>\n");
    }
    page.raw("</tbody></table></div></details>\n");
}
