//! An analysis as one HTML page, and as a section of another page. Both are well-formed XML, too.

use nodescope_page::chart::{ChartError, css, failed, font};
use nodescope_page::{Page, STYLE};
use plotters::prelude::*;

use crate::analysis::{Analysis, ProcessReport};
use crate::characteristics::Characteristics;
use crate::hybrid::Hybrid;
use crate::programs::ProgramReport;
use crate::text::{PROGRAM_HEAD, RANK_HEAD, RANK_TITLE, percent, schedule, time};

const WIDTH: u32 = 1030;
/// Most rows of a table or a chart.
const ROWS: usize = 40;
/// Most programs whose details are shown.
const PROGRAMS: usize = 12;
/// Most processes of a program whose details are shown.
const PROCESSES: usize = 16;
/// Names and colours of productive time, idle time and the parts of lost time.
const PARTS: [(&str, RGBColor); 9] = [
    ("productive", RGBColor(0x3b, 0x6f, 0xb6)),
    ("idle", RGBColor(0xd5, 0xda, 0xe1)),
    ("barrier", RGBColor(0xb0, 0x3a, 0x5b)),
    ("lock", RGBColor(0x8c, 0x56, 0x9e)),
    ("critical", RGBColor(0xd8, 0x6f, 0x45)),
    ("ordered", RGBColor(0x7a, 0x5c, 0x3e)),
    ("task", RGBColor(0x4f, 0xae, 0x9b)),
    ("insufficient parallelism", RGBColor(0xf2, 0xb1, 0x34)),
    ("desynchronisation", RGBColor(0xe0, 0x7a, 0x9b)),
];

/// Title of the section that [`Analysis::section`] returns without its title.
pub const TITLE: &str = "OpenMP";

/// A part of a page: its title, and its markup without the title.
type Part = (String, String);

impl Analysis {
    /// Formats the analysis as an HTML page.
    ///
    /// # Errors
    ///
    /// Where a chart cannot be drawn.
    pub fn html(&self) -> Result<String, ChartError> {
        let mut page = Page::begin("OpenMP efficiency", STYLE);
        page.element("h1", "", "OpenMP efficiency");
        page.element("p", "", &self.count());
        for (title, markup) in self.parts("h3")? {
            page.raw("<section>");
            page.element("h2", "", &title);
            page.raw("\n");
            page.raw(&markup);
            page.raw("</section>\n");
        }
        page.sort_script();
        Ok(page.finish())
    }

    /// Returns the markup of a section of another page without its title ([`TITLE`]). The section has all that the page of
    /// [`Analysis::html`] has.
    ///
    /// # Errors
    ///
    /// Where a chart cannot be drawn.
    pub fn section(&self) -> Result<String, ChartError> {
        let mut page = Page::default();
        page.element("p", "", &self.count());
        for (title, markup) in self.parts("h4")? {
            page.element("h3", "", &title);
            page.raw("\n");
            page.raw(&markup);
        }
        Ok(page.markup())
    }

    fn count(&self) -> String {
        match (self.programs.len(), self.processes.len()) {
            (2.., count) => format!("{} ({count} processes).", self.summary()),
            (_, 1) => "1 process".to_owned(),
            (_, count) => format!("{count} processes"),
        }
    }

