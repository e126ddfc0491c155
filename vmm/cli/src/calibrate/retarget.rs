//! `nodescope calibrate retarget`: the software costs of one measurement, with another network. A study as the cluster of a prediction, too.

use std::path::Path;

use nodescope_predict::Cluster;
use nodescope_study::Study;
use nodescope_study::quantity::{BitRate, ByteRate, Bytes, QuantityError, Time};
use toml_edit::{DocumentMut, Item, Table, value};

use super::args;
use super::run::wire;
use crate::exit::{Exit, Failure};
use crate::results;
use crate::terminal::print;

/// Costs of messages at their ends where none were measured: none. Messages go in frames and share links, as those of guests do.
const WITHOUT_COSTS: &str = "[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\nenvelope = \"0 B\"\nframe_payload = \"1448 B\"\nframe_header = \"90 B\"\nframe_acknowledge = 2\nsharing = \"frames\"\n";

/// Writes a cluster file for another network.
pub fn retarget(args: &args::Retarget) -> Result<Exit, Failure> {
    results::refuse_existing(&args.output, args.force)?;
    let wrong = |problems| Failure::of(Exit::Study, &problems);
    let before = Cluster::load(&args.costs).map_err(wrong)?;
    let mut document = read(&args.costs)?;
    if let Some(study) = &args.study {
        adopt(&mut document, &Study::load(study).map_err(wrong)?);
    }
    let network = section(&mut document, "network");
    if let Some(latency) = args.latency {
        network["latency"] = value(latency.to_string());
    }
    if let Some(bandwidth) = args.bandwidth {
        network["bandwidth"] = value(bandwidth.to_string());
    }
    let stem = args.output.file_stem().unwrap_or_default();
    document["name"] = value(stem.to_string_lossy().into_owned());
    let text = document.to_string();
    let cluster = Cluster::parse(&args.output, &text).map_err(wrong)?;
    results::write(&args.output, &text)?;
    let mut said = format!(
        "between nodes: {}\nmeasured with: {}\n",
        told(&cluster),
        told(&before)
    );
    if before.network.frames.is_none() {
        said += "note: the costs were fitted without frames, so that they contain times of the network that was measured\n";
    }
    print(&format!("{said}{}\n", args.output.display()))?;
    Ok(Exit::Ok)
}

/// Returns the text of a cluster file for the nodes and the network of a study, with the software costs of another cluster file, or with
/// none.
pub fn of_study(study: &Study, costs: Option<&Path>) -> Result<String, Failure> {
    let mut document = match costs {
        Some(costs) => read(costs)?,
        None => WITHOUT_COSTS.parse().unwrap_or_default(),
    };
    adopt(&mut document, study);
    document["name"] = value(study.name.clone());
    Ok(document.to_string())
}

/// Parses a rate as of a study, such as "10 Gbit/s", or as of a cluster file, such as "1.25 GB/s".
pub fn rate(text: &str) -> Result<ByteRate, QuantityError> {
    match text.parse::<BitRate>() {
        Ok(rate) => Ok(ByteRate(rate.0 / 8)),
        Err(_) => text.parse(),
    }
}

fn told(cluster: &Cluster) -> String {
    format!(
        "{}, {}",
        Time(cluster.network.latency).rounded(4),
        match cluster.network.per_byte {
            0.0 => "no limit of bandwidth".to_owned(),
            per_byte => ByteRate((1e12 / per_byte).round() as u64).to_string(),
        }
    )
}

fn read(path: &Path) -> Result<DocumentMut, Failure> {
    let text = std::fs::read_to_string(path).map_err(Failure::io("read", path))?;
    text.parse().map_err(|error: toml_edit::TomlError| {
        Failure::new(
            Exit::Study,
            format!("{}: {}", path.display(), error.message()),
        )
    })
}

/// Gives a cluster file the nodes and the network of a study.
fn adopt(document: &mut DocumentMut, study: &Study) {
    let wire = wire(study);
    let nodes = section(document, "nodes");
    nodes["count"] = value(i64::from(study.nodes));
    nodes["cores"] = value(i64::from(study.topology.vcpus()));
    let network = section(document, "network");
    network["latency"] = value(Time(wire.latency).to_string());
    network["bandwidth"] = value(ByteRate(wire.bandwidth).to_string());
    if let Some(frames) = wire.frames
        && network.get("frame_payload").is_some()
    {
        network["frame_payload"] = value(Bytes(frames.payload).to_string());
    }
}

fn section<'a>(document: &'a mut DocumentMut, name: &str) -> &'a mut Item {
    let item = &mut document[name];
    if item.is_none() {
        *item = Item::Table(Table::new());
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_studies_or_of_cluster_files() {
        assert_eq!(rate("10 Gbit/s").expect("a rate"), ByteRate(1_250_000_000));
        assert_eq!(rate("1.25 GB/s").expect("a rate"), ByteRate(1_250_000_000));
        assert!(rate("fast").is_err());
    }
}
