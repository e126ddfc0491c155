//! The command line of `nodescope what-if`, and the changes of code that other commands take as well.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use nodescope_plugin_api::Cause;
use nodescope_profile::{CodeChange, CodePlace};

/// `nodescope what-if`.
#[derive(Debug, clap::Args)]
pub struct WhatIf {
    /// Folder of the results, or the file of the trace.
    pub results: PathBuf,
    /// The MPI program, by its number in the report, in a trace of several.
    #[arg(long, value_name = "N")]
    pub program: Option<usize>,
    /// The window whose profile says which functions ran; by default the one with most samples.
    #[arg(long, value_name = "NAME")]
    pub window: Option<String>,
    #[command(flatten)]
    pub code: CodeChanges,
    /// Predict on the cluster that this file describes (guide: The cluster file), in place of the cluster of the traced run.
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    pub cluster: Option<PathBuf>,
    /// Leave a call out: its place as reports print it, such as heat.c:50 or solve, or the MPI function.
    #[arg(long, value_name = "PLACE=free", value_parser = left_out)]
    pub call_site: Vec<String>,
    /// Another speed of the messages that calls send, such as heat.c:50=2x or MPI_Allreduce=free: latency, time per byte and overheads. The
    /// calls still wait for one another.
    #[arg(long, value_name = "PLACE=SPEED")]
    pub messages: Vec<MessageSpeed>,
    /// Another speed of the computations of a node's ranks, such as 1=0.5x.
    #[arg(long, value_name = "NODE=SPEED")]
    pub node: Vec<NodeSpeed>,
    /// Another speed of a rank's computations, such as 3=2x.
    #[arg(long, value_name = "RANK=SPEED")]
    pub rank: Vec<RankSpeed>,
    /// All ranks compute equally long between the same two calls.
    #[arg(long, value_name = "even")]
    pub imbalance: Option<Even>,
    /// Messages take no time.
    #[arg(long, value_name = "ideal")]
    pub network: Option<Ideal>,
    /// Also run this study, that of the results, with the costs that the window measured: without the changes of code, and with them. Without
    /// changes, with each of the three functions that gain most at twice its speed.
    #[arg(long, value_name = "STUDY")]
    pub run: Option<PathBuf>,
    /// Print JSON in place of text.
    #[arg(long)]
    pub json: bool,
}

/// Changes of what code costs.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CodeChanges {
    /// Another speed of a function's own code, such as solve=2x or solve=free.
    #[arg(long, value_name = "NAME=SPEED")]
    pub function: Vec<FunctionSpeed>,
    /// Another speed of a source line, such as heat.c:50=2x.
    #[arg(long, value_name = "FILE:LINE=SPEED")]
    pub line: Vec<LineSpeed>,
    /// Leave out what code waits for, at a line, in a function or everywhere: L2, L3, memory, remote (memory of other sockets), tlb,
    /// branches, such as memory=off@heat.c:50.
    #[arg(long, value_name = "TERM=off[@PLACE]")]
    pub term: Vec<TermOff>,
}

impl CodeChanges {
    /// Returns the options that give these changes.
    pub fn options(&self) -> Vec<OsString> {
        let functions = self.function.iter().map(|of| ["--function", &of.0.0]);
        let lines = self.line.iter().map(|of| ["--line", &of.0.0]);
        let terms = self.term.iter().map(|of| ["--term", &of.0.0]);
        let all = functions.chain(lines).chain(terms).flatten();
        all.map(OsString::from).collect()
    }

    /// Returns each change with its text.
    pub fn all(&self) -> Vec<(String, CodeChange)> {
        let functions = self.function.iter().map(|of| of.0.clone());
        let lines = self.line.iter().map(|of| of.0.clone());
        let terms = self.term.iter().map(|of| of.0.clone());
        functions.chain(lines).chain(terms).collect()
    }
}

/// A speed: the part of the time that is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kept(f64);

/// Largest and smallest change of a speed.
const MOST_SPEED: f64 = 1e6;

impl FromStr for Kept {
    type Err = String;

    fn from_str(text: &str) -> Result<Kept, String> {
        if text == "free" {
            return Ok(Kept(0.0));
        }
        let number = text.strip_suffix('x').map(str::trim_end);
        let number = number.and_then(|number| number.parse::<f64>().ok());
        let possible = 1.0 / MOST_SPEED..=MOST_SPEED;
        match number.filter(|number| possible.contains(number)) {
            Some(speed) => Ok(Kept(1.0 / speed)),
            None => Err(format!(
                "\"{text}\" is no speed; give a number with x, such as 2x or 0.5x, or free"
            )),
        }
    }
}

/// Splits `PLACE=VALUE` at the last equals sign.
fn pair(text: &str) -> Result<(&str, &str), String> {
    let pair = text.rsplit_once('=').filter(|pair| !pair.0.is_empty());
    pair.ok_or_else(|| format!("\"{text}\" has no value; give PLACE=VALUE"))
}

fn line(text: &str) -> Option<CodePlace> {
    let (file, number) = text.rsplit_once(':')?;
    let number = number.parse().ok()?;
    (!file.is_empty()).then(|| CodePlace::Line(file.to_owned(), number))
}

/// `--function`.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionSpeed((String, CodeChange));

/// `--line`.
#[derive(Clone, Debug, PartialEq)]
pub struct LineSpeed((String, CodeChange));

