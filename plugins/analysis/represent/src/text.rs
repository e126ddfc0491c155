//! Representatives, and predictions from them, as text for a terminal.

use std::fmt::Write;

use nodescope_config::quantity::Time;
use nodescope_predict::Speed;

use crate::analysis::Analysis;
use crate::ranks_text;
use crate::replay_prediction::{ReplayPrediction, Scaling};

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
        let time = |picoseconds: u64| Time(picoseconds).rounded(3);
        writeln!(
            out,
            "Their computation is {} of {} where traced: representatives save {} of the replayed time",
            time(self.computation.representatives),
            time(self.computation.ranks),
            percent(self.computation.saved())
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
        self.write_methods(out)?;
        writeln!(
            out,
            "\nTimes of ranks. Computation: of the rank where traced, and here on the target"
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

    /// Writes the time from replays beside that without replays, and what either leaves out.
    fn write_methods(&self, out: &mut String) -> std::fmt::Result {
        let time = |picoseconds: u64| Time(picoseconds).rounded(3);
        let of = &self.prediction;
        let (what, from_replays) = match &of.section {
            Some(section) => ("the section", section.time),
            None => ("the program", of.outcome.time),
        };
        let corrected = (self.assignments.iter()).any(|a| a.replayed_where_traced.is_some());
        writeln!(out, "\nMethods, for {what}")?;
        writeln!(
            out,
            "  {:>11}          replays on the target{}",
            time(from_replays),
            if corrected {
                ", and what the trace has beyond replays where traced"
            } else {
                ""
            }
        )?;
        if let Some(other) = &self.without_replay {
            let alone = other
                .section
                .as_ref()
                .map_or(other.time, |section| section.time);
            let difference = 100.0 * (alone as f64 / from_replays.max(1) as f64 - 1.0);
            let speed = match other.speed {
                Speed::Factor(factor) => format!("{}", (factor * 1e4).round() / 1e4),
                Speed::Cpi { cpi, .. } => format!("a CPI of {cpi}"),
            };
            writeln!(
                out,
                "  {:>11} {difference:>+6.1} %  no replay: the traced computation, with {} ({speed})",
                time(alone),
                match other.scaling {
                    Scaling::ClusterFile => "the cluster file's speed of nodes",
                    Scaling::Clocks => "the ratio of the clocks",
                }
            )?;
            writeln!(
                out,
                "  The second takes caches and memory to be as fast, in cycles, as where traced"
            )?;
        }
        if !corrected {
            writeln!(
                out,
                "  A replay has no messages, and lacks the kernel's work on them between calls: the first may be too short.\n  --source-replay, with replays where the program was traced, adds this work"
            )?;
        }
        Ok(())
    }
}
