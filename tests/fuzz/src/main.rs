//! Runs campaigns; `scripts/fuzz` builds and starts this program.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use nodescope_fuzz::campaign::{self, Campaign};
use nodescope_fuzz::targets;

/// Gives damaged traces and files to all code that reads them. Inputs that made a reader fail are kept. Once the reader is fixed, put them
/// into tests/fuzz/corpus/TARGET/, where tests replay them.
#[derive(Parser)]
#[command(name = "fuzz")]
struct Args {
    /// The reader to test; without it, every target, one after the other. --list lists them.
    target: Option<String>,
    /// List the targets.
    #[arg(long)]
    list: bool,
    /// How long each target is run, seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The seed of all cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The first case.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Seconds after which a case counts as one that runs for ever.
    #[arg(long, default_value_t = 20)]
    limit: u64,
    /// Folder for inputs that made a reader fail.
    #[arg(long, default_value = "target/fuzz-failures")]
    failures: PathBuf,
    /// Read this input once, in this process.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Runs cases of a target until it dies; for the program itself.
    #[arg(long, hide = true)]
    worker: Option<String>,
    /// File to which the worker writes the number of its case.
    #[arg(long, hide = true)]
    state: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

/// Does what the arguments ask for. Returns false if a campaign found a failure.
fn run(args: &Args) -> io::Result<bool> {
    let find = |name: &str| {
        let unknown = || io::Error::other(format!("there is no target {name}; see --list"));
        targets::named(name).ok_or_else(unknown)
    };
    if args.list {
        for target in targets::ALL {
            println!("{:<10} {}", target.name, target.what);
        }
        return Ok(true);
    }
    if let (Some(name), Some(state)) = (&args.worker, &args.state) {
        campaign::work(find(name)?, args.seed, args.first, state)?;
        return Ok(true);
    }
    let chosen = match &args.target {
        Some(name) => vec![find(name)?],
        None => targets::ALL.iter().collect(),
    };
    if let Some(file) = &args.input {
        let input = std::fs::read(file)?;
        chosen.iter().for_each(|target| target.check(&input));
        return Ok(true);
    }
    let program = std::env::current_exe()?;
    let mut fine = true;
    for target in chosen {
        let campaign = Campaign {
            seconds: args.seconds,
            seed: args.seed,
            first: args.first,
            limit: args.limit,
            failures: args.failures.clone(),
        };
        let found = campaign::run(&program, target, &campaign)?;
        println!(
            "{}: {} cases, {} failures",
            target.name,
            found.cases,
            found.failures.len()
        );
        fine &= found.failures.is_empty();
    }
    Ok(fine)
}
