//! The program `llvm-mca`: search for the installed program, runs of it, and their output.

use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::Deserialize;

use crate::error::CoreError;

/// An installed `llvm-mca`.
#[derive(Clone, Debug)]
pub struct Tool {
    path: PathBuf,
    version: String,
    cores: Vec<String>,
}

impl Tool {
    /// Finds the newest `llvm-mca` of the folders in `PATH`.
    ///
    /// # Errors
    ///
    /// If no `llvm-mca` is found, or none of those found runs, reports its version and supports x86-64.
    pub fn installed() -> Result<Self, CoreError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self::within(&std::env::split_paths(&path).collect::<Vec<_>>())
    }

    /// Finds the newest `llvm-mca` in some folders. The file name is `llvm-mca`, or `llvm-mca-` and a number.
    ///
    /// # Errors
    ///
    /// If no `llvm-mca` is found, or none of those found runs, reports its version and supports x86-64.
    pub fn within(folders: &[PathBuf]) -> Result<Self, CoreError> {
        let mut newest: Option<(Vec<u32>, Self)> = None;
        let mut problem = None;
        for path in programs(folders) {
            match Self::at(&path) {
                Ok(tool) => {
                    let version = numbers(&tool.version);
                    // Of equal versions the first one wins: folders are in the user's order.
                    if newest.as_ref().is_none_or(|(best, _)| version > *best) {
                        newest = Some((version, tool));
                    }
                }
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        match (newest, problem) {
            (Some((_, tool)), _) => Ok(tool),
            (None, Some(problem)) => Err(problem),
            (None, None) => Err(CoreError::Missing),
        }
    }

    /// Asks the program at a path for its version and cores.
    fn at(path: &Path) -> Result<Self, CoreError> {
        let version = text(&start(path, &["--version"], None)?.stdout);
        let version = version
            .split("LLVM version ")
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next())
            .filter(|word| word.starts_with(|c: char| c.is_ascii_digit()))
            .ok_or_else(|| answer(path, "no version"))?
            .to_owned();
        let help = start(path, &[TRIPLE, "-mcpu=help"], Some(""))?;
        // LLVM prints the list of cores to standard output or to standard error, depending on its version.
        let help = text(&help.stderr) + &text(&help.stdout);
        let cores: Vec<String> = help
            .lines()
            .skip_while(|line| !line.starts_with("Available CPUs"))
            .skip(1)
            .take_while(|line| !line.starts_with("Available features"))
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect();
        if cores.is_empty() {
            return Err(answer(path, "no cores of x86-64"));
        }
        Ok(Self {
            path: path.into(),
            version,
            cores,
        })
    }

    /// Returns the path of the program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version, such as "22.1.8".
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the names of all cores for which LLVM compiles; LLVM has no timing for some of them.
    pub fn cores(&self) -> &[String] {
        &self.cores
    }

    /// Returns name and version for messages.
    pub fn name(&self) -> String {
        format!("llvm-mca {}", self.version)
    }

    /// Returns LLVM's name for the core of this host's processor.
    ///
    /// # Errors
    ///
    /// If the tool fails, or LLVM has no timing of this processor.
    pub fn native(&self) -> Result<String, CoreError> {
        let probe = ["nop".to_owned()];
        match self.simulate("native", 1, &[&probe])? {
            Ok(simulated) => Ok(simulated.target.core),
            Err(_) => Err(CoreError::NoSchedule {
                name: "native".into(),
                tool: self.name(),
            }),
        }
    }

    /// Simulates regions of assembly text, each for `iterations` iterations. The inner error: LLVM refuses some of the text.
    pub(crate) fn simulate(
        &self,
        core: &str,
        iterations: u32,
        regions: &[&[String]],
    ) -> Result<Result<Simulated, Complaint>, CoreError> {
        let mut input = String::new();
        // Region and line within the region, for each line of the input. None: a marker line.
        let mut origins = Vec::new();
        for (number, lines) in regions.iter().enumerate() {
            input.push_str(&format!("# LLVM-MCA-BEGIN r{number}\n"));
            origins.push(None);
            for (place, line) in lines.iter().enumerate() {
                input.push_str(line);
                input.push('\n');
                origins.push(Some((number, place)));
            }
            input.push_str(&format!("# LLVM-MCA-END r{number}\n"));
            origins.push(None);
        }
        let cpu = format!("-mcpu={core}");
        let count = format!("-iterations={iterations}");
        let arguments = [TRIPLE, &cpu, &count, "-json", "-resource-pressure=false"];
        let output = start(&self.path, &arguments, Some(&input))?;
        if !output.status.success() {
            return Ok(Err(complaint(&text(&output.stderr), &origins)));
        }
        let simulated: Simulated = serde_json::from_slice(&output.stdout)
            .map_err(|error| answer(&self.path, &format!("no JSON: {error}")))?;
        let right = simulated.regions.len() == regions.len()
            && simulated
                .regions
                .iter()
                .enumerate()
                .all(|(number, region)| region.name == format!("r{number}"));
        if !right {
            return Err(answer(&self.path, "other regions than it was given"));
        }
        Ok(Ok(simulated))
    }
}

