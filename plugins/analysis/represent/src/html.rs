//! Representatives as one HTML page, which is well-formed XML, too.

use nodescope_page::chart::{ChartError, INK, failed, font, style_axes};
use nodescope_page::{Page, STYLE};
use plotters::prelude::*;

use crate::analysis::{Analysis, GroupAnalysis};
use crate::ranks_text;
use crate::text::percent;

/// Title of the section of a report's page.
pub const TITLE: &str = "Representative ranks";
const WIDTH: u32 = 1030;
const HEIGHT: u32 = 360;
/// Largest number of ranks whose numbers are written below a tree.
const LABELS: usize = 64;
/// Largest number of ranks whose tree is drawn; in a larger tree, lines would overlap.
const DRAWN: usize = 2048;
/// Largest number of trees in a section of a report's page.
const TREES: usize = 8;
const CUT: RGBColor = RGBColor(0xb0, 0x3a, 0x5b);
/// Colours of the clusters, in turn.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x3b, 0x6f, 0xb6),
    RGBColor(0x4f, 0xae, 0x9b),
    RGBColor(0xd9, 0x8f, 0x1f),
    RGBColor(0x7a, 0x5a, 0xb5),
    RGBColor(0x5c, 0x8a, 0x3a),
    RGBColor(0x2f, 0x8f, 0xc0),
];

impl Analysis {
    /// Returns the analysis as an HTML page: a dendrogram of each group with the cut, the number of representatives by threshold, and the
    /// text.
    ///
    /// # Errors
    ///
    /// Fails if a chart cannot be drawn.
    pub fn html(&self) -> Result<String, ChartError> {
        let title = format!(
            "{} of {} ranks represent all",
            self.representatives.len(),
            self.ranks
        );
        let mut page = Page::begin(&title, STYLE);
        page.element("h1", "", &title);
        let cut = format!("cut at {}", percent(self.threshold));
        page.element("p", "", &cut);
        for number in 0..self.groups.len() {
            page.raw("\n<section>");
            self.tree(&mut page, "h2", number)?;
            page.raw("</section>\n");
        }
        page.raw("<section>");
        page.element("h2", "", "Representatives by threshold");
        page.raw(&self.steps()?);
        page.raw("</section>\n<section>");
        page.element("h2", "", "In numbers");
        page.element("pre", "", &self.text());
        page.raw("</section>\n");
        Ok(page.finish())
    }

    /// Returns the content of a section of a report's page: dendrograms of the first groups, and the text.
    ///
    /// # Errors
    ///
    /// Fails if a chart cannot be drawn.
    pub fn section(&self) -> Result<String, ChartError> {
        let mut page = Page::default();
        for number in 0..self.groups.len().min(TREES) {
            self.tree(&mut page, "h3", number)?;
        }
        if self.groups.len() > TREES {
            let text = format!(
                "Trees of the first {TREES} of {} groups.",
                self.groups.len()
            );
            page.element("p", "", &text);
        }
        page.element("pre", "", &self.text());
        Ok(page.markup())
    }

    /// Adds the tree of a group under a heading.
    fn tree(&self, page: &mut Page, heading: &str, number: usize) -> Result<(), ChartError> {
        let group = &self.groups[number];
        let title = format!("Group {}: ranks {}", number + 1, ranks_text(&group.ranks));
        page.element(heading, "", &title);
        let count = group.ranks.len();
        if count < 2 {
            page.element("p", "", "One rank, which represents itself.");
        } else if count > DRAWN {
            let text = format!("The tree of {count} ranks is not drawn; of up to {DRAWN} it is.");
            page.element("p", "", &text);
        } else {
            page.element("p", "", "Ranks that compute alike join low. Those that join below the dashed line share a representative, which bears a dot.");
            page.raw(&dendrogram(group, self.threshold)?);
        }
        Ok(())
    }

