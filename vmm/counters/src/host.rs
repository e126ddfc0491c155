//! Counts a command on this host with the events of its processor.

use std::ffi::OsString;

use crate::command::count_command;
use crate::error::CountersError;
use crate::follow::follow;
use crate::measurement::Measurement;
use crate::open::{CountTarget, counts, open};
use crate::tables::{Code, Cpu, Event, Table};

/// Grouping of a command's processes in the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Ranks that the command starts on this machine are counted separately. If there are none, all processes are counted as one program.
    Ranks,
    /// The command and all processes that it starts are counted as one program.
    Whole,
}

/// Runs a command and counts it. Returns the counts and the exit status, which is 128 plus the signal's number if a signal ended the
/// command.
///
/// # Errors
///
/// A host without counters, a system that forbids counting or following processes, a processor whose events are in no table, or a command
/// that cannot be started.
pub fn count(
    command: &[OsString],
    grouping: Grouping,
) -> Result<(Measurement, i32), CountersError> {
    let cpu = Cpu::host();
    let table = table(&cpu)?;
    let mut measurement = Measurement {
        tool: "nodescope counters".into(),
        processor: Some(cpu.name).filter(|name| !name.is_empty()),
        notes: (table.limits.iter().copied())
            .chain(["the counts include what ranks do in MPI"])
            .map(str::to_owned)
            .collect(),
        ..Measurement::default()
    };
    let status = match grouping {
        Grouping::Whole => {
            let counted = count_command(table.groups, command)?;
            measurement.whole = counts(table.groups, &counted.sums);
            counted.status
        }
        Grouping::Ranks => {
            let followed = follow(table.groups, command)?;
            for (rank, sums) in &followed.ranks {
                let counts = counts(table.groups, sums);
                measurement.ranks.insert(*rank, counts);
            }
            if measurement.ranks.is_empty() {
                measurement.whole = counts(table.groups, &followed.others);
            } else {
                measurement.sum_ranks();
            }
            if !measurement
                .ranks
                .keys()
                .copied()
                .eq(0..measurement.ranks.len() as u32)
            {
                measurement.notes.push(
                    "only ranks of this machine were counted; to count all, put nodescope counters --each behind the launcher".into(),
                );
            }
            followed.status
        }
    };
    Ok((measurement, status))
}

/// Returns the table of a processor's events. First checks that the host has counters at all, since the error for that comes before one for
/// an unknown processor.
pub(crate) fn table(cpu: &Cpu) -> Result<&'static Table, CountersError> {
    const CYCLES: &[&[Event]] = &[&[Event {
        name: "cycles",
        code: Code::Cycles,
        quantity: None,
        scale: 1,
    }]];
    open(CYCLES, CountTarget::Task(0))?;
    Table::of(cpu).ok_or_else(|| CountersError::Processor {
        processor: format!(
            "{}, family {}, model {}: {}",
            cpu.vendor, cpu.family, cpu.model, cpu.name
        ),
    })
}
