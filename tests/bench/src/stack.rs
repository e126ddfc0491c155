//! The predicted CPI stack of this host's processor, compared with measured cycles per instruction.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use clap::{Args, ValueEnum};
use nodescope_machine::measurement::Measurement;
use nodescope_plugin_api::{BlockCounts, CoreModel, STALL_TERMS, StallTerm};
use nodescope_plugin_core::{
    Block, Core, CoreError, Options as ModelOptions, Parallelism, Tool, model,
};
use nodescope_plugin_pipeline as pipeline;
use serde_json::{Map, Value, json};

use crate::comparison::number;
use crate::cycles::hertz;
use crate::guest::Marks;
use crate::machine::Machine;
use crate::node::DescribedNode;
use crate::recordings::{Keeping, OfWindows};
use crate::time::{median, quartiles};
use crate::timed::Timed;
use crate::workload::{Length, Workload};
use crate::{Failure, engine, host, micro, timed};

/// Options of this measurement.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Print the line of JSON alone.
    #[arg(long)]
    json: bool,
    /// Folder of the guest image (vmlinux, initramfs.cpio, root.img); nodescope's own by default, built if need be.
    #[arg(long)]
    image: Option<PathBuf>,
    /// Rounds of interleaved native runs; lower quartiles count.
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Programs to run.
    #[arg(long, value_enum, default_value = "kernels")]
    set: Set,
    /// Kernels and micro-kernels to run, in place of a set.
    #[arg(long, value_delimiter = ',', conflicts_with = "set")]
    kernels: Vec<String>,
    /// Cores to model, by LLVM's names; the one that LLVM takes this processor for by default.
    #[arg(long, value_delimiter = ',')]
    core: Vec<String>,
    /// Folder for recordings that the pipeline model has timed; `cargo run --release --example replay` times them again.
    #[arg(long)]
    recordings: Option<PathBuf>,
    /// Node of the pipeline model, as a study's node.model names it; by default this machine, which is measured first.
    #[arg(long)]
    node: Option<String>,
    /// Misses that wait at a time, for the second prediction.
    // The geometric mean of 1 (a chase) and 16, the fill buffers of the first level since Sunny Cove (Intel, Optimization Reference Manual).
    #[arg(long, default_value_t = 4.0)]
    parallelism: f64,
}

/// A set of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Set {
    /// The kernels and hpcc.
    Kernels,
    /// The micro-kernels, of one limit each.
    Micro,
    /// All of them.
    All,
}

/// Processor time in seconds of a native run of a micro-kernel, at least.
const NATIVE_SECONDS: f64 = 0.02;
/// Largest upper quartile of a program's rounds, relative to the lower one, that counts as steady.
const STEADY: f64 = 1.1;
/// Kernel that executes CPUID, as a hypercall, about every 4000 instructions. On a virtual host a hypervisor handles CPUID, so the native
/// time says nothing about the core.
const TRAPPED: &str = "traced";
/// Terms of the table, with the stalls that each term sums.
const TERMS: [(&str, &[StallTerm]); 4] = [
    ("L1", &[StallTerm::Level1]),
    ("L2", &[StallTerm::Level2]),
    ("L3", &[StallTerm::Level3]),
    (
        "memory",
        &[
            StallTerm::LocalMemory,
            StallTerm::RemoteMemory,
            StallTerm::Unattributed,
        ],
    ),
];

/// Counts of a program in a guest's window; they do not depend on the modelled core.
#[derive(Debug)]
struct Counted {
    instructions: u64,
    /// Number of those `instructions` that ran in the guest's kernel.
    kernel: u64,
    /// Cycles of long instructions (REP strings, PAUSE) beyond one cycle for each instruction.
    long_cycles: u64,
    stalls: [u64; STALL_TERMS],
    blocks: Vec<Block>,
}

