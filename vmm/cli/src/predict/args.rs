//! The command line of `nodescope predict`.

use std::path::PathBuf;
use std::str::FromStr;

use nodescope_config::document::Setting;
use nodescope_config::quantity::{ByteRate, Time};
use nodescope_hypercall::Function;
use nodescope_predict::Sweep;
use nodescope_predict::reduce::Selection;

/// `nodescope predict`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("several").args(["sweep", "ranks"]).multiple(false)))]
#[command(group(clap::ArgGroup::new("written").args(["timeline", "plot"]).multiple(true)))]
pub struct Predict {
    /// Folder of the results, or a trace; with --ranks, results of at least three numbers of ranks.
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    /// The file that describes the cluster (guide: The cluster file), or a study.
    #[arg(long, value_name = "FILE")]
    pub cluster: PathBuf,
    /// With a study as the cluster: the cluster file with what messages cost (nodescope calibrate run).
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// Print JSON in place of text (guide: The prediction as JSON).
    #[arg(long)]
    pub json: bool,
    /// Print an HTML page in place of text: a bar for each rank, and the activity of each over time.
    #[arg(long, conflicts_with_all = ["json", "sweep"])]
    pub html: bool,
    /// Write the predicted run as a trace, which `nodescope export` converts for other tools; JSON then has the activity of each rank over
    /// time.
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    pub timeline: Option<PathBuf>,
    /// A network of zero latency and infinite bandwidth in place of the cluster's.
    #[arg(long)]
    pub ideal_network: bool,
    /// Another value of a field of the cluster file, such as `nodes.speed=2` or `topology.size=[4,4]`; may be given several times.
    #[arg(long, value_name = "FIELD=VALUE", value_parser = setting)]
    pub set: Vec<Setting>,
    /// Another latency, such as "2 us": network.latency.
    #[arg(long, value_name = "TIME")]
    pub latency: Option<Time>,
    /// Another bandwidth, such as "10 GB/s": network.bandwidth.
    #[arg(long, value_name = "RATE")]
    pub bandwidth: Option<ByteRate>,
    /// Another placement: traced, block, cyclic, or the node of each rank, such as 0,0,1,1: nodes.placement.
    #[arg(long, value_name = "PLACEMENT")]
    pub placement: Option<PlacementOption>,
    /// Another number of ranks on each node: nodes.ranks_per_node.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub ranks_per_node: Option<u32>,
    /// Predictions for several values of a field of the cluster file: network.latency=1us,2us,5us, 1us:10us:5 (5 values from 1 us to
    /// 10 us), 1us:100us:log10 (10 values, logarithmic), nodes.placement=block,cyclic. Given twice: for all pairs of the values.
    #[arg(long, value_name = "FIELD=VALUES")]
    pub sweep: Vec<Sweep>,
    /// Predict for other numbers of ranks than were traced, such as 64,1024; needs results of at least three numbers of ranks.
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with_all = ["sweep", "timeline", "html"],
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub ranks: Vec<u32>,
    /// With --ranks: the least efficiency with which adding ranks pays.
    #[arg(long, value_name = "PART", requires = "ranks", default_value_t = 0.5, value_parser = part)]
    pub efficiency: f64,
    /// Print a sweep, or predictions for numbers of ranks, as comma-separated values in place of text.
    #[arg(long, requires = "several", conflicts_with = "json")]
    pub csv: bool,
    /// Draw a sweep, or predictions for numbers of ranks, as an SVG image: the time and its parts, by value.
    #[arg(long, value_name = "FILE", requires = "several")]
    pub plot: Option<PathBuf>,
    /// Replace files that are already there.
    #[arg(long, requires = "written")]
    pub force: bool,
    /// Interpret a fragment once and replace it by what it costs: a call site (program+0x1234), a loop (loop:2, as --outline numbers
    /// loops), or an interval of the predicted run (10ms..20ms). Refused where the result would not be exact.
    #[arg(long, value_name = "FRAGMENT", conflicts_with_all = ["sweep", "ranks", "from"])]
    pub reduce: Option<Selection>,
    /// Print the program of a rank, with numbered loops, in place of a prediction.
    #[arg(long, value_name = "RANK", num_args = 0..=1, default_missing_value = "0", conflicts_with_all = ["sweep", "ranks", "reduce", "json", "html"])]
    pub outline: Option<u32>,
    /// The MPI program, from 0, where the trace has several. With --ranks, several such as 3,5,7.
    #[arg(long, visible_alias = "job", value_name = "N", value_delimiter = ',')]
    pub program: Vec<usize>,
    /// Clock of bursts where the trace has measurement windows, in which clocks also count modelled stalls [default: windows]
    #[arg(long, value_enum)]
    pub clock: Option<Clock>,
    /// Report the time of a section, too: from the return of a call of each rank, such as MPI_Barrier:2 for its second barrier (with
    /// --ranks, predict the section alone) ...
    #[arg(long, value_name = "CALL", requires = "to", value_parser = call)]
    pub from: Option<(Function, u64)>,
    /// ... to the return of this call.
    #[arg(long, value_name = "CALL", requires = "from", value_parser = call)]
    pub to: Option<(Function, u64)>,
    /// Tell, too, how the time depends on latency, bandwidth, overheads and each rank's speed, and which latency the program tolerates.
    #[arg(long, conflicts_with_all = ["sweep", "ranks", "reduce", "outline"])]
    pub sensitivity: bool,
    /// Tell, too, which computations and calls cause the waiting: delay costs, as Scalasca defines them.
    #[arg(long, conflicts_with_all = ["sweep", "ranks", "reduce", "outline"])]
    pub delays: bool,
    /// Number of further interpretations with bursts drawn at random (replicas), from which the interval of the time follows.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(0..=10000))]
    pub replicas: u32,
    /// Seed of the replicas' random draws.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Start the ranks of each replica up to so much apart, such as 1ms, each at a time drawn at random: whether ranks fall in step at the
    /// start may decide how long they take throughout.
    #[arg(long, value_name = "TIME")]
    pub stagger: Option<Time>,
}

