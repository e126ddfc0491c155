//! `nodescope model`: what a program does as a function of its number of ranks and its problem size.

pub mod args;

use nodescope_loop_tree::{Program, SequenceOptions, Sequences};
use nodescope_predict::model::measure::Measured;
use nodescope_predict::model::{Run, extra_p, models};
use nodescope_predict::{Cluster, ClusterFile, Code, Options, interpret};

use crate::exit::{Exit, Failure};
use crate::predict::read;
use crate::results::{refuse_existing, write};
use crate::terminal::{print, print_json};

/// Fits functions of the number of ranks and the problem size to several results, and prints them.
pub fn model(args: &args::Model) -> Result<Exit, Failure> {
    let refused = |text: String| Err(Failure::new(Exit::Study, text));
    if let Some(file) = &args.extra_p {
        refuse_existing(file, args.force)?;
    }
    let sizes = &args.parameter;
    let (given, results) = (sizes.values.len(), args.results.len());
    if given != results && given != 1 {
        return refused(format!(
            "--parameter has {given} values of {}, but {results} results are given; give one value for each, in their order",
            sizes.name
        ));
    }
    let mut at = Vec::new();
    for place in &args.at {
        let size = match &place.size {
            Some((name, size)) if *name == sizes.name => *size,
            None if given == 1 => sizes.values[0],
            _ => {
                return refused(format!(
                    "--at needs p and {0}; give e.g. p=64,{0}=4096",
                    sizes.name
                ));
            }
        };
        at.push((place.ranks, size));
    }
    let cluster = args.cluster.as_ref().map(|file| {
        let cluster = ClusterFile::load(file).and_then(|file| file.with(&[]));
        cluster.map_err(|problems| Failure::of(Exit::Study, &problems))
    });
    let cluster = cluster.transpose()?;
    let (mut runs, mut notes) = (Vec::with_capacity(results), Vec::new());
    for (index, results) in args.results.iter().enumerate() {
        let options = SequenceOptions {
            program: args.program,
            ..SequenceOptions::default()
        };
        let (path, sequences) = read(results, options)?;
        let predicted = match &cluster {
            None => None,
            Some(cluster) => Some(predicted(&sequences, cluster).map_err(|error| {
                Failure::new(Exit::Study, format!("{}: {error}", path.display()))
            })?),
        };
        for note in &sequences.notes {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        runs.push(Run {
            ranks: sequences.ranks.len() as f64,
            size: sizes.values.get(index).copied().unwrap_or(sizes.values[0]),
            measured: Measured::new(&sequences, predicted),
        });
    }
    let found = models(&runs, &sizes.name, &at);
    let mut found = found.map_err(|error| Failure::of(Exit::Study, &error))?;
    found.notes = notes;
    if let Some(file) = &args.extra_p {
        write(file, &extra_p(&runs, &sizes.name))?;
    }
    if args.json {
        print_json(&found.json())?;
    } else {
        print(&found.text())?;
    }
    Ok(Exit::Ok)
}

/// Returns the time of a program on a cluster, picoseconds.
fn predicted(sequences: &Sequences, cluster: &Cluster) -> Result<u64, String> {
    let options = Options {
        critical_path: false,
        links: 0,
        ..Options::default()
    };
    let program = Program::new(sequences);
    let outcome = interpret(&Code::new(&program), cluster, &options);
    let outcome = outcome.map_err(|error| error.to_string())?;
    match outcome.complete() {
        true => Ok(outcome.time),
        false => Err(
            "the program does not come to its end on this cluster; `nodescope predict` says why"
                .to_owned(),
        ),
    }
}
