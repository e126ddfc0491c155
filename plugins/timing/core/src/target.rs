//! A named core of LLVM, and the cycles of code regions on it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::block::{Block, Code, Reason};
use crate::cache::Cache;
use crate::error::CoreError;
use crate::text::Fusion::{Arithmetic, Comparisons, None as Nothing};
use crate::text::{self, Fusion, Traits};
use crate::tool::{Complaint, Region, Tool};

/// Core for which LLVM has timing.
#[derive(Clone, Debug)]
pub struct Core {
    tool: Tool,
    name: String,
    schedule: String,
    pub(crate) traits: Traits,
}

/// The first resource of each x86 scheduling model of LLVM, the core for which the model was made, and the traits that the model lacks.
const SCHEDULES: [(&str, &str, Traits); 17] = [
    ("ADLPPort00", "alderlake", traits(Arithmetic, true)),
    ("AtomPort0", "atom", traits(Nothing, false)),
    ("BWDivider", "broadwell", traits(Arithmetic, false)),
    ("HWDivider", "haswell", traits(Arithmetic, false)),
    ("ICXDivider", "icelake-server", traits(Arithmetic, false)),
    ("JALU0", "btver2", traits(Nothing, false)),
    ("LNLPPort00", "lunarlake", traits(Arithmetic, true)),
    ("PdAGLU01", "bdver2", traits(Comparisons, false)),
    ("SBDivider", "sandybridge", traits(Arithmetic, false)),
    ("SKLDivider", "skylake", traits(Arithmetic, false)),
    ("SKXDivider", "skylake-avx512", traits(Arithmetic, false)),
    ("SLMDivider", "silvermont", traits(Nothing, false)),
    ("SPRPort00", "sapphirerapids", traits(Arithmetic, true)),
    ("Zn2AGU0", "znver2", traits(Comparisons, false)),
    ("Zn3AGU0", "znver3", traits(Arithmetic, false)),
    ("Zn4AGU0", "znver4", traits(Arithmetic, false)),
    ("ZnAGU0", "znver1", traits(Comparisons, false)),
];

const fn traits(fusion: Fusion, idioms: bool) -> Traits {
    Traits { fusion, idioms }
}

/// For regions of fewer lines than the first number: numbers of iterations of two simulations. Their difference gives the steady state.
const ITERATIONS: [(usize, u32, u32); 3] = [(24, 256, 512), (200, 64, 128), (usize::MAX, 16, 48)];
/// Lines of one call of `llvm-mca`. Smaller batches spend more time on starting processes; larger ones balance worse among threads.
const BATCH: usize = 2000;

impl Core {
    /// Selects a core of the newest installed tool, by a name of LLVM's `-mcpu`.
    ///
    /// # Errors
    ///
    /// If no usable tool is installed, and in the cases of [`Core::of`].
    pub fn named(name: &str) -> Result<Self, CoreError> {
        Self::of(&Tool::installed()?, name)
    }

    /// Selects a core of a tool, by a name of LLVM's `-mcpu`.
    ///
    /// # Errors
    ///
    /// If the name is unknown or a level of the instruction set, LLVM has no timing of the core, or the tool fails.
    pub fn of(tool: &Tool, name: &str) -> Result<Self, CoreError> {
        if name == "generic" || name.starts_with("x86-64") {
            return Err(CoreError::Level(name.into()));
        }
        if !tool.cores().iter().any(|core| core == name) {
            return Err(CoreError::Unknown {
                name: name.into(),
                tool: tool.name(),
                hint: hint(name, tool.cores()),
            });
        }
        let probe = ["nop".to_owned()];
        let Ok(simulated) = tool.simulate(name, 1, &[&probe])? else {
            return Err(CoreError::NoSchedule {
                name: name.into(),
                tool: tool.name(),
            });
        };
        let first = simulated.target.resources.first();
        let first = first.map_or("", |r| r.split('.').next().unwrap_or_default());
        let schedule = SCHEDULES.iter().find(|schedule| schedule.0 == first);
        // A scheduling model that is not in this list is taken as the core's own, and as lacking nothing.
        let (_, schedule, traits) =
            schedule
                .copied()
                .unwrap_or((first, name, traits(Nothing, false)));
        Ok(Self {
            tool: tool.clone(),
            name: name.into(),
            schedule: schedule.into(),
            traits,
        })
    }