    /// Returns the parts of the page; `heading` is the element of titles within a part.
    fn parts(&self, heading: &str) -> Result<Vec<Part>, ChartError> {
        let mut parts = Vec::new();
        if self.programs.len() > 1 {
            let mut page = Page::default();
            table(&mut page, &PROGRAM_HEAD, self.program_rows().take(ROWS));
            parts.push(("Programs".to_owned(), page.markup()));
        }
        let mut notes = Vec::new();
        for (number, program) in self.programs.iter().enumerate().take(PROGRAMS) {
            let own = self.program_parts(program, heading)?;
            parts.extend(
                own.into_iter()
                    .map(|(title, markup)| match self.programs.len() {
                        1 => (title, markup),
                        _ => (format!("{}: {title}", self.title(number)), markup),
                    }),
            );
            let details = program.processes.len().saturating_sub(PROCESSES);
            if details > 0 {
                notes.push(format!(
                    "Details of {details} more processes are not shown; `nodescope openmp --json` has them all."
                ));
            }
            notes.extend(program.notes.iter().map(|note| match self.programs.len() {
                1 => note.clone(),
                _ => format!("{}: {note}", self.program_name(number)),
            }));
        }
        let more = self.programs.len().saturating_sub(PROGRAMS);
        if more > 0 {
            notes.push(format!(
                "{more} more programs are not shown; `nodescope openmp --json` has them all."
            ));
        }
        notes.extend(self.notes.iter().cloned());
        if !notes.is_empty() {
            let mut page = Page::default();
            notes.iter().for_each(|note| page.element("p", "", note));
            parts.push(("Notes on OpenMP".to_owned(), page.markup()));
        }
        Ok(parts)
    }

    /// Returns the parts of a program.
    fn program_parts(
        &self,
        program: &ProgramReport,
        heading: &str,
    ) -> Result<Vec<Part>, ChartError> {
        let hybrid = &program.hybrid;
        let mut parts = vec![("Efficiencies (POP, TALP)".to_owned(), hybrid.efficiencies())];
        if !hybrid.ranks.is_empty() {
            let mut page = Page::default();
            table(&mut page, &RANK_HEAD, hybrid.rank_rows().take(ROWS));
            parts.push((RANK_TITLE.to_owned(), page.markup()));
        }
        if program.processes.len() > 1 {
            let title = "Processes, largest loss first".to_owned();
            let rows: Vec<(String, &Characteristics)> = (self.ranked(program).take(ROWS))
                .map(|at| {
                    let process = &self.processes[at];
                    (process.name(), &process.intervals[0].characteristics)
                })
                .collect();
            let mut page = Page::default();
            bars(&mut page, &rows)?;
            parts.push((title, page.markup()));
        }
        for at in self.ranked(program).take(PROCESSES) {
            let process = &self.processes[at];
            parts.push((process.name(), process.details(heading)?));
        }
        Ok(parts)
    }
}

impl Hybrid {
    fn efficiencies(&self) -> String {
        let mut page = Page::default();
        let rows = self.rows();
        let rows = rows
            .iter()
            .map(|(name, ratio)| vec![(*name).to_owned(), percent(*ratio)]);
        table(&mut page, &["", "efficiency"], rows);
        page.markup()
    }
}

impl ProcessReport {
    /// Returns the markup of the process's details without its name; `heading` is the element of the titles.
    fn details(&self, heading: &str) -> Result<String, ChartError> {
        let mut part = Page::default();
        let page = &mut part;
        let about = format!(
            "{}, {} threads under {}",
            self.program, self.threads, self.runtime
        );
        page.element("p", "", &about);
        self.notes
            .iter()
            .for_each(|note| page.element("p", "", note));
        page.element(
            heading,
            "",
            "Where the time of the processors goes, by interval",
        );
        let rows: Vec<(String, &Characteristics)> = (self.intervals.iter().take(ROWS))
            .map(|interval| (interval.name.clone(), &interval.characteristics))
            .collect();
        bars(page, &rows)?;
        let rows = self.intervals.iter().take(ROWS).map(|interval| {
            let of = &interval.characteristics;
            let times = [of.execution, of.total, of.productive, of.idle, of.lost_sum];
            let mut row = vec![interval.name.clone(), interval.count.to_string()];
            row.extend(times.map(time));
            row.push(percent(of.efficiency));
            row
        });
        let head = [
            "interval",
            "count",
            "execution",
            "total",
            "productive",
            "idle",
            "lost",
            "efficiency",
        ];
        table(page, &head, rows);
        page.element(heading, "", "Parallel regions");
        let rows = self.regions.iter().take(ROWS).map(|region| {
            let of = &region.characteristics;
            let mut row = vec![region.location.text(), region.count.to_string()];
            row.extend([of.execution, of.idle, of.lost_sum].map(time));
            row.push(percent(of.efficiency));
            row
        });
        table(
            page,
            &["region", "count", "execution", "idle", "lost", "efficiency"],
            rows,
        );
        page.element(heading, "", "Points of synchronisation, largest cost first");
        let costly = self.points.iter().filter(|point| point.cost > 0).take(ROWS);
        let rows = costly.map(|point| {
            vec![
                format!("{} {}", point.kind.name(), point.location.text()),
                point.threads.len().to_string(),
                point.count.to_string(),
                time(point.mean),
                time(point.longest),
                time(point.cost),
                percent(point.of_lost),
            ]
        });
        table(
            page,
            &[
                "construct",
                "threads",
                "count",
                "mean",
                "longest",
                "cost",
                "of lost",
            ],
            rows,
        );
        page.element(heading, "", "Loops");
        let rows = self.loops.iter().take(ROWS).map(|report| {
            vec![
                report.location.text(),
                schedule(report),
                report.executions.to_string(),
                time(report.work.mean),
                time(report.work.most),
                percent(report.imbalance),
                time(report.synchronised),
            ]
        });
        table(
            page,
            &[
                "loop",
                "schedule",
                "count",
                "work, mean",
                "most",
                "imbalance",
                "waiting",
            ],
            rows,
        );
        Ok(part.markup())
    }
}

