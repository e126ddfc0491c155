//! Predictions for the values of two parameters.

use nodescope_config::quantity::counted;
use nodescope_page::chart::{ChartError, INK, failed, font};
use plotters::prelude::*;
use serde::Serialize;
use std::fmt::Write;

use crate::series::{Point, PointResult, Series};
use crate::sweep::{Scale, Sweep, Value};
use crate::text::time;

/// Most values that are predicted in a grid.
pub const MOST: usize = 10_000;

/// Colours of the shortest and the longest time.
const SHORT: (f64, f64, f64) = (238.0, 244.0, 252.0);
const LONG: (f64, f64, f64) = (36.0, 74.0, 130.0);

/// A parameter of a grid.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Axis {
    /// The field of the cluster file.
    pub parameter: String,
    /// Unit of the numbers; empty for plain numbers and names.
    pub unit: &'static str,
    /// Distribution of the values.
    pub scale: Scale,
    /// The values, in the order given.
    pub values: Vec<Value>,
}

/// Prediction for one value of each parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GridPoint {
    /// Values of both parameters.
    pub values: [Value; 2],
    /// The prediction; `None` if the program cannot run, or does not come to its end, with these values.
    pub result: Option<PointResult>,
    /// Reason for which there is no prediction; `None` if there is one.
    pub error: Option<String>,
    /// Differences between the traced run and the cluster with these values, one sentence each.
    pub differences: Vec<String>,
}

/// Predictions for all pairs of values of two parameters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Grid {
    /// Version of this format.
    pub format: u32,
    /// The cluster's name.
    pub cluster: String,
    /// Both parameters.
    pub parameters: [Axis; 2],
    /// Predictions: of the first value of the first parameter with all values of the second, then of its second value, and so on.
    pub points: Vec<GridPoint>,
    /// Notes on results that are less exact than possible.
    pub notes: Vec<String>,
}

impl Axis {
    fn new(sweep: &Sweep) -> Axis {
        Axis {
            parameter: sweep.field.clone(),
            unit: sweep.unit,
            scale: sweep.scale,
            values: sweep.values.clone(),
        }
    }
}

impl Grid {
    /// Makes a grid of the predictions for all pairs of two parameters' values, in the order of [`Grid::points`].
    pub fn new(cluster: &str, sweeps: [&Sweep; 2], points: Vec<Point>, notes: Vec<String>) -> Grid {
        let [first, second] = sweeps;
        let pairs = first
            .values
            .iter()
            .flat_map(|one| second.values.iter().map(move |other| [one, other]));
        let points = pairs.zip(points).map(|(values, point)| GridPoint {
            values: values.map(Value::clone),
            result: point.result,
            error: point.error,
            differences: point.differences,
        });
        Grid {
            format: 1,
            cluster: cluster.to_owned(),
            parameters: sweeps.map(Axis::new),
            points: points.collect(),
            notes,
        }
    }

    /// Returns the same points as a series of one parameter, whose values are pairs.
    fn series(&self) -> Series {
        let [first, second] = &self.parameters;
        let points = self.points.iter().map(|point| Point {
            value: Value {
                text: format!("{}, {}", point.values[0].text, point.values[1].text),
                number: None,
            },
            result: point.result,
            error: point.error.clone(),
            differences: point.differences.clone(),
        });
        Series {
            format: self.format,
            cluster: self.cluster.clone(),
            parameter: format!("{}, {}", first.parameter, second.parameter),
            unit: "",
            scale: Scale::Names,
            points: points.collect(),
            notes: self.notes.clone(),
        }
    }

    /// Returns whether a point has a time.
    pub fn has_times(&self) -> bool {
        self.points.iter().any(|point| point.result.is_some())
    }