    /// Returns the name of the core in LLVM.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the core for which LLVM's timing was made. LLVM times some cores as a similar one, such as nehalem as sandybridge.
    pub fn schedule(&self) -> &str {
        &self.schedule
    }

    /// Returns a description of the figures' source for reports: "llvm-mca 22.1.8, core nehalem (scheduled as sandybridge)".
    pub fn description(&self) -> String {
        let name = &self.name;
        let tool = self.tool.name();
        if self.schedule == *name {
            format!("{tool}, core {name}")
        } else {
            format!("{tool}, core {name} (scheduled as {})", self.schedule)
        }
    }

    /// Returns, for each block, the reason for which the block cannot be modelled on this core; `None` for a block that can be modelled.
    ///
    /// # Errors
    ///
    /// If the tool fails, or the folder of the cache cannot be used.
    pub fn refusals(
        &self,
        blocks: &[Block],
        cache: Option<&Path>,
    ) -> Result<Vec<Option<Reason>>, CoreError> {
        let codes: Vec<_> = blocks.iter().map(Code::of).collect();
        let texts: Vec<_> = codes
            .iter()
            .map(|code| {
                code.as_ref()
                    .map(|c| text::lines(&c.instructions, self.traits))
            })
            .collect();
        let good: Vec<&[String]> = texts.iter().flatten().map(Vec::as_slice).collect();
        let mut probes = self
            .probe(&good, &Cache::new(cache)?, threads())?
            .into_iter();
        Ok(texts
            .iter()
            .map(|text| match text {
                Err(reason) => Some((*reason).clone()),
                Ok(_) => probes.next().and_then(Result::err).map(Refusal::reason),
            })
            .collect())
    }

    /// Returns the weight of each straight-line code: the part of the core that it occupies, in cycles/65536, regardless of dependencies.
    pub(crate) fn probe(
        &self,
        texts: &[&[String]],
        cache: &Cache,
        threads: usize,
    ) -> Result<Vec<Result<u64, Refusal>>, CoreError> {
        self.cached("weight", texts, cache, |texts| {
            self.evaluate(texts, 1, threads, Region::weight)
        })
    }

    /// Returns cycles/65536 of one iteration of each region in the steady state of a loop. Regions with `matters` false are simulated for a
    /// quarter of the iterations.
    pub(crate) fn time(
        &self,
        texts: &[&[String]],
        matters: &[bool],
        cache: &Cache,
        threads: usize,
    ) -> Result<Vec<Result<u64, Refusal>>, CoreError> {
        let mut all: Vec<Option<Result<u64, Refusal>>> = vec![None; texts.len()];
        for (kind, much, divisor) in [("cycles", true, 1), ("cycles, roughly", false, 4)] {
            let chosen: Vec<usize> = (0..texts.len()).filter(|i| matters[*i] == much).collect();
            let some: Vec<&[String]> = chosen.iter().map(|i| texts[*i]).collect();
            let times = self.cached(kind, &some, cache, |texts| {
                self.steady_states(texts, divisor, threads)
            })?;
            for (index, time) in chosen.into_iter().zip(times) {
                all[index] = Some(time);
            }
        }
        Ok(all.into_iter().flatten().collect())
    }

    /// Simulates regions for the numbers of iterations that suit their lengths (`ITERATIONS`), divided by `divisor`.
    fn steady_states(
        &self,
        texts: &[&[String]],
        divisor: u32,
        threads: usize,
    ) -> Result<Vec<Result<u64, Refusal>>, CoreError> {
        let mut all: Vec<Option<Result<u64, Refusal>>> = vec![None; texts.len()];
        let mut least = 0;
        for (below, few, many) in ITERATIONS {
            let (few, many) = (few / divisor, many / divisor);
            let chosen: Vec<usize> = (0..texts.len())
                .filter(|i| (least..below).contains(&texts[*i].len()))
                .collect();
            least = below;
            let some: Vec<&[String]> = chosen.iter().map(|i| texts[*i]).collect();
            let first = self.evaluate(&some, few, threads, Region::cycles)?;
            let second = self.evaluate(&some, many, threads, Region::cycles)?;
            for (index, pair) in chosen.into_iter().zip(first.into_iter().zip(second)) {
                all[index] = Some(match pair {
                    (Ok(a), Ok(b)) => Ok((b.saturating_sub(a) << 16) / u64::from(many - few)),
                    (Err(refusal), _) | (_, Err(refusal)) => Err(refusal),
                });
            }
        }
        Ok(all.into_iter().flatten().collect())
    }