fn table(page: &mut Page, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    // In the page of a report, these classes align names on the left and let wide tables scroll.
    let class = |column: usize| if column == 0 { "name" } else { "" };
    page.raw("<div class=\"wide\"><table class=\"sortable\">\n<thead><tr>");
    for (column, name) in head.iter().enumerate() {
        page.element("th", class(column), name);
    }
    page.raw("</tr></thead>\n<tbody>\n");
    for row in rows {
        page.raw("<tr>");
        for (column, cell) in row.iter().enumerate() {
            page.element("td", class(column), cell);
        }
        page.raw("</tr>\n");
    }
    page.raw("</tbody></table></div>\n");
}

/// Writes a bar for each row. The bar shows the parts of the row's total time, and all bars have the same width.
fn bars(page: &mut Page, rows: &[(String, &Characteristics)]) -> Result<(), ChartError> {
    let mut svg = String::new();
    {
        let height = 40 + 22 * rows.len() as u32;
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let count = rows.len().max(1) as f64;
        let mut chart = ChartBuilder::on(&area)
            .margin(4)
            .margin_right(24)
            .x_label_area_size(28)
            .y_label_area_size(220)
            .build_cartesian_2d(0.0..100.0, 0.0..count)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .disable_y_axis()
            .x_label_formatter(&|value| format!("{value:.0} %"))
            .label_style(font(13))
            .draw()
            .map_err(failed)?;
        let plane = chart.plotting_area().clone();
        for (number, (name, of)) in rows.iter().enumerate() {
            let bottom = count - 1.0 - number as f64;
            let mut parts = vec![of.productive, of.idle];
            parts.extend(of.lost.parts().map(|part| part.1));
            let mut left = 0.0;
            for (part, (_, colour)) in parts.into_iter().zip(PARTS) {
                let right = left + part as f64 * 100.0 / of.total.max(1) as f64;
                if right > left {
                    let corners = [(left, bottom + 0.1), (right, bottom + 0.9)];
                    plane
                        .draw(&Rectangle::new(corners, colour.filled()))
                        .map_err(failed)?;
                }
                left = right;
            }
            let (_, y) = plane.map_coordinate(&(0.0, bottom + 0.5));
            let short: String = name.chars().take(32).collect();
            area.draw(&Text::new(short, (6, y - 7), font(13)))
                .map_err(failed)?;
        }
        area.present().map_err(failed)?;
    }
    let colours: Vec<String> = PARTS.iter().map(|part| css(part.1)).collect();
    page.legend(
        PARTS
            .iter()
            .zip(&colours)
            .map(|(part, colour)| (part.0, colour.as_str())),
    );
    page.raw(&svg);
    page.raw("\n");
    Ok(())
}
