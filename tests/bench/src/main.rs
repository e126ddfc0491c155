//! `nodescope-bench`: how fast nodescope executes guests, beside QEMU's TCG and the host itself.
//!
//! [`kernels`] are small programs of seven shapes. Each is run natively, in a guest of the portable engine without and with
//! models attached ([`soft`]), and in the same guest under QEMU ([`tcg`]); runs are interleaved and medians compared.

mod kernels;
mod soft;
mod tcg;
mod time;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};
use serde_json::{Map, Value, json};
use thiserror::Error;

use kernels::{KERNELS, Kernel, TRACED};
use time::{geometric_mean, median};

/// Why nothing could be measured.
#[derive(Debug, Error)]
pub enum Failure {
    /// The kernels do not compile.
    #[error("cannot compile the kernels: {0}")]
    Compile(String),
    /// No image.
    #[error(
        "no guest image at {0}; build one with `nodescope image build`, or name its folder with --image"
    )]
    Image(PathBuf),
    /// Reading or writing.
    #[error("cannot read or write a file: {0}")]
    Files(std::io::Error),
    /// The guest.
    #[error("the guest failed: {0}")]
    Guest(String),
}

#[derive(Parser)]
#[command(about = "How fast nodescope is")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Instructions a second of the portable engine: booting, in user code, with tracing, with models attached; and the
    /// ratio to QEMU TCG and to the host.
    Engine {
        /// Print the JSON line alone.
        #[arg(long)]
        json: bool,
        /// Folder of the guest image (vmlinux, initramfs.cpio, root.img).
        #[arg(long)]
        image: Option<PathBuf>,
        /// Rounds of interleaved runs; medians are compared.
        #[arg(long, default_value_t = 3)]
        rounds: u32,
        /// Leave QEMU out.
        #[arg(long)]
        no_qemu: bool,
    },
}

fn main() -> ExitCode {
    let What::Engine {
        json,
        image,
        rounds,
        no_qemu,
    } = Arguments::parse().what;
    match engine(json, image, rounds.max(1), no_qemu) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("nodescope-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn default_image() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache"),
        PathBuf::from,
    );
    cache.join("nodescope/images/current")
}

/// Seconds that each kernel takes on the host, by the program's own clock.
fn native(program: &Path, kernels: &[Kernel]) -> Result<Vec<f64>, Failure> {
    let output = Command::new(program)
        .args(kernels::arguments(kernels, 1))
        .output()
        .map_err(Failure::Files)?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(kernels
        .iter()
        .map(|k| {
            let line = format!("bench:time:run:{}:", k.name);
            text.lines()
                .find_map(|l| l.strip_prefix(&line)?.parse().ok())
                .unwrap_or(f64::NAN)
        })
        .collect())
}

