//! `nodescope phases`.

pub mod args;

use nodescope_model::Take;
use nodescope_phases::{Analysis, Messages, Request, analyse};
use nodescope_predict::{Choice, Cluster, ClusterFile, Library};

use crate::exit::{Exit, Failure};
use crate::predict::read;
use crate::terminal::print;

/// Finds the communication phases of a trace.
pub fn phases(args: &args::Phases) -> Result<Exit, Failure> {
    let wrong = |error: &dyn std::error::Error| Failure::of(Exit::Study, error);
    let cluster = cluster(args)?;
    let take = Take {
        job: args.job,
        ..Take::default()
    };
    let (_, sequences) = read(&args.results, take)?;
    let choice = cluster.as_ref().map_or(default_choice(), |of| of.collectives.clone());
    let messages = Messages::new(&sequences, args.include(), &choice);
    let request = Request {
        step: args.step.map(|time| time.0),
        classes: args.classes,
        seed: args.seed,
    };
    let analysis = analyse(&messages, &request).map_err(|error| wrong(&error))?;
    tell(&analysis, args)?;
    Ok(Exit::Ok)
}

/// The algorithms of collectives where no cluster file names them.
pub fn default_choice() -> Choice {
    Choice {
        library: Library::OpenMpi,
        fixed: Default::default(),
    }
}

fn cluster(args: &args::Phases) -> Result<Option<Cluster>, Failure> {
    let Some(file) = &args.cluster else {
        return Ok(None);
    };
    let file = ClusterFile::load(file);
    let cluster = file.and_then(|file| file.with(&args.set));
    cluster.map(Some).map_err(|problems| Failure::of(Exit::Study, &problems))
}

fn tell(analysis: &Analysis, args: &args::Phases) -> Result<(), Failure> {
    if args.json {
        print(&analysis.json())
    } else {
        print(&analysis.text())
    }
}
