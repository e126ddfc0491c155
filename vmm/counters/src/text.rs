//! Measurements as text tables.

use std::fmt::Write as _;

use crate::error::CountersError;
use crate::formulas::Derived;
use crate::measurement::Measurement;

impl Measurement {
    /// Formats the measurement as text: a table of figures by rank, then the events of the whole program, and notes.
    ///
    /// # Errors
    ///
    /// Fails for the same counts as [`Measurement::derive`].
    pub fn text(&self) -> Result<String, CountersError> {
        let whole = self.derive()?;
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write!(text, "counters  {}", self.tool);
        if let Some(processor) = &self.processor {
            let _ = write!(text, " on {processor}");
        }
        text.push_str("\n\n");
        let _ = writeln!(
            text,
            "{:<8} {:>16} {:>16} {:>7} {:>8} {:>7} {:>9} {:>9} {:>9} {:>9}",
            "",
            "cycles",
            "instructions",
            "CPI",
            "CPI_core",
            "alpha",
            "retiring",
            "bad spec.",
            "front end",
            "back end"
        );
        for (rank, derived) in &self.derive_ranks()? {
            line(&mut text, &format!("rank {rank}"), derived);
        }
        line(&mut text, "whole", &whole);
        text.push('\n');
        for reading in &self.whole.readings {
            let what = reading.quantity.map_or("", |quantity| quantity.title());
            let value = match reading.value {
                Some(value) if reading.quantity.is_some_and(|quantity| quantity.is_share()) => {
                    format!("{:.1} %", value * 100.0)
                }
                Some(value) => format!("{value:.0}"),
                None => reading.unread.clone(),
            };
            let scaled = match reading.running {
                running if running < 0.999 => {
                    format!("  scaled, counted {:.0} % of the time", running * 100.0)
                }
                _ => String::new(),
            };
            let text_line = format!("{value:>18}  {:<52} {what}{scaled}", reading.event);
            let _ = writeln!(text, "{}", text_line.trim_end());
        }
        let [l1, l2, l3] = whole.misses;
        for (level, misses) in [("L1", l1), ("L2", l2), ("L3", l3)] {
            if let Some(misses) = misses {
                let _ = writeln!(
                    text,
                    "{misses:>18.2}  {level} misses per thousand instructions"
                );
            }
        }
        if let Err(why) = &whole.core {
            let _ = writeln!(text, "\nno CPI_core: {why}");
        }
        for note in whole.limits.iter().chain(&self.notes) {
            let _ = writeln!(text, "note: {note}");
        }
        Ok(text)
    }
}

fn line(text: &mut String, name: &str, derived: &Derived) {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let share = |value: Option<f64>| {
        value.map_or("-".to_owned(), |value| format!("{:.1} %", value * 100.0))
    };
    let split = derived.top_down;
    let _ = writeln!(
        text,
        "{name:<8} {:>16.0} {:>16.0} {:>7.3} {:>8} {:>7} {:>9} {:>9} {:>9} {:>9}",
        derived.cycles,
        derived.instructions,
        derived.cpi,
        number(derived.core.as_ref().ok().map(|core| core.cpi), 3),
        number(derived.alpha, 3),
        share(split.map(|split| split.retiring)),
        share(split.map(|split| split.bad_speculation)),
        share(split.map(|split| split.frontend)),
        share(split.map(|split| split.backend)),
    );
}