    /// Returns a chart, as SVG, of the number of representatives over the threshold, as a line of steps.
    fn steps(&self) -> Result<String, ChartError> {
        let merges = self.groups.iter().flat_map(|group| &group.merges);
        let mut heights: Vec<f64> = merges.map(|merge| merge.height).collect();
        heights.sort_by(f64::total_cmp);
        let right = 1.1
            * heights
                .last()
                .copied()
                .unwrap_or(0.0)
                .max(self.threshold)
                .max(1e-6);
        let mut count = self.ranks as f64;
        let mut line = vec![(0.0, count)];
        for height in heights {
            line.push((height, count));
            count -= 1.0;
            line.push((height, count));
        }
        line.push((right, count));
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (WIDTH, 260)).into_drawing_area();
            let mut chart = ChartBuilder::on(&area)
                .margin(8)
                .x_label_area_size(42)
                .y_label_area_size(56)
                .build_cartesian_2d(0.0..right, 0.0..1.05 * self.ranks as f64)
                .map_err(failed)?;
            style_axes(
                chart
                    .configure_mesh()
                    .x_desc("threshold")
                    .y_desc("representatives")
                    .x_label_formatter(&|value| percent(*value))
                    .y_label_formatter(&|value| format!("{value:.0}")),
            )
            .draw()
            .map_err(failed)?;
            chart
                .draw_series([PathElement::new(line, COLOURS[0].stroke_width(2))])
                .map_err(failed)?;
            let cut = [
                (self.threshold, 0.0),
                (self.threshold, 1.05 * self.ranks as f64),
            ];
            chart
                .draw_series(DashedLineSeries::new(cut, 6, 4, CUT.stroke_width(2)))
                .map_err(failed)?;
            area.present().map_err(failed)?;
        }
        Ok(svg)
    }
}

/// Returns the tree of a group's merges as SVG, cut at `threshold`. Each merge is drawn at its own height, which is what the cut compares.
fn dendrogram(group: &GroupAnalysis, threshold: f64) -> Result<String, ChartError> {
    let count = group.ranks.len();
    let highest = group
        .merges
        .iter()
        .map(|merge| merge.height)
        .fold(0.0, f64::max);
    let top = 1.08 * highest.max(threshold).max(1e-6);
    // For each node: its horizontal position, its height, and the number of its cluster for the colour.
    let mut nodes: Vec<(f64, f64, Option<usize>)> = vec![(0.0, 0.0, None); count];
    for (place, &rank) in group.order.iter().enumerate() {
        let at = group.ranks.binary_search(&rank).unwrap_or(0);
        let cluster = (group.clusters.iter()).position(|c| c.ranks.binary_search(&rank).is_ok());
        nodes[at] = (place as f64, 0.0, cluster);
    }
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(-0.7..count as f64 - 0.3, 0.0..top)
            .map_err(failed)?;
        style_axes(
            chart
                .configure_mesh()
                .disable_x_mesh()
                .x_labels(0)
                .y_desc("distance of centroids")
                .y_label_formatter(&|value| percent(*value)),
        )
        .draw()
        .map_err(failed)?;
        for merge in &group.merges {
            let [a, b] = merge.parts.map(|part| nodes[part]);
            let kept = merge.height <= threshold;
            let colour = match a.2 {
                Some(cluster) if kept => COLOURS[cluster % COLOURS.len()],
                _ => INK,
            };
            let h = merge.height;
            let path = vec![(a.0, a.1), (a.0, h), (b.0, h), (b.0, b.1)];
            chart
                .draw_series([PathElement::new(path, colour.stroke_width(2))])
                .map_err(failed)?;
            nodes.push(((a.0 + b.0) / 2.0, h, if kept { a.2 } else { None }));
        }
        let cut = [(-0.7, threshold), (count as f64 - 0.3, threshold)];
        chart
            .draw_series(DashedLineSeries::new(cut, 6, 4, CUT.stroke_width(2)))
            .map_err(failed)?;
        let plane = chart.plotting_area().clone();
        let every = count.div_ceil(LABELS);
        for (place, &rank) in group.order.iter().enumerate() {
            let cluster = (group.clusters.iter()).position(|c| c.representative == rank);
            if let Some(cluster) = cluster {
                let colour = COLOURS[cluster % COLOURS.len()];
                plane
                    .draw(&Circle::new((place as f64, 0.0), 5, colour.filled()))
                    .map_err(failed)?;
            }
            if place % every == 0 {
                let (x, y) = plane.map_coordinate(&(place as f64, 0.0));
                let text = rank.to_string();
                let left = x - 4 * text.len() as i32;
                area.draw(&Text::new(text, (left, y + 8), font(13)))
                    .map_err(failed)?;
            }
        }
        area.draw(&Text::new(
            "rank",
            (WIDTH as i32 / 2, HEIGHT as i32 - 20),
            font(14),
        ))
        .map_err(failed)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}
