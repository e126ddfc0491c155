//! The command line of `nodescope phases`.

use std::path::PathBuf;

use clap::ValueEnum;
use nodescope_config::document::Setting;
use nodescope_config::quantity::{Bytes, Time};
use nodescope_phases::{ChangeCost, Include};

use crate::predict::args::setting;

/// Greatest number of classes that may be asked for.
const MOST_CLASSES: usize = 256;

/// `nodescope phases`.
#[derive(Debug, clap::Args)]
pub struct Phases {
    /// Folder of the results, or a trace.
    pub results: PathBuf,
    /// Print JSON in place of text (guide: Results and formats).
    #[arg(long)]
    pub json: bool,
    /// Print an HTML page in place of text: bars and matrix portraits of the phases, coloured by class.
    #[arg(long, conflicts_with = "json")]
    pub html: bool,
    /// Length of a step, such as "10 ms"; by default the one around which the phases are most stable.
    #[arg(long, value_name = "TIME", value_parser = step)]
    pub step: Option<Time>,
    /// Number of classes of steps (time slices of equal length); by default the least, up to 16, that leaves at most 5 % of the steps' sum
    /// of squares unexplained.
    #[arg(long, value_name = "K", value_parser = classes)]
    pub classes: Option<usize>,
    /// Seed of k-means.
    #[arg(long, value_name = "N", default_value_t = SEED)]
    pub seed: u64,
    /// Kinds of messages to count besides those of point-to-point calls.
    #[arg(long, value_name = "KIND", value_enum, value_delimiter = ',')]
    pub include: Vec<Kind>,
    /// The MPI program, from 0, where the trace has several.
    #[arg(long, visible_alias = "job", value_name = "N")]
    pub program: Option<usize>,
    /// A file that describes a cluster (guide: The cluster file): place the ranks on its nodes for each phase and for the whole run, and
    /// predict the gain. The file's section "collectives" chooses the algorithms of collectives, too.
    #[arg(long, value_name = "FILE")]
    pub cluster: Option<PathBuf>,
    /// Another value of a field of the cluster file, such as `nodes.placement=cyclic`; may be given several times.
    #[arg(long, value_name = "FIELD=VALUE", value_parser = setting, requires = "cluster")]
    pub set: Vec<Setting>,
    /// Place the ranks of each node on so many sockets as well.
    #[arg(long, value_name = "N", requires = "cluster", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub sockets: Option<u32>,
    /// Cost of changing the placement between two phases, as a time ("2 s", by predicted times) or as bytes ("1 GiB", by bytes between
    /// nodes): the output then shows when a change pays.
    #[arg(long, value_name = "TIME|BYTES", requires = "cluster", value_parser = change_cost)]
    pub change_cost: Option<ChangeCost>,
}

/// Seed of k-means if no other is given.
pub const SEED: u64 = 1;

/// Kinds of messages besides those of point-to-point calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Messages of collectives, decomposed into the rounds of their algorithms, and of neighbourhood collectives.
    Collectives,
    /// Messages of puts, gets and accumulates.
    OneSided,
}

impl Phases {
    /// Returns the kinds of messages to count besides those of point-to-point calls.
    pub fn include(&self) -> Include {
        Include {
            collectives: self.include.contains(&Kind::Collectives),
            one_sided: self.include.contains(&Kind::OneSided),
        }
    }
}

/// Reads a time above zero.
fn step(text: &str) -> Result<Time, String> {
    match text.parse::<Time>() {
        Ok(Time(0)) => Err("a step of no time holds nothing; write e.g. 10ms".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads a number of classes, from 1 to `MOST_CLASSES`.
fn classes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=MOST_CLASSES) => Ok(count),
        _ => Err(format!("is no number from 1 to {MOST_CLASSES}")),
    }
}

/// Reads a time or a number of bytes.
fn change_cost(text: &str) -> Result<ChangeCost, String> {
    match (text.parse::<Time>(), text.parse::<Bytes>()) {
        (Ok(time), _) => Ok(ChangeCost::Time(time.0)),
        (_, Ok(bytes)) => Ok(ChangeCost::Bytes(bytes.0)),
        _ => Err("is neither a time nor a number of bytes; write e.g. 2s or 1GiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        phases: Phases,
    }

    fn parse(options: &[&str]) -> Result<Phases, String> {
        let line = ["phases", "r"].iter().chain(options);
        let parsed = Line::try_parse_from(line).map(|line| line.phases);
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn changes_cost_time_or_bytes() {
        let cost = |text| {
            let options = ["--cluster", "c.toml", "--change-cost", text];
            parse(&options).map(|phases| phases.change_cost)
        };
        assert_eq!(cost("2s"), Ok(Some(ChangeCost::Time(2_000_000_000_000))));
        assert_eq!(cost("1 GiB"), Ok(Some(ChangeCost::Bytes(1 << 30))));
        assert!(
            cost("much")
                .unwrap_err()
                .contains("neither a time nor a number of bytes")
        );
    }

    #[test]
    fn mistakes_are_told() {
        let error = |options: &[&str]| parse(options).err().unwrap_or_default();
        assert!(error(&["--step", "0s"]).contains("a step of no time"));
        assert!(error(&["--classes", "0"]).contains("is no number from 1 to 256"));
        assert!(error(&["--sockets", "2"]).contains("--cluster"));
        assert!(error(&["--json", "--html"]).contains("cannot be used with"));
        let include = parse(&["--include", "collectives,one-sided"])
            .unwrap()
            .include();
        assert!(include.collectives && include.one_sided);
    }
}
