//! Compares predicted with emulated times of the published reference programs, for `scripts/bench published` and docs/validation.md. The
//! programs run on 2, 4, 8 and 16 ranks in clusters of three networks. Each time is predicted from the traces of all three networks.
//! `published DIR [RANKS,...]` does not repeat emulations whose results are in DIR.

use std::path::Path;
use std::process::ExitCode;

use nodescope_guest_tests::image;
use nodescope_guest_tests::published::{
    Network, PUBLISHED, REFERENCE, emulate, launch, overheads, programs, section, target,
};
use nodescope_image::JobFile;

const PROGRAMS: [(&str, u32, u32); 6] = [
    ("heat", 1024, 30),
    ("jacobi", 1920, 25),
    ("grid", 1024, 30),
    ("heat-f", 1024, 30),
    ("jacobi-f", 1920, 25),
    ("grid-f", 1024, 30),
];

/// Number of runs of each program in one MPI job. In successive runs, different ranks are late.
const REPEATS: u64 = 3;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(dir) = arguments.next() else {
        eprintln!("usage: published DIR [RANKS,...]");
        return ExitCode::from(2);
    };
    let list = arguments.next().unwrap_or_else(|| "2,4,8,16".into());
    let Ok(ranks) = list
        .split(',')
        .map(str::parse)
        .collect::<Result<Vec<u32>, _>>()
    else {
        eprintln!("published: {list} is no list of numbers of ranks");
        return ExitCode::from(2);
    };
    let (Some(programs), Some(image)) = (programs(), image()) else {
        return ExitCode::FAILURE;
    };
    let dir = Path::new(&dir);
    let nodes = ranks.iter().copied().max().unwrap_or(2).max(4);
    let [reference_file, transfer_file] = &programs;
    let trace = |network: &Network, nodes: u32, file: &JobFile, commands: &[String]| {
        let folder = dir.join(network.name);
        let trace = folder.join("trace.nst");
        let done = folder.join("done");
        if !done.exists() {
            std::fs::create_dir_all(&folder).expect("a folder for the results");
            let files = std::slice::from_ref(file);
            emulate(image, network, nodes, files, commands, &folder);
            std::fs::write(done, "").expect("a file in the folder for the results");
        }
        trace
    };
    let transfer = [launch(4, "transfer 65000 8")];
    let calibration = trace(&REFERENCE, 4, transfer_file, &transfer);
    let overheads = overheads(&calibration, &REFERENCE);
    println!("{overheads:?}\n");
    // Each program and number of ranks has an MPI job of its own: within a job, TCP connections would keep what they learnt from an earlier
    // program.
    let commands: Vec<String> = (ranks.iter())
        .flat_map(|&ranks| {
            PROGRAMS.map(|(name, size, steps)| {
                let repeats = format!(" {name} {size} {steps}").repeat(REPEATS as usize);
                launch(ranks, &format!("reference{repeats}"))
            })
        })
        .collect();
    let traces = PUBLISHED.map(|network| trace(&network, nodes, reference_file, &commands));

    println!(
        "| network | program | ranks | emulated | predicted from its own trace | from a trace of another network |"
    );
    println!("|---|---|---|---|---|---|");
    let mut errors = Vec::new();
    for (to, network) in PUBLISHED.iter().enumerate() {
        let cluster = target(network, &overheads);
        for (number, (program, ..)) in PROGRAMS.iter().enumerate() {
            for (place, ranks) in ranks.iter().enumerate() {
                let job = place * PROGRAMS.len() + number;
                let sections = |from: usize| {
                    let section = |number| section(&traces[from], job, number, &cluster);
                    (0..REPEATS).map(section).collect::<Vec<_>>()
                };
                let error = |from: usize| {
                    let predicted: u64 = sections(from).iter().map(|s| s.time).sum();
                    let emulated: u64 = sections(to).iter().map(|s| s.traced).sum();
                    let error = 100.0 * (predicted as f64 / emulated as f64 - 1.0);
                    (emulated, predicted, error)
                };
                let (emulated, own, own_error) = error(to);
                print!(
                    "| {} | {program} | {ranks} | {:.3} ms | {:.3} ms, {own_error:+.2} % |",
                    network.name,
                    emulated as f64 / 1e9,
                    own as f64 / 1e9,
                );
                let mut text = Vec::new();
                for from in (0..PUBLISHED.len()).filter(|&from| from != to) {
                    let (_, predicted, error) = error(from);
                    errors.push(error.abs());
                    let name = PUBLISHED[from].name;
                    text.push(format!(
                        "{name}: {:.3} ms, {error:+.2} %",
                        predicted as f64 / 1e9
                    ));
                }
                println!(" {} |", text.join("; "));
            }
        }
    }
    errors.sort_by(f64::total_cmp);
    let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    println!(
        "\nFrom traces of other networks, {} predictions: error at most {:.2} %, {:.2} % in the mean, at most 1 % in {}.",
        errors.len(),
        errors.last().copied().unwrap_or(0.0),
        mean,
        errors.iter().filter(|&&error| error <= 1.0).count(),
    );
    ExitCode::SUCCESS
}
