//! Charts of a series, as SVG.

use nodescope_page::chart::{ChartError, draw_key, failed, font, style_axes, swatch};
use plotters::prelude::*;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 440;
/// Colours of parts, in turn.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0x3b, 0x6f, 0xb6),
    RGBColor(0x4f, 0xae, 0x9b),
    RGBColor(0xf2, 0xb1, 0x34),
    RGBColor(0xb0, 0x3a, 0x5b),
    RGBColor(0x7a, 0x5a, 0xb5),
    RGBColor(0x5c, 0x8a, 0x3a),
    RGBColor(0x2f, 0x8f, 0xc0),
    RGBColor(0xd9, 0x8f, 0x1f),
    RGBColor(0xd5, 0xda, 0xe1),
];

/// A quantity with its values at the positions of a chart.
pub struct Part {
    /// Name of the quantity.
    pub name: String,
    /// Value of the quantity at each position; `None` if the value is unknown.
    pub values: Vec<Option<f64>>,
}

/// Texts of a chart.
pub struct Labels<'a> {
    /// Title above the chart.
    pub title: &'a str,
    /// Name of the vertical axis.
    pub values: &'a str,
    /// Text below each position.
    pub positions: &'a [String],
    /// Name of the horizontal axis.
    pub across: &'a str,
}

/// Draws a stacked bar of the parts at each position, as SVG.
///
/// # Errors
///
/// Fails if the library cannot draw.
pub fn bars(labels: &Labels<'_>, parts: &[Part]) -> Result<String, ChartError> {
    let count = labels.positions.len();
    let sum = |position: usize| {
        parts
            .iter()
            .filter_map(|part| part.values[position])
            .sum::<f64>()
    };
    let highest = (0..count).map(sum).fold(0.0, f64::max);
    let top = if highest > 0.0 { 1.25 * highest } else { 1.0 };
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(labels.title, font(17))
            .margin(10)
            .x_label_area_size(46)
            .y_label_area_size(80)
            .build_cartesian_2d((0..count.saturating_sub(1)).into_segmented(), 0.0..top)
            .map_err(failed)?;
        style_axes(
            chart
                .configure_mesh()
                .disable_x_mesh()
                .x_desc(labels.across)
                .y_desc(labels.values)
                .x_label_formatter(&|position| match position {
                    SegmentValue::CenterOf(position) | SegmentValue::Exact(position) => {
                        labels.positions.get(*position).cloned().unwrap_or_default()
                    }
                    SegmentValue::Last => String::new(),
                })
                .y_label_formatter(&|value| match (0.5..1000.0).contains(&top) {
                    true => format!("{value:.2}"),
                    false => short(*value),
                }),
        )
        .draw()
        .map_err(failed)?;
        let end = |position| match position < count {
            true => SegmentValue::Exact(position),
            false => SegmentValue::Last,
        };
        let mut below = vec![0.0; count];
        for (number, part) in parts.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let mut drawn = Vec::new();
            for (position, base) in below.iter_mut().enumerate() {
                let above = *base + part.values[position].unwrap_or(0.0);
                let mut bar = Rectangle::new(
                    [
                        (SegmentValue::Exact(position), *base),
                        (end(position + 1), above),
                    ],
                    colour.filled(),
                );
                bar.set_margin(0, 0, 12, 12);
                drawn.push(bar);
                *base = above;
            }
            chart
                .draw_series(drawn)
                .map_err(failed)?
                .label(part.name.clone())
                .legend(move |at| swatch(at, colour));
        }
        draw_key(&mut chart, SeriesLabelPosition::UpperLeft)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Draws a line for each part, with a logarithmic vertical axis, as SVG. Values that are not above zero are left out.
///
/// # Errors
///
/// Fails if no value is above zero, or if the library cannot draw.
pub fn lines(labels: &Labels<'_>, parts: &[Part]) -> Result<String, ChartError> {
    let shown = |value: &f64| *value > 0.0 && value.is_finite();
    let values = || {
        parts
            .iter()
            .flat_map(|part| part.values.iter().flatten().copied())
            .filter(shown)
    };
    let (least, largest) = (
        values().fold(f64::INFINITY, f64::min),
        values().fold(0.0, f64::max),
    );
    if largest <= 0.0 {
        return Err(failed("no value is above zero"));
    }
    let last = labels.positions.len().saturating_sub(1) as f64;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(labels.title, font(17))
            .margin(10)
            .x_label_area_size(46)
            .y_label_area_size(80)
            .build_cartesian_2d(-0.3..last + 0.3, (0.6 * least..2.5 * largest).log_scale())
            .map_err(failed)?;
        style_axes(
            chart
                .configure_mesh()
                .disable_x_mesh()
                .x_labels(2 * labels.positions.len() + 1)
                .x_desc(labels.across)
                .y_desc(labels.values)
                .x_label_formatter(&|position| {
                    let whole = (position - position.round()).abs() < 1e-6;
                    let label = labels.positions.get(position.round() as usize);
                    label
                        .filter(|_| whole && *position > -0.5)
                        .cloned()
                        .unwrap_or_default()
                })
                .y_label_formatter(&|value| short(*value)),
        )
        .draw()
        .map_err(failed)?;
        for (number, part) in parts.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let points: Vec<(f64, f64)> = (part.values.iter().enumerate())
                .filter_map(|(position, value)| Some((position as f64, value.filter(shown)?)))
                .collect();
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(4))
                .map_err(failed)?
                .label(part.name.clone())
                .legend(move |at| swatch(at, colour));
        }
        draw_key(&mut chart, SeriesLabelPosition::UpperLeft)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Returns a number with at most three significant digits and an SI prefix; in exponential notation below a millionth.
pub fn short(value: f64) -> String {
    let prefixes = [
        (1e12, " T"),
        (1e9, " G"),
        (1e6, " M"),
        (1e3, " k"),
        (1.0, ""),
        (1e-3, " m"),
        (1e-6, " u"),
    ];
    let found = prefixes.into_iter().find(|(unit, _)| value.abs() >= *unit);
    let Some((unit, prefix)) = found else {
        return if value == 0.0 {
            "0".to_owned()
        } else {
            format!("{value:.1e}")
        };
    };
    let scaled = value / unit;
    let decimals = match scaled.abs() {
        s if s >= 100.0 => 0,
        s if s >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{scaled:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let told = [0.0, 1.0, 1234.0, 55e6, 0.0042, 999.9, 2.5e13].map(short);
        assert_eq!(told, ["0", "1", "1.23 k", "55 M", "4.2 m", "1000", "25 T"]);
    }
}
