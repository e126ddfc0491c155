//! Counts one command and all processes that it starts. Behind a launcher, that is one rank.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::error::CountersError;
use crate::open::{CountTarget, Sum, open};
use crate::tables::Event;

/// Counts of a command.
#[derive(Clone, Debug)]
pub struct CommandCounts {
    /// Sum of the counts of each event, in the order of the events in all groups.
    pub sums: Vec<Sum>,
    /// Exit status of the command; 128 plus the signal's number if a signal ended it.
    pub status: i32,
}

/// Runs a command and counts it. The command's processes inherit the counters from this one, so they need not be followed.
///
/// # Errors
///
/// Counters that cannot be opened, or a command that cannot be started.
pub fn count_command(
    groups: &[&[Event]],
    command: &[OsString],
) -> Result<CommandCounts, CountersError> {
    let mut counters = open(groups, CountTarget::Children)?;
    let status = Command::new(&command[0])
        .args(&command[1..])
        .status()
        .map_err(|cause| cannot_start(command, cause))?;
    let mut sums = vec![Sum::default(); groups.iter().map(|group| group.len()).sum()];
    counters.read(&mut sums)?;
    Ok(CommandCounts {
        sums,
        status: status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()),
    })
}

pub(crate) fn cannot_start(command: &[OsString], cause: std::io::Error) -> CountersError {
    CountersError::Start {
        command: command[0].to_string_lossy().into_owned(),
        cause,
    }
}
