//! `nodescope counters`.

use std::path::{Path, PathBuf};

use nodescope_counters::{CountersError, Grouping, Measurement, count, follow, import};
use nodescope_hypercall::printable_json;

use crate::args;
use crate::exit::{Exit, Failure};
use crate::interrupt::outlive_signals;
use crate::results::{refuse_existing, write};
use crate::terminal::print;

/// Counts a command's hardware events and prints them, or prints the counters in files of other tools.
pub fn counters(args: &args::Counters) -> Result<Exit, Failure> {
    let file = file(args)?;
    if !args.read.is_empty() {
        let measurement = import(&args.read).map_err(fail)?;
        print_result(&measurement, file.as_deref(), true)?;
        return Ok(Exit::Ok);
    }
    // Ctrl-C also reaches the command. This process must survive the signal to report what was counted.
    outlive_signals()?;
    let grouping = if args.each {
        Grouping::Whole
    } else {
        Grouping::Ranks
    };
    let (measurement, status) = count(&args.command, grouping).map_err(fail)?;
    // With `--each` every rank runs this code, and the tables of all ranks would drown the program's output.
    print_result(&measurement, file.as_deref(), !args.each)?;
    if status == 0 {
        return Ok(Exit::Ok);
    }
    tracing::warn!(
        "the command ended with status {status}; the counts are of what it did until then"
    );
    Ok(Exit::JobFailed)
}

/// Returns the path of the JSON file to write; `None` without `--json`. Fails if there is a file already and `--force` is not given, so
/// that the failure comes before the command runs.
fn file(args: &args::Counters) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = &args.json else {
        return Ok(None);
    };
    let path = if args.each {
        let rank = follow::own_rank().ok_or_else(|| {
            Failure::new(
                Exit::Study,
                "--each counts a rank, but no launcher started this process as one; put it behind the launcher: mpirun -n 4 nodescope counters --each --json DIR -- ./program",
            )
        })?;
        std::fs::create_dir_all(path).map_err(Failure::io("create", path))?;
        path.join(format!("rank-{rank}.json"))
    } else {
        path.clone()
    };
    refuse_existing(&path, args.force)?;
    Ok(Some(path))
}

fn print_result(measurement: &Measurement, file: Option<&Path>, show: bool) -> Result<(), Failure> {
    if let Some(file) = file {
        write(file, &printable_json(&measurement.json().map_err(fail)?))?;
    }
    if show {
        print(&measurement.text().map_err(fail)?)?;
        if let Some(file) = file {
            print(&format!("{}\n", file.display()))?;
        }
    }
    Ok(())
}

fn fail(error: CountersError) -> Failure {
    let exit = match error {
        CountersError::Refused { .. } | CountersError::Files { .. } | CountersError::Nothing(_) => {
            Exit::Study
        }
        CountersError::Io { ref source, .. } => Exit::of_read(source),
        _ => Exit::Host,
    };
    Failure::of(exit, &error)
}
