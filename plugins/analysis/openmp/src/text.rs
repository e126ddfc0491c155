//! An analysis as text for a terminal.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::analysis::{Analysis, ProcessReport};
use crate::characteristics::{Characteristics, Ratio};
use crate::hybrid::Hybrid;
use crate::points::{LoopReport, Point, Spread};
use crate::programs::ProgramReport;

/// Most programs shown with details.
const PROGRAMS: usize = 12;
/// Most processes of a program shown with details, and most regions, points and loops shown of each.
const LINES: usize = 12;
/// Most threads shown one by one.
const THREADS: usize = 32;
/// Most programs, processes or ranks shown one by one in a table.
const RANKS: usize = 32;

/// Column heads of the table of programs.
pub(crate) const PROGRAM_HEAD: [&str; 7] = [
    "",
    "processes",
    "processors",
    "efficiency",
    "MPI",
    "OpenMP",
    "in MPI",
];
/// Title of the table of the ranks' losses.
pub(crate) const RANK_TITLE: &str =
    "Processor time that each rank loses to MPI and to OpenMP, largest loss first";
/// Column heads of the table of the ranks' losses.
pub(crate) const RANK_HEAD: [&str; 10] = [
    "rank",
    "efficiency",
    "MPI, all",
    "in calls",
    "waiting",
    "OpenMP, all",
    "serial",
    "imbalance",
    "scheduling",
    "most",
];