impl Counted {
    /// Adds up the measurements. Returns None if no code was counted, or if some blocks were not counted.
    fn of(measurement: &Measurement) -> Option<Self> {
        let profile = measurement.blocks.as_ref().filter(|p| p.lost_blocks == 0)?;
        let mut sums: BTreeMap<u32, BlockCounts> = BTreeMap::new();
        for (_, block, counts) in &profile.counts {
            sums.entry(*block).or_default().add(counts);
        }
        let mut counted = Self {
            instructions: 0,
            kernel: 0,
            long_cycles: 0,
            stalls: [0; STALL_TERMS],
            blocks: Vec::new(),
        };
        // Different programs may have different code at one address, so the key contains the code. Each program's address space gets a
        // number, which goes into the high bits of its blocks' addresses.
        let mut by_code: BTreeMap<(u64, &[u8]), Block> = BTreeMap::new();
        let spaces: BTreeMap<u64, u64> = profile
            .blocks
            .iter()
            .filter(|b| !b.kernel && !b.bytes.is_empty())
            .map(|b| (b.address_space, 0))
            .collect();
        let spaces: BTreeMap<u64, u64> = spaces.into_keys().zip(1..).collect();
        for (index, counts) in &sums {
            let block = profile.blocks.get(*index as usize)?;
            let instructions = counts.instructions(block.instructions);
            counted.instructions += instructions;
            if block.kernel {
                counted.kernel += instructions;
            }
            counted.long_cycles += counts.long_cycles;
            for (sum, cycles) in counted.stalls.iter_mut().zip(counts.charges.cycles) {
                *sum += cycles;
            }
            if block.bits != 64 || block.bytes.is_empty() || counts.executions == 0 {
                continue;
            }
            let space = spaces.get(&block.address_space).filter(|_| !block.kernel);
            let address = space.map_or(0, |number| number << 48) ^ block.address;
            by_code
                .entry((address, &block.bytes))
                .or_insert_with(|| Block {
                    address,
                    bytes: block.bytes.clone(),
                    executions: 0,
                    instructions: block.instructions,
                })
                .executions += counts.executions;
        }
        counted.blocks = by_code.into_values().collect();
        (counted.instructions > 0).then_some(counted)
    }

    /// Returns cycles per instruction.
    fn per_instruction(&self, cycles: u64) -> f64 {
        cycles as f64 / self.instructions as f64
    }

    fn term(&self, stalls: &[u64], terms: &[StallTerm]) -> f64 {
        self.per_instruction(terms.iter().map(|t| stalls[*t as usize]).sum())
    }

    /// Returns the CPI stack for a core whose model predicts `core` cycles per instruction.
    fn stack(&self, core: f64, parallelism: Parallelism) -> Stack {
        let core = core + self.per_instruction(self.long_cycles);
        let stalls = self.stalls;
        let added = self.per_instruction(stalls.iter().sum());
        let divided = self.per_instruction(parallelism.divide(&stalls).iter().sum());
        Stack {
            core,
            terms: TERMS.map(|(_, terms)| self.term(&stalls, terms)),
            added: core + added,
            divided: core + divided,
        }
    }
}

/// A predicted CPI and its terms.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stack {
    core: f64,
    /// CPI of each of [`TERMS`], not divided by the parallelism.
    terms: [f64; TERMS.len()],
    /// Sum of the core's CPI and all terms.
    added: f64,
    /// The core's CPI plus all stalls divided by the parallelism.
    divided: f64,
}

/// A program, and how to run it in a guest and on the host.
struct Program {
    workload: Workload,
    launcher: &'static str,
    /// Time at which a model is attached to the guest.
    from: engine::From,
    /// Workloads on the host, each run in a process of its own, and the number of times that each does the work of the guest.
    native: Vec<(Workload, u32)>,
    /// Whether the parts are micro-kernels, which have a table of their own.
    micro: bool,
}

