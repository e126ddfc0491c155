//! Modelled cycles of a core compared with measured cycles, on this host: kernels whose data fit into the first level.

use std::arch::asm;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use clap::Args;
use nodescope_plugin_core::{Core, CoreModel, Options as ModelOptions, Tool, model};
use serde_json::{Value, json};

use crate::comparison::number;
use crate::time::quartiles;
use crate::workload::gcc;
use crate::{Failure, stepped};

/// Options of this measurement.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Print the line of JSON alone.
    #[arg(long)]
    json: bool,
    /// Cores to model, by LLVM's names; the one that LLVM takes this processor for by default.
    #[arg(long, value_delimiter = ',')]
    core: Vec<String>,
    /// Kernels to run, all by default.
    #[arg(long, value_delimiter = ',')]
    kernels: Vec<String>,
    /// Timed runs of each kernel.
    #[arg(long, default_value_t = 101)]
    rounds: u32,
}

/// Kernels, and what limits the speed of each.
const KERNELS: [(&str, Bound); 19] = [
    ("integer", Bound::Branches),
    ("chase_l3", Bound::Core),
    ("quicksort", Bound::Branches),
    ("daxpy_l1_sse2", Bound::Core),
    ("dgemm_scalar_sse2", Bound::Core),
    ("dgemm_vector_sse2", Bound::Core),
    ("hpl_sse2", Bound::Core),
    ("fft_sse2", Bound::Core),
    ("stencil_sse2", Bound::Core),
    ("dot_sse2", Bound::Core),
    ("polynomial_sse2", Bound::Core),
    ("daxpy_l1_avx2", Bound::Core),
    ("dgemm_scalar_avx2", Bound::Core),
    ("dgemm_vector_avx2", Bound::Core),
    ("hpl_avx2", Bound::Core),
    ("fft_avx2", Bound::Core),
    ("stencil_avx2", Bound::Core),
    ("dot_avx2", Bound::Core),
    ("polynomial_avx2", Bound::Core),
];

/// Limit of a kernel's speed, as far as the summary distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// The operations that the core executes.
    Core,
    /// Branches on random data, whose mispredictions the model leaves out.
    Branches,
}

/// A kernel of the compiled library; the argument is its number of repeats.
type Kernel = extern "C" fn(i64);

/// Approximate duration of a timed run, in ticks of the time-stamp counter: shorter than a scheduler's time slice on a busy host.
const RUN: u64 = 1_500_000;
/// Largest relative difference of the clock rates before and after a run that counts.
const STEADY: f64 = 0.01;

