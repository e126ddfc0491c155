//! Times the recordings in a folder again: `cargo run --release --example replay -- FOLDER [CORE]`. `scripts/bench cpi --recordings FOLDER`
//! makes them.

use std::path::PathBuf;

use nodescope_plugin_api::{Cause, CoreModel, Recording, SOURCES, Source};
use nodescope_plugin_pipeline::{Core, PipelineModel, Recordings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("name the folder of recordings")?);
    let core = arguments.next().unwrap_or_else(|| "zen4".into());
    let core = match core.contains('.') {
        true => Core::from_toml(&std::fs::read_to_string(core)?)?,
        false => Core::preset(&core)?,
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    let mut errors = Vec::new();
    for file in files {
        let recordings = Recordings::read(&file)?;
        let mut model = PipelineModel::new(&core, recordings.beyond);
        model.recorded(0, &Recording::default());
        for recording in &recordings.list {
            model.recorded(0, recording);
        }
        let costs = model.costs();
        let cpi = costs.timed.cpi().unwrap_or(f64::NAN);
        let error = cpi / recordings.measured - 1.0;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        print!(
            "{name:<24}{:>9.3}{cpi:>9.3}{:>+7.0} %",
            recordings.measured,
            error * 100.0
        );
        let [core, speculation, translation] = costs.others.each_instruction;
        for (cause, cycles) in Cause::ALL.iter().zip([core, speculation, translation]) {
            print!(" {} {:.3}", cause.name(), cycles as f64 / 65536.0);
        }
        let answers = answers(&recordings.list);
        for source in Source::ALL {
            let each = costs.others.each_answer[source as usize] as f64 / 65536.0;
            if answers[source as usize] > 0.0 {
                print!(
                    " {} {:.4} x {each:.1}",
                    source.name(),
                    answers[source as usize]
                );
            }
        }
        let prefetches = recordings.list.iter().flat_map(|r| &r.answers);
        let steps: usize = recordings.list.iter().map(|r| r.steps.len()).sum();
        for source in Source::ALL {
            let of = prefetches
                .clone()
                .filter(|a| a.prefetched_into > 0 && a.source == Some(source));
            let count = of.count();
            if count > 0 {
                print!(
                    " {} prefetched {:.4}",
                    source.name(),
                    count as f64 / steps as f64
                );
            }
        }
        println!();
        errors.push(error);
    }
    let logarithm: f64 = errors.iter().map(|e| (1.0 + e).ln().abs()).sum();
    let mut absolute: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
    absolute.sort_by(f64::total_cmp);
    let count = absolute.len().max(1);
    println!(
        "median {:.1} %, mean {:.1} %, mean of |ln| {:.3}",
        absolute.get(count / 2).unwrap_or(&f64::NAN) * 100.0,
        absolute.iter().sum::<f64>() / count as f64 * 100.0,
        logarithm / count as f64
    );
    Ok(())
}

/// Returns the answers of each source per recorded instruction.
fn answers(recordings: &[Recording]) -> [f64; SOURCES] {
    let mut answers = [0.0; SOURCES];
    let steps: usize = recordings.iter().map(|r| r.steps.len()).sum();
    for answer in recordings.iter().flat_map(|r| &r.answers) {
        if let (0, Some(source)) = (answer.prefetched_into, answer.source) {
            answers[source as usize] += 1.0 / steps.max(1) as f64;
        }
    }
    answers
}
