//! Representatives, and predictions from them, as text for a terminal.

use std::fmt::Write;

use nodescope_config::quantity::Time;

use crate::analysis::Analysis;
use crate::ranks_text;
use crate::replay_prediction::ReplayPrediction;

/// Largest number of ranks whose times are reported one by one.
const RANKS: usize = 64;

/// Returns a fraction as text in per cent.
pub(crate) fn percent(part: f64) -> String {
    let hundredths = 100.0 * part;
    match hundredths {
        0.0 => "0 %".to_owned(),
        _ if hundredths < 0.01 => "< 0.01 %".to_owned(),
        _ if hundredths < 1.0 => format!("{hundredths:.2} %"),
        _ => format!("{hundredths:.1} %"),
    }
}

impl Analysis {
    /// Returns the analysis as text for a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{} of {} ranks represent all, at a threshold of {}: {}",
            self.representatives.len(),
            self.ranks,
            percent(self.threshold),
            ranks_text(&self.representatives)
        )?;
        let below = match self.same_below {
            Some(below) => format!("to just below {}", percent(below)),
            None => "on".to_owned(),
        };
        writeln!(
            out,
            "These stay the same from {} {below}",
            percent(self.same_from)
        )?;
        for (number, group) in self.groups.iter().enumerate() {
            let (count, ranks) = (group.ranks.len(), ranks_text(&group.ranks));
            writeln!(
                out,
                "\nGroup {}: {count} rank{} with the same {} MPI calls: {ranks}",
                number + 1,
                if count == 1 { "" } else { "s" },
                group.calls
            )?;
            writeln!(out, "  represented by   spread  computation  ranks")?;
            for cluster in &group.clusters {
                writeln!(
                    out,
                    "  {:>14} {:>8} {:>12}  {}",
                    cluster.representative,
                    percent(cluster.spread),
                    format!("+- {}", percent(cluster.computation_difference)),
                    ranks_text(&cluster.ranks)
                )?;
            }
        }
        writeln!(out, "\nRepresentatives by threshold")?;
        for entry in &self.sensitivity {
            let mark = if entry.threshold == self.threshold {
                "  <- the cut"
            } else {
                ""
            };
            writeln!(
                out,
                "  {:>8} {:>6}{mark}",
                percent(entry.threshold),
                entry.representatives
            )?;
        }
        for note in &self.notes {
            writeln!(out, "Note: {note}")?;
        }
        Ok(())
    }
}

impl ReplayPrediction {
    /// Returns the prediction as text for a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        out.push_str(&self.prediction.text());
        let time = |picoseconds: u64| Time(picoseconds).rounded(3);
        writeln!(
            out,
            "\nTimes of ranks. Computation: of the rank where traced, and of its representative on the target"
        )?;
        writeln!(
            out,
            "  rank  represented by      traced   on target  communication        wait       other        idle"
        )?;
        let outcome = self.assignments.iter().zip(&self.prediction.outcome.ranks);
        for (assignment, times) in outcome.take(RANKS) {
            writeln!(
                out,
                "  {:>4} {:>15} {:>11} {:>11} {:>14} {:>11} {:>11} {:>11}",
                assignment.rank,
                assignment.from,
                time(assignment.traced),
                time(times.computation),
                time(times.communication),
                time(times.wait),
                time(times.opaque),
                time(times.idle)
            )?;
        }
        if self.assignments.len() > RANKS {
            writeln!(
                out,
                "  ... {} more; --json has all",
                self.assignments.len() - RANKS
            )?;
        }
        Ok(())
    }
}