/// Models and measures every kernel.
pub fn cycles(options: &Options) -> Result<Value, Failure> {
    let host = |what: &dyn std::fmt::Display| Failure::Host(what.to_string());
    let tool = Tool::installed().map_err(|e| host(&e))?;
    let names = match options.core.as_slice() {
        [] => vec![tool.native().map_err(|e| host(&e))?],
        chosen => chosen.to_vec(),
    };
    let cores: Vec<Core> = names
        .iter()
        .map(|name| Core::of(&tool, name).map_err(|e| host(&e)))
        .collect::<Result<_, _>>()?;
    let unknown = options
        .kernels
        .iter()
        .find(|name| KERNELS.iter().all(|k| k.0 != *name));
    if let Some(unknown) = unknown {
        let names: Vec<_> = KERNELS.iter().map(|k| k.0).collect();
        return Err(Failure::Kernel(unknown.clone(), names.join(", ")));
    }
    let wide = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    if !wide {
        eprintln!("the builds for AVX2 are skipped: this host has no AVX2 and FMA");
    }
    let folder = tempfile::tempdir().map_err(Failure::Files)?;
    compile(folder.path())?;
    // SAFETY: the library was just compiled from sources of this crate, and has no initialisers.
    let library = unsafe { libloading::Library::new(folder.path().join("kernels.so")) };
    let library = library.map_err(|e| host(&e))?;

    let say = |text: &str| {
        if !options.json {
            println!("{text}");
        }
    };
    let mut head = format!(
        "{:<20}{:>10}{:>8}{:>10}",
        "", "instr", "on path", "measured"
    );
    for core in &cores {
        say(&core.description());
        head += &format!("{:>24}", core.name());
    }
    say(&format!("\ncycles of one repeat\n{head}"));
    let mut errors = vec![Errors::default(); cores.len()];
    let mut rows = serde_json::Map::new();
    for (name, bound) in KERNELS {
        let wanted = options.kernels.is_empty() || options.kernels.iter().any(|k| k == name);
        if !wanted || (name.ends_with("avx2") && !wide) {
            continue;
        }
        // SAFETY: the kernels are functions of one long that return nothing (kernels.h).
        let kernel: libloading::Symbol<'_, Kernel> =
            unsafe { library.get(name) }.map_err(|e| host(&e))?;
        // The first call allocates memory and resolves functions, before anything is counted.
        kernel(1);
        let blocks = stepped::blocks(*kernel, 1).map_err(Failure::Files)?;
        let models: Vec<CoreModel> = cores
            .iter()
            .map(|core| model(&blocks, core, &ModelOptions::default()).map_err(|e| host(&e)))
            .collect::<Result<_, _>>()?;
        let measured = measure(*kernel, options.rounds)?;
        let first = &models[0];
        let mut line = format!(
            "{name:<20}{:>10}{:>7.1}%{measured:>10.0}",
            first.instructions,
            first.coverage() * 100.0
        );
        let mut by_core = serde_json::Map::new();
        for ((core, model), errors) in cores.iter().zip(&models).zip(&mut errors) {
            let modelled = model.cycles as f64 / 65536.0;
            let error = modelled / measured - 1.0;
            errors.add(bound, error);
            line += &format!("{modelled:>12.0}{:>+10.1} %", error * 100.0);
            by_core.insert(core.name().into(), number(modelled));
        }
        say(&line);
        let row = json!({ "measured": number(measured), "modelled": by_core });
        rows.insert(name.into(), row);
    }
    let mut summary = serde_json::Map::new();
    for (core, errors) in cores.iter().zip(&errors) {
        let (all, predictable) = (mean(&errors.all), mean(&errors.predictable));
        say(&format!(
            "{}: mean absolute error {:.1} %, {:.1} % without branches on random data; mean error {:+.1} %",
            core.name(),
            all * 100.0,
            predictable * 100.0,
            errors.all.iter().sum::<f64>() / errors.all.len().max(1) as f64 * 100.0
        ));
        summary.insert(
            core.name().into(),
            json!({ "all": number(all), "predictable": number(predictable) }),
        );
    }
    say(nodescope_plugin_core::PUBLISHED_ERROR);
    Ok(
        json!({ "name": "core", "tool": tool.name(), "kernels": rows, "mean_absolute_error": summary, "rounds": options.rounds }),
    )
}

#[derive(Clone, Debug, Default)]
struct Errors {
    all: Vec<f64>,
    predictable: Vec<f64>,
}

impl Errors {
    fn add(&mut self, bound: Bound, error: f64) {
        self.all.push(error);
        if bound == Bound::Core {
            self.predictable.push(error);
        }
    }
}

fn mean(errors: &[f64]) -> f64 {
    errors.iter().map(|e| e.abs()).sum::<f64>() / errors.len().max(1) as f64
}

/// Compiles the kernels to a library. The data of each kernel fit into a first level of 32 KiB.
fn compile(folder: &Path) -> Result<(), Failure> {
    let integer = [
        "-O2",
        "-DDRAWS=10000",
        "-DSTEPS=10000",
        "-DL3_NODES=256",
        "-DITEMS=1000L",
    ];
    let sse2 = ["-O3", "-msse2", "-mno-sse3", "-DORDER=32", "-DPASSES=40"];
    let avx2 = ["-O3", "-mavx2", "-mfma", "-DORDER=32", "-DPASSES=40"];
    std::fs::write(folder.join("sink.c"), "volatile double sink;\n").map_err(Failure::Files)?;
    let mut objects = Vec::new();
    for (options, source, object) in [
        (&integer, "integer.c", "integer.o"),
        (&sse2, "floating.c", "floating-sse2.o"),
        (&avx2, "floating.c", "floating-avx2.o"),
        (&sse2, "core.c", "core-sse2.o"),
        (&avx2, "core.c", "core-avx2.o"),
    ] {
        gcc(
            folder,
            &[&options[..], &["-fPIC", "-c", "-o", object]].concat(),
            &[source],
        )?;
        objects.push(object);
    }
    let link = ["-shared", "-fPIC", "-o", "kernels.so", "sink.c"];
    gcc(folder, &[&link[..], &objects, &["-lm"]].concat(), &[])
}

