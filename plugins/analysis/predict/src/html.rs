//! A prediction as one HTML page, written so that it is well-formed XML, too.

use nodescope_config::quantity::counted;
use nodescope_page::chart::{ChartError, css, failed, font};
use nodescope_page::{Entry, Page, STYLE};
use plotters::prelude::*;

use crate::chart::PARTS;
use crate::predict::Prediction;
use crate::result::RankTimes;
use crate::text::time;
use crate::timeline::Phases;

const NAMES: [&str; 5] = ["computation", "other", "communication", "wait", "idle"];
const MEANINGS: [&str; 5] = [
    "Time in the rank's own code, between MPI calls.",
    "Time in calls whose inside the model does not know, such as files and set-up; taken as traced.",
    "Time in which the rank itself sends or receives.",
    "Time in which the rank cannot go on, because a message or another rank has not come.",
    "Time after the rank's last call, until the last rank ends.",
];
const WIDTH: u32 = 1030;
/// Most bars of ranks that are drawn; of more ranks, each bar is the mean of some.
const BARS: usize = 64;

/// Piece of a bar: beginning, end, and number of the part of the time.
type Piece = (f64, f64, usize);
/// Name of a row, and the pieces of its bar.
type Lane = (String, Vec<Piece>);

impl Prediction {
    /// Returns the prediction as an HTML page with its text. For a program that ends, the page also has a bar for each rank and, if
    /// requested, the ranks' states over time; many ranks are grouped.
    ///
    /// # Errors
    ///
    /// Where a chart cannot be drawn.
    pub fn html(&self) -> Result<String, ChartError> {
        let title = format!("{} on {}", counted(self.ranks, "rank"), self.cluster.name);
        let mut page = Page::begin(&title, STYLE);
        page.element("h1", "", &title);
        if !self.differences.is_empty() {
            page.element("p", "", "Different from the traced run:");
            page.raw("<ul>");
            for difference in &self.differences {
                page.element("li", "", difference);
            }
            page.raw("</ul>\n");
        }
        let predicted = format!("predicted time {}", time(self.outcome.time));
        page.element("p", "", &predicted);
        page.raw("\n");
        if self.outcome.complete() && self.outcome.time > 0 {
            section(&mut page, "Where the time of each rank goes", &self.bars()?);
            if let Some(phases) = &self.phases {
                let drawn = phases.svg(self.outcome.time, self.ranks)?;
                section(&mut page, "What each rank does when", &drawn);
            }
        }
        page.raw("<section>");
        page.element("h2", "", "In numbers");
        page.raw("\n");
        page.element("pre", "", &self.text());
        page.raw("</section>\n");
        Ok(page.finish())
    }

    fn bars(&self) -> Result<String, ChartError> {
        let ranks = &self.outcome.ranks;
        let block = ranks.len().div_ceil(BARS).max(1);
        let parts = |r: &RankTimes| [r.computation, r.opaque, r.communication, r.wait, r.idle];
        let whole = self.outcome.time as f64;
        let rows: Vec<Lane> = (ranks.chunks(block).enumerate())
            .map(|(row, ranks)| {
                let mut left = 0.0;
                let bars = (0..NAMES.len()).map(|part| {
                    let sum: u128 = ranks.iter().map(|r| u128::from(parts(r)[part])).sum();
                    let from = left;
                    left += sum as f64 / ranks.len() as f64;
                    (from, left, part)
                });
                (name(row * block, ranks.len()), bars.collect())
            })
            .collect();
        lanes(&rows, whole)
    }
}

impl Phases {
    /// Returns an SVG image with a lane for each row: in each column the parts of the column's time, one after the other.
    fn svg(&self, end: u64, ranks: u32) -> Result<String, ChartError> {
        let rows: Vec<Lane> = (self.rows.iter().enumerate())
            .map(|(number, row)| {
                let first = number as u32 * self.ranks_per_row;
                let count = self.ranks_per_row.min(ranks - first);
                let mut pieces: Vec<Piece> = Vec::new();
                for at in 0..row.computation.len() {
                    let start = at as u64 * self.column;
                    let width = self.column.min(end.saturating_sub(start));
                    let all = [&row.computation, &row.opaque, &row.communication, &row.wait];
                    let mut left = start as f64;
                    let mut add = |length: f64, part: usize| {
                        let from = left;
                        left += length;
                        match pieces.last_mut() {
                            _ if length <= 0.0 => {}
                            Some(last) if last.2 == part && last.1 >= from - 1.0 => last.1 = left,
                            _ => pieces.push((from, left, part)),
                        }
                    };
                    let mut busy = 0.0;
                    for (part, values) in all.iter().enumerate() {
                        let length = values[at] as f64 / f64::from(count);
                        busy += length;
                        add(length, part);
                    }
                    add(width as f64 - busy, 4);
                }
                (name(first as usize, count as usize), pieces)
            })
            .collect();
        lanes(&rows, end as f64)
    }
}

fn name(first: usize, count: usize) -> String {
    match count {
        1 => format!("rank {first}"),
        count => format!("{first} to {}", first + count - 1),
    }
}

/// Draws rows of coloured pieces over an axis from 0 to `end` as SVG.
fn lanes(rows: &[Lane], end: f64) -> Result<String, ChartError> {
    let mut svg = String::new();
    {
        let height = 50 + 18 * rows.len() as u32;
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let count = rows.len() as f64;
        let mut chart = ChartBuilder::on(&area)
            .margin(4)
            .margin_right(24)
            .x_label_area_size(34)
            .y_label_area_size(96)
            .build_cartesian_2d(0.0..end, 0.0..count)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .disable_y_axis()
            .x_label_formatter(&|value| time(*value as u64))
            .label_style(font(13))
            .draw()
            .map_err(failed)?;
        let plane = chart.plotting_area().clone();
        for (number, (name, pieces)) in rows.iter().enumerate() {
            let bottom = count - 1.0 - number as f64;
            for &(from, to, part) in pieces {
                let corners = [(from, bottom + 0.1), (to, bottom + 0.9)];
                plane
                    .draw(&Rectangle::new(corners, PARTS[part].filled()))
                    .map_err(failed)?;
            }
            let (_, y) = plane.map_coordinate(&(0.0, bottom + 0.5));
            area.draw(&Text::new(name.clone(), (6, y - 6), font(13)))
                .map_err(failed)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Adds a chart with its title and the legend, which is the same for all charts.
fn section(page: &mut Page, title: &str, svg: &str) {
    page.raw("<section>");
    page.element("h2", "", title);
    page.raw("\n");
    let colours = PARTS.map(css);
    let entries = NAMES.into_iter().zip(MEANINGS).zip(&colours);
    page.explained_legend(entries.map(|((name, meaning), colour)| Entry {
        name,
        colour,
        meaning,
    }));
    page.raw("\n");
    page.raw(svg);
    page.raw("</section>\n");
}