/// Predicts and measures the CPI of every program.
pub fn stack(options: &Options) -> Result<Value, Failure> {
    let host = |what: &dyn std::fmt::Display| Failure::Host(what.to_string());
    let say = |text: &str| {
        if !options.json {
            println!("{text}");
        }
    };
    let parallelism = Parallelism::new(options.parallelism).map_err(|e| host(&e))?;
    let tool = Tool::installed().map_err(|e| host(&e))?;
    let names = match options.core.as_slice() {
        [] => vec![tool.native().map_err(|e| host(&e))?],
        chosen => chosen.to_vec(),
    };
    let cores: Vec<Core> = names
        .iter()
        .map(|name| Core::of(&tool, name))
        .collect::<Result<_, CoreError>>()
        .map_err(|e| host(&e))?;
    let folders = [(); 3].map(|()| tempfile::tempdir());
    let [first, second, third] = folders.map(|f| f.map_err(Failure::Files));
    let folders = [first?, second?, third?];
    let programs = programs(options, folders.each_ref().map(|f| f.path()))?;

    let image = crate::image(options.image.as_deref())?;
    let node = match &options.node {
        Some(name) => DescribedNode::named(name)?,
        None => DescribedNode::measured(folders[0].path())?,
    };
    let (machine, native) = natively(&programs, options.rounds, &say)?;
    say(&machine.description());
    let mut line = Map::new();
    line.insert("name".into(), "cpi".into());
    line.insert("tool".into(), tool.name().into());
    line.insert("machine".into(), machine.json());
    line.insert("parallelism".into(), options.parallelism.into());
    line.insert("rounds".into(), options.rounds.max(1).into());
    for (key, micro) in [("cores", false), ("micro", true)] {
        let counted = counted(
            programs.iter().filter(|p| p.micro == micro),
            &image,
            &machine,
        )?;
        if counted.is_empty() {
            continue;
        }
        let mut by_core = Map::new();
        for core in &cores {
            let rows = lines(&counted, core, parallelism, &native)?;
            say(&table(core, parallelism, &rows));
            by_core.insert(core.name().into(), values(&rows));
        }
        line.insert(key.into(), by_core.into());
        let programs = programs.iter().filter(|p| p.micro == micro);
        let timed = timed(
            programs,
            &image,
            &node,
            options.recordings.as_deref(),
            &native,
        )?;
        let rows = timed_rows(&counted, &timed, &cores[0], parallelism, &native)?;
        say(&timed::table(&node.core, &rows));
        line.insert(format!("pipeline_{key}"), timed::values(&rows));
    }
    say(nodescope_plugin_core::PUBLISHED_ERROR);
    Ok(line.into())
}

/// Returns the chosen programs, compiled into three folders.
fn programs(options: &Options, folders: [&Path; 3]) -> Result<Vec<Program>, Failure> {
    let named = !options.kernels.is_empty();
    let (small, large): (Vec<String>, Vec<String>) = options
        .kernels
        .iter()
        .cloned()
        .partition(|name| micro::find(name).is_some());
    let wanted = |set, names: &[String]| match named {
        true => !names.is_empty(),
        false => [set, Set::All].contains(&options.set),
    };
    let mut programs = Vec::new();
    if wanted(Set::Kernels, &large) {
        programs.push(kernels(folders[0], &large)?);
    }
    if wanted(Set::Kernels, &[]) {
        match host::find("hpcc", "hpcc") {
            Ok(_) => programs.push(hpcc(folders[1])?),
            Err(reason) => eprintln!("the programs of hpcc are skipped: {reason}"),
        }
    }
    if wanted(Set::Micro, &small) {
        programs.push(micro_kernels(folders[2], &small)?);
    }
    Ok(programs)
}

/// Returns the counts of each part of some programs, by name, from a guest for each program.
fn counted<'a>(
    programs: impl Iterator<Item = &'a Program>,
    image: &Path,
    machine: &Machine,
) -> Result<Vec<(String, Counted)>, Failure> {
    let mut counted = Vec::new();
    for program in programs {
        let workload = &program.workload;
        let guest = workload.guest(image, program.launcher, Marks::Hypercall)?;
        let mut measured = engine::measure(&guest, program.from, &|| Ok(machine.model()?), None)?;
        for row in &workload.rows {
            let part = measured.remove(&row.name).and_then(|m| Counted::of(&m));
            let none = || Failure::Guest(format!("not all blocks of {} were counted", row.name));
            counted.push((row.name.clone(), part.ok_or_else(none)?));
        }
    }
    Ok(counted)
}

