//! `difftest`: compares the portable engine with the host's CPU.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use nodescope_oracle::campaign::{self, CampaignError, Comparator, Settings, Tally};
use nodescope_oracle::catalogue::{self, Group};
use nodescope_oracle::generate::{CaseId, Generator};
use nodescope_oracle::lockstep::{self, Kind};
use nodescope_oracle::{report, vendor};

/// Compare the portable engine with the host's CPU, instruction by instruction, on random instructions and states.
/// Exit status: 0 no mismatch, 1 mismatches, 2 not run.
#[derive(Parser, Debug)]
#[command(name = "difftest", version)]
struct Options {
    /// Cases over all groups, shared by number of instructions (at least 2000 a group).
    #[arg(long, default_value_t = 1_000_000)]
    count: u64,
    /// Random states that each random encoding is run in; each is a case.
    #[arg(long, default_value_t = 16)]
    states: u64,
    /// Seed of the campaign.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these groups.
    #[arg(long, value_delimiter = ',')]
    group: Vec<Group>,
    /// Processes.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Repeat one case and print everything about it.
    #[arg(long, value_name = "GROUP:SEED:INDEX[:VARIANT]")]
    replay: Option<CaseId>,
    /// Mismatches printed for each instruction.
    #[arg(long, default_value_t = 2)]
    show: u64,
    /// Compare the host's CPU with itself, to check the harness.
    #[arg(long)]
    native_only: bool,
    /// List the instructions of the groups instead.
    #[arg(long)]
    list: bool,
    /// Instead: run the interpreter and the translator side by side on random programs, for so many seconds from --seed on.
    #[arg(long, value_name = "SECONDS")]
    lockstep: Option<u64>,
    /// Instead: as --lockstep, with random bytes as code in place of blocks.
    #[arg(long, value_name = "SECONDS")]
    fuzz: Option<u64>,
    /// Instead: run both side by side on random bytes as user code, which must not end the engine.
    #[arg(long, value_name = "SECONDS")]
    crash: Option<u64>,
    /// With --lockstep, --fuzz or --crash: the most seeds to run.
    #[arg(long, value_name = "N", default_value_t = u64::MAX)]
    seeds: u64,
    /// Used between processes: say which seed begins.
    #[arg(long, hide = true)]
    announce: bool,
    /// Used between processes: run shard K of N.
    #[arg(long, hide = true, value_name = "K/N")]
    shard: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("difftest: {e}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<bool, Box<dyn std::error::Error>> {
    let groups = if options.group.is_empty() {
        Group::ALL.to_vec()
    } else {
        options.group.clone()
    };
    if options.list {
        for group in groups {
            for code in catalogue::codes(group) {
                println!("{group} {code:?}");
            }
        }
        return Ok(true);
    }
    if let Some(id) = options.replay {
        return Ok(replay(id)?);
    }
    for (seconds, kinds) in [
        (
            options.lockstep,
            &[Kind::Blocks, Kind::Node, Kind::Caches][..],
        ),
        (options.fuzz, &[Kind::Bytes, Kind::Node, Kind::Caches]),
        (options.crash, &[Kind::Noise]),
    ] {
        if let Some(seconds) = seconds {
            if !options.announce {
                return watched();
            }
            let time = Some(Duration::from_secs(seconds));
            return match lockstep::run(kinds, options.seed, options.seeds, time, |seed| {
                println!("{SEED}{seed}");
            }) {
                Ok(tally) => {
                    println!("no difference from seed {} on: {tally:?}", options.seed);
                    Ok(true)
                }
                Err(failure) if matches!(*failure, lockstep::Failure::Differ { .. }) => {
                    println!("{failure}");
                    Ok(false)
                }
                Err(failure) => Err(failure),
            };
        }
    }
    let plan = campaign::plan(&groups, options.count);
    if let Some(shard) = &options.shard {
        let (k, n) = shard
            .split_once('/')
            .and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)))
            .ok_or("--shard wants K/N")?;
        child(options, &plan, k, n)?;
        return Ok(true);
    }
    parent(options, &plan)
}

/// Prefix of a line that announces a seed between processes.
const SEED: &str = "seed ";

/// Runs this program again in a process of its own, since wrong translated code may end the process. An error then names the last seed.
fn watched() -> Result<bool, Box<dyn std::error::Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg("--announce")
        .stdout(Stdio::piped())
        .spawn()?;
    let mut last = String::from("before the first seed");
    for line in BufReader::new(child.stdout.take().ok_or("no output")?).lines() {
        let line = line?;
        if line.starts_with(SEED) {
            last = line;
        } else {
            println!("{line}");
        }
    }
    let status = child.wait()?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err(format!("{last}: the process ended with {status}").into()),
    }
}

/// Runs a shard of a campaign. Prints counts of each group to standard output, and mismatches to standard error.
fn child(
    options: &Options,
    plan: &[(Group, u64)],
    shard: u64,
    shards: u64,
) -> Result<(), CampaignError> {
    let mut comparator = Comparator::new()?;
    for &(group, count) in plan {
        if !group.missing().is_empty() {
            continue;
        }
        let start = Instant::now();
        let settings = Settings {
            seed: options.seed,
            states: options.states,
            native_only: options.native_only,
        };
        let encodings = count.div_ceil(campaign::states(group, options.states));
        let mut tally = campaign::run(
            &mut comparator,
            group,
            settings,
            (shard..encodings).step_by(shards as usize),
            |case, differences, n| {
                if n <= options.show {
                    eprintln!("{}", report::mismatch(case, differences));
                }
            },
        );
        let numbers = tally.numbers().map(|n| n.to_string()).join(" ");
        println!("{group} {} {numbers}", start.elapsed().as_micros());
        for (name, n) in &tally.by_instruction {
            println!("- {name} {n}");
        }
        for (name, n) in &tally.by_rule {
            println!("= {n} {name}");
        }
    }
    Ok(())
}

