//! Phases as an HTML page, and as a section of another page.

use nodescope_config::quantity::counted;
use nodescope_page::chart::ChartError;
use nodescope_page::{Page, STYLE};

use crate::analysis::Analysis;
use crate::chart::{PORTRAITS, bars, css, portraits};
use crate::mapping::Mapping;
use crate::text::{size, time};

/// Most rows of a table.
const ROWS: usize = 200;
/// Title of the section that [`Analysis::section`] returns without its title.
pub const TITLE: &str = "Communication phases";

impl Analysis {
    /// Returns the phases as one HTML page that loads nothing.
    ///
    /// # Errors
    ///
    /// Where a chart cannot be drawn.
    pub fn html(&self) -> Result<String, ChartError> {
        let title = format!("{TITLE} of {}", counted(self.ranks, "rank"));
        let mut page = Page::begin(&title, STYLE);
        page.element("h1", "", &title);
        page.raw("<section>");
        page.raw(&self.section()?);
        page.raw("</section>\n<section>");
        page.element("h2", "", "In numbers");
        page.element("pre", "", &self.text());
        page.raw("</section>\n");
        page.sort_script();
        Ok(page.finish())
    }

    /// Returns the markup of a section without its title: charts, portraits of the matrices, the table of phases, placements if there are
    /// any, and notes.
    ///
    /// # Errors
    ///
    /// Where a chart cannot be drawn.
    pub fn section(&self) -> Result<String, ChartError> {
        let mut page = Page::default();
        let [classes, agreement] = self.class_text();
        for line in [
            format!("step: {}", self.step_text()),
            format!("classes: {classes}"),
            format!("agreement of the classes with others (adjusted Rand index): {agreement}"),
        ] {
            page.element("p", "", &line);
        }
        let colours: Vec<(String, String)> = (self.classes.iter())
            .map(|class| match class.total.messages {
                0 => (
                    format!("class {}, silent", class.class),
                    "#d5dae1".to_owned(),
                ),
                _ => (format!("class {}", class.class), css(class.class)),
            })
            .collect();
        page.legend(
            colours
                .iter()
                .map(|(name, colour)| (name.as_str(), colour.as_str())),
        );
        page.raw("\n");
        page.raw(&bars(
            self,
            "bytes sent by a rank",
            |phase| phase.figures.sent,
            size,
        )?);
        let number = |value: f64| format!("{value:.1}");
        page.raw(&bars(
            self,
            "degree of a rank",
            |phase| phase.figures.degree,
            number,
        )?);
        page.element(
            "p",
            "caption",
            "A bar is the mean over all ranks, its line goes from the least to the greatest. A strip at the bottom is a phase without communication.",
        );
        let drawn = portraits(self)?;
        if !drawn.is_empty() {
            page.element(
                "h3",
                "",
                "Matrices: senders downwards, receivers to the right",
            );
            page.raw(&drawn);
            let talking = self
                .phases
                .iter()
                .filter(|phase| !phase.matrix.is_empty())
                .count();
            if talking > PORTRAITS {
                let text = format!(
                    "The first {PORTRAITS} of {talking} phases that communicate are drawn."
                );
                page.element("p", "caption", &text);
            }
        }
        self.phases(&mut page);
        if let Some(found) = &self.mapping {
            mapping(&mut page, found, self.from);
        }
        let of_mapping = self.mapping.iter().flat_map(|mapping| &mapping.notes);
        for note in self.notes.iter().chain(of_mapping) {
            page.element("p", "", note);
        }
        Ok(page.markup())
    }

    fn phases(&self, page: &mut Page) {
        let head = [
            "phase",
            "class",
            "from",
            "to",
            "messages",
            "bytes",
            "degree, least",
            "mean",
            "greatest",
            "sent by a rank, least",
            "mean",
            "greatest",
        ];
        let rows = self.phases.iter().enumerate().map(|(number, phase)| {
            let figures = &phase.figures;
            // The timeline of a report's page draws the phases as bands.
            let band = format!(
                " data-from=\"{}\" data-to=\"{}\" data-band=\"phase {number}, class {}\" data-colour=\"{}\"",
                phase.from,
                phase.to,
                phase.class,
                css(phase.class)
            );
            let cells = [
                number.to_string(),
                phase.class.to_string(),
                time(phase.from - self.from),
                time(phase.to - self.from),
                figures.total.messages.to_string(),
                figures.total.bytes.to_string(),
                figures.degree.min.to_string(),
                format!("{:.2}", figures.degree.mean),
                figures.degree.max.to_string(),
                figures.sent.min.to_string(),
                format!("{:.1}", figures.sent.mean),
                figures.sent.max.to_string(),
            ];
            (band, cells)
        });
        table(page, &head, rows);
    }
}

/// Adds the placements on a cluster.
fn mapping(page: &mut Page, mapping: &Mapping, begin: u64) {
    let title = format!("Placements on {}", mapping.cluster);
    page.element("h3", "", &title);
    table(page, &Mapping::HEAD, plain(mapping.rows()));
    page.element("h3", "", "Placements by phase");
    table(page, &Mapping::PHASE_HEAD, plain(mapping.phase_rows()));
    for line in mapping
        .schedule
        .iter()
        .flat_map(|schedule| schedule.lines(begin))
    {
        page.element("p", "", line.trim());
    }
}

/// Returns rows without attributes.
fn plain<const N: usize>(
    rows: Vec<[String; N]>,
) -> impl ExactSizeIterator<Item = (String, [String; N])> {
    rows.into_iter().map(|cells| (String::new(), cells))
}

/// Adds a table of at most `ROWS` rows, with a note on the rest. A row is its element's attributes and its cells.
fn table<const N: usize>(
    page: &mut Page,
    head: &[&str; N],
    rows: impl ExactSizeIterator<Item = (String, [String; N])>,
) {
    let count = rows.len();
    page.raw("<div class=\"wide\"><table class=\"sortable\">\n<thead><tr>");
    head.iter().for_each(|cell| page.element("th", "", cell));
    page.raw("</tr></thead>\n<tbody>\n");
    for (attributes, row) in rows.take(ROWS) {
        page.raw(&format!("<tr{attributes}>"));
        row.iter().for_each(|cell| page.element("td", "", cell));
        page.raw("</tr>\n");
    }
    page.raw("</tbody></table></div>\n");
    if count > ROWS {
        let text = format!("{} more rows are in the JSON.", count - ROWS);
        page.element("p", "", &text);
    }
}
