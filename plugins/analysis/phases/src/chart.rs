//! Charts of phases as SVG.

use nodescope_page::chart::{self, ChartError, failed, font};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::analysis::{Analysis, Phase, Spread};
use crate::step::Matrix;
use crate::text::time;

const WIDTH: u32 = 1030;
const HEIGHT: u32 = 210;
/// Height of a portrait with its title, pixels.
const PORTRAIT: u32 = 166;
/// Number of portraits in a row.
const ROW: usize = 6;
/// Most portraits that are drawn.
pub(crate) const PORTRAITS: usize = 18;
/// Most rows of a portrait; of more ranks, each row represents several.
const MOST_ROWS: u32 = 32;
const FRAME: RGBColor = RGBColor(0x8a, 0x94, 0xa3);
/// The colour of phases without communication.
const SILENT: RGBColor = RGBColor(0xd5, 0xda, 0xe1);

/// Returns the colour of a class.
pub(crate) fn colour(class: u32) -> RGBColor {
    let (red, green, blue) = Palette99::pick(class as usize).rgb();
    RGBColor(red, green, blue)
}

/// Returns the colour of a class as a style sheet writes it.
pub(crate) fn css(class: u32) -> String {
    chart::css(colour(class))
}

/// Draws a bar for each phase, as wide as the phase is long: the mean over all ranks, with a line from the least to the greatest.
pub(crate) fn bars(
    analysis: &Analysis,
    title: &str,
    value: impl Fn(&Phase) -> Spread,
    label: impl Fn(f64) -> String,
) -> Result<String, ChartError> {
    let most = analysis.phases.iter().map(|phase| value(phase).max).max();
    let top = most.unwrap_or(0).max(1) as f64 * 1.05;
    let since = |at: u64| at.saturating_sub(analysis.from) as f64;
    let end = since(analysis.to).max(1.0);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(4)
            .margin_right(24)
            .caption(title, font(14))
            .x_label_area_size(28)
            .y_label_area_size(96)
            .build_cartesian_2d(0.0..end, 0.0..top)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .y_labels(4)
            .x_label_formatter(&|x| time(*x as u64))
            .y_label_formatter(&|y| label(*y))
            .label_style(font(12))
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(failed)?;
        for phase in &analysis.phases {
            let spread = value(phase);
            let (left, right) = (since(phase.from), since(phase.to));
            // A phase without communication is a strip at the bottom.
            let (height, fill) = match phase.matrix.is_empty() {
                true => (top * 0.02, SILENT),
                false => (spread.mean, colour(phase.class)),
            };
            let bar = Rectangle::new([(left, 0.0), (right, height)], fill.filled());
            chart.draw_series([bar]).map_err(failed)?;
            if spread.max > spread.min {
                let middle = (left + right) / 2.0;
                let (least, most) = (spread.min as f64, spread.max as f64);
                let line =
                    ErrorBar::new_vertical(middle, least, spread.mean, most, FRAME.filled(), 6);
                chart.draw_series([line]).map_err(failed)?;
            }
        }
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Draws the matrices of the first phases that communicate, at most `PORTRAITS`; returns an empty text if none communicates. Senders go
/// downwards, receivers to the right, in the colour of the class, the darker the more bytes. Each is scaled to its own greatest cell.
pub(crate) fn portraits(analysis: &Analysis) -> Result<String, ChartError> {
    let phases: Vec<(usize, &Phase)> = (analysis.phases.iter().enumerate())
        .filter(|(_, phase)| !phase.matrix.is_empty())
        .take(PORTRAITS)
        .collect();
    if phases.is_empty() {
        return Ok(String::new());
    }
    let rows = phases.len().div_ceil(ROW);
    let mut svg = String::new();
    {
        let size = (WIDTH, PORTRAIT * rows as u32);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let areas = area.split_evenly((rows, ROW));
        for ((number, phase), portrait_area) in phases.into_iter().zip(&areas) {
            let title = format!("phase {number}, class {}", phase.class);
            portrait_area
                .draw(&Text::new(title, (6, 2), font(13)))
                .map_err(failed)?;
            portrait(
                portrait_area,
                &phase.matrix,
                analysis.ranks,
                colour(phase.class),
            )?;
        }
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

fn portrait(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    matrix: &Matrix,
    ranks: u32,
    colour: RGBColor,
) -> Result<(), ChartError> {
    let block = ranks.div_ceil(MOST_ROWS).max(1);
    let side = ranks.div_ceil(block).max(1);
    let mut cells = vec![0u64; (side * side) as usize];
    for (from, to, traffic) in matrix.cells() {
        let cell = &mut cells[(from / block * side + to / block) as usize];
        // A message of no bytes is drawn, too.
        *cell = cell.saturating_add(traffic.bytes.max(1));
    }
    let most = cells.iter().copied().max().unwrap_or(0).max(1) as f64;
    let (left, top, length) = (6, 18, 140);
    let edge = |at: u32| (at * length / side) as i32;
    let frame = [
        (left - 1, top - 1),
        (left + length as i32, top + length as i32),
    ];
    area.draw(&Rectangle::new(frame, FRAME)).map_err(failed)?;
    for (at, &bytes) in (0..).zip(&cells) {
        if bytes == 0 {
            continue;
        }
        let (row, column) = (at / side, at % side);
        let corners = [
            (left + edge(column), top + edge(row)),
            (left + edge(column + 1), top + edge(row + 1)),
        ];
        let strength = 0.15 + 0.85 * bytes as f64 / most;
        let fill = colour.mix(strength).filled();
        area.draw(&Rectangle::new(corners, fill)).map_err(failed)?;
    }
    Ok(())
}