fn parent(options: &Options, plan: &[(Group, u64)]) -> Result<bool, Box<dyn std::error::Error>> {
    let jobs = options.jobs.max(1);
    let mut children = Vec::new();
    for k in 0..jobs {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["--shard", &format!("{k}/{jobs}")])
            .args(["--count", &options.count.to_string()])
            .args(["--states", &options.states.to_string()])
            .args(["--seed", &options.seed.to_string()])
            .args(["--show", &options.show.to_string()])
            .stdout(Stdio::piped());
        if options.native_only {
            command.arg("--native-only");
        }
        for g in &options.group {
            command.args(["--group", g.name()]);
        }
        children.push(command.spawn()?);
    }
    let mut tallies: Vec<(Tally, u64)> = vec![Default::default(); plan.len()];
    let mut failed = Vec::new();
    for child in children {
        let output = child.wait_with_output()?;
        if !output.status.success() {
            failed.push(output.status.to_string());
        }
        let mut at = 0;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let words: Vec<_> = line.split(' ').collect();
            if let Some((n, rule)) = line.strip_prefix("= ").and_then(|l| l.split_once(' ')) {
                *tallies[at].0.by_rule.entry(rule.to_owned()).or_default() += n.parse::<u64>()?;
                continue;
            }
            if words[0] == "-" {
                *tallies[at]
                    .0
                    .by_instruction
                    .entry(words[1].to_owned())
                    .or_default() += words[2].parse::<u64>()?;
                continue;
            }
            let group: Group = words[0].parse()?;
            at = plan
                .iter()
                .position(|(g, _)| *g == group)
                .ok_or("unplanned group")?;
            let (tally, time) = &mut tallies[at];
            *time += words[1].parse::<u64>()?;
            for (to, word) in tally.numbers().into_iter().zip(&words[2..]) {
                *to += word.parse::<u64>()?;
            }
        }
    }
    println!(
        "group      encodings      cases translated     memory hits in line exceptions  set aside  by vendor mismatches   cases/s per process"
    );
    let mut total = Tally::default();
    let mut total_time = 0;
    for ((group, _), (tally, time)) in plan.iter().zip(&tallies) {
        let missing = group.missing();
        if !missing.is_empty() {
            println!("{group:<9} skipped: this host lacks {}", missing.join(", "));
            continue;
        }
        line(group.name(), tally, *time);
        total.add(tally);
        total_time += time;
        let mut worst: Vec<_> = tally.by_instruction.iter().collect();
        worst.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), name.as_str()));
        for (name, n) in worst {
            println!("            {n:>8}  {name}");
        }
    }
    line("total", &total, total_time);
    if total.by_vendor != 0 {
        println!(
            "by vendor: cases in which this host ({}) rightly does otherwise than Intel's CPUs, as tests/oracle/src/vendor.rs explains",
            vendor::name()
        );
        for (rule, n) in &total.by_rule {
            println!("            {n:>8}  {rule}");
        }
    }
    println!(
        "seed {}: {} cases, {} mismatches",
        options.seed, total.cases, total.mismatches
    );
    if !failed.is_empty() {
        return Err(format!("a process ended early: {}", failed.join(", ")).into());
    }
    Ok(total.mismatches == 0)
}

/// Prints a line of the report. `time` is in microseconds, summed over all processes.
fn line(name: &str, t: &Tally, time: u64) {
    println!(
        "{name:<9} {:>10} {:>10} {:>10} {:>10} {:>12} {:>10} {:>10} {:>10} {:>10} {:>11.0}",
        t.encodings,
        t.cases,
        t.translated,
        t.memory,
        t.hits,
        t.exceptions,
        t.known_deviations,
        t.by_vendor,
        t.mismatches,
        t.cases as f64 / (time as f64 / 1e6).max(1e-6)
    );
}

fn replay(id: CaseId) -> Result<bool, CampaignError> {
    let mut generator = Generator::new(id.group, id.seed);
    let first = generator.case(id.index);
    // The earlier variants run first, since the TLB's contents depend on them.
    let mut cases: Vec<_> = (1..=id.variant)
        .filter_map(|n| generator.variant(&first, n))
        .collect();
    cases.insert(0, first);
    let case = cases.pop().ok_or(CampaignError::NoCase(id))?;
    if case.id != id {
        return Err(CampaignError::NoCase(id));
    }
    let mut comparator = Comparator::new()?;
    for case in &cases {
        comparator.run(case);
    }
    println!(
        "{id}  {}  {:?}\n  bytes {}{}",
        report::disassembly(&case),
        case.instruction.code(),
        report::encoding(&case),
        report::state(&case)
    );
    let comparison = comparator.run(&case);
    match &comparison.native {
        Some(native) => println!("  host's exception: {:?}", native.exception),
        None => println!("  not run on this host"),
    }
    if let Some(rule) = comparison.by_vendor {
        println!("  by vendor: {}", rule.describe());
    }
    if comparison.differences.is_empty() {
        println!("no difference");
        return Ok(true);
    }
    println!("{}", report::mismatch(&case, &comparison.differences));
    Ok(false)
}