/// Reads a field of the cluster file with a value, `FIELD=VALUE`.
pub fn setting(text: &str) -> Result<Setting, String> {
    match text.split_once('=') {
        Some((field, value)) if !field.trim().is_empty() => Ok(Setting::new(field, value)),
        _ => Err("is no FIELD=VALUE; write e.g. network.latency=2us".to_owned()),
    }
}

/// Reads a share, more than 0 and at most 1.
fn part(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(part) if part > 0.0 && part <= 1.0 => Ok(part),
        _ => Err("is no part from 0 to 1; write e.g. 0.5".to_owned()),
    }
}

/// Reads a function and the number of one of its calls, from 1, such as `MPI_Barrier:2`; the first call without a number.
pub fn call(text: &str) -> Result<(Function, u64), String> {
    let (name, number) = text.split_once(':').unwrap_or((text, "1"));
    let function = (Function::ALL.iter())
        .find(|function| function.name() == name)
        .copied()
        .ok_or_else(|| format!("{name} is no MPI function that is traced"))?;
    match number.parse() {
        Ok(number) if number > 0 => Ok((function, number)),
        _ => Err(format!(
            "{number:?} is no number of a call; write e.g. {name}:2 for its second call"
        )),
    }
}

/// Placement of ranks, in the notation of the cluster file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementOption(String);

impl FromStr for PlacementOption {
    type Err = String;

    fn from_str(text: &str) -> Result<PlacementOption, String> {
        if matches!(text, "traced" | "block" | "cyclic") {
            return Ok(PlacementOption(text.to_owned()));
        }
        let nodes: Option<Vec<u32>> = (text.split(','))
            .map(|node| node.trim().parse().ok())
            .collect();
        match nodes {
            Some(nodes) => Ok(PlacementOption(format!("{nodes:?}"))),
            None => Err(
                "is neither traced, block, cyclic, nor the node of each rank, such as 0,0,1,1"
                    .into(),
            ),
        }
    }
}

impl Predict {
    /// Returns the settings of the cluster file that the options make, in the order in which they take effect.
    pub fn settings(&self) -> Vec<Setting> {
        let named = [
            ("network.latency", self.latency.map(|time| time.to_string())),
            (
                "network.bandwidth",
                self.bandwidth.map(|rate| rate.to_string()),
            ),
            (
                "nodes.placement",
                self.placement.clone().map(|placing| placing.0),
            ),
            (
                "nodes.ranks_per_node",
                self.ranks_per_node.map(|n| n.to_string()),
            ),
        ];
        let named = named.into_iter();
        let named = named.filter_map(|(field, value)| Some(Setting::new(field, &value?)));
        named.chain(self.set.iter().cloned()).collect()
    }
}

/// Clock of bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Clock {
    /// Bursts outside windows last as long as those between the same call sites in windows
    Windows,
    /// Each burst lasts as long as when it was traced
    Traced,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        predict: Predict,
    }

    fn parse(options: &[&str]) -> Result<Predict, String> {
        let line = ["predict", "r", "--cluster", "c.toml"]
            .iter()
            .chain(options);
        let parsed = Line::try_parse_from(line).map(|line| line.predict);
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn options_become_settings_of_the_file() {
        let options = [
            "--latency",
            "2.5us",
            "--placement",
            "0,0, 1",
            "--set",
            "nodes.speed=2",
        ];
        let settings = parse(&options).unwrap().settings();
        let given: Vec<_> = settings.iter().map(|s| (s.field(), s.value())).collect();
        assert_eq!(
            given,
            [
                ("network.latency", "\"2.5 us\""),
                ("nodes.placement", "[0, 0, 1]"),
                ("nodes.speed", "2")
            ]
        );
    }

    #[test]
    fn mistakes_are_told() {
        let error = |options: &[&str]| parse(options).err().unwrap_or_default();
        assert!(error(&["--placement", "0,x"]).contains("neither traced, block, cyclic"));
        assert!(error(&["--set", "nodes.speed"]).contains("is no FIELD=VALUE"));
        assert!(error(&["--sweep", "network.latency=5us:1us:3"]).contains("does not ascend"));
        assert!(error(&["--plot", "x.svg"]).contains("--sweep"));
        assert!(error(&["--ranks", "8", "--efficiency", "2"]).contains("no part from 0 to 1"));
        assert!(error(&["--ranks", "8,0"]).contains("0 is not in"));
        assert!(error(&["--ranks", "8", "--sweep", "a=1"]).contains("cannot be used with"));
        assert!(parse(&["--ranks", "8,64", "--plot", "x.svg"]).is_ok());
    }
}
