//! Counts one command and all that it starts: behind a launcher, one rank.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::error::CountersError;
use crate::open::{CountTarget, Sum, open};
use crate::tables::Event;

/// Counts of a command.
#[derive(Clone, Debug)]
pub struct CommandCounts {
    /// Sum of the counts of each event, in the order of all groups.
    pub sums: Vec<Sum>,
    /// The command's exit status, 128 and more for a signal.
    pub status: i32,
}

/// Runs a command and counts it. The kernel hands the counters down, so that nothing follows the command's processes.
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
