//! `nodescope calibrate retarget`: the software costs of one measurement, with another network.

use nodescope_predict::Cluster;
use nodescope_study::Study;
use nodescope_study::quantity::{ByteRate, Bytes, Time};
use toml_edit::{DocumentMut, Item, Table, value};

use super::args;
use super::run::wire;
use crate::exit::{Exit, Failure};
use crate::results;
use crate::terminal::print;

/// Writes a cluster file for another network.
pub fn retarget(args: &args::Retarget) -> Result<Exit, Failure> {
    results::refuse_existing(&args.output, args.force)?;
    let wrong = |problems| Failure::of(Exit::Study, &problems);
    let before = Cluster::load(&args.costs).map_err(wrong)?;
    let text = std::fs::read_to_string(&args.costs).map_err(Failure::io("read", &args.costs))?;
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        Failure::new(
            Exit::Study,
            format!("{}: {}", args.costs.display(), error.message()),
        )
    })?;
    let study = args.study.as_deref().map(Study::load).transpose();
    let study = study.map_err(wrong)?;
    if let Some(study) = &study {
        let wire = wire(study);
        section(&mut document, "nodes")["cores"] = value(i64::from(study.topology.vcpus()));
        let network = section(&mut document, "network");
        network["latency"] = value(Time(wire.latency).to_string());
        network["bandwidth"] = value(ByteRate(wire.bandwidth).to_string());
        if let (Some(frames), true) = (wire.frames, before.network.frames.is_some()) {
            network["frame_payload"] = value(Bytes(frames.payload).to_string());
        }
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
    let told = |cluster: &Cluster| {
        format!(
            "latency {}, {} us a MB",
            Time(cluster.network.latency).rounded(4),
            (cluster.network.per_byte * 100.0).round() / 100.0
        )
    };
    let mut said = format!(
        "between nodes: {}; measured with {}\n",
        told(&cluster),
        told(&before)
    );
    if before.network.frames.is_none() {
        said += "note: the costs were fitted without frames, so that they contain times of the network that was measured\n";
    }
    print(&format!("{said}{}\n", args.output.display()))?;
    Ok(Exit::Ok)
}

fn section<'a>(document: &'a mut DocumentMut, name: &str) -> &'a mut Item {
    let item = &mut document[name];
    if item.is_none() {
        *item = Item::Table(Table::new());
    }
    item
}