fn engine(
    json_only: bool,
    image: Option<PathBuf>,
    rounds: u32,
    no_qemu: bool,
) -> Result<(), Failure> {
    let say = |text: String| {
        if !json_only {
            println!("{text}");
        }
    };
    let image = image.unwrap_or_else(default_image);
    if !image.join("vmlinux").exists() {
        return Err(Failure::Image(image));
    }
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    let program = kernels::compile(folder.path())?;
    let qemu = match tcg::version() {
        _ if no_qemu => Err("left out by --no-qemu".to_owned()),
        found => found,
    };
    match &qemu {
        Ok(version) => say(format!("compared with {version}, tcg,thread=single")),
        Err(reason) => eprintln!("QEMU skipped: {reason}"),
    }

    let all: Vec<Kernel> = KERNELS.into_iter().chain([TRACED]).collect();
    let arguments = kernels::arguments(&all, 1);
    let (mut ours, mut theirs, mut natives) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        say(format!("round {round} of {rounds}"));
        ours.push(soft::run(&image, &program, &arguments, 1, false)?);
        if qemu.is_ok() {
            theirs.push(tcg::run(&image, &program, &arguments)?);
        }
        natives.push(native(&program, &all)?);
    }
    say("with caches and NUMA attached".into());
    let attached = soft::run(&image, &program, &kernels::arguments(&KERNELS, 4), 2, true)?;

    let boot = median(ours.iter().map(|s| s.boot.speed()));
    let boot_cpu = median(ours.iter().map(|s| s.boot.spent.cpu));
    let boot_tcg = median(theirs.iter().map(|s| s.boot.cpu));
    say(format!(
        "\n{:<14}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "", "M instr", "M/s", "M/s", "CPU s", "wall s", "CPU s", "wall s", "CPU s", "times"
    ));
    say(format!(
        "{:<14}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "", "", "", "attached", "here", "here", "TCG", "TCG", "native", "TCG"
    ));
    say(format!(
        "{:<14}{:>10.1}{:>10.1}{:>10}{:>10.3}{:>10.3}{:>10.3}{:>10.3}{:>10}{:>10.2}",
        "boot",
        ours[0].boot.instructions as f64 / 1e6,
        boot,
        "",
        boot_cpu,
        median(ours.iter().map(|s| s.boot.spent.wall)),
        boot_tcg,
        median(theirs.iter().map(|s| s.boot.wall)),
        "",
        boot_cpu / boot_tcg,
    ));
    let mut rows = Map::new();
    let (mut slowdowns, mut ratios, mut speeds, mut attached_speeds) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (n, k) in all.iter().enumerate() {
        let here = |f: fn(&soft::Run) -> f64| {
            median(ours.iter().filter_map(|s| s.kernels.get(k.name)).map(f))
        };
        let there = |f: fn(&time::Spent) -> f64| {
            median(theirs.iter().filter_map(|s| s.kernels.get(k.name)).map(f))
        };
        let (speed, cpu, wall) = (
            here(soft::Run::speed),
            here(|r| r.spent.cpu),
            here(|r| r.spent.wall),
        );
        let (tcg_cpu, tcg_wall) = (there(|s| s.cpu), there(|s| s.wall));
        let host = median(natives.iter().map(|r| r[n]));
        let with_model = attached
            .kernels
            .get(k.name)
            .map_or(f64::NAN, soft::Run::speed);
        let instructions = ours[0].kernels.get(k.name).map_or(0, |r| r.instructions);
        say(format!(
            "{:<14}{:>10.1}{:>10.1}{:>10.1}{:>10.3}{:>10.3}{:>10.3}{:>10.3}{:>10.3}{:>10.2}",
            k.name,
            instructions as f64 / 1e6,
            speed,
            with_model,
            cpu,
            wall,
            tcg_cpu,
            tcg_wall,
            host,
            cpu / tcg_cpu
        ));
        rows.insert(
            k.name.into(),
            json!({
                "instructions": instructions,
                "million_instructions_per_second": number(speed),
                "attached_million_instructions_per_second": number(with_model),
                "cpu_seconds": number(cpu),
                "wall_seconds": number(wall),
                "tcg_cpu_seconds": number(tcg_cpu),
                "tcg_wall_seconds": number(tcg_wall),
                "native_seconds": number(host),
                "vs_native": number(cpu / host),
                "vs_tcg": number(cpu / tcg_cpu),
            }),
        );
        if n < KERNELS.len() {
            speeds.push(speed);
            attached_speeds.push(with_model);
            slowdowns.push(cpu / host);
            ratios.push(cpu / tcg_cpu);
        }
    }
    let line = json!({
        "name": "engine",
        "boot_million_instructions_per_second": number(boot),
        "boot_instructions": ours[0].boot.instructions,
        "boot_cpu_seconds": number(boot_cpu),
        "boot_tcg_cpu_seconds": number(boot_tcg),
        "kernels": rows,
        "geomean_million_instructions_per_second": number(geometric_mean(speeds)),
        "geomean_attached_million_instructions_per_second": number(geometric_mean(attached_speeds)),
        "geomean_vs_native": number(geometric_mean(slowdowns)),
        "geomean_vs_tcg": number(geometric_mean(ratios)),
        "tcg": qemu.ok(),
        "rounds": rounds,
    });
    println!("{line}");
    Ok(())
}

/// Four significant digits; null where nothing was measured.
fn number(value: f64) -> Value {
    if !value.is_finite() {
        return Value::Null;
    }
    format!("{value:.3e}")
        .parse::<f64>()
        .map_or(Value::Null, Value::from)
}