/// Returns the CPI of each part of some programs by the pipeline model, by name, from a guest for each program.
fn timed<'a>(
    programs: impl Iterator<Item = &'a Program>,
    image: &Path,
    node: &DescribedNode,
    folder: Option<&Path>,
    native: &BTreeMap<String, Vec<f64>>,
) -> Result<BTreeMap<String, Timed>, Failure> {
    let mut timed = BTreeMap::new();
    let closed = OfWindows::default();
    let make = || -> Box<dyn CoreModel> {
        match folder {
            Some(_) => Box::new(Keeping::new(node.pipeline(), closed.clone())),
            None => node.core_model(),
        }
    };
    for program in programs {
        let workload = &program.workload;
        let guest = workload.guest(image, program.launcher, Marks::Hypercall)?;
        let memory = || node.memory();
        let mut measured = engine::measure(&guest, program.from, &memory, Some(&make))?;
        for row in &workload.rows {
            let part = measured.remove(&row.name).and_then(|m| Timed::of(&m));
            let none = || Failure::Guest(format!("nothing of {} was counted", row.name));
            timed.insert(row.name.clone(), part.ok_or_else(none)?);
        }
        let Some(folder) = folder else { continue };
        let closed = std::mem::take(&mut *closed.lock().unwrap_or_else(PoisonError::into_inner));
        for (row, list) in workload.rows.iter().zip(closed) {
            let cycles = native.get(&row.name).map_or(&[][..], Vec::as_slice);
            let recordings = pipeline::Recordings {
                beyond: node.beyond(),
                measured: quartiles(cycles.iter().copied()).0 / timed[&row.name].instructions,
                list,
            };
            recordings
                .write(folder, &row.name)
                .map_err(Failure::Files)?;
        }
    }
    Ok(timed)
}

fn timed_rows<'a>(
    counted: &'a [(String, Counted)],
    timed: &BTreeMap<String, Timed>,
    core: &Core,
    parallelism: Parallelism,
    native: &BTreeMap<String, Vec<f64>>,
) -> Result<Vec<timed::Row<'a>>, Failure> {
    let rows = lines(counted, core, parallelism, native)?;
    let row = |line: Line<'a>| {
        Some(timed::Row {
            name: line.name,
            timed: *timed.get(line.name)?,
            added: line.stack.added,
            measured: line.measured,
        })
    };
    Ok(rows.into_iter().filter_map(row).collect())
}

/// Returns the rows of the table of a core.
fn lines<'a>(
    counted: &'a [(String, Counted)],
    core: &Core,
    parallelism: Parallelism,
    native: &BTreeMap<String, Vec<f64>>,
) -> Result<Vec<Line<'a>>, Failure> {
    let line = |(name, counted): &'a (String, Counted)| {
        let timed = model(&counted.blocks, core, &ModelOptions::default())
            .map_err(|e| Failure::Host(e.to_string()))?;
        let cycles = native.get(name).map_or(&[][..], Vec::as_slice);
        let instructions = counted.instructions as f64;
        Ok(Line {
            name,
            counted,
            coverage: timed.coverage(),
            stack: counted.stack(timed.cpi(), parallelism),
            measured: cycles.iter().map(|c| c / instructions).collect(),
        })
    };
    counted.iter().map(line).collect()
}

fn kernels(folder: &Path, only: &[String]) -> Result<Program, Failure> {
    if only.iter().any(|name| name == TRAPPED) {
        return Err(Failure::Host(format!(
            "{TRAPPED} has no cycles of its own: a hypervisor may answer its instructions; leave {TRAPPED} out"
        )));
    }
    let workload = Workload::kernels(folder, only, Length::Times(1))?.without(TRAPPED);
    let parts = 0..workload.rows.len();
    Ok(Program {
        native: parts.map(|i| (workload.part(i, 1), 1)).collect(),
        workload,
        launcher: "",
        from: engine::From::PowerOn,
        micro: false,
    })
}

/// Returns the program of the micro-kernels. Natively each is repeated until the run is long enough for a clock.
fn micro_kernels(folder: &Path, only: &[String]) -> Result<Program, Failure> {
    let workload = Workload::micro(folder, only)?;
    let mut native = Vec::new();
    for (index, row) in workload.rows.iter().enumerate() {
        let once = host::run(&workload.part(index, 1), &[])?;
        let seconds = once.get(&row.name).map_or(0.0, |run| run.spent.cpu);
        let times = (NATIVE_SECONDS / seconds.max(1e-6)).ceil() as u32;
        native.push((workload.part(index, times), times));
    }
    Ok(Program {
        workload,
        launcher: "",
        from: engine::From::PowerOn,
        native,
        micro: true,
    })
}

fn hpcc(folder: &Path) -> Result<Program, Failure> {
    // Two workloads are made in one folder, since a workload cannot be cloned.
    let native = vec![(Workload::hpcc(folder)?, 1)];
    Ok(Program {
        workload: Workload::hpcc(folder)?,
        // The image's Open MPI starts no rank without mpirun.
        launcher: "mpirun -np 1",
        from: engine::From::FirstMark,
        native,
        micro: false,
    })
}

