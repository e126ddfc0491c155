//! `nodescope phases`, and the section of communication phases in the report's page.

pub mod args;

use nodescope_loop_tree::{SequenceOptions, Sequences};
use nodescope_phases::{Analysis, Include, MappingRequest, Messages, Request, analyse, map_ranks};
use nodescope_predict::{Choice, Cluster, ClusterFile, Library};

use crate::exit::{Exit, Failure};
use crate::predict::read;
use crate::terminal::{print, print_json};

/// Finds the communication phases of a trace, and placements of its ranks if a cluster is given.
pub fn phases(args: &args::Phases) -> Result<Exit, Failure> {
    let wrong = |error: &dyn std::error::Error| Failure::of(Exit::Study, error);
    let cluster = cluster(args)?;
    let options = SequenceOptions {
        program: args.program,
        ..SequenceOptions::default()
    };
    let (_, sequences) = read(&args.results, options)?;
    let of_cluster = cluster.as_ref().map(|cluster| cluster.collectives.clone());
    let choice = of_cluster.unwrap_or_else(default_choice);
    let messages = Messages::new(&sequences, args.include(), &choice);
    let request = Request {
        step: args.step.map(|time| time.0),
        classes: args.classes,
        seed: args.seed,
    };
    let mut analysis = analyse(&messages, &request).map_err(|error| wrong(&error))?;
    if let Some(cluster) = &cluster {
        let request = MappingRequest {
            sockets: args.sockets,
            change: args.change_cost,
        };
        let mapping = map_ranks(&analysis, &sequences, cluster, &request);
        analysis.mapping = Some(mapping.map_err(|error| wrong(&error))?);
    }
    print_result(&analysis, args)?;
    Ok(Exit::Ok)
}

/// Returns the algorithms of collectives that are assumed without a cluster file.
fn default_choice() -> Choice {
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
    let cluster = cluster.map_err(|problems| Failure::of(Exit::Study, &problems))?;
    Ok(Some(cluster))
}

fn print_result(analysis: &Analysis, args: &args::Phases) -> Result<(), Failure> {
    if args.json {
        print_json(&analysis.json())
    } else if args.html {
        let page = analysis.html();
        print(&page.map_err(|error| Failure::of(Exit::Study, &error))?)
    } else {
        print(&analysis.text())
    }
}

/// Returns the contents of the section of communication phases in a report's page, or the reason why there is none.
pub fn section(sequences: &Sequences) -> Result<String, String> {
    let messages = Messages::new(sequences, Include::default(), &default_choice());
    let request = Request {
        seed: args::SEED,
        ..Request::default()
    };
    let analysis = analyse(&messages, &request).map_err(|error| error.to_string())?;
    analysis.section().map_err(|error| error.to_string())
}
