//! CPI by the pipeline model, whose node is described like this host, compared with measured cycles per instruction.

use std::collections::BTreeMap;

use nodescope_machine::measurement::Measurement;
use nodescope_plugin_api::{CAUSES, Cause};
use nodescope_plugin_pipeline::Core;
use serde_json::{Map, Value, json};

use crate::comparison::number;
use crate::time::{median, quartiles};

/// Measured CPIs whose quartiles differ by more than this share are marked.
const WIDE: f64 = 0.1;

/// CPI of a program in a window with the pipeline model.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    pub instructions: f64,
    /// Cycles by which the clock advanced, per instruction.
    pub clock: f64,
    /// CPI that was learned, by cause.
    pub causes: [f64; CAUSES],
}

impl Timed {
    /// Adds up a measurement; `None` without instructions.
    pub fn of(measurement: &Measurement) -> Option<Self> {
        let profile = measurement.blocks.as_ref()?;
        let mut instructions = 0.0;
        let mut causes = [0.0; CAUSES];
        for (_, block, counts) in &profile.counts {
            let of_block = profile.blocks.get(*block as usize)?.instructions;
            instructions += counts.instructions(of_block) as f64;
            for (sum, cycles) in causes.iter_mut().zip(counts.core_cycles) {
                *sum += cycles as f64 / 65_536.0;
            }
        }
        let spent: u64 = measurement.cycles.iter().map(|(from, to)| to - from).sum();
        let idle: u64 = (measurement.counters.iter())
            .map(|(_, _, _, counters)| counters.idle_cycles)
            .sum();
        (instructions > 0.0).then(|| Self {
            instructions,
            clock: (spent - idle) as f64 / instructions,
            causes: causes.map(|cycles| cycles / instructions),
        })
    }

    pub fn cpi(&self) -> f64 {
        self.causes.iter().sum()
    }
}

/// A row of the table.
pub struct Row<'a> {
    pub name: &'a str,
    pub timed: Timed,
    /// CPI with every stall added, as published.
    pub added: f64,
    /// Measured CPI of each round.
    pub measured: Vec<f64>,
}

impl Row<'_> {
    /// Returns the lower quartile of the measured CPIs.
    fn measured(&self) -> f64 {
        quartiles(self.measured.clone()).0
    }

    /// Returns whether measurements lie too far apart to judge a prediction.
    fn is_wide(&self) -> bool {
        let (low, high) = quartiles(self.measured.clone());
        high / low - 1.0 > WIDE
    }

    fn predictions(&self) -> [f64; 3] {
        [self.added, self.timed.clock, self.timed.cpi()]
    }
}

/// Names of [`Row::predictions`].
const PREDICTIONS: [&str; 3] = ["all stalls", "clock", "pipeline"];

/// Median of absolute errors, mean, and geometric mean of the ratios as the mean of |ln|.
fn errors(rows: &[Row<'_>], which: usize) -> (f64, f64, f64) {
    let ratios = rows
        .iter()
        .map(|row| row.predictions()[which] / row.measured());
    let absolute = ratios.clone().map(|ratio| (ratio - 1.0).abs());
    let count = rows.len().max(1) as f64;
    (
        median(absolute.clone()),
        absolute.sum::<f64>() / count,
        ratios.map(|ratio| ratio.ln().abs()).sum::<f64>() / count,
    )
}

pub fn table(core: &Core, rows: &[Row<'_>]) -> String {
    let mut text = format!(
        "\ncycles per instruction, pipeline model of {}\n{:<26}{:>9}{:>9}",
        core.title, "", "M instr", "measured"
    );
    for name in PREDICTIONS {
        text += &format!("{name:>11}{:>8}", "error");
    }
    for cause in Cause::ALL {
        text += &format!(
            "{:>9}",
            cause
                .name()
                .replace("memory_", "m ")
                .replace("bad_speculation", "bad spec")
        );
    }
    text += "\n";
    for row in rows {
        let measured = row.measured();
        let mark = if row.is_wide() { "?" } else { " " };
        text += &format!(
            "{:<26}{:>9.1}{measured:>8.3}{mark}",
            row.name,
            row.timed.instructions / 1e6
        );
        for cpi in row.predictions() {
            text += &format!("{cpi:>11.3}{:>+7.0}%", (cpi / measured - 1.0) * 100.0);
        }
        for cause in row.timed.causes {
            text += &format!("{cause:>9.3}");
        }
        text += "\n";
    }
    for (which, name) in PREDICTIONS.iter().enumerate() {
        let (median, mean, logarithm) = errors(rows, which);
        text += &format!(
            "{name}: absolute error, median {:.1} %, mean {:.1} %; mean of |ln| {logarithm:.3}\n",
            median * 100.0,
            mean * 100.0
        );
    }
    text += "?: the measurement's quartiles lie more than 10 % apart\n";
    text
}

pub fn values(rows: &[Row<'_>]) -> Value {
    let mut programs = Map::new();
    for row in rows {
        let causes: BTreeMap<&str, Value> = Cause::ALL
            .iter()
            .zip(row.timed.causes)
            .map(|(cause, cpi)| (cause.name(), number(cpi)))
            .collect();
        let value = json!({
            "measured": number(row.measured()),
            "wide": row.is_wide(),
            "all_stalls": number(row.added),
            "clock": number(row.timed.clock),
            "pipeline": number(row.timed.cpi()),
            "causes": causes,
        });
        programs.insert(row.name.to_owned(), value);
    }
    let errors = PREDICTIONS.iter().enumerate().map(|(which, name)| {
        let (median, mean, logarithm) = errors(rows, which);
        let value = json!({ "median": number(median), "mean": number(mean), "logarithm": number(logarithm) });
        ((*name).to_owned(), value)
    });
    json!({ "programs": programs, "errors": errors.collect::<Map<_, _>>() })
}
