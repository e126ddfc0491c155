//! Phases as text for a terminal.

use std::fmt::{Result, Write};

use nodescope_config::quantity::{Time, counted};

use crate::analysis::{Analysis, Figures, Phase, StepReason};

/// Most phases shown one by one.
const LINES: usize = 40;
/// Most steps of a run for which a line with the class of each step is drawn.
const WIDTH: usize = 90;
/// Characters that represent classes.
const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

impl Analysis {
    /// Returns the phases as text for a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    /// Returns the phases as JSON; `SCHEMA.md` describes it.
    pub fn json(&self) -> String {
        // Every key is a string and every number finite, so that serialising to memory cannot fail.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Returns a sentence on how the step was chosen.
    pub fn step_text(&self) -> String {
        let why = match self.step_reason {
            StepReason::Given => "given".to_owned(),
            StepReason::Tenth => {
                "a tenth of the run, since no two steps that were tried agree".to_owned()
            }
            StepReason::Stable => format!(
                "chosen: {} of {} steps that were tried give this sequence of phases one after the other",
                self.candidates.iter().filter(|of| of.agrees).count(),
                self.candidates.len()
            ),
        };
        let count = self.step_classes.len();
        let mixed = match self.class_choice.mixed {
            0 => String::new(),
            1 => "; 1 step of two phases joined one of them".to_owned(),
            mixed => format!("; {mixed} steps of two phases joined one of them"),
        };
        format!("{} ({count} steps; {why}{mixed})", time(self.step))
    }

    /// Returns sentences on how the number of classes was chosen, and on how stable the classes are.
    pub fn class_text(&self) -> [String; 2] {
        let choice = &self.class_choice;
        let residual = choice.residuals.last();
        let why = match residual {
            None => "given".to_owned(),
            Some(left) => format!("chosen: they leave {:.1} % of the squares", 100.0 * left),
        };
        [
            format!("{} ({why})", choice.count),
            format!(
                "{:.3} over {} seeds (least {:.3}); Ward's method: {:.3}, {} phases",
                choice.stability,
                choice.seeds,
                choice.least_stability,
                choice.ward_agreement,
                choice.ward_phases
            ),
        ]
    }

    fn write(&self, out: &mut String) -> Result {
        let span = self.to - self.from;
        writeln!(
            out,
            "Communication phases: {}, {} from {} of the trace on, from which times count",
            counted(self.ranks, "rank"),
            time(span),
            time(self.from)
        )?;
        let [classes, stability] = self.class_text();
        writeln!(out, "\n  step        {}", self.step_text())?;
        writeln!(out, "  classes     {classes}")?;
        writeln!(out, "  agreement   {stability}")?;
        if self.step_classes.len() <= WIDTH {
            let drawn: String = (self.step_classes.iter())
                .map(|&class| {
                    DIGITS
                        .get(class as usize)
                        .map_or('+', |&digit| digit as char)
                })
                .collect();
            writeln!(out, "  by step     {drawn}")?;
        }
        writeln!(
            out,
            "\n{:<6}{:>6} {:>12} {:>12} {:>10} {:>12}   {:<20} sent by a rank (B)",
            "phase", "class", "from", "to", "messages", "bytes", "degree"
        )?;
        for (number, phase) in self.phases.iter().enumerate().take(LINES) {
            row(out, &number.to_string(), self.from, phase)?;
        }
        if self.phases.len() > LINES {
            writeln!(out, "... {} more", self.phases.len() - LINES)?;
        }
        write!(
            out,
            "{:<6}{:>6} {:>12} {:>12}",
            "whole",
            "",
            time(0),
            time(span)
        )?;
        figures(out, &self.whole)?;
        writeln!(
            out,
            "  degree and sent: least / mean / greatest over all ranks"
        )?;
        if let Some(mapping) = &self.mapping {
            mapping.write(out, self.from)?;
        }
        let of_mapping = self.mapping.iter().flat_map(|mapping| &mapping.notes);
        for note in self.notes.iter().chain(of_mapping) {
            writeln!(out, "Note: {note}")?;
        }
        Ok(())
    }
}

fn row(out: &mut String, name: &str, begin: u64, phase: &Phase) -> Result {
    let (from, to) = (time(phase.from - begin), time(phase.to - begin));
    write!(out, "{name:<6}{:>6} {from:>12} {to:>12}", phase.class)?;
    figures(out, &phase.figures)
}

fn figures(out: &mut String, of: &Figures) -> Result {
    let (degree, sent) = (&of.degree, &of.sent);
    writeln!(
        out,
        " {:>10} {:>12}   {:<20} {} / {:.1} / {}",
        of.total.messages,
        of.total.bytes,
        format!("{} / {:.2} / {}", degree.min, degree.mean, degree.max),
        sent.min,
        sent.mean,
        sent.max
    )
}

/// Returns a time in a unit that suits it.
pub(crate) fn time(picoseconds: u64) -> String {
    Time(picoseconds).rounded(3)
}

/// Returns a number of bytes in a unit that suits it.
pub(crate) fn size(bytes: f64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|unit| bytes >= unit.0 as f64) {
        Some((unit, name)) => format!("{:.1} {name}", bytes / *unit as f64),
        None => format!("{bytes:.0} B"),
    }
}
