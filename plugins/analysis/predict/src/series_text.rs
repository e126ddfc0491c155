//! A series as text.

use std::fmt::Write;

use crate::series::{PointResult, Series};
use crate::text::time;

impl Series {
    /// Returns the series as a table for a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "Predictions for {:?} by {}\n",
            self.cluster, self.parameter
        )?;
        self.write_differences(out)?;
        let names = self
            .points
            .iter()
            .map(|point| point.value.text.chars().count());
        let width = names.max().unwrap_or(0).max(self.parameter.chars().count());
        writeln!(
            out,
            "  {:<width$}  {:>11}  {:>25}  computation  communication     wait    other     idle  efficiency",
            self.parameter, "time", "95 % interval"
        )?;
        for point in &self.points {
            write!(out, "  {:<width$}  ", point.value.text)?;
            match &point.result {
                Some(result) => row(out, result)?,
                None => writeln!(
                    out,
                    "{:>11}  {}",
                    "-",
                    point.error.as_deref().unwrap_or_default()
                )?,
            }
        }
        self.write_range(out)?;
        for note in &self.notes {
            writeln!(out, "Note: {note}")?;
        }
        Ok(())
    }

    /// Writes what differs from the traced run, and at which values.
    pub(crate) fn write_differences(&self, out: &mut String) -> std::fmt::Result {
        let differences = self.differences();
        if differences.is_empty() {
            return Ok(());
        }
        writeln!(out, "Different from the traced run")?;
        for (difference, values) in differences {
            match values.is_empty() {
                true => writeln!(out, "  - {difference}")?,
                false => writeln!(out, "  - at {}: {difference}", values.join(", "))?,
            }
        }
        writeln!(out)
    }

    /// Writes the shortest and the longest time.
    pub(crate) fn write_range(&self, out: &mut String) -> std::fmt::Result {
        let least = self.times().min_by_key(|(_, result)| result.time);
        let most = self.times().max_by_key(|(_, result)| result.time);
        if let (Some((low, least)), Some((high, most))) = (least, most)
            && least.time < most.time
        {
            let more = most.time as f64 / least.time.max(1) as f64;
            writeln!(
                out,
                "\nShortest {} at {}, longest {} at {}: {more:.3} times as long",
                time(least.time),
                low.text,
                time(most.time),
                high.text
            )?;
        } else if least.is_some() && self.points.len() > 1 {
            writeln!(out, "\nThe time is the same throughout")?;
        }
        Ok(())
    }
}

fn row(out: &mut String, result: &PointResult) -> std::fmt::Result {
    let interval = match result.interval {
        Some((low, high)) => format!("{} to {}", time(low), time(high)),
        None => String::new(),
    };
    let share = |part: u64| format!("{:.2} %", 100.0 * part as f64 / result.time.max(1) as f64);
    let split = &result.split;
    writeln!(
        out,
        "{:>11}  {interval:>25}  {:>11}  {:>13}  {:>7}  {:>7}  {:>7}  {:>10}",
        time(result.time),
        share(split.computation),
        share(split.communication),
        share(split.wait),
        share(split.opaque),
        share(split.idle),
        format!("{:.2} %", 100.0 * result.parallel)
    )
}
