//! A sensitivity as text.

use std::fmt::Write;

use crate::sensitivity::{Derivative, Parameter, Sensitivity};
use crate::text::time;

/// Most ranks and nodes that are listed.
const LINES: usize = 8;

impl Sensitivity {
    /// Writes the sensitivity as a section of a text for a terminal.
    pub(crate) fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "\nSensitivity: by how many percent the time grows if a value grows by 100 %, on the critical path, and with {} % less or more",
            100.0 * self.step
        )?;
        writeln!(
            out,
            "  {:<44} {:>10} {:>9} {:>9}",
            "value", "path", "less", "more"
        )?;
        for of in &self.parameters {
            self.row(out, of)?;
        }
        if self.queueing > 0 {
            let share = self.share(self.queueing as f64);
            writeln!(out, "  {:<44} {share:>10}", "waiting for links and senders")?;
        }
        for of in self.ranks.iter().take(LINES) {
            self.row(out, of)?;
        }
        if self.ranks.len() > LINES {
            writeln!(out, "  ... {} more", self.ranks.len() - LINES)?;
        }
        for (node, on_path) in self.nodes.iter().take(LINES) {
            let name = format!("computation, node {node}");
            let share = self.share(*on_path as f64);
            writeln!(out, "  {name:<44} {share:>10}")?;
        }
        let (less, more) = self.growth_per_latency;
        write!(
            out,
            "Latencies on the critical path: {}; one more picosecond of latency makes the program ",
            self.latencies
        )?;
        match less {
            Some(less) if (less - more).abs() > 0.5 => {
                writeln!(out, "{more:.1} ps slower, one less {less:.1} ps faster")?
            }
            _ => writeln!(out, "{more:.1} ps slower")?,
        }
        writeln!(out, "Latency tolerance, from {} on:", time(self.latency))?;
        for of in &self.tolerances {
            let growth = 100.0 * of.growth;
            match of.latency {
                Some(latency) => writeln!(
                    out,
                    "  {growth:>3} % more time at {}, {} more",
                    time(latency),
                    time(latency.saturating_sub(self.latency))
                )?,
                None => writeln!(
                    out,
                    "  {growth:>3} % more time at no latency of up to a minute"
                )?,
            }
        }
        Ok(())
    }

    fn share(&self, part: f64) -> String {
        let share = format!("{:.3} %", 100.0 * part / self.time.max(1) as f64);
        // A difference that rounds to nothing has no sign.
        match share.strip_prefix("-0.000") {
            Some(rest) => format!("0.000{rest}"),
            None => share,
        }
    }

    fn row(&self, out: &mut String, of: &Derivative) -> std::fmt::Result {
        let value = match (of.parameter, of.value) {
            (Parameter::PerByte, Some(value)) if value > 0.0 => {
                format!(" ({:.4} GB/s)", 1e3 / value)
            }
            (Parameter::PerByte, _) | (_, None) => String::new(),
            (_, Some(value)) => format!(" ({})", time(value as u64)),
        };
        let name = format!("{}{value}", of.name);
        let path = of.path.map(|path| self.share(path as f64));
        let less = of.less.map(|less| self.share(less));
        writeln!(
            out,
            "  {name:<44} {:>10} {:>9} {:>9}",
            path.unwrap_or_default(),
            less.unwrap_or_default(),
            self.share(of.more)
        )
    }
}
