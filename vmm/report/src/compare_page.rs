//! The page of a comparison: both runs side by side, and the change of each figure.

use nodescope_page::Page;

use crate::Report;
use crate::compare::Comparison;
use crate::html::{Section, begin, charts_and_verdict, end, table, timeline};
use crate::table::Table;

/// Number of the first timeline of the second run: those of the first one have the numbers of its programs.
const SECOND: usize = 1000;

impl Comparison {
    /// Returns the comparison as one self-contained HTML page, which loads no other resource. `reports` are those that were compared.
    pub fn html(&self, reports: [&Report; 2]) -> String {
        let [a, b] = &self.sides;
        let mut page = begin(&format!("nodescope: {a} and {b}"), &reports);
        page.raw("<header>\n");
        page.element("h1", "", "Comparison of two runs");
        page.raw("<dl>");
        for (side, name) in [("A", a), ("B", b)] {
            page.raw("<div>");
            page.element("dt", "", side);
            page.element("dd", "", name);
            page.raw("</div>");
        }
        page.raw("</dl></header>\n");
        let overview = |page: &mut Page| {
            page.raw("<div class=\"sides\">");
            for (side, report) in ["A", "B"].into_iter().zip(reports) {
                page.raw("<div>");
                page.element("h2", "", side);
                charts_and_verdict(page, report, "h3");
                page.raw("</div>\n");
            }
            page.raw("</div>\n");
            for (number, (side, report)) in ["A", "B"].into_iter().zip(reports).enumerate() {
                timeline(page, report, 0, number * SECOND, side);
            }
        };
        end(
            page,
            overview,
            &self.sections(),
            "The exact figures are in the JSON of nodescope compare --json.",
            &reports,
        )
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        let mut notes = Page::default();
        let said = self.notes();
        for note in &said {
            notes.element("p", "", note);
        }
        if let Some(differences) = self.differences() {
            table(&mut notes, differences);
        }
        if !said.is_empty() || !self.description.is_empty() {
            sections.push(Section::new("studies", "The studies", notes).opened());
        }
        for (number, group) in self.groups.iter().enumerate() {
            let mut page = Page::default();
            let mut figures = Table::new("", 1, &["", "A", "B", "change"]);
            for figure in &group.figures {
                figures.row(figure.cells());
            }
            table(&mut page, figures);
            sections.push(Section::new(format!("group-{number}"), &group.name, page).opened());
        }
        sections
    }
}