const TRIPLE: &str = "-mtriple=x86_64-unknown-linux-gnu";

/// Lists programs with a suitable name, in the order of the folders, then of the numbers in their names.
fn programs(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut programs = Vec::new();
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(folder) else {
            continue;
        };
        let mut names: Vec<(u32, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.file_name().into_string().ok()?;
                let rest = name.strip_prefix("llvm-mca")?;
                let number = match rest.strip_prefix('-') {
                    Some(number) => number.parse().ok()?,
                    None if rest.is_empty() => 0,
                    None => return None,
                };
                Some((number, entry.path()))
            })
            .collect();
        names.sort();
        programs.extend(names.into_iter().map(|(_, path)| path));
    }
    programs
}

fn numbers(version: &str) -> Vec<u32> {
    version
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect()
}

fn start(path: &Path, arguments: &[&str], input: Option<&str>) -> Result<Output, CoreError> {
    let failed = |error| CoreError::Start {
        path: path.into(),
        error,
    };
    let stdin = match input {
        // A file instead of a pipe: a pipe could fill up while the program waits for a reader of its output.
        Some(input) => {
            let temporary = |error| CoreError::File {
                path: std::env::temp_dir(),
                error,
            };
            let mut file = tempfile::tempfile().map_err(temporary)?;
            file.write_all(input.as_bytes()).map_err(temporary)?;
            file.rewind().map_err(temporary)?;
            Stdio::from(file)
        }
        None => Stdio::null(),
    };
    Command::new(path)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(stdin)
        .output()
        .map_err(failed)
}

fn answer(path: &Path, what: &str) -> CoreError {
    CoreError::Answer {
        path: path.into(),
        what: what.into(),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The reason why LLVM refuses a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Complaint {
    /// Lines that the assembler refuses: index of the region, line within the region (from 0), message.
    Lines(Vec<(usize, usize, String)>),
    /// Any other message, such as for an instruction without timing in some region.
    Other(String),
}

fn complaint(stderr: &str, origins: &[Option<(usize, usize)>]) -> Complaint {
    let bad: Vec<_> = stderr
        .lines()
        .filter_map(|line| {
            let (place, message) = line.split_once(": error: ")?;
            let number: usize = place.split(':').rev().nth(1)?.parse().ok()?;
            let (region, line) = (*origins.get(number.checked_sub(1)?)?)?;
            Some((region, line, message.to_owned()))
        })
        .collect();
    if !bad.is_empty() {
        return Complaint::Lines(bad);
    }
    let message = stderr
        .lines()
        .find_map(|line| line.strip_prefix("error: "))
        .or_else(|| stderr.lines().next())
        .unwrap_or("it failed without a message");
    // LLVM may append a hint at a command-line option.
    let message = message.split(", use -").next().unwrap_or_default();
    Complaint::Other(message.trim_end_matches('.').to_owned())
}

/// JSON output of one run of `llvm-mca`.
#[derive(Debug, Deserialize)]
pub(crate) struct Simulated {
    #[serde(rename = "CodeRegions")]
    pub regions: Vec<Region>,
    #[serde(rename = "TargetInfo")]
    pub target: Target,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    #[serde(rename = "CPUName")]
    core: String,
    #[serde(rename = "Resources")]
    pub resources: Vec<String>,
}

/// JSON output of `llvm-mca` for one code region.
#[derive(Debug, Deserialize)]
pub(crate) struct Region {
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "SummaryView")]
    summary: Summary,
    #[serde(rename = "InstructionInfoView")]
    information: Information,
}

