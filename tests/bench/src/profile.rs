//! Profile of the kernels: shares of time, by samples of `perf`. The translator records the purpose of each piece of its code.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Map, Value, json};

use crate::comparison::{cell, number};
use crate::engine::{self, Attached, Engine};
use crate::guest::Marks;
use crate::host;
use crate::session::Edge;
use crate::workload::{Length, Workload};
use crate::{Failure, Options};

/// Factor by which kernels run longer than in other measurements, so that `perf` takes enough samples of each kernel.
const LENGTH: Length = Length::Times(10);
/// Samples per second: a prime number, so that samples do not coincide with periodic work.
const FREQUENCY: &str = "3989";

/// Classes of samples: a heading, and texts. A sample belongs to the first class with a text that its symbol's or object's name contains.
const PARTS: [(&str, &[&str]); 11] = [
    ("operations", &["translated::operations"]),
    ("look-ups", &["translated::look_ups"]),
    (
        "missed",
        &[
            "translated::slow_paths",
            "translated::misses",
            "nodescope_engine_soft6native6access",
            "nodescope_engine_soft::native::access",
        ],
    ),
    ("model", &["nodescope_plugin_"]),
    ("flags", &["translated::flags"]),
    ("prologues", &["translated::prologues"]),
    ("branches", &["translated::branches"]),
    ("calls", &["translated::calls"]),
    ("engine", &["nodescope_engine_soft"]),
    ("kernel", &["kernel.kallsyms", "[kernel"]),
    ("other", &[""]),
];

