//! Common parts of all charts: colours, fonts, axes, and the key that names a chart's series.

use plotters::chart::{ChartContext, MeshStyle, SeriesLabelPosition};
use plotters::coord::CoordTranslate;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;

/// Colour of text, lines and points.
pub const INK: RGBColor = RGBColor(0x33, 0x3d, 0x4b);
/// Colour of lines in the background.
pub const FAINT: RGBColor = RGBColor(0xe3, 0xe7, 0xed);

/// Reason why a chart could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the chart cannot be drawn: {0}")]
pub struct ChartError(pub String);

/// Converts an error into a [`ChartError`], for `map_err`.
pub fn failed(error: impl std::fmt::Display) -> ChartError {
    ChartError(error.to_string())
}

/// Returns the font of charts in a size in pixels.
pub fn font(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// Returns a colour in the notation of style sheets, such as `#333d4b`.
pub fn css(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Sets the fonts and colours of a chart's axes: labels of 13 pixels, descriptions of 14, faint lines at the labels.
pub fn style_axes<'a, 'b, 'm, X, Y, DB>(
    mesh: &'m mut MeshStyle<'a, 'b, X, Y, DB>,
) -> &'m mut MeshStyle<'a, 'b, X, Y, DB>
where
    X: Ranged + ValueFormatter<X::ValueType>,
    Y: Ranged + ValueFormatter<Y::ValueType>,
    DB: DrawingBackend,
{
    mesh.label_style(font(13))
        .axis_desc_style(font(14))
        .axis_style(INK)
        .bold_line_style(FAINT)
        .light_line_style(TRANSPARENT)
}

/// Draws the key of a chart's series into a corner of the chart. The caller has given each series its sign in the key, such as [`swatch`].
///
/// # Errors
///
/// The drawing library fails.
pub fn draw_key<'a, DB, C>(
    chart: &mut ChartContext<'a, DB, C>,
    corner: SeriesLabelPosition,
) -> Result<(), ChartError>
where
    DB: DrawingBackend + 'a,
    C: CoordTranslate,
{
    chart
        .configure_series_labels()
        .position(corner)
        .background_style(WHITE.mix(0.8))
        .border_style(FAINT)
        .label_font(font(13))
        .draw()
        .map_err(failed)
}

/// Returns the coloured square of a series in the key: its left edge is at `x`, and its middle at height `y`, in pixels.
pub fn swatch((x, y): (i32, i32), colour: RGBColor) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_keys_are_drawn() {
        assert_eq!(css(INK), "#333d4b");
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (300, 200)).into_drawing_area();
            let mut chart = ChartBuilder::on(&area)
                .x_label_area_size(20)
                .build_cartesian_2d(0.0..1.0, 0.0..1.0)
                .unwrap();
            style_axes(&mut chart.configure_mesh()).draw().unwrap();
            chart
                .draw_series([Circle::new((0.5, 0.5), 3, INK.filled())])
                .unwrap()
                .label("a part")
                .legend(|at| swatch(at, INK));
            draw_key(&mut chart, SeriesLabelPosition::UpperLeft).unwrap();
            area.present().unwrap();
        }
        assert!(
            svg.contains("a part") && svg.to_lowercase().contains("#333d4b"),
            "{svg}"
        );
    }
}