/// `--term`.
#[derive(Clone, Debug, PartialEq)]
pub struct TermOff((String, CodeChange));

fn change(text: &str, place: Option<CodePlace>, kept: Kept) -> (String, CodeChange) {
    let change = CodeChange {
        place,
        causes: Vec::new(),
        kept: kept.0,
    };
    (text.to_owned(), change)
}

impl FromStr for FunctionSpeed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, speed) = pair(text)?;
        let place = CodePlace::Function(name.to_owned());
        Ok(Self(change(text, Some(place), speed.parse()?)))
    }
}

impl FromStr for LineSpeed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, speed) = pair(text)?;
        let place = line(place).ok_or_else(|| format!("\"{place}\" is no line; give FILE:LINE"))?;
        Ok(Self(change(text, Some(place), speed.parse()?)))
    }
}

impl FromStr for TermOff {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, place) = match text.split_once('@') {
            Some((first, place)) => (first, Some(place)),
            None => (text, None),
        };
        let (term, value) = pair(first)?;
        if value != "off" {
            return Err(format!("\"{value}\": a term can only be off"));
        }
        let causes = match term {
            "L2" => vec![Cause::Level2],
            "L3" => vec![Cause::Level3, Cause::OtherCache],
            "memory" => vec![Cause::LocalMemory, Cause::RemoteMemory, Cause::Bandwidth],
            "remote" => vec![Cause::RemoteMemory],
            "tlb" => vec![Cause::Translation],
            "branches" => vec![Cause::Speculation],
            _ => {
                return Err(format!(
                    "there is no term \"{term}\"; the terms are L2, L3, memory, remote, tlb, branches"
                ));
            }
        };
        let place =
            place.map(|place| line(place).unwrap_or_else(|| CodePlace::Function(place.to_owned())));
        let (text, change) = change(text, place, Kept(0.0));
        Ok(Self((text, CodeChange { causes, ..change })))
    }
}

fn left_out(text: &str) -> Result<String, String> {
    match pair(text)? {
        (place, "free") => Ok(place.to_owned()),
        (_, value) => Err(format!("\"{value}\": a call can only be free")),
    }
}

/// `--rank`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankSpeed {
    /// The rank.
    pub rank: usize,
    /// Part of its computing time that is kept.
    pub kept: f64,
}

impl FromStr for RankSpeed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rank, speed) = pair(text)?;
        let rank = rank
            .parse()
            .map_err(|_| format!("\"{rank}\" is no number of a rank"))?;
        let kept = speed.parse::<Kept>()?.0;
        Ok(Self { rank, kept })
    }
}

/// `--node`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeSpeed {
    /// The node.
    pub node: u32,
    /// Part of its ranks' computing time that is kept.
    pub kept: f64,
}

impl FromStr for NodeSpeed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, speed) = pair(text)?;
        let node = node
            .parse()
            .map_err(|_| format!("\"{node}\" is no number of a node"))?;
        let kept = speed.parse::<Kept>()?.0;
        Ok(Self { node, kept })
    }
}

/// `--messages`.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageSpeed {
    /// Place of the calls.
    pub place: String,
    /// Part of the messages' time that is kept.
    pub kept: f64,
}

impl FromStr for MessageSpeed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, speed) = pair(text)?;
        let kept = speed.parse::<Kept>()?.0;
        let place = place.to_owned();
        Ok(Self { place, kept })
    }
}

/// `--imbalance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Even {
    /// All ranks compute equally long.
    Even,
}

/// `--network`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Ideal {
    /// Messages take no time.
    Ideal,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_parts_of_the_time() {
        let kept = |text: &str| text.parse::<FunctionSpeed>().map(|of| of.0.1.kept);
        assert_eq!(kept("solve=2x"), Ok(0.5));
        assert_eq!(kept("operator==0.5x"), Ok(2.0));
        assert_eq!(kept("solve=free"), Ok(0.0));
        for wrong in [
            "solve",
            "solve=",
            "=2x",
            "solve=2",
            "solve=0x",
            "solve=-1x",
            "solve=nanx",
        ] {
            assert!(kept(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn nodes_and_messages_have_speeds() {
        let node = "3=0.5x".parse();
        assert_eq!(node, Ok(NodeSpeed { node: 3, kept: 2.0 }));
        assert!("x=2x".parse::<NodeSpeed>().is_err());
        let of = "heat.c:50=free".parse::<MessageSpeed>().unwrap();
        assert_eq!((of.place.as_str(), of.kept), ("heat.c:50", 0.0));
        assert!("heat.c:50=2".parse::<MessageSpeed>().is_err());
    }

    #[test]
    fn terms_are_off_at_lines_in_functions_or_everywhere() {
        let term = |text: &str| {
            text.parse::<TermOff>()
                .map(|of| (of.0.1.place, of.0.1.causes))
        };
        let line = CodePlace::Line("a/heat.c".into(), 50);
        assert_eq!(
            term("L2=off@a/heat.c:50"),
            Ok((Some(line), vec![Cause::Level2]))
        );
        let function = CodePlace::Function("ns::solve".into());
        assert_eq!(
            term("tlb=off@ns::solve"),
            Ok((Some(function), vec![Cause::Translation]))
        );
        assert_eq!(term("remote=off"), Ok((None, vec![Cause::RemoteMemory])));
        assert!(term("L4=off").is_err() && term("L2=2x").is_err());
    }
}
