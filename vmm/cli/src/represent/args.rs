//! The command line of `nodescope represent`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Subcommand;
use nodescope_config::document::Setting;
use nodescope_hypercall::Function;

use crate::args::MpiName;
use crate::predict::args::{call, setting};

/// `nodescope represent`.
#[derive(Debug, clap::Args)]
pub struct Represent {
    /// The step.
    #[command(subcommand)]
    pub step: Step,
}

/// Steps of a prediction from representative ranks, in their order.
#[derive(Debug, Subcommand)]
pub enum Step {
    /// Find the ranks of a trace that represent all others.
    Groups(Groups),
    /// Run an MPI program on this machine, trace it, and record what ranks receive.
    Record(Record),
    /// Run one rank of a recorded program alone on this machine, fed from its recording, and trace it.
    Replay(Replay),
    /// Predict the whole program from replays of the representatives.
    Predict(Predict),
}

/// Default of `--threshold`, which reports use, too.
pub const THRESHOLD: f64 = 0.05;

/// Options by which representative ranks are chosen.
#[derive(Debug, clap::Args)]
pub struct Choice {
    /// Folder of the results, or a trace, of all ranks of the program.
    pub results: PathBuf,
    /// Threshold at which the trees of merges are cut: the distance between centroids of computation vectors, as a part of the vectors'
    /// length. Ranks that are nearer to each other share a representative.
    #[arg(long, value_name = "PART", default_value = "5%", value_parser = threshold)]
    pub threshold: f64,
    /// The MPI program, from 0, where the trace has several.
    #[arg(long, visible_alias = "job", value_name = "N")]
    pub program: Option<usize>,
    /// Print JSON in place of text (guide: Results and formats).
    #[arg(long, conflicts_with = "html")]
    pub json: bool,
}

/// `nodescope represent groups`.
#[derive(Debug, clap::Args)]
pub struct Groups {
    /// Choice of the representatives.
    #[command(flatten)]
    pub choice: Choice,
    /// Print an HTML page in place of text: dendrograms with the cut.
    #[arg(long)]
    pub html: bool,
}

/// `nodescope represent record`.
#[derive(Debug, clap::Args)]
pub struct Record {
    /// Folder of the results: trace.nst, and recording/ with a file for each recorded rank. For a program on several machines: a folder
    /// that all of them share.
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Ranks to record, such as 0,5; by default all.
    #[arg(long, value_name = "RANKS", value_delimiter = ',')]
    pub ranks: Vec<u32>,
    /// MPI library of the program; by default nodescope asks the launcher for its version.
    #[arg(long, value_enum)]
    pub mpi: Option<MpiName>,
    /// Replace a trace and recordings that are already there.
    #[arg(long)]
    pub force: bool,
    /// The command, after "--": a launcher with its program, such as mpirun -np 16 ./program.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `nodescope represent replay`.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// The rank's recording, such as recording/rank-5.
    pub recording: PathBuf,
    /// Folder of the results; the trace in it is trace.nst.
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Replace a trace that is already there.
    #[arg(long)]
    pub force: bool,
    /// The command, after "--": the program without a launcher, with the arguments of the recorded run.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `nodescope represent predict`.
#[derive(Debug, clap::Args)]
pub struct Predict {
    /// Trace of the program, and the choice of its representatives.
    #[command(flatten)]
    pub choice: Choice,
    /// Folder of the results, or the trace, of a representative's replay on the target; one for each representative.
    #[arg(long, value_name = "DIR", required = true, num_args = 1..)]
    pub replay: Vec<PathBuf>,
    /// Folder of the results, or the trace, of the same ranks' replays on the machine where the program was traced. The prediction then
    /// adds what the trace has beyond them: above all the kernel's work on messages, which replays lack.
    #[arg(long, value_name = "DIR", num_args = 1..)]
    pub source_replay: Vec<PathBuf>,
    /// The file that describes the target (guide: The cluster file); the speed of its nodes is not applied to replayed computation.
    #[arg(long, value_name = "FILE")]
    pub cluster: PathBuf,
    /// Another value of a field of the cluster file, such as `network.latency=2us`; may be given several times.
    #[arg(long, value_name = "FIELD=VALUE", value_parser = setting)]
    pub set: Vec<Setting>,
    /// Report the time of a section, too: from the return of a call of each rank, such as MPI_Barrier:2 for its second barrier ...
    #[arg(long, value_name = "CALL", requires = "to", value_parser = call)]
    pub from: Option<(Function, u64)>,
    /// ... to the return of this call.
    #[arg(long, value_name = "CALL", requires = "from", value_parser = call)]
    pub to: Option<(Function, u64)>,
    /// Print an HTML page in place of text: a bar for each rank, and the activity of each over time.
    #[arg(long)]
    pub html: bool,
}

/// Reads a part, as a number or as per cent.
fn threshold(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number.trim_end(), 100.0),
        None => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(number / unit),
        _ => Err("is no part; write e.g. 5% or 0.05".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::threshold;

    #[test]
    fn thresholds_are_parts_or_per_cent() {
        assert_eq!(threshold("5%"), Ok(0.05));
        assert_eq!(threshold("2 %"), Ok(0.02));
        assert_eq!(threshold("0.5"), Ok(0.5));
        assert_eq!(threshold("0"), Ok(0.0));
        for wrong in ["-1", "five", "", "%", "inf", "NaN"] {
            assert!(threshold(wrong).is_err(), "{wrong}");
        }
    }
}