#[derive(Debug, Deserialize)]
struct Summary {
    #[serde(rename = "TotalCycles")]
    cycles: u64,
    #[serde(rename = "DispatchWidth")]
    width: f64,
}

#[derive(Debug, Deserialize)]
struct Information {
    #[serde(rename = "InstructionList")]
    list: Vec<Line>,
}

#[derive(Debug, Deserialize)]
struct Line {
    #[serde(rename = "NumMicroOpcodes")]
    operations: f64,
    #[serde(rename = "RThroughput")]
    throughput: Option<f64>,
}

impl Region {
    /// Returns the simulated cycles of all iterations of the region together.
    pub fn cycles(&self) -> u64 {
        self.summary.cycles
    }

    /// Returns the part of the core that the region occupies, in cycles/65536: the sum over its instructions of the share of the dispatch
    /// width or the reciprocal throughput, whichever is larger.
    pub fn weight(&self) -> u64 {
        let width = self.summary.width.max(1.0);
        let sum: f64 = self
            .information
            .list
            .iter()
            .map(|line| (line.operations / width).max(line.throughput.unwrap_or(0.0)))
            .sum();
        (sum * 65536.0).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_name_their_lines() {
        let origins = [None, Some((0, 0)), None, None, Some((1, 0)), None];
        let text = "<stdin>:2:1: error: invalid instruction mnemonic 'foo'\nfoo %rax\n^~~\n\
                    <stdin>:5:3: error: too few operands\nwarning: found a call\n\
                    error: Assembly input parsing had errors, use -skip\n";
        assert_eq!(
            complaint(text, &origins),
            Complaint::Lines(vec![
                (0, 0, "invalid instruction mnemonic 'foo'".into()),
                (1, 0, "too few operands".into()),
            ])
        );
        assert_eq!(
            complaint(
                "error: found an unsupported instruction in the input.\n",
                &origins
            ),
            Complaint::Other("found an unsupported instruction in the input".into())
        );
        assert_eq!(
            complaint("<stdin>:99999:1: error: far\n", &origins),
            Complaint::Other("<stdin>:99999:1: error: far".into())
        );
    }

    #[test]
    fn a_missing_tool_is_one_message() {
        let folder = tempfile::tempdir().unwrap();
        let error = Tool::within(&[folder.path().into()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no llvm-mca is in PATH, and cycles of a core need it; install the Debian package llvm-22"
        );
    }

    #[test]
    fn programs_that_are_no_tool_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("llvm-mca-99");
        for (script, says) in [
            ("#!/bin/sh\necho hello\n", "no version"),
            (
                "#!/bin/sh\necho LLVM version 99.0.1\n",
                "no cores of x86-64",
            ),
        ] {
            std::fs::write(&file, script).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
            let error = Tool::within(&[folder.path().into()]).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn versions_are_ordered_by_number() {
        assert!(numbers("22.1.8") > numbers("19.1.7"));
        assert!(numbers("19.1.7") > numbers("9.0.1-16"));
    }
}