/// Measures shares of the kernels' time, with nothing attached and in windows.
pub fn profile(options: &Options) -> Result<Value, Failure> {
    let perf = host::version_of("perf", "linux-perf").map_err(Failure::Host)?;
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let workload = Workload::kernels(folder.path(), &options.kernels, LENGTH)?;
    let guest = workload.guest(&options.image()?, "", Marks::Hypercall)?;
    let map = folder.path().join("code.map");
    nodescope_engine_soft::write_code_map(&map).map_err(Failure::Files)?;
    let mut line = Map::new();
    line.insert("name".into(), "profile".into());
    line.insert("perf".into(), perf.into());
    for (name, attached) in [
        ("functional", Attached::Nothing),
        ("window", Attached::Attributed),
    ] {
        let mut samplers: BTreeMap<String, Sampler> = BTreeMap::new();
        let mut failed = None;
        engine::run_watched(&guest, Engine::Translator, attached, &mut |edge, kernel| {
            let done = match edge {
                Edge::Begun => Sampler::begin(folder.path(), &format!("{name}-{kernel}"))
                    .map(|sampler| _ = samplers.insert(kernel.into(), sampler)),
                Edge::Ended => match samplers.get_mut(kernel) {
                    Some(sampler) => sampler.end(),
                    None => Ok(()),
                },
            };
            if let Err(error) = done {
                failed.get_or_insert(error);
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        let map = CodeMap::read(&std::fs::read_to_string(&map).map_err(Failure::Files)?);
        options.say(&format!("\n{name}, translator: percent of samples"));
        options.say(
            &PARTS
                .iter()
                .fold(format!("{:<29}{:>9}", "", "samples"), |line, (part, _)| {
                    format!("{line}{part:>12}")
                }),
        );
        let mut of_kernels = Map::new();
        for row in &workload.rows {
            let Some(sampler) = samplers.get(&row.name) else {
                continue;
            };
            let counts = sampler.counts(&map)?;
            let all: u64 = counts.iter().sum();
            let shares = counts.map(|count| 100.0 * count as f64 / all as f64);
            options.say(
                &shares
                    .iter()
                    .fold(format!("{:<29}{all:>9}", row.name), |line, share| {
                        format!("{line}{:>12}", cell(*share, 1))
                    }),
            );
            let shares = PARTS.iter().zip(shares);
            let mut value: Map<String, Value> = shares
                .map(|((part, _), share)| ((*part).to_owned(), number(share)))
                .collect();
            value.insert("samples".into(), json!(all));
            of_kernels.insert(row.name.clone(), value.into());
        }
        line.insert(name.into(), of_kernels.into());
    }
    Ok(line.into())
}

/// A running `perf record` of this process.
struct Sampler {
    perf: Child,
    data: PathBuf,
}

impl Sampler {
    /// Starts `perf` and enables its sampling.
    fn begin(folder: &Path, name: &str) -> Result<Self, Failure> {
        let data = folder.join(format!("{name}.perf"));
        let pid = std::process::id().to_string();
        // perf reads commands from its standard input, and confirms each command.
        let perf = Command::new("perf")
            .args(["record", "--quiet", "--event", "cpu-clock"])
            .args(["--freq", FREQUENCY, "--delay", "-1", "--control", "fd:0,1"])
            .args(["--pid", &pid, "--output"])
            .arg(&data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Failure::Files)?;
        let mut sampler = Self { perf, data };
        sampler.tell("enable")?;
        Ok(sampler)
    }

    fn tell(&mut self, command: &str) -> Result<(), Failure> {
        let told: std::io::Result<Vec<u8>> = (|| {
            let input = self.perf.stdin.as_mut();
            writeln!(input.expect("it was piped"), "{command}")?;
            let output = self.perf.stdout.as_mut();
            let mut answer = Vec::new();
            BufReader::with_capacity(1, output.expect("it was piped"))
                .read_until(b'\n', &mut answer)?;
            Ok(answer)
        })();
        match told {
            Ok(answer) if answer.ends_with(b"ack\n") => Ok(()),
            Ok(_) | Err(_) => Err(Failure::Host(format!(
                "perf did not {command} sampling this process; it has said why above, or try `perf record --event cpu-clock true`"
            ))),
        }
    }

    fn end(&mut self) -> Result<(), Failure> {
        // perf 6.1 loses all samples if events are disabled before it stops.
        self.tell("stop")?;
        self.perf.wait().map_err(Failure::Files)?;
        Ok(())
    }

    /// Returns the number of samples in each class of [`PARTS`].
    fn counts(&self, map: &CodeMap) -> Result<[u64; PARTS.len()], Failure> {
        let output = Command::new("perf")
            .args(["script", "--fields", "ip,sym,dso", "--input"])
            .arg(&self.data)
            .output()
            .map_err(Failure::Files)?;
        if !output.status.success() {
            return Err(Failure::Host(format!(
                "perf cannot read what it wrote: {}",
                String::from_utf8_lossy(&output.stderr)
            )));
        }
        let counts = count(&String::from_utf8_lossy(&output.stdout), map);
        if counts.iter().all(|count| *count == 0) {
            return Err(Failure::Host("perf took no samples of this process".into()));
        }
        Ok(counts)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // If perf has already ended, both calls do nothing.
        let _ = self.perf.kill();
        let _ = self.perf.wait();
    }
}

/// Counts samples by class. Each line of `samples` has address, symbol and object.
fn count(samples: &str, map: &CodeMap) -> [u64; PARTS.len()] {
    let mut counts = [0; PARTS.len()];
    for sample in samples.lines().filter(|line| !line.trim().is_empty()) {
        let address = sample.split_whitespace().next();
        let address = address.and_then(|a| u64::from_str_radix(a, 16).ok());
        let what = address.and_then(|a| map.symbol(a)).unwrap_or(sample);
        let part = PARTS
            .iter()
            .position(|(_, marks)| marks.iter().any(|mark| what.contains(mark)))
            .expect("the last part has everything");
        counts[part] += 1;
    }
    counts
}

/// Contents of a file of [`nodescope_engine_soft::write_code_map`].
#[derive(Default)]
struct CodeMap {
    /// Pieces of code by their first address: end address (exclusive) and symbol.
    pieces: BTreeMap<u64, (u64, String)>,
}

impl CodeMap {
    fn read(text: &str) -> Self {
        let piece = |line: &str| {
            let mut words = line.split_whitespace();
            let mut number = || u64::from_str_radix(words.next()?, 16).ok();
            let (from, bytes) = (number()?, number()?);
            Some((from, (from + bytes, words.next()?.to_owned())))
        };
        Self {
            pieces: text.lines().filter_map(piece).collect(),
        }
    }

    fn symbol(&self, address: u64) -> Option<&str> {
        let (_, (end, symbol)) = self.pieces.range(..=address).next_back()?;
        (address < *end).then_some(symbol.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_told_apart_by_symbol_and_object() {
        let map = CodeMap::read(
            "1000 10 translated::look_ups\n\
             1010 8 translated::slow_paths\n",
        );
        let counts = count(
            "  1000 [unknown] (/memfd:nodescope-code (deleted))\n\
             \n\
             100f [unknown] (/memfd:nodescope-code (deleted))\n\
             1010 [unknown] (/memfd:nodescope-code (deleted))\n\
             1018 [unknown] (/memfd:nodescope-code (deleted))\n\
             55550000 <nodescope_plugin_cache::model::CacheModel>::far (/x/nodescope-bench)\n\
             55550010 nodescope_engine_soft::native::access::short_access (/x/nodescope-bench)\n\
             55550020 nodescope_engine_soft::run::<impl Cpu>::run (/x/nodescope-bench)\n\
             ffffffff81000000 clear_page_erms ([kernel.kallsyms])\n",
            &map,
        );
        let of = |name: &str| {
            let part = PARTS.iter().position(|(part, _)| *part == name);
            counts[part.unwrap()]
        };
        assert_eq!(
            [
                "look-ups", "missed", "model", "engine", "kernel", "other", "flags"
            ]
            .map(of),
            [2, 2, 1, 1, 1, 1, 0]
        );
    }
}
