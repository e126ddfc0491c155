//! Delays as text.

use std::fmt::Write;

use nodescope_trace::Call;

use crate::delays::{Activity, Costs, Delays};
use crate::text::time;

/// Most rows of each list.
const LINES: usize = 10;

impl std::fmt::Display for Activity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = |call: &Option<Call>, other: &str| {
            call.as_ref().map_or(other.to_owned(), Call::to_string)
        };
        match self {
            Activity::Call(call) => write!(f, "{call}"),
            Activity::Computation { from, to } => write!(
                f,
                "computation from {} to {}",
                named(from, "the start"),
                named(to, "the end")
            ),
        }
    }
}

impl Delays {
    /// Writes the delays as a section of a text for a terminal.
    pub(crate) fn write(&self, out: &mut String) -> std::fmt::Result {
        let share = |part: f64| format!("{:.1} %", 100.0 * part / self.waiting.max(1) as f64);
        writeln!(
            out,
            "\nDelay costs, of {} of waiting of all ranks: {} direct, {} indirect, {} unexplained",
            time(self.waiting),
            share(self.direct),
            share(self.indirect),
            share(self.unexplained)
        )?;
        if self.activities.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "  {:>9} {:>10} {:>9}  delay",
            "all", "short-term", "long-term"
        )?;
        let columns = |of: &Costs| {
            format!(
                "  {:>9} {:>10} {:>9}",
                share(of.sum()),
                share(of.short_term),
                share(of.long_term)
            )
        };
        for row in self.activities.iter().take(LINES) {
            writeln!(
                out,
                "{}  {}, most on rank {} ({})",
                columns(&row.costs),
                row.activity,
                row.rank,
                share(row.of_rank.sum())
            )?;
        }
        if self.activities.len() > LINES {
            writeln!(out, "  ... {} more", self.activities.len() - LINES)?;
        }
        for (rank, costs) in self.ranks.iter().take(LINES) {
            writeln!(out, "{}  rank {rank}", columns(costs))?;
        }
        if self.ranks.len() > LINES {
            writeln!(out, "  ... {} more", self.ranks.len() - LINES)?;
        }
        for (kind, costs) in &self.kinds {
            writeln!(out, "{}  {}", columns(costs), kind.name())?;
        }
        Ok(())
    }
}
