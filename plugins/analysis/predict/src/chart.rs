//! Charts of a series of predictions as SVG.

use nodescope_page::chart::{ChartError, INK, draw_key, failed, font, style_axes, swatch};
use plotters::coord::ranged1d::{KeyPointHint, Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::series::{PointResult, Series};
use crate::sweep::Scale;
use crate::text::time;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 480;
/// Colours of computation, other, communication, wait and idle.
pub(crate) const PARTS: [RGBColor; 5] = [
    RGBColor(0x3b, 0x6f, 0xb6),
    RGBColor(0x4f, 0xae, 0x9b),
    RGBColor(0xf2, 0xb1, 0x34),
    RGBColor(0xb0, 0x3a, 0x5b),
    RGBColor(0xd5, 0xda, 0xe1),
];

/// Horizontal axis that is labelled at the points themselves: positions of the points, and the range of the axis.
struct AxisPositions {
    positions: Vec<f64>,
    range: std::ops::Range<f64>,
}

impl Ranged for AxisPositions {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (f64::from(limit.1 - limit.0) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.positions.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for AxisPositions {
    fn format_ext(&self, value: &f64) -> String {
        value.to_string()
    }
}

impl Series {
    /// Returns an SVG image of the time and its parts, by value: stacked areas for numbers, bars for names or a single value, intervals as
    /// whiskers.
    ///
    /// # Errors
    ///
    /// A series without a time, or an image that cannot be drawn.
    pub fn svg(&self) -> Result<String, ChartError> {
        let points: Vec<_> = self.times().collect();
        if points.is_empty() {
            return Err(failed("no value has a time"));
        }
        let numbers: Option<Vec<f64>> = points.iter().map(|(value, _)| value.number).collect();
        let positions: Vec<f64> = match (self.scale, numbers) {
            (Scale::Linear, Some(numbers)) => numbers,
            (Scale::Logarithmic, Some(numbers)) => numbers.iter().map(|n| n.log10()).collect(),
            _ => (0..points.len()).map(|index| index as f64).collect(),
        };
        let bars = self.scale == Scale::Names || points.len() == 1;
        let (first, last) = (positions[0], positions[positions.len() - 1]);
        let room = match (bars, positions.len()) {
            (true, _) => 0.6,
            (false, _) => 0.02 * (last - first),
        };
        let top = |(_, result): &(_, &PointResult)| {
            result
                .interval
                .map_or(result.time, |(_, high)| high.max(result.time))
        };
        let highest = points.iter().map(top).max().unwrap_or(1).max(1) as f64 * 1.08;
        let label = |position: &f64| {
            let at = positions
                .iter()
                .position(|other| (other - position).abs() < 1e-12);
            at.map_or(String::new(), |at| points[at].0.text.clone())
        };
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
            area.fill(&WHITE).map_err(failed)?;
            let mut chart = ChartBuilder::on(&area)
                .caption(
                    format!("{}: time by {}", self.cluster, self.parameter),
                    font(17),
                )
                .margin(10)
                .margin_right(30)
                .x_label_area_size(46)
                .y_label_area_size(86)
                .build_cartesian_2d(
                    AxisPositions {
                        positions: sparse(&positions),
                        range: first - room..last + room,
                    },
                    0.0..highest,
                )
                .map_err(failed)?;
            style_axes(
                chart
                    .configure_mesh()
                    .x_desc(self.parameter.clone())
                    .x_label_formatter(&label)
                    .y_label_formatter(&|value| time(*value as u64)),
            )
            .draw()
            .map_err(failed)?;
            let mut below = vec![0u64; points.len()];
            for (part, colour) in PARTS.into_iter().enumerate() {
                let (name, _) = points[0].1.split.parts()[part];
                let above: Vec<u64> = (below.iter().zip(&points))
                    .map(|(below, (_, result))| below + result.split.parts()[part].1)
                    .collect();
                if above != below {
                    let drawn = if bars {
                        chart.draw_series((0..points.len()).map(|at| {
                            let x = positions[at];
                            Rectangle::new(
                                [(x - 0.3, below[at] as f64), (x + 0.3, above[at] as f64)],
                                colour.filled(),
                            )
                        }))
                    } else {
                        let up = positions.iter().zip(&above).map(|(&x, &y)| (x, y as f64));
                        let down = positions.iter().zip(&below).map(|(&x, &y)| (x, y as f64));
                        let outline: Vec<_> = up.chain(down.rev()).collect();
                        chart.draw_series([Polygon::new(outline, colour.filled())])
                    };
                    drawn
                        .map_err(failed)?
                        .label(name)
                        .legend(move |at| swatch(at, colour));
                }
                below = above;
            }
            for (&x, (_, result)) in positions.iter().zip(&points) {
                let y = result.time as f64;
                chart
                    .draw_series([Circle::new((x, y), 3, INK.filled())])
                    .map_err(failed)?;
                if let Some((low, high)) = result.interval {
                    let bar =
                        ErrorBar::new_vertical(x, low as f64, y, high as f64, INK.filled(), 8);
                    chart.draw_series([bar]).map_err(failed)?;
                }
            }
            // The key goes to the upper corner where the curve is lower.
            let falls = match points.as_slice() {
                [(_, first), .., (_, last)] => first.time > last.time,
                _ => false,
            };
            let corner = if falls {
                SeriesLabelPosition::UpperRight
            } else {
                SeriesLabelPosition::UpperLeft
            };
            draw_key(&mut chart, corner)?;
            area.present().map_err(failed)?;
        }
        Ok(svg)
    }
}

/// Returns the positions that get a label: at least a twelfth of the axis apart, so that labels do not overlap.
fn sparse(positions: &[f64]) -> Vec<f64> {
    let width = positions.last().unwrap_or(&0.0) - positions.first().unwrap_or(&0.0);
    let mut kept: Vec<f64> = Vec::new();
    for &position in positions {
        if kept
            .last()
            .is_none_or(|last| (position - last).abs() >= width / 12.0)
        {
            kept.push(position);
        }
    }
    kept
}