/// Returns the cycles of one repeat: ticks of the time-stamp counter times the cycles per tick around the run. Runs in which the clock rate
/// changed do not count. The result is the lower quartile of the runs, since other programs only make runs longer.
fn measure(kernel: Kernel, rounds: u32) -> Result<f64, Failure> {
    let once = (0..5).map(|_| ticks(|| kernel(1))).min().unwrap_or(1);
    let repeats = (RUN / once.max(1)).clamp(1, 1 << 20);
    let mut runs = Vec::new();
    let mut before = rate();
    // The number of tries is limited, since on some hosts the clock rate always changes.
    for _ in 0..rounds.max(1) * 4 {
        let spent = ticks(|| kernel(repeats as i64));
        let after = rate();
        if (before / after - 1.0).abs() < STEADY {
            runs.push(spent as f64 * (before + after) / 2.0 / repeats as f64);
        }
        before = after;
        if runs.len() >= rounds.max(1) as usize {
            break;
        }
    }
    if runs.len() < rounds.clamp(1, 4) as usize {
        return Err(Failure::Host(
            "the processor's clock rate changes all the time; try again on a quieter host".into(),
        ));
    }
    Ok(quartiles(runs).0)
}

/// Measures the core's cycles per tick of the time-stamp counter, with a chain of additions of one cycle each; the highest of five chains.
pub fn rate() -> f64 {
    const CHAIN: u64 = 2000;
    let least = (0..5)
        .map(|_| {
            ticks(|| {
                let mut value = 1_u64;
                for _ in 0..CHAIN {
                    // SAFETY: the instructions only add a register to itself.
                    unsafe {
                        asm!(
                            "add {0}, {0}", "add {0}, {0}", "add {0}, {0}", "add {0}, {0}", "add {0}, {0}",
                            "add {0}, {0}", "add {0}, {0}", "add {0}, {0}", "add {0}, {0}", "add {0}, {0}",
                            "add {0}, {0}", "add {0}, {0}", "add {0}, {0}", "add {0}, {0}", "add {0}, {0}",
                            "add {0}, {0}", "add {0}, {0}", "add {0}, {0}", "add {0}, {0}", "add {0}, {0}",
                            inout(reg) value, options(nomem, nostack),
                        );
                    }
                }
            })
        })
        .min();
    (CHAIN * 20) as f64 / least.unwrap_or(1).max(1) as f64
}

/// Returns the core's present clock rate in Hz. The first call takes a tenth of a second longer, to time the time-stamp counter.
pub fn hertz() -> f64 {
    static TICKS: OnceLock<f64> = OnceLock::new();
    let counter = || {
        let start = Instant::now();
        let spent = ticks(|| std::thread::sleep(Duration::from_millis(100)));
        spent as f64 / start.elapsed().as_secs_f64()
    };
    rate() * TICKS.get_or_init(counter)
}

/// Returns the ticks of the time-stamp counter that `run` takes.
pub fn ticks(run: impl FnOnce()) -> u64 {
    // SAFETY: every processor on which the benchmark runs has RDTSCP.
    let now = || unsafe {
        let mut processor = 0;
        std::arch::x86_64::__rdtscp(&raw mut processor)
    };
    let start = now();
    run();
    now().saturating_sub(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn count(n: i64) {
        for i in 0..n {
            std::hint::black_box(i);
        }
    }

    #[test]
    fn steps_count_every_iteration() {
        let blocks = stepped::blocks(count, 1000).unwrap();
        let most = blocks.iter().map(|b| b.executions).max().unwrap();
        assert!((999..=1000).contains(&most), "{blocks:?}");
        for block in &blocks {
            assert!(!block.bytes.is_empty() && block.instructions <= 48);
        }
    }

    #[test]
    fn a_kernel_is_modelled_and_measured() {
        if let Err(error) = Tool::installed() {
            nodescope_test_needs::skip(nodescope_test_needs::Need::Mca, error);
            return;
        }
        let options = Options {
            json: true,
            core: vec!["haswell".into()],
            kernels: vec!["dot_sse2".into()],
            rounds: 8,
        };
        match cycles(&options) {
            Ok(line) => assert!(
                line["kernels"]["dot_sse2"]["measured"].as_f64() > Some(1000.0),
                "{line}"
            ),
            Err(Failure::Host(message)) if message.contains("clock rate") => {}
            Err(error) => panic!("{error}"),
        }
    }
}
