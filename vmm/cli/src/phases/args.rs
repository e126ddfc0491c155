//! The command line of `nodescope phases`.

use std::path::PathBuf;

use clap::ValueEnum;
use nodescope_config::document::Setting;
use nodescope_config::quantity::Time;
use nodescope_phases::Include;

use crate::predict::args::setting;

/// `nodescope phases`.
#[derive(Debug, clap::Args)]
pub struct Phases {
    /// Folder of the results, or a trace.
    pub results: PathBuf,
    /// Print JSON in place of text (plugins/analysis/phases/SCHEMA.md).
    #[arg(long)]
    pub json: bool,
    /// Length of a step, such as "10 ms"; by default the one around which the phases are most stable.
    #[arg(long, value_name = "TIME", value_parser = step)]
    pub step: Option<Time>,
    /// Number of classes; by default the least that leaves at most 5 % of the steps' squares unexplained.
    #[arg(long, value_name = "K", value_parser = classes)]
    pub classes: Option<usize>,
    /// Seed of k-means.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Messages to count beside those of point-to-point calls.
    #[arg(long, value_name = "KIND", value_enum, value_delimiter = ',')]
    pub include: Vec<Kind>,
    /// The MPI job, from 0, where the trace holds several; by default the one with most calls.
    #[arg(long, value_name = "N")]
    pub job: Option<usize>,
    /// A file that describes a cluster (plugins/analysis/predict/CLUSTER.md): places the ranks on its nodes for each phase and for the
    /// whole run, and predicts what that gains. Its [collectives] choose the algorithms of collectives, too.
    #[arg(long, value_name = "FILE")]
    pub cluster: Option<PathBuf>,
    /// Another value of a field of the cluster file, such as `nodes.placement=cyclic`; may be given several times.
    #[arg(long, value_name = "FIELD=VALUE", value_parser = setting, requires = "cluster")]
    pub set: Vec<Setting>,
}

/// Messages beside those of point-to-point calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Of collectives, decomposed into the rounds of their algorithms, and of neighbourhood collectives.
    Collectives,
    /// Of puts, gets and accumulates.
    OneSided,
}

impl Phases {
    /// Returns the kinds of messages that are counted.
    pub fn include(&self) -> Include {
        Include {
            collectives: self.include.contains(&Kind::Collectives),
            one_sided: self.include.contains(&Kind::OneSided),
        }
    }
}

/// A time above zero.
fn step(text: &str) -> Result<Time, String> {
    match text.parse::<Time>() {
        Ok(Time(0)) => Err("a step of no time holds nothing; write e.g. 10ms".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

/// A number of classes.
fn classes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=MOST_CLASSES) => Ok(count),
        _ => Err(format!("is no number from 1 to {MOST_CLASSES}")),
    }
}

/// Most classes that may be asked for.
const MOST_CLASSES: usize = 256;
