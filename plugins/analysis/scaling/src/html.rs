//! The charts of an analysis, each as an image and all on one HTML page, which is well-formed XML, too.

use nodescope_page::chart::ChartError;
use nodescope_page::{Page, STYLE};

use crate::analysis::{Analysis, Series};
use crate::chart::{Labels, Part, bars, lines};
use crate::point::{Group, Point, Window};

/// Number of MPI functions that are drawn by name; all others are one part.
const FUNCTIONS: usize = 7;

/// A chart of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Short name: `calls`, `cpi`, `flops`, `host`.
    pub name: &'static str,
    /// Heading above the chart.
    pub title: &'static str,
    /// Chart as an SVG image.
    pub svg: String,
}

impl Analysis {
    /// Returns the analysis as an HTML page: the charts of each series, and the text.
    ///
    /// # Errors
    ///
    /// Fails if a chart cannot be drawn.
    pub fn html(&self) -> Result<String, ChartError> {
        let names: Vec<_> = self
            .series
            .iter()
            .map(|series| series.name.as_str())
            .collect();
        let title = format!("Scaling of {}", names.join(", "));
        let mut page = Page::begin(&title, STYLE);
        page.element("h1", "", &title);
        for series in &self.series {
            for figure in series.figures()? {
                page.raw("\n<section>");
                page.element("h2", "", &format!("{}: {}", series.name, figure.title));
                page.raw(&figure.svg);
                page.raw("</section>\n");
            }
        }
        page.raw("<section>");
        page.element("h2", "", "In numbers");
        page.element("pre", "", &self.text());
        page.raw("</section>\n");
        Ok(page.finish())
    }
}

impl Series {
    /// Draws the charts for which the runs have values.
    ///
    /// # Errors
    ///
    /// Fails if a chart cannot be drawn.
    pub fn figures(&self) -> Result<Vec<Figure>, ChartError> {
        let positions: Vec<String> = self
            .points
            .iter()
            .map(|point| point.nodes.to_string())
            .collect();
        let draw = |name, title: &'static str, values, parts: Vec<Part>, stacked: bool| {
            let known = |part: &Part| part.values.iter().flatten().any(|&value| value > 0.0);
            let parts: Vec<Part> = parts.into_iter().filter(known).collect();
            if parts.is_empty() {
                return Ok(None);
            }
            let caption = format!("{}: {title}", self.name);
            let labels = Labels {
                title: &caption,
                values,
                positions: &positions,
                across: "nodes",
            };
            let svg = match stacked {
                true => bars(&labels, &parts),
                false => lines(&labels, &parts),
            };
            svg.map(|svg| Some(Figure { name, title, svg }))
        };
        let drawn = [
            draw(
                "calls",
                "mean time of a rank in MPI calls but initialisation and end",
                "s of virtual time",
                self.calls(),
                true,
            )?,
            draw(
                "cpi",
                "terms of CPI in the window",
                "cycles per instruction outside MPI",
                self.cpi(),
                true,
            )?,
            draw(
                "flops",
                "floating-point rate in the window",
                "FLOP/s of all ranks",
                self.flops(),
                false,
            )?,
            draw(
                "host",
                "speed of one core of the host",
                "instructions per second",
                self.host(),
                false,
            )?,
        ];
        Ok(drawn.into_iter().flatten().collect())
    }

    fn part(&self, name: &str, value: impl Fn(&Point) -> Option<f64>) -> Part {
        Part {
            name: name.to_owned(),
            values: self.points.iter().map(value).collect(),
        }
    }

    /// Returns the mean time per rank by function in seconds, functions with the largest share of a run first.
    fn calls(&self) -> Vec<Part> {
        // These functions take the same time on any number of nodes, and would hide the others.
        let ends = ["MPI_Init", "MPI_Init_thread", "MPI_Finalize"];
        let mut names = self.functions();
        names.retain(|name| !ends.contains(&name.as_str()));
        let (named, rest) = names.split_at(names.len().min(FUNCTIONS));
        let mean = |point: &Point, of: &dyn Fn(&str) -> bool| {
            let functions = point.mpi.functions.iter().filter(|f| of(&f.function));
            let sum: f64 = functions.map(|f| f.time_ps as f64 / 1e12).sum();
            Some(sum / f64::from(point.ranks.max(1)))
        };
        let mut parts: Vec<Part> = (named.iter())
            .map(|name| self.part(name, |point| mean(point, &|other| other == name)))
            .collect();
        parts.push(self.part("others", |point| {
            mean(point, &|name| rest.iter().any(|r| r == name))
        }));
        parts
    }

    /// Returns the names of all MPI functions, those with the largest share of a run's time in MPI first.
    pub(crate) fn functions(&self) -> Vec<String> {
        let mut shares: std::collections::BTreeMap<&str, f64> = Default::default();
        for point in &self.points {
            let all: f64 = point.mpi.functions.iter().map(|f| f.time_ps as f64).sum();
            for function in &point.mpi.functions {
                let share = function.time_ps as f64 / all.max(1.0);
                let largest = shares.entry(&function.function).or_default();
                *largest = largest.max(share);
            }
        }
        let mut names: Vec<_> = shares.into_iter().collect();
        names.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
        names.into_iter().map(|(name, _)| name.to_owned()).collect()
    }

    fn cpi(&self) -> Vec<Part> {
        let value = |group| move |point: &Point| point.window.as_ref().map(|w| w.group(group));
        (Group::ALL.into_iter())
            .map(|group| self.part(group.name(), value(group)))
            .collect()
    }

    fn flops(&self) -> Vec<Part> {
        let of_window = |value: fn(&Window) -> Option<f64>| {
            move |point: &Point| {
                let window = point.window.as_ref()?;
                value(window)
            }
        };
        let ranks = |part: Part| Part {
            values: (part.values.iter().zip(&self.points))
                .map(|(value, point)| value.map(|value| value * f64::from(point.ranks)))
                .collect(),
            ..part
        };
        vec![
            ranks(self.part("equation (6)", of_window(|w| w.flops.published_per_second))),
            ranks(self.part(
                "counted over busy time",
                of_window(|w| w.flops.direct_per_second),
            )),
            self.part(
                "counted over the window",
                of_window(|w| w.flops.window_per_second),
            ),
        ]
    }

    fn host(&self) -> Vec<Part> {
        let phases = [
            ("boot", "boot"),
            ("job", "tracing MPI, no models"),
            ("window", "with caches"),
        ];
        let part = |(phase, name)| self.part(name, move |point| point.speed(phase));
        phases.into_iter().map(part).collect()
    }
}
