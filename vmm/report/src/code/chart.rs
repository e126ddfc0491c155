//! The roofline as a chart: a panel for each memory level, with logarithmic axes.

use nodescope_page::chart::{FAINT, font};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::roofline::{LEVELS, Roofline};
use crate::charts::failed;
use crate::input::ReportError;
use crate::units::si;

const WIDTH: u32 = 1080;
const PANEL: u32 = 320;
/// Half the side, in pixels, of the square around a point that no number may overlap.
const DOT: i32 = 5;
/// Half the width and half the height, in pixels, of the area of a point's number, which no other number may overlap.
const NUMBER: (i32, i32) = (10, 8);
const POINT: RGBColor = RGBColor(0xb0, 0x3a, 0x5b);
const ROOF: RGBColor = RGBColor(0x3b, 0x6f, 0xb6);

/// Draws the panels as SVG. Returns `None` without a function that has floating-point operations, or without a peak.
pub(super) fn draw(roofline: &Roofline) -> Result<Option<String>, ReportError> {
    if roofline.functions.is_empty() || roofline.peak_flops <= 0.0 {
        return Ok(None);
    }
    let mut svg = String::new();
    {
        let failed = failed("roofline");
        let area = SVGBackend::with_string(&mut svg, (WIDTH, 2 * PANEL)).into_drawing_area();
        for (panel, level) in area.split_evenly((2, 2)).iter().zip(LEVELS) {
            draw_level(&area, panel, roofline, level)?;
        }
        area.present().map_err(&failed)?;
    }
    Ok(Some(svg))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_level(
    area: &Area<'_>,
    panel: &Area<'_>,
    roofline: &Roofline,
    level: &'static str,
) -> Result<(), ReportError> {
    let failed = failed("roofline");
    let points: Vec<(usize, f64, f64)> = (roofline.functions.iter().enumerate())
        .filter_map(|(n, row)| {
            let point = row.levels.iter().find(|point| point.level == level)?;
            let intensity = point.flops_per_byte.filter(|&value| value > 0.0)?;
            Some((n + 1, intensity.log10(), row.flops_per_second.log10()))
        })
        .collect();
    let peak = roofline.peak_flops.log10();
    let bandwidth = roofline.ceiling(level).map(f64::log10);
    let knee = bandwidth.map(|bandwidth| peak - bandwidth);
    let xs = || points.iter().map(|&(_, x, _)| x).chain(knee);
    let (left, right) = (
        xs().fold(0.0, f64::min) - 0.5,
        xs().fold(0.0, f64::max) + 0.5,
    );
    let bottom = points.iter().map(|&(.., y)| y).fold(peak - 2.0, f64::min) - 0.4;
    let top = peak + 0.5;
    let title = match roofline.ceilings.iter().find(|c| c.level == level) {
        Some(ceiling) => match (ceiling.stated_share, ceiling.bytes_per_second) {
            (Some(share), _) => format!("{level}: {}B/s a core, as stated", si(share)),
            (None, Some(bandwidth)) => format!(
                "{level}: {}B/s, a line each {} cycles",
                si(bandwidth),
                ceiling.latency
            ),
            (None, None) => format!("{level}: its hits cost no cycles"),
        },
        None => format!("{level}: not modelled"),
    };
    let mut chart = ChartBuilder::on(panel)
        .margin(8)
        .margin_right(16)
        .caption(title, font(17))
        .x_label_area_size(46)
        .y_label_area_size(78)
        .build_cartesian_2d(left..right, bottom..top)
        .map_err(&failed)?;
    let decade = |value: &f64| {
        if (value - value.round()).abs() < 1e-6 {
            power(value.round() as i32)
        } else {
            String::new()
        }
    };
    let decades = |from: f64, to: f64| (to.floor() - from.ceil()) as usize + 1;
    chart
        .configure_mesh()
        .x_desc(format!("FLOP per byte from {level}"))
        .y_desc("FLOP/s of one core")
        .x_labels(decades(left, right).max(2))
        .y_labels(decades(bottom, top).max(2))
        .x_label_formatter(&decade)
        .y_label_formatter(&decade)
        .label_style(font(15))
        .axis_desc_style(font(15))
        .axis_style(FAINT)
        .bold_line_style(FAINT)
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(&failed)?;
    let plane = chart.plotting_area().clone();
    let roof = |y: f64, style: ShapeStyle| {
        let from = bandwidth.map_or(left, |bandwidth| y - bandwidth).max(left);
        let mut corners = vec![(from.min(right), y), (right, y)];
        if let Some(bandwidth) = bandwidth {
            let start = (bottom - bandwidth).max(left);
            if start < from {
                corners.insert(0, (start, start + bandwidth));
            }
        }
        PathElement::new(corners, style)
    };
    let scalar = roofline.scalar_flops.log10();
    if scalar > bottom && scalar < peak - 0.01 {
        plane
            .draw(&roof(scalar, ROOF.mix(0.45).stroke_width(1)))
            .map_err(&failed)?;
    }
    plane
        .draw(&roof(peak, ROOF.stroke_width(2)))
        .map_err(&failed)?;

    // Labels of the roofs are at the right end, above their lines; `taken` keeps the points' numbers away from these labels.
    let mut taken: Vec<[i32; 4]> = Vec::new();
    let mut name = |text: String, y: f64| -> Result<(), ReportError> {
        let (x, y) = plane.map_coordinate(&(right, y));
        let wide = 8 * text.chars().count() as i32;
        taken.push([x - wide, y - 20, x, y - 2]);
        let style = TextStyle::from(("sans-serif", 15).into_font())
            .color(&ROOF)
            .pos(Pos::new(HPos::Right, VPos::Bottom));
        area.draw(&Text::new(text, (x - 2, y - 4), style))
            .map_err(&failed)
    };
    name(format!("peak {}FLOP/s", spaced(roofline.peak_flops)), peak)?;
    if scalar > bottom && scalar < peak - 0.25 {
        name(
            format!("scalar {}FLOP/s", spaced(roofline.scalar_flops)),
            scalar,
        )?;
    }

    let placed: Vec<(usize, i32, i32)> = (points.iter())
        .map(|&(n, x, y)| {
            let (x, y) = plane.map_coordinate(&(x, y));
            (n, x, y)
        })
        .collect();
    for &(_, x, y) in &placed {
        area.draw(&Circle::new((x, y), DOT - 1, POINT.mix(0.8).filled()))
            .map_err(&failed)?;
        taken.push([x - DOT, y - DOT, x + DOT, y + DOT]);
    }
    for (n, x, y) in placed {
        let Some((x, y)) = free(x, y, &taken) else {
            continue;
        };
        taken.push([x - NUMBER.0, y - NUMBER.1, x + NUMBER.0, y + NUMBER.1]);
        area.draw(&Text::new(
            n.to_string(),
            (x, y),
            font(15).pos(Pos::new(HPos::Center, VPos::Center)),
        ))
        .map_err(&failed)?;
    }
    Ok(())
}

/// Returns a position near a point where a number overlaps nothing; `None` if there is none. All positions are in pixels.
fn free(x: i32, y: i32, taken: &[[i32; 4]]) -> Option<(i32, i32)> {
    const AROUND: [(i32, i32); 8] = [
        (1, 0),
        (-1, 0),
        (0, -1),
        (0, 1),
        (1, -1),
        (-1, -1),
        (1, 1),
        (-1, 1),
    ];
    [16, 24].into_iter().find_map(|far| {
        AROUND
            .into_iter()
            .map(|(dx, dy)| (x + dx * far, y + dy * far))
            .find(|&(x, y)| {
                let (w, h) = NUMBER;
                taken.iter().all(|&[left, top, right, bottom]| {
                    x + w < left || x - w > right || y + h < top || y - h > bottom
                })
            })
    })
}

/// Returns a power of ten as text: as a decimal fraction for a negative exponent, otherwise with an SI prefix.
fn power(exponent: i32) -> String {
    if exponent < 0 {
        format!("{:.*}", -exponent as usize, 10_f64.powi(exponent))
    } else {
        si(10_f64.powi(exponent))
            .replace(".000", "")
            .replace("10.00", "10")
            .replace("100.0", "100")
    }
}

/// Returns a value as text, to which a unit can be appended directly: with an SI prefix, or else with a space at the end.
fn spaced(value: f64) -> String {
    let text = si(value);
    if text.contains(' ') { text } else { text + " " }
}