/// Measures the cycles of each part in each round: processor time multiplied by the mean clock rate before and after. Also measures the
/// machine's caches in each round, and returns their medians.
fn natively(
    programs: &[Program],
    rounds: u32,
    say: &dyn Fn(&str),
) -> Result<(Machine, BTreeMap<String, Vec<f64>>), Failure> {
    let mut machines = Vec::new();
    let mut cycles: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut rates = Vec::new();
    for round in 1..=rounds.max(1) {
        say(&format!("round {round} of {}", rounds.max(1)));
        machines.push(Machine::measure()?);
        for (workload, times) in programs.iter().flat_map(|p| &p.native) {
            let before = hertz();
            let session = host::run(workload, &[])?;
            let rate = (before + hertz()) / 2.0;
            rates.push(rate);
            for (name, run) in session {
                let once = run.spent.cpu * rate / f64::from(*times);
                cycles.entry(name).or_default().push(once);
            }
        }
    }
    rates.sort_by(f64::total_cmp);
    if let (Some(least), Some(most)) = (rates.first(), rates.last()) {
        say(&format!(
            "clock rate by dependent additions: {:.3} GHz, {:.3} to {:.3}",
            median(rates.iter().copied()) / 1e9,
            least / 1e9,
            most / 1e9
        ));
    }
    Ok((Machine::middle(&machines), cycles))
}

/// A row of the table: one program on one core.
struct Line<'a> {
    name: &'a str,
    counted: &'a Counted,
    coverage: f64,
    stack: Stack,
    /// Measured CPI of each round.
    measured: Vec<f64>,
}

impl Line<'_> {
    /// Returns the measured CPI: the lower quartile of the rounds, since other programs only make runs longer.
    fn measured(&self) -> f64 {
        quartiles(self.measured.iter().copied()).0
    }

    /// Returns the upper quartile of the rounds.
    fn upper(&self) -> f64 {
        quartiles(self.measured.iter().copied()).1
    }

    /// Returns false if the rounds differ so much that the measured CPI says little.
    fn is_steady(&self) -> bool {
        self.upper() <= STEADY * self.measured()
    }

    fn errors(&self) -> [f64; 2] {
        [self.stack.added, self.stack.divided].map(|cpi| cpi / self.measured() - 1.0)
    }
}

