//! The published protocol: the characteristics of each interval, one to a line.

use std::fmt::Write;

use crate::analysis::Analysis;
use crate::characteristics::Characteristics;

/// Returns milliseconds, rounded to microseconds, without trailing zeros.
fn milliseconds(nanoseconds: u128) -> String {
    let microseconds = (nanoseconds + 500) / 1000;
    let (whole, part) = (microseconds / 1000, microseconds % 1000);
    match part {
        0 => whole.to_string(),
        _ => format!("{whole}.{part:03}")
            .trim_end_matches('0')
            .to_owned(),
    }
}

impl Characteristics {
    /// Formats the published protocol of an interval: a characteristic a line, times in milliseconds.
    pub fn protocol(&self) -> String {
        let lost = &self.lost;
        let rows = [
            ("Execution time", self.execution),
            ("Processors", u128::from(self.processors) * 1_000_000),
            ("Total time", self.total),
            ("Productive time", self.productive),
            ("Idle time", self.idle),
            ("Lost time", self.lost_sum),
            ("  Insufficient parallelism", lost.insufficient_parallelism),
            ("  Desynchronisation", lost.desynchronisation),
            ("  Barrier", lost.barrier),
            ("  Lock", lost.lock),
            ("  Critical", lost.critical),
            ("  Ordered", lost.ordered),
            ("  Task", lost.task),
        ];
        let mut out = String::new();
        for (name, value) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{name:<28}{:>14}", milliseconds(value));
        }
        let _ = writeln!(
            out,
            "{:<28}{:>13.3}%",
            "Efficiency",
            self.efficiency.0 * 100.0
        );
        out
    }
}

impl Analysis {
    /// Formats the published protocol of each interval of each process.
    pub fn protocol(&self) -> String {
        let mut out = String::new();
        let programs = self.programs.iter().enumerate();
        let processes = programs.flat_map(|(number, program)| {
            let name = (self.programs.len() > 1).then(|| self.program_name(number));
            let processes = program.processes.iter();
            processes.map(move |at| (name.clone(), &self.processes[*at]))
        });
        for (program, process) in processes {
            let program = program.map_or_else(String::new, |name| format!("{name}, "));
            for interval in &process.intervals {
                let _ = writeln!(
                    out,
                    "{program}{}, {}, executed {} time{} (times in milliseconds)",
                    process.name(),
                    interval.name,
                    interval.count,
                    if interval.count == 1 { "" } else { "s" },
                );
                out.push_str(&interval.characteristics.protocol());
                out.push('\n');
            }
        }
        out
    }
}