    /// Returns cached results, and computes and stores the others, once for each different text.
    fn cached(
        &self,
        kind: &str,
        texts: &[&[String]],
        cache: &Cache,
        compute: impl FnOnce(&[&[String]]) -> Result<Vec<Result<u64, Refusal>>, CoreError>,
    ) -> Result<Vec<Result<u64, Refusal>>, CoreError> {
        let key = |text: &[String]| {
            Cache::key(&[kind, self.tool.version(), &self.name, &text.join("\n")])
        };
        let keys: Vec<String> = texts.iter().map(|text| key(text)).collect();
        let mut known: BTreeMap<&str, Result<u64, Refusal>> = BTreeMap::new();
        let mut unknown: BTreeMap<&str, &[String]> = BTreeMap::new();
        for (key, text) in keys.iter().zip(texts) {
            if known.contains_key(key.as_str()) || unknown.contains_key(key.as_str()) {
                continue;
            }
            match cache.load(key) {
                Some(value) => drop(known.insert(key, value)),
                None => drop(unknown.insert(key, text)),
            }
        }
        let missing: Vec<&[String]> = unknown.values().copied().collect();
        for (key, value) in unknown.keys().zip(compute(&missing)?) {
            cache.store(key, &value)?;
            known.insert(key, value);
        }
        Ok(keys.iter().map(|key| known[key.as_str()].clone()).collect())
    }

    /// Runs regions in batches on up to `threads` threads. A region that LLVM refuses does not prevent the figures of the others.
    fn evaluate(
        &self,
        texts: &[&[String]],
        iterations: u32,
        threads: usize,
        figure: fn(&Region) -> u64,
    ) -> Result<Vec<Result<u64, Refusal>>, CoreError> {
        let mut batches: Vec<&[&[String]]> = Vec::new();
        let (mut from, mut lines) = (0, 0);
        for (index, text) in texts.iter().enumerate() {
            lines += text.len();
            if lines >= BATCH || index + 1 == texts.len() {
                batches.push(&texts[from..=index]);
                (from, lines) = (index + 1, 0);
            }
        }
        let results: Vec<Vec<_>> = std::thread::scope(|scope| {
            let threads = threads.clamp(1, batches.len().max(1));
            let workers: Vec<_> = (0..threads)
                .map(|first| {
                    let mine = batches.iter().skip(first).step_by(threads);
                    let run = move || {
                        mine.map(|batch| Batch::new(self, batch, iterations, figure).run())
                            .collect::<Vec<_>>()
                    };
                    scope.spawn(run)
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| {
                    worker
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        });
        // Worker k ran the batches k, k + threads, and so on.
        let mut results: Vec<_> = results.into_iter().map(Vec::into_iter).collect();
        let count = results.len().max(1);
        let mut all = Vec::with_capacity(texts.len());
        for number in 0..batches.len() {
            if let Some(batch) = results[number % count].next() {
                all.extend(batch?);
            }
        }
        Ok(all)
    }
}

/// Returns the number of threads that the host offers; each thread may run one tool.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Reason for which LLVM gives no figure of a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    /// Instruction that LLVM refuses, as text.
    pub instruction: String,
    /// LLVM's error message for the instruction.
    pub message: String,
}

impl Refusal {
    pub fn reason(self) -> Reason {
        Reason::Refused {
            instruction: self.instruction,
            message: self.message,
        }
    }
}

/// Group of code regions that one call of llvm-mca simulates.
struct Batch<'a> {
    core: &'a Core,
    texts: &'a [&'a [String]],
    iterations: u32,
    figure: fn(&Region) -> u64,
    /// Figures of regions. None: not simulated yet, or refused.
    figures: Vec<Option<u64>>,
    refused: BTreeMap<usize, String>,
}