/// Returns a time with its unit, in up to four digits.
pub(crate) fn time(nanoseconds: u128) -> String {
    let (unit, name) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds} ns"),
        1_000..1_000_000 => (1e3, "us"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    let value = nanoseconds as f64 / unit;
    let decimals = match value {
        ..10.0 => 3,
        10.0..100.0 => 2,
        100.0..1000.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {name}")
}

pub(crate) fn percent(ratio: Ratio) -> String {
    format!("{:.1} %", ratio.0 * 100.0)
}

fn more(out: &mut String, shown: usize, all: usize, what: &str) -> std::fmt::Result {
    match all.saturating_sub(shown) {
        0 => Ok(()),
        more => writeln!(out, "  ... and {more} more {what}: --json lists all"),
    }
}

impl Analysis {
    /// Formats the analysis as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        if self.programs.len() > 1 {
            self.write_programs(out)?;
        }
        let shown = self.programs.iter().enumerate().take(PROGRAMS);
        for (number, program) in shown {
            if self.programs.len() > 1 {
                let title = self.title(number);
                writeln!(out, "{title}\n{}", "-".repeat(title.chars().count()))?;
            }
            self.write_program(out, program)?;
        }
        more(out, PROGRAMS, self.programs.len(), "programs")?;
        if !self.notes.is_empty() {
            writeln!(out, "Notes")?;
            for note in &self.notes {
                writeln!(out, "  {note}")?;
            }
        }
        Ok(())
    }

    /// Returns a sentence for each program: its efficiency, and the parts of OpenMP's.
    pub fn brief(&self) -> Vec<String> {
        let several = self.programs.len() > 1;
        let programs = self.programs.iter().enumerate();
        let sentence = |(number, program): (usize, &ProgramReport)| {
            let name = match several {
                true => format!("{}: ", self.program_name(number)),
                false => String::new(),
            };
            let of = &program.hybrid;
            format!(
                "{name}parallel efficiency {}; of OpenMP {}: serialisation {}, load balance {}, scheduling {}",
                percent(of.parallel),
                percent(of.openmp_parallel),
                percent(of.openmp_serialisation),
                percent(of.openmp_load_balance),
                percent(of.openmp_scheduling),
            )
        };
        programs.map(sentence).collect()
    }

    /// Returns the title of a program's part of a report that has several.
    pub(crate) fn title(&self, number: usize) -> String {
        let name = self.program_name(number);
        match self.programs[number].mpi_program {
            Some(traced) if traced != number => {
                format!("{name} (number {traced} in the trace)").replacen('p', "P", 1)
            }
            _ => name.replacen('p', "P", 1),
        }
    }

    fn write_program(&self, out: &mut String, program: &ProgramReport) -> std::fmt::Result {
        let alone = program.processes.len() == 1;
        if !alone {
            self.write_hybrid(out, program)?;
        }
        for at in self.ranked(program).take(LINES) {
            self.processes[at].write(out, alone, &program.hybrid)?;
        }
        more(out, LINES, program.processes.len(), "processes")?;
        for note in &program.notes {
            writeln!(out, "note: {note}\n")?;
        }
        Ok(())
    }

    /// Returns the sentence about all programs of a job that has several.
    pub(crate) fn summary(&self) -> String {
        let hosts: BTreeSet<&str> = (self.processes.iter())
            .map(|process| process.host.as_str())
            .collect();
        format!(
            "{} programs, which used at most {} processor{} of {} node{} at the same time",
            self.programs.len(),
            self.processors,
            plural(self.processors),
            hosts.len(),
            plural(hosts.len() as u64),
        )
    }

    /// Returns a row for each program, by [`PROGRAM_HEAD`].
    pub(crate) fn program_rows(&self) -> impl Iterator<Item = Vec<String>> {
        (self.programs.iter().enumerate()).map(|(number, program)| {
            let hybrid = &program.hybrid;
            let in_mpi = hybrid.mpi_parallel;
            vec![
                self.program_name(number),
                hybrid.processes.to_string(),
                hybrid.processors.to_string(),
                percent(hybrid.parallel),
                in_mpi.map_or_else(|| "-".into(), percent),
                percent(hybrid.openmp_parallel),
                in_mpi.map_or_else(|| "-".into(), |_| time(hybrid.times.mpi)),
            ]
        })
    }

    fn write_programs(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "{}\n", self.summary())?;
        let mut line = |row: &[String]| {
            write!(out, "  {:<40}", row[0])?;
            for cell in &row[1..] {
                write!(out, " {cell:>11}")?;
            }
            writeln!(out)
        };
        line(&PROGRAM_HEAD.map(str::to_owned))?;
        for row in self.program_rows().take(RANKS) {
            line(&row)?;
        }
        more(out, RANKS, self.programs.len(), "programs")?;
        writeln!(out)
    }

    fn write_hybrid(&self, out: &mut String, program: &ProgramReport) -> std::fmt::Result {
        let hybrid = &program.hybrid;
        writeln!(
            out,
            "{} processes on {} processors of {} node{}\n",
            hybrid.processes,
            hybrid.processors,
            hybrid.nodes.len(),
            plural(hybrid.nodes.len() as u64),
        )?;
        hybrid.write(out)?;
        writeln!(
            out,
            "\nBy node {:>34} {:>12} {:>12}",
            "efficiency", "in MPI", "waiting"
        )?;
        for node in &hybrid.nodes {
            writeln!(
                out,
                "  {:<32} {:>9} {:>12} {:>12}",
                node.host,
                percent(node.efficiency),
                time(node.times.mpi),
                time(node.times.load_imbalance + node.times.scheduling),
            )?;
        }
        hybrid.write_ranks(out)?;
        writeln!(
            out,
            "\nBy process, largest loss first\n  {:<32} {:>9} {:>12} {:>12} {:>12}",
            "", "efficiency", "execution", "idle", "lost"
        )?;
        for at in self.ranked(program).take(RANKS) {
            let process = &self.processes[at];
            let whole = &process.intervals[0].characteristics;
            writeln!(
                out,
                "  {:<32} {:>9} {:>12} {:>12} {:>12}",
                process.name(),
                percent(whole.efficiency),
                time(whole.execution),
                time(whole.idle),
                time(whole.lost_sum),
            )?;
        }
        more(out, RANKS, program.processes.len(), "processes")?;
        writeln!(out)
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

impl Hybrid {
    /// Returns the efficiencies, with the deeper ones indented.
    pub(crate) fn rows(&self) -> Vec<(&'static str, Ratio)> {
        let mut rows = vec![("parallel efficiency (POP, TALP)", self.parallel)];
        if let (Some(parallel), Some(balance), Some(communication)) = (
            self.mpi_parallel,
            self.mpi_load_balance,
            self.mpi_communication,
        ) {
            rows.push(("  MPI parallel efficiency", parallel));
            rows.push(("    MPI load balance", balance));
            rows.push(("    MPI communication efficiency", communication));
        }
        rows.push(("  OpenMP parallel efficiency", self.openmp_parallel));
        rows.push(("    OpenMP serialisation", self.openmp_serialisation));
        rows.push(("    OpenMP load balance", self.openmp_load_balance));
        rows.push(("    OpenMP scheduling", self.openmp_scheduling));
        rows
    }

    /// Returns the ranks' losses in columns, by [`RANK_HEAD`].
    pub(crate) fn rank_rows(&self) -> impl Iterator<Item = Vec<String>> {
        self.ranks.iter().map(|of| {
            let mut row = vec![
                format!("rank {} on {}", of.rank, of.host),
                percent(of.efficiency),
            ];
            let times = &of.times;
            row.extend(
                [
                    of.mpi_lost,
                    times.mpi,
                    of.mpi_waiting,
                    of.openmp_lost,
                    times.serialisation - times.idle_in_mpi,
                    times.load_imbalance,
                    times.scheduling,
                ]
                .map(time),
            );
            row.push(of.most().to_owned());
            row
        })
    }

    fn write_ranks(&self, out: &mut String) -> std::fmt::Result {
        if self.ranks.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n{RANK_TITLE}")?;
        let mut line = |row: &[String]| {
            write!(out, "  {:<26}", row[0])?;
            for cell in &row[1..] {
                write!(out, " {cell:>12}")?;
            }
            writeln!(out)
        };
        let mut head = RANK_HEAD.map(str::to_owned);
        head[0].clear();
        line(&head)?;
        for row in self.rank_rows().take(RANKS) {
            line(&row)?;
        }
        more(out, RANKS, self.ranks.len(), "ranks")
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        for (name, ratio) in self.rows() {
            writeln!(out, "  {name:<36} {:>9}", percent(ratio))?;
        }
        if self.mpi_parallel.is_none() && self.processes > 1 {
            writeln!(
                out,
                "  (no trace of MPI calls is there; time in MPI counts as useful)"
            )?;
        }
        Ok(())
    }
}

impl ProcessReport {
    fn write(&self, out: &mut String, alone: bool, hybrid: &Hybrid) -> std::fmt::Result {
        writeln!(
            out,
            "{}: {}, {} thread{} under {}",
            self.name(),
            self.program.rsplit('/').next().unwrap_or_default(),
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            self.runtime,
        )?;
        for note in &self.notes {
            writeln!(out, "  note: {note}")?;
        }
        writeln!(out, "\nIntervals")?;
        self.write_intervals(out)?;
        if alone {
            writeln!(out)?;
            hybrid.write(out)?;
        }
        writeln!(
            out,
            "\nThreads\n  {:<12} {:>12} {:>12} {:>12} {:>14}",
            "number", "from", "productive", "waiting", "insufficient"
        )?;
        for thread in self.times.iter().take(THREADS) {
            writeln!(
                out,
                "  {:<12} {:>12} {:>12} {:>12} {:>14}",
                format!(
                    "{}{}",
                    thread.number,
                    if thread.root { " (root)" } else { "" }
                ),
                time(thread.first),
                time(thread.productive),
                time(thread.waiting),
                time(thread.insufficient_parallelism),
            )?;
        }
        more(out, THREADS, self.times.len(), "threads")?;
        self.write_regions(out)?;
        self.write_points(out)?;
        self.write_loops(out)?;
        writeln!(out)
    }

    fn write_intervals(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "  {:<28} {:>7} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "", "count", "execution", "total", "productive", "idle", "lost", "efficiency"
        )?;
        for interval in &self.intervals {
            let of = &interval.characteristics;
            let name = interval.name.rsplit(" / ").next().unwrap_or_default();
            writeln!(
                out,
                "  {:<28} {:>7} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
                format!("{}{name}", "  ".repeat(interval.depth as usize)),
                interval.count,
                time(of.execution),
                time(of.total),
                time(of.productive),
                time(of.idle),
                time(of.lost_sum),
                percent(of.efficiency),
            )?;
            write_lost(out, interval.depth, of)?;
        }
        Ok(())
    }

    fn write_regions(&self, out: &mut String) -> std::fmt::Result {
        if self.regions.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "\nParallel regions, largest loss first\n  {:<44} {:>7} {:>10} {:>10} {:>10} {:>10}",
            "", "count", "execution", "idle", "lost", "efficiency"
        )?;
        for region in self.regions.iter().take(LINES) {
            let of = &region.characteristics;
            writeln!(
                out,
                "  {:<44} {:>7} {:>10} {:>10} {:>10} {:>10}",
                region.location.text(),
                region.count,
                time(of.execution),
                time(of.idle),
                time(of.lost_sum),
                percent(of.efficiency),
            )?;
        }
        more(out, LINES, self.regions.len(), "regions")
    }

    fn write_points(&self, out: &mut String) -> std::fmt::Result {
        let costly: Vec<&Point> = self.points.iter().filter(|point| point.cost > 0).collect();
        if costly.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "\nPoints of synchronisation, largest cost first\n  {:<14} {:<36} {:>7} {:>9} {:>10} {:>10} {:>10} {:>8}",
            "construct", "", "threads", "count", "mean", "longest", "cost", "of lost"
        )?;
        for point in costly.iter().take(LINES) {
            writeln!(
                out,
                "  {:<14} {:<36} {:>7} {:>9} {:>10} {:>10} {:>10} {:>8}",
                point.kind.name(),
                point.location.text(),
                point.threads.len(),
                point.count,
                time(point.mean),
                time(point.longest),
                time(point.cost),
                percent(point.of_lost),
            )?;
        }
        more(out, LINES, costly.len(), "points")
    }

    fn write_loops(&self, out: &mut String) -> std::fmt::Result {
        if self.loops.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "\nLoops, longest waiting at the end first\n  {:<36} {:<22} {:>9} {:>10} {:>10} {:>10} {:>10}",
            "", "schedule", "count", "work mean", "most", "imbalance", "waiting"
        )?;
        for report in self.loops.iter().take(LINES) {
            let LoopReport { work, .. } = report;
            let Spread { mean, most, .. } = work;
            writeln!(
                out,
                "  {:<36} {:<22} {:>9} {:>10} {:>10} {:>10} {:>10}",
                report.location.text(),
                schedule(report),
                report.executions,
                time(*mean),
                time(*most),
                percent(report.imbalance),
                time(report.synchronised),
            )?;
        }
        more(out, LINES, self.loops.len(), "loops")
    }
}

pub(crate) fn schedule(report: &LoopReport) -> String {
    match report.chunk {
        0 => report.schedule.name().to_owned(),
        chunk => format!("{}, {chunk}", report.schedule.name()),
    }
}

fn write_lost(out: &mut String, depth: u32, of: &Characteristics) -> std::fmt::Result {
    let parts = of.lost.parts().into_iter().filter(|part| part.1 > 0);
    let parts: Vec<String> = parts
        .map(|(name, part)| format!("{name} {}", time(part)))
        .collect();
    if parts.is_empty() {
        return Ok(());
    }
    let indent = "  ".repeat(depth as usize + 2);
    writeln!(out, "{indent}lost: {}", parts.join(", "))
}