    /// Returns the times as a table for a terminal: a line for each value of the first parameter, a column for each of the second.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let [first, second] = &self.parameters;
        writeln!(
            out,
            "Predictions for {:?} by {} (lines) and {} (columns)\n",
            self.cluster, first.parameter, second.parameter
        )?;
        let series = self.series();
        series.write_differences(out)?;
        let lengths = first.values.iter().map(|value| value.text.chars().count());
        let width = lengths.max().unwrap_or(0).max(4);
        write!(out, "  {:<width$}", "")?;
        for value in &second.values {
            write!(out, "  {:>11}", value.text)?;
        }
        writeln!(out)?;
        let mut missing = Vec::new();
        let columns = second.values.len().max(1);
        for (value, points) in first.values.iter().zip(self.points.chunks(columns)) {
            write!(out, "  {:<width$}", value.text)?;
            for point in points {
                match (&point.result, &point.error) {
                    (Some(result), _) => write!(out, "  {:>11}", time(result.time))?,
                    (None, error) => {
                        write!(out, "  {:>11}", "-")?;
                        let error = error.clone().unwrap_or_default();
                        if !missing.contains(&error) {
                            missing.push(error);
                        }
                    }
                }
            }
            writeln!(out)?;
        }
        for error in missing {
            writeln!(out, "  -: {error}")?;
        }
        series.write_range(out)?;
        for note in &self.notes {
            writeln!(out, "Note: {note}")?;
        }
        Ok(())
    }

    /// Returns the contents as JSON; `SCHEMA.md` describes it.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Returns a table of comma-separated values (RFC 4180), with a heading and a line for each pair of values; times are in seconds.
    pub fn csv(&self) -> String {
        let mut out = String::new();
        for axis in &self.parameters {
            out.push_str(&Series::csv_parameter(&axis.parameter, axis.unit));
            out.push(',');
        }
        out.push_str(Series::CSV_RESULTS);
        out.push_str("\r\n");
        for (point, flat) in self.points.iter().zip(self.series().points) {
            for value in &point.values {
                out.push_str(&Series::csv_value(value));
                out.push(',');
            }
            out.push_str(&flat.csv_results());
            out.push_str("\r\n");
        }
        out
    }

    /// Returns an SVG image of the times: a coloured field for each pair of values, with its time where there is room.
    ///
    /// # Errors
    ///
    /// A grid without a time, or an image that cannot be drawn.
    pub fn svg(&self) -> Result<String, ChartError> {
        let times = self.points.iter().filter_map(|point| point.result.as_ref());
        let times: Vec<u64> = times.map(|result| result.time).collect();
        let (Some(&least), Some(&most)) = (times.iter().min(), times.iter().max()) else {
            return Err(failed("no pair of values has a time"));
        };
        let [first, second] = &self.parameters;
        let (rows, columns) = (first.values.len() as i32, second.values.len() as i32);
        let field = (880 / columns.max(1)).clamp(6, 110);
        let height = (600 / rows.max(1)).clamp(6, 36);
        let (left, top) = (150, 60);
        let size = (left + field * columns + 20, top + height * rows + 56);
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (size.0 as u32, size.1 as u32))
                .into_drawing_area();
            area.fill(&WHITE).map_err(failed)?;
            let write = |text: &str, at: (i32, i32), size: i32| {
                area.draw(&Text::new(text.to_owned(), at, font(size)))
                    .map_err(failed)
            };
            let title = format!(
                "{}: time by {} (lines) and {} (columns)",
                self.cluster, first.parameter, second.parameter
            );
            write(&title, (10, 10), 16)?;
            // Names of lines and columns are left out where they would overlap.
            let every = |step: i32, room: i32| (room / step.max(1)).max(1) as usize;
            for (at, value) in first.values.iter().enumerate().step_by(every(height, 14)) {
                write(
                    &value.text,
                    (10, top + height * at as i32 + height / 2 - 6),
                    13,
                )?;
            }
            for (at, value) in second.values.iter().enumerate().step_by(every(field, 76)) {
                write(&value.text, (left + field * at as i32 + 4, top - 20), 13)?;
            }
            for (at, point) in self.points.iter().enumerate() {
                let (row, column) = (at as i32 / columns, at as i32 % columns);
                let corner = (left + field * column, top + height * row);
                let end = (corner.0 + field - 1, corner.1 + height - 1);
                let Some(result) = &point.result else {
                    area.draw(&Rectangle::new([corner, end], INK.stroke_width(1)))
                        .map_err(failed)?;
                    continue;
                };
                let part = (result.time - least) as f64 / (most - least).max(1) as f64;
                area.draw(&Rectangle::new([corner, end], shade(part).filled()))
                    .map_err(failed)?;
                if field >= 70 && height >= 14 {
                    let colour = if part > 0.55 { WHITE } else { INK };
                    let style = ("sans-serif", 12).into_font().color(&colour);
                    let at = (corner.0 + 4, corner.1 + height / 2 - 6);
                    area.draw(&Text::new(time(result.time), at, style))
                        .map_err(failed)?;
                }
            }
            let key = format!("light: {}, dark: {}", time(least), time(most));
            let told = format!("{key}; {}", counted(self.points.len() as u32, "prediction"));
            write(&told, (10, size.1 - 36), 13)?;
            area.present().map_err(failed)?;
        }
        Ok(svg)
    }
}

/// Returns the colour of a time that is so far from the shortest (0) to the longest (1).
fn shade(part: f64) -> RGBColor {
    let mix = |from: f64, to: f64| (from + (to - from) * part).round() as u8;
    RGBColor(
        mix(SHORT.0, LONG.0),
        mix(SHORT.1, LONG.1),
        mix(SHORT.2, LONG.2),
    )
}