impl<'a> Batch<'a> {
    fn new(
        core: &'a Core,
        texts: &'a [&'a [String]],
        iterations: u32,
        figure: fn(&Region) -> u64,
    ) -> Self {
        Self {
            core,
            texts,
            iterations,
            figure,
            figures: vec![None; texts.len()],
            refused: BTreeMap::new(),
        }
    }

    fn run(mut self) -> Result<Vec<Result<u64, Refusal>>, CoreError> {
        self.attempt((0..self.texts.len()).collect())?;
        // Each refusal names the region's first line that LLVM also refuses alone, so it does not depend on the rest of the batch.
        let lines: BTreeSet<&String> = self.refused.keys().flat_map(|r| self.texts[*r]).collect();
        let lines: Vec<&String> = lines.into_iter().collect();
        let alone: Vec<&[String]> = lines
            .iter()
            .map(|line| std::slice::from_ref(*line))
            .collect();
        let mut by_line = Batch::new(self.core, &alone, 1, self.figure);
        if !alone.is_empty() {
            by_line.attempt((0..alone.len()).collect())?;
        }
        let bad: BTreeMap<&String, &String> = by_line
            .refused
            .iter()
            .map(|(index, message)| (lines[*index], message))
            .collect();
        let refusal = |region: usize| {
            let text = self.texts[region];
            match text.iter().find_map(|line| Some((line, bad.get(line)?))) {
                Some((line, message)) => Refusal {
                    instruction: line.clone(),
                    message: (*message).clone(),
                },
                None => Refusal {
                    instruction: text.first().cloned().unwrap_or_default(),
                    message: self.refused.get(&region).cloned().unwrap_or_default(),
                },
            }
        };
        Ok((0..self.texts.len())
            .map(|region| self.figures[region].ok_or_else(|| refusal(region)))
            .collect())
    }

    /// Runs some regions. If LLVM refuses some of them, runs the others again without these.
    fn attempt(&mut self, mut regions: Vec<usize>) -> Result<(), CoreError> {
        while !regions.is_empty() {
            let texts: Vec<&[String]> = regions.iter().map(|r| self.texts[*r]).collect();
            let name = &self.core.name;
            match self.core.tool.simulate(name, self.iterations, &texts)? {
                Ok(simulated) => {
                    for (region, figures) in regions.iter().zip(&simulated.regions) {
                        self.figures[*region] = Some((self.figure)(figures));
                    }
                    return Ok(());
                }
                Err(Complaint::Lines(lines)) => {
                    for (index, _, message) in lines {
                        self.refused.entry(regions[index]).or_insert(message);
                    }
                    regions.retain(|region| !self.refused.contains_key(region));
                }
                Err(Complaint::Other(message)) => {
                    if let [region] = regions[..] {
                        self.refused.insert(region, message);
                        return Ok(());
                    }
                    let rest = regions.split_off(regions.len() / 2);
                    self.attempt(rest)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns names similar to a misspelt one, or how to list all names.
fn hint(name: &str, cores: &[String]) -> String {
    // Longer words are no misspelt names, and a comparison takes memory in proportion to the product of both lengths.
    const LONGEST: usize = 40;
    let mut near: Vec<(usize, &str)> = cores
        .iter()
        .filter(|_| name.len() <= LONGEST)
        .map(|core| {
            (
                strsim::damerau_levenshtein(&name.to_lowercase(), core),
                core.as_str(),
            )
        })
        .filter(|(distance, core)| {
            *distance <= 1 + core.len() / 5
                || (name.len() >= 4 && core.starts_with(&name.to_lowercase()))
        })
        .collect();
    near.sort_unstable();
    // LLVM spells some names in two ways.
    near.dedup_by(|b, a| a.1.replace('_', "-") == b.1.replace('_', "-"));
    if near.is_empty() {
        return "list them by llvm-mca -march=x86-64 -mcpu=help".into();
    }
    let names: Vec<String> = near
        .iter()
        .take(3)
        .map(|(_, core)| format!("{core:?}"))
        .collect();
    format!("did you mean {}?", names.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_offered() {
        let cores = [
            "skylake",
            "skylake-avx512",
            "skylake_avx512",
            "znver4",
            "haswell",
        ]
        .map(str::to_owned);
        assert_eq!(
            hint("skylak", &cores),
            r#"did you mean "skylake" or "skylake-avx512"?"#
        );
        assert_eq!(
            hint("Zen4", &cores),
            r#"list them by llvm-mca -march=x86-64 -mcpu=help"#
        );
        assert_eq!(hint("znver", &cores), r#"did you mean "znver4"?"#);
        assert_eq!(
            hint(&"s".repeat(1 << 20), &cores),
            "list them by llvm-mca -march=x86-64 -mcpu=help"
        );
    }
}