/// Returns mean and median of all programs' absolute errors, for the prediction with all stalls added, then with divided stalls.
fn absolute_errors(rows: &[Line<'_>]) -> [(f64, f64); 2] {
    [0, 1].map(|which| {
        let errors = rows.iter().map(|row| row.errors()[which].abs());
        let mean = errors.clone().sum::<f64>() / rows.len().max(1) as f64;
        (mean, median(errors))
    })
}

fn table(core: &Core, parallelism: Parallelism, rows: &[Line<'_>]) -> String {
    let mut text = format!("\ncycles per instruction, {}\n", core.description());
    text += &format!("{:<29}{:>9}{:>8}{:>8}", "", "M instr", "on path", "core");
    for (name, _) in TERMS {
        text += &format!("{name:>8}");
    }
    let divided = format!("stalls/{}", parallelism.misses());
    text += &format!(
        "{:>9}{:>10}{:>11}{:>10}{:>10}  upper quartile\n",
        "added", "error", divided, "error", "measured"
    );
    for row in rows {
        let Stack {
            core,
            terms,
            added,
            divided,
        } = row.stack;
        let millions = row.counted.instructions as f64 / 1e6;
        let coverage = row.coverage * 100.0;
        text += &format!("{:<29}{millions:>9.1}{coverage:>7.1}%{core:>8.2}", row.name);
        for term in terms {
            text += &format!("{term:>8.2}");
        }
        let [first, second] = row.errors().map(|e| e * 100.0);
        text += &format!(
            "{added:>9.2}{first:>+8.1} %{divided:>11.2}{second:>+8.1} %{:>10.2}  {:.2}{}\n",
            row.measured(),
            row.upper(),
            if row.is_steady() { "" } else { " *" }
        );
    }
    if rows.iter().any(|row| !row.is_steady()) {
        text += "*: the rounds' quartiles are more than 10 % apart\n";
    }
    text += "absolute error, mean and median:";
    let ways = ["all stalls added".to_owned(), divided];
    for (way, (mean, median)) in ways.iter().zip(absolute_errors(rows)) {
        text += &format!("  {way} {:.1} %, {:.1} %", mean * 100.0, median * 100.0);
    }
    text
}

fn values(rows: &[Line<'_>]) -> Value {
    let mut programs = Map::new();
    for row in rows {
        let terms: Map<String, Value> = TERMS
            .iter()
            .zip(row.stack.terms)
            .map(|((name, _), cpi)| ((*name).to_owned(), number(cpi)))
            .collect();
        let [added, divided] = row.errors();
        let value = json!({
            "million_instructions": number(row.counted.instructions as f64 / 1e6),
            "kernel_share": number(row.counted.kernel as f64 / row.counted.instructions as f64),
            "on_paths": number(row.coverage),
            "core": number(row.stack.core),
            "stalls": terms,
            "added": number(row.stack.added),
            "divided": number(row.stack.divided),
            "measured": number(row.measured()),
            "steady": row.is_steady(),
            "error_added": number(added),
            "error_divided": number(divided),
        });
        programs.insert(row.name.to_owned(), value);
    }
    let [added, divided] = absolute_errors(rows)
        .map(|(mean, median)| json!({ "mean": number(mean), "median": number(median) }));
    json!({ "programs": programs, "absolute_error": { "added": added, "divided": divided } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodescope_plugin_api::{BlockProfile, Context, ProfiledBlock};

    /// Makes a block of one `nop` in an address space.
    fn block(address: u64, address_space: u64, kernel: bool) -> ProfiledBlock {
        ProfiledBlock {
            address,
            address_space,
            kernel,
            bits: 64,
            bytes: vec![0x90],
            instructions: 1,
            ..Default::default()
        }
    }

    fn measurement() -> Measurement {
        let counts = |executions, stall: u64| {
            let mut counts = BlockCounts {
                executions,
                ..Default::default()
            };
            counts.charges.stall(StallTerm::Level2, stall);
            counts.charges.stall(StallTerm::LocalMemory, 2 * stall);
            counts
        };
        let at = Context;
        Measurement {
            blocks: Some(BlockProfile {
                blocks: vec![
                    ProfiledBlock::default(),
                    block(0x1000, 7, false),
                    block(0x1000, 9, false),
                    block(0xffff_ffff_8000_0000, 7, true),
                ],
                counts: vec![
                    (at(0), 1, counts(10, 100)),
                    (at(0), 2, counts(5, 0)),
                    (at(1), 1, counts(20, 20)),
                    (at(1), 3, counts(5, 0)),
                ],
                lost_blocks: 0,
                lost_contexts: 0,
                numbers: Vec::new(),
            }),
            ..Default::default()
        }
    }

    #[test]
    fn stacks_hold_every_stall_once() {
        let counted = Counted::of(&measurement()).unwrap();
        assert_eq!((counted.instructions, counted.kernel), (40, 5));
        let executions: Vec<_> = counted
            .blocks
            .iter()
            .map(|b| (b.address, b.executions))
            .collect();
        assert_eq!(
            executions,
            [
                (1 << 48 | 0x1000, 30),
                (2 << 48 | 0x1000, 5),
                (0xffff_ffff_8000_0000, 5)
            ]
        );
        let stack = counted.stack(0.5, Parallelism::new(4.0).unwrap());
        assert_eq!(stack.terms, [0.0, 3.0, 0.0, 6.0]);
        assert_eq!((stack.added, stack.divided), (9.5, 2.75));
    }

    #[test]
    fn errors_are_of_the_lower_quartile() {
        let counted = Counted::of(&measurement()).unwrap();
        let line = Line {
            name: "a",
            coverage: 1.0,
            stack: counted.stack(0.5, Parallelism::new(4.0).unwrap()),
            counted: &counted,
            measured: vec![5.0, 4.0, 100.0, 50.0, 7.0],
        };
        let [added, divided] = line.errors();
        assert!((added - 0.9).abs() < 1e-9 && (divided + 0.45).abs() < 1e-9);
        assert!(!line.is_steady());
        let value = values(&[line]);
        assert_eq!(value["absolute_error"]["added"]["mean"], 0.9);
        assert_eq!(value["programs"]["a"]["stalls"]["memory"], 6.0);
    }

    #[test]
    fn a_window_without_code_has_no_counts() {
        assert!(Counted::of(&Measurement::default()).is_none());
        let empty = Measurement {
            blocks: Some(BlockProfile::default()),
            ..Default::default()
        };
        assert!(Counted::of(&empty).is_none());
    }
}
