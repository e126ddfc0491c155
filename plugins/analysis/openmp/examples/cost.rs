//! Cost of the OpenMP tracer on this machine: kernels run with the tracer and without it. `scripts/bench openmp` runs this benchmark.
//!
//! Each round of a kernel runs it without the tracer, with the tracer, and without it again. The cost of a round is the per cent by which
//! the time with the tracer exceeds the mean of the two times without it. The median of the rounds is printed, with the least and the most,
//! of wall time and of processor time. Threads that wait sleep (`OMP_WAIT_POLICY=passive`), so that processor time is that of work; other
//! load on the machine changes it less than wall time. The last line is JSON.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compilers, each with the name of its OpenMP runtime.
const COMPILERS: [(&str, &str); 2] = [("gcc", "libgomp"), ("clang", "libomp")];
/// Kernels, each with a number of repeats that takes about half a second.
const KERNELS: [(&str, u64); 4] = [
    ("stencil", 8000),
    ("batches", 150_000),
    ("criticals", 300_000),
    ("tasks", 300),
];

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(9), |text| text.parse::<usize>())?;
    let threads = std::thread::available_parallelism()?.to_string();
    let folder = tempfile::tempdir()?;
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new(package.join("../../../guest-images/tracer/build"))
        .arg(folder.path())
        .arg("openmp")
        .status()?;
    if !built.success() {
        return Err("the tracer cannot be built".into());
    }
    let mut programs: Vec<(&str, PathBuf)> = Vec::new();
    for (compiler, runtime) in COMPILERS {
        let program = folder.path().join(compiler);
        let compiled = Command::new(compiler)
            .args(["-O2", "-fopenmp", "-o"])
            .arg(&program)
            .arg(package.join("examples/kernels/cost.c"))
            .status();
        match compiled {
            Ok(status) if status.success() => programs.push((runtime, program)),
            _ => println!("{compiler} is missing or fails: {runtime} is left out"),
        }
    }
    let tracer = folder.path().join("libnodescope-openmp.so");
    let run = |program: &Path, kernel: &str, repeats: u64, traced: bool| {
        let mut command = Command::new(program);
        command
            .args([kernel, &repeats.to_string()])
            .env("OMP_WAIT_POLICY", "passive")
            .env("OMP_NUM_THREADS", &threads);
        if traced {
            command.env("LD_PRELOAD", &tracer);
            command.env("NODESCOPE_OPENMP_LOG", folder.path());
        }
        let output = command.output()?;
        let text = String::from_utf8(output.stdout)?;
        let line = text.lines().last().ok_or("a kernel printed nothing")?;
        let (wall, processor) = line.split_once(' ').ok_or("a kernel printed no times")?;
        Ok::<[f64; 2], Box<dyn Error>>([wall.parse()?, processor.parse()?])
    };
    let mut rows = Vec::new();
    println!("{threads} threads, {rounds} rounds");
    println!(
        "{:<10} {:<10} {:>10} {:>8} {:>20} {:>10} {:>8} {:>20}",
        "kernel",
        "runtime",
        "wall s",
        "cost",
        "least to most",
        "processor",
        "cost",
        "least to most"
    );
    for (runtime, program) in &programs {
        for (kernel, repeats) in KERNELS {
            let mut plain = [Vec::new(), Vec::new()];
            let mut costs = [Vec::new(), Vec::new()];
            for _ in 0..rounds.max(1) {
                let before = run(program, kernel, repeats, false)?;
                let traced = run(program, kernel, repeats, true)?;
                let after = run(program, kernel, repeats, false)?;
                for time in 0..2 {
                    let mean = (before[time] + after[time]) / 2.0;
                    plain[time].push(mean);
                    costs[time].push((traced[time] / mean - 1.0) * 100.0);
                }
            }
            print!("{kernel:<10} {runtime:<10}");
            let mut row = serde_json::json!({ "kernel": kernel, "runtime": runtime });
            for (time, name) in ["wall", "processor"].into_iter().enumerate() {
                let seconds = spread(&mut plain[time])[1];
                let [least, median, most] = spread(&mut costs[time]);
                let range = format!("{least:.1} to {most:.1} %");
                print!(" {seconds:>10.3} {median:>6.1} % {range:>20}");
                row[name] = serde_json::json!({ "seconds": seconds, "percent": median, "least": least, "most": most });
            }
            println!();
            rows.push(row);
        }
    }
    println!(
        "{}",
        serde_json::json!({ "threads": threads, "rounds": rounds, "kernels": rows })
    );
    Ok(())
}

/// Returns the least, the median and the most.
fn spread(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [
        values[0],
        values[values.len() / 2],
        values[values.len() - 1],
    ]
}
