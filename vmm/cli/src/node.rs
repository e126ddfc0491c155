//! `nodescope node`.

use nodescope_measure::measure;
use nodescope_study::NodeDescription;

use crate::args::{self, NodeCommand};
use crate::exit::{Exit, Failure};
use crate::results::{refuse_existing, write};
use crate::terminal::{print, print_note};

/// Measures this machine, or prints descriptions of nodes that are built in.
pub fn node(args: &args::Node) -> Result<Exit, Failure> {
    match &args.command {
        NodeCommand::Measure(args) => measured(args)?,
        NodeCommand::List => print(&list()?)?,
        NodeCommand::Show { name } => {
            // The command line accepts no other names.
            let text = NodeDescription::find(name).map(|node| node.text);
            print(text.unwrap_or_default())?;
        }
    }
    Ok(Exit::Ok)
}

/// Measures this machine, and writes its description.
fn measured(args: &args::NodeMeasure) -> Result<(), Failure> {
    // A file that is in the way is told before the measurement, which takes a while.
    if let Some(file) = &args.output {
        refuse_existing(file, args.force)?;
    }
    let host = measure(&mut |subject| print_note(&format!("measuring {subject}")));
    let text = host.map_err(|e| Failure::of(Exit::Host, &e))?.to_toml();
    match &args.output {
        Some(file) => {
            write(file, &text)?;
            print(&format!("{}\n", file.display()))
        }
        None => print(&text),
    }
}

/// Returns a line for each node: name, processor, and whether the model of its core was compared with measurements.
fn list() -> Result<String, Failure> {
    let width = NodeDescription::all()
        .map(|node| node.name.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for node in NodeDescription::all() {
        let core = node.core().map_err(|e| Failure::of(Exit::Host, &e))?;
        let validated = match core.validated {
            true => "validated",
            false => "not validated",
        };
        text += &format!("{:width$}  {}, {validated}\n", node.name, node.title());
    }
    Ok(text)
}
